// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "vhost/server/session.h"

enum { PREFETCH_CHAINS = 16 };

/* Accesses to members of the rings that the guest reads or writes at the same time. */
static uint16_t ring_load(const uint16_t *at)
{
	/* Acquire pairs with the guest's barrier before it increases the index of a ring. */
	return atomic_load_explicit((const _Atomic uint16_t *)at, memory_order_acquire);
}

static void ring_store(uint16_t *at, uint16_t value)
{
	/* Release: the guest reads the elements after the index. */
	atomic_store_explicit((_Atomic uint16_t *)at, value, memory_order_release);
}

static bool has_feature(const struct vhost_queue *queue, uint64_t feature)
{
	return (queue->session->features & feature) != 0;
}

/* Returns the place where the guest finds the index of the avail ring at which it has to kick. */
static uint16_t *avail_event(const struct vhost_queue *queue)
{
	return (uint16_t *)(void *)&queue->used->ring[queue->entries];
}

/* Logs changes of the used ring, from offset on. */
static void log_used(const struct vhost_queue *queue, uint64_t offset, uint64_t bytes)
{
	if ((queue->address.flags & VHOST_VRING_LOG) != 0 && vhost_session_logs(queue->session)) {
		vhost_log_mark(&queue->session->log.mapping, queue->address.log + offset, bytes);
	}
}

/* Asks the guest to kick for the next request (wanted), or not to kick. With EVENT_IDX, a guest
 * that has passed the index of the last wish does not kick any more. */
static void want_kick(struct vhost_queue *queue, bool wanted)
{
	queue->hushed = !wanted;
	if (!has_feature(queue, VIRTIO_RING_EVENT_IDX)) {
		ring_store(&queue->used->flags, wanted ? 0 : VRING_USED_NO_NOTIFY);
		log_used(queue, 0, sizeof(uint16_t));
	} else if (wanted) {
		ring_store(avail_event(queue), queue->avail_index);
		log_used(queue, vring_used_bytes(queue->entries) - sizeof(uint16_t),
			sizeof(uint16_t));
	}
}

void vhost_queue_locate(struct vhost_queue *queue)
{
	const struct vhost_memory *memory = queue->session->memory;
	const struct vhost_vring_address *address = &queue->address;

	const struct vring_desc *desc = NULL;
	const struct vring_avail *avail = NULL;
	struct vring_used *used = NULL;

	if (queue->has_address && queue->entries > 0) {
		desc = vhost_memory_of_user(
			memory, address->desc, vring_desc_bytes(queue->entries), 16);
		avail = vhost_memory_of_user(
			memory, address->avail, vring_avail_bytes(queue->entries), 2);
		used = vhost_memory_of_user(
			memory, address->used, vring_used_bytes(queue->entries), 4);
	}
	queue->is_mapped = desc != NULL && avail != NULL && used != NULL;
	if (queue->is_mapped) {
		queue->desc = desc;
		queue->avail = avail;
		queue->used = used;
		vhost_memory_put(queue->memory);
		queue->memory = vhost_memory_get(queue->session->memory);
	} else if (!queue->is_running) {
		vhost_memory_put(queue->memory);
		queue->memory = NULL;
	} /* else requests that end while the rings are not mapped use the old used ring */
}

bool vhost_queue_is_usable(const struct vhost_queue *queue)
{
	return queue->is_running && !queue->is_broken && queue->is_mapped;
}

/* Returns whether chains may be taken now. Chains of an earlier server are in flight, so they are
 * also taken while the queue stops or is disabled. */
static bool queue_may_take(const struct vhost_queue *queue)
{
	const struct vhost_session *session = queue->session;
	bool stops = session->waits == VHOST_WAITS_FOR_ALL ||
		     (session->waits == VHOST_WAITS_FOR_QUEUE && session->draining == queue);

	return vhost_queue_is_here(queue) && vhost_queue_is_usable(queue) &&
	       session->held == NULL && !session->base.stopping && !session->base.paused &&
	       session->base.state == SESSION_READY &&
	       (queue->again_next < queue->again_count || (queue->is_enabled && !stops));
}

void vhost_queue_start(struct vhost_queue *queue)
{
	const char *rule;

	if (!queue->is_running && queue->is_enabled && queue->is_mapped && queue->kick != NULL) {
		queue->is_running = true;
		queue->avail_seen = queue->avail_index;
		queue->used_index = ring_load(&queue->used->index);
		queue->signalled = false;
		rule = vhost_inflight_begin(queue);
		if (rule != NULL) {
			vhost_queue_fail(queue, rule);
			return;
		}
		/* The front end might have missed a notification of an earlier server. */
		vhost_event_signal(queue->call);
	}
	(void)vhost_queue_take(queue);
}

