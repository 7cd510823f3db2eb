// SPDX-License-Identifier: Apache-2.0
/*
 * The file store: opening, queues, reads and writes. file.h describes its structure and guarantees.
 */
#include "store/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "store/kind.h"

enum {
	/* limit on tries: one second in total, with RETRY_NS between two tries */
	RETRIES_MAX = 1000,
	OFFSET_ALIGN_MAX = 65536,
	PAGE_BYTES_MIN = 4096,
	INLINE_SLOW_MAX = 2,
	/* A copy of more bytes takes longer than passing it to a worker thread. */
	READ_INLINE_BYTES_MAX = 65536,
};
#define RETRY_NS UINT64_C(1000000)
/* If a transfer on this thread takes longer than this, it has probably blocked. */
#define INLINE_NS_MAX	UINT64_C(1000000)
#define INLINE_PAUSE_NS UINT64_C(100000000)

static void read_next(struct store_part *part);
static void write_next(struct store_part *part);

/* --- options ------------------------------------------------------------------------------- */

struct file_config {
	bool is_raw; /* a file of any format is treated as raw */
};

static int set_format(void *config, const char *value, struct error *error)
{
	struct file_config *options = config;

	options->is_raw = strcmp(value, "raw") == 0;
	return options->is_raw ? 0
			       : error_set(error, -EINVAL,
					 "'%s' is not a supported format; only raw is served, and "
					 "'qemu-img convert -O raw' converts other images",
					 quote(value));
}

static const struct field file_options[] = {
	{ "format", "raw",
		"serve the bytes of the file as the disk, even if the file looks like an image in "
		"another format, such as qcow2",
		"raw", .set = set_format, FIELD_AT(struct file_config, is_raw, is_raw) },
};

/* --- results ------------------------------------------------------------------------------- */

/* Maps an error to one that store.h allows. store_submit() has checked the arguments, so -EINVAL
 * from the kernel can only mean that the disk has changed since it was opened. */
static int store_file_legal_result(int result)
{
	switch (result) {
	case -EINVAL:
	case -EINTR:
	case -EAGAIN:
	case -EBADF:
	case -EFAULT:
		return -EIO;
	default:
		return result;
	}
}

void file_finish(struct store_part *part, int result)
{
	if (file_scratch_of(part)->gate != FILE_GATE_NONE) {
		file_gate_leave(file_store_of(part)->gate, part);
	}
	store_finish(part, result < 0 ? store_file_legal_result(result) : 0);
}

static void store_file_retry_done(struct ring_op *op, int result)
{
	struct store_part *part = file_part_of(op);

	GMB_UNUSED(result); /* the result is always 0, because the timer is never cancelled */
	if (part->op == STORE_READ) {
		read_next(part);
	} else {
		write_next(part);
	}
}

bool file_retry(struct store_part *part, int result, ring_done_fn *again)
{
	if (result != -EINTR && result != -EAGAIN) {
		return false;
	}
	if (file_scratch_of(part)->retries == RETRIES_MAX) {
		return false;
	}
	file_scratch_of(part)->retries++;
	ring_timer(part->queue->ring, &part->io, result == -EAGAIN ? RETRY_NS : 0, again);
	return true;
}

/* Returns whether the disk cannot reach the part's memory (device memory), so that the transfer
 * must be retried without direct I/O: the kernel can then copy between this memory and the page
 * cache. (Newer kernels return -EINVAL instead of -EREMOTEIO.) */
static bool try_by_copy(struct store_part *part, int result)
{
	if ((result != -EREMOTEIO && result != -EINVAL && result != -EFAULT) ||
		mem_may(part->memory, MEM_CPU_READ)) {
		return false;
	}
	if (part->memory_error != 0) { /* the retry has failed, too: the memory is gone */
		part->memory_error = -ENODEV;
		return false;
	}
	part->memory_error = result;
	return true;
}

