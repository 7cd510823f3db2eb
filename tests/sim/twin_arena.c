// SPDX-License-Identifier: Apache-2.0
#include "twin_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include "scenario.h"
#include "sim/sim.h"

enum { TWIN_EVERY = 4 };

static int twin_map(void *context, uint64_t bytes, uint8_t **base_out)
{
	struct twin_source *twin = context;
	int fd = memfd_create("twin", MFD_CLOEXEC);
	void *closed;
	void *real;

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || twin->count == TWIN_SLABS_MAX) {
		model_fail("no memory for a twin arena");
	}
	real = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	closed = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
	close(fd);
	if (real == MAP_FAILED || closed == MAP_FAILED) {
		model_fail("a twin arena cannot be mapped");
	}
	sim_memory_alias(closed, bytes, real);
	twin->real[twin->count] = real;
	twin->closed[twin->count++] = closed;
	*base_out = closed;
	return 0;
}

static void twin_unmap(void *context, uint8_t *base, uint64_t bytes)
{
	struct twin_source *twin = context;
	uint32_t i = 0;

	while (twin->closed[i] != base) {
		i++;
	}
	sim_memory_unalias(base);
	(void)munmap(base, bytes);
	(void)munmap(twin->real[i], bytes);
}

struct arena_source twin_arena_source(struct twin_source *twin)
{
	*twin = (struct twin_source){ 0 };
	return (struct arena_source){
		.kind = "twin",
		.rights = MEM_SOCKET | MEM_ADDRESS,
		.registers = true,
		.map = twin_map,
		.unmap = twin_unmap,
		.context = twin,
	};
}

void twin_choose(struct scenario *scenario)
{
	if (scenario->seed % TWIN_EVERY == 0) {
		scenario->twin_bytes =
			sim_random() % 100 < 60
				? ARENA_DEVICE_BYTES_MIN +
					  sim_random() % 112 * ARENA_BLOCK_BYTES_MIN
				: sim_random() % 3072 * ARENA_BLOCK_BYTES_MIN + (1 << 20);
		scenario->twin_waits = sim_random() % 2 == 0;
	}
}

void twin_check(struct scenario *scenario, struct scenario_service *service)
{
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		struct scenario_export *export = &scenario->exports[i];
		const struct path_export *measured =
			engine_export_measured(service->engine, export->export);
		const struct store_info *info = store_info(export->store);
		uint64_t refused = measured->ram_for_store + measured->ram_for_session +
				   measured->ram_for_room;

		if (measured->device_bytes > 0 &&
			!(info->device_cpu && (info->read_device || info->write_device))) {
			model_fail("export %u had device memory", i);
		}
		if (refused > 0 && !info->read_device && !info->write_device) {
			model_fail("export %u was refused what it did not ask for", i);
		}
		if (measured->ram_for_trouble > 0 || measured->device_error != 0 ||
			(scenario->twin_waits && measured->ram_for_room > 0)) {
			model_fail("export %u had RAM for no reason", i);
		}
		scenario->device_bytes += measured->device_bytes;
		scenario->device_refused += refused;
	}
}
