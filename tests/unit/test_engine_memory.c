// SPDX-License-Identifier: Apache-2.0
/*
 * How much memory the clients of an export, or of an identity, hold together: never more than they
 * may, whoever takes nothing leaves room, and nobody who shares nothing with them feels it.
 */
#include "engine_world.h"
#include "unit.h"

#include <errno.h>

enum {
	QUOTA_BYTES = 256 << 10,
	LONG_BYTES = 1 << 20,
	SIMPLE_BYTES = sizeof(struct nbd_wire_simple_reply),
	SOCKET_BYTES = 100, /* of who takes nothing */
};

static struct engine_export *entry_of(const struct world *world, const char *name)
{
	return engine_export_find(world->engine, name, (uint32_t)strlen(name));
}

static void check_quota(const struct path_quota *quota, uint64_t held_bytes)
{
	assert_int_equal(quota->held_bytes, held_bytes);
	assert_true(quota->max_bytes >= held_bytes);
}

/* Whoever counts, counts the same, and no more than is allowed. */
static void check(const struct world *world)
{
	struct engine *engine = world->engine;

	for (uint32_t i = 0; i < engine->export_count; i++) {
		uint64_t held_bytes = 0;

		list_for_each(node, &engine->sessions)
		{
			const struct session *session = list_entry(node, struct session, node);

			held_bytes += session->chosen == engine->exports[i]
					      ? session->client.held_bytes
					      : 0;
		}
		check_quota(&engine->exports[i]->memory, held_bytes);
	}
	list_for_each(identity_node, &engine->rate_identities)
	{
		const struct engine_identity *entry =
			list_entry(identity_node, struct engine_identity, node);
		uint64_t held_bytes = 0;

		list_for_each(node, &engine->sessions)
		{
			const struct session *session = list_entry(node, struct session, node);

			held_bytes +=
				session->of_identity == entry ? session->client.held_bytes : 0;
		}
		check_quota(&entry->memory, held_bytes);
	}
}

static void set_true(void *arg)
{
	*(bool *)arg = true;
}

static void run_for(const struct world *world, uint64_t ns)
{
	bool over = false;

	sim_after(ns, set_true, &over);
	while (!over) {
		assert_true(sim_step());
		check(world);
	}
}

/* Until it has so many bytes. */
static void serve(const struct world *world, struct client *client, uint64_t bytes)
{
	look(client);
	while (client->got < bytes && !client->closed) {
		assert_true(sim_step());
		check(world);
		look(client);
	}
	assert_false(client->closed);
	assert_int_equal(client->got, bytes);
}

static struct export *add(struct world *world, const char *name)
{
	struct export *export = export_of_path(name, "null:8M"); /* whose data is staged */
	struct error error;

	assert_int_equal(engine_export_add(world->engine, export, &error), 0);
	return export;
}

static void drop(struct world *world, struct export *export)
{
	engine_export_remove(world->engine, export, 0);
	export_put(export);
}

static void set_quota(struct world *world, const char *name, uint64_t bytes)
{
	path_quota_set(&entry_of(world, name)->memory, world->engine->path, bytes);
}

/* Asks for much, and takes nothing. */
static void open_hungry(struct world *world, struct client *client, uint8_t host, const char *name,
	uint32_t length, int count)
{
	assert_true(client_try_from(world, client, host, name));
	sim_socket_set_buffer(client->fd, SOCKET_BYTES);
	for (int i = 0; i < count; i++) {
		client_ask(client, NBD_CMD_READ, 0, length);
	}
}

static void close_all(struct client *clients, int count)
{
	for (int i = 0; i < count; i++) {
		sim_socket_close(clients[i].fd);
	}
}

/* --- tests ---------------------------------------------------------------------------------- */

/* Those who take nothing fill what their export may hold. Neighbours on it go on with what is their
 * own, and other exports do not notice. */
