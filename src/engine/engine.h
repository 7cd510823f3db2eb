// SPDX-License-Identifier: Apache-2.0
/*
 * The state of one reactor that all its sessions share: ring, payload memory, data path, one store
 * queue per export, limits, wait policy and the work at the end of each batch.
 *
 *   endpoint ─▶ engine_accept() ─▶ kind->accept() ─▶ session_init()
 *
 *                accept              export chosen            requests are no longer accepted
 *   (new) ──▶ NEGOTIATING ──────▶ READY ──────────────────────▶ DRAINING
 *                 │                 │ │ drain() called            │ nothing in flight
 *                 │                 │ └──────────▶ LINGERING ◀────┘
 *                 │  peer violation,│                │ end of stream, deadline
 *                 │  socket error   ▼                ▼
 *                 └─────────────▶ TERMINATING ◀──────┘ ──▶ kind->abort()
 *                                                    │ kind->join(): no request in flight
 *                                                    ▼ kind->close(): closed and freed
 *
 * A session kind implements one protocol. A kind is a table of functions, registered in
 * engine_options. The engine decides which sessions wait, in which order and for how long, and when
 * they end. The kind handles the wire format.
 *
 * Threading: the ring's thread. Ownership: the engine owns its memory, its queues and the services
 * of the kinds. A session belongs to its kind, which embeds struct session as its first member. A
 * session exists until kind->close(). Errors: a negative errno and an error message.
 */
#pragma once

#include "base/counter.h"
#include "base/export_uri.h"
#include "base/identity.h"
#include "base/lease.h"
#include "base/list.h"
#include "base/log.h"
#include "base/place.h"
#include "base/rights.h"
#include "engine/export.h"
#include "engine/limits.h"
#include "engine/rate_identity.h"
#include "path/path.h"
#include "ring/ring.h"
#include "ring/wait.h"
#include "stream/stream.h"

struct engine;
struct fence;
struct fence_nodes;
struct lease_book;
struct lease_holder;
struct session;
struct session_record;

/* --- accepted connections -------------------------------------------------------------------- */

enum { PEER_TEXT_BYTES = 80 };

/* The client at the other end of a connection. */
struct peer {
	uint64_t id; /* number of the connection, for messages; assigned when it was accepted */
	/* its number in the process that has handed the connection over; 0: it is a new connection
	 */
	uint64_t previous_id;
	uint32_t listener;	    /* index of the listener, below ENGINE_LISTENERS_MAX */
	char text[PEER_TEXT_BYTES]; /* for messages: "127.0.0.1:4711" */
	int family;		    /* AF_INET, AF_INET6 or AF_UNIX; 0 = unknown */
	struct peer_identity identity;
	/* Number of connections of this client, maintained by the code that accepts them. NULL: not
	 * counted. */
	_Atomic uint32_t *connections;
	bool has_address;		       /* the client is connected over a network */
	uint8_t address[ACCESS_ADDRESS_BYTES]; /* IPv6; an IPv4 address is mapped */
	bool has_credentials; /* true for a Unix socket: the kernel provides the credentials */
	struct stream_credentials credentials;
	/* Identity from the TLS handshake, set by session_identify(). NULL: no TLS. */
	struct identity *proved;
};

/* Returns whether the peer is a process of root or of the server's own user. */
static inline bool peer_is_trusted(const struct peer *peer)
{
	return peer->has_credentials && !rights_is_stranger(peer->credentials.uid);
}

struct session_kind;
struct tls_policy;

struct endpoint {
	const struct session_kind *kind; /* protocol of the connection */
	int fd; /* connected socket; -1: the kind has accepted the connection itself */
	struct peer peer;
	/* TLS policy of the listener, which must outlive its connections; NULL: no TLS */
	struct tls_policy *tls;
	/* Export of the listener, if the protocol cannot choose one; otherwise NULL. Borrowed for
	 * the call of accept() or adopt(). */
	const char *export_name;
};

/*
 * Returns the rights of a session on an export, bits of enum engine_rights. Only this function
 * decides about rights. 0: the export is hidden from the session, see session_export_find(). If an
 * export has no rules, every session has all rights that the export permits. Exception: kinds that
 * map their peers' memory serve only root and the server's own user on Unix sockets.
 */
uint32_t engine_rights(const struct session *session, const struct export *export);
/* Returns what engine_rights() would return if the export had these rules; NULL: no rules. */
uint32_t engine_rights_with(
	const struct session *session, const struct export *export, struct access *access);

/* --- exports --------------------------------------------------------------------------------- */

/* The entry for an export in one engine. */
struct engine_export {
	struct path_export path;
	struct export *export;
	struct rate_queue rate;
	struct path_quota memory;
	uint64_t serial; /* increases with each export that is added */

	/* Private members. */
	struct engine *engine;
	struct store_watch watch;
	/* sessions, copies and engine_quiesce() calls that use the entry, plus one for a barrier
	 * check */
	uint32_t session_count;
	uint32_t inflight_count; /* request slots that the export's sessions occupy */
	bool prepared; /* engine_export_show() was not called yet: no session can find it */
	bool removed;
	struct list_node barred; /* sessions that wait until store_barrier() is open */
	bool asking;
	bool watched;		   /* the barrier is checked even if no session waits */
	struct ring_op barrier_op; /* the next check of the barrier, or the pause before that */
	enum store_barrier barrier_found;
	uint64_t barrier_pause_ns;
};

