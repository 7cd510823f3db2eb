// SPDX-License-Identifier: Apache-2.0
#include "engine/fence.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"

/* --- lists of nodes --------------------------------------------------------------------------- */

struct fence_nodes *fence_nodes_create(uint32_t room)
{
	struct fence_nodes *nodes = calloc(1, sizeof(*nodes) + room * sizeof(nodes->nodes[0]));

	if (nodes != NULL) {
		nodes->references = 1;
	}
	return nodes;
}

void fence_nodes_get(struct fence_nodes *nodes)
{
	/* Relaxed order is enough, because the caller's own reference keeps the list alive. */
	atomic_fetch_add_explicit(&nodes->references, 1, memory_order_relaxed);
}

void fence_nodes_put(struct fence_nodes *nodes)
{
	/* Acquire-release order: the thread that drops the last reference, and frees the list, must
	 * see that all other threads have finished. */
	if (nodes == NULL ||
		atomic_fetch_sub_explicit(&nodes->references, 1, memory_order_acq_rel) > 1) {
		return;
	}
	for (uint32_t i = 0; i < nodes->count; i++) {
		access_put(nodes->nodes[i].rules);
	}
	free(nodes);
}

/* --- the fence -------------------------------------------------------------------------------- */

struct fence {
	pthread_mutex_t lock; /* protects the next three members */
	struct fence_nodes *nodes;
	struct fence_nodes *fenced;
	struct access *rights;
	struct fence_desk desk;
};

struct fence *fence_create(void)
{
	struct fence *fence = calloc(1, sizeof(*fence));

	if (fence != NULL) {
		pthread_mutex_init(&fence->lock, NULL);
	}
	return fence;
}

void fence_destroy(struct fence *fence)
{
	if (fence != NULL) {
		fence_nodes_put(fence->nodes);
		fence_nodes_put(fence->fenced);
		access_put(fence->rights);
		pthread_mutex_destroy(&fence->lock);
		free(fence);
	}
}

static void fence_replace(struct fence *fence, struct fence_nodes **list, struct fence_nodes *nodes)
{
	struct fence_nodes *before;

	pthread_mutex_lock(&fence->lock);
	before = *list;
	*list = nodes;
	pthread_mutex_unlock(&fence->lock);
	fence_nodes_put(before);
}

void fence_set_nodes(struct fence *fence, struct fence_nodes *nodes)
{
	fence_replace(fence, &fence->nodes, nodes);
}

void fence_set_fenced(struct fence *fence, struct fence_nodes *nodes)
{
	fence_replace(fence, &fence->fenced, nodes);
}

void fence_set_rights(struct fence *fence, struct access *rules)
{
	struct access *before;

	pthread_mutex_lock(&fence->lock);
	before = fence->rights;
	fence->rights = rules;
	pthread_mutex_unlock(&fence->lock);
	access_put(before);
}

void fence_set_desk(struct fence *fence, const struct fence_desk *desk)
{
	fence->desk = *desk;
}

/* Returns the list with a reference for the caller, or NULL. */
static struct fence_nodes *nodes_take(struct fence *fence, struct fence_nodes *const *list)
{
	struct fence_nodes *nodes;

	pthread_mutex_lock(&fence->lock);
	nodes = *list;
	if (nodes != NULL) {
		fence_nodes_get(nodes);
	}
	pthread_mutex_unlock(&fence->lock);
	return nodes;
}

/* --- the node of a session -------------------------------------------------------------------- */

static bool subject_is_of(const struct fence_node *node, const struct access_subject *subject)
{
	return access_look(node->rules, subject).origin != NULL;
}

/* Returns whether the session's peer belongs to the node, or the one that acts for it. */
static bool session_is_of(const struct session *session, const struct fence_node *node)
{
	struct access_subject subject = session_subject(session);
	struct access_subject carrier = {
		.uid = session->carrier.has_uid ? &session->carrier.uid : NULL,
		.address = session->carrier.has_address ? session->carrier.address : NULL,
	};

	return subject_is_of(node, &subject) ||
	       ((carrier.uid != NULL || carrier.address != NULL) && subject_is_of(node, &carrier));
}

