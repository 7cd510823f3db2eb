// SPDX-License-Identifier: Apache-2.0
/*
 * The served exports and the timing of their requests as one JSON document. gmblock-stats(1)
 * defines its schema.
 *
 * Threading: the main thread; calls each reactor and waits for it. Ownership: the caller owns the
 * document. Errors: if a reactor does not answer, there is no document.
 */
#pragma once

#include <jansson.h>

#include "server/control.h"

/* Returns NULL and sets *code on failure: -ETIMEDOUT when a reactor does not answer, -ENOMEM. */
json_t *stats_document(const struct server_view *view, int *code);
/* Returns the descriptions of the counters in stats_document(): "counters", an array of objects
 * with the members "of", "name", "labels", "unit", "kind", "help", "metric" (without "gmblock_" and
 * "_total"; empty: none) and "metric_labels". */
json_t *stats_counters(void);

/* Returns the value of a counter in an object of stats_document(); 0 if the counter is missing. */
uint64_t stats_counter_value(const struct counter *counter, const json_t *object);
