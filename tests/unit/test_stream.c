// SPDX-License-Identifier: Apache-2.0
/*
 * The byte stream, plain and with a layer on top: a toy record layer (length, then bytes that are
 * not those of the caller) with a handshake, part of it on a worker thread; and TLS. Runs on the
 * real ring with socket pairs and, as another program, on the simulated one with partial transfers
 * and interruptions.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "stream/stream.h"
#include "tls_world.h"
#include "unit.h"
#ifdef TEST_ON_SIM
#include "sim/sim.h"
#endif

enum { RECORD_BYTES_MAX = 500, HEADER_BYTES = 2, DATA_BYTES = 300000, HELLO = 0x42 };

/* --- the toy layer -------------------------------------------------------------------------- */

struct toy {
	struct stream *stream;
	struct ring_op in_op;
	struct ring_op out_op;
	struct ring_op work_op;
	struct ring_op *starting;
	struct ring_op *sending;
	struct ring_op *receiving;
	struct msghdr *into;
	bool whole;
	size_t got;   /* of the receive */
	size_t taken; /* bytes of the message in the record that goes out */
	size_t out_at;
	size_t out_bytes;
	size_t in_bytes; /* of the record, header included */
	size_t plain_at; /* in a whole record: what was handed out, header included */
	bool refuses;
	bool says_farewell;
	int *freed;
	uint8_t in[HEADER_BYTES + RECORD_BYTES_MAX];
	uint8_t out[HEADER_BYTES + RECORD_BYTES_MAX];
};

static size_t record_bytes(const struct toy *toy)
{
	return HEADER_BYTES + ((size_t)toy->in[0] << 8 | toy->in[1]);
}

static void out_done(struct ring_op *op, int result);
static void in_done(struct ring_op *op, int result);

static void push_out(struct toy *toy)
{
	ring_send(toy->stream->ring, &toy->out_op, toy->stream->file, toy->out + toy->out_at,
		toy->out_bytes - toy->out_at, out_done);
}

static void complete(struct toy *toy, struct ring_op **op, int result)
{
	struct ring_op *completed = *op;

	*op = NULL;
	ring_op_complete(toy->stream->ring, completed, result);
}

static void pull_in(struct toy *toy)
{
	size_t want = toy->in_bytes < HEADER_BYTES ? HEADER_BYTES : record_bytes(toy);

	ring_recv(toy->stream->ring, &toy->in_op, toy->stream->file, toy->in + toy->in_bytes,
		want - toy->in_bytes, false, in_done);
}

/* An empty record, which nobody waits for. */
static void farewell_done(struct ring_op *op, int result)
{
	struct toy *toy = container_of(op, struct toy, out_op);

	ring_socket_shutdown_send(toy->stream->ring, toy->stream->file);
	stream_became_idle(toy->stream);
}

static void out_done(struct ring_op *op, int result)
{
	struct toy *toy = container_of(op, struct toy, out_op);

	if (result > 0 || result == -EINTR) {
		toy->out_at += result > 0 ? (size_t)result : 0;
		if (toy->out_at < toy->out_bytes) {
			push_out(toy);
			return;
		}
		if (toy->starting != NULL) {
			pull_in(toy);
		} else {
			complete(toy, &toy->sending, (int)toy->taken);
		}
		return;
	}
	complete(toy, toy->starting != NULL ? &toy->starting : &toy->sending, result);
}

/* Hands out what is decoded. True: the receive has what it needs. */
static bool hand_out(struct toy *toy)
{
	size_t at = toy->got;

	for (size_t i = 0; i < toy->into->msg_iovlen; i++) {
		struct iovec *iov = &toy->into->msg_iov[i];
		size_t bytes;

		if (at >= iov->iov_len) {
			at -= iov->iov_len;
			continue;
		}
		bytes = MIN(iov->iov_len - at, toy->in_bytes - toy->plain_at);
		memcpy((uint8_t *)iov->iov_base + at, toy->in + toy->plain_at, bytes);
		toy->plain_at += bytes;
		toy->got += bytes;
		if (at + bytes < iov->iov_len) {
			return !toy->whole;
		}
		at = 0;
	}
	return true;
}

