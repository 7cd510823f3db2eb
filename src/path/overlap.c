// SPDX-License-Identifier: Apache-2.0
#include "path/overlap.h"

#include "base/bytes.h"
#include "path/path.h"

/* CPU time that each additional part costs server and client together: submission, completion,
 * header and a share of a send. See docs/design/0008. */
#define PART_COST_NS UINT64_C(16000)
#define SECOND_NS    UINT64_C(1000000000)
/* Minimum duration of a window. Other programs disturb shorter windows too much. */
#define WINDOW_NS UINT64_C(2000000)
/* The network's rate is measured at most this often, and from at least this much busy time. */
#define NETWORK_LOOK_NS	    UINT64_C(100000000)
#define NETWORK_BUSY_NS_MIN UINT64_C(20000000)

enum {
	AVERAGE_SHIFT = 3, /* weight of a new value in the averages: one eighth */
	GAIN_MIN = 2,	   /* minimum gain, as a multiple of the cost */
	WINDOW_REQUESTS_MIN = 2,
};

/* Parts cost processor time, so a small gain is not worth it. */
static const struct trial_rule rule = {
	.first_windows = 2, .try_first = 4, .try_every = 64, .margin = 16
};

void overlap_init(struct overlap *overlap)
{
	*overlap = (struct overlap){ .early = OVERLAP_EARLY_ONE / 2 };
}

static uint64_t average(uint64_t old, uint64_t new)
{
	if (old == 0) {
		return new;
	}
	return old - (old >> AVERAGE_SHIFT) + (new >> AVERAGE_SHIFT);
}

/* Returns sqrt(bytes * cost * rate), rounded to a power of two within bounds. */
static uint32_t best(uint64_t bytes, uint64_t rate)
{
	/* Calculated in units of 1 KiB each, so that the product does not overflow. */
	uint64_t square = (bytes >> 10) * (rate >> 10) / (SECOND_NS / PART_COST_NS);
	uint64_t part_size = OVERLAP_BYTES_MIN >> 10;

	while (part_size < OVERLAP_BYTES_MAX >> 10 && 2 * part_size * part_size < square) {
		part_size *= 2;
	}
	return (uint32_t)part_size << 10;
}

/* Returns whether cutting into parts of this size saves at least GAIN_MIN times its cost. While the
 * slower side (disk or network) transfers one part, the faster side transfers another. This hides
 * the time of the faster side for all parts but one. Other requests in flight already hide some of
 * this time. */
static bool pays(const struct overlap *overlap, uint64_t length, uint32_t bytes, uint64_t rate)
{
	uint64_t more_ns = (length - 1) / bytes * PART_COST_NS;
	uint64_t gain_bytes;

	if (rate == 0 || bytes >= length) {
		return false;
	}
	gain_bytes = (length - bytes) * (length >> 10) / (overlap->request_bytes >> 10);
	return (rate >> 10) * GAIN_MIN * more_ns / SECOND_NS <= gain_bytes >> 10;
}

uint32_t overlap_choose(const struct overlap *overlap, uint64_t disk_rate, uint64_t length,
	uint32_t chunk, uint32_t members)
{
	uint64_t rate = MAX(disk_rate, overlap->network_rate);
	uint32_t bytes = best(overlap->request_bytes, rate);

	/* On a striped disk, the parts on which all members work at a time have this size in total.
	 * A short request is only on some of the members. */
	if (chunk >= OVERLAP_BYTES_MIN) {
		uint64_t together = bytes;

		members = (uint32_t)MIN((length - 1) / chunk + 1, (uint64_t)members);
		while (bytes > OVERLAP_BYTES_MIN && (uint64_t)bytes * members > together) {
			bytes /= 2;
		}
		bytes = MIN(bytes, chunk);
	}
	return pays(overlap, length, bytes, rate) ? bytes : OVERLAP_BYTES_MAX;
}

/* --- requests in parts and whole ones -------------------------------------------------------- */

static void window_begin(struct overlap *overlap, uint64_t now_ns)
{
	overlap->window_start_ns = now_ns;
	overlap->window_bytes = 0;
	overlap->window_requests = 0;
	overlap->window_skips = overlap->inflight;
}

