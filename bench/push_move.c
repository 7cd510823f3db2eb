// SPDX-License-Identifier: Apache-2.0
/*
 * push_move buffered|direct SOURCE TARGET BYTES: moves a disk to another one through a TCP
 * connection between two processes of this machine, as a program without gmblock does, makes it
 * durable, and prints the seconds that it took and those of the processors.
 *
 *   buffered   sendfile() ─▶ recv(), write() ... fdatasync()
 *   direct     O_DIRECT: pread(), send() ─▶ recv(), pwrite() ... fdatasync()
 *
 * BYTES is a multiple of 1 MiB, the size of each call. None of it comes from gmblock.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20 };

static void stop(const char *what)
{
	perror(what);
	_exit(1);
}

static int open_disk(const char *path, int flags, bool direct)
{
	int fd = open(path, flags | O_CLOEXEC | (direct ? O_DIRECT : 0));

	if (fd < 0) {
		stop(path);
	}
	return fd;
}

static void *chunk(void)
{
	void *memory = aligned_alloc(4096, CHUNK_BYTES);

	if (memory == NULL) {
		stop("memory");
	}
	return memory;
}

static void send_disk(int sock, const char *path, off_t bytes, bool direct)
{
	int fd = open_disk(path, O_RDONLY, direct);
	char *buffer = chunk();
	off_t at = 0;

	while (at < bytes) {
		if (!direct) {
			if (sendfile(sock, fd, &at, CHUNK_BYTES) <= 0) {
				stop("sendfile");
			}
			continue;
		}
		if (pread(fd, buffer, CHUNK_BYTES, at) != CHUNK_BYTES) {
			stop("pread");
		}
		for (ssize_t sent = 0, count; sent < CHUNK_BYTES; sent += count) {
			count = send(sock, buffer + sent, (size_t)(CHUNK_BYTES - sent), 0);
			if (count <= 0) {
				stop("send");
			}
		}
		at += CHUNK_BYTES;
	}
	_exit(0);
}

static void take_disk(int sock, const char *path, off_t bytes, bool direct)
{
	int fd = open_disk(path, O_WRONLY, direct);
	char *buffer = chunk();

	for (off_t at = 0; at < bytes; at += CHUNK_BYTES) {
		if (recv(sock, buffer, CHUNK_BYTES, MSG_WAITALL) != CHUNK_BYTES) {
			stop("recv");
		}
		if (pwrite(fd, buffer, CHUNK_BYTES, at) != CHUNK_BYTES) {
			stop("pwrite");
		}
	}
	if (fdatasync(fd) != 0) {
		stop("fdatasync");
	}
	close(fd);
	free(buffer);
}

/* Two ends of a TCP connection. */
static void connect_both(int ends[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || ends[0] < 0 ||
		bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
		listen(listener, 1) != 0 ||
		getsockname(listener, (struct sockaddr *)&address, &length) != 0 ||
		connect(ends[0], (struct sockaddr *)&address, sizeof(address)) != 0 ||
		(ends[1] = accept(listener, NULL, NULL)) < 0) {
		stop("a TCP connection");
	}
	close(listener);
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu_s(int who)
{
	struct rusage usage;

	getrusage(who, &usage);
	return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
	bool direct = argc == 5 && strcmp(argv[1], "direct") == 0;
	off_t bytes = argc == 5 ? strtoll(argv[4], NULL, 10) : 0;
	double begin_s;
	int status;
	int ends[2];
	pid_t child;

	if (bytes <= 0 || bytes % CHUNK_BYTES != 0 ||
		(!direct && strcmp(argv[1], "buffered") != 0)) {
		fprintf(stderr, "usage: push_move buffered|direct SOURCE TARGET BYTES\n");
		return 2;
	}
	begin_s = now_s();
	connect_both(ends);
	child = fork();
	if (child < 0) {
		stop("fork");
	}
	if (child == 0) {
		close(ends[1]);
		send_disk(ends[0], argv[2], bytes, direct);
	}
	close(ends[0]);
	take_disk(ends[1], argv[3], bytes, direct);
	if (waitpid(child, &status, 0) != child || status != 0) {
		fprintf(stderr, "push_move: the sender failed\n");
		return 1;
	}
	printf("%.6f %.6f\n", now_s() - begin_s, cpu_s(RUSAGE_SELF) + cpu_s(RUSAGE_CHILDREN));
	return 0;
}
