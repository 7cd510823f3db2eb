// SPDX-License-Identifier: Apache-2.0
/*
 * The sched filter: orders the requests of several clients on a disk that seeks. Several sequential
 * streams that take turns at every request make a disk seek at every request, and no layer below
 * can repair this, because the disk sees a single process. So one stream has the disk for some
 * time, a run, while all other reads and writes wait:
 *
 *   parts ──▶ sequential? ──▶ streams  ──▶ run of one stream ──▶ turn of the others ──▶ run of the
 *                        └──▶ others                                                   next stream
 *
 * A stream is a sequence of reads, or of writes, of one requester that is longer than a request.
 * Its run ends after run_ns() if another stream waits, or when the stream has been idle for a while
 * (idle_end_ns()): a client with one request in flight needs some time until it sends the next one,
 * and as long as this takes less time than seeking to another stream and back, waiting is cheaper.
 * Next is the waiting stream that has not had the disk for the longest time. The other parts, which
 * belong to no stream, get a turn when one part has waited OTHERS_BETWEEN_NS, if a run has just
 * ended, or OTHERS_WAIT_NS. The owner of the disk changes when all parts of the previous owner are
 * done. If no stream exists, no part waits.
 *
 * Many disks are reported as rotational although they do not seek, for example the disks of virtual
 * machines. So the seek time is measured, as the difference between parts that seek and parts that
 * do not. As long as it is short, no part waits.
 *
 * If the disk is stuck, which means that no part has been done for STUCK_NS, no part waits until
 * the parts that were at the disk then are done. A stuck disk can still execute others: a mirror
 * has more members, and a path to it can fail alone.
 *
 * Flushes, durable writes (FUA) and all operations but reads and writes are passed on immediately.
 *
 * Threading: the queues of all rings share the state, under a lock; a disk that seeks has a few
 * hundred requests a second. A part stays on its ring. If another ring decides that the part can
 * continue, it sends a message to the part's queue. The message is in flight only while parts of
 * that queue are. Progress reports arrive as without this filter.
 *
 * Decisions are made when a part arrives or is done, and when a run has been idle for too long or
 * the disk is stuck. The timer for the last two cases needs a ring operation. It uses the operation
 * of a waiting part, called the watch, which is not forwarded before the timer has ended.
 */

#include "store/kind.h"

enum {
	STREAMS_MAX = 256,     /* includes sequences that are too short to be a stream */
	STREAM_PARTS_MIN = 3,  /* consecutive parts that make a stream, if they are long enough */
	STREAM_PAUSES_MIN = 3, /* pauses after which these parts are several requests */
	GAP_SHIFT = 2,	       /* weight of a new value in the average gap: one quarter */
	/* divisor for the weight of a new value in the average time of parts that seek,
	 * and of a larger value in the least time of other parts */
	SEEK_WEIGHT = 8,
	LEAST_WEIGHT = 32,
	/* maximum number of parts without a stream that get the disk in one turn while streams
	 * wait */
	OTHERS_TURN_MAX = 16,
};
/* A part continues a stream if it begins at most this far from the stream's end: requests of a
 * client with several requests in flight can arrive in another order. */
#define NEAR_BYTES (UINT64_C(1) << 20)
/* Minimum number of consecutive bytes that make a stream: in any case, because a single request can
 * have several parts, and if they arrived as several requests. */
#define STREAM_BYTES_MIN      (UINT64_C(1) << 20)
#define STREAM_BYTES_SOME_MIN (UINT64_C(256) << 10)
/* A part that arrives so long after the one before it belongs to another request. */
#define REQUEST_NS UINT64_C(1000000)
/* A sequence of parts that is long enough to be a stream stays in the table this much longer than a
 * short one. */
#define STREAM_KEPT_NS UINT64_C(10000000000)
/* A run lasts RUN_NS, or less if this is needed for all waiting streams to have the disk once in
 * ROUND_NS, but at least RUN_SEEKS_MIN seeks: seeks then take at most a fifth of the time. */
#define RUN_NS	      UINT64_C(100000000)
#define ROUND_NS      UINT64_C(1000000000)
#define RUN_SEEKS_MIN 4
/* Time after which waiting parts that belong to no stream get the disk: in a run, and between two
 * runs. Without the latter, a disk whose runs are short would have a turn for them at each run. */
