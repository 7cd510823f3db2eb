// SPDX-License-Identifier: Apache-2.0
/*
 * Wire integers: big-endian values held in one-member structs, so that a missing conversion does
 * not compile; plus checked and power-of-two arithmetic on lengths.
 *
 * Threading: pure functions. Ownership: none. Errors: the checked functions return false when the
 * mathematical result does not fit; the stored value is then undefined.
 */
#pragma once

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct be16 {
	uint16_t raw;
} __attribute__((packed));
struct be32 {
	uint32_t raw;
} __attribute__((packed));
struct be64 {
	uint64_t raw;
} __attribute__((packed));

static inline uint16_t be16_get(struct be16 v)
{
	return be16toh(v.raw);
}
static inline uint32_t be32_get(struct be32 v)
{
	return be32toh(v.raw);
}

/* Returns the big-endian value of four bytes at any alignment. */
static inline uint32_t be32_load(const uint8_t *bytes)
{
	struct be32 wire;

	memcpy(&wire, bytes, sizeof(wire));
	return be32_get(wire);
}
static inline uint64_t be64_get(struct be64 v)
{
	return be64toh(v.raw);
}
static inline uint64_t be64_load(const uint8_t *bytes)
{
	struct be64 wire;

	memcpy(&wire, bytes, sizeof(wire));
	return be64_get(wire);
}
static inline struct be16 be16_make(uint16_t v)
{
	return (struct be16){ .raw = htobe16(v) };
}
static inline struct be32 be32_make(uint32_t v)
{
	return (struct be32){ .raw = htobe32(v) };
}
static inline struct be64 be64_make(uint64_t v)
{
	return (struct be64){ .raw = htobe64(v) };
}

/* *sum = a + b; false when it overflows 64 bits. */
static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *sum)
{
	return !__builtin_add_overflow(a, b, sum);
}

/* *product = a * b; false when it overflows 64 bits. */
static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
	return !__builtin_mul_overflow(a, b, product);
}

/* True when [offset, offset + length) lies inside [0, size). A zero length at size is inside. */
static inline bool range_inside(uint64_t offset, uint64_t length, uint64_t size)
{
	return offset <= size && length <= size - offset;
}

static inline bool is_power_of_two(uint64_t v)
{
	return v != 0 && (v & (v - 1)) == 0;
}

/* alignment must be a power of two. The result of align_up() must fit into 64 bits; callers check
 * sizes first. */
static inline uint64_t align_down(uint64_t v, uint64_t alignment)
{
	return v & ~(alignment - 1);
}
static inline uint64_t align_up(uint64_t v, uint64_t alignment)
{
	return (v + alignment - 1) & ~(alignment - 1);
}
static inline bool is_aligned(uint64_t v, uint64_t alignment)
{
	return (v & (alignment - 1)) == 0;
}
