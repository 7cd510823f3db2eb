// SPDX-License-Identifier: Apache-2.0
/*
 * What one reactor has once and all its sessions share: ring, payload memory, data path, a store
 * queue per export, the limits, the wait policy and the end of every batch.
 *
 *   endpoint ─▶ engine_accept() ─▶ kind->accept() ─▶ session_init()
 *
 *                accept              the export is chosen       the peer asks nothing more
 *   (new) ──▶ NEGOTIATING ──────▶ READY ──────────────────────▶ DRAINING
 *                 │                 │ │ told to drain                │ nothing in flight
 *                 │                 │ └──────────▶ LINGERING ◀────────┘
 *                 │  peer violation, │                │ end of stream, deadline
 *                 │  socket error    ▼                ▼
 *                 └──────────────▶ TERMINATING ◀──────┘ ──▶ kind->abort()
 *                                                     │ kind->join(): nothing in flight
 *                                                     ▼ kind->close(): closed and freed
 *
 * A session kind is one protocol: a table of functions, registered in engine_options. The engine
 * knows who waits, in which order, for how long, and ends sessions; the kind knows the wire format.
 *
 * Threading: the ring's thread. Ownership: the engine owns its memory, queues and services of the
 * kinds; a session belongs to its kind, which embeds struct session as its first member, and stays
 * until kind->close(). Errors: a negative errno and a sentence.
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

/* --- what was accepted ----------------------------------------------------------------------- */

enum { PEER_TEXT_BYTES = 80 };

/* Who is at the other end. */
struct peer {
	uint64_t id;		    /* of the connection, for messages; counted by the acceptor */
	uint32_t listener;	    /* its number, below ENGINE_LISTENERS_MAX */
	char text[PEER_TEXT_BYTES]; /* for messages: "127.0.0.1:4711" */
	int family;		    /* AF_INET, AF_INET6 or AF_UNIX; 0 = unknown */
	struct peer_identity identity;
	/* How many connections that identity has; who accepts counts. NULL: nobody does. */
	_Atomic uint32_t *connections;
	bool has_address;		       /* of a network */
	uint8_t address[ACCESS_ADDRESS_BYTES]; /* IPv6; IPv4 is mapped */
	bool has_credentials; /* a Unix socket, whose other end the kernel vouches for */
	struct stream_credentials credentials;
	/* NULL: no TLS. Set by session_identify(). */
	struct identity *proved;
};

struct session_kind;
struct tls_policy;

struct endpoint {
	const struct session_kind *kind; /* which protocol is spoken there */
	int fd; /* a connected socket; -1: the kind has accepted it by itself */
	struct peer peer;
	struct tls_policy *tls; /* of the listener, which outlives its connections; NULL: off */
};

/*
 * What a session of that kind may do with an export: a set of enum engine_rights. The one place
 * that decides. 0: the export is hidden from it, see session_export_find(). Without rules,
 * everybody who gets here may do what the export allows; but kinds that map the memory of their
 * peers serve only root and our own user on Unix sockets.
 */
uint32_t engine_rights(const struct session *session, const struct export *export);
/* The same if the export had these rules; NULL: none. */
uint32_t engine_rights_with(
	const struct session *session, const struct export *export, struct access *access);

/* --- exports --------------------------------------------------------------------------------- */

/* An export as one engine sees it. */
struct engine_export {
	struct path_export path;
	struct export *export;
	struct rate_queue rate;
	struct path_quota memory;
	uint64_t serial; /* grows with every addition */

	/* Private. */
	struct engine *engine;
	struct store_watch watch;
	uint32_t session_count;	 /* and one while the store is asked for its barrier */
	uint32_t inflight_count; /* places of its sessions */
	bool prepared;		 /* nobody can find it yet */
	bool removed;
	struct list_node barred; /* sessions that wait for that barrier */
	bool asking;
	struct ring_op barrier_op; /* the next look at it, or the pause before */
	enum store_barrier barrier_found;
	uint64_t barrier_pause_ns;
};

enum export_change {
	EXPORT_REMOVED,
	EXPORT_RESIZED, /* see store_size(); session->export_bytes has grown, or stays */
	EXPORT_RIGHTS,	/* session->rights have changed */
};

