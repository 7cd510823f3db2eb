// SPDX-License-Identifier: Apache-2.0
/*
 * State of a session in transmission for the process that takes it over: struct nbd_wire_state, the
 * received bytes of the next requests, and the TLS state (docs/protocol/upgrade.md). Only a
 * connection whose records the kernel encrypts has TLS state to hand over.
 *
 * Invariant: nbd_session_hand_over() is called only at SESSION_RESTS. So no reply is in flight, and
 * at most one request has begun: one whose payload is incomplete. Called by the engine during an
 * upgrade, in both processes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/handover.h"
#include "nbd/server/session.h"
#include "tls/layer.h"

enum nbd_state_flag {
	NBD_STATE_STRUCTURED = 1 << 0,
	NBD_STATE_EXTENDED = 1 << 1, /* only together with NBD_STATE_STRUCTURED */
	/* base:allocation is selected with the ID CONTEXT_ID_BASE_ALLOCATION */
	NBD_STATE_CONTEXT = 1 << 2,
	/* x-gmblock:size was negotiated; only together with NBD_STATE_STRUCTURED */
	NBD_STATE_SIZE = 1 << 3,
	NBD_STATE_TLS = 1 << 4, /* the TLS state follows the received bytes */
	/* struct nbd_wire_begun follows the received bytes, before TLS */
	NBD_STATE_BEGUN = 1 << 5,
	NBD_STATE_FLAGS = (1 << 6) - 1,
};

struct nbd_wire_state {
	struct be32 flags;
	struct be32 alive_ms; /* interval of signs of life that the peer requested, or 0 */
	/* number of received bytes that follow; the bytes in session_record.later come after
	 * them */
	struct be32 received_bytes;
} __attribute__((packed));

/* The request in progress: its header comes first in the received bytes. */
struct nbd_wire_begun {
	/* payload bytes already stored, which are not in the received bytes */
	struct be64 taken_bytes;
	struct be32 error; /* NBD error of a failed request, or 0 */
} __attribute__((packed));

_Static_assert(sizeof(struct nbd_wire_state) + RX_SMALL_BYTES + sizeof(struct nbd_wire_begun) +
			       TLS_HANDOVER_BYTES_MAX <=
		       ENGINE_HANDOVER_BYTES_MAX,
	"the state of an idle session fits");

bool nbd_session_can_hand_over(const struct session *base)
{
	const struct nbd_session *session = (const struct nbd_session *)base;

	return !nbd_session_has_tls(session) || tls_layer_can_hand_over(&session->stream);
}

void nbd_session_pause(struct session *base)
{
	struct nbd_session *session = nbd_session_of(base);

	receive_pause(session);
	/* The request of x-gmblock:size is answered now and not handed over, because the peer sends
	 * it again to the next process. */
	if (session->size_asked) {
		session->size_due = true;
		session_mark_dirty(base);
	}
}

/* Returns the request whose payload is incomplete, or NULL. */
static const struct nbd_request *begun(const struct nbd_session *session)
{
	return session->rx_request != NULL ? session->rx_request : session->rx_discard_request;
}

/* Returns whether no request is in flight, except possibly the one whose payload has not completely
 * arrived. All payload that has arrived must be stored. */
static bool has_only_begun(const struct nbd_session *session)
{
	const struct nbd_request *request = begun(session);
	uint32_t count = 0;

	list_for_each(node, &session->requests)
	{
		count++;
	}
	return request == NULL
		       ? count == 0
		       : count == 1 && (!request->started || path_write_rests(&request->path));
}

enum session_rest nbd_session_rest(struct session *base)
{
	struct nbd_session *session = nbd_session_of(base);

	/* While the TLS layer changes its keys, the stream is not idle. The session does not take
	 * part in the change; the stream calls session->stream.idle when it is complete. */
	if (session->send_op.in_flight ||
		(!session->recv_op.in_flight && !stream_is_idle(&session->stream))) {
		return SESSION_WAITS_FOR_PEER;
	}
	return session->recv_op.in_flight || session->size_asked || session->alive_due ||
			       !has_only_begun(session)
		       ? SESSION_IS_BUSY
		       : SESSION_RESTS;
}

/* Describes the request whose payload is incomplete. Its header is handed over with the received
 * bytes. */
static struct nbd_wire_begun begun_state(const struct nbd_session *session)
{
	const struct nbd_request *request = begun(session);
	uint64_t left = session->rx_discard_left;
	uint32_t error = NBD_SUCCESS;

	/* a request that was handed over to this process and waits to start */
	if (request == NULL) {
		return (struct nbd_wire_begun){ be64_make(session->told->taken_bytes),
			be32_make(session->told->error) };
	}
	if (request->started && request->path.error != 0) {
		error = request_disk_error(request);
	} else if (request == session->rx_discard_request) {
		error = request->error;
	}
	if (request == session->rx_request) {
		left = session->rx_payload_left +
		       (session->rx_stream != NULL ? session->rx_stream_got : 0);
	}
	return (struct nbd_wire_begun){ be64_make(request->length - left), be32_make(error) };
}

