// SPDX-License-Identifier: Apache-2.0
/*
 * What two processes of a server say to each other (docs/protocol/upgrade.md). The first byte of
 * the input is how many descriptors came along, modulo 3, and from 128 on what is told of a session
 * is followed by more; the rest is a packet. A connection that is
 * passed is taken over by an engine over the simulated ring, goes on, and ends. Its address offers
 * TLS, which no simulated socket has: what is told of it is read, and refused.
 *
 * Virtual machines (kind vhost) have files in memory in place of the descriptors of guest memory,
 * log and record, with zeroes or the packet in them, and no eventfds, which the simulated ring does
 * not have.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/handover.h"
#include "fuzz.h"
#include "nbd/server/server.h"
#include "server/upgrade/added.h"
#include "sim/sim.h"
#include "stores.h"
#include "tls/context.h"
#include "vhost/server/server.h"

enum { FILES = 4, FILE_BYTES = 1 << 20 };

struct world {
	struct ring *ring;
	struct store *store;
	struct export *export;
	struct engine *engine;
	struct ring_message stop;
	bool drained;
};

static struct tls_policy *policy;

static void destroy_policy(void)
{
	tls_policy_destroy(policy);
}

/* Its credentials are those of a file that is gone. */
static struct tls_policy *policy_of_address(void)
{
	static const char key[] = "nobody:0123456789abcdef0123456789abcdef\n";
	char path[] = "/tmp/gmblock-fuzz.XXXXXX";
	const struct tls_options options = {
		.role = TLS_SERVER, .psk_file = path, .records = TLS_RECORDS_USER
	};
	struct tls_context *context;
	struct error error;
	int fd;

	if (policy == NULL) {
		fd = mkstemp(path);
		GMB_ASSERT(fd >= 0 && write(fd, key, sizeof(key) - 1) == sizeof(key) - 1);
		close(fd);
		GMB_ASSERT(tls_context_load(&options, &context, &error) == 0);
		unlink(path);
		GMB_ASSERT(tls_policy_create(TLS_ON, context, NULL, &policy) == 0);
		GMB_ASSERT(atexit(destroy_policy) == 0);
	}
	return policy;
}

static void world_begin(struct world *world)
{
	static const struct session_kind *const kinds[] = { &nbd_session_kind,
		&vhost_session_kind };
	struct engine_options options = { .kinds = kinds, .kind_count = ARRAY_COUNT(kinds) };
	struct export_options about = { .name = "" };
	struct error error;

	memset(world, 0, sizeof(*world));
	world->ring = sim_ring_create_for_fuzz(1);
	GMB_ASSERT(store_open(&(struct store_options){ .path = "memory:65536" }, &world->store,
			   &error) == 0);
	about.store = world->store;
	GMB_ASSERT(export_create(&about, &world->export, &error) == 0);
	engine_limits_default(&options.limits);
	options.ring = world->ring;
	GMB_ASSERT(engine_create(&options, &world->engine, &error) == 0);
	GMB_ASSERT(engine_export_add(world->engine, world->export, &error) == 0);
}

static void drained(void *context)
{
	struct world *world = context;

	world->drained = true;
}

static void deliver_stop(struct ring *ring, struct ring_message *message)
{
	struct world *world = container_of(message, struct world, stop);

	engine_drain(world->engine, UINT64_C(1000000000), drained, world);
}

static void world_end(struct world *world)
{
	world->stop.deliver = deliver_stop;
	ring_post(world->ring, &world->stop);
	while (!world->drained) {
		GMB_ASSERT(sim_step());
	}
	GMB_ASSERT(world->engine->counters.sessions == 0);
	GMB_ASSERT(world->engine->counters.inflight == 0);
	GMB_ASSERT(world->export->connections == 0);
	engine_destroy(world->engine);
	export_put(world->export);
	ring_destroy(world->ring);
	GMB_ASSERT(sim_open_count() == 0);
	sim_stop();
}

/* Returns a file in memory that begins with the packet. */
static int create_file(const uint8_t *packet, size_t count)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	GMB_ASSERT(fd >= 0 && ftruncate(fd, FILE_BYTES) == 0);
	GMB_ASSERT(pwrite(fd, packet, count, 0) == (ssize_t)count);
	return fd;
}

