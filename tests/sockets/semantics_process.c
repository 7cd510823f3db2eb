// SPDX-License-Identifier: Apache-2.0
/*
 * Copies of descriptors, threads and processes.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "semantics.h"

enum { SHELL_FD = 9 /* all that every shell can name */ };

/* --- descriptors ------------------------------------------------------------------------------ */

CASE(copies)
{
	int copy = dup(pair->server);
	int second = fcntl(pair->server, F_DUPFD_CLOEXEC, 100);
	char buffer[16];

	put(pair->client, "abcdef");
	arrived(pair->server, 6);
	show_bytes("copy", buffer, read(copy, buffer, 2));
	show_bytes("second", buffer, read(second, buffer, 2));
	show("close", close(pair->server));
	show_bytes("copy", buffer, read(copy, buffer, 2));
	show("closed", read(pair->server, buffer, 1));
	put(copy, "up");
	show_bytes("client", buffer, read(pair->client, buffer, sizeof(buffer)));
	show("dup2", dup2(copy, second) == second);
	show("close", close(copy));
	put(second, "on");
	show_bytes("client", buffer, read(pair->client, buffer, sizeof(buffer)));
	show("close", close(second));
	show("end", read(pair->client, buffer, sizeof(buffer)));
	pair->server = -1;
}

CASE(replaced)
{
	int ends[2];
	char buffer[16];

	must(pipe(ends) == 0, "pipe");
	show("dup2", dup2(ends[0], pair->server) == pair->server);
	show("end", read(pair->client, buffer, sizeof(buffer)));
	put(ends[1], "by pipe");
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	close(ends[0]);
	close(ends[1]);
}

/* Closed by a call that the C library does not know of: the number is another socket's. */
CASE(closed_unseen)
{
	struct linger linger = { 0 };
	socklen_t length = sizeof(linger);
	int first = -1;
	int other = -1;

	put(pair->client, "unread");
	arrived(pair->server, 6);
	must(syscall(SYS_close, pair->server) == 0, "close");
	while (other != pair->server) {
		other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		must(other >= 0, "socket");
		first = first < 0 ? other : first;
	}
	show("option", getsockopt(other, SOL_SOCKET, SO_LINGER, &linger, &length));
	show("linger", linger.l_onoff);
	for (int fd = first; fd <= other; fd++) {
		if (fd != pair->client) {
			close(fd);
		}
	}
	pair->server = -1;
}

/* The C library's own streams. */
CASE(standard_input)
{
	int old = dup(STDIN_FILENO);
	char line[32];

	show("dup2", dup2(pair->server, STDIN_FILENO));
	put(pair->client, "a line\n");
	show_bytes("fgets", line, fgets(line, sizeof(line), stdin) != NULL ? 7 : 0);
	show("dup2", dup2(old, STDIN_FILENO));
	close(old);
}

CASE(closed_range)
{
	char byte;
	int high = fcntl(pair->server, F_DUPFD_CLOEXEC, 200);

	close(pair->server);
	pair->server = -1;
	show("close_range", close_range(200, UINT32_MAX, 0));
	show("closed", read(high, &byte, 1));
	show("end", read(pair->client, &byte, 1));
}

CASE(streams)
{
	FILE *in = fdopen(dup(pair->server), "r");
	FILE *out = fdopen(dup(pair->server), "w");
	char line[32];

	must(in != NULL && out != NULL, "fdopen");
	put(pair->client, "a line\nanother\n");
	show_bytes("fgets", line, fgets(line, sizeof(line), in) != NULL ? 6 : 0);
	show_bytes("fgets", line, fgets(line, sizeof(line), in) != NULL ? 7 : 0);
	show("fprintf", fprintf(out, "an answer"));
	show("fflush", fflush(out));
	show_bytes("read", line, recv(pair->client, line, 9, MSG_WAITALL));
	show("fclose", fclose(in));
	show("fclose", fclose(out));
}

