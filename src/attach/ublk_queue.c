// SPDX-License-Identifier: Apache-2.0
#include "attach/ublk.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attach/attach.h"
#include "base/bytes.h"
#include "client/guest.h"

enum { SECTOR_BYTES = 512 };

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

static void command_done(struct ring_op *op, int result);

static void ublk_queue_send_command(struct ublk_queue *queue, uint32_t tag, bool commit, int result)
{
	/* With lent memory, addr of the entry is a struct ublk_auto_buf_reg, whose first member is
	 * the index in the buffer table. */
	struct ublksrv_io_cmd command = {
		.q_id = queue->number,
		.tag = (uint16_t)tag,
		.result = result,
		.addr = queue->lends ? 0 : (uintptr_t)buffer_of(queue, tag),
	};
	uint8_t parameters[sizeof(command)];
	uint32_t number;

	if (queue->encoded) {
		number = commit ? UBLK_U_IO_COMMIT_AND_FETCH_REQ : UBLK_U_IO_FETCH_REQ;
	} else {
		number = commit ? UBLK_IO_COMMIT_AND_FETCH_REQ : UBLK_IO_FETCH_REQ;
	}
	memcpy(parameters, &command, sizeof(command));
	ring_command(queue->ring, &queue->slots[tag].command, queue->char_file, number, parameters,
		queue->lends ? tag : 0, command_done);
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
	if (!queue->lends && (request->operation == GMB_READ || request->operation == GMB_WRITE)) {
		atomic_fetch_add_explicit(
			&queue->device->staged_bytes, (int64_t)bytes, memory_order_relaxed);
	}
	if ((descriptor->op_flags & UBLK_IO_F_FUA) != 0 && request->operation != GMB_READ) {
		flags |= GMB_FUA;
	}
	request->flags = flags;
	return true;
}

static void ublk_queue_take_request(struct ublk_queue *queue, uint32_t tag)
{
	struct ublk_slot *slot = &queue->slots[tag];

	if (queue->abandoned || slot->orphan) {
		ublk_queue_send_command(queue, tag, true, -EIO);
	} else if (ublk_queue_prepare(queue, tag)) {
		slot->request.done = ublk_queue_request_done;
		gmb_submit(queue->remote.client, &slot->request);
	} else {
		ublk_queue_send_command(queue, tag, true, -EOPNOTSUPP);
	}
}

/* Fails all requests in flight to the kernel. In staging, the library's completions for them will
 * be ignored. Lent pages return to the driver only when no operation uses them, so the client ends.
 */
static void abandon_all(struct ublk_queue *queue)
{
	queue->abandoned = true;
	if (queue->lends) {
		client_end(queue->remote.client);
		return;
	}
	for (uint32_t tag = 0; tag < queue->depth; tag++) {
		struct ublk_slot *slot = &queue->slots[tag];

		if (slot->request.in_flight != 0 && !slot->orphan) {
			slot->orphan = true;
			ublk_queue_send_command(queue, tag, true, -EIO);
		}
	}
}

static void command_done(struct ring_op *op, int result)
{
	struct ublk_slot *slot = container_of(op, struct ublk_slot, command);
	struct ublk_queue *queue = slot->queue;

	if (result == UBLK_IO_RES_OK) {
		ublk_queue_take_request(queue, tag_of(slot));
		return;
	}
	/* After an error the tag can fetch no further request. UBLK_IO_RES_ABORT is expected when
	 * the device stops. */
	if (result != UBLK_IO_RES_ABORT) {
		log_error("ublk rejects tag %u of queue %u: %s", tag_of(slot), queue->number,
			strerror(-result));
	}
	if (--queue->fetching == 0) {
		gmb_queue_wake(queue->remote.queue);
	}
}

static void ublk_queue_serve(struct ublk_queue *queue)
{
	while (queue->fetching > 0) {
		if (!queue->abandoned && is_abandoned(queue)) {
			abandon_all(queue);
		}
		gmb_queue_wait(queue->remote.queue, -1);
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
	if (queue->lends) {
		rc = ring_lent_create(&queue->lent, queue->io_bytes, queue->depth);
		queue->buffers = (char *)queue->lent.base;
		return rc == 0 ? 0
			       : error_set(error, rc, "cannot reserve addresses for requests: %s",
					 strerror(-rc));
	}
	queue->buffers = remote_memory(&queue->remote, (size_t)queue->depth * queue->io_bytes);
	return queue->buffers != NULL ? 0 : error_oom_for(error, "requests");
}

static void unmap_memory(struct ublk_queue *queue)
{
	if (queue->lends) {
		queue_lend(queue->remote.queue, NULL);
		ring_lent_destroy(&queue->lent);
	} else {
		remote_memory_free(
			&queue->remote, queue->buffers, (size_t)queue->depth * queue->io_bytes);
	}
	if (queue->descriptors != NULL) {
		munmap((void *)(uintptr_t)queue->descriptors, queue->descriptors_bytes);
	}
}

/* Serves requests until the device is stopped. */
static int serve_device(struct ublk_queue *queue, struct error *error)
{
	int rc = ublk_queue_map_memory(queue, error);

	if (rc != 0) {
		unmap_memory(queue);
		return rc;
	}
	queue->ring = queue_lend(queue->remote.queue, queue->lends ? &queue->lent : NULL);
	queue->char_file = ring_file_add(queue->ring, queue->char_fd);
	for (uint32_t tag = 0; tag < queue->depth; tag++) {
		queue->slots[tag].queue = queue;
		ublk_queue_send_command(queue, tag, false, 0);
	}
	queue->fetching = queue->depth;
	ring_flush(queue->ring);
	ublk_queue_set_phase(queue, UBLK_PHASE_SERVING);
	ublk_queue_serve(queue);
	ring_file_remove(queue->ring, &queue->char_file);
	if (!is_abandoned(queue)) {
		/* otherwise it stays, because the library may still write into it */
		unmap_memory(queue);
	}
	return 0;
}

/* Returns whether the kernel and the connection can use lent memory: NBD over TCP without TLS. */
static bool can_lend(struct ublk_queue *queue)
{
	static const char plain[] = "nbd://";

	return strncmp(queue->options->uri, plain, sizeof(plain) - 1) == 0 &&
	       ring_lent_probe(queue_lend(queue->remote.queue, NULL));
}

static void *queue_thread(void *argument)
{
	struct ublk_queue *queue = argument;
	int rc = remote_open(
		&queue->remote, queue->options, queue->device, GMB_QUEUE_NO_SPIN, &queue->error);
	bool served = false;

	if (rc == 0) {
		queue->can_lend = can_lend(queue);
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
