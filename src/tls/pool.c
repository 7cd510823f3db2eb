// SPDX-License-Identifier: Apache-2.0
#include "tls/pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <gnutls/crypto.h>

enum { BUCKETS = 256 };

#define NS_PER_MS UINT64_C(1000000)

_Static_assert(TLS_SOURCES_MAX > TLS_HANDSHAKES_MAX + TLS_WAITING_MAX,
	"there are more entries for client addresses than handshakes, so an unused entry always "
	"exists");

/* A source of handshakes. */
struct tls_source {
	struct list_node bucket_node;
	/* in idle_sources, while no handshake of the source has a slot or waits */
	struct list_node idle_node;
	uint8_t key[TLS_SOURCE_BYTES];
	uint32_t held;
	uint32_t waiting;
	/* Time at which the source's count of failures is 0 again; the count falls by one per
	 * TLS_FAILURE_INTERVAL_MS. */
	uint64_t paid_ns;
};

struct tls_pool {
	pthread_mutex_t lock; /* protects everything except workers */
	struct tls_workers *workers;
	uint32_t held_max;
	uint32_t held_count;
	uint32_t waiting_count;
	uint32_t source_count;
	struct list_node held;
	struct list_node waiting;
	struct list_node idle_sources; /* longest idle first */
	struct list_node stocks;
	uint32_t hash_key;
	struct list_node buckets[BUCKETS];
};

int tls_pool_create(
	const struct tls_pool_options *options, struct tls_pool **pool_out, struct error *error)
{
	struct tls_pool *pool = calloc(1, sizeof(*pool));
	int err;

	if (pool == NULL) {
		return error_oom_for(error, "TLS");
	}
	if (options->handshakes > TLS_HANDSHAKES_MAX) {
		free(pool);
		return error_set(error, -EINVAL, "more than %u TLS handshakes at once",
			(unsigned)TLS_HANDSHAKES_MAX);
	}
	err = tls_workers_create(options->threads, &pool->workers, error);
	if (err != 0) {
		free(pool);
		return err;
	}
	pool->held_max = options->handshakes != 0 ? options->handshakes : TLS_HANDSHAKES_MAX;
	list_init(&pool->held);
	list_init(&pool->waiting);
	list_init(&pool->idle_sources);
	list_init(&pool->stocks);
	for (uint32_t i = 0; i < BUCKETS; i++) {
		list_init(&pool->buckets[i]);
	}
	/* A failure is ignored. The hash key then stays 0, so that clients can more easily
	 * choose addresses that make a hash chain long. */
	(void)gnutls_rnd(GNUTLS_RND_NONCE, &pool->hash_key, sizeof(pool->hash_key));
	pthread_mutex_init(&pool->lock, NULL);
	*pool_out = pool;
	return 0;
}

