// SPDX-License-Identifier: Apache-2.0
/*
 * The part of HTTP/1.1 (RFC 9112) that a metrics collector needs: one GET or HEAD request per
 * connection, and its answer. Other requests are rejected with the status that the RFC defines.
 *
 * Threading and ownership: pure functions; a request refers to the bytes it was read from. Errors:
 * an HTTP status.
 */
#pragma once

#include "base/compiler.h"

enum {
	HTTP_REQUEST_BYTES = 8 << 10, /* request line and fields, including the empty line */
	HTTP_HEAD_BYTES = 512,	      /* head of an answer */
	HTTP_OK = 200,
};

struct http_request {
	bool head; /* the method is HEAD: no content is sent */
	const char *target;
	size_t target_bytes;
	/* Weights of the formats in the client's Accept field: 0 (not accepted) to 1000. */
	uint32_t openmetrics_weight;
	uint32_t text_weight;
};

/* Returns the length of the request at the start of bytes; 0: the request is incomplete. */
size_t http_request_end(const char *bytes, size_t count);
/* Parses a complete request. Returns HTTP_OK, or the status of the answer that rejects it. */
int http_parse(const char *bytes, size_t count, struct http_request *request);

/* Writes the head of an answer with that many bytes of content. Returns its length. */
size_t http_head(char out[HTTP_HEAD_BYTES], int status, const char *content_type, size_t bytes);
/* Returns the text of a status, such as "404 Not Found". */
const char *http_status_text(int status);
