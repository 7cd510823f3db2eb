// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "control/control.h"
#include "tools/show.h"

static const char name[] = "upgrade";

static const char help[] =
	"Usage: gmblock upgrade [--if-replaced] [--server SERVER] [-- PROGRAM ARGUMENT...]\n"
	"Replaces a running server on this machine by a new process, without an error for its\n"
	"clients: connections, disks and addresses go on where they are. The new process runs\n"
	"the program file of the old one as it is now, with the same arguments, or PROGRAM.\n"
	"If it is not ready within 10 seconds, or ends, the old one goes on.\n"
	"\n"
	"  --server SERVER  one of its URIs, its control socket, or its process id;\n"
	"                 optional if there is only one server; SERVER alone as the last\n"
	"                 word is the same\n"
	"  --if-replaced  do nothing if the program file is the one that runs\n"
	"  -h, --help     print this help\n"
	"\n"
	"Examples:\n"
	"  gmblock upgrade\n"
	"  gmblock upgrade --if-replaced nbd://localhost/\n"
	"\n"
	"Exit status: 1 failure, 2 usage error.\n";

enum {
	ANSWER_MS = 60000,
	COMMAND_BYTES_MAX = 2 << 20, /* as much as the kernel takes */
	OFFER_FILES = 3,
	SAID_BYTES_MAX = 4096, /* of what the new process has said */
	SAID_LINES_MAX = 10,
};

/* What the server offers: the connection over which the new process gets all, where it says what is
 * wrong, and the folder in which its paths begin. */
enum offer { OFFER_CHANNEL, OFFER_ERRORS, OFFER_FOLDER };

/* Of the process that runs. */
struct running {
	pid_t pid;
	char program[PATH_MAX]; /* its file, as it was called when it was started */
	bool is_replaced;	/* another file has that name now, or none */
	char *command;		/* its arguments, each with a terminator */
	size_t command_bytes;
};

/* What the new process says before it takes the standard error of the server. */
struct said {
	int pipe[2]; /* -1: closed */
	int errors;  /* the standard error of the server, or -1 */
};

static int read_command(struct running *running, struct error *error)
{
	char path[64];
	FILE *file;
	int rc = 0;

	snprintf(path, sizeof(path), "/proc/%ld/cmdline", (long)running->pid);
	file = fopen(path, "re");
	running->command = malloc(COMMAND_BYTES_MAX);
	if (file == NULL || running->command == NULL) {
		rc = file == NULL ? -errno : -ENOMEM;
	} else {
		running->command_bytes = fread(running->command, 1, COMMAND_BYTES_MAX, file);
		rc = running->command_bytes == 0 || running->command_bytes == COMMAND_BYTES_MAX
			     ? -E2BIG
			     : 0;
	}
	if (file != NULL) {
		fclose(file);
	}
	return rc == 0 ? 0
		       : error_set(error, rc,
				 "the arguments of process %ld cannot be read: %s; write the "
				 "program and its arguments behind --",
				 (long)running->pid, strerror(-rc));
}

static int find_running(
	const struct control_connection *connection, struct running *running, struct error *error)
{
	static const char deleted[] = " (deleted)";
	char path[64];
	struct stat runs;
	struct stat is;
	ssize_t len;

	running->pid = control_connection_pid(connection);
	snprintf(path, sizeof(path), "/proc/%ld/exe", (long)running->pid);
	len = readlink(path, running->program, sizeof(running->program) - 1);
	if (len < 0 || stat(path, &runs) < 0) {
		return error_set(error, -errno,
			"the program of process %ld cannot be found out: %s; write it and its "
			"arguments behind --",
			(long)running->pid, strerror(errno));
	}
	running->program[len] = '\0';
	if ((size_t)len > strlen(deleted) &&
		strcmp(running->program + len - strlen(deleted), deleted) == 0) {
		running->program[(size_t)len - strlen(deleted)] = '\0';
	}
	running->is_replaced = stat(running->program, &is) < 0 || is.st_dev != runs.st_dev ||
			       is.st_ino != runs.st_ino;
	return 0;
}

