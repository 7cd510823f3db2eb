// SPDX-License-Identifier: Apache-2.0
/*
 * What a disk behind NBD may contain. Every write, zero and trim is a record with a begin and an
 * end on a logical clock; a byte may have the value of a record unless a later one (begun after it
 * ended) is known to have replaced it:
 *
 *   w1 ├────┤                 read at r: w1 is excluded by w2 (begun after w1's end, ended before
 * r) w2        ├────┤          w2 and w3 are both possible w3               ├───── read ├─ r
 *
 * For contents after a crash the same rule holds with "known to be durable" (acknowledged with FUA,
 * or before a FLUSH that succeeded began) in the place of "ended before the read".
 *
 * Threading: one. Ownership: the oracle borrows the contents at the start. Errors: a value that no
 * record explains is described in oracle_message().
 */
#pragma once

#include "base/compiler.h"

struct oracle;

enum oracle_kind {
	ORACLE_DATA,
	ORACLE_ZERO,
	ORACLE_COPY, /* of the contents at the start, from the offset that is its seed on */
	ORACLE_UNDEFINED
};

/* Gives the contents at the start; they must not change while the oracle exists. */
typedef void oracle_base_fn(void *context, uint64_t offset, uint8_t *out, size_t len);

/* base NULL = zeroes. */
struct oracle *oracle_create(oracle_base_fn *base, void *context);
void oracle_destroy(struct oracle *oracle);

/* The bytes that a data record writes. */
void oracle_pattern(uint64_t seed, uint64_t offset, uint8_t *out, size_t len);

/* Advances the clock and returns it. */
uint64_t oracle_now(struct oracle *oracle);

/* A modification was sent; it can take effect from now on. Returns its index. group: writes are
 * made durable by flushes of the same group. */
uint32_t oracle_begin(struct oracle *oracle, enum oracle_kind kind, uint64_t offset,
	uint64_t length, uint64_t seed, uint32_t group);
/* Of a data record of whole sectors: it takes effect as a whole or not at all. */
void oracle_keep_whole(struct oracle *oracle, uint32_t record);
/* It was acknowledged: complete, and durable if so asked. */
void oracle_end(struct oracle *oracle, uint32_t record, bool durable);
/* It failed: any of its bytes may have been written; nothing will change from now on. */
void oracle_fail(struct oracle *oracle, uint32_t record);
/* Nobody knows whether it was or will be executed. */
void oracle_orphan(struct oracle *oracle, uint32_t record, uint32_t owner);
/* Nothing that this owner has orphaned can still be executed. */
void oracle_settle(struct oracle *oracle, uint32_t owner);
/* A flush that was sent at `begin` (oracle_now()) has succeeded. */
void oracle_flushed(struct oracle *oracle, uint64_t begin, uint32_t group);

/* Could a read that was sent at `begin` and has just been answered give these bytes? */
bool oracle_check_read(
	struct oracle *oracle, uint64_t begin, uint64_t offset, const uint8_t *data, size_t len);
/* Could a disk have these bytes after a crash now? */
bool oracle_check_durable(struct oracle *oracle, uint64_t offset, const uint8_t *data, size_t len);
/* The same of all contents, from the first byte on: is each record that is to be whole there as a
 * whole, or not at all? In sectors that no other record may have changed since. *open_out: so many
 * of them were not acknowledged and could be looked at. */
bool oracle_check_whole(struct oracle *oracle, const uint8_t *data, size_t len, uint32_t *open_out);
const char *oracle_message(const struct oracle *oracle);
