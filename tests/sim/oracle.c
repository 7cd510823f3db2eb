// SPDX-License-Identifier: Apache-2.0
/* The oracle's records and its check, interval by interval. See oracle.h. */
#include "oracle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scratch.h"

enum { SECTOR = 512 };

struct record {
	enum oracle_kind kind;
	bool acknowledged;
	bool durable;
	bool orphan;
	bool whole;
	uint32_t owner;
	uint32_t group;
	uint64_t offset;
	uint64_t length;
	uint64_t seed;
	uint64_t begin;
	uint64_t end; /* UINT64_MAX while it may still be executed */
};

struct oracle {
	oracle_base_fn *base;
	void *base_context;
	uint64_t clock;
	struct record *records;
	uint32_t count;
	uint32_t max;
	char message[300];
};

struct oracle *oracle_create(oracle_base_fn *base, void *context)
{
	struct oracle *oracle = calloc(1, sizeof(*oracle));

	GMB_ASSERT(oracle != NULL);
	oracle->base = base;
	oracle->base_context = context;
	oracle->clock = 1;
	return oracle;
}

void oracle_destroy(struct oracle *oracle)
{
	if (oracle != NULL) {
		free(oracle->records);
		free(oracle);
	}
}

static uint64_t pattern_word(uint64_t seed, uint64_t index)
{
	uint64_t z = seed + index * UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	return z ^ (z >> 27);
}

void oracle_pattern(uint64_t seed, uint64_t offset, uint8_t *out, size_t len)
{
	while (len > 0) {
		uint64_t word = pattern_word(seed, offset / 8);
		size_t at = (size_t)(offset % 8);
		size_t bytes = MIN(len, 8 - at);

		memcpy(out, (const uint8_t *)&word + at, bytes);
		out += bytes;
		offset += bytes;
		len -= bytes;
	}
}

uint64_t oracle_now(struct oracle *oracle)
{
	return ++oracle->clock;
}

uint32_t oracle_begin(struct oracle *oracle, enum oracle_kind kind, uint64_t offset,
	uint64_t length, uint64_t seed, uint32_t group)
{
	if (oracle->count == oracle->max) {
		oracle->max = oracle->max == 0 ? 64 : oracle->max * 2;
		oracle->records =
			realloc(oracle->records, oracle->max * sizeof(oracle->records[0]));
		GMB_ASSERT(oracle->records != NULL);
	}
	oracle->records[oracle->count] = (struct record){
		.kind = kind,
		.group = group,
		.offset = offset,
		.length = length,
		.seed = seed,
		.begin = oracle_now(oracle),
		.end = UINT64_MAX,
	};
	return oracle->count++;
}

void oracle_keep_whole(struct oracle *oracle, uint32_t record)
{
	oracle->records[record].whole = true;
}

void oracle_end(struct oracle *oracle, uint32_t record, bool durable)
{
	struct record *r = &oracle->records[record];

	GMB_ASSERT(r->end == UINT64_MAX);
	r->end = oracle_now(oracle);
	r->acknowledged = true;
	r->durable = durable;
}

void oracle_fail(struct oracle *oracle, uint32_t record)
{
	struct record *r = &oracle->records[record];

	GMB_ASSERT(r->end == UINT64_MAX);
	r->end = oracle_now(oracle);
}

void oracle_orphan(struct oracle *oracle, uint32_t record, uint32_t owner)
{
	oracle->records[record].orphan = true;
	oracle->records[record].owner = owner;
}

void oracle_settle(struct oracle *oracle, uint32_t owner)
{
	uint64_t now = oracle_now(oracle);

	for (uint32_t i = 0; i < oracle->count; i++) {
		if (oracle->records[i].orphan && oracle->records[i].owner == owner) {
			oracle->records[i].orphan = false;
			oracle->records[i].end = now;
		}
	}
}

void oracle_flushed(struct oracle *oracle, uint64_t begin, uint32_t group)
{
	for (uint32_t i = 0; i < oracle->count; i++) {
		struct record *r = &oracle->records[i];

		if (r->acknowledged && r->end < begin && r->group == group) {
			r->durable = true;
		}
	}
}

