// SPDX-License-Identifier: Apache-2.0
/*
 * The socket on which a daemon takes orders: one line there, one line back.
 *
 *   "status"                        "0 connected"
 *   "detach", "detach force"        "0 detached", "-16 /dev/ublkb0 is mounted on /srv"
 *
 * Lines "1 waiting for ..." may come before the answer: notes for the person who waits for it.
 *
 * After a detach the daemon keeps the connection until it ends: the end of the stream says that
 * nothing of it is left.
 *
 * Threading: any thread. Ownership: descriptors belong to the caller. Errors: negative errno with a
 * sentence. Only the owner of the state folder can connect.
 */
#pragma once

#include "attach/attach.h"

enum { CONTROL_LINE_BYTES = 1024 };

/* The daemon's end: a listening descriptor. */
GMB_MUST_CHECK int control_listen(const char *name, struct error *error);

/* Accepts a connection and reads its line, for at most five seconds. Returns the descriptor, or a
 * negative errno: nobody there, or nothing sensible; go on. */
GMB_MUST_CHECK int control_accept(int listen_fd, char line[CONTROL_LINE_BYTES]);

/* Tells something before the answer. */
void control_note(int fd, const char *text);

/* Answers. A peer that has gone is none of our business. */
void control_answer(int fd, int code, const char *text);

/* The other end: sends a line and reads the answer, of which the code is returned and the text is
 * in *error. Notes go to standard error. -ECONNREFUSED or -ENOENT: there is no daemon. until_end:
 * waits for its end as well, and however long the answer takes; else for five seconds at most
 * (-ETIMEDOUT). */
GMB_MUST_CHECK int control_ask(
	const char *name, const char *line, bool until_end, struct error *error);
