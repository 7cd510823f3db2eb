// SPDX-License-Identifier: Apache-2.0
/*
 * Reading, writing, ends, options, and much at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"
#include "semantics.h"

/* --- every call that reads -------------------------------------------------------------------- */

enum { READERS = 7 };
static const char *const reader_names[READERS] = { "read", "readv", "recv", "recvfrom", "recvmsg",
	"recvmmsg", "recvfrom-name" };

static ssize_t read_by(int kind, int fd, char *buffer, size_t bytes, int flags)
{
	struct iovec iov[2] = { { buffer, bytes / 2 }, { buffer + bytes / 2, bytes - bytes / 2 } };
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 };
	struct mmsghdr many = { .msg_hdr = message };
	struct sockaddr_in name;
	socklen_t length = sizeof(name);
	ssize_t got;

	switch (kind) {
	case 0:
		return read(fd, buffer, bytes);
	case 1:
		return readv(fd, iov, 2);
	case 2:
		return recv(fd, buffer, bytes, flags);
	case 3:
		return recvfrom(fd, buffer, bytes, flags, NULL, NULL);
	case 4:
		got = recvmsg(fd, &message, flags);
		return got;
	case 5:
		return recvmmsg(fd, &many, 1, flags, NULL) == 1 ? (ssize_t)many.msg_len : -1;
	default:
		got = recvfrom(fd, buffer, bytes, flags, (struct sockaddr *)&name, &length);
		must(got < 0 || length == 0, "TCP gives no name");
		return got;
	}
}

CASE(readers)
{
	char buffer[64];

	for (int kind = 0; kind < READERS; kind++) {
		const char *name = reader_names[kind];

		put(pair->client, "hello world");
		arrived(pair->server, 11);
		show_bytes(name, buffer, read_by(kind, pair->server, buffer, 5, 0));
		show_bytes(name, buffer, read_by(kind, pair->server, buffer, sizeof(buffer), 0));
		set_nonblocking(pair->server, true);
		show_bytes(name, buffer, read_by(kind, pair->server, buffer, sizeof(buffer), 0));
		set_nonblocking(pair->server, false);
	}
}

CASE(readers_flags)
{
	char buffer[64];

	for (int kind = 2; kind < READERS; kind++) {
		const char *name = reader_names[kind];

		show_bytes(name, buffer,
			read_by(kind, pair->server, buffer, sizeof(buffer), MSG_DONTWAIT));
		put(pair->client, "one");
		put(pair->client, "two");
		arrived(pair->server, 6);
		show_bytes(name, buffer,
			read_by(kind, pair->server, buffer, sizeof(buffer), MSG_PEEK));
		show_bytes(name, buffer, read_by(kind, pair->server, buffer, 4, MSG_PEEK));
		show_bytes(name, buffer, read_by(kind, pair->server, buffer, 6, MSG_WAITALL));
		put(pair->client, "thrown");
		arrived(pair->server, 6);
		show(name, read_by(kind, pair->server, buffer, 4, MSG_TRUNC));
		show_bytes(name, buffer, read_by(kind, pair->server, buffer, sizeof(buffer), 0));
		put(pair->client, "flag");
		arrived(pair->server, 4);
		show_bytes(name, buffer,
			read_by(kind, pair->server, buffer, sizeof(buffer),
				MSG_DONTWAIT | MSG_MORE));
	}
}

