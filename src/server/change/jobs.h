// SPDX-License-Identifier: Apache-2.0
/*
 * Changes while the server runs, as a queue of jobs: re-reading the TLS files and the configuration
 * (SIGHUP, the control command "reload", or the check of the TLS files every minute), and changing
 * single exports (the control commands "export" and "snapshot").
 *
 *   jobs_ask(), "reload", "export", "snapshot" ─▶ thread: run: read, compare, open disks
 *        ─▶ main: commit
 *        ─▶ thread: waits for reactors, and for disks that are being closed ─▶ main: finish, answer
 *
 * Everything is read and checked before any of it is used. An error is reported and leaves
 * everything unchanged. Jobs are done one after the other. Connections whose credentials are no
 * longer valid, or that have lost all rights, complete their requests and are closed. Without
 * jobs, the thread checks the TLS files, the sizes of disks and the snapshots every minute.
 *
 * Threading: the main thread. Files are read on a separate thread, which may block. Ownership:
 * borrows its options; control clients are borrowed until they are answered. Errors: reported to
 * the requester and logged.
 */
#pragma once

#include "control/control.h"
#include "server/change/change.h"
#include "server/listen/credentials.h"

struct jobs;
struct job_kind;

struct jobs_options {
	const struct server_config *config;
	struct exports *exports;       /* the served exports; changed only inside jobs_continue() */
	struct rate_rules *rate_rules; /* rates of identities; or NULL */
	struct fencing *fencing;       /* nodes; or NULL */
	struct device *device;
	struct credentials *credentials;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	/* Called on the jobs' thread. Must make the main thread call jobs_continue(). */
	void (*wake)(void *context);
	/* Called on the main thread after the exports have changed. lines: a JSON array with lines
	 * of text for the log and the answer, to which it can add others. */
	void (*changed)(void *context, json_t *lines);
	void *context;
};

GMB_MUST_CHECK int jobs_create(
	const struct jobs_options *options, struct jobs **jobs_out, struct error *error);
/* Returns false if the thread hangs while it reads a file; everything that it uses must then stay
 * allocated. NULL is a no-op. */
GMB_MUST_CHECK bool jobs_destroy(struct jobs *jobs);

/* Called when the server is ready: starts the jobs that have been waiting. */
void jobs_begin(struct jobs *jobs);
/* Makes jobs wait again until the next jobs_begin(). Returns false, without effect, if a job is
 * waiting or in progress. */
GMB_MUST_CHECK bool jobs_hold(struct jobs *jobs);
/* Called on any thread after a store has deleted a snapshot for lack of space, to remove the
 * snapshot's export. */
void jobs_look(struct jobs *jobs);
/* Queues a job without a client, unless one of this kind is waiting; the result is logged. */
void jobs_ask(struct jobs *jobs, const struct job_kind *kind);
/* Called on the main thread: commits and finishes the jobs that wait for this thread. */
void jobs_continue(struct jobs *jobs);
/* Called when the server stops: jobs fail with an error that says so. NULL is a no-op. */
void jobs_stop(struct jobs *jobs);

/* Reloads everything. */
extern const struct job_kind job_reload;

/* Control commands, to be registered with the struct jobs as context. docs/protocol/control.md
 * defines arguments and answers. */
extern const struct control_command reload_command;
extern const struct control_command export_command;
extern const struct control_command snapshot_command;
