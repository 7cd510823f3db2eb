// SPDX-License-Identifier: Apache-2.0
/*
 * The data path over a producer that means ill: it completes parts in any order, stalls, tells
 * progress twice, backwards, too much or nothing, and fails after it has told.
 *
 *   producer ── store_progress, store_finish ──▶ path ──▶ fragments ──▶ consumer
 *       └─────── what was rightly told, byte by byte ─────▶ model ◀────────┘
 *
 * Memory holds another's bytes until the producer puts the right ones there. Nothing may come out
 * that was not rightly told or completed before, nothing twice, and the last fragment only when the
 * request is a success.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "path/path.h"
#include "sim/sim.h"
#include "store/kind.h"
#include "unit.h"

enum {
	STORE_BYTES = 8 << 20,
	REQUEST_BYTES_MAX = 600 << 10,
	ARENA_BYTES = 4 << 20,
	EXPORTS = 2,
	REQUESTS = 6,
	FRAGMENTS_MAX = 4096,
	PARTS_MAX = 2048,
	SEEDS = 200,
	STALE = 0xee, /* what was in the memory before; no right byte looks like it */
};

/* --- the producer -------------------------------------------------------------------------- */

struct producer {
	struct store base;
	uint8_t salt;
	uint32_t part_count; /* submitted and not finished, any order */
	struct store_part *parts[PARTS_MAX];
};

static uint8_t right_byte(const struct producer *producer, uint64_t offset)
{
	return (uint8_t)((offset * 7 + (offset >> 9) + producer->salt) & 0x7f);
}

static struct producer *producer_of(const struct store_part *part)
{
	return container_of(part->queue->store, struct producer, base);
}

/* How many bytes of a part are there. */
static uint64_t *produced_of(struct store_part *part)
{
	return (uint64_t *)(void *)part->scratch;
}

static void producer_submit(struct store_queue *queue, struct store_part *part)
{
	struct producer *producer = container_of(queue->store, struct producer, base);

	assert_true(producer->part_count < PARTS_MAX);
	producer->parts[producer->part_count++] = part;
	*produced_of(part) = 0;
	if (part->op == STORE_READ) {
		memset(mem_cpu_write(part->memory), STALE, part->length);
	}
}

static uint64_t producer_size(struct store *store)
{
	return STORE_BYTES;
}

static const struct store_ops producer_ops = {
	.name = "producer",
	.scratch_bytes = sizeof(uint64_t),
	.submit = producer_submit,
	.size = producer_size,
};

/* Puts the right bytes from the beginning of the part's memory. */
static void produce(struct store_part *part, uint64_t bytes)
{
	const struct producer *producer = producer_of(part);
	uint8_t *data = mem_cpu_write(part->memory);

	for (uint64_t i = *produced_of(part); i < bytes; i++) {
		data[i] = right_byte(producer, part->offset + i);
	}
	*produced_of(part) = MAX(*produced_of(part), bytes);
}

/* --- the world ----------------------------------------------------------------------------- */

struct reader {
	struct path_request request;
	struct world *world;
	bool live;
	bool abandoned;
	bool got_last;
	uint32_t export_idx;
	uint32_t held;	     /* fragments not given back */
	uint64_t next;	     /* ascending: where the next fragment begins */
	uint32_t progresses; /* calls */
	int error;	     /* of the part that failed first */
	uint64_t error_offset;
	/* By byte of the request. */
	uint8_t allowed[REQUEST_BYTES_MAX];
	uint8_t handed[REQUEST_BYTES_MAX];
	uint64_t handed_bytes;
};

struct world {
	struct ring *ring;
	struct arena *arena;
	struct path *path;
	struct producer producers[EXPORTS];
	struct late_writes late;
	struct path_export exports[EXPORTS];
	struct path_peer peer;
	struct path_client clients[REQUESTS]; /* a reader each, or the first has all */
	bool one_client;
	struct reader readers[REQUESTS];
	uint32_t fragment_count;
	struct path_fragment fragments[FRAGMENTS_MAX]; /* with the consumer */
	bool in_path; /* a call of the consumer's: no progress may be called */
	uint64_t random;
};

