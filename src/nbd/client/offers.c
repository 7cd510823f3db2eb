// SPDX-License-Identifier: Apache-2.0
#include "nbd/client/offers.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

enum {
	NOTE_BYTES = 320,
	/* Rule P62: defaults if the server sends no block sizes. */
	BLOCK_MINIMUM_DEFAULT = 512,
	BLOCK_PREFERRED_DEFAULT = 4096,
	PAYLOAD_MAX_DEFAULT = 32 << 20,
};

const char *nbd_reply_style_name(enum nbd_reply_style style)
{
	static const char *const names[] = { "simple", "structured", "extended" };

	return names[style];
}

static void offer_fini(struct nbd_offer *offer)
{
	free(offer->name);
	free(offer->canonical_name);
	free(offer->description);
	free(offer->refusal);
	free(offer->contexts_refusal);
	for (uint32_t i = 0; i < offer->context_count; i++) {
		free(offer->contexts[i]);
	}
	free(offer->contexts);
}

void nbd_offers_fini(struct nbd_offers *offers)
{
	for (uint32_t i = 0; i < offers->count; i++) {
		offer_fini(&offers->list[i]);
	}
	free(offers->list);
	for (uint32_t i = 0; i < offers->note_count; i++) {
		free(offers->notes[i]);
	}
	*offers = (struct nbd_offers){ 0 };
}

/* Memory used by one text: its bytes, the terminator, and the pointer in its array. */
static uint64_t text_cost(size_t length)
{
	return (uint64_t)length + 1 + sizeof(char *);
}

/* Makes room for one more element. Returns the array, or NULL. Doubling keeps the total cost
 * linear. */
static void *array_grow(void *array, uint32_t count, size_t element_bytes)
{
	if (count != 0 && !is_power_of_two(count)) {
		return array;
	}
	return reallocarray(array, count == 0 ? 1 : (size_t)count * 2, element_bytes);
}

static int text_copy(
	struct nbd_offers *offers, struct nbd_text text, char **out, struct error *error)
{
	char *copy = NULL;

	if (offers->text_bytes + text_cost(text.length) > NBD_OFFERS_BYTES_MAX) {
		return error_set(error, -E2BIG,
			"the server's names and descriptions exceed the limit of %d MiB",
			NBD_OFFERS_BYTES_MAX >> 20);
	}
	copy = malloc((size_t)text.length + 1);
	if (copy == NULL) {
		return error_oom_for(error, "the handshake");
	}
	if (text.length > 0) {
		memcpy(copy, text.bytes, text.length);
	}
	copy[text.length] = '\0';
	offers->text_bytes += text_cost(text.length);
	*out = copy;
	return 0;
}

static void text_free(struct nbd_offers *offers, char *text)
{
	if (text != NULL) {
		offers->text_bytes -= text_cost(strlen(text));
		free(text);
	}
}

int nbd_offers_add(struct nbd_offers *offers, struct nbd_text name, struct nbd_text description,
	struct error *error)
{
	struct nbd_offer *offer;
	void *grown;
	int err;

	if (offers->count >= NBD_OFFERS_MAX) {
		return error_set(
			error, -E2BIG, "the server lists more than %d exports", NBD_OFFERS_MAX);
	}
	grown = array_grow(offers->list, offers->count, sizeof(*offers->list));
	if (grown == NULL) {
		return error_oom_for(error, "the handshake");
	}
	offers->list = grown;
	offer = &offers->list[offers->count];
	*offer = (struct nbd_offer){ 0 };
	err = text_copy(offers, name, &offer->name, error);
	if (err != 0) {
		return err;
	}
	offers->count++;
	if (description.length == 0) {
		return 0;
	}
	return text_copy(offers, description, &offer->description, error);
}

int nbd_offers_set_text(
	struct nbd_offers *offers, char **slot, struct nbd_text text, struct error *error)
{
	char *copy = NULL;
	int err = text_copy(offers, text, &copy, error);

