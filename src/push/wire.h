// SPDX-License-Identifier: Apache-2.0
/*
 * The wire format of push, docs/protocol/push.md, whose rules H1 to H10 are named here: messages,
 * the head of a piece, and tickets.
 *
 * What: layouts, and parsers of what a peer sent, in private memory. Threading: pure functions.
 * Ownership: parsed messages borrow from the bytes they were parsed from. Errors: parsers return
 * NULL, or the broken rule and what is wrong, static text.
 */
#pragma once

#include <endian.h>
#include <gmblock/clan.h>

#include "base/message.h"

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "layouts are used as they are");

#define PUSH_MAGIC	  UINT64_C(0x3168737570626d67) /* "gmbpush1" */
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
	PUSH_MESSAGE_BYTES_MAX = 8184, /* clan's bulk class */

	/* The unit of everything: a piece begins at a multiple of it from the beginning of the
	 * job's range, and only the last one is shorter. */
	PUSH_PIECE_BYTES = 1 << 20,
	/* A slot of staging memory: the head of a piece ends where its bytes begin. */
	PUSH_SLOT_HEAD_BYTES = 4096,
	PUSH_SLOT_BYTES = PUSH_SLOT_HEAD_BYTES + PUSH_PIECE_BYTES,
	PUSH_SLOTS = 8,		/* of a job */
	PUSH_ZEROES_MAX = 4,	/* ZERO without ZEROED */
	PUSH_NOTIFY_PIECE = 1,	/* type of a notification; the slot is in the bits below */
	PUSH_NOTIFY_SHIFT = 12, /* where the type begins */
	PUSH_SILENCE_MS_MIN = 300,
	PUSH_SILENCE_MS_MAX = 3600000,
	PUSH_ALIVE_DIVISOR = 3, /* of the silence: so often ALIVE is sent */
};

#define PUSH_UID_UNKNOWN UINT32_MAX

/* A ZERO is a run of pieces. */
#define PUSH_ZERO_BYTES_MAX (UINT64_C(64) << 20)

enum push_message {
	/* coordinator to server */
	PUSH_LOOK = 0x01,
	PUSH_GRANT,
	PUSH_START,
	PUSH_JOBS,
	PUSH_CANCEL,
	/* server to coordinator */
	PUSH_ANSWER = 0x08,
	PUSH_JOB,
	/* source to destination */
	PUSH_USE = 0x10,
	PUSH_ZERO,
	PUSH_CHECK,
	PUSH_FLUSH,
	PUSH_ALIVE, /* and destination to source */
	/* destination to source */
	PUSH_USED = 0x18,
	PUSH_ZEROED,
	PUSH_CHECKED,
	PUSH_FLUSHED,
	PUSH_FAILED,
};

/* Of GRANT, START and tickets. */
enum push_flag {
	PUSH_DETACH = 1,    /* START: the job goes on when the coordinator leaves */
	PUSH_COMPARE = 2,   /* what the destination holds already is not pushed again */
	PUSH_READ_BACK = 4, /* the destination is read back at the end, all of it */
	PUSH_NBD = 8,	    /* START: the destination has no push, and so no ticket */
	PUSH_LIVE = 16,	    /* START: as clients write it, without a snapshot */
	PUSH_FLAGS = PUSH_DETACH | PUSH_COMPARE | PUSH_READ_BACK | PUSH_NBD | PUSH_LIVE,
};

/* Who may use a ticket. */
enum push_binding {
	PUSH_BOUND_UID = 1,	/* a process of that user, over a Unix socket */
	PUSH_BOUND_ADDRESS = 2, /* a machine, by its address */
	PUSH_BOUND_ASKER = 3,	/* GRANT: the machine (or the user) that asks for the ticket */
};

enum push_look_flag { PUSH_LOOK_READ = 1, PUSH_LOOK_WRITE = 2 };
enum push_flush_flag { PUSH_FLUSH_FINISH = 1 };
enum push_role { PUSH_SOURCE = 1, PUSH_SINK = 2 };

enum push_job_state {
	PUSH_JOB_BEGINS = 1, /* the other side has not answered */
	PUSH_JOB_MOVES,
	PUSH_JOB_FINISHES, /* all is written: it is made durable, and perhaps read back */
	PUSH_JOB_DONE,
	PUSH_JOB_FAILED,
	PUSH_JOB_STATE_END,
};

/* --- layouts --------------------------------------------------------------------------------- */

/* What we say: struct message_hello. */
extern const struct message_hello push_hello;

struct push_wire_welcome {
	uint64_t magic;
	uint16_t version;
	uint16_t zero;
	uint32_t zero_2;
	uint8_t instance[PUSH_INSTANCE_BYTES];
};

/* LOOK: name_bytes follow. */
struct push_wire_look {
	uint16_t name_bytes;
	uint16_t zero;
	uint32_t zero_2;
};

/* JOBS: 0, or the cursor of the last one; CANCEL: the job. */
struct push_wire_job_number {
	uint64_t job;
};

/* The name follows, then that of the export at the source. */
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
	uint8_t instance[PUSH_INSTANCE_BYTES]; /* of the source */
};

/* The name of the source's export follows, the URI of the destination, and the ticket, of which
 * with PUSH_NBD only flags, offset and length are not 0. */
