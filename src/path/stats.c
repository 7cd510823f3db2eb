// SPDX-License-Identifier: Apache-2.0
#include "path/stats.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "path/path.h"

/* The buckets are in units of 1024 ns. */
enum { UNIT_SHIFT = 10, PART_BITS = 3 };

_Static_assert(PATH_LATENCY_PARTS == 1 << PART_BITS, "parts");

uint32_t path_size_class(uint64_t length)
{
	/* number of 4 KiB blocks after the first */
	uint64_t blocks = length > 0 ? (length - 1) >> 12 : 0;
	uint32_t bits = blocks > 0 ? 64 - (uint32_t)__builtin_clzll(blocks) : 0;

	return MIN((bits + 1) / 2, (uint32_t)PATH_SIZE_CLASS_COUNT - 1);
}

uint64_t path_size_class_limit(uint32_t size_class)
{
	return size_class < PATH_SIZE_CLASS_COUNT - 1 ? UINT64_C(4096) << 2 * size_class
						      : UINT64_MAX;
}

uint64_t path_latency_limit_ns(uint32_t bucket)
{
	uint32_t shift = bucket < PATH_LATENCY_PARTS ? 0 : (bucket >> PART_BITS) - 1;
	uint64_t units = bucket - ((uint64_t)shift << PART_BITS);

	return bucket < PATH_LATENCY_BUCKETS - 1 ? ((units + 1) << shift) << UNIT_SHIFT
						 : UINT64_MAX;
}

static uint32_t latency_bucket(uint64_t ns)
{
	/* Units 0 to 7 have a bucket each; above, there are 8 buckets per doubling. */
	uint64_t units = (ns - (ns > 0)) >> UNIT_SHIFT;
	uint64_t bucket = units;

	if (units >= PATH_LATENCY_PARTS) {
		uint32_t shift = 63 - PART_BITS - (uint32_t)__builtin_clzll(units);

		bucket = ((uint64_t)shift << PART_BITS) + (units >> shift);
	}
	return (uint32_t)MIN(bucket, (uint64_t)PATH_LATENCY_BUCKETS - 1);
}

void path_stats_add(struct path_stats *stats, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t bytes, bool failed)
{
	uint64_t end_ns = edge_ns[PATH_STATE_DONE];
	uint64_t total_ns = end_ns - edge_ns[PATH_STATE_WAIT];

	for (int state = PATH_STATE_NETWORK; state >= PATH_STATE_WAIT; state--) {
		if (edge_ns[state] != 0) {
			stats->state_ns[state] += end_ns - edge_ns[state];
			end_ns = edge_ns[state];
		}
	}
	stats->count++;
	stats->bytes += failed ? 0 : bytes;
	stats->errors += failed;
	stats->total_ns += total_ns;
	stats->max_ns = MAX(stats->max_ns, total_ns);
	stats->latency[latency_bucket(total_ns)]++;
}

void path_operation_add(struct path_operation *operation, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t length, bool failed)
{
	uint64_t end_ns = edge_ns[PATH_STATE_DONE];

	path_stats_add(&operation->classes[path_size_class(length)], edge_ns, length, failed);
	for (int state = PATH_STATE_NETWORK; state >= PATH_STATE_WAIT; state--) {
		if (edge_ns[state] != 0) {
			operation->phases[state][latency_bucket(end_ns - edge_ns[state])]++;
			end_ns = edge_ns[state];
		}
	}
}

/* Counts a request. If there is no memory for the statistics, the request is not counted, and the
 * next one tries again. */
void path_account(const struct path_request *request)
{
	struct path_operation **operation = &request->export->operations[request->op];
	struct path_stats **of_client =
		request->client->stats != NULL ? &request->client->stats[request->op] : NULL;

	if (unlikely(request->error != 0)) {
		request->export->error_counts[path_error_slot(request->error)]++;
	}
	if (unlikely(*operation == NULL)) {
		*operation = calloc(1, sizeof(**operation));
	}
	if (likely(*operation != NULL)) {
		path_operation_add(
			*operation, request->edge_ns, request->length, request->error != 0);
	}
	if (of_client == NULL) {
		return;
	}
	if (unlikely(*of_client == NULL)) {
		*of_client = calloc(1, sizeof(**of_client));
	}
	if (likely(*of_client != NULL)) {
		path_stats_add(*of_client, request->edge_ns, request->length, request->error != 0);
	}
}

