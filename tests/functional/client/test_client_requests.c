// SPDX-License-Identifier: Apache-2.0
/* Requests: what is checked, what is split, what is scattered, who is told. */
#include "cases.h"

/* --- what is refused ----------------------------------------------------------------------- */

CASE(wrong_requests)
{
	uint64_t end = run->info.bytes;
	struct gmb_extent extent;
	uint8_t buffer[512];
	struct iovec iov = { .iov_base = buffer, .iov_len = sizeof(buffer) };
	const struct {
		uint8_t operation;
		uint32_t flags;
		uint64_t offset;
		uint64_t length;
		int result;
		uint32_t extents_max;
	} rows[] = {
		{ GMB_COPY + 1, 0, 0, 512, -EINVAL, 0 },
		{ GMB_COPY, GMB_NO_HOLE, 0, 512, -EINVAL, 0 },
		{ 255, 0, 0, 512, -EINVAL, 0 },
		{ GMB_READ, GMB_FUA, 0, 512, -EINVAL, 0 },
		{ GMB_READ, 1U << 31, 0, 512, -EINVAL, 0 },
		{ GMB_WRITE, GMB_DF, 0, 512, -EINVAL, 0 },
		{ GMB_FLUSH, GMB_FUA, 0, 0, -EINVAL, 0 },
		{ GMB_TRIM, GMB_NO_HOLE, 0, 512, -EINVAL, 0 },
		{ GMB_ZERO, GMB_STATUS_ONE, 0, 512, -EINVAL, 0 },
		{ GMB_CACHE, GMB_FUA, 0, 512, -EINVAL, 0 },
		{ GMB_STATUS, GMB_FUA, 0, 512, -EINVAL, 1 },
		{ GMB_FLUSH, 0, 512, 0, -EINVAL, 0 },
		{ GMB_FLUSH, 0, 0, 512, -EINVAL, 0 },
		{ GMB_READ, 0, end - 511, 512, -EINVAL, 0 },
		{ GMB_WRITE, 0, end, 512, -EINVAL, 0 },
		{ GMB_READ, 0, UINT64_MAX - 100, 512, -EINVAL, 0 },
		{ GMB_TRIM, 0, 1, UINT64_MAX, -EINVAL, 0 },
		{ GMB_ZERO, 0, UINT64_MAX, UINT64_MAX, -EINVAL, 0 },
		{ GMB_CACHE, 0, end + 1, 0, -EINVAL, 0 },
		{ GMB_READ, 0, 0, 511, -EINVAL, 0 }, /* the scatter list has 512 */
		{ GMB_WRITE, 0, 0, 513, -EINVAL, 0 },
		{ GMB_STATUS, 0, 0, 512, -EINVAL, 0 },
		{ GMB_STATUS, 0, 0, 0, -EINVAL, 1 },
	};
	uint64_t commands = stats_of(run->client).commands;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct counted counted;
		char text[512];

		counted_init(run, &counted);
		counted.request.operation = rows[i].operation;
		counted.request.flags = rows[i].flags;
		counted.request.offset = rows[i].offset;
		counted.request.length = rows[i].length;
		counted.request.extents = &extent;
		counted.request.extents_max = rows[i].extents_max;
		if (rows[i].operation == GMB_READ || rows[i].operation == GMB_WRITE) {
			counted.request.iov = &iov;
			counted.request.iov_count = 1;
		}
		if (counted_run(&counted) != rows[i].result) {
			fprintf(stderr, "row %zu: %d\n", i, counted.request.result);
			exit(1);
		}
		gmb_explain(run->client, &counted.request, text, sizeof(text));
		CHECK(strncmp(text, run->uri, strlen(run->uri)) == 0);
		CHECK(strstr(text, "invalid request") != NULL);
	}
	CHECK_EQUAL(stats_of(run->client).commands, commands); /* nothing was sent */
	CHECK_EQUAL(stats_of(run->client).requests, sizeof(rows) / sizeof(rows[0]));
}

