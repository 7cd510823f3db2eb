// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "nbd/session.h"

uint32_t request_head_bytes(bool extended)
{
	return extended ? (uint32_t)sizeof(struct nbd_wire_extended_request)
			: (uint32_t)sizeof(struct nbd_wire_request);
}

bool request_head_parse(const uint8_t *bytes, bool extended, struct request_head *head)
{
	if (extended) {
		struct nbd_wire_extended_request wire;

		memcpy(&wire, bytes, sizeof(wire));
		*head = (struct request_head){ .flags = be16_get(wire.flags),
			.type = be16_get(wire.type),
			.cookie = wire.cookie,
			.offset = be64_get(wire.offset),
			.length = be64_get(wire.length) };
		return be32_get(wire.magic) == NBD_EXTENDED_REQUEST_MAGIC;
	}
	struct nbd_wire_request wire;

	memcpy(&wire, bytes, sizeof(wire));
	*head = (struct request_head){ .flags = be16_get(wire.flags),
		.type = be16_get(wire.type),
		.cookie = wire.cookie,
		.offset = be64_get(wire.offset),
		.length = be32_get(wire.length) };
	return be32_get(wire.magic) == NBD_REQUEST_MAGIC;
}

uint64_t request_payload_bytes(const struct request_head *head, bool extended)
{
	if (extended) {
		return (head->flags & NBD_CMD_FLAG_PAYLOAD_LEN) != 0 ? head->length : 0;
	}
	return head->type == NBD_CMD_WRITE ? head->length : 0;
}

/* Flags that each command defines; FUA is accepted on all (P72). */
static uint32_t flags_allowed(const struct nbd_session *session, uint16_t type)
{
	uint32_t payload = session->extended ? NBD_CMD_FLAG_PAYLOAD_LEN : 0;

	switch (type) {
	case NBD_CMD_READ:
		return NBD_CMD_FLAG_FUA | (session->structured ? NBD_CMD_FLAG_DF : 0);
	case NBD_CMD_WRITE:
		return NBD_CMD_FLAG_FUA | payload;
	case NBD_CMD_WRITE_ZEROES:
		return NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO;
	case NBD_CMD_BLOCK_STATUS:
		return NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_REQ_ONE | payload;
	default:
		return NBD_CMD_FLAG_FUA;
	}
}

static uint32_t check_range(const struct nbd_session *session, const struct request_head *head,
	uint32_t beyond, const char **text)
{
	if (!range_inside(head->offset, head->length, session->export_size)) {
		*text = "the range runs past the end of the export";
		return beyond;
	}
	return NBD_SUCCESS;
}

static uint32_t check_read(const struct nbd_session *session, const struct request_head *head,
	struct path_request *path, const char **text)
{
	uint32_t payload_max = session->service->engine->limits.payload_bytes_max;

	path->op = STORE_READ;
	if (head->length > payload_max ||
		((head->flags & NBD_CMD_FLAG_DF) != 0 && head->length > HELD_BYTES_MAX)) {
		*text = "the read is longer than this server answers in one reply";
		/* EOVERFLOW exists for structured replies only (P95, P118). */
		return session->structured ? NBD_EOVERFLOW : NBD_EINVAL;
	}
	return check_range(session, head, NBD_EINVAL, text);
}

static uint32_t check_modify(const struct nbd_session *session, const struct request_head *head,
	enum store_op op, struct path_request *path, const char **text)
{
	path->op = op;
	if ((session->base.rights & ENGINE_RIGHT_WRITE) == 0) {
		*text = "the export is read-only";
		return NBD_EPERM;
	}
	if ((head->flags & NBD_CMD_FLAG_FUA) != 0) {
		path->flags |= STORE_FUA;
	}
	if ((head->flags & NBD_CMD_FLAG_NO_HOLE) != 0) {
		path->flags |= STORE_NO_HOLE;
	}
	if ((head->flags & NBD_CMD_FLAG_FAST_ZERO) != 0) {
		path->flags |= STORE_FAST_ZERO;
	}
	return check_range(session, head, op == STORE_TRIM ? NBD_EINVAL : NBD_ENOSPC, text);
}

