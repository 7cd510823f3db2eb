// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon of an attachment: creates the disk, records it in the state folder, and waits for a
 * command or a signal to detach it. Called by attach_run(), which usually forks the daemon.
 */
#include "attach/attach.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "attach/flush.h"
#include "attach/process.h"
#include "attach/readahead.h"
#include "attach/state.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/manager.h"
#include "control/control.h"

#define NS_PER_S  UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

/* Delay after which clients are informed why a detach takes long. */
#define NOTE_AFTER_NS (NS_PER_S / 2)
/* FORCE_NS: time limit of a forced detach. HASTE_NS: further time that stop() gets after
 * hurry(). */
#define FORCE_NS (30 * NS_PER_S)
#define HASTE_NS (10 * NS_PER_S)

enum { DETACHES_MAX = 16, HEALTH_SHOWN_BYTES = HEALTH_TEXT_BYTES + 32 };

/* A client or signal that waits for the disk to be detached. */
struct detach {
	struct control_client *client; /* NULL: a signal, which gets no answer */
	bool force;
	uint64_t limit_ns;
	uint64_t deadline_ns;
};

/*
 * Phases of a detach:
 *
 * WORKING ──▶ FLUSHING ──▶ STOPPING ──▶ the end
 *    ▲           │            │
 *    └───────────┴────────────┘ in use, or no client waits
 *
 * Operations that can take long are part of FLUSHING, which does not change the disk. If the time
 * limit expires in this phase, the disk stays attached.
 */
enum phase { PHASE_WORKING, PHASE_FLUSHING, PHASE_STOPPING };

struct daemon {
	const struct attach_options *options;
	struct device *device;
	struct readahead *readahead; /* or NULL */
	struct control_server *control;
	int signal_fd;
	int listen_fd;
	int state_fd;
	int report_fd; /* pipe to the parent, or -1 */

	struct detach detaches[DETACHES_MAX + 1]; /* the last slot is for a signal */
	uint32_t detach_count;
	enum phase phase;
	struct disk_flush *flush; /* flush of a detach in progress, or of one that was abandoned */
	struct error lost;	  /* error of a failed flush */
	bool force;		  /* argument of device_ops.stop() */
	bool hurried;		  /* force was requested during an unforced detach */
	/* force was requested before the flush ended, so stop() was called with force */
	bool overtaken;
	bool hastened; /* stop() took too long, so hurry() was called */
	bool noted;    /* the clients have been informed why they wait */
	uint64_t wait_since_ns;

	/* Written by the stopper thread, until stopped_fd is readable. */
	pthread_t stopper;
	bool has_thread;
	int stopped_fd;
	int stop_result;
	struct error stop_error;
};

void attach_options_init(struct attach_options *options)
{
	*options = (struct attach_options){
		.number = -1,
		.connect_timeout_ns = 10 * NS_PER_S,
		.request_timeout_ns = 30 * NS_PER_S,
		.reconnect_timeout_ns = 600 * NS_PER_S,
		.readahead_bytes = READAHEAD_AUTO,
		.lease.ms = LEASE_MS_DEFAULT,
	};
}

/* --- starting ------------------------------------------------------------------------------ */

static int start_any(
	const struct attach_options *options, struct device **device, struct error *error)
{
	struct error second = { 0 };
	int rc = ublk_device_start(options, device, error);

	/* -ENOSYS: the kernel has no ublk. Any other error would also occur with nbd. */
	if (rc != -ENOSYS) {
		return rc;
	}
	rc = nbd_device_start(options, device, &second);
	if (rc == -ENOSYS) {
		return error_set(error, rc,
			"this kernel has neither ublk (module ublk_drv) nor nbd (module nbd); use "
			"--fuse FILE, which needs neither");
	}
	return rc == 0 ? 0 : error_set(error, rc, "%s", second.text);
}

static int start_device(
	const struct attach_options *options, struct device **device, struct error *error)
{
	switch (options->kind) {
	case ATTACH_UBLK:
		return ublk_device_start(options, device, error);
	case ATTACH_NBD:
		return nbd_device_start(options, device, error);
	case ATTACH_FUSE:
		return fuse_device_start(options, device, error);
	case ATTACH_ANY:
	default:
		return start_any(options, device, error);
	}
}

