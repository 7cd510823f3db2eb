// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Ends text with "..." if snprintf() had to cut the text. wanted: snprintf()'s return value. */
static void mark_if_cut(char *text, int wanted)
{
	if (wanted >= ERROR_TEXT_BYTES) {
		memcpy(text + ERROR_TEXT_BYTES - 4, "...", 4);
	}
}

static int base_error_set(
	struct error *error, int code, const char *key, const char *format, va_list args)
{
	GMB_ASSERT(code < 0);
	if (error == NULL) {
		return code;
	}
	error->code = code;
	error->key = key;
	mark_if_cut(error->text, vsnprintf(error->text, sizeof(error->text), format, args));
	return code;
}

int error_set(struct error *error, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	base_error_set(error, code, NULL, format, args);
	va_end(args);
	return code;
}

int error_oom(struct error *error)
{
	return error_set(error, -ENOMEM, "out of memory");
}

int error_oom_for(struct error *error, const char *format, ...)
{
	char purpose[ERROR_TEXT_BYTES];
	va_list args;

	va_start(args, format);
	vsnprintf(purpose, sizeof(purpose), format, args);
	va_end(args);
	return error_set(error, -ENOMEM, "out of memory for %s", purpose);
}

int error_advise(struct error *error, int code, const char *key, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	base_error_set(error, code, key, format, args);
	va_end(args);
	return code;
}

void error_add(struct error *error, const char *format, ...)
{
	size_t bytes;
	va_list args;

	if (error == NULL) {
		return;
	}
	bytes = strlen(error->text);
	va_start(args, format);
	mark_if_cut(error->text, (int)bytes + vsnprintf(error->text + bytes,
						      sizeof(error->text) - bytes, format, args));
	va_end(args);
}

void error_join(struct error *error, const struct error *further)
{
	error_add(error, "%s%s", error->text[0] != '\0' ? "; " : "", further->text);
	error->code = further->code;
}

void error_prefix(struct error *error, const char *format, ...)
{
	char prefix[ERROR_TEXT_BYTES];
	char old[ERROR_TEXT_BYTES];
	va_list args;

	if (error == NULL) {
		return;
	}
	va_start(args, format);
	vsnprintf(prefix, sizeof(prefix), format, args);
	va_end(args);
	memcpy(old, error->text, sizeof(old));
	mark_if_cut(error->text, snprintf(error->text, sizeof(error->text), "%s: %s", prefix, old));
}
