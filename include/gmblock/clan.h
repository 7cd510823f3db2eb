/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclan: a user-level network. Two processes exchange messages and move data directly between
 * each other's memory; the kernel is asked only to connect them and to wake a sleeper.
 *
 *   struct clan_queue *queue;  clan_queue_create(NULL, &queue, &error);
 *   struct clan_conn *conn;    clan_connect(queue, "shm:/run/service", NULL, NULL, 0, &conn,
 * &error); clan_queue_wait(queue, events, 16, -1);        CLAN_EVENT_CONNECTED, CLAN_EVENT_READY,
 * ... clan_send(conn, CLAN_BULK, type, data, bytes); not seen by the peer before it is flushed
 *   clan_recv(conn, CLAN_ANY, &message, buffer, sizeof(buffer));
 *   clan_close(conn);                              CLAN_EVENT_CLOSED, then it is freed
 *   clan_queue_destroy(queue);
 *
 * Objects: a queue is the event queue of one thread. Connections, listeners and regions belong to a
 * queue. A region is memory that can be shared with peers. A cookie names a range of a region, and
 * holding it is the right to put or get there until it is revoked. Memory, state machines and what
 * a side trusts are described in clan(7) and docs/protocol/clan.md.
 *
 * Threads: a queue and everything on it belong to the thread that created the queue; only
 * clan_queue_wake() may be called from other threads. Queues are independent of each other. After
 * fork() only the parent may use a queue; the child calls clan_queue_after_fork().
 *
 * Calls: nothing here calls the program back, and nothing but clan_queue_wait() blocks (queues with
 * CLAN_QUEUE_PASSIVE: see there; clan_listen() may look up a name). Calls that start something
 * return 0 when an event will report its end, 1 when it has ended already, and a negative errno
 * when nothing was started. -EAGAIN always means "not now": an event comes when it can be tried
 * again.
 *
 * Ownership: structs, vectors and buffers passed to a call are borrowed until it returns, unless
 * its comment says otherwise. Structs that begin with a member "size" must have it set to their
 * sizeof, and every other member zero unless set on purpose.
 *
 * Errors: functions that can fail return a negative errno; those that take a struct clan_error also
 * fill it with a message for people (NULL: no message). -EINVAL always means that an argument
 * breaks the rules given here.
 */
#ifndef GMBLOCK_CLAN_H
#define GMBLOCK_CLAN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct clan_queue;
struct clan_listener;
struct clan_conn;
struct clan_region;

/* An error with a message for people. */
struct clan_error {
	int code;	/* the negative errno that was returned */
	char text[508]; /* one sentence without a final full stop, terminated, UTF-8 or escaped */
};

/* ---- queues: the asynchronous event queue (CLAN paper, "asynchronous event queue") -------------
 */

enum clan_queue_flags {
	/* No io_uring and no threads: progress is made only inside calls, and all wake-ups come
	 * through sockets. For programs whose loop, sandbox or fork() forbids the others. Calls may
	 * then block for as long as the kernel takes to close a descriptor that a peer sent, so use
	 * it with peers that are trusted that far. */
	CLAN_QUEUE_PASSIVE = 1 << 0,
};

/* How peers wake this queue. The peer obeys what the waiting side asked for. */
enum clan_bell {
	CLAN_BELL_AUTO,	  /* futex where the kernel can (Linux 6.7, probed), else socket */
	CLAN_BELL_FUTEX,  /* a futex word in the peer's memory, waited for by io_uring */
	CLAN_BELL_SOCKET, /* one byte on the connection's socket */
};

struct clan_queue_options {
	size_t size;
	uint32_t flags;	    /* enum clan_queue_flags */
	uint32_t bell;	    /* enum clan_bell */
	uint32_t spin_us;   /* clan_queue_wait() looks this long before it sleeps, letting other
			       threads run; 0 = not at all */
	uint32_t conns_max; /* connections; 0 = 4096; at most 65536 */
};

/* Creates a queue that belongs to the calling thread. options may be NULL. Errors: -EINVAL,
 * -ENOMEM, -EMFILE, -EOPNOTSUPP (CLAN_BELL_FUTEX was demanded and the kernel has none). */
int clan_queue_create(const struct clan_queue_options *options, struct clan_queue **queue_out,
	struct clan_error *error);

