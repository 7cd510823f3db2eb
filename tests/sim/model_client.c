// SPDX-License-Identifier: Apache-2.0
/* The model client in transmission, and its socket. See model_client.h. */
#include "model_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model_private.h"

enum {
	CHUNK_NONE = 0,
	CHUNK_DATA = 1,
	CHUNK_HOLE = 2,
	CHUNK_STATUS = 5,
	CHUNK_STATUS_EXT = 6,
	CHUNK_ERROR = 0x8001,
	CHUNK_ERROR_OFFSET = 0x8002,
	CHUNK_DONE = 1,
	PAYLOAD_MAX_DEFAULT = 64 << 20,
};

#define REQUEST_MAGIC	       UINT32_C(0x25609513)
#define REQUEST_MAGIC_EXTENDED UINT32_C(0x21e41c71)
#define SIMPLE_MAGIC	       UINT32_C(0x67446698)
#define STRUCTURED_MAGIC       UINT32_C(0x668e33ef)
#define EXTENDED_MAGIC	       UINT32_C(0x6e8a278c)

static void recv_start(struct model_client *client);
static void send_start(struct model_client *client);

/* --- requests ------------------------------------------------------------------------------- */

struct model_request *model_request(struct model_client *client)
{
	for (int i = 0; i < MODEL_INFLIGHT_MAX; i++) {
		struct model_request *request = &client->requests[i];

		if (!request->used) {
			memset(request, 0, sizeof(*request));
			request->cookie = sim_random();
			return request;
		}
	}
	return NULL;
}

void model_submit(struct model_client *client, struct model_request *request)
{
	uint8_t header[32];
	uint16_t flags = request->flags;
	bool has_payload = request->payload != NULL;

	GMB_ASSERT(client->state == MODEL_TRANSMISSION);
	GMB_ASSERT(!request->used);
	request->used = true;
	client->inflight++;
	if (client->extended && has_payload) {
		flags |= MODEL_PAYLOAD_LEN;
	}
	put32(header, client->extended ? REQUEST_MAGIC_EXTENDED : REQUEST_MAGIC);
	put16(header + 4, flags);
	put16(header + 6, request->command);
	put64(header + 8, request->cookie);
	put64(header + 16, request->offset);
	if (client->extended) {
		put64(header + 24, request->length);
		model_send(client, header, 32);
	} else {
		put32(header + 24, (uint32_t)request->length);
		model_send(client, header, 28);
	}
	if (has_payload && request->length > 0) {
		model_send(client, request->payload, (size_t)request->length);
	}
	free(request->payload);
	request->payload = NULL;
	if (request->command == MODEL_READ && request->length <= PAYLOAD_MAX_DEFAULT) {
		request->data = calloc(1, (size_t)request->length + 1);
		request->covered = calloc(1, (size_t)request->length + 1);
		GMB_ASSERT(request->data != NULL);
		GMB_ASSERT(request->covered != NULL);
	}
}

static void request_free(struct model_client *client, struct model_request *request)
{
	free(request->data);
	free(request->covered);
	request->data = NULL;
	request->covered = NULL;
	request->used = false;
	client->inflight--;
}

static struct model_request *find_request(struct model_client *client, uint64_t cookie)
{
	for (int i = 0; i < MODEL_INFLIGHT_MAX; i++) {
		if (client->requests[i].used && client->requests[i].cookie == cookie) {
			return &client->requests[i];
		}
	}
	model_fail("P69: a reply to the unknown cookie 0x%" PRIx64, cookie);
}

static void request_done(struct model_client *client, struct model_request *request)
{
	client->replies_total++;
	if (!request->has_error && request->command == MODEL_READ &&
		request->covered_bytes != request->length) {
		model_fail("P90: a read of %" PRIu64 " bytes got %" PRIu64, request->length,
			request->covered_bytes);
	}
	if (!request->has_error && request->command == MODEL_STATUS &&
		request->status_chunks != 1) {
		model_fail("P100: %u status chunks for one context", request->status_chunks);
	}
	client->ops->replied(client, request);
	request_free(client, request);
}

