// SPDX-License-Identifier: Apache-2.0
/*
 * Commands on existing attachments: list them, and detach them. They find the daemons through the
 * state folder, and remove the disk themselves if its daemon has died.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attach/attach.h"
#include "attach/state.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "control/control.h"

enum { SHOWN_BYTES = 4 * ATTACH_PATH_BYTES + 8, STATUS_TIMEOUT_MS = 5000 };

/* --- listing ------------------------------------------------------------------------------- */

enum { DESCRIBED_BYTES = 3 * ERROR_TEXT_BYTES + 32 };

struct status {
	char state[ERROR_TEXT_BYTES]; /* "connected", or the reason why the disk is not connected */
	/* reason of the last disconnection; "": it was always connected */
	char last_reason[ERROR_TEXT_BYTES];
	char server[ERROR_TEXT_BYTES]; /* the host in use; "": the URI has only one */
	json_int_t staged_bytes;       /* -1: unknown */
};

static void take_text(char out[ERROR_TEXT_BYTES], const json_t *value, const char *otherwise)
{
	const char *text = json_string_value(value);

	snprintf(out, ERROR_TEXT_BYTES, "%s", text != NULL ? text : otherwise);
}

static void ask_status(const struct state_entry *entry, struct status *status)
{
	char path[PATH_MAX];
	const json_t *staged;
	json_t *answer = NULL;

	if (!entry->alive || state_path(path, entry->name, "sock", NULL) < 0 ||
		control_ask(path, "status", NULL, STATUS_TIMEOUT_MS, &answer, NULL) < 0) {
		answer = NULL;
	}
	take_text(status->state, json_object_get(answer, "state"),
		entry->alive ? "the daemon does not respond" : "the daemon has died");
	take_text(status->last_reason, json_object_get(answer, "last_reason"), "");
	take_text(status->server, json_object_get(answer, "server"), "");
	staged = json_object_get(answer, "staged_bytes");
	status->staged_bytes = json_is_integer(staged) ? json_integer_value(staged) : -1;
	json_decref(answer);
}

/* Formats the state for people. If the disk is not connected, the state contains the reason. If it
 * is connected again, the last reason is appended. */
static const char *attach_list_describe(const struct status *status, char out[DESCRIBED_BYTES])
{
	bool is_connected = strcmp(status->state, "connected") == 0;
	bool is_past = is_connected && status->last_reason[0] != '\0';
	bool has_server = is_connected && status->server[0] != '\0';

	snprintf(out, DESCRIBED_BYTES, "%s%s%s%s%s%s", status->state, has_server ? " to " : "",
		has_server ? status->server : "", is_past ? " (last lost: " : "",
		is_past ? status->last_reason : "", is_past ? ")" : "");
	return out;
}

enum { COLUMN_SIZE = 2, COLUMN_COUNT = 7 };

/* All rows, the headings first, because a column's width is known only after the last row. */
struct table {
	char *(*rows)[COLUMN_COUNT];
	size_t row_count;
	size_t widths[COLUMN_COUNT];
};

/* Returns the width on a terminal: UTF-8 continuation bytes do not count. */
static size_t attach_list_columns_of(const char *text)
{
	size_t columns = 0;

	for (const char *byte = text; *byte != '\0'; byte++) {
		columns += ((uint8_t)*byte & 0xc0) != 0x80;
	}
	return columns;
}

static int table_add(struct table *table, const char *const texts[COLUMN_COUNT])
{
	char *(*rows)[COLUMN_COUNT] =
		reallocarray(table->rows, table->row_count + 1, sizeof(*table->rows));

	if (rows == NULL) {
		return -ENOMEM;
	}
	table->rows = rows;
	memset(rows[table->row_count], 0, sizeof(*rows));
	table->row_count++;
	for (int i = 0; i < COLUMN_COUNT; i++) {
		char *cell = strdup(texts[i]);

		if (cell == NULL) {
			return -ENOMEM;
		}
		rows[table->row_count - 1][i] = cell;
		table->widths[i] = MAX(table->widths[i], attach_list_columns_of(cell));
	}
	return 0;
}

static int add_row(const struct state_entry *entry, void *context)
{
	static const char *const headings[COLUMN_COUNT] = { "DEVICE", "KIND", "SIZE", "RO", "PID",
		"URI", "STATE" };
	struct table *table = context;
	char size[UNITS_TEXT_BYTES];
	char device[SHOWN_BYTES];
	char kind[4 * sizeof(entry->kind) + 8];
	char uri[SHOWN_BYTES];
	char state[SHOWN_BYTES];
	char pid[16];
	char text[DESCRIBED_BYTES];
	struct status status;
	const char *const texts[COLUMN_COUNT] = {
		log_escape(device, sizeof(device), entry->path, strlen(entry->path)),
		log_escape(kind, sizeof(kind), entry->kind, strlen(entry->kind)),
		units_format_bytes(size, entry->bytes),
		entry->read_only ? "yes" : "no",
		pid,
		log_escape_sentence(uri, sizeof(uri), entry->uri),
		state,
	};
	int rc = table->row_count == 0 ? table_add(table, headings) : 0;

	ask_status(entry, &status);
	log_escape_sentence(state, sizeof(state), attach_list_describe(&status, text));
	snprintf(pid, sizeof(pid), "%d", (int)entry->pid);
	return rc == 0 ? table_add(table, texts) : rc;
}

