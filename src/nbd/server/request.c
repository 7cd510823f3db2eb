// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "nbd/server/session.h"

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
		if ((head->flags & NBD_CMD_FLAG_PAYLOAD_LEN) != 0) {
			head->payload_bytes = head->length;
		}
		return be32_get(wire.magic) == NBD_EXTENDED_REQUEST_MAGIC;
	}
	struct nbd_wire_request wire;

	memcpy(&wire, bytes, sizeof(wire));
	*head = (struct request_head){ .flags = be16_get(wire.flags),
		.type = be16_get(wire.type),
		.cookie = wire.cookie,
		.offset = be64_get(wire.offset),
		.length = be32_get(wire.length) };
	if (head->type == NBD_CMD_WRITE) {
		head->payload_bytes = head->length;
	}
	return be32_get(wire.magic) == NBD_REQUEST_MAGIC;
}

uint32_t request_head_write(const struct nbd_request *request, uint8_t *bytes)
{
	struct nbd_wire_extended_request extended = {
		.magic = be32_make(NBD_EXTENDED_REQUEST_MAGIC),
		.flags = be16_make(request->command_flags),
		.type = be16_make(request->command),
		.cookie = request->cookie,
		.offset = be64_make(request->offset),
		.length = be64_make(request->length),
	};
	struct nbd_wire_request wire = {
		.magic = be32_make(NBD_REQUEST_MAGIC),
		.flags = be16_make(request->command_flags),
		.type = be16_make(request->command),
		.cookie = request->cookie,
		.offset = be64_make(request->offset),
		.length = be32_make((uint32_t)request->length),
	};

	if (request->session->extended) {
		memcpy(bytes, &extended, sizeof(extended));
	} else {
		memcpy(bytes, &wire, sizeof(wire));
	}
	return request_head_bytes(request->session->extended);
}

/* Flags that each command defines. FUA is accepted on all commands (P72). */
static const uint16_t flags_defined[] = {
	[NBD_CMD_READ] = NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_DF,
	[NBD_CMD_WRITE] = NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_PAYLOAD_LEN,
	[NBD_CMD_DISC] = NBD_CMD_FLAG_FUA,
	[NBD_CMD_FLUSH] = NBD_CMD_FLAG_FUA,
	[NBD_CMD_TRIM] = NBD_CMD_FLAG_FUA,
	[NBD_CMD_CACHE] = NBD_CMD_FLAG_FUA,
	[NBD_CMD_WRITE_ZEROES] = NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO,
	[NBD_CMD_BLOCK_STATUS] = NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_REQ_ONE | NBD_CMD_FLAG_PAYLOAD_LEN,
};

/* Maps a command to a store operation; STORE_OP_COUNT if it is unknown. */
static enum store_op store_op(const struct request_head *head)
{
	static const enum store_op ops[] = {
		[NBD_CMD_READ] = STORE_READ,
		[NBD_CMD_WRITE] = STORE_WRITE,
		[NBD_CMD_DISC] = STORE_OP_COUNT,
		[NBD_CMD_FLUSH] = STORE_FLUSH,
		[NBD_CMD_TRIM] = STORE_TRIM,
		[NBD_CMD_CACHE] = STORE_CACHE,
		[NBD_CMD_WRITE_ZEROES] = STORE_ZERO,
		[NBD_CMD_BLOCK_STATUS] = STORE_EXTENTS,
	};

	return head->type < ARRAY_COUNT(ops) ? ops[head->type] : STORE_OP_COUNT;
}

static uint32_t nbd_request_store_flags(const struct request_head *head)
{
	if ((BIT(store_op(head)) & STORE_CHANGES) == 0) {
		return 0; /* FUA is accepted with every command */
	}
	return ((head->flags & NBD_CMD_FLAG_FUA) != 0 ? STORE_FUA : 0U) |
	       ((head->flags & NBD_CMD_FLAG_NO_HOLE) != 0 ? STORE_NO_HOLE : 0U) |
	       ((head->flags & NBD_CMD_FLAG_FAST_ZERO) != 0 ? STORE_FAST_ZERO : 0U);
}

bool request_may_move(struct nbd_session *session, const struct request_head *head)
{
	enum store_op op = store_op(head);

	return engine_request_may_move(&session->base, op,
		engine_request_bytes(&session->base, op, nbd_request_store_flags(head),
			head->offset, head->length));
}

uint32_t request_check(struct nbd_session *session, const struct request_head *head,
	struct path_request *path, const char **text)
{
	uint32_t undefined = (session->structured ? 0U : (uint32_t)NBD_CMD_FLAG_DF) |
			     (session->extended ? 0U : (uint32_t)NBD_CMD_FLAG_PAYLOAD_LEN);
	int code;

