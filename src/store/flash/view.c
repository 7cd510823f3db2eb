// SPDX-License-Identifier: Apache-2.0
/*
 * Snapshots (views): the contents of the disk at a checkpoint, under a name. A snapshot is a tree
 * of its own, which begins as a copy of the node addresses of the disk's tree. The anchor contains
 * the addresses of its top nodes, so it is created and deleted by a checkpoint or not at all.
 *
 *   request ─▶ prepare: write the dirty pages of the cache while clients continue
 *           ─▶ hold: changes wait, the remaining dirty pages are written
 *           ─▶ checkpoint begins: CREATING, changes continue ─▶ checkpoint ends: LIVE, done
 *
 * The collector moves blocks of snapshots like those of the disk: by one record, which changes
 * every tree that refers to the block. So a snapshot costs the space of blocks that have been
 * overwritten since, and the garbage in its segments can still be collected.
 *
 * Invariant: the number of blocks of a segment that each tree refers to is exact. How many blocks
 * only snapshots have ("kept") is not: whether a block that the disk has overwritten belongs to a
 * snapshot is known only from the snapshot's page. `kept` is the lower bound that follows from the
 * counts, and is exact for moved blocks. It is used to choose victims and to estimate space, not to
 * free segments.
 *
 * Threading: as in view.h. State that other threads read is changed under watch_lock.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "store/flash/flash.h"

/* Percentage of the segments outside the reserve that must remain writable. */
enum { ROOM_MIN_PERCENT = 6 };

static const uint32_t view_edges[FLASH_VIEW_STATE_COUNT] = {
	[FLASH_VIEW_NONE] = BIT(FLASH_VIEW_CREATING) | BIT(FLASH_VIEW_LIVE), /* live: by recovery */
	[FLASH_VIEW_CREATING] = BIT(FLASH_VIEW_LIVE) | BIT(FLASH_VIEW_NONE),
	[FLASH_VIEW_LIVE] = BIT(FLASH_VIEW_DELETING),
	[FLASH_VIEW_DELETING] = BIT(FLASH_VIEW_NONE) | BIT(FLASH_VIEW_LIVE),
};

/* Takes the lock, because other threads list the snapshots. */
static void view_set_state(
	struct flash *flash, struct flash_view *view, enum flash_view_state state)
{
	GMB_ASSERT((view_edges[view->state] & BIT(state)) != 0);
	pthread_mutex_lock(&flash->base.watch_lock);
	view->state = state;
	pthread_mutex_unlock(&flash->base.watch_lock);
}

static uint32_t index_of(const struct flash *flash, const struct flash_view *view)
{
	return (uint32_t)(view - flash->views.list);
}

static struct flash_view *view_find(struct flash *flash, const char *name)
{
	for (uint32_t i = 0; i < FLASH_VIEWS; i++) {
		struct flash_view *view = &flash->views.list[i];

		if (view->state == FLASH_VIEW_LIVE && strcmp(view->about.name, name) == 0) {
			return view;
		}
	}
	return NULL;
}

uint32_t flash_views_list(struct store *store, struct store_view list[STORE_VIEWS_MAX])
{
	struct flash *flash = container_of(store, struct flash, base);
	uint32_t count = 0;

	pthread_mutex_lock(&flash->base.watch_lock);
	for (uint32_t i = 0; i < FLASH_VIEWS; i++) {
		const struct flash_view *view = &flash->views.list[i];

		if (view->state == FLASH_VIEW_LIVE) {
			memcpy(list[count].name, view->about.name, sizeof(list[count].name));
			list[count].is_temporary = view->about.is_temporary;
			list[count++].created_s = view->about.created_s;
		}
	}
	pthread_mutex_unlock(&flash->base.watch_lock);
	return count;
}

/* --- space ----------------------------------------------------------------------------------- */