/* Without data a limit of recvmmsg() does not end it: the kernel looks at it after each message. */
CASE(many_messages)
{
	struct timespec limits[] = { { 0, 0 }, { 3600, 0 } };
	char buffers[3][4];
	struct iovec iov[3];
	struct mmsghdr many[3];

	for (int i = 0; i < 3; i++) {
		iov[i] = (struct iovec){ buffers[i], sizeof(buffers[i]) };
	}
	for (size_t i = 0; i < ARRAY_COUNT(limits); i++) {
		int got;

		for (int j = 0; j < 3; j++) {
			many[j] = (struct mmsghdr){ .msg_hdr = {
							    .msg_iov = &iov[j], .msg_iovlen = 1 } };
		}
		put(pair->client, "one+two+end.");
		arrived(pair->server, 12);
		got = recvmmsg(pair->server, many, 3, 0, &limits[i]);
		show("recvmmsg with a limit", got);
		for (int j = 0; j < got; j++) {
			show_bytes("message", buffers[j], (ssize_t)many[j].msg_len);
		}
		show("seconds left", limits[i].tv_sec > 3000);
		while (recv(pair->server, buffers[0], sizeof(buffers[0]), MSG_DONTWAIT) > 0) {
		}
	}
	limits[0].tv_nsec = -1;
	show("recvmmsg with a negative limit", recvmmsg(pair->server, many, 3, 0, &limits[0]));
}

/* --- every call that writes ------------------------------------------------------------------- */

enum { WRITERS = 7 };
static const char *const writer_names[WRITERS] = { "write", "writev", "send", "sendto", "sendmsg",
	"sendmmsg", "dprintf" };

static ssize_t write_by(int kind, int fd, const char *text, size_t bytes, int flags)
{
	char *bytes_of = (char *)(uintptr_t)text;
	struct iovec iov[2] = { { bytes_of, bytes / 2 },
		{ bytes_of + bytes / 2, bytes - bytes / 2 } };
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 };
	struct mmsghdr many = { .msg_hdr = message };

	switch (kind) {
	case 0:
		return write(fd, text, bytes);
	case 1:
		return writev(fd, iov, 2);
	case 2:
		return send(fd, text, bytes, flags);
	case 3:
		return sendto(fd, text, bytes, flags, NULL, 0);
	case 4:
		return sendmsg(fd, &message, flags);
	case 5:
		return sendmmsg(fd, &many, 1, flags) == 1 ? (ssize_t)many.msg_len : -1;
	default:
		return dprintf(fd, "%.*s", (int)bytes, text);
	}
}

CASE(writers)
{
	static const int flags[] = { 0, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_MORE | MSG_NOSIGNAL };
	char buffer[64];

	for (int kind = 0; kind < WRITERS; kind++) {
		show(writer_names[kind], write_by(kind, pair->server, "some bytes", 10, 0));
		show_bytes("read", buffer, read(pair->client, buffer, sizeof(buffer)));
		show("nothing", kind == 6 ? 0 : write_by(kind, pair->server, "", 0, 0));
	}
	for (size_t i = 0; i < ARRAY_COUNT(flags); i++) {
		show("flags", write_by(2, pair->client, "flagged", 7, flags[i]));
		if ((flags[i] & MSG_MORE) != 0) {
			show("more", write_by(2, pair->client, "!", 1, 0));
		}
		show_bytes("recv", buffer,
			recv(pair->server, buffer, (flags[i] & MSG_MORE) != 0 ? 8 : 7,
				MSG_WAITALL));
	}
}

static void *write_second(void *argument)
{
	const struct pair *pair = argument;

	must(poll(NULL, 0, LONG_MS) == 0, "a moment");
	put(pair->client, " second");
	return NULL;
}

