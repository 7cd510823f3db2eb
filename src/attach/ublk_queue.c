// SPDX-License-Identifier: Apache-2.0
#include "attach/ublk.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attach/attach.h"
#include "base/bytes.h"

/* user_data of the poll for the library; smaller values are tags. */
enum { POLL_TAG = UBLK_MAX_QUEUE_DEPTH, SECTOR_BYTES = 512 };

static char *buffer_of(const struct ublk_queue *queue, uint32_t tag)
{
	return queue->buffers + (size_t)tag * queue->io_bytes;
}

/* --- between the threads ------------------------------------------------------------------- */

static void ublk_queue_set_phase(struct ublk_queue *queue, enum ublk_phase phase)
{
	pthread_mutex_lock(&queue->lock);
	queue->phase = phase;
	pthread_cond_broadcast(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
}

static enum ublk_phase wait_phase(struct ublk_queue *queue, enum ublk_phase left)
{
	enum ublk_phase phase;

	pthread_mutex_lock(&queue->lock);
	while (queue->phase == left) {
		pthread_cond_wait(&queue->changed, &queue->lock);
	}
	phase = queue->phase;
	pthread_mutex_unlock(&queue->lock);
	return phase;
}

/* Returns whether ublk_queue_abandon() was called. The flag guards no other data. */
static bool is_abandoned(struct ublk_queue *queue)
{
	return atomic_load_explicit(&queue->abandon, memory_order_acquire);
}

/* --- commands to the driver ---------------------------------------------------------------- */

static struct io_uring_sqe *ublk_queue_get_sqe(struct ublk_queue *queue)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);

	/* The ring has an entry for each tag and one for the poll, so there is always room. */
	GMB_ASSERT(sqe != NULL);
	memset(sqe, 0, sizeof(*sqe));
	return sqe;
}

static void ublk_queue_send_command(struct ublk_queue *queue, uint32_t tag, bool commit, int result)
{
	struct io_uring_sqe *sqe = ublk_queue_get_sqe(queue);
	struct ublksrv_io_cmd command = {
		.q_id = queue->number,
		.tag = (uint16_t)tag,
		.result = result,
		.addr = (uintptr_t)buffer_of(queue, tag),
	};

	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = 0; /* the only registered file */
	sqe->flags = IOSQE_FIXED_FILE;
	sqe->user_data = tag;
	if (queue->encoded) {
		sqe->cmd_op = commit ? UBLK_U_IO_COMMIT_AND_FETCH_REQ : UBLK_U_IO_FETCH_REQ;
	} else {
		sqe->cmd_op = commit ? UBLK_IO_COMMIT_AND_FETCH_REQ : UBLK_IO_FETCH_REQ;
	}
	memcpy(sqe->cmd, &command, sizeof(command));
}

static void arm_poll(struct ublk_queue *queue)
{
	struct io_uring_sqe *sqe;

	if (!queue->poll_armed) {
		sqe = ublk_queue_get_sqe(queue);
		io_uring_prep_poll_add(sqe, gmb_queue_fd(queue->remote.queue), POLLIN);
		sqe->user_data = POLL_TAG;
		queue->poll_armed = true;
	}
}

/* --- requests ------------------------------------------------------------------------------ */

static uint32_t tag_of(const struct ublk_slot *slot)
{
	return (uint32_t)(slot - slot->queue->slots);
}

static void ublk_queue_request_done(struct gmb_request *request)
{
	struct ublk_slot *slot = container_of(request, struct ublk_slot, request);
	int result = request->result;

	if (slot->orphan) {
		slot->orphan = false;
		return;
	}
	if (result < 0) {
		remote_log_failure(&slot->queue->remote, request);
		/* Programs distinguish these errors of a disk; others become -EIO. */
		if (result != -ENOSPC && result != -EOPNOTSUPP && result != -ENOMEM) {
			result = -EIO;
		}
	} else if (request->operation == GMB_READ || request->operation == GMB_WRITE) {
		result = (int)request->length;
	}
	ublk_queue_send_command(slot->queue, tag_of(slot), true, result);
}

