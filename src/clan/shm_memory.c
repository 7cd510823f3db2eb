// SPDX-License-Identifier: Apache-2.0
/*
 * Cookies, puts and gets, revocation, tripwires: docs/protocol/clan.md §8.2, §8.3 and §9.
 *
 * Invariant: our tables in shared memory are written here and never read back; decisions use the
 * private copies in struct shm_conn. Words of the peer are loaded once.
 *
 * Two pairs of fences make the protocol correct, because each side stores a word and then loads a
 * word of the other:
 * - shm_revoke() clears the generation and then loads the peer's busy; busy_begins() stores busy
 *   and then the generation is loaded.
 * - arm_watch() stores arm and then the program reads the memory; touch_tripwires() runs after the
 *   bytes were stored and then loads arm.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "clan/shm.h"

#define NS_PER_MS UINT64_C(1000000)

/* --- granting --------------------------------------------------------------------------------- */

static uint64_t pack_rest(const struct clan_cookie *cookie)
{
	return (uint64_t)cookie->region | (uint64_t)cookie->rights << 16 |
	       (uint64_t)cookie->flags << 32;
}

/* Grants a cookie: writes its entry, and its generation last. Fails with -ENOSPC if all slots are
 * in use. */
int shm_grant(struct clan_conn *base, struct clan_share *share, struct clan_cookie *cookie)
{
	struct shm_conn *conn = shm_conn(base);
	uint32_t count = base->options.cookies;
	struct shm_cookie *entry;
	uint32_t slot = conn->grant_next;
	uint32_t tried = 0;

	if (conn->grants == NULL) {
		conn->grants = calloc(count, sizeof(*conn->grants));
		if (conn->grants == NULL) {
			return -ENOMEM;
		}
	}
	/* A slot whose generation has reached its maximum is never used again, so a cookie is
	 * unique for the life of the connection. */
	while (conn->grants[slot].state != SHM_GRANT_FREE ||
		conn->grants[slot].generation == UINT32_MAX) {
		slot = slot + 1 < count ? slot + 1 : 0;
		if (++tried == count) {
			return -ENOSPC;
		}
	}
	conn->grant_next = slot + 1 < count ? slot + 1 : 0;
	conn->grants[slot].state = SHM_GRANT_GIVEN;
	conn->grants[slot].region = (uint16_t)share->number;
	cookie->slot = (uint16_t)slot;
	cookie->generation = ++conn->grants[slot].generation;
	entry = &conn->own_cookies[slot];
	atomic_store_explicit(&entry->offset, cookie->offset, memory_order_relaxed);
	atomic_store_explicit(&entry->bytes, cookie->bytes, memory_order_relaxed);
	atomic_store_explicit(&entry->rest, pack_rest(cookie), memory_order_relaxed);
	/* Release, and last: a peer that sees the generation also sees the rest of the entry. */
	atomic_store_explicit(&entry->generation, cookie->generation, memory_order_release);
	return 0;
}

bool shm_is_granted(const struct shm_conn *conn, const struct clan_cookie *cookie)
{
	return cookie->slot < conn->conn.options.cookies && conn->grants != NULL &&
	       conn->grants[cookie->slot].state == SHM_GRANT_GIVEN &&
	       conn->grants[cookie->slot].generation == cookie->generation;
}

/* --- revoking --------------------------------------------------------------------------------- */

static bool shm_memory_give_revoked(struct clan_source *source, struct clan_event *event)
{
	struct shm_revocation *revocation = container_of(source, struct shm_revocation, source);

	event->type = CLAN_EVENT_REVOKED;
	event->conn = &revocation->conn->conn;
	event->context = revocation->conn->conn.context;
	event->op = revocation->op;
	event->number = revocation->slot;
	event->status = revocation->status;
	list_remove(&revocation->node);
	free(revocation);
	return false;
}

static void shm_memory_strict_ended(struct shm_revocation *revocation)
{
	if (revocation->region != NULL) {
		revocation->region->strict_count--;
		revocation->region = NULL;
	}
}

static void shm_memory_revocation_end(struct shm_revocation *revocation, int status)
{
	struct shm_conn *conn = revocation->conn;

	clan_deadline_clear(&revocation->deadline);
	revocation->ended = true;
	revocation->status = status;
	conn->grants[revocation->slot].state = SHM_GRANT_FREE;
	shm_memory_strict_ended(revocation);
	clan_fire(conn->conn.queue, &revocation->source);
}

