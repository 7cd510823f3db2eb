// SPDX-License-Identifier: Apache-2.0
/*
 * The table of tickets and jobs, see table.h. All of it is protected by table.lock.
 */
#include "push/table.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_S UINT64_C(1000000000)

static struct {
	pthread_mutex_t lock;
	bool has_key;
	uint8_t key[PUSH_KEY_BYTES];
	enum push_scope scope;
	struct push_claim *claims[PUSH_TICKETS_MAX];
	struct push_job *jobs[PUSH_JOBS_KEPT_MAX];
	uint64_t serial;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const uint32_t state_edges[PUSH_JOB_STATE_END] = {
	[PUSH_JOB_BEGINS] = BIT(PUSH_JOB_MOVES) | BIT(PUSH_JOB_FINISHES) | BIT(PUSH_JOB_DONE) |
			    BIT(PUSH_JOB_FAILED),
	[PUSH_JOB_MOVES] = BIT(PUSH_JOB_FINISHES) | BIT(PUSH_JOB_DONE) | BIT(PUSH_JOB_FAILED),
	[PUSH_JOB_FINISHES] = BIT(PUSH_JOB_DONE) | BIT(PUSH_JOB_FAILED),
	[PUSH_JOB_DONE] = 0,
	[PUSH_JOB_FAILED] = 0,
};

static void lock(void)
{
	int result = pthread_mutex_lock(&table.lock);

	GMB_ASSERT(result == 0);
}

static void table_unlock(void)
{
	int result = pthread_mutex_unlock(&table.lock);

	GMB_ASSERT(result == 0);
}

int push_table_init(struct ring *ring)
{
	bool ready;

	lock();
	if (!table.has_key) {
		table.has_key = ring_secret(ring, table.key, sizeof(table.key));
	}
	ready = table.has_key;
	table_unlock();
	return ready ? 0 : -EIO;
}

void push_scope_extend(enum push_scope scope)
{
	lock();
	table.scope = MAX(table.scope, scope);
	table_unlock();
}

enum push_scope push_scope(void)
{
	enum push_scope scope;

