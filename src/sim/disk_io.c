// SPDX-License-Identifier: Apache-2.0
/*
 * Operations on simulated disks: those submitted through the ring, and the blocking calls of
 * disk.h. The medium is in sim/disk.c, the fault model in sim.h.
 *
 *   submit: check, choose fault and size ─▶ piece ─▶ piece ─▶ ... ─▶ complete
 *                                           each at a random time
 */
#include <errno.h>
#include <linux/falloc.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/compiler.h"
#include "sim/sim_internal.h"

enum { PIECES_MAX = 3, GARBAGE_BYTES_MAX = 1 << 20 };

#define GROW_BYTES_MAX (UINT64_C(64) << 20)

/* --- faults --------------------------------------------------------------------------------- */

int sim_disk_fault(struct sim_disk *disk, enum sim_fault_kind kind, uint64_t offset,
	uint64_t length, uint32_t error_ppm, uint32_t no_space_ppm)
{
	bool write = kind != SIM_FAULT_READ;
	int error = 0;

	if (kind != SIM_FAULT_FLUSH && sim_disk_is_bad(disk, offset, length, write)) {
		error = -EIO;
	} else if (sim_chance(error_ppm)) {
		error = -EIO;
	} else if (sim_chance(no_space_ppm)) {
		error = -ENOSPC;
	}
	if (error != 0) {
		sim_trace("disk fault", offset, length, error);
		if (sim_world.options.fault != NULL) {
			sim_world.options.fault(
				sim_world.options.context, disk, kind, offset, length, error);
		}
	}
	return error;
}

static int transient(bool may_again)
{
	if (sim_chance(sim_world.options.faults.interrupt_ppm)) {
		return -EINTR;
	}
	if (may_again && sim_chance(sim_world.options.faults.again_ppm)) {
		return -EAGAIN;
	}
	return 0;
}

struct sim_file *sim_disk_file(int fd)
{
	return sim_fd_get(fd, SIM_FD_FILE)->file;
}

/* --- stalling ------------------------------------------------------------------------------ */

static bool disk_io_park(
	struct sim_disk *disk, struct sim_op *sop, void (*step)(struct sim_op *sop))
{
	if (disk->stalled) {
		sop->step = step;
		list_push_back(&disk->parked, &sop->poll);
	}
	return disk->stalled;
}

void sim_disk_set_stalled(struct sim_disk *disk, bool stalled)
{
	struct list_node *node;

	disk->stalled = stalled;
	while (!stalled && (node = list_pop_front(&disk->parked)) != NULL) {
		struct sim_op *sop = list_entry(node, struct sim_op, poll);

		sim_op_event(sop, sim_delay_disk(), sop->step);
	}
}

/* --- transfers ------------------------------------------------------------------------------ */

static void copy_piece(struct sim_file *file, struct sim_op *sop, size_t len)
{
	uint8_t bounce[16384];
	struct sim_disk *disk = file->disk;

	while (len > 0) {
		size_t part = MIN(len, sizeof(bounce));

		if (sop->code == RING_READ) {
			(file->direct ? sim_disk_get : sim_cache_read)(
				disk, sop->offset + sop->moved, bounce, part);
			sim_op_scatter(sop, sop->moved, bounce, part);
		} else {
			sim_op_gather(sop, sop->moved, bounce, part);
			(file->direct ? sim_disk_put : sim_cache_write)(
				disk, sop->offset + sop->moved, bounce, part);
		}
		sop->moved += part;
		len -= part;
	}
}

/* See disk_info.keeps_stale. */
static bool keeps_stale(const struct sim_disk *disk)
{
	return disk->options.is_block || disk->options.ignores_dsync;
}

