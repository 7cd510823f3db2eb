// SPDX-License-Identifier: Apache-2.0
/*
 * Changes while the server runs: re-reading the TLS files and the configuration (SIGHUP, the
 * control command "reload", or the check of the TLS files every minute), checking the sizes of
 * disks every minute, and changing single exports (the control commands "export" and "snapshot").
 *
 *   reload_ask(), "reload", "export" ─▶ thread: read, compare, open disks
 *        ─▶ main: change_prepare(), change_commit()
 *        ─▶ thread: waits for reactors, and for disks that are being closed ─▶ main: log, answers
 *
 * Everything is read and checked before any of it is used. An error is reported and leaves
 * everything unchanged. Changes are made one after the other. Connections whose credentials are no
 * longer valid, or that have lost all rights, complete their requests and are closed.
 *
 * Threading: the main thread. Files are read on a separate thread, which may block. Ownership:
 * borrows its options; control clients are borrowed until they are answered. Errors: reported to
 * the requester and logged.
 */
#pragma once

#include "control/control.h"
#include "server/change/change.h"
#include "server/listen/credentials.h"

struct reload;

struct reload_options {
	const struct server_config *config;
	struct exports *exports;       /* the served exports; changed only inside reload_finish() */
	struct rate_rules *rate_rules; /* rates of identities; or NULL */
	struct device *device;
	struct credentials *credentials;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	/* Called on the reload thread. Must make the main thread call reload_finish(). */
	void (*wake)(void *context);
	/* Called on the main thread after the exports have changed. */
	void (*changed)(void *context);
	void *context;
};

GMB_MUST_CHECK int reload_create(
	const struct reload_options *options, struct reload **reload_out, struct error *error);
/* Returns false if the thread hangs while it reads a file; everything that it uses must then stay
 * allocated. NULL is a no-op. */
GMB_MUST_CHECK bool reload_destroy(struct reload *reload);

/* Called when the server is ready: starts the requests that have been waiting. */
void reload_begin(struct reload *reload);
/* Makes requests wait again until the next reload_begin(). Returns false, without effect, if a
 * request is waiting or in progress. */
GMB_MUST_CHECK bool reload_hold(struct reload *reload);
/* Called on any thread after a store has dropped a snapshot, to remove the snapshot's export. */
void reload_look(struct reload *reload);
/* Requests a reload of everything; the result is logged. */
void reload_ask(struct reload *reload);
/* Applies what the thread has read, if anything, and answers finished requests. */
void reload_finish(struct reload *reload);
/* Called when the server stops: requests fail with an error that says so. NULL is a no-op. */
void reload_stop(struct reload *reload);

/* Control commands, to be registered with the struct reload as context. docs/protocol/control.md
 * defines arguments and answers. */
extern const struct control_command reload_command;
extern const struct control_command export_command;
extern const struct control_command snapshot_command;
