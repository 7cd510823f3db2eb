// SPDX-License-Identifier: Apache-2.0
/*
 * CLAN_ACCESS_WARY: memory that another user may write is touched by helper threads, since whoever
 * touches it while holes are punched into it waits. Whose thread touches a page shows in its page
 * faults.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clan/shm.h"
#include "clan_world.h"
#include "unit.h"

enum {
	STRANGER = 65534,
	REGION_BYTES = 2 << 20,
	PAGES = REGION_BYTES / 4096,
};

static const struct world_kind shm = { .name = "shm" };
static const struct clan_conn_options wary = { .size = sizeof(wary), .access = CLAN_ACCESS_WARY };

void world_address(struct world *world)
{
	static unsigned count;

	snprintf(world->address, sizeof(world->address), "shm:@clan-wary-%d-%u", getpid(), count++);
}

/* A world whose dialer is another user, as far as its peer can see. */
static void open_world(struct world *world)
{
	struct clan_event event;

	world_listen(world, &shm, &wary);
	assert_int_equal(seteuid(STRANGER), 0);
	assert_int_equal(clan_connect(world->queues[WORLD_DIALER], world->address, NULL, NULL, 0,
				 &world->conns[WORLD_DIALER], NULL),
		0);
	assert_int_equal(seteuid(0), 0);
	event = world_event(world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	world->conns[WORLD_SERVER] = event.conn;
	assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
	world_event(world, WORLD_DIALER, CLAN_EVENT_CONNECTED);
}

static void close_world(struct world *world, struct clan_region *region)
{
	for (int side = 0; side < WORLD_SIDES; side++) {
		if (world->conns[side] != NULL) {
			world_close_conn(world, side, world->conns[side]);
		}
		world->conns[side] = NULL;
	}
	assert_int_equal(clan_region_destroy(region), 0);
	world_close(world);
}

static long faults_of_this_thread(void)
{
	struct rusage usage;

	assert_int_equal(getrusage(RUSAGE_THREAD, &usage), 0);
	return usage.ru_minflt;
}

static void empty(uint8_t *base)
{
	assert_int_equal(madvise(base, REGION_BYTES, MADV_REMOVE), 0);
}

TEST(puts_and_gets_do_not_touch_a_strangers_memory)
{
	static uint8_t bytes[REGION_BYTES];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct clan_message message;
	struct clan_region *region;
	struct clan_cookie cookie;
	struct clan_event shared;
	struct world world;
	uint8_t *base;
	void *address;
	long faults;

	open_world(&world);
	assert_int_equal(clan_conn_caps(world.conns[WORLD_SERVER]) & CLAN_CAN_MAP, 0);
	assert_int_equal(clan_conn_caps(world.conns[WORLD_DIALER]) & CLAN_CAN_MAP, CLAN_CAN_MAP);
	region = world_region(
		&world, WORLD_DIALER, REGION_BYTES, CLAN_READ | CLAN_WRITE, &base, &shared);
	assert_int_equal(clan_peer_region_get(world.conns[WORLD_SERVER], shared.number,
				 shared.generation, CLAN_WRITE, 0, 4096, &address),
		-EOPNOTSUPP);
	world_grant(
		&world, WORLD_DIALER, region, 0, REGION_BYTES, CLAN_READ | CLAN_WRITE, 0, &cookie);

	memset(bytes, 7, sizeof(bytes));
	empty(base);
	faults = faults_of_this_thread();
	assert_int_equal(world_put(&world, WORLD_SERVER, &iov, 1, &cookie, 0, CLAN_NOTIFY, 99), 0);
	assert_true(faults_of_this_thread() - faults < PAGES / 2);
	message = world_recv(&world, WORLD_DIALER, world.conns[WORLD_DIALER], NULL, 0);
	assert_int_equal(message.type, CLAN_TYPE_NOTIFY);
	assert_int_equal(message.value, 99);
	assert_memory_equal(base, bytes, REGION_BYTES);

	empty(base);
	faults = faults_of_this_thread();
	assert_int_equal(world_get(&world, WORLD_SERVER, &iov, 1, &cookie, 0), 0);
	assert_true(faults_of_this_thread() - faults < PAGES / 2);
	assert_int_equal(bytes[0] | bytes[sizeof(bytes) - 1], 0);

	assert_int_equal(
		clan_put(world.conns[WORLD_SERVER], &iov, 1, &cookie, 1, 0, 0, NULL), -ERANGE);
	assert_int_equal(world_revoke(&world, WORLD_DIALER, &cookie, 0), 0);
	assert_int_equal(
		clan_put(world.conns[WORLD_SERVER], &iov, 1, &cookie, 0, 0, 0, NULL), -ESTALE);
	close_world(&world, region);
}

/* Of more notifications than there is room for none is lost, and none precedes its bytes. */
TEST(notifications_follow_their_bytes)
{
	enum { COUNT = 3000, BATCH = 60 };
	uint8_t one = 1;
	struct iovec iov = { .iov_base = &one, .iov_len = 1 };
	struct clan_message message;
	struct clan_region *region;
	struct clan_cookie cookie;
	struct clan_event shared;
	struct world world;
	uint32_t begun = 0;
	uint8_t *base;

	open_world(&world);
	region = world_region(&world, WORLD_DIALER, REGION_BYTES, CLAN_WRITE, &base, &shared);
	world_grant(&world, WORLD_DIALER, region, 0, REGION_BYTES, CLAN_WRITE, 0, &cookie);
	for (uint32_t came = 0; came < COUNT;) {
		/* Several are begun while there is room for one. */
		for (int i = 0; i < BATCH && begun < COUNT; i++) {
			if (clan_put(world.conns[WORLD_SERVER], &iov, 1, &cookie, begun,
				    CLAN_NOTIFY, begun, NULL) != 0) {
				break;
			}
			begun++;
		}
		world_settle(&world);
		world.kept_count[WORLD_SERVER] = 0;
		world.kept_count[WORLD_DIALER] = 0;
		if (begun < COUNT && begun % (5 * BATCH) == 0) {
			continue; /* the ring of the dialer gets full */
		}
		while (clan_recv(world.conns[WORLD_DIALER], CLAN_BULK, &message, NULL, 0) == 0) {
			assert_int_equal(base[message.value], 1);
			base[message.value] = 0;
			came++;
		}
	}
	close_world(&world, region);
}

/* A put whose notification waits for room ends when there will be none any more. */
TEST(puts_that_owe_their_notification_fail)
{
	enum { COUNT = 8 };
	uint8_t one = 1;
	struct iovec iov = { .iov_base = &one, .iov_len = 1 };
	struct clan_region *region;
	struct clan_cookie cookie;
	struct clan_event shared;
	struct world world;
	uint8_t *base;

	open_world(&world);
	region = world_region(&world, WORLD_DIALER, REGION_BYTES, CLAN_WRITE, &base, &shared);
	world_grant(&world, WORLD_DIALER, region, 0, REGION_BYTES, CLAN_WRITE, 0, &cookie);
	for (uint32_t i = 0; i < COUNT; i++) {
		assert_int_equal(clan_put(world.conns[WORLD_SERVER], &iov, 1, &cookie, i,
					 CLAN_NOTIFY, i, NULL),
			0);
	}
	world_fill(world.conns[WORLD_SERVER], CLAN_BULK, 4); /* before one of them has ended */
	while (memchr(base, 0, COUNT) != NULL) {
		world_settle(&world);
	}
	world_settle(&world);
	world_close_conn(&world, WORLD_DIALER, world.conns[WORLD_DIALER]);
	world.conns[WORLD_DIALER] = NULL;
	for (uint32_t i = 0; i < COUNT; i++) {
		assert_int_equal(
			world_event(&world, WORLD_SERVER, CLAN_EVENT_DONE).status, -ENOTCONN);
	}
	world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST);
	close_world(&world, region);
}

