// SPDX-License-Identifier: Apache-2.0
/*
 * libclan between processes: sleeping on both sides, alone or in a ring, peers that are killed at
 * any instruction, and fork().
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "clan_world.h"
#include "ring/ring.h"
#include "unit.h"

enum {
	ROUND_TRIPS = 3000,
	KILLS = 60,
	REGION_BYTES = 1 << 16,
	MESSAGE_COOKIE = 7,
};

static const struct world_kind kinds[] = {
	{ "futex", 0, CLAN_BELL_FUTEX },
	{ "socket", 0, CLAN_BELL_SOCKET },
	{ "passive", CLAN_QUEUE_PASSIVE, CLAN_BELL_AUTO },
};

void world_address(struct world *world)
{
	static unsigned count;

	snprintf(world->address, sizeof(world->address), "shm:@clan-processes-%d-%u", getpid(),
		count++);
}

/* A child that dies with its parent, whose assertions end it at any time. */
static pid_t fork_child(void)
{
	pid_t parent = getpid();
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) {
		_exit(100);
	}
	return child;
}

static unsigned count_entries(const char *path)
{
	DIR *folder = opendir(path);
	unsigned count = 0;

	assert_non_null(folder);
	while (readdir(folder) != NULL) {
		count++;
	}
	closedir(folder);
	return count;
}

static unsigned count_fds(void)
{
	return count_entries("/proc/self/fd");
}

static unsigned count_maps(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned count = 0;
	char line[512];

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps) != NULL) {
		count += strstr(line, "/memfd:clan-") != NULL;
	}
	fclose(maps);
	return count;
}

/* --- both sides sleep ---------------------------------------------------------------------------
 */

static struct clan_event next_event(struct clan_queue *queue)
{
	struct clan_event event;

	while (clan_queue_wait(queue, &event, 1, -1) == 0) {
	}
	return event;
}

/* Receives one message, sleeping for it. */
static int receive(struct clan_queue *queue, struct clan_conn *conn, uint32_t *value)
{
	struct clan_message message;
	int result;

	while ((result = clan_recv(conn, CLAN_ANY, &message, value, sizeof(*value))) == -EAGAIN) {
		if (next_event(queue).type == CLAN_EVENT_LOST) {
			return -ENOTCONN;
		}
	}
	return result;
}

static void echo_in_child(const struct world *world)
{
	struct clan_queue_options options = {
		.size = sizeof(options), .flags = world->kind->flags, .bell = world->kind->bell
	};
	struct clan_queue *queue;
	struct clan_conn *conn;
	uint32_t value;

	clan_queue_after_fork(world->queues[WORLD_DIALER]);
	clan_queue_after_fork(world->queues[WORLD_SERVER]);
	if (clan_queue_create(&options, &queue, NULL) != 0 ||
		clan_connect(queue, world->address, NULL, NULL, 0, &conn, NULL) != 0 ||
		next_event(queue).type != CLAN_EVENT_CONNECTED) {
		_exit(1);
	}
	while (receive(queue, conn, &value) == 0) {
		value++;
		if (clan_send(conn, CLAN_BULK, 1, &value, sizeof(value)) != 0) {
			_exit(2);
		}
	}
	_exit(0);
}

TEST(no_wake_up_is_lost)
{
	struct clan_event event;
	struct world world;
	uint32_t value = 0;
	pid_t child;
	int status;

	world_listen(&world, *state, NULL);
	child = fork_child();
	if (child == 0) {
		echo_in_child(&world);
	}
	event = next_event(world.queues[WORLD_SERVER]);
	assert_int_equal(event.type, CLAN_EVENT_CONNECT);
	assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
	for (uint32_t round = 0; round < ROUND_TRIPS; round++) {
		assert_int_equal(clan_send(event.conn, CLAN_BULK, 1, &round, sizeof(round)), 0);
		assert_int_equal(receive(world.queues[WORLD_SERVER], event.conn, &value), 0);
		assert_int_equal(value, round + 1);
	}
	clan_close(event.conn);
	assert_int_equal(next_event(world.queues[WORLD_SERVER]).type, CLAN_EVENT_CLOSED);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	world_close(&world);
}

/* --- spinning ---------------------------------------------------------------------------------
 */

static unsigned yields;

