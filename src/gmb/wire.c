// SPDX-License-Identifier: Apache-2.0
#include "gmb/wire.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"

const struct message_hello native_hello = {
	.magic = NATIVE_MAGIC,
	.version_min = NATIVE_VERSION_MIN,
	.version_max = NATIVE_VERSION,
};

/* --- messages described by their layout ------------------------------------------------------- */

static const char *native_check_open(void *object)
{
	const struct native_open *open = object;
	const uint8_t *at = open->tokens.bytes;
	uint32_t left = open->tokens.length;

	if ((open->head.flags & ~NATIVE_OPEN_LOOK) != 0 ||
		open->head.replaces_count > NATIVE_REPLACES_MAX) {
		return "G4: unknown flags, or too many tokens, in OPEN";
	}
	for (uint32_t i = 0; i < open->head.replaces_count; i++) {
		if (left == 0 || at[0] == 0 || at[0] > NATIVE_TOKEN_BYTES_MAX ||
			left < 1 + (uint32_t)at[0]) {
			return "G4: invalid token in OPEN";
		}
		left -= 1 + (uint32_t)at[0];
		at += 1 + (size_t)at[0];
	}
	return left == 0 ? NULL : "G3: invalid length of OPEN";
}

static const char *native_check_export(void *object)
{
	const struct native_export *export = object;
	const struct native_wire_export *head = &export->head;
	bool has_disk = (head->flags & NATIVE_EXPORT_DISK) != 0;

	if (export->disk.length != (has_disk ? (uint32_t)NATIVE_DISK_BYTES : 0)) {
		return "G3: invalid length of EXPORT";
	}
	return head->status == 0 && (head->bytes > INT64_MAX ||
					    !is_power_of_two(head->block_preferred) ||
					    head->block_preferred < 512 ||
					    head->block_preferred > head->payload_max ||
					    head->atomic_bytes > head->payload_max)
		       ? "G15: invalid size or block sizes in EXPORT"
		       : NULL;
}

static const char *native_check_event(void *object)
{
	const struct native_wire_event *event = object;

	return event->bytes <= INT64_MAX ? NULL : "G15: invalid size in EVENT";
}

static const char *native_check_region(void *object)
{
	const struct clan_cookie *cookie = object;

	return cookie->region >= NATIVE_REGIONS_MAX || cookie->generation == 0 ||
			       cookie->bytes == 0 || cookie->rights == 0 ||
			       (cookie->rights & ~(uint32_t)(CLAN_READ | CLAN_WRITE)) != 0
		       ? "G18: invalid cookie in REGION"
		       : NULL;
}

static const struct message_layout native_layouts[] = {
	[NATIVE_LIST] = { MESSAGE_HEAD(native_wire_list, "G3", "G3", "LIST") },
	[NATIVE_OPEN] = { MESSAGE_HEAD(native_wire_open, "G3", "G4", "OPEN"),
		.parts = { MESSAGE_PART(NAME, native_open, name, name_bytes, NATIVE_NAME_BYTES_MAX),
			MESSAGE_PART(
				BYTES, native_open, token, token_bytes, NATIVE_TOKEN_BYTES_MAX),
			MESSAGE_PART(REST, native_open, tokens, flags, UINT32_MAX) },
		.check = native_check_open },
	[NATIVE_EXPORT] = { MESSAGE_HEAD(native_wire_export, "G3", "G15", "EXPORT"),
		.parts = { MESSAGE_PART(
				   NAME, native_export, name, name_bytes, NATIVE_NAME_BYTES_MAX),
			MESSAGE_PART(NAME, native_export, text, text_bytes, NATIVE_NAME_BYTES_MAX),
			MESSAGE_PART(REST, native_export, disk, flags, UINT32_MAX) },
		.check = native_check_export },
	[NATIVE_EVENT] = { MESSAGE_HEAD(native_wire_event, "G3", "G3", "EVENT"),
		.reserved = { MESSAGE_RESERVED(native_wire_event, zero) },
		.check = native_check_event },
	[NATIVE_REGION] = { MESSAGE_HEAD(clan_cookie, "G3", "G3", "REGION"),
		.reserved = { MESSAGE_RESERVED(clan_cookie, reserved),
			MESSAGE_RESERVED(clan_cookie, flags) },
		.check = native_check_region },
	[NATIVE_COPY] = { MESSAGE_HEAD(native_wire_copy, "G3", "G19", "COPY"),
		.parts = { MESSAGE_PART(
			NAME, native_copy_message, name, name_bytes, NATIVE_NAME_BYTES_MAX) } },
};

const char *native_parse(enum native_message type, const void *bytes, size_t len, void *object)
{
	return message_parse(&native_layouts[type], bytes, len, object);
}

/* --- server ----------------------------------------------------------------------------------- */

const char *native_hello_parse(const void *bytes, size_t len, uint16_t *version_out)
{
	return message_hello_parse(bytes, len, &native_hello, version_out)
		       ? NULL
		       : "not a gmb hello (rule G1)";
}

struct message_text native_open_next(const uint8_t **tokens)
{
	struct message_text token = { .bytes = *tokens + 1, .length = (*tokens)[0] };

	*tokens += 1 + token.length;
	return token;
}

