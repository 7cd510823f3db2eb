// SPDX-License-Identifier: Apache-2.0
/*
 * URIs of exports, for listening as for connecting: those of NBD (doc/uri.md of the NBD project;
 * rows P132-P134), and gmb's in the same form:
 *
 *   nbd://[USER@]HOST[:PORT]/EXPORT          nbd+unix:///EXPORT?socket=PATH
 *   nbds://..., nbds+unix://...              the same over TLS, with parameters:
 *     tls-type=x509|psk, tls-certificates=FOLDER, tls-psk-file=FILE, tls-hostname=NAME,
 *     tls-verify-peer=0|1
 *   gmb://HOST[:PORT]/EXPORT[?provider=tcp|verbs|ofi-tcp]
 *   gmb+unix:///EXPORT?socket=PATH           docs/protocol/gmb.md
 *   push://..., push+unix://...              the same for docs/protocol/push.md
 *
 * A Unix socket to listen on may have socket-mode=MODE and socket-group=GROUP.
 *
 * Threading: pure functions. Ownership: export_uri_parse() gives, export_uri_fini() frees.
 * Errors: -EINVAL with a sentence that names what is wrong with which part; nothing to free then.
 */
#pragma once

#include "base/error.h"

enum {
	NBD_PORT_DEFAULT = 10809,
	GMB_PORT_DEFAULT = 10810,
	PUSH_PORT_DEFAULT = 10811,
	EXPORT_URI_LABEL_BYTES = 160
};

struct export_uri {
	const char *protocol; /* static: "nbd", also with TLS, "gmb" or "push" */
	bool tls;	      /* scheme nbds or nbds+unix */
	bool is_unix;	      /* scheme nbd+unix, nbds+unix, gmb+unix or push+unix */
	char *host;	      /* TCP: name or address without brackets, not empty; else NULL */
	uint16_t port;	      /* TCP: 0 only when the URI says ":0" (listening) */
	char *socket_path;    /* Unix: path; an abstract name starts with a zero byte */
	uint32_t socket_path_bytes; /* without terminator */
	char *export_name; /* percent-decoded, may be empty, never NULL, no zero byte inside */
	char *user;	   /* or NULL */
	/* With tls, or NULL. The first two are files of this machine, which only a user of it may
	 * name: export_uri_has_files(). */
	char *tls_certificates;
	char *tls_psk_file;
	char *tls_type; /* "psk" or "x509" */
	char *tls_hostname;
	char *tls_verify_peer;	 /* "0" or "1" */
	char *provider;		 /* gmb://, push://: "tcp", "verbs" or "ofi-tcp" (libfabric's tcp);
				  * NULL: tcp */
	char *insecure_network;	 /* the same, for a listener: "yes" or "no"; it is not printed */
	char *socket_mode;	 /* Unix, for a listener: octal, "0660"; it is not printed */
	char *socket_group;	 /* the same: who has the group's rights on the socket */
	char *unknown_parameter; /* name of the first parameter nobody knows, or NULL: say so */
};

/* A URI that holds a password is refused, and the sentence does not repeat it. */
GMB_MUST_CHECK int export_uri_parse(const char *text, struct export_uri *uri, struct error *error);
void export_uri_fini(struct export_uri *uri);

/* Writes the URI, percent-encoded where needed, terminated; -ENOSPC when it does not fit. The
 * export name is given apart, so that a listener can print one URI per export. */
GMB_MUST_CHECK int export_uri_format(const struct export_uri *uri, const char *export_name,
	uint32_t export_name_bytes, char *out, size_t out_bytes);

/* What it is to clan_connect() and clan_listen(); to be freed. NULL: no memory. */
char *export_uri_clan_address(const struct export_uri *uri);
/* The port of "tcp:HOST:PORT" and the like. */
uint16_t export_uri_clan_port(const char *address);

/* Whether a client can use the disk there: -EPROTONOSUPPORT when it is an address of push. */
GMB_MUST_CHECK int export_uri_check_client(const struct export_uri *uri, struct error *error);

/* Whether it names files of this machine, which a URI from elsewhere must not. */
static inline bool export_uri_has_files(const struct export_uri *uri)
{
	return uri->tls_certificates != NULL || uri->tls_psk_file != NULL;
}

/* The server's address as the user wrote it, escaped: "[::1]:10809". Returns out. */
const char *export_uri_label(char out[EXPORT_URI_LABEL_BYTES], const struct export_uri *uri);
