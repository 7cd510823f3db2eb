// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nbd/link_private.h"

enum { SPILL_BYTES = LINK_FORETOLD_BYTES_MAX + LINK_STAGE_BYTES, FORETELL_FIRST = 4 };

/* How many replies in order it takes before one is predicted again. */
enum { ORDERED_RUN_TO_FORETELL = 16 };

void link_init(struct link *link, const struct link_handler *handler,
	const struct negotiation_facts *facts, uint64_t seed)
{
	memset(link, 0, sizeof(*link));
	link->handler = handler;
	link->facts = facts;
	link->serial = seed;
	link->predict = FORETELL_FIRST;
	list_init(&link->unsent);
	list_init(&link->awaiting);
	for (uint32_t i = 0; i < LINK_SLOTS_MAX; i++) {
		link->free_slots[i] = (uint16_t)(LINK_SLOTS_MAX - 1 - i);
	}
	link->free_count = LINK_SLOTS_MAX;
}

void link_fini(struct link *link)
{
	GMB_ASSERT(link->call_count == 0);
	free(link->spill);
	link->spill = NULL;
}

/* --- memory of a call ---------------------------------------------------------------------- */

/* Moves the call's cursor to a place; cheap when that is at or after the last one. */
static void memory_seek(struct link_call *call, uint64_t place)
{
	uint64_t ahead;

	if (place < call->iov_place) {
		call->iov_at = 0;
		call->iov_into = 0;
		call->iov_place = 0;
		ahead = call->iov_skip + place;
	} else {
		ahead = place - call->iov_place;
	}
	while (ahead > 0) {
		uint64_t here = call->iov[call->iov_at].iov_len - call->iov_into;

		if (ahead < here) {
			call->iov_into += ahead;
			break;
		}
		ahead -= here;
		call->iov_at++;
		call->iov_into = 0;
	}
	call->iov_place = place;
}

uint32_t link_memory(struct link_call *call, uint64_t place, uint64_t length, struct iovec *iov,
	uint32_t iov_max, uint64_t *bytes)
{
	uint64_t laid = 0;
	uint64_t into;
	uint32_t count = 0;

	memory_seek(call, place);
	into = call->iov_into;
	for (uint32_t at = call->iov_at; laid < length && count < iov_max; at++) {
		uint64_t here = MIN(call->iov[at].iov_len - into, length - laid);

		if (here > 0) {
			iov[count++] = (struct iovec){
				.iov_base = (uint8_t *)call->iov[at].iov_base + into,
				.iov_len = here,
			};
			laid += here;
		}
		into = 0;
	}
	*bytes = laid;
	return count;
}

void link_memory_write(struct link_call *call, uint64_t place, const uint8_t *bytes, size_t len)
{
	while (len > 0) {
		struct iovec piece;
		uint64_t laid;

		(void)link_memory(call, place, len, &piece, 1, &laid);
		memcpy(piece.iov_base, bytes, laid);
		bytes += laid;
		place += laid;
		len -= laid;
	}
}

/* The first len bytes of a call's memory. */
static void memory_read(struct link_call *call, uint8_t *bytes, size_t len)
{
	struct iovec piece;
	uint64_t laid;

	for (size_t place = 0; place < len; place += laid) {
		(void)link_memory(call, place, len - place, &piece, 1, &laid);
		memcpy(bytes + place, piece.iov_base, laid);
	}
}

void link_memory_zero(struct link_call *call, uint64_t place, uint64_t length)
{
	while (length > 0) {
		struct iovec piece;
		uint64_t laid;

		(void)link_memory(call, place, length, &piece, 1, &laid);
		memset(piece.iov_base, 0, laid);
		place += laid;
		length -= laid;
	}
}

/* --- sending ------------------------------------------------------------------------------- */

static void header_make(const struct link *link, struct link_call *call)
{
	bool extended = link->facts->style == NBD_REPLIES_EXTENDED;

	if (extended) {
		uint16_t payload = call->type == NBD_CMD_WRITE ? NBD_CMD_FLAG_PAYLOAD_LEN : 0;

		call->header.extended = (struct nbd_wire_extended_request){
			.magic = be32_make(NBD_EXTENDED_REQUEST_MAGIC),
			.flags = be16_make((uint16_t)(call->flags | payload)),
			.type = be16_make(call->type),
			.cookie = call->cookie,
			.offset = be64_make(call->offset),
			.length = be64_make(call->length),
		};
		call->header_bytes = sizeof(call->header.extended);
	} else {
		GMB_ASSERT(call->length <= UINT32_MAX);
		call->header.compact = (struct nbd_wire_request){
			.magic = be32_make(NBD_REQUEST_MAGIC),
			.flags = be16_make(call->flags),
			.type = be16_make(call->type),
			.cookie = call->cookie,
			.offset = be64_make(call->offset),
			.length = be32_make((uint32_t)call->length),
		};
		call->header_bytes = sizeof(call->header.compact);
	}
}