/* Returns the first node of the list to which the session belongs, or NULL. */
static const struct fence_node *first_node(
	const struct fence_nodes *nodes, const struct session *session)
{
	for (uint32_t i = 0; nodes != NULL && i < nodes->count; i++) {
		if (session_is_of(session, &nodes->nodes[i])) {
			return &nodes->nodes[i];
		}
	}
	return NULL;
}

/* Returns whether the session belonged to the node when it selected its export. */
static bool session_was_of(const struct session *session, const char *name)
{
	for (uint32_t i = 0; session->nodes != NULL && i < session->nodes->count; i++) {
		const struct fence_node *node = &session->nodes->nodes[i];

		if (strcmp(node->name, name) == 0) {
			return session_is_of(session, node);
		}
	}
	return false;
}

bool session_is_fenced(struct session *session)
{
	struct fence *fence = session->engine->options.fence;
	struct fence_nodes *fenced = fence != NULL ? nodes_take(fence, &fence->fenced) : NULL;
	const struct fence_node *node = first_node(fenced, session);

	if (node != NULL) {
		log_limited(session_log_limit(session), ring_batch_ns(session->engine->ring),
			LOG_LEVEL_WARNING, "client %s: refused, because node '%s' is fenced",
			session->peer.text, node->name);
	}
	fence_nodes_put(fenced);
	return node != NULL;
}

void session_node_name(struct session *session, char out[FENCE_NAME_BYTES])
{
	struct fence *fence = session->engine->options.fence;
	struct fence_nodes *nodes = fence != NULL ? nodes_take(fence, &fence->nodes) : NULL;
	const struct fence_node *node = first_node(nodes, session);

	snprintf(out, FENCE_NAME_BYTES, "%s", node != NULL ? node->name : "");
	fence_nodes_put(nodes);
}

bool session_is_of_node(struct session *session, const char *name)
{
	struct fence *fence = session->engine->options.fence;
	struct fence_nodes *nodes = fence != NULL ? nodes_take(fence, &fence->nodes) : NULL;
	bool is_of = false;

	for (uint32_t i = 0; nodes != NULL && i < nodes->count; i++) {
		is_of |= strcmp(nodes->nodes[i].name, name) == 0 &&
			 session_is_of(session, &nodes->nodes[i]);
	}
	fence_nodes_put(nodes);
	return is_of;
}

void session_act_for(struct session *session, const struct peer *peer)
{
	struct peer *own = &session->peer;

	session->carrier = (struct session_carrier){
		.has_uid = own->has_credentials,
		.uid = own->credentials.uid,
		.has_address = own->has_address,
	};
	memcpy(session->carrier.address, own->address, sizeof(own->address));
	own->family = peer->family;
	own->has_address = peer->has_address;
	memcpy(own->address, peer->address, sizeof(own->address));
	own->has_credentials = peer->has_credentials;
	own->credentials = peer->credentials;
}

/* --- requests to fence ------------------------------------------------------------------------ */

static bool is_loopback(const struct peer *peer)
{
	static const uint8_t ipv6[ACCESS_ADDRESS_BYTES] = { [15] = 1 };
	static const uint8_t ipv4[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127 };

	return peer->has_address && (memcmp(peer->address, ipv6, sizeof(ipv6)) == 0 ||
					    memcmp(peer->address, ipv4, sizeof(ipv4)) == 0);
}

static bool may_fence(const struct session *session, struct fence *fence)
{
	struct access_subject subject = session_subject(session);
	const struct peer *peer = &session->peer;
	struct access *rules;
	bool may;

	if (peer->proved == NULL && peer->family != AF_UNIX && !is_loopback(peer)) {
		return false;
	}
	pthread_mutex_lock(&fence->lock);
	rules = fence->rights;
	if (rules != NULL) {
		access_get(rules);
	}
	pthread_mutex_unlock(&fence->lock);
	may = rules != NULL && (access_look(rules, &subject).rights & ENGINE_RIGHT_FENCE) != 0;
	access_put(rules);
	return may;
}

