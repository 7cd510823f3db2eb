// SPDX-License-Identifier: Apache-2.0
/*
 * Frames, their credits, and the messages in them: docs/protocol/clan.md §12.3.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "clan/ofi.h"

enum {
	BUFFERS = OFI_RECEIVES + OFI_SENDS,
	MEMORY_BYTES = BUFFERS * OFI_FRAME_BYTES + sizeof(struct ofi_frame_head),
	CONTROL_IN_ROW_MAX = 64,
};

static const uint32_t message_max[OFI_RING_COUNT] = {
	[OFI_CONTROL] = sizeof(struct ofi_record_head) + CLAN_CONTROL_BYTES_MAX,
	[OFI_BULK] = sizeof(struct ofi_record_head) + CLAN_BULK_BYTES_MAX,
};
static const uint32_t ready_recv[OFI_RING_COUNT] = { CLAN_READY_CONTROL, CLAN_READY_BULK };
static const uint32_t ready_send[OFI_RING_COUNT] = {
	CLAN_READY_SEND_CONTROL,
	CLAN_READY_SEND_BULK,
};

static uint32_t slots_of(size_t bytes)
{
	return (uint32_t)((bytes + OFI_SLOT_BYTES - 1) / OFI_SLOT_BYTES);
}

/* --- buffers ---------------------------------------------------------------------------------- */

static void *memory_desc(const struct ofi_conn *conn)
{
	return conn->memory_mr == NULL ? NULL : fi_mr_desc(conn->memory_mr);
}

static int post_receive(struct ofi_conn *conn, struct ofi_buffer *buffer)
{
	return ofi_errno(fi_recv(
		conn->ep, buffer->data, OFI_FRAME_BYTES, memory_desc(conn), 0, &buffer->context));
}

static void buffer_init(
	struct ofi_conn *conn, struct ofi_buffer *buffer, enum ofi_context_kind kind, size_t at)
{
	buffer->context = (struct ofi_context){ .kind = kind, .conn = conn };
	list_init(&buffer->node);
	buffer->data = conn->memory + at;
}

int ofi_frames_start(struct ofi_conn *conn)
{
	size_t at = 0;
	int result = 0;

	conn->memory = calloc(1, MEMORY_BYTES);
	if (conn->memory == NULL) {
		return -ENOMEM;
	}
	if (conn->net->registers_local) {
		result = ofi_errno(fi_mr_reg(conn->net->domain, conn->memory, MEMORY_BYTES,
			FI_SEND | FI_RECV, 0, 0, 0, &conn->memory_mr, NULL));
	}
	for (uint32_t i = 0; i < OFI_SENDS; i++, at += OFI_FRAME_BYTES) {
		buffer_init(conn, &conn->sends[i], OFI_SEND, at);
		list_push_back(&conn->free_sends, &conn->sends[i].node);
	}
	for (uint32_t i = 0; i < OFI_RECEIVES; i++, at += OFI_FRAME_BYTES) {
		buffer_init(conn, &conn->receives[i], OFI_RECV, at);
		if (result == 0) {
			result = post_receive(conn, &conn->receives[i]);
		}
	}
	buffer_init(conn, &conn->tell, OFI_SEND, at);
	conn->credits = OFI_RECEIVES;
	return result;
}

void ofi_frames_free(struct ofi_conn *conn)
{
	GMB_ASSERT(conn->ep == NULL);
	if (conn->memory_mr != NULL) {
		fi_close(&conn->memory_mr->fid);
	}
	free(conn->memory);
	for (int class = 0; class < OFI_RING_COUNT; class ++) {
		free(conn->in[class].data);
	}
}

int ofi_rings_make(struct ofi_conn *conn, uint32_t peer_bulk_slots)
{
	conn->in[OFI_CONTROL].slots = OFI_CONTROL_SLOTS;
	conn->in[OFI_BULK].slots = conn->conn.options.bulk_slots;
	conn->out[OFI_CONTROL].slots = OFI_CONTROL_SLOTS;
	conn->out[OFI_BULK].slots = peer_bulk_slots;
	for (int class = 0; class < OFI_RING_COUNT; class ++) {
		/* A message that begins before the end lies there in one piece. */
		conn->in[class].data =
			malloc((size_t)conn->in[class].slots * OFI_SLOT_BYTES + message_max[class]);
		if (conn->in[class].data == NULL) {
			return -ENOMEM;
		}
	}
	return 0;
}

/* --- sending ---------------------------------------------------------------------------------- */