enum export_change {
	EXPORT_REMOVED,
	EXPORT_RESIZED, /* store_size() has changed; session->export_bytes never decreases */
	EXPORT_RIGHTS,	/* session->rights have changed */
};

/* Adds a reference to the export, and creates a queue on its store, which can open files on the
 * calling thread. Returns -EEXIST if the name is in use. */
GMB_MUST_CHECK int engine_export_add(
	struct engine *engine, struct export *export, struct error *error);
/* engine_export_add() as two steps, of which only the first can fail. Before engine_export_show(),
 * no session can find the export, and another export can have its name. */
GMB_MUST_CHECK int engine_export_prepare(
	struct engine *engine, struct export *export, struct error *error);
void engine_export_show(struct engine *engine, const struct export *export);
/* Removes the export, so that new sessions cannot find it. Its sessions are notified by
 * kind->export_changed(), and are ended after deadline_ns. The queue and the reference are released
 * when the last session has ended. */
void engine_export_remove(struct engine *engine, struct export *export, uint64_t deadline_ns);
/* Notifies the sessions of an export that the size of its store has changed. The export may already
 * be removed. The engine calls this itself when the store reports a new size. */
void engine_export_resized(struct engine *engine, const struct export *export);
/*
 * Recomputes engine_rights() for each session of the export (NULL: of all exports), and notifies
 * those whose rights have changed. Requests in flight are finished, except for copies, which end if
 * their session has lost the required rights. Sessions without any rights are drained, and ended
 * after ENGINE_RIGHTS_STOP_NS. Returns the number of sessions that start to drain.
 */
uint32_t engine_export_rights(struct engine *engine, const struct export *export);
/* Calls look() for each session that is not ending. */
void engine_each_session(struct engine *engine,
	void (*look)(void *context, const struct session *session), void *context);
/* Applies changes of export->rate and export->memory_max to the export's sessions, including those
 * that wait. */
void engine_export_limits_changed(struct engine *engine, const struct export *export);
/* Applies changes by rate_rules_set() and rate_rules_set_memory() to the sessions of all
 * identities. */
void engine_identity_limits_changed(struct engine *engine);
/* Returns the entry of the export with that name; NULL: there is none. */
struct engine_export *engine_export_find(struct engine *engine, const void *name, uint32_t bytes);
/* Returns the export with the lowest serial that is not below serial, or NULL. With it, a list can
 * be built in several steps, between which exports change. */
struct engine_export *engine_export_from(struct engine *engine, uint64_t serial);
/* Returns the engine's measurements of an export; NULL if the export was not added. */
const struct path_export *engine_export_measured(
	const struct engine *engine, const struct export *export);
/* Returns the entry of an export, or NULL. *hint_inout makes the search fast for a caller that
 * looks up all exports from the oldest to the newest. The caller sets *hint_inout to 0
 * before the first call. */
const struct engine_export *engine_export_entry(
	const struct engine *engine, const struct export *export, uint32_t *hint_inout);

/*
 * Passes on connections that a kind has accepted itself. take() counts the connection, checks the
 * limits, and passes the connection to the engine; it returns false if it rejects the connection.
 * address: the peer's numeric address, "HOST:PORT", with brackets around IPv6. Called on the
 * engine's thread.
 */
struct engine_door {
	bool (*take)(void *context, const struct session_kind *kind, const char *address);
	void *context;
};

/* --- session kinds --------------------------------------------------------------------------- */

/* State of a paused session, see session_kind.rest(). */
enum session_rest {
	SESSION_RESTS,	 /* no request is in flight, but one can have been received in part */
	SESSION_IS_BUSY, /* a request is in the store, or between the store and the peer */
	SESSION_WAITS_FOR_PEER, /* the peer has to receive replies first */
};

struct session_kind {
	const char *name;
	const char *const *schemes; /* URI schemes, ending with NULL */
	/* the kind's Unix sockets are SOCK_SEQPACKET, not SOCK_STREAM */
	bool keeps_messages;
	bool maps_memory; /* maps memory of peers on Unix sockets, see engine_rights() */
	/* The engine's thread accesses that memory itself. A peer can then hold the thread up, by
	 * removing memory that is being accessed. */
	bool holds_thread;

	/* Create and destroy the kind's state in an engine, the `service` of the functions below.
	 * Both are optional: without them, service is the engine. */
	int (*create)(struct engine *engine, void **service_out, struct error *error);
	void (*destroy)(void *service); /* called when the kind has no sessions */

	/* Optional: listen on network addresses without a socket of this program. If uri->port is
	 * 0, sets it to the port that was chosen. */
	int (*listen)(void *service, struct export_uri *uri, const struct engine_door *door,
		void **listener_out, struct error *error);
	void (*listen_end)(void *service, void *listener);

