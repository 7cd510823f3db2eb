// SPDX-License-Identifier: Apache-2.0
/*
 * The network provider: connections between machines, docs/protocol/clan.md §12. What the protocol
 * says is here; a transport carries its frames, puts and gets.
 *
 *   net.c         the table of calls; addresses, listeners, life of a connection
 *   net_frame.c   frames and their credits, messages, streams
 *   net_memory.c  regions, cookies, revocation, tripwires, cookie queues
 *   net_rma.c     puts and gets
 *        │                          ▲
 *        ▼ struct net_transport     │ net_connected(), net_frame_received(), net_rma_done(), ...
 *   tcp.c tcp_stream.c   plain sockets
 *   ofi.c ofi_domain.c   libfabric (FI_EP_MSG), loaded when an address asks for it
 *
 * What comes from the peer comes in frames, which are checked and copied to memory of our own
 * before anything else is done; so nothing that is decided on can change.
 *
 * A transport calls upwards only in its look() and progress(), and in flush(), where operations
 * end; what ends a connection meanwhile puts it on a list, and its endpoint is closed afterwards.
 *
 * Threading: the queue's thread; names are resolved by a worker. Ownership: a connection belongs to
 * its queue. A transport may use the buffers of a connection until its endpoint is closed.
 * Errors: negative errno. A peer that breaks a rule of the protocol: net_broken().
 */
#pragma once

#include <sys/socket.h>

#include "clan/clan.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are written as they are in memory"
#endif

/* --- what goes over the wire ------------------------------------------------------------------ */

enum {
	NET_VERSION = 1,
	NET_FRAME_BYTES = 8320, /* the largest */
	NET_RECEIVES = 8, /* frames that a side can take at any time, where they are counted */
	NET_CONTROL_SLOTS = 64,
	NET_SLOT_BYTES = 64,
	NET_RECORD_ALIGN = 8,
	NET_SYSTEM_BYTES_MAX =
		64, /* a record of the library's, but for HELLO and what answers it */
};

struct net_frame_head {
	uint16_t bytes;	   /* of the frame */
	uint16_t credits;  /* frames that the sender can take again, since its last frame */
	uint32_t taken[2]; /* slots of control and bulk that the sender's program has taken */
	uint32_t popped;   /* cookies that it has popped */
};

enum net_class { NET_CONTROL, NET_BULK, NET_RING_COUNT, NET_SYSTEM = NET_RING_COUNT };

struct net_record_head {
	uint16_t bytes; /* with this head */
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

struct net_hello { /* HELLO and WELCOME; then what the program says */
	uint64_t magic;
	uint16_t version_min;
	uint16_t version_max;
	uint32_t bulk_slots;
	uint32_t cookies;
	uint32_t hello_bytes;
};

struct net_refused { /* and END; then the text, which END does not have */
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

struct net_revoke { /* and REVOKED */
	uint16_t slot;
	uint16_t reserved;
	uint32_t generation;
};

struct net_cookie_record { /* and GRANT, whose queue is 0 */
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
	"room is told of when half a ring was taken, so every message must fit the other half");

/* --- operations of a transport ------------------------------------------------------------------
 */

enum {
	NET_SENDS = 4,					     /* frames of a connection under way */
	NET_MEMORY_BYTES = NET_SENDS * NET_FRAME_BYTES + 16, /* net_conn.memory */
	NET_RMA_PIECES =
		32, /* puts and gets of a connection that its transport has, or their parts */
	NET_HOST_BYTES = 256,
	NET_PORT_BYTES = 6,
};

enum net_transport_number { NET_TCP, NET_OFI, NET_TRANSPORT_COUNT };

struct net_queue {
	struct clan_queue *queue;
	struct list_node dirty;		       /* connections with something to publish */
	struct list_node dying;		       /* connections whose endpoint is to be closed */
	struct list_node dead;		       /* connections to free that the program never knew */
	struct list_node rmas;		       /* free struct net_rma */
	void *transports[NET_TRANSPORT_COUNT]; /* what each keeps; NULL until it is used */
	bool reaping;			       /* a transport is looking */
};

enum net_op_kind { NET_OP_RECEIVE, NET_OP_FRAME, NET_OP_RMA };

/* What a transport was given to do. */
struct net_op {
	enum net_op_kind kind;
	struct net_conn *conn;
};

/* --- connections ------------------------------------------------------------------------------ */

struct net_buffer {
	struct net_op op;
	struct list_node node; /* free, or in frames */
	uint8_t *data;
	uint32_t bytes;
	uint64_t after; /* rmas_begun when it was closed: they are posted first */
};

/* A record that the library has to send, made when there is room for it. */
struct net_owed {
	struct list_node node; /* in conn->owed */
	void (*write)(struct net_conn *conn, struct net_owed *owed);
};

struct net_ring { /* messages that came, until the program takes them */
	uint8_t *data;
	uint32_t slots;
	uint32_t write;
	uint32_t read;
	uint32_t told;
	uint32_t stream_at; /* bytes taken of the stream message at read */
};

struct net_out { /* the peer's ring, as far as we know */
	uint32_t slots;
	uint32_t write;
	uint32_t taken;
	uint32_t needed; /* slots that found no room */
};

struct net_grant {
	struct net_owed owed; /* GRANT, or REVOKE */
	struct clan_cookie cookie;
	struct clan_share *share; /* NULL: the peer has returned the region */
	uint32_t generation;	  /* last used */
	uint32_t reads;		  /* that the transport is answering */
	uint8_t state;		  /* enum net_grant_state */
	bool used;		  /* where the transport sees it */
};

/* A cookie of the peer's. */
struct net_ticket {
	struct net_owed owed;	   /* REVOKED */
	struct clan_cookie cookie; /* generation 0: void */
	struct net_peer_region *region;
	uint32_t generation; /* the last one granted or revoked */
	uint32_t running;    /* puts and gets */
	bool revoked;	     /* to be answered */
};

/* The phases of an endpoint. */
enum net_phase {
	NET_RESOLVING, /* a worker looks the name up */
	NET_DIALING,   /* net_connected() */
	NET_TALKING,   /* nothing */
	NET_GONE,      /* there is no endpoint any more */
	NET_PHASE_COUNT
};

struct net_conn {
	struct clan_conn conn;
	const struct net_transport *transport;
	struct net_listener *listener;
	struct net_resolve *resolve; /* while a worker has it */
	struct list_node dirty_node;
	struct list_node dying_node;
	struct list_node dead_node;
	enum net_phase phase;
	bool handshake_counted;
	bool is_refused;
	bool ending; /* clan_close(): END is sent, and the peer's end awaited */
	bool peer_ended;