/* Frees the queue. -EBUSY, and nothing happens, while it has connections, listeners or regions.
 * NULL is a no-op. */
int clan_queue_destroy(struct clan_queue *queue);

enum clan_event_type {
	/* A peer wants to connect: answer with clan_accept(), clan_reject() or clan_close(), before
	 * the handshake deadline. clan_conn_peer() and clan_conn_hello() say who and what. */
	CLAN_EVENT_CONNECT = 1,
	/* clan_connect() succeeded; clan_conn_hello() has what the acceptor sent. */
	CLAN_EVENT_CONNECTED,
	/* Something that returned -EAGAIN can be tried again; .ready says what. */
	CLAN_EVENT_READY,
	/* The connection is over: .status is -ECONNREFUSED (rejected; clan_conn_hello() has the
	 * text), -ECONNRESET (the peer ended or closed), -EPROTO (it broke a rule; see
	 * clan_conn_reason()), -ETIMEDOUT (no answer to the handshake, or a strict revocation was
	 * not obeyed), -ETOOMANYREFS (the process's user had more descriptors in flight than the
	 * limit on open files for too long), or another errno of connecting. What the peer had
	 * published can still be received. Call clan_close(). */
	CLAN_EVENT_LOST,
	/* After clan_close(): nothing of the connection runs any more, the peer's memory cannot be
	 * reached through it, and the handle in .conn is invalid from here on (compare it only). */
	CLAN_EVENT_CLOSED,
	/* clan_region_share() has ended. .status 0: .number and .generation name the region to the
	 * peer. Otherwise the peer refused it with that errno. */
	CLAN_EVENT_SHARED,
	/* clan_region_unshare() has ended: the peer's library uses the region no more. */
	CLAN_EVENT_UNSHARED,
	/* The peer has shared a region: .number, .generation; see clan_peer_region_info(). The peer
	 * knows that it is taken, so a message that names it can be received before this event; the
	 * region can be used then. */
	CLAN_EVENT_REGION,
	/* The peer wants its region .number back: no new holds are granted, and it is returned when
	 * the last one is put. Also when the connection is lost. */
	CLAN_EVENT_REGION_ENDING,
	/* clan_cookie_revoke() has ended; .op is its argument, .number the cookie's slot. .status
	 * 0: nothing can arrive by the cookie any more. */
	CLAN_EVENT_REVOKED,
	/* Tripwire .number was touched; it is off until clan_rearm(). */
	CLAN_EVENT_TRIPPED,
	/* A put, get or fetch that returned 0 has ended with .status; .op is its argument. */
	CLAN_EVENT_DONE,
	/* Only with CLAN_HANDSHAKES_OWN: somebody has connected, and has not said who it is.
	 * clan_conn_peer() has the address. CLAN_EVENT_CONNECT follows, or CLAN_EVENT_LOST.
	 * clan_reject() and clan_close() may be called at any time. */
	CLAN_EVENT_ARRIVED,
};

enum clan_ready {
	CLAN_READY_CONTROL = 1 << 0,	  /* clan_recv(CLAN_CONTROL) */
	CLAN_READY_BULK = 1 << 1,	  /* clan_recv(CLAN_BULK), clan_readv() */
	CLAN_READY_SEND_CONTROL = 1 << 2, /* clan_send(CLAN_CONTROL) */
	CLAN_READY_SEND_BULK = 1 << 3,	  /* clan_send(CLAN_BULK), clan_writev(), notifying puts */
	CLAN_READY_COOKIES = 1 << 4,	  /* clan_cookie_queue_pop() */
	CLAN_READY_PUSH_COOKIE = 1 << 5,  /* clan_cookie_queue_push() */
};

struct clan_event {
	uint32_t type;		    /* enum clan_event_type */
	int32_t status;		    /* 0 or a negative errno */
	struct clan_conn *conn;	    /* NULL in no event of this version */
	void *context;		    /* the connection's, see clan_conn_set_context() */
	void *op;		    /* REVOKED, DONE: argument of the call */
	struct clan_region *region; /* SHARED, UNSHARED */
	uint32_t ready;		    /* READY: enum clan_ready */
	uint32_t number;	    /* region, cookie slot or tripwire */
	uint32_t generation;	    /* SHARED, REGION */
	uint32_t reserved;
};