CASE(nothing_to_do)
{
	static const enum gmb_operation operations[] = { GMB_READ, GMB_WRITE, GMB_TRIM, GMB_ZERO,
		GMB_CACHE };
	size_t count = sizeof(operations) / sizeof(operations[0]);
	uint64_t commands = stats_of(run->client).commands;
	struct iovec empty[3] = { { 0 } };

	count -= (run->info.capabilities & GMB_CAN_CACHE) == 0;
	for (size_t i = 0; i < count; i++) {
		struct counted counted;

		counted_init(run, &counted);
		gmb_prepare(&counted.request, operations[i], run->info.bytes, 0);
		CHECK_EQUAL(counted_run(&counted), 0);
		gmb_prepare(&counted.request, operations[i], 0, 0);
		counted.request.iov = empty;
		counted.request.iov_count = 3;
		CHECK_EQUAL(counted_run(&counted), 0);
		CHECK_EQUAL(counted.done_count, 2);
	}
	CHECK_EQUAL(gmb_pread(run->client, NULL, 0, 0), 0);
	CHECK_EQUAL(gmb_pwrite(run->client, NULL, 0, 0, GMB_FUA), 0);
	CHECK_EQUAL(stats_of(run->client).commands, commands);
}

CASE(read_only)
{
	uint8_t buffer[512] = { 0 };
	char text[512];
	struct gmb_request request = { 0 };

	CHECK_EQUAL(run->info.capabilities & (GMB_CAN_WRITE | GMB_CAN_TRIM | GMB_CAN_ZERO), 0);
	CHECK_EQUAL(gmb_pwrite(run->client, buffer, 512, 0, 0), -EPERM);
	CHECK_EQUAL(gmb_pwrite(run->client, buffer, 0, 0, 0), -EPERM);
	CHECK_EQUAL(gmb_trim(run->client, 0, 512, 0), -EPERM);
	CHECK_EQUAL(gmb_zero(run->client, 0, 512, GMB_FUA), -EPERM);
	CHECK_EQUAL(gmb_pread(run->client, buffer, 512, 0), 0);
	CHECK_EQUAL(gmb_flush(run->client), 0);
	gmb_prepare_write(&request, buffer, 512, 0);
	CHECK_EQUAL(gmb_run(run->client, &request), -EPERM);
	CHECK(strstr(gmb_explain(run->client, &request, text, sizeof(text)), "read-only") != NULL);
}

CASE(read_only_by_option)
{
	CHECK(run->info.capabilities & GMB_CAN_WRITE);
	reopen(run, (struct gmb_options){ .flags = GMB_OPEN_READ_ONLY });
	read_only(run);
}

/* A server that offers nothing but reading and writing. */
CASE(missing_operations)
{
	struct gmb_extent extent;
	uint32_t count = 1;
	uint8_t buffer[512] = { 0 };
	struct gmb_request request = { 0 };
	char text[512];

	CHECK_EQUAL(run->info.capabilities, GMB_CAN_WRITE);
	CHECK_EQUAL(gmb_flush(run->client), -EOPNOTSUPP);
	CHECK_EQUAL(gmb_trim(run->client, 0, 512, 0), -EOPNOTSUPP);
	CHECK_EQUAL(gmb_zero(run->client, 0, 512, 0), -EOPNOTSUPP);
	CHECK_EQUAL(gmb_cache(run->client, 0, 512), -EOPNOTSUPP);
	CHECK_EQUAL(gmb_block_status(run->client, 0, 512, &extent, &count), -EOPNOTSUPP);
	CHECK_EQUAL(count, 0);
	/* Without FUA and without FLUSH nothing can be made durable. */
	CHECK_EQUAL(gmb_pwrite(run->client, buffer, 512, 0, GMB_FUA), -EOPNOTSUPP);
	CHECK_EQUAL(gmb_pwrite(run->client, buffer, 512, 0, 0), 0);
	gmb_prepare_read(&request, buffer, 512, 0);
	request.flags = GMB_DF;
	CHECK_EQUAL(gmb_run(run->client, &request), -EOPNOTSUPP);
	gmb_explain(run->client, &request, text, sizeof(text));
	CHECK(strstr(text, "does not offer") != NULL);
}

