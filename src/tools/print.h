// SPDX-License-Identifier: Apache-2.0
/*
 * What all commands print in the same way: sizes for people, JSON for programs, and the end of the
 * output, which may be a full disk or a closed pipe.
 *
 * Threading: the main thread. Ownership: as said below. Errors: 0, or a negative errno with a
 * sentence.
 */
#pragma once

#include "base/error.h"

/* "1.5 GiB": three digits that count, for people. Returns out. */
enum { PRINT_SIZE_BYTES = 32 };
const char *print_size(char out[PRINT_SIZE_BYTES], uint64_t bytes);

/* "12.3 us", "1.20 ms", "2.00 s". Returns out. */
enum { PRINT_US_BYTES = 48 };
const char *print_us(char out[PRINT_US_BYTES], double us);

/* Flushes standard output. */
GMB_MUST_CHECK int print_end(struct error *error);

struct json_t;
/* The text as JSON, which holds UTF-8 only: other bytes are escaped as on the terminal. NULL
 * becomes null. The caller's; NULL without memory. */
struct json_t *print_json_text(const char *text);

/* Prints what json_dumps() makes of root, which it takes, and flushes. NULL: out of memory. */
GMB_MUST_CHECK int print_json(struct json_t *root, struct error *error);
/* The same on one line, for documents that follow each other. */
GMB_MUST_CHECK int print_json_line(struct json_t *root, struct error *error);
/* The same with that many digits of each real number. */
GMB_MUST_CHECK int print_json_digits(struct json_t *root, int digits, struct error *error);
