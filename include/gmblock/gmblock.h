/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgmblock: remote blocks in a program. Opens an export of any NBD server and moves data between
 * it and the memory of the caller, asynchronously or with blocking calls.
 *
 *   struct gmb_queue *queue;   gmb_queue_create(NULL, &queue, &error);
 *   struct gmb_client *client; gmb_open(queue, "nbd://host/export", NULL, &client, &error);
 *                              or gmb_open_start(), which does not block
 *   gmb_submit(client, &request);      any number; nothing is sent yet
 *   gmb_queue_wait(queue, -1);         sends, receives, calls request.done of what completed
 *   gmb_close(client);                 gmb_queue_destroy(queue);
 *
 * The library receives payloads directly into their scatter list, splits requests that are larger
 * than the server allows, uses several connections if the server says that they are coherent,
 * restores lost connections, and replays the requests in flight (see gmb_options). It checks
 * everything that a server sends, except the data of the export.
 *
 * Threads: the library's own threads only resolve names, read credentials and calculate handshakes,
 * and never call the program, except for gmb_set_log(). A queue and everything opened on it belong
 * to the thread that created or acquired the queue; only gmb_queue_wake() may be called from other
 * threads. Functions that use no queue (gmb_version(), gmb_list_exports()) can be called by any
 * thread. Queues are independent of each other. After fork() only the parent may use a queue.
 *
 * Ownership: requests, scatter lists and buffers belong to the caller and must stay in place and
 * unchanged from gmb_submit() until done is called. Structs that begin with a member "size" must
 * have it set to their sizeof, and every other member zero unless set on purpose. From the size, a
 * later version of the library determines which members the caller knows. A call with options fails
 * with -EINVAL if size is less than in 0.1.0 or a reserved member is not zero.
 *
 * Errors: functions that can fail return 0, or the result that their comment states, or a negative
 * errno; those that take a struct gmb_error then also fill it with a message: what failed, on which
 * object, why, and what to do. NULL: no message.
 *
 * The protocol is NBD as its proto.md describes it: fixed newstyle, simple, structured and extended
 * replies, base:allocation; or gmb (docs/protocol/gmb.md), between processes of one machine or over
 * a network.
 */
#ifndef GMBLOCK_GMBLOCK_H
#define GMBLOCK_GMBLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define GMB_VERSION_MAJOR 0
#define GMB_VERSION_MINOR 1
#define GMB_VERSION_PATCH 0

/* Whether this header is of version major.minor.patch or later. */
#define GMB_CHECK_VERSION(major, minor, patch)                                                     \
	(GMB_VERSION_MAJOR > (major) ||                                                            \
		(GMB_VERSION_MAJOR == (major) &&                                                   \
			(GMB_VERSION_MINOR > (minor) ||                                            \
				(GMB_VERSION_MINOR == (minor) && GMB_VERSION_PATCH >= (patch)))))

/* The version of the library in use, such as "0.1.0"; a constant. Any thread. */
const char *gmb_version(void);

struct gmb_queue;
struct gmb_client;
struct gmb_request;

/* An error with a message for people. */
struct gmb_error {
	int code;	/* the negative errno that was returned */
	char text[508]; /* one sentence without a final full stop, terminated, UTF-8 or escaped */
};

/* ---- messages of the library ------------------------------------------------------------------
 */

enum gmb_log_level {
	GMB_LOG_ERROR,
	GMB_LOG_WARNING,
	GMB_LOG_INFO,
	GMB_LOG_DEBUG, /* negotiated parameters, reasons of lost connections, refused requests */
};

/* Called with each message, without a line feed. text is valid until it returns. Any thread, also
 * the library's own and several at once; must not call the library. */
typedef void gmb_log(void *context, enum gmb_log_level level, const char *text);

/* Passes messages of at most this level to log, or, if log is NULL, writes them to standard error.
 * After this call the environment variable GMBLOCK_LOG, which otherwise selects the messages that
 * are written to standard error, has no effect. Any thread, while the process has no queue and no
 * call of gmb_list_exports() is in progress. */
void gmb_set_log(gmb_log *log, void *context, enum gmb_log_level level);

/* ---- completion queues ------------------------------------------------------------------------
 */

enum gmb_queue_flags {
	/* gmb_queue_wait() does not poll before it sleeps. Without this flag it polls for up to 50
	 * microseconds if polling makes requests faster, which it measures periodically, and stops
	 * polling when another thread needs the processor. */
	GMB_QUEUE_NO_SPIN = 1,
};

