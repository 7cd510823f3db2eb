// SPDX-License-Identifier: Apache-2.0
/*
 * Export URIs, for listening and for connecting. NBD URIs follow doc/uri.md of the NBD project
 * (P132 to P134 in docs/protocol/nbd.md); gmb and push URIs have the same form:
 *
 *   nbd://[USER@]HOSTS/EXPORT                nbd+unix:///EXPORT?socket=PATH
 *   nbds://..., nbds+unix://...              the same over TLS, with parameters:
 *     tls-type=x509|psk, tls-certificates=FOLDER, tls-psk-file=FILE, tls-hostname=NAME,
 *     tls-verify-peer=0|1
 *   gmb://HOSTS/EXPORT[?provider=tcp|verbs|ofi-tcp]
 *   gmb+unix:///EXPORT?socket=PATH           docs/protocol/gmb.md
 *   push://..., push+unix://...              like gmb, see docs/protocol/push.md
 *   vhost-user-blk+unix:///EXPORT?socket=PATH[&queues=NUMBER]
 *   vhost-user-blk+unix:///?folder=PATH      only for listening: a socket PATH/EXPORT for each
 * export
 *
 * HOSTS is HOST[:PORT], or several of them separated by commas: servers that have the same disk, of
 * which a client uses one.
 *
 * A listening Unix socket can have socket-mode=MODE and socket-group=GROUP.
 *
 * Threading: pure functions. Ownership: export_uri_parse() allocates, export_uri_fini() frees.
 * Errors: -EINVAL with an error message that names the part that is wrong and why; no memory
 * has to be freed then.
 */
#pragma once

#include <string.h>

#include "base/error.h"
#include "base/uri.h"

enum {
	NBD_PORT_DEFAULT = 10809,
	GMB_PORT_DEFAULT = 10810,
	PUSH_PORT_DEFAULT = 10811,
	EXPORT_URI_LABEL_BYTES = 160,
	/* time after which a client reports that a server does not respond */
	EXPORT_URI_SILENT_MS = 3000,
	EXPORT_URI_SILENT_BYTES = EXPORT_URI_LABEL_BYTES + 80,
};

/* The server's message to clients of a fenced node. A client that receives it gives up. */
#define EXPORT_URI_FENCED_TEXT "fenced: this node may not use the server until it is unfenced"
/* The beginning of the server's message to a client that cannot have a lease, or has lost it. A
 * client that receives it gives up. */
#define EXPORT_URI_LEASE_TEXT "leased: "
/* The server's message if an export name contains the name of a deleted snapshot. A client that
 * receives it does not wait for the snapshot. */
#define EXPORT_URI_SNAPSHOT_DELETED_TEXT                                                           \
	"the snapshot was deleted, or dropped because writes needed its space (on-full=drop)"

#define EXPORT_URI_VHOST "vhost-user-blk"

struct export_uri {
	/* static: "nbd" (also with TLS), "gmb", "push" or EXPORT_URI_VHOST */
	const char *protocol;
	bool tls;     /* scheme nbds or nbds+unix */
	bool is_unix; /* a scheme that ends with +unix */
	/* TCP: name or address of the first host without brackets, not empty; otherwise NULL */
	char *host;
	uint16_t port; /* TCP: 0 only if the URI contains ":0" (listening) */
	/* TCP: the hosts after the first one, with has_port set */
	struct uri_host others[URI_HOSTS_MAX - 1];
	uint32_t other_count;
	char *socket_path;	    /* Unix: path; an abstract name starts with a zero byte */
	uint32_t socket_path_bytes; /* length without the terminator */
	bool is_folder;		    /* socket_path is the path of a folder of sockets */
	char *export_name; /* percent-decoded, may be empty, never NULL, no zero byte inside */
	char *user;	   /* or NULL */
	/* Only with tls, otherwise NULL. tls_certificates and tls_psk_file name local files, so
	 * only a local user may set them: see export_uri_has_files(). */
	char *tls_certificates;
	char *tls_psk_file;
	char *tls_type; /* "psk" or "x509" */
	char *tls_hostname;
	char *tls_verify_peer; /* "0" or "1" */
	/* gmb://, push://: "tcp", "verbs" or "ofi-tcp" (libfabric's tcp); NULL: tcp */
	char *provider;
	char *queues; /* vhost-user-blk: number of rings that a client wants; NULL: 1 */
	/* The next three are for listeners; export_uri_format() leaves them out. */
	char *insecure_network; /* gmb:// and push://: "yes" or "no" */
	char *socket_mode;	/* Unix sockets: octal mode, such as "0660" */
	char *socket_group;	/* Unix sockets: group that owns the socket file */
	/* first parameter that is not known, or NULL; the caller reports it */
	char *unknown_parameter;
};

