// SPDX-License-Identifier: Apache-2.0
/* The dispatch point: every part passes through here when it is submitted to a store and when it is
 * finished. */
#include <errno.h>

#include "store/kind.h"

enum {
	PART_BYTES_MAX = 1 << 30,
	/* STORE_APART parts per kernel call. The block layer delays larger batches, to merge
	 * adjacent requests. */
	PARTS_PER_CALL = 2,
};

/* A flag without meaning for the part's operation is ignored, because protocols allow FUA with any
 * command. */
#define PART_FLAGS_KNOWN                                                                           \
	((uint32_t)(STORE_FUA | STORE_NO_HOLE | STORE_FAST_ZERO | STORE_MEASURED | STORE_APART |   \
		    STORE_QUIESCE))

/* --- the rate of the disk -------------------------------------------------------------------- */

#define SECOND_NS UINT64_C(1000000000)
/* The rate of a disk that is never idle is updated after this time. */
#define BUSY_NS_MAX UINT64_C(10000000)

enum {
	RATE_SHIFT = 3,		   /* weight of a new value in the average rate: one eighth */
	BUSY_BYTES_MIN = 64 << 10, /* no rate is computed from fewer bytes */
};

static void busy_end(struct store_rate *rate, uint64_t now_ns)
{
	uint64_t busy_ns = now_ns - rate->busy_since_ns;

	if (rate->busy_bytes >= BUSY_BYTES_MIN && busy_ns > 0) {
		/* Does not overflow: at most a few GiB are transferred in 10 ms, and here they are
		 * counted in KiB. */
		uint64_t now = (rate->busy_bytes >> 10) * SECOND_NS / busy_ns << 10;
		uint64_t before = rate->bytes_per_second;

		rate->bytes_per_second =
			before == 0 ? now : before - (before >> RATE_SHIFT) + (now >> RATE_SHIFT);
	}
	rate->busy_since_ns = now_ns;
	rate->busy_bytes = 0;
}

void store_rate_begin(struct store_rate *rate, uint64_t now_ns)
{
	if (rate->inflight++ == 0) {
		rate->busy_since_ns = now_ns;
		rate->busy_bytes = 0;
	}
}

void store_rate_end(struct store_rate *rate, uint64_t bytes, uint64_t now_ns)
{
	GMB_ASSERT(rate->inflight > 0);
	rate->busy_bytes += bytes;
	if (--rate->inflight == 0 || now_ns - rate->busy_since_ns >= BUSY_NS_MAX) {
		busy_end(rate, now_ns);
	}
}

static void queue_submit(struct store_queue *queue, struct store_part *part);

/* Asserts that the part is as store.h requires, and initializes its private members. */
static void part_begin(struct store_queue *queue, struct store_part *part)
{
	GMB_ASSERT(part->op < STORE_OP_COUNT);
	GMB_ASSERT(part->done != NULL);
	GMB_ASSERT((part->flags & ~PART_FLAGS_KNOWN) == 0);
	GMB_ASSERT((part->flags & STORE_QUIESCE) == 0 || part->op == STORE_FLUSH);
	GMB_ASSERT(part->offset <= INT64_MAX && part->length <= INT64_MAX - part->offset);
	GMB_ASSERT((part->length == 0) == (part->op == STORE_FLUSH));
	if (part->op == STORE_READ || part->op == STORE_WRITE) {
		GMB_ASSERT(part->length <= PART_BYTES_MAX);
	}
	if (part->op == STORE_COPY) {
		GMB_ASSERT(part->length <= STORE_COPY_BYTES_MAX);
		part->copy.source = store_copied(part->copy.source);
		GMB_ASSERT(part->copy.source->ops == store_copied(queue->store)->ops);
	}
	if (part->op == STORE_EXTENTS) {
		GMB_ASSERT(part->extents != NULL);
		GMB_ASSERT(part->extent_max > 0);
	}
	GMB_ASSERT(queue->submitting == NULL);
	part->io.in_flight = false;
	list_init(&part->node);
	part->top = queue;
	part->progress_bytes = 0;
	part->progress_broken = false;
	part->extent_count = 0;
	part->memory_error = 0;
}

/* --- parts of other rings ------------------------------------------------------------------ */

/*
 * The thread that pushes a part into an empty mailbox posts the mailbox's message. This part is in
 * flight until the message is delivered and the mailbox is emptied. So the queue, which contains
 * the mailbox, exists until then.
 */

static void mailbox_push(struct store_mailbox *mailbox, struct store_part *part, struct ring *ring,
	void (*deliver)(struct ring *ring, struct ring_message *message))
{
	struct list_node *before = atomic_load_explicit(&mailbox->parts, memory_order_relaxed);

	/* Release order: the thread that takes the part sees its contents. Acquire order: if the
	 * mailbox is empty, the thread that has emptied it no longer uses the mailbox's message. */
	do {
		part->node.next = before;
	} while (!atomic_compare_exchange_weak_explicit(
		&mailbox->parts, &before, &part->node, memory_order_acq_rel, memory_order_relaxed));
	if (before == NULL) {
		mailbox->message.deliver = deliver;
		ring_post(ring, &mailbox->message);
	}
}

