/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclan: a user-level network. Two processes exchange messages and move data directly between
 * each other's memory. The kernel is used only to connect them and to wake a sleeping process.
 *
 *   struct clan_queue *queue;
 *   struct clan_conn *conn;
 *   clan_queue_create(NULL, &queue, &error);
 *   clan_connect(queue, "shm:/run/service", NULL, NULL, 0, &conn, &error);
 *   clan_queue_wait(queue, events, 16, -1);        CLAN_EVENT_CONNECTED, CLAN_EVENT_READY, ...
 *   clan_send(conn, CLAN_BULK, type, data, bytes); the peer sees it after the next flush
 *   clan_recv(conn, CLAN_ANY, &message, buffer, sizeof(buffer));
 *   clan_close(conn);                              CLAN_EVENT_CLOSED, then it is freed
 *   clan_queue_destroy(queue);
 *
 * <gmblock/clan_memory.h> has regions, cookies, put and get; <gmblock/clan_rpc.h> has remote
 * procedure calls.
 *
 * Objects: a queue is the event queue of one thread. Connections, listeners and regions belong to a
 * queue. A region is memory that can be shared with peers. A cookie names a range of a region; its
 * holder has the right to put or get there until the cookie is revoked. clan(7) and
 * docs/protocol/clan.md describe the memory model, the state machines and the trust between the two
 * sides.
 *
 * Threads: a queue and all of its objects belong to the thread that created the queue. Only
 * clan_queue_wake() and clan_version() can be called from other threads. Queues are independent of
 * each other. After fork() only the parent may use a queue; the child must call
 * clan_queue_after_fork().
 *
 * Calls: the library never calls back into the program, and only clan_queue_wait() blocks
 * (exceptions: queues with CLAN_QUEUE_PASSIVE, see there, and clan_listen(), which might look up a
 * name, and the calls of clan_rpc.h that say so). A call that starts an operation returns 0, and
 * the event named in its comment reports the end; after an error no event follows. clan_put(),
 * clan_get() and clan_region_fetch() end within the call, without an event, on connections with
 * CLAN_CAN_MAP. -EAGAIN always means "not now": an event reports when to try again. -ENOBUFS means
 * that there is no room in the kernel, and no event reports when there is.
 *
 * Ownership: structs, vectors and buffers passed to a call are borrowed until it returns, unless
 * its comment says otherwise. In structs that begin with a member "size", set it to the sizeof of
 * the struct and set every unused member to zero.
 *
 * Errors: functions that can fail return a negative errno. Functions that take a struct clan_error
 * also fill in a human-readable message (NULL: no message). -EINVAL always means that an argument
 * breaks a rule given in this header.
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

#define CLAN_VERSION_MAJOR 0
#define CLAN_VERSION_MINOR 1
#define CLAN_VERSION_PATCH 0

/* Whether this header is of version major.minor.patch or later. */
#define CLAN_CHECK_VERSION(major, minor, patch)                                                    \
	(CLAN_VERSION_MAJOR > (major) ||                                                           \
		(CLAN_VERSION_MAJOR == (major) &&                                                  \
			(CLAN_VERSION_MINOR > (minor) || (CLAN_VERSION_MINOR == (minor) &&         \
								 CLAN_VERSION_PATCH >= (patch)))))

/* The version of the library in use, such as "0.1.0"; a constant. Any thread. */
const char *clan_version(void);

struct clan_queue;
struct clan_listener;
struct clan_conn;
struct clan_region;

/* An error with a human-readable message. */
struct clan_error {
	int code;	/* the negative errno that the call returned */
	char text[508]; /* one sentence, no final full stop; NUL-terminated, UTF-8 or escaped */
};

/* ---- queues: the asynchronous event queue of the CLAN paper --------------------------------- */

enum clan_queue_flags {
	/* No io_uring and no threads: the queue makes progress only inside calls, and all wake-ups
	 * come through sockets. For programs whose event loop, sandbox or fork() rules out io_uring
	 * or threads. A call can then block while the kernel closes a descriptor that a peer sent
	 * or maps its memory, so use it only with peers that are trusted not to exploit this.
	 * clan_connect() to a network looks up the name in the call. */
	CLAN_QUEUE_PASSIVE = 1 << 0,
};

