// SPDX-License-Identifier: Apache-2.0
/*
 * Private to src/nbd: one client connection on the server, and the state that all connections of an
 * engine share. The states of a session are defined by the engine: engine/engine.h.
 *
 * Files: service.c pools and the session kind; session.c life cycle; handshake.c options;
 * handshake_tls.c STARTTLS; receive.c converts the byte stream to requests; request.c checks and
 * plans a request; reply.c replies; handover.c sessions that move to another process. Numbers such
 * as P79 in their comments are rules of docs/protocol/nbd.md.
 *
 * x-gmblock:alive (docs/protocol/nbd.md): a timer runs while there are requests, or while one waits
 * for its rate limit. If no data was sent since the timer was set, the next flush sends a chunk
 * that only shows that the server is alive. This chunk uses no request slot and no memory, and does
 * not require that a request is read.
 *
 * x-gmblock:size (also nbd.md): the peer sends the size that it knows, and gets a reply when the
 * export's size differs. The session stores one such request itself, outside the engine: it uses no
 * slot and no memory, and an idle connection stays idle.
 *
 * Threading: the ring's thread. Ownership: the service owns requests and pools; a session owns its
 * socket; a request holds its memory until request_end(). Errors: session_fail() ends a session
 * because of a protocol violation and names the rule. It can be called anywhere, because the
 * session is freed later, from the loop.
 */
#pragma once

#include <sys/uio.h>

#include "base/list.h"
#include "engine/fence.h"
#include "nbd/server/server.h"
#include "nbd/wire.h"
#include "stream/stream.h"

enum {
	/* Holds one 4 KiB write with its header, so that a client with one write in flight needs
	 * one receive for each. */
	RX_SMALL_BYTES = 8192,
	/* Under load: one receive gets about sixty 4 KiB writes, which are written from this
	 * buffer. */
	RX_LARGE_BYTES = 256 << 10,
	/* The payload of a write up to this size is gathered in the receive buffer; longer payloads
	 * are received directly into their own buffers, piece by piece. */
	RX_GATHER_BYTES_MAX = 64 << 10,
	/* The same limit for stores that need aligned memory. It is lower, because a gathered
	 * payload has to be copied there. */
	RX_GATHER_ALIGNED_BYTES_MAX = 16 << 10,
	SEND_SLOTS_MAX = 64,
	/* largest reply header, chunk header and error text together */
	SEND_HEADER_BYTES_MAX = 256,
	SEND_BYTES_MAX = 2 << 20,
	SEND_NOW_BYTES_MAX = 256 << 10,
	HANDSHAKE_TX_BYTES = 32 << 10,
	/* Limit on the length of a read whose reply is held back until all of its data is valid,
	 * because the reply cannot report an error once it has begun. */
	HELD_BYTES_MAX = 4 << 20,
	STATUS_PAYLOAD_IDS_MAX = 16,
	CONTEXT_ID_BASE_ALLOCATION = 1,
	ALIVE_MS_MIN = 10,
	ALIVE_MS_MAX = 3600000,
	/* Longer options close the connection, because draining them would only help an
	 * attacker. */
	OPTION_DRAIN_BYTES_MAX = 1 << 20,
};

enum handshake_state {
	HANDSHAKE_GREETING,	 /* sending the greeting */
	HANDSHAKE_CLIENT_FLAGS,	 /* waiting for 4 bytes */
	HANDSHAKE_OPTION_HEADER, /* waiting for 16 bytes */
	/* waiting for the option's data; data that is too long is discarded */
	HANDSHAKE_OPTION_DATA,
	HANDSHAKE_REPLYING,  /* sending replies; receives are suspended */
	HANDSHAKE_UPGRADING, /* upgrading to TLS; the stream is paused */
};

/* The step that follows when the replies are sent. */
enum handshake_next {
	HANDSHAKE_NEXT_OPTION,
	HANDSHAKE_NEXT_TLS,
	HANDSHAKE_NEXT_TRANSMISSION,
	HANDSHAKE_NEXT_CLOSE,
};

