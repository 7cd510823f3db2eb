// SPDX-License-Identifier: Apache-2.0
/*
 * What new access rules and new TLS files do to the connections that exist, before they hold: how
 * many lose a right, and how many end.
 *
 *   thread  forecast_create ─▶ forecast_rules(), forecast_tls() ─▶ forecast_run ─▶ results
 *
 * Reactors only collect: rights are looked up there, and certificates are verified on the thread
 * that asks. A reactor that does not answer in time is left out of the count (forecast_silent()).
 *
 * Threading: the reload thread. Ownership: counted, because a reactor may answer late; exports,
 * policies and contexts are borrowed until forecast_run() returns. Errors: -ENOMEM.
 */
#pragma once

#include "server/change/reload.h"
#include "server/reactor.h"

struct forecast;

/* What happens to the connections of one export, or of one address. */
struct forecast_counts {
	uint32_t lose_write;
	uint32_t lose_read;
	uint32_t end;
};

/* NULL: no memory. */
struct forecast *forecast_create(uint32_t reactor_count);
/* NULL is a no-op. */
void forecast_put(struct forecast *forecast);

/* The export is to have these rules; NULL: none. Each export once. */
GMB_MUST_CHECK int forecast_rules(
	struct forecast *forecast, const struct export *export, struct access *rules);
/* Connections with this policy are to be checked with the context. Each policy once. */
GMB_MUST_CHECK int forecast_tls(
	struct forecast *forecast, const struct tls_policy *policy, struct tls_context *context);

/* Asks all reactors. False: the server stops. */
bool forecast_run(
	struct forecast *forecast, struct reload *reload, struct reactor *const *reactors);
struct forecast_counts forecast_of_export(
	const struct forecast *forecast, const struct export *export);
struct forecast_counts forecast_of_policy(
	const struct forecast *forecast, const struct tls_policy *policy);
/* How many reactors have not answered. */
uint32_t forecast_silent(const struct forecast *forecast);

enum { FORECAST_TEXT_BYTES = 160 };
/* "1 connection loses the right to write, 2 end", or "no connection loses a right". Returns out. */
const char *forecast_text(const struct forecast_counts *counts, char out[FORECAST_TEXT_BYTES]);
