// SPDX-License-Identifier: Apache-2.0
/*
 * Reads both ends of a copy and compares them. Ranges that both ends report as zeroes are not read.
 * If only one reports zeroes, the other is read and must contain zeroes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/list.h"
#include "tools/copy.h"

enum { SIDE_SOURCE, SIDE_TARGET, SIDE_COUNT };

/* A piece of the comparison, which is read from one or both ends. */
struct pair {
	struct list_node node; /* in verify->free when idle */
	struct verify *verify;
	uint64_t offset;
	uint64_t length;
	uint32_t waiting;	      /* number of reads in flight */
	uint8_t *buffers[SIDE_COUNT]; /* NULL: zeroes */
	struct copy_io ios[SIDE_COUNT];
};

struct verify {
	const struct copy_engine_options *options;
	struct copy_end *ends[SIDE_COUNT];
	struct copy_map *maps[SIDE_COUNT];
	struct list_node free;
	struct pair *all;
	uint32_t active;
	uint64_t grain;
	uint64_t position;
	uint64_t end;
	bool stopping;
	struct error error;
	uint64_t difference; /* offset of the first difference; UINT64_MAX: none */
	uint8_t bytes[SIDE_COUNT];
};

static void verify_fail(struct verify *verify, const struct error *error)
{
	if (!verify->stopping) {
		verify->error = *error;
	}
	verify->stopping = true;
}

static void pair_end(struct pair *pair)
{
	struct verify *verify = pair->verify;

	for (int side = 0; side < SIDE_COUNT; side++) {
		if (pair->buffers[side] != NULL) {
			copy_pool_put(verify->options->pool, pair->buffers[side]);
			pair->buffers[side] = NULL;
		}
	}
	list_push_front(&verify->free, &pair->node);
	verify->active--;
}

static uint8_t pair_byte(const struct pair *pair, int side, uint64_t at)
{
	return pair->buffers[side] != NULL ? pair->buffers[side][at] : 0;
}

/* Records a difference if it is before those found so far, because reads end in any order. */
static void pair_differs(struct pair *pair)
{
	struct verify *verify = pair->verify;
	uint64_t at = 0;

	while (pair_byte(pair, SIDE_SOURCE, at) == pair_byte(pair, SIDE_TARGET, at)) {
		at++;
		GMB_ASSERT(at < pair->length);
	}
	if (pair->offset + at < verify->difference) {
		verify->difference = pair->offset + at;
		for (int side = 0; side < SIDE_COUNT; side++) {
			verify->bytes[side] = pair_byte(pair, side, at);
		}
	}
	verify->stopping = true;
}

static bool pair_is_equal(const struct pair *pair)
{
	const uint8_t *source = pair->buffers[SIDE_SOURCE];
	const uint8_t *target = pair->buffers[SIDE_TARGET];

	if (source != NULL && target != NULL) {
		return memcmp(source, target, pair->length) == 0;
	}
	return copy_is_zero(source != NULL ? source : target, pair->length);
}

static void pair_read(struct copy_io *io)
{
	int side = io->end->target ? SIDE_TARGET : SIDE_SOURCE;
	struct pair *pair = container_of(io - side, struct pair, ios);
	struct verify *verify = pair->verify;

	if (io->result < 0) {
		verify_fail(verify, &io->end->failure);
	}
	if (--pair->waiting > 0) {
		return;
	}
	if (pair->ios[SIDE_SOURCE].result == 0 && pair->ios[SIDE_TARGET].result == 0) {
		if (pair_is_equal(pair)) {
			verify->options->counters->compared += pair->length;
		} else {
			pair_differs(pair);
		}
	}
	pair_end(pair);
}

static void copy_verify_pair_start(
	struct verify *verify, uint64_t length, const bool zero[SIDE_COUNT])
{
	struct pair *pair = list_entry(list_pop_front(&verify->free), struct pair, node);

	pair->offset = verify->position;
	pair->length = length;
	pair->waiting = 0;
	verify->position += length;
	verify->active++;
	for (int side = 0; side < SIDE_COUNT; side++) {
		struct copy_end *end = verify->ends[side];
		struct copy_io *io = &pair->ios[side];

		io->result = 0;
		if (zero[side]) {
			continue;
		}
		pair->buffers[side] = copy_pool_get(verify->options->pool);
		GMB_ASSERT(pair->buffers[side] != NULL);
		io->operation = COPY_READ;
		io->offset = pair->offset;
		io->buffer = pair->buffers[side];
		io->done = pair_read;
		/* Reads need whole blocks. The last one can extend beyond the copy. */
		io->length = MIN(align_up(length, end->block_min), end->bytes - pair->offset);
		pair->waiting++;
		copy_end_submit(end, io);
	}
}