void link_add(struct link *link, struct link_call *call)
{
	uint16_t slot;

	GMB_ASSERT(link->free_count > 0);
	slot = link->free_slots[--link->free_count];
	link->slots[slot] = call;
	call->cookie = link->serial++ << LINK_SLOT_BITS | slot;
	call->result = 0;
	call->covered = 0;
	call->partial = false;
	call->described = false;
	call->laid_out = false;
	call->sent = false;
	call->answered = false;
	call->interval_count = 0;
	call->error_count = 0;
	call->iov_at = 0;
	call->iov_into = 0;
	call->iov_place = UINT64_MAX; /* the first seek starts from iov_skip */
	header_make(link, call);
	list_push_back(&link->unsent, &call->node);
	link->call_count++;
}

static uint64_t payload_to_send(const struct link_call *call)
{
	return call->type == NBD_CMD_WRITE ? call->length : 0;
}

uint32_t link_output(struct link *link, struct iovec *iov, uint32_t iov_max)
{
	uint64_t skip = link->sent_of_first;
	uint64_t room = LINK_STEP_BYTES_MAX;
	uint32_t count = 0;

	list_for_each(node, &link->unsent)
	{
		struct link_call *call = list_entry(node, struct link_call, node);
		uint64_t payload = payload_to_send(call);
		uint64_t place = 0;
		uint64_t laid = 0;

		if (count == iov_max || room < sizeof(call->header)) {
			break;
		}
		call->laid_out = true;
		if (skip < call->header_bytes) {
			iov[count++] = (struct iovec){
				.iov_base = (uint8_t *)&call->header + skip,
				.iov_len = call->header_bytes - skip,
			};
			room -= call->header_bytes - skip;
		} else {
			place = skip - call->header_bytes;
		}
		skip = 0;
		if (place < payload && count < iov_max) {
			count += link_memory(call, place, MIN(payload - place, room), iov + count,
				iov_max - count, &laid);
			room -= laid;
		}
		if (place + laid < payload) {
			break;
		}
	}
	return count;
}

void link_sent(struct link *link, size_t bytes)
{
	uint64_t left = bytes;

	while (left > 0) {
		struct list_node *first = list_first(&link->unsent);
		struct link_call *call;
		uint64_t whole;
		uint64_t missing;

		GMB_ASSERT(first != NULL);
		call = list_entry(first, struct link_call, node);
		whole = call->header_bytes + payload_to_send(call);
		missing = whole - link->sent_of_first;
		if (left < missing) {
			link->sent_of_first += left;
			break;
		}
		left -= missing;
		link->sent_of_first = 0;
		link->sent_payload_bytes += payload_to_send(call);
		list_remove(&call->node);
		list_push_back(&link->awaiting, &call->node);
		call->sent = true;
		if (call->type == NBD_CMD_READ) {
			link->reads_awaiting++;
		}
		if (call->answered) {
			int err = link_finish(link, call, NULL);

			GMB_ASSERT(err == 0); /* it was checked when the answer came */
		}
	}
}

/* --- laying out a receive ------------------------------------------------------------------ */

static void plan_add(struct link *link, void *base, size_t bytes)
{
	link->plan[link->plan_count++] = (struct iovec){ .iov_base = base, .iov_len = bytes };
	link->plan_bytes += bytes;
}

static void plan_stage(struct link *link, size_t bytes)
{
	GMB_ASSERT(link->stage_bytes < sizeof(link->stage));
	plan_add(link, link->stage + link->stage_bytes,
		MIN(bytes, sizeof(link->stage) - link->stage_bytes));
}