bool overlap_begin(struct overlap *overlap, uint64_t now_ns)
{
	uint64_t pause_ns = now_ns - overlap->last_end_ns;

	if (overlap->inflight++ == 0 && pause_ns > overlap->last_drain_ns) {
		overlap->window_start_ns += pause_ns - overlap->last_drain_ns;
	}
	return overlap->trial.way == 1;
}

void overlap_end(struct overlap *overlap, uint64_t bytes, uint64_t drain_ns, uint64_t now_ns)
{
	uint64_t window_ns;

	overlap->inflight--;
	overlap->last_end_ns = now_ns;
	overlap->last_drain_ns = drain_ns;
	if (overlap->window_skips > 0) {
		if (--overlap->window_skips == 0) {
			overlap->window_start_ns = now_ns;
		}
		return;
	}
	overlap->window_bytes += bytes;
	overlap->window_requests++;
	window_ns = now_ns - overlap->window_start_ns;
	if (overlap->window_requests >= WINDOW_REQUESTS_MIN && window_ns >= WINDOW_NS) {
		trial_end_window(&overlap->trial, &rule, overlap->window_bytes, window_ns);
		window_begin(overlap, now_ns);
	}
}

/* Records a completed request that was cut into parts. mean_ns: time from the start of the request
 * to the completion of a part, averaged over all parts and weighted by size; whole_ns: time until
 * the last part was complete. */
static void overlap_learn_early(struct overlap *overlap, uint64_t mean_ns, uint64_t whole_ns)
{
	uint64_t early = 0;

	if (whole_ns > 0 && mean_ns < whole_ns) {
		early = (whole_ns - mean_ns) * OVERLAP_EARLY_ONE / whole_ns;
	}
	overlap->early_measured = true;
	/* average() is not used, because it takes 0 for "unknown", but 0 is a valid measurement
	 * here. */
	overlap->early =
		(overlap->early * ((1 << AVERAGE_SHIFT) - 1) + (uint32_t)early) >> AVERAGE_SHIFT;
}

void overlap_learn_network(struct overlap *overlap, uint64_t bytes, uint64_t busy_ns)
{
	/* Calculated in KiB and units of 1024 ns, so that the product does not overflow. */
	overlap->network_rate = average(
		overlap->network_rate, ((bytes >> 10) * (SECOND_NS >> 10) / (busy_ns >> 10)) << 10);
}

static struct overlap *overlap_of(const struct path_request *request)
{
	return request->op == STORE_READ ? &request->export->reads : &request->export->writes;
}

/* Measures the network's rate from time to time, because the size of the parts of a read depends on
 * it. The kernel counts in ticks how long the connection was busy, so a measurement covers many
 * requests. */
static void look_at_network(struct overlap *overlap, struct overlap_network *network,
	struct ring *ring, struct ring_file file)
{
	struct ring_traffic before = network->traffic;
	uint64_t acked_bytes;
	uint64_t busy_ns;

	if (ring_batch_ns(ring) - network->look_ns < NETWORK_LOOK_NS) {
		return;
	}
	network->look_ns = ring_batch_ns(ring);
	if (!ring_socket_traffic(ring, file, &network->traffic)) {
		return;
	}
	acked_bytes = network->traffic.acked_bytes - before.acked_bytes;
	busy_ns = network->traffic.busy_ns - before.busy_ns;
	if (busy_ns < NETWORK_BUSY_NS_MIN) {
		network->traffic = before; /* too little busy time for a measurement */
		return;
	}
	/* Holes are hardly any data on the network, so they would distort the measurement. */
	if (network->hole_bytes <= acked_bytes) {
		overlap_learn_network(overlap, acked_bytes, busy_ns);
	}
	network->hole_bytes = 0;
}

void overlap_replied(struct path_request *request, struct overlap_network *network,
	struct ring *ring, struct ring_file file)
{
	struct overlap *overlap = overlap_of(request);

	if (file.fd < 0) {
		return;
	}
	look_at_network(overlap, network, ring, file);
	if (request->compared) {
		(void)ring_socket_unacked(ring, file, &overlap->undelivered_bytes);
	}
}

static uint64_t disk_rate_of(const struct path_request *request)
{
	return store_rate(request->export->queue, request->op)->bytes_per_second;
}

/* --- length of the parts --------------------------------------------------------------------- */

