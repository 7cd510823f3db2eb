// SPDX-License-Identifier: Apache-2.0
/*
 * Predicts the effect of new access rules and TLS files on existing connections before they are
 * applied: the number that lose a right, and the number that end.
 *
 *   thread  forecast_create ─▶ forecast_rules(), forecast_tls() ─▶ forecast_run ─▶ results
 *
 * Reactors only collect data: they look up rights, and certificates are verified on the calling
 * thread. A reactor that does not answer in time is left out of the count (forecast_silent()).
 *
 * Threading: the jobs' thread. Ownership: reference-counted, because a reactor may answer late;
 * exports, policies and contexts are borrowed until forecast_run() returns. Errors: -ENOMEM.
 */
#pragma once

#include "server/change/jobs.h"
#include "server/reactor.h"

struct forecast;

/* The effect on the connections of one export or one address. */
struct forecast_counts {
	uint32_t lose_write;
	uint32_t lose_read;
	uint32_t end;
};

/* NULL: no memory. */
struct forecast *forecast_create(uint32_t reactor_count);
/* NULL is a no-op. */
void forecast_put(struct forecast *forecast);

/* Predicts the effect of giving the export these rules; NULL: no rules. Called at most once per
 * export. */
GMB_MUST_CHECK int forecast_rules(
	struct forecast *forecast, const struct export *export, struct access *rules);
/* Predicts which connections with this policy the new context would reject. Called at most once per
 * policy. */
GMB_MUST_CHECK int forecast_tls(
	struct forecast *forecast, const struct tls_policy *policy, struct tls_context *context);

/* Collects the data of all reactors and computes the results. Returns false if the server is
 * stopping. */
bool forecast_run(struct forecast *forecast, struct jobs *jobs, struct reactor *const *reactors);
struct forecast_counts forecast_of_export(
	const struct forecast *forecast, const struct export *export);
struct forecast_counts forecast_of_policy(
	const struct forecast *forecast, const struct tls_policy *policy);
/* Returns the number of reactors that did not answer in time or had no memory. */
uint32_t forecast_silent(const struct forecast *forecast);

enum { FORECAST_TEXT_BYTES = 160 };
/* Formats the counts, such as "1 connection loses write access, 2 connections end" or "no
 * connection loses access". Returns out. */
const char *forecast_text(const struct forecast_counts *counts, char out[FORECAST_TEXT_BYTES]);
