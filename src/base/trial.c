// SPDX-License-Identifier: Apache-2.0
#include "base/trial.h"

#include "base/bytes.h"

#define SECOND_NS UINT64_C(1000000000)

/* Returns the better way so far. Before both ways were measured: way 0. */
static uint32_t trial_better(const struct trial *trial, const struct trial_rule *rule)
{
	const uint64_t *rates = trial->rates;

	return rates[0] > 0 && rates[1] > rates[0] + rates[0] / rule->margin ? 1 : 0;
}

void trial_end_window(
	struct trial *trial, const struct trial_rule *rule, uint64_t bytes, uint64_t ns)
{
	/* Calculated in KiB and units of 1024 ns, so that the product does not overflow. */
	uint64_t rate = (bytes >> 10) * (SECOND_NS >> 10) / MAX(ns >> 10, UINT64_C(1));
	uint64_t *average = &trial->rates[trial->way];
	uint32_t before = trial_better(trial, rule);
	uint32_t better;
	bool tries;

	/* Other programs can only slow a window down, so slow windows have less weight. */
	if (*average == 0) {
		*average = rate;
	} else if (rate > *average) {
		*average += (rate - *average) / 2;
	} else {
		*average -= (*average - rate) / 8;
	}
	trial->windows++;
	better = trial_better(trial, rule);
	if (better != before || trial->windows <= TRIAL_WAYS * rule->first_windows) {
		trial->count = rule->try_first;
	}
	trial->count++;
	tries = trial->windows < TRIAL_WAYS * rule->first_windows
			? trial->way == better
			: is_power_of_two(trial->count) || trial->count % rule->try_every == 0;
	trial->way = tries ? !better : better;
}
