// SPDX-License-Identifier: Apache-2.0
#include "nbd/client_parse.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "nbd/wire.h"

enum { QUOTE_BYTES = 96 };

static uint32_t get_u32(const uint8_t *bytes)
{
	struct be32 v;

	memcpy(&v, bytes, sizeof(v));
	return be32_get(v);
}

static int text_take(const char *what, const uint8_t *bytes, uint32_t length, struct nbd_text *text,
	struct error *error)
{
	if (length > NBD_STRING_BYTES_MAX) {
		return error_set(error, -EPROTO,
			"the server sent %s of %u bytes; a string has at most %d (rule P1)", what,
			length, NBD_STRING_BYTES_MAX);
	}
	if (length > 0 && memchr(bytes, 0, length) != NULL) {
		return error_set(error, -EPROTO,
			"the server sent %s with a zero byte inside (rule P1)", what);
	}
	*text = (struct nbd_text){ .bytes = (const char *)bytes, .length = length };
	return 0;
}

int nbd_parse_magic(const uint8_t bytes[8], struct error *error)
{
	char quoted[QUOTE_BYTES];
	struct be64 magic;

	memcpy(&magic, bytes, sizeof(magic));
	if (be64_get(magic) == NBD_MAGIC) {
		return 0;
	}
	return error_set(error, -EPROTO,
		"this is not an NBD server: it greets with \"%s\" instead of \"NBDMAGIC\" (rule "
		"P4)",
		log_escape(quoted, sizeof(quoted), bytes, 8));
}

int nbd_parse_style(const uint8_t bytes[16], struct error *error)
{
	struct be64 wire;
	uint64_t style;

	memcpy(&wire, bytes + 8, sizeof(wire));
	style = be64_get(wire);
	if (style == NBD_OLDSTYLE_MAGIC) {
		return error_set(error, -EPROTONOSUPPORT,
			"this is an oldstyle NBD server (rule P8), a protocol from before 2011 "
			"that "
			"gmblock does not speak: update it, or give it the newstyle protocol");
	}
	if (style != NBD_OPTION_MAGIC) {
		return error_set(error, -EPROTO,
			"the server's greeting goes on with 0x%016llx, which is neither the "
			"newstyle magic \"IHAVEOPT\" nor the oldstyle one (rule P4)",
			(unsigned long long)style);
	}
	return 0;
}

uint16_t nbd_parse_greeting(const uint8_t bytes[NBD_GREETING_BYTES])
{
	struct nbd_wire_greeting greeting;

	memcpy(&greeting, bytes, sizeof(greeting));
	return be16_get(greeting.flags);
}

int nbd_parse_reply_header(const uint8_t bytes[NBD_REPLY_HEADER_BYTES], uint32_t option_asked,
	struct nbd_reply_header *header, struct error *error)
{
	struct nbd_wire_option_reply reply;
	uint64_t magic;

	memcpy(&reply, bytes, sizeof(reply));
	magic = be64_get(reply.magic);
	if (magic != NBD_OPTION_REPLY_MAGIC) {
		return error_set(error, -EPROTO,
			"an option reply starts with 0x%016llx instead of 0x%016llx: the stream is "
			"lost (rule P120)",
			(unsigned long long)magic, (unsigned long long)NBD_OPTION_REPLY_MAGIC);
	}
	header->option = be32_get(reply.option);
	header->type = be32_get(reply.type);
	header->length = be32_get(reply.length);
	if (header->option != option_asked) {
		return error_set(error, -EPROTO,
			"the server replied to option %u (%s) while %s was asked (rule P11)",
			header->option, nbd_option_name(header->option),
			nbd_option_name(option_asked));
	}
	if (header->length > NBD_REPLY_PAYLOAD_BYTES_MAX) {
		return error_set(error, -EPROTO,
			"the server announced a reply of %u bytes to %s; the longest lawful one "
			"has %d (rule P1)",
			header->length, nbd_option_name(option_asked), NBD_REPLY_PAYLOAD_BYTES_MAX);
	}
	return 0;
}

int nbd_parse_server(const uint8_t *payload, uint32_t length, struct nbd_text *name,
	struct nbd_text *description, struct error *error)
{
	uint32_t name_bytes;
	int err;

	if (length < 4) {
		return error_set(error, -EPROTO,
			"an export in the server's list has %u bytes, too few for the length of "
			"its "
			"name (rule P16)",
			length);
	}
	name_bytes = get_u32(payload);
	if (name_bytes > length - 4) {
		return error_set(error, -EPROTO,
			"an export in the server's list has a name of %u bytes in a reply of %u "
			"(rule P16)",
			name_bytes, length);
	}
	err = text_take("an export name", payload + 4, name_bytes, name, error);
	if (err != 0) {
		return err;
	}
	return text_take("an export description", payload + 4 + name_bytes, length - 4 - name_bytes,
		description, error);
}

int nbd_parse_context(const uint8_t *payload, uint32_t length, uint32_t *id, struct nbd_text *name,
	struct error *error)
{
	if (length < 5) {
		return error_set(error, -EPROTO,
			"the server named a metadata context in %u bytes, which leaves no name "
			"(rule P38)",
			length);
	}
	*id = get_u32(payload);
	return text_take("a metadata context", payload + 4, length - 4, name, error);
}

