// SPDX-License-Identifier: Apache-2.0
/*
 * libfuse, loaded when a file is attached and not when the program starts: its relocations take
 * nearly as many instructions as the whole start without them, and only `gmblock attach --fuse`
 * needs it.
 *
 * From libfuse 3.17 on it is linked as usual: fuse_session_new() is no function of the library any
 * more, and the library has another name.
 *
 * Threading: fuse_library_load() before other threads use the table, which stays as it is then.
 * Ownership: the library stays loaded. Errors: a negative errno and a sentence.
 */
#pragma once

#define FUSE_USE_VERSION 35

#include <fuse_lowlevel.h>

#include "base/error.h"

/* From 3.17 on a macro with arguments stands in front of this function, and fuse_session_new
 * without them is nothing. */
#ifdef fuse_session_new
#undef fuse_session_new
#define fuse_session_new fuse_session_new_fn
#endif

#define FUSE_CALLS(CALL)                                                                           \
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