static uint64_t peer_busy(const struct shm_conn *conn)
{
	return atomic_load_explicit(&conn->peer->busy, memory_order_acquire);
}

/* Ends the revocations that waited for a copy which the peer has now ended, as shown by its busy
 * word. Returns true if there were any. */
bool shm_look_quiet(struct shm_conn *conn)
{
	bool any = false;

	list_for_each(node, &conn->revocations)
	{
		/* revocation->busy is the peer's busy word at the time of the revocation. It was
		 * odd, because the peer was making a copy. Any other value shows that this copy has
		 * ended. A copy that began later has seen the revocation. */
		struct shm_revocation *revocation = list_entry(node, struct shm_revocation, node);

		if (!revocation->ended && peer_busy(conn) != revocation->busy) {
			shm_memory_revocation_end(revocation, 0);
			any = true;
		}
	}
	return any;
}

bool shm_waits_for_quiet(const struct shm_conn *conn)
{
	list_for_each(node, &conn->revocations)
	{
		if (!list_entry(node, struct shm_revocation, node)->ended) {
			return true;
		}
	}
	return false;
}

/* Called when the peer's busy word has not changed in time: ends the connection. */
static void shm_memory_strict_expired(struct clan_deadline *deadline)
{
	struct shm_revocation *revocation = container_of(deadline, struct shm_revocation, deadline);
	struct shm_conn *conn = revocation->conn;

	shm_look_quiet(conn);
	if (!revocation->ended) {
		shm_conn_end(conn, -ETIMEDOUT, "the peer did not obey a strict revocation");
	}
}

void shm_revocations_end(struct shm_conn *conn)
{
	list_for_each(node, &conn->revocations)
	{
		struct shm_revocation *revocation = list_entry(node, struct shm_revocation, node);

		if (!revocation->ended) {
			shm_memory_revocation_end(revocation,
				revocation->region == NULL ? -ENOTCONN
							   : clan_region_replace(revocation->region,
								     &revocation->range, 1));
		}
	}
}

static struct shm_revocation *revocation_create(
	struct shm_conn *conn, const struct clan_cookie *cookie, bool strict, void *op)
{
	struct shm_revocation *revocation = calloc(1, sizeof(*revocation));

	if (revocation != NULL) {
		clan_source_init(&revocation->source, shm_memory_give_revoked);
		list_init(&revocation->node);
		list_init(&revocation->deadline.node);
		revocation->deadline.expired = shm_memory_strict_expired;
		revocation->conn = conn;
		revocation->slot = cookie->slot;
		revocation->op = op;
		if (strict) {
			/* The region number comes from our own record, because the peer could have
			 * modified the number in the cookie. */
			revocation->region =
				clan_share_find(&conn->conn, conn->grants[cookie->slot].region)
					->region;
			revocation->region->strict_count++;
			revocation->range = (struct clan_range){ .offset = cookie->offset,
				.bytes = cookie->bytes };
		}
	}
	return revocation;
}

/* Clears the generation, then checks whether the peer is in the middle of a copy. If the peer is
 * not copying, the revocation has ended, because every later copy sees generation 0. */
int shm_revoke(struct clan_conn *base, const struct clan_cookie *cookie, bool strict, void *op)
{
	struct shm_conn *conn = shm_conn(base);
	struct shm_revocation *revocation;

	if (!shm_is_granted(conn, cookie)) {
		bool leaving = cookie->slot < base->options.cookies && conn->grants != NULL &&
			       conn->grants[cookie->slot].generation == cookie->generation &&
			       conn->grants[cookie->slot].state == SHM_GRANT_LEAVING;

		return leaving ? -EALREADY : -ESTALE;
	}
	revocation = revocation_create(conn, cookie, strict, op);
	if (revocation == NULL) {
		return -ENOMEM;
	}
	conn->grants[cookie->slot].state = SHM_GRANT_LEAVING;
	list_push_back(&conn->revocations, &revocation->node);
	atomic_store_explicit(&conn->own_cookies[cookie->slot].generation, 0, memory_order_release);
	/* Partner: the fence in busy_begins(). Either we see the peer busy, or the peer sees
	 * generation 0. */
	atomic_thread_fence(memory_order_seq_cst);
	revocation->busy = peer_busy(conn);
	if ((revocation->busy & 1) == 0) {
		shm_memory_revocation_end(revocation, 0);
		return 0;
	}
	if (strict) {
		clan_deadline_set(base->queue, &revocation->deadline, CLAN_STRICT_MS * NS_PER_MS);
	}
	shm_want(conn);
	return 0;
}

