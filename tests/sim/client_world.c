// SPDX-License-Identifier: Apache-2.0
/* The server's lives, the network, and what happens to them. See client_world.h. */
#include "client_world.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connector_sim.h"
#include "engine/lease.h"
#include "nbd/server/server.h"
#include "runner.h"
#include "store/store.h"
#ifdef GMBLOCK_CLAN
#include "clan_sim.h"
#include "gmb/server/server.h"
#endif

const char *const world_hosts[WORLD_HOSTS] = { "simulated", "standby" };

#define MS_NS	  UINT64_C(1000000)
#define SECOND_NS UINT64_C(1000000000)

enum { DISK_BYTES_MAX = 2 << 20, INCIDENTS_MAX = 8 };

uint64_t world_below(uint64_t limit)
{
	return limit == 0 ? 0 : sim_random() % limit;
}

bool world_percent(uint32_t chance)
{
	return world_below(100) < chance;
}

static void say(const struct world *world, const char *what, uint64_t value)
{
	sim_trace_mix(value);
	if (world->verbose) {
		fprintf(stderr, "%12.3f ms  ---- %s %" PRIu64 "\n", (double)sim_now_ns() / 1e6,
			what, value);
	}
}

/* --- the disk ------------------------------------------------------------------------------- */

static void base_read(void *context, uint64_t offset, uint8_t *out, size_t len)
{
	sim_disk_peek(context, offset, out, len);
}

void world_new_oracle(struct world *world)
{
	char name[32];
	struct sim_disk *copy;
	uint8_t *bytes = malloc(world->size);

	GMB_ASSERT(bytes != NULL);
	oracle_destroy(world->oracle);
	snprintf(name, sizeof(name), "base%u", world->bases++);
	copy = sim_disk_create(name, &(struct sim_disk_options){ .size = world->size });
	sim_disk_peek(world->disk, 0, bytes, world->size);
	/* Poking makes it durable on both sides: the history starts here. */
	sim_disk_poke(copy, 0, bytes, world->size);
	sim_disk_poke(world->disk, 0, bytes, world->size);
	free(bytes);
	world->oracle = oracle_create(base_read, copy);
	world->crashes_before = world->crashes;
}

static void create_disk(struct world *world)
{
	struct sim_disk_options options = {
		.sector_bytes = world_percent(80) ? 512 : 4096,
		.no_discard = world_percent(20),
		.no_fast_zero = world_percent(20),
	};
	uint8_t bytes[4096];

	/* Small disks make for neighbours and overlaps. */
	world->size =
		world_percent(50) ? 8192 + world_below(65536) : 4096 + world_below(DISK_BYTES_MAX);
	if (world_percent(60)) {
		options.direct_offset_align = 512;
		world->size -= world->size % 512;
	}
	options.size = world->size;
	world->disk = sim_disk_create("disk", &options);
	for (int i = 0; i < 4; i++) {
		uint64_t offset = world_below(world->size);
		size_t len = (size_t)MIN((uint64_t)sizeof(bytes), world->size - offset);

		oracle_pattern(sim_random(), 0, bytes, len);
		sim_disk_poke(world->disk, offset, bytes, len);
	}
	world_new_oracle(world);
}

/* Would every byte that was said to be durable survive a power failure now? */
static void world_check_durable(struct world *world)
{
	char name[32];
	struct sim_disk *copy;
	uint8_t *bytes = malloc(world->size);

	GMB_ASSERT(bytes != NULL);
	snprintf(name, sizeof(name), "after%u", world->bases++);
	copy = sim_disk_crash_copy(world->disk, name);
	sim_disk_peek(copy, 0, bytes, world->size);
	if (!oracle_check_durable(world->oracle, 0, bytes, world->size)) {
		model_fail("durability: %s", oracle_message(world->oracle));
	}
	sim_disk_destroy(copy);
	free(bytes);
}

void world_check_current(struct world *world)
{
	uint64_t now = oracle_now(world->oracle);
	bool crashed = world->crashes != world->crashes_before;
	uint8_t *bytes = malloc(world->size);

	GMB_ASSERT(bytes != NULL);
	sim_disk_peek(world->disk, 0, bytes, world->size);
	if (crashed ? !oracle_check_durable(world->oracle, 0, bytes, world->size)
		    : !oracle_check_read(world->oracle, now, 0, bytes, world->size)) {
		model_fail("at the end%s: %s", crashed ? ", after a power failure" : "",
			oracle_message(world->oracle));
	}
	free(bytes);
}

