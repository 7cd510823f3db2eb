// SPDX-License-Identifier: Apache-2.0
/* Builds a world from a seed, runs it, and checks what is left. See scenario.h. */
#include "scenario.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/stores.h"
#include "contents.h"
#include "producer.h"
#include "tls/layer.h"

enum {
	DISK_BYTES_MAX = 6 << 20,
	EVENTS_MAX = 3000000,
	CRASHES_MAX = 4,     /* in the first 10, 40, 160, 640 ms */
	CRASHES_ATOMIC = 24, /* in the first 2.56 s */
	TLS_EVERY = 5,	     /* scenarios with it */
	TLS_CLEAR_EVERY = 3, /* clients that do not use it there */
	FLASH_EVERY = 5,     /* exports with such a store; not drawn: seeds stay what they were */
};

#define SECOND_NS	     UINT64_C(1000000000)
#define GIANT_BYTES	     (UINT64_C(9) << 30)
#define VIRTUAL_NS_MAX	     (UINT64_C(3000) * SECOND_NS)
#define HANDSHAKE_TIMEOUT_NS (UINT64_C(60) * SECOND_NS)

/* --- exports -------------------------------------------------------------------------------- */

/* Bytes everywhere, and all of them in the page cache. */
static void fill_disk(const struct scenario_export *export)
{
	uint8_t *bytes = malloc(export->size);

	GMB_ASSERT(bytes != NULL);
	oracle_pattern(sim_random(), 0, bytes, export->size);
	sim_disk_poke(export->disk, 0, bytes, export->size);
	sim_disk_warm(export->disk);
	free(bytes);
}

static void create_disk(struct scenario_export *export, const char *name)
{
	static const uint32_t aligns[] = { 0, 512, 512, 4096 };
	struct sim_disk_options options = {
		.size = export->size,
		.sector_bytes = percent(80) ? 512 : 4096,
		.direct_offset_align = aligns[below(ARRAY_COUNT(aligns))],
		.is_block = percent(30),
		.no_discard = percent(20),
		.no_fast_zero = percent(20),
	};

	if (options.is_block) {
		options.direct_offset_align = options.sector_bytes;
		export->size = MAX(export->size - export->size % options.sector_bytes,
			(uint64_t)options.sector_bytes);
		options.size = export->size;
	}
	if (options.direct_offset_align != 0 && percent(30)) {
		options.direct_memory_align = 4;
	}
	if (percent(20)) {
		options.stripe_chunk = 65536;
		options.stripe_members = 2 + (uint32_t)below(3);
	}
	if (percent(20)) {
		options.io_max = 131072;
	}
	options.ignores_dsync = !options.is_block && percent(10);
	options.keeps_cache = export->warm;
	export->disk = sim_disk_create(name, &options);
	if (export->warm) {
		fill_disk(export);
		return;
	}
	for (int i = 0; i < 8 && !export->sparse_giant; i++) {
		uint8_t bytes[8192];
		uint64_t offset = below(export->size);
		size_t len = (size_t)MIN((uint64_t)sizeof(bytes), export->size - offset);

		oracle_pattern(sim_random(), 0, bytes, len);
		sim_disk_poke(export->disk, offset, bytes, len);
	}
}

static void choose_export(struct scenario *scenario, uint32_t idx)
{
	static const char *const names[EXPORTS_MAX] = { "", "second disk",
		"\xc3\xa4/\xe2\x82\xac" };
	struct scenario_export *export = &scenario->exports[idx];
	char disk[32];

	export->scenario = scenario;
	snprintf(export->name, sizeof(export->name), "%s", names[idx]);
	export->size = percent(15) ? 1 + below(20000) : 1 + below(DISK_BYTES_MAX);
	if (percent(40)) {
		export->size = MAX(export->size & ~UINT64_C(4095), UINT64_C(4096));
	}
	export->read_only = percent(8);
	snprintf(disk, sizeof(disk), "disk%u", idx);
	if (runner_atomic || (scenario->seed + idx) % FLASH_EVERY == 2) {
		contents_make_flash(export, disk);
	} else if (percent(15)) {
		snprintf(export->path, sizeof(export->path), "memory:%" PRIu64, export->size);
	} else {
		if (percent(8)) {
			export->sparse_giant = true;
			export->size = GIANT_BYTES + (percent(50) ? 0 : below(10000));
		} else if (percent(20)) {
			export->warm = true;
			export->size += STORE_PAGE_CACHE_BYTES_MIN;
		}
		snprintf(export->path, sizeof(export->path), "%s", disk);
		create_disk(export, disk);
	}
	contents_begin(export);
}