/* --- units ----------------------------------------------------------------------------------- */

/* The control group of a process, as the service manager sees it; "": it has none. */
static void find_group(pid_t pid, char *out, size_t out_bytes)
{
	char path[64];
	char line[PATH_MAX];
	FILE *file;

	out[0] = '\0';
	snprintf(path, sizeof(path), "/proc/%ld/cgroup", (long)pid);
	file = fopen(path, "re");
	while (out[0] == '\0' && file != NULL && fgets(line, sizeof(line), file) != NULL) {
		/* NUMBER:CONTROLLERS:PATH. The manager's own comes before the one without. */
		const char *controllers = strchr(line, ':');
		const char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

		if (group != NULL && (group == controllers + 1 ||
					     strncmp(controllers, ":name=systemd:", 14) == 0)) {
			snprintf(out, out_bytes, "%.*s", (int)strcspn(group + 1, "\n"), group + 1);
		}
	}
	if (file != NULL) {
		fclose(file);
	}
}

/* The old process says which program is run, and which disks are added: with the rights of whoever
 * calls. */
static int check_user(const struct control_connection *connection, struct error *error)
{
	uid_t user = control_connection_user(connection);

	return user == 0 || user == geteuid()
		       ? 0
		       : error_set(error, -EPERM,
				 "process %ld belongs to another user (%u), and a new process from "
				 "here would not: run this command as that user",
				 (long)control_connection_pid(connection), (unsigned int)user);
}

/* The new process has the control group of this one. A server that the service manager supervises
 * would leave its unit: with the rights of whoever calls, and nobody to restart it. */
static int check_unit(const struct control_connection *connection, struct error *error)
{
	pid_t pid = control_connection_pid(connection);
	char theirs[PATH_MAX];
	char ours[PATH_MAX];
	const char *unit;

	find_group(pid, theirs, sizeof(theirs));
	find_group(getpid(), ours, sizeof(ours));
	unit = strrchr(theirs, '/');
	if (unit == NULL || strcmp(theirs, ours) == 0 || strlen(unit) <= strlen("/.service") ||
		strcmp(unit + strlen(unit) - strlen(".service"), ".service") != 0) {
		return 0;
	}
	return error_set(error, -EPERM,
		"process %ld belongs to the unit %s, and a new process from here would not: use "
		"\"systemctl reload %s\", with ExecReload= as the unit of the package has it",
		(long)pid, unit + 1, unit + 1);
}

/* The arguments of the server that runs, for execv(); to be freed. */
static char **split_command(const struct running *running)
{
	size_t count = 0;
	size_t used = 0;
	char **arguments;

	for (size_t i = 0; i < running->command_bytes; i++) {
		count += running->command[i] == '\0';
	}
	arguments = calloc(count + 1, sizeof(*arguments));
	for (size_t at = 0; arguments != NULL && used < count;
		at += strlen(running->command + at) + 1) {
		arguments[used++] = running->command + at;
	}
	return arguments;
}

/* A descriptor that the new program gets, and its number in that variable. */
static int leave_open(int fd, const char *variable)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", fd);
	return fcntl(fd, F_SETFD, 0) < 0 ? -1 : setenv(variable, number, 1);
}

/* In the new process, with what the server has offered. Returns only when it cannot be started,
 * with the reason. */
static int become(const int files[OFFER_FILES], const json_t *offer, int errors,
	const char *program, char **arguments)
{
	/* Which stream of the journal its standard error is; that of this process is another. */
	const char *journal = json_string_value(json_object_get(offer, "journal"));
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDOUT_FILENO) < 0 ||
		dup2(errors, STDERR_FILENO) < 0 || fchdir(files[OFFER_FOLDER]) < 0 ||
		leave_open(files[OFFER_CHANNEL], "GMBLOCK_UPGRADE_FD") < 0 ||
		leave_open(files[OFFER_ERRORS], "GMBLOCK_UPGRADE_STDERR") < 0 ||
		unsetenv("JOURNAL_STREAM") < 0 ||
		(journal != NULL && setenv("GMBLOCK_UPGRADE_JOURNAL", journal, 1) < 0)) {
		return errno;
	}
	execvp(program, arguments);
	return errno;
}

