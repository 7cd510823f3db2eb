// SPDX-License-Identifier: Apache-2.0
/*
 * Private interface of libclan: queues, their event sources, and the table of functions that a
 * provider implements. A provider carries connections over one kind of transport; conn.c has the
 * table of providers. The calls of <gmblock/clan.h> check their arguments and the state of the
 * connection (conn.c), and then call its provider.
 *
 *   conn.c region.c (calls) ──▶ provider: shm_*.c, net*.c
 *         │                        │ clan_fire()
 *         └──────▶ queue.c ◀───────┘        waiter.c: sleeping     base/work.c: blocking work
 *
 * Threading: as in <gmblock/clan.h>. Ownership: a provider creates a connection. destroy() frees it
 * when the queue gives CLAN_EVENT_CLOSED. A connection whose handle the program never got has no
 * such event; the provider's progress() frees it. Errors: -errno.
 */
#pragma once

#include <gmblock/clan_memory.h>

#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/list.h"
#include "base/work.h"
#include "clan/waiter.h"

/* The limits documented in <gmblock/clan.h>. */
enum {
	CLAN_CONNS_MAX = 65536,
	CLAN_CONNS_DEFAULT = 4096,
	CLAN_TABLE_MAX = 4096, /* limit per connection, each: cookies, tripwires, regions */
	CLAN_BULK_SLOTS_MIN = 256,
	CLAN_BULK_SLOTS_MAX = 65536,
	CLAN_IOV_MAX = 64,
	CLAN_STREAM_IOV_MAX = 1024,
	CLAN_REASON_BYTES = 160,
	CLAN_STRICT_MS = 10,
	CLAN_HANDSHAKES_DEFAULT = 64,
};

/* --- the event queue (docs/protocol/clan.md §7) ---------------------------------------------- */

/* An object that can raise events. It is linked in queue->events if and only if it has an event to
 * give. So the queue is a list of objects, not of events, and cannot overflow. */
struct clan_source {
	struct list_node node;
	/* Fills in the event. Returns true if the source has another one; it then returns to the
	 * end of the queue. The call may free the source unless it returns true. */
	bool (*give)(struct clan_source *source, struct clan_event *event);
};

/* A function to call at a point in time. */
struct clan_deadline {
	struct list_node node;
	uint64_t due_ns;
	void (*expired)(struct clan_deadline *deadline); /* called after the deadline is unlinked */
};

/* Indices of the table of providers, in conn.c. */
enum { CLAN_SHM, CLAN_NET, CLAN_PROVIDER_COUNT };

struct clan_queue {
	struct waiter *waiter;
	struct clan_queue_options options;
	struct list_node events; /* struct clan_source */
	struct list_node deadlines;
	uint64_t timer_ns; /* the value that the timer is set to; 0 = off */
	struct waiter_file wake_file;
	struct waiter_file timer_file;
	struct work_results results;
	_Atomic(bool) woken;
	/* Number of calls of clan_queue_look() without `all`. Every 16th call also checks the
	 * descriptors. */
	uint32_t looks;
	/* clan_queue_arm() returned 0, so the next wait checks the descriptors */
	bool armed;
	uint32_t conn_count;
	uint32_t listener_count;
	uint32_t region_count;
	struct list_node conns;
	struct list_node listeners;
	struct list_node regions;
	void *carriers[CLAN_PROVIDER_COUNT]; /* provider state; NULL until the queue uses it */
};

void clan_source_init(struct clan_source *source,
	bool (*give)(struct clan_source *source, struct clan_event *event));
void clan_fire(struct clan_queue *queue, struct clan_source *source);
void clan_deadline_set(struct clan_queue *queue, struct clan_deadline *deadline, uint64_t after_ns);
static inline void clan_deadline_clear(struct clan_deadline *deadline)
{
	list_remove(&deadline->node);
}
/* Copies an error to the caller's struct, which can be NULL. Returns the code of the error. */
int clan_error_give(struct clan_error *error_out, const struct error *error);
static inline bool clan_queue_is_passive(const struct clan_queue *queue)
{
	return (queue->options.flags & CLAN_QUEUE_PASSIVE) != 0;
}