/* How peers wake this queue. The side that waits chooses, and the peer complies. */
enum clan_bell {
	CLAN_BELL_AUTO,	  /* futex if the kernel supports it (Linux 6.7, probed), else socket */
	CLAN_BELL_FUTEX,  /* a futex word in the peer's memory, waited for with io_uring */
	CLAN_BELL_SOCKET, /* one byte on the connection's socket */
};

struct clan_queue_options {
	size_t size;
	uint32_t flags; /* enum clan_queue_flags */
	uint32_t bell;	/* enum clan_bell */
	/* time for which clan_queue_wait() polls before the thread sleeps; less if another thread
	 * needs the CPU; 0 = no polling */
	uint32_t spin_us;
	uint32_t conns_max; /* limit on connections; 0 = 4096; at most 65536 */
};

/* Creates a queue that belongs to the calling thread. options may be NULL. Errors: -EINVAL,
 * -ENOMEM, -EMFILE, -EOPNOTSUPP (CLAN_BELL_FUTEX was requested and the kernel does not support
 * it). */
int clan_queue_create(const struct clan_queue_options *options, struct clan_queue **queue_out,
	struct clan_error *error);

/* Frees the queue. Fails with -EBUSY, without any effect, while the queue has connections,
 * listeners or regions. NULL is a no-op. */
int clan_queue_destroy(struct clan_queue *queue);

enum clan_event_type {
	/* A peer wants to connect. Answer with clan_accept(), clan_reject() or clan_close() before
	 * the handshake deadline. clan_conn_peer() identifies the peer; clan_conn_hello() returns
	 * its message. */
	CLAN_EVENT_CONNECT = 1,
	/* clan_connect() succeeded. clan_conn_hello() returns the acceptor's message. */
	CLAN_EVENT_CONNECTED,
	/* A call that returned -EAGAIN can be tried again; .ready names the calls. */
	CLAN_EVENT_READY,
	/* The connection has ended. .status is -ECONNREFUSED (rejected; clan_conn_hello() returns
	 * the text), -ECONNRESET (the peer ended or closed it), -EPROTO (the peer broke a rule; see
	 * clan_conn_reason()), -ETIMEDOUT (the handshake was not answered, or a strict revocation
	 * was not obeyed), -ETOOMANYREFS (descriptors could not be sent in time, because the user
	 * of this process had more descriptors in flight than the limit on open files), or another
	 * errno of connecting. After -ECONNRESET, data that the peer had already published can
	 * still be received. Call clan_close(). */
	CLAN_EVENT_LOST,
	/* clan_close() has completed: the library no longer uses the connection and cannot reach
	 * the peer's memory through it. The handle in .conn is invalid from here on; it can only be
	 * compared. */
	CLAN_EVENT_CLOSED,
	/* clan_region_share() has ended. If .status is 0, .number and .generation identify the
	 * region to the peer. Otherwise .status is the errno with which the peer refused it. */
	CLAN_EVENT_SHARED,
	/* clan_region_unshare() has ended: the peer's library no longer uses the region. */
	CLAN_EVENT_UNSHARED,
	/* The peer has shared a region, identified by .number and .generation; see
	 * clan_peer_region_info(). The peer has already been informed that the region was accepted,
	 * so a message that names the region can arrive before this event. The region is usable at
	 * that time. */
	CLAN_EVENT_REGION,
	/* The peer requests its region .number back. clan_peer_region_get() now fails for it, and
	 * the library returns the region after the last clan_peer_region_put(). Also given when the
	 * connection is lost. */
	CLAN_EVENT_REGION_ENDING,
	/* clan_cookie_revoke() has ended; .op is its argument and .number the cookie's slot.
	 * .status 0: no more data can arrive through the cookie. Without CLAN_REVOKE_STRICT,
	 * .status is -ENOTCONN if the connection was lost before. */
	CLAN_EVENT_REVOKED,
	/* A put touched tripwire .number. The tripwire is off until clan_rearm(). */
	CLAN_EVENT_TRIPPED,
	/* A put, get or fetch has ended with .status; .op is its argument. Not given on
	 * connections with CLAN_CAN_MAP, where these end within the call. */
	CLAN_EVENT_DONE,
	/* Only with CLAN_HANDSHAKES_OWN: a peer has connected and has not introduced itself yet.
	 * clan_conn_peer() returns its address. CLAN_EVENT_CONNECT or CLAN_EVENT_LOST follows.
	 * clan_reject() and clan_close() can be called at any time. */
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
	struct clan_conn *conn;	    /* always set in this version */
	void *context;		    /* context of the connection, see clan_conn_set_context() */
	void *op;		    /* REVOKED, DONE: argument op of the call */
	struct clan_region *region; /* SHARED, UNSHARED */
	uint32_t ready;		    /* READY: enum clan_ready */
	uint32_t number;	    /* region, cookie slot or tripwire */
	uint32_t generation;	    /* SHARED, REGION */
	uint32_t reserved;
};

