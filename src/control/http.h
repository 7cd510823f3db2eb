// SPDX-License-Identifier: Apache-2.0
/*
 * As much of HTTP/1.1 (RFC 9112) as a reader of metrics needs: one GET or HEAD request for each
 * connection, and its answer. Everything else is refused with the status that the RFC has for it.
 *
 * Threading and ownership: pure functions; a request refers to the bytes it was read from.
 * Errors: a status of HTTP.
 */
#pragma once

#include "base/compiler.h"

enum {
	HTTP_REQUEST_BYTES = 8 << 10, /* request line and fields, the empty line included */
	HTTP_HEAD_BYTES = 512,	      /* of an answer */
	HTTP_OK = 200,
};

struct http_request {
	bool head; /* wants no content */
	const char *target;
	size_t target_bytes;
	/* The formats that the client accepts, by their weight of 0 (not at all) to 1000. */
	uint32_t openmetrics_weight;
	uint32_t text_weight;
};

/* How many of the bytes the request at their beginning has; 0: its end is not there. */
size_t http_request_end(const char *bytes, size_t count);
/* Reads the whole request: HTTP_OK, or the status of the answer that refuses it. */
int http_parse(const char *bytes, size_t count, struct http_request *request);

/* The head of an answer with so many bytes of content. Returns its length. */
size_t http_head(char out[HTTP_HEAD_BYTES], int status, const char *content_type, size_t bytes);
/* "404 Not Found": what a status is called. */
const char *http_status_text(int status);
