// SPDX-License-Identifier: Apache-2.0
/*
 * The wire format of push, docs/protocol/push.md: layouts and parsers of messages, of the head of a
 * piece, and of tickets. The texts name the rules H1 to H10.
 *
 * Invariant: parsers work on private memory, never on memory that a peer can change. Threading:
 * pure functions. Ownership: parsed messages borrow from the bytes that were parsed. Errors:
 * parsers return NULL, or a static text with the broken rule.
 */
#pragma once

#include <endian.h>
#include <gmblock/clan.h>

#include "base/message.h"

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "layouts are used as they are");

#define PUSH_MAGIC	  UINT64_C(0x3168737570626d67) /* the bytes "gmbpush1" */
#define PUSH_TICKET_MAGIC UINT32_C(0x314b5450)	       /* "PTK1" */
#define PUSH_PIECE_MAGIC  UINT32_C(0x31435050)	       /* "PPC1" */

enum {
	PUSH_VERSION = 1,
	PUSH_INSTANCE_BYTES = 16,
	PUSH_MACHINE_BYTES = 16,
	PUSH_ADDRESS_BYTES = 16, /* IPv6; IPv4 is mapped */
	PUSH_MAC_BYTES = 32,	 /* HMAC-SHA-256 */
	PUSH_NAME_BYTES_MAX = 2048,
	PUSH_URI_BYTES_MAX = 2048,
	PUSH_TEXT_BYTES_MAX = 512,
	PUSH_MESSAGE_BYTES_MAX = 8184, /* limit of clan's bulk class */

	/* Pieces start at multiples of this size, relative to the range of the job. Only the last
	 * one can be shorter. */
	PUSH_PIECE_BYTES = 1 << 20,
	/* A slot of staging memory. The bytes of a piece follow its head, which ends at this
	 * offset. */
	PUSH_SLOT_HEAD_BYTES = 4096,
	PUSH_SLOT_BYTES = PUSH_SLOT_HEAD_BYTES + PUSH_PIECE_BYTES,
	PUSH_SLOTS = 8,		/* limit on slots that are lent on one connection */
	PUSH_ZEROES_MAX = 4,	/* limit on unanswered ZEROs */
	PUSH_FLOWS_MAX = 8,	/* limit on connections of a job, each with its own slots */
	PUSH_NOTIFY_PIECE = 1,	/* type of a notification; the lower bits are the slot */
	PUSH_NOTIFY_SHIFT = 12, /* position of the type in a notification's value */
	PUSH_SILENCE_MS_MIN = 300,
	PUSH_SILENCE_MS_MAX = 3600000,
	PUSH_ALIVE_DIVISOR = 3, /* ALIVE is sent every silence_ms / 3 */
};

#define PUSH_UID_UNKNOWN UINT32_MAX

/* A ZERO covers a run of pieces. */
#define PUSH_ZERO_BYTES_MAX (UINT64_C(64) << 20)

enum push_message {
	/* Messages from coordinator to server. */
	PUSH_LOOK = 0x01,
	PUSH_GRANT,
	PUSH_START,
	PUSH_JOBS,
	PUSH_CANCEL,
	/* Messages from server to coordinator. */
	PUSH_ANSWER = 0x08,
	PUSH_JOB,
	/* Messages from source to destination. */
	PUSH_USE = 0x10,
	PUSH_ZERO,
	PUSH_CHECK,
	PUSH_FLUSH,
	PUSH_ALIVE, /* sent by source and destination */
	PUSH_JOIN,  /* first message of an additional connection */
	PUSH_DROP,
	/* Messages from destination to source. */
	PUSH_USED = 0x18,
	PUSH_ZEROED,
	PUSH_CHECKED,
	PUSH_FLUSHED,
	PUSH_FAILED,
	PUSH_DROPPED,
};

