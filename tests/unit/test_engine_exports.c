// SPDX-License-Identifier: Apache-2.0
/*
 * Exports come and go while an engine serves others: requests in flight are answered, later ones
 * are refused, the sessions end, the store is closed with the last of them, and nobody else
 * notices. Size and rights change under sessions that go on. And how sessions that have chosen none
 * make room.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine_world.h"
#include "stores.h"
#include "unit.h"

enum { MANY = 1000, READS = 8, FLOOD = 200, HANDSHAKES = 8 };

#define DEADLINE_NS (10 * SECOND_NS)

static struct export *add_file(struct world *world, const char *name)
{
	struct export *export;
	struct error error;

	if (sim_disk_find("disk") == NULL) {
		sim_disk_create("disk", &(struct sim_disk_options){ .size = DISK_BYTES });
	}
	export = export_of_path(name, "disk");
	assert_int_equal(engine_export_add(world->engine, export, &error), 0);
	return export;
}

/* As an owner that does not need it itself. */
static void remove_it(struct world *world, struct export *export)
{
	engine_export_remove(world->engine, export, DEADLINE_NS);
	export_put(export);
}

static void ask(const struct client *client, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		client_ask(client, NBD_CMD_READ, 0, READ_BYTES);
	}
}

static void run_until_closed(struct client *client)
{
	wait_for(client, UINT64_MAX);
	assert_true(client->closed);
	sim_socket_close(client->fd);
}

static void run_until_open_count(uint32_t count)
{
	for (int steps = 0; sim_open_count() != count; steps++) {
		assert_true(steps < STEPS_MAX);
		assert_true(sim_step());
	}
}

/* An export that is replaced before what it replaced has ended: the third waits for the first. */
TEST(test_replaced_again)
{
	struct export *exports[3];
	struct error error;
	struct client client;
	struct world world;

	world_begin(&world, 16, 64);
	exports[0] = add_file(&world, "a");
	client_open(&world, &client, "a");
	ask(&client, READS);
	for (uint32_t i = 1; i < 3; i++) {
		exports[i] = export_of_path("a", "disk");
		assert_int_equal(export_replaces(exports[i], exports[i - 1]->use, &error), 0);
		assert_int_equal(engine_export_prepare(world.engine, exports[i], &error), 0);
		remove_it(&world, exports[i - 1]);
		engine_export_show(world.engine, exports[i]);
		assert_true(export_waits(exports[i]));
	}
	run_until_closed(&client);
	for (int steps = 0; export_waits(exports[2]); steps++) {
		assert_true(steps < STEPS_MAX);
		assert_true(sim_step());
	}
	client_open(&world, &client, "a");
	remove_it(&world, exports[2]);
	run_until_closed(&client);
	world_end(&world);
}

/* One that comes after two were removed, of which one has ended. */
TEST(test_replaces_what_was_removed)
{
	static const char *const names[] = { "a", "b", "c" };
	struct export_use *uses[3];
	struct client clients[3];
	struct export *after;
	struct error error;
	struct world world;

	world_begin(&world, 16, 64);
	for (uint32_t i = 0; i < 3; i++) {
		struct export *export = add_file(&world, names[i]);

		uses[i] = export_use_get(export);
		client_open(&world, &clients[i], names[i]);
		ask(&clients[i], READS);
		remove_it(&world, export);
		if (i == 0) {
			run_until_closed(&clients[i]);
		}
	}
	for (int steps = 0; !export_use_is_over(uses[0]); steps++) {
		assert_true(steps < STEPS_MAX);
		assert_true(sim_step());
	}
	after = export_of_path("a", "disk");
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(export_replaces(after, uses[i], &error), 0);
		export_use_put(uses[i]);
	}
	assert_int_equal(engine_export_prepare(world.engine, after, &error), 0);
	engine_export_show(world.engine, after);
	assert_true(export_waits(after));
	run_until_closed(&clients[1]);
	run_until_closed(&clients[2]);
	for (int steps = 0; export_waits(after); steps++) {
		assert_true(steps < STEPS_MAX);
		assert_true(sim_step());
	}
	client_open(&world, &clients[0], "a");
	remove_it(&world, after);
	run_until_closed(&clients[0]);
	world_end(&world);
}