/* Blocks of a segment without headers, as format.c computes them. */
static uint64_t view_usable_blocks(const struct flash *flash)
{
	uint32_t blocks = flash->anchor.geometry.segment_blocks;

	return blocks - (blocks + FLASH_RECORD_ENTRIES) / (FLASH_RECORD_ENTRIES + 1) - 2;
}

/* Returns the number of blocks that could be written after all garbage is collected, beyond those
 * that must remain. Negative if blocks are missing. */
static int64_t view_room_of(const struct flash *flash)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	int64_t usable = (int64_t)view_usable_blocks(flash);
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

/* Order of dropping: damaged snapshots first, then those of jobs, then the oldest. */
static bool goes_before(const struct flash_view *view, const struct flash_view *other)
{
	if (view->is_damaged != other->is_damaged) {
		return view->is_damaged;
	}
	return view->about.is_temporary == other->about.is_temporary
		       ? view->about.serial < other->about.serial
		       : view->about.is_temporary;
}

/* Returns the snapshot that is dropped first, or NULL if there is none. */
static struct flash_view *oldest(struct flash *flash)
{
	struct flash_view *found = NULL;

	for (uint32_t i = 0; i < FLASH_VIEWS; i++) {
		struct flash_view *view = &flash->views.list[i];

		if (view->state == FLASH_VIEW_LIVE && (found == NULL || goes_before(view, found))) {
			found = view;
		}
	}
	return found;
}

static bool is_going(const struct flash *flash)
{
	return flash->views.list[0].state == FLASH_VIEW_DELETING ||
	       flash->views.list[1].state == FLASH_VIEW_DELETING;
}

/* True if the first candidate is dropped before a write is refused. A snapshot of a job always is,
 * because no user has asked to keep it. There must be a snapshot. */
static bool is_droppable(struct flash *flash)
{
	return !flash->views.refuses || oldest(flash)->about.is_temporary;
}

/* Marks the snapshot for the next checkpoint, which deletes it. Its reads fail immediately. */
static void drop_oldest(struct flash *flash)
{
	struct flash_view *view = oldest(flash);

	log_warning("flash store '%s': snapshot '%s' is dropped: the blocks it keeps leave no "
		    "space for writes; reads of it fail from now on",
		flash->path, view->about.name);
	flash->counters.snapshots_dropped++;
	pthread_mutex_lock(&flash->base.watch_lock);
	memcpy(flash->views.dropped, view->about.name, sizeof(flash->views.dropped));
	pthread_mutex_unlock(&flash->base.watch_lock);
	view_set_state(flash, view, FLASH_VIEW_DELETING);
	flash->pump_again = true;
	if (flash->base.view_dropped != NULL && !flash->is_closing) {
		flash->base.view_dropped(flash->base.view_context);
	}
}

/* Logs the first refusal only. */
static void tell_refusal(const struct flash *flash)
{
	if (!flash->views.is_full && !flash->views.is_stuck) {
		log_warning("flash store '%s': writes fail from now on: the blocks that its "
			    "snapshots keep leave no space for them; delete a snapshot",
			flash->path);
	}
}

void flash_views_look(struct flash *flash)
{
	struct flash_views *views = &flash->views;
	int64_t room;
	bool is_low;

	if (oldest(flash) == NULL && views->request == NULL) {
		views->is_full = false;
		flash->cache.is_tight = false;
		return;
	}
	room = view_room_of(flash);
	/* A cached write has been answered and can no longer be refused, so the cache is emptied in
	 * time. */
	flash->cache.is_tight = views->refuses && room < (int64_t)flash->cache.slot_count;
	is_low = oldest(flash) != NULL && !is_going(flash) && room < 0;
	if (is_low && is_droppable(flash)) {
		drop_oldest(flash);
		is_low = false;
	} else if (is_low) {
		tell_refusal(flash);
	}
	views->is_full = is_low;
}

bool flash_views_refuse(struct flash *flash, enum store_op op)
{
	if (flash->views.is_full && op == STORE_WRITE) {
		flash_views_look(flash); /* trims might have made room */
	}
	return flash->views.is_stuck || (flash->views.is_full && op == STORE_WRITE);
}

