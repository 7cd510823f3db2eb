// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clan/tcp.h"

#include "net_hostile.h"
#include "unit.h"

const char *const hostile_scheme = "tcp";
const char *const hostile_network = "tcp:127.0.0.1:0";
const uint64_t hostile_magic = TCP_MAGIC;
const bool hostile_has_put = false;

struct hostile *hostile_create(void)
{
	struct hostile *hostile = calloc(1, sizeof(*hostile));

	assert_non_null(hostile);
	hostile->carrier = calloc(1, sizeof(int));
	assert_non_null(hostile->carrier);
	return hostile;
}

void hostile_destroy(struct hostile *hostile)
{
	free(hostile->carrier);
	free(hostile);
}

void hostile_look(struct hostile *hostile)
{
	const int *fd = hostile->carrier;
	char bytes[4096];
	ssize_t got;

	do {
		got = recv(*fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	} while (got > 0);
	hostile->ended |= got == 0 || errno == ECONNRESET;
}

void hostile_open(struct hostile *hostile, struct world *world)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int *fd = hostile->carrier;
	unsigned port;

	assert_int_equal(sscanf(world->address, "tcp:127.0.0.1:%u", &port), 1);
	address.sin_port = htons((uint16_t)port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	*fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(*fd >= 0);
	assert_int_equal(connect(*fd, (struct sockaddr *)&address, sizeof(address)), 0);
	world_turn(world, WORLD_SERVER);
}

void hostile_close(struct hostile *hostile)
{
	const int *fd = hostile->carrier;

	close(*fd);
}

void hostile_send(struct hostile *hostile)
{
	struct tcp_head head = { .kind = TCP_FRAME, .bytes = (uint32_t)hostile->bytes };
	struct iovec iov[2] = { { &head, sizeof(head) }, { hostile->frame, hostile->bytes } };
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 };
	const int *fd = hostile->carrier;

	assert_int_equal(
		sendmsg(*fd, &message, MSG_NOSIGNAL), (ssize_t)(sizeof(head) + hostile->bytes));
}

/* --- what a peer can do with a socket alone --------------------------------------------------- */

enum { REGION_BYTES = 1 << 20, COOKIE_BYTES = REGION_BYTES / 2 };

/* A hostile to whom the server has granted a part of a region; the rest is not its business. */
struct victim {
	struct world world;
	struct hostile *hostile;
	struct clan_conn *conn;
	struct clan_region *region;
	uint8_t *base;
	struct clan_cookie cookie;
};

static int fd_of(const struct hostile *hostile)
{
	const int *fd = hostile->carrier;

	return *fd;
}

static void send_bytes(struct victim *victim, const void *bytes, size_t count)
{
	assert_int_equal(send(fd_of(victim->hostile), bytes, count, MSG_NOSIGNAL), (ssize_t)count);
}

static void send_record(
	struct victim *victim, enum net_system_type type, const void *data, size_t bytes)
{
	frame_begin(victim->hostile);
	frame_record(victim->hostile, NET_SYSTEM, type, data, bytes);
	frame_send(victim->hostile, &victim->world);
}

static void victim_open(struct victim *victim, uint32_t rights, uint32_t flags)
{
	struct net_region_answer answer = { .region = 0, .generation = 1 };
	struct clan_event event;
	void *base;

	memset(victim, 0, sizeof(*victim));
	world_open(&victim->world, hostile_world, NULL);
	victim->hostile = hostile_create();
	victim->conn = hostile_accepted(victim->hostile, &victim->world);
	assert_int_equal(clan_region_create(victim->world.queues[WORLD_SERVER], REGION_BYTES, 0,
				 &victim->region, &base),
		0);
	victim->base = base;
	assert_int_equal(
		clan_region_share(victim->conn, victim->region, CLAN_READ | CLAN_WRITE), 0);
	world_turn(&victim->world, WORLD_SERVER);
	send_record(victim, NET_REGION_OK, &answer, sizeof(answer));
	event = world_event(&victim->world, WORLD_SERVER, CLAN_EVENT_SHARED);
	assert_int_equal(event.status, 0);
	assert_int_equal(clan_cookie_grant(victim->conn, victim->region, 0, COOKIE_BYTES, rights,
				 flags, &victim->cookie),
		0);
	world_turn(&victim->world, WORLD_SERVER);
}

