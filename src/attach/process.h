// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon as a process: how it leaves its parent, and what it must do so that the kernel can
 * write to a disk that this process carries, even when memory is short and while the system goes
 * down.
 *
 * Threading: the main thread, before there are others. Ownership: plain data. Errors: negative
 * errno with a sentence; what only makes the process less robust is logged and not an error.
 */
#pragma once

#include <sys/types.h>

#include "attach/attach.h"

/* What the daemon tells its parent, once. */
struct process_report {
	int32_t code; /* 0: it is up; else a negative errno, with the reason in text */
	char text[ATTACH_PATH_BYTES]; /* the path of the disk, or the sentence */
	struct timings timings;	      /* 0: where the time went, if somebody asked */
};

/*
 * Makes the daemon. Returns 1 in the parent, with what the daemon reported, and 0 in the daemon,
 * with the descriptor for process_report_send(). A daemon that dies without a word is an error.
 */
GMB_MUST_CHECK int process_split(
	int *report_fd, struct process_report *report, struct error *error);

/* Tells the parent and closes the descriptor; from here on the daemon lets go of the terminal, and
 * its log goes to the kernel's (or nowhere, for users who may not). code 0: text is the path.
 * timings may be NULL. */
void process_report_send(int report_fd, int code, const char *text, const struct timings *timings);

/*
 * Locks memory, is not to be killed for lack of it, does not wait for the disk it carries when it
 * needs some (PR_SET_IO_FLUSHER), and has a name that begins with '@', which tells the init system
 * to let it live until the file systems are unmounted. Needs root for all but the last, and asks
 * for nothing else without; returns what the system refused to root, or NULL.
 */
const char *process_protect(void);

/* Has all memory in place that was only promised so far. It takes a while, so that a
 * thread does it, when the disk can be used already and the parent that was told so has ended (0 =
 * there is none). */
void process_settle(pid_t parent);

/* Runs a program without a shell and waits: its exit status, or a negative errno. Its output is
 * dropped. */
GMB_MUST_CHECK int process_run(const char *const argv[]);

/* Loads a kernel module if the program for that is there; whether it worked shows otherwise. */
void process_load_module(const char *module);
