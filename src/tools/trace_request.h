// SPDX-License-Identifier: Apache-2.0
/*
 * "gmblock trace --request": asks a running server over its control socket (control/control.h) to
 * record single requests, waits for them, and shows where the time of each went.
 *
 *   trace_request_arm() ─▶ trace_request_wait() ─▶ document ─▶ trace_request_parse() ─▶ show, plot
 *
 * Threading: the main thread. Ownership: documents are the caller's (json_decref); what is parsed
 * borrows its texts from the document. Errors: a negative errno or NULL with a sentence.
 */
#pragma once

#include <stdio.h>

#include "control/control.h"
#include "path/stats.h"

/* Which requests. */
struct trace_question {
	uint32_t count;
	uint64_t min_size;
	const char *export; /* its name, or NULL: any */
	json_t *operations; /* their names, or NULL: any */
};

enum { TRACE_REQUEST_COUNT_MAX = 1000, TRACE_REQUEST_PLOTS_MAX = 6 };

/* Times in microseconds since the beginning of the request; negative: it did not happen. */
struct trace_request_part {
	uint64_t offset; /* on the export */
	uint64_t length;
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
	const char *export; /* "" is the default one */
	uint64_t offset;
	uint64_t length;
	const char *error; /* or NULL */
	double total_us;
	double state_us[PATH_STATE_DONE]; /* by enum path_state */
	struct trace_request_part *parts; /* by offset */
	uint32_t part_count;
	uint32_t parts_more; /* were not recorded */
};

struct trace_requests {
	uint32_t wanted;
	const char *ended; /* why there are not more: "count", "left", "stop" */
	struct trace_request *requests;
	uint32_t count;
};

/* Has the server at a control socket record requests. The connection is the caller's, to be closed
 * with control_disconnect(). */
GMB_MUST_CHECK int trace_request_arm(const char *path, const struct trace_question *question,
	struct control_connection **connection_out, struct error *error);
/* Says on standard error that it waits, and waits; after timeout_ns (0: never) or an interrupt
 * (SIGINT, SIGTERM) asks for what there is. NULL: failed, with a sentence. */
json_t *trace_request_wait(struct control_connection *connection,
	const struct trace_question *question, uint64_t timeout_ns, struct error *error);

/* -EPROTO when it is no such document. To be freed in any case. */
GMB_MUST_CHECK int trace_request_parse(
	const json_t *document, struct trace_requests *requests, struct error *error);
void trace_request_free(struct trace_requests *requests);

/* "read of 1M at 4096, export disk": returns out. The name may hold any bytes. */
enum { TRACE_REQUEST_TITLE_BYTES = 400 };
const char *trace_request_title(
	char out[TRACE_REQUEST_TITLE_BYTES], const struct trace_request *request);

/* Prints all of them: figures, a table of the parts, and a chart. */
void trace_request_show(const struct trace_requests *requests);

/* Draws the first TRACE_REQUEST_PLOTS_MAX of them; at least one. context is a struct
 * trace_requests. See svg_file_write(). */
GMB_MUST_CHECK int trace_request_plot(FILE *out, const void *context, struct error *error);