TEST(test_an_export)
{
	enum { HUNGRY = 4, READS = 20 };
	struct client hungry[HUNGRY];
	struct client modest;
	struct client other;
	struct client free_one;
	struct export *small;
	struct export *large;
	struct world world;
	uint64_t held_bytes;
	uint64_t began_ns;

	world_begin(&world, 128, 1024);
	small = add(&world, "small");
	large = add(&world, "large");
	set_quota(&world, "small", QUOTA_BYTES);
	for (int i = 0; i < HUNGRY; i++) {
		open_hungry(&world, &hungry[i], 0, "small", LONG_BYTES, READS);
	}
	run_for(&world, SECOND_NS);
	held_bytes = entry_of(&world, "small")->memory.held_bytes;
	assert_in_range(held_bytes, QUOTA_BYTES / 2, QUOTA_BYTES);
	list_for_each(node, &world.engine->sessions)
	{
		assert_in_range(list_entry(node, struct session, node)->client.held_bytes, 0,
			QUOTA_BYTES / 2); /* the first one left something */
	}
	assert_true(entry_of(&world, "small")->memory.waits >= HUNGRY - 1);
	open_hungry(&world, &free_one, 0, "large", LONG_BYTES, READS);
	client_open(&world, &modest, "small");
	client_open(&world, &other, "");
	began_ns = sim_now_ns();
	client_ask(&modest, NBD_CMD_READ, 0, LONG_BYTES);
	client_ask(&other, NBD_CMD_READ, 0, READ_BYTES);
	serve(&world, &modest, SIMPLE_BYTES + LONG_BYTES);
	serve(&world, &other, ANSWER_BYTES);
	assert_in_range(sim_now_ns() - began_ns, 0, SECOND_NS);
	assert_true(entry_of(&world, "large")->memory.held_bytes > QUOTA_BYTES);
	assert_int_equal(entry_of(&world, "large")->memory.waits, 0);
	set_quota(&world, "small", 2 * QUOTA_BYTES); /* for those that wait, too */
	run_for(&world, 2 * SECOND_NS);
	assert_true(entry_of(&world, "small")->memory.held_bytes > held_bytes);
	close_all(hungry, HUNGRY);
	sim_socket_close(modest.fd);
	sim_socket_close(other.fd);
	sim_socket_close(free_one.fd);
	run_for(&world, SECOND_NS / 10);
	assert_int_equal(entry_of(&world, "small")->memory.held_bytes, 0);
	drop(&world, small);
	drop(&world, large);
	world_end(&world);
}

/* Replies far longer than what may be held come all the same, whatever it is while they do. */
TEST(test_long_replies)
{
	enum { CLIENTS = 3, READS = 8 };
	struct client clients[CLIENTS];
	struct export *small;
	struct world world;

	world_begin(&world, 128, 1024);
	small = add(&world, "small");
	for (uint64_t bytes = QUOTA_BYTES; bytes >= PATH_RESERVE_BYTES; bytes /= 4) {
		set_quota(&world, "small", bytes);
		for (int i = 0; i < CLIENTS; i++) {
			client_open(&world, &clients[i], "small");
			for (int k = 0; k < READS; k++) {
				client_ask(&clients[i], NBD_CMD_READ, 4096 + 512 * i, LONG_BYTES);
			}
		}
		for (int i = 0; i < CLIENTS; i++) {
			while (clients[i].got < READS * (SIMPLE_BYTES + LONG_BYTES)) {
				assert_true(sim_step());
				check(&world);
				for (int k = 0; k < CLIENTS; k++) {
					look(&clients[k]);
					assert_false(clients[k].closed);
				}
			}
		}
		close_all(clients, CLIENTS);
		run_for(&world, SECOND_NS / 10);
	}
	drop(&world, small);
	world_end(&world);
}

/* Less is allowed than is held: nothing is taken away, nothing is added, and what is under way
 * ends.
 */
TEST(test_less_than_is_held)
{
	enum { CLIENTS = 3, READS = 8 };
	struct client clients[CLIENTS];
	const struct path_quota *small_quota;
	struct export *small;
	struct world world;
	uint64_t held_bytes;

	world_begin(&world, 128, 1024);
	small = add(&world, "small");
	for (int i = 0; i < CLIENTS; i++) {
		open_hungry(&world, &clients[i], 0, "small", LONG_BYTES, READS);
	}
	run_for(&world, SECOND_NS);
	small_quota = &entry_of(&world, "small")->memory;
	held_bytes = small_quota->held_bytes;
	assert_true(held_bytes > QUOTA_BYTES);
	set_quota(&world, "small", PATH_RESERVE_BYTES);
	for (int i = 0; i < CLIENTS; i++) {
		while (clients[i].got < READS * (SIMPLE_BYTES + LONG_BYTES)) {
			assert_true(sim_step());
			assert_in_range(small_quota->held_bytes, 0,
				MAX(held_bytes, (uint64_t)PATH_RESERVE_BYTES));
			held_bytes = small_quota->held_bytes;
			look(&clients[i]);
			assert_false(clients[i].closed);
		}
	}
	close_all(clients, CLIENTS);
	run_for(&world, SECOND_NS / 10);
	drop(&world, small);
	world_end(&world);
}

