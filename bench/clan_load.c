// SPDX-License-Identifier: Apache-2.0
/*
 * What bench/clan runs: a server and clients in processes of their own, which exchange messages by
 * clan, TCP or a Unix socket for a time. Prints one JSON object.
 *
 *   clan_load WORK CARRIER SECONDS BYTES BATCH WINDOW CLIENTS IDLE SERVER_CPU CLIENT_CPU
 *
 * WORK     echo      WINDOW messages are under way, each is answered by one like it
 *          rpc       the same with calls of <gmblock/clan_rpc.h>; over sockets it is echo
 *          messages, put, stream   the client sends for SECONDS, the server takes and forgets; put
 *                    is with a notification for each
 *          get       the client reads memory of the server, which sleeps
 *          tripwire  the client puts to a tripwire of the server, which answers with a message
 * CARRIER  futex socket poll (clan over shared memory, by the way to wake), clan-tcp and ofi (clan
 *          over TCP, by sockets of its own and by libfabric), tcp, unix
 * BYTES    of a message; those of clan include their head of 8 bytes
 * BATCH    what is sent one way is published, or given to the kernel, when there are so many; in an
 *          echo over sockets: 1 = a system call for each message, else one for all that there are
 * IDLE     connections of another process that say nothing; CPU: a number, or -1 for any
 *
 * Servers of one connection over sockets wait in recv(2), those of several in epoll_wait(2).
 * Threading: one thread per process. Errors: ends with status 1 and a message; 77 where the carrier
 * cannot be had.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmblock/clan_memory.h>
#include <gmblock/clan_rpc.h>

#include "samples.h"

enum {
	CLIENTS_MAX = 256,
	BUFFER_BYTES = 4 << 20,
	REGION_BYTES = 8 << 20,
	EVENTS_MAX = 64,
	ONE_WAY_SLOTS = 4096, /* 256 KiB, about what TCP takes */
	ONE_WAY_LOOKS = 32,   /* messages between two looks at the clock */
	MESSAGE_DATA = 1,
	MESSAGE_END = 2,
	MESSAGE_COOKIE = 3,
	STATUS_UNAVAILABLE = 77,
};

/* From WORK_PUT on: with a region of the server. */
enum work { WORK_ECHO, WORK_RPC, WORK_MESSAGES, WORK_STREAM, WORK_PUT, WORK_GET, WORK_TRIP, WORKS };
static const char *const work_names[WORKS] = { "echo", "rpc", "messages", "stream", "put", "get",
	"tripwire" };

/* What one client found; in memory that all processes share. */
struct result {
	uint64_t count;
	uint64_t elapsed_ns;
	uint64_t cpu_ns;
	uint64_t p50_ns; /* with WINDOW 1 */
	uint64_t p99_ns;
	uint64_t bells; /* system calls that woke the server */
};

static struct {
	enum work work;
	const char *carrier;
	bool clan;
	bool network; /* clan over libfabric */
	struct clan_queue_options queue_options;
	uint64_t duration_ns;
	uint32_t bytes;
	uint32_t batch;
	uint32_t window;
	uint32_t clients;
	uint32_t idle;
	int cpus[2];   /* server, clients */
	char *address; /* shared: the server says where it listens */
	int listener;  /* sockets */
	int ready_r, ready_w, go_r, go_w;
	struct result *results;
} load;

static char *buffer; /* BUFFER_BYTES */

static void __attribute__((format(printf, 1, 2), noreturn)) die(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "clan_load %s %s: ", work_names[load.work], load.carrier);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	_exit(1);
}

static int checked(int result, const char *what)
{
	if (result < 0) {
		die("%s: %s", what, strerror(errno));
	}
	return result;
}

static void pin(int cpu)
{
	cpu_set_t set;

	if (cpu >= 0) {
		CPU_ZERO(&set);
		CPU_SET((size_t)cpu, &set);
		checked(sched_setaffinity(0, sizeof(set), &set), "sched_setaffinity");
	}
}

