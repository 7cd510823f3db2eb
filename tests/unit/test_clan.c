// SPDX-License-Identifier: Apache-2.0
/*
 * What <gmblock/clan.h> promises, asked of every provider, and of shm with each way to wait.
 *
 *   test_clan                       all of it
 *   test_clan ADDRESS PATTERN       tests of such names, with that address on the network
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/compiler.h"
#include "clan_world.h"
#include "unit.h"

static struct world_kind kinds[] = {
	{ "futex", 0, CLAN_BELL_FUTEX },
	{ "socket", 0, CLAN_BELL_SOCKET },
	{ "passive", CLAN_QUEUE_PASSIVE, CLAN_BELL_AUTO },
	{ "tcp", .network = "tcp:127.0.0.1:0" },
	{ "tcp-passive", CLAN_QUEUE_PASSIVE, .network = "tcp:127.0.0.1:0" },
	{ "ofi", .network = "ofi:127.0.0.1:0?provider=tcp" },
};

void world_address(struct world *world)
{
	static unsigned count;

	snprintf(world->address, sizeof(world->address), "shm:@clan-test-%d-%u", getpid(), count++);
}

static const struct world_kind *kind_of(void **state)
{
	return *state;
}

/* For what only shm can do, or does so. */
static void need_shm(void **state)
{
	if (kind_of(state)->network != NULL) {
		skip();
	}
}

/* --- connections ------------------------------------------------------------------------------ */

TEST(hello_and_credentials)
{
	struct world world;
	struct clan_peer peer;
	size_t bytes;

	world_open(&world, kind_of(state), NULL);
	assert_memory_equal(clan_conn_hello(world.conns[WORLD_SERVER], &bytes), "hi", 2);
	assert_int_equal(bytes, 2);
	assert_memory_equal(clan_conn_hello(world.conns[WORLD_DIALER], &bytes), "ho", 2);
	for (int side = 0; side < WORLD_SIDES; side++) {
		clan_conn_peer(world.conns[side], &peer);
		if (world.kind->network != NULL) {
			assert_int_equal(peer.pid, 0);
			assert_int_equal(peer.uid, (uid_t)-1);
			/* Its host is ours. */
			assert_memory_equal(peer.address, world.address + strlen("tcp:"),
				strcspn(world.address + strlen("tcp:"), ":") + 1);
		} else {
			assert_int_equal(peer.pid, getpid());
			assert_int_equal(peer.uid, getuid());
			assert_string_equal(peer.address, "");
		}
	}
	world_close(&world);
}

TEST(rejected)
{
	struct world world;
	struct clan_conn *conn;
	size_t bytes;

	world_listen(&world, kind_of(state), NULL);
	assert_int_equal(
		clan_connect(world.queues[WORLD_DIALER], world.address, NULL, NULL, 0, &conn, NULL),
		0);
	clan_reject(world_event(&world, WORLD_SERVER, CLAN_EVENT_CONNECT).conn, "not today");
	world_event(&world, WORLD_SERVER, CLAN_EVENT_CLOSED);
	assert_int_equal(world_event(&world, WORLD_DIALER, CLAN_EVENT_LOST).status, -ECONNREFUSED);
	assert_string_equal(clan_conn_hello(conn, &bytes), "not today");
	assert_string_equal(clan_conn_reason(conn), "the peer refused the connection: not today");
	world_close_conn(&world, WORLD_DIALER, conn);
	world_close(&world);
}

/* Either side goes while the other waits for it: there is nothing to receive. */
TEST(ended_before_it_was_accepted)
{
	struct world world;
	struct clan_message message;
	char bytes[8];

	world_listen(&world, kind_of(state), NULL);
	for (int leaving = 0; leaving < WORLD_SIDES; leaving++) {
		int other = 1 - leaving;
		struct clan_conn *sides[WORLD_SIDES];

		assert_int_equal(clan_connect(world.queues[WORLD_DIALER], world.address, NULL, NULL,
					 0, &sides[WORLD_DIALER], NULL),
			0);
		sides[WORLD_SERVER] = world_event(&world, WORLD_SERVER, CLAN_EVENT_CONNECT).conn;
		world_close_conn(&world, leaving, sides[leaving]);
		assert_int_equal(world_event(&world, other, CLAN_EVENT_LOST).status, -ECONNRESET);
		assert_int_equal(clan_recv(sides[other], CLAN_ANY, &message, bytes, 8), -ENOTCONN);
		world_close_conn(&world, other, sides[other]);
	}
	world_close(&world);
}

/* A busy machine may say no hello in so short a time: then it gets more. */
TEST(no_answer_in_time)
{
	struct clan_conn_options options = { .size = sizeof(options), .handshake_timeout_ms = 20 };
	struct clan_conn *conn;
	struct world world;

	world_listen(&world, kind_of(state), NULL);
	do {
		assert_int_equal(clan_connect(world.queues[WORLD_DIALER], world.address, &options,
					 NULL, 0, &conn, NULL),
			0);
		assert_int_equal(
			world_event(&world, WORLD_DIALER, CLAN_EVENT_LOST).status, -ETIMEDOUT);
		world_close_conn(&world, WORLD_DIALER, conn);
		options.handshake_timeout_ms *= 2;
	} while (!world_has_event(&world, WORLD_SERVER, CLAN_EVENT_CONNECT));
	conn = world_event(&world, WORLD_SERVER, CLAN_EVENT_CONNECT).conn;
	world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST);
	assert_int_equal(clan_accept(conn, NULL, 0), -ECONNRESET);
	world_close_conn(&world, WORLD_SERVER, conn);
	world_close(&world);
}

