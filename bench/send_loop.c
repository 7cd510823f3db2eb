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
 *   copy      reads the block into a buffer, and sends this
 *   sendfile  sends with sendfile()
 *   memory    sends from one buffer, without any file
 *
 * The client reads blocks in order, from 0 to BYTES again and again. SECONDS: 0 ends after BYTES.
 * Server and client are two processes. Prints one JSON object: the rate, and for each block the
 * processor time of the server and of the client.
 *
 * Threading: one thread for each process. Errors: exit status 1 and a line on standard error.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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
	UNIX_BUFFER_BYTES = 4 << 20,
};

struct server {
	int fd;
	int socket;
	uint64_t block_bytes;
	uint8_t *buffer;
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

/* --- ways ------------------------------------------------------------------------------------ */

static void answer_copy(struct server *server, uint64_t offset)
{
	ssize_t count = pread(server->fd, server->buffer, server->block_bytes, (off_t)offset);

	if (count != (ssize_t)server->block_bytes) {
		fail("read");
	}
	send_all(server, server->buffer, server->block_bytes);
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
} ways[] = {
	{ "copy", answer_copy },
	{ "sendfile", answer_sendfile },
	{ "memory", answer_memory },
};

/* --- server and client ----------------------------------------------------------------------- */

static void serve(const struct way *way, const char *path, int socket, uint64_t block_bytes)
{
	struct server server = { .socket = socket, .block_bytes = block_bytes };
	uint64_t offset;

	server.fd = open(path, O_RDONLY | O_CLOEXEC);
	if (server.fd < 0) {
		fail(path);
	}
	server.buffer = mmap(NULL, block_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (server.buffer == MAP_FAILED) {
		fail("mmap");
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

	if (depth == 0 || depth > DEPTH_MAX || block_bytes == 0 || block_bytes % ALIGNMENT != 0 ||
		bytes % block_bytes != 0) {
		fprintf(stderr, "send_loop: depth or sizes are out of range\n");
		return 2;
	}
	connect_pair(strcmp(argv[3], "tcp") == 0, pair);
	child = fork();
	if (child == 0) {
		close(pair[1]);
		serve(way, argv[2], pair[0], block_bytes);
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
	printf("{ \"bytes_per_s\": %.0f, \"server_cpu_us\": %.1f, \"client_cpu_us\": %.1f }\n",
		(double)(totals.blocks * block_bytes) * 1e9 / (double)totals.elapsed_ns,
		cpu_us(&server) / (double)totals.blocks,
		(cpu_us(&client) - cpu_us(&before)) / (double)totals.blocks);
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