struct gmb_queue_options {
	size_t size;
	uint32_t entries; /* entries in the io_uring submission queue; 0 = 256; at most 4096 */
	uint32_t flags;	  /* enum gmb_queue_flags */
};

/* Creates a completion queue. options may be NULL. Errors: -ENOSYS or -EPERM when the kernel has no
 * io_uring or forbids it (the message names the setting), -ENOMEM, -EINVAL, -EMFILE. */
int gmb_queue_create(const struct gmb_queue_options *options, struct gmb_queue **queue_out,
	struct gmb_error *error);

/* Frees the queue. -EBUSY: a client on the queue is open, or this is called inside a callback; then
 * nothing is freed. NULL is a no-op. */
int gmb_queue_destroy(struct gmb_queue *queue);

/*
 * Sends what was submitted, and waits until at least one request or opening has completed,
 * gmb_queue_wake() was called, or timeout_ms have passed: 0 = does not wait, -1 = no limit. Calls
 * done for everything that completed. Returns the number of requests and openings that completed (0
 * after a timeout or a wake-up). Without requests in flight it still maintains connections, as
 * blocking calls do, and a long wait in an idle program costs nothing. -EDEADLK when called inside
 * a callback.
 */
int gmb_queue_wait(struct gmb_queue *queue, int timeout_ms);

/*
 * Moves a queue between threads: the thread that it belongs to releases it, and the thread that
 * acquires it owns it from then on. The program orders the two calls, such as with a mutex. In
 * between only gmb_queue_wake() may be called, and gmb_queue_destroy() by any thread.
 * gmb_queue_release() frees the buffers of the queue; -EBUSY: a client is open, or it is called
 * inside a callback. gmb_queue_acquire() fails as gmb_queue_create(), and -EBUSY: it was not
 * released. gmb_queue_fd() returns another descriptor afterwards.
 */
int gmb_queue_release(struct gmb_queue *queue);
int gmb_queue_acquire(struct gmb_queue *queue, struct gmb_error *error);

/* Makes the current wait return, or else the next one. Any thread, and signal handlers, also while
 * the queue is released. The queue must exist until the call has returned. */
void gmb_queue_wake(struct gmb_queue *queue);

/*
 * For programs with an event loop of their own: a descriptor that polls readable when
 * gmb_queue_wait(queue, 0) has work. After submitting, call gmb_queue_wait(queue, 0) once as well,
 * to send the requests. The descriptor belongs to the queue.
 */
int gmb_queue_fd(const struct gmb_queue *queue);

/* ---- buffers: memory that gmb servers access -------------------------------------------------
 *
 * Over gmb+unix the server reads and writes the memory of a request directly. Over gmb it transfers
 * the data with remote reads and writes. Both work only with memory that was allocated here.
 *
 * The library splits requests into parts of at most 1 MiB. It copies the data of a part
 * (gmb_stats.bytes_moved) that uses other memory or more than 64 pieces of memory, and over gmb
 * also if the buffer has 4 GiB or more. Writes of up to 512 bytes are always copied, which is not
 * counted. Over NBD these buffers have no advantage. A connected server can read and change the
 * whole buffer of a request, so keep no other data in it.
 */

enum gmb_buffer_flags {
	GMB_BUFFER_HUGE = 1 << 0, /* ask for transparent huge pages */
};

enum { GMB_BUFFERS_MAX = 15 }; /* limit on buffers per queue: use few large ones */

/*
 * Allocates zeroed, page-aligned memory for the requests of all clients on the queue. flags: enum
 * gmb_buffer_flags. For direct I/O, addresses and lengths must be multiples of the export's
 * block_preferred; otherwise the server copies the data. After fork() the child must not use the
 * memory. Freed with gmb_buffer_free(), or with the queue (also when it is released). Errors:
 * -EINVAL, -ENOMEM, -EMFILE, -ENOSPC (GMB_BUFFERS_MAX).
 */
int gmb_buffer_alloc(struct gmb_queue *queue, size_t bytes, uint32_t flags, void **base_out,
	struct gmb_error *error);