static void request_error(struct model_request *request, uint32_t error)
{
	switch (error) {
	case MODEL_EPERM:
	case MODEL_EIO:
	case MODEL_ENOMEM:
	case MODEL_EINVAL:
	case MODEL_ENOSPC:
	case MODEL_EOVERFLOW:
	case MODEL_ENOTSUP:
	case MODEL_ESHUTDOWN:
		break;
	default:
		model_fail("P118: error %u", error);
	}
	if (!request->has_error) {
		request->has_error = true;
		request->error = error;
	}
}

/* --- replies -------------------------------------------------------------------------------- */

static void content(
	struct model_request *request, uint64_t offset, const uint8_t *data, uint64_t len)
{
	uint64_t at = offset - request->offset;

	if (request->command != MODEL_READ) {
		model_fail("content for command %u", request->command);
	}
	if (len == 0 || offset < request->offset || at > request->length ||
		len > request->length - at) {
		model_fail(
			"P90: content at %" PRIu64 "+%" PRIu64 " outside the request", offset, len);
	}
	for (uint64_t i = 0; i < len; i += 1) {
		if (request->covered[at + i] != 0) {
			model_fail("P90: byte %" PRIu64 " came twice", offset + i);
		}
	}
	memset(request->covered + at, 1, (size_t)len);
	request->covered_bytes += len;
	request->content_chunks++;
	if ((request->flags & MODEL_DF) != 0 && request->content_chunks > 1) {
		model_fail("P93: more than one content chunk with DF");
	}
	if (data != NULL) {
		memcpy(request->data + at, data, (size_t)len);
	}
}

static size_t parse_simple(struct model_client *client, const uint8_t *p, size_t n)
{
	struct model_request *request;
	uint32_t error;
	size_t need = 16;

	if (n < need) {
		return 0;
	}
	if (client->extended) {
		model_fail("P110: a simple reply with extended headers");
	}
	error = get32(p + 4);
	request = find_request(client, get64(p + 8));
	if (client->structured && request->command == MODEL_READ) {
		model_fail("P88: a simple reply to READ");
	}
	if (error != 0) {
		request_error(request, error);
	} else if (request->command == MODEL_READ) {
		need += (size_t)request->length;
		if (n < need) {
			return 0;
		}
		if (request->length > 0) {
			content(request, request->offset, p + 16, request->length);
		}
	}
	request_done(client, request);
	return need;
}

static void parse_extents(struct model_client *client, struct model_request *request,
	const uint8_t *p, uint64_t len, bool extended)
{
	size_t head = extended ? 8 : 4;
	size_t entry = extended ? 16 : 8;
	uint64_t count;
	uint64_t sum = 0;

	if (request->command != MODEL_STATUS) {
		model_fail("a status chunk for command %u", request->command);
	}
	if (len < head + entry || (len - head) % entry != 0) {
		model_fail("a status chunk of %" PRIu64 " bytes", len);
	}
	count = (len - head) / entry;
	if (extended && get32(p + 4) != count) {
		model_fail("P114: the extent count is wrong");
	}
	if (!client->has_context || get32(p) != client->context_id) {
		model_fail("P100: status for an unselected context");
	}
	if ((request->flags & MODEL_REQ_ONE) != 0 && count != 1) {
		model_fail("P102: %" PRIu64 " extents with REQ_ONE", count);
	}
	request->status_chunks++;
	request->extent_count = 0;
	for (uint64_t i = 0; i < count; i++) {
		const uint8_t *at = p + head + i * entry;
		uint64_t length = extended ? get64(at) : get32(at);
		uint64_t flags = extended ? get64(at + 8) : get32(at + 4);

		if (length == 0) {
			model_fail("P100: an empty extent");
		}
		if ((flags & ~UINT64_C(3)) != 0) {
			model_fail("P105: extent flags 0x%" PRIx64, flags);
		}
		if (sum >= request->length) {
			model_fail("P101: an extent beyond the request");
		}
		sum += length;
		if (!client->plan.size_may_change && sum > client->size - request->offset) {
			model_fail("P101: an extent past the end of the export");
		}
		if (request->extent_count < MODEL_EXTENTS_MAX) {
			request->extents[request->extent_count++] =
				(struct model_extent){ .length = length, .flags = flags };
		}
	}
	if ((request->flags & MODEL_REQ_ONE) != 0 && sum > request->length) {
		model_fail("P102: an extent longer than the request with REQ_ONE");
	}
}