TEST(nobody_listens)
{
	struct clan_error error = { 0 };
	struct clan_queue *queue;
	struct clan_conn *conn;

	need_shm(state);
	assert_int_equal(clan_queue_create(NULL, &queue, &error), 0);
	assert_int_equal(clan_connect(queue, "shm:@clan-nobody", NULL, NULL, 0, &conn, &error),
		-ECONNREFUSED);
	assert_string_equal(
		error.text, "cannot connect to \"shm:@clan-nobody\": Connection refused");
	assert_int_equal(
		clan_connect(queue, "udp:there", NULL, NULL, 0, &conn, &error), -EPROTONOSUPPORT);
	assert_int_equal(clan_connect(queue, "shm:", NULL, NULL, 0, &conn, &error), -EINVAL);
	assert_int_equal(clan_queue_destroy(queue), 0);
}

TEST(close_is_seen_after_the_messages)
{
	struct world world;
	struct clan_message message;
	struct clan_event event;
	char text[8];

	world_open(&world, kind_of(state), NULL);
	assert_int_equal(clan_send(world.conns[WORLD_DIALER], CLAN_BULK, 1, "last", 5), 0);
	world_close_conn(&world, WORLD_DIALER, world.conns[WORLD_DIALER]);
	world.conns[WORLD_DIALER] = NULL;
	event = world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST);
	assert_int_equal(event.status, -ECONNRESET);
	assert_string_equal(clan_conn_reason(event.conn), "the peer closed the connection");
	assert_int_equal(
		clan_conn_caps(event.conn), world.kind->network != NULL ? 0 : CLAN_CAN_MAP);
	assert_int_equal(clan_recv(event.conn, CLAN_ANY, &message, text, sizeof(text)), 0);
	assert_string_equal(text, "last");
	assert_int_equal(clan_recv(event.conn, CLAN_ANY, &message, text, sizeof(text)), -ENOTCONN);
	assert_int_equal(clan_send(event.conn, CLAN_BULK, 1, "late", 5), -ENOTCONN);
	world_close(&world);
}

TEST(many_connections_share_a_group)
{
	enum { COUNT = 300 }; /* more than one group holds */
	struct clan_conn *conns[COUNT][WORLD_SIDES];
	struct world world;
	uint32_t value;

	world_listen(&world, kind_of(state), NULL);
	for (uint32_t i = 0; i < COUNT; i++) {
		world_connect(&world, NULL, conns[i]);
	}
	/* Each gets its own message, in whatever order they are found. */
	for (uint32_t i = 0; i < COUNT; i += 7) {
		assert_int_equal(clan_send(conns[i][WORLD_DIALER], CLAN_BULK, 1, &i, sizeof(i)), 0);
	}
	for (uint32_t i = 0; i < COUNT; i += 7) {
		struct clan_message message;
		struct clan_event event = world_event(&world, WORLD_SERVER, CLAN_EVENT_READY);

		assert_int_equal(
			clan_recv(event.conn, CLAN_ANY, &message, &value, sizeof(value)), 0);
		assert_ptr_equal(event.conn, conns[value][WORLD_SERVER]);
		assert_int_equal(
			clan_recv(event.conn, CLAN_ANY, &message, &value, sizeof(value)), -EAGAIN);
	}
	world_no_event(&world, WORLD_SERVER, CLAN_EVENT_READY);
	for (uint32_t i = 0; i < COUNT; i++) {
		world_close_conn(&world, WORLD_DIALER, conns[i][WORLD_DIALER]);
		world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST);
		world_close_conn(&world, WORLD_SERVER, conns[i][WORLD_SERVER]);
	}
	world_close(&world);
}

TEST(adopted_sockets_connect_or_are_lost)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct clan_error error = { 0 };
	struct clan_conn *conns[2];
	struct clan_event event;
	struct clan_conn *dialer;
	struct world world;
	char target[128];
	int sockets[2];
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int length;

	need_shm(state);
	world_listen(&world, kind_of(state), NULL);
	length = snprintf(address.sun_path + 1, 100, "%s-adopt", world.address + 5);
	snprintf(target, sizeof(target), "shm:@%s", address.sun_path + 1);
	assert_int_equal(bind(listener, (struct sockaddr *)&address,
				 (socklen_t)(sizeof(sa_family_t) + 1 + (size_t)length)),
		0);
	assert_int_equal(listen(listener, 5), 0);
	assert_int_equal(
		clan_connect(world.queues[WORLD_DIALER], target, NULL, NULL, 0, &dialer, &error),
		0);
	sockets[0] = accept(listener, NULL, NULL);
	assert_int_equal(
		clan_adopt(world.queues[WORLD_SERVER], sockets[0], NULL, &conns[0], &error), 0);
	event = world_event(&world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	assert_ptr_equal(event.conn, conns[0]);
	assert_int_equal(clan_accept(conns[0], NULL, 0), 0);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_CONNECTED);
	/* One that never says HELLO. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
	assert_int_equal(
		clan_adopt(world.queues[WORLD_SERVER], sockets[0], NULL, &conns[1], &error), 0);
	close(sockets[1]);
	event = world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST);
	assert_ptr_equal(event.conn, conns[1]);
	assert_int_equal(event.status, -ECONNRESET);
	world_close_conn(&world, WORLD_SERVER, conns[1]);
	assert_int_equal(clan_adopt(world.queues[WORLD_SERVER], memfd_create("x", 0), NULL,
				 &conns[1], &error),
		-EINVAL);
	world_close_conn(&world, WORLD_SERVER, conns[0]);
	world_close_conn(&world, WORLD_DIALER, dialer);
	close(listener);
	world_close(&world);
}

TEST(wake_ends_a_wait)
{
	struct clan_event event;
	struct world world;

	world_listen(&world, kind_of(state), NULL);
	clan_queue_wake(world.queues[WORLD_SERVER]);
	assert_int_equal(clan_queue_wait(world.queues[WORLD_SERVER], &event, 1, -1), 0);
	world_close(&world);
}

/* --- messages --------------------------------------------------------------------------------- */