void shm_void_cookies(struct clan_conn *base, const struct clan_share *share)
{
	struct shm_conn *conn = shm_conn(base);

	for (uint32_t slot = 0; conn->grants != NULL && slot < base->options.cookies; slot++) {
		struct shm_grant *grant = &conn->grants[slot];

		if (grant->state == SHM_GRANT_GIVEN && grant->region == share->number) {
			atomic_store_explicit(
				&conn->own_cookies[slot].generation, 0, memory_order_release);
			grant->state = SHM_GRANT_FREE;
		}
	}
}

/* --- putting and getting ---------------------------------------------------------------------- */

/* Returns in order->shared the address that a cookie permits its holder to use, according to the
 * granter's table. Every word of the entry is loaded once. The generation is loaded again after the
 * others, because the granter could have reused the slot in between. The range is checked against
 * our own mapping, so wrong entries affect only the granter's region. */
static int cookie_place(struct shm_conn *conn, const struct clan_cookie *cookie, uint32_t right,
	uint64_t offset, uint64_t bytes, struct shm_copy_order *order, bool *once_out)
{
	const struct shm_cookie *entry = &conn->peer_cookies[cookie->slot];
	uint32_t generation = atomic_load_explicit(&entry->generation, memory_order_acquire);
	uint64_t start = atomic_load_explicit(&entry->offset, memory_order_relaxed);
	uint32_t length = atomic_load_explicit(&entry->bytes, memory_order_relaxed);
	uint64_t rest = atomic_load_explicit(&entry->rest, memory_order_relaxed);
	uint64_t place;

	atomic_thread_fence(memory_order_acquire);
	if (generation != cookie->generation ||
		atomic_load_explicit(&entry->generation, memory_order_relaxed) != generation) {
		return -ESTALE;
	}
	if ((rest >> 16 & right) == 0) {
		return -EACCES;
	}
	if (!range_inside(offset, bytes, length) || !checked_add_u64(start, offset, &place)) {
		return -ERANGE;
	}
	*once_out = (rest >> 32 & CLAN_COOKIE_ONCE) != 0;
	order->region = rest & 0xffff;
	return shm_region_place(conn, order->region, right, place, bytes, &order->shared);
}

static bool used_already(struct shm_conn *conn, const struct clan_cookie *cookie)
{
	return conn->used_once != NULL && conn->used_once[cookie->slot] == cookie->generation;
}

/* Makes our busy word odd when the first copy begins, so that a revocation by the peer waits for
 * the copy. Helper threads can make several copies at a time. */
static void busy_begins(struct shm_conn *conn)
{
	if (conn->busy_count++ == 0) {
		atomic_store_explicit(&conn->own->busy, ++conn->busy, memory_order_relaxed);
	}
	/* Partner: the fence in shm_revoke(). Either the granter sees us busy, or we see the
	 * revocation. */
	atomic_thread_fence(memory_order_seq_cst);
}

void shm_busy_ends(struct shm_conn *conn)
{
	if (--conn->busy_count == 0) {
		atomic_store_explicit(&conn->own->busy, ++conn->busy, memory_order_release);
		shm_changed(conn, SHM_REASON_QUIET);
	}
}

struct copy {
	const struct iovec *iov;
	uint32_t iov_count;
	size_t bytes;
	uint64_t offset; /* in the cookie */
	uint32_t right;
};

static void copy_now(uint8_t *at, const struct copy *copy)
{
	for (uint32_t i = 0; i < copy->iov_count; i++) {
		size_t length = copy->iov[i].iov_len;

		if (length > 0 && copy->right == CLAN_WRITE) {
			memcpy(at, copy->iov[i].iov_base, length);
		} else if (length > 0) {
			memcpy(copy->iov[i].iov_base, at, length);
		}
		at += length;
	}
}

/* Starts the copy on a helper thread. The region is held until shm_copy_copied() releases it. */
static int copy_by_helper(
	struct shm_conn *conn, const struct shm_copy_order *order, const struct copy *copy)
{
	int result = shm_copy_begin(conn, order, copy->iov, copy->iov_count);