/* --- detaching ----------------------------------------------------------------------------- */

static void *stop_device(void *argument)
{
	struct daemon *daemon = argument;
	char reason[HEALTH_TEXT_BYTES];

	daemon->stop_result =
		daemon->device->ops->stop(daemon->device, daemon->force, &daemon->stop_error);
	/* A failed flush knows only that there is no connection. */
	if (daemon->stop_result == -ENOTCONN &&
		health_last_reason(&daemon->device->health, reason)) {
		error_add(&daemon->stop_error, "; %s", reason);
	}
	eventfd_write(daemon->stopped_fd, 1);
	return NULL;
}

/* Runs device_ops.stop() on its own thread, because the last flush may wait for the server while
 * other clients send requests. */
static void stop_start(struct daemon *daemon, bool force)
{
	struct error error = { 0 };

	manager_tell("STOPPING=1\nSTATUS=Detaching");
	daemon->phase = PHASE_STOPPING;
	daemon->force = force;
	daemon->stop_error = (struct error){ 0 };
	daemon->has_thread = thread_start(&daemon->stopper, stop_device, daemon, &error) == 0;
	if (!daemon->has_thread) {
		stop_device(daemon);
	}
}

static void attach_flush_start(struct daemon *daemon)
{
	struct error error = { 0 };

	daemon->noted = false;
	daemon->wait_since_ns = clock_now_ns();
	daemon->phase = PHASE_FLUSHING;
	/* If an abandoned detach has left a flush in progress, no new flush is started. stop()
	 * flushes the data that was written after that flush began. */
	if (daemon->device->read_only ||
		(daemon->flush == NULL &&
			disk_flush_begin(daemon->device->path, daemon->device->ops->check,
				&daemon->flush, &error) != 0)) {
		stop_start(daemon, false);
	}
}

static void note_wait(const struct daemon *daemon, const struct detach *detach)
{
	struct health *health = &daemon->device->health;
	char state[HEALTH_SHOWN_BYTES];
	char note[2 * HEALTH_SHOWN_BYTES];
	char shown[4 * HEALTH_SHOWN_BYTES];

	if (detach->client == NULL) {
		return;
	}
	snprintf(note, sizeof(note),
		"waiting for the server to flush (%s), at most %.6g s; gmblock detach --force does "
		"not wait and discards unflushed data",
		health_describe(health, state, sizeof(state)), (double)detach->limit_ns / 1e9);
	control_note(detach->client,
		json_pack("{s:s}", "text", log_escape_sentence(shown, sizeof(shown), note)));
}

/* Informs all clients of the time limit when a detach takes long. */
static void note_all(struct daemon *daemon)
{
	daemon->noted = true;
	for (uint32_t i = 0; i < daemon->detach_count; i++) {
		note_wait(daemon, &daemon->detaches[i]);
	}
}

/* Returns the time at which note_all() is due; UINT64_MAX: never. */
static uint64_t note_due_ns(const struct daemon *daemon)
{
	if (daemon->phase == PHASE_WORKING || daemon->force || daemon->hurried || daemon->noted) {
		return UINT64_MAX;
	}
	return daemon->wait_since_ns + NOTE_AFTER_NS;
}

static void attach_fail(const struct detach *detach, int code, const char *text)
{
	if (detach->client != NULL) {
		control_fail(detach->client, code, text);
	} else {
		log_warning("not detached: %s", text);
	}
}

static void attach_answer(const struct daemon *daemon, const struct detach *detach, int result)
{
	char text[ERROR_TEXT_BYTES];

	if (detach->client == NULL) {
		return;
	}
	if ((result == 0 && (detach->force || !daemon->overtaken)) ||
		(daemon->hurried && detach->force)) {
		control_reply(detach->client, json_pack("{s:s}", "state", "detached"));
	} else if (daemon->hurried) {
		snprintf(text, sizeof(text),
			"%.400s was removed by another gmblock detach --force: writes since "
			"the last flush may be lost",
			daemon->device->path);
		control_fail(detach->client, -ECANCELED, text);
	} else {
		control_fail(detach->client, result, daemon->stop_error.text);
	}
}

