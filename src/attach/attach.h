// SPDX-License-Identifier: Apache-2.0
/*
 * Remote blocks as a local disk: a ublk or nbd device of the kernel, or a file through FUSE. Each
 * attachment has a daemon, which keeps the disk alive while the server is unreachable. Other
 * commands find the daemon through the state folder (state.h).
 *
 * Threading: the main thread of a process without other threads; attach_run() may fork, and the
 * daemon starts threads. Ownership: arguments are borrowed. Errors: 0 or a negative errno with an
 * error message; each function lists its codes.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/compiler.h"
#include "base/error.h"
#include "base/lease.h"
#include "tls/context.h"

struct timings;

enum attach_kind {
	ATTACH_ANY, /* ublk if the kernel supports it, otherwise nbd */
	ATTACH_UBLK,
	ATTACH_NBD,
	ATTACH_FUSE,
};

#define READAHEAD_AUTO UINT64_MAX

struct attach_options {
	const char *uri;
	enum attach_kind kind;
	const char *file; /* FUSE: path of the file; created if it does not exist */
	/* FUSE: also accept a file with contents, which are hidden while attached */
	bool cover;
	int32_t number; /* device number; -1: any free one */
	bool read_only;
	struct lease_want lease; /* lease of the export; LEASE_NONE: none */
	/* nbd with TLS: whether the kernel or a relay in the daemon encrypts */
	enum tls_records tls_records;
	bool foreground;      /* no daemon: attach_run() returns when the device is gone */
	uint32_t connections; /* number of connections, at most 16; 0: chosen to suit the server */
	uint32_t queues;      /* ublk: threads and hardware queues; 0: one */
	uint64_t connect_timeout_ns;
	uint64_t request_timeout_ns; /* silence after which a connection counts as lost */
	/* request_timeout_ns for flushes and other slow commands; 0: default, see attach_slow_ns()
	 */
	uint64_t slow_timeout_ns;
	uint64_t reconnect_timeout_ns; /* time to wait for a lost server */
	uint64_t readahead_bytes;      /* or READAHEAD_AUTO, see readahead.h */
	/* timings started by the caller, to which steps are added; NULL: not measured */
	struct timings *timings;
};

/* Returns slow_timeout_ns, or the default, but at least request_timeout_ns. */
#define ATTACH_SLOW_NS UINT64_C(600000000000)
static inline uint64_t attach_slow_ns(const struct attach_options *options, uint64_t default_ns)
{
	uint64_t slow_ns = options->slow_timeout_ns != 0 ? options->slow_timeout_ns : default_ns;

	return MAX(slow_ns, options->request_timeout_ns);
}

/* Sets the defaults of everything except uri and file. */
void attach_options_init(struct attach_options *options);

enum { ATTACH_PATH_BYTES = 4096 };

/*
 * Attaches a disk. Without foreground it returns in the caller's process when the disk can be used,
 * with its path in path. With foreground it prints the path on standard output, and returns when
 * the disk has been detached. Errors: -ENOENT no such export, or no kernel support; -EPERM; -EBUSY
 * the device number or file is in use; -EEXIST the file has contents; -EROFS; and the errors of
 * gmb_open().
 */
GMB_MUST_CHECK int attach_run(
	const struct attach_options *options, char path[ATTACH_PATH_BYTES], struct error *error);

/* Detaches the disk with this path, name ("ublkb0") or URI. limit_ns: time for the server to flush
 * written data, after which the disk stays attached; 0: the attachment's own limit. Errors: -ENOENT
 * no such disk; -ENOTUNIQ several disks have the URI; -EBUSY it is in use and force is not set;
 * -ETIMEDOUT the disk stays, or its daemon does not answer. */
GMB_MUST_CHECK int attach_detach(
	const char *name, bool force, uint64_t limit_ns, struct error *error);

/* The daemon runs "gmblock attach ATTACH_FLUSH_OPTION PATH", which flushes the disk at path. Its
 * exit status is 0 or an errno. Not for users. */
#define ATTACH_FLUSH_OPTION "--flush-attached"
int attach_flush(const char *path);

/* Prints all attachments on standard output, as a table or as JSON. */
GMB_MUST_CHECK int attach_list(bool json, struct error *error);

/* --- health ---------------------------------------------------------------------------------- */

/* State of the connection to the server. The thread that owns the connection writes it, and the
 * thread that answers "gmblock attach --list" reads it. Any thread; the text is copied. */
