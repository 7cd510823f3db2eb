// SPDX-License-Identifier: Apache-2.0
/*
 * The summary of a server as metrics for Prometheus and others, in two text formats: OpenMetrics
 * 1.0 and its predecessor, the Prometheus text format 0.0.4, which promtool and the textfile
 * collector of node_exporter read. gmblock-metrics(7) lists the names and labels; they are stable.
 *
 * Threading: any. Ownership: the text is the caller's. Errors: -ENOMEM.
 */
#pragma once

#include "server/observe/summary.h"

#define METRICS_TEXT_TYPE	 "text/plain; version=0.0.4; charset=utf-8"
#define METRICS_OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

/* The text has a terminator, which *bytes_out does not count. */
GMB_MUST_CHECK int metrics_format(
	const struct summary *summary, bool openmetrics, char **text_out, size_t *bytes_out);
