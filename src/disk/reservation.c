// SPDX-License-Identifier: Apache-2.0
#include "disk/reservation.h"

#include <endian.h>
#include <errno.h>
#include <linux/nvme_ioctl.h>
#include <linux/pr.h>
#include <scsi/sg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/bytes.h"

/* The interface of the kernel since version 6.19, which older headers do not have. */
struct keys_call {
	uint32_t generation;
	uint32_t key_count; /* in: capacity; out: number of registered keys */
	uint64_t keys;	    /* address */
};
struct reservation_call {
	uint64_t key;
	uint32_t generation;
	uint32_t type; /* enum pr_type; 0: none */
};
#define READ_KEYS	 _IOWR('p', 206, struct keys_call)
#define READ_RESERVATION _IOR('p', 207, struct reservation_call)

enum {
	/* Status of a device, as the kernel's calls return it. */
	STATUS_CONFLICT = 0x18,
	STATUS_CONFLICT_NVME = 0x83, /* Linux 6.2 and before */
	STATUS_NVME_MASK = 0x7ff,
	/* A SCSI disk reports changes of its reservations by failing the next command of a host. */
	TRIES_MAX = 4,
	PAUSE_NS = 50000000,

	REPORT_BYTES = 8192,
	NVME_RESERVATION_REPORT = 0x0e,
	NVME_EXTENDED = 1,
	NVME_HOLDS = 1,
	SCSI_RESERVE_IN = 0x5e,
	SCSI_TIMEOUT_MS = 10000,
	SCSI_TYPE_REGISTRANTS = 5,
	SCSI_TYPE_ALL = 7,
};

/* --- changes ------------------------------------------------------------------------------- */

/* Returns the errno for the result of a call: the status of the device if it is positive. */
static int pr_errno(int result)
{
	if (result == 0) {
		return 0;
	}
	if (result < 0) {
		return errno == ENOTTY ? -EOPNOTSUPP : -errno;
	}
	return result == STATUS_CONFLICT || (result & STATUS_NVME_MASK) == STATUS_CONFLICT_NVME
		       ? -EBADE
		       : -EIO;
}

/* Makes a call. Repeats it if the device reports an error other than a conflict. */
static int pr_call(int fd, unsigned long request, const void *argument)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };
	int status = ioctl(fd, request, argument);
	int result = pr_errno(status);

	for (int tries = 1;
		tries < TRIES_MAX && (status > 0 || result == -EINTR) && result != -EBADE;
		tries++) {
		nanosleep(&pause, NULL);
		status = ioctl(fd, request, argument);
		result = pr_errno(status);
	}
	return result;
}

static int pr_register(int fd, uint64_t old_key, uint64_t key, uint32_t flags)
{
	const struct pr_registration registration = {
		.old_key = old_key, .new_key = key, .flags = flags
	};

	return pr_call(fd, IOC_PR_REGISTER, &registration);
}

int disk_register(int fd, uint64_t key)
{
	int result = pr_register(fd, 0, key, PR_FL_IGNORE_KEY);

	/* An NVMe disk refuses a second registration of the same host, for example after a reboot.
	 * With an old key, which is ignored, the kernel replaces the key. */
	return result == -EBADE ? pr_register(fd, key, key, PR_FL_IGNORE_KEY) : result;
}

int disk_register_again(int fd, uint64_t key)
{
	return pr_register(fd, key, key, 0);
}

int disk_reserve(int fd, uint64_t key)
{
	const struct pr_reservation reservation = { .key = key,
		.type = PR_WRITE_EXCLUSIVE_REG_ONLY };

	return pr_call(fd, IOC_PR_RESERVE, &reservation);
}

/* The kernel passes old_key as the key of this host, and new_key as the one to be preempted. Its
 * documentation has it the other way round. */
int disk_preempt(int fd, uint64_t other, uint64_t key, enum disk_reservation_type type)
{
	const struct pr_preempt preempt = { .old_key = key,
		.new_key = other,
		.type = type == DISK_RESERVATION_ALL ? PR_WRITE_EXCLUSIVE_ALL_REGS
						     : PR_WRITE_EXCLUSIVE_REG_ONLY };

	return pr_call(fd, IOC_PR_PREEMPT_ABORT, &preempt);
}