/* PROMISED: reads ask for progress that the store does not report. */
enum progress { PROGRESS_AS_IT_IS, PROGRESS_NONE, PROGRESS_PROMISED };

/* Whether replies begin before the disk has finished, and how it is known what has come. */
static enum progress choose_synchro(
	const struct scenario_export *export, struct store_options *options)
{
	static const uint32_t chunks[] = { 4096, 16384, 65536, 65536, 1 << 20 };

	if (percent(30)) {
		uint64_t rate = UINT64_C(10000000) << below(8);
		uint64_t latency_ns = percent(50) ? 0 : below(200000);
		uint32_t members = percent(50) ? 1 : 2 + (uint32_t)below(7);
		char pace[128];
		int used = snprintf(pace, sizeof(pace), "%llu:latency=%lluns:members=%u",
			(unsigned long long)rate, (unsigned long long)latency_ns, members);

		if (members > 1) {
			used += snprintf(pace + used, sizeof(pace) - (size_t)used, ":chunk=%u",
				chunks[below(ARRAY_COUNT(chunks))]);
		}
		if (latency_ns % 2 == 1) { /* and such a disk is scheduled */
			snprintf(pace + used, sizeof(pace) - (size_t)used, ":seek=%lluns",
				(unsigned long long)latency_ns);
		}
		stores_set(options, "pace", pace);
	}
	if (percent(20)) {
		options->stripe_chunk = chunks[below(ARRAY_COUNT(chunks))];
		options->stripe_members = 2 + (uint32_t)below(4);
	}
	if (percent(20)) {
		return PROGRESS_NONE;
	}
	return export->disk == NULL && percent(60) ? PROGRESS_PROMISED : PROGRESS_AS_IT_IS;
}

static uint32_t choose_part_size(void)
{
	static const uint32_t overlaps[] = { PATH_OVERLAP_AUTO, PATH_OVERLAP_AUTO,
		PATH_OVERLAP_AUTO, PATH_OVERLAP_OFF, 4096, 16384, 20480, 65536, 1 << 20 };

	return overlaps[below(ARRAY_COUNT(overlaps))];
}

static enum store_mode choose_mode(const struct scenario *scenario)
{
	if (scenario->twin_bytes > 0 && percent(80)) {
		return STORE_MODE_DEVICE;
	}
	return percent(50) ? STORE_MODE_DIRECT : STORE_MODE_CACHED;
}

static void open_export(struct scenario *scenario, struct scenario_export *export)
{
	struct store_options options = { .path = export->path, .read_only = export->read_only };
	bool device_cpu = scenario->twin_bytes > 0 && percent(80);
	enum progress progress = PROGRESS_AS_IT_IS;
	struct disk_info info;
	struct error error;
	int fd;

	if (export->is_flash) {
		options.read_mode = percent(50) ? STORE_MODE_DIRECT : STORE_MODE_CACHED;
		options.write_mode = options.read_mode;
		contents_choose_cache(export, &options);
	} else if (export->disk != NULL && !export->warm) {
		if (disk_open(export->path, true, false, &fd, &error) != 0 ||
			disk_info(fd, &info) != 0) {
			model_fail("cannot look at %s: %s", export->path, error.text);
		}
		disk_close(fd);
		if (info.direct_offset_align != 0) {
			options.read_mode = percent(25) ? STORE_MODE_AUTO : choose_mode(scenario);
			options.write_mode = choose_mode(scenario);
		}
	}
	if (!export->warm && !export->is_flash && percent(10)) {
		stores_set(&options, "delay", "any:3ms");
	}
	if (!export->warm && !export->is_flash) {
		progress = choose_synchro(export, &options);
	}
	if (store_open(&options, &export->store, &error) != 0) {
		model_fail("cannot open %s: %s", export->path, error.text);
	}
	store_options_fini(&options);
	export->store->info.device_cpu = device_cpu;
	if (progress != PROGRESS_AS_IT_IS) {
		export->store->info.has_progress = progress == PROGRESS_PROMISED;
	}
	if (!export->warm && !export->is_flash && percent(25)) {
		export->store = producer_open(scenario, export, export->store, percent(50));
	}
}