/*
 * Publishes submitted messages, makes progress, and returns up to max events (max is at least 1).
 * Waits until there is an event, clan_queue_wake() is called, or timeout_ms have passed (0 = does
 * not wait, -1 = no limit). Returns the number of events, which is 0 after a timeout or a wake-up.
 *
 * An event is queued at most once. It can be raised again only after the program has reacted to it,
 * for example after a call that returned -EAGAIN. So the queue cannot overflow, and its cost does
 * not depend on the number of connections. An idle queue uses no CPU. One wait returns at most one
 * of ARRIVED, CONNECT, CONNECTED, READY and LOST for a connection, in this order. So clan_recv()
 * can report the end of the connection before the program gets LOST. Errors: -EINVAL.
 */
int clan_queue_wait(
	struct clan_queue *queue, struct clan_event *events, uint32_t max, int timeout_ms);

/* Makes the current wait return, or else the next one. Safe in any thread and in signal
 * handlers. */
void clan_queue_wake(struct clan_queue *queue);

/*
 * For programs with their own event loop. The descriptor belongs to the queue and polls readable
 * when clan_queue_wait(queue, events, max, 0) has work to do, provided that clan_queue_arm()
 * returned 0 after the last other call on the queue. The descriptor stays the same for the life of
 * the queue.
 */
int clan_queue_fd(const struct clan_queue *queue);

/* Publishes submitted messages and requests a wake-up from every peer. Returns 1 if there is work
 * already (do not sleep), or 0 if the descriptor will become readable when there is. A program with
 * its own event loop calls it before every sleep; clan_queue_wait() does so internally. Costs
 * O(peers that were active), not O(connections). */
int clan_queue_arm(struct clan_queue *queue);

/* Call this in the child after fork(). It closes the child's copies of descriptors, unmaps shared
 * memory, and frees every object of the queue, without any effect on the parent or on peers.
 * Regions stay mapped in the child, at the same addresses, as memory shared with the parent. Call
 * it early: until then peers cannot detect the death of the parent. */
void clan_queue_after_fork(struct clan_queue *queue);

/* ---- connections ---------------------------------------------------------------------------- */

enum clan_access {
	CLAN_ACCESS_OWNER, /* the user of this process, and root */
	CLAN_ACCESS_ANY,   /* every user who can reach the address; check clan_conn_peer() */
	/* Like ANY, but on shm only helper threads touch memory that can be written by users other
	 * than root and our own. A user with write access can punch holes into the memory, which
	 * stalls any thread that touches it. This side of such a connection has no CLAN_CAN_MAP.
	 * Its puts and gets end with CLAN_EVENT_DONE, and a message sent before that event can
	 * overtake a put. The same as ANY on queues with CLAN_QUEUE_PASSIVE. */
	CLAN_ACCESS_WARY,
};

/* Parameters of one side of a connection. A NULL pointer and zero members select the defaults. */
struct clan_conn_options {
	size_t size;
	uint32_t access; /* enum clan_access; clan_connect() only checks for WARY */
	/* Size of our bulk ring in slots of 64 bytes: a power of two, 256 to 65536; 0 = 256. On shm
	 * the ring holds the messages that we send, and a connection uses 8 KiB + 64 bytes per
	 * slot. On a network the ring holds the messages that we receive, and a connection uses
	 * 72 KiB (ofi: 115 KiB) + 64 bytes per slot. Regions and cookies of the peer take up to
	 * 1.1 MiB more. */
	uint32_t bulk_slots;
	uint32_t cookies;	       /* limit on granted cookies; 0 = 64; at most 4096 */
	uint32_t tripwires;	       /* limit; 0 = 32; at most 4096 */
	uint32_t handshake_timeout_ms; /* for the complete handshake; 0 = 10 s */
	uint32_t peer_slots_max; /* limit on the peer's bulk slots; 0 = 65536. Ignored on networks,
				    where they use no memory of ours */
	uint32_t peer_regions_max;	/* limit on regions the peer shares; 0 = 16; at most 4096 */
	uint64_t peer_region_bytes_max; /* limit on the total size of these regions; 0 = 64 MiB */
	uint32_t conns_max;		/* listeners: limit on connections; 0 = 4096 */
	/* Listeners: limit on connections before clan_accept(); 0 = 64. On shm one user other than
	 * root and our own can have half of them; on a network one address can have all.
	 * CLAN_HANDSHAKES_OWN can be used on networks only. */
	uint32_t handshakes_max;
};

