// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon of an attachment: makes the disk, writes it down in the state folder, and waits for
 * somebody who wants it gone.
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
#include <unistd.h>

#include "attach/control.h"
#include "attach/process.h"
#include "attach/state.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/manager.h"

#define NS_PER_S UINT64_C(1000000000)

/* A detach that lasts longer is explained to those who wait for it. */
#define NOTE_AFTER_NS (NS_PER_S / 2)

enum { VISITORS_MAX = 16 };

/* One who wants the disk gone, and waits for it. */
struct visitor {
	int fd;
	bool force;
};

/* What the daemon has. */
struct keeper {
	const struct attach_options *options;
	struct device *device;
	int signal_fd;
	int listen_fd;
	int state_fd;
	int report_fd; /* to the parent, or -1 */

	struct visitor visitors[VISITORS_MAX];
	uint32_t visitor_count;
	bool stopping;
	bool force;   /* as stop() was told */
	bool hurried; /* force came later */
	bool noted;   /* the visitors know why they wait */
	uint64_t stop_since_ns;

	/* The stopper's until stopped_fd is readable. */
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
	};
}

/* --- starting ------------------------------------------------------------------------------ */

static int start_any(
	const struct attach_options *options, struct device **device, struct error *error)
{
	struct error second = { 0 };
	int rc = ublk_device_start(options, device, error);

	/* -ENOSYS: the kernel has no ublk. Anything else would fail with nbd just as well. */
	if (rc != -ENOSYS) {
		return rc;
	}
	rc = nbd_device_start(options, device, &second);
	if (rc == -ENOSYS) {
		return error_set(error, rc,
			"this kernel has neither ublk (module ublk_drv) nor nbd (module nbd); "
			"--fuse FILE works without them");
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

static int write_state(struct keeper *keeper, struct error *error)
{
	const struct device *device = keeper->device;
	size_t shown_bytes = 4 * strlen(keeper->options->uri) + 8;
	struct state_entry entry = {
		.number = device->number,
		.pid = getpid(),
		.bytes = device->bytes,
		.read_only = device->read_only,
		.made_file = device->made_file,
		.uri = malloc(shown_bytes),
	};

	if (entry.uri == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	log_escape(entry.uri, shown_bytes, keeper->options->uri, strlen(keeper->options->uri));
	snprintf(entry.name, sizeof(entry.name), "%s", device->name);
	snprintf(entry.kind, sizeof(entry.kind), "%s", device->ops->kind);
	snprintf(entry.path, sizeof(entry.path), "%s", device->path);
	keeper->state_fd = state_write(&entry, error);
	free(entry.uri);
	if (keeper->state_fd < 0) {
		return keeper->state_fd;
	}
	keeper->listen_fd = control_listen(device->name, error);
	return MIN(keeper->listen_fd, 0);
}

/* Before there are threads: they inherit the mask. */
static int take_signals(struct keeper *keeper, struct error *error)
{
	sigset_t signals;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	keeper->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	keeper->stopped_fd = eventfd(0, EFD_CLOEXEC);
	return keeper->signal_fd >= 0 && keeper->stopped_fd >= 0
		       ? 0
		       : error_set(error, -errno, "cannot wait for signals");
}

static int keeper_start(struct keeper *keeper, struct error *error)
{
	const char *refused = NULL;
	int rc = take_signals(keeper, error);

	if (rc == 0) {
		refused = process_protect();
		timings_mark(keeper->options->timings, TIMINGS_PROTECT);
		rc = start_device(keeper->options, &keeper->device, error);
	}
	if (rc == 0) {
		rc = write_state(keeper, error);
		timings_mark(keeper->options->timings, TIMINGS_STATE);
		if (rc != 0 && keeper->device->ops->stop(keeper->device, true, NULL) != 0) {
			log_error("%s stays behind", keeper->device->path);
		}
	}
	if (rc == 0 && refused != NULL) {
		/* Nothing depends on a file as the system's memory does on a disk. */
		log_line(keeper->options->kind == ATTACH_FUSE ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARNING,
			"the system refuses %s: %s may stall when memory is short", refused,
			keeper->device->path);
	}
	return rc;
}

/* --- detaching ----------------------------------------------------------------------------- */

static void *stop_device(void *argument)
{
	struct keeper *keeper = argument;

	keeper->stop_result =
		keeper->device->ops->stop(keeper->device, keeper->force, &keeper->stop_error);
	eventfd_write(keeper->stopped_fd, 1);
	return NULL;
}

/* In a thread of its own: the last flush may wait for the server, and others want answers. */
static void stop_start(struct keeper *keeper, bool force)
{
	struct error error = { 0 };

	manager_tell("STOPPING=1\nSTATUS=Detaching");
	keeper->stopping = true;
	keeper->force = force;
	keeper->noted = false;
	keeper->stop_since_ns = clock_now_ns();
	keeper->stop_error = (struct error){ 0 };
	keeper->has_thread = thread_start(&keeper->stopper, stop_device, keeper, &error) == 0;
	if (!keeper->has_thread) {
		stop_device(keeper);
	}
}

static void note_wait(const struct keeper *keeper, const struct visitor *visitor)
{
	const struct attach_options *options = keeper->options;
	struct health *health = &keeper->device->health;
	uint64_t limit_ns = options->reconnect_timeout_ns;
	char state[CONTROL_LINE_BYTES / 2];
	char note[CONTROL_LINE_BYTES];

	limit_ns += health_is_connected(health) ? options->request_timeout_ns : 0;
	snprintf(note, sizeof(note),
		"waiting for the server to flush what was written (%s), for at most %.6g s; "
		"gmblock detach --force does not wait, and loses it",
		health_describe(health, state, sizeof(state)), (double)limit_ns / 1e9);
	control_note(visitor->fd, note);
}

/* Once it lasts: tells those who wait for how long it may. */
static void note_all(struct keeper *keeper)
{
	keeper->noted = true;
	for (uint32_t i = 0; i < keeper->visitor_count; i++) {
		note_wait(keeper, &keeper->visitors[i]);
	}
}

/* Milliseconds until note_all(), for poll(). */
static int note_due(const struct keeper *keeper)
{
	uint64_t past_ns = clock_now_ns() - keeper->stop_since_ns;

	if (!keeper->stopping || keeper->force || keeper->hurried || keeper->noted) {
		return -1;
	}
	return past_ns < NOTE_AFTER_NS ? (int)clock_milliseconds(NOTE_AFTER_NS - past_ns) : 0;
}

static void answer_visitor(const struct keeper *keeper, const struct visitor *visitor, int result)
{
	char text[ATTACH_PATH_BYTES + CONTROL_LINE_BYTES];

	if (keeper->hurried && result != 0) {
		snprintf(text, sizeof(text),
			"%s was removed by force meanwhile: what was written since the last flush "
			"may be lost",
			keeper->device->path);
		control_answer(visitor->fd, visitor->force ? 0 : -ECANCELED,
			visitor->force ? "detached" : text);
		return;
	}
	control_answer(visitor->fd, result, result != 0 ? keeper->stop_error.text : "detached");
}

/* The disk stays: those who took it for unused are told. True: somebody wants it gone anyway. */
static bool refuse_gentle(struct keeper *keeper)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < keeper->visitor_count; i++) {
		struct visitor visitor = keeper->visitors[i];

		if (visitor.force && !keeper->force) {
			keeper->visitors[kept++] = visitor;
			continue;
		}
		control_answer(visitor.fd, -EBUSY, keeper->stop_error.text);
		close(visitor.fd);
	}
	keeper->visitor_count = kept;
	return kept > 0;
}

/* After stop_device(). Returns true when the disk is gone. The visitors are held until the very end
 * then, see control.h. */
static bool stop_finish(struct keeper *keeper)
{
	struct device *device = keeper->device;
	eventfd_t ignored;

	eventfd_read(keeper->stopped_fd, &ignored);
	if (keeper->has_thread) {
		pthread_join(keeper->stopper, NULL);
	}
	keeper->stopping = false;
	if (keeper->stop_result == -EBUSY) {
		log_warning("not detached: %s", keeper->stop_error.text);
		keeper->hurried = false;
		if (refuse_gentle(keeper)) {
			stop_start(keeper, true);
		} else {
			manager_tell("STATUS=%s is in use and stays", device->path);
		}
		return false;
	}
	if (keeper->stop_result != 0) {
		log_error("%s", keeper->stop_error.text);
	} else {
		log_info("%s is detached", device->path);
	}
	for (uint32_t i = 0; i < keeper->visitor_count; i++) {
		answer_visitor(keeper, &keeper->visitors[i], keeper->stop_result);
	}
	return true;
}

/* --- watching ------------------------------------------------------------------------------ */

static void serve_status(struct keeper *keeper, int fd)
{
	char state[CONTROL_LINE_BYTES / 2];
	char line[CONTROL_LINE_BYTES];

	health_describe(&keeper->device->health, state, sizeof(state));
	snprintf(line, sizeof(line), "%s%s", keeper->stopping ? "being detached, " : "", state);
	control_answer(fd, 0, line);
	close(fd);
}

/* Those whose program was ended while it waited. */
static void forget_gone(struct keeper *keeper)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < keeper->visitor_count; i++) {
		struct pollfd entry = { .fd = keeper->visitors[i].fd, .events = POLLRDHUP };

		if (poll(&entry, 1, 0) > 0) {
			close(entry.fd);
		} else {
			keeper->visitors[kept++] = keeper->visitors[i];
		}
	}
	keeper->visitor_count = kept;
}