/* Called when the disk is in use: answers the unforced detach requests with an error. Forced ones
 * are kept, unless the failed attempt was forced as well. Returns whether any are left. */
static bool refuse_gentle(struct daemon *daemon)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < daemon->detach_count; i++) {
		struct detach detach = daemon->detaches[i];

		if (detach.force && !daemon->force) {
			daemon->detaches[kept++] = detach;
		} else {
			attach_fail(&detach, -EBUSY, daemon->stop_error.text);
		}
	}
	daemon->detach_count = kept;
	return kept > 0;
}

/* Called when the disk cannot be detached because it is in use: returns to WORKING. */
static void stay(struct daemon *daemon)
{
	daemon->phase = PHASE_WORKING;
	daemon->hurried = false;
	if (refuse_gentle(daemon)) {
		stop_start(daemon, true);
	} else {
		manager_tell("STATUS=%s is in use, not detached", daemon->device->path);
	}
}

static void flush_finish(struct daemon *daemon)
{
	/* a separate error, because the stopper may be using stop_error */
	struct error error = { 0 };
	int rc = disk_flush_end(daemon->flush, &error);

	daemon->flush = NULL;
	if (rc < 0 && rc != -EBUSY) {
		daemon->lost = error;
	}
	if (daemon->phase != PHASE_FLUSHING) {
		return; /* The detach that started this flush was abandoned. */
	}
	if (rc == -EBUSY) {
		daemon->stop_error = error;
		stay(daemon);
	} else {
		stop_start(daemon, false);
	}
}

/* Called when stop_device() has ended. Returns true if the disk is gone. */
static bool stop_finish(struct daemon *daemon)
{
	struct device *device = daemon->device;
	eventfd_t ignored;

	eventfd_read(daemon->stopped_fd, &ignored);
	if (daemon->has_thread) {
		pthread_join(daemon->stopper, NULL);
	}
	if (daemon->stop_result == -EBUSY) {
		stay(daemon);
		return false;
	}
	if (daemon->stop_result == 0 && daemon->lost.code != 0 && !daemon->force) {
		daemon->stop_result = daemon->lost.code;
		daemon->stop_error = daemon->lost;
	}
	if (daemon->stop_result != 0) {
		log_error("%s", daemon->stop_error.text);
	} else {
		log_info("%s is detached", device->path);
	}
	for (uint32_t i = 0; i < daemon->detach_count; i++) {
		attach_answer(daemon, &daemon->detaches[i], daemon->stop_result);
	}
	daemon->detach_count = 0;
	return true;
}

/* --- time limits --------------------------------------------------------------------------- */

static uint64_t usual_limit_ns(const struct daemon *daemon)
{
	const struct attach_options *options = daemon->options;

	return options->reconnect_timeout_ns +
	       (health_is_connected(&daemon->device->health)
			       ? attach_slow_ns(options, ATTACH_SLOW_NS)
			       : 0);
}

/* Called when the time limit of this detach has expired. Returns true if the client no longer
 * waits. */
static bool attach_expire(struct daemon *daemon, struct detach *detach)
{
	const char *path = daemon->device->path;
	double seconds = (double)detach->limit_ns / 1e9;
	char state[HEALTH_SHOWN_BYTES];
	char text[2 * HEALTH_SHOWN_BYTES];

	if (daemon->phase == PHASE_FLUSHING) {
		snprintf(text, sizeof(text),
			"%.250s is still attached: the server did not flush within %.6g s "
			"(%.500s); try again when the server responds, or discard unflushed data "
			"with gmblock detach --force",
			path, seconds,
			health_describe(&daemon->device->health, state, sizeof(state)));
	} else if (!daemon->hastened && !daemon->force && !daemon->hurried) {
		daemon->hastened = true;
		daemon->device->ops->hurry(daemon->device);
		detach->deadline_ns += HASTE_NS;
		return false;
	} else {
		snprintf(text, sizeof(text),
			"the kernel did not remove %.250s within %.6g s, and its daemon (process "
			"%d) is still waiting; gmblock attach --list shows the disk until it is "
			"removed",
			path, seconds, (int)getpid());
	}
	attach_fail(detach, -ETIMEDOUT, text);
	return true;
}