/* The program limits handshakes itself, so that a single peer cannot occupy all of them.
 * CLAN_EVENT_ARRIVED reports each new connection. */
#define CLAN_HANDSHAKES_OWN UINT32_MAX

/*
 * Listens at an address:
 *
 * - "shm:PATH": a Unix socket with mode 0600, or 0666 with CLAN_ACCESS_ANY and CLAN_ACCESS_WARY,
 *   less the umask; a stale socket file on which no process listens is replaced
 * - "shm:@NAME": an abstract Unix socket
 * - "tcp:HOST:PORT": a network; IPv6 addresses in brackets; port 0 picks a free one
 * - "ofi:HOST:PORT": libfabric, with "?provider=tcp" (default) or "?provider=verbs" (RDMA) after
 *   the port
 *
 * Networks do not identify users, so they require CLAN_ACCESS_ANY or CLAN_ACCESS_WARY. They are not
 * encrypted. New peers are reported by CLAN_EVENT_CONNECT. Errors: -EINVAL, -EADDRINUSE, -EACCES,
 * -EMFILE, -ENOMEM, -EPROTONOSUPPORT (unknown scheme, or libfabric is not installed), and the
 * errors of bind(2).
 */
int clan_listen(struct clan_queue *queue, const char *address,
	const struct clan_conn_options *options, struct clan_listener **listener_out,
	struct clan_error *error);

enum { CLAN_ADDRESS_BYTES = 160 };

/* Returns the address of the listener in the form that clan_connect() takes, with the actual port
 * if port 0 was requested. Valid until the listener is closed. */
const char *clan_listener_address(const struct clan_listener *listener);

/* Stops listening and removes the socket file. A connection stays open if its CLAN_EVENT_CONNECT or
 * CLAN_EVENT_ARRIVED was given or is queued; the others are closed. NULL is a no-op. */
void clan_listener_close(struct clan_listener *listener);

/* Adopts a connected Unix SOCK_SEQPACKET socket that the program has accepted, for programs that
 * distribute connections over several queues. The call owns fd, even if it fails. The first event
 * is CLAN_EVENT_CONNECT when the peer has introduced itself, or CLAN_EVENT_LOST. In either case the
 * program must call clan_close(), which is permitted at any time. Errors: -EINVAL (also: not such a
 * socket), -EACCES (options->access), -EDQUOT (the peer's user has sent too many descriptors that
 * are not closed yet), -ENOMEM, -EMFILE, -EUSERS (conns_max of the queue). */
int clan_adopt(struct clan_queue *queue, int fd, const struct clan_conn_options *options,
	struct clan_conn **conn_out, struct clan_error *error);

enum { CLAN_HELLO_BYTES_MAX = 4096 };

/*
 * Starts to connect. The acceptor receives hello (at most CLAN_HELLO_BYTES_MAX bytes). The result
 * is CLAN_EVENT_CONNECTED or CLAN_EVENT_LOST; the program must call clan_close() in either case.
 * Messages can be sent only after CONNECTED. On a network the absence of a listener is reported by
 * LOST, because the answer takes time. Errors, if the connection was not started: -EINVAL,
 * -EPROTONOSUPPORT, -ENOENT, -ECONNREFUSED (no listener), -EACCES, -ENOBUFS (the listener's backlog
 * is full), -ENOMEM, -EMFILE, -EUSERS.
 */
int clan_connect(struct clan_queue *queue, const char *address,
	const struct clan_conn_options *options, const void *hello, size_t hello_bytes,
	struct clan_conn **conn_out, struct clan_error *error);