/*
 * Publishes what was submitted, makes progress, and gives at most max events (at least 1). Waits
 * until there is one, clan_queue_wake() was called, or timeout_ms have passed: 0 = does not wait,
 * -1 = no limit. Returns the number of events (0 after a timeout or a wake-up).
 *
 * An event is queued at most once until the call that can raise it again, so the queue cannot
 * overflow, and its cost does not depend on the number of connections. An idle queue costs nothing.
 * A wait gives at most one of ARRIVED, CONNECT, CONNECTED, READY and LOST of a connection, in this
 * order: clan_recv() may say that the connection is over before LOST is given. Errors: -EINVAL.
 */
int clan_queue_wait(
	struct clan_queue *queue, struct clan_event *events, uint32_t max, int timeout_ms);

/* Makes the current wait return, or else the next one. Any thread, and signal handlers. */
void clan_queue_wake(struct clan_queue *queue);

/*
 * For loops of other makers. The descriptor belongs to the queue and polls readable when
 * clan_queue_wait(queue, events, max, 0) has work, provided that clan_queue_arm() returned 0 after
 * the last call on the queue. It stays the same for the life of the queue.
 */
int clan_queue_fd(const struct clan_queue *queue);

/* Publishes what was submitted and asks every peer for a wake-up. Returns 1 when there is work
 * already (do not sleep), 0 when the descriptor will tell. Before every sleep of a foreign loop;
 * clan_queue_wait() does it by itself. Costs O(peers that were active), not O(connections). */
int clan_queue_arm(struct clan_queue *queue);

/* In the child after fork(): closes the child's copies of descriptors, unmaps what is mapped, and
 * frees every object of the queue, without any effect on the parent or on peers. Regions stay
 * mapped in the child, at the same addresses, as memory shared with the parent. The child must call
 * it early: until then a peer cannot notice that the parent died. */
void clan_queue_after_fork(struct clan_queue *queue);

/* ---- connections -------------------------------------------------------------------------------
 */

enum clan_access {
	CLAN_ACCESS_OWNER, /* the process's own user, and root */
	CLAN_ACCESS_ANY,   /* everybody who can reach the address; the program decides by
			      clan_conn_peer() */
	/* The same, and on shm memory that another user than root and our own may write is touched
	 * by helper threads only: whoever may write it can punch holes, which a thread that touches
	 * it waits for. Such a connection has no CLAN_CAN_MAP here; its puts and gets end by
	 * CLAN_EVENT_DONE, and what is sent before that event can overtake a put. Not with
	 * CLAN_QUEUE_PASSIVE. */
	CLAN_ACCESS_WARY,
};

/* What one side of a connection offers and accepts. NULL and 0 mean the default. */
struct clan_conn_options {
	size_t size;
	uint32_t access;     /* enum clan_access; clan_connect(): only whether it is WARY */
	uint32_t bulk_slots; /* our bulk ring in slots of 64 bytes: a power of two, 256 to 65536;
				0 = 256. The memory we use per connection is 8 KiB + 64 times it;
				on a network: 72 KiB (ofi: 115) + 64 times it, and it is what
				we receive in;
				what the peer shares and grants takes up to 1.1 MiB more */
	uint32_t cookies;    /* cookies that can be granted at once; 0 = 64; at most 4096 */
	uint32_t tripwires;  /* 0 = 32; at most 4096 */
	uint32_t handshake_timeout_ms;	/* from the connection's start to its end; 0 = 10 s */
	uint32_t peer_slots_max;	/* bulk slots that a peer may have; 0 = 65536. Not on a
					   network, where they take none of our memory */
	uint32_t peer_regions_max;	/* regions that a peer may share; 0 = 16; at most 4096 */
	uint64_t peer_region_bytes_max; /* and their sizes altogether; 0 = 64 MiB */
	uint32_t conns_max;		/* listeners: connections at once; 0 = 4096 */
	uint32_t handshakes_max;	/* listeners: of them, before clan_accept(); 0 = 64; on
					   shm half of them for one user, on a network one
					   address can have all. CLAN_HANDSHAKES_OWN: networks
					   only, see there */
};

