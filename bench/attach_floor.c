// SPDX-License-Identifier: Apache-2.0
/*
 * What the kernel itself takes to make a disk, for bench/attach: the same steps as `gmblock attach`
 * with nothing behind the disk. And a stopwatch for programs.
 *
 *   attach_floor ublk           ADD_DEV, SET_PARAMS, one queue that answers zeros, START_DEV
 *   attach_floor nbd            CONNECT with one end of a socket pair; zeros come from the other
 *   attach_floor run PROGRAM... from its start to its end
 *
 * Prints one JSON object: the steps and their sum in microseconds, the removal apart from them. The
 * names of steps are those of `gmblock attach --timings`. A program's time is printed on standard
 * error, and its exit status is ours.
 *
 * Threading: the main thread, and one that serves. Ownership: everything ends with the process.
 * Errors: a line on standard error and status 1; a device may stay behind then.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attach/nbd_kernel.h"
#include "attach/ublk.h"
#include "base/clock.h"
#include "nbd/wire.h"

enum {
	DEPTH = 64, /* as gmblock's */
	IO_BYTES = 512 << 10,
	SECTOR_SHIFT = 9,
	PAGE_SHIFT = 12,
	REQUEST_BYTES = 28,
	REPLY_BYTES = 16,
};

#define DISK_BYTES (UINT64_C(64) << 20)

static void __attribute__((noreturn)) fail(const char *what, int rc)
{
	struct error error;

	error_set(&error, rc, "attach_floor: %s: %s", what, strerror(-rc));
	fprintf(stderr, "%s\n", error.text);
	exit(1);
}

static int check(const char *what, int rc)
{
	if (rc < 0) {
		fail(what, rc);
	}
	return rc;
}

/* --- the stopwatch ------------------------------------------------------------------------- */

static uint64_t last_ns;
static double sum_us;

static double lap_us(void)
{
	uint64_t now = clock_now_ns();
	double us = (double)(now - last_ns) / 1e3;

	last_ns = now;
	return us;
}

static void step(const char *name)
{
	double us = lap_us();

	printf("%s{\"step\": \"%s\", \"us\": %.3f}", sum_us > 0 ? ", " : "{\"steps\": [", name, us);
	sum_us += us;
	last_ns = clock_now_ns(); /* without the printing */
}

/* --- ublk ---------------------------------------------------------------------------------- */

struct queue {
	int char_fd;
	bool encoded;
	struct io_uring ring;
	const struct ublksrv_io_desc *descriptors;
	char *buffers;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool ready;
};

static void send_command(struct queue *queue, uint32_t tag, bool commit, int result)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);
	struct ublksrv_io_cmd command = {
		.tag = (uint16_t)tag,
		.result = result,
		.addr = (uintptr_t)(queue->buffers + (size_t)tag * IO_BYTES),
	};

	check("room in the ring", sqe == NULL ? -ENOSPC : 0);
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->flags = IOSQE_FIXED_FILE;
	sqe->user_data = tag;
	sqe->cmd_op = commit ? UBLK_U_IO_COMMIT_AND_FETCH_REQ : UBLK_U_IO_FETCH_REQ;
	if (!queue->encoded) {
		sqe->cmd_op = commit ? UBLK_IO_COMMIT_AND_FETCH_REQ : UBLK_IO_FETCH_REQ;
	}
	memcpy(sqe->cmd, &command, sizeof(command));
}

static void prepare_queue(struct queue *queue)
{
	size_t bytes = DEPTH * sizeof(struct ublksrv_io_desc);
	void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, queue->char_fd,
		UBLKSRV_CMD_BUF_OFFSET);

	check("mapping the queue", map == MAP_FAILED ? -errno : 0);
	queue->descriptors = map;
	map = mmap(NULL, (size_t)DEPTH * IO_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check("memory", map == MAP_FAILED ? -errno : 0);
	queue->buffers = map;
	check("io_uring", io_uring_queue_init(2 * DEPTH, &queue->ring,
				  IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN));
	check("io_uring", io_uring_register_files(&queue->ring, &queue->char_fd, 1));
	for (uint32_t tag = 0; tag < DEPTH; tag++) {
		send_command(queue, tag, false, 0);
	}
	check("fetching", io_uring_submit(&queue->ring));
}