static void print_cell(const struct table *table, size_t row, int column)
{
	const char *text = table->rows[row][column];
	int missing = (int)(table->widths[column] - attach_list_columns_of(text));

	if (column == COLUMN_COUNT - 1) {
		printf("%s\n", text);
	} else if (column == COLUMN_SIZE) {
		printf("%*s%s ", missing, "", text);
	} else {
		printf("%s%*s ", text, missing, "");
	}
}

static int print_table(struct error *error)
{
	struct table table = { .rows = NULL };
	int rc = state_for_each(add_row, &table, error);

	for (size_t i = 0; i < table.row_count; i++) {
		for (int k = 0; k < COLUMN_COUNT; k++) {
			if (rc == 0) {
				print_cell(&table, i, k);
			}
			free(table.rows[i][k]);
		}
	}
	free(table.rows);
	return rc == -ENOMEM ? error_oom(error) : rc;
}

/* Returns text as a JSON string. Text that is not UTF-8 is escaped. */
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
	struct status status;
	json_t *object;

	ask_status(entry, &status);
	object = json_pack("{s:o, s:s, s:s, s:I, s:b, s:i, s:b, s:o, s:o, s:o, s:o}", "device",
		json_bytes(entry->path), "kind", entry->kind, "uri", entry->uri, "size",
		(json_int_t)entry->bytes, "read_only", entry->read_only, "pid", entry->pid, "alive",
		entry->alive, "state", json_string(status.state), "last_reason",
		status.last_reason[0] != '\0' ? json_string(status.last_reason) : json_null(),
		"server", status.server[0] != '\0' ? json_string(status.server) : json_null(),
		"staged_bytes",
		status.staged_bytes >= 0 ? json_integer(status.staged_bytes) : json_null());
	return json_array_append_new(list, object) == 0 ? 0 : -ENOMEM;
}

static int attach_list_print_json(struct error *error)
{
	json_t *list = json_array();
	int rc = list != NULL ? state_for_each(add_object, list, error) : -ENOMEM;

	if (rc == -ENOMEM) {
		error_oom(error);
	}
	if (rc == 0 && (control_print_json(list, JSON_INDENT(2)) != 0 || putchar('\n') == EOF)) {
		rc = error_set(error, -EIO, "cannot write to standard output");
	}
	json_decref(list);
	return rc;
}

int attach_list(bool json, struct error *error)
{
	int rc = json ? attach_list_print_json(error) : print_table(error);

	if (rc == 0 && fflush(stdout) != 0) {
		rc = -errno;
		error_set(error, rc, "cannot write to standard output: %s", strerror(-rc));
	}
	return rc;
}

/* --- detaching ----------------------------------------------------------------------------- */

struct wish {
	const char *name;
	bool as_shown; /* name is a path as printed by the list */
	char *real;    /* name as an absolute path without symbolic links, or NULL */
	bool by_uri;   /* name is a URI, and not a path or name of a disk */
	bool force;
	uint64_t limit_ns; /* 0: the attachment's own limit */
	bool found;
	size_t uri_count; /* number of disks with this URI */
	char paths[ERROR_TEXT_BYTES];
	struct error *error;
};

static bool attach_list_is_meant(const struct state_entry *entry, const struct wish *wish)
{
	char shown[SHOWN_BYTES];

	if (wish->as_shown) {
		log_escape(shown, sizeof(shown), entry->path, strlen(entry->path));
		return strcmp(shown, wish->name) == 0;
	}
	if (wish->by_uri) {
		return strcmp(entry->uri, wish->name) == 0;
	}
	return strcmp(entry->name, wish->name) == 0 || strcmp(entry->path, wish->name) == 0 ||
	       (wish->real != NULL && strcmp(entry->path, wish->real) == 0);
}

/* Removes the disk of a daemon that has died. */
static int attach_list_remove_stale(const struct state_entry *entry, const struct wish *wish)
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

static int explain_silence(const struct state_entry *entry, const struct wish *wish)
{
	char shown[ERROR_TEXT_BYTES];

	log_escape(shown, sizeof(shown) / 2, entry->path, strlen(entry->path));
	return error_set(wish->error, -ETIMEDOUT,
		"%s: its daemon (process %d) did not respond in time; if it is stopped, resume it "
		"with kill -CONT %d; otherwise end it with kill -KILL %d, which discards unflushed "
		"data, and run gmblock detach again",
		shown, entry->pid, entry->pid, entry->pid);
}

/* Receives the answer. Waits as long as the daemon answers other requests, because the daemon
 * itself enforces the time limit. */
