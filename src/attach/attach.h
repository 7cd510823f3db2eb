// SPDX-License-Identifier: Apache-2.0
/*
 * Remote blocks as a local disk: a ublk or nbd device of the kernel, or a file through FUSE. Each
 * attachment has a daemon, which keeps the disk alive while the server is away; other commands find
 * it through the state folder (state.h).
 *
 * Threading: the main thread of a process that has no others; attach_run() may fork, and the
 * daemon starts threads. Ownership: borrows its arguments.
 * Errors: 0 or a negative errno with a sentence; codes are named at each function.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/compiler.h"
#include "base/error.h"
#include "tls/context.h"

struct timings;

enum attach_kind {
	ATTACH_ANY, /* ublk where the kernel has it, else nbd */
	ATTACH_UBLK,
	ATTACH_NBD,
	ATTACH_FUSE,
};

struct attach_options {
	const char *uri;
	enum attach_kind kind;
	const char *file; /* FUSE: where the file appears; made when it is missing */
	bool cover;	  /* FUSE: also a file that has contents; they are hidden meanwhile */
	int32_t number;	  /* of the device; -1 = any that is free */
	bool read_only;
	enum tls_records tls_records; /* nbd with TLS: in the kernel, or by a relay of the daemon */
	bool foreground;	      /* no daemon: attach_run() returns when the device is gone */
	uint32_t connections;	      /* 0 = chosen for the server; at most 16 */
	uint32_t queues;	      /* ublk: threads and hardware queues; 0 = one */
	uint64_t connect_timeout_ns;
	uint64_t request_timeout_ns;   /* silence on a connection that counts as lost */
	uint64_t slow_timeout_ns;      /* the same for flushing and other slow commands */
	uint64_t reconnect_timeout_ns; /* how long a lost server is waited for */
	struct timings *timings;       /* begun; receives the steps. NULL: not measured */
};

/* The defaults, for everything but uri and file. */
void attach_options_init(struct attach_options *options);

enum { ATTACH_PATH_BYTES = 4096 };

/*
 * Attaches. Without foreground it returns in the caller's process once the disk can be used; its
 * path is in path then. With foreground the path is printed on standard output and it returns when
 * the disk was detached. Errors: -ENOENT no such export, no kernel support; -EPERM; -EBUSY the
 * device number or file is taken; -EEXIST the file has contents; -EROFS; and those of gmb_open().
 */
GMB_MUST_CHECK int attach_run(
	const struct attach_options *options, char path[ATTACH_PATH_BYTES], struct error *error);

/* Detaches the disk with this path, name ("ublkb0") or URI. limit_ns: how long the server has to
 * flush what was written, after which the disk stays; 0: the attachment's own limit. -ENOENT: there
 * is none; -ENOTUNIQ: the URI is that of several; -EBUSY: it is in use, and force was not given;
 * -ETIMEDOUT: it stays, or its daemon does not answer. */
GMB_MUST_CHECK int attach_detach(
	const char *name, bool force, uint64_t limit_ns, struct error *error);

/* "gmblock attach ATTACH_FLUSH_OPTION PATH" is run by the daemon: it flushes the disk at path, and
 * its exit status is 0 or an errno. Not for users. */
#define ATTACH_FLUSH_OPTION "--flush-attached"
int attach_flush(const char *path);

/* Prints all attachments on standard output, as a table or as JSON. */
GMB_MUST_CHECK int attach_list(bool json, struct error *error);

/* --- health ---------------------------------------------------------------------------------- */

/* The state of the connection to the server: written by the thread that owns the connection, read
 * by the one that answers "gmblock attach --list". Any thread; the text is copied. */
enum { HEALTH_TEXT_BYTES = 256 };

struct health {
	pthread_mutex_t lock;
	bool connected;
	char text[HEALTH_TEXT_BYTES]; /* why not, now or the last time; "": it always was */
};

void health_init(struct health *health);
void health_set(struct health *health, bool connected, const char *text);

/* "connected", or "not connected: " and the reason. Returns out. */
const char *health_describe(struct health *health, char *out, size_t out_bytes);
bool health_is_connected(struct health *health);
/* Why it is not connected, or was not the last time. False: it always was. */
bool health_last_reason(struct health *health, char out[HEALTH_TEXT_BYTES]);

/* --- devices --------------------------------------------------------------------------------- */

/* What the daemon needs of each kind of attachment. One thread at a time, except hurry(); the kinds
 * have threads of their own. start() gives, destroy() frees. */
struct device;

struct device_ops {
	const char *kind; /* "ublk", "nbd", "fuse" */

	/* -EBUSY: the disk at path is in use, error says by whom. Any thread. */
	int (*check)(const char *path, struct error *error);

	/* Flushes what was written to the server and removes the disk. -EBUSY: it is in use, force
	 * was not given, and nothing has changed. Any other result: the disk is gone; an error says
	 * what was lost. */
	int (*stop)(struct device *device, bool force, struct error *error);

	/* Called before stop() by force, or while another thread is in stop() without: stop() no
	 * longer waits for the server, and what was not flushed is lost. It may still return
	 * -EBUSY; then the disk stays and can be stopped by force only. */
	void (*hurry)(struct device *device);

	/* Makes the disk larger, to so many bytes, which are whole blocks. It stays in use. Not
	 * while another thread is in stop(). -EOPNOTSUPP: the kernel cannot. */
	int (*grow)(struct device *device, uint64_t bytes, struct error *error);

	/* After stop(), or when ended_fd says that the disk is gone. */
	void (*destroy)(struct device *device);
};

