// SPDX-License-Identifier: Apache-2.0
/*
 * The provider shm: connections through shared memory, docs/protocol/clan.md §1 to §9.
 *
 *   shm.c         the provider's table; listeners; life of a connection
 *   shm_socket.c  messages on the socket: set-up, regions
 *   shm_group.c   waking: want, ready rings, arms, bells
 *   shm_ring.c    message rings, streams, cookie queues
 *   shm_region.c  regions of the peer
 *   shm_memory.c  cookies, put and get, tripwires
 *   shm_copy.c    puts and gets by helper threads, for untrusted peers
 *
 * Invariant: shared memory that a peer writes is accessed only through pointers to const, and only
 * by the functions below that load each word once. Decisions are made on private copies: the
 * structs in this file.
 *
 * Threading: the queue's thread; a worker maps the regions of a peer and makes the copies of
 * shm_copy.c. Ownership: a shm_conn belongs to its queue, a group to its connections. Errors:
 * negative errno. If a peer breaks a rule of the protocol, call shm_broken().
 */
#pragma once

#include "clan/clan.h"
#include "clan/segment.h"
#include "clan/shm_layout.h"

/* --- groups ---------------------------------------------------------------------------------- */

struct shm_queue {
	struct list_node groups;
	struct list_node active; /* groups to check in every turn: rung by the peer, not armed yet,
				    or muted */
	struct list_node dirty;	 /* connections with something to publish */
	struct list_node dead;	 /* connections to free that were never reported to the program */
};

static inline struct shm_queue *shm_queue(const struct clan_queue *queue)
{
	return queue->carriers[CLAN_SHM];
}

/* Up to conns_max connections between this queue and one queue of one peer process
 * (docs/protocol/clan.md §2.1). They share one pair of group heads, so that one request for a
 * wake-up (arm) and one wake-up (bell) serve all connections. The last connection that leaves frees
 * the group. */
struct shm_group {
	struct list_node node; /* in groups */
	struct list_node active_node;
	struct list_node publish_node; /* in shm_publish()'s list of groups to wake: we have pushed
					  an entry */
	struct shm_conn *publish_conn; /* the connection whose socket rings the bell */
	struct clan_queue *queue;
	uint64_t id;
	pid_t pid; /* process at the other end */
	uid_t uid;
	char *place; /* the address that the connector used; NULL on the acceptor's side */
	uint32_t conn_count;
	uint32_t conns_max;
	struct shm_conn **conns; /* connections, indexed by our numbers */
	uint32_t conns_slots;
	struct list_node mappings; /* struct shm_mapping */

	struct shm_group_head *own;
	size_t own_bytes;
	const struct shm_group_head *peer;
	size_t peer_bytes;
	uint32_t peer_ready_slots;

	/* State for waking the peer (docs/protocol/clan.md §6.1). */
	uint32_t pushed;
	uint64_t rung;
	uint32_t bell;
	/* State for wake-ups by the peer (docs/protocol/clan.md §6.2). */
	uint32_t taken;
	uint64_t arm;		    /* number of the last arming */
	uint32_t bell_seen;	    /* value of peer->bell when the group was armed */
	struct waiter_futex *futex; /* CLAN_BELL_FUTEX */
	uint64_t bells_heard;
	uint64_t bells_idle;
	uint32_t idle_in_row;
	uint64_t idle_since_ns;
	uint64_t muted_until_ns; /* 0: not muted */
	struct clan_deadline unmute;
};

/* --- connections ----------------------------------------------------------------------------- */

/* Our ring of one class, as its writer. The indices count slots and wrap at 2^32. */
struct shm_out {
	uint8_t *slots;
	uint32_t mask; /* number of slots - 1 */
	uint32_t write;
	uint32_t published;
	uint32_t read_seen; /* largest read index received from the peer */
	uint16_t sequence;
};

/* The peer's ring of one class, as its reader. */
struct shm_in {
	const uint8_t *slots;
	uint32_t mask;
	uint32_t read;
	uint32_t read_published;
	uint32_t write_seen;
	uint16_t sequence;
	/* If the next message is a stream message that was partly read: the number of consumed
	 * bytes (otherwise 0), and the validated head of the message. */
	uint32_t stream_at;
	struct shm_message_head stream_head;
};

