// SPDX-License-Identifier: Apache-2.0
/*
 * The pace filter: limits the store below to the speed of a disk, or of a stripe of several. First,
 * the store processes a part without delay. Then the filter holds the part back for as long as the
 * simulated disk would need, and reports the progress of a read during that time.
 *
 *   store   |chunk 0|chunk 1|chunk 2|chunk 3| ...     chunk c is on member c % members
 *   member 0  [latency|bytes of part A][latency|bytes of part C]
 *   member 1           [latency|bytes of part A][latency|bytes of part B]
 *                                 part A is done ──┘
 *
 * A member handles one part at a time, in order of arrival. A part is complete when its last member
 * has finished it. The duration of a part is known when it arrives, so the only state of a member
 * is the time at which it becomes free. All reactors share these times, and reserve a member with
 * one atomic operation. Times are never computed from the moment at which a timer fired, so that a
 * late timer does not delay later parts.
 *
 * A queue has a fixed number of slots for parts; further parts wait, as for a disk whose queue is
 * full. Each queue has one timer, set for the earliest event of any slot. The timer is in flight
 * only while parts are.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "store/kind.h"
#include "store/parse.h"

enum {
	SLOT_COUNT = 1024, /* maximum number of parts in progress in a queue */
	/* Interval of progress reports in bytes. Larger if these bytes would take less than
	 * STEP_NS_MIN, because each report needs a timer. */
	STEP_BYTES_MIN = 16 << 10,
	STEP_BYTES_MAX = 1 << 30,
	STEP_NS_MIN = 50000,
	CHUNK_DEFAULT = 64 << 10,
	CHUNK_STEP = 4096,
	CHUNK_MAX = 1 << 30,
};

#define SECOND_NS UINT64_C(1000000000)
#define RATE_MIN  (UINT64_C(1) << 10)
#define RATE_MAX  (UINT64_C(1) << 40)

struct pace_store {
	struct store base;
	struct store_pace pace;
	uint64_t step_bytes;
	/* by member: time at which the member becomes free */
	_Atomic uint64_t free_ns[STORE_PACE_MEMBERS_MAX];
	/* by member: position of the head, which is behind the last byte of the member's last
	 * part */
	_Atomic uint64_t head[STORE_PACE_MEMBERS_MAX];
};

struct slot {
	struct list_node node; /* in queue->busy, sorted by next_ns, or in queue->slots_free */
	struct store_part *part;
	uint64_t next_ns;  /* next event: a progress report, or the end */
	uint64_t end_ns;   /* time at which all bytes have arrived */
	uint64_t reported; /* number of bytes whose progress was reported */
	/* by member: time at which the member's first byte of this part arrives */
	uint64_t *data_ns;
};

struct pace_queue {
	struct store_queue base;
	struct slot *slots;
	uint64_t *times; /* memory of the slots' data_ns */
	struct list_node slots_free;
	struct list_node busy;	  /* slots, earliest event first */
	struct list_node waiting; /* parts without a slot */
	struct ring_op timer;
	/* time at which the timer fires; 0: it was cancelled and is about to complete */
	uint64_t timer_ns;
};

#define PACE_END UINT64_MAX

/* The filter's private data in a part. */
struct pace_scratch {
	store_progress_fn *progressed; /* the submitter's function, called only by this filter */
	uint64_t arrived_ns;
	uint64_t reported; /* number of bytes to report, or PACE_END */
};

/* --- options ------------------------------------------------------------------------------- */

static const struct field pace_settings[] = {
	{ "rate", "RATE", .type = FIELD_BYTES, .flags = FIELD_PLACE, .min = RATE_MIN,
		.max = RATE_MAX, FIELD_IN(struct store_pace, rate) },
	{ "latency", "TIME", .type = FIELD_TIME, .max = STORE_TIME_NS_MAX,
		FIELD_IN(struct store_pace, latency_ns) },
	{ "seek", "TIME", .type = FIELD_TIME, .max = STORE_TIME_NS_MAX,
		FIELD_IN(struct store_pace, seek_ns) },
	{ "members", "N", .type = FIELD_COUNT, .min = 1, .max = STORE_PACE_MEMBERS_MAX,
		FIELD_IN(struct store_pace, members) },
	{ "chunk", "SIZE", .type = FIELD_BYTES, .min = CHUNK_STEP, .max = CHUNK_MAX,
		FIELD_IN(struct store_pace, chunk) },
};

