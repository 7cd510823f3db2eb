// SPDX-License-Identifier: Apache-2.0
/*
 * The state of one reactor that all its sessions share: ring, payload memory, data path, one store
 * queue per export, limits, wait policy and the work at the end of each batch.
 *
 *   endpoint ─▶ engine_accept() ─▶ kind->accept() ─▶ session_init()
 *
 *                accept              export chosen             the peer sends no more requests
 *   (new) ──▶ NEGOTIATING ──────▶ READY ──────────────────────▶ DRAINING
 *                 │                 │ │ drain() called            │ nothing in flight
 *                 │                 │ └──────────▶ LINGERING ◀────┘
 *                 │  peer violation,│                │ end of stream, deadline
 *                 │  socket error   ▼                ▼
 *                 └─────────────▶ TERMINATING ◀──────┘ ──▶ kind->abort()
 *                                                    │ kind->join(): nothing in flight
 *                                                    ▼ kind->close(): closed and freed
 *
 * A session kind implements one protocol. It is a table of functions, registered in
 * engine_options. The engine decides which session waits, in which order and for how long, and
 * ends sessions. The kind handles the wire format.
 *
 * Threading: the ring's thread. Ownership: the engine owns its memory, its queues and the services
 * of the kinds. A session belongs to its kind, which embeds struct session as its first member; it
 * exists until kind->close(). Errors: a negative errno and a sentence.
 */
#pragma once

#include "base/counter.h"
#include "base/export_uri.h"
#include "base/identity.h"
#include "base/list.h"
#include "base/log.h"
#include "base/place.h"
#include "engine/export.h"
#include "engine/limits.h"
#include "engine/rate_identity.h"
#include "engine/wait_policy.h"
#include "path/path.h"
#include "ring/ring.h"
#include "stream/stream.h"

struct engine;
struct session;
struct session_record;

/* --- accepted connections -------------------------------------------------------------------- */

enum { PEER_TEXT_BYTES = 80 };

/* The remote end of a connection. */
struct peer {
	uint64_t id;	   /* number of the connection, for messages; assigned by the acceptor */
	uint32_t listener; /* number of its listener, below ENGINE_LISTENERS_MAX */
	char text[PEER_TEXT_BYTES]; /* for messages: "127.0.0.1:4711" */
	int family;		    /* AF_INET, AF_INET6 or AF_UNIX; 0 = unknown */
	struct peer_identity identity;
	/* Number of connections with this identity, counted by the acceptor. NULL: not counted. */
	_Atomic uint32_t *connections;
	bool has_address;		       /* it is connected over a network */
	uint8_t address[ACCESS_ADDRESS_BYTES]; /* IPv6; an IPv4 address is mapped */
	bool has_credentials; /* a Unix socket: the kernel vouches for the credentials */
	struct stream_credentials credentials;
	/* Identity from the TLS handshake, set by session_identify(). NULL: no TLS. */
	struct identity *proved;
};

struct session_kind;
struct tls_policy;

struct endpoint {
	const struct session_kind *kind; /* protocol of the listener */
	int fd; /* a connected socket; -1: the kind accepted the connection */
	struct peer peer;
	struct tls_policy *tls; /* the listener's, which outlives its connections; NULL: off */
};

/*
 * Returns the rights of a session on an export, a set of enum engine_rights. This is the only
 * place that decides about rights. 0: the export is hidden from the session, see
 * session_export_find(). An export without rules grants every session all that the export allows.
 * The exceptions are kinds that map their peers' memory: on Unix sockets they serve only root and
 * the server's own user.
 */
uint32_t engine_rights(const struct session *session, const struct export *export);
/* As engine_rights(), as if the export had these rules; NULL: no rules. */
uint32_t engine_rights_with(
	const struct session *session, const struct export *export, struct access *access);

/* --- exports --------------------------------------------------------------------------------- */

/* One engine's entry for an export. */
struct engine_export {
	struct path_export path;
	struct export *export;
	struct rate_queue rate;
	struct path_quota memory;
	uint64_t serial; /* increases with every export that is added */