/*
 * Makes a buffer from existing memory: maps `bytes` bytes of a memfd, from offset on, and stores
 * the address of the mapping in *base_out. Requests use addresses in this mapping. For hosts of
 * virtual machines and containers whose guests have mapped the same memfd. offset and bytes must be
 * multiples of the page size. memfd must be sealed with F_SEAL_SHRINK and F_SEAL_GROW, and open for
 * reading and writing; the library duplicates the descriptor.
 *
 * After the loss of a connection, the server may still write the data of reads. The library
 * replaces the pages of its own buffers then, but cannot replace the pages of a memfd. Therefore a
 * server writes directly into a memfd only if it can end the requests of a lost connection before
 * it serves the next connection: for writable exports whose disk is known to the server's machine,
 * and not with GMB_OPEN_NO_RECONNECT. Otherwise the library copies the data of reads. Requests that
 * are replayed after a reconnect wait until the old ones have ended. A request that fails with
 * -ENOTCONN does not wait: its memory may change until the server's process has ended and its disk
 * has completed all requests.
 *
 * Errors: -EINVAL, -EPERM memfd is not sealed as required or has huge pages, -EACCES memfd is not
 * open for reading and writing, -ENOMEM, -EMFILE, -ENOSPC.
 */
int gmb_buffer_import(struct gmb_queue *queue, int memfd, uint64_t offset, size_t bytes,
	void **base_out, struct gmb_error *error);

/* Frees a buffer of gmb_buffer_alloc() or gmb_buffer_import(); no request that uses it may be in
 * flight. A memfd keeps its memory. NULL is a no-op. */
void gmb_buffer_free(struct gmb_queue *queue, void *base);

/* ---- clients: open exports -------------------------------------------------------------------
 */

enum gmb_open_flags {
	GMB_OPEN_READ_ONLY = 1 << 0, /* refuse to write, whatever the server allows */
	/* requests on a lost connection fail; when the last connection is lost, all requests
	 * fail */
	GMB_OPEN_NO_RECONNECT = 1 << 1,
	GMB_OPEN_NO_EXTENDED = 1 << 2, /* NBD: do not ask for 64-bit extended headers */
	GMB_OPEN_SIMPLE = 1 << 3,      /* NBD: ask for simple replies only (implies NO_EXTENDED) */
	/* The URI may name files of this machine (tls-certificates, tls-psk-file): set this only if
	 * the URI comes from the user. */
	GMB_OPEN_URI_FILES = 1 << 4,
	/* with gmb_options.lease: take the lease from the clients that have it. Their connections
	 * end, and their last operation has left the disk when the export is open. */
	GMB_OPEN_PREEMPT = 1 << 5,
};

/* Which clients may use an export at the same time, see gmblock-attach(1). */
enum gmb_lease {
	GMB_LEASE_NONE,
	GMB_LEASE_SHARED,    /* other clients can have shared leases */
	GMB_LEASE_EXCLUSIVE, /* no other client has a lease */
};

enum gmb_tls_flags {
	GMB_TLS_NO_VERIFY = 1 << 0, /* do not verify the server's certificate */
};

/* Settings for a URI with TLS. A member that is not NULL replaces the parameter of the URI. Files
 * are read before each connection if they have changed; GMB_OPEN_URI_FILES is not needed. */
struct gmb_tls_settings {
	size_t size;
	const char *certificates; /* folder, like the URI parameter tls-certificates */
	const char *psk_file;	  /* file of pre-shared keys, like the URI parameter tls-psk-file */
	const char *username;	  /* user whose key is used, like USER@ in the URI */
	/* name in the server's certificate, like the URI parameter tls-hostname */
	const char *hostname;
	uint32_t flags;	   /* enum gmb_tls_flags */
	uint32_t reserved; /* 0 */
};

enum gmb_event {
	GMB_EVENT_LOST, /* a connection was lost; the text says why */
	/* a connection was restored after all had been lost; requests in flight are replayed */
	GMB_EVENT_RECONNECTED,
	GMB_EVENT_GAVE_UP,  /* requests fail with -ENOTCONN from now on */
	GMB_EVENT_RESIZED,  /* the export's size has changed, see gmb_get_info(). gmblock serve
			       reports it while connected; other servers after a reconnect */
	GMB_EVENT_RETRYING, /* no connection could be restored yet; the text says why. Reported
			       again when the reason changes */
	GMB_EVENT_SILENT,   /* a server has not responded for 3 s, also while the export is being
			       opened; the text says for how long the library waits. Reported once
			       for each server until a connection is restored */
};

