// SPDX-License-Identifier: Apache-2.0
/*
 * The connections of one job at its destination, and the state that they share: the pieces that
 * were handled, and the progress. Each connection has a session, which can be on any engine of the
 * process. The session of connection 0, which has begun the job with USE, is the main session: it
 * alone has the job in the table, zeroes, compares and flushes. The others only write pieces.
 *
 *   USE  ─▶ main session ─┬▶ push_group: pieces, progress      JOIN: finds the group by its ticket
 *   JOIN ─▶ session ──────┤
 *   JOIN ─▶ session ──────┘
 *
 * The sessions have no other means of reaching each other. Each looks at the group several times a
 * second (ticks): the main session ends the job if another one has failed, and the others end with
 * the job.
 *
 * Threading: any thread; a mutex, taken at most twice per piece. Ownership: every session has a
 * share of the group, which it returns with push_group_leave(). Errors: a static text.
 */
#pragma once

#include "push/pieces.h"
#include "push/table.h"

struct push_group;

/* Creates the group of a job. The caller is its main session. Returns NULL if memory is short. */
GMB_MUST_CHECK struct push_group *push_group_create(const struct push_claim *claim);
/* Adds a session to the group of the running job that has begun with this ticket. Returns NULL, or
 * the reason for the rejection. */
const char *push_group_join(const struct push_wire_join *join, const struct push_shower *shower,
	struct push_group **group_out);
/* Removes a session, which must have no write in progress. */
void push_group_leave(struct push_group *group, uint32_t number);
/* The claim of the ticket; constant. */
const struct push_claim *push_group_claim(const struct push_group *group);

/* Marks pieces as handled. Returns NULL, or the broken rule. */
const char *push_group_take(struct push_group *group, uint64_t offset, uint64_t length);
/* Takes push_group_take() back for a piece that a connection has lost. */
void push_group_give(struct push_group *group, uint64_t offset, uint64_t length);
/* As push_pieces_lack() and push_pieces_low(). */
bool push_group_lacks(struct push_group *group, uint64_t offset, uint64_t length);
uint64_t push_group_low(struct push_group *group);

/* Adds bytes that are now the same as the source's to the progress. */
void push_group_count(struct push_group *group, const struct push_progress *more);
/* As push_group_count(), for a piece that was written from a slot of a connection. */
void push_group_written(struct push_group *group, uint32_t number, uint32_t slot, uint64_t offset,
	const struct push_progress *more);
/* Copies the progress, except for `durable`, which only the main session knows. */
void push_group_progress(struct push_group *group, struct push_progress *progress);

/* For a session other than the main one: the job must end with this error. */
void push_group_fail(struct push_group *group, int status, const char *text);
/* For the main session: returns the error of another session, or 0. text: PUSH_TEXT_BYTES_MAX. */
int push_group_error(struct push_group *group, char *text);
/* For the main session: the job has ended. */
void push_group_end(struct push_group *group);
/* For a session other than the main one: returns false if it must end, because the job is over or
 * the source has dropped its connection. */
bool push_group_goes_on(struct push_group *group, uint32_t number);
/* DROP: makes the session of a connection end. Returns true if it has left the group, with the
 * answer; otherwise the caller tries again later. */
bool push_group_drop(struct push_group *group, struct push_wire_dropped *dropped);
