// SPDX-License-Identifier: Apache-2.0
/*
 * Admission of requests: how many clients share the memory of one path, and the capacity for costly
 * requests.
 *
 *   peer (address, user) ─┬─ client (session) ── requests that wait, in order
 *                         └─ client ...
 *
 * Limits on the memory of a client, in the order in which they are checked:
 *
 * - Reads: a window of data that its peer has not started to receive. It is PATH_WINDOW_BYTES, and
 *   grows while the network accepts everything immediately (path_client_sent()). Data given to the
 *   session no longer counts. A peer that stops receiving soon gets no more memory.
 * - A quarter of the free memory, and for its export three times the free memory. These thresholds
 *   fall as memory becomes scarce, so that some is left for the next client [Choudhury and Hahne,
 *   "Dynamic queue length thresholds for shared-memory packet switches", 1998].
 * - Of each of its quotas (struct path_quota), no more than remains for others: one client can
 *   hold half of a quota, two clients a third each.
 * - One block of PATH_RESERVE_BYTES that no other client can use, if the client holds nothing
 *   else, or for a write. So every client makes progress, whatever the others hold. No quota
 *   counts it.
 *
 * Waiting clients take turns by peer, then by client. Requests of one client wait in order, but a
 * write goes in front of its reads, because the reads might wait for the peer that is sending the
 * write. A reply that must not be interrupted keeps its memory until its end. Otherwise other
 * requests of its client could take the memory and then wait for that reply.
 *
 * Device memory has the same thresholds, separate from RAM. A request that finds none uses RAM or
 * waits (path_options.device_waits). The reserve is always RAM, so a device with little memory
 * blocks no client.
 *
 * A write that must not be cut (path_export_join()) needs one buffer for all of it. Each export
 * with such writes has one block of that size, which other exports cannot use and no quota counts.
 * A write that finds no other memory uses the block, or waits for it in its turn. The block is
 * always returned: its holder needs no other memory, and a peer that stops sending loses its
 * connection. A disk that hangs keeps it only from its own clients. If an export is added while
 * memory is in use, clients get only their reserve until the block can be allocated.
 *
 * Block status, trim, zero and cache occupy a worker thread or the lock of a file for long. They
 * are costly. A client has at most one costly request in the store. An export can always have one,
 * and can have more as long as its number is below the number of unused slots (of PATH_COSTLY_MAX).
 * They take turns in the same way. A costly request that waits for the change of an ended
 * connection (late_writes.h) does not take a slot, because the late change might need that slot.
 * Reads and writes of the same client overtake costly requests.
 *
 * Threading: the path's thread. Ownership: a client and its peer belong to the owner of the
 * requests and exist until path_client_fini(). Errors: none.
 */
#pragma once

#include "base/turns.h"
#include "memory/arena.h"

struct path;
struct path_request;
struct path_stats;
struct counter_table;

enum {
	PATH_WINDOW_BYTES = 2 << 20,
	PATH_WINDOW_BYTES_MAX = 8 << 20,
	PATH_RESERVE_BYTES = ARENA_BLOCK_BYTES_MIN,
	PATH_CLIENT_DIVISOR = 4,     /* reciprocal of a client's share of the free memory */
	PATH_EXPORT_FACTOR = 3,	     /* an export's share, in multiples of the free memory */
	PATH_COSTLY_MAX = 8,	     /* costly requests in the stores, besides one per export */
	PATH_CHEAP_BYTES = 64 << 10, /* see admission_is_costly() */
	/* Reciprocals of the memory for writes that are not cut: for one block, and for all. */
	PATH_ATOMIC_DIVISOR = 8,
	PATH_ATOMIC_DIVISOR_ALL = 2,
};

_Static_assert((int)PATH_WINDOW_BYTES >= 2 * (int)ARENA_BLOCK_BYTES_MAX,
	"a part fits into a window, and into half of the least quota");

#define PATH_QUOTA_NONE UINT64_MAX

/* Limit on the memory that several clients of one path hold together. */
struct path_quota {
	uint64_t max_bytes;  /* path_quota_set(); PATH_QUOTA_NONE = no limit */
	uint64_t held_bytes; /* buffers of the arenas, without the reserves */
	uint64_t waits;	     /* times one of the clients started to wait for it */
	/* Private. */
	uint32_t short_count; /* clients that wait for it */
};

extern const struct counter_table path_quota_counter_table; /* of struct path_quota */

/* State of an arena that the clients share. */
struct path_arena {
	uint64_t limit_bytes;
	uint64_t mapped_bytes;
	uint64_t used_bytes;
	uint64_t waits;	 /* times a client started to wait for memory held by others */
	uint64_t spills; /* parts that used RAM because it was full */
	/* As in struct arena_info; kind NULL: no such arena. */
	const char *kind;
	int condemned;
};

extern const struct counter_table path_arena_counter_table; /* of struct path_arena */

/* Kinds of groups of clients that share a quota. */
enum path_quota_kind { PATH_QUOTA_IDENTITY, PATH_QUOTA_EXPORT, PATH_QUOTAS };

/* Private to src/path: state that the clients share. */
struct path_admission {
	struct arena *ram;	     /* contains the reserve */
	struct arena *device;	     /* can be NULL */
	bool device_waits;	     /* as in path_options */
	struct turns waiting;	     /* clients with a request that might be able to continue */
	uint32_t short_count;	     /* clients that wait for memory held by others */
	uint32_t quota_short_count;  /* the part of short_count that waits for a quota */
	uint32_t device_short_count; /* the part of short_count that waits for device memory */
	/* clients with a costly request that might be able to start */
	struct turns costly;
	uint32_t costly_count;
	uint32_t costly_waiting_count;
	struct path_arena ram_counts; /* waits and spills only */
	struct path_arena device_counts;
	uint64_t atomic_bytes;		 /* size of the blocks for writes that are not cut */
	uint64_t atomic_idle_bytes;	 /* the part of it that is allocated and unused */
	struct list_node atomic_lacking; /* exports whose block could not be allocated yet */
	bool serving;			 /* admission_serve() is giving memory to waiting clients */
	bool costly_serving;		 /* admission_serve() is giving slots to costly requests */
	bool released;			 /* something changed since the last path_serve() */
};