int store_pace_parse(const char *text, struct store_pace *pace, struct error *error)
{
	struct store_pace parsed = { .members = 1 };
	int result =
		field_set_parts(pace_settings, ARRAY_COUNT(pace_settings), &parsed, text, error);

	if (result < 0) {
		return result;
	}
	if (parsed.chunk % CHUNK_STEP != 0) {
		return error_set(error, -EINVAL, "chunk: the value must be a multiple of 4K");
	}
	if (parsed.members == 1 && parsed.chunk != 0) {
		return error_set(
			error, -EINVAL, "chunk= has an effect only with members=2 or more");
	}
	if (parsed.members > 1 && parsed.chunk == 0) {
		parsed.chunk = CHUNK_DEFAULT;
	}
	*pace = parsed;
	return 0;
}

static int set_pace(void *config, const char *value, struct error *error)
{
	return store_pace_parse(value, config, error);
}

static const struct field pace_options[] = {
	{ "pace", "RATE[:latency=TIME][:seek=TIME][:members=N][:chunk=SIZE]",
		"slow the export down to the speed of a disk of RATE bytes per second that seeks "
		"for TIME on average, or of a stripe of N such disks with chunks of SIZE",
		"100M", .set = set_pace, FIELD_AT(struct store_pace, rate, members) },
};

static struct pace_store *store_of(const struct pace_queue *queue)
{
	return container_of(queue->base.store, struct pace_store, base);
}

/* --- computing times ------------------------------------------------------------------------- */

static uint64_t bytes_ns(const struct pace_store *store, uint64_t bytes)
{
	/* Does not overflow, because a part has at most 1 GiB. */
	return (bytes * SECOND_NS + store->pace.rate - 1) / store->pace.rate;
}

/* Returns how many of the first bytes of the store are on the member. */
static uint64_t bytes_before(const struct store_pace *pace, uint64_t bytes, uint32_t member)
{
	uint64_t row_bytes = (uint64_t)pace->chunk * pace->members;
	uint64_t begin = (uint64_t)pace->chunk * member;
	uint64_t rest = bytes % row_bytes;
	uint64_t in_row = rest > begin ? MIN(rest - begin, (uint64_t)pace->chunk) : 0;

	return bytes / row_bytes * pace->chunk + in_row;
}

/* Returns how many of the first bytes of the part are on the member. */
static uint64_t bytes_on(const struct store_pace *pace, const struct store_part *part,
	uint64_t bytes, uint32_t member)
{
	if (pace->members == 1) {
		return bytes;
	}
	return bytes_before(pace, part->offset + bytes, member) -
	       bytes_before(pace, part->offset, member);
}

/* Returns the time at which the first bytes of the part have arrived from all members. */
static uint64_t came_ns(const struct pace_store *store, const struct slot *slot, uint64_t bytes)
{
	uint64_t latest = 0;

	for (uint32_t i = 0; i < store->pace.members; i++) {
		uint64_t share = bytes_on(&store->pace, slot->part, bytes, i);

		if (share > 0) {
			latest = MAX(latest, slot->data_ns[i] + bytes_ns(store, share));
		}
	}
	return latest;
}

/* Reserves the member for this duration, and returns the time at which the reservation begins. */
static uint64_t reserve(
	struct pace_store *store, uint32_t member, uint64_t arrived_ns, uint64_t duration_ns)
{
	_Atomic uint64_t *free_ns = &store->free_ns[member];
	/* Relaxed order: threads exchange only this time. */
	uint64_t seen = atomic_load_explicit(free_ns, memory_order_relaxed);
	uint64_t start;

	do {
		start = MAX(seen, arrived_ns);
	} while (!atomic_compare_exchange_weak_explicit(
		free_ns, &seen, start + duration_ns, memory_order_relaxed, memory_order_relaxed));
	return start;
}

/* --- slots --------------------------------------------------------------------------------- */

/* Inserts a slot whose part is in progress. Slots are sorted by time. The search begins at the
 * front: most other slots are due later, because their parts still wait for busy member disks. */
static void slot_insert(struct pace_queue *queue, struct slot *slot)
{
	struct list_node *position = queue->busy.next;

	while (position != &queue->busy &&
		list_entry(position, struct slot, node)->next_ns <= slot->next_ns) {
		position = position->next;
	}
	list_insert_before(position, &slot->node);
}

/* Inserts a new slot. Slots are sorted by time. The search begins at the back, because a new slot
 * is usually the last one that is due. */
static void slot_append(struct pace_queue *queue, struct slot *slot)
{
	struct list_node *position = &queue->busy;

	while (position->prev != &queue->busy &&
		list_entry(position->prev, struct slot, node)->next_ns > slot->next_ns) {
		position = position->prev;
	}
	list_insert_before(position, &slot->node);
}

/* Returns the number of bytes at which to report progress next. */
static uint64_t next_step(
	const struct pace_store *store, const struct store_part *part, uint64_t reported)
{
	uint64_t step = reported == 0 && part->progress_first > 0 ? part->progress_first
								  : part->progress_step;

	return reported + MAX(store->step_bytes, step);
}

