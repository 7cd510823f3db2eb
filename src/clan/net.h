// SPDX-License-Identifier: Apache-2.0
/*
 * The network provider: connections between machines, docs/protocol/clan.md §12. It implements the
 * protocol; a transport carries its frames, puts and gets.
 *
 *   net.c         the provider's table; addresses, listeners, life of a connection
 *   net_frame.c   frames and their credits, messages, streams
 *   net_memory.c  regions, cookies, revocation, tripwires, cookie queues
 *   net_rma.c     puts and gets
 *        │                          ▲
 *        ▼ struct net_transport     │ net_connected(), net_frame_received(), net_rma_done(), ...
 *   tcp.c tcp_stream.c   plain sockets
 *   ofi.c ofi_domain.c   libfabric (FI_EP_MSG), loaded when an address uses it
 *
 * Invariant: all data from the peer comes in frames. A frame is copied to private memory and
 * checked before it is used, so a value cannot change after its check.
 *
 * Upward calls: a transport calls net_*.c only from its look(), progress() and flush(), and when a
 * listener accepts. An upward call can end the connection, which the transport is still using. So
 * the end only puts the connection on a list, and net_bury() closes the endpoint afterwards.
 *
 * Threading: the queue's thread; a worker resolves names to connect to. Ownership: a connection
 * belongs to its queue. A transport may use the buffers of a connection until its endpoint is
 * closed. Errors: -errno. If a peer breaks a rule of the protocol, call net_broken().
 */
#pragma once

#include <sys/socket.h>

#include "clan/clan.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are written as they are in memory"
#endif

/* --- the wire format -------------------------------------------------------------------------- */

enum {
	NET_VERSION = 1,
	NET_FRAME_BYTES = 8320, /* largest frame */
	NET_RECEIVES = 8, /* receive buffers of each side, on a transport that counts frames */
	NET_CONTROL_SLOTS = 64,
	NET_SLOT_BYTES = 64,
	NET_RECORD_ALIGN = 8,
	/* Size limit of system records, except HELLO and its answers. */
	NET_SYSTEM_BYTES_MAX = 64,
};

/* The counts tell the receiver of this frame what the sender has received so far. */
struct net_frame_head {
	uint16_t bytes;	  /* size of the frame */
	uint16_t credits; /* frames received since the sender's last frame */
	/* slots of the sender's control and bulk rings whose messages its program has received */
	uint32_t taken[2];
	uint32_t popped; /* number of cookies that the sender's program has popped */
};

enum net_class { NET_CONTROL, NET_BULK, NET_RING_COUNT, NET_SYSTEM = NET_RING_COUNT };

struct net_record_head {
	uint16_t bytes; /* including this head */
	uint8_t type;
	uint8_t class; /* enum net_class */
	uint32_t reserved;
};

enum net_system_type {
	NET_HELLO = 1,
	NET_WELCOME,
	NET_REFUSED,
	NET_END,
	NET_REGION,
	NET_REGION_OK,
	NET_REGION_END,
	NET_REGION_ENDED,
	NET_GRANT,
	NET_REVOKE,
	NET_REVOKED,
	NET_COOKIE,
	NET_PUT,
	NET_SYSTEM_TYPE_COUNT
};

struct net_hello { /* HELLO and WELCOME; followed by the program's hello */
	uint64_t magic;
	uint16_t version_min;
	uint16_t version_max;
	uint32_t bulk_slots;
	uint32_t cookies;
	uint32_t hello_bytes;
};

struct net_refused { /* REFUSED, followed by the text; END, without a text */
	uint32_t error;
	uint32_t text_bytes;
};

struct net_region {
	uint16_t region;
	uint16_t rights;
	uint32_t generation;
	uint64_t bytes;
	uint64_t key;
	uint64_t base;
};

struct net_region_answer { /* REGION_OK, REGION_END, REGION_ENDED */
	uint16_t region;
	uint16_t error;
	uint32_t generation;
};

struct net_revoke { /* REVOKE and REVOKED */
	uint16_t slot;
	uint16_t reserved;
	uint32_t generation;
};

struct net_cookie_record { /* COOKIE and GRANT; the queue of GRANT is 0 */
	uint16_t queue;
	uint16_t reserved;
	uint32_t reserved2;
	struct clan_cookie cookie;
};

struct net_put {
	uint16_t region;
	uint16_t reserved;
	uint32_t reserved2;
	uint64_t offset;
	uint64_t bytes;
};

