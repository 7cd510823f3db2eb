// SPDX-License-Identifier: Apache-2.0
#include "tls/kernel.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

enum {
	PARTS = 8, /* limit on the pieces of memory of one receive */
	CONTROL_BYTES = 128,
	RECORD_BYTES = 16384,
	BLOCK_BYTES = 16,
	RECORD_BLOCKS = 2, /* overhead per record, in AES blocks */
	KEY_UPDATE_BYTES = 5,
};

/* AES blocks under one key: 256 GiB. RFC 8446, 5.5, sets the limit at 2^24.5 full records, which
 * are 2^34.5 blocks. For ChaCha20 the limit is too high to matter. TLS 1.2 cannot change keys, so
 * there is no limit. A test builds this file with a smaller value. */
#ifndef TLS_KEY_BLOCKS_MAX
#define TLS_KEY_BLOCKS_MAX (UINT64_C(1) << 34)
#endif

/* A TLS record that is not data. Its type is in the control data of the message, both when it is
 * sent and when it is received. */
struct control_message {
	struct msghdr message;
	struct iovec iov;
	alignas(struct cmsghdr) char ancillary[CMSG_SPACE(1)];
};

struct tls_kernel {
	struct stream *stream;
	struct error *error;
	bool can_rekey;
	bool is_closed;	 /* close_notify was received */
	bool is_cut;	 /* the connection ended without close_notify */
	bool is_leaving; /* our close_notify follows the data being sent */
	bool is_stopped; /* the stream was shut down: any end is expected */
	int failed;	 /* a negative errno: the reason why receiving has stopped */

	/* Receiving. */
	struct ring_op receive_op;
	struct ring_op *receiver; /* operation with which the stream's user receives */
	struct msghdr *into;
	bool whole;
	bool is_control; /* the next record is not data */
	size_t got;
	struct msghdr rest;
	struct iovec parts[PARTS];
	struct tls_control control;
	struct control_message heard;
	uint8_t heard_bytes[CONTROL_BYTES];

	/* Sending. */
	struct ring_op send_op;
	struct ring_op *sender;
	/* message that is being sent, or that waits until a KeyUpdate is sent */
	const struct msghdr *from;
	bool is_update_due;
	uint64_t blocks_left;

	struct tls_keys keys; /* secrets for deriving the next keys; the current keys are wiped */
};

/* --- sending control messages ---------------------------------------------------------------- */

static const struct msghdr *control_make(
	struct control_message *control, enum tls_content content, uint8_t *bytes, size_t count)
{
	struct cmsghdr *header;

	control->iov = (struct iovec){ .iov_base = bytes, .iov_len = count };
	control->message = (struct msghdr){
		.msg_iov = &control->iov,
		.msg_iovlen = 1,
		.msg_control = control->ancillary,
		.msg_controllen = sizeof(control->ancillary),
	};
	memset(control->ancillary, 0, sizeof(control->ancillary));
	header = CMSG_FIRSTHDR(&control->message);
	*header = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(1),
		.cmsg_level = SOL_TLS,
		.cmsg_type = TLS_SET_RECORD_TYPE,
	};
	*CMSG_DATA(header) = (uint8_t)content;
	return &control->message;
}

/* Sends an alert, if the socket has room for it. Called only when no send is in flight. */
static void say_alert(struct tls_kernel *kernel, bool is_fatal, enum tls_alert alert)
{
	struct stream *stream = kernel->stream;
	uint8_t bytes[2] = { is_fatal ? 2 : 1, (uint8_t)alert };
	struct control_message control;

	(void)!ring_sendmsg_now(stream->ring, stream->file,
		control_make(&control, TLS_ALERT, bytes, sizeof(bytes)));
}

/* --- failing ---------------------------------------------------------------------------------- */