/* Tells the master that this process is ready; clients then wait for all others. */
static void say_ready(void)
{
	checked((int)write(load.ready_w, "", 1), "write");
}

static void wait_for_go(void)
{
	char byte;

	say_ready();
	checked((int)read(load.go_r, &byte, 1), "read");
}

/* --- what a client measures --------------------------------------------------------- */

static struct samples samples;
static uint64_t started_ns;
static uint64_t started_cpu_ns;

static void start_clock(void)
{
	wait_for_go();
	started_cpu_ns = samples_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	started_ns = samples_now_ns();
}

static void stop_clock(uint32_t client, uint64_t count, uint64_t bells)
{
	uint64_t kept = samples.count < SAMPLES_MAX ? samples.count : SAMPLES_MAX;
	struct result *result = &load.results[client];

	result->elapsed_ns = samples_now_ns() - started_ns;
	result->cpu_ns = samples_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - started_cpu_ns;
	result->count = count;
	result->bells = bells;
	if (kept > 0) {
		qsort(samples.latency_ns, kept, sizeof(uint64_t), samples_compare);
		result->p50_ns = samples.latency_ns[kept / 2];
		result->p99_ns = samples.latency_ns[kept * 99 / 100];
	}
}

static bool time_is_up(void)
{
	return samples_now_ns() - started_ns >= load.duration_ns;
}

/* --- clan --------------------------------------------------------------------------- */

static struct clan_conn_options conn_options(void)
{
	return (struct clan_conn_options){
		.size = sizeof(struct clan_conn_options),
		.access = load.network ? CLAN_ACCESS_ANY : CLAN_ACCESS_OWNER,
		.handshake_timeout_ms = 60000,
		.bulk_slots = load.work == WORK_ECHO ? 0 : ONE_WAY_SLOTS,
	};
}

static struct clan_queue *make_queue(void)
{
	struct clan_queue *queue;
	struct clan_error error;
	int result = clan_queue_create(&load.queue_options, &queue, &error);

	if (result == -EOPNOTSUPP) {
		fprintf(stderr, "%s\n", error.text);
		_exit(STATUS_UNAVAILABLE);
	}
	if (result != 0) {
		die("%s", error.text);
	}
	return queue;
}

static void __attribute__((noreturn)) cannot_listen(const struct clan_error *error)
{
	if (error->code == -EPROTONOSUPPORT) { /* libfabric is not installed */
		fprintf(stderr, "%s\n", error->text);
		_exit(STATUS_UNAVAILABLE);
	}
	die("%s", error->text);
}

static struct clan_event next_event(struct clan_queue *queue)
{
	struct clan_event event;

	while (clan_queue_wait(queue, &event, 1, -1) == 0) {
	}
	if (event.type == CLAN_EVENT_LOST) {
		die("a connection was lost: %s", clan_conn_reason(event.conn));
	}
	return event;
}

static struct clan_conn *dial(struct clan_queue *queue)
{
	struct clan_conn_options options = conn_options();
	struct clan_conn *conn;
	struct clan_error error;

	if (clan_connect(queue, load.address, &options, NULL, 0, &conn, &error) != 0) {
		die("%s", error.text);
	}
	while (next_event(queue).type != CLAN_EVENT_CONNECTED) {
	}
	return conn;
}

static struct clan_message receive(struct clan_queue *queue, struct clan_conn *conn)
{
	struct clan_message message;
	int result;

	while ((result = clan_recv(conn, CLAN_ANY, &message, buffer, BUFFER_BYTES)) == -EAGAIN) {
		next_event(queue);
	}
	if (result != 0) {
		die("clan_recv: %s", strerror(-result));
	}
	return message;
}

