// SPDX-License-Identifier: Apache-2.0
/*
 * A ublk device: created, started, stopped and removed. Its queues (ublk_queue.c) serve it.
 *
 *   queue 0 connects ─▶ ADD_DEV ─▶ SET_PARAMS ─▶ queues fetch ─▶ START_DEV ─▶ /dev/ublkbN
 *   STOP_DEV ─▶ queues flush and end ─▶ DEL_DEV
 *
 * When a daemon has died, its device stays and its requests wait instead of failing. The next
 * attachment of the same URI takes over this device (START_USER_RECOVERY) instead of creating a new
 * one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attach/attach.h"
#include "attach/process.h"
#include "attach/state.h"
#include "attach/ublk.h"

enum { SECTOR_SHIFT = 9, DELETE_PATIENCE_MS = 2000, STOP_PATIENCE_MS = 5000 };

/* Requests without payload are limited only by the kernel, just below 4 GiB; the library splits
 * them if the server accepts less. */
#define SECTORS_MAX UINT32_C(0x7fff80)

struct ublk_disk {
	struct device device;
	const struct attach_options *options;
	struct ublk_control control;
	struct ublksrv_ctrl_dev_info info;
	bool exists;  /* ADD_DEV or a recovery has succeeded */
	bool recover; /* take over the device with info.dev_id */
	_Atomic bool abandoned;
	int char_fd;
	_Atomic uint32_t started_count; /* queues whose thread runs or must be joined */
	uint32_t queue_count;
	struct ublk_queue *queues;
};

static const struct device_ops ublk_device_ops;

static struct ublk_disk *ublk_device_disk_of(struct device *device)
{
	return container_of(device, struct ublk_disk, device);
}

static uint32_t ublk_device_number_of(const struct ublk_disk *disk)
{
	return disk->info.dev_id;
}

/* --- the parameters of the disk -------------------------------------------------------------- */

static uint8_t shift_of(uint64_t power_of_two)
{
	return (uint8_t)__builtin_ctzll(power_of_two);
}

static int ublk_device_check_blocks(struct ublk_disk *disk, struct error *error)
{
	const struct gmb_info *remote = &disk->queues[0].remote.info;

	disk->device.read_only =
		disk->options->read_only || (remote->capabilities & GMB_CAN_WRITE) == 0;
	return device_fit(&disk->device, remote->bytes, remote->block_minimum, error);
}

static uint32_t attributes(const struct ublk_disk *disk)
{
	uint32_t can = disk->queues[0].remote.info.capabilities;
	uint32_t result = disk->device.read_only ? UBLK_ATTR_READ_ONLY : 0;

	/* Without a volatile cache the kernel sends no flushes, and FUA is implied. */
	if ((can & GMB_CAN_FLUSH) != 0) {
		result |= UBLK_ATTR_VOLATILE_CACHE;
		result |= (can & GMB_CAN_FUA) != 0 ? UBLK_ATTR_FUA : 0;
	}
	result |= (can & GMB_IS_ROTATIONAL) != 0 ? UBLK_ATTR_ROTATIONAL : 0;
	return result;
}

static void fill_parameters(const struct ublk_disk *disk, struct ublk_params *params)
{
	const struct gmb_info *remote = &disk->queues[0].remote.info;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t preferred = MAX(remote->block_preferred, disk->device.block_bytes);
	bool writable = !disk->device.read_only;

	*params = (struct ublk_params){
		.len = sizeof(*params),
		.types = UBLK_PARAM_TYPE_BASIC,
		.basic = {
			.attrs = attributes(disk),
			.logical_bs_shift = shift_of(disk->device.block_bytes),
			.physical_bs_shift = shift_of(MIN(preferred, page)),
			.io_min_shift = shift_of(MIN(preferred, disk->info.max_io_buf_bytes)),
			.io_opt_shift = shift_of(MIN(preferred, disk->info.max_io_buf_bytes)),
			.max_sectors = disk->info.max_io_buf_bytes >> SECTOR_SHIFT,
			.dev_sectors = disk->device.bytes >> SECTOR_SHIFT,
		},
	};
	if (writable && (remote->capabilities & (GMB_CAN_TRIM | GMB_CAN_ZERO)) != 0) {
		bool trim = (remote->capabilities & GMB_CAN_TRIM) != 0;
		bool zero = (remote->capabilities & GMB_CAN_ZERO) != 0;

		params->types |= UBLK_PARAM_TYPE_DISCARD;
		params->discard = (struct ublk_param_discard){
			.discard_granularity = (uint32_t)MIN(preferred, page),
			.max_discard_sectors = trim ? SECTORS_MAX : 0,
			.max_write_zeroes_sectors = zero ? SECTORS_MAX : 0,
			.max_discard_segments = 1,
		};
	}
}

