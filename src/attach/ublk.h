// SPDX-License-Identifier: Apache-2.0
/*
 * ublk devices: the kernel's interface, its control device, and the hardware queues of a disk. A
 * queue is one thread with its own connections to the server. The driver's commands are operations
 * of the library's ring.
 *
 *   FETCH ─▶ descriptor[tag] ─▶ gmb_submit(buffer[tag]) ─▶ done ─▶ COMMIT_AND_FETCH ─▶ ...
 *
 * The buffer of a tag is one of two things, for all tags of a disk:
 * - lent memory (ring/lent.h): the driver lends the pages of the request to the ring
 *   (UBLK_F_AUTO_BUF_REG, for NBD over plain TCP, Linux 7.2), without a copy here
 * - memory of this process (staging): the kernel copies the payload of a write into it before it
 *   delivers the request, and the payload of a read out of it afterwards
 *
 * Threading: the functions below are for the thread that starts the device. Ownership: queues are
 * members of the disk. Errors: negative errno with an error message.
 */
#pragma once

#include <liburing.h>
#include <linux/ublk_cmd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>

#include "attach/attach.h"
#include "attach/remote.h"
#include "base/compiler.h"
#include "base/error.h"
#include "client/lend.h"

/* --- the kernel's interface ------------------------------------------------------------------ */

/* Definitions missing in older headers; numbers as in linux/ublk_cmd.h of Linux 6.16. */

/* Since Linux 6.5 the driver reports its features. It then accepts the encoded command numbers,
 * which are the only ones accepted by a kernel without CONFIG_BLKDEV_UBLK_LEGACY_OPCODES. */
#ifndef UBLK_U_CMD_GET_FEATURES
#define UBLK_U_CMD_GET_FEATURES _IOR('u', 0x13, struct ublksrv_ctrl_cmd)
#define UBLK_FEATURES_LEN	8
#endif
#ifndef UBLK_U_CMD_ADD_DEV
#define UBLK_U_CMD_GET_DEV_INFO _IOR('u', UBLK_CMD_GET_DEV_INFO, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_ADD_DEV	_IOWR('u', UBLK_CMD_ADD_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_DEL_DEV	_IOWR('u', UBLK_CMD_DEL_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_START_DEV	_IOWR('u', UBLK_CMD_START_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_STOP_DEV	_IOWR('u', UBLK_CMD_STOP_DEV, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_SET_PARAMS	_IOWR('u', UBLK_CMD_SET_PARAMS, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_START_USER_RECOVERY                                                             \
	_IOWR('u', UBLK_CMD_START_USER_RECOVERY, struct ublksrv_ctrl_cmd)
#define UBLK_U_CMD_END_USER_RECOVERY _IOWR('u', UBLK_CMD_END_USER_RECOVERY, struct ublksrv_ctrl_cmd)
#endif
#ifndef UBLK_U_CMD_TRY_STOP_DEV
#define UBLK_U_CMD_TRY_STOP_DEV _IOWR('u', 0x17, struct ublksrv_ctrl_cmd)
#endif
#ifndef UBLK_U_CMD_UPDATE_SIZE
#define UBLK_U_CMD_UPDATE_SIZE _IOWR('u', 0x15, struct ublksrv_ctrl_cmd)
#define UBLK_F_UPDATE_SIZE     (1ULL << 10)
#endif
#ifndef UBLK_F_AUTO_BUF_REG
#define UBLK_F_AUTO_BUF_REG (1ULL << 11)
#endif
#ifndef UBLK_F_SAFE_STOP_DEV
#define UBLK_F_SAFE_STOP_DEV (1ULL << 17)
#endif
#ifndef UBLK_U_IO_FETCH_REQ
#define UBLK_U_IO_FETCH_REQ _IOWR('u', UBLK_IO_FETCH_REQ, struct ublksrv_io_cmd)
#define UBLK_U_IO_COMMIT_AND_FETCH_REQ                                                             \
	_IOWR('u', UBLK_IO_COMMIT_AND_FETCH_REQ, struct ublksrv_io_cmd)
#endif

_Static_assert(sizeof(struct ublksrv_ctrl_cmd) == 32, "control command");
_Static_assert(sizeof(struct ublksrv_ctrl_dev_info) == 64, "device info");
_Static_assert(sizeof(struct ublksrv_io_desc) == 24, "request descriptor");
_Static_assert(sizeof(struct ublksrv_io_cmd) == 16, "I/O command");

/* --- /dev/ublk-control ----------------------------------------------------------------------- */

/* Creation, start and removal of ublk devices. Each command is sent over a small io_uring of the
 * control device, and the caller waits for its result. One thread at a time. Errors: -ENOSYS the
 * kernel has no ublk driver; otherwise -EPERM or the driver's answer, with an error message. */
