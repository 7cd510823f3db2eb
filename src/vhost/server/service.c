// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>

#include "vhost/server/session.h"

/* Takes requests from the rings that are polled. Rings of which the session has to wait are taken
 * later, by vhost_session_resume(). */
static int service_source_poll(struct ring_source *source)
{
	struct vhost_service *service = container_of(source, struct vhost_service, source);
	uint32_t count = 0;

	list_for_each(node, &service->polled)
	{
		count += vhost_queue_take(list_entry(node, struct vhost_queue, polled_node));
	}
	return (int)count;
}

static bool service_source_arm(struct ring_source *source)
{
	struct vhost_service *service = container_of(source, struct vhost_service, source);

	list_for_each(node, &service->polled)
	{
		if (!vhost_queue_arm(list_entry(node, struct vhost_queue, polled_node))) {
			return false;
		}
	}
	return true;
}

static void service_source_removed(struct ring_source *source)
{
	container_of(source, struct vhost_service, source)->has_source = false;
}

int vhost_service_start(struct vhost_service *service)
{
	if (service->requests == NULL) {
		service->requests = calloc(service->request_max, sizeof(*service->requests));
	}
	if (service->requests == NULL) {
		return -ENOMEM;
	}
	if (!service->has_source) {
		service->source = (struct ring_source){
			.poll = service_source_poll, .arm = service_source_arm, .fd = -1
		};
		service->has_source = true;
		ring_source_add(service->engine->ring, &service->source);
	}
	return 0;
}

static int vhost_service_create(struct engine *engine, void **service_out, struct error *error)
{
	struct vhost_service *service = calloc(1, sizeof(*service));

	if (service == NULL) {
		return error_oom_for(error, "vhost-user-blk");
	}
	service->engine = engine;
	/* The maximum number of requests: those that the engine permits in flight, and for each
	 * session and part one reserved request and one that waits for a rate limit.
	 * vhost_service_start() allocates them. */
	service->request_max =
		engine->limits.inflight_max +
		2 * (engine->limits.sessions_max + engine_parts_max(&engine->limits));
	list_init(&service->requests_free);
	list_init(&service->polled);
	*service_out = service;
	return 0;
}

static void vhost_service_destroy(void *context)
{
	struct vhost_service *service = context;

	if (service->has_source) {
		ring_source_remove(service->engine->ring, &service->source, service_source_removed);
		while (service->has_source) {
			ring_turn(service->engine->ring, true);
		}
	}
	free(service->requests);
	free(service);
}

static const char *const schemes[] = { EXPORT_URI_VHOST "+unix", NULL };

const struct session_kind vhost_session_kind = {
	.name = "vhost",
	.schemes = schemes,
	.maps_memory = true,
	.holds_thread = true,
	.create = vhost_service_create,
	.destroy = vhost_service_destroy,
	.accept = vhost_session_accept,
	.resume = vhost_session_resume,
	.flush = vhost_session_flush,
	.drain = vhost_session_drain,
	.export_changed = vhost_session_export_changed,
	.is_away = vhost_session_is_away,
	.peer_receives = vhost_session_peer_receives,
	.can_hand_over = vhost_session_can_hand_over,
	.pause = vhost_session_pause,
	.rest = vhost_session_rest,
	.hand_over = vhost_session_hand_over,
	.adopt = vhost_session_adopt,
	.abort = vhost_session_abort,
	.join = vhost_session_join,
	.close = vhost_session_close,
};
