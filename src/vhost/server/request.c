// SPDX-License-Identifier: Apache-2.0
#include <errno.h>

#include "base/bytes.h"
#include "vhost/server/session.h"

/* --- the pool --------------------------------------------------------------------------------- */

/* Returns a request. There always is one: engine_request_may() has checked the limit, and each
 * session holds at most one request that was not started. */
static struct blk_request *vhost_request_get(struct vhost_queue *queue)
{
	struct vhost_service *service = queue->session->service;
	struct list_node *node = list_pop_front(&service->requests_free);
	struct blk_request *request;

	if (node != NULL) {
		request = list_entry(node, struct blk_request, node);
	} else {
		GMB_ASSERT(service->request_count < service->request_max);
		request = &service->requests[service->request_count++];
	}
	request->session = queue->session;
	request->queue = queue;
	request->memory = vhost_memory_get(queue->session->memory);
	request->is_started = false;
	request->status = BLK_OK;
	request->payload = request->segments;
	request->payload_count = 0;
	request->payload_bytes = 0;
	list_init(&request->node);
	list_init(&request->done_node);
	return request;
}

void vhost_request_forget(struct blk_request *request)
{
	vhost_memory_put(request->memory);
	list_push_front(&request->session->service->requests_free, &request->node);
}

void vhost_request_end(struct blk_request *request)
{
	if (request->is_started) {
		path_finish(&request->path);
	}
	list_remove(&request->node);
	list_remove(&request->done_node);
	request->queue->inflight_count--;
	engine_request_end(&request->session->base);
	vhost_request_forget(request);
}

/* --- reading a chain -------------------------------------------------------------------------- */

/* The rule that a front end can break in place of the guest, by removing memory for a while. */
static const char outside[] = "a descriptor points outside of guest memory";

/* A chain while it is read. */
struct chain {
	struct blk_request *request;
	uint32_t count;	   /* segments so far */
	uint32_t readable; /* segments that the guest wrote; the device writes to the others */
	uint64_t bytes[2]; /* sizes of the readable and of the writable part */
};

/* Adds the memory of a descriptor, which can cross the border of two regions. */
static const char *chain_add(struct chain *chain, const struct vring_desc *desc)
{
	struct blk_request *request = chain->request;
	bool writes = (desc->flags & VRING_DESC_WRITE) != 0;
	uint64_t address = desc->address;
	uint64_t left = desc->bytes;

	if (!writes && chain->bytes[true] > 0) {
		return "a readable descriptor follows a writable one";
	}
	while (left > 0) {
		uint64_t bytes;
		struct mem_ref memory = vhost_memory_at(request->memory, address, &bytes);

		if (memory.rights == 0) {
			return outside;
		}
		if (chain->count == VHOST_SEGMENTS_MAX) {
			return "a request has too many descriptors";
		}
		bytes = MIN(bytes, left);
		request->segments[chain->count++] =
			(struct mem_segment){ .memory = memory, .bytes = bytes };
		chain->readable += !writes;
		chain->bytes[writes] += bytes;
		address += bytes;
		left -= bytes;
	}
	return NULL;
}

/* Finds the table of an indirect descriptor. */
static const char *chain_indirect(const struct vhost_queue *queue, const struct vring_desc *desc,
	const struct vring_desc **table_out, uint32_t *count_out)
{
	uint64_t bytes = 0;
	struct mem_ref memory = vhost_memory_at(queue->session->memory, desc->address, &bytes);

	if ((queue->session->features & VIRTIO_RING_INDIRECT) == 0 ||
		(desc->flags & VRING_DESC_NEXT) != 0) {
		return "an indirect descriptor where none is permitted";
	}
	if (desc->bytes == 0 || desc->bytes % sizeof(*desc) != 0 ||
		desc->bytes / sizeof(*desc) > VHOST_SEGMENTS_MAX) {
		return "an indirect table has an invalid size";
	}
	if (memory.rights == 0 || bytes < desc->bytes) {
		return outside;
	}
	*table_out = (const void *)mem_cpu_read(memory);
	*count_out = desc->bytes / (uint32_t)sizeof(*desc);
	return NULL;
}