#define OTHERS_WAIT_NS	  UINT64_C(35000000)
#define OTHERS_BETWEEN_NS UINT64_C(25000000)
/* While other parts wait, the stream that has the disk gets no further part once this many bytes of
 * it are in flight, so that its run ends soon. */
#define RUN_BYTES_MAX (UINT64_C(1) << 20)
/* Parts wait only if the average seek takes at least this time. */
#define SEEK_NS_MIN UINT64_C(2000000)
#define PART_NS_MAX UINT64_C(50000000)
/* Assumed transfer time of a byte. The seek time is a difference, in which an error of this value
 * disappears as soon as a part of a run has been measured. */
#define BYTE_NS UINT64_C(4)
/* The disk is kept free for the next part of a run for twice the client's usual pause, within these
 * limits and the seek time. */
#define IDLE_NS_MIN  UINT64_C(2000000)
#define IDLE_NS_MAX  UINT64_C(8000000)
#define STUCK_NS     UINT64_C(1000000000)
#define GAP_NS_FIRST (IDLE_NS_MIN / 2)
#define GAP_NS_MAX   (2 * IDLE_NS_MAX)

enum sched_owner { OWNER_NOBODY, OWNER_RUN, OWNER_OTHERS };

struct stream {
	/* in the store's list: the stream that had the disk last is at the end */
	struct list_node node;
	uint64_t requester;
	enum store_op op;
	uint64_t next_offset;
	uint32_t part_count;	  /* 0: the entry is free */
	bool is_moved;		  /* the sequence was a stream before it continued elsewhere */
	uint32_t pause_count;	  /* pauses of the client in the sequence; not counted further */
	uint64_t row_bytes;	  /* length of the sequence */
	uint64_t row_start_ns;	  /* arrival of its first part */
	struct list_node waiting; /* parts */
	uint64_t inflight_bytes;  /* bytes of the stream's parts at the disk */
	uint64_t arrived_ns;	  /* arrival of the last part */
	uint64_t idle_since_ns;	  /* time at which the stream's last part was done */
	/* average time between the end of the last part and the arrival of the next one */
	uint64_t gap_ns;
};

struct sched_queue {
	struct store_queue base;
	/* Protected by the store's lock. */
	struct list_node granted; /* parts that this queue has to forward, in this order */
	/* granted part whose ring operation is still a timer; the parts behind it in granted wait
	 * until it has ended. NULL: none */
	struct store_part *ending;
	struct ring_message message;
	bool is_posted;
	uint64_t runs;	/* counter */
	uint64_t waits; /* counter */
};

struct sched_store {
	struct store base;
	bool read_seeks; /* value of the same member in the layer below */
	bool write_seeks;
	pthread_mutex_t lock; /* protects all members below */
	struct stream streams[STREAMS_MAX];
	struct list_node order;	  /* streams, see struct stream */
	struct list_node others;  /* waiting parts of no stream */
	uint32_t streams_waiting; /* number of streams with waiting parts */
	enum sched_owner owner;	  /* owner of the parts at the disk */
	uint32_t inflight;	  /* number of parts at the disk */
	struct stream *run;	  /* NULL: none */
	uint64_t run_start_ns;
	uint64_t others_end_ns; /* end of the last turn of the parts that belong to no stream */
	uint64_t head;		/* offset at which the part granted last ends */
	uint64_t done_ns;	/* time at which the last part was done */
	/* average time of parts that do not begin where the part before them ended, and least time
	 * of parts of a run that do, both without BYTE_NS for each byte */
	int64_t seek_part_ns;
	int64_t next_part_ns;
	bool next_part_is_known;
	/* time at which the last part was done, or at which an idle disk got a part */
	uint64_t progress_ns;
	uint32_t stuck_count; /* parts at the disk since it was found stuck; 0: it is not stuck */
	uint32_t stuck_turn;  /* number of times that the disk was found stuck */
	struct store_part *watch; /* waiting part whose ring operation is the timer; NULL: none */
	uint64_t watch_end_ns;	  /* time at which the timer must end */
	bool watch_is_late;	  /* the timer was set to a later time, and must be set again */
};

enum part_state { PART_PASSED, PART_WAITING, PART_GRANTED };

