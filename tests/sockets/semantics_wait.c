// SPDX-License-Identifier: Apache-2.0
/*
 * Waiting: poll(), select(), epoll, and signals.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "semantics.h"

CASE(polling)
{
	struct pollfd both[3] = { { .fd = pair->server, .events = POLLIN | POLLRDHUP },
		{ .fd = pair->client, .events = POLLIN | POLLOUT },
		{ .fd = -1, .events = POLLIN } };
	struct timespec none = { 0 };
	char buffer[16];

	show("idle", poll(both, 1, 0));
	show("short", poll(both, 1, SHORT_MS));
	show("both", poll(both, 3, 0));
	show("server", both[0].revents);
	show("client", both[1].revents);
	put(pair->client, "x");
	arrived(pair->server, 1);
	show("both", poll(both, 3, WAIT_MS));
	show("server", both[0].revents);
	show("ppoll", ppoll(both, 2, &none, NULL));
	show("server", both[0].revents);
	both[1].events = 0;
	show("no events", poll(both + 1, 1, 0));
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	show("idle", poll(both, 1, 0));
	put(pair->client, "last");
	shutdown(pair->client, SHUT_WR);
	show("end", poll(both, 1, WAIT_MS));
	show("has bytes", both[0].revents & POLLIN);
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	show("end", poll(both, 1, WAIT_MS));
	show("server", both[0].revents);
	shutdown(pair->server, SHUT_WR);
	show("both ends", poll(both, 1, WAIT_MS));
	show("server", both[0].revents);
}

CASE(selecting)
{
	struct timeval limit = { .tv_usec = SHORT_MS * 1000 };
	struct timespec none = { 0 };
	int top = MAX(pair->client, pair->server) + 1;
	int closed;
	fd_set in;
	fd_set out;
	char byte;

	FD_ZERO(&in);
	FD_SET(pair->server, &in);
	show("idle", select(top, &in, NULL, NULL, &limit));
	show("set", FD_ISSET(pair->server, &in) != 0);
	show("time left", limit.tv_sec * 1000000 + limit.tv_usec);
	put(pair->client, "x");
	arrived(pair->server, 1);
	FD_ZERO(&out);
	FD_SET(pair->server, &in);
	FD_SET(pair->client, &in);
	FD_SET(pair->client, &out);
	show("both", pselect(top, &in, &out, NULL, &none, NULL));
	show("server in", FD_ISSET(pair->server, &in) != 0);
	show("client in", FD_ISSET(pair->client, &in) != 0);
	show("client out", FD_ISSET(pair->client, &out) != 0);
	show_bytes("read", &byte, read(pair->server, &byte, 1));
	FD_ZERO(&in);
	FD_SET(pair->server, &in);
	/* The kernel looks no further than its table of descriptors reaches. */
	closed = dup(pair->server);
	close(closed);
	FD_SET(closed, &in);
	show("bad", select(MAX(top, closed + 1), &in, NULL, NULL, NULL));
}

/* Descriptors above FD_SETSIZE, in sets of the program's own making. */
CASE(selecting_high)
{
	enum { HIGH = 1500 };
	struct timeval limit = { .tv_sec = WAIT_MS / 1000 };
	struct timeval none = { 0 };
	uint64_t in[HIGH / 64 + 2] = { 0 };
	struct rlimit files;
	int high;
	char byte;

	must(getrlimit(RLIMIT_NOFILE, &files) == 0, "limit");
	files.rlim_cur = MIN(files.rlim_max, (rlim_t)2 * HIGH);
	must(setrlimit(RLIMIT_NOFILE, &files) == 0, "limit");
	high = fcntl(pair->server, F_DUPFD_CLOEXEC, HIGH);
	must(high >= HIGH && (size_t)high < sizeof(in) * 8, "a high descriptor");
	in[high / 64] = UINT64_C(1) << high % 64;
	show("idle", select(high + 1, (fd_set *)(void *)in, NULL, NULL, &none));
	put(pair->client, "x");
	arrived(high, 1);
	in[high / 64] = UINT64_C(1) << high % 64;
	show("bytes", select(high + 1, (fd_set *)(void *)in, NULL, NULL, &limit));
	show("set", in[high / 64] == UINT64_C(1) << high % 64);
	show_bytes("read", &byte, read(high, &byte, 1));
	close(high);
}