/* Fails where the server's fault= says so; the text of one failure is not that of the next. */
CASE(failures)
{
	struct gmb_request request = { 0 };
	uint8_t buffer[1024] = { 0 };
	char text[512];

	gmb_prepare_read(&request, buffer, 1024, 4096);
	CHECK_EQUAL(gmb_run(run->client, &request), -EIO);
	gmb_explain(run->client, &request, text, sizeof(text));
	CHECK(strstr(text, "read of 1024 bytes at 4096: Input/output error") != NULL);
	CHECK(strstr(text, "server message") != NULL);
	gmb_prepare_read(&request, buffer, 1024, UINT64_MAX);
	CHECK_EQUAL(gmb_run(run->client, &request), -EINVAL);
	gmb_explain(run->client, &request, text, sizeof(text));
	CHECK(strstr(text, "server message") == NULL);
	CHECK_EQUAL(gmb_pwrite(run->client, buffer, 1024, 0, 0), -ENOSPC);
	gmb_prepare_read(&request, buffer, 1024, 0);
	CHECK_EQUAL(gmb_run(run->client, &request), 0);
	gmb_explain(run->client, &request, text, sizeof(text));
	CHECK(strstr(text, ": success") != NULL);
	/* A short buffer gets what fits. */
	CHECK(gmb_explain(run->client, &request, text, 8) == text);
	CHECK_EQUAL(strlen(text), 7);
	/* One part fails: the whole request does, with that error. */
	gmb_prepare(&request, GMB_ZERO, 0, 8192);
	CHECK_EQUAL(gmb_run(run->client, &request), -EIO);
	CHECK_EQUAL(stats_of(run->client).connections_lost, 0);
}

/* --- memory -------------------------------------------------------------------------------- */

enum { TINY_COUNT = 5000 };

/* A list of entries of 0 to 7 bytes over bytes. */
static uint64_t tiny_list(struct iovec *iov, uint8_t *bytes, uint32_t seed)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < TINY_COUNT; i++) {
		size_t len = (i * 7 + seed) * 2654435761U >> 29;

		iov[i] = (struct iovec){ .iov_base = bytes + sum, .iov_len = len };
		sum += len;
	}
	return sum;
}

CASE(tiny_scatter_lists)
{
	static uint8_t out[TINY_COUNT * 8];
	static uint8_t in[TINY_COUNT * 8 + 1];
	static struct iovec from[TINY_COUNT];
	static struct iovec to[TINY_COUNT];
	struct gmb_request request = { 0 };
	uint64_t sum = tiny_list(from, out, 1);
	uint64_t other = tiny_list(to, in, 2);
	uint64_t whole = sum < other ? sum : other;
	uint32_t count = TINY_COUNT;

	fill(out, sizeof(out), 5);
	memset(in, 0xee, sizeof(in));
	gmb_prepare_writev(&request, from, TINY_COUNT, 777);
	CHECK_EQUAL(request.length, sum);
	CHECK_EQUAL(gmb_run(run->client, &request), 0);
	/* The second list may be longer than the first: cut it to what was written. */
	for (uint64_t over = other - whole; over > 0;) {
		uint64_t cut = to[count - 1].iov_len < over ? to[count - 1].iov_len : over;

		to[count - 1].iov_len -= cut;
		over -= cut;
		count -= over > 0;
	}
	gmb_prepare_readv(&request, to, count, 777);
	CHECK_EQUAL(request.length, whole);
	CHECK_EQUAL(gmb_run(run->client, &request), 0);
	CHECK(memcmp(in, out, whole) == 0);
	for (size_t i = whole; i < sizeof(in); i++) {
		CHECK(in[i] == 0xee);
	}
}

/* Many at once, so that replies come together and lists do not fit in one receive. */
CASE(scattered_crowd)
{
	enum { COUNT = 100, BYTES_MAX = 9000, PIECE = 31 };
	static struct counted counted[COUNT];
	static uint8_t in[COUNT][BYTES_MAX];
	static uint8_t out[COUNT * BYTES_MAX];
	static struct iovec iov[COUNT][BYTES_MAX / PIECE + 1];
	size_t bytes = whole_blocks(run, BYTES_MAX);
	uint32_t done = 0;

	fill(out, sizeof(out), 9);
	CHECK_EQUAL(gmb_pwrite(run->client, out, COUNT * bytes, 0, 0), 0);
	for (uint32_t i = 0; i < COUNT; i++) {
		/* Backwards, every other one in one piece. */
		uint64_t offset = (uint64_t)(COUNT - 1 - i) * bytes;
		uint32_t at = 0;

		counted_init(run, &counted[i]);
		if (i % 2 == 0) {
			gmb_prepare_read(&counted[i].request, in[i], bytes, offset);
		} else {
			for (size_t sum = 0; sum < bytes; at++) {
				size_t len = bytes - sum < PIECE ? bytes - sum : PIECE;

				iov[i][at] = (struct iovec){ in[i] + sum, len };
				sum += len;
			}
			gmb_prepare_readv(&counted[i].request, iov[i], at, offset);
		}
		gmb_submit(run->client, &counted[i].request);
	}
	while (done < COUNT) {
		done += (uint32_t)gmb_queue_wait(run->queue, -1);
	}
	for (uint32_t i = 0; i < COUNT; i++) {
		CHECK_EQUAL(counted[i].done_count, 1);
		CHECK_EQUAL(counted[i].request.result, 0);
		CHECK(memcmp(in[i], out + (size_t)(COUNT - 1 - i) * bytes, bytes) == 0);
	}
}