struct gmb_options {
	size_t size;
	uint32_t flags;		     /* enum gmb_open_flags */
	uint32_t connections;	     /* 1 to 16; above 1 only if the server offers multi-conn;
					0: the library chooses, over networks by
					measuring what another one gains */
	uint32_t connect_timeout_ms; /* time for name resolution, connecting and handshake together,
					for each attempt; 0 = 10 s */
	uint32_t request_timeout_ms; /* a connection on which requests wait and nothing arrives for
					this long counts as lost; 0 = 30 s; see slow_timeout_ms */
	uint32_t reconnect_timeout_ms; /* how long to try to reconnect before requests fail;
					  0 = 120 s */
	uint32_t depth; /* commands in flight per connection; 0 = 128; at most 1024 */
	/* Called when connections are lost or restored, from gmb_queue_wait(), gmb_close() and the
	 * blocking calls; must not call the library, except gmb_get_info(). May be NULL. */
	void (*event)(void *context, enum gmb_event event, const char *text);
	void *context; /* context of event() and opened() */
	/* gmb_open_start() only: called once, when the export is open or cannot be opened, from
	 * gmb_queue_wait(), a blocking call or gmb_close(). error->code is 0 and error->text "" on
	 * success; error is valid until the callback returns. opened may make the calls that a
	 * gmb_done callback may make. NULL: use gmb_open_result(). */
	void (*opened)(void *context, struct gmb_client *client, const struct gmb_error *error);
	/* Replaces request_timeout_ms for slow requests: flushes, trims, zeroes, caching, copies
	 * and writes with GMB_FUA. Some servers send nothing while they execute these. gmblock
	 * serve sends signs of life, unless request_timeout_ms is below 50 or, over NBD,
	 * GMB_OPEN_SIMPLE is set. With signs of life, request_timeout_ms limits the silence of the
	 * server for slow requests as well. In any case a server must answer at least one of the
	 * waiting requests within slow_timeout_ms. 0 = 600 s; at least request_timeout_ms. */
	uint32_t slow_timeout_ms;
	uint32_t reserved; /* 0 */
	/* TLS settings; copied by the call. Only for URIs with TLS. NULL: the parameters of the URI
	 * apply. */
	const struct gmb_tls_settings *tls;
	/* A lease to hold while the export is open, enum gmb_lease. If another client has a lease
	 * that excludes this one, opening fails with -EACCES; if the server has no leases, with
	 * -EOPNOTSUPP. Once the lease is lost, requests fail with -ENOTCONN. */
	uint32_t lease;
	/* How long the lease lasts when all connections are lost; 0 = 60 s; at most 1 hour; longer
	 * than request_timeout_ms, because a client that reconnects later has lost it. If the URI
	 * names several hosts, it cannot continue at another host either. A time in which the
	 * program did not wait for the queue counts as well. */
	uint32_t lease_ms;
	/* Clients with the same lease_id hold the lease together. All zeroes: the library chooses
	 * a random one. Random numbers, which are secret. */
	uint8_t lease_id[16];
};

/*
 * Opens the export that a URI names:
 *
 *   nbd://HOST[:PORT]/EXPORT              NBD (rows P132-P134 of docs/protocol/nbd.md)
 *   nbd+unix:///EXPORT?socket=PATH
 *   nbds://[USER@]HOST[:PORT]/EXPORT      NBD over TLS
 *   nbds+unix:///EXPORT?socket=PATH
 *   gmb+unix:///EXPORT?socket=PATH
 *   gmb://HOST[:PORT]/EXPORT[?provider=tcp|verbs|ofi-tcp]
 *
 * The nbds forms take the parameters tls-certificates=FOLDER, tls-psk-file=FILE, tls-hostname=NAME
 * and tls-verify-peer=0, which gmblock(1) explains. Credentials are read before each connection
 * when their files have changed. The call blocks until the export is usable. It then also waits for
 * the other connections, at most 2 s longer than the first connection took. Requests of other
 * clients on the queue continue in the meantime. options may be NULL.
 *
 * Errors: -EINVAL invalid URI, options or credentials, -EPERM the URI names files
 * (GMB_OPEN_URI_FILES), -ENOENT no such export, or a certificate or key file is missing, -EPROTO
 * the server violated the protocol, -ETIMEDOUT, -EPROTONOSUPPORT only one side requires TLS, or no
 * protocol in common, -EACCES the server's policy forbids access, or the server's certificate is
 * not trusted, -EKEYREJECTED the server does not accept our credentials, -EDEADLK inside a
 * callback, and the errors of name resolution and connecting.
 */