/* Instead of the C library's. */
int sched_yield(void)
{
	yields++;
	return (int)syscall(SYS_sched_yield);
}

/* A peer on the same processor can answer only then. */
TEST(a_spin_lets_others_run)
{
	const struct world_kind *kind = *state;
	struct clan_queue_options options = {
		.size = sizeof(options), .flags = kind->flags, .bell = kind->bell, .spin_us = 1000
	};
	struct clan_queue *queue;
	struct clan_event event;

	assert_int_equal(clan_queue_create(&options, &queue, NULL), 0);
	yields = 0;
	assert_int_equal(clan_queue_wait(queue, &event, 1, 1), 0);
	assert_int_not_equal(yields, 0);
	assert_int_equal(clan_queue_destroy(queue), 0);
}

/* A queue in a ring, as the client library has it: its program waits for the ring's descriptor. */
struct ringed {
	struct ring_source source;
	struct clan_queue *queue;
	int looks;
	bool removed;
};

static int ringed_poll(struct ring_source *source)
{
	struct ringed *ringed = container_of(source, struct ringed, source);
	struct clan_event event;

	ringed->looks++;
	assert_int_equal(clan_queue_wait(ringed->queue, &event, 1, 0), 0);
	return 0;
}

static bool ringed_arm(struct ring_source *source)
{
	return clan_queue_arm(container_of(source, struct ringed, source)->queue) == 0;
}

static void ringed_removed(struct ring_source *source)
{
	container_of(source, struct ringed, source)->removed = true;
}

/* Until nothing is left to do, and all that is waited for is known to the kernel. */
static void ringed_rest(struct ring *ring, struct pollfd *poll_fd)
{
	do {
		while (ring_turn_limited(ring, 0) > 0) {
		}
		ring_flush(ring);
	} while (poll(poll_fd, 1, 0) > 0);
}

TEST(a_wake_up_passes_through_a_ring)
{
	struct ringed ringed = { .source = { .poll = ringed_poll, .arm = ringed_arm } };
	struct pollfd poll_fd = { .events = POLLIN };
	struct ring *ring;
	struct error error;
	struct world world;

	world_listen(&world, *state, NULL);
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &ring, &error), 0);
	ringed.queue = world.queues[WORLD_SERVER];
	ringed.source.fd = clan_queue_fd(ringed.queue);
	ring_source_add(ring, &ringed.source);
	poll_fd.fd = ring_poll_fd(ring);
	for (int i = 0; i < 3; i++) {
		ringed_rest(ring, &poll_fd);
		ringed.looks = 0;
		clan_queue_wake(ringed.queue);
		assert_int_equal(poll(&poll_fd, 1, 60000), 1);
		(void)ring_turn_limited(ring, 0);
		assert_true(ringed.looks > 0);
	}
	ring_source_remove(ring, &ringed.source, ringed_removed);
	while (!ringed.removed) {
		(void)ring_turn(ring, true);
	}
	ring_destroy(ring);
	world_close(&world);
}

/* --- kill -9 ------------------------------------------------------------------------------------
 */

/* Everything that a client can do, for ever. */
static void busy_client(const struct world *world, unsigned seed)
{
	struct clan_queue_options options = {
		.size = sizeof(options), .flags = world->kind->flags, .bell = world->kind->bell
	};
	uint8_t bytes[4096] = { 0 };
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct clan_region *region = NULL;
	struct clan_queue *queue;
	struct clan_conn *conn;
	bool shared = false;
	void *base;

	clan_queue_after_fork(world->queues[WORLD_DIALER]);
	clan_queue_after_fork(world->queues[WORLD_SERVER]);
	if (clan_queue_create(&options, &queue, NULL) != 0 ||
		clan_connect(queue, world->address, NULL, NULL, 0, &conn, NULL) != 0) {
		_exit(1);
	}
	for (;;) {
		struct clan_message message;
		struct clan_cookie cookie;
		struct clan_event event;

		switch (rand_r(&seed) % 8) {
		case 0:
			clan_send(conn, CLAN_BULK, 1, bytes, (uint32_t)rand_r(&seed) % 4096);
			break;
		case 1:
			clan_send(conn, CLAN_CONTROL, 2, bytes, (uint32_t)rand_r(&seed) % 1000);
			break;
		case 2:
			clan_flush(conn);
			break;
		case 3:
			clan_recv(conn, CLAN_ANY, &message, bytes, sizeof(bytes));
			break;
		case 4:
			if (clan_cookie_queue_pop(conn, 0, &cookie) == 0) {
				clan_put(conn, &iov, 1, &cookie, 0, CLAN_NOTIFY, 5, NULL);
			}
			break;
		case 5:
			if (region == NULL) {
				GMB_ASSERT(clan_region_create(
						   queue, REGION_BYTES, 0, &region, &base) == 0);
			} else if (!shared) {
				shared = clan_region_share(conn, region, CLAN_WRITE) == 0;
			} else {
				shared = clan_region_unshare(conn, region) != 0;
			}
			break;
		default:
			clan_queue_wait(queue, &event, 1, 0);
			break;
		}
	}
}

