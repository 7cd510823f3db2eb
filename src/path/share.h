// SPDX-License-Identifier: Apache-2.0
/*
 * How the requests of many clients share the memory of one path, and what carries out costly ones.
 *
 *   peer (address, user) ─┬─ client (session) ── requests that wait, in order
 *                         └─ client ...
 *
 * What a client may hold, in the order in which it is asked:
 *
 * - Of its reads, at most a window that its peer has not begun to take: PATH_WINDOW_BYTES, and more
 *   while the network takes everything at once (path_client_sent()). What is handed to the session
 *   does not count any more. A peer that takes nothing soon gets nothing.
 * - A quarter of what is free, and its export three times what is free: the thresholds fall as
 *   memory becomes scarce, so that something is left for whoever comes next [Choudhury and Hahne,
 *   "Dynamic queue length thresholds for shared-memory packet switches", 1998].
 * - Of its quotas (struct path_quota), which it shares with others, no more than is left: half of
 *   one when it is alone, a third each when there are two.
 * - One block of PATH_RESERVE_BYTES that nobody else can have, when it holds nothing else, or for a
 *   write: every client makes progress, whatever the others hold. No quota counts it.
 *
 * Who has to wait gets its turn by peer first, then by client. A client's requests wait in their
 * order; a write waits in front of its reads, which may wait for the peer that sends it. A reply
 * that nothing may interrupt keeps what it has until its end: the others of its client would else
 * take the memory and wait for it.
 *
 * Memory of a device is shared by the same thresholds, apart from RAM. Who finds none there has
 * RAM, or waits (path_options.device_waits); the reserve is RAM, for both. So the little that a
 * device may have stops nobody.
 *
 * A write that must not be cut (path_export_join()) needs one buffer for all of it. Each export
 * with such writes has one block of the size that is needed, which nobody else can have and no
 * quota counts. A write that finds no room elsewhere has it, or waits for it in its turn. Whoever
 * has it needs nothing else, and a peer that sends nothing for too long loses its connection; so it
 * comes back, and a disk that hangs keeps it from its own clients alone. If an export comes while
 * memory is in use, clients have nothing but their reserve until the block can be taken.
 *
 * Block status, trim, zero and cache keep a worker thread, or the lock of a file, for long. A
 * client has one of them in the store at a time, an export one, and more while it has fewer than
 * are left of PATH_COSTLY_MAX; they take turns in the same way. Who waits for the change of a
 * requester that has gone (late.h) has no place: that change may need it. Reads and writes of the
 * same client pass them.
 *
 * Threading: the path's thread. Ownership: a client and its peer belong to who has the requests,
 * and stay until path_client_fini(). Errors: none.
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
	PATH_CLIENT_DIVISOR = 4,     /* of the free memory */
	PATH_EXPORT_FACTOR = 3,	     /* the same */
	PATH_COSTLY_MAX = 8,	     /* costly requests in the stores, more exports apart */
	PATH_CHEAP_BYTES = 64 << 10, /* see share_is_costly() */
	/* Blocks for writes that are not cut have at most these parts of the memory: one of them,
	 * and all. */
	PATH_ATOMIC_DIVISOR = 8,
	PATH_ATOMIC_DIVISOR_ALL = 2,
};

_Static_assert((int)PATH_WINDOW_BYTES >= 2 * (int)ARENA_BLOCK_BYTES_MAX,
	"a part fits into a window, and into half of the least quota");

#define PATH_QUOTA_NONE UINT64_MAX

/* What several clients of one path may hold together, whatever there is. */
struct path_quota {
	uint64_t max_bytes;  /* path_quota_set(); PATH_QUOTA_NONE = no limit */
	uint64_t held_bytes; /* buffers of the arenas, but for the reserve's */
	uint64_t waits;	     /* how often one of them has begun to wait for it */
	/* Private. */
	uint32_t short_count; /* clients that wait for it */
};

extern const struct counter_table path_quota_counter_table; /* of struct path_quota */

/* The state of an arena that the clients share. */
struct path_arena {
	uint64_t limit_bytes;
	uint64_t mapped_bytes;
	uint64_t used_bytes;
	uint64_t waits;	 /* how often a client began to wait because others held too much of it */
	uint64_t spills; /* parts that had RAM because there was no room in it */
	/* As in struct arena_info; kind is NULL: there is no such arena. */
	const char *kind;
	int condemned;
};

extern const struct counter_table path_arena_counter_table; /* of struct path_arena */

/* By what several clients are taken together. */
enum path_quota_kind { PATH_QUOTA_IDENTITY, PATH_QUOTA_EXPORT, PATH_QUOTAS };

/* Private to src/path: what the clients share. */
struct path_share {
	struct arena *ram;	     /* has the reserve */
	struct arena *device;	     /* or NULL */
	bool device_waits;	     /* as in path_options */
	struct turns waiting;	     /* clients with a request that may be able to go on */
	uint32_t short_count;	     /* clients that wait for what others hold */
	uint32_t quota_short_count;  /* of them, those that wait for a quota */
	uint32_t device_short_count; /* and those that wait for memory of the device */
	struct turns costly;	     /* clients with a costly request that may be able to begin */
	uint32_t costly_count;
	uint32_t costly_waiting_count;
	struct path_arena ram_counts; /* waits and spills only */
	struct path_arena device_counts;
	uint64_t atomic_bytes;		 /* of blocks for writes that are not cut */
	uint64_t atomic_idle_bytes;	 /* of those that were taken and that no request has */
	struct list_node atomic_lacking; /* exports for whose block there was no room yet */
	bool serving;			 /* share_serve() gives memory to those that wait for it */
	bool costly_serving;		 /* the same of places for costly requests */
	bool released;			 /* something changed since the last path_serve() */
};