CASE(files)
{
	char path[] = "/tmp/clan-semantics-XXXXXX";
	int file = mkstemp(path);
	off_t offset = 2;
	char buffer[32];

	unlink(path);
	must(write(file, "0123456789", 10) == 10, "file");
	show("sendfile", sendfile(pair->client, file, &offset, 4));
	show("offset", offset);
	show_bytes("recv", buffer, recv(pair->server, buffer, 4, MSG_WAITALL));
	must(lseek(file, 7, SEEK_SET) == 7, "seek");
	show("sendfile", sendfile(pair->client, file, NULL, 100));
	show("position", lseek(file, 0, SEEK_CUR));
	show_bytes("recv", buffer, recv(pair->server, buffer, 3, MSG_WAITALL));
	show("end of file", sendfile(pair->client, file, NULL, 100));
	close(file);
}

CASE(spliced)
{
	int ends[2];
	char buffer[16];
	ssize_t moved;

	must(pipe(ends) == 0, "pipe");
	put(ends[1], "through");
	moved = splice(ends[0], NULL, pair->client, NULL, 7, 0);
	show("splice", moved);
	show_bytes("recv", buffer, recv(pair->server, buffer, 7, MSG_WAITALL));
	close(ends[0]);
	close(ends[1]);
}

CASE(passed)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)),
			      .cmsg_level = SOL_SOCKET,
			      .cmsg_type = SCM_RIGHTS } };
	char buffer[16] = "x";
	struct iovec iov = { buffer, 1 };
	struct msghdr message = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control) };
	int ends[2];
	int fd;

	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
	memcpy(CMSG_DATA(&control.head), &pair->server, sizeof(int));
	show("sendmsg", sendmsg(ends[0], &message, 0));
	message.msg_controllen = sizeof(control);
	show("recvmsg", recvmsg(ends[1], &message, 0));
	memcpy(&fd, CMSG_DATA(&control.head), sizeof(int));
	put(pair->client, "passed");
	show_bytes("read", buffer, read(fd, buffer, sizeof(buffer)));
	close(fd);
	close(ends[0]);
	close(ends[1]);
}

/* --- threads, processes ----------------------------------------------------------------------- */

static void *write_later(void *argument)
{
	const struct pair *pair = argument;
	char byte;

	must(read(pair->server, &byte, 1) == 1, "read");
	must(write(pair->server, "late", 4) == 4, "write");
	return NULL;
}

CASE(two_threads)
{
	int set = make_set(pair->client, EPOLLIN);
	char buffer[16];
	pthread_t thread;

	for (int i = 0; i < 20; i++) {
		must(pthread_create(&thread, NULL, write_later, pair) == 0, "thread");
		put(pair->client, "x");
		if (i % 3 == 0) {
			must(wait_ready(pair->client, POLLIN, WAIT_MS) == POLLIN, "poll");
		} else if (i % 3 == 1) {
			must(epoll_wait(set, &(struct epoll_event){ 0 }, 1, WAIT_MS) == 1, "epoll");
		}
		must(recv(pair->client, buffer, 4, MSG_WAITALL) == 4, "recv");
		pthread_join(thread, NULL);
	}
	show("rounds", 20);
	close(set);
}

static void *read_blocked(void *argument)
{
	const struct pair *pair = argument;
	char buffer[16];

	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	return NULL;
}

/* While one thread reads, another makes a stream of it. */
CASE(left_while_read)
{
	pthread_t thread;
	FILE *stream;

	must(pthread_create(&thread, NULL, read_blocked, pair) == 0, "thread");
	must(poll(NULL, 0, SHORT_MS) == 0, "a moment");
	stream = fdopen(dup(pair->server), "r");
	must(stream != NULL, "fdopen");
	put(pair->client, "late");
	pthread_join(thread, NULL);
	fclose(stream);
}

static void *read_until_cancelled(void *argument)
{
	const struct pair *pair = argument;
	char byte;

	must(read(pair->server, &byte, 1) == 1 && write(pair->server, "y", 1) == 1, "exchange");
	show("not reached", read(pair->server, &byte, 1));
	return NULL;
}