/* The filter's private data in a part. */
struct sched_scratch {
	/* time at which the part arrived; later, time at which it was granted */
	uint64_t arrived_ns;
	/* index of the part's stream + 1; 0: the part belongs to no stream */
	uint16_t stream_count;
	uint8_t state;	     /* enum part_state */
	bool seeks;	     /* the part does not begin where the one before it ended */
	uint32_t stuck_turn; /* the store's stuck_turn when the part was granted */
};

/* A decision made under the lock, and the work that follows after the lock has been released. */
struct sched_work {
	uint64_t now_ns; /* read under the lock, so that times of several rings are in order */
	struct sched_queue *queue; /* the queue of the ring on which this work runs */
	struct list_node forward;  /* parts of this queue that can be forwarded */
	struct store_part *ending; /* part of this ring whose timer must be cancelled, or NULL */
	struct store_part *watch;  /* part of this ring whose timer must be set, or NULL */
	uint64_t watch_ns;
};

static struct sched_store *sched_of(struct store *store)
{
	return container_of(store, struct sched_store, base);
}

/* Returns the average seek time. The latency of a disk that works on many parts at the same time is
 * no seek: parts have it wherever they begin. */
static uint64_t seek_ns(const struct sched_store *store)
{
	int64_t ns = store->seek_part_ns - store->next_part_ns;

	return ns > 0 ? (uint64_t)ns : 0;
}

static struct stream *stream_of(struct sched_store *store, struct store_part *part)
{
	const struct sched_scratch *scratch = store_scratch(part);

	return scratch->stream_count > 0 ? &store->streams[scratch->stream_count - 1] : NULL;
}

static struct sched_queue *queue_of(const struct store_part *part)
{
	return container_of(part->queue, struct sched_queue, base);
}

/* --- streams --------------------------------------------------------------------------------- */

static bool is_near(uint64_t a, uint64_t b)
{
	return (a > b ? a - b : b - a) <= NEAR_BYTES;
}

static bool is_quiet(const struct stream *stream)
{
	return stream->inflight_bytes == 0 && list_is_empty(&stream->waiting);
}

/* Returns the stream that the part continues, or NULL. */
static struct stream *stream_find(struct sched_store *store, const struct store_part *part)
{
	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		struct stream *stream = &store->streams[i];

		if (stream->part_count > 0 && stream->op == part->op &&
			stream->requester == part->requester &&
			is_near(stream->next_offset, part->offset)) {
			return stream;
		}
	}
	return NULL;
}

static bool is_long(const struct stream *stream)
{
	uint64_t bytes_min =
		stream->pause_count >= STREAM_PAUSES_MIN ? STREAM_BYTES_SOME_MIN : STREAM_BYTES_MIN;

	return stream->is_moved ||
	       (stream->part_count == STREAM_PARTS_MIN && stream->row_bytes >= bytes_min);
}

/* Streams stay in the table longer than short sequences. Otherwise, the many random parts would
 * replace them. */
static uint64_t kept_until_ns(const struct stream *stream)
{
	return stream->arrived_ns + (is_long(stream) ? STREAM_KEPT_NS : 0);
}

/* Begins a sequence. */
static void row_begin(struct stream *stream, bool is_moved, uint64_t now_ns)
{
	stream->part_count = 0;
	stream->pause_count = 0;
	stream->row_bytes = 0;
	stream->row_start_ns = now_ns;
	stream->is_moved = is_moved;
}

/* Returns the stream that continues elsewhere with this part, or NULL. A client that reads one file
 * after the other has a single stream, and no other parts: its sequence before this part is a
 * stream of several parts, and the latest of its sequences, and no other one had a part since this
 * one began. A single part is no sequence: a random reader's requests can be as long. */
static struct stream *stream_move(
	struct sched_store *store, const struct store_part *part, uint64_t now_ns)
{
	struct stream *last = NULL;
	uint64_t others_ns = 0;

	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		struct stream *stream = &store->streams[i];

		if (stream->part_count == 0 || stream->requester != part->requester) {
			continue;
		}
		if (last == NULL || stream->arrived_ns > last->arrived_ns) {
			others_ns = last != NULL ? MAX(others_ns, last->arrived_ns) : 0;
			last = stream;
		} else {
			others_ns = MAX(others_ns, stream->arrived_ns);
		}
	}
	if (last == NULL || last->op != part->op || !is_quiet(last) || !is_long(last) ||
		last->part_count < 2 || last->row_bytes < STREAM_BYTES_MIN ||
		others_ns >= last->row_start_ns || part->length < STREAM_BYTES_SOME_MIN) {
		return NULL;
	}
	row_begin(last, true, now_ns);
	return last;
}

