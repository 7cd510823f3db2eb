// SPDX-License-Identifier: Apache-2.0
/*
 * Frames, their credits, and the messages in them: docs/protocol/clan.md §12.3.
 *
 *   net_append() ─▶ open frame ─▶ frames ─▶ transport      system records first: net_write_owed()
 *   transport ─▶ net_frame_received() ─▶ in[] rings ─▶ net_recv()
 *
 * Invariants: a message is sent only if the peer's ring has room for it, so the receiver never
 * waits for its program. A frame is posted only after all puts and gets that were begun before it
 * was closed, so messages do not overtake them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "clan/net.h"

enum {
	CONTROL_IN_ROW_MAX = 64,
};

static const uint32_t message_max[NET_RING_COUNT] = {
	[NET_CONTROL] = sizeof(struct net_record_head) + CLAN_CONTROL_BYTES_MAX,
	[NET_BULK] = sizeof(struct net_record_head) + CLAN_BULK_BYTES_MAX,
};
static const uint32_t ready_recv[NET_RING_COUNT] = { CLAN_READY_CONTROL, CLAN_READY_BULK };
static const uint32_t ready_send[NET_RING_COUNT] = {
	CLAN_READY_SEND_CONTROL,
	CLAN_READY_SEND_BULK,
};

static uint32_t net_frame_slots_of(size_t bytes)
{
	return (uint32_t)((bytes + NET_SLOT_BYTES - 1) / NET_SLOT_BYTES);
}

/* --- buffers ---------------------------------------------------------------------------------- */

static void buffer_init(struct net_conn *conn, struct net_buffer *buffer, size_t at)
{
	buffer->op = (struct net_op){ .kind = NET_OP_FRAME, .conn = conn };
	list_init(&buffer->node);
	buffer->data = conn->memory + at;
}

int net_frames_start(struct net_conn *conn)
{
	size_t at = 0;

	conn->memory = calloc(1, NET_MEMORY_BYTES);
	if (conn->memory == NULL) {
		return -ENOMEM;
	}
	list_init(&conn->free_sends);
	for (uint32_t i = 0; i < NET_SENDS; i++, at += NET_FRAME_BYTES) {
		buffer_init(conn, &conn->sends[i], at);
		list_push_back(&conn->free_sends, &conn->sends[i].node);
	}
	buffer_init(conn, &conn->tell, at);
	conn->credits = conn->transport->receives;
	return 0;
}

void net_frames_free(struct net_conn *conn)
{
	free(conn->memory);
	for (int class = 0; class < NET_RING_COUNT; class ++) {
		free(conn->in[class].data);
	}
}

int net_rings_make(struct net_conn *conn, uint32_t peer_bulk_slots)
{
	conn->in[NET_CONTROL].slots = NET_CONTROL_SLOTS;
	conn->in[NET_BULK].slots = conn->conn.options.bulk_slots;
	conn->out[NET_CONTROL].slots = NET_CONTROL_SLOTS;
	conn->out[NET_BULK].slots = peer_bulk_slots;
	for (int class = 0; class < NET_RING_COUNT; class ++) {
		/* The buffer extends past the ring by one message, so a message that starts before
		 * the end is contiguous. */
		conn->in[class].data =
			malloc((size_t)conn->in[class].slots * NET_SLOT_BYTES + message_max[class]);
		if (conn->in[class].data == NULL) {
			return -ENOMEM;
		}
	}
	return 0;
}

/* --- sending ---------------------------------------------------------------------------------- */

void net_changed(struct net_conn *conn)
{
	if (!list_is_linked(&conn->dirty_node)) {
		list_push_back(&net_queue(conn->conn.queue)->dirty, &conn->dirty_node);
	}
}

static void close_frame(struct net_conn *conn)
{
	conn->open->after = conn->rmas_begun;
	list_push_back(&conn->frames, &conn->open->node);
	conn->open = NULL;
}

