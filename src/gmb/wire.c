// SPDX-License-Identifier: Apache-2.0
#include "gmb/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/text.h"

static bool is_text(const uint8_t *bytes, uint32_t length)
{
	return utf8_valid((const char *)bytes, length) && memchr(bytes, 0, length) == NULL;
}

/* --- the server's --------------------------------------------------------------------------- */

const char *native_hello_parse(const void *bytes, size_t len, uint16_t *version_out)
{
	struct native_wire_hello hello;

	*version_out = 0;
	if (len != sizeof(hello)) {
		return "G1: the length of the hello";
	}
	memcpy(&hello, bytes, sizeof(hello));
	if (hello.magic != NATIVE_MAGIC || hello.zero != 0 ||
		hello.version_min > hello.version_max) {
		return "G1: it is not a hello of gmb";
	}
	if (hello.version_min <= NATIVE_VERSION && hello.version_max >= NATIVE_VERSION_MIN) {
		*version_out = MIN(hello.version_max, (uint16_t)NATIVE_VERSION);
	}
	return NULL;
}

const char *native_list_parse(const void *bytes, size_t len, uint64_t *cursor_out)
{
	struct native_wire_list list;

	if (len != sizeof(list)) {
		return "G3: the length of LIST";
	}
	memcpy(&list, bytes, sizeof(list));
	*cursor_out = list.cursor;
	return NULL;
}

const char *native_open_parse(const void *bytes, size_t len, struct native_open *open)
{
	struct native_wire_open head;
	const uint8_t *at = (const uint8_t *)bytes + sizeof(head);
	size_t left;

	if (len < sizeof(head)) {
		return "G3: the length of OPEN";
	}
	memcpy(&head, bytes, sizeof(head));
	left = len - sizeof(head);
	if ((head.flags & ~NATIVE_OPEN_LOOK) != 0) {
		return "G4: unknown flags in OPEN";
	}
	if (head.name_bytes > NATIVE_NAME_BYTES_MAX || head.token_bytes > NATIVE_TOKEN_BYTES_MAX ||
		head.replaces_count > NATIVE_REPLACES_MAX) {
		return "G4: a name, a token or the number of tokens in OPEN is too large";
	}
	if (left < (size_t)head.name_bytes + head.token_bytes) {
		return "G3: the length of OPEN";
	}
	if (!is_text(at, head.name_bytes)) {
		return "G4: the name in OPEN is no text";
	}
	*open = (struct native_open){
		.look = (head.flags & NATIVE_OPEN_LOOK) != 0,
		.alive_ms = (uint32_t)head.alive_units * NATIVE_ALIVE_UNIT_MS,
		.name = { .bytes = at, .length = head.name_bytes },
		.token = { .bytes = at + head.name_bytes, .length = head.token_bytes },
		.replaces_count = head.replaces_count,
		.replaces = at + head.name_bytes + head.token_bytes,
	};
	at = open->replaces;
	left -= (size_t)head.name_bytes + head.token_bytes;
	for (uint32_t i = 0; i < head.replaces_count; i++) {
		if (left == 0 || at[0] == 0 || at[0] > NATIVE_TOKEN_BYTES_MAX ||
			left < 1 + (size_t)at[0]) {
			return "G4: a token in OPEN";
		}
		left -= 1 + (size_t)at[0];
		at += 1 + (size_t)at[0];
	}
	return left == 0 ? NULL : "G3: the length of OPEN";
}

struct native_text native_open_next(const uint8_t **replaces)
{
	struct native_text token = { .bytes = *replaces + 1, .length = (*replaces)[0] };

	*replaces += 1 + token.length;
	return token;
}

const char *native_region_parse(const void *bytes, size_t len, struct clan_cookie *cookie_out)
{
	if (len != sizeof(*cookie_out)) {
		return "G3: the length of REGION";
	}
	memcpy(cookie_out, bytes, sizeof(*cookie_out));
	if (cookie_out->reserved != 0 || cookie_out->flags != 0) {
		return "G3: a reserved field or a flag of the cookie in REGION";
	}
	if (cookie_out->region >= NATIVE_REGIONS_MAX || cookie_out->generation == 0 ||
		cookie_out->bytes == 0 || cookie_out->rights == 0 ||
		(cookie_out->rights & ~(uint32_t)(CLAN_READ | CLAN_WRITE)) != 0) {
		return "G18: the cookie in REGION";
	}
	return NULL;
}

