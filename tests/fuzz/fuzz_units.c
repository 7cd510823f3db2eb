// SPDX-License-Identifier: Apache-2.0
/* Sizes, times and counts that people write, and what is written back; words that are misspelt;
 * leases. */
#include <string.h>

#include "base/lease.h"
#include "base/text.h"
#include "fuzz.h"

/* What it was meant to be does not depend on the direction, and is at most all of it away. */
static void check_near(const char *text)
{
	static const char name[] = "write-mode";
	uint32_t distance = near_distance(text, name);
	struct near near;

	GMB_ASSERT(distance == near_distance(name, text));
	GMB_ASSERT(distance == UINT32_MAX || distance <= MAX(strlen(text), strlen(name)));
	GMB_ASSERT((distance == 0) == (strcmp(text, name) == 0));
	near_begin(&near, text);
	near_try(&near, name);
	GMB_ASSERT(near.name == NULL || near.distance == distance);
}

/* What is accepted is written back as a text that means the same. */
static void check_lease(const char *text)
{
	struct lease_want want;
	struct lease_want again;
	char written[LEASE_WANT_BYTES];

	if (lease_want_parse((const uint8_t *)text, (uint32_t)strlen(text), &want)) {
		GMB_ASSERT(want.mode != LEASE_NONE && want.renew + want.moves + want.preempt <= 1);
		GMB_ASSERT(want.ms >= LEASE_MS_MIN && want.ms <= LEASE_MS_MAX);
		lease_want_format(written, &want);
		GMB_ASSERT(lease_want_parse(
			(const uint8_t *)written, (uint32_t)strlen(written), &again));
		GMB_ASSERT(memcmp(want.id, again.id, sizeof(want.id)) == 0 &&
			   want.mode == again.mode && want.ms == again.ms &&
			   want.renew == again.renew && want.moves == again.moves &&
			   want.preempt == again.preempt);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	char written[UNITS_TEXT_BYTES];
	struct error error = { 0 };
	uint64_t value = 0;
	uint64_t again = 0;
	uint32_t count = 0;

	if (units_parse_bytes(text, &value, &error) == 0) {
		GMB_ASSERT(
			units_parse_bytes(units_format_bytes(written, value), &again, &error) == 0);
		GMB_ASSERT(again == value);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	if (units_parse_count(text, 3, 70000, &count, &error) == 0) {
		GMB_ASSERT(count >= 3 && count <= 70000);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	if (units_parse_time(text, &value, &error) != 0) {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	if (units_parse_seconds(text, &value, &error) == 0) {
		GMB_ASSERT(value <= INT64_MAX);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	check_lease(text);
	check_near(text);
	free(text);
	return 0;
}