/* The states of a region of the peer. */
enum shm_peer_region_state {
	SHM_REGION_MAPPING, /* a worker maps the region */
	SHM_REGION_LIVE,    /* usable */
	SHM_REGION_LEAVING, /* waits for the release of the last hold */
	SHM_REGION_REMOVED, /* waits for delivery of the region's last event */
	SHM_REGION_STATE_COUNT
};

/* A mapping of a memfd of the peer, shared by all connections of the group that use it. */
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
	struct work work; /* maps the region on a worker */
	struct shm_mapping *mapping;
	struct segment_identity identity;
	enum shm_peer_region_state state;
	bool give_live;	   /* CLAN_EVENT_REGION is pending */
	bool give_leaving; /* CLAN_EVENT_REGION_ENDING is pending */
	bool asked_back;   /* the peer requested the return, so REGION_ENDED must be sent */
	uint32_t number;
	uint32_t generation;
	uint32_t rights;
	uint64_t offset; /* in the memfd */
	uint64_t bytes;
	uint32_t holds;
	/* Owned by the worker while the state is MAPPING. */
	int fd;
	int status;
	uint8_t *base;
};

enum shm_grant_state { SHM_GRANT_FREE, SHM_GRANT_GIVEN, SHM_GRANT_LEAVING };

struct shm_grant {
	uint32_t generation; /* generation of the last cookie in this slot */
	uint16_t region;     /* number of the region */
	uint8_t state;	     /* enum shm_grant_state */
};

struct shm_revocation {
	struct list_node node; /* in conn->revocations */
	struct clan_source source;
	struct clan_deadline deadline;
	struct shm_conn *conn;
	/* Strict revocation: the region whose pages are replaced if the connection is lost.
	 * Otherwise NULL. */
	struct clan_region *region;
	struct clan_range range;
	uint64_t busy; /* the peer's busy word when the cookie was revoked; odd */
	uint32_t slot;
	bool ended; /* CLAN_EVENT_REVOKED is pending */
	int status;
	void *op;
};

struct shm_watch { /* one of our tripwires */
	struct clan_source source;
	struct shm_conn *conn;
	uint64_t arm; /* number of the current arming; 0: off */
	uint64_t arm_last;
	bool used;
};

struct shm_trip {	   /* one of the peer's tripwires */
	uint64_t answered; /* number of the last arming for which TRIPPED was sent */
	bool owed;	   /* a TRIPPED record is waiting for room */
};

/* Cookies from the peer that have not been popped: 16 linked lists and a free list in one array. */
struct shm_cookie_fifo {
	struct clan_cookie cookie;
	uint32_t next;
};

struct shm_conn {
	struct clan_conn conn;
	struct waiter_file file; /* the connection's socket */
	struct shm_group *group;
	struct shm_listener *listener; /* the listener that counts this connection; or NULL */
	char *place;		       /* the address that the connector used; or NULL */
	bool handshake_counted;
	bool regrouped;	      /* REGROUP was sent or received */
	uint32_t number;      /* the connection's number in our table of the group */
	uint32_t peer_number; /* number in the peer's table, for entries on our ready ring */
	struct list_node dirty_node;
	struct list_node dead_node;

	struct shm_conn_head *own;
	size_t own_bytes;
	int own_fd; /* memfd of our segment until the peer has received it, then -1 */
	/* memfd of our head of a new group, until the peer has received it; -1 if the group
	 * existed */
	int group_fd;
	struct list_node unsent;     /* socket messages that the kernel has not accepted yet */
	struct clan_deadline resend; /* time to send the messages in unsent again */
	uint64_t resend_ns;	     /* the last interval until resend; doubled each time */
	uint64_t unsent_until_ns;
	/* reason why the kernel rejects the first message in unsent: -ETOOMANYREFS, -EPERM */
	int unsent_status;
	struct clan_deadline reread; /* time at which to receive again; see dispose_has_room() */
	const struct shm_conn_head *peer;
	size_t peer_bytes;
	struct shm_cookie *own_cookies;
	const struct shm_cookie *peer_cookies;
	struct shm_tripwire *own_tripwires;
	const struct shm_tripwire *peer_tripwires;
	uint32_t peer_cookie_count;
	uint32_t peer_tripwire_count;
	uint32_t bell; /* enum clan_bell: how to wake the peer */