/* --- services ------------------------------------------------------------------------------- */

static bool is_orphaned(const struct conn *conn)
{
	return conn->gone && sim_is_open(conn->server_fd);
}

bool scenario_has_orphans(const struct scenario *scenario, const struct scenario_export *export)
{
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		const struct conn *conn = &scenario->conns[i];

		if (conn->export == export && is_orphaned(conn)) {
			return true;
		}
	}
	return false;
}

void scenario_settle(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		const struct conn *conn = &scenario->conns[i];

		if (conn->gone && (conn->left || !is_orphaned(conn))) {
			oracle_settle(conn->export->oracle, i);
		}
	}
}

/* From the end of a connection on, everybody's changes wait for those that it has left in the
 * store: for who asks now, they are as good as done. */
static void see_ends(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->service_count; i++) {
		list_for_each(node, &scenario->services[i].engine->sessions)
		{
			const struct session *session = list_entry(node, struct session, node);
			struct conn *conn = &scenario->conns[session->peer.id];

			if (session->state >= SESSION_DRAINING && !conn->left) {
				conn->left = true;
				scenario_settle(scenario);
			}
		}
	}
}

static void session_closed(void *context, const struct peer *peer)
{
	struct scenario *scenario = context;

	scenario->sessions_gone++;
	scenario_settle(scenario);
}

static const struct session_kind *const kinds[] = { &fairness_kind };

static void create_service(struct scenario *scenario, struct scenario_service *service)
{
	struct ring_options ring_options = { .files_max = 64, .buffers_max = 32 };
	struct engine_options options = { .kinds = kinds, .kind_count = ARRAY_COUNT(kinds) };
	struct error error;

	if (ring_create(&ring_options, &service->ring, &error) != 0) {
		model_fail("no ring: %s", error.text);
	}
	options.ring = service->ring;
	options.limits = scenario->limits;
	if (scenario->twin_bytes > 0) {
		struct arena_source source = twin_arena_source(&service->twin_source);

		if (arena_device_create(service->ring, &source, scenario->twin_bytes,
			    &service->twin, &error) != 0) {
			model_fail("no twin arena: %s", error.text);
		}
		options.device = service->twin;
		options.device_waits = scenario->twin_waits;
	}
	options.endpoint_closed = session_closed;
	options.context = scenario;
	if (engine_create(&options, &service->engine, &error) != 0) {
		model_fail("no engine: %s", error.text);
	}
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		if (engine_export_add(service->engine, scenario->exports[i].export, &error) != 0) {
			model_fail("no export: %s", error.text);
		}
	}
}

/* A client that zeroes a large disk is served in minutes. */
static struct rate_limits choose_rate(void)
{
	struct rate_limits limits = { .burst_ns = (10 + below(500)) * UINT64_C(1000000) };

	if (percent(60)) {
		limits.per_second[RATE_REQUESTS] = UINT64_C(100) << below(10);
	}
	if (percent(60)) {
		limits.per_second[RATE_BYTES] = (UINT64_C(256) << 20) << below(5);
	}
	return limits;
}

static void create_services(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		struct scenario_export *export = &scenario->exports[i];
		struct export_options options = {
			.name = export->name,
			.name_bytes = (uint32_t)strlen(export->name),
			.description = i == 1 ? "the second one" : NULL,
			.store = export->store,
			.read_only = export->read_only,
			.overlap = choose_part_size(),
		};
		struct error error;

		if (percent(10)) {
			options.rate = choose_rate();
		}
		if ((scenario->seed + i) % 5 == 0) { /* not drawn: seeds stay what they were */
			options.memory_max = PATH_WINDOW_BYTES << (scenario->seed / 5 % 2);
		}
		if (export_create(&options, &export->export, &error) != 0) {
			model_fail("no export: %s", error.text);
		}
	}
	for (uint32_t i = 0; i < scenario->service_count; i++) {
		create_service(scenario, &scenario->services[i]);
	}
}