static void transfer_end(struct sim_file *file, struct sim_op *sop)
{
	struct sim_disk *disk = file->disk;

	if (sop->code == RING_WRITE && sop->moved > 0) {
		if (file->direct && !keeps_stale(disk)) {
			sim_cache_direct_end(disk, sop->offset, sop->moved);
		}
		sim_disk_written(disk, sop->offset, sop->moved);
		if (sop->direct_sync && sop->planned_error == 0 &&
			!(file->direct && disk->options.ignores_dsync)) {
			sim_disk_harden(disk, sop->offset, sop->moved, UINT64_MAX);
		}
	}
	sim_op_complete(sop, sop->planned_error != 0 ? sop->planned_error : (int)sop->moved,
		sim_delay_short());
}

/* Returns how many bytes of the transfer the disk has now, because it can shrink. */
static size_t transfer_room(const struct sim_disk *disk, const struct sim_op *sop, int *error)
{
	uint64_t end = disk->size;

	if (sop->code == RING_WRITE && !disk->options.is_block) {
		end += GROW_BYTES_MAX; /* a write beyond the end extends a file */
	}
	if (sop->offset >= end) {
		*error = sop->code == RING_READ ? 0 : disk->options.is_block ? -ENOSPC : -EFBIG;
		return 0;
	}
	return (size_t)MIN((uint64_t)sop->planned, end - sop->offset);
}

static void transfer_step(struct sim_op *sop)
{
	struct sim_file *file = sim_disk_file(sop->fd);
	struct sim_disk *disk = file->disk;
	uint32_t align = 1;
	int error = 0;
	size_t room;
	size_t piece;

	if (disk_io_park(disk, sop, transfer_step)) {
		return;
	}
	room = transfer_room(disk, sop, &error);
	if (sop->planned_error == 0 && sop->moved == 0) {
		sop->planned_error = error;
	}
	if (sop->moved >= room) {
		transfer_end(file, sop);
		return;
	}
	if (file->direct && !sop->begun) {
		sop->begun = true;
		sim_cache_direct_begin(disk, sop->offset, room, sop->code == RING_WRITE);
		sim_op_event(sop, sim_delay_disk(), transfer_step);
		return;
	}
	piece = room - sop->moved;
	if (sop->pieces > 1) {
		align = disk->options.sector_bytes;
		piece = (size_t)align_up(sim_between(1, piece), align);
		piece = MIN(piece, room - sop->moved);
	}
	if (sim_world.options.faults.jitter) {
		sim_cache_tick(disk);
	}
	if (sop->code == RING_WRITE && disk->zones != NULL) {
		error = file->direct ? sim_zones_check(disk, sop->offset + sop->moved, piece, true)
				     : -EIO;
		if (error != 0) {
			sop->planned_error = error;
			transfer_end(file, sop);
			return;
		}
	}
	copy_piece(file, sop, piece);
	if (sop->code == RING_WRITE) {
		sim_zones_wrote(disk, sop->offset + sop->moved - piece, piece);
	}
	if (sop->pieces > 1) {
		sop->pieces--;
	}
	if (sop->moved < room) {
		sim_op_event(sop, sim_delay_disk(), transfer_step);
	} else {
		transfer_end(file, sop);
	}
}

/* Like Linux 6.12, requires of registered memory that each page contains whole blocks. */
static bool transfer_is_aligned(const struct sim_disk *disk, const struct sim_op *sop)
{
	uint32_t align = disk->options.direct_offset_align;
	uint32_t block = sop->is_fixed ? MIN(align, 4096U) : 1;
	uint32_t memory_align = MAX(disk->options.direct_memory_align, block);

	for (uint32_t i = 0; i < sop->iov_count; i++) {
		if (!is_aligned(sop->iov[i].iov_len, align) ||
			!is_aligned((uintptr_t)sop->iov[i].iov_base, memory_align)) {
			return false;
		}
	}
	return is_aligned(sop->offset, align);
}