/* Exists only during negotiation; freed before the first request. */
struct handshake {
	enum handshake_state state;
	enum handshake_next next;
	uint32_t option;
	uint32_t option_bytes;
	uint32_t option_got;
	const void *tls_context; /* context of STARTTLS: only compared, never dereferenced */
	bool is_fixed;		 /* client and server use fixed newstyle */
	bool no_zeroes;
	uint64_t list_serial; /* LIST: serial of the next export to list */
	bool list_active;
	/* the option waits until a replaced connection has ended, or until writes of a killed
	 * server can no longer reach the disk (store_barrier()) */
	bool waiting;
	/* The selection of SET_META_CONTEXT, valid only for this export name (P43). */
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

/* A receive buffer from which writes are stored. It returns to the arena with the last
 * reference. */
struct rx_buf {
	struct list_node node; /* in service->rx_free while unused */
	struct arena_buf buf;
	/* held by the session while it receives into the buffer, and by each write stored from
	 * it */
	uint32_t refs;
};

struct nbd_request {
	struct path_request path; /* request_progress() finds the request by this member */
	struct nbd_session *session;
	struct list_node session_node; /* in session->requests */
	struct list_node send_node;    /* in session->sendable while there is something to send */
	uint64_t cookie;
	uint64_t offset; /* offset as the client sent it; extended replies repeat it */
	uint64_t length;
	uint16_t command;
	uint16_t command_flags;
	uint32_t error;		/* NBD error found before the path was involved, or 0 */
	const char *error_text; /* static explanation of `error`, or NULL */
	bool started;		/* the path has the request */
	bool one_piece;		/* a read whose reply must not be interrupted by other replies */
	bool replying;		/* the request's last chunk is in a send in flight */
	/* the request's chunk began without DONE (P89), so a final chunk must carry DONE */
	bool done_owed;
	uint64_t content_bytes; /* bytes of a read handed to the network */
	/* holds the payload of a write that is stored from the receive buffer */
	struct rx_buf *rx;
	struct mem_segment received; /* the payload in rx */
};

struct send_slot {
	struct nbd_request *request;
	struct path_fragment fragment; /* stream NULL: none */
	bool ends_request;
	uint8_t header[SEND_HEADER_BYTES_MAX];
};

/* Progress of the first request, if another process had begun to receive it before it handed over
 * the session. */
struct told_payload {
	/* payload bytes already stored; the remaining ones follow the header */
	uint64_t taken_bytes;
	uint32_t error; /* NBD error of a failed request, or 0 */
};

/* Export name received from another process, followed by the takeover token. */
struct told_choice {
	uint32_t export_bytes;
	uint32_t token_bytes;
	uint8_t bytes[];
};

/* One send in flight: reply headers, the scatter list and the requests in it. From the service's
 * pool. */
struct send_batch {
	struct list_node node;
	struct msghdr message;
	uint32_t slot_count;
	uint32_t iov_count;
	bool is_alive; /* the batch is only a sign of life, which does not count as progress */
	/* Payload after all other bytes of the batch, from the page cache: the last file_bytes of
	 * bytes. */
	struct mem_ref file;
	size_t file_bytes;
	size_t bytes;
	bool filled; /* a send of the batch was incomplete */
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
	struct overlap_network network;
	/* unacknowledged bytes of the send in flight at the last check, or UINT64_MAX */
	uint64_t unacked_bytes;

	/* Transmission. */
	bool structured;
	bool extended;
	bool context_selected;
	uint32_t head_bytes;	   /* size of a request header */
	bool end_of_stream;	   /* the peer will not send any more */
	struct list_node requests; /* all requests in flight */
	struct list_node sendable; /* requests with something to send, in round-robin order */
	/* The request with a simple reply or a DF chunk that has begun; or NULL. No other data may
	 * be sent before the end of the reply or chunk. */
	struct nbd_request *exclusive;
	struct send_batch *sending;

	uint64_t alive_ns; /* interval of signs of life that the peer requested; 0: none */
	struct ring_op alive_op;
	bool alive_due; /* no data was sent since the timer was set although requests wait */
	bool has_sent;	/* sent since the timer was set */

	bool says_size;	     /* x-gmblock:size was negotiated */
	bool size_asked;     /* a request for the size has not been answered */
	bool size_due;	     /* answer the request for the size even if the size is unchanged */
	uint64_t size_known; /* size that the peer knows, from its request */
	uint64_t size_cookie;

