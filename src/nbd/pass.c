// SPDX-License-Identifier: Apache-2.0
/*
 * What a process that takes over a session in transmission must know of it: struct nbd_wire_state,
 * what was received of the next requests, and the state of its TLS (docs/protocol/upgrade.md),
 * which only a connection whose records the kernel makes has.
 */
#include <errno.h>
#include <string.h>

#include "engine/pass.h"
#include "nbd/session.h"
#include "tls/layer.h"

enum nbd_state_flag {
	NBD_STATE_STRUCTURED = 1 << 0,
	NBD_STATE_EXTENDED = 1 << 1, /* with NBD_STATE_STRUCTURED */
	NBD_STATE_CONTEXT = 1 << 2, /* base:allocation is selected, as CONTEXT_ID_BASE_ALLOCATION */
	NBD_STATE_SIZE = 1 << 3,    /* x-gmblock:size was listed; with NBD_STATE_STRUCTURED */
	NBD_STATE_TLS = 1 << 4,	    /* the state of TLS follows what was received */
	NBD_STATE_FLAGS = (1 << 5) - 1,
};

struct nbd_wire_state {
	struct be32 flags;
	struct be32 alive_ms;	    /* 0, or how often the peer wants to hear that we live */
	struct be32 received_bytes; /* that follow */
} __attribute__((packed));

_Static_assert(sizeof(struct nbd_wire_state) + RX_SMALL_BYTES + TLS_PASS_BYTES_MAX <=
		       ENGINE_PASS_BYTES_MAX,
	"a session at rest can be told");

static struct nbd_session *of(struct session *base)
{
	return container_of(base, struct nbd_session, base);
}

static bool has_tls(const struct nbd_session *session)
{
	return session->stream.state == STREAM_LAYERED;
}

bool nbd_session_pause(struct session *base)
{
	struct nbd_session *session = of(base);

	if (has_tls(session) && !tls_layer_can_pass(&session->stream)) {
		return false;
	}
	receive_pause(session);
	/* Answered, and asked again of the next process, it need not be told. */
	if (session->size_asked) {
		session->size_due = true;
		session_mark_dirty(base);
	}
	return true;
}

enum session_rest nbd_session_rest(struct session *base)
{
	struct nbd_session *session = of(base);

	/* The stream says by itself that its key changes. */
	if (session->send_op.in_flight || (session->recv_op.in_flight && !receive_rests(session)) ||
		(!session->recv_op.in_flight && !stream_is_idle(&session->stream))) {
		return SESSION_WAITS_FOR_PEER;
	}
	return session->recv_op.in_flight || !receive_rests(session) || session->size_asked ||
			       !list_is_empty(&session->requests)
		       ? SESSION_IS_BUSY
		       : SESSION_RESTS;
}

uint32_t nbd_session_pass(struct session *base, uint8_t *bytes, int *fd_out)
{
	struct nbd_session *session = of(base);
	uint32_t received = session->rx_end - session->rx_start;
	uint32_t flags = (has_tls(session) ? NBD_STATE_TLS : 0U) |
			 (session->structured ? NBD_STATE_STRUCTURED : 0U) |
			 (session->extended ? NBD_STATE_EXTENDED : 0U) |
			 (session->context_selected ? NBD_STATE_CONTEXT : 0U) |
			 (session->says_size ? NBD_STATE_SIZE : 0U);
	struct nbd_wire_state wire = {
		.flags = be32_make(flags),
		.alive_ms = be32_make((uint32_t)(session->alive_ns / 1000000)),
		.received_bytes = be32_make(received),
	};

	GMB_ASSERT(nbd_session_rest(base) == SESSION_RESTS);
	memcpy(bytes, &wire, sizeof(wire));
	memcpy(bytes + sizeof(wire), session->rx_data + session->rx_start, received);
	bytes += sizeof(wire) + received;
	*fd_out = session->stream.file.fd;
	return (uint32_t)sizeof(wire) + received +
	       (has_tls(session) ? tls_layer_pass(&session->stream, bytes) : 0);
}

/* True when a session can be in that state. */
static bool check(const struct nbd_wire_state *wire, uint32_t byte_count)
{
	uint32_t flags = be32_get(wire->flags);
	uint32_t alive_ms = be32_get(wire->alive_ms);
	uint32_t received = be32_get(wire->received_bytes);
	uint32_t told_bytes = (uint32_t)sizeof(*wire) + received;
	bool structured = (flags & NBD_STATE_STRUCTURED) != 0;
	bool has_tls = (flags & NBD_STATE_TLS) != 0;

	return (flags & ~(uint32_t)NBD_STATE_FLAGS) == 0 &&
	       (structured || ((flags & ~(uint32_t)NBD_STATE_TLS) == 0 && alive_ms == 0)) &&
	       (alive_ms == 0 || (alive_ms >= ALIVE_MS_MIN && alive_ms <= ALIVE_MS_MAX)) &&
	       received <= RX_SMALL_BYTES &&
	       (has_tls ? byte_count > told_bytes : byte_count == told_bytes);
}

/* Ends it without a word to its peer: the connection is the other process's for so long. */
static void refuse(struct nbd_session *session, const char *reason)
{
	session->base.passed = true;
	session_terminate(&session->base, reason);
}

int nbd_session_adopt(
	void *service, const struct endpoint *endpoint, const struct session_record *record)
{
	struct nbd_session *session;
	struct nbd_wire_state wire;
	struct error error;
	int rc;

	if (record->byte_count < sizeof(wire)) {
		return -EPROTO;
	}
	memcpy(&wire, record->bytes, sizeof(wire));
	if (!check(&wire, record->byte_count)) {
		return -EPROTO;
	}
	session = nbd_session_create(service, endpoint);
	if (session == NULL) {
		return -ENOMEM;
	}
	session->structured = (be32_get(wire.flags) & NBD_STATE_STRUCTURED) != 0;
	session->extended = (be32_get(wire.flags) & NBD_STATE_EXTENDED) != 0;
	session->context_selected = (be32_get(wire.flags) & NBD_STATE_CONTEXT) != 0;
	session->says_size = (be32_get(wire.flags) & NBD_STATE_SIZE) != 0;
	session->alive_ns = be32_get(wire.alive_ms) * UINT64_C(1000000);
	session->head_bytes = request_head_bytes(session->extended);
	session->rx_end = be32_get(wire.received_bytes);
	memcpy(session->rx_small, record->bytes + sizeof(wire), session->rx_end);
	if ((be32_get(wire.flags) & NBD_STATE_TLS) != 0) {
		uint32_t told_bytes = (uint32_t)sizeof(wire) + session->rx_end;

		rc = handshake_adopt_tls(session, record->bytes + told_bytes,
			record->byte_count - told_bytes, &error);
		if (rc < 0) {
			refuse(session, error.text);
			return 0;
		}
	}
	if (handshake_needs_tls(session)) {
		refuse(session, "its address demands TLS now");
		return 0;
	}
	rc = session_adopt(&session->base, record);
	if (rc < 0) {
		refuse(session, session_choose_text(rc));
		return 0;
	}
	session_set_state(&session->base, SESSION_READY);
	session->base.passing = true;
	return 0;
}