static void set_next(const struct pace_store *store, struct slot *slot)
{
	const struct store_part *part = slot->part;
	uint64_t bytes = next_step(store, part, slot->reported);
	bool reports = part->op == STORE_READ && part->progressed != NULL && bytes < part->length;

	slot->next_ns = reports ? came_ns(store, slot, bytes) : slot->end_ns;
}

/* Moves the head of the member to the part. Returns how long this takes: 0 if the part begins where
 * the member's last one ended, otherwise a random time of 0.5 to 1.5 times the seek time. */
static uint64_t seek(
	struct pace_queue *queue, const struct store_part *part, uint32_t member, uint64_t share)
{
	struct pace_store *store = store_of(queue);
	const struct store_pace *pace = &store->pace;
	uint64_t begin =
		pace->members == 1 ? part->offset : bytes_before(pace, part->offset, member);
	/* Relaxed order: threads exchange only this position. */
	uint64_t head =
		atomic_exchange_explicit(&store->head[member], begin + share, memory_order_relaxed);

	if (pace->seek_ns == 0 || head == begin) {
		return 0;
	}
	return pace->seek_ns / 2 + ring_random(queue->base.ring) % pace->seek_ns;
}

/* Reserves the members for a part. The time is counted from the arrival of the part, so that it
 * includes the time that the store below has needed. A slot must be free. */
static void pace_admit(struct pace_queue *queue, struct store_part *part)
{
	struct pace_store *store = store_of(queue);
	uint64_t arrived_ns = ((struct pace_scratch *)store_scratch(part))->arrived_ns;
	struct slot *slot = list_entry(list_pop_front(&queue->slots_free), struct slot, node);

	slot->part = part;
	slot->reported = 0;
	for (uint32_t i = 0; i < store->pace.members; i++) {
		uint64_t share = bytes_on(&store->pace, part, part->length, i);

		if (share > 0) {
			uint64_t before_ns = store->pace.latency_ns + seek(queue, part, i, share);

			slot->data_ns[i] = before_ns + reserve(store, i, arrived_ns,
							       before_ns + bytes_ns(store, share));
		}
	}
	slot->end_ns = came_ns(store, slot, part->length);
	set_next(store, slot);
	slot_append(queue, slot);
}

/* --- the timer ------------------------------------------------------------------------------- */

static void pace_timer_done(struct ring_op *op, int result);

/* Sets the timer for the earliest event, if necessary. */
static void pace_arm(struct pace_queue *queue)
{
	struct ring *ring = queue->base.ring;
	struct list_node *first = list_first(&queue->busy);
	uint64_t next_ns;
	uint64_t now_ns;

	if (first == NULL) {
		return;
	}
	next_ns = list_entry(first, struct slot, node)->next_ns;
	if (queue->timer.in_flight) {
		if (next_ns < queue->timer_ns) {
			queue->timer_ns = 0;
			/* the timer is set again when its cancellation completes */
			ring_cancel(ring, &queue->timer);
		}
		return;
	}
	now_ns = ring_now_ns(ring);
	queue->timer_ns = next_ns;
	ring_timer(ring, &queue->timer, next_ns > now_ns ? next_ns - now_ns : 0, pace_timer_done);
}

/* Handles a slot whose next event is due: adds its part to the list `due`, and stores the event in
 * the part's scratch. */
static void slot_due(
	struct pace_queue *queue, struct slot *slot, uint64_t now_ns, struct list_node *due)
{
	const struct pace_store *store = store_of(queue);
	struct store_part *part = slot->part;
	struct pace_scratch *scratch = store_scratch(part);
	uint64_t next;

	list_remove(&slot->node);
	list_push_back(due, &part->node);
	if (slot->end_ns <= now_ns) {
		scratch->reported = PACE_END;
		list_push_front(&queue->slots_free, &slot->node);
		return;
	}
	while ((next = next_step(store, part, slot->reported)) < part->length &&
		came_ns(store, slot, next) <= now_ns) {
		slot->reported = next;
	}
	scratch->reported = slot->reported;
	set_next(store, slot);
	slot_insert(queue, slot);
}

static void pace_timer_done(struct ring_op *op, int result)
{
	struct pace_queue *queue = container_of(op, struct pace_queue, timer);
	uint64_t now_ns = ring_now_ns(queue->base.ring);
	struct list_node due;
	struct list_node *node;

	GMB_UNUSED(result); /* -ECANCELED: cancelled because of a new, earlier event */
	list_init(&due);
	while ((node = list_first(&queue->busy)) != NULL) {
		struct slot *slot = list_entry(node, struct slot, node);

		if (slot->next_ns > now_ns) {
			break;
		}
		slot_due(queue, slot, now_ns, &due);
	}
	while (!list_is_empty(&queue->waiting) && !list_is_empty(&queue->slots_free)) {
		pace_admit(queue,
			list_entry(list_pop_front(&queue->waiting), struct store_part, node));
	}
	pace_arm(queue);
	/* The queue must not be used from here on: the submitter of the last part may destroy
	 * it. */
	while ((node = list_pop_front(&due)) != NULL) {
		struct store_part *part = list_entry(node, struct store_part, node);
		const struct pace_scratch *scratch = store_scratch(part);

		if (scratch->reported == PACE_END) {
			store_finish(part, 0);
		} else {
			store_progress(part, scratch->reported);
		}
	}
}

