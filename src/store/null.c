// SPDX-License-Identifier: Apache-2.0
/*
 * The null store: every byte reads as zero, writes are accepted and forgotten. It measures
 * everything above the store.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/parse.h"
#include "store/store_private.h"

struct null_store {
	struct store base;
	uint64_t size;
};

static void null_close(struct store *store)
{
	free(container_of(store, struct null_store, base));
}

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
		part->extents[0].length = part->length;
		part->extents[0].flags = STORE_EXTENT_HOLE | STORE_EXTENT_ZERO;
		part->extent_count = 1;
	}
	store_finish_later(part, 0);
}

static const struct store_ops null_ops = {
	.name = "null",
	.close = null_close,
	.queue_create = store_plain_queue_create,
	.queue_destroy = store_plain_queue_destroy,
	.submit = null_submit,
	.size = null_size,
};

int null_store_open(const struct store_options *options, const char *size_text,
	struct store **store_out, struct error *error)
{
	struct null_store *store;
	uint64_t size;
	int result = store_parse_spec_size(options->path, size_text, &size, error);

	if (result < 0) {
		return result;
	}
	store = calloc(1, sizeof(*store));
	if (store == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", options->path);
	}
	store->base.ops = &null_ops;
	store->base.info = (struct store_info){
		.kind = "null",
		.caps = STORE_CAP_TRIM | STORE_CAP_FAST_ZERO | STORE_CAP_EXTENTS |
			(options->read_only ? 0 : STORE_CAP_WRITE),
		.block_min = 1,
		.block_preferred = 4096,
		.memory_align = 1,
		.offset_align = 1,
		.memory_rights = MEM_CPU | MEM_ADDRESS,
		.read_direct = options->read_mode == STORE_MODE_DIRECT,
		.write_direct = options->write_mode == STORE_MODE_DIRECT,
	};
	store->size = size;
	*store_out = &store->base;
	return 0;
}
