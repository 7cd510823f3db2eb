// SPDX-License-Identifier: Apache-2.0
/*
 * The memory store: blocks in memory that is mapped when the store is opened. Its pages are
 * allocated when they are first written. A map has one bit per chunk of 64 KiB. The bit is set if
 * the chunk may contain bytes other than zero:
 *
 *   bytes [data][    ][    ][data]   chunk i at i * 64 KiB
 *   map   [1][0][0][1] ...           0: reads as zeroes, reported as a hole
 *
 * Bytes and map are in one memory file (memfd), the map after the bytes, so that another process
 * that takes the store over can map the same memory. The file's size is sealed: if a process could
 * truncate it, others that have it mapped would be killed.
 *
 * All reactors share the memory. The submitting thread copies the bytes; overlapping requests in
 * flight yield a mixture of their data, as on a disk. Invariant: if a bit is clear, its chunk is
 * zero. So a writer sets the bit both before and after it copies, and a trim clears the bit before
 * it releases the pages. This keeps the invariant, whatever the order in which a concurrent write
 * and trim proceed.
 *
 * A request of a few bytes can ask to zero, trim or examine gigabytes. The parts of such requests
 * are in the run list of their queue, and each part in turn does one step. The steps in one turn of
 * the event loop are limited, so such parts slow down each other but not the other work of the
 * loop.
 *
 *   submit ──▶ list [part][part][part] ──▶ a step of the first ──▶ done
 *                └──── to the end of the list, unless done ┘
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "store/kind.h"
#include "store/parse.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

enum {
	CHUNK_SHIFT = 16,
	CHUNK_BYTES = 1 << CHUNK_SHIFT,
	WORD_BITS = 64,
	/* Limits of a step of a part, and of all steps of a queue in a turn of the event loop. The
	 * unit of costs is the time to write one byte. A turn takes 0.2 ms if it has to allocate
	 * pages. */
	STEP_COST = 64 << 10,
	TURN_COST = 256 << 10,
	LOOK_COST = 16,		 /* cost of examining a bit of the map */
	RELEASE_COST = 16 << 10, /* cost of releasing a chunk */
	EXTENTS_CHUNKS_MAX = 1 << 20,
	MAP_PAGE_BYTES = 4096,
	SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW,
};

struct memory_store {
	struct store base;
	uint64_t size;
	uint64_t data_bytes;   /* size of the disk, rounded up to whole chunks */
	uint64_t mapped_bytes; /* size of the disk's bytes and the map together */
	uint64_t identity[2];  /* device and inode of the memory file */
	int fd;		       /* descriptor of the memory file */
	uint8_t *bytes;
	_Atomic uint64_t *map; /* one bit per chunk, located after the bytes */
};

struct memory_queue {
	struct store_queue base;
	struct list_node line; /* the run list: its parts do one step each in turn */
	/* operation that runs the steps; in flight while the list is not empty */
	struct ring_op turn;
};

/* The store's private data in a part. This store is the innermost layer, so it is at the start of
 * the scratch. */
struct memory_scratch {
	uint64_t done_bytes; /* number of bytes of the part already processed */
	/* Number of bytes to process. For extents it is less than the part's length if there are
	 * not enough entries. */
	uint64_t end_bytes;
};

static struct memory_scratch *scratch_of(struct store_part *part)
{
	return (struct memory_scratch *)(void *)part->scratch;
}

/* --- the map ------------------------------------------------------------------------------- */

static uint64_t chunk_bit(uint64_t chunk)
{
	return UINT64_C(1) << (chunk % WORD_BITS);
}

static bool chunk_used(struct memory_store *store, uint64_t chunk)
{
	/* The acquire order pairs with the release in chunk_set(): bytes copied before the bit was
	 * set are visible. */
	return (atomic_load_explicit(&store->map[chunk / WORD_BITS], memory_order_acquire) &
		       chunk_bit(chunk)) != 0;
}

static void chunk_set(struct memory_store *store, uint64_t chunk)
{
	if (!chunk_used(store, chunk)) {
		/* The release order pairs with the acquire in chunk_used(). */
		atomic_fetch_or_explicit(
			&store->map[chunk / WORD_BITS], chunk_bit(chunk), memory_order_acq_rel);
	}
}

static void chunk_clear(struct memory_store *store, uint64_t chunk)
{
	atomic_fetch_and_explicit(
		&store->map[chunk / WORD_BITS], ~chunk_bit(chunk), memory_order_acq_rel);
}

/* Returns the number of bytes from offset to the end of its chunk, at most length. */
static uint64_t in_chunk(uint64_t offset, uint64_t length)
{
	return MIN(length, CHUNK_BYTES - offset % CHUNK_BYTES);
}