	/* Private. */
	struct engine *engine;
	struct store_watch watch;
	uint32_t session_count;	 /* and one while the store is asked for its barrier */
	uint32_t inflight_count; /* slots that its sessions use */
	bool prepared;		 /* not shown yet: no session can find it */
	bool removed;
	struct list_node barred; /* sessions that wait for the store's barrier */
	bool asking;
	struct ring_op barrier_op; /* the next check of the barrier, or the pause before it */
	enum store_barrier barrier_found;
	uint64_t barrier_pause_ns;
};

enum export_change {
	EXPORT_REMOVED,
	EXPORT_RESIZED, /* see store_size(); session->export_bytes has grown or is unchanged */
	EXPORT_RIGHTS,	/* session->rights have changed */
};

/* Creates the engine's queue on the store, which can open files on this thread, and takes a
 * reference to the export. -EEXIST: the name is in use. */
GMB_MUST_CHECK int engine_export_add(
	struct engine *engine, struct export *export, struct error *error);
/* engine_export_add() in two steps, of which only the first can fail. No session can find the
 * export before engine_export_show(), and another export can have its name until then. */
GMB_MUST_CHECK int engine_export_prepare(
	struct engine *engine, struct export *export, struct error *error);
void engine_export_show(struct engine *engine, const struct export *export);
/* Removes the export: new sessions can no longer find it. Its sessions are notified by
 * kind->export_changed(), and are ended if they have not finished after deadline_ns. The queue and
 * the reference are released with the last session. */
void engine_export_remove(struct engine *engine, struct export *export, uint64_t deadline_ns);
/* Notifies the sessions of an export that the size of its store has changed, even if the export
 * has been removed since. The engine calls this itself when the store reports a new size. */
void engine_export_resized(struct engine *engine, const struct export *export);
/*
 * Recomputes engine_rights() for each session of the export (NULL: of all exports), and notifies
 * those whose rights have changed. Requests in flight are finished. A copy is the exception: it
 * ends if its session lost the rights it needs. Sessions left without rights are drained, and
 * ended after ENGINE_RIGHTS_STOP_NS. Returns the number of sessions that start to drain.
 */
uint32_t engine_export_rights(struct engine *engine, const struct export *export);
/* Calls look() for each session that is neither stopping nor terminating. */
void engine_each_session(struct engine *engine,
	void (*look)(void *context, const struct session *session), void *context);
/* Applies a change of export->rate or ->memory_max to its sessions, including those that wait. */
void engine_export_limits_changed(struct engine *engine, const struct export *export);
/* Applies a change by rate_rules_set() or rate_rules_set_memory() to the sessions of
 * identities. */
void engine_identity_limits_changed(struct engine *engine);
/* Returns NULL if no export has that name. */
struct engine_export *engine_export_find(struct engine *engine, const void *name, uint32_t bytes);
/* Returns the first export whose serial is not lower, or NULL. For lists that are built across
 * several events. */
struct engine_export *engine_export_from(struct engine *engine, uint64_t serial);
/* Returns the engine's measurements of an export; NULL if the export was not added. */
const struct path_export *engine_export_measured(
	const struct engine *engine, const struct export *export);
/* Returns the entry of an export, or NULL. *hint_inout starts at 0: a caller that asks for all
 * exports in the order in which they were added then finds each one immediately. */
const struct engine_export *engine_export_entry(
	const struct engine *engine, const struct export *export, uint32_t *hint_inout);

/*
 * Destination of the connections that a kind accepts itself. take() applies the acceptor's counts
 * and limits, and passes the connection to the engine; it returns false if the connection was
 * rejected. address: the peer's, numeric, "HOST:PORT", IPv6 in brackets. Called on the engine's
 * thread.
 */
struct engine_door {
	bool (*take)(void *context, const struct session_kind *kind, const char *address);
	void *context;
};

/* --- session kinds --------------------------------------------------------------------------- */