void tls_pool_destroy(struct tls_pool *pool)
{
	if (pool == NULL) {
		return;
	}
	GMB_ASSERT(pool->held_count == 0 && pool->waiting_count == 0);
	GMB_ASSERT(list_is_empty(&pool->stocks));
	tls_workers_destroy(pool->workers);
	list_for_each(node, &pool->idle_sources)
	{
		free(list_entry(node, struct tls_source, idle_node));
	}
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

void tls_pool_synchronize(struct tls_pool *pool)
{
	tls_workers_synchronize(pool->workers);
}

struct tls_workers *tls_pool_workers(struct tls_pool *pool)
{
	return pool->workers;
}

/* --- sources ---------------------------------------------------------------------------------- */

static struct list_node *pool_bucket_of(struct tls_pool *pool, const uint8_t *key)
{
	uint32_t hash = pool->hash_key;

	for (uint32_t i = 0; i < TLS_SOURCE_BYTES; i++) {
		hash = (hash ^ key[i]) * UINT32_C(0x01000193);
		hash ^= hash >> 15;
	}
	return &pool->buckets[hash % BUCKETS];
}

/* Called when the source's number of slots or waiters has changed. A source without slots
 * and waiters moves to the end of the idle list; any other source is removed from the list. */
static void source_counted(struct tls_pool *pool, struct tls_source *source)
{
	list_remove(&source->idle_node);
	if (source->held == 0 && source->waiting == 0) {
		list_push_back(&pool->idle_sources, &source->idle_node);
	}
}

/* Returns the source with this key (a peer's user or address), creating it if necessary. NULL: out
 * of memory. The next call can reuse an idle source for another key. */
static struct tls_source *source_get(struct tls_pool *pool, const uint8_t *key)
{
	struct list_node *bucket = pool_bucket_of(pool, key);
	struct tls_source *source = NULL;

	list_for_each(node, bucket)
	{
		source = list_entry(node, struct tls_source, bucket_node);
		if (memcmp(source->key, key, TLS_SOURCE_BYTES) == 0) {
			source_counted(pool, source);
			return source;
		}
	}
	if (pool->source_count < TLS_SOURCES_MAX) {
		source = malloc(sizeof(*source));
		if (source == NULL) {
			return NULL;
		}
		pool->source_count++;
	} else {
		source = list_entry(
			list_pop_front(&pool->idle_sources), struct tls_source, idle_node);
		list_remove(&source->bucket_node);
	}
	*source = (struct tls_source){ .held = 0 };
	memcpy(source->key, key, TLS_SOURCE_BYTES);
	list_init(&source->idle_node);
	list_push_front(bucket, &source->bucket_node);
	source_counted(pool, source);
	return source;
}

/* Returns the time until the limit on failures permits the source another handshake. */
static uint64_t source_wait_ns(const struct tls_source *source, uint64_t now_ns)
{
	uint64_t may_ns = now_ns + TLS_FAILURES_BURST * TLS_FAILURE_INTERVAL_MS * NS_PER_MS;

	return source->paid_ns > may_ns ? source->paid_ns - may_ns : 0;
}

/* --- slots ----------------------------------------------------------------------------------- */

static void place_deliver(struct ring *ring, struct ring_message *message)
{
	struct tls_place *place = container_of(message, struct tls_place, message);
	struct tls_pool *pool = place->pool;
	int result;

	pthread_mutex_lock(&pool->lock);
	place->is_posted = false;
	result = place->result;
	pthread_mutex_unlock(&pool->lock);
	place->done(place, result);
}

static void place_tell(struct tls_place *place, int result)
{
	GMB_ASSERT(!place->is_posted);
	place->is_posted = true;
	place->result = result;
	place->message.deliver = place_deliver;
	ring_post(place->ring, &place->message);
}

static bool place_may_be_held(const struct tls_pool *pool, const struct tls_place *place)
{
	return pool->held_count < pool->held_max &&
	       (place->of == NULL || place->of->held < TLS_HANDSHAKES_PER_SOURCE_MAX);
}

static void place_hold(struct tls_pool *pool, struct tls_place *place)
{
	place->state = TLS_PLACE_HELD;
	place->silent_ns = 0;
	place->is_asked_back = false;
	list_push_back(&pool->held, &place->node);
	pool->held_count++;
	if (place->of != NULL) {
		place->of->held++;
		source_counted(pool, place->of);
	}
}

static void place_wait(struct tls_pool *pool, struct tls_place *place)
{
	place->state = TLS_PLACE_WAITING;
	list_push_back(&pool->waiting, &place->node);
	pool->waiting_count++;
	if (place->of != NULL) {
		place->of->waiting++;
		source_counted(pool, place->of);
	}
}

static void place_leave(struct tls_pool *pool, struct tls_place *place)
{
	bool waited = place->state == TLS_PLACE_WAITING;

	list_remove(&place->node);
	place->state = TLS_PLACE_NONE;
	if (waited) {
		pool->waiting_count--;
	} else {
		pool->held_count--;
	}
	if (place->of != NULL) {
		if (waited) {
			place->of->waiting--;
		} else {
			place->of->held--;
		}
		source_counted(pool, place->of);
	}
}

static void grant_some(struct tls_pool *pool, bool slow)
{
	list_for_each(node, &pool->waiting)
	{
		struct tls_place *place = list_entry(node, struct tls_place, node);

		if (pool->held_count == pool->held_max) {
			return;
		}
		if (place->is_slow == slow && place_may_be_held(pool, place)) {
			place_leave(pool, place);
			place_hold(pool, place);
			place_tell(place, 0);
		}
	}
}

/* Hands free slots to waiters, first to those whose first message is complete. */
static void places_grant(struct tls_pool *pool)
{
	grant_some(pool, false);
	grant_some(pool, true);
}

/* Called when too many handshakes wait: rejects a handshake of the source (a user or address) from
 * which most connections come. */
static void refuse_one(struct tls_pool *pool)
{
	struct tls_place *refused = NULL;

	list_for_each(node, &pool->waiting)
	{
		struct tls_place *place = list_entry(node, struct tls_place, node);

		if (place->of != NULL &&
			(refused == NULL || place->of->waiting > refused->of->waiting)) {
			refused = place;
		}
	}
	if (refused != NULL) {
		place_leave(pool, refused);
		/* The rejected waiter must not refer to its source any more, because a source
		 * without waiters and slots can be reused for another peer. */
		refused->of = NULL;
		place_tell(refused, -EAGAIN);
	}
}

static int pool_take_locked(struct tls_pool *pool, struct tls_place *place, uint64_t *wait_ns_out)
{
	if (place->source != NULL) {
		place->of = source_get(pool, place->source);
		if (place->of == NULL) {
			return -ENOMEM;
		}
		*wait_ns_out = source_wait_ns(place->of, ring_now_ns(place->ring));
		if (*wait_ns_out > 0) {
			return -EBUSY;
		}
	}
	if (place_may_be_held(pool, place)) {
		place_hold(pool, place);
		return 0;
	}
	if (pool->waiting_count == TLS_WAITING_MAX) {
		refuse_one(pool);
		if (pool->waiting_count == TLS_WAITING_MAX) {
			return -EAGAIN;
		}
	}
	place_wait(pool, place);
	return -EINPROGRESS;
}

int tls_place_take(struct tls_pool *pool, struct tls_place *place, uint64_t *wait_ns_out)
{
	int err;

	GMB_ASSERT(place->state == TLS_PLACE_NONE);
	place->pool = pool;
	place->of = NULL;
	pthread_mutex_lock(&pool->lock);
	err = pool_take_locked(pool, place, wait_ns_out);
	pthread_mutex_unlock(&pool->lock);
	return err;
}

void tls_place_give(struct tls_place *place, bool failed)
{
	struct tls_pool *pool = place->pool;

	if (pool == NULL) { /* no slot was ever requested */
		return;
	}
	pthread_mutex_lock(&pool->lock);
	if (place->state != TLS_PLACE_NONE) {
		struct tls_source *source = place->of;

		place_leave(pool, place);
		place->of = NULL;
		if (source != NULL && failed) {
			source->paid_ns = MAX(source->paid_ns, ring_now_ns(place->ring)) +
					  TLS_FAILURE_INTERVAL_MS * NS_PER_MS;
		}
		places_grant(pool);
	}
	pthread_mutex_unlock(&pool->lock);
}

bool tls_place_is_idle(struct tls_place *place)
{
	bool is_idle = true;

	if (place->pool != NULL) {
		pthread_mutex_lock(&place->pool->lock);
		is_idle = place->state == TLS_PLACE_NONE && !place->is_posted;
		pthread_mutex_unlock(&place->pool->lock);
	}
	return is_idle;
}

void tls_place_is_silent(struct tls_place *place, bool silent)
{
	pthread_mutex_lock(&place->pool->lock);
	if (!silent) {
		place->silent_ns = 0;
		place->is_asked_back = false;
	} else if (place->silent_ns == 0) {
		place->silent_ns = ring_now_ns(place->ring);
	}
	pthread_mutex_unlock(&place->pool->lock);
}

void tls_pool_make_room(struct tls_pool *pool, uint64_t now_ns)
{
	struct tls_place *silent = NULL;

	pthread_mutex_lock(&pool->lock);
	/* If there are free slots, the waiters' sources have used up their shares, so another slot
	 * would not help them. */
	if (pool->waiting_count > 0 && pool->held_count == pool->held_max) {
		list_for_each(node, &pool->held)
		{
			struct tls_place *place = list_entry(node, struct tls_place, node);

			if (place->of != NULL && place->silent_ns != 0 && !place->is_asked_back &&
				!place->is_posted &&
				(silent == NULL || place->silent_ns < silent->silent_ns)) {
				silent = place;
			}
		}
	}
	if (silent != NULL && silent->silent_ns + TLS_SILENCE_MS * NS_PER_MS <= now_ns) {
		silent->is_asked_back = true;
		place_tell(silent, -EAGAIN);
	}
	pthread_mutex_unlock(&pool->lock);
}

/* --- memory for records ----------------------------------------------------------------------- */

struct tls_stock *tls_stock_get(struct tls_pool *pool, struct ring *ring)
{
	struct tls_stock *stock = NULL;

	pthread_mutex_lock(&pool->lock);
	list_for_each(node, &pool->stocks)
	{
		stock = list_entry(node, struct tls_stock, node);
		if (stock->ring == ring) {
			break;
		}
		stock = NULL;
	}
	if (stock == NULL) {
		stock = malloc(sizeof(*stock));
		if (stock != NULL) {
			stock->ring = ring;
			stock->uses = 0;
			stock->batches_out = 0;
			stock->free_count = 0;
			list_push_back(&pool->stocks, &stock->node);
		}
	}
	if (stock != NULL) {
		stock->uses++;
	}
	pthread_mutex_unlock(&pool->lock);
	return stock;
}

void tls_stock_put(struct tls_pool *pool, struct tls_stock *stock)
{
	pthread_mutex_lock(&pool->lock);
	stock->uses--;
	if (stock->uses == 0) {
		list_remove(&stock->node);
	} else {
		stock = NULL;
	}
	pthread_mutex_unlock(&pool->lock);
	if (stock != NULL) {
		GMB_ASSERT(stock->batches_out == 0);
		while (stock->free_count > 0) {
			free(stock->free[--stock->free_count]);
		}
		free(stock);
	}
}

uint8_t *tls_stock_take(struct tls_stock *stock)
{
	uint8_t *batch = NULL;

	if (stock->free_count > 0) {
		batch = stock->free[--stock->free_count];
	} else if (stock->batches_out < TLS_BATCHES_MAX) {
		batch = malloc(TLS_BATCH_BYTES);
	}
	stock->batches_out += batch != NULL;
	return batch;
}

void tls_stock_give(struct tls_stock *stock, uint8_t *batch)
{
	GMB_ASSERT(stock->batches_out > 0);
	stock->batches_out--;
	stock->free[stock->free_count++] = batch;
}
