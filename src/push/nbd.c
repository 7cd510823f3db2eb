// SPDX-License-Identifier: Apache-2.0
/*
 * A destination that does not support push: the source is an NBD client of this server, and
 * libgmblock runs on the source's ring.
 *
 *   piece_send() ─▶ WRITE ─▶ push_source_written()
 *              └──▶ READ, compared ─▶ push_source_checked()      COMPARE
 *   flush()      ─▶ FLUSH ─▶ READ of all, summed ─▶ push_source_flushed()
 *                            READ_BACK
 *
 * This file does the work that a destination with push does itself: it checks that the export is
 * suitable, compares, and reads back. There is one connection. If it is lost, the job fails.
 *
 * A client must be ended outside its own callbacks, at the end of a batch. The hub keeps the
 * clients that are ending.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/rights.h"
#include "client/guest.h"
#include "push/source.h"
#include "tls/client.h"

enum { NS_PER_MS = 1000000, DEPTH = 2 * PUSH_SLOTS, ADVICE_BYTES = 360 };

_Static_assert((int)DEPTH > (int)PUSH_SLOTS + (int)PUSH_ZEROES_MAX, "and a flush");

struct push_nbd_hub {
	struct ring *ring;
	struct gmb_queue *queue;
	struct ring_batch_end batch_end;
	/* ends immediately, so that the ring runs another batch after a batch_end() that has done
	 * work */
	struct ring_op again;
	struct list_node ending; /* struct push_nbd.node */
};

struct push_nbd {
	struct push_source *source;
	struct push_nbd_hub *hub;
	struct list_node node;	   /* in hub.ending */
	struct gmb_client *client; /* NULL: the client is not open, or has ended */
	bool was_ended;
	/* START has PUSH_DETACH: once START is answered, the job does not need the coordinator */
	bool detach;
	uint64_t target_offset;
	uint8_t *beside; /* COMPARE: existing data, one piece per slot */
	struct gmb_request pieces[PUSH_SLOTS];
	struct gmb_request zeroes[PUSH_ZEROES_MAX];
	struct gmb_request flush;
	struct push_wire_flush flushed; /* the answer */
	/* READ_BACK: all bytes before read_at have been read, except for `reads` reads in
	 * flight. */
	uint64_t read_at;
	uint32_t reads;
};

/* --- the hub --------------------------------------------------------------------------------- */

static void nbd_again_done(struct ring_op *op, int result)
{
}

bool push_source_is_away(struct session *base)
{
	const struct push_source *source = container_of(base, struct push_session, base)->source;
	const struct push_nbd *nbd = source != NULL ? source->nbd : NULL;

	return nbd != NULL && nbd->client != NULL && !nbd->was_ended &&
	       client_in_flight(nbd->client) > 0;
}

/* Returns whether the session must exist until the other server has answered what was sent: a
 * fence, also a later one, waits for the session. Only a server that stops does not wait longer
 * than its time limit. */
static bool awaits_answers(const struct push_nbd *nbd)
{
	struct session *base = &nbd->source->session->base;

	return push_source_is_away(base) && !(base->overdue && base->engine->draining);
}

/* Called at the end of each batch of the ring, outside of all callbacks of the clients. Processes
 * the queue of libgmblock, and ends clients. */
static void batch_end(struct ring_batch_end *end)
{
	struct push_nbd_hub *hub = container_of(end, struct push_nbd_hub, batch_end);
	bool again = queue_pump(hub->queue);

	list_for_each(node, &hub->ending)
	{
		struct push_nbd *nbd = list_entry(node, struct push_nbd, node);

		if (awaits_answers(nbd)) {
			continue;
		}
		if (!nbd->was_ended) {
			nbd->was_ended = true;
			client_end(nbd->client);
			again = true;
		}
		if (client_join(nbd->client)) {
			nbd->client = NULL;
			list_remove(node);
			again = true; /* session_join() can now free the session */
		}
	}
	if (again && !hub->again.in_flight) {
		ring_defer(hub->ring, &hub->again, 0, nbd_again_done);
	}
}