static void victim_close(struct victim *victim)
{
	world_close_conn(&victim->world, WORLD_SERVER, victim->conn);
	assert_int_equal(clan_region_destroy(victim->region), 0);
	hostile_close(victim->hostile);
	hostile_destroy(victim->hostile);
	victim->world.kept_count[WORLD_SERVER] = 0;
	honest_works(&victim->world);
	world_close(&victim->world);
}

/* The connection ends by that rule, and the region is as it was made. */
static void expect_broken(struct victim *victim, const char *rule)
{
	struct clan_event event = world_event(&victim->world, WORLD_SERVER, CLAN_EVENT_LOST);

	assert_ptr_equal(event.conn, victim->conn);
	assert_int_equal(event.status, -EPROTO);
	if (strstr(clan_conn_reason(victim->conn), rule) == NULL) {
		fail_msg("not %s: %s", rule, clan_conn_reason(victim->conn));
	}
	for (size_t i = 0; i < REGION_BYTES; i++) {
		assert_int_equal(victim->base[i], 0);
	}
	victim->world.kept_count[WORLD_SERVER] = 0;
}

static struct tcp_access_head access_head(
	const struct victim *victim, enum tcp_kind kind, uint32_t bytes)
{
	return (struct tcp_access_head){
		.head = { .kind = (uint8_t)kind, .slot = victim->cookie.slot, .bytes = bytes },
		.generation = victim->cookie.generation,
	};
}

/* Breaks a rule of heads; NULL: there is no such way. */
static const char *break_head(struct victim *victim, int way)
{
	struct tcp_access_head head = access_head(victim, TCP_WRITE, 8);
	struct tcp_head frame = { .kind = TCP_FRAME, .bytes = 16 };
	static const uint8_t bytes[64] = { 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x' };
	const char *rule = way < 8 ? "O14" : way < 16 ? "O15" : way == 16 ? "O16" : "O17";
	bool is_frame = false;
	uint32_t count = 1;

	switch (way) {
	case 0:
		head.head.kind = 0;
		break;
	case 1:
		head.head.kind = TCP_ANSWER + 1;
		break;
	case 2:
		head.head.reserved = 1;
		break;
	case 3:
		head.reserved = 1;
		break;
	case 4:
		head.head.bytes = 0;
		break;
	case 5:
		is_frame = true;
		frame.slot = 1;
		break;
	case 6:
		is_frame = true;
		frame.bytes = NET_FRAME_BYTES + 8;
		break;
	case 7:
		is_frame = true;
		frame.bytes = 0;
		break;
	case 8:
		head.head.slot++;
		break;
	case 9:
		head.head.slot = UINT16_MAX;
		break;
	case 10:
		head.generation++;
		break;
	case 11:
		head.generation = 0;
		break;
	case 12: /* the region goes on, the cookie does not */
		head.offset = COOKIE_BYTES - 7;
		break;
	case 13:
		head.offset = UINT64_MAX;
		break;
	case 14:
		head.head.bytes = UINT32_MAX;
		break;
	case 15: /* the cookie is for writing */
		head.head.kind = TCP_READ;
		break;
	case 16: /* answers that nobody takes */
		head = access_head(victim, TCP_READ, COOKIE_BYTES);
		count = 200; /* the kernel takes some */
		break;
	case 17:
		head.head = (struct tcp_head){ .kind = TCP_ANSWER, .bytes = 8 };
		break;
	default:
		return NULL;
	}
	for (uint32_t i = 0; i < count; i++) {
		send_bytes(victim, is_frame ? (const void *)&frame : (const void *)&head,
			is_frame ? sizeof(frame) : sizeof(head));
	}
	if (count == 1) {
		send_bytes(victim, bytes, sizeof(bytes));
	}
	return rule;
}

TEST(heads_are_checked)
{
	const char *rule = "";

	for (int way = 0; rule != NULL; way++) {
		struct victim victim;

		victim_open(&victim, way == 16 ? CLAN_READ : CLAN_WRITE, 0);
		rule = break_head(&victim, way);
		if (rule != NULL) {
			expect_broken(&victim, rule);
		}
		victim_close(&victim);
	}
}

/* Until the peer has said that a cookie is used no more it may finish, and then no byte arrives. */
TEST(nothing_is_put_after_a_revocation)
{
	struct tcp_access_head head;
	struct net_revoke revoked;
	struct victim victim;

	victim_open(&victim, CLAN_WRITE, 0);
	head = access_head(&victim, TCP_WRITE, 4);
	revoked = (struct net_revoke){ .slot = head.head.slot, .generation = head.generation };
	send_bytes(&victim, &head, sizeof(head));
	send_bytes(&victim, "pu", 2);
	assert_int_equal(clan_cookie_revoke(victim.conn, &victim.cookie, 0, NULL), 0);
	world_settle(&victim.world);
	world_no_event(&victim.world, WORLD_SERVER, CLAN_EVENT_REVOKED);
	send_bytes(&victim, "ts", 2);
	send_record(&victim, NET_REVOKED, &revoked, sizeof(revoked));
	world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_REVOKED);
	assert_memory_equal(victim.base, "puts", 4);
	memset(victim.base, 0, 4);
	send_bytes(&victim, &head, sizeof(head));
	send_bytes(&victim, "late", 4);
	expect_broken(&victim, "O15");
	victim_close(&victim);
}

