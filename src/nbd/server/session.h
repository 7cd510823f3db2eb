// SPDX-License-Identifier: Apache-2.0
/*
 * Private to src/nbd: one client connection on the server, and what all connections of an engine
 * share. The states of a session are the engine's: engine/engine.h.
 *
 * Files: service.c pools and the session kind; session.c life cycle; handshake.c options;
 * handshake_tls.c STARTTLS; receive.c the byte stream into requests; request.c what a request asks
 * and may; reply.c answers; pass.c sessions that go to another process.
 *
 * x-gmblock:alive (docs/protocol/nbd.md): a timer runs while there are requests, or one waits for
 * its turn by a rate. It finds that
 * nothing was sent since it was set, and the next flush then sends a chunk that says only that the
 * server lives. This takes neither a place nor memory, nor must a request be read for it.
 *
 * x-gmblock:size (the same page): the peer says which size it knows, and is answered when the
 * export has another one. The session keeps one such request aside, which is none of the engine's:
 * it takes no place and no memory, and an idle connection stays idle.
 *
 * Threading: the ring's thread. Ownership: the service owns requests and pools; a session owns its
 * socket; a request holds its memory until request_end(). Errors: session_fail() ends a
 * session for a peer violation, naming the rule; it is safe to call anywhere, the session is freed
 * later, from the loop.
 */
#pragma once

#include <sys/uio.h>

#include "base/list.h"
#include "engine/engine.h"
#include "nbd/server/server.h"
#include "nbd/wire.h"
#include "stream/stream.h"

enum {
	/* One 4 KiB write with its header fits, so that depth 1 needs one receive. */
	RX_SMALL_BYTES = 8192,
	/* Under load: some sixty 4 KiB writes in one receive, written from where they lie. */
	RX_LARGE_BYTES = 256 << 10,
	/* A write up to here is gathered whole in the receive buffer; longer ones go piece by piece
	 * straight into buffers of their own. */
	RX_GATHER_BYTES_MAX = 64 << 10,
	/* The same for stores that need aligned memory: gathering costs them a copy. */
	RX_GATHER_ALIGNED_BYTES_MAX = 16 << 10,
	SEND_SLOTS_MAX = 64,
	SEND_HEADER_BYTES_MAX = 256, /* reply header, chunk header and an error's text */
	SEND_BYTES_MAX = 2 << 20,
	SEND_NOW_BYTES_MAX = 256 << 10,
	HANDSHAKE_TX_BYTES = 32 << 10,
	/* A read whose reply cannot report a late error is held back until all of it is valid, up
	 * to here. */
	HELD_BYTES_MAX = 4 << 20,
	STATUS_PAYLOAD_IDS_MAX = 16,
	CONTEXT_ID_BASE_ALLOCATION = 1,
	ALIVE_MS_MIN = 10,
	ALIVE_MS_MAX = 3600000,
	/* Longer options are refused by closing: draining them would only serve an attacker. */
	OPTION_DRAIN_BYTES_MAX = 1 << 20,
};

enum handshake_state {
	HANDSHAKE_GREETING,	 /* ours goes out */
	HANDSHAKE_CLIENT_FLAGS,	 /* waits for 4 bytes */
	HANDSHAKE_OPTION_HEADER, /* waits for 16 bytes */
	HANDSHAKE_OPTION_DATA,	 /* waits for the option's data; what is too long is not kept */
	HANDSHAKE_REPLYING,	 /* replies go out; nothing is read meanwhile */
	HANDSHAKE_UPGRADING,	 /* to TLS; the stream is paused */
};

/* What to do once the replies are out. */
enum handshake_next {
	HANDSHAKE_NEXT_OPTION,
	HANDSHAKE_NEXT_TLS,
	HANDSHAKE_NEXT_TRANSMISSION,
	HANDSHAKE_NEXT_CLOSE,
};