_Static_assert(sizeof(struct net_frame_head) == 16 && sizeof(struct net_record_head) == 8 &&
		       sizeof(struct net_hello) == 24 && sizeof(struct net_region) == 32 &&
		       sizeof(struct net_cookie_record) == 40 && sizeof(struct net_put) == 24,
	"docs/protocol/clan.md");
_Static_assert(
	sizeof(struct net_frame_head) + sizeof(struct net_record_head) + CLAN_BULK_BYTES_MAX <=
		NET_FRAME_BYTES,
	"every message fits a frame");
_Static_assert(sizeof(struct net_frame_head) + sizeof(struct net_record_head) +
			       sizeof(struct net_hello) + CLAN_HELLO_BYTES_MAX <=
		       NET_FRAME_BYTES,
	"every hello fits a frame");
_Static_assert(CLAN_BULK_BYTES_MAX + sizeof(struct net_record_head) <=
			       CLAN_BULK_SLOTS_MIN / 2 * NET_SLOT_BYTES &&
		       CLAN_CONTROL_BYTES_MAX + sizeof(struct net_record_head) <=
			       NET_CONTROL_SLOTS / 2 * NET_SLOT_BYTES,
	"room is reported when half of a ring was consumed, so each message must fit into that "
	"half");

/* --- the private state of a queue ------------------------------------------------------------- */

enum {
	NET_SENDS = 4,					     /* frames of a connection in flight */
	NET_MEMORY_BYTES = NET_SENDS * NET_FRAME_BYTES + 16, /* size of net_conn.memory */
	/* Limit on the puts and gets of a connection that its transport executes at a time. A large
	 * one counts once for each of its parts. */
	NET_RMA_PIECES = 32,
	NET_HOST_BYTES = 256,
	NET_PORT_BYTES = 6,
};

enum net_transport_number { NET_TCP, NET_OFI, NET_TRANSPORT_COUNT };

struct net_queue {
	struct clan_queue *queue;
	struct list_node dirty;		       /* connections with data to publish */
	struct list_node dying;		       /* connections whose endpoint must be closed */
	struct list_node dead;		       /* connections to free that were never reported to
						  the program */
	struct list_node rmas;		       /* free struct net_rma */
	void *transports[NET_TRANSPORT_COUNT]; /* state of each transport; NULL until it is used */
	bool reaping;			       /* ofi_domain_reap() is running */
};

enum net_op_kind { NET_OP_RECEIVE, NET_OP_FRAME, NET_OP_RMA };

/* An operation in progress in a transport. */
struct net_op {
	enum net_op_kind kind;
	struct net_conn *conn;
};

/* --- connections ------------------------------------------------------------------------------ */

struct net_buffer {
	struct net_op op;
	struct list_node node; /* in free_sends, or in frames */
	uint8_t *data;
	uint32_t bytes;
	/* Value of rmas_begun when the frame was closed. Puts and gets begun before are posted
	 * first, because messages must not overtake them. */
	uint64_t after;
};

/* A record about an object that must still be sent. The struct is a member of that object. write()
 * composes the record when a frame has room. So pending records need no buffers, whose number a
 * peer could increase. */
struct net_owed {
	struct list_node node; /* in conn->owed */
	void (*write)(struct net_conn *conn, struct net_owed *owed);
};

struct net_ring { /* received messages that the program has not consumed */
	uint8_t *data;
	uint32_t slots;
	uint32_t write;
	uint32_t read;
	uint32_t told;	    /* value of `read` that our last frame reported */
	uint32_t stream_at; /* consumed bytes, if the next message was partly read; else 0 */
};

/* Our view of a ring of the peer, from which we know how much room the ring has. */
struct net_out {
	uint32_t slots;
	uint32_t write;	 /* slots that our messages have used */
	uint32_t taken;	 /* slots that the peer has reported as consumed */
	uint32_t needed; /* slots that the last message without room needs; 0: none so far */
};

struct net_grant {
	struct net_owed owed; /* a pending GRANT or REVOKE record */
	struct clan_cookie cookie;
	struct clan_share *share; /* NULL: the peer has returned the region */
	uint32_t generation;	  /* generation last used in this slot */
	uint32_t reads;		  /* READs of the peer that the transport is answering */
	uint8_t state;		  /* enum net_grant_state */
	bool used;		  /* the peer has used the cookie; only if transport->sees_puts */
};

