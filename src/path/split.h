// SPDX-License-Identifier: Apache-2.0
/*
 * How a read or write is cut into parts: how long they are (overlap.h decides, from what is
 * measured here), where they lie, and in which order they begin.
 *
 * A disk is read in ascending order. In a striped one each row of chunks begins with the first part
 * of every member, then comes the second of every member, and so on, so that all have something to
 * do:
 *
 *        member 0        member 1        member 2
 *   row  [0  3     6   ] [1    4     7 ] [2      5     8]
 *
 * The first ones have different lengths, so that the members do not bring all they have at the same
 * moments: on average half as much waits to be complete. No part crosses a chunk.
 *
 * Private to src/path. Threading: the path's thread. Ownership: everything is kept in the request.
 * Errors: none.
 */
#pragma once

#include "path/path.h"

/* Parts end on this boundary of the export, so that only the first and the last part of a request
 * can be unaligned. */
enum { SPLIT_ALIGN = 4096 };

/* Where a part is, and how much of it shall be told of first. */
struct cut_range {
	uint64_t offset;
	uint64_t bytes;
	uint64_t told_first;
};

/* A read or write begins: decides how it is cut. */
void cut_begin(struct path_request *request);
/* How long the disk will take from one part, or one telling, to the next; 0 = unknown. */
uint64_t cut_step_ns(const struct path_request *request);
/* All its bytes were given out: it takes nothing from others any more. */
void cut_handed(struct path_request *request);
/* It has ended. */
void cut_end(struct path_request *request, uint64_t now_ns);

/* Where the next part is. request->started_bytes < request->length. */
struct cut_range cut_next(struct path_request *request);
/* So many bytes of that range are started as a part; what is left of it comes next. */
void cut_advance(struct path_request *request, const struct cut_range *range, uint64_t bytes);

/* A part was given to the store; the store has done it. */
void cut_part_begin(struct path_request *request, uint64_t now_ns);
void cut_part_end(struct path_request *request, uint64_t bytes, uint64_t now_ns);