static void expire_all(struct daemon *daemon)
{
	uint64_t now_ns = clock_now_ns();
	uint32_t kept = 0;

	for (uint32_t i = 0; i < daemon->detach_count; i++) {
		struct detach *detach = &daemon->detaches[i];

		if (now_ns < detach->deadline_ns || !attach_expire(daemon, detach)) {
			daemon->detaches[kept++] = *detach;
		}
	}
	daemon->detach_count = kept;
}

/* Returns to WORKING if no client waits for the detach any more and the disk is not being stopped
 * yet. */
static void attach_give_up(struct daemon *daemon)
{
	if (daemon->phase == PHASE_FLUSHING && daemon->detach_count == 0) {
		daemon->phase = PHASE_WORKING;
		manager_tell("STATUS=%s not detached", daemon->device->path);
	}
}

/* Returns the time until the next progress message or time limit, in milliseconds for poll(). */
static int due_ms(const struct daemon *daemon)
{
	uint64_t due_ns = note_due_ns(daemon);
	uint64_t now_ns = clock_now_ns();

	for (uint32_t i = 0; i < daemon->detach_count; i++) {
		due_ns = MIN(due_ns, daemon->detaches[i].deadline_ns);
	}
	return due_ns == UINT64_MAX ? -1
	       : due_ns <= now_ns   ? 0
				    : (int)clock_milliseconds(due_ns - now_ns);
}

static void look_at_time(struct daemon *daemon)
{
	if (clock_now_ns() >= note_due_ns(daemon)) {
		note_all(daemon);
	}
	expire_all(daemon);
	attach_give_up(daemon);
}

/* --- commands ------------------------------------------------------------------------------ */

static void begin_status(void *context, struct control_client *client, const json_t *arguments)
{
	struct daemon *daemon = context;
	char state[HEALTH_SHOWN_BYTES];
	char shown[4 * HEALTH_SHOWN_BYTES];
	char text[sizeof(shown) + 32];
	char last[HEALTH_TEXT_BYTES];
	char host[HEALTH_TEXT_BYTES];
	json_t *reason = json_null();
	json_t *server = json_null();
	int64_t staged;

	if (health_last_reason(&daemon->device->health, last)) {
		reason = json_string(log_escape_sentence(shown, sizeof(shown), last));
	}
	if (health_server(&daemon->device->health, host)) {
		server = json_string(log_escape_sentence(shown, sizeof(shown), host));
	}
	health_describe(&daemon->device->health, state, sizeof(state));
	snprintf(text, sizeof(text), "%s%s",
		daemon->phase != PHASE_WORKING ? "being detached, " : "",
		log_escape_sentence(shown, sizeof(shown), state));
	staged = atomic_load_explicit(&daemon->device->staged_bytes, memory_order_relaxed);
	control_reply(client,
		json_pack("{s:s, s:o, s:o, s:o}", "state", text, "last_reason", reason, "server",
			server, "staged_bytes", staged >= 0 ? json_integer(staged) : json_null()));
}

/* Adds a detach request. client: NULL for a signal. limit_ns: 0 for the default time limit. */
static void add_detach(
	struct daemon *daemon, struct control_client *client, bool force, uint64_t limit_ns)
{
	struct detach *detach = &daemon->detaches[daemon->detach_count++];

	limit_ns = limit_ns > 0 ? limit_ns : force ? FORCE_NS : usual_limit_ns(daemon);
	*detach = (struct detach){
		.client = client,
		.force = force,
		.limit_ns = limit_ns,
		.deadline_ns = clock_now_ns() + limit_ns,
	};
	if (daemon->phase == PHASE_WORKING) {
		if (force) {
			stop_start(daemon, true);
		} else {
			attach_flush_start(daemon);
		}
	} else if (force && !daemon->force && !daemon->hurried) {
		daemon->hurried = true;
		daemon->device->ops->hurry(daemon->device);
		if (daemon->phase == PHASE_FLUSHING) {
			daemon->overtaken = true;
			stop_start(daemon, true);
		}
	} else if (daemon->noted && !force && !daemon->hurried) {
		note_wait(daemon, detach);
	}
}

