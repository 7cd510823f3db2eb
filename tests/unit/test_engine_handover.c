// SPDX-License-Identifier: Apache-2.0
/*
 * Sessions that go to another process, on a simulated machine: what a client has begun on one
 * connection while it waits for another one. The other process is a second engine with the same
 * exports; a client goes on over a new socket there, as no simulated socket has two owners.
 */
#include "engine_world.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/handover.h"
#include "engine/snapshot.h"
#include "store/kind.h"
#include "stores.h"
#include "unit.h"

enum {
	BYTES_MAX = 4 << 20,
	OFFSET = 4096,
	COOKIE = 77,
	TURNS = 60,
	SIMPLE_BYTES = sizeof(struct nbd_wire_simple_reply),
	SOCKET_BYTES = 4096, /* of who receives slowly */
	SESSIONS_TOLD_MAX = 4,
};

/* What was told of a session, as the other process has it. */
struct told {
	struct session_record record;
	uint8_t bytes[ENGINE_HANDOVER_BYTES_MAX];
	uint8_t *later;
};

struct told_sessions {
	struct told list[SESSIONS_TOLD_MAX];
	uint32_t count;
	int refuse; /* take() fails so often before */
};

static uint8_t data[BYTES_MAX];
static uint8_t disk[BYTES_MAX + OFFSET];

static int take(void *context, const struct session_record *record)
{
	struct told_sessions *sessions = context;
	struct told *told = &sessions->list[sessions->count];
	uint32_t count = 0;

	if (sessions->refuse > 0) {
		sessions->refuse--;
		return -EAGAIN;
	}
	assert_true(sessions->count < SESSIONS_TOLD_MAX);
	sessions->count++;
	told->record = *record;
	memcpy(told->bytes, record->bytes, record->byte_count);
	told->record.bytes = told->bytes;
	told->later = malloc(ENGINE_HANDOVER_LATER_BYTES_MAX);
	assert_non_null(told->later);
	for (int i = 0; i < ENGINE_HANDOVER_LATER_PIECES; i++) {
		assert_true(record->later[i].count <= ENGINE_HANDOVER_LATER_BYTES_MAX - count);
		if (record->later[i].count > 0) {
			memcpy(told->later + count, record->later[i].bytes, record->later[i].count);
		}
		count += record->later[i].count;
		told->record.later[i] = (struct session_piece){ NULL, 0 };
	}
	told->record.later[0] = (struct session_piece){ told->later, count };
	return 0;
}

static struct engine_rest look_at(struct engine *engine)
{
	struct engine_rest rest = { 0 };

	engine_look(engine, &rest, false);
	return rest;
}

/* As the old process does it, which nobody's peer can hinder here. */
static void come_to_rest(struct engine *engine)
{
	uint64_t began_ns = sim_now_ns();
	struct engine_rest rest;

	assert_int_equal(engine_pause(engine), 0);
	while (rest = look_at(engine), rest.busy > 0 || rest.waiting > 0) {
		assert_true(sim_step());
		assert_in_range(sim_now_ns() - began_ns, 0, SECOND_NS);
	}
}

static void endpoint_closed(void *context, const struct peer *peer)
{
	struct world *world = context;

	world->gone++;
}

/* The engine of another process, which has begun to take over. */
static struct engine *begin_other(struct world *world, struct export *export)
{
	static const struct session_kind *const kinds[] = { &nbd_session_kind };
	struct engine_options options = {
		.kinds = kinds,
		.kind_count = ARRAY_COUNT(kinds),
		.endpoint_closed = endpoint_closed,
		.context = world,
	};
	struct engine *engine;
	struct error error;

	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &options.ring, &error), 0);
	engine_limits_default(&options.limits);
	options.limits.memory_bytes_max = ARENA_SLAB_BYTES;
	assert_int_equal(engine_create(&options, &engine, &error), 0);
	assert_int_equal(engine_export_add(engine, export, &error), 0);
	assert_int_equal(engine_pause(engine), 0);
	return engine;
}

/* The end of an engine, on its ring: the batch ends there. */
struct ending {
	struct ring_message message;
	struct engine *engine;
	bool over;
};

static void drained(void *context)
{
	((struct ending *)context)->over = true;
}

static void deliver_end(struct ring *ring, struct ring_message *message)
{
	struct ending *ending = container_of(message, struct ending, message);

	engine_drain(ending->engine, SECOND_NS, drained, ending);
}