	/* Starts a session and calls session_init() for it. Returns a negative errno if the session
	 * was not created. */
	int (*accept)(void *service, const struct endpoint *endpoint);
	/* Called when the session might be able to continue. The session was paused, or waited for
	 * a slot (engine_request_may()), a rate (engine_request_may_move()), the end of the
	 * connection that it replaces, or the barrier of its export. */
	void (*resume)(struct session *session);
	/* Called at the end of a batch after session_mark_dirty(): sends replies, and increases
	 * engine->turn_bytes by the number of bytes that the kernel has to copy. alone: no other
	 * session is dirty. */
	void (*flush)(struct session *session, bool alone);
	/* Called after session->stopping was set: finishes requests in flight, rejects later ones,
	 * then calls session_linger(). */
	void (*drain)(struct session *session);
	/* Called when the export has changed. EXPORT_REMOVED is followed by drain(). Optional. */
	void (*export_changed)(struct session *session, enum export_change change);
	/*
	 * Called when others wait for memory and this session has made no progress for the stall
	 * timeout. Returns true if the session holds memory and waits for its peer; the engine then
	 * ends the session. Otherwise it returns false, and can release memory that the session
	 * does not need. Optional, for kinds that never hold memory.
	 */
	bool (*stalled)(struct session *session);

	/* Returns whether the session has operations in flight at another server, which
	 * inflight_count does not contain. An upgrade waits for them, also when the session is
	 * ending. Optional. */
	bool (*is_away)(struct session *session);

	/* Returns whether the peer has acknowledged data since the last call. Called when the
	 * session has made no progress for a while. Optional: without it, data counts as received
	 * when it was sent. */
	bool (*peer_receives)(struct session *session);

	/* This function and the next four hand sessions over to another process (handover.h). A
	 * kind either has all five or does not have any. Returns whether this session, which is
	 * READY, can be handed over. */
	bool (*can_hand_over)(const struct session *session);
	/* Called after session->paused was set: starts no further requests until resume(). */
	void (*pause)(struct session *session);
	/* Returns whether a paused session is at rest, and if not, why. */
	enum session_rest (*rest)(struct session *session);
	/* Called when the session is at rest (SESSION_RESTS). Writes the state that the other
	 * process needs into `bytes`, which has room for ENGINE_HANDOVER_BYTES_MAX bytes. Also sets
	 * these members of the record: byte_count, fd (the connected socket), later (the payload
	 * received so far, borrowed until the session is released), and fds with fd_count, if the
	 * state needs further descriptors. */
	void (*hand_over)(struct session *session, uint8_t *bytes, struct session_record *record);
	/* Like accept(), on a paused engine, for a session with the state in record. -EPROTO: the
	 * state is invalid. */
	int (*adopt)(void *service, const struct endpoint *endpoint,
		const struct session_record *record);

	/* Called when the session has become TERMINATING: cancels all its operations, so that they
	 * complete soon. If session->handed_over is set, it must not use the connection any more.
	 */
	void (*abort)(struct session *session);
	/* Called in state TERMINATING: returns true when no operation is in flight and no request
	 * is left. */
	bool (*join)(struct session *session);
	/* Called after join() has returned true: closes the connection and frees the session. */
	void (*close)(struct session *session);
};

/* --- sessions -------------------------------------------------------------------------------- */

enum session_state {
	SESSION_NEGOTIATING, /* the peer has not chosen an export yet */
	SESSION_READY,	     /* waits for requests */
	SESSION_DRAINING,    /* accepts no further requests; finishes the ones in flight */
	SESSION_LINGERING,   /* sending side shut down; waits for the peer to close */
	SESSION_TERMINATING, /* waits for the session's operations to complete */
	SESSION_STATE_COUNT
};

/* Progress of a session that has not chosen an export yet. If there are too many handshakes,
 * sessions with the least progress are ended first. */
enum newcomer {
	NEWCOMER_SILENT, /* no byte was received from the peer */
	NEWCOMER_SPOKEN,
	/* the TLS handshake has succeeded, which cost the peer as much as the server */
	NEWCOMER_IDENTIFIED,
	NEWCOMER_COUNT
};

/* All sessions of one peer (host or user). */
struct engine_peer {
	struct list_node node; /* in engine->peers */
	struct peer_identity identity;
	uint32_t session_count;
	uint32_t handshake_count;
	/* sessions in the handshake, by progress, oldest first */
	struct list_node newcomers[NEWCOMER_COUNT];
	struct path_peer path;
	struct turn_group blocked;
};

enum { ENGINE_CLIENT_NAME_BYTES = IDENTITY_TEXT_BYTES };

/* Statistics of one client. Sessions belong to the same client if they have the same proved
 * identity, or, without proved identity, the same user or host. If the table is full, a new client
 * replaces the one that has been without sessions for the longest time. */
struct engine_client {
	struct list_node node; /* in engine->clients */
	struct takeover_principal principal;
	/* Escaped, such as "psk alice", "CN=host-a,O=Example", "uid 1000", "10.1.0.7" or
	 * "2001:db8::/64". */
	char name[ENGINE_CLIENT_NAME_BYTES];
	uint32_t session_count; /* with parts of sessions */
	uint32_t part_count;
	struct path_stats *operations[STORE_OP_COUNT]; /* see path_client.stats */
};

enum { ENGINE_NODE_NAME_BYTES = 64 };

/* Statistics of one node (fence.h) in this engine. */
struct engine_node {
	struct list_node node; /* in engine->nodes */
	char name[ENGINE_NODE_NAME_BYTES];
	uint64_t operations; /* operations that stores have completed for the node's sessions */
};

