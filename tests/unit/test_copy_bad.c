// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>

#include "tools/copy.h"
#include "unit.h"

enum { BLOCKS = 200, ROUNDS = 300 };

static const struct error reason = { .code = -EIO, .text = "lost" };

/* What the module asks of the others, and these tests do not. */
void copy_end_submit(struct copy_end *end, struct copy_io *io)
{
	abort();
}

void copy_loop_moves(struct copy_loop *loop, uint64_t bytes)
{
	abort();
}

bool copy_end_is_open(const struct copy_end *end, int fd)
{
	return false;
}

/* The ranges are those of the blocks, each as long as can be, in order. */
static void check(const struct copy_bad *bad, const bool lost[BLOCKS])
{
	uint64_t bytes = 0;
	size_t at = 0;

	for (uint64_t i = 0; i < BLOCKS; i++) {
		if (!lost[i]) {
			continue;
		}
		bytes++;
		if (i == 0 || !lost[i - 1]) {
			assert_true(at < bad->count);
			assert_int_equal(bad->ranges[at].start, i);
		}
		if (i == BLOCKS - 1 || !lost[i + 1]) {
			assert_int_equal(bad->ranges[at++].end, i + 1);
		}
	}
	assert_int_equal(bad->count, at);
	assert_int_equal(bad->bytes, bytes);
}

TEST(test_ranges_come_in_any_order)
{
	srandom(1);
	for (int round = 0; round < ROUNDS; round++) {
		struct copy_bad bad = { 0 };
		bool lost[BLOCKS] = { false };

		for (int tries = 0; tries < BLOCKS; tries++) {
			uint64_t start = (uint64_t)random() % BLOCKS;
			uint64_t end = start;
			uint64_t last = MIN(start + (uint64_t)random() % 5, (uint64_t)BLOCKS);

			while (end < last && !lost[end]) {
				lost[end++] = true;
			}
			if (end > start) {
				assert_int_equal(copy_bad_add(&bad, start, end, &reason, NULL), 0);
			}
		}
		check(&bad, lost);
		copy_bad_close(&bad);
	}
}

TEST(test_the_first_has_its_reason)
{
	static const uint64_t starts[] = { 50, 70, 20, 60, 10, 30 };
	static const int firsts[] = { -50, -50, -20, -20, -10, -10 };
	struct copy_bad bad = { 0 };

	for (size_t i = 0; i < ARRAY_COUNT(starts); i++) {
		const struct error why = { .code = -(int)starts[i] };

		assert_int_equal(copy_bad_add(&bad, starts[i], starts[i] + 10, &why, NULL), 0);
		assert_int_equal(bad.first.code, firsts[i]);
	}
	assert_int_equal(bad.count, 2);
	copy_bad_close(&bad);
}

TEST(test_there_may_be_too_many)
{
	struct copy_bad bad = { 0 };
	struct error error;
	uint64_t at = 0;

	while (copy_bad_add(&bad, at, at + 1, &reason, &error) == 0) {
		at += 2;
		assert_true(at <= 4 << 20);
	}
	assert_int_equal(error.code, -E2BIG);
	assert_int_equal(bad.count, 1 << 20);
	assert_int_equal(bad.bytes, bad.count);
	copy_bad_close(&bad);
}
