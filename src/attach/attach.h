// SPDX-License-Identifier: Apache-2.0
/*
 * Remote blocks as a local disk: a ublk or nbd device of the kernel, or a file through FUSE. A
 * process of its own (the daemon) stays with each attachment and keeps it alive when the server
 * goes away for a while; others find it through the state folder (state.h).
 *
 * Threading: the main thread of a process that has no others; attach_run() may fork, and the
 * daemon starts threads. Ownership: borrows its arguments.
 * Errors: 0 or a negative errno with a sentence; codes are named at each function.
 */
#pragma once

#include <stdio.h>

#include "base/error.h"

struct timings;

enum attach_kind {
	ATTACH_ANY, /* ublk where the kernel has it, else nbd */
	ATTACH_UBLK,
	ATTACH_NBD,
	ATTACH_FUSE,
};

struct attach_options {
	const char *uri;
	enum attach_kind kind;
	const char *file; /* FUSE: where the file appears; made when it is missing */
	bool cover;	  /* FUSE: also a file that has contents; they are hidden meanwhile */
	int32_t number;	  /* of the device; -1 = any that is free */
	bool read_only;
	bool foreground;      /* no daemon: attach_run() returns when the device is gone */
	uint32_t connections; /* 0 = chosen for the server; at most 16 */
	uint32_t queues;      /* ublk: threads and hardware queues; 0 = one */
	uint64_t connect_timeout_ns;
	uint64_t request_timeout_ns;   /* silence on a connection that counts as lost */
	uint64_t reconnect_timeout_ns; /* how long a lost server is waited for */
	struct timings *timings;       /* begun; gets the steps (timings.h). NULL: nobody asks */
};

/* The defaults, for everything but uri and file. */
void attach_options_init(struct attach_options *options);

enum { ATTACH_PATH_BYTES = 4096 };

/*
 * Attaches. Without foreground it returns in the caller's process once the disk can be used; its
 * path is in path then. With foreground the path is printed on standard output and it returns when
 * the disk was detached. Errors: -ENOENT no such export, no kernel support; -EPERM; -EBUSY the
 * device number or file is taken; -EEXIST the file has contents; -EROFS; and those of gmb_open().
 */
GMB_MUST_CHECK int attach_run(
	const struct attach_options *options, char path[ATTACH_PATH_BYTES], struct error *error);

/* Detaches the disk with this path, name ("ublkb0") or URI. -ENOENT: there is none; -ENOTUNIQ: the
 * URI is that of several; -EBUSY: it is in use, and force was not given. */
GMB_MUST_CHECK int attach_detach(const char *name, bool force, struct error *error);

/* Prints all attachments on standard output, as a table or as JSON. */
GMB_MUST_CHECK int attach_list(bool json, struct error *error);
