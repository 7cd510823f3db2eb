// SPDX-License-Identifier: Apache-2.0
/* The ring contract: sockets, waiting for batches of them, and a ring in another loop. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ring_contract.h"

enum { STREAM_BYTES = 2 << 20 };

/* --- sockets --------------------------------------------------------------------------------- */

struct sockets {
	int fds[2];
	struct ring_file a; /* in the ring's table */
	struct ring_file b;
};

static struct sockets sockets_open(struct ring *ring)
{
	struct sockets sockets;

	world_pair(sockets.fds);
	sockets.a = ring_file_add(ring, sockets.fds[0]);
	sockets.b = plain(sockets.fds[1]);
	return sockets;
}

static void sockets_close(struct ring *ring, struct sockets *sockets)
{
	ring_file_remove(ring, &sockets->a);
	assert_int_equal(sockets->a.slot, -1);
	ring_socket_close(ring, sockets->fds[0]);
	if (sockets->fds[1] >= 0) {
		world_close(sockets->fds[1], WORLD_SOCKET);
	}
}

static void send_text(struct ring *ring, struct ring_file file, const char *text)
{
	struct waiter waiter = { 0 };
	size_t sent = 0;

	while (sent < strlen(text)) {
		int result;

		ring_send(ring, &waiter.op, file, text + sent, strlen(text) - sent, waiter_done);
		result = wait_for(ring, &waiter);
		assert_in_range(result, 1, strlen(text) - sent);
		sent += (size_t)result;
	}
}

CONTRACT(a_receive_waits_for_all_if_asked)
{
	struct sockets sockets = sockets_open(ring);
	struct waiter waiter = { 0 };
	char bytes[16] = { 0 };

	ring_recv(ring, &waiter.op, sockets.a, bytes, 10, true, waiter_done);
	settle(ring);
	send_text(ring, sockets.b, "01234");
	settle(ring);
	assert_int_equal(waiter.calls, 0);
	send_text(ring, sockets.b, "56789abc");
	while (waiter.calls == 0) {
		(void)ring_turn(ring, true);
	}
	assert_int_equal(waiter.result, 10);
	assert_memory_equal(bytes, "0123456789", 10);
	/* What is left is fewer than asked: the end of the stream ends it. */
	ring_recv(ring, &waiter.op, sockets.a, bytes, 10, true, waiter_done);
	ring_socket_shutdown_send(ring, sockets.b);
	assert_int_equal(wait_for(ring, &waiter), 3);
	assert_memory_equal(bytes, "abc", 3);
	ring_recv(ring, &waiter.op, sockets.a, bytes, 10, true, waiter_done);
	assert_int_equal(wait_for(ring, &waiter), 0);
	sockets_close(ring, &sockets);
}

CONTRACT(a_receive_takes_what_there_is)
{
	struct sockets sockets = sockets_open(ring);
	struct waiter waiter = { 0 };
	char bytes[16] = { 0 };
	size_t got = 0;

	ring_recv(ring, &waiter.op, sockets.a, bytes, sizeof(bytes), false, waiter_done);
	settle(ring);
	assert_int_equal(waiter.calls, 0);
	send_text(ring, sockets.b, "hello");
	while (waiter.calls == 0) {
		(void)ring_turn(ring, true);
	}
	while (got < 5) {
		assert_in_range(waiter.result, 1, 5 - got);
		got += (size_t)waiter.result;
		if (got < 5) {
			ring_recv(ring, &waiter.op, sockets.a, bytes + got, 5 - got, false,
				waiter_done);
			(void)wait_for(ring, &waiter);
		}
	}
	assert_memory_equal(bytes, "hello", 5);
	sockets_close(ring, &sockets);
}

/* Far more than a socket holds, both ends under way at once, out of and into scatter lists. */
struct stream {
	struct waiter waiter;
	struct iovec iov[3];
	struct msghdr message;
	size_t moved;
	int least; /* the shortest result so far */
	uint8_t *bytes;
};

static struct msghdr *stream_next(struct stream *stream)
{
	size_t left = STREAM_BYTES - stream->moved;
	uint8_t *at = stream->bytes + stream->moved;
	size_t first = left / 3;

	stream->iov[0] = (struct iovec){ .iov_base = at, .iov_len = first };
	stream->iov[1] = (struct iovec){ .iov_base = at + first, .iov_len = first };
	stream->iov[2] = (struct iovec){ .iov_base = at + 2 * first, .iov_len = left - 2 * first };
	stream->message = (struct msghdr){ .msg_iov = stream->iov, .msg_iovlen = 3 };
	return &stream->message;
}

