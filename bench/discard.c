// SPDX-License-Identifier: Apache-2.0
/*
 * A control for client benchmarks: asks an NBD server for data and throws it away inside the kernel
 * (MSG_TRUNC), so that nothing is copied and next to nothing is done with it. What it reaches is
 * what the server can send over one connection; a client that keeps the data cannot reach more.
 *
 *   discard nbd://127.0.0.1:PORT/EXPORT read|randread BLOCK_BYTES DEPTH SECONDS SEED
 *
 * The server must be one that answers simple replies in time; only its own mistakes are checked
 * that would falsify the figures. Prints one JSON object. Threading: one thread. Errors: exit
 * status 1 and a line on standard error.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control.h"

#define IHAVEOPT UINT64_C(0x49484156454f5054)

enum {
	ARGUMENTS = 7,
	NAME_BYTES = 256,
	OPTION_GO = 7,
	REPLY_ACK = 1,
	INFO_EXPORT = 0,
	REQUEST_MAGIC = 0x25609513,
	REPLY_MAGIC = 0x67446698,
	DISCARD_BYTES = 1 << 24,
};

struct __attribute__((packed)) option {
	uint64_t magic;
	uint32_t number;
	uint32_t bytes;
};

struct __attribute__((packed)) option_reply {
	uint64_t magic;
	uint32_t option;
	uint32_t type;
	uint32_t bytes;
};

struct __attribute__((packed)) request {
	uint32_t magic;
	uint16_t flags;
	uint16_t type;
	uint64_t cookie;
	uint64_t offset;
	uint32_t bytes;
};

struct __attribute__((packed)) reply {
	uint32_t magic;
	uint32_t error;
	uint64_t cookie;
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "discard: %s\n", what);
	exit(1);
}

static void send_all(int fd, const void *bytes, size_t len)
{
	if (send(fd, bytes, len, MSG_NOSIGNAL) != (ssize_t)len) {
		fail("cannot send");
	}
}

static void receive(int fd, void *bytes, size_t len)
{
	if (recv(fd, bytes, len, MSG_WAITALL) != (ssize_t)len) {
		fail("the server closed the connection");
	}
}

/* To where it came from: with MSG_TRUNC the buffer is not touched. */
static void discard(int fd, size_t len)
{
	while (len > 0) {
		static uint8_t nowhere[1];
		size_t part = len < DISCARD_BYTES ? len : DISCARD_BYTES;
		ssize_t got = recv(fd, nowhere, part, MSG_TRUNC);

		if (got <= 0) {
			fail("the server closed the connection");
		}
		len -= (size_t)got;
	}
}

static int connect_to(const char *uri, char name[NAME_BYTES])
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	unsigned port = 0;
	int one = 1;
	int fd;

	name[0] = '\0';
	if (sscanf(uri, "nbd://127.0.0.1:%u/%255s", &port, name) < 1 || port > UINT16_MAX) {
		fail("the URI must be nbd://127.0.0.1:PORT/EXPORT");
	}
	address.sin_port = htons((uint16_t)port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		fail("cannot connect");
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

/* Chooses the export; returns its size. */
static uint64_t negotiate(int fd, const char *name)
{
	uint8_t greeting[18];
	uint32_t name_bytes = (uint32_t)strlen(name);
	uint32_t name_bytes_be = htobe32(name_bytes);
	uint32_t flags = htobe32(3);
	uint16_t requests = 0;
	struct option option = {
		.magic = htobe64(IHAVEOPT),
		.number = htobe32(OPTION_GO),
		.bytes = htobe32(name_bytes + 6),
	};
	uint64_t size = 0;

	receive(fd, greeting, sizeof(greeting));
	send_all(fd, &flags, sizeof(flags));
	send_all(fd, &option, sizeof(option));
	send_all(fd, &name_bytes_be, sizeof(name_bytes_be));
	if (name_bytes > 0) {
		send_all(fd, name, name_bytes);
	}
	send_all(fd, &requests, sizeof(requests));
	for (;;) {
		struct option_reply reply;
		uint8_t payload[4096] = { 0 };
		uint64_t size_be;

		receive(fd, &reply, sizeof(reply));
		if (be32toh(reply.bytes) > sizeof(payload) || be32toh(reply.type) >> 31 != 0) {
			fail("the server refuses the export");
		}
		if (be32toh(reply.type) == REPLY_ACK) {
			return size;
		}
		receive(fd, payload, be32toh(reply.bytes));
		if (payload[0] == 0 && payload[1] == INFO_EXPORT) {
			memcpy(&size_be, payload + 2, sizeof(size_be));
			size = be64toh(size_be);
		}
	}
}

struct work {
	int fd;
	uint32_t block_bytes;
	struct control_blocks blocks;
};

static void ask(struct work *work)
{
	struct request request = {
		.magic = htobe32(REQUEST_MAGIC),
		.offset = htobe64(control_pick(&work->blocks) * work->block_bytes),
		.bytes = htobe32(work->block_bytes),
	};

	send_all(work->fd, &request, sizeof(request));
}

static void take(const struct work *work)
{
	struct reply reply;

	receive(work->fd, &reply, sizeof(reply));
	if (be32toh(reply.magic) != REPLY_MAGIC || reply.error != 0) {
		fail("a request failed");
	}
	discard(work->fd, work->block_bytes);
}

int main(int argc, char **argv)
{
	struct work work = { .fd = -1 };
	char name[NAME_BYTES];
	uint64_t count = 0;
	double seconds;
	double begin;
	double begin_cpu;
	double elapsed;
	double cpu;
	int depth;

	if (argc != ARGUMENTS) {
		fprintf(stderr,
			"Usage: discard URI read|randread BLOCK_BYTES DEPTH SECONDS SEED\n");
		return 2;
	}
	work.blocks.is_random = strcmp(argv[2], "randread") == 0;
	work.block_bytes = (uint32_t)strtoul(argv[3], NULL, 10);
	depth = (int)strtol(argv[4], NULL, 10);
	seconds = strtod(argv[5], NULL);
	work.blocks.random = strtoull(argv[6], NULL, 10);
	if (work.block_bytes == 0 || depth < 1 || !(seconds > 0)) {
		fail("an argument is out of range");
	}
	work.fd = connect_to(argv[1], name);
	work.blocks.count = negotiate(work.fd, name) / work.block_bytes;
	if (work.blocks.count == 0) {
		fail("the export is smaller than a block");
	}
	begin = control_now_s();
	begin_cpu = control_cpu_s();
	for (int i = 0; i < depth; i++) {
		ask(&work);
	}
	do {
		take(&work);
		ask(&work);
		count++;
		elapsed = control_now_s() - begin;
	} while (elapsed < seconds);
	cpu = control_cpu_s() - begin_cpu;
	close(work.fd);
	control_print(count, elapsed, cpu, work.block_bytes);
	return 0;
}