/* State of a paused session, see session_kind.rest(). */
enum session_rest {
	SESSION_RESTS,		/* no request in flight, except one received in part */
	SESSION_IS_BUSY,	/* a request is in the store, or between the store and the peer */
	SESSION_WAITS_FOR_PEER, /* the peer has to receive replies */
};

struct session_kind {
	const char *name;
	const char *const *schemes; /* URI schemes; ends with NULL */
	bool keeps_messages;	    /* its sockets are SOCK_SEQPACKET, not SOCK_STREAM */
	bool maps_memory;	    /* of peers on Unix sockets, see engine_rights() */

	/* Creates and destroys the kind's state per engine. Both are optional: without them, the
	 * service is the engine itself. */
	int (*create)(struct engine *engine, void **service_out, struct error *error);
	void (*destroy)(void *service); /* called when no session exists */

	/* Listens on network addresses that are not sockets of ours. If uri->port is 0, sets it to
	 * the port that was chosen. Both are optional. */
	int (*listen)(void *service, struct export_uri *uri, const struct engine_door *door,
		void **listener_out, struct error *error);
	void (*listen_end)(void *service, void *listener);

	/* Starts a session and calls session_init() for it. A negative errno: the session was not
	 * created. */
	int (*accept)(void *service, const struct endpoint *endpoint);
	/* Called when the session might be able to continue: a request slot is free
	 * (engine_request_may()), a rate admits its request (engine_request_may_move()), the
	 * connection that it replaces has ended, or the barrier of its export has opened. */
	void (*resume)(struct session *session);
	/* Sends replies at the end of a batch, after session_mark_dirty(). alone: no other session
	 * is dirty. Adds the bytes of replies that the kernel has to copy to
	 * engine->turn_bytes. */
	void (*flush)(struct session *session, bool alone);
	/* session->stopping was set: finishes requests in flight, rejects later ones, then
	 * lingers. */
	void (*drain)(struct session *session);
	/* Called when the export has changed. EXPORT_REMOVED is followed by drain(). Optional. */
	void (*export_changed)(struct session *session, enum export_change change);
	/*
	 * Called when others wait for memory or slots and this session has made no progress for
	 * the stall timeout. True: it holds some and waits for its peer, so it will be ended.
	 * False: it holds none, or has just released all that it did not need. Optional: such a
	 * kind never holds any.
	 */
	bool (*stalled)(struct session *session);

	/* Returns whether the peer has acknowledged data since the last call. The engine calls it
	 * when it has seen no progress for a while. Optional: without it, sent data counts as
	 * received. */
	bool (*peer_receives)(struct session *session);

	/* The next five hand sessions over to another process (handover.h); a kind has all or none
	 * of them. Returns whether this session, which is READY, can be handed over. */
	bool (*can_hand_over)(const struct session *session);
	/* session->paused was set: stops starting requests, until resume(). */
	void (*pause)(struct session *session);
	/* Returns how close a paused session is to rest. */
	enum session_rest (*rest)(struct session *session);
	/* Called at rest. Writes the state that the other process needs into bytes, which has
	 * ENGINE_HANDOVER_BYTES_MAX bytes, and sets byte_count, the connected socket, and any
	 * longer data in later, which is borrowed until the session is released. */
	void (*hand_over)(struct session *session, uint8_t *bytes, struct session_record *record);
	/* As accept(), on a paused engine. -EPROTO: the state is invalid. */
	int (*adopt)(void *service, const struct endpoint *endpoint,
		const struct session_record *record);

	/* The session has become TERMINATING: cancels all its operations, so that they complete
	 * soon. If session->handed_over is set, it must not touch the connection. */
	void (*abort)(struct session *session);
	/* TERMINATING: returns true when no operation is in flight and no request is left. */
	bool (*join)(struct session *session);
	/* Closes the connection and frees the session, which has ended. */
	void (*close)(struct session *session);
};

/* --- sessions -------------------------------------------------------------------------------- */

