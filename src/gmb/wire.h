// SPDX-License-Identifier: Apache-2.0
/*
 * The wire format of gmb, the native protocol: docs/protocol/gmb.md, whose rules G1 to G21 are
 * cited here. Names inside the library begin with native_, because gmb_ is the public prefix.
 *
 * This header has the layouts, and parsers of messages from a peer, which must be in private
 * memory. A parser copies heads, and returns pointers into the message for long parts.
 *
 * Threading: pure functions. Ownership: parsed messages borrow from the bytes that were parsed.
 * Errors: parsers return NULL, or the broken rule and what is wrong, as static text.
 */
#pragma once

#include <endian.h>
#include <gmblock/clan_memory.h>

#include "base/message.h"

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "layouts are used as they are");

#define NATIVE_MAGIC UINT64_C(0x316b636f6c626d67) /* the bytes "gmblock1" */

enum {
	NATIVE_VERSION_MIN = 1,
	NATIVE_VERSION = 5,
	NATIVE_VERSION_COPY = 2,   /* from this version on: COPY and the server's instance */
	NATIVE_VERSION_ATOMIC = 3, /* from this version on: EXPORT has the size of atomic writes */
	NATIVE_VERSION_LEASE = 4,  /* from this version on: LEASE and LEAVE */
	NATIVE_VERSION_DISK = 5,   /* from this version on: EXPORT has the disk's identity */
	NATIVE_INSTANCE_BYTES = 16,
	NATIVE_DISK_BYTES = 16,
	NATIVE_NAME_BYTES_MAX = 4096,
	NATIVE_TOKEN_BYTES_MAX = 64,
	NATIVE_REPLACES_MAX = 32,
	NATIVE_SEGMENTS_MAX = 64,
	NATIVE_INLINE_BYTES_MAX = 512,
	NATIVE_REGIONS_MAX = 16,
	NATIVE_MESSAGE_BYTES_MAX = 8184, /* limit of clan's bulk class */
	NATIVE_TEXT_BYTES_MAX = 256,	 /* maximum length of the error text of a request */
	NATIVE_ALIVE_UNIT_MS = 10,
};

enum native_message {
	NATIVE_LIST = 1,
	NATIVE_OPEN,
	NATIVE_EXPORT,
	NATIVE_REQUEST,
	NATIVE_REPLY,
	NATIVE_EVENT,
	NATIVE_REGION,
	NATIVE_ALIVE,
	NATIVE_COPY,
	NATIVE_LEASE, /* the text of base/lease.h; before OPEN */
	NATIVE_LEAVE, /* without contents: the client returns its lease */
};

enum native_operation {
	NATIVE_READ,
	NATIVE_WRITE,
	NATIVE_FLUSH,
	NATIVE_TRIM,
	NATIVE_ZERO,
	NATIVE_CACHE,
	NATIVE_STATUS,
	NATIVE_OPERATION_COUNT
};

enum native_welcome_flag { NATIVE_WELCOME_MOVES = 1 };
enum native_request_flag { NATIVE_FUA = 1, NATIVE_NO_HOLE = 2, NATIVE_FAST_ZERO = 4 };
enum native_open_flag { NATIVE_OPEN_LOOK = 1 };
enum native_export_flag {
	NATIVE_EXPORT_WRITABLE = 1,
	NATIVE_EXPORT_ROTATIONAL = 2,
	NATIVE_EXPORT_VOLATILE = 4,
	NATIVE_EXPORT_ENDS = 8,
	NATIVE_EXPORT_DISK = 16, /* ends with the identity of the disk */
};

/* --- layouts --------------------------------------------------------------------------------- */

/* Our hello: struct message_hello. */
extern const struct message_hello native_hello;

struct native_wire_welcome {
	uint64_t magic;
	uint16_t version;
	uint16_t flags;
	uint32_t zero;
};

/* Follows the welcome from version 2 on. */
struct native_wire_instance {
	uint8_t bytes[NATIVE_INSTANCE_BYTES];
};

struct native_wire_list {
	uint64_t cursor;
};

