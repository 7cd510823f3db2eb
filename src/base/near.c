// SPDX-License-Identifier: Apache-2.0
#include "base/near.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"

enum { WORD_BYTES_MAX = 63, MISTAKES_MAX = 3, PREFIX_BYTES_MIN = 3 };

void near_begin(struct near *near, const char *word)
{
	*near = (struct near){ .word = word, .distance = UINT32_MAX };
}

/*
 * rows[i][k] is the distance between the first i letters of a and the first k of b (optimal string
 * alignment); only the last three rows are kept.
 */
uint32_t near_distance(const char *a, const char *b)
{
	uint32_t rows[3][WORD_BYTES_MAX + 1];
	size_t a_bytes = strlen(a);
	size_t b_bytes = strlen(b);

	if (a_bytes > WORD_BYTES_MAX || b_bytes > WORD_BYTES_MAX) {
		return UINT32_MAX;
	}
	for (size_t i = 0; i <= a_bytes; i++) {
		uint32_t *row = rows[i % 3];
		const uint32_t *above = rows[(i + 2) % 3];
		const uint32_t *before = rows[(i + 1) % 3];

		for (size_t k = 0; k <= b_bytes; k++) {
			if (i == 0 || k == 0) {
				row[k] = (uint32_t)(i + k);
				continue;
			}
			row[k] = MIN(above[k], row[k - 1]) + 1;
			row[k] = MIN(row[k], above[k - 1] + (a[i - 1] != b[k - 1]));
			if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1]) {
				row[k] = MIN(row[k], before[k - 2] + 1);
			}
		}
	}
	return rows[a_bytes % 3][b_bytes];
}

void near_try(struct near *near, const char *name)
{
	size_t word_bytes = strlen(near->word);
	size_t longer = MAX(word_bytes, strlen(name));
	uint32_t mistakes_max = (uint32_t)MIN(longer / 3, (size_t)MISTAKES_MAX);
	uint32_t distance = near_distance(near->word, name);

	if (word_bytes >= PREFIX_BYTES_MIN && strncmp(near->word, name, word_bytes) == 0) {
		mistakes_max = UINT32_MAX - 1;
	}
	if (distance <= mistakes_max && distance < near->distance) {
		near->name = name;
		near->distance = distance;
	}
}

const char *near_text(const struct near *near, const char *prefix, char out[NEAR_TEXT_BYTES])
{
	out[0] = '\0';
	if (near->name != NULL) {
		snprintf(out, NEAR_TEXT_BYTES, "; did you mean '%s%s'?", prefix, near->name);
	}
	return out;
}