/* Creates the engine's queue on the store, which may open its files on this thread, and takes a
 * reference. -EEXIST: the name is in use. */
GMB_MUST_CHECK int engine_export_add(
	struct engine *engine, struct export *export, struct error *error);
/* The same in two steps, of which only the first can fail: until it is shown, nobody can find it,
 * and another one may have its name. */
GMB_MUST_CHECK int engine_export_prepare(
	struct engine *engine, struct export *export, struct error *error);
void engine_export_show(struct engine *engine, const struct export *export);
/* New sessions cannot find it any more; its sessions learn it by kind->export_changed(), and are
 * ended when they have not finished after deadline_ns. Queue and reference go with the last one. */
void engine_export_remove(struct engine *engine, struct export *export, uint64_t deadline_ns);
/* The size of its store has changed: tells its sessions, also when it was removed meanwhile. Called
 * by itself when the store says so. */
void engine_export_resized(struct engine *engine, const struct export *export);
/* engine_rights() may give another answer than before: asks again for each session of the export
 * (NULL: of all), and tells those whose rights have changed. Requests that have begun are finished,
 * but for copies, which end when they may not go on.
 * Sessions without any right are drained, and ended after ENGINE_RIGHTS_STOP_NS: so many. */
uint32_t engine_export_rights(struct engine *engine, const struct export *export);
/* Calls look for each session that is not about to end. */
void engine_each_session(struct engine *engine,
	void (*look)(void *context, const struct session *session), void *context);
/* export->rate or ->memory_max was set: its sessions go by it, those that wait included. */
void engine_export_limits_changed(struct engine *engine, const struct export *export);
/* rate_rules_set() or rate_rules_set_memory() was called: the same for sessions of identities. */
void engine_identity_limits_changed(struct engine *engine);
/* NULL: no export has that name. */
struct engine_export *engine_export_find(struct engine *engine, const void *name, uint32_t bytes);
/* The first export whose serial is not lower, or NULL: to list them across other events. */
struct engine_export *engine_export_from(struct engine *engine, uint64_t serial);
/* What this engine has measured on an export that was added; NULL: it was not. */
const struct path_export *engine_export_measured(
	const struct engine *engine, const struct export *export);
/* Its entry, or NULL. *hint_inout is 0 at first: who asks for all exports in the order in which
 * they were added finds each at once. */
const struct engine_export *engine_export_entry(
	const struct engine *engine, const struct export *export, uint32_t *hint_inout);

/* Where the connections go that a kind accepts by itself. take() counts and refuses them like all
 * others and gives them to the engine: false when it did not. address: of the peer, "HOST:PORT",
 * numeric, IPv6 in brackets. On the engine's thread. */
struct engine_door {
	bool (*take)(void *context, const struct session_kind *kind, const char *address);
	void *context;
};

/* --- session kinds --------------------------------------------------------------------------- */

/* See session_kind.rest(). */
enum session_rest {
	SESSION_RESTS,		/* nothing is in flight but what has come of one request */
	SESSION_IS_BUSY,	/* a request is in the store, or on its way between both */
	SESSION_WAITS_FOR_PEER, /* which has to receive */
};

struct session_kind {
	const char *name;
	const char *const *schemes; /* of URIs; ends with NULL */
	bool keeps_messages;	    /* its sockets are SOCK_SEQPACKET, not SOCK_STREAM */
	bool maps_memory;	    /* of peers on Unix sockets, see engine_rights() */

	/* What the kind needs once per engine. Optional, both: the service is the engine itself.
	 */
	int (*create)(struct engine *engine, void **service_out, struct error *error);
	void (*destroy)(void *service); /* no session exists */

	/* For addresses of the network that the kind listens on by itself, since they are no
	 * sockets of ours. Sets uri->port to the port that was chosen where it was 0. Optional,
	 * both. */
	int (*listen)(void *service, struct export_uri *uri, const struct engine_door *door,
		void **listener_out, struct error *error);
	void (*listen_end)(void *service, void *listener);