/* Rejects a URI that contains a password, without repeating the password in the message. */
GMB_MUST_CHECK int export_uri_parse(const char *text, struct export_uri *uri, struct error *error);
void export_uri_fini(struct export_uri *uri);
/* Returns whether the text begins with a scheme and a colon, even if it is no valid URI. */
bool export_uri_has_scheme(const char *text);

/* Returns the number of servers that the URI names; at least 1. */
static inline uint32_t export_uri_hosts(const struct export_uri *uri)
{
	return 1 + uri->other_count;
}

/* Returns the URI of one of the servers, which has no other hosts. It borrows all texts from uri,
 * and needs no export_uri_fini(). */
struct export_uri export_uri_at(const struct export_uri *uri, uint32_t host);
/* Returns -EINVAL if the URI names several servers. what: what can have only one, such as "a
 * listening address". */
GMB_MUST_CHECK int export_uri_check_one(
	const struct export_uri *uri, const char *what, struct error *error);

/* Writes the terminated URI, percent-encoded where needed. Returns -ENOSPC if it does not fit. The
 * export name is a separate argument so that a listener can print one URI for each export. */
GMB_MUST_CHECK int export_uri_format(const struct export_uri *uri, const char *export_name,
	uint32_t export_name_bytes, char *out, size_t out_bytes);

/* Returns the address for clan_connect() and clan_listen(), which the caller frees; NULL: no
 * memory. */
char *export_uri_clan_address(const struct export_uri *uri);
/* Returns the port in a clan address such as "tcp:HOST:PORT". */
uint16_t export_uri_clan_port(const char *address);

/* Checks that a client can use a disk at this address. Returns -EPROTONOSUPPORT for a push address,
 * and -EINVAL for a folder of sockets. */
GMB_MUST_CHECK int export_uri_check_client(const struct export_uri *uri, struct error *error);

/* Returns whether connections at an address with this URI cannot choose an export, because the
 * protocol has no export names. The URI of the listener names the export. */
static inline bool export_uri_has_one_export(const struct export_uri *uri)
{
	return strcmp(uri->protocol, EXPORT_URI_VHOST) == 0;
}

/* Returns whether the URI names local files. A URI received from another machine must not name
 * any. */
static inline bool export_uri_has_files(const struct export_uri *uri)
{
	return uri->tls_certificates != NULL || uri->tls_psk_file != NULL;
}

/* The disk that a server has: its identity, or zeroes if it is not known, and the label of the
 * server. */
enum { EXPORT_URI_DISK_BYTES = 16 };
struct export_uri_disk {
	const uint8_t *id;
	const char *label;
};

/* Checks that a client can continue at another server: both have the same disk. Returns -ESTALE if
 * not, or if an identity is not known. name: of the export. */
GMB_MUST_CHECK int export_uri_check_disk(const struct export_uri_disk *home,
	const struct export_uri_disk *other, const char *name, struct error *error);

/* Returns the number of hosts in a URI; 0 if the text is no valid URI. */
uint32_t export_uri_count_hosts(const char *text);

/* Formats the address of the first server as the user wrote it, escaped, such as "[::1]:10809".
 * Returns out. */
const char *export_uri_label(char out[EXPORT_URI_LABEL_BYTES], const struct export_uri *uri);

/* Formats the report about a server that has not responded for EXPORT_URI_SILENT_MS. label: its
 * address. limit_ms: how long the client waits in total. Returns out. */
const char *export_uri_silent(
	char out[EXPORT_URI_SILENT_BYTES], const char *label, uint64_t limit_ms);
