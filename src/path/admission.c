// SPDX-License-Identifier: Apache-2.0
#include "path/admission.h"

#include <errno.h>

#include "base/bytes.h"
#include "base/counter.h"
#include "path/path.h"

enum {
	/* One call of admission_serve() stops when it has given this much memory to clients. This
	 * limits the duration of the call, in which no completions are processed: a store can copy
	 * the data of a request before submit returns. */
	SERVE_BYTES = 1 << 20,
	SERVE_BYTES_EACH = 16 << 10, /* each client that was served counts as at least this much */
};

static const struct counter path_quota_counter_list[] = {
	COUNTER(struct path_quota, held_bytes, NOW, BYTES, "held_bytes",
		"Payload memory held by the clients of the export",
		.metric = "export_memory_bytes"),
	COUNTER(struct path_quota, waits, TOTAL, ITEMS, "waits",
		"Times a client waited because the export had reached its limit on payload memory"),
};

const struct counter_table path_quota_counter_table = { "memory", "export", "export_memory_",
	path_quota_counter_list, ARRAY_COUNT(path_quota_counter_list) };

#define ARENA(field, kind, unit, help) COUNTER(struct path_arena, field, kind, unit, #field, help)

static const struct counter path_arena_counter_list[] = {
	ARENA(limit_bytes, NOW, BYTES, "Upper limit of payload memory of this kind"),
	ARENA(mapped_bytes, NOW, BYTES, "Allocated payload memory of this kind"),
	ARENA(used_bytes, NOW, BYTES, "Payload memory of this kind in use"),
	ARENA(waits, TOTAL, ITEMS,
		"Times a client had to wait for payload memory of this kind that others held"),
	ARENA(spills, TOTAL, ITEMS,
		"Parts of requests staged in RAM because payload memory of this kind was full"),
};

const struct counter_table path_arena_counter_table = { "arena", "kind", "arena_",
	path_arena_counter_list, ARRAY_COUNT(path_arena_counter_list) };

/* Adds an arena's state to *sum. idle_bytes: size of buffers that are reserved and unused. */
static void add_arena(const struct arena *arena, const struct path_arena *counts,
	uint64_t idle_bytes, struct path_arena *sum)
{
	const struct arena_info *info = arena_info(arena);

	sum->kind = info->kind;
	sum->condemned = info->condemned != 0 ? info->condemned : sum->condemned;
	sum->limit_bytes += info->limit_bytes;
	sum->mapped_bytes += info->mapped_bytes;
	sum->used_bytes += info->used_bytes - idle_bytes;
	sum->waits += counts->waits;
	sum->spills += counts->spills;
}

void path_arenas_add(struct path *path, struct path_arena *ram, struct path_arena *device)
{
	const struct path_admission *admission = path_admission(path);

	add_arena(admission->ram, &admission->ram_counts, admission->atomic_idle_bytes, ram);
	if (admission->device != NULL) {
		add_arena(admission->device, &admission->device_counts, 0, device);
	}
}

/* --- limits of a client ---------------------------------------------------------------------- */

static bool is_below_thresholds(
	uint64_t client_bytes, uint64_t export_bytes, const struct arena *arena, uint64_t bytes)
{
	uint64_t left = arena_free_bytes(arena);

	return client_bytes + bytes <= left / PATH_CLIENT_DIVISOR &&
	       export_bytes + bytes <= left * PATH_EXPORT_FACTOR;
}

/* Returns the size of the smallest block that can hold this many bytes. */
static uint64_t path_share_block_bytes(uint64_t bytes)
{
	uint64_t block = ARENA_BLOCK_BYTES_MIN;

	while (block < bytes) {
		block *= 2;
	}
	return block;
}

/* Returns the quota that does not permit the client to hold this many more bytes, or NULL. A quota
 * permits them if the client then holds at most as much of it as remains for others. */
