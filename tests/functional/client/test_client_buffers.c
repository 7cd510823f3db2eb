// SPDX-License-Identifier: Apache-2.0
/* Buffers that servers reach, and what survives when connections break. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cases.h"

enum {
	BUFFER_BYTES = 1 << 20,
	BLOCK_BYTES = 4096,
};

static uint8_t *buffer_or_die(struct run *run, size_t bytes)
{
	struct gmb_error error = { 0 };
	void *base = NULL;

	if (gmb_buffer_alloc(run->queue, bytes, 0, &base, &error) != 0) {
		fprintf(stderr, "%s\n", error.text);
		exit(1);
	}
	return base;
}

CASE(buffer_rules)
{
	void *bases[GMB_BUFFERS_MAX];
	struct gmb_error error = { 0 };
	void *base = NULL;

	CHECK_EQUAL(gmb_buffer_alloc(run->queue, 0, 0, &base, &error), -EINVAL);
	CHECK_EQUAL(error.code, -EINVAL);
	CHECK_EQUAL(gmb_buffer_alloc(run->queue, 4096, 1U << 31, &base, NULL), -EINVAL);
	CHECK_EQUAL(gmb_buffer_alloc(run->queue, SIZE_MAX, 0, &base, NULL), -EINVAL);
	CHECK_EQUAL(gmb_buffer_alloc(run->queue, SIZE_MAX / 2, 0, &base, NULL) < 0, 1);
	CHECK(base == NULL);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < GMB_BUFFERS_MAX; i++) {
			uint8_t *bytes = buffer_or_die(run, 5000);

			bases[i] = bytes;
			CHECK_EQUAL((uintptr_t)bytes % BLOCK_BYTES, 0);
			for (int k = 0; k < 5000; k++) {
				CHECK_EQUAL(bytes[k], 0);
			}
			memset(bytes, 0x5a, 5000);
			CHECK_EQUAL(
				gmb_pwrite(run->client, bytes, whole_blocks(run, 5000), 0, 0), 0);
		}
		CHECK_EQUAL(gmb_buffer_alloc(run->queue, 1, 0, &base, &error), -ENOSPC);
		for (int i = 0; i < GMB_BUFFERS_MAX; i++) {
			gmb_buffer_free(run->queue, bases[i]);
		}
		/* Servers give memory back in their own time. */
		while (gmb_buffer_alloc(run->queue, 1, 0, &base, &error) == -ENOSPC) {
			CHECK(gmb_queue_wait(run->queue, 10) >= 0);
		}
		gmb_buffer_free(run->queue, base);
		while (gmb_buffer_alloc(run->queue, 1, 0, &bases[0], &error) == -ENOSPC) {
			CHECK(gmb_queue_wait(run->queue, 10) >= 0);
		}
		gmb_buffer_free(run->queue, bases[0]);
		for (int i = 0; i < 100; i++) {
			CHECK(gmb_queue_wait(run->queue, 1) >= 0);
		}
	}
	gmb_buffer_free(run->queue, NULL);
}

