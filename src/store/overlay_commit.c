// SPDX-License-Identifier: Apache-2.0
/*
 * Commits, which make changes durable: first the data, then the bits that say where the data is.
 *
 *   copy the changed pages ─▶ flush ─▶ write the copies ─▶ flush ─▶ finish all parts that waited
 *
 * The bits of a page are copied before the first flush begins, and the data of a block is written
 * before its bit is set. So whatever subset of the page writes survives a crash, the data of every
 * set bit is on the disk. If a bit is missing, the block is read from the base. This is correct
 * after a crash, because no flush has completed since the change. Bits are never cleared. So a page
 * of which only some bytes were written just has some of the new bits, and needs no checksum or
 * second copy.
 *
 * One commit runs at a time, on the ring of the part that began it. All parts that arrive during a
 * commit share the next one.
 */
#include <endian.h>

#include "disk/disk.h"
#include "store/overlay.h"

enum { RUN_PAGES_MAX = 64 /* number of pages in one write */ };

/* --- the state of a page --------------------------------------------------------------------- */

static const uint32_t page_edges[OVERLAY_PAGE_STATE_COUNT] = {
	[OVERLAY_PAGE_SAVED] = BIT(OVERLAY_PAGE_CHANGED),
	[OVERLAY_PAGE_CHANGED] = BIT(OVERLAY_PAGE_SAVING),
	[OVERLAY_PAGE_SAVING] = BIT(OVERLAY_PAGE_SAVED) | BIT(OVERLAY_PAGE_CHANGED) |
				BIT(OVERLAY_PAGE_SAVING_CHANGED),
	[OVERLAY_PAGE_SAVING_CHANGED] = BIT(OVERLAY_PAGE_CHANGED),
};

static enum overlay_page page_state(const struct overlay_store *store, uint64_t page)
{
	return (enum overlay_page)atomic_load_explicit(&store->pages[page], memory_order_relaxed);
}

/* Sets the state of a page of the bitmap. Called under the lock. */
static void page_set(struct overlay_store *store, uint64_t page, enum overlay_page state)
{
	enum overlay_page before = page_state(store, page);
	uint64_t unsaved = atomic_load_explicit(&store->unsaved_count, memory_order_relaxed);

	GMB_ASSERT((page_edges[before] & BIT(state)) != 0);
	/* Relaxed order is enough: the release that sets a bit in present also publishes this
	 * state, see overlay_pages_changed(). If a page wrongly seems to be unsaved, this only
	 * costs another commit. */
	atomic_store_explicit(&store->pages[page], (uint8_t)state, memory_order_relaxed);
	unsaved += before == OVERLAY_PAGE_SAVED;
	unsaved -= state == OVERLAY_PAGE_SAVED;
	/* Release order: a thread that finds no unsaved page also sees that all pages are
	 * durable. */
	atomic_store_explicit(&store->unsaved_count, unsaved, memory_order_release);
}

void overlay_pages_changed(struct overlay_store *store, uint64_t first, uint64_t end)
{
	if (store->fd < 0) {
		return;
	}
	/* The state of the page changes before the bits of present are set with release. So a
	 * thread that sees a bit also sees that its page is no longer in the state
	 * OVERLAY_PAGE_SAVED. */
	for (uint64_t page = first / OVERLAY_PAGE_BLOCKS; page <= (end - 1) / OVERLAY_PAGE_BLOCKS;
		page++) {
		switch (page_state(store, page)) {
		case OVERLAY_PAGE_SAVED:
			page_set(store, page, OVERLAY_PAGE_CHANGED);
			break;
		case OVERLAY_PAGE_SAVING:
			page_set(store, page, OVERLAY_PAGE_SAVING_CHANGED);
			break;
		case OVERLAY_PAGE_CHANGED:
		case OVERLAY_PAGE_SAVING_CHANGED:
		case OVERLAY_PAGE_STATE_COUNT:
			break;
		}
	}
}

bool overlay_is_saved(const struct overlay_store *store, uint64_t first, uint64_t end)
{
	/* The acquire order pairs with the release in commit_end(). */
	if (!atomic_load_explicit(&store->has_committed, memory_order_acquire)) {
		return false;
	}
	for (uint64_t page = first / OVERLAY_PAGE_BLOCKS; page <= (end - 1) / OVERLAY_PAGE_BLOCKS;
		page++) {
		if (page_state(store, page) != OVERLAY_PAGE_SAVED) {
			return false;
		}
	}
	return true;
}

/* Called under the lock: copies the bits of all changed pages to saved. */
static void pages_take(struct overlay_store *store)
{
	for (uint64_t page = 0; page < store->layout.page_count; page++) {
		uint64_t word = page * OVERLAY_PAGE_WORDS;

		if (page_state(store, page) != OVERLAY_PAGE_CHANGED) {
			continue;
		}
		page_set(store, page, OVERLAY_PAGE_SAVING);
		for (uint64_t i = word; i < word + OVERLAY_PAGE_WORDS; i++) {
			store->saved[i] = htole64(
				atomic_load_explicit(&store->present[i], memory_order_relaxed));
		}
	}
}

/* Called under the lock at the end of a commit. saved: the copied pages are in the file; otherwise
 * the commit has failed. */
static void pages_end(struct overlay_store *store, bool saved)
{
	for (uint64_t page = 0; page < store->layout.page_count; page++) {
		if (page_state(store, page) == OVERLAY_PAGE_SAVING) {
			page_set(store, page, saved ? OVERLAY_PAGE_SAVED : OVERLAY_PAGE_CHANGED);
		} else if (page_state(store, page) == OVERLAY_PAGE_SAVING_CHANGED) {
			page_set(store, page, OVERLAY_PAGE_CHANGED);
		}
	}
}