enum session_state {
	SESSION_NEGOTIATING, /* waits for the peer to choose an export */
	SESSION_READY,	     /* waits for requests */
	SESSION_DRAINING,    /* reads no more requests; waits for those in flight */
	SESSION_LINGERING,   /* has shut down its sending side; waits for the peer to close */
	SESSION_TERMINATING, /* waits for its operations to complete */
	SESSION_STATE_COUNT
};

/* Progress of a session that has not chosen an export. When handshake slots are scarce, sessions
 * with the least progress are ended first. */
enum newcomer {
	NEWCOMER_SILENT, /* no byte received from the peer */
	NEWCOMER_SPOKEN,
	NEWCOMER_IDENTIFIED, /* by TLS, which cost the peer as much as the server */
	NEWCOMER_COUNT
};

/* The sessions of one peer. */
struct engine_peer {
	struct list_node node; /* in engine->peers */
	struct peer_identity identity;
	uint32_t session_count;
	uint32_t handshake_count;
	struct list_node newcomers[NEWCOMER_COUNT]; /* by progress, oldest first */
	struct path_peer path;
	struct turn_group blocked;
};

enum { ENGINE_CLIENT_NAME_BYTES = IDENTITY_TEXT_BYTES };

/* The sessions of one client. Sessions belong to one client if they have the same proved identity,
 * or without one the same user or host. When the table is full, a new client replaces the one that
 * has had no sessions for the longest time. */
struct engine_client {
	struct list_node node; /* in engine->clients */
	struct takeover_principal principal;
	/* Escaped: "psk alice", "CN=host-a,O=Example", "uid 1000", "10.1.0.7", "2001:db8::/64". */
	char name[ENGINE_CLIENT_NAME_BYTES];
	uint32_t session_count;
	struct path_stats *operations[STORE_OP_COUNT]; /* see path_client.stats */
};

/* This engine's sessions of one identity that has limits. */
struct engine_identity {
	struct list_node node; /* in engine->rate_identities */
	struct rate_identity *identity;
	uint32_t session_count;
	struct rate_queue rate;
	struct path_quota memory;
};

struct session {
	const struct session_kind *kind;
	struct engine *engine;
	struct peer peer;
	struct tls_policy *tls;	  /* as in its endpoint */
	enum session_state state; /* changed by session_set_state() */
	bool stopping;		  /* drain() was called */
	bool handing_over;	  /* to be handed over to another process; see handover.h */
	bool paused;		  /* neither starts requests nor receives data */
	bool was_told;		  /* its state was sent to that process */
	bool handed_over;	  /* the other process owns the connection */
	bool was_ready;		  /* the log contains that the client uses the export */
	struct export *export;	  /* NULL until session_choose() */
	struct path_export *path_export;
	struct path_client client; /* accounts for the memory of its requests */
	uint32_t rights;	   /* enum engine_rights; can change, see EXPORT_RIGHTS */
	uint64_t export_bytes;	   /* size of the export; can change, see EXPORT_RESIZED */
	uint32_t inflight_count;   /* counted by engine_request_begin() and engine_request_end() */
	/* Last time the network made progress, or was first asked to. Set by the kind. */
	uint64_t progress_ns;
	struct takeover_member member;
	struct rate_member rate;

	/* Private. */
	struct engine_peer *of_peer;
	struct engine_export *chosen;
	uint32_t *export_inflight_count; /* of chosen, or the count of sessions without an export */
	struct engine_identity *of_identity; /* NULL: no rate rule matches it */
	struct engine_client *of_client;     /* NULL until session_choose() */
	struct export *takeover_export;	     /* whose takeover group member belongs to */
	uint64_t deadline_ns;		     /* of the handshake, or of lingering */
	uint64_t stop_deadline_ns;
	struct list_node node;		 /* in engine->sessions */
	struct list_node deadline_node;	 /* in engine->handshakes or ->lingering, oldest first */
	struct list_node handshake_node; /* in of_peer->newcomers */
	enum newcomer newcomer;
	struct list_node dirty_node;  /* in engine->dirty */
	struct turn blocked_turn;     /* in engine->blocked */
	struct list_node ending_node; /* in engine->ending */
	struct list_node barred_node; /* in engine_export.barred */
	struct list_node review_node; /* in engine->to_review */
};