/* --- creation --------------------------------------------------------------------------------- */

static int command(
	struct ublk_disk *disk, enum ublk_command order, void *buffer, size_t bytes, uint64_t data)
{
	return ublk_control_command(
		&disk->control, order, ublk_device_number_of(disk), buffer, (uint16_t)bytes, data);
}

static uint32_t queues_wanted(const struct ublk_disk *disk)
{
	uint32_t can = disk->queues[0].remote.info.capabilities;

	/* Queues have separate connections, which must see the same data. */
	if (disk->options->queues > 1 && (can & GMB_CAN_MULTI_CONN) == 0) {
		log_warning("using one queue: the server does not guarantee that several "
			    "connections see the same data");
		return 1;
	}
	return MAX(disk->options->queues, 1U);
}

static int add_device(struct ublk_disk *disk, struct error *error)
{
	int rc;

	disk->info = (struct ublksrv_ctrl_dev_info){
		.nr_hw_queues = (uint16_t)queues_wanted(disk),
		.queue_depth = UBLK_DEPTH,
		.max_io_buf_bytes = UBLK_IO_BYTES_MAX,
		.dev_id = (uint32_t)disk->options->number, /* -1: any */
		.flags = UBLK_F_USER_RECOVERY | UBLK_F_USER_RECOVERY_REISSUE |
			 (disk->control.features & UBLK_F_UPDATE_SIZE),
	};
	if (disk->queues[0].can_lend) {
		disk->info.flags |= disk->control.features & UBLK_F_AUTO_BUF_REG;
	}
	rc = command(disk, UBLK_ADD, &disk->info, sizeof(disk->info), 0);
	if (rc == -EEXIST) {
		return error_set(
			error, -EBUSY, "/dev/ublkb%d already exists", (int)disk->options->number);
	}
	if (rc == -EPERM || rc == -EACCES) {
		return error_set(error, -EPERM, "only root can create block devices");
	}
	return rc < 0 ? error_set(error, rc, "ublk cannot create a device: %s", strerror(-rc)) : 0;
}

/*
 * Takes over a device whose daemon has died. Until the driver has detected the death and released
 * the old daemon's requests, it returns -EBUSY; this function then retries.
 */
static int start_recovery(struct ublk_disk *disk, struct error *error)
{
	struct timespec pause = { .tv_nsec = 10000000 };
	int rc = -EBUSY;

	if ((disk->info.flags & UBLK_F_AUTO_BUF_REG) != 0 && !disk->queues[0].can_lend) {
		return error_set(error, -EOPNOTSUPP,
			"cannot take over /dev/ublkb%u: its requests have no copies in user space, "
			"which this kernel does not support now; gmblock detach --force removes it",
			ublk_device_number_of(disk));
	}
	for (int i = 0; i < 500 && rc == -EBUSY; i++) {
		rc = command(disk, UBLK_START_RECOVERY, NULL, 0, 0);
		if (rc == -EBUSY) {
			nanosleep(&pause, NULL);
		}
	}
	if (rc == 0) {
		log_info("taking over /dev/ublkb%u, whose daemon has died",
			ublk_device_number_of(disk));
	}
	return rc < 0 ? error_set(error, rc,
				"cannot take over /dev/ublkb%u: %s; gmblock detach --force removes "
				"it",
				ublk_device_number_of(disk), strerror(-rc))
		      : 0;
}

