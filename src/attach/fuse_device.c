// SPDX-License-Identifier: Apache-2.0
/*
 * The life cycle of a file through FUSE: mounted over a regular file, served by a thread,
 * unmounted. The unmount ends the thread, also if another program performs it with umount(8).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attach/attach.h"
#include "attach/fuse.h"
#include "attach/process.h"
#include "base/bytes.h"
#include "base/text.h"

static const struct device_ops fuse_device_ops;

static struct fuse_file *fuse_device_file_of(struct device *device)
{
	return container_of(device, struct fuse_file, device);
}

/* --- the thread ---------------------------------------------------------------------------- */

static struct fuse_inlet *inlet_get(struct fuse_file *file)
{
	struct list_node *node = list_pop_front(&file->free_inlets);
	struct fuse_inlet *inlet = node != NULL ? list_entry(node, struct fuse_inlet, node)
						: calloc(1, sizeof(*inlet));

	if (inlet != NULL && node == NULL) {
		list_init(&inlet->node);
	}
	return inlet;
}

/* Processes one request from the kernel. Returns 1, 0 if there is none, or -1 if the file is
 * unmounted. */
static int fuse_device_take_request(struct fuse_file *file)
{
	int count;

	file->inlet = inlet_get(file);
	if (file->inlet == NULL) {
		return 0;
	}
	count = fuse.session_receive_buf(file->session, &file->inlet->buffer);
	if (count > 0) {
		fuse.session_process_buf(file->session, &file->inlet->buffer);
	}
	/* The payload of a write stays in the inlet until the write is answered, so its handler has
	 * set file->inlet to NULL. Any other inlet is free again. */
	if (file->inlet != NULL) {
		list_push_front(&file->free_inlets, &file->inlet->node);
		file->inlet = NULL;
	}
	if (fuse.session_exited(file->session) || count == 0 ||
		(count < 0 && count != -EAGAIN && count != -EINTR && count != -ENOENT)) {
		return -1;
	}
	return count > 0 ? 1 : 0;
}

/* Requests processed between two checks of the network. */
enum { FUSE_BATCH = 32 };

static void fuse_device_serve(struct fuse_file *file)
{
	struct pollfd entries[2] = {
		{ .fd = fuse.session_fd(file->session), .events = POLLIN },
		{ .fd = gmb_queue_fd(file->remote.queue), .events = POLLIN },
	};

	for (;;) {
		int rc = 1;

		for (int i = 0; i < FUSE_BATCH && rc > 0 && fuse_file_has_room(file); i++) {
			rc = fuse_device_take_request(file);
		}
		if (rc < 0) {
			break;
		}
		if (gmb_queue_wait(file->remote.queue, 0) > 0 || rc > 0) {
			if (fuse_file_has_room(file)) {
				continue;
			}
		}
		entries[0].fd = fuse_file_has_room(file) ? fuse.session_fd(file->session) : -1;
		poll(entries, ARRAY_COUNT(entries), -1);
	}
	/* Waits for the requests in flight, because they use the buffers. Nobody reads their
	 * answers. */
	while (file->busy_count > 0) {
		gmb_queue_wait(file->remote.queue, -1);
	}
}

static int check_size(struct fuse_file *file, struct error *error)
{
	const struct gmb_info *info = &file->remote.info;

	file->block = info->block_minimum;
	file->bytes = align_down(info->bytes, file->block);
	file->device.bytes = file->bytes;
	file->device.block_bytes = info->block_minimum;
	file->device.read_only =
		file->options->read_only || !remote_can(&file->remote, GMB_CAN_WRITE);
	if (file->bytes > INT64_MAX) {
		return error_set(error, -EFBIG, "the export exceeds the maximum file size");
	}
	return 0;
}

static int mount_file(struct fuse_file *file, struct error *error)
{
	char program[] = "gmblock";
	char option[] = "-o";
	char options[128];
	char *argv[] = { program, option, options, NULL };
	struct fuse_args args = FUSE_ARGS_INIT(3, argv);
	int flags;

	snprintf(options, sizeof(options),
		"fsname=gmblock,subtype=gmblock,default_permissions,max_read=%d%s",
		FUSE_IO_BYTES_MAX, file->device.read_only ? ",ro" : "");
	file->session = fuse.session_new(&args, fuse_file_ops(), sizeof(*fuse_file_ops()), file);
	fuse.opt_free_args(&args); /* options allocated by libfuse */
	if (file->session == NULL) {
		return error_set(error, -EIO, "libfuse rejects the mount options");
	}
	if (fuse.session_mount(file->session, file->device.path) != 0) {
		fuse.session_destroy(file->session);
		file->session = NULL;
		return error_set(error, -EIO,
			"cannot mount on %s; see the mount error above, and check that the fuse "
			"module is loaded and /dev/fuse is accessible",
			file->device.path);
	}
	flags = fcntl(fuse.session_fd(file->session), F_GETFL);
	fcntl(fuse.session_fd(file->session), F_SETFL, flags | O_NONBLOCK);
	return 0;
}

