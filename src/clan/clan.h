// SPDX-License-Identifier: Apache-2.0
/*
 * Inside libclan: queues, their events, and what a provider is. A provider carries connections over
 * one kind of transport; the table of them is in conn.c. The calls of <gmblock/clan.h> check their
 * arguments and the state of the connection (conn.c), and then ask its provider.
 *
 *   conn.c region.c (calls) ──▶ provider: shm_*.c, net*.c
 *         │                        │ clan_fire()
 *         └──────▶ queue.c ◀───────┘        waiter.c: sleeping     base/work.c: what may block
 *
 * Threading: as <gmblock/clan.h>. Ownership: a connection is created by its provider and freed by
 * the queue, through the provider, when CLAN_EVENT_CLOSED has been given.
 * Errors: negative errno.
 */
#pragma once

#include <gmblock/clan.h>

#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/list.h"
#include "base/work.h"
#include "clan/waiter.h"

/* The limits that <gmblock/clan.h> gives. */
enum {
	CLAN_CONNS_MAX = 65536,
	CLAN_CONNS_DEFAULT = 4096,
	CLAN_TABLE_MAX = 4096, /* cookies, tripwires, regions of a connection */
	CLAN_BULK_SLOTS_MIN = 256,
	CLAN_BULK_SLOTS_MAX = 65536,
	CLAN_IOV_MAX = 64,
	CLAN_STREAM_IOV_MAX = 1024,
	CLAN_REASON_BYTES = 160,
	CLAN_STRICT_MS = 10,
	CLAN_HANDSHAKES_DEFAULT = 64,
};

/* --- the event queue (docs/protocol/clan.md §7) ---------------------------------------------- */

/* Something that can raise events; linked exactly while it has one to give. */
struct clan_source {
	struct list_node node;
	/* Fills in what happened. True: there is more, so it goes to the end of the queue again.
	 * The source may be freed. */
	bool (*give)(struct clan_source *source, struct clan_event *event);
};

/* A point in time at which something has to be done. */
struct clan_deadline {
	struct list_node node;
	uint64_t due_ns;
	void (*passed)(struct clan_deadline *deadline); /* it is unlinked before */
};

/* Places in the table of providers, in conn.c. */
enum { CLAN_SHM, CLAN_NET, CLAN_PROVIDER_COUNT };

struct clan_queue {
	struct waiter *waiter;
	struct clan_queue_options options;
	struct list_node events; /* struct clan_source */
	struct list_node deadlines;
	uint64_t timer_ns; /* what the timer is set to; 0 = off */
	struct waiter_file wake_file;
	struct waiter_file timer_file;
	struct work_results results;
	_Atomic(bool) woken;
	uint32_t looks; /* without a look at descriptors */
	bool armed;
	uint32_t conn_count;
	uint32_t listener_count;
	uint32_t region_count;
	struct list_node conns;
	struct list_node listeners;
	struct list_node regions;
	void *carriers[CLAN_PROVIDER_COUNT]; /* what each provider keeps; NULL until it is used */
};

void clan_source_init(struct clan_source *source,
	bool (*give)(struct clan_source *source, struct clan_event *event));
void clan_fire(struct clan_queue *queue, struct clan_source *source);
void clan_deadline_set(struct clan_queue *queue, struct clan_deadline *deadline, uint64_t after_ns);
static inline void clan_deadline_clear(struct clan_deadline *deadline)
{
	list_remove(&deadline->node);
}
/* Hands an error to the program, which may not want it. Returns its code. */
int clan_error_give(struct clan_error *error_out, const struct error *error);
static inline bool clan_queue_is_passive(const struct clan_queue *queue)
{
	return (queue->options.flags & CLAN_QUEUE_PASSIVE) != 0;
}

/* --- connections ------------------------------------------------------------------------------ */

/* Named for what they wait for; docs/protocol/clan.md §3.2. */
enum clan_state {
	CLAN_CONNECTING, /* the acceptor's answer */
	CLAN_OPENING,	 /* HELLO */
	CLAN_OFFERED,	 /* the program's answer */
	CLAN_OPEN,	 /* nothing */
	CLAN_LOST,	 /* clan_close() */
	CLAN_CLOSING,	 /* holds and workers */
	CLAN_CLOSED,	 /* CLAN_EVENT_CLOSED to be given */
	CLAN_STATE_COUNT
};