enum { HEALTH_TEXT_BYTES = ERROR_TEXT_BYTES };

struct health {
	pthread_mutex_t lock;
	bool connected;
	/* reason why the server is, or last was, not connected; "": it was always connected */
	char text[HEALTH_TEXT_BYTES];
	/* address of the server in use; "": the URI has only one host */
	char server[HEALTH_TEXT_BYTES];
};

void health_set(struct health *health, bool connected, const char *text);

void health_set_server(struct health *health, const char *server);
/* Copies the address of the server in use. Returns false if the URI has only one host. */
bool health_server(struct health *health, char out[HEALTH_TEXT_BYTES]);

/* Formats "connected", or "not connected: " and the reason. Returns out. */
const char *health_describe(struct health *health, char *out, size_t out_bytes);
bool health_is_connected(struct health *health);
/* Copies the reason why the server is, or last was, not connected. Returns false if it was always
 * connected. */
bool health_last_reason(struct health *health, char out[HEALTH_TEXT_BYTES]);

/* --- devices --------------------------------------------------------------------------------- */

/* Interface of the daemon to each kind of attachment. Called by one thread at a time, except
 * hurry(); the kinds have threads of their own. start() creates the device, destroy() frees it. */
struct device;

struct device_ops {
	const char *kind; /* "ublk", "nbd" or "fuse" */

	/* Returns -EBUSY if the disk at path is in use; error names the program or mount that uses
	 * it. Any thread. */
	int (*check)(const char *path, struct error *error);

	/* Flushes written data to the server and removes the disk. -EBUSY: the disk is in use and
	 * force is not set; nothing has changed. After any other result the disk is gone; an error
	 * says what was lost. */
	int (*stop)(struct device *device, bool force, struct error *error);

	/* Called before stop() with force, or while another thread is in stop() without force.
	 * stop() then no longer waits for the server, and data that was not flushed is lost. It may
	 * still return -EBUSY; then the disk stays and can only be stopped by force. */
	void (*hurry)(struct device *device);

	/* Enlarges the disk, which stays in use, to this size in whole blocks. Not called while
	 * another thread is in stop(). -EOPNOTSUPP: the kernel does not support it. */
	int (*grow)(struct device *device, uint64_t bytes, struct error *error);

	/* Called after stop(), or when ended_fd reports that the disk is gone. */
	void (*destroy)(struct device *device);
};

struct device {
	const struct device_ops *ops;
	char path[ATTACH_PATH_BYTES]; /* path of the disk */
	char name[64];		      /* file name: "ublkb0", "nbd3", "fuse-1234" */
	int32_t number;		      /* number of the kernel's device, or -1 */
	uint64_t bytes;		      /* size of the disk */
	uint32_t block_bytes;	      /* block size; the disk has whole blocks */
	bool read_only;
	bool made_file; /* the file at path was created for the attachment */
	int ended_fd;	/* readable when the disk has gone without stop() */
	int resized_fd; /* readable when export_bytes has changed */
	_Atomic uint64_t export_bytes;
	/* payload that was copied between requests of the kernel and memory of the daemon; -1: the
	 * kind of device does not count it */
	_Atomic int64_t staged_bytes;
	struct health health;
};

/* Initializes the members that all kinds of devices have. Errors such as -EMFILE; device_fini() can
 * also be called after an error. */
GMB_MUST_CHECK int device_init(
	struct device *device, const struct device_ops *ops, struct error *error);
void device_fini(struct device *device);

/* Reports a new size of the export. The daemon enlarges the disk, or logs why it does not. Any
 * thread. */
void device_export_resized(struct device *device, uint64_t bytes);

/* Start a disk: one function for each kind. *device_out is set only on success, when the disk can
 * be used. */
GMB_MUST_CHECK int ublk_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error);
GMB_MUST_CHECK int nbd_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error);
GMB_MUST_CHECK int fuse_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error);

/* For block devices, whose blocks must fit in a page: sets device->bytes to the whole blocks of the
 * export, and device->block_bytes. -EINVAL: the export cannot be a disk. */
GMB_MUST_CHECK int device_fit(
	struct device *device, uint64_t export_bytes, uint32_t block_minimum, struct error *error);

/* Remove the disk of a dead daemon, by number (ublk, nbd) or path (fuse). Return 0 if it is gone
 * already, and -EBUSY under the same conditions as stop(). */
