// SPDX-License-Identifier: Apache-2.0
/*
 * A file through FUSE, from the inside. One thread reads the kernel's requests and hands them to
 * the library; each is carried by a slot until it is answered:
 *
 *   /dev/fuse ─▶ inlet ─▶ slot ─▶ gmb_submit() ─▶ done ─▶ reply
 *
 * The payload of a write stays in its inlet, behind the kernel's header, where direct I/O could not
 * use it: a server that reaches our memory is given a copy by the library. A read has the slot's
 * own buffer, which such a server fills itself.
 *
 * Writes that do not fit the server's blocks are completed with what is there already: the edges
 * (fuse_device.c), which also keep other writes away from those blocks meanwhile.
 *
 * Threading: everything below belongs to the file's own thread unless it says otherwise.
 * Ownership: the file owns slots and inlets; no more than FUSE_SLOTS_MAX of each exist. Errors:
 * requests are answered with an errno.
 */
#pragma once

#define FUSE_USE_VERSION 35

#include <fuse_lowlevel.h>

#include "attach/attach.h"
#include "attach/remote.h"
#include "base/error.h"
#include "base/list.h"

enum {
	FUSE_IO_BYTES_MAX = 1 << 20, /* longest read and write; what the kernel allows at most */
	FUSE_SLOTS_MAX = 64,
	FUSE_GROUP_SLOTS = 5, /* whose buffers are allocated together */
	FUSE_GROUPS_MAX = (FUSE_SLOTS_MAX + FUSE_GROUP_SLOTS - 1) / FUSE_GROUP_SLOTS,
	FUSE_BACKGROUND_MAX = 48, /* asynchronous requests that the kernel sends at once */
	FUSE_EXTENTS = 32,	  /* asked for at a time when looking for data or holes */
};

_Static_assert((int)FUSE_GROUPS_MAX <= (int)GMB_BUFFERS_MAX, "each group is a buffer of the queue");

/* A buffer for what comes from the kernel. libfuse allocates its memory with malloc(). */
struct fuse_inlet {
	struct list_node node;
	struct fuse_buf buffer;
};

/* What a slot with edges waits for. */
enum fuse_step {
	FUSE_STEP_PLAIN,
	FUSE_STEP_HEAD, /* reading the first block */
	FUSE_STEP_TAIL, /* reading the last block */
	FUSE_STEP_BODY, /* writing all */
};

struct fuse_slot {
	struct list_node node;	     /* in free, or in waiting */
	struct list_node range_node; /* in ranges, while it writes */
	struct fuse_file *file;
	fuse_req_t req;
	struct gmb_request request;
	uint64_t offset; /* as asked for */
	uint64_t length;
	struct fuse_inlet *inlet; /* write: holds the payload */
	const char *payload;
	char *buffer; /* FUSE_IO_BYTES_MAX and two blocks, of its group; NULL until needed */
	enum fuse_step step;
	uint64_t begin; /* what it covers in whole blocks */
	uint64_t end;
	bool exclusive; /* has edges: no other write may touch these blocks */
	int whence;	/* lseek */
	struct gmb_extent extents[FUSE_EXTENTS];
};

struct fuse_file {
	struct device device;
	const struct attach_options *options;
	struct remote remote;
	struct fuse_session *session;
	_Atomic uint64_t bytes; /* grows: see grow() */
	uint64_t block;		/* the server's smallest */
	struct timespec born;

	struct fuse_slot *slots;
	char *groups[FUSE_GROUPS_MAX]; /* buffers; NULL until needed */
	uint32_t slot_count;	       /* that are initialised; the others were never needed */
	uint32_t busy_count;
	struct list_node free_slots;
	struct list_node free_inlets;
	struct list_node ranges;  /* writes in flight; only kept when blocks matter */
	struct list_node waiting; /* writes that must wait for one of them, in order */
	struct fuse_inlet *inlet; /* the one that is being processed */

	/* Between the threads. */
	pthread_t thread;
	int started_fd; /* readable: started, or failed with start_error */
	int hurry_fd;	/* readable: the last flush is not waited for any more */
	int start_result;
	struct error start_error;
	bool skip_flush;  /* the thread is not waited for */
	bool abandoned;	  /* it may still run: nothing can be freed */
	int close_result; /* valid after the thread has ended */
	struct error close_error;
};

/* The operations table, for fuse_session_new() with the file as its data. */
const struct fuse_lowlevel_ops *fuse_file_ops(void);

/* True when another request can be taken. */
bool fuse_file_has_room(const struct fuse_file *file);

/* Takes a free slot for a request, which must be there (fuse_file_has_room()). */
struct fuse_slot *fuse_slot_get(struct fuse_file *file, fuse_req_t req);

/* Gives back a slot that has been answered, with what it holds. */
void fuse_slot_put(struct fuse_slot *slot);

/* Answers with the errno of a result of the library, and gives the slot back. */
void fuse_slot_fail(struct fuse_slot *slot, int result);

/* The slot's buffer, or NULL without memory. */
char *fuse_slot_buffer(struct fuse_slot *slot);

/* Frees the buffers, before the remote is closed. */
void fuse_buffers_free(struct fuse_file *file);

/* A write whose payload, offset and length are set: answered when it is done. */
void fuse_write_start(struct fuse_slot *slot);

/* Zeroes a range of whole blocks; flags are those of GMB_ZERO. */
void fuse_zero_start(struct fuse_slot *slot, uint32_t flags);

/* --- libfuse --------------------------------------------------------------------------------- */

/*
 * libfuse is loaded when a file is attached, not when the program starts: its relocations take
 * nearly as many instructions as the rest of the start, and only `gmblock attach --fuse` needs it.
 * From libfuse 3.17 on it is linked: there fuse_session_new() is a macro, and the library has
 * another name.
 */

/* From 3.17 on a macro with arguments stands in front of this function, and fuse_session_new
 * without them is nothing. */
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

/* fuse.reply_err() is fuse_reply_err(), and so on. */
struct fuse_calls {
#define CALL_MEMBER(name) __typeof__(fuse_##name) *name;
	FUSE_CALLS(CALL_MEMBER)
#undef CALL_MEMBER
};

extern struct fuse_calls fuse;

/* Fills the table. */
GMB_MUST_CHECK int fuse_library_load(struct error *error);
