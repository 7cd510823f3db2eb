// SPDX-License-Identifier: Apache-2.0
/*
 * Snapshots: the contents of the disk at a checkpoint, under a name. A snapshot is a tree of its
 * own, which begins as a copy of the node addresses of the disk's tree. The anchor contains the
 * addresses of its top nodes. So the snapshot is created and deleted by a checkpoint or not at all.
 *
 *   request ─▶ prepare: write the dirty pages of the cache while clients continue
 *           ─▶ hold: changes wait, the remaining dirty pages are written
 *           ─▶ checkpoint begins: CREATING, changes continue ─▶ checkpoint ends: LIVE, done
 *
 * The garbage collector moves blocks of snapshots like blocks of the disk: by one record, which
 * changes every tree that refers to the block. So a snapshot costs the space of blocks that have
 * been overwritten since, and the garbage in its segments can still be collected.
 *
 * Invariant: the number of blocks of a segment that each tree refers to is exact. The number of
 * blocks that only snapshots have ("kept") is an estimate: only the snapshot's page shows whether a
 * block that the disk has overwritten belongs to the snapshot. `kept` is the lower bound that
 * follows from the counts, and is exact for moved blocks. The estimate is used to choose victims
 * and to estimate space, not to free segments.
 *
 * Threading: as in snapshot.h. State that other threads read is changed under watch_lock.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "store/flash/flash.h"

/* Percentage of the segments outside the reserve that must remain writable. */
enum { ROOM_MIN_PERCENT = 6 };

static const uint32_t snapshot_edges[FLASH_SNAPSHOT_STATE_COUNT] = {
	[FLASH_SNAPSHOT_NONE] = BIT(FLASH_SNAPSHOT_CREATING) |
				BIT(FLASH_SNAPSHOT_LIVE), /* LIVE when the disk is opened */
	[FLASH_SNAPSHOT_CREATING] = BIT(FLASH_SNAPSHOT_LIVE) | BIT(FLASH_SNAPSHOT_NONE),
	[FLASH_SNAPSHOT_LIVE] = BIT(FLASH_SNAPSHOT_DELETING),
	[FLASH_SNAPSHOT_DELETING] = BIT(FLASH_SNAPSHOT_NONE) | BIT(FLASH_SNAPSHOT_LIVE),
};

/* Takes the lock, because other threads list the snapshots. */
static void snapshot_set_state(
	struct flash *flash, struct flash_snapshot *snapshot, enum flash_snapshot_state state)
{
	GMB_ASSERT((snapshot_edges[snapshot->state] & BIT(state)) != 0);
	pthread_mutex_lock(&flash->base.watch_lock);
	snapshot->state = state;
	pthread_mutex_unlock(&flash->base.watch_lock);
}

static uint32_t index_of(const struct flash *flash, const struct flash_snapshot *snapshot)
{
	return (uint32_t)(snapshot - flash->snapshots.list);
}

static struct flash_snapshot *snapshot_find(struct flash *flash, const char *name)
{
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		struct flash_snapshot *snapshot = &flash->snapshots.list[i];

		if (snapshot->state == FLASH_SNAPSHOT_LIVE &&
			strcmp(snapshot->about.name, name) == 0) {
			return snapshot;
		}
	}
	return NULL;
}

uint32_t flash_snapshots_list(struct store *store, struct store_snapshot list[STORE_SNAPSHOTS_MAX])
{
	struct flash *flash = container_of(store, struct flash, base);
	uint32_t count = 0;

	pthread_mutex_lock(&flash->base.watch_lock);
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		const struct flash_snapshot *snapshot = &flash->snapshots.list[i];

		if (snapshot->state == FLASH_SNAPSHOT_LIVE) {
			memcpy(list[count].name, snapshot->about.name, sizeof(list[count].name));
			list[count].is_temporary = snapshot->about.is_temporary;
			list[count++].created_s = snapshot->about.created_s;
		}
	}
	pthread_mutex_unlock(&flash->base.watch_lock);
	return count;
}

/* --- space ----------------------------------------------------------------------------------- */