CONTRACT(a_stream_keeps_bytes_and_order)
{
	struct sockets sockets = sockets_open(ring);
	struct stream out = { .bytes = malloc(STREAM_BYTES) };
	struct stream in = { .bytes = malloc(STREAM_BYTES) };
	bool plain_calls = false;

	assert_non_null(out.bytes);
	assert_non_null(in.bytes);
	for (size_t i = 0; i < STREAM_BYTES; i++) {
		out.bytes[i] = pattern(i);
	}
	while (in.moved < STREAM_BYTES) {
		if (!out.waiter.op.in_flight && out.moved < STREAM_BYTES) {
			if (plain_calls) {
				ring_send(ring, &out.waiter.op, sockets.a, out.bytes + out.moved,
					STREAM_BYTES - out.moved, waiter_done);
			} else {
				ring_sendmsg(ring, &out.waiter.op, sockets.a, stream_next(&out),
					waiter_done);
			}
		}
		if (!in.waiter.op.in_flight) {
			ring_recvmsg(ring, &in.waiter.op, sockets.b, stream_next(&in), false,
				waiter_done);
		}
		plain_calls = !plain_calls;
		while (out.waiter.calls == 0 && in.waiter.calls == 0) {
			(void)ring_turn(ring, true);
		}
		if (out.waiter.calls > 0) {
			out.waiter.calls = 0;
			assert_in_range(out.waiter.result, 1, STREAM_BYTES - out.moved);
			out.moved += (size_t)out.waiter.result;
		}
		if (in.waiter.calls > 0) {
			in.waiter.calls = 0;
			assert_in_range(in.waiter.result, 1, STREAM_BYTES - in.moved);
			in.moved += (size_t)in.waiter.result;
		}
	}
	assert_memory_equal(in.bytes, out.bytes, STREAM_BYTES);
	free(in.bytes);
	free(out.bytes);
	sockets_close(ring, &sockets);
}

CONTRACT(a_send_to_nobody_fails_without_a_signal)
{
	struct sockets sockets = sockets_open(ring);
	struct waiter waiter = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t) "x", .iov_len = 1 };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	world_close(sockets.fds[1], WORLD_SOCKET);
	sockets.fds[1] = -1;
	settle(ring);
	/* A connection over a network takes some before it hears of that. */
	do {
		ring_send(ring, &waiter.op, sockets.a, "x", 1, waiter_done);
	} while (wait_for(ring, &waiter) == 1 && waiter.calls < 100);
	assert_true(waiter.result == -EPIPE || waiter.result == -ECONNRESET);
	ring_sendmsg(ring, &waiter.op, sockets.a, &message, waiter_done);
	assert_int_equal(wait_for(ring, &waiter), -EPIPE);
	assert_int_equal(ring_sendmsg_now(ring, sockets.a, &message), -EPIPE);
	sockets_close(ring, &sockets);
}

CONTRACT(shutdown_ends_what_is_pending)
{
	for (int way = 0; way < 2; way++) {
		struct sockets sockets = sockets_open(ring);
		struct waiter waiter = { 0 };
		struct waiter peer = { 0 };
		char byte;
		char other;

		ring_recv(ring, &waiter.op, sockets.a, &byte, 1, false, waiter_done);
		ring_recv(ring, &peer.op, sockets.b, &other, 1, true, waiter_done);
		settle(ring);
		assert_int_equal(waiter.calls + peer.calls, 0);
		if (way == 0) {
			ring_socket_shutdown(ring, sockets.a);
		} else {
			ring_socket_abort(ring, sockets.a);
		}
		while (waiter.calls == 0 || peer.calls == 0) {
			(void)ring_turn(ring, true);
		}
		assert_true(waiter.result == 0 || waiter.result == -ECONNRESET);
		assert_true(peer.result == 0 || peer.result == -ECONNRESET);
		sockets_close(ring, &sockets);
	}
}

CONTRACT(half_a_connection_can_end)
{
	struct sockets sockets = sockets_open(ring);
	struct waiter waiter = { 0 };
	char bytes[4];

	ring_socket_shutdown_send(ring, sockets.a);
	ring_recv(ring, &waiter.op, sockets.b, bytes, 4, true, waiter_done);
	assert_int_equal(wait_for(ring, &waiter), 0);
	send_text(ring, sockets.b, "more");
	ring_recv(ring, &waiter.op, sockets.a, bytes, 4, true, waiter_done);
	assert_int_equal(wait_for(ring, &waiter), 4);
	assert_memory_equal(bytes, "more", 4);
	sockets_close(ring, &sockets);
}

