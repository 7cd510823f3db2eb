// SPDX-License-Identifier: Apache-2.0
/*
 * Private to server/change: a job, which is one change of what is served, from the arguments of a
 * command to the answer. Each kind of change is a constant struct job_kind and its functions, in
 * reload.c, export_command.c and snapshot.c; jobs.c takes a job through their steps:
 *
 *   main    take ─▶ queue
 *   thread  run
 *   main    commit
 *   thread  waits for reactors and disks
 *   main    finish ─▶ answer
 *
 * Threading: a job belongs to one thread at a time, as in the picture; the lock of the queue passes
 * it on. So its functions need no lock, except for the members that are marked. Ownership: a job
 * owns its strings and the data that it has read. A job is freed after its answer, but not before
 * its last disk is closed. Errors: an error message for the requester.
 */
#pragma once

#include <time.h>

#include "server/change/jobs.h"

struct job;

struct job_kind {
	/* For a command that several kinds of jobs share: the value of the argument "action" that
	 * selects this kind. */
	const char *action;
	/* Reads the arguments of the command. NULL: there are none. */
	int (*take)(struct job *job, const json_t *arguments, struct error *error);
	/* Reads files, compares, and opens disks, without changing what is served. Sets `lines`,
	 * and what the commit needs. Blocks. */
	int (*run)(struct job *job, struct error *error);
	/* Puts the results of run() into effect; has no effect on an error. After that, the
	 * reactors check their connections. NULL: no results to commit. */
	int (*commit)(struct job *job, struct error *error);
	/* Logs the result, usually with job_log(), and may complete the error message. */
	void (*finish)(struct job *job);
	bool repeats; /* the job is repeated after an error, so the same error is logged once */
};

struct job {
	struct list_node node; /* protected by the lock */
	const struct job_kind *kind;
	struct jobs *jobs;
	const struct jobs_options *options; /* the options of `jobs` */
	/* Client that waits for the answer; NULL: none. Protected by the lock. */
	struct control_client *client;

	/* The arguments. */
	char *name;
	char *path;
	char *snapshot; /* name of a snapshot */
	struct server_settings settings;
	uint64_t deadline_ns;

	/* Results of run() that commit() has not put into effect yet. */
	struct credentials_set *credentials;
	struct server_config *config; /* NULL: the configuration is unchanged */
	struct change *change;	      /* NULL: the exports are unchanged */

	/* The result. */
	int result;
	struct error error;
	bool is_applied; /* the job is committed, even if a later step fails */
	uint32_t ended;	 /* connections that ended because of the job */
	json_t *lines;	 /* lines of text for the log and the answer, or NULL */

	/* The following members are protected by the lock from the commit on. */
	uint32_t closing_count; /* number of disks that are still to be closed */
	bool is_answered;	/* the answer was sent; the last disk to close frees the job */
	bool is_told;		/* the main thread was woken to send the answer */
	struct timespec until;	/* time at which to answer even if disks are still open */
};

/* The kinds of jobs that the thread starts when it looks for changes. */
extern const struct job_kind job_tls;	       /* reload the TLS files */
extern const struct job_kind job_drop_exports; /* remove exports of snapshots that are gone */

/* For a command: reads the arguments and queues a job, whose result is the answer. Called on the
 * main thread. */
void jobs_add(struct jobs *jobs, struct control_client *client, const struct job_kind *kind,
	const json_t *arguments);
/* Like jobs_add(), for the one of several job kinds whose `action` is the command's argument
 * "action". Returns false, without effect, if there is none. kinds ends with NULL. */
GMB_MUST_CHECK bool jobs_add_action(struct jobs *jobs, struct control_client *client,
	const struct job_kind *const *kinds, const json_t *arguments);
/* For control_command.end. A job in progress continues. */
void jobs_forget_client(void *context, struct control_client *client);

/* For run(): begins a change of the exports, which the caller fills. */
GMB_MUST_CHECK int job_change(struct job *job, struct error *error);
/* For run(): sets `lines` from the filled change, and opens its disks. */
GMB_MUST_CHECK int job_open(struct job *job, struct error *error);
/* For commit(): puts everything that was read into effect. */
GMB_MUST_CHECK int job_commit(struct job *job, struct error *error);
/* For finish(): logs the error, or the lines. */
void job_log(struct job *job);

/* Calls reactor_post(). Called on the jobs' thread. Returns false if the server is stopping,
 * because the reactor may soon be destroyed. */
GMB_MUST_CHECK bool jobs_post(
	struct jobs *jobs, struct reactor *reactor, struct reactor_task *task);
/* Returns the options of a server's jobs. */
const struct jobs_options *jobs_options(const struct jobs *jobs);