static int receive_watching(struct control_connection *connection, const char *path,
	const struct state_entry *entry, const struct wish *wish, json_t **value_out)
{
	json_t *status = NULL;

	while (!control_wait(connection, STATUS_TIMEOUT_MS)) {
		/* A daemon that does not respond to "status" might have answered the detach and
		 * ended. In this case the answer has arrived. */
		if (control_ask(path, "status", NULL, STATUS_TIMEOUT_MS, &status, NULL) < 0 &&
			!control_wait(connection, 0)) {
			return explain_silence(entry, wish);
		}
		json_decref(status);
		status = NULL;
	}
	return control_receive(connection, CONTROL_TIMEOUT_MS, value_out, wish->error);
}

static void print_note(json_t *note)
{
	const char *text = json_string_value(json_object_get(note, "text"));
	char shown[4 * ERROR_TEXT_BYTES];

	fprintf(stderr, "gmblock: %s\n",
		log_escape_sentence(shown, sizeof(shown), text != NULL ? text : ""));
	json_decref(note);
}

/* Asks the daemon to detach the disk, prints the messages with which the daemon explains a long
 * wait, and waits until the daemon has ended. */
static int detach_living(const struct state_entry *entry, const struct wish *wish)
{
	struct control_connection *connection;
	char path[PATH_MAX];
	json_t *value = NULL;
	int rc = state_path(path, entry->name, "sock", wish->error);

	if (rc != 0) {
		return rc;
	}
	rc = control_connect(path, "detach",
		json_pack("{s:b, s:I}", "force", wish->force, "limit_ms",
			(json_int_t)clock_milliseconds(wish->limit_ns)),
		CONTROL_TIMEOUT_MS, &connection, wish->error);
	if (rc == -ETIMEDOUT) {
		return explain_silence(entry, wish);
	}
	if (rc != 0) {
		return rc;
	}
	while ((rc = receive_watching(connection, path, entry, wish, &value)) > 0) {
		print_note(value);
	}
	if (rc == 0) {
		json_decref(value);
	}
	if (rc == 0 && !control_wait_closed(connection, CONTROL_TIMEOUT_MS)) {
		rc = error_set(wish->error, -ETIMEDOUT,
			"%.200s is detached, but its daemon (process %d) does not exit; end it "
			"with kill -KILL %d",
			entry->path, entry->pid, entry->pid);
	}
	control_disconnect(connection);
	return rc;
}

static int detach_entry(const struct state_entry *entry, void *context)
{
	struct wish *wish = context;

	if (!attach_list_is_meant(entry, wish)) {
		return 0;
	}
	wish->found = true;
	if (!entry->alive) {
		return attach_list_remove_stale(entry, wish);
	}
	return detach_living(entry, wish);
}

/* Counts a disk that has the URI, and adds its path to a list for the error message. */
static int note_uri(const struct state_entry *entry, void *context)
{
	struct wish *wish = context;
	char shown[SHOWN_BYTES];
	size_t used = strlen(wish->paths);

	if (attach_list_is_meant(entry, wish)) {
		log_escape(shown, sizeof(shown), entry->path, strlen(entry->path));
		snprintf(wish->paths + used, sizeof(wish->paths) - used, "%s%s",
			wish->uri_count > 0 ? ", " : "", shown);
		wish->uri_count++;
	}
	return 0;
}

/* Detaches the only disk of a URI. If there are several, the user must name one. */
static int detach_uri(struct wish *wish, struct error *error)
{
	int rc;

	wish->by_uri = true;
	rc = state_for_each(note_uri, wish, error);
	if (rc == 0 && wish->uri_count > 1) {
		return error_set(error, -ENOTUNIQ,
			"%zu disks have this URI, so none was detached; name one of them: %s",
			wish->uri_count, wish->paths);
	}
	if (rc == 0 && wish->uri_count == 1) {
		rc = state_for_each(detach_entry, wish, error);
	}
	wish->by_uri = false;
	return rc;
}

/* Returns the path without symbolic links, or NULL if it does not exist. The file is opened with
 * O_PATH, because any access to it would block if it is a FUSE file whose daemon has died or does
 * not respond. */
static char *attach_list_resolve(const char *name)
{
	int fd = open(name, O_PATH | O_CLOEXEC);
	char link[32];
	char path[PATH_MAX];
	ssize_t bytes = -1;

	if (fd >= 0) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		bytes = readlink(link, path, sizeof(path) - 1);
		close(fd);
	}
	return bytes >= 0 ? strndup(path, (size_t)bytes) : NULL;
}

int attach_detach(const char *name, bool force, uint64_t limit_ns, struct error *error)
{
	struct wish wish = { .name = name, .force = force, .limit_ns = limit_ns, .error = error };
	int rc;

	wish.real = attach_list_resolve(name);
	rc = state_for_each(detach_entry, &wish, error);
	free(wish.real);
	if (rc == 0 && !wish.found) {
		rc = detach_uri(&wish, error);
	}
	if (rc == 0 && !wish.found) {
		wish.as_shown = true;
		rc = state_for_each(detach_entry, &wish, error);
	}
	if (rc == 0 && !wish.found) {
		return error_set(error, -ENOENT,
			"%s is not attached; gmblock attach --list shows the attached disks", name);
	}
	return rc;
}