TEST(a_cookie_for_once_is_used_once)
{
	struct tcp_access_head head;
	struct victim victim;

	victim_open(&victim, CLAN_WRITE, CLAN_COOKIE_ONCE);
	head = access_head(&victim, TCP_WRITE, 4);
	for (int i = 0; i < 2; i++) {
		send_bytes(&victim, &head, sizeof(head));
		send_bytes(&victim, "\0\0\0\0", 4);
	}
	expect_broken(&victim, "O15");
	victim_close(&victim);
}

/* Who reads and does not take the answer cannot give the cookie, or the region, back. */
TEST(what_is_read_is_not_given_back)
{
	for (int way = 0; way < 2; way++) {
		struct net_region_answer ended = { .region = 0, .generation = 1 };
		struct tcp_access_head head;
		struct net_revoke revoked;
		struct victim victim;

		victim_open(&victim, CLAN_READ, 0);
		head = access_head(&victim, TCP_READ, COOKIE_BYTES);
		revoked = (struct net_revoke){ .slot = head.head.slot,
			.generation = head.generation };
		for (int i = 0; i < TCP_READS; i++) {
			send_bytes(&victim, &head, sizeof(head));
		}
		world_settle(&victim.world);
		frame_begin(victim.hostile);
		if (way == 0) {
			assert_int_equal(
				clan_cookie_revoke(victim.conn, &victim.cookie, 0, NULL), 0);
			frame_record(
				victim.hostile, NET_SYSTEM, NET_REVOKED, &revoked, sizeof(revoked));
		} else {
			assert_int_equal(clan_region_unshare(victim.conn, victim.region), 0);
			frame_record(victim.hostile, NET_SYSTEM, NET_REGION_ENDED, &ended,
				sizeof(ended));
		}
		/* What the server has to say waits behind the answers, which stay. */
		victim.hostile->head.bytes = (uint16_t)victim.hostile->bytes;
		memcpy(victim.hostile->frame, &victim.hostile->head, sizeof(victim.hostile->head));
		hostile_send(victim.hostile);
		expect_broken(&victim, way == 0 ? "O12" : "O10");
		victim_close(&victim);
	}
}

