// SPDX-License-Identifier: Apache-2.0
#include "path/split.h"

#include "base/bytes.h"

/* The smallest request whose parts are worth measuring. */
enum { MEASURED_BYTES_MIN = 2 * OVERLAP_BYTES_MIN };

static struct overlap *overlap_of(const struct path_request *request)
{
	return request->op == STORE_READ ? &request->export->reads : &request->export->writes;
}

/* True when the disk takes time that something else can be done in. */
static bool can_overlap(const struct path_request *request)
{
	const struct store *store = request->export->store;
	const struct store_info *info = store_info(store);

	return request->op == STORE_READ ? info->read_direct || store_tells_progress(store)
					 : info->write_direct;
}

/* Each part of it is a flush of its own: it is cut as little as possible, and its time says nothing
 * of others. */
static bool is_durable(const struct path_request *request)
{
	return (request->flags & STORE_FUA) != 0;
}

/* --- how long the parts are ------------------------------------------------------------------ */

/* Of an export without a size of its own, when the disk's time can be used. */
static uint32_t best_part_size(struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);

	return request->measured ? overlap_choose(overlap_of(request), request->length,
					   info->stripe_chunk, info->stripe_members)
				 : PATH_PART_SIZE_MAX;
}

/* Also how often the store shall tell of progress in between. */
static void choose_part_size(struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);
	uint32_t asked = request->export->overlap;
	bool unsplit = asked == PATH_OVERLAP_OFF || request->whole || is_durable(request);

	request->told_step = 0;
	request->cut = false;
	if (unsplit || (asked == PATH_OVERLAP_AUTO && !can_overlap(request))) {
		request->part_size =
			can_overlap(request) ? PATH_PART_SIZE_MAX : PATH_CACHED_PART_BYTES;
		return;
	}
	request->part_size = asked != PATH_OVERLAP_AUTO ? asked : best_part_size(request);
	request->cut = request->part_size < PATH_PART_SIZE_MAX;
	if (request->op == STORE_READ && store_tells_progress(request->export->store) &&
		request->cut) {
		/* No need for parts but where another member begins. */
		request->told_step = request->part_size;
		request->part_size = info->stripe_chunk >= OVERLAP_BYTES_MIN
					     ? MIN(info->stripe_chunk, (uint32_t)PATH_PART_SIZE_MAX)
					     : PATH_PART_SIZE_MAX;
	}
}

static bool is_striped(const struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);

	/* In order, a part must never wait for one behind it that has no memory yet. */
	return request->op == STORE_READ && !request->ascending &&
	       info->stripe_chunk >= request->part_size;
}

void cut_begin(struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);

	request->measured = request->length >= MEASURED_BYTES_MIN && can_overlap(request) &&
			    !is_durable(request);
	request->counted = request->measured;
	if (request->measured) {
		request->alone = overlap_of(request)->request_bytes == 0;
		overlap_of(request)->request_bytes += request->length;
	}
	choose_part_size(request);
	request->striped = is_striped(request);
	request->row_step = 0;
	request->row_offset = 0;
	request->rest_bytes = 0;
	if (request->striped) {
		uint64_t row_bytes = (uint64_t)info->stripe_chunk * info->stripe_members;

		request->row_offset = request->offset / row_bytes * row_bytes;
	}
}

uint64_t cut_step_ns(const struct path_request *request)
{
	uint64_t rate = request->measured ? overlap_of(request)->disk_rate : 0;
	uint64_t step = request->told_step > 0 ? request->told_step : request->part_size;

	return rate > 0 ? MIN(step, request->length) * UINT64_C(1000000000) / rate : 0;
}

void cut_handed(struct path_request *request)
{
	struct overlap *overlap = overlap_of(request);

	if (request->counted) {
		request->alone &= overlap->request_bytes == request->length;
		overlap->request_bytes -= request->length;
		request->counted = false;
	}
}

void cut_end(struct path_request *request, uint64_t now_ns)
{
	uint64_t took_ns = now_ns - request->edge_ns[PATH_STATE_INIT];

	if (!request->measured) {
		return;
	}
	cut_handed(request);
	if (request->alone && request->error == 0 && !request->abandoned) {
		overlap_learn_request(overlap_of(request), request->length, took_ns, request->cut);
	}
}

