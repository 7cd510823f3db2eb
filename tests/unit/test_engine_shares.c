// SPDX-License-Identifier: Apache-2.0
/*
 * Who gets the places for requests of an engine when there are fewer than its clients want: all of
 * them in turn, and none of them keeps one that it does nothing with.
 */
#include "engine_world.h"
#include "unit.h"

#include <errno.h>

/* --- tests ---------------------------------------------------------------------------------- */

/* Some that always want more than they may have take each place that becomes free before it comes
 * to who asked later, unless they must stand in line again. */
TEST(test_a_modest_client_among_greedy_ones)
{
	enum { GREEDY = 3, EACH = 4, WANTED = 2000 };
	struct client greedy[GREEDY];
	struct client modest;
	struct world world;
	uint64_t before = 0;
	uint64_t after = 0;

	world_begin(&world, EACH, GREEDY * EACH);
	for (int i = 0; i < GREEDY; i++) {
		client_open(&world, &greedy[i], "");
	}
	client_open(&world, &modest, "");
	for (int i = 0; i < GREEDY * WANTED; i++) {
		client_ask(&greedy[i % GREEDY], NBD_CMD_READ, 0, READ_BYTES);
	}
	wait_for(&greedy[0], ANSWER_BYTES);
	for (int round = 0; round < 20; round++) {
		before = 0;
		after = 0;
		for (int i = 0; i < GREEDY; i++) {
			before += answers(&greedy[i]);
		}
		client_ask(&modest, NBD_CMD_READ, 0, READ_BYTES);
		wait_for(&modest, (uint64_t)(round + 1) * ANSWER_BYTES);
		for (int i = 0; i < GREEDY; i++) {
			after += answers(&greedy[i]);
		}
		/* A turn each, some of them on their way already. */
		assert_in_range(after - before, 0, 10 * GREEDY * EACH);
	}
	for (int i = 0; i < GREEDY; i++) {
		wait_for(&greedy[i], (uint64_t)WANTED * ANSWER_BYTES);
		assert_int_equal(answers(&greedy[i]), WANTED);
		sim_socket_close(greedy[i].fd);
	}
	sim_socket_close(modest.fd);
	world_end(&world);
}

static void leave(void *arg)
{
	const struct client *client = arg;

	sim_socket_close(client->fd);
}

static void ask_small(void *arg)
{
	client_ask(arg, NBD_CMD_READ, 0, READ_BYTES);
}

/* Sends what is left of a payload, a byte a second. */
static void trickle(void *arg)
{
	struct client *client = arg;
	const uint8_t byte = 1;

	sim_socket_write(client->fd, &byte, sizeof(byte));
	if (--client->owed > 0) {
		sim_after(SECOND_NS, trickle, client);
	}
}

/* A write that is refused has its place until its payload is taken. Whoever keeps that back keeps a
 * place that nobody else needs: each session has one of its own. */
TEST(test_refused_writes_whose_payload_stays_away)
{
	/* A short one would be waited for before there is a request. */
	enum { PAYLOAD = (64 << 10) + 1, AT_ONCE = PAYLOAD - 8, SILENT = 2 };
	static const uint8_t payload[AT_ONCE];
	struct client silent[SILENT];
	struct client slow;
	struct client other;
	struct world world;
	uint64_t began_ns;

	world_begin(&world, SILENT + 1, SILENT + 1);
	for (int i = 0; i < SILENT; i++) {
		client_open(&world, &silent[i], "");
	}
	client_open(&world, &slow, "");
	client_open(&world, &other, "");
	for (int i = 0; i < SILENT; i++) {
		client_ask(&silent[i], NBD_CMD_WRITE, DISK_BYTES, PAYLOAD);
		sim_socket_write(silent[i].fd, payload, AT_ONCE);
	}
	client_ask(&slow, NBD_CMD_WRITE, DISK_BYTES, PAYLOAD);
	sim_socket_write(slow.fd, payload, AT_ONCE);
	slow.owed = PAYLOAD - AT_ONCE;
	trickle(&slow);
	wait_for_inflight(&world, SILENT + 1);
	began_ns = sim_now_ns();
	client_ask(&other, NBD_CMD_READ, 0, READ_BYTES);
	wait_for(&other, ANSWER_BYTES);
	assert_int_equal(answers(&other), 1);
	assert_in_range(sim_now_ns() - began_ns, 0, SECOND_NS);
	wait_for(&slow, sizeof(struct nbd_wire_simple_reply));
	assert_int_equal(slow.got, sizeof(struct nbd_wire_simple_reply));
	for (int i = 0; i < SILENT; i++) {
		look(&silent[i]);
		assert_false(silent[i].closed);
		assert_int_equal(silent[i].got, 0);
		sim_socket_close(silent[i].fd);
	}
	sim_socket_close(slow.fd);
	sim_socket_close(other.fd);
	world_end(&world);
}