/* The reply of one more call, as it should come. False when there is no room for it. */
static bool plan_predict(struct link *link, struct link_call *call)
{
	uint32_t i = link->predicted_count;
	size_t prefix = link_prefix_bytes(link, call);
	uint64_t laid = 0;

	if (call->type == NBD_CMD_BLOCK_STATUS || link->plan_count + 2 > LINK_IOV_MAX ||
		link->plan_bytes >= LINK_FORETOLD_BYTES_MAX) {
		return false;
	}
	/* Servers send what is long in several chunks, of sizes that only they know. */
	if (call->type == NBD_CMD_READ && call->length > LINK_WHOLE_BYTES_MIN &&
		link->facts->style != NBD_REPLIES_SIMPLE) {
		return false;
	}
	if (i == 0) {
		if (prefix <= link->stage_bytes) {
			return false; /* it is another already */
		}
		prefix -= link->stage_bytes;
		plan_add(link, link->stage + link->stage_bytes, prefix);
	} else {
		plan_add(link, link->prefixes[i], prefix);
	}
	if (call->type == NBD_CMD_READ && link->plan_bytes < LINK_FORETOLD_BYTES_MAX) {
		uint64_t room = LINK_FORETOLD_BYTES_MAX - link->plan_bytes;

		link->plan_count += link_memory(call, 0, MIN(call->length, room),
			link->plan + link->plan_count, LINK_IOV_MAX - link->plan_count, &laid);
		link->plan_bytes += laid;
	}
	link->predicted[i] = call;
	link->prefix_bytes[i] = prefix;
	link->payload_bytes[i] = (size_t)laid;
	link->predicted_count++;
	return call->type != NBD_CMD_READ || laid == call->length;
}

static void plan_header(struct link *link)
{
	if (link->reads_awaiting > 0) {
		list_for_each(node, &link->awaiting)
		{
			struct link_call *call = list_entry(node, struct link_call, node);

			if (call == link->current) {
				continue;
			}
			if (link->predicted_count >= link->predict || call->covered > 0 ||
				!plan_predict(link, call)) {
				break;
			}
		}
		if (link->predicted_count == 0) {
			/* Just the prefix: what follows has its own place. */
			size_t prefix = LINK_PREFIX_BYTES_MAX;

			switch (link->facts->style) {
			case NBD_REPLIES_SIMPLE:
				prefix = sizeof(struct nbd_wire_simple_reply);
				break;
			case NBD_REPLIES_STRUCTURED:
				prefix = sizeof(struct nbd_wire_structured_reply) + 8;
				break;
			case NBD_REPLIES_EXTENDED:
				break;
			}
			plan_stage(link, link->stage_bytes < prefix ? prefix - link->stage_bytes
								    : sizeof(link->stage));
		}
	} else {
		plan_stage(link, sizeof(link->stage));
	}
}

const struct iovec *link_input(struct link *link, uint32_t *iov_count, size_t *bytes, bool *whole)
{
	uint64_t laid;

	link_input_drop(link);
	*whole = false;
	switch (link->state) {
	case LINK_DATA:
		link->plan_count = link_memory(link->current, link->data_place,
			MIN(link->left, (uint64_t)LINK_STEP_BYTES_MAX), link->plan,
			LINK_IOV_MAX / 2, &laid);
		link->plan_data = (size_t)laid;
		link->plan_bytes = (size_t)laid;
		*whole = laid >= LINK_WHOLE_BYTES_MIN;
		if (!*whole && laid == link->left) {
			plan_header(link);
		}
		break;
	case LINK_HEADER:
		plan_header(link);
		break;
	case LINK_EXTENTS:
	case LINK_SKIP:
		plan_stage(link, sizeof(link->stage));
		break;
	}
	*iov_count = link->plan_count;
	*bytes = link->plan_bytes;
	return link->plan;
}

void link_input_drop(struct link *link)
{
	link->plan_count = 0;
	link->plan_bytes = 0;
	link->plan_data = 0;
	link->predicted_count = 0;
}

/* --- taking what was received -------------------------------------------------------------- */

/* Puts the rest of a wrongly predicted receive in a row: the prefix of reply i and all after it.
 * Returns how many bytes those are, with what the stage held before. */
static int spill_fill(struct link *link, uint32_t i, size_t left, size_t *len, struct error *error)
{
	size_t filled = 0;

	if (link->spill == NULL) {
		link->spill = malloc(SPILL_BYTES);
		if (link->spill == NULL) {
			return error_set(error, -ENOMEM, "out of memory for a receive buffer");
		}
	}
	if (i == 0) {
		memcpy(link->spill, link->stage, link->stage_bytes);
		filled = link->stage_bytes;
	}
	for (; i < link->predicted_count && left > 0; i++) {
		const uint8_t *prefix =
			i == 0 ? link->stage + link->stage_bytes : link->prefixes[i];
		size_t part = MIN(left, link->prefix_bytes[i]);

		memcpy(link->spill + filled, prefix, part);
		filled += part;
		left -= part;
		part = MIN(left, link->payload_bytes[i]);
		memory_read(link->predicted[i], link->spill + filled, part);
		filled += part;
		left -= part;
	}
	GMB_ASSERT(left == 0);
	link->stage_bytes = 0;
	*len = filled;
	return 0;
}

