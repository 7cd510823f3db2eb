// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/manager.h"
#include "server/change/jobs.h"
#include "server/change/snapshot.h"
#include "server/control.h"
#include "server/device.h"
#include "server/fence/fencing.h"
#include "server/lease/leases.h"
#include "server/listen/accept.h"
#include "server/listen/credentials.h"
#include "server/listen/folder.h"
#include "server/observe/scrape.h"
#include "server/sandbox.h"
#include "server/server_state.h"
#include "server/upgrade/take.h"
#include "server/upgrade/upgrade.h"

enum {
	START_REPORT_MS = 1000, /* interval of the progress reports of starting stores */
	/* Each progress report extends the service manager's start timeout by this time. */
	START_PATIENCE_US = 30 * 1000000,
};

/* --- reactors -------------------------------------------------------------------------------- */

static void acceptor_has_stopped(void *context)
{
	struct server *server = context;

	/* Release pairs with the acquire of the main thread: when it sees the flag, all accepted
	 * connections were handed over. */
	atomic_store_explicit(&server->acceptor_stopped, true, memory_order_release);
	server_wake(server);
}

static void reactor_has_drained(void *context)
{
	struct server *server = context;

	atomic_fetch_add_explicit(&server->drained_count, 1, memory_order_release);
	server_wake(server);
}

static uint32_t share_of(uint32_t total, uint32_t count)
{
	return (total + count - 1) / count;
}

/* Computes one reactor's share of the server's limits. The connection limit is not divided: the
 * acceptor enforces it, and reactors can have different numbers of connections. */
static struct engine_limits reactor_limits(const struct server_limits *limits)
{
	uint32_t threads = limits->threads + limits->isolated_threads;
	struct engine_limits out;

	engine_limits_default(&out);
	out.sessions_max = limits->connections_max;
	out.handshakes_max = MAX(share_of(limits->connections_max, limits->threads) /
					 (uint32_t)SERVER_HANDSHAKE_DIVISOR,
		(uint32_t)SERVER_HANDSHAKES_MIN);
	out.handshake_timeout_ns = limits->handshake_timeout_ns;
	out.idle_timeout_ns = limits->idle_timeout_ns;
	out.inflight_per_session_max = limits->inflight_max;
	/* one connection gets at most half of the slots, see engine_has_place() */
	out.inflight_max = MAX(out.inflight_max, 2 * limits->inflight_max);
	out.memory_bytes_max = limits->memory_bytes / threads;
	out.engine_count = threads;
	out.may_spin = limits->spin != SERVER_SPIN_OFF;
	return out;
}

static int start_reactors(struct server *server, struct error *error)
{
	const struct server_limits *limits = &server->config->limits;
	uint32_t threads = limits->threads + limits->isolated_threads;
	struct reactor_options options = {
		.exports = server->exports.exports,
		.export_count = server->exports.count,
		.kinds = server->kinds,
		.kind_count = server->kind_count,
		.limits = reactor_limits(limits),
		.rate_rules = server->rate_rules,
		.fence = fencing_fence(server->fencing),
		.leases = leases_book(server->leases),
		.places = server->config->push_places,
		.place_count = server->config->push_place_count,
		.device = server->device != NULL ? device_memory(server->device) : NULL,
		.device_waits = server->config->arena.waits,
		.connection_total = &server->connection_total,
		.drained = reactor_has_drained,
		.context = server,
	};

	/* If this fails, the instance stays zero. Clients then cannot detect that two connections
	 * lead to this server, and do not let the server copy data between its exports. */
	(void)!getrandom(server->instance, sizeof(server->instance), 0);
	memcpy(options.instance, server->instance, sizeof(options.instance));
	server->reactors = calloc(threads, sizeof(struct reactor *));
	if (server->reactors == NULL) {
		return error_oom_for(error, "%u threads", threads);
	}
	while (server->reactor_count < threads) {
		uint32_t index = server->reactor_count;
		bool isolated = index >= limits->threads;
		int rc;

		options.index = index;
		options.group = &server->reactors[isolated ? limits->threads : 0];
		options.group_count = isolated ? limits->isolated_threads : limits->threads;
		options.group_index = isolated ? index - limits->threads : index;
		options.device_bytes = server->device != NULL && !isolated
					       ? device_share_bytes(server->device, index)
					       : 0;
		rc = reactor_create(&options, &server->reactors[options.index], error);
		if (rc < 0) {
			return rc;
		}
		server->reactor_count++;
	}
	return 0;
}

static struct listen_folders folders_of(struct server *server, uint32_t *retries)
{
	struct listen_folders folders = {
		.config = server->config,
		.listeners = server->listeners,
		.listener_count = &server->listener_count,
		.acceptor = server->acceptor,
		.retries = retries,
	};