static int size_check(uint64_t size, struct error *error)
{
	if (size > INT64_MAX) {
		return error_set(error, -EPROTO,
			"the server claims a size of 0x%016llx bytes, 2^63 or more (rule P68)",
			(unsigned long long)size);
	}
	return 0;
}

static int block_sizes_check(const struct nbd_block_sizes *sizes, struct error *error)
{
	if (!is_power_of_two(sizes->minimum) || sizes->minimum > 65536) {
		return error_set(error, -EPROTO,
			"the server's minimum block size %u is not a power of two up to 65536 "
			"(rule P58)",
			sizes->minimum);
	}
	if (!is_power_of_two(sizes->preferred) || sizes->preferred < MAX(512u, sizes->minimum)) {
		return error_set(error, -EPROTO,
			"the server's preferred block size %u is not a power of two of at least %u "
			"(rule P59)",
			sizes->preferred, MAX(512u, sizes->minimum));
	}
	if (sizes->payload_max < sizes->preferred) {
		return error_set(error, -EPROTO,
			"the server's maximum payload %u is below its preferred block size %u "
			"(rule P60)",
			sizes->payload_max, sizes->preferred);
	}
	return 0;
}

static int info_length_check(
	uint16_t type, uint32_t length, uint32_t wanted, const char *rule, struct error *error)
{
	if (length != wanted) {
		return error_set(error, -EPROTO,
			"the server sent information of type %u in %u bytes instead of %u (rule "
			"%s)",
			type, length, wanted, rule);
	}
	return 0;
}

static int parse_info_export(
	const uint8_t *payload, uint32_t length, struct nbd_info_item *item, struct error *error)
{
	struct nbd_wire_info_export wire;
	int err = info_length_check(item->type, length, sizeof(wire), "P23", error);

	if (err != 0) {
		return err;
	}
	memcpy(&wire, payload, sizeof(wire));
	item->size = be64_get(wire.size);
	item->flags = be16_get(wire.flags);
	return size_check(item->size, error);
}

static int parse_info_block_size(
	const uint8_t *payload, uint32_t length, struct nbd_info_item *item, struct error *error)
{
	struct nbd_wire_info_block_size wire;
	int err = info_length_check(item->type, length, sizeof(wire), "P29", error);

	if (err != 0) {
		return err;
	}
	memcpy(&wire, payload, sizeof(wire));
	item->sizes.minimum = be32_get(wire.minimum);
	item->sizes.preferred = be32_get(wire.preferred);
	item->sizes.payload_max = be32_get(wire.maximum);
	return block_sizes_check(&item->sizes, error);
}

int nbd_parse_info(
	const uint8_t *payload, uint32_t length, struct nbd_info_item *item, struct error *error)
{
	struct be16 type;

	if (length < sizeof(type)) {
		return error_set(error, -EPROTO,
			"the server sent export information of %u bytes, too few for its type "
			"(rule "
			"P23)",
			length);
	}
	memcpy(&type, payload, sizeof(type));
	*item = (struct nbd_info_item){ .type = be16_get(type) };
	switch (item->type) {
	case NBD_INFO_EXPORT:
		return parse_info_export(payload, length, item, error);
	case NBD_INFO_NAME:
		return text_take(
			"a canonical export name", payload + 2, length - 2, &item->text, error);
	case NBD_INFO_DESCRIPTION:
		return text_take(
			"an export description", payload + 2, length - 2, &item->text, error);
	case NBD_INFO_BLOCK_SIZE:
		return parse_info_block_size(payload, length, item, error);
	default:
		return 0; /* rule P24: unknown information is ignored */
	}
}

int nbd_parse_old_reply(const uint8_t bytes[NBD_OLD_REPLY_BYTES], uint64_t *size, uint16_t *flags,
	struct error *error)
{
	struct nbd_wire_old_reply reply;

	memcpy(&reply, bytes, sizeof(reply));
	*size = be64_get(reply.size);
	*flags = be16_get(reply.flags);
	return size_check(*size, error);
}

int nbd_parse_error_text(
	const uint8_t *payload, uint32_t length, struct nbd_text *text, struct error *error)
{
	return text_take("an error text", payload, length, text, error);
}

const char *nbd_reply_error_name(uint32_t type)
{
	static const char *const names[] = {
		[1] = "not supported by the server",
		[2] = "refused by the server's policy",
		[3] = "called invalid by the server",
		[4] = "not possible on the server's platform",
		[5] = "the server demands TLS first",
		[6] = "no such export",
		[7] = "the server is shutting down",
		[8] = "the server wants block sizes to be negotiated",
		[9] = "too big for the server",
		[10] = "the server demands extended headers",
	};
	uint32_t idx = type & ~NBD_REP_ERROR_BIT;

	if (idx == 0 || idx >= ARRAY_COUNT(names)) {
		return "refused with an unknown error";
	}
	return names[idx];
}