static void parse_error_chunk(
	struct model_request *request, uint16_t type, const uint8_t *p, uint64_t len)
{
	uint64_t fixed = type == CHUNK_ERROR_OFFSET ? 14 : 6;
	uint64_t offset;

	if (len < fixed || get16(p + 4) != len - fixed || get16(p + 4) > 4096) {
		model_fail("P92: an error chunk of %" PRIu64 " bytes", len);
	}
	if (get32(p) == 0) {
		model_fail("P92: an error chunk without an error");
	}
	if (type == CHUNK_ERROR_OFFSET) {
		offset = get64(p + 6 + get16(p + 4));
		if (offset < request->offset || offset - request->offset >= request->length) {
			model_fail("P92: error offset %" PRIu64 " outside the request", offset);
		}
	}
	request_error(request, get32(p));
}

static void parse_chunk(struct model_client *client, struct model_request *request, uint16_t type,
	const uint8_t *p, uint64_t len)
{
	switch (type) {
	case CHUNK_NONE:
		if (len != 0) {
			model_fail("P89: an empty chunk of %" PRIu64 " bytes", len);
		}
		break;
	case CHUNK_DATA:
		if (len < 9) {
			model_fail("P90: a data chunk of %" PRIu64 " bytes", len);
		}
		content(request, get64(p), p + 8, len - 8);
		break;
	case CHUNK_HOLE:
		if (len != 12 || (request->flags & MODEL_DF) != 0) {
			model_fail("P90, P93: a wrong hole chunk");
		}
		content(request, get64(p), NULL, get32(p + 8));
		break;
	case CHUNK_STATUS:
		if (client->extended) {
			model_fail("P114: a 32-bit status chunk with extended headers");
		}
		parse_extents(client, request, p, len, false);
		break;
	case CHUNK_STATUS_EXT:
		if (!client->extended) {
			model_fail("P114: a 64-bit status chunk without extended headers");
		}
		parse_extents(client, request, p, len, true);
		break;
	case CHUNK_ERROR:
	case CHUNK_ERROR_OFFSET:
		parse_error_chunk(request, type, p, len);
		break;
	default:
		model_fail("chunk type 0x%x", type);
	}
}

static size_t parse_structured(struct model_client *client, const uint8_t *p, size_t n)
{
	bool extended = get32(p) == EXTENDED_MAGIC;
	size_t head = extended ? 32 : 20;
	struct model_request *request;
	uint64_t len;

	if (extended != client->extended || (!client->structured && !extended)) {
		model_fail("P110: a reply of a kind that was not negotiated");
	}
	if (n < head) {
		return 0;
	}
	len = extended ? get64(p + 24) : get32(p + 16);
	request = find_request(client, get64(p + 8));
	if (extended && get64(p + 16) != request->offset) {
		model_fail("P110: the reply's offset is not the request's");
	}
	if (len > (uint64_t)client->payload_max + 64) {
		model_fail("P94: a chunk of %" PRIu64 " bytes", len);
	}
	if (n < head + len) {
		return 0;
	}
	if ((get16(p + 4) & ~CHUNK_DONE) != 0) {
		model_fail("reply flags 0x%x", get16(p + 4));
	}
	if (get16(p + 6) == CHUNK_NONE && (get16(p + 4) & CHUNK_DONE) == 0) {
		model_fail("P89: an empty chunk that is not the last");
	}
	parse_chunk(client, request, get16(p + 6), p + head, len);
	if ((get16(p + 4) & CHUNK_DONE) != 0) {
		request_done(client, request);
	}
	return head + (size_t)len;
}

/* What came of a reply's data before the stream ended in the middle of it. */
static void parse_cut_reply(struct model_client *client, const uint8_t *p, size_t n)
{
	size_t head = get32(p) == EXTENDED_MAGIC ? 32 : 20;

	if (get32(p) == SIMPLE_MAGIC) {
		if (n > 16) { /* a whole one was needed: it announced data */
			struct model_request *request = find_request(client, get64(p + 8));

			content(request, request->offset, p + 16, n - 16);
		}
	} else if (n > head + 8 && get16(p + 6) == CHUNK_DATA) {
		content(find_request(client, get64(p + 8)), get64(p + head), p + head + 8,
			n - head - 8);
	}
}

