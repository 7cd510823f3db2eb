// SPDX-License-Identifier: Apache-2.0
/*
 * The device memory of the server (--arena). It is opened while the process may still be root,
 * tested with the disks of the exports that request it, and divided among the reactors.
 *
 * Threading: the main thread, at the start and at the end. Ownership: the caller of device_open()
 * owns it; reactors borrow it. Errors: negative errno and an error message.
 */
#pragma once

#include "engine/export.h"
#include "memory/p2pmem.h"
#include "server/config/config.h"

struct device;

/* Opens the device memory. *device_out is not changed if the configuration requests none. */
GMB_MUST_CHECK int device_open(
	const struct server_config *config, struct device **device_out, struct error *error);
/* Called when no reactor is left. NULL is a no-op. */
void device_close(struct device *device);

/* Reads the first block of the disks whose exports request device memory. Disks that cannot reach
 * that memory are marked in export->device_error. The result is logged. */
void device_probe(struct device *device, struct export *const *exports, uint32_t count);

struct p2pmem *device_memory(struct device *device);
/* The reactor's share in bytes; 0: the memory is too small to be divided, and
 * reactor 0 has all of it. */
uint64_t device_share_bytes(const struct device *device, uint32_t reactor);
