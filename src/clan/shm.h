// SPDX-License-Identifier: Apache-2.0
/*
 * The provider shm: connections through shared memory, docs/protocol/clan.md.
 *
 *   shm.c         the table of calls; listeners; life of a connection
 *   shm_socket.c  messages on the socket: set-up, regions
 *   shm_group.c   waking: want, ready rings, arms, bells
 *   shm_ring.c    message rings, streams, cookie queues
 *   shm_region.c  regions of the peer
 *   shm_memory.c  cookies, put and get, tripwires
 *   shm_copy.c    puts and gets by helper threads, where the peer is a stranger
 *
 * What a peer writes is reached through pointers to const memory, and only by the functions below
 * that load one word once. What this side decides on is private: the structs here.
 *
 * Threading: the queue's thread; the mapping of a peer's region is made by a worker.
 * Ownership: a shm_conn belongs to its queue, a group to its connections.
 * Errors: negative errno. A peer that breaks a rule of the protocol: shm_broken().
 */
#pragma once

#include "clan/clan.h"
#include "clan/segment.h"
#include "clan/shm_layout.h"

/* --- groups ---------------------------------------------------------------------------------- */

struct shm_queue {
	struct list_node groups;
	struct list_node active; /* groups to look at: rung, not armed yet, or muted */
	struct list_node dirty;	 /* connections with something to publish */
	struct list_node dead;	 /* connections to free that the program never knew */
};

static inline struct shm_queue *shm_queue(const struct clan_queue *queue)
{
	return queue->carriers[CLAN_SHM];
}

struct shm_group {
	struct list_node node; /* in groups */
	struct list_node active_node;
	struct list_node publish_node; /* got something in this publication */
	struct shm_conn *publish_conn; /* by this connection */
	struct clan_queue *queue;
	uint64_t id;
	pid_t pid; /* of the process at the other end */
	uid_t uid;
	char *place; /* where the connector connected to; NULL on the acceptor's side */
	uint32_t conn_count;
	uint32_t conns_max;
	struct shm_conn **conns; /* by our number */
	uint32_t conns_slots;
	struct list_node mappings; /* struct shm_mapping */

	struct shm_group_head *own;
	size_t own_bytes;
	const struct shm_group_head *peer;
	size_t peer_bytes;
	uint32_t peer_ready_slots;

	/* As the side that changes something. */
	uint32_t pushed;
	uint64_t rung;
	uint32_t bell;
	/* As the side that sleeps. */
	uint32_t taken;
	uint64_t arm;		    /* the last number */
	uint32_t bell_seen;	    /* of the peer, when it was armed */
	struct waiter_futex *futex; /* CLAN_BELL_FUTEX */
	uint64_t bells_heard;
	uint64_t bells_idle;
	uint32_t idle_in_row;
	uint64_t idle_since_ns;
	uint64_t muted_until_ns; /* 0: not muted */
	struct clan_deadline unmute;
};

/* --- connections ----------------------------------------------------------------------------- */

struct shm_out {
	uint8_t *slots;
	uint32_t mask; /* slots - 1 */
	uint32_t write;
	uint32_t published;
	uint32_t read_seen; /* largest index that the peer gave */
	uint16_t sequence;
};

struct shm_in {
	const uint8_t *slots;
	uint32_t mask;
	uint32_t read;
	uint32_t read_published;
	uint32_t write_seen;
	uint16_t sequence;
	uint32_t stream_at;		     /* bytes taken of the stream message at read */
	struct shm_message_head stream_head; /* its head, as it was checked; if stream_at > 0 */
};

enum shm_peer_region_state {
	SHM_REGION_MAPPING, /* a worker */
	SHM_REGION_LIVE,    /* nothing */
	SHM_REGION_LEAVING, /* the last hold */
	SHM_REGION_GONE,    /* its event to be given */
	SHM_REGION_STATE_COUNT
};

/* A mapping of a memfd of the peer, once for all connections of the group. */
struct shm_mapping {
	struct list_node node;
	struct segment_identity identity;
	uint64_t offset;
	uint64_t bytes;
	uint32_t rights;
	uint8_t *base;
	uint32_t references;
};