static struct path_quota *quota_without_room(const struct path_client *client, uint64_t bytes)
{
	for (int i = 0; i < PATH_QUOTAS; i++) {
		struct path_quota *quota = client->quotas[i];

		if (quota != NULL && unlikely(quota->max_bytes != PATH_QUOTA_NONE) &&
			quota->held_bytes + client->held_bytes + 2 * path_share_block_bytes(bytes) >
				quota->max_bytes) {
			return quota;
		}
	}
	return NULL;
}

static void path_share_hold(struct path_client *client, uint64_t bytes)
{
	client->held_bytes += bytes;
	for (int i = 0; i < PATH_QUOTAS; i++) {
		if (client->quotas[i] != NULL) {
			client->quotas[i]->held_bytes += bytes;
		}
	}
}

static void let_go(struct path_client *client, uint64_t bytes)
{
	client->held_bytes -= bytes;
	for (int i = 0; i < PATH_QUOTAS; i++) {
		if (client->quotas[i] != NULL) {
			GMB_ASSERT(client->quotas[i]->held_bytes >= bytes);
			client->quotas[i]->held_bytes -= bytes;
		}
	}
}

/* Returns whether the client can hold this many more bytes. replaced_bytes: size of the buffer that
 * the request has just returned. Such a request can always get a buffer again. But if the returned
 * one could be the client's reserve, which quotas do not include, it gets another one only if the
 * quotas permit this; otherwise it gets the reserve again. */
static bool may_hold(struct path_client *client, uint64_t export_bytes, const struct arena *arena,
	uint64_t bytes, uint64_t replaced_bytes)
{
	if (likely(replaced_bytes == 0)) {
		client->lacking = quota_without_room(client, bytes);
		return client->lacking == NULL &&
		       is_below_thresholds(client->held_bytes, export_bytes, arena, bytes);
	}
	return replaced_bytes > PATH_RESERVE_BYTES || client->reserve_used ||
	       quota_without_room(client, bytes) == NULL;
}

/* Takes the client's reserve. Returns false if the reserve is in use, or is too small for an atomic
 * write. A read gets the reserve only if the client holds no other buffer, or if the read has just
 * returned a buffer (replaced_bytes); otherwise it waits until the data in the other buffer has
 * been sent. A write need not wait for other buffers, because the peer might not receive any data
 * until it has sent the write. */
static bool get_reserve(struct path_request *request, struct arena **arena_inout, uint64_t offset,
	uint64_t replaced_bytes, uint64_t *bytes_inout, struct arena_buf *buf)
{
	struct path_client *client = request->client;
	/* The part ends at a multiple of PATH_RESERVE_BYTES, so that the next part is aligned. An
	 * atomic write has only one part. */
	uint64_t room = PATH_RESERVE_BYTES - (request->atomic ? 0 : offset % PATH_RESERVE_BYTES);
	bool may = request->op == STORE_WRITE || client->buffer_count == 0 || replaced_bytes > 0;

	may = may && (!request->atomic || *bytes_inout <= room);
	if (!may || client->reserve_used || arena_get_reserved(client->admission->ram, buf) < 0) {
		return false;
	}
	*arena_inout = client->admission->ram;
	*bytes_inout = MIN(*bytes_inout, room);
	client->reserve_used = true;
	client->buffer_count++;
	client->lacking = NULL;
	return true;
}

/* --- blocks for atomic writes ---------------------------------------------------------------- */

uint32_t path_atomic_bytes(struct path *path, const struct store *store)
{
	const struct path_admission *admission = path_admission(path);
	const struct arena_info *info = arena_info(admission->ram);
	uint64_t memory = info->limit_bytes - info->reserve_bytes;
	uint64_t promised = store_info(store)->atomic_bytes;
	uint64_t block = promised > 0 ? path_share_block_bytes(promised) : 0;

	while (block > PATH_RESERVE_BYTES &&
		(block > memory / PATH_ATOMIC_DIVISOR || block > ARENA_BLOCK_BYTES_MAX ||
			admission->atomic_bytes + block > memory / PATH_ATOMIC_DIVISOR_ALL)) {
		block /= 2;
	}
	return (uint32_t)MIN(promised, block);
}

