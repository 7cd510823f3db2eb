// SPDX-License-Identifier: Apache-2.0
/*
 * What connections over a network do apart from those of shm, and a peer made by hand from
 * docs/protocol/clan.md §12 that breaks every rule of it. What it does harms its own connection and
 * no other. Built for each transport, with the carrier of its peer.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"
#include "clan_world.h"
#include "net_hostile.h"
#include "unit.h"

static struct world_kind network = { .name = "network" };
const struct world_kind *const hostile_world = &network;

void world_address(struct world *world)
{
	GMB_UNUSED(world);
	fail(); /* every world here is on the network */
}

/* --- what only this provider does ------------------------------------------------------------- */

TEST(addresses)
{
	static const char *const bad[] = { "", "host", "host:", ":1", "[::1:1", "[::1]1",
		"host:port", "host:65536", "host:1?provider=udp", "host:1?tcp", "host:-1" };
	char address[64];
	struct clan_conn_options options = { .size = sizeof(options), .access = CLAN_ACCESS_ANY };
	struct clan_error error = { 0 };
	struct clan_listener *listener;
	struct clan_queue *queue;
	struct clan_conn *conn;

	assert_int_equal(clan_queue_create(NULL, &queue, &error), 0);
	for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
		snprintf(address, sizeof(address), "%s:%s", hostile_scheme, bad[i]);
		assert_int_equal(
			clan_connect(queue, address, NULL, NULL, 0, &conn, &error), -EINVAL);
		assert_int_equal(clan_listen(queue, address, &options, &listener, &error), -EINVAL);
	}
	/* Nobody knows who comes over a network, so it has to be said. */
	assert_int_equal(clan_listen(queue, hostile_network, NULL, &listener, &error), -EINVAL);
	assert_non_null(strstr(error.text, "CLAN_ACCESS_ANY"));
	snprintf(address, sizeof(address), "%s:[::1]:0", hostile_scheme);
	assert_int_equal(clan_listen(queue, address, &options, &listener, &error), 0);
	assert_memory_equal(clan_listener_address(listener), address, strlen(address) - 1);
	clan_listener_close(listener);
	assert_int_equal(clan_queue_destroy(queue), 0);
}

TEST(nobody_listens)
{
	struct clan_conn *conn;
	struct clan_event event;
	struct world world;
	char address[CLAN_ADDRESS_BYTES];
	pid_t child;
	int status;

	world_listen(&world, &network, NULL);
	snprintf(address, sizeof(address), "%s", world.address);
	clan_listener_close(world.listener);
	world.listener = NULL;
	assert_int_equal(
		clan_connect(world.queues[WORLD_DIALER], address, NULL, NULL, 0, &conn, NULL), 0);
	event = world_event(&world, WORLD_DIALER, CLAN_EVENT_LOST);
	assert_int_equal(event.status, -ECONNREFUSED);
	assert_string_equal(clan_conn_reason(conn),
		"cannot connect: Connection refused; check that the server is "
		"running and listens on this address and port");
	world_close_conn(&world, WORLD_DIALER, conn);
	/* Closed while the name is looked up, and before in a child that has nothing to close yet.
	 */
	snprintf(address, sizeof(address), "%s:localhost:1", hostile_scheme);
	assert_int_equal(
		clan_connect(world.queues[WORLD_DIALER], address, NULL, NULL, 0, &conn, NULL), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		clan_queue_after_fork(world.queues[WORLD_DIALER]);
		_exit(fcntl(STDIN_FILENO, F_GETFD) < 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	world_close_conn(&world, WORLD_DIALER, conn);
	world_close(&world);
}

/* Bytes from memory that is a region, and from memory that is not, in many parts. */
TEST(registered_memory)
{
	enum { BYTES = 8 << 20, PARTS = 64 };
	struct clan_event event;
	struct clan_cookie cookie;
	struct clan_region *target;
	struct clan_region *source;
	struct iovec iov[PARTS];
	struct world world;
	uint8_t *from = malloc(BYTES);
	uint8_t *to = malloc(BYTES);
	uint8_t *back = calloc(1, BYTES);
	size_t at = 0;

	assert_true(from != NULL && to != NULL && back != NULL);
	for (size_t i = 0; i < BYTES; i++) {
		from[i] = (uint8_t)(i * 7 + i / 251);
	}
	memset(to, 0, BYTES);
	world_open(&world, &network, NULL);
	/* Neither its place nor its size is that of pages. */
	assert_int_equal(
		clan_region_register(world.queues[WORLD_SERVER], to + 1, BYTES - 1, &target), 0);
	assert_int_equal(
		clan_region_register(world.queues[WORLD_DIALER], from, BYTES / 2, &source), 0);
	assert_int_equal(
		clan_region_share(world.conns[WORLD_SERVER], target, CLAN_READ | CLAN_WRITE), 0);
	event = world_event(&world, WORLD_SERVER, CLAN_EVENT_SHARED);
	assert_int_equal(event.status, 0);
	world_grant(&world, WORLD_SERVER, target, 0, BYTES - 1, CLAN_READ | CLAN_WRITE, 0, &cookie);
	for (uint32_t i = 0; i < PARTS; i++) {
		size_t end = i + 1 == PARTS ? BYTES - 1 : (i + 1) * 130001;

		iov[i] = (struct iovec){ .iov_base = from + at, .iov_len = end - at };
		at = end;
	}
	assert_int_equal(world_put(&world, WORLD_DIALER, iov, PARTS, &cookie, 0, 0, 0), 0);
	iov[0] = (struct iovec){ .iov_base = back, .iov_len = BYTES - 1 };
	assert_int_equal(world_get(&world, WORLD_DIALER, iov, 1, &cookie, 0), 0);
	assert_memory_equal(to + 1, from, BYTES - 1);
	assert_memory_equal(back, from, BYTES - 1);
	assert_int_equal(clan_region_replace(target, NULL, 0), -EOPNOTSUPP);
	assert_int_equal(clan_region_destroy(target), -EBUSY);
	world_close_conn(&world, WORLD_SERVER, world.conns[WORLD_SERVER]);
	world.conns[WORLD_SERVER] = NULL;
	assert_int_equal(clan_region_destroy(target), 0);
	assert_int_equal(clan_region_destroy(source), 0);
	world_close(&world);
	free(from);
	free(to);
	free(back);
}

/* Processor time of many looks at one region of the peer. */
static uint64_t looks_ns(struct clan_conn *conn, uint32_t number)
{
	enum { LOOKS = 200000 };
	struct clan_peer_region info;
	struct timespec before;
	struct timespec after;

	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before), 0);
	for (int i = 0; i < LOOKS; i++) {
		assert_int_equal(clan_peer_region_info(conn, number, &info), 0);
	}
	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after), 0);
	return (uint64_t)(after.tv_sec - before.tv_sec) * 1000000000 +
	       (uint64_t)(after.tv_nsec - before.tv_nsec);
}

