// SPDX-License-Identifier: Apache-2.0
/*
 * Handlers for the kernel's FUSE requests. The file system has one node, the file itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attach/fuse.h"
#include "base/bytes.h"

/* Time for which the kernel may cache the attributes of the file. */
static const double attribute_seconds = 1.0;

enum { SLOT_ALIGNMENT = 4096, SHOWN_BLOCK_BYTES = 4096 };

/* --- slots --------------------------------------------------------------------------------- */

bool fuse_file_has_room(const struct fuse_file *file)
{
	return file->busy_count < FUSE_SLOTS_MAX;
}

/* Allocates a slot for a request. fuse_file_has_room() must be true. */
static struct fuse_slot *fuse_slot_get(struct fuse_file *file, fuse_req_t req)
{
	struct list_node *node = list_pop_front(&file->free_slots);
	struct fuse_slot *slot;

	if (node == NULL) {
		GMB_ASSERT(file->slot_count < FUSE_SLOTS_MAX);
		slot = &file->slots[file->slot_count++];
		list_init(&slot->node);
		list_init(&slot->range_node);
		slot->file = file;
	} else {
		slot = list_entry(node, struct fuse_slot, node);
	}
	slot->req = req;
	slot->request = (struct gmb_request){ .context = slot };
	slot->payload = NULL;
	GMB_ASSERT(slot->inlet == NULL && slot->request.in_flight == 0);
	file->busy_count++;
	return slot;
}

void fuse_slot_put(struct fuse_slot *slot)
{
	struct fuse_file *file = slot->file;

	GMB_ASSERT(!list_is_linked(&slot->range_node) && !list_is_linked(&slot->node));
	if (slot->inlet != NULL) {
		list_push_front(&file->free_inlets, &slot->inlet->node);
		slot->inlet = NULL;
	}
	slot->req = NULL;
	list_push_front(&file->free_slots, &slot->node);
	file->busy_count--;
}

/* If the library gave up reconnecting, or the server is stopping, the file returns an I/O error,
 * because ENOTCONN would mean that the mount itself is broken. */
static int file_errno(int result)
{
	return result == -ENOTCONN || result == -ESHUTDOWN ? EIO : -result;
}

void fuse_slot_fail(struct fuse_slot *slot, int result)
{
	fuse.reply_err(slot->req, file_errno(result));
	fuse_slot_put(slot);
}

static size_t buffer_bytes(const struct fuse_file *file)
{
	return align_up(FUSE_IO_BYTES_MAX + 2 * file->block, SLOT_ALIGNMENT);
}

char *fuse_slot_buffer(struct fuse_slot *slot)
{
	struct fuse_file *file = slot->file;
	uint32_t number = (uint32_t)(slot - file->slots);
	char **group = &file->groups[number / FUSE_GROUP_SLOTS];

	if (*group == NULL) {
		*group = remote_memory(&file->remote, FUSE_GROUP_SLOTS * buffer_bytes(file));
	}
	if (*group != NULL) {
		slot->buffer = *group + number % FUSE_GROUP_SLOTS * buffer_bytes(file);
	}
	return slot->buffer;
}

void fuse_buffers_free(struct fuse_file *file)
{
	for (uint32_t i = 0; i < FUSE_GROUPS_MAX; i++) {
		remote_memory_free(
			&file->remote, file->groups[i], FUSE_GROUP_SLOTS * buffer_bytes(file));
	}
}

/* --- the node ------------------------------------------------------------------------------ */

static void fill_attributes(const struct fuse_file *file, struct stat *attributes)
{
	*attributes = (struct stat){
		.st_ino = FUSE_ROOT_ID,
		.st_mode = S_IFREG | (file->device.read_only ? 0400 : 0600),
		.st_nlink = 1,
		.st_uid = getuid(),
		.st_gid = getgid(),
		.st_size = (off_t)file->bytes,
		.st_blksize = SHOWN_BLOCK_BYTES,
		.st_blocks = (blkcnt_t)(file->bytes / 512),
		.st_atim = file->born,
		.st_mtim = file->born,
		.st_ctim = file->born,
	};
}

