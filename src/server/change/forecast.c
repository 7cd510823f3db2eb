// SPDX-License-Identifier: Apache-2.0
#include "server/change/forecast.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "server/change/job.h"

/* Time that reactors have to answer, in seconds. A reactor with a hanging disk must not delay the
 * withdrawal of rights. */
enum { ANSWER_S = 1 };

/* The predicted effect on the connections of one export or of one TLS policy. key: the address of
 * that object. */
struct entry {
	const void *key;
	struct access *rules;	     /* rules of an export; owned, or NULL */
	struct tls_context *context; /* context of a policy, or NULL */
	struct forecast_counts counts;
};

struct table {
	struct entry *list;
	uint32_t count;
};

/* A connection with TLS, whose certificate is to be checked. */
struct proof {
	const struct tls_policy *policy;
	struct identity *identity; /* identity from the certificate; owned */
};

/* The results of one reactor. Only that reactor writes them until is_done is set. */
struct answer {
	struct reactor_task task;
	struct forecast *forecast;
	bool is_done; /* protected by the lock */
	bool failed;
	bool counts_in;			/* the answer came in time, so its results count */
	struct forecast_counts *counts; /* one per export */
	struct proof *proofs;
	uint32_t proof_count;
};

struct forecast {
	_Atomic uint32_t references;
	struct table exports;
	struct table policies;
	uint32_t reactor_count;
	uint32_t silent_count;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_over; /* protected by the lock: answers are no longer awaited */
	struct answer answers[];
};

/* --- life ------------------------------------------------------------------------------------ */

struct forecast *forecast_create(uint32_t reactor_count)
{
	struct forecast *forecast =
		calloc(1, sizeof(*forecast) + reactor_count * sizeof(forecast->answers[0]));

	if (forecast == NULL) {
		return NULL;
	}
	forecast->references = 1;
	forecast->reactor_count = reactor_count;
	pthread_mutex_init(&forecast->lock, NULL);
	pthread_cond_init(&forecast->changed, NULL);
	return forecast;
}

static void answer_fini(struct answer *answer)
{
	for (uint32_t i = 0; i < answer->proof_count; i++) {
		identity_put(answer->proofs[i].identity);
	}
	free(answer->proofs);
	free(answer->counts);
}

void forecast_put(struct forecast *forecast)
{
	/* Acquire-release order: the thread that drops the last reference, and frees the forecast,
	 * must see the writes of all other threads. */
	if (forecast == NULL ||
		atomic_fetch_sub_explicit(&forecast->references, 1, memory_order_acq_rel) > 1) {
		return;
	}
	for (uint32_t i = 0; i < forecast->reactor_count; i++) {
		answer_fini(&forecast->answers[i]);
	}
	for (uint32_t i = 0; i < forecast->exports.count; i++) {
		access_put(forecast->exports.list[i].rules);
	}
	free(forecast->exports.list);
	free(forecast->policies.list);
	pthread_cond_destroy(&forecast->changed);
	pthread_mutex_destroy(&forecast->lock);
	free(forecast);
}

/* --- questions ------------------------------------------------------------------------------- */

/* Adds an entry. NULL: no memory. */
static struct entry *forecast_add(struct table *table, const void *key)
{
	if (array_grow(&table->list, table->count, sizeof(*table->list)) < 0) {
		return NULL;
	}
	table->list[table->count] = (struct entry){ .key = key };
	return &table->list[table->count++];
}

int forecast_rules(struct forecast *forecast, const struct export *export, struct access *rules)
{
	struct entry *entry = forecast_add(&forecast->exports, export);

	if (entry == NULL) {
		return -ENOMEM;
	}
	entry->rules = rules;
	if (rules != NULL) {
		access_get(rules);
	}
	return 0;
}

int forecast_tls(
	struct forecast *forecast, const struct tls_policy *policy, struct tls_context *context)
{
	struct entry *entry = forecast_add(&forecast->policies, policy);

	if (entry == NULL) {
		return -ENOMEM;
	}
	entry->context = context;
	return 0;
}

static int compare_keys(const void *left, const void *right)
{
	uintptr_t a = (uintptr_t)((const struct entry *)left)->key;
	uintptr_t b = (uintptr_t)((const struct entry *)right)->key;

	return (a > b) - (a < b);
}

static void forecast_sort(struct table *table)
{
	if (table->count > 0) {
		qsort(table->list, table->count, sizeof(*table->list), compare_keys);
	}
}

static struct entry *forecast_find(const struct table *table, const void *key)
{
	const struct entry wanted = { .key = key };

	return table->count == 0 ? NULL
				 : bsearch(&wanted, table->list, table->count, sizeof(*table->list),
					   compare_keys);
}

/* --- on a reactor ---------------------------------------------------------------------------- */

static void count_rights(struct answer *answer, const struct session *session)
{
	const struct forecast *forecast = answer->forecast;
	const struct entry *entry = forecast_find(&forecast->exports, session->export);
	struct forecast_counts *counts;
	uint32_t rights;
	uint32_t lost;

	if (entry == NULL) {
		return;
	}
	counts = &answer->counts[entry - forecast->exports.list];
	rights = engine_rights_with(session, session->export, entry->rules);
	lost = session->rights & ~rights;
	counts->end += rights == 0;
	counts->lose_write += rights != 0 && (lost & ENGINE_RIGHT_WRITE) != 0;
	counts->lose_read += rights != 0 && (lost & ENGINE_RIGHT_READ) != 0;
}