/* Answers everything with as many bytes as were asked for, until the device stops. */
static void *serve_queue(void *argument)
{
	struct queue *queue = argument;
	uint32_t fetching = DEPTH;

	prepare_queue(queue);
	pthread_mutex_lock(&queue->lock);
	queue->ready = true;
	pthread_cond_signal(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
	while (fetching > 0) {
		struct io_uring_cqe *cqe;
		unsigned head;
		unsigned count = 0;

		io_uring_submit_and_wait(&queue->ring, 1);
		io_uring_for_each_cqe(&queue->ring, head, cqe)
		{
			uint32_t tag = (uint32_t)cqe->user_data;

			count++;
			if (cqe->res == UBLK_IO_RES_OK) {
				send_command(queue, tag, true,
					(int)(queue->descriptors[tag].nr_sectors << SECTOR_SHIFT));
			} else {
				fetching--;
			}
		}
		io_uring_cq_advance(&queue->ring, count);
	}
	io_uring_queue_exit(&queue->ring);
	/* DEL_DEV waits for everything that holds the character device. */
	munmap((void *)(uintptr_t)queue->descriptors, DEPTH * sizeof(struct ublksrv_io_desc));
	return NULL;
}

static int order(struct ublk_control *control, enum ublk_command command, uint32_t device,
	void *buffer, size_t bytes, uint64_t data)
{
	return ublk_control_command(control, command, device, buffer, (uint16_t)bytes, data);
}

static uint32_t add_ublk(struct ublk_control *control)
{
	struct ublksrv_ctrl_dev_info info = {
		.nr_hw_queues = 1,
		.queue_depth = DEPTH,
		.max_io_buf_bytes = IO_BYTES,
		.dev_id = UINT32_MAX,
		.flags = UBLK_F_USER_RECOVERY | UBLK_F_USER_RECOVERY_REISSUE,
	};
	struct ublk_params params = {
		.len = sizeof(params),
		.types = UBLK_PARAM_TYPE_BASIC | UBLK_PARAM_TYPE_DISCARD,
		.basic = {
			.attrs = UBLK_ATTR_VOLATILE_CACHE | UBLK_ATTR_FUA,
			.logical_bs_shift = SECTOR_SHIFT,
			.physical_bs_shift = PAGE_SHIFT,
			.io_min_shift = PAGE_SHIFT,
			.io_opt_shift = PAGE_SHIFT,
			.max_sectors = IO_BYTES >> SECTOR_SHIFT,
			.dev_sectors = DISK_BYTES >> SECTOR_SHIFT,
		},
		.discard = {
			.discard_granularity = 1 << PAGE_SHIFT,
			.max_discard_sectors = 1 << 20,
			.max_write_zeroes_sectors = 1 << 20,
			.max_discard_segments = 1,
		},
	};

	check("ADD_DEV", order(control, UBLK_ADD, UINT32_MAX, &info, sizeof(info), 0));
	step("add");
	check("SET_PARAMS",
		order(control, UBLK_SET_PARAMS, info.dev_id, &params, sizeof(params), 0));
	step("params");
	return info.dev_id;
}

static void measure_ublk(void)
{
	static struct queue queue = {
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER,
	};
	struct ublk_control control;
	struct error error;
	pthread_t thread;
	uint32_t number;
	char path[64];

	check("ublk-control", ublk_control_open(&control, &error));
	step("driver");
	number = add_ublk(&control);
	snprintf(path, sizeof(path), "/dev/ublkc%u", number);
	queue.encoded = control.encoded;
	queue.char_fd = open(path, O_RDWR | O_CLOEXEC);
	check(path, queue.char_fd < 0 ? -errno : 0);
	step("node");
	check("thread", -pthread_create(&thread, NULL, serve_queue, &queue));
	pthread_mutex_lock(&queue.lock);
	while (!queue.ready) {
		pthread_cond_wait(&queue.changed, &queue.lock);
	}
	pthread_mutex_unlock(&queue.lock);
	step("queues");
	check("START_DEV", order(&control, UBLK_START, number, NULL, 0, (uint64_t)getpid()));
	step("disk");
	check("STOP_DEV", order(&control, UBLK_STOP, number, NULL, 0, 0));
	pthread_join(thread, NULL);
	close(queue.char_fd);
	check("DEL_DEV", order(&control, UBLK_DELETE, number, NULL, 0, 0));
}

/* --- nbd ----------------------------------------------------------------------------------- */

static bool receive_all(int fd, void *bytes, size_t len)
{
	return recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len;
}

/* The transmission phase with simple replies: reads are zeros, everything else succeeds. */
static void *serve_socket(void *argument)
{
	static uint8_t zeros[REPLY_BYTES + (1 << 20)];
	const uint8_t magic[] = { 0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0 };
	uint8_t request[REQUEST_BYTES];
	int fd = *(int *)argument;
	uint32_t length;

	memcpy(zeros, magic, sizeof(magic));
	while (receive_all(fd, request, sizeof(request)) && request[7] != NBD_CMD_DISC) {
		size_t payload;

		memcpy(&length, request + REQUEST_BYTES - sizeof(length), sizeof(length));
		payload = request[7] == NBD_CMD_READ ? be32toh(length) : 0;
		memcpy(zeros + sizeof(magic), request + 8, 8);
		if (request[7] == NBD_CMD_WRITE || payload > sizeof(zeros) - REPLY_BYTES ||
			send(fd, zeros, REPLY_BYTES + payload, MSG_NOSIGNAL) < 0) {
			break;
		}
	}
	close(fd);
	return NULL;
}

static void measure_nbd(void)
{
	static int ends[2];
	struct nbd_kernel_device device = {
		.index = -1,
		.bytes = DISK_BYTES,
		.block_bytes = 1 << SECTOR_SHIFT,
		.timeout_s = 30,
		.dead_timeout_s = 600,
		.server_flags = nbd_kernel_flags(UINT16_MAX & ~NBD_FLAG_READ_ONLY),
		.backend = "floor",
	};
	struct netlink netlink;
	struct error error;
	pthread_t thread;

	check("sockets", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) ? -errno : 0);
	check("thread", -pthread_create(&thread, NULL, serve_socket, &ends[1]));
	(void)lap_us(); /* the other end is no part of the kernel's steps */
	check("netlink", nbd_kernel_open(&netlink, &error));
	step("driver");
	check("CONNECT", nbd_kernel_connect(&netlink, &device, ends, 1));
	step("disk");
	check("DISCONNECT", nbd_kernel_disconnect(&netlink, device.index));
	pthread_join(thread, NULL);
}

/* --- a program ----------------------------------------------------------------------------- */

/* Its standard output is ours, so that the time goes to standard error. */
static void measure_program(char **argv)
{
	pid_t child;
	int status = 0;

	check(argv[0], -posix_spawnp(&child, argv[0], NULL, NULL, argv, environ));
	while (waitpid(child, &status, 0) < 0) {
		check("waiting", errno == EINTR ? 0 : -errno);
	}
	fprintf(stderr, "{\"us\": %.3f}\n", lap_us());
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

int main(int argc, char **argv)
{
	last_ns = clock_now_ns();
	if (argc == 2 && strcmp(argv[1], "ublk") == 0) {
		measure_ublk();
	} else if (argc == 2 && strcmp(argv[1], "nbd") == 0) {
		measure_nbd();
	} else if (argc > 2 && strcmp(argv[1], "run") == 0) {
		measure_program(argv + 2);
	} else {
		fprintf(stderr, "Usage: attach_floor ublk|nbd|run PROGRAM...\n");
		return 2;
	}
	printf("], \"us\": %.3f, \"removal_us\": %.3f}\n", sum_us, lap_us());
	return 0;
}