/* Whatever number a region has, it is found without a search. */
TEST(many_regions_are_found_alike)
{
	enum { REGIONS = WORLD_EVENTS_MAX - 24 }; /* all are given back in one step */
	const struct clan_conn_options options = {
		.size = sizeof(options), .access = CLAN_ACCESS_ANY, .peer_regions_max = REGIONS
	};
	static struct clan_region *regions[REGIONS];
	static uint8_t memory[REGIONS];
	struct world world;
	uint64_t first_ns;
	uint64_t last_ns;

	world_open(&world, &network, &options);
	for (int i = 0; i < REGIONS; i++) {
		assert_int_equal(clan_region_register(
					 world.queues[WORLD_DIALER], &memory[i], 1, &regions[i]),
			0);
		assert_int_equal(
			clan_region_share(world.conns[WORLD_DIALER], regions[i], CLAN_READ), 0);
		assert_int_equal(world_event(&world, WORLD_DIALER, CLAN_EVENT_SHARED).status, 0);
		world.kept_count[WORLD_SERVER] = 0;
	}
	first_ns = looks_ns(world.conns[WORLD_SERVER], 0);
	last_ns = looks_ns(world.conns[WORLD_SERVER], REGIONS - 1);
	assert_true(last_ns < 8 * first_ns && first_ns < 8 * last_ns);
	world_close_conn(&world, WORLD_DIALER, world.conns[WORLD_DIALER]);
	world.conns[WORLD_DIALER] = NULL;
	for (int i = 0; i < REGIONS; i++) {
		assert_int_equal(clan_region_destroy(regions[i]), 0);
	}
	world_close(&world);
}

/* Registered memory cannot be mapped by anybody, so shm does not share it. */
TEST(not_on_shm)
{
	struct clan_error error = { 0 };
	struct clan_queue *queue;
	struct clan_listener *listener;
	struct clan_conn *conns[2] = { 0 };
	struct clan_region *region;
	struct clan_event event;
	char memory[100];
	char address[64];

	snprintf(address, sizeof(address), "shm:@clan-net-%d", getpid());
	assert_int_equal(clan_queue_create(NULL, &queue, &error), 0);
	assert_int_equal(clan_listen(queue, address, NULL, &listener, &error), 0);
	assert_string_equal(clan_listener_address(listener), address);
	assert_int_equal(clan_connect(queue, address, NULL, NULL, 0, &conns[0], &error), 0);
	do {
		assert_int_equal(clan_queue_wait(queue, &event, 1, 5000), 1);
		if (event.type == CLAN_EVENT_CONNECT) {
			conns[1] = event.conn;
			assert_int_equal(clan_accept(conns[1], NULL, 0), 0);
		}
	} while (event.type != CLAN_EVENT_CONNECTED);
	assert_int_equal(clan_conn_socket(conns[0]), -1);
	assert_int_equal(clan_region_register(queue, memory, sizeof(memory), &region), 0);
	assert_int_equal(clan_region_share(conns[0], region, CLAN_READ | CLAN_WRITE), -EOPNOTSUPP);
	assert_int_equal(clan_region_destroy(region), 0);
	clan_close(conns[0]);
	clan_close(conns[1]);
	for (int closed = 0; closed < 2; closed += event.type == CLAN_EVENT_CLOSED) {
		assert_int_equal(clan_queue_wait(queue, &event, 1, 5000), 1);
	}
	clan_listener_close(listener);
	assert_int_equal(clan_queue_destroy(queue), 0);
}