	struct shm_out out[SHM_CLASS_COUNT];
	struct shm_in in[SHM_CLASS_COUNT];
	uint32_t control_in_row;
	uint32_t changes;		      /* enum shm_reason: changes that are not published
						 yet */
	uint32_t room_bytes[SHM_CLASS_COUNT]; /* size of the last message that found no room */

	uint64_t want;	       /* number of our last request for notification */
	uint32_t want_reasons; /* enum shm_reason: the reasons in our last request */
	/* The peer has answered our last request for notification, so the next one needs a new
	 * number. */
	bool want_answered;
	uint64_t answered; /* number of the peer's last request for notification that we answered */

	/* Private copy of our busy word. It is odd while we copy with cookies of the peer. */
	uint64_t busy;
	uint32_t busy_count;	 /* number of copies with cookies of the peer in progress */
	struct list_node copies; /* struct shm_copy */
	uint32_t copies_running; /* copies that workers are making */
	/* Set when the connection is lost or closed. The only member that workers read; see
	 * shm_copy_part(). */
	_Atomic(bool) copies_dropped;
	struct list_node revocations;
	/* The arrays are NULL until an entry is needed. */
	struct shm_grant *grants;  /* our cookies, by slot */
	uint32_t grant_next;	   /* slot at which the search for a free one starts */
	uint32_t *used_once;	   /* by slot: generation of the last ONCE cookie that we used */
	struct shm_watch *watches; /* our tripwires, by number */
	struct shm_trip *trips;	   /* the peer's tripwires, by the peer's number */
	uint32_t trips_owed;

	struct shm_cookie_fifo *fifo; /* NULL until the first cookie arrives */
	uint32_t fifo_free;
	uint32_t fifo_count;
	uint32_t fifo_first[CLAN_COOKIE_QUEUES];
	uint32_t fifo_last[CLAN_COOKIE_QUEUES];
	uint32_t cookies_pushed;
	uint32_t cookies_popped; /* cookies of the peer that the program has popped */
	uint32_t peer_popped_seen;

	/* indexed by number; NULL until the peer shares a region */
	struct shm_peer_region **regions;
	struct list_node region_list;
	uint64_t region_bytes;
	uint32_t regions_held; /* regions in a state other than REMOVED */
};

static inline struct shm_conn *shm_conn(struct clan_conn *conn)
{
	return container_of(conn, struct shm_conn, conn);
}
static inline const struct shm_conn *shm_conn_const(const struct clan_conn *conn)
{
	_Static_assert(offsetof(struct shm_conn, conn) == 0,
		"the struct begins with its base, the connection");
	return (const struct shm_conn *)conn;
}

/* The peer broke rule K<rule> of docs/protocol/clan.md: ends the connection. Returns -EPROTO. Can
 * be called in any state. */
int shm_broken(struct shm_conn *conn, uint32_t rule, const char *what);

/* --- shm.c ------------------------------------------------------------------------------------ */

struct shm_listener {
	struct clan_listener listener;
	struct waiter_file file;
	uint32_t conn_count;
	uint32_t handshake_count;
	struct clan_deadline retry; /* time at which to accept again after EMFILE */
	dev_t device;		    /* device of the socket file; 0: abstract address */
	ino_t inode;
	char *path;
	bool closed; /* closed by the program; freed with the last connection in conn_count */
};

/* The layout of a connection segment with these sizes. shm_shape_fill() computes the offsets and
 * the total size. */
struct shm_shape {
	uint32_t slots[SHM_CLASS_COUNT];
	uint32_t cookies;
	uint32_t tripwires;
	size_t tripwire_offset;
	size_t slot_offset[SHM_CLASS_COUNT];
	size_t bytes;
};
GMB_MUST_CHECK int shm_conn_make_segment(struct shm_conn *conn);
/* Maps the peer's segment. Returns -EPROTO if the segment breaks a rule (the connection has been
 * ended), or another negative errno. */
