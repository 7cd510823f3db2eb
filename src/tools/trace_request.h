// SPDX-License-Identifier: Apache-2.0
/*
 * "gmblock trace --request": makes a running server record single requests over its control socket
 * (control/control.h), waits for the records, and shows how the time of each request was spent.
 *
 *   trace_request_arm() ─▶ trace_request_wait() ─▶ document ─▶ trace_request_parse() ─▶ show
 *
 * Threading: the main thread. Ownership: the caller owns documents (json_decref); parsed requests
 * borrow their texts from the document. Errors: a negative errno or NULL, and an error message.
 */
#pragma once

#include <stdio.h>

#include "control/control.h"
#include "path/stats.h"

/* The requests to record. */
struct trace_question {
	uint32_t count;
	uint64_t min_size;
	const char *export; /* name of the export, or NULL: any */
	json_t *operations; /* names of operations, or NULL: any */
};

enum { TRACE_REQUEST_COUNT_MAX = 1000 };

/* Times are in microseconds since the start of the request; negative: the event did not happen. */
struct trace_request_part {
	uint64_t offset; /* on the export */
	uint64_t length;
	const char *placement; /* place of the payload, or NULL */
	double opened_us;
	double submitted_us;
	double done_us;
	const char *error; /* or NULL */
	uint32_t mark_count;
	struct trace_request_mark {
		double progress_us;
		uint64_t bytes;
	} * marks;
	uint32_t piece_count;
	struct trace_request_piece {
		uint64_t offset;
		uint64_t length;
		double handed_us;
		double back_us;
	} * pieces;
};

struct trace_request {
	const char *operation;
	const char *export; /* "": the default export */
	uint64_t offset;
	uint64_t length;
	const char *error; /* or NULL */
	double total_us;
	double state_us[PATH_STATE_DONE]; /* by enum path_state: time spent in that state */
	struct trace_request_part *parts; /* sorted by offset */
	uint32_t part_count;
	uint32_t parts_more; /* number of parts without a record */
};

struct trace_requests {
	uint32_t wanted;
	const char *ended; /* reason for the end: "count", "left", "stop" */
	struct trace_request *requests;
	uint32_t count;
};

/* Makes the server at a control socket record requests. The caller closes the connection with
 * control_disconnect(). */
GMB_MUST_CHECK int trace_request_arm(const char *path, const struct trace_question *question,
	struct control_connection **connection_out, struct error *error);
/* Prints on standard error that it waits, and waits for the records. After timeout_ns (0: no limit)
 * or an interrupt (SIGINT, SIGTERM), requests the records that there are. Returns NULL and an error
 * message on failure. */
json_t *trace_request_wait(struct control_connection *connection,
	const struct trace_question *question, uint64_t timeout_ns, struct error *error);

/* Parses the document. -EPROTO: it is not one of this kind. Call trace_request_free() in all
 * cases. */
GMB_MUST_CHECK int trace_request_parse(
	const json_t *document, struct trace_requests *requests, struct error *error);
void trace_request_free(struct trace_requests *requests);

/* Formats "read of 1M at 4096, export disk". Returns out. The name can contain any bytes. */
enum { TRACE_REQUEST_TITLE_BYTES = 400 };
const char *trace_request_title(
	char out[TRACE_REQUEST_TITLE_BYTES], const struct trace_request *request);

/* Prints all requests: figures, a table of the parts, and a chart. */
void trace_request_show(const struct trace_requests *requests);
