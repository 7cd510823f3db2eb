// SPDX-License-Identifier: Apache-2.0
/* Parses and checks replies from a server in the transmission phase. Called by client.c with the
 * bytes that were not predicted; see client_private.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "nbd/client/client_private.h"

enum {
	DATA_OFFSET_BYTES = 8,
	/* Chunks of unknown error types up to this size are skipped; a longer one is a
	 * violation. */
	UNKNOWN_ERROR_BYTES_MAX = 1 << 20,
	EXTENTS_MAX = 1 << 20, /* limit from rule P103 */
};

/* A reply header in a form common to all three styles. */
struct reply {
	uint16_t flags;
	uint16_t type;
	uint64_t cookie;
	uint64_t length; /* bytes after the header */
	size_t header_bytes;
};

/* --- calls --------------------------------------------------------------------------------- */

/* Finds the call of a cookie; -EPROTO if there is none (rule P70). */
static int nbd_client_find(
	struct nbd_client *client, uint64_t cookie, struct nbd_call **call_out, struct error *error)
{
	bool is_size = client->size_asked && cookie == client->size_call.cookie;
	struct nbd_call *call =
		is_size ? &client->size_call : client->slots[cookie & (NBD_CLIENT_SLOTS_MAX - 1)];

	if (call == NULL || call->cookie != cookie || !call->laid_out || call->answered) {
		return error_set(error, -EPROTO,
			"the server replied to a request that was not made or that was already "
			"answered (rule P70)");
	}
	*call_out = call;
	return 0;
}

/* Called when the reply of x-gmblock:size is complete. */
static void end_size_call(struct nbd_client *client)
{
	bool is_news = client->size_call.result == 0 && client->size != client->size_call.offset;

	client->size_asked = false;
	client->size_answers += !is_news;
	client->size_refused =
		client->size_call.result != 0 || client->size_answers >= NBD_CLIENT_SIZES_MAX;
	client->text[0] = '\0';
	client->text_of = NULL;
	if (is_news) {
		client->handler->resized(client);
	}
}

static void replies_release(struct nbd_client *client, struct nbd_call *call)
{
	uint16_t slot = (uint16_t)(call->cookie & (NBD_CLIENT_SLOTS_MAX - 1));

	if (call->type == NBD_CMD_READ) {
		client->reads_awaiting--;
	}
	if (list_first(&client->awaiting) == &call->node) {
		client->ordered_run += client->predict == 0;
	} else {
		client->ordered_run = 0;
	}
	/* done() may add calls, so the slot is freed before. */
	list_remove(&call->node);
	client->slots[slot] = NULL;
	client->free_slots[client->free_count++] = slot;
	client->call_count--;
	client->steps++;
	free(call->intervals);
	call->intervals = NULL;
	call->interval_max = 0;
	if (client->text_of != call) {
		client->text[0] = '\0';
	}
	client->handler->done(client, call);
	client->text[0] = '\0';
	client->text_of = NULL;
}

int nbd_client_finish(struct nbd_client *client, struct nbd_call *call, struct error *error)
{
	GMB_ASSERT(client->current != call);
	if (call->result == 0 && call->type == NBD_CMD_READ && call->covered != call->length) {
		return error_set(error, -EPROTO,
			"the server completed a read without an error, but some of its data is "
			"missing (rule P90)");
	}
	if (call->result == 0 && call->type == NBD_CMD_BLOCK_STATUS && !call->described) {
		return error_set(error, -EPROTO,
			"the server completed a block status request without a result (rule P100)");
	}
	if (!call->sent) {
		/* the call's last bytes are being sent, so nbd_client_sent() completes it */
		call->answered = true;
		return 0;
	}
	if (call == &client->size_call) {
		end_size_call(client);
		return 0;
	}
	replies_release(client, call);
	return 0;
}

static int outside(struct error *error)
{
	return error_set(
		error, -EPROTO, "the server sent data outside the requested range (rule P90)");
}

static int sent_twice(struct error *error)
{
	return error_set(
		error, -EPROTO, "the server sent the same bytes of a read twice (rule P90)");
}

