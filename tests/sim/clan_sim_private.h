// SPDX-License-Identifier: Apache-2.0
/*
 * What the two halves of the simulated libclan share: connections, messages and waking
 * (clan_sim.c); regions, puts and gets (clan_sim_memory.c).
 *
 * Threading, ownership, errors: as clan_sim.h.
 */
#pragma once

#include "clan/clan.h"
#include "sim/sim.h"

/* --- what is on a connection's socket --------------------------------------------------------- */

enum record_kind {
	RECORD_HELLO,
	RECORD_WELCOME,
	RECORD_REFUSED,
	RECORD_MESSAGE,
	RECORD_ROOM,
	RECORD_REGION,
	RECORD_REGION_ANSWER,
	RECORD_REGION_END,
	RECORD_REGION_ENDED,
	RECORD_PUT,
	RECORD_GET,
	RECORD_MOVED, /* a put or get has ended */
};

struct record {
	enum record_kind kind;
	uint32_t bytes; /* that follow */
	uint32_t class;
	uint32_t type;
	uint32_t room[2]; /* HELLO, WELCOME, ROOM: what may be sent from now on, by class */
	uint32_t number;
	uint32_t generation;
	uint32_t rights;
	int error;
	uint64_t region_bytes;
	uint64_t region_offset;
	uint64_t parcel;
	uint64_t move;
	uint64_t move_bytes;
	uint64_t move_offset;
	struct clan_cookie cookie;
};

struct buffer {
	uint8_t *bytes;
	size_t used;
	size_t max;
};

/* --- connections ------------------------------------------------------------------------------ */

struct message {
	struct list_node node;
	uint32_t type;
	uint32_t bytes;
	uint8_t payload[];
};

/* A region of the peer. */
struct peer_region {
	struct clan_source source;
	struct end *end;
	uint8_t *base; /* NULL: there is none of that number */
	uint64_t bytes;
	uint32_t number;
	uint32_t generation;
	uint32_t rights;
	uint32_t holds;
	uint64_t late_ns; /* its events are given from then on */
	bool give_live;
	bool give_leaving;
	bool leaving;
	bool asked_back;
};

/* A put or get that ends later. */
struct move {
	struct list_node node; /* in end->moves, or in end->moved */
	uint64_t id;
	struct iovec iov;
	size_t out_at; /* put: where its bytes belong in end->out, while they are not there yet */
	bool unread;
	int status;
	void *op;
};

struct grant {
	uint32_t generation;
	const struct clan_share *share; /* NULL: free */
};

/* One end of a connection. */
struct end {
	struct clan_conn conn;
	struct attempt *attempt; /* to connect; NULL: it has ended */
	int attempt_error;
	int fd; /* -1: none yet, or closed */
	struct buffer in;
	struct buffer out; /* not published yet */
	struct list_node inbox[2];
	struct list_node late; /* of the control class: they arrive with the next look */
	uint32_t room[2];
	uint32_t owed[2]; /* was taken, and the peer does not know yet */
	struct peer_region *regions;
	uint32_t region_count;
	uint64_t region_bytes;
	struct grant *grants; /* by slot */
	struct list_node moves;
	struct list_node moved; /* their events are to be given */
	struct clan_source moved_source;
	uint64_t move_last;
};

/* To connect; it outlives a connection that is closed meanwhile. */
struct attempt {
	struct list_node node; /* in attempts */
	struct end *end;
	int error;
};

static inline struct end *end_of(struct clan_conn *conn)
{
	return container_of(conn, struct end, conn);
}

/* clan_sim.c */
extern bool clan_sim_maps; /* connections begin with CLAN_CAN_MAP */
void clan_sim_write(struct end *end, const struct record *record, const void *payload);
void clan_sim_add(struct buffer *buffer, const void *bytes, size_t count);
/* Wakes the queue delay_ns from now, if it still exists. */
void clan_sim_wake_later(struct clan_queue *queue, uint64_t delay_ns);
/* CLOSING: is it CLOSED now? */
void clan_sim_join(struct end *end);

/* clan_sim_memory.c */
void clan_sim_memory_init(struct end *end);
/* The connection is lost: regions leave, moves end. */
void clan_sim_memory_lost(struct end *end);
/* It is closed. */
void clan_sim_memory_close(struct end *end);
void clan_sim_memory_fini(struct end *end);
/* Fires what is not too early any more; true: something. */
bool clan_sim_memory_look(struct end *end);
/* The bytes of puts are read as late as can be: now. */
void clan_sim_read_puts(struct end *end);
/* Records about memory. */
void clan_sim_take_region(struct end *end, const struct record *record);
void clan_sim_take_region_end(struct end *end, const struct record *record);
void clan_sim_take_share_answer(struct end *end, const struct record *record);
void clan_sim_take_move(struct end *end, const struct record *record, const uint8_t *payload);
void clan_sim_take_moved(struct end *end, const struct record *record, const uint8_t *payload);
/* Descriptors that never arrived. */
void clan_sim_drop_parcels(void);
/* Calls of the provider. */
int clan_sim_share(struct clan_conn *conn, struct clan_share *share);
int clan_sim_unshare(struct clan_conn *conn, struct clan_share *share);
int clan_sim_peer_info(
	const struct clan_conn *conn, uint32_t number, struct clan_peer_region *info);
int clan_sim_peer_get(struct clan_conn *conn, uint32_t number, uint32_t generation, uint32_t rights,
	uint64_t offset, uint64_t bytes, void **address_out);
void clan_sim_peer_put(struct clan_conn *conn, uint32_t number);
int clan_sim_grant(struct clan_conn *conn, struct clan_share *share, struct clan_cookie *cookie);
void clan_sim_void_cookies(struct clan_conn *conn, const struct clan_share *share);
int clan_sim_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op);
int clan_sim_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);
