// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "gmb/server/session.h"

/* Store operation of each protocol operation, and its valid flags (G8). */
static const struct {
	enum store_op op;
	uint16_t flags;
} operations[NATIVE_OPERATION_COUNT] = {
	[NATIVE_READ] = { STORE_READ, 0 },
	[NATIVE_WRITE] = { STORE_WRITE, NATIVE_FUA },
	[NATIVE_FLUSH] = { STORE_FLUSH, 0 },
	[NATIVE_TRIM] = { STORE_TRIM, NATIVE_FUA },
	[NATIVE_ZERO] = { STORE_ZERO, NATIVE_FUA | NATIVE_NO_HOLE | NATIVE_FAST_ZERO },
	[NATIVE_CACHE] = { STORE_CACHE, 0 },
	[NATIVE_STATUS] = { STORE_EXTENTS, 0 },
};

/* Limit for reads that are transferred only when all their data has been read (overlap=off),
 * because they hold that much memory. */
enum { WHOLE_BYTES_MAX = 4 << 20 };

_Static_assert((int)NATIVE_EXTENTS_MAX <= (int)PATH_EXTENTS_MAX, "extents");

/* --- life cycle ------------------------------------------------------------------------------- */

static void done(struct native_request *request)
{
	list_remove(&request->waiting_node);
	list_push_back(&request->session->done, &request->done_node);
	session_mark_dirty(&request->session->base);
}

void native_request_look(struct native_request *request)
{
	struct path_request *path = &request->path;
	struct path_fragment fragment;

	if (request->session->base.state == SESSION_TERMINATING) {
		return; /* native_session_join() ends the request when it is idle */
	}
	if (request->moved) {
		native_request_move(request);
	}
	/* The disk reads directly into the client's memory, so no transfer is needed. The reply
	 * follows when the read is complete. */
	while (!request->moved && path->op == STORE_READ &&
		path_next_fragment(path, UINT32_MAX, &fragment)) {
		path_fragment_sent(&fragment);
	}
	if (path_status(path) != PATH_PENDING &&
		(!request->moved || native_request_is_moved(request))) {
		done(request);
	}
}

static void gmb_request_progress(struct path_request *path)
{
	native_request_look(container_of(path, struct native_request, path));
}

static struct native_request *gmb_request_begin(struct native_session *session, uint32_t tag)
{
	struct native_service *service = session->service;
	struct list_node *node = list_pop_front(&service->requests_free);
	struct native_request *request;

	GMB_ASSERT(node != NULL); /* engine_request_may() has checked the limit */
	request = list_entry(node, struct native_request, node);
	request->session = session;
	request->tag = tag;
	request->regions = 0;
	request->error = 0;
	request->error_text = NULL;
	request->started = false;
	request->copy = NULL;
	request->moved = false;
	request->move_count = 0;
	request->moved_bytes = 0;
	list_init(&request->waiting_node);
	list_init(&request->done_node);
	list_push_back(&session->requests, &request->node);
	return request;
}

void native_request_end(struct native_request *request)
{
	struct native_session *session = request->session;

	if (request->copy != NULL) {
		session_copy_end(request->copy);
	}
	if (request->started) {
		path_finish(&request->path);
	}
	while (request->regions != 0) {
		uint32_t number = (uint32_t)__builtin_ctz(request->regions);

		request->regions &= request->regions - 1;
		session->regions[number].users--;
		native_region_unused(session, number);
	}
	list_remove(&request->node);
	list_remove(&request->done_node);
	list_remove(&request->waiting_node);
	engine_request_end(&session->base);
	list_push_front(&session->service->requests_free, &request->node);
}

void native_request_abandon(struct native_request *request)
{
	if (request->copy != NULL) {
		(void)session_copy_abandon(request->copy);
	} else if (request->started) {
		(void)path_abandon(&request->path);
	}
}

bool native_request_is_idle(const struct native_request *request)
{
	return request->copy != NULL ? session_copy_is_idle(request->copy)
				     : !request->started || path_is_idle(&request->path);
}

/* --- processing a request --------------------------------------------------------------------- */

/* Returns the region of a segment and marks it as used by the request; NULL if G7 forbids it. */
static struct native_region *gmb_request_resolve(
	struct native_request *request, const struct native_wire_segment *segment, uint32_t right)
{
	struct native_region *region;