static struct push_nbd_hub *hub_create(struct ring *ring)
{
	struct push_nbd_hub *hub = calloc(1, sizeof(*hub));

	if (hub == NULL) {
		return NULL;
	}
	hub->ring = ring;
	hub->queue = queue_create_on(ring);
	if (hub->queue == NULL) {
		free(hub);
		return NULL;
	}
	list_init(&hub->ending);
	hub->batch_end.call = batch_end;
	ring_batch_end_add(ring, &hub->batch_end);
	return hub;
}

void push_nbd_hub_destroy(struct push_nbd_hub *hub)
{
	int result;

	if (hub == NULL) {
		return;
	}
	GMB_ASSERT(list_is_empty(&hub->ending));
	while (hub->again.in_flight) {
		ring_turn(hub->ring, true);
	}
	ring_batch_end_remove(&hub->batch_end);
	result = gmb_queue_destroy(hub->queue);
	GMB_ASSERT(result == 0);
	free(hub);
}

/* --- requests -------------------------------------------------------------------------------- */

/* Returns true if the job continues. If the request failed, fails the job. */
static bool goes_on(struct push_nbd *nbd, const struct gmb_request *request, const char *failed)
{
	struct push_source *source = nbd->source;
	const char *trouble = client_trouble(nbd->client);

	if (push_source_is_over(source)) {
		return false;
	}
	if (request->result == -ENOTCONN) {
		push_source_fail(source, -ECONNRESET,
			"the connection to the destination was lost: %s", trouble);
	} else if (request->result != 0) {
		push_source_fail(source, request->result, failed, strerror(-request->result));
	}
	return request->result == 0;
}

static struct push_slot *nbd_slot_of(const struct gmb_request *request)
{
	struct push_nbd *nbd = request->context;

	return &nbd->source->slots[request - nbd->pieces];
}

static void piece_written(struct gmb_request *request)
{
	struct push_nbd *nbd = request->context;

	if (goes_on(nbd, request, "cannot write the destination: %s")) {
		push_source_written(nbd_slot_of(request));
		push_source_advance(nbd->source->session);
	}
}

static uint8_t *beside_of(const struct push_nbd *nbd, const struct push_slot *slot)
{
	return nbd->beside + (size_t)(slot - nbd->source->slots) * PUSH_PIECE_BYTES;
}

/* Compares a piece here, because an NBD server cannot. The result is processed like the CHECKED
 * message of a destination with push. */
static void piece_compared(struct gmb_request *request)
{
	struct push_nbd *nbd = request->context;
	struct push_slot *slot = nbd_slot_of(request);

	if (goes_on(nbd, request, "cannot read the destination for comparison: %s")) {
		const uint8_t *data = push_slot_data(slot);
		const struct push_wire_checked checked = {
			.offset = slot->offset,
			.same = memcmp(data, beside_of(nbd, slot), slot->length) == 0,
		};

		push_source_checked(nbd->source, &checked);
		push_source_advance(nbd->source->session);
	}
}

static void nbd_submit(struct push_nbd *nbd, struct gmb_request *request, gmb_done *done)
{
	request->done = done;
	request->context = nbd;
	gmb_submit(nbd->client, request);
}

void push_nbd_send(struct push_slot *slot)
{
	struct push_nbd *nbd = slot->source->nbd;
	struct gmb_request *request = &nbd->pieces[slot - slot->source->slots];
	uint64_t offset = nbd->target_offset + slot->offset;

	if (slot->asks) {
		gmb_prepare_read(request, beside_of(nbd, slot), slot->length, offset);
		nbd_submit(nbd, request, piece_compared);
	} else {
		gmb_prepare_write(request, push_slot_data(slot), slot->length, offset);
		nbd_submit(nbd, request, piece_written);
	}
}

static void nbd_zero_done(struct gmb_request *request)
{
	struct push_nbd *nbd = request->context;

	if (goes_on(nbd, request, "cannot write the destination: %s")) {
		const struct push_wire_range zeroed = { request->offset - nbd->target_offset,
			request->length };

		push_source_zeroed(nbd->source, &zeroed);
		push_source_advance(nbd->source->session);
	}
}