/* Ends both directions: operations in flight complete. */
static void tls_kernel_lose(struct tls_kernel *kernel, int err)
{
	if (kernel->failed == 0) {
		kernel->failed = err;
		ring_socket_shutdown(kernel->stream->ring, kernel->stream->file);
	}
}

static void tls_kernel_refuse(struct tls_kernel *kernel, int err, enum tls_alert alert)
{
	if (!kernel->send_op.in_flight && kernel->failed == 0) {
		say_alert(kernel, true, alert);
	}
	tls_kernel_lose(kernel, err);
}

/* Converts err, the result of a failed or ended receive, for the user of the stream. An error of a
 * record ends both directions. */
static int failure(struct tls_kernel *kernel, int err)
{
	switch (err) {
	case 0:
		kernel->is_cut |= kernel->failed == 0 && !kernel->is_stopped;
		return kernel->failed;
	case -EBADMSG:
	case -EMSGSIZE: /* the header of a record is invalid */
	case -EINVAL:
		tls_kernel_lose(kernel, error_set(kernel->error, -EBADMSG,
						"a TLS record cannot be authenticated: the record "
						"was changed in transit"));
		return kernel->failed;
	default:
		return err;
	}
}

/* --- changing keys ---------------------------------------------------------------------------- */

/* Wipes a key that the kernel now has. */
static void tls_kernel_forget(struct tls_key *key)
{
	explicit_bzero(key->key, sizeof(key->key));
	explicit_bzero(key->iv, sizeof(key->iv));
}

static int next_key(struct tls_kernel *kernel, struct tls_key *key, int direction)
{
	int rc = tls_key_next(key);

	if (rc == 0) {
		rc = tls_key_install(key, kernel->stream->file.fd, direction);
		tls_kernel_forget(key);
	}
	if (rc == -EBUSY) {
		return error_set(kernel->error, -EOPNOTSUPP,
			"the peer changed its key, which this kernel's TLS does not support: use "
			"records in user space (--tls-records=user)");
	}
	return rc == 0 ? 0
		       : error_set(kernel->error, rc, "the kernel rejected the next key: %s",
				 strerror(-rc));
}

static void tls_kernel_send_step(struct tls_kernel *kernel);

static uint64_t blocks_max(const struct tls_kernel *kernel)
{
	bool can = kernel->can_rekey && kernel->keys.send.version == TLS_1_3 &&
		   kernel->keys.send.cipher != TLS_CHACHA20;

	return can ? TLS_KEY_BLOCKS_MAX : UINT64_MAX;
}

static void update_sent(struct ring_op *op, int result)
{
	struct tls_kernel *kernel = container_of(op, struct tls_kernel, send_op);
	int rc = 0;

	if (result == KEY_UPDATE_BYTES) {
		rc = next_key(kernel, &kernel->keys.send, TLS_TX);
		kernel->is_update_due = false;
		kernel->blocks_left = blocks_max(kernel);
	} else if (result != -EINTR && result != -EAGAIN) {
		rc = result < 0 ? result : -EIO;
	}
	if (rc != 0) {
		/* The old key must not be used again, because the peer has discarded it. */
		tls_kernel_lose(kernel, rc);
	}
	tls_kernel_send_step(kernel);
	stream_became_idle(kernel->stream);
}

static void update_possible(struct ring_op *op, int result)
{
	update_sent(op, result < 0 ? result : -EAGAIN);
}

/* Sends a KeyUpdate. No ring operation is used, because in a restricted ring
 * (ring_options.is_restricted) it cannot carry the record type. */
static void say_update(struct tls_kernel *kernel)
{
	struct stream *stream = kernel->stream;
	/* The last byte is update_not_requested: the peer decides when to change its own key. */
	uint8_t bytes[KEY_UPDATE_BYTES] = { 24, 0, 0, 1, 0 };
	struct control_message control;
	ssize_t result = ring_sendmsg_now(stream->ring, stream->file,
		control_make(&control, TLS_HANDSHAKE, bytes, sizeof(bytes)));

	if (result == -EAGAIN) {
		ring_poll(
			stream->ring, &kernel->send_op, stream->file.fd, POLLOUT, update_possible);
	} else {
		ring_defer(stream->ring, &kernel->send_op, (int)result, update_sent);
	}
}