/* Replaces the stream that has been quiet for the longest time. Returns NULL if all are in use. */
static struct stream *stream_new(struct sched_store *store, uint64_t now_ns)
{
	struct stream *oldest = NULL;

	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		struct stream *stream = &store->streams[i];

		if (is_quiet(stream) && stream != store->run &&
			(oldest == NULL || kept_until_ns(stream) < kept_until_ns(oldest))) {
			oldest = stream;
		}
	}
	if (oldest != NULL) {
		list_remove(&oldest->node);
		list_push_back(&store->order, &oldest->node);
		row_begin(oldest, false, now_ns);
		oldest->idle_since_ns = 0;
		oldest->gap_ns = GAP_NS_FIRST;
	}
	return oldest;
}

/* Returns the stream to which a new part belongs, or NULL if it belongs to none. */
static struct stream *classify(
	struct sched_store *store, const struct store_part *part, uint64_t now_ns)
{
	struct stream *stream = stream_find(store, part);

	if (stream == NULL) {
		stream = stream_move(store, part, now_ns) ?: stream_new(store, now_ns);
	}
	if (stream == NULL) {
		return NULL;
	}
	stream->requester = part->requester;
	stream->op = part->op;
	stream->next_offset = part->offset + part->length;
	stream->part_count += stream->part_count < STREAM_PARTS_MIN;
	stream->pause_count += stream->row_bytes > 0 && stream->pause_count < STREAM_PAUSES_MIN &&
			       now_ns - stream->arrived_ns >= REQUEST_NS;
	stream->row_bytes += part->length;
	stream->arrived_ns = now_ns;
	return is_long(stream) ? stream : NULL;
}

/* Measures the time between two requests of the stream's client. */
static void gap_end(struct stream *stream, uint64_t now_ns)
{
	if (is_quiet(stream) && stream->idle_since_ns > 0) {
		uint64_t gap_ns = MIN(now_ns - stream->idle_since_ns, GAP_NS_MAX);

		stream->gap_ns =
			stream->gap_ns - (stream->gap_ns >> GAP_SHIFT) + (gap_ns >> GAP_SHIFT);
	}
}

/* --- decisions, under the lock --------------------------------------------------------------- */

/* Returns the time until which the disk is kept free for the next part of a run that has no part
 * now. It is not kept free if the client's usual pause is longer than a seek. */
static uint64_t idle_end_ns(const struct sched_store *store)
{
	uint64_t gap_ns = store->run->gap_ns;
	uint64_t wanted_ns = MAX(2 * gap_ns, IDLE_NS_MIN);
	uint64_t max_ns = MIN(seek_ns(store), IDLE_NS_MAX);

	return store->run->idle_since_ns + (gap_ns <= max_ns ? MIN(wanted_ns, max_ns) : 0);
}

/* Returns how long a run lasts if other streams wait. */
static uint64_t run_ns(const struct sched_store *store)
{
	uint64_t share_ns = ROUND_NS / (store->streams_waiting + 1);
	uint64_t wanted_ns = MAX(share_ns, RUN_SEEKS_MIN * seek_ns(store));

	return MIN(wanted_ns, RUN_NS);
}

/* Returns whether another stream waits for the disk, and the current run has lasted for at least
 * ns. */
static bool run_has_had(const struct sched_store *store, uint64_t ns, uint64_t now_ns)
{
	uint32_t rivals = store->streams_waiting - !list_is_empty(&store->run->waiting);

	return rivals > 0 && now_ns - store->run_start_ns >= ns;
}

static bool run_is_over(const struct sched_store *store, uint64_t now_ns)
{
	return is_quiet(store->run) ? now_ns >= idle_end_ns(store)
				    : run_has_had(store, run_ns(store), now_ns);
}

/* Returns the time at which the parts that belong to no stream get the disk, although streams want
 * it. There is such a part. */
