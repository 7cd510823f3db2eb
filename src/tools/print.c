// SPDX-License-Identifier: Apache-2.0
#include "tools/show.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/export_uri.h"
#include "base/log.h"
#include "control/control.h"

/* The longest text is a protocol string: 4096 bytes, each as \xNN. */
enum { ESCAPED_BYTES = 4 * 4096 + 8 };

const char *print_us(char out[PRINT_US_BYTES], double us)
{
	if (us < 1000) {
		snprintf(out, PRINT_US_BYTES, "%.1f us", us);
	} else if (us < 1e6) {
		snprintf(out, PRINT_US_BYTES, "%.2f ms", us / 1e3);
	} else {
		snprintf(out, PRINT_US_BYTES, "%.2f s", us / 1e6);
	}
	return out;
}

void show_silent(void *context, enum gmb_event event, const char *text)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char last[EXPORT_URI_SILENT_BYTES];

	pthread_mutex_lock(&lock);
	if (event == GMB_EVENT_SILENT && strcmp(last, text) != 0) {
		snprintf(last, sizeof(last), "%s", text);
		log_warning("%s", text);
	}
	pthread_mutex_unlock(&lock);
}

int print_end(struct error *error)
{
	if (fflush(stdout) != 0 || ferror(stdout)) {
		int err = errno != 0 ? -errno : -EIO;

		return error_set(error, err, "cannot write to standard output: %s", strerror(-err));
	}
	return 0;
}

void print_peer_text(const char *text)
{
	char escaped[ESCAPED_BYTES];

	if (text != NULL) {
		fputs(log_escape_sentence(escaped, sizeof(escaped), text), stdout);
	}
}

void print_export_name(const char *name)
{
	print_peer_text(name != NULL && name[0] == '\0' ? "\"\"" : name);
}

json_t *print_json_text(const char *text)
{
	char escaped[ESCAPED_BYTES];
	json_t *value;

	if (text == NULL) {
		return json_null();
	}
	value = json_string(text);
	return value != NULL
		       ? value
		       : json_string(log_escape(escaped, sizeof(escaped), text, strlen(text)));
}

static int print_document(json_t *root, size_t form, struct error *error)
{
	int err;

	if (root == NULL) {
		return error_set(error, -ENOMEM, "out of memory while writing JSON");
	}
	err = control_print_json(root, form);
	json_decref(root);
	if (err != 0) {
		return error_set(error, err, "cannot write to standard output: %s", strerror(-err));
	}
	putchar('\n');
	return print_end(error);
}

int print_json(json_t *root, struct error *error)
{
	return print_document(root, JSON_INDENT(2), error);
}

int print_json_line(json_t *root, struct error *error)
{
	return print_document(root, JSON_COMPACT, error);
}

int print_json_digits(json_t *root, int digits, struct error *error)
{
	return print_document(root, JSON_INDENT(2) | JSON_REAL_PRECISION(digits), error);
}

void print_lease(const json_t *lease, const char *separator)
{
	const char *node = json_string_value(json_object_get(lease, "node"));
	const char *state = json_string_value(json_object_get(lease, "state"));
	const char *offered_to = json_string_value(json_object_get(lease, "offered_to"));
	const json_t *ends = json_object_get(lease, "ends_in_ms");

	print_peer_text(json_string_value(json_object_get(lease, "mode")));
	fputs(separator, stdout);
	print_peer_text(json_string_value(json_object_get(lease, "client")));
	if (node != NULL) {
		printf(" of node ");
		print_peer_text(node);
	}
	if (state != NULL && strcmp(state, "pending") == 0) {
		printf(", gets the lease when it writes");
	} else if (state != NULL && strcmp(state, "lost") == 0) {
		printf(", has lost the lease and is ending");
	} else if (offered_to != NULL) {
		printf(", offered to node ");
		print_peer_text(offered_to);
	}
	if (ends != NULL) {
		printf(", not connected, ends in %.1f s", (double)json_integer_value(ends) / 1000);
	}
}