/* What a server does with it. */
struct server {
	struct clan_queue *queue;
	struct clan_region *region;
	unsigned open;
	unsigned connected;
};

static void serve_event(struct server *server, const struct clan_event *event)
{
	uint8_t bytes[CLAN_BULK_BYTES_MAX];
	struct clan_message message;
	struct clan_cookie cookie;
	void *at;

	switch (event->type) {
	case CLAN_EVENT_CONNECT:
		server->open++;
		server->connected++;
		if (clan_accept(event->conn, NULL, 0) == 0) {
			clan_region_share(event->conn, server->region, CLAN_WRITE);
		}
		break;
	case CLAN_EVENT_SHARED:
		for (int i = 0; i < 8 && event->status == 0; i++) {
			if (clan_cookie_grant(event->conn, server->region, (uint64_t)i * 4096, 4096,
				    CLAN_WRITE, 0, &cookie) == 0) {
				clan_cookie_queue_push(event->conn, 0, &cookie);
			}
		}
		break;
	case CLAN_EVENT_READY:
		while (clan_recv(event->conn, CLAN_ANY, &message, bytes, sizeof(bytes)) == 0) {
			clan_send(event->conn, CLAN_BULK, 1, bytes, message.bytes);
		}
		break;
	case CLAN_EVENT_REGION:
		/* Held as if a disk wrote to it. */
		if (clan_peer_region_get(event->conn, event->number, event->generation, CLAN_WRITE,
			    0, REGION_BYTES, &at) == 0) {
			memset(at, 'd', REGION_BYTES);
			clan_peer_region_put(event->conn, event->number);
		}
		break;
	case CLAN_EVENT_LOST:
		clan_close(event->conn);
		break;
	case CLAN_EVENT_CLOSED:
		server->open--;
		break;
	default:
		break;
	}
}

TEST(killed_peers_leave_nothing)
{
	struct server server = { 0 };
	struct clan_event event;
	struct world world;
	unsigned seed = 1;
	unsigned fds;
	unsigned maps;
	void *base;

	world_open(&world, *state, NULL);
	server.queue = world.queues[WORLD_SERVER];
	assert_int_equal(
		clan_region_create(server.queue, REGION_BYTES, 0, &server.region, &base), 0);
	world_settle(&world);
	fds = count_fds();
	maps = count_maps();
	for (int round = 0; round < KILLS; round++) {
		uint64_t until_ns = clock_now_ns() + (uint64_t)rand_r(&seed) % 8000000;
		unsigned connected = server.connected;
		pid_t child = fork_child();

		if (child == 0) {
			busy_client(&world, (unsigned)round);
		}
		/* Some die before they are accepted. */
		while (clock_now_ns() < until_ns ||
			(round % 4 != 0 && server.connected == connected)) {
			if (clan_queue_wait(server.queue, &event, 1, 1) == 1) {
				serve_event(&server, &event);
			}
		}
		assert_int_equal(kill(child, SIGKILL), 0);
		assert_int_equal(waitpid(child, NULL, 0), child);
		world_settle(&world);
		while (world.kept_count[WORLD_SERVER] > 0) {
			event = world.kept[WORLD_SERVER][--world.kept_count[WORLD_SERVER]];
			serve_event(&server, &event);
		}
	}
	while (server.open > 0 || count_fds() > fds || count_maps() > maps) {
		if (clan_queue_wait(server.queue, &event, 1, 1) == 1) {
			serve_event(&server, &event);
		}
	}
	assert_true(server.connected >= KILLS / 2);
	/* The connection that stood by works. */
	uint32_t value = 7;

	assert_int_equal(clan_send(world.conns[WORLD_DIALER], CLAN_BULK, 1, &value, 4), 0);
	value = 0;
	world_recv(&world, WORLD_SERVER, world.conns[WORLD_SERVER], &value, sizeof(value));
	assert_int_equal(value, 7);
	assert_int_equal(clan_region_destroy(server.region), 0);
	world_close(&world);
}