static void send_owed(void *arg)
{
	static const uint8_t bytes[128 << 10];
	const struct client *client = arg;

	sim_socket_write(client->fd, bytes, client->owed);
}

/* There is one place besides those that each session has of its own: nobody waits for a request
 * that takes very long, nor is ended for a payload that comes very late. */
TEST(test_a_place_for_everybody)
{
	/* A short one would be waited for before there is a request. */
	enum { PAYLOAD = (64 << 10) + 1 };
	struct client holder;
	struct client held;
	struct client other;
	struct world world;
	uint64_t began_ns;

	world_begin(&world, 1, 1);
	client_open(&world, &holder, "");
	client_open(&world, &held, "");
	client_open(&world, &other, "");
	client_ask(&holder, NBD_CMD_READ, DELAYED_OFFSET, READ_BYTES);
	wait_for_inflight(&world, 1);
	client_ask(&held, NBD_CMD_WRITE, DISK_BYTES, PAYLOAD);
	held.owed = PAYLOAD;
	began_ns = sim_now_ns();
	sim_after(1003 * SECOND_NS, send_owed, &held);
	sim_after(SECOND_NS, ask_small, &other);
	wait_for(&other, ANSWER_BYTES);
	assert_int_equal(answers(&other), 1);
	assert_in_range(sim_now_ns() - began_ns, SECOND_NS, 2 * SECOND_NS);
	wait_for(&holder, ANSWER_BYTES);
	wait_for(&held, sizeof(struct nbd_wire_simple_reply));
	assert_false(held.closed);
	assert_int_equal(held.got, sizeof(struct nbd_wire_simple_reply));
	sim_socket_close(holder.fd);
	sim_socket_close(held.fd);
	sim_socket_close(other.fd);
	world_end(&world);
}

/* A large receive buffer stays with who has filled a small one to the last byte and is silent
 * since: he has done nothing wrong, and is not ended when memory is short. */
TEST(test_an_idle_client_when_memory_is_short)
{
	enum { HEAD = sizeof(struct nbd_wire_request), RX_SMALL = 8192, HUNGRY = 8 };
	static const uint8_t payload[RX_SMALL - HEAD];
	struct client idle;
	struct client hungry[HUNGRY];
	struct client other;
	struct world world;
	uint64_t began_ns;

	world_begin(&world, 128, 1024);
	client_open(&world, &idle, "");
	client_open(&world, &other, "");
	client_ask(&idle, NBD_CMD_WRITE, 0, sizeof(payload));
	sim_socket_write(idle.fd, payload, sizeof(payload));
	wait_for(&idle, sizeof(struct nbd_wire_simple_reply));
	for (int i = 0; i < HUNGRY; i++) {
		client_open(&world, &hungry[i], "");
		sim_socket_set_buffer(hungry[i].fd, 100);
		for (int k = 0; k < 100; k++) { /* and take none of it */
			client_ask(&hungry[i], NBD_CMD_READ, 0, DISK_BYTES);
		}
	}
	began_ns = sim_now_ns();
	sim_after(SECOND_NS, ask_small, &other);
	wait_for(&other, ANSWER_BYTES);
	assert_int_equal(answers(&other), 1);
	assert_in_range(sim_now_ns() - began_ns, SECOND_NS, 2 * SECOND_NS);
	client_ask(&idle, NBD_CMD_READ, 0, READ_BYTES);
	wait_for(&idle, sizeof(struct nbd_wire_simple_reply) + ANSWER_BYTES);
	assert_false(idle.closed);
	for (int i = 0; i < HUNGRY; i++) {
		sim_socket_close(hungry[i].fd);
	}
	sim_socket_close(idle.fd);
	sim_socket_close(other.fd);
	world_end(&world);
}