static int open_char_device(struct ublk_disk *disk, struct error *error)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	char path[64];
	int rc = -ENOENT;

	snprintf(path, sizeof(path), "/dev/ublkc%u", ublk_device_number_of(disk));
	/* It may take a moment until udev creates the node or sets its permissions. */
	for (int i = 0; i < 5000 && (rc == -ENOENT || rc == -EACCES); i++) {
		disk->char_fd = open(path, O_RDWR | O_CLOEXEC);
		if (disk->char_fd >= 0) {
			return 0;
		}
		rc = -errno;
		nanosleep(&pause, NULL);
	}
	return error_set(error, rc, "cannot open %s: %s", path, strerror(-rc));
}

static void give_queue(struct ublk_disk *disk, uint32_t idx)
{
	struct ublk_queue *queue = &disk->queues[idx];

	queue->number = (uint16_t)idx;
	queue->depth = disk->info.queue_depth;
	queue->encoded = disk->control.encoded;
	queue->char_fd = disk->char_fd;
	queue->io_bytes = disk->info.max_io_buf_bytes;
	queue->lends = (disk->info.flags & UBLK_F_AUTO_BUF_REG) != 0;
}

static int start_queue(struct ublk_disk *disk, uint32_t idx, struct error *error)
{
	struct ublk_queue *queue = &disk->queues[idx];
	int rc;

	queue->options = disk->options;
	queue->device = &disk->device;
	rc = ublk_queue_start(queue, error);
	if (rc == 0) {
		rc = ublk_queue_wait_open(queue, error);
		disk->started_count += rc == 0 ? 1 : 0;
	}
	return rc;
}

/* Connects all queues after the first, then lets all queues serve. */
static int start_queues(struct ublk_disk *disk, struct error *error)
{
	int rc = 0;

	disk->queue_count = disk->info.nr_hw_queues;
	for (uint32_t i = 1; rc == 0 && i < disk->queue_count; i++) {
		rc = start_queue(disk, i, error);
		if (rc == 0 &&
			disk->queues[i].remote.info.bytes < disk->queues[0].remote.info.bytes) {
			rc = error_set(
				error, -EIO, "two connections report different export sizes");
		}
	}
	for (uint32_t i = 0; rc == 0 && i < disk->queue_count; i++) {
		give_queue(disk, i);
		rc = ublk_queue_go(&disk->queues[i], error);
	}
	return rc;
}

static int make_device(struct ublk_disk *disk, struct error *error)
{
	struct timings *timings = disk->options->timings;
	struct ublk_params params;
	int rc = disk->recover ? start_recovery(disk, error) : add_device(disk, error);

	if (rc != 0) {
		return rc;
	}
	disk->exists = true;
	timings_mark(timings, TIMINGS_ADD);
	if (!disk->recover) {
		fill_parameters(disk, &params);
		rc = command(disk, UBLK_SET_PARAMS, &params, sizeof(params), 0);
		timings_mark(timings, TIMINGS_PARAMS);
		if (rc < 0) {
			return error_set(
				error, rc, "ublk rejects the disk parameters: %s", strerror(-rc));
		}
	}
	rc = open_char_device(disk, error);
	timings_mark(timings, TIMINGS_NODE);
	if (rc == 0) {
		rc = start_queues(disk, error);
		timings_mark(timings, TIMINGS_QUEUES);
	}
	if (rc != 0) {
		return rc;
	}
	rc = command(
		disk, disk->recover ? UBLK_END_RECOVERY : UBLK_START, NULL, 0, (uint64_t)getpid());
	timings_mark(timings, TIMINGS_DISK);
	return rc < 0 ? error_set(error, rc, "ublk cannot start the disk: %s", strerror(-rc)) : 0;
}

/* --- removal ---------------------------------------------------------------------------------- */

