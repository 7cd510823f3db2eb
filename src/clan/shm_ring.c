// SPDX-License-Identifier: Apache-2.0
/*
 * Message rings (docs/protocol/clan.md §4) and cookie queues (§8.4).
 *
 * Invariants: a writer never reads its own ring or indices in shared memory. A reader copies a head
 * once and checks the copy; it uses payload only after copying it. The indices are free-running
 * counts, so differences of uint32_t are correct after a wrap.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clan/shm.h"

enum {
	CONTROL_IN_ROW_MAX = 64,
	FIFO_NONE = UINT32_MAX,
};

static const uint16_t message_max[SHM_CLASS_COUNT] = {
	[SHM_SYSTEM] = SHM_SLOT_BYTES,
	[SHM_CONTROL] = SHM_CONTROL_MESSAGE_MAX,
	[SHM_BULK] = SHM_BULK_MESSAGE_MAX,
};

static uint32_t shm_ring_slots_of(size_t bytes)
{
	return (uint32_t)((bytes + SHM_SLOT_BYTES - 1) / SHM_SLOT_BYTES);
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Loads the peer's read index and checks K12. Returns false if the connection has been ended.
 * Acquire: the peer has finished reading the slots before we overwrite them. */
static bool load_read(struct shm_conn *conn, enum shm_class class)
{
	struct shm_out *out = &conn->out[class];
	uint32_t read = atomic_load_explicit(&conn->peer->read[class], memory_order_acquire);

	if (read - out->read_seen > out->published - out->read_seen) {
		shm_broken(conn, 12, "more messages were consumed than sent");
		return false;
	}
	out->read_seen = read;
	return true;
}

bool shm_room(struct shm_conn *conn, enum shm_class class, size_t bytes)
{
	struct shm_out *out = &conn->out[class];
	uint32_t size = out->mask + 1;
	uint32_t left = size - (out->write & out->mask);
	uint32_t needed = shm_ring_slots_of(bytes + SHM_HEAD_BYTES);

	/* A message that does not fit before the end of the ring starts at slot 0. The slots before
	 * the end are filled with padding, which needs room as well. */
	needed += needed > left ? left : 0;
	if (size - (out->write - out->read_seen) >= needed) {
		return true;
	}
	return load_read(conn, class) && size - (out->write - out->read_seen) >= needed;
}

static void shm_ring_write_head(struct shm_out *out, uint32_t bytes, uint8_t type)
{
	struct shm_message_head head = {
		.bytes = (uint16_t)bytes,
		.type = type,
		.sequence = out->sequence++,
	};

	memcpy(out->slots + (size_t)(out->write & out->mask) * SHM_SLOT_BYTES, &head, sizeof(head));
}

/* Writes padding if the message does not fit before the end, then head and payload. The peer sees
 * nothing of it before publish_words(). */
void shm_put_message(struct shm_conn *conn, enum shm_class class, uint8_t type,
	const struct iovec *iov, uint32_t iov_count, size_t bytes)
{
	struct shm_out *out = &conn->out[class];
	uint32_t left = out->mask + 1 - (out->write & out->mask);
	uint32_t needed = shm_ring_slots_of(bytes + SHM_HEAD_BYTES);
	uint8_t *at;

	if (needed > left) {
		shm_ring_write_head(out, left * SHM_SLOT_BYTES, SHM_TYPE_PAD);
		out->write += left;
	}
	shm_ring_write_head(out, (uint32_t)bytes + SHM_HEAD_BYTES, type);
	at = out->slots + (size_t)(out->write & out->mask) * SHM_SLOT_BYTES + SHM_HEAD_BYTES;
	for (uint32_t i = 0; i < iov_count; i++) {
		if (iov[i].iov_len > 0) {
			memcpy(at, iov[i].iov_base, iov[i].iov_len);
			at += iov[i].iov_len;
		}
	}
	out->write += needed;
	shm_changed(conn, 0);
	conn->conn.stats.messages_sent++;
	conn->conn.stats.bytes_sent += bytes;
}

