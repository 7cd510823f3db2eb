// SPDX-License-Identifier: Apache-2.0
/*
 * A whole server session, handshake and transmission, over the simulated ring and disk. The first
 * byte chooses the circumstances (enum circumstance), the second seeds the simulation, the rest is
 * what the client sends.
 *
 * As fuzz_session_tls (FUZZ_TLS) on an address with TLS, whose records are those of fake_tls.c: the
 * third byte chooses the mode (enum tls_mode, modulo 3), the fourth how many bytes the client sends
 * in clear before it waits for the answer to STARTTLS.
 *
 * The server's bytes are judged by their framing. What they mean is the business of tests/sim and
 * tests/conformance.
 */
#include <unistd.h>

#include "base/log.h"
#include "fake_tls.h"
#include "fuzz.h"
#include "memory/arena.h"
#include "nbd/server/server.h"
#include "nbd/wire.h"
#include "sim/sim.h"
#include "stores.h"
#include "tls/context.h"

enum circumstance {
	WITH_JITTER = 1 << 0,	 /* delays, partial transfers and interruptions */
	END_WITH_RESET = 1 << 1, /* else the client half-closes */
	IN_PIECES = 1 << 2,	 /* the client's bytes come in pieces */
	SMALL_BUFFER = 1 << 3,	 /* the way back holds little */
	DEAF_CLIENT = 1 << 4,	 /* it reads nothing until it has said everything */
	WITH_STOP = 1 << 5,	 /* the server is asked to stop in the middle */
	WITH_DISK_ERRORS = 1 << 6,
	WITH_LITTLE_MEMORY = 1 << 7, /* and few requests in flight */
};

enum {
	EXPORTS_COUNT = 3,
	DISK_BYTES = 100001,
	/* Far more than any input of this size can cause. */
	EVENTS_MAX = 2000000,
	MESSAGE_BYTES_MAX = 64 << 10,
#ifdef FUZZ_TLS
	HEADER_BYTES = 4,
	STARTTLS_STEPS_MAX = 100,
#else
	HEADER_BYTES = 2,
#endif
};

/* Follows the framing of what the server sends, across any split. */
struct judge {
	uint64_t skip; /* bytes of the current message still to come */
	uint32_t have; /* of header */
	uint8_t header[32];
	bool greeted;
	bool blind; /* replies whose length only the request knows */
	enum tls_mode mode;
	bool encrypted; /* STARTTLS was acknowledged */
};

struct world {
	struct ring *ring;
	struct store *stores[EXPORTS_COUNT];
	struct export *exports[EXPORTS_COUNT];
	struct engine *engine;
	int client_fd;
	struct ring_message stop;
	bool drained;
	struct judge judge;
};

/* --- judging -------------------------------------------------------------------------------- */

/* A complete header of an option's reply. */
static void judge_option(struct judge *judge, const struct nbd_wire_option_reply *reply)
{
	uint32_t option = be32_get(reply->option);
	uint32_t type = be32_get(reply->type);

	if (option == NBD_OPT_STARTTLS && type == NBD_REP_ACK) {
		GMB_ASSERT(judge->mode != TLS_OFF && !judge->encrypted);
		GMB_ASSERT(be32_get(reply->length) == 0);
		judge->encrypted = true;
	} else if (judge->mode == TLS_REQUIRE && !judge->encrypted) {
		GMB_ASSERT(option == NBD_OPT_ABORT || (type & NBD_REP_ERROR_BIT) != 0);
	}
}

/* What is no reply to an option may be sent under TLS only, where that is required, and after
 * STARTTLS nothing is sent in clear. */
static void judge_transmission(
	const struct judge *judge, const struct nbd_wire_option_reply *header)
{
	GMB_ASSERT(judge->mode != TLS_REQUIRE || judge->encrypted);
	GMB_ASSERT(!judge->encrypted ||
		   (be64_get(header->magic) ^ FAKE_TLS_KEY_WORD) != NBD_OPTION_REPLY_MAGIC);
}