TEST(messages_of_all_lengths)
{
	static const uint32_t lengths[] = { 0, 1, 55, 56, 57, 63, 64, 120, 1000, 4096, 8183, 8184 };
	uint8_t sent[CLAN_BULK_BYTES_MAX];
	uint8_t got[CLAN_BULK_BYTES_MAX];
	struct world world;
	struct clan_conn *conn;

	world_open(&world, kind_of(state), NULL);
	conn = world.conns[WORLD_DIALER];
	for (uint32_t round = 0; round < 40; round++) {
		uint32_t length = lengths[(round * 5) % ARRAY_COUNT(lengths)];
		struct clan_message message;

		memset(sent, (int)round + 1, length);
		memset(got, 0, sizeof(got));
		world_send(&world, WORLD_DIALER, conn, CLAN_BULK, 1 + round, sent, length);
		message = world_recv(
			&world, WORLD_SERVER, world.conns[WORLD_SERVER], got, sizeof(got));
		assert_int_equal(message.cls, CLAN_BULK);
		assert_int_equal(message.type, 1 + round);
		assert_int_equal(message.bytes, length);
		assert_memory_equal(got, sent, length);
	}
	assert_int_equal(clan_send(conn, CLAN_BULK, 1, sent, CLAN_BULK_BYTES_MAX + 1), -EMSGSIZE);
	assert_int_equal(
		clan_send(conn, CLAN_CONTROL, 1, sent, CLAN_CONTROL_BYTES_MAX + 1), -EMSGSIZE);
	assert_int_equal(clan_send(conn, CLAN_CONTROL, 1, sent, CLAN_CONTROL_BYTES_MAX), 0);
	assert_int_equal(clan_send(conn, CLAN_BULK, 0, sent, 1), -EINVAL);
	assert_int_equal(clan_send(conn, CLAN_BULK, CLAN_TYPE_STREAM, sent, 1), -EINVAL);
	assert_int_equal(clan_send(conn, CLAN_ANY, 1, sent, 1), -EINVAL);
	world_close(&world);
}

TEST(too_small_a_buffer_keeps_the_message)
{
	struct clan_message message;
	struct world world;
	char text[8];

	world_open(&world, kind_of(state), NULL);
	assert_int_equal(clan_send(world.conns[WORLD_DIALER], CLAN_BULK, 9, "longer", 7), 0);
	world_ready(&world, WORLD_SERVER, world.conns[WORLD_SERVER], CLAN_READY_BULK);
	assert_int_equal(
		clan_recv(world.conns[WORLD_SERVER], CLAN_ANY, &message, text, 6), -EMSGSIZE);
	assert_int_equal(message.bytes, 7);
	assert_int_equal(clan_recv(world.conns[WORLD_SERVER], CLAN_ANY, &message, text, 7), 0);
	assert_string_equal(text, "longer");
	world_close(&world);
}

TEST(control_is_never_behind_bulk)
{
	uint8_t buffer[CLAN_BULK_BYTES_MAX];
	struct clan_message message;
	struct world world;
	uint32_t count;

	world_open(&world, kind_of(state), NULL);
	count = world_fill(world.conns[WORLD_DIALER], CLAN_BULK, 56);
	assert_true(count >= 250);
	assert_int_equal(clan_send(world.conns[WORLD_DIALER], CLAN_CONTROL, 2, "now", 4), 0);
	message =
		world_recv(&world, WORLD_SERVER, world.conns[WORLD_SERVER], buffer, sizeof(buffer));
	assert_int_equal(message.cls, CLAN_CONTROL);
	assert_string_equal((char *)buffer, "now");
	while (count-- > 0) {
		message = world_recv(
			&world, WORLD_SERVER, world.conns[WORLD_SERVER], buffer, sizeof(buffer));
		assert_int_equal(message.cls, CLAN_BULK);
	}
	world_close(&world);
}

TEST(room_is_told_once)
{
	uint8_t buffer[CLAN_BULK_BYTES_MAX];
	struct clan_conn *dialer;
	struct world world;

	world_open(&world, kind_of(state), NULL);
	dialer = world.conns[WORLD_DIALER];
	for (int round = 0; round < 20; round++) {
		/* Messages of two sizes, so that padding is needed at other places each time. */
		uint32_t count = world_fill(dialer, CLAN_BULK, round % 2 == 0 ? 8184 : 700);

		assert_true(count > 0);
		world_no_event(&world, WORLD_DIALER, CLAN_EVENT_READY);
		while (count-- > 0) {
			world_recv(&world, WORLD_SERVER, world.conns[WORLD_SERVER], buffer,
				sizeof(buffer));
		}
		assert_int_equal(clan_recv(world.conns[WORLD_SERVER], CLAN_ANY,
					 &(struct clan_message){ 0 }, buffer, sizeof(buffer)),
			-EAGAIN);
		world_ready(&world, WORLD_DIALER, dialer, CLAN_READY_SEND_BULK);
		world_no_event(&world, WORLD_DIALER, CLAN_EVENT_READY);
	}
	world_close(&world);
}

