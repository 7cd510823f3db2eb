// SPDX-License-Identifier: Apache-2.0
#include "tools/info.h"

#include <errno.h>
#include <gmblock/gmblock.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tools/print.h"

/* Extents in one answer. */
enum { EXTENTS_MAX = 4096, KINDS = 4 };

/* How much is asked for at first. A server may walk through all of it before it says a word, so the
 * step only grows while the answers are short. */
#define STEP_FIRST_BYTES (UINT64_C(4) << 30)

/* By enum gmb_extent_flags. */
static const char *const kind_names[KINDS] = { "data", "hole", "zero", "hole,zero" };

struct map {
	struct gmb_client *client;
	struct gmb_extent *extents;
	struct gmb_extent last; /* not shown yet: the next may continue it */
	uint64_t size;
	uint64_t bytes[KINDS];
	uint64_t counts[KINDS];
	bool json;
	bool first;
};

static uint32_t kind_of(const struct gmb_extent *extent)
{
	return extent->flags & (GMB_EXTENT_HOLE | GMB_EXTENT_ZERO);
}

static void show_extent(struct map *map, const struct gmb_extent *extent)
{
	uint32_t kind = kind_of(extent);

	map->bytes[kind] += extent->bytes;
	map->counts[kind]++;
	if (!map->json) {
		printf("%20" PRIu64 " %20" PRIu64 "  %s\n", extent->offset, extent->bytes,
			kind_names[kind]);
		return;
	}
	/* A line each, written as they come: a map may have millions. */
	printf("%s    { \"offset\": %" PRIu64 ", \"length\": %" PRIu64
	       ", \"type\": \"%s\", \"hole\": %s, \"zero\": %s }",
		map->first ? "\n" : ",\n", extent->offset, extent->bytes, kind_names[kind],
		(kind & GMB_EXTENT_HOLE) != 0 ? "true" : "false",
		(kind & GMB_EXTENT_ZERO) != 0 ? "true" : "false");
	map->first = false;
}

static void take_extent(struct map *map, const struct gmb_extent *extent)
{
	if (map->last.bytes > 0 && kind_of(&map->last) == kind_of(extent)) {
		map->last.bytes += extent->bytes;
		return;
	}
	if (map->last.bytes > 0) {
		show_extent(map, &map->last);
	}
	map->last = *extent;
}

static int ask(
	struct map *map, uint64_t offset, uint64_t bytes, uint32_t *count, struct error *error)
{
	struct gmb_request request = { 0 };
	char text[ERROR_TEXT_BYTES];
	int err;

	gmb_prepare_status(&request, map->extents, EXTENTS_MAX, offset, bytes);
	err = gmb_run(map->client, &request);
	if (err != 0) {
		return error_set(
			error, err, "%s", gmb_explain(map->client, &request, text, sizeof(text)));
	}
	*count = request.extent_count;
	return 0;
}

static int walk(struct map *map, struct error *error)
{
	uint64_t step = STEP_FIRST_BYTES;
	uint64_t offset = 0;

	while (offset < map->size) {
		uint64_t bytes = MIN(step, map->size - offset);
		uint32_t count = 0;
		int err = ask(map, offset, bytes, &count, error);

		if (err != 0) {
			return err;
		}
		for (uint32_t i = 0; i < count; i++) {
			take_extent(map, &map->extents[i]);
			offset += map->extents[i].bytes;
		}
		if (count <= 2 && step <= UINT64_MAX / 4) {
			step *= 2;
		} else if (count > 2) {
			step = STEP_FIRST_BYTES;
		}
		if (ferror(stdout)) {
			return print_end(error);
		}
	}
	return 0;
}

/* --- beginning and end --------------------------------------------------------------------- */

/* A string as JSON writes it, in quotes, or null. */
static void dump_text(const char *text)
{
	json_t *value = print_json_text(text);

	if (value == NULL || json_dumpf(value, stdout, JSON_ENCODE_ANY) != 0) {
		fputs("null", stdout);
	}
	json_decref(value);
}