int shm_no_room(struct shm_conn *conn, enum shm_class class, size_t bytes, uint32_t ready)
{
	conn->room_bytes[class] = (uint32_t)bytes;
	conn->conn.enabled |= ready;
	shm_want(conn);
	return conn->conn.state == CLAN_OPEN ? -EAGAIN : -ENOTCONN;
}

/* The part of a vector for one stream message. */
struct stream_piece {
	struct iovec iov[CLAN_IOV_MAX];
	uint32_t count;
	size_t bytes;
};

/* Fills in the next part of a vector: at most bytes_max bytes from byte *skip of its part *index
 * on. Advances both. */
static void cut_piece(struct stream_piece *piece, const struct iovec *iov, uint32_t iov_count,
	uint32_t *index, size_t *skip, size_t bytes_max)
{
	piece->count = 0;
	piece->bytes = 0;
	while (*index < iov_count && piece->count < CLAN_IOV_MAX && piece->bytes < bytes_max) {
		size_t left = iov[*index].iov_len - *skip;
		size_t part = MIN(left, bytes_max - piece->bytes);

		if (part > 0) {
			piece->iov[piece->count++] = (struct iovec){
				.iov_base = (uint8_t *)iov[*index].iov_base + *skip,
				.iov_len = part,
			};
			piece->bytes += part;
		}
		*skip += part;
		if (part == left) {
			(*index)++;
			*skip = 0;
		}
	}
}

/* Returns the largest payload that fits without padding, 0 if there is no room. Stream messages can
 * have any length, so padding is never needed for them. */
static size_t stream_room(struct shm_conn *conn)
{
	struct shm_out *out = &conn->out[SHM_BULK];
	uint32_t size = out->mask + 1;
	uint32_t left = size - (out->write & out->mask);
	uint32_t slots;

	if (!shm_room(conn, SHM_BULK, 1)) {
		return 0;
	}
	slots = MIN(size - (out->write - out->read_seen), left);
	return MIN((size_t)slots * SHM_SLOT_BYTES, (size_t)SHM_BULK_MESSAGE_MAX) - SHM_HEAD_BYTES;
}

/* Splits the data into messages that fit without padding. Returns the number of bytes taken, or
 * -EAGAIN or -ENOTCONN. */
static int shm_ring_send_stream(
	struct shm_conn *conn, const struct iovec *iov, uint32_t iov_count, size_t bytes)
{
	struct stream_piece piece;
	uint32_t index = 0;
	size_t skip = 0;
	size_t taken = 0;

	while (taken < bytes) {
		size_t room = stream_room(conn);

		if (room == 0) {
			break;
		}
		cut_piece(&piece, iov, iov_count, &index, &skip, room);
		shm_put_message(
			conn, SHM_BULK, SHM_TYPE_STREAM, piece.iov, piece.count, piece.bytes);
		taken += piece.bytes;
	}
	return taken > 0 ? (int)taken : shm_no_room(conn, SHM_BULK, 1, CLAN_READY_SEND_BULK);
}