/* --- size ---------------------------------------------------------------------------------- */

uint64_t file_refresh_size(struct file_store *store)
{
	uint64_t before;
	uint64_t size;

	if (disk_size(store->fd, &size) < 0) {
		return atomic_load_explicit(&store->size, memory_order_relaxed);
	}
	/* Relaxed order: no other data depends on this number. */
	before = atomic_exchange_explicit(&store->size, size, memory_order_relaxed);
	if (unlikely(size != before)) {
		log_debug("'%s' had %llu bytes and now has %llu", quote(store->path),
			(unsigned long long)before, (unsigned long long)size);
		store_resized(&store->base);
	}
	return size;
}

/* --- transfers on this thread -------------------------------------------------------------- */

/*
 * Copies to and from memory take microseconds. An asynchronous write to the page cache, or read
 * from a tmpfs, takes longer, because the kernel uses a worker thread for it. But if the transfer
 * on this thread blocks (too many dirty pages, an unaligned write that must first read, a page in
 * the swap space), all clients of this reactor wait. So after several slow transfers, further ones
 * are asynchronous for a while.
 */
static bool may_go_inline(const struct file_queue *queue)
{
	return ring_batch_ns(queue->base.ring) >= queue->inline_again_ns;
}

static void transfer_inline(struct store_part *part, struct mem_ref memory, uint64_t length,
	uint64_t offset, ring_done_fn *done)
{
	struct file_queue *queue = file_queue_of(part);
	struct ring *ring = queue->base.ring;
	uint64_t start_ns = ring_now_ns(ring);
	uint64_t took_ns;

	ring_transfer_inline(ring, &part->io, part->op == STORE_WRITE, queue->file, memory, length,
		offset, done);
	took_ns = ring_now_ns(ring) - start_ns;
	if (took_ns <= INLINE_NS_MAX) {
		queue->inline_slow_count = 0;
		return;
	}
	queue->blocked_writes += part->op == STORE_WRITE;
	if (++queue->inline_slow_count >= INLINE_SLOW_MAX) {
		queue->inline_slow_count = 0;
		queue->inline_again_ns = start_ns + took_ns + INLINE_PAUSE_NS;
	}
}

/* --- reading ------------------------------------------------------------------------------- */

bool file_fits_direct(
	const struct file_store *store, uint64_t offset, struct mem_ref memory, uint64_t length)
{
	return is_aligned(offset | length, store->offset_align) &&
	       mem_is_aligned(memory, store->memory_align);
}

static void store_file_read_done(struct ring_op *op, int result)
{
	struct store_part *part = file_part_of(op);
	struct file_scratch *scratch = file_scratch_of(part);

	if (result > 0) {
		scratch->done_bytes += (uint64_t)result;
		scratch->retries = 0;
		GMB_ASSERT(scratch->done_bytes <= part->length);
		if (scratch->done_bytes == part->length) {
			file_finish(part, 0);
		} else {
			read_next(part);
		}
		return;
	}
	if (result == 0) { /* the file ends here: it was truncated */
		file_refresh_size(file_store_of(part));
		file_finish(part, -EIO);
		return;
	}
	if (result == -EINVAL && scratch->around && !file_store_of(part)->base.info.read_direct) {
		/* The disk has changed. Direct I/O was preferred, not required, so the page cache
		 * is used instead. */
		scratch->around = false;
		read_next(part);
	} else if (try_by_copy(part, result)) {
		read_next(part);
	} else if (!file_retry(part, result, store_file_retry_done)) {
		file_finish(part, result);
	}
}

