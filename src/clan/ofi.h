// SPDX-License-Identifier: Apache-2.0
/*
 * The provider ofi: connections over a network by libfabric (FI_EP_MSG), docs/protocol/clan.md §12.
 *
 *   ofi.c         the table of calls; addresses, listeners, life of a connection
 *   ofi_net.c     libfabric itself, loaded when it is needed; its queues, and waiting for them
 *   ofi_frame.c   frames and their credits, messages, streams
 *   ofi_memory.c  regions, cookies, revocation, tripwires, cookie queues
 *   ofi_rma.c     puts and gets
 *
 * What comes from the peer comes in frames, which are checked and copied to memory of our own
 * before anything else is done; so nothing that is decided on can change.
 *
 * Libfabric makes progress only inside its calls. Completions are taken in ofi_net_reap(), and only
 * there; what ends a connection meanwhile puts it on a list, and its endpoint is closed afterwards.
 *
 * Threading: the queue's thread; names are resolved by a worker. Ownership: a connection belongs to
 * its queue. Libfabric may use the buffers of a connection until its endpoint is closed.
 * Errors: negative errno. A peer that breaks a rule of the protocol: ofi_broken().
 */
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#undef container_of /* ours checks the type */

#include "base/uri.h"
#include "clan/clan.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the records of the provider ofi are written as they are in memory"
#endif

/* --- what goes over the wire ------------------------------------------------------------------ */

#define OFI_MAGIC UINT64_C(0x69666f2d6e616c63) /* "clan-ofi" */

enum {
	OFI_VERSION = 1,
	OFI_FRAME_BYTES = 8320, /* the largest */
	OFI_RECEIVES = 8,	/* frames that a side can take at any time */
	OFI_CONTROL_SLOTS = 64,
	OFI_SLOT_BYTES = 64,
	OFI_RECORD_ALIGN = 8,
	OFI_SYSTEM_BYTES_MAX =
		64, /* a record of the library's, but for HELLO and what answers it */
};

struct ofi_frame_head {
	uint16_t bytes;	   /* of the frame */
	uint16_t credits;  /* frames that the sender can take again, since its last frame */
	uint32_t taken[2]; /* slots of control and bulk that the sender's program has taken */
	uint32_t popped;   /* cookies that it has popped */
};

enum ofi_class { OFI_CONTROL, OFI_BULK, OFI_RING_COUNT, OFI_SYSTEM = OFI_RING_COUNT };

struct ofi_record_head {
	uint16_t bytes; /* with this head */
	uint8_t type;
	uint8_t class; /* enum ofi_class */
	uint32_t reserved;
};

enum ofi_system_type {
	OFI_HELLO = 1,
	OFI_WELCOME,
	OFI_REFUSED,
	OFI_END,
	OFI_REGION,
	OFI_REGION_OK,
	OFI_REGION_END,
	OFI_REGION_ENDED,
	OFI_GRANT,
	OFI_REVOKE,
	OFI_REVOKED,
	OFI_COOKIE,
	OFI_PUT,
	OFI_SYSTEM_TYPE_COUNT
};

struct ofi_hello { /* HELLO and WELCOME; then what the program says */
	uint64_t magic;
	uint16_t version_min;
	uint16_t version_max;
	uint32_t bulk_slots;
	uint32_t cookies;
	uint32_t hello_bytes;
};

struct ofi_refused { /* and END; then the text, which END does not have */
	uint32_t error;
	uint32_t text_bytes;
};

struct ofi_region {
	uint16_t region;
	uint16_t rights;
	uint32_t generation;
	uint64_t bytes;
	uint64_t key;
	uint64_t base;
};

struct ofi_region_answer { /* REGION_OK, REGION_END, REGION_ENDED */
	uint16_t region;
	uint16_t error;
	uint32_t generation;
};

struct ofi_revoke { /* and REVOKED */
	uint16_t slot;
	uint16_t reserved;
	uint32_t generation;
};