/* A cookie granted by the peer. */
struct net_ticket {
	struct net_owed owed;	   /* a pending REVOKED record */
	struct clan_cookie cookie; /* generation 0: void */
	struct net_peer_region *region;
	uint32_t generation; /* generation of the last GRANT or REVOKE */
	uint32_t running;    /* puts and gets in progress */
	bool revoked;	     /* REVOKE has arrived, and REVOKED must be sent */
};

/* The phases of an endpoint. */
enum net_phase {
	NET_RESOLVING, /* waits for the worker that resolves the name */
	NET_DIALING,   /* waits for net_connected() */
	NET_TALKING,   /* connected */
	NET_CLOSED,    /* the endpoint is closed */
	NET_PHASE_COUNT
};

struct net_conn {
	struct clan_conn conn;
	const struct net_transport *transport;
	struct net_listener *listener;
	struct net_resolve *resolve; /* owned by a worker */
	struct list_node dirty_node;
	struct list_node dying_node;
	struct list_node dead_node;
	enum net_phase phase;
	bool handshake_counted;
	bool is_refused;
	bool ending; /* clan_close() was called: END is sent, and the peer's end is awaited */
	bool peer_ended;

	/* Frames. */
	uint8_t *memory; /* memory of all send buffers, NET_MEMORY_BYTES */
	struct net_buffer sends[NET_SENDS];
	struct net_buffer tell; /* a frame without records, which returns credits */
	struct list_node free_sends;
	struct list_node frames; /* closed frames that wait to be posted */
	struct net_buffer *open; /* the frame being filled */
	struct list_node owed;	 /* struct net_owed */
	uint32_t sends_posted;
	uint32_t credits; /* frames that the peer can receive */
	uint32_t owed_credits;
	bool tell_posted;
	bool must_tell;
	struct net_ring in[NET_RING_COUNT];
	struct net_out out[NET_RING_COUNT];
	uint32_t controls_in_row;

	/* Memory. */
	struct list_node regions; /* struct net_peer_region */
	/* indexed by number; NULL until the peer shares a region */
	struct net_peer_region **region_table;
	uint32_t region_count;
	uint64_t region_bytes;
	struct net_grant *grants;
	uint32_t grant_next;
	struct net_ticket *tickets;
	uint32_t ticket_count;
	struct list_node revocations;
	struct net_watch *watches;
	struct net_fifo *fifo;
	uint32_t fifo_first[CLAN_COOKIE_QUEUES];
	uint32_t fifo_last[CLAN_COOKIE_QUEUES];
	uint32_t fifo_free;
	uint32_t fifo_count;
	uint32_t popped;
	uint32_t pushed;
	uint32_t peer_popped;

	/* Puts and gets. */
	struct list_node rmas;	  /* puts and gets that wait to be posted */
	struct list_node running; /* puts and gets that were posted, or have ended */
	uint64_t rmas_begun;
	uint64_t rmas_posted;
	uint32_t pieces; /* number of parts of puts and gets that the transport is executing */
	struct net_owed end_owed;
};

struct net_listener {
	struct clan_listener listener;
	const struct net_transport *transport;
	uint32_t conn_count;
	uint32_t handshake_count;
	uint32_t refused_count; /* connections to which REFUSED is being sent */
	bool closed;
};

/* --- transports ------------------------------------------------------------------------------- */

struct net_rma;
struct net_key;

/* A parsed address. */
struct net_place {
	const struct net_transport *transport;
	const char *provider; /* ofi: name of the libfabric provider, a static string; else NULL */
	char host[NET_HOST_BYTES];
	char port[NET_PORT_BYTES];
};

/* A transport carries frames, puts and gets. All members but socket are required. Errors: negative
 * errno. */
struct net_transport {
	enum net_transport_number number;
	uint64_t magic; /* in HELLO */
	/* Number of receive buffers of a side, each for one frame: the peer's initial credits. 0:
	 * unlimited, and frames are not counted. */
	uint32_t receives;
	/* The transport checks the peer's puts with net_access_find(), so no PUT record is sent. */
	bool sees_puts;
	size_t conn_bytes; /* size of the transport's connection struct, which begins with struct
			      net_conn */
	size_t listener_bytes;

	/* Resolves an address, which can block. Called within clan_listen() if listen is true,
	 * otherwise on a worker. found_free() frees the result. */
	int (*look_up)(
		const struct net_place *place, bool listen, void **found_out, struct error *error);
	void (*found_free)(void *found);