int disk_release(int fd, uint64_t key)
{
	const struct pr_reservation reservation = { .key = key,
		.type = PR_WRITE_EXCLUSIVE_REG_ONLY };

	return pr_call(fd, IOC_PR_RELEASE, &reservation);
}

int disk_clear_reservation(int fd, uint64_t key)
{
	const struct pr_clear clear = { .key = key };

	return pr_call(fd, IOC_PR_CLEAR, &clear);
}

/* --- reading by the kernel's calls --------------------------------------------------------- */

static void set_type(
	struct disk_reservation *out, uint32_t type, uint32_t registrants, uint32_t all)
{
	out->type = type == 0		  ? DISK_RESERVATION_NONE
		    : type == registrants ? DISK_RESERVATION_REGISTRANTS
		    : type == all	  ? DISK_RESERVATION_ALL
					  : DISK_RESERVATION_OTHER;
}

static int read_by_kernel(int fd, struct disk_reservation *out)
{
	struct keys_call keys = { .key_count = DISK_KEYS_MAX,
		.keys = (uint64_t)(uintptr_t)out->keys };
	struct reservation_call reservation = { 0 };
	int result = pr_call(fd, READ_KEYS, &keys);

	result = result ?: pr_call(fd, READ_RESERVATION, &reservation);
	if (result == 0 && keys.key_count > DISK_KEYS_MAX) {
		result = -E2BIG;
	}
	out->key_count = result == 0 ? keys.key_count : 0;
	out->holder = reservation.key;
	set_type(out, reservation.type, PR_WRITE_EXCLUSIVE_REG_ONLY, PR_WRITE_EXCLUSIVE_ALL_REGS);
	return result;
}

/* --- reading from an NVMe disk --------------------------------------------------------------- */

/* NVM Express base specification: reservation status data structure. Integers are little-endian. */
struct nvme_report {
	uint8_t generation[4];
	uint8_t type;
	uint8_t count[2];
	uint8_t reserved[17];
};
struct nvme_registrant { /* the format of hosts with an identifier of 64 bits */
	uint8_t controller[2];
	uint8_t status;
	uint8_t reserved[5];
	uint8_t host[8];
	uint8_t key[8];
};
struct nvme_registrant_extended {
	uint8_t controller[2];
	uint8_t status;
	uint8_t reserved[5];
	uint8_t key[8];
	uint8_t host[16];
	uint8_t reserved2[32];
};
enum { NVME_EXTENDED_HEAD_BYTES = 64 };

static uint64_t le64_load(const uint8_t *bytes)
{
	uint64_t value;

	memcpy(&value, bytes, sizeof(value));
	return le64toh(value);
}

static int add_key(struct disk_reservation *out, uint64_t key, bool holds)
{
	if (out->key_count == DISK_KEYS_MAX) {
		return -E2BIG;
	}
	out->keys[out->key_count++] = key;
	out->holder = holds ? key : out->holder;
	return 0;
}

static int parse_nvme(const uint8_t *bytes, bool extended, struct disk_reservation *out)
{
	size_t step =
		extended ? sizeof(struct nvme_registrant_extended) : sizeof(struct nvme_registrant);
	size_t at = extended ? NVME_EXTENDED_HEAD_BYTES : sizeof(struct nvme_report);
	struct nvme_report head;
	uint32_t count;
	int result = 0;

	memcpy(&head, bytes, sizeof(head));
	count = head.count[0] | (uint32_t)head.count[1] << 8;
	set_type(out, head.type, PR_WRITE_EXCLUSIVE_REG_ONLY, PR_WRITE_EXCLUSIVE_ALL_REGS);
	for (uint32_t i = 0; i < count && result == 0; i++, at += step) {
		const uint8_t *entry = bytes + at;

		if (at + step > REPORT_BYTES) {
			return -E2BIG;
		}
		result = add_key(out,
			le64_load(entry + (extended ? offsetof(struct nvme_registrant_extended, key)
						    : offsetof(struct nvme_registrant, key))),
			(entry[offsetof(struct nvme_registrant, status)] & NVME_HOLDS) != 0);
	}
	return result;
}

