// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/manager.h"
#include "server/accept.h"
#include "server/confine.h"
#include "server/control.h"
#include "server/credentials.h"
#include "server/device.h"
#include "server/exports.h"
#include "server/reach.h"
#include "server/record.h"
#include "server/reload.h"
#include "server/run.h"
#include "server/scrape.h"
#include "server/snapshot.h"
#include "server/starts.h"
#include "server/upgrade.h"
#include "server/upgrade_take.h"

/* A stop takes no longer, as the manual says: a request that hangs inside the kernel cannot be
 * taken back, so then the process ends without its reactors. */
#define STOP_NS UINT64_C(10000000000)
/* The end of that time, in which the reactors end what has not finished. */
#define STOP_GRACE_NS UINT64_C(500000000)
/* What a command that did not end on its signal gets after it was killed. */
#define REAP_NS UINT64_C(5000000000)

enum {
	START_REPORT_MS = 1000, /* how often it is said how far the stores have started */
	/* What the service manager shall wait from each report on. */
	START_PATIENCE_US = 30 * 1000000,
};

enum server_phase {
	SERVER_STARTING, /* waits for stores that have to be started */
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
	struct starts starts;
	struct listener *listeners;
	uint32_t listener_count;
	struct rate_rules *rate_rules; /* of identities, or NULL */
	uint8_t instance[ENGINE_INSTANCE_BYTES];
	struct device *device; /* its memory; NULL: none was asked for */
	struct reactor **reactors;
	uint32_t reactor_count;
	struct acceptor *acceptor;
	struct listener control_listener; /* until the control socket takes it */
	struct credentials *credentials;
	struct reload *reload;
	struct upgrade *upgrade;
	struct upgrade_take *take;	       /* while it starts in place of another process */
	char record[SERVER_RECORD_PATH_BYTES]; /* the file that says how it was started, or "" */
	bool was_taken;			       /* it has started so */
	struct server_control *control;
	struct listener metrics_listener; /* until the scrape takes it */
	struct scrape *scrape;
	_Atomic uint32_t connection_total;

	sigset_t mask_before;
	char file_limit[RUNNER_LIMIT_BYTES]; /* before it was raised; "" when it was not */
	int signal_fd;
	int event_fd;			/* other threads wake the main thread */
	_Atomic bool acceptor_stopped;	/* set before event_fd is written */
	_Atomic uint32_t drained_count; /* the same */
	struct runner runner;
	bool has_runner;
	int exit_status;
	uint64_t start_ns;
	uint64_t stop_begin_ns;
	uint64_t stop_limit_ns; /* while stopping: when to give up */
};

/* --- reactors -------------------------------------------------------------------------------- */

static void wake_main(struct server *server)
{
	uint64_t one = 1;
	ssize_t written = write(server->event_fd, &one, sizeof(one));

	GMB_ASSERT(written == (ssize_t)sizeof(one));
}

static void acceptor_has_stopped(void *context)
{
	struct server *server = context;

	/* Release, read with acquire by the main thread: no connection is given after this. */
	atomic_store_explicit(&server->acceptor_stopped, true, memory_order_release);
	wake_main(server);
}

static void reactor_has_drained(void *context)
{
	struct server *server = context;

	atomic_fetch_add_explicit(&server->drained_count, 1, memory_order_release);
	wake_main(server);
}

static uint32_t share_of(uint32_t total, uint32_t count)
{
	return (total + count - 1) / count;
}

/* One reactor's part of the server's limits. Connections are not split: the acceptor counts them,
 * and placement need not be even. */
static struct engine_limits reactor_limits(const struct server_limits *limits)
{
	struct engine_limits out;

	engine_limits_default(&out);
	out.sessions_max = limits->connections_max;
	out.handshakes_max = share_of(limits->handshakes_max, limits->threads);
	out.handshake_timeout_ns = limits->handshake_timeout_ns;
	out.idle_timeout_ns =
		limits->idle_timeout_ns != SERVER_IDLE_OFF ? limits->idle_timeout_ns : 0;
	out.inflight_per_session_max = limits->inflight_max;
	out.inflight_max = share_of(limits->inflight_total_max, limits->threads);
	out.memory_bytes_max = limits->memory_bytes / limits->threads;
	out.engine_count = limits->threads;
	out.may_spin = limits->spin != SERVER_SPIN_OFF;
	return out;
}

