// SPDX-License-Identifier: Apache-2.0
/*
 * A device whose every step a test takes itself: a store that keeps the parts it gets, and writes
 * into their memory, or ends them, when told to. On a ring of a simulated, perfect machine.
 *
 *   test ─▶ reader_start ─▶ [the filter under test] ─▶ device.parts[]
 *     └───▶ device_fill, device_finish ────────────────────┘
 *
 * Threading: one thread, one device at a time. Ownership: slow_device_stop() frees all. Errors: a
 * step that is not possible fails the test.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ring/ring.h"
#include "store/store.h"

enum { DEVICE_PARTS_MAX = 32 };

struct slow_device {
	struct ring *ring;
	struct store *store; /* the filter */
	struct store_queue *queue;
	struct store_part *parts[DEVICE_PARTS_MAX]; /* in flight, in order of arrival */
	uint32_t part_count;
};

/* One read of the filter's user. */
struct reader {
	struct store_part part;
	uint8_t *memory;
	uint64_t reported; /* bytes, by the last call */
	uint32_t progress_count;
	bool is_done;
	int result;
};

typedef int device_filter_fn(struct store *inner, struct store **store_out, struct error *error);

/* The filter is opened over the device. */
void slow_device_start(struct slow_device *device, uint64_t seed, device_filter_fn *filter);
void slow_device_stop(struct slow_device *device);

/* What the device holds: a byte of its own for each place and key. */
uint8_t device_byte(uint32_t key, uint64_t offset);

/* Writes what the device holds into a part's memory; or a given byte. */
void device_fill(struct store_part *part, uint32_t key, uint64_t from, uint64_t bytes);
void device_fill_byte(struct store_part *part, uint8_t byte, uint64_t from, uint64_t bytes);
void device_finish(struct slow_device *device, struct store_part *part, int result);

/* A read into fresh memory of 0x5a bytes; reader_free() when it is done. */
void reader_start(
	struct slow_device *device, struct reader *reader, uint64_t offset, uint64_t length);
/* The same, not wanting to be told. */
void reader_start_quiet(
	struct slow_device *device, struct reader *reader, uint64_t offset, uint64_t length);
void reader_free(struct reader *reader);
/* True when so many of the first bytes are what the device holds, and the rest untouched. */
bool reader_has(const struct reader *reader, uint32_t key, uint64_t bytes);

/* Lets so much time pass on the ring. */
void device_wait(struct slow_device *device, uint64_t time_ns);