/* Finds the next run of pages to write, starting at page. Returns its first page, and its length in
 * *count. */
static uint64_t pages_run(const struct overlay_store *store, uint64_t page, uint64_t *count)
{
	*count = 0;
	while (page < store->layout.page_count && page_state(store, page) < OVERLAY_PAGE_SAVING) {
		page++;
	}
	while (*count < RUN_PAGES_MAX && page + *count < store->layout.page_count &&
		page_state(store, page + *count) >= OVERLAY_PAGE_SAVING) {
		(*count)++;
	}
	return page;
}

/* --- a commit -------------------------------------------------------------------------------- */

/* Finishes the parts of this ring, and sends the other parts to their own rings. Then lets the
 * first part that waits begin the next commit. */
static void commit_end(struct overlay_queue *queue, int result)
{
	struct overlay_store *store = overlay_of(&queue->base);
	struct list_node own;
	struct list_node *node;

	list_init(&own);
	pthread_mutex_lock(&store->lock);
	pages_end(store, result == 0);
	if (result == 0) {
		atomic_store_explicit(&store->has_committed, true, memory_order_release);
	}
	while ((node = list_pop_front(&queue->committed)) != NULL) {
		struct store_part *part = list_entry(node, struct store_part, node);

		overlay_scratch_of(part)->result = result;
		if (part->queue == &queue->base) {
			list_push_back(&own, node);
		} else {
			overlay_send(part, OVERLAY_STEP_FINISH);
		}
	}
	node = list_pop_front(&store->committing_next);
	store->is_committing = node != NULL;
	if (node != NULL) {
		overlay_send(list_entry(node, struct store_part, node), OVERLAY_STEP_LEAD);
	}
	pthread_mutex_unlock(&store->lock);
	/* The parts of this ring are finished last, because the submitter of the last part may
	 * destroy the queue. */
	while ((node = list_pop_front(&own)) != NULL) {
		store_finish(list_entry(node, struct store_part, node), result);
	}
}

static void commit_flush(struct overlay_queue *queue, store_done_fn *done)
{
	queue->commit.op = STORE_FLUSH;
	queue->commit.offset = 0;
	queue->commit.length = 0;
	queue->commit.memory = MEM_NONE;
	queue->commit.done = done;
	store_submit(queue->upper, &queue->commit);
}

static void commit_saved(struct store_part *part, int result)
{
	commit_end(container_of(part, struct overlay_queue, commit), result);
}

/* Called when the data is durable, and after each write of bitmap pages. */
static void commit_written(struct store_part *part, int result)
{
	struct overlay_queue *queue = container_of(part, struct overlay_queue, commit);
	const struct overlay_store *store = overlay_of(&queue->base);
	uint64_t before = queue->commit_run;

	if (result < 0) {
		commit_end(queue, result);
		return;
	}
	queue->commit_page =
		pages_run(store, queue->commit_page + queue->commit_run, &queue->commit_run);
	if (queue->commit_run == 0) {
		if (before == 0) { /* all pages have been written */
			commit_end(queue, 0);
		} else {
			commit_flush(queue, commit_saved);
		}
		return;
	}
	part->op = STORE_WRITE;
	part->offset = overlay_page_offset(queue->commit_page);
	part->length = queue->commit_run * OVERLAY_PAGE_BYTES;
	part->memory = mem_of_const(store->saved + queue->commit_page * OVERLAY_PAGE_WORDS);
	part->done = commit_written;
	store_submit(queue->upper, part);
}

static void commit_begin(struct overlay_queue *queue)
{
	struct overlay_store *store = overlay_of(&queue->base);

	pthread_mutex_lock(&store->lock);
	list_move_all(&queue->committed, &store->committing_next);
	pages_take(store);
	pthread_mutex_unlock(&store->lock);
	queue->commits++;
	queue->commit_page = 0;
	queue->commit_run = 0;
	commit_flush(queue, commit_written);
}

void overlay_commit_lead(struct store_part *part)
{
	struct overlay_queue *queue = overlay_queue_of(part);

	list_push_back(&queue->committed, &part->node);
	commit_begin(queue);
}

void overlay_commit(struct store_part *part)
{
	struct overlay_store *store = overlay_of(part->queue);
	bool leads;

	pthread_mutex_lock(&store->lock);
	leads = !store->is_committing;
	store->is_committing = true;
	if (!leads) {
		list_push_back(&store->committing_next, &part->node);
	}
	pthread_mutex_unlock(&store->lock);
	if (leads) {
		overlay_commit_lead(part);
	}
}

/* Does not write the bits if the flush has failed, because their data may be lost. */
int overlay_commit_all(struct overlay_store *store)
{
	uint64_t page = 0;
	uint64_t count = 0;
	int result = atomic_load_explicit(&store->upper->broken, memory_order_relaxed);

	if (atomic_load_explicit(&store->unsaved_count, memory_order_relaxed) == 0) {
		return 0;
	}
	result = result ?: disk_sync(store->fd);
	pages_take(store);
	while (result == 0) {
		page = pages_run(store, page + count, &count);
		if (count == 0) {
			return disk_sync(store->fd);
		}
		result = disk_write(store->fd, store->saved + page * OVERLAY_PAGE_WORDS,
			count * OVERLAY_PAGE_BYTES, overlay_page_offset(page));
	}
	return result;
}