/* Half of a put has come when its sender goes. */
TEST(a_put_that_is_cut_ends_there)
{
	struct tcp_access_head head;
	uint8_t bytes[5000];
	struct victim victim;

	memset(bytes, 'x', sizeof(bytes));
	victim_open(&victim, CLAN_WRITE, 0);
	head = access_head(&victim, TCP_WRITE, 2 * sizeof(bytes));
	send_bytes(&victim, &head, sizeof(head));
	send_bytes(&victim, bytes, sizeof(bytes));
	shutdown(fd_of(victim.hostile), SHUT_WR);
	assert_int_equal(
		world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST).status, -ECONNRESET);
	assert_memory_equal(victim.base, bytes, sizeof(bytes));
	assert_int_equal(victim.base[sizeof(bytes)], 0);
	victim_close(&victim);
}

/* What the program of the victim expects, as its context. */
struct expected {
	const uint8_t *base;
	size_t bytes;
	uint32_t checks;
};

static int is_expected(void *context, const void *memory, size_t bytes)
{
	struct expected *expected = context;
	size_t at = (size_t)((const uint8_t *)memory - expected->base);

	expected->checks++;
	return at <= expected->bytes && bytes <= expected->bytes - at;
}

/* Waits until the bytes have come. */
static void expect_bytes(struct victim *victim, const uint8_t *at, const char *bytes, size_t count)
{
	for (int i = 0; i < 500 && memcmp(at, bytes, count) != 0; i++) {
		world_settle(&victim->world);
	}
	assert_memory_equal(at, bytes, count);
}

/* The cookie is for half of the region, the program expects a few bytes of it. */
TEST(a_put_is_expected_until_its_end)
{
	for (int way = 0; way < 3; way++) {
		struct tcp_access_head head;
		struct expected expected;
		struct victim victim;

		victim_open(&victim, CLAN_WRITE, 0);
		expected = (struct expected){ victim.base + 100, 4, 0 };
		clan_conn_set_context(victim.conn, &expected);
		clan_conn_check_puts(victim.conn, is_expected);
		head = access_head(&victim, TCP_WRITE, 4);
		head.offset = 100;
		send_bytes(&victim, &head, sizeof(head));
		send_bytes(&victim, "put.", 4);
		expect_bytes(&victim, victim.base + 100, "put.", 4);
		memset(victim.base, 0, REGION_BYTES);
		head.offset = way == 0 ? 101 : 100; /* one byte too far */
		head.head.bytes = way == 1 ? 5 : 4; /* one byte too long */
		send_bytes(&victim, &head, sizeof(head));
		if (way == 2) {
			send_bytes(&victim, "pu", 2);
			expect_bytes(&victim, victim.base + 100, "pu", 3);
			memset(victim.base, 0, REGION_BYTES);
			expected.bytes = 0; /* the program uses the memory for something else */
		}
		send_bytes(&victim, "late.", 5);
		expect_broken(&victim, "O18");
		victim_close(&victim);
	}
}

