// SPDX-License-Identifier: Apache-2.0
/*
 * Feeds files to a fuzz target without a fuzzer, so that every compiler and the normal suite can:
 *
 *   fuzz_TARGET [--mutations N] [-v] FILE-OR-FOLDER...
 *
 * Each file is run as it is and in N variants: cut short, bytes changed, doubled or dropped, by a
 * generator that is seeded from the contents, so that a failure comes again. The name of the input
 * that failed is printed.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

enum { NAME_BYTES = 4096, INPUT_BYTES_MAX = 1 << 20 };

static char current_name[NAME_BYTES];
static unsigned mutation_count;
static unsigned input_count;
static bool verbose;

static void tell_current(int signal_number)
{
	ssize_t ignored = write(STDERR_FILENO, current_name, strlen(current_name));

	GMB_UNUSED(ignored);
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

static void run(const char *path, unsigned variant, const uint8_t *data, size_t size)
{
	/* A copy of its own size: a sanitizer sees the first byte past the end. */
	uint8_t *copy = malloc(size > 0 ? size : 1);

	GMB_ASSERT(copy != NULL);
	memcpy(copy, data, size);
	snprintf(current_name, sizeof(current_name), "\nfailed: %s variant %u\n", path, variant);
	if (verbose) {
		printf("%s variant %u (%zu bytes)\n", path, variant, size);
		fflush(stdout);
	}
	LLVMFuzzerTestOneInput(copy, size);
	free(copy);
	input_count++;
}

static uint64_t random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* One small change in place; returns the new size. */
static size_t mutate(uint8_t *data, size_t size, uint64_t *state)
{
	static const uint8_t values[] = { 0x00, 0x01, 0x7f, 0x80, 0xff, '%', ':', '=', ',', '\n' };
	size_t at = random_next(state) % size;
	size_t count = 1 + random_next(state) % 8;

	switch (random_next(state) % 6) {
	case 0:
		return at;
	case 1:
		data[at] ^= (uint8_t)(1u << (random_next(state) % 8));
		return size;
	case 2:
		data[at] = values[random_next(state) % ARRAY_COUNT(values)];
		return size;
	case 3:
		data[at] = (uint8_t)random_next(state);
		return size;
	case 4:
		count = MIN(count, size - at);
		memmove(data + at, data + at + count, size - at - count);
		return size - count;
	default:
		count = MIN(count, size - at);
		if (size + count > INPUT_BYTES_MAX) {
			return size;
		}
		memmove(data + at + count, data + at, size - at);
		return size + count;
	}
}

static void run_variants(const char *path, const uint8_t *data, size_t size)
{
	uint64_t state = UINT64_C(0x9e3779b97f4a7c15) + size;
	uint8_t *variant = malloc(INPUT_BYTES_MAX);

	GMB_ASSERT(variant != NULL);
	for (size_t i = 0; i < size; i++) {
		state = (state ^ data[i]) * UINT64_C(0x100000001b3);
	}
	state |= 1;
	for (unsigned i = 1; i <= mutation_count && size > 0; i++) {
		size_t variant_size = size;

		memcpy(variant, data, size);
		for (uint64_t steps = 1 + random_next(&state) % 4; steps > 0 && variant_size > 0;
			steps--) {
			variant_size = mutate(variant, variant_size, &state);
		}
		run(path, i, variant, variant_size);
	}
	free(variant);
}

static int run_file(const char *path)
{
	uint8_t *data = malloc(INPUT_BYTES_MAX);
	FILE *file = fopen(path, "rb");
	size_t size;

	GMB_ASSERT(data != NULL);
	if (file == NULL) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		free(data);
		return 1;
	}
	size = fread(data, 1, INPUT_BYTES_MAX, file);
	fclose(file);
	run(path, 0, data, size);
	run_variants(path, data, size);
	free(data);
	return 0;
}

static int not_hidden(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int run_path(const char *path)
{
	struct dirent **entries;
	struct stat status;
	int failed = 0;
	int count;

	if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode)) {
		return run_file(path);
	}
	count = scandir(path, &entries, not_hidden, alphasort);
	for (int i = 0; i < count; i++) {
		char inner[NAME_BYTES];

		snprintf(inner, sizeof(inner), "%s/%s", path, entries[i]->d_name);
		failed |= run_file(inner);
		free(entries[i]);
	}
	if (count >= 0) {
		free(entries);
	}
	return failed | (count < 0);
}

int main(int argc, char **argv)
{
	int failed = 0;

	signal(SIGABRT, tell_current);
	signal(SIGALRM, tell_current);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-v") == 0) {
			verbose = true;
		} else if (strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) {
			mutation_count = (unsigned)strtoul(argv[++i], NULL, 10);
		} else {
			failed |= run_path(argv[i]);
		}
	}
	printf("%u inputs\n", input_count);
	/* An empty corpus would let everything pass. */
	return failed || input_count == 0;
}
