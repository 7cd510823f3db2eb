// SPDX-License-Identifier: Apache-2.0
/*
 * A file that is as slow as a disk with heads, for programs that cannot be slowed down themselves
 * and for the page cache above them: a FUSE file system that consists of one file, as pace= models
 * a disk.
 *
 *   seek_disk FILE BYTES RATE SEEK_US
 *
 * FILE exists and is mounted over. The disk handles one request at a time, in the order of arrival,
 * at RATE bytes per second. A request that does not begin where the last one ended needs 0.5 to 1.5
 * times SEEK_US more. Times are never computed from the moment at which the program woke up, so
 * that a late program does not delay later requests. Reads return the same bytes everywhere, and
 * writes are lost: only times are measured.
 *
 * Prints a line when the file is mounted, and ends when nobody uses it: after "umount --lazy FILE",
 * at its last close. Threading: one thread. Errors: exit status 1 and a sentence; root is needed.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "samples.h"

enum {
	REQUEST_BYTES_MAX = 1 << 20,
	PAGE_BYTES = 4096,
	HEADERS_BYTES = PAGE_BYTES, /* of a request, at most */
	QUEUE_MAX = 4096,	    /* more than the kernel has in flight */
	OPTIONS_BYTES = 128,
	NS_PER_US = 1000,
};

#define NUMBER_MAX (UINT64_C(1) << 50)

struct pending {
	uint64_t unique;
	uint64_t due_ns;
	uint32_t bytes;
	bool is_read;
};

static struct {
	int fd;
	uint64_t size;
	uint64_t rate;
	uint64_t seek_ns;
	uint64_t head;
	uint64_t free_ns; /* when the disk has done what it has */
	uint64_t random;
	struct pending
		queue[QUEUE_MAX]; /* a ring, in the order of arrival, which is that of due_ns */
	uint32_t first;
	uint32_t count;
} disk;

static uint8_t contents[REQUEST_BYTES_MAX];
static uint8_t request[HEADERS_BYTES + REQUEST_BYTES_MAX];

static _Noreturn void fail(const char *what, const char *why)
{
	fprintf(stderr, "seek_disk: %s: %s\n", what, why);
	exit(1);
}

/* error: 0 or a negative errno. */
static void reply(uint64_t unique, int error, void *data, size_t bytes)
{
	struct fuse_out_header head = {
		.len = (uint32_t)(sizeof(head) + bytes), .error = error, .unique = unique
	};
	struct iovec parts[] = { { &head, sizeof(head) }, { data, bytes } };

	/* ENOENT: the request was interrupted */
	if (writev(disk.fd, parts, bytes > 0 ? 2 : 1) < 0 && errno != ENOENT && errno != ENODEV) {
		fail("a reply", strerror(errno));
	}
}

static void reply_init(uint64_t unique, const struct fuse_init_in *in)
{
	struct fuse_init_out out = { .major = FUSE_KERNEL_VERSION,
		.minor = FUSE_KERNEL_MINOR_VERSION,
		.max_readahead = in->max_readahead,
		.flags = in->flags &
			 (FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_BIG_WRITES | FUSE_MAX_PAGES),
		.max_background = QUEUE_MAX / 4,
		.congestion_threshold = QUEUE_MAX / 4,
		.max_write = REQUEST_BYTES_MAX,
		.max_pages = REQUEST_BYTES_MAX / PAGE_BYTES,
		.time_gran = 1 };

	reply(unique, 0, &out, sizeof(out));
}

static void reply_attributes(uint64_t unique)
{
	struct fuse_attr_out out = { .attr_valid = UINT32_MAX,
		.attr = { .ino = FUSE_ROOT_ID,
			.size = disk.size,
			.blocks = disk.size / 512,
			.mode = S_IFREG | S_IRUSR | S_IWUSR,
			.nlink = 1,
			.blksize = PAGE_BYTES } };

	reply(unique, 0, &out, sizeof(out));
}

/* Puts a request into the disk's queue, and computes when it will be done. */
static void transfer(uint64_t unique, uint64_t offset, uint32_t bytes, bool is_read)
{
	uint64_t now_ns = samples_now_ns();
	uint64_t start_ns = now_ns > disk.free_ns ? now_ns : disk.free_ns;

	if (disk.count == QUEUE_MAX || bytes > REQUEST_BYTES_MAX) {
		fail("a request", "there are too many, or it is too large");
	}
	if (offset != disk.head && disk.seek_ns > 0) {
		start_ns += disk.seek_ns / 2 + samples_draw(&disk.random, disk.seek_ns);
	}
	disk.head = offset + bytes;
	disk.free_ns = start_ns + bytes * SAMPLES_NS_PER_S / disk.rate;
	disk.queue[(disk.first + disk.count++) % QUEUE_MAX] = (struct pending){
		.unique = unique, .due_ns = disk.free_ns, .bytes = bytes, .is_read = is_read
	};
}