static uint64_t below(struct world *world, uint64_t limit)
{
	uint64_t bits = world->random += UINT64_C(0x9e3779b97f4a7c15);

	bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (bits ^ (bits >> 31)) % limit;
}

static bool percent(struct world *world, uint64_t chance)
{
	return below(world, 100) < chance;
}

/* Reads are cut at each chunk, as on a striped disk: who tells progress is not cut elsewhere. */
static struct world *world_open(uint64_t seed, uint32_t chunk)
{
	struct world *world = calloc(1, sizeof(*world));
	struct error error;

	assert_non_null(world);
	world->random = seed;
	sim_start(&(struct sim_options){ .seed = seed });
	if (ring_create(&(struct ring_options){ 0 }, &world->ring, &error) != 0 ||
		arena_ram_create(world->ring, ARENA_BYTES, &world->arena, &error) != 0 ||
		path_create(&(struct path_options){ .ring = world->ring, .ram = world->arena },
			&world->path, &error) != 0) {
		fail_msg("%s", error.text);
	}
	late_writes_init(&world->late);
	path_peer_init(&world->peer);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		path_client_init(&world->clients[i], world->path, &world->peer);
	}
	for (uint32_t i = 0; i < EXPORTS; i++) {
		struct producer *producer = &world->producers[i];
		struct path_export *path_export = &world->exports[i];

		producer->salt = (uint8_t)(31 * i);
		producer->base.ops = &producer_ops;
		producer->base.info = (struct store_info){ .kind = "producer",
			.caps = STORE_CAP_WRITE,
			.block_min = 1,
			.block_preferred = 4096,
			.memory_align = 1,
			.offset_align = 1,
			.memory_rights = MEM_CPU | MEM_ADDRESS,
			.read_direct = true,
			.stripe_chunk = chunk,
			.stripe_members = chunk == 0 ? 0 : 4,
			.has_progress = true };
		path_export->store = &producer->base;
		path_export_init(path_export, PATH_PART_SIZE_MIN, &world->late, world->ring);
		assert_int_equal(store_queue_create(
					 &producer->base, world->ring, &path_export->queue, &error),
			0);
	}
	return world;
}

static void world_close(struct world *world)
{
	assert_int_equal(arena_info(world->arena)->used_bytes, 0);
	for (uint32_t i = 0; i < EXPORTS; i++) {
		assert_int_equal(world->producers[i].part_count, 0);
		path_export_fini(&world->exports[i]);
		store_queue_destroy(world->exports[i].queue);
	}
	late_writes_fini(&world->late);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		path_client_fini(&world->clients[i]);
	}
	path_destroy(world->path);
	arena_destroy(world->arena);
	ring_destroy(world->ring);
	sim_stop();
	free(world);
}

static void reader_progress(struct path_request *request)
{
	struct reader *reader = container_of(request, struct reader, request);

	assert_false(reader->world->in_path);
	assert_true(reader->live);
	reader->progresses++;
}

static void writer_progress(struct path_request *request)
{
}

static void nothing_done(struct ring_op *op, int result)
{
}

static struct reader *reader_start(
	struct world *world, uint32_t idx, uint32_t export_idx, uint64_t offset, uint64_t length)
{
	struct reader *reader = &world->readers[idx];
	bool ascending = reader->request.ascending;
	bool whole = reader->request.whole;
	uint64_t window_bytes = reader->request.window_bytes;

	assert_false(reader->live);
	memset(reader, 0, sizeof(*reader));
	reader->world = world;
	reader->live = true;
	reader->export_idx = export_idx;
	reader->next = offset;
	reader->request.client = &world->clients[world->one_client ? 0 : idx];
	reader->request.op = STORE_READ;
	reader->request.offset = offset;
	reader->request.length = length;
	reader->request.window_bytes = window_bytes != 0 ? window_bytes : ARENA_BYTES;
	reader->request.ascending = ascending;
	reader->request.whole = whole;
	reader->request.export = &world->exports[export_idx];
	reader->request.progress = reader_progress;
	world->in_path = true;
	path_start(world->path, &reader->request);
	world->in_path = false;
	return reader;
}

/* --- what the producer does, and what that allows ------------------------------------------ */