/* The sessions of one identity with limits in this engine. */
struct engine_identity {
	struct list_node node; /* in engine->rate_identities */
	struct rate_identity *identity;
	uint32_t session_count;
	struct rate_queue rate;
	struct path_quota memory;
};

/* The peer that acts for the session's peer, as the kernel or the network names it. All zeroes: the
 * session's peer acts for itself. */
struct session_carrier {
	bool has_uid;
	bool has_address;
	uint32_t uid;
	uint8_t address[ACCESS_ADDRESS_BYTES];
};

struct session {
	const struct session_kind *kind;
	struct engine *engine;
	struct peer peer;
	struct session_carrier carrier; /* see session_act_for() */
	struct tls_policy *tls;		/* see struct endpoint */
	enum session_state state;	/* changed by session_set_state() */
	bool stopping;			/* must end: drain() was called */
	bool overdue;			/* its stop deadline has passed */
	bool handing_over;		/* must be handed over to another process; see handover.h */
	bool paused;			/* starts no requests and receives no data */
	bool was_told;			/* the session's state was sent to the other process */
	bool handed_over;		/* the other process owns the connection */
	bool was_ready;	       /* a log line has reported that the client uses the export */
	bool fenced;	       /* ended because its node is fenced; see fence.h */
	struct export *export; /* NULL before session_choose() */
	struct path_export *path_export;
	struct path_client client; /* the session's part of the shared payload memory */
	uint32_t rights;	   /* enum engine_rights; can change, see EXPORT_RIGHTS */
	/* current size of the export; changes are announced by EXPORT_RESIZED */
	uint64_t export_bytes;
	/* number of request slots that the session occupies, see engine_request_begin() */
	uint32_t inflight_count;
	/* Time of the last network progress, or when the current transfer started. Set by the
	 * kind, and by the engine at the start, when it pauses, and after peer_receives(). */
	uint64_t progress_ns;
	struct takeover_member member;
	struct rate_member rate;
	/* set by the kind before session_choose() */
	struct lease_want lease_want;
	/* The peer has ended the session in order and does not return: its lease ends. Set by the
	 * kind. */
	bool lease_done;

	/* changes need session_lease_admit(); when it is false, the session may change the export
	 * as far as leases are concerned; read-only for kinds */
	bool lease_checked;

	/* Private members. */
	bool is_part;			   /* see part.h */
	struct lease_holder *lease_holder; /* NULL: none */
	struct list_node lease_node;	   /* in lease_holder->sessions */
	char *lease_text;		   /* why the lease was refused; or NULL */
	struct engine_peer *of_peer;
	struct engine_export *chosen;
	/* points to chosen->inflight_count; without an export, to the count of all such sessions */
	uint32_t *export_inflight_count;
	struct engine_identity *of_identity; /* NULL: no rate rule matches the session */
	struct engine_client *of_client;     /* NULL before session_choose() */
	/* the nodes that were configured when the session chose its export; or NULL */
	struct fence_nodes *nodes;
	struct export *takeover_export; /* the export whose takeover group contains member */
	uint64_t deadline_ns; /* time at which the handshake or the wait in state LINGERING ends */
	uint64_t stop_deadline_ns;
	struct list_node node;		 /* in engine->sessions */
	struct list_node deadline_node;	 /* in engine->handshakes or engine->lingering */
	struct list_node handshake_node; /* in of_peer->newcomers */
	enum newcomer newcomer;
	struct list_node dirty_node;  /* in engine->dirty or dirty_sparse */
	struct turn blocked_turn;     /* in engine->blocked */
	struct list_node ending_node; /* in engine->ending */
	struct list_node barred_node; /* in engine_export.barred */
	struct list_node review_node; /* in engine->to_review */
};

/* Initializes a session, which must be zeroed; its state is then NEGOTIATING. Called by
 * kind->accept(). */
void session_init(struct session *session, struct engine *engine, const struct endpoint *endpoint);
/* Sets the identity from TLS, and adds a reference to it. Called in state NEGOTIATING, before
 * rights are queried. A takeover token that the client has given before is discarded. */
void session_identify(struct session *session, struct identity *identity);
/* Returns the export with that name if the session has a right on it; otherwise NULL. Kinds must
 * call this instead of engine_export_find(), so that peers cannot distinguish hidden exports from
 * missing ones. If the export is hidden, this is logged for the operator. */
struct engine_export *session_export_find(
	struct session *session, const void *name, uint32_t bytes);
/* Returns a clause that explains to the peer why the export was not found, or "". */
const char *session_export_lack(struct session *session, const void *name, uint32_t bytes);
/* Like engine_export_from(), for exports that the session can see. Serials must not be sent to the
 * peer, because they reveal that there are hidden exports. */
struct engine_export *session_export_from(struct session *session, uint64_t serial);
/* Called in state NEGOTIATING when data has arrived from the peer. Only the first call has an
 * effect. */
void session_has_spoken(struct session *session);
/* Changes the state, and asserts that the change is allowed. Not for TERMINATING and LINGERING,
 * which have their own functions. */