/* Called by kind->accept(), for a zeroed session. The state becomes NEGOTIATING. */
void session_init(struct session *session, struct engine *engine, const struct endpoint *endpoint);
/* NEGOTIATING: sets the identity that TLS has proved, and takes a reference to it. Rights must be
 * queried after this call. A takeover name given before it is discarded. */
void session_identify(struct session *session, struct identity *identity);
/* Returns an export as this session sees it, or NULL. An export on which the session has no right
 * does not exist for it. Kinds call this instead of engine_export_find(), so that peers cannot
 * distinguish hidden exports from missing ones. A hidden export is logged for the operator. */
struct engine_export *session_export_find(
	struct session *session, const void *name, uint32_t bytes);
/* Returns a clause that explains why the name was not found, or "". */
const char *session_export_lack(struct session *session, const void *name, uint32_t bytes);
/* Returns the first visible export whose serial is not lower, or NULL. For lists that are built
 * across several events. Serials reveal hidden exports, so they must not be sent to the peer. */
struct engine_export *session_export_from(struct session *session, uint64_t serial);
/* NEGOTIATING: data has arrived from the peer. Further calls have no effect. */
void session_has_spoken(struct session *session);
/* Asserts that the edge is allowed. TERMINATING and LINGERING have their own functions. */
void session_set_state(struct session *session, enum session_state state);
/*
 * Makes the session use this export from now on. Errors:
 * - -ENOENT: the export has been hidden from the session since it was found.
 * - -EBUSY: the export has reached its connection limit.
 * - -EUSERS: the peer's identity has reached its connection limit.
 * - -ENOMEM.
 * - -EAGAIN: operations of a killed server might still reach the disk (store_barrier()), or the
 *   export that this one replaces is still in use (export_replaces()). kind->resume() is called
 *   when the caller should retry.
 * - -ETIMEDOUT: as -EAGAIN, but the session has waited nearly as long as the handshake timeout.
 */
#define ENGINE_BARRIER_TEXT "earlier operations on the disk are still in progress"
GMB_MUST_CHECK int session_choose(struct session *session, struct engine_export *entry);
/* Returns the reason for such an error, for the peer: a sentence without its full stop. */
const char *session_choose_text(int result);
/* Returns why a stopping session accepts no requests, for the peer: a sentence without its full
 * stop. */
#define ENGINE_SNAPSHOT_DELETED_TEXT EXPORT_URI_SNAPSHOT_DELETED_TEXT
const char *session_stop_text(const struct session *session);
/*
 * Checks whether a request with this op, flags, offset and length is permitted. 0: it is.
 * Otherwise:
 * - -EPERM: the export is read-only.
 * - -EOVERFLOW: it is longer than one reply can be.
 * - -ENOSPC: a write, zero or copy extends past the end.
 * - -EINVAL: another request extends past the end, or block status of no bytes.
 *
 * *text is the reason, a sentence without its full stop. A request of length 0 that is neither a
 * flush nor block status has succeeded with this check alone. The end is the current size of the
 * disk.
 */
GMB_MUST_CHECK int session_admit(
	struct session *session, const struct path_request *request, const char **text);

/* Reason why a TLS handshake failed. */
enum engine_tls_failure {
	ENGINE_TLS_CLIENT_REFUSED, /* the server rejected the client's certificate or key */
	ENGINE_TLS_SERVER_REFUSED, /* the client rejected the server's credentials */
	ENGINE_TLS_PROTOCOL,	   /* nothing in common, or not TLS */
	ENGINE_TLS_CONNECTION,	   /* the connection ended, or the time limit expired */
	ENGINE_TLS_OTHER,	   /* out of memory or threads */
	ENGINE_TLS_FAILURE_COUNT
};

/* Ends the session. reason: for the log, or NULL for an expected end. It can be called anywhere
 * and more than once, because the session is freed later, at the end of a batch. */