bool vhost_queue_is_drained(const struct vhost_queue *queue)
{
	const struct blk_request *held = queue->session->held;

	return queue->inflight_count == 0 && (held == NULL || held->queue != queue) &&
	       (queue->again_next == queue->again_count || !vhost_queue_is_usable(queue));
}

void vhost_queue_leave(struct vhost_queue *queue)
{
	const struct vhost_session *session = queue->session;
	/* Another process or session has perhaps asked already, for a later request. Without
	 * EVENT_IDX, it does no harm to ask again. */
	bool is_late = session->base.handed_over ||
		       (vhost_session_is_cut(session) && has_feature(queue, VIRTIO_RING_EVENT_IDX));

	if (queue->hushed && vhost_queue_is_usable(queue) && !queue->is_away && !is_late) {
		want_kick(queue, true);
	}
}

void vhost_queue_stop(struct vhost_queue *queue)
{
	vhost_queue_leave(queue);
	list_remove(&queue->polled_node);
	queue->is_running = false;
	vhost_queue_locate(queue); /* does not keep old memory */
	queue->is_broken = false;
	queue->misses_memory = false;
	vhost_event_drop(&queue->kick, false);
	vhost_event_drop(&queue->call, true);
	vhost_event_drop(&queue->error, true);
	free(queue->again);
	queue->again = NULL;
	queue->again_count = 0;
	queue->again_next = 0;
	queue->record = NULL;
}

void vhost_queue_fail(struct vhost_queue *queue, const char *rule)
{
	struct session *session = &queue->session->base;

	queue->is_broken = true;
	session->progress_ns = ring_batch_ns(session->engine->ring);
	vhost_event_signal(queue->error);
	session_mark_dirty(session); /* vhost_session_flush() checks whether the memory is broken */
	log_limited(session_log_limit(session), session->progress_ns, LOG_LEVEL_WARNING,
		"client %s: queue %u is stopped until the guest resets its disk: %s",
		session->peer.text, queue->index, rule);
}

/* Has the service poll the avail ring until the reactor sleeps. */
static void queue_poll(struct vhost_queue *queue)
{
	if (!list_is_linked(&queue->polled_node)) {
		want_kick(queue, false);
		list_push_back(&queue->session->service->polled, &queue->polled_node);
	}
}

/* Returns whether there is a chain to be taken. */
static bool has_chain(struct vhost_queue *queue)
{
	if (queue->avail_seen == queue->avail_index) {
		queue->avail_seen = ring_load(&queue->avail->index);
	}
	return queue->avail_seen != queue->avail_index || queue->again_next < queue->again_count;
}

bool vhost_queue_arm(struct vhost_queue *queue)
{
	struct vhost_session *session = queue->session;

	list_remove(&queue->polled_node);
	if (!queue_may_take(queue) || queue->inflight_count >= queue->entries ||
		session_waits(&session->base)) {
		return true; /* its requests are taken when the session is resumed */
	}
	want_kick(queue, true);
	/* The guest writes the index and then reads the event or the flag. This side writes the
	 * event or the flag and then reads the index, so one of both sides sees the change. */
	atomic_thread_fence(memory_order_seq_cst);
	if (!has_chain(queue)) {
		return true;
	}
	queue_poll(queue);
	return false;
}

/*
 * Loads the descriptors of the next chains into the cache. The guest has just written them on
 * another processor, so each load takes long, and the loads of one chain depend on each other.
 * Those of several chains can overlap. The values are only hints here.
 */
static void prefetch_chains(struct vhost_queue *queue)
{
	uint16_t left = (uint16_t)(queue->avail_seen - queue->avail_index);
	uint32_t count = MIN(left, (uint16_t)PREFETCH_CHAINS);
	uint16_t heads[PREFETCH_CHAINS];

	if (count < 2) {
		return;
	}
	for (uint32_t i = 0; i < count; i++) {
		uint16_t at = (uint16_t)(queue->avail_index + i) & (uint16_t)(queue->entries - 1);

		shared_copy(&heads[i], &queue->avail->ring[at], sizeof(heads[i]));
		heads[i] &= (uint16_t)(queue->entries - 1);
		__builtin_prefetch(&queue->desc[heads[i]]);
	}
	for (uint32_t i = 0; i < count; i++) {
		struct vring_desc desc;
		struct mem_ref memory;
		uint64_t bytes;

		shared_copy(&desc, &queue->desc[heads[i]], sizeof(desc));
		memory = vhost_memory_at(queue->session->memory, desc.address, &bytes);
		if (memory.rights != 0) { /* the head of the request, or an indirect table */
			const uint8_t *address = mem_cpu_read(memory);

			__builtin_prefetch(address);
			__builtin_prefetch(address + 64);
		}
	}
	queue->prefetched = (uint16_t)(queue->avail_index + count);
}

