// SPDX-License-Identifier: Apache-2.0
/*
 * push_move buffered|direct SOURCE TARGET BYTES: moves a disk to another one through a TCP
 * connection between two processes of this machine, as a program without gmblock does, makes it
 * durable, and prints the seconds that it took and those of the processors.
 *
 *   buffered   sendfile() ─▶ recv(), write() ... fdatasync()
 *   direct     O_DIRECT: pread(), send() ─▶ recv(), pwrite() ... fdatasync(), where the disk and
 * the connection of each side have a thread each, and two buffers between them
 *
 * BYTES is a multiple of 1 MiB, the size of each call. None of it comes from gmblock.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
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

enum { CHUNK_BYTES = 1 << 20, BUFFERS = 2 };

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

/* A thread that reads or writes a disk, and the buffers that it shares with the one of the
 * connection. */
struct disk {
	int fd;
	off_t bytes;
	char *buffers[BUFFERS];
	sem_t free;
	sem_t full;
	pthread_t thread;
};

static char *buffer_at(const struct disk *disk, off_t at)
{
	return disk->buffers[at / CHUNK_BYTES % BUFFERS];
}

static void take(sem_t *count)
{
	while (sem_wait(count) != 0) {
		if (errno != EINTR) {
			stop("sem_wait");
		}
	}
}

static void *read_disk(void *context)
{
	struct disk *disk = context;

	for (off_t at = 0; at < disk->bytes; at += CHUNK_BYTES) {
		take(&disk->free);
		if (pread(disk->fd, buffer_at(disk, at), CHUNK_BYTES, at) != CHUNK_BYTES) {
			stop("pread");
		}
		sem_post(&disk->full);
	}
	return NULL;
}

static void *write_disk(void *context)
{
	struct disk *disk = context;

	for (off_t at = 0; at < disk->bytes; at += CHUNK_BYTES) {
		take(&disk->full);
		if (pwrite(disk->fd, buffer_at(disk, at), CHUNK_BYTES, at) != CHUNK_BYTES) {
			stop("pwrite");
		}
		sem_post(&disk->free);
	}
	return NULL;
}

static void disk_begin(struct disk *disk, int fd, off_t bytes, void *(*run)(void *context))
{
	disk->fd = fd;
	disk->bytes = bytes;
	for (int i = 0; i < BUFFERS; i++) {
		disk->buffers[i] = chunk();
	}
	if (sem_init(&disk->free, 0, BUFFERS) != 0 || sem_init(&disk->full, 0, 0) != 0 ||
		pthread_create(&disk->thread, NULL, run, disk) != 0) {
		stop("a thread");
	}
}

static void disk_end(struct disk *disk)
{
	if (pthread_join(disk->thread, NULL) != 0) {
		stop("a thread");
	}
	for (int i = 0; i < BUFFERS; i++) {
		free(disk->buffers[i]);
	}
}

static void send_chunk(int sock, const char *buffer)
{
	for (ssize_t sent = 0, count; sent < CHUNK_BYTES; sent += count) {
		count = send(sock, buffer + sent, (size_t)(CHUNK_BYTES - sent), 0);
		if (count <= 0) {
			stop("send");
		}
	}
}

static void take_chunk(int sock, char *buffer)
{
	if (recv(sock, buffer, CHUNK_BYTES, MSG_WAITALL) != CHUNK_BYTES) {
		stop("recv");
	}
}

static void send_disk(int sock, const char *path, off_t bytes, bool direct)
{
	int fd = open_disk(path, O_RDONLY, direct);
	struct disk disk;
	off_t at = 0;

	while (!direct && at < bytes) {
		if (sendfile(sock, fd, &at, CHUNK_BYTES) <= 0) {
			stop("sendfile");
		}
	}
	if (direct) {
		disk_begin(&disk, fd, bytes, read_disk);
		for (; at < bytes; at += CHUNK_BYTES) {
			take(&disk.full);
			send_chunk(sock, buffer_at(&disk, at));
			sem_post(&disk.free);
		}
		disk_end(&disk);
	}
	_exit(0);
}

static void take_disk(int sock, const char *path, off_t bytes, bool direct)
{
	int fd = open_disk(path, O_WRONLY, direct);
	struct disk disk;
	char *buffer = chunk();

	for (off_t at = 0; !direct && at < bytes; at += CHUNK_BYTES) {
		take_chunk(sock, buffer);
		if (pwrite(fd, buffer, CHUNK_BYTES, at) != CHUNK_BYTES) {
			stop("pwrite");
		}
	}
	if (direct) {
		disk_begin(&disk, fd, bytes, write_disk);
		for (off_t at = 0; at < bytes; at += CHUNK_BYTES) {
			take(&disk.free);
			take_chunk(sock, buffer_at(&disk, at));
			sem_post(&disk.full);
		}
		disk_end(&disk);
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