/* --- requests -------------------------------------------------------------------------------- */

void flash_views_io_ended(struct flash *flash)
{
	struct flash_views *views = &flash->views;
	struct store_view_request *request = views->request;

	/* Like a part: the last request waits until nothing is in flight. */
	if (request != NULL && views->is_done && !views->turn.in_flight &&
		(flash->io_count == 0 || flash->part_count > flash->held_count)) {
		views->request = NULL;
		views->is_done = false;
		request->done(request);
		flash_pump(flash); /* other requests might wait for this one */
	}
}

static void view_turn_done(struct ring_op *op, int result)
{
	struct flash *flash = container_of(op, struct flash, views.turn);

	GMB_UNUSED(result);
	flash_io_ended(flash);
}

/* Completes the current request in the ring's next batch. The extra count in io_count keeps the
 * store alive until then. */
static void complete(struct flash *flash, int result)
{
	struct flash_views *views = &flash->views;

	views->request->result = result;
	views->is_done = true;
	views->is_prepared = false;
	views->holds = false;
	flash->io_count++;
	ring_defer(flash->ring, &views->turn, 0, view_turn_done);
}

static bool has_place(const struct flash *flash)
{
	return flash->views.list[0].state == FLASH_VIEW_NONE ||
	       flash->views.list[1].state == FLASH_VIEW_NONE;
}

static int refuse_create(struct error *error)
{
	return error_set(error, -ENOSPC,
		"has no space for a snapshot: less than %d %% of its segments can be written",
		ROOM_MIN_PERCENT);
}

static int check_create(struct flash *flash, const char *name, struct error *error)
{
	if (!flash_view_name_is_sound(name)) {
		return error_set(error, -EINVAL,
			"cannot have a snapshot with that name: use 1 to %d letters, digits, '.', "
			"'_' and '-', and begin with a letter or digit",
			FLASH_VIEW_NAME_BYTES - 1);
	}
	if (view_find(flash, name) != NULL) {
		return error_set(error, -EEXIST, "already has a snapshot '%s'", name);
	}
	if (!has_place(flash) && !is_going(flash)) {
		return error_set(error, -EMLINK, "has %d snapshots, which is the limit; delete one",
			FLASH_VIEWS);
	}
	return view_room_of(flash) < 0 || flash->views.is_stuck ? refuse_create(error) : 0;
}

/* Returns a negative errno if the request must fail. A deletion begins here: the snapshot is no
 * longer live, and the next checkpoint deletes it. */
static int check_request(struct flash *flash, struct store_view_request *request)
{
	struct flash_view *view = view_find(flash, request->view.name);

	if (flash->is_read_only) {
		return error_set(&request->error, -EROFS, "is served with 'readonly'");
	}
	if (flash->failed != 0) {
		return error_set(&request->error, flash->failed,
			"is read-only until the server opens it again");
	}
	if (request->action == STORE_VIEW_CREATE) {
		return check_create(flash, request->view.name, &request->error);
	}
	if (view == NULL) {
		return error_set(
			&request->error, -ENOENT, "has no snapshot '%s'", request->view.name);
	}
	view_set_state(flash, view, FLASH_VIEW_DELETING);
	return 0;
}

void flash_view_ask(struct store *store, struct store_view_request *request)
{
	struct flash *flash = container_of(store, struct flash, base);

	flash_wake(flash);
	list_push_back(&flash->views.waiting, &request->node);
	flash_pump(flash);
}

static void view_request_begin(struct flash *flash, struct store_view_request *request)
{
	int result;

	flash->views.request = request;
	flash_views_look(flash);
	result = check_request(flash, request);
	if (result < 0) {
		complete(flash, result);
	}
}

static bool is_creating(const struct flash *flash)
{
	return flash->views.request != NULL && !flash->views.is_done &&
	       flash->views.request->action == STORE_VIEW_CREATE;
}