static void begin_detach(void *context, struct control_client *client, const json_t *arguments)
{
	struct daemon *daemon = context;
	bool force = json_is_true(json_object_get(arguments, "force"));
	json_int_t limit_ms = json_integer_value(json_object_get(arguments, "limit_ms"));

	if (daemon->detach_count >= DETACHES_MAX) {
		control_fail(client, -EAGAIN,
			"too many other gmblock detach commands are waiting for this disk; try "
			"again later");
	} else if (limit_ms < 0 || limit_ms > UINT32_MAX) {
		control_fail(client, -EINVAL, "limit_ms is not a valid time limit");
	} else {
		add_detach(daemon, client, force, (uint64_t)limit_ms * NS_PER_MS);
	}
}

/* Called when a client's program ends while it waits. If no other client waits and the disk is not
 * being stopped yet, the disk stays attached. */
static void end_detach(void *context, struct control_client *client)
{
	struct daemon *daemon = context;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < daemon->detach_count; i++) {
		if (daemon->detaches[i].client != client) {
			daemon->detaches[kept++] = daemon->detaches[i];
		}
	}
	daemon->detach_count = kept;
	attach_give_up(daemon);
	control_fail(client, -ECANCELED, "the client disconnected before the disk was detached");
}

static const struct control_command commands[] = {
	{ .name = "status", .right = CONTROL_READ, .begin = begin_status },
	/* The client waits until the connection closes, which shows that the daemon has ended. */
	{ .name = "detach",
		.right = CONTROL_CHANGE,
		.stays_open = true,
		.begin = begin_detach,
		.end = end_detach },
};

/* --- starting the daemon ------------------------------------------------------------------- */

static int attach_listen_at(const char *path, struct error *error)
{
	struct sockaddr_un address;
	int folder_fd;
	int rc = control_address(path, &address, &folder_fd);
	int fd = rc == 0 ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : rc;

	/* Removes the socket of a daemon that died. It cannot be the socket of a running daemon:
	 * that daemon would still have its disk, and the new disk could not have the same name. */
	if (rc == 0 && (fd < 0 || (unlink(path) != 0 && errno != ENOENT) ||
			       bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
			       listen(fd, DETACHES_MAX) != 0)) {
		rc = -errno;
	}
	if (folder_fd >= 0) {
		close(folder_fd);
	}
	if (rc != 0 && fd >= 0) {
		close(fd);
	}
	return rc == 0 ? fd : error_set(error, rc, "cannot listen on %s: %s", path, strerror(-rc));
}

static int attach_start_control(struct daemon *daemon, struct error *error)
{
	char path[PATH_MAX];
	int rc = state_path(path, daemon->device->name, "sock", error);

	if (rc == 0) {
		rc = daemon->listen_fd = attach_listen_at(path, error);
	}
	if (rc >= 0) {
		rc = control_server_create(daemon->listen_fd, &daemon->control, error);
	}
	if (rc == 0) {
		for (size_t i = 0; i < ARRAY_COUNT(commands); i++) {
			control_server_add(daemon->control, &commands[i], daemon);
		}
		control_server_begin(daemon->control);
	}
	return rc;
}

/* Writes the state file, or replaces an earlier one. */
static int write_state(struct daemon *daemon, struct error *error)
{
	const struct device *device = daemon->device;
	size_t shown_bytes = 4 * strlen(daemon->options->uri) + 8;
	struct state_entry entry = {
		.number = device->number,
		.pid = getpid(),
		.bytes = device->bytes,
		.read_only = device->read_only,
		.made_file = device->made_file,
		.uri = malloc(shown_bytes),
	};
	int fd;

	if (entry.uri == NULL) {
		return error_oom(error);
	}
	log_escape(entry.uri, shown_bytes, daemon->options->uri, strlen(daemon->options->uri));
	snprintf(entry.name, sizeof(entry.name), "%s", device->name);
	snprintf(entry.kind, sizeof(entry.kind), "%s", device->ops->kind);
	snprintf(entry.path, sizeof(entry.path), "%s", device->path);
	fd = state_write(&entry, error);
	free(entry.uri);
	if (fd < 0) {
		return fd;
	}
	if (daemon->state_fd >= 0) {
		close(daemon->state_fd);
	}
	daemon->state_fd = fd;
	return 0;
}