/* --- what is measured ------------------------------------------------------------------------ */

void cut_part_begin(struct path_request *request, uint64_t now_ns)
{
	if (request->measured) {
		overlap_disk_begin(overlap_of(request), now_ns);
	}
}

static uint32_t parallel_parts(const struct path_request *request)
{
	return request->striped ? store_info(request->export->store)->stripe_members : 1;
}

void cut_part_end(struct path_request *request, uint64_t bytes, uint64_t now_ns)
{
	uint64_t took_ns = now_ns - request->edge_ns[PATH_STATE_READ];

	if (!request->measured) {
		return;
	}
	overlap_disk_end(overlap_of(request), bytes, now_ns);
	/* In units of 1 KiB and 1024 ns, so that the sum fits. */
	request->parts_time += (bytes >> 10) * (took_ns >> 10);
	/* One part on each member says nothing: they are there together. */
	if (path_status(request) == PATH_COMMITTED && request->op == STORE_READ &&
		request->told_step == 0 && request->parts_started >= 2 * parallel_parts(request)) {
		overlap_learn_early(overlap_of(request),
			request->parts_time / (request->length >> 10) << 10, took_ns);
	}
}

/* --- where they lie -------------------------------------------------------------------------- */

static struct cut_range striped_next(struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);
	uint64_t chunk = info->stripe_chunk;
	uint64_t row_begin = MAX(request->row_offset, request->offset);
	uint64_t row_end = MIN(request->row_offset + chunk * info->stripe_members,
		request->offset + request->length);
	uint64_t lanes = (row_end - 1) / chunk - row_begin / chunk + 1;
	bool first_row = row_begin == request->offset;

	/* Lanes that have all they need are passed over; at least one has not. */
	for (;; request->row_step++) {
		uint64_t lane = request->row_step % lanes;
		uint64_t turn = request->row_step / lanes;
		uint64_t lane_begin = MAX((row_begin / chunk + lane) * chunk, row_begin);
		uint64_t lane_end = MIN((row_begin / chunk + lane + 1) * chunk, row_end);
		uint64_t step = request->told_step > 0 ? request->told_step : request->part_size;
		uint64_t share =
			first_row ? align_up(step * (lane + 1) / lanes, SPLIT_ALIGN) : step;
		uint64_t first = request->told_step > 0 ? request->part_size : share;
		uint64_t turn_end =
			align_down(lane_begin, SPLIT_ALIGN) + first + turn * request->part_size;
		uint64_t begin = turn == 0 ? lane_begin : turn_end - request->part_size;

		if (begin < lane_end) {
			return (struct cut_range){ .offset = begin,
				.bytes = MIN(turn_end, lane_end) - begin,
				.told_first = share };
		}
	}
}

struct cut_range cut_next(struct path_request *request)
{
	uint64_t offset = request->offset + request->started_bytes;
	uint64_t left = request->length - request->started_bytes;

	if (request->rest_bytes > 0) {
		return (struct cut_range){ .offset = request->rest_offset,
			.bytes = request->rest_bytes,
			.told_first = request->told_step };
	}
	if (request->striped) {
		return striped_next(request);
	}
	return (struct cut_range){ .offset = offset,
		.bytes = left > request->part_size
				 ? align_down(offset + request->part_size, SPLIT_ALIGN) - offset
				 : left,
		.told_first = request->told_step };
}

void cut_advance(struct path_request *request, const struct cut_range *range, uint64_t bytes)
{
	const struct store_info *info = store_info(request->export->store);
	uint64_t row_end;

	request->parts_started++;
	request->started_bytes += bytes;
	if (!request->striped) {
		return; /* the next part is where this one ends */
	}
	request->row_step += request->rest_bytes == 0;
	request->rest_offset = range->offset + bytes;
	request->rest_bytes = range->bytes - bytes;
	row_end = request->row_offset + (uint64_t)info->stripe_chunk * info->stripe_members;
	if (request->offset + request->started_bytes == row_end) {
		request->row_offset = row_end;
		request->row_step = 0;
	}
}