/* Who looks for room for the notification finds that the peer has broken a rule. */
TEST(puts_fail_when_a_rule_is_broken)
{
	enum { COUNT = 8 };
	uint8_t one = 1;
	struct iovec iov = { .iov_base = &one, .iov_len = 1 };
	struct clan_region *region;
	struct clan_cookie cookie;
	struct clan_event shared;
	struct world world;
	uint8_t *base;

	open_world(&world);
	region = world_region(&world, WORLD_DIALER, REGION_BYTES, CLAN_WRITE, &base, &shared);
	world_grant(&world, WORLD_DIALER, region, 0, REGION_BYTES, CLAN_WRITE, 0, &cookie);
	world_settle(&world);
	for (uint32_t i = 0; i < COUNT; i++) {
		assert_int_equal(clan_put(world.conns[WORLD_SERVER], &iov, 1, &cookie, i,
					 CLAN_NOTIFY, i, NULL),
			0);
	}
	world_fill(world.conns[WORLD_SERVER], CLAN_BULK, 4); /* before one of them has ended */
	/* It has taken what was not there. */
	atomic_store(&shm_conn(world.conns[WORLD_DIALER])->own->read[SHM_BULK], UINT32_MAX);
	for (uint32_t i = 0; i < COUNT; i++) {
		assert_int_equal(
			world_event(&world, WORLD_SERVER, CLAN_EVENT_DONE).status, -ENOTCONN);
	}
	assert_int_equal(world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST).status, -EPROTO);
	close_world(&world, region);
}