struct native_wire_open {
	uint16_t flags;
	uint16_t name_bytes;
	uint8_t token_bytes;
	uint8_t replaces_count;
	uint16_t alive_units; /* in units of NATIVE_ALIVE_UNIT_MS; 0: no signs of life */
};

struct native_wire_export {
	uint32_t status;
	uint32_t flags;
	uint64_t bytes;
	uint64_t epoch;
	uint64_t cursor;
	uint32_t payload_max;
	uint32_t block_preferred;
	uint16_t name_bytes;
	uint16_t text_bytes;
	uint32_t atomic_bytes; /* only from NATIVE_VERSION_ATOMIC on; before, 0 */
};

struct native_wire_request {
	uint32_t tag;
	uint8_t operation;
	uint8_t zero;
	uint16_t flags;
	uint64_t offset;
	uint64_t length;
	uint16_t segment_count;
	uint16_t inline_bytes;
	uint32_t extents_max;
};

struct native_wire_segment {
	uint16_t region;
	uint16_t zero;
	uint32_t generation;
	uint64_t offset;
	uint64_t bytes;
};

struct native_wire_copy {
	uint32_t tag;
	uint16_t flags; /* NATIVE_FUA */
	uint16_t name_bytes;
	uint64_t offset;
	uint64_t length;
	uint64_t source_offset;
	uint64_t source_epoch;
};

struct native_wire_reply {
	uint32_t tag;
	uint32_t status;
	uint64_t value;
};

struct native_wire_extent {
	uint64_t bytes;
	uint32_t flags;
	uint32_t zero;
};

/* Follows the head of a REPLY to COPY: bytes copied by each method, in the order of struct
 * gmb_stats. */
struct native_wire_copied {
	uint64_t bytes[5];
};

struct native_wire_event {
	uint32_t flags;
	uint32_t zero;
	uint64_t bytes;
};

_Static_assert(sizeof(struct message_hello) == 16, "layout");
_Static_assert(sizeof(struct native_wire_welcome) == 16, "layout");
_Static_assert(sizeof(struct native_wire_open) == 8, "layout");
_Static_assert(sizeof(struct native_wire_export) == 48, "layout");
_Static_assert(sizeof(struct native_wire_request) == 32, "layout");
_Static_assert(sizeof(struct native_wire_segment) == 24, "layout");
_Static_assert(sizeof(struct native_wire_instance) == 16, "layout");
_Static_assert(sizeof(struct native_wire_copy) == 40, "layout");
_Static_assert(sizeof(struct native_wire_copied) == 40, "layout");
_Static_assert(sizeof(struct native_wire_reply) == 16, "layout");
_Static_assert(sizeof(struct native_wire_extent) == 16, "layout");
_Static_assert(sizeof(struct native_wire_event) == 16, "layout");
/* a REGION message consists of a cookie */
_Static_assert(sizeof(struct clan_cookie) == 32, "layout");

enum {
	NATIVE_REQUEST_BYTES_MAX = sizeof(struct native_wire_request) +
				   NATIVE_SEGMENTS_MAX * sizeof(struct native_wire_segment),
	NATIVE_COPY_BYTES_MAX = sizeof(struct native_wire_copy) + NATIVE_NAME_BYTES_MAX,
	NATIVE_EXTENTS_MAX = (NATIVE_MESSAGE_BYTES_MAX - sizeof(struct native_wire_reply)) /
			     sizeof(struct native_wire_extent),
	NATIVE_OPEN_BYTES_MAX = sizeof(struct native_wire_open) + NATIVE_NAME_BYTES_MAX +
				NATIVE_TOKEN_BYTES_MAX +
				NATIVE_REPLACES_MAX * (1 + NATIVE_TOKEN_BYTES_MAX),
};
_Static_assert((int)NATIVE_OPEN_BYTES_MAX <= (int)NATIVE_MESSAGE_BYTES_MAX,
	"every OPEN fits in a message");