/* --- bytes --------------------------------------------------------------------------------- */

static void copy_out(struct memory_store *store, uint64_t offset, uint8_t *data, uint64_t length)
{
	while (length > 0) {
		uint64_t count = in_chunk(offset, length);

		if (chunk_used(store, offset >> CHUNK_SHIFT)) {
			memcpy(data, store->bytes + offset, count);
		} else {
			/* chunk without data: reading it would make the kernel map pages */
			memset(data, 0, count);
		}
		offset += count;
		data += count;
		length -= count;
	}
}

/* Allocates all pages of a chunk with one call, which is a third faster than one by one. Failure is
 * ignored. */
static void populate(struct memory_store *store, uint64_t chunk)
{
	(void)madvise(store->bytes + (chunk << CHUNK_SHIFT), CHUNK_BYTES, MADV_POPULATE_WRITE);
}

/* Copies data into the store; NULL: writes zeroes. Sets each chunk's bit before and after copying,
 * see the head of the file. */
static void copy_in(
	struct memory_store *store, uint64_t offset, const uint8_t *data, uint64_t length)
{
	while (length > 0) {
		uint64_t count = in_chunk(offset, length);
		uint64_t chunk = offset >> CHUNK_SHIFT;

		if (count == CHUNK_BYTES && !chunk_used(store, chunk)) {
			populate(store, chunk);
		}
		chunk_set(store, chunk);
		if (data != NULL) {
			memcpy(store->bytes + offset, data, count);
			data += count;
		} else {
			memset(store->bytes + offset, 0, count);
		}
		chunk_set(store, chunk);
		offset += count;
		length -= count;
	}
}

/* --- the run list ---------------------------------------------------------------------------- */

/* Zeroes or trims the rest of the part in its current chunk, and releases the chunk if possible.
 * Returns the cost. */
static uint64_t clear_chunk(struct memory_store *store, struct store_part *part)
{
	bool provision = part->op == STORE_ZERO && (part->flags & STORE_NO_HOLE) != 0;
	uint64_t offset = part->offset + scratch_of(part)->done_bytes;
	uint64_t count = in_chunk(offset, part->length - scratch_of(part)->done_bytes);
	uint64_t chunk = offset >> CHUNK_SHIFT;
	bool whole = offset % CHUNK_BYTES == 0 &&
		     (count == CHUNK_BYTES || offset + count == store->size);

	scratch_of(part)->done_bytes += count;
	if (!provision && !chunk_used(store, chunk)) {
		return LOOK_COST;
	}
	if (!provision && whole) {
		chunk_clear(store, chunk);
		/* Cannot fail: the range is mapped, shared, writable and a whole chunk. */
		(void)madvise(store->bytes + offset, CHUNK_BYTES, MADV_REMOVE);
		return RELEASE_COST;
	}
	copy_in(store, offset, NULL, count);
	return LOOK_COST + count;
}

/* Adds the current chunk to the extents. If there is no free entry, ends the part here. Returns the
 * cost. */
static uint64_t look_chunk(struct memory_store *store, struct store_part *part)
{
	uint64_t offset = part->offset + scratch_of(part)->done_bytes;
	uint64_t count =
		in_chunk(offset, scratch_of(part)->end_bytes - scratch_of(part)->done_bytes);
	uint32_t flags = chunk_used(store, offset >> CHUNK_SHIFT)
				 ? 0
				 : STORE_EXTENT_HOLE | STORE_EXTENT_ZERO;

	if (store_extent_add(part, count, flags)) {
		scratch_of(part)->done_bytes += count;
	} else {
		scratch_of(part)->end_bytes = scratch_of(part)->done_bytes;
	}
	return LOOK_COST;
}

static uint64_t step(struct memory_store *store, struct store_part *part)
{
	uint64_t cost = 0;

	while (cost < STEP_COST && scratch_of(part)->done_bytes < scratch_of(part)->end_bytes) {
		cost += part->op == STORE_EXTENTS ? look_chunk(store, part)
						  : clear_chunk(store, part);
	}
	return cost;
}