static void print_head(const struct map *map, const char *uri)
{
	if (!map->json) {
		printf("%20s %20s  type\n", "offset", "length");
		return;
	}
	fputs("{\n  \"uri\": ", stdout);
	dump_text(uri);
	printf(",\n  \"size\": %" PRIu64 ",\n  \"extents\": [", map->size);
}

static void print_totals_text(const struct map *map)
{
	char human[PRINT_SIZE_BYTES];

	putchar('\n');
	for (uint32_t kind = 0; kind < KINDS; kind++) {
		if (map->counts[kind] == 0) {
			continue;
		}
		printf("%-9s  %9s  %5.1f %%  %" PRIu64 " bytes in %" PRIu64 " extent%s\n",
			kind_names[kind], print_size(human, map->bytes[kind]),
			100.0 * (double)map->bytes[kind] / (double)map->size, map->bytes[kind],
			map->counts[kind], map->counts[kind] == 1 ? "" : "s");
	}
}

static void print_totals_json(const struct map *map, const char *failure)
{
	fputs(map->first ? "],\n  \"totals\": {\n" : "\n  ],\n  \"totals\": {\n", stdout);
	for (uint32_t kind = 0; kind < KINDS; kind++) {
		printf("    \"%s\": { \"bytes\": %" PRIu64 ", \"extents\": %" PRIu64 " }%s\n",
			kind_names[kind], map->bytes[kind], map->counts[kind],
			kind + 1 < KINDS ? "," : "");
	}
	fputs("  },\n  \"error\": ", stdout);
	dump_text(failure);
	fputs("\n}\n", stdout);
}

static int map_show(struct map *map, const char *uri, struct error *error)
{
	int err;

	print_head(map, uri);
	err = walk(map, error);
	if (map->last.bytes > 0) {
		show_extent(map, &map->last);
	}
	/* After a failure the totals say what there was until then, so that the JSON is whole. */
	if (map->json) {
		print_totals_json(map, err != 0 ? error->text : NULL);
	} else if (err == 0 && map->size > 0) {
		print_totals_text(map);
	}
	if (err != 0) {
		fflush(stdout);
		return err;
	}
	return print_end(error);
}

static int map_check(const struct gmb_info *info, struct error *error)
{
	if ((info->capabilities & GMB_CAN_STATUS) != 0) {
		return 0;
	}
	return error_set(error, -EOPNOTSUPP,
		info->replies == GMB_REPLIES_SIMPLE
			? "the server does not tell what is allocated: it has no structured "
			  "replies, which base:allocation needs"
			: "the server does not tell what is allocated: it has no base:allocation "
			  "for this export");
}

/* The library's error as the commands report theirs. */
static int foreign_error(struct error *error, const struct gmb_error *theirs)
{
	return error_set(error, theirs->code, "%s", theirs->text);
}

int info_map(const char *uri, uint64_t timeout_ns, bool json, struct error *error)
{
	struct gmb_options options = {
		.size = sizeof(options),
		.flags = GMB_OPEN_READ_ONLY,
		.connections = 1,
		.connect_timeout_ms = clock_milliseconds(timeout_ns),
	};
	struct gmb_info info = { .size = sizeof(info) };
	struct map map = { .json = json, .first = true };
	struct gmb_queue *queue = NULL;
	struct gmb_error theirs;
	int err = gmb_queue_create(NULL, &queue, &theirs);

	if (err != 0) {
		return foreign_error(error, &theirs);
	}
	err = gmb_open(queue, uri, &options, &map.client, &theirs);
	if (err != 0) {
		foreign_error(error, &theirs);
		goto out;
	}
	gmb_get_info(map.client, &info);
	map.size = info.bytes;
	err = map_check(&info, error);
	if (err != 0) {
		goto out;
	}
	map.extents = calloc(EXTENTS_MAX, sizeof(*map.extents));
	if (map.extents == NULL) {
		err = error_set(error, -ENOMEM, "out of memory");
		goto out;
	}
	err = map_show(&map, uri, error);
out:
	gmb_close(map.client);
	GMB_ASSERT(gmb_queue_destroy(queue) == 0);
	free(map.extents);
	return err;
}
