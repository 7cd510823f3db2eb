// SPDX-License-Identifier: Apache-2.0
/*
 * One seed of a server with several reactors: connections arrive on several sockets faster than the
 * limit allows, are handed over to reactors, talk, stay silent or vanish, while an export comes and
 * goes and threads stand still. Then everybody leaves, as many as the limit allows must find a
 * place again, and the server drains while more arrive.
 *
 * The rules: every connection is answered by exactly one reactor, or refused because a limit was
 * reached while it waited; the counts of the reactors add up to the server's, which stays within
 * the limit, and so does what each peer has; places are given to the reactor with the fewest; none
 * is lost; after the drain nothing is open, referenced or counted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/stores.h"
#include "base/log.h"
#include "nbd/server/server.h"
#include "nbd/wire.h"
#include "runner.h"
#include "server/listen/accept.h"
#include "sim/sim.h"

enum {
	REACTORS_MAX = 4,
	LISTENERS_MAX = 3,
	CLIENTS_MAX = 400,
	ALIVE_MAX = 30, /* at once */
	LIMIT_MAX = 12,
	PEERS = 3,
	REMOVED_MAX = 32,
	READ_BYTES = 512,
	SILENT_READS = 5, /* of those who will never choose an export */
	STEPS_MAX = 2000000,
};

#define SECOND_NS     UINT64_C(1000000000)
#define SLACK_NS      (4 * SECOND_NS)  /* behind a deadline: freezes, slow operations */
#define SILENCE_NS    (30 * SECOND_NS) /* what a client waits for comes by then */
#define HANDSHAKE_NS  (5 * SECOND_NS)
#define DRAIN_NS      (10 * SECOND_NS)
#define FREEZE_MAX_NS UINT64_C(900000000) /* less than ring_thread_call() waits */

enum phase {
	PHASE_GREETING, /* waits for it */
	PHASE_CHOSEN,	/* waits for the export's size */
	PHASE_READING,	/* waits for a reply */
	PHASE_STAYING,	/* wants nothing, and stays */
	PHASE_SILENT,	/* will never say a word */
	PHASE_CLOSED	/* by either side */
};

struct client {
	int fd;
	enum phase phase;
	uint32_t peer; /* less than PEERS */
	bool greeted;
	bool may_be_ended; /* the server has a reason */
	bool on_comes;	   /* it was served that export */
	uint32_t got;	   /* bytes of what it waits for */
	uint32_t reads_left;
	uint64_t cookie;
	uint64_t since_ns; /* it waits */
	uint64_t connected_ns;
	uint64_t ends_ns; /* its export was removed: it is closed by then; 0 = it was not */
	uint8_t data[sizeof(struct nbd_wire_simple_reply) + READ_BYTES];
};

struct scenario {
	struct reactor *reactors[REACTORS_MAX];
	uint32_t reactor_count;
	struct listener listeners[LISTENERS_MAX];
	uint32_t listener_count;
	struct acceptor *acceptor;
	struct export *steady; /* "" */
	struct export *comes;  /* or NULL */
	struct export *removed[REMOVED_MAX];
	uint32_t removed_count;
	uint32_t limit;
	uint32_t peer_limit;
	_Atomic uint32_t connection_total;
	uint64_t full_ns;	      /* when the limit was last reached */
	uint64_t peer_full_ns[PEERS]; /* when a peer may have reached its own */
	struct engine *engines[REACTORS_MAX];
	uint32_t engine_count;
	bool acceptor_stopped;
	bool stopping;
	uint32_t drained_count;
	uint32_t frozen; /* reactor, or reactor_count */
	struct client clients[CLIENTS_MAX];
	uint32_t client_count;
	uint32_t greeted_count;
	uint32_t refused_count;
	uint32_t failure_count; /* connections that a reactor could not take, less those heard of */
	uint64_t requests;
	uint64_t sessions; /* of all engines */
};