static size_t parse_reply(struct model_client *client, const uint8_t *p, size_t n)
{
	if (n < 4) {
		return 0;
	}
	switch (get32(p)) {
	case SIMPLE_MAGIC:
		return parse_simple(client, p, n);
	case STRUCTURED_MAGIC:
	case EXTENDED_MAGIC:
		return parse_structured(client, p, n);
	default:
		model_fail("bad reply magic 0x%x", get32(p));
	}
}

/* --- the socket ----------------------------------------------------------------------------- */

static void parse(struct model_client *client)
{
	bool was_clear = client->tls == NULL;
	size_t used = 0;

	while (used < client->in_len) {
		const uint8_t *p = client->in + used;
		size_t n = client->in_len - used;
		size_t step = client->state == MODEL_TRANSMISSION
				      ? parse_reply(client, p, n)
				      : model_handshake_parse(client, p, n);

		if (step == 0) {
			break;
		}
		used += step;
		if (was_clear && client->tls != NULL && used < client->in_len) {
			model_fail("P56: bytes in clear behind the answer to STARTTLS");
		}
	}
	memmove(client->in, client->in + used, client->in_len - used);
	client->in_len -= used;
}

void model_received(struct model_client *client, const uint8_t *bytes, size_t len)
{
	if (client->in_len + len > client->in_max) {
		client->in_max = MAX(client->in_max * 2, client->in_len + len);
		client->in = realloc(client->in, client->in_max);
		GMB_ASSERT(client->in != NULL);
	}
	memcpy(client->in + client->in_len, bytes, len);
	client->in_len += len;
	parse(client);
}

static void lose_requests(struct model_client *client)
{
	for (int i = 0; i < MODEL_INFLIGHT_MAX; i++) {
		if (client->requests[i].used) {
			client->ops->lost(client, &client->requests[i]);
			request_free(client, &client->requests[i]);
		}
	}
}

/* Tells the end once nothing of ours is in flight any more. */
static void check_closed(struct model_client *client)
{
	if (!client->ended || client->recv.in_flight || client->send.in_flight ||
		client->closed_told) {
		return;
	}
	client->closed_told = true;
	if (client->state == MODEL_TRANSMISSION && client->in_len >= 4) {
		parse_cut_reply(client, client->in, client->in_len);
	}
	client->state = MODEL_CLOSED;
	lose_requests(client);
	client->ops->closed(client);
}

static void stream_ended(struct model_client *client, int result)
{
	client->ended = true;
	if (client->send.in_flight) {
		ring_socket_shutdown(client->ring, client->file);
	}
	if (client->forgive) {
		return;
	}
	if (!client->disconnecting) {
		model_fail("client %u: the server closed the connection (%d), %u in flight",
			client->id, result, client->inflight);
	}
	if (client->inflight > 0) {
		model_fail("P80: the server closed with %u requests in flight", client->inflight);
	}
	if (client->in_len > 0) {
		model_fail("the server closed in the middle of a reply");
	}
	if (client->tls != NULL && model_tls_is_cut(client)) {
		model_fail("P55: the server closed without close_notify");
	}
}

static void recv_done(struct ring_op *op, int result)
{
	struct model_client *client = container_of(op, struct model_client, recv);

	if (result == -EINTR) {
		recv_start(client);
		return;
	}
	if (result == -ECANCELED && client->stalled) {
		return;
	}
	if (result <= 0) {
		stream_ended(client, result);
		check_closed(client);
		return;
	}
	if (client->tls != NULL) {
		model_tls_receive(client, client->chunk, (size_t)result);
	} else {
		model_received(client, client->chunk, (size_t)result);
	}
	client->ops->progress(client);
	recv_start(client);
}

/* How much to move now: a byte of those that drip, or all. */
static size_t drip(struct model_client *client, size_t bytes)
{
	if (client->drip_bytes == 0) {
		return bytes;
	}
	client->drip_bytes--;
	return MIN(bytes, (size_t)1);
}

static void recv_now(struct model_client *client)
{
	ring_recv(client->ring, &client->recv, client->file, client->chunk,
		drip(client, sizeof(client->chunk)), false, recv_done);
}

static void recv_pause_over(struct ring_op *op, int result)
{
	struct model_client *client = container_of(op, struct model_client, recv);

	if (client->ended) {
		check_closed(client);
	} else {
		recv_now(client);
	}
}

