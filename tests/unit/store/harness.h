// SPDX-License-Identifier: Apache-2.0
/*
 * For tests of stores: a ring, a store with one queue, and blocking versions of its operations.
 *
 * Threading: one bench per thread. Ownership: bench_close() frees all. Errors: setting up fails the
 * test; operations return what the store gave.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ring/ring.h"
#include "store/store.h"

enum { EXIT_SKIP = 77 };

struct bench {
	struct ring *ring;
	struct store *store;
	struct store_queue *queue;
	bool owns_store;
};

/* Opens a store of its own, or a queue on one that somebody else opened. */
void bench_open(struct bench *bench, const struct store_options *options);
void bench_share(struct bench *bench, struct store *store);
void bench_close(struct bench *bench);

/* A part that remembers its end. */
struct waited_part {
	struct store_part part;
	bool is_done;
	int result;
};

void bench_start(struct bench *bench, struct waited_part *waited, enum store_op op, uint32_t flags,
	uint64_t offset, uint64_t length, void *data);
int bench_wait(struct bench *bench, struct waited_part *waited);

int bench_do(struct bench *bench, enum store_op op, uint32_t flags, uint64_t offset,
	uint64_t length, void *data);
int bench_read(struct bench *bench, uint64_t offset, uint64_t length, void *data);
int bench_write(struct bench *bench, uint64_t offset, uint64_t length, const void *data);
int bench_flush(struct bench *bench);
/* Fills extents, returns how many, or a negative errno. */
int bench_extents(struct bench *bench, uint64_t offset, uint64_t length,
	struct store_extent *extents, uint32_t extent_max);

/* A directory for the test, removed with everything in it by scratch_remove(). */
void scratch_create(void);
void scratch_remove(void);
/* Says why, cleans up and gives main() the status of a test that cannot run here. */
int scratch_skip(const char *reason);
const char *scratch_path(const char *name);
/* A file of that size in it, all hole. Returns its path. */
const char *scratch_file(const char *name, uint64_t size);

/* True when direct I/O works in the scratch directory. */
bool scratch_has_direct(void);

/* A loop device over the file, freed by the kernel when loop_close() drops the last user. Returns
 * -1 when this machine or user cannot have one. */
int loop_open(const char *path, uint32_t block_bytes, char *device, size_t device_bytes);
int loop_open_flags(
	const char *path, uint32_t block_bytes, bool read_only, char *device, size_t device_bytes);
void loop_close(int fd);

/* Small, seeded and the same everywhere. */
uint64_t random_next(uint64_t *state);
uint64_t random_below(uint64_t *state, uint64_t limit);

/* Page-aligned memory that the test frees with free(). */
void *aligned_bytes(size_t bytes);