	if (segment->region >= NATIVE_REGIONS_MAX) {
		return NULL;
	}
	region = &request->session->regions[segment->region];
	if (region->generation == 0 && request->session->mover == NULL) {
		/* A request can arrive before the event that announces its region, so the region is
		 * added here. */
		native_region_add(request->session, segment->region, segment->generation);
	}
	if (region->generation == 0 || region->ending ||
		region->generation != segment->generation || (region->rights & right) == 0 ||
		!range_inside(segment->offset, segment->bytes, region->bytes)) {
		return NULL;
	}
	if ((request->regions & BIT(segment->region)) == 0) {
		request->regions |= BIT(segment->region);
		region->users++;
	}
	return region;
}

static bool resolve_all(
	struct native_request *request, const struct native_request_message *message)
{
	uint32_t right = message->head.operation == NATIVE_READ ? CLAN_WRITE : CLAN_READ;

	request->moved = request->session->mover != NULL && message->head.segment_count > 0;
	for (uint32_t i = 0; i < message->head.segment_count; i++) {
		struct native_wire_segment segment = native_segment_at(message, i);
		struct native_region *region = gmb_request_resolve(request, &segment, right);

		if (region == NULL) {
			return false;
		}
		if (request->moved) {
			request->far_segments[i] = segment;
		} else {
			request->segments[i] = (struct mem_segment){
				.memory = mem_at(&region->memory, segment.offset),
				.bytes = segment.bytes,
			};
		}
	}
	request->path.placement_count = request->moved ? 0 : message->head.segment_count;
	if (message->head.inline_bytes > 0) {
		memcpy(request->inlined, message->inlined, message->head.inline_bytes);
		request->segments[0] = (struct mem_segment){
			.memory = mem_of(request->inlined),
			.bytes = message->head.inline_bytes,
		};
		request->path.placement_count = 1;
	}
	return true;
}

static uint32_t gmb_request_store_flags(const struct native_wire_request *head)
{
	return ((head->flags & NATIVE_FUA) != 0 ? (uint32_t)STORE_FUA : 0) |
	       ((head->flags & NATIVE_NO_HOLE) != 0 ? (uint32_t)STORE_NO_HOLE : 0) |
	       ((head->flags & NATIVE_FAST_ZERO) != 0 ? (uint32_t)STORE_FAST_ZERO : 0);
}

static int gmb_request_check(struct native_request *request, const struct native_wire_request *head)
{
	struct native_session *session = request->session;
	struct path_request *path = &request->path;

	/* Set before any check, because an error reply contains the offset. */
	path->offset = head->offset;
	path->length = head->length;
	if (head->operation >= NATIVE_OPERATION_COUNT ||
		(head->flags & ~operations[head->operation].flags) != 0) {
		request->error_text = "unknown operation, or a flag that is not valid for it";
		return -EINVAL;
	}
	path->op = operations[head->operation].op;
	path->flags = gmb_request_store_flags(head);
	path->extent_max = MIN(head->extents_max, (uint32_t)NATIVE_EXTENTS_MAX);
	if (session->base.stopping) {
		request->error_text = session_stop_text(&session->base);
		return -ESHUTDOWN;
	}
	if (path->op == STORE_EXTENTS && path->extent_max == 0) {
		request->error_text = "the request allows no extents in its reply";
		return -EINVAL;
	}
	return session_admit(&session->base, path, &request->error_text);
}

/* Returns whether a read needs its data only when all of it is valid. It does if the disk reads
 * directly into the client's memory, or if clan_put() may not begin before (overlap=off). */
static bool gmb_request_is_whole(const struct native_request *request)
{
	const struct path_request *path = &request->path;

	return !request->moved || (path->op == STORE_READ && path->length <= WHOLE_BYTES_MAX &&
					  path->export->overlap == PATH_OVERLAP_OFF);
}

static void gmb_request_start(struct native_request *request)
{
	struct native_session *session = request->session;
	struct path_request *path = &request->path;

	if (path->op == STORE_FLUSH) {
		path->offset = 0;
		path->length = 0;
	}
	path->requester = session->base.peer.id;
	path->client = &session->base.client;
	path->ascending = false;
	path->whole = gmb_request_is_whole(request);
	path->window_bytes = request->moved && path->whole ? path->length : PATH_WINDOW_BYTES;
	path->memory_rights = !request->moved	       ? 0
			      : path->op == STORE_READ ? (uint32_t)MEM_CPU_READ
						       : (uint32_t)MEM_CPU_WRITE;
	path->placement = path->placement_count > 0 ? request->segments : NULL;
	path->progress = gmb_request_progress;
	request->started = true;
	path_start(session->base.engine->path, path);
	/* every store can access RAM directly, so path_start() has not set placement to NULL */
	GMB_ASSERT(path->placement_count == 0 || path->placement != NULL);
	if (request->moved && path->op == STORE_WRITE) {
		native_request_move(request); /* a read begins when the disk has data */
	}
}

