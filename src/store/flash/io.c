// SPDX-License-Identifier: Apache-2.0
/*
 * Transfers of whole blocks, and syncs.
 *
 * Invariant: at most one fdatasync is in flight. Requests that arrive in that time wait for the
 * next one, because the running one might not cover their writes. A sync makes durable what was
 * written when it began (`seq`), so all parts that wait for it complete together.
 */
#include <errno.h>

#include "disk/disk.h"
#include "store/flash/flash.h"

enum { RETRIES_MAX = 1000 };
#define RETRY_NS UINT64_C(1000000)

/* Requests for a sync. The sync in flight covers the requests in `now`. The requests in `next` wait
 * for the sync after it. */
struct flash_sync {
	struct flash *flash;
	struct ring_op op;
	struct list_node now; /* parts */
	struct list_node next;
	uint64_t seq;
	uint32_t retries;
	bool is_redone; /* the sync has failed and is being repeated */
	bool is_busy;
	bool checkpoint_now;
	bool checkpoint_next;
	bool move_now;
	bool move_next;
	struct list_node blocking; /* transfers that flash_io_block() performs without a ring */
};

uint64_t flash_io_bytes(void)
{
	return sizeof(struct flash_sync);
}

void flash_io_init(struct flash *flash, uint8_t *memory)
{
	flash->sync = (void *)memory;
	*flash->sync = (struct flash_sync){ .flash = flash };
	list_init(&flash->sync->now);
	list_init(&flash->sync->next);
	list_init(&flash->sync->blocking);
}

/* --- transfers ------------------------------------------------------------------------------- */

static void io_next(struct flash_io *io);

static void io_again(struct ring_op *op, int result)
{
	io_next(container_of(op, struct flash_io, op));
}

/* Replaces errors that would mislead a client or look like a fault of its request. */
static int legal_result(int result)
{
	return result == -EINVAL || result == -EINTR || result == -EAGAIN || result == -EBADF ||
			       result == -EFAULT
		       ? -EIO
		       : result;
}

/* Restores the first element of the vector, which was reduced by the bytes already written. */
static void give_back(struct flash_io *io)
{
	io->vector->iov_base = (uint8_t *)io->vector->iov_base - io->vector_used;
	io->vector->iov_len += io->vector_used;
	io->vector_used = 0;
}

/* Ends a transfer. done() is called before the next write to a zone is issued, because queued
 * writes must fail if done() reports an error. flash_pump() is called before flash_io_ended(),
 * because it can begin new I/O: then flash_io_ended() must not complete the store's last part
 * yet. */
static void io_end(struct flash_io *io, int result)
{
	struct flash *flash = io->flash;

	if (io->has_vector && io->vector_used > 0) {
		give_back(io);
	}
	if (io->is_write && flash_has_zones(flash)) {
		flash_zone_written(flash, io);
		io->done(io, legal_result(result));
		flash_zone_next(flash);
	} else {
		io->done(io, legal_result(result));
	}
	flash_pump(flash);
	flash_io_ended(flash);
}

/* Advances the vector by the bytes written, so that a short write continues with the rest. Elements
 * that are written completely get their original values back. */
static void use_up(struct flash_io *io, size_t bytes)
{
	while (bytes > 0 && bytes >= io->vector->iov_len) {
		bytes -= io->vector->iov_len;
		give_back(io);
		io->vector++;
		io->vector_count--;
	}
	if (bytes > 0) {
		io->vector->iov_base = (uint8_t *)io->vector->iov_base + bytes;
		io->vector->iov_len -= bytes;
		io->vector_used += bytes;
	}
}

static void io_moved(struct ring_op *op, int result)
{
	struct flash_io *io = container_of(op, struct flash_io, op);

	if ((result == -EINTR || result == -EAGAIN) && io->retries < RETRIES_MAX) {
		io->retries++;
		ring_timer(io->flash->ring, op, result == -EAGAIN ? RETRY_NS : 0, io_again);
	} else if (result <= 0) { /* 0: the device has become shorter */
		io_end(io, result == 0 ? -EIO : result);
	} else {
		io->done_bytes += (size_t)result;
		io->retries = 0;
		GMB_ASSERT(io->done_bytes <= io->bytes);
		if (io->has_vector) {
			use_up(io, (size_t)result);
		}
		if (io->done_bytes < io->bytes) {
			io_next(io);
		} else {
			io_end(io, 0);
		}
	}
}