/* A memfd as it must be, or without seals. */
static int memfd_or_die(size_t bytes, int seals)
{
	int memfd = memfd_create("import", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(memfd >= 0);
	CHECK_EQUAL(ftruncate(memfd, (off_t)bytes), 0);
	CHECK_EQUAL(fcntl(memfd, F_ADD_SEALS, seals), 0);
	return memfd;
}

static uint8_t *import_or_die(struct run *run, int memfd, uint64_t offset, size_t bytes)
{
	struct gmb_error error = { 0 };
	void *base = NULL;

	if (gmb_buffer_import(run->queue, memfd, offset, bytes, &base, &error) != 0) {
		fprintf(stderr, "%s\n", error.text);
		exit(1);
	}
	return base;
}

/* argument "placed": the server reaches it; "moved": it only takes writes from there, because
 * nobody waits for the end of what a lost connection had asked for. */
CASE(imported)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	int unsealed = memfd_or_die(BUFFER_BYTES, F_SEAL_SHRINK);
	int memfd = memfd_or_die(BUFFER_BYTES + BLOCK_BYTES, seals);
	bool placed = strcmp(run->argument, "placed") == 0;
	struct gmb_error error = { 0 };
	uint8_t expected[BLOCK_BYTES];
	uint8_t found[BLOCK_BYTES];
	uint64_t moved;
	void *base;
	uint8_t *memory;

	if (!placed) {
		reopen(run, (struct gmb_options){ .flags = GMB_OPEN_NO_RECONNECT });
	}
	CHECK_EQUAL(
		gmb_buffer_import(run->queue, unsealed, 0, BUFFER_BYTES, &base, &error), -EPERM);
	CHECK_EQUAL(error.code, -EPERM);
	CHECK_EQUAL(gmb_buffer_import(run->queue, 0, 0, BUFFER_BYTES, &base, NULL), -EPERM);
	CHECK_EQUAL(gmb_buffer_import(run->queue, memfd, 0, 0, &base, NULL), -EINVAL);
	CHECK_EQUAL(gmb_buffer_import(run->queue, memfd, 7, BLOCK_BYTES, &base, NULL), -EINVAL);
	CHECK_EQUAL(
		gmb_buffer_import(run->queue, memfd, BLOCK_BYTES * 2, BUFFER_BYTES, &base, NULL),
		-EINVAL);
	memory = import_or_die(run, memfd, BLOCK_BYTES, BUFFER_BYTES);
	fill(expected, BLOCK_BYTES, 3);
	moved = stats_of(run->client).bytes_moved;
	CHECK_EQUAL(pwrite(memfd, expected, BLOCK_BYTES, 3 * BLOCK_BYTES), BLOCK_BYTES);
	CHECK_EQUAL(gmb_pwrite(run->client, memory + 2 * BLOCK_BYTES, BLOCK_BYTES, 0, 0), 0);
	CHECK_EQUAL(stats_of(run->client).bytes_moved, moved);
	CHECK_EQUAL(gmb_pread(run->client, memory, BLOCK_BYTES, 0), 0);
	CHECK_EQUAL(stats_of(run->client).bytes_moved, moved + (placed ? 0 : BLOCK_BYTES));
	gmb_buffer_free(run->queue, memory);
	CHECK_EQUAL(pread(memfd, found, BLOCK_BYTES, BLOCK_BYTES), BLOCK_BYTES);
	CHECK(memcmp(found, expected, BLOCK_BYTES) == 0);
	close(memfd);
	close(unsealed);
}

/* A scatter list of pieces of different sizes, in turn from two runs of memory. */
static uint32_t scatter(struct iovec *iov, uint8_t *a, uint8_t *b, size_t bytes, size_t step)
{
	uint32_t count = 0;
	size_t done = 0;

	for (size_t piece = step; done < bytes; piece = piece * 2 % 40009 + step) {
		size_t part = piece < bytes - done ? piece : bytes - done;

		iov[count].iov_base = count % 2 == 0 ? a : b;
		iov[count].iov_len = part;
		a += count % 2 == 0 ? part : 0;
		b += count % 2 == 0 ? 0 : part;
		done += part;
		count++;
	}
	return count;
}

static void gather(uint8_t *to, const struct iovec *iov, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		memcpy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
}

static void move(
	struct run *run, const struct iovec *iov, uint32_t count, uint64_t offset, bool write)
{
	struct gmb_request request = { 0 };

	if (write) {
		gmb_prepare_writev(&request, iov, count, offset);
	} else {
		gmb_prepare_readv(&request, iov, count, offset);
	}
	CHECK_EQUAL(gmb_run(run->client, &request), 0);
}

/* Rounds up to whole blocks of the export, for servers that have no requests of single bytes. */
static uint64_t whole(const struct run *run, uint64_t bytes)
{
	struct gmb_info info = { .size = sizeof(info) };

	gmb_get_info(run->client, &info);
	return (bytes + info.block_minimum - 1) / info.block_minimum * info.block_minimum;
}