/* A region of the peer. */
struct shm_peer_region {
	struct list_node node; /* in conn->region_list */
	struct shm_conn *conn;
	struct clan_source source;
	struct work work; /* mapping it */
	struct shm_mapping *mapping;
	struct segment_identity identity;
	enum shm_peer_region_state state;
	bool give_live;	   /* CLAN_EVENT_REGION is to be given */
	bool give_leaving; /* CLAN_EVENT_REGION_ENDING is to be given */
	bool asked_back;   /* by the peer; else the connection has ended */
	uint32_t number;
	uint32_t generation;
	uint32_t rights;
	uint64_t offset; /* in the memfd */
	uint64_t bytes;
	uint32_t holds;
	/* Of the worker. */
	int fd;
	int status;
	uint8_t *base;
};

enum shm_grant_state { SHM_GRANT_FREE, SHM_GRANT_GIVEN, SHM_GRANT_LEAVING };

struct shm_grant {
	uint32_t generation; /* last used */
	uint16_t region;     /* number */
	uint8_t state;	     /* enum shm_grant_state */
};

struct shm_revocation {
	struct list_node node; /* in conn->revocations */
	struct clan_source source;
	struct clan_deadline deadline;
	struct shm_conn *conn;
	struct clan_region *region; /* strict: whose pages will be replaced; else NULL */
	struct clan_range range;
	uint64_t busy; /* of the peer, odd */
	uint32_t slot;
	bool ended; /* its event is to be given */
	int status;
	void *op;
};

struct shm_watch { /* a tripwire of ours */
	struct clan_source source;
	struct shm_conn *conn;
	uint64_t arm; /* number of the present arming; 0: off */
	uint64_t arm_last;
	bool used;
};

struct shm_trip {	   /* a tripwire of the peer */
	uint64_t answered; /* the arming that was told of last */
	bool owed;	   /* TRIPPED found no room */
};

/* Cookies of the peer that wait to be popped: lists in one array. */
struct shm_cookie_fifo {
	struct clan_cookie cookie;
	uint32_t next;
};

struct shm_conn {
	struct clan_conn conn;
	struct waiter_file file; /* the socket */
	struct shm_group *group;
	struct shm_listener *listener; /* that counts it; or NULL */
	char *place;		       /* where the connector connected to; or NULL */
	bool handshake_counted;
	bool regrouped;	      /* REGROUP was sent, or came */
	uint32_t number;      /* ours, in the group */
	uint32_t peer_number; /* what we push on the ready ring */
	struct list_node dirty_node;
	struct list_node dead_node;

	struct shm_conn_head *own;
	size_t own_bytes;
	int own_fd;		 /* until the peer has it */
	int group_fd;		 /* of our group head, if the group is new; until the peer has it */
	struct list_node unsent; /* messages of the socket that the kernel does not take yet */
	struct clan_deadline resend; /* when to try them again */
	uint64_t unsent_until_ns;
	struct clan_deadline reread; /* when to receive again: see dispose_has_room() */
	const struct shm_conn_head *peer;
	size_t peer_bytes;
	struct shm_cookie *own_cookies;
	const struct shm_cookie *peer_cookies;
	struct shm_tripwire *own_tripwires;
	const struct shm_tripwire *peer_tripwires;
	uint32_t peer_cookie_count;
	uint32_t peer_tripwire_count;
	uint32_t bell; /* enum clan_bell: how the peer wants to be woken */

	struct shm_out out[SHM_CLASS_COUNT];
	struct shm_in in[SHM_CLASS_COUNT];
	uint32_t control_in_row;
	uint32_t changes;		      /* enum shm_reason: to be published */
	uint32_t room_bytes[SHM_CLASS_COUNT]; /* what a message needs that found no room */

	uint64_t want; /* number of the last one */
	uint32_t want_reasons;
	bool want_answered;
	uint64_t answered; /* the peer's last number that was pushed */

	uint64_t busy;
	uint32_t busy_count;	 /* copies under way by cookies of the peer */
	struct list_node copies; /* struct shm_copy */
	uint32_t copies_running; /* on workers */
	_Atomic(bool) copies_dropped;
	struct list_node revocations;
	struct shm_grant *grants;  /* by slot; NULL until the first */
	uint32_t grant_next;	   /* where the search for a free one begins */
	uint32_t *used_once;	   /* by the peer's slot: generation used; NULL until the first */
	struct shm_watch *watches; /* by number; NULL until the first */
	struct shm_trip *trips;	   /* by the peer's number; NULL until the first is armed */
	uint32_t trips_owed;

