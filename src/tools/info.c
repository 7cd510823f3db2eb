// SPDX-License-Identifier: Apache-2.0
#include "tools/show.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gmblock/gmblock.h>

#include "base/clock.h"
#include "base/export_uri.h"
#include "base/log.h"
#include "base/text.h"
#include "client/guest.h"
#include "control/control.h"
#ifdef GMBLOCK_CLAN
#include "gmb/client/probe.h"
#endif
#include "nbd/wire.h"

void info_label(const char *label)
{
	printf("%-*s", INFO_LABEL_COLUMNS, label);
}

/* EXTENTS_MAX: limit on extents in one answer. */
enum { EXTENTS_MAX = 4096, KINDS = 4, LOOK_MS = 100 };

/* Bytes of the first query. The server may search this whole range before it answers, so later
 * queries are larger only while answers are quick. */
#define STEP_FIRST_BYTES (UINT64_C(4) << 30)

/* Indexed by enum gmb_extent_flags. */
static const char *const kind_names[KINDS] = { "data", "hole", "zero", "hole,zero" };

struct map {
	struct gmb_client *client;
	struct gmb_extent *extents;
	struct gmb_extent last; /* not printed yet, because the next extent may continue it */
	uint64_t size;
	uint64_t bytes[KINDS];
	uint64_t counts[KINDS];
	uint64_t end_ns; /* deadline of the whole map */
	struct gmb_queue *queue;
	bool json;
	bool first;
};

static uint32_t tools_info_kind_of(const struct gmb_extent *extent)
{
	return extent->flags & (GMB_EXTENT_HOLE | GMB_EXTENT_ZERO);
}

static void show_extent(struct map *map, const struct gmb_extent *extent)
{
	uint32_t kind = tools_info_kind_of(extent);

	map->bytes[kind] += extent->bytes;
	map->counts[kind]++;
	if (!map->json) {
		printf("%20" PRIu64 " %20" PRIu64 "  %s\n", extent->offset, extent->bytes,
			kind_names[kind]);
		return;
	}
	/* One line per extent, printed immediately, because a map can have millions. */
	printf("%s    { \"offset\": %" PRIu64 ", \"length\": %" PRIu64
	       ", \"type\": \"%s\", \"hole\": %s, \"zero\": %s }",
		map->first ? "\n" : ",\n", extent->offset, extent->bytes, kind_names[kind],
		(kind & GMB_EXTENT_HOLE) != 0 ? "true" : "false",
		(kind & GMB_EXTENT_ZERO) != 0 ? "true" : "false");
	map->first = false;
}

static void tools_info_take_extent(struct map *map, const struct gmb_extent *extent)
{
	if (map->last.bytes > 0 && tools_info_kind_of(&map->last) == tools_info_kind_of(extent)) {
		map->last.bytes += extent->bytes;
		return;
	}
	if (map->last.bytes > 0) {
		show_extent(map, &map->last);
	}
	map->last = *extent;
}

static void tools_info_has_ended(struct gmb_request *request)
{
	*(bool *)request->context = true;
}

/* Runs a request, at most until the deadline of the map. */
static int tools_info_run(struct map *map, struct gmb_request *request)
{
	bool ended = false;
	bool late = false;

	if (clock_now_ns() >= map->end_ns) {
		return -ETIMEDOUT;
	}
	request->done = tools_info_has_ended;
	request->context = &ended;
	gmb_submit(map->client, request);
	while (!ended) {
		uint64_t now_ns = clock_now_ns();

		if (now_ns >= map->end_ns && !late) {
			late = true;
			client_end(map->client); /* the requests of the client fail then */
		}
		(void)gmb_queue_wait(
			map->queue, late ? -1 : (int)clock_milliseconds(map->end_ns - now_ns));
	}
	return late ? -ETIMEDOUT : request->result;
}

static int tools_info_ask(
	struct map *map, uint64_t offset, uint64_t bytes, uint32_t *count, struct error *error)
{
	struct gmb_request request = { 0 };
	char text[ERROR_TEXT_BYTES];
	int err;

	gmb_prepare_status(&request, map->extents, EXTENTS_MAX, offset, bytes);
	err = tools_info_run(map, &request);
	if (err == -ETIMEDOUT && clock_now_ns() >= map->end_ns) {
		return error_set(error, err,
			"the map was not complete in time and ends at offset %" PRIu64
			"; increase --timeout",
			offset);
	}
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
		int err = tools_info_ask(map, offset, bytes, &count, error);