CONTRACT(a_cancelled_receive_loses_no_bytes)
{
	struct sockets sockets = sockets_open(ring);
	struct waiter waiter = { 0 };
	char bytes[4];
	struct iovec iov = { .iov_base = bytes, .iov_len = 4 };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	for (int way = 0; way < 2; way++) {
		if (way == 0) {
			ring_recv(ring, &waiter.op, sockets.a, bytes, 4, false, waiter_done);
		} else {
			ring_recvmsg(ring, &waiter.op, sockets.a, &message, false, waiter_done);
		}
		(void)ring_turn(ring, false);
		ring_cancel(ring, &waiter.op);
		assert_int_equal(wait_for(ring, &waiter), -ECANCELED);
	}
	send_text(ring, sockets.b, "wxyz");
	ring_recv(ring, &waiter.op, sockets.a, bytes, 4, true, waiter_done);
	assert_int_equal(wait_for(ring, &waiter), 4);
	assert_memory_equal(bytes, "wxyz", 4);
	sockets_close(ring, &sockets);
}

CONTRACT(accept_gives_connections_and_can_be_cancelled)
{
	int listener = world_listen();
	struct ring_file file = ring_file_add(ring, listener);
	struct waiter waiter = { 0 };

	for (int i = 0; i < 3; i++) {
		int theirs;
		int ours;

		ring_accept(ring, &waiter.op, file, waiter_done);
		(void)ring_turn(ring, false);
		theirs = world_connect(listener);
		ours = wait_for(ring, &waiter);
		assert_true(ours >= 0);
		if (world_kind == WORLD_URING) {
			assert_int_equal(fcntl(ours, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
		}
		send_text(ring, plain(ours), "hello");
		ring_socket_close(ring, ours);
		world_close(theirs, WORLD_SOCKET);
	}
	ring_accept(ring, &waiter.op, file, waiter_done);
	(void)ring_turn(ring, false);
	ring_cancel(ring, &waiter.op);
	assert_int_equal(wait_for(ring, &waiter), -ECANCELED);
	ring_file_remove(ring, &file);
	world_close(listener, WORLD_LISTENER);
}

/* "At once" may say that it would block when it need not; it may not say what is not so. */
static ssize_t recv_now(struct ring *ring, struct ring_file file, char *bytes, size_t len)
{
	struct iovec iov = { .iov_base = bytes, .iov_len = len };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	return ring_recvmsg_now(ring, file, &message);
}

CONTRACT(what_is_tried_at_once_does_not_wait)
{
	struct sockets sockets = sockets_open(ring);
	uint64_t direct = ring_counters(ring)->direct;
	struct iovec iov = { .iov_len = 64 << 10 };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	char bytes[8];
	ssize_t sent;
	size_t full = 0;
	size_t drained = 0;

	assert_int_equal(recv_now(ring, sockets.a, bytes, 8), -EAGAIN);
	assert_true(ring_counters(ring)->direct > direct);
	iov.iov_base = calloc(1, iov.iov_len);
	assert_non_null(iov.iov_base);
	/* Until the socket is full. */
	for (int refused = 0; refused < 50;) {
		sent = ring_sendmsg_now(ring, sockets.b, &message);
		assert_true(sent > 0 || sent == -EAGAIN);
		refused = sent > 0 ? 0 : refused + 1;
		full += sent > 0 ? (size_t)sent : 0;
		settle(ring);
	}
	assert_true(full > 0);
	ring_socket_shutdown_send(ring, sockets.b);
	for (ssize_t got = -EAGAIN; got != 0;) {
		char *into = iov.iov_base;

		settle(ring);
		got = recv_now(ring, sockets.a, into, iov.iov_len);
		assert_true(got >= 0 || got == -EAGAIN);
		drained += got > 0 ? (size_t)got : 0;
	}
	assert_int_equal(drained, full);
	free(iov.iov_base);
	sockets_close(ring, &sockets);
}

CONTRACT(poll_tells_what_is_ready)
{
	struct sockets sockets = sockets_open(ring);
	struct waiter in = { 0 };
	struct waiter out = { 0 };
	char byte;

	ring_poll(ring, &in.op, sockets.fds[0], POLLIN, waiter_done);
	ring_poll(ring, &out.op, sockets.fds[0], POLLOUT, waiter_done);
	assert_true((wait_for(ring, &out) & POLLOUT) != 0);
	settle(ring);
	assert_int_equal(in.calls, 0);
	send_text(ring, sockets.b, "x");
	while (in.calls == 0) {
		(void)ring_turn(ring, true);
	}
	assert_true((in.result & POLLIN) != 0);
	ring_recv(ring, &in.op, sockets.a, &byte, 1, true, waiter_done);
	assert_int_equal(wait_for(ring, &in), 1);
	ring_poll(ring, &in.op, sockets.fds[0], POLLIN, waiter_done);
	(void)ring_turn(ring, false);
	ring_cancel(ring, &in.op);
	assert_int_equal(wait_for(ring, &in), -ECANCELED);
	sockets_close(ring, &sockets);
}

CONTRACT(traffic_is_counted_for_tcp_only)
{
	struct sockets sockets = sockets_open(ring);
	struct ring_traffic traffic;

	assert_false(ring_socket_traffic(ring, sockets.a, &traffic));
	sockets_close(ring, &sockets);
}

CONTRACT(what_a_peer_has_taken_is_known)
{
	struct sockets sockets = sockets_open(ring);
	struct waiter waiter = { 0 };
	uint64_t before = 0;
	uint64_t after = 0;
	char bytes[16];

	assert_true(ring_socket_unacked(ring, sockets.b, &before));
	assert_int_equal(before, 0);
	send_text(ring, sockets.b, "0123456789");
	assert_true(ring_socket_unacked(ring, sockets.b, &before));
	assert_true(before >= 10);
	ring_recv(ring, &waiter.op, sockets.a, bytes, 10, true, waiter_done);
	while (waiter.calls == 0) {
		(void)ring_turn(ring, true);
	}
	assert_true(ring_socket_unacked(ring, sockets.b, &after));
	assert_int_equal(after, 0);
	sockets_close(ring, &sockets);
}

/* Receives a byte on each of four connections, so that their completions are what a batch counts:
 * a timer ends every wait by itself. */
struct group {
	struct ring *ring;
	struct sockets sockets[4];
	struct waiter waiters[4];
	char bytes[4];
	int count; /* how many get their byte */
};

static void group_send(void *context)
{
	struct group *group = context;

	for (int i = 0; i < group->count; i++) {
		world_send_byte(group->sockets[i].fds[1]);
	}
}

/* One turn in which `count` bytes arrive soon: how many completions it ran, and how long it took.
 */
static int group_turn(struct group *group, int count, uint64_t *taken_ns)
{
	uint64_t from_ns;
	int ran;

	for (int i = 0; i < count; i++) {
		if (!group->waiters[i].op.in_flight) {
			ring_recv(group->ring, &group->waiters[i].op, group->sockets[i].a,
				&group->bytes[i], 1, false, waiter_done);
		}
	}
	settle(group->ring);
	group->count = count;
	world_later(group_send, group);
	from_ns = ring_now_ns(group->ring);
	ran = ring_turn(group->ring, true);
	*taken_ns = ring_now_ns(group->ring) - from_ns;
	world_join();
	for (int i = 0; i < count; i++) {
		while (group->waiters[i].op.in_flight) {
			(void)ring_turn(group->ring, true);
		}
	}
	return ran;
}

/* The simulation may cut any batch short. */
static void check_ran(int ran, int expected)
{
	assert_in_range(ran, world_kind == WORLD_SIM ? 1 : expected, expected);
}

CONTRACT(a_batch_gathers_completions)
{
	struct group group = { .ring = ring };
	uint64_t taken_ns;

	if (!ring_features(ring)->min_timeout) {
		print_message("[  NOTE    ] this kernel cannot wait for a batch (6.12)\n");
		return;
	}
	for (int i = 0; i < 4; i++) {
		group.sockets[i] = sockets_open(ring);
	}
	/* Fewer than the batch: only once its time has passed. */
	ring_set_batch(ring, 4, 100 * MS_NS);
	check_ran(group_turn(&group, 2, &taken_ns), 2);
	assert_true(taken_ns >= 99 * MS_NS);
	/* As many: at once. A machine that is busy elsewhere gets another try. */
	ring_set_batch(ring, 4, 900 * MS_NS);
	taken_ns = UINT64_MAX;
	for (int attempt = 0; attempt < 5 && taken_ns >= 900 * MS_NS; attempt++) {
		check_ran(group_turn(&group, 4, &taken_ns), 4);
	}
	assert_true(taken_ns < 900 * MS_NS);
	/* Nothing at all for longer than the batch may take: it goes on waiting. */
	ring_set_batch(ring, 4, 1000);
	check_ran(group_turn(&group, 1, &taken_ns), 1);
	/* Neither a timer's end, a limited turn nor a deferred operation waits for a batch. */
	ring_set_batch(ring, 4, 3600000 * MS_NS);
	ring_timer(ring, &group.waiters[0].op, MS_NS, waiter_done);
	assert_int_equal(ring_turn(ring, true), 1);
	ring_defer(ring, &group.waiters[0].op, 0, waiter_done);
	assert_int_equal(ring_turn(ring, true), 1);
	ring_recv(
		ring, &group.waiters[0].op, group.sockets[0].a, group.bytes, 1, false, waiter_done);
	(void)ring_turn(ring, false);
	world_send_byte(group.sockets[0].fds[1]);
	assert_int_equal(ring_turn_limited(ring, 3600000 * MS_NS), 1);
	ring_set_batch(ring, 1, 0);
	check_ran(group_turn(&group, 1, &taken_ns), 1);
	for (int i = 0; i < 4; i++) {
		sockets_close(ring, &group.sockets[i]);
	}
}

/* --- a ring in somebody else's loop ---------------------------------------------------------- */

/* Waits in another ring until our descriptor is readable. */
static void wait_readable(struct ring *outer, struct ring *ring)
{
	struct waiter waiter = { 0 };

	ring_poll(outer, &waiter.op, ring_poll_fd(ring), POLLIN, waiter_done);
	assert_true((wait_for(outer, &waiter) & POLLIN) != 0);
}

static void drain(struct ring *ring)
{
	while (ring_turn_limited(ring, 0) > 0) {
	}
	ring_flush(ring);
}

/* The kernel postpones the signal of a wake-up (see wake() in ring/calls.c), so that it can come
 * after the turn which ran the message: once for each message at most. */
static void check_not_readable(struct ring *outer, struct ring *ring, int messages)
{
	for (int late = 0; late <= messages; late++) {
		struct waiter waiter = { 0 };

		ring_poll(outer, &waiter.op, ring_poll_fd(ring), POLLIN, waiter_done);
		if (ring_turn_limited(outer, MS_NS) == 0) {
			ring_cancel(outer, &waiter.op);
			if (wait_for(outer, &waiter) == -ECANCELED) {
				return;
			}
		}
		drain(ring);
	}
	fail_msg("the descriptor stays readable");
}

CONTRACT(its_descriptor_wakes_another_loop)
{
	struct ring *outer = contract_ring(NULL);
	struct sockets sockets = sockets_open(ring);
	struct waiter waiter = { 0 };
	struct waiter poll = { 0 };
	char byte;

	mail_ring = ring;
	/* What is there before it is asked for counts. */
	ring_defer(ring, &waiter.op, 0, waiter_done);
	assert_true(ring_poll_fd(ring) >= 0);
	wait_readable(outer, ring);
	assert_int_equal(wait_for(ring, &waiter), 0);
	waiter.calls = 0;
	assert_int_equal(ring_poll_fd(ring), ring_poll_fd(ring));
	for (int round = 0; round < 20; round++) {
		ring_recv(ring, &waiter.op, sockets.a, &byte, 1, false, waiter_done);
		drain(ring);
		/* Nothing to do yet. */
		ring_poll(outer, &poll.op, ring_poll_fd(ring), POLLIN, waiter_done);
		assert_int_equal(ring_turn_limited(outer, MS_NS), 0);
		if (round % 2 == 0) {
			world_send_byte(sockets.fds[1]);
			assert_true((wait_for(outer, &poll) & POLLIN) != 0);
			while (waiter.calls == 0) {
				wait_readable(outer, ring);
				drain(ring);
			}
			assert_int_equal(waiter.result, 1);
		} else {
			ring_cancel(outer, &poll.op);
			assert_int_equal(wait_for(outer, &poll), -ECANCELED);
			ring_cancel(ring, &waiter.op);
			assert_int_equal(wait_for(ring, &waiter), -ECANCELED);
		}
		waiter.calls = 0;
	}
	/* Messages, what was deferred, and what only the owner knows. */
	drain(ring);
	mail_delivered = 0;
	world_later(mail_post_all, NULL);
	while (mail_delivered < 100) {
		wait_readable(outer, ring);
		drain(ring);
	}
	world_join(); /* it may have to wake the ring yet */
	drain(ring);
	check_not_readable(outer, ring, mail_delivered);
	ring_defer(ring, &waiter.op, 0, waiter_done);
	ring_flush(ring);
	wait_readable(outer, ring);
	assert_int_equal(ring_turn_limited(ring, 0), 1);
	drain(ring);
	check_not_readable(outer, ring, mail_delivered);
	ring_poll_again(ring);
	wait_readable(outer, ring);
	sockets_close(ring, &sockets);
	ring_destroy(outer);
}