TEST(streams_have_no_boundaries)
{
	enum { BYTES = 200000 };
	uint8_t *sent = malloc(BYTES);
	uint8_t *got = calloc(1, BYTES);
	struct world world;
	size_t written = 0;
	size_t read = 0;
	unsigned seed = 1;

	assert_non_null(sent);
	assert_non_null(got);
	for (size_t i = 0; i < BYTES; i++) {
		sent[i] = (uint8_t)(i * 31 + i / 253);
	}
	world_open(&world, kind_of(state), NULL);
	while (read < BYTES) {
		struct iovec iov[3];
		ssize_t result;
		size_t at = written;
		uint32_t count = 0;

		for (; count < 3 && at < BYTES; count++) {
			size_t part = MIN((size_t)rand_r(&seed) % 20000, BYTES - at);

			iov[count] = (struct iovec){ .iov_base = sent + at, .iov_len = part };
			at += part;
		}
		if (at > written) {
			result = clan_writev(world.conns[WORLD_DIALER], iov, count);
			assert_true(result > 0 || result == -EAGAIN);
			written += result > 0 ? (size_t)result : 0;
		}
		world_settle(&world);
		for (count = 0; count < 3; count++) {
			iov[0] = (struct iovec){ .iov_base = got + read,
				.iov_len = MIN(1 + (size_t)rand_r(&seed) % 9000, BYTES - read) };
			if (iov[0].iov_len == 0) {
				break;
			}
			result = clan_readv(
				world.conns[WORLD_SERVER], iov, 1, count == 0 ? CLAN_READ_PEEK : 0);
			assert_true(result > 0 || result == -EAGAIN);
			read += result > 0 && count > 0 ? (size_t)result : 0;
		}
		world.kept_count[0] = world.kept_count[1] = 0;
	}
	assert_memory_equal(sent, got, BYTES);
	assert_int_equal(clan_send(world.conns[WORLD_DIALER], CLAN_BULK, 1, "m", 2), 0);
	world_settle(&world);
	assert_int_equal(clan_readv(world.conns[WORLD_SERVER],
				 &(struct iovec){ .iov_base = got, .iov_len = 1 }, 1, 0),
		-EBADMSG);
	free(sent);
	free(got);
	world_close(&world);
}

/* --- regions ---------------------------------------------------------------------------------- */

static void close_with_region(struct world *world, int side, struct clan_region *region)
{
	world_close_conn(world, side, world->conns[side]);
	world->conns[side] = NULL;
	assert_int_equal(clan_region_destroy(region), 0);
	world_close(world);
}

TEST(put_get_and_notification)
{
	struct clan_cookie cookie;
	struct clan_event shared;
	struct clan_region *region;
	struct world world;
	struct clan_message message;
	char text[16] = "";
	uint8_t *base;

	world_open(&world, kind_of(state), NULL);
	region = world_region(&world, WORLD_SERVER, 65536, CLAN_READ | CLAN_WRITE, &base, &shared);
	world_grant(&world, WORLD_SERVER, region, 100, 1000, CLAN_READ | CLAN_WRITE, 0, &cookie);
	struct iovec from[2] = { { "hello ", 6 }, { "world", 6 } };
	struct iovec to = { text, 12 };
	assert_int_equal(world_put(&world, WORLD_DIALER, from, 2, &cookie, 10, CLAN_NOTIFY, 77), 0);
	message = world_recv(&world, WORLD_SERVER, world.conns[WORLD_SERVER], text, sizeof(text));
	assert_int_equal(message.type, CLAN_TYPE_NOTIFY);
	assert_int_equal(message.value, 77);
	assert_string_equal((char *)base + 110, "hello world");
	assert_int_equal(world_get(&world, WORLD_DIALER, &to, 1, &cookie, 10), 0);
	assert_string_equal(text, "hello world");
	/* The last byte of the cookie, and one more. */
	assert_int_equal(world_put(&world, WORLD_DIALER, &to, 1, &cookie, 988, 0, 0), 0);
	assert_int_equal(world_put(&world, WORLD_DIALER, &to, 1, &cookie, 989, 0, 0), -ERANGE);
	assert_int_equal(world_get(&world, WORLD_DIALER, &to, 1, &cookie, UINT64_MAX - 3), -ERANGE);
	assert_int_equal(world_put(&world, WORLD_DIALER, &to, 1, &cookie, 0, CLAN_NOTIFY,
				 CLAN_VALUE_MAX + 1u),
		-EINVAL);
	close_with_region(&world, WORLD_SERVER, region);
}