static void receive_more(struct toy *toy)
{
	if (toy->plain_at > 0) {
		if (hand_out(toy)) {
			if (toy->plain_at == toy->in_bytes) {
				toy->in_bytes = 0;
				toy->plain_at = 0;
			}
			complete(toy, &toy->receiving, (int)toy->got);
			return;
		}
		toy->in_bytes = 0;
		toy->plain_at = 0;
	}
	pull_in(toy);
}

static void in_done(struct ring_op *op, int result)
{
	struct toy *toy = container_of(op, struct toy, in_op);
	struct ring_op **waits = toy->starting != NULL ? &toy->starting : &toy->receiving;

	if (result <= 0 && result != -EINTR) {
		complete(toy, waits, toy->got > 0 ? (int)toy->got : result);
		return;
	}
	toy->in_bytes += result > 0 ? (size_t)result : 0;
	if (toy->in_bytes < HEADER_BYTES || toy->in_bytes < record_bytes(toy)) {
		pull_in(toy);
		return;
	}
	for (size_t i = HEADER_BYTES; i < toy->in_bytes; i++) {
		toy->in[i] ^= 0x5a;
	}
	if (toy->starting != NULL) {
		bool agreed = toy->in_bytes == HEADER_BYTES + 1 && toy->in[HEADER_BYTES] == HELLO;

		toy->in_bytes = 0;
		complete(toy, &toy->starting, agreed ? 0 : -EPROTO);
		return;
	}
	toy->plain_at = HEADER_BYTES;
	receive_more(toy);
}

static int work(struct ring_op *op)
{
	struct toy *toy = container_of(op, struct toy, work_op);

	toy->out[0] = 0;
	toy->out[1] = 1;
	toy->out[2] = (toy->refuses ? HELLO + 1 : HELLO) ^ 0x5a;
	return HEADER_BYTES + 1;
}

static void work_done(struct ring_op *op, int result)
{
	struct toy *toy = container_of(op, struct toy, work_op);

	toy->out_at = 0;
	toy->out_bytes = (size_t)result;
	push_out(toy);
}

static void toy_start(struct stream *stream, struct ring_op *op)
{
	struct toy *toy = stream->layer;

	toy->starting = op;
	ring_call(stream->ring, &toy->work_op, work, work_done);
}

static void toy_receive(
	struct stream *stream, struct ring_op *op, struct msghdr *message, bool whole)
{
	struct toy *toy = stream->layer;

	assert_null(toy->receiving);
	toy->receiving = op;
	toy->into = message;
	toy->whole = whole;
	toy->got = 0;
	receive_more(toy);
}

static void toy_send(struct stream *stream, struct ring_op *op, const struct msghdr *message)
{
	struct toy *toy = stream->layer;

	assert_null(toy->sending);
	toy->sending = op;
	toy->taken = 0;
	for (size_t i = 0; i < message->msg_iovlen && toy->taken < RECORD_BYTES_MAX; i++) {
		const struct iovec *iov = &message->msg_iov[i];
		size_t bytes = MIN(iov->iov_len, RECORD_BYTES_MAX - toy->taken);

		for (size_t k = 0; k < bytes; k++) {
			toy->out[HEADER_BYTES + toy->taken++] =
				((const uint8_t *)iov->iov_base)[k] ^ 0x5a;
		}
	}
	toy->out[0] = (uint8_t)(toy->taken >> 8);
	toy->out[1] = (uint8_t)toy->taken;
	toy->out_at = 0;
	toy->out_bytes = HEADER_BYTES + toy->taken;
	push_out(toy);
}