static void on_init(void *data, struct fuse_conn_info *connection)
{
	/* The thread reads and writes buffers directly; splicing through pipes would only add
	 * cost. */
	connection->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
					FUSE_CAP_SPLICE_MOVE | FUSE_CAP_ATOMIC_O_TRUNC);
	connection->want |= connection->capable & FUSE_CAP_ASYNC_READ;
	connection->want |= connection->capable & FUSE_CAP_ASYNC_DIO;
	connection->max_write = FUSE_IO_BYTES_MAX;
	connection->max_read = FUSE_IO_BYTES_MAX;
	connection->max_readahead = FUSE_IO_BYTES_MAX;
	connection->max_background = FUSE_BACKGROUND_MAX;
	connection->congestion_threshold = FUSE_BACKGROUND_MAX * 3 / 4;
}

static void on_getattr(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *info)
{
	struct stat attributes;

	fill_attributes(fuse.req_userdata(req), &attributes);
	fuse.reply_attr(req, &attributes, attribute_seconds);
}

/* As on a disk, times and modes do not change, and O_TRUNC (size 0) has no effect. Any other change
 * of the size is rejected. */
static void on_setattr(fuse_req_t req, fuse_ino_t node, struct stat *wanted, int to_set,
	struct fuse_file_info *info)
{
	const struct fuse_file *file = fuse.req_userdata(req);

	if ((to_set & FUSE_SET_ATTR_SIZE) != 0 && wanted->st_size != 0 &&
		(uint64_t)wanted->st_size != file->bytes) {
		fuse.reply_err(req, EINVAL);
		return;
	}
	on_getattr(req, node, info);
}

static void on_open(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *info)
{
	const struct fuse_file *file = fuse.req_userdata(req);

	if (file->device.read_only && (info->flags & O_ACCMODE) != O_RDONLY) {
		fuse.reply_err(req, EROFS);
		return;
	}
	fuse.reply_open(req, info);
}

static void on_release(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *info)
{
	fuse.reply_err(req, 0);
}

static void on_statfs(fuse_req_t req, fuse_ino_t node)
{
	const struct fuse_file *file = fuse.req_userdata(req);
	struct statvfs status = {
		.f_bsize = SHOWN_BLOCK_BYTES,
		.f_frsize = SHOWN_BLOCK_BYTES,
		.f_blocks = file->bytes / SHOWN_BLOCK_BYTES,
		.f_files = 1,
		.f_namemax = 255,
	};

	fuse.reply_statfs(req, &status);
}

/* --- reading and writing ------------------------------------------------------------------- */

static void fuse_ops_read_done(struct gmb_request *request)
{
	struct fuse_slot *slot = request->context;

	if (request->result < 0) {
		remote_log_failure(&slot->file->remote, request);
		fuse_slot_fail(slot, request->result);
		return;
	}
	fuse.reply_buf(slot->req, slot->buffer + (slot->offset - request->offset), slot->length);
	fuse_slot_put(slot);
}

static void on_read(
	fuse_req_t req, fuse_ino_t node, size_t bytes, off_t offset, struct fuse_file_info *info)
{
	struct fuse_file *file = fuse.req_userdata(req);
	struct fuse_slot *slot;
	uint64_t begin;
	uint64_t end;

	if (offset < 0 || bytes > FUSE_IO_BYTES_MAX) {
		fuse.reply_err(req, EINVAL);
		return;
	}
	bytes = (uint64_t)offset < file->bytes ? MIN(bytes, file->bytes - (uint64_t)offset) : 0;
	if (bytes == 0) {
		fuse.reply_buf(req, NULL, 0);
		return;
	}
	slot = fuse_slot_get(file, req);
	slot->offset = (uint64_t)offset;
	slot->length = bytes;
	if (fuse_slot_buffer(slot) == NULL) {
		fuse_slot_fail(slot, -ENOMEM);
		return;
	}
	begin = align_down(slot->offset, file->block);
	end = align_up(slot->offset + bytes, file->block);
	gmb_prepare_read(&slot->request, slot->buffer, end - begin, begin);
	slot->request.done = fuse_ops_read_done;
	gmb_submit(file->remote.client, &slot->request);
}