_Static_assert(
	(int)sizeof(struct native_wire_segment) * NATIVE_SEGMENTS_MAX >= NATIVE_INLINE_BYTES_MAX,
	"segments or inline bytes: NATIVE_REQUEST_BYTES_MAX holds either");
_Static_assert(sizeof(struct native_wire_export) + NATIVE_NAME_BYTES_MAX + NATIVE_DISK_BYTES <=
		       NATIVE_MESSAGE_BYTES_MAX,
	"every name fits in an EXPORT");

/* --- messages that the server parses ---------------------------------------------------------- */

struct native_open {
	struct native_wire_open head;
	struct message_text name;
	struct message_text token;  /* length 0: none */
	struct message_text tokens; /* head.replaces_count tokens, for native_open_next() */
};

struct native_request_message {
	struct native_wire_request head;
	const uint8_t *segments; /* head.segment_count segments, for native_segment_at() */
	const uint8_t *inlined;	 /* head.inline_bytes bytes */
};

struct native_copy_message {
	struct native_wire_copy head;
	struct message_text name; /* name of the source */
};

/* Checks rule G1. Returns NULL or the broken rule. *version_out: the version to speak, 0 if there
 * is no common one. */
const char *native_hello_parse(const void *bytes, size_t len, uint16_t *version_out);
/* Parses LIST, OPEN, EXPORT, EVENT, REGION and COPY, and checks the rules that the message alone
 * decides: G3, G4, G15, G18, G19. object: receives the parsed message, as a struct
 * native_wire_list, native_open, native_export, native_wire_event, clan_cookie or
 * native_copy_message. In an EXPORT with a status other than 0, only the status and the text are
 * valid. */
const char *native_parse(enum native_message type, const void *bytes, size_t len, void *object);
struct message_text native_open_next(const uint8_t **tokens);
/* Checks the rules G3, G5, G6 and G7, as far as the message alone decides. */
const char *native_request_parse(
	const void *bytes, size_t len, struct native_request_message *message);
struct native_wire_segment native_segment_at(
	const struct native_request_message *message, uint32_t idx);

/* --- messages that the client parses ---------------------------------------------------------- */

struct native_export {
	struct native_wire_export head;
	struct message_text name;
	/* the export's description, or the reason for a status other than 0 */
	struct message_text text;
	struct message_text disk; /* NATIVE_DISK_BYTES with NATIVE_EXPORT_DISK, otherwise none */
};

/* Returns "gmb, version 1" and the like; the version must be supported. Static. */
const char *native_version_name(uint16_t version);

struct native_reply {
	struct native_wire_reply head;
	const uint8_t *extents; /* STATUS only: head.value extents, for native_extent_at() */
	struct native_wire_copied copied; /* COPY only */
	struct message_text text;	  /* error text */
};

struct native_welcome {
	uint32_t version;
	uint32_t flags;				 /* enum native_welcome_flag */
	uint8_t instance[NATIVE_INSTANCE_BYTES]; /* zeroes: unknown */
};

/* Contents of a REPLY with status 0. */
enum native_reply_kind { NATIVE_REPLY_BARE, NATIVE_REPLY_EXTENTS, NATIVE_REPLY_COPIED };

/* Checks rule G1. */
const char *native_welcome_parse(const void *bytes, size_t len, struct native_welcome *welcome);
/* Parses a REPLY (G3, G14, G20). kind, extents_max and length are from its request. */
const char *native_reply_parse(const void *bytes, size_t len, enum native_reply_kind kind,
	uint32_t extents_max, uint64_t length, struct native_reply *reply);
/* Extracts the tag, which is needed before the rest can be parsed; false: the message is too
 * short. */
bool native_reply_tag(const void *bytes, size_t len, uint32_t *tag_out);
struct native_wire_extent native_extent_at(const struct native_reply *reply, uint32_t idx);

/* Convert between errno and the status numbers of the wire. Of the errnos without a number, EACCES
 * and EROFS become EPERM, EDQUOT and EFBIG become ENOSPC, and all others EIO. */
uint32_t native_status_from_errno(int code);
int native_status_to_errno(uint32_t status);
