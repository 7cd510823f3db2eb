// SPDX-License-Identifier: Apache-2.0
/*
 * The page cache as memory, over real files: what is in a view, when there is none, and what a
 * system call says when it has gone away.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "disk/disk.h"
#include "harness.h"

enum { FILE_BYTES = 1 << 20, PAGE_BYTES = 4096 };

static int open_image(const char *name, uint64_t size)
{
	struct error error;
	int fd = -1;

	if (disk_open(scratch_file(name, size), false, false, &fd, &error) != 0) {
		fail_msg("%s", error.text);
	}
	return fd;
}

static struct disk_map *map_of(int fd, uint64_t size)
{
	struct disk_map *map = NULL;

	assert_int_equal(disk_map_create(fd, size, &map), 0);
	return map;
}

/* As a send would: the kernel reads the view. Returns what write() does, or a negative errno. */
static ssize_t kernel_reads(const void *view, size_t bytes, uint8_t *out)
{
	int ends[2];
	ssize_t count;

	assert_int_equal(pipe(ends), 0);
	count = write(ends[1], view, bytes);
	if (count < 0) {
		count = -errno;
	} else if (out != NULL) {
		assert_int_equal(read(ends[0], out, (size_t)count), count);
	}
	close(ends[0]);
	close(ends[1]);
	return count;
}

static void test_a_view_is_what_a_read_would_find(void **state)
{
	int fd = open_image("image", FILE_BYTES);
	struct disk_map *map = map_of(fd, FILE_BYTES);
	uint8_t *bytes = aligned_bytes(FILE_BYTES);
	uint64_t random = 7;
	uint8_t got[8192];
	const void *view;

	GMB_UNUSED(state);
	for (int i = 0; i < FILE_BYTES; i++) {
		bytes[i] = (uint8_t)random_next(&random);
	}
	assert_int_equal(pwrite(fd, bytes, FILE_BYTES, 0), FILE_BYTES);
	for (int i = 0; i < 200; i++) {
		uint64_t length = 1 + random_below(&random, sizeof(got));
		uint64_t offset = random_below(&random, FILE_BYTES - length + 1);
		uint8_t byte = 0;

		view = disk_map_view(map, offset, length);
		assert_non_null(view);
		assert_int_equal(kernel_reads(view, length, got), length);
		assert_memory_equal(got, bytes + offset, length);
		assert_true(disk_map_peek(map, offset + length - 1, &byte, 1));
		assert_int_equal(byte, bytes[offset + length - 1]);
	}
	/* Also what is written after it was asked for. */
	view = disk_map_view(map, 5000, 5);
	assert_int_equal(pwrite(fd, "later", 5, 5000), 5);
	assert_int_equal(kernel_reads(view, 5, got), 5);
	assert_memory_equal(got, "later", 5);
	free(bytes);
	disk_map_destroy(map);
	disk_close(fd);
}

static void test_no_view_of_what_is_not_there(void **state)
{
	int fd = open_image("image", FILE_BYTES);
	struct disk_map *map = map_of(fd, FILE_BYTES - 5);
	uint8_t page[PAGE_BYTES];

	GMB_UNUSED(state);
	memset(page, 0x55, sizeof(page));
	assert_null(disk_map_view(map, 0, 1)); /* a hole that nobody has read */
	assert_int_equal(pwrite(fd, page, sizeof(page), 8192), PAGE_BYTES);
	assert_non_null(disk_map_view(map, 8192, PAGE_BYTES));
	assert_null(disk_map_view(map, 8191, PAGE_BYTES));
	assert_null(disk_map_view(map, 8192, PAGE_BYTES + 1));
	/* Ends with the last page, whatever the size. */
	assert_int_equal(pwrite(fd, page, sizeof(page), FILE_BYTES - PAGE_BYTES), PAGE_BYTES);
	assert_non_null(disk_map_view(map, FILE_BYTES - PAGE_BYTES, PAGE_BYTES - 5));
	assert_null(disk_map_view(map, FILE_BYTES, 1));
	assert_null(disk_map_view(map, FILE_BYTES - PAGE_BYTES, PAGE_BYTES + 1));
	assert_null(disk_map_view(map, UINT64_MAX - 4, 5));
	assert_null(disk_map_view(map, UINT64_MAX - 4, 4096));
	disk_map_destroy(map);
	disk_close(fd);
}

