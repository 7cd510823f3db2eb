// SPDX-License-Identifier: Apache-2.0
/*
 * What the process has once for all its engines: the key of tickets, the tickets that were made and
 * not used, and the jobs, under way and ended.
 *
 *   GRANT ─▶ ticket ── used once ─▶ job (destination)        START ─▶ job (source)
 *
 *   BEGINS ─▶ MOVES ─▶ FINISHES ─▶ DONE        each of the first three ─▶ FAILED
 *
 * The table learns the state of a job some times a second, so that it may miss one.
 *
 * Threading: any thread; a mutex, taken once for a command and some times a second for a job, never
 * for a piece. Ownership: the table copies what it is given. Errors: a negative errno and static
 * text.
 */
#pragma once

#include "engine/engine.h"
#include "push/wire.h"

enum {
	PUSH_TICKETS_MAX = 1024,
	PUSH_TICKETS_OF_ONE_MAX = 64, /* of one user or host */
	PUSH_JOBS_MAX = 64,	      /* under way */
	PUSH_JOBS_KEPT_MAX = 128,     /* with those that have ended, the oldest of which go */
	PUSH_TICKET_LIFE_S = 600,
	PUSH_PEER_BYTES_MAX = 256,
};

_Static_assert((int)PUSH_JOBS_KEPT_MAX > (int)PUSH_JOBS_MAX, "some that have ended are kept");

/* How far a job is, as its session counts. */
struct push_progress {
	uint64_t done;
	uint64_t zeroes;
	uint64_t skipped;
	uint64_t durable;
	uint64_t digest;
};

struct push_job {
	uint64_t serial; /* 0: the entry is free */
	uint64_t id;
	enum push_role role;
	enum push_job_state state;
	bool cancelled;
	struct peer_identity owner; /* who has asked for it */
	char name[PUSH_NAME_BYTES_MAX];
	uint32_t name_bytes;
	char peer[PUSH_PEER_BYTES_MAX]; /* of the other side, escaped */
	uint64_t offset;
	uint64_t length;
	struct push_progress progress;
	uint64_t begun_ns;
	uint64_t ended_ns; /* DONE, FAILED */
	int status;	   /* FAILED: a negative errno */
	char text[PUSH_TEXT_BYTES_MAX];
};

/* Whose jobs a peer may see and end: its own, and all for root and our own user. */
struct push_viewer {
	struct peer_identity identity;
	bool all;
};

/* Where sources of this process may connect to. */
enum push_reach {
	PUSH_REACH_LOCAL,    /* Unix sockets */
	PUSH_REACH_LOOPBACK, /* and this machine's network */
	PUSH_REACH_NETWORK,  /* and any, in clear */
};

/* What a ticket stands for. */
struct push_claim {
	struct push_wire_ticket ticket;
	struct peer asker; /* without a proved identity: push knows none */
	char name[PUSH_NAME_BYTES_MAX];
	uint32_t name_bytes;
};

/* The first call makes the key. -EIO: there are no secrets to be had. */
GMB_MUST_CHECK int push_table_init(struct ring *ring);
/* No less than before. */
void push_reach_set(enum push_reach reach);
enum push_reach push_reach(void);

/* Makes a ticket for claim->ticket: sets job, expires_s and mac. -EBUSY, -EIO. */
GMB_MUST_CHECK int push_ticket_make(struct push_claim *claim, uint64_t now_ns, const char **text);
/* Uses it: it is valid no more. NULL, or why not. */
const char *push_ticket_use(const struct push_wire_ticket *ticket, const struct push_shower *shower,
	uint64_t now_ns, struct push_claim *claim_out);

/* Adds a job, which begins: sets its serial. -EBUSY: too many are under way, or one of a
 * destination writes to the same range of that export; -EEXIST: the source has one of that id. */
GMB_MUST_CHECK int push_job_add(struct push_job *job, uint64_t now_ns, const char **text);
/* How far it is. False: somebody has cancelled it. */
bool push_job_tell(
	uint64_t serial, enum push_job_state state, const struct push_progress *progress);
/* It ends: status 0, or a negative errno and why. */
void push_job_end(uint64_t serial, const struct push_progress *progress, int status,
	const char *text, uint64_t now_ns);
/* The first job after that serial that the viewer may see; false: there is none. */
bool push_job_next(uint64_t serial, const struct push_viewer *viewer, struct push_job *job_out);
bool push_job_of(uint64_t serial, struct push_job *job_out);
/* Ends the jobs of that id that are under way, soon. -ENOENT: the viewer sees none. */
GMB_MUST_CHECK int push_job_cancel(uint64_t id, const struct push_viewer *viewer);
