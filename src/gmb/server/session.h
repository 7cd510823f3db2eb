// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the server's side of src/gmb: one client connection, and the state that all
 * connections of an engine share. The states of a session are defined by the engine:
 * engine/engine.h.
 *
 *   clan_service ─▶ event ─▶ session.c: hello, LIST, OPEN, regions, the end
 *                                 └▶ request.c: REQUEST ─▶ path ─▶ REPLY, at the end of a batch
 *
 * If regions are mapped, a request's segments become the placement of its path request: the disk
 * reads and writes the client's memory directly. If they are accessed by put and get, the request
 * uses server memory, and move.c transfers the bytes; native_session.mover selects between the two.
 * Replies and events wait in the session while the client's ring is full.
 *
 * Threading: the ring's thread. Ownership: the service owns requests; a session owns its
 * connection. It holds each mapped region until the client withdraws the region or the session
 * ends, and until no request uses it. Errors: native_session_fail() ends a session that broke a
 * rule.
 */
#pragma once

#include <gmblock/clan_memory.h>

#include "clan_service/clan_service.h"
#include "engine/copy.h"
#include "gmb/server/server.h"
#include "gmb/wire.h"

enum {
	/* Registering a longer region would delay the other sessions for too long. */
	NATIVE_FIXED_BYTES_MAX = 64 << 20,
	/* Limits of a session that uses put and get, because its transfers hold server memory while
	 * the client does not accept or supply payload. */
	NATIVE_MOVES_MAX = 32,
	NATIVE_MOVE_BYTES_MAX = 2 << 20,
};

/* Limits on the regions of one client, and of all clients together. */
#define NATIVE_REGION_BYTES_MAX		(UINT64_C(256) << 20)
#define NATIVE_SERVICE_REGION_BYTES_MAX (UINT64_C(2) << 30)

struct native_region {
	uint32_t generation; /* generation of the region with this number; 0: there is none */
	uint32_t users;	     /* number of requests that use the region */
	uint32_t rights;     /* enum clan_rights */
	bool ending;	     /* the client has withdrawn the region */
	uint64_t bytes;
	struct mem_region memory;  /* if mapped; otherwise base is NULL */
	struct clan_cookie cookie; /* if not mapped */
};

/* State of the handshake; exists until the last answer is sent. */
struct native_handshake {
	/* size of an OPEN message that waits for a replaced connection, or for the store */
	uint32_t open_bytes;
	uint32_t answer_bytes; /* size of an EXPORT message that waits for room in the ring */
	uint64_t cursor;       /* number of exports listed */
	uint64_t serial;       /* lowest serial of the next export to list */
	uint8_t open[NATIVE_OPEN_BYTES_MAX];
	uint8_t answer[NATIVE_MESSAGE_BYTES_MAX];
};

struct native_request {
	struct path_request path; /* unless started, only the members for the reply are valid */
	struct native_session *session;
	struct list_node node;	    /* in session->requests */
	struct list_node done_node; /* in session->done */
	uint32_t tag;
	uint32_t regions;	       /* bit mask of the regions that it uses */
	int error;		       /* errno of a request that did not reach the path, or 0 */
	const char *error_text;	       /* static, or NULL */
	bool started;		       /* the path has the request */
	struct session_copy *copy;     /* NULL: not a COPY */
	bool moved;		       /* transferred by put or get, as the memory is not mapped */
	uint32_t move_count;	       /* moves in progress */
	uint64_t moved_bytes;	       /* bytes for which moves have begun */
	struct list_node waiting_node; /* in mover->waiting */
	union {
		struct mem_segment segments[NATIVE_SEGMENTS_MAX];
		/* segments of moved requests */
		struct native_wire_segment far_segments[NATIVE_SEGMENTS_MAX];
	};
	uint8_t inlined[NATIVE_INLINE_BYTES_MAX];
};

/* A transfer of consecutive bytes between server memory and the client's memory. */
struct native_move {
	struct list_node node; /* in mover->idle or ->busy */
	struct native_request *request;
	struct path_stream *stream;    /* write: memory for the payload; NULL: a read */
	struct path_fragment fragment; /* read: the data to put */
	uint32_t bytes;
	uint32_t pending; /* puts or gets in progress */
};

/* State of a session whose client's memory is not mapped. */
struct native_mover {
	struct list_node idle;
	struct list_node busy;
	struct list_node waiting; /* requests that could begin a transfer, in order of arrival */
	uint64_t busy_bytes;
	struct native_move moves[NATIVE_MOVES_MAX];
};