	for (uint32_t i = 0; i < server->kind_count; i++) {
		if (strcmp(server->kinds[i]->schemes[0], EXPORT_URI_VHOST "+unix") == 0) {
			folders.kind = server->kinds[i];
		}
	}
	return folders;
}

/* Opens and closes the sockets of exports in folders (listen/folder.h). retries: for addresses in
 * use; 0 while the server runs, because the main thread would wait. */
static int follow_exports(
	struct server *server, uint32_t retries, json_t *lines, struct error *error)
{
	const struct listen_folders folders = folders_of(server, &retries);

	return listen_folders_follow(&folders, &server->exports, lines, error);
}

static int disks_are_quiesced(void *context, struct error *error);
static void remove_files(void *context);

static int start_accepting(struct server *server, struct error *error)
{
	const struct acceptor_options options = {
		.listeners = server->listeners,
		.listener_count = server->listener_count,
		.reactors = server->reactors,
		.reactor_count = server->reactor_count,
		.isolated_count = server->config->limits.isolated_threads,
		.connections_max = server->config->limits.connections_max,
		.connections_per_peer_max = server->config->limits.connections_per_peer_max,
		.connection_total = &server->connection_total,
		.stopped = acceptor_has_stopped,
		.context = server,
	};
	int rc = acceptor_create(&options, &server->acceptor, error);

	/* in an upgrade, the other process still has its exports */
	rc = rc
		     ?: (server->take == NULL
					? follow_exports(server, LISTENER_RETRIES, NULL, error)
					: 0);
	if (rc == 0) {
		const struct listen_folders folders = folders_of(server, NULL);

		listen_folders_clean(&folders);
	}
	/* Sealed here, because everything listens, and no connection has been accepted yet. */
	rc = rc ?: server_sandbox_seal(server->config, error);

	if (rc == 0 && server->take != NULL) {
		const struct upgrade_taker taker = {
			.exports = &server->exports,
			.leases = server->leases,
			.kinds = server->kinds,
			.kind_count = server->kind_count,
			.acceptor = server->acceptor,
			.reactors = server->reactors,
			.reactor_count = server->reactor_count,
			.quiesced = disks_are_quiesced,
			.leave = remove_files,
			.context = server,
		};

		rc = upgrade_take_over(server->take, &taker, error);
		if (rc == 0) {
			/* it has logged its errors */
			(void)!follow_exports(server, 0, NULL, NULL);
		}
	}
	if (rc == 0) {
		acceptor_start(server->acceptor);
	}
	return rc;
}

static void server_start_has_news(void *context)
{
	server_wake(context);
}

static void exports_have_changed(void *context, json_t *lines)
{
	struct server *server = context;

	(void)!follow_exports(server, 0, lines, NULL);
	server_announce(server);
}

static int start_jobs(struct server *server, struct error *error)
{
	const struct jobs_options options = {
		.config = server->config,
		.exports = &server->exports,
		.rate_rules = server->rate_rules,
		.fencing = server->fencing,
		.device = server->device,
		.credentials = server->credentials,
		.reactors = server->reactors,
		.reactor_count = server->reactor_count,
		.wake = server_start_has_news,
		.changed = exports_have_changed,
		.context = server,
	};

	return jobs_create(&options, &server->jobs, error);
}

static int start_upgrade(struct server *server, struct error *error)
{
	const struct upgrade_options options = {
		.config = server->config,
		.view = &server->view,
		.state = &server->state,
		.acceptor_stopped = &server->acceptor_stopped,
	};
	int rc;

	server->view = (struct server_view){
		.exports = &server->exports,
		.listeners = server->listeners,
		.listener_count = &server->listener_count,
		.reactors = server->reactors,
		.reactor_count = server->reactor_count,
		.jobs = server->jobs,
		.rate_rules = server->rate_rules,
		.fencing = server->fencing,
		.leases = server->leases,
		.instance = server->instance,
		.start_ns = clock_now_ns(),
	};
	rc = upgrade_create(&options, &server->upgrade, error);
	server->view.upgrade = server->upgrade;
	return rc;
}

static void begin_control(struct server *server)
{
	server_control_begin(server->control);
	scrape_begin(server->scrape);
}

/* Creates the rings for control and metrics before the sandbox is sealed. During an upgrade this
 * process does not poll the sockets until it serves. If both processes did, a client could get the
 * one that is about to exit. */
static int server_start_control(struct server *server, struct error *error)
{
	int rc = server_control_open(
			 &server->control_listener, &server->view, &server->control, error)
			 ?: scrape_open(&server->metrics_listener, &server->view, &server->scrape,
				    error);

	if (rc == 0 && server->take == NULL) {
		begin_control(server);
	}
	return rc;
}

/* --- the process ----------------------------------------------------------------------------- */