static uint64_t others_due_ns(const struct sched_store *store)
{
	struct store_part *part = list_entry(list_first(&store->others), struct store_part, node);
	uint64_t arrived_ns = ((const struct sched_scratch *)store_scratch(part))->arrived_ns;

	return store->run != NULL ? MAX(arrived_ns, store->others_end_ns) + OTHERS_WAIT_NS
				  : arrived_ns + OTHERS_BETWEEN_NS;
}

static enum sched_owner next_owner(const struct sched_store *store, uint64_t now_ns)
{
	bool is_contested = store->run != NULL || store->streams_waiting > 0;

	if (list_is_empty(&store->others) || (is_contested && store->owner == OWNER_OTHERS)) {
		return is_contested ? OWNER_RUN : OWNER_NOBODY;
	}
	if (is_contested && now_ns < others_due_ns(store)) {
		return OWNER_RUN;
	}
	return OWNER_OTHERS;
}

static void queue_call(struct sched_queue *queue)
{
	if (!queue->is_posted) {
		queue->is_posted = true;
		ring_post(queue->base.ring, &queue->message);
	}
}

/* Lets a waiting part continue: directly if it is in the current queue, otherwise by a message to
 * its queue. If a message to the queue is already in flight, it forwards the part (take_granted()):
 * an unfinished part ensures that the queue exists until the message arrives. */
static void grant(struct sched_store *store, struct store_part *part, struct sched_work *work)
{
	struct sched_queue *queue = queue_of(part);
	struct sched_scratch *scratch = store_scratch(part);
	struct stream *stream = stream_of(store, part);

	list_remove(&part->node);
	scratch->state = PART_GRANTED;
	scratch->arrived_ns = work->now_ns;
	scratch->seeks = part->offset != store->head;
	scratch->stuck_turn = store->stuck_turn;
	store->head = part->offset + part->length;
	if (store->inflight++ == 0) {
		store->progress_ns = work->now_ns;
	}
	if (stream != NULL) {
		stream->inflight_bytes += part->length;
	}
	if (store->watch == part) {
		store->watch = NULL;
	}
	list_push_back(&queue->granted, &part->node);
	if (queue != work->queue) {
		queue_call(queue);
	}
}

static void grant_others(struct sched_store *store, struct sched_work *work)
{
	bool is_contested = store->run != NULL || store->streams_waiting > 0;

	for (uint32_t i = 0;
		!list_is_empty(&store->others) && (i < OTHERS_TURN_MAX || !is_contested); i++) {
		grant(store, list_entry(list_first(&store->others), struct store_part, node), work);
	}
}

static void grant_stream(struct sched_store *store, struct stream *stream, uint64_t bytes_max,
	struct sched_work *work)
{
	store->streams_waiting -= !list_is_empty(&stream->waiting);
	while (!list_is_empty(&stream->waiting) && stream->inflight_bytes < bytes_max) {
		grant(store, list_entry(list_first(&stream->waiting), struct store_part, node),
			work);
	}
	store->streams_waiting += !list_is_empty(&stream->waiting);
}

static void end_run(struct sched_store *store)
{
	list_remove(&store->run->node);
	list_push_back(&store->order, &store->run->node);
	store->run = NULL;
}

/* Returns the first stream in order that has waiting parts. The caller knows that there is one. */
static struct stream *first_waiting(const struct sched_store *store)
{
	struct list_node *node = store->order.next;

	while (list_is_empty(&list_entry(node, struct stream, node)->waiting)) {
		node = node->next;
	}
	return list_entry(node, struct stream, node);
}

/* Returns a waiting part that will wait longer than most others, or NULL. */
static struct store_part *last_waiting(const struct sched_store *store)
{
	const struct list_node *parts = &store->others;
	struct list_node *node = store->order.prev;

	if (list_is_empty(parts) && store->streams_waiting == 0) {
		return NULL;
	}
	for (; list_is_empty(parts); node = node->prev) {
		parts = &list_entry(node, struct stream, node)->waiting;
	}
	return list_entry(parts->prev, struct store_part, node);
}

/* If parts wait, makes sure that the timer ends when the run has been idle for too long, or when
 * the disk is stuck. */