void session_terminate(struct session *session, const char *reason);
/* Ends the session because its TLS handshake failed. */
void session_tls_failed(struct session *session, enum engine_tls_failure why, const char *reason);
/* All requests are answered and the sending side is shut down: waits a limited time for the
 * peer. */
void session_linger(struct session *session);
/* See takeover.h. The session holds the export until it ends. */
void session_takeover_join(
	struct session *session, struct export *export, const uint8_t *token, uint32_t bytes);
/* Returns true if a connection with this token is being ended; kind->resume() is called after its
 * end. */
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
	uint64_t sessions_failed;  /* ended by a peer violation or a socket error */
	uint64_t sessions_idle;	   /* ended by the idle timeout */
	uint64_t sessions_adopted; /* the part of sessions_accepted from another process */
	uint64_t requests;
	uint64_t place_waits; /* requests that had to wait for a slot */
	/* Of identities that have no sessions left; see engine_counters_add(). */
	uint64_t identity_memory_waits;
	uint64_t errors;	/* requests answered with an error; counted by the kind */
	uint64_t bytes_read;	/* counted by the kind */
	uint64_t bytes_written; /* counted by the kind */
	uint64_t bytes_copied[COPY_METHOD_COUNT];
	uint64_t push_tickets;	/* created; the kind counts these and all push counters */
	uint64_t push_refusals; /* presented tickets that are not valid */
	uint64_t pushes_done;
	uint64_t pushes_failed;
	uint64_t sessions;   /* gauge */
	uint64_t handshakes; /* gauge */
	uint64_t inflight;   /* gauge */
	/* The rest is counted by the kind. */
	uint64_t tls_handshakes; /* succeeded */
	uint64_t tls_failed;
	uint64_t tls_failures[ENGINE_TLS_FAILURE_COUNT]; /* the same, by reason */
	uint64_t tls_refused;				 /* rejected because no slot was free */
	uint64_t tls_upgrading;				 /* gauge: in progress or waiting */
	uint64_t tls_sessions;				 /* gauge */
	uint64_t tls_sessions_1_2;			 /* gauge: the part with TLS 1.2 */
	uint64_t tls_sessions_kernel;			 /* gauge: the part with kernel TLS */
};

extern const struct counter_table engine_counter_table; /* of struct engine_counters */

struct engine_review {
	/* Returns whether a session with a proved identity is still permitted. */
	bool (*may_stay)(void *context, const struct session *session);
	/* Called when all sessions were checked. ended: sessions that are no longer permitted or
	 * have lost all rights, since the last call of done(). */
	void (*done)(void *context, uint64_t number, uint32_t ended);
	void *context;
	uint64_t number;      /* never decreases from review to review */
	uint64_t deadline_ns; /* for the requests in flight of rejected sessions */
};

struct engine_options {
	struct ring *ring;
	const struct session_kind *const *kinds; /* borrowed while the engine exists */
	uint32_t kind_count;			 /* 1 to ENGINE_KINDS_MAX */
	struct engine_limits limits;
	/* Device memory for the payload of exports that request it (store_info.read_device).
	 * Borrowed while the engine exists; NULL: none. */
	struct arena *device;
	bool device_waits; /* see path_options */
	/* Limits of identities. Borrowed while the engine exists; NULL: none. */
	struct rate_rules *rate_rules;
	/* Destinations that kinds may connect to on behalf of a peer. Borrowed while the engine
	 * exists. */
	const struct place *places;
	uint32_t place_count;
	/* Distinguishes this server process from all others, for clients with several connections.
	 * Zeroes: unknown. */
	uint8_t instance[ENGINE_INSTANCE_BYTES];
	/* Called exactly once per engine_accept(), when the endpoint is closed; can be NULL. */
	void (*endpoint_closed)(void *context, const struct peer *peer);
	void *context;
};

struct engine {
	/* Read by session kinds. */
	struct ring *ring;
	struct arena *arena; /* RAM */
	struct path *path;
	struct engine_limits limits;
	struct engine_counters counters;