/* --- sending ---------------------------------------------------------------------------------- */

static void count_sent(struct tls_kernel *kernel, ssize_t sent)
{
	uint64_t bytes = sent > 0 ? (uint64_t)sent : 0;
	uint64_t blocks = bytes / BLOCK_BYTES + (bytes / RECORD_BYTES + 1) * RECORD_BLOCKS;

	kernel->blocks_left -= MIN(blocks, kernel->blocks_left);
	if (kernel->blocks_left == 0) {
		kernel->is_update_due = true;
	}
}

static void say_goodbye(struct tls_kernel *kernel)
{
	if (kernel->failed == 0) {
		say_alert(kernel, false, TLS_ALERT_CLOSE_NOTIFY);
	}
	ring_socket_shutdown_send(kernel->stream->ring, kernel->stream->file);
}

static void sent(struct ring_op *op, int result)
{
	struct tls_kernel *kernel = container_of(op, struct tls_kernel, send_op);
	struct ring_op *sender = kernel->sender;

	count_sent(kernel, result);
	kernel->sender = NULL;
	ring_op_complete(kernel->stream->ring, sender, result);
	tls_kernel_send_step(kernel);
}

/* Starts the next send. Called when none is in flight. */
static void tls_kernel_send_step(struct tls_kernel *kernel)
{
	struct stream *stream = kernel->stream;
	struct ring_op *sender = kernel->sender;

	if (kernel->failed != 0) {
		if (sender != NULL) {
			kernel->sender = NULL;
			ring_op_complete(stream->ring, sender, kernel->failed);
		}
	} else if (kernel->is_update_due) {
		say_update(kernel);
	} else if (sender != NULL) {
		ring_sendmsg(stream->ring, &kernel->send_op, stream->file, kernel->from, sent);
	} else if (kernel->is_leaving) {
		say_goodbye(kernel);
	}
}

void tls_kernel_send(struct tls_kernel *kernel, struct ring_op *op, const struct msghdr *message)
{
	GMB_ASSERT(kernel->sender == NULL && !kernel->is_leaving);
	kernel->sender = op;
	kernel->from = message;
	if (!kernel->send_op.in_flight) {
		tls_kernel_send_step(kernel);
	}
}

/* Returns 0 if data can be sent now, or a negative errno. Starts a change of the key if it is
 * due. */
static int send_now_begin(struct tls_kernel *kernel)
{
	if (kernel->failed != 0) {
		return kernel->failed;
	}
	if (!kernel->send_op.in_flight && !kernel->is_update_due) {
		return 0;
	}
	if (!kernel->send_op.in_flight) {
		tls_kernel_send_step(kernel);
	}
	return -EAGAIN;
}

ssize_t tls_kernel_send_now(struct tls_kernel *kernel, const struct msghdr *message)
{
	ssize_t result = send_now_begin(kernel);

	if (result == 0) {
		result = ring_sendmsg_now(kernel->stream->ring, kernel->stream->file, message);
		count_sent(kernel, result);
	}
	return result;
}

ssize_t tls_kernel_sendfile_now(struct tls_kernel *kernel, struct mem_ref bytes, size_t count)
{
	ssize_t result = send_now_begin(kernel);

	if (result == 0) {
		result =
			ring_sendfile_now(kernel->stream->ring, kernel->stream->file, bytes, count);
		count_sent(kernel, result);
	}
	return result;
}

void tls_kernel_shutdown_send(struct tls_kernel *kernel)
{
	kernel->is_leaving = true;
	if (!kernel->send_op.in_flight) {
		tls_kernel_send_step(kernel);
	}
}