static void send_one(struct clan_conn *conn, uint32_t type, uint32_t bytes)
{
	int result = clan_send(conn, CLAN_BULK, type, buffer, bytes);

	if (result != 0) {
		die("clan_send: %s", strerror(-result));
	}
}

/* One piece of one-way work; -EAGAIN when it has to wait. */
static ssize_t push(
	struct clan_conn *conn, const struct clan_cookie *cookie, uint64_t number, uint32_t done)
{
	struct iovec iov = { .iov_base = buffer + done, .iov_len = load.bytes - done };
	uint64_t offset = number % (REGION_BYTES / load.bytes) * load.bytes;
	int result;

	if (load.work == WORK_STREAM) {
		return clan_writev(conn, &iov, 1);
	}
	if (load.work == WORK_PUT || load.work == WORK_TRIP) {
		bool notify = load.work == WORK_PUT;

		result = clan_put(
			conn, &iov, 1, cookie, offset, notify ? CLAN_NOTIFY : 0, notify, NULL);
	} else if (load.work == WORK_GET) {
		result = clan_get(conn, &iov, 1, cookie, offset, NULL);
	} else {
		result = clan_send(conn, CLAN_BULK, MESSAGE_DATA, buffer, load.bytes - 8);
	}
	return result != 0 ? result : (ssize_t)load.bytes;
}

static uint64_t run_one_way(
	struct clan_queue *queue, struct clan_conn *conn, const struct clan_cookie *cookie)
{
	uint64_t count = 0;

	do {
		for (uint32_t i = 0; i < ONE_WAY_LOOKS; i++) {
			for (uint32_t done = 0; done < load.bytes;) {
				ssize_t result = push(conn, cookie, count, done);

				if (result == -EAGAIN) {
					next_event(queue);
				} else if (result < 0) {
					die("cannot send: %s", strerror((int)-result));
				} else {
					done += (uint32_t)result;
				}
			}
			if (++count % load.batch == 0) {
				clan_flush(conn);
			}
		}
	} while (!time_is_up());
	while (clan_send(conn, CLAN_BULK, MESSAGE_END, NULL, 0) == -EAGAIN) {
		next_event(queue);
	}
	receive(queue, conn);
	return count;
}

static uint64_t run_echo(
	struct clan_queue *queue, struct clan_conn *conn, const struct clan_cookie *cookie)
{
	uint64_t count = 0;

	for (uint32_t i = 1; i < load.window; i++) {
		push(conn, cookie, 0, 0);
	}
	for (uint64_t now_ns = started_ns; now_ns - started_ns < load.duration_ns; count++) {
		uint64_t before_ns = now_ns;
		ssize_t sent;

		if ((sent = push(conn, cookie, 0, 0)) < 0) {
			die("cannot send: %s", strerror((int)-sent));
		}
		receive(queue, conn);
		now_ns = samples_now_ns();
		if (load.window == 1) {
			samples_add(&samples, now_ns - before_ns);
		}
	}
	return count;
}

static void clan_client(uint32_t client)
{
	struct clan_conn_stats stats = { .size = sizeof(stats) };
	struct clan_queue *queue = make_queue();
	struct clan_conn *conn = dial(queue);
	struct clan_cookie cookie = { 0 };
	uint64_t count;

	if (load.work >= WORK_PUT) {
		if (receive(queue, conn).type != MESSAGE_COOKIE) {
			die("no cookie came");
		}
		memcpy(&cookie, buffer, sizeof(cookie));
	}
	start_clock();
	count = load.work == WORK_ECHO || load.work == WORK_TRIP
			? run_echo(queue, conn, &cookie)
			: run_one_way(queue, conn, &cookie);
	clan_conn_get_stats(conn, &stats);
	stop_clock(client, count, stats.bells_rung);
}

static void clan_idle(void)
{
	struct clan_queue *queue = make_queue();

	for (uint32_t i = 0; i < load.idle; i++) {
		dial(queue);
	}
}