/* Returns the part size for a request of an export without a configured part size. */
static uint32_t best_part_size(struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);
	struct overlap *overlap = overlap_of(request);
	uint32_t bytes;

	if (!request->measured) {
		return PATH_PART_SIZE_MAX;
	}
	bytes = overlap_choose(overlap, disk_rate_of(request), request->length, info->stripe_chunk,
		info->stripe_members);
	if (bytes == OVERLAP_BYTES_MAX) {
		return PATH_PART_SIZE_MAX;
	}
	request->compared = true;
	if (!overlap_begin(overlap, request->edge_ns[PATH_STATE_WAIT])) {
		return PATH_PART_SIZE_MAX;
	}
	overlap->chosen = bytes;
	return bytes;
}

void cut_begin(struct path_request *request)
{
	const struct store *store = request->export->store;
	const struct store_info *info = store_info(store);
	uint32_t asked = request->export->overlap;
	bool reads = request->op == STORE_READ;
	bool has_progress = reads && info->has_progress;
	/* True if disk and network can work at the same time. */
	bool can_overlap = reads ? info->read_direct || has_progress : info->write_direct;
	/* Each part of a durable write would need its own flush. So such a write is cut only if it
	 * exceeds the maximum part size, and it is not measured. An atomic write is never cut. */
	bool durable = (request->flags & STORE_FUA) != 0;
	/* With mode=auto, two parts of a single direct read overlap with the network. With other
	 * reads in flight, or without a network, they only cost more. */
	bool is_large = can_overlap || request->atomic ||
			(reads && request->export->queue->reads_around &&
				(request->client->unsent_bytes > 0 || request->placement != NULL));
	bool times_disk = can_overlap && !durable && request->length >= OVERLAP_REQUEST_BYTES_MIN;

	request->measured = times_disk && !request->internal;
	request->counted = request->measured;
	request->compared = false;
	if (request->measured) {
		overlap_of(request)->request_bytes += request->length;
	}
	if (asked == PATH_OVERLAP_OFF || request->whole || request->internal || durable ||
		(asked == PATH_OVERLAP_AUTO && !can_overlap)) {
		request->part_size = is_large ? PATH_PART_SIZE_MAX : PATH_CACHED_PART_BYTES;
	} else {
		request->part_size = asked != PATH_OVERLAP_AUTO ? asked : best_part_size(request);
		request->cut = request->part_size < PATH_PART_SIZE_MAX;
	}
	if (request->cut && has_progress) {
		/* The store reports progress, so small parts are not needed. Parts end only where
		 * the data continues on another member of the disk. */
		request->progress_step = request->part_size;
		request->part_size = info->stripe_chunk >= OVERLAP_BYTES_MIN
					     ? MIN(info->stripe_chunk, (uint32_t)PATH_PART_SIZE_MAX)
					     : PATH_PART_SIZE_MAX;
	}
	if (!reads && request->placement != NULL) {
		/* all data is already in memory, so there is no overlap with the network */
		request->part_size = durable && !request->atomic && request->unstable
					     ? PATH_UNSTABLE_BYTES_MAX
					     : PATH_PLACED_BYTES_MAX;
	}
	/* The striped order requires that fragments can be sent in any order. Otherwise, parts in
	 * memory could wait for a part that gets no memory. */
	request->striped = reads && !request->ascending && info->stripe_chunk >= request->part_size;
	request->part_flags = (times_disk ? (uint32_t)STORE_MEASURED : 0) |
			      (reads && info->read_direct && request->length > request->part_size
					      ? (uint32_t)STORE_APART
					      : 0);
	request->row_step = 0;
	request->row_offset = 0;
	request->rest.bytes = 0;
	if (request->striped) {
		uint64_t row_bytes = (uint64_t)info->stripe_chunk * info->stripe_members;

		request->row_offset = request->offset / row_bytes * row_bytes;
	}
}

uint64_t cut_step_ns(const struct path_request *request)
{
	uint64_t rate = disk_rate_of(request);
	uint64_t step = request->progress_step > 0 ? request->progress_step : request->part_size;

	return rate > 0 ? MIN(step, request->length) * UINT64_C(1000000000) / rate : 0;
}

void cut_handed(struct path_request *request)
{
	if (request->counted) {
		overlap_of(request)->request_bytes -= request->length;
		request->counted = false;
	}
}