/* Returns the address for a record in the open frame, or in a new one; NULL if no buffer is
 * free. */
static uint8_t *record_place(struct net_conn *conn, size_t bytes)
{
	uint8_t *place;

	bytes = align_up(bytes, NET_RECORD_ALIGN);
	if (conn->open != NULL && conn->open->bytes + bytes > NET_FRAME_BYTES) {
		close_frame(conn);
	}
	if (conn->open == NULL) {
		struct list_node *node = list_pop_front(&conn->free_sends);

		if (node == NULL) {
			return NULL;
		}
		conn->open = list_entry(node, struct net_buffer, node);
		conn->open->bytes = sizeof(struct net_frame_head);
	}
	place = conn->open->data + conn->open->bytes;
	conn->open->bytes += (uint32_t)bytes;
	return place;
}

/* Returns true if record_place() would succeed. */
static bool net_frame_has_place(const struct net_conn *conn, size_t bytes)
{
	return !list_is_empty(&conn->free_sends) ||
	       (conn->open != NULL && conn->open->bytes + bytes <= NET_FRAME_BYTES);
}

/* Copies the next bytes of a vector, from byte *skip of its part *index on, and advances both. */
static void net_frame_gather(
	uint8_t *to, size_t bytes, const struct iovec *iov, uint32_t *index, size_t *skip)
{
	while (bytes > 0) {
		size_t part = MIN(iov[*index].iov_len - *skip, bytes);

		if (part > 0) {
			memcpy(to, (const uint8_t *)iov[*index].iov_base + *skip, part);
		}
		to += part;
		bytes -= part;
		*skip += part;
		if (*skip == iov[*index].iov_len) {
			(*index)++;
			*skip = 0;
		}
	}
}

/* Appends a record with the next bytes of a vector. Returns false if no buffer is free. */
static bool net_frame_append(struct net_conn *conn, enum net_class class, uint8_t type,
	size_t bytes, const struct iovec *iov, uint32_t *index, size_t *skip)
{
	struct net_record_head head = { .bytes = (uint16_t)(sizeof(head) + bytes),
		.type = type,
		.class = (uint8_t) class };
	uint8_t *place = record_place(conn, head.bytes);

	if (place == NULL) {
		return false;
	}
	memcpy(place, &head, sizeof(head));
	net_frame_gather(place + sizeof(head), bytes, iov, index, skip);
	memset(place + head.bytes, 0, align_up(head.bytes, NET_RECORD_ALIGN) - head.bytes);
	net_changed(conn);
	return true;
}

bool net_append(struct net_conn *conn, enum net_class class, uint8_t type, const struct iovec *iov,
	size_t bytes)
{
	uint32_t index = 0;
	size_t skip = 0;

	return net_frame_append(conn, class, type, bytes, iov, &index, &skip);
}

void net_append_system(
	struct net_conn *conn, enum net_system_type type, const void *data, size_t bytes)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = bytes };
	bool had_room = net_append(conn, NET_SYSTEM, (uint8_t)type, &iov, bytes);

	GMB_ASSERT(had_room);
}

void net_owe(struct net_conn *conn, struct net_owed *owed,
	void (*write)(struct net_conn *conn, struct net_owed *owed))
{
	owed->write = write;
	if (!list_is_linked(&owed->node)) {
		list_push_back(&conn->owed, &owed->node);
	}
	net_changed(conn);
}

/* Records of the library go before messages of the program, so that a cookie has been registered at
 * the peer before a message can contain it. */
bool net_write_owed(struct net_conn *conn)
{
	while (!list_is_empty(&conn->owed) &&
		net_frame_has_place(conn, sizeof(struct net_record_head) + NET_SYSTEM_BYTES_MAX)) {
		struct net_owed *owed =
			list_entry(list_pop_front(&conn->owed), struct net_owed, node);

		owed->write(conn, owed);
	}
	return list_is_empty(&conn->owed);
}

static bool counts_frames(const struct net_conn *conn)
{
	return conn->transport->receives > 0;
}

