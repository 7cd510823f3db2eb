// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "nbd/server/session.h"

_Static_assert((int)ENGINE_PAYLOAD_BYTES_MAX <= (int)NBD_PAYLOAD_BYTES_MAX,
	"no request is longer than NBD allows");
_Static_assert((int)EXPORT_NAME_BYTES_MAX <= (int)NBD_STRING_BYTES_MAX,
	"every name of an export can be sent");

/* --- pools --------------------------------------------------------------------------------- */

/* Returns a large receive buffer, or NULL; the session then continues with rx_small. */
struct rx_buf *service_rx_get(struct nbd_session *session)
{
	struct nbd_service *service = session->service;
	struct list_node *node;
	struct rx_buf *rx;

	if (rate_is_limited(&session->base.rate)) {
		/* more requests in the buffer would only wait for the rate limit */
		return NULL;
	}
	node = list_pop_front(&service->rx_free);
	/* New buffers are allocated only while the number of busy connections grows. */
	rx = node != NULL ? list_entry(node, struct rx_buf, node) : malloc(sizeof(*rx));
	if (rx == NULL) {
		return NULL;
	}
	list_init(&rx->node);
	rx->refs = 1;
	if (path_client_get(&session->base.client, RX_LARGE_BYTES, &rx->buf) < 0) {
		list_push_front(&service->rx_free, &rx->node);
		return NULL;
	}
	return rx;
}

void service_rx_put(struct nbd_session *session, struct rx_buf *rx)
{
	GMB_ASSERT(rx->refs > 0);
	if (--rx->refs == 0) {
		path_client_put(&session->base.client, &rx->buf);
		list_push_front(&session->service->rx_free, &rx->node);
	}
}

/* --- the session kind ---------------------------------------------------------------------- */

static void nbd_service_destroy(void *context)
{
	struct nbd_service *service = context;
	struct list_node *node;

	while ((node = list_pop_front(&service->rx_free)) != NULL) {
		free(list_entry(node, struct rx_buf, node));
	}
	while ((node = list_pop_front(&service->sends_free)) != NULL) {
		free(list_entry(node, struct send_batch, node));
	}
	free(service->requests);
	free(service);
}

static int nbd_service_create(struct engine *engine, void **service_out, struct error *error)
{
	struct nbd_service *service = calloc(1, sizeof(*service));

	if (service != NULL) {
		/* as many requests as the engine permits in flight, and one reserved for each
		 * session */
		service->request_max = engine->limits.inflight_max + engine->limits.sessions_max;
		service->requests = calloc(service->request_max, sizeof(*service->requests));
	}
	if (service == NULL || service->requests == NULL) {
		free(service);
		return error_oom_for(error, "requests in flight");
	}
	service->engine = engine;
	service->ring = engine->ring;
	service->path = engine->path;
	list_init(&service->requests_free);
	list_init(&service->rx_free);
	list_init(&service->sends_free);
	*service_out = service;
	return 0;
}

static const char *const schemes[] = { "nbd", "nbd+unix", NULL };

const struct session_kind nbd_session_kind = {
	.name = "nbd",
	.schemes = schemes,
	.create = nbd_service_create,
	.destroy = nbd_service_destroy,
	.accept = nbd_session_accept,
	.resume = nbd_session_resume,
	.flush = reply_flush,
	.drain = nbd_session_drain,
	.export_changed = nbd_session_export_changed,
	.stalled = nbd_session_stalled,
	.peer_receives = nbd_session_peer_receives,
	.can_hand_over = nbd_session_can_hand_over,
	.pause = nbd_session_pause,
	.rest = nbd_session_rest,
	.hand_over = nbd_session_hand_over,
	.adopt = nbd_session_adopt,
	.abort = nbd_session_abort,
	.join = nbd_session_join,
	.close = nbd_session_close,
};
