// SPDX-License-Identifier: Apache-2.0
/* The knobs filter, see lab.h. */
#include <errno.h>
#include <string.h>

#include "base/text.h"
#include "lab/gc_rules.h"
#include "lab/lab.h"

enum { PARTS_STEP = 4096, PARTS_MAX = 1 << 20 };

struct knobs_config {
	uint64_t part_bytes;
	uint32_t policy; /* enum gc_policy */
	bool has_policy;
	bool has_device_cpu;
	bool device_cpu;
};

static void knobs_submit(struct store_queue *queue, struct store_part *part)
{
	store_forward(part);
}

/* --- opening --------------------------------------------------------------------------------- */

static int knobs_gc(struct store *base, const struct store_options *options,
	const struct knobs_config *config, struct error *error)
{
	struct store *store = base->inner;

	if (!config->has_policy) {
		return 0;
	}
	while (store->inner != NULL) {
		store = store->inner;
	}
	if (!flash_store_set_rule(store, gc_rules[config->policy])) {
		return error_set(error, -EINVAL,
			"'%s': the key gc is only for disks whose path begins with flash:",
			options->path);
	}
	return 0;
}

static int knobs_open(struct store *base, const struct store_options *options,
	const void *config_bytes, struct error *error)
{
	const struct knobs_config *config = config_bytes;
	bool has_device =
		options->read_mode == STORE_MODE_DEVICE || options->write_mode == STORE_MODE_DEVICE;
	int result = knobs_gc(base, options, config, error);

	if (result == 0 && config->has_device_cpu && !has_device) {
		result = error_set(error, -EINVAL,
			"'%s': the key device-cpu has no effect here: neither mode nor write-mode "
			"is device; omit device-cpu",
			options->path);
	}
	base->info.device_cpu = config->device_cpu;
	base->info.part_bytes = (uint32_t)config->part_bytes;
	return result;
}

/* --- options --------------------------------------------------------------------------------- */

static int set_parts(void *config_bytes, const char *value, struct error *error)
{
	struct knobs_config *config = config_bytes;
	int result = units_parse_bytes(value, &config->part_bytes, error);

	if (result == 0 && (config->part_bytes == 0 || config->part_bytes > PARTS_MAX ||
				   config->part_bytes % PARTS_STEP != 0)) {
		result = error_set(
			error, -ERANGE, "'%s' is not a size from 4K to 1M in steps of 4K", value);
	}
	return result;
}

static int set_device_cpu(void *config_bytes, const char *value, struct error *error)
{
	struct knobs_config *config = config_bytes;

	config->has_device_cpu = true;
	config->device_cpu = strcmp(value, "yes") == 0;
	return config->device_cpu || strcmp(value, "no") == 0
		       ? 0
		       : error_set(error, -EINVAL, "the value must be 'yes' or 'no'");
}

static int set_gc(void *config_bytes, const char *value, struct error *error)
{
	struct knobs_config *config = config_bytes;

	for (uint32_t i = 0; i < GC_POLICY_COUNT; i++) {
		if (strcmp(value, gc_rules[i]->name) == 0) {
			config->policy = i;
			config->has_policy = true;
			return 0;
		}
	}
	return error_set(error, -EINVAL, "the value must be 'auto', 'paper', 'plain' or 'greedy'");
}

#define AT(first, last) FIELD_AT(struct knobs_config, first, last)

static const struct field knobs_options[] = {
	{ "parts", "SIZE", "lab: split reads and writes into parts of this size", "64K",
		.set = set_parts, AT(part_bytes, part_bytes) },
	{ "device-cpu", "yes|no",
		"lab: with mode=device, whether the processor copies payload between device memory "
		"and sockets",
		"yes", .set = set_device_cpu, AT(has_device_cpu, device_cpu) },
	{ "gc", "auto|plain|paper|greedy",
		"lab: policy by which a flash store selects segments to collect (default auto)",
		"auto", .set = set_gc, AT(policy, policy) },
};

static const struct store_ops knobs_ops = {
	.name = "knobs",
	.submit = knobs_submit,
	.handover = store_handover_nothing,
};

const struct store_kind knobs_store_kind = {
	.name = "knobs",
	.is_filter = true,
	.options = knobs_options,
	.option_count = ARRAY_COUNT(knobs_options),
	.config_bytes = sizeof(struct knobs_config),
	.store_bytes = sizeof(struct store),
	.ops = &knobs_ops,
	.open = knobs_open,
};
