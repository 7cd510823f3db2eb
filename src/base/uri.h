// SPDX-License-Identifier: Apache-2.0
/*
 * URIs that name an object of a server at a network address or Unix socket, with any scheme:
 *
 *   SCHEME://[USER@]HOST[:PORT][,HOST[:PORT]...]/PATH[?NAME=VALUE&...]
 *   SCHEME+unix:///PATH?socket=PATH[&NAME=VALUE...]
 *   SCHEME+unix:///PATH?folder=PATH[&NAME=VALUE...]
 *
 * Names and values are percent-decoded. The protocol that uses the scheme defines the meaning of
 * the scheme, path and parameters (session kinds name their schemes, engine/engine.h).
 *
 * Threading: pure functions. Ownership: uri_parse() allocates, uri_fini() frees. Errors: -EINVAL
 * with an error message that names the wrong part and the reason; the URI then needs no uri_fini().
 */
#pragma once

#include "base/error.h"

enum { URI_HOSTS_MAX = 8 };

struct uri_host {
	/* without brackets; "localhost" if the URI has no host at all */
	char *name;
	uint16_t port; /* valid with has_port; 0 only if the URI contains ":0" */
	bool has_port;
};

struct uri {
	char *scheme; /* scheme as written, with "+unix" */
	bool is_unix;
	char *user; /* or NULL */
	struct uri_host hosts[URI_HOSTS_MAX];
	uint32_t host_count; /* at least 1; with is_unix: 0 */
	char *socket_path;   /* with is_unix: not empty; an abstract name starts with a zero byte */
	uint32_t socket_path_bytes; /* length without the terminator */
	bool is_folder;		    /* socket_path is the path of a folder of sockets */
	/* without the first slash; may be empty; contains no zero byte */
	char *path;
	uint32_t path_bytes;
	const char *query; /* points into the parsed text, for uri_next_parameter() */
};

GMB_MUST_CHECK int uri_parse(const char *text, struct uri *uri, struct error *error);
void uri_fini(struct uri *uri);

/* Returns why libclan could not connect. err: its negative errno. */
const char *uri_connect_reason(int err);
/* Returns advice for a failed connection to a Unix socket, or NULL if there is none. err: the
 * negative errno. socket_path: as in struct uri. */
const char *uri_unix_advice(const char *socket_path, int err);
/* uri_unix_advice() for TCP. */
const char *uri_tcp_advice(int err);

struct uri_parameter {
	char *name;
	char *value; /* may contain zero bytes if the name is "socket" */
	uint32_t value_bytes;
};

/* Removes the next parameter from *query. Returns 1 (free it with uri_parameter_fini()), 0 if there
 * is none, or a negative errno. */
GMB_MUST_CHECK int uri_next_parameter(
	const char **query, struct uri_parameter *parameter, struct error *error);
void uri_parameter_fini(struct uri_parameter *parameter);

/* Bounded output: a piece that does not fit is dropped, and full is set. */
struct uri_writer {
	char *out;
	size_t room; /* bytes left, including the terminator; at least 1 */
	bool full;
};

void uri_put_text(struct uri_writer *w, const char *text, size_t len);
/* Percent-encodes bytes. Unreserved characters, and the characters of the text `also`, stay as they
 * are. */
void uri_put_encoded(struct uri_writer *w, const char *bytes, size_t len, const char *also);
/* Writes the separator and NAME=VALUE, and sets the separator to '&'. No effect if value is
 * NULL. */
void uri_put_parameter(struct uri_writer *w, const char *name, const char *value, char *separator);
void uri_put_host_port(struct uri_writer *w, const char *host, uint16_t port);
