// SPDX-License-Identifier: Apache-2.0
/*
 * Replaces the server by a new process, without an error for its clients:
 * docs/design/0019-upgrade.md.
 *
 *   control: "upgrade"
 *     │ offers one end of a socket to the client, which starts the new process with it
 *     ▼
 *   OFFERED
 *     │ HELLO
 *     ▼
 *   TELLING        sends sockets and disks
 *     ▼
 *   PREPARING      the new process opens everything
 *     │ READY
 *     ▼
 *   FLUSHING       disks, while clients continue
 *     ▼
 *   HANDSHAKING    waits for handshakes ◀─────────────────────────┐
 *     ▼                                                           │
 *   PAUSING        waits for requests ─▶ SERVING  a client does not receive; the others continue,
 *     ▼                                           and clients can connect
 *   HANDING_OVER   sends the sessions
 *     ▼
 *   HANDED_OVER    the new process has the sessions
 *     │ STARTED
 *     ▼
 *   REPLACED
 *
 * A time limit, the end of the new process or FAILED lead to IDLE: the server continues, and the
 * client gets the reason.
 *
 * Until STARTED, which the new process sends when it has everything, this process keeps all
 * resources and sends only copies of descriptors. After STARTED it does not touch a disk, a
 * listening socket, or a connection that was handed over. It only closes the other connections
 * properly.
 *
 * Threading: the main thread; sessions are sent on their reactor's thread. Ownership: borrows what
 * the options name. Errors: messages for the client and the log; the server continues unchanged.
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
	const struct server_view *view; /* its `upgrade` may be set later */
	const struct state_folder *state;
	_Atomic bool *acceptor_stopped; /* set by the acceptor's stopped() */
};

GMB_MUST_CHECK int upgrade_create(
	const struct upgrade_options *options, struct upgrade **upgrade_out, struct error *error);
/* Frees the upgrade, which must not be in progress. NULL is a no-op. */
void upgrade_destroy(struct upgrade *upgrade);

/* The "upgrade" command of the control socket; its context is the struct upgrade. */
extern const struct control_command upgrade_command;

/* Called when the server serves: upgrades are possible from now on. control, scrape: may be
 * NULL. */
void upgrade_enable(struct upgrade *upgrade, struct acceptor *acceptor,
	struct server_control *control, struct scrape *scrape);
/* Called when the server stops: gives up an upgrade in progress, unless the new process already
 * serves. Returns true if the acceptor is already stopping. */
bool upgrade_stop(struct upgrade *upgrade);

/* Called after upgrade_run() or upgrade_stop(), when the control socket is no longer used. The new
 * process, if there is one, waits for this before it uses the control socket and the service
 * manager. */
void upgrade_goodbye(struct upgrade *upgrade);

/* Returns the descriptor to poll for upgrade_events(); -1: none. */
int upgrade_fd(const struct upgrade *upgrade);
short upgrade_events(const struct upgrade *upgrade);
/* Returns the time until upgrade_run() must be called; -1: no limit. */
int upgrade_timeout_ms(const struct upgrade *upgrade);
/* Advances the upgrade. Returns true, once, when the new process serves. Then the listeners belong
 * to the new process, the reactors hold only sessions that could not be handed over, and the server
 * must end. */
GMB_MUST_CHECK bool upgrade_run(struct upgrade *upgrade);
