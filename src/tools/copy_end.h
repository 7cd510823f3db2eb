// SPDX-License-Identifier: Apache-2.0
/*
 * One end of a copy: what it is read from or written to. Three kinds behind one table: an export of
 * an NBD server (copy_remote.c), a regular file or block device (copy_file.c), a pipe or another
 * stream (copy_stream.c).
 *
 * Threading: the thread of the loop. Ownership: the end holds an operation and its buffer from
 * copy_end_submit() until done; nothing may be in flight when it is closed.
 * Errors: an operation's result is 0 or a negative errno, and then end->failure says in a sentence
 * which end, range and reason. Opening and preparing fill *error.
 */
#pragma once

#include "tools/copy_loop.h"

struct copy_end;
struct copy_io;

typedef void copy_done_fn(struct copy_io *io);

enum copy_operation { COPY_READ, COPY_WRITE, COPY_ZERO, COPY_FLUSH, COPY_MAP };

struct copy_io {
	enum copy_operation operation;
	bool allocate; /* ZERO: the range stays or becomes allocated */
	uint64_t offset;
	uint64_t length;
	uint8_t *buffer;	    /* READ, WRITE */
	struct gmb_extent *extents; /* MAP: room for the answer, as GMB_STATUS gives it */
	uint32_t extents_max;
	copy_done_fn *done;

	int result;
	uint32_t extent_count; /* MAP: at least 1 when result is 0 */
	uint64_t moved;	       /* READ: length, or less where a stream ends */

	/* Private to the end. */
	bool in_flight;
	struct copy_end *end;
	struct iovec iov;
	union {
		struct gmb_request request;
		struct ring_op ring_op;
	};
};

enum copy_kind { COPY_REMOTE, COPY_FILE, COPY_DEVICE, COPY_STREAM };

struct copy_end_ops {
	/* Before the first write: creates a file and gives it its size. bytes: of the copy, or
	 * UINT64_MAX when only the end of the stream will tell. resumed: what is there stays.
	 * Optional. */
	int (*prepare)(struct copy_end *end, uint64_t bytes, bool resumed, struct error *error);
	void (*submit)(struct copy_end *end, struct copy_io *io);
	/* Ends early what waits for somebody else (a pipe). Optional. */
	void (*cancel)(struct copy_end *end);
	/* Everything is written and bytes is the size of the copy: gives a file its size.
	 * Optional. */
	int (*finish)(struct copy_end *end, uint64_t bytes, struct error *error);
	/* What is cached of it is forgotten, so that it is read from the disk. Optional. */
	void (*forget)(struct copy_end *end);
	/* Frees the end. *error: what was noticed only now. */
	int (*close)(struct copy_end *end, struct error *error);
};

struct copy_end {
	const struct copy_end_ops *ops;
	struct copy_loop *loop;
	const char *role; /* "the source", "the target" */
	const char *text; /* as given; borrowed from the command line */
	char *name;	  /* for messages: escaped and quoted, cut when long */
	enum copy_kind kind;
	bool target;
	bool size_known;
	bool can_map;
	bool can_zero; /* without sending zeroes */
	bool can_flush;
	bool known_zero;      /* reads as zeroes where nothing was written yet */
	bool resized;	      /* it changed its size while it was copied */
	uint64_t bytes;	      /* when size_known */
	uint32_t block_min;   /* offsets and lengths are multiples of it; a power of two */
	uint64_t identity[4]; /* what tells one file or device from another; 0: unknown */
	uint64_t backing[2];  /* a loop device: the identity of the file it is made of */
	uint64_t backing_at;  /* and where in it the device begins */
	struct error failure;
};

struct copy_end_options {
	const char *text; /* URI, path or "-" */
	bool target;
	bool direct;	      /* files and devices: around the page cache */
	uint32_t connections; /* remote: 0 = as the server's address suggests */
};

/* Says which kind of end the text names, without opening it. */
enum copy_kind copy_end_kind(const char *text);

/* Opens an end and changes nothing there. */
GMB_MUST_CHECK int copy_end_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);

/* True when both are surely the same bytes. */
bool copy_end_is_same(const struct copy_end *a, const struct copy_end *b);

GMB_MUST_CHECK int copy_end_prepare(
	struct copy_end *end, uint64_t bytes, bool resumed, struct error *error);
void copy_end_submit(struct copy_end *end, struct copy_io *io);
void copy_end_cancel(struct copy_end *end);
GMB_MUST_CHECK int copy_end_finish(struct copy_end *end, uint64_t bytes, struct error *error);
void copy_end_forget(struct copy_end *end);

/* Frees it; NULL is a no-op. */
GMB_MUST_CHECK int copy_end_close(struct copy_end *end, struct error *error);

/* --- for the kinds ------------------------------------------------------------------------- */

/* The fields that all kinds have in common. */
GMB_MUST_CHECK int copy_end_init(struct copy_end *end, const struct copy_end_ops *ops,
	struct copy_loop *loop, const struct copy_end_options *options, struct error *error);
void copy_end_fini(struct copy_end *end);

/* The operation is over: calls done. */
void copy_io_end(struct copy_io *io, int result);
/* The same with "cannot read the source 'x' at OFFSET (LENGTH bytes): reason" as the failure. */
void copy_io_fail(struct copy_io *io, int code);

GMB_MUST_CHECK int copy_remote_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);
GMB_MUST_CHECK int copy_file_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);
GMB_MUST_CHECK int copy_stream_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error);