static void finish(const struct pending *done)
{
	struct fuse_write_out written = { .size = done->bytes };

	if (done->is_read) {
		reply(done->unique, 0, contents, done->bytes);
	} else {
		reply(done->unique, 0, &written, sizeof(written));
	}
}

static void handle(const struct fuse_in_header *head, const void *body)
{
	const struct fuse_read_in *read_in = body;
	const struct fuse_write_in *write_in = body;
	struct fuse_open_out opened = { 0 };
	struct fuse_statfs_out room = { .st = { .bsize = PAGE_BYTES } };

	switch (head->opcode) {
	case FUSE_INIT:
		reply_init(head->unique, body);
		break;
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		reply_attributes(head->unique);
		break;
	case FUSE_OPEN:
		reply(head->unique, 0, &opened, sizeof(opened));
		break;
	case FUSE_STATFS:
		reply(head->unique, 0, &room, sizeof(room));
		break;
	case FUSE_READ:
		transfer(head->unique, read_in->offset, read_in->size, true);
		break;
	case FUSE_WRITE:
		transfer(head->unique, write_in->offset, write_in->size, false);
		break;
	case FUSE_FSYNC:
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_DESTROY:
		reply(head->unique, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break; /* these have no reply */
	default:
		reply(head->unique, -ENOSYS, NULL, 0);
	}
}

/* Returns false when the file is used by nobody any more. */
static bool receive(void)
{
	ssize_t got = read(disk.fd, request, sizeof(request));

	if (got < 0 && errno == ENODEV) {
		return false;
	}
	if (got < 0 && errno != EAGAIN && errno != EINTR && errno != ENOENT) {
		fail("a request", strerror(errno));
	}
	if (got >= (ssize_t)sizeof(struct fuse_in_header)) {
		handle((const struct fuse_in_header *)request,
			request + sizeof(struct fuse_in_header));
	}
	return true;
}

/* Waits for a request, or until the first one in the queue is due. */
static void wait_for_work(void)
{
	struct pollfd poll_fd = { .fd = disk.fd, .events = POLLIN };
	uint64_t now_ns = samples_now_ns();
	uint64_t due_ns = disk.queue[disk.first].due_ns;
	uint64_t wait_ns = disk.count > 0 && due_ns > now_ns ? due_ns - now_ns : 0;
	struct timespec time = { .tv_sec = (time_t)(wait_ns / SAMPLES_NS_PER_S),
		.tv_nsec = (long)(wait_ns % SAMPLES_NS_PER_S) };

	if (ppoll(&poll_fd, 1, disk.count > 0 ? &time : NULL, NULL) < 0 && errno != EINTR) {
		fail("waiting", strerror(errno));
	}
}

static void serve(void)
{
	do {
		while (disk.count > 0 && disk.queue[disk.first].due_ns <= samples_now_ns()) {
			finish(&disk.queue[disk.first]);
			disk.first = (disk.first + 1) % QUEUE_MAX;
			disk.count--;
		}
		wait_for_work();
	} while (receive());
}

static uint64_t number_of(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);

	if (end == text || *end != '\0' || value > NUMBER_MAX) {
		fail(text, "this is not a number, or it is too large");
	}
	return value;
}

static void mount_over(const char *path)
{
	char options[OPTIONS_BYTES];

	disk.fd = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (disk.fd < 0) {
		fail("/dev/fuse", strerror(errno));
	}
	snprintf(options, sizeof(options), "fd=%d,rootmode=%o,user_id=0,group_id=0,allow_other",
		disk.fd, S_IFREG);
	if (mount("seek_disk", path, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
		fail(path, strerror(errno));
	}
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "Usage: seek_disk FILE BYTES RATE SEEK_US\n");
		return 2;
	}
	disk.size = number_of(argv[2]);
	disk.rate = number_of(argv[3]);
	disk.seek_ns = number_of(argv[4]) * NS_PER_US;
	if (disk.rate == 0) {
		fail(argv[3], "a disk needs a rate");
	}
	for (size_t i = 0; i < sizeof(contents); i++) {
		contents[i] = (uint8_t)(1 + i % 251);
	}
	/* A timer may fire late by this. */
	prctl(PR_SET_TIMERSLACK, 1);
	mount_over(argv[1]);
	puts("ready");
	fflush(stdout);
	serve();
	return 0;
}