static void has_started(struct store_start *start)
{
	*(bool *)start->context = true;
}

/* Those that have to be; each by the engine that will own its store. */
static void start_exports(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		struct export *export = scenario->exports[i].export;
		struct engine *engine = scenario->services[i % scenario->service_count].engine;
		bool started = false;

		if (!store_needs_start(export->store)) {
			continue;
		}
		export->start.done = has_started;
		export->start.context = &started;
		if (export_start(export, engine) != 0) {
			model_fail("%s", export->start.error.text);
		}
		while (!started) {
			if (!sim_step()) {
				model_fail("export %u does not start", i);
			}
		}
		if (export->start.result != 0) {
			model_fail("export %u: %s", i, export->start.error.text);
		}
	}
}

/* Of a listener that demands TLS, with a file of keys that is there only while it is read. */
static void create_tls(struct scenario *scenario)
{
	char path[] = "/tmp/gmblock-sim.XXXXXX";
	struct tls_context *context;
	struct error error;
	int fd = mkstemp(path);

	if (fd < 0 || dprintf(fd, "%s:%s\n", MODEL_TLS_USER, MODEL_TLS_KEY) < 0) {
		model_fail("no file of keys");
	}
	close(fd);
	if (tls_context_load(&(struct tls_options){ .role = TLS_SERVER, .psk_file = path },
		    &context, &error) != 0 ||
		tls_pool_create(&(struct tls_pool_options){ 0 }, &scenario->tls_pool, &error) !=
			0 ||
		tls_policy_create(TLS_REQUIRE, context, scenario->tls_pool, &scenario->tls) != 0) {
		model_fail("no TLS: %s", error.text);
	}
	unlink(path);
}

static void destroy_tls(struct scenario *scenario)
{
	tls_policy_destroy(scenario->tls);
	tls_pool_destroy(scenario->tls_pool);
	scenario->tls = NULL;
	scenario->tls_pool = NULL;
}

static void drained(void *context)
{
	struct scenario_service *service = context;

	if (service->drained) {
		model_fail("drained was told twice");
	}
	service->drained = true;
}

static void drain_deliver(struct ring *ring, struct ring_message *message)
{
	struct scenario_service *service =
		container_of(message, struct scenario_service, drain_message);

	engine_drain(service->engine, UINT64_C(2000) * SECOND_NS, drained, service);
}

static void drain_services(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->service_count; i++) {
		struct scenario_service *service = &scenario->services[i];

		if (!service->draining) {
			service->draining = true;
			service->drain_message.deliver = drain_deliver;
			ring_post(service->ring, &service->drain_message);
		}
	}
}

/* Stops the server under its clients: they may be refused anything from now on. */
static void drain_early(void *arg)
{
	struct scenario *scenario = arg;

	scenario->draining = true;
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		scenario->conns[i].client.forgive = true;
		scenario->conns[i].budget = MIN(scenario->conns[i].budget, 3u);
	}
	drain_services(scenario);
}

/* --- connections ---------------------------------------------------------------------------- */

struct accept_message {
	struct ring_message message;
	struct engine *engine;
	struct tls_policy *tls;
	uint64_t conn_idx;
	uint8_t host;
	int fd;
};

static void accept_deliver(struct ring *ring, struct ring_message *message)
{
	struct accept_message *accept = container_of(message, struct accept_message, message);

	engine_accept(accept->engine, &(struct endpoint){ .kind = &fairness_kind,
					      .fd = accept->fd,
					      .tls = accept->tls,
					      .peer = { .id = accept->conn_idx,
						      .text = "simulated",
						      .identity = { { accept->host } } } });
	free(accept);
}

/* A peer that says next to nothing must be gone after the handshake timeout. */
static void mute_check(void *arg)
{
	struct conn *conn = arg;

	if (sim_socket_peer_closed(conn->fd)) {
		sim_socket_close(conn->fd);
		conn->gone = true;
		conn->scenario->conns_gone++;
		scenario_settle(conn->scenario);
	} else {
		sim_after(SECOND_NS, mute_check, conn);
	}
}