/* A peer that does not answer: after the end of the connection nothing arrives, and that is what
 * was asked for. */
TEST(strict_revocation)
{
	struct clan_cookie cookie;
	struct clan_event event;
	struct clan_region *region;
	struct world world;
	uint8_t *base;
	bool lost = false;
	bool revoked = false;

	world_open(&world, &network, NULL);
	region = world_region(&world, WORLD_SERVER, 4096, CLAN_WRITE, &base, &event);
	world_grant(&world, WORLD_SERVER, region, 0, 4096, CLAN_WRITE, 0, &cookie);
	assert_int_equal(
		clan_cookie_revoke(world.conns[WORLD_SERVER], &cookie, CLAN_REVOKE_STRICT, &world),
		0);
	assert_int_equal(
		clan_cookie_revoke(world.conns[WORLD_SERVER], &cookie, 0, &world), -EALREADY);
	assert_int_equal(clan_region_unshare(world.conns[WORLD_SERVER], region), -EBUSY);
	while (!lost || !revoked) { /* the dialer's queue is not waited on */
		assert_int_equal(clan_queue_wait(world.queues[WORLD_SERVER], &event, 1, 10000), 1);
		if (event.type == CLAN_EVENT_LOST) {
			assert_int_equal(event.status, -ETIMEDOUT);
			lost = true;
		} else if (event.type == CLAN_EVENT_REVOKED) {
			assert_int_equal(event.status, 0);
			assert_ptr_equal(event.op, &world);
			revoked = true;
		}
	}
	world_close_conn(&world, WORLD_SERVER, world.conns[WORLD_SERVER]);
	world.conns[WORLD_SERVER] = NULL;
	assert_int_equal(clan_region_destroy(region), 0);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_LOST);
	world_close(&world);
}

/* An operation that has nothing to transfer ends like any other. */
TEST(operations_without_transfers_are_reported)
{
	uint8_t byte = 0;
	struct iovec nothing = { .iov_base = &byte };
	struct clan_region *region;
	struct clan_cookie cookie;
	struct clan_event event;
	struct world world;
	uint8_t *base;

	world_open(&world, &network, NULL);
	region = world_region(&world, WORLD_SERVER, 4096, CLAN_WRITE, &base, &event);
	world_grant(&world, WORLD_SERVER, region, 0, 4096, CLAN_WRITE, 0, &cookie);
	assert_int_equal(
		clan_put(world.conns[WORLD_DIALER], &nothing, 1, &cookie, 0, 0, 0, &cookie), 0);
	event = world_event(&world, WORLD_DIALER, CLAN_EVENT_DONE);
	assert_int_equal(event.status, 0);
	assert_ptr_equal(event.op, &cookie);
	assert_int_equal(
		clan_get(world.conns[WORLD_DIALER], &nothing, 1, &cookie, 0, NULL), -EACCES);
	base[7] = 7;
	assert_int_equal(
		clan_region_fetch(world.conns[WORLD_SERVER], region, 7, &byte, 1, &byte), 0);
	event = world_event(&world, WORLD_SERVER, CLAN_EVENT_DONE);
	assert_int_equal(event.status, 0);
	assert_ptr_equal(event.op, &byte);
	assert_int_equal(byte, 7);
	world_no_event(&world, WORLD_DIALER, CLAN_EVENT_DONE);
	/* Of one that ended just before the connection is closed nothing is left. */
	assert_int_equal(
		clan_region_fetch(world.conns[WORLD_SERVER], region, 0, &byte, 1, NULL), 0);
	world_close_conn(&world, WORLD_SERVER, world.conns[WORLD_SERVER]);
	world.conns[WORLD_SERVER] = NULL;
	world_no_event(&world, WORLD_SERVER, CLAN_EVENT_DONE);
	assert_int_equal(clan_region_destroy(region), 0);
	world_close(&world);
}