/* --- a reactor that is sometimes short of memory -------------------------------------------- */

static struct session_kind kind; /* NBD's, but for accept() */
static struct scenario *kind_scenario;
static uint32_t failure_chance; /* percent */

static int accept_or_fail(void *service, const struct endpoint *endpoint)
{
	if (percent(failure_chance)) {
		kind_scenario->failure_count++;
		return -ENOMEM;
	}
	return nbd_session_kind.accept(service, endpoint);
}

/* --- who is who ----------------------------------------------------------------------------- */

void __wrap_listener_peer(int fd, struct peer *peer);
void __wrap_listener_peer(int fd, struct peer *peer)
{
	int client_fd = sim_socket_peer(fd);

	*peer = (struct peer){ .text = "simulated" };
	for (uint32_t i = 0; i < kind_scenario->client_count; i++) {
		const struct client *client = &kind_scenario->clients[i];

		if (client->fd == client_fd) {
			/* Descriptors are used again: the last one is it. */
			peer->identity.bytes[0] = (uint8_t)(1 + client->peer);
		}
	}
}

/* --- the server ----------------------------------------------------------------------------- */

static struct export *create_export(const char *name)
{
	struct export_options about = { .name = name, .name_bytes = (uint32_t)strlen(name) };
	struct export *export;
	struct error error;

	if (store_open(&(struct store_options){ .path = "memory:64K" }, &about.store, &error) < 0 ||
		export_create(&about, &export, &error) < 0) {
		model_fail("no export: %s", error.text);
	}
	return export;
}

static void acceptor_has_stopped(void *context)
{
	struct scenario *scenario = context;

	if (scenario->acceptor_stopped) {
		model_fail("the acceptor has stopped twice");
	}
	scenario->acceptor_stopped = true;
}

static void reactor_has_drained(void *context)
{
	struct scenario *scenario = context;

	scenario->drained_count++;
}

static void note_engine(struct engine *engine, void *context)
{
	struct scenario *scenario = context;

	scenario->engines[scenario->engine_count++] = engine;
}

static void call_all(
	struct scenario *scenario, void (*call)(struct engine *, void *), void *context)
{
	for (uint32_t i = 0; i < scenario->reactor_count; i++) {
		if (reactor_call(scenario->reactors[i], call, context) != 0) {
			model_fail("reactor %u does not answer", i);
		}
	}
}

static void server_begin(struct scenario *scenario)
{
	static const struct session_kind *const kinds[] = { &kind };
	struct reactor_options options = {
		.exports = &scenario->steady,
		.export_count = 1,
		.kinds = kinds,
		.kind_count = ARRAY_COUNT(kinds),
		.connection_total = &scenario->connection_total,
		.drained = reactor_has_drained,
		.context = scenario,
	};
	struct acceptor_options acceptor = {
		.listeners = scenario->listeners,
		.reactors = scenario->reactors,
		.connections_max = scenario->limit,
		.connections_per_peer_max = scenario->peer_limit,
		.connection_total = &scenario->connection_total,
		.stopped = acceptor_has_stopped,
		.context = scenario,
	};
	struct error error;

	kind = nbd_session_kind;
	kind.accept = accept_or_fail;
	kind_scenario = scenario;
	failure_chance = percent(30) ? 10 : 0;
	scenario->steady = create_export("");
	engine_limits_default(&options.limits);
	options.limits.sessions_max = scenario->limit;
	options.limits.handshake_timeout_ns = HANDSHAKE_NS;
	options.limits.memory_bytes_max = ARENA_SLAB_BYTES;
	for (uint32_t i = 0; i < scenario->listener_count; i++) {
		scenario->listeners[i].kind = kinds[0];
		scenario->listeners[i].fds[0] = sim_listener_create();
		scenario->listeners[i].fd_count = 1;
	}
	for (uint32_t i = 0; i < scenario->reactor_count; i++) {
		options.index = i;
		if (reactor_create(&options, &scenario->reactors[i], &error) < 0) {
			model_fail("no reactor: %s", error.text);
		}
	}
	acceptor.listener_count = scenario->listener_count;
	acceptor.reactor_count = scenario->reactor_count;
	if (acceptor_create(&acceptor, &scenario->acceptor, &error) < 0) {
		model_fail("no acceptor: %s", error.text);
	}
	acceptor_start(scenario->acceptor);
	call_all(scenario, note_engine, scenario);
}