/* Allocates the blocks for atomic writes of exports whose block could not be allocated before. */
static void keep_atomic(struct path_admission *admission)
{
	struct list_node *node;

	while (unlikely((node = list_first(&admission->atomic_lacking)) != NULL)) {
		struct path_export *export = list_entry(node, struct path_export, atomic_node);

		if (arena_get(admission->ram, export->atomic_bytes, &export->atomic) < 0) {
			return;
		}
		list_remove(node);
		admission->atomic_idle_bytes += export->atomic.bytes;
	}
}

/* Uses the export's block for an atomic write, unless other clients must be served first. */
static bool get_atomic(
	struct path_request *request, struct arena **arena_inout, struct arena_buf *buf)
{
	struct path_client *client = request->client;
	struct path_export *export = request->export;
	struct path_admission *admission = client->admission;

	if (likely(!request->atomic)) {
		return false;
	}
	client->lacking = NULL; /* the request waits for the export's block, not for a quota */
	if (export->atomic.memory.rights == 0 || export->atomic_used) {
		return false;
	}
	if (!admission->serving && !turn_is_waiting(&client->turn) &&
		!turns_are_empty(&admission->waiting)) {
		admission->released = true; /* path_serve() will give the client its turn */
		return false;
	}
	*buf = export->atomic;
	*arena_inout = admission->ram;
	export->atomic_used = true;
	admission->atomic_idle_bytes -= buf->bytes;
	request->atomic_held = true;
	client->atomic_count++;
	client->buffer_count++;
	return true;
}

static void put_atomic(struct path_request *request, struct arena_buf *buf)
{
	request->atomic_held = false;
	request->export->atomic_used = false;
	request->client->atomic_count--;
	request->client->admission->atomic_idle_bytes += buf->bytes;
	buf->memory = MEM_NONE;
}

/* Returns whether the export needs a block for atomic writes. If its atomic writes are not longer
 * than a client's reserve, the reserve is used instead. */
static bool needs_block(const struct path_export *path_export)
{
	return path_export->atomic_bytes > PATH_RESERVE_BYTES;
}

void path_export_join(struct path *path, struct path_export *path_export, uint32_t atomic_bytes)
{
	struct path_admission *admission = path_admission(path);

	GMB_ASSERT(atomic_bytes <= store_info(path_export->store)->atomic_bytes);
	path_export->atomic_bytes = atomic_bytes;
	if (needs_block(path_export)) {
		admission->atomic_bytes += path_share_block_bytes(atomic_bytes);
		list_push_back(&admission->atomic_lacking, &path_export->atomic_node);
		keep_atomic(admission);
	}
}

void path_export_leave(struct path *path, struct path_export *path_export)
{
	struct path_admission *admission = path_admission(path);

	GMB_ASSERT(!path_export->atomic_used);
	admission->atomic_bytes -=
		needs_block(path_export) ? path_share_block_bytes(path_export->atomic_bytes) : 0;
	list_remove(&path_export->atomic_node);
	if (path_export->atomic.memory.rights != 0) {
		admission->atomic_idle_bytes -= path_export->atomic.bytes;
		arena_put(admission->ram, &path_export->atomic);
	}
	admission->released = true;
}

/* --- buffers ------------------------------------------------------------------------------- */

/* Returns whether the client can hold this many more bytes of device memory, which quotas do not
 * include. */
static bool may_hold_device(struct path_client *client, const struct path_export *export,
	uint64_t bytes, uint64_t replaced_bytes)
{
	client->lacking = NULL;
	return replaced_bytes > 0 ||
	       is_below_thresholds(client->device_held_bytes, export->device_held_bytes,
		       client->admission->device, bytes);
}