/* --- the server's lives --------------------------------------------------------------------- */

/* Nothing is changed on the way, so that nobody breaks a rule. The linker puts it in between
 * (tests/sim/meson.build). */
void __real_session_terminate(struct session *session, const char *reason);
void __wrap_session_terminate(struct session *session, const char *reason);

void __wrap_session_terminate(struct session *session, const char *reason)
{
	if (reason != NULL && strstr(reason, "broke a rule") != NULL) {
		model_fail("for the server, the client is at fault: %s", reason);
	}
	__real_session_terminate(session, reason);
}

static void session_closed(void *context, const struct peer *peer)
{
	struct world *world = context;

	GMB_ASSERT(world->sessions_open > 0);
	world->sessions_open--;
}

static void open_store(struct world *world)
{
	struct store_options options = { .path = "disk" };
	struct disk_info info;
	struct error error;
	int fd;

	if (disk_open("disk", true, false, &fd, &error) != 0 || disk_info(fd, &info) != 0) {
		model_fail("cannot look at the disk: %s", error.text);
	}
	disk_close(fd);
	if (info.direct_offset_align != 0) {
		options.read_mode = world_percent(50)	? STORE_MODE_DIRECT
				    : world_percent(50) ? STORE_MODE_AUTO
							: STORE_MODE_CACHED;
		options.write_mode = world_percent(50) ? STORE_MODE_DIRECT : STORE_MODE_CACHED;
	}
	if (store_open(&options, &world->store, &error) != 0) {
		model_fail("cannot open the store: %s", error.text);
	}
}

static void start_server(struct world *world)
{
	struct export_options export_options = { .name = "disk", .name_bytes = 4 };
	struct error error;

	GMB_ASSERT(world->server == SERVER_DOWN);
	/* Starting and opening are not what is tested here. */
	sim_set_faults(&(struct sim_faults){ .jitter = world->faults.jitter });
	world->life++;
	if (runner_hosts && !world->plain) {
		world->host = (uint32_t)world_below(WORLD_HOSTS);
		say(world, "server is at host", world->host);
	}
	world->drained = 0;
	world->frozen = false;
	open_store(world);
	export_options.store = world->store;
	export_options.epoch = world->plain ? 0 : UINT64_C(0xb007) << 32 | world->boot;
	if (export_create(&export_options, &world->export, &error) != 0) {
		model_fail("no export: %s", error.text);
	}
	world->leases = world->open_leases != NULL ? world->open_leases(world) : NULL;
	for (uint32_t i = 0; i < world->service_count; i++) {
		struct world_service *service = &world->services[i];
		struct ring_options ring_options = { .files_max = 64, .buffers_max = 32 };
		struct engine_options options = {
			.kinds = &world->kind,
			.kind_count = 1,
			.limits = world->limits,
			.leases = world->leases,
			.endpoint_closed = session_closed,
			.context = world,
		};

		memcpy(options.instance, &(uint64_t){ 1 + (uint64_t)world->life },
			sizeof(uint64_t));
		service->world = world;
		if (ring_create(&ring_options, &service->ring, &error) != 0) {
			model_fail("no ring: %s", error.text);
		}
		options.ring = service->ring;
		if (engine_create(&options, &service->engine, &error) != 0 ||
			engine_export_add(service->engine, world->export, &error) != 0) {
			model_fail("no engine: %s", error.text);
		}
	}
	world->server = SERVER_UP;
	sim_set_faults(&world->faults);
	say(world, "server starts, life", world->life);
}

static void start_event(void *arg)
{
	struct world *world = arg;

	if (world->server == SERVER_DOWN && !world->resting) {
		start_server(world);
	}
}

/* Nothing of this life is left: what a power failure takes is gone now. */
static void bury_server(struct world *world)
{
	for (uint32_t i = 0; i < world->service_count; i++) {
		const struct engine_counters counters = world->services[i].engine->counters;

		if (counters.sessions != 0 || counters.inflight != 0) {
			model_fail("the server left %llu sessions and %llu requests behind",
				(unsigned long long)counters.sessions,
				(unsigned long long)counters.inflight);
		}
		engine_destroy(world->services[i].engine);
		ring_destroy(world->services[i].ring);
	}
	if (world->power_failed) {
		say(world, "power fails", world->boot);
		sim_disk_crash(world->disk);
		world->power_failed = false;
		world->boot++;
		world->crashes++;
		world_check_durable(world);
	}
	export_put(world->export);
	lease_book_destroy(world->leases);
	world->server = SERVER_DOWN;
	say(world, "server has ended, life", world->life);
	if (!world->resting) {
		sim_after(world->downtime_ns, start_event, world);
	}
}