struct clan_conn {
	const struct clan_provider *provider;
	struct clan_queue *queue;
	struct list_node node; /* in queue->conns */
	struct clan_source source;
	enum clan_state state;
	bool was_open;	      /* it has been OPEN */
	int status;	      /* why it was lost */
	uint32_t ready;	      /* enum clan_ready: to be given */
	uint32_t enabled;     /* enum clan_ready: what returned -EAGAIN since it was given */
	bool arrived_pending; /* CLAN_EVENT_ARRIVED is to be given */
	bool connect_pending; /* CLAN_EVENT_CONNECT or CONNECTED is to be given */
	bool is_wary;	      /* memory that the peer may write is for helper threads only */
	bool connector;
	bool known; /* to the program: it gets events, and closes it */
	bool lost_pending;
	void *context;
	struct clan_peer peer;
	uint8_t *hello;
	size_t hello_bytes;
	struct clan_conn_options options; /* with the defaults filled in */
	struct clan_conn_stats stats;
	struct list_node shares;       /* struct clan_share: our regions that it knows */
	uint32_t share_generation;     /* of the last one */
	struct clan_deadline deadline; /* of the handshake */
	char reason[CLAN_REASON_BYTES];
};

struct clan_share;

struct clan_listener {
	const struct clan_provider *provider;
	struct clan_queue *queue;
	struct list_node node;
	struct clan_conn_options options;
	char address[CLAN_ADDRESS_BYTES]; /* by the provider, when it found a part of it */
};

/* A provider: how connections are carried. All members are required. Arguments were checked; what
 * works on a connection is called only while it is OPEN unless it says otherwise. */
struct clan_provider {
	const char *schemes[2]; /* of addresses, without the colon; unused ones are NULL */
	uint32_t caps;		/* enum clan_conn_caps */

	int (*listen)(struct clan_queue *queue, const char *address,
		const struct clan_conn_options *options, struct clan_listener **listener_out,
		struct error *error);
	void (*listener_close)(struct clan_listener *listener);
	/* Takes fd when it returns 0. */
	int (*adopt)(struct clan_queue *queue, int fd, const struct clan_conn_options *options,
		struct clan_conn **conn_out, struct error *error);
	int (*connect)(struct clan_queue *queue, const char *address,
		const struct clan_conn_options *options, const void *hello, size_t hello_bytes,
		struct clan_conn **conn_out, struct error *error);
	int (*accept)(struct clan_conn *conn, const void *hello, size_t hello_bytes); /* OFFERED */
	/* OFFERED, or OPENING and known to the program. */
	void (*reject)(struct clan_conn *conn, const char *text);
	/* Any state before CLOSING, which it has now: gives up what it has, drops the shares as
	 * soon as the peer cannot reach them, and sets CLOSED when nothing is in use any more. */
	void (*close)(struct clan_conn *conn);
	void (*destroy)(struct clan_conn *conn); /* CLOSED */
	/* Frees the connection or the listener, or what is in carriers when both are NULL. */
	void (*after_fork)(
		struct clan_queue *queue, struct clan_conn *conn, struct clan_listener *listener);

	int (*send)(struct clan_conn *conn, uint32_t cls, uint32_t type, const struct iovec *iov,
		uint32_t iov_count, size_t bytes);
	void (*flush)(struct clan_conn *conn);
	int (*recv)(struct clan_conn *conn, uint32_t classes, struct clan_message *message,
		void *buffer, uint32_t bytes); /* also LOST */
	ssize_t (*readv)(struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count,
		bool peek); /* also LOST */

	/* Adds what the connection's own counters do not have. */
	void (*get_stats)(const struct clan_conn *conn, struct clan_conn_stats *stats);
	int (*share)(struct clan_conn *conn, struct clan_share *share);
	int (*unshare)(struct clan_conn *conn, struct clan_share *share);
	int (*peer_info)(
		const struct clan_conn *conn, uint32_t number, struct clan_peer_region *region);
	int (*peer_get)(struct clan_conn *conn, uint32_t number, uint32_t generation,
		uint32_t rights, uint64_t offset, uint64_t bytes, void **address_out);
	void (*peer_put)(struct clan_conn *conn, uint32_t number); /* any state */