/* Checks that a request carries exactly the data that its operation needs (G6, G7). */
static const char *check_carried(const struct native_request_message *request)
{
	const struct native_wire_request *head = &request->head;
	bool moves = head->operation == NATIVE_READ || head->operation == NATIVE_WRITE;
	uint64_t carried = head->inline_bytes;

	if ((head->segment_count > 0 && !moves) ||
		(head->inline_bytes > 0 &&
			(head->operation != NATIVE_WRITE || head->segment_count > 0))) {
		return "G6: a request carries data that its operation does not use";
	}
	for (uint32_t i = 0; i < head->segment_count; i++) {
		struct native_wire_segment segment = native_segment_at(request, i);

		if (segment.zero != 0) {
			return "G3: a reserved field of a segment is not 0";
		}
		if (segment.bytes == 0 || !checked_add_u64(carried, segment.bytes, &carried)) {
			return "G7: a segment is empty or too long";
		}
	}
	return moves && carried != head->length ? "G6: the length does not match the data carried"
						: NULL;
}

const char *native_request_parse(
	const void *bytes, size_t len, struct native_request_message *request)
{
	const uint8_t *at = bytes;
	struct native_wire_request *head = &request->head;
	size_t segments;

	if (len < sizeof(*head)) {
		return "G3: invalid length of REQUEST";
	}
	memcpy(head, at, sizeof(*head));
	if (head->zero != 0) {
		return "G3: a reserved field of REQUEST is not 0";
	}
	if (head->segment_count > NATIVE_SEGMENTS_MAX ||
		head->inline_bytes > NATIVE_INLINE_BYTES_MAX) {
		return "G5: too many segments or inline bytes";
	}
	segments = head->segment_count * sizeof(struct native_wire_segment);
	if (len != sizeof(*head) + segments + head->inline_bytes) {
		return "G3: invalid length of REQUEST";
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

/* --- client ----------------------------------------------------------------------------------- */

const char *native_version_name(uint16_t version)
{
	static const char *const names[] = { "gmb, version 1", "gmb, version 2", "gmb, version 3",
		"gmb, version 4", "gmb, version 5" };

	_Static_assert(ARRAY_COUNT(names) == NATIVE_VERSION - NATIVE_VERSION_MIN + 1, "all");
	GMB_ASSERT(version >= NATIVE_VERSION_MIN && version <= NATIVE_VERSION);
	return names[version - NATIVE_VERSION_MIN];
}

const char *native_welcome_parse(const void *bytes, size_t len, struct native_welcome *welcome)
{
	struct native_wire_welcome head;
	size_t more;

	if (len < sizeof(head)) {
		return "G1: invalid length of the welcome";
	}
	memcpy(&head, bytes, sizeof(head));
	more = head.version >= NATIVE_VERSION_COPY ? sizeof(welcome->instance) : 0;
	if (head.magic != NATIVE_MAGIC || head.version < NATIVE_VERSION_MIN ||
		head.version > NATIVE_VERSION || (head.flags & ~NATIVE_WELCOME_MOVES) != 0 ||
		head.zero != 0) {
		return "G1: not a gmb welcome of a supported version";
	}
	if (len != sizeof(head) + more) {
		return "G1: invalid length of the welcome";
	}
	*welcome = (struct native_welcome){ .version = head.version, .flags = head.flags };
	memcpy(welcome->instance, (const uint8_t *)bytes + sizeof(head), more);
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

/* Checks that the extents are not empty and do not exceed the request (G14). */
static const char *check_extents(const struct native_reply *reply, uint64_t length)
{
	uint64_t left = length;

	for (uint32_t i = 0; i < reply->head.value; i++) {
		struct native_wire_extent extent = native_extent_at(reply, i);

		if (extent.zero != 0) {
			return "G3: a reserved field of an extent is not 0";
		}
		if (extent.bytes == 0 || extent.bytes > left) {
			return "G14: an extent is empty, or exceeds the request";
		}
		left -= extent.bytes;
	}
	return NULL;
}

/* Checks that the bytes of all methods add up to the length of the COPY (G20). */
static const char *check_copied(const struct native_wire_copied *copied, uint64_t length)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < ARRAY_COUNT(copied->bytes); i++) {
		if (!checked_add_u64(sum, copied->bytes[i], &sum)) {
			return "G20: the bytes copied do not add up to the length of the COPY";
		}
	}
	return sum == length ? NULL
			     : "G20: the bytes copied do not add up to the length of the COPY";
}

const char *native_reply_parse(const void *bytes, size_t len, enum native_reply_kind kind,
	uint32_t extents_max, uint64_t length, struct native_reply *reply)
{
	struct native_wire_reply *head = &reply->head;
	const uint8_t *rest = (const uint8_t *)bytes + sizeof(*head);
	size_t left = len - sizeof(*head);

	if (len < sizeof(*head)) {
		return "G3: invalid length of REPLY";
	}
	memcpy(head, bytes, sizeof(*head));
	reply->extents = rest;
	reply->copied = (struct native_wire_copied){ 0 };
	reply->text = (struct message_text){ .bytes = rest, .length = 0 };
	if (head->status != 0) {
		reply->text.length = (uint32_t)left;
		return left <= NATIVE_TEXT_BYTES_MAX ? NULL : "G3: invalid length of REPLY";
	}
	if (kind == NATIVE_REPLY_EXTENTS) {
		if (head->value == 0 || head->value > extents_max) {
			return "G14: invalid number of extents";
		}
		if (left != head->value * sizeof(struct native_wire_extent)) {
			return "G3: invalid length of REPLY";
		}
		return check_extents(reply, length);
	}
	if (head->value != 0 || left != (kind == NATIVE_REPLY_COPIED ? sizeof(reply->copied) : 0)) {
		return "G14: a REPLY with data that was not requested";
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