/* An unmount can end the thread, which then destroys the queue. Later it cannot be woken. */
static void set_takes_wakes(struct fuse_file *file, bool takes)
{
	pthread_mutex_lock(&file->wake_lock);
	file->takes_wakes = takes;
	pthread_mutex_unlock(&file->wake_lock);
}

static void wake_thread(struct fuse_file *file)
{
	pthread_mutex_lock(&file->wake_lock);
	if (file->takes_wakes) {
		gmb_queue_wake(file->remote.queue);
	}
	pthread_mutex_unlock(&file->wake_lock);
}

static void tell_started(struct fuse_file *file, int result)
{
	file->start_result = result;
	eventfd_write(file->started_fd, 1);
}

static void *file_thread(void *argument)
{
	struct fuse_file *file = argument;
	int rc = remote_open(&file->remote, file->options, &file->device, 0, &file->start_error);

	/* The daemon's thread waits for the result of this thread, and does not use the timings
	 * meanwhile. */
	timings_mark(file->options->timings, TIMINGS_CONNECT);
	if (rc == 0) {
		rc = check_size(file, &file->start_error);
		if (rc == 0) {
			rc = mount_file(file, &file->start_error);
			timings_mark(file->options->timings, TIMINGS_DISK);
		}
		if (rc != 0) {
			remote_close(&file->remote, true, NULL);
		}
	}
	set_takes_wakes(file, rc == 0);
	tell_started(file, rc);
	if (rc != 0) {
		return NULL;
	}
	fuse_device_serve(file);
	set_takes_wakes(file, false);
	fuse_buffers_free(file);
	file->close_result = remote_close(&file->remote, false, &file->close_error);
	eventfd_write(file->device.ended_fd, 1);
	return NULL;
}

/* --- starting ------------------------------------------------------------------------------ */

static bool is_mounted_on(const char *path)
{
	struct stat parent;
	struct stat file;
	char folder[ATTACH_PATH_BYTES];

	snprintf(folder, sizeof(folder), "%s", path);
	*(strrchr(folder, '/') + 1) = '\0';
	return stat(folder, &parent) == 0 && stat(path, &file) == 0 && parent.st_dev != file.st_dev;
}

/* Checks that the mount may cover the existing file. */
static int check_mount_point(
	const struct fuse_file *file, const struct stat *status, struct error *error)
{
	if (!S_ISREG(status->st_mode)) {
		return error_set(error, -EINVAL,
			"%s is not a regular file; name an empty file, or one that does not exist",
			file->device.path);
	}
	if (is_mounted_on(file->device.path)) {
		return error_set(error, -EBUSY, "%s is already a mount point", file->device.path);
	}
	if (status->st_size > 0 && !file->options->cover) {
		return error_set(error, -EEXIST,
			"%s is not empty (%jd bytes), and its contents would be hidden while the "
			"disk is attached; name a new or empty file, or add --force to hide them",
			file->device.path, (intmax_t)status->st_size);
	}
	return 0;
}

