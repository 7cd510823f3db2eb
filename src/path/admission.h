// SPDX-License-Identifier: Apache-2.0
/*
 * Admission of requests: how many clients share the memory of one path, and the capacity for costly
 * requests.
 *
 *   peer (address, user) ─┬─ client (session) ── requests that wait, in order
 *                         └─ client ...
 *
 * Limits on the memory of a client, in the order of the checks:
 *
 * - Reads: a window limits the data that was not yet given to the session for sending. The window
 *   is PATH_WINDOW_BYTES, and grows while the network accepts everything immediately
 *   (path_client_sent()). So a peer that stops receiving soon gets no further memory.
 * - Thresholds: a client can hold a quarter of the free memory, and all clients of an export three
 *   times the free memory. These thresholds decrease as memory becomes scarce, so that some is left
 *   for the next client [Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
 *   packet switches", 1998].
 * - Quotas (struct path_quota): a client can hold at most as much of a quota as remains for others.
 *   So one client can hold half of a quota, two clients a third each.
 * - Reserve: one block of PATH_RESERVE_BYTES that no other client can use. A read gets the reserve
 *   if the client holds no other memory; a write always gets it. So every client makes progress,
 *   however much memory the others hold. Quotas do not include the reserve.
 *
 * Waiting clients are served round-robin, first by peer, then by client of the peer. Requests of
 * one client wait in order, but writes go in front of reads: a read might wait until its peer
 * receives data, and the peer might receive none until it has sent its write. A reply that must not
 * be interrupted keeps its memory until its end. Otherwise, other requests of its client could take
 * the memory and then wait for that reply.
 *
 * Device memory has the same thresholds, separate from RAM. A request that gets no device memory
 * uses RAM or waits (path_options.device_waits). The reserve is always in RAM, so a device with
 * little memory cannot block a client.
 *
 * An atomic write must not be cut (path_export_join()), so it needs one buffer for all of its data.
 * If the atomic writes of an export can be longer than a reserve, the export has one block of their
 * maximum length. Other exports cannot use this block, and quotas do not include it. An atomic
 * write that gets no other memory uses the block or waits for it. The block is always returned,
 * because the write needs no further memory, and because a peer that stops sending is disconnected.
 * If a disk hangs, only the clients of its export miss the block. If an export is added while
 * memory is in use, clients get only their reserve until the block can be allocated.
 *
 * Costly requests (admission_is_costly()) are block status, and trim, zero, cache and copy requests
 * that are long or occupy a worker thread. A client has at most one costly request in the store. An
 * export can always have one there. It can have a further one while its number of costly requests
 * in the store is below the number of free slots (PATH_COSTLY_MAX minus the costly requests of all
 * exports in the store). Clients with waiting costly requests are served round-robin, like clients
 * that wait for memory. A costly request that waits for an overlapping change of an ended
 * connection (late_writes.h) does not occupy a slot, because that change might need the slot. Reads
 * and writes of a client overtake its costly requests.
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
	PATH_CLIENT_DIVISOR = 4, /* a client can hold 1/4 of the free memory */
	PATH_EXPORT_FACTOR = 3,	 /* an export can hold 3 times the free memory */
	/* limit on slots for costly requests, in addition to one per export */
	PATH_COSTLY_MAX = 8,
	PATH_CHEAP_BYTES = 64 << 10, /* see admission_is_costly() */
	/* Blocks for atomic writes: one can have 1/8 of the memory, all together 1/2. */
	PATH_ATOMIC_DIVISOR = 8,
	PATH_ATOMIC_DIVISOR_ALL = 2,
};

_Static_assert((int)PATH_WINDOW_BYTES >= 2 * (int)ARENA_BLOCK_BYTES_MAX,
	"a part fits into a window, and into half of the least quota");

#define PATH_QUOTA_NONE UINT64_MAX

