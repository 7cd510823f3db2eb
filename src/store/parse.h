// SPDX-License-Identifier: Apache-2.0
/*
 * Numbers with units as users write them: "64M", "10ms", as everywhere (base/text.h), in the
 * middle of a longer text. Strict: nothing before or after, no sign, no fraction, overflow refused.
 *
 * Threading: pure functions. Ownership: none. Errors: false, and nothing is stored; the spec's
 * parser returns -EINVAL with a sentence.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"

/* Decimal digits only. text need not be terminated. */
bool store_parse_count(const char *text, size_t len, uint64_t *value);

/* As units_parse_bytes(). */
bool store_parse_size(const char *text, size_t len, uint64_t *bytes);

/* As units_parse_time(). */
bool store_parse_time(const char *text, size_t len, uint64_t *ns);

/* The size in "memory:SIZE" and "null:SIZE": 1 to 2^63 - 1 bytes. spec is the whole, for messages.
 */
GMB_MUST_CHECK int store_parse_spec_size(
	const char *spec, const char *size_text, uint64_t *bytes, struct error *error);
