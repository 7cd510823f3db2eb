// SPDX-License-Identifier: Apache-2.0
/*
 * The work of "gmblock push": coordinates two servers. It requests a ticket from the destination,
 * unless the destination does not support push, and then requests the source to push. The payload
 * does not pass through this process.
 *
 * Threading: the main thread; it blocks. Ownership: borrows its arguments. Errors: a negative errno
 * and an error message.
 */
#pragma once

#include "base/error.h"
#include "tools/copy.h"

enum { PUSH_CONNECTIONS_AUTO = 0, PUSH_CONNECTIONS_MAX = 8 };

struct push_options {
	const char *source; /* URI, as is target */
	const char *target;
	uint64_t offset; /* in the source */
	uint64_t length; /* 0: to the end of the source */
	uint64_t target_offset;
	uint64_t rate; /* bytes per second; 0: no limit */
	/* between source and destination; PUSH_CONNECTIONS_AUTO: the source chooses */
	uint32_t connections;
	bool read_back;
	bool resume;
	bool live;
	bool detach;
	bool json;
	enum copy_progress_mode progress;
	uint64_t timeout_ns; /* limit of each answer */
};

/* Checks the address of a server before anything is connected. is_target: the destination of a
 * push, which can also be an NBD server. Returns -EINVAL for a text that is not such an address. */
GMB_MUST_CHECK int push_address_check(const char *text, bool is_target, struct error *error);
/* Prints the result, or with detach the number of the job. -EINTR: copy_stop_signal() has stopped
 * it. */
GMB_MUST_CHECK int push_run(const struct push_options *options, struct error *error);
/* Prints those jobs of a server that the caller may see: the one with the number, or all (0).
 * -ENOENT: there is no such job. */
GMB_MUST_CHECK int push_list(
	const char *uri, uint64_t job, bool json, uint64_t timeout_ns, struct error *error);
GMB_MUST_CHECK int push_cancel(
	const char *uri, uint64_t job, uint64_t timeout_ns, struct error *error);