static void read_next(struct store_part *part)
{
	struct file_store *store = file_store_of(part);
	struct file_queue *queue = file_queue_of(part);
	const struct file_scratch *scratch = file_scratch_of(part);
	uint64_t offset = part->offset + scratch->done_bytes;
	uint64_t left = part->length - scratch->done_bytes;
	struct mem_ref memory = mem_add(part->memory, scratch->done_bytes);
	struct ring_file file = queue->file;

	if (scratch->around && part->memory_error == 0 &&
		file_fits_direct(store, offset, memory, left)) {
		file = queue->direct;
		queue->direct_transfers++;
	} else if (store->disk.keeps_stale && scratch->gate == FILE_GATE_NONE &&
		   file_gate_has_direct_writers(store->gate) &&
		   !file_gate_enter(store->gate, part, FILE_GATE_BUFFERED)) {
		return;
	} else if (store->disk.in_memory && left <= READ_INLINE_BYTES_MAX && may_go_inline(queue)) {
		transfer_inline(part, memory, left, offset, store_file_read_done);
		return;
	}
	ring_read(queue->base.ring, &part->io, file, memory, left, offset, store_file_read_done);
}

/* --- writing ------------------------------------------------------------------------------- */

bool file_write_enter(struct store_part *part, bool direct)
{
	struct file_store *store = file_store_of(part);
	enum file_gate_class want = FILE_GATE_NONE;

	if (direct) {
		want = FILE_GATE_DIRECT;
	} else if (file_gate_has_direct_writers(store->gate)) {
		want = FILE_GATE_BUFFERED;
	}
	if (file_scratch_of(part)->gate == (uint32_t)want) {
		return true;
	}
	file_gate_leave(store->gate, part);
	return want == FILE_GATE_NONE || file_gate_enter(store->gate, part, want);
}

static void write_failed(struct store_part *part, int result)
{
	struct file_store *store = file_store_of(part);

	if (result == -EFAULT && part->memory_error == 0) {
		part->memory_error = result; /* a peer has removed the memory that it shares */
	}
	if (result == -ENOSPC && part->offset + part->length > file_refresh_size(store)) {
		result = -EIO; /* the disk is not full: the device has shrunk */
	}
	if (store_result_breaks(part, result)) {
		file_gate_fail(store->gate, store_file_legal_result(result));
	}
	file_finish(part, result);
}

static void write_done(struct ring_op *op, int result)
{
	struct store_part *part = file_part_of(op);

	if (result <= 0) {
		if (try_by_copy(part, result)) {
			write_next(part);
		} else if (!file_retry(part, result, store_file_retry_done)) {
			write_failed(part, result == 0 ? -EIO : result);
		}
		return;
	}
	file_scratch_of(part)->done_bytes += (uint64_t)result;
	file_scratch_of(part)->retries = 0;
	GMB_ASSERT(file_scratch_of(part)->done_bytes <= part->length);
	if (file_scratch_of(part)->done_bytes < part->length) {
		write_next(part);
	} else if ((part->flags & STORE_FUA) == 0) {
		file_finish(part, 0);
	} else if (file_store_of(part)->disk.ignores_dsync) {
		file_finish_durable(part);
	} else {
		file_finish(part, file_gate_error(file_store_of(part)->gate));
	}
}

/*
 * If this store writes directly, its unaligned writes through the page cache are made durable
 * before they leave the gate. Their pages are then clean, so that a later write-back cannot
 * overwrite data from direct writes.
 */
static void write_next(struct store_part *part)
{
	struct file_store *store = file_store_of(part);
	struct file_queue *queue = file_queue_of(part);
	uint64_t offset = part->offset + file_scratch_of(part)->done_bytes;
	uint64_t left = part->length - file_scratch_of(part)->done_bytes;
	struct mem_ref memory = mem_add(part->memory, file_scratch_of(part)->done_bytes);
	bool writes_direct = store->base.info.write_direct;
	bool direct = writes_direct && part->memory_error == 0 &&
		      file_fits_direct(store, offset, memory, left);
	bool durable =
		(part->flags & (STORE_FUA | STORE_THROUGH)) != 0 || (writes_direct && !direct);

	if (!file_write_enter(part, direct)) {
		return;
	}
	queue->direct_transfers += direct;
	if (!direct && !durable && may_go_inline(queue)) {
		transfer_inline(part, memory, left, offset, write_done);
		return;
	}
	ring_write(queue->base.ring, &part->io, direct ? queue->direct : queue->file, memory, left,
		offset, durable, write_done);
}