	if (result == 0) {
		conn->regions[order->region]->holds++;
	}
	return result;
}

/* Makes the copy. If the peer is untrusted (is_wary), only starts the copy on a worker, and
 * CLAN_EVENT_DONE reports the end of the copy. */
static int copy_by_cookie(struct shm_conn *conn, const struct clan_cookie *cookie,
	const struct copy *copy, struct shm_copy_order *order)
{
	bool once = false;
	int result;

	if (cookie->slot >= conn->peer_cookie_count || used_already(conn, cookie)) {
		conn->conn.stats.refused++;
		return -ESTALE;
	}
	if ((cookie->flags & CLAN_COOKIE_ONCE) != 0 && conn->used_once == NULL) {
		conn->used_once = calloc(conn->peer_cookie_count, sizeof(*conn->used_once));
		if (conn->used_once == NULL) {
			return -ENOMEM;
		}
	}
	busy_begins(conn);
	result = cookie_place(conn, cookie, copy->right, copy->offset, copy->bytes, order, &once);
	if (result != 0) {
		conn->conn.stats.refused++;
	} else if (conn->conn.is_wary) {
		result = copy_by_helper(conn, order, copy);
	} else {
		copy_now(order->shared, copy);
	}
	if (result != 0 || !conn->conn.is_wary) {
		shm_busy_ends(conn);
	}
	if (result == 0 && once && conn->used_once != NULL) {
		conn->used_once[cookie->slot] = cookie->generation;
	}
	return result;
}

static bool shm_memory_sum_bytes(const struct iovec *iov, uint32_t iov_count, size_t *bytes_out)
{
	size_t bytes = 0;

	for (uint32_t i = 0; i < iov_count; i++) {
		if (iov[i].iov_len > UINT32_MAX - bytes) {
			return false;
		}
		bytes += iov[i].iov_len;
	}
	*bytes_out = bytes;
	return true;
}

static void touch_tripwires(struct shm_conn *conn, uint32_t region, uint64_t offset, size_t bytes);

void shm_touched(struct shm_conn *conn, const struct shm_copy_order *order)
{
	touch_tripwires(conn, order->cookie_region, order->touched_at, order->bytes);
}

/* The room for the notification is checked before the copy, so a put never has to be undone. With a
 * helper thread, the notification is sent after the copy. */
int shm_put(struct clan_conn *base, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op)
{
	struct shm_conn *conn = shm_conn(base);
	struct copy copy = {
		.iov = from, .iov_count = from_count, .offset = offset, .right = CLAN_WRITE
	};
	/* The range that this cookie names is compared with the peer's tripwires. It is the range
	 * that the peer granted, unless the program has altered the cookie: copy_by_cookie()
	 * accepts only the current generation of the slot. */
	struct shm_copy_order order = {
		.peers = true,
		.to_shared = true,
		.cookie_region = cookie->region,
		.touched_at = cookie->offset + offset,
		.notify = notify,
		.value = value,
		.op = op,
	};
	int result;

	if (!shm_memory_sum_bytes(from, from_count, &copy.bytes)) {
		return -ERANGE;
	}
	if (notify && !shm_room(conn, SHM_BULK, sizeof(value))) {
		return shm_no_room(conn, SHM_BULK, sizeof(value), CLAN_READY_SEND_BULK);
	}
	order.bytes = copy.bytes;
	result = copy_by_cookie(conn, cookie, &copy, &order);
	if (result != 0) {
		return result;
	}
	base->stats.puts++;
	base->stats.bytes_put += copy.bytes;
	if (base->is_wary) {
		return 0;
	}
	if (notify) {
		struct iovec iov = { .iov_base = &value, .iov_len = sizeof(value) };

		shm_put_message(conn, SHM_BULK, SHM_TYPE_NOTIFY, &iov, 1, sizeof(value));
	}
	shm_touched(conn, &order);
	return 0;
}

int shm_get(struct clan_conn *base, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op)
{
	struct copy copy = {
		.iov = to, .iov_count = to_count, .offset = offset, .right = CLAN_READ
	};
	struct shm_copy_order order = { .peers = true, .op = op };
	int result;

	if (!shm_memory_sum_bytes(to, to_count, &copy.bytes)) {
		return -ERANGE;
	}
	result = copy_by_cookie(shm_conn(base), cookie, &copy, &order);
	if (result == 0) {
		base->stats.gets++;
		base->stats.bytes_got += copy.bytes;
	}
	return result;
}