static void end_engine(struct engine *engine)
{
	struct ending ending = { .message = { .deliver = deliver_end }, .engine = engine };

	ring_post(engine->ring, &ending.message);
	while (!ending.over) {
		assert_true(sim_step());
	}
	assert_int_equal(engine->counters.inflight, 0);
	assert_int_equal(engine->counters.sessions, 0);
}

static void end_other(struct engine *engine)
{
	struct ring *ring = engine->ring;

	end_engine(engine);
	engine_destroy(engine);
	ring_destroy(ring);
}

/* Instead of world_end(), where no session may be left. */
static void end_world(struct world *world, struct export *export)
{
	export_put(export);
	end_engine(world->engine);
	world->drained = true;
	world_finish(world);
}

static void adopt(
	struct world *world, struct engine *engine, struct client *client, struct told *told)
{
	struct endpoint endpoint = { .kind = &nbd_session_kind, .peer = { .text = "client" } };

	*client = (struct client){ 0 };
	sim_socket_pair(&endpoint.fd, &client->fd);
	world->accepted++;
	engine_adopt(engine, &endpoint, &told->record);
	free(told->later);
}

/* All of them go from one engine to another, which is returned. clients: in the order in which they
 * came. */
static struct engine *hand_over(struct world *world, struct engine *from, struct export *export,
	struct client *clients, uint32_t count)
{
	struct engine *to = begin_other(world, export);
	struct told_sessions sessions = { .refuse = 1 };

	come_to_rest(from);
	assert_int_equal(engine_hand_over(from, take, &sessions), -EAGAIN);
	assert_int_equal(engine_hand_over(from, take, &sessions), 0);
	assert_int_equal(sessions.count, count);
	engine_let_go(from);
	for (uint32_t i = 0; i < count; i++) {
		int fd = clients[i].fd;

		adopt(world, to, &clients[i], &sessions.list[i]);
		sim_socket_close(fd);
	}
	engine_resume(to);
	let_time_pass(SECOND_NS / 100);
	return to;
}

static struct export *export_of(const char *name, const char *fault)
{
	struct export_options about = { .name = name, .name_bytes = 4 };
	struct store_options store = { .path = "memory:8M" };
	struct export *export;
	struct error error;

	if (fault != NULL) {
		stores_set(&store, "fault", fault);
	}
	assert_int_equal(store_open(&store, &about.store, &error), 0);
	store_options_fini(&store);
	assert_int_equal(export_create(&about, &export, &error), 0);
	return export;
}

static struct export *add(struct world *world, const char *name, const char *fault)
{
	struct export *export = export_of(name, fault);
	struct error error;

	assert_int_equal(engine_export_add(world->engine, export, &error), 0);
	return export;
}

/* --- tests ---------------------------------------------------------------------------------- */

/* Its process waits for the answer to A, and receives nothing of B meanwhile. */
TEST(test_a_reader_that_waits_for_another_connection)
{
	struct export *export;
	struct engine_rest rest;
	struct client a;
	struct client b;
	struct client late;
	struct world world;

	world_begin(&world, 128, 1024);
	export = add(&world, "disk", NULL);
	client_open(&world, &a, "disk");
	client_open(&world, &b, "disk");
	sim_socket_set_buffer(b.fd, SOCKET_BYTES);
	client_ask(&b, NBD_CMD_READ, 0, 1 << 20);
	wait_for_inflight(&world, 1);
	let_time_pass(SECOND_NS / 100);

	assert_int_equal(engine_pause(world.engine), 0);
	client_ask(&a, NBD_CMD_READ, 0, READ_BYTES);
	let_time_pass(SECOND_NS / 10);
	assert_int_equal(answers(&a), 0);
	rest = look_at(world.engine);
	assert_int_equal(rest.busy, 0);
	assert_int_equal(rest.waiting, 1);
	assert_string_equal(rest.peer, "client");

	engine_serve(world.engine);
	wait_for(&a, ANSWER_BYTES);
	client_ask(&a, NBD_CMD_READ, 0, READ_BYTES);
	wait_for(&a, 2 * ANSWER_BYTES);
	assert_int_equal(look_at(world.engine).waiting, 1);
	/* One that comes now is served as well, and not waited for. */
	client_open(&world, &late, "disk");
	sim_socket_set_buffer(late.fd, SOCKET_BYTES);
	client_ask(&late, NBD_CMD_READ, 0, 1 << 20);
	wait_for_inflight(&world, 2);
	let_time_pass(SECOND_NS / 100);
	assert_int_equal(look_at(world.engine).waiting, 1);
	wait_for(&late, SIMPLE_BYTES + (1 << 20));
	/* It goes on, and what it asks next has to wait: it was waited for. */
	client_ask(&b, NBD_CMD_READ, 0, READ_BYTES);
	wait_for(&b, SIMPLE_BYTES + (1 << 20));
	let_time_pass(SECOND_NS / 10);
	look(&b);
	assert_int_equal(b.got, SIMPLE_BYTES + (1 << 20));
	rest = look_at(world.engine);
	assert_int_equal(rest.busy + rest.waiting, 0);

	come_to_rest(world.engine);
	engine_resume(world.engine);
	wait_for(&b, SIMPLE_BYTES + (1 << 20) + ANSWER_BYTES);
	sim_socket_close(a.fd);
	sim_socket_close(b.fd);
	sim_socket_close(late.fd);
	export_put(export);
	world_end(&world);
}