/* Follows the descriptors of a chain. Each is copied once. The number of steps is limited by the
 * size of the table, so a loop ends. */
static const char *chain_walk(struct chain *chain, struct vhost_queue *queue, uint32_t at)
{
	const struct vring_desc *table = queue->desc;
	uint32_t count = queue->entries;
	bool is_indirect = false;
	struct vring_desc desc;
	const char *rule = NULL;

	for (uint32_t steps = 0; rule == NULL; steps++) {
		if (at >= count) {
			return "the chain of a request leaves its table";
		}
		if (steps == count) {
			return "the chain of a request is a loop";
		}
		/* as bytes, because the address of an indirect table need not be aligned */
		shared_copy(&desc, (const uint8_t *)table + at * sizeof(desc), sizeof(desc));
		at = desc.next;
		if ((desc.flags & VRING_DESC_INDIRECT) != 0) {
			rule = is_indirect ? "an indirect table contains an indirect descriptor"
					   : chain_indirect(queue, &desc, &table, &count);
			is_indirect = true;
			steps = UINT32_MAX; /* the count starts again */
			at = 0;
			continue;
		}
		rule = chain_add(chain, &desc);
		if ((desc.flags & VRING_DESC_NEXT) == 0) {
			break;
		}
	}
	return rule;
}

/* Copies bytes from the front of the segments, and removes them. The segments are long enough. */
static void chain_pull(struct mem_segment *segments, uint32_t *first, void *to, size_t bytes)
{
	uint8_t *out = to;

	while (bytes > 0) {
		struct mem_segment *segment = &segments[*first];
		size_t piece = MIN(segment->bytes, (uint64_t)bytes);

		shared_copy(out, mem_cpu_read(segment->memory), piece);
		segment->memory = mem_add(segment->memory, piece);
		segment->bytes -= piece;
		*first += segment->bytes == 0;
		out += piece;
		bytes -= piece;
	}
}

/* Removes the last byte of the chain, which receives the status. */
static void chain_take_status(struct chain *chain)
{
	struct blk_request *request = chain->request;
	struct mem_segment *last = &request->segments[chain->count - 1];

	last->bytes--;
	request->status_memory = mem_add(last->memory, last->bytes);
	chain->count -= last->bytes == 0;
	chain->bytes[true]--;
}

/* --- operations ------------------------------------------------------------------------------- */

/* Returns the flags of a change. A guest without FLUSH expects that changes are durable. */
static uint32_t change_flags(const struct vhost_session *session)
{
	return session->is_writethrough || (session->features & VIRTIO_BLK_FLUSH) == 0 ? STORE_FUA
										       : 0;
}

/* Reads the range of DISCARD or WRITE_ZEROES. Returns the status. */
static enum blk_status take_range(struct blk_request *request, uint32_t *first)
{
	struct path_request *path = &request->path;
	struct blk_range range;

	if (request->payload_bytes != sizeof(range)) {
		return BLK_UNSUPPORTED; /* one range, as the configuration says */
	}
	chain_pull(request->segments, first, &range, sizeof(range));
	request->payload_count = 0;
	if ((range.flags & ~(uint32_t)BLK_RANGE_UNMAP) != 0 ||
		(request->type == BLK_DISCARD && range.flags != 0)) {
		return BLK_UNSUPPORTED;
	}
	if (range.sector > UINT64_MAX / BLK_SECTOR_BYTES) {
		return BLK_IO_ERROR;
	}
	path->op = request->type == BLK_DISCARD ? STORE_TRIM : STORE_ZERO;
	path->offset = range.sector * BLK_SECTOR_BYTES;
	path->length = (uint64_t)range.sectors * BLK_SECTOR_BYTES;
	path->flags = change_flags(request->session);
	if (path->op == STORE_ZERO && (range.flags & BLK_RANGE_UNMAP) == 0) {
		path->flags |= STORE_NO_HOLE;
	}
	return BLK_OK;
}