static bool is_of_kind(const struct session_record *record, const struct session_kind *kind)
{
	return record->kind_bytes == strlen(kind->name) &&
	       memcmp(record->kind, kind->name, record->kind_bytes) == 0;
}

/* The peer says nothing more than it has said to the other process. has_later: what was told has
 * more behind it, which is the packet. */
static void adopt(
	struct session_record *record, bool has_later, const uint8_t *packet, size_t count)
{
	const struct session_kind *kind =
		is_of_kind(record, &vhost_session_kind) ? &vhost_session_kind : &nbd_session_kind;
	struct world world;
	int server_fd;
	int client_fd;

	while (kind == &vhost_session_kind && record->fd_count < FILES) {
		record->fds[record->fd_count] =
			create_file(packet, record->fd_count % 2 == 0 ? 0 : count);
		record->fd_count++;
	}
	if (has_later) {
		record->later[0] = (struct session_piece){ packet, (uint32_t)count };
	}
	world_begin(&world);
	sim_socket_pair(&server_fd, &client_fd);
	GMB_ASSERT(engine_pause(world.engine) == 0);
	engine_adopt(world.engine,
		&(struct endpoint){ .kind = kind,
			.fd = server_fd,
			.tls = policy_of_address(),
			.peer = { .text = "fuzz" } },
		record);
	while (record->fd_count > 0) {
		close(record->fds[--record->fd_count]);
	}
	engine_resume(world.engine);
	sim_socket_finish(client_fd);
	while (sim_step()) {
		uint8_t bytes[4096];

		while (sim_socket_read(client_fd, bytes, sizeof(bytes)) > 0) {
		}
	}
	sim_socket_close(client_fd);
	world_end(&world);
}

static bool is_inside(const void *part, size_t bytes, const uint8_t *packet, size_t count)
{
	const uint8_t *at = part;

	return bytes == 0 || (at >= packet && bytes <= count && at <= packet + count - bytes);
}

static void check_message(
	const struct upgrade_message *message, const uint8_t *packet, size_t count)
{
	const struct session_record *record = &message->record;

	GMB_ASSERT(message->type > 0 && message->type < UPGRADE_TYPE_END);
	GMB_ASSERT(upgrade_type_name(message->type) != NULL);
	GMB_ASSERT(is_inside(record->kind, record->kind_bytes, packet, count));
	GMB_ASSERT(is_inside(record->export, record->export_bytes, packet, count));
	GMB_ASSERT(is_inside(record->token, record->token_bytes, packet, count));
	GMB_ASSERT(is_inside(record->bytes, record->byte_count, packet, count));
	GMB_ASSERT(is_inside(message->text, message->text_bytes, packet, count));
	GMB_ASSERT(is_inside(message->strings, message->strings_bytes, packet, count));
	GMB_ASSERT(is_inside(message->received.bytes, message->received.count, packet, count));
	GMB_ASSERT(record->export_bytes <= UPGRADE_NAME_BYTES_MAX);
	GMB_ASSERT(message->text_bytes <= ERROR_TEXT_BYTES);
}

/* What was believed is told in the same way, unless it has become longer: names are kept as they
 * are.
 */
static void read_added(const struct upgrade_message *message)
{
	char strings[UPGRADE_STRINGS_BYTES_MAX];
	struct server_export about;
	struct error error = { 0 };

	if (upgrade_added_read(message, &about, &error) < 0) {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
		return;
	}
	GMB_ASSERT(strcmp(about.name, message->strings) == 0 && about.path[0] != '\0');
	GMB_ASSERT(upgrade_added_write(&about, strings) > 0);
	server_export_fini(&about);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct upgrade_message message;
	struct error error = { 0 };
	uint8_t *packet;

	if (size == 0) {
		return 0;
	}
	log_set_level(LOG_LEVEL_ERROR);
	packet = malloc(MAX(size - 1, (size_t)1));
	GMB_ASSERT(packet != NULL);
	memcpy(packet, data + 1, size - 1);
	if (upgrade_parse(packet, size - 1, data[0] % 3, &message, &error) < 0) {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	} else {
		check_message(&message, packet, size - 1);
		if (message.type == UPGRADE_SESSION) {
			adopt(&message.record, data[0] >= 128, packet, size - 1);
		} else if (message.type == UPGRADE_ADDED || message.type == UPGRADE_SNAPSHOT) {
			read_added(&message);
		}
	}
	free(packet);
	return 0;
}
