// SPDX-License-Identifier: Apache-2.0
#include "nbd_client_model.h"

#include <stdlib.h>
#include <string.h>

/* One reply header. */
struct head {
	uint16_t flags;
	uint16_t type;
	uint64_t cookie;
	uint64_t length;
};

void model_call_init(struct model_call *call)
{
	call->done = false;
	call->error = 0;
	call->described = false;
	call->described_bytes = 0;
	call->story = 0;
	call->covered_bytes = 0;
	call->errors = 0;
	call->memory = NULL;
	call->covered = NULL;
	if (call->type == NBD_CMD_READ) {
		call->memory = calloc(1, call->length + 1);
		call->covered = calloc(1, call->length + 1);
		GMB_ASSERT(call->memory != NULL && call->covered != NULL);
	}
}

void model_call_fini(struct model_call *call)
{
	free(call->memory);
	free(call->covered);
	call->memory = NULL;
	call->covered = NULL;
}

static uint64_t digest(uint64_t story, uint64_t value)
{
	for (int i = 0; i < 64; i += 8) {
		story = (story ^ (value >> i & 0xff)) * UINT64_C(0x100000001b3);
	}
	return story;
}

uint64_t model_story_hole(uint64_t story, uint64_t offset, uint64_t length)
{
	return digest(digest(digest(story, 1), offset), length);
}

uint64_t model_story_extent(uint64_t story, uint64_t length, uint32_t flags)
{
	return digest(digest(digest(story, 2), length), flags);
}

/* --- bytes --------------------------------------------------------------------------------- */

static uint64_t number(const uint8_t *bytes, size_t len)
{
	uint64_t value = 0;

	for (size_t i = 0; i < len; i++) {
		value = value << 8 | bytes[i];
	}
	return value;
}

static void skip(struct model *model, size_t bytes)
{
	model->at += bytes;
	model->left -= bytes;
}

/* False: the rule is broken. The result of every step below; *more: the stream ends too early. */
static bool broken(struct model *model, const char *rule)
{
	model->violation = rule;
	return false;
}

static bool incomplete(bool *more)
{
	*more = true;
	return true;
}

/* --- calls --------------------------------------------------------------------------------- */

static struct model_call *find(struct model *model, uint64_t cookie)
{
	if (model->size_call != NULL && model->size_call->cookie == cookie &&
		!model->size_call->done) {
		return model->size_call;
	}
	for (uint32_t i = 0; i < model->call_count; i++) {
		if (model->calls[i].cookie == cookie && !model->calls[i].done) {
			return &model->calls[i];
		}
	}
	return NULL;
}

static bool finish(struct model *model, struct model_call *call)
{
	if (call->error == 0 && call->type == NBD_CMD_READ && call->covered_bytes != call->length) {
		return broken(model, "P90");
	}
	if (call->error == 0 && call->type == NBD_CMD_BLOCK_STATUS && !call->described) {
		return broken(model, "P100");
	}
	call->done = true;
	model->done_count += call != model->size_call;
	return true;
}

static bool chunk_end(struct model *model, struct model_call *call, const struct head *head)
{
	return (head->flags & NBD_REPLY_FLAG_DONE) == 0 || finish(model, call);
}

/* Marks [offset, offset + length) of the export. */
static bool cover(struct model *model, struct model_call *call, uint64_t offset, uint64_t length)
{
	uint64_t start = offset - call->offset;

	if (call->type != NBD_CMD_READ) {
		return broken(model, "P97");
	}
	if (offset < call->offset || start > call->length || length > call->length - start) {
		return broken(model, "P90");
	}
	if ((call->flags & NBD_CMD_FLAG_DF) != 0 && call->covered_bytes > 0) {
		return broken(model, "P93");
	}
	for (uint64_t i = start; i < start + length; i++) {
		if (call->covered[i]) {
			return broken(model, "P90");
		}
		call->covered[i] = 1;
	}
	call->covered_bytes += length;
	return true;
}

/* --- chunks -------------------------------------------------------------------------------- */

static bool take_data(
	struct model *model, struct model_call *call, const struct head *head, bool *more)
{
	uint64_t offset;
	uint64_t bytes = head->length - 8;

	if (head->length <= 8) {
		return broken(model, "P97");
	}
	if (model->left < 8) {
		return incomplete(more);
	}
	offset = number(model->at, 8);
	skip(model, 8);
	if (offset < call->offset) {
		return broken(model, "P90");
	}
	if (!cover(model, call, offset, bytes)) {
		return false;
	}
	if (model->left < bytes) {
		return incomplete(more);
	}
	memcpy(call->memory + (offset - call->offset), model->at, bytes);
	skip(model, bytes);
	return chunk_end(model, call, head);
}

