// SPDX-License-Identifier: Apache-2.0
/*
 * Files in the server's state folder, which are replaced as a whole: a new file is written and
 * flushed, renamed, and the folder flushed. So a file that is cut or damaged is not the result of a
 * crash.
 *
 * Threading: the caller serializes the calls for a file. Ownership: as stated. Errors: a negative
 * errno.
 */
#pragma once

#include <stddef.h>

#include "base/compiler.h"
#include "base/error.h"

enum { STATE_FILE_BYTES_MAX = 16 << 20 };

/* Reads a file. The caller frees *text_out, which is terminated by a zero. -ENOENT: there is no
 * such file. -EPROTO: it is not a regular file, or longer than STATE_FILE_BYTES_MAX. */
GMB_MUST_CHECK int state_file_read(
	int folder_fd, const char *name, char **text_out, size_t *bytes_out);
/* Replaces a file, and returns when it is durable. After an error, with a message, the file has the
 * old or the new contents. folder: its path, for the message. */
GMB_MUST_CHECK int state_file_replace(int folder_fd, const char *folder, const char *name,
	const char *text, size_t bytes, struct error *error);
