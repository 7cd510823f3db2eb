// SPDX-License-Identifier: Apache-2.0
/*
 * What "gmblock push" does: a coordinator, which asks the destination for a ticket, unless it has
 * no push, and the source to push. No payload comes here.
 *
 * Threading: the main thread; it blocks. Ownership: borrows its arguments. Errors: a negative errno
 * and a sentence.
 */
#pragma once

#include "base/error.h"
#include "tools/copy.h"

struct push_options {
	const char *source; /* URIs */
	const char *target;
	uint64_t offset; /* of the source */
	uint64_t length; /* 0: up to its end */
	uint64_t target_offset;
	uint64_t rate; /* bytes a second; 0: no limit */
	bool read_back;
	bool resume;
	bool live;
	bool detach;
	bool json;
	enum copy_progress_mode progress;
	uint64_t timeout_ns; /* of each answer */
};

/* Prints the end, or with detach the number of the job. */
GMB_MUST_CHECK int push_run(const struct push_options *options, struct error *error);
/* Prints the jobs of a server that we may see; one of a number, or all (0). -ENOENT: there is no
 * such job. */
GMB_MUST_CHECK int push_list(
	const char *uri, uint64_t job, bool json, uint64_t timeout_ns, struct error *error);
GMB_MUST_CHECK int push_cancel(
	const char *uri, uint64_t job, uint64_t timeout_ns, struct error *error);