/* Returns how many blocks clients could write if all garbage were collected. This excludes the
 * reserve and the share that must remain writable (ROOM_MIN_PERCENT). Negative if that share is not
 * available. */
static int64_t snapshot_room_of(const struct flash *flash)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	int64_t usable = (int64_t)flash_usable_blocks(geometry);
	int64_t left = (geometry->segment_count - geometry->reserve_segments) * usable *
		       ROOM_MIN_PERCENT / 100;
	int64_t room = 0;

	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		const struct gc_segment *segment = &flash->table.segments[i];
		int64_t used = flash->segments[i].is_kept
				       ? usable
				       : (int64_t)segment->valid + segment->kept +
						 flash->segments[i].nodes;

		room += usable - MIN(usable, used);
	}
	return room - geometry->reserve_segments * usable - left;
}

/* Order of dropping: damaged snapshots first, then temporary ones (of jobs), then the oldest. If
 * writes are refused to keep the snapshots of users, temporary ones always precede them. */
static bool goes_before(
	bool refuses, const struct flash_snapshot *snapshot, const struct flash_snapshot *other)
{
	if (snapshot->is_damaged != other->is_damaged && !refuses) {
		return snapshot->is_damaged;
	}
	return snapshot->about.is_temporary == other->about.is_temporary
		       ? snapshot->about.serial < other->about.serial
		       : snapshot->about.is_temporary;
}

/* Returns the snapshot that is dropped first, or NULL if there is none. */
static struct flash_snapshot *oldest(struct flash *flash)
{
	struct flash_snapshot *found = NULL;

	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		struct flash_snapshot *snapshot = &flash->snapshots.list[i];

		if (snapshot->state == FLASH_SNAPSHOT_LIVE &&
			(found == NULL || goes_before(flash->snapshots.refuses, snapshot, found))) {
			found = snapshot;
		}
	}
	return found;
}

static bool is_going(const struct flash *flash)
{
	return flash->snapshots.list[0].state == FLASH_SNAPSHOT_DELETING ||
	       flash->snapshots.list[1].state == FLASH_SNAPSHOT_DELETING;
}

/* True if the snapshot that oldest() returns must be dropped before writes are refused. This is
 * always so for the snapshot of a job, because no user has asked to keep it. There must be a
 * snapshot. */
static bool is_droppable(struct flash *flash)
{
	return !flash->snapshots.refuses || oldest(flash)->about.is_temporary;
}

/* Marks the snapshot for the next checkpoint, which deletes it. Its reads fail immediately. */
static void drop_oldest(struct flash *flash)
{
	struct flash_snapshot *snapshot = oldest(flash);

	log_warning("flash store '%s': snapshot '%s' is dropped: the blocks it keeps leave no "
		    "space for writes; reads of it fail from now on",
		flash->path, snapshot->about.name);
	flash->counters.snapshots_dropped++;
	pthread_mutex_lock(&flash->base.watch_lock);
	memcpy(flash->snapshots.dropped, snapshot->about.name, sizeof(flash->snapshots.dropped));
	pthread_mutex_unlock(&flash->base.watch_lock);
	snapshot_set_state(flash, snapshot, FLASH_SNAPSHOT_DELETING);
	flash->pump_again = true;
	if (flash->base.snapshot_dropped != NULL && !flash->is_closing) {
		flash->base.snapshot_dropped(flash->base.snapshot_context);
	}
}

/* Logs only the first refusal of a write. */
static void tell_refusal(const struct flash *flash)
{
	if (!flash->snapshots.is_full && !flash->snapshots.is_stuck) {
		log_warning("flash store '%s': writes fail from now on: the blocks that its "
			    "snapshots keep leave no space for them; delete a snapshot",
			flash->path);
	}
}