/* Translates the kernel's descriptor into a request of the library. Returns false if the operation
 * is not supported. */
static bool ublk_queue_prepare(struct ublk_queue *queue, uint32_t tag)
{
	/* The kernel does not change a descriptor between FETCH and COMMIT. */
	const struct ublksrv_io_desc *descriptor = &queue->descriptors[tag];
	struct gmb_request *request = &queue->slots[tag].request;
	uint64_t offset = descriptor->start_sector * SECTOR_BYTES;
	uint64_t bytes = (uint64_t)descriptor->nr_sectors * SECTOR_BYTES;
	uint32_t flags = 0;

	switch (ublksrv_get_op(descriptor)) {
	case UBLK_IO_OP_READ:
		GMB_ASSERT(bytes <= queue->io_bytes);
		gmb_prepare_read(request, buffer_of(queue, tag), bytes, offset);
		break;
	case UBLK_IO_OP_WRITE:
		GMB_ASSERT(bytes <= queue->io_bytes);
		gmb_prepare_write(request, buffer_of(queue, tag), bytes, offset);
		break;
	case UBLK_IO_OP_FLUSH:
		gmb_prepare(request, GMB_FLUSH, 0, 0);
		return true;
	case UBLK_IO_OP_DISCARD:
		gmb_prepare(request, GMB_TRIM, offset, bytes);
		break;
	case UBLK_IO_OP_WRITE_ZEROES:
		gmb_prepare(request, GMB_ZERO, offset, bytes);
		flags = (descriptor->op_flags & UBLK_IO_F_NOUNMAP) != 0 ? GMB_NO_HOLE : 0;
		break;
	default:
		return false;
	}
	if ((descriptor->op_flags & UBLK_IO_F_FUA) != 0 && request->operation != GMB_READ) {
		flags |= GMB_FUA;
	}
	request->flags = flags;
	return true;
}

static void ublk_queue_take_request(struct ublk_queue *queue, uint32_t tag, bool abandon)
{
	struct ublk_slot *slot = &queue->slots[tag];

	if (abandon || slot->orphan) {
		ublk_queue_send_command(queue, tag, true, -EIO);
	} else if (ublk_queue_prepare(queue, tag)) {
		slot->request.done = ublk_queue_request_done;
		gmb_submit(queue->remote.client, &slot->request);
	} else {
		ublk_queue_send_command(queue, tag, true, -EOPNOTSUPP);
	}
}

/* Fails all requests in flight to the kernel. The library's completions for them will be
 * ignored. */
static void orphan_all(struct ublk_queue *queue)
{
	for (uint32_t tag = 0; tag < queue->depth; tag++) {
		struct ublk_slot *slot = &queue->slots[tag];

		if (slot->request.in_flight != 0 && !slot->orphan) {
			slot->orphan = true;
			ublk_queue_send_command(queue, tag, true, -EIO);
		}
	}
}

static void ublk_queue_take_completions(struct ublk_queue *queue, bool abandon)
{
	struct io_uring_cqe *cqe;
	unsigned head;
	unsigned count = 0;

	io_uring_for_each_cqe(&queue->ring, head, cqe)
	{
		count++;
		if (cqe->user_data == POLL_TAG) {
			queue->poll_armed = false;
		} else if (cqe->res == UBLK_IO_RES_OK) {
			ublk_queue_take_request(queue, (uint32_t)cqe->user_data, abandon);
		} else {
			/* After an error the tag can fetch no further request. UBLK_IO_RES_ABORT is
			 * expected when the device stops. */
			if (cqe->res != UBLK_IO_RES_ABORT) {
				log_error("ublk rejects tag %u of queue %u: %s",
					(unsigned)cqe->user_data, queue->number,
					strerror(-cqe->res));
			}
			queue->fetching--;
		}
	}
	io_uring_cq_advance(&queue->ring, count);
}