int shm_send(struct clan_conn *base, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count, size_t bytes)
{
	struct shm_conn *conn = shm_conn(base);
	enum shm_class class = cls == CLAN_CONTROL ? SHM_CONTROL : SHM_BULK;

	if (type == SHM_TYPE_STREAM) {
		return shm_ring_send_stream(conn, iov, iov_count, bytes);
	}
	if (!shm_room(conn, class, bytes)) {
		return shm_no_room(conn, class, bytes,
			cls == CLAN_CONTROL ? CLAN_READY_SEND_CONTROL : CLAN_READY_SEND_BULK);
	}
	shm_put_message(conn, class, (uint8_t)type, iov, iov_count, bytes);
	return 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

bool shm_has_message(struct shm_conn *conn, enum shm_class class)
{
	struct shm_in *in = &conn->in[class];
	uint32_t write;

	if (in->write_seen != in->read) {
		return true;
	}
	/* Acquire: the slots were written before the index. */
	write = atomic_load_explicit(&conn->peer->write[class], memory_order_acquire);
	if (write - in->read > in->mask + 1) {
		shm_broken(conn, 13, "more messages than fit in the ring");
		return false;
	}
	in->write_seen = write;
	return write != in->read;
}

/* STREAM must have payload, and the messages of the system class have fixed lengths. */
static bool type_allowed(enum shm_class class, const struct shm_message_head *head)
{
	switch (head->type) {
	case SHM_TYPE_PAD:
		return true;
	case SHM_TYPE_STREAM:
		return class == SHM_BULK && head->bytes > SHM_HEAD_BYTES;
	case SHM_TYPE_NOTIFY:
		return class == SHM_BULK && head->bytes == SHM_HEAD_BYTES + sizeof(uint32_t);
	case SHM_TYPE_TRIPPED:
		return class == SHM_SYSTEM &&
		       head->bytes == SHM_HEAD_BYTES + sizeof(struct shm_tripped);
	case SHM_TYPE_COOKIE:
		return class == SHM_SYSTEM &&
		       head->bytes == SHM_HEAD_BYTES + 8 + sizeof(struct clan_cookie);
	default:
		return class != SHM_SYSTEM && head->type < SHM_TYPE_STREAM;
	}
}

/* Checks rules K14 to K16 on the private copy of the head. */
static int check_head(
	struct shm_conn *conn, enum shm_class class, const struct shm_message_head *head)
{
	const struct shm_in *in = &conn->in[class];
	uint32_t left = in->mask + 1 - (in->read & in->mask);
	uint32_t slots = shm_ring_slots_of(head->bytes);
	bool fits = head->type == SHM_TYPE_PAD ? head->bytes == left * SHM_SLOT_BYTES
					       : head->bytes >= SHM_HEAD_BYTES && slots <= left;

	if (!fits || head->bytes > message_max[class] || slots > in->write_seen - in->read) {
		return shm_broken(conn, 14, "the length of a message is invalid");
	}
	if (head->sequence != in->sequence) {
		return shm_broken(conn, 15, "a message is not the next one of its class");
	}
	if (head->reserved != 0 || head->reserved2 != 0 || !type_allowed(class, head)) {
		return shm_broken(conn, 16, "a message has an invalid type");
	}
	return 0;
}

static const uint8_t *shm_ring_slot_at(const struct shm_in *in)
{
	return in->slots + (size_t)(in->read & in->mask) * SHM_SLOT_BYTES;
}

/* Copies and checks the head of the next message that is not padding. Returns 0, -EAGAIN if there
 * is none, or -EPROTO. The head of a partly consumed stream message is taken from our copy, because
 * the peer could have changed it in the ring. */
static int next_head(struct shm_conn *conn, enum shm_class class, struct shm_message_head *head)
{
	struct shm_in *in = &conn->in[class];

	for (;;) {
		uint64_t word;
		int result;

		if (conn->conn.status == -EPROTO) {
			return -EPROTO;
		}
		if (in->stream_at > 0) {
			*head = in->stream_head;
			return 0;
		}
		if (!shm_has_message(conn, class)) {
			return conn->conn.status == -EPROTO ? -EPROTO : -EAGAIN;
		}
		word = atomic_load_explicit(
			(const shm_u64 *)(const void *)shm_ring_slot_at(in), memory_order_relaxed);
		memcpy(head, &word, sizeof(*head));
		result = check_head(conn, class, head);
		if (result != 0 || head->type != SHM_TYPE_PAD) {
			return result;
		}
		in->read += shm_ring_slots_of(head->bytes);
		in->sequence++;
	}
}

/* Publishes our read index, so that the peer can reuse the slots. */
static void shm_publish_read(struct shm_conn *conn, enum shm_class class)
{
	static const uint32_t reasons[SHM_CLASS_COUNT] = {
		[SHM_SYSTEM] = SHM_REASON_ROOM_SYSTEM,
		[SHM_CONTROL] = SHM_REASON_ROOM_CONTROL,
		[SHM_BULK] = SHM_REASON_ROOM_BULK,
	};
	struct shm_in *in = &conn->in[class];

	if (in->read != in->read_published) {
		/* Release: our reads of the slots come before the store, after which the peer can
		 * overwrite them. */
		atomic_store_explicit(&conn->own->read[class], in->read, memory_order_release);
		in->read_published = in->read;
		shm_changed(conn, reasons[class]);
	}
}

/* Advances past the current message. Publishes the read index when half the ring has been consumed
 * since the last publication, so that the peer can write again before the ring is empty. */
static void shm_ring_next_message(
	struct shm_conn *conn, enum shm_class class, const struct shm_message_head *head)
{
	struct shm_in *in = &conn->in[class];

	in->read += shm_ring_slots_of(head->bytes);
	in->sequence++;
	in->stream_at = 0;
	if (in->read - in->read_published > in->mask / 2) {
		shm_publish_read(conn, class);
	}
	conn->conn.stats.messages_received++;
}

/* Copies the next message of a class to the program's buffer. Returns 0, -EAGAIN, -EMSGSIZE or
 * -EPROTO. The rest of a stream message that was partly read is returned as one message. */
static int shm_ring_take_message(struct shm_conn *conn, enum shm_class class,
	struct clan_message *message, void *buffer, uint32_t bytes)
{
	struct shm_in *in = &conn->in[class];
	struct shm_message_head head;
	const uint8_t *payload;
	int result = next_head(conn, class, &head);

	if (result != 0) {
		return result;
	}
	payload = shm_ring_slot_at(in) + SHM_HEAD_BYTES + in->stream_at;
	*message = (struct clan_message){
		.cls = class == SHM_CONTROL ? CLAN_CONTROL : CLAN_BULK,
		.type = head.type,
		.bytes = head.bytes - SHM_HEAD_BYTES - in->stream_at,
	};
	if (head.type == SHM_TYPE_NOTIFY) {
		message->value = atomic_load_explicit((const shm_u32 *)(const void *)payload,
					 memory_order_relaxed) &
				 CLAN_VALUE_MAX;
		message->bytes = 0;
	}
	if (message->bytes > bytes) {
		return -EMSGSIZE;
	}
	if (message->bytes > 0) {
		memcpy(buffer, payload, message->bytes);
	}
	conn->conn.stats.bytes_received += message->bytes;
	shm_ring_next_message(conn, class, &head);
	return 0;
}

/* Called when no message is left: publishes the read indices, and requests notification by the
 * peer. */
static int shm_ring_nothing_left(struct shm_conn *conn, uint32_t classes)
{
	if (conn->conn.state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	if ((classes & CLAN_CONTROL) != 0) {
		shm_publish_read(conn, SHM_CONTROL);
		conn->conn.enabled |= CLAN_READY_CONTROL;
	}
	if ((classes & CLAN_BULK) != 0) {
		shm_publish_read(conn, SHM_BULK);
		conn->conn.enabled |= CLAN_READY_BULK;
	}
	shm_want(conn);
	return conn->conn.state == CLAN_OPEN ? -EAGAIN : -ENOTCONN;
}

/* Control messages come first. After CONTROL_IN_ROW_MAX control messages, a waiting bulk message is
 * received, so that bulk messages are not delayed without limit. */
int shm_recv(struct clan_conn *base, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes)
{
	struct shm_conn *conn = shm_conn(base);
	int result = -EAGAIN;

	if ((classes & CLAN_CONTROL) != 0 &&
		(conn->control_in_row < CONTROL_IN_ROW_MAX || (classes & CLAN_BULK) == 0 ||
			!shm_has_message(conn, SHM_BULK))) {
		result = shm_ring_take_message(conn, SHM_CONTROL, message, buffer, bytes);
		conn->control_in_row += result == 0;
	}
	if (result == -EAGAIN && (classes & CLAN_BULK) != 0) {
		result = shm_ring_take_message(conn, SHM_BULK, message, buffer, bytes);
		conn->control_in_row = 0;
	}
	if (result == -EAGAIN) {
		return shm_ring_nothing_left(conn, classes);
	}
	return result == -EPROTO ? -ENOTCONN : result;
}

/* Reads across messages until the vector is full or the next message is of another kind. A peek
 * reads from the current message only, so no state has to be undone. */
ssize_t shm_readv(struct clan_conn *base, const struct iovec *iov, uint32_t iov_count, bool peek)
{
	struct shm_conn *conn = shm_conn(base);
	struct shm_in *in = &conn->in[SHM_BULK];
	struct shm_message_head head;
	uint32_t index = 0;
	size_t skip = 0;
	size_t copied = 0;
	int result;

	while ((result = next_head(conn, SHM_BULK, &head)) == 0 && head.type == SHM_TYPE_STREAM) {
		size_t left = (size_t)head.bytes - SHM_HEAD_BYTES - in->stream_at;
		size_t part = clan_scatter(iov, iov_count, &index, &skip,
			shm_ring_slot_at(in) + SHM_HEAD_BYTES + in->stream_at, left);

		copied += part;
		if (peek) { /* a peek covers the current message only */
			return (ssize_t)copied;
		}
		in->stream_at += (uint32_t)part;
		in->stream_head = head;
		conn->conn.stats.bytes_received += part;
		if (part < left) {
			return (ssize_t)copied;
		}
		shm_ring_next_message(conn, SHM_BULK, &head);
		if (index == iov_count) {
			return (ssize_t)copied;
		}
	}
	if (copied > 0) {
		return (ssize_t)copied;
	}
	if (result == 0) {
		return -EBADMSG;
	}
	return result == -EAGAIN ? shm_ring_nothing_left(conn, CLAN_BULK) : -ENOTCONN;
}

/* --- system records, cookie queues ------------------------------------------------------------ */

static int shm_ring_make_fifo(struct shm_conn *conn)
{
	conn->fifo = calloc(conn->peer_cookie_count, sizeof(*conn->fifo));
	if (conn->fifo == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < conn->peer_cookie_count; i++) {
		conn->fifo[i].next = i + 1 < conn->peer_cookie_count ? i + 1 : FIFO_NONE;
	}
	for (uint32_t i = 0; i < CLAN_COOKIE_QUEUES; i++) {
		conn->fifo_first[i] = FIFO_NONE;
	}
	return 0;
}

/* Appends a cookie to the FIFO of its queue. The free list has as many entries as the peer can
 * grant cookies, so it is empty only if K21 is broken. */
static int shm_ring_cookie_arrived(
	struct shm_conn *conn, uint32_t number, const struct clan_cookie *cookie)
{
	uint32_t entry;

	if (number >= CLAN_COOKIE_QUEUES || conn->fifo_count == conn->peer_cookie_count) {
		return shm_broken(conn, 21, "more cookies than announced");
	}
	if (conn->fifo == NULL && shm_ring_make_fifo(conn) != 0) {
		shm_conn_end(conn, -ENOMEM, "not enough memory for cookies that the peer sent");
		return -EPROTO;
	}
	entry = conn->fifo_free;
	conn->fifo_free = conn->fifo[entry].next;
	conn->fifo[entry] = (struct shm_cookie_fifo){ .cookie = *cookie, .next = FIFO_NONE };
	if (conn->fifo_first[number] == FIFO_NONE) {
		conn->fifo_first[number] = entry;
	} else {
		conn->fifo[conn->fifo_last[number]].next = entry;
	}
	conn->fifo_last[number] = entry;
	conn->fifo_count++;
	clan_conn_fire_ready(&conn->conn, CLAN_READY_COOKIES);
	return 0;
}

bool shm_take_system(struct shm_conn *conn)
{
	struct shm_message_head head;
	uint32_t taken = 0;

	/* Limited to twice the size of the ring, so that a peer that writes continuously cannot
	 * keep us here. */
	while (taken < 2 * SHM_SYSTEM_SLOTS && next_head(conn, SHM_SYSTEM, &head) == 0) {
		uint8_t copy[SHM_SLOT_BYTES];

		/* Copied before its slot is released to the peer. */
		memcpy(copy, shm_ring_slot_at(&conn->in[SHM_SYSTEM]) + SHM_HEAD_BYTES,
			SHM_SLOT_BYTES - SHM_HEAD_BYTES);
		shm_ring_next_message(conn, SHM_SYSTEM, &head);
		taken++;
		if (head.type == SHM_TYPE_TRIPPED) {
			struct shm_tripped record;

			memcpy(&record, copy, sizeof(record));
			shm_tripped(conn, &record);
		} else {
			struct clan_cookie cookie;
			uint16_t number;

			memcpy(&number, copy, sizeof(number));
			memcpy(&cookie, copy + 8, sizeof(cookie));
			if (shm_ring_cookie_arrived(conn, number, &cookie) != 0) {
				break;
			}
		}
	}
	if (taken > 0) {
		shm_publish_read(conn, SHM_SYSTEM);
	}
	return taken > 0;
}

/* Checks rule K22 on the peer's counter before it is used. */
bool shm_cookie_room(struct shm_conn *conn)
{
	uint32_t cookies = conn->conn.options.cookies;
	uint32_t popped;

	if (conn->cookies_pushed - conn->peer_popped_seen >= cookies) {
		popped = atomic_load_explicit(&conn->peer->cookies_popped, memory_order_acquire);
		if (popped - conn->peer_popped_seen >
			conn->cookies_pushed - conn->peer_popped_seen) {
			shm_broken(conn, 22, "more cookies were consumed than sent");
			return false;
		}
		conn->peer_popped_seen = popped;
	}
	return conn->cookies_pushed - conn->peer_popped_seen < cookies &&
	       shm_room(conn, SHM_SYSTEM, 8 + sizeof(struct clan_cookie));
}

int shm_cookie_push(struct clan_conn *base, uint32_t number, const struct clan_cookie *cookie)
{
	struct shm_conn *conn = shm_conn(base);
	uint16_t head[4] = { (uint16_t)number };
	struct clan_cookie copy = *cookie;
	struct iovec iov[2] = {
		{ .iov_base = head, .iov_len = sizeof(head) },
		{ .iov_base = &copy, .iov_len = sizeof(copy) },
	};

	if (!shm_is_granted(conn, cookie)) {
		return -ESTALE;
	}
	if (!shm_cookie_room(conn)) {
		return shm_no_room(
			conn, SHM_SYSTEM, sizeof(head) + sizeof(copy), CLAN_READY_PUSH_COOKIE);
	}
	shm_put_message(conn, SHM_SYSTEM, SHM_TYPE_COOKIE, iov, 2, sizeof(head) + sizeof(copy));
	conn->cookies_pushed++;
	return 0;
}

int shm_cookie_pop(struct clan_conn *base, uint32_t number, struct clan_cookie *cookie_out)
{
	struct shm_conn *conn = shm_conn(base);
	uint32_t entry = conn->fifo == NULL ? FIFO_NONE : conn->fifo_first[number];

	if (entry == FIFO_NONE) {
		base->enabled |= CLAN_READY_COOKIES;
		shm_look(conn); /* cookies might already be in the ring */
		if (base->state != CLAN_OPEN) {
			return -ENOTCONN;
		}
		entry = conn->fifo == NULL ? FIFO_NONE : conn->fifo_first[number];
		if (entry == FIFO_NONE) {
			return -EAGAIN;
		}
	}
	*cookie_out = conn->fifo[entry].cookie;
	conn->fifo_first[number] = conn->fifo[entry].next;
	conn->fifo[entry].next = conn->fifo_free;
	conn->fifo_free = entry;
	conn->fifo_count--;
	conn->cookies_popped++;
	shm_changed(conn, SHM_REASON_ROOM_SYSTEM);
	return 0;
}
