// SPDX-License-Identifier: Apache-2.0
#include "nbd_client_stream.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FIRST = 4096 };

void stream_init(struct stream *stream, const struct trial *trial)
{
	*stream = (struct stream){ .trial = trial };
}

void stream_fini(struct stream *stream)
{
	free(stream->bytes);
}

/* Room for len bytes at the end. */
static uint8_t *extend(struct stream *stream, size_t len)
{
	uint8_t *end;

	if (stream->max - stream->len < len) {
		stream->max = MAX(stream->max * 2 + len, (size_t)MAX_FIRST);
		stream->bytes = realloc(stream->bytes, stream->max);
		GMB_ASSERT(stream->bytes != NULL);
	}
	end = stream->bytes + stream->len;
	stream->len += len;
	return end;
}

void stream_append(struct stream *stream, const void *bytes, size_t len)
{
	if (len > 0) {
		memcpy(extend(stream, len), bytes, len);
	}
}

void stream_number(struct stream *stream, uint64_t value, size_t bytes)
{
	uint8_t *end = extend(stream, bytes);

	for (size_t i = bytes; i > 0; i--) {
		end[i - 1] = (uint8_t)value;
		value >>= 8;
	}
}

void stream_content(struct stream *stream, uint64_t offset, uint64_t length)
{
	uint8_t *end = extend(stream, length);

	for (uint64_t i = 0; i < length; i++) {
		end[i] = trial_content(offset + i);
	}
}

static uint64_t place_offset(const struct stream *stream, uint32_t call, uint64_t place)
{
	return stream->trial->calls[call].offset + place;
}

void stream_head(
	struct stream *stream, uint32_t call, uint16_t flags, uint16_t type, uint64_t length)
{
	bool extended = stream->trial->style == NBD_REPLIES_EXTENDED;
	uint64_t cookie = trial_cookie(stream->trial, call);

	stream_number(stream, extended ? NBD_EXTENDED_REPLY_MAGIC : NBD_STRUCTURED_REPLY_MAGIC, 4);
	stream_number(stream, flags, 2);
	stream_number(stream, type, 2);
	stream_append(stream, &cookie, sizeof(cookie));
	if (extended) {
		stream_number(stream, place_offset(stream, call, 0), 8);
	}
	stream_number(stream, length, extended ? 8 : 4);
}

void stream_simple(struct stream *stream, uint32_t call, uint32_t error)
{
	uint64_t cookie = trial_cookie(stream->trial, call);

	stream_number(stream, NBD_SIMPLE_REPLY_MAGIC, 4);
	stream_number(stream, error, 4);
	stream_append(stream, &cookie, sizeof(cookie));
}

void stream_none(struct stream *stream, uint32_t call, uint16_t flags)
{
	stream_head(stream, call, flags, NBD_REPLY_TYPE_NONE, 0);
}

void stream_data(
	struct stream *stream, uint32_t call, uint16_t flags, uint64_t place, uint64_t length)
{
	uint64_t offset = place_offset(stream, call, place);

	stream_head(stream, call, flags, NBD_REPLY_TYPE_OFFSET_DATA, 8 + length);
	stream_number(stream, offset, 8);
	stream_content(stream, offset, length);
}

void stream_hole(
	struct stream *stream, uint32_t call, uint16_t flags, uint64_t place, uint32_t length)
{
	stream_head(stream, call, flags, NBD_REPLY_TYPE_OFFSET_HOLE, 12);
	stream_number(stream, place_offset(stream, call, place), 8);
	stream_number(stream, length, 4);
}

static void error_body(struct stream *stream, uint32_t error, uint32_t text_bytes)
{
	stream_number(stream, error, 4);
	stream_number(stream, text_bytes, 2);
	for (uint32_t i = 0; i < text_bytes; i++) {
		stream_append(stream, "e", 1);
	}
}

void stream_error(
	struct stream *stream, uint32_t call, uint16_t flags, uint32_t error, uint32_t text_bytes)
{
	stream_head(stream, call, flags, NBD_REPLY_TYPE_ERROR, 6 + (uint64_t)text_bytes);
	error_body(stream, error, text_bytes);
}

void stream_error_offset(struct stream *stream, uint32_t call, uint16_t flags, uint32_t error,
	uint32_t text_bytes, uint64_t place)
{
	stream_head(stream, call, flags, NBD_REPLY_TYPE_ERROR_OFFSET, 14 + (uint64_t)text_bytes);
	error_body(stream, error, text_bytes);
	stream_number(stream, place_offset(stream, call, place), 8);
}

void stream_status(struct stream *stream, uint32_t call, uint16_t flags, uint32_t id,
	const struct stream_extent *extents, uint32_t count)
{
	bool extended = stream->trial->style == NBD_REPLIES_EXTENDED;
	size_t half = extended ? 8 : 4;

	stream_head(stream, call, flags,
		extended ? NBD_REPLY_TYPE_BLOCK_STATUS_EXT : NBD_REPLY_TYPE_BLOCK_STATUS,
		half + 2 * half * (uint64_t)count);
	stream_number(stream, id, 4);
	if (extended) {
		stream_number(stream, count, 4);
	}
	for (uint32_t i = 0; i < count; i++) {
		stream_number(stream, extents[i].length, half);
		stream_number(stream, extents[i].flags, half);
	}
}

void stream_size(struct stream *stream, uint16_t flags, uint64_t size)
{
	bool extended = stream->trial->style == NBD_REPLIES_EXTENDED;
	const struct stream_extent upper = { 1, size >> 32 };
	const struct stream_extent lower = { 1, size & UINT32_MAX };
	const struct stream_extent whole = { 1, size };

	stream_status(stream, stream->trial->call_count, flags, NBD_CONTEXT_ID_SIZE,
		extended ? &whole : (const struct stream_extent[]){ upper, lower },
		extended ? 1 : 2);
}