/* What a stranger has put into memory of ours, which it can empty as well. */
TEST(memory_of_ours_is_fetched)
{
	static uint8_t bytes[REGION_BYTES];
	struct clan_region *region;
	struct clan_event shared;
	struct world world;
	uint8_t *base;
	void *seen;
	long faults;

	open_world(&world);
	region = world_region(
		&world, WORLD_SERVER, REGION_BYTES, CLAN_READ | CLAN_WRITE, &base, &shared);
	world_event(&world, WORLD_DIALER, CLAN_EVENT_REGION);
	assert_int_equal(clan_peer_region_get(world.conns[WORLD_DIALER], shared.number,
				 shared.generation, CLAN_WRITE, 0, REGION_BYTES, &seen),
		0);
	memset(seen, 5, REGION_BYTES);
	empty(seen);
	memset(seen, 6, 1);
	faults = faults_of_this_thread();
	assert_int_equal(clan_region_fetch(world.conns[WORLD_SERVER], region, 0, bytes,
				 sizeof(bytes), &world),
		0);
	assert_ptr_equal(world_event(&world, WORLD_SERVER, CLAN_EVENT_DONE).op, &world);
	assert_true(faults_of_this_thread() - faults < PAGES / 2);
	assert_int_equal(bytes[0], 6);
	assert_int_equal(bytes[1], 0);
	assert_int_equal(clan_region_fetch(world.conns[WORLD_SERVER], region, 4096, bytes,
				 sizeof(bytes), NULL),
		-ERANGE);
	clan_peer_region_put(world.conns[WORLD_DIALER], shared.number);
	close_world(&world, region);
}

/* Closing with copies under way: they end before CLOSED is told. */
TEST(a_connection_is_closed_during_copies)
{
	static uint8_t bytes[REGION_BYTES];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };

	for (int i = 0; i < 50; i++) {
		struct clan_region *region;
		struct clan_cookie cookie;
		struct clan_event shared;
		struct world world;
		uint8_t *base;

		open_world(&world);
		region = world_region(
			&world, WORLD_DIALER, REGION_BYTES, CLAN_WRITE, &base, &shared);
		world_grant(&world, WORLD_DIALER, region, 0, REGION_BYTES, CLAN_WRITE, 0, &cookie);
		for (int j = 0; j < 8; j++) {
			assert_int_equal(clan_put(world.conns[WORLD_SERVER], &iov, 1, &cookie, 0, 0,
						 0, NULL),
				0);
		}
		if (i % 2 == 0) { /* the other end first */
			world_close_conn(&world, WORLD_DIALER, world.conns[WORLD_DIALER]);
			world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST);
			world_close_conn(&world, WORLD_SERVER, world.conns[WORLD_SERVER]);
			world.conns[WORLD_DIALER] = NULL;
			world.conns[WORLD_SERVER] = NULL;
		}
		close_world(&world, region);
	}
}

int main(void)
{
	if (geteuid() != 0) {
		return 77; /* it cannot be another user */
	}
	return unit_run(NULL, NULL);
}
