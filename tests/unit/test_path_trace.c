// SPDX-License-Identifier: Apache-2.0
#include "path/stats.h"
#include "unit.h"

static const struct path_trace_name disk = { "disk", 4 };
static const struct path_trace_name other_disk = { "disk2", 5 };

static void count_ended(void *context)
{
	uint32_t *count = context;

	(*count)++;
}

static struct path_trace *make(uint32_t request_max, uint64_t length_min, uint32_t *ended)
{
	const struct path_trace_options options = {
		.request_max = request_max,
		.ops = BIT(STORE_READ) | BIT(STORE_WRITE),
		.length_min = length_min,
		.export = { "disk", 4 },
		.ended = count_ended,
		.context = ended,
	};
	struct path_trace *trace;

	assert_int_equal(path_trace_create(&options, &trace), 0);
	return trace;
}

static void end(struct path_trace_request *record, int error)
{
	path_trace_end(record, error,
		(const uint64_t[PATH_STATE_COUNT]){
			[PATH_STATE_WAIT] = 100, [PATH_STATE_DONE] = 900 });
}

TEST(a_read_in_two_parts)
{
	uint32_t ended = 0;
	struct path_trace *trace = make(2, 0, &ended);
	struct path_trace_request *handle;
	const struct path_trace_request *record;
	struct path_trace_part *one;
	struct path_trace_part *two;

	path_trace_begin(trace, STORE_READ, disk, 4096, 8192, &handle);
	one = path_trace_opened(handle, 4096, 4096, 101);
	path_trace_submitted(one, "ram", 102);
	two = path_trace_opened(handle, 8192, 4096, 103);
	path_trace_submitted(two, NULL, 104);
	path_trace_progress(handle, two, 512, 105);
	path_trace_done(two, 0, 106);
	path_trace_handed(handle, two, 8192, 4096, 107);
	path_trace_done(one, -5, 108);
	path_trace_back(two, 8192, 109);
	assert_int_equal(path_trace_ended_count(trace), 0);
	end(handle, -5);
	assert_null(handle);
	assert_int_equal(ended, 1);
	assert_int_equal(path_trace_ended_count(trace), 1);
	record = path_trace_ended(trace, 0);
	assert_int_equal(record->op, STORE_READ);
	assert_int_equal(record->export.bytes, 4);
	assert_memory_equal(record->export.text, "disk", 4);
	assert_int_equal(record->offset, 4096);
	assert_int_equal(record->length, 8192);
	assert_int_equal(record->error, -5);
	assert_int_equal(record->edge_ns[PATH_STATE_DONE], 900);
	assert_int_equal(record->part_count, 2);
	assert_int_equal(record->parts_more, 0);
	assert_ptr_equal(record->parts, one);
	assert_ptr_equal(one->next, two);
	assert_null(two->next);
	assert_int_equal(one->opened_ns, 101);
	assert_int_equal(one->submitted_ns, 102);
	assert_int_equal(one->done_ns, 108);
	assert_int_equal(one->result, -5);
	assert_int_equal(one->mark_count, 0);
	assert_int_equal(one->piece_count, 0);
	assert_int_equal(two->mark_count, 1);
	assert_int_equal(path_trace_marks(two)[0].bytes, 512);
	assert_int_equal(path_trace_marks(two)[0].progress_ns, 105);
	assert_int_equal(two->done_ns, 106);
	assert_int_equal(two->piece_count, 1);
	assert_int_equal(path_trace_pieces(two)[0].handed_ns, 107);
	assert_int_equal(path_trace_pieces(two)[0].back_ns, 109);
	path_trace_destroy(trace);
}

TEST(only_what_is_asked_for)
{
	uint32_t ended = 0;
	struct path_trace *trace = make(1, 4096, &ended);
	struct path_trace_request *handle = (void *)&ended;

	path_trace_begin(trace, STORE_READ, disk, 0, 4095, &handle);
	assert_null(handle);
	path_trace_begin(trace, STORE_FLUSH, disk, 0, 4096, &handle);
	assert_null(handle);
	path_trace_begin(trace, STORE_READ, other_disk, 0, 4096, &handle);
	assert_null(handle);
	path_trace_begin(trace, STORE_WRITE, disk, 0, 4096, &handle);
	assert_non_null(handle);
	end(handle, 0);
	/* There was room for one. */
	path_trace_begin(trace, STORE_WRITE, disk, 0, 4096, &handle);
	assert_null(handle);
	assert_int_equal(ended, 1);
	path_trace_destroy(trace);
}