/* --- receiving control messages -------------------------------------------------------------- */

static struct msghdr *control_room(struct tls_kernel *kernel)
{
	control_make(&kernel->heard, TLS_DATA, kernel->heard_bytes, sizeof(kernel->heard_bytes));
	return &kernel->heard.message;
}

static void on_event(struct tls_kernel *kernel, enum tls_event event)
{
	int rc;

	if (event == TLS_EVENT_CLOSED) {
		kernel->is_closed = true;
		return;
	}
	rc = next_key(kernel, &kernel->keys.receive, TLS_RX);
	if (rc != 0) {
		tls_kernel_refuse(kernel, rc, TLS_ALERT_INTERNAL_ERROR);
		return;
	}
	if (event == TLS_EVENT_UPDATE_BOTH && !kernel->is_leaving) {
		kernel->is_update_due = true;
		if (!kernel->send_op.in_flight) {
			tls_kernel_send_step(kernel);
		}
	}
}

/* Processes the message that was received into control_room(). */
static void take_control(struct tls_kernel *kernel, size_t count)
{
	const struct cmsghdr *header = CMSG_FIRSTHDR(&kernel->heard.message);
	uint8_t content = TLS_DATA;
	enum tls_alert alert = TLS_ALERT_INTERNAL_ERROR;
	enum tls_event event;
	int rc;

	if (header != NULL && header->cmsg_level == SOL_TLS &&
		header->cmsg_type == TLS_GET_RECORD_TYPE && header->cmsg_len >= CMSG_LEN(1)) {
		content = *CMSG_DATA(header);
	}
	rc = tls_control_input(&kernel->control, content, kernel->heard_bytes, count,
		ring_now_ns(kernel->stream->ring), &event, &alert, kernel->error);
	explicit_bzero(kernel->heard_bytes, count); /* wiped, because the message might be a
						       ticket */
	if (rc == -EPROTO) {
		tls_kernel_refuse(kernel, rc, alert);
	} else if (rc != 0) {
		tls_kernel_lose(kernel, rc);
	} else if (event != TLS_EVENT_NONE) {
		on_event(kernel, event);
	}
}

/* --- receiving -------------------------------------------------------------------------------- */

static void receive_end(struct tls_kernel *kernel, int result)
{
	struct ring_op *receiver = kernel->receiver;

	kernel->receiver = NULL;
	ring_op_complete(
		kernel->stream->ring, receiver, kernel->got > 0 ? (int)kernel->got : result);
}

/* Returns the memory after the received part, in at most PARTS pieces; NULL: none is left. */
static struct msghdr *room_left(struct tls_kernel *kernel)
{
	const struct msghdr *into = kernel->into;
	size_t skip = kernel->got;
	size_t count = 0;

	for (size_t i = 0; i < into->msg_iovlen && count < PARTS; i++) {
		const struct iovec *iov = &into->msg_iov[i];
		size_t part = MIN(skip, iov->iov_len);

		skip -= part;
		if (part < iov->iov_len) {
			kernel->parts[count++] = (struct iovec){
				.iov_base = (uint8_t *)iov->iov_base + part,
				.iov_len = iov->iov_len - part,
			};
		}
	}
	kernel->rest = (struct msghdr){ .msg_iov = kernel->parts, .msg_iovlen = count };
	return count > 0 ? &kernel->rest : NULL;
}

static void tls_kernel_receive_step(struct tls_kernel *kernel);

static void control_received(struct ring_op *op, int result)
{
	struct tls_kernel *kernel = container_of(op, struct tls_kernel, receive_op);

	kernel->is_control = false;
	if (result > 0) {
		take_control(kernel, (size_t)result);
		tls_kernel_receive_step(kernel);
	} else {
		kernel->is_control = result != 0;
		receive_end(kernel, failure(kernel, result));
	}
}

