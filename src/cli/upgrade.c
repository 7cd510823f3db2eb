// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/work.h"
#include "cli/cli.h"
#include "control/control.h"
#include "server/upgrade/record.h"
#include "tools/show.h"

/* Linux 6.5: returns a pidfd of a socket's peer. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static const char name[] = "upgrade";

static const char help[] =
	"Usage: gmblock upgrade [--dry-run] [--all-or-nothing] [--if-replaced] [--server SERVER]\n"
	"                       [-- PROGRAM ARGUMENT...]\n"
	"Replaces a running server on this machine with a new process, without errors for its\n"
	"clients: the new process takes over connections, disks and addresses. The new process\n"
	"runs the program file of this command with the arguments of the old process, or\n"
	"PROGRAM with each ARGUMENT. If the new process exits or is not ready within 10 seconds,\n"
	"the old process continues to serve.\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock upgrade\n"
			    "  gmblock upgrade --dry-run\n"
			    "  gmblock upgrade --if-replaced nbd://localhost/\n"
			    "\n"
			    "Exit status: 1 failure, 2 usage error.\n";

enum {
	ANSWER_MS = 60000,
	OFFER_FILES = 3,
	SAID_BYTES_MAX = 4096, /* limit of the new process's messages */
	SAID_LINES_MAX = 10,
};

/* Descriptors that the server offers: the connection over which the new process receives
 * everything, the stream for the new process's messages, and the server's working directory, which
 * is not used here. */
enum offer { OFFER_CHANNEL, OFFER_ERRORS, OFFER_FOLDER };

/* The server's process, as the kernel reports it. Statements of the process itself are not used,
 * because a compromised server could then choose the program that is run here, possibly by root. */
struct running {
	pid_t pid;
	uid_t user;
	int pidfd;		     /* -1: the process has ended */
	struct server_record record; /* how the server was started; can be empty */
};

/* The options of the caller. */
struct wish {
	char **command; /* command of the new process; NULL: the old process's */
	bool is_dry;
	bool keeps_all; /* the upgrade may not end any connection */
};

/* The messages of the new process before it takes over the server's standard error. */
struct said {
	int pipe[2]; /* -1: closed */
	int errors;  /* the server's standard error, or -1 */
};

/* Returns the program to run unless the caller names one: this program's file. */
static int own_program(char program[PATH_MAX], struct error *error)
{
	ssize_t len = readlink("/proc/self/exe", program, PATH_MAX - 1);

	if (len < 0) {
		return error_set(error, -errno,
			"cannot determine the file of this program: %s; give the program and its "
			"arguments after --",
			strerror(errno));
	}
	program[len] = '\0';
	return 0;
}

/* Returns 1 if the process runs another program file than this process, 0 if not, or a negative
 * errno. */
static int runs_another(pid_t pid, struct error *error)
{
	char path[64];
	struct stat theirs;
	struct stat ours;

	snprintf(path, sizeof(path), "/proc/%ld/exe", (long)pid);
	if (stat(path, &theirs) < 0 || stat("/proc/self/exe", &ours) < 0) {
		return error_set(error, -errno, "cannot determine the program of process %ld: %s",
			(long)pid, strerror(errno));
	}
	return theirs.st_dev != ours.st_dev || theirs.st_ino != ours.st_ino;
}

/* --- identity of the server ------------------------------------------------------------------ */

/* Returns a pidfd of the process at the other end of the socket, or -1 if that process has ended.
 * SO_PEERPIDFD always refers to that process. A process number may belong to another process after
 * its end, so pid is used only if the kernel does not have SO_PEERPIDFD. */
static int open_process(int socket, pid_t pid)
{
	int fd = -1;
	socklen_t bytes = sizeof(fd);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) == 0) {
		return fd;
	}
	return errno == ENOPROTOOPT ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static bool cli_upgrade_has_ended(const struct running *running)
{
	struct pollfd ends = { .fd = running->pidfd, .events = POLLIN };

	return running->pidfd < 0 || poll(&ends, 1, 0) != 0;
}