/* Who receives nothing although all others are served is ended, and its time begins with the pause:
 * it had received nothing for long before. */
TEST(test_a_reader_that_stops)
{
	struct engine_rest rest = { 0 };
	struct export *export;
	struct client client;
	struct world world;
	uint64_t began_ns;

	world_begin(&world, 128, 1024);
	world.engine->limits.stall_timeout_ns = 1000 * SECOND_NS; /* another limit, for memory */
	export = add(&world, "disk", NULL);
	client_open(&world, &client, "disk");
	sim_socket_set_buffer(client.fd, SOCKET_BYTES);
	client_ask(&client, NBD_CMD_READ, 0, 1 << 20);
	let_time_pass(100 * SECOND_NS);
	began_ns = sim_now_ns();
	assert_int_equal(engine_pause(world.engine), 0);
	while (rest.ended == 0) {
		rest = (struct engine_rest){ 0 };
		engine_look(world.engine, &rest, true);
		assert_int_equal(rest.busy, 0);
		assert_int_equal(rest.waiting, 1);
		assert_in_range(sim_now_ns() - began_ns, 0, 20 * SECOND_NS);
		let_time_pass(SECOND_NS / 100);
	}
	assert_in_range(sim_now_ns() - began_ns, ENGINE_HANDOVER_STALL_MS * UINT64_C(1000000),
		(ENGINE_HANDOVER_STALL_MS + 100) * UINT64_C(1000000));
	engine_resume(world.engine);
	sim_socket_close(client.fd);
	export_put(export);
	world_end(&world);
}

static void check_disk(struct client *client, uint32_t bytes)
{
	static uint8_t got[BYTES_MAX + OFFSET + SIMPLE_BYTES];
	uint32_t count = 0;

	client_ask(client, NBD_CMD_READ, 0, bytes);
	while (count < bytes + SIMPLE_BYTES) {
		int more = sim_socket_read(client->fd, got + count, sizeof(got) - count);

		assert_true(more >= 0);
		count += (uint32_t)more;
		if (more == 0) {
			assert_true(sim_step());
		}
	}
	assert_memory_equal(got + SIMPLE_BYTES, disk, bytes);
}

static uint32_t below(uint32_t limit)
{
	return (uint32_t)(sim_random() % limit);
}

/* A write that has come up to any byte goes on in the next process, and the one after that; so does
 * what follows it. The old process waits for nothing. */
TEST(test_a_write_that_has_begun)
{
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		struct nbd_wire_request request;
		uint32_t sent = 0;
		uint32_t bytes;
		uint32_t all;
		struct engine *engine;
		struct export *export;
		struct client client;
		struct world world;
		uint8_t *stream;

		(void)state;
		world_begin(&world, 128, 1024);
		export = add(&world, "disk", NULL);
		client_open(&world, &client, "disk");
		engine = world.engine;
		for (uint32_t i = 0; i < turn * 7; i++) {
			(void)sim_random();
		}
		bytes = turn % 3 == 0 ? 1 + below(BYTES_MAX) : 1 + below(100000U << turn % 6);
		bytes = MIN(bytes, (uint32_t)BYTES_MAX);
		for (uint32_t i = 0; i < bytes; i++) {
			data[i] = (uint8_t)(i * 7 + i / 251 + turn);
		}
		memset(disk, 0, sizeof(disk));
		memcpy(disk + OFFSET, data, bytes);
		/* The write, and a short one behind it. */
		all = 2 * (uint32_t)sizeof(request) + bytes + 4;
		stream = malloc(all);
		assert_non_null(stream);
		request = talk_request(NBD_CMD_WRITE, OFFSET, bytes);
		request.flags = be16_make(turn % 2 == 0 ? NBD_CMD_FLAG_FUA : 0);
		memcpy(stream, &request, sizeof(request));
		memcpy(stream + sizeof(request), data, bytes);
		request = talk_request(NBD_CMD_WRITE, 0, 4);
		memcpy(stream + sizeof(request) + bytes, &request, sizeof(request));
		memcpy(stream + all - 4, "more", 4);
		memcpy(disk, "more", 4);
		for (uint32_t part = 1; part <= 3; part++) {
			uint32_t until = part == 3 ? all : sent + below(all - sent);
			struct engine *old = engine;

			sim_socket_write(client.fd, stream + sent, until - sent);
			sent = until;
			let_time_pass(SECOND_NS);
			look(&client);
			if (client.got == 2 * SIMPLE_BYTES) {
				break;
			}
			engine = hand_over(&world, old, export, &client, 1);
			client.got = sent >= sizeof(request) + bytes ? SIMPLE_BYTES : 0;
			if (old != world.engine) {
				end_other(old);
			}
		}
		wait_for(&client, 2 * SIMPLE_BYTES);
		assert_int_equal(client.got, 2 * SIMPLE_BYTES);
		check_disk(&client, bytes + OFFSET);
		sim_socket_close(client.fd);
		free(stream);
		if (engine != world.engine) {
			end_other(engine);
		}
		end_world(&world, export);
	}
}

