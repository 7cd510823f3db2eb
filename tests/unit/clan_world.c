// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "clan_world.h"

#define NS_PER_MS UINT64_C(1000000)

static void take_events(struct world *world, int side, int timeout_ms)
{
	uint32_t room = WORLD_EVENTS_MAX - world->kept_count[side];
	int count;

	assert_true(room > 0);
	count = clan_queue_wait(
		world->queues[side], world->kept[side] + world->kept_count[side], room, timeout_ms);
	assert_true(count >= 0);
	world->kept_count[side] += (uint32_t)count;
}

static int find_event(const struct world *world, int side, uint32_t type, uint32_t ready)
{
	for (uint32_t i = 0; i < world->kept_count[side]; i++) {
		const struct clan_event *event = &world->kept[side][i];

		if (event->type == type && (ready == 0 || (event->ready & ready) != 0)) {
			return (int)i;
		}
	}
	return -1;
}

static struct clan_event remove_event(struct world *world, int side, int at)
{
	struct clan_event event = world->kept[side][at];

	world->kept_count[side]--;
	memmove(&world->kept[side][at], &world->kept[side][at + 1],
		(world->kept_count[side] - (uint32_t)at) * sizeof(event));
	return event;
}

/* Both sides sleep, so that their bells are used, until one has work. A wake-up that is missing is
 * a failure; so the sleep has no end before that of the test. */
static void sleep_both(struct world *world)
{
	struct pollfd fds[WORLD_SIDES];
	bool has_work = false;
	int count;

	for (int side = 0; side < WORLD_SIDES; side++) {
		has_work = clan_queue_arm(world->queues[side]) != 0 || has_work;
		fds[side] = (struct pollfd){ .fd = clan_queue_fd(world->queues[side]),
			.events = POLLIN };
	}
	count = poll(fds, WORLD_SIDES, has_work ? 0 : WORLD_TIMEOUT_NS / NS_PER_MS);
	assert_true(count >= 0);
}

static struct clan_event wait_for(struct world *world, int side, uint32_t type, uint32_t ready)
{
	uint64_t until_ns = clock_now_ns() + WORLD_TIMEOUT_NS;
	int at;

	while ((at = find_event(world, side, type, ready)) < 0) {
		if (clock_now_ns() > until_ns) {
			fail_msg("no event %u (ready %u) on side %d", type, ready, side);
		}
		sleep_both(world);
		take_events(world, !side, 0);
		take_events(world, side, 0);
	}
	return remove_event(world, side, at);
}

struct clan_event world_event(struct world *world, int side, uint32_t type)
{
	return wait_for(world, side, type, 0);
}

void world_ready(struct world *world, int side, struct clan_conn *conn, uint32_t ready)
{
	struct clan_event event = wait_for(world, side, CLAN_EVENT_READY, ready);

	assert_ptr_equal(event.conn, conn);
}

void world_turn(struct world *world, int side)
{
	take_events(world, side, 1);
}

void world_settle(struct world *world)
{
	/* What goes through the kernel takes some turns more. */
	int turns = world->kind->network != NULL ? 40 : 8;

	for (int i = 0; i < turns; i++) {
		take_events(world, i & 1, 1);
	}
}

bool world_has_event(struct world *world, int side, uint32_t type)
{
	world_settle(world);
	return find_event(world, side, type, 0) >= 0;
}

void world_no_event(struct world *world, int side, uint32_t type)
{
	assert_false(world_has_event(world, side, type));
}

void world_listen(
	struct world *world, const struct world_kind *kind, const struct clan_conn_options *options)
{
	struct clan_queue_options queue_options = {
		.size = sizeof(queue_options), .flags = kind->flags, .bell = kind->bell
	};
	struct clan_conn_options own_options = { .size = sizeof(own_options) };
	struct clan_error error = { 0 };
	int result;

	memset(world, 0, sizeof(*world));
	world->kind = kind;
	if (kind->network != NULL) {
		own_options = options != NULL ? *options : own_options;
		own_options.access = CLAN_ACCESS_ANY;
		options = &own_options;
		snprintf(world->address, sizeof(world->address), "%s", kind->network);
	} else {
		world_address(world);
	}
	for (int side = 0; side < WORLD_SIDES; side++) {
		result = clan_queue_create(&queue_options, &world->queues[side], &error);

		if (result == -EOPNOTSUPP) {
			skip(); /* the kernel has no such bell */
		}
		assert_int_equal(result, 0);
	}
	result = clan_listen(
		world->queues[WORLD_SERVER], world->address, options, &world->listener, &error);
	if (result == -EPROTONOSUPPORT && kind->network != NULL) {
		print_message("[  NOTE    ] not tested: %s\n", error.text);
		clan_queue_destroy(world->queues[WORLD_DIALER]);
		clan_queue_destroy(world->queues[WORLD_SERVER]);
		skip();
	}
	assert_int_equal(result, 0);
	snprintf(world->address, sizeof(world->address), "%s",
		clan_listener_address(world->listener));
}

void world_connect(struct world *world, const struct clan_conn_options *options,
	struct clan_conn *conns[WORLD_SIDES])
{
	struct clan_error error = { 0 };
	struct clan_event event;

