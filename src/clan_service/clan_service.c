// SPDX-License-Identifier: Apache-2.0
#include "clan_service/clan_service.h"

#include <errno.h>
#include <stdlib.h>

enum { EVENTS_MAX = 64, NS_PER_MS = 1000000 };

/* --- the queue on the engine's ring ---------------------------------------------------------- */

/* Admits a connection that came to one of our listeners. The engine's admission check (the door)
 * creates a session, and the session takes the connection from service->offered. If offered is
 * still set afterwards, the connection was not admitted. */
static void clan_service_offer(struct clan_service *service, const struct clan_event *event)
{
	struct clan_peer peer;

	if (event->type != CLAN_EVENT_ARRIVED) {
		return; /* CLAN_EVENT_CLOSED of a rejected connection */
	}
	clan_conn_peer(event->conn, &peer);
	service->offered = event->conn;
	if (service->door == NULL ||
		!service->door->take(service->door->context, service->ops->kind, peer.address) ||
		service->offered != NULL) {
		service->offered = NULL;
		clan_reject(event->conn, "the connection limit of the server is reached, for this "
					 "address or in total "
					 "(--max-connections-per-peer, --max-connections)");
	}
}

static int clan_service_take_events(struct clan_service *service, int timeout_ms)
{
	struct clan_event events[EVENTS_MAX];
	int count = clan_queue_wait(service->queue, events, EVENTS_MAX, timeout_ms);

	GMB_ASSERT(count >= 0);
	for (int i = 0; i < count; i++) {
		if (events[i].context != NULL) {
			service->ops->event(events[i].context, &events[i]);
		} else {
			clan_service_offer(service, &events[i]);
		}
	}
	return count;
}

static int clan_service_source_poll(struct ring_source *source)
{
	struct clan_service *service = container_of(source, struct clan_service, source);
	struct list_node hungry;
	struct list_node *node;
	int count = clan_service_take_events(service, 0);

	list_init(&hungry);
	while ((node = list_pop_front(&service->hungry)) != NULL) {
		/* The sessions move to a local list, because take() can add a session to hungry
		 * again, for the next turn. */
		list_push_back(&hungry, node);
	}
	while ((node = list_pop_front(&hungry)) != NULL) {
		service->ops->take(node);
		count++;
	}
	return count;
}

static bool clan_service_source_arm(struct ring_source *source)
{
	struct clan_service *service = container_of(source, struct clan_service, source);

	return list_is_empty(&service->hungry) && clan_queue_arm(service->queue) == 0;
}

static void clan_service_source_removed(struct ring_source *source)
{
	container_of(source, struct clan_service, source)->is_removed = true;
}

int clan_service_start(struct clan_service *service, struct error *error)
{
	struct clan_error reason;
	int result = 0;

	if (service->queue != NULL) {
		return 0;
	}
	if (service->ops->start != NULL) {
		result = service->ops->start(service, error);
	}
	if (result != 0) {
		return result;
	}
	result = clan_queue_create(NULL, &service->queue, &reason);
	if (result != 0) {
		return error_set(error, result, "%s", reason.text);
	}
	service->source = (struct ring_source){
		.poll = clan_service_source_poll,
		.arm = clan_service_source_arm,
		.fd = clan_queue_fd(service->queue),
	};
	ring_source_add(service->engine->ring, &service->source);
	return 0;
}

void clan_service_init(
	struct clan_service *service, const struct clan_service_ops *ops, struct engine *engine)
{
	*service = (struct clan_service){ .ops = ops, .engine = engine };
	list_init(&service->hungry);
}

/* Waits until all connections have ended, because the queue cannot be destroyed before. */
void clan_service_fini(struct clan_service *service)
{
	int result;

	if (service->queue == NULL) {
		return;
	}
	ring_source_remove(service->engine->ring, &service->source, clan_service_source_removed);
	while (!service->is_removed) {
		ring_turn(service->engine->ring, true);
	}
	service->door = NULL;
	/* The queue has connections until the rejected ones have ended. Connections that came
	 * before the listener was closed can still send HELLO, and are rejected then. */
	while ((result = clan_queue_destroy(service->queue)) == -EBUSY) {
		(void)clan_service_take_events(service, 10);
	}
	GMB_ASSERT(result == 0);
}

/* --- connections ----------------------------------------------------------------------------- */

/* The engine decides which peers can connect, and limits the handshakes. So these options admit
 * every user. */
static struct clan_conn_options clan_service_options(const struct clan_service *service)
{
	uint64_t handshake_ms = service->engine->limits.handshake_timeout_ns / NS_PER_MS;

	return (struct clan_conn_options){
		.size = sizeof(struct clan_conn_options),
		.access = CLAN_ACCESS_WARY,
		.cookies = service->ops->cookies,
		.tripwires = 1,
		.handshake_timeout_ms = (uint32_t)MIN(handshake_ms + 1, (uint64_t)UINT32_MAX),
		.peer_regions_max = service->ops->peer_regions_max,
		.peer_region_bytes_max = service->ops->peer_region_bytes_max,
	};
}

int clan_service_listen(void *context, struct export_uri *uri, const struct engine_door *door,
	void **listener_out, struct error *error)
{
	struct clan_service *service = context;
	struct clan_conn_options options = clan_service_options(service);
	struct clan_listener *listener;
	struct clan_error reason;
	char *address;
	int result = clan_service_start(service, error);

	if (result < 0) {
		return result;
	}
	address = export_uri_clan_address(uri);
	if (address == NULL) {
		return error_oom_for(error, "a listening address");
	}
	options.handshakes_max = CLAN_HANDSHAKES_OWN;
	result = clan_listen(service->queue, address, &options, &listener, &reason);
	free(address);
	if (result < 0) {
		return error_set(error, result, "cannot listen on %s://%s:%u%s%s: %s",
			service->ops->kind->name, uri->host, uri->port,
			uri->provider != NULL ? "?provider=" : "",
			uri->provider != NULL ? uri->provider : "", reason.text);
	}
	uri->port = export_uri_clan_port(clan_listener_address(listener));
	service->door = door;
	service->listener_count++;
	*listener_out = listener;
	return 0;
}

void clan_service_listen_end(void *context, void *listener)
{
	struct clan_service *service = context;

	clan_listener_close(listener);
	if (--service->listener_count == 0) {
		/* The engine may free its admission check (the door) from now on. Connections that
		 * arrive later are rejected. */
		service->door = NULL;
	}
}

int clan_service_accept(struct clan_service *service, const struct endpoint *endpoint,
	struct clan_conn **conn_out, struct clan_error *reason)
{
	struct clan_conn_options options = clan_service_options(service);

	if (endpoint->fd >= 0) {
		return clan_adopt(service->queue, endpoint->fd, &options, conn_out, reason);
	}
	*conn_out = service->offered;
	service->offered = NULL;
	return 0;
}

bool clan_service_welcome(struct session *session, struct clan_conn *conn, const char *rule,
	const void *welcome, size_t bytes)
{
	if (session->state == SESSION_NEGOTIATING) {
		session_has_spoken(session);
	}
	if (rule != NULL) {
		clan_reject(conn, rule);
		session_terminate(session, rule);
		return false;
	}
	if (clan_accept(conn, welcome, bytes) != 0) {
		session_terminate(session, NULL);
		return false;
	}
	return true;
}