int gmb_open(struct gmb_queue *queue, const char *uri, const struct gmb_options *options,
	struct gmb_client **client_out, struct gmb_error *error);

/*
 * Starts to open an export and returns a client immediately. The call never blocks, not even to
 * resolve a name, and can be made inside a callback. The end of the opening counts as one
 * completion of gmb_queue_wait(). options->opened and gmb_open_result() report the result;
 * options->opened is called before the done of any request.
 *
 * While the export is being opened, requests can be submitted; they wait, and are checked when the
 * export is open. Blocking calls wait as well, and gmb_get_info() returns zeroes, except for depth.
 * If opening fails, these and all later requests fail with -ENOTCONN, and gmb_close() must still be
 * called.
 *
 * Returns 0 and sets *client_out, or, if nothing was started: -EINVAL invalid URI or options,
 * -EPERM the URI names files, -EPROTONOSUPPORT clients cannot open such URIs, -ENOMEM, -EIO the
 * system gives no random numbers.
 */
int gmb_open_start(struct gmb_queue *queue, const char *uri, const struct gmb_options *options,
	struct gmb_client **client_out, struct gmb_error *error);

/* The result of opening a client: 0, or a negative errno as gmb_open() returns it (with error
 * filled in), -ECANCELED if gmb_close() cancelled it; -EINPROGRESS until then. */
int gmb_open_result(const struct gmb_client *client, struct gmb_error *error);

/*
 * Waits for the requests in flight (if the server does not answer, until the timeouts of
 * gmb_options), disconnects from the server, and frees the client in any case. Does not flush. An
 * opening in progress is cancelled, without waiting for the server or for name resolution:
 * options->opened gets -ECANCELED, requests -ENOTCONN. Returns 0, or -EDEADLK inside a callback
 * (nothing is closed then). NULL is a no-op.
 */
int gmb_close(struct gmb_client *client);

/* An export that a server lists. Valid until the callback returns. The texts can contain any
 * bytes: escape them before they are printed. */
struct gmb_export {
	size_t size;		 /* set by the library */
	const char *name;	 /* "" is the default export */
	const char *description; /* or "" */
};

/*
 * Calls found for each export that the server of a URI lists; the export name in the URI is not
 * used. Of the options, only flags, connect_timeout_ms (for the whole call) and tls are used. It
 * blocks, needs no queue, and can be called by any thread, also inside a callback; found must not
 * call the library. Returns 0, after which the list is complete, or a negative errno: as
 * gmb_open(); -EACCES or -EOPNOTSUPP the server does not list its exports, -E2BIG it lists more
 * than 65536.
 */
int gmb_list_exports(const char *uri, const struct gmb_options *options,
	void (*found)(void *context, const struct gmb_export *exported), void *context,
	struct gmb_error *error);

enum gmb_capabilities {
	GMB_CAN_WRITE = 1 << 0,
	GMB_CAN_FLUSH = 1 << 1,
	GMB_CAN_FUA = 1 << 2,
	GMB_CAN_TRIM = 1 << 3,
	GMB_CAN_ZERO = 1 << 4,
	GMB_CAN_FAST_ZERO = 1 << 5,
	GMB_CAN_CACHE = 1 << 6,
	GMB_CAN_STATUS = 1 << 7, /* base:allocation was selected */
	GMB_CAN_DF = 1 << 8,
	GMB_CAN_MULTI_CONN = 1 << 9,
	GMB_IS_ROTATIONAL = 1 << 10,
	GMB_CAN_COPY = 1 << 11, /* the server can copy between its exports, see gmb_can_copy() */
};

enum gmb_replies {
	GMB_REPLIES_SIMPLE, /* NBD's three formats */
	GMB_REPLIES_STRUCTURED,
	GMB_REPLIES_EXTENDED,
	GMB_REPLIES_PLACED, /* gmb: payload goes straight to and from the request's memory */
};