	int (*grant)(struct clan_conn *conn, struct clan_share *share, struct clan_cookie *cookie);
	int (*revoke)(
		struct clan_conn *conn, const struct clan_cookie *cookie, bool strict, void *op);
	/* Cookies of a share, all at once. */
	void (*void_cookies)(struct clan_conn *conn, const struct clan_share *share);
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
	int (*tripwire_remove)(struct clan_conn *conn, uint32_t number);
	int (*cookie_push)(
		struct clan_conn *conn, uint32_t number, const struct clan_cookie *cookie);
	int (*cookie_pop)(struct clan_conn *conn, uint32_t number, struct clan_cookie *cookie_out);

	/* Of a queue that uses the provider: its place in carriers is not NULL. progress: looks for
	 * what peers have done; looks at everything, or only where that is cheap. True: something
	 * was found. */
	bool (*progress)(struct clan_queue *queue);
	void (*publish)(struct clan_queue *queue);
	/* Asks all peers for a wake-up; true: there is something already. */
	bool (*arm)(struct clan_queue *queue);
	void (*queue_destroy)(struct clan_queue *queue); /* frees what is in carriers */
};

extern const struct clan_provider clan_provider_shm;
extern const struct clan_provider clan_provider_net;
extern const struct clan_provider *const clan_providers[CLAN_PROVIDER_COUNT];

/* An address without its scheme. */
static inline const char *clan_place(const char *address)
{
	return strchr(address, ':') + 1;
}
/* A provider's new connection: enters it in the queue. */
void clan_conn_init(struct clan_conn *conn, const struct clan_provider *provider,
	struct clan_queue *queue, const struct clan_conn_options *options, enum clan_state state);
/* The one place where a connection's state is assigned. */
void clan_conn_set_state(struct clan_conn *conn, enum clan_state state);
/* Ends a connection that the program knows: LOST, with a reason for people. Not once it is LOST or
 * closed. */
void clan_conn_lose(struct clan_conn *conn, int status, const char *format, ...) GMB_PRINTF(3, 4);
/* Removes the connection from the queue; nothing of it is left but its own memory. */
void clan_conn_fini(struct clan_conn *conn);
GMB_MUST_CHECK int clan_conn_set_hello(struct clan_conn *conn, const void *hello, size_t bytes);
/* The peer has refused the connection, with a text for people: keeps it as its hello, and says so
 * in a reason of CLAN_REASON_BYTES. */
void clan_conn_refused(struct clan_conn *conn, const void *text, size_t bytes, char *reason);
/* Copies bytes to a vector, from byte *skip of its part *index on, both of which go on; returns how
 * many there was room for. */
size_t clan_scatter(const struct iovec *iov, uint32_t iov_count, uint32_t *index, size_t *skip,
	const uint8_t *from, size_t bytes);
/* Raises CLAN_EVENT_READY for those of the bits that are enabled. */
void clan_conn_fire_ready(struct clan_conn *conn, uint32_t ready);

/* --- regions ---------------------------------------------------------------------------------- */

/* What a provider keeps of a region until it is destroyed. */
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
	uint64_t offset;       /* in the memfd */
	int fd;		       /* -1: memory of the program's, which is not a memfd */
	uint32_t strict_count; /* strict revocations under way, which will replace its pages */
	bool imported;
	bool read_only; /* sealed, so that nobody else can map it for writing */
	bool sealed;	/* what else it is shared for must be the same */
	bool huge;
};

enum clan_share_state {
	CLAN_SHARE_ASKED,  /* the peer's answer */
	CLAN_SHARE_LIVE,   /* nothing */
	CLAN_SHARE_ENDING, /* the peer to return it */
	CLAN_SHARE_ENDED,  /* UNSHARED, or a SHARED that failed, to be given */
	CLAN_SHARE_STATE_COUNT
};

/* A region that a peer knows. */
struct clan_share {
	struct clan_conn *conn;
	struct clan_region *region;
	struct list_node conn_node;
	struct list_node region_node;
	struct clan_source source;
	enum clan_share_state state;
	int status; /* of the event to be given */
	uint32_t number;
	uint32_t generation;
	uint32_t rights;
	void *carrier; /* what the provider keeps; NULL when the peer cannot reach it any more */
};

/* What the peer said about a share: taken (0) or refused, or returned. */
void clan_share_answered(struct clan_share *share, int status);
void clan_share_returned(struct clan_share *share);
/* The connection is being closed: it has no shares any more. */
void clan_shares_drop(struct clan_conn *conn);
struct clan_share *clan_share_find(const struct clan_conn *conn, uint32_t number);