/* Gets a buffer from the arena for *bytes_inout bytes. If memory is short, halves *bytes_inout, but
 * not further once it is at most PATH_PART_BYTES_MIN, and not for an atomic write. */
static bool get_from(struct path_request *request, struct arena *arena, uint64_t replaced_bytes,
	uint64_t *bytes_inout, struct arena_buf *buf)
{
	struct path_client *client = request->client;
	struct path_export *export = request->export;
	bool of_device = unlikely(arena == client->admission->device);
	uint64_t bytes = *bytes_inout;

	if (unlikely(!list_is_empty(&client->admission->atomic_lacking)) && !of_device &&
		replaced_bytes == 0) {
		client->lacking = NULL;
		return false;
	}
	if (unlikely(replaced_bytes > 0)) {
		bytes = MIN(bytes, replaced_bytes);
	}
	while (!(of_device ? may_hold_device(client, export, bytes, replaced_bytes)
			   : may_hold(client, export->held_bytes, arena, bytes, replaced_bytes)) ||
		arena_get(arena, (uint32_t)bytes, buf) < 0) {
		if (bytes <= PATH_PART_BYTES_MIN || request->atomic) {
			return false;
		}
		bytes = align_down(bytes / 2, PATH_RESERVE_BYTES);
	}
	*bytes_inout = bytes;
	client->buffer_count++;
	if (of_device) {
		client->device_held_bytes += buf->bytes;
		export->device_held_bytes += buf->bytes;
	} else {
		path_share_hold(client, buf->bytes);
		export->held_bytes += buf->bytes;
	}
	return true;
}

bool admission_get(struct path_request *request, struct arena **arena_inout, uint64_t offset,
	uint64_t replaced_bytes, uint64_t *bytes_inout, struct arena_buf *buf)
{
	struct path_admission *admission = request->client->admission;
	bool got;

	if (likely(get_from(request, *arena_inout, replaced_bytes, bytes_inout, buf))) {
		return true;
	}
	if (*arena_inout == admission->device &&
		(!admission->device_waits || arena_info(admission->device)->condemned != 0)) {
		*arena_inout = admission->ram;
		if (get_from(request, admission->ram, replaced_bytes, bytes_inout, buf)) {
			request->export->ram_for_room++;
			admission->device_counts.spills++;
			return true;
		}
	}
	got = get_atomic(request, arena_inout, buf) ||
	      get_reserve(request, arena_inout, offset, replaced_bytes, bytes_inout, buf);
	request->client->lacks_device = !got && *arena_inout == admission->device;
	return got;
}

void admission_put(struct path_request *request, struct arena *arena, struct arena_buf *buf)
{
	struct path_client *client = request->client;

	GMB_ASSERT(client->buffer_count > 0);
	client->buffer_count--;
	client->admission->released = true;
	if (unlikely(request->atomic_held)) {
		put_atomic(request, buf);
		return;
	}
	if (unlikely(buf->reserved)) {
		client->reserve_used = false;
	} else if (unlikely(arena == client->admission->device)) {
		client->device_held_bytes -= buf->bytes;
		request->export->device_held_bytes -= buf->bytes;
	} else {
		let_go(client, buf->bytes);
		request->export->held_bytes -= buf->bytes;
	}
	arena_put(arena, buf);
}

int path_client_get(struct path_client *client, uint32_t bytes, struct arena_buf *buf)
{
	if (!list_is_empty(&client->admission->atomic_lacking) ||
		quota_without_room(client, bytes) != NULL ||
		!is_below_thresholds(client->held_bytes, 0, client->admission->ram, bytes) ||
		arena_get(client->admission->ram, bytes, buf) < 0) {
		return -EAGAIN;
	}
	path_share_hold(client, buf->bytes);
	return 0;
}

void path_client_put(struct path_client *client, struct arena_buf *buf)
{
	let_go(client, buf->bytes);
	arena_put(client->admission->ram, buf);
	client->admission->released = true;
}

/* --- the window ---------------------------------------------------------------------------- */