void flash_snapshots_look(struct flash *flash)
{
	struct flash_snapshots *snapshots = &flash->snapshots;
	int64_t room;
	bool is_low;

	if (oldest(flash) == NULL && snapshots->request == NULL) {
		snapshots->is_full = false;
		flash->cache.is_tight = false;
		return;
	}
	room = snapshot_room_of(flash);
	/* A cached write has been answered and can no longer be refused. So the cache is emptied
	 * before space runs out. */
	flash->cache.is_tight = snapshots->refuses && room < (int64_t)flash->cache.slot_count;
	is_low = oldest(flash) != NULL && !is_going(flash) && room < 0;
	if (is_low && is_droppable(flash)) {
		drop_oldest(flash);
		is_low = false;
	} else if (is_low) {
		tell_refusal(flash);
	}
	snapshots->is_full = is_low;
}

bool flash_snapshots_refuse(struct flash *flash, enum store_op op)
{
	if (flash->snapshots.is_full && op == STORE_WRITE) {
		flash_snapshots_look(flash); /* trims might have made room */
	}
	return flash->snapshots.is_stuck || (flash->snapshots.is_full && op == STORE_WRITE);
}

/* --- requests -------------------------------------------------------------------------------- */

void flash_snapshots_io_ended(struct flash *flash)
{
	struct flash_snapshots *snapshots = &flash->snapshots;
	struct store_snapshot_request *request = snapshots->request;

	/* The store may be closed when its last request completes. So that request, like the last
	 * part (see flash_finish()), completes only when no operation is in flight. */
	if (request != NULL && snapshots->is_done && !snapshots->turn.in_flight &&
		(flash->io_count == 0 || flash->part_count > flash->held_count)) {
		snapshots->request = NULL;
		snapshots->is_done = false;
		request->done(request);
		flash_pump(flash); /* the next request in `waiting` can begin now */
	}
}

static void snapshot_turn_done(struct ring_op *op, int result)
{
	struct flash *flash = container_of(op, struct flash, snapshots.turn);

	flash_io_ended(flash);
}

/* Completes the current request in the ring's next batch. The extra count in io_count keeps the
 * store alive until then. */
static void complete(struct flash *flash, int result)
{
	struct flash_snapshots *snapshots = &flash->snapshots;

	snapshots->request->result = result;
	snapshots->is_done = true;
	snapshots->is_prepared = false;
	snapshots->holds = false;
	flash->io_count++;
	ring_defer(flash->ring, &snapshots->turn, 0, snapshot_turn_done);
}

static bool has_place(const struct flash *flash)
{
	return flash->snapshots.list[0].state == FLASH_SNAPSHOT_NONE ||
	       flash->snapshots.list[1].state == FLASH_SNAPSHOT_NONE;
}

static int refuse_create(struct error *error)
{
	return error_set(error, -ENOSPC,
		"has no space for a snapshot: less than %d %% of its segments can be written",
		ROOM_MIN_PERCENT);
}

static int check_create(struct flash *flash, const char *name, struct error *error)
{
	if (!flash_snapshot_name_is_sound(name)) {
		return error_set(error, -EINVAL,
			"cannot have a snapshot with that name: use 1 to %d letters, digits, '.', "
			"'_' and '-', and begin with a letter or digit",
			FLASH_SNAPSHOT_NAME_BYTES - 1);
	}
	if (snapshot_find(flash, name) != NULL) {
		return error_set(error, -EEXIST, "already has a snapshot '%s'", name);
	}
	if (!has_place(flash) && !is_going(flash)) {
		return error_set(error, -EMLINK, "has %d snapshots, which is the limit; delete one",
			FLASH_SNAPSHOTS);
	}
	return snapshot_room_of(flash) < 0 || flash->snapshots.is_stuck ? refuse_create(error) : 0;
}

/* Returns a negative errno if the request must fail. A deletion begins here: the snapshot is no
 * longer live, and the next checkpoint deletes it. */
static int check_request(struct flash *flash, struct store_snapshot_request *request)
{
	struct flash_snapshot *snapshot = snapshot_find(flash, request->snapshot.name);

	if (flash->is_read_only) {
		return error_set(&request->error, -EROFS, "is served with 'readonly'");
	}
	if (flash->failed != 0) {
		return error_set(&request->error, flash->failed,
			"is read-only until the server opens it again");
	}
	if (request->action == STORE_SNAPSHOT_CREATE) {
		return check_create(flash, request->snapshot.name, &request->error);
	}
	if (snapshot == NULL) {
		return error_set(
			&request->error, -ENOENT, "has no snapshot '%s'", request->snapshot.name);
	}
	snapshot_set_state(flash, snapshot, FLASH_SNAPSHOT_DELETING);
	return 0;
}