void push_nbd_zero(struct push_source *source, uint32_t number, const struct push_wire_range *zero)
{
	struct push_nbd *nbd = source->nbd;
	struct gmb_request *request = &nbd->zeroes[number];

	gmb_prepare(request, GMB_ZERO, nbd->target_offset + zero->offset, zero->length);
	nbd_submit(nbd, request, nbd_zero_done);
}

/* --- the end of the range -------------------------------------------------------------------- */

static void read_back(struct push_nbd *nbd, struct gmb_request *request);

/* Called when a piece was read back: adds it to the destination's digest. The slot then reads the
 * next piece; the last one completes the flush. */
static void piece_read_back(struct gmb_request *request)
{
	struct push_nbd *nbd = request->context;
	struct push_source *source = nbd->source;
	const uint8_t *data = push_slot_data(nbd_slot_of(request));
	uint32_t length = (uint32_t)request->length;

	if (!goes_on(nbd, request, "cannot read back the destination: %s")) {
		return;
	}
	nbd->flushed.digest +=
		push_digest(request->offset - nbd->target_offset, length, crc32c(0, data, length));
	nbd->reads--;
	read_back(nbd, request);
	if (nbd->reads == 0) {
		push_source_flushed(source, &nbd->flushed);
	}
}

/* Reads the next piece back into the request's slot. No slot is used for other data at this
 * time. */
static void read_back(struct push_nbd *nbd, struct gmb_request *request)
{
	struct push_source *source = nbd->source;
	uint64_t length = MIN(source->length - nbd->read_at, (uint64_t)PUSH_PIECE_BYTES);

	if (length == 0) {
		return;
	}
	request->context = nbd;
	gmb_prepare_read(request, push_slot_data(nbd_slot_of(request)), length,
		nbd->target_offset + nbd->read_at);
	nbd->read_at += length;
	nbd->reads++;
	nbd_submit(nbd, request, piece_read_back);
}

/* When the last FLUSH of a job with PUSH_READ_BACK is done, starts to read everything back, with
 * all slots. */
static void nbd_flush_done(struct gmb_request *request)
{
	struct push_nbd *nbd = request->context;
	struct push_source *source = nbd->source;

	if (!goes_on(nbd, request, "cannot make the destination durable: %s")) {
		return;
	}
	if (nbd->flushed.flags != 0 && (source->flags & PUSH_READ_BACK) != 0) {
		nbd->flushed.digest = 0;
		for (uint32_t i = 0; i < source->slot_count; i++) {
			read_back(nbd, &nbd->pieces[i]);
		}
		return;
	}
	push_source_flushed(source, &nbd->flushed);
	push_source_advance(source->session);
}

void push_nbd_flush(struct push_source *source, const struct push_wire_flush *flush)
{
	struct push_nbd *nbd = source->nbd;

	nbd->flushed = *flush;
	gmb_prepare(&nbd->flush, GMB_FLUSH, 0, 0);
	nbd_submit(nbd, &nbd->flush, nbd_flush_done);
}

/* --- the beginning --------------------------------------------------------------------------- */

/* Returns true if the range to write on that export overlaps the range that the job reads. */
static bool meets(const struct push_nbd *nbd, const struct export *target)
{
	const struct push_source *source = nbd->source;
	uint64_t distance = source->source_offset > nbd->target_offset
				    ? source->source_offset - nbd->target_offset
				    : nbd->target_offset - source->source_offset;
	struct store_place from = { .at = source->use.at };
	struct store_place to;

	if (target == source->session->base.export) {
		return distance < source->length;
	}
	if (!store_place(target->store, &to)) {
		return false;
	}
	memcpy(from.machine, source->use.machine, sizeof(from.machine));
	memcpy(from.disk, source->use.disk, sizeof(from.disk));
	to.at += nbd->target_offset;
	return store_places_meet(&from, &to, source->length);
}

