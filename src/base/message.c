// SPDX-License-Identifier: Apache-2.0
#include "base/message.h"

#include <string.h>

#include "base/text.h"

bool message_is_zero(const void *bytes, size_t len)
{
	const uint8_t *at = bytes;
	uint8_t any = 0;

	for (size_t i = 0; i < len; i++) {
		any |= at[i];
	}
	return any == 0;
}

static bool message_is_name(const struct message_text *text)
{
	return utf8_valid(text->bytes, text->length) &&
	       memchr(text->bytes, 0, text->length) == NULL;
}

/* If several rules are broken, the order of the checks determines which one is reported: lengths
 * first, because the parts depend on them, then parts, reserved fields, and the numbers in the
 * head. */
const char *message_parse(
	const struct message_layout *layout, const void *bytes, size_t len, void *object)
{
	const uint8_t *at = bytes;
	size_t used = layout->bytes;
	bool good = true;

	if (len < used) {
		return layout->layout_rule;
	}
	memcpy(object, bytes, used);
	for (int i = 0; i < MESSAGE_PARTS_MAX && layout->parts[i].kind != MESSAGE_NONE; i++) {
		enum message_part_kind kind = layout->parts[i].kind;
		struct message_text text = { .bytes = at + used, .length = (uint32_t)(len - used) };

		if (kind != MESSAGE_REST) {
			text.length = 0;
			memcpy(&text.length, at + layout->parts[i].length_at,
				layout->parts[i].length_bytes);
		}
		if (text.length > len - used) {
			return layout->layout_rule;
		}
		good &= text.length <= layout->parts[i].max &&
			(kind != MESSAGE_NAME || message_is_name(&text));
		memcpy((uint8_t *)object + layout->parts[i].text_at, &text, sizeof(text));
		used += text.length;
	}
	if (used != len) {
		return layout->layout_rule;
	}
	if (!good) {
		return layout->part_rule;
	}
	for (int i = 0; i < MESSAGE_RESERVED_MAX; i++) {
		if (!message_is_zero(at + layout->reserved[i].at, layout->reserved[i].bytes)) {
			return layout->layout_rule;
		}
	}
	return layout->check != NULL ? layout->check(object) : NULL;
}

bool message_hello_parse(
	const void *bytes, size_t len, const struct message_hello *own, uint16_t *version_out)
{
	struct message_hello hello;

	*version_out = 0;
	if (len != sizeof(hello)) {
		return false;
	}
	memcpy(&hello, bytes, sizeof(hello));
	if (hello.magic != own->magic || hello.zero != 0 || hello.version_min > hello.version_max) {
		return false;
	}
	if (hello.version_min <= own->version_max && hello.version_max >= own->version_min) {
		*version_out = MIN(hello.version_max, own->version_max);
	}
	return true;
}
