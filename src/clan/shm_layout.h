// SPDX-License-Identifier: Apache-2.0
/*
 * The shared memory and the socket messages of docs/protocol/clan.md §2 to §4, as structs with the
 * the names there. Little-endian, like every machine that this provider is built for.
 *
 * Threading: each word is written by one side only. Ownership: none. Errors: none.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SHM_MAGIC_GROUP UINT64_C(0x317072676e616c63) /* "clangrp1" */
#define SHM_MAGIC_CONN	UINT64_C(0x316e6f636e616c63) /* "clancon1" */
#define SHM_MAGIC_HELLO UINT64_C(0x6d68732d6e616c63) /* "clan-shm" */
#define SHM_LINE	128 /* two cache lines, because processors fetch lines in pairs */

enum {
	SHM_VERSION = 1,
	SHM_SLOT_BYTES = 64,
	SHM_HEAD_BYTES = 8, /* head of a message */
	SHM_HEADER_BYTES = 0x400,
	SHM_SEGMENT_ALIGN = 4096,

	SHM_READY_SLOTS = 512, /* slots of our ready rings */
	SHM_READY_SLOTS_MIN = 16,
	SHM_READY_SLOTS_MAX = 8192,
	SHM_NUMBERS_MAX = 4096, /* the numbers of a group's connections are lower */

	SHM_CONTROL_SLOTS = 32,
	SHM_SYSTEM_SLOTS = 32,
	SHM_CONTROL_MESSAGE_MAX = 1024,
	SHM_BULK_MESSAGE_MAX = 8192,
};

enum shm_class { SHM_SYSTEM, SHM_CONTROL, SHM_BULK, SHM_CLASS_COUNT };

/* A message and the padding before it always fit into an empty ring. */
_Static_assert(2 * SHM_CONTROL_MESSAGE_MAX <= SHM_CONTROL_SLOTS * SHM_SLOT_BYTES, "control ring");

/* The changes for which a reader requests notification: the low byte of want. */
enum shm_reason {
	SHM_REASON_SYSTEM = 1,
	SHM_REASON_CONTROL = 2,
	SHM_REASON_BULK = 4,
	SHM_REASON_ROOM_CONTROL = 8,
	SHM_REASON_ROOM_BULK = 16,
	SHM_REASON_ROOM_SYSTEM = 32,
	SHM_REASON_QUIET = 64,
};
enum { SHM_WANT_NUMBER_SHIFT = 8 };

/* Message types of the library in rings. Programs use types 0x01 to 0xef. */
enum shm_type {
	SHM_TYPE_PAD = 0x00,
	SHM_TYPE_STREAM = 0xf0,
	SHM_TYPE_NOTIFY = 0xf1,
	SHM_TYPE_TRIPPED = 0xf2,
	SHM_TYPE_COOKIE = 0xf3,
};

typedef _Atomic(uint32_t) shm_u32;
typedef _Atomic(uint64_t) shm_u64;

struct shm_group_head {
	uint64_t magic;
	uint32_t version;
	uint32_t ready_slots;
	uint64_t bytes;
	_Alignas(SHM_LINE) shm_u32 bell;
	_Alignas(SHM_LINE) shm_u64 arm;
	_Alignas(SHM_LINE) shm_u32 ready_write;
	_Alignas(SHM_LINE) shm_u32 ready_read;
	_Alignas(SHM_HEADER_BYTES) shm_u32 ready[];
};
_Static_assert(offsetof(struct shm_group_head, bell) == 0x080, "docs/protocol/clan.md 2.1");
_Static_assert(offsetof(struct shm_group_head, arm) == 0x100, "docs/protocol/clan.md 2.1");
_Static_assert(offsetof(struct shm_group_head, ready_write) == 0x180, "docs/protocol/clan.md 2.1");
_Static_assert(offsetof(struct shm_group_head, ready_read) == 0x200, "docs/protocol/clan.md 2.1");
_Static_assert(offsetof(struct shm_group_head, ready) == 0x400, "docs/protocol/clan.md 2.1");

/* An entry of the cookie table. offset, bytes and generation are separate words; the other fields
 * are packed into one, so that every load is atomic. */
struct shm_cookie {
	shm_u64 offset;
	shm_u32 bytes;
	shm_u32 generation;
	shm_u64 rest; /* u16 region, u16 rights, u16 flags, u16 0 */
	uint64_t reserved;
};
_Static_assert(sizeof(struct shm_cookie) == 32, "docs/protocol/clan.md 2.2");