static void write_start(struct store_part *part)
{
	int error = file_gate_error(file_store_of(part)->gate);

	if ((part->flags & STORE_FUA) != 0 && error != 0) {
		store_finish_later(part, error);
		return;
	}
	write_next(part);
}

void file_resume(struct store_part *part)
{
	switch (part->op) {
	case STORE_READ:
		read_next(part);
		break;
	case STORE_WRITE:
		write_next(part);
		break;
	case STORE_ZERO:
		file_zero_resume(part);
		break;
	case STORE_COPY:
		file_copy(part);
		break;
	case STORE_FLUSH:
	case STORE_TRIM:
	case STORE_CACHE:
	case STORE_EXTENTS:
	case STORE_OP_COUNT:
		GMB_ASSERT(false); /* the operations above never wait at the gate */
	}
}

static void store_file_submit(struct store_queue *queue, struct store_part *part)
{
	struct file_store *store = container_of(queue->store, struct file_store, base);
	uint64_t end = part->offset + part->length; /* a flush has neither offset nor length */

	*file_scratch_of(part) = (struct file_scratch){ 0 };
	if (end > atomic_load_explicit(&store->size, memory_order_relaxed) &&
		end > file_refresh_size(store)) {
		store_finish_later(part, -EIO);
		return;
	}
	switch (part->op) {
	case STORE_READ:
		file_scratch_of(part)->around =
			store->base.info.read_direct || file_auto_goes_direct(part);
		read_next(part);
		break;
	case STORE_WRITE:
		write_start(part);
		break;
	case STORE_FLUSH:
		file_flush(part);
		break;
	case STORE_TRIM:
		file_trim(part);
		break;
	case STORE_ZERO:
		file_zero(part);
		break;
	case STORE_CACHE:
		file_cache(part);
		break;
	case STORE_EXTENTS:
		file_extents(part);
		break;
	case STORE_COPY:
		file_copy(part);
		break;
	case STORE_OP_COUNT:
		GMB_ASSERT(false);
	}
}

/* --- queues -------------------------------------------------------------------------------- */

/* Opens a descriptor for flushing and checks that it refers to the same file. Since the store was
 * opened, the file could have been renamed, or its name may now belong to another file. */
static int open_sync(const struct file_store *store, int *fd_out, struct error *error)
{
	bool read_only = (store->base.info.caps & STORE_CAP_WRITE) == 0;
	struct disk_info info;
	int fd;
	int result = disk_open(store->path, read_only, false, &fd, error);

	if (result < 0) {
		return result;
	}
	result = disk_info(fd, &info);
	if (result < 0 || memcmp(info.identity, store->disk.identity, sizeof(info.identity)) != 0) {
		disk_close(fd);
		return error_set(error, result < 0 ? result : -ESTALE,
			"'%s' was replaced by another file while it was being opened", store->path);
	}
	*fd_out = fd;
	return 0;
}

static int file_queue_init(struct store_queue *base, struct error *error)
{
	struct file_store *store = container_of(base->store, struct file_store, base);
	struct file_queue *queue = container_of(base, struct file_queue, base);
	struct ring *ring = base->ring;
	int sync_fd = -1;
	int result = open_sync(store, &sync_fd, error);

	if (result < 0) {
		return result;
	}
	queue->retired = calloc(1, sizeof(*queue->retired));
	if (queue->retired == NULL || (store->read_auto && !file_auto_init(queue))) {
		free(queue->retired);
		disk_close(sync_fd);
		return error_oom_for(error, "a queue");
	}
	queue->file = ring_file_add(ring, store->fd);
	queue->direct = (struct ring_file){ .fd = -1, .slot = -1 };
	if (store->direct_fd >= 0) {
		queue->direct = ring_file_add(ring, store->direct_fd);
	}
	queue->sync = ring_file_add(ring, sync_fd);
	file_gate_port_init(&queue->port, store->gate, ring);
	file_sync_init(queue);
	return 0;
}