/* --- connections ------------------------------------------------------------------------------ */

/* The states of a connection; docs/protocol/clan.md §3.2. */
enum clan_state {
	CLAN_CONNECTING, /* waits for WELCOME or a rejection by the acceptor */
	CLAN_OPENING,	 /* waits for HELLO */
	CLAN_OFFERED,	 /* waits for clan_accept() or clan_reject() */
	CLAN_OPEN,	 /* established */
	CLAN_LOST,	 /* waits for clan_close() */
	/* Waits for the release of the last hold, and for workers. On tcp and ofi, also waits until
	 * the peer has received everything, for at most 2 s. */
	CLAN_CLOSING,
	CLAN_CLOSED, /* waits for delivery of CLAN_EVENT_CLOSED */
	CLAN_STATE_COUNT
};

struct clan_conn {
	const struct clan_provider *provider;
	struct clan_queue *queue;
	struct list_node node; /* in queue->conns */
	struct clan_source source;
	enum clan_state state;
	bool was_open;	/* the connection has been OPEN */
	int status;	/* the reason of the loss, a negative errno */
	uint32_t ready; /* enum clan_ready: bits to report in the next READY */
	/* enum clan_ready: bits that can raise READY. A call that returns -EAGAIN sets its bit, and
	 * READY clears it. The bits of the receiving calls are also set when the connection opens.
	 */
	uint32_t enabled;
	bool arrived_pending; /* CLAN_EVENT_ARRIVED is pending */
	bool connect_pending; /* CLAN_EVENT_CONNECT or CLAN_EVENT_CONNECTED is pending */
	bool is_wary; /* memory that the untrusted peer can write is accessed by workers only */
	bool connector;
	bool known; /* the program has the handle: it receives events and must close the handle */
	bool lost_pending;
	void *context;
	clan_put_check *put_check; /* or NULL */
	struct clan_peer peer;
	uint8_t *hello;
	size_t hello_bytes;
	struct clan_conn_options options; /* options with the defaults filled in */
	struct clan_conn_stats stats;
	struct list_node shares;   /* struct clan_share: our regions that are shared */
	uint32_t share_generation; /* generation of the last share */
	/* Ends the handshake; in CLOSING (net only), ends the wait for the peer. */
	struct clan_deadline deadline;
	char reason[CLAN_REASON_BYTES];
};

struct clan_share;

struct clan_listener {
	const struct clan_provider *provider;
	struct clan_queue *queue;
	struct list_node node;
	struct clan_conn_options options;
	/* A provider that resolves addresses stores the resolved host and the actual port here.
	 * Otherwise this is the address that clan_listen() was called with. */
	char address[CLAN_ADDRESS_BYTES];
};

/* A provider carries connections over one kind of transport. All members but socket are required.
 * The caller has checked the arguments. Calls on a connection are made only while it is OPEN,
 * unless noted otherwise. */
struct clan_provider {
	/* schemes of the provider's addresses, without the colon; unused entries are NULL */
	const char *schemes[2];
	uint32_t caps; /* enum clan_conn_caps */

	int (*listen)(struct clan_queue *queue, const char *address,
		const struct clan_conn_options *options, struct clan_listener **listener_out,
		struct error *error);
	void (*listener_close)(struct clan_listener *listener);
	/* Adopts a connected socket. The provider owns fd only if it returns 0. */
	int (*adopt)(struct clan_queue *queue, int fd, const struct clan_conn_options *options,
		struct clan_conn **conn_out, struct error *error);
	int (*connect)(struct clan_queue *queue, const char *address,
		const struct clan_conn_options *options, const void *hello, size_t hello_bytes,
		struct clan_conn **conn_out, struct error *error);
	/* Called in state OFFERED. */
	int (*accept)(struct clan_conn *conn, const void *hello, size_t hello_bytes);
	/* Called in state OFFERED, or in OPENING if the program has the handle. */
	void (*reject)(struct clan_conn *conn, const char *text);
	/* Called after the transition to CLOSING from any earlier state. Releases the resources of
	 * the connection, drops each share as soon as the peer cannot reach it, and sets CLOSED
	 * when the connection is no longer in use. */
	void (*close)(struct clan_conn *conn);
	void (*destroy)(struct clan_conn *conn); /* called in state CLOSED */
	/* Called in the child after fork() for each connection and each listener (the other
	 * argument is NULL), and then with both NULL for the provider's state of the queue. shm
	 * frees the object; net only closes descriptors. */
	void (*after_fork)(
		struct clan_queue *queue, struct clan_conn *conn, struct clan_listener *listener);

