// SPDX-License-Identifier: Apache-2.0
/*
 * For tests of the flash store: a store on a simulated disk of small segments, with queues on
 * several rings, and copies of what a crash leaves.
 *
 * Threading: the simulation's only thread. Ownership: world_close() and world_discard() free what
 * world_begin() made; disks live until sim_stop(). Errors: fail the test.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sim/sim.h"
#include "store/flash/format.h"
#include "store/store.h"

enum {
	SECTOR = 512,
	BLOCK_SECTORS = FLASH_BLOCK_BYTES / SECTOR,
	WORLD_RINGS = 2, /* the first one is the owner's */
	WORLD_SEGMENT_BLOCKS = 16,
	WORLD_SEGMENTS = 64,
};

struct world {
	struct ring *rings[WORLD_RINGS];
	struct store *store;
	struct store_start start;
	struct store_queue *queues[WORLD_RINGS];
	void *budget;
	bool started;
	bool again_killed; /* see world_open() */
	char name[32];	   /* of the disk */
};

/* Sums over all worlds that were closed by world_close(). */
struct world_totals {
	uint64_t moved_blocks; /* by collectors */
	uint64_t checkpoints;
	uint64_t evicted_blocks;
	uint64_t flushed_blocks;
	uint64_t written_back_blocks;
	uint64_t cache_moved_blocks;
	uint64_t erased_segments;
	uint64_t log_moves;
};

extern struct world_totals world_totals;

/* The size of the write cache of stores that are opened from now on; "0": none. */
extern const char *world_cache;

/* What they do with changes in a cache file of another disk: "refuse" (at first), "take" or
 * "leave".
 */
extern const char *world_cache_file;

/* What they do when a snapshot leaves no room for writes: "drop" (at first) or "refuse". */
extern const char *world_on_full;

/* What starts may do about damage (enum store_repair). */
extern uint32_t world_repairs;

/* Stores may have no room for pages in their cache when they are closed. */
extern bool world_is_full;

/* A sector's contents are its tag, again and again. */
void sector_fill(uint8_t *bytes, uint64_t tag);

/* The tag of a sector; fails the test if the sector has more than one. */
uint64_t sector_tag(const uint8_t *bytes);

/* What disks are made from now on: devices may do anything to what is discarded; zones have room
 * for half of what is from one to the next, and no more of them are active than must be. */
enum world_disk { WORLD_FILE, WORLD_DEVICE, WORLD_ZONED };
extern enum world_disk world_disk;

/* Disks that are made from now on have no direct I/O, have direct reads that use the page cache, or
 * keep all pages there. */
extern bool world_lacks_direct;
extern bool world_direct_uses_cache;
extern bool world_keeps_cache;

/* What a world's disk is made with. */
struct sim_disk_options world_disk_options(void);

/* Makes the simulated disk "disk", with a new flash store in it. */
void world_make_disk(void);

/* Opens the store on the simulated disk `name`, to be started by store_start() with `start`:
 * `started` and `start.result` tell when it has ended, and how. */
void world_prepare(struct world *world, const char *name, bool direct, bool read_only);

/* The same, and begins to start it. */
void world_begin(struct world *world, const char *name, bool direct, bool read_only);

/* Opens and starts. again, if not NULL: the power may fail once more while the store is started
 * (or, with a cache, the server be killed: again_killed); the disk of that name is what is left
 * then, and is not there if the start was over before. */
void world_open(struct world *world, const char *name, bool direct, const char *again);

/* Begins the simulation with a new "disk", and opens it. */
void world_start(struct world *world, uint64_t seed);

/* Steps until the store has started. */
void world_await(struct world *world);

/* Submits a part to the first queue, and steps until it has ended without an error. The part's done
 * and memory are set by the caller; done is world_part_done(). */
void world_submit(struct world *world, struct store_part *part);

/* Steps until a part has ended that was submitted. */
void world_part_await(struct store_part *part);

/* Asserts success and sets part->op to STORE_OP_COUNT. */
void world_part_done(struct store_part *part, int result);

void world_discard(struct world *world); /* frees a world, whatever has become of its store */
void world_close(struct world *world);	 /* the same; counts, and expects no checksum error */
void world_end(struct world *world);	 /* the same, and ends the simulation */

uint64_t world_counter(const struct world *world, const char *name);

/* Makes or deletes a snapshot, and steps until that has ended. Returns the result. */
int world_snapshot(struct world *world, enum store_snapshot_action action, const char *name);

/* Nothing happens on a frozen world's rings. */
void world_freeze(const struct world *world, bool frozen);

/* A new simulated disk `name`, with what a disk has after its server was killed: the page cache
 * stays, and the file of the write cache, which is in the folder "/name/". */
void world_kill_copy(const char *from, const char *name);

/* The file in the folder "/name/" says that it is of that disk. */
void world_give_cache(const char *name);

/* From now on writes to other places of the disk fail, or none; never to those of anchors. */
void world_vary_bad_places(const char *name);

/* Checks the store on a simulated disk. fault: called for each sentence of what is wrong. */
void world_check(const char *name, void (*fault)(const char *text));