/* Chooses the error of a transfer and how many bytes it moves. */
static void transfer_plan(const struct sim_file *file, struct sim_op *sop)
{
	const struct sim_faults *faults = &sim_world.options.faults;
	struct sim_disk *disk = file->disk;
	bool write = sop->code == RING_WRITE;
	uint32_t unit = file->direct ? disk->options.direct_offset_align : 1;

	if (write && file->read_only) {
		sop->planned_error = -EBADF;
		return;
	}
	if (file->direct && !transfer_is_aligned(disk, sop)) {
		sop->planned_error = -EINVAL;
		return;
	}
	sop->planned_error = transient(true);
	if (sop->planned_error != 0) {
		return;
	}
	sop->planned = sop->len;
	/* sim_partial(2) is 1 with the probability of partial transfers */
	if (sim_partial(2) == 1) {
		sop->planned = (size_t)align_up(sim_partial(sop->len), unit);
		sop->planned = MIN(sop->planned, sop->len);
	}
	/* By chance, transfers the part before a bad range, and fails when the rest is
	 * requested. */
	if (sim_disk_is_bad(disk, sop->offset, sop->planned, write) &&
		sop->offset < disk->bad_offset && sim_random() % 2 == 0) {
		uint64_t good = align_down(disk->bad_offset - sop->offset, unit);

		if (good > 0) {
			sop->planned = (size_t)good;
		}
	}
	sop->planned_error = sim_disk_fault(disk, write ? SIM_FAULT_WRITE : SIM_FAULT_READ,
		sop->offset, sop->planned, write ? faults->write_error_ppm : faults->read_error_ppm,
		write ? faults->no_space_ppm : 0);
	if (!write && sop->planned_error == 0) {
		sop->planned_error = sim_zones_check(disk, sop->offset, sop->len, false);
	}
	if (sop->planned_error != 0) {
		/* A transfer that fails has moved some of its bytes, but not all. */
		sop->planned = (size_t)align_down(sim_between(0, sop->len - 1), 512);
	}
}

/* --- flush, allocate, advise ---------------------------------------------------------------- */

/* As on Linux, each descriptor reports an error once, even if another descriptor has caused it. */
static int disk_io_report(struct sim_file *file, int result)
{
	if (result == -EINTR || file->flush_errors_seen == file->disk->flush_errors) {
		return result;
	}
	file->flush_errors_seen = file->disk->flush_errors;
	return -EIO;
}

static void fsync_step(struct sim_op *sop)
{
	struct sim_file *file = sim_disk_file(sop->fd);
	struct sim_disk *disk = file->disk;

	if (disk_io_park(disk, sop, fsync_step)) {
		return;
	}
	if (sop->planned_error == 0 && sim_disk_unflushed_bytes(disk, disk->bad_flush_offset,
					       disk->bad_flush_length) > 0) {
		sop->planned_error = -EIO;
	}
	if (sop->planned_error == -EIO) {
		sim_disk_lose(disk);
		disk->flush_errors++;
	} else if (sop->planned_error == 0) {
		sim_disk_harden(disk, 0, align_up(disk->size, SIM_PAGE_BYTES), sop->ticket);
	}
	sim_op_complete(sop, disk_io_report(file, sop->planned_error), sim_delay_short());
}

static int range_zero(struct sim_disk *disk, uint64_t offset, uint64_t length, bool hole)
{
	if (!range_inside(offset, length, disk->size)) {
		if (disk->options.is_block) {
			return -EINVAL;
		}
		if (offset >= disk->size) {
			return 0;
		}
		length = disk->size - offset;
	}
	if (disk->options.is_block && (!is_aligned(offset, disk->options.sector_bytes) ||
					      !is_aligned(length, disk->options.sector_bytes))) {
		return -EINVAL;
	}
	sim_disk_fill(disk, offset, length, 0, hole);
	sim_disk_written(disk, offset, length);
	return 0;
}

