// SPDX-License-Identifier: Apache-2.0
/*
 * State of the process, shared by all its engines: the ticket key, the unused tickets, and
 * the jobs, running and ended.
 *
 *   GRANT ─▶ ticket ── used once ─▶ job (destination)        START ─▶ job (source)
 *
 *   BEGINS ─▶ MOVES ─▶ FINISHES ─▶ DONE        each of the first three ─▶ FAILED
 *
 * A job updates its state in the table several times a second, so short states can be missing
 * there.
 *
 * Threading: any thread; a mutex, taken once per command and several times a second per job, but
 * never per piece. Ownership: the table copies its arguments. Errors: a negative errno and a static
 * text.
 */
#pragma once

#include "engine/engine.h"
#include "push/wire.h"

enum {
	PUSH_TICKETS_MAX = 1024,
	PUSH_TICKETS_OF_ONE_MAX = 64, /* limit on unused tickets for one user or host */
	PUSH_JOBS_MAX = 64,	      /* limit on running jobs */
	/* limit on running and ended jobs; a new job replaces the oldest ended job */
	PUSH_JOBS_KEPT_MAX = 128,
	PUSH_TICKET_LIFE_S = 600,
	PUSH_PEER_BYTES_MAX = 256,
};

_Static_assert((int)PUSH_JOBS_KEPT_MAX > (int)PUSH_JOBS_MAX, "the table has room for ended jobs");

/* Progress of a job, as counted by its session. */
struct push_progress {
	uint64_t done;
	uint64_t zeroes;
	uint64_t skipped;
	uint64_t durable;
	uint64_t digest;
};

struct push_job {
	uint64_t serial; /* number of the job in this process, from 1; set by push_job_add() */
	uint64_t id;
	enum push_role role;
	enum push_job_state state;
	bool cancelled;
	struct peer_identity owner; /* requester */
	char name[PUSH_NAME_BYTES_MAX];
	uint32_t name_bytes;
	char peer[PUSH_PEER_BYTES_MAX]; /* name of the other end, escaped */
	uint64_t offset;
	uint64_t length;
	struct push_progress progress;
	uint64_t begun_ns;
	uint64_t ended_ns; /* time of the end, in states DONE and FAILED */
	int status;	   /* FAILED: a negative errno */
	char text[PUSH_TEXT_BYTES_MAX];
};

/* The jobs that a peer can see and cancel: its own, or all for root and the server's user. */
struct push_viewer {
	struct peer_identity identity;
	bool all;
};

/* Destinations to which sources of this process can connect. Each value includes the previous ones.
 */
enum push_scope {
	PUSH_SCOPE_LOCAL,    /* Unix sockets */
	PUSH_SCOPE_LOOPBACK, /* loopback addresses */
	PUSH_SCOPE_NETWORK,  /* all addresses, even without encryption */
};

/* The record of a ticket. */
struct push_claim {
	struct push_wire_ticket ticket;
	/* The requester. Its identity is not proven to the destination, because push has no
	 * authentication. */
	struct peer asker;
	char name[PUSH_NAME_BYTES_MAX];
	uint32_t name_bytes;
};

/* The first call creates the key. Returns -EIO if the system has no random numbers. */
GMB_MUST_CHECK int push_table_init(struct ring *ring);
/* Extends the scope; it is never reduced. */
void push_scope_extend(enum push_scope scope);
enum push_scope push_scope(void);

/* Creates a ticket: fills in expires_s and mac of claim->ticket, and records the claim. Returns 0,
 * -ENOMEM, -EBUSY or -EIO. */
GMB_MUST_CHECK int push_ticket_make(struct push_claim *claim, uint64_t now_ns, const char **text);
/* Consumes a ticket, which is then invalid. Returns NULL, or the reason for the rejection. */
const char *push_ticket_use(const struct push_wire_ticket *ticket, const struct push_shower *shower,
	uint64_t now_ns, struct push_claim *claim_out);

/* Adds a job in the state BEGINS and sets its serial. Returns -EBUSY if too many jobs are running
 * or another one writes to an overlapping range of the export, -EEXIST if a running job has the
 * same id and role, or -ENOMEM. */
GMB_MUST_CHECK int push_job_add(struct push_job *job, uint64_t now_ns, const char **text);
/* Updates the progress of a job. Returns false if it has been cancelled. */
bool push_job_tell(
	uint64_t serial, enum push_job_state state, const struct push_progress *progress);
/* Ends a job. status is 0, or a negative errno with a text. */
void push_job_end(uint64_t serial, const struct push_progress *progress, int status,
	const char *text, uint64_t now_ns);
/* Returns the first job after that serial that the viewer can see; false if there is none. */
bool push_job_next(uint64_t serial, const struct push_viewer *viewer, struct push_job *job_out);
bool push_job_of(uint64_t serial, struct push_job *job_out);
/* Marks the running jobs with that id as cancelled; they end soon. Returns -ENOENT if the viewer
 * sees none. */
GMB_MUST_CHECK int push_job_cancel(uint64_t id, const struct push_viewer *viewer);