struct gmb_info {
	size_t size;
	uint64_t bytes;	       /* size of the export */
	uint32_t capabilities; /* enum gmb_capabilities; what the server and the options allow */
	/* The offset and length of a request must be multiples of this size; a request may also end
	 * at the end of the export. A power of two, 1 to 65536. If the server reports no size, this
	 * is 512, and the library does not check requests. */
	uint32_t block_minimum;
	uint32_t block_preferred; /* a power of two, >= 512 */
	uint32_t payload_max;	  /* longer reads and writes are split by the library */
	uint32_t connections;	  /* open now */
	uint32_t depth;		  /* limit on commands in flight on all connections together */
	enum gmb_replies replies;
	/* A GMB_WRITE with GMB_FUA of at most this many bytes, whose offset and length are
	 * multiples of block_preferred, is on the disk as a whole or not at all after a crash of
	 * the server or its machine. 0: no guarantee, as always over NBD. */
	uint32_t atomic_bytes;
};

/* Information about the export. info->size must be set. */
void gmb_get_info(const struct gmb_client *client, struct gmb_info *info);

/* The export's name and description as reported by the server; "" if none. Valid as long as the
 * client. */
const char *gmb_export_name(const struct gmb_client *client);
const char *gmb_export_description(const struct gmb_client *client);

/* Describes the encryption of the connection, for people: "TLS 1.3, AES-128-GCM, server verified";
 * "" without TLS. Whether there is TLS follows from the URI alone. Valid as long as the client. */
const char *gmb_tls(const struct gmb_client *client);

/* The address of the server in use, for people: "HOST:PORT" or the path of a Unix socket. It
 * changes if the URI names several hosts and the client continues with another one. Valid as long
 * as the client. */
const char *gmb_server(const struct gmb_client *client);

/* The URI with which the client was opened. Valid as long as the client. */
const char *gmb_uri(const struct gmb_client *client);

/* Counters since the client was opened. stats->size must be set. */
struct gmb_stats {
	size_t size;
	uint64_t requests;	/* completed, with any result */
	uint64_t commands;	/* sent, including replays */
	uint64_t bytes_read;	/* payload of successful reads */
	uint64_t bytes_written; /* payload of successful writes */
	uint64_t bytes_moved; /* payload that was copied, because it could not be received in place
				 or the server cannot access its memory (gmb) */
	/* system calls of the whole queue, since it was created or acquired */
	uint64_t system_calls;
	uint64_t connections_lost;
	uint64_t commands_replayed;
	/* Bytes copied by the server (GMB_COPY), by method: blocks shared by both files, copied by
	 * the kernel, through the memory of a device, through the server's memory, and holes. */
	uint64_t bytes_copied_reflink;
	uint64_t bytes_copied_range;
	uint64_t bytes_copied_device;
	uint64_t bytes_copied_ram;
	uint64_t bytes_copied_zeroes;
	/* polls that found no reply, while the queue polled instead of sleeping; of the whole
	 * queue, since it was created or acquired */
	uint64_t polls;
};
void gmb_get_stats(const struct gmb_client *client, struct gmb_stats *stats);

/* ---- requests ----------------------------------------------------------------------------------
 */

enum gmb_operation {
	GMB_READ,
	GMB_WRITE,
	GMB_FLUSH,  /* requests that were complete before the flush was submitted become durable */
	GMB_TRIM,   /* contents undefined afterwards */
	GMB_ZERO,   /* reads back as zeroes afterwards */
	GMB_CACHE,  /* hint that the range will be read soon */
	GMB_STATUS, /* extents: what is allocated, what reads as zero */
	GMB_COPY,   /* copy from an export of the same server, see gmb_prepare_copy() */
};

enum gmb_request_flags {
	/* WRITE, TRIM, ZERO, COPY: durable before done is called; if the server has no FUA, the
	 * library sends a flush */
	GMB_FUA = 1 << 0,
	GMB_NO_HOLE = 1 << 1, /* ZERO: keep the range allocated */
	GMB_DF = 1 << 2,      /* READ: one piece, or -EOVERFLOW; applies to parts of a split read */
	GMB_STATUS_ONE = 1 << 3, /* STATUS: report only the first extent */
	GMB_FAST_ZERO = 1 << 4,	 /* ZERO: only if faster than writing; else -EOPNOTSUPP */
};

enum gmb_extent_flags {
	GMB_EXTENT_HOLE = 1 << 0, /* the range is not allocated */
	GMB_EXTENT_ZERO = 1 << 1, /* the range reads as zeroes */
};

