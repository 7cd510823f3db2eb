// SPDX-License-Identifier: Apache-2.0
/* Fault and delay rules, and paces. */
#include "fuzz.h"
#include "store/parse.h"

static void check_rule(const struct store_rule *rule, bool fault)
{
	GMB_ASSERT(rule->ops != 0 && rule->ops < BIT(STORE_OP_COUNT));
	GMB_ASSERT(fault ? rule->error < 0 : rule->error == 0);
	GMB_ASSERT(rule->probability >= 0 && rule->probability <= 1);
	GMB_ASSERT(rule->nth == 0 || rule->every == 0);
	GMB_ASSERT(
		rule->range_length == 0 || rule->range_offset <= UINT64_MAX - rule->range_length);
}

static void check_pace(const struct store_pace *pace)
{
	GMB_ASSERT(pace->rate >= 1 << 10 && pace->rate <= UINT64_C(1) << 40);
	GMB_ASSERT(pace->latency_ns <= UINT64_C(3600000000000));
	GMB_ASSERT(pace->members >= 1 && pace->members <= STORE_PACE_MEMBERS_MAX);
	GMB_ASSERT((pace->chunk == 0) == (pace->members == 1));
	GMB_ASSERT(pace->chunk % 4096 == 0 && pace->chunk <= 1 << 30);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	struct error error = { 0 };
	struct store_rule rule;
	struct store_pace pace;

	memset(&rule, 0, sizeof(rule));
	if (store_fault_parse(text, &rule, &error) == 0) {
		check_rule(&rule, true);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	memset(&rule, 0, sizeof(rule));
	if (store_delay_parse(text, &rule, &error) == 0) {
		check_rule(&rule, false);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	memset(&pace, 0, sizeof(pace));
	if (store_pace_parse(text, &pace, &error) == 0) {
		check_pace(&pace);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	free(text);
	return 0;
}