static void start_mute(struct conn *conn)
{
	/* Any beginning of a lawful handshake. */
	static const uint8_t bytes[] = { 0, 0, 0, 3, 'I', 'H', 'A', 'V', 'E', 'O', 'P', 'T', 0, 0,
		0, 6, 0, 0, 0, 6, 0, 0 };
	size_t len = (size_t)below(sizeof(bytes));

	if (len > 0) {
		sim_socket_write(conn->fd, bytes, len);
	}
	if (percent(30)) {
		sim_socket_finish(conn->fd);
	}
	sim_after(SECOND_NS, mute_check, conn);
}

/* The same for all connections of a client. */
static bool uses_tls(const struct conn *conn)
{
	return conn->scenario->tls != NULL && conn->host % TLS_CLEAR_EVERY != 0;
}

static struct model_plan make_plan(struct conn *conn)
{
	return (struct model_plan){
		.style = (enum model_style)below(3),
		.export_name = percent(15),
		.no_zeroes = percent(70),
		.want_status = percent(70),
		.ask_block_size = percent(70),
		.noise = percent(50),
		.name = conn->export->name,
		.size = conn->export->size,
		.size_may_change = conn->export->size_may_change,
		.end_in_abort = conn->fate == FATE_ABORT,
		.tls = uses_tls(conn),
	};
}

static void start_conn(void *arg)
{
	struct conn *conn = arg;
	struct scenario *scenario = conn->scenario;
	uint32_t service = (uint32_t)below(scenario->service_count);
	struct accept_message *accept = calloc(1, sizeof(*accept));
	struct model_plan plan = make_plan(conn);

	GMB_ASSERT(accept != NULL);
	conn->started = true;
	sim_socket_pair(&conn->server_fd, &conn->fd);
	accept->message.deliver = accept_deliver;
	accept->engine = scenario->services[service].engine;
	accept->tls = plan.tls ? scenario->tls : NULL;
	accept->fd = conn->server_fd;
	accept->conn_idx = (uint64_t)(conn - scenario->conns);
	accept->host = conn->host;
	ring_post(scenario->services[service].ring, &accept->message);
	if (conn->fate == FATE_MUTE) {
		start_mute(conn);
		return;
	}
	if (conn->fate == FATE_CUT) {
		sim_socket_cut(conn->fd, percent(50), 1 + below(percent(50) ? 300 : 1000000),
			(enum sim_cut)below(3));
	}
	model_start(&conn->client, scenario->client_ring, conn->fd, &plan, &traffic_ops, conn);
	conn->client.id = (uint32_t)(conn - scenario->conns);
	/* A simple reply that has begun cannot tell that the disk ended: P78. */
	conn->client.forgive = scenario->draining || scenario->refusing || conn->fate == FATE_CUT ||
			       (plan.size_may_change && plan.style == MODEL_SIMPLE);
}

void scenario_renew(const struct conn *conn)
{
	struct scenario *scenario = conn->scenario;
	struct conn *next = &scenario->conns[scenario->conn_count];

	if (scenario->conn_count == CONNS_MAX) {
		return;
	}
	scenario->conn_count++;
	scenario->renewals++;
	*next = (struct conn){
		.scenario = scenario,
		.export_idx = conn->export_idx,
		.export = conn->export,
		.host = conn->host,
		.fate = conn->renewals > 1 ? FATE_RENEW : FATE_POLITE,
		.renewals = conn->renewals - 1,
		.budget = 1 + conn->depth + (uint32_t)below(conn->depth),
		.depth = conn->depth,
	};
	sim_after(0, start_conn, next);
}

