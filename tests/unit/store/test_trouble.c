// SPDX-License-Identifier: Apache-2.0
/*
 * The file store when things are not as they should be: nothing to open, the wrong thing, disks
 * that shrink, fill up, fail, or are replaced.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../stores.h"
#include "harness.h"
#include "unit.h"

enum { SIZE = 1 << 20 };

/* reason: in the sentence, or the key that helps. */
static void check_refused(const struct store_options *options, int code, const char *reason)
{
	struct store *store = NULL;
	struct error error = { 0 };

	assert_int_equal(store_open(options, &store, &error), code);
	assert_null(store);
	assert_int_equal(error.code, code);
	if (strstr(error.text, reason) == NULL &&
		(error.key == NULL || strcmp(error.key, reason) != 0)) {
		fail_msg("\"%s\" does not say \"%s\"", error.text, reason);
	}
}

/* Mounts are seen by this process only, and end with it. */
static bool mounts_are_private;

/* Mounts a filesystem in the scratch directory. */
static const char *mount_here(const char *type, const char *data)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s", scratch_path(type));
	mkdir(path, 0700);
	if (!mounts_are_private) {
		print_message("cannot make mounts private\n");
		skip();
	}
	if (mount(type, path, type, 0, data) != 0) {
		print_message("cannot mount %s: %s\n", type, strerror(errno));
		skip();
	}
	return path;
}

static void unmount(const char *path)
{
	assert_int_equal(umount2(path, MNT_DETACH), 0);
}

static void create(const char *path, uint64_t size)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	close(fd);
}

static uint64_t blocks_of(const char *path)
{
	struct stat status;

	assert_int_equal(stat(path, &status), 0);
	return (uint64_t)status.st_blocks;
}

/* --- opening ------------------------------------------------------------------------------- */

TEST(test_what_cannot_be_opened_is_explained)
{
	struct store_options options = { .path = scratch_path("nothing-here") };

	check_refused(&options, -ENOENT, "does not exist");
	options.path = "";
	check_refused(&options, -EINVAL, "no path given");
	options.path = "/";
	check_refused(&options, -EISDIR, "a directory");
	options.path = "/dev/null";
	check_refused(&options, -ENOTSUP, "a character device");
	options.path = scratch_path("pipe");
	assert_int_equal(mkfifo(options.path, 0600), 0);
	check_refused(&options, -ENOTSUP, "a pipe");
	options.path = "/dev/null/x";
	check_refused(&options, -ENOTDIR, "/dev/null/x");
}

TEST(test_file_without_permission_is_explained)
{
	struct store_options options = { .path = scratch_file("locked", SIZE) };
	bool is_root = geteuid() == 0;

	assert_int_equal(chmod(options.path, 0400), 0);
	if (is_root) { /* permissions do not stop root, so be somebody else for a moment */
		assert_int_equal(chmod(scratch_path("."), 0711), 0);
		options.path = scratch_path("locked");
		assert_int_equal(chown(options.path, 65534, 65534), 0);
		assert_int_equal(seteuid(65534), 0);
	}
	check_refused(&options, -EACCES, "readonly");
	if (is_root) {
		assert_int_equal(seteuid(0), 0);
	}
}

TEST(test_direct_io_that_cannot_work_is_an_error)
{
	const char *mounted = mount_here("ramfs", "");
	struct store_options options = { .read_mode = STORE_MODE_DIRECT };
	struct store *store = NULL;
	struct error error;
	char path[600];

	snprintf(path, sizeof(path), "%s/image", mounted);
	create(path, SIZE);
	options.path = path;
	check_refused(&options, -EINVAL, "mode=cached");
	options.read_mode = STORE_MODE_CACHED;
	options.write_mode = STORE_MODE_DIRECT;
	check_refused(&options, -EINVAL, "mode=cached");
	options.read_only = true; /* then nothing is written, directly or not */
	assert_int_equal(store_open(&options, &store, &error), 0);
	store_close(store);
	unmount(mounted);
}

TEST(test_read_only_device_is_explained)
{
	struct store_options options = { 0 };
	struct bench bench;
	char device[64];
	char data[16];
	int fd = loop_open_flags(scratch_file("image", SIZE), 512, true, device, sizeof(device));

	if (fd < 0) {
		skip();
	}
	options.path = device;
	{
		struct store *store = NULL;
		struct error error;

		assert_true(store_open(&options, &store, &error) < 0);
		assert_string_equal(error.key, "readonly");
	}
	options.read_only = true;
	bench_open(&bench, &options);
	assert_int_equal(store_size(bench.store), SIZE);
	assert_int_equal(bench_read(&bench, 0, 16, data), 0);
	assert_int_equal(bench_write(&bench, 0, 16, data), -EPERM);
	assert_int_equal(bench_flush(&bench), 0);
	bench_close(&bench);
	loop_close(fd);
}