void ofi_changed(struct ofi_conn *conn)
{
	if (!list_is_linked(&conn->dirty_node)) {
		list_push_back(&ofi_queue(conn->conn.queue)->dirty, &conn->dirty_node);
	}
}

static void close_frame(struct ofi_conn *conn)
{
	conn->open->after = conn->rmas_begun;
	list_push_back(&conn->frames, &conn->open->node);
	conn->open = NULL;
}

/* A place for a record in the frame that is open, or in another; NULL when there is no buffer. */
static uint8_t *record_place(struct ofi_conn *conn, size_t bytes)
{
	uint8_t *place;

	bytes = align_up(bytes, OFI_RECORD_ALIGN);
	if (conn->open != NULL && conn->open->bytes + bytes > OFI_FRAME_BYTES) {
		close_frame(conn);
	}
	if (conn->open == NULL) {
		struct list_node *node = list_pop_front(&conn->free_sends);

		if (node == NULL) {
			return NULL;
		}
		conn->open = list_entry(node, struct ofi_buffer, node);
		conn->open->bytes = sizeof(struct ofi_frame_head);
	}
	place = conn->open->data + conn->open->bytes;
	conn->open->bytes += (uint32_t)bytes;
	return place;
}

/* Could record_place() find a place now? */
static bool has_place(const struct ofi_conn *conn, size_t bytes)
{
	return !list_is_empty(&conn->free_sends) ||
	       (conn->open != NULL && conn->open->bytes + bytes <= OFI_FRAME_BYTES);
}

/* Copies the next bytes of a vector, from a place in it. */
static void gather(
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

/* Appends a record with the next bytes of a vector; false when there is no buffer. */
static bool append(struct ofi_conn *conn, enum ofi_class class, uint8_t type, size_t bytes,
	const struct iovec *iov, uint32_t *index, size_t *skip)
{
	struct ofi_record_head head = { .bytes = (uint16_t)(sizeof(head) + bytes),
		.type = type,
		.class = (uint8_t) class };
	uint8_t *place = record_place(conn, head.bytes);

	if (place == NULL) {
		return false;
	}
	memcpy(place, &head, sizeof(head));
	gather(place + sizeof(head), bytes, iov, index, skip);
	memset(place + head.bytes, 0, align_up(head.bytes, OFI_RECORD_ALIGN) - head.bytes);
	ofi_changed(conn);
	return true;
}

bool ofi_append(struct ofi_conn *conn, enum ofi_class class, uint8_t type, const struct iovec *iov,
	size_t bytes)
{
	uint32_t index = 0;
	size_t skip = 0;

	return append(conn, class, type, bytes, iov, &index, &skip);
}

void ofi_append_system(
	struct ofi_conn *conn, enum ofi_system_type type, const void *data, size_t bytes)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = bytes };
	bool had_room = ofi_append(conn, OFI_SYSTEM, (uint8_t)type, &iov, bytes);

	GMB_ASSERT(had_room);
}

void ofi_owe(struct ofi_conn *conn, struct ofi_owed *owed,
	void (*write)(struct ofi_conn *conn, struct ofi_owed *owed))
{
	owed->write = write;
	if (!list_is_linked(&owed->node)) {
		list_push_back(&conn->owed, &owed->node);
	}
	ofi_changed(conn);
}

/* What the library owes goes before what the program says: a cookie is known when it is sent. True:
 * it is owed nothing any more. */
bool ofi_write_owed(struct ofi_conn *conn)
{
	while (!list_is_empty(&conn->owed) &&
		has_place(conn, sizeof(struct ofi_record_head) + OFI_SYSTEM_BYTES_MAX)) {
		struct ofi_owed *owed =
			list_entry(list_pop_front(&conn->owed), struct ofi_owed, node);

		owed->write(conn, owed);
	}
	return list_is_empty(&conn->owed);
}

static bool post_frame(struct ofi_conn *conn, struct ofi_buffer *buffer)
{
	struct ofi_frame_head head = {
		.bytes = (uint16_t)buffer->bytes,
		.credits = (uint16_t)conn->owed_credits,
		.taken = { conn->in[OFI_CONTROL].read, conn->in[OFI_BULK].read },
		.popped = conn->popped,
	};
	ssize_t result;

	memcpy(buffer->data, &head, sizeof(head));
	result = fi_send(
		conn->ep, buffer->data, buffer->bytes, memory_desc(conn), 0, &buffer->context);
	if (result == -FI_EAGAIN) {
		ofi_changed(conn); /* again in the next turn */
		return false;
	}
	if (result != 0) {
		ofi_conn_cut(conn, (int)-result);
		return false;
	}
	conn->sends_posted++;
	conn->credits--;
	conn->owed_credits = 0;
	conn->in[OFI_CONTROL].told = head.taken[OFI_CONTROL];
	conn->in[OFI_BULK].told = head.taken[OFI_BULK];
	conn->popped_told = head.popped;
	conn->must_tell = false;
	return true;
}

