// SPDX-License-Identifier: Apache-2.0
/*
 * The null store: reads return zeroes, writes are discarded. It is for measuring all layers above
 * the store.
 */
#include <errno.h>
#include <string.h>

#include "store/kind.h"
#include "store/parse.h"

struct null_store {
	struct store base;
	uint64_t size;
};

static uint64_t null_size(struct store *store)
{
	return container_of(store, struct null_store, base)->size;
}

static void null_submit(struct store_queue *queue, struct store_part *part)
{
	struct null_store *store = container_of(queue->store, struct null_store, base);

	if (part->op != STORE_FLUSH && part->offset + part->length > store->size) {
		store_finish_later(part, -EIO);
		return;
	}
	if (part->op == STORE_READ) {
		memset(mem_cpu_write(part->memory), 0, part->length);
	} else if (part->op == STORE_EXTENTS) {
		(void)store_extent_add(part, part->length, STORE_EXTENT_HOLE | STORE_EXTENT_ZERO);
	}
	store_finish_later(part, 0);
}

static int null_open(struct store *base, const struct store_options *options, const void *config,
	struct error *error)
{
	base->info = (struct store_info){
		.kind = "null",
		.caps = STORE_CAP_TRIM | STORE_CAP_FAST_ZERO | STORE_CAP_EXTENTS |
			(options->read_only ? 0 : STORE_CAP_WRITE),
		.block_min = 1,
		.block_preferred = 4096,
		.memory_align = 1,
		.offset_align = 1,
		.memory_rights = MEM_CPU | MEM_ADDRESS,
		.read_direct = store_mode_is_direct(options->read_mode),
		.write_direct = store_mode_is_direct(options->write_mode),
	};
	return parse_path_size(
		options->path, &container_of(base, struct null_store, base)->size, error);
}

static const struct store_ops null_ops = {
	.name = "null",
	.submit = null_submit,
	.size = null_size,
	.handover = store_handover_nothing,
};

static const char *const useless[] = { "page-cache-send", NULL };

const struct store_kind null_store_kind = {
	.name = "null",
	.useless = useless,
	.useless_reason = "a null disk stores no data",
	.prefix = "null:",
	.names_size = true,
	.store_bytes = sizeof(struct null_store),
	.ops = &null_ops,
	.open = null_open,
};
