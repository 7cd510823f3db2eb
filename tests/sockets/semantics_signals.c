// SPDX-License-Identifier: Apache-2.0
/*
 * Signal handlers that interrupt calls on the pair, and make calls themselves.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"
#include "semantics.h"

enum {
	RUNS = 300, /* of a handler */
	FORKS = 20,
	PERIOD_US = 200,
	FORK_PERIOD_US = 3000,
	EXEC_PERIOD_NS = 300000,
	EXEC_COPIES = 100,
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

/* Uses the pair until the handler has run so often. The timer expires once and is set again here: a
 * periodic one would be pending at the end of each handler that takes longer than the period, and
 * nothing but the handler would run. The count is read once in a round: a handler that runs within
 * the round must not have the timer set once more than it is waited for. */
static void interrupt_again_and_again(
	const struct pair *pair, void (*handler)(int number), int times, int period_us)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	struct itimerval once = { .it_value.tv_usec = period_us };

	runs = 0;
	must(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
	for (int set = 0, run = 0; run < times; run = runs) {
		if (set == run) {
			set++;
			must(setitimer(ITIMER_REAL, &once, NULL) == 0, "timer");
		}
		exchange(pair);
	}
	must(signal(SIGALRM, SIG_DFL) == handler, "the handler");
}

CASE(handlers)
{
	wrong = 0;
	prepare(pair);
	interrupt_again_and_again(pair, make_in_handler, RUNS, PERIOD_US);
	clean_up();
	show("wrong", wrong);
}

/* Each time with connections that have not been given back. */
CASE(handlers_fork)
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
CASE(handlers_once)
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

static volatile sig_atomic_t nested;

static void count_nested(int number)
{
	nested++;
}

/* As the handler of a crash does that sets itself a limit. */
static void raise_in_handler(int number)
{
	int before = nested;

	check(raise(SIGWINCH) == 0 && nested == before + 1);
	runs++;
}

/* For this thread. */
static timer_t start_timer(int number, long period_ns)
{
	struct sigevent by = {
		.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = number, ._sigev_un._tid = gettid()
	};
	struct itimerspec period = { .it_interval.tv_nsec = period_ns,
		.it_value.tv_nsec = period_ns };
	timer_t timer;

	must(timer_create(CLOCK_MONOTONIC, &by, &timer) == 0 &&
			timer_settime(timer, 0, &period, NULL) == 0,
		"timer");
	return timer;
}

/* A signal that only the mask of the call lets in, which does not wait. */
CASE(handlers_masked)
{
	struct pollfd one = { .fd = pair->server, .events = POLLIN };
	const struct timespec now = { 0 };
	sigset_t none;
	sigset_t winch;
	sigset_t before;

	nested = 0;
	sigemptyset(&none);
	sigemptyset(&winch);
	sigaddset(&winch, SIGWINCH);
	must(signal(SIGWINCH, count_nested) != SIG_ERR, "handler");
	must(pthread_sigmask(SIG_BLOCK, &winch, &before) == 0 && raise(SIGWINCH) == 0, "pending");
	show("ppoll", ppoll(&one, 1, &now, &none));
	show("runs", nested);
	show("ppoll", ppoll(&one, 1, &now, &none));
	must(raise(SIGWINCH) == 0, "pending");
	show("runs", nested);
	put(pair->client, "x");
	arrived(pair->server, 1);
	show("ready", ppoll(&one, 1, &now, &none));
	show("runs", nested);
	must(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0, "mask");
	show("runs", nested);
	must(signal(SIGWINCH, SIG_DFL) == count_nested, "handler");
}

/* Handlers that interrupt one that cannot wait. */
CASE(handlers_nest)
{
	timer_t timer;

	runs = 0;
	wrong = 0;
	must(signal(SIGTRAP, raise_in_handler) != SIG_ERR &&
			signal(SIGWINCH, count_nested) != SIG_ERR,
		"handlers");
	timer = start_timer(SIGTRAP, PERIOD_US * 1000);
	while (runs < RUNS) {
		exchange(pair);
	}
	must(timer_delete(timer) == 0, "timer");
	must(signal(SIGTRAP, SIG_DFL) == raise_in_handler &&
			signal(SIGWINCH, SIG_DFL) == count_nested,
		"handlers");
	show("wrong", wrong);
}

/* --- processes that handlers make, or that end them ------------------------------------------- */

static pid_t forked;

/* Parent and child go on where they were. */
static void fork_and_return(int number)
{
	forked = fork();
	check(write(use.used->client, "f", 1) == 1);
}

CASE(handlers_fork_and_return)
{
	struct sigaction action = { .sa_handler = fork_and_return, .sa_flags = SA_RESTART };
	struct itimerval soon = { .it_value.tv_usec = SHORT_MS * 1000 };
	int status = -1;
	char byte = 0;

	use.used = pair;
	wrong = 0;
	fflush(stdout);
	must(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
	must(setitimer(ITIMER_REAL, &soon, NULL) == 0, "timer");
	check(read(pair->server, &byte, 1) == 1 && byte == 'f');
	if (forked == 0) {
		_exit(wrong);
	}
	must(waitpid(forked, &status, 0) == forked, "wait");
	must(signal(SIGALRM, SIG_DFL) == fork_and_return, "the handler");
	show("wrong", wrong);
	show("status", status);
}

/* The signal may come just before the program is replaced, whose handler cannot run any more. */
static void replace_self(const struct pair *pair)
{
	sigset_t none;

	sigemptyset(&none);
	must(sigprocmask(SIG_SETMASK, &none, NULL) == 0, "mask");
	for (int i = 0; i < EXEC_COPIES; i++) { /* each of them is looked at */
		must(fcntl(pair->server, F_DUPFD_CLOEXEC, 0) >= 0, "copy");
	}
	must(signal(SIGWINCH, count_nested) != SIG_ERR, "handler");
	(void)start_timer(SIGWINCH, EXEC_PERIOD_NS);
	execlp("grep", "grep", "-q", "^SigBlk:.*[^0[:space:]]", "/proc/self/status", (char *)NULL);
}

CASE(handlers_exec)
{
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		replace_self(pair);
		_exit(2);
	}
	must(waitpid(pid, &status, 0) == pid, "wait");
	show("none is blocked", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}