/* Determines the absolute path of the mount point, which is created if it does not exist. */
static int prepare_mount_point(struct fuse_file *file, const char *wanted, struct error *error)
{
	int fd = open(wanted, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
	struct statx fresh;
	struct stat status;
	char *real;
	int rc;

	if (fd < 0 && errno != EEXIST) {
		rc = -errno;
		return error_set(error, rc, "cannot create the mount point '%s': %s", wanted,
			rc == -ENOENT ? "its folder does not exist; create the folder first"
				      : strerror(-rc));
	}
	file->device.made_file = fd >= 0;
	if (fd >= 0) {
		close(fd);
	}
	real = realpath(wanted, NULL);
	/* asks a daemon that could have died, instead of the kernel's cache of attributes */
	rc = real == NULL ? -errno : 0;
	if (rc == 0 && (statx(AT_FDCWD, real, AT_STATX_FORCE_SYNC, STATX_TYPE, &fresh) != 0 ||
			       stat(real, &status) != 0)) {
		rc = -errno;
	}
	if (rc == 0 && strlen(real) >= sizeof(file->device.path)) {
		rc = -ENAMETOOLONG;
	}
	if (rc == 0) {
		memcpy(file->device.path, real, strlen(real) + 1);
	}
	free(real);
	if (rc == -ENOTCONN) {
		return error_set(error, -EBUSY,
			"%s belongs to an attachment whose daemon has died; gmblock detach %s "
			"removes it",
			wanted, wanted);
	}
	if (rc != 0) {
		return error_set(error, rc, "cannot use %s: %s", wanted, strerror(-rc));
	}
	return check_mount_point(file, &status, error);
}

static void file_free(struct fuse_file *file)
{
	list_for_each(node, &file->free_inlets)
	{
		struct fuse_inlet *inlet = list_entry(node, struct fuse_inlet, node);

		free(inlet->buffer.mem);
		free(inlet);
	}
	if (file->session != NULL) {
		fuse.session_destroy(file->session);
	}
	if (file->device.made_file) {
		unlink(file->device.path);
	}
	if (file->started_fd >= 0) {
		close(file->started_fd);
	}
	if (file->hurry_fd >= 0) {
		close(file->hurry_fd);
	}
	device_fini(&file->device);
	pthread_mutex_destroy(&file->wake_lock);
	free(file->slots);
	free(file);
}

static struct fuse_file *file_allocate(const struct attach_options *options)
{
	struct fuse_file *file = calloc(1, sizeof(*file));
	int rc;

	if (file == NULL) {
		return NULL;
	}
	rc = device_init(&file->device, &fuse_device_ops, NULL);
	pthread_mutex_init(&file->wake_lock, NULL);
	file->options = options;
	file->started_fd = eventfd(0, EFD_CLOEXEC);
	file->hurry_fd = eventfd(0, EFD_CLOEXEC);
	file->slots = calloc(FUSE_SLOTS_MAX, sizeof(*file->slots));
	list_init(&file->free_slots);
	list_init(&file->free_inlets);
	list_init(&file->ranges);
	list_init(&file->waiting);
	clock_gettime(CLOCK_REALTIME, &file->born);
	snprintf(file->device.name, sizeof(file->device.name), "fuse-%d", (int)getpid());
	if (rc != 0 || file->slots == NULL || file->started_fd < 0 || file->hurry_fd < 0) {
		file_free(file);
		return NULL;
	}
	return file;
}

int fuse_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error)
{
	struct fuse_file *file;
	eventfd_t ignored;
	int rc = fuse_library_load(error);

	if (rc != 0) {
		return rc;
	}
	file = file_allocate(options);
	if (file == NULL) {
		return error_oom(error);
	}
	rc = prepare_mount_point(file, options->file, error);
	timings_mark(options->timings, TIMINGS_FILE);
	rc = rc ?: thread_start(&file->thread, file_thread, file, error);
	if (rc != 0) {
		file_free(file);
		return rc;
	}
	eventfd_read(file->started_fd, &ignored);
	timings_mark(options->timings, TIMINGS_WATCH);
	if (file->start_result != 0) {
		rc = error_set(error, file->start_result, "%s", file->start_error.text);
		pthread_join(file->thread, NULL);
		file_free(file);
		return rc;
	}
	*device_out = &file->device;
	return 0;
}

/* --- stopping ------------------------------------------------------------------------------ */

/* Unmounts. Returns 0, or a negative errno with a message; -EBUSY: the file is in use. */
static int unmount(const char *path, bool force, struct error *error)
{
	int rc = umount2(path, UMOUNT_NOFOLLOW | (force ? MNT_DETACH : 0)) == 0 ? 0 : -errno;

	if (rc == -EPERM) {
		/* Only root can call umount2(). For other users fusermount3 has mounted the file,
		 * and it also unmounts it. */
		const char *const gentle[] = { "fusermount3", "-u", "-q", "--", path, NULL };
		const char *const lazy[] = { "fusermount3", "-u", "-q", "-z", "--", path, NULL };

		rc = process_run(force ? lazy : gentle);
		rc = rc > 0 ? -EBUSY : rc;
	}
	if (rc == -EBUSY) {
		return usage_explain_file(path, error);
	}
	if (rc == -EINVAL || rc == -ENOENT) {
		return 0; /* the folder is not mounted, or another program has unmounted it */
	}
	return rc == 0 ? 0 : error_set(error, rc, "cannot unmount %s: %s", path, strerror(-rc));
}

/* Waits for the thread, which flushes and ends. timeout_ms: -1 for no limit. Returns false after
 * the timeout, or when hurry() was called. */