	/* Begins a session, and calls session_init() for it. A negative errno: nothing was kept. */
	int (*accept)(void *service, const struct endpoint *endpoint);
	/* What the session waited for may be there: a place for a request (engine_request_may()),
	 * its turn by a rate (engine_request_may_move()), the end of a connection that it replaces,
	 * or an export whose barrier has opened. */
	void (*resume)(struct session *session);
	/* The end of a batch, after session_mark_dirty(). alone: no other session is dirty. Adds
	 * the bytes of replies that the kernel has to copy to engine->turn_bytes. */
	void (*flush)(struct session *session, bool alone);
	/* session->stopping was set: finish what is in flight, refuse what comes later, linger. */
	void (*drain)(struct session *session);
	/* Its export has changed. After EXPORT_REMOVED drain() is called, too. Optional. */
	void (*export_changed)(struct session *session, enum export_change change);
	/* Others wait for memory or places, and this session has made no progress for the stall
	 * timeout. True: it holds some, and waits for its peer; it will be ended. False: it holds
	 * none, or has just released what it need not keep. Optional: it never holds any. */
	bool (*stalled)(struct session *session);

	/* The engine has seen nothing move for a while: whether the peer has acknowledged more of
	 * what was sent since the last call. Optional: what was sent has arrived. */
	bool (*peer_receives)(struct session *session);

	/* For sessions that go to another process (pass.h); all five or none. Whether this one can
	 * be passed. READY. */
	bool (*can_pass)(const struct session *session);
	/* session->paused was set: begins to come to rest, until resume(). */
	void (*pause)(struct session *session);
	/* Paused: how far it is. */
	enum session_rest (*rest)(struct session *session);
	/* At rest: what the other process needs to know, in bytes, of ENGINE_PASS_BYTES_MAX; sets
	 * byte_count, the connected socket, and what is longer, borrowed until the session moves.
	 */
	void (*pass)(struct session *session, uint8_t *bytes, struct session_record *record);
	/* As accept(), for a paused engine. -EPROTO: the state makes no sense. */
	int (*adopt)(void *service, const struct endpoint *endpoint,
		const struct session_record *record);

	/* The session has become TERMINATING: make all operations of its come back soon. After
	 * session->passed, without touching its connection. */
	void (*abort)(struct session *session);
	/* TERMINATING: true when nothing of it is in flight and no request is left. */
	bool (*join)(struct session *session);
	/* It has ended: closes the connection and frees the session. */
	void (*close)(struct session *session);
};

/* --- sessions -------------------------------------------------------------------------------- */

enum session_state {
	SESSION_NEGOTIATING, /* waits for the choice of an export */
	SESSION_READY,	     /* waits for requests */
	SESSION_DRAINING,    /* reads no more; waits for what is in flight to be answered */
	SESSION_LINGERING,   /* has said goodbye; waits for the peer's */
	SESSION_TERMINATING, /* waits for operations to come back */
	SESSION_STATE_COUNT
};

/* How far a session is that has not chosen an export. When places for handshakes are scarce, those
 * who have done less go first. */
enum newcomer {
	NEWCOMER_SILENT, /* not a byte has come from the peer */
	NEWCOMER_SPOKEN,
	NEWCOMER_IDENTIFIED, /* by TLS, which has cost the peer as much as us */
	NEWCOMER_COUNT
};

/* The sessions of one peer. */
struct engine_peer {
	struct list_node node; /* in engine->peers */
	struct peer_identity identity;
	uint32_t session_count;
	uint32_t handshake_count;
	struct list_node newcomers[NEWCOMER_COUNT]; /* oldest first */
	struct path_peer path;
	struct turn_group blocked;
};

enum { ENGINE_CLIENT_NAME_BYTES = IDENTITY_TEXT_BYTES };

/* The sessions of one client: what has proved to be the same, else the same user or host. Of those
 * that have none, the one that has been without for the longest time makes room for a new one. */
struct engine_client {
	struct list_node node; /* in engine->clients */
	struct takeover_principal principal;
	/* "psk alice", "CN=host-a,O=Example", "uid 1000", "10.1.0.7", "2001:db8::/64"; escaped. */
	char name[ENGINE_CLIENT_NAME_BYTES];
	uint32_t session_count;
	struct path_stats *operations[STORE_OP_COUNT]; /* see path_client.stats */
};