	/* Frames. */
	uint8_t *memory; /* of all buffers, NET_MEMORY_BYTES */
	struct net_buffer sends[NET_SENDS];
	struct net_buffer tell; /* a frame without records */
	struct list_node free_sends;
	struct list_node frames; /* closed, to be posted */
	struct net_buffer *open; /* being filled */
	struct list_node owed;	 /* struct net_owed */
	uint32_t sends_posted;
	uint32_t credits; /* frames that the peer can take */
	uint32_t owed_credits;
	bool tell_posted;
	bool must_tell;
	struct net_ring in[NET_RING_COUNT];
	struct net_out out[NET_RING_COUNT];
	uint32_t controls_in_row;

	/* Memory. */
	struct list_node regions;	       /* struct net_peer_region */
	struct net_peer_region **region_table; /* the same by number; NULL until the first */
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
	uint32_t popped_told;
	uint32_t pushed;
	uint32_t peer_popped;

	/* Puts and gets. */
	struct list_node rmas;	  /* to be posted */
	struct list_node running; /* posted, or ended */
	uint64_t rmas_begun;
	uint64_t rmas_posted;
	uint32_t pieces; /* of these, as the transport counts */
	struct net_owed end_owed;
};

struct net_listener {
	struct clan_listener listener;
	const struct net_transport *transport;
	uint32_t conn_count;
	uint32_t handshake_count;
	uint32_t refused_count; /* that are told so */
	bool closed;
};

/* --- transports ------------------------------------------------------------------------------- */

struct net_rma;
struct net_key;

/* What an address says. */
struct net_place {
	const struct net_transport *transport;
	const char *provider; /* static: what the transport is to use, where it has several */
	char host[NET_HOST_BYTES];
	char port[NET_PORT_BYTES];
};

/* How frames, puts and gets are carried. All members are required. Errors: negative errno. */
struct net_transport {
	enum net_transport_number number;
	uint64_t magic;	   /* of HELLO */
	uint32_t receives; /* frames that a side can take at any time; 0: all, and they are not
			      counted */
	bool sees_puts; /* it checks those of the peer by net_access_find(), so there is no PUT */
	size_t conn_bytes; /* of a connection, which begins with struct net_conn */
	size_t listener_bytes;

	/* Looks an address up; on a worker. What it finds is freed by found_free(). */
	int (*look_up)(
		const struct net_place *place, bool listen, void **found_out, struct error *error);
	void (*found_free)(void *found);

	/* Listens at what was found, and fills in the socket address that it has. For each peer
	 * that comes: net_arrived(), and net_connected() or net_conn_cut(). */
	int (*listen)(struct net_listener *listener, void *found, struct sockaddr_storage *address);
	void (*listener_close)(struct net_listener *listener);