	struct shm_cookie_fifo *fifo; /* NULL until the first cookie */
	uint32_t fifo_free;
	uint32_t fifo_count;
	uint32_t fifo_first[CLAN_COOKIE_QUEUES];
	uint32_t fifo_last[CLAN_COOKIE_QUEUES];
	uint32_t cookies_pushed;
	uint32_t cookies_popped; /* of the peer's */
	uint32_t peer_popped_seen;

	struct shm_peer_region **regions; /* by number; NULL until the first */
	struct list_node region_list;
	uint64_t region_bytes;
	uint32_t regions_held; /* not GONE */
};

static inline struct shm_conn *shm_conn(struct clan_conn *conn)
{
	return container_of(conn, struct shm_conn, conn);
}
static inline const struct shm_conn *shm_conn_const(const struct clan_conn *conn)
{
	_Static_assert(offsetof(struct shm_conn, conn) == 0, "it begins with the connection");
	return (const struct shm_conn *)conn;
}

/* The peer broke rule K<number> of docs/protocol/clan.md: the connection is lost. Returns -EPROTO.
 * May be called in any state. */
int shm_broken(struct shm_conn *conn, uint32_t rule, const char *what);

/* --- shm.c ------------------------------------------------------------------------------------ */

struct shm_listener {
	struct clan_listener listener;
	struct waiter_file file;
	uint32_t conn_count;
	uint32_t handshake_count;
	struct clan_deadline retry; /* after EMFILE */
	dev_t device;		    /* of the socket file; 0: abstract */
	ino_t inode;
	char *path;
	bool closed; /* freed with the last connection that it counts */
};

GMB_MUST_CHECK int shm_queue_use(struct clan_queue *queue);
/* The layout of a connection segment with these numbers. */
struct shm_shape {
	uint32_t slots[SHM_CLASS_COUNT];
	uint32_t cookies;
	uint32_t tripwires;
	size_t tripwire_offset;
	size_t slot_offset[SHM_CLASS_COUNT];
	size_t bytes;
};
void shm_shape_fill(struct shm_shape *shape);
GMB_MUST_CHECK int shm_conn_make_segment(struct shm_conn *conn);
/* Maps the peer's. -EPROTO: it broke a rule, and the connection was ended; or another errno. */
GMB_MUST_CHECK int shm_conn_map_peer(struct shm_conn *conn, int fd);
/* A group of its own, with a head for the peer in group_fd. */
GMB_MUST_CHECK int shm_conn_new_group(struct shm_conn *conn, uint64_t id);
/* The rings can be used. */
void shm_conn_opened(struct shm_conn *conn);
/* OPEN, and the peer has got everything that it needs to know of. */
void shm_conn_settled(struct shm_conn *conn);
/* Ends a connection in any state before CLOSING; what the program knows as LOST. */
void shm_conn_end(struct shm_conn *conn, int status, const char *reason);
void shm_conn_handshake_ended(struct shm_conn *conn);
/* CLOSING: is it CLOSED now? */
void shm_conn_join(struct shm_conn *conn);

/* --- shm_socket.c ----------------------------------------------------------------------------- */

/*
 * What is sent below returns 0 or a negative errno. Messages with descriptors wait for up to half
 * of the time of a handshake while the kernel takes no more descriptors of the process's user
 * (ETOOMANYREFS): 0 as well, and when it is in vain, the connection ends.
 */

/* What is waited for on the socket of a connection: enum EPOLL_EVENTS. */
#define SHM_SOCKET_EVENTS (EPOLLIN | EPOLLRDHUP)

/* Shuts the socket down and gives it to a worker. */
void shm_socket_close(struct shm_conn *conn);
/* Messages that wait will not be sent. */
void shm_unsent_drop(struct shm_conn *conn);
/* conn->resend has passed. */
void shm_send_again(struct clan_deadline *deadline);
/* conn->reread has passed. */
void shm_receive_again(struct clan_deadline *deadline);
/* Ends the connection, which cannot go on without what waits. */
void shm_unsent_give_up(struct shm_conn *conn);
void shm_socket_happened(struct waiter_file *file, uint32_t events);
/* HELLO with what the program said, which is kept in case it has to be said again. */
GMB_MUST_CHECK int shm_send_hello(struct shm_conn *conn);
GMB_MUST_CHECK int shm_send_welcome(struct shm_conn *conn, const void *hello, size_t hello_bytes);
void shm_send_refused(struct shm_conn *conn, int status, const char *text);
GMB_MUST_CHECK int shm_send_region(struct shm_conn *conn, const struct clan_share *share);
/* REGION_OK, REGION_END or REGION_ENDED. */
GMB_MUST_CHECK int shm_send_region_answer(struct shm_conn *conn, enum shm_socket_type type,
	uint32_t number, uint32_t generation, int error);