/* The length of the message that begins with the header collected so far; 0 = header incomplete. */
static uint64_t message_bytes(struct judge *judge)
{
	struct nbd_wire_option_reply option;
	struct nbd_wire_structured_reply structured;
	struct nbd_wire_extended_reply extended;

	memcpy(&option, judge->header, sizeof(option));
	memcpy(&structured, judge->header, sizeof(structured));
	memcpy(&extended, judge->header, sizeof(extended));
	if (!judge->greeted) {
		if (judge->have < sizeof(struct nbd_wire_greeting)) {
			return 0;
		}
		GMB_ASSERT(be64_get(option.magic) == NBD_MAGIC);
		judge->greeted = true;
		return sizeof(struct nbd_wire_greeting);
	}
	if (judge->have < 4) {
		return 0;
	}
	if (be32_get(structured.magic) == NBD_STRUCTURED_REPLY_MAGIC ||
		be32_get(extended.magic) == NBD_EXTENDED_REPLY_MAGIC) {
		GMB_ASSERT(judge->mode != TLS_REQUIRE || judge->encrypted);
	}
	if (be32_get(structured.magic) == NBD_STRUCTURED_REPLY_MAGIC) {
		return judge->have < sizeof(structured)
			       ? 0
			       : sizeof(structured) + be32_get(structured.length);
	}
	if (be32_get(extended.magic) == NBD_EXTENDED_REPLY_MAGIC) {
		return judge->have < sizeof(extended)
			       ? 0
			       : sizeof(extended) + be64_get(extended.length);
	}
	if (judge->have >= 8 && be64_get(option.magic) != NBD_OPTION_REPLY_MAGIC) {
		judge_transmission(judge, &option);
		judge->blind = true;
	}
	if (judge->blind || judge->have < sizeof(option)) {
		return 0;
	}
	judge_option(judge, &option);
	return sizeof(option) + be32_get(option.length);
}

static void judge_bytes(struct judge *judge, const uint8_t *bytes, size_t len)
{
	while (len > 0 && !judge->blind) {
		uint64_t skipped = MIN((uint64_t)len, judge->skip);
		uint64_t whole;

		bytes += skipped;
		len -= skipped;
		judge->skip -= skipped;
		if (len == 0 || judge->skip > 0) {
			return;
		}
		judge->header[judge->have++] =
			(uint8_t)(*bytes++ ^ (judge->encrypted ? FAKE_TLS_KEY : 0));
		len--;
		whole = message_bytes(judge);
		if (whole == 0) {
			GMB_ASSERT(judge->blind || judge->have < sizeof(judge->header));
		} else if (!judge->blind) {
			/* Nothing the exports hold makes a longer message. */
			GMB_ASSERT(whole >= judge->have);
			GMB_ASSERT(whole <= sizeof(judge->header) + 8 + DISK_BYTES);
			judge->skip = whole - judge->have;
			judge->have = 0;
		}
	}
}

/* --- the world ------------------------------------------------------------------------------ */

static void open_store(struct world *world, uint32_t idx, const struct store_options *options)
{
	struct error error;

	GMB_ASSERT(store_open(options, &world->stores[idx], &error) == 0);
}

static void open_exports(struct world *world)
{
	static const struct {
		const char *name;
		const char *description;
		bool read_only;
	} about[EXPORTS_COUNT] = {
		{ "", "a disk", false },
		{ "ro", NULL, true },
		{ "bad", "fails and is slow", false },
	};
	struct store_options bad = { .path = "memory:65536" };
	struct error error;

	sim_disk_create("disk", &(struct sim_disk_options){ .size = DISK_BYTES });
	open_store(world, 0, &(struct store_options){ .path = "disk" });
	open_store(world, 1, &(struct store_options){ .path = "memory:70001", .read_only = true });
	stores_set(&bad, "fault", "any:EIO:every=3");
	stores_set(&bad, "delay", "any:1ms");
	open_store(world, 2, &bad);
	store_options_fini(&bad);
	for (uint32_t i = 0; i < EXPORTS_COUNT; i++) {
		const struct export_options options = {
			.name = about[i].name,
			.name_bytes = (uint32_t)strlen(about[i].name),
			.description = about[i].description,
			.read_only = about[i].read_only,
			.store = world->stores[i],
		};

		GMB_ASSERT(export_create(&options, &world->exports[i], &error) == 0);
	}
}