/* Limit on the total memory that a group of clients holds in one path. */
struct path_quota {
	uint64_t max_bytes;  /* set by path_quota_set(); PATH_QUOTA_NONE = no limit */
	uint64_t held_bytes; /* size of the clients' buffers, without their reserves */
	uint64_t waits;	     /* number of times a client started to wait because of this quota */
	/* Private members. */
	uint32_t short_count; /* number of clients that wait because of this quota now */
};

extern const struct counter_table path_quota_counter_table; /* describes struct path_quota */

/* State of an arena that all clients share. */
struct path_arena {
	uint64_t limit_bytes;
	uint64_t mapped_bytes;
	uint64_t used_bytes;
	uint64_t waits;	 /* number of times a client started to wait for memory held by others */
	uint64_t spills; /* number of parts that used RAM because the arena was full */
	/* See struct arena_info. kind is NULL if the path has no such arena. */
	const char *kind;
	int condemned;
};

extern const struct counter_table path_arena_counter_table; /* describes struct path_arena */

/* Kinds of quotas: by authenticated identity, and by export. */
enum path_quota_kind { PATH_QUOTA_IDENTITY, PATH_QUOTA_EXPORT, PATH_QUOTAS };

/* State that all clients share. For use in src/path only. */
struct path_admission {
	uint64_t operations;  /* of clients that count them nowhere else; not read */
	struct arena *ram;    /* includes the reserves of all clients */
	struct arena *device; /* NULL: none */
	bool device_waits;    /* see path_options */
	/* turns of clients that wait for memory and might be able to continue */
	struct turns waiting;
	uint32_t short_count; /* number of clients that wait for memory held by others */
	/* number of clients that wait because of a quota; part of short_count */
	uint32_t quota_short_count;
	/* number of clients that wait for device memory; part of short_count */
	uint32_t device_short_count;
	/* turns of clients whose next costly request might be able to start */
	struct turns costly;
	uint32_t costly_count;
	uint32_t costly_waiting_count;
	struct path_arena ram_counts; /* only the members waits and spills are used */
	struct path_arena device_counts;
	uint64_t atomic_bytes;		 /* total size of the blocks for atomic writes */
	uint64_t atomic_idle_bytes;	 /* size of the blocks that are allocated and unused */
	struct list_node atomic_lacking; /* exports whose block could not be allocated yet */
	bool serving;	     /* admission_serve() is giving turns to clients that wait for memory */
	bool costly_serving; /* admission_serve() is giving turns to costly requests */
	/* admission_serve() should be called: a waiting client might be able to continue */
	bool released;
};

struct path_peer {
	struct turn_group waiting;
	struct turn_group costly;
};

struct path_client {
	/* Statistics of the client's requests, by operation, allocated with the first request. NULL
	 * (the default): no statistics. Must exist until path_client_fini(). */
	struct path_stats **stats;
	/* Incremented when a store has completed a part of one of the client's requests. Must exist
	 * until path_client_fini(). The default is a counter that is not read. */
	uint64_t *operations;
	/* Private members. */
	struct path_admission *admission;
	struct turn turn;
	/* requests that wait for memory; the first one continues first */
	struct list_node stalled;
	uint64_t held_bytes; /* size of the client's buffers in RAM, without its reserve */
	uint64_t device_held_bytes;
	/* bytes of reads that were started, but not yet given to the session */
	uint64_t unsent_bytes;
	uint64_t window_bytes; /* maximum of unsent_bytes */
	/* number of the client's buffers, including the reserve and blocks for atomic writes */
	uint32_t buffer_count;
	uint32_t atomic_count; /* number of blocks for atomic writes that the client uses */
	bool reserve_used;
	bool is_short; /* the client's first waiting request waits for memory that others hold */
	struct path_quota *quotas[PATH_QUOTAS]; /* by kind; NULL: no quota of this kind */
	/* quota because of which admission_get() has just failed, or NULL */
	struct path_quota *lacking;
	bool lacks_device; /* admission_get() has just failed for lack of device memory */
	/* with is_short: the quota because of which the client waits; NULL: none */
	struct path_quota *short_of;
	bool short_of_device;		 /* with is_short: the client waits for device memory */
	struct list_node costly_waiting; /* costly requests that wait for a slot */
	struct turn costly_turn;
	bool costly_busy; /* one of the client's costly requests is in the store */
};