static void watch_arm(struct sched_store *store, struct sched_work *work)
{
	uint64_t end_ns = store->progress_ns + STUCK_NS;

	if (store->run != NULL && store->inflight == 0) {
		end_ns = idle_end_ns(store);
		if (!list_is_empty(&store->others)) {
			end_ns = MIN(end_ns, others_due_ns(store));
		}
	}
	if (store->watch != NULL && end_ns >= store->watch_end_ns) {
		return;
	}
	store->watch_is_late = store->watch != NULL;
	store->watch = store->watch ?: last_waiting(store);
	if (store->watch == NULL) {
		return;
	}
	store->watch_end_ns = end_ns;
	if (queue_of(store->watch) == work->queue) {
		work->watch = store->watch;
		work->watch_ns = end_ns > work->now_ns ? end_ns - work->now_ns : 0;
	} else {
		queue_call(queue_of(store->watch));
	}
}

/* Passes on all parts, because the disk does not seek or is stuck. */
static void grant_all(struct sched_store *store, struct sched_work *work)
{
	store->run = NULL;
	store->owner = OWNER_NOBODY;
	while (store->streams_waiting > 0) {
		grant_stream(store, first_waiting(store), UINT64_MAX, work);
	}
	grant_others(store, work);
}

static bool is_stuck(struct sched_store *store, uint64_t now_ns)
{
	if (store->stuck_count == 0 && store->inflight > 0 &&
		now_ns - store->progress_ns >= STUCK_NS) {
		store->stuck_count = store->inflight;
		store->stuck_turn++;
	}
	return store->stuck_count > 0;
}

/* Chooses whether the parts of a run or the other parts get the disk, and passes these on. */
static void grant_owner(struct sched_store *store, struct sched_work *work)
{
	enum sched_owner owner;

	if (store->run != NULL && run_is_over(store, work->now_ns)) {
		end_run(store);
	}
	owner = next_owner(store, work->now_ns);
	if (owner == OWNER_NOBODY ||
		(store->inflight > 0 &&
			(owner != store->owner || (owner == OWNER_RUN && store->run == NULL)))) {
		return;
	}
	if (owner == OWNER_OTHERS) {
		/* After the turn of the other parts, the disk has to seek in any case. So a run
		 * that would end soon ends now, which saves a seek. */
		if (store->run != NULL && run_has_had(store, run_ns(store) / 2, work->now_ns)) {
			end_run(store);
		}
		store->owner = OWNER_OTHERS;
		grant_others(store, work);
		return;
	}
	if (store->owner == OWNER_OTHERS) {
		store->others_end_ns = work->now_ns;
	}
	store->owner = OWNER_RUN;
	if (store->run == NULL) {
		store->run = first_waiting(store);
		store->run_start_ns = work->now_ns;
		work->queue->runs++;
	}
	grant_stream(store, store->run,
		store->streams_waiting > 1 || !list_is_empty(&store->others) ? RUN_BYTES_MAX
									     : UINT64_MAX,
		work);
}

/* Passes on the parts that need not wait any longer. */
static void sched_decide(struct sched_store *store, struct sched_work *work)
{
	if (seek_ns(store) < SEEK_NS_MIN || is_stuck(store, work->now_ns)) {
		grant_all(store, work);
	} else {
		grant_owner(store, work);
	}
	watch_arm(store, work);
}

/* --- parts ----------------------------------------------------------------------------------- */

static void sched_lock(struct sched_work *work, struct store_queue *queue)
{
	*work = (struct sched_work){ .queue = container_of(queue, struct sched_queue, base) };
	list_init(&work->forward);
	pthread_mutex_lock(&sched_of(queue->store)->lock);
	work->now_ns = ring_now_ns(queue->ring);
}

static void watch_done(struct ring_op *op, int result);

/* Takes the parts that the current queue can forward now: up to one whose timer has not ended, so
 * that they reach the disk in order. */
static void take_granted(struct sched_work *work)
{
	struct sched_queue *queue = work->queue;
	struct list_node *node;

	while (!queue->is_posted && queue->ending == NULL &&
		(node = list_pop_front(&queue->granted)) != NULL) {
		struct store_part *part = list_entry(node, struct store_part, node);

		if (part->io.in_flight) {
			queue->ending = part;
			work->ending = part;
		} else {
			list_push_back(&work->forward, node);
		}
	}
}