/* argument "placed": a server reaches buffers, and nothing else is copied. */
CASE(placed)
{
	static const size_t steps[] = { 4096, 512, 1000, 65536, 7 };
	static const uint64_t offsets[] = { 0, 4096, 513, 1 << 20 };
	static uint8_t expected[BUFFER_BYTES];
	static uint8_t found[BUFFER_BYTES];
	static struct iovec iov[20000];
	bool reaches = run->argument != NULL && strcmp(run->argument, "placed") == 0;
	uint8_t *a = buffer_or_die(run, BUFFER_BYTES);
	uint8_t *b = buffer_or_die(run, BUFFER_BYTES);

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		for (size_t k = 0; k < sizeof(offsets) / sizeof(offsets[0]); k++) {
			size_t bytes = whole(run, BUFFER_BYTES / 2 - (k % 2 == 0 ? 0 : 777));
			uint64_t offset = whole(run, offsets[k]);
			uint64_t moved = stats_of(run->client).bytes_moved;
			uint32_t count = scatter(iov, a, b, bytes, steps[i]);

			fill(a, BUFFER_BYTES, i * 10 + k);
			fill(b, BUFFER_BYTES, i * 100 + k + 7);
			gather(expected, iov, count);
			move(run, iov, count, offset, true);
			memset(a, 0, BUFFER_BYTES);
			memset(b, 0, BUFFER_BYTES);
			move(run, iov, count, offset, false);
			gather(found, iov, count);
			CHECK(memcmp(found, expected, bytes) == 0);
			/* Lists of up to 64 pieces go as they are. */
			CHECK(!reaches || count > 64 || stats_of(run->client).bytes_moved == moved);
			memset(found, 0, bytes);
			CHECK_EQUAL(gmb_pread(run->client, found, bytes, offset), 0);
			CHECK(memcmp(found, expected, bytes) == 0);
			CHECK(!reaches || stats_of(run->client).bytes_moved >= moved + bytes);
		}
	}
	gmb_buffer_free(run->queue, b);
	gmb_buffer_free(run->queue, a);
}

/* --- a storm -------------------------------------------------------------------------------- */

enum { STORM_DEPTH = 16, STORM_AREA_BYTES = 256 << 10 };

struct slot {
	struct gmb_request request;
	struct run *run;
	uint8_t *memory;   /* of one kind or the other, in turn */
	uint8_t *expected; /* what the area holds */
	uint32_t number;
	uint32_t left; /* steps */
	uint32_t random;
	uint64_t at; /* in its area */
	size_t bytes;
	bool reading;
};

static uint32_t slot_random(struct slot *slot)
{
	slot->random = slot->random * 1664525U + 1013904223U;
	return slot->random >> 8;
}

static void slot_next(struct slot *slot)
{
	uint64_t offset;

	slot->reading = !slot->reading;
	if (!slot->reading) {
		slot->at = slot_random(slot) % (STORM_AREA_BYTES / 512) * 512;
		slot->bytes =
			whole(slot->run, 1 + slot_random(slot) % (STORM_AREA_BYTES - slot->at));
		fill(slot->memory, slot->bytes, slot_random(slot));
		memcpy(slot->expected + slot->at, slot->memory, slot->bytes);
	} else {
		slot->at = 0;
		slot->bytes = STORM_AREA_BYTES;
		memset(slot->memory, 0xee, slot->bytes);
	}
	offset = (uint64_t)slot->number * STORM_AREA_BYTES + slot->at;
	if (slot->reading) {
		gmb_prepare_read(&slot->request, slot->memory, slot->bytes, offset);
	} else {
		gmb_prepare_write(&slot->request, slot->memory, slot->bytes, offset);
	}
	gmb_submit(slot->run->client, &slot->request);
}

static void slot_done(struct gmb_request *request)
{
	struct slot *slot = request->context;
	char text[512];

	if (request->result != 0) {
		fprintf(stderr, "%s\n",
			gmb_explain(slot->run->client, request, text, sizeof(text)));
		exit(1);
	}
	if (slot->reading) {
		CHECK(memcmp(slot->memory, slot->expected, STORM_AREA_BYTES) == 0);
		slot->left--;
	}
	if (slot->left > 0) {
		slot_next(slot);
	}
}