	assert_int_equal(clan_connect(world->queues[WORLD_DIALER], world->address, options, "hi", 2,
				 &conns[WORLD_DIALER], &error),
		0);
	event = world_event(world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	conns[WORLD_SERVER] = event.conn;
	assert_int_equal(clan_accept(event.conn, "ho", 2), 0);
	event = world_event(world, WORLD_DIALER, CLAN_EVENT_CONNECTED);
	assert_ptr_equal(event.conn, conns[WORLD_DIALER]);
}

void world_open(
	struct world *world, const struct world_kind *kind, const struct clan_conn_options *options)
{
	world_listen(world, kind, options);
	world_connect(world, options, world->conns);
}

void world_close_conn(struct world *world, int side, struct clan_conn *conn)
{
	struct clan_event event;

	clan_close(conn);
	event = world_event(world, side, CLAN_EVENT_CLOSED);
	assert_ptr_equal(event.conn, conn);
}

void world_close(struct world *world)
{
	for (int side = 0; side < WORLD_SIDES; side++) {
		if (world->conns[side] != NULL) {
			world_close_conn(world, side, world->conns[side]);
		}
	}
	clan_listener_close(world->listener);
	for (int side = 0; side < WORLD_SIDES; side++) {
		assert_int_equal(clan_queue_destroy(world->queues[side]), 0);
	}
}

/* What a put or get came to: without CLAN_CAN_MAP an event reports its end. */
static int copied(struct world *world, int side, int result)
{
	bool ends_later = (clan_conn_caps(world->conns[side]) & CLAN_CAN_MAP) == 0;

	return result == 0 && ends_later ? world_event(world, side, CLAN_EVENT_DONE).status
					 : result;
}

int world_put(struct world *world, int side, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, uint32_t flags, uint32_t value)
{
	int result =
		clan_put(world->conns[side], from, from_count, cookie, offset, flags, value, world);

	return copied(world, side, result);
}

int world_get(struct world *world, int side, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset)
{
	int result = clan_get(world->conns[side], to, to_count, cookie, offset, world);

	return copied(world, side, result);
}

int world_revoke(struct world *world, int side, const struct clan_cookie *cookie, uint32_t flags)
{
	int result = clan_cookie_revoke(world->conns[side], cookie, flags, world);

	return result == 0 ? world_event(world, side, CLAN_EVENT_REVOKED).status : result;
}

void world_send(struct world *world, int side, struct clan_conn *conn, uint32_t cls, uint32_t type,
	const void *bytes, uint32_t count)
{
	int result;

	while ((result = clan_send(conn, cls, type, bytes, count)) == -EAGAIN) {
		world_ready(world, side, conn,
			cls == CLAN_BULK ? CLAN_READY_SEND_BULK : CLAN_READY_SEND_CONTROL);
	}
	assert_int_equal(result, 0);
}

struct clan_message world_recv(
	struct world *world, int side, struct clan_conn *conn, void *buffer, uint32_t bytes)
{
	struct clan_message message;
	int result;

	while ((result = clan_recv(conn, CLAN_ANY, &message, buffer, bytes)) == -EAGAIN) {
		world_ready(world, side, conn, CLAN_READY_CONTROL | CLAN_READY_BULK);
	}
	assert_int_equal(result, 0);
	return message;
}

struct clan_region *world_region(struct world *world, int side, size_t bytes, uint32_t rights,
	uint8_t **base_out, struct clan_event *event_out)
{
	struct clan_region *region;
	void *base;

	assert_int_equal(clan_region_create(world->queues[side], bytes, 0, &region, &base), 0);
	assert_int_equal(clan_region_share(world->conns[side], region, rights), 0);
	*event_out = world_event(world, side, CLAN_EVENT_SHARED);
	assert_int_equal(event_out->status, 0);
	assert_ptr_equal(event_out->region, region);
	*base_out = base;
	return region;
}

void world_grant(struct world *world, int side, struct clan_region *region, uint64_t offset,
	uint32_t bytes, uint32_t rights, uint32_t flags, struct clan_cookie *cookie_out)
{
	struct clan_conn *conn = world->conns[side];
	struct clan_message message;

	assert_int_equal(
		clan_cookie_grant(conn, region, offset, bytes, rights, flags, cookie_out), 0);
	assert_int_equal(clan_send(conn, CLAN_CONTROL, 1, cookie_out, sizeof(*cookie_out)), 0);
	message = world_recv(world, !side, world->conns[!side], cookie_out, sizeof(*cookie_out));
	assert_int_equal(message.bytes, sizeof(*cookie_out));
}

uint32_t world_fill(struct clan_conn *conn, uint32_t cls, uint32_t bytes)
{
	uint8_t payload[CLAN_BULK_BYTES_MAX] = { 0 };
	uint32_t count = 0;
	int result;

	while ((result = clan_send(conn, cls, 1, payload, bytes)) == 0) {
		count++;
		assert_true(count < 100000);
	}
	assert_int_equal(result, -EAGAIN);
	return count;
}
