// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the source of a job: start.c makes it, source.c runs it, and nbd.c stands for a
 * destination that has no push.
 *
 * Threading: the ring's thread. Ownership: of its session.
 */
#pragma once

#include "engine/view.h"
#include "push/session.h"

enum { PUSH_EXTENTS_MAX = 128 };

enum push_slot_state {
	SLOT_AWAY,
	SLOT_FREE,
	SLOT_READING,
	SLOT_READ,     /* there is no room to ask about it, or to put it */
	SLOT_CHECKING, /* the destination compares */
	SLOT_PUTTING,
	SLOT_SENT,
	SLOT_STATE_COUNT
};

struct push_slot {
	struct push_source *source;
	enum push_slot_state state;
	bool asks;	 /* READ: whether it is there already */
	bool is_back;	 /* PUTTING: its cookie has come already */
	uint64_t offset; /* in the range */
	uint32_t length;
	uint32_t crc;
	struct clan_cookie cookie;
	struct push_wire_piece head; /* where the destination's memory is mapped */
	struct mem_segment segment;
	struct path_request read;
};

struct push_nbd;

struct push_source {
	struct push_session *session;
	struct push_nbd *nbd; /* the destination has no push; else NULL */
	struct push_wire_use use;
	uint64_t source_offset;
	uint64_t length;
	uint64_t rate;
	uint32_t flags;
	uint32_t target_uid; /* as in START */
	uint32_t start_flags;
	char *uri; /* of the destination; NULL: the source has connected, or is about to */
	struct tls_client *tls; /* credentials for it, of the server; NULL: no TLS */
	struct engine_view view;

	/* Slots: the destination's memory, or ours. */
	uint32_t slot_count; /* that are used; 0: not lent yet */
	uint32_t lent_count;
	bool maps;
	uint16_t region_number;
	struct clan_region *region; /* ours */
	uint32_t staged_slots;
	struct mem_region memory; /* base is NULL: none */
	struct push_slot slots[PUSH_SLOTS];

	bool no_zeroes;					/* they are data to the destination */
	uint64_t at;					/* up to here everything was begun */
	struct push_wire_range zeroes[PUSH_ZEROES_MAX]; /* length 0: none */
	uint32_t differ_count;				/* pieces in a row */
	uint64_t rate_ns; /* the time up to here is used for what was begun */

	bool flushing;
	bool finishing;
	uint64_t flush_mark;
	uint64_t flush_ns;

	/* The map of the source, as of copies: extents one after the other, up to map_end. */
	struct path_request map;
	bool mapping;
	bool no_map;
	uint64_t map_begin;
	uint64_t map_end;
	uint32_t extent_count;
	struct store_extent extents[PUSH_EXTENTS_MAX];
};

/* --- source.c, for nbd.c ---------------------------------------------------------------------- */

/* format has one %s. */
void push_source_fail(struct push_source *source, int status, const char *format, const char *what);
bool push_source_is_over(const struct push_source *source);
uint8_t *push_slot_data(const struct push_source *source, const struct push_slot *slot);
/* Memory of our own for so many slots: staged_slots. -EBUSY: others have it. */
GMB_MUST_CHECK int push_source_own_slots(
	struct push_source *source, uint32_t slots_min, uint32_t slots_max, void **base_out);
/* Why it has failed. */
const char *push_memory_text(int result);
/* There are slot_count slots at base: the job begins. */
void push_source_lent(struct push_source *source, void *base, uint32_t silence_ms);
/* What was begun is done at the destination. */
void push_source_written(struct push_slot *slot);
void push_source_zeroed(struct push_source *source, const struct push_wire_range *zeroed);
void push_source_checked(struct push_source *source, const struct push_wire_checked *checked);
void push_source_flushed(struct push_source *source, const struct push_wire_flush *flushed);

/* --- nbd.c ------------------------------------------------------------------------------------ */

/* Connects to the destination; START is answered when it is open and suits the job. uri: as in
 * START, and checked. */
GMB_MUST_CHECK int push_nbd_begin(
	struct push_source *source, const char *uri, bool detach, const char **text);
/* Asks about a piece that was read, or writes it. */
void push_nbd_send(struct push_slot *slot);
void push_nbd_zero(struct push_source *source, uint32_t number, const struct push_wire_range *zero);
void push_nbd_flush(struct push_source *source, const struct push_wire_flush *flush);
void push_nbd_abort(struct push_nbd *nbd);
/* True when nothing is in flight. */
bool push_nbd_join(const struct push_nbd *nbd);
void push_nbd_free(struct push_nbd *nbd);
