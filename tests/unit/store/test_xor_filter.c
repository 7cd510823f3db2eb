// SPDX-License-Identifier: Apache-2.0
/*
 * A filter that transforms data, and of which no file of src knows: it has memory of its own for
 * what it passes on, because the memory of a part belongs to who submits it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../stores.h"
#include "harness.h"
#include "unit.h"

enum { STORE_BYTES = 1 << 20, KEY = 0x5a, ALIGN = 4096 };

struct xor_config {
	bool is_on;
};

/* Of a write: the memory that it came with, while its place is taken by ours. */
struct xor_scratch {
	struct mem_ref memory;
};

static void mix(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++) {
		to[i] = from[i] ^ KEY;
	}
}

static void xor_submit(struct store_queue *queue, struct store_part *part)
{
	struct xor_scratch *scratch = store_scratch(part);
	uint64_t room = (part->length + ALIGN - 1) / ALIGN * ALIGN;
	uint8_t *own;

	if (part->op == STORE_WRITE) {
		own = aligned_alloc(ALIGN, room);
		if (own == NULL) {
			store_finish_later(part, -ENOMEM);
			return;
		}
		mix(own, mem_cpu_read(part->memory), part->length);
		scratch->memory = part->memory;
		part->memory = mem_of(own);
	} else if ((BIT(part->op) & STORE_CHANGES) != 0) {
		store_finish_later(
			part, -EOPNOTSUPP); /* zeroes would have to be transformed, too */
		return;
	}
	store_forward(part);
}

static void xor_inner_done(struct store_part *part, int result)
{
	struct xor_scratch *scratch = store_scratch(part);

	if (part->op == STORE_WRITE) {
		free(mem_cpu_write(part->memory));
		part->memory = scratch->memory;
	} else if (part->op == STORE_READ && result == 0) {
		mix(mem_cpu_write(part->memory), mem_cpu_read(part->memory), part->length);
	}
	store_finish(part, result);
}

static int xor_open(struct store *base, const struct store_options *options, const void *config,
	struct error *error)
{
	base->info.memory_rights |= MEM_CPU;
	base->info.caps &= ~(uint32_t)(STORE_CAP_TRIM | STORE_CAP_FAST_ZERO | STORE_CAP_EXTENTS);
	base->info.has_progress = false;
	return 0;
}

static const struct field xor_options[] = {
	{ "xor", NULL, "transform the data, for tests", .type = FIELD_FLAG,
		FIELD_IN(struct xor_config, is_on) },
};

static const struct store_ops xor_ops = {
	.name = "xor",
	.scratch_bytes = sizeof(struct xor_scratch),
	.submit = xor_submit,
	.inner_done = xor_inner_done,
	.handover = store_handover_nothing,
};

static const struct store_kind xor_store_kind = {
	.name = "xor",
	.is_filter = true,
	.options = xor_options,
	.option_count = ARRAY_COUNT(xor_options),
	.config_bytes = sizeof(struct xor_config),
	.store_bytes = sizeof(struct store),
	.ops = &xor_ops,
	.open = xor_open,
};

static void open_xor(struct bench *bench, const char *fault)
{
	struct store_options options = { .path = "memory:1M" };

	stores_set(&options, "xor", "yes");
	if (fault != NULL) {
		stores_set(&options, "fault", fault);
	}
	bench_open(bench, &options);
	store_options_fini(&options);
}

TEST(data_below_is_transformed)
{
	static uint8_t written[STORE_BYTES];
	static uint8_t before[STORE_BYTES];
	static uint8_t got[STORE_BYTES];
	static const struct {
		uint64_t offset;
		uint64_t length;
	} places[] = { { 0, STORE_BYTES }, { 1, 1 }, { 4095, 4098 }, { 123457, 300001 } };
	struct bench bench;
	const uint8_t *below;
	uint64_t seed = 1;

	open_xor(&bench, NULL);
	below = memory_store_bytes(bench.store->inner);
	for (size_t i = 0; i < ARRAY_COUNT(places); i++) {
		uint8_t *from = written + places[i].offset;

		for (uint64_t j = 0; j < places[i].length; j++) {
			from[j] = (uint8_t)random_next(&seed);
		}
		memcpy(before, written, STORE_BYTES);
		assert_int_equal(bench_write(&bench, places[i].offset, places[i].length, from), 0);
		assert_memory_equal(written, before, STORE_BYTES); /* it is the client's */
		for (uint64_t j = 0; j < STORE_BYTES; j++) {
			assert_int_equal(below[j], written[j] ^ KEY);
		}
		assert_int_equal(bench_read(&bench, places[i].offset, places[i].length, got), 0);
		assert_memory_equal(got, from, places[i].length);
	}
	assert_int_equal(bench_read(&bench, 0, STORE_BYTES, got), 0);
	assert_memory_equal(got, written, STORE_BYTES);
	assert_int_equal(bench_flush(&bench), 0);
	assert_int_equal(bench_do(&bench, STORE_ZERO, 0, 0, 4096, NULL), -EOPNOTSUPP);
	bench_close(&bench);
}

/* Several parts at a time, each with memory of its own, and one that fails. */
TEST(parts_have_memory_of_their_own)
{
	enum { PARTS = 16, BYTES = 4096 };
	static uint8_t data[PARTS][BYTES];
	static uint8_t got[PARTS * BYTES];
	struct waited_part parts[PARTS] = { 0 };
	struct bench bench;

	open_xor(&bench, "write:EIO:nth=7");
	for (int i = 0; i < PARTS; i++) {
		memset(data[i], i + 1, BYTES);
		bench_start(&bench, &parts[i], STORE_WRITE, 0, (uint64_t)i * BYTES, BYTES, data[i]);
	}
	for (int i = 0; i < PARTS; i++) {
		assert_int_equal(bench_wait(&bench, &parts[i]), i == 6 ? -EIO : 0);
		assert_ptr_equal(mem_cpu_read(parts[i].part.memory), data[i]);
	}
	assert_int_equal(bench_write(&bench, 6 * BYTES, BYTES, data[6]), 0);
	assert_int_equal(bench_read(&bench, 0, sizeof(got), got), 0);
	assert_memory_equal(got, data, sizeof(got));
	bench_close(&bench);
}

int main(void)
{
	store_register(&xor_store_kind);
	return unit_run(NULL, NULL);
}