/* The bytes of a put that a peer has not received are still in the socket, even after DONE. */
TEST(the_socket_has_what_the_peer_has_not_received)
{
	enum { BYTES = 64 << 20 }; /* more than the buffers of the sockets take */
	struct iovec iov = { .iov_len = BYTES };
	struct clan_cookie cookie;
	struct clan_event event;
	struct clan_region *region;
	struct world world;
	uint8_t *base;
	int unacked = 1;
	int fd;

	iov.iov_base = calloc(1, BYTES);
	assert_non_null(iov.iov_base);
	world_open(&world, &network, NULL);
	region = world_region(&world, WORLD_SERVER, BYTES, CLAN_WRITE, &base, &event);
	world_grant(&world, WORLD_SERVER, region, 0, BYTES, CLAN_WRITE, 0, &cookie);
	fd = clan_conn_socket(world.conns[WORLD_DIALER]);
	assert_int_equal(fd >= 0, strcmp(hostile_scheme, "tcp") == 0);
	assert_int_equal(clan_put(world.conns[WORLD_DIALER], &iov, 1, &cookie, 0, 0, 0, NULL), 0);
	clan_flush(world.conns[WORLD_DIALER]);
	if (fd >= 0) {
		assert_int_equal(ioctl(fd, SIOCOUTQ, &unacked), 0);
		assert_true(unacked > 0);
	}
	assert_int_equal(world_event(&world, WORLD_DIALER, CLAN_EVENT_DONE).status, 0);
	while (fd >= 0 && unacked > 0) {
		world_settle(&world);
		assert_int_equal(ioctl(fd, SIOCOUTQ, &unacked), 0);
	}
	world_close_conn(&world, WORLD_DIALER, world.conns[WORLD_DIALER]);
	world.conns[WORLD_DIALER] = NULL;
	world_close_conn(&world, WORLD_SERVER, world.conns[WORLD_SERVER]);
	world.conns[WORLD_SERVER] = NULL;
	assert_int_equal(clan_region_destroy(region), 0);
	world_close(&world);
	free(iov.iov_base);
}

/* What was put and sent before clan_close() arrives, with all that did not fit at once. */
TEST(close_sends_what_is_left)
{
	enum { BYTES = 4 << 20 };
	struct iovec iov = { .iov_len = BYTES };
	struct clan_message message;
	struct clan_cookie cookie;
	struct clan_event event;
	struct clan_region *region;
	struct world world;
	uint8_t *base;

	iov.iov_base = malloc(BYTES);
	assert_non_null(iov.iov_base);
	memset(iov.iov_base, 'p', BYTES);
	world_open(&world, &network, NULL);
	region = world_region(&world, WORLD_SERVER, BYTES, CLAN_WRITE, &base, &event);
	world_grant(&world, WORLD_SERVER, region, 0, BYTES, CLAN_WRITE, 0, &cookie);
	assert_int_equal(
		clan_put(world.conns[WORLD_DIALER], &iov, 1, &cookie, 0, CLAN_NOTIFY, 5, NULL), 0);
	world_close_conn(&world, WORLD_DIALER, world.conns[WORLD_DIALER]);
	world.conns[WORLD_DIALER] = NULL;
	assert_int_equal(world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST).status, -ECONNRESET);
	assert_int_equal(clan_recv(world.conns[WORLD_SERVER], CLAN_BULK, &message, NULL, 0), 0);
	assert_int_equal(message.value, 5);
	assert_memory_equal(base, iov.iov_base, BYTES);
	world_close_conn(&world, WORLD_SERVER, world.conns[WORLD_SERVER]);
	world.conns[WORLD_SERVER] = NULL;
	assert_int_equal(clan_region_destroy(region), 0);
	world_close(&world);
	free(iov.iov_base);
}

/* --- a peer that is killed -------------------------------------------------------------------- */

/* In the child: puts and sends until it is killed. */
static void be_busy(const char *address)
{
	static uint8_t bytes[100000];
	struct iovec iov = { bytes, sizeof(bytes) };
	struct clan_cookie cookie = { 0 };
	struct clan_event events[16];
	struct clan_message message;
	struct clan_queue *queue;
	struct clan_conn *conn;
	uint32_t running = 0;

	if (clan_queue_create(NULL, &queue, NULL) != 0 ||
		clan_connect(queue, address, NULL, NULL, 0, &conn, NULL) != 0) {
		_exit(1);
	}
	for (;;) {
		int count = clan_queue_wait(queue, events, 16, cookie.bytes == 0 ? -1 : 0);

		for (int i = 0; i < count; i++) {
			running -= events[i].type == CLAN_EVENT_DONE;
		}
		if (clan_recv(conn, CLAN_ANY, &message, &cookie, sizeof(cookie)) == 0) {
			clan_send(conn, CLAN_CONTROL, 1, NULL, 0); /* now it is in full swing */
		}
		while (cookie.bytes != 0 && running < 8 &&
			clan_put(conn, &iov, 1, &cookie, 0, CLAN_NOTIFY, 1, NULL) == 0) {
			running++;
		}
	}
}

static unsigned count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	unsigned count = 0;

	assert_non_null(folder);
	while (readdir(folder) != NULL) {
		count++;
	}
	closedir(folder);
	return count;
}

