// SPDX-License-Identifier: Apache-2.0
/*
 * What stands for src/tls/layer.c in fuzz_session_tls, chosen at link time, so that a session's way
 * to TLS is found without a cipher. The handshake is one byte of the client. After it, what the
 * server sends is changed byte for byte, so that what goes around the layer is seen.
 */
#include "fake_tls.h"

#include <errno.h>

#include "fuzz.h"
#include "tls/layer.h"

enum { SENT_BYTES_MAX = 3000 }; /* at once; the rest is sent again */

struct tls_layer {
	struct stream *stream;
	struct identity *identity;
	struct error error;
	struct ring_op in_op;
	struct ring_op out_op;
	struct ring_op *starting;
	struct ring_op *receiving;
	struct ring_op *sending;
	uint8_t hello;
	uint8_t out[SENT_BYTES_MAX];
};

int tls_layer_create(const struct tls_layer_options *options, struct tls_layer **layer_out)
{
	static const uint8_t principal[IDENTITY_DIGEST_BYTES];
	struct tls_layer *layer = calloc(1, sizeof(*layer));

	GMB_ASSERT(layer != NULL && options->context != NULL);
	layer->identity = identity_create(
		&(struct identity_facts){ .text = "nobody", .principal = principal });
	GMB_ASSERT(layer->identity != NULL);
	*layer_out = layer;
	return 0;
}

void tls_layer_destroy(struct tls_layer *layer)
{
	identity_put(layer->identity);
	free(layer);
}

struct identity *tls_layer_identity(const struct stream *stream)
{
	return ((struct tls_layer *)stream->layer)->identity;
}

const struct error *tls_layer_error(const struct stream *stream)
{
	return &((struct tls_layer *)stream->layer)->error;
}

struct tls_facts tls_layer_facts(const struct stream *stream)
{
	return (struct tls_facts){ .version = "TLS 1.3", .cipher = "none", .records = "user" };
}

static void complete(struct tls_layer *layer, struct ring_op **op, int result)
{
	struct ring_op *completed = *op;

	*op = NULL;
	ring_op_complete(layer->stream->ring, completed, result);
}

static void hello_done(struct ring_op *op, int result);

static void await_hello(struct tls_layer *layer)
{
	ring_recv(layer->stream->ring, &layer->in_op, layer->stream->file, &layer->hello,
		sizeof(layer->hello), false, hello_done);
}

static void hello_done(struct ring_op *op, int result)
{
	struct tls_layer *layer = container_of(op, struct tls_layer, in_op);

	if (result == -EINTR) {
		await_hello(layer);
		return;
	}
	if (result == 0) {
		result = -ECONNRESET;
	} else if (result > 0) {
		result = layer->hello == FAKE_TLS_HELLO ? 0 : -EPROTO;
	}
	if (result < 0) {
		error_set(&layer->error, result, "no hello");
	}
	complete(layer, &layer->starting, result);
}

static void layer_start(struct stream *stream, struct ring_op *op)
{
	struct tls_layer *layer = stream->layer;

	layer->stream = stream;
	layer->starting = op;
	await_hello(layer);
}

static void received(struct ring_op *op, int result)
{
	struct tls_layer *layer = container_of(op, struct tls_layer, in_op);

	complete(layer, &layer->receiving, result);
}

static void layer_receive(
	struct stream *stream, struct ring_op *op, struct msghdr *message, bool whole)
{
	struct tls_layer *layer = stream->layer;

	GMB_ASSERT(layer->receiving == NULL);
	layer->receiving = op;
	ring_recvmsg(stream->ring, &layer->in_op, stream->file, message, whole, received);
}

static void sent(struct ring_op *op, int result)
{
	struct tls_layer *layer = container_of(op, struct tls_layer, out_op);

	complete(layer, &layer->sending, result);
}

static void layer_send(struct stream *stream, struct ring_op *op, const struct msghdr *message)
{
	struct tls_layer *layer = stream->layer;
	size_t bytes = 0;

	GMB_ASSERT(layer->sending == NULL);
	layer->sending = op;
	for (size_t i = 0; i < message->msg_iovlen; i++) {
		const struct iovec *iov = &message->msg_iov[i];

		for (size_t k = 0; k < iov->iov_len && bytes < SENT_BYTES_MAX; k++) {
			layer->out[bytes++] = ((const uint8_t *)iov->iov_base)[k] ^ FAKE_TLS_KEY;
		}
	}
	ring_send(stream->ring, &layer->out_op, stream->file, layer->out, bytes, sent);
}

static ssize_t layer_receive_now(struct stream *stream, struct msghdr *message)
{
	return -EAGAIN;
}

static ssize_t layer_send_now(struct stream *stream, const struct msghdr *message)
{
	return -EAGAIN;
}

static bool layer_flush(struct stream *stream, struct ring_op *op, ring_done_fn *done)
{
	return false; /* layer_send_now() takes nothing */
}

static void layer_cancel(struct stream *stream, struct ring_op *op)
{
	struct tls_layer *layer = stream->layer;

	GMB_ASSERT(op == layer->receiving);
	ring_cancel(stream->ring, &layer->in_op);
}

static void layer_shutdown(struct stream *stream)
{
	GMB_UNUSED(stream); /* it waits for the socket only */
}

static void layer_shutdown_send(struct stream *stream)
{
	ring_socket_shutdown_send(stream->ring, stream->file);
}

static bool layer_is_idle(const struct stream *stream)
{
	const struct tls_layer *layer = stream->layer;

	return !layer->in_op.in_flight && !layer->out_op.in_flight;
}

static void layer_close(struct stream *stream)
{
	tls_layer_destroy(stream->layer);
}

const struct stream_ops tls_stream_ops = {
	.name = "fake",
	.memory_rights = MEM_CPU,
	.start = layer_start,
	.receive = layer_receive,
	.send = layer_send,
	.receive_now = layer_receive_now,
	.send_now = layer_send_now,
	.flush = layer_flush,
	.cancel = layer_cancel,
	.shutdown = layer_shutdown,
	.shutdown_send = layer_shutdown_send,
	.is_idle = layer_is_idle,
	.close = layer_close,
};