struct ofi_cookie_record { /* and GRANT, whose queue is 0 */
	uint16_t queue;
	uint16_t reserved;
	uint32_t reserved2;
	struct clan_cookie cookie;
};

struct ofi_put {
	uint16_t region;
	uint16_t reserved;
	uint32_t reserved2;
	uint64_t offset;
	uint64_t bytes;
};

_Static_assert(sizeof(struct ofi_frame_head) == 16 && sizeof(struct ofi_record_head) == 8 &&
		       sizeof(struct ofi_hello) == 24 && sizeof(struct ofi_region) == 32 &&
		       sizeof(struct ofi_cookie_record) == 40 && sizeof(struct ofi_put) == 24,
	"docs/protocol/clan.md");
_Static_assert(
	sizeof(struct ofi_frame_head) + sizeof(struct ofi_record_head) + CLAN_BULK_BYTES_MAX <=
		OFI_FRAME_BYTES,
	"every message fits a frame");
_Static_assert(sizeof(struct ofi_frame_head) + sizeof(struct ofi_record_head) +
			       sizeof(struct ofi_hello) + CLAN_HELLO_BYTES_MAX <=
		       OFI_FRAME_BYTES,
	"every hello fits a frame");
_Static_assert(CLAN_BULK_BYTES_MAX + sizeof(struct ofi_record_head) <=
			       CLAN_BULK_SLOTS_MIN / 2 * OFI_SLOT_BYTES &&
		       CLAN_CONTROL_BYTES_MAX + sizeof(struct ofi_record_head) <=
			       OFI_CONTROL_SLOTS / 2 * OFI_SLOT_BYTES,
	"room is told of when half a ring was taken, so every message must fit the other half");

/* --- libfabric -------------------------------------------------------------------------------- */

enum {
	OFI_NET_CONNS = 256, /* connections that share a completion queue */
	OFI_SENDS = 4,	     /* frames of a connection under way */
	OFI_RMA_PIECES = 32, /* writes and reads of a connection under way */
	OFI_PIECE_IOV = 4,   /* parts of one of them */
};

struct ofi_queue {
	struct list_node nets;
	struct list_node dirty; /* connections with something to publish */
	struct list_node dying; /* connections whose endpoint is to be closed */
	struct list_node dead;	/* connections to free that the program never knew */
	struct list_node rmas;	/* free struct ofi_rma */
	bool reaping;
};

/* A domain of libfabric with one completion queue and one event queue. It is kept as long as the
 * queue: another connection will use it. */
struct ofi_net {
	struct list_node node;
	struct clan_queue *queue;
	struct fi_info *info; /* a connection's or a listener's, for its names */
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_eq *eq;
	struct waiter_file cq_file;
	struct waiter_file eq_file;
	uint32_t conn_count;
	bool registers_local; /* FI_MR_LOCAL: libfabric wants to know the buffers of our own */
};

enum ofi_context_kind { OFI_RECV, OFI_SEND, OFI_RMA };

/* What libfabric gives back with a completion. */
struct ofi_context {
	enum ofi_context_kind kind;
	struct ofi_conn *conn;
};

/* --- connections ------------------------------------------------------------------------------ */

struct ofi_buffer {
	struct ofi_context context;
	struct list_node node; /* free, or in frames */
	uint8_t *data;
	uint32_t bytes;
	uint64_t after; /* rmas_begun when it was closed: they are posted first */
};

/* A record that the library has to send, made when there is room for it. */
struct ofi_owed {
	struct list_node node; /* in conn->owed */
	void (*write)(struct ofi_conn *conn, struct ofi_owed *owed);
};

struct ofi_ring { /* messages that came, until the program takes them */
	uint8_t *data;
	uint32_t slots;
	uint32_t write;
	uint32_t read;
	uint32_t told;
	uint32_t stream_at; /* bytes taken of the stream message at read */
};