/* True if the checkpoint that creates a snapshot has begun. */
static bool is_begun(const struct flash *flash)
{
	return flash->views.list[0].state == FLASH_VIEW_CREATING ||
	       flash->views.list[1].state == FLASH_VIEW_CREATING;
}

bool flash_views_relieve(struct flash *flash)
{
	struct flash_views *views = &flash->views;

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
	views->is_stuck = true;
	if (is_creating(flash)) { /* the pages that it would contain cannot be written */
		complete(flash, refuse_create(&views->request->error));
	}
	return true;
}

/* Requests that the changes answered so far be written while clients continue. Not during another
 * checkpoint: later, when changes wait, they would have to wait for the end of that one as well. */
static bool prepare(struct flash *flash)
{
	if (flash_checkpoint_runs(flash) || flash->checkpoint.is_asked || is_going(flash)) {
		return false;
	}
	flash->views.is_prepared = true;
	flash_cache_want_written(flash);
	return true;
}

bool flash_views_step(struct flash *flash)
{
	struct flash_views *views = &flash->views;

	if (views->request == NULL && !list_is_empty(&views->waiting)) {
		view_request_begin(flash, list_entry(list_pop_front(&views->waiting),
						  struct store_view_request, node));
		return true;
	}
	if (views->holds || !is_creating(flash) || is_begun(flash)) {
		return false;
	}
	if (!views->is_prepared) {
		return prepare(flash);
	}
	if (!flash_cache_has_written(flash)) {
		return false;
	}
	/* Now changes wait, and the pages that have become dirty since are written too. Otherwise
	 * the snapshot could contain a later write without an earlier one, because a new version of
	 * a page takes over the position of the old one. */
	views->holds = true;
	flash_cache_want_written(flash);
	return true;
}

/* --- checkpoints ----------------------------------------------------------------------------- */

/* True if the requested snapshot can be created by a checkpoint that begins now: its contents are
 * in the log, and a slot is free. */
static bool view_is_wanted(const struct flash *flash)
{
	return flash->views.holds && has_place(flash) && flash_cache_has_written(flash);
}

bool flash_views_want_checkpoint(const struct flash *flash)
{
	return view_is_wanted(flash) || is_going(flash);
}

void flash_views_begin(struct flash *flash)
{
	struct flash_view *view = &flash->views.list[0];

	if (!view_is_wanted(flash)) {
		return;
	}
	view += view->state != FLASH_VIEW_NONE;
	view->about = (struct flash_view_anchor){
		.created_s = flash->views.request->view.created_s,
		.is_temporary = flash->views.request->view.is_temporary,
	};
	memcpy(view->about.name, flash->views.request->view.name, sizeof(view->about.name));
	view_set_state(flash, view, FLASH_VIEW_CREATING);
	flash->views.holds = false; /* later changes are after the checkpoint */
}

/* A snapshot that is being created has the top nodes of the disk's tree. */
void flash_views_encode(struct flash *flash)
{
	for (uint32_t i = 0; i < FLASH_VIEWS; i++) {
		struct flash_view *view = &flash->views.list[i];
		uint32_t tree = view->state == FLASH_VIEW_CREATING ? 0 : i + 1;

		flash->anchor.views[i] = (struct flash_view_anchor){ 0 };
		if (view->state == FLASH_VIEW_NONE || view->state == FLASH_VIEW_DELETING) {
			continue;
		}
		if (view->state == FLASH_VIEW_CREATING) {
			view->about.serial = flash->anchor.serial;
		}
		memcpy(view->about.top, flash->map.trees[tree].levels[FLASH_LEVELS - 1],
			sizeof(view->about.top));
		flash->anchor.views[i] = view->about;
	}
}

/* Makes the snapshot's tree a copy of the disk's tree in the checkpoint. view_valid gets the counts
 * of the checkpoint's beginning, because the disk's counts have changed since. */
