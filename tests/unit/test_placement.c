// SPDX-License-Identifier: Apache-2.0
/*
 * Requests that bring scatter lists, against a shadow of the disk: segments of all sizes, at all
 * addresses, with and without the CPU's rights, on stores that need alignment, that need the CPU
 * and that need nothing. Each slot has a range of the disk and memory of its own, so that what a
 * read must find is known; disks fail on the way, and requests are given up at any moment.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "memory/arena.h"
#include "path/path.h"
#include "sim/sim.h"
#include "stores.h"
#include "unit.h"

enum {
	SLOTS = 4,
	SLOT_BYTES = 256 << 10,
	DISK_BYTES = SLOTS * SLOT_BYTES,
	MEMORY_BYTES = 4 * SLOT_BYTES,
	SEGMENTS_MAX = 24,
	FRAGMENTS_MAX = 256,
	STEPS = 3000,
};

struct slot {
	struct world *world;
	struct path_request request;
	struct mem_segment segments[SEGMENTS_MAX];
	uint32_t segment_count;
	uint8_t *memory;
	bool live;
	bool placed; /* the path kept the placement */
	bool given_up;
	uint64_t range; /* of the disk */
	struct path_fragment fragments[FRAGMENTS_MAX];
	uint32_t fragment_count;
	uint64_t handed;
};

struct world {
	struct ring *ring;
	struct ring_batch_end batch_end;
	struct arena *arena;
	struct path *path;
	struct path_peer peer;
	struct path_client client;
	struct store *store;
	struct late_writes late;
	struct path_export path_export;
	struct sim_disk *disk; /* NULL: a memory store */
	struct slot slots[SLOTS];
	uint8_t *shadow;
	bool fails; /* parts of the disk are bad */
	uint64_t committed;
	uint64_t aborted;
	uint64_t given_up;
};

static void batch_end(struct ring_batch_end *batch_end)
{
	struct world *world = container_of(batch_end, struct world, batch_end);

	path_serve(world->path);
}

static void progress(struct path_request *request)
{
	GMB_UNUSED(request); /* the test looks at all slots after each step */
}

/* align and memory_align: of direct I/O. */
static struct world *world_open(uint64_t seed, const char *path, enum store_mode mode,
	uint32_t align, uint32_t memory_align)
{
	struct world *world = calloc(1, sizeof(*world));
	struct store_options options = { .path = path, .read_mode = mode, .write_mode = mode };
	struct error error = { 0 };

	assert_non_null(world);
	sim_start(&(struct sim_options){ .seed = seed,
		.faults = { .partial_ppm = 100000,
			.interrupt_ppm = 50000,
			.again_ppm = 20000,
			.jitter = true } });
	world->shadow = calloc(1, DISK_BYTES);
	assert_non_null(world->shadow);
	if (strcmp(path, "disk") == 0) {
		world->disk = sim_disk_create(path, &(struct sim_disk_options){ .size = DISK_BYTES,
							    .direct_offset_align = align,
							    .direct_memory_align = memory_align,
							    .keeps_cache = true });
	}
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &world->ring, &error), 0);
	assert_int_equal(arena_ram_create(world->ring, ARENA_SLAB_BYTES, &world->arena, &error), 0);
	assert_int_equal(
		path_create(&(struct path_options){ .ring = world->ring, .ram = world->arena },
			&world->path, &error),
		0);
	path_peer_init(&world->peer);
	path_client_init(&world->client, world->path, &world->peer);
	assert_int_equal(store_open(&options, &world->store, &error), 0);
	world->path_export.store = world->store;
	late_writes_init(&world->late);
	path_export_init(&world->path_export, PATH_OVERLAP_AUTO, &world->late, world->ring);
	assert_int_equal(
		store_queue_create(world->store, world->ring, &world->path_export.queue, &error),
		0);
	world->batch_end.call = batch_end;
	ring_batch_end_add(world->ring, &world->batch_end);
	for (uint32_t i = 0; i < SLOTS; i++) {
		world->slots[i].world = world;
		world->slots[i].memory = aligned_alloc(4096, MEMORY_BYTES);
		assert_non_null(world->slots[i].memory);
		world->slots[i].range = (uint64_t)i * SLOT_BYTES;
	}
	return world;
}