TEST(rights_are_kept)
{
	struct clan_cookie read_cookie;
	struct clan_cookie write_cookie;
	struct clan_event shared;
	struct clan_region *region;
	struct world world;
	char text[4] = "abc";
	struct iovec iov = { text, 4 };
	uint8_t *base;

	world_open(&world, kind_of(state), NULL);
	region = world_region(&world, WORLD_DIALER, 4096, CLAN_READ, &base, &shared);
	world_grant(&world, WORLD_DIALER, region, 0, 4096, CLAN_READ, 0, &read_cookie);
	assert_int_equal(clan_cookie_grant(world.conns[WORLD_DIALER], region, 0, 4096, CLAN_WRITE,
				 0, &write_cookie),
		-EACCES);
	assert_int_equal(clan_cookie_grant(world.conns[WORLD_DIALER], region, 1, 4096, CLAN_READ, 0,
				 &write_cookie),
		-ERANGE);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &read_cookie, 0, 0, 0), -EACCES);
	assert_int_equal(world_get(&world, WORLD_SERVER, &iov, 1, &read_cookie, 0), 0);
	/* A lie about the cookie's own rights changes nothing. */
	read_cookie.rights = CLAN_READ | CLAN_WRITE;
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &read_cookie, 0, 0, 0), -EACCES);
	assert_int_equal(clan_region_destroy(region), -EBUSY);
	close_with_region(&world, WORLD_DIALER, region);
}

TEST(revoked_cookies_are_void)
{
	struct clan_cookie cookie;
	struct clan_cookie again;
	struct clan_event shared;
	struct clan_region *region;
	struct world world;
	char text[4] = "abc";
	struct iovec iov = { text, 4 };
	uint8_t *base;
	struct clan_conn *owner;

	world_open(&world, kind_of(state), NULL);
	owner = world.conns[WORLD_DIALER];
	region = world_region(&world, WORLD_DIALER, 4096, CLAN_WRITE, &base, &shared);
	for (uint32_t round = 0; round < 200; round++) { /* more than there are slots */
		world_grant(&world, WORLD_DIALER, region, 0, 100, CLAN_WRITE, 0, &cookie);
		assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 0, 0, 0), 0);
		assert_int_equal(world_revoke(&world, WORLD_DIALER, &cookie, 0), 0);
		assert_int_equal(
			world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 0, 0, 0), -ESTALE);
		assert_int_equal(world_revoke(&world, WORLD_DIALER, &cookie, 0), -ESTALE);
	}
	world_grant(&world, WORLD_DIALER, region, 0, 100, CLAN_WRITE, CLAN_COOKIE_ONCE, &cookie);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 0, 0, 0), 0);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 0, 0, 0), -ESTALE);
	for (uint32_t i = 0; i < 63; i++) {
		world_grant(&world, WORLD_DIALER, region, 0, 100, CLAN_WRITE, 0, &again);
	}
	assert_int_equal(clan_cookie_grant(owner, region, 0, 100, CLAN_WRITE, 0, &cookie), -ENOSPC);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &again, 0, 0, 0), 0);
	/* Taking the region back voids what is left. */
	assert_int_equal(clan_region_unshare(owner, region), 0);
	world_settle(&world);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &again, 0, 0, 0), -ESTALE);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_UNSHARED);
	assert_int_equal(clan_region_destroy(region), 0);
	world_close(&world);
}

TEST(held_regions_are_not_returned)
{
	struct clan_peer_region info = { .size = sizeof(info) };
	struct clan_event shared;
	struct clan_event told;
	struct clan_region *region;
	struct clan_conn *user;
	struct world world;
	uint8_t *base;
	void *at;

	need_shm(state);
	world_open(&world, kind_of(state), NULL);
	user = world.conns[WORLD_SERVER];
	region = world_region(&world, WORLD_DIALER, 8192, CLAN_READ | CLAN_WRITE, &base, &shared);
	told = world_event(&world, WORLD_SERVER, CLAN_EVENT_REGION);
	assert_int_equal(told.number, shared.number);
	assert_int_equal(told.generation, shared.generation);
	assert_int_equal(clan_peer_region_info(user, told.number, &info), 0);
	assert_int_equal(info.bytes, 8192);
	assert_int_equal(
		clan_peer_region_get(user, told.number, told.generation, CLAN_WRITE, 100, 50, &at),
		0);
	memcpy(at, "direct", 7);
	assert_string_equal((char *)base + 100, "direct");
	assert_int_equal(
		clan_peer_region_get(user, told.number, told.generation, CLAN_READ, 8192, 1, &at),
		-ERANGE);
	assert_int_equal(clan_peer_region_get(
				 user, told.number, told.generation, CLAN_READ, UINT64_MAX, 2, &at),
		-ERANGE);
	assert_int_equal(
		clan_peer_region_get(user, told.number, told.generation + 1, CLAN_READ, 0, 1, &at),
		-ESTALE);
	assert_int_equal(
		clan_peer_region_get(user, told.number + 1, 1, CLAN_READ, 0, 1, &at), -ENOENT);
	assert_int_equal(clan_region_unshare(world.conns[WORLD_DIALER], region), 0);
	world_event(&world, WORLD_SERVER, CLAN_EVENT_REGION_ENDING);
	assert_int_equal(
		clan_peer_region_get(user, told.number, told.generation, CLAN_READ, 0, 1, &at),
		-ESTALE);
	world_no_event(&world, WORLD_DIALER, CLAN_EVENT_UNSHARED);
	clan_peer_region_put(user, told.number);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_UNSHARED);
	/* Again: the next generation. */
	assert_int_equal(
		clan_region_share(world.conns[WORLD_DIALER], region, CLAN_READ | CLAN_WRITE), 0);
	shared = world_event(&world, WORLD_DIALER, CLAN_EVENT_SHARED);
	assert_int_equal(shared.number, told.number);
	assert_true(shared.generation > told.generation);
	close_with_region(&world, WORLD_DIALER, region);
}

