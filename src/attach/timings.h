// SPDX-License-Identifier: Apache-2.0
/*
 * Where the time of an attachment goes: each step's share, one after the other, so that their sum
 * is the time from the start of the program until the disk can be used.
 *
 * Threading: one thread at a time; who hands over to another thread hands this over as well.
 * Ownership: plain data of the caller, which also goes through the pipe from the daemon to its
 * parent. Errors: none but those of printing, as at the function.
 */
#pragma once

#include "base/error.h"

enum timings_step {
	TIMINGS_START,	   /* the program's start, as processor time: its other time is not known */
	TIMINGS_ARGUMENTS, /* the command line */
	TIMINGS_FORK,	   /* the daemon is made */
	TIMINGS_PROTECT,   /* signals, locked memory */
	TIMINGS_DRIVER,	   /* the way to the kernel's driver is opened */
	TIMINGS_FILE,	   /* fuse: the file to mount on */
	TIMINGS_CONNECT,   /* to the server, with the handshake */
	TIMINGS_LOOK,	   /* ublk: is there a device to take over? */
	TIMINGS_ADD,	   /* ublk: ADD_DEV, or the begin of a recovery */
	TIMINGS_PARAMS,	   /* ublk: SET_PARAMS */
	TIMINGS_NODE,	   /* ublk: /dev/ublkcN can be opened */
	TIMINGS_QUEUES,	   /* ublk: all queues wait for requests */
	TIMINGS_DISK,	   /* START_DEV, CONNECT or mount: the kernel makes the disk */
	TIMINGS_LIMITS,	   /* nbd: the length of requests */
	TIMINGS_WATCH,	   /* nbd, fuse: what stays with the disk runs */
	TIMINGS_STATE,	   /* the note about the attachment, and the daemon's socket */
	TIMINGS_TELL,	   /* the service manager and the parent know */
	TIMINGS_STEPS,
};

enum { TIMINGS_MAX = 24 }; /* more are not kept: a step comes once, or twice with a second kind */

struct timings {
	uint64_t last_ns; /* of CLOCK_MONOTONIC: until when everything is in a step */
	uint32_t count;
	struct {
		uint32_t step; /* enum timings_step */
		uint64_t ns;
	} steps[TIMINGS_MAX];
};

/* From here on time counts; what the program has used before is the first step. */
void timings_begin(struct timings *timings);

/* This step is done: it gets the time since the one before. timings may be NULL. */
void timings_mark(struct timings *timings, enum timings_step step);

/* Prints the steps and their sum as lines on standard error, or as one JSON object with the path of
 * the disk on standard output. -ENOMEM, -EIO. */
GMB_MUST_CHECK int timings_print(
	const struct timings *timings, const char *path, bool json, struct error *error);