/* Ends the queues. Returns the error of the last one that failed, or 0. */
static int end_queues(struct ublk_disk *disk, bool soon, struct error *error)
{
	int result = 0;

	for (uint32_t i = 0; i < disk->started_count; i++) {
		int rc = ublk_queue_end(&disk->queues[i], soon, error);

		if (rc == -ETIMEDOUT) {
			disk->abandoned = true;
		}
		result = rc != 0 ? rc : result;
	}
	disk->started_count = 0;
	return result;
}

/* Deletes the device. The driver first waits until no program has it open. After a forced stop a
 * program may never close it; then this function returns, and the driver deletes the device
 * later. */
static int delete_number(struct ublk_control *control, uint32_t number)
{
	int rc;

	control->patience_ms = DELETE_PATIENCE_MS;
	rc = ublk_control_command(control, UBLK_DELETE, number, NULL, 0, 0);
	if (rc == -ETIMEDOUT) {
		log_warning(
			"/dev/ublkc%u will be removed once all processes have closed /dev/ublkb%u",
			number, number);
	}
	return rc == -ETIMEDOUT || rc == -ENODEV ? 0 : rc;
}

static void delete_device(struct ublk_disk *disk)
{
	int rc;

	/* Before it deletes the device, the driver waits until the character device is closed. */
	if (disk->char_fd >= 0) {
		close(disk->char_fd);
		disk->char_fd = -1;
	}
	if (disk->exists) {
		rc = delete_number(&disk->control, ublk_device_number_of(disk));
		if (rc < 0) {
			log_error("cannot remove /dev/ublkc%u: %s", ublk_device_number_of(disk),
				strerror(-rc));
		}
		disk->exists = false;
	}
}

static void ublk_device_disk_free(struct ublk_disk *disk)
{
	device_fini(&disk->device);
	free(disk->queues);
	free(disk);
}

/* Cleans up after a failed start, in any state. If the start was to take over a device, the device
 * stays unchanged, because its queued requests hold data that must not be lost; its queues end with
 * the process. */
static void undo(struct ublk_disk *disk)
{
	int rc;

	if (disk->exists && disk->recover) {
		return;
	}
	if (disk->exists) {
		/* Queues that already serve requests end because of this command. */
		rc = command(disk, UBLK_STOP, NULL, 0, 0);
		if (rc < 0) {
			log_error("cannot stop /dev/ublkb%u: %s", ublk_device_number_of(disk),
				strerror(-rc));
		}
	}
	(void)end_queues(disk, false, NULL);
	delete_device(disk);
	ublk_control_close(&disk->control);
	ublk_device_disk_free(disk);
}

/* --- starting ------------------------------------------------------------------------------ */

/* Returns 1 if the entry is a device with the same URI whose daemon has died, and prepares to take
 * it over. */
static int find_orphan(const struct state_entry *entry, void *context)
{
	struct ublk_disk *disk = context;
	struct ublksrv_ctrl_dev_info info = { 0 };

	if (entry->alive || strcmp(entry->kind, "ublk") != 0 ||
		strcmp(entry->uri, disk->options->uri) != 0 ||
		(disk->options->number >= 0 && entry->number != disk->options->number) ||
		ublk_control_command(&disk->control, UBLK_GET_INFO, (uint32_t)entry->number, &info,
			sizeof(info), 0) != 0 ||
		info.queue_depth > UBLK_DEPTH || info.nr_hw_queues > UBLK_QUEUES_MAX ||
		entry->bytes > disk->device.bytes || entry->read_only != disk->device.read_only) {
		return 0;
	}
	/* If the export has grown in the meantime, the disk is enlarged after the takeover. */
	device_export_resized(&disk->device, disk->device.bytes);
	disk->device.bytes = entry->bytes;
	disk->info = info;
	disk->recover = true;
	return 1;
}

static struct ublk_disk *ublk_device_disk_allocate(const struct attach_options *options)
{
	struct ublk_disk *disk = calloc(1, sizeof(*disk));
	int rc;

	if (disk == NULL) {
		return NULL;
	}
	rc = device_init(&disk->device, &ublk_device_ops, NULL);
	disk->options = options;
	atomic_store(&disk->device.staged_bytes, 0);
	disk->char_fd = -1;
	disk->queues = calloc(UBLK_QUEUES_MAX, sizeof(*disk->queues));
	if (disk->queues == NULL || rc != 0) {
		ublk_device_disk_free(disk);
		return NULL;
	}
	return disk;
}