struct gmb_extent {
	uint64_t offset;
	uint64_t bytes;
	uint32_t flags; /* enum gmb_extent_flags */
	uint32_t reserved;
};

/* Called once, from gmb_queue_wait(), gmb_close() or a blocking call on the same queue. It may
 * submit and cancel requests, submit the same one again or free it, and call gmb_open_start(). It
 * must not wait, close a client or make blocking calls, including gmb_open(). */
typedef void gmb_done(struct gmb_request *request);

/*
 * One operation. Zero it, fill in the members above the results (or use the gmb_prepare functions),
 * and submit it. It can be reused after done has been called.
 */
struct gmb_request {
	uint8_t operation;   /* enum gmb_operation */
	uint8_t reserved[3]; /* 0 */
	uint32_t flags;	     /* enum gmb_request_flags */
	uint64_t offset;     /* bytes; 0 for FLUSH */
	uint64_t length; /* bytes; 0 for FLUSH; the sum of the scatter list for READ and WRITE */
	const struct iovec *iov; /* READ: destination, WRITE: source; any number of any size */
	uint32_t iov_count;

	/* STATUS: room for the answer; neighbours with equal flags are merged. READ: optional; the
	 * ranges that the server sent as holes (they are zeroed in the buffers in any case). */
	uint32_t extents_max;
	struct gmb_extent *extents;

	gmb_done *done; /* NULL: check in_flight */
	void *context;	/* for use by the caller */

	/* Results. */
	int32_t result;	       /* 0, or a negative errno: -EIO, -ENOSPC, -EPERM, -EINVAL, -ENOTCONN
				  (not opened, lost, or gave up reconnecting), -ESHUTDOWN,
				  -ENOMEM, -EOVERFLOW, -EOPNOTSUPP, -ECANCELED (gmb_cancel()) */
	uint32_t extent_count; /* filled in extents; STATUS: at least 1 when result is 0. The
				  extents begin at offset and have no gaps. They may end before
				  offset + length (ask again from there), but never after it */
	uint32_t in_flight;    /* nonzero from submit until just before done */

	uint32_t private_number;
	struct iovec single; /* used by the gmb_prepare functions */

	/* COPY: the client of the source export, on the same queue; must stay open until done. */
	struct gmb_client *source;
	uint64_t source_offset;
	uint64_t copied; /* number of bytes copied from the beginning; length when result is 0 */

	uint64_t private_space[9];
};

/* Fill in a request that is zeroed or completed. They do not change done, context or members that
 * later versions add. */
void gmb_prepare_read(struct gmb_request *request, void *buffer, size_t bytes, uint64_t offset);
void gmb_prepare_write(
	struct gmb_request *request, const void *buffer, size_t bytes, uint64_t offset);
void gmb_prepare_readv(
	struct gmb_request *request, const struct iovec *iov, uint32_t iov_count, uint64_t offset);
void gmb_prepare_writev(
	struct gmb_request *request, const struct iovec *iov, uint32_t iov_count, uint64_t offset);
/* Prepares a FLUSH, TRIM, ZERO or CACHE. */
void gmb_prepare(
	struct gmb_request *request, enum gmb_operation operation, uint64_t offset, uint64_t bytes);
void gmb_prepare_status(struct gmb_request *request, struct gmb_extent *extents,
	uint32_t extents_max, uint64_t offset, uint64_t bytes);

/*
 * COPY: the server copies bytes from the export of `source` to the export of the request's client;
 * the data does not pass through this process. Both clients must use one queue and one server
 * (gmb_can_copy()). The ranges must not overlap in one export. If the source range changes during
 * the copy, or during a reconnect, which repeats the copy, the copied data is undefined. Holes of
 * the source become zeroes. Errors besides those of a write: -EXDEV the clients use different
 * servers, -ENOENT the server no longer shows the source to the client, -ESTALE writes to the
 * source may have been lost.
 */
void gmb_prepare_copy(struct gmb_request *request, uint64_t offset, struct gmb_client *source,
	uint64_t source_offset, uint64_t bytes);

/* Returns 1 if the server can copy from source to target by itself, else 0: one of the clients has
 * no GMB_CAN_COPY, or they use different servers or different queues. Does not check whether the
 * target can be written. */
int gmb_can_copy(const struct gmb_client *target, const struct gmb_client *source);