static int read_nvme(int fd, uint32_t namespace, struct disk_reservation *out)
{
	uint8_t bytes[REPORT_BYTES] = { 0 };
	struct nvme_passthru_cmd command = {
		.opcode = NVME_RESERVATION_REPORT,
		.nsid = namespace,
		.addr = (uint64_t)(uintptr_t)bytes,
		.data_len = sizeof(bytes),
		.cdw10 = sizeof(bytes) / 4 - 1,
		.cdw11 = NVME_EXTENDED,
	};
	int result = ioctl(fd, NVME_IOCTL_IO_CMD, &command);

	if (result > 0) { /* the disk has only the other format */
		command.cdw11 = 0;
		result = ioctl(fd, NVME_IOCTL_IO_CMD, &command);
	}
	return result != 0 ? pr_errno(result)
			   : parse_nvme(bytes, (command.cdw11 & NVME_EXTENDED) != 0, out);
}

/* --- reading from a SCSI disk ---------------------------------------------------------------- */

enum scsi_question { SCSI_READ_KEYS, SCSI_READ_RESERVATION };

/* SCSI Primary Commands: both answers begin with the generation and the length of the rest. */
enum { SCSI_HEAD_BYTES = 8, SCSI_KEY_BYTES = 8, SCSI_TYPE_AT = 13 };

static int ask_scsi(int fd, enum scsi_question question, uint8_t bytes[REPORT_BYTES])
{
	uint8_t command[10] = { SCSI_RESERVE_IN,
		(uint8_t)question, [7] = REPORT_BYTES >> 8, [8] = REPORT_BYTES & 0xff };
	uint8_t sense[32];
	struct sg_io_hdr io = {
		.interface_id = 'S',
		.dxfer_direction = SG_DXFER_FROM_DEV,
		.cmd_len = sizeof(command),
		.cmdp = command,
		.mx_sb_len = sizeof(sense),
		.sbp = sense,
		.dxfer_len = REPORT_BYTES,
		.dxferp = bytes,
		.timeout = SCSI_TIMEOUT_MS,
	};
	int result = -EIO;

	for (int tries = 0; tries < TRIES_MAX && result == -EIO; tries++) {
		if (ioctl(fd, SG_IO, &io) != 0) {
			return pr_errno(-1);
		}
		result = io.status == 0 && io.host_status == 0 && io.driver_status == 0 ? 0 : -EIO;
	}
	return result;
}

static int read_scsi(int fd, struct disk_reservation *out)
{
	uint8_t bytes[REPORT_BYTES] = { 0 };
	int result = ask_scsi(fd, SCSI_READ_KEYS, bytes);
	uint32_t length = be32_load(bytes + 4);

	if (result == 0 && length > REPORT_BYTES - SCSI_HEAD_BYTES) {
		return -E2BIG;
	}
	for (uint32_t at = 0; result == 0 && at + SCSI_KEY_BYTES <= length; at += SCSI_KEY_BYTES) {
		result = add_key(out, be64_load(bytes + SCSI_HEAD_BYTES + at), false);
	}
	memset(bytes, 0, sizeof(bytes));
	result = result ?: ask_scsi(fd, SCSI_READ_RESERVATION, bytes);
	if (result == 0 && be32_load(bytes + 4) > 0) {
		out->holder = be64_load(bytes + SCSI_HEAD_BYTES);
		set_type(out, bytes[SCSI_HEAD_BYTES + SCSI_TYPE_AT] & 0x0f, SCSI_TYPE_REGISTRANTS,
			SCSI_TYPE_ALL);
	}
	return result;
}

int disk_reservation_read(int fd, struct disk_reservation *out)
{
	int namespace;
	int result;

	*out = (struct disk_reservation){ 0 };
	result = read_by_kernel(fd, out);
	if (result != -EOPNOTSUPP && result != -EINVAL) {
		return result;
	}
	*out = (struct disk_reservation){ 0 };
	namespace = ioctl(fd, NVME_IOCTL_ID);
	return namespace > 0 ? read_nvme(fd, (uint32_t) namespace, out) : read_scsi(fd, out);
}
