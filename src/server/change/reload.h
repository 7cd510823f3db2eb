// SPDX-License-Identifier: Apache-2.0
/*
 * What changes while the server runs: the files of its TLS credentials and its configuration, when
 * they are read again (SIGHUP, the control command "reload", or a look at the credentials every
 * minute), the sizes of disks (looked at every minute), and single exports (the control commands
 * "export" and "snapshot").
 *
 *   reload_ask(), "reload", "export" ─▶ thread: read, compare, open disks
 *        ─▶ main: change_prepare(), change_commit() ─▶ thread: waits for reactors and disks that
 *        close ─▶ main: log, answers
 *
 * All of it is read and checked before any of it is used: what is wrong leaves everything as it
 * was, and is said. One change is made after the other. Connections whose identity is not believed
 * any more, or that have lost all rights, are drained.
 *
 * Threading: the main thread; files are read on a thread of its own, which may block. Ownership:
 * borrows its options; control clients are borrowed until they are answered. Errors: told to who
 * asked, and logged.
 */
#pragma once

#include "control/control.h"
#include "server/change/change.h"
#include "server/listen/credentials.h"

struct reload;

struct reload_options {
	const struct server_config *config;
	struct exports *exports;       /* what is served; changes only inside reload_finish() */
	struct rate_rules *rate_rules; /* of identities; or NULL */
	struct device *device;
	struct credentials *credentials;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	/* On its thread: reload_finish() is to be called. */
	void (*wake)(void *context);
	/* On the main thread: the exports have changed. */
	void (*changed)(void *context);
	void *context;
};

GMB_MUST_CHECK int reload_create(
	const struct reload_options *options, struct reload **reload_out, struct error *error);
/* False: the thread hangs at a file, and everything it uses has to stay. NULL is a no-op. */
GMB_MUST_CHECK bool reload_destroy(struct reload *reload);

/* The server serves: before, who asks waits. */
void reload_begin(struct reload *reload);
/* Until then who asks waits again. False, and nothing is changed: something is under way. */
GMB_MUST_CHECK bool reload_hold(struct reload *reload);
/* Any thread: a store has dropped a snapshot, whose export goes, too. */
void reload_look(struct reload *reload);
/* Reads everything again; what came of it is logged. */
void reload_ask(struct reload *reload);
/* Uses what was read, if anything was. */
void reload_finish(struct reload *reload);
/* The server stops: clients are told so. NULL is a no-op. */
void reload_stop(struct reload *reload);

/* Their context is the reload. docs/protocol/control.md has arguments and answers. */
extern const struct control_command reload_command;
extern const struct control_command export_command;
extern const struct control_command snapshot_command;
