// SPDX-License-Identifier: Apache-2.0
/* The contract suite on a real machine. See ring_world.h. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "ring_world.h"

const enum world_kind world_kind = WORLD_URING;
const unsigned world_rounds = 1;
#ifdef TEST_RESTRICTED
const bool world_is_restricted = true;
#else
const bool world_is_restricted = false;
#endif

static struct {
	bool started;
	pthread_t thread;
	void (*fn)(void *context);
	void *context;
} later;

void world_start(unsigned round)
{
	if (world_is_restricted) {
		(void)signal(SIGPIPE, SIG_IGN);
	}
}

void world_join(void)
{
	if (later.started) {
		assert_int_equal(pthread_join(later.thread, NULL), 0);
		later.started = false;
	}
}

void world_stop(void)
{
	world_join();
}

void world_pair(int fds[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

void world_send_byte(int fd)
{
	assert_int_equal(write(fd, "x", 1), 1);
}

int world_listen(void)
{
	/* An address of the kernel's choice, in the abstract namespace. */
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address.sun_family)), 0);
	assert_int_equal(listen(fd, 16), 0);
	return fd;
}

int world_connect(int listener_fd)
{
	struct sockaddr_un address;
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(getsockname(listener_fd, (struct sockaddr *)&address, &bytes), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, bytes), 0);
	return fd;
}

int world_file(uint64_t bytes)
{
	char path[] = "/tmp/gmblock-ring-contract.XXXXXX";
	int fd = mkostemp(path, O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	return fd;
}

void world_close(int fd, enum world_fd kind)
{
	assert_int_equal(close(fd), 0);
}

static void *later_run(void *argument)
{
	usleep(2000); /* the caller is in its ring by then, on most machines; no test depends on it
		       */
	later.fn(later.context);
	return NULL;
}

void world_later(void (*fn)(void *context), void *context)
{
	assert_false(later.started);
	later.fn = fn;
	later.context = context;
	later.started = true;
	assert_int_equal(pthread_create(&later.thread, NULL, later_run, NULL), 0);
}