/* The sessions of one identity that has limits. */
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
	enum session_state state; /* session_set_state() */
	bool stopping;		  /* drain() was called */
	bool passing;		  /* it goes to another process; see pass.h */
	bool paused;		  /* begins and receives nothing */
	bool was_told;		  /* to that process */
	bool passed;		  /* its connection is another process's */
	bool was_ready;		  /* the log says that its client uses the export */
	struct export *export;	  /* NULL until session_choose() */
	struct path_export *path_export;
	struct path_client client; /* of its requests */
	uint32_t rights;	   /* enum engine_rights; may change, see EXPORT_RIGHTS */
	uint64_t export_bytes;	   /* its size; may change, see EXPORT_RESIZED */
	uint32_t inflight_count;   /* engine_request_begin() */
	uint64_t progress_ns;	   /* last time the network moved, or was first asked to; the kind's
				    * to set */
	struct takeover_member member;
	struct rate_member rate;

	/* Private. */
	struct engine_peer *of_peer;
	struct engine_export *chosen;
	uint32_t *export_inflight_count;     /* of chosen, or of the sessions without */
	struct engine_identity *of_identity; /* NULL: no rule of rates holds for it */
	struct engine_client *of_client;     /* NULL until session_choose() */
	struct export *takeover_export;	     /* whose group member belongs to */
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

/* From kind->accept(), for memory that is all zero. The state is NEGOTIATING. */
void session_init(struct session *session, struct engine *engine, const struct endpoint *endpoint);
/* NEGOTIATING: TLS has told who the peer is; rights are asked for afterwards, and a name for
 * takeovers that was given before is forgotten. Takes a reference. */
void session_identify(struct session *session, struct identity *identity);
/*
 * The exports as this session sees them: one on which it has no right does not exist for it, and
 * kinds must give it no other answer, so they ask here and not the engine. NULL: there is none.
 * The first logs for the operator what it hides.
 */
struct engine_export *session_export_find(
	struct session *session, const void *name, uint32_t bytes);
/* Of a name that was not found: a clause that says why, or "". */
const char *session_export_lack(struct session *session, const void *name, uint32_t bytes);
/* The first export whose serial is not lower, to list them across other events. Serials tell of
 * hidden exports: they are not for the peer. */
struct engine_export *session_export_from(struct session *session, uint64_t serial);
/* NEGOTIATING: something has come from the peer. More than once does no harm. */
void session_has_spoken(struct session *session);
/* Asserts the edge. TERMINATING and LINGERING have functions of their own. */
void session_set_state(struct session *session, enum session_state state);
/*
 * The session works on this export from now on. -ENOENT: it is hidden from it since it was found.
 * -EBUSY: the export's limit on connections; -EUSERS: that of the peer's identity; -ENOMEM. While
 * operations of a server that was killed may still land in its disk (store_barrier()), or the
 * export that it replaces is in use (export_replaces()): -EAGAIN, and
 * kind->resume() is called when it is worth to try again; or -ETIMEDOUT when the session has waited
 * for nearly as long as the handshake may take.
 */
#define ENGINE_BARRIER_TEXT "operations that were begun before are still under way on the disk"
GMB_MUST_CHECK int session_choose(struct session *session, struct engine_export *entry);
/* Why not, as a sentence for the peer without its full stop. */
const char *session_choose_text(int result);
/* Why a session that is stopping takes nothing more: the same. */
#define ENGINE_SNAPSHOT_GONE                                                                       \
	"the snapshot was dropped, as writes needed its space (on-full=drop), or deleted"
const char *session_stop_text(const struct session *session);
/*
 * Whether a request may begin that has its op, flags, offset and length: 0, or -EPERM read-only,
 * -EOVERFLOW longer than one answer can be, -ENOSPC written, zeroed or copied past the end,
 * -EINVAL anything else past the end, or extents of no bytes. text: the same for people, a sentence
 * without a final full stop. What has no length, but for a flush and extents, has succeeded by this
 * alone. Past the end means the end as the disk says it just now.
 */