struct device {
	const struct device_ops *ops;
	char path[ATTACH_PATH_BYTES]; /* of the disk */
	char name[64];		      /* a file name: "ublkb0", "nbd3", "fuse-1234" */
	int32_t number;		      /* of the kernel's device, or -1 */
	uint64_t bytes;		      /* size of the disk */
	uint32_t block_bytes;	      /* of which it has whole ones */
	bool read_only;
	bool made_file; /* the file at path was not there before */
	int ended_fd;	/* polls readable when the disk has gone without stop() */
	int resized_fd; /* the same when export_bytes has been set */
	_Atomic uint64_t export_bytes;
	struct health health;
};

/* The part that all kinds have. -EMFILE and the like; device_fini() may be called then, too. */
GMB_MUST_CHECK int device_init(
	struct device *device, const struct device_ops *ops, struct error *error);
void device_fini(struct device *device);

/* The server says that the export has so many bytes now: the daemon makes the disk larger, or says
 * why not. Any thread. */
void device_export_resized(struct device *device, uint64_t bytes);

/* The three kinds. *device_out is set on success only: the disk can be used then. */
GMB_MUST_CHECK int ublk_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error);
GMB_MUST_CHECK int nbd_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error);
GMB_MUST_CHECK int fuse_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error);

/* For block devices, whose blocks must fit in a page. Sets device->bytes to the whole blocks of the
 * export, and device->block_bytes. -EINVAL: the export cannot be a disk. */
GMB_MUST_CHECK int device_fit(
	struct device *device, uint64_t export_bytes, uint32_t block_minimum, struct error *error);

/* Removes what a dead daemon left behind: by number (ublk, nbd) or by path (fuse). 0 if it is gone
 * already; -EBUSY as with stop(). */
GMB_MUST_CHECK int ublk_device_remove(int32_t number, bool force, struct error *error);
GMB_MUST_CHECK int nbd_device_remove(int32_t number, bool force, struct error *error);
GMB_MUST_CHECK int fuse_device_remove(const char *path, bool force, struct error *error);

/* How long a forced detach waits for a server that seems to answer. */
enum { FORCED_MS_MAX = 5000 };

/* --- threads --------------------------------------------------------------------------------- */

/* Starts a thread of an attachment. Signals stay with the main thread; the stack is small, because
 * all memory of the daemon is locked. The caller joins or detaches it. */
GMB_MUST_CHECK int thread_start(
	pthread_t *thread, void *(*run)(void *), void *argument, struct error *error);

/* Waits for a thread to end, for at most five seconds: false when it did not. */
GMB_MUST_CHECK bool thread_join_soon(pthread_t thread);

/* --- timings --------------------------------------------------------------------------------- */

/* Where the time of an attachment goes: consecutive steps, whose sum is the time from the start of
 * the program until the disk can be used. One thread at a time. Plain data, which the daemon also
 * sends to its parent through a pipe. */
enum timings_step {
	TIMINGS_START,	   /* the program's start, as processor time: its other time is not known */
	TIMINGS_ARGUMENTS, /* the command line */
	TIMINGS_FORK,	   /* the daemon is made */
	TIMINGS_PROTECT,   /* signals, locked memory */
	TIMINGS_DRIVER,	   /* the way to the kernel's driver is opened */
	TIMINGS_FILE,	   /* fuse: the file to mount on */
	TIMINGS_CONNECT,   /* to the server, with the handshake */
	TIMINGS_LOOK,	   /* ublk: is there a device to take over? */
	TIMINGS_ADD,	   /* ublk: ADD_DEV, or the begin of a recovery */
	TIMINGS_PARAMS,	   /* ublk: SET_PARAMS */
	TIMINGS_NODE,	   /* ublk: /dev/ublkcN can be opened */
	TIMINGS_QUEUES,	   /* ublk: all queues wait for requests */
	TIMINGS_DISK,	   /* START_DEV, CONNECT or mount: the kernel makes the disk */
	TIMINGS_LIMITS,	   /* nbd: the length of requests */
	TIMINGS_WATCH,	   /* nbd, fuse: what stays with the disk runs */
	TIMINGS_STATE,	   /* the note about the attachment, and the daemon's socket */
	TIMINGS_TELL,	   /* the service manager and the parent know */
	TIMINGS_STEPS,
};

enum { TIMINGS_MAX = 24 }; /* more are not kept: a step comes once, or twice with a second kind */

struct timings {
	uint64_t last_ns; /* of CLOCK_MONOTONIC: until when everything is in a step */
	uint32_t count;
	struct {
		uint32_t step; /* enum timings_step */
		uint64_t ns;
	} steps[TIMINGS_MAX];
};

/* Starts the clock; the processor time used so far is the first step. */
void timings_begin(struct timings *timings);

/* Ends a step, which lasted since the one before ended. timings may be NULL. */
void timings_mark(struct timings *timings, enum timings_step step);

/* Prints the steps and their sum as lines on standard error, or as one JSON object with the path of
 * the disk on standard output. -ENOMEM, -EIO. */
GMB_MUST_CHECK int timings_print(
	const struct timings *timings, const char *path, bool json, struct error *error);

/*
 * Who uses a disk: mounted, swap, part of another block device, or open in a process. Partitions
 * count. Any thread. -EBUSY with a sentence that names the first user found; what cannot be looked
 * at is not a user.
 */

/* name is the kernel's: "ublkb0". Our own process does not count. */
GMB_MUST_CHECK int usage_check_disk(const char *name, struct error *error);

/* The same by the disk's path, "/dev/ublkb0". */
GMB_MUST_CHECK int usage_check_path(const char *path, struct error *error);

/* Only processes that have the file at path open, and loop devices on it. */
GMB_MUST_CHECK int usage_check_file(const char *path, struct error *error);
/* The same for the message when an unmount was refused: always -EBUSY. */
GMB_MUST_CHECK int usage_explain_file(const char *path, struct error *error);