static void test_a_shorter_file_is_an_error_of_the_system_call(void **state)
{
	int fd = open_image("image", FILE_BYTES);
	struct disk_map *map = map_of(fd, FILE_BYTES);
	uint8_t *bytes = aligned_bytes(FILE_BYTES);
	uint8_t got[3 * PAGE_BYTES];
	const void *view;
	uint8_t byte;

	GMB_UNUSED(state);
	memset(bytes, 0x66, FILE_BYTES);
	assert_int_equal(pwrite(fd, bytes, FILE_BYTES, 0), FILE_BYTES);
	view = disk_map_view(map, 0, sizeof(got));
	assert_int_equal(kernel_reads(view, sizeof(got), NULL), sizeof(got));
	assert_int_equal(ftruncate(fd, PAGE_BYTES), 0);
	assert_int_equal(kernel_reads(view, sizeof(got), got), PAGE_BYTES);
	assert_memory_equal(got, bytes, PAGE_BYTES);
	assert_int_equal(
		kernel_reads((const uint8_t *)view + PAGE_BYTES, PAGE_BYTES, NULL), -EFAULT);
	assert_false(disk_map_peek(map, PAGE_BYTES, &byte, 1));
	free(bytes);
	disk_map_destroy(map);
	disk_close(fd);
}

/* More than the page tables of all maps may be looked at, of two of them in turns: every view stays
 * good. */
static void test_old_views_stay_good(void **state)
{
	enum { PLACES = 400 };
	const uint64_t step = 64 << 20;
	const uint64_t size = PLACES * step;
	int fds[2] = { open_image("one", size), open_image("two", size) };
	struct disk_map *maps[2] = { map_of(fds[0], size), map_of(fds[1], size) };
	const void *views[2 * PLACES];
	uint8_t page[PAGE_BYTES];
	uint8_t got[PAGE_BYTES];

	GMB_UNUSED(state);
	for (int i = 0; i < 2 * PLACES; i++) {
		uint64_t offset = (uint64_t)i / 2 * step + (uint64_t)i * 8;

		memset(page, 1 + i % 255, sizeof(page));
		assert_int_equal(pwrite(fds[i % 2], page, sizeof(page), (off_t)offset), PAGE_BYTES);
		views[i] = disk_map_view(maps[i % 2], offset, PAGE_BYTES);
		assert_non_null(views[i]);
		assert_int_equal(kernel_reads(views[i], PAGE_BYTES, got), PAGE_BYTES);
		assert_memory_equal(got, page, PAGE_BYTES);
	}
	/* The windows of a map that is gone can be given up, too. */
	disk_map_destroy(maps[1]);
	for (int i = 0; i < 2 * PLACES; i += 2) {
		memset(page, 1 + i % 255, sizeof(page));
		assert_ptr_equal(
			views[i], disk_map_view(maps[0], (uint64_t)i / 2 * step + (uint64_t)i * 8,
					  PAGE_BYTES));
		assert_int_equal(kernel_reads(views[i], PAGE_BYTES, got), PAGE_BYTES);
		assert_memory_equal(got, page, PAGE_BYTES);
	}
	disk_map_destroy(maps[0]);
	disk_close(fds[0]);
	disk_close(fds[1]);
}

struct sending {
	struct ring_op op;
	int result;
};

static void sent(struct ring_op *op, int result)
{
	container_of(op, struct sending, op)->result = result;
}

/* A send from a file that is cut for a while: what the peer gets has nothing left out of the
 * middle, and the ring tells how much of it there was. */
