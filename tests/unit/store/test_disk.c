// SPDX-License-Identifier: Apache-2.0
/*
 * What Linux is asked about files and block devices, over real ones.
 */
#include <errno.h>
#include <linux/blkpg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "../stores.h"
#include "base/bytes.h"
#include "disk/disk.h"
#include "harness.h"
#include "unit.h"

enum { HOLE_BYTES = 1 << 20 };

static int open_disk(const char *path, bool direct)
{
	struct error error;
	int fd = -1;

	if (disk_open(path, false, direct, &fd, &error) != 0) {
		fail_msg("%s", error.text);
	}
	return fd;
}

TEST(test_file_facts)
{
	const char *path = scratch_file("image", 123456789);
	int fd = open_disk(path, false);
	struct disk_info info;
	struct stat status;
	uint64_t size = 0;

	assert_int_equal(disk_info(fd, &info), 0);
	assert_int_equal(stat(path, &status), 0);
	assert_int_equal(info.size, 123456789);
	assert_false(info.is_block);
	assert_false(info.read_only);
	assert_int_equal(info.identity[0], status.st_dev);
	assert_int_equal(info.identity[1], status.st_ino);
	assert_true(is_power_of_two(info.block_preferred));
	assert_true(info.block_preferred >= 512);
	assert_int_equal(disk_size(fd, &size), 0);
	assert_int_equal(size, 123456789);
	assert_int_equal(ftruncate(fd, 5), 0);
	assert_int_equal(disk_size(fd, &size), 0);
	assert_int_equal(size, 5);
	disk_close(fd);
}

/* The alignment that is reported works, for the last transfer that fits as well. */
TEST(test_direct_alignment_is_true)
{
	const uint64_t size = 123456;
	struct disk_info info;
	uint8_t *memory;
	int fd;

	if (!scratch_has_direct()) {
		skip();
	}
	fd = open_disk(scratch_file("image", size), true);
	assert_int_equal(disk_info(fd, &info), 0);
	assert_true(is_power_of_two(info.direct_offset_align));
	assert_true(is_power_of_two(info.direct_memory_align));
	memory = aligned_bytes(65536 * 2);
	assert_int_equal(pread(fd, memory + info.direct_memory_align, info.direct_offset_align,
				 info.direct_offset_align),
		info.direct_offset_align);
	assert_int_equal(pwrite(fd, memory, info.direct_offset_align,
				 (off_t)align_down(size, info.direct_offset_align) -
					 info.direct_offset_align),
		info.direct_offset_align);
	free(memory);
	disk_close(fd);
}

TEST(test_direct_alignment_of_a_4k_device)
{
	struct disk_info info;
	char device[64];
	int loop_fd = loop_open(scratch_file("image", 1 << 20), 4096, device, sizeof(device));
	int fd;

	if (loop_fd < 0) {
		skip();
	}
	for (int direct = 0; direct < 2; direct++) {
		struct stat status;

		fd = open_disk(device, direct == 1);
		assert_int_equal(disk_info(fd, &info), 0);
		assert_int_equal(stat(device, &status), 0);
		assert_true(info.is_block);
		assert_int_equal(info.size, 1 << 20);
		assert_int_equal(info.direct_offset_align, 4096);
		assert_int_equal(info.identity[0], 0);
		assert_int_equal(info.identity[1], status.st_rdev);
		assert_true(info.block_preferred >= 4096);
		assert_true(info.io_max > 0);
		disk_close(fd);
	}
	loop_close(loop_fd);
}

TEST(test_a_device_ends_with_a_whole_block)
{
	struct store_options options = { 0 };
	uint8_t *block = aligned_bytes(4096);
	struct bench bench;
	char device[64];
	int loop_fd = loop_open(scratch_file("odd", (1 << 20) + 512), 4096, device, sizeof(device));

	if (loop_fd < 0) {
		free(block);
		skip();
	}
	options.path = device;
	bench_open(&bench, &options);
	assert_int_equal(store_size(bench.store), 1 << 20);
	/* All that there is can be used. */
	memset(block, 5, 4096);
	assert_int_equal(bench_write(&bench, (1 << 20) - 4096, 4096, block), 0);
	assert_int_equal(bench_flush(&bench), 0);
	assert_int_equal(bench_read(&bench, (1 << 20) - 4096, 4096, block), 0);
	bench_close(&bench);
	loop_close(loop_fd);
	free(block);
}

/* data, hole, data with an odd end */
static int make_layout(uint64_t *size)
{
	uint8_t block[65536];
	const char *path = scratch_file("layout", 0);
	int fd = open_disk(path, false);

	memset(block, 1, sizeof(block));
	assert_int_equal(pwrite(fd, block, sizeof(block), 0), sizeof(block));
	assert_int_equal(pwrite(fd, block, 1001, sizeof(block) + HOLE_BYTES), 1001);
	*size = sizeof(block) + HOLE_BYTES + 1001;
	return fd;
}

static void check_extent(
	int fd, uint64_t offset, uint64_t limit, enum disk_extent_kind kind, uint64_t length)
{
	enum disk_extent_kind got_kind;
	uint64_t got_length = 0;

	assert_int_equal(disk_extent(fd, offset, limit, &got_kind, &got_length), 0);
	assert_int_equal(got_kind, kind);
	assert_int_equal(got_length, length);
}