struct ofi_out { /* the peer's ring, as far as we know */
	uint32_t slots;
	uint32_t write;
	uint32_t taken;
	uint32_t needed; /* slots that found no room */
};

struct ofi_grant {
	struct ofi_owed owed; /* GRANT, or REVOKE */
	struct clan_cookie cookie;
	uint32_t generation; /* last used */
	uint8_t state;	     /* enum ofi_grant_state */
};

/* A cookie of the peer's. */
struct ofi_ticket {
	struct ofi_owed owed;	   /* REVOKED */
	struct clan_cookie cookie; /* generation 0: void */
	struct ofi_peer_region *region;
	uint32_t generation; /* the last one granted or revoked */
	uint32_t running;    /* puts and gets */
	bool revoked;	     /* to be answered */
};

/* The phases of an endpoint. */
enum ofi_phase {
	OFI_RESOLVING, /* a worker looks the name up */
	OFI_DIALING,   /* FI_CONNECTED */
	OFI_TALKING,   /* nothing */
	OFI_GONE,      /* there is no endpoint any more */
	OFI_PHASE_COUNT
};

struct ofi_conn {
	struct clan_conn conn;
	struct ofi_net *net;
	struct fid_ep *ep;
	struct ofi_listener *listener;
	struct ofi_resolve *resolve; /* while a worker has it */
	struct list_node dirty_node;
	struct list_node dying_node;
	struct list_node dead_node;
	enum ofi_phase phase;
	bool handshake_counted;
	bool ending; /* clan_close(): END is sent, and the peer's end awaited */
	bool peer_ended;

	/* Frames. */
	uint8_t *memory; /* of all buffers */
	struct fid_mr *memory_mr;
	struct ofi_buffer receives[OFI_RECEIVES];
	struct ofi_buffer sends[OFI_SENDS];
	struct ofi_buffer tell; /* a frame without records */
	struct list_node free_sends;
	struct list_node frames; /* closed, to be posted */
	struct ofi_buffer *open; /* being filled */
	struct list_node owed;	 /* struct ofi_owed */
	uint32_t sends_posted;
	uint32_t credits; /* frames that the peer can take */
	uint32_t owed_credits;
	bool tell_posted;
	bool must_tell;
	struct ofi_ring in[OFI_RING_COUNT];
	struct ofi_out out[OFI_RING_COUNT];
	uint32_t controls_in_row;

	/* Memory. */
	struct list_node regions; /* struct ofi_peer_region */
	uint32_t region_count;
	uint64_t region_bytes;
	struct ofi_grant *grants;
	uint32_t grant_next;
	struct ofi_ticket *tickets;
	uint32_t ticket_count;
	struct list_node revocations;
	struct ofi_watch *watches;
	struct ofi_fifo *fifo;
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
	uint64_t piece_bytes_max; /* what the endpoint can do at once */
	size_t piece_iov_max;
	uint32_t pieces;
	struct ofi_owed end_owed;
};

struct ofi_listener {
	struct clan_listener listener;
	struct ofi_net *net;
	struct fid_pep *pep;
	uint32_t conn_count;
	uint32_t handshake_count;
	bool closed;
};

static inline struct ofi_conn *ofi_conn(struct clan_conn *conn)
{
	return (struct ofi_conn *)conn;
}

static inline struct ofi_queue *ofi_queue(const struct clan_queue *queue)
{
	return queue->carriers[CLAN_OFI];
}

_Static_assert(offsetof(struct ofi_conn, conn) == 0, "ofi_conn()");

/* --- ofi.c ------------------------------------------------------------------------------------ */

/* A request to connect came to a listener. Takes info. */
void ofi_connection_requested(struct ofi_listener *listener, struct fi_info *info);
/* The endpoint of a connection is connected. Nothing, once that is known. */
void ofi_connected(struct ofi_conn *conn);
/* A record of set-up, of the least length of its type, came in any state: 0, or -EPROTO when the
 * connection has ended by it. */