/* Collects the bytes that were received and not parsed, as pieces that follow the header of the
 * request in progress. Returns their total. */
static uint32_t received_pieces(const struct nbd_session *session,
	struct session_piece pieces[ENGINE_HANDOVER_LATER_PIECES])
{
	uint32_t bytes = 0;

	_Static_assert((int)ENGINE_HANDOVER_LATER_PIECES >= 2,
		"the session hands over up to two pieces: the payload being received, and the "
		"bytes after it");
	_Static_assert((int)ARENA_BLOCK_BYTES_MAX + (int)RX_LARGE_BYTES + (int)RX_SMALL_BYTES <=
			       (int)ENGINE_HANDOVER_LATER_BYTES_MAX,
		"the pieces of one session fit into the handover message");
	if (session->rx_stream != NULL) {
		pieces[0].bytes = mem_cpu_read(session->rx_stream->memory);
		pieces[0].count = session->rx_stream_got;
	}
	pieces[1].bytes = session->rx_data + session->rx_start;
	pieces[1].count = session->rx_end - session->rx_start;
	for (int i = 0; i < ENGINE_HANDOVER_LATER_PIECES; i++) {
		bytes += pieces[i].count;
	}
	return bytes;
}

static void nbd_handover_put(uint8_t **at, const void *bytes, uint32_t count)
{
	memcpy(*at, bytes, count);
	*at += count;
}

void nbd_session_hand_over(struct session *base, uint8_t *bytes, struct session_record *record)
{
	struct nbd_session *session = nbd_session_of(base);
	struct session_piece *pieces = record->later;
	uint32_t received = received_pieces(session, pieces);
	bool has_begun = begun(session) != NULL || session->told != NULL;
	uint32_t flags = (nbd_session_has_tls(session) ? NBD_STATE_TLS : 0U) |
			 (has_begun ? NBD_STATE_BEGUN : 0U) |
			 (session->structured ? NBD_STATE_STRUCTURED : 0U) |
			 (session->extended ? NBD_STATE_EXTENDED : 0U) |
			 (session->context_selected ? NBD_STATE_CONTEXT : 0U) |
			 (session->says_size ? NBD_STATE_SIZE : 0U);
	uint8_t *at = bytes + sizeof(struct nbd_wire_state);
	uint8_t *head = at;
	struct nbd_wire_state wire = {
		.flags = be32_make(flags),
		.alive_ms = be32_make((uint32_t)(session->alive_ns / 1000000)),
	};

	GMB_ASSERT(nbd_session_rest(base) == SESSION_RESTS);
	if (begun(session) != NULL) {
		at += request_head_write(begun(session), at);
	}
	if ((uint32_t)(at - head) + received <= RX_SMALL_BYTES) {
		for (int i = 0; i < ENGINE_HANDOVER_LATER_PIECES; i++) {
			if (pieces[i].count > 0) {
				nbd_handover_put(&at, pieces[i].bytes, pieces[i].count);
			}
			pieces[i].count = 0;
		}
	}
	wire.received_bytes = be32_make((uint32_t)(at - head));
	memcpy(bytes, &wire, sizeof(wire));
	if (has_begun) {
		struct nbd_wire_begun state = begun_state(session);

		nbd_handover_put(&at, &state, sizeof(state));
	}
	if (nbd_session_has_tls(session)) {
		at += tls_layer_hand_over(&session->stream, at);
	}
	record->byte_count = (uint32_t)(at - bytes);
	record->fd = session->stream.file.fd;
}

/* Returns whether the state is valid. *told_bytes: size of the record without TLS state. */
static bool nbd_handover_check(const struct nbd_wire_state *wire,
	const struct session_record *record, uint32_t *told_bytes)
{
	uint32_t flags = be32_get(wire->flags);
	uint32_t alive_ms = be32_get(wire->alive_ms);
	uint32_t received = be32_get(wire->received_bytes);
	uint32_t later = record->later[0].count;
	uint32_t others = (uint32_t)(NBD_STATE_TLS | NBD_STATE_BEGUN);
	bool structured = (flags & NBD_STATE_STRUCTURED) != 0;
	bool has_begun = (flags & NBD_STATE_BEGUN) != 0;

	*told_bytes = (uint32_t)sizeof(*wire) + received +
		      (has_begun ? (uint32_t)sizeof(struct nbd_wire_begun) : 0);
	return (flags & ~(uint32_t)NBD_STATE_FLAGS) == 0 &&
	       (structured || ((flags & ~others) == 0 && alive_ms == 0)) &&
	       (alive_ms == 0 || (alive_ms >= ALIVE_MS_MIN && alive_ms <= ALIVE_MS_MAX)) &&
	       received <= RX_SMALL_BYTES && later <= ENGINE_HANDOVER_LATER_BYTES_MAX &&
	       (!has_begun ||
		       received + later >= request_head_bytes((flags & NBD_STATE_EXTENDED) != 0)) &&
	       ((flags & NBD_STATE_TLS) != 0 ? record->byte_count > *told_bytes
					     : record->byte_count == *told_bytes);
}