GMB_MUST_CHECK int session_admit(
	struct session *session, const struct path_request *request, const char **text);

/* Why a TLS handshake failed. */
enum engine_tls_failure {
	ENGINE_TLS_CLIENT_REFUSED, /* its certificate or key was not accepted */
	ENGINE_TLS_SERVER_REFUSED, /* the client did not accept ours */
	ENGINE_TLS_PROTOCOL,	   /* nothing in common, or no TLS */
	ENGINE_TLS_CONNECTION,	   /* it ended, or the time was over */
	ENGINE_TLS_OTHER,	   /* memory, threads */
	ENGINE_TLS_FAILURE_COUNT
};

/* Ends the session. reason: for the log; NULL when it is no news. Safe anywhere, and more than
 * once: the session is freed later, at the end of a batch. */
void session_terminate(struct session *session, const char *reason);
/* The same by a TLS handshake that has failed. */
void session_tls_failed(struct session *session, enum engine_tls_failure why, const char *reason);
/* Everything is answered, and the sending side is shut down: waits for the peer for a while. */
void session_linger(struct session *session);
/* See takeover.h. The session holds the export until its end. */
void session_takeover_join(
	struct session *session, struct export *export, const uint8_t *token, uint32_t bytes);
/* True: kind->resume() is called when the connection of that name has ended. */
GMB_MUST_CHECK bool session_takeover_replace(
	struct session *session, struct export *export, const uint8_t *token, uint32_t bytes);

/* --- the engine ------------------------------------------------------------------------------ */

enum { ENGINE_KINDS_MAX = 8, ENGINE_INSTANCE_BYTES = 16 };

/* How bytes were copied within the server, see copy.h. */
enum copy_method {
	COPY_REFLINK, /* both files share the blocks */
	COPY_RANGE,   /* by the kernel */
	COPY_DEVICE,  /* through memory of a device */
	COPY_RAM,
	COPY_ZEROES, /* holes of the source that became zeroes of the target */
	COPY_METHOD_COUNT
};

struct engine_counters {
	uint64_t sessions_accepted;
	uint64_t sessions_refused;
	uint64_t sessions_failed;  /* ended by a peer violation or a socket error */
	uint64_t sessions_idle;	   /* ended by the idle timeout */
	uint64_t sessions_adopted; /* of those accepted: from another process */
	uint64_t requests;
	uint64_t place_waits;		/* requests that had to wait for a place */
	uint64_t identity_memory_waits; /* of identities without sessions; see
					 * engine_counters_add() */
	uint64_t errors;		/* requests answered with an error; counted by the kind */
	uint64_t bytes_read;		/* the same */
	uint64_t bytes_written;		/* the same */
	uint64_t bytes_copied[COPY_METHOD_COUNT];
	uint64_t push_tickets;	/* made; counted by the kind, like all of push */
	uint64_t push_refusals; /* tickets that were shown and are not valid */
	uint64_t pushes_done;
	uint64_t pushes_failed;
	uint64_t sessions;   /* now */
	uint64_t handshakes; /* now */
	uint64_t inflight;   /* now */
	/* Counted by the kind. */
	uint64_t tls_handshakes; /* done */
	uint64_t tls_failed;
	uint64_t tls_failures[ENGINE_TLS_FAILURE_COUNT]; /* the same by why */
	uint64_t tls_refused;				 /* there was no place for them */
	uint64_t tls_upgrading;				 /* now: under way, or waiting */
	uint64_t tls_sessions;				 /* now */
	uint64_t tls_sessions_1_2;			 /* now, of those */
	uint64_t tls_sessions_kernel;			 /* now, of those */
};

extern const struct counter_table engine_counter_table; /* of struct engine_counters */

struct engine_review {
	/* Whether a session with a proved identity may stay. */
	bool (*may_stay)(void *context, const struct session *session);
	/* All were asked. ended: those that may not stay, and those that have lost all rights,
	 * since done() was called last. */
	void (*done)(void *context, uint64_t number, uint32_t ended);
	void *context;
	uint64_t number;      /* never less than that of the one before */
	uint64_t deadline_ns; /* for what those that may not stay have begun */
};