static void view_make(struct flash *flash, struct flash_view *view)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t index = index_of(flash, view);
	const struct flash_tree *from = &flash->map.trees[0];
	struct flash_tree *to = &flash->map.trees[1 + index];

	for (uint32_t level = 0; level < FLASH_LEVELS; level++) {
		memcpy(to->levels[level], from->levels[level],
			geometry->node_counts[level] * sizeof(struct flash_entry));
	}
	flash_map_count_nodes(flash, 1 + index, 1);
	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		flash->segments[i].view_valid[index] = flash->segments[i].begin_valid;
		flash_views_block_dies(flash, i); /* some blocks may have died since it began */
	}
	view_set_state(flash, view, FLASH_VIEW_LIVE);
}

/* Keeps all known nodes and blocks of a damaged snapshot from being collected. */
static void keep(struct flash *flash, const struct flash_view *view)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t index = index_of(flash, view);

	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		flash->segments[i].is_kept |= flash->segments[i].view_valid[index] > 0;
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

void flash_view_damaged(struct flash *flash, uint32_t index)
{
	struct flash_view *view = &flash->views.list[index];

	GMB_ASSERT(!view->is_damaged);
	pthread_mutex_lock(&flash->base.watch_lock);
	view->is_damaged = true;
	pthread_mutex_unlock(&flash->base.watch_lock);
	keep(flash, view);
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		if (flash->segments[i].is_kept && flash->table.segments[i].state == GC_CANDIDATE) {
			gc_set_state(&flash->table, i, GC_CLOSED);
		}
	}
	if (flash->start != NULL) { /* a check reports it itself */
		log_error("flash store '%s': the map of its snapshot '%s' is damaged: parts of it "
			  "cannot be read; 'gmblock snapshot delete' frees its space",
			flash->path, view->about.name);
	}
}

/* Recomputes is_kept after a damaged snapshot has been deleted. */
static void keep_rest(struct flash *flash)
{
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		flash->segments[i].is_kept = false;
	}
	for (uint32_t i = 0; i < FLASH_VIEWS; i++) {
		if (flash->views.list[i].is_damaged) {
			keep(flash, &flash->views.list[i]);
		}
	}
}

/* The estimate cannot exceed the blocks of both snapshots. */
static void limit_kept(struct flash *flash, uint32_t segment)
{
	const uint32_t *valid = flash->segments[segment].view_valid;
	struct gc_segment *entry = &flash->table.segments[segment];

	entry->kept = MIN(entry->kept, valid[0] + valid[1]);
}

/* Removes the snapshot's tree and counts. The anchor without it is durable. */
static void view_forget(struct flash *flash, struct flash_view *view)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t index = index_of(flash, view);
	struct flash_tree *tree = &flash->map.trees[1 + index];

	flash_map_forget(flash, 1 + index);
	flash_map_count_nodes(flash, 1 + index, -1);
	for (uint32_t level = 0; level < FLASH_LEVELS; level++) {
		memset(tree->levels[level], 0,
			geometry->node_counts[level] * sizeof(struct flash_entry));
	}
	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		struct flash_segment *segment = &flash->segments[i];

		/* The blocks that could not be moved might have belonged to this snapshot only. */
		segment->is_bad = segment->is_bad && (segment->view_valid[index] == 0 ||
							     segment->zone == DISK_ZONE_BROKEN);
		segment->view_valid[index] = 0;
		limit_kept(flash, i);
	}
	flash->views.is_stuck = false;
	flash->has_hope = true;
	if (view->is_damaged) {
		view->is_damaged = false;
		keep_rest(flash);
	}
	view_set_state(flash, view, FLASH_VIEW_NONE);
}

static void count_kept(struct flash *flash)
{
	flash->counters.snapshot_blocks = 0;
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		flash->counters.snapshot_blocks += flash->table.segments[i].kept;
	}
}

