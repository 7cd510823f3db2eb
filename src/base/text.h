// SPDX-License-Identifier: Apache-2.0
/*
 * Text that people write: sizes ("64M", "4096"), times ("10ms", "1s") and counts; misspelled names;
 * UTF-8.
 *
 * Threading: pure functions. Ownership: none. Errors: units_parse_*() return -EINVAL for text that
 * is not such a quantity and -ERANGE for one that does not fit, with an error message in *error
 * that quotes the text. The out parameter is set only on success.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/compiler.h"
#include "base/error.h"

/* Parses a size: digits and an optional K, M, G, T, P or E (powers of 1024, either case), which
 * "iB" or "B" can follow. Signs, spaces and fractions are rejected. */
GMB_MUST_CHECK int units_parse_bytes(const char *text, uint64_t *bytes, struct error *error);

/* Parses a time: digits and one of ns, us, ms, s, min, h. "0" needs no unit. The maximum is
 * INT64_MAX ns, about 292 years, so that adding a time to the clock does not overflow. */
GMB_MUST_CHECK int units_parse_time(const char *text, uint64_t *time_ns, struct error *error);

/* Like units_parse_time(), but a number without a unit counts seconds and can have a decimal point:
 * "2", "0.5". */
GMB_MUST_CHECK int units_parse_seconds(const char *text, uint64_t *time_ns, struct error *error);

/* Parses a decimal number from min to max. */
GMB_MUST_CHECK int units_parse_count(
	const char *text, uint32_t min, uint32_t max, uint32_t *count, struct error *error);

enum { UNITS_TEXT_BYTES = 32 };

/* Formats the shortest exact text that units_parse_bytes() parses to the same value: "64M", "1000".
 * Returns out. */
const char *units_format_bytes(char out[UNITS_TEXT_BYTES], uint64_t bytes);

/* Formats a size for people: "1.5 GiB", "12 MiB", "700 bytes", with two or three significant
 * digits. Returns out. */
const char *units_human_bytes(char out[UNITS_TEXT_BYTES], uint64_t bytes);

/* Returns the value of a hexadecimal digit of either case, or -1. */
int text_hex_digit(char c);

/* Returns whether two texts, each of which may be NULL, are the same. */
bool text_same(const char *a, const char *b);

/* --- misspelled names ------------------------------------------------------------------------ */

/*
 * Finds the name that a misspelled word was meant to be.
 *
 * struct near near;
 *
 * near_begin(&near, word);
 * for each name: near_try(&near, name);
 * near.name: the nearest name, or NULL if none is similar enough; near_text() formats it
 *
 * The distance is the number of letters that are missing, added, replaced, or swapped with their
 * neighbour. At most a third of the letters, and at most three, can be wrong. A name that begins
 * with the word also matches. The word and the names are borrowed.
 */
struct near {
	const char *word;
	const char *name;  /* nearest name so far, or NULL */
	uint32_t distance; /* distance of this name */
};

void near_begin(struct near *near, const char *word);
void near_try(struct near *near, const char *name);

enum { NEAR_TEXT_BYTES = 128 };

/* Formats the end of a message about the word: "; did you mean 'NAME'?" with prefix in front of the
 * name, or "" if no name is near. Returns out. */
const char *near_text(const struct near *near, const char *prefix, char out[NEAR_TEXT_BYTES]);

/* Returns the distance between two words as defined above; UINT32_MAX if one is longer than 63
 * bytes. */
uint32_t near_distance(const char *a, const char *b);

/*
 * Printing of untrusted text, one function for each output format; for text that people read, use
 * log_escape(). Hidden characters (utf8_is_hidden()) and invalid UTF-8 are written in the format's
 * own escape syntax. Return false if writing failed.
 */

/* Prints JSON text in which hidden characters are escaped as \uXXXX, so that its value does not
 * change. Line feeds outside of strings stay. */
bool text_print_json(FILE *out, const char *json);
/* Prints metrics in the Prometheus text format. An escape is written as \\xNN, which a parser of
 * label values decodes to \xNN. Line feeds stay as they are. */
bool text_print_metrics(FILE *out, const char *text, size_t len);

/* --- UTF-8 ----------------------------------------------------------------------------------- */

/* UTF-8 as the Unicode standard defines it: no overlong forms, no surrogates, no code point above
 * U+10FFFF. */

/* Returns the length of the valid sequence at p (1 to 4 bytes), or 0. left > 0. */
size_t utf8_sequence(const void *p, size_t left);

/* Like utf8_sequence(), but also stores the character in *code. */
size_t utf8_decode(const void *p, size_t left, uint32_t *code);

/* Returns whether a character would control a terminal or hide text on it: C0 and C1 controls, DEL,
 * line and paragraph separators, direction marks, and characters without a width. */
bool utf8_is_hidden(uint32_t code);

/* Returns whether all len bytes are complete, valid sequences. A zero byte is valid. */
bool utf8_valid(const void *bytes, size_t len);
