// SPDX-License-Identifier: Apache-2.0
/*
 * What a session kind over clan has once per engine: a clan queue on the engine's ring, and the
 * path of a connection to its session.
 *
 *   clan queue ─▶ ring_source ─┬▶ event of a session ────────▶ ops->event()
 *                              ├▶ new connection ─▶ door ─▶ engine ─▶ kind->accept()
 *                              │                                       └▶ clan_service_accept()
 *                              └▶ end of the turn ───────────▶ ops->take() for each hungry session
 *
 * The queue is created with the first listener or connection: a server that has none needs nothing.
 *
 * Threading: the ring's thread. Ownership: it is the first member of the kind's service, so that
 * the functions below are entries of the kind's table; it owns the queue and the listeners. Errors:
 * a negative errno and why.
 */
#pragma once

#include <gmblock/clan.h>

#include "engine/engine.h"

struct clan_service;

struct clan_service_ops {
	const struct session_kind *kind;
	/* Of each connection, see struct clan_conn_options. */
	uint32_t cookies;
	uint32_t peer_regions_max;
	uint64_t peer_region_bytes_max;
	/* Allocates what connections need, before the first one; again if the queue cannot be
	 * created. Optional. */
	int (*start)(struct clan_service *service, struct error *error);
	/* Of a connection whose context was set. */
	void (*event)(void *context, const struct clan_event *event);
	/* A node of service->hungry, which it is taken from. Optional: nobody puts one there. */
	void (*take)(struct list_node *node);
};

struct clan_service {
	const struct clan_service_ops *ops;
	struct engine *engine;
	struct clan_queue *queue; /* NULL before the first connection */
	struct list_node hungry;  /* sessions that have not taken all that is there */

	/* Private. */
	/* Of connections that we accept by ourselves; NULL: of none, or of none any more. */
	const struct engine_door *door;
	uint32_t listener_count;   /* those with that door */
	struct clan_conn *offered; /* one of them, until a session has it */
	struct ring_source source;
	bool is_removed; /* the source, from the ring */
};

void clan_service_init(
	struct clan_service *service, const struct clan_service_ops *ops, struct engine *engine);
/* No session exists. */
void clan_service_fini(struct clan_service *service);

/* session_kind.listen() and .listen_end(). */
int clan_service_listen(void *service, struct export_uri *uri, const struct engine_door *door,
	void **listener_out, struct error *error);
void clan_service_listen_end(void *service, void *listener);

/* For session_kind.accept(), first: a negative errno, and no session is made. */
GMB_MUST_CHECK int clan_service_start(struct clan_service *service, struct error *error);
/* The endpoint's connection. Its context is the caller's to set. */
GMB_MUST_CHECK int clan_service_accept(struct clan_service *service,
	const struct endpoint *endpoint, struct clan_conn **conn_out, struct clan_error *reason);
/* Answers a hello: with the welcome; or, if the hello broke a rule, by a refusal, which closes the
 * connection. False: the session ends. */
GMB_MUST_CHECK bool clan_service_welcome(struct session *session, struct clan_conn *conn,
	const char *rule, const void *welcome, size_t bytes);