static void sched_unlock(struct sched_work *work)
{
	struct store_queue *queue = &work->queue->base;
	struct list_node *node;

	take_granted(work);
	pthread_mutex_unlock(&sched_of(queue->store)->lock);
	while ((node = list_pop_front(&work->forward)) != NULL) {
		store_forward(list_entry(node, struct store_part, node));
	}
	if (work->ending != NULL) {
		ring_cancel(queue->ring, &work->ending->io);
	}
	if (work->watch != NULL && work->watch->io.in_flight) {
		ring_cancel(queue->ring, &work->watch->io); /* watch_done() sets the timer again */
	} else if (work->watch != NULL) {
		ring_timer(queue->ring, &work->watch->io, work->watch_ns, watch_done);
	}
}

static void watch_done(struct ring_op *op, int result)
{
	struct store_part *part = container_of(op, struct store_part, io);
	struct sched_queue *queue = queue_of(part);
	struct sched_store *store = sched_of(part->queue->store);
	const struct sched_scratch *scratch = store_scratch(part);
	struct sched_work work;

	/* -ECANCELED if the part need not wait any longer, or if the timer would end too late */
	sched_lock(&work, part->queue);
	if (queue->ending == part) {
		queue->ending = NULL;
		list_push_back(&work.forward, &part->node);
	} else if (scratch->state == PART_WAITING) {
		store->watch = NULL;
		sched_decide(store, &work);
	} /* otherwise the queue's message forwards the part */
	sched_unlock(&work);
}

static void sched_deliver(struct ring *ring, struct ring_message *message)
{
	struct sched_queue *queue = container_of(message, struct sched_queue, message);
	struct sched_store *store = sched_of(queue->base.store);
	struct sched_work work;

	sched_lock(&work, &queue->base);
	queue->is_posted = false;
	if (store->watch == NULL || queue_of(store->watch) != queue) {
		/* the timer is not ours */
	} else if (!store->watch->io.in_flight) {
		store->watch = NULL;
		sched_decide(store, &work);
	} else if (store->watch_is_late) {
		work.watch = store->watch;
	}
	sched_unlock(&work);
}

/* Returns whether the part can be made to wait: it moves the heads of the disk, and is not a
 * durable write (FUA). */
static bool is_scheduled(const struct sched_store *store, const struct store_part *part)
{
	return part->op == STORE_READ ? store->read_seeks
				      : part->op == STORE_WRITE && store->write_seeks &&
						(part->flags & STORE_FUA) == 0;
}

static void sched_submit(struct store_queue *queue, struct store_part *part)
{
	struct sched_store *store = sched_of(queue->store);
	struct sched_scratch *scratch = store_scratch(part);
	struct stream *stream;
	struct sched_work work;

	if (!is_scheduled(store, part)) {
		scratch->state = PART_PASSED;
		store_forward(part);
		return;
	}
	sched_lock(&work, queue);
	scratch->state = PART_WAITING;
	scratch->arrived_ns = work.now_ns;
	/* No part waits at a disk that does not seek, so it needs no streams. */
	stream = seek_ns(store) >= SEEK_NS_MIN ? classify(store, part, work.now_ns) : NULL;
	scratch->stream_count = stream != NULL ? (uint16_t)(stream - store->streams + 1) : 0;
	if (stream != NULL) {
		gap_end(stream, work.now_ns);
		store->streams_waiting += list_is_empty(&stream->waiting);
		list_push_back(&stream->waiting, &part->node);
	} else {
		list_push_back(&store->others, &part->node);
	}
	sched_decide(store, &work);
	work.queue->waits += scratch->state == PART_WAITING;
	sched_unlock(&work);
}

/* Measures the time since the part was granted or the previous part was done, whichever is later.
 * Parts that do not seek are measured only in a run: otherwise, parts of several requesters are at
 * the disk at the same time. The least of their times counts, because a flush or a durable write
 * (FUA) can delay some requests. */
static void time_part(struct sched_store *store, struct store_part *part, uint64_t now_ns)
{
	const struct sched_scratch *scratch = store_scratch(part);
	uint64_t taken_ns = now_ns - MAX(scratch->arrived_ns, store->done_ns);
	int64_t ns = (int64_t)MIN(taken_ns, PART_NS_MAX) - (int64_t)(part->length * BYTE_NS);
	int64_t *least_ns = &store->next_part_ns;

	store->done_ns = now_ns;
	if (scratch->seeks) {
		store->seek_part_ns += (ns - store->seek_part_ns) / SEEK_WEIGHT;
	} else if (store->owner == OWNER_RUN) {
		*least_ns += store->next_part_is_known && ns > *least_ns
				     ? (ns - *least_ns) / LEAST_WEIGHT
				     : ns - *least_ns;
		store->next_part_is_known = true;
	}
}

