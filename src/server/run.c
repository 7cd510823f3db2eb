// SPDX-License-Identifier: Apache-2.0
#include "server/run.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

/* Variables that a child does not inherit. The server sets new values for some. The others
 * are for the server alone, because a child must not talk to the service manager. */
static const char *const replaced_variables[] = { "uri", "unixsocket", "NOTIFY_SOCKET",
	"WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES" };

/* Raises the limit because every connection needs a descriptor, and the soft limit of 1024 is
 * only a default for old programs. Commands get the old limit back, because they may be such
 * programs. */
void runner_raise_file_limit(char before_out[RUNNER_LIMIT_BYTES])
{
	struct rlimit limit;
	rlim_t before;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= limit.rlim_max) {
		return;
	}
	before = limit.rlim_cur;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0) {
		log_warning("cannot raise the limit on open files: %s", strerror(errno));
	} else {
		snprintf(before_out, RUNNER_LIMIT_BYTES, "%llu", (unsigned long long)before);
	}
}

void runner_init(struct runner *runner, const struct runner_options *options)
{
	*runner = (struct runner){ .options = *options };
}

static bool server_run_is_replaced(const char *entry)
{
	for (size_t i = 0; i < ARRAY_COUNT(replaced_variables); i++) {
		size_t len = strlen(replaced_variables[i]);

		if (strncmp(entry, replaced_variables[i], len) == 0 && entry[len] == '=') {
			return true;
		}
	}
	return false;
}

/* Builds the child's environment. The caller frees the array, *uri and *socket; all other strings
 * belong to environ. */
static int build_environment(
	const struct runner_options *options, char ***environment, char **uri, char **socket)
{
	size_t count = 0;
	size_t used = 0;
	char **list;

	*socket = NULL;
	if (asprintf(uri, "uri=%s", options->uri) < 0) {
		*uri = NULL;
		return -ENOMEM;
	}
	if (options->socket_path != NULL &&
		asprintf(socket, "unixsocket=%s", options->socket_path) < 0) {
		*socket = NULL;
		return -ENOMEM;
	}
	while (environ[count] != NULL) {
		count++;
	}
	list = calloc(count + 3, sizeof(*list));
	if (list == NULL) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < count; i++) {
		if (!server_run_is_replaced(environ[i])) {
			list[used++] = environ[i];
		}
	}
	list[used++] = *uri;
	list[used] = *socket;
	*environment = list;
	return 0;
}

/* Sets default signals and the original signal mask. Descriptors need no action, because all of
 * ours are close-on-exec. */
static int set_attributes(posix_spawnattr_t *attributes, const sigset_t *mask)
{
	sigset_t defaults;

	sigemptyset(&defaults);
	sigaddset(&defaults, SIGPIPE);
	sigaddset(&defaults, SIGXFSZ);
	posix_spawnattr_setsigmask(attributes, mask);
	posix_spawnattr_setsigdefault(attributes, &defaults);
	return posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

static int spawn_shell(struct runner *runner, const char *command, char **environment)
{
	static const char limiting[] = "ulimit -S -n \"$1\"; exec /bin/sh -c \"$2\" sh";
	const char *limit = runner->options.file_limit;
	/* posix_spawn() declares the arguments as non-const, but does not change them. It cannot
	 * set limits, so the shell does. */
	char *const arguments[] = { (char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
		(char *)(uintptr_t)(limit != NULL ? limiting : command),
		(char *)(uintptr_t)(limit != NULL ? "sh" : NULL), (char *)(uintptr_t)limit,
		(char *)(uintptr_t)command, NULL };
	posix_spawnattr_t attributes;
	int rc = posix_spawnattr_init(&attributes);

	if (rc == 0) {
		rc = set_attributes(&attributes, runner->options.child_mask);
		if (rc == 0) {
			rc = posix_spawn(
				&runner->pid, "/bin/sh", NULL, &attributes, arguments, environment);
		}
		posix_spawnattr_destroy(&attributes);
	}
	if (rc != 0) {
		runner->pid = 0;
	}
	return -rc;
}

int runner_start(struct runner *runner, struct error *error)
{
	char **environment = NULL;
	char *uri;
	char *socket;
	int rc;

	GMB_ASSERT(runner->pid == 0 && runner_has_next(runner));
	rc = build_environment(&runner->options, &environment, &uri, &socket);
	rc = rc ?: spawn_shell(runner, runner->options.commands[runner->next++], environment);
	free(environment);
	free(uri);
	free(socket);
	if (rc < 0) {
		error_set(error, rc, "cannot start /bin/sh for --run: %s", strerror(-rc));
	}
	return rc;
}

bool runner_reap(struct runner *runner)
{
	int status;

	if (runner->pid == 0 || waitpid(runner->pid, &status, WNOHANG) != runner->pid) {
		return false;
	}
	runner->pid = 0;
	runner->exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	return true;
}

bool runner_has_next(const struct runner *runner)
{
	return runner->next < runner->options.command_count && runner->exit_status == 0;
}

void runner_signal(struct runner *runner, int signal_number)
{
	if (runner->pid != 0) {
		kill(runner->pid, signal_number);
	}
}