void path_operation_merge(struct path_operation *into, const struct path_operation *from)
{
	for (int size_class = 0; size_class < PATH_SIZE_CLASS_COUNT; size_class++) {
		path_stats_merge(&into->classes[size_class], &from->classes[size_class]);
	}
	for (int state = 0; state < PATH_STATE_DONE; state++) {
		for (int bucket = 0; bucket < PATH_LATENCY_BUCKETS; bucket++) {
			into->phases[state][bucket] += from->phases[state][bucket];
		}
	}
}

/* --- errors -------------------------------------------------------------------------------- */

static const struct {
	int error;
	const char *name;
} error_names[PATH_ERROR_COUNT] = {
	{ EIO, "EIO" },
	{ ENOSPC, "ENOSPC" },
	{ EINVAL, "EINVAL" },
	{ EOPNOTSUPP, "EOPNOTSUPP" },
	{ EFBIG, "EFBIG" },
	{ EROFS, "EROFS" },
	{ EDQUOT, "EDQUOT" },
	{ 0, "other" },
};

uint32_t path_error_slot(int error)
{
	uint32_t slot = 0;

	while (slot < PATH_ERROR_COUNT - 1 && error_names[slot].error != -error) {
		slot++;
	}
	return slot;
}

const char *path_error_name(uint32_t slot)
{
	return error_names[slot].name;
}

/* --- sums and quantiles ---------------------------------------------------------------------- */

#define REQUESTS(field, unit, name, ...)                                                           \
	COUNTER(struct path_stats, field, TOTAL, unit, name, __VA_ARGS__)

/* The sums of times have no metrics of their own, because they are part of the histograms. */
static const struct counter path_stats_counter_list[] = {
	REQUESTS(count, ITEMS, "count", "Completed requests, including failed ones",
		.metric = "requests"),
	REQUESTS(errors, ITEMS, "errors", "Failed requests"),
	REQUESTS(bytes, BYTES, "bytes", "Bytes of successful requests"),
	REQUESTS(total_ns, NS, "total_ns", "Sum of the latencies of completed requests",
		.metric = COUNTER_NO_METRIC),
	REQUESTS(state_ns[PATH_STATE_WAIT], NS, "wait_ns",
		"Time spent waiting for memory, or for the first bytes of the payload of a write",
		.metric = COUNTER_NO_METRIC),
	REQUESTS(state_ns[PATH_STATE_DISK], NS, "disk_ns",
		"Time in which the disk worked and nothing could be sent yet",
		.metric = COUNTER_NO_METRIC),
	REQUESTS(state_ns[PATH_STATE_OVERLAP], NS, "overlap_ns",
		"Time in which data was sent while the disk still worked",
		.metric = COUNTER_NO_METRIC),
	REQUESTS(state_ns[PATH_STATE_NETWORK], NS, "network_ns",
		"Time in which the disk was done and data was still being sent",
		.metric = COUNTER_NO_METRIC),
};

const struct counter_table path_stats_counter_table = { "operation", "export,operation,size",
	"request_", path_stats_counter_list, ARRAY_COUNT(path_stats_counter_list) };

const char *path_state_name(enum path_state state)
{
	static const char *const names[PATH_STATE_COUNT] = { "wait", "disk", "overlap", "network",
		"done" };

	return names[state];
}

void path_stats_merge(struct path_stats *into, const struct path_stats *from)
{
	counter_table_add(&path_stats_counter_table, into, from);
	into->max_ns = MAX(into->max_ns, from->max_ns);
	for (int bucket = 0; bucket < PATH_LATENCY_BUCKETS; bucket++) {
		into->latency[bucket] += from->latency[bucket];
	}
}

uint64_t path_stats_quantile_ns(const struct path_stats *stats, uint32_t parts_per_million)
{
	/* Number of requests that the buckets up to the result must contain; rounded up, so that
	 * 100 % includes all. */
	uint64_t wanted =
		(uint64_t)(((unsigned __int128)stats->count * parts_per_million + 999999) /
			   1000000);
	uint64_t seen = 0;

	for (uint32_t bucket = 0; bucket < PATH_LATENCY_BUCKETS && stats->count > 0; bucket++) {
		seen += stats->latency[bucket];
		if (seen >= wanted && seen > 0) {
			return MIN(path_latency_limit_ns(bucket), stats->max_ns);
		}
	}
	return stats->max_ns;
}