/* An error of its first piece is not forgotten, nor what it was refused for. */
TEST(test_a_write_that_has_failed)
{
	static const char *const faults[] = { "write:EIO:range=0+4096", NULL };

	for (uint32_t i = 0; i < ARRAY_COUNT(faults); i++) {
		struct nbd_wire_request request =
			talk_request(NBD_CMD_WRITE, faults[i] != NULL ? 0 : 5 << 20, BYTES_MAX);
		struct nbd_wire_simple_reply reply;
		struct engine *engine;
		struct export *export;
		struct client client;
		struct world world;

		world_begin(&world, 128, 1024);
		export = add(&world, "disk", faults[i]);
		client_open(&world, &client, "disk");
		sim_socket_write(client.fd, &request, sizeof(request));
		sim_socket_write(client.fd, data, BYTES_MAX / 2 + 5);
		let_time_pass(SECOND_NS);
		engine = hand_over(&world, world.engine, export, &client, 1);
		sim_socket_write(client.fd, data, BYTES_MAX - BYTES_MAX / 2 - 5);
		let_time_pass(SECOND_NS);
		assert_int_equal(sim_socket_read(client.fd, &reply, sizeof(reply)), sizeof(reply));
		assert_int_equal(be32_get(reply.error), faults[i] != NULL ? NBD_EIO : NBD_ENOSPC);
		client_ask(&client, NBD_CMD_READ, 0, READ_BYTES);
		wait_for(&client, ANSWER_BYTES);
		sim_socket_close(client.fd);
		end_other(engine);
		end_world(&world, export);
	}
}

/* Who is in the middle of a request hears that the server lives, but not at rest: the connection
 * may be another process's at any time, and half a sign in it. */
TEST(test_signs_of_life_end_with_the_rest)
{
	struct nbd_wire_request request = talk_request(NBD_CMD_WRITE, 0, BYTES_MAX);
	struct told_sessions sessions = { 0 };
	struct engine *engine;
	struct export *export;
	struct client client;
	struct world world;
	uint64_t got;
	int old_fd;

	world_begin(&world, 128, 1024);
	export = add(&world, "disk", NULL);
	client_open(&world, &client, "disk");
	old_fd = client.fd;
	come_to_rest(world.engine);
	assert_int_equal(engine_hand_over(world.engine, take, &sessions), 0);
	engine_let_go(world.engine);
	sessions.list[0].bytes[3] |= 1;	 /* it has structured replies */
	sessions.list[0].bytes[7] |= 10; /* and wants a sign each 10 ms */
	engine = begin_other(&world, export);
	adopt(&world, engine, &client, &sessions.list[0]);
	sim_socket_close(old_fd);
	engine_resume(engine);
	sim_socket_write(client.fd, &request, sizeof(request));
	sim_socket_write(client.fd, data, BYTES_MAX / 2);
	let_time_pass(SECOND_NS / 10);

	come_to_rest(engine);
	look(&client);
	got = client.got;
	assert_true(got > 0);
	let_time_pass(SECOND_NS);
	look(&client);
	assert_int_equal(client.got, got);
	engine_resume(engine);
	let_time_pass(SECOND_NS / 10);
	look(&client);
	assert_true(client.got > got);
	sim_socket_close(client.fd);
	end_other(engine);
	end_world(&world, export);
}