GMB_MUST_CHECK int ublk_device_remove(int32_t number, bool force, struct error *error);
GMB_MUST_CHECK int nbd_device_remove(int32_t number, bool force, struct error *error);
GMB_MUST_CHECK int fuse_device_remove(const char *path, bool force, struct error *error);

/* Time that a forced detach waits for a server that seems to respond. */
enum { FORCED_MS_MAX = 5000 };

/* --- threads --------------------------------------------------------------------------------- */

/* Starts a thread of an attachment. Signals stay with the main thread. The stack is small, because
 * all memory of the daemon is locked. The caller joins or detaches the thread. */
GMB_MUST_CHECK int thread_start(
	pthread_t *thread, void *(*run)(void *), void *argument, struct error *error);

/* Waits at most five seconds for a thread to end; returns false if it does not. */
GMB_MUST_CHECK bool thread_join_soon(pthread_t thread);

/* --- timings --------------------------------------------------------------------------------- */

/* Timings of an attachment: consecutive steps, whose sum is the time from the start of the program
 * until the disk can be used. One thread at a time. Plain data, which the daemon also sends to its
 * parent through a pipe. */
enum timings_step {
	/* from the start of the program to timings_begin(), in processor time, because the program
	 * does not know when it was started */
	TIMINGS_START,
	TIMINGS_ARGUMENTS, /* parsing the command line */
	TIMINGS_FORK,	   /* creating the daemon */
	TIMINGS_PROTECT,   /* signals, locked memory */
	TIMINGS_DRIVER,	   /* opening the connection to the kernel's driver */
	TIMINGS_FILE,	   /* fuse: preparing the file to mount on */
	TIMINGS_CONNECT,   /* connecting to the server, with the handshake */
	TIMINGS_LOOK,	   /* ublk: searching for a device to take over */
	TIMINGS_ADD,	   /* ublk: ADD_DEV, or the start of a recovery */
	TIMINGS_PARAMS,	   /* ublk: SET_PARAMS */
	TIMINGS_NODE,	   /* ublk: waiting until /dev/ublkcN can be opened */
	TIMINGS_QUEUES,	   /* ublk: until all queues wait for requests */
	TIMINGS_DISK,	   /* START_DEV, CONNECT or mount: the kernel creates the disk */
	TIMINGS_LIMITS,	   /* nbd: setting the maximum length of requests */
	TIMINGS_WATCH,	   /* nbd, fuse: starting the thread that stays with the disk */
	TIMINGS_STATE,	   /* writing the state file, and creating the daemon's socket */
	TIMINGS_TELL,	   /* notifying the service manager and the parent */
	TIMINGS_STEPS,
};

/* Steps beyond this limit are dropped. A step occurs once, or twice if a second kind of device is
 * tried. */
enum { TIMINGS_MAX = 24 };

struct timings {
	uint64_t last_ns; /* CLOCK_MONOTONIC time at which the last step ended */
	uint32_t count;
	struct {
		uint32_t step; /* enum timings_step */
		uint64_t ns;
	} steps[TIMINGS_MAX];
};

/* Starts the clock. The processor time used so far becomes the first step. */
void timings_begin(struct timings *timings);

/* Ends a step. A step begins when the previous step ends. timings can be NULL. */
void timings_mark(struct timings *timings, enum timings_step step);

/* Prints the steps and their sum as lines on standard error, or as one JSON object with the path of
 * the disk on standard output. -ENOMEM, -EIO. */
GMB_MUST_CHECK int timings_print(
	const struct timings *timings, const char *path, bool json, struct error *error);

/*
 * Users of a disk: mounts, swap space, other block devices built on it, and processes that have it
 * open. Users of its partitions count as well. Any thread. Return -EBUSY with an error message that
 * names the first user found. An object that cannot be examined does not count as a user.
 */

/* name is the kernel's: "ublkb0". Our own process does not count. */
GMB_MUST_CHECK int usage_check_disk(const char *name, struct error *error);

/* usage_check_disk() by the disk's path, "/dev/ublkb0". */
GMB_MUST_CHECK int usage_check_path(const char *path, struct error *error);

/* As usage_check_disk(), for a file. The users of a file are the processes that have it open, and
 * loop devices on it. */
GMB_MUST_CHECK int usage_check_file(const char *path, struct error *error);
/* Like usage_check_file(), but called after the kernel has refused to unmount the file. Always
 * returns -EBUSY, with a message that names the user if one is found. */
GMB_MUST_CHECK int usage_explain_file(const char *path, struct error *error);