/* Takes a little of what has come, and again in a while. */
static void sip(void *arg)
{
	enum { SIP_BYTES = 100 };
	struct client *client = arg;
	uint8_t bytes[SIP_BYTES];
	int got = sim_socket_read(client->fd, bytes, sizeof(bytes));

	client->got += got > 0 ? (uint64_t)got : 0;
	client->closed |= got < 0 && got != -EAGAIN;
	if (!client->closed && --client->owed > 0) {
		sim_after(2 * SECOND_NS, sip, client);
	}
}

/* Memory is short, and two make no room for what is on its way to them within the stall timeout:
 * one because it takes nothing, one because it is slow. Only the first is ended. */
TEST(test_a_slow_reader_when_memory_is_short)
{
	enum { HUNGRY = 16, SIPS = 20, BUFFER_BYTES = 8192, FAST_OFFSET = 8192 };
	struct client hungry[HUNGRY];
	struct client slow;
	struct world world;
	uint32_t ended = 0;

	world_begin(&world, 128, 1024);
	client_open(&world, &slow, "");
	sim_socket_set_buffer(slow.fd, BUFFER_BYTES);
	client_ask(&slow, NBD_CMD_READ, FAST_OFFSET, DISK_BYTES - FAST_OFFSET);
	slow.owed = SIPS;
	sip(&slow);
	for (int i = 0; i < HUNGRY; i++) {
		client_open(&world, &hungry[i], "");
		sim_socket_set_buffer(hungry[i].fd, BUFFER_BYTES);
		for (int k = 0; k < 100; k++) {
			client_ask(&hungry[i], NBD_CMD_READ, FAST_OFFSET, DISK_BYTES - FAST_OFFSET);
		}
	}
	while (slow.owed > 0) {
		assert_true(sim_step());
	}
	assert_false(slow.closed);
	for (int i = 0; i < HUNGRY; i++) {
		look(&hungry[i]);
		ended += hungry[i].closed;
		sim_socket_close(hungry[i].fd);
	}
	assert_in_range(ended, 1, HUNGRY);
	look(&slow);
	assert_false(slow.closed);
	sim_socket_close(slow.fd);
	world_end(&world);
}

static void ask_now_and_then(void *arg)
{
	struct client *client = arg;

	ask_small(client);
	if (--client->owed > 0) {
		sim_after(8 * SECOND_NS, ask_now_and_then, client);
	}
}

/* Only who asks nothing and has taken what it was sent is ended, within an eighth of the timeout.
 */
TEST(test_the_idle_timeout)
{
	enum { TIMES = 10, BUFFER_BYTES = 8192, REPLY_BYTES = 4000, SIPS = 20 };
	struct client silent;
	struct client modest;
	struct client waiting;
	struct client slow;
	struct world world;
	uint64_t began_ns;

	world_begin(&world, 128, 1024);
	world.engine->limits.idle_timeout_ns = 10 * SECOND_NS;
	client_open(&world, &silent, "");
	client_open(&world, &modest, "");
	client_open(&world, &waiting, "");
	client_open(&world, &slow, "");
	client_ask(&waiting, NBD_CMD_READ, DELAYED_OFFSET, READ_BYTES);
	sim_socket_set_buffer(slow.fd, BUFFER_BYTES);
	client_ask(&slow, NBD_CMD_READ, 0, REPLY_BYTES);
	slow.owed = SIPS;
	sip(&slow);
	modest.owed = TIMES;
	ask_now_and_then(&modest);
	began_ns = sim_now_ns();
	wait_for(&silent, UINT64_MAX);
	assert_true(silent.closed);
	assert_in_range(sim_now_ns() - began_ns, 9 * SECOND_NS, 12 * SECOND_NS);
	while (slow.owed > 0) {
		assert_true(sim_step());
	}
	assert_int_equal(world.engine->counters.inflight, 1); /* its reply is all in the socket */
	assert_false(slow.closed);
	while (modest.owed > 0) {
		assert_true(sim_step());
	}
	began_ns = sim_now_ns();
	wait_for(&modest, TIMES * ANSWER_BYTES);
	assert_int_equal(answers(&modest), TIMES);
	assert_int_equal(world.engine->counters.sessions_idle, 2);
	wait_for(&modest, UINT64_MAX);
	assert_in_range(sim_now_ns() - began_ns, 10 * SECOND_NS, 12 * SECOND_NS);
	wait_for(&waiting, ANSWER_BYTES);
	assert_int_equal(answers(&waiting), 1);
	assert_false(waiting.closed);
	wait_for(&waiting, UINT64_MAX);
	assert_true(waiting.closed);
	assert_int_equal(world.engine->counters.sessions_idle, 4);
	assert_int_equal(world.engine->counters.sessions_failed, 0);
	assert_true(sim_run_until_idle(100)); /* an engine without sessions sleeps */
	sim_socket_close(silent.fd);
	sim_socket_close(modest.fd);
	sim_socket_close(waiting.fd);
	sim_socket_close(slow.fd);
	client_open(&world, &silent, ""); /* and wakes for the next */
	sim_socket_close(silent.fd);
	world_end(&world);
}

