// SPDX-License-Identifier: Apache-2.0
/*
 * Plain loops that send parts of a file to a client on this machine, to compare the large reads of
 * a server with. There is no protocol: a request is the offset of a block, and its answer is the
 * block.
 *
 *   send_loop WAY PATH tcp|unix DEPTH BLOCK_BYTES BYTES SECONDS
 *
 * WAY is what the server does for a block:
 *
 *   map       sends from a mapping of the file
 *   populate  as map; a second thread fills the page tables some MiB ahead
 *   copy      reads the block into a buffer, and sends this
 *   pieces    as copy, in pieces of 256 KiB
 *   relay     as pieces; a second thread reads pieces meanwhile
 *   sendfile  sends with sendfile()
 *   memory    sends from one buffer, without any file
 *   direct    as copy, around the page cache
 *
 * The client reads blocks in order, from 0 to BYTES again and again. SECONDS: 0 ends after BYTES.
 * Server and client are two processes, so the page tables of the server are new. Prints one JSON
 * object: the rate, and for each block processor time and page faults of the server, and processor
 * time of the client.
 *
 * Threading: the server's second thread shares only atomic counters. Errors: exit status 1 and a
 * line on standard error.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "samples.h"

enum {
	ARGUMENTS = 8,
	ALIGNMENT = 4096,
	DEPTH_MAX = 64,
	PIECE_BYTES = 256 << 10,
	PIECES_AHEAD = 2,
	PAGE_BYTES = 4096,
	/* The kernel maps the pages around a page at the same time, if they are cached. */
	POPULATE_BYTES = 64 << 10,
	POPULATE_AHEAD_BYTES = 16 << 20,
	POPULATE_PAUSE_US = 500,
	UNIX_BUFFER_BYTES = 4 << 20,
};

