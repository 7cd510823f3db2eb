// SPDX-License-Identifier: Apache-2.0
/*
 * Two queues of libclan in one process, and what the tests of it do with them again and again.
 * A world has one listener and one connection: "dialer" connected, "server" accepted it.
 *
 * Threading: one thread. Ownership: world_open() to world_close(). Errors: a test fails.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <gmblock/clan_memory.h>

enum { WORLD_DIALER, WORLD_SERVER, WORLD_SIDES };

/* Events that no test has asked for yet: those of several batches, if a worker is late. */
#define WORLD_EVENTS_MAX 1024U
/* It ends what hangs, and is far more than anything takes on a busy machine. */
#define WORLD_TIMEOUT_NS UINT64_C(60000000000)

/* How the queues of the tests wait; tests run for each. */
struct world_kind {
	const char *name;
	uint32_t flags; /* enum clan_queue_flags */
	uint32_t bell;
	const char *network; /* where it listens; NULL: shm */
};

struct world {
	const struct world_kind *kind;
	struct clan_queue *queues[WORLD_SIDES];
	struct clan_listener *listener;
	struct clan_conn *conns[WORLD_SIDES];
	char address[CLAN_ADDRESS_BYTES];
	/* Events that came and were not asked for yet. */
	struct clan_event kept[WORLD_SIDES][WORLD_EVENTS_MAX];
	uint32_t kept_count[WORLD_SIDES];
};

/* An address of shm that nobody has; every program has names of its own. */
void world_address(struct world *world);

/* Queues and a listener, without a connection. */
void world_listen(struct world *world, const struct world_kind *kind,
	const struct clan_conn_options *options);
/* Another connection between the two. */
void world_connect(struct world *world, const struct clan_conn_options *options,
	struct clan_conn *conns[WORLD_SIDES]);
/* Both at once, with default options where NULL. */
void world_open(struct world *world, const struct world_kind *kind,
	const struct clan_conn_options *options);
void world_close(struct world *world);
/* Closes one side of a connection and waits for CLAN_EVENT_CLOSED. */
void world_close_conn(struct world *world, int side, struct clan_conn *conn);

/* Waits for the next event of that type on one side; both sides make progress. Others are kept for
 * later. Fails after WORLD_TIMEOUT_NS. */
struct clan_event world_event(struct world *world, int side, uint32_t type);
/* The same for READY with one of the bits. */
void world_ready(struct world *world, int side, struct clan_conn *conn, uint32_t ready);
/* Lets both sides make progress until neither has anything to do. */
void world_settle(struct world *world);
/* One side takes its events, and waits for 1 ms when there is none. */
void world_turn(struct world *world, int side);
/* An event of that type is at hand after world_settle(). */
bool world_has_event(struct world *world, int side, uint32_t type);
/* None is. */
void world_no_event(struct world *world, int side, uint32_t type);

/* Puts, gets and revokes, and waits until that has ended: what the call returned, or the status of
 * the event. */
int world_put(struct world *world, int side, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, uint32_t flags, uint32_t value);
int world_get(struct world *world, int side, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset);
int world_revoke(struct world *world, int side, const struct clan_cookie *cookie, uint32_t flags);

/* Sends a message, waiting for room: over a network the peer's credits take a while. */
void world_send(struct world *world, int side, struct clan_conn *conn, uint32_t cls, uint32_t type,
	const void *bytes, uint32_t count);
/* Receives one message, waiting for it. */
struct clan_message world_recv(
	struct world *world, int side, struct clan_conn *conn, void *buffer, uint32_t bytes);

/* A region of one side that the other side knows; *event_out is CLAN_EVENT_SHARED. */
struct clan_region *world_region(struct world *world, int side, size_t bytes, uint32_t rights,
	uint8_t **base_out, struct clan_event *event_out);

/* Grants a cookie, and sends it to the other side in a message. */
void world_grant(struct world *world, int side, struct clan_region *region, uint64_t offset,
	uint32_t bytes, uint32_t rights, uint32_t flags, struct clan_cookie *cookie_out);

/* Sends messages of that length until there is no room; returns how many went. */
uint32_t world_fill(struct clan_conn *conn, uint32_t cls, uint32_t bytes);