/* Others read all the time; each of many exports is removed in the middle of its client's reads. */
TEST(test_exports_come_and_go_under_load)
{
	struct client steady;
	struct world world;
	uint64_t asked = READS;
	uint32_t refused = 0;
	uint32_t open_before;

	world_begin(&world, 16, 64);
	client_open(&world, &steady, "");
	ask(&steady, READS);
	open_before = sim_open_count();
	for (uint32_t i = 0; i < MANY; i++) {
		struct export *export = add_file(&world, "comes");
		struct client client;

		client_open(&world, &client, "comes");
		ask(&client, READS);
		for (uint32_t step = 0; step < i % 40; step++) {
			(void)sim_step();
		}
		remove_it(&world, export);
		assert_null(engine_export_find(world.engine, "comes", 5));
		run_until_closed(&client);
		/* Every request was answered, by data or, behind the removal, by an error. */
		assert_int_equal(
			(client.got % ANSWER_BYTES) % sizeof(struct nbd_wire_simple_reply), 0);
		refused += client.got < (uint64_t)READS * ANSWER_BYTES;
		asked += READS;
		ask(&steady, READS);
		run_until_open_count(open_before);
	}
	assert_in_range(refused, 1, MANY - 1); /* it came at different times */
	wait_for(&steady, asked * ANSWER_BYTES);
	assert_int_equal(answers(&steady), asked);
	assert_false(steady.closed);
	sim_socket_close(steady.fd);
	assert_int_equal(world.engine->counters.sessions_failed, 0);
	world_end(&world);
}

TEST(test_a_removed_export_cannot_be_found)
{
	struct client old;
	struct client fresh;
	struct world world;
	struct export *export;
	struct error error;

	world_begin(&world, 16, 64);
	export = add_file(&world, "x");
	assert_int_equal(engine_export_add(world.engine, export, &error), -EEXIST);
	client_open(&world, &old, "x");
	sim_disk_set_stalled(sim_disk_find("disk"), true);
	ask(&old, 1);
	wait_for_inflight(&world, 1);
	remove_it(&world, export);
	assert_false(client_try(&world, &fresh, "x"));
	sim_socket_close(fresh.fd);
	export = add_file(&world, "x"); /* while the old one of that name still ends */
	sim_disk_set_stalled(sim_disk_find("disk"), false);
	client_open(&world, &fresh, "x");
	run_until_closed(&old);
	assert_int_equal(old.got, ANSWER_BYTES); /* what was in flight is answered */
	ask(&fresh, 1);
	wait_for(&fresh, ANSWER_BYTES);
	assert_int_equal(answers(&fresh), 1);
	sim_socket_close(fresh.fd);
	export_put(export);
	world_end(&world);
}

/* Who takes no answers is ended after the deadline; the store is closed then. */
TEST(test_a_session_that_does_not_finish)
{
	struct client idle;
	struct client deaf;
	struct world world;
	struct export *export;
	uint32_t open_before;
	uint64_t begin_ns;

	world_begin(&world, 16, 64);
	open_before = sim_open_count();
	export = add_file(&world, "x");
	client_open(&world, &idle, "x");
	client_open(&world, &deaf, "x");
	sim_socket_set_buffer(deaf.fd, 100);
	ask(&deaf, READS);
	wait_for_inflight(&world, READS);
	begin_ns = sim_now_ns();
	remove_it(&world, export);
	run_until_closed(&idle);
	assert_in_range(sim_now_ns() - begin_ns, 0, SECOND_NS);
	while (world.engine->counters.sessions > 0) {
		assert_true(sim_step());
	}
	assert_in_range(sim_now_ns() - begin_ns, DEADLINE_NS, DEADLINE_NS + SECOND_NS);
	sim_socket_close(deaf.fd);
	run_until_open_count(open_before);
	world_end(&world);
}

/* Sessions in the handshake end soon when the engine drains, also those behind one that takes no
 * answers and was to end with its export already. */