/* The places of a client that went are free one by one, however long its last request takes, and
 * at once. */
TEST(test_places_of_a_client_that_is_going)
{
	struct client going;
	struct client other;
	struct world world;
	uint64_t left_ns;

	world_begin(&world, 2, 3);
	client_open(&world, &going, "");
	client_open(&world, &other, "");
	client_ask(&going, NBD_CMD_READ, DELAYED_OFFSET, READ_BYTES);
	client_ask(&going, NBD_CMD_WRITE, 0, DISK_BYTES + 1); /* its payload never comes */
	wait_for_inflight(&world, 2);
	client_ask(&other, NBD_CMD_READ, DELAYED_OFFSET, READ_BYTES); /* in its own place */
	wait_for_inflight(&world, 3);
	client_ask(&other, NBD_CMD_READ, 0, READ_BYTES);
	left_ns = sim_now_ns() + SECOND_NS / 10;
	sim_after(left_ns - sim_now_ns(), leave, &going);
	wait_for(&other, ANSWER_BYTES);
	assert_int_equal(answers(&other), 1);
	assert_in_range(sim_now_ns() - left_ns, 0, SECOND_NS / 2);
	sim_socket_close(other.fd);
	world_end(&world);
}

/* Counts the requests that begin, and the bytes of replies that are sent, from one system call of
 * the ring to the next. As the real ring, does without the system call in up to four turns in a row
 * that the engine itself has asked for. */
struct turn_watch {
	struct ring_batch_end end;
	const struct engine *engine;
	uint64_t requests; /* up to the last system call */
	uint64_t bytes;
	uint64_t most; /* from one to the next */
	uint64_t most_bytes;
	uint32_t skipped; /* since the last one */
	bool skips;
};

static void watch_turn(struct ring_batch_end *end)
{
	enum { SKIPPED_MAX = 4 };
	struct turn_watch *watch = container_of(end, struct turn_watch, end);
	const struct engine_counters *counters = &watch->engine->counters;
	uintptr_t calls = (uintptr_t)ring_counters(watch->engine->ring);

	if (!watch->skips) {
		watch->most = MAX(watch->most, counters->requests - watch->requests);
		watch->most_bytes = MAX(watch->most_bytes, counters->bytes_read - watch->bytes);
		watch->requests = counters->requests;
		watch->bytes = counters->bytes_read;
		watch->skipped = 0;
	}
	watch->skips = watch->engine->again.in_flight && watch->skipped < SKIPPED_MAX;
	if (watch->skips) {
		((struct ring_counters *)calls)->enters--;
		watch->skipped++;
	}
}

/* However much clients ask for at once, and may have in flight: completions are taken and replies
 * sent in between, and a client without a request begins one in the turn in which it came. */