static struct reader *reader_of(struct world *world, struct store_part *part)
{
	const struct path_stream *stream = container_of(part, struct path_stream, part);

	for (uint32_t i = 0; i < REQUESTS; i++) {
		if (&world->readers[i].request == stream->request) {
			return &world->readers[i];
		}
	}
	fail();
	return NULL;
}

static void allow(struct reader *reader, const struct store_part *part, uint64_t bytes)
{
	uint64_t at = part->offset - reader->request.offset;

	assert_true(at + bytes <= reader->request.length);
	memset(reader->allowed + at, 1, bytes);
}

/* Tells, rightly or not, and models what follows from it. */
static void tell(struct world *world, struct store_part *part, uint64_t bytes)
{
	struct reader *reader = reader_of(world, part);
	bool right = !part->progress_broken && bytes > part->progress_bytes && bytes < part->length;

	if (right) {
		produce(part, bytes);
		if (part->progressed != NULL) {
			allow(reader, part, bytes);
		}
	}
	store_progress(part, bytes);
	assert_int_equal(part->progress_broken, !right);
}

static void end(struct world *world, struct store_part *part, int result)
{
	struct reader *reader = reader_of(world, part);
	struct producer *producer = producer_of(part);
	uint32_t i = 0;

	while (producer->parts[i] != part) {
		i++;
	}
	producer->parts[i] = producer->parts[--producer->part_count];
	if (result == 0 && part->progress_broken) {
		result = -EIO; /* what the path must make of it */
	}
	if (result == 0) {
		produce(part, part->length);
		allow(reader, part, part->length);
	} else if (reader->error == 0) {
		reader->error = result;
		reader->error_offset = part->offset;
	}
	store_finish(part, part->progress_broken ? 0 : result);
}

/* --- the consumer -------------------------------------------------------------------------- */

static void check_fragment(struct reader *reader, const struct path_fragment *fragment)
{
	const struct producer *producer = &reader->world->producers[reader->export_idx];
	uint64_t at = fragment->offset - reader->request.offset;

	assert_true(fragment->offset >= reader->request.offset);
	assert_true(at + fragment->length <= reader->request.length);
	assert_true(fragment->length > 0);
	assert_int_equal(reader->error, 0);
	for (uint32_t i = 0; i < fragment->length; i++) {
		if (!reader->allowed[at + i] || reader->handed[at + i] ||
			mem_cpu_read(fragment->memory)[i] !=
				right_byte(producer, fragment->offset + i)) {
			fail_msg("byte %llu: allowed %d, handed %d, %02x",
				(unsigned long long)(at + i), reader->allowed[at + i],
				reader->handed[at + i], mem_cpu_read(fragment->memory)[i]);
		}
		reader->handed[at + i] = 1;
	}
	reader->handed_bytes += fragment->length;
	if (reader->request.ascending) {
		assert_int_equal(fragment->offset, reader->next);
		reader->next += fragment->length;
	}
	assert_int_equal(fragment->last, reader->handed_bytes == reader->request.length);
	if (fragment->last) {
		assert_int_equal(path_status(&reader->request), PATH_COMMITTED);
		reader->got_last = true;
	}
}

static bool take(struct world *world, struct reader *reader, uint32_t max_bytes)
{
	struct path_fragment fragment;
	bool found;

	world->in_path = true;
	found = path_next_fragment(&reader->request, max_bytes, &fragment);
	world->in_path = false;
	if (!found) {
		return false;
	}
	assert_true(fragment.length <= max_bytes);
	check_fragment(reader, &fragment);
	assert_true(world->fragment_count < FRAGMENTS_MAX);
	world->fragments[world->fragment_count++] = fragment;
	reader->held++;
	return true;
}

static void give_back(struct world *world, uint32_t idx)
{
	struct path_fragment fragment = world->fragments[idx];
	struct reader *reader = container_of(fragment.stream->request, struct reader, request);

	/* The memory is the consumer's until now. */
	for (uint32_t i = 0; i < fragment.length; i++) {
		assert_int_equal(mem_cpu_read(fragment.memory)[i],
			right_byte(&world->producers[reader->export_idx], fragment.offset + i));
	}
	world->fragments[idx] = world->fragments[--world->fragment_count];
	reader->held--;
	world->in_path = true;
	path_fragment_sent(&fragment);
	world->in_path = false;
}

