// SPDX-License-Identifier: Apache-2.0
#include "attach/process.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attach/attach.h"
#include "base/log.h"

enum { PARENT_MS_MAX = 1000, PRIORITY_LAST = 19 };

/* --- detaching from the parent ---------------------------------------------------------------- */

/* Runs in the parent: waits for the report, or for the end of the pipe. */
static int read_report(int fd, pid_t child, struct process_report *report, struct error *error)
{
	size_t got = 0;
	int status = 0;

	while (got < sizeof(*report)) {
		ssize_t count = read(fd, (char *)report + got, sizeof(*report) - got);

		if (count < 0 && errno == EINTR) {
			continue;
		}
		if (count <= 0) {
			break;
		}
		got += (size_t)count;
	}
	if (got == sizeof(*report)) {
		report->text[sizeof(report->text) - 1] = '\0';
		return 1;
	}
	if (waitpid(child, &status, 0) == child && WIFSIGNALED(status)) {
		return error_set(error, -ECHILD, "the daemon was killed by signal %d (%s)",
			WTERMSIG(status), strsignal(WTERMSIG(status)));
	}
	return error_set(error, -ECHILD, "the daemon exited without reporting an error");
}

int process_split(int *report_fd, struct process_report *report, struct error *error)
{
	int ends[2];
	pid_t child;
	int rc;

	if (pipe2(ends, O_CLOEXEC) != 0) {
		rc = -errno;
		return error_set(error, rc, "cannot create a pipe: %s", strerror(-rc));
	}
	fflush(NULL);
	child = fork();
	if (child < 0) {
		rc = -errno;
		close(ends[0]);
		close(ends[1]);
		return error_set(error, rc, "cannot start a daemon: %s", strerror(-rc));
	}
	if (child == 0) {
		close(ends[0]);
		setsid();
		*report_fd = ends[1];
		return 0;
	}
	close(ends[1]);
	rc = read_report(ends[0], child, report, error);
	close(ends[0]);
	return rc;
}

/* Standard input and output become /dev/null. The log goes to the kernel's log, which also has the
 * messages about disks. */
static void leave_terminal(void)
{
	int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	int log_fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);

	if (null_fd >= 0) {
		dup2(null_fd, STDIN_FILENO);
		dup2(null_fd, STDOUT_FILENO);
		dup2(log_fd >= 0 ? log_fd : null_fd, STDERR_FILENO);
		close(null_fd);
	}
	if (log_fd >= 0) {
		close(log_fd);
	}
	unsetenv("JOURNAL_STREAM"); /* lines in the kernel's log must name the program */
}

void process_report_send(int report_fd, int code, const char *text, const struct timings *timings)
{
	struct process_report report = { .code = code };
	const char *at = (const char *)&report;
	size_t left = sizeof(report);

	snprintf(report.text, sizeof(report.text), "%s", text);
	if (timings != NULL) {
		report.timings = *timings;
	}
	while (left > 0) {
		ssize_t count = write(report_fd, at, left);

		if (count < 0 && errno == EINTR) {
			continue;
		}
		if (count <= 0) {
			break; /* the parent was killed, so the report is not read */
		}
		at += count;
		left -= (size_t)count;
	}
	if (code == 0) {
		leave_terminal();
	}
	close(report_fd);
}

/* --- protection ---------------------------------------------------------------------------- */

static int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	int rc = fd >= 0 && write(fd, text, strlen(text)) > 0 ? 0 : -errno;

	if (fd >= 0) {
		close(fd);
	}
	return rc;
}

const char *process_protect(void)
{
	const char *refused = NULL;

	if (program_invocation_name != NULL && program_invocation_name[0] != '\0') {
		program_invocation_name[0] = '@';
	}
	if (geteuid() != 0) {
		return NULL;
	}
	/* One heap is enough, and memory of further heaps would also be locked. */
	mallopt(M_ARENA_MAX, 1);
	if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0) {
		refused = "locked memory";
	}
	if (prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) != 0) {
		refused = "PR_SET_IO_FLUSHER";
	}
	if (write_text("/proc/self/oom_score_adj", "-1000") != 0) {
		refused = "oom_score_adj";
	}
	return refused;
}

/* Waits a short time until the parent, which exits when it has our report, has ended. */
static void let_go_first(pid_t parent)
{
	struct pollfd ended = { .fd = -1, .events = POLLIN };

	/* If the parent has already exited, we have been reparented. */
	if (parent > 0 && getppid() == parent) {
		ended.fd = (int)syscall(SYS_pidfd_open, parent, 0);
	}
	if (ended.fd >= 0) {
		(void)poll(&ended, 1, PARENT_MS_MAX);
		close(ended.fd);
	}
}

static void lock_all(void)
{
	/* If mlockall() is not permitted, process_protect() has already reported this. */
	(void)!mlockall(MCL_CURRENT | MCL_FUTURE);
}

static void *attach_process_lock_memory(void *argument)
{
	/* This thread uses whole time slices. At normal priority it could delay the parent, and
	 * with it the report that the disk is ready. */
	(void)setpriority(PRIO_PROCESS, 0, PRIORITY_LAST); /* affects only this thread */
	let_go_first((pid_t)(intptr_t)argument);
	lock_all();
	return NULL;
}

void process_lock_memory(pid_t parent)
{
	void *argument = (void *)(intptr_t)parent;
	pthread_t thread;

	if (geteuid() != 0) {
		return;
	}
	if (thread_start(&thread, attach_process_lock_memory, argument, NULL) == 0) {
		pthread_detach(thread);
	} else {
		/* No thread could be started, so this thread populates the memory. It does not call
		 * attach_process_lock_memory(), which would wait for the parent and lower the
		 * priority of this thread. */
		lock_all();
	}
}

/* --- other programs ------------------------------------------------------------------------ */

int process_run(const char *const argv[])
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none;
	pid_t child;
	int status;
	int err;

	sigemptyset(&none);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
	posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &none);
	/* posix_spawnp() declares the strings as non-const but does not change them. */
	err = posix_spawnp(
		&child, argv[0], &actions, &attributes, (char *const *)(uintptr_t)argv, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	if (err != 0) {
		return -err;
	}
	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR) {
			return -errno;
		}
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : PROCESS_SIGNALLED;
}

void process_load_module(const char *module)
{
	const char *const argv[] = { "modprobe", module, NULL };
	int rc = process_run(argv);

	log_debug("modprobe %s: %d", module, rc);
}