/* Writes the identification of the disk, the name of the export, into the payload. */
static enum blk_status give_id(struct blk_request *request)
{
	const struct export *export = request->session->base.export;
	char id[BLK_ID_BYTES] = "gmblock";
	uint32_t at = 0;

	if (request->payload_bytes < BLK_ID_BYTES) {
		return BLK_IO_ERROR;
	}
	if (export->name_bytes > 0) {
		memset(id, 0, sizeof(id));
		memcpy(id, export->name, MIN((size_t) export->name_bytes, sizeof(id)));
	}
	for (uint32_t i = 0; at < sizeof(id); i++) {
		struct mem_segment *segment = &request->payload[i];
		size_t piece = MIN(segment->bytes, (uint64_t)(sizeof(id) - at));

		memcpy(mem_cpu_write(segment->memory), id + at, piece);
		at += (uint32_t)piece;
	}
	return BLK_OK;
}

/* Sets the operation. Returns the status of a request that does not reach the path, or BLK_OK. */
static enum blk_status request_plan(
	struct blk_request *request, const struct blk_head *head, uint32_t *first)
{
	struct path_request *path = &request->path;

	path->flags = 0;
	path->offset = 0;
	path->length = 0;
	switch (head->type) {
	case BLK_READ:
	case BLK_WRITE:
		path->op = head->type == BLK_READ ? STORE_READ : STORE_WRITE;
		if (head->sector > UINT64_MAX / BLK_SECTOR_BYTES ||
			request->payload_bytes % BLK_SECTOR_BYTES != 0) {
			return BLK_IO_ERROR;
		}
		path->offset = head->sector * BLK_SECTOR_BYTES;
		path->length = request->payload_bytes;
		path->flags = path->op == STORE_WRITE ? change_flags(request->session) : 0;
		return BLK_OK;
	case BLK_FLUSH:
		path->op = STORE_FLUSH;
		return BLK_OK;
	case BLK_DISCARD:
	case BLK_WRITE_ZEROES:
		return take_range(request, first);
	case BLK_GET_ID:
		path->op = STORE_READ; /* of no bytes: complete when it starts */
		return give_id(request);
	default:
		return BLK_UNSUPPORTED;
	}
}

/* Splits a chain into head, payload and status. */
static const char *request_parse(struct chain *chain)
{
	struct blk_request *request = chain->request;
	struct blk_head head;
	uint32_t first = 0;
	bool reads;

	if (chain->bytes[false] < sizeof(head)) {
		return "a request is shorter than its head";
	}
	if (chain->bytes[true] < 1 || chain->bytes[true] > UINT32_MAX) {
		return "a request has no room for its status";
	}
	request->written_bytes = (uint32_t)chain->bytes[true];
	chain_take_status(chain);
	chain_pull(request->segments, &first, &head, sizeof(head));
	request->type = head.type;
	reads = head.type == BLK_READ || head.type == BLK_GET_ID;
	request->payload = &request->segments[reads ? chain->readable : first];
	request->payload_count = reads ? chain->count - chain->readable : chain->readable - first;
	request->payload_bytes = reads ? chain->bytes[true] : chain->bytes[false] - sizeof(head);
	request->status = (uint8_t)request_plan(request, &head, &first);
	return NULL;
}

struct blk_request *vhost_request_read(struct vhost_queue *queue, uint16_t head, bool is_again)
{
	struct blk_request *request = vhost_request_get(queue);
	struct chain chain = { .request = request };
	const char *rule = chain_walk(&chain, queue, head);

	request->head = head;
	request->is_again = is_again;
	rule = rule != NULL ? rule : request_parse(&chain);
	if (rule != NULL) {
		vhost_request_forget(request);
		if (rule == outside) {
			vhost_queue_put_back(queue, head, is_again);
			queue->misses_memory = true;
		}
		vhost_queue_fail(queue, rule);
		return NULL;
	}
	return request;
}

enum store_op vhost_request_op(const struct blk_request *request)
{
	return request->status == BLK_OK ? request->path.op : STORE_OP_COUNT;
}