struct engine_options {
	struct ring *ring;
	const struct session_kind *const *kinds; /* borrowed while the engine exists */
	uint32_t kind_count;			 /* 1 to ENGINE_KINDS_MAX */
	struct engine_limits limits;
	/* Memory of a device for the payload of exports that ask for it (store_info.read_device),
	 * borrowed while the engine exists; NULL: there is none. */
	struct arena *device;
	bool device_waits; /* see path_options */
	/* Of identities, borrowed while the engine exists; NULL: none. */
	struct rate_rules *rate_rules;
	/* Where kinds may connect to because a peer asks for it; borrowed while the engine exists.
	 */
	const struct place *places;
	uint32_t place_count;
	/* Distinguishes this server's process from all others, for clients that have several
	 * connections. Zeroes: unknown. */
	uint8_t instance[ENGINE_INSTANCE_BYTES];
	/* Called exactly once per engine_accept(), when the endpoint is closed; may be NULL. */
	void (*endpoint_gone)(void *context, const struct peer *peer);
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
	/* Exports whose store is being closed, or asked for its barrier; and engine_hold(). */
	uint32_t closing_count;
	struct list_node sessions;
	struct list_node handshakes;
	struct list_node lingering;
	struct list_node dirty;
	struct list_node peers;
	struct engine_peer *accepted_peer; /* of the session that begins */
	uint32_t inflight_without_export;
	struct turns blocked; /* those who wait for a place */
	struct rate_room rates;
	struct list_node rate_identities; /* struct engine_identity: those with sessions here */
	struct list_node clients;	  /* struct engine_client: those without sessions last */
	uint32_t client_count;
	struct engine_client other_clients; /* all for which there was no room */
	struct list_node ending;
	struct engine_review review; /* the last one */
	struct list_node to_review;  /* sessions that it has not asked */
	struct ring_message review_message;
	bool review_posted;
	bool reviewing; /* review.done() was not called */
	uint32_t review_ended;
	bool limits_released; /* a request ended since the last look at blocked */
	struct ring_batch_end batch_end;
	struct wait_policy wait_policy;
	enum wait_way wait_way;	    /* as the ring was told */
	uint64_t turn_requests;	    /* counters.requests at the end of the last turn */
	uint64_t turn_requests_max; /* no more requests begin in this part of a turn */
	uint64_t turn_bytes;	    /* of replies, sent since the last turn began to send */
	struct ring_op again; /* another turn, without waiting, for what one had no time for */
	struct ring_op timer;
	uint64_t timer_due_ns; /* of the timer in flight */
	uint64_t stop_due_ns;  /* the first deadline of a session that has to end */
	uint64_t idle_due_ns;  /* the next look for idle sessions */
	/* By listener: what strangers do at one address hides nothing of the others. */
	struct log_limit log_limits[ENGINE_LISTENERS_MAX];
	struct log_limit connect_limits[ENGINE_LISTENERS_MAX]; /* connections come and go */
	bool paused;					       /* see pass.h */
	bool draining;
	void (*drained)(void *context);
	void *drained_context;
};

GMB_MUST_CHECK int engine_create(
	const struct engine_options *options, struct engine **engine_out, struct error *error);
/* No session may exist any more (after drained()). Releases the exports. NULL is a no-op. */
void engine_destroy(struct engine *engine);
/* The ring is needed until as many calls of engine_release() follow: engine_destroy() waits. */
void engine_hold(struct engine *engine);
void engine_release(struct engine *engine);

/* Takes the endpoint on every path. When a limit refuses it, it is closed and counted. */
void engine_accept(struct engine *engine, const struct endpoint *endpoint);

/* Adds what it has counted, up to now. */
void engine_counters_add(const struct engine *engine, struct engine_counters *sum);

/* engine_export_rights() of all exports. Then asks of every session whether it may stay, and drains
 * those that may not: one in each turn of the ring, because an answer may take a millisecond. Who
 * has not identified its peer yet is not asked. A review that is not finished goes on as the new
 * one, and is done with it. */