/* Everything that one connection has: an echo, or nothing until the end. */
static void serve_conn(struct clan_conn *conn)
{
	struct iovec iov = { .iov_base = buffer, .iov_len = BUFFER_BYTES };
	struct clan_message message;
	ssize_t bytes = 0;

	do {
		if (load.work == WORK_STREAM) {
			while ((bytes = clan_readv(conn, &iov, 1, 0)) > 0) {
			}
			if (bytes == -EAGAIN) {
				return;
			}
		}
		while (clan_recv(conn, CLAN_ANY, &message, buffer, BUFFER_BYTES) == 0) {
			if (load.work == WORK_ECHO || message.type == MESSAGE_END) {
				send_one(conn, message.type, message.bytes);
			}
		}
	} while (bytes == -EBADMSG);
}

static void grant(struct clan_conn *conn, struct clan_region *region)
{
	struct clan_cookie cookie;
	uint32_t tripwire;
	int result = clan_cookie_grant(
		conn, region, 0, REGION_BYTES, CLAN_READ | CLAN_WRITE, 0, &cookie);

	if (result == 0 && load.work == WORK_TRIP) {
		result = clan_tripwire(conn, region, 0, load.bytes, &tripwire);
	}
	if (result == 0) {
		result = clan_send(conn, CLAN_BULK, MESSAGE_COOKIE, &cookie, sizeof(cookie));
	}
	if (result != 0) {
		die("cannot grant a cookie: %s", strerror(-result));
	}
}

static void clan_server(void)
{
	struct clan_conn_options options = conn_options();
	struct clan_queue *queue = make_queue();
	struct clan_event events[EVENTS_MAX];
	struct clan_listener *listener;
	struct clan_region *region = NULL;
	struct clan_error error;
	void *base;

	if (clan_listen(queue, load.address, &options, &listener, &error) != 0) {
		cannot_listen(&error);
	}
	snprintf(load.address, CLAN_ADDRESS_BYTES, "%s", clan_listener_address(listener));
	if (load.work >= WORK_PUT &&
		clan_region_create(queue, REGION_BYTES, 0, &region, &base) != 0) {
		die("cannot make a region");
	}
	say_ready();
	for (;;) {
		int count = clan_queue_wait(queue, events, EVENTS_MAX, -1);

		for (int i = 0; i < count; i++) {
			struct clan_conn *conn = events[i].conn;

			switch (events[i].type) {
			case CLAN_EVENT_CONNECT:
				if (clan_accept(conn, NULL, 0) != 0 ||
					(region != NULL && clan_region_share(conn, region,
								   CLAN_READ | CLAN_WRITE) != 0)) {
					die("cannot accept a connection");
				}
				break;
			case CLAN_EVENT_SHARED:
				grant(conn, region);
				break;
			case CLAN_EVENT_READY:
				serve_conn(conn);
				break;
			case CLAN_EVENT_TRIPPED:
				if (clan_rearm(conn, events[i].number) != 0) {
					die("cannot rearm");
				}
				send_one(conn, MESSAGE_DATA, 8);
				break;
			case CLAN_EVENT_LOST:
				clan_close(conn);
				break;
			default:
				break;
			}
		}
	}
}

/* --- calls -------------------------------------------------------------------------- */

static struct clan_rpc *make_rpc(void)
{
	struct clan_rpc_options options = { .size = sizeof(options),
		.node = CLAN_RPC_NO_NODE,
		.calls = load.window,
		.bytes_max = load.bytes,
		.access = load.network ? CLAN_ACCESS_ANY : CLAN_ACCESS_OWNER };
	struct clan_error error;
	struct clan_rpc *rpc;

	if (clan_rpc_create(&load.queue_options, &options, &rpc, &error) != 0) {
		die("%s", error.text);
	}
	return rpc;
}

static struct clan_rpc_event next_rpc_event(struct clan_rpc *rpc)
{
	struct clan_rpc_event event;

