// SPDX-License-Identifier: Apache-2.0
/*
 * What docs/design/0011 promises while many want the same, whatever the others do:
 *
 * - who holds nothing waits for nothing, but for the block that is kept for writes that must not be
 *   cut;
 * - nobody waits for what he could have;
 * - an export has at most three quarters of the places, but for what is reserved for its sessions,
 *   and is given no more memory when it has three times what is free;
 * - the sessions of an export hold no more than it may, and all that they hold is counted;
 * - who waits is passed over by another one on the same export that holds no less at most once, and
 *   once more for each turn that others of his own peer have meanwhile.
 */
#include <inttypes.h>
#include <string.h>

#include "path/admission.h"
#include "scenario.h"

struct session_kind fairness_kind;

static struct session *session_of(struct list_node *node)
{
	return list_entry(node, struct session, node);
}

/* --- turns --------------------------------------------------------------------------------- */

enum resource { PLACES, MEMORY, ATOMIC, RESOURCES };

static const char *const resource_names[RESOURCES] = { "a place", "memory",
	"the block for a write that is not cut" };

/* Its next request waits for memory, and is a write that must not be cut. */
static bool waits_for_atomic(const struct session *session)
{
	struct list_node *first = session->client.stalled.next;

	return session->client.is_short &&
	       list_entry(first, struct path_request, stalled_node)->atomic;
}

static bool waits(const struct session *session, enum resource resource)
{
	if (session->state != SESSION_READY) {
		return false;
	}
	if (resource == PLACES) {
		return turn_is_waiting(&session->blocked_turn);
	}
	return session->client.is_short && waits_for_atomic(session) == (resource == ATOMIC);
}

static uint64_t holds(const struct session *session, enum resource resource)
{
	return resource == PLACES   ? session->inflight_count
	       : resource == MEMORY ? session->client.held_bytes
				    : 0;
}

static struct fairness_turns *turns_of(const struct session *session, enum resource resource)
{
	struct scenario *scenario = session->engine->options.context;

	return resource == PLACES   ? &scenario->fairness.places
	       : resource == MEMORY ? &scenario->fairness.memory
				    : &scenario->fairness.atomic;
}

static void forget(const struct session *session, enum resource resource)
{
	struct fairness_turns *turns = turns_of(session, resource);

	memset(turns->passed[session->peer.id], 0, sizeof(turns->passed[0]));
	turns->peer_turns[session->peer.id] = 0;
}

/* The session has waited, held so much, and gets more. is_small: of what those who wait for more
 * could not have had; a turn of its peer all the same. */
static void take_turn(
	const struct session *taker, enum resource resource, uint64_t held, bool is_small)
{
	struct fairness_turns *turns = turns_of(taker, resource);

	turns->count += !is_small;
	forget(taker, resource);
	list_for_each(node, &taker->engine->sessions)
	{
		const struct session *other = session_of(node);
		uint32_t *passed = &turns->passed[other->peer.id][taker->peer.id];

		if (other == taker || !waits(other, resource)) {
			continue;
		}
		if (!is_small && other->chosen == taker->chosen && holds(other, resource) <= held &&
			++*passed > 1 + turns->peer_turns[other->peer.id]) {
			model_fail("client %" PRIu64 " waits for %s and holds %" PRIu64
				   ": client %" PRIu64 ", which held %" PRIu64
				   ", has passed it %u times",
				other->peer.id, resource_names[resource], holds(other, resource),
				taker->peer.id, held, *passed);
		}
		turns->peer_turns[other->peer.id] += other->of_peer == taker->of_peer;
	}
}

static void resume(struct session *session)
{
	uint32_t held = session->inflight_count;

	forget(session, PLACES); /* it is his turn */
	nbd_session_kind.resume(session);
	if (session->inflight_count > MAX(held, 1U)) { /* more than his own */
		take_turn(session, PLACES, held, false);
	}
}

void __real_admission_serve(struct path_admission *admission,
	void (*again)(struct path_request *request), void (*start)(struct path_request *request));
void __wrap_admission_serve(struct path_admission *admission,
	void (*again)(struct path_request *request), void (*start)(struct path_request *request));

/* The real one; again() of the path is watched. */
static void (*path_again)(struct path_request *request);