	if (err != 0) {
		return err;
	}
	text_free(offers, *slot);
	*slot = copy;
	return 0;
}

int nbd_offers_add_context(struct nbd_offers *offers, struct nbd_offer *offer, struct nbd_text name,
	struct error *error)
{
	void *grown;
	int err;

	if (offer->context_count >= NBD_OFFER_CONTEXTS_MAX) {
		return error_set(error, -E2BIG,
			"the server lists more than %d metadata contexts for one export",
			NBD_OFFER_CONTEXTS_MAX);
	}
	grown = array_grow(offer->contexts, offer->context_count, sizeof(*offer->contexts));
	if (grown == NULL) {
		return error_oom_for(error, "the handshake");
	}
	offer->contexts = grown;
	err = text_copy(offers, name, &offer->contexts[offer->context_count], error);
	if (err != 0) {
		return err;
	}
	offer->context_count++;
	return 0;
}

void nbd_offers_drop_contexts(struct nbd_offers *offers, struct nbd_offer *offer)
{
	for (uint32_t i = 0; i < offer->context_count; i++) {
		text_free(offers, offer->contexts[i]);
	}
	free(offer->contexts);
	offer->contexts = NULL;
	offer->context_count = 0;
}

/* --- messages from the server ----------------------------------------------------------------- */

int nbd_text_take(const char *what, const uint8_t *bytes, uint32_t length, struct nbd_text *text,
	struct error *error)
{
	if (length > NBD_STRING_BYTES_MAX) {
		return error_set(error, -EPROTO,
			"the server sent %s of %u bytes; a string has at most %d bytes (rule P1)",
			what, length, NBD_STRING_BYTES_MAX);
	}
	if (length > 0 && memchr(bytes, 0, length) != NULL) {
		return error_set(error, -EPROTO,
			"the server sent %s with a zero byte inside (rule P1)", what);
	}
	*text = (struct nbd_text){ .bytes = (const char *)bytes, .length = length };
	return 0;
}

int nbd_offers_take_server(
	struct nbd_offers *offers, const uint8_t *payload, uint32_t length, struct error *error)
{
	struct nbd_text name;
	struct nbd_text description;
	uint32_t name_bytes;
	int err;

	if (length < 4) {
		return error_set(error, -EPROTO,
			"an entry in the server's list of exports has %u bytes, too few for the "
			"length of a name (rule P16)",
			length);
	}
	name_bytes = be32_load(payload);
	if (name_bytes > length - 4) {
		return error_set(error, -EPROTO,
			"an entry in the server's list of exports has a name of %u bytes in a "
			"reply of only %u bytes (rule P16)",
			name_bytes, length);
	}
	err = nbd_text_take("an export name", payload + 4, name_bytes, &name, error);
	if (err == 0) {
		err = nbd_text_take("an export description", payload + 4 + name_bytes,
			length - 4 - name_bytes, &description, error);
	}
	return err != 0 ? err : nbd_offers_add(offers, name, description, error);
}

int nbd_offer_take_size(struct nbd_offer *offer, const uint8_t *bytes, struct error *error)
{
	struct nbd_wire_old_reply wire;

	memcpy(&wire, bytes, sizeof(wire));
	offer->size = be64_get(wire.size);
	offer->flags = be16_get(wire.flags);
	offer->known = offer->size <= INT64_MAX;
	return offer->known
		       ? 0
		       : error_set(error, -EPROTO,
				 "the server claims a size of 0x%016llx bytes, 2^63 or more (rule "
				 "P68)",
				 (unsigned long long)offer->size);
}