static void test_a_send_leaves_nothing_out(void **state)
{
	const int room =
		FILE_BYTES; /* doubled; more than a quarter of it used: it waits for the peer */
	int fd = open_image("image", FILE_BYTES);
	struct disk_map *map = map_of(fd, FILE_BYTES);
	uint64_t *words = aligned_bytes(FILE_BYTES);
	uint64_t *got = aligned_bytes(FILE_BYTES);
	struct iovec iov = { .iov_len = FILE_BYTES };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct sending sending = { 0 };
	struct ring_file file;
	struct ring *ring;
	struct error error;
	size_t count = 0;
	int ends[2];

	GMB_UNUSED(state);
	for (size_t i = 0; i < FILE_BYTES / sizeof(words[0]); i++) {
		words[i] = i + 1;
	}
	assert_int_equal(pwrite(fd, words, FILE_BYTES, 0), FILE_BYTES);
	iov.iov_base = (void *)(uintptr_t)disk_map_view(map, 0, FILE_BYTES);
	assert_non_null(iov.iov_base);
	assert_int_equal(ftruncate(fd, FILE_BYTES * 3 / 4 + PAGE_BYTES), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
	assert_int_equal(ring_create(&(struct ring_options){ .entries = 0 }, &ring, &error), 0);
	file = ring_file_add(ring, ends[0]);
	ring_sendmsg(ring, &sending.op, file, &message, sent);
	ring_turn(ring, false);
	assert_int_equal(pwrite(fd, words, FILE_BYTES, 0), FILE_BYTES);
	while (count < FILE_BYTES) {
		ssize_t part =
			recv(ends[1], (uint8_t *)got + count, FILE_BYTES - count, MSG_DONTWAIT);

		if (part > 0) {
			count += (size_t)part;
		} else if (sending.op.in_flight) {
			ring_turn(ring, true);
		} else {
			break;
		}
	}
	assert_int_equal(sending.result, count);
	assert_memory_equal(got, words, count);
	ring_file_remove(ring, &file);
	ring_destroy(ring);
	close(ends[0]);
	close(ends[1]);
	free(words);
	free(got);
	disk_map_destroy(map);
	disk_close(fd);
}

/* The kernel tells others than a file's owner, who may only read it, that everything is there. */
static void test_only_who_is_told(void **state)
{
	const uid_t nobody = 65534;
	int fd = open_image("image", FILE_BYTES);
	int status;
	pid_t child;

	GMB_UNUSED(state);
	if (geteuid() != 0) {
		disk_close(fd);
		skip();
	}
	assert_int_equal(fchmod(fd, 0644), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct disk_map *map;
		int refused = seteuid(nobody) == 0 ? disk_map_create(fd, FILE_BYTES, &map) : 1;
		bool may = seteuid(0) == 0 && fchmod(fd, 0666) == 0 && seteuid(nobody) == 0;
		/* The directory above may be closed to him: only the file counts here. */
		int told = may ? disk_map_create(fd, FILE_BYTES, &map) : 1;

		_exit(refused == -EPERM && told == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	/* Nor does it tell root, where root may not do everything. */
	assert_int_equal(fchmod(fd, 0644), 0);
	assert_int_equal(fchown(fd, nobody, nobody), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
		struct __user_cap_data_struct none[2] = { 0 };
		struct disk_map *map;

		_exit(syscall(SYS_capset, &header, none) == 0 &&
					disk_map_create(fd, FILE_BYTES, &map) == -EPERM
				? 0
				: 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	disk_close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_view_is_what_a_read_would_find),
		cmocka_unit_test(test_no_view_of_what_is_not_there),
		cmocka_unit_test(test_a_shorter_file_is_an_error_of_the_system_call),
		cmocka_unit_test(test_a_send_leaves_nothing_out),
		cmocka_unit_test(test_old_views_stay_good),
		cmocka_unit_test(test_only_who_is_told),
	};
	int failed;

	scratch_create();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	scratch_remove();
	return failed;
}