/* Takes the head of the next chain; there is one. Returns false if the guest has broken a rule. */
static bool vhost_queue_next_head(struct vhost_queue *queue, uint16_t *head_out)
{
	if (queue->again_next < queue->again_count) {
		*head_out = queue->again[queue->again_next++];
		return true;
	}
	if ((uint16_t)(queue->avail_seen - queue->avail_index) > queue->entries) {
		vhost_queue_fail(queue, "the index of its avail ring jumped");
		return false;
	}
	*head_out = atomic_load_explicit((const _Atomic uint16_t *)&queue->avail
						 ->ring[queue->avail_index & (queue->entries - 1)],
		memory_order_relaxed);
	queue->avail_index++;
	if (*head_out >= queue->entries) {
		vhost_queue_fail(queue, "an entry of its avail ring is not a descriptor");
		return false;
	}
	vhost_inflight_taken(queue, *head_out);
	return true;
}

uint32_t vhost_queue_take(struct vhost_queue *queue)
{
	struct vhost_session *session = queue->session;
	struct blk_request *request;
	uint32_t count = 0;
	uint16_t head;

	while (queue_may_take(queue)) {
		bool is_again = queue->again_next < queue->again_count;

		if (!has_chain(queue)) {
			queue_poll(queue);
			break;
		}
		if (queue->inflight_count >= queue->entries ||
			!engine_request_may(&session->base)) {
			break;
		}
		if (count == 0 || queue->prefetched == queue->avail_index) {
			prefetch_chains(queue);
		}
		if (!vhost_queue_next_head(queue, &head)) {
			break;
		}
		request = vhost_request_read(queue, head, is_again);
		if (request == NULL) {
			break;
		}
		count++;
		session->base.progress_ns = ring_batch_ns(session->base.engine->ring);
		engine_request_from_queue(&session->base);
		if (engine_request_may_move(&session->base, vhost_request_op(request),
			    vhost_request_bytes(request))) {
			vhost_request_start(request);
		} else {
			session->held = request;
		}
	}
	return count;
}

void vhost_queue_put_back(struct vhost_queue *queue, uint16_t head, bool is_again)
{
	if (is_again) {
		queue->again_next--;
	} else {
		queue->avail_index--;
		if (queue->record != NULL) {
			queue->record->desc[head].in_flight = 0;
		}
	}
}

void vhost_queue_try_again(struct vhost_queue *queue)
{
	if (queue->misses_memory) {
		queue->misses_memory = false;
		queue->is_broken = false;
	}
}

/* Returns whether the guest wants to be notified of the elements up to the used index. */
static bool wants_call(struct vhost_queue *queue)
{
	uint16_t before = queue->signalled_index;
	bool signalled = queue->signalled;

	/* The guest writes the event and then reads the index. This side has written the index and
	 * then reads the event, so one of both sides sees the change. */
	atomic_thread_fence(memory_order_seq_cst);
	queue->signalled = true;
	queue->signalled_index = queue->used_index;
	if (!has_feature(queue, VIRTIO_RING_EVENT_IDX)) {
		return (ring_load(&queue->avail->flags) & VRING_AVAIL_NO_INTERRUPT) == 0;
	}
	return !signalled || vring_needs_event(ring_load(&queue->avail->ring[queue->entries]),
				     queue->used_index, before);
}

void vhost_queue_publish(struct vhost_queue *queue)
{
	struct vhost_session *session = queue->session;
	bool can_publish = queue->is_running && !vhost_queue_has_failed(queue);
	struct list_node *node;

	if (list_is_empty(&queue->done)) {
		return;
	}
	if (can_publish) {
		vhost_inflight_link(queue);
	}
	list_for_each(entry, &queue->done)
	{
		struct blk_request *request = list_entry(entry, struct blk_request, done_node);
		uint16_t slot = queue->used_index & (uint16_t)(queue->entries - 1);

		vhost_request_answer(request);
		if (can_publish) {
			queue->used->ring[slot] =
				(struct vring_used_element){ .head = request->head,
					.bytes = request->written_bytes };
			log_used(queue,
				offsetof(struct vring_used, ring) +
					slot * sizeof(struct vring_used_element),
				sizeof(struct vring_used_element));
			queue->used_index++;
		}
	}
	if (can_publish) {
		if (vhost_session_is_broken(session, queue->memory)) {
			return; /* perhaps payload and status are in memory of this process */
		}
		ring_store(&queue->used->index, queue->used_index);
		log_used(queue, 0, sizeof(struct vring_used));
		if (vhost_session_is_broken(session, queue->memory)) {
			return; /* perhaps the index, too */
		}
		vhost_inflight_clear(queue);
		if (wants_call(queue)) {
			vhost_event_signal(queue->call);
		}
	}
	session->base.progress_ns = ring_batch_ns(session->base.engine->ring);
	while ((node = list_first(&queue->done)) != NULL) {
		vhost_request_end(list_entry(node, struct blk_request, done_node));
	}
}