/* A creation that failed leaves no trace; a deletion that failed leaves the snapshot readable. */
void flash_views_checkpointed(struct flash *flash, int result)
{
	const struct store_view_request *request = flash->views.request;
	bool has_ended = false;

	for (uint32_t i = 0; i < FLASH_VIEWS; i++) {
		struct flash_view *view = &flash->views.list[i];

		if (view->state == FLASH_VIEW_CREATING) {
			if (result == 0) {
				view_make(flash, view);
			} else {
				view_set_state(flash, view, FLASH_VIEW_NONE);
			}
			has_ended = true;
		} else if (view->state == FLASH_VIEW_DELETING && result == 0 &&
			   flash->anchor.views[i].name[0] == '\0') {
			has_ended |= request != NULL && request->action == STORE_VIEW_DELETE &&
				     strcmp(request->view.name, view->about.name) == 0;
			view_forget(flash, view);
		} else if (view->state == FLASH_VIEW_DELETING && result < 0) {
			view_set_state(
				flash, view, FLASH_VIEW_LIVE); /* read-only, as the disk is now */
		}
	}
	if (request != NULL && !flash->views.is_done && (has_ended || result < 0)) {
		complete(flash,
			result == 0 ? 0
				    : error_set(&flash->views.request->error, result,
					      "cannot write a checkpoint: %s", strerror(-result)));
	}
	if (result == 0) {
		count_kept(flash);
	}
}

/* --- blocks ---------------------------------------------------------------------------------- */

/* If a snapshot has more blocks in the segment than the disk, at least the difference is in
 * snapshots only. */
void flash_views_block_dies(struct flash *flash, uint32_t segment)
{
	const uint32_t *valid = flash->segments[segment].view_valid;
	struct gc_segment *entry = &flash->table.segments[segment];
	uint32_t most = MAX(valid[0], valid[1]);

	if (most > entry->valid) {
		entry->kept = MAX(entry->kept, most - entry->valid);
	}
}

void flash_views_restore(struct flash *flash, uint32_t segment)
{
	flash->table.segments[segment].kept = 0;
	flash_views_block_dies(flash, segment);
}

void flash_views_move(
	struct flash *flash, const struct flash_record_entry *entry, uint32_t block, bool is_mapped)
{
	uint32_t from = flash_segment_of(&flash->anchor.geometry, entry->source);
	uint32_t to = flash_segment_of(&flash->anchor.geometry, block);
	struct gc_segment *source = &flash->table.segments[from];
	struct gc_segment *target = &flash->table.segments[to];
	bool has_moved = false;

