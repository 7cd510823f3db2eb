// SPDX-License-Identifier: Apache-2.0
/*
 * Who has connected to a server's control socket: what each asks, and its answer. All of them
 * together are one descriptor to poll, and no call waits for any of them.
 *
 *   connects ─▶ asks ── one line, or the end of its stream, or silence for a moment ─▶ asked()
 *                 │   waits, once visitor_keep() was called ── its stream ends ─▶ left()
 *                 ▼
 *            visitor_answer(): sent as fast as it is taken, then closed
 *
 * Silence is a question, too: a client that only reads gets what an empty line gets.
 *
 * Threading: the main thread. Ownership: the visitors own their sockets and the answers; the
 * listening socket is borrowed. Errors: one who breaks off, asks too much or takes nothing for some
 * seconds is closed; nobody else notices.
 */
#pragma once

#include "base/error.h"

struct visitors;
struct visitor;

struct visitors_options {
	int listen_fd; /* accepted from; does not block */
	int event_fd;  /* an eventfd that somebody else writes */
	/* A question, without the end of its line. Calls visitor_answer() or visitor_keep(). */
	void (*asked)(void *context, struct visitor *visitor, const char *question);
	/* A visitor that was kept will send nothing more. Calls visitor_answer(). */
	void (*left)(void *context, struct visitor *visitor);
	/* The eventfd was written. */
	void (*event)(void *context);
	void *context;
};

GMB_MUST_CHECK int visitors_create(const struct visitors_options *options,
	struct visitors **visitors_out, struct error *error);
/* Closes all of them. NULL is a no-op. */
void visitors_destroy(struct visitors *visitors);

/* To poll for input. */
int visitors_fd(const struct visitors *visitors);
/* Does what there is to do. Bounded. */
void visitors_serve(struct visitors *visitors);
/* Accepts nobody any more, and closes all but those who are owed the rest of an answer. */
void visitors_stop(struct visitors *visitors);
/* Sends what is still owed, for a while, to who takes it. The only call that waits. */
void visitors_flush(struct visitors *visitors);

/* text is malloced and taken; NULL: there is no memory for an answer, and the visitor gets none. */
void visitor_answer(struct visitor *visitor, char *text);
/* Tells it text at once and keeps it until visitor_answer(). */
void visitor_keep(struct visitor *visitor, const char *text);
