// SPDX-License-Identifier: Apache-2.0
/*
 * What the other commands do with attachments: show them, and have them removed.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "attach/attach.h"
#include "attach/control.h"
#include "attach/device.h"
#include "attach/state.h"
#include "base/log.h"
#include "base/units.h"

enum { URI_COLUMNS = 48, SHOWN_BYTES = 4 * ATTACH_PATH_BYTES + 8 };

/* --- listing ------------------------------------------------------------------------------- */

/* "connected", or what is wrong. */
static const char *describe(const struct state_entry *entry, struct error *answer)
{
	if (!entry->alive) {
		return "the daemon has died";
	}
	if (control_ask(entry->name, "status", false, answer) != 0) {
		return "the daemon does not answer";
	}
	return answer->text;
}

static int print_row(const struct state_entry *entry, void *context)
{
	uint32_t *rows = context;
	char size[UNITS_TEXT_BYTES];
	char device[SHOWN_BYTES];
	char state[SHOWN_BYTES];
	struct error answer;
	const char *text = describe(entry, &answer);

	if ((*rows)++ == 0) {
		printf("%-16s %-5s %10s %-3s %-8s %-*s %s\n", "DEVICE", "KIND", "SIZE", "RO", "PID",
			URI_COLUMNS, "URI", "STATE");
	}
	printf("%-16s %-5s %10s %-3s %-8d %-*s %s\n",
		log_escape(device, sizeof(device), entry->path, strlen(entry->path)), entry->kind,
		units_format_bytes(size, entry->bytes), entry->read_only ? "yes" : "no",
		(int)entry->pid, URI_COLUMNS, entry->uri,
		log_escape(state, sizeof(state), text, strlen(text)));
	return 0;
}

/* Any bytes as JSON, which is UTF-8: others are escaped. */
static json_t *json_bytes(const char *text)
{
	char shown[SHOWN_BYTES];
	json_t *value = json_string(text);

	return value != NULL ? value
			     : json_string(log_escape(shown, sizeof(shown), text, strlen(text)));
}

static int add_object(const struct state_entry *entry, void *context)
{
	json_t *list = context;
	struct error answer;
	json_t *object = json_pack("{s:o, s:s, s:s, s:I, s:b, s:i, s:b, s:o}", "device",
		json_bytes(entry->path), "kind", entry->kind, "uri", entry->uri, "size",
		(json_int_t)entry->bytes, "read_only", entry->read_only, "pid", entry->pid, "alive",
		entry->alive, "state", json_bytes(describe(entry, &answer)));

	return json_array_append_new(list, object) == 0 ? 0 : -ENOMEM;
}

static int print_json(struct error *error)
{
	json_t *list = json_array();
	int rc = list != NULL ? state_for_each(add_object, list, error) : -ENOMEM;

	if (rc == -ENOMEM) {
		error_set(error, rc, "out of memory");
	}
	if (rc == 0 && (json_dumpf(list, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF)) {
		rc = error_set(error, -EIO, "cannot write to standard output");
	}
	json_decref(list);
	return rc;
}

int attach_list(bool json, struct error *error)
{
	uint32_t rows = 0;
	int rc = json ? print_json(error) : state_for_each(print_row, &rows, error);

	if (rc == 0 && fflush(stdout) != 0) {
		rc = -errno;
		error_set(error, rc, "cannot write to standard output: %s", strerror(-rc));
	}
	return rc;
}

/* --- detaching ----------------------------------------------------------------------------- */

struct wish {
	const char *name;
	bool as_shown; /* name is a path as the list shows it */
	char *real;    /* the same as a path without links, or NULL */
	bool force;
	bool found;
	struct error *error;
};

static bool is_meant(const struct state_entry *entry, const struct wish *wish)
{
	char shown[SHOWN_BYTES];

	if (wish->as_shown) {
		log_escape(shown, sizeof(shown), entry->path, strlen(entry->path));
		return strcmp(shown, wish->name) == 0;
	}
	return strcmp(entry->name, wish->name) == 0 || strcmp(entry->path, wish->name) == 0 ||
	       strcmp(entry->uri, wish->name) == 0 ||
	       (wish->real != NULL && strcmp(entry->path, wish->real) == 0);
}

/* Does what a daemon that has died cannot. */
static int remove_stale(const struct state_entry *entry, const struct wish *wish)
{
	int rc;

	if (strcmp(entry->kind, "ublk") == 0) {
		rc = ublk_device_remove(entry->number, wish->force, wish->error);
	} else if (strcmp(entry->kind, "nbd") == 0) {
		rc = nbd_device_remove(entry->number, wish->force, wish->error);
	} else {
		rc = fuse_device_remove(entry->path, wish->force, wish->error);
		if (rc == 0 && entry->made_file) {
			remove(entry->path);
		}
	}
	if (rc == 0) {
		state_remove(entry->name);
	}
	return rc;
}

static int detach_entry(const struct state_entry *entry, void *context)
{
	struct wish *wish = context;

	if (!is_meant(entry, wish)) {
		return 0;
	}
	wish->found = true;
	if (!entry->alive) {
		return remove_stale(entry, wish);
	}
	return control_ask(entry->name, wish->force ? "detach force" : "detach", true, wish->error);
}

int attach_detach(const char *name, bool force, struct error *error)
{
	struct wish wish = { .name = name, .force = force, .error = error };
	int rc;

	/* Also through a mount whose program has died, where the last part cannot be resolved. */
	wish.real = realpath(name, NULL);
	rc = state_for_each(detach_entry, &wish, error);
	free(wish.real);
	if (rc == 0 && !wish.found) {
		wish.as_shown = true;
		rc = state_for_each(detach_entry, &wish, error);
	}
	if (rc == 0 && !wish.found) {
		return error_set(error, -ENOENT,
			"%s is not attached; gmblock attach --list shows what is", name);
	}
	return rc;
}