/* A read that is sent only when it is complete can exceed the window if its client has no other
 * unsent data. */
bool admission_fits_window(const struct path_request *request, uint64_t bytes)
{
	const struct path_client *client = request->client;

	return client->unsent_bytes == 0 || client->unsent_bytes + bytes <= client->window_bytes ||
	       (request->whole && client->unsent_bytes == request->live_bytes);
}

/* Gives the client a turn to retry its waiting requests. */
static void path_share_look_again(struct path_client *client)
{
	if (!list_is_empty(&client->stalled)) {
		turns_add(&client->admission->waiting, &client->turn);
		client->admission->released = true;
	}
}

void admission_begin_unsent(struct path_request *request, uint64_t bytes)
{
	request->client->unsent_bytes += bytes;
}

void admission_end_unsent(struct path_request *request, uint64_t bytes)
{
	GMB_ASSERT(request->client->unsent_bytes >= bytes);
	request->client->unsent_bytes -= bytes;
	path_share_look_again(request->client);
}

void path_client_sent(struct path_client *client, uint64_t bytes, bool filled)
{
	client->window_bytes =
		filled ? (uint64_t)PATH_WINDOW_BYTES
		       : MIN(client->window_bytes + bytes, (uint64_t)PATH_WINDOW_BYTES_MAX);
}

/* --- waiting ------------------------------------------------------------------------------- */

static struct path_request *request_of(struct list_node *stalled_node)
{
	return list_entry(stalled_node, struct path_request, stalled_node);
}

/* Records what the client waits for. is_short: it waits for memory that others hold. of: the quota
 * that does not permit more, or NULL. of_device: the memory is device memory. */
static void set_short(
	struct path_client *client, bool is_short, struct path_quota *of, bool of_device)
{
	struct path_quota *before = client->short_of;

	if (is_short && !client->is_short && of == NULL) {
		struct path_admission *admission = client->admission;

		(of_device ? &admission->device_counts : &admission->ram_counts)->waits++;
	}
	client->admission->short_count += is_short;
	client->admission->short_count -= client->is_short;
	client->admission->device_short_count += of_device;
	client->admission->device_short_count -= client->short_of_device;
	client->is_short = is_short;
	client->short_of = of;
	client->short_of_device = of_device;
	if (likely(before == of)) {
		return;
	}
	if (of != NULL) {
		of->short_count++;
		of->waits++;
	}
	if (before != NULL) {
		before->short_count--;
	}
	client->admission->quota_short_count += of != NULL;
	client->admission->quota_short_count -= before != NULL;
}

void admission_wait(struct path_request *request, bool is_short)
{
	struct path_client *client = request->client;
	struct path_quota *lacking = is_short ? client->lacking : NULL;
	bool lacks_device = is_short && client->lacks_device;

	client->lacking = NULL;
	client->lacks_device = false;
	if (!list_is_linked(&request->stalled_node)) {
		/* A write is queued behind other writes, but in front of all reads. Otherwise they
		 * could wait for each other: a read waits until the peer receives its data, and the
		 * peer might not receive until it has sent its write. */
		struct list_node *next = client->stalled.next;

		while (request->op == STORE_WRITE && next != &client->stalled &&
			request_of(next)->op == STORE_WRITE) {
			next = next->next;
		}
		list_insert_before(request->op == STORE_WRITE ? next : &client->stalled,
			&request->stalled_node);
	}
	/* The first of its waiting requests determines what the client waits for. */
	if (list_first(&client->stalled) == &request->stalled_node) {
		set_short(client, is_short, lacking, lacks_device);
		if (is_short) {
			turns_add(&client->admission->waiting, &client->turn);
		}
	}
}