int ublk_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error)
{
	struct ublk_disk *disk = ublk_device_disk_allocate(options);
	int rc;

	if (disk == NULL) {
		return error_oom(error);
	}
	rc = ublk_control_open(&disk->control, error);
	if (rc != 0) {
		ublk_device_disk_free(disk);
		return rc;
	}
	timings_mark(options->timings, TIMINGS_DRIVER);
	rc = start_queue(disk, 0, error);
	timings_mark(options->timings, TIMINGS_CONNECT);
	rc = rc ?: ublk_device_check_blocks(disk, error);
	if (rc == 0) {
		rc = MIN(state_for_each(find_orphan, disk, error), 0);
		timings_mark(options->timings, TIMINGS_LOOK);
	}
	rc = rc ?: make_device(disk, error);
	if (rc != 0) {
		undo(disk);
		return rc;
	}
	disk->device.number = (int32_t)ublk_device_number_of(disk);
	snprintf(disk->device.name, sizeof(disk->device.name), "ublkb%u",
		ublk_device_number_of(disk));
	snprintf(disk->device.path, sizeof(disk->device.path), "/dev/ublkb%u",
		ublk_device_number_of(disk));
	*device_out = &disk->device;
	return 0;
}

/* --- stopping ------------------------------------------------------------------------------ */

static int stop_answer(uint32_t number, int rc, struct error *error)
{
	if (rc == -EBUSY) {
		return error_set(error, rc, "/dev/ublkb%u is in use", number);
	}
	return rc < 0 && rc != -ENODEV
		       ? error_set(error, rc, "cannot stop /dev/ublkb%u: %s", number, strerror(-rc))
		       : 0;
}

/* Stops a device that is not in use. */
static int stop_gently(struct ublk_control *control, uint32_t number, struct error *error)
{
	/* Newer drivers check for users themselves, at the same moment in which they stop the
	 * device. With older ones a user could appear after our check. */
	enum ublk_command order =
		(control->features & UBLK_F_SAFE_STOP_DEV) != 0 ? UBLK_TRY_STOP : UBLK_STOP;
	char name[32];
	int rc;

	snprintf(name, sizeof(name), "ublkb%u", number);
	rc = usage_check_disk(name, error);
	if (rc != 0) {
		return rc;
	}
	return stop_answer(number, ublk_control_command(control, order, number, NULL, 0, 0), error);
}

/* Called by stop(), and on another thread by hurry(). Therefore abandoned and started_count are
 * atomic. A queue that was joined before is unaffected, because its phase is ENDED. */
static void abandon(struct ublk_disk *disk)
{
	disk->abandoned = true;
	for (uint32_t i = 0; i < disk->started_count; i++) {
		ublk_queue_abandon(&disk->queues[i]);
	}
}

/* Stops a device by force, without waiting for a server that does not respond or is going away. */
static int stop_by_force(struct ublk_disk *disk, struct error *error)
{
	int rc;

	if (!health_is_connected(&disk->device.health)) {
		abandon(disk);
	}
	disk->control.patience_ms = STOP_PATIENCE_MS;
	rc = command(disk, UBLK_STOP, NULL, 0, 0);
	if (rc == -ETIMEDOUT) {
		abandon(disk);
		rc = ublk_control_wait(&disk->control);
	}
	disk->control.patience_ms = 0;
	return stop_answer(ublk_device_number_of(disk), rc, error);
}

static int ublk_device_stop(struct device *device, bool force, struct error *error)
{
	struct ublk_disk *disk = ublk_device_disk_of(device);
	struct error lost = { 0 };
	int rc = force ? stop_by_force(disk, error)
		       : stop_gently(&disk->control, ublk_device_number_of(disk), error);

	if (rc != 0) {
		return rc;
	}
	rc = end_queues(disk, force, &lost);
	delete_device(disk);
	return rc == 0 ? 0
		       : error_set(error, rc == -EBUSY ? -EIO : rc, "%s is detached, but %s",
				 device->path, lost.text);
}

