// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon of an attachment: makes the disk, writes it down in the state folder, and waits for
 * somebody who wants it gone.
 */
#include "attach/attach.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "attach/control.h"
#include "attach/device.h"
#include "attach/process.h"
#include "attach/state.h"
#include "base/log.h"
#include "base/manager.h"

#define NS_PER_S UINT64_C(1000000000)

/* What the daemon has. */
struct keeper {
	const struct attach_options *options;
	struct device *device;
	int signal_fd;
	int listen_fd;
	int state_fd;
	int report_fd; /* to the parent, or -1 */
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
	return keeper->signal_fd >= 0 ? 0 : error_set(error, -errno, "cannot wait for signals");
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

/* --- watching ------------------------------------------------------------------------------ */

/* A wish to detach: what came of it, in *error as well. */
static int detach(struct keeper *keeper, bool force, struct error *error)
{
	struct device *device = keeper->device;
	int rc;

	manager_tell("STOPPING=1\nSTATUS=Detaching");
	rc = device->ops->stop(device, force, error);
	if (rc == -EBUSY) {
		log_warning("not detached: %s", error->text);
		manager_tell("STATUS=%s is in use and stays", device->path);
	} else if (rc != 0) {
		log_error("%s", error->text);
	} else {
		log_info("%s is detached", device->path);
	}
	return rc;
}

/* Serves one who has connected. Returns true when the disk is gone; *gone_fd is held until the very
 * end then, see control.h. */
static bool serve_control(struct keeper *keeper, int *gone_fd)
{
	char line[CONTROL_LINE_BYTES];
	struct error error = { 0 };
	int fd = control_accept(keeper->listen_fd, line);
	bool force = false;
	int rc;

	if (fd < 0) {
		return false;
	}
	if (strcmp(line, "status") == 0) {
		health_describe(&keeper->device->health, line, sizeof(line));
		control_answer(fd, 0, line);
		close(fd);
		return false;
	}
	force = strcmp(line, "detach force") == 0;
	if (!force && strcmp(line, "detach") != 0) {
		control_answer(fd, -EINVAL, "the daemon does not know this order");
		close(fd);
		return false;
	}
	rc = detach(keeper, force, &error);
	control_answer(fd, rc, rc != 0 ? error.text : "detached");
	if (rc == -EBUSY) {
		close(fd);
		return false;
	}
	*gone_fd = fd;
	return true;
}

static bool serve_signal(struct keeper *keeper)
{
	struct signalfd_siginfo info;
	struct error error = { 0 };

	return read(keeper->signal_fd, &info, sizeof(info)) == sizeof(info) &&
	       detach(keeper, false, &error) != -EBUSY;
}

static void keeper_watch(struct keeper *keeper, int *gone_fd)
{
	struct pollfd entries[] = {
		{ .fd = keeper->signal_fd, .events = POLLIN },
		{ .fd = keeper->listen_fd, .events = POLLIN },
		{ .fd = keeper->device->ended_fd, .events = POLLIN },
	};
	bool gone = false;

	while (!gone) {
		if (poll(entries, ARRAY_COUNT(entries), -1) < 0) {
			GMB_ASSERT(errno == EINTR);
			continue;
		}
		if (entries[2].revents != 0) {
			log_warning("%s was removed by somebody else", keeper->device->path);
			gone = true;
		} else if (entries[0].revents != 0) {
			gone = serve_signal(keeper);
		} else if (entries[1].revents != 0) {
			gone = serve_control(keeper, gone_fd);
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
}

/* The daemon's whole life. */
static int keep(const struct attach_options *options, int report_fd, struct error *error)
{
	struct keeper keeper = {
		.options = options,
		.signal_fd = -1,
		.listen_fd = -1,
		.state_fd = -1,
		.report_fd = report_fd,
	};
	pid_t parent = report_fd >= 0 ? getppid() : 0;
	int gone_fd = -1;
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
			keeper_watch(&keeper, &gone_fd);
		}
	}
	keeper_end(&keeper);
	if (gone_fd >= 0) {
		close(gone_fd);
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