static void recv_start(struct model_client *client)
{
	if (client->stalled || client->ended || client->recv.in_flight) {
		return;
	}
	if (client->drip_bytes > 0) {
		ring_timer(client->ring, &client->recv, client->drip_ns, recv_pause_over);
	} else {
		recv_now(client);
	}
}

static void send_done(struct ring_op *op, int result)
{
	struct model_client *client = container_of(op, struct model_client, send);

	if (result < 0 && result != -EINTR) {
		/* What comes after this is told by the receiving side. */
		client->send_ended = true;
		if (client->ended) {
			check_closed(client);
		}
		return;
	}
	client->sending_at += result > 0 ? (size_t)result : 0;
	send_start(client);
	check_closed(client);
}

static void send_now(struct model_client *client)
{
	ring_send(client->ring, &client->send, client->file, client->sending + client->sending_at,
		drip(client, client->sending_len - client->sending_at), send_done);
}

static void send_pause_over(struct ring_op *op, int result)
{
	struct model_client *client = container_of(op, struct model_client, send);

	if (client->ended) {
		check_closed(client);
	} else {
		send_now(client);
	}
}

static void send_start(struct model_client *client)
{
	if (client->send.in_flight || client->ended || client->send_ended) {
		return;
	}
	if (client->sending_at == client->sending_len) {
		free(client->sending);
		client->sending = client->out;
		client->sending_len = client->out_len;
		client->sending_at = 0;
		client->out = NULL;
		client->out_len = 0;
		client->out_max = 0;
	}
	if (client->sending_at < client->sending_len && client->drip_bytes > 0) {
		ring_timer(client->ring, &client->send, client->drip_ns, send_pause_over);
	} else if (client->sending_at < client->sending_len) {
		send_now(client);
	} else if (client->half_closing) {
		client->half_closing = false;
		ring_socket_shutdown_send(client->ring, client->file);
	}
}

void model_half_close(struct model_client *client)
{
	client->disconnecting = true;
	if (client->tls != NULL) {
		model_tls_say_end(client);
	}
	client->half_closing = true;
	send_start(client);
}

void model_send(struct model_client *client, const void *bytes, size_t len)
{
	if (client->tls != NULL) {
		model_tls_send(client, bytes, len);
	} else {
		model_send_raw(client, bytes, len);
	}
}

void model_send_raw(struct model_client *client, const void *bytes, size_t len)
{
	if (client->out_len + len > client->out_max) {
		client->out_max = MAX(client->out_max * 2, client->out_len + len);
		client->out = realloc(client->out, client->out_max);
		GMB_ASSERT(client->out != NULL);
	}
	memcpy(client->out + client->out_len, bytes, len);
	client->out_len += len;
	send_start(client);
}

void model_stall(struct model_client *client, bool stalled)
{
	client->stalled = stalled;
	if (stalled && client->recv.in_flight) {
		ring_cancel(client->ring, &client->recv);
	} else if (!stalled) {
		recv_start(client);
	}
}

void model_drip(struct model_client *client, uint32_t bytes, uint64_t pause_ns)
{
	client->drip_bytes = bytes;
	client->drip_ns = pause_ns;
}

void model_disconnect(struct model_client *client)
{
	uint8_t header[32] = { 0 };

	client->disconnecting = true;
	put32(header, client->extended ? REQUEST_MAGIC_EXTENDED : REQUEST_MAGIC);
	put16(header + 6, MODEL_DISC);
	put64(header + 8, sim_random());
	model_send(client, header, client->extended ? 32 : 28);
}

void model_start(struct model_client *client, struct ring *ring, int fd,
	const struct model_plan *plan, const struct model_ops *ops, void *context)
{
	memset(client, 0, sizeof(*client));
	client->ring = ring;
	client->file = (struct ring_file){ .fd = fd, .slot = -1 };
	client->plan = *plan;
	client->ops = ops;
	client->context = context;
	client->payload_max = PAYLOAD_MAX_DEFAULT;
	client->block_min = 1;
	model_handshake_plan(client);
	recv_start(client);
}

void model_finish(struct model_client *client)
{
	GMB_ASSERT(!client->recv.in_flight);
	GMB_ASSERT(!client->send.in_flight);
	lose_requests(client);
	model_tls_finish(client);
	free(client->in);
	free(client->out);
	free(client->sending);
	client->in = NULL;
	client->out = NULL;
	client->sending = NULL;
}