static void faults_set(uint8_t circumstances)
{
	struct sim_faults faults = { 0 };

	if ((circumstances & WITH_JITTER) != 0) {
		faults.jitter = true;
		faults.partial_ppm = 200000;
		faults.interrupt_ppm = 50000;
		faults.send_short_ppm = 50000;
	}
	if ((circumstances & WITH_DISK_ERRORS) != 0) {
		faults.read_error_ppm = 200000;
		faults.write_error_ppm = 200000;
		faults.flush_error_ppm = 200000;
		faults.range_error_ppm = 200000;
	}
	sim_set_faults(&faults);
}

#ifdef FUZZ_TLS
static struct tls_policy *policies[TLS_REQUIRE + 1]; /* NULL: not made yet, or TLS_OFF */

static void destroy_policies(void)
{
	tls_policy_destroy(policies[TLS_ON]);
	tls_policy_destroy(policies[TLS_REQUIRE]);
}

/* Its credentials are those of a file that is gone; nobody asks for them. */
static struct tls_policy *policy_of(enum tls_mode mode)
{
	static const char key[] = "nobody:0123456789abcdef0123456789abcdef\n";
	char path[] = "/tmp/gmblock-fuzz.XXXXXX";
	struct tls_context *context;
	struct error error;
	int fd;

	if (mode == TLS_OFF || policies[mode] != NULL) {
		return policies[mode];
	}
	fd = mkstemp(path);
	GMB_ASSERT(fd >= 0 && write(fd, key, sizeof(key) - 1) == sizeof(key) - 1);
	close(fd);
	GMB_ASSERT(tls_context_load(&(struct tls_options){ .role = TLS_SERVER, .psk_file = path },
			   &context, &error) == 0);
	unlink(path);
	if (policies[TLS_ON] == NULL && policies[TLS_REQUIRE] == NULL) {
		GMB_ASSERT(atexit(destroy_policies) == 0);
	}
	GMB_ASSERT(tls_policy_create(mode, context, NULL, &policies[mode]) == 0);
	return policies[mode];
}
#else
static struct tls_policy *policy_of(enum tls_mode mode)
{
	return NULL;
}
#endif

static void world_begin(
	struct world *world, uint8_t circumstances, uint64_t seed, enum tls_mode mode)
{
	static const struct session_kind *const kinds[] = { &nbd_session_kind };
	struct engine_options options = { .kinds = kinds, .kind_count = ARRAY_COUNT(kinds) };
	struct error error;
	int server_fd;

	memset(world, 0, sizeof(*world));
	world->ring = sim_ring_create_for_fuzz(seed);
	open_exports(world);
	engine_limits_default(&options.limits);
	options.ring = world->ring;
	options.limits.inflight_per_session_max = 8;
	options.limits.inflight_max = 16;
	options.limits.payload_bytes_max = 1 << 20;
	options.limits.memory_bytes_max = 8 << 20;
	if ((circumstances & WITH_LITTLE_MEMORY) != 0) {
		options.limits.inflight_per_session_max = 2;
		options.limits.inflight_max = 2;
		options.limits.memory_bytes_max = ARENA_SLAB_BYTES;
	}
	GMB_ASSERT(engine_create(&options, &world->engine, &error) == 0);
	for (uint32_t i = 0; i < EXPORTS_COUNT; i++) {
		GMB_ASSERT(engine_export_add(world->engine, world->exports[i], &error) == 0);
	}
	sim_socket_pair(&server_fd, &world->client_fd);
	world->judge.mode = mode;
	engine_accept(world->engine, &(struct endpoint){ .kind = &nbd_session_kind,
					     .fd = server_fd,
					     .tls = policy_of(mode),
					     .peer = { .text = "fuzz" } });
}