static void add_export(struct engine *engine, void *context)
{
	struct error error;

	if (engine_export_add(engine, context, &error) < 0) {
		model_fail("cannot add an export: %s", error.text);
	}
}

static void remove_export(struct engine *engine, void *context)
{
	engine_export_remove(engine, context, DRAIN_NS);
}

static void count_sessions(struct engine *engine, void *context)
{
	struct scenario *scenario = context;

	scenario->sessions += engine->counters.sessions_accepted;
}

static void export_comes_or_goes(struct scenario *scenario)
{
	uint64_t ends_ns;

	if (scenario->comes == NULL) {
		scenario->comes = create_export("comes");
		call_all(scenario, add_export, scenario->comes);
		return;
	}
	if (scenario->removed_count == REMOVED_MAX) {
		return;
	}
	call_all(scenario, remove_export, scenario->comes);
	scenario->removed[scenario->removed_count++] = scenario->comes;
	scenario->comes = NULL;
	ends_ns = sim_now_ns() + DRAIN_NS + SLACK_NS;
	for (uint32_t i = 0; i < scenario->client_count; i++) {
		struct client *client = &scenario->clients[i];

		if (client->on_comes && client->ends_ns == 0) {
			client->ends_ns = ends_ns;
		}
	}
}

/* --- clients -------------------------------------------------------------------------------- */

static void client_close(struct client *client)
{
	if (client->phase != PHASE_CLOSED) {
		client->phase = PHASE_CLOSED;
		if (percent(30)) {
			sim_socket_reset(client->fd);
		}
		sim_socket_close(client->fd);
	}
}

static void client_wait(struct client *client, enum phase phase)
{
	client->phase = phase;
	client->got = 0;
	client->since_ns = sim_now_ns();
}

static struct client *client_connect(struct scenario *scenario)
{
	struct client *client = &scenario->clients[scenario->client_count++];
	uint32_t listener = (uint32_t)below(scenario->listener_count);

	*client = (struct client){
		.fd = sim_connect(scenario->listeners[listener].fds[0]),
		.reads_left = (uint32_t)below(SILENT_READS + 1),
		.cookie = (uint64_t)scenario->client_count << 32,
		.connected_ns = sim_now_ns(),
		.peer = scenario->client_count % PEERS,
	};
	client_wait(client, PHASE_GREETING);
	return client;
}

static void client_choose(struct client *client)
{
	struct {
		struct be32 flags;
		struct nbd_wire_option option;
	} __attribute__((packed)) hello = {
		.flags = be32_make(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES),
		.option = { .magic = be64_make(NBD_OPTION_MAGIC),
			.option = be32_make(NBD_OPT_EXPORT_NAME) },
	};
	const char *name = client->may_be_ended ? "comes" : "";

	hello.option.length = be32_make((uint32_t)strlen(name));
	sim_socket_write(client->fd, &hello, sizeof(hello));
	sim_socket_write(client->fd, name, strlen(name));
	client_wait(client, PHASE_CHOSEN);
}

static void client_read(struct client *client)
{
	const struct nbd_wire_request request = {
		.magic = be32_make(NBD_REQUEST_MAGIC),
		.type = be16_make(NBD_CMD_READ),
		.cookie = ++client->cookie,
		.offset = be64_make(0),
		.length = be32_make(READ_BYTES),
	};

	client->reads_left--;
	sim_socket_write(client->fd, &request, sizeof(request));
	client_wait(client, PHASE_READING);
}

