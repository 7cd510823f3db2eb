// SPDX-License-Identifier: Apache-2.0
/* Describes the contents of gmblock files, as JSON and for people. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/text.h"
#include "disk/disk.h"
#include "ring/ring.h"
#include "store/store.h"
#include "tools/show.h"

enum { SHOWN_BYTES = 1024 };

struct findings {
	struct store_check check;
	json_t *root;
	json_t *faults;
};

static void take_fact(struct store_check *check, const char *key, const char *text)
{
	struct findings *findings = container_of(check, struct findings, check);

	json_object_set_new(findings->root, key, print_json_text(text));
}

static void take_amount(struct store_check *check, const char *key, uint64_t bytes)
{
	struct findings *findings = container_of(check, struct findings, check);

	json_object_set_new(findings->root, key, json_integer((json_int_t)bytes));
}

static void take_entry(struct store_check *check, const char *list, const char *text)
{
	struct findings *findings = container_of(check, struct findings, check);

	if (json_object_get(findings->root, list) == NULL) {
		json_object_set_new(findings->root, list, json_array());
	}
	if (text != NULL) {
		json_array_append_new(json_object_get(findings->root, list), print_json_text(text));
	}
}

static void take_fault(struct store_check *check, const char *sentence)
{
	struct findings *findings = container_of(check, struct findings, check);

	json_array_append_new(findings->faults, print_json_text(sentence));
}

/* Returns whether the file has that gmblock format; false if it cannot be opened. */
static bool is_format(const char *path, const char *format)
{
	struct disk_info info;
	struct error error;
	int fd;
	int result = disk_open(path, true, false, &fd, &error);

	if (result < 0) {
		return false;
	}
	result = disk_info(fd, &info);
	disk_close(fd);
	return result == 0 && info.format != NULL && strcmp(info.format, format) == 0;
}

json_t *check_file(const char *path, const char *base, struct error *error)
{
	struct findings findings = { .check = { .base = base,
					     .fact = take_fact,
					     .amount = take_amount,
					     .entry = take_entry,
					     .fault = take_fault },
		.root = json_object(),
		.faults = json_array() };

	int result = base != NULL && is_format(store_made_file(path), DISK_FORMAT_FLASH)
			     ? error_set(error, -EINVAL,
				       "'%s' is a flash store and has no base; omit --base", path)
			     : store_check(path, &findings.check, error);

	if (result < 0) {
		json_decref(findings.root);
		json_decref(findings.faults);
		return NULL;
	}
	/* the faults are added last */
	json_object_set_new(findings.root, "faults", findings.faults);
	return findings.root;
}

static void print_text(const char *name, int columns, const json_t *text)
{
	char shown[SHOWN_BYTES];

	printf("%-*s%s\n", columns, name,
		log_escape_sentence(shown, sizeof(shown), json_string_value(text)));
}

static void tools_check_print_list(const char *name, int columns, const json_t *list)
{
	json_t *text;
	size_t i;

	json_array_foreach(list, i, text)
	{
		print_text(name, columns, text);
	}
}

void check_print(const json_t *found, int columns)
{
	char human[UNITS_TEXT_BYTES];
	const char *key;
	json_t *value;

	/* The loop does not change the object; the macro lacks const. */
	json_object_foreach((json_t *)(uintptr_t)found, key, value)
	{
		if (json_is_integer(value)) {
			uint64_t bytes = (uint64_t)json_integer_value(value);

			units_human_bytes(human, bytes);
			printf("%-*s%s", columns, key, human);
			if (strstr(human, " bytes") == NULL) {
				printf(" (%llu bytes)", (unsigned long long)bytes);
			}
			printf("\n");
		} else if (json_is_string(value)) {
			print_text(key, columns, value);
		} else {
			tools_check_print_list(
				strcmp(key, "faults") == 0 ? "wrong" : key, columns, value);
		}
	}
}

/* --- repairs --------------------------------------------------------------------------------- */

static void start_done(struct store_start *start)
{
	ring_stop(start->ring);
}

static int start_now(struct store *store, struct ring *ring, struct error *error)
{
	uint64_t bytes = store_budget(store);
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct mem_region region = { .base = memory, .bytes = bytes, .rights = MEM_RAM };
	struct store_start start = { .ring = ring, .done = start_done };

	if (memory == MAP_FAILED) {
		store_close(store);
		return error_set(error, -ENOMEM, "out of memory: a repair needs %llu bytes",
			(unsigned long long)bytes);
	}
	start.memory = mem_at(&region, 0);
	store_start(store, &start);
	ring_run(ring);
	store_close(store);
	(void)munmap(memory, bytes);
	*error = start.error;
	return start.result;
}

static int repair(const char *path, uint32_t repairs, struct ring *ring, struct error *error)
{
	struct store_options options = { .path = path, .repairs = repairs };
	struct store *store;
	int result = store_open(&options, &store, error);

	store_options_fini(&options);
	return result == 0 ? start_now(store, ring, error) : result;
}

int check_repair(const char *path, uint32_t repairs, struct error *error)
{
	const char *file = store_made_file(path);
	struct ring *ring;
	char *prefixed = NULL;
	int result;

	if (is_format(file, DISK_FORMAT_OVERLAY)) {
		return error_set(error, -EINVAL,
			"'%s' is an overlay, and only flash stores can be repaired; omit --rebuild "
			"and --accept-loss",
			path);
	}
	result = ring_create(&(struct ring_options){ 0 }, &ring, error);
	if (result < 0) {
		return result;
	}
	if (asprintf(&prefixed, "flash:%s", file) < 0) {
		result = error_oom(error);
	} else {
		result = repair(prefixed, repairs, ring, error);
		free(prefixed);
	}
	ring_destroy(ring);
	return result;
}
