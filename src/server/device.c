// SPDX-License-Identifier: Apache-2.0
#include "server/device.h"

#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/log.h"
#include "store/kind.h"

enum { PROBE_BYTES = 4096 };

struct device {
	struct p2pmem memory;
	uint64_t bytes; /* device memory of all reactors together */
	uint32_t reactor_count;
};

static int choose_bytes(struct device *device, uint64_t wanted, struct error *error)
{
	const struct p2pmem *memory = &device->memory;

	if (wanted > memory->bytes) {
		return error_set(error, -EINVAL,
			"the memory of PCI device %s has %llu KiB, less than the requested %llu "
			"KiB",
			memory->bdf, (unsigned long long)memory->bytes >> 10,
			(unsigned long long)wanted >> 10);
	}
	device->bytes = wanted > 0 ? wanted : align_down(memory->free_bytes, 4096);
	if (device->bytes > memory->free_bytes || device->bytes < ARENA_DEVICE_BYTES_MIN) {
		return error_set(error, -EBUSY,
			"not enough free memory: of the %llu KiB of PCI device %s, %llu KiB are "
			"free and %llu KiB are needed",
			(unsigned long long)memory->bytes >> 10, memory->bdf,
			(unsigned long long)memory->free_bytes >> 10,
			(unsigned long long)MAX(device->bytes, (uint64_t)ARENA_DEVICE_BYTES_MIN) >>
				10);
	}
	return 0;
}

int device_open(const struct server_config *config, struct device **device_out, struct error *error)
{
	const struct server_arena *arena = &config->arena;
	char answer[P2PMEM_ANSWER_BYTES];
	struct device *device;
	int rc;

	if (!arena->given) {
		return 0;
	}
	device = calloc(1, sizeof(*device));
	if (device == NULL) {
		return error_oom_for(error, "an arena");
	}
	device->reactor_count = config->limits.threads;
	device->memory.fd = -1;
	rc = p2pmem_open(arena->bdf, &device->memory, error);
	rc = rc ?: choose_bytes(device, arena->bytes, error);
	if (rc == 0) {
		rc = p2pmem_examine(&device->memory, answer);
		if (rc < 0) {
			(void)error_set(
				error, rc, "the memory of PCI device %s %s", arena->bdf, answer);
		}
	}
	if (rc < 0) {
		error_prefix(error, "--arena");
		device_close(device);
		return rc;
	}
	log_info("using %llu KiB of the memory of PCI device %s for payload: %s",
		(unsigned long long)device->bytes >> 10, arena->bdf, answer);
	*device_out = device;
	return 0;
}

void device_close(struct device *device)
{
	if (device != NULL) {
		p2pmem_close(&device->memory);
		free(device);
	}
}

static void probe(struct device *device, struct export *export)
{
	struct store *store = export->store;
	uint32_t bytes = MAX(store_info(store)->offset_align, (uint32_t)PROBE_BYTES);
	const char *name = quote_bytes(export->name, export->name_bytes);
	int fd;
	int result;

	while (store->inner != NULL) {
		store = store->inner;
	}
	fd = file_store_direct_fd(store);
	if (fd < 0) { /* direct I/O is for writes only, or the disk is not a file */
		log_info("export \"%s\": cannot check in advance whether its disk can reach the "
			 "memory of %s",
			name, device->memory.bdf);
		return;
	}
	result = p2pmem_reach(&device->memory, fd, bytes);
	if (result == 0) {
		log_info("export \"%s\": its disk can reach the memory of %s", name,
			device->memory.bdf);
		return;
	}
	log_warning("export \"%s\": the memory of %s %s; payload goes through RAM", name,
		device->memory.bdf, p2pmem_reach_text(result));
	export->device_error = result;
}

void device_probe(struct device *device, struct export *const *exports, uint32_t count)
{
	for (uint32_t i = 0; device != NULL && i < count; i++) {
		const struct store_info *info = store_info(exports[i]->store);

		if (info->read_device || info->write_device) {
			probe(device, exports[i]);
		}
	}
}

struct p2pmem *device_memory(struct device *device)
{
	return &device->memory;
}

uint64_t device_share_bytes(const struct device *device, uint32_t reactor)
{
	uint64_t share = align_down(device->bytes / device->reactor_count, ARENA_BLOCK_BYTES_MIN);

	if (share < 2 * (uint64_t)ARENA_DEVICE_BYTES_MIN) {
		return reactor == 0 ? device->bytes : 0;
	}
	return share;
}
