// SPDX-License-Identifier: Apache-2.0
/*
 * Where an end holds data and where it reads as zeroes, asked for ahead of the copy while that goes
 * on. Answers are brought to a grain: data grows and zeroes shrink to its multiples, so that no
 * piece needs half a block. Zero runs shorter than zero_min are told as data.
 *
 *   extents as the end tells them ──▶ pending zeroes ──▶ runs (bounded) ──▶ copy_map_peek()
 *
 * Threading: the thread of the loop. Ownership: borrows the end; while asking, the end holds
 * map->io: the map must stay until copy_map_is_idle(). Errors: an end that fails sets error, and
 * peek returns it. An end that cannot tell has data everywhere.
 */
#pragma once

#include "tools/copy_end.h"

enum { COPY_MAP_EXTENTS = 256, COPY_MAP_RUNS = 4 * COPY_MAP_EXTENTS };

struct copy_map_run {
	uint64_t end;
	bool zero;
};

struct copy_map {
	struct copy_end *end;
	uint64_t limit; /* bytes there are */
	uint64_t grain; /* a power of two */
	uint64_t zero_min;
	uint64_t asked;	   /* up to here the end has answered */
	uint64_t pending;  /* where zeroes begin that may go on after asked; asked: none */
	uint64_t runs_end; /* where the last run ends */
	uint32_t run_first;
	uint32_t run_count;
	bool no_map; /* data everywhere */
	struct error error;
	struct copy_io io;
	struct gmb_extent extents[COPY_MAP_EXTENTS];
	struct copy_map_run runs[COPY_MAP_RUNS];
};

/* From start on; start is a multiple of grain. */
void copy_map_init(struct copy_map *map, struct copy_end *end, uint64_t start, uint64_t limit,
	uint64_t grain, uint64_t zero_min);

/*
 * What is at offset, which never goes back: 1 with *length > 0 and *zero, 0 when the answer is
 * still to come, or a negative errno (map->error).
 */
GMB_MUST_CHECK int copy_map_peek(
	struct copy_map *map, uint64_t offset, uint64_t *length, bool *zero);

bool copy_map_is_idle(const struct copy_map *map);