static void world_close(struct world *world)
{
	assert_int_equal(arena_info(world->arena)->used_bytes, 0);
	for (uint32_t i = 0; i < SLOTS; i++) {
		free(world->slots[i].memory);
	}
	ring_batch_end_remove(&world->batch_end);
	store_queue_destroy(world->path_export.queue);
	path_export_fini(&world->path_export);
	late_writes_fini(&world->late);
	store_close(world->store);
	path_client_fini(&world->client);
	path_destroy(world->path);
	arena_destroy(world->arena);
	ring_destroy(world->ring);
	sim_stop();
	free(world->shadow);
	free(world);
}

/* --- scatter lists ------------------------------------------------------------------------- */

static uint64_t some_length(void)
{
	switch (sim_between(0, 4)) {
	case 0:
		return sim_between(1, 64);
	case 1:
		return 512 * sim_between(1, 64);
	case 2:
		return 4096 * sim_between(1, 32);
	default:
		return sim_between(1, 40000);
	}
}

/* Segments one behind the other in the slot's memory, with gaps of all sizes. */
static void make_segments(struct slot *slot, uint64_t length, bool cpu)
{
	uint8_t *at = slot->memory;

	slot->segment_count = 0;
	while (length > 0) {
		struct mem_segment *segment = &slot->segments[slot->segment_count++];
		bool last = slot->segment_count == SEGMENTS_MAX;

		at += sim_chance(500000) ? sim_between(0, 600) : 0;
		if (sim_chance(500000)) {
			at = slot->memory + align_up((uintptr_t)(at - slot->memory), 4096);
		}
		segment->bytes = last ? length : MIN(length, some_length());
		if (sim_chance(50000) && !last) {
			segment->bytes = 0; /* does no harm */
		}
		segment->memory = mem_of(at);
		if (!cpu) {
			segment->memory = mem_limit(segment->memory, MEM_SOCKET | MEM_ADDRESS);
		}
		at += segment->bytes;
		length -= segment->bytes;
	}
	assert_true(at <= slot->memory + MEMORY_BYTES);
}

/* Copies between the segments, at a place in the list, and bytes. */
static void copy(struct slot *slot, uint64_t at, uint8_t *bytes, uint64_t count, bool out)
{
	for (uint32_t i = 0; i < slot->segment_count && count > 0; i++) {
		struct mem_segment segment = slot->segments[i];
		uint8_t *memory = mem_address(segment.memory);
		uint64_t part;

		if (at >= segment.bytes) {
			at -= segment.bytes;
			continue;
		}
		part = MIN(segment.bytes - at, count);
		if (out) {
			memcpy(bytes, memory + at, part);
		} else {
			memcpy(memory + at, bytes, part);
		}
		bytes += part;
		count -= part;
		at = 0;
	}
	assert_int_equal(count, 0);
}

static void fill(uint8_t *bytes, uint64_t count)
{
	for (uint64_t i = 0; i < count; i += sizeof(uint64_t)) {
		uint64_t word = sim_random();

		memcpy(bytes + i, &word, MIN(count - i, (uint64_t)sizeof(word)));
	}
}

/* --- requests ------------------------------------------------------------------------------ */

static void request_start(struct slot *slot, bool cpu)
{
	struct world *world = slot->world;
	struct path_request *request = &slot->request;
	uint64_t begin = sim_between(0, SLOT_BYTES - 1);
	uint8_t bytes[SLOT_BYTES];
	uint64_t length;

	if (sim_chance(700000)) {
		begin = align_down(begin, 4096);
	}
	length = MIN(some_length() * sim_between(1, 6), SLOT_BYTES - begin);
	memset(slot->memory, 0xee, MEMORY_BYTES);
	make_segments(slot, length, cpu);
	*request = (struct path_request){ .client = &world->client,
		.op = sim_chance(500000) ? STORE_READ : STORE_WRITE,
		.offset = slot->range + begin,
		.length = length,
		.window_bytes = 4096 * sim_between(1, 64),
		.ascending = sim_chance(200000),
		.whole = sim_chance(200000),
		.memory_rights = MEM_CPU | MEM_ADDRESS,
		.placement = slot->segments,
		.placement_count = slot->segment_count,
		.export = &world->path_export,
		.progress = progress };
	slot->live = true;
	slot->given_up = false;
	slot->fragment_count = 0;
	slot->handed = 0;
	if (request->op == STORE_WRITE) {
		fill(bytes, length);
		copy(slot, 0, bytes, length, false);
	}
	path_start(world->path, request);
	slot->placed = request->placement != NULL;
}