/* The program limits handshakes itself, so that one peer cannot have all of them: it is told of
 * each connection by CLAN_EVENT_ARRIVED. */
#define CLAN_HANDSHAKES_OWN UINT32_MAX

/*
 * Listens at an address: "shm:PATH" (a Unix socket, replaced when nobody listens there; mode
 * 0600, or 0666 with CLAN_ACCESS_ANY), "shm:@NAME" (abstract), "tcp:HOST:PORT" (a network; IPv6
 * addresses in brackets; port 0: one that is free), or "ofi:HOST:PORT", which uses libfabric, with
 * "?provider=tcp" (default) or "?provider=verbs" (RDMA) behind the port. A network knows no users,
 * so it demands CLAN_ACCESS_ANY, and encrypts nothing. Peers come as CLAN_EVENT_CONNECT. Errors:
 * -EINVAL, -EADDRINUSE, -EACCES, -EMFILE, -ENOMEM, -EPROTONOSUPPORT (the scheme of the address, or
 * libfabric is not installed), and those of bind(2).
 */
int clan_listen(struct clan_queue *queue, const char *address,
	const struct clan_conn_options *options, struct clan_listener **listener_out,
	struct clan_error *error);

enum { CLAN_ADDRESS_BYTES = 160 };

/* Where it listens, as clan_connect() takes it: with the port that was found for port 0. Valid
 * until the listener is closed. */
const char *clan_listener_address(const struct clan_listener *listener);

/* Stops listening. Its connections stay, but for those without CLAN_EVENT_CONNECT; of some that
 * event may still be given. Removes the socket file. NULL is a no-op. */
void clan_listener_close(struct clan_listener *listener);

/* Takes a connected Unix SOCK_SEQPACKET socket that the program accepted by itself, for programs
 * that spread connections over several queues. The descriptor is taken, also on failure. The first
 * event is CLAN_EVENT_CONNECT when the peer has introduced itself, or CLAN_EVENT_LOST; clan_close()
 * must be called in either case, and may be called at any time. Errors: -EINVAL (also: not such a
 * socket), -EACCES (options->access), -ENOMEM, -EMFILE, -EUSERS (conns_max of the queue). */
int clan_adopt(struct clan_queue *queue, int fd, const struct clan_conn_options *options,
	struct clan_conn **conn_out, struct clan_error *error);

enum { CLAN_HELLO_BYTES_MAX = 4096 };

/*
 * Starts to connect. hello (at most CLAN_HELLO_BYTES_MAX bytes) is given to the acceptor. The
 * result is CLAN_EVENT_CONNECTED or CLAN_EVENT_LOST; clan_close() must be called in either case.
 * Messages can be sent after CONNECTED only. On a network that nobody listens comes as LOST, since
 * the answer takes its time. Errors, when nothing was started: -EINVAL, -EPROTONOSUPPORT, -ENOENT,
 * -ECONNREFUSED (nobody listens), -EACCES, -EAGAIN (the listener's backlog is full; no event
 * comes), -ENOMEM, -EMFILE, -EUSERS.
 */
int clan_connect(struct clan_queue *queue, const char *address,
	const struct clan_conn_options *options, const void *hello, size_t hello_bytes,
	struct clan_conn **conn_out, struct clan_error *error);

/* Accepts the connection of a CLAN_EVENT_CONNECT; usable at once. hello is given to the peer. If
 * the peer has gone, CLAN_EVENT_LOST follows. Errors: -EINVAL, -EMFILE, -ENOMEM, -ECONNRESET. The
 * connection still has to be closed after an error. */
int clan_accept(struct clan_conn *conn, const void *hello, size_t hello_bytes);

/* Refuses it with a text for people of at most CLAN_HELLO_BYTES_MAX bytes, and closes it as
 * clan_close() does. */
void clan_reject(struct clan_conn *conn, const char *text);

/* Publishes what was sent, tells the peer, and gives the connection up. CLAN_EVENT_CLOSED follows
 * when nothing of it runs any more: after the last clan_peer_region_put(), and on a network when
 * the peer has got everything or has not taken it for 2 s; until then regions stay shared. In
 * between only clan_peer_region_put() may be called on it. Events that were not yet given are
 * dropped. */
void clan_close(struct clan_conn *conn);

