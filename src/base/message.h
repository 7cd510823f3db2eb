// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts of gmb and push messages, as tables, and their parser.
 *
 *   message: head, layout->bytes │ part 0 │ part 1 │ part 2      the head has each part's length
 *   object:  head                │ struct message_text for each part, and members set by check()
 *
 * The parser checks everything that the layout defines: the length, reserved fields, and names.
 * Then check() validates the numbers in the head.
 *
 * Threading: pure functions. Ownership: the head is copied, parts are borrowed from the message.
 * Errors: the broken rule as static text, or NULL if there is none.
 */
#pragma once

#include <stddef.h>

#include "base/compiler.h"

enum { MESSAGE_PARTS_MAX = 3, MESSAGE_RESERVED_MAX = 2 };

enum message_part_kind {
	MESSAGE_NONE,
	MESSAGE_NAME,  /* UTF-8 without zero bytes */
	MESSAGE_BYTES, /* any bytes */
	MESSAGE_REST,  /* the remaining bytes */
};

/* A part of a message, without a terminator. */
struct message_text {
	const void *bytes;
	uint32_t length;
};

struct message_layout {
	uint32_t bytes;
	const char *layout_rule, *part_rule;
	struct {
		uint16_t at, bytes;
	} reserved[MESSAGE_RESERVED_MAX]; /* must be zero */
	struct {
		enum message_part_kind kind;
		uint16_t text_at;   /* offset of the part's struct message_text in the object */
		uint16_t length_at; /* offset of the part's length in the head, little-endian */
		uint16_t length_bytes;
		uint32_t max;
	} parts[MESSAGE_PARTS_MAX];
	const char *(*check)(void *object); /* optional */
};

/* Initializers for struct message_layout. head: name of the struct of the message head. object:
 * name of the struct that message_parse() fills, whose first member `head` is the message head. */
#define MESSAGE_HEAD(head, rule, part, name)                                                       \
	.bytes = sizeof(struct head),                                                              \
	.layout_rule = rule ": invalid length or reserved field in " name,                         \
	.part_rule = part ": invalid name or text in " name
#define MESSAGE_RESERVED(head, member)                                                             \
	{                                                                                          \
		offsetof(struct head, member), sizeof(((struct head *)0)->member)                  \
	}
#define MESSAGE_PART(kind_, object, text, member, max_)                                            \
	{                                                                                          \
		MESSAGE_##kind_, offsetof(struct object, text),                                    \
			offsetof(struct object, head.member),                                      \
			sizeof(((struct object *)0)->head.member), max_                            \
	}

/* Parses a message into object: the struct of the head, or a struct whose first member is the head.
 * Returns NULL, or the text of the broken rule. */
const char *message_parse(
	const struct message_layout *layout, const void *bytes, size_t len, void *object);
bool message_is_zero(const void *bytes, size_t len);

/* First message of gmb and push connections. */
struct message_hello {
	uint64_t magic;
	uint16_t version_min;
	uint16_t version_max;
	uint32_t zero;
};

/* Returns false if the message is not a hello with the same magic number as `own`. Otherwise
 * *version_out is the highest version that both sides support, or 0 if there is none. */
GMB_MUST_CHECK bool message_hello_parse(
	const void *bytes, size_t len, const struct message_hello *own, uint16_t *version_out);