struct shm_tripwire {
	shm_u64 arm;
	shm_u64 offset;
	shm_u32 bytes;
	shm_u32 region; /* u16 region, u16 0 */
};
_Static_assert(sizeof(struct shm_tripwire) == 24, "docs/protocol/clan.md 2.2");

struct shm_conn_head {
	uint64_t magic;
	uint32_t version;
	uint32_t slots[SHM_CLASS_COUNT];
	uint32_t cookies;
	uint32_t tripwires;
	uint64_t bytes;
	_Alignas(SHM_LINE) shm_u64 want;
	_Alignas(SHM_LINE) shm_u32 write[SHM_CLASS_COUNT];
	_Alignas(SHM_LINE) shm_u32 read[SHM_CLASS_COUNT];
	shm_u32 cookies_popped;
	_Alignas(SHM_LINE) shm_u64 busy;
	_Alignas(SHM_LINE) shm_u64 end;
	_Alignas(SHM_HEADER_BYTES) uint8_t tables[];
};
_Static_assert(offsetof(struct shm_conn_head, slots) == 0x00c, "docs/protocol/clan.md 2.2");
_Static_assert(offsetof(struct shm_conn_head, bytes) == 0x020, "docs/protocol/clan.md 2.2");
_Static_assert(offsetof(struct shm_conn_head, want) == 0x080, "docs/protocol/clan.md 2.2");
_Static_assert(offsetof(struct shm_conn_head, write) == 0x100, "docs/protocol/clan.md 2.2");
_Static_assert(offsetof(struct shm_conn_head, read) == 0x180, "docs/protocol/clan.md 2.2");
_Static_assert(
	offsetof(struct shm_conn_head, cookies_popped) == 0x18c, "docs/protocol/clan.md 2.2");
_Static_assert(offsetof(struct shm_conn_head, busy) == 0x200, "docs/protocol/clan.md 2.2");
_Static_assert(offsetof(struct shm_conn_head, end) == 0x280, "docs/protocol/clan.md 2.2");
_Static_assert(offsetof(struct shm_conn_head, tables) == 0x400, "docs/protocol/clan.md 2.2");

/* The head of a message in a ring, loaded as one 8-byte word. */
struct shm_message_head {
	uint16_t bytes;
	uint8_t type;
	uint8_t reserved;
	uint16_t reserved2;
	uint16_t sequence;
};
_Static_assert(sizeof(struct shm_message_head) == SHM_HEAD_BYTES, "docs/protocol/clan.md 4");

struct shm_tripped {
	uint32_t tripwire;
	uint32_t reserved;
	uint64_t arm;
};

/* --- the socket (docs/protocol/clan.md §3) --------------------------------------------------- */

enum shm_socket_type {
	SHM_HELLO = 1,
	SHM_WELCOME,
	SHM_REFUSED,
	SHM_REGROUP,
	SHM_REGION,
	SHM_REGION_OK,
	SHM_REGION_END,
	SHM_REGION_ENDED,
	SHM_BELL = 0x0f,
};

struct shm_socket_head {
	uint16_t bytes;
	uint8_t type;
	uint8_t reserved;
	uint32_t reserved2;
};

struct shm_hello {
	struct shm_socket_head head;
	uint64_t magic;
	uint16_t version_min;
	uint16_t version_max;
	uint32_t bell; /* enum clan_bell: 1 or 2 */
	uint32_t number;
	uint32_t hello_bytes;
	uint64_t group;
};

struct shm_welcome {
	struct shm_socket_head head;
	uint16_t version;
	uint16_t reserved;
	uint32_t bell;
	uint32_t number;
	uint32_t hello_bytes;
	uint64_t group;
};

struct shm_refused {
	struct shm_socket_head head;
	uint32_t error;
	uint32_t text_bytes;
};

struct shm_region {
	struct shm_socket_head head;
	uint16_t region;
	uint16_t rights;
	uint32_t generation;
	uint64_t offset;
	uint64_t bytes;
};

/* REGION_OK (with an errno), REGION_END and REGION_ENDED. */
struct shm_region_answer {
	struct shm_socket_head head;
	uint16_t region;
	uint16_t error;
	uint32_t generation;
};
_Static_assert(sizeof(struct shm_hello) == 40 && sizeof(struct shm_welcome) == 32 &&
		       sizeof(struct shm_refused) == 16 && sizeof(struct shm_region) == 32 &&
		       sizeof(struct shm_region_answer) == 16,
	"docs/protocol/clan.md 3: no padding");

enum { SHM_SOCKET_MESSAGE_MAX = 4160 };