/* Marks and pieces of a part that has more than one mark or piece. */
struct path_trace_more {
	struct path_trace_more *next; /* in the free list */
	struct path_trace_mark marks[PATH_TRACE_MARKS_MAX];
	struct path_trace_piece pieces[PATH_TRACE_PIECES_MAX];
};

/* Name of an export, stored once for all of its requests. */
struct trace_name {
	struct trace_name *next;
	uint32_t bytes;
	char text[];
};

struct path_trace {
	struct path_trace_options options;
	struct trace_name *names;
	struct path_trace_request *requests;
	/* number of records at the beginning of the array that were used so far */
	uint32_t request_count;
	struct path_trace_request *requests_free;
	struct path_trace_part *parts;
	uint32_t part_count; /* number of records that were used */
	uint32_t part_max;
	struct path_trace_part *parts_free;
	struct path_trace_more *mores;
	uint32_t more_count; /* number of records that were used */
	struct path_trace_more *mores_free;
	struct path_trace_part beyond; /* dummy record that all parts beyond the limit share */
	const struct path_trace_request **ended;
	/* Number of elements of ended. Written with release order when a request ends, and read
	 * with acquire order, so that these records are complete. */
	_Atomic uint32_t ended_count;
};

static bool path_stats_same_name(struct path_trace_name a, struct path_trace_name b)
{
	return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.text, b.text, a.bytes) == 0);
}

/* Returns a copy of the name that exists as long as the trace; its text is NULL if there is no
 * memory. */
static struct path_trace_name name_keep(struct path_trace *trace, struct path_trace_name name)
{
	struct trace_name *kept = trace->names;

	if (name.text == NULL) {
		return name;
	}
	while (kept != NULL &&
		!path_stats_same_name((struct path_trace_name){ kept->text, kept->bytes }, name)) {
		kept = kept->next;
	}
	if (kept == NULL) {
		kept = malloc(sizeof(*kept) + name.bytes);
		if (kept == NULL) {
			return (struct path_trace_name){ 0 };
		}
		kept->next = trace->names;
		kept->bytes = name.bytes;
		memcpy(kept->text, name.text, name.bytes);
		trace->names = kept;
	}
	return (struct path_trace_name){ kept->text, kept->bytes };
}

int path_trace_create(const struct path_trace_options *options, struct path_trace **trace_out)
{
	struct path_trace *trace = calloc(1, sizeof(*trace));
	uint32_t request_max = options->request_max;

	GMB_ASSERT(request_max >= 1);
	GMB_ASSERT(request_max <= PATH_TRACE_REQUESTS_MAX);
	if (trace == NULL) {
		return -ENOMEM;
	}
	trace->options = *options;
	if (options->export.text != NULL) {
		trace->options.export = name_keep(trace, options->export);
	}
	trace->part_max = MIN(request_max, (uint32_t)(PATH_TRACE_POOL_MAX / PATH_TRACE_PARTS_MAX)) *
			  PATH_TRACE_PARTS_MAX;
	trace->requests = calloc(request_max, sizeof(*trace->requests));
	trace->ended = calloc(request_max, sizeof(*trace->ended));
	trace->parts = malloc(trace->part_max * sizeof(*trace->parts));
	trace->mores = calloc(PATH_TRACE_MORE_MAX, sizeof(*trace->mores));
	if (trace->requests == NULL || trace->ended == NULL || trace->parts == NULL ||
		trace->mores == NULL ||
		(options->export.text != NULL && trace->options.export.text == NULL)) {
		path_trace_destroy(trace);
		return -ENOMEM;
	}
	/* Touches the memory now, so that requests do not have page faults. trace->mores is not
	 * touched: only large parts use it, and for these a page fault does not matter. */
	memset(trace->requests, 0, request_max * sizeof(*trace->requests));
	memset(trace->parts, 0, trace->part_max * sizeof(*trace->parts));
	*trace_out = trace;
	return 0;
}