static void io_next(struct flash_io *io)
{
	struct flash *flash = io->flash;
	size_t left = io->bytes - io->done_bytes;
	uint64_t offset = io->offset + io->done_bytes;

	if (io->has_vector) {
		ring_writev(flash->ring, &io->op, flash->file, io->vector, io->vector_count, offset,
			io->is_durable, io_moved);
	} else if (io->is_write) {
		ring_write(flash->ring, &io->op, flash->file, mem_add(io->memory, io->done_bytes),
			left, offset, io->is_durable, io_moved);
	} else {
		ring_read(flash->ring, &io->op, flash->file, mem_add(io->memory, io->done_bytes),
			left, offset, io_moved);
	}
}

static void io_begin(struct flash *flash, struct flash_io *io, uint64_t block, size_t bytes,
	void (*done)(struct flash_io *io, int result))
{
	GMB_ASSERT(!io->op.in_flight && bytes > 0 && bytes % FLASH_BLOCK_BYTES == 0);
	io->flash = flash;
	io->block = (uint32_t)block;
	io->bytes = bytes;
	io->done_bytes = 0;
	io->retries = 0;
	io->done = done;
	flash->io_count++;
	if (flash->is_closing) {
		list_push_back(&flash->sync->blocking, &io->node);
	} else if (io->is_write && flash_has_zones(flash)) {
		flash_zone_write(flash, io);
	} else {
		io->offset = flash_block_offset(flash, io->block);
		io_next(io);
	}
}

/* Issues a write to a zone. With an error, completes it without an attempt. The completion is
 * deferred, so that done is called after this function has returned. */
void flash_io_issue(struct flash *flash, struct flash_io *io, int error)
{
	if (error < 0) {
		io->retries = RETRIES_MAX;
		ring_defer(flash->ring, &io->op, error, io_moved);
	} else {
		io_next(io);
	}
}

void flash_io_start(struct flash *flash, struct flash_io *io, bool is_write, struct mem_ref memory,
	uint64_t block, size_t bytes, void (*done)(struct flash_io *io, int result))
{
	io->memory = memory;
	io->is_write = is_write;
	io->has_vector = false;
	io_begin(flash, io, block, bytes, done);
}

void flash_io_write_record(struct flash *flash, struct flash_io *io, uint64_t block, size_t bytes,
	void (*done)(struct flash_io *io, int result))
{
	io->is_write = true;
	io->has_vector = true;
	io->vector_used = 0;
	io_begin(flash, io, block, bytes, done);
}

void flash_anchor_write(struct flash *flash, struct flash_io *io, uint8_t *block, bool is_first,
	void (*done)(struct flash_io *io, int result))
{
	/* The anchor that was read might be the only valid one after a crash, so it is overwritten
	 * last. */
	uint32_t number = is_first ? 1 - flash->good_anchor : flash->good_anchor;

	io->is_durable = false;
	flash_io_start(flash, io, true, mem_of(block), number, FLASH_BLOCK_BYTES, done);
}

/* --- durability ------------------------------------------------------------------------------ */

static void sync_begin(struct flash *flash);
static void sync_end(struct flash *flash, int result);

static void sync_done(struct ring_op *op, int result)
{
	struct flash_sync *sync = container_of(op, struct flash_sync, op);
	struct flash *flash = sync->flash;

	if (result == -EINTR && sync->retries++ < RETRIES_MAX) {
		ring_fsync(flash->ring, op, flash->file, sync_done);
		return;
	}
	if (result < 0 && flash_redo_begin(flash, legal_result(result))) {
		sync->is_redone = true;
		flash_pump(flash);
		return;
	}
	sync_end(flash, legal_result(result));
}

/* Called when the repetition of a failed sync has succeeded. Possibly the failed sync has lost an
 * anchor, but before the repetition only records were written again. So the anchors that wait for a
 * sync are written again now. Returns true if there are any: only the next sync shows whether they
 * are durable. */
static bool anchors_again(struct flash *flash)
{
	struct flash_sync *sync = flash->sync;
	bool any =
		sync->checkpoint_now || sync->checkpoint_next || sync->move_now || sync->move_next;

	if (sync->checkpoint_now || sync->checkpoint_next) {
		flash_checkpoint_again(flash);
	}
	if (sync->move_now || sync->move_next) {
		flash->log.move.is_waiting = false;
	}
	sync->checkpoint_now = sync->checkpoint_next = false;
	sync->move_now = sync->move_next = false;
	return any;
}

