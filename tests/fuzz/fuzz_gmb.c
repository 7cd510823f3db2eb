// SPDX-License-Identifier: Apache-2.0
/*
 * Messages of gmb as each side parses them. The first byte chooses the message; a REPLY is to a
 * request that the next twelve bytes describe (extents of 2^32 - 1: a COPY).
 */
#include "fuzz.h"
#include "gmb/wire.h"

static const uint8_t *message;
static size_t message_bytes;

static void check_inside(const uint8_t *bytes, size_t length)
{
	GMB_ASSERT(length == 0 || (bytes >= message && bytes <= message + message_bytes &&
					  length <= (size_t)(message + message_bytes - bytes)));
}

static const char *hello(void)
{
	uint16_t version;
	const char *rule = native_hello_parse(message, message_bytes, &version);

	GMB_ASSERT(version == 0 ||
		   (rule == NULL && version >= NATIVE_VERSION_MIN && version <= NATIVE_VERSION));
	return rule;
}

static const char *list(void)
{
	struct native_wire_list list;

	return native_parse(NATIVE_LIST, message, message_bytes, &list);
}

static const char *open(void)
{
	struct native_open open;
	const char *rule = native_parse(NATIVE_OPEN, message, message_bytes, &open);
	const uint8_t *at;

	if (rule != NULL) {
		return rule;
	}
	check_inside(open.name.bytes, open.name.length);
	check_inside(open.token.bytes, open.token.length);
	GMB_ASSERT(open.name.length <= NATIVE_NAME_BYTES_MAX);
	GMB_ASSERT(open.token.length <= NATIVE_TOKEN_BYTES_MAX);
	GMB_ASSERT(open.head.replaces_count <= NATIVE_REPLACES_MAX);
	at = open.tokens.bytes;
	for (uint32_t i = 0; i < open.head.replaces_count; i++) {
		struct message_text token = native_open_next(&at);

		check_inside(token.bytes, token.length);
		GMB_ASSERT(token.length > 0 && token.length <= NATIVE_TOKEN_BYTES_MAX);
	}
	GMB_ASSERT(at == message + message_bytes); /* rule G3 */
	return NULL;
}

static const char *region(void)
{
	struct clan_cookie cookie;
	const char *rule = native_parse(NATIVE_REGION, message, message_bytes, &cookie);

	GMB_ASSERT(rule != NULL || (cookie.region < NATIVE_REGIONS_MAX && cookie.bytes > 0));
	return rule;
}

static const char *request(void)
{
	struct native_request_message parsed;
	const char *rule = native_request_parse(message, message_bytes, &parsed);
	const struct native_wire_request *head = &parsed.head;
	uint64_t carried = 0;

	if (rule != NULL) {
		return rule;
	}
	check_inside(parsed.inlined, head->inline_bytes);
	GMB_ASSERT(head->segment_count <= NATIVE_SEGMENTS_MAX);
	GMB_ASSERT(head->inline_bytes <= NATIVE_INLINE_BYTES_MAX);
	GMB_ASSERT(head->segment_count == 0 || head->inline_bytes == 0); /* rule G6 */
	for (uint32_t i = 0; i < head->segment_count; i++) {
		struct native_wire_segment segment = native_segment_at(&parsed, i);

		GMB_ASSERT(segment.bytes > 0 && carried + segment.bytes > carried);
		carried += segment.bytes;
	}
	carried += head->inline_bytes;
	GMB_ASSERT(carried == (head->operation == NATIVE_READ || head->operation == NATIVE_WRITE
					      ? head->length
					      : 0));
	return NULL;
}

static const char *copy(void)
{
	struct native_copy_message parsed;
	const char *rule = native_parse(NATIVE_COPY, message, message_bytes, &parsed);

	if (rule == NULL) {
		check_inside(parsed.name.bytes, parsed.name.length);
		GMB_ASSERT(parsed.name.length <= NATIVE_NAME_BYTES_MAX);
		GMB_ASSERT(sizeof(parsed.head) + parsed.name.length == message_bytes);
	}
	return rule;
}

