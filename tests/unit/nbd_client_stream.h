// SPDX-License-Identifier: Apache-2.0
/*
 * Writes what a server sends in the transmission phase to the calls of a trial, honest or not, in
 * the style of the trial. Places are relative to the call's offset and may be anything.
 *
 * Threading: one thread. Ownership: stream_fini() frees the bytes. Errors: none; what does not fit
 * in memory aborts.
 */
#pragma once

#include "nbd_client_trial.h"

struct stream {
	const struct trial *trial;
	uint8_t *bytes;
	size_t len;
	size_t max;
};

struct stream_extent {
	uint64_t length;
	uint64_t flags;
};

void stream_init(struct stream *stream, const struct trial *trial);
void stream_fini(struct stream *stream);

void stream_append(struct stream *stream, const void *bytes, size_t len);
void stream_number(struct stream *stream, uint64_t value, size_t bytes); /* big-endian */
/* What the export holds there. */
void stream_content(struct stream *stream, uint64_t offset, uint64_t length);

/* The header of a chunk whose body is appended next. */
void stream_head(
	struct stream *stream, uint32_t call, uint16_t flags, uint16_t type, uint64_t length);
void stream_simple(struct stream *stream, uint32_t call, uint32_t error);
void stream_none(struct stream *stream, uint32_t call, uint16_t flags);
void stream_data(
	struct stream *stream, uint32_t call, uint16_t flags, uint64_t place, uint64_t length);
void stream_hole(
	struct stream *stream, uint32_t call, uint16_t flags, uint64_t place, uint32_t length);
/* The text is "e" times text_bytes. */
void stream_error(
	struct stream *stream, uint32_t call, uint16_t flags, uint32_t error, uint32_t text_bytes);
void stream_error_offset(struct stream *stream, uint32_t call, uint16_t flags, uint32_t error,
	uint32_t text_bytes, uint64_t place);
/* In the style's own chunk type. */
void stream_status(struct stream *stream, uint32_t call, uint16_t flags, uint32_t id,
	const struct stream_extent *extents, uint32_t count);
/* The answer to the question about the size. */
void stream_size(struct stream *stream, uint16_t flags, uint64_t size);