void admission_wait_end(struct path_request *request)
{
	struct path_client *client = request->client;

	if (!list_is_linked(&request->stalled_node)) {
		return;
	}
	list_remove(&request->stalled_node);
	if (request->costly == PATH_COSTLY_WAITS) {
		request->costly = PATH_COSTLY_NOT;
		client->admission->costly_waiting_count--;
		return;
	}
	set_short(client, false, NULL, false);
	if (list_is_empty(&client->stalled)) {
		turns_remove(&client->turn);
	}
	path_share_look_again(client);
}

bool admission_must_wait(const struct path_request *request)
{
	return request->op != STORE_WRITE && !list_is_empty(&request->client->stalled) &&
	       list_first(&request->client->stalled) != &request->stalled_node;
}

/* --- costly requests ----------------------------------------------------------------------- */

bool admission_is_costly(const struct path_request *request)
{
	if (request->op == STORE_FLUSH) {
		return false;
	}
	return request->op == STORE_EXTENTS || request->length > PATH_CHEAP_BYTES ||
	       (store_info(request->export->store)->caps & STORE_CAP_CALLS) != 0;
}

/* Returns whether the costly request can start. Each export can always have one in the store. */
static bool costly_may(const struct path_request *request)
{
	uint32_t count = request->export->costly_count;

	return !request->client->costly_busy &&
	       (count == 0 || count + request->client->admission->costly_count < PATH_COSTLY_MAX);
}

/* Gives the client a turn for its next costly request, if that request might be able to start. */
static void look_for_costly(struct path_client *client)
{
	if (!client->costly_busy && !list_is_empty(&client->costly_waiting)) {
		turns_add(&client->admission->costly, &client->costly_turn);
	}
}

bool admission_costly_waits(struct path_request *request)
{
	struct path_client *client = request->client;
	struct path_admission *admission = client->admission;
	bool may = costly_may(request);
	bool had_turn = client->is_short && list_first(&client->stalled) == &request->stalled_node;

	/* A new request must not take a slot for costly requests for which others already wait. A
	 * request that had its turn, and then had to wait for memory, may start. */
	if (may && (admission->costly_serving || had_turn || turns_are_empty(&admission->costly))) {
		return false;
	}
	admission->released |= may;
	admission_wait_end(request); /* the request no longer waits for memory */
	request->costly = PATH_COSTLY_WAITS;
	admission->costly_waiting_count++;
	list_push_back(&client->costly_waiting, &request->stalled_node);
	look_for_costly(client);
	return true;
}

void admission_costly_begin(struct path_request *request)
{
	GMB_ASSERT(request->costly == PATH_COSTLY_NOT && costly_may(request));
	request->costly = PATH_COSTLY_BUSY;
	request->client->costly_busy = true;
	request->client->admission->costly_count++;
	request->export->costly_count++;
}

void admission_costly_end(struct path_request *request)
{
	struct path_client *client = request->client;

	GMB_ASSERT(request->costly == PATH_COSTLY_BUSY);
	request->costly = PATH_COSTLY_NOT;
	client->costly_busy = false;
	client->admission->costly_count--;
	request->export->costly_count--;
	client->admission->released = true;
	look_for_costly(client);
}

static void serve_costly(
	struct path_admission *admission, void (*start)(struct path_request *request))
{
	struct turns_round round;
	struct list_node *node;
	struct turn *turn;

	admission->costly_serving = true;
	turns_round_init(&round);
	while ((turn = turns_next(&admission->costly)) != NULL) {
		struct path_client *client = container_of(turn, struct path_client, costly_turn);
		struct path_request *request;

		node = list_first(&client->costly_waiting);
		if (node == NULL) {
			continue; /* the client's request was abandoned */
		}
		request = list_entry(node, struct path_request, stalled_node);
		if (!costly_may(request)) {
			turns_in_vain(turn, &round);
			continue;
		}
		admission_wait_end(request);
		start(request);
		look_for_costly(client);
		turns_had(&admission->costly, turn, &round);
	}
	turns_end(&admission->costly, &round);
	admission->costly_serving = false;
}

/* Returns the number of bytes that a client's turn counts towards SERVE_BYTES. held: number of
 * bytes that the client held before its turn. */
