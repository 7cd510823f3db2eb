// SPDX-License-Identifier: Apache-2.0
/*
 * Quantities that people write: sizes ("64M", "4096"), times ("10ms", "1s") and plain counts.
 *
 * Threading: pure functions. Ownership: none. Errors: -EINVAL for text that is not such a quantity,
 * -ERANGE for one that does not fit, with a sentence in *error that shows the text; the out
 * parameter is set only on success.
 */
#pragma once

#include "base/error.h"

/* Bytes: digits and one of K, M, G, T, P, E (powers of 1024, either case, "iB" or "B" may follow).
 * Nothing else: no sign, no space, no fraction. */
GMB_MUST_CHECK int units_parse_bytes(const char *text, uint64_t *bytes, struct error *error);

/* Time: digits and one of ns, us, ms, s, min, h. "0" needs no unit. At most INT64_MAX ns, about 292
 * years, so that a time added to the clock's does not overflow. */
GMB_MUST_CHECK int units_parse_time(const char *text, uint64_t *time_ns, struct error *error);

/* The same, or a number of seconds without a unit, which may have a point: "2", "0.5". */
GMB_MUST_CHECK int units_parse_seconds(const char *text, uint64_t *time_ns, struct error *error);

/* A decimal number from min to max. */
GMB_MUST_CHECK int units_parse_count(
	const char *text, uint32_t min, uint32_t max, uint32_t *count, struct error *error);

enum { UNITS_TEXT_BYTES = 32 };

/* The shortest exact text that units_parse_bytes() reads back: "64M", "1000". Returns out. */
const char *units_format_bytes(char out[UNITS_TEXT_BYTES], uint64_t bytes);