TEST(test_a_drain_after_a_removal)
{
	struct client stuck;
	struct client silent;
	struct world world;
	struct export *export;
	uint64_t begin_ns;

	world_begin(&world, 16, 64);
	export = add_file(&world, "x");
	client_connect(&world, &stuck);
	wait_for(&stuck, sizeof(struct nbd_wire_greeting));
	sim_socket_set_buffer(stuck.fd, 1);
	client_choose(&stuck, "x");
	while (engine_export_find(world.engine, "x", 1)->session_count == 0) {
		assert_true(sim_step());
	}
	remove_it(&world, export);
	client_connect(&world, &silent);
	begin_ns = sim_now_ns();
	world_drain(&world, DEADLINE_NS);
	run_until_closed(&silent);
	assert_in_range(sim_now_ns() - begin_ns, 0, 2 * SECOND_NS);
	sim_socket_close(stuck.fd);
	world_finish(&world);
}

/* --- changes -------------------------------------------------------------------------------- */

/* The error that a request gets; its payload follows. */
static uint32_t error_of(
	struct client *client, enum nbd_command command, uint64_t offset, uint32_t length)
{
	static const uint8_t payload[READ_BYTES];
	static uint8_t data[READ_BYTES];
	struct nbd_wire_simple_reply reply;
	uint32_t got = 0;

	assert_in_range(length, 0, READ_BYTES);
	client_ask(client, command, offset, length);
	if (command == NBD_CMD_WRITE) {
		sim_socket_write(client->fd, payload, length);
	}
	while (got < sizeof(reply)) {
		int count =
			sim_socket_read(client->fd, (uint8_t *)&reply + got, sizeof(reply) - got);

		assert_true(count >= 0);
		got += (uint32_t)count;
		assert_true(count > 0 || sim_step());
	}
	got = command == NBD_CMD_READ && be32_get(reply.error) == NBD_SUCCESS ? 0 : length;
	while (got < length) {
		int count = sim_socket_read(client->fd, data, length - got);

		assert_true(count >= 0);
		got += (uint32_t)count;
		assert_true(count > 0 || sim_step());
	}
	return be32_get(reply.error);
}

TEST(test_a_session_sees_its_export_resized)
{
	struct client client;
	struct client other;
	struct world world;
	struct export *export;

	world_begin(&world, 16, 64);
	export = add_file(&world, "x");
	client_open(&world, &client, "x");
	client_open(&world, &other, "");
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, DISK_BYTES, READ_BYTES), NBD_ENOSPC);
	sim_disk_resize(sim_disk_find("disk"), (uint64_t)2 * DISK_BYTES);
	/* Who asks for what was not there is believed before anybody has told. */
	assert_int_equal(error_of(&client, NBD_CMD_READ, DISK_BYTES, READ_BYTES), NBD_SUCCESS);
	engine_export_resized(world.engine, export);
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, DISK_BYTES, READ_BYTES), NBD_SUCCESS);
	assert_int_equal(error_of(&client, NBD_CMD_READ, DISK_BYTES, READ_BYTES), NBD_SUCCESS);
	assert_int_equal(error_of(&other, NBD_CMD_READ, DISK_BYTES, READ_BYTES), NBD_EINVAL);
	sim_disk_resize(sim_disk_find("disk"), READ_BYTES);
	engine_export_resized(world.engine, export);
	/* It was told of a disk that had more: that is lost, not out of range. */
	assert_int_equal(error_of(&client, NBD_CMD_READ, READ_BYTES, READ_BYTES), NBD_EIO);
	assert_int_equal(error_of(&client, NBD_CMD_READ, 0, READ_BYTES), NBD_SUCCESS);
	/* One that was removed can change while its last session ends. */
	sim_disk_set_stalled(sim_disk_find("disk"), true);
	ask(&client, 1);
	wait_for_inflight(&world, 1);
	engine_export_remove(world.engine, export, DEADLINE_NS);
	engine_export_resized(world.engine, export);
	engine_export_rights(world.engine, export);
	sim_disk_set_stalled(sim_disk_find("disk"), false);
	run_until_closed(&client);
	assert_int_equal(client.got, ANSWER_BYTES);
	export_put(export);
	sim_socket_close(other.fd);
	world_end(&world);
}

/* All sessions know that size. */
static bool knows(const struct world *world, uint64_t bytes)
{
	bool all = true;

	list_for_each(node, &world->engine->sessions)
	{
		all &= list_entry(node, struct session, node)->export_bytes == bytes;
	}
	return all;
}