	/* Private. */
	uint32_t rights_serial; /* counts engine_export_rights() */
	struct engine_options options;
	void *services[ENGINE_KINDS_MAX]; /* same index as options.kinds */
	uint32_t service_count;
	struct engine_export **exports; /* by ascending serial */
	uint32_t export_count;
	uint32_t export_room;
	uint64_t export_serial;
	/* Exports whose store is being closed or asked for its barrier, and engine_hold()
	 * calls. */
	uint32_t closing_count;
	uint32_t snapshot_requests; /* of engine_snapshot, that the store has not answered */
	struct list_node sessions;
	struct list_node handshakes;
	struct list_node lingering;
	struct list_node dirty;
	struct list_node peers;
	struct engine_peer *accepted_peer; /* of the session that is being started */
	uint32_t inflight_without_export;
	struct turns blocked; /* sessions that wait for a slot */
	struct rate_room rates;
	struct list_node rate_identities; /* struct engine_identity, those with sessions here */
	struct list_node clients;	  /* struct engine_client, those without sessions last */
	uint32_t client_count;
	struct engine_client other_clients; /* all clients beyond the table's limit */
	struct list_node ending;
	struct engine_review review; /* the latest one */
	struct list_node to_review;  /* sessions that it has not checked */
	struct ring_message review_message;
	bool review_posted;
	bool reviewing; /* review.done() has not been called */
	uint32_t review_ended;
	bool limits_released; /* a request ended since blocked was last examined */
	struct ring_batch_end batch_end;
	struct wait_policy wait_policy;
	enum wait_way wait_way;	    /* as set on the ring */
	uint64_t turn_requests;	    /* counters.requests at the end of the last turn */
	uint64_t turn_requests_max; /* limit of counters.requests in this part of the turn */
	uint64_t turn_bytes;	    /* of replies, sent since the last turn started to send */
	struct ring_op again;	    /* starts another turn for work that was put off */
	struct ring_op timer;
	uint64_t timer_due_ns; /* of the timer in flight */
	uint64_t stop_due_ns;  /* the earliest deadline of a session that must end */
	uint64_t idle_due_ns;  /* the next check for idle sessions */
	/* One per listener, so that clients at one address cannot suppress lines about the
	 * others. */
	struct log_limit log_limits[ENGINE_LISTENERS_MAX];
	/* Lines about connects and disconnects. */
	struct log_limit connect_limits[ENGINE_LISTENERS_MAX];
	bool paused; /* see handover.h */
	bool draining;
	void (*drained)(void *context);
	void *drained_context;
};

GMB_MUST_CHECK int engine_create(
	const struct engine_options *options, struct engine **engine_out, struct error *error);
/* No session exists any more (after drained()). Releases the exports. NULL is a no-op. */
void engine_destroy(struct engine *engine);
/* Keeps the ring in use: engine_destroy() waits until each call has been matched by one of
 * engine_release(). */
void engine_hold(struct engine *engine);
void engine_release(struct engine *engine);

/* Takes the endpoint on every path. An endpoint that exceeds a limit is closed and counted. */
void engine_accept(struct engine *engine, const struct endpoint *endpoint);

/* Adds the engine's current counters to sum. */
void engine_counters_add(const struct engine *engine, struct engine_counters *sum);

/*
 * Calls engine_export_rights() for all exports. Then checks with may_stay() whether each session
 * is still permitted, and drains those that are not: one session per turn of the ring, because a
 * check can take a millisecond. A session whose peer is not identified yet is skipped. If a review
 * is in progress, it continues as the new one, and finishes with it.
 */
void engine_review(struct engine *engine, const struct engine_review *review);

/* Calls kind->listen() and kind->listen_end(), of a kind that has them. The door is borrowed until
 * engine_listen_end(). */
GMB_MUST_CHECK int engine_listen(struct engine *engine, const struct session_kind *kind,
	struct export_uri *uri, const struct engine_door *door, void **listener_out,
	struct error *error);