static long spent_ms(void)
{
	struct timespec now;

	must(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0, "time");
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A look that waits for all of it sleeps meanwhile. */
CASE(peeks_for_all)
{
	char buffer[32];
	pthread_t thread;
	long before_ms;

	put(pair->client, "first");
	arrived(pair->server, 5);
	must(pthread_create(&thread, NULL, write_second, pair) == 0, "thread");
	before_ms = spent_ms();
	show_bytes("peek", buffer, recv(pair->server, buffer, 12, MSG_PEEK | MSG_WAITALL));
	show("spins", spent_ms() - before_ms > LONG_MS / 3);
	pthread_join(thread, NULL);
	show_bytes("read", buffer, recv(pair->server, buffer, 12, MSG_WAITALL));
	put(pair->client, "rest");
	arrived(pair->server, 4);
	show_bytes("not all", buffer,
		recv(pair->server, buffer, 12, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
	shutdown(pair->client, SHUT_WR);
	show_bytes("up to the end", buffer, recv(pair->server, buffer, 12, MSG_PEEK | MSG_WAITALL));
	show_bytes("read", buffer, recv(pair->server, buffer, 12, MSG_WAITALL));
}

CASE(empty_reads)
{
	char byte;

	show("read 0", read(pair->server, &byte, 0));
	show("recv 0", recv(pair->server, &byte, 0, MSG_DONTWAIT));
	put(pair->client, "x");
	arrived(pair->server, 1);
	show("recv 0 with bytes", recv(pair->server, &byte, 0, MSG_DONTWAIT));
	show_bytes("read", &byte, read(pair->server, &byte, 1));
}

/* --- ends ------------------------------------------------------------------------------------- */

CASE(half_close)
{
	char buffer[16];

	put(pair->client, "last");
	show("shutdown", shutdown(pair->client, SHUT_WR));
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	show("end", read(pair->server, buffer, sizeof(buffer)));
	show("end again", read(pair->server, buffer, sizeof(buffer)));
	put(pair->server, "still");
	show_bytes("other way", buffer, read(pair->client, buffer, sizeof(buffer)));
	signal(SIGPIPE, SIG_IGN);
	show("write after", write(pair->client, "x", 1));
	signal(SIGPIPE, SIG_DFL);
	show("close", close(pair->server));
	pair->server = -1;
	show("end", read(pair->client, buffer, sizeof(buffer)));
}

CASE(close_with_data)
{
	char buffer[16];

	put(pair->client, "before the end");
	show("close", close(pair->client));
	pair->client = -1;
	show_bytes("read", buffer, read(pair->server, buffer, 6));
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	show("end", read(pair->server, buffer, sizeof(buffer)));
}

CASE(end_for_nonblocking)
{
	char buffer[16];

	set_nonblocking(pair->server, true);
	show("nothing", read(pair->server, buffer, sizeof(buffer)));
	close(pair->client);
	pair->client = -1;
	show("ready", wait_ready(pair->server, POLLIN | POLLRDHUP, WAIT_MS));
	show("end", read(pair->server, buffer, sizeof(buffer)));
}

CASE(close_unread)
{
	char buffer[16];
	int error = 0;
	socklen_t length = sizeof(error);

	put(pair->client, "never read");
	put(pair->server, "sent before");
	close(pair->server);
	pair->server = -1;
	wait_ready(pair->client, POLLRDHUP, WAIT_MS);
	show_bytes("read", buffer, recv(pair->client, buffer, 4, 0));
	show("SO_ERROR", getsockopt(pair->client, SOL_SOCKET, SO_ERROR, &error, &length));
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
	signals++;
}

CASE(broken_pipe)
{
	ssize_t sent;
	int tries = 0;

	signals = 0;
	signal(SIGPIPE, count_signal);
	close(pair->server);
	pair->server = -1;
	do {
		sent = write(pair->client, "x", 1);
	} while (sent == 1 && ++tries < 1000);
	show("write", sent);
	show("signals", signals);
	show("send", send(pair->client, "x", 1, MSG_NOSIGNAL));
	show("signals", signals);
	show("writev", writev(pair->client, &(struct iovec){ (char *)(uintptr_t) "x", 1 }, 1));
	show("signals", signals);
	signal(SIGPIPE, SIG_DFL);
}

CASE(shut_for_reading)
{
	char buffer[16];

	put(pair->client, "queued");
	show("shutdown", shutdown(pair->server, SHUT_RD));
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	show("end", read(pair->server, buffer, sizeof(buffer)));
	show("ready", wait_ready(pair->server, POLLIN, 0));
	put(pair->server, "answer");
	show_bytes("other way", buffer, read(pair->client, buffer, sizeof(buffer)));
}

CASE(shut_both)
{
	char buffer[16];

	put(pair->client, "queued");
	show("shutdown", shutdown(pair->client, SHUT_RDWR));
	show("own end", read(pair->client, buffer, sizeof(buffer)));
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
	show("end", read(pair->server, buffer, sizeof(buffer)));
}

/* --- options and control ---------------------------------------------------------------------- */

CASE(time_outs)
{
	struct timeval limit = { .tv_usec = SHORT_MS * 1000 };
	char buffer[16];

	show("set", setsockopt(pair->server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	show("read", read(pair->server, buffer, sizeof(buffer)));
	put(pair->client, "abc");
	show_bytes("wait for all", buffer, recv(pair->server, buffer, 6, MSG_WAITALL));
	show("recv", recv(pair->server, buffer, sizeof(buffer), 0));
}

CASE(counts_of_bytes)
{
	char buffer[16];
	int bytes = -1;

	show("FIONREAD", ioctl(pair->server, FIONREAD, &bytes));
	show("bytes", bytes);
	put(pair->client, "twelve");
	put(pair->client, " bytes");
	arrived(pair->server, 12);
	show("FIONREAD", ioctl(pair->server, FIONREAD, &bytes));
	show("bytes", bytes);
	show_bytes("read", buffer, read(pair->server, buffer, 5));
	show("FIONREAD", ioctl(pair->server, FIONREAD, &bytes));
	show("bytes", bytes);
}

CASE(without_blocking)
{
	char byte;
	int on = 1;

	show("FIONBIO", ioctl(pair->server, FIONBIO, &on));
	show("read", read(pair->server, &byte, 1));
	show("flag", (fcntl(pair->server, F_GETFL) & O_NONBLOCK) != 0);
	on = 0;
	show("FIONBIO", ioctl(pair->server, FIONBIO, &on));
	show("recv", recv(pair->server, &byte, 1, MSG_DONTWAIT));
	put(pair->client, "x");
	show_bytes("read", &byte, read(pair->server, &byte, 1));
}

CASE(low_water)
{
	char buffer[16];
	int four = 4;

	show("set", setsockopt(pair->server, SOL_SOCKET, SO_RCVLOWAT, &four, sizeof(four)));
	put(pair->client, "ab");
	show("too few", wait_ready(pair->server, POLLIN, SHORT_MS));
	put(pair->client, "cd");
	show("enough", wait_ready(pair->server, POLLIN, WAIT_MS));
	show_bytes("read", buffer, read(pair->server, buffer, sizeof(buffer)));
}

CASE(out_of_band)
{
	char buffer[16];

	put(pair->client, "before");
	show("send", send(pair->client, "!", 1, MSG_OOB));
	put(pair->client, "after");
	show("urgent", wait_ready(pair->server, POLLPRI, WAIT_MS));
	show_bytes("recv", buffer, recv(pair->server, buffer, sizeof(buffer), MSG_OOB));
	show_bytes("read", buffer, recv(pair->server, buffer, 6, MSG_WAITALL));
	show_bytes("read", buffer, recv(pair->server, buffer, 5, MSG_WAITALL));
}

CASE(no_delay)
{
	int on = 1;
	int value = 0;
	socklen_t length = sizeof(value);
	char buffer[16];

	show("set", setsockopt(pair->client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	show("get", getsockopt(pair->client, IPPROTO_TCP, TCP_NODELAY, &value, &length));
	show("value", value != 0);
	show("cork", setsockopt(pair->client, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)));
	put(pair->client, "corked");
	on = 0;
	show("cork", setsockopt(pair->client, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)));
	show_bytes("recv", buffer, recv(pair->server, buffer, 6, MSG_WAITALL));
}

/* Options that were set before there was a connection. */
CASE(early_options)
{
	static const struct {
		int level;
		int option;
	} options[] = { { SOL_SOCKET, SO_TIMESTAMP }, { SOL_SOCKET, SO_TIMESTAMPNS },
		{ IPPROTO_TCP, TCP_INQ } };

	for (size_t i = 0; i < ARRAY_COUNT(options); i++) {
		char control[64];
		char buffer[16];
		struct iovec iov = { buffer, sizeof(buffer) };
		struct msghdr message = { .msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control,
			.msg_controllen = sizeof(control) };

		close(pair->client);
		close(pair->server);
		connect_pair_with(pair, options[i].level, options[i].option);
		warm(pair);
		put(pair->client, "marked");
		arrived(pair->server, 6);
		show_bytes("recvmsg", buffer, recvmsg(pair->server, &message, 0));
		/* The kernel begins to stamp when it finds the time. */
		show("control", options[i].option == TCP_INQ && message.msg_controllen > 0);
	}
}

/* Programs look at errno after a series of calls that may have failed or not. Connections begin to
 * be carried within such calls. */
CASE(success_leaves_errno)
{
	struct pair own;
	struct epoll_event event;
	char byte = 'x';
	int changed = 0;
	int set;

	connect_pair(&own);
	set = make_set(own.server, EPOLLIN);
	for (int i = 0; i < 4 * ROUNDS; i++) {
		int from = i % 2 == 0 ? own.client : own.server;
		int to = i % 2 == 0 ? own.server : own.client;

		errno = 0;
		must(write(from, &byte, 1) == 1, "write");
		must(wait_ready(to, POLLIN, WAIT_MS) == POLLIN, "poll");
		must(i % 2 == 1 || epoll_wait(set, &event, 1, WAIT_MS) == 1, "epoll_wait");
		must(read(to, &byte, 1) == 1, "read");
		changed += errno != 0;
	}
	show("successful calls that changed errno", changed);
	close(set);
	close(own.client);
	close(own.server);
}

CASE(bad_arguments)
{
	struct iovec iov = { .iov_base = NULL, .iov_len = 1 };

	put(pair->client, "x");
	arrived(pair->server, 1);
	show("readv NULL", readv(pair->server, &iov, 1));
	show("writev NULL", writev(pair->server, &iov, 1));
	show("bad fd", read(-1, &iov, 1));
}

/* --- much ------------------------------------------------------------------------------------- */

enum { MUCH_BYTES = 3 << 20 };

struct stream_end {
	int fd;
	uint64_t sum;
	size_t bytes;
};

static void *drain(void *argument)
{
	struct stream_end *end = argument;
	static char buffer[10000];
	ssize_t got;

	while ((got = read(end->fd, buffer, sizeof(buffer))) > 0) {
		for (ssize_t i = 0; i < got; i++) {
			end->sum = end->sum * 31 + (uint8_t)buffer[i];
		}
		end->bytes += (size_t)got;
	}
	return NULL;
}

CASE(much)
{
	struct stream_end end = { .fd = pair->server };
	uint8_t *bytes = malloc(MUCH_BYTES);
	uint64_t sum = 0;
	pthread_t thread;

	for (size_t i = 0; i < MUCH_BYTES; i++) {
		bytes[i] = (uint8_t)(i * 7 + i / 251);
		sum = sum * 31 + bytes[i];
	}
	must(pthread_create(&thread, NULL, drain, &end) == 0, "thread");
	show("write", write(pair->client, bytes, MUCH_BYTES));
	shutdown(pair->client, SHUT_WR);
	pthread_join(thread, NULL);
	show("bytes", (long)end.bytes);
	show("sum", end.sum == sum);
	free(bytes);
}

/* Both ends in one thread: what TCP's buffers take must be taken. */
CASE(ahead)
{
	enum { AHEAD_BYTES = 400000 };
	char *bytes = calloc(1, AHEAD_BYTES);
	size_t got = 0;

	show("write", write(pair->client, bytes, AHEAD_BYTES));
	while (got < AHEAD_BYTES) {
		ssize_t part = read(pair->server, bytes, AHEAD_BYTES);

		must(part > 0, "read");
		got += (size_t)part;
	}
	show("read", (long)got);
	free(bytes);
}