static void take_turn(struct ring_op *op, int result)
{
	struct memory_queue *queue = container_of(op, struct memory_queue, turn);
	struct memory_store *store = container_of(queue->base.store, struct memory_store, base);
	struct list_node finished;
	struct list_node *node;
	uint64_t cost = 0;

	list_init(&finished);
	while (cost < TURN_COST && (node = list_pop_front(&queue->line)) != NULL) {
		struct store_part *part = list_entry(node, struct store_part, node);

		cost += step(store, part);
		list_push_back(scratch_of(part)->done_bytes < scratch_of(part)->end_bytes
				       ? &queue->line
				       : &finished,
			node);
	}
	if (!list_is_empty(&queue->line)) {
		ring_defer(queue->base.ring, &queue->turn, 0, take_turn);
	}
	/* The queue must not be used from here on: the submitter of the last part may destroy
	 * it. */
	while ((node = list_pop_front(&finished)) != NULL) {
		store_finish(list_entry(node, struct store_part, node), result);
	}
}

static void stand_in_line(struct store_part *part)
{
	struct memory_queue *queue = container_of(part->queue, struct memory_queue, base);

	scratch_of(part)->end_bytes = part->length;
	if (part->op == STORE_EXTENTS) {
		scratch_of(part)->end_bytes =
			MIN(part->length, (uint64_t)EXTENTS_CHUNKS_MAX * CHUNK_BYTES);
	}
	list_push_back(&queue->line, &part->node);
	if (!queue->turn.in_flight) {
		ring_defer(queue->base.ring, &queue->turn, 0, take_turn);
	}
}

/* --- parts --------------------------------------------------------------------------------- */

/* If a chunk is trimmed while its bytes are being sent, zeroes or the old bytes arrive. */
static bool memory_page_cache_ref(struct store_queue *queue, struct store_part *part)
{
	struct memory_store *store = container_of(queue->store, struct memory_store, base);
	uint64_t end = part->offset + part->length;

	if (end > store->size) {
		return false;
	}
	for (uint64_t chunk = part->offset >> CHUNK_SHIFT; chunk <= (end - 1) >> CHUNK_SHIFT;
		chunk++) {
		if (!chunk_used(store, chunk)) {
			return false;
		}
	}
	for (uint64_t at = 0; at < part->length; at += STORE_PAGE_CACHE_LOOK_BYTES) {
		uint64_t word = 0;

		memcpy(&word, store->bytes + part->offset + at,
			MIN(part->length - at, (uint64_t)sizeof(word)));
		if (word == 0) {
			return false;
		}
	}
	part->memory = mem_limit(
		mem_of(store->bytes + part->offset), queue->store->info.page_cache_rights);
	return true;
}

static void memory_submit(struct store_queue *queue, struct store_part *part)
{
	struct memory_store *store = container_of(queue->store, struct memory_store, base);

	scratch_of(part)->done_bytes = 0;
	if (part->op != STORE_FLUSH && part->offset + part->length > store->size) {
		store_finish_later(part, -EIO);
		return;
	}
	switch (part->op) {
	case STORE_READ:
		copy_out(store, part->offset, mem_cpu_write(part->memory), part->length);
		break;
	case STORE_WRITE:
		copy_in(store, part->offset, mem_cpu_read(part->memory), part->length);
		break;
	case STORE_TRIM:
	case STORE_ZERO:
	case STORE_EXTENTS:
		stand_in_line(part);
		return;
	case STORE_FLUSH:
	case STORE_CACHE:
		break;
	case STORE_COPY: /* the store offers no copy methods */
	case STORE_OP_COUNT:
		GMB_ASSERT(false);
	}
	store_finish_later(part, 0);
}

/* --- opening ------------------------------------------------------------------------------- */

static int memory_queue_init(struct store_queue *queue, struct error *error)
{
	list_init(&container_of(queue, struct memory_queue, base)->line);
	return 0;
}

static void memory_close(struct store *base)
{
	struct memory_store *store = container_of(base, struct memory_store, base);

	munmap(store->bytes, store->mapped_bytes);
	close(store->fd);
}

uint8_t *memory_store_bytes(struct store *store)
{
	GMB_ASSERT(store->ops->close == memory_close);
	return container_of(store, struct memory_store, base)->bytes;
}

static uint64_t memory_size(struct store *store)
{
	return container_of(store, struct memory_store, base)->size;
}

/* Creates a memory file of mapped_bytes. spec: the path of the store. */
static int make_file(struct memory_store *store, const char *spec, struct error *error)
{
	static const char name[] = "gmblock-disk";
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	int result;

	if (fd < 0 && errno == EINVAL) { /* Linux before 6.3 */
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	}
	result = fd >= 0 && ftruncate(fd, (off_t)store->mapped_bytes) == 0 &&
				 fcntl(fd, F_ADD_SEALS, SEALS) == 0
			 ? 0
			 : -errno;

	if (result < 0) {
		if (fd >= 0) {
			close(fd);
		}
		return error_set(error, result, "cannot create the memory of '%s': %s%s", spec,
			strerror(-result),
			result == -EFBIG ? "; the size of the memory disk exceeds the limit on "
					   "file sizes (ulimit -f, LimitFSIZE=)"
					 : "");
	}
	store->fd = fd;
	return 0;
}