static void bury_event(void *arg)
{
	struct world *world = arg;

	if (world->drained == world->service_count && world->corpse_count == 0) {
		bury_server(world);
	} else {
		sim_after(MS_NS, bury_event, world);
	}
}

static void drained(void *context)
{
	struct world *world = context;

	world->drained++;
}

static void drain_deliver(struct ring *ring, struct ring_message *message)
{
	struct world_service *service = container_of(message, struct world_service, drain_message);

	engine_drain(service->engine, service->world->drain_deadline_ns, drained, service->world);
}

static void unfreeze(struct world *world)
{
	if (world->frozen) {
		world->frozen = false;
		for (uint32_t i = 0; i < world->service_count; i++) {
			sim_freeze(world->services[i].ring, false);
		}
		say(world, "server continues, life", world->life);
	}
}

static void end_server(struct world *world, uint64_t deadline_ns)
{
	world->server = SERVER_DYING;
	unfreeze(world);
	world->drain_deadline_ns = deadline_ns;
	for (uint32_t i = 0; i < world->service_count; i++) {
		world->services[i].drain_message.deliver = drain_deliver;
		ring_post(world->services[i].ring, &world->services[i].drain_message);
	}
	sim_after(MS_NS, bury_event, world);
}

/* --- killed servers -------------------------------------------------------------------------- */

/* What is left of a server that was killed: its operations on the disk go on. */
struct world_corpse {
	struct world *world;
	struct export *export;
	struct lease_book *leases;
	uint32_t service_count;
	uint32_t drained;
	struct world_service services[WORLD_SERVICES_MAX];
};

static void corpse_drained(void *context)
{
	struct world_corpse *corpse = context;

	corpse->drained++;
}

static void corpse_drain_deliver(struct ring *ring, struct ring_message *message)
{
	struct world_service *service = container_of(message, struct world_service, drain_message);

	engine_drain(service->engine, 1, corpse_drained, service->corpse);
}

static void corpse_bury(void *arg)
{
	struct world_corpse *corpse = arg;

	if (corpse->drained < corpse->service_count) {
		sim_after(MS_NS, corpse_bury, corpse);
		return;
	}
	for (uint32_t i = 0; i < corpse->service_count; i++) {
		engine_destroy(corpse->services[i].engine);
		ring_destroy(corpse->services[i].ring);
	}
	export_put(corpse->export);
	lease_book_destroy(corpse->leases);
	corpse->world->corpse_count--;
	say(corpse->world, "a killed server is gone, left", corpse->world->corpse_count);
	free(corpse);
}

/* Nothing of the simulated process runs any more: its memory is given back by its own code, which
 * can do nothing but that. */
static void corpse_wind_up(void *arg)
{
	struct world_corpse *corpse = arg;

	if (sim_disk_has_late_operations(corpse->world->disk)) {
		sim_after(MS_NS / 10, corpse_wind_up, corpse);
		return;
	}
	for (uint32_t i = 0; i < corpse->service_count; i++) {
		struct world_service *service = &corpse->services[i];

		sim_freeze(service->ring, false);
		service->corpse = corpse;
		service->drain_message.deliver = corpse_drain_deliver;
		ring_post(service->ring, &service->drain_message);
	}
	corpse_bury(corpse);
}

static void leave_corpse(struct world *world)
{
	struct world_corpse *corpse = calloc(1, sizeof(*corpse));

	GMB_ASSERT(corpse != NULL);
	corpse->world = world;
	corpse->export = world->export;
	corpse->leases = world->leases;
	corpse->service_count = world->service_count;
	memcpy(corpse->services, world->services, sizeof(corpse->services));
	for (uint32_t i = 0; i < world->service_count; i++) {
		sim_ring_kill(world->services[i].ring);
	}
	sim_disk_kill_users(world->disk);
	world->corpse_count++;
	world->frozen = false;
	world->server = SERVER_DOWN;
	sim_after(MS_NS / 10, corpse_wind_up, corpse);
	sim_after(world->downtime_ns, start_event, world);
}

/* Its sockets are gone at once; what it has asked of the disk is done, or not, or in part; now or,
 * while the machine lives, later. */