	int (*send)(struct clan_conn *conn, uint32_t cls, uint32_t type, const struct iovec *iov,
		uint32_t iov_count, size_t bytes);
	void (*flush)(struct clan_conn *conn);
	int (*recv)(struct clan_conn *conn, uint32_t classes, struct clan_message *message,
		void *buffer, uint32_t bytes); /* can also be called in state LOST */
	ssize_t (*readv)(struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count,
		bool peek); /* can also be called in state LOST */

	/* Adds the counters that the provider keeps itself. Called in any state. */
	void (*get_stats)(const struct clan_conn *conn, struct clan_conn_stats *stats);
	/* See clan_conn_socket(). NULL: no connection of the provider is carried by a TCP
	 * socket. */
	int (*socket)(const struct clan_conn *conn);
	int (*share)(struct clan_conn *conn, struct clan_share *share);
	int (*unshare)(struct clan_conn *conn, struct clan_share *share);
	int (*peer_info)(/* called in any state */
		const struct clan_conn *conn, uint32_t number, struct clan_peer_region *region);
	int (*peer_get)(struct clan_conn *conn, uint32_t number, uint32_t generation,
		uint32_t rights, uint64_t offset, uint64_t bytes, void **address_out);
	void (*peer_put)(struct clan_conn *conn, uint32_t number); /* called in any state */

	int (*grant)(struct clan_conn *conn, struct clan_share *share, struct clan_cookie *cookie);
	/* CLAN_EVENT_REVOKED follows. */
	int (*revoke)(
		struct clan_conn *conn, const struct clan_cookie *cookie, bool strict, void *op);
	/* Called before unshare, in any state: revokes all cookies of a share. net sends no
	 * revocations, because the cookies end when the peer returns the region. */
	void (*void_cookies)(struct clan_conn *conn, const struct clan_share *share);
	/* put, get and fetch end within the call if the connection has CLAN_CAN_MAP; otherwise
	 * CLAN_EVENT_DONE follows. */
	int (*put)(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
		const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value,
		void *op);
	int (*get)(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
		const struct clan_cookie *cookie, uint64_t offset, void *op);
	int (*fetch)(struct clan_conn *conn, const struct clan_region *region, uint64_t offset,
		void *to, size_t bytes, void *op);
	int (*tripwire)(struct clan_conn *conn, const struct clan_share *share, uint64_t offset,
		uint32_t bytes, uint32_t *number_out);
	int (*rearm)(struct clan_conn *conn, uint32_t number);
	int (*tripwire_remove)(struct clan_conn *conn, uint32_t number); /* called in any state */
	int (*cookie_push)(
		struct clan_conn *conn, uint32_t number, const struct clan_cookie *cookie);
	int (*cookie_pop)(struct clan_conn *conn, uint32_t number, struct clan_cookie *cookie_out);

	/* These functions are called only for queues that use the provider (its entry in carriers
	 * is not NULL). progress: checks what peers have done. Returns true if it found work. */
	bool (*progress)(struct clan_queue *queue);
	void (*publish)(struct clan_queue *queue);
	/* Requests a wake-up from all peers. Returns true if there is work already. */
	bool (*arm)(struct clan_queue *queue);
	void (*queue_destroy)(struct clan_queue *queue); /* frees the queue's entry in carriers */
};

extern const struct clan_provider clan_provider_shm;
extern const struct clan_provider clan_provider_net;
extern const struct clan_provider *const clan_providers[CLAN_PROVIDER_COUNT];