/* A request that waits for its rate limit. */
struct native_held {
	uint32_t type; /* NATIVE_REQUEST or NATIVE_COPY */
	uint32_t bytes;
	uint8_t message[NATIVE_COPY_BYTES_MAX];
};

_Static_assert((int)NATIVE_COPY_BYTES_MAX >= (int)NATIVE_REQUEST_BYTES_MAX,
	"a held message is a REQUEST or a COPY");

struct native_session {
	struct session base;
	struct native_service *service;
	struct clan_conn *conn; /* NULL: never connected, or is_closed */
	uint16_t version;	/* negotiated version */
	bool is_closing;	/* clan_close() or clan_reject() was called */
	bool is_closed;		/* all activity of the connection has ended */
	bool event_due;		/* an EVENT must be sent */
	bool has_sent;		/* sent since the timer was set */
	uint64_t alive_ns;	/* interval of ALIVE (docs/protocol/gmb.md); 0: none */
	struct ring_op alive_op;
	struct native_handshake *handshake;
	struct native_held *held;   /* waiting request, or NULL */
	struct native_mover *mover; /* NULL: regions are mapped */
	struct overlap_network network;
	struct list_node hungry_node; /* in service->base.hungry */
	struct list_node requests;    /* all requests in flight */
	struct list_node done;	      /* requests to be answered, in order */
	struct native_region regions[NATIVE_REGIONS_MAX];
};

/* Server memory that is registered for transfers by network cards. */
struct native_slab {
	struct mem_region *memory; /* has MEM_NIC */
	struct clan_region *region;
};

struct native_service {
	struct clan_service base;
	struct native_request *requests;
	struct list_node requests_free;
	uint64_t region_bytes;	   /* sum over all sessions */
	struct native_slab *slabs; /* slabs that moves have used */
	uint32_t slab_count;
	bool slabs_refused;
	uint8_t message[NATIVE_MESSAGE_BYTES_MAX];
};

/* session.c */
int native_session_accept(void *service, const struct endpoint *endpoint);
void native_session_event(struct native_session *session, const struct clan_event *event);
/* Processes messages from the session's client, up to the limits after which other sessions get a
 * turn. */
void native_session_take(struct native_session *session);
void native_session_resume(struct session *base);
void native_session_flush(struct session *base, bool alone);
void native_session_drain(struct session *base);
void native_session_export_changed(struct session *base, enum export_change change);
bool native_session_stalled(struct session *base);
void native_session_abort(struct session *base);
bool native_session_join(struct session *base);
void native_session_close(struct session *base);
/* Ends the session because its client broke a rule. rule: text as in wire.h. */
void native_session_fail(struct native_session *session, const char *rule);
/* Adds a region that the client shares. Called by the region's event and by each request that names
 * it; only the first call has an effect. */
void native_region_add(struct native_session *session, uint32_t number, uint32_t generation);
/* Called when a request must be answered: starts signs of life if the client requested them. */
void native_session_watch(struct native_session *session);
/* Releases the region if no request uses it and the client has withdrawn it or the session ends. */
void native_region_unused(struct native_session *session, uint32_t number);

/* move.c */
/* Prepares the session for a client whose memory is accessed by put and get. */
GMB_MUST_CHECK int native_mover_create(struct native_session *session);
/* Starts as many transfers of payload as possible for a request with request->moved. May terminate
 * its session. */
void native_request_move(struct native_request *request);
/* Returns whether no transfer of the request's payload is in progress and none will begin, because
 * everything was transferred or the request has failed. */
bool native_request_is_moved(const struct native_request *request);
/* Called when a put or get has ended. */
void native_move_done(struct native_session *session, struct native_move *move, int status);
/* Called when the connection is closed, so that no clan_put() or clan_get() is in progress: ends
 * all transfers of payload. */
void native_moves_drop(struct native_session *session);
/* Deregisters all slabs, after the last session has ended. */
void native_slabs_forget(struct native_service *service);

/* request.c */
/* Continues a request: starts transfers of payload if possible, and queues its answer when the
 * request has ended. */
void native_request_look(struct native_request *request);
/* Processes a request message. type: NATIVE_REQUEST or NATIVE_COPY. */
void native_request_take(
	struct native_session *session, uint32_t type, const uint8_t *bytes, uint32_t len);
/* Called when the session ends: the request starts no further work. */
void native_request_abandon(struct native_request *request);
/* Returns whether no part of the request is in flight. */
bool native_request_is_idle(const struct native_request *request);
void native_request_end(struct native_request *request);
/* Sends the queued answers. Returns false if the client's ring is full or the connection lost. */
GMB_MUST_CHECK bool native_requests_answer(struct native_session *session);