void session_set_state(struct session *session, enum session_state state);
/*
 * Makes the session use this export. Errors:
 * - -EACCES: the peer belongs to a fenced node (fence.h), or another client has the lease
 * (lease.h).
 * - -ENOENT: the export has been hidden from the session since it was found.
 * - -EBUSY: the export has reached its connection limit.
 * - -EUSERS: the peer's identity has reached its connection limit.
 * - -ENOMEM.
 * - -EAGAIN: operations of a killed server might still reach the disk (store_barrier()), the export
 *   that this one replaces is still in use (export_replaces()), or the sessions of a client that
 * has lost its lease have not ended. kind->resume() is called when the caller should retry.
 * - -ETIMEDOUT: the reasons of -EAGAIN, but the session has waited nearly as long as the handshake
 *   timeout.
 * - -ESTALE: the store is lost (store_is_lost()). The client should try another server.
 */
#define ENGINE_BARRIER_TEXT "earlier operations on the disk are still in progress"
GMB_MUST_CHECK int session_choose(struct session *session, struct engine_export *entry);
/* Returns the reason of an error of session_choose(), for the peer: a sentence without its full
 * stop. Valid until the next session_choose(). */
const char *session_choose_text(const struct session *session, int result);
/* Returns why a stopping session rejects requests, for the peer: a sentence without its full
 * stop. */
#define ENGINE_SNAPSHOT_DELETED_TEXT EXPORT_URI_SNAPSHOT_DELETED_TEXT
const char *session_stop_text(const struct session *session);
/*
 * Checks the op, flags, offset and length of a request. Returns 0 if it is permitted, otherwise:
 * - -EPERM: the request is a change, and the session has no right to write, or another client has
 *   the lease.
 * - -EOVERFLOW: a read or write is longer than payload_bytes_max of struct engine_limits.
 * - -ENOSPC: a write, zero or copy extends beyond the current end of the disk.
 * - -EINVAL: another request extends beyond the end, or a block status request has length 0.
 *
 * If a request is not permitted, *text is the reason, a sentence without its full stop. A permitted
 * request of length 0, except a flush, is complete after this check.
 */
extern const char session_lease_text[]; /* the text if another client has the lease */
GMB_MUST_CHECK int session_admit(
	struct session *session, const struct path_request *request, const char **text);

/* Reason why a TLS handshake failed. */
enum engine_tls_failure {
	ENGINE_TLS_CLIENT_REFUSED, /* the server rejected the client's certificate or key */
	ENGINE_TLS_SERVER_REFUSED, /* the client rejected the server's certificate or key */
	/* the peers have no common parameters, or the client does not speak TLS */
	ENGINE_TLS_PROTOCOL,
	ENGINE_TLS_CONNECTION, /* the connection ended, or the time limit expired */
	ENGINE_TLS_OTHER,      /* for example, no memory or no thread */
	ENGINE_TLS_FAILURE_COUNT
};

/* Ends the session. reason: for the log; NULL: an expected end, which is not logged. Can be called
 * anywhere and repeatedly, because the session is freed only at the end of a batch. */
void session_terminate(struct session *session, const char *reason);
/* Ends the session because its TLS handshake failed. */
void session_tls_failed(struct session *session, enum engine_tls_failure why, const char *reason);
/* Called when all requests are answered and the sending side is shut down: waits a limited time
 * until the peer closes the connection. */
void session_linger(struct session *session);
/* Gives the session a takeover token, see takeover.h. The session keeps a reference to the export
 * until it ends. */
void session_takeover_join(
	struct session *session, struct export *export, const uint8_t *token, uint32_t bytes);
/* Ends the connection with this token, see takeover.h. Returns true if there is such a connection;
 * kind->resume() is called when that connection has ended. */
GMB_MUST_CHECK bool session_takeover_replace(
	struct session *session, struct export *export, const uint8_t *token, uint32_t bytes);

/* --- the engine ------------------------------------------------------------------------------ */

enum { ENGINE_KINDS_MAX = 8, ENGINE_INSTANCE_BYTES = 16 };

/* Method of a copy within the server, see copy.h. */
enum copy_method {
	COPY_REFLINK, /* the files share the blocks */
	COPY_RANGE,   /* copy_file_range() in the kernel */
	COPY_DEVICE,  /* through device memory */
	COPY_RAM,
	COPY_ZEROES, /* holes of the source, written as zeroes to the target */
	COPY_METHOD_COUNT
};