GMB_MUST_CHECK int shm_conn_map_peer(struct shm_conn *conn, int fd);
/* Creates a new group for the connection, with our group head in group_fd for the peer. */
GMB_MUST_CHECK int shm_conn_new_group(struct shm_conn *conn, uint64_t id);
/* Called when the rings become usable. */
void shm_conn_opened(struct shm_conn *conn);
/* Called when the peer has received our set-up messages: closes the descriptors that were passed
 * with them. */
void shm_conn_established(struct shm_conn *conn);
/* Ends a connection, unless it is LOST or closing already. If the program has the handle, the
 * connection becomes LOST; otherwise it becomes CLOSED and is freed later. reason: NULL for the
 * reason that the peer gave. On an open connection, messages that the peer published before are
 * processed first, except after a broken rule (-EPROTO). */
void shm_conn_end(struct shm_conn *conn, int status, const char *reason);
void shm_conn_handshake_ended(struct shm_conn *conn);
/* In CLOSING: sets CLOSED if the connection is no longer in use. */
void shm_conn_join(struct shm_conn *conn);

/* --- shm_socket.c ----------------------------------------------------------------------------- */

/*
 * The sending functions below return 0 or a negative errno. The kernel rejects messages with
 * descriptors while the user of this process has too many in flight (ETOOMANYREFS), or while the
 * peer has not accepted the connection (EPERM). Such a message is queued for up to half of the
 * handshake time, HELLO for all of it. The function returns 0 in this case as well; if the message
 * cannot be sent in time, the connection ends.
 */

/* Events to watch on the socket of a connection: enum EPOLL_EVENTS. */
#define SHM_SOCKET_EVENTS (EPOLLIN | EPOLLRDHUP)

/* Discards queued messages, shuts the socket down and passes it to a worker to close. */
void shm_socket_close(struct shm_conn *conn);
/* Discards the queued messages. */
void shm_unsent_drop(struct shm_conn *conn);
/* Called when conn->resend has expired: sends the queued messages again. */
void shm_send_again(struct clan_deadline *deadline);
/* Called when conn->reread has expired: receives again. */
void shm_receive_again(struct clan_deadline *deadline);
/* Ends the connection, because it cannot continue without the queued messages. */
void shm_unsent_give_up(struct shm_conn *conn);
void shm_socket_happened(struct waiter_file *file, uint32_t events);
/* Sends HELLO with the program's hello, which is kept in case REGROUP requires a second HELLO. */
GMB_MUST_CHECK int shm_send_hello(struct shm_conn *conn);
GMB_MUST_CHECK int shm_send_welcome(struct shm_conn *conn, const void *hello, size_t hello_bytes);
void shm_send_refused(struct shm_conn *conn, int status, const char *text);
GMB_MUST_CHECK int shm_send_region(struct shm_conn *conn, const struct clan_share *share);
/* Sends REGION_OK, REGION_END or REGION_ENDED. */
GMB_MUST_CHECK int shm_send_region_answer(struct shm_conn *conn, enum shm_socket_type type,
	uint32_t number, uint32_t generation, int error);

/* --- shm_group.c ------------------------------------------------------------------------------ */

/* Creates a group and our head of it. *fd_out is the descriptor of the head, for the peer. */
GMB_MUST_CHECK int shm_group_create(
	struct clan_queue *queue, uint64_t id, struct shm_group **group_out, int *fd_out);
/* Maps the peer's head. Returns -EPROTO with the number of the broken rule in *rule_out, or another
 * negative errno. */
GMB_MUST_CHECK int shm_group_map_peer(struct shm_group *group, int fd, uint32_t *rule_out);
/* Adds the connection to the group and assigns it a number. */
GMB_MUST_CHECK int shm_group_join(struct shm_group *group, struct shm_conn *conn);
/* Removes the connection from its group. The last connection that leaves frees the group. */
void shm_group_leave(struct shm_conn *conn);
struct shm_group *shm_group_find(struct clan_queue *queue, uint64_t id);
/* Connector only. Returns a group with room for the connection: one with the same address, or one
 * whose peer is the process that listens there; NULL if there is none. The choice can be wrong: an
 * acceptor with several queues replies with REGROUP if the group belongs to another queue. */