void flash_snapshot_ask(struct store *store, struct store_snapshot_request *request)
{
	struct flash *flash = container_of(store, struct flash, base);

	flash_wake(flash);
	list_push_back(&flash->snapshots.waiting, &request->node);
	flash_pump(flash);
}

static void snapshot_request_begin(struct flash *flash, struct store_snapshot_request *request)
{
	int result;

	flash->snapshots.request = request;
	flash_snapshots_look(flash);
	result = check_request(flash, request);
	if (result < 0) {
		complete(flash, result);
	}
}

static bool is_creating(const struct flash *flash)
{
	return flash->snapshots.request != NULL && !flash->snapshots.is_done &&
	       flash->snapshots.request->action == STORE_SNAPSHOT_CREATE;
}

/* True if the checkpoint that creates a snapshot has begun. */
static bool is_begun(const struct flash *flash)
{
	return flash->snapshots.list[0].state == FLASH_SNAPSHOT_CREATING ||
	       flash->snapshots.list[1].state == FLASH_SNAPSHOT_CREATING;
}

bool flash_snapshots_relieve(struct flash *flash)
{
	struct flash_snapshots *snapshots = &flash->snapshots;

	if (is_going(flash)) {
		return true; /* the next checkpoint frees its segments */
	}
	if (oldest(flash) == NULL) {
		return false;
	}
	if (is_droppable(flash)) {
		drop_oldest(flash);
		return true;
	}
	tell_refusal(flash);
	snapshots->is_stuck = true;
	/* the cached pages that the new snapshot must contain cannot be written */
	if (is_creating(flash)) {
		complete(flash, refuse_create(&snapshots->request->error));
	}
	return true;
}

/* First step of the creation of a snapshot: requests that the changes answered so far be written
 * while clients continue. Returns false while a checkpoint runs. Otherwise, the changes that the
 * next step makes wait would have to wait for the end of the checkpoint. */
static bool prepare(struct flash *flash)
{
	if (flash_checkpoint_runs(flash) || flash->checkpoint.is_asked || is_going(flash)) {
		return false;
	}
	flash->snapshots.is_prepared = true;
	flash_cache_want_written(flash);
	return true;
}

bool flash_snapshots_step(struct flash *flash)
{
	struct flash_snapshots *snapshots = &flash->snapshots;

	if (snapshots->request == NULL && !list_is_empty(&snapshots->waiting)) {
		snapshot_request_begin(flash, list_entry(list_pop_front(&snapshots->waiting),
						      struct store_snapshot_request, node));
		return true;
	}
	if (snapshots->holds || !is_creating(flash) || is_begun(flash)) {
		return false;
	}
	if (!snapshots->is_prepared) {
		return prepare(flash);
	}
	if (!flash_cache_has_written(flash)) {
		return false;
	}
	/* From now on changes wait, and the pages that became dirty since prepare() are also
	 * written. Otherwise the snapshot could contain a later write without an earlier one: when
	 * a page is overwritten in the cache, its new version takes the old one's place in flush
	 * order. */
	snapshots->holds = true;
	flash_cache_want_written(flash);
	return true;
}

/* --- checkpoints ----------------------------------------------------------------------------- */

/* True if the requested snapshot can be created by a checkpoint that begins now: its contents are
 * in the log, and a slot is free. */
static bool snapshot_is_wanted(const struct flash *flash)
{
	return flash->snapshots.holds && has_place(flash) && flash_cache_has_written(flash);
}

bool flash_snapshots_want_checkpoint(const struct flash *flash)
{
	return snapshot_is_wanted(flash) || is_going(flash);
}