	while (clan_rpc_next(rpc, &event, buffer, BUFFER_BYTES, -1) == 0) {
	}
	return event;
}

static void call(struct clan_rpc *rpc)
{
	int result = clan_rpc_call(rpc, 0, MESSAGE_DATA, buffer, load.bytes, NULL);

	if (result != 0) {
		die("clan_rpc_call: %s", strerror(-result));
	}
}

static void rpc_client(uint32_t client)
{
	struct clan_rpc *rpc = make_rpc();
	struct clan_error error;
	uint64_t count = 0;

	do { /* again: on a busy machine, the time of a handshake can be too short */
		if (clan_rpc_dial(rpc, 0, load.address, &error) != 0) {
			die("%s", error.text);
		}
	} while (next_rpc_event(rpc).type != CLAN_RPC_UP);
	start_clock();
	for (uint32_t i = 1; i < load.window; i++) {
		call(rpc);
	}
	for (uint64_t now_ns = started_ns; now_ns - started_ns < load.duration_ns; count++) {
		uint64_t before_ns = now_ns;

		call(rpc);
		if (next_rpc_event(rpc).type != CLAN_RPC_REPLY) {
			die("the server has ended");
		}
		now_ns = samples_now_ns();
		if (load.window == 1) {
			samples_add(&samples, now_ns - before_ns);
		}
	}
	stop_clock(client, count, 0);
}

static void rpc_server(void)
{
	struct clan_rpc *rpc = make_rpc();
	struct clan_error error;

	if (clan_rpc_listen(rpc, load.address, &error) != 0) {
		cannot_listen(&error);
	}
	snprintf(load.address, CLAN_ADDRESS_BYTES, "%s", clan_rpc_address(rpc));
	say_ready();
	for (;;) {
		struct clan_rpc_event event = next_rpc_event(rpc);

		if (event.type == CLAN_RPC_REQUEST &&
			clan_rpc_reply(rpc, &event.request, event.kind, buffer, event.bytes) != 0) {
			die("cannot reply");
		}
	}
}

/* --- sockets ------------------------------------------------------------------------ */

static void no_delay(int fd)
{
	int one = 1;

	if (strcmp(load.carrier, "tcp") == 0) {
		checked(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), "setsockopt");
	}
}

static void socket_listen(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	bool tcp = strcmp(load.carrier, "tcp") == 0;

	load.listener = checked(socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM, 0), "socket");
	/* A Unix socket without a name gets an abstract one. */
	checked(tcp ? bind(load.listener, (struct sockaddr *)&in, sizeof(in))
		    : bind(load.listener, (struct sockaddr *)&un, sizeof(un.sun_family)),
		"bind");
	checked(listen(load.listener, SOMAXCONN), "listen");
}

static int socket_dial(void)
{
	struct sockaddr_storage address;
	socklen_t bytes = sizeof(address);
	int fd;

	checked(getsockname(load.listener, (struct sockaddr *)&address, &bytes), "getsockname");
	fd = checked(socket(address.ss_family, SOCK_STREAM, 0), "socket");
	checked(connect(fd, (struct sockaddr *)&address, bytes), "connect");
	no_delay(fd);
	return fd;
}

static void send_all(int fd, size_t bytes)
{
	while (bytes > 0) {
		bytes -= (size_t)checked(
			(int)send(fd, buffer, bytes < BUFFER_BYTES ? bytes : BUFFER_BYTES, 0),
			"send");
	}
}

/* Messages of an echo: a system call for each, or one for all. */
static void send_messages(int fd, size_t bytes)
{
	size_t piece = load.batch == 1 ? load.bytes : bytes;

	for (; bytes > piece; bytes -= piece) {
		send_all(fd, piece);
	}
	send_all(fd, bytes);
}

static size_t receive_some(int fd)
{
	return (size_t)checked((int)recv(fd, buffer, BUFFER_BYTES, 0), "recv");
}