struct engine_counters {
	uint64_t sessions_accepted;
	uint64_t sessions_refused;
	/* sessions ended with a reason for the log: broken protocol, socket error, time limit */
	uint64_t sessions_failed;
	uint64_t sessions_idle; /* ended by the idle timeout */
	/* how many of sessions_accepted another process has handed over */
	uint64_t sessions_adopted;
	uint64_t requests;
	/* polls of the reactor that found no completion; only in the sums of
	 * engine_counters_add() */
	uint64_t polls;
	uint64_t place_waits; /* requests that had to wait for a free request slot */
	/* How often identities that no longer have sessions have waited for memory.
	 * engine_counters_add() adds the waits of the identities that have sessions. */
	uint64_t identity_memory_waits;
	uint64_t errors;	/* requests answered with an error; counted by the session kind */
	uint64_t bytes_read;	/* counted by the kind */
	uint64_t bytes_written; /* counted by the kind */
	uint64_t bytes_copied[COPY_METHOD_COUNT];
	/* tickets created; the session kinds count this and all other push counters */
	uint64_t push_tickets;
	uint64_t push_refusals; /* tickets presented to this server that were not valid */
	uint64_t pushes_done;
	uint64_t pushes_failed;
	uint64_t push_resent;
	uint64_t sessions;   /* current number */
	uint64_t handshakes; /* current number */
	uint64_t inflight;   /* current number of requests in flight */
	/* The session kinds count all further counters. */
	uint64_t tls_handshakes; /* successful handshakes */
	uint64_t tls_failed;
	uint64_t tls_failures[ENGINE_TLS_FAILURE_COUNT]; /* tls_failed by reason */
	uint64_t tls_refused;	      /* handshakes rejected because no slot was free */
	uint64_t tls_upgrading;	      /* current number of handshakes in progress or waiting */
	uint64_t tls_sessions;	      /* current number */
	uint64_t tls_sessions_1_2;    /* the part of tls_sessions with TLS 1.2 */
	uint64_t tls_sessions_kernel; /* the part of tls_sessions with kernel TLS */
};

extern const struct counter_table engine_counter_table; /* describes struct engine_counters */

struct engine_review {
	/* Returns whether the review permits a session, whose peer is authenticated, to
	 * continue. */
	bool (*may_stay)(void *context, const struct session *session);
	/* Called when all sessions were checked. ended: number of sessions that were rejected or
	 * have lost all rights since the previous call of done(). */
	void (*done)(void *context, uint64_t number, uint32_t ended);
	void *context;
	uint64_t number;      /* number of the review; never decreases */
	uint64_t deadline_ns; /* time for rejected sessions to finish their requests */
};

struct engine_options {
	struct ring *ring;
	const struct session_kind *const *kinds; /* must exist as long as the engine */
	uint32_t kind_count;			 /* 1 to ENGINE_KINDS_MAX */
	struct engine_limits limits;
	/* Device memory for exports that request it (store_info.read_device). Must exist as long as
	 * the engine; NULL: none. */
	struct arena *device;
	bool device_waits; /* see path_options */
	/* Limits of identities. Must exist as long as the engine; NULL: none. */
	struct rate_rules *rate_rules;
	/* Nodes and fences. Must exist as long as the engine; NULL: none. */
	struct fence *fence;
	/* Leases. Must exist as long as the exports that the engine has served; NULL: clients that
	 * ask for a lease are refused, and export.one_writer has no effect. */
	struct lease_book *leases;
	/* Returns the engine for part number `part` (1, 2, ...) of a session of this engine, see
	 * part.h. NULL: sessions have no parts. */
	struct engine *(*part_engine)(void *context, uint32_t part);
	/* Where kinds may connect for a client. Must exist as long as the engine. */
	const struct place *places;
	uint32_t place_count;
	/* Identifies this server process. A client with several connections uses it to check that
	 * they lead to the same process. Zeroes: unknown. */
	uint8_t instance[ENGINE_INSTANCE_BYTES];
	/* Called exactly once for each engine_accept() and engine_adopt(), when the connection is
	 * closed; can be NULL. */
	void (*endpoint_closed)(void *context, const struct peer *peer);
	void *context;
};

struct engine {
	/* Members that session kinds may read. */
	struct ring *ring;
	struct arena *arena; /* payload memory in RAM */
	struct path *path;
	struct engine_limits limits;
	struct engine_counters counters;

	/* Private members. */
	uint32_t rights_serial; /* number of calls of engine_export_rights() */
	struct engine_options options;
	/* by index in options.kinds: the kind's state in this engine */
	void *services[ENGINE_KINDS_MAX];
	uint32_t service_count;
	struct engine_export **exports; /* sorted by serial */
	uint32_t export_count;
	uint32_t export_room;
	uint64_t export_serial;
	/* Number of calls of engine_hold() without engine_release(), of stores that are being
	 * closed, of barrier checks, of watches being removed, and of engine_quiesce() flushes. */
	uint32_t closing_count;
	/* requests of struct engine_snapshot to which the store has not replied */
	uint32_t snapshot_requests;
	uint32_t part_count;
	struct list_node parts;	   /* of sessions of other engines, see part.h */
	struct list_node sessions; /* without parts */
	struct list_node handshakes;
	struct list_node lingering;
	/* Sessions with something to send, see flush_dirty(). The first list: sessions with one
	 * request in flight and none that waits for a slot. */
	struct list_node dirty_sparse;
	struct list_node dirty;
	struct list_node peers;
	struct engine_peer *accepted_peer; /* the peer of the connection that is being accepted */
	uint32_t inflight_without_export;
	struct turns blocked; /* sessions that wait for a slot for a request */
	struct rate_room rates;
	/* struct engine_identity: identities with sessions in this engine */
	struct list_node rate_identities;
	struct list_node clients; /* struct engine_client; those without sessions are at the end */
	uint32_t client_count;
	/* statistics of the clients for which the table has no room */
	struct engine_client other_clients;
	struct list_node nodes; /* struct engine_node: nodes that have had sessions */
	struct list_node ending;
	struct engine_review review; /* the latest review */
	struct list_node to_review;  /* sessions that the review has not checked yet */
	struct ring_message review_message;
	bool review_posted;
	bool reviewing; /* review.done() has to be called */
	uint32_t review_ended;
	bool limits_released; /* a request has ended since `blocked` was examined */
	struct ring_batch_end batch_end;
	struct ring_waiter waiter;
	/* value of counters.requests at which this part of the turn is full */
	uint64_t turn_requests_max;
	uint64_t turn_bytes;  /* bytes of replies that sessions have sent in this turn */
	uint64_t turn_enters; /* number of the ring's system calls at the end of the last turn */
	struct ring_op again; /* starts another turn, for work that was deferred */
	bool goes_on;	      /* the last turn has left work for this one */
	struct ring_op timer;
	uint64_t timer_due_ns; /* time at which the timer in flight expires */
	uint64_t stop_due_ns;  /* the earliest stop_deadline_ns of a stopping session */
	uint64_t idle_due_ns;  /* time of the next check for idle sessions */
	/* Log limits by listener, so that clients of one listener cannot suppress log lines about
	 * clients of others. */
	struct log_limit log_limits[ENGINE_LISTENERS_MAX];
	/* Log limits by listener, for lines about connects and disconnects. */
	struct log_limit connect_limits[ENGINE_LISTENERS_MAX];
	bool paused; /* see handover.h */
	bool draining;
	void (*drained)(void *context);
	void *drained_context;
};