static void allocate_step(struct sim_op *sop)
{
	struct sim_disk *disk = sim_disk_file(sop->fd)->disk;
	int result = sop->planned_error;

	if (disk_io_park(disk, sop, allocate_step)) {
		return;
	}
	if (result != 0) {
		/* the error was chosen at submission */
	} else if ((sop->mode & FALLOC_FL_PUNCH_HOLE) != 0) {
		result = disk->options.no_discard ? -EOPNOTSUPP
						  : range_zero(disk, sop->offset, sop->range, true);
	} else if ((sop->mode & FALLOC_FL_ZERO_RANGE) != 0) {
		result = disk->options.no_fast_zero && !disk->options.is_block
				 ? -EOPNOTSUPP
				 : range_zero(disk, sop->offset, sop->range, false);
	} else if (disk->options.is_block) {
		result = -EOPNOTSUPP;
	} else if ((sop->mode & FALLOC_FL_KEEP_SIZE) == 0 &&
		   sop->offset + sop->range > disk->size) {
		sim_disk_resize(disk, sop->offset + sop->range);
	}
	sim_op_complete(sop, result, sim_delay_short());
}

static void advise_step(struct sim_op *sop)
{
	sim_op_complete(sop, sop->planned_error, sim_delay_short());
}

static void sim_disk_submit(struct sim_op *sop)
{
	const struct sim_faults *faults = &sim_world.options.faults;
	struct sim_file *file = sim_disk_file(sop->fd);
	void (*step)(struct sim_op *) = transfer_step;

	if (sim_ring_is_killed(sop->ring)) {
		sim_op_complete(sop, -EIO, sim_delay_short());
		return;
	}
	sop->ticket = sim_world.ticket;
	sop->pieces = faults->jitter ? (uint32_t)sim_between(1, PIECES_MAX) : 1;
	switch (sop->code) {
	case RING_FSYNC:
		sop->planned_error = transient(false);
		if (sop->planned_error == 0) {
			sop->planned_error = sim_disk_fault(
				file->disk, SIM_FAULT_FLUSH, 0, 0, faults->flush_error_ppm, 0);
		}
		step = fsync_step;
		break;
	case RING_ALLOCATE:
		sop->planned_error = file->read_only ? -EBADF : transient(false);
		if (sop->planned_error == 0) {
			sop->planned_error =
				sim_disk_fault(file->disk, SIM_FAULT_RANGE, sop->offset, sop->range,
					faults->range_error_ppm, faults->no_space_ppm);
		}
		step = allocate_step;
		break;
	case RING_ADVISE:
		step = advise_step;
		break;
	default:
		transfer_plan(file, sop);
		break;
	}
	sim_trace("disk submit", sop->code, sop->offset, (int64_t)sop->len);
	sim_op_event(sop, sim_delay_disk(), step);
}

/* --- disk.h --------------------------------------------------------------------------------- */

/* Asserts that no completion makes a blocking call, which would stall all clients of the thread. */
static void check_may_block(void)
{
	GMB_ASSERT(!sim_world.in_batch || sim_world.in_call);
}

int disk_open(const char *path, bool read_only, bool direct, int *fd_out, struct error *error)
{
	struct sim_disk *disk;
	struct sim_file *file;

	GMB_ASSERT(sim_world.running);
	check_may_block();
	disk = sim_disk_find(path);
	if (disk == NULL) {
		return error_set(error, -ENOENT, "no simulated disk is called %s", path);
	}
	if (!read_only && disk->options.read_only) {
		return error_set(error, -EROFS, "the simulated disk %s is read-only", path);
	}
	if (direct && disk->options.direct_offset_align == 0) {
		return error_set(error, -EINVAL, "the simulated disk %s has no direct I/O", path);
	}
	file = calloc(1, sizeof(*file));
	GMB_ASSERT(file != NULL);
	file->disk = disk;
	file->direct = direct;
	file->read_only = read_only;
	file->flush_errors_seen = disk->flush_errors;
	list_push_back(&sim_world.files, &file->node);
	file->fd = sim_fd_add(SIM_FD_FILE, file, false);
	*fd_out = file->fd;
	return 0;
}

void disk_close(int fd)
{
	struct sim_file *file = sim_disk_file(fd);

	check_may_block();
	sim_fd_remove(fd);
	list_remove(&file->node);
	/* The table entry keeps a non-null pointer, so that its number is not used again. */
	sim_world.fds[fd - SIM_FD_BASE].object = &sim_world;
	free(file);
}