/* Removes all parts from the mailbox, and returns them in the order of the pushes. The mailbox's
 * message must not be used after the exchange, because another thread may post it again. */
static struct list_node *mailbox_take(struct store_mailbox *mailbox)
{
	struct list_node *node =
		atomic_exchange_explicit(&mailbox->parts, NULL, memory_order_acq_rel);
	struct list_node *first = NULL;

	while (node != NULL) {
		struct list_node *next = node->next;

		node->next = first;
		first = node;
		node = next;
	}
	return first;
}

/* Removes and returns the first of the parts taken from a mailbox. */
static struct store_part *taken_pop(struct list_node **taken)
{
	struct store_part *part = list_entry(*taken, struct store_part, node);

	*taken = part->node.next;
	list_init(&part->node);
	return part;
}

static void deliver_to_owner(struct ring *ring, struct ring_message *message)
{
	struct store_queue *queue = container_of(message, struct store_queue, to_owner.message);
	struct store_queue *owner = &queue->store->owner;
	struct list_node *taken = mailbox_take(&queue->to_owner);

	GMB_ASSERT(ring == owner->ring);
	while (taken != NULL) {
		queue_submit(owner, taken_pop(&taken));
	}
}

static void send_to_owner(struct store_queue *queue, struct store_part *part)
{
	part->memory = mem_limit(part->memory, ~(uint32_t)MEM_FIXED);
	mailbox_push(&queue->to_owner, part, queue->store->owner.ring, deliver_to_owner);
}

static void deliver_from_owner(struct ring *ring, struct ring_message *message)
{
	struct store_queue *queue = container_of(message, struct store_queue, from_owner.message);
	struct list_node *taken = mailbox_take(&queue->from_owner);

	/* The loop must not access the queue: once the last part is finished, its submitter may
	 * destroy the queue. */
	while (taken != NULL) {
		struct store_part *part = taken_pop(&taken);

		store_finish(part, part->result);
	}
}

/* Returns a finished part to the queue through which it was sent to the owner. */
static void send_from_owner(struct store_part *part, int result)
{
	const struct store *store = part->queue->store;
	struct store_queue *queue = part->top;

	while (queue->store != store) {
		queue = queue->inner;
	}
	part->queue = queue;
	part->result = result;
	mailbox_push(&queue->from_owner, part, queue->ring, deliver_from_owner);
}

/* --- parts --------------------------------------------------------------------------------- */

/* Returns whether the part's success promises that data will survive a crash. */
static bool promises(const struct store_part *part)
{
	return part->op == STORE_FLUSH ||
	       ((part->flags & STORE_FUA) != 0 && (BIT(part->op) & STORE_CHANGES) != 0);
}

bool store_result_breaks(const struct store_part *part, int result)
{
	if (result == 0 || !promises(part)) {
		return false;
	}
	if (part->memory_error == -EFAULT && mem_may(part->memory, MEM_CPU_READ)) {
		return false; /* the memory is gone, not data on the disk */
	}
	return part->op == STORE_FLUSH
		       ? (part->flags & STORE_NOTHING_LOST) == 0
		       : (result != -ENOSPC && result != -EDQUOT && result != -EFBIG &&
				 result != -EPERM && result != -EOPNOTSUPP);
}

/* Returns the result of a part that promises durability: an error if an earlier part with this
 * promise has failed in the same store. */
static int dispatch_judge(struct store *store, const struct store_part *part, int result)
{
	int broken = 0;

	if (!promises(part)) {
		return result;
	}
	if (store_result_breaks(part, result)) {
		/* The release order pairs with the acquire loads here and in dispatch_refuse(). */
		atomic_compare_exchange_strong_explicit(&store->broken, &broken, result,
			memory_order_release, memory_order_relaxed);
		return result;
	}
	broken = atomic_load_explicit(&store->broken, memory_order_acquire);
	return result ?: broken;
}

static void queue_submit(struct store_queue *queue, struct store_part *part)
{
	const struct ring *owner = queue->store->owner.ring;

	part->queue = queue;
	queue->inflight_count++;
	if (unlikely(owner != NULL && owner != queue->ring)) {
		send_to_owner(queue, part);
		return;
	}
	queue->submitting = part;
	queue->store->ops->submit(queue, part);
	queue->submitting = NULL;
}

/* Returns the error of a part that must fail without being tried, or 0. */
static int dispatch_refuse(struct store *store, const struct store_part *part)
{
	if ((BIT(part->op) & STORE_CHANGES) != 0 && (store->info.caps & STORE_CAP_WRITE) == 0) {
		return -EPERM;
	}
	return promises(part) ? atomic_load_explicit(&store->broken, memory_order_acquire) : 0;
}

/* Splits this turn's STORE_APART parts over several kernel calls, so that they complete
 * separately. */
static void keep_apart(struct store_queue *queue)
{
	uint64_t turn_ns = ring_batch_ns(queue->ring);

	if (turn_ns != queue->apart_turn_ns) {
		queue->apart_turn_ns = turn_ns;
		queue->apart_count = 0;
	}
	if (++queue->apart_count % PARTS_PER_CALL == 0) {
		ring_flush(queue->ring);
	}
}