/* Who sleeps afterwards sleeps: nothing waits for the thread. */
CASE(cancelled)
{
	struct rusage before;
	struct rusage after;
	pthread_t thread;
	void *result = NULL;
	char buffer[4];

	must(pthread_create(&thread, NULL, read_until_cancelled, pair) == 0, "thread");
	put(pair->client, "x");
	show_bytes("read", buffer, read(pair->client, buffer, 1));
	show("nothing",
		poll(&(struct pollfd){ .fd = pair->client, .events = POLLIN }, 1, SHORT_MS));
	must(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "cancel");
	show("cancelled", result == PTHREAD_CANCELED);
	for (int i = 0; i < 5; i++) {
		must(pthread_create(&thread, NULL, write_later, pair) == 0, "thread");
		put(pair->client, "x");
		must(recv(pair->client, buffer, 4, MSG_WAITALL) == 4, "recv");
		pthread_join(thread, NULL);
	}
	getrusage(RUSAGE_SELF, &before);
	show("nothing", wait_ready(pair->server, POLLIN, LONG_MS));
	getrusage(RUSAGE_SELF, &after);
	show("wakes again and again", after.ru_nvcsw - before.ru_nvcsw > LONG_MS / 6);
}

struct cancelled_call {
	const struct pair *pair;
	int set;
	int kind;
	_Atomic(bool) pending;
};

/* Every one of these calls could be carried out at once. */
static void *call_when_cancelled(void *argument)
{
	struct cancelled_call *call = argument;
	int fd = call->pair->server;
	struct epoll_event event;
	char byte = 'z';

	while (!atomic_load(&call->pending)) {
	}
	if (call->kind == 0) {
		show("read", read(fd, &byte, 1));
	} else if (call->kind == 1) {
		show("write", write(fd, &byte, 1));
	} else if (call->kind == 2) {
		show("poll", poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, WAIT_MS));
	} else {
		show("epoll", epoll_wait(call->set, &event, 1, WAIT_MS));
	}
	return NULL;
}

/* A thread that need not sleep is cancelled as well, before the call does anything. Not under
 * AddressSanitizer, which takes the frames that are left then for living ones. */
CASE(cancelled_before)
{
#ifdef __SANITIZE_ADDRESS__
	(void)call_when_cancelled;
#else
	int set = make_set(pair->server, EPOLLIN | EPOLLOUT);
	char byte;

	put(pair->client, "x");
	arrived(pair->server, 1);
	for (int kind = 0; kind < 4; kind++) {
		struct cancelled_call call = { .pair = pair, .set = set, .kind = kind };
		void *result = NULL;
		pthread_t thread;

		must(pthread_create(&thread, NULL, call_when_cancelled, &call) == 0, "thread");
		must(pthread_cancel(thread) == 0, "cancel");
		atomic_store(&call.pending, true);
		pthread_join(thread, &result);
		show("cancelled", result == PTHREAD_CANCELED);
	}
	show_bytes("read", &byte, recv(pair->server, &byte, 1, MSG_DONTWAIT));
	show("nothing", wait_ready(pair->client, POLLIN, SHORT_MS));
	close(set);
#endif
}

enum { SLEEPERS = 8, POLLED = 200 };

static _Atomic(int) sleepers;

static void *poll_many(void *argument)
{
	const struct pair *pair = argument;
	struct pollfd many[POLLED];
	void *volatile some = malloc(1); /* takes an arena, which counts as allocated */

	free(some);
	atomic_fetch_add(&sleepers, 1);

	for (int i = 0; i < POLLED; i++) {
		many[i] = (struct pollfd){ .fd = pair->server, .events = POLLIN };
	}
	show("not reached", poll(many, POLLED, -1));
	return NULL;
}