static void create_conns(struct scenario *scenario)
{
	static const enum fate fates[] = { FATE_POLITE, FATE_POLITE, FATE_POLITE, FATE_HASTY,
		FATE_HASTY, FATE_HALF_CLOSE, FATE_CUT, FATE_CUT, FATE_GARBAGE, FATE_STALL,
		FATE_DRIP, FATE_RENEW, FATE_MUTE, FATE_ABORT };
	static const uint32_t depths[] = { 1, 2, 8, 16, 64 };
	uint32_t requests = scenario->life == 0 ? 250 : 100;

	scenario->conn_count = 1 + (uint32_t)below(CONNS_AT_FIRST_MAX);
	if (scenario->hungry) {
		scenario->conn_count = CONNS_HUNGRY; /* all together: more than an export may */
		requests = 120;
	}
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		struct conn *conn = &scenario->conns[i];

		memset(conn, 0, sizeof(*conn));
		conn->scenario = scenario;
		conn->export_idx = (uint32_t)below(scenario->export_count);
		conn->export = &scenario->exports[conn->export_idx];
		conn->fate = fates[below(ARRAY_COUNT(fates))];
		conn->budget = 1 + (uint32_t)below(2 * requests / scenario->conn_count);
		conn->depth = scenario->hungry ? 64 : depths[below(ARRAY_COUNT(depths))];
		conn->garbage_at = (uint32_t)below(conn->budget);
		conn->stall_for_ever = percent(50);
		conn->renewals = 1 + (uint32_t)below(4);
		conn->host = (uint8_t)below(HOSTS_MAX);
		sim_after(below(20000000), start_conn, conn);
	}
}

/* --- what happens to the disks meanwhile ---------------------------------------------------- */

static void crash_now(void *arg)
{
	struct scenario *scenario = arg;

	scenario->crashed = true;
	contents_crash(scenario);
}

static void choose_faults(struct scenario *scenario)
{
	struct sim_faults *faults = &scenario->faults;
	uint32_t some = 1 + (uint32_t)below(30000);

	*faults = (struct sim_faults){ .jitter = percent(95) };
	if (percent(80)) {
		faults->partial_ppm = (uint32_t)below(400000);
		faults->interrupt_ppm = (uint32_t)below(50000);
		faults->again_ppm = percent(50) ? (uint32_t)below(50000) : 0;
	}
	faults->memory_error_ppm = percent(20) ? 500000 : 0;
	faults->file_table_ppm = percent(20) ? 500000 : 0;
	faults->slow_ppm = percent(30) ? 2000 : 0;
	if (percent(40)) {
		return;
	}
	faults->read_error_ppm = percent(40) ? some : 0;
	faults->write_error_ppm = percent(40) ? some : 0;
	faults->no_space_ppm = percent(40) ? some : 0;
	faults->range_error_ppm = percent(40) ? some : 0;
	faults->flush_error_ppm = percent(40) ? 5 * some : 0;
}

static void choose_limits(struct scenario *scenario)
{
	struct engine_limits *limits = &scenario->limits;

	engine_limits_default(limits);
	limits->handshake_timeout_ns = HANDSHAKE_TIMEOUT_NS;
	limits->stall_timeout_ns = 5 * SECOND_NS;
	scenario->refusing = percent(5);
	if (scenario->refusing) {
		limits->sessions_max = 1 + (uint32_t)below(4);
		limits->handshakes_max = 1 + (uint32_t)below(3);
	}
	scenario->hungry = runner_atomic || percent(12);
	if (scenario->hungry) {
		limits->memory_bytes_max = UINT64_C(4) << (20 + (runner_atomic ? below(3) : 0));
	} else if (percent(50)) {
		limits->memory_bytes_max = UINT64_C(1048576) * (4 + below(12));
		limits->inflight_per_session_max = 1 + (uint32_t)below(16);
		limits->inflight_max = limits->inflight_per_session_max + (uint32_t)below(16);
	}
}

/* --- running -------------------------------------------------------------------------------- */

static bool only_stalled_left(const struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		const struct conn *conn = &scenario->conns[i];

		if (!conn->gone && !(conn->client.stalled && conn->stall_for_ever)) {
			return false;
		}
	}
	return true;
}

static void wake_stalled(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		struct conn *conn = &scenario->conns[i];

		if (!conn->gone && conn->client.stalled && conn->stall_for_ever) {
			model_stall(&conn->client, false);
		}
	}
}

