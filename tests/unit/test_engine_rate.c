// SPDX-License-Identifier: Apache-2.0
/*
 * Rates on the way of requests: what an engine lets its clients begin, and what a client that waits
 * for its turn has, keeps and hears. tests/sim/rate_scenario.c tests the rates themselves.
 */
#include "engine_world.h"
#include "unit.h"

#include <errno.h>
#include <stdio.h>

static void set_rate(struct world *world, const char *text)
{
	struct rate_limits limits;
	struct error error;

	assert_int_equal(rate_parse(text, &limits, &error), 0);
	rate_set(&world->export->rate, &limits, sim_now_ns());
	engine_export_limits_changed(world->engine, world->export);
}

static void ask_many(const struct client *client, enum nbd_command command, uint64_t offset,
	uint32_t length, int count)
{
	for (int i = 0; i < count; i++) {
		client_ask(client, command, offset, length);
	}
}

/* Takes what comes, so that it finds room. */
static void take_for(struct client *client, uint64_t ns)
{
	for (int i = 0; i < 50; i++) {
		let_time_pass(ns / 50);
		look(client);
	}
}

/* How many answers of so many bytes come in a second, after one that has used up the burst. */
static uint64_t answers_in_a_second(struct client *client, uint64_t answer_bytes)
{
	uint64_t before;

	take_for(client, SECOND_NS);
	before = client->got;
	take_for(client, SECOND_NS);
	return (client->got - before) / answer_bytes;
}

/* --- tests ---------------------------------------------------------------------------------- */

TEST(test_requests_a_second)
{
	struct client client;
	struct world world;

	world_begin(&world, 128, 1024);
	client_open(&world, &client, "");
	set_rate(&world, "requests=100:burst=10ms");
	ask_many(&client, NBD_CMD_READ, 0, READ_BYTES, 1000);
	assert_in_range(answers_in_a_second(&client, ANSWER_BYTES), 98, 101);
	set_rate(&world, "requests=200");
	assert_in_range(answers_in_a_second(&client, ANSWER_BYTES), 196, 202);
	set_rate(&world, "off");
	let_time_pass(SECOND_NS);
	assert_int_equal(answers(&client), 1000);
	sim_socket_close(client.fd);
	world_end(&world);
}

/* Also where what a pause brings is no whole number of requests. */
TEST(test_rates_that_are_no_round_number)
{
	static const uint64_t rates[] = { 1100, 1900, 2900, 7700 };
	struct client client;
	struct world world;
	char text[64];

	world_begin(&world, 128, 1024);
	client_open(&world, &client, "");
	for (size_t i = 0; i < ARRAY_COUNT(rates); i++) {
		uint64_t rate = rates[i];

		snprintf(text, sizeof(text), "requests=%llu", (unsigned long long)rate);
		set_rate(&world, text);
		ask_many(&client, NBD_CMD_READ, 0, READ_BYTES, (int)rate * 5 / 2);
		assert_in_range(answers_in_a_second(&client, ANSWER_BYTES), rate * 97 / 100,
			rate * 103 / 100);
		set_rate(&world, "off");
		let_time_pass(SECOND_NS);
	}
	sim_socket_close(client.fd);
	world_end(&world);
}

/* By what they move, which includes the payload of writes, and does not include holes. */
TEST(test_bytes_a_second)
{
	enum { EACH = 4096, SIMPLE = sizeof(struct nbd_wire_simple_reply) };
	static const uint8_t payload[EACH];
	struct client reader;
	struct client writer;
	struct client trimmer;
	struct world world;

	world_begin(&world, 128, 1024);
	client_open(&world, &reader, "");
	set_rate(&world, "400K:burst=20ms");
	ask_many(&reader, NBD_CMD_READ, 8192, EACH, 1000);
	assert_in_range(answers_in_a_second(&reader, SIMPLE + EACH), 98, 101);
	sim_socket_close(reader.fd);
	client_open(&world, &writer, "");
	for (int i = 0; i < 1000; i++) {
		client_ask(&writer, NBD_CMD_WRITE, 8192, EACH);
		sim_socket_write(writer.fd, payload, EACH);
	}
	assert_in_range(answers_in_a_second(&writer, SIMPLE), 98, 101);
	sim_socket_close(writer.fd);
	client_open(&world, &trimmer, "");
	ask_many(&trimmer, NBD_CMD_TRIM, 8192, EACH, 1000);
	ask_many(&trimmer, NBD_CMD_FLUSH, 0, 0, 1000);
	ask_many(&trimmer, NBD_CMD_READ, DISK_BYTES, UINT32_MAX, 100); /* is refused */
	wait_for(&trimmer, 2100 * SIMPLE);
	assert_false(trimmer.closed);
	sim_socket_close(trimmer.fd);
	world_end(&world);
}