static void kill_server(struct world *world, uint64_t downtime_ns, bool power_too)
{
	struct sim_faults dying = {
		.jitter = true, .write_error_ppm = 400000, .range_error_ppm = 400000
	};

	if (world->server != SERVER_UP) {
		return;
	}
	say(world, power_too ? "machine dies, boot" : "server is killed, life",
		power_too ? world->boot : world->life);
	world->downtime_ns = downtime_ns;
	world->power_failed = power_too;
	for (uint32_t i = 0; i < world->connection_count; i++) {
		const struct world_connection *connection = &world->connections[i];

		if (connection->life == world->life && sim_is_open(connection->server_fd)) {
			sim_socket_kill(connection->server_fd);
		}
	}
	if (world->leases != NULL) {
		lease_book_hold(world->leases); /* who is dead records nothing */
	}
	if (!power_too) {
		leave_corpse(world);
		return;
	}
	sim_disk_set_stalled(world->disk, false);
	sim_set_faults(&dying);
	end_server(world, SECOND_NS);
}

static void stop_server(struct world *world, uint64_t downtime_ns, bool power_too)
{
	if (world->server != SERVER_UP || world->frozen) {
		return;
	}
	say(world, "server stops, life", world->life);
	world->downtime_ns = downtime_ns;
	world->power_failed = power_too;
	end_server(world, 5 * SECOND_NS);
}

/* --- the network ---------------------------------------------------------------------------- */

struct accept_message {
	struct ring_message message;
	struct engine *engine;
	const struct session_kind *kind;
	int fd;
};

static void accept_deliver(struct ring *ring, struct ring_message *message)
{
	struct accept_message *accept = container_of(message, struct accept_message, message);

	engine_accept(accept->engine,
		&(struct endpoint){
			.kind = accept->kind, .fd = accept->fd, .peer = { .text = "simulated" } });
	free(accept);
}

static void plan_cut(const struct world *world, const struct world_connection *connection)
{
	sim_socket_cut(connection->client_fd, world_percent(50),
		1 + world_below(world_percent(40) ? 600 : 100000), (enum sim_cut)world_below(3));
}

/* Returns whether the server is at this host. */
static bool is_at(const struct world *world, const char *host)
{
	return host == NULL || strcmp(host, world_hosts[world->host]) == 0;
}

static int network_connect(void *context, const char *host)
{
	struct world *world = context;
	struct world_service *service = &world->services[world_below(world->service_count)];
	struct world_connection *connection;
	struct accept_message *accept;

	if (world->server != SERVER_UP || !is_at(world, host)) {
		return -ECONNREFUSED;
	}
	GMB_ASSERT(world->connection_count < WORLD_CONNECTIONS_MAX);
	connection = &world->connections[world->connection_count++];
	connection->life = world->life;
	sim_socket_pair(&connection->server_fd, &connection->client_fd);
	sim_socket_give(connection->client_fd);
	if (world->link_down) {
		sim_socket_hold(connection->client_fd, true);
	}
	if (!world->calm && world->hopeless) {
		sim_socket_cut(connection->client_fd, false, 900 + world_below(600), SIM_CUT_RESET);
	} else if (!world->calm && world_percent(world->cut_percent)) {
		plan_cut(world, connection);
	}
	accept = calloc(1, sizeof(*accept));
	GMB_ASSERT(accept != NULL);
	accept->message.deliver = accept_deliver;
	accept->engine = service->engine;
	accept->kind = world->kind;
	accept->fd = connection->server_fd;
	world->sessions_open++;
	ring_post(service->ring, &accept->message);
	return connection->client_fd;
}

static int network_attempt(void *context, const char *host, uint64_t timeout_ns, uint64_t *delay_ns)
{
	struct world *world = context;

	*delay_ns = world_below(2 * MS_NS);
	/* The other machine answers, or is switched off. */
	if (world->link_down || (!is_at(world, host) && world_percent(30))) {
		*delay_ns = timeout_ns;
		return -ETIMEDOUT;
	}
	if (!world->calm && world_percent(world->refuse_percent)) {
		return world_percent(50) ? -ECONNREFUSED : -EHOSTUNREACH;
	}
	if (!world->calm && world_percent(5)) {
		*delay_ns = world_below(timeout_ns);
	}
	return 0;
}

static const struct world_connection *any_connection(const struct world *world)
{
	uint32_t count = 0;
	const struct world_connection *chosen = NULL;

	for (uint32_t i = 0; i < world->connection_count; i++) {
		const struct world_connection *connection = &world->connections[i];

		if (sim_is_open(connection->client_fd) && world_below(++count) == 0) {
			chosen = connection;
		}
	}
	return chosen;
}