static uint64_t socket_one_way(int fd)
{
	uint64_t count = 0;
	uint64_t looks = load.batch > ONE_WAY_LOOKS ? load.batch : ONE_WAY_LOOKS;

	do {
		for (uint64_t i = 0; i < looks; i += load.batch, count += load.batch) {
			send_all(fd, (size_t)load.batch * load.bytes);
		}
	} while (!time_is_up());
	checked(shutdown(fd, SHUT_WR), "shutdown");
	receive_some(fd); /* the server has taken everything */
	return count;
}

static uint64_t socket_echo(int fd)
{
	uint64_t count = 0;
	size_t part = 0;
	size_t answered = 1;

	send_messages(fd, (size_t)(load.window - 1) * load.bytes);
	for (uint64_t now_ns = started_ns; now_ns - started_ns < load.duration_ns;) {
		uint64_t before_ns = now_ns;

		send_messages(fd, answered * load.bytes);
		do {
			part += receive_some(fd);
		} while (part < load.bytes);
		answered = part / load.bytes;
		part %= load.bytes;
		count += answered;
		now_ns = samples_now_ns();
		if (load.window == 1) {
			samples_add(&samples, now_ns - before_ns);
		}
	}
	return count;
}

static void socket_client(uint32_t client)
{
	int fd = socket_dial();
	uint64_t count;

	start_clock();
	count = load.work <= WORK_RPC ? socket_echo(fd) : socket_one_way(fd);
	stop_clock(client, count, 0);
	if (load.work <= WORK_RPC) { /* what is under way, so that the server can send it */
		checked(shutdown(fd, SHUT_WR), "shutdown");
		while (receive_some(fd) > 0) {
		}
	}
}

static void socket_idle(void)
{
	for (uint32_t i = 0; i < load.idle; i++) {
		socket_dial();
	}
}

/* Takes what a connection has, and answers; false at its end. */
static bool socket_serve_conn(int fd)
{
	ssize_t bytes = recv(fd, buffer, BUFFER_BYTES, 0);

	if (bytes <= 0) {
		if (bytes == 0 && load.work > WORK_RPC) {
			send_all(fd, 1);
		}
		close(fd);
		return false;
	}
	if (load.work <= WORK_RPC) {
		send_messages(fd, (size_t)bytes);
	}
	return true;
}

static int socket_accept(void)
{
	int fd = checked(accept(load.listener, NULL, NULL), "accept");

	no_delay(fd);
	return fd;
}

static void socket_server(void)
{
	struct epoll_event events[EVENTS_MAX];
	struct epoll_event event = { .events = EPOLLIN, .data.fd = load.listener };
	int set;

	say_ready();
	if (load.clients + load.idle == 1) {
		int fd = socket_accept();

		while (socket_serve_conn(fd)) {
		}
		for (;;) {
			pause();
		}
	}
	set = checked(epoll_create1(0), "epoll_create1");
	checked(epoll_ctl(set, EPOLL_CTL_ADD, load.listener, &event), "epoll_ctl");
	for (;;) {
		int count = checked(epoll_wait(set, events, EVENTS_MAX, -1), "epoll_wait");

		for (int i = 0; i < count; i++) {
			int fd = events[i].data.fd;

			if (fd == load.listener) {
				event.data.fd = socket_accept();
				checked(epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event),
					"epoll_ctl");
			} else {
				socket_serve_conn(fd);
			}
		}
	}
}

/* --- processes ---------------------------------------------------------------------- */

static void run_server(uint32_t number)
{
	(void)number;
	load.clan ? (load.work == WORK_RPC ? rpc_server() : clan_server()) : socket_server();
}

static void run_idle(uint32_t number)
{
	(void)number;
	load.clan ? clan_idle() : socket_idle();
	say_ready();
	for (;;) {
		pause();
	}
}