static uint64_t served_bytes(const struct path_client *client, uint64_t held)
{
	uint64_t holds = client->held_bytes + client->device_held_bytes;
	uint64_t got = holds > held ? holds - held : 0;

	return MAX(got, (uint64_t)SERVE_BYTES_EACH);
}

void admission_serve(struct path_admission *admission, void (*again)(struct path_request *request),
	void (*start)(struct path_request *request))
{
	struct turns_round round;
	struct turn *turn;
	uint64_t given = 0;

	admission->released = false;
	keep_atomic(admission);
	admission->serving = true;
	turns_round_init(&round);
	while (given < SERVE_BYTES && (turn = turns_next(&admission->waiting)) != NULL) {
		struct path_client *client = container_of(turn, struct path_client, turn);
		uint64_t held = client->held_bytes + client->device_held_bytes;
		uint32_t atomic_count = client->atomic_count;

		again(request_of(list_first(&client->stalled)));
		if (client->held_bytes + client->device_held_bytes > held ||
			client->atomic_count > atomic_count) {
			/* held_bytes does not include the reserve. So a client that got only its
			 * reserve does not reach this line, and keeps its turn. */
			turns_had(&admission->waiting, turn, &round);
			given += served_bytes(client, held);
		} else if (turn_is_waiting(turn)) {
			turns_in_vain(turn, &round);
		}
	}
	admission->released |= !turns_are_empty(&admission->waiting);
	turns_end(&admission->waiting, &round);
	admission->serving = false;
	if (unlikely(admission->costly_waiting_count > 0)) {
		serve_costly(admission, start);
	}
}

/* --- creation and end ------------------------------------------------------------------------ */

void path_peer_init(struct path_peer *peer)
{
	turn_group_init(&peer->waiting);
	turn_group_init(&peer->costly);
}

void path_client_init(struct path_client *client, struct path *path, struct path_peer *peer)
{
	*client = (struct path_client){
		.operations = &path_admission(path)->operations,
		.admission = path_admission(path),
		.window_bytes = PATH_WINDOW_BYTES,
	};
	turn_init(&client->turn, &peer->waiting);
	turn_init(&client->costly_turn, &peer->costly);
	list_init(&client->stalled);
	list_init(&client->costly_waiting);
}

void path_quota_init(struct path_quota *quota, uint64_t max_bytes)
{
	*quota = (struct path_quota){ .max_bytes = max_bytes };
}

void path_quota_set(struct path_quota *quota, struct path *path, uint64_t max_bytes)
{
	quota->max_bytes = max_bytes;
	path_admission(path)->released = true;
}

void path_client_join(
	struct path_client *client, enum path_quota_kind kind, struct path_quota *quota)
{
	GMB_ASSERT(client->quotas[kind] == NULL);
	client->quotas[kind] = quota;
	quota->held_bytes += client->held_bytes;
}

bool path_client_is_wanted(const struct path_client *client)
{
	const struct path_admission *admission = client->admission;
	bool wanted = admission->short_count >
			      admission->quota_short_count + admission->device_short_count ||
		      (admission->device_short_count > 0 && client->device_held_bytes > 0);

	for (int i = 0; i < PATH_QUOTAS && !wanted; i++) {
		const struct path_quota *quota = client->quotas[i];

		wanted = quota != NULL && quota->short_count > (client->short_of == quota);
	}
	return wanted;
}

void path_client_fini(struct path_client *client)
{
	GMB_ASSERT(client->short_of == NULL && !client->short_of_device);
	GMB_ASSERT(!path_client_holds(client) && client->buffer_count == 0);
	GMB_ASSERT(client->unsent_bytes == 0 && list_is_empty(&client->stalled));
	GMB_ASSERT(!client->costly_busy && list_is_empty(&client->costly_waiting));
	turns_remove(&client->turn);
	turns_remove(&client->costly_turn);
}
