// SPDX-License-Identifier: Apache-2.0
/*
 * A disk that is written is claimed: once for the process, against everybody else, and only for as
 * long as a store writes it. A store that only reads keeps nobody away, but is known to who would
 * destroy what it reads.
 *
 * The time between two tries is not slept here: nanosleep() is ours, counts the tries, and lets go
 * of a disk in the middle of them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../stores.h"
#include "disk/disk.h"
#include "harness.h"
#include "unit.h"

enum { IMAGE_BYTES = 1 << 20, TRIES_MAX = 40 };

static enum store_mode other_mode; /* direct where that works */
static unsigned pauses;
static unsigned release_at; /* at this pause release_fd is closed; 0 = never */
static int release_fd;

/* Instead of libc's, which has other names for its parameters. */
int nanosleep(const struct timespec *wanted, struct timespec *left)
{
	assert_int_equal(wanted->tv_sec, 0);
	assert_true(wanted->tv_nsec > 0);
	pauses++;
	assert_true(pauses <= TRIES_MAX);
	if (pauses == release_at) {
		close(release_fd);
	}
	return 0;
}

static struct store *open_store(const char *path, bool read_only, enum store_mode mode)
{
	const struct store_options options = {
		.path = path, .read_only = read_only, .read_mode = mode, .write_mode = mode
	};
	struct error error;
	struct store *store = NULL;

	if (store_open(&options, &store, &error) < 0) {
		fail_msg("%s", error.text);
	}
	return store;
}

static void check_refused(const char *path, const char *sentence)
{
	const struct store_options options = { .path = path };
	struct error error;
	struct store *store = NULL;

	pauses = 0;
	assert_int_equal(store_open(&options, &store, &error), -EBUSY);
	assert_int_equal(pauses, TRIES_MAX - 1);
	assert_non_null(strstr(error.text, path));
	assert_non_null(strstr(error.text, sentence));
	assert_string_equal(error.key, "readonly");
}

/* What another program does to keep others away; -1 when it is told that somebody has it. */
static int take(const char *path)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = INT64_MAX - 1, .l_len = 1
	};
	struct stat status;
	int fd;

	assert_int_equal(stat(path, &status), 0);
	if (S_ISBLK(status.st_mode)) {
		fd = open(path, O_RDWR | O_EXCL | O_CLOEXEC);
		assert_true(fd >= 0 || errno == EBUSY);
		return fd;
	}
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
		assert_int_equal(errno, EAGAIN);
		close(fd);
		return -1;
	}
	return fd;
}

static bool is_free(const char *path)
{
	int fd = take(path);

	if (fd >= 0) {
		close(fd);
	}
	return fd >= 0;
}

static void check_one_claim_for_all(const char *path)
{
	struct store *reader = open_store(path, true, STORE_MODE_CACHED);
	struct store *first;
	struct store *second;

	pauses = 0;
	assert_true(is_free(path));
	first = open_store(path, false, STORE_MODE_CACHED);
	assert_false(is_free(path));
	second = open_store(path, false, other_mode);
	assert_int_equal(pauses, 0);
	store_close(first);
	assert_false(is_free(path));
	store_close(second);
	assert_true(is_free(path));
	first = open_store(path, false, other_mode);
	assert_false(is_free(path));
	store_close(reader);
	assert_false(is_free(path));
	store_close(first);
	assert_true(is_free(path));
}

static void check_taken(const char *path, const char *sentence)
{
	struct store *store;

	release_fd = take(path);
	assert_true(release_fd >= 0);
	check_refused(path, sentence);
	store = open_store(path, true, STORE_MODE_CACHED);
	store_close(store);
	pauses = 0;
	release_at = 3;
	store = open_store(path, false, STORE_MODE_CACHED);
	release_at = 0;
	assert_int_equal(pauses, 3);
	store_close(store);
}

/* Of whoever is about to destroy the contents. */
static bool has_readers(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	int result;

	assert_true(fd >= 0);
	pauses = 0;
	result = disk_check_readers(fd);
	assert_true(result == 0 || result == -EBUSY);
	assert_int_equal(pauses, result == 0 ? 0 : TRIES_MAX - 1);
	close(fd);
	return result != 0;
}

static void check_readers_are_known(const char *path)
{
	struct store *first;
	struct store *second;
	struct store *writer = open_store(path, false, STORE_MODE_CACHED);

	assert_false(has_readers(path));
	first = open_store(path, true, STORE_MODE_CACHED);
	assert_true(has_readers(path));
	store_close(writer);
	assert_true(has_readers(path));
	assert_true(is_free(path));
	second = open_store(path, true, other_mode);
	store_close(first);
	assert_true(has_readers(path));
	pauses = 0;
	writer = open_store(path, false, other_mode);
	assert_int_equal(pauses, 0);
	store_close(second);
	assert_false(has_readers(path));
	store_close(writer);
}

TEST(test_file_that_is_read)
{
	check_readers_are_known(scratch_file("image", IMAGE_BYTES));
}

TEST(test_device_that_is_read)
{
	char device[64];
	int fd = loop_open(scratch_file("image", IMAGE_BYTES), 512, device, sizeof(device));

	if (fd < 0) {
		skip(); /* no loop device here */
	}
	check_readers_are_known(device);
	loop_close(fd);
}

/* A server that was killed a moment ago may not have let go yet. */
TEST(test_reader_that_is_about_to_go)
{
	const char *path = scratch_file("image", IMAGE_BYTES);
	struct error error;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(disk_claim_reading(path, fd, false, &release_fd, &error), 0);
	assert_true(release_fd >= 0);
	pauses = 0;
	release_at = 3;
	assert_int_equal(disk_check_readers(fd), 0);
	release_at = 0;
	assert_int_equal(pauses, 3);
	close(fd);
}

