// SPDX-License-Identifier: Apache-2.0
#include "keeper_kind.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "store/parse.h"

struct keeper_gate keeper_gate = { -1, -1 };

struct keeper {
	struct store base;
	struct keeper_counters counters; /* of the owner, like all below but the size */
	_Atomic uint64_t size;
	struct store_start *start;
	pthread_t owner;
	struct ring_op op;
	uint32_t step;
};

static struct keeper *of(struct store *store)
{
	return container_of(store, struct keeper, base);
}

/* --- the start ------------------------------------------------------------------------------ */

static void say(void)
{
	if (keeper_gate.said_fd >= 0) {
		GMB_ASSERT(write(keeper_gate.said_fd, ".", 1) == 1);
	}
}

static void look(struct ring_op *op, int result)
{
	struct keeper *keeper = container_of(op, struct keeper, op);
	char go = 's';

	if (atomic_load_explicit(&keeper->start->cancelled, memory_order_relaxed)) {
		store_started(&keeper->base,
			error_set(&keeper->start->error, -ECANCELED, "it was not waited for"));
		return;
	}
	if (keeper_gate.go_fd >= 0 && read(keeper_gate.go_fd, &go, 1) != 1) {
		go = ' ';
	}
	if (go == 'x') {
		store_started(
			&keeper->base, error_set(&keeper->start->error, -EIO, "its map is torn"));
		return;
	}
	if (go == 's' && ++keeper->step == KEEPER_STEPS) {
		keeper->base.info.epoch = KEEPER_EPOCH;
		store_started(&keeper->base, 0);
		return;
	}
	if (go == 's') {
		store_start_progress(&keeper->base, keeper->step * 1000 / KEEPER_STEPS);
		say();
	}
	ring_timer(keeper->start->ring, op, KEEPER_STEP_NS, look);
}

static void keeper_start(struct store *store, struct store_start *start)
{
	struct keeper *keeper = of(store);
	const uint8_t *bytes = mem_cpu_read(start->memory);

	GMB_ASSERT(bytes[0] == 0 && bytes[store->info.budget_bytes - 1] == 0);
	keeper->start = start;
	keeper->owner = pthread_self();
	say();
	ring_timer(start->ring, &keeper->op, KEEPER_STEP_NS, look);
}

/* --- parts ---------------------------------------------------------------------------------- */

static void keeper_submit(struct store_queue *queue, struct store_part *part)
{
	struct keeper *keeper = of(queue->store);
	struct mem_ref place = mem_add(keeper->start->memory, part->offset);
	int result = 0;

	GMB_ASSERT(pthread_equal(pthread_self(), keeper->owner));
	GMB_ASSERT(queue->ring == keeper->start->ring);
	keeper->counters.parts++;
	keeper->counters.sent += part->top->ring != queue->ring;
	keeper->counters.anonymous += part->requester == 0;
	if (part->offset + part->length > atomic_load(&keeper->size)) {
		result = -EIO;
	} else if (part->op == STORE_READ) {
		memcpy(mem_cpu_write(part->memory), mem_cpu_read(place), part->length);
	} else if (part->op == STORE_WRITE) {
		memcpy(mem_cpu_write(place), mem_cpu_read(part->memory), part->length);
	}
	store_finish_later(part, result);
}

static uint64_t keeper_size(struct store *store)
{
	return atomic_load(&of(store)->size);
}

void keeper_resize(struct store *store, uint64_t size)
{
	atomic_store(&of(store)->size, size);
	store_resized(store);
}

const struct keeper_counters *keeper_counters(const struct store_queue *queue)
{
	const struct counter_table *table;
	const struct keeper *keeper = store_queue_counters(queue, &table);

	return keeper != NULL ? &keeper->counters : NULL;
}

/* --- the kind ------------------------------------------------------------------------------- */

static int keeper_open(struct store *store, const struct store_options *options, const void *config,
	struct error *error)
{
	uint64_t size;
	int result = parse_path_size(options->path, &size, error);

	if (result < 0) {
		return result;
	}
	atomic_init(&of(store)->size, size);
	store->info = (struct store_info){ .kind = "keeper",
		.caps = STORE_CAP_WRITE,
		.block_min = 1,
		.block_preferred = 4096,
		.memory_align = 1,
		.offset_align = 1,
		.memory_rights = MEM_CPU | MEM_ADDRESS,
		.is_volatile = true,
		.budget_bytes = size };
	return 0;
}

static const struct counter counter_list[] = {
	{ "parts", "Parts", COUNTER_TOTAL, COUNTER_ITEMS, offsetof(struct keeper, counters.parts) },
	{ "sent", "Parts of other rings", COUNTER_TOTAL, COUNTER_ITEMS,
		offsetof(struct keeper, counters.sent) },
};

static const struct counter_table counters = { "keeper", "export", "store_keeper_", counter_list,
	ARRAY_COUNT(counter_list) };

static const struct store_ops ops = {
	.name = "keeper",
	.submit = keeper_submit,
	.size = keeper_size,
	.counters = &counters,
	.start = keeper_start,
	.has_owner = true,
};

const struct store_kind keeper_store_kind = {
	.name = "keeper",
	.prefix = "keeper:",
	.store_bytes = sizeof(struct keeper),
	.ops = &ops,
	.open = keeper_open,
};