/* Reply i came as predicted, and with it `left` bytes from its payload on; sets how many it took.
 */
static int take_predicted(
	struct link *link, uint32_t i, size_t left, size_t *taken, struct error *error)
{
	struct link_call *call = link->predicted[i];

	link->stage_bytes = i == 0 ? 0 : link->stage_bytes;
	link->ordered_run++;
	if (call->type != NBD_CMD_READ) {
		*taken = 0;
		return link_finish(link, call, error);
	}
	*taken = MIN(left, link->payload_bytes[i]);
	call->covered = call->length;
	link_begin_data(link, call, 0, call->length, true);
	return *taken > 0 ? link_data_arrived(link, *taken, error) : 0;
}

static int take_all_predicted(struct link *link, size_t left, struct error *error)
{
	size_t taken;
	int err;

	for (uint32_t i = 0; i < link->predicted_count && left > 0; i++) {
		uint8_t *prefix = i == 0 ? link->stage : link->prefixes[i];
		bool whole = left >= link->prefix_bytes[i];

		if (!whole) {
			/* The beginning of a header, or a shorter reply. */
			if (i > 0) {
				memcpy(link->stage, prefix, left);
			}
			link->stage_bytes = (i == 0 ? link->stage_bytes : 0) + left;
			return link_feed(link, link->stage, link->stage_bytes, error);
		}
		if (!link_prefix_matches(link, link->predicted[i], prefix)) {
			size_t len = 0;

			link->predict /= 2;
			link->ordered_run = 0;
			err = spill_fill(link, i, left, &len, error);
			return err != 0 ? err : link_feed(link, link->spill, len, error);
		}
		left -= link->prefix_bytes[i];
		err = take_predicted(link, i, left, &taken, error);
		if (err != 0) {
			return err;
		}
		left -= taken;
	}
	if (link->ordered_run >= link->predict) {
		link->predict = MIN(link->predict * 2, (uint32_t)LINK_FORETOLD_MAX);
		link->ordered_run = 0;
	}
	return 0;
}

int link_received(struct link *link, size_t bytes, struct error *error)
{
	size_t data = MIN(bytes, link->plan_data);
	int err;

	GMB_ASSERT(bytes > 0);
	GMB_ASSERT(bytes <= link->plan_bytes);
	if (data > 0) {
		err = link_data_arrived(link, data, error);
		if (err != 0) {
			return err;
		}
		bytes -= data;
	}
	if (bytes == 0) {
		err = 0;
	} else if (link->predicted_count > 0) {
		err = take_all_predicted(link, bytes, error);
	} else {
		link->stage_bytes += bytes;
		err = link_feed(link, link->stage, link->stage_bytes, error);
	}
	if (link->predict == 0 && link->ordered_run >= ORDERED_RUN_TO_FORETELL) {
		link->predict = 1;
		link->ordered_run = 0;
	}
	link_input_drop(link);
	return err;
}

/* --- the end ------------------------------------------------------------------------------- */

struct link_call *link_take_back(struct link *link, bool *was_sent)
{
	struct list_node *node = list_pop_front(&link->awaiting);
	struct link_call *call;

	if (node == NULL) {
		node = list_pop_front(&link->unsent);
	}
	if (node == NULL) {
		return NULL;
	}
	call = list_entry(node, struct link_call, node);
	*was_sent = call->laid_out;
	link->slots[call->cookie & (LINK_SLOTS_MAX - 1)] = NULL;
	link->free_slots[link->free_count++] = (uint16_t)(call->cookie & (LINK_SLOTS_MAX - 1));
	link->call_count--;
	free(call->intervals);
	call->intervals = NULL;
	call->interval_max = 0;
	return call;
}

size_t link_farewell(const struct link *link, uint8_t out[32])
{
	struct link_call disc = { .type = NBD_CMD_DISC };

	header_make(link, &disc);
	memcpy(out, &disc.header, disc.header_bytes);
	return disc.header_bytes;
}
