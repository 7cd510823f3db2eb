// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts of the messages of gmb and push, as tables, and their parser.
 *
 *   message: head, layout->bytes │ part 0 │ part 1 │ part 2      the head says how long each part
 * is object:  head                │ struct message_text for each part, and what check() adds
 *
 * What: the parser checks everything about a message that its layout tells: the length, reserved
 * fields, and names. Then check() judges the numbers in the head. Threading: pure functions.
 * Ownership: the head is copied, parts borrow from the message. Errors: NULL, or the broken rule,
 * static text.
 */
#pragma once

#include <stddef.h>

#include "base/compiler.h"

enum { MESSAGE_PARTS_MAX = 3, MESSAGE_RESERVED_MAX = 2 };

enum message_part_kind {
	MESSAGE_NONE,
	MESSAGE_NAME,  /* UTF-8 without zero bytes */
	MESSAGE_BYTES, /* any */
	MESSAGE_REST,  /* all that is left */
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
	} reserved[MESSAGE_RESERVED_MAX]; /* zero */
	struct {
		enum message_part_kind kind;
		uint16_t text_at;   /* in the object: struct message_text */
		uint16_t length_at; /* in the head, little-endian */
		uint16_t length_bytes;
		uint32_t max;
	} parts[MESSAGE_PARTS_MAX];
	const char *(*check)(void *object); /* optional */
};

/* Initializers. head: its type. object: one whose first member is head. */
#define MESSAGE_HEAD(head, rule, part, name)                                                       \
	.bytes = sizeof(struct head),                                                              \
	.layout_rule = rule ": the length or a reserved field of " name,                           \
	.part_rule = part ": a name or a text in " name
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

/* object: a head, or an object that begins with one. */
const char *message_parse(
	const struct message_layout *layout, const void *bytes, size_t len, void *object);
bool message_is_zero(const void *bytes, size_t len);

/* The hello of both protocols. */
struct message_hello {
	uint64_t magic;
	uint16_t version_min;
	uint16_t version_max;
	uint32_t zero;
};

/* False: it is no such hello. Else the highest version that both speak, 0: none. */
GMB_MUST_CHECK bool message_hello_parse(
	const void *bytes, size_t len, const struct message_hello *own, uint16_t *version_out);