/* What is longer than the burst goes whole, and is waited for afterwards. */
TEST(test_a_request_longer_than_the_burst)
{
	struct client client;
	struct world world;
	uint64_t began_ns;

	world_begin(&world, 128, 1024);
	client_open(&world, &client, "");
	set_rate(&world, "4K:burst=100ms");
	let_time_pass(SECOND_NS);
	began_ns = sim_now_ns();
	client_ask(&client, NBD_CMD_READ, 8192, 32768);
	client_ask(&client, NBD_CMD_READ, 0, READ_BYTES);
	wait_for(&client, sizeof(struct nbd_wire_simple_reply) + 32768);
	assert_in_range(sim_now_ns() - began_ns, 0, SECOND_NS / 10);
	wait_for(&client, sizeof(struct nbd_wire_simple_reply) + 32768 + ANSWER_BYTES);
	assert_in_range(sim_now_ns() - began_ns, 79 * SECOND_NS / 10, 82 * SECOND_NS / 10);
	sim_socket_close(client.fd);
	world_end(&world);
}

/* Who waits has no request, no place and no memory, and is not idle. */
TEST(test_what_a_client_that_waits_has)
{
	static const uint8_t payload[16384];
	struct client reader;
	struct client writer;
	struct world world;
	uint64_t free_bytes;
	uint64_t began_ns;
	uint64_t seconds;

	world_begin(&world, 128, 1024);
	world.engine->limits.idle_timeout_ns = 5 * SECOND_NS;
	free_bytes = arena_free_bytes(world.engine->arena);
	client_open(&world, &reader, "");
	client_open(&world, &writer, "");
	set_rate(&world, "requests=1:burst=10ms");
	began_ns = sim_now_ns();
	ask_many(&reader, NBD_CMD_READ, 8192, 32768, 100);
	for (int i = 0; i < 50; i++) {
		client_ask(&writer, NBD_CMD_WRITE, 8192, sizeof(payload));
		sim_socket_write(writer.fd, payload, sizeof(payload));
	}
	for (int i = 0; i < 20; i++) {
		uint64_t now_ns;

		let_time_pass(SECOND_NS);
		look(&reader);
		look(&writer);
		now_ns = sim_now_ns();
		while (world.engine->counters.inflight > 0) { /* one has its turn */
			assert_true(sim_step());
			look(&reader);
		}
		assert_in_range(sim_now_ns() - now_ns, 0, SECOND_NS / 10);
		assert_int_equal(arena_free_bytes(world.engine->arena), free_bytes);
	}
	assert_int_equal(world.engine->counters.sessions, 2);
	seconds = (sim_now_ns() - began_ns) / SECOND_NS;
	assert_in_range(world.engine->counters.requests, seconds - 1, seconds + 1);
	set_rate(&world, "requests=1:burst=10ms"); /* again, while they wait */
	sim_socket_close(reader.fd);
	sim_socket_close(writer.fd);
	world_end(&world);
}

/* Peers take turns, whatever one of them asks for, and one export does not wait for another. */
TEST(test_turns)
{
	enum { GREEDY = 5 };
	struct export *export;
	struct client greedy[GREEDY];
	struct client modest;
	struct client elsewhere;
	struct error error;
	struct world world;
	uint64_t sum = 0;

	world_begin(&world, 128, 1024);
	export = export_of_path("other", "memory:65536");
	assert_int_equal(engine_export_add(world.engine, export, &error), 0);
	for (int i = 0; i < GREEDY; i++) {
		client_open(&world, &greedy[i], "");
	}
	client_connect_from(&world, &modest, 1);
	client_choose(&modest, "");
	wait_for(&modest, TALK_HELLO_BYTES);
	modest.got = 0;
	client_open(&world, &elsewhere, "other");
	set_rate(&world, "requests=100:burst=10ms");
	for (int i = 0; i < GREEDY; i++) {
		ask_many(&greedy[i], NBD_CMD_READ, 0, READ_BYTES, 1000);
	}
	ask_many(&modest, NBD_CMD_READ, 0, READ_BYTES, 1000);
	ask_many(&elsewhere, NBD_CMD_READ, 0, READ_BYTES, 5000);
	take_for(&elsewhere, 4 * SECOND_NS);
	assert_int_equal(answers(&elsewhere), 5000);
	assert_in_range(answers(&modest), 195, 205);
	for (int i = 0; i < GREEDY; i++) {
		assert_in_range(answers(&greedy[i]), 38, 42);
		sum += answers(&greedy[i]);
		sim_socket_close(greedy[i].fd);
	}
	assert_in_range(sum, 195, 205);
	sim_socket_close(modest.fd);
	sim_socket_close(elsewhere.fd);
	engine_export_remove(world.engine, export, 0);
	export_put(export);
	world_end(&world);
}

