// SPDX-License-Identifier: Apache-2.0
/* Reads of "gmblock trace" that the kernel answers with "again": they are repeated, not for ever.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/ring.h"
#include "tools/trace.h"

enum { FILE_BYTES = 1 << 20, READ_BYTES = 64 << 10, PART_BYTES = 16 << 10 };

/* What the next reads are told in place of being done. */
static int answer;
static uint32_t answers_left;
static uint32_t reads;

void __real_ring_read(struct ring *ring, struct ring_op *op, struct ring_file file, void *buf,
	size_t len, uint64_t offset, int buf_idx, ring_done_fn *done);
void __wrap_ring_read(struct ring *ring, struct ring_op *op, struct ring_file file, void *buf,
	size_t len, uint64_t offset, int buf_idx, ring_done_fn *done);

void __wrap_ring_read(struct ring *ring, struct ring_op *op, struct ring_file file, void *buf,
	size_t len, uint64_t offset, int buf_idx, ring_done_fn *done)
{
	reads++;
	if (answers_left > 0) {
		answers_left--;
		ring_defer(ring, op, answer, done);
	} else {
		__real_ring_read(ring, op, file, buf, len, offset, buf_idx, done);
	}
}

/* Traces one read of a file, of whose parts count are told error first. */
static int trace(int error_told, uint32_t count, struct error *error)
{
	char path[] = "/tmp/gmblock-trace-XXXXXX";
	int fd = mkstemp(path);
	struct trace_work work = {
		.path = path,
		.sizes = { READ_BYTES },
		.size_count = 1,
		.count = 1,
		.chunk_bytes = 4096,
		.part_bytes = PART_BYTES,
		.marker = UINT64_C(0x1234567887654321),
		.cached = true,
	};
	struct trace_result result = { 0 };
	int rc;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, FILE_BYTES), 0);
	answer = error_told;
	answers_left = count;
	reads = 0;
	rc = trace_run(&work, &result, error);
	if (rc == 0) {
		const struct trace_read *read = &result.groups[0].reads[0];

		assert_int_equal(read->part_count, READ_BYTES / PART_BYTES);
		assert_int_equal(reads, read->part_count + count);
		for (uint32_t i = 0; i < read->part_count; i++) {
			assert_true(read->parts[i].completed_ns > 0);
		}
	}
	trace_result_fini(&result);
	close(fd);
	unlink(path);
	return rc;
}

static void test_a_read_that_says_again_is_repeated(void **state)
{
	static const int codes[] = { -EAGAIN, -EINTR };
	struct error error = { 0 };

	(void)state;
	for (size_t i = 0; i < ARRAY_COUNT(codes); i++) {
		for (uint32_t count = 1; count < 10; count++) {
			assert_int_equal(trace(codes[i], count, &error), 0);
		}
	}
}

static void test_but_not_for_ever(void **state)
{
	static const int codes[] = { -EAGAIN, -EINTR };
	struct error error = { 0 };

	(void)state;
	for (size_t i = 0; i < ARRAY_COUNT(codes); i++) {
		assert_int_equal(trace(codes[i], UINT32_MAX, &error), codes[i]);
		assert_non_null(strstr(error.text, strerror(-codes[i])));
	}
}

static void test_another_error_is_the_end_at_once(void **state)
{
	struct error error = { 0 };

	(void)state;
	assert_int_equal(trace(-EIO, 1, &error), -EIO);
	assert_int_equal(reads, READ_BYTES / PART_BYTES);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_read_that_says_again_is_repeated),
		cmocka_unit_test(test_but_not_for_ever),
		cmocka_unit_test(test_another_error_is_the_end_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
