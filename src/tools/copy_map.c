// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "tools/copy.h"

/* Limit for one query. Large holes then need few queries. With a limit, a server
 * does not have to search a whole disk for one answer. */
#define ASK_BYTES_MAX (UINT64_C(1) << 30)

void copy_map_init(struct copy_map *map, struct copy_end *end, uint64_t start, uint64_t limit,
	uint64_t grain, uint64_t zero_min)
{
	GMB_ASSERT(is_power_of_two(grain));
	GMB_ASSERT(is_aligned(start, grain) || start == limit);
	memset(map, 0, sizeof(*map));
	map->end = end;
	map->limit = limit;
	map->grain = grain;
	map->zero_min = zero_min;
	map->asked = start;
	map->pending = start;
	map->runs_end = start;
	map->no_map = !end->can_map;
}

static void run_push(struct copy_map *map, uint64_t end, bool zero)
{
	struct copy_map_run *last;

	if (end <= map->runs_end) {
		return;
	}
	last = &map->runs[(map->run_first + map->run_count - 1) % COPY_MAP_RUNS];
	map->runs_end = end;
	if (map->run_count > 0 && last->zero == zero) {
		last->end = end;
		return;
	}
	GMB_ASSERT(map->run_count < COPY_MAP_RUNS);
	map->runs[(map->run_first + map->run_count) % COPY_MAP_RUNS] =
		(struct copy_map_run){ .end = end, .zero = zero };
	map->run_count++;
}

/* Ends the zeroes that start at map->pending, because data or the limit follows at `end`. Adds them
 * as a run if they are long enough. */
static void zeroes_end(struct copy_map *map, uint64_t end)
{
	uint64_t first = MIN(align_up(map->pending, map->grain), end);
	uint64_t last = end == map->limit ? end : align_down(end, map->grain);

	if (first < last && last - first >= map->zero_min) {
		run_push(map, first, false);
		run_push(map, last, true);
	}
}

static void copy_map_extent_add(struct copy_map *map, uint64_t end, bool zero)
{
	if (!zero) {
		zeroes_end(map, map->asked);
		/* Runs consist of whole grains. A grain that contains any data counts as data, so
		 * this run ends after the grain, and zeroes start with the next one. */
		run_push(map, MIN(align_up(end, map->grain), map->limit), false);
		map->pending = end;
	}
	map->asked = end;
	if (end == map->limit) {
		zeroes_end(map, end);
		run_push(map, end, false);
	}
}

static void copy_map_answered(struct copy_io *io)
{
	struct copy_map *map = container_of(io, struct copy_map, io);
	uint64_t asked = map->asked;

	if (io->result == -EOPNOTSUPP || io->result == -EINVAL || io->result == -ENOTSUP) {
		map->no_map = true;
		return;
	}
	if (map->bad != NULL && copy_bad_takes(map->bad, io->result)) {
		copy_map_extent_add(map, MIN(io->offset + io->length, map->limit), false);
		return;
	}
	if (io->result < 0) {
		map->error = map->end->failure;
		return;
	}
	for (uint32_t i = 0; i < io->extent_count && map->asked < map->limit; i++) {
		const struct gmb_extent *extent = &io->extents[i];
		uint64_t end = MIN(extent->offset + extent->bytes, map->limit);

		if (end > map->asked) {
			copy_map_extent_add(map, end, (extent->flags & GMB_EXTENT_ZERO) != 0);
		}
	}
	if (map->asked == asked) {
		/* The answer covers less than a block. Queries start at a multiple of a block, so
		 * the next query would get the same answer again and again. So the rest of the
		 * block counts as data. */
		copy_map_extent_add(
			map, MIN(align_up(asked + 1, map->end->block_min), map->limit), false);
	}
}

/* Sends another query if there is room for the runs of a whole answer: up to two for each
 * extent. */
static void copy_map_ask(struct copy_map *map)
{
	struct copy_io *io = &map->io;

	if (io->in_flight || map->no_map || map->error.code != 0 || map->asked == map->limit ||
		map->run_count + 2 * COPY_MAP_EXTENTS > COPY_MAP_RUNS) {
		return;
	}
	io->operation = COPY_MAP;
	io->offset = align_down(map->asked, map->end->block_min);
	io->length = MIN(map->limit - io->offset, ASK_BYTES_MAX);
	io->extents = map->extents;
	io->extents_max = COPY_MAP_EXTENTS;
	io->done = copy_map_answered;
	copy_end_submit(map->end, io);
}

int copy_map_peek(struct copy_map *map, uint64_t offset, uint64_t *length, bool *zero)
{
	GMB_ASSERT(offset < map->limit);
	while (map->run_count > 0 && map->runs[map->run_first].end <= offset) {
		map->run_first = (map->run_first + 1) % COPY_MAP_RUNS;
		map->run_count--;
	}
	copy_map_ask(map);
	if (map->run_count > 0) {
		*length = map->runs[map->run_first].end - offset;
		*zero = map->runs[map->run_first].zero;
		return 1;
	}
	if (map->error.code != 0) {
		return map->error.code;
	}
	if (map->no_map && !map->io.in_flight) {
		*length = map->limit - offset;
		*zero = false;
		return 1;
	}
	return 0;
}

bool copy_map_is_idle(const struct copy_map *map)
{
	return !map->io.in_flight;
}
