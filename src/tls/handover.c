// SPDX-License-Identifier: Apache-2.0
/*
 * Handover of a TLS layer to another process (docs/protocol/upgrade.md). The other process gets the
 * socket, in which the kernel keeps the current keys and record numbers. It also gets a state: the
 * secrets from which the next keys are derived, and the identity of the peer. The other process
 * parses the state as hostile input, and verifies the peer with its current credentials.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "tls/kernel.h"
#include "tls/layer_private.h"

enum { FORM = 1, PROTOCOL_1_2 = 0x0303, PROTOCOL_1_3 = 0x0304 };

/* The state of a TLS layer in the format that is sent to another process. The encoded identity of
 * the peer follows; see tls_peer_tell(). */
struct wire_state {
	struct be16 form;
	struct be16 protocol;
	struct be32 cipher; /* an enum tls_cipher + 1 */
	struct be64 blocks_left;
	uint8_t receive_secret[TLS_SECRET_BYTES_MAX];
	uint8_t send_secret[TLS_SECRET_BYTES_MAX];
} __attribute__((packed));

static int tls_handover_malformed(struct error *error)
{
	return error_set(error, -EPROTO, "invalid TLS state from the other process");
}

bool tls_layer_can_hand_over(const struct stream *stream)
{
	const struct tls_layer *layer = stream->layer;

	return layer->kernel != NULL &&
	       sizeof(struct wire_state) + tls_peer_bytes(layer->identity) <=
		       TLS_HANDOVER_BYTES_MAX;
}

uint32_t tls_layer_hand_over(const struct stream *stream, uint8_t *bytes)
{
	const struct tls_layer *layer = stream->layer;
	struct tls_kernel_state state;
	struct wire_state wire;

	GMB_ASSERT(tls_layer_can_hand_over(stream));
	tls_kernel_hand_over(layer->kernel, &state);
	wire = (struct wire_state){
		.form = be16_make(FORM),
		.protocol =
			be16_make(state.keys.send.version == TLS_1_3 ? PROTOCOL_1_3 : PROTOCOL_1_2),
		.cipher = be32_make((uint32_t)state.keys.send.cipher + 1),
		.blocks_left = be64_make(state.blocks_left),
	};
	memcpy(wire.receive_secret, state.keys.receive.secret, sizeof(wire.receive_secret));
	memcpy(wire.send_secret, state.keys.send.secret, sizeof(wire.send_secret));
	memcpy(bytes, &wire, sizeof(wire));
	tls_keys_wipe(&state.keys);
	explicit_bzero(&wire, sizeof(wire));
	return (uint32_t)sizeof(wire) + tls_peer_tell(layer->identity, bytes + sizeof(wire));
}

static int take_kernel(
	struct tls_layer *layer, struct stream *stream, const uint8_t *bytes, struct error *error)
{
	enum tls_records records = tls_context_records(layer->context);
	struct tls_kernel_state state = { .blocks_left = 0 };
	struct wire_state wire;
	uint32_t cipher;
	int rc;

	memcpy(&wire, bytes, sizeof(wire));
	cipher = be32_get(wire.cipher);
	if (be16_get(wire.form) != FORM || cipher == 0 || cipher > TLS_CIPHER_COUNT ||
		(be16_get(wire.protocol) != PROTOCOL_1_2 &&
			be16_get(wire.protocol) != PROTOCOL_1_3)) {
		rc = tls_handover_malformed(error);
	} else {
		state.blocks_left = be64_get(wire.blocks_left);
		state.keys.send.cipher = (enum tls_cipher)(cipher - 1);
		state.keys.send.version =
			be16_get(wire.protocol) == PROTOCOL_1_3 ? TLS_1_3 : TLS_1_2;
		state.keys.receive = state.keys.send;
		memcpy(state.keys.receive.secret, wire.receive_secret, sizeof(wire.receive_secret));
		memcpy(state.keys.send.secret, wire.send_secret, sizeof(wire.send_secret));
		rc = tls_kernel_adopt(stream, tls_context_role(layer->context), records, &state,
			&layer->error, &layer->kernel);
		if (rc < 0) {
			*error = layer->error;
		}
		layer->facts = (struct tls_facts){
			.version = state.keys.send.version == TLS_1_3 ? "TLS 1.3" : "TLS 1.2",
			.cipher = tls_cipher_name(state.keys.send.cipher),
			.records = "kernel",
		};
	}
	tls_keys_wipe(&state.keys);
	explicit_bzero(&wire, sizeof(wire));
	return rc;
}

int tls_layer_adopt(const struct tls_layer_options *options, struct stream *stream,
	const uint8_t *bytes, uint32_t count, struct error *error)
{
	struct tls_layer *layer;
	int rc;

	if (count < sizeof(struct wire_state)) {
		return tls_handover_malformed(error);
	}
	rc = tls_layer_create(options, &layer);
	if (rc < 0) {
		return error_set(error, rc, "out of memory for TLS");
	}
	rc = tls_peer_take(options->context, bytes + sizeof(struct wire_state),
		count - (uint32_t)sizeof(struct wire_state), &layer->identity, error);
	rc = rc ?: take_kernel(layer, stream, bytes, error);
	if (rc < 0) {
		tls_layer_destroy(layer);
		return rc;
	}
	layer->stream = stream;
	layer->state = TLS_LAYER_OPEN;
	stream_adopt(stream, &tls_stream_ops, layer, MEM_SOCKET);
	return 0;
}
