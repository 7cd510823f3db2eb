// SPDX-License-Identifier: Apache-2.0
/*
 * A server that is replaced by a new process of itself, without an error for its clients:
 * docs/design/0019-upgrade.md.
 *
 *   control: "upgrade"
 *     │ offers one end of a socket to the client, who starts the new process with it
 *   OFFERED ─HELLO─▶ TELLING   sockets and disks
 *     │             PREPARING  new: opens all
 *     │               │ READY
 *     │             FLUSHING   disks
 *     │             SETTLING   handshakes
 *     │             PAUSING    requests ───▶ SERVING  somebody does not receive; the others go on,
 *     │               │                        └─────▶ SETTLING    and clients can connect
 *     │             PASSING    sessions
 *     │             PASSED     new: has them ─STARTED─▶ GONE
 *     ▼               ▼ time limit, end of the new process, FAILED
 *   IDLE: everything goes on, and the client is told why
 *
 * Nothing is given away before STARTED, which the new process sends when it has all; what is sent
 * is a copy of each descriptor. From then on this process touches no disk, no listening socket and
 * no connection that was passed: it only says goodbye to the others.
 *
 * Threading: the main thread; sessions are passed on their reactor's. Ownership: borrows what the
 * options name. Errors: sentences for the client and the log; they change nothing.
 */
#pragma once

#include "server/change/exports.h"
#include "server/control.h"
#include "server/listen/accept.h"

struct upgrade;
struct scrape;
struct control_command;

struct upgrade_options {
	const struct server_config *config;
	const struct exports *exports;
	struct listener *listeners;
	uint32_t listener_count;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	struct reload *reload;
	_Atomic bool *acceptor_stopped; /* set by its stopped() */
};

GMB_MUST_CHECK int upgrade_create(
	const struct upgrade_options *options, struct upgrade **upgrade_out, struct error *error);
/* Idle or gone. NULL is a no-op. */
void upgrade_destroy(struct upgrade *upgrade);

/* "upgrade" of the control socket; its context is the struct upgrade. */
extern const struct control_command upgrade_command;

/* The server serves: upgrades are possible from now on. control, scrape: or NULL. */
void upgrade_enable(struct upgrade *upgrade, struct acceptor *acceptor,
	struct server_control *control, struct scrape *scrape);
/* The server stops: gives up what is under way. True: the acceptor was told to stop already. */
bool upgrade_stop(struct upgrade *upgrade);

/* After upgrade_run() or upgrade_stop(), when the control socket is not used any more: the new
 * process, if there is one, waits for this before it does, and before it speaks to the service
 * manager. */
void upgrade_goodbye(struct upgrade *upgrade);

/* To poll, and for what; -1: there is nothing to wait for. */
int upgrade_fd(const struct upgrade *upgrade);
short upgrade_events(const struct upgrade *upgrade);
/* When to call upgrade_run() at the latest; -1: never. */
int upgrade_timeout_ms(const struct upgrade *upgrade);
/* Goes on. True, once: the new process serves. Then the listeners are not this one's any more, the
 * reactors hold only sessions that could not be passed, and the server is to end. */
GMB_MUST_CHECK bool upgrade_run(struct upgrade *upgrade);