/* The first ones as they were; the last stands for the others, and nothing is missing. */
TEST(marks_and_pieces_without_end)
{
	enum { COUNT = 100, BYTES = 512 };
	uint32_t ended = 0;
	struct path_trace *trace = make(1, 0, &ended);
	struct path_trace_request *handle;
	struct path_trace_part *part;
	uint64_t next = 0;

	path_trace_begin(trace, STORE_READ, disk, 0, COUNT * BYTES, &handle);
	part = path_trace_opened(handle, 0, COUNT * BYTES, 1);
	for (uint64_t i = 0; i < COUNT; i++) {
		path_trace_progress(handle, part, (i + 1) * BYTES, 10 * i + 1);
		path_trace_handed(handle, part, i * BYTES, BYTES, 10 * i + 2);
		path_trace_back(part, i * BYTES, 10 * i + 3);
	}
	assert_int_equal(part->mark_count, PATH_TRACE_MARKS_MAX);
	assert_int_equal(path_trace_marks(part)[PATH_TRACE_MARKS_MAX - 2].bytes,
		(PATH_TRACE_MARKS_MAX - 1) * BYTES);
	assert_int_equal(path_trace_marks(part)[PATH_TRACE_MARKS_MAX - 1].bytes, COUNT * BYTES);
	assert_int_equal(
		path_trace_marks(part)[PATH_TRACE_MARKS_MAX - 1].progress_ns, 10 * (COUNT - 1) + 1);
	assert_int_equal(part->piece_count, PATH_TRACE_PIECES_MAX);
	for (uint32_t i = 0; i < part->piece_count; i++) {
		const struct path_trace_piece *piece = &path_trace_pieces(part)[i];

		assert_int_equal(piece->offset, next);
		assert_int_equal(piece->handed_ns, 10 * i + 2);
		assert_true(piece->back_ns > piece->handed_ns);
		next += piece->length;
	}
	assert_int_equal(next, COUNT * BYTES);
	assert_int_equal(
		path_trace_pieces(part)[PATH_TRACE_PIECES_MAX - 1].back_ns, 10 * (COUNT - 1) + 3);
	path_trace_destroy(trace);
}

TEST(parts_beyond_the_limit_are_counted)
{
	enum { MORE = 7 };
	uint32_t ended = 0;
	struct path_trace *trace = make(2, 0, &ended);
	struct path_trace_request *handle;
	const struct path_trace_request *record;
	uint32_t listed = 0;

	path_trace_begin(trace, STORE_READ, disk, 0, 1 << 30, &handle);
	for (uint32_t i = 0; i < PATH_TRACE_PARTS_MAX + MORE; i++) {
		struct path_trace_part *part = path_trace_opened(handle, i, 1, 1);

		path_trace_submitted(part, NULL, 2);
		path_trace_progress(handle, part, 1, 3);
		path_trace_done(part, 0, 4);
		path_trace_handed(handle, part, i, 1, 5);
		path_trace_back(part, i, 6);
	}
	end(handle, 0);
	record = path_trace_ended(trace, 0);
	for (const struct path_trace_part *part = record->parts; part != NULL; part = part->next) {
		assert_int_equal(part->offset, listed);
		listed++;
	}
	assert_int_equal(listed, PATH_TRACE_PARTS_MAX);
	assert_int_equal(record->part_count, PATH_TRACE_PARTS_MAX);
	assert_int_equal(record->parts_more, MORE);
	path_trace_destroy(trace);
}

/* All requests together have less room than each may take: who comes late is told of as well. */
TEST(the_pool_is_shared)
{
	enum { REQUESTS = PATH_TRACE_POOL_MAX / PATH_TRACE_PARTS_MAX + 1 };
	uint32_t ended = 0;
	struct path_trace *trace = make(REQUESTS, 0, &ended);
	struct path_trace_request *handles[REQUESTS];

	for (uint32_t i = 0; i < REQUESTS; i++) {
		path_trace_begin(trace, STORE_READ, disk, 0, 1 << 30, &handles[i]);
		for (uint32_t k = 0; k < PATH_TRACE_PARTS_MAX; k++) {
			path_trace_submitted(path_trace_opened(handles[i], k, 1, 1), NULL, 2);
		}
		assert_int_equal(
			handles[i]->part_count, i < REQUESTS - 1 ? PATH_TRACE_PARTS_MAX : 0);
		assert_int_equal(
			handles[i]->parts_more, i < REQUESTS - 1 ? 0 : PATH_TRACE_PARTS_MAX);
	}
	path_trace_destroy(trace);
}