/* --- shm_group.c ------------------------------------------------------------------------------ */

/* A new group with a head of our own; *fd_out is its descriptor for the peer. */
GMB_MUST_CHECK int shm_group_create(
	struct clan_queue *queue, uint64_t id, struct shm_group **group_out, int *fd_out);
/* Maps the peer's head. -EPROTO with *rule_out, or another negative errno. */
GMB_MUST_CHECK int shm_group_map_peer(struct shm_group *group, int fd, uint32_t *rule_out);
/* Enters the connection and gives it a number. */
GMB_MUST_CHECK int shm_group_join(struct shm_group *group, struct shm_conn *conn);
/* Removes it; frees the group with the last one. */
void shm_group_leave(struct shm_conn *conn);
struct shm_group *shm_group_find(struct clan_queue *queue, uint64_t id);
/* A group of the connector's with room whose acceptor is, or may be, the one that this connection
 * goes to; an acceptor with several queues says REGROUP. NULL: none. */
struct shm_group *shm_group_find_place(const struct shm_conn *conn);
/* Looked at in every turn until it is armed. */
void shm_group_activate(struct shm_group *group);
/* A byte came on the socket of one of its connections. */
void shm_group_bell(struct shm_group *group);
void shm_group_free(struct shm_group *group);

bool shm_progress(struct clan_queue *queue);
void shm_publish(struct clan_queue *queue);
bool shm_arm(struct clan_queue *queue);

/* Something was written that the peer may want to hear of: enum shm_reason. */
static inline void shm_changed(struct shm_conn *conn, uint32_t reasons)
{
	/* Nobody reads what a lost connection publishes, and its bell would be rung in vain. */
	if (conn->conn.state != CLAN_OPEN) {
		return;
	}
	conn->changes |= reasons;
	if (!list_is_linked(&conn->dirty_node)) {
		list_push_back(&shm_queue(conn->conn.queue)->dirty, &conn->dirty_node);
	}
}
/* Publishes what changed on one connection. */
void shm_publish_conn(struct shm_conn *conn);
/* The connection has nothing of what is enabled: asks the peer to tell, and looks again. */
void shm_want(struct shm_conn *conn);
/* Looks at everything that the peer can have changed; fires what is enabled. True: something had.
 */
bool shm_look(struct shm_conn *conn);

/* --- shm_ring.c ------------------------------------------------------------------------------- */

int shm_send(struct clan_conn *conn, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count, size_t bytes);
int shm_recv(struct clan_conn *conn, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes);
ssize_t shm_readv(struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count, bool peek);
/* Slots that a message of that many bytes with its head can have now, padding included: true when
 * there is room. */
bool shm_room(struct shm_conn *conn, enum shm_class class, size_t bytes);
/* Writes a message for which there is room. */
void shm_put_message(struct shm_conn *conn, enum shm_class class, uint8_t type,
	const struct iovec *iov, uint32_t iov_count, size_t bytes);
/* True: the peer has published messages that were not taken. */
bool shm_has_message(struct shm_conn *conn, enum shm_class class);
/* Takes all system records. True: there were any. */
bool shm_take_system(struct shm_conn *conn);
/* Stores what was taken from the peer's rings, so that it can write there again. */
void shm_publish_read(struct shm_conn *conn, enum shm_class class);
int shm_cookie_push(struct clan_conn *conn, uint32_t number, const struct clan_cookie *cookie);
int shm_cookie_pop(struct clan_conn *conn, uint32_t number, struct clan_cookie *cookie_out);
bool shm_cookie_room(struct shm_conn *conn);

/* Asks the peer to tell when there is room: -EAGAIN, or -ENOTCONN. */
int shm_no_room(struct shm_conn *conn, enum shm_class class, size_t bytes, uint32_t ready);

/* --- shm_region.c ----------------------------------------------------------------------------- */