	/* Begins to connect: net_connected() or net_conn_cut() follows, not within the call. Takes
	 * found. */
	int (*dial)(struct net_conn *conn, void *found);
	/* Closes the endpoint, if there is one: nothing is written or read any more when it
	 * returns, and nothing is called for the connection. */
	void (*close)(struct net_conn *conn);
	void (*conn_free)(struct net_conn *conn); /* frees its own, after close */

	/* Take a frame, a put or a get, in this order; each ends with net_frame_sent() or
	 * net_rma_done(), not within the call. -EAGAIN: it has no room, and the caller tries again
	 * in the next turn. */
	int (*post_frame)(struct net_conn *conn, struct net_buffer *buffer);
	int (*post_rma)(struct net_conn *conn, struct net_rma *rma);
	/* All that was posted is to go. */
	void (*flush)(struct net_conn *conn);
	/* Takes what has come for the connection, and what has ended. */
	void (*look)(struct net_conn *conn);

	/* Memory of our own that a put or get uses, from the call that begins it to its end. */
	int (*rma_hold)(struct net_rma *rma);
	void (*rma_release)(struct net_rma *rma);
	/* A share of a region: fills in key->key and key->base, by which the peer names it.
	 * unshare: they are worth nothing any more. */
	int (*share)(struct net_conn *conn, struct net_key *key);
	void (*unshare)(struct net_key *key);