static ssize_t toy_receive_now(struct stream *stream, struct msghdr *message)
{
	return -EAGAIN;
}

static ssize_t toy_send_now(struct stream *stream, const struct msghdr *message)
{
	return -EAGAIN;
}

static bool toy_flush(struct stream *stream, struct ring_op *op, ring_done_fn *done)
{
	return false;
}

static void toy_cancel(struct stream *stream, struct ring_op *op)
{
	struct toy *toy = stream->layer;

	assert_ptr_equal(op, toy->receiving);
	ring_cancel(stream->ring, &toy->in_op);
}

static void toy_shutdown(struct stream *stream)
{
	GMB_UNUSED(stream); /* it waits for the socket and for workers only */
}

static void toy_shutdown_send(struct stream *stream)
{
	struct toy *toy = stream->layer;

	if (toy->says_farewell) {
		ring_send(stream->ring, &toy->out_op, stream->file, "\0\0", HEADER_BYTES,
			farewell_done);
	} else {
		ring_socket_shutdown_send(stream->ring, stream->file);
	}
}

static bool toy_is_idle(const struct stream *stream)
{
	const struct toy *toy = stream->layer;

	return !toy->in_op.in_flight && !toy->out_op.in_flight && !toy->work_op.in_flight;
}

static void toy_close(struct stream *stream)
{
	struct toy *toy = stream->layer;

	(*toy->freed)++;
	free(toy);
}

static const struct stream_ops toy_ops = {
	.name = "toy",
	.memory_rights = MEM_CPU,
	.start = toy_start,
	.receive = toy_receive,
	.send = toy_send,
	.receive_now = toy_receive_now,
	.send_now = toy_send_now,
	.flush = toy_flush,
	.cancel = toy_cancel,
	.shutdown = toy_shutdown,
	.shutdown_send = toy_shutdown_send,
	.is_idle = toy_is_idle,
	.close = toy_close,
};

/* --- two ends ------------------------------------------------------------------------------- */

struct end {
	struct stream stream;
	struct ring_op recv_op;
	struct ring_op send_op;
	int recv_result;
	int send_result;
	int upgraded; /* 1: not yet */
	struct msghdr message;
	struct iovec iov[3];
	size_t sent;
	size_t got;
	uint8_t *data;
};

/* What is on top of the stream: nothing, the toy, TLS that proves by key or by certificate. */
enum layers { PLAIN, TOY, TLS_KEY, TLS_CERTIFICATE, LAYERS_COUNT };

struct pair {
	struct ring *ring;
	struct end ends[2];
	int freed;
	struct tls_world tls;
	bool has_tls;
};

static void begin(struct pair *pair)
{
	static const struct stream_keep_alive keep_alive = { 60, 15, 4 };
	struct error error;
	int fds[2];

	memset(pair, 0, sizeof(*pair));
#ifdef TEST_ON_SIM
	sim_start(&(struct sim_options){
		.seed = 7,
		.faults = { .partial_ppm = 300000,
			.interrupt_ppm = 50000,
			.send_short_ppm = 50000,
			.jitter = true },
	});
#endif
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &pair->ring, &error), 0);
#ifdef TEST_ON_SIM
	sim_socket_pair(&fds[0], &fds[1]);
#else
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
#endif
	for (int i = 0; i < 2; i++) {
		stream_open(&pair->ends[i].stream, pair->ring, fds[i], &keep_alive);
		pair->ends[i].data = malloc(DATA_BYTES);
		assert_non_null(pair->ends[i].data);
		memset(pair->ends[i].data, 0, DATA_BYTES);
	}
	for (uint32_t i = 0; i < DATA_BYTES; i++) {
		pair->ends[0].data[i] = (uint8_t)(i * 31 + (i >> 8));
	}
}

