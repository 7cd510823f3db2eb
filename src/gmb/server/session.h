// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the server's side of src/gmb: one connection of a client, and what the connections of
 * an engine share. The states of a session are the engine's: engine/engine.h.
 *
 *   clan_service ─▶ event ─▶ session.c: hello, LIST, OPEN, regions, the end
 *                                 └▶ request.c: REQUEST ─▶ path ─▶ REPLY, at the end of a batch
 *
 * Where regions are mapped, a request's segments become the placement of its path request: the disk
 * reads and writes the client's memory itself. Where they are reached by put and get, it has memory
 * of ours, and move.c carries the bytes; see native_session.mover, the seam between the two.
 * Replies and events wait in the session while the client's ring is full.
 *
 * Threading: the ring's thread. Ownership: the service owns requests; a session
 * owns its connection, and a hold on each region of its client from REGION until the last request
 * that uses it has ended. Errors: native_session_fail() ends a session that broke a rule.
 */
#pragma once

#include <gmblock/clan.h>

#include "clan_service/clan_service.h"
#include "engine/copy.h"
#include "gmb/server/server.h"
#include "gmb/wire.h"

enum {
	/* Registering a longer region would keep the others waiting for too long. */
	NATIVE_FIXED_BYTES_MAX = 64 << 20,
	/* Of a session, with its network: it holds no more payload of ours while its client does
	 * not take it, or give it. */
	NATIVE_MOVES_MAX = 32,
	NATIVE_MOVE_BYTES_MAX = 2 << 20,
};

#define NATIVE_REGION_BYTES_MAX		(UINT64_C(256) << 20) /* of a client */
#define NATIVE_SERVICE_REGION_BYTES_MAX (UINT64_C(2) << 30)   /* of all */

struct native_region {
	uint32_t generation; /* 0: there is none of that number */
	uint32_t users;	     /* requests */
	uint32_t rights;     /* enum clan_rights */
	bool ending;	     /* the client wants it back */
	uint64_t bytes;
	struct mem_region memory;  /* where it is mapped; else base is NULL */
	struct clan_cookie cookie; /* without a mapping */
};

/* Until its last answer is out. */
struct native_handshake {
	uint32_t open_bytes;   /* an OPEN waits for who it replaces, or for the store */
	uint32_t answer_bytes; /* an EXPORT waits for room */
	uint64_t cursor;       /* exports that were listed */
	uint64_t serial;       /* the next one to be listed has no lower one */
	uint8_t open[NATIVE_OPEN_BYTES_MAX];
	uint8_t answer[NATIVE_MESSAGE_BYTES_MAX];
};

struct native_request {
	struct path_request path; /* first: progress finds us by it */
	struct native_session *session;
	struct list_node node;	    /* in session->requests */
	struct list_node done_node; /* in session->done */
	uint32_t tag;
	uint32_t regions;	       /* a bit for each that it uses */
	int error;		       /* decided without the path */
	const char *error_text;	       /* static, or NULL */
	bool started;		       /* the path knows it */
	struct session_copy *copy;     /* NULL: it is none */
	bool moved;		       /* by put or get, not by placement */
	uint32_t move_count;	       /* moves under way */
	uint64_t moved_bytes;	       /* that moves have begun with */
	struct list_node waiting_node; /* in mover->waiting */
	union {
		struct mem_segment segments[NATIVE_SEGMENTS_MAX];
		struct native_wire_segment far_segments[NATIVE_SEGMENTS_MAX]; /* moved */
	};
	uint8_t inlined[NATIVE_INLINE_BYTES_MAX];
};

/* A run of bytes between memory of ours and the client's. */
struct native_move {
	struct list_node node; /* in mover->idle or ->busy */
	struct native_request *request;
	struct path_stream *stream;    /* of a write: it is filled; NULL: a read */
	struct path_fragment fragment; /* of a read */
	uint32_t bytes;
	uint32_t pending; /* puts or gets that have not ended */
};

/* What a session has whose client's memory is not mapped. */
struct native_mover {
	struct list_node idle;
	struct list_node busy;
	struct list_node waiting; /* requests that could begin a move, in order */
	uint64_t busy_bytes;
	struct native_move moves[NATIVE_MOVES_MAX];
};