/* A pointer of the program's, repeated in every event. */
void clan_conn_set_context(struct clan_conn *conn, void *context);
void *clan_conn_context(const struct clan_conn *conn);

/* The process at the other end as the kernel knows it, from the time it connected (or listened). On
 * a network only its address is known: pid is 0, and uid and gid are -1. */
struct clan_peer {
	pid_t pid;
	uid_t uid;
	gid_t gid;
	char address[64]; /* on a network: "HOST:PORT", numeric; else "" */
};
void clan_conn_peer(const struct clan_conn *conn, struct clan_peer *peer);

/* What the peer said when it connected, accepted or rejected: hostile bytes, valid until the
 * connection is closed. */
const void *clan_conn_hello(const struct clan_conn *conn, size_t *bytes_out);

/* Why the connection was lost, for people; "" while it is not. Valid until it is closed. */
const char *clan_conn_reason(const struct clan_conn *conn);

enum clan_conn_caps {
	/* Who is told of a region maps it: clan_peer_region_get() works, and what a lost peer has
	 * under way in ours goes on until clan_region_replace(). Without it regions are reached by
	 * put and get only, and nothing of the connection arrives after CLAN_EVENT_CLOSED. */
	CLAN_CAN_MAP = 1 << 0,
};

/* What kind of network carries the connection: a set of enum clan_conn_caps. The same from the
 * beginning, and at both ends where none is CLAN_ACCESS_WARY. */
uint32_t clan_conn_caps(const struct clan_conn *conn);

/* Counters since the connection was made. stats->size must be set. */
struct clan_conn_stats {
	size_t size;
	uint64_t messages_sent; /* also notifications and pieces of a stream */
	uint64_t messages_received;
	uint64_t bytes_sent; /* of messages and streams */
	uint64_t bytes_received;
	uint64_t puts;
	uint64_t gets;
	uint64_t bytes_put;
	uint64_t bytes_got;
	uint64_t refused;     /* puts and gets by cookies that did not allow them */
	uint64_t bells_rung;  /* system calls that woke the peer */
	uint64_t bells_heard; /* wake-ups by the peer's queue, of all connections to it */
	uint64_t bells_idle;  /* of those, the ones that brought nothing */
	uint32_t bell;	      /* enum clan_bell: how the peer wakes us */
	uint32_t peer_bell;   /* enum clan_bell: how we wake the peer */
};
void clan_conn_get_stats(const struct clan_conn *conn, struct clan_conn_stats *stats);

/* ---- messages: distributed message queues (CLAN paper)
 * -------------------------------------------
 */

/* Classes have rings and credits of their own: control is never behind bulk. The order of messages
 * is kept within a class. */
enum clan_class {
	CLAN_CONTROL = 1 << 0,
	CLAN_BULK = 1 << 1,
	CLAN_ANY = CLAN_CONTROL | CLAN_BULK, /* receiving: control first, at most 64 in a row */
};

enum {
	CLAN_CONTROL_BYTES_MAX = 1016, /* payload of a message */
	CLAN_BULK_BYTES_MAX = 8184,
	CLAN_VALUE_MAX = 0x7fffffff, /* values of notifications have 31 bits */
};

/* Types 0x01 to 0xef are the program's; the library makes these. */
enum clan_message_type {
	CLAN_TYPE_STREAM = 0xf0, /* bytes of clan_writev(): use clan_readv() */
	CLAN_TYPE_NOTIFY = 0xf1, /* a put with CLAN_NOTIFY has arrived; clan_message.value */
};

struct clan_message {
	uint32_t cls;	/* CLAN_CONTROL or CLAN_BULK */
	uint32_t type;	/* 0x01 to 0xef, or enum clan_message_type */
	uint32_t bytes; /* of the payload */
	uint32_t value; /* CLAN_TYPE_NOTIFY only */
};

/*
 * Copies a message into the ring of its class. It never blocks. The peer sees it after clan_flush()
 * or the next clan_queue_wait() or clan_queue_arm(), so that one wake-up serves many.
 * Returns 0. Errors: -EAGAIN no room (CLAN_EVENT_READY with CLAN_READY_SEND_... follows),
 * -EMSGSIZE, -EINVAL type or class, -ENOTCONN not connected, or lost.
 */