static void ublk_queue_serve(struct ublk_queue *queue)
{
	bool abandoned = false;

	while (queue->fetching > 0) {
		int rc;

		/* Runs the library first: its completions add commits, which the submit below
		 * sends. */
		gmb_queue_wait(queue->remote.queue, 0);
		if (!abandoned && is_abandoned(queue)) {
			abandoned = true;
			orphan_all(queue);
		}
		arm_poll(queue);
		rc = io_uring_submit_and_wait(&queue->ring, 1);
		GMB_ASSERT(rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
		ublk_queue_take_completions(queue, abandoned);
	}
}

/* --- the thread ---------------------------------------------------------------------------- */

static int ublk_queue_map_memory(struct ublk_queue *queue, struct error *error)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t all = align_up(UBLK_MAX_QUEUE_DEPTH * sizeof(struct ublksrv_io_desc), page);
	void *map;
	int rc;

	queue->descriptors_bytes = align_up(queue->depth * sizeof(struct ublksrv_io_desc), page);
	map = mmap(NULL, queue->descriptors_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE,
		queue->char_fd, (off_t)(UBLKSRV_CMD_BUF_OFFSET + queue->number * all));
	if (map == MAP_FAILED) {
		rc = -errno;
		return error_set(error, rc, "cannot map the ublk queue: %s", strerror(-rc));
	}
	queue->descriptors = map;
	queue->buffers = remote_memory(&queue->remote, (size_t)queue->depth * queue->io_bytes);
	return queue->buffers != NULL ? 0 : error_oom_for(error, "requests");
}

static int ublk_queue_make_ring(struct ublk_queue *queue, struct error *error)
{
	/* The first flags need Linux 6.1; the second work on all kernels. */
	static const unsigned flags[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		0,
	};
	int rc = -EINVAL;

	for (size_t i = 0; i < ARRAY_COUNT(flags) && rc == -EINVAL; i++) {
		rc = io_uring_queue_init(2 * UBLK_DEPTH, &queue->ring, flags[i]);
	}
	if (rc == 0) {
		rc = io_uring_register_files(&queue->ring, &queue->char_fd, 1);
		if (rc != 0) {
			io_uring_queue_exit(&queue->ring);
		}
	}
	return rc == 0 ? 0
		       : error_set(error, rc, "cannot create an io_uring for ublk: %s",
				 strerror(-rc));
}

static void unmap_memory(struct ublk_queue *queue)
{
	remote_memory_free(&queue->remote, queue->buffers, (size_t)queue->depth * queue->io_bytes);
	if (queue->descriptors != NULL) {
		munmap((void *)(uintptr_t)queue->descriptors, queue->descriptors_bytes);
	}
}

/* Serves requests until the device is stopped. */
static int serve_device(struct ublk_queue *queue, struct error *error)
{
	int rc = ublk_queue_map_memory(queue, error) ?: ublk_queue_make_ring(queue, error);

	if (rc != 0) {
		unmap_memory(queue);
		return rc;
	}
	for (uint32_t tag = 0; tag < queue->depth; tag++) {
		queue->slots[tag].queue = queue;
		ublk_queue_send_command(queue, tag, false, 0);
	}
	queue->fetching = queue->depth;
	rc = io_uring_submit(&queue->ring);
	if (rc == queue->depth) {
		ublk_queue_set_phase(queue, UBLK_PHASE_SERVING);
		ublk_queue_serve(queue);
		rc = 0;
	} else {
		rc = error_set(error, rc < 0 ? rc : -EIO, "cannot submit requests to ublk");
	}
	io_uring_queue_exit(&queue->ring);
	if (is_abandoned(queue)) {
		/* buffers are not freed, because the library may still write into them */
		return rc;
	}
	unmap_memory(queue);
	return rc;
}