/* Records the peer of a socket, as the kernel reports it. */
static int take_identity(
	struct running *running, int socket, const struct ucred *peer, struct error *error)
{
	if (peer->pid == 0) {
		return error_set(error, -ESRCH,
			"the server process is in another PID namespace; run this command in that "
			"namespace");
	}
	running->pid = peer->pid;
	running->user = peer->uid;
	running->pidfd = open_process(socket, peer->pid);
	return 0;
}

/* Checks that the same process listens on the control socket and has created the channel, the
 * socket that it offers to the new process. */
static int cli_upgrade_identify(const struct control_connection *connection, int channel,
	struct running *running, struct error *error)
{
	pid_t listener = control_connection_peer(connection).pid;
	struct ucred peer = { 0 };
	socklen_t bytes = sizeof(peer);

	if (getsockopt(channel, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0) {
		peer.pid = 0;
	}
	if (peer.pid != 0 && peer.pid != listener) {
		return error_set(error, -EPERM,
			"process %ld listens on the control socket, but process %ld replied; "
			"this is not the server's own socket",
			(long)listener, (long)peer.pid);
	}
	return take_identity(running, channel, &peer, error);
}

/* Checks that the caller may replace the server. A server started by root can have another user
 * (--user), which its new process will also have. */
static int cli_upgrade_check_user(const struct running *running, struct error *error)
{
	bool is_of_root = geteuid() == 0 && running->record.text != NULL;

	return is_of_root || running->user == geteuid()
		       ? 0
		       : error_set(error, -EPERM,
				 "process %ld belongs to another user (%u); run this command as "
				 "that user",
				 (long)running->pid, (unsigned int)running->user);
}

/* Reads the record of how the server was started. If the caller gave a command, only the record's
 * working directory is used, so the record can be missing. */
static int find_record(struct running *running, bool has_command, struct error *error)
{
	struct error reason;
	int code = server_record_read(running->pid, &running->record, &reason);
	int rc = cli_upgrade_check_user(running, error);

	if (cli_upgrade_has_ended(running)) {
		return error_set(error, -ESRCH, "process %ld has ended", (long)running->pid);
	}
	return rc < 0 || code == 0 || has_command
		       ? rc
		       : error_set(error, code,
				 "the arguments of process %ld are not recorded: %s; give the "
				 "program and its arguments after --",
				 (long)running->pid, reason.text);
}

/* --- units ----------------------------------------------------------------------------------- */

/* Stores the control group of a process in the service manager's hierarchy; "" if it is not in a
 * group. */
static void cli_upgrade_find_group(pid_t pid, char *out, size_t out_bytes)
{
	char path[64];
	char line[PATH_MAX];
	FILE *file;

	out[0] = '\0';
	snprintf(path, sizeof(path), "/proc/%ld/cgroup", (long)pid);
	file = fopen(path, "re");
	while (out[0] == '\0' && file != NULL && fgets(line, sizeof(line), file) != NULL) {
		/* A line has the form NUMBER:CONTROLLERS:PATH. The service manager's own hierarchy
		 * is listed before the unified one. */
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

/* Rejects a server that runs as a service. The new process stays in the control group of this
 * command, so a supervised server would leave its unit: it would have the caller's rights, and the
 * service manager would not restart it. */
static int check_unit(const struct control_connection *connection, struct error *error)
{
	pid_t pid = control_connection_peer(connection).pid;
	char theirs[PATH_MAX];
	char ours[PATH_MAX];
	const char *unit;

	cli_upgrade_find_group(pid, theirs, sizeof(theirs));
	cli_upgrade_find_group(getpid(), ours, sizeof(ours));
	unit = strrchr(theirs, '/');
	if (unit == NULL || strcmp(theirs, ours) == 0 || strlen(unit) <= strlen("/.service") ||
		strcmp(unit + strlen(unit) - strlen(".service"), ".service") != 0) {
		return 0;
	}
	return error_set(error, -EPERM,
		"process %ld belongs to the unit %s, and a new process would not; use \"systemctl "
		"reload %s\", with ExecReload= as in the packaged unit",
		(long)pid, unit + 1, unit + 1);
}

/* Leaves a descriptor open for the new program, and sets the variable to its number. */
static int leave_open(int fd, const char *variable)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", fd);
	return fcntl(fd, F_SETFD, 0) < 0 ? -1 : setenv(variable, number, 1);
}

/* The program to run, and how. It is trusted, because it comes from the caller or from the record
 * of the server's start. */
struct start {
	const char *folder; /* NULL: the working directory of this command */
	const char *program;
	char **arguments;
	bool keeps_all;
};

/* Runs in the new process, with the descriptors that the server has offered. Returns an errno if
 * the program cannot be started; otherwise it does not return. */
static int cli_upgrade_become(
	const int files[OFFER_FILES], const json_t *offer, int errors, const struct start *start)
{
	/* The server's standard error may be a stream of the journal, and then has another
	 * JOURNAL_STREAM than this process. */
	const char *journal = json_string_value(json_object_get(offer, "journal"));
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDOUT_FILENO) < 0 ||
		dup2(errors, STDERR_FILENO) < 0 ||
		(start->folder != NULL && chdir(start->folder) < 0) ||
		leave_open(files[OFFER_CHANNEL], "GMBLOCK_UPGRADE_FD") < 0 ||
		leave_open(files[OFFER_ERRORS], "GMBLOCK_UPGRADE_STDERR") < 0 ||
		(start->keeps_all ? setenv("GMBLOCK_UPGRADE_ALL", "1", 1)
				  : unsetenv("GMBLOCK_UPGRADE_ALL")) < 0 ||
		unsetenv("JOURNAL_STREAM") < 0 ||
		(journal != NULL && setenv("GMBLOCK_UPGRADE_JOURNAL", journal, 1) < 0)) {
		return errno;
	}
	execvp(start->program, start->arguments);
	return errno;
}