static uint32_t client_wants(const struct client *client)
{
	switch (client->phase) {
	case PHASE_GREETING:
		return sizeof(struct nbd_wire_greeting);
	case PHASE_CHOSEN:
		return sizeof(struct nbd_wire_old_reply);
	case PHASE_READING:
		return sizeof(client->data);
	case PHASE_STAYING:
	case PHASE_SILENT:
	case PHASE_CLOSED:
	default:
		return 0;
	}
}

static void check_reply(const struct client *client)
{
	struct nbd_wire_simple_reply reply;

	memcpy(&reply, client->data, sizeof(reply));
	if (be32_get(reply.magic) != NBD_SIMPLE_REPLY_MAGIC || reply.cookie != client->cookie) {
		model_fail("a client got a reply that is not its own");
	}
}

/* What it waited for has come. */
static void client_next(struct scenario *scenario, struct client *client)
{
	if (client->phase == PHASE_GREETING) {
		client->greeted = true;
		scenario->greeted_count++;
		if (client->reads_left == SILENT_READS) {
			client->may_be_ended = true; /* by the handshake timeout */
			client_wait(client, PHASE_SILENT);
		} else {
			client_choose(client);
		}
		return;
	}
	client->on_comes |= client->phase == PHASE_CHOSEN && client->may_be_ended;
	if (client->phase == PHASE_READING) {
		check_reply(client);
		scenario->requests++;
	}
	if (client->reads_left > 0) {
		client_read(client);
	} else {
		client_wait(client, PHASE_STAYING);
	}
}

static void client_ended(struct scenario *scenario, struct client *client)
{
	if (!client->greeted && client->got == 0) {
		scenario->refused_count++;
		if (!scenario->stopping && scenario->full_ns < client->connected_ns &&
			scenario->peer_full_ns[client->peer] < client->connected_ns &&
			scenario->failure_count-- == 0) {
			model_fail("a connection was refused below the limits of %u and %u",
				scenario->limit, scenario->peer_limit);
		}
	} else if (!client->may_be_ended && !scenario->stopping) {
		model_fail(
			"a connection was closed that was being served (phase %d)", client->phase);
	}
	client->phase = PHASE_CLOSED;
	sim_socket_close(client->fd);
}

static void client_look(struct scenario *scenario, struct client *client)
{
	uint8_t more;

	while (client->phase != PHASE_CLOSED) {
		uint32_t wants = client_wants(client);
		int got;

		if (wants == 0) {
			got = sim_socket_read(client->fd, &more, 1);
			if (got > 0) {
				model_fail("a client got bytes that nobody owes it");
			}
		} else {
			got = sim_socket_read(
				client->fd, client->data + client->got, wants - client->got);
		}
		if (got == 0) {
			break;
		}
		if (got < 0) {
			client_ended(scenario, client);
			break;
		}
		client->got += (uint32_t)got;
		client->since_ns = sim_now_ns();
		if (client->got == wants) {
			client_next(scenario, client);
		}
	}
	if (client_wants(client) > 0 && sim_now_ns() - client->since_ns > SILENCE_NS) {
		model_fail("a connection is served by nobody");
	}
	if (client->phase == PHASE_SILENT &&
		sim_now_ns() - client->connected_ns > HANDSHAKE_NS + SLACK_NS) {
		model_fail("a connection may stay without choosing an export");
	}
	if (client->phase != PHASE_CLOSED && client->ends_ns != 0 &&
		sim_now_ns() > client->ends_ns) {
		model_fail("a connection outlives its export");
	}
}

static uint32_t alive_count(const struct scenario *scenario)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < scenario->client_count; i++) {
		count += scenario->clients[i].phase != PHASE_CLOSED;
	}
	return count;
}

/* --- time passes ---------------------------------------------------------------------------- */

