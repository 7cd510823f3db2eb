// SPDX-License-Identifier: Apache-2.0
/*
 * Two threads that pass requests through the cache lines of a split ring of virtio, to compare a
 * server that polls its rings with. There is no protocol and no check.
 *
 *   line_pass DEPTH BYTES BURST SECONDS
 *
 * For each request, the client writes a table of descriptors, a header and an entry of the
 * available ring. The server reads them, clears BYTES of payload, and writes a status byte and an
 * entry of the used ring, which the client reads. DEPTH requests are in flight. Each thread moves
 * its index after BURST requests, and when it has no more. Prints one JSON object: the rate, and
 * the processor time of both threads for each request.
 *
 * Threading: the client is the main thread. Both indices are stored with release and loaded with
 * acquire, and each guards what was written before it. Errors: exit status 1 or 2 and a line on
 * standard error.
 */
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>

#include "samples.h"

enum {
	ARGUMENTS = 5,
	LINE_BYTES = 64,
	WORDS = LINE_BYTES / sizeof(uint64_t),
	DEPTH_MAX = 128,
	LOOKS_PER_YIELD = 128,
	REQUESTS_PER_CLOCK = 256, /* a power of two */
	STATUS_NONE = 0xff,
};

struct slot {
	alignas(LINE_BYTES) uint64_t table[WORDS];
	alignas(LINE_BYTES) uint64_t header[WORDS];
};

static struct {
	alignas(LINE_BYTES) _Atomic uint32_t asked;
	alignas(LINE_BYTES) _Atomic uint32_t answered;
	alignas(LINE_BYTES) uint16_t available[DEPTH_MAX];
	alignas(LINE_BYTES) uint64_t used[DEPTH_MAX];
	alignas(LINE_BYTES) uint8_t status[DEPTH_MAX];
	struct slot slots[DEPTH_MAX];
	alignas(LINE_BYTES) atomic_bool ends;
	uint32_t depth, burst;
	uint64_t bytes, server_cpu_ns;
	volatile uint64_t sum; /* of what is read, so that it is really read */
	uint8_t *payload;
} ring;

/* Returns the other side's index when it has left ours, or ours at the end. */
static uint32_t look(_Atomic uint32_t *index, uint32_t own)
{
	uint32_t looks = 0;
	uint32_t found;

	while ((found = atomic_load_explicit(index, memory_order_acquire)) == own &&
		!atomic_load_explicit(&ring.ends, memory_order_relaxed)) {
		if (++looks % LOOKS_PER_YIELD == 0) {
			sched_yield();
		}
	}
	return found;
}

/* Moves an index after a burst, and at the end of what the other side has left. */
static void move(_Atomic uint32_t *index, uint32_t value, bool is_last)
{
	if (is_last || value % ring.burst == 0) {
		atomic_store_explicit(index, value, memory_order_release);
	}
}

static void *serve(void *argument)
{
	uint32_t done = 0;
	uint32_t end;

	(void)argument;
	while ((end = look(&ring.asked, done)) != done) {
		while (done != end) {
			uint16_t number = ring.available[done % ring.depth];
			const struct slot *slot = &ring.slots[number];

			ring.sum += slot->table[0] + slot->table[WORDS / 2] + slot->header[0];
			memset(ring.payload + number * ring.bytes, 0, ring.bytes);
			ring.status[number] = 0;
			ring.used[done % ring.depth] = number;
			done++;
			move(&ring.answered, done, done == end);
		}
	}
	ring.server_cpu_ns = samples_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	return NULL;
}

static void ask(uint32_t number, uint32_t asked)
{
	struct slot *slot = &ring.slots[number];

	ring.status[number] = STATUS_NONE;
	slot->table[0] = asked;
	slot->table[WORDS / 2] = ring.bytes;
	slot->header[0] = asked;
	ring.available[asked % ring.depth] = (uint16_t)number;
}

/* Returns the number of requests. */
static uint64_t request(uint64_t end_ns)
{
	uint64_t count = 0;
	uint32_t asked = 0;
	uint32_t done = 0;

	while (asked < ring.depth) {
		ask(asked, asked);
		asked++;
	}
	atomic_store_explicit(&ring.asked, asked, memory_order_release);
	for (;;) {
		uint32_t end = look(&ring.answered, done);

		while (done != end) {
			uint32_t number = (uint32_t)ring.used[done % ring.depth];

			if (ring.status[number] != 0) {
				fprintf(stderr, "line_pass: a status is missing\n");
				exit(1);
			}
			ask(number, asked++);
			done++;
			move(&ring.asked, asked, done == end);
			if (++count % REQUESTS_PER_CLOCK == 0 && samples_now_ns() >= end_ns) {
				atomic_store(&ring.ends, true);
				return count;
			}
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t start_ns, elapsed_ns, client_cpu_ns, count;
	pthread_t server;

	ring.depth = argc == ARGUMENTS ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
	ring.bytes = ring.depth > 0 ? strtoull(argv[2], NULL, 10) : 0;
	ring.burst = ring.depth > 0 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
	if (ring.depth == 0 || ring.depth > DEPTH_MAX || ring.burst == 0) {
		fprintf(stderr, "Usage: line_pass DEPTH BYTES BURST SECONDS\n");
		return 2;
	}
	ring.payload = calloc(ring.depth, ring.bytes);
	if (ring.payload == NULL || pthread_create(&server, NULL, serve, NULL) != 0) {
		fprintf(stderr, "line_pass: no memory or no thread\n");
		return 1;
	}
	start_ns = samples_now_ns();
	count = request(start_ns + samples_time_of(argv[4]));
	elapsed_ns = samples_now_ns() - start_ns;
	client_cpu_ns = samples_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	pthread_join(server, NULL);
	printf("{ \"requests\": %" PRIu64 ", \"iops\": %.0f, \"server_cpu_us\": %.4f, "
	       "\"client_cpu_us\": %.4f }\n",
		count, (double)count * 1e9 / (double)elapsed_ns,
		(double)ring.server_cpu_ns / 1e3 / (double)count,
		(double)client_cpu_ns / 1e3 / (double)count);
	return 0;
}