/* Stores the unparsed bytes that the previous process received, and the progress of the request
 * that it had begun. Returns false if there is no memory. */
static bool take_received(struct nbd_session *session, const struct session_record *record,
	uint32_t received, bool has_begun)
{
	const uint8_t *at = record->bytes + sizeof(struct nbd_wire_state);
	const struct session_piece *later = &record->later[0];
	struct nbd_wire_begun begun;

	if (has_begun) {
		memcpy(&begun, at + received, sizeof(begun));
		session->told = malloc(sizeof(*session->told));
		if (session->told == NULL) {
			return false;
		}
		*session->told = (struct told_payload){ .taken_bytes = be64_get(begun.taken_bytes),
			.error = be32_get(begun.error) };
	}
	if (!receive_told(session, received + later->count)) {
		return false;
	}
	memcpy(session->rx_data, at, received);
	if (later->count > 0) {
		memcpy(session->rx_data + received, later->bytes, later->count);
	}
	return true;
}

/* Ends the session without sending anything, because the connection still belongs to the process
 * that tried to hand it over. */
static void nbd_handover_refuse(struct nbd_session *session, const char *reason)
{
	session->base.handed_over = true;
	session_terminate(&session->base, reason);
}

/* Stores the record's export name and token for the next try, if the export is not available yet.
 * Returns false if there is no memory. */
static bool keep_choice(struct nbd_session *session, const struct session_record *record)
{
	struct told_choice *choice = malloc(
		sizeof(*choice) + (size_t)record->export_bytes + (size_t)record->token_bytes);

	if (choice == NULL) {
		return false;
	}
	choice->export_bytes = record->export_bytes;
	choice->token_bytes = record->token_bytes;
	memcpy(choice->bytes, record->export, record->export_bytes);
	if (record->token_bytes > 0) {
		memcpy(choice->bytes + record->export_bytes, record->token, record->token_bytes);
	}
	session->told_choice = choice;
	return true;
}

/* Selects the export of the session. Until the export is available the session stays in the
 * handshake state, with its time limit, and does not receive. If the session ends in this state,
 * the peer gets no message, because the process that hands it over might have to continue. */
static void choose_told(struct nbd_session *session, const struct session_record *record)
{
	int rc = session_adopt(&session->base, record);

	session->base.handed_over = rc == -EAGAIN;
	if (rc == -EAGAIN) {
		session_has_spoken(&session->base);
		rc = session->told_choice != NULL || keep_choice(session, record) ? 0 : -ENOMEM;
	} else if (rc == 0) {
		session_set_state(&session->base, SESSION_READY);
	}
	if (rc < 0) {
		nbd_handover_refuse(session, session_choose_text(&session->base, rc));
	}
}

void nbd_session_choose_again(struct nbd_session *session)
{
	const struct told_choice *choice = session->told_choice;
	const struct session_record record = {
		.export = (const char *)choice->bytes,
		.export_bytes = choice->export_bytes,
		.token = choice->bytes + choice->export_bytes,
		.token_bytes = choice->token_bytes,
	};

	choose_told(session, &record);
	receive_continue(session);
}

int nbd_session_adopt(
	void *service, const struct endpoint *endpoint, const struct session_record *record)
{
	struct nbd_session *session;
	struct nbd_wire_state wire;
	struct error error;
	uint32_t told_bytes;
	uint32_t flags;
	int rc;

	if (record->byte_count < sizeof(wire)) {
		return -EPROTO;
	}
	memcpy(&wire, record->bytes, sizeof(wire));
	if (!nbd_handover_check(&wire, record, &told_bytes)) {
		return -EPROTO;
	}
	session = nbd_session_create(service, endpoint);
	if (session == NULL) {
		return -ENOMEM;
	}
	flags = be32_get(wire.flags);
	session->structured = (flags & NBD_STATE_STRUCTURED) != 0;
	session->extended = (flags & NBD_STATE_EXTENDED) != 0;
	session->context_selected = (flags & NBD_STATE_CONTEXT) != 0;
	session->says_size = (flags & NBD_STATE_SIZE) != 0;
	session->alive_ns = be32_get(wire.alive_ms) * UINT64_C(1000000);
	session->head_bytes = request_head_bytes(session->extended);
	if (!take_received(session, record, be32_get(wire.received_bytes),
		    (flags & NBD_STATE_BEGUN) != 0)) {
		nbd_handover_refuse(session, session_choose_text(&session->base, -ENOMEM));
		return 0;
	}
	if ((flags & NBD_STATE_TLS) != 0) {
		rc = handshake_adopt_tls(session, record->bytes + told_bytes,
			record->byte_count - told_bytes, &error);
		if (rc < 0) {
			nbd_handover_refuse(session, error.text);
			return 0;
		}
	}
	if (handshake_needs_tls(session)) {
		nbd_handover_refuse(
			session, "the server address of this connection now requires TLS");
		return 0;
	}
	choose_told(session, record);
	return 0;
}