static void describe_stuck(const struct scenario *scenario, const char *what)
{
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		const struct conn *conn = &scenario->conns[i];

		if (!conn->gone) {
			fprintf(stderr,
				"client %u: fate %d state %d in flight %u to send %u budget %u "
				"stalled %d ended %d\n",
				i, (int)conn->fate, (int)conn->client.state, conn->client.inflight,
				(unsigned int)(conn->client.sending_len - conn->client.sending_at),
				conn->budget, conn->client.stalled, conn->client.ended);
		}
	}
	model_fail("%s", what);
}

static void run_clients(struct scenario *scenario)
{
	uint64_t events_limit = sim_event_count() + EVENTS_MAX;
	uint64_t time_limit = sim_now_ns() + VIRTUAL_NS_MAX;

	while (scenario->conns_gone < scenario->conn_count) {
		if (only_stalled_left(scenario)) {
			wake_stalled(scenario);
		}
		if (!sim_step()) {
			describe_stuck(scenario, "nothing will ever happen again");
		}
		see_ends(scenario);
		fairness_check(scenario);
		if (sim_event_count() > events_limit) {
			describe_stuck(scenario, "the server is busy for ever");
		}
		if (sim_now_ns() > time_limit) {
			describe_stuck(scenario, "the clients are not served in time");
		}
	}
}

static void check_idle(struct scenario *scenario)
{
	drain_services(scenario);
	if (!sim_run_until_idle(100000)) {
		model_fail("an idle server does not sleep");
	}
	for (uint32_t i = 0; i < scenario->service_count; i++) {
		struct scenario_service *service = &scenario->services[i];
		const struct engine_counters counters = service->engine->counters;

		for (uint32_t k = 0; k < scenario->export_count; k++) {
			scenario->page_cache_send_bytes +=
				engine_export_measured(service->engine, scenario->exports[k].export)
					->page_cache_send_bytes;
		}
		scenario->tls_handshakes += counters.tls_handshakes;
		if (service->twin != NULL) {
			twin_check(scenario, service);
		}
		if (!service->drained) {
			model_fail("the drain of service %u did not finish", i);
		}
		if (counters.sessions != 0 || counters.handshakes != 0 || counters.inflight != 0) {
			model_fail("left behind: %llu sessions, %llu handshakes, %llu requests",
				(unsigned long long)counters.sessions,
				(unsigned long long)counters.handshakes,
				(unsigned long long)counters.inflight);
		}
	}
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		if (scenario->exports[i].export->connections != 0) {
			model_fail("export %u still counts %u connections", i,
				scenario->exports[i].export->connections);
		}
	}
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		const struct scenario_export *export = &scenario->exports[i];
		struct engine *engine = scenario->services[i % scenario->service_count].engine;

		scenario->flash_moved += contents_counted(engine, export, "moved_blocks");
		scenario->flash_cached += contents_counted(engine, export, "cached_blocks");
	}
	if (scenario->sessions_gone != scenario->conn_count) {
		model_fail("%u sessions were told closed of %u", scenario->sessions_gone,
			scenario->conn_count);
	}
}

static void destroy_all(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		if (scenario->conns[i].fate != FATE_MUTE) {
			model_finish(&scenario->conns[i].client);
		}
	}
	destroy_tls(scenario);
	/* Freeing asserts that every buffer is back and nothing is in flight. */
	for (uint32_t i = 0; i < scenario->service_count; i++) {
		engine_destroy(scenario->services[i].engine);
		arena_destroy(scenario->services[i].twin);
		ring_destroy(scenario->services[i].ring);
	}
	ring_destroy(scenario->client_ring);
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		struct scenario_export *export = &scenario->exports[i];

		export_put(export->export);
		if (export->disk != NULL && !export->size_may_change) {
			contents_check_current(export);
		}
	}
	if (sim_open_count() != 0) {
		model_fail("%u descriptors were left open", sim_open_count());
	}
	free(scenario->notes);
	scenario->notes = NULL;
	scenario->note_count = 0;
	scenario->note_max = 0;
}