/* Somebody wants the disk gone, as others may already. */
static void serve_detach(struct keeper *keeper, int fd, bool force)
{
	struct visitor *visitor;

	forget_gone(keeper);
	if (keeper->visitor_count == VISITORS_MAX) {
		control_answer(fd, -EAGAIN, "too many wait for the end of this disk already");
		close(fd);
		return;
	}
	visitor = &keeper->visitors[keeper->visitor_count];
	*visitor = (struct visitor){ .fd = fd, .force = force };
	keeper->visitor_count++;
	if (!keeper->stopping) {
		stop_start(keeper, force);
	} else if (force && !keeper->force && !keeper->hurried) {
		keeper->hurried = true;
		keeper->device->ops->hurry(keeper->device);
	} else if (keeper->noted && !force && !keeper->hurried) {
		note_wait(keeper, visitor);
	}
}

/* Serves one who has connected. */
static void serve_control(struct keeper *keeper)
{
	char line[CONTROL_LINE_BYTES];
	int fd = control_accept(keeper->listen_fd, line);

	if (fd < 0) {
		return;
	}
	if (strcmp(line, "status") == 0) {
		serve_status(keeper, fd);
	} else if (strcmp(line, "detach") == 0 || strcmp(line, "detach force") == 0) {
		serve_detach(keeper, fd, strcmp(line, "detach force") == 0);
	} else {
		control_answer(fd, -EINVAL, "the daemon does not know this order");
		close(fd);
	}
}

