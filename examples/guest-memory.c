// SPDX-License-Identifier: Apache-2.0
/*
 * guest-memory URI: reads the first 64 KiB of an export into the memory of another process, which
 * prints them. Over gmb+unix the server reads from its disk directly into that memory.
 *
 *   cc guest-memory.c $(pkg-config --cflags --libs gmblock) -o guest-memory
 *
 * The memory is a memfd, as for the host of a virtual machine. The child process plays the guest:
 * it maps the memfd and does not use gmblock.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmblock/gmblock.h>

enum { BYTES = 64 << 10 };

static void die(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

static int make_memory(void)
{
	int memfd = memfd_create("guest", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	/* Sealed, so that no process can remove pages while the server uses them. */
	if (memfd < 0 || ftruncate(memfd, BYTES) != 0 ||
		fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
		die("memfd");
	}
	return memfd;
}

/* Waits for the number of bytes that the host has read, and prints them. */
static int guest(int memfd, int interrupt)
{
	const char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	size_t bytes = 0;

	if (memory == MAP_FAILED) {
		die("mmap");
	}
	if (read(interrupt, &bytes, sizeof(bytes)) != sizeof(bytes)) {
		return EXIT_FAILURE; /* the host has printed the error */
	}
	return fwrite(memory, 1, bytes, stdout) == bytes ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Reads the export into the memory. Returns the number of bytes, or 0 after an error. */
static size_t host(const char *uri, int memfd)
{
	struct gmb_info info = { .size = sizeof(info) };
	struct gmb_stats stats = { .size = sizeof(stats) };
	struct gmb_queue *queue = NULL;
	struct gmb_client *client = NULL;
	struct gmb_error error = { 0 };
	size_t bytes = 0;
	void *memory;

	if (gmb_queue_create(NULL, &queue, &error) == 0 &&
		gmb_buffer_import(queue, memfd, 0, BYTES, &memory, &error) == 0 &&
		gmb_open(queue, uri, NULL, &client, &error) == 0) {
		gmb_get_info(client, &info);
		bytes = info.bytes < BYTES ? (size_t)info.bytes : BYTES;
		error.code = gmb_pread(client, memory, bytes, 0);
		snprintf(error.text, sizeof(error.text), "read: %s", strerror(-error.code));
		gmb_get_stats(client, &stats);
		fprintf(stderr, "%llu bytes were copied on the way\n",
			(unsigned long long)stats.bytes_moved);
	}
	gmb_close(client);
	gmb_queue_destroy(queue);
	if (error.code != 0) {
		fprintf(stderr, "guest-memory: %s\n", error.text);
		return 0;
	}
	return bytes;
}

int main(int argc, char **argv)
{
	int status = EXIT_FAILURE;
	int memfd;
	int pipe_fds[2];
	pid_t child;
	size_t bytes;

	if (argc != 2) {
		fprintf(stderr, "usage: guest-memory URI\n");
		return 2;
	}
	memfd = make_memory();
	if (pipe(pipe_fds) != 0) {
		die("pipe");
	}
	child = fork(); /* fork before the library is used */
	if (child < 0) {
		die("fork");
	}
	if (child == 0) {
		close(pipe_fds[1]);
		return guest(memfd, pipe_fds[0]);
	}
	close(pipe_fds[0]);
	bytes = host(argv[1], memfd);
	if (bytes > 0 && write(pipe_fds[1], &bytes, sizeof(bytes)) != sizeof(bytes)) {
		perror("write");
	}
	close(pipe_fds[1]);
	return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status)
									: EXIT_FAILURE;
}