static void cancel_sleepers(struct pair *pair)
{
	pthread_t threads[SLEEPERS];

	atomic_store(&sleepers, 0);
	for (int i = 0; i < SLEEPERS; i++) {
		must(pthread_create(&threads[i], NULL, poll_many, pair) == 0, "thread");
	}
	while (atomic_load(&sleepers) < SLEEPERS) {
		(void)sched_yield();
	}
	must(poll(NULL, 0, SHORT_MS) == 0, "a moment");
	for (int i = 0; i < SLEEPERS; i++) {
		must(pthread_cancel(threads[i]) == 0, "cancel");
		pthread_join(threads[i], NULL);
	}
}

/* What a thread that is cancelled has allocated is freed: not under AddressSanitizer, as above. */
CASE(cancelled_polls)
{
#ifdef __SANITIZE_ADDRESS__
	(void)cancel_sleepers;
#else
	size_t before;

	cancel_sleepers(pair); /* what the C library allocates for the first */
	before = mallinfo2().uordblks;
	cancel_sleepers(pair);
	show("leaks", mallinfo2().uordblks > before + POLLED * sizeof(struct pollfd));
#endif
}

CASE(child_uses)
{
	char buffer[16];
	int status;
	pid_t pid;

	put(pair->client, "for the child");
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		close(pair->client);
		_exit(read(pair->server, buffer, sizeof(buffer)) == 13 &&
					write(pair->server, "from the child", 14) == 14
				? 0
				: 1);
	}
	close(pair->server);
	pair->server = -1;
	show_bytes("read", buffer, recv(pair->client, buffer, 14, MSG_WAITALL));
	must(waitpid(pid, &status, 0) == pid, "wait");
	show("status", status);
	show("end", read(pair->client, buffer, sizeof(buffer)));
}

CASE(parent_goes_on)
{
	char buffer[16];
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		_exit(0);
	}
	must(waitpid(pid, NULL, 0) == pid, "wait");
	warm(pair);
	put(pair->client, "goes on");
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
}

/* A connection that two processes use. */
CASE(both_processes)
{
	char buffer[16];
	int status;
	int go[2];
	pid_t pid;

	must(pipe(go) == 0, "pipe");
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		close(go[1]);
		_exit(read(go[0], buffer, 1) == 1 && write(pair->server, "from the child", 14) == 14
				? 0
				: 1);
	}
	close(go[0]);
	warm(pair);
	put(go[1], "x");
	show_bytes("recv", buffer, recv(pair->client, buffer, 14, MSG_WAITALL));
	must(waitpid(pid, &status, 0) == pid, "wait");
	show("status", status);
	close(go[1]);
	warm(pair);
	put(pair->server, "goes on");
	show_bytes("read", buffer, read(pair->client, buffer, sizeof(buffer)));
}

/* --- the other end in another process --------------------------------------------------------- */

struct peer {
	pid_t pid;
	int orders; /* to close the connection; closed: it ends */
	int reports;
};

static void serve_orders(struct pair *pair, int orders, int reports)
{
	char order;

	close(pair->client);
	for (int i = 0; i < ROUNDS; i++) {
		must(read(pair->server, &order, 1) == 1 && write(pair->server, &order, 1) == 1,
			"echo");
	}
	while (read(orders, &order, 1) == 1) {
		close(pair->server);
		must(write(reports, &order, 1) == 1, "report");
	}
	exit(0); /* which counts what it has moved */
}

/* Takes the server's end. It answers, and then makes no call but for orders. */
static void start_peer(struct pair *pair, struct peer *peer)
{
	int orders[2];
	int reports[2];
	char byte = 'w';

	must(pipe2(orders, O_CLOEXEC) == 0 && pipe2(reports, O_CLOEXEC) == 0, "pipe");
	fflush(stdout);
	peer->pid = fork();
	if (peer->pid == 0) {
		close(orders[1]);
		close(reports[0]);
		serve_orders(pair, orders[0], reports[1]);
	}
	close(pair->server);
	pair->server = -1;
	close(orders[0]);
	close(reports[1]);
	peer->orders = orders[1];
	peer->reports = reports[0];
	for (int i = 0; i < ROUNDS; i++) {
		must(write(pair->client, &byte, 1) == 1 && read(pair->client, &byte, 1) == 1,
			"answer");
	}
}