/* A reply that has begun goes on with what it holds, although less is allowed now and another
 * client has all of it: its own block is not there for it while the payload of a write stays away.
 */
TEST(test_a_reply_that_has_begun)
{
	enum { PAYLOAD = (64 << 10) + 1, AT_ONCE = 16384 };
	static const uint8_t payload[AT_ONCE];
	struct client client;
	struct client hungry;
	struct export *small;
	struct world world;
	uint64_t began_ns;

	world_begin(&world, 128, 1024);
	small = add(&world, "small");
	open_hungry(&world, &client, 0, "small", LONG_BYTES, 1);
	open_hungry(&world, &hungry, 0, "small", LONG_BYTES, 1);
	run_for(&world, SECOND_NS);
	began_ns = sim_now_ns();
	set_quota(&world, "small", QUOTA_BYTES);
	client_ask(&client, NBD_CMD_WRITE, 0, PAYLOAD);
	sim_socket_write(client.fd, payload, AT_ONCE);
	while (arena_info(world.engine->arena)->reserve_used_bytes == 0) {
		assert_true(sim_step());
	}
	wait_for(&client, SIMPLE_BYTES + LONG_BYTES);
	assert_in_range(sim_now_ns() - began_ns, 0, SECOND_NS);
	assert_true(entry_of(&world, "small")->memory.held_bytes > QUOTA_BYTES); /* still */
	sim_socket_close(client.fd);
	sim_socket_close(hungry.fd);
	drop(&world, small);
	world_end(&world);
}

/* A peer that takes nothing is ended when others wait for what it holds: those of its export, and
 * neither for its own sake nor for that of other exports. */
TEST(test_who_is_ended)
{
	enum { SQUATTERS = 2 };
	struct client squatters[SQUATTERS];
	struct client bystander;
	struct client lonely;
	struct client waiter;
	struct export *exports[3];
	struct world world;

	world_begin(&world, 128, 1024);
	exports[0] = add(&world, "small");
	exports[1] = add(&world, "free");
	exports[2] = add(&world, "alone");
	set_quota(&world, "small", QUOTA_BYTES);
	set_quota(&world, "alone", QUOTA_BYTES);
	for (int i = 0; i < SQUATTERS; i++) {
		open_hungry(&world, &squatters[i], 0, "small", QUOTA_BYTES / 4, 1);
	}
	open_hungry(&world, &bystander, 0, "free", QUOTA_BYTES / 2, 1);
	open_hungry(&world, &lonely, 0, "alone", LONG_BYTES, 4);
	run_for(&world, 20 * SECOND_NS);
	assert_int_equal(world.engine->counters.sessions_failed, 0);
	assert_int_equal(entry_of(&world, "small")->memory.held_bytes, SQUATTERS * QUOTA_BYTES / 4);
	assert_true(lonely.got == 0 && entry_of(&world, "alone")->memory.waits > 0);
	open_hungry(&world, &waiter, 0, "small", LONG_BYTES, 2);
	run_for(&world, 20 * SECOND_NS);
	look(&bystander);
	look(&lonely);
	assert_false(bystander.closed);
	assert_false(lonely.closed);
	assert_in_range(world.engine->counters.sessions_failed, 1, SQUATTERS);
	close_all(squatters, SQUATTERS);
	sim_socket_close(bystander.fd);
	sim_socket_close(lonely.fd);
	sim_socket_close(waiter.fd);
	for (size_t i = 0; i < ARRAY_COUNT(exports); i++) {
		drop(&world, exports[i]);
	}
	world_end(&world);
}