static void give_all_back(struct world *world)
{
	while (world->fragment_count > 0) {
		give_back(world, world->fragment_count - 1);
	}
}

static void take_all(struct world *world, struct reader *reader)
{
	while (take(world, reader, UINT32_MAX)) {
		give_all_back(world);
	}
}

/* Ends what has ended; true when it had. */
static bool try_finish(struct reader *reader)
{
	enum path_status status = path_status(&reader->request);

	if (!reader->live || reader->held > 0) {
		return false;
	}
	if (reader->abandoned) {
		if (!path_is_idle(&reader->request)) {
			return false;
		}
	} else if (status == PATH_PENDING || (status == PATH_COMMITTED && !reader->got_last)) {
		return false;
	} else {
		assert_int_equal(reader->request.error, reader->error);
		assert_int_equal(status, reader->error == 0 ? PATH_COMMITTED : PATH_ABORTED);
		assert_int_equal(reader->got_last, status == PATH_COMMITTED);
		if (reader->error != 0) {
			assert_int_equal(reader->request.error_offset, reader->error_offset);
		}
	}
	path_finish(&reader->request);
	reader->live = false;
	return true;
}

static void check_aborted(struct world *world, struct reader *reader, int error)
{
	while (world->producers[reader->export_idx].part_count > 0) {
		end(world, world->producers[reader->export_idx].parts[0], 0);
	}
	assert_false(take(world, reader, UINT32_MAX));
	give_all_back(world);
	assert_int_equal(path_status(&reader->request), PATH_ABORTED);
	assert_int_equal(reader->request.error, error);
	assert_false(reader->got_last);
	assert_true(try_finish(reader));
}

/* Everything that is still to come, comes. */
static void wind_up(struct world *world)
{
	bool busy = true;

	for (uint32_t turn = 0; busy; turn++) {
		busy = false;
		assert_true(turn < 100000); /* somebody would wait for ever */
		for (uint32_t i = 0; i < EXPORTS; i++) {
			if (world->producers[i].part_count > 0) {
				end(world, world->producers[i].parts[0], 0);
			}
		}
		give_all_back(world);
		for (uint32_t i = 0; i < REQUESTS; i++) {
			if (world->readers[i].live) {
				take_all(world, &world->readers[i]);
				busy |= !try_finish(&world->readers[i]);
			}
		}
		path_serve(world->path);
	}
}

/* --- one sin at a time --------------------------------------------------------------------- */

TEST(test_progress_comes_out_at_once)
{
	struct world *world = world_open(1, 256 << 10);
	struct reader *reader = reader_start(world, 0, 0, 0, 256 << 10);
	struct store_part *part = world->producers[0].parts[0];

	assert_int_equal(world->producers[0].part_count, 1);
	assert_false(take(world, reader, UINT32_MAX));
	tell(world, part, 1000);
	assert_int_equal(reader->progresses, 1);
	assert_true(take(world, reader, UINT32_MAX));
	assert_int_equal(reader->handed_bytes, 1000);
	assert_false(take(world, reader, UINT32_MAX));
	tell(world, part, (256 << 10) - 1);
	take_all(world, reader);
	assert_int_equal(reader->handed_bytes, (256 << 10) - 1);
	assert_false(reader->got_last);
	assert_int_equal(path_status(&reader->request), PATH_PENDING);
	end(world, part, 0);
	assert_int_equal(path_status(&reader->request), PATH_COMMITTED);
	take_all(world, reader);
	assert_true(try_finish(reader));
	world_close(world);
}

/* What is asked of the store for a read of 256 KiB, until it is complete: parts with a wish to be
 * told, or the usual ones without. */
static uint32_t count_parts(struct world *world, bool told)
{
	struct reader *reader = reader_start(world, 0, 0, 0, 256 << 10);
	uint32_t count = 0;

	do {
		for (; world->producers[0].part_count > 0; count++) {
			struct store_part *part = world->producers[0].parts[0];

			assert_int_equal(part->progressed != NULL, told);
			end(world, part, 0);
		}
		take_all(world, reader);
	} while (!try_finish(reader));
	return count;
}

