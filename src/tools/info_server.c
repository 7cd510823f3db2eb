// SPDX-License-Identifier: Apache-2.0
#include "tools/info.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "nbd/wire.h"
#include "tools/print.h"

enum {
	/* A string of 4096 bytes, each as \xNN. */
	ESCAPED_BYTES = 4 * NBD_STRING_BYTES_MAX + 8,
	LABEL_COLUMNS = 16,
};

/* The transmission flags as capabilities; the keys are those of the JSON output. */
static const struct capability {
	uint16_t flag;
	const char *key;
	const char *words;
	const char *meaning;
} capabilities[] = {
	{ NBD_FLAG_READ_ONLY, "read_only", "read-only", "writing is refused" },
	{ NBD_FLAG_SEND_FLUSH, "flush", "flush", "earlier writes can be made durable" },
	{ NBD_FLAG_SEND_FUA, "fua", "FUA", "single writes can be made durable" },
	{ NBD_FLAG_SEND_TRIM, "trim", "trim", "unused ranges can be given back" },
	{ NBD_FLAG_SEND_WRITE_ZEROES, "write_zeroes", "write zeroes",
		"ranges can be zeroed without sending zeroes" },
	{ NBD_FLAG_SEND_FAST_ZERO, "fast_zero", "fast zero",
		"zeroing can be asked to be quick or fail" },
	{ NBD_FLAG_SEND_DF, "df", "do not fragment", "a read can be asked to come in one piece" },
	{ NBD_FLAG_CAN_MULTI_CONN, "multi_conn", "multi-conn",
		"several connections see the same data" },
	{ NBD_FLAG_SEND_CACHE, "cache", "cache", "ranges can be read ahead" },
	{ NBD_FLAG_ROTATIONAL, "rotational", "rotational", "the disk turns: prefer long accesses" },
	{ NBD_FLAG_SEND_RESIZE, "resize", "resize", "the size can be changed (experimental)" },
	{ NBD_FLAG_BLOCK_STATUS_PAYLOAD, "block_status_payload", "status payload",
		"block status can be asked for chosen contexts" },
};

static bool offer_can(const struct nbd_offer *offer, const struct capability *capability)
{
	return (offer->flags & NBD_FLAG_HAS_FLAGS) != 0 && (offer->flags & capability->flag) != 0;
}

/* --- text ---------------------------------------------------------------------------------- */

static void print_label(const char *label)
{
	printf("%-*s", LABEL_COLUMNS, label);
}

static void print_line(const char *label, const char *value)
{
	print_label(label);
	printf("%s\n", value);
}

/* Text from the server, in quotes because it may begin or end with anything. */
static void print_quoted(const char *label, const char *text)
{
	char escaped[ESCAPED_BYTES];

	print_label(label);
	printf("\"%s\"\n", log_escape(escaped, sizeof(escaped), text, strlen(text)));
}

static void show_size(const char *label, uint64_t bytes)
{
	char human[PRINT_SIZE_BYTES];

	print_label(label);
	if (bytes < 1024) {
		printf("%llu bytes\n", (unsigned long long)bytes);
	} else {
		printf("%s (%llu bytes)\n", print_size(human, bytes), (unsigned long long)bytes);
	}
}

static void print_block_sizes(const struct nbd_offer *offer)
{
	char human[PRINT_SIZE_BYTES];

	print_label("Block sizes");
	if (!offer->sizes_known) {
		printf("not told: clients keep to 512-byte blocks and 32 MiB a request\n");
		return;
	}
	printf("minimum %u, preferred %u, largest payload ", offer->sizes.minimum,
		offer->sizes.preferred);
	if (offer->sizes.payload_max == UINT32_MAX) {
		printf("unlimited\n");
	} else {
		printf("%s (%u)\n", print_size(human, offer->sizes.payload_max),
			offer->sizes.payload_max);
	}
}

static void print_contexts(const struct nbd_offers *offers, const struct nbd_offer *offer)
{
	if (offer->contexts_refusal != NULL) {
		print_label("Contexts");
		printf("not told: %s\n", offer->contexts_refusal);
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
	if (offer->name[0] == '\0') {
		print_line("Export", "\"\" (the default export)");
	} else {
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
	print_contexts(offers, offer);
	for (size_t i = 0; i < ARRAY_COUNT(capabilities); i++) {
		print_label(i == 0 ? "Capabilities" : "");
		printf("%-3s  %-*s %s\n", offer_can(offer, &capabilities[i]) ? "yes" : "no",
			LABEL_COLUMNS, capabilities[i].words, capabilities[i].meaning);
	}
}

int info_show_text(const char *uri, const struct nbd_offers *offers, bool list, struct error *error)
{
	static const char *const styles[] = {
		[NBD_REPLIES_SIMPLE] = "simple replies",
		[NBD_REPLIES_STRUCTURED] = "structured replies",
		[NBD_REPLIES_EXTENDED] = "extended headers (64-bit lengths)",
	};

	print_quoted("Server", uri);
	print_label("Protocol");
	printf("%s, %s, no TLS\n", offers->fixed ? "fixed newstyle" : "first newstyle (not fixed)",
		styles[offers->style]);
	if (list) {
		print_label("Exports");
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

static json_t *json_capabilities(const struct nbd_offer *offer)
{
	json_t *object = json_object();

	for (size_t i = 0; i < ARRAY_COUNT(capabilities); i++) {
		json_object_set_new(object, capabilities[i].key,
			json_boolean(offer_can(offer, &capabilities[i])));
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

static json_t *json_offer(const struct nbd_offer *offer)
{
	json_t *object = json_object();

	json_object_set_new(object, "name", print_json_text(offer->name));
	json_object_set_new(object, "canonical_name", print_json_text(offer->canonical_name));
	json_object_set_new(object, "description", print_json_text(offer->description));
	json_object_set_new(object, "refusal", print_json_text(offer->refusal));
	json_object_set_new(
		object, "size", offer->known ? json_integer((json_int_t)offer->size) : json_null());
	json_object_set_new(object, "block_sizes", json_block_sizes(offer));
	json_object_set_new(object, "transmission_flags",
		offer->known ? json_integer(offer->flags) : json_null());
	json_object_set_new(
		object, "capabilities", offer->known ? json_capabilities(offer) : json_null());
	json_object_set_new(object, "contexts",
		offer->contexts_known ? json_texts(offer->contexts, offer->context_count)
				      : json_null());
	json_object_set_new(object, "contexts_refusal", print_json_text(offer->contexts_refusal));
	return object;
}

static json_t *json_protocol(const struct nbd_offers *offers)
{
	json_t *object = json_object();

	json_object_set_new(
		object, "handshake", json_string(offers->fixed ? "fixed-newstyle" : "newstyle"));
	json_object_set_new(object, "replies", json_string(nbd_reply_style_name(offers->style)));
	json_object_set_new(object, "tls", json_false());
	return object;
}

int info_show_json(const char *uri, const struct nbd_offers *offers, bool list, const char *refusal,
	struct error *error)
{
	json_t *root = json_object();
	json_t *exports = json_array();
	uint32_t first = !list && refusal != NULL ? 1 : 0;

	for (uint32_t i = first; i < offers->count; i++) {
		json_array_append_new(exports, json_offer(&offers->list[i]));
	}
	json_object_set_new(root, "uri", print_json_text(uri));
	json_object_set_new(root, "error", print_json_text(refusal));
	json_object_set_new(root, "protocol", json_protocol(offers));
	json_object_set_new(root, "exports", exports);
	json_object_set_new(
		root, "notes", json_texts((char *const *)offers->notes, offers->note_count));
	return print_json(root, error);
}
