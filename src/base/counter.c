// SPDX-License-Identifier: Apache-2.0
#include "base/counter.h"

#include <stdio.h>
#include <string.h>

const char *counter_metric(char out[COUNTER_METRIC_BYTES], const struct counter_table *table,
	const struct counter *counter)
{
	static const char ns[] = "_ns";
	static const char seconds[] = "_seconds";
	int bytes;

	if (counter->metric != NULL) {
		bytes = snprintf(out, COUNTER_METRIC_BYTES, "%s", counter->metric);
	} else {
		bytes = snprintf(out, COUNTER_METRIC_BYTES, "%s%s", table->prefix, counter->name);
	}
	GMB_ASSERT(bytes >= 0 && bytes < COUNTER_METRIC_BYTES - (int)sizeof(seconds));
	if (counter->unit == COUNTER_NS && bytes >= (int)sizeof(ns) &&
		strcmp(out + bytes - (sizeof(ns) - 1), ns) == 0) {
		memcpy(out + bytes - (sizeof(ns) - 1), seconds, sizeof(seconds));
	}
	return out;
}