/* An export whose disk is known well enough to choose parts for it. */
static struct world *world_with_part_size(uint32_t overlap)
{
	struct world *world = world_open(1, 0);

	world->exports[0].overlap = overlap;
	store_rate(world->exports[0].queue, STORE_READ)->bytes_per_second = UINT64_C(1) << 30;
	world->exports[0].reads.trial.way = 1; /* parts */
	return world;
}

TEST(test_a_store_with_progress_gets_one_part)
{
	static const uint32_t overlaps[] = { PATH_OVERLAP_AUTO, 16 << 10 };

	for (size_t i = 0; i < ARRAY_COUNT(overlaps); i++) {
		struct world *world = world_with_part_size(overlaps[i]);

		assert_int_equal(count_parts(world, true), 1);
		world->producers[0].base.info.has_progress = false;
		assert_true(count_parts(world, false) > 1);
		world_close(world);
	}
}

/* A durable write is a flush as well: it says nothing of how long others take, or how fast the disk
 * is. What the requester says of a request reaches the store. */
TEST(test_durable_writes_are_not_compared_with_others)
{
	for (uint32_t flags = 0; flags <= STORE_FUA; flags += STORE_FUA) {
		struct world *world = world_open(1, 0);
		struct path_export *path_export = &world->exports[0];
		struct path_request request = { .client = &world->clients[0],
			.op = STORE_WRITE,
			.flags = flags,
			.requester = UINT64_C(7) << 40,
			.length = 128 << 10,
			.window_bytes = ARENA_BYTES,
			.export = path_export,
			.progress = writer_progress };

		world->producers[0].base.info.write_direct = true;
		path_export->overlap = PATH_OVERLAP_AUTO;
		path_start(world->path, &request);
		path_write_submit(path_write_open(&request));
		assert_int_equal(world->producers[0].part_count--, 1);
		assert_true(world->producers[0].parts[0]->requester == UINT64_C(7) << 40);
		ring_timer(world->ring, &(struct ring_op){ 0 }, 1000000, nothing_done);
		assert_int_equal(ring_turn(world->ring, true), 1);
		store_finish(world->producers[0].parts[0], 0);
		assert_int_equal(path_status(&request), PATH_COMMITTED);
		path_finish(&request);
		/* 128 KiB in a millisecond. */
		assert_int_equal(
			store_rate(path_export->queue, STORE_WRITE)->bytes_per_second >> 20,
			flags == 0 ? 125 : 0);
		world_close(world);
	}
}

TEST(test_impossible_progress_is_refused_and_fails_the_request)
{
	enum { LENGTH = 64 << 10, TOLD = 4096 };
	static const uint64_t sins[] = { 0, 1, TOLD - 1, TOLD, LENGTH, LENGTH + 1, UINT32_MAX,
		(UINT64_C(1) << 32) + TOLD + 1, UINT64_MAX };

	for (size_t i = 0; i < ARRAY_COUNT(sins); i++) {
		struct world *world = world_open(1, LENGTH);
		struct reader *reader = reader_start(world, 0, 0, 0, LENGTH);
		struct store_part *part = world->producers[0].parts[0];
		uint32_t progresses;

		tell(world, part, TOLD);
		progresses = reader->progresses;
		tell(world, part, sins[i]);
		tell(world, part, TOLD + 1); /* who has lied is not believed any more */
		assert_int_equal(reader->progresses, progresses);
		take_all(world, reader);
		assert_int_equal(reader->handed_bytes, TOLD);
		check_aborted(world, reader, -EIO);
		assert_int_equal(reader->handed_bytes, TOLD);
		world_close(world);
	}
}