int disk_create(
	const char *path, uint64_t size, const void *head, size_t head_bytes, struct error *error)
{
	struct sim_disk *disk = sim_disk_find(path);

	check_may_block();
	if (disk != NULL) {
		return error_set(error, -EEXIST, "there is a simulated disk called %s", path);
	}
	disk = sim_disk_create(
		path, &(struct sim_disk_options){ .size = size, .direct_offset_align = 512 });
	sim_disk_poke(disk, 0, head, head_bytes);
	return 0;
}

int disk_read(int fd, void *bytes, size_t count, uint64_t offset)
{
	const struct sim_file *file = sim_disk_file(fd);
	struct sim_disk *disk = file->disk;
	int error = sim_disk_fault(
		disk, SIM_FAULT_READ, offset, count, sim_world.options.faults.read_error_ppm, 0);

	check_may_block();
	if (error == 0 && !range_inside(offset, count, disk->size)) {
		error = -EIO;
	}
	if (error == 0) {
		error = sim_zones_check(disk, offset, count, false);
	}
	if (error == 0 && file->direct && !disk->options.direct_uses_cache) {
		GMB_ASSERT(is_aligned(
			offset | count | (uintptr_t)bytes, disk->options.direct_offset_align));
		sim_cache_direct_begin(disk, offset, count, false);
		sim_disk_get_kept(disk, offset, bytes, count);
	} else if (error == 0) {
		sim_cache_read(disk, offset, bytes, count);
	}
	return error;
}

int disk_write(int fd, const void *bytes, size_t count, uint64_t offset)
{
	const struct sim_faults *faults = &sim_world.options.faults;
	struct sim_file *file = sim_disk_file(fd);
	struct sim_disk *disk = file->disk;
	int error = sim_disk_fault(disk, SIM_FAULT_WRITE, offset, count, faults->write_error_ppm,
		faults->no_space_ppm);

	check_may_block();
	if (error == 0 && disk->zones != NULL) {
		error = file->direct ? sim_zones_check(disk, offset, count, true) : -EIO;
	}
	if (error == 0) {
		(disk->zones != NULL ? sim_disk_put : sim_cache_write)(disk, offset, bytes, count);
		sim_zones_wrote(disk, offset, count);
		sim_disk_written(disk, offset, count);
	}
	return error;
}

int disk_sync(int fd)
{
	struct sim_file *file = sim_disk_file(fd);
	struct sim_disk *disk = file->disk;
	int error = sim_disk_fault(
		disk, SIM_FAULT_FLUSH, 0, 0, sim_world.options.faults.flush_error_ppm, 0);

	check_may_block();
	if (error != 0) {
		sim_disk_lose(disk);
		disk->flush_errors++;
	} else {
		sim_disk_harden(disk, 0, align_up(disk->size, SIM_PAGE_BYTES), sim_world.ticket);
	}
	return disk_io_report(file, error);
}

void disk_drop_cache(int fd, uint64_t offset, uint64_t length)
{
	check_may_block();
	sim_disk_drop_cache(sim_disk_file(fd)->disk, offset, length);
}

/* Always succeeds, because no other program in the simulated world could claim the disk. */
int disk_claim(const char *path, int fd, int *claim_out, struct error *error)
{
	const struct sim_file *file = sim_disk_file(fd);

	check_may_block();
	GMB_ASSERT(!file->read_only);
	GMB_ASSERT(sim_disk_find(path) == file->disk);
	*claim_out = -1;
	return 0;
}

int disk_claim_reading(const char *path, int fd, bool frozen, int *claim_out, struct error *error)
{
	const struct sim_file *file = sim_disk_file(fd);

	check_may_block();
	GMB_ASSERT(sim_disk_find(path) == file->disk);
	*claim_out = -1;
	return 0;
}