void path_peer_init(struct path_peer *peer);
void path_client_init(struct path_client *client, struct path *path, struct path_peer *peer);
/* Ends the client, which must not have requests or buffers. */
void path_client_fini(struct path_client *client);

void path_quota_init(struct path_quota *quota, uint64_t max_bytes);
/* Changes the limit, and lets waiting clients try again. Clients that hold more than the new limit
 * keep their memory. */
void path_quota_set(struct path_quota *quota, struct path *path, uint64_t max_bytes);
/* Adds the client to a quota, at most once for each kind. The quota must exist until
 * path_client_fini(). */
void path_client_join(
	struct path_client *client, enum path_quota_kind kind, struct path_quota *quota);

/* Called when a message with fragments was sent. filled: the network did not accept all of the
 * bytes immediately. */
void path_client_sent(struct path_client *client, uint64_t bytes, bool filled);

/* Gets a buffer from the path's RAM for data other than request payload. Returns -EAGAIN if a
 * request would not get the buffer either. */
GMB_MUST_CHECK int path_client_get(
	struct path_client *client, uint32_t bytes, struct arena_buf *buf);
void path_client_put(struct path_client *client, struct arena_buf *buf);

/* Returns whether this client should release memory: another client waits for RAM, for device
 * memory of which this client holds some, or because of a quota that both share. */
bool path_client_is_wanted(const struct path_client *client);
/* Returns whether the client holds memory that others might wait for. */
static inline bool path_client_holds(const struct path_client *client)
{
	return client->held_bytes + client->device_held_bytes > 0 || client->atomic_count > 0;
}

/* --- private to src/path --------------------------------------------------------------------- */

/* Gets a buffer of at most *bytes_inout for a part at offset. The buffer can be smaller if memory
 * is short, but not with request->atomic. replaced_bytes: size of the buffer that the request has
 * just returned, which it can take again before other clients. Returns false if memory is short;
 * the caller then calls admission_wait(). */
bool admission_get(struct path_request *request, struct arena **arena_inout, uint64_t offset,
	uint64_t replaced_bytes, uint64_t *bytes_inout, struct arena_buf *buf);
void admission_put(struct path_request *request, struct arena *arena, struct arena_buf *buf);

/* Returns whether the client's window permits this many more bytes of a read. */
bool admission_fits_window(const struct path_request *request, uint64_t bytes);
/* Count the unsent bytes of a read: begin when a part starts, end when its bytes are given to the
 * session or dropped. */
void admission_begin_unsent(struct path_request *request, uint64_t bytes);
void admission_end_unsent(struct path_request *request, uint64_t bytes);

/* Makes the request wait for its turn. is_short: it waits for memory held by others; otherwise it
 * waits for its client's own window. A request that already waits keeps its position. */
void admission_wait(struct path_request *request, bool is_short);
/* Ends the waiting of a request. No-op if it does not wait. */
void admission_wait_end(struct path_request *request);
/* Returns whether a read must wait behind other requests of its client. */
bool admission_must_wait(const struct path_request *request);

/* Returns whether the request is costly: a block status request, or a trim, zero, cache or copy
 * request that is long or occupies a worker thread. */
bool admission_is_costly(const struct path_request *request);
/* Returns true if the request has to wait for a slot for costly requests, and makes it wait. */
GMB_MUST_CHECK bool admission_costly_waits(struct path_request *request);
/* Occupy (begin) and release (end) a slot for costly requests. */
void admission_costly_begin(struct path_request *request);
void admission_costly_end(struct path_request *request);

/* Gives turns to waiting clients: calls again() for requests that wait for memory, and start() for
 * costly requests, which then no longer wait. After giving SERVE_BYTES, sets `released` and
 * returns; the next call continues with the other clients. */
void admission_serve(struct path_admission *admission, void (*again)(struct path_request *request),
	void (*start)(struct path_request *request));