void store_submit(struct store_queue *queue, struct store_part *part)
{
	int error;

	part_begin(queue, part);
	if (part->op == STORE_READ || part->op == STORE_WRITE) {
		/* The store only reads the memory of a write, so MEM_CPU_WRITE is not required. */
		uint32_t rights =
			part->memory.rights | (part->op == STORE_WRITE ? MEM_CPU_WRITE : 0);

		GMB_ASSERT((queue->store->info.memory_rights & ~rights) == 0);
	}
	if ((part->flags & STORE_MEASURED) != 0) {
		store_rate_begin(store_rate(queue, part->op), ring_batch_ns(queue->ring));
	}
	error = part->op == STORE_READ ? 0 : dispatch_refuse(queue->store, part);
	if (error != 0) {
		part->queue = queue;
		queue->inflight_count++;
		store_finish_later(part, error);
		return;
	}
	queue_submit(queue, part);
	if ((part->flags & STORE_APART) != 0) {
		keep_apart(queue);
	}
}

bool store_page_cache_ref(struct store_queue *queue, struct store_part *part)
{
	if (queue->store->ops->page_cache_ref == NULL || queue->store->page_cache_send_off ||
		part->length < STORE_PAGE_CACHE_BYTES_MIN) {
		return false;
	}
	part_begin(queue, part);
	GMB_ASSERT(part->op == STORE_READ && (part->flags & STORE_MEASURED) == 0);
	part->queue = queue;
	part->memory = MEM_NONE;
	if (!queue->store->ops->page_cache_ref(queue, part)) {
		return false;
	}
	GMB_ASSERT(part->memory.rights != 0);
	GMB_ASSERT(!mem_may(part->memory, MEM_CPU_READ));
	queue->inflight_count++;
	store_finish_later(part, 0);
	return true;
}

const char *store_page_cache_refusal(struct store *store)
{
	if (store->page_cache_send_off) {
		return "page-cache-send=off";
	}
	if (store->ops->page_cache_refusal != NULL) {
		return store->ops->page_cache_refusal(store);
	}
	return store->ops->page_cache_ref == NULL ? store->ops->name : NULL;
}

void store_forward(struct store_part *part)
{
	store_forward_to(part->queue->inner, part);
}

void store_forward_to(struct store_queue *lower, struct store_part *part)
{
	GMB_ASSERT(lower->outer == part->queue);
	queue_submit(lower, part);
}

/* Passes a finished part one step back: from the owner's queue to the queue that sent it, from an
 * inner queue to the filter around it, or from the top queue to the submitter. */
void store_finish(struct store_part *part, int result)
{
	struct store_queue *queue = part->queue;

	GMB_ASSERT(result <= 0);
	GMB_ASSERT(!part->io.in_flight);
	GMB_ASSERT(queue->submitting != part);
	GMB_ASSERT(queue->inflight_count > 0);
	queue->inflight_count--;
	if (unlikely(queue == &queue->store->owner)) {
		send_from_owner(part, result);
		return;
	}
	if (queue != part->top) {
		part->queue = queue->outer;
		if (part->queue->store->ops->inner_done != NULL) {
			part->queue->store->ops->inner_done(part, result);
		} else {
			store_finish(part, result);
		}
		return;
	}
	if (part->op == STORE_EXTENTS && result == 0) {
		GMB_ASSERT(part->extent_count > 0);
		GMB_ASSERT(part->extent_count <= part->extent_max);
	}
	if ((part->flags & STORE_MEASURED) != 0) {
		store_rate_end(
			store_rate(queue, part->op), part->length, ring_batch_ns(queue->ring));
	}
	part->queue = NULL;
	if (part->progress_broken && result == 0) {
		result = -EIO;
	}
	part->done(
		part, part->op == STORE_READ ? result : dispatch_judge(queue->store, part, result));
}

void store_progress(struct store_part *part, uint64_t bytes)
{
	GMB_ASSERT(part->queue->submitting != part);
	if (part->op != STORE_READ || bytes <= part->progress_bytes || bytes >= part->length) {
		part->progress_broken = true;
		return;
	}
	if (part->progress_broken) {
		return;
	}
	part->progress_bytes = bytes;
	if (part->progressed != NULL && part->queue != &part->queue->store->owner) {
		part->progressed(part, bytes);
	}
}

bool store_extent_add(struct store_part *part, uint64_t length, uint32_t flags)
{
	if (part->extent_count > 0 && part->extents[part->extent_count - 1].flags == flags) {
		part->extents[part->extent_count - 1].length += length;
	} else if (part->extent_count == part->extent_max) {
		return false;
	} else {
		part->extents[part->extent_count++] = (struct store_extent){ length, flags };
	}
	return true;
}

static void finish_later_done(struct ring_op *op, int result)
{
	store_finish(container_of(op, struct store_part, io), result);
}

void store_finish_later(struct store_part *part, int result)
{
	ring_defer(part->queue->ring, &part->io, result, finish_later_done);
}