int clan_send(
	struct clan_conn *conn, uint32_t cls, uint32_t type, const void *data, uint32_t bytes);
/* The same from a vector of at most 64 entries. */
int clan_sendv(struct clan_conn *conn, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count);

/* Publishes what was sent on this connection, and wakes the peer if it asked for that. */
void clan_flush(struct clan_conn *conn);

/*
 * Takes the next message of the classes given (enum clan_class). The payload is copied to buffer
 * once; the peer cannot change it afterwards. Returns 0 and fills *message.
 * Errors: -EAGAIN none (CLAN_EVENT_READY with CLAN_READY_... follows when one comes), -EMSGSIZE it
 * is longer than bytes: *message is filled, and it stays; -ENOTCONN nothing is left and the
 * connection is over.
 */
int clan_recv(struct clan_conn *conn, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes);

enum clan_read_flags {
	CLAN_READ_PEEK = 1 << 0, /* the bytes stay; the peer may change them before they are read
				    again */
};

/*
 * A stream of bytes in the bulk class, without boundaries and without a copy of the library's own.
 * clan_writev() cuts what it gets into messages and returns how many bytes were taken, at least 1;
 * published as by clan_send(). clan_readv() returns how many bytes were copied, at least 1.
 * Vectors have at most 1024 entries. Errors: as clan_send() and clan_recv(); -EBADMSG: the next
 * bulk message is not part of a stream.
 */
ssize_t clan_writev(struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count);
ssize_t clan_readv(
	struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count, uint32_t flags);

/* ---- regions
 * -------------------------------------------------------------------------------------
 */

enum clan_region_flags {
	CLAN_REGION_HUGE = 1 << 0, /* ask for transparent huge pages */
};

/* Memory of our own that can be shared: zeroed, populated, a multiple of the page size, at most
 * 1 TiB. *base_out is its address, the same until clan_region_destroy(). Errors: -EINVAL, -ENOMEM,
 * -EMFILE. */
int clan_region_create(struct clan_queue *queue, size_t bytes, uint32_t flags,
	struct clan_region **region_out, void **base_out);

/* The same over a memfd of the program's (memfd_create(2)), which must be sealed against growing
 * and shrinking (F_SEAL_GROW, F_SEAL_SHRINK). offset and bytes are multiples of the page size. The
 * descriptor is borrowed. Pages of such a region cannot be replaced. Errors: also -EPERM (seals).
 */
int clan_region_import(struct clan_queue *queue, int memfd, uint64_t offset, size_t bytes,
	struct clan_region **region_out, void **base_out);

/* The same over memory of the program's, of any kind, place and size. It can be shared on networks
 * only (elsewhere sharing it fails with -EOPNOTSUPP), and its pages cannot be replaced. Puts from
 * such memory and gets to it cost no registration of their own. The memory must stay mapped until
 * the region is destroyed. Errors: -EINVAL, -ENOMEM. */
int clan_region_register(
	struct clan_queue *queue, void *base, size_t bytes, struct clan_region **region_out);

/* Frees it, and unmaps it unless it is registered. -EBUSY while it is shared. NULL is a no-op. */
int clan_region_destroy(struct clan_region *region);

enum clan_rights {
	CLAN_READ = 1 << 0,  /* the peer may get from it */
	CLAN_WRITE = 1 << 1, /* the peer may put to it */
};

/*
 * Offers the region to the peer; CLAN_EVENT_SHARED follows. On shm the peer's process can from then
 * on see and change all of it (with CLAN_READ only: see all of it), whatever cookies say: a region
 * is the boundary of trust, and cookies order peers that keep the rules (docs/protocol/clan.md,
 * "What each side trusts"). On shm, regions shared read-only must be created by
 * clan_region_create(), and the first share decides whether all are read-only, until
 * clan_region_replace(). On a network the peer's machine can do so until it has returned the region
 * or the connection has ended, and, if it breaks the rules, by other connections that it has to the
 * queue. Errors: -EINVAL, -EALREADY, -ENOTCONN, -EUSERS (regions of the connection), -EAGAIN (the
 * socket is full; no event comes), -EPERM, -EOPNOTSUPP (registered memory), -ENOMEM.
 */
int clan_region_share(struct clan_conn *conn, struct clan_region *region, uint32_t rights);