		if (err != 0) {
			return err;
		}
		for (uint32_t i = 0; i < count; i++) {
			tools_info_take_extent(map, &map->extents[i]);
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

/* Prints a string as JSON, in quotes, or null. */
static void dump_text(const char *text)
{
	json_t *value = print_json_text(text);

	if (value == NULL || control_print_json(value, JSON_ENCODE_ANY) != 0) {
		fputs("null", stdout);
	}
	json_decref(value);
}

static void tools_info_print_head(const struct map *map, const char *uri)
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
	char human[UNITS_TEXT_BYTES];

	putchar('\n');
	for (uint32_t kind = 0; kind < KINDS; kind++) {
		if (map->counts[kind] == 0) {
			continue;
		}
		printf("%-9s  %9s  %5.1f %%  %" PRIu64 " bytes in %" PRIu64 " extent%s\n",
			kind_names[kind], units_human_bytes(human, map->bytes[kind]),
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

	tools_info_print_head(map, uri);
	err = walk(map, error);
	if (map->last.bytes > 0) {
		show_extent(map, &map->last);
	}
	/* The totals are printed even after a failure, for the extents that were read, so that the
	 * JSON is complete. */
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

static int tools_info_map_check(const struct gmb_info *info, struct error *error)
{
	if ((info->capabilities & GMB_CAN_STATUS) != 0) {
		return 0;
	}
	return error_set(error, -EOPNOTSUPP,
		info->replies == GMB_REPLIES_PLACED
			? "the protocol of this URI does not report allocation; use an NBD URI of "
			  "the server"
		: info->replies == GMB_REPLIES_SIMPLE
			? "the server does not report allocation: it has no structured replies, "
			  "which base:allocation needs"
			: "the server does not report allocation: it has no base:allocation for "
			  "this export");
}

static int foreign_error(struct error *error, const struct gmb_error *theirs)
{
	return error_set(error, theirs->code, "%s", theirs->text);
}

int info_map(
	const char *uri, uint64_t timeout_ns, uint64_t whole_ns, bool json, struct error *error)
{
	struct gmb_options options = {
		.size = sizeof(options),
		.flags = GMB_OPEN_READ_ONLY | GMB_OPEN_URI_FILES,
		.connections = 1,
		.connect_timeout_ms = clock_milliseconds(timeout_ns),
		.event = show_silent,
	};
	struct gmb_info info = { .size = sizeof(info) };
	struct map map = { .end_ns = clock_now_ns() + whole_ns, .json = json, .first = true };
	struct gmb_queue *queue = NULL;
	struct gmb_error theirs;
	int err = gmb_queue_create(NULL, &queue, &theirs);
	int ended;

	if (err != 0) {
		return foreign_error(error, &theirs);
	}
	err = gmb_open(queue, uri, &options, &map.client, &theirs);
	if (err != 0) {
		foreign_error(error, &theirs);
		goto out;
	}
	gmb_get_info(map.client, &info);
	map.queue = queue;
	map.size = info.bytes;
	err = tools_info_map_check(&info, error);
	if (err != 0) {
		goto out;
	}
	map.extents = calloc(EXTENTS_MAX, sizeof(*map.extents));
	if (map.extents == NULL) {
		err = error_oom(error);
		goto out;
	}
	err = map_show(&map, uri, error);
out:
	gmb_close(map.client);
	ended = gmb_queue_destroy(queue);
	GMB_ASSERT(ended == 0);
	free(map.extents);
	return err;
}

enum {
	/* A string of 4096 bytes, each escaped as \xNN. */
	ESCAPED_BYTES = 4 * NBD_STRING_BYTES_MAX + 8,
};

/* The transmission flags as capabilities; the JSON output uses the same keys. */
static const struct capability {
	uint16_t flag;
	const char *key;
	const char *words;
	const char *meaning;
} capabilities[] = {
	{ NBD_FLAG_READ_ONLY, "read_only", "read-only", "writes are rejected" },
	{ NBD_FLAG_SEND_FLUSH, "flush", "flush", "earlier writes can be made durable" },
	{ NBD_FLAG_SEND_FUA, "fua", "FUA", "single writes can be made durable" },
	{ NBD_FLAG_SEND_TRIM, "trim", "trim", "unused ranges can be deallocated" },
	{ NBD_FLAG_SEND_WRITE_ZEROES, "write_zeroes", "write zeroes",
		"ranges can be zeroed without sending zeroes" },
	{ NBD_FLAG_SEND_FAST_ZERO, "fast_zero", "fast zero",
		"zeroing can be required to be fast or fail" },
	{ NBD_FLAG_SEND_DF, "df", "do not fragment", "unfragmented read replies can be requested" },
	{ NBD_FLAG_CAN_MULTI_CONN, "multi_conn", "multi-conn",
		"all connections see the same data: several can be used at once" },
	{ NBD_FLAG_SEND_CACHE, "cache", "cache", "ranges can be read ahead" },
	{ NBD_FLAG_ROTATIONAL, "rotational", "rotational",
		"the disk rotates: long sequential requests are faster" },
	{ NBD_FLAG_SEND_RESIZE, "resize", "resize", "the size can be changed (experimental)" },
	{ NBD_FLAG_BLOCK_STATUS_PAYLOAD, "block_status_payload", "status payload",
		"block status can be requested for selected contexts" },
};

/* Returns whether the protocol can report the capability. */
static bool is_applicable(const struct nbd_offers *offers, const struct capability *capability)
{
	return offers->flags_known == 0 || (offers->flags_known & capability->flag) != 0;
}

static bool offer_can(const struct nbd_offer *offer, const struct capability *capability)
{
	return (offer->flags & NBD_FLAG_HAS_FLAGS) != 0 && (offer->flags & capability->flag) != 0;
}

/* --- text ---------------------------------------------------------------------------------- */

static void print_line(const char *label, const char *value)
{
	info_label(label);
	printf("%s\n", value);
}

/* Prints text from the server, in quotes, because it can start or end with any character. */
static void print_quoted(const char *label, const char *text)
{
	char escaped[ESCAPED_BYTES];

	info_label(label);
	printf("\"%s\"\n", log_escape(escaped, sizeof(escaped), text, strlen(text)));
}

static void show_size(const char *label, uint64_t bytes)
{
	char human[UNITS_TEXT_BYTES];

	info_label(label);
	if (bytes < 1024) {
		printf("%llu bytes\n", (unsigned long long)bytes);
	} else {
		printf("%s (%llu bytes)\n", units_human_bytes(human, bytes),
			(unsigned long long)bytes);
	}
}

static void print_block_sizes(const struct nbd_offer *offer)
{
	char human[UNITS_TEXT_BYTES];

	info_label("Block sizes");
	if (!offer->sizes_known) {
		printf("not reported: clients use 512-byte blocks and up to 32 MiB per request\n");
		return;
	}
	printf("minimum %u, preferred %u, largest payload ", offer->sizes.minimum,
		offer->sizes.preferred);
	if (offer->sizes.payload_max == UINT32_MAX) {
		printf("unlimited\n");
	} else {
		printf("%s (%u)\n", units_human_bytes(human, offer->sizes.payload_max),
			offer->sizes.payload_max);
	}
}

/* Only gmb reports this; NBD has no field for it. */
static void print_atomic(const struct nbd_offer *offer)
{
	char human[UNITS_TEXT_BYTES];

	if (!offer->atomic_known) {
		return;
	}
	info_label("Atomic writes");
	if (offer->atomic_bytes == 0) {
		printf("not guaranteed\n");
	} else {
		printf("with FUA, up to %s (%u), in whole blocks of the preferred size\n",
			units_human_bytes(human, offer->atomic_bytes), offer->atomic_bytes);
	}
}

static void print_contexts(const struct nbd_offers *offers, const struct nbd_offer *offer)
{
	if (offer->contexts_refusal != NULL) {
		info_label("Contexts");
		printf("not reported: %s\n", offer->contexts_refusal);
		return;
	}
	if (!offer->contexts_known || offer->context_count == 0) {
		print_line("Contexts", offers->style == NBD_REPLIES_SIMPLE
					       ? "none (they need structured replies)"
					       : "none");
		return;
	}
	for (uint32_t i = 0; i < offer->context_count; i++) {
		print_quoted(i == 0 ? "Contexts" : "", offer->contexts[i]);
	}
}

static void print_offer(const struct nbd_offers *offers, const struct nbd_offer *offer)
{
	if (!offers->is_nameless) {
		print_quoted("Export", offer->name);
	}
	if (offer->canonical_name != NULL && strcmp(offer->canonical_name, offer->name) != 0) {
		print_quoted("Canonical name", offer->canonical_name);
	}
	if (offer->description != NULL) {
		print_quoted("Description", offer->description);
	}
	if (offer->refusal != NULL) {
		print_line("Not usable", offer->refusal);
	}
	if (!offer->known) {
		return;
	}
	show_size("Size", offer->size);
	print_block_sizes(offer);
	print_atomic(offer);
	if (offers->flags_known == 0) {
		print_contexts(offers, offer);
	}
	for (size_t i = 0; i < ARRAY_COUNT(capabilities); i++) {
		if (!is_applicable(offers, &capabilities[i])) {
			continue;
		}
		info_label(i == 0 ? "Capabilities" : "");
		printf("%-3s  %-*s %s\n", offer_can(offer, &capabilities[i]) ? "yes" : "no",
			INFO_LABEL_COLUMNS, capabilities[i].words, capabilities[i].meaning);
	}
}

static void print_negotiated(const struct nbd_offers *offers)
{
	static const char *const styles[] = {
		[NBD_REPLIES_SIMPLE] = "simple replies",
		[NBD_REPLIES_STRUCTURED] = "structured replies",
		[NBD_REPLIES_EXTENDED] = "extended headers (64-bit lengths)",
	};

	printf("%s, %s%s\n", offers->fixed ? "fixed newstyle" : "first newstyle (not fixed)",
		styles[offers->style], offers->protection.version != NULL ? "" : ", no TLS");
	if (offers->protection.version != NULL) {
		info_label("TLS");
		printf("%s, %s, %s\n", offers->protection.version, offers->protection.cipher,
			offers->protection.verified ? "the server is verified"
						    : "the server is not verified");
	}
}

/* Stores the address of the server that has answered. Returns false if the URI names only one. */
static bool host_in_use(
	const char *text, const struct nbd_offers *offers, char out[EXPORT_URI_LABEL_BYTES])
{
	struct export_uri one;
	struct export_uri uri;
	bool several;

	if (export_uri_parse(text, &uri, NULL) != 0) {
		return false;
	}
	several = export_uri_hosts(&uri) > 1;
	if (several) {
		one = export_uri_at(&uri, offers->host);
		export_uri_label(out, &one);
	}
	export_uri_fini(&uri);
	return several;
}

int info_show_text(const char *uri, const struct nbd_offers *offers, bool list, struct error *error)
{
	char host[EXPORT_URI_LABEL_BYTES];

	print_quoted("Server", uri);
	if (host_in_use(uri, offers, host)) {
		print_line("Host in use", host);
	}
	info_label("Protocol");
	if (offers->protocol != NULL) {
		puts(offers->protocol);
	} else {
		print_negotiated(offers);
	}
	if (list) {
		info_label("Exports");
		printf("%u\n", offers->count);
	}
	for (uint32_t i = 0; i < offers->count; i++) {
		if (list) {
			putchar('\n');
		}
		print_offer(offers, &offers->list[i]);
	}
	for (uint32_t i = 0; i < offers->note_count; i++) {
		if (i == 0) {
			putchar('\n');
		}
		print_line("Note", offers->notes[i]);
	}
	return print_end(error);
}

/* --- JSON ---------------------------------------------------------------------------------- */

static json_t *json_texts(char *const *texts, uint32_t count)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < count; i++) {
		json_array_append_new(array, print_json_text(texts[i]));
	}
	return array;
}

static json_t *json_capabilities(const struct nbd_offers *offers, const struct nbd_offer *offer)
{
	json_t *object = json_object();

	for (size_t i = 0; i < ARRAY_COUNT(capabilities); i++) {
		const struct capability *capability = &capabilities[i];

		json_object_set_new(object, capability->key,
			is_applicable(offers, capability)
				? json_boolean(offer_can(offer, capability))
				: json_null());
	}
	return object;
}

static json_t *json_block_sizes(const struct nbd_offer *offer)
{
	json_t *object;

	if (!offer->sizes_known) {
		return json_null();
	}
	object = json_object();
	json_object_set_new(object, "minimum", json_integer(offer->sizes.minimum));
	json_object_set_new(object, "preferred", json_integer(offer->sizes.preferred));
	json_object_set_new(object, "maximum_payload",
		offer->sizes.payload_max == UINT32_MAX ? json_null()
						       : json_integer(offer->sizes.payload_max));
	return object;
}

static json_t *json_offer(const struct nbd_offers *offers, const struct nbd_offer *offer)
{
	json_t *object = json_object();

	json_object_set_new(
		object, "name", print_json_text(offers->is_nameless ? NULL : offer->name));
	json_object_set_new(object, "canonical_name", print_json_text(offer->canonical_name));
	json_object_set_new(object, "description", print_json_text(offer->description));
	json_object_set_new(object, "refusal", print_json_text(offer->refusal));
	json_object_set_new(
		object, "size", offer->known ? json_integer((json_int_t)offer->size) : json_null());
	json_object_set_new(object, "block_sizes", json_block_sizes(offer));
	json_object_set_new(object, "atomic_bytes",
		offer->atomic_known ? json_integer(offer->atomic_bytes) : json_null());
	json_object_set_new(object, "transmission_flags",
		offer->known && offers->flags_known == 0 ? json_integer(offer->flags)
							 : json_null());
	json_object_set_new(object, "capabilities",
		offer->known ? json_capabilities(offers, offer) : json_null());
	json_object_set_new(object, "contexts",
		offer->contexts_known ? json_texts(offer->contexts, offer->context_count)
				      : json_null());
	json_object_set_new(object, "contexts_refusal", print_json_text(offer->contexts_refusal));
	return object;
}

json_t *info_json_tls(const struct nbd_protection *protection)
{
	json_t *object;

	if (protection->version == NULL) {
		return json_false();
	}
	object = json_object();
	json_object_set_new(object, "version", json_string(protection->version));
	json_object_set_new(object, "cipher", json_string(protection->cipher));
	json_object_set_new(object, "verified", json_boolean(protection->verified));
	return object;
}

static json_t *json_protocol(const struct nbd_offers *offers)
{
	json_t *object = json_object();

	if (offers->protocol != NULL) {
		json_object_set_new(object, "handshake", json_string(offers->protocol));
		json_object_set_new(object, "replies", json_string("placed"));
	} else {
		json_object_set_new(object, "handshake",
			json_string(offers->fixed ? "fixed-newstyle" : "newstyle"));
		json_object_set_new(
			object, "replies", json_string(nbd_reply_style_name(offers->style)));
	}
	json_object_set_new(object, "tls", info_json_tls(&offers->protection));
	return object;
}

int info_show_json(const char *uri, const struct nbd_offers *offers, bool list, const char *refusal,
	struct error *error)
{
	json_t *root = json_object();
	json_t *exports = json_array();
	uint32_t first = !list && refusal != NULL ? 1 : 0;
	char host[EXPORT_URI_LABEL_BYTES];

	for (uint32_t i = first; i < offers->count; i++) {
		json_array_append_new(exports, json_offer(offers, &offers->list[i]));
	}
	json_object_set_new(root, "uri", print_json_text(uri));
	json_object_set_new(
		root, "host", host_in_use(uri, offers, host) ? print_json_text(host) : json_null());
	json_object_set_new(root, "error", print_json_text(refusal));
	json_object_set_new(root, "protocol", json_protocol(offers));
	json_object_set_new(root, "exports", exports);
	json_object_set_new(
		root, "notes", json_texts((char *const *)offers->notes, offers->note_count));
	return print_json(root, error);
}

/* --- over gmb ------------------------------------------------------------------------------ */

#ifdef GMBLOCK_CLAN
static struct nbd_text tools_info_text_of(struct message_text text)
{
	return (struct nbd_text){ .bytes = (const char *)text.bytes, .length = text.length };
}

/* Stores an export of a gmb server in NBD's terms. gmb has every request of NBD, so most of the
 * flags are always set. */
static int tools_info_take_export(
	void *context, uint16_t version, const struct native_export *export, struct error *error)
{
	static const char allocation[] = "base:allocation";
	const struct nbd_text base = { .bytes = allocation, .length = sizeof(allocation) - 1 };
	const uint32_t always = NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA |
				NBD_FLAG_SEND_CACHE | NBD_FLAG_CAN_MULTI_CONN | NBD_FLAG_SEND_DF;
	const uint32_t changes =
		NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO;
	bool writable = (export->head.flags & NATIVE_EXPORT_WRITABLE) != 0;
	bool rotates = (export->head.flags & NATIVE_EXPORT_ROTATIONAL) != 0;
	struct nbd_offers *offers = context;
	struct nbd_offer *offer;
	int err = nbd_offers_add(
		offers, tools_info_text_of(export->name), tools_info_text_of(export->text), error);

	offers->protocol = native_version_name(version);
	if (err != 0) {
		return err;
	}
	offer = &offers->list[offers->count - 1];
	offer->known = true;
	offer->size = export->head.bytes;
	offer->flags = (uint16_t)(always | (writable ? changes : (uint32_t)NBD_FLAG_READ_ONLY) |
				  (rotates ? (uint32_t)NBD_FLAG_ROTATIONAL : 0));
	offer->sizes_known = true;
	offer->sizes = (struct nbd_block_sizes){ .minimum = 1,
		.preferred = export->head.block_preferred,
		.payload_max = export->head.payload_max };
	offer->atomic_known = version >= NATIVE_VERSION_ATOMIC;
	offer->atomic_bytes = export->head.atomic_bytes;
	offer->contexts_known = true;
	return nbd_offers_add_context(offers, offer, base, error);
}

static int probe_gmb(const char *uri, bool list, uint64_t timeout_ns, struct nbd_offers *offers,
	struct error *error)
{
	const struct probe_options options = {
		.uri = uri,
		.all = list,
		.warns = true,
		.timeout_ns = timeout_ns,
	};

	*offers = (struct nbd_offers){ .protocol = "gmb", .listed = list };
	return native_probe(&options, &offers->host, tools_info_take_export, offers, error);
}
#else
static int probe_gmb(const char *uri, bool list, uint64_t timeout_ns, struct nbd_offers *offers,
	struct error *error)
{
	*offers = (struct nbd_offers){ 0 };
	return error_set(error, -EPROTONOSUPPORT, "%s: gmb needs an x86-64 processor", uri);
}
#endif

/* --- over vhost-user-blk ---------------------------------------------------------------------- */

/* Stores the export of a client in NBD's terms. */
static int take_client(
	const struct gmb_client *client, struct nbd_offers *offers, struct error *error)
{
	static const struct {
		uint32_t capability;
		uint16_t flag;
	} flags[] = {
		{ GMB_CAN_FLUSH, NBD_FLAG_SEND_FLUSH },
		{ GMB_CAN_TRIM, NBD_FLAG_SEND_TRIM },
		{ GMB_CAN_ZERO, NBD_FLAG_SEND_WRITE_ZEROES },
	};
	struct gmb_info info = { .size = sizeof(info) };
	const char *name = gmb_export_name(client);
	const struct nbd_text text = { .bytes = name, .length = (uint32_t)strlen(name) };
	struct nbd_offer *offer;
	int err = nbd_offers_add(offers, text, (struct nbd_text){ .bytes = "" }, error);

	if (err != 0) {
		return err;
	}
	gmb_get_info(client, &info);
	offer = &offers->list[offers->count - 1];
	offer->known = true;
	offer->size = info.bytes;
	offer->flags = NBD_FLAG_HAS_FLAGS;
	for (size_t i = 0; i < ARRAY_COUNT(flags); i++) {
		offer->flags |= (info.capabilities & flags[i].capability) != 0 ? flags[i].flag : 0;
	}
	if ((info.capabilities & GMB_CAN_WRITE) == 0) {
		offer->flags |= NBD_FLAG_READ_ONLY;
	}
	offer->sizes_known = true;
	offer->sizes = (struct nbd_block_sizes){ .minimum = info.block_minimum,
		.preferred = info.block_preferred,
		.payload_max = info.payload_max };
	return 0;
}

static int probe_vhost(
	const char *uri, uint64_t timeout_ns, struct nbd_offers *offers, struct error *error)
{
	struct gmb_options options = {
		.size = sizeof(options),
		.connect_timeout_ms = clock_milliseconds(timeout_ns),
		.event = show_silent,
	};
	struct gmb_client *client = NULL;
	struct gmb_queue *queue = NULL;
	struct gmb_error theirs;
	int err = gmb_queue_create(NULL, &queue, &theirs);
	int ended;

	*offers = (struct nbd_offers){ .protocol = "vhost-user-blk",
		.flags_known = NBD_FLAG_READ_ONLY | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_TRIM |
			       NBD_FLAG_SEND_WRITE_ZEROES,
		.is_nameless = true,
		.listed = true };
	if (err != 0) {
		return foreign_error(error, &theirs);
	}
	err = gmb_open(queue, uri, &options, &client, &theirs);
	err = err != 0 ? foreign_error(error, &theirs) : take_client(client, offers, error);
	gmb_close(client);
	ended = gmb_queue_destroy(queue);
	GMB_ASSERT(ended == 0);
	return err;
}

int info_probe(const char *protocol, const char *uri, bool list, uint64_t timeout_ns,
	struct nbd_offers *offers, struct error *error)
{
	return strcmp(protocol, "gmb") == 0 ? probe_gmb(uri, list, timeout_ns, offers, error)
					    : probe_vhost(uri, timeout_ns, offers, error);
}
