// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the source of a job. start.c creates the source, source.c runs it. If the destination
 * is an NBD server without push, nbd.c communicates with it.
 *
 * Threading: the ring's thread. Ownership: a source belongs to its session.
 */
#pragma once

#include "engine/snapshot.h"
#include "push/session.h"

enum { PUSH_EXTENTS_MAX = 128 };

/* States of a slot; the transitions are in source.c. */
enum push_slot_state {
	SLOT_AWAY,
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
	struct clan_cookie cookie;
	/* if the destination's memory is mapped: the head of the piece, which is all that
	 * clan_put() sends */
	struct push_wire_piece head;
	struct mem_segment segment;
	struct path_request read;
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

	/* Slots: the destination's memory if it is mapped, else our own. */
	uint32_t slot_count; /* slots in use; 0: the destination has lent none yet */
	uint32_t lent_count;
	bool maps;
	uint16_t region_number;
	struct clan_region *region; /* our own region */
	uint32_t staged_slots;
	struct mem_region memory; /* the slots' memory; base is NULL: there is none */
	struct push_slot slots[PUSH_SLOTS];

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

/* --- source.c, for nbd.c ---------------------------------------------------------------------- */

/* Fails the job. The error text is format, with its one %s replaced by what. */
void push_source_fail(struct push_source *source, int status, const char *format, const char *what);
bool push_source_is_over(const struct push_source *source);
uint8_t *push_slot_data(const struct push_source *source, const struct push_slot *slot);
/* Allocates our own staging memory and sets staged_slots. Returns -EBUSY if other jobs use the
 * memory, or an error of clan_region_create(). */
GMB_MUST_CHECK int push_source_own_slots(
	struct push_source *source, uint32_t slots_min, uint32_t slots_max, void **base_out);
/* Returns the text for a result of push_source_own_slots(). */
const char *push_memory_text(int result);
/* Called when slot_count slots are available at base: the job starts to move data. */
void push_source_lent(struct push_source *source, void *base, uint32_t silence_ms);
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
