// SPDX-License-Identifier: Apache-2.0
/*
 * An error for a person: a negative errno for the program and one sentence that says what failed,
 * on which object, why, and what to do.
 *
 * Threading: the caller's object. Ownership: self-contained, nothing to free.
 * Errors: a text that does not fit is cut with "...", never dropped.
 */
#pragma once

#include <stdarg.h>

#include "base/compiler.h"

enum { ERROR_TEXT_BYTES = 512 };

struct error {
	int code;	 /* negative errno, 0 while nothing failed */
	const char *key; /* of error_advise(), or NULL */
	char text[ERROR_TEXT_BYTES];
};

/* Fills *error (which may be NULL) and returns code, so that a caller can "return error_set(...)".
 */
int error_set(struct error *error, int code, const char *format, ...) GMB_PRINTF(3, 4);

/* error_set() of what does not happen to an export with this key, such as "readonly" or
 * "mode=cached" (a constant): who opens it for an export adds that, and how it is written. */
int error_advise(struct error *error, int code, const char *key, const char *format, ...)
	GMB_PRINTF(4, 5);

/* Puts text behind the text that is already there. */
void error_add(struct error *error, const char *format, ...) GMB_PRINTF(2, 3);

/* Puts "text: " in front of the text that is already there. */
void error_prefix(struct error *error, const char *format, ...) GMB_PRINTF(2, 3);