/* Blocks the signals and opens a descriptor for them. Called before threads are created, because
 * they inherit the mask. */
static int attach_take_signals(struct daemon *daemon, struct error *error)
{
	sigset_t signals;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	daemon->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	daemon->stopped_fd = eventfd(0, EFD_CLOEXEC);
	return daemon->signal_fd >= 0 && daemon->stopped_fd >= 0
		       ? 0
		       : error_set(error, -errno, "cannot wait for signals");
}

static int daemon_start(struct daemon *daemon, struct error *error)
{
	const char *refused = NULL;
	int rc = attach_take_signals(daemon, error);

	if (rc == 0) {
		refused = process_protect();
		timings_mark(daemon->options->timings, TIMINGS_PROTECT);
		rc = start_device(daemon->options, &daemon->device, error);
	}
	if (rc == 0) {
		rc = write_state(daemon, error) ?: attach_start_control(daemon, error);
		timings_mark(daemon->options->timings, TIMINGS_STATE);
		if (rc != 0 && daemon->device->ops->stop(daemon->device, true, NULL) != 0) {
			log_error("cannot remove %s", daemon->device->path);
		}
	}
	if (rc == 0 && refused != NULL) {
		/* For a FUSE file the missing protection is less serious, because the system does
		 * not swap to it or keep its root on it. */
		log_line(daemon->options->kind == ATTACH_FUSE ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARNING,
			"cannot use %s: %s may stall when memory is low", refused,
			daemon->device->path);
	}
	return rc;
}

/* --- watching ------------------------------------------------------------------------------ */