TEST(killed_peers)
{
	enum { KILLS = 10 };
	struct clan_message message;
	struct clan_cookie cookie;
	struct clan_event event;
	struct clan_region *region;
	struct world world;
	uint8_t *base;
	unsigned fds = 0;

	world_listen(&world, &network, NULL);
	for (int i = 0; i < KILLS; i++) {
		pid_t child = fork();
		int status;

		assert_true(child >= 0);
		if (child == 0) {
			be_busy(world.address);
		}
		event = world_event(&world, WORLD_SERVER, CLAN_EVENT_CONNECT);
		world.conns[WORLD_SERVER] = event.conn;
		assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
		region = world_region(&world, WORLD_SERVER, 1 << 20, CLAN_WRITE, &base, &event);
		assert_int_equal(clan_cookie_grant(world.conns[WORLD_SERVER], region, 0, 100000,
					 CLAN_WRITE, 0, &cookie),
			0);
		assert_int_equal(clan_send(world.conns[WORLD_SERVER], CLAN_CONTROL, 1, &cookie,
					 sizeof(cookie)),
			0);
		do {
			message = world_recv(
				&world, WORLD_SERVER, world.conns[WORLD_SERVER], NULL, 0);
		} while (message.cls != CLAN_CONTROL);
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSIGNALED(status)); /* it had not ended by itself */
		event = world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST);
		assert_int_equal(event.status, -ECONNRESET);
		world.kept_count[WORLD_SERVER] = 0;
		/* Nothing arrives any more. */
		memset(base, 0, 100000);
		world_settle(&world);
		for (size_t at = 0; at < 100000; at++) {
			assert_int_equal(base[at], 0);
		}
		world_close_conn(&world, WORLD_SERVER, world.conns[WORLD_SERVER]);
		world.conns[WORLD_SERVER] = NULL;
		assert_int_equal(clan_region_destroy(region), 0);
		fds = i == 0 ? count_fds() : fds;
		assert_int_equal(count_fds(), fds);
	}
	world_close(&world);
}

/* --- a peer that breaks rules ----------------------------------------------------------------- */

void frame_begin(struct hostile *hostile)
{
	memset(&hostile->head, 0, sizeof(hostile->head));
	memset(hostile->frame, 0, sizeof(hostile->frame));
	hostile->bytes = sizeof(hostile->head);
}

void frame_record(
	struct hostile *hostile, uint32_t class, uint32_t type, const void *payload, size_t bytes)
{
	struct net_record_head head = { .bytes = (uint16_t)(sizeof(head) + bytes),
		.type = (uint8_t)type,
		.class = (uint8_t) class };

	memcpy(hostile->frame + hostile->bytes, &head, sizeof(head));
	if (bytes > 0) {
		memcpy(hostile->frame + hostile->bytes + sizeof(head), payload, bytes);
	}
	hostile->bytes += (sizeof(head) + bytes + 7) / 8 * 8;
}

void frame_send(struct hostile *hostile, struct world *world)
{
	if (hostile->head.bytes == 0) {
		hostile->head.bytes = (uint16_t)hostile->bytes;
	}
	memcpy(hostile->frame, &hostile->head, sizeof(hostile->head));
	hostile_send(hostile);
	for (int i = 0; i < 3; i++) {
		hostile_look(hostile);
		world_turn(world, WORLD_SERVER);
	}
}

static struct net_hello good_hello = {
	.version_min = 1,
	.version_max = 1,
	.bulk_slots = 256,
	.cookies = 4,
};

static void send_hello(struct hostile *hostile, struct world *world, const struct net_hello *hello)
{
	frame_begin(hostile);
	frame_record(hostile, NET_SYSTEM, NET_HELLO, hello, sizeof(*hello));
	frame_send(hostile, world);
}

static const struct net_region good_region = {
	.region = 1, .rights = CLAN_READ, .generation = 1, .bytes = 4096, .key = 7
};
static const struct net_cookie_record good_cookie = {
	.cookie = { .bytes = 100, .generation = 1, .slot = 1, .region = 1, .rights = CLAN_READ }
};

static void share_good_region(struct hostile *hostile)
{
	frame_record(hostile, NET_SYSTEM, NET_REGION, &good_region, sizeof(good_region));
}