/* Flags of GRANT, START and tickets. */
enum push_flag {
	PUSH_DETACH = 1,    /* START: the job continues when the coordinator leaves */
	PUSH_COMPARE = 2,   /* existing identical data is not pushed */
	PUSH_READ_BACK = 4, /* the complete range is read back at the end */
	/* START: the destination is an NBD server without push, so there is no ticket */
	PUSH_NBD = 8,
	PUSH_LIVE = 16, /* START: read the live export, without a snapshot */
	PUSH_FLAGS = PUSH_DETACH | PUSH_COMPARE | PUSH_READ_BACK | PUSH_NBD | PUSH_LIVE,
};

/* The user or machine to which a ticket is bound. Nobody else may present it. */
enum push_binding {
	PUSH_BOUND_UID = 1,	/* a process of the given user, over a Unix socket */
	PUSH_BOUND_ADDRESS = 2, /* a machine with the given address */
	PUSH_BOUND_ASKER = 3,	/* GRANT: the machine (or the user) of the requester */
};

enum push_look_flag { PUSH_LOOK_READ = 1, PUSH_LOOK_WRITE = 2 };
enum push_flush_flag { PUSH_FLUSH_FINISH = 1 };
enum push_role { PUSH_SOURCE = 1, PUSH_SINK = 2 };

enum push_job_state {
	PUSH_JOB_BEGINS = 1, /* the other end has not answered */
	PUSH_JOB_MOVES,
	PUSH_JOB_FINISHES, /* all data is written; flushing, perhaps reading back */
	PUSH_JOB_DONE,
	PUSH_JOB_FAILED,
	PUSH_JOB_STATE_END,
};

/* --- layouts --------------------------------------------------------------------------------- */

/* The hello that we send: struct message_hello. */
extern const struct message_hello push_hello;

struct push_wire_welcome {
	uint64_t magic;
	uint16_t version;
	uint16_t zero;
	uint32_t zero_2;
	uint8_t instance[PUSH_INSTANCE_BYTES];
};

/* LOOK: followed by the export name, name_bytes long. */
struct push_wire_look {
	uint16_t name_bytes;
	uint16_t zero;
	uint32_t zero_2;
};

/* JOBS: the cursor of the previous job, or 0 for the first. CANCEL: the number of the job. */
struct push_wire_job_number {
	uint64_t job;
};

/* GRANT: followed by the name of the export to write, and by the name of the export that the source
 * reads. */
struct push_wire_grant {
	uint64_t offset;
	uint64_t length;
	uint64_t source_offset;
	uint32_t flags;
	uint32_t binding; /* enum push_binding */
	uint32_t uid;
	uint16_t name_bytes;
	uint16_t source_name_bytes;
	uint8_t address[PUSH_ADDRESS_BYTES];
	uint8_t instance[PUSH_INSTANCE_BYTES]; /* instance of the source */
};

/* START: followed by the name of the source's export, the URI of the destination, and the ticket.
 * With PUSH_NBD only flags, offset and length of the ticket are not 0. */
struct push_wire_start {
	uint64_t source_offset;
	uint64_t length;
	uint64_t rate; /* bytes per second; 0: no limit */
	uint32_t flags;
	uint16_t name_bytes;
	uint16_t uri_bytes;
	/* user of the destination's process, as seen by the coordinator; or PUSH_UID_UNKNOWN */
	uint32_t uid;
	/* connections to the destination, up to PUSH_FLOWS_MAX; 0: the source chooses */
	uint32_t connections;
};

/* ANSWER: followed by a text, and for GRANT with status 0 by a ticket. */
struct push_wire_answer {
	uint32_t status; /* Linux errno */
	uint32_t flags;	 /* LOOK: enum push_look_flag */
	uint64_t value;	 /* LOOK: the size; GRANT, START: the job */
	uint16_t text_bytes;
	uint16_t ticket_bytes;
	uint32_t zero;
};