static bool take_hole(
	struct model *model, struct model_call *call, const struct head *head, bool *more)
{
	uint64_t offset;
	uint64_t bytes;

	if (head->length != 12) {
		return broken(model, "P97");
	}
	if (model->left < 12) {
		return incomplete(more);
	}
	offset = number(model->at, 8);
	bytes = number(model->at + 8, 4);
	skip(model, 12);
	if (bytes == 0 || offset < call->offset) {
		return broken(model, "P90");
	}
	if (!cover(model, call, offset, bytes)) {
		return false;
	}
	memset(call->memory + (offset - call->offset), 0, bytes);
	call->story = model_story_hole(call->story, offset, bytes);
	return chunk_end(model, call, head);
}

static bool take_extents(struct model *model, struct model_call *call, const struct head *head,
	size_t entry, bool *more)
{
	uint64_t count = head->length / entry;

	for (uint64_t i = 0; i < count; i++) {
		uint64_t length;
		uint64_t left = call->length - call->described_bytes;

		if (model->left < entry) {
			return incomplete(more);
		}
		length = number(model->at, entry / 2);
		if (length == 0 || left == 0) {
			return broken(model, "P101");
		}
		if (call->error == 0) {
			call->story = model_story_extent(call->story, MIN(length, left),
				(uint32_t)number(model->at + entry / 2, entry / 2));
		}
		call->described_bytes += MIN(length, left);
		skip(model, entry);
	}
	return chunk_end(model, call, head);
}

/* A sign of life. */
static bool take_alive(struct model *model, const struct head *head, uint64_t count, bool *more)
{
	if (count != 1 || (head->flags & NBD_REPLY_FLAG_DONE) != 0) {
		return broken(model, "x-gmblock:alive");
	}
	if (model->left < head->length) {
		return incomplete(more);
	}
	skip(model, head->length);
	return true;
}

static bool take_size(struct model *model, struct model_call *call, const struct head *head,
	uint64_t count, bool *more)
{
	bool extended = head->type == NBD_REPLY_TYPE_BLOCK_STATUS_EXT;
	const uint8_t *at = model->at;
	uint64_t size;

	if (count != (extended ? 1 : 2) || call->described ||
		(head->flags & NBD_REPLY_FLAG_DONE) == 0) {
		return broken(model, "x-gmblock:size");
	}
	if (model->left < head->length) {
		return incomplete(more);
	}
	size = extended ? number(at + 16, 8) : number(at + 8, 4) << 32 | number(at + 16, 4);
	if (size > INT64_MAX) {
		return broken(model, "P68");
	}
	call->described = true;
	model->size = call->error == 0 ? size : model->size;
	skip(model, head->length);
	return finish(model, call);
}

static bool take_status(
	struct model *model, struct model_call *call, const struct head *head, bool *more)
{
	bool extended = head->type == NBD_REPLY_TYPE_BLOCK_STATUS_EXT;
	size_t fixed = extended ? 8 : 4;
	size_t entry = extended ? 16 : 8;
	bool is_size = call == model->size_call;
	bool is_asked = call->type == NBD_CMD_BLOCK_STATUS && model->allocation && !is_size;
	uint64_t count;

	if ((!is_asked && !is_size && !model->says_alive) ||
		extended != (model->style == MODEL_EXTENDED)) {
		return broken(model, "P97");
	}
	if (head->length < fixed + entry || (head->length - fixed) % entry != 0) {
		return broken(model, "P97");
	}
	if (model->left < fixed) {
		return incomplete(more);
	}
	count = (head->length - fixed) / entry;
	if (model->says_alive && number(model->at, 4) == NBD_CONTEXT_ID_ALIVE) {
		return take_alive(model, head, count, more);
	}
	if (is_size && number(model->at, 4) == NBD_CONTEXT_ID_SIZE) {
		return take_size(model, call, head, count, more);
	}
	if (!is_asked) {
		return broken(model, "P97");
	}
	if (number(model->at, 4) != model->allocation_id || call->described) {
		return broken(model, "P100");
	}
	if (count > 1 << 20 || (extended && number(model->at + 4, 4) != count)) {
		return broken(model, "P103");
	}
	if ((call->flags & NBD_CMD_FLAG_REQ_ONE) != 0 && count != 1) {
		return broken(model, "P102");
	}
	call->described = true;
	skip(model, fixed);
	return take_extents(model, call,
		&(struct head){ .flags = head->flags, .length = count * entry }, entry, more);
}

static bool take_error(
	struct model *model, struct model_call *call, const struct head *head, bool *more)
{
	bool with_offset = head->type == NBD_REPLY_TYPE_ERROR_OFFSET;
	bool known = with_offset || head->type == NBD_REPLY_TYPE_ERROR;
	uint64_t fixed = with_offset ? 14 : 6;
	uint64_t text;
	uint32_t error;

