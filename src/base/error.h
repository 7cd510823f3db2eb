// SPDX-License-Identifier: Apache-2.0
/*
 * Errors for people: a negative errno for the program, and one sentence that says what failed, on
 * which object, why, and what to do.
 *
 * Threading: the caller's object. Ownership: self-contained, without memory to free. Errors: a text
 * that does not fit is cut with "...", never dropped.
 */
#pragma once

#include <stdarg.h>

#include "base/compiler.h"

enum { ERROR_TEXT_BYTES = 768 };

struct error {
	int code;	 /* negative errno, or 0 before the first failure */
	const char *key; /* set by error_advise(), or NULL */
	char text[ERROR_TEXT_BYTES];
};

/* Fills *error (which may be NULL) and returns code, so that a caller can "return error_set(...)".
 */
int error_set(struct error *error, int code, const char *format, ...) GMB_PRINTF(3, 4);

/* Same as error_set(error, -ENOMEM, "out of memory"). error_oom_for() adds " for " and what the
 * memory is needed for. */
int error_oom(struct error *error);
int error_oom_for(struct error *error, const char *format, ...) GMB_PRINTF(2, 3);

/* Like error_set(), for a failure that the user can avoid by giving the export this key (a static
 * string), such as "readonly" or "mode=cached". The code that opens the export adds this advice to
 * the message in the syntax of its caller. */
int error_advise(struct error *error, int code, const char *key, const char *format, ...)
	GMB_PRINTF(4, 5);

/* Appends to the text. */
void error_add(struct error *error, const char *format, ...) GMB_PRINTF(2, 3);

/* Adds a further failure: its text behind "; ", and its code. */
void error_join(struct error *error, const struct error *further);

/* Prepends "text: " to the text. */
void error_prefix(struct error *error, const char *format, ...) GMB_PRINTF(2, 3);