/* Exists only while negotiating: freed before the first request. */
struct handshake {
	enum handshake_state state;
	enum handshake_next next;
	uint32_t option;
	uint32_t option_bytes;
	uint32_t option_got;
	const void *tls_context; /* of STARTTLS: to be compared, not used */
	bool is_fixed;		 /* both sides speak fixed newstyle */
	bool no_zeroes;
	uint64_t list_serial; /* LIST: of the next export to name */
	bool list_active;
	bool waiting; /* an option waits: until another connection has ended, or for a barrier */
	/* SET_META_CONTEXT's selection, valid for this export name only (P43). */
	bool context_selected;
	uint32_t context_name_bytes;
	uint8_t context_name[NBD_STRING_BYTES_MAX];
	uint32_t tx_bytes;
	uint32_t tx_sent;
	struct msghdr tx_message;
	struct iovec tx_iov;
	uint8_t option_data[NBD_OPTION_BYTES_MAX];
	uint8_t tx[HANDSHAKE_TX_BYTES];
};

/* Receive memory that writes are written from; back to the arena with the last reference. */
struct rx_buf {
	struct list_node node; /* in service->rx_free */
	struct arena_buf buf;
	uint32_t refs; /* the session while it receives into it, and each write that is stored from
			  it */
};

struct nbd_request {
	struct path_request path; /* first: progress finds us by it */
	struct nbd_session *session;
	struct list_node session_node; /* in session->requests */
	struct list_node send_node;    /* in session->sendable when there is something to send */
	uint64_t cookie;
	uint64_t offset; /* as the client sent it (extended replies echo it) */
	uint64_t length;
	uint16_t command;
	uint16_t command_flags;
	uint32_t error;		/* NBD error decided without the path, or 0 */
	const char *error_text; /* static, or NULL */
	bool started;		/* the path knows it */
	bool one_piece;		/* a read that must be answered by one run of bytes */
	bool replying;		/* its last chunk is in a send in flight */
	bool done_owed;		/* its chunk began without DONE (P89): a last one must carry it */
	uint64_t content_bytes; /* of a read, handed to the network */
	struct rx_buf *rx;	/* holds the payload of a write that is stored from there */
	struct mem_segment received; /* that payload */
};

struct send_slot {
	struct nbd_request *request;
	struct path_fragment fragment; /* stream NULL = none */
	bool ends_request;
	uint8_t header[SEND_HEADER_BYTES_MAX];
};

/* What another process has done of the request that comes first. */
struct told_payload {
	uint64_t taken_bytes; /* of the payload: the rest follows the header */
	uint32_t error;	      /* NBD error with which it has failed, or 0 */
};

/* Which export another process has said, and the name for takeovers behind that. */
struct told_choice {
	uint32_t export_bytes;
	uint32_t token_bytes;
	uint8_t bytes[];
};

/* One send in flight: headers, the scatter list and who is in it. From the service's pool. */
struct send_batch {
	struct list_node node;
	struct msghdr message;
	uint32_t slot_count;
	uint32_t iov_count;
	bool is_alive; /* says nothing but that we live: no progress */
	size_t bytes;
	bool filled; /* the socket could not take all of it at once */
	struct iovec iov[2 * SEND_SLOTS_MAX];
	struct send_slot slots[SEND_SLOTS_MAX];
};

struct nbd_session {
	struct session base;
	struct nbd_service *service;
	struct stream stream;
	struct ring_op recv_op;
	struct ring_op send_op;
	struct handshake *handshake;
	struct ring_traffic traffic; /* when it was last looked at */
	uint64_t traffic_ns;	     /* that time */
	uint64_t hole_bytes;	     /* since traffic, of which only the place was sent */
	uint64_t unacked_bytes;	     /* when last looked at, of the send in flight; or UINT64_MAX */

	/* Transmission. */
	bool structured;
	bool extended;
	bool context_selected;
	uint32_t head_bytes;	   /* of a request header */
	bool end_of_stream;	   /* the peer will send nothing more */
	struct list_node requests; /* all that are in flight */
	struct list_node sendable; /* those with something to send, in turn */
	/* A simple reply or a DF chunk that has begun: nothing else may go out before its end. */
	struct nbd_request *exclusive;
	struct send_batch *sending;

	uint64_t alive_ns; /* how often the peer wants to hear that we live; 0 = never */
	struct ring_op alive_op;
	bool alive_due; /* nothing was sent since the timer was set, and requests wait */
	bool has_sent;	/* since the timer was set */

	bool says_size;	     /* x-gmblock:size was listed */
	bool size_asked;     /* its request is not answered yet */
	bool size_due;	     /* it is to be answered, whatever the size */
	uint64_t size_known; /* by the peer, as it asked */
	uint64_t size_cookie;

