// SPDX-License-Identifier: Apache-2.0
#include "producer.h"
#include "store/kind.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	STALE = 0xa5, /* what the memory held before: another's */
	LIE_PPM = 3000,
	FAIL_PPM = 3000,
	STALL_PPM = 500,
	PIECE_BYTES_MAX = 200000,
};

#define STALL_NS_MAX UINT64_C(10000000000)

struct producer {
	struct store base;
	struct scenario *scenario;
	struct scenario_export *export;
	bool lies;
};

/* One part on its way. */
struct production {
	struct store_part inner;
	struct store_part *outer;
	struct ring_op timer;
	uint8_t *bytes; /* of a read */
	uint64_t shown; /* copied to where they are wanted */
};

static struct producer *producer_of(const struct production *production)
{
	return container_of(production->outer->queue->store, struct producer, base);
}

static void production_finish(struct production *production, int result)
{
	struct store_part *outer = production->outer;

	outer->extent_count = production->inner.extent_count;
	free(production->bytes);
	free(production);
	store_finish(outer, result);
}

static void show(struct production *production, uint64_t bytes)
{
	uint8_t *data = mem_cpu_write(production->outer->memory);

	memcpy(data + production->shown, production->bytes + production->shown,
		bytes - production->shown);
	production->shown = bytes;
}

static void show_and_tell(struct production *production, uint64_t bytes)
{
	if (bytes > production->shown && bytes < production->outer->length) {
		show(production, bytes);
		store_progress(production->outer, bytes);
	}
}

static void note(struct production *production)
{
	const struct producer *producer = producer_of(production);
	const struct store_part *outer = production->outer;

	blame_note(producer->scenario, producer->export, SIM_FAULT_READ, outer->offset,
		outer->length, -EIO);
}

/* Nothing of this may ever reach anybody. */
static void lie(struct production *production)
{
	uint64_t length = production->outer->length;
	const uint64_t lies[] = { 0, production->shown, production->shown / 2, length, length + 1,
		length + 4096, UINT64_MAX };

	if (!production->outer->progress_broken) {
		note(production);
	}
	store_progress(production->outer, lies[sim_random() % ARRAY_COUNT(lies)]);
}

static void step(struct ring_op *op, int result);

static void wait_a_little(struct production *production)
{
	uint64_t delay_ns = sim_between(0, sim_chance(100000) ? 5000000 : 100000);

	if (sim_chance(STALL_PPM)) {
		delay_ns = sim_between(0, STALL_NS_MAX);
	}
	ring_timer(production->outer->queue->ring, &production->timer, delay_ns, step);
}

static void step(struct ring_op *op, int result)
{
	struct production *production = container_of(op, struct production, timer);
	uint64_t left = production->outer->length - production->shown;
	bool lies = producer_of(production)->lies;

	if (lies && sim_chance(FAIL_PPM)) {
		if (!production->outer->progress_broken) {
			note(production);
		}
		production_finish(production, -EIO);
		return;
	}
	if (lies && sim_chance(LIE_PPM)) {
		lie(production);
	}
	if (sim_chance(300000)) {
		show(production, production->outer->length);
		production_finish(production, 0);
		return;
	}
	show_and_tell(production,
		production->shown + sim_between(1, MIN(left, (uint64_t)PIECE_BYTES_MAX)));
	wait_a_little(production);
}

/* The store below tells, too. */
static void inner_progressed(struct store_part *inner, uint64_t bytes)
{
	show_and_tell(container_of(inner, struct production, inner), bytes);
}

static void inner_done(struct store_part *inner, int result)
{
	struct production *production = container_of(inner, struct production, inner);

	if (inner->op != STORE_READ || result < 0) {
		production_finish(production, result);
	} else {
		wait_a_little(production);
	}
}

static void producer_submit(struct store_queue *base, struct store_part *outer)
{
	struct production *production = calloc(1, sizeof(*production));
	struct store_part *inner;

	GMB_ASSERT(production != NULL);
	production->outer = outer;
	inner = &production->inner;
	inner->op = outer->op;
	inner->flags = outer->flags;
	inner->offset = outer->offset;
	inner->length = outer->length;
	inner->memory = outer->memory;
	inner->extents = outer->extents;
	inner->extent_max = outer->extent_max;
	inner->done = inner_done;
	if (outer->op == STORE_READ) {
		size_t room = (outer->length + 4095) & ~(size_t)4095;

		production->bytes = aligned_alloc(4096, room);
		GMB_ASSERT(production->bytes != NULL);
		memset(mem_cpu_write(outer->memory), STALE, outer->length);
		inner->memory = mem_of(production->bytes);
		inner->progressed = sim_chance(500000) ? inner_progressed : NULL;
		inner->progress_step = outer->progress_step;
	}
	store_submit(base->inner, inner);
}

static const struct store_ops producer_ops = {
	.name = "producer",
	.submit = producer_submit,
};

struct store *producer_open(
	struct scenario *scenario, struct scenario_export *export, struct store *inner, bool lies)
{
	struct producer *producer = calloc(1, sizeof(*producer));

	GMB_ASSERT(producer != NULL);
	producer->base.ops = &producer_ops;
	producer->base.inner = inner;
	producer->base.info = inner->info;
	producer->base.scratch_offset = STORE_SCRATCH_BYTES; /* it uses none */
	producer->base.info.has_progress = true;
	producer->base.info.memory_rights |= MEM_CPU;
	producer->scenario = scenario;
	producer->export = export;
	producer->lies = lies;
	return &producer->base;
}
