// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "nbd/client/client_private.h"

enum { SPILL_BYTES = NBD_CLIENT_PREDICTED_BYTES_MAX + NBD_CLIENT_STAGE_BYTES, PREDICT_FIRST = 4 };

/* After this number of consecutive replies in the order of their calls, replies are predicted
 * again. */
enum { ORDERED_RUN_TO_PREDICT = 16 };

void nbd_client_init(struct nbd_client *client, const struct nbd_client_handler *handler,
	const struct nbd_facts *facts, uint64_t seed)
{
	memset(client, 0, sizeof(*client));
	client->handler = handler;
	client->facts = facts;
	client->size = facts->size;
	client->serial = seed;
	client->predict = PREDICT_FIRST;
	list_init(&client->unsent);
	list_init(&client->awaiting);
	list_init(&client->size_call.node);
	for (uint32_t i = 0; i < NBD_CLIENT_SLOTS_MAX; i++) {
		client->free_slots[i] = (uint16_t)(NBD_CLIENT_SLOTS_MAX - 1 - i);
	}
	client->free_count = NBD_CLIENT_SLOTS_MAX;
}

void nbd_client_fini(struct nbd_client *client)
{
	GMB_ASSERT(client->call_count == 0);
	free(client->spill);
	client->spill = NULL;
}

/* --- memory of a call ---------------------------------------------------------------------- */

/* Moves the call's cursor to place. O(1) for sequential access; a place before the cursor restarts
 * from the beginning. */
static void memory_seek(struct nbd_call *call, uint64_t place)
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

/* Lays out [place, place + length) of a call's memory in at most iov_max entries. Returns their
 * number and sets *bytes. */
static uint32_t nbd_client_memory(struct nbd_call *call, uint64_t place, uint64_t length,
	struct iovec *iov, uint32_t iov_max, uint64_t *bytes)
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

void nbd_client_memory_write(
	struct nbd_call *call, uint64_t place, const uint8_t *bytes, size_t len)
{
	while (len > 0) {
		struct iovec piece;
		uint64_t laid;

		(void)nbd_client_memory(call, place, len, &piece, 1, &laid);
		memcpy(piece.iov_base, bytes, laid);
		bytes += laid;
		place += laid;
		len -= laid;
	}
}

/* Copies the first len bytes of a call's memory. */
static void memory_read(struct nbd_call *call, uint8_t *bytes, size_t len)
{
	struct iovec piece;
	uint64_t laid;

	for (size_t place = 0; place < len; place += laid) {
		(void)nbd_client_memory(call, place, len - place, &piece, 1, &laid);
		memcpy(bytes + place, piece.iov_base, laid);
	}
}

void nbd_client_memory_zero(struct nbd_call *call, uint64_t place, uint64_t length)
{
	while (length > 0) {
		struct iovec piece;
		uint64_t laid;

		(void)nbd_client_memory(call, place, length, &piece, 1, &laid);
		memset(piece.iov_base, 0, laid);
		place += laid;
		length -= laid;
	}
}

/* --- sending ------------------------------------------------------------------------------- */