/* The peer's last receive is kept for frames that give it receives back: so there is always one of
 * the two that can send. */
static void post_frames(struct ofi_conn *conn)
{
	while (conn->phase == OFI_TALKING && conn->credits >= 2 && !list_is_empty(&conn->frames)) {
		struct ofi_buffer *buffer =
			list_entry(list_first(&conn->frames), struct ofi_buffer, node);

		if (buffer->after > conn->rmas_posted || !post_frame(conn, buffer)) {
			break;
		}
		list_remove(&buffer->node);
	}
	if (conn->phase == OFI_TALKING && !conn->tell_posted &&
		(conn->owed_credits >= OFI_RECEIVES / 2 || conn->must_tell) &&
		(conn->credits >= 2 || (conn->credits == 1 && conn->owed_credits >= 2))) {
		conn->tell.bytes = sizeof(struct ofi_frame_head);
		conn->tell_posted = post_frame(conn, &conn->tell);
	}
}

void ofi_publish_conn(struct ofi_conn *conn)
{
	list_remove(&conn->dirty_node);
	if (conn->phase != OFI_TALKING) {
		return;
	}
	ofi_rma_pump(conn);
	ofi_write_owed(conn);
	if (conn->open != NULL && conn->open->bytes > sizeof(struct ofi_frame_head)) {
		close_frame(conn);
	}
	post_frames(conn);
}

void ofi_frame_sent(struct ofi_conn *conn, struct ofi_buffer *buffer)
{
	conn->sends_posted--;
	if (buffer == &conn->tell) {
		conn->tell_posted = false;
	} else {
		list_push_back(&conn->free_sends, &buffer->node);
	}
	if (conn->phase != OFI_TALKING) {
		return;
	}
	if (!list_is_empty(&conn->owed) || conn->must_tell ||
		conn->owed_credits >= OFI_RECEIVES / 2) {
		ofi_changed(conn);
	}
	ofi_look_room(conn);
	ofi_conn_drained(conn);
}

/* --- room ------------------------------------------------------------------------------------- */

static bool ring_has_room(const struct ofi_conn *conn, enum ofi_class class, uint32_t slots)
{
	const struct ofi_out *out = &conn->out[class];

	return out->slots - (out->write - out->taken) >= slots;
}

static bool room_now(struct ofi_conn *conn, enum ofi_class class, size_t bytes)
{
	size_t with_head = sizeof(struct ofi_record_head) + bytes;

	return ring_has_room(conn, class, slots_of(with_head)) && ofi_write_owed(conn) &&
	       has_place(conn, align_up(with_head, OFI_RECORD_ALIGN));
}

bool ofi_room(struct ofi_conn *conn, enum ofi_class class, size_t bytes)
{
	if (room_now(conn, class, bytes)) {
		return true;
	}
	/* What has been sent, and what the peer has taken, is not known before libfabric is asked.
	 */
	ofi_publish_conn(conn);
	ofi_net_reap(conn->net);
	return conn->conn.state == CLAN_OPEN && room_now(conn, class, bytes);
}

