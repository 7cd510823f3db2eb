// SPDX-License-Identifier: Apache-2.0
/*
 * URIs of any scheme that names something on a network address or a Unix socket:
 *
 *   SCHEME://[USER@]HOST[:PORT]/PATH[?NAME=VALUE&...]
 *   SCHEME+unix:///PATH?socket=PATH[&NAME=VALUE...]
 *
 * Names and values are percent-decoded. What a scheme, path or parameter means is for the protocol
 * that serves the scheme to say (session kinds name their schemes, engine/engine.h).
 *
 * Threading: pure functions. Ownership: uri_parse() gives, uri_fini() frees. Errors: -EINVAL with a
 * sentence that says what is wrong with which part; nothing to free then.
 */
#pragma once

#include "base/error.h"

struct uri {
	char *scheme; /* as written, with "+unix" */
	bool is_unix;
	bool has_port;
	uint16_t port;	   /* with has_port; 0 only when the URI says ":0" */
	char *user;	   /* or NULL */
	char *host;	   /* without brackets, "localhost" where it is empty; NULL with is_unix */
	char *socket_path; /* with is_unix: not empty; an abstract name starts with a zero byte */
	uint32_t socket_path_bytes; /* without terminator */
	char *path;		    /* without the first slash; may be empty, no zero byte inside */
	uint32_t path_bytes;
	const char *query; /* in the text that was parsed, for uri_next_parameter() */
};

GMB_MUST_CHECK int uri_parse(const char *text, struct uri *uri, struct error *error);
void uri_fini(struct uri *uri);

/* What to look at when connecting to the socket of a URI gave err, a negative errno; NULL when that
 * says it all. socket_path: as in struct uri. */
const char *uri_unix_advice(const char *socket_path, int err);
/* The same for a host and its port. */
const char *uri_tcp_advice(int err);

struct uri_parameter {
	char *name;
	char *value; /* of "socket" it may hold zero bytes */
	uint32_t value_bytes;
};

/* Takes the next parameter off *query: 1, to be freed with uri_parameter_fini(); 0: there is none;
 * or a negative errno. */
GMB_MUST_CHECK int uri_next_parameter(
	const char **query, struct uri_parameter *parameter, struct error *error);
void uri_parameter_fini(struct uri_parameter *parameter);

/* Bounded output: what does not fit is dropped, and full is set. */
struct uri_writer {
	char *out;
	size_t room; /* bytes left, terminator included; at least 1 */
	bool full;
};

void uri_put_text(struct uri_writer *w, const char *text, size_t len);
/* Percent-encodes everything but unreserved characters and those in also. */
void uri_put_encoded(struct uri_writer *w, const char *bytes, size_t len, const char *also);
/* SEPARATOR NAME=VALUE, and the separator is '&' from then on; nothing when value is NULL. */
void uri_put_parameter(struct uri_writer *w, const char *name, const char *value, char *separator);
void uri_put_host_port(struct uri_writer *w, const char *host, uint16_t port);