static int take_block_sizes(struct nbd_offer *offer, const uint8_t *bytes, struct error *error)
{
	struct nbd_block_sizes sizes = { be32_load(bytes), be32_load(bytes + 4),
		be32_load(bytes + 8) };

	if (!is_power_of_two(sizes.minimum) || sizes.minimum > 65536) {
		return error_set(error, -EPROTO,
			"the server's minimum block size %u is not a power of two up to 65536 "
			"(rule P58)",
			sizes.minimum);
	}
	if (!is_power_of_two(sizes.preferred) || sizes.preferred < MAX(512u, sizes.minimum)) {
		return error_set(error, -EPROTO,
			"the server's preferred block size %u is not a power of two of at least %u "
			"(rule P59)",
			sizes.preferred, MAX(512u, sizes.minimum));
	}
	if (sizes.payload_max < sizes.preferred) {
		return error_set(error, -EPROTO,
			"the server's maximum payload %u is below its preferred block size %u "
			"(rule P60)",
			sizes.payload_max, sizes.preferred);
	}
	offer->sizes_known = true;
	offer->sizes = sizes;
	return 0;
}

static int info_length_check(
	uint16_t type, uint32_t length, size_t wanted, const char *rule, struct error *error)
{
	return length == wanted
		       ? 0
		       : error_set(error, -EPROTO,
				 "the server sent information of type %u in %u bytes instead of "
				 "%zu (rule %s)",
				 type, length, wanted, rule);
}

int nbd_offers_take_info(struct nbd_offers *offers, struct nbd_offer *offer, const uint8_t *payload,
	uint32_t length, struct error *error)
{
	struct be16 wire = { 0 };
	struct nbd_text text;
	uint16_t type;
	int err;

	if (length < sizeof(wire)) {
		return error_set(error, -EPROTO,
			"the server sent export information of %u bytes, too few for its type "
			"(rule P23)",
			length);
	}
	memcpy(&wire, payload, sizeof(wire));
	type = be16_get(wire);
	switch (type) {
	case NBD_INFO_EXPORT:
		err = info_length_check(
			type, length, sizeof(struct nbd_wire_info_export), "P23", error);
		return err != 0 ? err : nbd_offer_take_size(offer, payload + 2, error);
	case NBD_INFO_BLOCK_SIZE:
		err = info_length_check(
			type, length, sizeof(struct nbd_wire_info_block_size), "P29", error);
		return err != 0 ? err : take_block_sizes(offer, payload + 2, error);
	case NBD_INFO_NAME:
		err = nbd_text_take(
			"a canonical export name", payload + 2, length - 2, &text, error);
		return err != 0 ? err
				: nbd_offers_set_text(offers, &offer->canonical_name, text, error);
	case NBD_INFO_DESCRIPTION:
		err = nbd_text_take("an export description", payload + 2, length - 2, &text, error);
		return err != 0 ? err
				: nbd_offers_set_text(offers, &offer->description, text, error);
	default:
		return 0; /* rule P24: unknown information is ignored */
	}
}

/* --- notes -------------------------------------------------------------------------------- */

void nbd_offers_note(struct nbd_offers *offers, const char *format, ...)
{
	char note[NOTE_BYTES];
	va_list args;

	if (offers->note_count >= NBD_NOTES_MAX) {
		return;
	}
	va_start(args, format);
	vsnprintf(note, sizeof(note), format, args);
	va_end(args);
	offers->notes[offers->note_count] = strdup(note);
	if (offers->notes[offers->note_count] != NULL) {
		offers->note_count++;
	}
}

static bool text_is_good(const char *text)
{
	return text == NULL || utf8_valid(text, strlen(text));
}

void nbd_offers_review(struct nbd_offers *offers, const struct nbd_offer *offer)
{
	const char *name = quote(offer->name);

	if (!text_is_good(offer->name) || !text_is_good(offer->canonical_name) ||
		!text_is_good(offer->description)) {
		nbd_offers_note(offers,
			"export \"%s\": its name or description is not UTF-8 (rule P1)", name);
	}
	if (offer->known && (offer->flags & NBD_FLAG_HAS_FLAGS) == 0) {
		nbd_offers_note(offers,
			"export \"%s\": its flags are ignored, because the server does not mark "
			"them as valid (rule P33)",
			name);
	}
	if (offer->known && offer->sizes_known && !is_aligned(offer->size, offer->sizes.minimum)) {
		nbd_offers_note(offers,
			"export \"%s\": its last bytes are inaccessible, because its size is not a "
			"multiple of the minimum block size (rule P58)",
			name);
	}
}