struct shm_group *shm_group_find_place(const struct shm_conn *conn);
/* Adds the group to the active list: it is checked in every turn, until shm_arm() has requested a
 * wake-up from the peer. */
void shm_group_activate(struct shm_group *group);
/* Called when the peer has rung the bell, by a byte on a connection's socket or by the futex. */
void shm_group_bell(struct shm_group *group);
void shm_group_free(struct shm_group *group);

bool shm_progress(struct clan_queue *queue);
void shm_publish(struct clan_queue *queue);
bool shm_arm(struct clan_queue *queue);

/* Records a change that the peer might wait for (enum shm_reason). The next shm_publish() publishes
 * it. */
static inline void shm_changed(struct shm_conn *conn, uint32_t reasons)
{
	/* The peer of a lost connection does not read, so it need not be woken. */
	if (conn->conn.state != CLAN_OPEN) {
		return;
	}
	conn->changes |= reasons;
	if (!list_is_linked(&conn->dirty_node)) {
		list_push_back(&shm_queue(conn->conn.queue)->dirty, &conn->dirty_node);
	}
}
/* Publishes the recorded changes of one connection. */
void shm_publish_conn(struct shm_conn *conn);
/* Called when the program waits for data or room that the connection does not have. Requests
 * notification by the peer, then checks again, because the change could have come just before the
 * request. */
void shm_want(struct shm_conn *conn);
/* Checks everything that the peer can have changed and fires the enabled events. Returns true if
 * there was a change. */
bool shm_look(struct shm_conn *conn);

/* --- shm_ring.c ------------------------------------------------------------------------------- */

int shm_send(struct clan_conn *conn, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count, size_t bytes);
int shm_recv(struct clan_conn *conn, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes);
ssize_t shm_readv(struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count, bool peek);
/* Returns true if the ring has room for a message with this payload size, including its
 * head and padding. Can end the connection if the peer's read index breaks K12. */
bool shm_room(struct shm_conn *conn, enum shm_class class, size_t bytes);
/* Writes a message. The caller has checked the room. */
void shm_put_message(struct shm_conn *conn, enum shm_class class, uint8_t type,
	const struct iovec *iov, uint32_t iov_count, size_t bytes);
/* Returns true if the peer has published messages that have not been received. */
bool shm_has_message(struct shm_conn *conn, enum shm_class class);
/* Processes system records, at most two for each slot of the ring. Returns true if there were
 * any. */
bool shm_take_system(struct shm_conn *conn);
int shm_cookie_push(struct clan_conn *conn, uint32_t number, const struct clan_cookie *cookie);
int shm_cookie_pop(struct clan_conn *conn, uint32_t number, struct clan_cookie *cookie_out);
bool shm_cookie_room(struct shm_conn *conn);

/* Requests notification by the peer when there is room. Returns -EAGAIN, or -ENOTCONN if the
 * connection has ended. */
int shm_no_room(struct shm_conn *conn, enum shm_class class, size_t bytes, uint32_t ready);

/* --- shm_region.c ----------------------------------------------------------------------------- */

/* Processes REGION. Returns 0 if an answer was sent or follows, or a negative errno if the
 * connection has been ended. Takes ownership of fd. */
int shm_region_arrived(struct shm_conn *conn, const struct shm_region *message, int fd);
int shm_region_asked_back(struct shm_conn *conn, uint32_t number, uint32_t generation);
/* Called when the connection is lost or closed: releases each region of the peer as soon as nothing
 * holds it. After a close, the regions give no events. */
void shm_regions_leave(struct shm_conn *conn);
int shm_share(struct clan_conn *conn, struct clan_share *share);
int shm_unshare(struct clan_conn *conn, struct clan_share *share);
int shm_peer_info(const struct clan_conn *conn, uint32_t number, struct clan_peer_region *region);
int shm_peer_get(struct clan_conn *conn, uint32_t number, uint32_t generation, uint32_t rights,
	uint64_t offset, uint64_t bytes, void **address_out);
void shm_peer_put(struct clan_conn *conn, uint32_t number);