static enum store_op gmb_request_op(const struct native_wire_request *head)
{
	return head->operation < NATIVE_OPERATION_COUNT ? operations[head->operation].op
							: STORE_OP_COUNT;
}

/* See engine_request_bytes(). */
static uint64_t gmb_request_bytes_of(
	const struct native_session *session, const struct native_wire_request *head)
{
	return engine_request_bytes(&session->base, gmb_request_op(head),
		gmb_request_store_flags(head), head->offset, head->length);
}

/* Stores a request that must wait for its rate limit; native_session_take() continues with it. */
static void gmb_request_hold(
	struct native_session *session, uint32_t type, const uint8_t *bytes, uint32_t len)
{
	struct native_held *held = malloc(sizeof(*held));

	GMB_ASSERT(session->held == NULL && len <= sizeof(held->message));
	if (held == NULL) {
		session_terminate(&session->base, "out of memory for a waiting request");
		return;
	}
	held->type = type;
	held->bytes = len;
	memcpy(held->message, bytes, len);
	session->held = held;
	native_session_watch(session);
}

static void gmb_request_take_request(
	struct native_session *session, const uint8_t *bytes, uint32_t len)
{
	struct native_request_message message;
	struct native_request *request;
	const char *rule = native_request_parse(bytes, len, &message);

	if (rule != NULL) {
		native_session_fail(session, rule);
		return;
	}
	if (!engine_request_may_move(&session->base, gmb_request_op(&message.head),
		    gmb_request_bytes_of(session, &message.head))) {
		gmb_request_hold(session, NATIVE_REQUEST, bytes, len);
		return;
	}
	request = gmb_request_begin(session, message.head.tag);
	engine_request_begin(&session->base);
	native_session_watch(session);
	if (!resolve_all(request, &message)) {
		native_session_fail(
			session, "G7: a segment is outside the memory that the client may use");
		return; /* the request ends with the session */
	}
	request->path.export = session->base.path_export;
	request->error = gmb_request_check(request, &message.head);
	if (request->error != 0 || (request->path.length == 0 && request->path.op != STORE_FLUSH)) {
		done(request);
		return;
	}
	gmb_request_start(request);
}

static void gmb_request_copy_done(void *context)
{
	struct native_request *request = context;

	if (request->session->base.state != SESSION_TERMINATING) {
		done(request);
	}
}

static int gmb_request_copy_begin(
	struct native_request *request, const struct native_copy_message *message)
{
	struct native_session *session = request->session;
	const struct native_wire_copy *head = &message->head;
	struct path_request *path = &request->path;
	const struct session_copy_options options = {
		.source_name = message->name.bytes,
		.source_name_bytes = message->name.length,
		.source_epoch = head->source_epoch,
		.source_offset = head->source_offset,
		.offset = head->offset,
		.length = head->length,
		.flags = (head->flags & NATIVE_FUA) != 0 ? (uint32_t)STORE_FUA : 0,
		.done = gmb_request_copy_done,
		.context = request,
	};
	int rc;

	path->op = STORE_COPY;
	path->offset = head->offset;
	path->length = head->length;
	if ((head->flags & ~NATIVE_FUA) != 0) {
		request->error_text = "unknown flag of COPY";
		return -EINVAL;
	}
	if (session->base.stopping) {
		request->error_text = session_stop_text(&session->base);
		return -ESHUTDOWN;
	}
	rc = session_admit(&session->base, path, &request->error_text);
	return rc != 0 || head->length == 0 ? rc
					    : session_copy_start(&session->base, &options,
						      &request->copy, &request->error_text);
}

static void take_copy(struct native_session *session, const uint8_t *bytes, uint32_t len)
{
	struct native_copy_message message;
	struct native_request *request;
	const char *rule = native_parse(NATIVE_COPY, bytes, len, &message);

	if (rule != NULL) {
		native_session_fail(session, rule);
		return;
	}
	/* 0 bytes: the copy itself requests permission for its bytes later */
	if (!engine_request_may_move(&session->base, STORE_COPY, 0)) {
		gmb_request_hold(session, NATIVE_COPY, bytes, len);
		return;
	}
	request = gmb_request_begin(session, message.head.tag);
	engine_request_begin(&session->base);
	native_session_watch(session);
	request->error = gmb_request_copy_begin(request, &message);
	if (request->copy == NULL) {
		done(request);
	}
}

void native_request_take(
	struct native_session *session, uint32_t type, const uint8_t *bytes, uint32_t len)
{
	if (type == NATIVE_COPY) {
		take_copy(session, bytes, len);
	} else {
		gmb_request_take_request(session, bytes, len);
	}
}

/* --- replies ---------------------------------------------------------------------------------- */