/* Determines the next piece, in which each end has only data or only zeroes. Returns false if an
 * end has not reported its extents there yet. */
static bool copy_verify_piece_next(struct verify *verify, uint64_t *length, bool zero[SIDE_COUNT])
{
	uint64_t request = verify->options->request_bytes;

	*length = verify->end - verify->position;
	for (int side = 0; side < SIDE_COUNT; side++) {
		uint64_t extent;
		int known =
			copy_map_peek(verify->maps[side], verify->position, &extent, &zero[side]);

		if (known < 0) {
			verify_fail(verify, &verify->maps[side]->error);
		}
		if (known <= 0) {
			return false;
		}
		*length = MIN(*length, extent);
	}
	if (!zero[SIDE_SOURCE] || !zero[SIDE_TARGET]) {
		*length = MIN(*length, request - (verify->position & (request - 1)));
	}
	return true;
}

static void verify_fill(struct verify *verify)
{
	bool zero[SIDE_COUNT];
	uint64_t length;

	while (!verify->stopping && verify->position < verify->end &&
		!list_is_empty(&verify->free) && copy_loop_may_move(verify->options->loop) &&
		copy_verify_piece_next(verify, &length, zero)) {
		if (zero[SIDE_SOURCE] && zero[SIDE_TARGET]) {
			verify->position += length;
			verify->options->counters->compared += length;
		} else {
			copy_verify_pair_start(verify, length, zero);
			copy_loop_moves(verify->options->loop, length);
		}
	}
}

static void verify_loop(struct verify *verify)
{
	const struct copy_engine_options *options = verify->options;

	for (;;) {
		struct error error;

		options->tick(options->tick_context);
		if (copy_loop_check(options->loop, &error) < 0) {
			verify_fail(verify, &error);
		}
		verify_fill(verify);
		if (verify->active == 0 && copy_map_is_idle(verify->maps[SIDE_SOURCE]) &&
			copy_map_is_idle(verify->maps[SIDE_TARGET]) &&
			(verify->stopping || verify->position == verify->end)) {
			return;
		}
		copy_loop_turn(options->loop);
	}
}

static int verify_init(
	struct verify *verify, const struct copy_engine_options *options, struct error *error)
{
	uint32_t pairs = MAX(options->requests / 2, UINT32_C(1));

	verify->options = options;
	verify->ends[SIDE_SOURCE] = options->source;
	verify->ends[SIDE_TARGET] = options->target;
	verify->end = options->counters->total;
	verify->difference = UINT64_MAX;
	verify->grain = MAX(options->source->block_min, options->target->block_min);
	list_init(&verify->free);
	verify->all = calloc(pairs, sizeof(*verify->all));
	for (int side = 0; side < SIDE_COUNT; side++) {
		verify->maps[side] = malloc(sizeof(*verify->maps[side]));
		if (verify->maps[side] == NULL) {
			return error_oom(error);
		}
		copy_map_init(verify->maps[side], verify->ends[side], 0, verify->end, verify->grain,
			verify->grain);
	}
	if (verify->all == NULL) {
		return error_oom(error);
	}
	for (uint32_t i = 0; i < pairs; i++) {
		verify->all[i].verify = verify;
		list_push_back(&verify->free, &verify->all[i].node);
	}
	return 0;
}

int copy_verify_run(const struct copy_engine_options *options, struct error *error)
{
	struct verify verify = { 0 };
	int err = verify_init(&verify, options, error);

	if (err == 0) {
		verify_loop(&verify);
		if (verify.difference != UINT64_MAX) {
			err = error_set(error, -EILSEQ,
				"verification failed: %s and %s differ at byte %llu "
				"(0x%02x in the source, 0x%02x in the target)",
				options->source->name, options->target->name,
				(unsigned long long)verify.difference, verify.bytes[SIDE_SOURCE],
				verify.bytes[SIDE_TARGET]);
		} else if (verify.stopping) {
			*error = verify.error;
			err = error->code;
		}
	}
	free(verify.maps[SIDE_SOURCE]);
	free(verify.maps[SIDE_TARGET]);
	free(verify.all);
	return err;
}