static void ublk_device_hurry(struct device *device)
{
	abandon(ublk_device_disk_of(device));
}

static int ublk_device_grow(struct device *device, uint64_t bytes, struct error *error)
{
	struct ublk_disk *disk = ublk_device_disk_of(device);
	int rc = -EOPNOTSUPP;

	if ((disk->control.features & UBLK_F_UPDATE_SIZE) != 0) {
		rc = command(disk, UBLK_UPDATE_SIZE, NULL, 0, bytes >> SECTOR_SHIFT);
	}
	if (rc == -EOPNOTSUPP) {
		return error_set(error, rc,
			"the ublk driver of this kernel cannot resize a disk; this needs Linux "
			"6.16");
	}
	return rc < 0 ? error_set(error, rc, "ublk rejects the size: %s", strerror(-rc)) : 0;
}

static void ublk_device_destroy(struct device *device)
{
	struct ublk_disk *disk = ublk_device_disk_of(device);

	(void)end_queues(disk, false, NULL);
	delete_device(disk);
	ublk_control_close(&disk->control);
	if (!disk->abandoned) {
		ublk_device_disk_free(disk);
	}
}

int ublk_device_remove(int32_t number, bool force, struct error *error)
{
	struct ublk_control control;
	int rc = ublk_control_open(&control, error);

	if (rc == -ENOSYS) {
		return 0; /* without the driver there is no device */
	}
	if (rc != 0) {
		return rc;
	}
	rc = force ? stop_answer((uint32_t)number,
			     ublk_control_command(
				     &control, UBLK_STOP, (uint32_t)number, NULL, 0, 0),
			     error)
		   : stop_gently(&control, (uint32_t)number, error);
	if (rc == 0) {
		rc = delete_number(&control, (uint32_t)number);
		if (rc < 0) {
			error_set(error, rc, "cannot remove /dev/ublkb%d: %s", (int)number,
				strerror(-rc));
		}
	}
	ublk_control_close(&control);
	return rc;
}

static const struct device_ops ublk_device_ops = {
	.kind = "ublk",
	.check = usage_check_path,
	.stop = ublk_device_stop,
	.hurry = ublk_device_hurry,
	.grow = ublk_device_grow,
	.destroy = ublk_device_destroy,
};

static const char control_path[] = "/dev/ublk-control";

/* Command numbers before Linux 6.4, and those since. */
static const struct {
	uint32_t legacy;
	uint32_t encoded;
} opcodes[] = {
	[UBLK_ADD] = { UBLK_CMD_ADD_DEV, UBLK_U_CMD_ADD_DEV },
	[UBLK_SET_PARAMS] = { UBLK_CMD_SET_PARAMS, UBLK_U_CMD_SET_PARAMS },
	[UBLK_START] = { UBLK_CMD_START_DEV, UBLK_U_CMD_START_DEV },
	[UBLK_STOP] = { UBLK_CMD_STOP_DEV, UBLK_U_CMD_STOP_DEV },
	[UBLK_TRY_STOP] = { 0, UBLK_U_CMD_TRY_STOP_DEV },
	[UBLK_DELETE] = { UBLK_CMD_DEL_DEV, UBLK_U_CMD_DEL_DEV },
	[UBLK_UPDATE_SIZE] = { 0, UBLK_U_CMD_UPDATE_SIZE },
	[UBLK_GET_INFO] = { UBLK_CMD_GET_DEV_INFO, UBLK_U_CMD_GET_DEV_INFO },
	[UBLK_START_RECOVERY] = { UBLK_CMD_START_USER_RECOVERY, UBLK_U_CMD_START_USER_RECOVERY },
	[UBLK_END_RECOVERY] = { UBLK_CMD_END_USER_RECOVERY, UBLK_U_CMD_END_USER_RECOVERY },
};