/* Asks for it back; cookies on it are void at once. CLAN_EVENT_UNSHARED follows when the peer's
 * holds are put, or the connection is closed. Errors: -ENOENT not shared, -EALREADY, -EBUSY
 * CLAN_EVENT_SHARED is still to come, or a strict revocation on it is under way, -EAGAIN (no event
 * comes). */
int clan_region_unshare(struct clan_conn *conn, struct clan_region *region);

struct clan_range {
	uint64_t offset;
	uint64_t bytes;
};

/*
 * Puts fresh pages under the region's addresses, so that nothing that a peer or its unfinished disk
 * operations still write can arrive: strict revocation. Contents are kept, except within the
 * scratch ranges (undefined afterwards; unaligned ends are kept to the page). The region is no
 * longer shared with connections that are lost. Pointers stay valid; mappings made by fork() and
 * registrations with the kernel (io_uring buffers) keep the old pages and must be renewed.
 * On a network there is no need: nothing of a connection arrives any more once it is lost.
 * Errors, when nothing was changed: -EBUSY it is shared with a connection that is not lost,
 * -EOPNOTSUPP imported or registered, or a network adapter knows its pages, -ENOMEM (memory, or the
 * limit of mappings), -EINVAL, -EMFILE.
 */
int clan_region_replace(
	struct clan_region *region, const struct clan_range *scratch, uint32_t scratch_count);

/* ---- regions of the peer
 * ---------------------------------------------------------------------------
 */

struct clan_peer_region {
	size_t size;
	void *base; /* where it is mapped here, until it is returned; hostile memory: bytes may
		       change between two looks. NULL without CLAN_CAN_MAP */
	uint64_t bytes;
	uint32_t rights; /* enum clan_rights: what we may do */
	uint32_t generation;
	uint32_t holds;
};

/* Information about a region that the peer shares. region->size must be set. -ENOENT. */
int clan_peer_region_info(
	const struct clan_conn *conn, uint32_t number, struct clan_peer_region *region);

/*
 * Checks that a range which the peer named lies in a region that it shares, with that generation
 * and with the rights needed, and holds the region: it stays mapped, and is not returned to the
 * peer, until clan_peer_region_put(). *address_out is where the range begins. Errors: -EOPNOTSUPP
 * without CLAN_CAN_MAP, -ENOENT no such region, -ESTALE its generation, or the peer wants it
 * back, -EACCES rights, -ERANGE the range, -ENOTCONN lost.
 */
int clan_peer_region_get(struct clan_conn *conn, uint32_t number, uint32_t generation,
	uint32_t rights, uint64_t offset, uint64_t bytes, void **address_out);
void clan_peer_region_put(struct clan_conn *conn, uint32_t number);

/* ---- cookies, put and get (CLAN paper, "RDMA cookies", with revocation)
 * ------------------------------
 */

enum clan_cookie_flags {
	CLAN_COOKIE_ONCE = 1 << 0, /* void after one put or get */
};

/* A range of a region, as it is sent to the peer in a message. Little-endian, 32 bytes. */
struct clan_cookie {
	uint64_t offset; /* in the region */
	uint32_t bytes;
	uint32_t generation; /* of the slot; never 0 */
	uint16_t slot;
	uint16_t region; /* number */
	uint16_t rights; /* enum clan_rights */
	uint16_t flags;	 /* enum clan_cookie_flags */
	uint64_t reserved;
};

/* Grants the peer a range of a region that is shared with it. Errors: -EINVAL, -ENOENT not shared,
 * -EACCES more than the region's rights, -ERANGE, -ENOSPC all cookies are granted (see
 * clan_conn_options.cookies), -ENOTCONN. */
int clan_cookie_grant(struct clan_conn *conn, struct clan_region *region, uint64_t offset,
	uint32_t bytes, uint32_t rights, uint32_t flags, struct clan_cookie *cookie_out);

enum clan_revoke_flags {
	/* Do not rely on the peer: when it has not answered after 10 ms, the connection is lost
	 * (-ETIMEDOUT) and the region's pages are replaced as by clan_region_replace(), with the
	 * cookie's range as scratch. .status of the event is that call's result. On a network it is
	 * 1 s, and the end of the connection is enough: .status is 0. */
	CLAN_REVOKE_STRICT = 1 << 0,
};