/* The rules, each broken in the ways named; what is sent comes after WELCOME. */
static bool break_rule(struct hostile *hostile, uint32_t rule, uint32_t way)
{
	struct net_frame_head *head = &hostile->head;
	struct net_region_answer answer = { .region = 1, .generation = 1 };
	struct net_cookie_record cookie = good_cookie;
	struct net_revoke revoke = { .slot = 1, .generation = 1 };
	struct net_region region = good_region;
	struct net_put put = { .region = 1 };
	struct net_hello hello = good_hello;
	uint8_t bytes[CLAN_BULK_BYTES_MAX] = { 0 };
	uint32_t value = (uint32_t)CLAN_VALUE_MAX + 1;

	switch (rule * 100 + way) {
	/* O1: the length of a frame. */
	case 100:
		head->bytes = (uint16_t)(hostile->bytes + 8);
		return true;
	case 101:
		frame_record(hostile, NET_BULK, 1, bytes, 1);
		hostile->bytes -= 7;
		return true;
	case 102:
		hostile->bytes = 8;
		return true;
	/* O2 to O4: what it says of our side. */
	case 200:
		head->credits = NET_RECEIVES + 1;
		return true;
	case 201:
		head->credits = UINT16_MAX;
		return true;
	case 300:
		head->taken[NET_BULK] = 1;
		return true;
	case 301:
		head->taken[NET_CONTROL] = UINT32_MAX;
		return true;
	case 400:
		head->popped = 1;
		return true;
	/* O5: records in the frame. */
	case 500:
		frame_record(hostile, NET_BULK, 1, bytes, 100);
		hostile->bytes -= 64;
		return true;
	case 501:
		frame_record(hostile, NET_BULK, 1, bytes, 0);
		hostile->frame[sizeof(*head)] = 7;
		return true;
	case 502:
		frame_record(hostile, NET_BULK, 1, bytes, 0);
		hostile->frame[sizeof(*head) + 4] = 1;
		return true;
	case 503:
		frame_record(hostile, NET_SYSTEM + 1, 1, bytes, 0);
		return true;
	case 504:
		frame_record(hostile, NET_BULK, 1, bytes, 0);
		memset(hostile->frame + sizeof(*head), 0, 8);
		return true;
	case 505:
		put.reserved2 = 1;
		frame_record(hostile, NET_SYSTEM, NET_PUT, &put, sizeof(put));
		return true;
	case 506:
		cookie.reserved = 1;
		frame_record(hostile, NET_SYSTEM, NET_COOKIE, &cookie, sizeof(cookie));
		return true;
	case 507:
		bytes[0] = 1;
		frame_record(hostile, NET_SYSTEM, NET_END, bytes, sizeof(struct net_refused));
		return true;
	/* O6: types and lengths. */
	case 600:
		frame_record(hostile, NET_BULK, 0, bytes, 0);
		return true;
	case 601:
		frame_record(hostile, NET_BULK, CLAN_TYPE_NOTIFY + 1, bytes, 4);
		return true;
	case 602:
		frame_record(hostile, NET_CONTROL, 1, bytes, CLAN_CONTROL_BYTES_MAX + 1);
		return true;
	case 603:
		frame_record(hostile, NET_BULK, 1, bytes, CLAN_BULK_BYTES_MAX);
		frame_record(hostile, NET_BULK, 1, bytes, 1);
		hostile->frame[sizeof(*head)]++; /* one byte more than there may be */
		return true;
	case 604:
		frame_record(hostile, NET_CONTROL, CLAN_TYPE_STREAM, bytes, 1);
		return true;
	case 605:
		frame_record(hostile, NET_BULK, CLAN_TYPE_STREAM, bytes, 0);
		return true;
	case 606:
		frame_record(hostile, NET_BULK, CLAN_TYPE_NOTIFY, bytes, 3);
		return true;
	case 607:
		frame_record(hostile, NET_BULK, CLAN_TYPE_NOTIFY, &value, sizeof(value));
		return true;
	case 608:
		frame_record(hostile, NET_SYSTEM, 0, bytes, 0);
		return true;
	case 609:
		frame_record(hostile, NET_SYSTEM, NET_SYSTEM_TYPE_COUNT, bytes, 64);
		return true;
	case 610:
		frame_record(hostile, NET_SYSTEM, NET_REGION, &region, sizeof(region) - 1);
		return true;
	case 611:
		frame_record(hostile, NET_SYSTEM, NET_PUT, bytes, sizeof(put) + 1);
		return true;
	case 612:
		frame_record(hostile, NET_SYSTEM, NET_HELLO, &hello, sizeof(hello) - 1);
		return true;
	/* O7: more than there is room for. The program takes nothing. */
	case 700:
		for (int i = 0; i < NET_CONTROL_SLOTS + 1; i++) {
			frame_record(hostile, NET_CONTROL, 1, bytes, 0);
		}
		return true;
	/* O8: set-up at the wrong time, or from the wrong side. */
	case 800:
		frame_record(hostile, NET_SYSTEM, NET_HELLO, &hello, sizeof(hello));
		return true;
	case 801:
		frame_record(hostile, NET_SYSTEM, NET_WELCOME, &hello, sizeof(hello));
		return true;
	case 802:
		frame_record(hostile, NET_SYSTEM, NET_REFUSED, bytes, sizeof(struct net_refused));
		return true;
	case 803:
		put.offset = UINT64_MAX;
		put.bytes = 1;
		frame_record(hostile, NET_SYSTEM, NET_PUT, &put, sizeof(put));
		return true;
	/* O9: regions. */
	case 900:
		region.region = CLAN_TABLE_MAX;
		break;
	case 901:
		region.generation = 0;
		break;
	case 902:
		region.rights = 0;
		break;
	case 903:
		region.rights = 4;
		break;
	case 904:
		region.bytes = 0;
		break;
	case 905:
		region.base = UINT64_MAX - 10;
		break;
	case 906:
		share_good_region(hostile);
		break;
	/* O10: answers for regions. */
	case 1000:
		frame_record(hostile, NET_SYSTEM, NET_REGION_OK, &answer, sizeof(answer));
		return true;
	case 1001:
		frame_record(hostile, NET_SYSTEM, NET_REGION_ENDED, &answer, sizeof(answer));
		return true;
	case 1002:
		frame_record(hostile, NET_SYSTEM, NET_REGION_END, &answer, sizeof(answer));
		return true;
	case 1003:
		share_good_region(hostile);
		answer.generation = 2;
		frame_record(hostile, NET_SYSTEM, NET_REGION_END, &answer, sizeof(answer));
		return true;
	/* O11: cookies. */
	case 1100:
		frame_record(hostile, NET_SYSTEM, NET_GRANT, &cookie, sizeof(cookie));
		return true; /* of a region that nobody shared */
	case 1101:
		cookie.cookie.slot = 4;
		break;
	case 1102:
		cookie.cookie.generation = 0;
		break;
	case 1103:
		cookie.cookie.rights = CLAN_WRITE;
		break;
	case 1104:
		cookie.cookie.offset = 4096;
		break;
	case 1105:
		cookie.cookie.offset = UINT64_MAX;
		break;
	case 1106:
		cookie.cookie.flags = 2;
		break;
	case 1107:
		cookie.cookie.reserved = 1;
		break;
	case 1108:
		share_good_region(hostile);
		frame_record(hostile, NET_SYSTEM, NET_GRANT, &cookie, sizeof(cookie));
		frame_record(hostile, NET_SYSTEM, NET_GRANT, &cookie, sizeof(cookie));
		return true; /* its generation was used */
	case 1109:
		revoke.slot = 4;
		frame_record(hostile, NET_SYSTEM, NET_REVOKE, &revoke, sizeof(revoke));
		return true;
	case 1110:
		revoke.generation = 0;
		frame_record(hostile, NET_SYSTEM, NET_REVOKE, &revoke, sizeof(revoke));
		return true;
	case 1111:
		frame_record(hostile, NET_SYSTEM, NET_REVOKE, &revoke, sizeof(revoke));
		revoke.generation = 2;
		frame_record(hostile, NET_SYSTEM, NET_REVOKE, &revoke, sizeof(revoke));
		return true; /* before the first is answered */
	/* O12, O13. */
	case 1200:
		frame_record(hostile, NET_SYSTEM, NET_REVOKED, &revoke, sizeof(revoke));
		return true;
	case 1300:
		cookie.queue = CLAN_COOKIE_QUEUES;
		frame_record(hostile, NET_SYSTEM, NET_COOKIE, &cookie, sizeof(cookie));
		return true;
	case 1301:
		for (int i = 0; i < 5; i++) {
			frame_record(hostile, NET_SYSTEM, NET_COOKIE, &cookie, sizeof(cookie));
		}
		return true;
	default:
		return false;
	}
	if (rule == 9) {
		frame_record(hostile, NET_SYSTEM, NET_REGION, &region, sizeof(region));
	} else {
		share_good_region(hostile);
		frame_record(hostile, NET_SYSTEM, NET_GRANT, &cookie, sizeof(cookie));
	}
	return true;
}