/* Only so many parts may have more than one piece and one mark; of the others these stand for all,
 * until others give theirs back. */
TEST(few_parts_have_many_pieces)
{
	enum { PARTS = PATH_TRACE_PARTS_MAX, REQUESTS = PATH_TRACE_MORE_MAX / PARTS + 1 };
	uint32_t ended = 0;
	struct path_trace *trace = make(REQUESTS, 0, &ended);
	struct path_trace_request *handles[REQUESTS];

	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < REQUESTS; i++) {
			path_trace_begin(trace, STORE_READ, disk, 0, 1 << 30, &handles[i]);
			for (uint64_t k = 0; k < PARTS; k++) {
				bool many = i * PARTS + k < PATH_TRACE_MORE_MAX;
				struct path_trace_part *part =
					path_trace_opened(handles[i], k * 8, 8, 1);

				path_trace_progress(handles[i], part, 3, 2);
				path_trace_progress(handles[i], part, 5, 3);
				path_trace_handed(handles[i], part, k * 8, 3, 4);
				path_trace_handed(handles[i], part, k * 8 + 3, 5, 5);
				path_trace_back(part, k * 8, 6);
				path_trace_back(part, k * 8 + 3, 7);
				assert_int_equal(part->mark_count, many ? 2 : 1);
				assert_int_equal(path_trace_marks(part)[many].bytes, 5);
				assert_int_equal(path_trace_marks(part)[many].progress_ns, 3);
				assert_int_equal(part->piece_count, many ? 2 : 1);
				assert_int_equal(path_trace_pieces(part)[0].length, many ? 3 : 8);
				assert_int_equal(path_trace_pieces(part)[0].handed_ns, 4);
				assert_int_equal(path_trace_pieces(part)[many].back_ns, 7);
			}
		}
		for (uint32_t i = 0; i < REQUESTS; i++) {
			path_trace_drop(handles[i]);
		}
	}
	path_trace_destroy(trace);
}

/* The batch's time may be before a moment that was taken in it. */
TEST(moments_stay_in_order)
{
	uint32_t ended = 0;
	struct path_trace *trace = make(1, 0, &ended);
	struct path_trace_request *handle;
	struct path_trace_part *part;

	path_trace_begin(trace, STORE_READ, disk, 0, 4096, &handle);
	part = path_trace_opened(handle, 0, 4096, 20);
	path_trace_submitted(part, NULL, 10);
	path_trace_progress(handle, part, 512, 15);
	path_trace_done(part, 0, 16);
	path_trace_handed(handle, part, 0, 4096, 30);
	path_trace_back(part, 0, 25);
	assert_int_equal(part->submitted_ns, 20);
	assert_int_equal(path_trace_marks(part)[0].progress_ns, 20);
	assert_int_equal(part->done_ns, 20);
	assert_int_equal(path_trace_pieces(part)[0].back_ns, 30);
	path_trace_destroy(trace);
}

/* What a peer that went away leaves is used again, however often. */
TEST(dropped_requests_leave_room)
{
	uint32_t ended = 0;
	struct path_trace *trace = make(1, 0, &ended);
	struct path_trace_request *handle;

	for (uint32_t i = 0; i < 20; i++) {
		path_trace_begin(trace, STORE_READ, disk, 0, 1 << 30, &handle);
		assert_non_null(handle);
		for (uint32_t k = 0; k < i * 100; k++) {
			path_trace_submitted(path_trace_opened(handle, k, 1, 1), NULL, 2);
		}
		assert_int_equal(handle->part_count, MIN(i * 100, (uint32_t)PATH_TRACE_PARTS_MAX));
		path_trace_drop(handle);
		assert_null(handle);
	}
	assert_int_equal(ended, 0);
	path_trace_destroy(trace);
}

TEST(detached_requests_have_no_record)
{
	uint32_t ended = 0;
	struct path_trace *trace = make(4, 0, &ended);
	struct path_trace_request *handles[3];

	for (uint32_t i = 0; i < 3; i++) {
		path_trace_begin(trace, STORE_READ, disk, i, 1, &handles[i]);
	}
	end(handles[1], 0);
	handles[1] = (void *)&ended; /* its owner's next request */
	path_trace_detach(trace);
	assert_null(handles[0]);
	assert_ptr_equal(handles[1], &ended);
	assert_null(handles[2]);
	assert_int_equal(path_trace_ended_count(trace), 1);
	assert_int_equal(path_trace_ended(trace, 0)->offset, 1);
	path_trace_destroy(trace);
}