/* Writes and reads back until each slot has done so as often as the argument says. Prints how many
 * connections were lost meanwhile. */
static void storm_in(struct run *run, uint8_t *memory)
{
	static struct slot slots[STORM_DEPTH];
	uint32_t steps = (uint32_t)strtoul(run->argument, NULL, 10);
	bool busy = true;

	CHECK_EQUAL(gmb_zero(run->client, 0, (uint64_t)STORM_DEPTH * STORM_AREA_BYTES, 0), 0);
	for (uint32_t i = 0; i < STORM_DEPTH; i++) {
		struct slot *slot = &slots[i];

		slot->run = run;
		slot->number = i;
		slot->left = steps;
		slot->random = i;
		slot->reading = true;
		slot->memory = i % 4 == 3 ? malloc(STORM_AREA_BYTES)
					  : memory + (size_t)i * STORM_AREA_BYTES;
		slot->expected = calloc(1, STORM_AREA_BYTES);
		slot->request.done = slot_done;
		slot->request.context = slot;
		slot_next(slot);
	}
	puts("begun");
	fflush(stdout);
	while (busy) {
		CHECK(gmb_queue_wait(run->queue, -1) >= 0);
		busy = false;
		for (uint32_t i = 0; i < STORM_DEPTH; i++) {
			busy |= slots[i].left > 0;
		}
	}
	printf("%llu lost\n", (unsigned long long)stats_of(run->client).connections_lost);
	for (uint32_t i = 0; i < STORM_DEPTH; i++) {
		free(slots[i].expected);
		if (i % 4 == 3) {
			free(slots[i].memory);
		}
	}
}

CASE(storm)
{
	storm_in(run, buffer_or_die(run, (size_t)STORM_DEPTH * STORM_AREA_BYTES));
}

CASE(storm_imported)
{
	size_t bytes = (size_t)STORM_DEPTH * STORM_AREA_BYTES;
	int memfd = memfd_or_die(bytes, F_SEAL_SHRINK | F_SEAL_GROW);

	storm_in(run, import_or_die(run, memfd, 0, bytes));
	close(memfd);
}

/* --- freeing where a loss is told of -----------------------------------------------------------
 */

static void *spare;

static void free_spare(struct gmb_request *request)
{
	struct run *run = request->context;

	CHECK_EQUAL(request->result, -ENOTCONN);
	gmb_buffer_free(run->queue, spare);
	spare = NULL;
}

/* Two clients whose requests use one buffer are lost together. */
CASE(free_in_done)
{
	struct gmb_options options = { .size = sizeof(options), .flags = GMB_OPEN_NO_RECONNECT };
	struct gmb_client *clients[2];
	struct gmb_request requests[2] = { 0 };
	uint8_t *memory = buffer_or_die(run, sizeof(requests) / sizeof(*requests) * BLOCK_BYTES);

	spare = buffer_or_die(run, BLOCK_BYTES);
	for (uint32_t i = 0; i < 2; i++) {
		clients[i] = open_or_die(run->queue, run->uri, &options);
		gmb_prepare_read(&requests[i], memory + i * BLOCK_BYTES, BLOCK_BYTES, 0);
		requests[i].done = free_spare;
		requests[i].context = run;
		gmb_submit(clients[i], &requests[i]);
	}
	/* Until the requests have been sent: the memory is shared first. */
	CHECK(gmb_queue_wait(run->queue, 100) >= 0);
	puts("begun");
	fflush(stdout);
	while (requests[0].in_flight != 0 || requests[1].in_flight != 0) {
		CHECK(gmb_queue_wait(run->queue, -1) >= 0);
	}
	CHECK_EQUAL(gmb_close(clients[0]), 0);
	CHECK_EQUAL(gmb_close(clients[1]), 0);
	puts("0 lost");
}

int main(int argc, char **argv)
{
	return run_cases(argc, argv);
}
