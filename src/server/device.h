// SPDX-License-Identifier: Apache-2.0
/*
 * The device memory of the server (--arena): opened while the process may still be root, tried with
 * the disks of the exports that ask for it, and shared out to the reactors.
 *
 * Threading: the main thread at start and at the end. Ownership: gives; reactors borrow it.
 * Errors: negative errno and a sentence.
 */
#pragma once

#include "engine/export.h"
#include "memory/p2pmem.h"
#include "server/config/config.h"

struct device;

/* NULL: none was asked for. */
GMB_MUST_CHECK int device_open(
	const struct server_config *config, struct device **device_out, struct error *error);
/* No reactor is left. NULL is a no-op. */
void device_close(struct device *device);

/* Reads the first block of the disks whose exports ask for device memory, and notes those that
 * cannot reach it: export->device_error. What was found is logged. */
void device_probe(struct device *device, struct export *const *exports, uint32_t count);

struct p2pmem *device_memory(struct device *device);
/* What that reactor has of it; 0: nothing, as there is too little for all of them. */
uint64_t device_share_bytes(const struct device *device, uint32_t reactor);
