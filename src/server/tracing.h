// SPDX-License-Identifier: Apache-2.0
/*
 * Recording single requests of a running server for one who asks (path/stats.h): a recorder in each
 * reactor, and what they saw as one JSON document. At most one recording at a time.
 *
 *   tracing_begin() ─▶ recorders armed ─▶ event: enough requests ended ─▶ tracing_tell()
 *                                                                         tracing_disarm()
 *
 * Threading: the main thread; beginning and disarming wait for each reactor to finish its turn.
 * Ownership: borrows the reactors and exports; owns the recorders until it is destroyed, which must
 * be after the reactors when they were not disarmed. Errors: begin says in a sentence what is wrong
 * with the question.
 */
#pragma once

#include "server/reactor.h"

struct tracing;

struct tracing_options {
	struct export *const *exports;
	uint32_t export_count;
	struct reactor *const *reactors;
	uint32_t reactor_count;
};

GMB_MUST_CHECK int tracing_create(
	const struct tracing_options *options, struct tracing **tracing_out, struct error *error);
/* NULL is a no-op. */
void tracing_destroy(struct tracing *tracing);

/* An eventfd that is written when enough requests have ended. */
int tracing_event_fd(const struct tracing *tracing);

/*
 * Arms the recorders. question is a JSON object with
 *   count       how many requests to wait for
 *   min_size    only requests of at least so many bytes; optional
 *   operations  only these: a list of names; optional
 *   export      only on the export of this name; optional
 * -EBUSY while a recording runs, -EINVAL, -ENOENT no such export, -ENOMEM.
 */
GMB_MUST_CHECK int tracing_begin(
	struct tracing *tracing, const char *question, struct error *error);
/* True while it runs and not enough requests have ended. */
bool tracing_is_short(const struct tracing *tracing);

/* What was recorded, to be freed; ended says why there will not be more ("count", "left", "stop").
 * NULL: no memory. */
char *tracing_tell(struct tracing *tracing, const char *ended);
/* The reactors forget the recorders; another recording may begin. */
void tracing_disarm(struct tracing *tracing);