int ofi_setup_arrived(
	struct ofi_conn *conn, enum ofi_system_type type, const uint8_t *data, uint32_t bytes);
/* Ends a connection in any state before CLOSING; what the program knows as LOST. Its endpoint is
 * closed as soon as nobody is in ofi_net_reap(). */
void ofi_conn_end(struct ofi_conn *conn, int status, const char *reason);
/* The endpoint has failed or was shut down by the peer. */
void ofi_conn_cut(struct ofi_conn *conn, int error);
/* The peer broke the rule of that number; returns -EPROTO. */
int ofi_broken(struct ofi_conn *conn, uint32_t rule, const char *what);
/* CLOSING: what was sent has gone, so the end need not be waited for any longer? */
void ofi_conn_drained(struct ofi_conn *conn);
/* Closes the endpoints of connections that have ended. */
void ofi_bury(struct clan_queue *queue);

/* --- ofi_net.c -------------------------------------------------------------------------------- */

/* Looks an address up: provider, host and port as in docs/protocol/clan.md §12.1. May block. */
GMB_MUST_CHECK int ofi_look_up(const char *provider, const char *host, const char *port,
	bool listen, struct fi_info **info_out, struct error *error);
void ofi_info_free(struct fi_info *info);
/* The net for an endpoint with that info. */
GMB_MUST_CHECK int ofi_net_get(
	struct clan_queue *queue, const struct fi_info *info, struct ofi_net **net_out);
/* Takes everything that libfabric has to tell. True: there was something. */
bool ofi_net_reap(struct ofi_net *net);
/* Can the caller sleep on the net's descriptors? Otherwise there is something to take. */
bool ofi_net_may_sleep(struct ofi_net *net);
void ofi_net_destroy(struct ofi_net *net);
/* An error of libfabric as a negative errno. */
int ofi_errno(int64_t result);

/* --- ofi_frame.c ------------------------------------------------------------------------------ */

/* Allocates the buffers of a connection and posts its receives. */
GMB_MUST_CHECK int ofi_frames_start(struct ofi_conn *conn);
void ofi_frames_free(struct ofi_conn *conn);
/* The rings that both sides agreed upon: ours, and the peer's. */
GMB_MUST_CHECK int ofi_rings_make(struct ofi_conn *conn, uint32_t peer_bulk_slots);
/* Appends a record with the bytes of a vector to the frame that is open; false when there is no
 * room. */
bool ofi_append(struct ofi_conn *conn, enum ofi_class class, uint8_t type, const struct iovec *iov,
	size_t bytes);
/* The same for a record of the library's that was promised room. */
void ofi_append_system(
	struct ofi_conn *conn, enum ofi_system_type type, const void *data, size_t bytes);
/* Sends a record as soon as there is room; once, if it is owed already. */
void ofi_owe(struct ofi_conn *conn, struct ofi_owed *owed,
	void (*write)(struct ofi_conn *conn, struct ofi_owed *owed));
/* Writes what is owed, as far as there is room. True: nothing is owed any more. */
bool ofi_write_owed(struct ofi_conn *conn);
/* The length of a record of the library's without its head; the least, for those of set-up. */
size_t ofi_system_bytes(enum ofi_system_type type);
/* Something of the connection is to be published. */
void ofi_changed(struct ofi_conn *conn);
void ofi_publish_conn(struct ofi_conn *conn);
/* A frame came, or has been sent. */
void ofi_frame_received(struct ofi_conn *conn, struct ofi_buffer *buffer, size_t bytes);
void ofi_frame_sent(struct ofi_conn *conn, struct ofi_buffer *buffer);
/* Fires READY for what can be sent now. */
void ofi_look_room(struct ofi_conn *conn);
/* Is there room for a message of that many bytes? Looks at what libfabric knows when there is none.
 * The connection may be lost by that. */