/* Accepts the connection of a CLAN_EVENT_CONNECT, which is then immediately usable. The peer
 * receives hello. If the peer has already ended, CLAN_EVENT_LOST follows. Errors: -EINVAL, -EMFILE,
 * -ENOMEM, -ECONNRESET. The connection must be closed even after an error. */
int clan_accept(struct clan_conn *conn, const void *hello, size_t hello_bytes);

/* Rejects the connection with a human-readable text of at most CLAN_HELLO_BYTES_MAX bytes, and
 * closes it like clan_close(). */
void clan_reject(struct clan_conn *conn, const char *text);

/* Publishes submitted messages, notifies the peer, and closes the connection. CLAN_EVENT_CLOSED
 * follows when the library no longer uses it: after the last clan_peer_region_put() and the copies
 * of helper threads, and on a network when the peer has received everything, or after 2 s. On a
 * network, our regions stay shared until then. After clan_close(), clan_peer_region_put() is the
 * only permitted call on the connection. Events that have not been given are dropped. */
void clan_close(struct clan_conn *conn);

/* A pointer that the program sets and every event returns. */
void clan_conn_set_context(struct clan_conn *conn, void *context);
void *clan_conn_context(const struct clan_conn *conn);

/* Returns whether the peer may now put bytes to this range of our memory, which is within a cookie
 * that it holds: 1, or 0. context is that of the connection. Called by calls on the queue, in their
 * thread; must not call the library. */
typedef int clan_put_check(void *context, const void *memory, size_t bytes);

/* Sets a check of the peer's puts, or removes it (NULL). The library calls it before each transfer
 * from the socket to memory, with the rest of the put: a put that is permitted when it begins can
 * be forbidden before it ends. If check returns 0, nothing more is written and the connection
 * is lost (-EPROTO). Has an effect only on "tcp:", because only there this library receives puts;
 * on shm the peer writes to memory itself, and on ofi the network adapter or libfabric does. */
void clan_conn_check_puts(struct clan_conn *conn, clan_put_check *check);

/* The process at the other end, as reported by the kernel for the time when it connected (or
 * started to listen). On a network only the address is known: pid is 0, and uid and gid are -1. */
struct clan_peer {
	pid_t pid;
	uid_t uid;
	gid_t gid;
	char address[64]; /* on a network: "HOST:PORT", numeric; else "" */
};
void clan_conn_peer(const struct clan_conn *conn, struct clan_peer *peer);

/* Returns the message that the peer sent when it connected, accepted or rejected. These bytes are
 * untrusted. Valid until the connection is closed. */
const void *clan_conn_hello(const struct clan_conn *conn, size_t *bytes_out);

/* Returns the human-readable reason why the connection was lost, "" while it is not. Valid until
 * the connection is closed. */
const char *clan_conn_reason(const struct clan_conn *conn);

enum clan_conn_caps {
	/* Each side maps the regions that the other side shares. So clan_peer_region_get() works,
	 * and puts, gets and fetches end within the call. A lost peer can continue its operations
	 * on our regions until clan_region_replace(). Without this capability, regions are
	 * accessible by put and get only, CLAN_EVENT_DONE reports the end of each, and no data of
	 * the connection arrives after CLAN_EVENT_CLOSED. */
	CLAN_CAN_MAP = 1 << 0,
};

/* Returns the capabilities of the connection, a set of enum clan_conn_caps. They never change, and
 * are the same at both ends unless one is CLAN_ACCESS_WARY. */
uint32_t clan_conn_caps(const struct clan_conn *conn);

/* Counters since the connection was created. Set stats->size before the call. */
struct clan_conn_stats {
	size_t size;
	uint64_t messages_sent; /* including notifications and segments of streams */
	uint64_t messages_received;
	uint64_t bytes_sent; /* payload of messages and streams */
	uint64_t bytes_received;
	uint64_t puts;
	uint64_t gets;
	uint64_t bytes_put;
	uint64_t bytes_got;
	uint64_t refused;     /* puts and gets rejected because the cookie did not allow them */
	uint64_t bells_rung;  /* system calls to wake the peer */
	uint64_t bells_heard; /* wake-ups of our queue by the peer's queue, through any connection
				 between them */
	uint64_t bells_idle;  /* bells_heard after which the queue found no work */
	uint32_t bell;	      /* enum clan_bell: how the peer wakes us */
	uint32_t peer_bell;   /* enum clan_bell: how we wake the peer */
};
void clan_conn_get_stats(const struct clan_conn *conn, struct clan_conn_stats *stats);

