// SPDX-License-Identifier: Apache-2.0
/*
 * Common code of the session kinds gmb and push, whose sessions use clan connections. An engine has
 * one clan_service for each of the two kinds. A clan_service runs a clan queue on the engine's
 * ring, and admits new connections as sessions. The door is the engine's admission check. A hungry
 * session is one that has not received all available messages.
 *
 *   clan queue ─▶ ring_source ─┬▶ event of a session ────────▶ ops->event()
 *                              ├▶ new connection ─▶ door ─▶ engine ─▶ kind->accept()
 *                              │                                       └▶ clan_service_accept()
 *                              └▶ after the events ──────────▶ ops->take() for each hungry session
 *
 * The queue is created with the first listener or connection, so a session kind has no cost until
 * it is used.
 *
 * Threading: the ring's thread. Ownership: the struct is the first member of the kind's service, so
 * that the functions below can be entries of the kind's table. The struct owns the queue and the
 * listeners.
 * Errors: a negative errno and a message.
 */
#pragma once

#include <gmblock/clan.h>

#include "engine/engine.h"

struct clan_service;

struct clan_service_ops {
	const struct session_kind *kind;
	/* Options of each connection, see struct clan_conn_options. */
	uint32_t cookies;
	uint32_t peer_regions_max;
	uint64_t peer_region_bytes_max;
	/* Allocates the resources that connections need. Called before the first connection; called
	 * again if the queue could not be created. Optional. */
	int (*start)(struct clan_service *service, struct error *error);
	/* Called for each event of a connection whose context is set. */
	void (*event)(void *context, const struct clan_event *event);
	/* Called after the events, once for each session whose node was in service->hungry. The
	 * node has been removed from that list before. Optional if the session kind adds no nodes
	 * to the list. */
	void (*take)(struct list_node *node);
};

struct clan_service {
	const struct clan_service_ops *ops;
	struct engine *engine;
	struct clan_queue *queue; /* NULL before the first listener or connection */
	struct list_node hungry;  /* sessions that have not received all available messages */

	/* Private. */
	/* The engine's check for connections that come to our listeners. NULL: there is no
	 * listener. */
	const struct engine_door *door;
	uint32_t listener_count;   /* listeners with that door */
	struct clan_conn *offered; /* a connection being admitted, until a session takes it */
	struct ring_source source;
	bool is_removed; /* the source has been removed from the ring */
};

void clan_service_init(
	struct clan_service *service, const struct clan_service_ops *ops, struct engine *engine);
/* Destroys the queue. All sessions must have ended. */
void clan_service_fini(struct clan_service *service);

/* session_kind.listen() and .listen_end(). */
int clan_service_listen(void *service, struct export_uri *uri, const struct engine_door *door,
	void **listener_out, struct error *error);
void clan_service_listen_end(void *service, void *listener);

/* Called first by session_kind.accept(). Returns a negative errno if no session can be created. */
GMB_MUST_CHECK int clan_service_start(struct clan_service *service, struct error *error);
/* Returns the endpoint's connection. The caller sets its context. */
GMB_MUST_CHECK int clan_service_accept(struct clan_service *service,
	const struct endpoint *endpoint, struct clan_conn **conn_out, struct clan_error *reason);
/* Answers a hello: with the welcome if rule is NULL, otherwise with a rejection, which closes the
 * connection. Returns false if the session ends. */
GMB_MUST_CHECK bool clan_service_welcome(struct session *session, struct clan_conn *conn,
	const char *rule, const void *welcome, size_t bytes);