GMB_MUST_CHECK int engine_create(
	const struct engine_options *options, struct engine **engine_out, struct error *error);
/* Frees the engine, when no session exists any more (after drained()). NULL is a no-op. */
void engine_destroy(struct engine *engine);
/* Marks the ring as in use: engine_destroy() waits until engine_release() was called as often as
 * engine_hold(). */
void engine_hold(struct engine *engine);
void engine_release(struct engine *engine);

/* Starts a session on the connection, and owns the connection even if this fails. If a limit is
 * reached, the connection is closed and counted. */
void engine_accept(struct engine *engine, const struct endpoint *endpoint);

/* Returns the state of a kind in the engine, see session_kind.create(). */
void *engine_service(const struct engine *engine, const struct session_kind *kind);

/* Adds this engine's counters to *sum. */
void engine_counters_add(const struct engine *engine, struct engine_counters *sum);

/*
 * Calls engine_export_rights() for all exports. Then calls may_stay() for each session with an
 * authenticated peer, and drains it if the result is false: one session per turn of the ring,
 * because a check can take a millisecond. If a review is in progress, the new one replaces it, and
 * done() is called only for the new one.
 */
void engine_review(struct engine *engine, const struct engine_review *review);

/* Call kind->listen() and kind->listen_end() of a kind that has them. door must exist until
 * engine_listen_end(). */
GMB_MUST_CHECK int engine_listen(struct engine *engine, const struct session_kind *kind,
	struct export_uri *uri, const struct engine_door *door, void **listener_out,
	struct error *error);
void engine_listen_end(struct engine *engine, const struct session_kind *kind, void *listener);

/* Drains all sessions, rejects new connections, and ends sessions that have not finished after
 * deadline_ns. drained() is called once, from the ring, when no session is left. */
void engine_drain(
	struct engine *engine, uint64_t deadline_ns, void (*drained)(void *context), void *context);

/* For use in src/engine only. */
/* Removes the session from the queues of its rates. */
void session_rates_leave(struct session *session);
/* Returns the size of this engine's quota for an export or identity whose memory limit is
 * memory_max bytes (0: no limit): the engine's share, but at least PATH_WINDOW_BYTES. */
uint64_t engine_quota_bytes(const struct engine *engine, uint64_t memory_max);
void engine_timer_arm(struct engine *engine);
/* Formats the session's peer for people: "127.0.0.1:4711 (psk alice)". Not escaped. */
void session_name(const struct session *session, char *out, size_t bytes);
/* Makes it possible to end the session by takeover_end(). The session keeps a reference to the
 * export until it ends. */
void session_takeover_enter(struct session *session, struct export *export);
/* Logs "client ... WHAT export ..." for a session that has chosen an export. */
void session_log(struct session *session, const char *what);
void engine_stop_session(struct session *session, uint64_t deadline_ns);
/* The export for which a session in its handshake has waited is removed: gives up the lease that
 * the session was to get, and the reference to the export. */
void session_leave_export(struct session *session);
/* Returns 0 if the store's barrier is open for the session, otherwise an error of
 * session_choose(). */
int engine_export_barrier(struct engine_export *entry, struct session *session);
/* Makes the session wait until neither the barrier is closed nor lease_waits(): kind->resume() is
 * then called, or earlier if the session is in the handshake and its time is nearly over. Returns
 * -EAGAIN, or -ETIMEDOUT if it has waited too long already. */
int engine_export_wait(struct engine_export *entry, struct session *session);
/* Calls lease_waits() soon, so that changes of leases are recorded. */
void engine_export_check(struct engine_export *entry);
/* Returns whether the session may start a change, or will be refused by session_admit(). false: it
 * has to wait for the lease; kind->resume() is called later. */
bool session_lease_admit(struct session *session);
/* Returns whether the store's barrier is closed, and makes the engine, unless it drains, check it
 * until it is open. */