static void file_queue_fini(struct store_queue *base)
{
	struct file_queue *queue = container_of(base, struct file_queue, base);
	struct file_store *store = container_of(base->store, struct file_store, base);
	int sync_fd = queue->sync.fd;

	GMB_ASSERT(!queue->sync_op.in_flight);
	GMB_ASSERT(list_is_empty(&queue->port.granted));
	ring_file_remove(base->ring, &queue->file);
	if (queue->direct.fd >= 0) {
		ring_file_remove(base->ring, &queue->direct);
	}
	ring_file_remove(base->ring, &queue->sync);
	file_auto_fini(queue);
	queue->retired->fd = sync_fd;
	queue->retired->next = atomic_load_explicit(&store->retired, memory_order_relaxed);
	/* Release order pairs with the acquire load in store_file_release(), which then sees the
	 * whole entry. */
	while (!atomic_compare_exchange_weak_explicit(&store->retired, &queue->retired->next,
		queue->retired, memory_order_release, memory_order_relaxed)) {
	}
}

/* --- opening and closing ------------------------------------------------------------------- */

/* Releases everything that open has acquired so far. */
static void store_file_release(struct file_store *store)
{
	struct file_retired *retired = atomic_load_explicit(&store->retired, memory_order_acquire);

	while (retired != NULL) {
		struct file_retired *next = retired->next;

		disk_close(retired->fd);
		free(retired);
		retired = next;
	}
	disk_map_destroy(store->map);
	if (store->direct_fd >= 0) {
		disk_close(store->direct_fd);
	}
	if (store->fd >= 0) {
		disk_close(store->fd);
	}
	/* Releases the claim after closing the descriptors, so that no other process claims the
	 * disk while they are open. */
	if (store->is_claimed) {
		file_gate_unclaim(store->gate);
	}
	if (store->read_claim_fd >= 0) {
		disk_close(store->read_claim_fd);
	}
	if (store->gate != NULL) {
		file_gate_put(store->gate);
	}
	free(store->path);
}

static void store_file_close(struct store *base)
{
	struct file_store *store = container_of(base, struct file_store, base);

	file_gate_leave_member(store->gate, &store->member);
	store_file_release(store);
}

static uint64_t file_size(struct store *base)
{
	return file_refresh_size(container_of(base, struct file_store, base));
}

static int refuse_format(const char *path, const char *format, struct error *error)
{
	if (strcmp(format, DISK_FORMAT_OVERLAY) == 0) {
		return error_advise(error, -EMEDIUMTYPE, "overlay=FILE",
			"'%s' is an overlay and holds only the changes of a disk; 'gmblock check "
			"%s' shows its base",
			path, path);
	}
	if (strcmp(format, DISK_FORMAT_FLASH) == 0) {
		return error_set(error, -EMEDIUMTYPE, "'%s' is a flash store: serve it as flash:%s",
			path, path);
	}
	return error_advise(error, -EMEDIUMTYPE, "format=raw",
		"'%s' looks like a %s image: clients would see the bytes of the image file, not "
		"the disk that the image contains; convert it with 'qemu-img convert -O raw', "
		"serve it with qemu-nbd",
		path, format);
}

static int open_buffered(struct file_store *store, const struct store_options *options, bool is_raw,
	struct error *error)
{
	int result = disk_open(options->path, options->read_only, false, &store->fd, error);