	/* Receiving: bytes [rx_start, rx_end) of rx_data wait to be parsed. */
	uint8_t *rx_data;
	uint32_t rx_bytes;
	uint32_t rx_start;
	uint32_t rx_end;
	struct rx_buf *rx_large;	/* rx_data lies in it; NULL = rx_small */
	struct nbd_request *rx_request; /* write whose payload is being received */
	struct path_stream *rx_stream;	/* where it goes now; NULL = waits for room */
	uint32_t rx_stream_got;
	uint64_t rx_payload_left;		/* bytes of it not yet taken */
	uint32_t rx_want;			/* bytes the next message needs in one piece */
	uint64_t rx_discard_left;		/* payload bytes that nobody wants */
	struct nbd_request *rx_discard_request; /* is answered after them; or NULL */
	bool rx_was_full;      /* the last receive took all that its buffer could hold */
	bool rx_into_stream;   /* the receive in flight goes to rx_stream */
	uint64_t rx_raw_bytes; /* of the stream, when it was last asked whether the peer lives */
	bool rx_probed;	       /* it was interrupted to see what came, and nothing has since */
	uint8_t *rx_told;      /* rx_data of what another process has received; or NULL */
	struct told_payload *told;	 /* of the request at rx_start; or NULL */
	struct told_choice *told_choice; /* for which the session has waited; or NULL */
	uint8_t rx_small[RX_SMALL_BYTES];
};

/* What the sessions of one engine share. */
struct nbd_service {
	struct engine *engine;
	struct log_limit refusals; /* of options and requests */
	struct ring *ring;	   /* the engine's, as is the next one */
	struct path *path;
	struct nbd_request *requests;
	uint32_t request_max;	/* as many as the engine allows in flight */
	uint32_t request_count; /* that were used so far: the others have no memory yet */
	struct list_node requests_free;
	struct list_node rx_free;
	struct list_node sends_free;
};

/* service.c */
struct rx_buf *service_rx_get(struct nbd_session *session);
void service_rx_put(struct nbd_session *session, struct rx_buf *rx);

/* session.c: what the engine calls, see struct session_kind. */
int nbd_session_accept(void *service, const struct endpoint *endpoint);
void nbd_session_resume(struct session *base);
void nbd_session_drain(struct session *base);
void nbd_session_export_changed(struct session *base, enum export_change change);
bool nbd_session_stalled(struct session *base);
bool nbd_session_peer_receives(struct session *base);
void nbd_session_abort(struct session *base);
bool nbd_session_join(struct session *base);
void nbd_session_close(struct session *base);
/* Ends the session for breaking a rule; the text names it. */
void session_fail(struct nbd_session *session, const char *rule, const char *format, ...)
	GMB_PRINTF(3, 4);
/* As nbd_session_accept(), for a connection that has come otherwise; not begun. NULL: no memory. */
struct nbd_session *nbd_session_create(void *service, const struct endpoint *endpoint);
/* The client will ask nothing more: stops reading, closes when everything is answered. */
void session_drain(struct nbd_session *session);
/* The session is to end: says goodbye when it has nothing left to do. */
void session_drain_check(struct nbd_session *session);
/* The peer of a lingering session has closed: terminates once our goodbye is sent. */
void session_ended(struct nbd_session *session);

/* handshake.c */
int handshake_begin(struct nbd_session *session);
void handshake_received(struct nbd_session *session);
/* What an option waited for may be there. */
void handshake_resume(struct nbd_session *session);
void handshake_end(struct nbd_session *session);
/* An option may be read: what is there of it, or comes. */
void handshake_next_option(struct nbd_session *session);

/* handshake_tls.c: STARTTLS, in the modes of the listener (docs/protocol/nbd.md, P45-P56). */
/* The address demands TLS, and the connection has none: only STARTTLS and ABORT are heard. */
bool handshake_needs_tls(const struct nbd_session *session);
/* TLS is there for who wants it, and the connection has none. */
bool handshake_offers_tls(const struct nbd_session *session);
/* Why STARTTLS is refused, and the type of that reply; 0: it is not. */
uint32_t handshake_tls_refusal(const struct nbd_session *session, const char **reason);
/* The ACK is out: forgets all that was said in clear, and begins. The next option is read when TLS
 * is there; a failure ends the session. */
