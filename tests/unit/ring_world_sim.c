// SPDX-License-Identifier: Apache-2.0
/* The contract suite on simulated machines: a perfect one, then ones with random delays and short
 * transfers. See ring_world.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "disk/disk.h"
#include "ring_world.h"
#include "sim/sim.h"

const enum world_kind world_kind = WORLD_SIM;
const unsigned world_rounds = 25;
const bool world_is_restricted = false;

void world_start(unsigned round)
{
	struct sim_options options = { .seed = 1 + round };

	if (round > 0) {
		options.faults.jitter = true;
		options.faults.partial_ppm = 200000;
	}
	sim_start(&options);
}

void world_stop(void)
{
	(void)sim_run_until_idle(10000);
	sim_stop();
}

void world_pair(int fds[2])
{
	sim_socket_pair(&fds[0], &fds[1]);
}

void world_send_byte(int fd)
{
	sim_socket_write(fd, "x", 1);
}

int world_listen(void)
{
	return sim_listener_create();
}

int world_connect(int listener_fd)
{
	return sim_connect(listener_fd);
}

int world_file(uint64_t bytes)
{
	static unsigned number;
	char name[32];
	struct error error;
	int fd = -1;

	snprintf(name, sizeof(name), "file-%u", number++);
	(void)sim_disk_create(name, &(struct sim_disk_options){ .size = bytes });
	assert_int_equal(disk_open(name, false, false, &fd, &error), 0);
	return fd;
}

void world_close(int fd, enum world_fd kind)
{
	switch (kind) {
	case WORLD_SOCKET:
		sim_socket_close(fd);
		break;
	case WORLD_LISTENER:
		sim_listener_close(fd);
		break;
	case WORLD_FILE:
		disk_close(fd);
		break;
	}
}

static struct {
	void (*fn)(void *context); /* NULL = it has run */
	void *context;
} later;

static void later_run(void *arg)
{
	later.fn(later.context);
	later.fn = NULL;
}

void world_later(void (*fn)(void *context), void *context)
{
	assert_null(later.fn);
	later.fn = fn;
	later.context = context;
	sim_after(sim_between(0, 2000000), later_run, NULL);
}

void world_join(void)
{
	while (later.fn != NULL) {
		assert_true(sim_step());
	}
}