static void tls_kernel_received(struct ring_op *op, int result)
{
	struct tls_kernel *kernel = container_of(op, struct tls_kernel, receive_op);

	if (result == -EIO) {
		/* EIO means that the next record is not data. */
		kernel->is_control = true;
		tls_kernel_receive_step(kernel);
	} else if (result > 0) {
		kernel->got += (size_t)result;
		if (kernel->whole && room_left(kernel) != NULL) {
			tls_kernel_receive_step(kernel);
		} else {
			receive_end(kernel, 0);
		}
	} else {
		receive_end(kernel, failure(kernel, result));
	}
}

static void tls_kernel_receive_step(struct tls_kernel *kernel)
{
	struct stream *stream = kernel->stream;
	struct msghdr *room;

	if (kernel->failed != 0) {
		receive_end(kernel, kernel->failed);
	} else if (kernel->is_closed) {
		receive_end(kernel, 0);
	} else if (kernel->is_control) {
		ring_recvmsg(stream->ring, &kernel->receive_op, stream->file, control_room(kernel),
			false, control_received);
	} else {
		room = room_left(kernel);
		GMB_ASSERT(room != NULL);
		ring_recvmsg(stream->ring, &kernel->receive_op, stream->file, room, false,
			tls_kernel_received);
	}
}

void tls_kernel_receive(
	struct tls_kernel *kernel, struct ring_op *op, struct msghdr *message, bool whole)
{
	GMB_ASSERT(kernel->receiver == NULL);
	kernel->receiver = op;
	kernel->into = message;
	kernel->whole = whole;
	kernel->got = 0;
	tls_kernel_receive_step(kernel);
}

ssize_t tls_kernel_receive_now(struct tls_kernel *kernel, struct msghdr *message)
{
	struct stream *stream = kernel->stream;
	ssize_t result = 0;

	GMB_ASSERT(kernel->receiver == NULL);
	while (kernel->failed == 0 && !kernel->is_closed) {
		result = kernel->is_control ? ring_recvmsg_now(stream->ring, stream->file,
						      control_room(kernel))
					    : ring_recvmsg_now(stream->ring, stream->file, message);
		if (result == -EIO && !kernel->is_control) {
			kernel->is_control = true;
		} else if (result <= 0) {
			return failure(kernel, (int)result);
		} else if (!kernel->is_control) {
			return result;
		} else {
			kernel->is_control = false;
			take_control(kernel, (size_t)result);
		}
	}
	return kernel->failed;
}

void tls_kernel_cancel(struct tls_kernel *kernel, struct ring_op *op)
{
	if (kernel->receiver == op) {
		ring_cancel(kernel->stream->ring, &kernel->receive_op);
	}
}

void tls_kernel_shutdown(struct tls_kernel *kernel)
{
	kernel->is_stopped = true;
}

/* --- start and end --------------------------------------------------------------------------- */

static bool is_suitable(enum tls_records records, const struct tls_key *key)
{
	const struct tls_kernel_features *features = tls_kernel_features();

	return (features->ciphers[key->version] & BIT(key->cipher)) != 0 &&
	       (records == TLS_RECORDS_KERNEL || key->version == TLS_1_2 || features->has_rekeying);
}

/* Installs the keys. If TLS_TX fails, the socket is prepared for TLS but still carries plain
 * bytes, so the session can continue. */
static int tls_kernel_install(int fd, const struct tls_keys *keys, struct error *error)
{
	const int on = 1;
	int rc;

	if (setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) != 0 ||
		tls_key_install(&keys->send, fd, TLS_TX) != 0) {
		return -EOPNOTSUPP;
	}
	rc = tls_key_install(&keys->receive, fd, TLS_RX);
	if (rc != 0) {
		return error_set(error, -EIO,
			"the kernel accepted the key for sending but not the one for receiving: %s",
			strerror(-rc));
	}
	if (keys->receive.version == TLS_1_3) {
		/* The kernel then decrypts records in place, and only a record with padding costs a
		 * copy. */
		(void)setsockopt(fd, SOL_TLS, TLS_RX_EXPECT_NO_PAD, &on, sizeof(on));
	}
	return 0;
}