static uint32_t put_extents(const struct path_request *path, uint8_t *out)
{
	for (uint32_t i = 0; i < path->extent_count; i++) {
		const struct native_wire_extent extent = {
			.bytes = path->extents[i].length,
			.flags = path->extents[i].flags,
		};

		memcpy(out + i * sizeof(extent), &extent, sizeof(extent));
	}
	return path->extent_count * (uint32_t)sizeof(struct native_wire_extent);
}

static const char *gmb_request_text_of(const struct native_request *request, int error)
{
	if (request->error_text != NULL) {
		return request->error_text;
	}
	switch (-error) {
	case ENOSPC:
		return "no space left on the server's disk";
	case EPERM:
		return "the server's disk refused the operation";
	case ESHUTDOWN:
		return "the server, or this export, is stopping";
	case ENOENT:
		return "the export to copy from is no longer served";
	case ESTALE:
		return ENGINE_SNAPSHOT_DELETED_TEXT;
	case EOPNOTSUPP:
		return "zeroing this range would not be faster than writing it";
	default:
		return "the server's disk failed";
	}
}

/* Returns the result of a request. *first_out: offset of the first byte that was not processed. */
static int result_of(const struct native_request *request, uint64_t *first_out)
{
	uint64_t bytes;
	int error;

	*first_out = request->path.offset;
	if (request->copy != NULL) {
		error = session_copy_result(request->copy, &bytes);
		*first_out += bytes;
		return error;
	}
	if (!request->started) {
		return request->error;
	}
	*first_out = request->path.error_offset;
	return request->path.error;
}

/* Writes the number of bytes that each method has copied. copy is NULL for a copy of zero bytes. */
static uint32_t put_copied(const struct session_copy *copy, uint8_t *out)
{
	struct native_wire_copied copied = { 0 };

	_Static_assert(ARRAY_COUNT(copied.bytes) == COPY_METHOD_COUNT, "in the same order");
	if (copy != NULL) {
		memcpy(copied.bytes, session_copy_bytes(copy), sizeof(copied.bytes));
	}
	memcpy(out, &copied, sizeof(copied));
	return sizeof(copied);
}

static uint32_t gmb_request_answer(const struct native_request *request, uint8_t *out)
{
	const struct path_request *path = &request->path;
	uint64_t first;
	int error = result_of(request, &first);
	struct native_wire_reply head = { .tag = request->tag,
		.status = native_status_from_errno(error) };
	uint32_t bytes = sizeof(head);

	if (error != 0) {
		const char *text = gmb_request_text_of(request, error);
		size_t text_bytes = strlen(text);

		head.value = first;
		memcpy(out + bytes, text, text_bytes);
		bytes += (uint32_t)text_bytes;
	} else if (path->op == STORE_COPY) {
		bytes += put_copied(request->copy, out + bytes);
	} else if (request->started && path->op == STORE_EXTENTS) {
		head.value = path->extent_count;
		bytes += put_extents(path, out + bytes);
	}
	memcpy(out, &head, sizeof(head));
	return bytes;
}

static void gmb_request_count(const struct native_request *request)
{
	struct engine_counters *counters = &request->session->base.engine->counters;
	const struct path_request *path = &request->path;
	uint64_t first;

	if (result_of(request, &first) != 0) {
		counters->errors++;
	} else if (path->op == STORE_READ) {
		counters->bytes_read += path->length;
	} else if (path->op == STORE_WRITE) {
		counters->bytes_written += path->length;
	}
}

/* Reports what the network has not delivered of a read whose puts have ended. */
static void gmb_request_replied(struct native_request *request)
{
	struct native_session *session = request->session;

	if (request->started && request->moved && request->path.op == STORE_READ &&
		request->path.measured) {
		const struct ring_file file = {
			.fd = clan_conn_socket(session->conn),
			.slot = -1,
		};

		overlap_replied(
			&request->path, &session->network, session->base.engine->ring, file);
	}
}

bool native_requests_answer(struct native_session *session)
{
	struct list_node *node;

	while ((node = list_first(&session->done)) != NULL) {
		struct native_request *request = list_entry(node, struct native_request, done_node);
		uint8_t *message = session->service->message;

		if (clan_send(session->conn, CLAN_BULK, NATIVE_REPLY, message,
			    gmb_request_answer(request, message)) != 0) {
			/* the ring is full; or the connection is lost, which an event will
			 * report */
			return false;
		}
		session->base.progress_ns = ring_batch_ns(session->base.engine->ring);
		session->has_sent = true;
		gmb_request_count(request);
		gmb_request_replied(request);
		native_request_end(request);
	}
	return true;
}