bool ofi_room(struct ofi_conn *conn, enum ofi_class class, size_t bytes);
/* There is none: -EAGAIN, and READY follows, or -ENOTCONN. */
int ofi_no_room(struct ofi_conn *conn, enum ofi_class class, size_t bytes);
int ofi_send(struct clan_conn *base, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count, size_t bytes);
/* Sends the notification of a put, for which there is room. */
void ofi_notify(struct ofi_conn *conn, uint32_t value);
int ofi_recv(struct clan_conn *base, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes);
ssize_t ofi_readv(struct clan_conn *base, const struct iovec *iov, uint32_t iov_count, bool peek);

/* --- ofi_memory.c ----------------------------------------------------------------------------- */

enum ofi_peer_region_state {
	OFI_REGION_REFUSED, /* the answer to be sent */
	OFI_REGION_LIVE,    /* nothing */
	OFI_REGION_LEAVING, /* puts and gets to end, and events to be given */
	OFI_REGION_STATE_COUNT
};

struct ofi_peer_region {
	struct ofi_owed owed; /* REGION_OK, then REGION_ENDED */
	struct list_node node;
	struct ofi_conn *conn;
	struct clan_source source;
	enum ofi_peer_region_state state;
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

/* A record of one of these types, complete and of its length, came while OPEN: 0, or -EPROTO when
 * the connection has been ended. */
int ofi_memory_record(struct ofi_conn *conn, enum ofi_system_type type, const uint8_t *data);
/* A put or get by the ticket has ended. */
void ofi_ticket_released(
	struct ofi_conn *conn, struct ofi_ticket *ticket, struct ofi_peer_region *region);
/* The cookie's ticket, if it allows what is asked: 0 or a negative errno. */
int ofi_ticket_find(struct ofi_conn *conn, const struct clan_cookie *cookie, uint32_t right,
	uint64_t offset, uint64_t bytes, struct ofi_ticket **ticket_out);
bool ofi_cookie_room(struct ofi_conn *conn);
/* The endpoint is closed: nothing arrives any more. */
void ofi_memory_end(struct ofi_conn *conn);
/* The program closes the connection: no more events. */
void ofi_memory_close(struct ofi_conn *conn);
void ofi_memory_free(struct ofi_conn *conn);
int ofi_share(struct clan_conn *base, struct clan_share *share);
int ofi_unshare(struct clan_conn *base, struct clan_share *share);
int ofi_peer_info(const struct clan_conn *base, uint32_t number, struct clan_peer_region *region);
int ofi_grant(struct clan_conn *base, struct clan_share *share, struct clan_cookie *cookie);
int ofi_revoke(struct clan_conn *base, const struct clan_cookie *cookie, bool strict, void *op);
void ofi_void_cookies(struct clan_conn *base, const struct clan_share *share);
int ofi_tripwire(struct clan_conn *base, const struct clan_share *share, uint64_t offset,
	uint32_t bytes, uint32_t *number_out);
int ofi_rearm(struct clan_conn *base, uint32_t number);
int ofi_tripwire_remove(struct clan_conn *base, uint32_t number);
int ofi_cookie_push(struct clan_conn *base, uint32_t number, const struct clan_cookie *cookie);
int ofi_cookie_pop(struct clan_conn *base, uint32_t number, struct clan_cookie *cookie_out);

/* --- ofi_rma.c -------------------------------------------------------------------------------- */

/* Posts what can be posted. */
void ofi_rma_pump(struct ofi_conn *conn);
/* A piece of the context has ended; error: a positive errno of libfabric's, or 0. */
void ofi_rma_completed(struct ofi_context *context, int error);
/* The endpoint is closed: everything has ended. */
void ofi_rma_end(struct ofi_conn *conn);
/* The connection is closed by the program: no more events. */
void ofi_rma_close(struct ofi_conn *conn);
void ofi_rma_free_all(struct ofi_queue *ofi);
int ofi_put(struct clan_conn *base, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op);
int ofi_get(struct clan_conn *base, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);