static void serve_signal(struct daemon *daemon)
{
	struct signalfd_siginfo info;

	if (read(daemon->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		add_detach(daemon, NULL, false, 0);
	}
}

static void attach_grow(struct daemon *daemon, uint64_t bytes)
{
	struct device *device = daemon->device;
	uint64_t before = device->bytes;
	struct error error = { 0 };
	int rc;

	readahead_resize_begin(daemon->readahead);
	rc = device->ops->grow(device, bytes, &error);
	readahead_resize_end(daemon->readahead);
	if (rc != 0) {
		log_warning("%s: the export has grown to %llu bytes, but the disk still has %llu: "
			    "%s; detach the disk and attach it again to use the rest",
			device->path, (unsigned long long)bytes, (unsigned long long)before,
			error.text);
		return;
	}
	device->bytes = bytes;
	log_info("%s now has %llu bytes, previously %llu", device->path, (unsigned long long)bytes,
		(unsigned long long)before);
	if (write_state(daemon, &error) != 0) {
		log_warning("%s", error.text);
	}
}

/* Enlarges the disk when its export has grown. It never shrinks while it is in use. */
static void follow_export(struct daemon *daemon)
{
	struct device *device = daemon->device;
	uint64_t bytes;
	eventfd_t ignored;

	eventfd_read(device->resized_fd, &ignored);
	bytes = align_down(atomic_load(&device->export_bytes), device->block_bytes);
	if (bytes > device->bytes) {
		attach_grow(daemon, bytes);
	} else if (bytes < device->bytes) {
		log_warning("%s: the export now has only %llu bytes, but the disk has %llu: "
			    "requests beyond the end of the export fail",
			device->path, (unsigned long long)bytes, (unsigned long long)device->bytes);
	}
}

static void daemon_watch(struct daemon *daemon)
{
	struct pollfd entries[] = {
		{ .events = POLLIN },
		{ .fd = control_server_fd(daemon->control), .events = POLLIN },
		{ .events = POLLIN },
		{ .fd = daemon->stopped_fd, .events = POLLIN },
		{ .events = POLLIN },
		{ .events = POLLIN },
	};
	bool gone = false;

	while (!gone) {
		bool works = daemon->phase == PHASE_WORKING;

		/* While detaching, the disk is expected to end, and further signals have no
		 * effect. */
		entries[0].fd = works ? daemon->signal_fd : -1;
		entries[2].fd = works ? daemon->device->ended_fd : -1;
		entries[4].fd = works ? daemon->device->resized_fd : -1;
		entries[5].fd = daemon->flush != NULL ? disk_flush_fd(daemon->flush) : -1;
		if (poll(entries, ARRAY_COUNT(entries), due_ms(daemon)) < 0) {
			GMB_ASSERT(errno == EINTR);
			continue;
		}
		if (entries[3].revents != 0) {
			gone = stop_finish(daemon);
		} else if (entries[2].revents != 0) {
			log_warning("%s was removed by another program", daemon->device->path);
			gone = true;
		} else if (entries[0].revents != 0) {
			serve_signal(daemon);
		} else if (entries[1].revents != 0) {
			control_server_run(daemon->control);
		} else if (entries[4].revents != 0) {
			follow_export(daemon);
		} else if (entries[5].revents != 0) {
			flush_finish(daemon);
		}
		if (!gone) {
			look_at_time(daemon);
		}
	}
}

/* Reports to all waiting processes that the disk is ready. */
static int tell_ready(const struct daemon *daemon, struct error *error)
{
	const struct device *device = daemon->device;

	manager_tell("READY=1\nMAINPID=%d\nSTATUS=%s is %s", (int)getpid(), device->path,
		daemon->options->uri);
	if (daemon->report_fd >= 0) {
		process_report_send(daemon->report_fd, 0, device->path, daemon->options->timings);
	} else if (printf("%s\n", device->path) < 0 || fflush(stdout) != 0) {
		return error_set(error, -EIO, "cannot write to standard output");
	}
	return 0;
}

static void daemon_end(struct daemon *daemon)
{
	disk_flush_leave(daemon->flush);
	readahead_end(daemon->readahead);
	if (daemon->device != NULL) {
		if (daemon->state_fd >= 0) {
			state_remove_own(daemon->device->name, daemon->state_fd);
		}
		daemon->device->ops->destroy(daemon->device);
	}
	if (daemon->state_fd >= 0) {
		close(daemon->state_fd);
	}
	if (daemon->signal_fd >= 0) {
		close(daemon->signal_fd);
	}
	if (daemon->stopped_fd >= 0) {
		close(daemon->stopped_fd);
	}
	/* Closed last, because a waiting client takes the end of its connection as a sign that the
	 * daemon has ended. */
	control_server_destroy(daemon->control);
	if (daemon->listen_fd >= 0) {
		close(daemon->listen_fd);
	}
}

static int attach_keep(const struct attach_options *options, int report_fd, struct error *error)
{
	struct daemon daemon = {
		.options = options,
		.signal_fd = -1,
		.listen_fd = -1,
		.state_fd = -1,
		.stopped_fd = -1,
		.report_fd = report_fd,
	};
	pid_t parent = report_fd >= 0 ? getppid() : 0;
	int rc = daemon_start(&daemon, error);

	if (rc != 0 && report_fd >= 0) {
		process_report_send(report_fd, rc, error->text, NULL);
	}
	if (rc == 0) {
		daemon.readahead = readahead_start(options, daemon.device);
		rc = tell_ready(&daemon, error);
		if (rc != 0) {
			(void)!daemon.device->ops->stop(daemon.device, true, NULL);
		} else {
			process_lock_memory(parent);
			daemon_watch(&daemon);
		}
	}
	daemon_end(&daemon);
	return rc;
}

int attach_run(
	const struct attach_options *options, char path[ATTACH_PATH_BYTES], struct error *error)
{
	struct process_report report;
	int report_fd = -1;
	int rc;

	if (options->foreground) {
		return attach_keep(options, -1, error);
	}
	rc = process_split(&report_fd, &report, error);
	if (rc < 0) {
		return rc;
	}
	if (rc == 0) {
		timings_mark(options->timings, TIMINGS_FORK);
		rc = attach_keep(options, report_fd, error);
		_exit(rc == 0 ? 0 : 1);
	}
	if (report.code != 0) {
		return error_set(error, report.code, "%.500s", report.text);
	}
	memcpy(path, report.text, ATTACH_PATH_BYTES);
	if (options->timings != NULL) {
		*options->timings = report.timings;
		timings_mark(options->timings, TIMINGS_TELL);
	}
	return 0;
}
