// SPDX-License-Identifier: Apache-2.0
/*
 * Signal handlers that interrupt calls on the pair, and make calls themselves.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/compiler.h"
#include "semantics.h"

enum {
	RUNS = 300, /* of a handler */
	FORKS = 20,
	PERIOD_US = 200,
	FORK_PERIOD_US = 3000,
};

static volatile sig_atomic_t runs;
static volatile sig_atomic_t wrong;

/* What a handler uses. */
static struct {
	struct pair own; /* connected to each other, and used by nobody else */
	const struct pair *used;
	int listener;
	struct sockaddr_un name;
	socklen_t name_bytes;
} use;

static void check(bool right)
{
	wrong += !right;
}

/* An open descriptor, which can be closed. */
static void check_made(int fd)
{
	check(fd >= 0 && fcntl(fd, F_GETFD) >= 0 && close(fd) == 0);
}

static void exchange(const struct pair *pair)
{
	char byte = 's';

	check(write(pair->client, &byte, 1) == 1 && read(pair->server, &byte, 1) == 1 &&
		byte == 's');
}

static void make_in_handler(int number)
{
	int saved = errno;
	int ends[2];
	int to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)number;
	check(connect(to, (struct sockaddr *)&use.name, use.name_bytes) == 0);
	check_made(accept(use.listener, NULL, NULL));
	check_made(to);
	check_made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	check_made(dup(use.listener));
	check_made(dup(use.used->client));
	check_made(fcntl(use.used->server, F_DUPFD_CLOEXEC, 0));
	check(pipe2(ends, O_CLOEXEC) == 0);
	check_made(ends[0]);
	check_made(ends[1]);
	exchange(&use.own);
	runs++;
	errno = saved;
}

static void fork_in_handler(int number)
{
	int saved = errno;
	int status = -1;
	char byte;
	pid_t pid = fork();

	(void)number;
	if (pid == 0) {
		_exit(write(use.own.client, "c", 1) == 1 ? 0 : 1);
	}
	check(waitpid(pid, &status, 0) == pid && status == 0);
	check(status != 0 || (read(use.own.server, &byte, 1) == 1 && byte == 'c'));
	runs++;
	errno = saved;
}

static void prepare(const struct pair *pair)
{
	use.used = pair;
	connect_pair(&use.own);
	warm(&use.own);
	use.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	use.name = (struct sockaddr_un){ .sun_family = AF_UNIX };
	use.name_bytes = sizeof(use.name);
	must(bind(use.listener, (struct sockaddr *)&use.name, sizeof(sa_family_t)) == 0 &&
			listen(use.listener, 1) == 0 &&
			getsockname(use.listener, (struct sockaddr *)&use.name, &use.name_bytes) ==
				0,
		"a listener with a name of its own");
}

static void clean_up(void)
{
	close(use.own.client);
	close(use.own.server);
	close(use.listener);
}

/* Uses the pair until the handler has run so often. */
static void interrupt_again_and_again(
	const struct pair *pair, void (*handler)(int number), int times, int period_us)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	struct itimerval period = { .it_interval.tv_usec = period_us,
		.it_value.tv_usec = period_us };
	struct itimerval never = { 0 };

	runs = 0;
	must(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
	must(setitimer(ITIMER_REAL, &period, NULL) == 0, "timer");
	while (runs < times) {
		exchange(pair);
	}
	must(setitimer(ITIMER_REAL, &never, NULL) == 0, "timer");
	must(signal(SIGALRM, SIG_DFL) == handler, "the handler");
}

static void handlers(struct pair *pair)
{
	wrong = 0;
	prepare(pair);
	interrupt_again_and_again(pair, make_in_handler, RUNS, PERIOD_US);
	clean_up();
	show("wrong", wrong);
}

/* Each time with connections that have not been given back. */
static void handlers_fork(struct pair *pair)
{
	wrong = 0;
	for (int i = 0; i < FORKS; i++) {
		struct pair fresh;

		connect_pair(&fresh);
		warm(&fresh);
		prepare(pair);
		interrupt_again_and_again(&fresh, fork_in_handler, 1, FORK_PERIOD_US);
		clean_up();
		close(fresh.client);
		close(fresh.server);
	}
	show("wrong", wrong);
}

/* A handler that is there for one signal, and what the other calls say of it. */
static void handlers_once(struct pair *pair)
{
	struct sigaction action = { .sa_handler = make_in_handler, .sa_flags = (int)SA_RESETHAND };
	struct sigaction found;

	runs = 0;
	wrong = 0;
	prepare(pair);
	must(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
	must(sigaction(SIGALRM, NULL, &found) == 0, "sigaction");
	show("handler", found.sa_handler == make_in_handler);
	show("flags",
		(found.sa_flags & (int)SA_RESETHAND) != 0 && (found.sa_flags & SA_SIGINFO) == 0);
	raise(SIGALRM);
	must(sigaction(SIGALRM, NULL, &found) == 0, "sigaction");
	show("default", found.sa_handler == SIG_DFL);
	show("before", sysv_signal(SIGALRM, make_in_handler) == SIG_DFL);
	must(sigaction(SIGALRM, NULL, &found) == 0, "sigaction");
	show("flags", (found.sa_flags & (int)SA_RESETHAND) != 0 &&
			      (found.sa_flags & (SA_NODEFER | SA_RESTART)) == SA_NODEFER);
	raise(SIGALRM);
	show("default", signal(SIGALRM, SIG_IGN) == SIG_DFL);
	show("ignored", signal(SIGALRM, make_in_handler) == SIG_IGN);
	must(sigaction(SIGALRM, NULL, &found) == 0, "sigaction");
	show("restarts", (found.sa_flags & SA_RESTART) != 0 && found.sa_handler == make_in_handler);
	raise(SIGALRM);
	show("handler", signal(SIGALRM, SIG_DFL) == make_in_handler);
	show("no such signal", (long)(signal(NSIG + 1, SIG_DFL) == SIG_ERR));
	show("runs", runs);
	show("wrong", wrong);
	clean_up();
}

/* --- all of them ------------------------------------------------------------------------------ */

const struct semantics_case signal_cases[] = {
	{ "handlers", handlers },
	{ "handlers-fork", handlers_fork },
	{ "handlers-once", handlers_once },
	{ NULL, NULL },
};