/* Nothing of what the export replaces lands any more. */
static void end_use(struct world *world, struct export *export)
{
	engine_export_remove(world->engine, export, SECOND_NS);
	export_put(export);
	let_time_pass(2 * SECOND_NS);
}

/* The export there waits for another one to end: before the other process serves, afterwards, for
 * longer than a handshake takes, or until a third process takes over. The session has it as soon as
 * it can, and ends in silence if it cannot. */
TEST(test_an_export_that_cannot_be_had_yet)
{
	enum { BEFORE, AFTER, TOO_LATE, NEXT, CASES };

	for (int when = BEFORE; when < CASES; when++) {
		struct told_sessions sessions = { 0 };
		struct export *before;
		struct export *export;
		struct export *after = export_of("disk", NULL);
		struct engine *engine;
		struct client client;
		int old_fd;
		struct error error;
		struct world world;

		world_begin(&world, 128, 1024);
		export = add(&world, "disk", NULL);
		before = add(&world, "past", NULL);
		assert_int_equal(export_replaces(after, before->use, &error), 0);
		client_open(&world, &client, "disk");
		old_fd = client.fd;
		come_to_rest(world.engine);
		assert_int_equal(engine_hand_over(world.engine, take, &sessions), 0);
		engine = begin_other(&world, after);
		adopt(&world, engine, &client, &sessions.list[0]);
		client_ask(&client, NBD_CMD_READ, 0, READ_BYTES);
		let_time_pass(SECOND_NS / 10);
		assert_int_equal(engine->counters.sessions, 1);
		assert_int_equal(engine->counters.sessions_failed, 0);
		assert_int_equal(engine->counters.handshakes, 1);
		if (when == BEFORE) {
			end_use(&world, before);
			assert_int_equal(engine->counters.handshakes, 0);
		}
		assert_int_equal(answers(&client), 0); /* it is not this process's yet */
		engine_let_go(world.engine);
		engine_resume(engine);
		if (when == AFTER) {
			let_time_pass(SECOND_NS);
			assert_int_equal(answers(&client), 0);
			end_use(&world, before);
		}
		if (when == TOO_LATE) {
			while (!client.closed) {
				let_time_pass(SECOND_NS);
				look(&client);
			}
			assert_int_equal(engine->counters.sessions_failed, 1);
			assert_int_equal(answers(&client), 0);
			end_use(&world, before);
		} else if (when == NEXT) {
			assert_int_equal(engine_pause(engine), 1);
			let_time_pass(SECOND_NS / 10);
			assert_int_equal(engine->counters.sessions, 0);
			engine_resume(engine);
			end_use(&world, before);
			assert_int_equal(answers(&client), 0);
		} else {
			wait_for(&client, ANSWER_BYTES);
		}
		sim_socket_close(client.fd);
		sim_socket_close(old_fd);
		end_other(engine);
		export_put(after);
		end_world(&world, export);
	}
}

static struct store_snapshot_request *snapshot_request;

static void hold_request(struct store *store, struct store_snapshot_request *request)
{
	snapshot_request = request;
}

static void snapshot_made(struct engine_snapshot *snapshot, int result, const char *text)
{
	(void)snapshot;
	*(int *)snapshot->request.context = result;
}

/* No other process takes a store over while it creates a snapshot for a job. */
TEST(test_a_snapshot_that_is_being_created)
{
	struct engine_export *of;
	struct engine_snapshot snapshot = { 0 };
	struct store_ops ops;
	const struct store_ops *own_ops;
	struct export *export;
	struct world world;
	int result = 0;

	world_begin(&world, 128, 1024);
	export = add(&world, "diskA", NULL);
	of = world.engine->exports[world.engine->export_count - 1];
	own_ops = export->store->ops;
	ops = *own_ops;
	ops.snapshot_ask = hold_request;
	export->store->ops = &ops;
	export->store->owner.ring = world.engine->ring; /* which a store with snapshots has */
	snapshot.request.context = &result;
	engine_snapshot_make(&snapshot, of, "push-1", snapshot_made);
	let_time_pass(SECOND_NS / 100);
	assert_non_null(snapshot_request);
	assert_int_equal(engine_pause(world.engine), 0);
	assert_int_equal(look_at(world.engine).busy, 1);
	snapshot_request->result = -EIO;
	snapshot_request->done(snapshot_request);
	let_time_pass(SECOND_NS / 100);
	assert_int_equal(result, -EIO);
	assert_int_equal(look_at(world.engine).busy, 0);
	engine_resume(world.engine);
	assert_true(engine_snapshot_join(&snapshot));
	export->store->ops = own_ops;
	export->store->owner.ring = NULL;
	end_world(&world, export);
}