void path_trace_destroy(struct path_trace *trace)
{
	if (trace != NULL) {
		while (trace->names != NULL) {
			struct trace_name *next = trace->names->next;

			free(trace->names);
			trace->names = next;
		}
		free(trace->requests);
		free(trace->ended);
		free(trace->parts);
		free(trace->mores);
		free(trace);
	}
}

/* --- allocation of records ------------------------------------------------------------------- */

static struct path_trace_request *request_get(struct path_trace *trace)
{
	struct path_trace_request *record = trace->requests_free;

	if (record != NULL) {
		trace->requests_free = record->next;
	} else if (trace->request_count < trace->options.request_max) {
		record = &trace->requests[trace->request_count++];
	}
	return record;
}

static struct path_trace_part *part_get(struct path_trace *trace)
{
	struct path_trace_part *part = trace->parts_free;

	if (part != NULL) {
		trace->parts_free = part->next;
	} else if (trace->part_count < trace->part_max) {
		part = &trace->parts[trace->part_count++];
	}
	return part;
}

static struct path_trace_more *more_get(struct path_trace *trace)
{
	struct path_trace_more *more = trace->mores_free;

	if (more != NULL) {
		trace->mores_free = more->next;
	} else if (trace->more_count < PATH_TRACE_MORE_MAX) {
		more = &trace->mores[trace->more_count++];
	}
	return more;
}

static void part_put(struct path_trace *trace, struct path_trace_part *part)
{
	if (part->more != NULL) {
		part->more->next = trace->mores_free;
		trace->mores_free = part->more;
		part->more = NULL;
	}
	part->next = trace->parts_free;
	trace->parts_free = part;
}

/* Gets memory for further marks and pieces of a part. Returns false if there is none. */
static bool part_grow(struct path_trace *trace, struct path_trace_part *part)
{
	if (part->more == NULL && part != &trace->beyond) {
		part->more = more_get(trace);
		if (part->more != NULL) {
			part->more->marks[0] = part->mark;
			part->more->pieces[0] = part->piece;
		}
	}
	return part->more != NULL;
}

/* --- a request ----------------------------------------------------------------------------- */

void path_trace_begin(struct path_trace *trace, enum store_op op, struct path_trace_name export,
	uint64_t offset, uint64_t length, struct path_trace_request **handle)
{
	const struct path_trace_options *options = &trace->options;
	struct path_trace_request *record = NULL;

	if ((options->ops & BIT(op)) != 0 && length >= options->length_min &&
		(options->export.text == NULL || path_stats_same_name(options->export, export))) {
		record = request_get(trace);
	}
	*handle = record;
	if (record != NULL) {
		*record = (struct path_trace_request){
			.op = op,
			.export = name_keep(trace, export),
			.offset = offset,
			.length = length,
			.trace = trace,
			.last = &record->parts,
			.handle = handle,
		};
	}
}

void path_trace_end(
	struct path_trace_request *record, int error, const uint64_t edge_ns[PATH_STATE_COUNT])
{
	struct path_trace *trace = record->trace;
	uint32_t count = atomic_load_explicit(&trace->ended_count, memory_order_relaxed);

	*record->handle = NULL;
	record->handle = NULL;
	record->error = error;
	for (int state = 0; state < PATH_STATE_COUNT; state++) {
		record->edge_ns[state] = edge_ns[state];
	}
	trace->ended[count] = record;
	atomic_store_explicit(&trace->ended_count, count + 1, memory_order_release);
	trace->options.ended(trace->options.context);
}

void path_trace_drop(struct path_trace_request *record)
{
	struct path_trace *trace = record->trace;
	struct path_trace_part *part = record->parts;

	*record->handle = NULL;
	record->handle = NULL;
	while (part != NULL) {
		struct path_trace_part *next = part->next;

		part_put(trace, part);
		part = next;
	}
	record->next = trace->requests_free;
	trace->requests_free = record;
}

void path_trace_detach(struct path_trace *trace)
{
	for (uint32_t i = 0; i < trace->request_count; i++) {
		struct path_trace_request *record = &trace->requests[i];

		if (record->handle != NULL) {
			*record->handle = NULL;
			record->handle = NULL;
		}
	}
}

/* --- parts of a request ---------------------------------------------------------------------- */

