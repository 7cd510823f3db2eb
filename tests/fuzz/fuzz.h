// SPDX-License-Identifier: Apache-2.0
/*
 * What all fuzz targets share: the entry point that libFuzzer and replay.c call, and a copy of the
 * input that shows reads past its end.
 *
 * Threading: one thread. Ownership: stated per function. Errors: a target aborts when the code
 * under test broke a promise; sanitizers find the rest.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"

/* Runs one input. Always returns 0: every input is interesting. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A terminated copy in exactly as many bytes as it needs; free() it. */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	GMB_ASSERT(text != NULL);
	if (size > 0) {
		memcpy(text, data, size);
	}
	text[size] = '\0';
	return text;
}
