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

/* The daemon's one report to its parent. */
struct process_report {
	int32_t code; /* 0: it is up; else a negative errno, with the reason in text */
	char text[ATTACH_PATH_BYTES]; /* the path of the disk, or the sentence */
	struct timings timings;	      /* code 0: where the time went, if asked for */
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
 * Protects the process that carries a disk: its memory is locked, the OOM killer leaves it alone,
 * it does not wait for its own disk when it allocates (PR_SET_IO_FLUSHER), and its name begins with
 * '@', so that the init system does not kill it before the file systems are unmounted. All but the
 * name needs root and is skipped without. Returns what the system refused to root, or NULL.
 */
const char *process_protect(void);

/* Touches all memory that is reserved but not in place. This takes a while: a thread does it once
 * the disk can be used and the parent, which was told so, has ended (0 = there is none). */
void process_settle(pid_t parent);

enum { PROCESS_SIGNALLED = 128 };

/* Runs a program without a shell and waits: its exit status, PROCESS_SIGNALLED, or a
 * negative errno. Its output is dropped, and it has no other descriptors. */
GMB_MUST_CHECK int process_run(const char *const argv[]);

/* Loads a kernel module if the program for that is there; whether it worked shows otherwise. */
void process_load_module(const char *module);
