// SPDX-License-Identifier: Apache-2.0
/* Reads of "gmblock trace" that the kernel answers with "again", which are repeated, not for ever;
 * and signals, which end it with what was measured. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab/lab.h"
#include "ring/ring.h"
#include "unit.h"

enum {
	FILE_BYTES = 1 << 20,
	READ_BYTES = 64 << 10,
	COUNT = 3,
};

/* What the next reads are told in place of being done. */
static int answer;
static uint32_t answers_left;
static uint32_t reads;
/* A signal that comes as this read is submitted; 0: none. */
static uint32_t signal_at;
/* Another one that comes when the read is submitted again; 0: none. */
static int signal_after;

void __real_ring_read(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct mem_ref memory, size_t len, uint64_t offset, ring_done_fn *done);
void __wrap_ring_read(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct mem_ref memory, size_t len, uint64_t offset, ring_done_fn *done);

void __wrap_ring_read(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct mem_ref memory, size_t len, uint64_t offset, ring_done_fn *done)
{
	reads++;
	if (reads == signal_at) {
		raise(SIGTERM);
	} else if (signal_at > 0 && reads == signal_at + 1 && signal_after != 0) {
		raise(signal_after);
	}
	if (answers_left > 0) {
		answers_left--;
		ring_defer(ring, op, answer, done);
	} else {
		__real_ring_read(ring, op, file, memory, len, offset, done);
	}
}

/* Traces one read of a file, which is told error count times first. */
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
		assert_int_equal(reads, 1 + count);
	}
	trace_result_fini(&result);
	close(fd);
	unlink(path);
	return rc;
}

TEST(test_a_read_that_says_again_is_repeated)
{
	static const int codes[] = { -EAGAIN, -EINTR };
	struct error error = { 0 };

	for (size_t i = 0; i < ARRAY_COUNT(codes); i++) {
		for (uint32_t count = 1; count < 10; count++) {
			assert_int_equal(trace(codes[i], count, &error), 0);
		}
	}
}

TEST(test_but_not_for_ever)
{
	static const int codes[] = { -EAGAIN, -EINTR };
	struct error error = { 0 };

	for (size_t i = 0; i < ARRAY_COUNT(codes); i++) {
		assert_int_equal(trace(codes[i], UINT32_MAX, &error), codes[i]);
		assert_non_null(strstr(error.text, strerror(-codes[i])));
	}
}

TEST(test_another_error_is_the_end_at_once)
{
	struct error error = { 0 };

	assert_int_equal(trace(-EIO, 1, &error), -EIO);
	assert_int_equal(reads, 1);
}

/* How many reads of each of two sizes are in the result when a signal comes as this read is
 * submitted. */
static void trace_until(uint32_t read, const uint32_t counts[2])
{
	char path[] = "/tmp/gmblock-trace-XXXXXX";
	int fd = mkstemp(path);
	struct trace_work work = {
		.path = path,
		.sizes = { READ_BYTES, READ_BYTES },
		.size_count = 2,
		.count = COUNT,
		.chunk_bytes = 4096,
		.marker = UINT64_C(0x1234567887654321),
		.cached = true,
	};
	struct trace_result result = { 0 };
	struct sigaction after;
	struct error error;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, FILE_BYTES), 0);
	answers_left = 0;
	reads = 0;
	signal_at = read;
	assert_int_equal(trace_run(&work, &result, &error), 0);
	signal_at = 0;
	assert_int_equal(result.read_count, counts[0] + counts[1]);
	assert_int_equal(reads, counts[0] + counts[1]);
	assert_int_equal(result.interrupted, counts[0] + counts[1] < 2 * COUNT);
	assert_int_equal(result.group_count, counts[1] > 0 ? 2 : 1);
	for (uint32_t i = 0; i < result.group_count; i++) {
		assert_int_equal(result.groups[i].count, counts[i]);
		assert_true(result.groups[i].typical < counts[i]);
	}
	assert_int_equal(sigaction(SIGTERM, NULL, &after), 0);
	assert_true(after.sa_handler == SIG_DFL);
	trace_result_fini(&result);
	close(fd);
	unlink(path);
}

TEST(test_a_signal_ends_it_after_the_read_under_way)
{
	trace_until(1, (uint32_t[]){ 1, 0 });
	trace_until(2, (uint32_t[]){ 2, 0 });
	trace_until(COUNT, (uint32_t[]){ COUNT, 0 });
	trace_until(COUNT + 1, (uint32_t[]){ COUNT, 1 });
	trace_until(2 * COUNT, (uint32_t[]){ COUNT, COUNT });
	trace_until(0, (uint32_t[]){ COUNT, COUNT });
}

TEST(test_a_signal_that_is_ignored_stays_so)
{
	assert_true(signal(SIGTERM, SIG_IGN) == SIG_DFL);
	signal_at = 1;
	assert_int_equal(trace(0, 0, NULL), 0);
	signal_at = 0;
	assert_true(signal(SIGTERM, SIG_DFL) == SIG_IGN);
}

/* How a process ends that is sent SIGTERM and then this. */
static int end_of_two_signals(int second, bool ignored)
{
	pid_t child = fork();
	int status = 0;

	if (child == 0) {
		(void)signal(second, ignored ? SIG_IGN : SIG_DFL);
		signal_at = 1;
		signal_after = second;
		_exit(trace(-EINTR, 1, NULL) == 0 ? 0 : 1);
	}
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

TEST(test_a_second_signal_ends_it_at_once)
{
	static const int numbers[] = { SIGINT, SIGTERM };
	int status;

	for (size_t i = 0; i < 2; i++) {
		status = end_of_two_signals(numbers[i], false);
		assert_true(WIFSIGNALED(status));
		assert_int_equal(WTERMSIG(status), numbers[i]);
	}
	/* One that was ignored before stays ignored. */
	assert_int_equal(end_of_two_signals(SIGINT, true), 0);
}