static void open_from(struct world *world, struct client *client, uint8_t host)
{
	client_connect_from(world, client, host);
	client_choose(client, "");
	wait_for(client, TALK_HELLO_BYTES);
	client->got = 0;
}

/* Each identity has the rate of its rule for itself, and at most so many connections; a limited one
 * takes nothing from the others, whatever the export's rate. */
TEST(test_identities)
{
	enum { HOSTS = 3, CONNECTIONS = 2 };
	const uint8_t not_encrypted = 0;
	struct access_rule condition = { .origin = (char *)"rule" };
	struct rate_rule rule = { .connections_max = CONNECTIONS, .origin = (char *)"rule" };
	struct client clients[HOSTS][CONNECTIONS];
	struct client other;
	struct rate_rules *rules;
	struct rate_rule found;
	struct error error;
	struct world world;
	uint32_t identities;

	assert_int_equal(rate_parse("requests=100:burst=10ms", &rule.limits, &error), 0);
	assert_int_equal(access_rule_add(&condition, ACCESS_TLS, &not_encrypted, 1), 0);
	assert_int_equal(rate_rules_create(&condition, &rule, 1, &rules), 0);
	access_rule_fini(&(struct access_rule){ .condition_count = condition.condition_count,
		.conditions = { condition.conditions[0] } });
	world_begin(&world, 128, 1024);
	world.engine->options.rate_rules = rules;
	for (uint8_t host = 0; host < HOSTS; host++) {
		for (int i = 0; i < CONNECTIONS; i++) {
			open_from(&world, &clients[host][i], host);
			ask_many(&clients[host][i], NBD_CMD_READ, 0, READ_BYTES, 400);
		}
	}
	open_from(&world, &other, 0);
	assert_true(other.closed); /* one more than it may have */
	sim_socket_close(other.fd);
	assert_in_range(answers_in_a_second(&clients[0][0], ANSWER_BYTES), 48, 52);
	for (int host = 0; host < HOSTS; host++) {
		for (int i = 0; i < CONNECTIONS; i++) {
			assert_in_range(answers(&clients[host][i]), 97, 103);
		}
	}
	rate_rules_look(rules, 0, &found, &identities);
	assert_int_equal(identities, HOSTS);
	assert_int_equal(found.limits.per_second[RATE_REQUESTS], 100);

	assert_int_equal(rate_parse("requests=10:burst=10ms", &rule.limits, &error), 0);
	rate_rules_set(rules, 0, &rule.limits, sim_now_ns());
	engine_identity_limits_changed(world.engine);
	set_rate(&world, "requests=1000:burst=10ms");
	assert_in_range(answers_in_a_second(&clients[0][0], ANSWER_BYTES), 4, 6);
	assert_in_range(answers(&clients[1][0]), 106, 114);
	for (int i = 0; i < CONNECTIONS; i++) {
		sim_socket_close(clients[0][i].fd);
	}
	let_time_pass(SECOND_NS);
	open_from(&world, &clients[0][0], 0); /* it may again */
	assert_false(clients[0][0].closed);
	assert_int_equal(rate_parse("off", &rule.limits, &error), 0);
	rate_rules_set(rules, 0, &rule.limits, sim_now_ns());
	engine_identity_limits_changed(world.engine);
	take_for(&clients[1][0], 2 * SECOND_NS);
	assert_int_equal(answers(&clients[1][0]), 400);
	sim_socket_close(clients[0][0].fd);
	for (int host = 1; host < HOSTS; host++) {
		for (int i = 0; i < CONNECTIONS; i++) {
			sim_socket_close(clients[host][i].fd);
		}
	}
	world_end(&world);
	rate_rules_look(rules, 0, &found, &identities);
	assert_int_equal(identities, 0);
	rate_rules_destroy(rules);
}