static void finish_closed(struct pair *pair)
{
	for (int i = 0; i < 2; i++) {
		free(pair->ends[i].data);
	}
	if (pair->has_tls) {
		tls_world_end(&pair->tls);
	}
	ring_destroy(pair->ring);
#ifdef TEST_ON_SIM
	sim_stop();
#endif
}

static void finish(struct pair *pair)
{
	for (int i = 0; i < 2; i++) {
		struct end *end = &pair->ends[i];

		stream_shutdown(&end->stream);
		while (end->recv_op.in_flight || end->send_op.in_flight ||
			!stream_is_idle(&end->stream)) {
			ring_turn(pair->ring, true);
		}
		stream_close(&end->stream);
		assert_int_equal(end->stream.state, STREAM_CLOSED);
		assert_true(stream_is_idle(&end->stream)); /* its layer is gone */
		stream_close(&end->stream);		   /* a closed one: no-op */
	}
	finish_closed(pair);
}

static void upgraded(struct stream *stream, int result)
{
	container_of(stream, struct end, stream)->upgraded = result;
}

static void put_on_toy(struct pair *pair, int i, bool refuses)
{
	struct toy *toy = calloc(1, sizeof(*toy));

	assert_non_null(toy);
	toy->stream = &pair->ends[i].stream;
	toy->freed = &pair->freed;
	toy->refuses = refuses && i == 1;
	stream_upgrade(&pair->ends[i].stream, &toy_ops, toy, upgraded);
}

static void put_on(struct pair *pair, int i, enum layers layers)
{
	enum tls_proof proof = layers == TLS_KEY ? TLS_BY_KEY : TLS_BY_CERTIFICATE;

	pair->ends[i].upgraded = 1;
	if (layers == TOY) {
		put_on_toy(pair, i, false);
		return;
	}
	if (!pair->has_tls) {
		tls_world_begin(&pair->tls, 0);
		pair->has_tls = true;
	}
	tls_world_upgrade(&pair->tls, &pair->ends[i].stream,
		tls_world_context(&pair->tls, i == 0 ? TLS_SERVER : TLS_CLIENT, proof, NULL),
		upgraded);
}

static void await_upgrades(struct pair *pair)
{
	while (pair->ends[0].upgraded == 1 || pair->ends[1].upgraded == 1) {
		ring_turn(pair->ring, true);
	}
}

static void upgrade(struct pair *pair, enum layers layers)
{
	if (layers == PLAIN) {
		return;
	}
	for (int i = 0; i < 2; i++) {
		put_on(pair, i, layers);
		assert_int_equal(pair->ends[i].stream.state, STREAM_UPGRADING);
		assert_int_equal(pair->ends[i].upgraded, 1); /* never from inside the call */
	}
	await_upgrades(pair);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pair->ends[i].upgraded, 0);
		assert_int_equal(pair->ends[i].stream.state, STREAM_LAYERED);
		assert_int_equal(pair->ends[i].stream.memory_rights, MEM_CPU);
	}
}

static void recv_done(struct ring_op *op, int result)
{
	container_of(op, struct end, recv_op)->recv_result = result;
}

static void send_done(struct ring_op *op, int result)
{
	container_of(op, struct end, send_op)->send_result = result;
}

/* Three pieces of what is left, the first two short. */
static void lay_out(struct end *end, size_t at)
{
	size_t left = DATA_BYTES - at;
	size_t cuts[3] = { MIN(left, (size_t)7), 0, 0 };

	cuts[1] = MIN(left - cuts[0], (size_t)1000);
	cuts[2] = left - cuts[0] - cuts[1];
	for (int i = 0; i < 3; i++) {
		end->iov[i] = (struct iovec){ .iov_base = end->data + at, .iov_len = cuts[i] };
		at += cuts[i];
	}
	end->message = (struct msghdr){
		.msg_iov = end->iov,
		.msg_iovlen = cuts[2] > 0   ? 3
			      : cuts[1] > 0 ? 2
					    : 1,
	};
}