/* Completes the head of a frame and posts it. Returns false if it was not posted: the transport has
 * no room (the connection is scheduled for the next turn) or has failed (the connection is cut). */
static bool post_frame(struct net_conn *conn, struct net_buffer *buffer)
{
	struct net_frame_head head = {
		.bytes = (uint16_t)buffer->bytes,
		.credits = (uint16_t)conn->owed_credits,
		.taken = { conn->in[NET_CONTROL].read, conn->in[NET_BULK].read },
		.popped = conn->popped,
	};
	int result;

	/* The head is written last: credits and taken are current when the frame is posted. */
	memcpy(buffer->data, &head, sizeof(head));
	result = conn->transport->post_frame(conn, buffer);
	if (result == -EAGAIN) {
		net_changed(conn); /* the frame is posted again in the next turn */
		return false;
	}
	if (result != 0) {
		net_conn_cut(conn, result);
		return false;
	}
	conn->sends_posted++;
	conn->credits -= counts_frames(conn);
	conn->owed_credits = 0;
	conn->in[NET_CONTROL].told = head.taken[NET_CONTROL];
	conn->in[NET_BULK].told = head.taken[NET_BULK];
	conn->must_tell = false;
	return true;
}

/* Posts closed frames, then a frame without records if credits or ring space must be returned. The
 * last credit is used only for a frame without records that returns at least 2 credits. Otherwise
 * both sides could use all their credits for records, and neither could send a frame that returns
 * credits. */
static void post_frames(struct net_conn *conn)
{
	bool counts = counts_frames(conn);

	while (conn->phase == NET_TALKING && (!counts || conn->credits >= 2) &&
		!list_is_empty(&conn->frames)) {
		struct net_buffer *buffer =
			list_entry(list_first(&conn->frames), struct net_buffer, node);

		if (buffer->after > conn->rmas_posted || !post_frame(conn, buffer)) {
			break;
		}
		list_remove(&buffer->node);
	}
	if (conn->phase == NET_TALKING && !conn->tell_posted &&
		(conn->owed_credits >= NET_RECEIVES / 2 || conn->must_tell) &&
		(!counts || conn->credits >= 2 ||
			(conn->credits == 1 && conn->owed_credits >= 2))) {
		conn->tell.bytes = sizeof(struct net_frame_head);
		conn->tell_posted = post_frame(conn, &conn->tell);
	}
}

void net_publish_conn(struct net_conn *conn)
{
	list_remove(&conn->dirty_node);
	if (conn->phase != NET_TALKING) {
		return;
	}
	net_rma_pump(conn);
	net_write_owed(conn);
	if (conn->open != NULL && conn->open->bytes > sizeof(struct net_frame_head)) {
		close_frame(conn);
	}
	post_frames(conn);
	conn->transport->flush(conn);
}

/* The buffer is free. Sending continues if records, credits or ring space are pending. */
void net_frame_sent(struct net_conn *conn, struct net_buffer *buffer)
{
	conn->sends_posted--;
	if (buffer == &conn->tell) {
		conn->tell_posted = false;
	} else {
		list_push_back(&conn->free_sends, &buffer->node);
	}
	if (conn->phase != NET_TALKING) {
		return;
	}
	if (!list_is_empty(&conn->owed) || conn->must_tell ||
		conn->owed_credits >= NET_RECEIVES / 2) {
		net_changed(conn);
	}
	net_look_room(conn);
	net_conn_drained(conn);
}

/* --- room ------------------------------------------------------------------------------------- */

static bool ring_has_room(const struct net_conn *conn, enum net_class class, uint32_t slots)
{
	const struct net_out *out = &conn->out[class];

	return out->slots - (out->write - out->taken) >= slots;
}

static bool room_now(struct net_conn *conn, enum net_class class, size_t bytes)
{
	size_t with_head = sizeof(struct net_record_head) + bytes;

	return ring_has_room(conn, class, net_frame_slots_of(with_head)) && net_write_owed(conn) &&
	       net_frame_has_place(conn, align_up(with_head, NET_RECORD_ALIGN));
}