static void run_client(uint32_t number)
{
	samples_init(&samples);
	load.clan ? (load.work == WORK_RPC ? rpc_client(number) : clan_client(number))
		  : socket_client(number);
}

static pid_t start(void (*run)(uint32_t number), uint32_t number, int cpu)
{
	pid_t child = checked(fork(), "fork");

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(load.go_w); /* only the master says it, by closing it */
		pin(cpu);
		buffer = malloc(BUFFER_BYTES);
		if (buffer == NULL) {
			die("no memory");
		}
		memset(buffer, 0x5a, BUFFER_BYTES);
		run(number);
		_exit(0);
	}
	return child;
}

static void stop(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

/* Until so many children are ready; child_ended() ends the wait when one cannot be. */
static void wait_ready(uint32_t count)
{
	char byte;

	while (count-- > 0) {
		checked((int)read(load.ready_r, &byte, 1), "read");
	}
}

static void child_ended(int signal_number)
{
	siginfo_t info = { 0 };

	(void)signal_number;
	/* The child stays, so that those who wait for it find it. */
	if (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
		info.si_code == CLD_EXITED && info.si_status != 0) {
		_exit(info.si_status); /* the others have PR_SET_PDEATHSIG */
	}
}

static uint64_t cpu_of(pid_t child)
{
	clockid_t clock;

	errno = clock_getcpuclockid(child, &clock);
	if (errno != 0) {
		die("clock_getcpuclockid: %s", strerror(errno));
	}
	return samples_clock_ns(clock);
}

/* Resident memory, with that of its peers that is mapped. */
static uint64_t memory_of(pid_t child)
{
	unsigned long size, resident;
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/statm", (int)child);
	file = fopen(path, "re");
	if (file == NULL || fscanf(file, "%lu %lu", &size, &resident) != 2) {
		die("cannot read %s", path);
	}
	fclose(file);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void print(uint64_t server_cpu_ns, uint64_t idle_bytes)
{
	double rate = 0, client_cpu_ns = 0, p50 = 0, p99 = 0, bells = 0;
	double count = 0;

	for (uint32_t i = 0; i < load.clients; i++) {
		const struct result *result = &load.results[i];

		if (result->count == 0) {
			die("a client got nothing done");
		}
		rate += (double)result->count / ((double)result->elapsed_ns / 1e9);
		count += (double)result->count;
		client_cpu_ns += (double)result->cpu_ns;
		p50 += (double)result->p50_ns;
		p99 += (double)result->p99_ns;
		bells += (double)result->bells;
	}
	printf("{ \"rate\": %.3f, \"bytes_per_s\": %.1f, \"latency_p50_us\": %.4f, "
	       "\"latency_p99_us\": %.4f, \"server_cpu_us\": %.5f, \"client_cpu_us\": %.5f, "
	       "\"client_bells\": %.5f, \"idle_connection_bytes\": %.1f }\n",
		rate, rate * load.bytes, p50 / load.clients / 1e3, p99 / load.clients / 1e3,
		(double)server_cpu_ns / count / 1e3, client_cpu_ns / count / 1e3, bells / count,
		load.idle > 0 ? (double)idle_bytes / load.idle : 0);
}

static void run_all(void)
{
	pid_t clients[CLIENTS_MAX];
	uint64_t memory = 0, cpu_ns;
	pid_t server, idle = 0;
	int status;

	server = start(run_server, 0, load.cpus[0]);
	wait_ready(1);
	if (load.idle > 0) {
		memory = memory_of(server);
		idle = start(run_idle, 0, load.cpus[1]);
		wait_ready(1);
		memory = memory_of(server) - memory;
	}
	for (uint32_t i = 0; i < load.clients; i++) {
		clients[i] = start(run_client, i, load.cpus[1]);
	}
	wait_ready(load.clients);
	cpu_ns = cpu_of(server);
	close(load.go_w);
	for (uint32_t i = 0; i < load.clients; i++) {
		checked(waitpid(clients[i], &status, 0), "waitpid");
		if (status != 0) {
			die("a client ended with status %x", (unsigned)status);
		}
	}
	cpu_ns = cpu_of(server) - cpu_ns;
	if (idle != 0) {
		stop(idle);
	}
	stop(server);
	print(cpu_ns, memory);
}

static uint32_t number_of(const char *text, uint32_t most)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*text == '\0' || *end != '\0' || value > most) {
		fprintf(stderr, "clan_load: %s is not a number up to %u\n", text, most);
		exit(2);
	}
	return (uint32_t)value;
}