void flash_snapshots_begin(struct flash *flash)
{
	struct flash_snapshot *snapshot = &flash->snapshots.list[0];

	if (!snapshot_is_wanted(flash)) {
		return;
	}
	snapshot += snapshot->state != FLASH_SNAPSHOT_NONE;
	snapshot->about = (struct flash_snapshot_anchor){
		.created_s = flash->snapshots.request->snapshot.created_s,
		.is_temporary = flash->snapshots.request->snapshot.is_temporary,
	};
	memcpy(snapshot->about.name, flash->snapshots.request->snapshot.name,
		sizeof(snapshot->about.name));
	snapshot_set_state(flash, snapshot, FLASH_SNAPSHOT_CREATING);
	flash->snapshots.holds = false; /* later changes are after the checkpoint */
}

/* Until a snapshot is live, it shares the top nodes of the disk's tree. */
void flash_snapshots_encode(struct flash *flash)
{
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		struct flash_snapshot *snapshot = &flash->snapshots.list[i];
		uint32_t tree = snapshot->state == FLASH_SNAPSHOT_CREATING ? 0 : i + 1;

		flash->anchor.snapshots[i] = (struct flash_snapshot_anchor){ 0 };
		if (snapshot->state == FLASH_SNAPSHOT_NONE ||
			snapshot->state == FLASH_SNAPSHOT_DELETING) {
			continue;
		}
		if (snapshot->state == FLASH_SNAPSHOT_CREATING) {
			snapshot->about.serial = flash->anchor.serial;
		}
		memcpy(snapshot->about.top, flash->map.trees[tree].levels[FLASH_LEVELS - 1],
			sizeof(snapshot->about.top));
		flash->anchor.snapshots[i] = snapshot->about;
	}
}

/* Makes the snapshot's tree a copy of the disk's tree in the checkpoint. snapshot_valid gets the
 * counts of the checkpoint's beginning, because the disk's counts have changed since. */
static void snapshot_make(struct flash *flash, struct flash_snapshot *snapshot)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t index = index_of(flash, snapshot);
	const struct flash_tree *from = &flash->map.trees[0];
	struct flash_tree *to = &flash->map.trees[1 + index];

	for (uint32_t level = 0; level < FLASH_LEVELS; level++) {
		memcpy(to->levels[level], from->levels[level],
			geometry->node_counts[level] * sizeof(struct flash_entry));
	}
	flash_map_count_nodes(flash, 1 + index, 1);
	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		flash->segments[i].snapshot_valid[index] = flash->segments[i].begin_valid;
		/* counts in `kept` the blocks that the disk has overwritten since the checkpoint
		 * began */
		flash_snapshots_block_dies(flash, i);
	}
	snapshot_set_state(flash, snapshot, FLASH_SNAPSHOT_LIVE);
}

/* Excludes all known nodes and blocks of a damaged snapshot from collection. */
static void keep(struct flash *flash, const struct flash_snapshot *snapshot)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t index = index_of(flash, snapshot);

	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		flash->segments[i].is_kept |= flash->segments[i].snapshot_valid[index] > 0;
	}
	for (uint32_t level = 0; level < FLASH_LEVELS; level++) {
		for (uint32_t i = 0; i < geometry->node_counts[level]; i++) {
			uint32_t block =
				le32toh(flash->map.trees[1 + index].levels[level][i].block);

			if (block != 0) {
				flash->segments[flash_segment_of(geometry, block)].is_kept = true;
			}
		}
	}
}

void flash_snapshot_damaged(struct flash *flash, uint32_t index)
{
	struct flash_snapshot *snapshot = &flash->snapshots.list[index];

	GMB_ASSERT(!snapshot->is_damaged);
	pthread_mutex_lock(&flash->base.watch_lock);
	snapshot->is_damaged = true;
	pthread_mutex_unlock(&flash->base.watch_lock);
	keep(flash, snapshot);
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		if (flash->segments[i].is_kept && flash->table.segments[i].state == GC_CANDIDATE) {
			gc_set_state(&flash->table, i, GC_CLOSED);
		}
	}
	if (flash->start != NULL) { /* `gmblock check` reports the damage itself */
		log_error("flash store '%s': the map of its snapshot '%s' is damaged: parts of it "
			  "cannot be read; 'gmblock snapshot delete' frees its space",
			flash->path, snapshot->about.name);
	}
}