struct push_wire_start {
	uint64_t source_offset;
	uint64_t length;
	uint64_t rate; /* bytes a second; 0: no limit */
	uint32_t flags;
	uint16_t name_bytes;
	uint16_t uri_bytes;
	uint32_t uid; /* of the destination, as the coordinator sees it; PUSH_UID_UNKNOWN */
	uint32_t zero;
};

/* A text follows, then a ticket (GRANT, with status 0) or nothing. */
struct push_wire_answer {
	uint32_t status; /* errno of Linux */
	uint32_t flags;	 /* LOOK: enum push_look_flag */
	uint64_t value;	 /* LOOK: the size; GRANT, START: the job */
	uint16_t text_bytes;
	uint16_t ticket_bytes;
	uint32_t zero;
};

/* The name of the export follows, a text about the other side, and why it failed. */
struct push_wire_job {
	uint64_t job;
	uint64_t cursor; /* for JOBS */
	uint64_t offset; /* on that export */
	uint64_t length;
	uint64_t done;	  /* of length: written, zeroed, or found to be there */
	uint64_t zeroes;  /* of done */
	uint64_t skipped; /* of done: was there */
	uint64_t durable; /* up to here everything is on stable storage */
	uint64_t digest;  /* of what is done */
	uint64_t age_ms;
	uint32_t status; /* FAILED: errno of Linux */
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
	uint64_t expires_s; /* by the clock of who made it */
	uint32_t binding;   /* PUSH_BOUND_UID or PUSH_BOUND_ADDRESS */
	uint32_t uid;
	uint8_t address[PUSH_ADDRESS_BYTES];
	uint8_t instance[PUSH_INSTANCE_BYTES];
	uint8_t mac[PUSH_MAC_BYTES];
};

struct push_wire_use {
	uint8_t instance[PUSH_INSTANCE_BYTES]; /* of the source */
	struct push_wire_ticket ticket;
	/* Where the range begins: see struct store_place. disk is 0: nowhere that others see. */
	uint8_t machine[PUSH_MACHINE_BYTES];
	uint64_t disk[2];
	uint64_t at;
};

struct push_wire_used {
	uint64_t offset; /* as in the ticket */
	uint64_t length;
	uint32_t slots;
	uint32_t generation; /* of the region */
	uint16_t region;
	uint16_t zero;
	uint32_t silence_ms; /* who hears nothing for so long ends the job */
};

/* ZERO, ZEROED. Offsets count from the beginning of the range. */
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
	uint64_t mark; /* FLUSHED gives it back */
	uint64_t digest;
	uint32_t flags; /* enum push_flush_flag */
	uint32_t zero;
};

/* A text follows. */
struct push_wire_failed {
	uint32_t status;
	uint16_t text_bytes;
	uint16_t zero;
};

/* Before the bytes of a piece, in its slot. */
struct push_wire_piece {
	uint32_t magic;
	uint32_t crc; /* CRC-32C of the bytes */
	uint64_t offset;
	uint32_t length;
	uint32_t zero[11];
};

_Static_assert(sizeof(struct push_wire_ticket) == 112, "layout");
_Static_assert(sizeof(struct push_wire_use) == 168, "layout");
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
	struct message_text text; /* not checked */
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
	struct message_text text, rest; /* not checked */
	bool has_ticket;
	struct push_wire_ticket ticket;
};

struct push_job_message {
	struct push_wire_job head;
	struct message_text name, peer, text; /* not checked */
};

/* object: a struct push_wire_ without parts, or of this header. */
const char *push_parse(enum push_message type, const void *bytes, size_t len, void *object);
/* *known_out: whether it asks for a version that we know. */
const char *push_hello_parse(const void *bytes, size_t len, bool *known_out);
const char *push_welcome_parse(const void *bytes, size_t len, struct push_wire_welcome *welcome);
const char *push_alive_parse(size_t len);
/* A ZERO is a run of pieces in a range of total bytes, a CHECK is one. NULL: yes. */
const char *push_zero_check(const struct push_wire_range *zero, uint64_t total);
const char *push_check_check(const struct push_wire_check *check, uint64_t total);
/* The head of a piece, which was copied from the slot. */
const char *push_piece_check(const struct push_wire_piece *piece, uint64_t total);

/* --- tickets --------------------------------------------------------------------------------- */

enum { PUSH_KEY_BYTES = 32 };

/* Writes magic, version and mac; the rest is set. -EIO: the library of ciphers refuses. */
GMB_MUST_CHECK int push_ticket_seal(
	struct push_wire_ticket *ticket, const uint8_t key[PUSH_KEY_BYTES]);

/* Who shows a ticket. */
struct push_shower {
	bool has_uid, has_address;
	uint32_t uid;
	uint8_t address[PUSH_ADDRESS_BYTES];
	uint8_t instance[PUSH_INSTANCE_BYTES];
};

/* NULL: it was made with that key, has not expired, and is used by who may use it. Otherwise why
 * not, a sentence without its full stop. Constant time up to the decision about the key. */
const char *push_ticket_check(const struct push_wire_ticket *ticket,
	const uint8_t key[PUSH_KEY_BYTES], uint64_t now_s, const struct push_shower *shower);

/* --- the digest ------------------------------------------------------------------------------ */

/* What a piece adds to the digest of its job: a sum (modulo 2^64), so that the order of pieces is
 * all one. */
uint64_t push_digest(uint64_t offset, uint32_t length, uint32_t crc);
/* The same of a run of pieces that are zeroes, in a range of total bytes. */
uint64_t push_digest_zeroes(uint64_t offset, uint64_t length);