static uint32_t check_block_status(const struct nbd_session *session,
	const struct request_head *head, struct path_request *path, const char **text)
{
	path->op = STORE_EXTENTS;
	path->extent_max = (head->flags & NBD_CMD_FLAG_REQ_ONE) != 0 ? 1 : PATH_EXTENTS_MAX;
	if (!session->context_selected) {
		*text = "no metadata context was selected";
		return NBD_EINVAL;
	}
	if (head->length == 0) {
		*text = "block status of no bytes";
		return NBD_EINVAL;
	}
	return check_range(session, head, NBD_EINVAL, text);
}

uint32_t request_check(const struct nbd_session *session, const struct request_head *head,
	struct path_request *path, const char **text)
{
	path->flags = 0;
	path->extent_max = 0;
	if (head->type > NBD_CMD_BLOCK_STATUS) {
		*text = "the command is not known here";
		return NBD_EINVAL;
	}
	if ((head->flags & ~flags_allowed(session, head->type)) != 0) {
		*text = "a flag is not defined for this command";
		return NBD_EINVAL;
	}
	if (head->type == NBD_CMD_WRITE && session->extended &&
		(head->flags & NBD_CMD_FLAG_PAYLOAD_LEN) == 0) {
		*text = "a write without the payload flag has nothing to write";
		return NBD_EINVAL;
	}
	switch ((enum nbd_command)head->type) {
	case NBD_CMD_READ:
		return check_read(session, head, path, text);
	case NBD_CMD_WRITE:
		return check_modify(session, head, STORE_WRITE, path, text);
	case NBD_CMD_TRIM:
		return check_modify(session, head, STORE_TRIM, path, text);
	case NBD_CMD_WRITE_ZEROES:
		return check_modify(session, head, STORE_ZERO, path, text);
	case NBD_CMD_FLUSH:
		path->op = STORE_FLUSH;
		return NBD_SUCCESS;
	case NBD_CMD_CACHE:
		path->op = STORE_CACHE;
		return check_range(session, head, NBD_EINVAL, text);
	case NBD_CMD_BLOCK_STATUS:
		return check_block_status(session, head, path, text);
	case NBD_CMD_DISC:
	case NBD_CMD_RESIZE:
	default:
		*text = "the command is not known here";
		return NBD_EINVAL;
	}
}

uint32_t request_check_status_payload(const struct nbd_session *session, const uint8_t *payload,
	uint64_t payload_bytes, struct request_head *head, const char **text)
{
	struct be64 effect;
	struct be32 id;
	uint64_t id_count = (payload_bytes - sizeof(effect)) / sizeof(id);

	if (payload_bytes < sizeof(effect) + sizeof(id) ||
		(payload_bytes - sizeof(effect)) % sizeof(id) != 0) {
		*text = "the payload of block status is not 8 + 4 n bytes";
		return NBD_EINVAL;
	}
	/* One context exists, so one id is all that can be known and not repeated. */
	memcpy(&id, payload + sizeof(effect), sizeof(id));
	if (id_count != 1 || !session->context_selected ||
		be32_get(id) != CONTEXT_ID_BASE_ALLOCATION) {
		*text = "a context id is unknown or given twice";
		return NBD_EINVAL;
	}
	memcpy(&effect, payload, sizeof(effect));
	head->length = be64_get(effect);
	return NBD_SUCCESS;
}

/* --- life ---------------------------------------------------------------------------------- */

static bool must_be_one_piece(const struct nbd_session *session, const struct request_head *head)
{
	return head->type == NBD_CMD_READ &&
	       (!session->structured || (head->flags & NBD_CMD_FLAG_DF) != 0);
}

