// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/manager.h"
#include "server/change/jobs.h"
#include "server/control.h"
#include "server/device.h"
#include "server/fence/fencing.h"
#include "server/lease/leases.h"
#include "server/listen/accept.h"
#include "server/listen/address.h"
#include "server/listen/credentials.h"
#include "server/observe/scrape.h"
#include "server/server_state.h"
#include "server/upgrade/take.h"
#include "server/upgrade/upgrade.h"

/* Time limit of a stop, as the manual states. A request that hangs inside the kernel cannot be
 * cancelled, so after this time the process exits without waiting for its reactors. */
#define STOP_NS UINT64_C(10000000000)
/* The last part of STOP_NS, in which the reactors end requests by force. */
#define STOP_GRACE_NS UINT64_C(500000000)
/* Time to wait for a command after SIGKILL, if it did not end after the first signal. */
#define REAP_NS UINT64_C(5000000000)

void server_wake(struct server *server)
{
	uint64_t one = 1;
	ssize_t written = write(server->event_fd, &one, sizeof(one));

	GMB_ASSERT(written == (ssize_t)sizeof(one));
}

void server_announce(const struct server *server)
{
	manager_tell("READY=1\nSTATUS=Serving %u export%s on %u address%s with %u thread%s",
		server->exports.count, server->exports.count == 1 ? "" : "s",
		server->listener_count, server->listener_count == 1 ? "" : "es",
		server->reactor_count, server->reactor_count == 1 ? "" : "s");
}

/* Longest URI: a name of 4096 bytes, three characters each, and the address. */
enum { URI_BYTES_MAX = 3 * SERVER_NAME_BYTES_MAX + 1024 };

static void format_uri(
	const struct listener *listener, const struct export *entry, char out[URI_BYTES_MAX])
{
	const char *name = entry != NULL ? entry->name : listener->uri.export_name;
	size_t bytes = entry != NULL ? entry->name_bytes : name != NULL ? strlen(name) : 0;
	int rc = export_uri_format(&listener->uri, name, (uint32_t)bytes, out, URI_BYTES_MAX);

	GMB_ASSERT(rc == 0);
}

static void print_uris(const struct server *server)
{
	char uri[URI_BYTES_MAX];

	for (uint32_t i = 0; i < server->listener_count; i++) {
		for (uint32_t k = 0; k < server->exports.count; k++) {
			if (listen_address_serves(
				    &server->listeners[i], server->exports.exports[k])) {
				format_uri(&server->listeners[i], server->exports.exports[k], uri);
				printf("%s\n", uri);
			}
		}
	}
	if (fflush(stdout) != 0) {
		log_warning("cannot print the URIs on standard output: %s", strerror(errno));
	}
}

/* Warns of addresses with one export (vhost-user-blk) that does not exist. It can be added later.
 */
static void warn_of_missing_exports(const struct server *server)
{
	char uri[URI_BYTES_MAX];

	for (uint32_t i = 0; i < server->listener_count; i++) {
		bool found = server->listeners[i].folder > 0;

		for (uint32_t k = 0; k < server->exports.count; k++) {
			found |= listen_address_serves(
				&server->listeners[i], server->exports.exports[k]);
		}
		if (!found && export_uri_has_one_export(&server->listeners[i].uri)) {
			format_uri(&server->listeners[i], NULL, uri);
			log_warning("%s: there is no such export; clients of this address are "
				    "disconnected until the export is added",
				uri);
		}
	}
}

/* Returns the export whose URI --run commands get: the default export, otherwise the first one.
 * NULL: the export of the address. */
static const struct export *run_export(const struct server *server)
{
	if (export_uri_has_one_export(&server->listeners[0].uri)) {
		return NULL;
	}
	for (uint32_t i = 0; i < server->exports.count; i++) {
		if (server->exports.exports[i]->name_bytes == 0) {
			return server->exports.exports[i];
		}
	}
	return server->exports.exports[0];
}

static void begin_stop(struct server *server);

/* Starts the next --run command. Begins to stop after the last one, or if it cannot be started. */
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
	manager_tell("STOPPING=1\nSTATUS=Finishing requests in flight");
}

static void set_stop_limit(struct server *server)
{
	server->stop_begin_ns = clock_now_ns();
	server->stop_limit_ns = server->stop_begin_ns + STOP_NS;
}

