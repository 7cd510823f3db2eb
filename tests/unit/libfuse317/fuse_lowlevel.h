// SPDX-License-Identifier: Apache-2.0
/* The header of a libfuse before 3.17 as it would look from 3.17 on: a macro with arguments stands
 * for fuse_session_new(), and there is no function of that name. */
#pragma once

#define fuse_session_new fuse_session_new_versioned
#include_next <fuse_lowlevel.h>
#undef fuse_session_new

/* The function of the library that is installed. */
struct fuse_session *fuse_session_new_versioned(struct fuse_args *args,
	const struct fuse_lowlevel_ops *ops, size_t ops_bytes,
	void *userdata) __asm__("fuse_session_new");

static inline struct fuse_session *fuse_session_new_fn(struct fuse_args *args,
	const struct fuse_lowlevel_ops *ops, size_t ops_bytes, void *userdata)
{
	return fuse_session_new_versioned(args, ops, ops_bytes, userdata);
}
#define fuse_session_new(args, ops, ops_bytes, userdata)                                           \
	fuse_session_new_fn(args, ops, ops_bytes, userdata)

#undef FUSE_VERSION
#define FUSE_VERSION FUSE_MAKE_VERSION(3, 17)