enum ublk_command {
	UBLK_ADD,
	UBLK_SET_PARAMS,
	UBLK_START,
	UBLK_STOP,
	UBLK_TRY_STOP, /* only with UBLK_F_SAFE_STOP_DEV */
	UBLK_DELETE,
	UBLK_GET_INFO,
	UBLK_UPDATE_SIZE, /* only with UBLK_F_UPDATE_SIZE; data: sectors */
	UBLK_START_RECOVERY,
	UBLK_END_RECOVERY,
};

struct ublk_control {
	int fd;
	struct io_uring ring;
	bool encoded;	      /* use encoded command numbers, here and on the device */
	uint64_t features;    /* UBLK_F_; 0 if the driver does not report them (before 6.5) */
	uint32_t patience_ms; /* time limit of a command; 0: none */
};

/* Opens the control device, loading the module if it is missing. */
GMB_MUST_CHECK int ublk_control_open(struct ublk_control *control, struct error *error);
void ublk_control_close(struct ublk_control *control);

/* Executes a command on a device (UINT32_MAX: a new one) with its argument, and returns the
 * driver's answer. -ETIMEDOUT: the time limit is over; wait for the answer later, or close the
 * control, which abandons the command. */
GMB_MUST_CHECK int ublk_control_command(struct ublk_control *control, enum ublk_command command,
	uint32_t device, void *buffer, uint16_t buffer_bytes, uint64_t data);

/* Waits without a limit for the answer to a command that timed out. */
GMB_MUST_CHECK int ublk_control_wait(struct ublk_control *control);

/* --- queues ---------------------------------------------------------------------------------- */

enum {
	UBLK_DEPTH = 64,	       /* requests of a queue */
	UBLK_IO_BYTES_MAX = 512 << 10, /* longest read or write */
	UBLK_QUEUES_MAX = 16,
};
_Static_assert((int)UBLK_DEPTH <= (int)QUEUE_LENT_SLOTS_MAX, "an entry for each tag");

enum ublk_phase {
	UBLK_PHASE_OPENING, /* the thread connects */
	UBLK_PHASE_OPEN,    /* connected; waits for the order to serve or to end */
	UBLK_PHASE_GO,	    /* the thread was ordered to serve */
	UBLK_PHASE_SERVING, /* the kernel may send requests */
	UBLK_PHASE_LEAVING, /* the device is stopped: last flush */
	UBLK_PHASE_CANCEL,  /* the thread was ordered to end before serving */
	UBLK_PHASE_ENDED,   /* result and error are valid */
};

struct ublk_queue;

/* A request from the kernel. */
struct ublk_slot {
	struct gmb_request request;
	struct ring_op command;
	struct ublk_queue *queue;
	/* the request was answered to the kernel, but the library still uses its buffer */
	bool orphan;
};

struct ublk_queue {
	/* Set by the thread that starts the device, before the queue's thread starts or before
	 * ublk_queue_go(). */
	const struct attach_options *options;
	struct device *device; /* receives reports: connected or not, size, end of the queue */
	uint16_t number;
	uint16_t depth;
	bool encoded;
	bool lends; /* the disk has UBLK_F_AUTO_BUF_REG */
	int char_fd;
	uint32_t io_bytes;

	/* Used only by the queue's thread. */
	pthread_t thread;
	struct remote remote;
	bool can_lend; /* valid as remote */
	bool abandoned;
	struct ring *ring; /* the library's */
	struct ring_file char_file;
	struct ring_lent lent;
	const struct ublksrv_io_desc *descriptors;
	size_t descriptors_bytes;
	char *buffers;
	uint32_t fetching; /* number of tags that the device still uses; 0: it has stopped */
	struct ublk_slot slots[UBLK_DEPTH];

	/* Shared by the queue's thread and the thread that starts the device. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum ublk_phase phase;
	/* answer all requests with an error, and do not wait for the server */
	_Atomic bool abandon;
	int result;
	struct error error;
};

/* Starts the queue's thread, which connects to the server. */
GMB_MUST_CHECK int ublk_queue_start(struct ublk_queue *queue, struct error *error);

/* Waits until the queue has connected; queue->remote.info and queue->can_lend are then valid. After
 * an error the queue has ended and need not be stopped. */
GMB_MUST_CHECK int ublk_queue_wait_open(struct ublk_queue *queue, struct error *error);

/* Lets the queue serve, and waits until the kernel can send requests. */
GMB_MUST_CHECK int ublk_queue_go(struct ublk_queue *queue, struct error *error);

/* Makes the queue answer all further requests with an error, and not wait for its last flush. Can
 * be called while another thread is in ublk_queue_end(). */
void ublk_queue_abandon(struct ublk_queue *queue);

/* Ends a queue that never served, or whose device was stopped. Returns the result of its last
 * flush. -ETIMEDOUT: the queue has not ended, because it was abandoned, or because the server is
 * unreachable and the argument soon is true. The queue's thread then continues to run. */
int ublk_queue_end(struct ublk_queue *queue, bool soon, struct error *error);
