// SPDX-License-Identifier: Apache-2.0
/*
 * Formats the totals of a server as metrics for Prometheus and compatible collectors, in two text
 * formats: OpenMetrics 1.0, and its predecessor, the Prometheus text format 0.0.4, which promtool
 * and the textfile collector of node_exporter read. gmblock-metrics(7) lists the names and labels,
 * which are stable.
 *
 * Threading: the main thread; calls each reactor and waits for it. Ownership: the caller owns the
 * text. Errors: -ENOMEM, or -ETIMEDOUT if a reactor does not answer.
 */
#pragma once

#include "server/observe/totals.h"

#define METRICS_TEXT_TYPE	 "text/plain; version=0.0.4; charset=utf-8"
#define METRICS_OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

/* Collects and formats the totals. The text has a terminator, which *bytes_out does not include. */
GMB_MUST_CHECK int metrics_format(
	const struct server_view *view, bool openmetrics, char **text_out, size_t *bytes_out);
