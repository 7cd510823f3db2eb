// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "vhost/server/session.h"

static int vhost_service_create(struct engine *engine, void **service_out, struct error *error)
{
	struct vhost_service *service = calloc(1, sizeof(*service));

	if (service == NULL) {
		return error_oom_for(error, "vhost-user-blk");
	}
	service->engine = engine;
	/* The maximum number of requests: those that the engine permits in flight, and for each
	 * session one reserved request and one that waits for a rate limit. vhost_session_accept()
	 * allocates them. */
	service->request_max = engine->limits.inflight_max + 2 * engine->limits.sessions_max;
	list_init(&service->requests_free);
	*service_out = service;
	return 0;
}

static void vhost_service_destroy(void *context)
{
	struct vhost_service *service = context;

	free(service->requests);
	free(service);
}

static const char *const schemes[] = { EXPORT_URI_VHOST "+unix", NULL };

const struct session_kind vhost_session_kind = {
	.name = "vhost",
	.schemes = schemes,
	.maps_memory = true,
	.create = vhost_service_create,
	.destroy = vhost_service_destroy,
	.accept = vhost_session_accept,
	.resume = vhost_session_resume,
	.flush = vhost_session_flush,
	.drain = vhost_session_drain,
	.export_changed = vhost_session_export_changed,
	.peer_receives = vhost_session_peer_receives,
	.abort = vhost_session_abort,
	.join = vhost_session_join,
	.close = vhost_session_close,
};
