// SPDX-License-Identifier: Apache-2.0
#include "tools/print.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

const char *print_size(char out[PRINT_SIZE_BYTES], uint64_t bytes)
{
	static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	size_t unit = 0;

	while (value >= 1023.5 && unit + 1 < ARRAY_COUNT(units)) {
		value /= 1024;
		unit++;
	}
	snprintf(out, PRINT_SIZE_BYTES, value < 9.95 && unit > 0 ? "%.1f %s" : "%.0f %s", value,
		units[unit]);
	return out;
}

int print_end(struct error *error)
{
	if (fflush(stdout) != 0 || ferror(stdout)) {
		int err = errno != 0 ? -errno : -EIO;

		return error_set(error, err, "cannot write to standard output: %s", strerror(-err));
	}
	return 0;
}

static int print_document(json_t *root, bool compact, struct error *error)
{
	int err;

	if (root == NULL) {
		return error_set(error, -ENOMEM, "out of memory while writing JSON");
	}
	err = json_dumpf(root, stdout, compact ? JSON_COMPACT : JSON_INDENT(2));
	json_decref(root);
	if (err != 0) {
		return error_set(error, -EIO, "cannot write JSON to standard output");
	}
	putchar('\n');
	return print_end(error);
}

int print_json(json_t *root, struct error *error)
{
	return print_document(root, false, error);
}

int print_json_line(json_t *root, struct error *error)
{
	return print_document(root, true, error);
}