static void check_counts(struct scenario *scenario)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < scenario->reactor_count; i++) {
		sum += reactor_session_count(scenario->reactors[i]);
	}
	if (sum != scenario->connection_total) {
		model_fail("the reactors have %u connections, the server %u", sum,
			scenario->connection_total);
	}
	if (sum > scenario->limit) {
		model_fail("%u connections, more than the limit of %u", sum, scenario->limit);
	}
	if (sum == scenario->limit) {
		scenario->full_ns = sim_now_ns();
	}
}

/* How many connections each peer has in the engines. */
static void count_peers(const struct scenario *scenario, uint32_t counts[PEERS])
{
	memset(counts, 0, PEERS * sizeof(counts[0]));
	for (uint32_t i = 0; i < scenario->engine_count; i++) {
		list_for_each(node, &scenario->engines[i]->peers)
		{
			const struct engine_peer *peer = list_entry(node, struct engine_peer, node);

			counts[peer->identity.bytes[0] - 1] += peer->session_count;
		}
	}
}

/* most: connections, with those that no engine has yet. */
static void check_peers(struct scenario *scenario, uint32_t most)
{
	uint32_t counts[PEERS];

	count_peers(scenario, counts);
	for (uint32_t i = 0; i < PEERS; i++) {
		most -= counts[i];
	}
	for (uint32_t i = 0; i < PEERS; i++) {
		if (counts[i] > scenario->peer_limit) {
			model_fail("a peer has %u connections, its limit is %u", counts[i],
				scenario->peer_limit);
		}
		if (counts[i] + most >= scenario->peer_limit) {
			scenario->peer_full_ns[i] = sim_now_ns();
		}
	}
}

/* False: nothing is left to happen. */
static bool step(struct scenario *scenario)
{
	/* At most: what is queued, and what each listener is just handing out. */
	uint32_t most = scenario->connection_total + scenario->listener_count;
	bool happens;

	for (uint32_t i = 0; i < scenario->listener_count; i++) {
		most += sim_listener_queue(scenario->listeners[i].fds[0]);
	}
	check_peers(scenario, most);
	happens = sim_step();
	/* The limit may be reached and left again within the step. */
	if (most >= scenario->limit) {
		scenario->full_ns = sim_now_ns();
	}
	check_counts(scenario);
	for (uint32_t i = 0; i < scenario->client_count; i++) {
		client_look(scenario, &scenario->clients[i]);
	}
	return happens;
}

static void nap(void *arg)
{
	*(bool *)arg = true;
}

static void pass(struct scenario *scenario, uint64_t ns)
{
	bool over = false;

	sim_after(ns, nap, &over);
	while (!over) {
		(void)step(scenario);
	}
}

static void thaw(void *arg)
{
	struct scenario *scenario = arg;

	sim_freeze(reactor_ring(scenario->reactors[scenario->frozen]), false);
	scenario->frozen = scenario->reactor_count;
}

static void freeze(struct scenario *scenario)
{
	if (scenario->frozen == scenario->reactor_count) {
		scenario->frozen = (uint32_t)below(scenario->reactor_count);
		sim_freeze(reactor_ring(scenario->reactors[scenario->frozen]), true);
		sim_after(below(FREEZE_MAX_NS), thaw, scenario);
	}
}

static bool has_room(const struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->listener_count; i++) {
		if (sim_listener_queue(scenario->listeners[i].fds[0]) == SIM_LISTENER_QUEUE_MAX) {
			return false;
		}
	}
	/* Some are kept for the end. */
	return alive_count(scenario) < ALIVE_MAX &&
	       scenario->client_count < CLIENTS_MAX - 3 * LIMIT_MAX;
}