static bool join_unless_hurried(struct fuse_file *file, int timeout_ms)
{
	struct pollfd entries[] = {
		{ .fd = file->device.ended_fd, .events = POLLIN },
		{ .fd = file->hurry_fd, .events = POLLIN },
	};

	while (poll(entries, ARRAY_COUNT(entries), timeout_ms) < 0) {
		GMB_ASSERT(errno == EINTR);
	}
	if (entries[0].revents == 0) {
		return false;
	}
	pthread_join(file->thread, NULL);
	return true;
}

static int fuse_device_stop(struct device *device, bool force, struct error *error)
{
	struct fuse_file *file = fuse_device_file_of(device);
	int rc;

	/* A forced detach does not wait for a server that does not respond. */
	file->skip_flush = force && !health_is_connected(&device->health);
	rc = unmount(device->path, force, error);
	if (rc != 0) {
		return rc;
	}
	if (force) {
		/* libfuse's session would not end while processes have the file open, so it is
		 * ended here. */
		fuse.session_exit(file->session);
		wake_thread(file);
	}
	if (file->skip_flush || (force && !join_unless_hurried(file, FORCED_MS_MAX))) {
		/* Requests in flight still use the memory, so it is not freed. They end when the
		 * process exits. */
		file->abandoned = true;
		return 0;
	}
	if (!force && !join_unless_hurried(file, -1)) {
		file->abandoned = true;
		return error_set(error, -ECANCELED,
			"%s was detached before the last flush completed: writes since the "
			"previous flush may be lost",
			device->path);
	}
	if (file->close_result != 0) {
		return error_set(error, file->close_result, "%s is detached, but %s", device->path,
			file->close_error.text);
	}
	return 0;
}

static void fuse_device_hurry(struct device *device)
{
	eventfd_write(fuse_device_file_of(device)->hurry_fd, 1);
}

/* Makes the kernel query the size again. If the old end is inside a page, that page is dropped from
 * the page cache, because the kernel filled it with zeroes that are not the server's data. */
static int fuse_device_grow(struct device *device, uint64_t bytes, struct error *error)
{
	struct fuse_file *file = fuse_device_file_of(device);
	bool ends_page = file->bytes % (uint64_t)sysconf(_SC_PAGESIZE) == 0;
	off_t from = ends_page ? -1 : (off_t)file->bytes;

	GMB_UNUSED(error);
	if (bytes > INT64_MAX) {
		return error_set(error, -EFBIG, "the size exceeds the maximum file size");
	}
	file->bytes = bytes;
	/* This fails if the kernel has not looked up the file yet, or is about to drop it. In both
	 * cases the kernel caches no page of the file. */
	(void)!fuse.lowlevel_notify_inval_inode(file->session, FUSE_ROOT_ID, from, 0);
	return 0;
}

static void fuse_device_destroy(struct device *device)
{
	struct fuse_file *file = fuse_device_file_of(device);

	if (!file->abandoned) {
		file_free(file);
	} else if (file->device.made_file) {
		unlink(device->path);
	}
}

int fuse_device_remove(const char *path, bool force, struct error *error)
{
	return unmount(path, force, error);
}

static const struct device_ops fuse_device_ops = {
	.kind = "fuse",
	.check = usage_check_file,
	.stop = fuse_device_stop,
	.hurry = fuse_device_hurry,
	.grow = fuse_device_grow,
	.destroy = fuse_device_destroy,
};

/*
 * Writes to a file whose server accepts only whole blocks. The kernel writes any range of bytes.
 * The blocks at both ends are read first and written back with the new bytes in them:
 *
 *        begin   offset                       offset + length    end
 *          |--head--|=========payload==================|--tail---|
 *
 * These blocks are the edges of the write. If another write changed an edge between the read and
 * the write-back, the write-back would restore the old bytes. Therefore a write with edges first
 * waits for all overlapping writes in flight, and overlapping writes that come later wait for it. A
 * server with block size 1 accepts any byte range, so its writes have no edges.
 */

static bool fuse_device_overlaps(const struct fuse_slot *a, const struct fuse_slot *b)
{
	return a->begin < b->end && b->begin < a->end && (a->exclusive || b->exclusive);
}

/* Returns true if the slot must wait for an overlapping write. Writes in flight count, and of the
 * waiting writes those that are in the list before waiting_end. */
static bool must_wait(struct fuse_slot *slot, const struct list_node *waiting_end)
{
	struct fuse_file *file = slot->file;

	list_for_each(node, &file->ranges)
	{
		if (fuse_device_overlaps(slot, list_entry(node, struct fuse_slot, range_node))) {
			return true;
		}
	}
	for (struct list_node *node = file->waiting.next; node != waiting_end; node = node->next) {
		if (fuse_device_overlaps(slot, list_entry(node, struct fuse_slot, node))) {
			return true;
		}
	}
	return false;
}