static int cpu_number(const char *text)
{
	return strcmp(text, "-1") == 0 ? -1 : (int)number_of(text, CPU_SETSIZE - 1);
}

static void set_carrier(const char *name)
{
	static const char *const names[] = { "futex", "socket", "poll", "clan-tcp", "ofi", "tcp",
		"unix" };
	size_t kind = 0;

	while (kind < 7 && strcmp(name, names[kind]) != 0) {
		kind++;
	}
	if (kind == 7) {
		fprintf(stderr, "clan_load: no carrier is called %s\n", name);
		exit(2);
	}
	load.carrier = names[kind];
	load.clan = kind < 5;
	load.network = kind == 3 || kind == 4;
	load.queue_options = (struct clan_queue_options){ .size = sizeof(load.queue_options),
		.bell = kind == 1      ? CLAN_BELL_SOCKET
			: load.network ? CLAN_BELL_AUTO
				       : CLAN_BELL_FUTEX,
		.spin_us = kind == 2 ? 1000000 : 0 };
	if (load.network) {
		snprintf(load.address, CLAN_ADDRESS_BYTES, "%s:127.0.0.1:0",
			kind == 3 ? "tcp" : "ofi");
	} else {
		snprintf(load.address, CLAN_ADDRESS_BYTES, "shm:@gmblock-bench-%d", (int)getpid());
	}
}

static void raise_limits(void)
{
	struct rlimit limit;

	checked(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
	limit.rlim_cur = limit.rlim_max;
	checked(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
}

int main(int argc, char **argv)
{
	int ends[2];

	if (argc != 11) {
		fprintf(stderr,
			"usage: clan_load WORK CARRIER SECONDS BYTES BATCH WINDOW CLIENTS IDLE "
			"SERVER_CPU CLIENT_CPU\n");
		return 2;
	}
	while (load.work < WORKS && strcmp(argv[1], work_names[load.work]) != 0) {
		load.work++;
	}
	load.results = mmap(NULL, CLIENTS_MAX * sizeof(struct result) + CLAN_ADDRESS_BYTES,
		PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (load.results == MAP_FAILED) {
		die("no memory");
	}
	load.address = (char *)(load.results + CLIENTS_MAX);
	set_carrier(argv[2]);
	load.duration_ns = samples_time_of(argv[3]);
	load.bytes = number_of(argv[4], BUFFER_BYTES);
	load.batch = number_of(argv[5], ONE_WAY_LOOKS);
	load.window = number_of(argv[6], 128);
	load.clients = number_of(argv[7], CLIENTS_MAX);
	load.idle = number_of(argv[8], 100000);
	load.cpus[0] = cpu_number(argv[9]);
	load.cpus[1] = cpu_number(argv[10]);
	if (load.work == WORKS || load.bytes < 16 || load.batch == 0 || load.window == 0 ||
		load.clients == 0) {
		fprintf(stderr, "clan_load: there is no such work\n");
		return 2;
	}
	raise_limits();
	checked(pipe(ends), "pipe");
	load.ready_r = ends[0];
	load.ready_w = ends[1];
	checked(pipe(ends), "pipe");
	load.go_r = ends[0];
	load.go_w = ends[1];
	signal(SIGCHLD, child_ended);
	if (!load.clan) {
		socket_listen();
	}
	run_all();
	return 0;
}
