// SPDX-License-Identifier: Apache-2.0
/*
 * What a server serves and what its requests took, as one JSON document. gmblock-stats(1) has its
 * schema.
 *
 * Threading: the main thread; calls each reactor and waits for it. Ownership: the document is the
 * caller's. Errors: a reactor that does not answer is an error, and there is no document.
 */
#pragma once

#include <jansson.h>

#include "server/control.h"

/* NULL and *code: -ETIMEDOUT when a reactor does not answer, -ENOMEM. */
json_t *stats_document(const struct server_view *view, int *code);
/* All counters of that document, described: an array "counters" of objects with the members of,
 * name, labels, unit, kind, help, metric (without "gmblock_" and "_total"; empty: none) and
 * metric_labels. */
json_t *stats_counters(void);

/* The value of a counter in an object of that document: 0 if it is missing. */
uint64_t stats_counter_value(const struct counter *counter, const json_t *object);