/* --- checking ------------------------------------------------------------------------------- */

struct check {
	struct oracle *oracle;
	bool crash;
	uint64_t begin;		 /* of the read */
	const uint32_t *records; /* that touch the range, oldest first */
	uint32_t record_count;
};

static bool is_known(const struct check *check, const struct record *r)
{
	return check->crash ? r->durable : r->acknowledged && r->end <= check->begin;
}

static bool touches(const struct record *r, uint64_t offset, uint64_t length)
{
	return r->offset < offset + length && offset < r->offset + r->length;
}

static void expected_bytes(const struct oracle *oracle, const struct record *r, uint64_t offset,
	uint8_t *out, size_t len)
{
	bool of_base = r == NULL || r->kind == ORACLE_COPY;
	uint64_t base_offset = r == NULL ? offset : r->seed + (offset - r->offset);

	if (of_base && oracle->base != NULL) {
		oracle->base(oracle->base_context, base_offset, out, len);
	} else if (of_base || r->kind == ORACLE_ZERO) {
		memset(out, 0, len);
	} else {
		oracle_pattern(r->seed, offset, out, len);
	}
}

/* Marks the bytes that r (NULL = the contents at the start) explains; true when all are. */
static bool explain(const struct oracle *oracle, const struct record *r, uint64_t offset,
	const uint8_t *data, size_t len, uint8_t *explained)
{
	static struct scratch scratch;
	uint8_t *want;
	bool all = true;

	if (r != NULL && r->kind == ORACLE_UNDEFINED) {
		memset(explained, 1, len);
		return true;
	}
	want = scratch_get(&scratch, len);
	expected_bytes(oracle, r, offset, want, len);
	if (memcmp(want, data, len) == 0) {
		memset(explained, 1, len);
	} else {
		for (size_t i = 0; i < len; i++) {
			explained[i] |= want[i] == data[i];
			all = all && explained[i] != 0;
		}
	}
	scratch_put(&scratch);
	return all;
}

static void describe(struct check *check, uint64_t offset, uint8_t byte, uint64_t limit)
{
	struct oracle *oracle = check->oracle;
	int used = snprintf(oracle->message, sizeof(oracle->message),
		"byte %" PRIu64 " is 0x%02x, %s; allowed were", offset, byte,
		check->crash ? "after a crash" : "in a read");

	for (uint32_t i = check->record_count; i-- > 0 && used < 200;) {
		const struct record *r = &oracle->records[check->records[i]];
		uint8_t want;

		if (touches(r, offset, 1)) {
			expected_bytes(oracle, r, offset, &want, 1);
			used += snprintf(oracle->message + used,
				sizeof(oracle->message) - (size_t)used, " %s#%u(0x%02x)%s",
				r->end < limit ? "not " : "", check->records[i], want,
				r->durable	       ? "durable"
				: r->acknowledged      ? "done"
				: r->end != UINT64_MAX ? "failed"
						       : "open");
		}
	}
	if (used < 240) {
		uint8_t want;

		expected_bytes(oracle, NULL, offset, &want, 1);
		snprintf(oracle->message + used, sizeof(oracle->message) - (size_t)used,
			" %sbase(0x%02x)", limit > 0 ? "not " : "", want);
	}
}

/* All bytes of the interval are touched by the same records. */
static bool check_interval(struct check *check, uint64_t offset, const uint8_t *data, size_t len)
{
	static struct scratch scratch;
	const struct oracle *oracle = check->oracle;
	uint8_t *explained = scratch_get(&scratch, len);
	uint64_t limit = 0;
	bool all = false;

	memset(explained, 0, len);
	for (uint32_t i = 0; i < check->record_count; i++) {
		const struct record *r = &oracle->records[check->records[i]];

		if (touches(r, offset, len) && is_known(check, r)) {
			limit = MAX(limit, r->begin);
		}
	}
	for (uint32_t i = check->record_count; i-- > 0 && !all;) {
		const struct record *r = &oracle->records[check->records[i]];

		if (touches(r, offset, len) && r->end >= limit) {
			all = explain(oracle, r, offset, data, len, explained);
		}
	}
	if (!all && limit == 0) {
		all = explain(oracle, NULL, offset, data, len, explained);
	}
	if (!all) {
		const uint8_t *first = memchr(explained, 0, len);

		if (first == NULL) {
			all = true;
		} else {
			describe(check, offset + (uint64_t)(first - explained),
				data[first - explained], limit);
		}
	}
	scratch_put(&scratch);
	return all;
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return x < y ? -1 : x > y ? 1 : 0;
}