	lock();
	scope = table.scope;
	table_unlock();
	return scope;
}

/* --- tickets ---------------------------------------------------------------------------------- */

static bool is_same(const struct peer_identity *a, const struct peer_identity *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

/* Returns a free entry for a ticket, after removing expired tickets. Returns NULL with a text if a
 * limit is reached. */
static struct push_claim **find_room(
	const struct peer_identity *asker, uint64_t now_s, const char **text)
{
	struct push_claim **room = NULL;
	uint32_t own = 0;

	for (uint32_t i = 0; i < PUSH_TICKETS_MAX; i++) {
		struct push_claim **claim = &table.claims[i];

		if (*claim != NULL && now_s >= (*claim)->ticket.expires_s) {
			free(*claim);
			*claim = NULL;
		}
		if (*claim == NULL) {
			room = claim;
		} else {
			own += is_same(&(*claim)->asker.identity, asker);
		}
	}
	if (own >= PUSH_TICKETS_OF_ONE_MAX) {
		*text = "you have reached the limit of open tickets; unused tickets expire";
		return NULL;
	}
	if (room == NULL) {
		*text = "the server has reached its limit of open tickets";
	}
	return room;
}

/* Creates a ticket. The claim is recorded before the ticket is sent. Using the ticket removes the
 * record, so a ticket can be used only once. */
int push_ticket_make(struct push_claim *claim, uint64_t now_ns, const char **text)
{
	struct push_claim *kept = malloc(sizeof(*kept));
	struct push_claim **room;
	int result = -EBUSY;

	if (kept == NULL) {
		*text = "the server is out of memory";
		return -ENOMEM;
	}
	lock();
	room = find_room(&claim->asker.identity, now_ns / NS_PER_S, text);
	if (room != NULL) {
		claim->ticket.expires_s = now_ns / NS_PER_S + PUSH_TICKET_LIFE_S;
		*text = "the TLS library of the server cannot sign tickets";
		result = push_ticket_seal(&claim->ticket, table.key);
	}
	if (result == 0) {
		*kept = *claim;
		*room = kept;
		*text = NULL;
	} else {
		free(kept);
	}
	table_unlock();
	return result;
}

static struct push_claim **find_claim(const struct push_wire_ticket *ticket)
{
	for (uint32_t i = 0; i < PUSH_TICKETS_MAX; i++) {
		if (table.claims[i] != NULL && table.claims[i]->ticket.job == ticket->job) {
			return &table.claims[i];
		}
	}
	return NULL;
}

/* The record is removed under the lock, so only one of two connections that present the same ticket
 * succeeds. */
const char *push_ticket_use(const struct push_wire_ticket *ticket, const struct push_shower *shower,
	uint64_t now_ns, struct push_claim *claim_out)
{
	struct push_claim **claim = NULL;
	const char *why;

	lock();
	why = push_ticket_check(ticket, table.key, now_ns / NS_PER_S, shower);
	if (why == NULL) {
		claim = find_claim(ticket);
		why = claim == NULL ? "the ticket was used before" : NULL;
	}
	if (why == NULL) {
		*claim_out = **claim;
		free(*claim);
		*claim = NULL;
	}
	table_unlock();
	return why;
}

/* --- jobs ------------------------------------------------------------------------------------- */

static bool table_has_ended(const struct push_job *job)
{
	return job->state == PUSH_JOB_DONE || job->state == PUSH_JOB_FAILED;
}

static void table_set_state(struct push_job *job, enum push_job_state state)
{
	if (job->state != state) {
		GMB_ASSERT((state_edges[job->state] & BIT(state)) != 0);
		job->state = state;
	}
}

static bool is_in_the_way(const struct push_job *job, const struct push_job *other)
{
	return job->role == PUSH_SINK && other->role == PUSH_SINK &&
	       job->name_bytes == other->name_bytes &&
	       memcmp(job->name, other->name, job->name_bytes) == 0 &&
	       job->offset < other->offset + other->length &&
	       other->offset < job->offset + job->length;
}

/* Returns an entry for a new job: a free one, or the entry of the oldest ended job. Returns NULL
 * with *result and *text if the job cannot be added. */
static struct push_job **table_find_entry(
	const struct push_job *job, int *result, const char **text)
{
	struct push_job **room = NULL;
	struct push_job **oldest = NULL;
	uint32_t running = 0;

	for (uint32_t i = 0; i < PUSH_JOBS_KEPT_MAX; i++) {
		struct push_job **entry = &table.jobs[i];

		if (*entry == NULL) {
			room = entry;
		} else if (table_has_ended(*entry)) {
			bool older = oldest == NULL || (*entry)->ended_ns < (*oldest)->ended_ns;

			oldest = older ? entry : oldest;
		} else if (is_in_the_way(job, *entry)) {
			*result = -EBUSY;
			*text = "another job is already pushing to that range";
			return NULL;
		} else if ((*entry)->id == job->id && (*entry)->role == job->role) {
			*result = -EEXIST;
			*text = "the job has already started";
			return NULL;
		} else {
			running++;
		}
	}
	if (running >= PUSH_JOBS_MAX) {
		*result = -EBUSY;
		*text = "the server has reached its limit of jobs";
		return NULL;
	}
	/* room or oldest is not NULL, because there are more entries than jobs can run */
	return room != NULL ? room : oldest;
}

int push_job_add(struct push_job *job, uint64_t now_ns, const char **text)
{
	struct push_job *kept = malloc(sizeof(*kept));
	struct push_job **entry;
	int result = 0;

	if (kept == NULL) {
		*text = "the server is out of memory";
		return -ENOMEM;
	}
	lock();
	entry = table_find_entry(job, &result, text);
	if (entry != NULL) {
		job->serial = ++table.serial;
		job->state = PUSH_JOB_BEGINS;
		job->begun_ns = now_ns;
		*kept = *job;
		free(*entry);
		*entry = kept;
	} else {
		free(kept);
	}
	table_unlock();
	return result;
}

static struct push_job *find_job(uint64_t serial)
{
	for (uint32_t i = 0; i < PUSH_JOBS_KEPT_MAX; i++) {
		if (table.jobs[i] != NULL && table.jobs[i]->serial == serial) {
			return table.jobs[i];
		}
	}
	return NULL;
}

bool push_job_tell(uint64_t serial, enum push_job_state state, const struct push_progress *progress)
{
	struct push_job *job;
	bool goes_on;

	lock();
	job = find_job(serial);
	GMB_ASSERT(job != NULL); /* a running job is never removed */
	table_set_state(job, state);
	job->progress = *progress;
	goes_on = !job->cancelled;
	table_unlock();
	return goes_on;
}

void push_job_end(uint64_t serial, const struct push_progress *progress, int status,
	const char *text, uint64_t now_ns)
{
	struct push_job *job;

	lock();
	job = find_job(serial);
	GMB_ASSERT(job != NULL && !table_has_ended(job));
	table_set_state(job, status == 0 ? PUSH_JOB_DONE : PUSH_JOB_FAILED);
	job->progress = *progress;
	job->ended_ns = now_ns;
	job->status = status;
	if (text != NULL) {
		strncat(job->text, text, sizeof(job->text) - 1);
	}
	table_unlock();
}

static bool may_see(const struct push_viewer *viewer, const struct push_job *job)
{
	return viewer->all || is_same(&viewer->identity, &job->owner);
}

bool push_job_next(uint64_t serial, const struct push_viewer *viewer, struct push_job *job_out)
{
	const struct push_job *found = NULL;

	lock();
	for (uint32_t i = 0; i < PUSH_JOBS_KEPT_MAX; i++) {
		const struct push_job *job = table.jobs[i];

		if (job != NULL && job->serial > serial && may_see(viewer, job) &&
			(found == NULL || job->serial < found->serial)) {
			found = job;
		}
	}
	if (found != NULL) {
		*job_out = *found;
	}
	table_unlock();
	return found != NULL;
}

bool push_job_of(uint64_t serial, struct push_job *job_out)
{
	const struct push_job *job;

	lock();
	job = find_job(serial);
	if (job != NULL) {
		*job_out = *job;
	}
	table_unlock();
	return job != NULL;
}

int push_job_cancel(uint64_t id, const struct push_viewer *viewer)
{
	int result = -ENOENT;

	lock();
	for (uint32_t i = 0; i < PUSH_JOBS_KEPT_MAX; i++) {
		struct push_job *job = table.jobs[i];

		if (job != NULL && job->id == id && may_see(viewer, job) && !table_has_ended(job)) {
			job->cancelled = true;
			result = 0;
		}
	}
	table_unlock();
	return result;
}