/* A set of the usual size in front of other memory, and the greatest number there may be. */
static void select_of_all(int fd)
{
	struct timeval limit = { .tv_sec = WAIT_MS / 1000 };
	struct {
		fd_set in;
		uint8_t behind[1024];
	} memory;

	FD_ZERO(&memory.in);
	FD_SET(fd, &memory.in);
	memset(memory.behind, 0xff, sizeof(memory.behind));
	show("all", select(getdtablesize(), &memory.in, NULL, NULL, &limit));
	show("set", FD_ISSET(fd, &memory.in));
	show("behind",
		memory.behind[0] == 0xff && memory.behind[sizeof(memory.behind) - 1] == 0xff);
}

/* In a process of its own, which has no high descriptors. */
CASE(selecting_all)
{
	enum { LIMIT = 8192 };
	struct rlimit files;
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		must(getrlimit(RLIMIT_NOFILE, &files) == 0, "limit");
		files.rlim_cur = MIN(files.rlim_max, (rlim_t)LIMIT);
		must(setrlimit(RLIMIT_NOFILE, &files) == 0, "limit");
		close(pair->client);
		close(pair->server);
		connect_pair(pair);
		put(pair->client, "x");
		select_of_all(pair->server);
		warm(pair);
		put(pair->client, "x");
		select_of_all(pair->server);
		fflush(stdout);
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid, "wait");
	show("status", status);
}

struct epoll_event waited(int set, int timeout_ms, const char *what)
{
	struct epoll_event events[4];
	int count = epoll_wait(set, events, 4, timeout_ms);

	show(what, count);
	if (count <= 0) {
		events[0] = (struct epoll_event){ 0 };
	} else {
		show("  data", (long)events[0].data.u32);
		show("  events", (long)events[0].events);
	}
	return events[0];
}

int make_set(int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.u32 = 7 };
	int set = epoll_create1(EPOLL_CLOEXEC);

	show("add", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	return set;
}

CASE(epoll_level)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT, .data.u32 = 8 };
	int set = make_set(pair->server, EPOLLIN | EPOLLRDHUP);
	char byte;

	show("add twice", epoll_ctl(set, EPOLL_CTL_ADD, pair->server, &event));
	waited(set, 0, "idle");
	waited(set, SHORT_MS, "short");
	put(pair->client, "xy");
	arrived(pair->server, 2);
	waited(set, WAIT_MS, "bytes");
	waited(set, 0, "again");
	show_bytes("read", &byte, read(pair->server, &byte, 1));
	waited(set, 0, "rest");
	show("mod", epoll_ctl(set, EPOLL_CTL_MOD, pair->server, &event));
	waited(set, 0, "mod");
	show_bytes("read", &byte, read(pair->server, &byte, 1));
	waited(set, 0, "out");
	event.events = EPOLLIN | EPOLLRDHUP;
	show("mod", epoll_ctl(set, EPOLL_CTL_MOD, pair->server, &event));
	waited(set, 0, "idle");
	shutdown(pair->client, SHUT_WR);
	waited(set, WAIT_MS, "end");
	waited(set, 0, "end again");
	show("del", epoll_ctl(set, EPOLL_CTL_DEL, pair->server, NULL));
	show("del twice", epoll_ctl(set, EPOLL_CTL_DEL, pair->server, NULL));
	show("mod after", epoll_ctl(set, EPOLL_CTL_MOD, pair->server, &event));
	waited(set, 0, "empty");
	close(set);
}

CASE(epoll_edge)
{
	int set = make_set(pair->server, EPOLLIN | EPOLLRDHUP | EPOLLET);
	char buffer[16];

	put(pair->client, "first");
	waited(set, WAIT_MS, "bytes");
	waited(set, 0, "no edge");
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	put(pair->client, "second");
	waited(set, WAIT_MS, "bytes");
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	show("empty", recv(pair->server, buffer, sizeof(buffer), MSG_DONTWAIT));
	waited(set, 0, "no edge");
	put(pair->client, "third");
	waited(set, WAIT_MS, "bytes");
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	shutdown(pair->client, SHUT_WR);
	waited(set, WAIT_MS, "end");
	close(set);
}

CASE(epoll_edge_out)
{
	static char block[65536];
	int set;

	set_nonblocking(pair->client, true);
	set = make_set(pair->client, EPOLLOUT | EPOLLET);
	waited(set, 0, "room");
	waited(set, 0, "no edge");
	while (write(pair->client, block, sizeof(block)) > 0) {
	}
	show("full", errno == EAGAIN);
	waited(set, 0, "no edge");
	set_nonblocking(pair->server, true);
	while (wait_ready(pair->server, POLLIN, SHORT_MS) != 0) {
		while (read(pair->server, block, sizeof(block)) > 0) {
		}
	}
	waited(set, WAIT_MS, "room");
	close(set);
}