static void have_it_closed(const struct peer *peer)
{
	char byte = 'c';

	must(write(peer->orders, &byte, 1) == 1 && read(peer->reports, &byte, 1) == 1, "order");
}

static void end_peer(const struct peer *peer)
{
	close(peer->orders);
	close(peer->reports);
	must(waitpid(peer->pid, NULL, 0) == peer->pid, "wait");
}

/* What the kernel knows, behind the back of a library. */
static short wait_in_kernel(int fd, short events)
{
	struct pollfd one = { .fd = fd, .events = events };
	struct timespec limit = { .tv_sec = WAIT_MS / 1000 };

	return (short)(syscall(SYS_ppoll, &one, 1, &limit, NULL, 0) > 0 ? one.revents : 0);
}

/* A program that only writes. */
CASE(written_to_the_closed)
{
	struct peer peer;

	signal(SIGPIPE, SIG_IGN);
	start_peer(pair, &peer);
	have_it_closed(&peer);
	/* Before the end has arrived TCP itself names the reset otherwise. */
	(void)wait_in_kernel(pair->client, POLLRDHUP);
	show("first", write(pair->client, "x", 1));
	show("reset", (wait_in_kernel(pair->client, 0) & POLLERR) != 0);
	show("second", write(pair->client, "x", 1));
	end_peer(&peer);
	signal(SIGPIPE, SIG_DFL);
}

/* --- a fork beside other threads -------------------------------------------------------------- */

enum { FORK_TRIES = 50, FORK_LONG_MS = 60, BESIDE_MIN = 50 };

static _Atomic(bool) fork_begins;
static _Atomic(bool) fork_ended;

static void begin_fork(void)
{
	atomic_store(&fork_begins, true);
}

static void *fork_once(void *argument)
{
	pid_t pid = fork();

	if (pid == 0) {
		_exit(0);
	}
	atomic_store(&fork_ended, true);
	must(waitpid(pid, NULL, 0) == pid, "wait");
	return NULL;
}

static void exchange(const struct pair *pair)
{
	char byte = 'x';

	must(write(pair->client, &byte, 1) == 1 && read(pair->server, &byte, 1) == 1, "exchange");
}