void honest_works(struct world *world)
{
	struct clan_message message;
	char text[8];

	assert_int_equal(clan_send(world->conns[WORLD_DIALER], CLAN_BULK, 1, "good", 5), 0);
	message = world_recv(world, WORLD_SERVER, world->conns[WORLD_SERVER], text, sizeof(text));
	assert_int_equal(message.bytes, 5);
	assert_string_equal(text, "good");
}

struct clan_conn *hostile_accepted(struct hostile *hostile, struct world *world)
{
	struct clan_conn *conn;

	hostile_open(hostile, world);
	send_hello(hostile, world, &good_hello);
	conn = world_event(world, WORLD_SERVER, CLAN_EVENT_CONNECT).conn;
	assert_int_equal(clan_accept(conn, NULL, 0), 0);
	return conn;
}

TEST(broken_rules_end_one_connection)
{
	uint32_t broken = 0;
	struct world world;

	world_open(&world, &network, NULL);
	for (uint32_t rule = 1; rule <= 13; rule++) {
		uint32_t way = 0;

		for (;; way++) {
			struct hostile *hostile = hostile_create();
			struct clan_event event;
			struct clan_conn *conn;
			char expected[32];

			frame_begin(hostile);
			if (!break_rule(hostile, rule, way)) {
				hostile_destroy(hostile);
				break;
			}
			conn = hostile_accepted(hostile, &world);
			frame_begin(hostile);
			break_rule(hostile, rule, way);
			frame_send(hostile, &world);
			event = world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST);
			assert_ptr_equal(event.conn, conn);
			assert_int_equal(event.status, -EPROTO);
			snprintf(expected, sizeof(expected), "the peer broke rule O%u: ",
				rule == 8 && way == 3 && !hostile_has_put ? 6 : rule);
			if (strncmp(clan_conn_reason(conn), expected, strlen(expected)) != 0) {
				fail_msg("rule %u, way %u: %s", rule, way, clan_conn_reason(conn));
			}
			world.kept_count[WORLD_SERVER] = 0;
			world_close_conn(&world, WORLD_SERVER, conn);
			hostile_close(hostile);
			hostile_destroy(hostile);
			honest_works(&world);
			broken++;
		}
		assert_true(way > 0); /* every rule is tried */
	}
	assert_true(broken > 50);
	world_close(&world);
}

