// SPDX-License-Identifier: Apache-2.0
/*
 * Parts of sessions that belong to other engines.
 */
#include "engine/part.h"

#include <errno.h>

#include "engine_world.h"
#include "stores.h"
#include "unit.h"

struct part {
	struct session base;
	bool is_closed;
};

static void part_nothing(struct session *session)
{
	GMB_UNUSED(session);
}

static void part_flush(struct session *session, bool alone)
{
	GMB_UNUSED(session);
	GMB_UNUSED(alone);
}

static bool part_join(struct session *session)
{
	GMB_UNUSED(session);
	return true;
}

static void part_close(struct session *session)
{
	container_of(session, struct part, base)->is_closed = true;
}

static const struct session_kind part_kind = {
	.name = "part",
	.resume = part_nothing,
	.flush = part_flush,
	.abort = part_nothing,
	.join = part_join,
	.close = part_close,
};

/* It does not wait for its session, whose engine may learn of the loss later: changes that the disk
 * has refused must not be answered. */
TEST(test_a_part_ends_when_its_disk_is_lost)
{
	struct part part = { .base = { .kind = &part_kind } };
	struct part late = part;
	struct world world;

	world_begin(&world, 16, 64);
	part.base.export = world.export;
	late.base.export = world.export;
	assert_int_equal(engine_part_begin(world.engine, &part.base), 0);
	assert_true(store_lost(world.export->store));
	assert_int_equal(engine_part_begin(world.engine, &late.base), -ESTALE);
	world_end(&world);
	assert_true(part.is_closed);
}

/* Their number has a limit of its own. */
TEST(test_parts_do_not_take_the_places_of_connections)
{
	struct part part = { .base = { .kind = &part_kind } };
	struct part another = part;
	struct client clients[2];
	struct client late;
	struct world world;

	world_begin(&world, 16, 64);
	world.engine->limits.sessions_max = ARRAY_COUNT(clients); /* and one part */
	part.base.export = world.export;
	another.base.export = world.export;
	assert_int_equal(engine_part_begin(world.engine, &part.base), 0);
	assert_int_equal(engine_part_begin(world.engine, &another.base), -EUSERS);
	client_open(&world, &clients[0], "");
	client_open(&world, &clients[1], "");
	assert_false(client_try(&world, &late, ""));
	session_terminate(&part.base, NULL);
	world_end(&world);
	assert_true(part.is_closed);
}