bool net_room(struct net_conn *conn, enum net_class class, size_t bytes)
{
	if (room_now(conn, class, bytes)) {
		return true;
	}
	/* Frames that have been sent, and ring space that the peer has released, become known only
	 * when the transport is checked. */
	net_publish_conn(conn);
	conn->transport->look(conn);
	return conn->conn.state == CLAN_OPEN && room_now(conn, class, bytes);
}

int net_no_room(struct net_conn *conn, enum net_class class, size_t bytes)
{
	if (conn->conn.state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	conn->out[class].needed = net_frame_slots_of(sizeof(struct net_record_head) + bytes);
	conn->conn.enabled |= ready_send[class];
	net_changed(conn); /* room becomes free only after queued data is sent */
	return -EAGAIN;
}

void net_look_room(struct net_conn *conn)
{
	uint32_t ready = 0;

	if (conn->conn.state != CLAN_OPEN || list_is_empty(&conn->free_sends)) {
		return;
	}
	for (uint32_t class = 0; class < NET_RING_COUNT; class ++) {
		if (ring_has_room(conn, class, conn->out[class].needed)) {
			ready |= ready_send[class];
		}
	}
	if (net_cookie_room(conn)) {
		ready |= CLAN_READY_PUSH_COOKIE;
	}
	clan_conn_fire_ready(&conn->conn, ready);
}

static void message_sent(struct net_conn *conn, enum net_class class, size_t bytes)
{
	conn->out[class].write += net_frame_slots_of(sizeof(struct net_record_head) + bytes);
	conn->conn.stats.messages_sent++;
	conn->conn.stats.bytes_sent += bytes;
}

/* Sends as much of the stream as there is room for. */
static ssize_t net_frame_send_stream(struct net_conn *conn, const struct iovec *iov, size_t bytes)
{
	const size_t head_bytes = sizeof(struct net_record_head);
	struct net_out *out = &conn->out[NET_BULK];
	size_t taken = 0;
	size_t skip = 0;
	uint32_t index = 0;

	while (taken < bytes && net_room(conn, NET_BULK, NET_RECORD_ALIGN)) {
		size_t room = (size_t)(out->slots - (out->write - out->taken)) * NET_SLOT_BYTES;
		size_t piece = MIN(room - head_bytes, (size_t)CLAN_BULK_BYTES_MAX);

		piece = MIN(piece, bytes - taken);
		if (conn->open != NULL && list_is_empty(&conn->free_sends)) {
			piece = MIN(piece, NET_FRAME_BYTES - conn->open->bytes - head_bytes);
		}
		net_frame_append(conn, NET_BULK, CLAN_TYPE_STREAM, piece, iov, &index, &skip);
		message_sent(conn, NET_BULK, piece);
		taken += piece;
	}
	return taken > 0 ? (ssize_t)taken : net_no_room(conn, NET_BULK, NET_RECORD_ALIGN);
}

int net_send(struct clan_conn *base, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count, size_t bytes)
{
	struct net_conn *conn = net_conn(base);
	enum net_class class = cls == CLAN_CONTROL ? NET_CONTROL : NET_BULK;

	GMB_UNUSED(iov_count); /* `bytes` is the length of the whole vector */
	if (type == CLAN_TYPE_STREAM) {
		return (int)net_frame_send_stream(conn, iov, bytes);
	}
	if (!net_room(conn, class, bytes)) {
		return net_no_room(conn, class, bytes);
	}
	net_append(conn, class, (uint8_t)type, iov, bytes);
	message_sent(conn, class, bytes);
	return 0;
}

void net_notify(struct net_conn *conn, uint32_t value)
{
	struct iovec iov = { .iov_base = &value, .iov_len = sizeof(value) };

	net_append(conn, NET_BULK, CLAN_TYPE_NOTIFY, &iov, sizeof(value));
	message_sent(conn, NET_BULK, sizeof(value));
}

/* --- receiving -------------------------------------------------------------------------------- */

/* Checks rules O1 to O4: the fields of a frame's head that refer to our side. */
static bool net_frame_head_is_valid(
	struct net_conn *conn, const struct net_frame_head *head, size_t bytes)
{
	if (bytes < sizeof(*head) || head->bytes != bytes || !is_aligned(bytes, NET_RECORD_ALIGN)) {
		net_broken(conn, 1, "a frame has a different length than its header says");
		return false;
	}
	/* owed_credits counts the received frames whose credits we have not returned. The peer can
	 * have no credit for a further frame if it equals the number of buffers. */
	if (conn->owed_credits == NET_RECEIVES) {
		net_broken(conn, 2, "more frames than there are receive buffers");
		return false;
	}
	if (head->credits > conn->transport->receives - conn->credits) {
		net_broken(conn, 2, "an acknowledgement of frames that were not sent");
		return false;
	}
	for (int class = 0; class < NET_RING_COUNT; class ++) {
		struct net_out *out = &conn->out[class];

		if (head->taken[class] - out->taken > out->write - out->taken) {
			net_broken(conn, 3, "more messages were consumed than sent");
			return false;
		}
	}
	if (head->popped - conn->peer_popped > conn->pushed - conn->peer_popped) {
		net_broken(conn, 4, "more cookies were consumed than sent");
		return false;
	}
	return true;
}

/* Checks a message (O6 and O7) and copies it into the ring of its class. In CLOSING it is checked
 * and discarded. */
static int net_frame_message_arrived(
	struct net_conn *conn, const struct net_record_head *head, const uint8_t *record)
{
	struct net_ring *ring = &conn->in[head->class];
	uint32_t slots = net_frame_slots_of(head->bytes);
	uint32_t value;

	if (conn->conn.state != CLAN_OPEN && conn->conn.state != CLAN_CLOSING) {
		return net_broken(conn, 6, "a message before the connection is open");
	}
	if (head->bytes > message_max[head->class] || head->type == 0 ||
		head->type > CLAN_TYPE_NOTIFY ||
		(head->type >= CLAN_TYPE_STREAM && head->class != NET_BULK) ||
		(head->type == CLAN_TYPE_STREAM && head->bytes == sizeof(*head)) ||
		(head->type == CLAN_TYPE_NOTIFY && head->bytes != sizeof(*head) + sizeof(value))) {
		return net_broken(conn, 6, "a message has an invalid type or length");
	}
	if (head->type == CLAN_TYPE_NOTIFY) {
		memcpy(&value, record + sizeof(*head), sizeof(value));
		if (value > CLAN_VALUE_MAX) {
			return net_broken(conn, 6, "a notification has invalid values");
		}
	}
	if (conn->conn.state != CLAN_OPEN) {
		return 0; /* the program does not receive any more */
	}
	if (slots > ring->slots - (ring->write - ring->read)) {
		return net_broken(conn, 7, "more messages than there is space for");
	}
	memcpy(ring->data + (size_t)(ring->write & (ring->slots - 1)) * NET_SLOT_BYTES, record,
		head->bytes);
	ring->write += slots;
	clan_conn_fire_ready(&conn->conn, ready_recv[head->class]);
	return 0;
}

size_t net_system_bytes(enum net_system_type type)
{
	static const uint8_t lengths[NET_SYSTEM_TYPE_COUNT] = {
		[NET_HELLO] = sizeof(struct net_hello),
		[NET_WELCOME] = sizeof(struct net_hello),
		[NET_REFUSED] = sizeof(struct net_refused),
		[NET_END] = sizeof(struct net_refused),
		[NET_REGION] = sizeof(struct net_region),
		[NET_REGION_OK] = sizeof(struct net_region_answer),
		[NET_REGION_END] = sizeof(struct net_region_answer),
		[NET_REGION_ENDED] = sizeof(struct net_region_answer),
		[NET_GRANT] = sizeof(struct net_cookie_record),
		[NET_REVOKE] = sizeof(struct net_revoke),
		[NET_REVOKED] = sizeof(struct net_revoke),
		[NET_COOKIE] = sizeof(struct net_cookie_record),
		[NET_PUT] = sizeof(struct net_put),
	};

	return lengths[type];
}

/* Checks the type and length of a system record, and dispatches it. */
static int system_arrived(
	struct net_conn *conn, const struct net_record_head *head, const uint8_t *data)
{
	uint32_t bytes = head->bytes - (uint32_t)sizeof(*head);

	if (head->type == 0 || head->type >= NET_SYSTEM_TYPE_COUNT ||
		bytes < net_system_bytes(head->type) ||
		(head->type > NET_REFUSED && bytes != net_system_bytes(head->type))) {
		return net_broken(conn, 6, "a record has an invalid type or length");
	}
	if (head->type <= NET_END) {
		return net_setup_arrived(conn, head->type, data, bytes);
	}
	if (conn->conn.state != CLAN_OPEN && conn->conn.state != CLAN_CLOSING) {
		return net_broken(conn, 6, "a record before the connection is open");
	}
	/* In CLOSING, requests of the peer are ignored. */
	return conn->conn.state == CLAN_OPEN ? net_memory_record(conn, head->type, data) : 0;
}

/* Processes the records of a frame. Stops when a record has ended the connection. */
static int net_frame_take_records(struct net_conn *conn, const uint8_t *data, size_t bytes)
{
	size_t at = sizeof(struct net_frame_head);
	int result = 0;

	while (at < bytes && result == 0) {
		struct net_record_head head;

		memcpy(&head, data + at, sizeof(head));
		if (head.bytes < sizeof(head) || head.bytes > bytes - at || head.reserved != 0 ||
			head.class > NET_SYSTEM) {
			return net_broken(conn, 5, "a record does not fit in its frame");
		}
		result = head.class == NET_SYSTEM
				 ? system_arrived(conn, &head, data + at + sizeof(head))
				 : net_frame_message_arrived(conn, &head, data + at);
		at += align_up(head.bytes, NET_RECORD_ALIGN);
	}
	return result;
}

int net_frame_received(struct net_conn *conn, const uint8_t *data, size_t bytes)
{
	struct net_frame_head head = { 0 };

	if (conn->phase != NET_TALKING || conn->conn.state == CLAN_LOST ||
		conn->conn.state == CLAN_CLOSED) {
		return -EPROTO;
	}
	memcpy(&head, data, MIN(bytes, sizeof(head)));
	if (!net_frame_head_is_valid(conn, &head, bytes)) {
		return -EPROTO;
	}
	conn->credits += head.credits;
	conn->out[NET_CONTROL].taken = head.taken[NET_CONTROL];
	conn->out[NET_BULK].taken = head.taken[NET_BULK];
	conn->peer_popped = head.popped;
	if (net_frame_take_records(conn, data, bytes) != 0) {
		return -EPROTO;
	}
	conn->owed_credits += counts_frames(conn);
	net_changed(conn);
	net_look_room(conn);
	return 0;
}

/* --- taking messages -------------------------------------------------------------------------- */

/* Returns the head of the next message, NULL if there is none. It is contiguous and in private
 * memory. */
static const struct net_record_head *net_frame_next_message(const struct net_ring *ring)
{
	return ring->read == ring->write
		       ? NULL
		       : (const struct net_record_head *)(const void
					 *)(ring->data + (size_t)(ring->read & (ring->slots - 1)) *
								 NET_SLOT_BYTES);
}

static void message_taken(struct net_conn *conn, enum net_class class)
{
	struct net_ring *ring = &conn->in[class];

	ring->read += net_frame_slots_of(net_frame_next_message(ring)->bytes);
	ring->stream_at = 0;
	conn->conn.stats.messages_received++;
	if (ring->read - ring->told >= ring->slots / 2 && conn->phase == NET_TALKING) {
		conn->must_tell = true;
		net_changed(conn);
	}
}

/* Copies the next message of a class to the program's buffer. Returns 0, -EAGAIN or -EMSGSIZE. A
 * stream message that was partly read is returned without the bytes that were read. */
static int net_frame_take_message(struct net_conn *conn, enum net_class class,
	struct clan_message *message, void *buffer, uint32_t bytes)
{
	struct net_ring *ring = &conn->in[class];
	const struct net_record_head *head = net_frame_next_message(ring);
	const uint8_t *payload;

	if (head == NULL) {
		return -EAGAIN;
	}
	payload = (const uint8_t *)(head + 1) + ring->stream_at;
	*message = (struct clan_message){
		.cls = class == NET_CONTROL ? CLAN_CONTROL : CLAN_BULK,
		.type = head->type,
		.bytes = head->bytes - (uint32_t)sizeof(*head) - ring->stream_at,
	};
	if (head->type == CLAN_TYPE_NOTIFY) {
		memcpy(&message->value, payload, sizeof(message->value));
		message->bytes = 0;
	}
	if (message->bytes > bytes) {
		return -EMSGSIZE;
	}
	if (message->bytes > 0) {
		memcpy(buffer, payload, message->bytes);
	}
	conn->conn.stats.bytes_received += message->bytes;
	message_taken(conn, class);
	return 0;
}

static int net_frame_nothing_left(struct net_conn *conn, uint32_t classes)
{
	if (conn->conn.state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	conn->conn.enabled |= ((classes & CLAN_CONTROL) != 0 ? CLAN_READY_CONTROL : 0) |
			      ((classes & CLAN_BULK) != 0 ? CLAN_READY_BULK : 0);
	return -EAGAIN;
}

int net_recv(struct clan_conn *base, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes)
{
	struct net_conn *conn = net_conn(base);
	int result = -EAGAIN;

	if ((classes & CLAN_CONTROL) != 0 &&
		(conn->controls_in_row < CONTROL_IN_ROW_MAX || (classes & CLAN_BULK) == 0 ||
			net_frame_next_message(&conn->in[NET_BULK]) == NULL)) {
		result = net_frame_take_message(conn, NET_CONTROL, message, buffer, bytes);
		conn->controls_in_row += result == 0;
	}
	if (result == -EAGAIN && (classes & CLAN_BULK) != 0) {
		result = net_frame_take_message(conn, NET_BULK, message, buffer, bytes);
		conn->controls_in_row = 0;
	}
	return result == -EAGAIN ? net_frame_nothing_left(conn, classes) : result;
}

ssize_t net_readv(struct clan_conn *base, const struct iovec *iov, uint32_t iov_count, bool peek)
{
	struct net_conn *conn = net_conn(base);
	struct net_ring *ring = &conn->in[NET_BULK];
	const struct net_record_head *head;
	uint32_t index = 0;
	size_t skip = 0;
	size_t copied = 0;

	while (index < iov_count && (head = net_frame_next_message(ring)) != NULL &&
		head->type == CLAN_TYPE_STREAM) {
		size_t left = (size_t)head->bytes - sizeof(*head) - ring->stream_at;
		size_t part = clan_scatter(iov, iov_count, &index, &skip,
			(const uint8_t *)(head + 1) + ring->stream_at, left);

		copied += part;
		if (peek) { /* a peek covers the current message only */
			break;
		}
		ring->stream_at += (uint32_t)part;
		conn->conn.stats.bytes_received += part;
		if (part == left) {
			message_taken(conn, NET_BULK);
		}
	}
	if (copied > 0) {
		return (ssize_t)copied;
	}
	return net_frame_next_message(ring) != NULL ? -EBADMSG
						    : net_frame_nothing_left(conn, CLAN_BULK);
}