	/* Listens at the resolved address, and fills in the actual socket address. Each new peer is
	 * reported by net_arrived(), then net_connected(), net_conn_cut() or net_conn_end(). */
	int (*listen)(struct net_listener *listener, void *found, struct sockaddr_storage *address);
	void (*listener_close)(struct net_listener *listener);

	/* Starts to connect. net_connected() or net_conn_cut() follows, but not within this call.
	 * Takes ownership of found. */
	int (*dial)(struct net_conn *conn, void *found);
	/* Closes the endpoint, if there is one. When it returns, no memory is written or read any
	 * more, and no function is called for the connection. */
	void (*close)(struct net_conn *conn);
	/* Called after close; frees the transport's state. */
	void (*conn_free)(struct net_conn *conn);

	/* Post a frame, or a put or get. The transport executes them in the order of the calls.
	 * Each ends with net_frame_sent() or net_rma_done(), but not within this call, unless the
	 * endpoint is closed. -EAGAIN: no room; the caller retries in the next turn. */
	int (*post_frame)(struct net_conn *conn, struct net_buffer *buffer);
	int (*post_rma)(struct net_conn *conn, struct net_rma *rma);
	/* Starts the transmission of all posted operations. */
	void (*flush)(struct net_conn *conn);
	/* Processes received data and ended operations of the connection. */
	void (*look)(struct net_conn *conn);
	/* Returns the TCP socket of a connected endpoint. NULL: there is none. */
	int (*socket)(const struct net_conn *conn);

	/* Hold and release the local memory of a put or get, from the call that begins it until it
	 * ends. */
	int (*rma_hold)(struct net_rma *rma);
	void (*rma_release)(struct net_rma *rma);
	/* Shares a region: fills in key->key and key->base, which the peer uses to access it.
	 * unshare invalidates them. */
	int (*share)(struct net_conn *conn, struct net_key *key);
	void (*unshare)(struct net_key *key);

	/* These do for the transport what the members of the same names in struct clan_provider do.
	 * Called only for queues that use the transport. */
	bool (*progress)(struct net_queue *net);
	bool (*arm)(struct net_queue *net);
	void (*queue_destroy)(struct net_queue *net);
	/* Called in the child after fork(): closes the descriptors of the connection or the
	 * listener, if this has no effect on the parent. */
	void (*after_fork)(struct net_conn *conn, struct net_listener *listener);
};

extern const struct net_transport net_transport_tcp;
extern const struct net_transport net_transport_ofi;

static inline struct net_conn *net_conn(struct clan_conn *conn)
{
	return (struct net_conn *)conn;
}

static inline struct net_queue *net_queue(const struct clan_queue *queue)
{
	return queue->carriers[CLAN_NET];
}

_Static_assert(offsetof(struct net_conn, conn) == 0, "net_conn()");

/* --- net.c ------------------------------------------------------------------------------------ */

/* Called when a peer has connected to a listener. Returns a new connection, or NULL if a limit is
 * reached or there is no memory. */
struct net_conn *net_arrived(struct net_listener *listener);
/* Called when the endpoint of a connection is connected; peer is its address, or NULL if it is
 * unknown. Further calls have no effect. */
void net_connected(struct net_conn *conn, const struct sockaddr *peer);
/* Processes a set-up record in any state; the record has at least the minimum length of its type.
 * Returns 0, or -EPROTO if the connection has been ended or the record is END. */
int net_setup_arrived(
	struct net_conn *conn, enum net_system_type type, const uint8_t *data, uint32_t bytes);
/* Ends a connection in any state before CLOSING. A connection whose handle the program has becomes
 * LOST. Its endpoint is closed as soon as no transport function is running. */
void net_conn_end(struct net_conn *conn, int status, const char *reason);
/* Called when the endpoint has failed with that negative errno, or was shut down by the peer
 * (0). */
void net_conn_cut(struct net_conn *conn, int error);
/* The peer broke rule O<rule> of docs/protocol/clan.md: ends the connection. Returns -EPROTO. */
int net_broken(struct net_conn *conn, uint32_t rule, const char *what);
/* In CLOSING: closes the endpoint if the peer has also sent END and all our frames have been sent.
 * Otherwise the connection ends when the peer closes its endpoint, or after LINGER_MS. */
void net_conn_drained(struct net_conn *conn);

/* --- net_frame.c ------------------------------------------------------------------------------ */

