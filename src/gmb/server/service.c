// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gmb/server/session.h"

_Static_assert((int)EXPORT_NAME_BYTES_MAX <= (int)NATIVE_NAME_BYTES_MAX,
	"every name of an export can be sent");
_Static_assert((int)TAKEOVER_TOKEN_BYTES_MAX >= (int)NATIVE_TOKEN_BYTES_MAX, "tokens");

/* Taken in one turn. */
enum { EVENTS_MAX = 64 };

/* --- the clan queue on the engine's ring ----------------------------------------------------- */

/* A connection that came to a listener of ours. */
static void gmb_service_take_offered(struct native_service *service, const struct clan_event *event)
{
	struct clan_peer peer;

	if (event->type != CLAN_EVENT_ARRIVED) {
		return; /* the end of one that was refused */
	}
	clan_conn_peer(event->conn, &peer);
	service->offered = event->conn;
	if (service->door == NULL ||
		!service->door->take(service->door->context, &native_session_kind, peer.address) ||
		service->offered != NULL) {
		service->offered = NULL;
		clan_reject(event->conn,
			"the server takes no more connections, of this address or of all; its "
			"--max-connections-per-peer and --max-connections limit them");
	}
}

static int gmb_service_source_poll(struct ring_source *source)
{
	struct native_service *service = container_of(source, struct native_service, source);
	struct clan_event events[EVENTS_MAX];
	struct list_node hungry;
	struct list_node *node;
	int count = clan_queue_wait(service->clan, events, EVENTS_MAX, 0);

	GMB_ASSERT(count >= 0);
	for (int i = 0; i < count; i++) {
		if (events[i].context != NULL) {
			native_session_event(events[i].context, &events[i]);
		} else {
			gmb_service_take_offered(service, &events[i]);
		}
	}
	list_init(&hungry);
	while ((node = list_pop_front(&service->hungry)) != NULL) {
		list_push_back(&hungry, node); /* what gets hungry again waits for the next turn */
	}
	while ((node = list_pop_front(&hungry)) != NULL) {
		native_session_take(list_entry(node, struct native_session, hungry_node));
		count++;
	}
	return count;
}

static bool gmb_service_source_arm(struct ring_source *source)
{
	struct native_service *service = container_of(source, struct native_service, source);

	return list_is_empty(&service->hungry) && clan_queue_arm(service->clan) == 0;
}

static void gmb_service_source_removed(struct ring_source *source)
{
	container_of(source, struct native_service, source)->is_removed = true;
}

/* A server without gmb connections has nothing of this. */
int native_service_start(struct native_service *service, struct error *error)
{
	const struct engine_limits *limits = &service->engine->limits;
	/* One place is each session's own. */
	uint32_t request_count = limits->inflight_max + limits->sessions_max;
	struct clan_error reason;
	int result;

	if (service->clan != NULL) {
		return 0;
	}
	service->requests = calloc(request_count, sizeof(*service->requests));
	if (service->requests == NULL) {
		return error_set(
			error, -ENOMEM, "out of memory for %u requests in flight", request_count);
	}
	result = clan_queue_create(NULL, &service->clan, &reason);
	if (result != 0) {
		free(service->requests);
		return error_set(error, result, "%s", reason.text);
	}
	for (uint32_t i = 0; i < request_count; i++) {
		list_push_back(&service->requests_free, &service->requests[i].node);
	}
	service->source = (struct ring_source){
		.poll = gmb_service_source_poll,
		.arm = gmb_service_source_arm,
		.fd = clan_queue_fd(service->clan),
	};
	ring_source_add(service->engine->ring, &service->source);
	return 0;
}

/* --- the session kind ------------------------------------------------------------------------ */

static int gmb_service_create(struct engine *engine, void **service_out, struct error *error)
{
	struct native_service *service = calloc(1, sizeof(*service));

	if (service == NULL) {
		return error_set(error, -ENOMEM, "out of memory for gmb");
	}
	service->engine = engine;
	list_init(&service->requests_free);
	list_init(&service->hungry);
	*service_out = service;
	return 0;
}

static void gmb_service_destroy(void *context)
{
	struct native_service *service = context;

	if (service->clan != NULL) {
		int result;

		ring_source_remove(
			service->engine->ring, &service->source, gmb_service_source_removed);
		while (!service->is_removed) {
			ring_turn(service->engine->ring, true);
		}
		native_slabs_forget(service);
		service->door = NULL;
		/* Connections that were refused may still be on their way out, and those that came
		 * before the listener was closed may still say hello. */
		while ((result = clan_queue_destroy(service->clan)) == -EBUSY) {
			struct clan_event events[EVENTS_MAX];
			int count = clan_queue_wait(service->clan, events, EVENTS_MAX, 10);

			for (int i = 0; i < count; i++) {
				gmb_service_take_offered(service, &events[i]);
			}
		}
		GMB_ASSERT(result == 0);
		free(service->requests);
	}
	free(service);
}

static int gmb_service_listen(void *context, struct export_uri *uri, const struct engine_door *door,
	void **listener_out, struct error *error)
{
	struct native_service *service = context;
	struct clan_conn_options options = native_conn_options(service);
	struct clan_listener *listener;
	struct clan_error reason;
	char *address;
	int result = native_service_start(service, error);

	if (result < 0) {
		return result;
	}
	address = export_uri_clan_address(uri);
	if (address == NULL) {
		return error_set(error, -ENOMEM, "out of memory for a listening address");
	}
	options.handshakes_max = CLAN_HANDSHAKES_OWN; /* the engine limits them, as all others */
	result = clan_listen(service->clan, address, &options, &listener, &reason);
	free(address);
	if (result < 0) {
		return error_set(error, result, "cannot listen on gmb://%s:%u%s%s: %s", uri->host,
			uri->port, uri->provider != NULL ? "?provider=" : "",
			uri->provider != NULL ? uri->provider : "", reason.text);
	}
	uri->port = export_uri_clan_port(clan_listener_address(listener));
	service->door = door;
	service->listener_count++;
	*listener_out = listener;
	return 0;
}

static void gmb_service_listen_end(void *context, void *listener)
{
	struct native_service *service = context;

	clan_listener_close(listener);
	if (--service->listener_count == 0) {
		service->door = NULL; /* what has come is refused: the door may be gone */
	}
}

static const char *const schemes[] = { "gmb", "gmb+unix", NULL };

const struct session_kind native_session_kind = {
	.name = "gmb",
	.schemes = schemes,
	.keeps_messages = true,
	.maps_memory = true,
	.create = gmb_service_create,
	.destroy = gmb_service_destroy,
	.listen = gmb_service_listen,
	.listen_end = gmb_service_listen_end,
	.accept = native_session_accept,
	.resume = native_session_resume,
	.flush = native_session_flush,
	.drain = native_session_drain,
	.export_changed = native_session_export_changed,
	.stalled = native_session_stalled,
	.abort = native_session_abort,
	.join = native_session_join,
	.close = native_session_close,
};