static const char *check_carried(const struct native_request_message *request)
{
	const struct native_wire_request *head = &request->head;
	bool moves = head->operation == NATIVE_READ || head->operation == NATIVE_WRITE;
	uint64_t carried = head->inline_bytes;

	if ((head->segment_count > 0 && !moves) ||
		(head->inline_bytes > 0 &&
			(head->operation != NATIVE_WRITE || head->segment_count > 0))) {
		return "G6: a request carries what its operation does not take";
	}
	for (uint32_t i = 0; i < head->segment_count; i++) {
		struct native_wire_segment segment = native_segment_at(request, i);

		if (segment.zero != 0) {
			return "G3: a reserved field of a segment";
		}
		if (segment.bytes == 0 || !checked_add_u64(carried, segment.bytes, &carried)) {
			return "G7: a segment is empty or too long";
		}
	}
	return moves && carried != head->length ? "G6: the length is not what is carried" : NULL;
}

const char *native_request_parse(
	const void *bytes, size_t len, struct native_request_message *request)
{
	const uint8_t *at = bytes;
	struct native_wire_request *head = &request->head;
	size_t segments;

	if (len < sizeof(*head)) {
		return "G3: the length of REQUEST";
	}
	memcpy(head, at, sizeof(*head));
	if (head->zero != 0) {
		return "G3: a reserved field of REQUEST";
	}
	if (head->segment_count > NATIVE_SEGMENTS_MAX ||
		head->inline_bytes > NATIVE_INLINE_BYTES_MAX) {
		return "G5: too many segments or inline bytes";
	}
	segments = head->segment_count * sizeof(struct native_wire_segment);
	if (len != sizeof(*head) + segments + head->inline_bytes) {
		return "G3: the length of REQUEST";
	}
	request->segments = at + sizeof(*head);
	request->inlined = request->segments + segments;
	return check_carried(request);
}

struct native_wire_segment native_segment_at(
	const struct native_request_message *request, uint32_t idx)
{
	struct native_wire_segment segment;

	memcpy(&segment, request->segments + idx * sizeof(segment), sizeof(segment));
	return segment;
}

const char *native_copy_parse(const void *bytes, size_t len, struct native_copy_message *message)
{
	struct native_wire_copy *head = &message->head;

	if (len < sizeof(*head)) {
		return "G3: the length of COPY";
	}
	memcpy(head, bytes, sizeof(*head));
	if (len != sizeof(*head) + head->name_bytes) {
		return "G3: the length of COPY";
	}
	message->name = (struct native_text){ .bytes = (const uint8_t *)bytes + sizeof(*head),
		.length = head->name_bytes };
	if (head->name_bytes > NATIVE_NAME_BYTES_MAX ||
		!is_text(message->name.bytes, message->name.length)) {
		return "G19: the name in COPY";
	}
	return NULL;
}

/* --- the client's --------------------------------------------------------------------------- */

const char *native_version_name(uint16_t version)
{
	static const char *const names[] = { "gmb, version 1", "gmb, version 2", "gmb, version 3" };

	_Static_assert(ARRAY_COUNT(names) == NATIVE_VERSION - NATIVE_VERSION_MIN + 1, "all");
	GMB_ASSERT(version >= NATIVE_VERSION_MIN && version <= NATIVE_VERSION);
	return names[version - NATIVE_VERSION_MIN];
}

const char *native_welcome_parse(const void *bytes, size_t len, struct native_welcome *welcome)
{
	struct native_wire_welcome head;
	size_t more;

	if (len < sizeof(head)) {
		return "G1: the length of the welcome";
	}
	memcpy(&head, bytes, sizeof(head));
	more = head.version >= NATIVE_VERSION_COPY ? sizeof(welcome->instance) : 0;
	if (head.magic != NATIVE_MAGIC || head.version < NATIVE_VERSION_MIN ||
		head.version > NATIVE_VERSION || (head.flags & ~NATIVE_WELCOME_MOVES) != 0 ||
		head.zero != 0) {
		return "G1: it is not a welcome of gmb, version 1 to 3";
	}
	if (len != sizeof(head) + more) {
		return "G1: the length of the welcome";
	}
	*welcome = (struct native_welcome){ .version = head.version, .flags = head.flags };
	memcpy(welcome->instance, (const uint8_t *)bytes + sizeof(head), more);
	return NULL;
}

const char *native_export_parse(const void *bytes, size_t len, struct native_export *export)
{
	struct native_wire_export *head = &export->head;
	const uint8_t *texts = (const uint8_t *)bytes + sizeof(*head);

	if (len < sizeof(*head)) {
		return "G3: the length of EXPORT";
	}
	memcpy(head, bytes, sizeof(*head));
	if (len != sizeof(*head) + head->name_bytes + head->text_bytes) {
		return "G3: the length of EXPORT";
	}
	export->name = (struct native_text){ .bytes = texts, .length = head->name_bytes };
	export->text = (struct native_text){ .bytes = texts + head->name_bytes,
		.length = head->text_bytes };
	if (head->name_bytes > NATIVE_NAME_BYTES_MAX || head->text_bytes > NATIVE_NAME_BYTES_MAX ||
		!is_text(texts, head->name_bytes) ||
		!is_text(export->text.bytes, head->text_bytes)) {
		return "G15: a text in EXPORT";
	}
	if (head->status == 0 &&
		(head->bytes > INT64_MAX || !is_power_of_two(head->block_preferred) ||
			head->block_preferred < 512 || head->block_preferred > head->payload_max ||
			head->atomic_bytes > head->payload_max)) {
		return "G15: the size or the block sizes in EXPORT";
	}
	return NULL;
}