	if (result < 0) {
		return result;
	}
	result = disk_info(store->fd, &store->disk);
	if (result < 0) {
		return error_set(
			error, result, "cannot examine '%s': %s", options->path, strerror(-result));
	}
	if (disk_boot_id(store->machine) < 0) {
		memset(store->machine, 0, sizeof(store->machine));
	}
	if (store->disk.read_only && !options->read_only) {
		return error_advise(
			error, -EROFS, "readonly", "'%s' is a read-only device", options->path);
	}
	if (store->disk.zoned && !options->read_only && !options->any_format) {
		return error_advise(error, -ENOTSUP, "readonly",
			"'%s' is a host-managed zoned block device, which accepts only sequential "
			"writes within each zone; create a flash store on it ('gmblock create') "
			"and export flash:%s, or put a filesystem on it",
			options->path, options->path);
	}
	if (store->disk.format != NULL && !is_raw) {
		return refuse_format(options->path, store->disk.format, error);
	}
	return 0;
}

static int open_direct(
	struct file_store *store, const struct store_options *options, struct error *error)
{
	struct disk_info info;
	int result = disk_open(options->path, options->read_only, true, &store->direct_fd, error);

	if (result < 0) {
		return result;
	}
	result = disk_info(store->direct_fd, &info);
	if (result < 0) {
		return error_set(
			error, result, "cannot examine '%s': %s", options->path, strerror(-result));
	}
	if (memcmp(info.identity, store->disk.identity, sizeof(info.identity)) != 0) {
		return error_set(error, -ESTALE,
			"'%s' was replaced by another file while it was being opened",
			options->path);
	}
	if (info.direct_offset_align == 0 || info.direct_offset_align > OFFSET_ALIGN_MAX) {
		return error_advise(error, -EINVAL, "mode=cached",
			"mode=%s does not work with '%s': direct I/O (O_DIRECT) is not possible on "
			"this file",
			options->read_mode == STORE_MODE_DEVICE ||
					options->write_mode == STORE_MODE_DEVICE
				? "device"
				: "direct",
			options->path);
	}
	store->offset_align = info.direct_offset_align;
	/* Some kernels (6.12) report the alignment that the device requires, such as 4 bytes, but
	 * require that each page of registered memory contains whole blocks. */
	store->memory_align = MIN(info.direct_offset_align, (uint32_t)PAGE_BYTES_MIN);
	store->memory_align = MAX(info.direct_memory_align, store->memory_align);
	return 0;
}

/* mode=auto needs direct I/O, and a map that shows which data is in the page cache. If either is
 * missing, all reads go through the page cache. */
static void open_auto(struct file_store *store, const struct store_options *options)
{
	struct error error;

	if (store->map == NULL) {
		return;
	}
	if (store->direct_fd < 0 && open_direct(store, options, &error) < 0) {
		log_debug(
			"'%s': all reads use the page cache: %s", quote(options->path), error.text);
		if (store->direct_fd >= 0) {
			disk_close(store->direct_fd);
			store->direct_fd = -1;
		}
		return;
	}
	store->read_auto = true;
}

static bool file_place(struct store *base, struct store_place *place_out);

static uint64_t store_file_mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Fills in the identity of a disk that only this machine is known to have. It contains the boot of
 * the machine, so that a disk of another machine never has the same identity, not even if one
 * machine is a copy of the other. The time of creation distinguishes files that have the same inode
 * one after the other. */
static void store_file_identify(struct file_store *store)
{
	struct store_place place;
	uint64_t halves[2];

	file_place(&store->base, &place);
	memcpy(halves, place.machine, sizeof(halves));
	if ((halves[0] | halves[1]) == 0) {
		return;
	}
	for (int i = 0; i < 2; i++) {
		halves[i] = store_file_mix(halves[i] ^ store_file_mix(place.disk[0] + 1));
		halves[i] = store_file_mix(halves[i] ^ place.disk[1]);
		halves[i] = store_file_mix(halves[i] ^ place.at);
		halves[i] = store_file_mix(
			halves[i] ^ (store->disk.is_block ? 0 : (uint64_t)store->disk.born_ns));
	}
	memcpy(store->base.info.identity, halves, sizeof(halves));
}