/* Allocates the buffers of a connection. */
GMB_MUST_CHECK int net_frames_start(struct net_conn *conn);
void net_frames_free(struct net_conn *conn);
/* Allocates our receive rings, and sets the sizes of both sides' rings. */
GMB_MUST_CHECK int net_rings_make(struct net_conn *conn, uint32_t peer_bulk_slots);
/* Appends a record with the bytes of a vector to the open frame. Returns false if there is no
 * room. */
bool net_append(struct net_conn *conn, enum net_class class, uint8_t type, const struct iovec *iov,
	size_t bytes);
/* Appends a record of the library. The caller has checked that there is room. */
void net_append_system(
	struct net_conn *conn, enum net_system_type type, const void *data, size_t bytes);
/* Queues a record of the library, to be sent when there is room. No effect if it is already
 * queued. */
void net_owe(struct net_conn *conn, struct net_owed *owed,
	void (*write)(struct net_conn *conn, struct net_owed *owed));
/* Writes queued records while there is room. Returns true if none is left. */
bool net_write_owed(struct net_conn *conn);
/* Returns the length of a record of the library without its head; for set-up records it is the
 * minimum. */
size_t net_system_bytes(enum net_system_type type);
/* Marks the connection as having data to publish. */
void net_changed(struct net_conn *conn);
void net_publish_conn(struct net_conn *conn);
/* Processes a frame. Returns 0, or -EPROTO if the connection has ended and no further data may
 * be processed. */
int net_frame_received(struct net_conn *conn, const uint8_t *data, size_t bytes);
/* Called when a frame has been sent; its buffer is free again. */
void net_frame_sent(struct net_conn *conn, struct net_buffer *buffer);
/* Fires READY for each class whose ring has room now for the last message that found none, and for
 * cookies if there is room for another one. */
void net_look_room(struct net_conn *conn);
/* Returns true if there is room for a message of this size. If there is no room at first,
 * processes the events of the transport, which can free room or end the connection. */
bool net_room(struct net_conn *conn, enum net_class class, size_t bytes);
/* Called when there is no room. Returns -EAGAIN, and fires READY later; or -ENOTCONN if the
 * connection has ended. */
int net_no_room(struct net_conn *conn, enum net_class class, size_t bytes);
int net_send(struct clan_conn *base, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count, size_t bytes);
/* Sends the notification of a put. The caller has checked that there is room. */
void net_notify(struct net_conn *conn, uint32_t value);
int net_recv(struct clan_conn *base, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes);
ssize_t net_readv(struct clan_conn *base, const struct iovec *iov, uint32_t iov_count, bool peek);

/* --- net_memory.c ----------------------------------------------------------------------------- */

/* The states of a region of the peer. */
enum net_peer_region_state {
	NET_REGION_REFUSED, /* waits until REGION_OK with an errno is sent */
	NET_REGION_LIVE,    /* usable */
	/* Waits until the puts and gets that use the region have ended, the program has received
	 * its events, and REGION_ENDED is sent. */
	NET_REGION_LEAVING,
	NET_REGION_STATE_COUNT
};

struct net_peer_region {
	struct net_owed owed; /* a pending REGION_OK or REGION_ENDED record */
	struct list_node node;
	struct net_conn *conn;
	struct clan_source source;
	enum net_peer_region_state state;
	bool give_live;
	bool give_leaving;
	bool asked_back;
	uint16_t number;
	uint16_t error; /* REFUSED: the errno for the peer */
	uint32_t generation;
	uint32_t rights;
	uint64_t bytes;
	uint64_t key;
	uint64_t base;
	uint32_t running; /* puts and gets in progress */
};

/* The provider's state of a share (share->carrier): the key that the peer needs for access. */
struct net_key {
	struct net_owed owed; /* a pending REGION or REGION_END record */
	struct clan_share *share;
	struct net_conn *conn;
	uint64_t key;
	uint64_t base;
	void *held; /* state of the transport */
};

/* Processes a record about regions, cookies or puts in OPEN; its length has been checked. Returns
 * 0, or -EPROTO if the connection has been ended. */
int net_memory_record(struct net_conn *conn, enum net_system_type type, const uint8_t *data);
/* An access by the peer that the transport must check: a range of one of our cookies. */
struct net_access {
	uint32_t slot;
	uint32_t generation;
	uint32_t right;	 /* enum clan_rights */
	uint64_t offset; /* in the cookie */
	uint64_t bytes;
	/* Results of net_access_find(). */
	uint8_t *memory;
	struct net_grant *grant;
	uint32_t region;
	uint64_t region_offset;
};