static void watch_again(struct path_request *request)
{
	struct path_client *client = request->client; /* it may be done, and the request gone */
	struct session *session = container_of(client, struct session, client);
	const struct scenario *scenario = session->engine->options.context;
	uint64_t held = client->held_bytes;
	uint64_t left = arena_free_bytes(session->engine->arena);
	const struct path_export *export = session->path_export;
	uint64_t export_held = export->held_bytes;
	uint32_t atomic_count = client->atomic_count;

	forget(session, MEMORY);
	forget(session, ATOMIC);
	path_again(request);
	if (scenario->twin_bytes == 0 && export->held_bytes > export_held &&
		export_held >= 3 * left) {
		model_fail("an export had %" PRIu64 " bytes while %" PRIu64
			   " were free, and got more",
			export_held, left);
	}
	/* Less than the smallest piece may fit where that does not; and parts of one request may
	 * be short of another arena than those of the next. */
	if (scenario->twin_bytes == 0 && client->held_bytes > held) {
		take_turn(session, MEMORY, held, client->held_bytes < held + PATH_PART_BYTES_MIN);
		take_turn(session, ATOMIC, 0, true);
	}
	if (client->atomic_count > atomic_count) {
		take_turn(session, MEMORY, held, true);
		take_turn(session, ATOMIC, 0, false);
	}
}

void __wrap_admission_serve(struct path_admission *admission,
	void (*again)(struct path_request *request), void (*start)(struct path_request *request))
{
	path_again = again;
	__real_admission_serve(admission, watch_again, start);
}

void fairness_begin(struct scenario *scenario)
{
	fairness_kind = nbd_session_kind;
	fairness_kind.resume = resume;
	/* The figures go on, the clients do not. */
	scenario->fairness.places = (struct fairness_turns){ scenario->fairness.places.count };
	scenario->fairness.memory = (struct fairness_turns){ scenario->fairness.memory.count };
	scenario->fairness.atomic = (struct fairness_turns){ scenario->fairness.atomic.count };
}

/* --- shares -------------------------------------------------------------------------------- */

static void check_session(const struct session *session)
{
	const struct engine *engine = session->engine;
	const struct path_client *client = &session->client;

	for (enum resource resource = PLACES; resource < RESOURCES; resource++) {
		if (!waits(session, resource)) {
			forget(session, resource);
		}
	}
	if (waits(session, PLACES)) {
		if (session->inflight_count == 0) {
			model_fail("client %" PRIu64 " has no request and waits for a place",
				session->peer.id);
		}
		if (!engine->limits_released && engine_has_place(session)) {
			model_fail("client %" PRIu64 " waits for a place that it could have",
				session->peer.id);
		}
	}
	if (client->is_short && session->state == SESSION_READY &&
		!turn_is_waiting(&client->turn)) {
		model_fail(
			"client %" PRIu64 " waits for memory and gets no turn", session->peer.id);
	}
	if (waits(session, MEMORY) && !path_is_to_serve(engine->path) &&
		client->buffer_count == 0 && client->held_bytes == 0) {
		model_fail("client %" PRIu64 " has no memory and waits for some", session->peer.id);
	}
}

static void check_places(const struct engine_export *entry)
{
	const struct engine_limits *limits = &entry->engine->limits;

	if (entry->inflight_count > limits->inflight_max * 3 / 4 + 1 + entry->session_count) {
		model_fail("an export has %u of %u places, and %u sessions", entry->inflight_count,
			limits->inflight_max, entry->session_count);
	}
}

static void check_quota(const struct engine_export *entry)
{
	uint64_t held = 0;

	list_for_each(node, &entry->engine->sessions)
	{
		const struct session *session = session_of(node);

		held += session->chosen == entry ? session->client.held_bytes : 0;
	}
	if (entry->memory.held_bytes != held || held > entry->memory.max_bytes) {
		model_fail("the sessions of an export hold %" PRIu64 " bytes; %" PRIu64
			   " are counted, and %" PRIu64 " allowed",
			held, entry->memory.held_bytes, entry->memory.max_bytes);
	}
}

void fairness_check(const struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->service_count; i++) {
		const struct engine *engine = scenario->services[i].engine;

		list_for_each(node, &engine->sessions)
		{
			check_session(session_of(node));
		}
		for (uint32_t k = 0; k < engine->export_count; k++) {
			check_places(engine->exports[k]);
			check_quota(engine->exports[k]);
		}
	}
}