/* JOB: followed by the name of the export, a text about the other side, and the error text. */
struct push_wire_job {
	uint64_t job;
	uint64_t cursor; /* number for the next JOBS */
	uint64_t offset; /* start of the range on that export */
	uint64_t length;
	uint64_t done;	  /* handled bytes: written, zeroed, or already there */
	uint64_t zeroes;  /* part of `done` that is zeroes */
	uint64_t skipped; /* part of `done` that was already there */
	uint64_t durable; /* all bytes before this are on stable storage */
	uint64_t digest;  /* digest of the handled pieces */
	uint64_t age_ms;
	uint32_t status; /* FAILED: Linux errno */
	uint8_t role;	 /* enum push_role */
	uint8_t state;	 /* enum push_job_state */
	uint16_t name_bytes;
	uint16_t peer_bytes;
	uint16_t text_bytes;
	uint32_t zero;
};

struct push_wire_ticket {
	uint32_t magic;
	uint16_t version;
	uint16_t flags; /* PUSH_COMPARE, PUSH_READ_BACK */
	uint64_t job;
	uint64_t offset;
	uint64_t length;
	uint64_t expires_s; /* expiry time by the clock of the issuer */
	uint32_t binding;   /* PUSH_BOUND_UID or PUSH_BOUND_ADDRESS */
	uint32_t uid;
	uint8_t address[PUSH_ADDRESS_BYTES];
	uint8_t instance[PUSH_INSTANCE_BYTES];
	uint8_t mac[PUSH_MAC_BYTES];
};

struct push_wire_use {
	uint8_t instance[PUSH_INSTANCE_BYTES]; /* instance of the source */
	struct push_wire_ticket ticket;
	/* Position on disk of the range that the source reads, as in struct store_place. From this
	 * position the destination detects that its own export has the same bytes. disk is 0 if no
	 * other export can have the same bytes. */
	uint8_t machine[PUSH_MACHINE_BYTES];
	uint64_t disk[2];
	uint64_t at;
};

/* One more connection of a job that has begun with USE. */
struct push_wire_join {
	uint8_t instance[PUSH_INSTANCE_BYTES]; /* as in USE, like the ticket */
	struct push_wire_ticket ticket;
	uint32_t number; /* of the connection, from 1; USE has number 0 */
	uint32_t zero;
};

/* Asks what has become of the pieces on an additional connection, which must end. */
struct push_wire_drop {
	uint32_t number;
	uint32_t zero;
};

#define PUSH_NOT_WRITTEN UINT64_MAX

/* The connection has ended, and none of its pieces is being written any more. */
struct push_wire_dropped {
	uint32_t number;
	uint32_t zero;
	/* for each slot of the connection, the offset of the last piece that was written from it,
	 * or PUSH_NOT_WRITTEN */
	uint64_t written[PUSH_SLOTS];
};

struct push_wire_used {
	uint64_t offset; /* offset of the range to write, as in the ticket */
	uint64_t length;
	uint32_t slots;
	uint32_t generation; /* generation of the region */
	uint16_t region;
	uint16_t zero;
	/* the destination ends the job if it receives no message for this time */
	uint32_t silence_ms;
};

/* ZERO and ZEROED. Offsets are relative to the job's range. */
struct push_wire_range {
	uint64_t offset;
	uint64_t length;
};

struct push_wire_check {
	uint64_t offset;
	uint32_t length;
	uint32_t crc;
};

struct push_wire_checked {
	uint64_t offset;
	uint32_t same;
	uint32_t zero;
};

struct push_wire_flush {
	uint64_t mark; /* number that FLUSHED returns */
	uint64_t digest;
	uint32_t flags; /* enum push_flush_flag */
	uint32_t zero;
};

/* FAILED: followed by a text. */
struct push_wire_failed {
	uint32_t status;
	uint16_t text_bytes;
	uint16_t zero;
};

/* The head of a piece, directly before its bytes in the slot. */
struct push_wire_piece {
	uint32_t magic;
	uint32_t crc; /* CRC-32C of the bytes */
	uint64_t offset;
	uint32_t length;
	uint32_t zero[11];
};