struct path_peer {
	struct turn_group waiting;
	struct turn_group costly;
};

struct path_client {
	/* Where its requests are counted, one for each operation, made with its first request; NULL
	 * (as it is after path_client_init()): they are not. Held until path_client_fini(). */
	struct path_stats **stats;
	/* Private. */
	struct path_share *share;
	struct turn turn;
	struct list_node stalled; /* requests that wait for memory, in order */
	uint64_t held_bytes;	  /* buffers in RAM, but for the reserve's */
	uint64_t device_held_bytes;
	uint64_t unsent_bytes; /* of reads: begun, and not handed to the session yet */
	uint64_t window_bytes; /* for unsent_bytes */
	uint32_t buffer_count; /* of requests, with the reserve's and the next ones */
	uint32_t atomic_count; /* blocks for writes that are not cut */
	bool reserve_used;
	bool is_short; /* the first that waits, waits for what others hold */
	struct path_quota *quotas[PATH_QUOTAS]; /* NULL: none */
	struct path_quota *lacking;	 /* because of which share_get() has just failed, or NULL */
	bool lacks_device;		 /* it has just failed because of the device's memory */
	struct path_quota *short_of;	 /* is_short: which one it waits for; NULL: for memory */
	bool short_of_device;		 /* is_short: for the device's */
	struct list_node costly_waiting; /* costly requests that have not begun */
	struct turn costly_turn;
	bool costly_busy; /* one is in the store */
};

void path_peer_init(struct path_peer *peer);
void path_client_init(struct path_client *client, struct path *path, struct path_peer *peer);
/* No request and no buffer of its exists. It leaves its quotas. */
void path_client_fini(struct path_client *client);

void path_quota_init(struct path_quota *quota, uint64_t max_bytes);
/* From now on, for those that wait as well. When less is allowed than its clients hold, nothing is
 * taken from them. */
void path_quota_set(struct path_quota *quota, struct path *path, uint64_t max_bytes);
/* Once for each kind. The quota stays until path_client_fini(). */
void path_client_join(
	struct path_client *client, enum path_quota_kind kind, struct path_quota *quota);

/* A message with fragments was sent. filled: the network could not take all of it at once. */
void path_client_sent(struct path_client *client, uint64_t bytes, bool filled);

/* Memory for something else than payload of requests, from the path's RAM: -EAGAIN when a request
 * could not have it either. */
GMB_MUST_CHECK int path_client_get(
	struct path_client *client, uint32_t bytes, struct arena_buf *buf);
void path_client_put(struct path_client *client, struct arena_buf *buf);

/* True when somebody waits for memory of a kind that the client may hold (of a device: does hold),
 * or another client for a quota that both share. */
bool path_client_is_wanted(const struct path_client *client);
/* True when it holds memory that others may wait for. */
static inline bool path_client_holds(const struct path_client *client)
{
	return client->held_bytes + client->device_held_bytes > 0 || client->atomic_count > 0;
}

/* --- private to src/path --------------------------------------------------------------------- */

/* A buffer of at most *bytes_inout for a part that begins at offset: less where there is not as
 * much, but all of it with request->atomic. replaced: so much the request has just given back, and
 * nobody else may have it. False: memory is short, share_wait() is to be called. */
bool share_get(struct path_request *request, struct arena **arena_inout, uint64_t offset,
	uint64_t replaced_bytes, uint64_t *bytes_inout, struct arena_buf *buf);
void share_put(struct path_request *request, struct arena *arena, struct arena_buf *buf);

/* Whether bytes more of a read fit into the window of its client. */
bool share_fits_window(const struct path_request *request, uint64_t bytes);
/* They begin, or they are handed to the session or will never be. */
void share_begin_unsent(struct path_request *request, uint64_t bytes);
void share_end_unsent(struct path_request *request, uint64_t bytes);

/* The request waits until it is its turn. is_short: for what others hold, else for its client's own
 * window. It waits already: it stays where it is. */
void share_wait(struct path_request *request, bool is_short);
/* It waits no more. It did not: nothing happens. */
void share_wait_end(struct path_request *request);
/* Reads queue up behind those of their client that wait. */
bool share_must_wait(const struct path_request *request);

/* Block status, and trims, zeroes and cache hints that are long or occupy a worker thread. */
bool share_is_costly(const struct path_request *request);
/* True: there is no place for a costly request now, and it waits until it is its turn. */
GMB_MUST_CHECK bool share_costly_waits(struct path_request *request);
/* It takes the place that there is, or gives it back. */
void share_costly_begin(struct path_request *request);
void share_costly_end(struct path_request *request);

/* Gives a turn to those who may be able to go on: again is called for requests that wait for
 * memory, and start for costly ones, which wait no more. It ends after some megabytes; then
 * released stays set, and the next call goes on with the others. */
void share_serve(struct path_share *share, void (*again)(struct path_request *request),
	void (*start)(struct path_request *request));
