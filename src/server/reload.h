// SPDX-License-Identifier: Apache-2.0
/*
 * What a running server reads again: the files of its TLS credentials, and when it is asked to, the
 * rules of access in its configuration file. On SIGHUP, on the control command "reload", and when a
 * look every minute finds that they have changed.
 *
 *   reload_ask(), "reload" ─▶ thread: reload_read() ─▶ main: reload_apply() ─▶ log, answers
 *
 * All of it is read and checked before any of it is used. What is broken leaves everything as it
 * was, and is said. Connections whose identity is not believed any more are drained.
 *
 * Threading: the main thread; files are read on a thread of its own, which may block. Ownership:
 * borrows its options; control clients are borrowed until they are answered. Errors: told to who
 * asked, and logged.
 */
#pragma once

#include "control/control.h"
#include "server/credentials.h"
#include "server/reactor.h"

struct reload;

struct reload_options {
	const struct server_config *config;
	struct export *const *exports; /* as config has them */
	struct credentials *credentials;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	/* On its thread: reload_finish() is to be called. */
	void (*wake)(void *context);
	void *context;
};

GMB_MUST_CHECK int reload_create(
	const struct reload_options *options, struct reload **reload_out, struct error *error);
/* False: the thread hangs at a file, and everything it uses has to stay. NULL is a no-op. */
GMB_MUST_CHECK bool reload_destroy(struct reload *reload);

/* Reads everything again; what came of it is logged. */
void reload_ask(struct reload *reload);
/* Uses what was read, if anything was. */
void reload_finish(struct reload *reload);
/* The server stops: clients are told so. NULL is a no-op. */
void reload_stop(struct reload *reload);

/* Its context is the reload. The answer is {"addresses": with TLS, "connections_ended": count}. */
extern const struct control_command reload_command;