/* Returns in *address_out the local address of a range of the peer's region, if the region grants
 * the right. Returns 0 or a negative errno. */
int shm_region_place(struct shm_conn *conn, uint32_t number, uint32_t right, uint64_t offset,
	uint64_t bytes, uint8_t **address_out);

/* --- shm_memory.c ----------------------------------------------------------------------------- */

int shm_grant(struct clan_conn *conn, struct clan_share *share, struct clan_cookie *cookie);
int shm_revoke(struct clan_conn *conn, const struct clan_cookie *cookie, bool strict, void *op);
void shm_void_cookies(struct clan_conn *conn, const struct clan_share *share);
/* Returns true if the cookie is granted and not revoked. */
bool shm_is_granted(const struct shm_conn *conn, const struct clan_cookie *cookie);
/* Returns true if a revocation waits until the peer has ended a copy, as shown by its busy word. */
bool shm_waits_for_quiet(const struct shm_conn *conn);
/* Called when the peer's busy word might have changed, which shows that its copy has ended. Ends
 * the revocations that waited for this copy. Returns true if there were any. */
bool shm_look_quiet(struct shm_conn *conn);
/* Called when the connection is lost: ends all revocations. A strict one replaces the region's
 * pages. */
void shm_revocations_end(struct shm_conn *conn);
int shm_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op);
int shm_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);

struct shm_copy_order;
/* Called after bytes were put: sends TRIPPED for the peer's tripwires in the range. */
void shm_touched(struct shm_conn *conn, const struct shm_copy_order *order);
/* Called on the queue's thread when one of our copies with a cookie of the peer has ended; the
 * queue's thread or a helper thread has made the copy. */
void shm_busy_ends(struct shm_conn *conn);

int shm_tripwire(struct clan_conn *conn, const struct clan_share *share, uint64_t offset,
	uint32_t bytes, uint32_t *number_out);
int shm_rearm(struct clan_conn *conn, uint32_t number);
int shm_tripwire_remove(struct clan_conn *conn, uint32_t number);
/* Processes TRIPPED. */
void shm_tripped(struct shm_conn *conn, const struct shm_tripped *record);
/* Sends the TRIPPED records that found no room before. */
void shm_send_owed_trips(struct shm_conn *conn);
/* Called when the program closes the connection: drops the events of cookies and tripwires. */
void shm_memory_close(struct shm_conn *conn);
void shm_memory_free(struct shm_conn *conn);
void shm_memory_after_fork(struct shm_conn *conn);

/* --- shm_copy.c ------------------------------------------------------------------------------- */

/* A copy for a helper thread. */
struct shm_copy_order {
	uint8_t *shared; /* memory that the peer can write */
	bool to_shared;
	/* true: the peer granted the access with a cookie, and shared points into a region of the
	 * peer; false: shared points into a region of ours. */
	bool peers;
	bool notify;
	uint32_t value;
	uint32_t region;	/* number of the peer's region, held until the copy has ended */
	uint32_t cookie_region; /* region number in the cookie, for tripwires */
	/* Offset in region `cookie_region`, for tripwires. */
	uint64_t touched_at;
	size_t bytes;
	void *op; /* argument of CLAN_EVENT_DONE */
};

/* Starts a copy on a worker; CLAN_EVENT_DONE will report its end. Returns 0 or -ENOMEM. */
GMB_MUST_CHECK int shm_copy_begin(struct shm_conn *conn, const struct shm_copy_order *order,
	const struct iovec *iov, uint32_t iov_count);
/* Called when the bulk ring might have room: sends pending notifications of puts. */
void shm_copies_look(struct shm_conn *conn);
/* Called just before the connection becomes LOST. Puts whose bytes are copied, but whose
 * notification still waits for room, end with -ENOTCONN. */
void shm_copies_lost(struct shm_conn *conn);
/* Called when the connection is closed: drops the events of copies. */
void shm_copies_drop(struct shm_conn *conn);
void shm_copies_after_fork(struct shm_conn *conn);
int shm_fetch(struct clan_conn *conn, const struct clan_region *region, uint64_t offset, void *to,
	size_t bytes, void *op);
