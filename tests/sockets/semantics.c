// SPDX-License-Identifier: Apache-2.0
/*
 * What the calls on a pair of connected TCP sockets do, one line a result. The same program prints
 * the same lines with and without libclan-sockets.so in front of the C library.
 *
 *     semantics MODE [CASE]      MODE: once, dup, fork or thread
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/compiler.h"
#include "semantics.h"

static const char *case_name;
static int line_number;

void show(const char *what, long result)
{
	int saved = errno;

	printf("%s.%d %s = %ld%s%s\n", case_name, ++line_number, what, result,
		result < 0 ? " " : "", result < 0 ? strerrorname_np(saved) : "");
}

void show_bytes(const char *what, const void *bytes, long length)
{
	int saved = errno;

	printf("%s.%d %s = %ld%s%s \"%.*s\"\n", case_name, ++line_number, what, length,
		length < 0 ? " " : "", length < 0 ? strerrorname_np(saved) : "",
		length > 0 ? (int)length : 0, (const char *)bytes);
}

void must(bool condition, const char *what)
{
	if (!condition) {
		fprintf(stderr, "%s: %s: %s\n", case_name, what, strerror(errno));
		abort();
	}
}

void set_nonblocking(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	must(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0, "F_SETFL");
}

static int make_socket(int level, int option)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int on = 1;

	must(fd >= 0, "socket");
	must(option == 0 || setsockopt(fd, level, option, &on, sizeof(on)) == 0, "option");
	return fd;
}

void connect_pair(struct pair *pair)
{
	connect_pair_with(pair, 0, 0);
}

void connect_pair_with(struct pair *pair, int level, int option)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof(address);
	int listener = make_socket(level, option);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0, "bind");
	must(listen(listener, 1) == 0, "listen");
	must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "name");
	pair->client = make_socket(level, option);
	must(connect(pair->client, (struct sockaddr *)&address, length) == 0, "connect");
	pair->server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	must(pair->server >= 0, "accept");
	close(listener);
}

void warm(const struct pair *pair)
{
	char byte = 'w';

	for (int i = 0; i < ROUNDS; i++) {
		must(write(pair->client, &byte, 1) == 1, "write");
		must(read(pair->server, &byte, 1) == 1, "read");
		must(write(pair->server, &byte, 1) == 1, "write");
		must(read(pair->client, &byte, 1) == 1, "read");
	}
}

void put(int fd, const char *text)
{
	must(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "put");
}

short wait_ready(int fd, short events, int timeout_ms)
{
	struct pollfd one = { .fd = fd, .events = events };

	return (short)(poll(&one, 1, timeout_ms) > 0 ? one.revents : 0);
}

void arrived(int fd, int bytes)
{
	int now = 0;

	while (ioctl(fd, FIONREAD, &now) == 0 && now < bytes) {
		(void)sched_yield();
	}
}

/* --- running ---------------------------------------------------------------------------------- */

enum { CASES_MAX = 100, NAME_BYTES = 40 };

static struct semantics_case {
	char name[NAME_BYTES];
	void (*run)(struct pair *pair);
} cases[CASES_MAX];
static size_t case_count;

void case_add(const char *name, void (*run)(struct pair *pair))
{
	struct semantics_case *added = &cases[case_count++];

	must(case_count <= CASES_MAX && strlen(name) < NAME_BYTES, name);
	for (size_t i = 0; name[i] != '\0'; i++) {
		added->name[i] = name[i] == '_' ? '-' : name[i];
	}
	added->run = run;
}

static int only(int fd, int copy)
{
	must(copy >= 0, "dup");
	close(fd);
	return copy;
}

static void run_case(const struct semantics_case *one, const char *mode)
{
	struct pair pair;

	connect_pair(&pair);
	warm(&pair);
	if (strcmp(mode, "dup") == 0) {
		pair.client = only(pair.client, dup(pair.client));
		pair.server = only(pair.server, fcntl(pair.server, F_DUPFD_CLOEXEC, 50));
	} else if (strcmp(mode, "fork") == 0) {
		int go[2];
		int status;
		char byte;
		pid_t pid;

		must(pipe(go) == 0, "pipe");
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			close(go[1]);
			must(read(go[0], &byte, 1) == 0, "the parent has closed its own");
			close(go[0]);
			warm(&pair);
			one->run(&pair);
			exit(0);
		}
		close(pair.client);
		close(pair.server);
		close(go[0]);
		close(go[1]);
		must(waitpid(pid, &status, 0) == pid && status == 0, "child");
		return;
	}
	one->run(&pair);
	if (pair.client >= 0) {
		close(pair.client);
	}
	if (pair.server >= 0) {
		close(pair.server);
	}
}

struct job {
	const struct semantics_case *one;
	const char *mode;
};

static void *run_job(void *argument)
{
	const struct job *job = argument;
	sigset_t alarm;

	/* Only this thread is interrupted. */
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
	run_case(job->one, job->mode);
	return NULL;
}

static void run_in_mode(const struct semantics_case *one, const char *mode)
{
	struct job job = { .one = one, .mode = mode };
	sigset_t alarm;
	pthread_t thread;

	case_name = one->name;
	line_number = 0;
	if (strcmp(mode, "thread") == 0) {
		sigemptyset(&alarm);
		sigaddset(&alarm, SIGALRM);
		pthread_sigmask(SIG_BLOCK, &alarm, NULL);
		must(pthread_create(&thread, NULL, run_job, &job) == 0, "thread");
		pthread_join(thread, NULL);
	} else {
		run_job(&job);
	}
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		return 2;
	}
	for (size_t i = 0; i < case_count; i++) {
		if (argc == 2 || strcmp(argv[2], cases[i].name) == 0) {
			run_in_mode(&cases[i], argv[1]);
		}
	}
	return 0;
}