static void take_fragments(struct slot *slot)
{
	struct world *world = slot->world;
	struct path_fragment *fragment = &slot->fragments[slot->fragment_count];
	uint32_t max_bytes = (uint32_t)sim_between(1, 1 << 20);
	uint8_t bytes[SLOT_BYTES];

	if (slot->request.op != STORE_READ || slot->fragment_count == FRAGMENTS_MAX ||
		!path_next_fragment(&slot->request, max_bytes, fragment)) {
		return;
	}
	if (slot->placed) {
		assert_true(fragment->memory.rights == 0);
		copy(slot, fragment->offset - slot->request.offset, bytes, fragment->length, true);
		assert_memory_equal(bytes, world->shadow + fragment->offset, fragment->length);
	} else {
		assert_memory_equal(mem_cpu_read(fragment->memory),
			world->shadow + fragment->offset, fragment->length);
	}
	slot->handed += fragment->length;
	slot->fragment_count++;
}

static void return_fragment(struct slot *slot)
{
	uint32_t idx;

	if (slot->fragment_count > 0) {
		struct path_fragment fragment;

		idx = (uint32_t)sim_between(0, slot->fragment_count - 1);
		fragment = slot->fragments[idx];
		slot->fragments[idx] = slot->fragments[--slot->fragment_count];
		path_fragment_sent(&fragment);
	}
}

/* The whole of a write without placement, as far as there is room. */
static void feed_write(struct slot *slot)
{
	struct path_request *request = &slot->request;

	while (request->op == STORE_WRITE && !slot->placed && request->error == 0 &&
		request->started_bytes < request->length) {
		struct path_stream *stream = path_write_open(request);

		if (stream == NULL) {
			return;
		}
		copy(slot, stream->offset - request->offset, mem_cpu_write(stream->memory),
			stream->length, true);
		path_write_submit(stream);
	}
}

static void request_finish(struct slot *slot)
{
	struct world *world = slot->world;
	struct path_request *request = &slot->request;
	bool good = request->error == 0 && !slot->given_up;
	uint8_t *shadow = world->shadow + request->offset;

	if (request->op == STORE_WRITE && good) {
		copy(slot, 0, shadow, request->length, true);
	} else if (request->op == STORE_WRITE) {
		/* Any part of it may have been written. */
		if (world->disk != NULL) {
			sim_disk_peek(world->disk, request->offset, shadow, request->length);
		}
	} else if (good) {
		assert_int_equal(slot->handed, request->length);
	}
	path_finish(request);
	world->committed += good;
	world->aborted += request->error != 0;
	world->given_up += slot->given_up;
	/* Nobody touches the memory any more. */
	memset(slot->memory, 0x11, MEMORY_BYTES);
	slot->live = false;
}

static void look(struct slot *slot)
{
	struct path_request *request = &slot->request;

	if (!slot->live) {
		for (uint32_t i = 0; i < MEMORY_BYTES && slot->request.length > 0; i += 509) {
			assert_int_equal(slot->memory[i], 0x11);
		}
		return;
	}
	if (slot->given_up) {
		return_fragment(slot);
		if (path_is_idle(request)) {
			request_finish(slot);
		}
		return;
	}
	feed_write(slot);
	take_fragments(slot);
	if (sim_chance(500000)) {
		return_fragment(slot);
	}
	if (slot->fragment_count == 0 &&
		(path_status(request) == PATH_ABORTED ||
			(path_status(request) == PATH_COMMITTED &&
				(request->op == STORE_WRITE || slot->handed == request->length)))) {
		request_finish(slot);
	}
}

/* cpu_ppm: how often the CPU may touch the memory of a request. */
static void run(struct world *world, uint32_t cpu_ppm)
{
	for (uint32_t i = 0; i < STEPS; i++) {
		struct slot *slot = &world->slots[sim_between(0, SLOTS - 1)];

		if (!slot->live && i < STEPS - 1000) {
			request_start(slot, sim_chance(cpu_ppm));
		} else if (slot->live && !slot->given_up && world->disk != NULL &&
			   sim_chance(10000)) {
			slot->given_up = true;
			(void)path_abandon(&slot->request);
		}
		(void)sim_step();
		for (uint32_t j = 0; j < SLOTS; j++) {
			look(&world->slots[j]);
		}
	}
	for (uint32_t i = 0; i < SLOTS; i++) {
		while (world->slots[i].live) {
			(void)sim_step();
			look(&world->slots[i]);
		}
	}
	assert_true(world->committed > 50);
}

static void set_content(struct world *world)
{
	fill(world->shadow, DISK_BYTES);
	sim_disk_poke(world->disk, 0, world->shadow, DISK_BYTES);
}

