// SPDX-License-Identifier: Apache-2.0
/*
 * What the programs share that test libgmblock through its interface: PROGRAM CASE[,CASE...] URI
 * [ARGUMENT]. The process ends with status 0, or with the line that was not true.
 *
 * Threading: as the library. Ownership: plain. Errors: the process ends with status 1.
 */
#pragma once

#include <errno.h>
#include <gmblock/gmblock.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)  check((condition), #condition, __FILE__, __LINE__)
#define CHECK_EQUAL(a, b) check_equal((int64_t)(a), (int64_t)(b), #a " == " #b, __FILE__, __LINE__)

static inline void check(bool fine, const char *text, const char *file, int line)
{
	if (!fine) {
		fprintf(stderr, "%s:%d: not true: %s\n", file, line, text);
		exit(1);
	}
}

static inline void check_equal(int64_t a, int64_t b, const char *text, const char *file, int line)
{
	if (a != b) {
		fprintf(stderr, "%s:%d: not true: %s: %lld and %lld\n", file, line, text,
			(long long)a, (long long)b);
		exit(1);
	}
}

struct run {
	struct gmb_queue *queue;
	struct gmb_client *client;
	struct gmb_info info;
	const char *uri;
	const char *argument; /* or NULL */
};

/* The cases of a program, in the order of their definitions. */
enum { CASES_MAX = 32, CASE_NAME_BYTES = 40 };
static struct test_case {
	char name[CASE_NAME_BYTES];
	void (*function)(struct run *run);
} cases[CASES_MAX];
static size_t case_count;

static inline void case_add(const char *name, void (*function)(struct run *run))
{
	struct test_case *added = &cases[case_count++];

	CHECK(case_count <= CASES_MAX);
	for (size_t i = 0; name[i] != '\0'; i++) {
		added->name[i] = name[i] == '_' ? '-' : name[i];
	}
	added->function = function;
}

/* Defines a case, which is "queue-rules" on the command line if its name is queue_rules. */
#define CASE(name)                                                                                 \
	static void name(struct run *run);                                                         \
	__attribute__((constructor)) static void add_##name(void)                                  \
	{                                                                                          \
		_Static_assert(sizeof(#name) <= CASE_NAME_BYTES, "the name is too long");          \
		case_add(#name, name);                                                             \
	}                                                                                          \
	static void name(struct run *run)

/* A request that knows how often it was told of. */
struct counted {
	struct gmb_request request;
	int done_count;
	struct run *run;
};

static inline void counted_done(struct gmb_request *request)
{
	struct counted *counted = request->context;

	CHECK_EQUAL(request->in_flight, 0);
	counted->done_count++;
}

static inline void counted_init(struct run *run, struct counted *counted)
{
	memset(counted, 0, sizeof(*counted));
	counted->run = run;
	counted->request.done = counted_done;
	counted->request.context = counted;
}

/* Submits it, which must not call back, and waits. */
static inline int counted_run(struct counted *counted)
{
	struct run *run = counted->run;
	int before = counted->done_count;

	gmb_submit(run->client, &counted->request);
	CHECK_EQUAL(counted->done_count, before);
	CHECK(counted->request.in_flight != 0);
	while (counted->done_count == before) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	CHECK_EQUAL(counted->done_count, before + 1);
	return counted->request.result;
}

static inline struct gmb_client *open_or_die(
	struct gmb_queue *queue, const char *uri, const struct gmb_options *options)
{
	struct gmb_client *client = NULL;
	struct gmb_error error = { 0 };

	if (gmb_open(queue, uri, options, &client, &error) != 0) {
		fprintf(stderr, "%s\n", error.text);
		exit(1);
	}
	return client;
}

static inline struct gmb_queue *queue_or_die(void)
{
	struct gmb_queue *queue = NULL;
	struct gmb_error error = { 0 };

	if (gmb_queue_create(NULL, &queue, &error) != 0) {
		fprintf(stderr, "%s\n", error.text);
		exit(1);
	}
	return queue;
}

static inline struct gmb_stats stats_of(const struct gmb_client *client)
{
	struct gmb_stats stats = { .size = sizeof(stats) };

	gmb_get_stats(client, &stats);
	return stats;
}

/* The largest size up to this one of which requests can be. */
static inline size_t whole_blocks(const struct run *run, size_t bytes)
{
	return bytes - bytes % run->info.block_minimum;
}

/* Opens again with options. */
static inline void reopen(struct run *run, struct gmb_options options)
{
	options.size = sizeof(options);
	CHECK_EQUAL(gmb_close(run->client), 0);
	run->client = open_or_die(run->queue, run->uri, &options);
	gmb_get_info(run->client, &run->info);
}

/* Bytes that differ from place to place. */
static inline void fill(uint8_t *bytes, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++) {
		uint64_t z = (seed + i) * UINT64_C(0x9e3779b97f4a7c15);

		bytes[i] = (uint8_t)(z >> 56 ^ z >> 23);
	}
}

static inline int run_case(const char *name, const char *uri, const char *argument)
{
	struct run run = { .info = { .size = sizeof(run.info) }, .uri = uri, .argument = argument };

	for (const struct test_case *at = cases; at < cases + case_count; at++) {
		if (strcmp(at->name, name) == 0) {
			run.queue = queue_or_die();
			run.client = open_or_die(run.queue, run.uri, NULL);
			gmb_get_info(run.client, &run.info);
			at->function(&run);
			CHECK_EQUAL(gmb_close(run.client), 0);
			CHECK_EQUAL(gmb_queue_destroy(run.queue), 0);
			return 0;
		}
	}
	fprintf(stderr, "no such case: %s\n", name);
	return 2;
}

static inline int run_cases(int argc, char **argv)
{
	int status = 0;

	if (argc < 3) {
		for (const struct test_case *at = cases; at < cases + case_count; at++) {
			puts(at->name);
		}
		return 0;
	}
	for (char *rest = argv[1], *name; status == 0 && (name = strsep(&rest, ",")) != NULL;) {
		status = run_case(name, argv[2], argc > 3 ? argv[3] : NULL);
	}
	return status;
}