/* As a process that is nobody's child but the first one's: the service manager supervises only its
 * own. */
static int start_process(const int files[OFFER_FILES], const json_t *offer, int errors,
	const char *program, char **arguments, struct error *error)
{
	int report[2];
	int code = 0;
	pid_t pid;

	if (pipe2(report, O_CLOEXEC) < 0) {
		return error_set(error, -errno, "cannot start a process: %s", strerror(errno));
	}
	pid = fork();
	if (pid == 0) {
		(void)setsid();
		if (fork() == 0) {
			code = become(files, offer, errors, program, arguments);
			(void)!write(report[1], &code, sizeof(code));
		}
		_exit(0);
	}
	close(report[1]);
	if (pid > 0) {
		(void)waitpid(pid, NULL, 0);
		/* Closed when the program has been started. */
		if (read(report[0], &code, sizeof(code)) == (ssize_t)sizeof(code)) {
			char end;

			/* The process has gone, with its end of what the server has offered. */
			(void)!read(report[0], &end, sizeof(end));
		} else {
			code = 0;
		}
	} else {
		code = errno;
	}
	close(report[0]);
	return code == 0 ? 0
			 : error_set(error, -code, "cannot start %s: %s", program, strerror(code));
}

/* What the new process writes there is never waited for: it may not be read before its end. */
static int listen_to_it(struct said *said, int errors, struct error *error)
{
	if (pipe2(said->pipe, O_CLOEXEC) < 0 || fcntl(said->pipe[0], F_SETFL, O_NONBLOCK) < 0 ||
		fcntl(said->pipe[1], F_SETFL, O_NONBLOCK) < 0) {
		return error_set(error, -errno, "cannot start a process: %s", strerror(errno));
	}
	said->errors = fcntl(errors, F_DUPFD_CLOEXEC, 0);
	return 0;
}

/* Passes on what it has said to where the server writes, and shows it when it has failed. */
static void pass_on(struct said *said, bool has_failed)
{
	char text[SAID_BYTES_MAX + 1];
	char shown[4 * 512];
	ssize_t got;
	size_t used = 0;
	char *rest = text;
	char *line;

	while (said->pipe[0] >= 0 && used < SAID_BYTES_MAX &&
		(got = read(said->pipe[0], text + used, SAID_BYTES_MAX - used)) > 0) {
		used += (size_t)got;
	}
	text[used] = '\0';
	if (used > 0 && said->errors >= 0) {
		(void)!write(said->errors, text, used);
	}
	for (int i = 0; has_failed && i < SAID_LINES_MAX && (line = strsep(&rest, "\n")) != NULL;) {
		if (line[0] != '\0') {
			fprintf(stderr, "gmblock %s: the new process said: %s\n", name,
				log_escape_sentence(shown, sizeof(shown), line));
			i++;
		}
	}
	for (int i = 0; i < 2; i++) {
		if (said->pipe[i] >= 0) {
			close(said->pipe[i]);
		}
	}
	if (said->errors >= 0) {
		close(said->errors);
	}
}

static int start_new(struct control_connection *connection, const struct running *running,
	char **command, struct said *said, struct error *error)
{
	char **arguments = command != NULL ? command : split_command(running);
	int files[OFFER_FILES];
	json_t *offer;
	int rc;

	if (arguments == NULL) {
		return error_set(error, -ENOMEM, "not enough memory");
	}
	if (command == NULL) {
		/* A pipe or a lock of who runs this command must not stay open in the server. */
		(void)close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
	}
	rc = control_receive_files(connection, ANSWER_MS, &offer, files, OFFER_FILES, error);
	if (rc == 0) {
		rc = listen_to_it(said, files[OFFER_ERRORS], error);
		if (rc == 0) {
			rc = start_process(files, offer, said->pipe[1],
				command != NULL ? command[0] : running->program, arguments, error);
		}
		json_decref(offer);
		for (int i = 0; i < OFFER_FILES; i++) {
			close(files[i]);
		}
	}
	if (arguments != command) {
		free(arguments);
	}
	return rc;
}