TEST(test_the_work_of_a_turn_is_bounded)
{
	enum { GREEDY = 8, WANTED = 500, TURN_MAX = 2 * ENGINE_TURN_REQUESTS + GREEDY + 1 };
	struct client greedy[GREEDY];
	struct turn_watch watch = { .end = { .call = watch_turn } };
	struct client modest;
	struct world world;
	uint64_t before = 0;

	world_begin(&world, WANTED, 2 * GREEDY * WANTED);
	watch.engine = world.engine;
	ring_batch_end_add(world.ring, &watch.end);
	for (int i = 0; i < GREEDY; i++) {
		client_open(&world, &greedy[i], "");
	}
	client_open(&world, &modest, "");
	for (int i = 0; i < GREEDY * WANTED; i++) {
		client_ask(&greedy[i % GREEDY], NBD_CMD_READ, 0, READ_BYTES);
	}
	client_ask(&modest, NBD_CMD_READ, 0, READ_BYTES);
	/* It is answered among them, and not after all that was there before its request. */
	wait_for(&modest, ANSWER_BYTES);
	for (int i = 0; i < GREEDY; i++) {
		before += answers(&greedy[i]);
	}
	assert_in_range(before, 0, 4 * ENGINE_TURN_REQUESTS - 1);
	for (int i = 0; i < GREEDY; i++) {
		wait_for(&greedy[i], (uint64_t)WANTED * ANSWER_BYTES);
		assert_int_equal(answers(&greedy[i]), WANTED);
		sim_socket_close(greedy[i].fd);
	}
	assert_in_range(watch.most, ENGINE_TURN_REQUESTS, TURN_MAX);
	assert_int_equal(world.engine->counters.place_waits, 0); /* places were not what lacked */
	ring_batch_end_remove(&watch.end);
	sim_socket_close(modest.fd);
	world_end(&world);
}

/* Replies of many sessions that become ready together are sent in several turns. */
TEST(test_the_bytes_of_a_turn_are_bounded)
{
	enum { CLIENTS = 60, WANTED = 8, LENGTH = DISK_BYTES, ONE = WANTED * LENGTH };
	struct client clients[CLIENTS];
	struct turn_watch watch = { .end = { .call = watch_turn } };
	struct world world;

	world_begin_device(&world, 64 << 20, false); /* more memory than a turn can send */
	watch.engine = world.engine;
	ring_batch_end_add(world.ring, &watch.end);
	for (int i = 0; i < CLIENTS; i++) {
		client_open(&world, &clients[i], "");
	}
	for (int i = 0; i < CLIENTS * WANTED; i++) {
		client_ask(&clients[i % CLIENTS], NBD_CMD_READ, 0, LENGTH);
	}
	for (int i = 0; i < CLIENTS; i++) {
		wait_for(&clients[i],
			WANTED * (sizeof(struct nbd_wire_simple_reply) + (uint64_t)LENGTH));
		sim_socket_close(clients[i].fd);
	}
	/* One session of each list can begin to send when nearly all bytes are used. */
	assert_in_range(watch.most_bytes, ENGINE_TURN_BYTES, ENGINE_TURN_BYTES + 2 * ONE);
	ring_batch_end_remove(&watch.end);
	world_end(&world);
}

enum { SENDERS = 10 };

static const struct session *flushed[SENDERS];
static int flushed_count;

/* As many bytes as may be sent in a turn altogether. */
static void flush_much(struct session *session, bool alone)
{
	session->engine->turn_bytes += ENGINE_TURN_BYTES;
	flushed[flushed_count++] = session;
}

static void nothing_done(struct ring_op *op, int result)
{
}

/* Replies of a session with one request go in front of those of the sessions with more requests, in
 * flight or waiting. */
TEST(test_who_sends_first)
{
	static const struct session_kind kind = { .flush = flush_much };
	enum { LATE = SENDERS - 1, WAITING = SENDERS - 2 };
	struct session sessions[SENDERS];
	struct ring_op op = { 0 };
	struct turn_group group;
	struct turns turns;
	struct client client;
	struct world world;

	world_begin(&world, 1, 1);
	client_open(&world, &client, "");
	turns_init(&turns);
	turn_group_init(&group);
	memset(sessions, 0, sizeof(sessions));
	flushed_count = 0;
	for (int i = 0; i < SENDERS; i++) {
		sessions[i].engine = world.engine;
		sessions[i].kind = &kind;
		sessions[i].inflight_count = i < WAITING ? 2 : 1;
		list_init(&sessions[i].dirty_node);
		turn_init(&sessions[i].blocked_turn, &group);
		if (i == WAITING) {
			turns_add(&turns, &sessions[i].blocked_turn);
		}
		session_mark_dirty(&sessions[i]);
	}
	ring_defer(world.ring, &op, 0, nothing_done);
	while (flushed_count < SENDERS) {
		assert_true(sim_step());
	}
	assert_ptr_equal(flushed[0], &sessions[LATE]);
	for (int i = 0; i < LATE; i++) {
		assert_ptr_equal(flushed[i + 1], &sessions[i]);
	}
	sim_socket_close(client.fd);
	world_end(&world);
}