bool native_reply_tag(const void *bytes, size_t len, uint32_t *tag_out)
{
	if (len < sizeof(struct native_wire_reply)) {
		return false;
	}
	memcpy(tag_out, bytes, sizeof(*tag_out));
	return true;
}

static const char *check_extents(const struct native_reply *reply, uint64_t length)
{
	uint64_t left = length;

	for (uint32_t i = 0; i < reply->head.value; i++) {
		struct native_wire_extent extent = native_extent_at(reply, i);

		if (extent.zero != 0) {
			return "G3: a reserved field of an extent";
		}
		if (extent.bytes == 0 || extent.bytes > left) {
			return "G14: an extent is empty, or of more than was asked for";
		}
		left -= extent.bytes;
	}
	return NULL;
}

static const char *check_copied(const struct native_wire_copied *copied, uint64_t length)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < ARRAY_COUNT(copied->bytes); i++) {
		if (!checked_add_u64(sum, copied->bytes[i], &sum)) {
			return "G20: what a COPY has copied";
		}
	}
	return sum == length ? NULL : "G20: what a COPY has copied";
}

const char *native_reply_parse(const void *bytes, size_t len, enum native_reply_kind kind,
	uint32_t extents_max, uint64_t length, struct native_reply *reply)
{
	struct native_wire_reply *head = &reply->head;
	const uint8_t *rest = (const uint8_t *)bytes + sizeof(*head);
	size_t left = len - sizeof(*head);

	if (len < sizeof(*head)) {
		return "G3: the length of REPLY";
	}
	memcpy(head, bytes, sizeof(*head));
	reply->extents = rest;
	reply->copied = (struct native_wire_copied){ 0 };
	reply->text = (struct native_text){ .bytes = rest, .length = 0 };
	if (head->status != 0) {
		reply->text.length = (uint32_t)left;
		return left <= NATIVE_TEXT_BYTES_MAX ? NULL : "G3: the length of REPLY";
	}
	if (kind == NATIVE_REPLY_EXTENTS) {
		if (head->value == 0 || head->value > extents_max) {
			return "G14: the number of extents";
		}
		if (left != head->value * sizeof(struct native_wire_extent)) {
			return "G3: the length of REPLY";
		}
		return check_extents(reply, length);
	}
	if (head->value != 0 || left != (kind == NATIVE_REPLY_COPIED ? sizeof(reply->copied) : 0)) {
		return "G14: a REPLY with what nobody asked";
	}
	memcpy(&reply->copied, rest, left);
	return kind == NATIVE_REPLY_COPIED ? check_copied(&reply->copied, length) : NULL;
}

struct native_wire_extent native_extent_at(const struct native_reply *reply, uint32_t idx)
{
	struct native_wire_extent extent;

	memcpy(&extent, reply->extents + idx * sizeof(extent), sizeof(extent));
	return extent;
}

const char *native_event_parse(const void *bytes, size_t len, struct native_wire_event *event)
{
	if (len != sizeof(*event)) {
		return "G3: the length of EVENT";
	}
	memcpy(event, bytes, sizeof(*event));
	if (event->zero != 0) {
		return "G3: a reserved field of EVENT";
	}
	return event->bytes <= INT64_MAX ? NULL : "G15: the size in EVENT";
}

/* --- status --------------------------------------------------------------------------------- */

static const struct {
	uint32_t status;
	int code;
} statuses[] = {
	{ 0, 0 },
	{ 1, -EPERM },
	{ 2, -ENOENT },
	{ 12, -ENOMEM },
	{ 16, -EBUSY },
	{ 22, -EINVAL },
	{ 28, -ENOSPC },
	{ 75, -EOVERFLOW },
	{ 95, -EOPNOTSUPP },
	{ 108, -ESHUTDOWN },
	{ 116, -ESTALE },
};

enum { STATUS_EIO = 5 };

uint32_t native_status_from_errno(int code)
{
	if (code == -EACCES || code == -EROFS) {
		code = -EPERM;
	} else if (code == -EDQUOT || code == -EFBIG) {
		code = -ENOSPC;
	}
	for (size_t i = 0; i < ARRAY_COUNT(statuses); i++) {
		if (statuses[i].code == code) {
			return statuses[i].status;
		}
	}
	return STATUS_EIO;
}

int native_status_to_errno(uint32_t status)
{
	for (size_t i = 0; i < ARRAY_COUNT(statuses); i++) {
		if (statuses[i].status == status) {
			return statuses[i].code;
		}
	}
	return -EIO;
}