uint64_t vhost_request_bytes(const struct blk_request *request)
{
	const struct path_request *path = &request->path;

	return request->status != BLK_OK ? 0
					 : engine_request_bytes(&request->session->base, path->op,
						   path->flags, path->offset, path->length);
}

/* --- processing a request --------------------------------------------------------------------- */

static void request_done(struct blk_request *request)
{
	struct vhost_queue *queue = request->queue;

	list_push_back(&queue->done, &request->done_node);
	if (!list_is_linked(&queue->done_node)) {
		list_push_back(&queue->session->finished, &queue->done_node);
	}
	session_mark_dirty(&queue->session->base);
}

static void request_progress(struct path_request *path)
{
	struct blk_request *request = container_of(path, struct blk_request, path);
	struct path_fragment fragment;

	if (request->session->base.state == SESSION_TERMINATING) {
		return; /* vhost_session_join() ends the request when it is idle */
	}
	/* the disk reads directly into guest memory */
	while (path->op == STORE_READ && path_next_fragment(path, UINT32_MAX, &fragment)) {
		path_fragment_sent(&fragment);
	}
	if (path_status(path) != PATH_PENDING) {
		request_done(request);
	}
}

void vhost_request_start(struct blk_request *request)
{
	struct vhost_session *session = request->session;
	struct path_request *path = &request->path;
	const char *text;

	engine_request_begin(&session->base);
	request->queue->inflight_count++;
	list_push_back(&session->requests, &request->node);
	path->export = session->base.path_export;
	if (request->status == BLK_OK && session_admit(&session->base, path, &text) != 0) {
		request->status = BLK_IO_ERROR;
	}
	if (request->status != BLK_OK || (path->length == 0 && path->op != STORE_FLUSH)) {
		request_done(request);
		return;
	}
	path->requester = session->base.peer.id;
	path->client = &session->base.client;
	path->ascending = false;
	path->whole = true;
	path->window_bytes = PATH_WINDOW_BYTES;
	path->memory_rights = 0;
	path->placement_count =
		path->op == STORE_READ || path->op == STORE_WRITE ? request->payload_count : 0;
	path->placement = path->placement_count > 0 ? request->payload : NULL;
	path->progress = request_progress;
	request->is_started = true;
	path_start(session->base.engine->path, path);
	/* every store can access RAM directly, so path_start() has not set placement to NULL */
	GMB_ASSERT(path->placement_count == 0 || path->placement != NULL);
}

static uint8_t request_result(const struct blk_request *request)
{
	int error = request->is_started ? request->path.error : 0;

	return error == 0	      ? request->status
	       : error == -EOPNOTSUPP ? (uint8_t)BLK_UNSUPPORTED
				      : (uint8_t)BLK_IO_ERROR;
}

void vhost_request_answer(struct blk_request *request)
{
	struct vhost_session *session = request->session;
	struct engine_counters *counters = &session->base.engine->counters;
	uint8_t result = request_result(request);

	/* vhost_session_is_broken() examines only the current table, not an earlier one */
	if (request->memory != session->memory && vhost_memory_is_broken(request->memory)) {
		result = BLK_IO_ERROR;
	}

	*mem_cpu_write(request->status_memory) = result;
	if (vhost_session_logs(session)) {
		/* A rejected read writes no payload. Its length has no limit. */
		uint64_t left = request->type == BLK_GET_ID ? BLK_ID_BYTES
				: request->type == BLK_READ && request->is_started
					? request->payload_bytes
					: 0;

		for (uint32_t i = 0; left > 0 && i < request->payload_count; i++) {
			uint64_t bytes = MIN(request->payload[i].bytes, left);

			vhost_log_mark(&session->log.mapping,
				vhost_guest_address(request->payload[i].memory), bytes);
			left -= bytes;
		}
		vhost_log_mark(
			&session->log.mapping, vhost_guest_address(request->status_memory), 1);
	}
	if (result != BLK_OK) {
		counters->errors++;
	} else if (request->type == BLK_READ) {
		counters->bytes_read += request->path.length;
	} else if (request->type == BLK_WRITE) {
		counters->bytes_written += request->path.length;
	}
}