/* Who leaves and comes back has the same rate, not a new burst. */
TEST(test_an_identity_that_comes_back)
{
	enum { BURST = 10 };
	struct access_rule condition = { .origin = (char *)"rule" };
	struct rate_rule rule = { .origin = (char *)"rule" };
	struct rate_rules *rules;
	struct client client;
	struct error error;
	struct world world;

	assert_int_equal(rate_parse("requests=10:burst=1s", &rule.limits, &error), 0);
	assert_int_equal(rate_rules_create(&condition, &rule, 1, &rules), 0);
	world_begin(&world, 128, 1024);
	world.engine->options.rate_rules = rules;
	for (int i = 0; i < 4; i++) {
		open_from(&world, &client, 0);
		ask_many(&client, NBD_CMD_READ, 0, READ_BYTES, 2 * BURST);
		take_for(&client, SECOND_NS / 10);
		assert_in_range(answers(&client), i == 0 ? BURST / 2 : 0, i == 0 ? BURST : 3);
		sim_socket_close(client.fd);
		let_time_pass(SECOND_NS / 10);
	}
	let_time_pass(2 * SECOND_NS); /* and after a pause as much as after any other */
	open_from(&world, &client, 0);
	ask_many(&client, NBD_CMD_READ, 0, READ_BYTES, 2 * BURST);
	take_for(&client, SECOND_NS / 10);
	assert_in_range(answers(&client), BURST / 2, BURST);
	sim_socket_close(client.fd);
	world_end(&world);
	rate_rules_destroy(rules);
}

/* What waits when the server stops is refused, and its clients are not kept waiting. */
TEST(test_stop)
{
	enum { SIMPLE = sizeof(struct nbd_wire_simple_reply) };
	struct client client;
	struct world world;
	uint64_t began_ns;

	world_begin(&world, 128, 1024);
	client_open(&world, &client, "");
	set_rate(&world, "requests=1:burst=10ms");
	ask_many(&client, NBD_CMD_TRIM, 0, READ_BYTES, 100);
	let_time_pass(10 * SECOND_NS);
	look(&client);
	assert_in_range(client.got / SIMPLE, 9, 11);
	began_ns = sim_now_ns();
	world_drain(&world, 100 * SECOND_NS);
	wait_for(&client, UINT64_MAX);
	assert_int_equal(client.got, 100 * SIMPLE);
	assert_in_range(sim_now_ns() - began_ns, 0, SECOND_NS / 2);
	sim_socket_close(client.fd);
	world_finish(&world);
}

TEST(test_texts)
{
	static const struct {
		const char *text;
		const char *same; /* NULL: it is refused */
	} texts[] = {
		{ "off", "off" },
		{ "100M", "100M:burst=100ms" },
		{ "1K:burst=2s", "1K:burst=2s" },
		{ "requests=5000", "requests=5000:burst=100ms" },
		{ "burst=1s:requests=5000:1T", "1T:requests=5000:burst=1s" },
		{ "", NULL },
		{ "0", NULL },
		{ "100", NULL },
		{ "2T", NULL },
		{ "-1M", NULL },
		{ "100M:", NULL },
		{ "100M:200M", NULL },
		{ "requests=0", NULL },
		{ "requests=1:requests=1", NULL },
		{ "requests=100000001", NULL },
		{ "burst=1s", NULL },
		{ "1M:burst=9ms", NULL },
		{ "1M:burst=61s", NULL },
		{ "off:1M", NULL },
		{ "bytes=1M", NULL },
		{ "1M:requests=1111111111111111111111111111111111111111111111111111111111111111111"
		  "1111111111111111111111111111111",
			NULL },
	};

	for (size_t i = 0; i < ARRAY_COUNT(texts); i++) {
		struct rate_limits limits = { 0 };
		char text[RATE_TEXT_BYTES];
		struct error error;
		int rc = rate_parse(texts[i].text, &limits, &error);

		if (texts[i].same != NULL) {
			assert_int_equal(rc, 0);
			assert_string_equal(rate_format(&limits, text), texts[i].same);
			assert_int_equal(rate_parse(text, &limits, &error), 0);
		} else {
			assert_true(rc < 0);
			assert_int_equal(limits.burst_ns, 0);
		}
	}
}