/* Returns the TCP socket that carries an open connection. The program can query it with
 * getsockopt() and ioctl(), for example for the data that the peer has not acknowledged: a put to
 * `tcp:` ends when the socket has accepted its data. The library owns the socket, so nothing else
 * may be done with it. Returns -1 over shared memory and libfabric, or if the connection is not
 * open. */
int clan_conn_socket(const struct clan_conn *conn);

/* ---- messages: the distributed message queues of the CLAN paper ----------------------------- */

/* Each class has its own ring and credits, so a control message never waits behind bulk messages.
 * Messages stay in order within a class. */
enum clan_class {
	CLAN_CONTROL = 1 << 0,
	CLAN_BULK = 1 << 1,
	CLAN_ANY = CLAN_CONTROL | CLAN_BULK, /* for receiving: control first, at most 64 in a row */
};

enum {
	CLAN_CONTROL_BYTES_MAX = 1016, /* limit on the payload of a message */
	CLAN_BULK_BYTES_MAX = 8184,
	CLAN_VALUE_MAX = 0x7fffffff, /* the value of a notification has 31 bits */
};

/* The program can use types 0x01 to 0xef; the library generates the following ones. */
enum clan_message_type {
	CLAN_TYPE_STREAM = 0xf0, /* bytes of clan_writev(): use clan_readv() */
	CLAN_TYPE_NOTIFY = 0xf1, /* a put with CLAN_NOTIFY has arrived; see clan_message.value */
};

struct clan_message {
	uint32_t cls;	/* CLAN_CONTROL or CLAN_BULK */
	uint32_t type;	/* 0x01 to 0xef, or enum clan_message_type */
	uint32_t bytes; /* length of the payload */
	uint32_t value; /* CLAN_TYPE_NOTIFY only */
};

/*
 * Copies a message into the ring of its class. It never blocks. The peer sees the message after
 * clan_flush() or the next clan_queue_wait() or clan_queue_arm(), so one wake-up covers many
 * messages. Returns 0. Errors: -EAGAIN no room (CLAN_EVENT_READY with CLAN_READY_SEND_... follows),
 * -EMSGSIZE, -EINVAL type or class, -ENOTCONN not connected, or lost.
 */
int clan_send(
	struct clan_conn *conn, uint32_t cls, uint32_t type, const void *data, uint32_t bytes);
/* Like clan_send(), from a vector of at most 64 entries. */
int clan_sendv(struct clan_conn *conn, uint32_t cls, uint32_t type, const struct iovec *iov,
	uint32_t iov_count);

/* Publishes the messages sent on this connection, and wakes the peer if it has requested that. */
void clan_flush(struct clan_conn *conn);

/*
 * Receives the next message of the given classes (enum clan_class). The payload is copied to buffer
 * once; the peer cannot change it afterwards. Returns 0 and fills in *message. Errors: -EAGAIN no
 * message (CLAN_EVENT_READY with CLAN_READY_... follows when one arrives), -EMSGSIZE the message is
 * longer than bytes (*message is filled in and the message stays queued), -ENOTCONN the connection
 * has ended. After an end with -ECONNRESET, messages can be received until none is left; after any
 * other end, none can.
 */
int clan_recv(struct clan_conn *conn, uint32_t classes, struct clan_message *message, void *buffer,
	uint32_t bytes);

enum clan_read_flags {
	CLAN_READ_PEEK = 1 << 0, /* do not consume the bytes; the peer can change them before they
				    are read again */
};

/*
 * A byte stream in the bulk class, without message boundaries and without an extra copy in the
 * library. clan_writev() splits the data into messages and returns the number of bytes taken, at
 * least 1. They are published as by clan_send(). clan_readv() returns the number of bytes copied,
 * at least 1. Vectors have at most 1024 entries. Errors: those of clan_send() and clan_recv(), and
 * -EBADMSG if the next bulk message is not part of a stream.
 */
ssize_t clan_writev(struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count);
ssize_t clan_readv(
	struct clan_conn *conn, const struct iovec *iov, uint32_t iov_count, uint32_t flags);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