void engine_review(struct engine *engine, const struct engine_review *review);

/* kind->listen() and kind->listen_end(), for a kind that has them. The door is borrowed until the
 * end of the listener. */
GMB_MUST_CHECK int engine_listen(struct engine *engine, const struct session_kind *kind,
	struct export_uri *uri, const struct engine_door *door, void **listener_out,
	struct error *error);
void engine_listen_end(struct engine *engine, const struct session_kind *kind, void *listener);

/* Drains every session. drained is called once, from the ring, when none is left; sessions that
 * have not finished after deadline_ns are ended. Connections that come later are refused. */
void engine_drain(
	struct engine *engine, uint64_t deadline_ns, void (*drained)(void *context), void *context);

/* Private to src/engine. */
/* The session leaves its rates. */
void session_rates_leave(struct session *session);
/* The session counts as one of that client, from session_choose() to its end. */
void engine_client_join(struct session *session, const struct takeover_principal *principal);
void engine_client_leave(struct session *session);
void engine_clients_init(struct engine *engine);
/* No session exists. */
void engine_clients_fini(struct engine *engine);
/* This engine's part of so many bytes that an export or an identity may hold (0: no limit), for a
 * quota: at least PATH_WINDOW_BYTES. */
uint64_t engine_quota_bytes(const struct engine *engine, uint64_t memory_max);
void engine_timer_arm(struct engine *engine);
/* A line about a session that has chosen an export: "client ... WHAT export ...". */
void session_log(struct session *session, const char *what);
void engine_stop_session(struct session *session, uint64_t deadline_ns);
/* 0: the barrier of the store does not hinder the session; else see session_choose(). */
int engine_export_barrier(struct engine_export *entry, struct session *session);
/* One of those who use the entry does not any more: it goes with the last, if it was removed. */
void engine_export_leave(struct engine *engine, struct engine_export *entry);

/* --- on the way of every request ------------------------------------------------------------- */

/* Where lines about a session are limited: with those of its listener. */
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

/* A session has one place that nobody else can have. Of the others it has at most as many as are
 * free, its export ENGINE_EXPORT_FACTOR times as many: some are left for whoever comes next. */
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

/* Work on many requests of some sessions keeps completions of all others waiting. */
static inline bool engine_turn_is_full(const struct engine *engine)
{
	return engine->counters.requests >= engine->turn_requests_max;
}

/* Whether the session may begin a request. False: a limit is reached, and kind->resume() is called
 * when it is worth to ask again. */
GMB_MUST_CHECK static inline bool engine_request_may(struct session *session)
{
	bool has_place = engine_has_place(session);

	if (unlikely(!has_place ||
		     (session->inflight_count > 0 && engine_turn_is_full(session->engine)))) {
		session->engine->counters.place_waits +=
			!has_place && !turn_is_waiting(&session->blocked_turn);
		session->engine->limits_released |= has_place; /* in the next turn */
		turns_remove(&session->blocked_turn);
		turns_add(&session->engine->blocked, &session->blocked_turn);
		return false;
	}
	return true;
}

/* How much of a request counts by the rates: what moves between the client, the server and the
 * disk. A refused read, a trim and a zero that leaves a hole move nothing; where the disk has to
 * write zeroes, they count. */
uint64_t engine_request_bytes(const struct session *session, enum store_op op, uint32_t flags,
	uint64_t offset, uint64_t length);

/* Whether a request that moves so many bytes may begin, by the rates of the session's identity and
 * of its export. False: it waits without a place and without memory, and kind->resume() is called
 * when it is its turn; the same request is asked for until engine_request_begin(). */
GMB_MUST_CHECK static inline bool engine_request_may_move(struct session *session, uint64_t bytes)
{
	return likely(!rate_is_limited(&session->rate)) || session->stopping ||
	       rate_ask(&session->rate, bytes);
}

/* A request that was received waits for a place or for its turn by a rate. */
static inline bool session_waits(const struct session *session)
{
	return turn_is_waiting(&session->blocked_turn) || rate_waits(&session->rate);
}

/* After engine_request_may() and engine_request_may_move(). */
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
