// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the destination of a job. sink_start.c takes the ticket and lends the slots; sink.c
 * writes the pieces that arrive in them.
 *
 * Threading: the ring's thread. Ownership: a sink belongs to its session. Errors: sink_start.c ends
 * the session. The group of the job (group.h) informs the other connections.
 */
#pragma once

#include "push/group.h"
#include "push/session.h"

enum work_kind { WORK_PIECE, WORK_CHECK, WORK_ZERO, WORK_FLUSH, WORK_READ_BACK };

enum work_state {
	WORK_IDLE,
	WORK_COMES, /* the bytes of a piece are being copied by a helper thread */
	WORK_WAITS,
	WORK_BUSY,
	WORK_ANSWERS,
	WORK_STATE_COUNT
};

enum {
	READ_BACKS = 2,
	FIRST_CHECK = PUSH_SLOTS,
	FIRST_ZERO = FIRST_CHECK + PUSH_SLOTS,
	FIRST_FLUSH = FIRST_ZERO + PUSH_ZEROES_MAX,
	FIRST_READ_BACK = FIRST_FLUSH + 1,
	WORKS = FIRST_READ_BACK + READ_BACKS,
};

struct work {
	struct push_sink *sink;
	struct list_node node; /* in sink->waiting or sink->answers */
	enum work_kind kind;
	enum work_state state;
	uint64_t offset; /* offset in the range */
	uint64_t length;
	uint32_t crc;	    /* CRC of the piece, as sent by the source */
	uint32_t found_crc; /* CHECK, READ_BACK: CRC of the bytes read so far */
	struct push_wire_flush flush;
	struct mem_segment segment;
	struct path_request path;
};

struct push_sink {
	struct push_session *session;
	struct push_group *group;
	uint32_t number; /* of the connection in the group; 0: the main session */
	uint32_t drops;	 /* bits: connections whose DROP has not been answered */
	const struct push_claim *claim;
	struct store_place source;  /* start of the range that the source reads */
	struct clan_region *region; /* the destination's memory; NULL: not created yet */
	uint32_t slot_count;
	/* memory from which pieces are written: the region, or `fetched` */
	struct mem_region memory;
	uint8_t *fetched; /* memory to which helper threads copy pieces; or NULL */
	bool is_unix;	  /* the source is connected by a Unix socket */
	struct clan_cookie cookies[PUSH_SLOTS];
	bool lent[PUSH_SLOTS];
	bool is_shared;
	bool is_mapped; /* the source's disk reads into our slots */
	/* Work that waits for the engine's limits. */
	struct list_node waiting;
	struct list_node answers; /* work whose answer waits for room */
	uint64_t read_back_at;
	uint64_t read_back_done;
	uint64_t read_back_digest;
	struct work works[WORKS];
};