/*
 * A reply that begins only once all of it is there: because the export is asked to answer so;
 * because a simple reply has no way to tell of an error once it has begun; or because nothing else
 * can be sent while one chunk for DF is on its way, and it would wait for the disk with it, unless
 * somebody has chosen that by fixing the part size.
 */
static bool must_be_held(const struct nbd_session *session, const struct request_head *head)
{
	uint32_t overlap = session->base.path_export->overlap;

	if (head->type != NBD_CMD_READ || head->length > HELD_BYTES_MAX) {
		return false;
	}
	return overlap == PATH_OVERLAP_OFF || !session->structured ||
	       ((head->flags & NBD_CMD_FLAG_DF) != 0 && overlap == PATH_OVERLAP_AUTO);
}

uint64_t request_memory(const struct nbd_session *session, const struct request_head *head)
{
	if (head->type != NBD_CMD_READ && head->type != NBD_CMD_WRITE) {
		return 0;
	}
	return must_be_held(session, head) ? head->length
					   : MIN(head->length, (uint64_t)WINDOW_BYTES);
}

struct nbd_request *request_begin(struct nbd_session *session, const struct request_head *head)
{
	struct nbd_service *service = session->service;
	struct list_node *node = list_pop_front(&service->requests_free);
	struct nbd_request *request;

	GMB_ASSERT(node != NULL); /* engine_request_may() was asked */
	request = list_entry(node, struct nbd_request, session_node);
	request->session = session;
	request->cookie = head->cookie;
	request->offset = head->offset;
	request->length = head->length;
	request->command = head->type;
	request->command_flags = head->flags;
	request->error = NBD_SUCCESS;
	request->error_text = NULL;
	request->started = false;
	request->replying = false;
	request->done_owed = false;
	request->content_bytes = 0;
	request->rx = NULL;
	request->held_bytes = (uint32_t)request_memory(session, head);
	request->one_piece = must_be_one_piece(session, head);
	list_init(&request->send_node);
	request->path.offset = head->offset;
	request->path.length = head->length;
	request->path.memory_rights = stream_memory_rights(&session->stream);
	request->path.placement = NULL;
	request->path.export = session->base.path_export;
	request->path.progress = request_progress;
	request->path.ascending = request->one_piece;
	request->path.whole = must_be_held(session, head);
	request->path.window_bytes = request->held_bytes;
	list_push_back(&session->requests, &request->session_node);
	engine_request_begin(&session->base, request->held_bytes);
	return request;
}

void request_end(struct nbd_request *request)
{
	struct nbd_session *session = request->session;
	struct nbd_service *service = session->service;

	if (request->started) {
		path_finish(&request->path);
	}
	if (request->rx != NULL) {
		service_rx_put(service, request->rx);
	}
	list_remove(&request->session_node);
	list_remove(&request->send_node);
	if (session->exclusive == request) {
		session->exclusive = NULL;
	}
	engine_request_end(&session->base, request->held_bytes);
	list_push_front(&service->requests_free, &request->session_node);
}

void request_sendable(struct nbd_request *request)
{
	struct nbd_session *session = request->session;

	if (!request->replying && !list_is_linked(&request->send_node)) {
		list_push_back(&session->sendable, &request->send_node);
		session_mark_dirty(&session->base);
	}
}

void request_progress(struct path_request *path)
{
	struct nbd_request *request = container_of(path, struct nbd_request, path);
	struct nbd_session *session = request->session;

	if (session->base.state == SESSION_TERMINATING) {
		return; /* session_join() looks at the end of the batch */
	}
	if (session->rx_request == request) {
		/* Room for more payload, or a failure that makes the rest of it unwanted. */
		receive_continue(session);
		if (session->rx_request == request || session->base.state == SESSION_TERMINATING) {
			return;
		}
	}
	if (session->rx_discard_request == request) {
		return; /* answered once its payload is out of the way */
	}
	if (path->op == STORE_READ || path_status(path) != PATH_PENDING) {
		request_sendable(request);
	}
}