TEST(test_replaced_file_is_noticed)
{
	char path[512];
	char other[512];
	struct store_options options = { .path = path };
	struct store_queue *queue = NULL;
	struct ring_options ring_options = { .entries = 8 };
	struct ring *ring;
	struct store *store;
	struct error error;

	snprintf(path, sizeof(path), "%s", scratch_file("image", SIZE));
	snprintf(other, sizeof(other), "%s", scratch_file("other", SIZE));
	assert_int_equal(ring_create(&ring_options, &ring, &error), 0);
	assert_int_equal(store_open(&options, &store, &error), 0);
	assert_int_equal(rename(other, path), 0);
	assert_int_equal(store_queue_create(store, ring, &queue, &error), -ESTALE);
	assert_null(queue);
	assert_non_null(strstr(error.text, "replaced"));
	store_close(store);
	ring_destroy(ring);
}

/* --- size ---------------------------------------------------------------------------------- */

static void check_shrinking(enum store_mode mode)
{
	struct store_options options = {
		.path = scratch_file("image", SIZE), .read_mode = mode, .write_mode = mode
	};
	struct store_extent extents[4];
	uint8_t *data = aligned_bytes(SIZE);
	struct bench bench;
	struct stat status;
	char path[512];

	snprintf(path, sizeof(path), "%s", options.path);
	options.path = path;
	bench_open(&bench, &options);
	memset(data, 7, SIZE);
	assert_int_equal(bench_write(&bench, 0, SIZE, data), 0);
	assert_int_equal(truncate(path, 500001), 0);
	/* A read finds out. */
	assert_int_equal(bench_read(&bench, 0, SIZE, data), -EIO);
	assert_int_equal(bench_read(&bench, 500000, 1, data), 0);
	assert_int_equal(bench_read(&bench, 500000, 2, data), -EIO);
	assert_int_equal(bench_read(&bench, 0, 500001, data), 0);
	/* And from then on nothing makes it grow. */
	assert_int_equal(bench_write(&bench, 4096 * 200, 4096, data), -EIO);
	assert_int_equal(bench_write(&bench, 500000, 2, data), -EIO);
	assert_int_equal(bench_do(&bench, STORE_ZERO, 0, 0, SIZE, NULL), -EIO);
	assert_int_equal(bench_do(&bench, STORE_ZERO, STORE_NO_HOLE, 8192, SIZE / 2, NULL), -EIO);
	assert_int_equal(bench_do(&bench, STORE_TRIM, 0, 0, SIZE, NULL), -EIO);
	assert_int_equal(bench_extents(&bench, 500001, 1, extents, 4), -EIO);
	assert_int_equal(bench_write(&bench, 499999, 2, data), 0);
	assert_int_equal(stat(path, &status), 0);
	assert_int_equal(status.st_size, 500001);
	/* store_size() finds out, too. */
	assert_int_equal(truncate(path, 8192), 0);
	assert_int_equal(store_size(bench.store), 8192);
	assert_int_equal(bench_write(&bench, 8192, 4096, data), -EIO);
	/* Growing is seen as soon as somebody goes there. */
	assert_int_equal(truncate(path, 3 * SIZE), 0);
	assert_int_equal(bench_write(&bench, 3 * SIZE - 4096, 4096, data), 0);
	assert_int_equal(store_size(bench.store), 3 * SIZE);
	bench_close(&bench);
	free(data);
}

TEST(test_shrinking_file_gives_errors_and_does_not_grow)
{
	check_shrinking(STORE_MODE_CACHED);
}

TEST(test_shrinking_file_read_directly)
{
	if (!scratch_has_direct()) {
		skip();
	}
	check_shrinking(STORE_MODE_DIRECT);
}