static int start_reactors(struct server *server, struct error *error)
{
	const struct server_limits *limits = &server->config->limits;
	struct reactor_options options = {
		.exports = server->exports.exports,
		.export_count = server->exports.count,
		.kinds = server->kinds,
		.kind_count = server->kind_count,
		.limits = reactor_limits(limits),
		.rate_rules = server->rate_rules,
		.places = server->config->push_places,
		.place_count = server->config->push_place_count,
		.device = server->device != NULL ? device_memory(server->device) : NULL,
		.device_waits = server->config->arena.waits,
		.connection_total = &server->connection_total,
		.drained = reactor_has_drained,
		.context = server,
	};

	/* Without one nobody copies within this server. */
	(void)!getrandom(server->instance, sizeof(server->instance), 0);
	memcpy(options.instance, server->instance, sizeof(options.instance));
	server->reactors = calloc(limits->threads, sizeof(struct reactor *));
	if (server->reactors == NULL) {
		return error_set(error, -ENOMEM, "no memory for %u threads", limits->threads);
	}
	while (server->reactor_count < limits->threads) {
		int rc;

		options.index = server->reactor_count;
		if (server->device != NULL) {
			options.device_bytes = device_share_bytes(server->device, options.index);
		}
		rc = reactor_create(&options, &server->reactors[options.index], error);
		if (rc < 0) {
			return rc;
		}
		server->reactor_count++;
	}
	return 0;
}

static int disks_have_settled(void *context, struct error *error);

static int start_accepting(struct server *server, struct error *error)
{
	const struct acceptor_options options = {
		.listeners = server->listeners,
		.listener_count = server->listener_count,
		.reactors = server->reactors,
		.reactor_count = server->reactor_count,
		.connections_max = server->config->limits.connections_max,
		.connections_per_peer_max = server->config->limits.connections_per_peer_max,
		.connection_total = &server->connection_total,
		.stopped = acceptor_has_stopped,
		.context = server,
	};
	int rc = acceptor_create(&options, &server->acceptor, error);

	if (rc == 0) { /* it listens, and has accepted nobody */
		rc = confine_seal(server->config, error);
	}
	if (rc == 0 && server->take != NULL) {
		const struct upgrade_taker taker = {
			.exports = &server->exports,
			.kinds = server->kinds,
			.kind_count = server->kind_count,
			.acceptor = server->acceptor,
			.reactors = server->reactors,
			.reactor_count = server->reactor_count,
			.settled = disks_have_settled,
			.context = server,
		};

		rc = upgrade_take_over(server->take, &taker, error);
	}
	if (rc == 0) {
		acceptor_start(server->acceptor);
	}
	return rc;
}

static void has_news(void *context)
{
	wake_main(context);
}

static struct server_view view_of(const struct server *server)
{
	return (struct server_view){
		.exports = server->exports.exports,
		.paths = server->exports.paths,
		.export_count = server->exports.count,
		.listeners = server->listeners,
		.listener_count = server->listener_count,
		.reactors = server->reactors,
		.reactor_count = server->reactor_count,
		.reload = server->reload,
		.upgrade = server->upgrade,
		.rate_rules = server->rate_rules,
		.instance = server->instance,
		.start_ns = server->start_ns,
	};
}

static void announce(const struct server *server)
{
	manager_tell("READY=1\nSTATUS=Serving %u export%s on %u address%s with %u thread%s",
		server->exports.count, server->exports.count == 1 ? "" : "s",
		server->listener_count, server->listener_count == 1 ? "" : "es",
		server->reactor_count, server->reactor_count == 1 ? "" : "s");
}

static void exports_have_changed(void *context)
{
	struct server *server = context;
	struct server_view view = view_of(server);

	server_control_look(server->control, &view);
	scrape_look(server->scrape, &view);
	announce(server);
}

static int start_reload(struct server *server, struct error *error)
{
	const struct reload_options options = {
		.config = server->config,
		.exports = &server->exports,
		.rate_rules = server->rate_rules,
		.device = server->device,
		.credentials = server->credentials,
		.reactors = server->reactors,
		.reactor_count = server->reactor_count,
		.wake = has_news,
		.changed = exports_have_changed,
		.context = server,
	};

	return reload_create(&options, &server->reload, error);
}