/* Returns whether fd is a memory file of a store of this size, sealed against truncation. */
static bool is_file_of(const struct memory_store *store, int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       (uint64_t)st.st_size == store->mapped_bytes && seals >= 0 &&
	       (seals & SEALS) == SEALS;
}

/* Uses the memory file of the previous process if it fits; otherwise creates one. */
static int choose_file(
	struct memory_store *store, const struct store_options *options, struct error *error)
{
	const struct store_claim *inherited = options->inherited;
	struct stat st;
	int result = 0;

	if (inherited != NULL && inherited->hold == STORE_HOLD_MEMORY &&
		is_file_of(store, inherited->fd)) {
		store->fd = fcntl(inherited->fd, F_DUPFD_CLOEXEC, 0);
		if (store->fd < 0) {
			result = error_set(error, -errno, "cannot take over the memory of '%s': %s",
				options->path, strerror(errno));
		}
	} else {
		result = make_file(store, options->path, error);
	}
	if (result == 0 && fstat(store->fd, &st) == 0) {
		store->identity[0] = st.st_dev;
		store->identity[1] = st.st_ino;
	}
	return result;
}

static int store_memory_map_memory(
	struct memory_store *store, const struct store_options *options, struct error *error)
{
	uint64_t chunks = (store->size - 1) / CHUNK_BYTES + 1;
	uint64_t words = (chunks - 1) / WORD_BITS + 1;
	void *bytes;
	int result;

	store->data_bytes = chunks * CHUNK_BYTES;
	store->mapped_bytes =
		store->data_bytes + align_up(words * sizeof(*store->map), MAP_PAGE_BYTES);
	result = choose_file(store, options, error);
	if (result < 0) {
		return result;
	}
	bytes = mmap(NULL, store->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
		store->fd, 0);
	if (bytes == MAP_FAILED) {
		result = -errno;
		close(store->fd);
		return error_set(error, result,
			"cannot reserve %llu bytes of address space for '%s': %s; choose a "
			"smaller size",
			(unsigned long long)store->mapped_bytes, options->path, strerror(-result));
	}
	store->bytes = bytes;
	store->map = (void *)(store->bytes + store->data_bytes);
	return 0;
}

static int memory_open(struct store *base, const struct store_options *options, const void *config,
	struct error *error)
{
	struct memory_store *store = container_of(base, struct memory_store, base);
	int result = parse_path_size(options->path, &store->size, error);

	if (result < 0) {
		return result;
	}
	/* This store has no page cache, so the modes have no effect on it. */
	base->info = (struct store_info){
		.kind = "memory",
		.caps = STORE_CAP_TRIM | STORE_CAP_FAST_ZERO | STORE_CAP_EXTENTS |
			(options->read_only ? 0 : STORE_CAP_WRITE),
		.block_min = 1,
		.block_preferred = 4096,
		.memory_align = 1,
		.offset_align = 1,
		.memory_rights = MEM_CPU | MEM_ADDRESS,
		.page_cache_rights = MEM_SOCKET | MEM_ADDRESS,
		.is_volatile = true,
		.read_direct = store_mode_is_direct(options->read_mode),
		.write_direct = store_mode_is_direct(options->write_mode),
		/* Progress reports would cost more than they gain, because copying is fast: 20 %
		 * fewer reads per second with 512 KiB over loopback. */
	};
	return store_memory_map_memory(store, options, error);
}

static const char *memory_handover(struct store *base, struct store_claim *claim_out)
{
	const struct memory_store *store = container_of(base, struct memory_store, base);

	*claim_out = (struct store_claim){
		.identity = { store->identity[0], store->identity[1] },
		.fd = store->fd,
		.hold = STORE_HOLD_MEMORY,
	};
	return NULL;
}

static const struct store_ops memory_ops = {
	.name = "memory",
	.queue_bytes = sizeof(struct memory_queue),
	.scratch_bytes = sizeof(struct memory_scratch),
	.close = memory_close,
	.queue_init = memory_queue_init,
	.submit = memory_submit,
	.page_cache_ref = memory_page_cache_ref,
	.size = memory_size,
	.handover = memory_handover,
};

const struct store_kind memory_store_kind = {
	.name = "memory",
	.prefix = "memory:",
	.names_size = true,
	.store_bytes = sizeof(struct memory_store),
	.ops = &memory_ops,
	.open = memory_open,
};
