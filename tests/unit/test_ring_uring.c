// SPDX-License-Identifier: Apache-2.0
/* The real ring beside real threads and sockets; test_ring_contract.c has what both rings promise.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ring/ring.h"
#include "sockets.h"
#include "unit.h"

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

TEST(a_ring_is_restricted_or_it_is_told)
{
	struct ring_options options = { .is_restricted = true };
	struct error error = { 0 };
	struct ring *ring;

	assert_int_equal(ring_create(&options, &ring, &error), 0);
	assert_int_equal(ring_check_restricted(ring, &error), 0);
	ring_destroy(ring);
	options.is_restricted = false;
	assert_int_equal(ring_create(&options, &ring, &error), 0);
	assert_int_equal(ring_check_restricted(ring, &error), -EPERM);
	ring_destroy(ring);
}

/* Work that completes as it is submitted comes in every turn; a timer must pass all the same. */
static void run_beside_instant_work(uint32_t count, uint64_t wait_ns, uint64_t spin_ns)
{
	struct ring_options options = { 0 };
	struct reader reader = { 0 };
	struct error error;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	assert_int_equal(write(fds[1], stock, sizeof(stock)), sizeof(stock));
	assert_int_equal(ring_create(&options, &reader.ring, &error), 0);
	ring_set_batch(reader.ring, count, wait_ns);
	ring_set_spin(reader.ring, spin_ns);
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

TEST(instant_work_does_not_keep_a_timer_waiting)
{
	run_beside_instant_work(1, 0, 0);
}

TEST(nor_does_a_batch_wait)
{
	run_beside_instant_work(64, 60000, 0);
}

TEST(nor_does_it_when_spinning)
{
	run_beside_instant_work(1, 0, 50000);
}

enum { SENT = 1000 };

struct pair {
	struct ring *ring;
	struct ring_op recv_op;
	struct ring_file file;
	char byte;
	int received;
};

static void pair_received(struct ring_op *op, int result)
{
	struct pair *pair = (struct pair *)((char *)op - offsetof(struct pair, recv_op));

	pair->received += result;
	if (pair->received < SENT) {
		ring_recv(pair->ring, op, pair->file, &pair->byte, 1, false, pair_received);
	}
}

static void *send_bytes(void *argument)
{
	int fd = *(int *)argument;
	char byte = 'x';

	for (int i = 0; i < SENT; i++) {
		if (write(fd, &byte, 1) != 1) {
			return NULL;
		}
	}
	return NULL;
}

/* A spin longer than anything here takes, and one that always ends too early: nothing is lost. */
TEST(spinning_sees_what_others_send)
{
	static const uint64_t spins_ns[] = { UINT64_C(10000000000), 1 };

	for (size_t i = 0; i < ARRAY_COUNT(spins_ns); i++) {
		struct ring_options options = { 0 };
		struct pair pair = { 0 };
		struct error error;
		pthread_t thread;
		int fds[2];

		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
		assert_int_equal(ring_create(&options, &pair.ring, &error), 0);
		ring_set_spin(pair.ring, spins_ns[i]);
		pair.file = ring_file_add(pair.ring, fds[0]);
		pair_received(&pair.recv_op, 0);
		assert_int_equal(pthread_create(&thread, NULL, send_bytes, &fds[1]), 0);
		while (pair.received < SENT) {
			ring_turn(pair.ring, true);
		}
		pthread_join(thread, NULL);
		ring_file_remove(pair.ring, &pair.file);
		ring_destroy(pair.ring);
		close(fds[0]);
		close(fds[1]);
	}
}

static bool is_blocked(int signal)
{
	sigset_t mask;

	assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
	return sigismember(&mask, signal) == 1;
}

static int call_is_interrupted(struct ring_op *op)
{
	return is_blocked(SIGUSR1) && is_blocked(SIGTERM) ? 0 : -EINTR;
}

static int call_result = 1;

static void called(struct ring_op *op, int result)
{
	call_result = result;
}

/* The program's signals are for its own threads. */
TEST(calls_take_no_signals)
{
	struct ring_options options = { 0 };
	struct ring_op op = { 0 };
	struct error error;
	struct ring *ring;

	assert_int_equal(ring_create(&options, &ring, &error), 0);
	ring_call(ring, &op, call_is_interrupted, called);
	while (call_result > 0) {
		ring_turn(ring, true);
	}
	assert_int_equal(call_result, 0);
	assert_false(is_blocked(SIGUSR1));
	ring_destroy(ring);
}

static void keep_result(struct ring_op *op, int result)
{
	op->time_s = result; /* nothing else of a receive's */
}

static int receive(struct ring *ring, struct ring_file file, void *bytes, size_t len, bool whole)
{
	struct ring_op op = { 0 };

	ring_recv(ring, &op, file, bytes, len, whole, keep_result);
	while (op.in_flight) {
		ring_turn(ring, true);
	}
	return (int)op.time_s;
}

/* The other end of a pipe whose writing end is sent along, and closed here: it comes to its end
 * when the ring has got rid of what it received. */
static int send_pipe(int socket, const char *text)
{
	int pipe_fds[2];

	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
	assert_true(pass_fd(socket, pipe_fds[1], text, 0));
	close(pipe_fds[1]);
	return pipe_fds[0];
}

static void expect_end(int fd)
{
	char byte;

	assert_int_equal(read(fd, &byte, 1), 0);
	close(fd);
}

TEST(files_that_come_along_are_got_rid_of)
{
	struct ring_options options = { 0 };
	struct ring *ring;
	struct ring_file file;
	struct error error;
	char bytes[16];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	int fds[2];
	int pipe_fd;

	assert_int_equal(ring_create(&options, &ring, &error), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	file = ring_file_add(ring, fds[0]);
	assert_true(file.is_guarded);

	/* The whole, in several pieces, and a part. */
	assert_int_equal(write(fds[1], "abcd", 4), 4);
	assert_int_equal(receive(ring, file, bytes, 2, true), 2);
	assert_int_equal(receive(ring, file, bytes + 2, 16, false), 2);
	assert_memory_equal(bytes, "abcd", 4);

	pipe_fd = send_pipe(fds[1], "first");
	assert_int_equal(receive(ring, file, bytes, 16, false), -EPERM);
	expect_end(pipe_fd);

	assert_int_equal(write(fds[1], "some", 4), 4);
	pipe_fd = send_pipe(fds[1], "in the middle");
	assert_int_equal(receive(ring, file, bytes, 16, true), -EPERM);
	expect_end(pipe_fd);
	assert_true(ring_recvmsg_now(ring, file, &message) > 0); /* what is left of it */

	pipe_fd = send_pipe(fds[1], "at once");
	assert_int_equal(ring_recvmsg_now(ring, file, &message), -EPERM);
	expect_end(pipe_fd);
	assert_int_equal(ring_recvmsg_now(ring, file, &message), -EAGAIN);

	/* Nobody receives it. */
	pipe_fd = send_pipe(fds[1], "last");
	assert_int_equal(write(fds[1], "end", 3), 3);
	ring_file_remove(ring, &file);
	ring_socket_close(ring, fds[0]);
	expect_end(pipe_fd);
	close(fds[1]);
	ring_destroy(ring);
}

/* What has come makes it go on, but not when it is to end. */
TEST(a_receive_that_is_cancelled_does_not_wait_for_the_rest)
{
	struct ring_options options = { 0 };
	struct ring_op op = { 0 };
	struct ring *ring;
	struct ring_file file;
	struct error error;
	char bytes[16];
	int fds[2];

	assert_int_equal(ring_create(&options, &ring, &error), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	file = ring_file_add(ring, fds[0]);
	assert_true(file.is_guarded);

	/* The kernel has done the first piece when it hears that. */
	assert_int_equal(write(fds[1], "some", 4), 4);
	ring_recv(ring, &op, file, bytes, sizeof(bytes), true, keep_result);
	ring_cancel(ring, &op);
	while (op.in_flight) {
		ring_turn(ring, true);
	}
	assert_int_equal(op.time_s, 4);
	assert_memory_equal(bytes, "some", 4);

	ring_file_remove(ring, &file);
	close(fds[0]);
	close(fds[1]);
	ring_destroy(ring);
}

static void nothing_done(struct ring_op *op, int result)
{
}

/* The kernel runs only some of the deferred work of a ring in each system call. */
TEST(all_that_has_arrived_completes_in_one_turn)
{
	enum { COUNT = 300 };
	struct counted {
		struct ring_op op;
		struct ring_file file;
		int peer;
		char byte;
	};
	struct counted *ops = calloc(COUNT, sizeof(*ops));
	struct ring_options options = { 0 };
	struct ring *ring;
	struct error error;

	assert_non_null(ops);
	assert_int_equal(ring_create(&options, &ring, &error), 0);
	for (int i = 0; i < COUNT; i++) {
		int fds[2];

		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
		ops[i].file = ring_file_add(ring, fds[0]);
		ops[i].peer = fds[1];
		ring_recv(ring, &ops[i].op, ops[i].file, &ops[i].byte, 1, false, nothing_done);
	}
	assert_int_equal(ring_turn(ring, false), 0);
	for (int i = 0; i < COUNT; i++) {
		assert_int_equal(write(ops[i].peer, "x", 1), 1);
	}
	assert_int_equal(ring_turn(ring, true), COUNT);
	for (int i = 0; i < COUNT; i++) {
		int fd = ops[i].file.fd;

		ring_file_remove(ring, &ops[i].file);
		close(fd);
		close(ops[i].peer);
	}
	ring_destroy(ring);
	free(ops);
}

/* A source whose peer signals an eventfd, for example the call eventfd of vhost-user-blk. */
struct eventfd_source {
	struct ring_source source;
	int count;
	bool is_removed;
};

static int eventfd_source_poll(struct ring_source *source)
{
	struct eventfd_source *events = container_of(source, struct eventfd_source, source);
	uint64_t number;
	bool found = read(source->fd, &number, sizeof(number)) == sizeof(number);

	events->count += found;
	return found;
}

static bool eventfd_source_arm(struct ring_source *source)
{
	struct pollfd entry = { .fd = source->fd, .events = POLLIN };

	return poll(&entry, 1, 0) == 0;
}

static void eventfd_source_removed(struct ring_source *source)
{
	container_of(source, struct eventfd_source, source)->is_removed = true;
}

TEST(each_signal_of_an_eventfd_wakes_another_loop)
{
	const uint64_t one = 1;
	struct ring_options options = { 0 };
	struct eventfd_source events[2] = { 0 };
	struct pollfd entry = { .events = POLLIN };
	struct error error;
	struct ring *ring;

	assert_int_equal(ring_create(&options, &ring, &error), 0);
	for (int i = 0; i < 2; i++) { /* added before the descriptor exists, and after */
		events[i].source = (struct ring_source){ .poll = eventfd_source_poll,
			.arm = eventfd_source_arm,
			.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
		ring_source_add(ring, &events[i].source);
		entry.fd = ring_poll_fd(ring);
	}
	for (int i = 0; i < 20; i++) {
		struct eventfd_source *signalled = &events[i % 2];

		while (ring_turn(ring, false) > 0) {
		}
		ring_flush(ring);
		assert_int_equal(write(signalled->source.fd, &one, sizeof(one)), sizeof(one));
		while (signalled->count <= i / 2) {
			assert_int_equal(poll(&entry, 1, 60000), 1);
			(void)ring_turn(ring, false);
			ring_flush(ring);
		}
	}
	for (int i = 0; i < 2; i++) {
		ring_source_remove(ring, &events[i].source, eventfd_source_removed);
		while (!events[i].is_removed) {
			(void)ring_turn(ring, true);
		}
	}
	/* Sources that were removed wake nobody. */
	while (poll(&entry, 1, 0) > 0) {
		(void)ring_turn(ring, false);
		ring_flush(ring);
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(write(events[i].source.fd, &one, sizeof(one)), sizeof(one));
		assert_int_equal(poll(&entry, 1, 0), 0);
		close(events[i].source.fd);
	}
	ring_destroy(ring);
}