/* --- tripwires of ours ------------------------------------------------------------------------ */

static bool shm_memory_give_tripped(struct clan_source *source, struct clan_event *event)
{
	struct shm_watch *watch = container_of(source, struct shm_watch, source);

	event->type = CLAN_EVENT_TRIPPED;
	event->conn = &watch->conn->conn;
	event->context = watch->conn->conn.context;
	event->number = (uint32_t)(watch - watch->conn->watches);
	return false;
}

static void arm_watch(struct shm_conn *conn, uint32_t number)
{
	struct shm_watch *watch = &conn->watches[number];

	watch->arm = ++watch->arm_last;
	atomic_store_explicit(&conn->own_tripwires[number].arm, watch->arm, memory_order_release);
	/* Partner: the fence in touch_tripwires(). Either the program sees the bytes, or the peer
	 * sees the tripwire armed. */
	atomic_thread_fence(memory_order_seq_cst);
}

static void disarm_watch(struct shm_conn *conn, uint32_t number)
{
	conn->watches[number].arm = 0;
	atomic_store_explicit(&conn->own_tripwires[number].arm, 0, memory_order_release);
}

/* Relaxed stores suffice for the entry, because arm_watch() publishes it with a release store. */
int shm_tripwire(struct clan_conn *base, const struct clan_share *share, uint64_t offset,
	uint32_t bytes, uint32_t *number_out)
{
	struct shm_conn *conn = shm_conn(base);
	struct shm_tripwire *entry;
	uint32_t number = 0;

	if (conn->watches == NULL) {
		conn->watches = calloc(base->options.tripwires, sizeof(*conn->watches));
		if (conn->watches == NULL) {
			return -ENOMEM;
		}
	}
	while (number < base->options.tripwires && conn->watches[number].used) {
		number++;
	}
	if (number == base->options.tripwires) {
		return -ENOSPC;
	}
	entry = &conn->own_tripwires[number];
	atomic_store_explicit(&entry->offset, offset, memory_order_relaxed);
	atomic_store_explicit(&entry->bytes, bytes, memory_order_relaxed);
	atomic_store_explicit(&entry->region, share->number, memory_order_relaxed);
	conn->watches[number].used = true;
	conn->watches[number].conn = conn;
	clan_source_init(&conn->watches[number].source, shm_memory_give_tripped);
	arm_watch(conn, number);
	*number_out = number;
	return 0;
}

static bool watch_exists(const struct shm_conn *conn, uint32_t number)
{
	return conn->watches != NULL && number < conn->conn.options.tripwires &&
	       conn->watches[number].used;
}

int shm_rearm(struct clan_conn *base, uint32_t number)
{
	struct shm_conn *conn = shm_conn(base);

	if (!watch_exists(conn, number)) {
		return -ENOENT;
	}
	if (conn->watches[number].arm == 0 && !list_is_linked(&conn->watches[number].source.node)) {
		arm_watch(conn, number);
	}
	return 0;
}

int shm_tripwire_remove(struct clan_conn *base, uint32_t number)
{
	struct shm_conn *conn = shm_conn(base);

	if (!watch_exists(conn, number)) {
		return -ENOENT;
	}
	disarm_watch(conn, number);
	list_remove(&conn->watches[number].source.node);
	conn->watches[number].used = false;
	return 0;
}

void shm_tripped(struct shm_conn *conn, const struct shm_tripped *record)
{
	if (watch_exists(conn, record->tripwire) && record->arm != 0 &&
		conn->watches[record->tripwire].arm == record->arm) {
		disarm_watch(conn, record->tripwire);
		clan_fire(conn->conn.queue, &conn->watches[record->tripwire].source);
	}
}

/* --- tripwires of the peer -------------------------------------------------------------------- */

static bool send_trip(struct shm_conn *conn, uint32_t number)
{
	struct shm_tripped record = { .tripwire = number, .arm = conn->trips[number].answered };
	struct iovec iov = { .iov_base = &record, .iov_len = sizeof(record) };

	if (!shm_room(conn, SHM_SYSTEM, sizeof(record))) {
		return false;
	}
	shm_put_message(conn, SHM_SYSTEM, SHM_TYPE_TRIPPED, &iov, 1, sizeof(record));
	return true;
}