TEST(test_a_late_error_wins_over_what_was_told)
{
	struct world *world = world_open(1, 64 << 10);
	struct reader *reader = reader_start(world, 0, 0, 64 << 10, 128 << 10);
	struct store_part *parts[3] = { world->producers[0].parts[0],
		world->producers[0].parts[1] };

	tell(world, parts[0], 60 << 10);
	tell(world, parts[1], 60 << 10);
	assert_true(take(world, reader, 10000));
	end(world, parts[0], -ETIMEDOUT);
	/* What was handed out stays readable, nothing new comes. */
	assert_false(take(world, reader, UINT32_MAX));
	tell(world, parts[1], 61 << 10);
	assert_false(take(world, reader, UINT32_MAX));
	assert_int_equal(path_status(&reader->request), PATH_PENDING);
	assert_int_equal(reader->request.error_offset, 64 << 10);
	check_aborted(world, reader, -ETIMEDOUT);
	world_close(world);
}

TEST(test_an_error_after_progress_that_nobody_has_taken)
{
	struct world *world = world_open(1, 64 << 10);
	struct reader *reader = reader_start(world, 0, 0, 0, 128 << 10);
	struct store_part *part = world->producers[0].parts[0];

	tell(world, part, 4096);
	assert_true(take(world, reader, 4096));
	give_all_back(world);
	tell(world, part, 8192);
	end(world, part, -EIO);
	check_aborted(world, reader, -EIO);
	assert_int_equal(reader->handed_bytes, 4096);
	world_close(world);
}

TEST(test_a_lie_about_one_part_fails_the_whole)
{
	struct world *world = world_open(1, 64 << 10);
	struct reader *reader = reader_start(world, 0, 0, 0, 256 << 10);
	struct producer *producer = &world->producers[0];
	struct store_part *liar = producer->parts[2];

	assert_int_equal(producer->part_count, 4);
	tell(world, liar, 64 << 10);
	end(world, producer->parts[0], 0);
	take_all(world, reader);
	assert_int_equal(reader->handed_bytes, 64 << 10);
	end(world, liar, 0);
	assert_int_equal(reader->request.error, -EIO);
	assert_int_equal(reader->request.error_offset, 128 << 10);
	check_aborted(world, reader, -EIO);
	world_close(world);
}

TEST(test_progress_of_a_write_is_a_lie)
{
	struct world *world = world_open(1, 64 << 10);
	struct reader *reader = &world->readers[0];
	static uint8_t data[4096];
	struct mem_segment segment = { .memory = mem_of(data), .bytes = sizeof(data) };

	reader->world = world;
	reader->live = true;
	reader->request.client = &world->clients[0];
	reader->request.op = STORE_WRITE;
	reader->request.length = sizeof(data);
	reader->request.window_bytes = ARENA_BYTES;
	reader->request.export = &world->exports[0];
	reader->request.progress = reader_progress;
	reader->request.placement = &segment;
	reader->request.placement_count = 1;
	path_start(world->path, &reader->request);
	store_progress(world->producers[0].parts[0], 100);
	assert_int_equal(reader->progresses, 0);
	world->producers[0].part_count = 0;
	store_finish(world->producers[0].parts[0], 0);
	assert_int_equal(reader->request.error, -EIO);
	path_finish(&reader->request);
	world_close(world);
}

TEST(test_a_file_that_shrinks_under_a_read)
{
	struct world *world = world_open(1, 64 << 10);
	struct reader *reader = reader_start(world, 0, 0, 0, 512 << 10);
	struct producer *producer = &world->producers[0];

	/* All of it is on its way; the second half is gone when the disk gets there. */
	for (uint32_t i = 0; i < 8; i++) {
		tell(world, producer->parts[i], 4096);
	}
	for (uint64_t at = 0; at < 512 << 10; at += 64 << 10) {
		struct store_part *part = NULL;

		for (uint32_t i = 0; i < producer->part_count; i++) {
			if (producer->parts[i]->offset == at) {
				part = producer->parts[i];
			}
		}
		end(world, part, at < 256 << 10 ? 0 : -EIO);
		take_all(world, reader);
	}
	assert_int_equal(reader->request.error_offset, 256 << 10);
	assert_true(reader->handed_bytes >= 256 << 10);
	check_aborted(world, reader, -EIO);
	world_close(world);
}