/* Longer than the server takes: split, and put together again. */
CASE(split_requests)
{
	size_t bytes = (size_t)run->info.payload_max * 2 + 12345;
	uint8_t *out;
	uint8_t *in;
	uint64_t commands;

	if (run->argument != NULL) {
		CHECK_EQUAL(run->info.payload_max, strtoull(run->argument, NULL, 10));
	}
	bytes = whole_blocks(run, bytes);
	CHECK(bytes <= run->info.bytes);
	out = malloc(bytes);
	in = malloc(bytes);
	CHECK(out != NULL && in != NULL);
	fill(out, bytes, 3);
	commands = stats_of(run->client).commands;
	CHECK_EQUAL(gmb_pwrite(run->client, out, bytes, 0, 0), 0);
	CHECK_EQUAL(stats_of(run->client).commands - commands, 3);
	CHECK_EQUAL(gmb_pread(run->client, in, bytes, 0), 0);
	CHECK_EQUAL(stats_of(run->client).commands - commands, 6);
	CHECK(memcmp(in, out, bytes) == 0);
	CHECK_EQUAL(stats_of(run->client).bytes_read, bytes);
	CHECK_EQUAL(stats_of(run->client).bytes_written, bytes);
	free(in);
	free(out);
}

/* --- who is told --------------------------------------------------------------------------- */

struct chain {
	struct counted counted;
	uint32_t left;
	uint8_t buffer[64];
};

static void chain_done(struct gmb_request *request)
{
	struct chain *chain = request->context;
	uint64_t left = chain->left;

	CHECK_EQUAL(request->in_flight, 0);
	chain->counted.done_count++;
	if (chain->left-- > 0) {
		/* Some fail at once, some have nothing to do, most are read. */
		gmb_prepare_read(request, chain->buffer, left % 16 == 2 ? 0 : 64,
			left % 16 == 1 ? UINT64_MAX : left * 64);
		gmb_submit(chain->counted.run->client, request);
		CHECK(request->in_flight != 0);
	}
}

CASE(resubmit_from_done)
{
	enum { CHAINS = 8, LENGTH = 2000 };
	struct chain *chains = calloc(CHAINS, sizeof(*chains));
	int done = 0;

	CHECK(chains != NULL);
	for (int i = 0; i < CHAINS; i++) {
		struct gmb_request *request = &chains[i].counted.request;

		counted_init(run, &chains[i].counted);
		request->done = chain_done;
		request->context = &chains[i];
		chains[i].left = LENGTH;
		gmb_prepare_read(request, chains[i].buffer, 64, 0);
		gmb_submit(run->client, request);
	}
	while (done < CHAINS * (LENGTH + 1)) {
		int count = gmb_queue_wait(run->queue, -1);

		CHECK(count > 0);
		done += count;
	}
	CHECK_EQUAL(gmb_queue_wait(run->queue, 0), 0);
	for (int i = 0; i < CHAINS; i++) {
		CHECK_EQUAL(chains[i].counted.done_count, LENGTH + 1);
	}
	free(chains);
}

static int freed_count;

static void free_done(struct gmb_request *request)
{
	freed_count++;
	free(request->context);
}