static long now_ms(void)
{
	struct timespec now;

	must(clock_gettime(CLOCK_MONOTONIC, &now) == 0, "time");
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* True: a fork took long, and a thread that did not fork could do next to nothing meanwhile. */
static bool fork_holds_up(const struct pair *own)
{
	int count = 0;
	long began_ms;
	pthread_t thread;

	atomic_store(&fork_begins, false);
	atomic_store(&fork_ended, false);
	must(pthread_create(&thread, NULL, fork_once, NULL) == 0, "thread");
	while (!atomic_load(&fork_begins)) {
		(void)sched_yield();
	}
	began_ms = now_ms();
	while (!atomic_load(&fork_ended)) {
		exchange(own);
		count++;
	}
	pthread_join(thread, NULL);
	return now_ms() - began_ms >= FORK_LONG_MS && count < BESIDE_MIN;
}

/* While a fork waits for a peer that makes no call, other threads go on. A thread that has got no
 * processor for so long tries again. */
CASE(fork_beside)
{
	static bool registered;
	bool holds_up = true;
	struct peer peer;

	must(registered || pthread_atfork(begin_fork, NULL, NULL) == 0, "atfork");
	registered = true;
	start_peer(pair, &peer);
	for (int i = 0; i < FORK_TRIES && holds_up; i++) {
		struct pair own;

		connect_pair(&own);
		warm(&own);
		holds_up = fork_holds_up(&own);
		close(own.client);
		close(own.server);
	}
	show("holds up", holds_up);
	end_peer(&peer);
}

CASE(shell_inherits)
{
	char buffer[16];

	must(dup2(pair->server, SHELL_FD) == SHELL_FD, "dup2");
	fflush(stdout);
	show("system", system("printf shell >&9"));
	close(SHELL_FD);
	show_bytes("read", buffer, recv(pair->client, buffer, 5, MSG_WAITALL));
	warm(pair);
}

/* --- programs that go on ---------------------------------------------------------------------- */

enum { GO_FD = 8, LATE_BYTES = 64 };
#define EIGHT "01234567"
/* Waits, and writes to the connection. */
#define WRITE_LATE "read go <&8; printf " EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT " >&9"

static FILE *late_stream;

static pid_t spawn_with(const posix_spawn_file_actions_t *actions)
{
	const char *const arguments[] = { "sh", "-c", WRITE_LATE, NULL };
	pid_t pid;

	must(posix_spawn(&pid, "/bin/sh", actions, NULL, (char *const *)(uintptr_t)arguments,
		     environ) == 0,
		"posix_spawn");
	return pid;
}

static pid_t spawn_late(void)
{
	return spawn_with(NULL);
}

/* No other program but this one would get it. */
static pid_t spawn_with_copy(void)
{
	posix_spawn_file_actions_t actions;
	pid_t pid;

	must(fcntl(SHELL_FD, F_SETFD, FD_CLOEXEC) == 0, "FD_CLOEXEC");
	must(posix_spawn_file_actions_init(&actions) == 0 &&
			posix_spawn_file_actions_adddup2(&actions, SHELL_FD, SHELL_FD) == 0,
		"actions");
	pid = spawn_with(&actions);
	posix_spawn_file_actions_destroy(&actions);
	return pid;
}

static pid_t open_late(void)
{
	late_stream = popen(WRITE_LATE, "w");
	must(late_stream != NULL, "popen");
	return 0;
}

/* The shell ends, and its child has the connection. */
static pid_t leave_late(void)
{
	must(system("{ " WRITE_LATE "; } &") == 0, "system");
	return 0;
}

static pid_t execute_late(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl("/bin/sh", "sh", "-c", "{ " WRITE_LATE "; } &", (char *)NULL);
		_exit(9);
	}
	must(waitpid(pid, NULL, 0) == pid, "wait");
	return 0;
}

/* Another program has the connection while this one goes on, and writes when it is told. */
static void write_late_from(struct pair *pair, const char *how, pid_t (*start)(void))
{
	char buffer[LATE_BYTES];
	int ends[2];
	pid_t pid;

	must(pipe2(ends, O_CLOEXEC) == 0, "pipe");
	must(dup2(ends[0], GO_FD) == GO_FD && dup2(pair->server, SHELL_FD) == SHELL_FD, "dup2");
	fflush(stdout);
	pid = start();
	close(GO_FD);
	close(SHELL_FD);
	warm(pair);
	put(ends[1], "go\n");
	show_bytes(how, buffer, recv(pair->client, buffer, LATE_BYTES, MSG_WAITALL));
	must(pid == 0 || waitpid(pid, NULL, 0) == pid, "wait");
	warm(pair);
	close(ends[0]);
	close(ends[1]);
}

static void connect_again(struct pair *pair)
{
	close(pair->client);
	close(pair->server);
	connect_pair(pair);
	warm(pair);
}

CASE(programs_go_on)
{
	write_late_from(pair, "posix_spawn", spawn_late);
	connect_again(pair);
	write_late_from(pair, "file action", spawn_with_copy);
	connect_again(pair);
	write_late_from(pair, "popen", open_late);
	show("pclose", pclose(late_stream));
	connect_again(pair);
	write_late_from(pair, "system", leave_late);
	connect_again(pair);
	write_late_from(pair, "exec", execute_late);
}

CASE(exec_inherits)
{
	char buffer[16];
	pid_t pid;

	must(dup2(pair->server, SHELL_FD) == SHELL_FD, "dup2");
	put(pair->client, "unread");
	fflush(stdout);
	pid = vfork();
	if (pid == 0) {
		execl("/bin/sh", "sh", "-c", "printf exec >&9", (char *)NULL);
		_exit(9);
	}
	must(waitpid(pid, NULL, 0) == pid, "wait");
	show_bytes("recv", buffer, recv(pair->client, buffer, 4, MSG_WAITALL));
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
}