TEST(test_a_stall_delays_nobody_else)
{
	struct world *world = world_open(1, 64 << 10);
	struct reader *stalled = reader_start(world, 0, 0, 0, 512 << 10);

	tell(world, world->producers[0].parts[0], 5000);
	take_all(world, stalled);
	for (uint32_t round = 0; round < 20; round++) {
		struct reader *reader = reader_start(world, 1, 1, round * 4096, 512 << 10);

		while (world->producers[1].part_count > 0) {
			struct store_part *part = world->producers[1].parts[0];

			tell(world, part, 4096);
			end(world, part, 0);
			take_all(world, reader);
			path_serve(world->path);
		}
		assert_true(try_finish(reader));
	}
	assert_int_equal(path_status(&stalled->request), PATH_PENDING);
	assert_int_equal(stalled->handed_bytes, 5000);
	while (world->producers[0].part_count > 0) {
		end(world, world->producers[0].parts[0], 0);
	}
	take_all(world, stalled);
	assert_true(try_finish(stalled));
	world_close(world);
}

/* Whoever has memory for a part has all it needs; however many parts others have. */
TEST(test_small_parts_take_nothing_but_their_memory)
{
	enum { READERS = 3, LENGTH = 512 << 10 };
	struct world *world = world_open(1, 0);
	struct reader *other;

	world->exports[0].overlap = 4096;
	world->producers[0].base.info.has_progress = false;
	for (uint32_t i = 0; i < READERS; i++) {
		reader_start(world, i, 0, i * LENGTH, LENGTH);
	}
	assert_int_equal(world->producers[0].part_count, READERS * LENGTH / 4096);
	assert_false(path_is_short(world->path));
	other = reader_start(world, READERS, 1, 100, 5000);
	assert_int_equal(world->producers[1].part_count, 1);
	end(world, world->producers[1].parts[0], 0);
	take_all(world, other);
	assert_true(try_finish(other));
	wind_up(world);
	world_close(world);
}

/* What the first in the queue wants is not there, but enough for the second. */
TEST(test_who_leaves_the_queue_lets_the_next_one_go)
{
	struct world *world = world_open(1, 0);
	struct arena_buf taken[8];
	uint32_t count = 0;
	struct reader *first;
	struct reader *second;

	for (uint32_t bytes = ARENA_BLOCK_BYTES_MAX; bytes > PATH_PART_BYTES_MIN / 4; bytes /= 2) {
		uint32_t times = bytes == ARENA_BLOCK_BYTES_MAX ? ARENA_BYTES / bytes - 1 : 1;

		while (times-- > 0) {
			assert_int_equal(arena_get(world->arena, bytes, &taken[count++]), 0);
		}
	}
	first = reader_start(world, 0, 0, 0, PATH_PART_BYTES_MIN);
	world->one_client = true;
	second = reader_start(world, 1, 1, 0, 4096);
	path_serve(world->path);
	assert_int_equal(world->producers[0].part_count + world->producers[1].part_count, 0);
	first->abandoned = true;
	assert_true(path_abandon(&first->request));
	assert_true(try_finish(first));
	path_serve(world->path);
	assert_int_equal(world->producers[1].part_count, 1);
	end(world, world->producers[1].parts[0], 0);
	take_all(world, second);
	assert_true(try_finish(second));
	while (count > 0) {
		arena_put(world->arena, &taken[--count]);
	}
	world_close(world);
}

TEST(test_progress_after_the_reader_has_gone)
{
	struct world *world = world_open(1, 64 << 10);
	struct reader *reader = reader_start(world, 0, 0, 0, 64 << 10);
	struct store_part *part = world->producers[0].parts[0];

	tell(world, part, 4096);
	assert_true(take(world, reader, 100));
	reader->abandoned = true;
	world->in_path = true;
	assert_false(path_abandon(&reader->request));
	world->in_path = false;
	tell(world, part, 8192);
	end(world, part, 0);
	assert_false(path_is_idle(&reader->request)); /* a fragment is still out */
	give_all_back(world);
	assert_true(path_is_idle(&reader->request));
	assert_true(try_finish(reader));
	world_close(world);
}

/* --- all sins together --------------------------------------------------------------------- */