/* Recomputes is_kept after a damaged snapshot has been deleted. */
static void keep_rest(struct flash *flash)
{
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		flash->segments[i].is_kept = false;
	}
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		if (flash->snapshots.list[i].is_damaged) {
			keep(flash, &flash->snapshots.list[i]);
		}
	}
}

/* Limits the estimate `kept` to the number of blocks that both snapshots have in the segment. */
static void limit_kept(struct flash *flash, uint32_t segment)
{
	const uint32_t *valid = flash->segments[segment].snapshot_valid;
	struct gc_segment *entry = &flash->table.segments[segment];

	entry->kept = MIN(entry->kept, valid[0] + valid[1]);
}

/* Removes the snapshot's tree and counts. The anchor without the snapshot must be durable. */
static void snapshot_forget(struct flash *flash, struct flash_snapshot *snapshot)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t index = index_of(flash, snapshot);
	struct flash_tree *tree = &flash->map.trees[1 + index];

	flash_map_forget(flash, 1 + index);
	flash_map_count_nodes(flash, 1 + index, -1);
	for (uint32_t level = 0; level < FLASH_LEVELS; level++) {
		memset(tree->levels[level], 0,
			geometry->node_counts[level] * sizeof(struct flash_entry));
	}
	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		struct flash_segment *segment = &flash->segments[i];

		/* The blocks that could not be moved might have belonged to this snapshot only, so
		 * the segment can be collected again. */
		segment->is_bad = segment->is_bad && (segment->snapshot_valid[index] == 0 ||
							     segment->zone == DISK_ZONE_BROKEN);
		segment->snapshot_valid[index] = 0;
		limit_kept(flash, i);
	}
	flash->snapshots.is_stuck = false;
	flash->has_hope = true;
	if (snapshot->is_damaged) {
		snapshot->is_damaged = false;
		keep_rest(flash);
	}
	snapshot_set_state(flash, snapshot, FLASH_SNAPSHOT_NONE);
}

static void count_kept(struct flash *flash)
{
	flash->counters.snapshot_blocks = 0;
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		flash->counters.snapshot_blocks += flash->table.segments[i].kept;
	}
}

/* A creation that failed leaves no trace; a deletion that failed leaves the snapshot readable. */
void flash_snapshots_checkpointed(struct flash *flash, int result)
{
	const struct store_snapshot_request *request = flash->snapshots.request;
	bool has_ended = false;

	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		struct flash_snapshot *snapshot = &flash->snapshots.list[i];

		if (snapshot->state == FLASH_SNAPSHOT_CREATING) {
			if (result == 0) {
				snapshot_make(flash, snapshot);
			} else {
				snapshot_set_state(flash, snapshot, FLASH_SNAPSHOT_NONE);
			}
			has_ended = true;
		} else if (snapshot->state == FLASH_SNAPSHOT_DELETING && result == 0 &&
			   flash->anchor.snapshots[i].name[0] == '\0') {
			has_ended |= request != NULL && request->action == STORE_SNAPSHOT_DELETE &&
				     strcmp(request->snapshot.name, snapshot->about.name) == 0;
			snapshot_forget(flash, snapshot);
		} else if (snapshot->state == FLASH_SNAPSHOT_DELETING && result < 0) {
			snapshot_set_state(flash, snapshot,
				FLASH_SNAPSHOT_LIVE); /* the snapshot can still be read */
		}
	}
	if (request != NULL && !flash->snapshots.is_done && (has_ended || result < 0)) {
		complete(flash,
			result == 0 ? 0
				    : error_set(&flash->snapshots.request->error, result,
					      "cannot write a checkpoint: %s", strerror(-result)));
	}
	if (result == 0) {
		count_kept(flash);
	}
}

/* --- blocks ---------------------------------------------------------------------------------- */

/* Raises the estimate `kept` of the segment. If a snapshot has more blocks in the segment than the
 * disk, at least the difference is in snapshots only. */