struct server {
	int fd;
	int socket;
	uint64_t block_bytes;
	uint64_t bytes;
	uint8_t *map;
	uint8_t *buffer;
	_Atomic uint64_t sent_bytes; /* of the file; the second thread runs ahead of it */
	/* relay: pieces that were asked for, read, and sent */
	_Atomic uint64_t wanted;
	_Atomic uint64_t filled;
	_Atomic uint64_t drained;
	uint64_t offset; /* of the block that the wanted pieces belong to */
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "send_loop: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void send_all(struct server *server, const uint8_t *data, uint64_t bytes)
{
	while (bytes > 0) {
		ssize_t sent = send(server->socket, data, bytes, MSG_NOSIGNAL);

		if (sent <= 0) {
			fail("send");
		}
		data += sent;
		bytes -= (uint64_t)sent;
	}
}

static void read_all(struct server *server, uint8_t *buffer, uint64_t offset, uint64_t bytes)
{
	if (pread(server->fd, buffer, bytes, (off_t)offset) != (ssize_t)bytes) {
		fail("read");
	}
}

/* --- ways ------------------------------------------------------------------------------------ */

static void answer_map(struct server *server, uint64_t offset)
{
	atomic_store_explicit(&server->sent_bytes, offset, memory_order_relaxed);
	send_all(server, server->map + offset, server->block_bytes);
}

static void *populate_ahead(void *argument)
{
	struct server *server = argument;
	uint64_t at = 0;

	while (at < server->bytes) {
		uint64_t sent = atomic_load_explicit(&server->sent_bytes, memory_order_relaxed);

		if (at >= sent + POPULATE_AHEAD_BYTES) {
			usleep(POPULATE_PAUSE_US);
			continue;
		}
		if (madvise(server->map + at, PAGE_BYTES, MADV_POPULATE_READ) < 0) {
			fail("populate");
		}
		at += POPULATE_BYTES;
	}
	return NULL;
}

static void answer_copy(struct server *server, uint64_t offset)
{
	read_all(server, server->buffer, offset, server->block_bytes);
	send_all(server, server->buffer, server->block_bytes);
}

static void answer_pieces(struct server *server, uint64_t offset)
{
	for (uint64_t done = 0; done < server->block_bytes; done += PIECE_BYTES) {
		read_all(server, server->buffer, offset + done, PIECE_BYTES);
		send_all(server, server->buffer, PIECE_BYTES);
	}
}

static void *relay_read(void *argument)
{
	struct server *server = argument;
	uint64_t filled = 0;

	for (;;) {
		uint64_t drained = atomic_load_explicit(&server->drained, memory_order_acquire);

		if (filled >= atomic_load_explicit(&server->wanted, memory_order_acquire) ||
			filled >= drained + PIECES_AHEAD) {
			sched_yield();
			continue;
		}
		read_all(server, server->buffer + filled % PIECES_AHEAD * PIECE_BYTES,
			filled * PIECE_BYTES % server->bytes, PIECE_BYTES);
		atomic_store_explicit(&server->filled, ++filled, memory_order_release);
	}
	return NULL;
}

static void answer_relay(struct server *server, uint64_t offset)
{
	uint64_t end = server->drained + server->block_bytes / PIECE_BYTES;

	(void)offset;
	atomic_store_explicit(&server->wanted, end, memory_order_release);
	while (server->drained < end) {
		while (atomic_load_explicit(&server->filled, memory_order_acquire) <=
			server->drained) {
			sched_yield();
		}
		send_all(server, server->buffer + server->drained % PIECES_AHEAD * PIECE_BYTES,
			PIECE_BYTES);
		atomic_store_explicit(&server->drained, server->drained + 1, memory_order_release);
	}
}

static void answer_sendfile(struct server *server, uint64_t offset)
{
	off_t at = (off_t)offset;
	uint64_t left = server->block_bytes;

	while (left > 0) {
		ssize_t sent = sendfile(server->socket, server->fd, &at, left);

		if (sent <= 0) {
			fail("sendfile");
		}
		left -= (uint64_t)sent;
	}
}

static void answer_memory(struct server *server, uint64_t offset)
{
	(void)offset;
	send_all(server, server->buffer, server->block_bytes);
}

static const struct way {
	const char *name;
	void (*answer)(struct server *server, uint64_t offset);
	void *(*helper)(void *server); /* the second thread; NULL: none */
	int flags;		       /* of open() */
} ways[] = {
	{ "map", answer_map, NULL, 0 },
	{ "populate", answer_map, populate_ahead, 0 },
	{ "copy", answer_copy, NULL, 0 },
	{ "pieces", answer_pieces, NULL, 0 },
	{ "relay", answer_relay, relay_read, 0 },
	{ "sendfile", answer_sendfile, NULL, 0 },
	{ "memory", answer_memory, NULL, 0 },
	{ "direct", answer_copy, NULL, O_DIRECT },
};

/* --- server and client ----------------------------------------------------------------------- */

static void serve(
	const struct way *way, const char *path, int socket, uint64_t block_bytes, uint64_t bytes)
{
	struct server server = { .socket = socket, .block_bytes = block_bytes, .bytes = bytes };
	pthread_t helper;
	uint64_t offset;

	server.fd = open(path, O_RDONLY | O_CLOEXEC | way->flags);
	if (server.fd < 0) {
		fail(path);
	}
	server.map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, server.fd, 0);
	server.buffer = mmap(NULL, block_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (server.map == MAP_FAILED || server.buffer == MAP_FAILED) {
		fail("mmap");
	}
	if (way->helper != NULL && pthread_create(&helper, NULL, way->helper, &server) != 0) {
		fail("thread");
	}
	while (recv(socket, &offset, sizeof(offset), MSG_WAITALL) == sizeof(offset)) {
		way->answer(&server, offset);
	}
	_exit(0);
}

/* Connects two sockets with each other. */
static void connect_pair(bool is_tcp, int pair[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	static const char unpaced[] = "reno"; /* as gmblock within a machine */
	int buffer = UNIX_BUFFER_BYTES;
	int on = 1;
	int listener;

	if (!is_tcp) {
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) {
			fail("socketpair");
		}
		(void)setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
		return;
	}
	listener = socket(AF_INET, SOCK_STREAM, 0);
	pair[1] = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || pair[1] < 0 ||
		bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
		listen(listener, 1) < 0 ||
		getsockname(listener, (struct sockaddr *)&address, &length) < 0 ||
		connect(pair[1], (struct sockaddr *)&address, sizeof(address)) < 0) {
		fail("connect");
	}
	pair[0] = accept(listener, NULL, NULL);
	if (pair[0] < 0) {
		fail("accept");
	}
	close(listener);
	for (int i = 0; i < 2; i++) {
		(void)setsockopt(pair[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		(void)setsockopt(
			pair[i], IPPROTO_TCP, TCP_CONGESTION, unpaced, sizeof(unpaced) - 1);
	}
}

struct totals {
	uint64_t blocks;
	uint64_t elapsed_ns;
};

static struct totals read_blocks(int socket, uint8_t *buffers, uint64_t depth, uint64_t block_bytes,
	uint64_t bytes, uint64_t duration_ns)
{
	struct totals totals = { 0 };
	uint64_t asked = 0;
	uint64_t start_ns = samples_now_ns();
	bool ends = false;

	while (!ends || totals.blocks < asked) {
		for (; !ends && asked < totals.blocks + depth; asked++) {
			uint64_t offset = asked * block_bytes % bytes;

			if (send(socket, &offset, sizeof(offset), MSG_NOSIGNAL) != sizeof(offset)) {
				fail("send");
			}
			ends = duration_ns == 0 && (asked + 1) * block_bytes >= bytes;
		}
		if (recv(socket, buffers + totals.blocks % depth * block_bytes, block_bytes,
			    MSG_WAITALL) != (ssize_t)block_bytes) {
			fail("recv");
		}
		totals.blocks++;
		totals.elapsed_ns = samples_now_ns() - start_ns;
		ends |= duration_ns > 0 && totals.elapsed_ns >= duration_ns;
	}
	return totals;
}

static double cpu_us(const struct rusage *usage)
{
	return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1e6 +
	       (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

static int run(const struct way *way, char **argv)
{
	uint64_t depth = strtoull(argv[4], NULL, 10);
	uint64_t block_bytes = strtoull(argv[5], NULL, 10);
	uint64_t bytes = strtoull(argv[6], NULL, 10);
	struct totals totals;
	struct rusage before;
	struct rusage client;
	struct rusage server;
	uint8_t *buffers;
	int pair[2];
	pid_t child;

	if (depth == 0 || depth > DEPTH_MAX || block_bytes == 0 || bytes % POPULATE_BYTES != 0 ||
		block_bytes % (PIECES_AHEAD * PIECE_BYTES) != 0 || bytes % block_bytes != 0) {
		fprintf(stderr, "send_loop: depth or sizes are out of range\n");
		return 2;
	}
	connect_pair(strcmp(argv[3], "tcp") == 0, pair);
	child = fork();
	if (child == 0) {
		close(pair[1]);
		serve(way, argv[2], pair[0], block_bytes, bytes);
	}
	if (child < 0) {
		fail("fork");
	}
	close(pair[0]);
	buffers = aligned_alloc(ALIGNMENT, depth * block_bytes);
	if (buffers == NULL) {
		fail("memory");
	}
	memset(buffers, 1, depth * block_bytes);
	getrusage(RUSAGE_SELF, &before);
	totals = read_blocks(pair[1], buffers, depth, block_bytes, bytes, samples_time_of(argv[7]));
	getrusage(RUSAGE_SELF, &client);
	free(buffers);
	close(pair[1]);
	if (waitpid(child, NULL, 0) != child) {
		fail("wait");
	}
	getrusage(RUSAGE_CHILDREN, &server);
	printf("{ \"bytes_per_s\": %.0f, \"server_cpu_us\": %.1f, \"client_cpu_us\": %.1f, "
	       "\"server_faults\": %.1f }\n",
		(double)(totals.blocks * block_bytes) * 1e9 / (double)totals.elapsed_ns,
		cpu_us(&server) / (double)totals.blocks,
		(cpu_us(&client) - cpu_us(&before)) / (double)totals.blocks,
		(double)server.ru_minflt / (double)totals.blocks);
	return 0;
}

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == ARGUMENTS && i < sizeof(ways) / sizeof(ways[0]); i++) {
		if (strcmp(argv[1], ways[i].name) == 0) {
			return run(&ways[i], argv);
		}
	}
	fprintf(stderr, "Usage: send_loop WAY PATH tcp|unix DEPTH BLOCK_BYTES BYTES SECONDS\n");
	return 2;
}