static bool check_range(struct check *check, uint64_t offset, const uint8_t *data, size_t len)
{
	const struct oracle *oracle = check->oracle;
	uint32_t *records = malloc((oracle->count + 1) * sizeof(records[0]));
	uint64_t *edges = malloc((2 * (uint64_t)oracle->count + 2) * sizeof(edges[0]));
	size_t edge_count = 0;
	bool good = true;

	GMB_ASSERT(records != NULL);
	GMB_ASSERT(edges != NULL);
	edges[edge_count++] = offset;
	edges[edge_count++] = offset + len;
	check->record_count = 0;
	for (uint32_t i = 0; i < oracle->count; i++) {
		const struct record *r = &oracle->records[i];

		if (touches(r, offset, len)) {
			records[check->record_count++] = i;
			edges[edge_count++] = MAX(r->offset, offset);
			edges[edge_count++] = MIN(r->offset + r->length, offset + len);
		}
	}
	check->records = records;
	qsort(edges, edge_count, sizeof(edges[0]), compare_u64);
	for (size_t i = 0; i + 1 < edge_count && good; i++) {
		if (edges[i] < edges[i + 1]) {
			good = check_interval(check, edges[i], data + (edges[i] - offset),
				(size_t)(edges[i + 1] - edges[i]));
		}
	}
	free(records);
	free(edges);
	return good;
}

bool oracle_check_read(
	struct oracle *oracle, uint64_t begin, uint64_t offset, const uint8_t *data, size_t len)
{
	struct check check = { .oracle = oracle, .begin = begin };

	return check_range(&check, offset, data, len);
}

bool oracle_check_durable(struct oracle *oracle, uint64_t offset, const uint8_t *data, size_t len)
{
	struct check check = { .oracle = oracle, .crash = true };

	return check_range(&check, offset, data, len);
}

/* Another one may have replaced what r has there. */
static bool may_be_replaced(
	const struct oracle *oracle, const struct record *r, uint64_t offset, uint64_t length)
{
	for (uint32_t i = 0; i < oracle->count; i++) {
		const struct record *other = &oracle->records[i];

		if (other != r && other->end >= r->begin && touches(other, offset, length)) {
			return true;
		}
	}
	return false;
}

bool oracle_check_whole(struct oracle *oracle, const uint8_t *data, size_t len, uint32_t *open_out)
{
	*open_out = 0;
	for (uint32_t i = 0; i < oracle->count; i++) {
		const struct record *r = &oracle->records[i];
		uint64_t looked = 0;
		uint64_t there = 0;

		for (uint64_t at = r->offset; r->whole && at + SECTOR <= r->offset + r->length;
			at += SECTOR) {
			uint8_t want[SECTOR];

			if (at + SECTOR <= len && !may_be_replaced(oracle, r, at, SECTOR)) {
				oracle_pattern(r->seed, at, want, SECTOR);
				looked++;
				there += memcmp(want, data + at, SECTOR) == 0;
			}
		}
		*open_out += looked > 0 && !r->acknowledged;
		if (there != 0 && there != looked) {
			snprintf(oracle->message, sizeof(oracle->message),
				"of the durable write #%u of %" PRIu64 " bytes at %" PRIu64
				", %" PRIu64 " of %" PRIu64 " sectors are there",
				i, r->length, r->offset, there, looked);
			return false;
		}
	}
	return true;
}

const char *oracle_message(const struct oracle *oracle)
{
	return oracle->message;
}
