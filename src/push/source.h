// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the source of a job: start.c makes it, source.c runs it.
 *
 * Threading: the ring's thread. Ownership: of its session.
 */
#pragma once

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

struct push_source {
	struct push_session *session;
	struct push_wire_use use;
	uint64_t source_offset;
	uint64_t length;
	uint64_t rate;
	uint32_t flags;
	uint32_t target_uid; /* as in START */

	/* Slots: the destination's memory, or ours. */
	uint32_t slot_count; /* that are used; 0: not lent yet */
	uint32_t lent_count;
	bool maps;
	uint16_t region_number;
	struct clan_region *region; /* ours */
	uint32_t staged_slots;
	struct mem_region memory; /* base is NULL: none */
	struct push_slot slots[PUSH_SLOTS];

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