/* The store that finds its size changed says so, whoever found it. */
TEST(test_the_store_tells_that_it_was_resized)
{
	struct client client;
	struct client other;
	struct world world;
	struct export *export;

	world_begin(&world, 16, 64);
	export = add_file(&world, "x");
	client_open(&world, &client, "x");
	client_open(&world, &other, "x");
	sim_disk_resize(sim_disk_find("disk"), (uint64_t)2 * DISK_BYTES);
	assert_true(knows(&world, DISK_BYTES)); /* nobody has looked */
	assert_int_equal(error_of(&client, NBD_CMD_READ, DISK_BYTES, READ_BYTES), NBD_SUCCESS);
	for (int steps = 0; !knows(&world, (uint64_t)2 * DISK_BYTES); steps++) {
		assert_true(steps < STEPS_MAX);
		assert_true(sim_step());
	}
	/* Found just before the export goes: the news is on its way to an engine that forgets it.
	 */
	sim_disk_resize(sim_disk_find("disk"), DISK_BYTES);
	sim_socket_close(other.fd);
	sim_socket_close(client.fd);
	while (world.engine->counters.sessions > 0) {
		assert_true(sim_step());
	}
	assert_int_equal(store_size(export->store), DISK_BYTES);
	remove_it(&world, export);
	run_until_open_count(0);
	world_end(&world);
}

TEST(test_a_session_loses_the_right_to_write)
{
	struct client client;
	struct client other;
	struct world world;
	struct export *export;

	world_begin(&world, 16, 64);
	export = add_file(&world, "x");
	client_open(&world, &client, "x");
	client_open(&world, &other, "");
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, 0, READ_BYTES), NBD_SUCCESS);
	/* What has begun is finished. */
	sim_disk_set_stalled(sim_disk_find("disk"), true);
	client_ask(&client, NBD_CMD_TRIM, 0, DISK_BYTES);
	wait_for_inflight(&world, 1);
	export_set_read_only(export, true);
	engine_export_rights(world.engine, export);
	sim_disk_set_stalled(sim_disk_find("disk"), false);
	wait_for(&client, sizeof(struct nbd_wire_simple_reply));
	assert_int_equal(client.got, sizeof(struct nbd_wire_simple_reply));
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, 0, READ_BYTES), NBD_EPERM);
	assert_int_equal(error_of(&client, NBD_CMD_TRIM, 0, READ_BYTES), NBD_EPERM);
	assert_int_equal(error_of(&client, NBD_CMD_WRITE_ZEROES, 0, READ_BYTES), NBD_EPERM);
	assert_int_equal(error_of(&client, NBD_CMD_READ, 0, READ_BYTES), NBD_SUCCESS);
	assert_int_equal(error_of(&client, NBD_CMD_FLUSH, 0, 0), NBD_SUCCESS);
	assert_int_equal(error_of(&other, NBD_CMD_WRITE, 0, READ_BYTES), NBD_SUCCESS);
	export_set_read_only(export, false);
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, 0, READ_BYTES), NBD_EPERM);
	engine_export_rights(world.engine, export);
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, 0, READ_BYTES), NBD_SUCCESS);
	remove_it(&world, export);
	run_until_closed(&client);
	sim_socket_close(other.fd);
	world_end(&world);
}

/* One rule that gives host 1 some rights. */
static struct access *rights_of_host_1(uint32_t rights)
{
	const uint8_t host[ACCESS_NETWORK_BYTES] = { [ACCESS_ADDRESS_BYTES - 1] = 1, 128 };
	struct access_rule rule = { .rights = rights, .origin = strdup("test") };
	struct access *access;

	assert_int_equal(access_rule_add(&rule, ACCESS_NETWORK, host, sizeof(host)), 0);
	assert_int_equal(access_create(&rule, 1, &access), 0);
	access_rule_fini(&rule);
	return access;
}

static void set_rights_of_host_1(struct world *world, struct export *export, uint32_t rights)
{
	export_set_access(export, rights_of_host_1(rights));
	engine_export_rights(world->engine, export);
}