/* Returns true if the cookie permits the access now, and fills in the results. A cookie with
 * CLAN_COOKIE_ONCE is used up by this call. The memory stays valid until the peer has returned the
 * cookie or the region. The peer must not return either while grant->reads is not 0. */
bool net_access_find(struct net_conn *conn, struct net_access *access);
/* The peer has put data: fires the tripwires in the range. Returns 0 or -EPROTO. */
int net_put_arrived(struct net_conn *conn, const struct net_put *put);
/* Called when a put or get by the ticket (our record of a peer's cookie) has ended. */
void net_ticket_released(
	struct net_conn *conn, struct net_ticket *ticket, struct net_peer_region *region);
/* Finds the ticket (our record) of a peer's cookie, and checks that it permits the access. Returns
 * 0 or a negative errno. */
int net_ticket_find(struct net_conn *conn, const struct clan_cookie *cookie, uint32_t right,
	uint64_t offset, uint64_t bytes, struct net_ticket **ticket_out);
bool net_cookie_room(struct net_conn *conn);
/* Called when the endpoint is closed and all data has arrived. */
void net_memory_end(struct net_conn *conn);
/* Called when the program closes the connection: drops its pending events, and prevents others. */
void net_memory_close(struct net_conn *conn);
void net_memory_free(struct net_conn *conn);
int net_share(struct clan_conn *base, struct clan_share *share);
int net_unshare(struct clan_conn *base, struct clan_share *share);
int net_peer_info(const struct clan_conn *base, uint32_t number, struct clan_peer_region *region);
int net_grant(struct clan_conn *base, struct clan_share *share, struct clan_cookie *cookie);
int net_revoke(struct clan_conn *base, const struct clan_cookie *cookie, bool strict, void *op);
void net_void_cookies(struct clan_conn *base, const struct clan_share *share);
int net_tripwire(struct clan_conn *base, const struct clan_share *share, uint64_t offset,
	uint32_t bytes, uint32_t *number_out);
int net_rearm(struct clan_conn *base, uint32_t number);
int net_tripwire_remove(struct clan_conn *base, uint32_t number);
int net_cookie_push(struct clan_conn *base, uint32_t number, const struct clan_cookie *cookie);
int net_cookie_pop(struct clan_conn *base, uint32_t number, struct clan_cookie *cookie_out);

/* --- net_rma.c -------------------------------------------------------------------------------- */

/* A put or get. */
struct net_rma {
	struct net_op op;
	struct list_node node; /* in conn->rmas, in conn->running, or free */
	struct clan_source source;
	struct net_owed owed; /* a pending PUT record */
	struct net_ticket *ticket;
	struct net_peer_region *region;
	struct net_put record;
	/* The cookie's slot and generation, and the offset of the range in it. */
	uint16_t slot;
	uint32_t generation;
	uint64_t offset;
	void *context; /* argument of CLAN_EVENT_DONE */
	int status;
	bool put;
	bool released;
	bool given;	 /* CLAN_EVENT_DONE was given or is not needed */
	uint32_t pieces; /* pieces of this operation that are posted and not ended */
	uint64_t remote; /* address of the next piece in the peer's memory */
	uint64_t left;
	uint32_t iov_count;
	uint32_t index; /* index of the next part in iov */
	size_t skip;
	struct iovec iov[CLAN_IOV_MAX];
	void *held; /* state of the transport, kept for reuse; freed with the struct */
};

/* Advances index and skip by that many bytes, which have been transferred. */
void net_rma_advance(struct net_rma *rma, size_t bytes);
/* Posts as many puts and gets as the transport accepts. */
void net_rma_pump(struct net_conn *conn);
/* Called when a posted piece of a put or get has ended; error: 0, or the reason why its result is
 * unknown. */
void net_rma_done(struct net_rma *rma, int error);
/* Called when the endpoint is closed: ends all puts and gets. */
void net_rma_end(struct net_conn *conn);
/* Called when the program closes the connection: drops its pending events, and prevents others. */
void net_rma_close(struct net_conn *conn);
void net_rma_free_all(struct net_queue *net);
/* Queues CLAN_EVENT_DONE for an operation that has already ended. Returns 0 or -ENOMEM. */
int net_rma_ended(struct net_conn *conn, void *op);
int net_put(struct clan_conn *base, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op);
int net_get(struct clan_conn *base, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);