struct path_peer {
	struct turn_group waiting;
	struct turn_group costly;
};

struct path_client {
	/* Statistics of its requests, one entry per operation, allocated with the first request.
	 * NULL, as set by path_client_init(): none. Held until path_client_fini(). */
	struct path_stats **stats;
	/* Private. */
	struct path_admission *admission;
	struct turn turn;
	struct list_node stalled; /* requests that wait for memory, in order */
	uint64_t held_bytes;	  /* buffers in RAM, without the reserve's */
	uint64_t device_held_bytes;
	uint64_t unsent_bytes; /* of reads: started and not given to the session yet */
	uint64_t window_bytes; /* limit of unsent_bytes */
	uint32_t buffer_count; /* buffers of requests, including the reserve and the next */
	uint32_t atomic_count; /* blocks for writes that are not cut */
	bool reserve_used;
	bool is_short; /* its first waiting request waits for memory held by others */
	struct path_quota *quotas[PATH_QUOTAS]; /* NULL: none */
	/* quota because of which admission_get() just failed, or NULL */
	struct path_quota *lacking;
	bool lacks_device;		 /* admission_get() just failed for lack of device memory */
	struct path_quota *short_of;	 /* is_short: the quota it waits for; NULL: memory */
	bool short_of_device;		 /* is_short: it waits for device memory */
	struct list_node costly_waiting; /* costly requests that have not started */
	struct turn costly_turn;
	bool costly_busy; /* one is in the store */
};

void path_peer_init(struct path_peer *peer);
void path_client_init(struct path_client *client, struct path *path, struct path_peer *peer);
/* No request and no buffer of the client exists. It leaves its quotas. */
void path_client_fini(struct path_client *client);

void path_quota_init(struct path_quota *quota, uint64_t max_bytes);
/* Changes the limit, also for waiting clients. If clients hold more than the new limit, they keep
 * it. */
void path_quota_set(struct path_quota *quota, struct path *path, uint64_t max_bytes);
/* Called once for each kind. The quota must exist until path_client_fini(). */
void path_client_join(
	struct path_client *client, enum path_quota_kind kind, struct path_quota *quota);

/* A message with fragments was sent. filled: the network could not accept all of it
 * immediately. */
void path_client_sent(struct path_client *client, uint64_t bytes, bool filled);

/* Gets memory of the path's RAM for other purposes than payload of requests. -EAGAIN: a request
 * would not get it either. */
GMB_MUST_CHECK int path_client_get(
	struct path_client *client, uint32_t bytes, struct arena_buf *buf);
void path_client_put(struct path_client *client, struct arena_buf *buf);

/* Returns whether a client waits for memory of a kind that this client can hold (device memory:
 * does hold), or another client waits for a quota that both share. */
bool path_client_is_wanted(const struct path_client *client);
/* Returns whether the client holds memory that others might wait for. */
static inline bool path_client_holds(const struct path_client *client)
{
	return client->held_bytes + client->device_held_bytes > 0 || client->atomic_count > 0;
}

/* --- private to src/path --------------------------------------------------------------------- */

/* Gets a buffer of at most *bytes_inout for a part at offset. It can be smaller if memory is
 * short, but not with request->atomic. replaced_bytes: amount that the request has just given
 * back, which no other client can take. False: memory is short, and the caller calls
 * admission_wait(). */
bool admission_get(struct path_request *request, struct arena **arena_inout, uint64_t offset,
	uint64_t replaced_bytes, uint64_t *bytes_inout, struct arena_buf *buf);
void admission_put(struct path_request *request, struct arena *arena, struct arena_buf *buf);

/* Returns whether this many more bytes of a read fit into its client's window. */
bool admission_fits_window(const struct path_request *request, uint64_t bytes);
/* The bytes are started; they are given to the session or will never be. */
void admission_begin_unsent(struct path_request *request, uint64_t bytes);
void admission_end_unsent(struct path_request *request, uint64_t bytes);

/* Makes the request wait for its turn. is_short: it waits for memory held by others; otherwise for
 * its client's own window. A request that already waits keeps its position. */
void admission_wait(struct path_request *request, bool is_short);
/* The request stops waiting. No-op if it does not wait. */
void admission_wait_end(struct path_request *request);
/* Returns whether a read must wait behind other requests of its client. */
bool admission_must_wait(const struct path_request *request);

/* Returns whether the request is costly: block status, and trims, zeroes and cache hints that are
 * long or occupy a worker thread. */
bool admission_is_costly(const struct path_request *request);
/* Returns true if no slot for a costly request is free. The request then waits for its turn. */
GMB_MUST_CHECK bool admission_costly_waits(struct path_request *request);
/* Take a free slot, and give it back. */
void admission_costly_begin(struct path_request *request);
void admission_costly_end(struct path_request *request);

/* Gives turns to waiting clients. again is called for requests that wait for memory, and start for
 * costly requests, which then no longer wait. It stops after SERVE_BYTES; released then stays set,
 * and the next call continues with the other clients. */
void admission_serve(struct path_admission *admission, void (*again)(struct path_request *request),
	void (*start)(struct path_request *request));