TEST(test_cached)
{
	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct world *world = world_open(seed, "disk", STORE_MODE_CACHED, 0, 0);

		set_content(world);
		run(world, 500000);
		assert_int_equal(world->path_export.ram_bytes, 0);
		assert_true(world->given_up > 0);
		world_close(world);
	}
}

TEST(test_direct)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct world *world = world_open(seed, "disk", STORE_MODE_DIRECT,
			seed % 2 == 0 ? 512 : 4096, seed % 4 < 2 ? 4 : 512);

		set_content(world);
		run(world, 800000);
		assert_true(world->path_export.ram_bytes > 0);
		assert_true(world->path_export.placed_bytes > 0);
		assert_true(world->given_up > 0);
		world_close(world);
	}
}

/* Memory that is aligned for the device, but not like blocks of the disk, is copied: Linux 6.12
 * refuses it if it is registered. */
TEST(test_direct_with_coarse_blocks)
{
	struct world *world = world_open(1, "disk", STORE_MODE_DIRECT, 4096, 4);
	struct slot *slot = &world->slots[0];

	for (int op = STORE_READ; op <= STORE_WRITE; op++) {
		struct mem_segment segment = { .memory = mem_of(slot->memory + 28),
			.bytes = 16384 };
		struct path_request request = { .client = &world->client,
			.op = (enum store_op)op,
			.length = segment.bytes,
			.window_bytes = segment.bytes,
			.whole = true,
			.memory_rights = MEM_CPU | MEM_ADDRESS,
			.placement = &segment,
			.placement_count = 1,
			.export = &world->path_export,
			.progress = progress };

		path_start(world->path, &request);
		while (path_status(&request) == PATH_PENDING) {
			assert_true(sim_step());
		}
		assert_int_equal(request.error, 0);
		(void)path_abandon(&request);
		path_finish(&request);
	}
	assert_int_equal(world->path_export.ram_bytes, 2 * 16384); /* one read, one write */
	assert_int_equal(world->path_export.placed_bytes, 0);
	world_close(world);
}

/* One block of the middle has its bytes in two segments; all others go straight. */
TEST(test_only_the_block_that_is_split_is_copied)
{
	struct world *world = world_open(1, "disk", STORE_MODE_DIRECT, 4096, 4096);
	struct slot *slot = &world->slots[0];
	uint8_t bytes[32768];

	set_content(world);
	slot->segments[0] = (struct mem_segment){ .memory = mem_of(slot->memory), .bytes = 5000 };
	slot->segments[1] =
		(struct mem_segment){ .memory = mem_of(slot->memory + 16384 + 5000 - 8192),
			.bytes = sizeof(bytes) - 5000 };
	slot->segment_count = 2;
	slot->request = (struct path_request){ .client = &world->client,
		.op = STORE_READ,
		.length = sizeof(bytes),
		.window_bytes = SLOT_BYTES,
		.memory_rights = MEM_ADDRESS,
		.placement = slot->segments,
		.placement_count = 2,
		.export = &world->path_export,
		.progress = progress };
	path_start(world->path, &slot->request);
	assert_int_equal(slot->request.parts_started, 3);
	assert_int_equal(world->path_export.ram_bytes, 4096);
	while (path_status(&slot->request) == PATH_PENDING) {
		(void)sim_step();
	}
	copy(slot, 0, bytes, sizeof(bytes), true);
	assert_memory_equal(bytes, world->shadow, sizeof(bytes));
	(void)path_abandon(&slot->request); /* no fragment is wanted */
	path_finish(&slot->request);
	world_close(world);
}

/* Memory that the CPU must not touch is never copied, also where nothing is aligned. */
TEST(test_direct_without_the_cpu)
{
	struct world *world = world_open(1, "disk", STORE_MODE_DIRECT, 512, 512);

	set_content(world);
	run(world, 0);
	assert_int_equal(world->path_export.ram_bytes, 0);
	world_close(world);
}

TEST(test_errors)
{
	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct world *world = world_open(seed, "disk",
			seed % 2 == 0 ? STORE_MODE_DIRECT : STORE_MODE_CACHED, 512, 512);

		set_content(world);
		sim_disk_set_bad(world->disk, SLOT_BYTES / 2, SLOT_BYTES, true, true);
		run(world, 800000);
		assert_true(world->aborted > 0);
		world_close(world);
	}
}

/* The store copies by itself: such memory stays away from it, and the request is like any other. */
TEST(test_memory_store)
{
	struct world *world = world_open(1, "memory:1M", STORE_MODE_CACHED, 0, 0);

	run(world, 500000);
	assert_true(world->path_export.ram_bytes > 0);
	world_close(world);
}
