// SPDX-License-Identifier: Apache-2.0
/*
 * What the two halves of a link share: link.c lays out and moves, link_replies.c reads and checks.
 *
 * Threading, ownership, errors: as link.h.
 */
#pragma once

#include "nbd/link.h"

enum { LINK_SLOT_BITS = 10 };

/* The call a cookie belongs to; -EPROTO when there is none (rule P70). */
GMB_MUST_CHECK int link_find(
	struct link *link, uint64_t cookie, struct link_call **call_out, struct error *error);

/* The call has its whole answer: checks that (rules P90, P100) and gives it back. */
GMB_MUST_CHECK int link_finish(struct link *link, struct link_call *call, struct error *error);

/* A content chunk of a READ: [start, start + length) relative to the call's offset is inside it and
 * was not covered before (rules P90, P93, P98). */
GMB_MUST_CHECK int link_cover(
	struct link_call *call, uint64_t start, uint64_t length, struct error *error);

/* bytes at place, relative to the call's offset, come next; ends: its answer is whole then. */
void link_begin_data(
	struct link *link, struct link_call *call, uint64_t place, uint64_t bytes, bool ends);

/* Bytes of the chunk in progress are in the call's memory. */
GMB_MUST_CHECK int link_data_arrived(struct link *link, uint64_t bytes, struct error *error);

/* Reads as much as can be read of bytes that lie in a row, and keeps the rest in the stage; bytes
 * may be the stage itself. */
GMB_MUST_CHECK int link_feed(
	struct link *link, const uint8_t *bytes, size_t len, struct error *error);

/* Length of the header, and what comes before the payload, of the reply a call should get. */
size_t link_prefix_bytes(const struct link *link, const struct link_call *call);
/* True when the prefix is exactly that reply. */
bool link_prefix_matches(
	const struct link *link, const struct link_call *call, const uint8_t *prefix);

/* Lays out [place, place + length) of a call's memory, as far as iov_max entries reach; returns how
 * many and sets *bytes. */
uint32_t link_memory(struct link_call *call, uint64_t place, uint64_t length, struct iovec *iov,
	uint32_t iov_max, uint64_t *bytes);
/* Copies into it, and zeroes it. */
void link_memory_write(struct link_call *call, uint64_t place, const uint8_t *bytes, size_t len);
void link_memory_zero(struct link_call *call, uint64_t place, uint64_t length);