TEST(memfds_can_be_imported)
{
	int memfd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct clan_region *region;
	struct clan_event event;
	struct world world;
	void *base;
	void *at;

	need_shm(state);
	assert_true(memfd >= 0);
	assert_int_equal(ftruncate(memfd, 16384), 0);
	world_open(&world, kind_of(state), NULL);
	assert_int_equal(
		clan_region_import(world.queues[WORLD_DIALER], memfd, 4096, 8192, &region, &base),
		-EPERM); /* it could shrink under us */
	assert_int_equal(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	assert_int_equal(
		clan_region_import(world.queues[WORLD_DIALER], memfd, 12288, 8192, &region, &base),
		-EINVAL);
	assert_int_equal(
		clan_region_import(world.queues[WORLD_DIALER], memfd, 4096, 8192, &region, &base),
		0);
	close(memfd);
	memcpy(base, "mine", 5);
	assert_true(clan_region_memfd(region, &(uint64_t){ 0 }) >= 0);
	assert_int_equal(clan_region_share(world.conns[WORLD_DIALER], region, CLAN_READ), -EPERM);
	assert_int_equal(
		clan_region_share(world.conns[WORLD_DIALER], region, CLAN_READ | CLAN_WRITE), 0);
	event = world_event(&world, WORLD_SERVER, CLAN_EVENT_REGION);
	assert_int_equal(clan_peer_region_get(world.conns[WORLD_SERVER], event.number,
				 event.generation, CLAN_READ, 0, 5, &at),
		0);
	assert_string_equal(at, "mine");
	clan_peer_region_put(world.conns[WORLD_SERVER], event.number);
	assert_int_equal(clan_region_replace(region, NULL, 0), -EOPNOTSUPP);
	close_with_region(&world, WORLD_DIALER, region);
}

TEST(regions_beyond_the_limit_are_refused)
{
	struct clan_conn_options options = {
		.size = sizeof(options), .peer_regions_max = 2, .peer_region_bytes_max = 3 << 20
	};
	struct clan_region *regions[4];
	struct clan_event event;
	struct world world;
	void *base;

	world_open(&world, kind_of(state), &options);
	for (int i = 0; i < 4; i++) {
		size_t bytes = i == 1 ? 4 << 20 : 1 << 20;

		assert_int_equal(clan_region_create(
					 world.queues[WORLD_DIALER], bytes, 0, &regions[i], &base),
			0);
		assert_int_equal(
			clan_region_share(world.conns[WORLD_DIALER], regions[i], CLAN_WRITE), 0);
		event = world_event(&world, WORLD_DIALER, CLAN_EVENT_SHARED);
		assert_int_equal(event.status, i == 1 || i == 3 ? -EDQUOT : 0);
	}
	world_close_conn(&world, WORLD_DIALER, world.conns[WORLD_DIALER]);
	world.conns[WORLD_DIALER] = NULL;
	for (int i = 0; i < 4; i++) {
		assert_int_equal(clan_region_destroy(regions[i]), 0);
	}
	world_close(&world);
}

TEST(replaced_pages_take_no_late_bytes)
{
	static const struct clan_range scratch = { .offset = 4096, .bytes = 8192 };
	struct clan_event shared;
	struct clan_event told;
	struct clan_region *region;
	struct clan_conn *user;
	struct world world;
	uint8_t *base;
	void *at;

	need_shm(state);
	world_open(&world, kind_of(state), NULL);
	user = world.conns[WORLD_SERVER];
	region =
		world_region(&world, WORLD_DIALER, 1 << 20, CLAN_READ | CLAN_WRITE, &base, &shared);
	told = world_event(&world, WORLD_SERVER, CLAN_EVENT_REGION);
	memset(base, 'k', 1 << 20);
	assert_int_equal(clan_peer_region_get(
				 user, told.number, told.generation, CLAN_WRITE, 4096, 8192, &at),
		0);
	assert_int_equal(clan_region_replace(region, &scratch, 1), -EBUSY);
	/* The connection ends while the peer still writes. */
	clan_close(user);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_LOST);
	assert_int_equal(clan_region_replace(region, &scratch, 1), 0);
	memset(at, 'x', 8192);
	assert_int_equal(base[4095], 'k');
	assert_int_equal(base[12288], 'k');
	for (size_t i = 0; i < 1 << 20; i++) {
		assert_int_not_equal(base[i], 'x');
	}
	clan_peer_region_put(user, told.number);
	world_event(&world, WORLD_SERVER, CLAN_EVENT_CLOSED);
	world.conns[WORLD_SERVER] = NULL;
	/* It can be shared again at once. */
	struct clan_conn *conns[WORLD_SIDES];

	world_connect(&world, NULL, conns);
	assert_int_equal(clan_region_share(conns[WORLD_DIALER], region, CLAN_READ), 0);
	assert_int_equal(world_event(&world, WORLD_DIALER, CLAN_EVENT_SHARED).status, 0);
	told = world_event(&world, WORLD_SERVER, CLAN_EVENT_REGION);
	assert_int_equal(clan_peer_region_get(conns[WORLD_SERVER], told.number, told.generation,
				 CLAN_READ, 0, 1 << 20, &at),
		0);
	assert_memory_equal(at, base, 1 << 20);
	clan_peer_region_put(conns[WORLD_SERVER], told.number);
	world_close_conn(&world, WORLD_DIALER, conns[WORLD_DIALER]);
	world_close_conn(&world, WORLD_SERVER, conns[WORLD_SERVER]);
	close_with_region(&world, WORLD_DIALER, region);
}