	/* Receiving: bytes [rx_start, rx_end) of rx_data are not parsed yet. */
	uint8_t *rx_data;
	uint32_t rx_bytes;
	uint32_t rx_start;
	uint32_t rx_end;
	struct rx_buf *rx_large;	/* buffer that rx_data points into; NULL: rx_small */
	struct nbd_request *rx_request; /* write whose payload is being received */
	/* stream that receives the payload of rx_request; NULL: waits for memory */
	struct path_stream *rx_stream;
	uint32_t rx_stream_got;
	/* bytes of rx_request's payload that were not received yet */
	uint64_t rx_payload_left;
	/* bytes that the next message needs in one piece */
	uint32_t rx_want;
	uint64_t rx_discard_left;		/* payload bytes to discard */
	struct nbd_request *rx_discard_request; /* answered after the discard; or NULL */
	bool rx_was_full;			/* the last receive filled its buffer */
	bool rx_into_stream;			/* the receive in flight writes to rx_stream */
	/* stream.raw_bytes when the peer was last checked for progress */
	uint64_t rx_raw_bytes;
	/* a receive was interrupted to count partial data, and no data has arrived since */
	bool rx_probed;
	/* memory of rx_data for bytes that another process has received, if they do not fit into
	 * rx_small; or NULL */
	uint8_t *rx_told;
	struct told_payload *told;	 /* progress of the request at rx_start; or NULL */
	struct told_choice *told_choice; /* export to select as soon as it is available; or NULL */
	uint8_t rx_small[RX_SMALL_BYTES];
};

static inline struct nbd_session *nbd_session_of(struct session *base)
{
	return container_of(base, struct nbd_session, base);
}

static inline bool nbd_session_has_tls(const struct nbd_session *session)
{
	return session->stream.state == STREAM_LAYERED;
}

/* Returns the number of received bytes that were not used yet. */
static inline uint32_t rx_available(const struct nbd_session *session)
{
	return session->rx_end - session->rx_start;
}

/* State shared by the sessions of one engine. */
struct nbd_service {
	struct engine *engine;
	/* rate limit of log lines about rejected options and requests */
	struct log_limit refusals;
	struct ring *ring; /* the engine's, like path */
	struct path *path;
	struct nbd_request *requests;
	uint32_t request_max;	/* the engine's limit for requests in flight */
	uint32_t request_count; /* number used so far; the others occupy no memory yet */
	struct list_node requests_free;
	struct list_node rx_free;
	struct list_node sends_free;
};

/* service.c */
struct rx_buf *service_rx_get(struct nbd_session *session);
void service_rx_put(struct nbd_session *session, struct rx_buf *rx);

/* session.c: callbacks of struct session_kind. */
int nbd_session_accept(void *service, const struct endpoint *endpoint);
void nbd_session_resume(struct session *base);
void nbd_session_drain(struct session *base);
void nbd_session_export_changed(struct session *base, enum export_change change);
bool nbd_session_stalled(struct session *base);
bool nbd_session_peer_receives(struct session *base);
void nbd_session_abort(struct session *base);
bool nbd_session_join(struct session *base);
void nbd_session_close(struct session *base);
/* Ends the session for a protocol violation; the text names it. */
void session_fail(struct nbd_session *session, const char *rule, const char *format, ...)
	GMB_PRINTF(3, 4);
/* Creates a session for a connection whose handshake the caller starts or skips. Returns NULL if
 * there is no memory. */
struct nbd_session *nbd_session_create(void *service, const struct endpoint *endpoint);
/* The client has sent its last request: stops reading, and closes when everything is answered. */
void session_drain(struct nbd_session *session);
/* Ends a session that stops or drains, if everything is answered and sent. */
void session_drain_check(struct nbd_session *session);
/* Called when the peer of a lingering session has closed: terminates the session once our end of
 * stream is sent. */
void session_ended(struct nbd_session *session);

/* handshake.c */
int handshake_begin(struct nbd_session *session);
void handshake_received(struct nbd_session *session);
/* Retries the option that waits. */
void handshake_resume(struct nbd_session *session);
void handshake_end(struct nbd_session *session);
/* Parses the next option from the received bytes, or receives more. */
void handshake_next_option(struct nbd_session *session);

/* handshake_tls.c: STARTTLS, in the modes of the listener (docs/protocol/nbd.md, P45-P56). */
/* Returns whether the address requires TLS and the connection does not have it; only STARTTLS and
 * ABORT are then accepted. */
bool handshake_needs_tls(const struct nbd_session *session);
/* Returns whether the address offers optional TLS and the connection does not have it. */
bool handshake_offers_tls(const struct nbd_session *session);
/* Returns the reply type with which STARTTLS is rejected, and the reason; 0: it is accepted. */
uint32_t handshake_tls_refusal(const struct nbd_session *session, const char **reason);
/* Starts the TLS handshake after the ACK is sent, and discards everything negotiated in cleartext.
 * The next option is read once TLS is established; a failure ends the session. */
void handshake_begin_tls(struct nbd_session *session);
/* Continues the TLS of a session that another process has handed over. Returns 0 or the errors of
 * tls_layer_adopt(), and also -EACCES if the address does not offer TLS. */
GMB_MUST_CHECK int handshake_adopt_tls(
	struct nbd_session *session, const uint8_t *bytes, uint32_t count, struct error *error);
/* Called when the session closes: removes it from the count of TLS sessions. */
void handshake_tls_closed(struct nbd_session *session);

/* handshake_fence.c */
/* Carries out the option FENCE. Returns the type of the reply, and its text unless it is ACK. */
uint32_t handshake_fence(struct nbd_session *session, char text[FENCE_TEXT_BYTES]);
/* Processes the query "x-gmblock:lease=TEXT": the lease that the peer wants when it chooses the
 * export. Returns false if the query is another one, or the text is not valid. */
bool handshake_lease(struct nbd_session *session, struct option_string query);

/* receive.c */
/* Parses the received bytes into requests and receives more. */
void receive_continue(struct nbd_session *session);
void receive_done(struct ring_op *op, int result);
/* Discards further bytes until the end of the stream. */
void receive_discard(struct nbd_session *session);
void receive_release(struct nbd_session *session);
/* Returns whether the session only waits for the next request: no send is in flight, everything
 * received is parsed, and no payload is missing. */
bool receive_owes_nothing(const struct nbd_session *session);
/* Ends the receive in flight early and continues: an empty large buffer is released, and the
 * received part of a payload counts as progress. */
void receive_interrupt(struct nbd_session *session);

/* Called when the session is paused: stops receiving, even in the middle of a request. */
void receive_pause(struct nbd_session *session);
/* Makes room in rx_data for count bytes that another process received; the caller writes them.
 * Returns false if there is no memory. */
GMB_MUST_CHECK bool receive_told(struct nbd_session *session, uint32_t count);

/* handover.c */
/* Called for a session that was handed over before its export was available (told_choice): tries
 * again to select the export. */
void nbd_session_choose_again(struct nbd_session *session);
bool nbd_session_can_hand_over(const struct session *base);
void nbd_session_pause(struct session *base);
enum session_rest nbd_session_rest(struct session *base);
void nbd_session_hand_over(struct session *base, uint8_t *bytes, struct session_record *record);
int nbd_session_adopt(
	void *service, const struct endpoint *endpoint, const struct session_record *record);

/* request.c */
struct request_head {
	uint16_t flags;
	uint16_t type;
	uint64_t cookie;
	uint64_t offset;
	uint64_t length;
	uint64_t payload_bytes; /* payload bytes after the header (rules P79, P111, P121) */
	/* Set by request_plan(). */
	uint64_t window_bytes; /* limit on the payload memory that the request holds */
	bool one_piece;	       /* see struct nbd_request */
	bool whole;	       /* see struct path_request */
};
/* Returns the size of a request header in the negotiated format. */
uint32_t request_head_bytes(bool extended);
/* Writes the request header as the client sent it. Returns its size. */
uint32_t request_head_write(const struct nbd_request *request, uint8_t *bytes);
/* Returns the NBD error of a request that failed on the disk. */
uint32_t request_disk_error(const struct nbd_request *request);
/* Parses the header of a request. Returns false if the magic is wrong (P120). */
bool request_head_parse(const uint8_t *bytes, bool extended, struct request_head *head);
/* Checks a request and fills path->op and path->flags. Returns the NBD error, or 0. */
uint32_t request_check(struct nbd_session *session, const struct request_head *head,
	struct path_request *path, const char **text);
/* Checks a BLOCK_STATUS payload (P115): its effect length and context ids. Returns the NBD error,
 * or 0. */
uint32_t request_check_status_payload(const struct nbd_session *session, const uint8_t *payload,
	uint64_t payload_bytes, struct request_head *head, const char **text);
/* See engine_request_may_move(). */
bool request_may_move(struct nbd_session *session, const struct request_head *head);
/* Decides how the request is answered, and how much payload memory it may hold (its window). */
void request_plan(const struct nbd_session *session, struct request_head *head);
struct nbd_request *request_begin(struct nbd_session *session, const struct request_head *head);
void request_end(struct nbd_request *request);
/* Queues the request for sending. */
void request_sendable(struct nbd_request *request);
void request_progress(struct path_request *path);

/* reply.c */
/* Sends pending replies: the flush() of the session kind. */
void reply_flush(struct session *base, bool alone);
void reply_done(struct ring_op *op, int result);
/* Called when a request must be answered: sets the timer of a session with alive_ns, unless it
 * runs. */
void reply_watch(struct nbd_session *session);
/* Returns whether the request of x-gmblock:size must be answered now. */
bool reply_size_is_due(const struct nbd_session *session);