TEST(test_extents_of_a_file_cut_before_they_are_asked)
{
	struct store_options options = { .path = scratch_file("image", SIZE) };
	struct store_extent extents[4];
	struct bench bench;
	char path[512];

	snprintf(path, sizeof(path), "%s", options.path);
	options.path = path;
	bench_open(&bench, &options);
	assert_int_equal(truncate(path, 65536), 0);
	/* What is there is told, the rest is an error when its turn comes. */
	assert_int_equal(bench_extents(&bench, 0, SIZE, extents, 4), 1);
	assert_int_equal(extents[0].length, 65536);
	assert_int_equal(bench_extents(&bench, 65536, SIZE - 65536, extents, 4), -EIO);
	bench_close(&bench);
}

/* --- space --------------------------------------------------------------------------------- */

TEST(test_full_filesystem_is_enospc_and_heals)
{
	const char *mounted = mount_here("tmpfs", "size=1M");
	struct store_options options = { 0 };
	uint8_t *data = aligned_bytes(SIZE);
	uint8_t *back = aligned_bytes(SIZE);
	struct bench bench;
	char path[600];
	int result = 0;
	int good = 0;

	snprintf(path, sizeof(path), "%s/image", mounted);
	create(path, 16 * SIZE);
	options.path = path;
	bench_open(&bench, &options);
	memset(data, 7, SIZE);
	for (good = 0; good < 32 && result == 0; good++) {
		result = bench_write(&bench, (uint64_t)good * 65536, 65536, data);
	}
	assert_int_equal(result, -ENOSPC);
	good--;
	assert_in_range(good, 1, 16);
	assert_int_equal(bench_do(&bench, STORE_WRITE, STORE_FUA, 8 * SIZE, 65536, data), -ENOSPC);
	assert_int_equal(bench_flush(&bench), 0); /* full is not broken */
	for (int i = 0; i < good; i++) {
		assert_int_equal(bench_read(&bench, (uint64_t)i * 65536, 65536, back), 0);
		assert_memory_equal(back, data, 65536);
	}
	/* Space can be given back and used again. */
	assert_int_equal(bench_do(&bench, STORE_TRIM, 0, 0, 16 * SIZE, NULL), 0);
	assert_int_equal(bench_write(&bench, 8 * SIZE, 65536, data), 0);
	bench_close(&bench);
	unmount(mounted);
	free(data);
	free(back);
}

TEST(test_no_hole_provisions_and_unmap_gives_back)
{
	struct store_options options = { .path = scratch_file("image", SIZE) };
	struct bench bench;
	char path[512];

	snprintf(path, sizeof(path), "%s", options.path);
	options.path = path;
	bench_open(&bench, &options);
	assert_int_equal(blocks_of(path), 0);
	assert_int_equal(bench_do(&bench, STORE_ZERO, STORE_NO_HOLE | STORE_FUA, 0, SIZE, NULL), 0);
	assert_true(blocks_of(path) >= SIZE / 512);
	assert_int_equal(bench_do(&bench, STORE_ZERO, STORE_FUA, 0, SIZE / 2, NULL), 0);
	assert_true(blocks_of(path) < SIZE / 512);
	assert_int_equal(bench_do(&bench, STORE_TRIM, STORE_FUA, 0, SIZE, NULL), 0);
	assert_true(blocks_of(path) < SIZE / 1024);
	bench_close(&bench);
}

/* tmpfs cannot zero a range and keep it: then zeroes are written, but never for a fast zero. */
TEST(test_zeroes_are_written_where_nothing_else_works)
{
	const char *mounted = mount_here("tmpfs", "size=8M");
	struct store_options options = { 0 };
	uint8_t *data = aligned_bytes(SIZE);
	struct bench bench;
	char path[600];
	int fd;

	snprintf(path, sizeof(path), "%s/image", mounted);
	create(path, SIZE);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) {
		close(fd);
		unmount(mounted);
		free(data);
		skip(); /* a kernel that has learnt it */
	}
	close(fd);
	options.path = path;
	bench_open(&bench, &options);
	memset(data, 7, SIZE);
	assert_int_equal(bench_write(&bench, 0, SIZE, data), 0);
	assert_int_equal(
		bench_do(&bench, STORE_ZERO, STORE_NO_HOLE | STORE_FAST_ZERO, 1, SIZE - 2, NULL),
		-EOPNOTSUPP);
	assert_int_equal(
		bench_do(&bench, STORE_ZERO, STORE_NO_HOLE | STORE_FAST_ZERO, 1, SIZE - 2, NULL),
		-EOPNOTSUPP); /* now from memory */
	assert_int_equal(bench_read(&bench, 0, SIZE, data), 0);
	for (int i = 0; i < SIZE; i++) {
		assert_int_equal(data[i], 7);
	}
	assert_int_equal(bench_do(&bench, STORE_ZERO, STORE_NO_HOLE, 1, SIZE - 2, NULL), 0);
	assert_true(blocks_of(path) >= SIZE / 512);
	assert_int_equal(bench_read(&bench, 0, SIZE, data), 0);
	assert_int_equal(data[0], 7);
	assert_int_equal(data[SIZE - 1], 7);
	for (int i = 1; i < SIZE - 1; i++) {
		assert_int_equal(data[i], 0);
	}
	bench_close(&bench);
	unmount(mounted);
	free(data);
}