static void header_make(enum nbd_reply_style style, struct nbd_call *call)
{
	if (style == NBD_REPLIES_EXTENDED) {
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

/* Gives the call a new cookie and resets it. The low bits of the cookie are the slot and the others
 * a serial number, so a late reply to an earlier call in the slot does not match. */
static void queue(struct nbd_client *client, struct nbd_call *call, uint16_t slot)
{
	call->cookie = client->serial++ << NBD_CLIENT_SLOT_BITS | slot;
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
	header_make(client->facts->style, call);
	list_push_back(&client->unsent, &call->node);
}

void nbd_client_add(struct nbd_client *client, struct nbd_call *call)
{
	uint16_t slot;

	GMB_ASSERT(client->free_count > 0);
	slot = client->free_slots[--client->free_count];
	client->slots[slot] = call;
	queue(client, call, slot);
	client->call_count++;
}

void nbd_client_watch_size(struct nbd_client *client)
{
	if (client->facts->says_size && client->facts->style != NBD_REPLIES_SIMPLE &&
		!client->size_asked && !client->size_refused) {
		client->size_asked = true;
		client->size_call = (struct nbd_call){
			.type = NBD_CMD_BLOCK_STATUS,
			.offset = client->size,
		};
		/* the new serial number makes the cookie unique */
		queue(client, &client->size_call, 0);
	}
}

static uint64_t payload_to_send(const struct nbd_call *call)
{
	return call->type == NBD_CMD_WRITE ? call->length : 0;
}

uint32_t nbd_client_output(struct nbd_client *client, struct iovec *iov, uint32_t iov_max)
{
	uint64_t skip = client->sent_of_first;
	uint64_t room = NBD_CLIENT_STEP_BYTES_MAX;
	uint32_t count = 0;

	list_for_each(node, &client->unsent)
	{
		struct nbd_call *call = list_entry(node, struct nbd_call, node);
		uint64_t payload = payload_to_send(call);
		uint64_t place = 0;
		uint64_t laid = 0;

		if (count == iov_max || room < sizeof(call->header)) {
			break;
		}
		/* From here on the server may receive the call, even if sending fails. */
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
			count += nbd_client_memory(call, place, MIN(payload - place, room),
				iov + count, iov_max - count, &laid);
			room -= laid;
		}
		if (place + laid < payload) {
			break;
		}
	}
	return count;
}

void nbd_client_sent(struct nbd_client *client, size_t bytes)
{
	uint64_t left = bytes;

	while (left > 0) {
		struct list_node *first = list_first(&client->unsent);
		struct nbd_call *call;
		uint64_t whole;
		uint64_t missing;

		GMB_ASSERT(first != NULL);
		call = list_entry(first, struct nbd_call, node);
		whole = call->header_bytes + payload_to_send(call);
		missing = whole - client->sent_of_first;
		if (left < missing) {
			client->sent_of_first += left;
			break;
		}
		left -= missing;
		client->sent_of_first = 0;
		list_remove(&call->node);
		if (call != &client->size_call) { /* size_call can be answered at any time */
			list_push_back(&client->awaiting, &call->node);
		}
		call->sent = true;
		if (call->type == NBD_CMD_READ) {
			client->reads_awaiting++;
		}
		if (call->answered) {
			int err = nbd_client_finish(client, call, NULL);

			GMB_ASSERT(err == 0); /* the answer was checked when it arrived */
		}
	}
}

/* --- laying out a receive ------------------------------------------------------------------ */

static void plan_add(struct nbd_client *client, void *base, size_t bytes)
{
	client->plan[client->plan_count++] = (struct iovec){ .iov_base = base, .iov_len = bytes };
	client->plan_bytes += bytes;
}

static void plan_stage(struct nbd_client *client, size_t bytes)
{
	GMB_ASSERT(client->stage_bytes < sizeof(client->stage));
	plan_add(client, client->stage + client->stage_bytes,
		MIN(bytes, sizeof(client->stage) - client->stage_bytes));
}

/* Adds buffers for the reply to one more call, the i-th of this receive. Returns false if no reply
 * can be predicted after it. */
static bool plan_predict(struct nbd_client *client, struct nbd_call *call)
{
	uint32_t i = client->predicted_count;
	size_t prefix = nbd_client_prefix_bytes(client, call);
	uint64_t laid = 0;

	if (call->type == NBD_CMD_BLOCK_STATUS || client->plan_count + 2 > NBD_CLIENT_IOV_MAX ||
		client->plan_bytes >= NBD_CLIENT_PREDICTED_BYTES_MAX) {
		return false;
	}
	/* A server may split a long reply into chunks at any place, so the client cannot know where
	 * the headers and the payload will be in the byte stream. */
	if (call->type == NBD_CMD_READ && call->length > NBD_CLIENT_WHOLE_BYTES_MIN &&
		client->facts->style != NBD_REPLIES_SIMPLE) {
		return false;
	}
	if (i == 0) {
		if (prefix <= client->stage_bytes) {
			/* The incomplete header in the stage is as long as the one expected here,
			 * or longer, so it belongs to another reply. */
			return false;
		}
		prefix -= client->stage_bytes;
		plan_add(client, client->stage + client->stage_bytes, prefix);
	} else {
		plan_add(client, client->prefixes[i], prefix);
	}
	if (call->type == NBD_CMD_READ && client->plan_bytes < NBD_CLIENT_PREDICTED_BYTES_MAX) {
		uint64_t room = NBD_CLIENT_PREDICTED_BYTES_MAX - client->plan_bytes;

		client->plan_count += nbd_client_memory(call, 0, MIN(call->length, room),
			client->plan + client->plan_count, NBD_CLIENT_IOV_MAX - client->plan_count,
			&laid);
		client->plan_bytes += laid;
	}
	client->predicted[i] = call;
	client->prefix_bytes[i] = prefix;
	client->payload_bytes[i] = (size_t)laid;
	client->predicted_count++;
	return call->type != NBD_CMD_READ || laid == call->length;
}

static void plan_header(struct nbd_client *client)
{
	if (client->reads_awaiting > 0 || client->is_lent) {
		list_for_each(node, &client->awaiting)
		{
			struct nbd_call *call = list_entry(node, struct nbd_call, node);

			if (client->is_lent) {
				break;
			}
			if (call == client->current) {
				continue;
			}
			if (client->predicted_count >= client->predict || call->covered > 0 ||
				!plan_predict(client, call)) {
				break;
			}
		}
		if (client->predicted_count == 0) {
			/* Receives no more than the prefix, because the payload after it goes to
			 * other memory. */
			size_t prefix = NBD_CLIENT_PREFIX_BYTES_MAX;

			switch (client->facts->style) {
			case NBD_REPLIES_SIMPLE:
				prefix = sizeof(struct nbd_wire_simple_reply);
				break;
			case NBD_REPLIES_STRUCTURED:
				prefix = sizeof(struct nbd_wire_structured_reply) + 8;
				break;
			case NBD_REPLIES_EXTENDED:
				break;
			}
			plan_stage(client, client->stage_bytes < prefix
						   ? prefix - client->stage_bytes
					   : client->is_lent ? nbd_client_missing(client)
							     : sizeof(client->stage));
		}
	} else {
		plan_stage(client, sizeof(client->stage));
	}
}

const struct iovec *nbd_client_input(
	struct nbd_client *client, uint32_t *iov_count, size_t *bytes, bool *whole)
{
	uint64_t laid;

	nbd_client_input_drop(client);
	*whole = false;
	switch (client->state) {
	case NBD_CLIENT_DATA:
	case NBD_CLIENT_ZERO:
		client->plan_count = nbd_client_memory(client->current, client->data_place,
			MIN(client->left, (uint64_t)NBD_CLIENT_STEP_BYTES_MAX), client->plan,
			NBD_CLIENT_IOV_MAX / 2, &laid);
		client->plan_data = (size_t)laid;
		client->plan_bytes = (size_t)laid;
		/* A long rest of a payload is received alone, with one wake-up. A short rest is
		 * received together with the next headers. */
		*whole = laid >= NBD_CLIENT_WHOLE_BYTES_MIN || client->is_lent;
		if (!*whole && laid == client->left) {
			plan_header(client);
		}
		break;
	case NBD_CLIENT_HEADER:
		plan_header(client);
		break;
	case NBD_CLIENT_EXTENTS:
	case NBD_CLIENT_SKIP:
		plan_stage(client, client->is_lent ? client->left - client->stage_bytes
						   : sizeof(client->stage));
		break;
	}
	*iov_count = client->plan_count;
	*bytes = client->plan_bytes;
	return client->plan;
}

void nbd_client_input_drop(struct nbd_client *client)
{
	client->plan_count = 0;
	client->plan_bytes = 0;
	client->plan_data = 0;
	client->predicted_count = 0;
}

/* --- processing received bytes ---------------------------------------------------------------- */

/* Called when reply i is not as predicted: copies everything received from its prefix on to
 * client->spill, as consecutive bytes. left: number of bytes. *len: number of bytes in spill,
 * which begin with the bytes that were already in the stage. */
static int spill_fill(
	struct nbd_client *client, uint32_t i, size_t left, size_t *len, struct error *error)
{
	size_t filled = 0;

	if (client->spill == NULL) {
		client->spill = malloc(SPILL_BYTES);
		if (client->spill == NULL) {
			return error_oom_for(error, "a receive buffer");
		}
	}
	if (i == 0) {
		memcpy(client->spill, client->stage, client->stage_bytes);
		filled = client->stage_bytes;
	}
	for (; i < client->predicted_count && left > 0; i++) {
		const uint8_t *prefix =
			i == 0 ? client->stage + client->stage_bytes : client->prefixes[i];
		size_t part = MIN(left, client->prefix_bytes[i]);

		memcpy(client->spill + filled, prefix, part);
		filled += part;
		left -= part;
		part = MIN(left, client->payload_bytes[i]);
		memory_read(client->predicted[i], client->spill + filled, part);
		filled += part;
		left -= part;
	}
	GMB_ASSERT(left == 0);
	client->stage_bytes = 0;
	*len = filled;
	return 0;
}

/* Called when reply i came as predicted. left: bytes received after its prefix. *taken: bytes of
 * these that are its payload. */
static int take_predicted(
	struct nbd_client *client, uint32_t i, size_t left, size_t *taken, struct error *error)
{
	struct nbd_call *call = client->predicted[i];

	client->stage_bytes = i == 0 ? 0 : client->stage_bytes;
	client->ordered_run++;
	if (call->type != NBD_CMD_READ) {
		*taken = 0;
		return nbd_client_finish(client, call, error);
	}
	*taken = MIN(left, client->payload_bytes[i]);
	call->covered = call->length;
	nbd_client_begin_data(client, call, 0, call->length, true);
	return *taken > 0 ? nbd_client_data_arrived(client, *taken, error) : 0;
}

/* Processes a receive into predicted replies, up to the first reply that is different or
 * incomplete. */
static int take_all_predicted(struct nbd_client *client, size_t left, struct error *error)
{
	size_t taken;
	int err;

	for (uint32_t i = 0; i < client->predicted_count && left > 0; i++) {
		uint8_t *prefix = i == 0 ? client->stage : client->prefixes[i];
		bool whole = left >= client->prefix_bytes[i];

		if (!whole) {
			/* An incomplete header, or a reply that is shorter than predicted. */
			if (i > 0) {
				memcpy(client->stage, prefix, left);
			}
			client->stage_bytes = (i == 0 ? client->stage_bytes : 0) + left;
			return nbd_client_feed(client, client->stage, client->stage_bytes, error);
		}
		if (!nbd_client_prefix_matches(client, client->predicted[i], prefix)) {
			size_t len = 0;

			client->predict /= 2;
			client->ordered_run = 0;
			err = spill_fill(client, i, left, &len, error);
			return err != 0 ? err : nbd_client_feed(client, client->spill, len, error);
		}
		left -= client->prefix_bytes[i];
		err = take_predicted(client, i, left, &taken, error);
		if (err != 0) {
			return err;
		}
		left -= taken;
	}
	if (client->ordered_run >= client->predict) {
		client->predict = MIN(client->predict * 2, (uint32_t)NBD_CLIENT_PREDICTED_MAX);
		client->ordered_run = 0;
	}
	return 0;
}

int nbd_client_received(struct nbd_client *client, size_t bytes, struct error *error)
{
	size_t data = MIN(bytes, client->plan_data);
	int err;

	GMB_ASSERT(bytes > 0);
	GMB_ASSERT(bytes <= client->plan_bytes);
	if (data > 0) {
		err = nbd_client_data_arrived(client, data, error);
		if (err != 0) {
			return err;
		}
		bytes -= data;
	}
	if (bytes == 0) {
		err = 0;
	} else if (client->predicted_count > 0) {
		err = take_all_predicted(client, bytes, error);
	} else {
		client->stage_bytes += bytes;
		err = nbd_client_feed(client, client->stage, client->stage_bytes, error);
	}
	if (client->predict == 0 && client->ordered_run >= ORDERED_RUN_TO_PREDICT) {
		client->predict = 1;
		client->ordered_run = 0;
	}
	nbd_client_input_drop(client);
	return err;
}

/* --- the end ------------------------------------------------------------------------------- */

struct nbd_call *nbd_client_take_back(struct nbd_client *client, bool *was_sent)
{
	struct list_node *node = list_pop_front(&client->awaiting);
	struct nbd_call *call;

	list_remove(&client->size_call.node);
	if (node == NULL) {
		node = list_pop_front(&client->unsent);
	}
	if (node == NULL) {
		return NULL;
	}
	call = list_entry(node, struct nbd_call, node);
	*was_sent = call->laid_out;
	client->slots[call->cookie & (NBD_CLIENT_SLOTS_MAX - 1)] = NULL;
	client->free_slots[client->free_count++] =
		(uint16_t)(call->cookie & (NBD_CLIENT_SLOTS_MAX - 1));
	client->call_count--;
	free(call->intervals);
	call->intervals = NULL;
	call->interval_max = 0;
	return call;
}

size_t nbd_client_farewell(enum nbd_reply_style style, uint8_t out[NBD_CLIENT_FAREWELL_BYTES_MAX])
{
	struct nbd_call disc = { .type = NBD_CMD_DISC };

	header_make(style, &disc);
	memcpy(out, &disc.header, disc.header_bytes);
	return disc.header_bytes;
}