/* Begins the stop. The acceptor must have stopped, or have been ordered to stop. */
static void begin_close(struct server *server)
{
	set_stop_limit(server);
	server->phase = SERVER_CLOSING;
	/* these functions do not call a reactor, because it might hang */
	jobs_stop(server->jobs);
	fencing_stop(server->fencing);
	server_control_stop(server->control);
	scrape_stop(server->scrape);
	upgrade_goodbye(server->upgrade);
	server_wake(server);
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

void server_stop_hard(struct server *server, const char *reason)
{
	log_error("the server stopped immediately, with requests in flight: %s", reason);
	close_listeners(server);
	jobs_stop(server->jobs);
	server_control_stop(server->control);
	scrape_stop(server->scrape);
	fflush(stdout);
	_exit(1);
}

static void handle_signal(struct server *server, const struct signalfd_siginfo *info)
{
	int signal_number = (int)info->ssi_signo;

	/* SIGHUP from the kernel means that the terminal was closed. */
	if (signal_number == SIGHUP && info->ssi_code != SI_KERNEL) {
		if (server->phase <= SERVER_SERVING) {
			jobs_ask(server->jobs, &job_reload);
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
		store_startup_cancel(&server->startup);
	} else if (server->phase == SERVER_SERVING) {
		runner_signal(&server->runner, signal_number);
		begin_stop(server);
	} else if (clock_now_ns() - server->stop_begin_ns >= CLOCK_SAME_SIGNAL_NS) {
		server_stop_hard(server, "a second signal was received");
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

int server_stop_timeout_ms(const struct server *server)
{
	uint64_t now;

	if (server->phase <= SERVER_SERVING) {
		return -1;
	}
	now = clock_now_ns();
	return now >= server->stop_limit_ns ? 0
					    : (int)((server->stop_limit_ns - now) / 1000000 + 1);
}

bool server_handle_next(struct server *server, int timeout_ms)
{
	/* The control socket, an upgrade and the metrics are handled only until the stop begins. */
	bool answers = server->phase <= SERVER_SERVING;
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
		jobs_continue(server->jobs);
	}
	/* An upgrade that has ended must be handled before the control socket, which may receive a
	 * command for the next upgrade. */
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
		if (!server_handle_next(server, server_stop_timeout_ms(server))) {
			server_stop_hard(server, "the requests did not finish in time");
		}
	}
}

/* Waits for a command that is still running when the rest of the server has ended, because its
 * status becomes the server's. */
static void wait_for_command(struct server *server)
{
	struct pollfd fd = { .fd = server->signal_fd, .events = POLLIN };
	struct signalfd_siginfo info;

	while (server->runner.pid != 0) {
		if (runner_reap(&server->runner)) {
			server->exit_status = server->runner.exit_status;
			break;
		}
		if (poll(&fd, 1, server_stop_timeout_ms(server)) == 0) {
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

/* --- running --------------------------------------------------------------------------------- */

/* Returns whether any of the exports has no access rules. */
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

static void server_serve(struct server *server)
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

	listen_address_warn(server->listeners, server->listener_count, admits_all(server));
	warn_of_missing_exports(server);
	server_announce(server);
	if (config->command_count == 0) {
		if (!server->was_taken) {
			print_uris(server);
		}
		wait_for_stop(server);
		return;
	}
	/* URIs are printed only without commands, because standard output belongs to the
	 * commands. */
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

static void nothing(struct engine *engine, void *context)
{
}

/* Ensures that no other thread is still inside ring_post() to a reactor that is about to be
 * destroyed. A reactor that owns a store can be there: its message may be processed before its
 * ring_post() returns. After a reactor_call() to that reactor, its ring_post() has returned. If the
 * reactor hangs, reactor_destroy() waits for it. TLS handshake threads may also be inside
 * ring_post(), so they are stopped first. */
static void synchronize_reactors(struct server *server)
{
	credentials_synchronize(server->credentials);
	for (uint32_t i = 0; i < server->reactor_count; i++) {
		int rc = reactor_call(server->reactors[i], nothing, NULL);

		GMB_UNUSED(rc);
	}
}

static void server_release(struct server *server)
{
	jobs_stop(server->jobs);
	fencing_stop(server->fencing);
	synchronize_reactors(server);
	for (uint32_t i = 0; i < server->reactor_count; i++) {
		reactor_destroy(server->reactors[i]);
	}
	/* this also frees the recorders */
	server_control_close(server->control);
	listener_close(&server->control_listener);
	server_record_remove(server->record);
	scrape_close(server->scrape);
	listener_close(&server->metrics_listener);
	acceptor_destroy(server->acceptor);
	close_listeners(server);
	if (!exports_end(&server->exports) && server->exit_status == 0) {
		server->exit_status = 1;
	}
	if (!jobs_destroy(server->jobs)) {
		server_stop_hard(
			server, "a thread hangs while it reads a configuration or TLS file again");
	}
	upgrade_destroy(server->upgrade);
	credentials_close(server->credentials);
	exports_close(&server->exports);
	leases_close(server->leases);
	fencing_destroy(server->fencing);
	state_folder_close(&server->state);
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
	/* The signals stay blocked: with the default action, one that arrives now would kill a
	 * process that has stopped cleanly. */
}

int server_run(struct server_config *config, const struct session_kind *const *kinds,
	uint32_t kind_count, int *exit_status, struct error *error)
{
	struct server server = {
		.config = config,
		.kinds = kinds,
		.kind_count = kind_count,
		.state.fd = -1,
		.signal_fd = -1,
		.event_fd = -1,
	};
	int rc = server_start(&server, config, error);

	if (server.take != NULL) {
		/* The start ended because of a signal. The old process keeps its sockets and
		 * disks. */
		if (rc == 0) {
			error_set(error, -ECANCELED, "the new process received a signal to stop");
		}
		upgrade_take_abandon(server.take, server.listeners, server.listener_count,
			server.control != NULL ? server_control_listener(server.control)
					       : &server.control_listener,
			server.scrape != NULL ? scrape_listener(server.scrape)
					      : &server.metrics_listener,
			error);
	}
	if (rc == 0 && server.phase == SERVER_SERVING) {
		server_serve(&server);
	}
	server_release(&server);
	*exit_status = server.exit_status;
	return rc;
}
