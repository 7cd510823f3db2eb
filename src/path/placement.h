// SPDX-License-Identifier: Apache-2.0
/*
 * The placement of a request: memory of the requester's own into which a read goes and from which a
 * write comes. Most parts use it directly; a part ends where a segment ends.
 *
 *   segments   |-------------------|-----------|-----------------------------|
 *   parts      [ in place      ][ copied ][ in place ][ copied ][ in place   ]
 *   blocks     |       |       |       |       |       |       |       |      |
 *
 * Direct I/O needs whole blocks at aligned addresses. A block that a segment has at an unaligned
 * address, or in which a segment ends, has a buffer in RAM instead and is copied, where the CPU may
 * touch all segments. Where it may not, the store gets the memory as it is and goes through the
 * page cache.
 *
 * Private to src/path. Threading: the path's thread. Ownership: everything is kept in the request.
 * Errors: none.
 */
#pragma once

#include "path/overlap.h"
#include "path/path.h"

/* A request with a placement begins. Removes the placement when the store cannot use its memory. */
void placement_check(struct path_request *request);
/* Where the byte at this offset of the export belongs, and how many bytes from there on lie in the
 * same segment. */
struct mem_segment placement_at(struct path_request *request, uint64_t offset);
/* How many bytes of the range, from its beginning, are the next part. True: they are in place;
 * false: they are copied. */
bool placement_run(
	struct path_request *request, const struct cut_range *range, uint64_t *bytes_out);
/* Copies between a part's buffer and the placement: a read that has come, or a write that begins.
 */
void placement_copy(struct path_stream *stream);
