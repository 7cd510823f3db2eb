// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "gmb/server/session.h"

_Static_assert((int)EXPORT_NAME_BYTES_MAX <= (int)NATIVE_NAME_BYTES_MAX,
	"every name of an export can be sent");
_Static_assert((int)TAKEOVER_TOKEN_BYTES_MAX >= (int)NATIVE_TOKEN_BYTES_MAX, "tokens");

static int gmb_service_start(struct clan_service *base, struct error *error)
{
	struct native_service *service = container_of(base, struct native_service, base);
	const struct engine_limits *limits = &base->engine->limits;
	/* as many requests as the engine permits in flight, and one reserved for each session */
	uint32_t request_count = limits->inflight_max + limits->sessions_max;

	if (service->requests != NULL) {
		return 0;
	}
	service->requests = calloc(request_count, sizeof(*service->requests));
	if (service->requests == NULL) {
		return error_oom_for(error, "%u requests in flight", request_count);
	}
	for (uint32_t i = 0; i < request_count; i++) {
		list_push_back(&service->requests_free, &service->requests[i].node);
	}
	return 0;
}

static void gmb_service_event(void *context, const struct clan_event *event)
{
	native_session_event(context, event);
}

static void gmb_service_take(struct list_node *node)
{
	native_session_take(list_entry(node, struct native_session, hungry_node));
}

static const struct clan_service_ops gmb_service_ops = {
	.kind = &native_session_kind,
	.cookies = 1,
	.peer_regions_max = NATIVE_REGIONS_MAX,
	.peer_region_bytes_max = NATIVE_REGION_BYTES_MAX,
	.start = gmb_service_start,
	.event = gmb_service_event,
	.take = gmb_service_take,
};

static int gmb_service_create(struct engine *engine, void **service_out, struct error *error)
{
	struct native_service *service = calloc(1, sizeof(*service));

	if (service == NULL) {
		return error_oom_for(error, "gmb");
	}
	clan_service_init(&service->base, &gmb_service_ops, engine);
	list_init(&service->requests_free);
	*service_out = service;
	return 0;
}

static void gmb_service_destroy(void *context)
{
	struct native_service *service = context;

	native_slabs_forget(service);
	clan_service_fini(&service->base);
	free(service->requests);
	free(service);
}

static const char *const schemes[] = { "gmb", "gmb+unix", NULL };

const struct session_kind native_session_kind = {
	.name = "gmb",
	.schemes = schemes,
	.keeps_messages = true,
	.maps_memory = true,
	.create = gmb_service_create,
	.destroy = gmb_service_destroy,
	.listen = clan_service_listen,
	.listen_end = clan_service_listen_end,
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