static void serve_signal(struct keeper *keeper)
{
	struct signalfd_siginfo info;

	if (read(keeper->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		stop_start(keeper, false);
	}
}

static void keeper_watch(struct keeper *keeper)
{
	struct pollfd entries[] = {
		{ .events = POLLIN },
		{ .fd = keeper->listen_fd, .events = POLLIN },
		{ .events = POLLIN },
		{ .fd = keeper->stopped_fd, .events = POLLIN },
	};
	bool gone = false;

	while (!gone) {
		/* The end of the disk is what is wanted then, and one signal is enough. */
		entries[0].fd = keeper->stopping ? -1 : keeper->signal_fd;
		entries[2].fd = keeper->stopping ? -1 : keeper->device->ended_fd;
		if (poll(entries, ARRAY_COUNT(entries), note_due(keeper)) < 0) {
			GMB_ASSERT(errno == EINTR);
			continue;
		}
		if (entries[3].revents != 0) {
			gone = stop_finish(keeper);
		} else if (entries[2].revents != 0) {
			log_warning("%s was removed by somebody else", keeper->device->path);
			gone = true;
		} else if (entries[0].revents != 0) {
			serve_signal(keeper);
		} else if (entries[1].revents != 0) {
			serve_control(keeper);
		}
		if (!gone && note_due(keeper) == 0) {
			note_all(keeper);
		}
	}
}

/* Tells everybody who waits for it that the disk can be used. */
static int tell_ready(const struct keeper *keeper, struct error *error)
{
	const struct device *device = keeper->device;

	manager_tell("READY=1\nMAINPID=%d\nSTATUS=%s is %s", (int)getpid(), device->path,
		keeper->options->uri);
	if (keeper->report_fd >= 0) {
		process_report_send(keeper->report_fd, 0, device->path, keeper->options->timings);
	} else if (printf("%s\n", device->path) < 0 || fflush(stdout) != 0) {
		return error_set(error, -EIO, "cannot write to standard output");
	}
	return 0;
}

static void keeper_end(struct keeper *keeper)
{
	if (keeper->device != NULL) {
		if (keeper->state_fd >= 0) {
			state_remove_own(keeper->device->name, keeper->state_fd);
		}
		keeper->device->ops->destroy(keeper->device);
	}
	if (keeper->listen_fd >= 0) {
		close(keeper->listen_fd);
	}
	if (keeper->state_fd >= 0) {
		close(keeper->state_fd);
	}
	if (keeper->signal_fd >= 0) {
		close(keeper->signal_fd);
	}
	if (keeper->stopped_fd >= 0) {
		close(keeper->stopped_fd);
	}
}

/* The daemon's whole life. */
static int keep(const struct attach_options *options, int report_fd, struct error *error)
{
	struct keeper keeper = {
		.options = options,
		.signal_fd = -1,
		.listen_fd = -1,
		.state_fd = -1,
		.stopped_fd = -1,
		.report_fd = report_fd,
	};
	pid_t parent = report_fd >= 0 ? getppid() : 0;
	int rc = keeper_start(&keeper, error);

	if (rc != 0 && report_fd >= 0) {
		process_report_send(report_fd, rc, error->text, NULL);
	}
	if (rc == 0) {
		rc = tell_ready(&keeper, error);
		if (rc != 0) {
			(void)!keeper.device->ops->stop(keeper.device, true, NULL);
		} else {
			process_settle(parent);
			keeper_watch(&keeper);
		}
	}
	keeper_end(&keeper);
	for (uint32_t i = 0; i < keeper.visitor_count; i++) {
		close(keeper.visitors[i].fd);
	}
	return rc;
}

int attach_run(
	const struct attach_options *options, char path[ATTACH_PATH_BYTES], struct error *error)
{
	struct process_report report;
	int report_fd = -1;
	int rc;

	if (options->foreground) {
		return keep(options, -1, error);
	}
	rc = process_split(&report_fd, &report, error);
	if (rc < 0) {
		return rc;
	}
	if (rc == 0) {
		timings_mark(options->timings, TIMINGS_FORK);
		rc = keep(options, report_fd, error);
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