/* Returns the part of an address after the scheme. */
static inline const char *clan_place(const char *address)
{
	return strchr(address, ':') + 1;
}
/* Initializes a connection that the provider has created, and adds it to the queue's list. */
void clan_conn_init(struct clan_conn *conn, const struct clan_provider *provider,
	struct clan_queue *queue, const struct clan_conn_options *options, enum clan_state state);
/* The only function that assigns a connection's state; it asserts that the transition is
 * permitted. */
void clan_conn_set_state(struct clan_conn *conn, enum clan_state state);
/* Moves a connection whose handle the program has to LOST, with a human-readable reason. Must not
 * be called in LOST or later. */
void clan_conn_lose(struct clan_conn *conn, int status, const char *format, ...) GMB_PRINTF(3, 4);
/* Removes the connection from the queue. Afterwards only the memory of the struct itself is left to
 * free. */
void clan_conn_fini(struct clan_conn *conn);
GMB_MUST_CHECK int clan_conn_set_hello(struct clan_conn *conn, const void *hello, size_t bytes);
/* The peer has rejected the connection with a human-readable text. Stores the text as the peer's
 * hello, and writes a reason for the program into reason (CLAN_REASON_BYTES). */
void clan_conn_refused(struct clan_conn *conn, const void *text, size_t bytes, char *reason);
/* Copies bytes to a vector, from byte *skip of its part *index on, and advances both. Returns the
 * number of bytes that the vector had room for. */
size_t clan_scatter(const struct iovec *iov, uint32_t iov_count, uint32_t *index, size_t *skip,
	const uint8_t *from, size_t bytes);
/* Raises CLAN_EVENT_READY for those bits of ready that are enabled. */
void clan_conn_fire_ready(struct clan_conn *conn, uint32_t ready);

/* --- regions ---------------------------------------------------------------------------------- */

/* State that a provider keeps for a region until the region is destroyed. */
struct clan_registration {
	struct list_node node; /* in region->registrations */
	void (*drop)(struct clan_registration *registration);
};

struct clan_region {
	struct clan_queue *queue;
	struct list_node node; /* in queue->regions */
	struct list_node shares;
	struct list_node registrations; /* struct clan_registration */
	uint8_t *base;
	uint64_t bytes;
	uint64_t offset; /* offset of the region in the memfd */
	int fd;		 /* -1: registered memory of the program, which has no memfd */
	/* Strict revocations in progress. If the connection is lost, they replace the pages. */
	uint32_t strict_count;
	bool imported;
	bool read_only; /* sealed, so that no other process can map it for writing */
	bool sealed;	/* shm has sealed the memfd, so read_only is fixed for all shares */
	bool huge;
};

/* The states of a share. */
enum clan_share_state {
	CLAN_SHARE_ASKED,  /* waits for the peer's answer */
	CLAN_SHARE_LIVE,   /* the peer can use the region */
	CLAN_SHARE_ENDING, /* waits until the peer returns the region */
	CLAN_SHARE_ENDED,  /* waits for delivery of UNSHARED, or of SHARED with an error */
	CLAN_SHARE_STATE_COUNT
};

/* One region as shared with one peer. */
struct clan_share {
	struct clan_conn *conn;
	struct clan_region *region;
	struct list_node conn_node;
	struct list_node region_node;
	struct clan_source source;
	enum clan_share_state state;
	int status; /* status of the pending event */
	uint32_t number;
	uint32_t generation;
	uint32_t rights;
	void *carrier; /* net: struct net_key while the peer can reach the region; shm: NULL */
};

/* Called by the provider when the peer has accepted the share (status 0) or refused it, and when
 * the peer has returned the region. */
void clan_share_answered(struct clan_share *share, int status);
void clan_share_returned(struct clan_share *share);
/* Drops all shares of a connection that is being closed, without events. */
void clan_shares_drop(struct clan_conn *conn);
struct clan_share *clan_share_find(const struct clan_conn *conn, uint32_t number);