TEST(test_rules_decide_and_are_replaced)
{
	const uint32_t rw = ENGINE_RIGHT_READ | ENGINE_RIGHT_WRITE;
	struct client client;
	struct client stranger;
	struct world world;
	struct export *export;

	world_begin(&world, 16, 64);
	export = add_file(&world, "x");
	/* Without rules, everybody. */
	assert_true(client_try_from(&world, &stranger, 2, "x"));
	set_rights_of_host_1(&world, export, rw);
	run_until_closed(&stranger);
	assert_false(client_try_from(&world, &stranger, 2, "x"));
	sim_socket_close(stranger.fd);
	assert_true(client_try_from(&world, &client, 1, "x"));
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, 0, READ_BYTES), NBD_SUCCESS);
	set_rights_of_host_1(&world, export, ENGINE_RIGHT_READ);
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, 0, READ_BYTES), NBD_EPERM);
	assert_int_equal(error_of(&client, NBD_CMD_READ, 0, READ_BYTES), NBD_SUCCESS);
	set_rights_of_host_1(&world, export, rw);
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, 0, READ_BYTES), NBD_SUCCESS);
	/* A rule gives no more than the export allows. */
	export_set_read_only(export, true);
	engine_export_rights(world.engine, export);
	assert_int_equal(error_of(&client, NBD_CMD_WRITE, 0, READ_BYTES), NBD_EPERM);
	export_set_read_only(export, false);
	/* What has begun is finished; what comes later is refused, and the session ends. */
	sim_disk_set_stalled(sim_disk_find("disk"), true);
	ask(&client, 1);
	wait_for_inflight(&world, 1);
	set_rights_of_host_1(&world, export, 0);
	ask(&client, 1);
	wait_for(&client, sizeof(struct nbd_wire_simple_reply));
	assert_int_equal(client.got, sizeof(struct nbd_wire_simple_reply));
	sim_disk_set_stalled(sim_disk_find("disk"), false);
	run_until_closed(&client);
	assert_int_equal(client.got, ANSWER_BYTES + sizeof(struct nbd_wire_simple_reply));
	assert_int_equal(world.engine->counters.sessions_failed, 1); /* who asked for it in vain */
	remove_it(&world, export);
	world_end(&world);
}

/* Other exports are listed and chosen, whatever is hidden between them. */
TEST(test_hidden_exports_are_passed_over)
{
	struct session seen = { 0 };
	struct export *exports[4];
	struct client client;
	struct world world;

	world_begin(&world, 16, 64);
	for (uint32_t i = 0; i < ARRAY_COUNT(exports); i++) {
		exports[i] = add_file(&world, (const char *const[]){ "a", "b", "c", "d" }[i]);
	}
	client_open(&world, &client, "");
	seen.kind = &nbd_session_kind;
	seen.engine = world.engine;
	export_set_access(exports[0], rights_of_host_1(0));
	export_set_access(exports[1], rights_of_host_1(ENGINE_RIGHT_READ));
	export_set_access(exports[3], rights_of_host_1(ENGINE_RIGHT_READ));
	assert_ptr_equal(session_export_from(&seen, 0)->export, world.export);
	assert_ptr_equal(session_export_from(&seen, 1)->export, exports[2]);
	assert_null(session_export_from(&seen, 4));
	assert_null(session_export_find(&seen, "b", 1));
	assert_ptr_equal(session_export_find(&seen, "c", 1)->export, exports[2]);
	seen.peer.has_address = true;
	seen.peer.address[ACCESS_ADDRESS_BYTES - 1] = 1;
	assert_ptr_equal(session_export_from(&seen, 1)->export, exports[1]);
	assert_ptr_equal(session_export_from(&seen, 4)->export, exports[3]);
	assert_null(session_export_find(&seen, "a", 1));
	assert_ptr_equal(session_export_find(&seen, "b", 1)->export, exports[1]);
	for (uint32_t i = 0; i < ARRAY_COUNT(exports); i++) {
		remove_it(&world, exports[i]);
	}
	world_end(&world);
}

/* --- takeover -------------------------------------------------------------------------------- */

static const uint8_t token[] = "a name";
static uint32_t ended;

static void count_end(struct takeover_member *member)
{
	ended++;
}

static void begin_person(struct session *session, struct world *world)
{
	*session = (struct session){
		.kind = &nbd_session_kind,
		.engine = world->engine,
		.peer = { .text = "person" },
		.newcomer = NEWCOMER_IDENTIFIED,
		.member = { .ring = world->ring, .end = count_end, .wake = count_end },
	};
}

/* Of whom TLS has told that it is number; 0: somebody. */
static struct identity *identity_of(uint8_t number)
{
	struct identity *identity = calloc(1, sizeof(*identity));