/* A request that waits for its turn by a rate. */
struct native_held {
	uint32_t type; /* NATIVE_REQUEST or NATIVE_COPY */
	uint32_t bytes;
	uint8_t message[NATIVE_COPY_BYTES_MAX];
};

_Static_assert((int)NATIVE_COPY_BYTES_MAX >= (int)NATIVE_REQUEST_BYTES_MAX, "it holds either");

struct native_session {
	struct session base;
	struct native_service *service;
	struct clan_conn *conn; /* NULL: never had, or is_closed */
	uint16_t version;	/* that is spoken */
	bool is_closing;	/* clan_close() was called */
	bool is_closed;		/* nothing of the connection runs any more */
	bool event_due;		/* EVENT is to be sent */
	bool has_sent;		/* since the timer was set */
	uint64_t alive_ns;	/* see ALIVE in docs/protocol/gmb.md; 0: never */
	struct ring_op alive_op;
	struct native_handshake *handshake;
	struct native_held *held;     /* or NULL */
	struct native_mover *mover;   /* NULL: regions are mapped */
	struct list_node hungry_node; /* in service->base.hungry */
	struct list_node requests;    /* all that are in flight */
	struct list_node done;	      /* those to be answered, in order */
	struct native_region regions[NATIVE_REGIONS_MAX];
};

/* Memory of ours that the network knows. */
struct native_slab {
	struct mem_region *memory; /* has MEM_NIC */
	struct clan_region *region;
};

struct native_service {
	struct clan_service base;
	struct native_request *requests;
	struct list_node requests_free;
	uint64_t region_bytes;	   /* of all sessions */
	struct native_slab *slabs; /* that moves have used */
	uint32_t slab_count;
	bool slabs_refused;
	struct log_limit refusals; /* of requests */
	uint8_t message[NATIVE_MESSAGE_BYTES_MAX];
};

/* session.c */
int native_session_accept(void *service, const struct endpoint *endpoint);
void native_session_event(struct native_session *session, const struct clan_event *event);
/* Takes what its client has sent, as far as it may. */
void native_session_take(struct native_session *session);
void native_session_resume(struct session *base);
void native_session_flush(struct session *base, bool alone);
void native_session_drain(struct session *base);
void native_session_export_changed(struct session *base, enum export_change change);
bool native_session_stalled(struct session *base);
void native_session_abort(struct session *base);
bool native_session_join(struct session *base);
void native_session_close(struct session *base);
/* rule: see wire.h. */
void native_session_fail(struct native_session *session, const char *rule);
/* The client shares a region: once for each, by its event or by the first request that names it. */
void native_region_add(struct native_session *session, uint32_t number, uint32_t generation);
/* A request is to be answered: there are signs of life from now on, if the client wants them. */
void native_session_watch(struct native_session *session);
/* A request that used it has ended. */
void native_region_unused(struct native_session *session, uint32_t number);

/* move.c */
/* The session's client is reached by put and get. */
GMB_MUST_CHECK int native_mover_create(struct native_session *session);
/* Moves what can be moved of a request with request->moved. Its session may end. */
void native_request_move(struct native_request *request);
/* True when nothing of it is left to be moved, or ever will be. */
bool native_request_is_moved(const struct native_request *request);
/* A put or get has ended. */
void native_move_done(struct native_session *session, struct native_move *move, int status);
/* The connection is closed, so nothing is under way any more: all moves end. */
void native_moves_drop(struct native_session *session);
/* No session is left. */
void native_slabs_forget(struct native_service *service);

/* request.c */
/* Something may be left to do for it: moves what can be moved, and has it answered when it is over.
 */
void native_request_look(struct native_request *request);
/* type: NATIVE_REQUEST or NATIVE_COPY. */
void native_request_take(
	struct native_session *session, uint32_t type, const uint8_t *bytes, uint32_t len);
/* The session ends: nothing more of it is begun. */
void native_request_abandon(struct native_request *request);
/* True when nothing of it is in flight any more. */
bool native_request_is_idle(const struct native_request *request);
void native_request_end(struct native_request *request);
/* Answers what is done; false: the client's ring is full. */
GMB_MUST_CHECK bool native_requests_answer(struct native_session *session);