static long long number(const json_t *result, const char *key)
{
	return (long long)json_integer_value(json_object_get(result, key));
}

static int print_result(const json_t *result)
{
	long long ended = number(result, "connections_ended");
	char text[400];

	snprintf(text, sizeof(text),
		"process %lld serves now; connections passed: %lld, ended: %lld; pause: "
		"%.1f ms\n%s",
		number(result, "pid"), number(result, "connections"), ended,
		(double)number(result, "pause_us") / 1e3,
		ended == 0
			? ""
			: "those that ended speak gmb or push, have TLS whose records the server "
			  "makes, or stood still: their clients must connect again\n");
	return cli_print(text);
}

/* Whether the file of the program that runs is another one now. 0 or 1, or a negative errno. */
static int is_replaced(const char *path, struct error *error)
{
	struct control_connection *connection;
	struct running running = { 0 };
	/* Any command that changes nothing: it is the process that is looked at. */
	int rc = control_connect(path, "counters", NULL, CONTROL_TIMEOUT_MS, &connection, error);

	if (rc < 0) {
		return rc;
	}
	rc = find_running(connection, &running, error);
	control_disconnect(connection);
	return rc < 0 ? rc : running.is_replaced;
}

/* command: of the new process; NULL: that of the old one. */
static int upgrade(const char *path, char **command, struct error *error)
{
	struct control_connection *connection = NULL;
	struct running running = { 0 };
	struct said said = { .pipe = { -1, -1 }, .errors = -1 };
	json_t *result = NULL;
	int status = CLI_OK;
	int rc = control_connect(path, "upgrade", NULL, CONTROL_TIMEOUT_MS, &connection, error);

	if (rc == 0) {
		rc = check_unit(connection, error);
	}
	if (rc == 0) {
		rc = check_user(connection, error);
	}
	if (rc == 0 && command == NULL) {
		rc = find_running(connection, &running, error);
	}
	if (rc == 0 && command == NULL) {
		rc = read_command(&running, error);
	}
	if (rc == 0) {
		rc = start_new(connection, &running, command, &said, error);
	}
	while (rc == 0 && (rc = control_receive(connection, ANSWER_MS, &result, error)) > 0) {
		json_decref(result);
		rc = 0;
	}
	if (rc == 0) {
		status = print_result(result);
		json_decref(result);
	}
	control_disconnect(connection);
	free(running.command);
	if (rc < 0) {
		status = cli_failure(name, error);
	}
	pass_on(&said, rc < 0);
	return status;
}

int cmd_upgrade(int argc, char **argv)
{
	bool if_replaced = false;
	const char *server = NULL;
	const struct cli_option options[] = {
		{ "if-replaced", .flag = &if_replaced },
		{ "server", .text = &server },
	};
	const struct cli_command parser = { name, help, options, ARRAY_COUNT(options), NULL };
	char path[STATS_PATH_BYTES];
	struct error error = { 0 };
	char **command = NULL;
	int operands = argc;
	int status;

	for (int i = 1; i < argc && command == NULL; i++) {
		if (strcmp(argv[i], "--") == 0) {
			operands = i;
			command = &argv[i + 1];
		}
	}
	if (command != NULL && command[0] == NULL) {
		return cli_usage_error(name, "a program is needed behind --");
	}
	status = cli_parse(&parser, operands, argv);
	if (status == CLI_GO_ON) {
		status = cli_server(name, operands, argv, &server);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	status = stats_find(server, path, &error);
	if (status == 0) {
		status = if_replaced ? is_replaced(path, &error) : 1;
	}
	if (status < 0) {
		return cli_failure(name, &error);
	}
	return status > 0 ? upgrade(path, command, &error) : CLI_OK;
}