static void *queue_thread(void *argument)
{
	struct ublk_queue *queue = argument;
	int rc = remote_open(&queue->remote, queue->options, queue->device, &queue->error);
	bool served = false;

	if (rc == 0) {
		ublk_queue_set_phase(queue, UBLK_PHASE_OPEN);
		if (wait_phase(queue, UBLK_PHASE_OPEN) == UBLK_PHASE_GO) {
			rc = serve_device(queue, &queue->error);
			served = rc == 0;
		}
		if (served) {
			/* Set before the flush, so that ublk_queue_abandon() can end the wait for
			 * it. */
			ublk_queue_set_phase(queue, UBLK_PHASE_LEAVING);
		}
		if (!is_abandoned(queue)) {
			int flushed = remote_close(
				&queue->remote, !served, rc == 0 ? &queue->error : NULL);

			rc = rc == 0 ? flushed : rc;
		}
	}
	queue->result = rc;
	ublk_queue_set_phase(queue, UBLK_PHASE_ENDED);
	if (served) {
		eventfd_write(queue->device->ended_fd, 1);
	}
	return NULL;
}

/* --- functions that the disk calls --------------------------------------------------------- */

int ublk_queue_start(struct ublk_queue *queue, struct error *error)
{
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->changed, NULL);
	queue->phase = UBLK_PHASE_OPENING;
	return thread_start(&queue->thread, queue_thread, queue, error);
}

/* Waits for the end of the queue. Returns false if the queue is abandoned during its last flush. */
static bool wait_ended(struct ublk_queue *queue)
{
	bool ended;

	pthread_mutex_lock(&queue->lock);
	while (queue->phase != UBLK_PHASE_ENDED &&
		!(queue->phase == UBLK_PHASE_LEAVING && is_abandoned(queue))) {
		pthread_cond_wait(&queue->changed, &queue->lock);
	}
	ended = queue->phase == UBLK_PHASE_ENDED;
	pthread_mutex_unlock(&queue->lock);
	return ended;
}

/* Waits for the end of the queue, and returns its result with the reason in error. */
static int take_failure(struct ublk_queue *queue, bool soon, struct error *error)
{
	if (soon && !thread_join_soon(queue->thread)) {
		return error_set(error, -ETIMEDOUT, "the server did not complete the last flush");
	}
	if (!soon && !wait_ended(queue)) {
		return error_set(error, -ETIMEDOUT, "the last flush was not completed");
	}
	if (!soon) {
		pthread_join(queue->thread, NULL);
	}
	return queue->result == 0 ? 0 : error_set(error, queue->result, "%s", queue->error.text);
}

int ublk_queue_wait_open(struct ublk_queue *queue, struct error *error)
{
	return wait_phase(queue, UBLK_PHASE_OPENING) == UBLK_PHASE_OPEN
		       ? 0
		       : take_failure(queue, false, error);
}

int ublk_queue_go(struct ublk_queue *queue, struct error *error)
{
	ublk_queue_set_phase(queue, UBLK_PHASE_GO);
	if (wait_phase(queue, UBLK_PHASE_GO) == UBLK_PHASE_SERVING) {
		return 0;
	}
	/* The caller still has to call ublk_queue_end(), as for the other queues. */
	return error_set(error, queue->result != 0 ? queue->result : -EIO, "%s", queue->error.text);
}

/* The flag changes under the lock, so that wait_ended() cannot miss it. The library is woken only
 * while the thread serves, because its queue is destroyed afterwards. */
void ublk_queue_abandon(struct ublk_queue *queue)
{
	pthread_mutex_lock(&queue->lock);
	atomic_store_explicit(&queue->abandon, true, memory_order_release);
	if (queue->phase == UBLK_PHASE_SERVING) {
		gmb_queue_wake(queue->remote.queue);
	}
	pthread_cond_broadcast(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
}

int ublk_queue_end(struct ublk_queue *queue, bool soon, struct error *error)
{
	pthread_mutex_lock(&queue->lock);
	if (queue->phase == UBLK_PHASE_OPEN) {
		queue->phase = UBLK_PHASE_CANCEL;
		pthread_cond_broadcast(&queue->changed);
	}
	pthread_mutex_unlock(&queue->lock);
	return take_failure(queue, soon, error);
}
