// SPDX-License-Identifier: Apache-2.0
/* The real ring: what no simulation shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "ring/ring.h"

/* Each turn takes one byte: enough for far more turns than fit into the timer's millisecond. */
static const char stock[100000];

struct reader {
	struct ring *ring;
	struct ring_file file;
	struct ring_op read_op;
	struct ring_op timer_op;
	bool passed;
	char byte;
};

static void read_done(struct ring_op *op, int result)
{
	struct reader *reader = (struct reader *)((char *)op - offsetof(struct reader, read_op));

	assert_int_equal(result, 1);
	if (!reader->passed) {
		ring_recv(reader->ring, op, reader->file, &reader->byte, 1, false, read_done);
	}
}

static void timer_done(struct ring_op *op, int result)
{
	struct reader *reader = (struct reader *)((char *)op - offsetof(struct reader, timer_op));

	assert_int_equal(result, 0);
	reader->passed = true;
}

/* Work that completes as it is submitted comes in every turn; a timer must pass all the same. */
static void run_beside_instant_work(uint32_t count, uint64_t wait_ns)
{
	struct ring_options options = { 0 };
	struct reader reader = { 0 };
	struct error error;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	assert_int_equal(write(fds[1], stock, sizeof(stock)), sizeof(stock));
	assert_int_equal(ring_create(&options, &reader.ring, &error), 0);
	ring_set_patience(reader.ring, count, wait_ns);
	reader.file = ring_file_add(reader.ring, fds[0]);
	ring_timer(reader.ring, &reader.timer_op, 1000000, timer_done);
	ring_recv(reader.ring, &reader.read_op, reader.file, &reader.byte, 1, false, read_done);
	for (int turns = 0; !reader.passed || reader.read_op.in_flight; turns++) {
		assert_true(turns < (int)sizeof(stock) - 1);
		ring_turn(reader.ring, true);
	}
	ring_file_remove(reader.ring, &reader.file);
	ring_destroy(reader.ring);
	close(fds[0]);
	close(fds[1]);
}

static void instant_work_does_not_keep_a_timer_waiting(void **state)
{
	(void)state;
	run_beside_instant_work(1, 0);
}

static void nor_does_it_with_patience(void **state)
{
	(void)state;
	run_beside_instant_work(64, 60000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(instant_work_does_not_keep_a_timer_waiting),
		cmocka_unit_test(nor_does_it_with_patience),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
