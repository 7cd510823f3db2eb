// SPDX-License-Identifier: Apache-2.0
/*
 * Which of some names a misspelt word was meant to be.
 *
 *	struct near near;
 *
 *	near_begin(&near, word);
 *	for each name: near_try(&near, name);
 *	near.name: the nearest, or NULL where none is near enough to be worth a word;
 *	near_text() says it
 *
 * The distance counts letters that are left out, added, replaced, or swapped with their neighbour;
 * one in three may be wrong, and three at most. A name that begins with the word is near as well.
 *
 * Threading: pure. Ownership: holds the word and the names while it is used. Errors: none.
 */
#pragma once

#include <stdint.h>

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
