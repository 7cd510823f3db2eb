// SPDX-License-Identifier: Apache-2.0
/*
 * mode=auto: decides which large reads bypass the page cache.
 *
 *   part ── small, or unaligned ──────────────────────────────▶ cached
 *        ── in the page cache ────────────────────────────────▶ cached
 *        ── read before with direct I/O ──────────────────────▶ cached, and stays there
 *        ── others: the faster method on this disk ────────────▶ direct or cached
 *
 * Direct I/O is better for a program that reads a disk once: no pages are allocated, the bytes are
 * copied once less, and data that others need stays in the cache. A program that reads the same
 * data again finds it in memory from its third read on. Each queue has a bitmap of the blocks that
 * it has read, so each queue reads a block once with direct I/O. The bitmap has two generations;
 * the older one is cleared when the younger one contains about as many blocks as half of the
 * machine's memory holds. Blocks read longer ago would have been evicted from the cache anyway. The
 * base of overlays is read by many exports and therefore always goes through the cache.
 *
 * The faster method depends on the disk. If every command takes long and few are in flight, the
 * gain of the kernel's readahead exceeds the cost of the copy. So the throughput of both methods is
 * measured in windows of consecutive reads, at least WINDOW_BYTES, not counting pauses of the
 * clients. Direct I/O gets the first window. If it reaches FAST_BYTES_PER_NS, it stays in use.
 * Otherwise cached reads get the next window; after that, the slower method gets one window in 64
 * (base/trial.h). If clients pause after every read, cached reads are used, because readahead can
 * use the pauses.
 *
 * After a cached window, the kernel continues reading ahead while clients read the data that it has
 * read ahead. This would falsify the measurement of a direct window that follows. So all large
 * reads of such a direct window bypass the cache, even if the cache contains their data. This ends
 * the readahead.
 *
 * None of this affects the contents that a read returns: both methods see all earlier writes (see
 * file_gate.h).
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "store/file.h"
#include "store/kind.h"

enum {
	AUTO_BYTES_MIN = 256 << 10, /* smaller reads are faster through the page cache */
	BLOCK_BYTES = AUTO_BYTES_MIN,
	WINDOW_BYTES = 32 << 20, /* minimum size of a window: several times the data in flight */
	/* The requests of a client follow earlier answers, so the first requests of a window depend
	 * on the method of the window before it. */
	UNTIMED_BYTES = WINDOW_BYTES / 2,
	WORD_BITS = 64,
};
#define BLOCKS_MIN   (UINT64_C(1) << 15) /* 8 GiB of the disk */
#define BLOCKS_MAX   (UINT64_C(1) << 24) /* 4 TiB of the disk */
#define PAUSE_NS_MAX UINT64_C(10000000)
/* A window lasts at least this long. The parts of a large request, which arrive at the same time,
 * would otherwise be a window that takes no time. */
#define WINDOW_NS_MIN UINT64_C(1000000)
/* 1 GB/s. On a disk with this throughput, readahead gains little, but a window of cached reads can
 * take several times as long as one of direct reads. */
#define FAST_BYTES_PER_NS 1

_Static_assert(BLOCK_BYTES <= AUTO_BYTES_MIN,
	"a large read is at least one block long, so it contains the first byte of a block");
_Static_assert(
	BLOCKS_MIN % WORD_BITS == 0, "a generation of the bitmap is a whole number of words");

/* --- blocks read before ---------------------------------------------------------------------- */

/* Returns how many blocks fit into this machine's memory, rounded up to a power of two from
 * BLOCKS_MIN to BLOCKS_MAX. */
static uint64_t blocks_of_memory(void)
{
	uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t blocks = BLOCKS_MIN;

	while (blocks < BLOCKS_MAX && blocks * BLOCK_BYTES < bytes) {
		blocks *= 2;
	}
	return blocks;
}

static uint64_t generation_bytes(const struct file_auto *ways)
{
	return ways->block_count / 8;
}

/* Marks a block as read. Returns whether it was marked before. Blocks at a distance of block_count
 * share a bit, so the result can be true for a block that was not read. */
static bool block_mark(struct file_auto *ways, uint64_t block)
{
	uint64_t bit = block % ways->block_count;
	uint64_t mask = UINT64_C(1) << (bit % WORD_BITS);
	uint64_t *young = &ways->seen[ways->young][bit / WORD_BITS];
	bool seen = ((*young | ways->seen[!ways->young][bit / WORD_BITS]) & mask) != 0;

	if ((*young & mask) == 0) {
		*young |= mask;
		ways->young_count++;
	}
	return seen;
}

static void generation_end(struct file_auto *ways)
{
	ways->young = !ways->young;
	ways->young_count = 0;
	memset(ways->seen[ways->young], 0, generation_bytes(ways));
}

/* Marks the blocks that begin inside the range. So two reads of adjacent ranges never mark the same
 * block. Returns whether any of the blocks was marked before. */
static bool range_mark(struct file_auto *ways, uint64_t offset, uint64_t length)
{
	uint64_t first = (offset + BLOCK_BYTES - 1) / BLOCK_BYTES;
	uint64_t last = (offset + length - 1) / BLOCK_BYTES;
	bool seen = false;

	for (uint64_t block = first; block <= last; block++) {
		seen |= block_mark(ways, block);
	}
	if (ways->young_count >= ways->block_count / 2) {
		generation_end(ways);
	}
	return seen;
}

/* --- comparing both methods ------------------------------------------------------------------ */

