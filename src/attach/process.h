// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon as a process: how it detaches from its parent, and how it is protected so that the
 * kernel can write to the disk it serves, even when memory is short and during shutdown of the
 * system.
 *
 * Threading: the main thread, before other threads exist. Ownership: plain data. Errors: negative
 * errno with an error message; a failure that only makes the process less robust is logged and is
 * not an error.
 */
#pragma once

#include <sys/types.h>

#include "attach/attach.h"

/* The daemon's single report to its parent. */
struct process_report {
	/* 0: the daemon is running; otherwise a negative errno, with the reason in text */
	int32_t code;
	char text[ATTACH_PATH_BYTES]; /* the path of the disk, or the error message */
	struct timings timings;	      /* code 0: the timings, if requested */
};

/*
 * Creates the daemon. Returns 1 in the parent, with the daemon's report, and 0 in the daemon, with
 * the descriptor for process_report_send(). A daemon that dies without a report is an error.
 */
GMB_MUST_CHECK int process_split(
	int *report_fd, struct process_report *report, struct error *error);

/* Sends the report to the parent and closes the descriptor. After success the daemon releases the
 * terminal, and its log goes to the kernel's log (or nowhere, for users who may not write it). code
 * 0: text is the path. timings may be NULL. */
void process_report_send(int report_fd, int code, const char *text, const struct timings *timings);

/*
 * Protects a process that serves a disk. Its memory is locked, the OOM killer spares it, and its
 * allocations do not wait for its own disk (PR_SET_IO_FLUSHER). Its name begins with '@', so that
 * the init system does not kill it before the file systems are unmounted. For users other than root
 * only the name is changed. Returns the protection that the system refused to root, or NULL.
 */
const char *process_protect(void);

/* Starts a thread that makes all mapped memory of the process resident and locks it. This takes a
 * while, and must not delay the parent, which has just received the report that the disk can be
 * used. So the thread first waits until the parent has ended, but at most a second. parent 0: there
 * is no parent to wait for. */
void process_lock_memory(pid_t parent);

enum { PROCESS_SIGNALLED = 128 };

/* Runs a program without a shell and waits for it. Returns its exit status, PROCESS_SIGNALLED, or a
 * negative errno. Its output is dropped, and it inherits no other descriptors. */
GMB_MUST_CHECK int process_run(const char *const argv[]);

/* Loads a kernel module if modprobe is available. Success shows only when the module is used. */
void process_load_module(const char *module);