int disk_check_readers(int fd)
{
	(void)sim_disk_file(fd);
	check_may_block();
	return 0;
}

/* Returns whether operations are in flight on the file, except those that are complete but not yet
 * reported. */
static bool has_operations(const struct sim_file *file)
{
	list_for_each(node, &sim_world.operations)
	{
		const struct sim_op *sop = list_entry(node, struct sim_op, node);

		if (sop->fd == file->fd && !sop->complete) {
			return true;
		}
	}
	return false;
}

int disk_mark_writer(int fd)
{
	struct sim_file *file = sim_disk_file(fd);

	check_may_block();
	GMB_ASSERT(!file->read_only);
	file->marked = true;
	return 0;
}

int disk_check_writers(int fd)
{
	const struct sim_disk *disk = sim_disk_file(fd)->disk;

	check_may_block();
	list_for_each(node, &sim_world.files)
	{
		const struct sim_file *file = list_entry(node, struct sim_file, node);

		if (file->disk == disk && file->marked && (!file->killed || has_operations(file))) {
			return -EBUSY;
		}
	}
	return 0;
}

int disk_mark_use(int fd)
{
	check_may_block();
	sim_disk_file(fd)->used = true;
	return 0;
}

void disk_adopt_claim(int claim)
{
}

/* Returns whether operations of a killed process are in flight on the disk. marked: only on files
 * that disk_mark_use() has marked. */
static bool has_late_operations(const struct sim_disk *disk, bool marked)
{
	list_for_each(node, &sim_world.files)
	{
		const struct sim_file *file = list_entry(node, struct sim_file, node);

		if (file->disk == disk && file->killed && (file->used || !marked) &&
			has_operations(file)) {
			return true;
		}
	}
	return false;
}

int disk_check_uses(int fd)
{
	check_may_block();
	return has_late_operations(sim_disk_file(fd)->disk, true) ? -EBUSY : 0;
}

bool sim_disk_has_late_operations(const struct sim_disk *disk)
{
	return has_late_operations(disk, false);
}

void sim_disk_kill_users(struct sim_disk *disk)
{
	disk->process++;
	list_for_each(node, &sim_world.files)
	{
		struct sim_file *file = list_entry(node, struct sim_file, node);

		file->killed |= file->disk == disk;
	}
}

int disk_info(int fd, struct disk_info *info)
{
	const struct sim_file *file = sim_disk_file(fd);
	const struct sim_disk_options *options = &file->disk->options;

	check_may_block();
	*info = (struct disk_info){
		.size = file->disk->size,
		/* The identity includes the process, so that stores of different processes do not
		 * share state that is found by identity. */
		.identity = { options->is_block ? 0 : 1,
			file->disk->identity | (uint64_t)file->disk->process << 32 },
		/* The place of the bytes does not depend on the process. */
		.backing = { options->is_block ? 0 : 1, file->disk->identity },
		.is_block = options->is_block,
		.read_only = options->read_only,
		.zoned = options->zoned || options->zone_bytes > 0,
		.zone_bytes = options->zone_bytes,
		.active_zones_max = options->active_zones_max,
		.keeps_stale = keeps_stale(file->disk),
		.ignores_dsync = options->ignores_dsync,
		.has_holes = !options->is_block,
		.punches_holes = !options->no_discard,
		.direct_offset_align = options->direct_offset_align,
		.direct_memory_align = options->direct_memory_align,
		.direct_bypasses_cache = !options->direct_uses_cache,
		.block_preferred = 4096,
		.io_max = options->io_max,
		.discard_granularity = options->discard_granularity,
		.stripe_chunk = options->stripe_chunk,
		.stripe_members = options->stripe_members,
	};
	return 0;
}

int disk_size(int fd, uint64_t *size)
{
	*size = sim_disk_file(fd)->disk->size;
	return 0;
}

uint64_t disk_room(int fd)
{
	(void)sim_disk_file(fd);
	return UINT64_MAX;
}

void disk_set_random(int fd)
{
	sim_disk_file(fd); /* ignored, because the simulation has no readahead */
}