static const char *welcome(void)
{
	struct native_welcome parsed;
	const char *rule = native_welcome_parse(message, message_bytes, &parsed);

	GMB_ASSERT(rule != NULL ||
		   (parsed.version >= NATIVE_VERSION_MIN && parsed.version <= NATIVE_VERSION));
	return rule;
}

static const char *export(void)
{
	struct native_export parsed;
	const char *rule = native_parse(NATIVE_EXPORT, message, message_bytes, &parsed);

	if (rule == NULL) {
		check_inside(parsed.name.bytes, parsed.name.length);
		check_inside(parsed.text.bytes, parsed.text.length);
		check_inside(parsed.disk.bytes, parsed.disk.length);
		GMB_ASSERT(parsed.disk.length ==
			   ((parsed.head.flags & NATIVE_EXPORT_DISK) != 0 ? NATIVE_DISK_BYTES : 0));
		GMB_ASSERT(sizeof(parsed.head) + parsed.name.length + parsed.text.length +
				   parsed.disk.length ==
			   message_bytes);
		GMB_ASSERT(parsed.head.status != 0 || parsed.head.payload_max >= 512);
	}
	return rule;
}

static const char *reply(void)
{
	struct native_reply parsed;
	uint64_t described = 0;
	enum native_reply_kind kind;
	uint32_t extents_max;
	uint64_t length;
	const char *rule;
	uint32_t tag;

	if (message_bytes < sizeof(extents_max) + sizeof(length)) {
		return "nothing was asked";
	}
	memcpy(&extents_max, message, sizeof(extents_max));
	memcpy(&length, message + sizeof(extents_max), sizeof(length));
	message += sizeof(extents_max) + sizeof(length);
	message_bytes -= sizeof(extents_max) + sizeof(length);
	kind = extents_max == 0		   ? NATIVE_REPLY_BARE
	       : extents_max == UINT32_MAX ? NATIVE_REPLY_COPIED
					   : NATIVE_REPLY_EXTENTS;
	rule = native_reply_parse(message, message_bytes, kind, extents_max, length, &parsed);
	if (rule != NULL) {
		return rule;
	}
	GMB_ASSERT(native_reply_tag(message, message_bytes, &tag) && tag == parsed.head.tag);
	check_inside(parsed.text.bytes, parsed.text.length);
	GMB_ASSERT(parsed.text.length <= NATIVE_TEXT_BYTES_MAX);
	if (parsed.head.status != 0) {
		return NULL;
	}
	if (kind == NATIVE_REPLY_COPIED) { /* rule G20 */
		for (size_t i = 0; i < ARRAY_COUNT(parsed.copied.bytes); i++) {
			GMB_ASSERT(parsed.copied.bytes[i] <= length - described);
			described += parsed.copied.bytes[i];
		}
		GMB_ASSERT(described == length);
	}
	GMB_ASSERT(parsed.head.value <= extents_max); /* rule G14, as below */
	for (uint32_t i = 0; i < parsed.head.value; i++) {
		struct native_wire_extent extent = native_extent_at(&parsed, i);

		GMB_ASSERT(extent.bytes > 0 && extent.bytes <= length - described);
		described += extent.bytes;
	}
	return NULL;
}

static const char *event(void)
{
	struct native_wire_event event;
	const char *rule = native_parse(NATIVE_EVENT, message, message_bytes, &event);

	GMB_ASSERT(rule != NULL || event.bytes <= INT64_MAX);
	return rule;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *(*const parsers[])(
		void) = { hello, list, open, region, request, welcome, export, reply, event, copy };
	const char *rule;

	if (size == 0) {
		return 0;
	}
	message = data + 1;
	message_bytes = size - 1;
	rule = parsers[data[0] % ARRAY_COUNT(parsers)]();
	GMB_ASSERT(rule == NULL || rule[0] != '\0');
	return 0;
}
