// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the FUSE implementation. One thread reads the kernel's requests and passes them to the
 * library. A slot holds each request until it is answered:
 *
 *   /dev/fuse ─▶ inlet ─▶ slot ─▶ gmb_submit() ─▶ done ─▶ reply
 *
 * The payload of a write stays in its inlet after the kernel's header, where it is not aligned for
 * direct I/O; for a server that accesses our memory the library makes a copy. A read uses the
 * slot's own buffer, which such a server fills directly.
 *
 * A write that does not consist of whole server blocks is completed with the existing data of its
 * first and last block, the edges (fuse_device.c). Other writes to those blocks wait until it is
 * done.
 *
 * Threading: everything below belongs to the file's own thread unless noted. Ownership: the file
 * owns slots and inlets, at most FUSE_SLOTS_MAX of each. Errors: requests are answered with an
 * errno.
 */
#pragma once

#define FUSE_USE_VERSION 35

#include <fuse_lowlevel.h>

#include "attach/attach.h"
#include "attach/remote.h"
#include "base/error.h"
#include "base/list.h"

enum {
	FUSE_IO_BYTES_MAX = 1 << 20, /* longest read and write; the kernel's limit */
	FUSE_SLOTS_MAX = 64,
	FUSE_GROUP_SLOTS = 5, /* slots whose buffers are allocated together */
	FUSE_GROUPS_MAX = (FUSE_SLOTS_MAX + FUSE_GROUP_SLOTS - 1) / FUSE_GROUP_SLOTS,
	/* limit on asynchronous requests that the kernel sends in parallel */
	FUSE_BACKGROUND_MAX = 48,
	/* extents requested at a time when searching for data or holes */
	FUSE_EXTENTS = 32,
};

_Static_assert((int)FUSE_GROUPS_MAX <= (int)GMB_BUFFERS_MAX, "each group is a buffer of the queue");

/* A buffer for a request from the kernel. libfuse allocates its memory with malloc(). */
struct fuse_inlet {
	struct list_node node;
	struct fuse_buf buffer;
};

/* Step of a write. A write that does not consist of whole blocks first reads its edges, the blocks
 * that it changes only in part. */
enum fuse_step {
	FUSE_STEP_PLAIN,
	FUSE_STEP_HEAD, /* reads the first block */
	FUSE_STEP_TAIL, /* reads the last block */
	FUSE_STEP_BODY, /* writes everything */
};

struct fuse_slot {
	struct list_node node;	     /* in free_slots, or in waiting */
	struct list_node range_node; /* in file->ranges, while the slot writes */
	struct fuse_file *file;
	fuse_req_t req;
	struct gmb_request request;
	uint64_t offset; /* offset in bytes, as requested */
	uint64_t length;
	struct fuse_inlet *inlet; /* inlet that holds the payload of a write */
	const char *payload;
	/* part of a buffer that a group of slots shares: FUSE_IO_BYTES_MAX and two blocks; NULL
	 * until needed */
	char *buffer;
	enum fuse_step step;
	uint64_t begin; /* range in whole blocks */
	uint64_t end;
	/* the write begins or ends inside a block, so no other write may access these blocks */
	bool exclusive;
	int whence; /* argument of an lseek request */
	struct gmb_extent extents[FUSE_EXTENTS];
};

struct fuse_file {
	struct device device;
	const struct attach_options *options;
	struct remote remote;
	struct fuse_session *session;
	_Atomic uint64_t bytes; /* can grow: see fuse_device_grow() */
	uint64_t block;		/* the server's minimum block size */
	struct timespec born;

	struct fuse_slot *slots;
	char *groups[FUSE_GROUPS_MAX]; /* buffers; NULL until needed */
	uint32_t slot_count;	       /* initialized slots; the others were never needed */
	uint32_t busy_count;
	struct list_node free_slots;
	struct list_node free_inlets;
	/* writes in flight; only used if blocks are larger than a byte */
	struct list_node ranges;
	struct list_node waiting; /* writes that wait for a write in flight, in order */
	struct fuse_inlet *inlet; /* inlet that is being processed */

	/* Used by both the file's thread and the daemon. */
	pthread_t thread;
	pthread_mutex_t wake_lock; /* protects whether the queue can be woken: takes_wakes */
	bool takes_wakes;
	int started_fd; /* readable: started, or failed with start_error */
	int hurry_fd;	/* readable: do not wait for the last flush */
	int start_result;
	struct error start_error;
	bool skip_flush; /* stop() does not wait for the thread */
	/* the thread could not be joined and may still run, so no memory can be freed */
	bool abandoned;
	int close_result; /* valid after the thread has ended */
	struct error close_error;
};

/* Returns the operations table, for fuse_session_new() with the file as its data. */
const struct fuse_lowlevel_ops *fuse_file_ops(void);

/* Returns whether another request can be accepted. */
bool fuse_file_has_room(const struct fuse_file *file);

/* Releases a slot that has been answered, with its inlet. */
void fuse_slot_put(struct fuse_slot *slot);

/* Answers with the errno for a result of the library, and releases the slot. */
void fuse_slot_fail(struct fuse_slot *slot, int result);

/* Returns the slot's buffer, or NULL if there is no memory. */
char *fuse_slot_buffer(struct fuse_slot *slot);

/* Frees the buffers; called before the remote is closed. */
void fuse_buffers_free(struct fuse_file *file);

/* Starts a write whose payload, offset and length are set; it is answered when done. */
void fuse_write_start(struct fuse_slot *slot);

/* Zeroes a range of whole blocks; flags as for GMB_ZERO. */
void fuse_zero_start(struct fuse_slot *slot, uint32_t flags);

/* --- libfuse --------------------------------------------------------------------------------- */

/*
 * libfuse is loaded when a file is attached and not at program start, because its relocations take
 * nearly as many instructions as the rest of the start, and only `gmblock attach --fuse` needs it.
 * libfuse 3.17 and later are linked as usual: there fuse_session_new() is a macro, and the library
 * has another name.
 */

/* In libfuse 3.17 and later fuse_session_new() is a macro with arguments. FUSE_CALLS() needs the
 * name of a function instead, which is fuse_session_new_fn. */
#ifdef fuse_session_new
#undef fuse_session_new
#define fuse_session_new fuse_session_new_fn
#endif

#define FUSE_CALLS(CALL)                                                                           \
	CALL(lowlevel_notify_inval_inode)                                                          \
	CALL(opt_free_args)                                                                        \
	CALL(reply_attr)                                                                           \
	CALL(reply_buf)                                                                            \
	CALL(reply_err)                                                                            \
	CALL(reply_lseek)                                                                          \
	CALL(reply_open)                                                                           \
	CALL(reply_statfs)                                                                         \
	CALL(reply_write)                                                                          \
	CALL(req_userdata)                                                                         \
	CALL(session_destroy)                                                                      \
	CALL(session_exit)                                                                         \
	CALL(session_exited)                                                                       \
	CALL(session_fd)                                                                           \
	CALL(session_mount)                                                                        \
	CALL(session_new)                                                                          \
	CALL(session_process_buf)                                                                  \
	CALL(session_receive_buf)

/* Pointers to libfuse's functions: fuse.reply_err points to fuse_reply_err(), and so on. */
struct fuse_calls {
#define CALL_MEMBER(name) __typeof__(fuse_##name) *name;
	FUSE_CALLS(CALL_MEMBER)
#undef CALL_MEMBER
};

extern struct fuse_calls fuse;

/* Loads libfuse and fills the table. */
GMB_MUST_CHECK int fuse_library_load(struct error *error);