/* --- tripwires, cookie queues ----------------------------------------------------------------- */

TEST(tripwires_trip_once)
{
	struct clan_cookie cookie;
	struct clan_event shared;
	struct clan_event event;
	struct clan_region *region;
	struct clan_conn *owner;
	struct world world;
	char text[4] = "abc";
	struct iovec iov = { text, 4 };
	uint8_t *base;
	uint32_t first;
	uint32_t second;

	world_open(&world, kind_of(state), NULL);
	owner = world.conns[WORLD_DIALER];
	region = world_region(&world, WORLD_DIALER, 8192, CLAN_WRITE, &base, &shared);
	world_grant(&world, WORLD_DIALER, region, 4096, 4096, CLAN_WRITE, 0, &cookie);
	assert_int_equal(clan_tripwire(owner, region, 4096 + 100, 8, &first), 0);
	assert_int_equal(clan_tripwire(owner, region, 4096 + 104, 8, &second), 0);
	assert_int_equal(clan_tripwire(owner, region, 8190, 8, &second), -ERANGE);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 96, 0, 0), 0);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 112, 0, 0), 0);
	world_no_event(&world, WORLD_DIALER, CLAN_EVENT_TRIPPED);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 98, 0, 0), 0);
	event = world_event(&world, WORLD_DIALER, CLAN_EVENT_TRIPPED);
	assert_int_equal(event.number, first);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 98, 0, 0), 0);
	world_no_event(&world, WORLD_DIALER, CLAN_EVENT_TRIPPED);
	assert_int_equal(clan_rearm(owner, first), 0);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 104, 0, 0), 0);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_TRIPPED);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_TRIPPED);
	assert_int_equal(clan_rearm(owner, second), 0);
	assert_int_equal(clan_tripwire_remove(owner, second), 0);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 104, 0, 0), 0);
	world_no_event(&world, WORLD_DIALER, CLAN_EVENT_TRIPPED);
	assert_int_equal(clan_rearm(owner, second), -ENOENT);
	close_with_region(&world, WORLD_DIALER, region);
}

TEST(many_trips_wait_for_room)
{
	enum { COUNT = 200 }; /* the system ring has 32 slots */
	struct clan_conn_options options = { .size = sizeof(options), .tripwires = COUNT };
	struct clan_cookie cookie;
	struct clan_event shared;
	struct clan_region *region;
	struct world world;
	uint8_t page[4096] = { 0 };
	struct iovec iov = { page, sizeof(page) };
	uint8_t *base;
	uint32_t number;

	world_open(&world, kind_of(state), &options);
	region = world_region(&world, WORLD_DIALER, 4096, CLAN_WRITE, &base, &shared);
	world_grant(&world, WORLD_DIALER, region, 0, 4096, CLAN_WRITE, 0, &cookie);
	for (uint32_t i = 0; i < COUNT; i++) {
		assert_int_equal(
			clan_tripwire(world.conns[WORLD_DIALER], region, i, 1, &number), 0);
	}
	assert_int_equal(clan_tripwire(world.conns[WORLD_DIALER], region, 0, 1, &number), -ENOSPC);
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 0, 0, 0), 0);
	for (uint32_t i = 0; i < COUNT; i++) {
		world_event(&world, WORLD_DIALER, CLAN_EVENT_TRIPPED);
	}
	world_no_event(&world, WORLD_DIALER, CLAN_EVENT_TRIPPED);
	close_with_region(&world, WORLD_DIALER, region);
}

TEST(cookie_queues_are_first_in_first_out)
{
	struct clan_conn_options options = { .size = sizeof(options), .cookies = 100 };
	struct clan_cookie cookies[100];
	struct clan_cookie popped;
	struct clan_event shared;
	struct clan_region *region;
	struct clan_conn *user;
	struct clan_conn *owner;
	struct world world;
	uint8_t *base;
	uint32_t pushed = 0;
	uint32_t count = 0;

	world_open(&world, kind_of(state), &options);
	owner = world.conns[WORLD_DIALER];
	user = world.conns[WORLD_SERVER];
	region = world_region(&world, WORLD_DIALER, 4096, CLAN_WRITE, &base, &shared);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(
			clan_cookie_grant(owner, region, i, 1, CLAN_WRITE, 0, &cookies[i]), 0);
	}
	assert_int_equal(clan_cookie_queue_pop(user, 3, &popped), -EAGAIN);
	while (pushed < 100) {
		int result =
			clan_cookie_queue_push(owner, pushed % 2 == 0 ? 3 : 4, &cookies[pushed]);

		if (result == -EAGAIN) { /* no room in the ring */
			world_ready(&world, WORLD_DIALER, owner, CLAN_READY_PUSH_COOKIE);
			continue;
		}
		assert_int_equal(result, 0);
		pushed++;
	}
	/* The queues together hold what can be granted, and no more. */
	assert_int_equal(clan_cookie_queue_push(owner, 3, &cookies[0]), -EAGAIN);
	world_no_event(&world, WORLD_DIALER, CLAN_EVENT_READY);
	world_ready(&world, WORLD_SERVER, user, CLAN_READY_COOKIES);
	while (clan_cookie_queue_pop(user, 3, &popped) == 0) {
		assert_memory_equal(&popped, &cookies[count], sizeof(popped));
		count += 2;
	}
	assert_int_equal(count, 100);
	world_ready(&world, WORLD_DIALER, owner, CLAN_READY_PUSH_COOKIE);
	for (count = 1; clan_cookie_queue_pop(user, 4, &popped) == 0; count += 2) {
		assert_memory_equal(&popped, &cookies[count], sizeof(popped));
	}
	assert_int_equal(count, 101);
	assert_int_equal(world_revoke(&world, WORLD_DIALER, &cookies[0], 0), 0);
	assert_int_equal(clan_cookie_queue_push(owner, 3, &cookies[0]), -ESTALE);
	assert_int_equal(clan_cookie_queue_push(owner, CLAN_COOKIE_QUEUES, &cookies[1]), -EINVAL);
	close_with_region(&world, WORLD_DIALER, region);
}