static void random_producer_step(struct world *world, struct producer *producer, uint32_t sinful)
{
	struct store_part *part;

	if (producer->part_count == 0) {
		return;
	}
	part = producer->parts[below(world, producer->part_count)];
	if (percent(world, 45)) {
		end(world, part, percent(world, sinful) ? -EIO : 0);
	} else if (percent(world, sinful)) {
		const uint64_t lies[] = { 0, part->progress_bytes, part->length, part->length + 1,
			below(world, UINT64_MAX) };

		tell(world, part, lies[below(world, ARRAY_COUNT(lies))]);
	} else if (part->progress_bytes + 1 < part->length) {
		uint64_t more = part->length - 1 - part->progress_bytes;

		tell(world, part, part->progress_bytes + 1 + below(world, more));
	}
}

static void random_start(struct world *world, uint32_t idx)
{
	struct path_request *request = &world->readers[idx].request;
	uint64_t offset = below(world, STORE_BYTES - REQUEST_BYTES_MAX);
	uint64_t length = 1 + below(world, percent(world, 50) ? 20000 : REQUEST_BYTES_MAX);

	if (percent(world, 50)) {
		offset &= ~UINT64_C(4095);
	}
	request->ascending = percent(world, 30);
	request->whole = percent(world, 10);
	request->window_bytes = 1 + below(world, percent(world, 50) ? 100000 : ARENA_BYTES);
	reader_start(world, idx, (uint32_t)below(world, EXPORTS), offset, length);
}

static void random_consumer_step(struct world *world, struct reader *reader)
{
	if (percent(world, 70)) {
		take(world, reader,
			percent(world, 50) ? UINT32_MAX : 1 + (uint32_t)below(world, 30000));
	} else if (percent(world, 3) && !reader->abandoned) {
		reader->abandoned = true;
		world->in_path = true;
		(void)path_abandon(&reader->request);
		world->in_path = false;
	}
	if (world->fragment_count > 0 && percent(world, 60)) {
		give_back(world, (uint32_t)below(world, world->fragment_count));
	}
	GMB_ASSERT(reader->request.live_bytes <=
		   MAX(reader->request.window_bytes, (uint64_t)reader->request.part_size));
	try_finish(reader);
}

static void choose_world(struct world *world)
{
	static const uint32_t chunks[] = { 0, 0, 4096, 16384, 65536, 12288 };

	for (uint32_t i = 0; i < EXPORTS; i++) {
		static const uint32_t overlaps[] = { PATH_OVERLAP_AUTO, PATH_OVERLAP_OFF, 4096,
			12288, 65536, 1 << 20 };
		struct store_info *info = &world->producers[i].base.info;

		world->exports[i].overlap = overlaps[below(world, ARRAY_COUNT(overlaps))];
		info->read_direct = percent(world, 50);
		info->has_progress = percent(world, 80);
		info->stripe_chunk = chunks[below(world, ARRAY_COUNT(chunks))];
		info->stripe_members = info->stripe_chunk == 0 ? 0 : 2 + (uint32_t)below(world, 4);
	}
}

static void random_run(uint64_t seed, uint32_t sinful, uint32_t *aborted, uint32_t *committed)
{
	struct world *world = world_open(seed, PATH_OVERLAP_AUTO);
	uint32_t starts = 20;

	choose_world(world);
	for (uint32_t step = 0; step < 1200; step++) {
		struct reader *reader = &world->readers[below(world, REQUESTS)];

		if (!reader->live && starts > 0) {
			starts--;
			random_start(world, (uint32_t)(reader - world->readers));
		} else if (reader->live) {
			random_consumer_step(world, reader);
			*aborted += !reader->live && reader->error != 0;
			*committed += !reader->live && reader->got_last;
		}
		random_producer_step(world, &world->producers[below(world, EXPORTS)], sinful);
		if (percent(world, 30)) {
			path_serve(world->path);
		}
	}
	wind_up(world);
	world_close(world);
}

TEST(test_random_sins)
{
	uint32_t aborted = 0;
	uint32_t committed = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		random_run(seed, (uint32_t)(seed % 4) * 3, &aborted, &committed);
	}
	/* Both must have been seen often. */
	assert_true(aborted > SEEDS);
	assert_true(committed > SEEDS);
}