static void hold_all(struct world *world, bool held)
{
	world->link_down = held;
	for (uint32_t i = 0; i < world->connection_count; i++) {
		sim_socket_hold(world->connections[i].client_fd, held);
	}
	say(world, held ? "link down" : "link up", world->connection_count);
}

/* --- what goes wrong ------------------------------------------------------------------------ */

static void link_up_event(void *arg)
{
	struct world *world = arg;

	if (world->link_down) {
		hold_all(world, false);
	}
}

static void release_event(void *arg)
{
	struct world_connection *connection = arg;

	sim_socket_hold(connection->client_fd, false);
}

static void hope_event(void *arg)
{
	struct world *world = arg;

	world->hopeless = false;
}

static void unfreeze_event(void *arg)
{
	unfreeze(arg);
}

static void unstall_event(void *arg)
{
	struct world *world = arg;

	say(world, "disk goes on", 0);
	sim_disk_set_stalled(world->disk, false);
}

/* From a blink to far too long. */
static uint64_t some_time(const struct world *world)
{
	switch (world_below(6)) {
	case 0:
		return world_below(MS_NS);
	case 1:
		return world_below(50 * MS_NS);
	case 2:
	case 3:
		return world_below(world->scale_ns);
	case 4:
		return world_below(3 * world->scale_ns);
	default:
		return world_below(world_percent(20) ? 40 * world->scale_ns : SECOND_NS);
	}
}

static void reset_connections(struct world *world, bool all)
{
	const struct world_connection *one = any_connection(world);

	say(world, "reset, all", all);
	for (uint32_t i = 0; i < world->connection_count; i++) {
		const struct world_connection *connection = &world->connections[i];

		if (sim_is_open(connection->client_fd) && (all || connection == one)) {
			sim_socket_reset(connection->client_fd);
		}
	}
}

static void blackhole_one(struct world *world)
{
	const struct world_connection *one = any_connection(world);

	if (one != NULL) {
		struct world_connection *connection = &world->connections[one - world->connections];

		say(world, "blackhole", (uint64_t)connection->client_fd);
		sim_socket_hold(connection->client_fd, true);
		sim_after(some_time(world), release_event, connection);
	}
}

static void incident(void *arg)
{
	struct world *world = arg;
	const struct world_connection *one;

	if (world->calm) {
		return;
	}
	if (world_percent(50)) {
		world_check_durable(world);
	}
	switch (world->plain ? 2 + world_below(2) : world_below(12)) {
	case 0:
		reset_connections(world, world_percent(50));
		break;
	case 1:
		one = any_connection(world);
		if (one != NULL) {
			plan_cut(world, one);
		}
		if (world_percent(40)) {
			say(world, "connections are cut from now on", 0);
			world->hopeless = true;
			sim_after(some_time(world), hope_event, world);
			reset_connections(world, true);
		}
		break;
	case 2:
		if (!world->link_down) {
			hold_all(world, true);
			sim_after(some_time(world), link_up_event, world);
		}
		break;
	case 3:
		blackhole_one(world);
		break;
	case 4:
		if (!world->frozen && world->server == SERVER_UP) {
			say(world, "server is frozen, life", world->life);
			world->frozen = true;
			for (uint32_t i = 0; i < world->service_count; i++) {
				sim_freeze(world->services[i].ring, true);
			}
			sim_after(some_time(world), unfreeze_event, world);
		}
		break;
	case 5:
	case 6:
		say(world, "disk hangs", 0);
		sim_disk_set_stalled(world->disk, true);
		sim_after(some_time(world), unstall_event, world);
		break;
	case 7:
		stop_server(world, some_time(world), world_percent(30) && !world->keeps_power);
		break;
	case 8:
	case 9:
		kill_server(world, some_time(world), false);
		break;
	default:
		kill_server(world, some_time(world), !world->keeps_power);
		break;
	}
	if (world->incidents_left > 0 && world_percent(world->plain ? 5 : 40)) {
		world->incidents_left--;
		sim_after(some_time(world), incident, world);
	}
}

void world_tick(struct world *world)
{
	if (!world->calm && world->incidents_left > 0 && world_percent(4)) {
		world->incidents_left--;
		sim_after(world_below(3 * MS_NS), incident, world);
	}
}

/* --- life ----------------------------------------------------------------------------------- */