int session_fence(struct session *session, enum fence_action action, const char *node,
	char text[FENCE_TEXT_BYTES])
{
	struct fence *fence = session->engine->options.fence;

	if (fence == NULL || fence->desk.ask == NULL || !may_fence(session, fence)) {
		log_limited(session_log_limit(session), ring_batch_ns(session->engine->ring),
			LOG_LEVEL_WARNING, "client %s: may not fence nodes", session->peer.text);
		snprintf(text, FENCE_TEXT_BYTES,
			"you may not fence nodes; the server needs an access rule with fence: yes "
			"that applies to you, and TLS unless you are on its machine");
		return -EACCES;
	}
	return fence->desk.ask(fence->desk.context, session, action, node, text);
}

/* --- an engine's sessions --------------------------------------------------------------------- */

static void escape_name(const struct export *export, char out[FENCE_NAME_BYTES])
{
	log_escape(out, FENCE_NAME_BYTES, export->name, export->name_bytes);
}

/* Ends a session of a fenced node. Only the first one of a node is logged, because a client can
 * have many. */
static void end_fenced(struct session *session, const struct fence_node *node, bool is_first)
{
	char reason[FENCE_NAME_BYTES + 64];

	if (session->state == SESSION_TERMINATING) {
		return;
	}
	if (is_first) {
		snprintf(reason, sizeof(reason),
			"node '%s' is fenced; its other connections end as well", node->name);
		session_terminate(session, reason);
	} else {
		session->engine->counters.sessions_failed++;
		session_terminate(session, NULL);
	}
}

void engine_fence_look(
	struct engine *engine, const struct fence_nodes *nodes, struct fence_sight *sights)
{
	list_for_each(entry, &engine->sessions)
	{
		struct session *session = list_entry(entry, struct session, node);

		/* Sessions without an export have no operations, and can no longer select one. */
		for (uint32_t i = 0; session->chosen != NULL && i < nodes->count; i++) {
			const struct fence_node *node = &nodes->nodes[i];

			if (!session_is_of(session, node) && !session_was_of(session, node->name)) {
				continue;
			}
			session->fenced = true;
			end_fenced(session, node, sights[i].sessions == 0);
			sights[i].sessions++;
			sights[i].requests += session->inflight_count;
			memcpy(sights[i].peer, session->peer.text, sizeof(sights[i].peer));
			escape_name(session->export, sights[i].export);
		}
	}
}

uint32_t engine_fence_barriers(struct engine *engine, char export[FENCE_NAME_BYTES])
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < engine->export_count; i++) {
		if (engine_export_watch_barrier(engine->exports[i])) {
			escape_name(engine->exports[i]->export, export);
			count++;
		}
	}
	return count;
}

/* --- statistics ------------------------------------------------------------------------------- */

static struct engine_node *node_entry(struct engine *engine, const char *name)
{
	struct engine_node *node;

	list_for_each(entry, &engine->nodes)
	{
		node = list_entry(entry, struct engine_node, node);
		if (strcmp(node->name, name) == 0) {
			return node;
		}
	}
	node = calloc(1, sizeof(*node));
	if (node != NULL) {
		snprintf(node->name, sizeof(node->name), "%s", name);
		list_push_back(&engine->nodes, &node->node);
	}
	return node;
}

void engine_node_join(struct session *session)
{
	struct engine *engine = session->engine;
	struct fence *fence = engine->options.fence;
	struct fence_nodes *nodes = fence != NULL ? nodes_take(fence, &fence->nodes) : NULL;
	const struct fence_node *of = first_node(nodes, session);
	struct engine_node *node = of != NULL ? node_entry(engine, of->name) : NULL;

	if (node != NULL) {
		session->client.operations = &node->operations;
	}
	session->nodes = nodes;
}

void engine_node_leave(struct session *session)
{
	fence_nodes_put(session->nodes);
	session->nodes = NULL;
}

void engine_nodes_fini(struct engine *engine)
{
	struct list_node *entry;

	while ((entry = list_pop_front(&engine->nodes)) != NULL) {
		free(list_entry(entry, struct engine_node, node));
	}
}