	assert_non_null(identity);
	identity->references = 1;
	identity->is_proved = number != 0;
	identity->principal[0] = number;
	return identity;
}

static void encrypt(struct session *session, uint8_t number)
{
	struct identity *identity = identity_of(number);

	session_identify(session, identity);
	identity_put(identity);
}

static bool replaces(struct session *session, struct export *export)
{
	return session_takeover_replace(session, export, token, sizeof(token));
}

static void end_person(struct session *session)
{
	takeover_give_up(&session->member);
	takeover_leave(&session->member);
	while (!takeover_may_go(&session->member)) {
		assert_true(sim_step());
	}
	if (session->takeover_export != NULL) {
		export_put(session->takeover_export);
	}
	identity_put(session->peer.proved);
}

/* All have the same address, and ask to replace the connection of the first one. */
TEST(test_a_connection_is_replaced_by_its_own_peer)
{
	struct session persons[5];
	struct client client;
	struct world world;
	struct export *other;

	world_begin(&world, 16, 64);
	client_open(&world, &client, "");
	other = add_file(&world, "other");
	for (uint32_t i = 0; i < ARRAY_COUNT(persons); i++) {
		begin_person(&persons[i], &world);
	}
	/* What it was called in clear is forgotten with STARTTLS. */
	session_takeover_join(&persons[0], other, token, sizeof(token));
	encrypt(&persons[0], 1);
	assert_false(replaces(&persons[1], other));
	session_takeover_join(&persons[0], world.export, token, sizeof(token));
	assert_false(replaces(&persons[1], world.export)); /* in clear */
	encrypt(&persons[2], 2);
	assert_false(replaces(&persons[2], world.export));
	encrypt(&persons[3], 0);
	assert_false(replaces(&persons[3], world.export));
	assert_int_equal(ended, 0);
	encrypt(&persons[4], 1); /* another certificate of the same principal */
	assert_true(replaces(&persons[4], world.export));
	assert_true(replaces(&persons[4], world.export)); /* it still waits */
	while (ended == 0) {
		assert_true(sim_step());
	}
	takeover_leave(&persons[0].member);
	while (ended == 1) {
		assert_true(sim_step());
	}
	assert_false(replaces(&persons[4], world.export));
	for (uint32_t i = 0; i < ARRAY_COUNT(persons); i++) {
		end_person(&persons[i]);
	}
	remove_it(&world, other);
	world_end(&world);
}

static void begin_persons(struct world *world, struct client *client, struct session persons[3])
{
	world_begin(world, 16, 64);
	client_open(world, client, "");
	for (uint32_t i = 0; i < 3; i++) {
		begin_person(&persons[i], world);
	}
}

static void end_persons(struct world *world, struct session persons[3])
{
	for (uint32_t i = 0; i < 3; i++) {
		end_person(&persons[i]);
	}
	world_end(world);
}

/* Two earlier connections have the name. The one that replaces them asks again while the message
 * that wakes it is on its way. */
TEST(a_connection_that_was_woken_waits_for_its_message)
{
	struct session persons[3];
	struct client client;
	struct world world;

	begin_persons(&world, &client, persons);
	session_takeover_join(&persons[0], world.export, token, sizeof(token));
	session_takeover_join(&persons[1], world.export, token, sizeof(token));
	for (uint32_t i = 2; i-- > 0;) {
		ended = 0;
		assert_true(replaces(&persons[2], world.export));
		while (ended == 0) {
			assert_true(sim_step());
		}
		takeover_leave(&persons[i].member);
		assert_true(replaces(&persons[2], world.export));
		while (ended == 1) {
			assert_true(sim_step());
		}
		assert_int_equal(ended, 2); /* an end and a message, not two ends */
	}
	assert_false(replaces(&persons[2], world.export));
	end_persons(&world, persons);
}

/* A connection waits for an earlier one, and a third one for it. When it asks again, it does not
 * end the third one. */