void flash_snapshots_block_dies(struct flash *flash, uint32_t segment)
{
	const uint32_t *valid = flash->segments[segment].snapshot_valid;
	struct gc_segment *entry = &flash->table.segments[segment];
	uint32_t most = MAX(valid[0], valid[1]);

	if (most > entry->valid) {
		entry->kept = MAX(entry->kept, most - entry->valid);
	}
}

void flash_snapshots_restore(struct flash *flash, uint32_t segment)
{
	flash->table.segments[segment].kept = 0;
	flash_snapshots_block_dies(flash, segment);
}

void flash_snapshots_move(
	struct flash *flash, const struct flash_record_entry *entry, uint32_t block, bool is_mapped)
{
	uint32_t from = flash_segment_of(&flash->anchor.geometry, entry->source);
	uint32_t to = flash_segment_of(&flash->anchor.geometry, block);
	struct gc_segment *source = &flash->table.segments[from];
	struct gc_segment *target = &flash->table.segments[to];
	bool has_moved = false;

	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		struct flash_slot *slot =
			flash_map_find(flash, flash_page_of(flash, 1 + i, entry->lpn));
		struct flash_entry *at;

		/* The garbage collector has marked all pages dirty that refer to the block. So a
		 * page that is not dirty does not refer to the block. */
		if (slot == NULL || slot->state != FLASH_SLOT_DIRTY) {
			continue;
		}
		at = &slot->node->entries[entry->lpn % FLASH_NODE_ENTRIES];
		if (le32toh(at->block) != entry->source) {
			continue;
		}
		if (flash->segments[from].snapshot_valid[i] ==
			0) { /* the segment table on the device was wrong */
			flash_fail(flash, -EUCLEAN,
				"the segment table does not match the map of a snapshot");
			return;
		}
		*at = (struct flash_entry){ htole32(block), htole32(entry->crc) };
		flash->segments[from].snapshot_valid[i]--;
		flash->segments[to].snapshot_valid[i]++;
		flash->segments[to].is_kept |= flash->snapshots.list[i].is_damaged;
		flash->map.trees[1 + i].table_dirty[from / FLASH_TABLE_ENTRIES] = true;
		flash->map.trees[1 + i].table_dirty[to / FLASH_TABLE_ENTRIES] = true;
		has_moved = true;
	}
	/* Only snapshots have the block. So it is counted in `kept` of the new segment instead of
	 * the old one. */
	if (has_moved && !is_mapped) {
		source->kept -= MIN(source->kept, 1U);
		target->kept++;
		target->stamp = MAX(target->stamp, source->stamp);
		flash->map.trees[0].table_dirty[to / FLASH_TABLE_ENTRIES] = true;
	}
	if (has_moved) {
		limit_kept(flash, from);
	}
}

void flash_snapshots_init(struct flash *flash)
{
	list_init(&flash->snapshots.waiting);
}

void flash_snapshots_drop_temporary(struct flash *flash)
{
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		struct flash_snapshot *snapshot = &flash->snapshots.list[i];

		if (snapshot->state == FLASH_SNAPSHOT_LIVE && snapshot->about.is_temporary) {
			snapshot_set_state(flash, snapshot, FLASH_SNAPSHOT_DELETING);
		}
	}
}

void flash_snapshots_recovered(struct flash *flash)
{
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		flash->snapshots.list[i].about = flash->anchor.snapshots[i];
		if (flash->anchor.snapshots[i].name[0] != '\0') {
			snapshot_set_state(flash, &flash->snapshots.list[i], FLASH_SNAPSHOT_LIVE);
		}
	}
}

/* --- a snapshot as a store ------------------------------------------------------------------- */

/* The serial numbers differ if another snapshot has reused the slot. */
bool flash_snapshot_is_deleted(const struct store_part *part)
{
	struct store *store = part->queue->store;
	const struct flash_snapshot_store *snapshot;
	const struct flash_snapshot *found;

	if (store->ops != &flash_snapshot_ops) {
		return false;
	}
	snapshot = container_of(store, struct flash_snapshot_store, base);
	found = &snapshot->flash->snapshots.list[snapshot->index];
	return found->state != FLASH_SNAPSHOT_LIVE || found->about.serial != snapshot->serial;
}

