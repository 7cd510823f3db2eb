// SPDX-License-Identifier: Apache-2.0
#include "nbd/wire.h"

#include <errno.h>
#include <string.h>

const char *nbd_option_name(uint32_t option)
{
	static const char *const names[] = {
		[NBD_OPT_EXPORT_NAME] = "EXPORT_NAME",
		[NBD_OPT_ABORT] = "ABORT",
		[NBD_OPT_LIST] = "LIST",
		[NBD_OPT_PEEK_EXPORT] = "PEEK_EXPORT",
		[NBD_OPT_STARTTLS] = "STARTTLS",
		[NBD_OPT_INFO] = "INFO",
		[NBD_OPT_GO] = "GO",
		[NBD_OPT_STRUCTURED_REPLY] = "STRUCTURED_REPLY",
		[NBD_OPT_LIST_META_CONTEXT] = "LIST_META_CONTEXT",
		[NBD_OPT_SET_META_CONTEXT] = "SET_META_CONTEXT",
		[NBD_OPT_EXTENDED_HEADERS] = "EXTENDED_HEADERS",
	};

	if (option == NBD_OPT_FENCE) {
		return "FENCE";
	}
	return option < ARRAY_COUNT(names) && names[option] != NULL ? names[option] : "unknown";
}

const char *nbd_command_name(uint32_t command)
{
	static const char *const names[] = {
		[NBD_CMD_READ] = "READ",
		[NBD_CMD_WRITE] = "WRITE",
		[NBD_CMD_DISC] = "DISC",
		[NBD_CMD_FLUSH] = "FLUSH",
		[NBD_CMD_TRIM] = "TRIM",
		[NBD_CMD_CACHE] = "CACHE",
		[NBD_CMD_WRITE_ZEROES] = "WRITE_ZEROES",
		[NBD_CMD_BLOCK_STATUS] = "BLOCK_STATUS",
		[NBD_CMD_RESIZE] = "RESIZE",
	};

	return command < ARRAY_COUNT(names) ? names[command] : "unknown";
}

static const struct {
	uint32_t error;
	int code;
} errors[] = {
	{ NBD_SUCCESS, 0 },
	{ NBD_EPERM, -EPERM },
	{ NBD_EIO, -EIO },
	{ NBD_ENOMEM, -ENOMEM },
	{ NBD_EINVAL, -EINVAL },
	{ NBD_ENOSPC, -ENOSPC },
	{ NBD_EOVERFLOW, -EOVERFLOW },
	{ NBD_ENOTSUP, -EOPNOTSUPP },
	{ NBD_ESHUTDOWN, -ESHUTDOWN },
};

int nbd_error_to_errno(uint32_t error)
{
	for (size_t i = 0; i < ARRAY_COUNT(errors); i++) {
		if (errors[i].error == error) {
			return errors[i].code;
		}
	}
	return -EINVAL; /* P119 */
}

uint32_t nbd_error_from_errno(int code)
{
	switch (code) {
	case 0:
		return NBD_SUCCESS;
	case -EPERM:
	case -EACCES:
	case -EROFS:
		return NBD_EPERM;
	case -EINVAL:
		return NBD_EINVAL;
	case -ENOSPC:
	case -EDQUOT:
	case -EFBIG:
		return NBD_ENOSPC;
	case -EOVERFLOW:
		return NBD_EOVERFLOW;
	case -EOPNOTSUPP:
		return NBD_ENOTSUP;
	case -ESHUTDOWN:
		return NBD_ESHUTDOWN;
	default: /* also for ENOMEM, which should not be sent because a client cannot act on it */
		return NBD_EIO;
	}
}

/* Bytes that are not parsed yet. */
struct cursor {
	const uint8_t *bytes;
	uint32_t left;
};

static bool take_u32(struct cursor *cursor, uint32_t *value)
{
	struct be32 wire;

	if (cursor->left < sizeof(wire)) {
		return false;
	}
	memcpy(&wire, cursor->bytes, sizeof(wire));
	*value = be32_get(wire);
	cursor->bytes += sizeof(wire);
	cursor->left -= (uint32_t)sizeof(wire);
	return true;
}

static bool take_u16(struct cursor *cursor, uint16_t *value)
{
	struct be16 wire;

	if (cursor->left < sizeof(wire)) {
		return false;
	}
	memcpy(&wire, cursor->bytes, sizeof(wire));
	*value = be16_get(wire);
	cursor->bytes += sizeof(wire);
	cursor->left -= (uint32_t)sizeof(wire);
	return true;
}

static bool take_string(struct cursor *cursor, struct option_string *string)
{
	if (!take_u32(cursor, &string->length) || cursor->left < string->length) {
		return false;
	}
	string->bytes = cursor->bytes;
	cursor->bytes += string->length;
	cursor->left -= string->length;
	return true;
}

bool option_go_parse(
	const uint8_t *data, uint32_t length, struct option_go *go, const char **reason)
{
	struct cursor cursor = { .bytes = data, .left = length };
	uint16_t count;

	if (!take_string(&cursor, &go->name)) {
		*reason = "the export name runs past the end of the option";
		return false;
	}
	if (go->name.length > NBD_STRING_BYTES_MAX) {
		*reason = "the export name is longer than 4096 bytes";
		return false;
	}
	if (!take_u16(&cursor, &count) || cursor.left != (uint32_t)count * 2) {
		*reason = "the number of information requests does not match the option's length";
		return false;
	}
	go->requests = cursor.bytes;
	go->request_count = count;
	return true;
}

bool option_go_asks(const struct option_go *go, enum nbd_info info)
{
	struct cursor cursor = { .bytes = go->requests, .left = go->request_count * 2 };
	uint16_t asked;

	while (take_u16(&cursor, &asked)) {
		if (asked == (uint16_t)info) {
			return true;
		}
	}
	return false;
}

bool option_context_parse(
	const uint8_t *data, uint32_t length, struct option_context *context, const char **reason)
{
	struct cursor cursor = { .bytes = data, .left = length };
	struct option_string query;

	if (!take_string(&cursor, &context->name)) {
		*reason = "the export name runs past the end of the option";
		return false;
	}
	if (context->name.length > NBD_STRING_BYTES_MAX) {
		*reason = "the export name is longer than 4096 bytes";
		return false;
	}
	if (!take_u32(&cursor, &context->query_count)) {
		*reason = "the number of queries is missing";
		return false;
	}
	context->queries = cursor.bytes;
	for (uint32_t i = 0; i < context->query_count; i++) {
		if (!take_string(&cursor, &query)) {
			*reason = "a query runs past the end of the option";
			return false;
		}
		if (query.length > NBD_STRING_BYTES_MAX) {
			*reason = "a query is longer than 4096 bytes";
			return false;
		}
	}
	if (cursor.left != 0) {
		*reason = "extra bytes after the last query";
		return false;
	}
	return true;
}

struct option_string option_context_next(const uint8_t **queries)
{
	struct cursor cursor = { .bytes = *queries, .left = UINT32_MAX };
	struct option_string query = { 0 };
	bool taken = take_string(&cursor, &query);

	GMB_ASSERT(taken); /* option_context_parse() has checked all queries */
	*queries = cursor.bytes;
	return query;
}