static void store_file_fill_info(struct file_store *store, const struct store_options *options)
{
	struct store_info *info = &store->base.info;
	const struct disk_info *disk = &store->disk;

	info->kind = disk->is_block ? "block device" : "file";
	info->caps = options->read_only ? 0 : STORE_CAP_WRITE | STORE_CAP_FAST_ZERO;
	if (!options->read_only && disk->punches_holes) {
		info->caps |= STORE_CAP_TRIM;
	}
	info->caps |= disk->is_block ? STORE_CAP_CALLS : STORE_CAP_EXTENTS;
	info->caps |= disk->rotational ? STORE_CAP_ROTATIONAL : 0;
	info->read_direct = store_mode_is_direct(options->read_mode);
	info->write_direct = store_mode_is_direct(options->write_mode) && !options->read_only;
	info->read_seeks = disk->rotational && info->read_direct;
	info->write_seeks = disk->rotational && info->write_direct;
	info->block_min = info->write_direct ? store->offset_align : 1;
	info->memory_align = store->memory_align;
	info->offset_align = store->offset_align;
	info->memory_rights = MEM_ADDRESS;
	info->page_cache_rights = MEM_SOCKET;
	/* Direct I/O for writes can require larger blocks than the disk prefers. */
	info->block_preferred = MAX(disk->block_preferred, info->block_min);
	info->io_max = disk->io_max;
	info->stripe_chunk = disk->stripe_chunk;
	info->stripe_members = disk->stripe_members;
	store_file_identify(store);
}

static int join_gate(
	struct file_store *store, const struct store_options *options, struct error *error)
{
	int result;

	if (file_gate_get(store->disk.identity, &store->gate) < 0) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", options->path);
	}
	if (options->read_only) {
		result = disk_claim_reading(
			options->path, store->fd, options->frozen, &store->read_claim_fd, error);
		if (result == 0) {
			file_gate_read(store->gate, options->path, store->fd);
		}
		return result;
	}
	result = file_gate_claim(store->gate, options->path, store->fd, options->sole, error);
	store->is_claimed = result == 0;
	return result;
}

static int store_file_open_all(struct file_store *store, const struct store_options *options,
	bool is_raw, struct error *error)
{
	/* By default, reads of a frozen base use the page cache, because many exports share it.
	 * Each export would read the same data from the device with O_DIRECT. */
	bool is_auto = options->read_mode == STORE_MODE_AUTO && !options->frozen;
	int result = open_buffered(store, options, is_raw, error);

	result = result ?: join_gate(store, options, error);
	if (result < 0) {
		return result;
	}
	if (store_mode_is_direct(options->read_mode) ||
		(store_mode_is_direct(options->write_mode) && !options->read_only)) {
		result = open_direct(store, options, error);
		if (result < 0) {
			return result;
		}
	}
	if (!options->page_cache_send_off || is_auto) {
		file_page_cache_init(store, options);
	}
	if (is_auto) {
		open_auto(store, options);
	}
	store->path = strdup(options->path);
	if (store->path == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", options->path);
	}
	store_file_fill_info(store, options);
	store->unit = MAX((uint64_t)store->disk.block_preferred, (uint64_t)store->offset_align);
	store->unit = MAX(store->unit, (uint64_t)sysconf(_SC_PAGESIZE));
	atomic_init(&store->size, store->disk.size);
	store->member.path = store->path;
	store->member.fd = store->fd;
	store->member.direct_fd = store->direct_fd;
	store->member.writes = store->is_claimed;
	store->member.keeps_stale = store->disk.keeps_stale;
	store->member.writes_direct = store->base.info.write_direct;
	file_gate_join(store->gate, &store->member);
	return 0;
}