/* Before the program knows of it a connection just ends. */
TEST(bad_hellos_are_not_heard_of)
{
	struct world world;

	world_open(&world, &network, NULL);
	for (int way = 0; way < 9; way++) {
		struct hostile *hostile = hostile_create();
		struct net_hello hello = good_hello;

		hostile_open(hostile, &world);
		hello.magic += way == 0;
		hello.version_min += way == 1; /* more than version_max */
		hello.bulk_slots += way == 2;
		hello.bulk_slots = way == 3 ? 128 : hello.bulk_slots;
		hello.bulk_slots = way == 4 ? 1 << 17 : hello.bulk_slots;
		hello.cookies = way == 5 ? 0 : hello.cookies;
		hello.cookies = way == 6 ? CLAN_TABLE_MAX + 1 : hello.cookies;
		hello.hello_bytes += way == 7;
		if (way == 8) { /* a message instead */
			frame_begin(hostile);
			frame_record(hostile, NET_BULK, 1, NULL, 0);
			frame_send(hostile, &world);
		} else {
			send_hello(hostile, &world, &hello);
		}
		while (!hostile->ended) {
			hostile_look(hostile);
			world_turn(&world, WORLD_SERVER);
		}
		world_no_event(&world, WORLD_SERVER, CLAN_EVENT_CONNECT);
		hostile_close(hostile);
		hostile_destroy(hostile);
		honest_works(&world);
	}
	world_close(&world);
}

/* Connections that say nothing take their places for the time of the handshake only. */
TEST(silent_peers_are_limited)
{
	enum { PLACES = 2 };
	struct clan_conn_options options = {
		.size = sizeof(options), .handshakes_max = PLACES, .handshake_timeout_ms = 1500
	};
	struct hostile *hostiles[PLACES];
	struct clan_conn *conn;
	struct world world;

	world_listen(&world, &network, &options);
	for (int i = 0; i < PLACES; i++) {
		hostiles[i] = hostile_create();
		hostile_open(hostiles[i], &world);
	}
	assert_int_equal(
		clan_connect(world.queues[WORLD_DIALER], world.address, NULL, NULL, 0, &conn, NULL),
		0);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_LOST); /* no place is free */
	world_close_conn(&world, WORLD_DIALER, conn);
	for (int i = 0; i < PLACES; i++) {
		while (!hostiles[i]->ended) {
			hostile_look(hostiles[i]);
			world_turn(&world, WORLD_SERVER);
		}
		hostile_close(hostiles[i]);
		hostile_destroy(hostiles[i]);
	}
	world_connect(&world, NULL, world.conns);
	honest_works(&world);
	world_close(&world);
}

/* A program gives a connection its context when it is told of it: whatever comes next has that,
 * also when it was there at once. */
TEST(arrivals_come_alone)
{
	enum { COUNT = 8, LOOKS = 200 };
	struct clan_conn_options options = { .size = sizeof(options),
		.handshakes_max = CLAN_HANDSHAKES_OWN };
	struct clan_conn *conns[WORLD_SIDES][COUNT];
	struct world world;
	uint32_t arrived = 0;
	uint32_t offered = 0;

	world_listen(&world, &network, &options);
	for (int i = 0; i < COUNT; i++) {
		assert_int_equal(clan_connect(world.queues[WORLD_DIALER], world.address, NULL, NULL,
					 0, &conns[WORLD_DIALER][i], NULL),
			0);
	}
	while (offered < COUNT) {
		struct clan_event events[2 * COUNT];
		struct clan_event none;
		/* The others wait at first, and say hello meanwhile. */
		uint32_t max = arrived < 2 ? 1 : ARRAY_COUNT(events);
		int count;

		(void)clan_queue_arm(world.queues[WORLD_SERVER]); /* looks at descriptors */
		count = clan_queue_wait(world.queues[WORLD_SERVER], events, max, 1);
		for (int i = 0; i < count; i++) {
			if (events[i].type == CLAN_EVENT_ARRIVED) {
				conns[WORLD_SERVER][arrived++] = events[i].conn;
				clan_conn_set_context(events[i].conn, &world);
			} else {
				assert_int_equal(events[i].type, CLAN_EVENT_CONNECT);
				assert_ptr_equal(events[i].context, &world);
				offered++;
			}
		}
		for (int i = 0; i < LOOKS; i++) {
			assert_int_equal(
				clan_queue_wait(world.queues[WORLD_DIALER], &none, 1, 0), 0);
		}
	}
	for (int i = 0; i < COUNT; i++) {
		world_close_conn(&world, WORLD_SERVER, conns[WORLD_SERVER][i]);
		world_close_conn(&world, WORLD_DIALER, conns[WORLD_DIALER][i]);
	}
	world_close(&world);
}

int main(void)
{
	network.network = hostile_network;
	good_hello.magic = hostile_magic;
	return unit_run(NULL, NULL);
}