void engine_listen_end(struct engine *engine, const struct session_kind *kind, void *listener);

/* Drains every session. drained() is called once, from the ring, when none is left. Sessions that
 * have not finished after deadline_ns are ended. New connections are rejected. */
void engine_drain(
	struct engine *engine, uint64_t deadline_ns, void (*drained)(void *context), void *context);

/* Private to src/engine. */
/* Removes the session from its rates. */
void session_rates_leave(struct session *session);
/* Adds the session to its client, from session_choose() until the session ends. */
void engine_client_join(struct session *session, const struct takeover_principal *principal);
void engine_client_leave(struct session *session);
void engine_clients_init(struct engine *engine);
/* Called when no session exists. */
void engine_clients_fini(struct engine *engine);
/* Returns this engine's part of a limit of memory_max bytes of an export or identity (0: no
 * limit), for a quota: at least PATH_WINDOW_BYTES. */
uint64_t engine_quota_bytes(const struct engine *engine, uint64_t memory_max);
void engine_timer_arm(struct engine *engine);
/* Logs a line about a session that has chosen an export: "client ... WHAT export ...". */
void session_log(struct session *session, const char *what);
void engine_stop_session(struct session *session, uint64_t deadline_ns);
/* Returns 0 if the store's barrier does not block the session; else see session_choose(). */
int engine_export_barrier(struct engine_export *entry, struct session *session);
/* Drops one use of the entry. The last one frees it if the export was removed. */
void engine_export_leave(struct engine *engine, struct engine_export *entry);

/* --- on the path of every request ------------------------------------------------------------ */

/* Rate limit of log lines about a session. All sessions of a listener share it. */
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
		list_push_back(&session->engine->dirty, &session->dirty_node);
	}
}

/* Returns whether a slot is free for a request. A session owns one slot. Of the shared ones it
 * gets at most as many as are free, and its export ENGINE_EXPORT_FACTOR times as many, so some
 * always remain for the next session. */
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

/* Returns true when this turn has started its share of requests. More work for a few sessions
 * would delay the completions of all others. */
static inline bool engine_turn_is_full(const struct engine *engine)
{
	return engine->counters.requests >= engine->turn_requests_max;
}

/* Returns whether the session may start a request. False: a limit is reached; kind->resume() is
 * called when the caller should retry. */
GMB_MUST_CHECK static inline bool engine_request_may(struct session *session)
{
	bool has_place = engine_has_place(session);

	if (unlikely(!has_place ||
		     (session->inflight_count > 0 && engine_turn_is_full(session->engine)))) {
		session->engine->counters.place_waits +=
			!has_place && !turn_is_waiting(&session->blocked_turn);
		session->engine->limits_released |= has_place; /* examined again in the next turn */
		turns_remove(&session->blocked_turn);
		turns_add(&session->engine->blocked, &session->blocked_turn);
		return false;
	}
	return true;
}

/* Returns the bytes of a request that count for the rates: the data that moves between client,
 * server and disk. A rejected read, a trim and a zero that leaves a hole move nothing. Zeroes that
 * the disk has to write count. */
uint64_t engine_request_bytes(const struct session *session, enum store_op op, uint32_t flags,
	uint64_t offset, uint64_t length);

/* Returns whether the rates of the session's identity and export admit a request that moves this
 * many bytes. False: it waits without a slot and without memory, and kind->resume() is called at
 * its turn. Until engine_request_begin(), all calls must be about the same request. */
GMB_MUST_CHECK static inline bool engine_request_may_move(struct session *session, uint64_t bytes)
{
	return likely(!rate_is_limited(&session->rate)) || session->stopping ||
	       rate_ask(&session->rate, bytes);
}

/* Returns whether a received request waits for a slot or for a rate. */
static inline bool session_waits(const struct session *session)
{
	return turn_is_waiting(&session->blocked_turn) || rate_waits(&session->rate);
}

/* Called after engine_request_may() and engine_request_may_move() have both returned true. */
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
