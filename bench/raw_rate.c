// SPDX-License-Identifier: Apache-2.0
/*
 * What a disk and a link give without a protocol between them, to compare bench/overlap's figures
 * with: the same sizes, one at a time.
 *
 *   raw_rate disk PATH BYTES SECONDS WARMUP SEED     reads of the disk, around the page cache
 *   raw_rate send ADDRESS                            the sender's end; prints its port, serves one
 *                                                    connection after another until it is ended
 *   raw_rate reply ADDRESS PORT BYTES SECONDS WARMUP   asks, waits for that many bytes, asks again
 *   raw_rate stream ADDRESS PORT BYTES SECONDS WARMUP  has the sender send without being asked
 *
 * Prints one JSON object. Threading: one thread. Errors: exit status 1 and a line on standard
 * error.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "samples.h"

enum { ALIGNMENT = 4096, BYTES_MAX = 256 << 20, DISK_ARGUMENTS = 7, LINK_ARGUMENTS = 7 };

/* What the receiver asks for; both ends are this program on one machine. */
struct order {
	uint64_t bytes; /* in answer to each order; 0: the connection ends */
	uint64_t endless;
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "raw_rate: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint8_t *buffer_of(uint64_t bytes)
{
	uint8_t *buffer;

	if (bytes == 0 || bytes > BYTES_MAX) {
		fprintf(stderr, "raw_rate: the size is out of range\n");
		exit(2);
	}
	buffer = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
	if (buffer == NULL) {
		fail("memory");
	}
	memset(buffer, 1, bytes);
	return buffer;
}

/* --- a run: one request at a time, after a warm-up ------------------------------------------ */

struct run {
	struct samples samples;
	uint64_t warmup_end_ns;
	uint64_t duration_ns;
	uint64_t begin_ns; /* 0 while it still warms up */
};

static void run_begin(struct run *run, const char *seconds, const char *warmup)
{
	*run = (struct run){ .duration_ns = samples_time_of(seconds) };
	samples_init(&run->samples);
	run->warmup_end_ns = samples_now_ns() + samples_time_of(warmup);
}

/* Asked before a request is started. */
static bool run_goes_on(struct run *run)
{
	uint64_t now = samples_now_ns();

	if (run->begin_ns == 0 && now >= run->warmup_end_ns) {
		run->begin_ns = now;
	}
	return run->begin_ns == 0 || now - run->begin_ns < run->duration_ns ||
	       run->samples.count == 0;
}

static void run_add(struct run *run, uint64_t start_ns)
{
	uint64_t now = samples_now_ns();

	if (run->begin_ns != 0) {
		samples_add(&run->samples, now - start_ns);
		run->samples.elapsed_ns = now - run->begin_ns;
	}
}

static void run_tell(struct run *run, uint64_t bytes)
{
	printf("{ ");
	samples_print(&run->samples, bytes);
	printf(" }\n");
}

/* --- the disk ------------------------------------------------------------------------------ */

static int run_disk(char **argv)
{
	uint64_t bytes = strtoull(argv[3], NULL, 10);
	uint64_t random = strtoull(argv[6], NULL, 10);
	uint8_t *buffer = buffer_of(bytes);
	int fd = open(argv[2], O_RDONLY | O_DIRECT | O_CLOEXEC);
	struct run run;
	off_t end;

	if (fd < 0) {
		fail(argv[2]);
	}
	end = lseek(fd, 0, SEEK_END);
	if (end < (off_t)bytes) {
		fprintf(stderr, "raw_rate: the disk is smaller than a request\n");
		return 1;
	}
	run_begin(&run, argv[4], argv[5]);
	while (run_goes_on(&run)) {
		uint64_t block = samples_draw(&random, (uint64_t)end / bytes);
		uint64_t start = samples_now_ns();

		if (pread(fd, buffer, bytes, (off_t)(block * bytes)) != (ssize_t)bytes) {
			fail(argv[2]);
		}
		run_add(&run, start);
	}
	run_tell(&run, bytes);
	return 0;
}

/* --- the link ------------------------------------------------------------------------------ */

static struct sockaddr_in address_of(const char *text, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	if (inet_pton(AF_INET, text, &address.sin_addr) != 1) {
		fprintf(stderr, "raw_rate: this is not an IPv4 address: %s\n", text);
		exit(2);
	}
	return address;
}

static int socket_new(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int on = 1;

	if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
		fail("socket");
	}
	return fd;
}

/* All of it, or false: the other end has gone. */
static bool send_all(int fd, const void *data, uint64_t bytes)
{
	const uint8_t *at = data;

	while (bytes > 0) {
		ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);

		if (sent <= 0) {
			return false;
		}
		at += sent;
		bytes -= (uint64_t)sent;
	}
	return true;
}

static bool receive_all(int fd, void *data, uint64_t bytes)
{
	uint8_t *at = data;

	while (bytes > 0) {
		ssize_t got = recv(fd, at, bytes, MSG_WAITALL);

		if (got <= 0) {
			return false;
		}
		at += got;
		bytes -= (uint64_t)got;
	}
	return true;
}

static void serve_one(int fd)
{
	uint8_t *buffer = NULL;
	uint64_t room = 0;
	struct order order;

	while (receive_all(fd, &order, sizeof(order)) && order.bytes > 0) {
		if (order.bytes > room) {
			free(buffer);
			buffer = buffer_of(order.bytes);
			room = order.bytes;
		}
		while (send_all(fd, buffer, order.bytes) && order.endless != 0) {
		}
	}
	free(buffer);
	close(fd);
}

static int run_send(char **argv)
{
	struct sockaddr_in address = address_of(argv[2], 0);
	socklen_t length = sizeof(address);
	int listener = socket_new();

	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
		listen(listener, 1) != 0 ||
		getsockname(listener, (struct sockaddr *)&address, &length) != 0) {
		fail(argv[2]);
	}
	printf("%u\n", ntohs(address.sin_port));
	fflush(stdout);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		int on = 1;

		if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
			fail("accept");
		}
		serve_one(fd);
	}
}

static int run_receive(char **argv, bool endless)
{
	struct sockaddr_in address = address_of(argv[2], (uint16_t)strtoul(argv[3], NULL, 10));
	struct order order = { .bytes = strtoull(argv[4], NULL, 10), .endless = endless };
	uint8_t *buffer = buffer_of(order.bytes);
	int fd = socket_new();
	struct run run;

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		fail("connect");
	}
	run_begin(&run, argv[5], argv[6]);
	if (endless && !send_all(fd, &order, sizeof(order))) {
		fail("send");
	}
	while (run_goes_on(&run)) {
		uint64_t start = samples_now_ns();

		if ((!endless && !send_all(fd, &order, sizeof(order))) ||
			!receive_all(fd, buffer, order.bytes)) {
			fail("the other end");
		}
		run_add(&run, start);
	}
	run_tell(&run, order.bytes);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == DISK_ARGUMENTS && strcmp(argv[1], "disk") == 0) {
		return run_disk(argv);
	}
	if (argc == 3 && strcmp(argv[1], "send") == 0) {
		return run_send(argv);
	}
	if (argc == LINK_ARGUMENTS &&
		(strcmp(argv[1], "reply") == 0 || strcmp(argv[1], "stream") == 0)) {
		return run_receive(argv, strcmp(argv[1], "stream") == 0);
	}
	fprintf(stderr, "Usage: raw_rate disk PATH BYTES SECONDS WARMUP SEED\n"
			"       raw_rate send ADDRESS\n"
			"       raw_rate reply|stream ADDRESS PORT BYTES SECONDS WARMUP\n");
	return 2;
}