/* Returns true if the job would overwrite the range that it reads. This is detected only if the
 * destination is this server: then one of our exports has a connection with the name of our own
 * client. Other servers do not reveal which disk they serve. */
static bool is_onto_itself(const struct push_nbd *nbd)
{
	struct engine *engine = nbd->source->session->service->base.engine;
	struct engine_export *entry = engine_export_from(engine, 0);
	char name[CLIENT_NAME_BYTES];
	bool found = false;

	client_name(nbd->client, name);
	while (entry != NULL && !found) {
		struct export *export = entry->export;

		found = takeover_has(&export->takeover, name, (uint32_t)strlen(name)) &&
			meets(nbd, export);
		entry = engine_export_from(engine, entry->serial + 1);
	}
	return found;
}

/* Checks that the export is suitable for the job. Returns 0, or a negative errno with a text. */
static int nbd_look(const struct push_nbd *nbd, char text[PUSH_TEXT_BYTES_MAX])
{
	const struct push_source *source = nbd->source;
	uint64_t end = nbd->target_offset + source->length; /* no overflow: both are below 2^63 */
	struct gmb_info info = { .size = sizeof(info) };

	gmb_get_info(nbd->client, &info);
	if ((info.capabilities & GMB_CAN_WRITE) == 0) {
		snprintf(text, PUSH_TEXT_BYTES_MAX, "the destination is served read-only");
		return -EROFS;
	}
	if ((info.capabilities & GMB_CAN_FLUSH) == 0) {
		snprintf(text, PUSH_TEXT_BYTES_MAX,
			"the server of the destination does not offer NBD_CMD_FLUSH, so the copy "
			"could not be made durable");
		return -EOPNOTSUPP;
	}
	if (end > info.bytes) {
		snprintf(text, PUSH_TEXT_BYTES_MAX,
			"the destination is too small: it has %" PRIu64
			" bytes, but the push ends at %" PRIu64,
			info.bytes, end);
		return -ENOSPC;
	}
	if (!is_aligned(nbd->target_offset, info.block_minimum) ||
		!is_aligned(end, info.block_minimum)) {
		snprintf(text, PUSH_TEXT_BYTES_MAX,
			"the destination requires whole blocks of %" PRIu32
			" bytes, but the push does not begin and end at block boundaries",
			info.block_minimum);
		return -EINVAL;
	}
	if (is_onto_itself(nbd)) {
		snprintf(text, PUSH_TEXT_BYTES_MAX,
			"source and destination are the same disk, and the ranges overlap");
		return -EINVAL;
	}
	return 0;
}

static int take_memory(struct push_nbd *nbd)
{
	struct push_source *source = nbd->source;
	/* With COMPARE each slot has a second buffer, for the existing data. */
	uint32_t parts = (source->flags & PUSH_COMPARE) != 0 ? 2 : 1;
	struct push_flow *flow = &source->flows[0];
	void *base;
	int result = push_flow_own_slots(flow, parts, parts * PUSH_SLOTS, &base);

	if (result == 0) {
		push_flow_has_memory(flow, base, flow->staged_slots / parts);
		nbd->beside = (uint8_t *)base + (size_t)source->slot_count * PUSH_SLOT_BYTES;
	}
	return result;
}

/* Advice for errors of certificates and keys, or of rights that depend on them. The reason can
 * reveal the source's configuration, so untrusted users are referred to the log. */
static void tls_advise(const struct push_source *source, int result, char advice[ADVICE_BYTES])
{
	const struct peer *peer = &source->session->base.peer;
	bool is_refused = result == -EACCES || result == -EKEYREJECTED;
	char why[ERROR_TEXT_BYTES];

	advice[0] = '\0';
	if (source->tls == NULL || !is_refused) {
		return;
	}
	if (!tls_client_is_behind(source->tls, why)) {
		snprintf(advice, ADVICE_BYTES,
			"; compare the credentials in --push-to nbds:PLACE of the source's server "
			"with those of the destination");
	} else if (peer->has_credentials && !rights_is_stranger(peer->credentials.uid)) {
		snprintf(advice, ADVICE_BYTES,
			"; the source's server used credentials that it had read earlier: %.280s",
			why);
	} else {
		snprintf(advice, ADVICE_BYTES,
			"; the source's server used credentials that it had read earlier; see its "
			"log for the reason");
	}
}

