// SPDX-License-Identifier: Apache-2.0
/* The table of main() for tests: a program that includes this file has the kinds of stores and
 * filters from its start. */
#pragma once

#include "base/compiler.h"
#include "store/kind.h"

__attribute__((constructor)) static void stores_register(void)
{
	static const struct store_kind *const kinds[] = { &file_store_kind, &memory_store_kind,
		&null_store_kind, &flash_store_kind, &overlay_store_kind, &pace_store_kind,
		&sched_store_kind, &delay_store_kind, &fault_store_kind };

	/* the first file of the program */
	for (size_t i = 0; i < ARRAY_COUNT(kinds) && store_kind_at(i) == NULL; i++) {
		store_register(kinds[i]);
	}
}

/* Sets a key that must be right. */
static inline void stores_set(struct store_options *options, const char *key, const char *value)
{
	struct error error = { 0 };

	GMB_ASSERT(store_options_set(options, key, value, &error) == 0);
}