struct path_trace_part *path_trace_opened(
	struct path_trace_request *record, uint64_t offset, uint64_t length, uint64_t now_ns)
{
	struct path_trace *trace = record->trace;
	struct path_trace_part *part =
		record->part_count < PATH_TRACE_PARTS_MAX ? part_get(trace) : NULL;

	if (part == NULL) {
		record->parts_more++;
		part = &trace->beyond;
	} else {
		record->part_count++;
		*record->last = part;
		record->last = &part->next;
	}
	*part = (struct path_trace_part){
		.offset = offset,
		.length = length,
		.opened_ns = now_ns,
	};
	return part;
}

void path_trace_submitted(struct path_trace_part *part, const char *placement, uint64_t now_ns)
{
	part->placement = placement;
	part->submitted_ns = MAX(now_ns, part->opened_ns);
}

void path_trace_progress(struct path_trace_request *record, struct path_trace_part *part,
	uint64_t bytes, uint64_t now_ns)
{
	const struct path_trace_mark mark = {
		.progress_ns = MAX(now_ns, part->submitted_ns),
		.bytes = bytes,
	};
	uint32_t index = part->mark_count;

	if (index == 0 && part->more == NULL) {
		part->mark = mark;
		part->mark_count = 1;
	} else if (part_grow(record->trace, part)) {
		index = MIN(index, (uint32_t)PATH_TRACE_MARKS_MAX - 1);
		part->more->marks[index] = mark;
		part->mark_count = index + 1;
	} else {
		part->mark = mark;
	}
}

void path_trace_done(struct path_trace_part *part, int result, uint64_t now_ns)
{
	part->done_ns = MAX(now_ns, part->submitted_ns);
	part->result = result;
}

void path_trace_handed(struct path_trace_request *record, struct path_trace_part *part,
	uint64_t offset, uint64_t length, uint64_t now_ns)
{
	const struct path_trace_piece piece = {
		.offset = offset,
		.length = length,
		.handed_ns = now_ns,
	};
	uint32_t count = part->piece_count;

	if (count == 0 && part->more == NULL) {
		part->piece = piece;
		part->piece_count = 1;
	} else if (!part_grow(record->trace, part)) {
		part->piece.length += length;
	} else if (count < PATH_TRACE_PIECES_MAX) {
		part->more->pieces[count] = piece;
		part->piece_count = count + 1;
	} else {
		part->more->pieces[count - 1].length += length;
	}
}

void path_trace_back(struct path_trace_part *part, uint64_t offset, uint64_t now_ns)
{
	struct path_trace_piece *pieces = part->more != NULL ? part->more->pieces : &part->piece;

	/* A stream returns its bytes in order, so these bytes belong to the last piece that begins
	 * at or before offset. */
	for (uint32_t i = part->piece_count; i > 0; i--) {
		if (pieces[i - 1].offset <= offset) {
			pieces[i - 1].back_ns = MAX(now_ns, pieces[i - 1].handed_ns);
			return;
		}
	}
}

/* --- results --------------------------------------------------------------------------------- */

uint32_t path_trace_ended_count(const struct path_trace *trace)
{
	return atomic_load_explicit(&trace->ended_count, memory_order_acquire);
}

const struct path_trace_request *path_trace_ended(const struct path_trace *trace, uint32_t index)
{
	GMB_ASSERT(index < path_trace_ended_count(trace));
	return trace->ended[index];
}

const struct path_trace_mark *path_trace_marks(const struct path_trace_part *part)
{
	return part->more != NULL ? part->more->marks : &part->mark;
}

const struct path_trace_piece *path_trace_pieces(const struct path_trace_part *part)
{
	return part->more != NULL ? part->more->pieces : &part->piece;
}

/* --- counters of an export ------------------------------------------------------------------- */

#define EXPORT(field, unit, name, ...)                                                             \
	COUNTER(struct path_export, field, TOTAL, unit, name, __VA_ARGS__)

#define PLACEMENT(name) "placement=\"" name "\""

