// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the source of a job. start.c creates the source, source.c reads the pieces and sends
 * them, flow.c has the connections to the destination. If the destination is an NBD server without
 * push, nbd.c communicates with it.
 *
 * Threading: the ring's thread. Ownership: a source belongs to its session.
 */
#pragma once

#include "base/growth.h"
#include "engine/snapshot.h"
#include "push/session.h"

enum { PUSH_EXTENTS_MAX = 128, PUSH_SOURCE_SLOTS = PUSH_FLOWS_MAX * PUSH_SLOTS };

/* States of a slot; the transitions are in source.c. */
enum push_slot_state {
	SLOT_AWAY, /* it has no memory, or the destination has not lent its memory yet */
	SLOT_FREE,
	SLOT_READING,
	SLOT_READ,     /* waits for room to send CHECK, or to put the piece */
	SLOT_CHECKING, /* the destination compares */
	SLOT_PUTTING,
	SLOT_SENT,
	SLOT_STATE_COUNT
};

struct push_slot {
	struct push_source *source;
	enum push_slot_state state;
	bool asks;	 /* in READ: CHECK is sent first, and the piece only if it differs */
	bool is_back;	 /* PUTTING: the destination has already returned the slot's cookie */
	uint64_t offset; /* offset of the piece in the range */
	uint32_t length;
	uint32_t crc;
	struct push_flow *flow; /* PUTTING, SENT: the connection on which it was sent */
	uint32_t lent;		/* PUTTING, SENT: the destination's slot */
	/* if the destination's memory is mapped: the head of the piece, which is all that
	 * clan_put() sends */
	struct push_wire_piece head;
	struct mem_segment segment;
	struct path_request read;
};

/* States of a connection; the transitions are in flow.c. */
enum push_flow_state {
	FLOW_CLOSED,
	FLOW_CONNECTING, /* USED has not arrived */
	FLOW_OPEN,
	FLOW_LOST, /* the answer to DROP, or the end of the connection, has not arrived */
	FLOW_STATE_COUNT
};

/* A connection to the destination, and the slots that the destination has lent on it. Its clan
 * connection is session->out with the same index. */
struct push_flow {
	struct push_source *source;
	enum push_flow_state state;
	bool is_retiring; /* no more pieces are sent on it; it is closed when all are written */
	uint16_t region_number;
	uint32_t lent_count;
	bool has_cookie[PUSH_SLOTS];
	struct clan_cookie cookies[PUSH_SLOTS];
	struct push_slot *users[PUSH_SLOTS]; /* piece that was sent to the lent slot, or NULL */
	uint32_t quiet_ticks;		     /* ticks since the last message */

	/* LOST */
	bool has_asked; /* DROP was sent */
	bool has_answer;
	struct push_wire_dropped answer;
	uint32_t loss_count; /* consecutive losses; determines the time of the next attempt */
	uint64_t retry_ns;

	/* The memory of the slots from index * PUSH_SLOTS on: the destination's if it is mapped,
	 * else our own. It stays when the connection is lost, for the other connections. */
	struct clan_region *region; /* our own region */
	uint32_t staged_slots;
	struct mem_region memory; /* base is NULL: there is none */
};

struct push_nbd;

struct push_source {
	struct push_session *session;
	struct push_nbd *nbd; /* NULL unless the destination is an NBD server without push */
	struct push_wire_use use;
	uint64_t source_offset;
	uint64_t length;
	uint64_t rate;
	uint32_t flags;
	uint32_t target_uid; /* user of the destination, as in START */
	uint32_t start_flags;
	char *uri;		/* URI of the destination; NULL once the connection was started */
	struct tls_client *tls; /* the server's credentials for the destination; NULL: no TLS */
	struct engine_snapshot snapshot;

	/* Connections. Only connection 0 carries messages other than pieces. */
	char *address;	     /* of clan_connect(); or NULL */
	uint32_t flow_count; /* connections that are wanted */
	uint32_t flow_last;  /* index of the connection of the last piece */
	bool grows;	     /* flow_count is chosen by growth */
	struct growth growth;
	uint64_t grown_ns;    /* start of the window; 0: none has begun */
	uint64_t grown_bytes; /* progress at the start of the window */
	uint8_t target_instance[PUSH_INSTANCE_BYTES];
	struct push_flow flows[PUSH_FLOWS_MAX];

	/* Slots below slot_count can be in use. 0: the destination has lent none yet. */
	uint32_t slot_count;
	bool maps; /* the slots are the destination's memory; then there is one connection */
	struct push_slot slots[PUSH_SOURCE_SLOTS];