static void sched_done(struct store_part *part, int result)
{
	struct sched_store *store = sched_of(part->queue->store);
	const struct sched_scratch *scratch = store_scratch(part);
	struct stream *stream;
	struct sched_work work;

	if (scratch->state == PART_PASSED) {
		store_finish(part, result);
		return;
	}
	sched_lock(&work, part->queue);
	store->inflight--;
	store->stuck_count -= store->stuck_count > 0 && scratch->stuck_turn != store->stuck_turn;
	store->progress_ns = work.now_ns;
	time_part(store, part, work.now_ns);
	stream = stream_of(store, part);
	if (stream != NULL) {
		stream->inflight_bytes -= part->length;
		stream->idle_since_ns = work.now_ns;
	}
	sched_decide(store, &work);
	sched_unlock(&work);
	store_finish(part, result);
}

static const char *sched_page_cache_refusal(struct store *store)
{
	return store_page_cache_refusal(store->inner);
}

/* --- opening --------------------------------------------------------------------------------- */

enum { SCHED_AUTO, SCHED_OFF };

static const char *const words[] = { "auto", "off", NULL };

struct sched_config {
	uint32_t sched; /* SCHED_AUTO or SCHED_OFF */
};

static const struct field options[] = {
	{ "sched", NULL,
		"scheduling of sequential streams so that only one stream uses the disk at a time: "
		"auto (default; on rotational disks without the page cache) or off",
		"off", .type = FIELD_WORD, .words = words, FIELD_IN(struct sched_config, sched) },
};

static bool sched_wraps(const struct store_info *info, const void *config)
{
	const struct sched_config *given = config;

	return (info->read_seeks || info->write_seeks) && info->stripe_members <= 1 &&
	       (given == NULL || given->sched == SCHED_AUTO);
}

static int sched_queue_init(struct store_queue *base, struct error *error)
{
	struct sched_queue *queue = container_of(base, struct sched_queue, base);

	list_init(&queue->granted);
	queue->message.deliver = sched_deliver;
	return 0;
}

static void sched_queue_fini(struct store_queue *base)
{
	struct sched_queue *queue = container_of(base, struct sched_queue, base);

	GMB_ASSERT(!queue->is_posted && list_is_empty(&queue->granted));
}

static int sched_open(struct store *base, const struct store_options *store_options,
	const void *config, struct error *error)
{
	struct sched_store *store = sched_of(base);

	store->read_seeks = base->info.read_seeks;
	store->write_seeks = base->info.write_seeks;
	pthread_mutex_init(&store->lock, NULL);
	list_init(&store->order);
	list_init(&store->others);
	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		list_init(&store->streams[i].waiting);
		list_push_back(&store->order, &store->streams[i].node);
	}
	return 0;
}

static void sched_close(struct store *base)
{
	pthread_mutex_destroy(&sched_of(base)->lock);
}

static const struct counter counter_list[] = {
	STORE_COUNTER(struct sched_queue, runs, ITEMS,
		"Times a sequential stream received the disk for some time"),
	STORE_COUNTER(struct sched_queue, waits, ITEMS,
		"Requests that waited while other requests used the disk"),
};

static const struct counter_table counters = { "sched", "export", "store_sched_", counter_list,
	ARRAY_COUNT(counter_list) };

static const struct store_ops sched_ops = {
	.name = "sched",
	.queue_bytes = sizeof(struct sched_queue),
	.scratch_bytes = sizeof(struct sched_scratch),
	.close = sched_close,
	.queue_init = sched_queue_init,
	.queue_fini = sched_queue_fini,
	.submit = sched_submit,
	.inner_done = sched_done,
	.counters = &counters,
	.page_cache_refusal = sched_page_cache_refusal,
	.passes_copies = true,
	.handover = store_handover_nothing,
};

const struct store_kind sched_store_kind = {
	.name = "sched",
	.is_filter = true,
	.wraps = sched_wraps,
	.options = options,
	.option_count = ARRAY_COUNT(options),
	.config_bytes = sizeof(struct sched_config),
	.store_bytes = sizeof(struct sched_store),
	.ops = &sched_ops,
	.open = sched_open,
};