static const struct counter path_export_counter_list[] = {
	EXPORT(ram_bytes, BYTES, "ram_bytes", "Bytes of reads and writes staged in server memory",
		.metric = PATH_PLACEMENT_METRIC, .labels = PLACEMENT(PATH_PLACEMENT_RAM),
		.family = "Payload of reads and writes, by placement"),
	EXPORT(placed_bytes, BYTES, "placed_bytes",
		"Bytes of reads and writes without staging: in shared memory of a client, or in "
		"the receive buffer of a small write",
		.metric = PATH_PLACEMENT_METRIC, .labels = PLACEMENT(PATH_PLACEMENT_REQUESTER)),
	EXPORT(device_bytes, BYTES, "device_bytes",
		"Bytes of reads and writes in memory of a PCI device",
		.metric = PATH_PLACEMENT_METRIC, .labels = PLACEMENT(PATH_PLACEMENT_DEVICE)),
	EXPORT(page_cache_send_bytes, BYTES, "page_cache_send_bytes",
		"Bytes of reads sent directly from the page cache, without a copy by the server",
		.metric = PATH_PLACEMENT_METRIC, .labels = PLACEMENT(PATH_PLACEMENT_PAGE_CACHE)),
	EXPORT(page_cache_send_misses, ITEMS, "page_cache_send_misses",
		"Large reads that the server copied, because their data was not in the page cache "
		"or began with zeroes",
		.metric = "export_page_cache_misses"),
	EXPORT(ram_for_session, ITEMS, "device_refused_cpu",
		"Parts of requests staged in RAM despite mode=device, because the processor has to "
		"access their data",
		.metric = "export_device_refusals", .labels = "reason=\"cpu\"",
		.family = "Requests or parts of requests staged in RAM despite mode=device, by "
			  "reason"),
	EXPORT(ram_for_store, ITEMS, "device_refused_store",
		"Requests staged in RAM despite mode=device, because they are not whole blocks of "
		"the disk, or because the store accesses their data with the processor",
		.metric = "export_device_refusals", .labels = "reason=\"store\""),
	EXPORT(ram_for_room, ITEMS, "device_refused_room",
		"Parts of requests staged in RAM despite mode=device, because the device memory "
		"was full",
		.metric = "export_device_refusals", .labels = "reason=\"room\""),
	EXPORT(ram_for_trouble, ITEMS, "device_refused_trouble",
		"Requests staged in RAM despite mode=device, because there is no device memory "
		"that the disk can reach",
		.metric = "export_device_refusals", .labels = "reason=\"trouble\""),
	EXPORT(late_waits, ITEMS, "late_waits",
		"Writes that waited until an earlier write of a closed connection had completed"),
};

const struct counter_table path_export_counter_table = { "export", "export", "export_",
	path_export_counter_list, ARRAY_COUNT(path_export_counter_list) };

void path_export_init(struct path_export *path_export, uint32_t overlap, struct late_writes *late,
	struct ring *ring)
{
	path_export->overlap = overlap;
	late_writes_port_init(&path_export->late_writes_port, late, ring);
	overlap_init(&path_export->reads);
	overlap_init(&path_export->writes);
	path_export->held_bytes = 0;
	path_export->device_held_bytes = 0;
	path_export->costly_count = 0;
	path_export->page_cache_send_bytes = 0;
	path_export->page_cache_send_misses = 0;
	path_export->ram_bytes = 0;
	path_export->placed_bytes = 0;
	path_export->device_bytes = 0;
	path_export->ram_for_store = 0;
	path_export->ram_for_trouble = 0;
	path_export->ram_for_session = 0;
	path_export->ram_for_room = 0;
	path_export->device_error = 0;
	path_export->late_waits = 0;
	path_export->atomic_bytes = 0;
	path_export->atomic.memory = MEM_NONE;
	path_export->atomic_used = false;
	list_init(&path_export->atomic_node);
	path_export->name = NULL;
	path_export->name_bytes = 0;
	path_export->errors = (struct log_limit){ 0 };
	memset(path_export->error_counts, 0, sizeof(path_export->error_counts));
	memset(path_export->operations, 0, sizeof(path_export->operations));
}

void path_export_fini(struct path_export *path_export)
{
	GMB_ASSERT(list_is_empty(&path_export->late_writes_port.granted));
	for (int op = 0; op < STORE_OP_COUNT; op++) {
		free(path_export->operations[op]);
		path_export->operations[op] = NULL;
	}
}