	/* Of a queue that uses it, as those of struct clan_provider. */
	bool (*progress)(struct net_queue *net);
	bool (*arm)(struct net_queue *net);
	void (*queue_destroy)(struct net_queue *net);
	/* In the child after fork(): closes the connection's or the listener's descriptors, if that
	 * does no harm to the parent. */
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

/* A peer came to a listener: its connection, or NULL when there is no place for it. */
struct net_conn *net_arrived(struct net_listener *listener);
/* The endpoint of a connection is connected, to that address. Nothing, once that is known. */
void net_connected(struct net_conn *conn, const struct sockaddr *peer);
/* A record of set-up, of the least length of its type, came in any state: 0, or -EPROTO when the
 * connection has ended by it. */
int net_setup_arrived(
	struct net_conn *conn, enum net_system_type type, const uint8_t *data, uint32_t bytes);
/* Ends a connection in any state before CLOSING; what the program knows as LOST. Its endpoint is
 * closed as soon as no transport is looking. */
void net_conn_end(struct net_conn *conn, int status, const char *reason);
/* The endpoint has failed with that negative errno, or was shut down by the peer (0). */
void net_conn_cut(struct net_conn *conn, int error);
/* The peer broke the rule of that number; returns -EPROTO. */
int net_broken(struct net_conn *conn, uint32_t rule, const char *what);
/* CLOSING: what was sent has gone, so the end need not be waited for any longer? */
void net_conn_drained(struct net_conn *conn);
/* Closes the endpoints of connections that have ended. */
void net_bury(struct clan_queue *queue);

/* --- net_frame.c ------------------------------------------------------------------------------ */

/* Allocates the buffers of a connection. */
GMB_MUST_CHECK int net_frames_start(struct net_conn *conn);
void net_frames_free(struct net_conn *conn);
/* The rings that both sides agreed upon: ours, and the peer's. */
GMB_MUST_CHECK int net_rings_make(struct net_conn *conn, uint32_t peer_bulk_slots);
/* Appends a record with the bytes of a vector to the frame that is open; false when there is no
 * room. */
bool net_append(struct net_conn *conn, enum net_class class, uint8_t type, const struct iovec *iov,
	size_t bytes);
/* The same for a record of the library's that was promised room. */
void net_append_system(
	struct net_conn *conn, enum net_system_type type, const void *data, size_t bytes);
/* Sends a record as soon as there is room; once, if it is owed already. */
void net_owe(struct net_conn *conn, struct net_owed *owed,
	void (*write)(struct net_conn *conn, struct net_owed *owed));
/* Writes what is owed, as far as there is room. True: nothing is owed any more. */
bool net_write_owed(struct net_conn *conn);
/* The length of a record of the library's without its head; the least, for those of set-up. */
size_t net_system_bytes(enum net_system_type type);
/* Something of the connection is to be published. */
void net_changed(struct net_conn *conn);
void net_publish_conn(struct net_conn *conn);
/* A frame came: 0, or -EPROTO when nothing more of the connection is to be looked at. */
int net_frame_received(struct net_conn *conn, const uint8_t *data, size_t bytes);
/* A frame has been sent. */
void net_frame_sent(struct net_conn *conn, struct net_buffer *buffer);
/* Fires READY for what can be sent now. */
void net_look_room(struct net_conn *conn);
/* Is there room for a message of that many bytes? Looks at what libfabric knows when there is none.
 * The connection may be lost by that. */
bool net_room(struct net_conn *conn, enum net_class class, size_t bytes);
/* There is none: -EAGAIN, and READY follows, or -ENOTCONN. */
int net_no_room(struct net_conn *conn, enum net_class class, size_t bytes);
int net_send(struct clan_conn *base, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count, size_t bytes);
/* Sends the notification of a put, for which there is room. */
void net_notify(struct net_conn *conn, uint32_t value);
int net_recv(struct clan_conn *base, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes);
ssize_t net_readv(struct clan_conn *base, const struct iovec *iov, uint32_t iov_count, bool peek);

/* --- net_memory.c ----------------------------------------------------------------------------- */

enum net_peer_region_state {
	NET_REGION_REFUSED, /* the answer to be sent */
	NET_REGION_LIVE,    /* nothing */
	NET_REGION_LEAVING, /* puts and gets to end, and events to be given */
	NET_REGION_STATE_COUNT
};

struct net_peer_region {
	struct net_owed owed; /* REGION_OK, then REGION_ENDED */
	struct list_node node;
	struct net_conn *conn;
	struct clan_source source;
	enum net_peer_region_state state;
	bool give_live;
	bool give_leaving;
	bool asked_back;
	uint16_t number;
	uint16_t error; /* REFUSED */
	uint32_t generation;
	uint32_t rights;
	uint64_t bytes;
	uint64_t key;
	uint64_t base;
	uint32_t running; /* puts and gets */
};

/* A region of ours that the peer knows; share->carrier. */
struct net_key {
	struct net_owed owed; /* REGION, then REGION_END */
	struct clan_share *share;
	struct net_conn *conn;
	uint64_t key;
	uint64_t base;
	void *held; /* the transport's */
};

/* A record of one of these types, complete and of its length, came while OPEN: 0, or -EPROTO when
 * the connection has been ended. */
int net_memory_record(struct net_conn *conn, enum net_system_type type, const uint8_t *data);
/* What a peer asks of a transport that sees puts: a range by a cookie of ours. */
struct net_access {
	uint32_t slot;
	uint32_t generation;
	uint32_t right;	 /* enum clan_rights */
	uint64_t offset; /* in the cookie */
	uint64_t bytes;
	/* Filled in. */
	uint8_t *memory;
	struct net_grant *grant;
	uint32_t region;
	uint64_t region_offset;
};

/* May the peer do that now? A cookie that is used once is used up by it. The memory stays until the
 * peer has said that it uses the cookie, or the region, no more; it cannot say so while
 * grant->reads is not 0. */
bool net_access_find(struct net_conn *conn, struct net_access *access);
/* The peer has put something: 0, or -EPROTO. */
int net_put_arrived(struct net_conn *conn, const struct net_put *put);
/* A put or get by the ticket has ended. */
void net_ticket_released(
	struct net_conn *conn, struct net_ticket *ticket, struct net_peer_region *region);
/* The cookie's ticket, if it allows what is asked: 0 or a negative errno. */
int net_ticket_find(struct net_conn *conn, const struct clan_cookie *cookie, uint32_t right,
	uint64_t offset, uint64_t bytes, struct net_ticket **ticket_out);
bool net_cookie_room(struct net_conn *conn);
/* The endpoint is closed: nothing arrives any more. */
void net_memory_end(struct net_conn *conn);
/* The program closes the connection: no more events. */
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
	struct list_node node; /* in conn->rmas or conn->running, or free */
	struct clan_source source;
	struct net_owed owed; /* PUT */
	struct net_ticket *ticket;
	struct net_peer_region *region;
	struct net_put record;
	uint16_t slot;	     /* the cookie's, */
	uint32_t generation; /* and */
	uint64_t offset;     /* the range's in it */
	void *context;	     /* the program's */
	int status;
	bool put;
	bool released;
	bool given;	 /* DONE, or nobody wants it */
	uint32_t pieces; /* posted, not ended */
	uint64_t remote; /* where the next piece goes */
	uint64_t left;
	uint32_t iov_count;
	uint32_t index; /* in iov */
	size_t skip;
	struct iovec iov[CLAN_IOV_MAX];
	void *held; /* the transport's, kept for the next one; freed with it */
};

/* That many bytes of its iov, from index and skip on, are through. */
void net_rma_advance(struct net_rma *rma, size_t bytes);
/* Posts what can be posted. */
void net_rma_pump(struct net_conn *conn);
/* A piece has ended; error: 0, or why nothing is known of it. */
void net_rma_done(struct net_rma *rma, int error);
/* The endpoint is closed: everything has ended. */
void net_rma_end(struct net_conn *conn);
/* The connection is closed by the program: no more events. */
void net_rma_close(struct net_conn *conn);
void net_rma_free_all(struct net_queue *net);
int net_put(struct clan_conn *base, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op);
int net_get(struct clan_conn *base, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);