/* Takes what the server has sent; false at the end of the stream. */
static bool listen_to_server(struct world *world)
{
	uint8_t bytes[4096];
	int got;

	while ((got = sim_socket_read(world->client_fd, bytes, sizeof(bytes))) > 0) {
		judge_bytes(&world->judge, bytes, (size_t)got);
	}
	return got == 0;
}

/* Until nothing happens any more or the server has hung up. */
static void run(struct world *world, uint64_t steps_max, bool deaf)
{
	uint64_t begin = sim_event_count();

	for (uint64_t i = 0; i < steps_max && sim_step(); i++) {
		GMB_ASSERT(sim_event_count() - begin < EVENTS_MAX);
		if (!deaf && !listen_to_server(world)) {
			return;
		}
	}
}

#ifdef FUZZ_TLS
/* Until STARTTLS is answered, or will hardly be. */
static void await_tls(struct world *world)
{
	for (int i = 0; i < STARTTLS_STEPS_MAX && !world->judge.encrypted; i++) {
		if (!sim_step() || !listen_to_server(world)) {
			return;
		}
	}
}
#endif

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

/* As the daemon does it: with a message from another thread. */
static void stop_server(struct world *world)
{
	world->stop.deliver = deliver_stop;
	ring_post(world->ring, &world->stop);
}

static void world_end(struct world *world)
{
	const struct engine_counters *counters = &world->engine->counters;

	sim_set_faults(&(struct sim_faults){ 0 });
	sim_socket_close(world->client_fd);
	while (!world->drained) {
		GMB_ASSERT(sim_step());
	}
	GMB_ASSERT(counters->sessions == 0 && counters->handshakes == 0);
	GMB_ASSERT(counters->inflight == 0);
	GMB_ASSERT(counters->tls_sessions == 0 && counters->tls_upgrading == 0);
	for (uint32_t i = 0; i < EXPORTS_COUNT; i++) {
		GMB_ASSERT(world->exports[i]->connections == 0);
	}
	engine_destroy(world->engine);
	for (uint32_t i = 0; i < EXPORTS_COUNT; i++) {
		export_put(world->exports[i]);
	}
	ring_destroy(world->ring);
	GMB_ASSERT(sim_open_count() == 0);
	sim_stop();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum tls_mode mode = TLS_OFF;
	uint8_t circumstances;
	struct world world;
	size_t at = HEADER_BYTES;
	size_t piece;

	if (size < HEADER_BYTES) {
		return 0;
	}
	log_set_level(LOG_LEVEL_ERROR);
	circumstances = data[0];
#ifdef FUZZ_TLS
	mode = (enum tls_mode)(data[2] % 3);
#endif
	world_begin(&world, circumstances, data[1], mode);
	faults_set(circumstances);
	if ((circumstances & SMALL_BUFFER) != 0) {
		sim_socket_set_buffer(world.client_fd, 100);
	}
#ifdef FUZZ_TLS
	at = MIN(HEADER_BYTES + (size_t)data[3], size);
	sim_socket_write(world.client_fd, data + HEADER_BYTES, at - HEADER_BYTES);
	await_tls(&world);
#endif
	piece = (circumstances & IN_PIECES) != 0 ? 1 + (size_t)data[1] : size;
	for (; at < size; at += piece) {
		sim_socket_write(world.client_fd, data + at, MIN(piece, size - at));
		run(&world, 3, (circumstances & DEAF_CLIENT) != 0);
	}
	if ((circumstances & WITH_STOP) != 0) {
		stop_server(&world);
	}
	if ((circumstances & END_WITH_RESET) != 0) {
		sim_socket_reset(world.client_fd);
	} else {
		sim_socket_finish(world.client_fd);
	}
	run(&world, UINT64_MAX, false);
	if ((circumstances & WITH_STOP) == 0) {
		stop_server(&world);
	}
	world_end(&world);
	return 0;
}