void handshake_begin_tls(struct nbd_session *session);
/* Goes on with the TLS of a session of another process: 0, or as tls_layer_adopt(); -EACCES, too,
 * where the address does not offer TLS. */
GMB_MUST_CHECK int handshake_adopt_tls(
	struct nbd_session *session, const uint8_t *bytes, uint32_t count, struct error *error);
/* The session closes: it is no longer among those with TLS. */
void handshake_tls_closed(struct nbd_session *session);

/* receive.c */
/* Takes requests out of what was received and asks for more. */
void receive_continue(struct nbd_session *session);
void receive_done(struct ring_op *op, int result);
/* Throws away what still comes, until the end of the stream. */
void receive_discard(struct nbd_session *session);
void receive_release(struct nbd_session *session);
/* True when its large receive buffer holds nothing, and its peer owes it nothing. */
bool receive_owes_nothing(const struct nbd_session *session);
/* Ends the receive in flight early, and goes on: an empty large buffer is given back, and what has
 * come of a payload counts. */
void receive_interrupt(struct nbd_session *session);

/* The session was paused: receives no more, also of the request that it is in the middle of. */
void receive_pause(struct nbd_session *session);
/* So many bytes that another process has received come first: the caller fills them in at rx_data.
 * False: no memory. */
GMB_MUST_CHECK bool receive_told(struct nbd_session *session, uint32_t count);

/* pass.c */
/* NEGOTIATING, with told_choice: the export may be free now. */
void nbd_session_choose_again(struct nbd_session *session);
bool nbd_session_can_pass(const struct session *base);
void nbd_session_pause(struct session *base);
enum session_rest nbd_session_rest(struct session *base);
void nbd_session_pass(struct session *base, uint8_t *bytes, struct session_record *record);
int nbd_session_adopt(
	void *service, const struct endpoint *endpoint, const struct session_record *record);

/* request.c */
struct request_head {
	uint16_t flags;
	uint16_t type;
	uint64_t cookie;
	uint64_t offset;
	uint64_t length;
	uint64_t payload_bytes; /* that follow the header (P79, P111, P121) */
	/* Set by request_plan(). */
	uint64_t window_bytes; /* of payload memory that it may hold at once */
	bool one_piece;	       /* see struct nbd_request */
	bool whole;	       /* see struct path_request */
};
/* Bytes of a request header in the negotiated format. */
uint32_t request_head_bytes(bool extended);
/* The same, as the client has sent it. Returns its bytes. */
uint32_t request_head_write(const struct nbd_request *request, uint8_t *bytes);
/* The NBD error of a request that has failed on the disk. */
uint32_t request_disk_error(const struct nbd_request *request);
/* Pure: false when the magic is wrong (P120). */
bool request_head_parse(const uint8_t *bytes, bool extended, struct request_head *head);
/* Decides what the request asks and whether it may: the NBD error, or 0. Fills op and flags. */
uint32_t request_check(struct nbd_session *session, const struct request_head *head,
	struct path_request *path, const char **text);
/* BLOCK_STATUS with a payload (P115): the same for the payload's effect length and context ids. */
uint32_t request_check_status_payload(const struct nbd_session *session, const uint8_t *payload,
	uint64_t payload_bytes, struct request_head *head, const char **text);
/* See engine_request_bytes(). */
uint64_t request_bytes(const struct nbd_session *session, const struct request_head *head);
/* How the request is answered, and within which window. */
void request_plan(const struct nbd_session *session, struct request_head *head);
struct nbd_request *request_begin(struct nbd_session *session, const struct request_head *head);
void request_end(struct nbd_request *request);
/* Puts the request among those that have something to send. */
void request_sendable(struct nbd_request *request);
void request_progress(struct path_request *path);

/* reply.c */
/* Sends what there is to send: the flush() of the session kind. */
void reply_flush(struct session *base, bool alone);
void reply_done(struct ring_op *op, int result);
/* There is a request to be answered: sets the timer of a session with alive_ns, if it is not. */
void reply_watch(struct nbd_session *session);
/* The request of x-gmblock:size is there, and what it waits for has come. */
bool reply_size_is_due(const struct nbd_session *session);