_Static_assert(sizeof(struct push_wire_ticket) == 112, "layout");
_Static_assert(sizeof(struct push_wire_use) == 168, "layout");
_Static_assert(sizeof(struct push_wire_join) == 136, "layout");
_Static_assert(sizeof(struct push_wire_grant) == 72, "layout");
_Static_assert(sizeof(struct push_wire_start) == 40, "layout");
_Static_assert(sizeof(struct push_wire_answer) == 24, "layout");
_Static_assert(sizeof(struct push_wire_job) == 96, "layout");
_Static_assert(sizeof(struct push_wire_piece) == 64, "layout");
_Static_assert(PUSH_SLOTS < 1 << PUSH_NOTIFY_SHIFT, "a notification names every slot");
_Static_assert((int)PUSH_NAME_BYTES_MAX + (int)PUSH_URI_BYTES_MAX +
			       (int)sizeof(struct push_wire_start) +
			       (int)sizeof(struct push_wire_ticket) <
		       (int)PUSH_MESSAGE_BYTES_MAX,
	"START fits");

/* --- parsers --------------------------------------------------------------------------------- */

struct push_look {
	struct push_wire_look head;
	struct message_text name;
};

struct push_failed {
	struct push_wire_failed head;
	struct message_text text; /* may contain any bytes */
};

struct push_grant {
	struct push_wire_grant head;
	struct message_text name, source_name;
};

struct push_start {
	struct push_wire_start head;
	struct message_text name, uri, rest;
	struct push_wire_ticket ticket;
};

struct push_answer {
	struct push_wire_answer head;
	struct message_text text, rest; /* may contain any bytes */
	bool has_ticket;
	struct push_wire_ticket ticket;
};

struct push_job_message {
	struct push_wire_job head;
	struct message_text name, peer, text; /* may contain any bytes */
};

/* Parses a message. object points to a struct push_wire_... (messages without variable parts) or to
 * one of the structs above. */
const char *push_parse(enum push_message type, const void *bytes, size_t len, void *object);
/* Checks the peer's hello. *known_out: whether its range of versions includes ours. */
const char *push_hello_parse(const void *bytes, size_t len, bool *known_out);
const char *push_welcome_parse(const void *bytes, size_t len, struct push_wire_welcome *welcome);
const char *push_alive_parse(size_t len);
/* Check that a ZERO is a run of whole pieces in a range of `total` bytes, and that a CHECK is one
 * piece. */
const char *push_zero_check(const struct push_wire_range *zero, uint64_t total);
const char *push_check_check(const struct push_wire_check *check, uint64_t total);
/* Checks the head of a piece. It must be a private copy, because the peer can change the slot. */
const char *push_piece_check(const struct push_wire_piece *piece, uint64_t total);

/* --- tickets --------------------------------------------------------------------------------- */

enum { PUSH_KEY_BYTES = 32 };

/* Fills in magic, version and mac; the caller has set the other fields. Returns -EIO if the crypto
 * library fails. */
GMB_MUST_CHECK int push_ticket_seal(
	struct push_wire_ticket *ticket, const uint8_t key[PUSH_KEY_BYTES]);

/* The peer that presents a ticket. */
struct push_shower {
	bool has_uid, has_address;
	uint32_t uid;
	uint8_t address[PUSH_ADDRESS_BYTES];
	uint8_t instance[PUSH_INSTANCE_BYTES];
};

/* Checks that a ticket was made with that key, has not expired, and is presented by its permitted
 * user. Returns NULL, or the reason as an error message. The comparison of the MAC takes constant
 * time. */
const char *push_ticket_check(const struct push_wire_ticket *ticket,
	const uint8_t key[PUSH_KEY_BYTES], uint64_t now_s, const struct push_shower *shower);

/* Checks that this peer may present the ticket. Returns NULL, or the reason. */
const char *push_ticket_fits(
	const struct push_wire_ticket *ticket, const struct push_shower *shower);

/* --- the digest ------------------------------------------------------------------------------ */

/* Returns the contribution of a piece to the digest of its job. The digest is a sum modulo 2^64, so
 * it does not depend on the order of the pieces. */
uint64_t push_digest(uint64_t offset, uint32_t length, uint32_t crc);
/* Returns the contribution of a run of zero pieces. */
uint64_t push_digest_zeroes(uint64_t offset, uint64_t length);