/* Far more than the depth, and the last callback frees the request. */
CASE(flood)
{
	enum { COUNT = 20000 };
	int done = 0;

	reopen(run, (struct gmb_options){ .depth = 4, .connections = 1 });
	CHECK_EQUAL(run->info.depth, 4);
	for (int i = 0; i < COUNT; i++) {
		struct chain *chain = calloc(1, sizeof(*chain));

		CHECK(chain != NULL);
		chain->counted.request.done = free_done;
		chain->counted.request.context = chain;
		gmb_prepare_read(&chain->counted.request, chain->buffer, 64, (uint64_t)i * 8);
		gmb_submit(run->client, &chain->counted.request);
	}
	CHECK_EQUAL(freed_count, 0);
	while (done < COUNT) {
		done += gmb_queue_wait(run->queue, -1);
	}
	CHECK_EQUAL(done, COUNT);
	CHECK_EQUAL(freed_count, COUNT);
}

/* gmb_close() waits for what is in flight and tells of it. */
CASE(close_with_requests)
{
	enum { COUNT = 500 };
	static struct counted counted[COUNT];
	static uint8_t buffer[COUNT][512];
	struct gmb_client *other = open_or_die(run->queue, run->uri, NULL);

	for (int i = 0; i < COUNT; i++) {
		counted_init(run, &counted[i]);
		gmb_prepare_read(&counted[i].request, buffer[i], i == 7 ? 0 : 512, 0);
		counted[i].request.offset = i == 9 ? UINT64_MAX : 0;
		gmb_submit(i % 2 == 0 ? other : run->client, &counted[i].request);
	}
	CHECK_EQUAL(gmb_close(other), 0);
	for (int i = 0; i < COUNT; i += 2) {
		CHECK_EQUAL(counted[i].done_count, 1);
	}
	reopen(run, (struct gmb_options){ 0 });
	for (int i = 0; i < COUNT; i++) {
		CHECK_EQUAL(counted[i].done_count, 1);
		CHECK_EQUAL(counted[i].request.result, i == 9 ? -EINVAL : 0);
	}
}

/* Without done, in_flight tells; and gmb_run() leaves done alone. */
CASE(no_callback)
{
	struct gmb_request request = { 0 };
	struct counted counted;
	uint8_t buffer[512];

	gmb_prepare_read(&request, buffer, 512, 0);
	gmb_submit(run->client, &request);
	while (request.in_flight != 0) {
		gmb_queue_wait(run->queue, -1);
	}
	CHECK_EQUAL(request.result, 0);
	counted_init(run, &counted);
	gmb_prepare_read(&counted.request, buffer, 512, 0);
	CHECK_EQUAL(gmb_run(run->client, &counted.request), 0);
	CHECK_EQUAL(counted.done_count, 0);
	CHECK_EQUAL(counted_run(&counted), 0);
	/* A blocking call tells of others that complete meanwhile. */
	gmb_submit(run->client, &counted.request);
	while (counted.request.in_flight != 0) {
		CHECK_EQUAL(gmb_pread(run->client, buffer, 512, 512), 0);
	}
	CHECK_EQUAL(counted.done_count, 2);
}

CASE(prepared)
{
	struct counted counted;
	struct gmb_extent extents[2];
	uint8_t buffer[8];

	counted_init(run, &counted);
	gmb_prepare_status(&counted.request, extents, 2, 512, 1024);
	counted.request.flags = GMB_STATUS_ONE;
	CHECK_EQUAL(counted.request.operation, GMB_STATUS);
	CHECK(counted.request.extents == extents && counted.request.extents_max == 2);
	gmb_prepare_write(&counted.request, buffer, 8, 99);
	CHECK_EQUAL(counted.request.operation, GMB_WRITE);
	CHECK_EQUAL(counted.request.flags, 0);
	CHECK_EQUAL(counted.request.offset, 99);
	CHECK_EQUAL(counted.request.length, 8);
	CHECK_EQUAL(counted.request.iov_count, 1);
	CHECK(counted.request.iov->iov_base == buffer && counted.request.iov->iov_len == 8);
	CHECK(counted.request.extents == NULL && counted.request.extents_max == 0);
	CHECK(counted.request.done == counted_done && counted.request.context == &counted);
	gmb_prepare(&counted.request, GMB_TRIM, 5, 6);
	CHECK_EQUAL(counted.request.operation, GMB_TRIM);
	CHECK(counted.request.iov == NULL && counted.request.iov_count == 0);
}

int main(int argc, char **argv)
{
	return run_cases(argc, argv);
}