/* A check of the program can take long, so a turn ends after some. */
TEST(small_puts_leave_others_their_turn)
{
	enum { PUTS = 4000, PUT_BYTES = sizeof(struct tcp_access_head) + 1, CHECKS_MAX = 2000 };
	const int room = PUTS * PUT_BYTES;
	uint8_t *stream = malloc(PUTS * PUT_BYTES);
	struct tcp_access_head head;
	struct expected expected;
	struct victim victim;
	uint32_t before;

	assert_non_null(stream);
	victim_open(&victim, CLAN_WRITE, 0);
	expected = (struct expected){ victim.base, 1, 0 };
	clan_conn_set_context(victim.conn, &expected);
	clan_conn_check_puts(victim.conn, is_expected);
	head = access_head(&victim, TCP_WRITE, 1);
	for (int i = 0; i < PUTS; i++) {
		memcpy(stream + i * PUT_BYTES, &head, sizeof(head));
		stream[(i + 1) * PUT_BYTES - 1] = 'x';
	}
	assert_int_equal(
		setsockopt(fd_of(victim.hostile), SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
	send_bytes(&victim, stream, PUTS * PUT_BYTES);
	while (expected.checks < PUTS) {
		struct clan_event event;

		before = expected.checks;
		assert_true(clan_queue_wait(victim.world.queues[WORLD_SERVER], &event, 1, 0) >= 0);
		assert_in_range(expected.checks - before, 0, CHECKS_MAX);
	}
	victim_close(&victim);
	free(stream);
}

/* Puts, messages and a get, cut at every byte; what follows a put is seen after it. */
TEST(one_byte_at_a_time)
{
	uint8_t stream[256];
	struct net_record_head record = {
		.bytes = sizeof(record) + 8, .type = 1, .class = NET_BULK
	};
	struct net_frame_head frame = { .bytes = sizeof(frame) + sizeof(record) + 8 };
	struct tcp_head outer = { .kind = TCP_FRAME, .bytes = frame.bytes };
	struct tcp_access_head head;
	struct clan_message message;
	struct victim victim;
	char text[9] = "";
	size_t count = 0;

	victim_open(&victim, CLAN_WRITE, 0);
	head = access_head(&victim, TCP_WRITE, 11);
	memcpy(stream, &head, sizeof(head));
	memcpy(stream + sizeof(head), "hello world", 11);
	count = sizeof(head) + 11;
	memcpy(stream + count, &outer, sizeof(outer));
	memcpy(stream + count + sizeof(outer), &frame, sizeof(frame));
	count += sizeof(outer) + sizeof(frame);
	memcpy(stream + count, &record, sizeof(record));
	memcpy(stream + count + sizeof(record), "message!", 8);
	count += sizeof(record) + 8;
	for (size_t i = 0; i < count; i++) {
		send_bytes(&victim, stream + i, 1);
		world_turn(&victim.world, WORLD_SERVER);
		if (i + 1 < count) {
			assert_int_equal(
				clan_recv(victim.conn, CLAN_BULK, &message, text, 8), -EAGAIN);
		}
	}
	message = world_recv(&victim.world, WORLD_SERVER, victim.conn, text, 8);
	assert_int_equal(message.bytes, 8);
	assert_string_equal(text, "message!");
	assert_memory_equal(victim.base, "hello world", 11);
	victim_close(&victim);
}

/* A connector that reaches something else is told so. */
TEST(what_listens_there_is_something_else)
{
	for (int way = 0; way < 2; way++) {
		struct sockaddr_in address = { .sin_family = AF_INET };
		socklen_t length = sizeof(address);
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		struct clan_event event;
		struct clan_conn *conn;
		struct world world;
		char text[64];
		int client;

		address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
		assert_int_equal(listen(fd, 1), 0);
		assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
		world_listen(&world, hostile_world, NULL);
		snprintf(text, sizeof(text), "tcp:127.0.0.1:%u", ntohs(address.sin_port));
		assert_int_equal(
			clan_connect(world.queues[WORLD_DIALER], text, NULL, NULL, 0, &conn, NULL),
			0);
		while ((client = accept(fd, NULL, NULL)) < 0) {
			world_turn(&world, WORLD_DIALER);
		}
		if (way == 0) {
			assert_int_equal(
				send(client, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, 0), 28);
		} else {
			shutdown(client, SHUT_WR);
		}
		event = world_event(&world, WORLD_DIALER, CLAN_EVENT_LOST);
		assert_int_equal(event.status, way == 0 ? -EPROTO : -ECONNRESET);
		assert_non_null(strstr(clan_conn_reason(conn),
			way == 0 ? "uses another protocol" : "that of another protocol"));
		world_close_conn(&world, WORLD_DIALER, conn);
		close(client);
		close(fd);
		world_close(&world);
	}
}