/*
 * Takes a cookie back. Returns 1 when nothing can arrive by it any more, or 0 when the peer is in
 * the middle of a put or get: CLAN_EVENT_REVOKED follows. Without STRICT it follows when the peer
 * is through. Errors: -ESTALE not granted (any more), -EALREADY, -ENOTCONN lost: only
 * clan_region_replace() helps.
 */
int clan_cookie_revoke(
	struct clan_conn *conn, const struct clan_cookie *cookie, uint32_t flags, void *op);

enum clan_put_flags {
	/* The peer gets a message CLAN_TYPE_NOTIFY with a value, in order with bulk messages, after
	 * the bytes. Published as by clan_send(). */
	CLAN_NOTIFY = 1 << 0,
};

/*
 * Writes to, or reads from, the range that a cookie of the peer names, at offset within the cookie.
 * Vectors have at most 64 entries. Bytes of different puts may arrive in any order; messages sent
 * after a put arrive after its bytes. Returns 1 when it has ended, 0 when CLAN_EVENT_DONE with op
 * will tell; from and to are held until then. value: at most CLAN_VALUE_MAX; 0 without CLAN_NOTIFY.
 * Errors: -ESTALE revoked, or used with ONCE, -EACCES, -ERANGE, -ENOENT the region is gone, -EAGAIN
 * (with CLAN_NOTIFY: no room, as clan_send()), -ENOTCONN, -EINVAL, -ENOMEM. After an error nothing
 * arrived. shm ends every one at once, but with CLAN_ACCESS_WARY; networks end later. When the
 * connection is lost, each ends with an error, and nobody knows whether it has arrived; after
 * clan_close() no CLAN_EVENT_DONE comes, and CLAN_EVENT_CLOSED ends all.
 */
int clan_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, uint32_t flags, uint32_t value,
	void *op);
int clan_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);

/*
 * Copies from a region of ours that the peer may write, for those who are CLAN_ACCESS_WARY. Returns
 * 1 when it has ended, 0 when CLAN_EVENT_DONE with op will tell: to is held until then, or until
 * CLAN_EVENT_CLOSED, and the region must not be destroyed. Errors: -EINVAL another queue, -ERANGE,
 * -ENOTCONN, -ENOMEM.
 */
int clan_region_fetch(struct clan_conn *conn, const struct clan_region *region, uint64_t offset,
	void *to, size_t bytes, void *op);

/* ---- tripwires
 * ---------------------------------------------------------------------------------------
 */

/*
 * Watches a range of a region shared with the peer: the first put of this peer that touches it
 * raises CLAN_EVENT_TRIPPED, whatever cookie it used and without its program knowing. Errors:
 * -EINVAL, -ENOENT, -ERANGE, -ENOSPC (clan_conn_options.tripwires), -ENOTCONN.
 */
int clan_tripwire(struct clan_conn *conn, struct clan_region *region, uint64_t offset,
	uint32_t bytes, uint32_t *number_out);

/* Switches it on again after CLAN_EVENT_TRIPPED (before: no effect). Then look at the memory: what
 * was put earlier is visible, what is put later raises the event. -ENOENT, -ENOTCONN. */
int clan_rearm(struct clan_conn *conn, uint32_t number);

/* Removes it; no event of it follows. -ENOENT. */
int clan_tripwire_remove(struct clan_conn *conn, uint32_t number);

/* ---- cookie queues
 * -----------------------------------------------------------------------------------
 */

enum { CLAN_COOKIE_QUEUES = 16 };

/*
 * Sends cookies ahead of need: what is pushed here, the peer pops, first in, first out. number: 0
 * to CLAN_COOKIE_QUEUES - 1. Published as by clan_send(). An empty queue is flow control. Popping
 * does not validate a cookie; put and get do. Errors: -EAGAIN no room, or empty (CLAN_EVENT_READY
 * follows), -EINVAL, -ESTALE (push) it is not granted, -ENOTCONN.
 */
int clan_cookie_queue_push(
	struct clan_conn *conn, uint32_t number, const struct clan_cookie *cookie);
int clan_cookie_queue_pop(struct clan_conn *conn, uint32_t number, struct clan_cookie *cookie_out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