/* There is nothing to hold, as on a filesystem without locks: it is read all the same. */
TEST(test_reading_where_no_lock_can_be_had)
{
	const char *path = scratch_file("image", IMAGE_BYTES);
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	struct error error;
	struct store *store;
	int claim = 0;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
	pauses = 0;
	assert_int_equal(disk_claim_reading(path, fd, false, &claim, &error), 0);
	assert_int_equal(claim, -1);
	store = open_store(path, true, STORE_MODE_CACHED);
	store_close(store);
	assert_int_equal(pauses, 0);
	close(fd);
}

TEST(test_reading_what_was_replaced)
{
	const char *path = scratch_file("image", IMAGE_BYTES);
	struct error error;
	int claim = -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(disk_claim_reading(path, fd, false, &claim, &error), -ENOENT);
	assert_string_equal(path, scratch_file("image", IMAGE_BYTES));
	assert_int_equal(disk_claim_reading(path, fd, false, &claim, &error), -ESTALE);
	assert_non_null(strstr(error.text, "was replaced"));
	assert_int_equal(claim, -1);
	close(fd);
}

/* What another process has locked on a byte of one of the ranges that marks of uses are in. */
static int lock_number(const char *path, uint64_t range, uint64_t number)
{
	struct flock lock = { .l_type = F_RDLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)((UINT64_C(1) << 62) + (range << 40) + number),
		.l_len = 1 };
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
	return fd;
}

/* Operations of a process that has exited are found among those of others, in any order. A store
 * waits for them, whether it writes or reads. */
TEST(test_late_operations)
{
	static const uint64_t numbers[] = { 7, 900, 1, 500, 6, 8, (UINT64_C(1) << 40) - 1 };
	const char *path = scratch_file("image", IMAGE_BYTES);
	struct store *own[2];
	int uses[ARRAY_COUNT(numbers)];
	int claims[ARRAY_COUNT(numbers)];
	int late;

	for (size_t i = 0; i < ARRAY_COUNT(numbers); i++) {
		uses[i] = lock_number(path, 0, numbers[i]);
		claims[i] = lock_number(path, 1, numbers[i]);
	}
	for (uint64_t number = 499; number <= 501; number += 2) {
		own[0] = open_store(path, true, STORE_MODE_CACHED);
		assert_int_equal(store_barrier(own[0], true), STORE_BARRIER_OPEN);
		late = lock_number(path, 0, number);
		assert_int_equal(disk_check_uses(uses[0]), -EBUSY);
		own[1] = open_store(path, number == 499, other_mode);
		assert_int_equal(store_barrier(own[0], true), STORE_BARRIER_CLOSED);
		assert_int_equal(store_barrier(own[1], true), STORE_BARRIER_CLOSED);
		close(late);
		assert_int_equal(store_barrier(own[0], false), STORE_BARRIER_CLOSED);
		assert_int_equal(store_barrier(own[1], true), STORE_BARRIER_OPEN);
		assert_int_equal(store_barrier(own[0], false), STORE_BARRIER_OPEN);
		store_close(own[0]);
		store_close(own[1]);
	}
	for (size_t i = 0; i < ARRAY_COUNT(numbers); i++) {
		assert_int_equal(disk_check_uses(uses[0]), 0);
		close(claims[i]);
		/* a process does not find its own locks */
		assert_int_equal(disk_check_uses(uses[0]), i == 0 ? 0 : -EBUSY);
		assert_int_equal(disk_check_uses(uses[1]), i == 1 ? 0 : -EBUSY);
		claims[i] = lock_number(path, 1, numbers[i]);
	}
	for (size_t i = 0; i < ARRAY_COUNT(numbers); i++) {
		close(uses[i]);
		close(claims[i]);
	}
}

TEST(test_file_is_claimed_once_by_all_its_writers)
{
	check_one_claim_for_all(scratch_file("image", IMAGE_BYTES));
}

TEST(test_file_of_another_server)
{
	check_taken(scratch_file("image", IMAGE_BYTES), "served for writing by a gmblock server");
}

TEST(test_device_is_claimed_once_by_all_its_writers)
{
	char device[64];
	int fd = loop_open(scratch_file("image", IMAGE_BYTES), 512, device, sizeof(device));

	if (fd < 0) {
		skip(); /* no loop device here */
	}
	check_one_claim_for_all(device);
	loop_close(fd);
}

TEST(test_device_of_another_program)
{
	char device[64];
	int fd = loop_open(scratch_file("image", IMAGE_BYTES), 512, device, sizeof(device));

	if (fd < 0) {
		skip(); /* no loop device here */
	}
	check_taken(device, "mounted or in use by another program");
	loop_close(fd);
}

/* Other programs' locks, such as those of qemu on the first bytes, are none of our business. */
TEST(test_locks_elsewhere_in_the_file)
{
	const char *path = scratch_file("image", IMAGE_BYTES);
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = INT64_MAX - 1
	};
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct store *store;

	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
	pauses = 0;
	store = open_store(path, false, STORE_MODE_CACHED);
	assert_int_equal(pauses, 0);
	store_close(store);
	close(fd);
}

int main(void)
{
	int failed;

	scratch_create();
	other_mode = scratch_has_direct() ? STORE_MODE_DIRECT : STORE_MODE_CACHED;
	failed = unit_run(NULL, NULL);
	scratch_remove();
	return failed;
}