int disk_extent(
	int fd, uint64_t offset, uint64_t limit, enum disk_extent_kind *kind, uint64_t *length)
{
	struct sim_disk *disk = sim_disk_file(fd)->disk;
	uint64_t at = offset;
	bool hole = false;
	int error;

	check_may_block();
	GMB_ASSERT(limit > 0);
	error = sim_disk_fault(
		disk, SIM_FAULT_RANGE, offset, limit, sim_world.options.faults.range_error_ppm, 0);
	if (error != 0) {
		return error;
	}
	if (offset >= disk->size) {
		return -ENXIO;
	}
	limit = MIN(limit, disk->size - offset);
	while (at < offset + limit) {
		uint64_t index = at / SIM_PAGE_BYTES;
		const struct sim_page *page = sim_page_find(disk, index);
		bool here = !disk->options.is_block && (page == NULL || page->hole);

		if (at == offset) {
			hole = here;
		} else if (here != hole) {
			break;
		}
		at = (index + 1) * SIM_PAGE_BYTES;
	}
	*kind = hole ? DISK_HOLE : DISK_DATA;
	*length = MIN(at - offset, limit);
	return 0;
}

int disk_discard(int fd, bool is_block, uint64_t offset, uint64_t length)
{
	struct sim_disk *disk = sim_disk_file(fd)->disk;
	int error;

	check_may_block();
	GMB_ASSERT(is_block == disk->options.is_block);
	if (disk->options.no_discard) {
		return -EOPNOTSUPP;
	}
	error = sim_disk_fault(
		disk, SIM_FAULT_RANGE, offset, length, sim_world.options.faults.range_error_ppm, 0);
	if (error != 0) {
		return error;
	}
	if (!is_block) {
		return range_zero(disk, offset, length, true);
	}
	if (!range_inside(offset, length, disk->size) ||
		!is_aligned(offset | length, disk->options.sector_bytes)) {
		return -EINVAL;
	}
	/* A device may change discarded sectors arbitrarily, or leave them unchanged. */
	switch (sim_random() % 3) {
	case 0:
		sim_disk_fill(disk, offset, length, 0, true);
		break;
	case 1:
		if (length <= GARBAGE_BYTES_MAX) {
			sim_disk_fill(disk, offset, length, 0xdd, false);
		}
		break;
	default:
		break;
	}
	sim_disk_written(disk, offset, length);
	return 0;
}

int disk_zero(int fd, bool is_block, uint64_t offset, uint64_t length, bool may_unmap, bool fast)
{
	const struct sim_faults *faults = &sim_world.options.faults;
	struct sim_disk *disk = sim_disk_file(fd)->disk;
	int error;

	check_may_block();
	GMB_ASSERT(is_block == disk->options.is_block);
	if (fast && disk->options.no_fast_zero) {
		return -EOPNOTSUPP;
	}
	error = sim_disk_fault(disk, SIM_FAULT_RANGE, offset, length, faults->range_error_ppm,
		may_unmap ? 0 : faults->no_space_ppm);
	if (error != 0) {
		return error;
	}
	return range_zero(disk, offset, length, may_unmap && !disk->options.no_discard);
}

int disk_clone(int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length)
{
	check_may_block();
	return -EOPNOTSUPP; /* most file systems do not support this either */
}

int disk_copy(int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length)
{
	const struct sim_faults *faults = &sim_world.options.faults;
	struct sim_disk *source = sim_disk_file(source_fd)->disk;
	struct sim_disk *disk = sim_disk_file(fd)->disk;
	uint8_t bounce[SIM_PAGE_BYTES];
	int error = sim_disk_fault(disk, SIM_FAULT_RANGE, offset, length, faults->range_error_ppm,
		faults->no_space_ppm);

	check_may_block();
	if (error != 0) {
		return error;
	}
	if (source_offset >= source->size) {
		return 0;
	}
	length = MIN(length, source->size - source_offset);
	length -= sim_random() % (length / 2 + 1); /* a copy may be shorter than requested */
	for (uint64_t done = 0; done < length;) {
		size_t bytes = (size_t)MIN(length - done, (uint64_t)sizeof(bounce));

		sim_cache_read(source, source_offset + done, bounce, bytes);
		sim_cache_write(disk, offset + done, bounce, bytes);
		done += bytes;
	}
	sim_disk_written(disk, offset, length);
	return (int)length;
}