static int take_answer(struct ublk_control *control)
{
	struct __kernel_timespec patience = {
		.tv_sec = control->patience_ms / 1000,
		.tv_nsec = control->patience_ms % 1000 * 1000000LL,
	};
	struct io_uring_cqe *cqe;
	int rc;

	do {
		rc = control->patience_ms == 0
			     ? io_uring_wait_cqe(&control->ring, &cqe)
			     : io_uring_wait_cqe_timeout(&control->ring, &cqe, &patience);
	} while (rc == -EINTR);
	if (rc == 0) {
		rc = cqe->res;
		io_uring_cqe_seen(&control->ring, cqe);
	}
	return rc == -ETIME ? -ETIMEDOUT : rc;
}

int ublk_control_wait(struct ublk_control *control)
{
	control->patience_ms = 0;
	return take_answer(control);
}

/* Executes one command and waits for its result. */
static int ublk_device_run(
	struct ublk_control *control, uint32_t opcode, const struct ublksrv_ctrl_cmd *command)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&control->ring);
	int rc;

	GMB_ASSERT(sqe != NULL);
	/* With SQE128 an entry has 128 bytes, twice the size of its type. */
	memset(sqe, 0, 2 * sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = control->fd;
	sqe->cmd_op = opcode;
	memcpy(sqe->cmd, command, sizeof(*command));
	do {
		rc = io_uring_submit(&control->ring);
	} while (rc == -EINTR);
	return rc < 0 ? rc : take_answer(control);
}

int ublk_control_command(struct ublk_control *control, enum ublk_command command, uint32_t device,
	void *buffer, uint16_t buffer_bytes, uint64_t data)
{
	struct ublksrv_ctrl_cmd argument = {
		.dev_id = device,
		.queue_id = UINT16_MAX,
		.len = buffer_bytes,
		.addr = (uintptr_t)buffer,
	};

	memcpy((char *)&argument + offsetof(struct ublksrv_ctrl_cmd, data), &data, sizeof(data));
	return ublk_device_run(control,
		control->encoded ? opcodes[command].encoded : opcodes[command].legacy, &argument);
}

static void probe_features(struct ublk_control *control)
{
	uint64_t features = 0;
	struct ublksrv_ctrl_cmd argument = {
		.dev_id = UINT32_MAX,
		.queue_id = UINT16_MAX,
		.len = UBLK_FEATURES_LEN,
		.addr = (uintptr_t)&features,
	};

	control->encoded = ublk_device_run(control, UBLK_U_CMD_GET_FEATURES, &argument) == 0;
	control->features = control->encoded ? features : 0;
}

static int open_device(void)
{
	int fd = open(control_path, O_RDWR | O_CLOEXEC);

	if (fd < 0 && (errno == ENOENT || errno == ENODEV || errno == ENXIO)) {
		process_load_module("ublk_drv");
		fd = open(control_path, O_RDWR | O_CLOEXEC);
	}
	return fd >= 0 ? fd : -errno;
}

int ublk_control_open(struct ublk_control *control, struct error *error)
{
	int rc;

	*control = (struct ublk_control){ .fd = open_device() };
	if (control->fd == -ENOENT || control->fd == -ENODEV || control->fd == -ENXIO) {
		return error_set(error, -ENOSYS,
			"%s does not exist: this kernel has no ublk driver, or its module ublk_drv "
			"is not installed",
			control_path);
	}
	if (control->fd == -EACCES || control->fd == -EPERM) {
		return error_set(error, -EPERM, "only root can create block devices");
	}
	if (control->fd < 0) {
		rc = control->fd;
		return error_set(error, rc, "cannot open %s: %s", control_path, strerror(-rc));
	}
	rc = io_uring_queue_init(4, &control->ring, IORING_SETUP_SQE128);
	if (rc < 0) {
		close(control->fd);
		return error_set(error, rc,
			"ublk needs io_uring with 128-byte submission entries (Linux 6.0): %s",
			strerror(-rc));
	}
	probe_features(control);
	return 0;
}

void ublk_control_close(struct ublk_control *control)
{
	io_uring_queue_exit(&control->ring);
	close(control->fd);
}