TEST(a_connection_does_not_end_one_that_waits_for_it)
{
	struct session persons[3];
	struct client client;
	struct world world;

	begin_persons(&world, &client, persons);
	ended = 0;
	session_takeover_join(&persons[0], world.export, token, sizeof(token));
	session_takeover_join(&persons[1], world.export, token, sizeof(token));
	assert_true(replaces(&persons[1], world.export));
	session_takeover_join(&persons[2], world.export, token, sizeof(token));
	takeover_leave(&persons[0].member);
	assert_true(replaces(&persons[2], world.export));
	while (ended < 3) { /* both ends, and the message to the second one */
		assert_true(sim_step());
	}
	assert_false(replaces(&persons[1], world.export));
	takeover_leave(&persons[1].member);
	while (ended < 4) {
		assert_true(sim_step());
	}
	assert_false(replaces(&persons[2], world.export));
	end_persons(&world, persons);
}

static struct session *newest(const struct world *world)
{
	return list_entry(world->engine->sessions.prev, struct session, node);
}

/* --- reviews ------------------------------------------------------------------------------- */

struct reviewed {
	uint64_t number;
	uint32_t ended;
	uint32_t asked;
	uint32_t done;
};

static bool is_even(void *context, const struct session *session)
{
	struct reviewed *seen = context;

	seen->asked++;
	return session->peer.proved->principal[0] % 2 == 0;
}

static void note_review(void *context, uint64_t number, uint32_t count)
{
	struct reviewed *seen = context;

	seen->number = number;
	seen->ended += count;
	seen->done++;
}

static void review(struct world *world, struct reviewed *seen, uint64_t number)
{
	const struct engine_review review = {
		.may_stay = is_even,
		.done = note_review,
		.context = seen,
		.number = number,
		.deadline_ns = DEADLINE_NS,
	};

	engine_review(world->engine, &review);
}

/* To the end of the review, which asks one session in each turn. */
static void run_review(const struct reviewed *seen, uint32_t done)
{
	while (seen->done < done) {
		uint32_t before = seen->asked;

		assert_true(sim_step());
		assert_in_range(seen->asked, before, before + 1);
	}
}

static void open_as(struct world *world, struct client *client, uint8_t number)
{
	client_connect(world, client);
	wait_for(client, sizeof(struct nbd_wire_greeting));
	if (number != 0) {
		encrypt(newest(world), number);
	}
	client_choose(client, "");
	wait_for(client, TALK_HELLO_BYTES);
	client->got = 0;
}

TEST(test_a_review_ends_those_that_may_not_stay)
{
	static const uint8_t numbers[] = { 2, 1, 0, 3, 4, 5 };
	struct client clients[ARRAY_COUNT(numbers)];
	struct reviewed seen = { 0 };
	struct world world;

	world_begin(&world, 16, 64);
	for (size_t i = 0; i < ARRAY_COUNT(numbers); i++) {
		open_as(&world, &clients[i], numbers[i]);
	}
	review(&world, &seen, 1);
	review(&world, &seen, 2); /* and all is asked again, or for the first time */
	run_review(&seen, 1);
	assert_int_equal(seen.number, 2);
	assert_int_equal(seen.asked, 5);
	assert_int_equal(seen.ended, 3);
	for (size_t i = 0; i < ARRAY_COUNT(numbers); i++) {
		if (numbers[i] % 2 != 0) {
			run_until_closed(&clients[i]);
		} else {
			assert_int_equal(
				error_of(&clients[i], NBD_CMD_READ, 0, READ_BYTES), NBD_SUCCESS);
		}
	}
	/* Nobody is asked who has gone. */
	review(&world, &seen, 3);
	sim_socket_close(clients[0].fd);
	run_review(&seen, 2);
	assert_int_equal(seen.ended, 3);
	sim_socket_close(clients[2].fd);
	sim_socket_close(clients[4].fd);
	world_end(&world);
}

/* --- floods -------------------------------------------------------------------------------- */

/* Connections that say nothing, or one byte of the flags, which begin with zeroes. The last ones
 * stay; each is closed once it was seen. */
static void flood(struct world *world, uint8_t host, bool they_speak)
{
	static struct client strangers[FLOOD];

	for (int i = 0; i < FLOOD; i++) {
		client_connect_from(world, &strangers[i], host);
		wait_for(&strangers[i], sizeof(struct nbd_wire_greeting));
		if (they_speak) {
			sim_socket_write(strangers[i].fd, "", 1);
			while (newest(world)->newcomer == NEWCOMER_SILENT) {
				assert_true(sim_step());
			}
		}
	}
	for (int i = 0; i < FLOOD - HANDSHAKES; i++) {
		run_until_closed(&strangers[i]);
	}
	for (int i = FLOOD - HANDSHAKES; i < FLOOD; i++) {
		sim_socket_close(strangers[i].fd);
	}
}