static void live(struct scenario *scenario)
{
	struct error error;

	scenario->conns_gone = 0;
	scenario->sessions_gone = 0;
	scenario->draining = false;
	memset(scenario->services, 0, sizeof(scenario->services));
	choose_limits(scenario);
	scenario->service_count = percent(25) ? 2 : 1;
	scenario->overlap = percent(20);
	scenario->crowded = !scenario->hungry && percent(25);
	/* Starting and opening are not what is tested here. */
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		open_export(scenario, &scenario->exports[i]);
	}
	if (ring_create(&(struct ring_options){ .files_max = 64 }, &scenario->client_ring,
		    &error) != 0) {
		model_fail("no ring for the clients: %s", error.text);
	}
	fairness_begin(scenario);
	create_services(scenario);
	start_exports(scenario);
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		contents_check_epoch(&scenario->exports[i]);
	}
	if (scenario->seed % TLS_EVERY == 1) {
		create_tls(scenario);
	}
	sim_set_faults(&scenario->faults);
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		if (scenario->exports[i].disk != NULL && scenario->life == 0) {
			disturb_disk(&scenario->exports[i]);
		}
	}
	create_conns(scenario);
	if (scenario->life == 0 && percent(60)) {
		for (int i = 0; i < CRASHES_MAX; i++) {
			sim_after(below(UINT64_C(10000000) << (2 * i)), crash_now, scenario);
		}
		for (int i = 0; i < CRASHES_ATOMIC && runner_atomic; i++) {
			sim_after(below(UINT64_C(2560000000)), crash_now, scenario);
		}
	}
	if (percent(15)) {
		sim_after(below(100000000), drain_early, scenario);
	}
	run_clients(scenario);
	check_idle(scenario);
	destroy_all(scenario);
}

/* The second life: what was there when the power failed or the server was killed, under new
 * services. */
static void reborn(struct scenario *scenario)
{
	scenario->life = 1;
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		struct scenario_export *export = &scenario->exports[i];
		struct sim_disk *old = export->disk;

		if (old != NULL && !export->size_may_change) {
			contents_go_on(export);
		}
		export->flush_may_fail = false;
		export->changes_may_fail = false;
		export->flush_failed = 0;
		if (export->size_may_change) {
			sim_disk_crash(old);
			export->size = MAX(sim_disk_size(old), UINT64_C(1));
			export->size_may_change = sim_disk_size(old) == 0;
		}
		contents_begin(export);
	}
	live(scenario);
}

struct scenario_result scenario_run(uint64_t seed, bool verbose)
{
	struct scenario *scenario = calloc(1, sizeof(*scenario));
	struct scenario_result result;

	GMB_ASSERT(scenario != NULL);
	sim_start(&(struct sim_options){
		.seed = seed,
		.verbose = verbose,
		.fault = blame_fault,
		.context = scenario,
		.faults = { .jitter = true },
		/* The service seldom lets work gather by itself. */
		.batch_count = seed % 4 == 0 ? 2 + (uint32_t)(seed / 4 % 63) : 0,
		.batch_wait_ns = 1000 + seed * 7919 % 200000,
	});
	scenario->seed = seed;
	scenario->verbose = verbose;
	choose_faults(scenario);
	twin_choose(scenario);
	scenario->export_count = 1 + (uint32_t)below(EXPORTS_MAX);
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		choose_export(scenario, i);
	}
	live(scenario);
	if (scenario->crashed) {
		reborn(scenario);
	}
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		contents_end(&scenario->exports[i]);
	}
	result = (struct scenario_result){
		.trace = sim_trace_hash(),
		.events = sim_event_count(),
		.requests = scenario->requests,
		.errors = scenario->replies_with_error,
		.page_cache_send_bytes = scenario->page_cache_send_bytes,
		.send_faults = sim_send_faults(),
		.device_bytes = scenario->device_bytes,
		.device_refused = scenario->device_refused,
		.unfinished_bytes = scenario->unfinished_bytes,
		.dripped_bytes = scenario->dripped_bytes,
		.renewals = scenario->renewals,
		.hangs = scenario->hangs,
		.tls_handshakes = scenario->tls_handshakes,
		.place_turns = scenario->fairness.places.count,
		.memory_turns = scenario->fairness.memory.count,
		.flash_moved = scenario->flash_moved,
		.atomic_turns = scenario->fairness.atomic.count,
		.atomic_writes = scenario->atomic_writes,
		.flash_cached = scenario->flash_cached,
		.flash_kept = scenario->flash_kept,
	};
	sim_stop();
	free(scenario);
	return result;
}