static void submit_step(struct fuse_slot *slot);

/* Removes a finished write from the list, and starts the writes that waited only for it. */
static void release_range(struct fuse_slot *slot)
{
	struct fuse_file *file = slot->file;

	list_remove(&slot->range_node);
	list_for_each(node, &file->waiting)
	{
		struct fuse_slot *other = list_entry(node, struct fuse_slot, node);

		if (!must_wait(other, node)) {
			list_remove(node);
			list_push_back(&file->ranges, &other->range_node);
			submit_step(other);
		}
	}
}

static void fuse_device_answer(struct fuse_slot *slot)
{
	int result = slot->request.result;

	if (result < 0) {
		remote_log_failure(&slot->file->remote, &slot->request);
	}
	release_range(slot);
	if (result < 0) {
		fuse_slot_fail(slot, result);
		return;
	}
	if (slot->payload != NULL) {
		fuse.reply_write(slot->req, slot->length);
	} else {
		fuse.reply_err(slot->req, 0);
	}
	fuse_slot_put(slot);
}

static void step_done(struct gmb_request *request)
{
	struct fuse_slot *slot = request->context;

	if (request->result < 0 || slot->step == FUSE_STEP_PLAIN || slot->step == FUSE_STEP_BODY) {
		fuse_device_answer(slot);
		return;
	}
	slot->step++;
	submit_step(slot);
}

/* Submits the request for the slot's step. Steps without work are skipped. */
static void submit_step(struct fuse_slot *slot)
{
	uint64_t block = slot->file->block;
	struct gmb_request *request = &slot->request;
	char *tail = slot->exclusive ? slot->buffer + (slot->end - block - slot->begin) : NULL;

	if (slot->step == FUSE_STEP_HEAD && slot->begin == slot->offset) {
		slot->step = FUSE_STEP_TAIL;
	}
	/* If both edges are in the same block, FUSE_STEP_HEAD has read it. */
	if (slot->step == FUSE_STEP_TAIL &&
		(slot->end == slot->offset + slot->length ||
			(slot->end - slot->begin == block && slot->begin != slot->offset))) {
		slot->step = FUSE_STEP_BODY;
	}
	request->done = step_done;
	request->context = slot;
	switch (slot->step) {
	case FUSE_STEP_PLAIN:
		if (slot->payload != NULL) {
			gmb_prepare_write(request, slot->payload, slot->length, slot->offset);
		}
		break;
	case FUSE_STEP_HEAD:
		gmb_prepare_read(request, slot->buffer, block, slot->begin);
		break;
	case FUSE_STEP_TAIL:
		gmb_prepare_read(request, tail, block, slot->end - block);
		break;
	case FUSE_STEP_BODY:
		memcpy(slot->buffer + (slot->offset - slot->begin), slot->payload, slot->length);
		gmb_prepare_write(request, slot->buffer, slot->end - slot->begin, slot->begin);
		break;
	}
	gmb_submit(slot->file->remote.client, request);
}

static void attach_fuse_device_start(struct fuse_slot *slot)
{
	struct fuse_file *file = slot->file;

	slot->begin = align_down(slot->offset, file->block);
	slot->end = align_up(slot->offset + slot->length, file->block);
	slot->exclusive = slot->begin != slot->offset || slot->end != slot->offset + slot->length;
	slot->step = slot->exclusive ? FUSE_STEP_HEAD : FUSE_STEP_PLAIN;
	if (slot->exclusive && fuse_slot_buffer(slot) == NULL) {
		fuse_slot_fail(slot, -ENOMEM);
		return;
	}
	if (file->block > 1 && must_wait(slot, &file->waiting)) {
		list_push_back(&file->waiting, &slot->node);
		return;
	}
	if (file->block > 1) {
		list_push_back(&file->ranges, &slot->range_node);
	}
	submit_step(slot);
}

void fuse_write_start(struct fuse_slot *slot)
{
	GMB_ASSERT(slot->payload != NULL && slot->length > 0);
	attach_fuse_device_start(slot);
}

void fuse_zero_start(struct fuse_slot *slot, uint32_t flags)
{
	GMB_ASSERT(is_aligned(slot->offset | slot->length, slot->file->block));
	slot->payload = NULL;
	gmb_prepare(&slot->request, GMB_ZERO, slot->offset, slot->length);
	slot->request.flags = flags;
	attach_fuse_device_start(slot);
}