/* --- operations on disks -------------------------------------------------------------------- */

static struct sim_op *transfer_begin(struct ring *ring, struct ring_op *op, uint8_t code,
	struct ring_file file, const struct iovec *vector, uint32_t count, uint64_t offset,
	ring_done_fn *done)
{
	struct sim_op *sop;

	GMB_ASSERT(count <= SIM_IOV_MAX);
	sim_fd_get(file.fd, SIM_FD_FILE);
	sop = sim_op_begin(ring, op, code, sim_ring_fd(ring, file), done);
	sop->offset = offset;
	sim_op_memory(sop, vector, count, code == RING_READ);
	GMB_ASSERT(sop->len > 0);
	GMB_ASSERT(sop->len <= (size_t)1 << 30);
	return sop;
}

void ring_read(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, ring_done_fn *done)
{
	struct iovec iov = sim_ring_memory(ring, memory, len);
	struct sim_op *sop = transfer_begin(ring, op, RING_READ, file, &iov, 1, offset, done);

	sop->is_fixed = mem_may(memory, MEM_FIXED);
	sim_disk_submit(sop);
}

void ring_writev(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct iovec *vector, uint32_t count, uint64_t offset, bool dsync, ring_done_fn *done)
{
	struct sim_op *sop =
		transfer_begin(ring, op, RING_WRITE, file, vector, count, offset, done);

	sop->direct_sync = dsync;
	sim_disk_submit(sop);
}

void ring_write(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, bool dsync, ring_done_fn *done)
{
	struct iovec iov = sim_ring_memory(ring, memory, len);
	struct sim_op *sop = transfer_begin(ring, op, RING_WRITE, file, &iov, 1, offset, done);

	sop->is_fixed = mem_may(memory, MEM_FIXED);
	sop->direct_sync = dsync;
	sim_disk_submit(sop);
}

void ring_transfer_inline(struct ring *ring, struct ring_op *op, bool writes, struct ring_file file,
	struct mem_ref memory, size_t len, uint64_t offset, ring_done_fn *done)
{
	/* The real function copies the bytes before it returns. This one copies and completes
	 * later, which shows whether a caller reuses the memory too early. */
	if (writes) {
		ring_write(ring, op, file, memory, len, offset, false, done);
	} else {
		ring_read(ring, op, file, memory, len, offset, done);
	}
}

void ring_fsync(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done)
{
	sim_fd_get(file.fd, SIM_FD_FILE);
	sim_disk_submit(sim_op_begin(ring, op, RING_FSYNC, sim_ring_fd(ring, file), done));
}

void ring_allocate(struct ring *ring, struct ring_op *op, struct ring_file file, int mode,
	uint64_t offset, uint64_t length, ring_done_fn *done)
{
	struct sim_op *sop;

	sim_fd_get(file.fd, SIM_FD_FILE);
	sop = sim_op_begin(ring, op, RING_ALLOCATE, sim_ring_fd(ring, file), done);
	sop->mode = mode;
	sop->offset = offset;
	sop->range = length;
	sim_disk_submit(sop);
}

void ring_advise(struct ring *ring, struct ring_op *op, struct ring_file file, uint64_t offset,
	uint64_t length, ring_done_fn *done)
{
	struct sim_op *sop;

	sim_fd_get(file.fd, SIM_FD_FILE);
	sop = sim_op_begin(ring, op, RING_ADVISE, sim_ring_fd(ring, file), done);
	sop->offset = offset;
	sop->range = length;
	sim_disk_submit(sop);
}