	if (head->length < fixed || head->length > (known ? fixed + 4096 : 1 << 20)) {
		return broken(model, "P97");
	}
	if (model->left < (known ? head->length : fixed)) {
		return incomplete(more);
	}
	if (++call->errors > MODEL_ERRORS_MAX) {
		return broken(model, "P92");
	}
	error = (uint32_t)number(model->at, 4);
	text = number(model->at + 4, 2);
	if (error == 0 || (known ? text != head->length - fixed : text > head->length - fixed)) {
		return broken(model, "P92");
	}
	if (with_offset) {
		uint64_t offset = number(model->at + 6 + text, 8);

		if (offset < call->offset ||
			(offset - call->offset >= call->length && offset != call->offset)) {
			return broken(model, "P92");
		}
	}
	call->error = call->error == 0 ? error : call->error;
	if (model->left < head->length) {
		return incomplete(more);
	}
	skip(model, head->length);
	return chunk_end(model, call, head);
}

static bool take_chunk(
	struct model *model, struct model_call *call, const struct head *head, bool *more)
{
	switch (head->type) {
	case NBD_REPLY_TYPE_NONE:
		if (head->length != 0 || (head->flags & NBD_REPLY_FLAG_DONE) == 0) {
			return broken(model, "P89");
		}
		return finish(model, call);
	case NBD_REPLY_TYPE_OFFSET_DATA:
		return take_data(model, call, head, more);
	case NBD_REPLY_TYPE_OFFSET_HOLE:
		return take_hole(model, call, head, more);
	case NBD_REPLY_TYPE_BLOCK_STATUS:
	case NBD_REPLY_TYPE_BLOCK_STATUS_EXT:
		return take_status(model, call, head, more);
	default:
		return (head->type & NBD_REPLY_TYPE_ERROR_BIT) != 0
			       ? take_error(model, call, head, more)
			       : broken(model, "P97");
	}
}

/* --- replies ------------------------------------------------------------------------------- */

static bool take_simple(struct model *model, bool *more)
{
	struct model_call *call;
	uint64_t cookie;
	uint32_t error;

	if (model->left < 16) {
		return incomplete(more);
	}
	error = (uint32_t)number(model->at + 4, 4);
	memcpy(&cookie, model->at + 8, sizeof(cookie));
	skip(model, 16);
	call = find(model, cookie);
	if (call == NULL) {
		return broken(model, "P70");
	}
	if (model->style != MODEL_SIMPLE &&
		(call->type == NBD_CMD_READ || call->type == NBD_CMD_BLOCK_STATUS)) {
		return broken(model, "P88");
	}
	call->error = call->error == 0 ? error : call->error;
	if (error == 0 && call->type == NBD_CMD_READ) {
		if (model->left < call->length) {
			return incomplete(more);
		}
		memcpy(call->memory, model->at, call->length);
		call->covered_bytes = call->length;
		skip(model, call->length);
	}
	return finish(model, call);
}

static bool take_reply(struct model *model, bool *more)
{
	bool extended = model->style == MODEL_EXTENDED;
	size_t head_bytes = extended ? 32 : 20;
	struct model_call *call;
	struct head head;
	uint64_t magic;

	if (model->left < 4) {
		return incomplete(more);
	}
	magic = number(model->at, 4);
	if (magic == NBD_SIMPLE_REPLY_MAGIC && !extended) {
		return take_simple(model, more);
	}
	if (model->style == MODEL_SIMPLE ||
		magic != (extended ? NBD_EXTENDED_REPLY_MAGIC : NBD_STRUCTURED_REPLY_MAGIC)) {
		return broken(model, "P120");
	}
	if (model->left < head_bytes) {
		return incomplete(more);
	}
	head.flags = (uint16_t)number(model->at + 4, 2);
	head.type = (uint16_t)number(model->at + 6, 2);
	memcpy(&head.cookie, model->at + 8, sizeof(head.cookie));
	head.length = extended ? number(model->at + 24, 8) : number(model->at + 16, 4);
	call = find(model, head.cookie);
	if (call == NULL) {
		return broken(model, "P70");
	}
	if (extended && number(model->at + 16, 8) != call->offset) {
		return broken(model, "P110");
	}
	skip(model, head_bytes);
	return take_chunk(model, call, &head, more);
}

void model_run(struct model *model, const uint8_t *bytes, size_t len)
{
	bool more = false;

	model->at = bytes;
	model->left = len;
	model->violation = NULL;
	model->done_count = 0;
	while (!more && take_reply(model, &more)) {
	}
}