/* Checks the range of a change, and answers with an error if it is invalid. The file cannot grow,
 * so a range past its end is ENOSPC. */
static bool check_change(struct fuse_file *file, fuse_req_t req, off_t offset, uint64_t length)
{
	if (file->device.read_only) {
		fuse.reply_err(req, EROFS);
	} else if (offset < 0 || !range_inside((uint64_t)offset, length, file->bytes)) {
		fuse.reply_err(req, ENOSPC);
	} else {
		return true;
	}
	return false;
}

static void on_write(fuse_req_t req, fuse_ino_t node, const char *payload, size_t bytes,
	off_t offset, struct fuse_file_info *info)
{
	struct fuse_file *file = fuse.req_userdata(req);
	struct fuse_slot *slot;

	/* At the end of the disk the part that fits is written, as write(2) does on block
	 * devices. */
	if (offset >= 0 && (uint64_t)offset < file->bytes) {
		bytes = MIN(bytes, file->bytes - (uint64_t)offset);
	}
	if (bytes == 0) {
		fuse.reply_write(req, 0);
		return;
	}
	if (bytes > FUSE_IO_BYTES_MAX) {
		fuse.reply_err(req, EINVAL);
		return;
	}
	if (!check_change(file, req, offset, bytes)) {
		return;
	}
	slot = fuse_slot_get(file, req);
	slot->offset = (uint64_t)offset;
	slot->length = bytes;
	slot->payload = payload;
	slot->inlet = file->inlet;
	file->inlet = NULL;
	fuse_write_start(slot);
}

static void fuse_ops_flush_done(struct gmb_request *request)
{
	struct fuse_slot *slot = request->context;

	if (request->result < 0) {
		remote_log_failure(&slot->file->remote, request);
		fuse_slot_fail(slot, request->result);
		return;
	}
	fuse.reply_err(slot->req, 0);
	fuse_slot_put(slot);
}

static void on_fsync(fuse_req_t req, fuse_ino_t node, int data_only, struct fuse_file_info *info)
{
	struct fuse_file *file = fuse.req_userdata(req);
	struct fuse_slot *slot;

	if (file->device.read_only || !remote_can(&file->remote, GMB_CAN_FLUSH)) {
		fuse.reply_err(req, 0);
		return;
	}
	slot = fuse_slot_get(file, req);
	gmb_prepare(&slot->request, GMB_FLUSH, 0, 0);
	slot->request.done = fuse_ops_flush_done;
	gmb_submit(file->remote.client, &slot->request);
}

/*
 * After punching a hole or zeroing a range, the range must read as zeroes. TRIM does not guarantee
 * this, so both become requests to write zeroes. Punching a hole may free the space; zeroing a
 * range must keep it allocated (GMB_NO_HOLE).
 */
static void on_fallocate(fuse_req_t req, fuse_ino_t node, int mode, off_t offset, off_t length,
	struct fuse_file_info *info)
{
	struct fuse_file *file = fuse.req_userdata(req);
	bool punch = mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
	bool zero = mode == FALLOC_FL_ZERO_RANGE ||
		    mode == (FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE);
	struct fuse_slot *slot;

	if ((!punch && !zero) || !remote_can(&file->remote, GMB_CAN_ZERO)) {
		fuse.reply_err(req, EOPNOTSUPP);
		return;
	}
	if (length <= 0 || offset < 0 ||
		!is_aligned((uint64_t)offset | (uint64_t)length, file->block)) {
		fuse.reply_err(req, EINVAL);
		return;
	}
	/* A hole may extend past the end of the file; only the part before the end is punched. */
	if (punch && (uint64_t)offset < file->bytes) {
		length = (off_t)MIN((uint64_t)length, file->bytes - (uint64_t)offset);
	}
	if (!check_change(file, req, offset, (uint64_t)length)) {
		return;
	}
	slot = fuse_slot_get(file, req);
	slot->offset = (uint64_t)offset;
	slot->length = (uint64_t)length;
	fuse_zero_start(slot, zero ? GMB_NO_HOLE : 0);
}