CASE(epoll_once)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u32 = 9 };
	int set = make_set(pair->server, EPOLLIN | EPOLLONESHOT);
	char buffer[16];

	put(pair->client, "a");
	waited(set, WAIT_MS, "bytes");
	waited(set, 0, "used up");
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	put(pair->client, "b");
	waited(set, 0, "used up");
	show("mod", epoll_ctl(set, EPOLL_CTL_MOD, pair->server, &event));
	waited(set, WAIT_MS, "again");
	close(set);
}

/* The members are carried while they are in the set. */
CASE(epoll_before)
{
	int set;
	char byte;

	close(pair->client);
	close(pair->server);
	connect_pair(pair);
	set = make_set(pair->server, EPOLLIN);
	for (int i = 0; i < ROUNDS; i++) {
		must(write(pair->client, "x", 1) == 1, "write");
		must(epoll_wait(set, &(struct epoll_event){ 0 }, 1, WAIT_MS) == 1, "wait");
		must(read(pair->server, &byte, 1) == 1, "read");
		must(write(pair->server, &byte, 1) == 1, "write");
		must(wait_ready(pair->client, POLLIN, WAIT_MS) == POLLIN, "poll");
		must(read(pair->client, &byte, 1) == 1, "read");
	}
	waited(set, 0, "idle");
	put(pair->client, "y");
	waited(set, WAIT_MS, "bytes");
	close(pair->client);
	pair->client = -1;
	show_bytes("read", &byte, read(pair->server, &byte, 1));
	waited(set, WAIT_MS, "end");
	show("end", read(pair->server, &byte, 1));
	close(set);
}

CASE(epoll_closed)
{
	int set = make_set(pair->server, EPOLLIN);

	put(pair->client, "x");
	close(pair->server);
	pair->server = -1;
	waited(set, 0, "closed");
	close(set);
}

/* A set keeps a closed descriptor while a copy of it is open. */
CASE(epoll_copy)
{
	int copy = dup(pair->server);
	int set = make_set(pair->server, EPOLLIN);
	char byte;

	show("close", close(pair->server));
	put(pair->client, "x");
	waited(set, WAIT_MS, "bytes");
	show_bytes("read", &byte, read(copy, &byte, 1));
	waited(set, 0, "idle");
	put(copy, "y");
	show_bytes("read", &byte, read(pair->client, &byte, 1));
	close(copy);
	waited(set, 0, "closed");
	close(set);
	pair->server = -1;
}

CASE(epoll_nested)
{
	int inner = make_set(pair->server, EPOLLIN);
	int outer = make_set(inner, EPOLLIN);
	char byte;

	waited(outer, 0, "idle");
	put(pair->client, "x");
	waited(outer, WAIT_MS, "bytes");
	waited(inner, WAIT_MS, "bytes");
	show_bytes("read", &byte, read(pair->server, &byte, 1));
	waited(outer, 0, "idle");
	close(inner);
	close(outer);
}

/* First in the direction that nobody waits for. */
static void *write_both_ways(void *argument)
{
	const struct pair *pair = argument;

	must(poll(NULL, 0, SHORT_MS) == 0, "a moment");
	put(pair->server, "y");
	must(poll(NULL, 0, SHORT_MS) == 0, "a moment");
	put(pair->client, "x");
	return NULL;
}

/* Longer than a clock can count. */
CASE(endless)
{
	const struct timespec endless = { .tv_sec = INT64_MAX };
	struct pollfd server = { .fd = pair->server, .events = POLLIN };
	pthread_t thread;

	must(pthread_create(&thread, NULL, write_both_ways, pair) == 0, "thread");
	show("bytes", ppoll(&server, 1, &endless, NULL));
	pthread_join(thread, NULL);
}

static void change(int set, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events };

	show("mod", epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
}

struct sleeper {
	int set;
	struct epoll_event event;
	pthread_t thread;
};

static void *wait_in_set(void *argument)
{
	struct sleeper *sleeper = argument;

	must(epoll_wait(sleeper->set, &sleeper->event, 1, -1) == 1, "wait");
	return NULL;
}

static void sleep_in_set(struct sleeper *sleeper)
{
	must(pthread_create(&sleeper->thread, NULL, wait_in_set, sleeper) == 0, "thread");
	must(poll(NULL, 0, SHORT_MS) == 0, "a moment");
}