/* Starts the new process as a child of process 1, because the service manager supervises only its
 * own children. */
static int start_process(const int files[OFFER_FILES], const json_t *offer, int errors,
	const struct start *start, struct error *error)
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
		pid = fork();
		if (pid <= 0) {
			code = pid < 0 ? errno : cli_upgrade_become(files, offer, errors, start);
			(void)!write(report[1], &code, sizeof(code));
		}
		_exit(0);
	}
	code = pid < 0 ? errno : 0;
	close(report[1]);
	if (pid > 0) {
		(void)waitpid(pid, NULL, 0);
		/* A successful start closes the pipe without writing. */
		if (read(report[0], &code, sizeof(code)) == (ssize_t)sizeof(code)) {
			char end;

			/* Waits until the child has ended, which also closes its copies of the
			 * offered descriptors. */
			(void)!read(report[0], &end, sizeof(end));
		} else {
			code = 0;
		}
	}
	close(report[0]);
	return code == 0 ? 0
			 : error_set(error, -code, "cannot start %s: %s%s", start->program,
				   strerror(code),
				   code == ENOENT && strchr(start->program, '/') == NULL
					   ? "; the first word after -- is the program"
					   : "");
}

/* Creates the pipe for the new process's messages. Both ends are non-blocking: the pipe is read
 * only after that process serves or has failed, and until then the process must not wait for room
 * in it. */
static int listen_to_it(struct said *said, int errors, struct error *error)
{
	if (pipe2(said->pipe, O_CLOEXEC) < 0 || fcntl(said->pipe[0], F_SETFL, O_NONBLOCK) < 0 ||
		fcntl(said->pipe[1], F_SETFL, O_NONBLOCK) < 0) {
		return error_set(error, -errno, "cannot start a process: %s", strerror(errno));
	}
	said->errors = fcntl(errors, F_DUPFD_CLOEXEC, 0);
	return 0;
}

static void upgrade_wake(int number)
{
}

/* Writes for at most a second, because the reader of the stream might have stopped, or be the
 * server itself. A periodic signal interrupts the write; if one arrives before the write, the next
 * one interrupts it. */
static void write_for_a_second(int fd, const char *text, size_t bytes)
{
	const struct sigaction action = { .sa_handler = upgrade_wake }; /* without SA_RESTART */
	const struct itimerval second = { .it_value.tv_sec = 1, .it_interval.tv_sec = 1 };
	const struct itimerval never = { 0 };
	sigset_t alarm;

	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	if (sigaction(SIGALRM, &action, NULL) == 0 && sigprocmask(SIG_UNBLOCK, &alarm, NULL) == 0 &&
		setitimer(ITIMER_REAL, &second, NULL) == 0) {
		(void)!write(fd, text, bytes);
		(void)setitimer(ITIMER_REAL, &never, NULL);
	}
}