/* Initializes the layer, after the socket has got the keys. */
static void tls_kernel_begin(struct tls_kernel *kernel, struct stream *stream, enum tls_role role,
	const struct tls_keys *keys, struct error *error)
{
	kernel->stream = stream;
	kernel->error = error;
	kernel->can_rekey = tls_kernel_features()->has_rekeying;
	kernel->control.role = role;
	kernel->control.version = keys->send.version;
	kernel->keys = *keys;
	tls_kernel_forget(&kernel->keys.receive);
	tls_kernel_forget(&kernel->keys.send);
	kernel->blocks_left = blocks_max(kernel);
}

int tls_kernel_take(struct stream *stream, enum tls_role role, enum tls_records records,
	struct gnutls_session_int *session, struct tls_keys *keys, struct error *error,
	struct tls_kernel **kernel_out)
{
	struct tls_kernel *kernel = calloc(1, sizeof(*kernel));
	int rc = kernel == NULL ? -EOPNOTSUPP : tls_keys_of_session(keys, session);

	if (rc == 0) {
		rc = is_suitable(records, &keys->send)
			     ? tls_kernel_install(stream->file.fd, keys, error)
			     : -EOPNOTSUPP;
	}
	if (rc == 0) {
		tls_kernel_begin(kernel, stream, role, keys, error);
		*kernel_out = kernel;
	} else {
		free(kernel);
	}
	tls_keys_wipe(keys);
	return rc;
}

void tls_kernel_hand_over(const struct tls_kernel *kernel, struct tls_kernel_state *state_out)
{
	GMB_ASSERT(tls_kernel_is_idle(kernel));
	*state_out = (struct tls_kernel_state){
		.keys = kernel->keys,
		.blocks_left = kernel->blocks_left,
	};
}

int tls_kernel_adopt(struct stream *stream, enum tls_role role, enum tls_records records,
	const struct tls_kernel_state *state, struct error *error, struct tls_kernel **kernel_out)
{
	const struct tls_keys *keys = &state->keys;
	int fd = stream->file.fd;
	struct tls_kernel *kernel;

	if (!tls_kernel_is_wanted(records, fd) || !is_suitable(records, &keys->send)) {
		return error_set(error, -EOPNOTSUPP,
			"the kernel can no longer process the TLS records of the connection");
	}
	if (!tls_key_is_installed(&keys->send, fd, TLS_TX) ||
		!tls_key_is_installed(&keys->receive, fd, TLS_RX)) {
		return error_set(error, -EOPNOTSUPP,
			"the kernel does not process the TLS records of the connection");
	}
	kernel = calloc(1, sizeof(*kernel));
	if (kernel == NULL) {
		return error_oom_for(error, "TLS");
	}
	tls_kernel_begin(kernel, stream, role, keys, error);
	tls_key_adopt_secret(&kernel->keys.receive);
	tls_key_adopt_secret(&kernel->keys.send);
	kernel->blocks_left = MIN(state->blocks_left, kernel->blocks_left);
	kernel->is_update_due = kernel->blocks_left == 0;
	*kernel_out = kernel;
	return 0;
}

void tls_kernel_free(struct tls_kernel *kernel)
{
	if (kernel != NULL) {
		GMB_ASSERT(tls_kernel_is_idle(kernel));
		tls_keys_wipe(&kernel->keys);
		free(kernel);
	}
}

bool tls_kernel_is_idle(const struct tls_kernel *kernel)
{
	return !kernel->receive_op.in_flight && !kernel->send_op.in_flight;
}

bool tls_kernel_was_cut(const struct tls_kernel *kernel)
{
	return kernel->is_cut;
}