static void show_woken(struct sleeper *sleeper)
{
	pthread_join(sleeper->thread, NULL);
	show("woken", sleeper->event.events);
}

/* One thread waits, another changes what it waits for. */
CASE(epoll_changed)
{
	struct sleeper sleeper = { .set = make_set(pair->server, EPOLLIN | EPOLLONESHOT) };
	char bytes[8];

	sleep_in_set(&sleeper);
	change(sleeper.set, pair->server, EPOLLOUT | EPOLLONESHOT);
	show_woken(&sleeper);
	put(pair->client, "12345678");
	arrived(pair->server, 8);
	show_bytes("read", bytes, read(pair->server, bytes, 4));
	sleep_in_set(&sleeper);
	change(sleeper.set, pair->server, EPOLLIN | EPOLLONESHOT);
	show_woken(&sleeper);
	show_bytes("read", bytes, read(pair->server, bytes, 4));
	/* Nothing is there, and nobody has looked since the last byte was read. */
	sleep_in_set(&sleeper);
	change(sleeper.set, pair->server, EPOLLIN | EPOLLONESHOT);
	must(poll(NULL, 0, SHORT_MS) == 0, "a moment");
	put(pair->client, "x");
	show_woken(&sleeper);
	show_bytes("read", bytes, read(pair->server, bytes, 4));
	close(sleeper.set);
}

CASE(epoll_polled)
{
	int set = make_set(pair->server, EPOLLIN);
	pthread_t thread;
	char byte;

	show("nothing", recv(pair->client, &byte, 1, MSG_DONTWAIT));
	must(pthread_create(&thread, NULL, write_both_ways, pair) == 0, "thread");
	show("bytes", poll(&(struct pollfd){ .fd = set, .events = POLLIN }, 1, -1));
	pthread_join(thread, NULL);
	show_bytes("read", &byte, read(pair->server, &byte, 1));
	show_bytes("read", &byte, read(pair->client, &byte, 1));
	show("idle", wait_ready(set, POLLIN, 0));
	put(pair->client, "x");
	show("bytes", wait_ready(set, POLLIN, WAIT_MS));
	show_bytes("read", &byte, read(pair->server, &byte, 1));
	show("idle", wait_ready(set, POLLIN, 0));
	close(set);
}

/* --- signals ---------------------------------------------------------------------------------- */

static volatile sig_atomic_t signals;
static int signal_fd;

static void write_in_handler(int number)
{
	if (++signals == 1 && signal_fd >= 0 && write(signal_fd, "s", 1) != 1) {
		abort();
	}
}

/* Again and again: the thread may not have come to the call by the first time. */
static void interrupt_after(int fd, int flags)
{
	struct sigaction action = { .sa_handler = write_in_handler, .sa_flags = flags };
	struct itimerval soon = { .it_value.tv_usec = SHORT_MS * 1000,
		.it_interval.tv_usec = SHORT_MS * 1000 };

	signal_fd = fd;
	signals = 0;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &soon, NULL);
}

static void show_interrupted(void)
{
	struct itimerval never = { 0 };

	setitimer(ITIMER_REAL, &never, NULL);
	show("interrupted", signals > 0);
}

CASE(interrupted)
{
	struct pollfd one = { .fd = pair->server, .events = POLLIN };
	struct sigaction crash = { .sa_handler = _exit };
	char byte;

	must(sigaction(SIGSEGV, &crash, NULL) == 0, "a crash handler restarts nothing");
	interrupt_after(-1, 0);
	show("read", read(pair->server, &byte, 1));
	show_interrupted();
	interrupt_after(pair->client, SA_RESTART);
	show_bytes("read", &byte, read(pair->server, &byte, 1));
	show_interrupted();
	interrupt_after(-1, SA_RESTART);
	show("poll", poll(&one, 1, WAIT_MS));
	show_interrupted();
	signal(SIGALRM, SIG_DFL);
}

/* A send with a timeout ends at a signal, whatever the signal's handler says. */
CASE(interrupted_send)
{
	static char bytes[16 << 20];
	struct timeval limit = { .tv_sec = 20 };
	uint64_t begin_ns = clock_now_ns();
	ssize_t sent;

	show("set", setsockopt(pair->client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)));
	interrupt_after(-1, SA_RESTART);
	sent = write(pair->client, bytes, sizeof(bytes));
	show("a part", sent > 0 && sent < (ssize_t)sizeof(bytes));
	show("before the timeout", clock_now_ns() - begin_ns < UINT64_C(10000000000));
	show_interrupted();
	signal(SIGALRM, SIG_DFL);
}