/* --- fork() -------------------------------------------------------------------------------------
 */

TEST(a_child_gives_up_without_effect)
{
	struct clan_event shared;
	struct clan_region *region;
	struct world world;
	uint32_t value = 1;
	uint8_t *base;
	unsigned before;
	pid_t child;
	int status;

	while (count_entries("/proc/self/task") > 3) { /* workers of the test before */
		usleep(1000);
	}
	before = count_fds();
	world_open(&world, *state, NULL);
	region = world_region(
		&world, WORLD_DIALER, REGION_BYTES, CLAN_READ | CLAN_WRITE, &base, &shared);
	world_event(&world, WORLD_SERVER, CLAN_EVENT_REGION);
	base[0] = 'p';
	while (count_entries("/proc/self/task") > 3) { /* workers still close descriptors */
		world_settle(&world);
	}
	child = fork_child();
	if (child == 0) {
		clan_queue_after_fork(world.queues[WORLD_DIALER]);
		clan_queue_after_fork(world.queues[WORLD_SERVER]);
		/* Descriptors are closed; the region is shared memory. */
		if (count_fds() != before || count_maps() != 1 || base[0] != 'p') {
			_exit(1);
		}
		base[0] = 'c';
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(base[0], 'c');
	for (int round = 0; round < 100; round++) {
		int side = round & 1;

		assert_int_equal(
			clan_send(world.conns[side], CLAN_BULK, 1, &value, sizeof(value)), 0);
		world_recv(&world, !side, world.conns[!side], &value, sizeof(value));
	}
	assert_int_equal(clan_region_unshare(world.conns[WORLD_DIALER], region), 0);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_UNSHARED);
	assert_int_equal(clan_region_destroy(region), 0);
	world_close(&world);
}

/* Takes the events of a queue that are at hand. True: one of them is about the connection. */
static bool hears_of(struct clan_queue *queue, const struct clan_conn *conn)
{
	struct clan_event events[64];
	bool found = false;
	int count;

	while ((count = clan_queue_wait(queue, events, ARRAY_COUNT(events), 1)) > 0) {
		for (int i = 0; i < count; i++) {
			found |= events[i].conn == conn;
		}
	}
	return found;
}

static void send_all(struct clan_conn *from, struct clan_conn *to, uint32_t cls, uint32_t bytes)
{
	static uint8_t buffer[CLAN_BULK_BYTES_MAX];
	struct clan_message message;

	while (clan_send(from, cls, 1, buffer, bytes) == 0) {
	}
	clan_flush(from);
	while (clan_recv(to, cls, &message, buffer, sizeof(buffer)) == 0) {
	}
	clan_flush(to);
}

/* One side asks for more and more without taking the answers: each connection still has one entry
 * on the ready ring, and the last connection is heard of. */
TEST(asking_for_more_does_not_fill_the_ready_ring)
{
	enum { CONNS = 200 };
	struct clan_conn *conns[CONNS][WORLD_SIDES];
	struct world world;

	world_listen(&world, *state, NULL);
	for (int i = 0; i < CONNS; i++) {
		world_connect(&world, NULL, conns[i]);
	}
	world_settle(&world);
	for (int i = 0; i < CONNS; i++) {
		struct clan_conn *dialer = conns[i][WORLD_DIALER];
		struct clan_conn *server = conns[i][WORLD_SERVER];

		assert_int_equal(clan_send(dialer, CLAN_BULK, 1, "x", 1), 0);
		clan_flush(dialer);
		if (i == CONNS - 1) { /* the server does not look at this one by itself */
			break;
		}
		send_all(server, dialer, CLAN_BULK, 8000);
		send_all(server, dialer, CLAN_CONTROL, 1000);
	}
	assert_true(hears_of(world.queues[WORLD_SERVER], conns[CONNS - 1][WORLD_SERVER]));
	for (int side = 0; side < WORLD_SIDES; side++) {
		for (int i = 0; i < CONNS; i++) {
			clan_close(conns[i][side]);
		}
		while (hears_of(world.queues[side], conns[0][side])) {
		}
	}
	world_close(&world);
}