static void finish_handshake(struct client *client, uint32_t said)
{
	const struct talk_hello hello = talk_hello("");

	sim_socket_write(client->fd, (const uint8_t *)&hello + said, sizeof(hello) - said);
	wait_for(client, TALK_HELLO_BYTES);
	assert_false(client->closed);
	sim_socket_close(client->fd);
}

/* The places for handshakes are full many times over, and slow handshakes succeed: of another host
 * without a word, of the same one after a byte. */
TEST(test_slow_handshakes_survive_a_flood)
{
	struct client other;
	struct client same;
	struct world world;

	world_begin(&world, 16, 64);
	log_set_level(LOG_LEVEL_ERROR);
	world.engine->limits.handshakes_max = HANDSHAKES + 2;
	client_connect_from(&world, &other, 1);
	client_connect_from(&world, &same, 2);
	sim_socket_write(same.fd, "", 1); /* of the flags, which begin with zeroes */
	wait_for(&other, sizeof(struct nbd_wire_greeting));
	wait_for(&same, sizeof(struct nbd_wire_greeting));
	flood(&world, 2, false);
	finish_handshake(&other, 0);
	finish_handshake(&same, 1);
	world_end(&world);
}

/* Strangers speak as well, and one of the same host was identified by TLS before. */
TEST(test_an_identified_newcomer_survives_a_flood)
{
	struct client client;
	struct world world;

	world_begin(&world, 16, 64);
	log_set_level(LOG_LEVEL_ERROR);
	world.engine->limits.handshakes_max = HANDSHAKES + 1;
	client_connect_from(&world, &client, 2);
	sim_socket_write(client.fd, "", 1);
	wait_for(&client, sizeof(struct nbd_wire_greeting));
	encrypt(newest(&world), 0);
	flood(&world, 2, true);
	finish_handshake(&client, 1);
	world_end(&world);
}

static const struct engine_client *newest_client(const struct world *world)
{
	return newest(world)->of_client;
}

/* As many clients as fit are counted apart, all others together; who has left makes room. */
TEST(test_clients_are_counted_apart)
{
	enum { HOSTS = ENGINE_CLIENTS_EACH_MAX + 2 };
	static struct client clients[HOSTS];
	const struct engine_client *of[HOSTS];
	struct client late;
	struct world world;

	world_begin(&world, 16, 64);
	for (uint32_t i = 0; i < HOSTS; i++) {
		assert_true(client_try_from(&world, &clients[i], (uint8_t)(i + 1), ""));
		of[i] = newest_client(&world);
		client_ask(&clients[i], NBD_CMD_READ, 0, READ_BYTES);
		wait_for(&clients[i], ANSWER_BYTES);
		assert_int_equal(
			of[i] == &world.engine->other_clients, i >= ENGINE_CLIENTS_EACH_MAX);
	}
	assert_int_equal(world.engine->client_count, ENGINE_CLIENTS_EACH_MAX);
	assert_int_equal(of[0]->operations[STORE_READ]->count, 1);
	assert_int_equal(world.engine->other_clients.session_count, 2);
	assert_int_equal(world.engine->other_clients.operations[STORE_READ]->count, 2);
	/* A second connection of a host that is known. */
	assert_true(client_try_from(&world, &late, 1, ""));
	assert_ptr_equal(newest_client(&world), of[0]);
	assert_int_equal(of[0]->session_count, 2);
	sim_socket_close(late.fd);
	/* Two leave; the one that left first makes room, and one that comes back finds its counts.
	 */
	sim_socket_close(clients[7].fd);
	run_until_open_count(HOSTS - 1);
	sim_socket_close(clients[5].fd);
	run_until_open_count(HOSTS - 2);
	assert_true(client_try_from(&world, &late, 200, ""));
	assert_ptr_equal(newest_client(&world), of[7]);
	assert_null(of[7]->operations[STORE_READ]);
	sim_socket_close(late.fd);
	assert_true(client_try_from(&world, &late, 6, ""));
	assert_ptr_equal(newest_client(&world), of[5]);
	assert_int_equal(of[5]->operations[STORE_READ]->count, 1);
	world_end(&world);
}