/* --- queues ----------------------------------------------------------------------------------- */

TEST(the_descriptor_tells_a_foreign_loop)
{
	struct pollfd poll_fd = { .events = POLLIN };
	struct clan_message message;
	struct clan_event event;
	struct world world;
	char text[8];

	world_open(&world, kind_of(state), NULL);
	poll_fd.fd = clan_queue_fd(world.queues[WORLD_SERVER]);
	for (int round = 0; round < 100; round++) {
		while (clan_queue_arm(world.queues[WORLD_SERVER]) != 0) {
			assert_true(clan_queue_wait(world.queues[WORLD_SERVER], &event, 1, 0) >= 0);
		}
		assert_int_equal(clan_send(world.conns[WORLD_DIALER], CLAN_BULK, 1, "ping", 5), 0);
		clan_flush(world.conns[WORLD_DIALER]);
		assert_int_equal(poll(&poll_fd, 1, 60000), 1);
		assert_int_equal(clan_queue_wait(world.queues[WORLD_SERVER], &event, 1, 0), 1);
		assert_int_equal(event.type, CLAN_EVENT_READY);
		assert_int_equal(clan_recv(world.conns[WORLD_SERVER], CLAN_ANY, &message, text,
					 sizeof(text)),
			0);
		assert_int_equal(clan_recv(world.conns[WORLD_SERVER], CLAN_ANY, &message, text,
					 sizeof(text)),
			-EAGAIN);
	}
	world_close(&world);
}

/* The bell of a group goes by the socket of one connection, which its waiter closes: before it was
 * rung, or before it was heard. The other connection must be heard all the same. */
TEST(a_bell_outlives_its_connection)
{
	for (int closed_first = 0; closed_first < 2; closed_first++) {
		struct clan_conn *other[WORLD_SIDES];
		struct clan_event event = { 0 };
		struct world world;
		bool closed = false;

		world_open(&world, kind_of(state), NULL);
		world_connect(&world, NULL, other);
		if (closed_first != 0) {
			clan_close(world.conns[WORLD_SERVER]);
		}
		while (clan_queue_arm(world.queues[WORLD_SERVER]) != 0) {
			assert_true(clan_queue_wait(world.queues[WORLD_SERVER], &event, 1, 0) >= 0);
		}
		for (int i = 0; i < 2; i++) {
			struct clan_conn *conn =
				i == 0 ? world.conns[WORLD_DIALER] : other[WORLD_DIALER];

			assert_int_equal(clan_send(conn, CLAN_BULK, 1, "x", 1), 0);
			clan_flush(conn);
		}
		if (closed_first == 0) {
			clan_close(world.conns[WORLD_SERVER]);
		}
		do {
			closed |= event.type == CLAN_EVENT_CLOSED;
			assert_int_equal(
				clan_queue_wait(world.queues[WORLD_SERVER], &event, 1, 10000), 1);
		} while (event.type == CLAN_EVENT_CLOSED);
		assert_int_equal(event.type, CLAN_EVENT_READY);
		assert_ptr_equal(event.conn, other[WORLD_SERVER]);
		closed =
			closed || world_event(&world, WORLD_SERVER, CLAN_EVENT_CLOSED).conn != NULL;
		world.conns[WORLD_SERVER] = NULL;
		for (int side = 0; side < WORLD_SIDES; side++) {
			world_close_conn(&world, side, other[side]);
		}
		world_close(&world);
	}
}

TEST(events_are_given_one_at_a_time)
{
	struct clan_event event;
	struct world world;

	world_open(&world, kind_of(state), NULL);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(clan_send(world.conns[WORLD_DIALER], CLAN_BULK, 1, "x", 1), 0);
		clan_flush(world.conns[WORLD_DIALER]);
	}
	event = world_event(&world, WORLD_SERVER, CLAN_EVENT_READY);
	assert_int_equal(event.ready & CLAN_READY_BULK, CLAN_READY_BULK);
	/* Nothing was received: the event is blocked, whatever comes. */
	assert_int_equal(clan_send(world.conns[WORLD_DIALER], CLAN_BULK, 1, "x", 1), 0);
	world_no_event(&world, WORLD_SERVER, CLAN_EVENT_READY);
	assert_int_equal(clan_queue_destroy(world.queues[WORLD_SERVER]), -EBUSY);
	world_close(&world);
}

int main(int argc, char **argv)
{
	if (argc == 3) {
		for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
			kinds[i].network = kinds[i].network == NULL ? NULL : argv[1];
		}
		cmocka_set_test_filter(argv[2]);
	}
	return unit_run_kinds(kinds, sizeof(kinds[0]), ARRAY_COUNT(kinds));
}