/* Returns whether the signal is ignored. nohup starts a program with SIGHUP ignored, so that it
 * keeps running when its terminal is closed. */
static bool is_ignored(int signal_number)
{
	struct sigaction action;

	return sigaction(signal_number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* Blocks our signals before any thread starts, so that only signal_fd sees them. */
static int server_start_take_signals(struct server *server, struct error *error)
{
	sigset_t ours;

	sigemptyset(&ours);
	sigaddset(&ours, SIGTERM);
	sigaddset(&ours, SIGINT);
	if (!is_ignored(SIGHUP)) {
		sigaddset(&ours, SIGHUP);
	}
	sigaddset(&ours, SIGCHLD);
	signal(SIGPIPE, SIG_IGN);
	/* A write beyond the file size limit must fail with EFBIG for its requester; the signal
	 * would kill the server. */
	signal(SIGXFSZ, SIG_IGN);
	/* If SIGCHLD stayed ignored, as inherited from some parents, the commands' exit status
	 * would be lost. */
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_BLOCK, &ours, &server->mask_before);
	server->signal_fd = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
	if (server->signal_fd >= 0) {
		server->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	}
	if (server->signal_fd < 0 || server->event_fd < 0) {
		return error_set(error, -errno, "cannot wait for signals: %s", strerror(errno));
	}
	return 0;
}

/* --- stores that must be started ------------------------------------------------------------- */

static void wait_for_stores(struct server *server)
{
	uint64_t said_ns = clock_now_ns();

	while (!store_startup_is_over(&server->startup)) {
		server_handle_next(server, START_REPORT_MS);
		if (server->phase == SERVER_STOPPED && server_stop_timeout_ms(server) == 0) {
			server_stop_hard(
				server, "the start of a disk could not be cancelled in time");
		}
		if (clock_now_ns() - said_ns >= START_REPORT_MS * UINT64_C(1000000)) {
			said_ns = clock_now_ns();
			log_info("starting: %u %%", store_startup_percent(&server->startup));
			manager_tell("STATUS=Starting: %u %%\nEXTEND_TIMEOUT_USEC=%d",
				store_startup_percent(&server->startup), START_PATIENCE_US);
		}
	}
}

static void serve_snapshots(struct server *server)
{
	const struct change_options options = {
		.exports = &server->exports,
		.running = server->config,
		.configured = server->config,
		.rate_rules = server->rate_rules,
		.device = server->device,
		.reactors = server->reactors,
		.reactor_count = server->reactor_count,
	};

	snapshots_serve(&options, &server->exports);
}

/* Starts the deferred stores, or all others (store_startup.h), and waits for them. The control
 * socket answers during that time. A signal ends the wait; the phase is then SERVER_STOPPED. */
static int start_stores(struct server *server, bool deferred, struct error *error)
{
	int rc = store_startup_begin(&server->startup, deferred, error);

	wait_for_stores(server);
	rc = rc ?: store_startup_end(&server->startup, deferred, error);
	if (rc == 0 && server->phase == SERVER_STARTING) {
		serve_snapshots(server);
	}
	return rc;
}

/* Called on a store's thread when the store has deleted a snapshot for lack of space. */
static void has_dropped(void *context)
{
	jobs_look(context);
}

static int start_first_stores(struct server *server, struct error *error)
{
	for (uint32_t i = 0; i < server->exports.count; i++) {
		struct store *store = server->exports.exports[i]->store;

		if (store_has_snapshots(store)) {
			store_snapshots_watch(store, has_dropped, server->jobs);
		}
	}
	server->startup = (struct store_startup){
		.exports = &server->exports,
		.reactors = server->reactors,
		/* all clients of a store depend on its reactor */
		.reactor_count = server->config->limits.threads,
		.is_taking = server->take != NULL,
		.wake = server_start_has_news,
		.context = server,
	};
	return start_stores(server, false, error);
}

static int disks_are_quiesced(void *context, struct error *error)
{
	struct server *server = context;
	int rc;

	for (uint32_t i = 0; i < server->exports.count; i++) {
		rc = store_take(server->exports.exports[i]->store, error);
		if (rc != 0) {
			served_export_blame(&server->exports.list[i]->about, error);
			return rc;
		}
	}
	rc = start_stores(server, true, error) ?: fencing_read(server->fencing, error);
	if (rc == 0 && server->phase != SERVER_STARTING) {
		rc = error_set(error, -ECANCELED, "the new process received a signal to stop");
	}
	return rc;
}

/* Removes the files that a clean stop would remove, except the sockets of the old process. */
static void remove_files(void *context)
{
	struct server *server = context;

	for (uint32_t i = 0; i < server->listener_count; i++) {
		listener_remove_new_path(&server->listeners[i]);
	}
	listener_remove_new_path(server_control_listener(server->control));
	listener_remove_new_path(scrape_listener(server->scrape));
	server_record_remove(server->record);
}

/* --- the start as a whole -------------------------------------------------------------------- */

/* Called when this process has taken over and serves. */
static void finish_take(struct server *server)
{
	upgrade_take_finish(server->take);
	state_folder_take_over(&server->state);
	fencing_take_over(server->fencing);
	leases_take_over(server->leases);
	server->take = NULL;
	server->was_taken = true;
	begin_control(server);
}

/* Opens the client sockets, the control socket, the metrics socket and the device memory. */
static int server_start_open_places(struct server *server, struct error *error)
{
	const struct server_config *config = server->config;
	int rc = listeners_open(config, server->take, server->kinds, server->kind_count,
		&server->listeners, &server->listener_count, error);

	if (rc == 0 && server->control_listener.fd_count == 0) {
		rc = server_control_listen(
			config->control_path, server->take, &server->control_listener, error);
	}
	if (rc == 0) {
		rc = scrape_listen(config->metrics, server->take, &server->metrics_listener, error);
		if (rc == -EADDRINUSE && server->take != NULL) {
			/* The old process keeps some sockets of this address until it exits, so
			 * this process cannot open the address and has no metrics. */
			log_warning(
				"this process serves no metrics, until the server is restarted: %s",
				error->text);
			rc = 0;
		}
	}
	return rc ?: device_open(config, &server->device, error);
}

static int become_user(struct server *server, struct error *error)
{
	return server_sandbox_become(server->config, server->listeners, server->listener_count,
		&server->control_listener, &server->metrics_listener, error);
}

/* Opens everything as the starting user, then switches to the configured user. */
static int start_alone(struct server *server, struct error *error)
{
	return server_start_open_places(server, error) ?: become_user(server, error);
}

/* Switches to the configured user before this process reads data of the old one. Opening the usual
 * control socket needs the rights of the starting user, so it is opened before the switch. */
static int start_taking(struct server *server, struct server_config *config, struct error *error)
{
	int rc = 0;

	if (config->control_path == NULL) {
		rc = server_control_listen(NULL, NULL, &server->control_listener, error);
	}
	return rc ?: become_user(server, error)
		?: upgrade_take_begin(server->take, config, error)
		?: server_start_open_places(server, error);
}

static int enter_sandbox(struct server *server, struct error *error)
{
	return server_sandbox_enter(server->config, server->credentials, server->listeners,
		server->listener_count, &server->control_listener, &server->metrics_listener,
		server->record, server->state.fd >= 0 ? server->state.path : NULL, error);
}

static bool has_control(const struct server_config *config)
{
	return config->control_path == NULL || strcmp(config->control_path, "none") != 0;
}

int server_start(struct server *server, struct server_config *config, struct error *error)
{
	int rc;

	runner_raise_file_limit(server->file_limit);
	rc = server_start_take_signals(server, error)
		     ?: upgrade_take_find(config, &server->take, error);
	if (rc != 0) {
		return rc;
	}
	if (has_control(config)) {
		server_record_write(server->record);
	}
	rc = (server->take == NULL ? start_alone(server, error)
				   : start_taking(server, config, error))
		     ?: state_folder_open(config, server->take != NULL, &server->state, error)
		     ?: upgrade_take_state(server->take, &server->state, error)
		     ?: fencing_open(config, &server->state, server->take != NULL,
				&server->fencing, error)
		     ?: leases_open(&server->state, server->take != NULL, &server->leases, error)
		     ?: exports_open(server->config, server->take, &server->exports, error);
	if (rc != 0) {
		return rc;
	}
	device_probe(server->device, server->exports.exports, server->exports.count);
	/* start_reactors() starts the first threads, which inherit the sandbox. */
	rc = server_rates_build(&server->config->rates, &server->rate_rules, error)
		     ?: credentials_open(config, server->listeners, server->listener_count, &server->credentials, error) ?: enter_sandbox(server, error)
		     ?: exports_open_added(server->config, server->take, &server->exports, error)
		     ?: start_reactors(server, error)
		     ?: fencing_start(server->fencing, server->reactors, server->reactor_count,
				error)
		     ?: start_jobs(server, error)
		     ?: start_upgrade(server, error) ?: server_start_control(server, error)
		     ?: start_first_stores(server, error);
	if (rc != 0 || server->phase != SERVER_STARTING) {
		return rc;
	}
	rc = start_accepting(server, error);
	server->phase = SERVER_SERVING;
	jobs_begin(server->jobs);
	if (rc != 0) {
		return rc;
	}
	if (server->take != NULL) {
		finish_take(server);
	}
	upgrade_enable(server->upgrade, server->acceptor, server->control, server->scrape);
	return 0;
}