/* Copies the new process's messages to the server's standard error, and also prints them here if
 * the new process failed. */
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
		write_for_a_second(said->errors, text, used);
	}
	for (int i = 0; has_failed && i < SAID_LINES_MAX && (line = strsep(&rest, "\n")) != NULL;) {
		if (line[0] != '\0') {
			fprintf(stderr, "gmblock %s: output of the new process: %s\n", name,
				log_escape_sentence(shown, sizeof(shown), line));
			i++;
		}
	}
	for (int i = 0; i < 2; i++) {
		if (said->pipe[i] >= 0) {
			close(said->pipe[i]);
		}
	}
	/* closed by a worker, because it came from the server, so closing it may block */
	dispose_fd(said->errors, (uid_t)-1, false);
}

static int start_new(const int files[OFFER_FILES], const json_t *offer,
	const struct running *running, const struct wish *wish, struct said *said,
	struct error *error)
{
	char **command = wish->command;
	char program[PATH_MAX];
	struct start start = {
		.folder = running->record.folder,
		.program = command != NULL ? command[0] : program,
		.arguments = command != NULL ? command : running->record.arguments,
		.keeps_all = wish->keeps_all,
	};
	int rc = command != NULL ? 0 : own_program(program, error);

	if (rc == 0 && command == NULL) {
		/* Descriptors of the caller, such as pipes and locks, must not stay open in the
		 * server. */
		(void)close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
	}
	rc = rc ?: listen_to_it(said, files[OFFER_ERRORS], error);
	return rc == 0 ? start_process(files, offer, said->pipe[1], &start, error) : rc;
}

/* Receives the server's offer, which has the descriptors of enum offer, and starts the new process
 * with these. */
static int take_offer(struct control_connection *connection, struct running *running,
	const struct wish *wish, struct said *said, struct error *error)
{
	int files[OFFER_FILES];
	json_t *offer;
	int rc = control_receive_files(connection, ANSWER_MS, &offer, files, OFFER_FILES, error);

	if (rc < 0) {
		return rc;
	}
	rc = cli_upgrade_identify(connection, files[OFFER_CHANNEL], running, error);
	rc = rc ?: find_record(running, wish->command != NULL, error);
	rc = rc ?: start_new(files, offer, running, wish, said, error);
	json_decref(offer);
	for (int i = 0; i < OFFER_FILES; i++) {
		dispose_fd(files[i], control_connection_peer(connection).uid, false);
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
		"process %lld is now serving; connections passed to it: %lld, ended: %lld; pause: "
		"%.1f ms\n%s",
		number(result, "pid"), number(result, "connections"), ended,
		(double)number(result, "pause_us") / 1e3,
		ended == 0 ? ""
			   : "the connections that ended used gmb, push or user-space TLS, or had "
			     "stalled: their clients must reconnect\n");
	return cli_print(text);
}

/* Returns 1 if the server runs another program file than this command, 0 if not, or a negative
 * errno. */
static int cli_upgrade_is_replaced(const char *path, struct error *error)
{
	struct control_connection *connection;
	/* The answer does not matter, only the process at the other end, so any command without
	 * side effects can be used. */
	int rc = control_connect(path, "counters", NULL, CONTROL_TIMEOUT_MS, &connection, error);

	if (rc < 0) {
		return rc;
	}
	rc = runs_another(control_connection_peer(connection).pid, error);
	control_disconnect(connection);
	return rc;
}

static int print_forecast(const json_t *result, pid_t pid)
{
	const char *ended = json_string_value(json_object_get(result, "ended"));
	long long handshakes = number(result, "handshakes");

	printf("process %ld can be replaced; connections that would be passed: %lld, ended: %lld\n",
		(long)pid, number(result, "connections"), number(result, "connections_ended"));
	if (ended != NULL && ended[0] != '\0') {
		printf("would end: ");
		print_peer_text(ended);
		printf("\n");
	}
	if (handshakes > 0) {
		printf("connections that have not chosen an export, and would end unless they "
		       "choose one in time: %lld\n",
			handshakes);
	}
	return cli_print("");
}