	for (uint32_t i = 0; i < FLASH_VIEWS; i++) {
		struct flash_slot *slot =
			flash_map_find(flash, flash_page_of(flash, 1 + i, entry->lpn));
		struct flash_entry *at;

		/* The collector has made the page dirty if it refers to the block. */
		if (slot == NULL || slot->state != FLASH_SLOT_DIRTY) {
			continue;
		}
		at = &slot->node->entries[entry->lpn % FLASH_NODE_ENTRIES];
		if (le32toh(at->block) != entry->source) {
			continue;
		}
		if (flash->segments[from].view_valid[i] ==
			0) { /* the table on the device was wrong */
			flash_fail(flash, -EUCLEAN,
				"has a segment table that does not match a snapshot");
			return;
		}
		*at = (struct flash_entry){ htole32(block), htole32(entry->crc) };
		flash->segments[from].view_valid[i]--;
		flash->segments[to].view_valid[i]++;
		flash->segments[to].is_kept |= flash->views.list[i].is_damaged;
		flash->map.trees[1 + i].table_dirty[from / FLASH_TABLE_ENTRIES] = true;
		flash->map.trees[1 + i].table_dirty[to / FLASH_TABLE_ENTRIES] = true;
		has_moved = true;
	}
	/* The block is one that only snapshots have: the estimate moves with it. */
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

void flash_views_init(struct flash *flash)
{
	list_init(&flash->views.waiting);
}

void flash_views_drop_temporary(struct flash *flash)
{
	for (uint32_t i = 0; i < FLASH_VIEWS; i++) {
		struct flash_view *view = &flash->views.list[i];

		if (view->state == FLASH_VIEW_LIVE && view->about.is_temporary) {
			view_set_state(flash, view, FLASH_VIEW_DELETING);
		}
	}
}

void flash_views_recovered(struct flash *flash)
{
	for (uint32_t i = 0; i < FLASH_VIEWS; i++) {
		flash->views.list[i].about = flash->anchor.views[i];
		if (flash->anchor.views[i].name[0] != '\0') {
			view_set_state(flash, &flash->views.list[i], FLASH_VIEW_LIVE);
		}
	}
}

/* --- a view as a store ----------------------------------------------------------------------- */

/* The serial number shows whether the slot has been reused by another snapshot. */
bool flash_view_has_gone(const struct store_part *part)
{
	struct store *store = part->queue->store;
	const struct flash_view_store *view;
	const struct flash_view *found;

	if (store->ops != &flash_view_ops) {
		return false;
	}
	view = container_of(store, struct flash_view_store, base);
	found = &view->flash->views.list[view->index];
	return found->state != FLASH_VIEW_LIVE || found->about.serial != view->serial;
}

static void view_submit(struct store_queue *queue, struct store_part *part)
{
	struct flash_view_store *view = container_of(queue->store, struct flash_view_store, base);
	struct flash *flash = view->flash;
	struct flash_scratch *scratch = flash_scratch_of(part);

	*scratch = (struct flash_scratch){ .tree = 1 + view->index };
	list_init(&scratch->wait.node);
	flash->part_count++;
	flash_wake(flash);
	if (part->offset + part->length > store_size(&view->base)) {
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

static uint64_t view_size(struct store *base)
{
	const struct flash_view_store *view = container_of(base, struct flash_view_store, base);

	return view->flash->anchor.geometry.disk_blocks << FLASH_BLOCK_SHIFT;
}

static enum store_barrier view_barrier(struct store *base, bool look)
{
	const struct flash_view_store *view = container_of(base, struct flash_view_store, base);

	return store_barrier(&view->flash->base, look);
}

static const char *view_pass(struct store *base, struct store_claim *claim_out)
{
	const struct flash_view_store *view = container_of(base, struct flash_view_store, base);

	return store_pass(&view->flash->base, claim_out);
}

/* Runs on any thread, so it takes the lock. The parts run on the ring of the disk's store. */
static int view_open(struct store *base, const struct store_options *options, const void *config,
	struct error *error)
{
	struct flash_view_store *view = container_of(base, struct flash_view_store, base);
	struct flash *flash = container_of((struct store *)(uintptr_t)config, struct flash, base);
	const struct flash_view *found;
	bool is_damaged = false;
	bool is_dropped;

	pthread_mutex_lock(&flash->base.watch_lock);
	found = view_find(flash, options->path);
	is_dropped = strcmp(flash->views.dropped, options->path) == 0;
	if (found != NULL) {
		view->flash = flash;
		view->index = index_of(flash, found);
		view->serial = found->about.serial;
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
			"the map of snapshot '%s' of '%s' is damaged: it cannot be read; 'gmblock "
			"snapshot delete' frees its space",
			options->path, flash->path);
	}
	base->info = flash->base.info;
	base->info.kind = "flash snapshot";
	base->info.caps &= ~(uint32_t)(STORE_CAP_WRITE | STORE_CAP_TRIM | STORE_CAP_FAST_ZERO);
	base->info.budget_bytes = 0;
	base->info.atomic_bytes = 0;
	return 0;
}

const struct store_ops flash_view_ops = {
	.name = "flash snapshot",
	.scratch_bytes = sizeof(struct flash_scratch),
	.submit = view_submit,
	.size = view_size,
	.has_owner = true,
	.barrier = view_barrier,
	.pass = view_pass,
};

const struct store_kind flash_view_kind = {
	.name = "flash snapshot",
	.store_bytes = sizeof(struct flash_view_store),
	.ops = &flash_view_ops,
	.open = view_open,
};