/*
 * Submits a request. It never fails and never blocks: errors are reported later, as the result.
 * Nothing is sent before the next gmb_queue_wait() or blocking call. The number of submitted
 * requests is unlimited; those beyond the depth wait in the library, in order.
 *
 * Order: requests in flight at the same time may be executed in any order, as on a disk. A caller
 * that needs an order waits for done. A request is done when every part of it is.
 *
 * gmb_submit_sized() is for callers without this header, such as other languages: request_bytes is
 * the size of their struct gmb_request. A later version of the library may define more members; it
 * accesses only those within request_bytes.
 */
void gmb_submit_sized(struct gmb_client *client, struct gmb_request *request, size_t request_bytes);
static inline void gmb_submit(struct gmb_client *client, struct gmb_request *request)
{
	gmb_submit_sized(client, request, sizeof(*request));
}

/*
 * Ends a request early, with -ECANCELED. Parts of the request that were already passed to a
 * connection continue, and may even be sent again after a reconnect. The request ends after these
 * parts, because the server may access their memory until then. done is called later by
 * gmb_queue_wait(), never from here. Returns 0; -EALREADY if all parts were passed to connections
 * (the request then ends as usual), or if the request has ended or was cancelled before; -EINVAL if
 * the request was submitted to another client. Can be called by the queue's thread only, also
 * inside a callback.
 */
int gmb_cancel(struct gmb_client *client, struct gmb_request *request);

/*
 * Writes a message about a completed request to text: the operation, the range, the export, the
 * reason, and the server's message if there is one. If the result is 0, the reason is "success".
 * May be called only inside done or before the next wait. Returns text.
 */
const char *gmb_explain(const struct gmb_client *client, const struct gmb_request *request,
	char *text, size_t text_bytes);

/* ---- blocking calls -----------------------------------------------------------------------------
 */

/*
 * Submit one request and wait for it: 0 or a negative errno, -EDEADLK inside a callback. done is
 * called for other requests of the same queue that complete in the meantime. flags: enum
 * gmb_request_flags.
 */
int gmb_pread(struct gmb_client *client, void *buffer, size_t bytes, uint64_t offset);
int gmb_pwrite(struct gmb_client *client, const void *buffer, size_t bytes, uint64_t offset,
	uint32_t flags);
int gmb_flush(struct gmb_client *client);
int gmb_trim(struct gmb_client *client, uint64_t offset, uint64_t bytes, uint32_t flags);
int gmb_zero(struct gmb_client *client, uint64_t offset, uint64_t bytes, uint32_t flags);
int gmb_copy(struct gmb_client *client, uint64_t offset, struct gmb_client *source,
	uint64_t source_offset, uint64_t bytes, uint32_t flags);
int gmb_cache(struct gmb_client *client, uint64_t offset, uint64_t bytes);
/* Fills at most *count extents from offset on and sets *count to their number; they may end
 * before offset + bytes: ask again from there. */
int gmb_block_status(struct gmb_client *client, uint64_t offset, uint64_t bytes,
	struct gmb_extent *extents, uint32_t *count);
/* Runs a prepared request of any kind and returns its result; its done is not called.
 * request_bytes: see gmb_submit_sized(). */
int gmb_run_sized(struct gmb_client *client, struct gmb_request *request, size_t request_bytes);
static inline int gmb_run(struct gmb_client *client, struct gmb_request *request)
{
	return gmb_run_sized(client, request, sizeof(*request));
}

enum gmb_send_file_flags {
	/* On success the bytes, and all that was written before, are on stable storage. */
	GMB_FLUSH_AFTER = 1 << 0,
};

/*
 * Writes bytes of a file, from fd_offset on, to the export at offset. The position of fd is not
 * used. Over gmb the server accesses the memory that the file is read into. crc_out: set to the
 * CRC-32C of the bytes on success; may be NULL. flags: enum gmb_send_file_flags. Uses one
 * buffer of the queue (GMB_BUFFERS_MAX) during the call. After an error a part may have been
 * written. Errors, besides those of a write, of gmb_buffer_alloc() and of pread(): -ENODATA the
 * file ends before its last byte, -EINVAL, -EOPNOTSUPP the server has no flush for GMB_FLUSH_AFTER,
 * -EDEADLK inside a callback.
 */
int gmb_send_file(struct gmb_client *client, int fd, uint64_t fd_offset, uint64_t bytes,
	uint64_t offset, uint32_t flags, uint32_t *crc_out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