static int store_file_open(struct store *base, const struct store_options *options,
	const void *config, struct error *error)
{
	struct file_store *store = container_of(base, struct file_store, base);
	const struct file_config *own = config;
	int result;

	store->fd = -1;
	store->direct_fd = -1;
	store->read_claim_fd = -1;
	store->offset_align = 1;
	store->memory_align = 1;
	result = store_file_open_all(
		store, options, options->any_format || (own != NULL && own->is_raw), error);
	if (result < 0) {
		store_file_release(store);
	}
	return result;
}

static const struct counter file_counter_list[] = {
	STORE_COUNTER(
		struct file_queue, direct_transfers, ITEMS, "Reads and writes with direct I/O"),
	COUNTER(struct file_queue, auto_bytes[FILE_WAY_DIRECT], TOTAL, BYTES, "auto_direct_bytes",
		"Bytes of large reads with direct I/O, with mode=auto"),
	COUNTER(struct file_queue, auto_bytes[FILE_WAY_CACHED], TOTAL, BYTES, "auto_cached_bytes",
		"Bytes of large reads through the page cache, with mode=auto, because the page "
		"cache is faster, or to measure its speed"),
	STORE_COUNTER(struct file_queue, auto_again_bytes, BYTES,
		"Bytes of large reads through the page cache, with mode=auto, because the same "
		"data had been read before"),
	STORE_COUNTER(struct file_queue, blocked_writes, ITEMS,
		"Writes to the page cache that blocked a thread for more than 1 ms"),
};

static const struct counter_table file_counters = { "file", "export", "store_file_",
	file_counter_list, ARRAY_COUNT(file_counter_list) };

static enum store_barrier file_barrier(struct store *base, bool look)
{
	return file_gate_barrier(container_of(base, struct file_store, base)->gate, look);
}

/* Implements store_place(). The bytes of a loop device are located in its backing file or
 * device. */
static bool file_place(struct store *base, struct store_place *place_out)
{
	const struct file_store *store = container_of(base, struct file_store, base);
	bool is_backed = store->disk.backing[1] != 0;

	memcpy(place_out->machine, store->machine, sizeof(place_out->machine));
	memcpy(place_out->disk, is_backed ? store->disk.backing : store->disk.identity,
		sizeof(place_out->disk));
	place_out->at = is_backed ? store->disk.backing_at : 0;
	return true;
}

static const char *file_handover(struct store *base, struct store_claim *claim_out)
{
	struct file_store *store = container_of(base, struct file_store, base);

	if (file_gate_error(store->gate) != 0) {
		return "has reported a failed flush, which another process could not detect";
	}
	memcpy(claim_out->identity, store->disk.identity, sizeof(claim_out->identity));
	if (store->is_claimed) {
		claim_out->hold = STORE_HOLD_CLAIM;
		claim_out->fd = file_gate_claim_fd(store->gate);
	}
	return NULL;
}

static const struct store_ops file_ops = {
	.name = "file",
	.queue_bytes = sizeof(struct file_queue),
	.scratch_bytes = sizeof(struct file_scratch),
	.close = store_file_close,
	.queue_init = file_queue_init,
	.queue_fini = file_queue_fini,
	.submit = store_file_submit,
	.page_cache_ref = file_page_cache_ref,
	.page_cache_refusal = file_page_cache_refusal,
	.size = file_size,
	.counters = &file_counters,
	.copy_ways = file_copy_ways,
	.barrier = file_barrier,
	.handover = file_handover,
	.place = file_place,
};

const struct store_kind file_store_kind = {
	.name = "file",
	.options = file_options,
	.option_count = ARRAY_COUNT(file_options),
	.config_bytes = sizeof(struct file_config),
	.store_bytes = sizeof(struct file_store),
	.ops = &file_ops,
	.open = store_file_open,
};

int file_store_direct_fd(struct store *base)
{
	struct file_store *store = container_of(base, struct file_store, base);

	return base->ops == &file_ops && base->info.read_direct ? store->direct_fd : -1;
}