	if (store_op(head) == STORE_OP_COUNT) {
		*text = "unknown command";
		return NBD_EINVAL;
	}
	if ((head->flags & ~(flags_defined[head->type] & ~undefined)) != 0) {
		*text = "a flag is not defined for this command";
		return NBD_EINVAL;
	}
	if (head->type == NBD_CMD_WRITE && session->extended &&
		(head->flags & NBD_CMD_FLAG_PAYLOAD_LEN) == 0) {
		*text = "a write without the payload flag has no data to write";
		return NBD_EINVAL;
	}
	if (head->type == NBD_CMD_BLOCK_STATUS && !session->context_selected) {
		*text = "no metadata context was selected";
		return NBD_EINVAL;
	}
	path->op = store_op(head);
	path->flags = nbd_request_store_flags(head);
	path->extent_max = (head->flags & NBD_CMD_FLAG_REQ_ONE) != 0 ? 1 : PATH_EXTENTS_MAX;
	code = session_admit(&session->base, path, text);
	if (code == 0 && (head->flags & NBD_CMD_FLAG_DF) != 0 && head->length > HELD_BYTES_MAX) {
		*text = "the read is longer than one chunk of a reply can be";
		code = -EOVERFLOW;
	}
	if (code == 0) {
		return NBD_SUCCESS;
	}
	/* EOVERFLOW exists only in structured replies (P95, P118). */
	return code == -EOVERFLOW && !session->structured ? (uint32_t)NBD_EINVAL
							  : nbd_error_from_errno(code);
}

uint32_t request_check_status_payload(const struct nbd_session *session, const uint8_t *payload,
	uint64_t payload_bytes, struct request_head *head, const char **text)
{
	struct be64 effect;
	struct be32 id;
	uint64_t id_count = (payload_bytes - sizeof(effect)) / sizeof(id);

	if (payload_bytes < sizeof(effect) + sizeof(id) ||
		(payload_bytes - sizeof(effect)) % sizeof(id) != 0) {
		*text = "the payload of the block status request does not have 8 + 4 n bytes";
		return NBD_EINVAL;
	}
	/* There is one context, so a payload without unknown or repeated ids has exactly one id. */
	memcpy(&id, payload + sizeof(effect), sizeof(id));
	if (id_count != 1 || !session->context_selected ||
		be32_get(id) != CONTEXT_ID_BASE_ALLOCATION) {
		*text = "a context ID is unknown or given twice";
		return NBD_EINVAL;
	}
	memcpy(&effect, payload, sizeof(effect));
	head->length = be64_get(effect);
	return NBD_SUCCESS;
}

uint32_t request_disk_error(const struct nbd_request *request)
{
	uint32_t error = nbd_error_from_errno(request->path.error);
	bool fast_zero = (request->command_flags & NBD_CMD_FLAG_FAST_ZERO) != 0;

	/* ENOTSUP without FAST_ZERO, and EOVERFLOW, would mislead this client, so it gets EIO (P84,
	 * P118). */
	return (error == NBD_ENOTSUP && !fast_zero) || error == NBD_EOVERFLOW ? (uint32_t)NBD_EIO
									      : error;
}

/* --- life cycle ------------------------------------------------------------------------------- */

/*
 * A reply is held back until all of its data is valid if
 *
 * - the export is configured to reply that way (overlap=off),
 * - it is a simple reply, which cannot report an error once it has begun, or
 * - it is one chunk for DF, unless the part size is configured: no other reply can be sent during
 *   that chunk, so all would wait for the disk with it.
 */
void request_plan(const struct nbd_session *session, struct request_head *head)
{
	bool reads = head->type == NBD_CMD_READ;
	bool wants_df = (head->flags & NBD_CMD_FLAG_DF) != 0;
	uint32_t overlap = session->base.path_export->overlap;

	head->one_piece = reads && (!session->structured || wants_df);
	head->whole = reads && head->length <= HELD_BYTES_MAX &&
		      (overlap == PATH_OVERLAP_OFF || !session->structured ||
			      (wants_df && overlap == PATH_OVERLAP_AUTO));
	head->window_bytes = head->whole ? head->length : (uint64_t)PATH_WINDOW_BYTES;
}

struct nbd_request *request_begin(struct nbd_session *session, const struct request_head *head)
{
	struct nbd_service *service = session->service;
	struct list_node *node = list_pop_front(&service->requests_free);
	struct nbd_request *request;

	if (node != NULL) {
		request = list_entry(node, struct nbd_request, session_node);
	} else {
		/* engine_request_may() has checked the limit. */
		GMB_ASSERT(service->request_count < service->request_max);
		request = &service->requests[service->request_count++];
	}
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
	request->one_piece = head->one_piece;
	list_init(&request->send_node);
	request->path.offset = head->offset;
	request->path.length = head->length;
	request->path.requester = session->base.peer.id;
	request->path.memory_rights = session->stream.memory_rights;
	request->path.placement = NULL;
	request->path.export = session->base.path_export;
	request->path.progress = request_progress;
	request->path.ascending = request->one_piece;
	request->path.whole = head->whole;
	request->path.client = &session->base.client;
	request->path.window_bytes = head->window_bytes;
	list_push_back(&session->requests, &request->session_node);
	reply_watch(session);
	engine_request_begin(&session->base);
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
		service_rx_put(session, request->rx);
	}
	list_remove(&request->session_node);
	list_remove(&request->send_node);
	if (session->exclusive == request) {
		session->exclusive = NULL;
	}
	engine_request_end(&session->base);
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
		return; /* nbd_session_join() ends the request when it is idle */
	}
	if (session->rx_request == request) {
		/* There is memory for more payload, or the request failed and the remaining payload
		 * is discarded. */
		receive_continue(session);
		if (session->rx_request == request || session->base.state == SESSION_TERMINATING) {
			return;
		}
	}
	if (session->rx_discard_request == request) {
		return; /* the request is answered after its payload is consumed */
	}
	if (path->op == STORE_READ || path_status(path) != PATH_PENDING) {
		request_sendable(request);
	}
}