/* --- facts --------------------------------------------------------------------------------- */

void nbd_facts_take_offer(struct nbd_facts *facts, const struct nbd_offer *offer)
{
	static const struct nbd_block_sizes sizes_default = { BLOCK_MINIMUM_DEFAULT,
		BLOCK_PREFERRED_DEFAULT, PAYLOAD_MAX_DEFAULT };
	const char *name = offer->canonical_name != NULL ? offer->canonical_name : offer->name;

	facts->size = offer->size;
	facts->flags = offer->flags;
	facts->sizes_known = offer->sizes_known;
	facts->sizes = offer->sizes_known ? offer->sizes : sizes_default;
	snprintf(facts->name, sizeof(facts->name), "%s", name);
	snprintf(facts->description, sizeof(facts->description), "%s",
		offer->description != NULL ? offer->description : "");
}

/* Parses "x-gmblock:epoch=0123456789abcdef", optionally followed by ",volatile". */
static void take_epoch(struct nbd_facts *facts, struct nbd_text name)
{
	char text[64];
	char *end;

	if (name.length >= sizeof(text) || name.length <= strlen(NBD_CONTEXT_EPOCH "=") ||
		memcmp(name.bytes, NBD_CONTEXT_EPOCH "=", strlen(NBD_CONTEXT_EPOCH "=")) != 0) {
		return;
	}
	memcpy(text, name.bytes, name.length);
	text[name.length] = '\0';
	facts->epoch = strtoull(text + strlen(NBD_CONTEXT_EPOCH "="), &end, 16);
	facts->is_volatile = strcmp(end, ",volatile") == 0;
	facts->can_take_over = facts->epoch != 0;
}

/* Parses "x-gmblock:disk=" and the digits of the identity. Returns whether the context is one. */
static bool take_disk(struct nbd_facts *facts, struct nbd_text name)
{
	static const char kind[] = NBD_CONTEXT_DISK "=";
	const char *digits = name.bytes + strlen(kind);
	uint8_t disk[NBD_DISK_BYTES];

	if (name.length != strlen(kind) + 2 * sizeof(disk) ||
		memcmp(name.bytes, kind, strlen(kind)) != 0) {
		return false;
	}
	for (size_t i = 0; i < sizeof(disk); i++) {
		int high = text_hex_digit(digits[2 * i]);
		int low = text_hex_digit(digits[2 * i + 1]);

		if (high < 0 || low < 0) {
			return true;
		}
		disk[i] = (uint8_t)(high << 4 | low);
	}
	memcpy(facts->disk, disk, sizeof(disk));
	return true;
}

void nbd_facts_take_extension(struct nbd_facts *facts, struct nbd_text name)
{
	if (name.length == strlen(NBD_CONTEXT_ALIVE) &&
		memcmp(name.bytes, NBD_CONTEXT_ALIVE, name.length) == 0) {
		facts->says_alive = true;
	} else if (name.length == strlen(NBD_CONTEXT_SIZE) &&
		   memcmp(name.bytes, NBD_CONTEXT_SIZE, name.length) == 0) {
		facts->says_size = true;
	} else if (name.length == strlen(NBD_CONTEXT_LEASE) &&
		   memcmp(name.bytes, NBD_CONTEXT_LEASE, name.length) == 0) {
		facts->has_leases = true;
	} else if (!take_disk(facts, name)) {
		take_epoch(facts, name);
	}
}

void nbd_facts_take_selected(struct nbd_facts *facts, uint32_t id, struct nbd_text name)
{
	if (name.length == strlen(NBD_CONTEXT_ALLOCATION) &&
		memcmp(name.bytes, NBD_CONTEXT_ALLOCATION, name.length) == 0) {
		facts->allocation = true;
		facts->allocation_id = id;
	}
}