bool engine_export_watch_barrier(struct engine_export *entry);
/* Returns the properties of the session's peer that rules are compared with; valid as long as the
 * session. */
struct access_subject session_subject(const struct session *session);
/* Ends one use of the entry. The last one frees the entry if the export was removed. */
void engine_export_leave(struct engine *engine, struct engine_export *entry);

/* --- on the path of every request ------------------------------------------------------------ */

/* Returns the rate limit for log lines about a session, which all sessions of a listener share. */
static inline struct log_limit *session_log_limit(const struct session *session)
{
	return &session->engine->log_limits[session->peer.listener];
}

static inline struct log_limit *session_connect_limit(const struct session *session)
{
	return &session->engine->connect_limits[session->peer.listener];
}

static inline void session_mark_dirty(struct session *session)
{
	if (!list_is_linked(&session->dirty_node)) {
		bool is_sparse =
			session->inflight_count <= 1 && !turn_is_waiting(&session->blocked_turn);

		list_push_back(is_sparse ? &session->engine->dirty_sparse : &session->engine->dirty,
			&session->dirty_node);
	}
}

/* Returns whether there is a slot for a request of the session. Each session owns one slot. All
 * other slots are shared. A session can occupy at most as many shared slots as are still free, and
 * all sessions of an export together at most ENGINE_EXPORT_FACTOR times as many. So some shared
 * slots always remain for the next session. */
static inline bool engine_has_place(const struct session *session)
{
	const struct engine *engine = session->engine;
	uint64_t inflight = engine->counters.inflight;
	uint64_t left =
		inflight < engine->limits.inflight_max ? engine->limits.inflight_max - inflight : 0;

	return session->inflight_count == 0 ||
	       (session->inflight_count < engine->limits.inflight_per_session_max &&
		       session->inflight_count <= left &&
		       *session->export_inflight_count < ENGINE_EXPORT_FACTOR * left);
}

/* Returns whether this turn has started its share of requests. If it started more, the completions
 * of all sessions would be delayed. */
static inline bool engine_turn_is_full(const struct engine *engine)
{
	return engine->counters.requests >= engine->turn_requests_max;
}

/* Returns whether the session may start a request. If not, kind->resume() is called when it can try
 * again. */
GMB_MUST_CHECK static inline bool engine_request_may(struct session *session)
{
	bool has_place = engine_has_place(session);

	if (unlikely(!has_place ||
		     (session->inflight_count > 0 && engine_turn_is_full(session->engine)))) {
		session->engine->counters.place_waits +=
			!has_place && !turn_is_waiting(&session->blocked_turn);
		/* A slot is free, but this turn has started its share of requests: the next turn
		 * tries the session again. */
		session->engine->limits_released |= has_place;
		turns_remove(&session->blocked_turn);
		turns_add(&session->engine->blocked, &session->blocked_turn);
		return false;
	}
	return true;
}

/* Returns how many bytes of a request count for the rates: data transferred between client, server
 * and disk, and zeroes that the disk has to write. A rejected read, a trim, and a zero that leaves
 * a hole count as 0 bytes. */
uint64_t engine_request_bytes(const struct session *session, enum store_op op, uint32_t flags,
	uint64_t offset, uint64_t length);

/* Returns whether the lease of the export, and the rates of the session's identity and export,
 * admit a request of this many bytes. If not, the request waits without a slot and without memory,
 * and kind->resume() is called when it can try again. op: STORE_OP_COUNT for no operation. All
 * calls before engine_request_begin() must be for the same request. */
GMB_MUST_CHECK static inline bool engine_request_may_move(
	struct session *session, enum store_op op, uint64_t bytes)
{
	if (unlikely(session->lease_checked) && (BIT(op) & STORE_CHANGES) != 0 &&
		!session->stopping && !session_lease_admit(session)) {
		return false;
	}
	return likely(!rate_is_limited(&session->rate)) || session->stopping ||
	       rate_ask(&session->rate, bytes);
}

/* Returns whether a received request waits for a slot, for a rate or for the lease. */
static inline bool session_waits(const struct session *session)
{
	return turn_is_waiting(&session->blocked_turn) || rate_waits(&session->rate) ||
	       list_is_linked(&session->barred_node);
}

/* Returns whether a received request waits for its rate or for the lease of the export. */
static inline bool session_waits_to_move(const struct session *session)
{
	return session_waits(session) && !turn_is_waiting(&session->blocked_turn);
}

/* Called before engine_request_begin() for a request that was found in a queue in memory, of which
 * one event of the ring announces many. */
static inline void engine_request_from_queue(struct session *session)
{
	ring_waiter_count_many(&session->engine->waiter);
}

/* Starts a request. engine_request_may() and engine_request_may_move() must both have returned
 * true. */
static inline void engine_request_begin(struct session *session)
{
	session->inflight_count++;
	(*session->export_inflight_count)++;
	session->engine->counters.inflight++;
	session->engine->counters.requests++;
	rate_begun(&session->rate);
}

static inline void engine_request_end(struct session *session)
{
	session->inflight_count--;
	(*session->export_inflight_count)--;
	session->engine->counters.inflight--;
	session->engine->limits_released = true;
}