int ofi_no_room(struct ofi_conn *conn, enum ofi_class class, size_t bytes)
{
	if (conn->conn.state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	conn->out[class].needed = slots_of(sizeof(struct ofi_record_head) + bytes);
	conn->conn.enabled |= ready_send[class];
	ofi_changed(conn); /* what is there must go, or room never comes */
	return -EAGAIN;
}

void ofi_look_room(struct ofi_conn *conn)
{
	uint32_t ready = 0;

	if (conn->conn.state != CLAN_OPEN || list_is_empty(&conn->free_sends)) {
		return;
	}
	for (uint32_t class = 0; class < OFI_RING_COUNT; class ++) {
		if (ring_has_room(conn, class, conn->out[class].needed)) {
			ready |= ready_send[class];
		}
	}
	if (ofi_cookie_room(conn)) {
		ready |= CLAN_READY_PUSH_COOKIE;
	}
	clan_conn_fire_ready(&conn->conn, ready);
}

static void message_sent(struct ofi_conn *conn, enum ofi_class class, size_t bytes)
{
	conn->out[class].write += slots_of(sizeof(struct ofi_record_head) + bytes);
	conn->conn.stats.messages_sent++;
	conn->conn.stats.bytes_sent += bytes;
}

/* A stream takes what there is room for. */
static ssize_t send_stream(struct ofi_conn *conn, const struct iovec *iov, size_t bytes)
{
	const size_t head_bytes = sizeof(struct ofi_record_head);
	struct ofi_out *out = &conn->out[OFI_BULK];
	size_t taken = 0;
	size_t skip = 0;
	uint32_t index = 0;

	while (taken < bytes && ofi_room(conn, OFI_BULK, OFI_RECORD_ALIGN)) {
		size_t room = (size_t)(out->slots - (out->write - out->taken)) * OFI_SLOT_BYTES;
		size_t piece = MIN(room - head_bytes, (size_t)CLAN_BULK_BYTES_MAX);

		piece = MIN(piece, bytes - taken);
		if (conn->open != NULL && list_is_empty(&conn->free_sends)) {
			piece = MIN(piece, OFI_FRAME_BYTES - conn->open->bytes - head_bytes);
		}
		append(conn, OFI_BULK, CLAN_TYPE_STREAM, piece, iov, &index, &skip);
		message_sent(conn, OFI_BULK, piece);
		taken += piece;
	}
	return taken > 0 ? (ssize_t)taken : ofi_no_room(conn, OFI_BULK, OFI_RECORD_ALIGN);
}

int ofi_send(struct clan_conn *base, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count, size_t bytes)
{
	struct ofi_conn *conn = ofi_conn(base);
	enum ofi_class class = cls == CLAN_CONTROL ? OFI_CONTROL : OFI_BULK;

	GMB_UNUSED(iov_count); /* the sum is known */
	if (type == CLAN_TYPE_STREAM) {
		return (int)send_stream(conn, iov, bytes);
	}
	if (!ofi_room(conn, class, bytes)) {
		return ofi_no_room(conn, class, bytes);
	}
	ofi_append(conn, class, (uint8_t)type, iov, bytes);
	message_sent(conn, class, bytes);
	return 0;
}

void ofi_notify(struct ofi_conn *conn, uint32_t value)
{
	struct iovec iov = { .iov_base = &value, .iov_len = sizeof(value) };

	ofi_append(conn, OFI_BULK, CLAN_TYPE_NOTIFY, &iov, sizeof(value));
	message_sent(conn, OFI_BULK, sizeof(value));
}

/* --- receiving -------------------------------------------------------------------------------- */

/* What the head of a frame says about our side. */
static bool head_is_valid(struct ofi_conn *conn, const struct ofi_frame_head *head, size_t bytes)
{
	if (bytes < sizeof(*head) || head->bytes != bytes || !is_aligned(bytes, OFI_RECORD_ALIGN)) {
		ofi_broken(conn, 1, "a frame has not the length that it says");
		return false;
	}
	/* Every frame is counted until a frame of ours has given its receive back. */
	if (conn->owed_credits == OFI_RECEIVES) {
		ofi_broken(conn, 2, "it sends more frames than there are receives for");
		return false;
	}
	if (head->credits > OFI_RECEIVES - conn->credits) {
		ofi_broken(conn, 2, "it takes more frames than it can");
		return false;
	}
	for (int class = 0; class < OFI_RING_COUNT; class ++) {
		struct ofi_out *out = &conn->out[class];

		if (head->taken[class] - out->taken > out->write - out->taken) {
			ofi_broken(conn, 3, "it took messages that were not there");
			return false;
		}
	}
	if (head->popped - conn->peer_popped > conn->pushed - conn->peer_popped) {
		ofi_broken(conn, 4, "it took cookies that were not there");
		return false;
	}
	return true;
}

static int message_arrived(
	struct ofi_conn *conn, const struct ofi_record_head *head, const uint8_t *record)
{
	struct ofi_ring *ring = &conn->in[head->class];
	uint32_t slots = slots_of(head->bytes);
	uint32_t value;

	if (conn->conn.state != CLAN_OPEN && conn->conn.state != CLAN_CLOSING) {
		return ofi_broken(conn, 6, "a message before the connection is open");
	}
	if (head->bytes > message_max[head->class] || head->type == 0 ||
		head->type > CLAN_TYPE_NOTIFY ||
		(head->type >= CLAN_TYPE_STREAM && head->class != OFI_BULK) ||
		(head->type == CLAN_TYPE_STREAM && head->bytes == sizeof(*head)) ||
		(head->type == CLAN_TYPE_NOTIFY && head->bytes != sizeof(*head) + sizeof(value))) {
		return ofi_broken(conn, 6, "a message is of a type or length that it may not send");
	}
	if (head->type == CLAN_TYPE_NOTIFY) {
		memcpy(&value, record + sizeof(*head), sizeof(value));
		if (value > CLAN_VALUE_MAX) {
			return ofi_broken(conn, 6, "a notification has no such values");
		}
	}
	if (conn->conn.state != CLAN_OPEN) {
		return 0; /* nobody will take it */
	}
	if (slots > ring->slots - (ring->write - ring->read)) {
		return ofi_broken(conn, 7, "it sends more messages than there is room for");
	}
	memcpy(ring->data + (size_t)(ring->write & (ring->slots - 1)) * OFI_SLOT_BYTES, record,
		head->bytes);
	ring->write += slots;
	clan_conn_fire_ready(&conn->conn, ready_recv[head->class]);
	return 0;
}

size_t ofi_system_bytes(enum ofi_system_type type)
{
	static const uint8_t lengths[OFI_SYSTEM_TYPE_COUNT] = {
		[OFI_HELLO] = sizeof(struct ofi_hello),
		[OFI_WELCOME] = sizeof(struct ofi_hello),
		[OFI_REFUSED] = sizeof(struct ofi_refused),
		[OFI_END] = sizeof(struct ofi_refused),
		[OFI_REGION] = sizeof(struct ofi_region),
		[OFI_REGION_OK] = sizeof(struct ofi_region_answer),
		[OFI_REGION_END] = sizeof(struct ofi_region_answer),
		[OFI_REGION_ENDED] = sizeof(struct ofi_region_answer),
		[OFI_GRANT] = sizeof(struct ofi_cookie_record),
		[OFI_REVOKE] = sizeof(struct ofi_revoke),
		[OFI_REVOKED] = sizeof(struct ofi_revoke),
		[OFI_COOKIE] = sizeof(struct ofi_cookie_record),
		[OFI_PUT] = sizeof(struct ofi_put),
	};

	return lengths[type];
}

static int system_arrived(
	struct ofi_conn *conn, const struct ofi_record_head *head, const uint8_t *data)
{
	uint32_t bytes = head->bytes - (uint32_t)sizeof(*head);

	if (head->type == 0 || head->type >= OFI_SYSTEM_TYPE_COUNT ||
		bytes < ofi_system_bytes(head->type) ||
		(head->type > OFI_REFUSED && bytes != ofi_system_bytes(head->type))) {
		return ofi_broken(conn, 6, "a record is of a type or length that it may not send");
	}
	if (head->type <= OFI_END) {
		return ofi_setup_arrived(conn, head->type, data, bytes);
	}
	if (conn->conn.state != CLAN_OPEN && conn->conn.state != CLAN_CLOSING) {
		return ofi_broken(conn, 6, "a record before the connection is open");
	}
	/* Nothing that it asks for is done any more. */
	return conn->conn.state == CLAN_OPEN ? ofi_memory_record(conn, head->type, data) : 0;
}

/* Walks the records of a frame. */
static int take_records(struct ofi_conn *conn, const uint8_t *data, size_t bytes)
{
	size_t at = sizeof(struct ofi_frame_head);
	int result = 0;

	while (at < bytes && result == 0) {
		struct ofi_record_head head;

		memcpy(&head, data + at, sizeof(head));
		if (head.bytes < sizeof(head) || head.bytes > bytes - at || head.reserved != 0 ||
			head.class > OFI_SYSTEM) {
			return ofi_broken(conn, 5, "a record does not fit its frame");
		}
		result = head.class == OFI_SYSTEM
				 ? system_arrived(conn, &head, data + at + sizeof(head))
				 : message_arrived(conn, &head, data + at);
		at += align_up(head.bytes, OFI_RECORD_ALIGN);
	}
	return result;
}

void ofi_frame_received(struct ofi_conn *conn, struct ofi_buffer *buffer, size_t bytes)
{
	struct ofi_frame_head head;
	int result;

	/* Adapters can deliver the first frame before the event that the endpoint is connected. */
	if (conn->phase == OFI_DIALING) {
		ofi_connected(conn);
	}
	if (conn->phase != OFI_TALKING || conn->conn.state == CLAN_LOST ||
		conn->conn.state == CLAN_CLOSED) {
		return;
	}
	memcpy(&head, buffer->data, sizeof(head));
	if (!head_is_valid(conn, &head, bytes)) {
		return;
	}
	conn->credits += head.credits;
	conn->out[OFI_CONTROL].taken = head.taken[OFI_CONTROL];
	conn->out[OFI_BULK].taken = head.taken[OFI_BULK];
	conn->peer_popped = head.popped;
	if (take_records(conn, buffer->data, bytes) != 0) {
		return;
	}
	result = post_receive(conn, buffer);
	if (result != 0) {
		ofi_conn_cut(conn, -result);
		return;
	}
	conn->owed_credits++;
	ofi_changed(conn);
	ofi_look_room(conn);
}

/* --- taking messages -------------------------------------------------------------------------- */

/* The head of the next message; NULL when there is none. It lies in one piece, and is ours. */
static const struct ofi_record_head *next_message(const struct ofi_ring *ring)
{
	return ring->read == ring->write
		       ? NULL
		       : (const struct ofi_record_head *)(const void
					 *)(ring->data + (size_t)(ring->read & (ring->slots - 1)) *
								 OFI_SLOT_BYTES);
}

static void message_taken(struct ofi_conn *conn, enum ofi_class class)
{
	struct ofi_ring *ring = &conn->in[class];

	ring->read += slots_of(next_message(ring)->bytes);
	ring->stream_at = 0;
	conn->conn.stats.messages_received++;
	if (ring->read - ring->told >= ring->slots / 2 && conn->phase == OFI_TALKING) {
		conn->must_tell = true;
		ofi_changed(conn);
	}
}

static int take_message(struct ofi_conn *conn, enum ofi_class class, struct clan_message *message,
	void *buffer, uint32_t bytes)
{
	struct ofi_ring *ring = &conn->in[class];
	const struct ofi_record_head *head = next_message(ring);
	const uint8_t *payload;

	if (head == NULL) {
		return -EAGAIN;
	}
	payload = (const uint8_t *)(head + 1) + ring->stream_at;
	*message = (struct clan_message){
		.cls = class == OFI_CONTROL ? CLAN_CONTROL : CLAN_BULK,
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

static int nothing_left(struct ofi_conn *conn, uint32_t classes)
{
	if (conn->conn.state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	conn->conn.enabled |= ((classes & CLAN_CONTROL) != 0 ? CLAN_READY_CONTROL : 0) |
			      ((classes & CLAN_BULK) != 0 ? CLAN_READY_BULK : 0);
	return -EAGAIN;
}

int ofi_recv(struct clan_conn *base, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes)
{
	struct ofi_conn *conn = ofi_conn(base);
	int result = -EAGAIN;

	if ((classes & CLAN_CONTROL) != 0 &&
		(conn->controls_in_row < CONTROL_IN_ROW_MAX || (classes & CLAN_BULK) == 0 ||
			next_message(&conn->in[OFI_BULK]) == NULL)) {
		result = take_message(conn, OFI_CONTROL, message, buffer, bytes);
		conn->controls_in_row += result == 0;
	}
	if (result == -EAGAIN && (classes & CLAN_BULK) != 0) {
		result = take_message(conn, OFI_BULK, message, buffer, bytes);
		conn->controls_in_row = 0;
	}
	return result == -EAGAIN ? nothing_left(conn, classes) : result;
}

ssize_t ofi_readv(struct clan_conn *base, const struct iovec *iov, uint32_t iov_count, bool peek)
{
	struct ofi_conn *conn = ofi_conn(base);
	struct ofi_ring *ring = &conn->in[OFI_BULK];
	const struct ofi_record_head *head;
	uint32_t index = 0;
	size_t skip = 0;
	size_t copied = 0;

	while (index < iov_count && (head = next_message(ring)) != NULL &&
		head->type == CLAN_TYPE_STREAM) {
		size_t left = (size_t)head->bytes - sizeof(*head) - ring->stream_at;
		size_t part = clan_scatter(iov, iov_count, &index, &skip,
			(const uint8_t *)(head + 1) + ring->stream_at, left);

		copied += part;
		if (peek) { /* of the message at hand */
			break;
		}
		ring->stream_at += (uint32_t)part;
		conn->conn.stats.bytes_received += part;
		if (part == left) {
			message_taken(conn, OFI_BULK);
		}
	}
	if (copied > 0) {
		return (ssize_t)copied;
	}
	return next_message(ring) != NULL ? -EBADMSG : nothing_left(conn, CLAN_BULK);
}