static void forecast_look(void *context, const struct session *session)
{
	struct answer *answer = context;
	const struct forecast *forecast = answer->forecast;

	if (session->export != NULL) {
		count_rights(answer, session);
	}
	if (session->peer.proved == NULL ||
		forecast_find(&forecast->policies, session->tls) == NULL) {
		return;
	}
	if (array_grow(&answer->proofs, answer->proof_count, sizeof(*answer->proofs)) < 0) {
		answer->failed = true;
		return;
	}
	identity_get(session->peer.proved);
	answer->proofs[answer->proof_count++] =
		(struct proof){ session->tls, session->peer.proved };
}

static void forecast_collect(struct engine *engine, void *context)
{
	struct answer *answer = context;
	struct forecast *forecast = answer->forecast;
	bool is_over;

	pthread_mutex_lock(&forecast->lock);
	is_over = forecast->is_over;
	pthread_mutex_unlock(&forecast->lock);
	if (!is_over) {
		answer->counts = calloc(MAX(forecast->exports.count, 1U), sizeof(*answer->counts));
		answer->failed = answer->counts == NULL;
	}
	if (!is_over && !answer->failed) {
		engine_each_session(engine, forecast_look, answer);
	}
	pthread_mutex_lock(&forecast->lock);
	answer->is_done = true;
	pthread_cond_signal(&forecast->changed);
	pthread_mutex_unlock(&forecast->lock);
	forecast_put(forecast);
}

/* --- running --------------------------------------------------------------------------------- */

static void wait_for_answers(struct forecast *forecast)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ANSWER_S;
	pthread_mutex_lock(&forecast->lock);
	for (uint32_t i = 0; i < forecast->reactor_count; i++) {
		while (!forecast->answers[i].is_done && rc == 0) {
			rc = pthread_cond_clockwait(
				&forecast->changed, &forecast->lock, CLOCK_MONOTONIC, &until);
		}
		forecast->answers[i].counts_in =
			forecast->answers[i].is_done && !forecast->answers[i].failed;
		forecast->silent_count += !forecast->answers[i].counts_in;
	}
	forecast->is_over = true;
	pthread_mutex_unlock(&forecast->lock);
}

static void add_up(struct forecast *forecast, const struct answer *answer)
{
	for (uint32_t i = 0; i < forecast->exports.count; i++) {
		struct forecast_counts *sum = &forecast->exports.list[i].counts;

		sum->lose_write += answer->counts[i].lose_write;
		sum->lose_read += answer->counts[i].lose_read;
		sum->end += answer->counts[i].end;
	}
	for (uint32_t i = 0; i < answer->proof_count; i++) {
		const struct proof *proof = &answer->proofs[i];
		struct entry *entry = forecast_find(&forecast->policies, proof->policy);

		entry->counts.end += tls_context_recheck(entry->context, proof->identity, NULL) < 0;
	}
}

bool forecast_run(struct forecast *forecast, struct jobs *jobs, struct reactor *const *reactors)
{
	bool posted = true;

	if (forecast->exports.count == 0 && forecast->policies.count == 0) {
		return true;
	}
	forecast_sort(&forecast->exports);
	forecast_sort(&forecast->policies);
	for (uint32_t i = 0; posted && i < forecast->reactor_count; i++) {
		struct answer *answer = &forecast->answers[i];

		answer->forecast = forecast;
		answer->task.run = forecast_collect;
		answer->task.context = answer;
		/* Relaxed, because the caller's own reference keeps the forecast alive. */
		atomic_fetch_add_explicit(&forecast->references, 1, memory_order_relaxed);
		posted = jobs_post(jobs, reactors[i], &answer->task);
		if (!posted) {
			forecast_put(forecast);
		}
	}
	if (posted) {
		wait_for_answers(forecast);
	}
	for (uint32_t i = 0; posted && i < forecast->reactor_count; i++) {
		if (forecast->answers[i].counts_in) {
			add_up(forecast, &forecast->answers[i]);
		}
	}
	return posted;
}

/* --- results --------------------------------------------------------------------------------- */

struct forecast_counts forecast_of_export(
	const struct forecast *forecast, const struct export *export)
{
	const struct entry *entry = forecast_find(&forecast->exports, export);

	return entry != NULL ? entry->counts : (struct forecast_counts){ 0 };
}

struct forecast_counts forecast_of_policy(
	const struct forecast *forecast, const struct tls_policy *policy)
{
	const struct entry *entry = forecast_find(&forecast->policies, policy);

	return entry != NULL ? entry->counts : (struct forecast_counts){ 0 };
}

uint32_t forecast_silent(const struct forecast *forecast)
{
	return forecast->silent_count;
}

const char *forecast_text(const struct forecast_counts *counts, char out[FORECAST_TEXT_BYTES])
{
	const struct {
		uint32_t count;
		const char *one;
		const char *many;
	} parts[] = {
		{ counts->lose_write, "loses write access", "lose write access" },
		{ counts->lose_read, "loses read access", "lose read access" },
		{ counts->end, "ends", "end" },
	};
	size_t used = 0;

	for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
		if (parts[i].count > 0) {
			used += (size_t)snprintf(out + used, FORECAST_TEXT_BYTES - used,
				"%s%u connection%s %s", used > 0 ? ", " : "", parts[i].count,
				parts[i].count == 1 ? "" : "s",
				parts[i].count == 1 ? parts[i].one : parts[i].many);
		}
	}
	if (used == 0) {
		snprintf(out, FORECAST_TEXT_BYTES, "no connection loses access");
	}
	return out;
}