static void snapshot_submit(struct store_queue *queue, struct store_part *part)
{
	struct flash_snapshot_store *snapshot =
		container_of(queue->store, struct flash_snapshot_store, base);
	struct flash *flash = snapshot->flash;
	struct flash_scratch *scratch = flash_scratch_of(part);

	*scratch = (struct flash_scratch){ .tree = 1 + snapshot->index };
	list_init(&scratch->wait.node);
	flash->part_count++;
	flash_wake(flash);
	if (part->offset + part->length > store_size(&snapshot->base)) {
		flash_finish(part, -EIO);
	} else if (part->op == STORE_READ) {
		flash_read_step(part);
	} else if (part->op == STORE_EXTENTS) {
		flash_extents_step(part);
	} else {
		GMB_ASSERT(part->op == STORE_FLUSH || part->op == STORE_CACHE);
		flash_finish(part, 0);
	}
	flash_pump(flash);
}

static uint64_t snapshot_size(struct store *base)
{
	const struct flash_snapshot_store *snapshot =
		container_of(base, struct flash_snapshot_store, base);

	return snapshot->flash->anchor.geometry.disk_blocks << FLASH_BLOCK_SHIFT;
}

static enum store_barrier snapshot_barrier(struct store *base, bool look)
{
	const struct flash_snapshot_store *snapshot =
		container_of(base, struct flash_snapshot_store, base);

	return store_barrier(&snapshot->flash->base, look);
}

static const char *snapshot_handover(struct store *base, struct store_claim *claim_out)
{
	const struct flash_snapshot_store *snapshot =
		container_of(base, struct flash_snapshot_store, base);

	return store_handover(&snapshot->flash->base, claim_out);
}

/* Runs on any thread, so it takes watch_lock. The parts run on the ring of the disk's store. */
static int snapshot_open(struct store *base, const struct store_options *options,
	const void *config, struct error *error)
{
	struct flash_snapshot_store *snapshot =
		container_of(base, struct flash_snapshot_store, base);
	struct flash *flash = container_of((struct store *)(uintptr_t)config, struct flash, base);
	const struct flash_snapshot *found;
	bool is_damaged = false;
	bool is_dropped;

	pthread_mutex_lock(&flash->base.watch_lock);
	found = snapshot_find(flash, options->path);
	is_dropped = strcmp(flash->snapshots.dropped, options->path) == 0;
	if (found != NULL) {
		snapshot->flash = flash;
		snapshot->index = index_of(flash, found);
		snapshot->serial = found->about.serial;
		is_damaged = found->is_damaged;
	}
	pthread_mutex_unlock(&flash->base.watch_lock);
	if (found == NULL && is_dropped) {
		return error_set(error, -ENOENT,
			"'%s' has dropped its snapshot '%s': the blocks it kept left no space for "
			"writes",
			flash->path, options->path);
	}
	if (found == NULL) {
		return error_set(
			error, -ENOENT, "'%s' has no snapshot '%s'", flash->path, options->path);
	}
	if (is_damaged) {
		return error_set(error, -EUCLEAN,
			"the map of snapshot '%s' of '%s' is damaged: the snapshot cannot be read; "
			"'gmblock snapshot delete' frees its space",
			options->path, flash->path);
	}
	base->info = flash->base.info;
	base->info.kind = "flash snapshot";
	base->info.caps &= ~(uint32_t)(STORE_CAP_WRITE | STORE_CAP_TRIM | STORE_CAP_FAST_ZERO);
	base->info.budget_bytes = 0;
	base->info.atomic_bytes = 0;
	return 0;
}

const struct store_ops flash_snapshot_ops = {
	.name = "flash snapshot",
	.scratch_bytes = sizeof(struct flash_scratch),
	.submit = snapshot_submit,
	.size = snapshot_size,
	.has_owner = true,
	.barrier = snapshot_barrier,
	.handover = snapshot_handover,
};

const struct store_kind flash_snapshot_kind = {
	.name = "flash snapshot",
	.store_bytes = sizeof(struct flash_snapshot_store),
	.ops = &flash_snapshot_ops,
	.open = snapshot_open,
};
