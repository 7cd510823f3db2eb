// SPDX-License-Identifier: Apache-2.0
/* The state of a server, shared by its start (server_start.c) and its operation and stop
 * (server.c). Only these two files include this header.
 *
 * Threading: the main thread, except for the atomic members. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"
#include "server/control.h"
#include "server/run.h"
#include "server/state_folder.h"
#include "server/store_startup.h"
#include "server/upgrade/record.h"

enum server_phase {
	SERVER_STARTING, /* waits for stores that must be started */
	SERVER_SERVING,	 /* waits for a signal or the end of the commands */
	SERVER_CLOSING,	 /* waits for the acceptor to stop */
	SERVER_DRAINING, /* waits for every reactor to drain */
	SERVER_STOPPED,
};

struct server {
	const struct server_config *config;
	enum server_phase phase;
	const struct session_kind *const *kinds;
	uint32_t kind_count;
	struct exports exports;
	struct store_startup startup;
	struct listener *listeners;
	uint32_t listener_count;
	struct rate_rules *rate_rules; /* rates of identities, or NULL */
	struct state_folder state;
	struct leases *leases;
	struct fencing *fencing; /* NULL: the configuration has no nodes */
	uint8_t instance[ENGINE_INSTANCE_BYTES];
	struct device *device; /* device memory; NULL: none was requested */
	struct reactor **reactors;
	uint32_t reactor_count;
	struct acceptor *acceptor;
	/* listener of the control socket until `control` owns it */
	struct listener control_listener;
	struct credentials *credentials;
	struct jobs *jobs;
	struct upgrade *upgrade;
	/* the process that this server replaces; NULL: none, or the replacement is complete */
	struct upgrade_take *take;
	char record[SERVER_RECORD_PATH_BYTES]; /* file that records the start; or "" */
	bool was_taken;			       /* the server has taken over from another process */
	struct server_view view;	       /* for `upgrade`, `control` and `scrape` */
	struct server_control *control;
	struct listener metrics_listener; /* listener of the metrics until `scrape` owns it */
	struct scrape *scrape;
	_Atomic uint32_t connection_total;

	sigset_t mask_before;
	/* soft limit on open files before the server raised it; "" if it did not */
	char file_limit[RUNNER_LIMIT_BYTES];
	int signal_fd;
	int event_fd;			/* written by other threads to wake the main thread */
	_Atomic bool acceptor_stopped;	/* set before event_fd is written */
	_Atomic uint32_t drained_count; /* incremented before event_fd is written */
	struct runner runner;
	bool has_runner;
	int exit_status;
	uint64_t stop_begin_ns;
	uint64_t stop_limit_ns; /* deadline of the stop, once it has begun */
};

/* --- server_start.c --- */

/* Runs the start from the configuration to SERVER_SERVING, or to SERVER_STOPPED if a signal ends
 * it. After a failure the caller closes whatever is open. */
GMB_MUST_CHECK int server_start(
	struct server *server, struct server_config *config, struct error *error);

/* --- server.c --- */

void server_wake(struct server *server);
/* Reports the served exports to the service manager. */
void server_announce(const struct server *server);
/* Returns the time left until the deadline while the server stops, else -1. */
int server_stop_timeout_ms(const struct server *server);
/* Waits for an event and handles it. Returns false if the timeout passes first. */
bool server_handle_next(struct server *server, int timeout_ms);
/* Exits without waiting for clients or reactors. Acknowledged writes are not lost, because they are
 * on the disk or in the page cache. */
GMB_NORETURN void server_stop_hard(struct server *server, const char *reason);