TEST(test_extents_of_a_known_layout)
{
	enum disk_extent_kind kind;
	uint64_t length;
	uint64_t size;
	int fd = make_layout(&size);

	check_extent(fd, 0, size, DISK_DATA, 65536);
	check_extent(fd, 0, 100, DISK_DATA, 100);
	check_extent(fd, 7, size - 7, DISK_DATA, 65529);
	check_extent(fd, 65536, size - 65536, DISK_HOLE, HOLE_BYTES);
	check_extent(fd, 65536 + 11, 100, DISK_HOLE, 100);
	check_extent(fd, 65536 + HOLE_BYTES, 5000, DISK_DATA, 1001); /* ends with the file */
	check_extent(fd, size - 1, 1, DISK_DATA, 1);
	assert_int_equal(disk_extent(fd, size, 1, &kind, &length), -ENXIO);
	/* A hole at the end. */
	assert_int_equal(ftruncate(fd, (off_t)size + 100000), 0);
	check_extent(fd, size + 50000, 100, DISK_HOLE, 100);
	check_extent(fd, size + 50000, 1 << 20, DISK_HOLE, 50000);
	disk_close(fd);
}

TEST(test_discard_makes_a_hole_in_a_file)
{
	uint64_t size;
	uint8_t byte = 1;
	int fd = make_layout(&size);

	assert_int_equal(disk_discard(fd, false, 0, 65536), 0);
	check_extent(fd, 0, size, DISK_HOLE, 65536 + HOLE_BYTES);
	assert_int_equal(pread(fd, &byte, 1, 100), 1);
	assert_int_equal(byte, 0);
	disk_close(fd);
}

static void check_zero(int fd, bool is_block, bool may_unmap)
{
	uint8_t *data = aligned_bytes(65536);

	memset(data, 1, 65536);
	assert_int_equal(pwrite(fd, data, 65536, 0), 65536);
	assert_int_equal(disk_zero(fd, is_block, 4096, 8192, may_unmap, false), 0);
	assert_int_equal(pread(fd, data, 65536, 0), 65536);
	for (int i = 0; i < 65536; i++) {
		assert_int_equal(data[i], i < 4096 || i >= 4096 + 8192);
	}
	free(data);
}

TEST(test_zero_on_a_device)
{
	char device[64];
	int loop_fd = loop_open(scratch_file("image", 1 << 20), 512, device, sizeof(device));
	int fd;

	if (loop_fd < 0) {
		skip();
	}
	fd = open_disk(device, false);
	check_zero(fd, true, true);
	check_zero(fd, true, false);
	/* A device is one extent, however empty. */
	check_extent(fd, 0, 1 << 20, DISK_DATA, 1 << 20);
	disk_close(fd);
	loop_close(loop_fd);
}

static uint64_t read_queue_number(const char *device, const char *name)
{
	char path[512];
	unsigned long long number = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/block/%s/queue/%s", strrchr(device, '/') + 1, name);
	file = fopen(path, "re");
	assert_non_null(file);
	assert_int_equal(fscanf(file, "%llu", &number), 1);
	fclose(file);
	return number;
}

TEST(test_queue_limits_come_from_the_right_device)
{
	struct disk_sysfs facts;
	struct stat status;
	char device[64];
	int fd = loop_open(scratch_file("image", 1 << 20), 512, device, sizeof(device));

	if (fd < 0) {
		skip();
	}
	assert_int_equal(fstat(fd, &status), 0);
	disk_sysfs_read(status.st_rdev, &facts);
	assert_int_equal(facts.io_max, read_queue_number(device, "max_sectors_kb") * 1024);
	assert_int_equal(facts.rotational, read_queue_number(device, "rotational"));
	assert_int_equal(
		facts.discard_granularity, read_queue_number(device, "discard_granularity"));
	assert_int_equal(facts.stripe_chunk, 0);
	assert_int_equal(disk_sysfs_write_zeroes(status.st_rdev),
		read_queue_number(device, "write_zeroes_max_bytes") != 0);
	loop_close(fd);
	/* A device that is not there has no facts. */
	disk_sysfs_read(makedev(4094, 77), &facts);
	assert_int_equal(facts.io_max, 0);
	assert_false(facts.discards);
}

TEST(test_partition_is_answered_for_by_its_disk)
{
	struct blkpg_partition partition = { .start = 65536, .length = 65536, .pno = 1 };
	struct blkpg_ioctl_arg argument = {
		.op = BLKPG_ADD_PARTITION, .datalen = sizeof(partition), .data = &partition
	};
	struct disk_sysfs whole;
	struct disk_sysfs part;
	struct stat status;
	unsigned int major_number = 0;
	unsigned int minor_number = 0;
	char path[256];
	char device[64];
	FILE *file;
	int fd = loop_open(scratch_file("image", 1 << 20), 512, device, sizeof(device));

	if (fd < 0) {
		skip();
	}
	if (ioctl(fd, BLKPG, &argument) != 0) {
		loop_close(fd);
		skip(); /* this kernel's loop devices take no partitions */
	}
	assert_int_equal(fstat(fd, &status), 0);
	disk_sysfs_read(status.st_rdev, &whole);
	snprintf(path, sizeof(path), "/sys/block/%s/%sp1/dev", device + 5, device + 5);
	file = fopen(path, "re");
	assert_non_null(file);
	assert_int_equal(fscanf(file, "%u:%u", &major_number, &minor_number), 2);
	fclose(file);
	assert_true(makedev(major_number, minor_number) != status.st_rdev);
	disk_sysfs_read(makedev(major_number, minor_number), &part);
	assert_true(whole.io_max > 0);
	assert_int_equal(part.io_max, whole.io_max);
	assert_int_equal(part.discard_granularity, whole.discard_granularity);
	assert_int_equal(part.discards, whole.discards);
	argument.op = BLKPG_DEL_PARTITION;
	assert_int_equal(ioctl(fd, BLKPG, &argument), 0);
	loop_close(fd);
}

int main(void)
{
	int failed;

	scratch_create();
	failed = unit_run(NULL, NULL);
	scratch_remove();
	return failed;
}