static void send_next(struct end *end)
{
	if (!end->send_op.in_flight && end->sent < DATA_BYTES) {
		end->sent += end->send_result > 0 ? (size_t)end->send_result : 0;
		end->send_result = 0;
		if (end->sent < DATA_BYTES) {
			lay_out(end, end->sent);
			stream_send(&end->stream, &end->send_op, &end->message, send_done);
		}
	}
}

/* Sends all data from one end to the other; way: how the other receives. */
static void carry(struct pair *pair, int way)
{
	struct end *from = &pair->ends[0];
	struct end *to = &pair->ends[1];

	while (to->got < DATA_BYTES) {
		send_next(from);
		if (!to->recv_op.in_flight) {
			assert_true(to->recv_result >= 0 || to->recv_result == -EINTR);
			to->got += to->recv_result > 0 ? (size_t)to->recv_result : 0;
			to->recv_result = 0;
			if (to->got == DATA_BYTES) {
				break;
			}
			if (way == 0) {
				lay_out(to, to->got);
				stream_receive_message(
					&to->stream, &to->recv_op, &to->message, false, recv_done);
			} else {
				stream_receive(&to->stream, &to->recv_op, to->data + to->got,
					MIN(DATA_BYTES - to->got, (size_t)4096), way == 2,
					recv_done);
			}
		}
		ring_turn(pair->ring, true);
	}
	assert_memory_equal(from->data, to->data, DATA_BYTES);
}

TEST(test_bytes_arrive_as_they_were_sent)
{
	for (int way = 0; way < 3; way++) {
		for (enum layers layers = PLAIN; layers < LAYERS_COUNT; layers++) {
			struct pair pair;

			begin(&pair);
			assert_int_equal(pair.ends[0].stream.memory_rights, MEM_SOCKET);
			upgrade(&pair, layers);
			carry(&pair, way);
			finish(&pair);
			assert_int_equal(pair.freed, layers == TOY ? 2 : 0);
		}
	}
}

TEST(test_a_whole_receive_waits_for_every_byte)
{
	for (enum layers layers = PLAIN; layers < LAYERS_COUNT; layers++) {
		struct pair pair;
		struct end *to = &pair.ends[1];

		begin(&pair);
		upgrade(&pair, layers);
		stream_receive(&to->stream, &to->recv_op, to->data, 3000, true, recv_done);
		while (to->recv_op.in_flight) {
			send_next(&pair.ends[0]);
			ring_turn(pair.ring, true);
		}
		assert_true(to->recv_result == 3000 || to->recv_result == -EINTR);
		finish(&pair);
	}
}

TEST(test_a_refused_upgrade_is_the_end)
{
	struct pair pair;

	begin(&pair);
	for (int i = 0; i < 2; i++) {
		pair.ends[i].upgraded = 1;
		put_on_toy(&pair, i, true);
	}
	await_upgrades(&pair);
	assert_int_equal(pair.ends[0].upgraded, -EPROTO);
	assert_int_equal(pair.ends[0].stream.state, STREAM_UPGRADING);
	finish(&pair);
	assert_int_equal(pair.freed, 2);
}

TEST(test_a_stream_may_close_while_it_is_upgraded)
{
	for (enum layers layers = TOY; layers < LAYERS_COUNT; layers++) {
		struct pair pair;

		begin(&pair);
		put_on(&pair, 0, layers);
		assert_false(stream_is_idle(&pair.ends[0].stream));
		finish(&pair); /* the other end never answers */
		assert_int_equal(pair.freed, layers == TOY ? 1 : 0);
		assert_true(pair.ends[0].upgraded <= 0);
	}
}

static void close_when_idle(struct stream *stream)
{
	stream_close(stream);
}