/* Makes the checks of an upgrade, on the server and here, without starting a process. */
static int forecast(struct control_connection *connection, struct running *running,
	const struct wish *wish, int *status_out, struct error *error)
{
	struct ucred peer = control_connection_peer(connection);
	json_t *result;
	int rc;

	rc = take_identity(running, control_connection_fd(connection), &peer, error);
	rc = rc ?: find_record(running, wish->command != NULL, error);
	rc = rc ?: control_receive_result(connection, CONTROL_TIMEOUT_MS, &result, error);
	if (rc == 0) {
		*status_out = print_forecast(result, peer.pid);
		json_decref(result);
	}
	return rc;
}

static int cli_upgrade_replace(struct control_connection *connection, struct running *running,
	const struct wish *wish, struct said *said, int *status_out, struct error *error)
{
	json_t *result;
	int rc = take_offer(connection, running, wish, said, error);

	rc = rc ?: control_receive_result(connection, ANSWER_MS, &result, error);
	if (rc == 0) {
		*status_out = print_result(result);
		json_decref(result);
	}
	return rc;
}

static int upgrade(const char *path, const struct wish *wish, struct error *error)
{
	struct control_connection *connection = NULL;
	struct running running = { .pidfd = -1 };
	struct said said = { .pipe = { -1, -1 }, .errors = -1 };
	int status = CLI_OK;
	int rc = (wish->is_dry ? control_connect : control_connect_for_files)(path, "upgrade",
		json_pack("{s:b, s:b}", "dry_run", wish->is_dry, "all_or_nothing", wish->keeps_all),
		CONTROL_TIMEOUT_MS, &connection, error);

	rc = rc ?: check_unit(connection, error);
	if (rc == 0) {
		rc = wish->is_dry ? forecast(connection, &running, wish, &status, error)
				  : cli_upgrade_replace(
					    connection, &running, wish, &said, &status, error);
	}
	control_disconnect(connection);
	server_record_fini(&running.record);
	if (running.pidfd >= 0) {
		close(running.pidfd);
	}
	if (rc < 0) {
		status = cli_failure(name, error);
	}
	pass_on(&said, rc < 0);
	return status;
}

struct upgrade_arguments {
	struct wish wish;
	bool if_replaced;
	const char *server;
};

#define AT(member) FIELD_IN(struct upgrade_arguments, member)

static const struct field fields[] = {
	{ "dry-run", NULL,
		"do not upgrade; print which connections would be passed or would end, with "
		"reasons, or why the server cannot be upgraded",
		.type = FIELD_FLAG, AT(wish.is_dry) },
	{ "all-or-nothing", NULL, "do not upgrade if a client connection would end",
		.type = FIELD_FLAG, AT(wish.keeps_all) },
	{ "if-replaced", NULL,
		"do nothing if the server already runs the program file of this command",
		.type = FIELD_FLAG, AT(if_replaced) },
	CLI_SERVER_OR_OPERAND(struct upgrade_arguments),
};

int cmd_upgrade(int argc, char **argv)
{
	struct upgrade_arguments arguments = { 0 };
	struct wish *wish = &arguments.wish;
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = &arguments };
	char path[STATS_PATH_BYTES];
	struct error error = { 0 };
	int operands = argc;
	int status;

	for (int i = 1; i < argc && wish->command == NULL; i++) {
		if (strcmp(argv[i], "--") == 0) {
			operands = i;
			wish->command = &argv[i + 1];
		}
	}
	if (wish->command != NULL && wish->command[0] == NULL) {
		return cli_usage_error(name, "give a program after --");
	}
	status = cli_parse(&command, operands, argv);
	if (status == CLI_GO_ON) {
		status = cli_server(name, operands, argv, &arguments.server);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	status = stats_find(arguments.server, path, &error);
	if (status == 0) {
		status = arguments.if_replaced ? cli_upgrade_is_replaced(path, &error) : 1;
	}
	if (status < 0) {
		return cli_failure(name, &error);
	}
	return status > 0 ? upgrade(path, wish, &error) : CLI_OK;
}