static void traffic(struct scenario *scenario)
{
	uint32_t rounds = (uint32_t)sim_between(20, 120);

	for (uint32_t i = 0; i < rounds; i++) {
		while (percent(70) && has_room(scenario)) {
			client_connect(scenario)->may_be_ended = percent(25);
		}
		pass(scenario, below(percent(5) ? 10 * SECOND_NS : 3000000));
		for (uint32_t k = 0; k < scenario->client_count; k++) {
			if (percent(8)) {
				client_close(&scenario->clients[k]);
			}
		}
		if (percent(5)) {
			freeze(scenario);
		}
		if (percent(10)) {
			export_comes_or_goes(scenario);
		}
	}
}

/* --- the end -------------------------------------------------------------------------------- */

static void everybody_leaves(struct scenario *scenario)
{
	uint64_t begin_ns = sim_now_ns();

	failure_chance = 0;
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	for (uint32_t i = 0; i < scenario->client_count; i++) {
		client_close(&scenario->clients[i]);
	}
	pass(scenario,
		SECOND_NS); /* what waits in the sockets' queues is accepted, and found closed */
	while (scenario->connection_total > 0) {
		if (!step(scenario) || sim_now_ns() - begin_ns > SILENCE_NS) {
			model_fail("%u places are lost", scenario->connection_total);
		}
	}
}

/* As many as the limit allows are served, on all reactors alike, and not one more. */
static void all_places_are_there(struct scenario *scenario)
{
	uint32_t served = scenario->greeted_count;
	uint32_t refused = scenario->refused_count;
	uint32_t most = 0;
	uint32_t least = UINT32_MAX;

	for (uint32_t i = 0; i <= scenario->limit; i++) {
		struct client *client = client_connect(scenario);

		client->reads_left = (uint32_t)below(3);
		while (!client->greeted && client->phase != PHASE_CLOSED) {
			if (!step(scenario)) {
				model_fail("a connection is forgotten");
			}
		}
	}
	if (scenario->greeted_count - served != scenario->limit ||
		scenario->refused_count - refused != 1) {
		model_fail("of %u connections %u were served, %u refused", scenario->limit + 1,
			scenario->greeted_count - served, scenario->refused_count - refused);
	}
	for (uint32_t i = 0; i < scenario->reactor_count; i++) {
		most = MAX(most, reactor_session_count(scenario->reactors[i]));
		least = MIN(least, reactor_session_count(scenario->reactors[i]));
	}
	if (most - least > 1) {
		model_fail("one reactor has %u connections, another %u", most, least);
	}
}

/* One peer alone gets its share, and not one more. */
static void all_places_of_a_peer_are_there(struct scenario *scenario)
{
	uint32_t served = scenario->greeted_count;
	uint32_t refused = scenario->refused_count;

	for (uint32_t i = 0; i <= scenario->peer_limit; i++) {
		struct client *client = client_connect(scenario);

		client->peer = 0;
		client->reads_left = (uint32_t)below(3);
		while (!client->greeted && client->phase != PHASE_CLOSED) {
			if (!step(scenario)) {
				model_fail("a connection is forgotten");
			}
		}
	}
	if (scenario->greeted_count - served != scenario->peer_limit ||
		scenario->refused_count - refused != 1) {
		model_fail("of %u connections of a peer %u were served, %u refused",
			scenario->peer_limit + 1, scenario->greeted_count - served,
			scenario->refused_count - refused);
	}
}

static void late_connections(struct scenario *scenario)
{
	for (uint32_t i = (uint32_t)below(4); i > 0 && scenario->client_count < CLIENTS_MAX; i--) {
		(void)client_connect(scenario);
	}
}

