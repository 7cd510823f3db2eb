// SPDX-License-Identifier: Apache-2.0
/* Sizes, times and counts that people write, and what is written back. */
#include "base/units.h"
#include "fuzz.h"

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
	free(text);
	return 0;
}