static void choose_faults(struct world *world)
{
	struct sim_faults *faults = &world->faults;
	uint32_t some = 1 + (uint32_t)world_below(10000);

	*faults = (struct sim_faults){ .jitter = true };
	if (world_percent(80)) {
		faults->partial_ppm = (uint32_t)world_below(400000);
		faults->interrupt_ppm = (uint32_t)world_below(50000);
		faults->again_ppm = world_percent(50) ? (uint32_t)world_below(50000) : 0;
	}
	faults->send_short_ppm = world_percent(30) ? (uint32_t)world_below(50000) : 0;
	faults->memory_error_ppm = world_percent(20) ? 500000 : 0;
	faults->file_table_ppm = world_percent(20) ? 500000 : 0;
	faults->slow_ppm = world_percent(30) ? 2000 : 0;
	if (world_percent(70)) {
		return;
	}
	faults->read_error_ppm = world_percent(40) ? some : 0;
	faults->write_error_ppm = world_percent(40) ? some : 0;
	faults->no_space_ppm = world_percent(40) ? some : 0;
	faults->range_error_ppm = world_percent(40) ? some : 0;
	faults->flush_error_ppm = world_percent(40) ? some : 0;
}

void world_create(struct world *world, bool native, uint64_t scale_ns, bool verbose)
{
	static struct connector_network network;

	network = (struct connector_network){
		.attempt = network_attempt,
		.connect = network_connect,
		.context = world,
	};
	connector_sim_use(&network);
	world->kind = &nbd_session_kind;
#ifdef GMBLOCK_CLAN
	clan_sim_use(&network, native && world_percent(50));
	world->kind = native ? &native_session_kind : world->kind;
#else
	GMB_ASSERT(!native);
#endif
	world->verbose = verbose;
	world->scale_ns = scale_ns;
	world->service_count = world_percent(30) ? 2 : 1;
	world->incidents_left = (uint32_t)world_below(INCIDENTS_MAX + 1);
	world->cut_percent = world_percent(30) ? 30 : 0;
	world->refuse_percent = world_percent(30) ? 20 : 0;
	engine_limits_default(&world->limits);
	world->limits.memory_bytes_max = UINT64_C(1048576) * (4 + world_below(12));
	if (world_percent(40)) {
		world->limits.payload_bytes_max = 64 << 10; /* longer requests are split */
	}
	if (world_percent(40)) {
		world->limits.inflight_per_session_max = 1 + (uint32_t)world_below(16);
		world->limits.inflight_max =
			world->limits.inflight_per_session_max + (uint32_t)world_below(16);
	}
	choose_faults(world);
	world->plain = world_percent(15);
	if (world->plain) {
		world->cut_percent = 0;
		world->faults.slow_ppm = 0;
	}
	create_disk(world);
	start_server(world);
}

void world_calm(struct world *world)
{
	world->calm = true;
	world->faults = (struct sim_faults){ .jitter = true };
	if (world->server == SERVER_UP) {
		sim_set_faults(&world->faults);
	}
	link_up_event(world);
	for (uint32_t i = 0; i < world->connection_count; i++) {
		sim_socket_hold(world->connections[i].client_fd, false);
	}
	unfreeze(world);
	sim_disk_set_stalled(world->disk, false);
	world->downtime_ns = MIN(world->downtime_ns, MS_NS);
}

static void wait_for_server(struct world *world, uint32_t life, enum world_server_state state)
{
	while (world->life < life || world->server != state || world->corpse_count > 0) {
		if (!sim_step()) {
			model_fail("the server will never be in state %d of life %u", (int)state,
				life);
		}
	}
}

void world_restart(struct world *world)
{
	uint32_t life = world->life + 1;

	if (world->server == SERVER_UP) {
		kill_server(world, 0, false);
	}
	wait_for_server(world, life, SERVER_UP);
}

void world_destroy(struct world *world)
{
	world_calm(world);
	connector_sim_use(NULL);
	wait_for_server(world, world->life + (world->server != SERVER_UP), SERVER_UP);
	world->resting = true;
	end_server(world, 100 * SECOND_NS);
	wait_for_server(world, world->life, SERVER_DOWN);
	if (world->sessions_open != 0) {
		model_fail("%u sessions were never told closed", world->sessions_open);
	}
	if (sim_open_count() != 0) {
		model_fail("%u descriptors were left open", sim_open_count());
	}
#ifdef GMBLOCK_CLAN
	clan_sim_use(NULL, false);
#endif
	oracle_destroy(world->oracle);
}