/* REGION: 0 when it will be answered, otherwise -EPROTO (the connection has been ended). Takes fd.
 */
int shm_region_arrived(struct shm_conn *conn, const struct shm_region *message, int fd);
int shm_region_asked_back(struct shm_conn *conn, uint32_t number, uint32_t generation);
/* The connection is lost or closed: its regions leave. Closed: without events. */
void shm_regions_leave(struct shm_conn *conn);
int shm_share(struct clan_conn *conn, struct clan_share *share);
int shm_unshare(struct clan_conn *conn, struct clan_share *share);
int shm_peer_info(const struct clan_conn *conn, uint32_t number, struct clan_peer_region *region);
int shm_peer_get(struct clan_conn *conn, uint32_t number, uint32_t generation, uint32_t rights,
	uint64_t offset, uint64_t bytes, void **address_out);
void shm_peer_put(struct clan_conn *conn, uint32_t number);

/* Where a range of a region of the peer's is mapped, if it has the right: 0, or a negative errno.
 */
int shm_region_place(struct shm_conn *conn, uint32_t number, uint32_t right, uint64_t offset,
	uint64_t bytes, uint8_t **address_out);

/* --- shm_memory.c ----------------------------------------------------------------------------- */

int shm_grant(struct clan_conn *conn, struct clan_share *share, struct clan_cookie *cookie);
int shm_revoke(struct clan_conn *conn, const struct clan_cookie *cookie, bool strict, void *op);
void shm_void_cookies(struct clan_conn *conn, const struct clan_share *share);
/* Is the cookie one that was granted and not revoked? */
bool shm_is_granted(const struct shm_conn *conn, const struct clan_cookie *cookie);
/* A revocation waits for the peer to become quiet. */
bool shm_waits_for_quiet(const struct shm_conn *conn);
/* Fires the revocations for which the peer has become quiet. True: there were any. */
bool shm_look_quiet(struct shm_conn *conn);
/* The connection is lost: what is under way has ended as well as it can. */
void shm_revocations_end(struct shm_conn *conn);
int shm_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op);
int shm_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);

/* Some bytes were put. */
struct shm_copy_order;
void shm_touched(struct shm_conn *conn, const struct shm_copy_order *order);
/* A copy by a cookie of the peer's, which a helper thread made, has ended. */
void shm_busy_ends(struct shm_conn *conn);

int shm_tripwire(struct clan_conn *conn, const struct clan_share *share, uint64_t offset,
	uint32_t bytes, uint32_t *number_out);
int shm_rearm(struct clan_conn *conn, uint32_t number);
int shm_tripwire_remove(struct clan_conn *conn, uint32_t number);
/* TRIPPED came. */
void shm_tripped(struct shm_conn *conn, const struct shm_tripped *record);
/* Writes TRIPPED records that found no room before. */
void shm_send_owed_trips(struct shm_conn *conn);
/* The program closes the connection: no more events. */
void shm_memory_close(struct shm_conn *conn);
void shm_memory_free(struct shm_conn *conn);
void shm_memory_after_fork(struct shm_conn *conn);

/* --- shm_copy.c ------------------------------------------------------------------------------- */

/* What a helper thread is to copy. */
struct shm_copy_order {
	uint8_t *shared; /* memory that the peer may write */
	bool to_shared;
	bool peers; /* by a cookie of the peer's, in its region; else memory of ours */
	bool notify;
	uint32_t value;
	uint32_t region;	/* held */
	uint32_t cookie_region; /* for tripwires, as the cookie says */
	uint64_t touched_at;
	size_t bytes;
	void *op; /* of the event */
};

/* 0: an event will tell; -ENOMEM. */
GMB_MUST_CHECK int shm_copy_begin(struct shm_conn *conn, const struct shm_copy_order *order,
	const struct iovec *iov, uint32_t iov_count);
/* There may be room for notifications. */
void shm_copies_look(struct shm_conn *conn);
/* The connection is about to be LOST: puts that owe a notification fail. */
void shm_copies_lost(struct shm_conn *conn);
/* The connection is being closed: no more events of copies. */
void shm_copies_drop(struct shm_conn *conn);
void shm_copies_after_fork(struct shm_conn *conn);
int shm_fetch(struct clan_conn *conn, const struct clan_region *region, uint64_t offset, void *to,
	size_t bytes, void *op);