	bool no_zeroes; /* zeroes are written as data */
	/* pieces before this offset have been started */
	uint64_t at;
	/* ranges of ZEROs in flight; length 0: unused entry */
	struct push_wire_range zeroes[PUSH_ZEROES_MAX];
	uint32_t differ_count; /* consecutive pieces that differed */
	uint64_t rate_ns;      /* time from which the rate limit permits the next piece */

	bool flushing;
	bool finishing;
	uint64_t flush_mark;
	uint64_t flush_ns;

	/* The map of the source's extents from map_begin to map_end. Each extent starts at the end
	 * of the previous one. */
	struct path_request map;
	bool mapping;
	bool no_map;
	uint64_t map_begin;
	uint64_t map_end;
	uint32_t extent_count;
	struct store_extent extents[PUSH_EXTENTS_MAX];
};

/* --- source.c, for nbd.c and flow.c ------------------------------------------------------------
 */

/* Fails the job. The error text is format, with its one %s replaced by what. */
void push_source_fail(struct push_source *source, int status, const char *format, const char *what);
bool push_source_is_over(const struct push_source *source);
void push_source_set_state(struct push_slot *slot, enum push_slot_state state);
/* Called when the destination has the piece. skipped: the destination had the same data already, so
 * it was not sent. */
void push_source_piece_done(struct push_slot *slot, bool skipped);
/* Called when the slots of connection 0 are available: the job starts to move data. */
void push_source_lent(struct push_source *source, uint32_t silence_ms);
/* Called when the end of a put was reported, and when the destination has written the piece. */
void push_source_put_ended(struct push_slot *slot);
void push_source_put_done(struct push_slot *slot);
/* --- flow.c ----------------------------------------------------------------------------------- */

/* Starts the connection with the number `index` to source->address. */
GMB_MUST_CHECK int push_flow_dial(struct push_source *source, uint32_t index);
/* Returns the connection on which to put the piece, with the lent slot; NULL if no slot is free. */
struct push_flow *push_flow_choose(const struct push_slot *slot, uint32_t *lent_out);
/* Sends a message on connection 0. Returns false if the ring is full or the connection has ended;
 * an event reports room or the end. */
bool push_flow_tell(struct push_source *source, uint32_t type, const void *bytes, uint32_t len);
/* Takes cookies; opens, drops and closes connections as far as possible. */
void push_flow_advance(struct push_source *source);
void push_flow_tick(struct push_source *source);
/* Returns the memory of a slot, which starts with its head. */
struct mem_ref push_slot_memory(const struct push_slot *slot);
uint8_t *push_slot_data(const struct push_slot *slot);
/* Allocates our own staging memory for the slots of a connection and sets staged_slots. Returns
 * -EBUSY if other jobs use the memory, or an error of clan_region_create(). */
GMB_MUST_CHECK int push_flow_own_slots(
	struct push_flow *flow, uint32_t slots_min, uint32_t slots_max, void **base_out);
/* The memory of a connection's slots is at base, with room for `slots`. */
void push_flow_has_memory(struct push_flow *flow, void *base, uint32_t slots);
/* Returns the text for a result of push_flow_own_slots(). */
const char *push_memory_text(int result);
/* Unregisters the memory. No slot may be in use by a read. */
void push_flow_release(struct push_source *source);
/* Frees the memory. */
void push_flow_free(struct push_source *source);

/* --- source.c, for nbd.c and flow.c ------------------------------------------------------------
 */

/* Called when an operation has completed at the destination. */
void push_source_written(struct push_slot *slot);
void push_source_zeroed(struct push_source *source, const struct push_wire_range *zeroed);
void push_source_checked(struct push_source *source, const struct push_wire_checked *checked);
void push_source_flushed(struct push_source *source, const struct push_wire_flush *flushed);

/* --- nbd.c ------------------------------------------------------------------------------------ */

/* Connects to the destination. START is answered when the destination is open and suitable. uri: as
 * in START, already checked. Returns 0, or a negative errno with *text. */
GMB_MUST_CHECK int push_nbd_begin(
	struct push_source *source, const char *uri, bool detach, const char **text);
/* Writes a piece that was read. If slot->asks, reads the data of the destination instead, and
 * compares it with the piece. */
void push_nbd_send(struct push_slot *slot);
void push_nbd_zero(struct push_source *source, uint32_t number, const struct push_wire_range *zero);
void push_nbd_flush(struct push_source *source, const struct push_wire_flush *flush);
void push_nbd_abort(struct push_nbd *nbd);
/* Returns true if no operation is in flight. */
bool push_nbd_join(const struct push_nbd *nbd);
void push_nbd_free(struct push_nbd *nbd);