/* Called when the connection to the destination is open or has failed: checks the export, allocates
 * the slots, and answers START. */
static void nbd_opened(void *context, struct gmb_client *client, const struct gmb_error *error)
{
	struct push_nbd *nbd = context;
	struct push_source *source = nbd->source;
	struct push_session *session = source->session;
	struct push_answer answer = { .head.value = source->use.ticket.job };
	uint64_t silence_ns = session->base.engine->limits.handshake_timeout_ns;
	char text[PUSH_TEXT_BYTES_MAX];
	struct gmb_info info = { .size = sizeof(info) };
	int result = error->code;

	if (push_source_is_over(source)) {
		return;
	}
	if (result != 0) {
		char advice[ADVICE_BYTES];

		tls_advise(source, result, advice);
		snprintf(text, sizeof(text), "the destination: %.*s%s",
			(int)(sizeof(text) - 32 - strlen(advice)), error->text, advice);
	} else {
		result = nbd_look(nbd, text);
	}
	if (result == 0) {
		result = take_memory(nbd);
		snprintf(text, sizeof(text), "no staging memory: %s", push_memory_text(result));
	}
	if (result != 0) {
		push_session_job_fail(session, result, text);
		return;
	}
	session->is_opening = false;
	session->detached = nbd->detach;
	push_control_send(session, &answer, NULL);
	if (push_source_is_over(source)) {
		return;
	}
	gmb_get_info(client, &info);
	source->no_zeroes = (info.capabilities & GMB_CAN_ZERO) == 0;
	source->no_map |= source->no_zeroes; /* a hole must be written as data */
	push_source_lent(source, (uint32_t)MIN(silence_ns / NS_PER_MS, (uint64_t)UINT32_MAX));
}

int push_nbd_begin(struct push_source *source, const char *uri, bool detach, const char **text)
{
	struct push_session *session = source->session;
	struct push_service *service = session->service;
	uint64_t timeout_ms = service->base.engine->limits.handshake_timeout_ns / NS_PER_MS;
	struct push_nbd *nbd = calloc(1, sizeof(*nbd));
	const struct gmb_options options = {
		.size = sizeof(options),
		.flags = GMB_OPEN_NO_RECONNECT,
		.connections = source->flow_count,
		.depth = DEPTH,
		/* Half of the handshake timeout, so that START is answered before the coordinator
		 * gives up. */
		.connect_timeout_ms = (uint32_t)MIN(timeout_ms / 2 + 1, (uint64_t)UINT32_MAX),
		.context = nbd,
		.opened = nbd_opened,
	};
	int result;

	*text = "the server is out of memory";
	if (service->nbd == NULL) {
		service->nbd = hub_create(service->base.engine->ring);
	}
	if (nbd == NULL || service->nbd == NULL) {
		free(nbd);
		return -ENOMEM;
	}
	nbd->source = source;
	nbd->hub = service->nbd;
	nbd->detach = detach;
	nbd->target_offset = source->use.ticket.offset;
	list_init(&nbd->node);
	result = client_open_start(nbd->hub->queue, uri, source->tls, &options, &nbd->client, NULL);
	if (result != 0) {
		*text = result == -ENOMEM ? *text
					  : "the address of the destination is not an NBD URI";
		free(nbd);
		return result;
	}
	source->nbd = nbd;
	session->is_opening = true;
	return 0;
}

/* --- the end --------------------------------------------------------------------------------- */

void push_nbd_abort(struct push_nbd *nbd)
{
	if (nbd->client != NULL && !list_is_linked(&nbd->node)) {
		list_push_back(&nbd->hub->ending, &nbd->node);
	}
}

bool push_nbd_join(const struct push_nbd *nbd)
{
	return nbd->client == NULL;
}

void push_nbd_free(struct push_nbd *nbd)
{
	free(nbd);
}