TEST(test_ranges_of_terabytes)
{
	const uint64_t size = UINT64_C(3) << 40;
	struct store_options options = { 0 };
	struct store_extent extents[4];
	struct bench bench;
	char path[512];
	char data[8] = "far out";

	snprintf(path, sizeof(path), "%s", scratch_file("image", 0));
	if (truncate(path, (off_t)size) != 0) {
		skip(); /* a filesystem of small files */
	}
	options.path = path;
	bench_open(&bench, &options);
	assert_int_equal(bench_write(&bench, size - 100, 8, data), 0);
	assert_int_equal(bench_extents(&bench, 0, size, extents, 4), 2);
	assert_int_equal(extents[0].flags, STORE_EXTENT_HOLE | STORE_EXTENT_ZERO);
	assert_true(extents[0].length >= size - 100 - 65536);
	assert_int_equal(extents[1].flags, 0);
	assert_int_equal(bench_do(&bench, STORE_ZERO, 0, 0, size, NULL), 0);
	assert_int_equal(bench_do(&bench, STORE_TRIM, 0, 0, size, NULL), 0);
	assert_int_equal(bench_do(&bench, STORE_CACHE, 0, 0, size, NULL), 0);
	assert_int_equal(bench_read(&bench, size - 100, 8, data), 0);
	assert_memory_equal(data, "\0\0\0\0\0\0\0\0", 8);
	bench_close(&bench);
	unlink(path);
}

/* --- a disk that loses what it was given --------------------------------------------------- */

/*
 * A loop device over a sparse file on a filesystem that is too small: the page cache takes the
 * bytes, the disk does not, and only a flush tells.
 */
TEST(test_failed_flush_stays_failed_until_reopened)
{
	const char *mounted = mount_here("tmpfs", "size=1M");
	struct store_options options = { 0 };
	uint8_t *data = aligned_bytes(SIZE);
	struct bench first;
	struct bench second;
	struct bench other;
	char path[600];
	char device[64];
	int fd;
	int error;

	snprintf(path, sizeof(path), "%s/image", mounted);
	create(path, 16 * SIZE);
	fd = loop_open(path, 4096, device, sizeof(device));
	if (fd < 0) {
		unmount(mounted);
		free(data);
		skip();
	}
	options.path = device;
	bench_open(&first, &options);
	bench_share(&second, first.store);
	bench_open(&other, &options); /* another export of the same disk */
	memset(data, 7, SIZE);
	assert_int_equal(bench_flush(&first), 0);
	for (uint64_t i = 0; i < 8; i++) {
		assert_int_equal(bench_write(&first, i * SIZE, SIZE, data), 0);
	}
	error = bench_flush(&first);
	assert_true(error == -EIO || error == -ENOSPC);
	assert_int_equal(bench_flush(&first), error);
	assert_int_equal(bench_flush(&second), error);
	assert_int_equal(bench_flush(&other), error);
	assert_int_equal(bench_do(&second, STORE_WRITE, STORE_FUA, 0, 4096, data), error);
	assert_int_equal(bench_do(&other, STORE_WRITE, STORE_FUA, 0, 4096, data), error);
	assert_int_equal(bench_write(&first, 0, 4096, data), 0);
	bench_close(&other);
	bench_close(&second);
	bench_close(&first);
	bench_open(&first, &options);
	assert_int_equal(bench_flush(&first), 0);
	bench_close(&first);
	loop_close(fd);
	unmount(mounted);
	free(data);
}

int main(void)
{
	int failed;

	/* Fails without the right to it, and in a chroot whose root is no mount point. */
	mounts_are_private = unshare(CLONE_NEWNS) == 0 &&
			     mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
	scratch_create();
	failed = unit_run(NULL, NULL);
	scratch_remove();
	return failed;
}