static int start_upgrade(struct server *server, struct error *error)
{
	const struct upgrade_options options = {
		.config = server->config,
		.exports = &server->exports,
		.listeners = server->listeners,
		.listener_count = server->listener_count,
		.reactors = server->reactors,
		.reactor_count = server->reactor_count,
		.reload = server->reload,
		.acceptor_stopped = &server->acceptor_stopped,
	};

	return upgrade_create(&options, &server->upgrade, error);
}

static void begin_control(struct server *server)
{
	server_control_begin(server->control);
	scrape_begin(server->scrape);
}

/* The rings are made before the sandbox is sealed. The sockets of an upgrade are the other
 * process's until this one serves: of two that wait there, a client may wake the one that leaves.
 */
static int start_control(struct server *server, struct error *error)
{
	struct server_view view;
	int rc;

	server->start_ns = clock_now_ns();
	view = view_of(server);
	rc = server_control_open(&server->control_listener, &view, &server->control, error);
	if (rc == 0) {
		rc = scrape_open(&server->metrics_listener, &view, &server->scrape, error);
	}
	if (rc == 0 && server->take == NULL) {
		begin_control(server);
	}
	return rc;
}

/* --- the process ----------------------------------------------------------------------------- */

/* nohup and the like let a program ignore the end of its terminal. */
static bool is_ignored(int signal_number)
{
	struct sigaction action;

	return sigaction(signal_number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* Blocks our signals before any thread starts, so that only signal_fd sees them. */
static int take_signals(struct server *server, struct error *error)
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
	/* A write behind the limit on file sizes is the error of who asked for it, EFBIG. */
	signal(SIGXFSZ, SIG_IGN);
	/* A parent that ignores SIGCHLD would make us lose the commands' exit status. */
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

/* Longest URI: a name of 4096 bytes, three characters each, and the address. */
enum { URI_BYTES_MAX = 3 * SERVER_NAME_BYTES_MAX + 1024 };

static void format_uri(
	const struct listener *listener, const struct export *entry, char out[URI_BYTES_MAX])
{
	int rc = export_uri_format(
		&listener->uri, entry->name, entry->name_bytes, out, URI_BYTES_MAX);

	GMB_ASSERT(rc == 0);
}

static void print_uris(const struct server *server)
{
	char uri[URI_BYTES_MAX];

	for (uint32_t i = 0; i < server->listener_count; i++) {
		for (uint32_t k = 0; k < server->exports.count; k++) {
			format_uri(&server->listeners[i], server->exports.exports[k], uri);
			printf("%s\n", uri);
		}
	}
	if (fflush(stdout) != 0) {
		log_warning("cannot print the URIs on standard output: %s", strerror(errno));
	}
}

/* The export that --run commands get: the default one, else the first. */
static const struct export *run_export(const struct server *server)
{
	for (uint32_t i = 0; i < server->exports.count; i++) {
		if (server->exports.exports[i]->name_bytes == 0) {
			return server->exports.exports[i];
		}
	}
	return server->exports.exports[0];
}

static void begin_stop(struct server *server);

/* Starts the next --run command, or begins to stop when there is none or it cannot be started. */
static void run_next(struct server *server)
{
	struct error error;

	if (!runner_has_next(&server->runner)) {
		server->exit_status = server->runner.exit_status;
		begin_stop(server);
	} else if (runner_start(&server->runner, &error) < 0) {
		log_error("%s", error.text);
		server->exit_status = 1;
		begin_stop(server);
	}
}

/* --- stopping -------------------------------------------------------------------------------- */

static void say_stopping(void)
{
	manager_tell("STOPPING=1\nSTATUS=Finishing what is in flight");
}

static void set_stop_limit(struct server *server)
{
	server->stop_begin_ns = clock_now_ns();
	server->stop_limit_ns = server->stop_begin_ns + STOP_NS;
}

/* The acceptor has stopped, or will soon. */
static void begin_close(struct server *server)
{
	set_stop_limit(server);
	server->phase = SERVER_CLOSING;
	server_control_stop(server->control); /* a reactor may not answer any more */
	scrape_stop(server->scrape);
	upgrade_goodbye(server->upgrade);
	wake_main(server);
}

static void begin_stop(struct server *server)
{
	say_stopping();
	if (!upgrade_stop(server->upgrade)) {
		acceptor_stop(server->acceptor);
	}
	begin_close(server);
}

static void close_listeners(struct server *server)
{
	for (uint32_t i = 0; i < server->listener_count; i++) {
		listener_close(&server->listeners[i]);
	}
	server->listener_count = 0;
}

static void begin_drain(struct server *server)
{
	uint64_t used_ns = clock_now_ns() - server->stop_begin_ns;

	server->phase = SERVER_DRAINING;
	close_listeners(server);
	for (uint32_t i = 0; i < server->reactor_count; i++) {
		reactor_drain(server->reactors[i],
			used_ns < STOP_NS - STOP_GRACE_NS ? STOP_NS - STOP_GRACE_NS - used_ns : 0);
	}
}

/* Leaves without waiting for anybody. What was acknowledged is safe: it is on the disk or in the
 * page cache. */
GMB_NORETURN static void stop_hard(struct server *server, const char *reason)
{
	log_error("stopped at once, with work in flight: %s", reason);
	close_listeners(server);
	server_control_stop(server->control);
	scrape_stop(server->scrape);
	fflush(stdout);
	_exit(1);
}

static void handle_signal(struct server *server, const struct signalfd_siginfo *info)
{
	int signal_number = (int)info->ssi_signo;

	/* From the kernel it is the end of the terminal. */
	if (signal_number == SIGHUP && info->ssi_code != SI_KERNEL) {
		if (server->phase <= SERVER_SERVING) {
			reload_ask(server->reload);
		}
		return;
	}
	if (signal_number == SIGCHLD) {
		if (server->has_runner && runner_reap(&server->runner)) {
			if (server->phase == SERVER_SERVING) {
				run_next(server);
			} else {
				server->exit_status = server->runner.exit_status;
			}
		}
		return;
	}
	if (server->phase == SERVER_STARTING) {
		server->phase = SERVER_STOPPED;
		say_stopping();
		set_stop_limit(server);
		starts_cancel(&server->starts);
	} else if (server->phase == SERVER_SERVING) {
		runner_signal(&server->runner, signal_number);
		begin_stop(server);
	} else if (clock_now_ns() - server->stop_begin_ns >= CLOCK_SAME_SIGNAL_NS) {
		stop_hard(server, "a second signal came");
	}
}

static void handle_events(struct server *server)
{
	uint64_t count;
	ssize_t got = read(server->event_fd, &count, sizeof(count));

	GMB_UNUSED(got);
	if (server->phase == SERVER_CLOSING &&
		atomic_load_explicit(&server->acceptor_stopped, memory_order_acquire)) {
		begin_drain(server);
	}
	if (server->phase == SERVER_DRAINING &&
		atomic_load_explicit(&server->drained_count, memory_order_acquire) ==
			server->reactor_count) {
		server->phase = SERVER_STOPPED;
	}
}

static int stop_timeout_ms(const struct server *server)
{
	uint64_t now;

	if (server->phase <= SERVER_SERVING) {
		return -1;
	}
	now = clock_now_ns();
	return now >= server->stop_limit_ns ? 0
					    : (int)((server->stop_limit_ns - now) / 1000000 + 1);
}

/* Waits for something to happen, and handles it. False: nothing has in time. */
static bool handle_next(struct server *server, int timeout_ms)
{
	bool answers = server->phase <= SERVER_SERVING; /* else the control socket has stopped */
	struct pollfd fds[] = {
		{ .fd = server->signal_fd, .events = POLLIN },
		{ .fd = server->event_fd, .events = POLLIN },
		{ .fd = answers ? server_control_fd(server->control) : -1, .events = POLLIN },
		{ .fd = answers ? upgrade_fd(server->upgrade) : -1,
			.events = upgrade_events(server->upgrade) },
		{ .fd = answers ? scrape_fd(server->scrape) : -1, .events = POLLIN },
	};
	int upgrade_ms = answers ? upgrade_timeout_ms(server->upgrade) : -1;
	struct signalfd_siginfo info;

	if (upgrade_ms >= 0 && (timeout_ms < 0 || upgrade_ms < timeout_ms)) {
		timeout_ms = upgrade_ms;
	}
	if (poll(fds, ARRAY_COUNT(fds), timeout_ms) == 0 && upgrade_ms < 0) {
		return false;
	}
	while (read(server->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		handle_signal(server, &info);
	}
	handle_events(server);
	if (server->phase <= SERVER_SERVING) {
		reload_finish(server->reload);
	}
	/* Before the control socket: the end of one upgrade comes before the request for the next.
	 */
	if (server->phase == SERVER_SERVING && upgrade_run(server->upgrade)) {
		begin_close(server);
	}
	if (server->phase <= SERVER_SERVING && (fds[2].revents & POLLIN) != 0) {
		server_control_run(server->control);
	}
	if (server->phase <= SERVER_SERVING && (fds[4].revents & POLLIN) != 0) {
		scrape_run(server->scrape);
	}
	return true;
}

static void wait_for_stop(struct server *server)
{
	while (server->phase != SERVER_STOPPED) {
		if (!handle_next(server, stop_timeout_ms(server))) {
			stop_hard(server, "they did not finish in time");
		}
	}
}

/* A command that outlives the server's other work is waited for: its status is ours. */
static void wait_for_command(struct server *server)
{
	struct pollfd fd = { .fd = server->signal_fd, .events = POLLIN };
	struct signalfd_siginfo info;

	while (server->runner.pid != 0) {
		if (runner_reap(&server->runner)) {
			server->exit_status = server->runner.exit_status;
			break;
		}
		if (poll(&fd, 1, stop_timeout_ms(server)) == 0) {
			runner_signal(&server->runner, SIGKILL);
			server->stop_limit_ns += REAP_NS;
		}
		while (read(server->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
			if (info.ssi_signo != SIGCHLD) {
				runner_signal(&server->runner, (int)info.ssi_signo);
			}
		}
	}
}

/* --- stores that have to be started ---------------------------------------------------------- */

static void wait_for_stores(struct server *server)
{
	uint64_t said_ns = clock_now_ns();

	while (!starts_are_over(&server->starts)) {
		handle_next(server, START_REPORT_MS);
		if (server->phase == SERVER_STOPPED && stop_timeout_ms(server) == 0) {
			stop_hard(server, "a disk did not stop its start in time");
		}
		if (clock_now_ns() - said_ns >= START_REPORT_MS * UINT64_C(1000000)) {
			said_ns = clock_now_ns();
			log_info("starting: %u %%", starts_percent(&server->starts));
			manager_tell("STATUS=Starting: %u %%\nEXTEND_TIMEOUT_USEC=%d",
				starts_percent(&server->starts), START_PATIENCE_US);
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

	if (snapshots_serve(&options, &server->exports)) {
		struct server_view view = view_of(server);

		server_control_look(server->control, &view);
		scrape_look(server->scrape, &view);
	}
}

/* Those that start late, or the others. Meanwhile the control socket answers. A signal ends it:
 * then the phase is SERVER_STOPPED. */
static int start_stores(struct server *server, bool late, struct error *error)
{
	int rc = starts_begin(&server->starts, late, error);

	wait_for_stores(server);
	if (rc == 0) {
		rc = starts_end(&server->starts, late, error);
	}
	if (rc == 0 && server->phase == SERVER_STARTING) {
		serve_snapshots(server);
	}
	return rc;
}

/* On the thread of a store. */
static void has_dropped(void *context)
{
	reload_look(context);
}

static int start_first_stores(struct server *server, struct error *error)
{
	for (uint32_t i = 0; i < server->exports.count; i++) {
		struct store *store = server->exports.exports[i]->store;

		if (store_has_views(store)) {
			store_views_watch(store, has_dropped, server->reload);
		}
	}
	server->starts = (struct starts){
		.exports = &server->exports,
		.reactors = server->reactors,
		.reactor_count = server->reactor_count,
		.is_taking = server->take != NULL,
		.wake = has_news,
		.context = server,
	};
	return start_stores(server, false, error);
}

static int disks_have_settled(void *context, struct error *error)
{
	struct server *server = context;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < server->exports.count; i++) {
		rc = store_take(server->exports.exports[i]->store, error);
		if (rc < 0) {
			served_blame(&server->exports.list[i]->about, error);
		}
	}
	if (rc == 0) {
		rc = start_stores(server, true, error);
	}
	if (rc == 0 && server->phase != SERVER_STARTING) {
		rc = error_set(error, -ECANCELED, "the new process was told to stop");
	}
	return rc;
}

/* --- the whole ------------------------------------------------------------------------------- */

/* Whether an export has no rules of access. */
static bool admits_all(const struct server *server)
{
	bool admits = false;

	for (uint32_t i = 0; i < server->exports.count && !admits; i++) {
		struct access *rules = access_slot_get(server->exports.exports[i]->access);

		admits = rules == NULL;
		access_put(rules);
	}
	return admits;
}

static void serve(struct server *server)
{
	const struct server_config *config = server->config;
	char uri[URI_BYTES_MAX];
	char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	struct runner_options options = {
		.commands = config->commands,
		.command_count = config->command_count,
		.uri = uri,
		.child_mask = &server->mask_before,
		.file_limit = server->file_limit[0] != '\0' ? server->file_limit : NULL,
	};

	reach_warn(server->listeners, server->listener_count, admits_all(server));
	announce(server);
	if (config->command_count == 0) {
		if (!server->was_taken) {
			print_uris(server);
		}
		wait_for_stop(server);
		return;
	}
	/* Standard output belongs to the commands. */
	format_uri(&server->listeners[0], run_export(server), uri);
	if (server->listeners[0].uri.is_unix && server->listeners[0].uri.socket_path[0] != '\0') {
		snprintf(socket_path, sizeof(socket_path), "%s",
			server->listeners[0].uri.socket_path);
		options.socket_path = socket_path;
	}
	runner_init(&server->runner, &options);
	server->has_runner = true;
	run_next(server);
	wait_for_stop(server);
	wait_for_command(server);
}

/* It serves. */
static void finish_take(struct server *server)
{
	upgrade_take_finish(server->take);
	server->take = NULL;
	server->was_taken = true;
	begin_control(server);
}

/* The sockets of clients, the control socket and that of metrics, and the memory of a device. */
static int open_places(struct server *server, struct error *error)
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
			/* The other process has a part of the address until it ends. */
			log_warning("no metrics until the next start: %s", error->text);
			rc = 0;
		}
	}
	return rc == 0 ? device_open(config, &server->device, error) : rc;
}

static int become_user(struct server *server, struct error *error)
{
	return confine_user(server->config, server->listeners, server->listener_count,
		&server->control_listener, &server->metrics_listener, error);
}

/* What is open is given to the user. */
static int start_alone(struct server *server, struct error *error)
{
	int rc = open_places(server, error);

	return rc == 0 ? become_user(server, error) : rc;
}

/* What the other process says is read when this one has the user's rights only. Of what needs more,
 * there is the usual control socket. */
static int start_taking(struct server *server, struct server_config *config, struct error *error)
{
	int rc = 0;

	if (config->control_path == NULL) {
		rc = server_control_listen(NULL, NULL, &server->control_listener, error);
	}
	if (rc == 0) {
		rc = become_user(server, error);
	}
	if (rc == 0) {
		rc = upgrade_take_begin(server->take, config, error);
	}
	return rc == 0 ? open_places(server, error) : rc;
}

static bool has_control(const struct server_config *config)
{
	return config->control_path == NULL || strcmp(config->control_path, "none") != 0;
}

static int start(struct server *server, struct server_config *config, struct error *error)
{
	int rc;

	runner_raise_file_limit(server->file_limit);
	rc = take_signals(server, error);
	if (rc == 0) {
		rc = upgrade_take_find(config, &server->take, error);
	}
	if (rc == 0 && has_control(config)) {
		server_record_write(server->record);
	}
	if (rc == 0) {
		rc = server->take == NULL ? start_alone(server, error)
					  : start_taking(server, config, error);
	}
	if (rc == 0) {
		rc = exports_open(server->config, server->take, &server->exports, error);
	}
	if (rc == 0) {
		device_probe(server->device, server->exports.exports, server->exports.count);
	}
	if (rc == 0) {
		rc = server_rates_build(&server->config->rates, &server->rate_rules, error);
	}
	if (rc == 0) {
		rc = credentials_open(
			server->listeners, server->listener_count, &server->credentials, error);
	}
	if (rc == 0) {
		rc = confine(server->config, server->credentials, server->listeners,
			server->listener_count, &server->control_listener,
			&server->metrics_listener, server->record, error);
	}
	if (rc == 0) {
		rc = exports_open_added(server->config, server->take, &server->exports, error);
	}
	if (rc == 0) {
		rc = start_reactors(server, error); /* the first threads: they inherit it */
	}
	if (rc == 0) {
		rc = start_reload(server, error);
	}
	if (rc == 0) {
		rc = start_upgrade(server, error);
	}
	if (rc == 0) {
		rc = start_control(server, error);
	}
	if (rc == 0) {
		rc = start_first_stores(server, error);
	}
	if (rc == 0 && server->phase == SERVER_STARTING) {
		rc = start_accepting(server, error);
		server->phase = SERVER_SERVING;
		reload_begin(server->reload);
	}
	if (rc == 0 && server->phase == SERVER_SERVING) {
		if (server->take != NULL) {
			finish_take(server);
		}
		upgrade_enable(server->upgrade, server->acceptor, server->control, server->scrape);
	}
	return rc;
}

static void nothing(struct engine *engine, void *context)
{
	GMB_UNUSED(engine);
	GMB_UNUSED(context);
}

/* A reactor that owns a store may still be inside ring_post() to another one that has its message
 * already, has drained, and is about to go. After a call it is not; one that hangs is waited for
 * when it is destroyed. A thread for TLS handshakes may be, too. */
static void settle_reactors(struct server *server)
{
	credentials_settle(server->credentials);
	for (uint32_t i = 0; i < server->reactor_count; i++) {
		int rc = reactor_call(server->reactors[i], nothing, NULL);

		GMB_UNUSED(rc);
	}
}

static void release(struct server *server)
{
	settle_reactors(server);
	for (uint32_t i = 0; i < server->reactor_count; i++) {
		reactor_destroy(server->reactors[i]);
	}
	server_control_close(server->control); /* a recorder that was not disarmed goes with it */
	listener_close(&server->control_listener);
	server_record_remove(server->record);
	scrape_close(server->scrape);
	listener_close(&server->metrics_listener);
	acceptor_destroy(server->acceptor);
	close_listeners(server);
	if (exports_left(&server->exports) && server->exit_status == 0) {
		server->exit_status = 1;
	}
	if (!reload_destroy(server->reload)) {
		stop_hard(server, "a file that was to be read again hangs");
	}
	upgrade_destroy(server->upgrade);
	credentials_close(server->credentials);
	exports_close(&server->exports);
	rate_rules_destroy(server->rate_rules);
	device_close(server->device);
	free(server->reactors);
	free(server->listeners);
	if (server->signal_fd >= 0) {
		close(server->signal_fd);
	}
	if (server->event_fd >= 0) {
		close(server->event_fd);
	}
	/* The signals stay blocked: one that comes now must not turn a clean stop into a kill. */
}

int server_run(struct server_config *config, const struct session_kind *const *kinds,
	uint32_t kind_count, int *exit_status, struct error *error)
{
	struct server server = {
		.config = config,
		.kinds = kinds,
		.kind_count = kind_count,
		.signal_fd = -1,
		.event_fd = -1,
	};
	int rc = start(&server, config, error);

	if (server.take != NULL) {
		if (rc == 0) { /* a signal came first; what it had is the other process's */
			error_set(error, -ECANCELED, "the new process was told to stop");
		}
		upgrade_take_abandon(server.take, server.listeners, server.listener_count,
			server.control != NULL ? server_control_listener(server.control)
					       : &server.control_listener,
			server.scrape != NULL ? scrape_listener(server.scrape)
					      : &server.metrics_listener,
			error);
	}
	if (rc == 0 && server.phase == SERVER_SERVING) {
		serve(&server);
	}
	release(&server);
	*exit_status = server.exit_status;
	return rc;
}