static void sync_end(struct flash *flash, int result)
{
	struct flash_sync *sync = flash->sync;
	struct list_node *node;
	bool for_checkpoint;
	bool for_move;

	sync->is_busy = false;
	if (result < 0) {
		/* After a failed sync, written data might be lost, and all later records depend on
		 * it. */
		flash_fail(flash, result, "the log cannot be made durable");
	} else {
		if (!sync->is_redone || !anchors_again(flash)) {
			flash_redo_succeeded(flash);
		}
		if (sync->seq > flash->log.durable_seq) {
			flash->log.durable_seq = sync->seq;
			flash->log.durable_at = flash->log.syncing_at;
			flash_log_tell(flash);
		}
	}
	sync->is_redone = false;
	for_checkpoint = sync->checkpoint_now;
	for_move = sync->move_now;
	while ((node = list_pop_front(&sync->now)) != NULL) {
		flash_finish(list_entry(node, struct store_part, node), result);
	}
	if (for_checkpoint) {
		flash_checkpoint_synced(flash, result);
	}
	if (for_move) {
		flash_move_synced(flash, result);
	}
	/* Requests that arrived during this sync need another sync. */
	if (!list_is_empty(&sync->next) || sync->checkpoint_next || sync->move_next) {
		sync_begin(flash);
	}
	flash_pump(flash);
	flash_io_ended(flash);
}

static void sync_issue(struct flash *flash)
{
	struct flash_sync *sync = flash->sync;

	sync->retries = 0;
	/* The sync covers the records that are written now. The kernel might include later ones,
	 * but this is not known. */
	sync->seq = flash->log.written_seq;
	flash->log.syncing_at = flash->log.written_at;
	/* While the store is closed, flash_io_block() performs the sync. */
	if (!flash->is_closing) {
		ring_fsync(flash->ring, &sync->op, flash->file, sync_done);
	}
}

static void sync_begin(struct flash *flash)
{
	struct flash_sync *sync = flash->sync;

	list_move_all(&sync->now, &sync->next);
	sync->checkpoint_now = sync->checkpoint_next;
	sync->checkpoint_next = false;
	sync->move_now = sync->move_next;
	sync->move_next = false;
	sync->is_busy = true;
	flash->io_count++;
	sync_issue(flash);
}

void flash_sync_again(struct flash *flash)
{
	if (flash->failed != 0) {
		sync_end(flash, flash->failed);
	} else {
		sync_issue(flash);
	}
}

bool flash_sync_has_anchor(const struct flash *flash)
{
	const struct flash_sync *sync = flash->sync;

	return (flash->checkpoint.is_waiting && !sync->checkpoint_now && !sync->checkpoint_next) ||
	       (flash->log.move.is_waiting && !sync->move_now && !sync->move_next);
}

void flash_sync_part(struct flash *flash, struct store_part *part)
{
	list_push_back(&flash->sync->next, &part->node);
	if (!flash->sync->is_busy) {
		sync_begin(flash);
	}
}

void flash_sync_checkpoint(struct flash *flash)
{
	flash->sync->checkpoint_next = true;
	if (!flash->sync->is_busy) {
		sync_begin(flash);
	}
}

void flash_sync_move(struct flash *flash)
{
	flash->sync->move_next = true;
	if (!flash->sync->is_busy) {
		sync_begin(flash);
	}
}

/* --- without a ring -------------------------------------------------------------------------- */

static int write_blocking(struct flash *flash, struct flash_io *io)
{
	/* Through the page cache, writes to zones would lose their order. */
	int fd = flash_has_zones(flash) ? flash->file.fd : flash->fd;
	uint64_t offset;

	if (flash_has_zones(flash)) {
		int result = flash_zone_write_now(flash, io);

		if (result < 0) {
			return result;
		}
	} else {
		io->offset = flash_block_offset(flash, io->block);
	}
	offset = io->offset;
	if (!io->has_vector) {
		return disk_write(fd, mem_cpu_read(io->memory), io->bytes, offset);
	}
	for (uint32_t i = 0; i < io->vector_count; i++) {
		const struct iovec *run = &io->vector[i];
		int result = disk_write(fd, run->iov_base, run->iov_len, offset);

		if (result < 0) {
			return result;
		}
		offset += run->iov_len;
	}
	return 0;
}

bool flash_io_block(struct flash *flash)
{
	struct list_node *node = list_pop_front(&flash->sync->blocking);

	if (node != NULL) {
		struct flash_io *io = list_entry(node, struct flash_io, node);

		/* flash_read() cannot be used here, because it relies on the state of the zones at
		 * the start. */
		io_end(io, io->is_write ? write_blocking(flash, io)
					: disk_read(flash->fd, mem_cpu_write(io->memory), io->bytes,
						  flash_block_offset(flash, io->block)));
	} else if (flash->sync->is_busy && !flash_redo_runs(flash)) {
		sync_done(&flash->sync->op, disk_sync(flash->fd));
	} else {
		return false;
	}
	return true;
}