void cut_end(struct path_request *request, uint64_t now_ns)
{
	struct overlap *overlap = overlap_of(request);
	bool transferred = request->error == 0 && !request->abandoned;
	uint64_t rate = overlap->network_rate > 0 ? overlap->network_rate : disk_rate_of(request);

	cut_handed(request);
	if (request->compared) {
		overlap_end(overlap, transferred ? request->length : 0,
			rate > 0 ? overlap->undelivered_bytes * SECOND_NS / rate : 0, now_ns);
		overlap->undelivered_bytes = 0;
	}
}

/* --- measurements ---------------------------------------------------------------------------- */

static uint32_t parallel_parts(const struct path_request *request)
{
	return request->striped ? store_info(request->export->store)->stripe_members : 1;
}

void cut_part_end(struct path_request *request, uint64_t bytes, uint64_t now_ns)
{
	uint64_t took_ns = now_ns - request->edge_ns[PATH_STATE_DISK];

	/* Calculated in units of 1 KiB and 1024 ns, so that the sum does not overflow. */
	request->parts_time += (bytes >> 10) * (took_ns >> 10);
	/* If each member has only one part, all parts complete together, so their times are
	 * meaningless. */
	if (path_status(request) == PATH_COMMITTED && request->op == STORE_READ &&
		request->progress_step == 0 &&
		request->parts_started >= 2 * parallel_parts(request)) {
		overlap_learn_early(overlap_of(request),
			request->parts_time / (request->length >> 10) << 10, took_ns);
	}
}

/* --- position of the parts ------------------------------------------------------------------- */

static struct cut_range striped_next(struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);
	uint64_t chunk = info->stripe_chunk;
	uint64_t row_bytes = chunk * info->stripe_members;
	uint64_t row_begin;
	uint64_t row_end;
	uint64_t lanes;

	if (request->offset + request->started_bytes == request->row_offset + row_bytes) {
		request->row_offset += row_bytes; /* all chunks of this row are complete */
		request->row_step = 0;
	}
	row_begin = MAX(request->row_offset, request->offset);
	row_end = MIN(request->row_offset + row_bytes, request->offset + request->length);
	lanes = (row_end - 1) / chunk - row_begin / chunk + 1;
	/* Skips members whose chunk in this row is complete; at least one is not. */
	for (;; request->row_step++) {
		uint64_t lane = request->row_step % lanes;
		uint64_t turn = request->row_step / lanes;
		uint64_t lane_begin = MAX((row_begin / chunk + lane) * chunk, row_begin);
		uint64_t lane_end = MIN((row_begin / chunk + lane + 1) * chunk, row_end);
		uint64_t step =
			request->progress_step > 0 ? request->progress_step : request->part_size;
		uint64_t share = row_begin == request->offset
					 ? align_up(step * (lane + 1) / lanes, SPLIT_ALIGN)
					 : step;
		uint64_t first = request->progress_step > 0 ? request->part_size : share;
		uint64_t turn_end =
			align_down(lane_begin, SPLIT_ALIGN) + first + turn * request->part_size;
		uint64_t begin = turn == 0 ? lane_begin : turn_end - request->part_size;

		if (begin < lane_end) {
			request->row_step++;
			return (struct cut_range){ .offset = begin,
				.bytes = MIN(turn_end, lane_end) - begin,
				.progress_first = share };
		}
	}
}

struct cut_range cut_next(struct path_request *request)
{
	uint64_t offset = request->offset + request->started_bytes;
	struct cut_range rest = request->rest;

	if (!request->striped) {
		return (struct cut_range){ .offset = offset,
			.bytes = align_down(offset + request->part_size, SPLIT_ALIGN) - offset,
			.progress_first = request->progress_step };
	}
	request->rest.bytes = 0;
	return rest.bytes > 0 ? rest : striped_next(request);
}

void cut_return(struct path_request *request, const struct cut_range *range, uint64_t bytes)
{
	request->parts_started -= bytes == 0;
	request->started_bytes -= range->bytes - bytes;
	if (request->striped) {
		request->rest = (struct cut_range){ .offset = range->offset + bytes,
			.bytes = range->bytes - bytes,
			.progress_first =
				bytes == 0 ? range->progress_first : request->progress_step };
	}
}