/* Direct I/O is used only if it is faster. With equal throughput, the clients' pauses hide the
 * disk, and readahead can use them. A window is long enough for a reliable first decision, and a
 * try costs 32 MiB, so tries are always rare. */
static const struct trial_rule rule = {
	.first_windows = 1, .try_first = 64, .try_every = 64, .margin = UINT32_MAX
};

static void window_end(struct file_auto *ways)
{
	bool was_cached = ways->trial.way == FILE_WAY_CACHED;
	uint64_t timed_bytes = ways->window_bytes - UNTIMED_BYTES;

	ways->window_bytes = 0;
	if (!was_cached && !ways->window_paused &&
		timed_bytes >= ways->window_ns * FAST_BYTES_PER_NS) {
		return;
	}
	trial_end_window(&ways->trial, &rule, timed_bytes, ways->window_ns);
	container_of(ways, struct file_queue, ways)->base.reads_around =
		ways->trial.way == FILE_WAY_DIRECT;
	if (was_cached && ways->trial.way == FILE_WAY_DIRECT) {
		ways->quiet_bytes = WINDOW_BYTES;
	}
}

/* Adds a read to the current window, or begins a window. */
static void window_add(struct file_auto *ways, uint64_t offset, uint64_t length, uint64_t now_ns)
{
	if (ways->window_bytes == 0) {
		ways->window_offset = offset;
		ways->window_ns = 0;
		ways->window_paused = false;
	} else if (ways->window_bytes >= UNTIMED_BYTES) {
		ways->window_ns += MIN(now_ns - ways->last_ns, PAUSE_NS_MAX);
		ways->window_paused |= now_ns - ways->last_ns > PAUSE_NS_MAX;
	}
	ways->last_ns = now_ns;
	ways->window_bytes += length;
	if (ways->window_bytes >= WINDOW_BYTES && ways->window_ns >= WINDOW_NS_MIN) {
		window_end(ways);
	}
}

/* Adds a read from the page cache to the current window if the kernel has read its data ahead in
 * this window, but not if the data was in the cache before. */
static void window_add_resident(
	struct file_auto *ways, uint64_t offset, uint64_t length, uint64_t now_ns)
{
	if (ways->trial.way == FILE_WAY_CACHED && ways->window_bytes > 0 &&
		offset - ways->window_offset < WINDOW_BYTES) {
		window_add(ways, offset, length, now_ns);
	}
}

/* --- reads ----------------------------------------------------------------------------------- */

bool file_auto_is_quiet(const struct file_queue *queue, const struct store_part *part)
{
	const struct file_store *store = container_of(queue->base.store, struct file_store, base);

	return queue->ways.quiet_bytes > 0 && part->length >= AUTO_BYTES_MIN &&
	       is_aligned(part->offset | part->length, store->offset_align);
}

bool file_auto_goes_direct(struct store_part *part)
{
	struct file_store *store = file_store_of(part);
	struct file_queue *queue = file_queue_of(part);
	struct file_auto *ways = &queue->ways;
	uint64_t now_ns = ring_batch_ns(queue->base.ring);
	bool direct = ways->trial.way == FILE_WAY_DIRECT;

	if (ways->seen[0] == NULL || part->length < AUTO_BYTES_MIN ||
		!file_fits_direct(store, part->offset, part->memory, part->length)) {
		return false;
	}
	if (file_auto_is_quiet(queue, part)) {
		ways->quiet_bytes -= MIN(ways->quiet_bytes, part->length);
		queue->auto_bytes[FILE_WAY_DIRECT] += part->length;
		window_add(ways, part->offset, part->length, now_ns);
		return true;
	}
	if (disk_map_has(store->map, part->offset, 1) &&
		disk_map_has(store->map, part->offset + part->length - 1, 1)) {
		window_add_resident(ways, part->offset, part->length, now_ns);
		return false;
	}
	if (range_mark(ways, part->offset, part->length)) {
		queue->auto_again_bytes += part->length;
		return false;
	}
	queue->auto_bytes[ways->trial.way] += part->length;
	window_add(ways, part->offset, part->length, now_ns);
	return direct;
}

void file_auto_resident(struct store_part *part)
{
	struct file_queue *queue = file_queue_of(part);

	window_add_resident(
		&queue->ways, part->offset, part->length, ring_batch_ns(queue->base.ring));
}

void file_auto_announced(struct store_part *part, uint64_t length)
{
	struct file_auto *ways = &file_queue_of(part)->ways;

	if (ways->seen[0] != NULL) {
		(void)range_mark(ways, part->offset, length);
	}
}

/* --- queues ---------------------------------------------------------------------------------- */

bool file_auto_init(struct file_queue *queue)
{
	struct file_auto *ways = &queue->ways;
	uint64_t *bits;

	ways->trial.way = FILE_WAY_DIRECT;
	queue->base.reads_around = true;
	ways->block_count = blocks_of_memory();
	/* Reserves only address space: a page of memory is used when a bit in it is set. One page
	 * is enough for 8 GiB of disk. */
	bits = mmap(NULL, 2 * generation_bytes(ways), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (bits == MAP_FAILED) {
		return false;
	}
	ways->seen[0] = bits;
	ways->seen[1] = bits + ways->block_count / WORD_BITS;
	return true;
}

void file_auto_fini(struct file_queue *queue)
{
	struct file_auto *ways = &queue->ways;

	if (ways->seen[0] != NULL) {
		(void)munmap(ways->seen[0], 2 * generation_bytes(ways));
	}
}