/* --- groups ----------------------------------------------------------------------------------- */

/* Another connection, to the server's queue or to the child. Returns how many segments it has
 * brought with it. */
static unsigned maps_of_another(struct world *world, const char *address, struct clan_conn **dialer,
	struct clan_conn **server)
{
	unsigned before = count_maps();

	assert_int_equal(
		clan_connect(world->queues[WORLD_DIALER], address, NULL, NULL, 0, dialer, NULL), 0);
	if (server != NULL) {
		*server = world_event(world, WORLD_SERVER, CLAN_EVENT_CONNECT).conn;
		assert_int_equal(clan_accept(*server, NULL, 0), 0);
	}
	world_event(world, WORLD_DIALER, CLAN_EVENT_CONNECTED);
	world_settle(world);
	return count_maps() - before;
}

/* Listens, and accepts whoever comes until it is killed. */
static void accept_in_child(const struct world *world, const char *address, int ready)
{
	struct clan_queue_options options = {
		.size = sizeof(options), .flags = world->kind->flags, .bell = world->kind->bell
	};
	struct clan_listener *listener;
	struct clan_queue *queue;

	clan_queue_after_fork(world->queues[WORLD_DIALER]);
	clan_queue_after_fork(world->queues[WORLD_SERVER]);
	if (clan_queue_create(&options, &queue, NULL) != 0 ||
		clan_listen(queue, address, NULL, &listener, NULL) != 0 ||
		write(ready, "r", 1) != 1) {
		_exit(1);
	}
	for (;;) {
		struct clan_event event = next_event(queue);

		if (event.type == CLAN_EVENT_CONNECT && clan_accept(event.conn, NULL, 0) != 0) {
			_exit(2);
		}
	}
}

/* A connector brings no bell of its own to a process that it has one with, at whatever address that
 * one listens, and brings one to another process of the same user. */
TEST(a_connection_joins_the_group_of_its_peer)
{
	char elsewhere[CLAN_ADDRESS_BYTES];
	char in_child[CLAN_ADDRESS_BYTES];
	struct clan_conn *dialers[5];
	struct clan_conn *servers[3];
	struct clan_listener *listener;
	struct world world;
	unsigned first;
	unsigned joined;
	int ready[2];
	pid_t child;
	char byte;

	world_listen(&world, *state, NULL);
	assert_true(snprintf(elsewhere, sizeof(elsewhere), "%s-elsewhere", world.address) <
		    (int)sizeof(elsewhere));
	assert_true(snprintf(in_child, sizeof(in_child), "%s-in-child", world.address) <
		    (int)sizeof(in_child));
	assert_int_equal(pipe(ready), 0);
	child = fork_child();
	if (child == 0) {
		accept_in_child(&world, in_child, ready[1]);
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(
		clan_listen(world.queues[WORLD_SERVER], elsewhere, NULL, &listener, NULL), 0);
	first = maps_of_another(&world, world.address, &dialers[0], &servers[0]);
	joined = maps_of_another(&world, world.address, &dialers[1], &servers[1]);
	assert_true(joined < first);
	assert_int_equal(maps_of_another(&world, elsewhere, &dialers[2], &servers[2]), joined);

	first = maps_of_another(&world, in_child, &dialers[3], NULL);
	joined = maps_of_another(&world, in_child, &dialers[4], NULL);
	assert_true(joined < first);

	for (size_t i = 0; i < ARRAY_COUNT(dialers); i++) {
		world_close_conn(&world, WORLD_DIALER, dialers[i]);
	}
	for (size_t i = 0; i < ARRAY_COUNT(servers); i++) {
		world_close_conn(&world, WORLD_SERVER, servers[i]);
	}
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(ready[0]);
	clan_listener_close(listener);
	world_close(&world);
}

int main(void)
{
	return unit_run_kinds(kinds, sizeof(kinds[0]), ARRAY_COUNT(kinds));
}