/* --- parts --------------------------------------------------------------------------------- */

static bool is_paced(const struct store_part *part)
{
	return part->op == STORE_READ || part->op == STORE_WRITE;
}

/* Called when the store below has finished the part. Holds back a successful read or write; all
 * other parts are finished immediately. */
static void worked_done(struct store_part *part, int result)
{
	struct pace_queue *queue = container_of(part->queue, struct pace_queue, base);

	if (!is_paced(part)) {
		store_finish(part, result);
		return;
	}
	/* Does not pass on progress of the store below, because in simulated time the bytes have
	 * not arrived yet. */
	part->progressed = ((struct pace_scratch *)store_scratch(part))->progressed;
	part->progress_bytes = 0;
	if (result < 0) {
		store_finish(part, result);
		return;
	}
	if (list_is_empty(&queue->slots_free)) {
		list_push_back(&queue->waiting, &part->node);
		return;
	}
	pace_admit(queue, part);
	pace_arm(queue);
}

static void pace_submit(struct store_queue *queue, struct store_part *part)
{
	struct pace_scratch *scratch = store_scratch(part);

	if (is_paced(part)) {
		scratch->progressed = part->progressed;
		scratch->arrived_ns = ring_now_ns(queue->ring);
		part->progressed = NULL;
	}
	store_forward(part);
}

/* --- opening ------------------------------------------------------------------------------- */

static int pace_queue_init(struct store_queue *base, struct error *error)
{
	struct pace_store *store = container_of(base->store, struct pace_store, base);
	struct pace_queue *queue = container_of(base, struct pace_queue, base);

	queue->slots = calloc(SLOT_COUNT, sizeof(*queue->slots));
	queue->times = calloc((size_t)SLOT_COUNT * store->pace.members, sizeof(*queue->times));
	if (queue->slots == NULL || queue->times == NULL) {
		free(queue->slots);
		free(queue->times);
		return error_oom_for(error, "a queue");
	}
	list_init(&queue->slots_free);
	list_init(&queue->busy);
	list_init(&queue->waiting);
	for (uint32_t i = 0; i < SLOT_COUNT; i++) {
		queue->slots[i].data_ns = queue->times + (size_t)i * store->pace.members;
		list_push_back(&queue->slots_free, &queue->slots[i].node);
	}
	return 0;
}

static void pace_queue_fini(struct store_queue *base)
{
	struct pace_queue *queue = container_of(base, struct pace_queue, base);

	GMB_ASSERT(!queue->timer.in_flight);
	GMB_ASSERT(list_is_empty(&queue->busy) && list_is_empty(&queue->waiting));
	free(queue->slots);
	free(queue->times);
}

static int pace_open(struct store *base, const struct store_options *options, const void *config,
	struct error *error)
{
	struct pace_store *store = container_of(base, struct pace_store, base);

	memcpy(&store->pace, config, sizeof(store->pace));
	base->info.has_progress = true;
	base->info.read_seeks = base->info.write_seeks = store->pace.seek_ns > 0;
	if (store->pace.members > 1) {
		base->info.stripe_chunk = store->pace.chunk;
		base->info.stripe_members = store->pace.members;
	}
	store->step_bytes = STEP_BYTES_MIN;
	while (store->step_bytes < STEP_BYTES_MAX &&
		bytes_ns(store, store->step_bytes) < STEP_NS_MIN) {
		store->step_bytes *= 2;
	}
	return 0;
}

static const struct store_ops pace_ops = {
	.name = "pace",
	.queue_bytes = sizeof(struct pace_queue),
	.scratch_bytes = sizeof(struct pace_scratch),
	.queue_init = pace_queue_init,
	.queue_fini = pace_queue_fini,
	.submit = pace_submit,
	.inner_done = worked_done,
	.handover = store_handover_nothing,
};

const struct store_kind pace_store_kind = {
	.name = "pace",
	.is_filter = true,
	.options = pace_options,
	.option_count = ARRAY_COUNT(pace_options),
	.config_bytes = sizeof(struct store_pace),
	.store_bytes = sizeof(struct pace_store),
	.ops = &pace_ops,
	.open = pace_open,
};