/* Returns the insert position for start: the first interval that ends at or after it. */
static uint32_t interval_search(const struct nbd_call *call, uint64_t start)
{
	uint32_t low = 0;
	uint32_t high = call->interval_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (call->intervals[middle].end < start) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

static int interval_insert(
	struct nbd_call *call, uint32_t at, struct nbd_interval interval, struct error *error)
{
	if (call->interval_count == call->interval_max) {
		uint32_t max = MAX(call->interval_max * 2, 16U);
		struct nbd_interval *moved;

		if (max > NBD_CLIENT_INTERVALS_MAX) {
			return error_set(error, -EPROTO,
				"the server sent the data of a read in more than %d scattered "
				"pieces (rule P90)",
				NBD_CLIENT_INTERVALS_MAX);
		}
		moved = realloc(call->intervals, max * sizeof(*moved));
		if (moved == NULL) {
			return error_oom(error);
		}
		call->intervals = moved;
		call->interval_max = max;
	}
	memmove(call->intervals + at + 1, call->intervals + at,
		(call->interval_count - at) * sizeof(call->intervals[0]));
	call->intervals[at] = interval;
	call->interval_count++;
	return 0;
}

/* Adds [start, end) to the sorted intervals and merges it with its neighbours. An overlap is an
 * error. */
static int interval_add(struct nbd_call *call, uint64_t start, uint64_t end, struct error *error)
{
	struct nbd_interval added = { .start = start, .end = end };
	struct nbd_interval *here;
	struct nbd_interval *next;
	bool touches_left;
	bool has_next;
	uint32_t at;

	if (call->interval_count == 0) {
		return interval_insert(call, 0, added, error);
	}
	at = interval_search(call, start);
	here = call->intervals + at;
	touches_left = at < call->interval_count && here->end == start;
	next = touches_left ? here + 1 : here;
	has_next = next < call->intervals + call->interval_count;
	if (has_next && next->start < end) {
		return sent_twice(error);
	}
	if (touches_left && has_next && next->start == end) {
		here->end = next->end;
		memmove(next, next + 1,
			(size_t)(call->intervals + call->interval_count - (next + 1)) *
				sizeof(*next));
		call->interval_count--;
		return 0;
	}
	if (touches_left) {
		here->end = end;
		return 0;
	}
	if (has_next && next->start == end) {
		next->start = start;
		return 0;
	}
	return interval_insert(call, at, added, error);
}

/* Records a content chunk of a READ. Checks that [start, start + length), relative to the call's
 * offset, is inside the request and was not received before (rules P90, P93, P98). */
static int nbd_client_cover(
	struct nbd_call *call, uint64_t start, uint64_t length, struct error *error)
{
	int err;

	if (call->type != NBD_CMD_READ) {
		return error_set(error, -EPROTO, "the server sent data for a %s request (rule P97)",
			nbd_command_name(call->type));
	}
	if (!range_inside(start, length, call->length)) {
		return outside(error);
	}
	if (call->covered > 0 && (call->flags & NBD_CMD_FLAG_DF) != 0) {
		return error_set(error, -EPROTO,
			"the server split a read that must not be split (rule P93)");
	}
	/* Most reads arrive in one chunk, which needs no intervals. */
	if (call->covered == 0 && length == call->length) {
		call->covered = length;
		return 0;
	}
	if (call->covered > 0 && !call->partial) {
		return sent_twice(error);
	}
	call->partial = true;
	err = interval_add(call, start, start + length, error);
	call->covered += length;
	return err;
}

void nbd_client_begin_data(
	struct nbd_client *client, struct nbd_call *call, uint64_t place, uint64_t bytes, bool ends)
{
	client->state = NBD_CLIENT_DATA;
	client->current = call;
	client->current_ends = ends;
	client->data_place = place;
	client->left = bytes;
}

int nbd_client_data_arrived(struct nbd_client *client, uint64_t bytes, struct error *error)
{
	struct nbd_call *call = client->current;

	GMB_ASSERT(bytes <= client->left);
	client->data_place += bytes;
	client->left -= bytes;
	client->steps++;
	if (client->left > 0) {
		return 0;
	}
	client->state = NBD_CLIENT_HEADER;
	client->current = NULL;
	return client->current_ends ? nbd_client_finish(client, call, error) : 0;
}

/* --- predicting --------------------------------------------------------------------------- */

size_t nbd_client_prefix_bytes(const struct nbd_client *client, const struct nbd_call *call)
{
	size_t data = call->type == NBD_CMD_READ ? DATA_OFFSET_BYTES : 0;

	switch (client->facts->style) {
	case NBD_REPLIES_SIMPLE:
		break;
	case NBD_REPLIES_STRUCTURED:
		return sizeof(struct nbd_wire_structured_reply) + data;
	case NBD_REPLIES_EXTENDED:
		return sizeof(struct nbd_wire_extended_reply) + data;
	}
	return sizeof(struct nbd_wire_simple_reply);
}

bool nbd_client_prefix_matches(
	const struct nbd_client *client, const struct nbd_call *call, const uint8_t *prefix)
{
	bool is_read = call->type == NBD_CMD_READ;
	struct be64 offset = be64_make(call->offset);
	uint16_t type = is_read ? NBD_REPLY_TYPE_OFFSET_DATA : NBD_REPLY_TYPE_NONE;
	uint64_t length = is_read ? DATA_OFFSET_BYTES + call->length : 0;

	if (call->type == NBD_CMD_BLOCK_STATUS || call->covered > 0) {
		return false;
	}
	switch (client->facts->style) {
	case NBD_REPLIES_SIMPLE: {
		struct nbd_wire_simple_reply simple = {
			.magic = be32_make(NBD_SIMPLE_REPLY_MAGIC),
			.cookie = call->cookie,
		};

		return memcmp(prefix, &simple, sizeof(simple)) == 0;
	}
	case NBD_REPLIES_STRUCTURED: {
		struct nbd_wire_structured_reply structured = {
			.magic = be32_make(NBD_STRUCTURED_REPLY_MAGIC),
			.flags = be16_make(NBD_REPLY_FLAG_DONE),
			.type = be16_make(type),
			.cookie = call->cookie,
			.length = be32_make((uint32_t)length),
		};

		return memcmp(prefix, &structured, sizeof(structured)) == 0 &&
		       (!is_read ||
			       memcmp(prefix + sizeof(structured), &offset, sizeof(offset)) == 0);
	}
	case NBD_REPLIES_EXTENDED:
		break;
	}
	struct nbd_wire_extended_reply extended = {
		.magic = be32_make(NBD_EXTENDED_REPLY_MAGIC),
		.flags = be16_make(NBD_REPLY_FLAG_DONE),
		.type = be16_make(type),
		.cookie = call->cookie,
		.offset = offset,
		.length = be64_make(length),
	};

	return memcmp(prefix, &extended, sizeof(extended)) == 0 &&
	       (!is_read || memcmp(prefix + sizeof(extended), &offset, sizeof(offset)) == 0);
}

/* --- chunks -------------------------------------------------------------------------------- */

static int replies_wrong_length(const char *what, const struct reply *reply, struct error *error)
{
	return error_set(error, -EPROTO,
		"the server sent a chunk %s with an invalid length of %llu bytes (rule P97)", what,
		(unsigned long long)reply->length);
}

static int chunk_end(
	struct nbd_client *client, struct nbd_call *call, bool ends, struct error *error)
{
	client->current = NULL;
	client->state = NBD_CLIENT_HEADER;
	return ends ? nbd_client_finish(client, call, error) : 0;
}

static void begin_skip(struct nbd_client *client, struct nbd_call *call, const struct reply *reply)
{
	client->state = NBD_CLIENT_SKIP;
	client->current = call;
	client->current_ends = (reply->flags & NBD_REPLY_FLAG_DONE) != 0;
}

/* Each chunk function gets the available bytes of the body. It returns the number of bytes consumed
 * (the state then defines what follows), 0 with *more if it needs more bytes, or an error. */
static int take_data(struct nbd_client *client, struct nbd_call *call, const struct reply *reply,
	const uint8_t *body, size_t len, bool *more, struct error *error)
{
	struct be64 wire;
	uint64_t bytes;
	int err;

	if (reply->length <= DATA_OFFSET_BYTES) {
		return replies_wrong_length("of data", reply, error);
	}
	if (len < DATA_OFFSET_BYTES) {
		*more = true;
		return 0;
	}
	memcpy(&wire, body, sizeof(wire));
	bytes = reply->length - DATA_OFFSET_BYTES;
	if (be64_get(wire) < call->offset) {
		return outside(error);
	}
	err = nbd_client_cover(call, be64_get(wire) - call->offset, bytes, error);
	if (err != 0) {
		return err;
	}
	nbd_client_begin_data(client, call, be64_get(wire) - call->offset, bytes,
		(reply->flags & NBD_REPLY_FLAG_DONE) != 0);
	return DATA_OFFSET_BYTES;
}

static int take_hole(struct nbd_client *client, struct nbd_call *call, const struct reply *reply,
	const uint8_t *body, size_t len, bool *more, struct error *error)
{
	struct nbd_wire_offset_hole hole;
	uint64_t offset;
	uint32_t bytes;
	int err;

	if (reply->length != sizeof(hole)) {
		return replies_wrong_length("about a hole", reply, error);
	}
	if (len < sizeof(hole)) {
		*more = true;
		return 0;
	}
	memcpy(&hole, body, sizeof(hole));
	offset = be64_get(hole.offset);
	bytes = be32_get(hole.length);
	if (bytes == 0 || offset < call->offset) {
		return error_set(error, -EPROTO,
			"the server sent a hole that is empty or outside the requested range (rule "
			"P90)");
	}
	err = nbd_client_cover(call, offset - call->offset, bytes, error);
	if (err != 0) {
		return err;
	}
	client->handler->hole(client, call, offset, bytes);
	client->steps++;
	if (client->is_lent) {
		nbd_client_begin_data(client, call, offset - call->offset, bytes,
			(reply->flags & NBD_REPLY_FLAG_DONE) != 0);
		client->state = NBD_CLIENT_ZERO;
		return sizeof(hole);
	}
	nbd_client_memory_zero(call, offset - call->offset, bytes);
	err = chunk_end(client, call, (reply->flags & NBD_REPLY_FLAG_DONE) != 0, error);
	return err != 0 ? err : (int)sizeof(hole);
}

static int not_asked(struct error *error)
{
	return error_set(error, -EPROTO,
		"the server sent block status that was not requested, or in a chunk of the wrong "
		"type (rule P97)");
}

/* Processes a chunk that only shows that the server is alive (docs/protocol/nbd.md). It can belong
 * to any reply. */
static int replies_take_alive(struct nbd_client *client, struct nbd_call *call,
	const struct reply *reply, size_t head, uint64_t count, struct error *error)
{
	if (count != 1 || (reply->flags & NBD_REPLY_FLAG_DONE) != 0) {
		return error_set(error, -EPROTO,
			"the server sent a keep-alive chunk that does not have exactly one extent "
			"(it has %llu), or that ends a reply (x-gmblock:alive)",
			(unsigned long long)count);
	}
	begin_skip(client, call, reply);
	client->left = reply->length - head;
	return (int)head;
}

/* Processes the reply of x-gmblock:size: the flags of its extents hold the 64 bits of the size
 * (docs/protocol/nbd.md). */
static int replies_take_size(struct nbd_client *client, struct nbd_call *call,
	const struct reply *reply, const uint8_t *body, size_t len, size_t head, uint64_t count,
	bool *more, struct error *error)
{
	bool extended = reply->type == NBD_REPLY_TYPE_BLOCK_STATUS_EXT;
	uint64_t size = 0;

	if (count != (extended ? 1 : NBD_SIZE_EXTENTS) || call->described ||
		(reply->flags & NBD_REPLY_FLAG_DONE) == 0) {
		return error_set(error, -EPROTO,
			"the server sent the export size with a wrong number of extents (%llu), "
			"twice, or not in the last chunk of a reply (x-gmblock:size)",
			(unsigned long long)count);
	}
	if (len < reply->length) {
		*more = true;
		return 0;
	}
	if (extended) {
		struct nbd_wire_extent_ext wire;

		memcpy(&wire, body + head, sizeof(wire));
		size = be64_get(wire.flags);
	} else {
		struct nbd_wire_extent wire[NBD_SIZE_EXTENTS];

		memcpy(wire, body + head, sizeof(wire));
		size = (uint64_t)be32_get(wire[0].flags) << 32 | be32_get(wire[1].flags);
	}
	if (size > INT64_MAX) {
		return error_set(error, -EPROTO,
			"the server reported a new export size of %llu bytes (rule P68)",
			(unsigned long long)size);
	}
	call->described = true;
	client->size = call->result == 0 ? size : client->size;
	return chunk_end(client, call, true, error) != 0 ? -EPROTO : (int)reply->length;
}

/* Processes the header of a block status chunk; its extents are processed one by one. */
static int replies_take_status(struct nbd_client *client, struct nbd_call *call,
	const struct reply *reply, const uint8_t *body, size_t len, bool *more, struct error *error)
{
	bool extended = reply->type == NBD_REPLY_TYPE_BLOCK_STATUS_EXT;
	size_t head = extended ? 8 : 4;
	size_t entry =
		extended ? sizeof(struct nbd_wire_extent_ext) : sizeof(struct nbd_wire_extent);
	struct be32 wire[2];
	uint64_t count;

	if (extended != (client->facts->style == NBD_REPLIES_EXTENDED) ||
		(!client->facts->says_alive && call != &client->size_call &&
			(call->type != NBD_CMD_BLOCK_STATUS || !client->facts->allocation))) {
		return not_asked(error);
	}
	if (reply->length < head + entry || (reply->length - head) % entry != 0) {
		return replies_wrong_length("of block status", reply, error);
	}
	if (len < head) {
		*more = true;
		return 0;
	}
	memcpy(wire, body, head);
	count = (reply->length - head) / entry;
	if (client->facts->says_alive && be32_get(wire[0]) == NBD_CONTEXT_ID_ALIVE) {
		return replies_take_alive(client, call, reply, head, count, error);
	}
	if (call == &client->size_call && be32_get(wire[0]) == NBD_CONTEXT_ID_SIZE) {
		return replies_take_size(client, call, reply, body, len, head, count, more, error);
	}
	if (call == &client->size_call || call->type != NBD_CMD_BLOCK_STATUS ||
		!client->facts->allocation) {
		return not_asked(error);
	}
	if (be32_get(wire[0]) != client->facts->allocation_id || call->described) {
		return error_set(error, -EPROTO,
			"the server sent block status of a metadata context that was not selected, "
			"or sent it twice (rule P100)");
	}
	if (count > EXTENTS_MAX || (extended && be32_get(wire[1]) != count)) {
		return error_set(error, -EPROTO,
			"the server sent a wrong number of extents (rules P103, P114)");
	}
	if ((call->flags & NBD_CMD_FLAG_REQ_ONE) != 0 && count != 1) {
		return error_set(error, -EPROTO,
			"the server sent %llu extents where one was requested (rule P102)",
			(unsigned long long)count);
	}
	call->described = true;
	client->state = NBD_CLIENT_EXTENTS;
	client->current = call;
	client->current_ends = (reply->flags & NBD_REPLY_FLAG_DONE) != 0;
	client->left = reply->length - head;
	return (int)head;
}

static int replies_take_extent(
	struct nbd_client *client, const uint8_t *body, size_t entry, struct error *error)
{
	struct nbd_call *call = client->current;
	uint64_t length;
	uint64_t flags;

	if (entry == sizeof(struct nbd_wire_extent_ext)) {
		struct nbd_wire_extent_ext wire;

		memcpy(&wire, body, sizeof(wire));
		length = be64_get(wire.length);
		flags = be64_get(wire.flags);
	} else {
		struct nbd_wire_extent wire;

		memcpy(&wire, body, sizeof(wire));
		length = be32_get(wire.length);
		flags = be32_get(wire.flags);
	}
	if (length == 0 || call->covered >= call->length) {
		return error_set(error, -EPROTO,
			"the server sent an empty extent, or one beyond the requested range (rules "
			"P100, P101)");
	}
	if (call->result == 0) {
		/* The last extent may extend beyond the request (rule P101). */
		client->handler->extent(
			client, call, MIN(length, call->length - call->covered), (uint32_t)flags);
	}
	call->covered += MIN(length, call->length - call->covered);
	client->left -= entry;
	client->steps++;
	return client->left > 0 ? 0 : chunk_end(client, call, client->current_ends, error);
}

/* Stores the first error of a call, with its text. */
static void keep_error(struct nbd_client *client, struct nbd_call *call, uint32_t number,
	const uint8_t *text, size_t text_bytes)
{
	if (call->result == 0) {
		call->result = nbd_error_to_errno(number);
		client->text_of = call;
		log_escape(client->text, sizeof(client->text), text, text_bytes);
	}
}

static int replies_take_error(struct nbd_client *client, struct nbd_call *call,
	const struct reply *reply, const uint8_t *body, size_t len, bool *more, struct error *error)
{
	bool with_offset = reply->type == NBD_REPLY_TYPE_ERROR_OFFSET;
	bool known = with_offset || reply->type == NBD_REPLY_TYPE_ERROR;
	size_t least = sizeof(struct nbd_wire_error) + (with_offset ? 8 : 0);
	struct nbd_wire_error head;
	size_t text_bytes;
	int err;

	if (reply->length < least || (known && reply->length > least + NBD_STRING_BYTES_MAX) ||
		reply->length > UNKNOWN_ERROR_BYTES_MAX) {
		return replies_wrong_length("about an error", reply, error);
	}
	if (len < (known ? reply->length : least)) {
		*more = true;
		return 0;
	}
	if (++call->error_count > NBD_CLIENT_ERRORS_MAX) {
		return error_set(error, -EPROTO,
			"the server sent more than %d errors for one request (rule P92)",
			NBD_CLIENT_ERRORS_MAX);
	}
	memcpy(&head, body, sizeof(head));
	text_bytes = be16_get(head.text_length);
	if (be32_get(head.error) == 0 || (known ? text_bytes != reply->length - least
						: text_bytes > reply->length - least)) {
		return error_set(error, -EPROTO,
			"the server sent an error chunk without an error, or with a wrong text "
			"length (rule P92)");
	}
	if (!known) {
		/* Rule P97: the request has failed, and the rest is ignored. */
		keep_error(client, call, be32_get(head.error), body, 0);
		begin_skip(client, call, reply);
		client->left = reply->length;
		return 0;
	}
	if (with_offset) {
		struct be64 at;

		memcpy(&at, body + sizeof(head) + text_bytes, sizeof(at));
		if (be64_get(at) < call->offset ||
			be64_get(at) - call->offset >= MAX(call->length, UINT64_C(1))) {
			return error_set(error, -EPROTO,
				"the server reported an error outside the requested range (rule "
				"P92)");
		}
	}
	keep_error(client, call, be32_get(head.error), body + sizeof(head), text_bytes);
	err = chunk_end(client, call, (reply->flags & NBD_REPLY_FLAG_DONE) != 0, error);
	return err != 0 ? err : (int)reply->length;
}

static int take_none(struct nbd_client *client, struct nbd_call *call, const struct reply *reply,
	struct error *error)
{
	if (reply->length != 0 || (reply->flags & NBD_REPLY_FLAG_DONE) == 0) {
		return error_set(error, -EPROTO,
			"the server sent a chunk of type NONE that has a payload or is not the "
			"last (rule P89)");
	}
	return chunk_end(client, call, true, error);
}

static int replies_take_chunk(struct nbd_client *client, struct nbd_call *call,
	const struct reply *reply, const uint8_t *body, size_t len, bool *more, struct error *error)
{
	switch (reply->type) {
	case NBD_REPLY_TYPE_NONE:
		return take_none(client, call, reply, error);
	case NBD_REPLY_TYPE_OFFSET_DATA:
		return take_data(client, call, reply, body, len, more, error);
	case NBD_REPLY_TYPE_OFFSET_HOLE:
		return take_hole(client, call, reply, body, len, more, error);
	case NBD_REPLY_TYPE_BLOCK_STATUS:
	case NBD_REPLY_TYPE_BLOCK_STATUS_EXT:
		return replies_take_status(client, call, reply, body, len, more, error);
	default:
		if ((reply->type & NBD_REPLY_TYPE_ERROR_BIT) != 0) {
			return replies_take_error(client, call, reply, body, len, more, error);
		}
		return error_set(error, -EPROTO,
			"the server sent a chunk of the unknown type %u (rule P97)", reply->type);
	}
}

/* --- headers ------------------------------------------------------------------------------- */

static int take_simple(struct nbd_client *client, const uint8_t *bytes, size_t len, bool *more,
	struct error *error)
{
	struct nbd_wire_simple_reply wire;
	struct nbd_call *call = NULL;
	int err;

	if (len < sizeof(wire)) {
		*more = true;
		return 0;
	}
	memcpy(&wire, bytes, sizeof(wire));
	err = nbd_client_find(client, wire.cookie, &call, error);
	if (err != 0) {
		return err;
	}
	if (client->facts->style != NBD_REPLIES_SIMPLE &&
		(call->type == NBD_CMD_READ || call->type == NBD_CMD_BLOCK_STATUS)) {
		return error_set(error, -EPROTO,
			"the server sent a simple reply to a %s request after structured replies "
			"were negotiated (rule P88)",
			nbd_command_name(call->type));
	}
	if (be32_get(wire.error) != 0) {
		keep_error(client, call, be32_get(wire.error), bytes, 0);
	} else if (call->type == NBD_CMD_READ) {
		call->covered = call->length;
		nbd_client_begin_data(client, call, 0, call->length, true);
		return sizeof(wire);
	}
	err = chunk_end(client, call, true, error);
	return err != 0 ? err : (int)sizeof(wire);
}

/* Sets *reply; returns false if more bytes are needed. */
static bool read_structured(const uint8_t *bytes, size_t len, struct reply *reply)
{
	struct nbd_wire_structured_reply wire;

	if (len < sizeof(wire)) {
		return false;
	}
	memcpy(&wire, bytes, sizeof(wire));
	*reply = (struct reply){
		.flags = be16_get(wire.flags),
		.type = be16_get(wire.type),
		.cookie = wire.cookie,
		.length = be32_get(wire.length),
		.header_bytes = sizeof(wire),
	};
	return true;
}

static bool read_extended(const uint8_t *bytes, size_t len, struct reply *reply, uint64_t *offset)
{
	struct nbd_wire_extended_reply wire;

	if (len < sizeof(wire)) {
		return false;
	}
	memcpy(&wire, bytes, sizeof(wire));
	*reply = (struct reply){
		.flags = be16_get(wire.flags),
		.type = be16_get(wire.type),
		.cookie = wire.cookie,
		.length = be64_get(wire.length),
		.header_bytes = sizeof(wire),
	};
	*offset = be64_get(wire.offset);
	return true;
}

size_t nbd_client_missing(const struct nbd_client *client)
{
	struct reply reply = { 0 };
	uint64_t offset;
	uint64_t whole;

	if (client->facts->style == NBD_REPLIES_EXTENDED
			? !read_extended(client->stage, client->stage_bytes, &reply, &offset)
			: !read_structured(client->stage, client->stage_bytes, &reply)) {
		return 1;
	}
	whole = reply.header_bytes + MIN(reply.length, (uint64_t)NBD_CLIENT_STAGE_BYTES);
	return whole > client->stage_bytes ? (size_t)(whole - client->stage_bytes) : 1;
}

/* Processes one reply header and the bytes that must be read with it. Returns the number of bytes
 * consumed. */
static int replies_take_reply(struct nbd_client *client, const uint8_t *bytes, size_t len,
	bool *more, struct error *error)
{
	bool extended = client->facts->style == NBD_REPLIES_EXTENDED;
	struct nbd_call *call = NULL;
	struct reply reply;
	struct be32 magic;
	uint64_t offset = 0;
	int took;

	if (len < sizeof(magic)) {
		*more = true;
		return 0;
	}
	memcpy(&magic, bytes, sizeof(magic));
	if (be32_get(magic) == NBD_SIMPLE_REPLY_MAGIC && !extended) {
		return take_simple(client, bytes, len, more, error);
	}
	if (be32_get(magic) != (extended ? NBD_EXTENDED_REPLY_MAGIC : NBD_STRUCTURED_REPLY_MAGIC) ||
		client->facts->style == NBD_REPLIES_SIMPLE) {
		return error_set(error, -EPROTO,
			"the server sent 0x%08x instead of the start of a reply (rule P120)",
			be32_get(magic));
	}
	if (extended ? !read_extended(bytes, len, &reply, &offset)
		     : !read_structured(bytes, len, &reply)) {
		*more = true;
		return 0;
	}
	took = nbd_client_find(client, reply.cookie, &call, error);
	if (took != 0) {
		return took;
	}
	if (extended && offset != call->offset) {
		return error_set(error, -EPROTO,
			"the offset in the server's reply differs from the offset in the request "
			"(rule P110)");
	}
	took = replies_take_chunk(client, call, &reply, bytes + reply.header_bytes,
		len - reply.header_bytes, more, error);
	return took < 0 || *more ? took : took + (int)reply.header_bytes;
}

/* --- consecutive bytes ------------------------------------------------------------------------ */

/* Processes the next bytes, as client->state demands: a reply's header, an extent, payload, or
 * bytes to skip. Returns the number of bytes consumed. */
static int feed_step(struct nbd_client *client, const uint8_t *bytes, size_t len, bool *more,
	struct error *error)
{
	size_t entry = client->facts->style == NBD_REPLIES_EXTENDED
			       ? sizeof(struct nbd_wire_extent_ext)
			       : sizeof(struct nbd_wire_extent);
	size_t part = (size_t)MIN(client->left, (uint64_t)len);
	int err;

	switch (client->state) {
	case NBD_CLIENT_HEADER:
		break;
	case NBD_CLIENT_ZERO:
		*more = true; /* the owner zeroes first */
		return 0;
	case NBD_CLIENT_DATA:
		/* A chunk's header has the length of the prefix, which is all that was received. */
		GMB_ASSERT(!client->is_lent);
		nbd_client_memory_write(client->current, client->data_place, bytes, part);
		client->moved_bytes += part;
		err = nbd_client_data_arrived(client, part, error);
		return err != 0 ? err : (int)part;
	case NBD_CLIENT_EXTENTS:
		if (len < entry) {
			*more = true;
			return 0;
		}
		err = replies_take_extent(client, bytes, entry, error);
		return err != 0 ? err : (int)entry;
	case NBD_CLIENT_SKIP:
		client->left -= part;
		err = client->left > 0
			      ? 0
			      : chunk_end(client, client->current, client->current_ends, error);
		return err != 0 ? err : (int)part;
	}
	return replies_take_reply(client, bytes, len, more, error);
}

int nbd_client_feed(
	struct nbd_client *client, const uint8_t *bytes, size_t len, struct error *error)
{
	bool more = false;
	size_t at = 0;

	while (at < len) {
		int took = feed_step(client, bytes + at, len - at, &more, error);

		if (took < 0) {
			return took;
		}
		if (more) {
			break;
		}
		at += (size_t)took;
	}
	/* The rest is an incomplete header, extent or error text, which fits in the stage. */
	GMB_ASSERT(len - at <= sizeof(client->stage));
	memmove(client->stage, bytes + at, len - at);
	client->stage_bytes = len - at;
	return 0;
}