/* --- searching for data and holes ------------------------------------------------------------- */

static void seek_ask(struct fuse_slot *slot, uint64_t from);

/* Returns whether the extent is a hole for lseek(): unallocated and reading as zeroes. */
static bool is_hole(const struct gmb_extent *extent)
{
	return (extent->flags & GMB_EXTENT_HOLE) != 0 && (extent->flags & GMB_EXTENT_ZERO) != 0;
}

static void seek_answer(struct fuse_slot *slot, uint64_t place)
{
	fuse.reply_lseek(slot->req, (off_t)place);
	fuse_slot_put(slot);
}

static void seek_done(struct gmb_request *request)
{
	struct fuse_slot *slot = request->context;
	struct fuse_file *file = slot->file;
	uint64_t end = request->offset;

	if (request->result < 0) {
		remote_log_failure(&file->remote, request);
		fuse_slot_fail(slot, request->result);
		return;
	}
	for (uint32_t i = 0; i < request->extent_count; i++) {
		const struct gmb_extent *extent = &slot->extents[i];

		if (is_hole(extent) == (slot->whence == SEEK_HOLE)) {
			seek_answer(slot, MAX(extent->offset, slot->offset));
			return;
		}
		end = extent->offset + extent->bytes;
	}
	if (end < file->bytes && end < request->offset + file->block) {
		/* Less than a block remains. Its extent cannot be queried, so it counts as data. */
		if (slot->whence == SEEK_DATA) {
			seek_answer(slot, MAX(end, slot->offset));
			return;
		}
		end = request->offset + file->block;
	}
	if (end < file->bytes && request->extent_count > 0) {
		seek_ask(slot, end);
	} else if (slot->whence == SEEK_HOLE) {
		seek_answer(slot, file->bytes); /* the end of a file counts as a hole */
	} else {
		fuse_slot_fail(slot, -ENXIO);
	}
}

static void seek_ask(struct fuse_slot *slot, uint64_t from)
{
	struct fuse_file *file = slot->file;
	uint64_t begin = align_down(from, file->block);

	gmb_prepare_status(&slot->request, slot->extents, FUSE_EXTENTS, begin, file->bytes - begin);
	slot->request.done = seek_done;
	gmb_submit(file->remote.client, &slot->request);
}

static void on_lseek(
	fuse_req_t req, fuse_ino_t node, off_t offset, int whence, struct fuse_file_info *info)
{
	struct fuse_file *file = fuse.req_userdata(req);
	struct fuse_slot *slot;

	if (offset < 0 || (uint64_t)offset >= file->bytes) {
		fuse.reply_err(req, ENXIO);
	} else if (whence != SEEK_DATA && whence != SEEK_HOLE) {
		fuse.reply_err(req, EINVAL);
	} else if (!remote_can(&file->remote, GMB_CAN_STATUS)) {
		/* A server that does not report extents can have data anywhere. */
		fuse.reply_lseek(req, whence == SEEK_DATA ? offset : (off_t)file->bytes);
	} else {
		slot = fuse_slot_get(file, req);
		slot->offset = (uint64_t)offset;
		slot->whence = whence;
		seek_ask(slot, slot->offset);
	}
}

const struct fuse_lowlevel_ops *fuse_file_ops(void)
{
	static const struct fuse_lowlevel_ops ops = {
		.init = on_init,
		.getattr = on_getattr,
		.setattr = on_setattr,
		.open = on_open,
		.release = on_release,
		.statfs = on_statfs,
		.read = on_read,
		.write = on_write,
		.fsync = on_fsync,
		.fallocate = on_fallocate,
		.lseek = on_lseek,
	};

	return &ops;
}
