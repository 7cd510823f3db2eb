// SPDX-License-Identifier: Apache-2.0
#include "server/lease/leases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"

static const char file_name[] = "leases";

#define FAILURE_LOG_NS UINT64_C(1000000000)

struct leases {
	struct lease_book *book;
	const struct state_folder *folder; /* without a descriptor: no record */
	uint64_t failed_ns;		   /* when a failed write was logged last */
};

static const char *const mode_words[] = {
	[LEASE_SHARED] = "shared", [LEASE_EXCLUSIVE] = "exclusive"
};
static const char *const state_words[] = {
	[LEASE_HOLDS] = "holds", [LEASE_PENDING] = "pending", [LEASE_LOST] = "lost"
};

/* --- a holder as JSON ------------------------------------------------------------------------- */

static json_t *hex_of(const void *bytes, size_t count)
{
	char text[2 * sizeof(struct takeover_principal) + 1];

	GMB_ASSERT(2 * count < sizeof(text));
	for (size_t i = 0; i < count; i++) {
		snprintf(text + 2 * i, 3, "%02x", ((const uint8_t *)bytes)[i]);
	}
	return json_string(text);
}

static bool hex_take(const json_t *object, const char *key, void *bytes, size_t count)
{
	const char *text = json_string_value(json_object_get(object, key));

	if (text == NULL || strlen(text) != 2 * count) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		int high = text_hex_digit(text[2 * i]);
		int low = text_hex_digit(text[2 * i + 1]);

		if (high < 0 || low < 0) {
			return false;
		}
		((uint8_t *)bytes)[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

/* Public facts about a holder, for people and programs. */
static json_t *show_holder(const struct lease_view *view)
{
	json_t *object = json_pack("{s:s%, s:s, s:s, s:s, s:I}", "export", view->export,
		(size_t)view->export_bytes, "mode", mode_words[view->mode], "state",
		state_words[view->state], "client", view->name, "connections",
		(json_int_t)view->connection_count);

	if (object != NULL && view->node[0] != '\0') {
		json_object_set_new(object, "node", json_string(view->node));
	}
	if (object != NULL && view->offered_to[0] != '\0') {
		json_object_set_new(object, "offered_to", json_string(view->offered_to));
	}
	if (object != NULL && view->left_ms != UINT32_MAX) {
		json_object_set_new(object, "ends_in_ms", json_integer(view->left_ms));
	}
	return object;
}

/* Everything that must outlast this process. with_ids: also the numbers of the connections, which
 * another process takes over. */
static json_t *write_holder(const struct lease_view *view, bool with_ids)
{
	const struct lease_owner *owner = &view->owner;
	json_t *ids = json_array();
	json_t *object =
		json_pack("{s:s%, s:s, s:s, s:s, s:s, s:s, s:I, s:b, s:b, s:o?, s:o?, s:o?, "
			  "s:I, s:o?}",
			"export", view->export, (size_t)view->export_bytes, "mode",
			mode_words[view->mode], "state", state_words[view->state], "client",
			view->name, "node", view->node, "offered_to", view->offered_to, "ms",
			(json_int_t)view->ms, "reader", view->is_reader, "named", owner->is_named,
			"id", hex_of(owner->id, sizeof(owner->id)), "principal",
			hex_of(owner->principal.bytes, sizeof(owner->principal.bytes)), "address",
			hex_of(owner->address, sizeof(owner->address)), "pid",
			(json_int_t)owner->pid, "ids", ids);

	for (uint32_t i = 0; object != NULL && with_ids && i < view->connection_count; i++) {
		json_array_append_new(ids, json_integer((json_int_t)view->connections[i]));
	}
	return object;
}

static int word_take(const json_t *object, const char *key, const char *const *words, int count)
{
	const char *word = json_string_value(json_object_get(object, key));

	for (int i = 0; word != NULL && i < count; i++) {
		if (words[i] != NULL && strcmp(words[i], word) == 0) {
			return i;
		}
	}
	return -1;
}

static const char *text_take(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text != NULL ? text : "";
}

/* Adds the holder that an object describes. */
static int read_holder(struct leases *leases, const json_t *object)
{
	const json_t *export = json_object_get(object, "export");
	const json_t *ids = json_object_get(object, "ids");
	uint64_t *connections = calloc(json_array_size(ids) + 1, sizeof(*connections));
	int mode = word_take(object, "mode", mode_words, ARRAY_COUNT(mode_words));
	int state = word_take(object, "state", state_words, ARRAY_COUNT(state_words));
	json_int_t ms = json_integer_value(json_object_get(object, "ms"));
	struct lease_view view = {
		.export = json_string_value(export),
		.export_bytes = (uint32_t)json_string_length(export),
		.owner = { .is_named = json_is_true(json_object_get(object, "named")),
			.pid = (int32_t)json_integer_value(json_object_get(object, "pid")) },
		.ms = (uint32_t)ms,
		.is_reader = json_is_true(json_object_get(object, "reader")),
		.name = text_take(object, "client"),
		.node = text_take(object, "node"),
		.offered_to = text_take(object, "offered_to"),
		.connections = connections,
		.connection_count = (uint32_t)json_array_size(ids),
	};
	int rc = connections == NULL ? -ENOMEM : 0;

	if (view.export == NULL || mode < 0 || state < 0 || ms < 0 || ms > LEASE_MS_MAX ||
		!hex_take(object, "id", view.owner.id, sizeof(view.owner.id)) ||
		!hex_take(object, "principal", view.owner.principal.bytes,
			sizeof(view.owner.principal.bytes)) ||
		!hex_take(object, "address", view.owner.address, sizeof(view.owner.address))) {
		rc = rc ?: -EINVAL;
	}
	for (uint32_t i = 0; rc == 0 && i < view.connection_count; i++) {
		connections[i] = (uint64_t)json_integer_value(json_array_get(ids, i));
	}
	view.mode = (enum lease_mode)MAX(mode, 0);
	view.state = (enum lease_state)MAX(state, 0);
	rc = rc ?: lease_book_restore(leases->book, &view, clock_now_ns());
	free(connections);
	return rc;
}

/* --- the record ------------------------------------------------------------------------------- */

static int record_look(void *context, const struct lease_view *view)
{
	json_t *array = context;

	if (!view->owner.is_named || view->state == LEASE_LOST) {
		return 0;
	}
	return json_array_append_new(array, write_holder(view, false)) == 0 ? 0 : -ENOMEM;
}

/* Called on a worker thread of an engine; see struct lease_desk. */
static int record_write(void *context, struct lease_book *book)
{
	struct leases *leases = context;
	json_t *array = json_array();
	json_t *root = json_pack("{s:i, s:o?}", "version", 1, "leases", array);
	struct error error = { 0 };
	char *text = NULL;
	int rc = root == NULL ? -ENOMEM : lease_book_each(book, clock_now_ns(), record_look, array);

	if (rc == 0) {
		text = json_dumps(root, JSON_INDENT(1));
		rc = text == NULL ? -ENOMEM : 0;
	}
	if (rc < 0) {
		error_oom_for(&error, "the record of leases");
	} else {
		rc = state_folder_replace(leases->folder, file_name, text, strlen(text), &error);
	}
	json_decref(root);
	free(text);
	/* -EBUSY: an upgrade is in progress, and the old process has the record. */
	if (rc < 0 && rc != -EBUSY && clock_now_ns() - leases->failed_ns >= FAILURE_LOG_NS) {
		leases->failed_ns = clock_now_ns();
		log_error("leases: %s", error.text);
	}
	return rc;
}

static int record_parse(struct leases *leases, const char *text, size_t bytes)
{
	json_t *root = json_loadb(text, bytes, 0, NULL);
	const json_t *array = json_object_get(root, "leases");
	int rc = json_integer_value(json_object_get(root, "version")) == 1 && json_is_array(array)
			 ? 0
			 : -EPROTO;

	for (size_t i = 0; rc == 0 && i < json_array_size(array); i++) {
		rc = read_holder(leases, json_array_get(array, i));
	}
	json_decref(root);
	return rc;
}

static int record_read(struct leases *leases, struct error *error)
{
	char *text = NULL;
	size_t bytes = 0;
	int rc = state_folder_read(leases->folder, file_name, &text, &bytes);

	if (rc == -ENOENT) {
		return 0;
	}
	rc = rc ?: record_parse(leases, text, bytes);
	free(text);
	return rc == 0 ? 0
		       : error_set(error, rc,
				 "cannot read the leases in %s/%s: %s; if no client has a lease, "
				 "remove the file",
				 quote(leases->folder->path), file_name,
				 rc == -EPROTO || rc == -EINVAL ? "the file is damaged"
								: strerror(-rc));
}

int leases_open(const struct state_folder *folder, bool is_taking, struct leases **leases_out,
	struct error *error)
{
	struct leases *leases = calloc(1, sizeof(*leases));
	const struct lease_desk desk = { .record = record_write, .context = leases };
	int rc = 0;

	if (leases == NULL) {
		return error_oom_for(error, "the leases");
	}
	leases->folder = folder;
	leases->book = lease_book_create();
	if (leases->book == NULL) {
		rc = error_oom_for(error, "the leases");
	} else if (folder->fd >= 0) {
		/* When this process serves, it writes the record even if no lease changes, because
		 * the old process might not have had a record. */
		lease_book_set_desk(leases->book, &desk, is_taking);
		rc = is_taking ? 0 : record_read(leases, error);
	}
	if (rc < 0) {
		leases_close(leases);
		return rc;
	}
	*leases_out = leases;
	return 0;
}

void leases_close(struct leases *leases)
{
	if (leases != NULL) {
		lease_book_destroy(leases->book);
		free(leases);
	}
}

struct lease_book *leases_book(struct leases *leases)
{
	return leases->book;
}

void leases_take_over(struct leases *leases)
{
	/* A failure is logged. It is repeated with the next change. */
	(void)!lease_book_record(leases->book);
}

/* --- upgrades and lists ----------------------------------------------------------------------- */

struct telling {
	int (*send)(void *context, const char *text);
	void *context;
};

static int tell_look(void *context, const struct lease_view *view)
{
	const struct telling *telling = context;
	json_t *object = view->state != LEASE_LOST ? write_holder(view, true) : NULL;
	char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
	int rc = view->state == LEASE_LOST		? 0
		 : text == NULL				? -ENOMEM
		 : strlen(text) > LEASES_TEXT_BYTES_MAX ? -E2BIG
							: telling->send(telling->context, text);

	json_decref(object);
	free(text);
	return rc;
}

int leases_tell(struct leases *leases, int (*send)(void *context, const char *text), void *context)
{
	struct telling telling = { .send = send, .context = context };

	return lease_book_each(leases->book, clock_now_ns(), tell_look, &telling);
}

int leases_take(struct leases *leases, const char *text, size_t bytes, struct error *error)
{
	json_t *object = json_loadb(text, bytes, 0, NULL);
	int rc = object != NULL ? read_holder(leases, object) : -EINVAL;

	json_decref(object);
	return rc < 0 ? error_set(error, rc, "cannot take over a lease: %s", strerror(-rc)) : 0;
}

struct listing {
	const struct export *export; /* or NULL */
	json_t *array;
};

static int list_look(void *context, const struct lease_view *view)
{
	const struct listing *listing = context;

	if (listing->export != NULL &&
		(listing->export->name_bytes != view->export_bytes ||
			memcmp(listing->export->name, view->export, view->export_bytes) != 0)) {
		return 0;
	}
	return json_array_append_new(listing->array, show_holder(view)) == 0 ? 0 : -ENOMEM;
}

json_t *leases_list(struct leases *leases, const struct export *export)
{
	struct listing listing = { .export = export, .array = json_array() };

	if (listing.array != NULL &&
		lease_book_each(leases->book, clock_now_ns(), list_look, &listing) < 0) {
		json_decref(listing.array);
		return NULL;
	}
	return listing.array;
}