/* Each identity may hold as much as its rule says, over all exports; of it each engine has an equal
 * part, but room for one window. */
TEST(test_identities)
{
	enum { HUNGRY = 8, READS = 20, ENGINES = 4 };
	const uint8_t not_encrypted = 0;
	struct access_rule condition = { .origin = (char *)"rule" };
	struct rate_rule rule = { .memory_max = ENGINES * PATH_WINDOW_BYTES / 2,
		.origin = (char *)"rule" };
	struct client hungry[HUNGRY];
	struct client other;
	const struct path_quota *quota;
	struct rate_rules *rules;
	struct export *exports[2];
	struct world world;
	uint64_t held_bytes;

	assert_int_equal(access_rule_add(&condition, ACCESS_TLS, &not_encrypted, 1), 0);
	assert_int_equal(rate_rules_create(&condition, &rule, 1, &rules), 0);
	access_rule_fini(&(struct access_rule){ .condition_count = condition.condition_count,
		.conditions = { condition.conditions[0] } });
	world_begin(&world, 128, 1024);
	world.engine->options.rate_rules = rules;
	world.engine->limits.engine_count = ENGINES;
	exports[0] = add(&world, "even");
	exports[1] = add(&world, "odd");
	for (int i = 0; i < HUNGRY; i++) {
		open_hungry(&world, &hungry[i], 1, i % 2 == 0 ? "even" : "odd", LONG_BYTES, READS);
	}
	quota = &list_entry(
		list_first(&world.engine->rate_identities), struct engine_identity, node)
			 ->memory;
	assert_int_equal(quota->max_bytes, PATH_WINDOW_BYTES);
	run_for(&world, SECOND_NS);
	held_bytes = quota->held_bytes;
	assert_in_range(held_bytes, PATH_WINDOW_BYTES / 2, PATH_WINDOW_BYTES);
	assert_true(quota->waits > 0);
	assert_true(client_try_from(&world, &other, 2, "even"));
	client_ask(&other, NBD_CMD_READ, 0, LONG_BYTES);
	serve(&world, &other, SIMPLE_BYTES + LONG_BYTES);

	rate_rules_set_memory(rules, 0, ENGINES * UINT64_C(9) << 18);
	engine_identity_limits_changed(world.engine);
	assert_int_equal(quota->max_bytes, 9 << 18);
	run_for(&world, 2 * SECOND_NS);
	assert_in_range(quota->held_bytes, held_bytes + 1, 9 << 18);
	rate_rules_set_memory(rules, 0, 0);
	engine_identity_limits_changed(world.engine);
	assert_int_equal(quota->max_bytes, PATH_QUOTA_NONE);
	run_for(&world, SECOND_NS / 10);
	close_all(hungry, HUNGRY);
	run_for(&world, SECOND_NS);
	assert_int_equal(world.engine->counters.sessions, 1);
	sim_socket_close(other.fd);
	drop(&world, exports[0]);
	drop(&world, exports[1]);
	world_end(&world);
	rate_rules_destroy(rules);
}

TEST(test_texts)
{
	static const struct {
		const char *text;
		uint64_t bytes;
		const char *same; /* NULL: it is refused */
	} texts[] = {
		{ "off", 0, "off" },
		{ "2M", 2 << 20, "2M" },
		{ "65536K", 64 << 20, "64M" },
		{ "1T", UINT64_C(1) << 40, "1T" },
		{ "", 0, NULL },
		{ "0", 0, NULL },
		{ "2097151", 0, NULL },
		{ "1025G", 0, NULL },
		{ "64M:burst=1s", 0, NULL },
		{ "all", 0, NULL },
	};

	for (size_t i = 0; i < ARRAY_COUNT(texts); i++) {
		char text[RATE_TEXT_BYTES];
		uint64_t bytes = 1;
		struct error error;
		int rc = rate_parse_memory(texts[i].text, &bytes, &error);

		if (texts[i].same != NULL) {
			assert_int_equal(rc, 0);
			assert_int_equal(bytes, texts[i].bytes);
			assert_string_equal(rate_format_memory(bytes, text), texts[i].same);
		} else {
			assert_int_equal(rc, -EINVAL);
			assert_int_equal(bytes, 1);
		}
	}
}
