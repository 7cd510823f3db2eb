// SPDX-License-Identifier: Apache-2.0
/*
 * Text that people write: sizes ("64M", "4096"), times ("10ms", "1s") and counts; misspelled names;
 * UTF-8.
 *
 * Threading: pure functions. Ownership: none. Errors: units_parse_*: -EINVAL for text that is no
 * such quantity, -ERANGE for one that does not fit, with a sentence in *error that shows the text;
 * the out parameter is set only on success.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/compiler.h"
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

/* For people: "1.5 GiB", "12 MiB", "700 bytes". Two or three digits that count. Returns out. */
const char *units_human_bytes(char out[UNITS_TEXT_BYTES], uint64_t bytes);

/* --- misspelled names ------------------------------------------------------------------------ */

/*
 * Finds the name that a misspelled word was meant to be.
 *
 *	struct near near;
 *
 *	near_begin(&near, word);
 *	for each name: near_try(&near, name);
 *	near.name: the nearest name, or NULL if none is similar enough; near_text() words it
 *
 * The distance counts letters that are missing, added, replaced, or swapped with their neighbour;
 *one in three may be wrong, and three at most. A name that the word begins is near as well. Holds
 *the word and the names while it is used.
 */
struct near {
	const char *word;
	const char *name;  /* the nearest so far, or NULL */
	uint32_t distance; /* its distance */
};

void near_begin(struct near *near, const char *word);
void near_try(struct near *near, const char *name);

enum { NEAR_TEXT_BYTES = 128 };

/* What ends a message about the word: "; did you mean 'NAME'?" with a prefix before the name, or
 * "" where none is near. Returns out. */
const char *near_text(const struct near *near, const char *prefix, char out[NEAR_TEXT_BYTES]);

/* How many such mistakes are between two words; words of more than 63 bytes are UINT32_MAX apart.
 */
uint32_t near_distance(const char *a, const char *b);

/* --- what strangers write, for a terminal ------------------------------------------------------
 */

/*
 * One for each kind of output; text for people is log_escape()'s. Characters that are hidden
 * (utf8_is_hidden()) and bytes that are no UTF-8 are written as the format has it. False: it could
 * not be written.
 */

/* A JSON text: \uXXXX. It stays the same value. Line feeds outside of strings stay. */
bool text_print_json(FILE *out, const char *json);
/* Metrics in the Prometheus text format: two backslashes and xNN, which is \xNN as the value of a
 * label. Line feeds stay. */
bool text_print_metrics(FILE *out, const char *text, size_t len);

/* --- UTF-8 ----------------------------------------------------------------------------------- */

/* As the Unicode standard defines it: no overlong forms, no surrogates, nothing above U+10FFFF. */

/* Length of the valid sequence at p (1 to 4 bytes), or 0. left > 0. */
size_t utf8_sequence(const void *p, size_t left);

/* The same, and the character in *code. */
size_t utf8_decode(const void *p, size_t left, uint32_t *code);

/* Whether a character, shown on a terminal, would steer it or hide something: controls of C0 and
 * C1, DEL, line and paragraph separators, marks of direction, and characters without a width. */
bool utf8_is_hidden(uint32_t code);

/* True when all len bytes are whole, valid sequences. Zero bytes are characters here. */
bool utf8_valid(const void *bytes, size_t len);