/* A layer may still have to say something when the owner has nothing in flight any more. */
TEST(test_the_owner_hears_when_a_layer_becomes_idle)
{
	struct pair pair;
	struct stream *stream = &pair.ends[0].stream;

	begin(&pair);
	upgrade(&pair, TOY);
	((struct toy *)stream->layer)->says_farewell = true;
	stream->idle = close_when_idle;
	stream_shutdown_send(stream);
	assert_false(stream_is_idle(stream));
	while (stream->state != STREAM_CLOSED) {
		ring_turn(pair.ring, true);
	}
	assert_int_equal(pair.freed, 1);
	stream_shutdown(&pair.ends[1].stream);
	stream_close(&pair.ends[1].stream);
	assert_int_equal(pair.freed, 2);
	finish_closed(&pair);
}

TEST(test_a_receive_can_be_cancelled_and_ends_with_the_stream)
{
	for (enum layers layers = PLAIN; layers < LAYERS_COUNT; layers++) {
		struct pair pair;
		struct end *to = &pair.ends[1];

		begin(&pair);
		upgrade(&pair, layers);
		stream_cancel(&to->stream, &to->recv_op); /* not in flight: nothing happens */
		stream_receive(&to->stream, &to->recv_op, to->data, 10, false, recv_done);
		stream_cancel(&to->stream, &to->recv_op);
		while (to->recv_op.in_flight) {
			ring_turn(pair.ring, true);
		}
		assert_true(to->recv_result == -ECANCELED || to->recv_result == -EINTR);
		stream_receive(&to->stream, &to->recv_op, to->data, 10, false, recv_done);
		stream_shutdown_send(&pair.ends[0].stream);
		while (to->recv_op.in_flight) {
			ring_turn(pair.ring, true);
		}
		assert_true(to->recv_result == 0 || to->recv_result == -EINTR);
		finish(&pair);
	}
}

#ifndef TEST_ON_SIM
TEST(test_the_peer_of_a_unix_socket_is_known)
{
	struct stream_credentials credentials = { 0 };
	struct pair pair;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	begin(&pair);
	assert_true(stream_peer_credentials(pair.ends[0].stream.file.fd, &credentials));
	assert_int_equal(credentials.pid, getpid());
	assert_int_equal(credentials.uid, getuid());
	assert_int_equal(credentials.gid, getgid());
	assert_false(stream_peer_credentials(fd, &credentials));
	close(fd);
	finish(&pair);
}
#endif

#ifndef TEST_ON_SIM
/* Returns the congestion control of a TCP connection from one loopback address to another, after
 * one end has become a stream. */
static void congestion_of(const char *from, const char *to, char *name_out, socklen_t bytes)
{
	static const struct stream_keep_alive keep_alive = { 60, 15, 4 };
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t address_bytes = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct stream stream;
	struct ring *ring;
	struct error error;

	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &ring, &error), 0);
	assert_int_equal(inet_pton(AF_INET, from, &address.sin_addr), 1);
	assert_int_equal(bind(client, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(inet_pton(AF_INET, to, &address.sin_addr), 1);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &address_bytes), 0);
	assert_int_equal(connect(client, (struct sockaddr *)&address, sizeof(address)), 0);
	stream_open(&stream, ring, client, &keep_alive);
	assert_int_equal(getsockopt(client, IPPROTO_TCP, TCP_CONGESTION, name_out, &bytes), 0);
	stream_close(&stream);
	close(listener);
	ring_destroy(ring);
}

/* Only a connection that never leaves the machine is not the system's to slow down. */
TEST(test_connections_within_the_machine_are_not_paced)
{
	enum { NAME_BYTES = 16 };
	char name[NAME_BYTES] = "";
	char usual[NAME_BYTES] = "";
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t bytes = sizeof(usual);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, usual, &bytes), 0);
	close(fd);
	congestion_of("127.0.0.1", "127.0.0.1", name, sizeof(name));
	assert_string_equal(name, "reno");
	congestion_of("127.0.0.1", "127.0.0.2", name, sizeof(name));
	assert_string_equal(name, usual);
}
#endif