static void server_end(struct scenario *scenario)
{
	uint64_t begin_ns = sim_now_ns();

	call_all(scenario, count_sessions, scenario);
	if (scenario->sessions < scenario->greeted_count ||
		scenario->sessions > scenario->client_count - scenario->refused_count) {
		model_fail("%llu sessions for %u connections, %u of them greeted, %u refused",
			(unsigned long long)scenario->sessions, scenario->client_count,
			scenario->greeted_count, scenario->refused_count);
	}
	late_connections(scenario);
	scenario->stopping = true;
	acceptor_stop(scenario->acceptor);
	while (!scenario->acceptor_stopped) {
		if (!step(scenario)) {
			model_fail("the acceptor does not stop");
		}
	}
	late_connections(scenario); /* nobody accepts them */
	for (uint32_t i = 0; i < scenario->reactor_count; i++) {
		reactor_drain(scenario->reactors[i], DRAIN_NS);
	}
	while (scenario->drained_count < scenario->reactor_count) {
		if (!step(scenario) || sim_now_ns() - begin_ns > DRAIN_NS + SILENCE_NS) {
			model_fail("%u of %u reactors have drained", scenario->drained_count,
				scenario->reactor_count);
		}
	}
	if (scenario->connection_total != 0) {
		model_fail("%u connections are left after the drain", scenario->connection_total);
	}
	for (uint32_t i = 0; i < scenario->reactor_count; i++) {
		reactor_destroy(scenario->reactors[i]);
	}
	acceptor_destroy(scenario->acceptor);
	for (uint32_t i = 0; i < scenario->listener_count; i++) {
		sim_listener_close(scenario->listeners[i].fds[0]);
	}
}

static void nothing_is_left(struct scenario *scenario)
{
	if (scenario->steady->references != 1 ||
		(scenario->comes != NULL && scenario->comes->references != 1)) {
		model_fail("somebody still refers to an export");
	}
	for (uint32_t i = 0; i < scenario->removed_count; i++) {
		if (scenario->removed[i]->references != 1) {
			model_fail("somebody still refers to a removed export");
		}
		export_put(scenario->removed[i]);
	}
	export_put(scenario->steady);
	export_put(scenario->comes);
	if (!sim_run_until_idle(STEPS_MAX) || sim_open_count() != 0) {
		model_fail("%u descriptors are left open", sim_open_count());
	}
	for (uint32_t i = 0; i < scenario->client_count; i++) {
		struct client *client = &scenario->clients[i];

		client_look(scenario, client);
		if (client->phase != PHASE_CLOSED) {
			model_fail("the server has gone, and connection %u is open", i);
		}
	}
}

struct scenario_result scenario_run(uint64_t seed, bool verbose)
{
	struct scenario *scenario = calloc(1, sizeof(*scenario));
	struct scenario_result result;

	GMB_ASSERT(scenario != NULL);
	sim_start(&(struct sim_options){ .seed = seed, .verbose = verbose });
	scenario->reactor_count = (uint32_t)sim_between(1, REACTORS_MAX);
	scenario->listener_count = (uint32_t)sim_between(1, LISTENERS_MAX);
	scenario->limit = (uint32_t)sim_between(1, LIMIT_MAX);
	scenario->peer_limit =
		(uint32_t)sim_between((scenario->limit + PEERS - 1) / PEERS, scenario->limit);
	scenario->frozen = scenario->reactor_count;
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	server_begin(scenario);
	sim_set_faults(&(struct sim_faults){
		.jitter = true,
		.partial_ppm = percent(50) ? 100000 : 0,
		.interrupt_ppm = percent(50) ? 20000 : 0,
		.accept_error_ppm = percent(20) ? 100000 : 0,
		.file_table_ppm = percent(30) ? 200000 : 0,
		.slow_ppm = percent(30) ? 2000 : 0,
	});
	traffic(scenario);
	if (percent(70)) {
		pass(scenario, SECOND_NS); /* nobody is frozen */
		everybody_leaves(scenario);
		all_places_are_there(scenario);
		everybody_leaves(scenario);
		all_places_of_a_peer_are_there(scenario);
	}
	pass(scenario, SECOND_NS);
	server_end(scenario);
	nothing_is_left(scenario);
	result = (struct scenario_result){
		.trace = sim_trace_hash(),
		.events = sim_event_count(),
		.requests = scenario->requests,
	};
	sim_stop();
	free(scenario);
	return result;
}