static void owe_trip(struct shm_conn *conn, uint32_t number)
{
	if (!conn->trips[number].owed) {
		conn->trips[number].owed = true;
		conn->trips_owed++;
		shm_want(conn);
	}
}

/* Allocated when the first tripwire is armed, because an untrusted peer can request a large
 * table. */
static bool make_trips(struct shm_conn *conn)
{
	if (conn->trips == NULL) {
		conn->trips = calloc(conn->peer_tripwire_count, sizeof(*conn->trips));
	}
	if (conn->trips == NULL) {
		shm_conn_end(conn, -ENOMEM, "not enough memory for tripwires of the peer");
	}
	return conn->trips != NULL;
}

/* Sends TRIPPED for each armed tripwire of the peer that the range touches, at most once for each
 * arming. */
static void touch_tripwires(struct shm_conn *conn, uint32_t region, uint64_t offset, size_t bytes)
{
	/* Partner: the fence in arm_watch(). Either the owner sees the bytes, or we see the
	 * tripwire armed. */
	atomic_thread_fence(memory_order_seq_cst);
	for (uint32_t i = 0; i < conn->peer_tripwire_count; i++) {
		const struct shm_tripwire *entry = &conn->peer_tripwires[i];
		uint64_t arm = atomic_load_explicit(&entry->arm, memory_order_acquire);
		uint64_t start;
		uint64_t end;

		if (likely(arm == 0)) {
			continue;
		}
		if (!make_trips(conn)) {
			return;
		}
		if (arm == conn->trips[i].answered) {
			continue;
		}
		start = atomic_load_explicit(&entry->offset, memory_order_relaxed);
		if (!checked_add_u64(start,
			    atomic_load_explicit(&entry->bytes, memory_order_relaxed), &end) ||
			(atomic_load_explicit(&entry->region, memory_order_relaxed) & 0xffff) !=
				region ||
			end <= offset || start >= offset + bytes) {
			continue;
		}
		conn->trips[i].answered = arm;
		if (!send_trip(conn, i)) {
			owe_trip(conn, i);
		}
	}
}

void shm_send_owed_trips(struct shm_conn *conn)
{
	for (uint32_t i = 0; i < conn->peer_tripwire_count && conn->trips_owed > 0; i++) {
		if (conn->trips[i].owed) {
			if (!send_trip(conn, i)) {
				return;
			}
			conn->trips[i].owed = false;
			conn->trips_owed--;
		}
	}
}

/* --- the end ---------------------------------------------------------------------------------- */

static void drop_revocations(struct shm_conn *conn)
{
	list_for_each(node, &conn->revocations)
	{
		struct shm_revocation *revocation = list_entry(node, struct shm_revocation, node);

		shm_memory_strict_ended(revocation);
		clan_deadline_clear(&revocation->deadline);
		list_remove(&revocation->source.node);
		list_remove(&revocation->node);
		free(revocation);
	}
}

void shm_memory_close(struct shm_conn *conn)
{
	drop_revocations(conn);
	shm_copies_drop(conn);
	for (uint32_t i = 0; conn->watches != NULL && i < conn->conn.options.tripwires; i++) {
		if (conn->watches[i].used) {
			list_remove(&conn->watches[i].source.node);
		}
	}
	shm_regions_leave(conn);
}

void shm_memory_free(struct shm_conn *conn)
{
	GMB_ASSERT(conn->regions_held == 0 && list_is_empty(&conn->region_list) &&
		   list_is_empty(&conn->revocations) && list_is_empty(&conn->copies));
	free(conn->grants);
	free(conn->used_once);
	free(conn->watches);
	free(conn->trips);
	free(conn->fifo);
	free(conn->regions);
}

/* In the child after fork(): frees the connection's records. The child has no workers, so
 * dispose_fd() closes descriptors itself. */
void shm_memory_after_fork(struct shm_conn *conn)
{
	shm_copies_after_fork(conn);
	list_for_each(node, &conn->revocations)
	{
		free(list_entry(node, struct shm_revocation, node));
	}
	list_for_each(node, &conn->region_list)
	{
		struct shm_peer_region *region = list_entry(node, struct shm_peer_region, node);

		if (region->state == SHM_REGION_MAPPING) {
			dispose_fd(region->fd, conn->conn.peer.uid, true);
		}
		free(region);
	}
	free(conn->grants);
	free(conn->used_once);
	free(conn->watches);
	free(conn->trips);
	free(conn->fifo);
	free(conn->regions);
}
