// SPDX-License-Identifier: Apache-2.0
/*
 * Which disks may be watched by markers: what sysfs says of each kind of device, in a tree made for
 * the test, and what opening a store says of everything that is no disk.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "../stores.h"
#include "disk/disk.h"
#include "harness.h"
#include "lab/lab.h"

static char root[512];

/* --- a sysfs ------------------------------------------------------------------------------- */

static void make_folders(const char *path)
{
	char part[1024];

	snprintf(part, sizeof(part), "%s", path);
	for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		assert_true(mkdir(part, 0700) == 0 || errno == EEXIST);
		*slash = '/';
	}
	assert_true(mkdir(part, 0700) == 0 || errno == EEXIST);
}

static void make_file(const char *folder, const char *name, const char *text)
{
	char path[1024];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s/%s", root, folder, name);
	*strrchr(path, '/') = '\0';
	make_folders(path);
	path[strlen(path)] = '/';
	file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static void make_link(const char *folder, const char *name, const char *target)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/%s", root, folder);
	make_folders(path);
	snprintf(path, sizeof(path), "%s/%s/%s", root, folder, name);
	assert_int_equal(symlink(target, path), 0);
}

static uint32_t devices;

/* A device below ROOT/devices, with the attributes that all have; returns its number. */
static dev_t add(const char *folder)
{
	dev_t device = makedev(200, ++devices);
	char target[1024];
	char name[32];
	char path[1024];

	snprintf(path, sizeof(path), "devices/%s", folder);
	make_file(path, "queue/logical_block_size", "512\n");
	snprintf(target, sizeof(target), "../../devices/%s", folder);
	snprintf(name, sizeof(name), "%u:%u", major(device), minor(device));
	make_link("dev/block", name, target);
	return device;
}

static const char *refusal(dev_t device)
{
	return disk_sysfs_marker_refusal(root, device);
}

static void check_refused(dev_t device, const char *fragment)
{
	const char *reason = refusal(device);

	assert_non_null(reason);
	if (strstr(reason, fragment) == NULL) {
		fail_msg("'%s' does not say '%s'", reason, fragment);
	}
}

/* --- kinds of devices ---------------------------------------------------------------------- */

static dev_t add_virtio(const char *name)
{
	char folder[128];
	char path[256];

	snprintf(folder, sizeof(folder), "pci0000:00/virtio-%s/block/%s", name, name);
	snprintf(path, sizeof(path), "devices/%s", folder);
	make_link(path, "device", "../..");
	snprintf(path, sizeof(path), "devices/pci0000:00/virtio-%s", name);
	make_link(path, "driver", "../../../bus/virtio/drivers/virtio_blk");
	return add(folder);
}

static dev_t add_nvme(const char *parent, const char *name, const char *transport)
{
	char folder[128];
	char path[256];

	snprintf(folder, sizeof(folder), "%s/%s", parent, name);
	snprintf(path, sizeof(path), "devices/%s", folder);
	make_link(path, "device", "..");
	snprintf(path, sizeof(path), "devices/%s", parent);
	make_file(path, "transport", transport);
	return add(folder);
}

static void test_raw_disks_are_allowed(void **state)
{
	dev_t disk = add_virtio("vda");
	dev_t whole = add_nvme("pci0000:00/nvme/nvme0", "nvme0n1", "pcie\n");
	char link[64];

	GMB_UNUSED(state);
	assert_null(refusal(disk));
	assert_null(refusal(whole));
	make_file("devices/pci0000:00/virtio-vda/block/vda/vda1", "partition", "1\n");
	snprintf(link, sizeof(link), "200:%u", ++devices);
	make_link("dev/block", link, "../../devices/pci0000:00/virtio-vda/block/vda/vda1");
	assert_null(refusal(makedev(200, devices)));
}

static void test_integrity_profiles_are_refused(void **state)
{
	GMB_UNUSED(state);
	make_file("devices/pci0000:00/nvme/nvme1/nvme1n1", "integrity/format", "none\n");
	make_file(
		"devices/pci0000:00/nvme/nvme2/nvme2n1", "integrity/format", "T10-DIF-TYPE1-CRC\n");
	assert_null(refusal(add_nvme("pci0000:00/nvme/nvme1", "nvme1n1", "pcie\n")));
	check_refused(add_nvme("pci0000:00/nvme/nvme2", "nvme2n1", "pcie\n"), "integrity");
}

static void test_partitions_answer_for_their_disk(void **state)
{
	char link[64];

	GMB_UNUSED(state);
	add("virtual/block/md1");
	make_file("devices/virtual/block/md1", "md/level", "raid1\n");
	make_file("devices/virtual/block/md1/md1p1", "partition", "1\n");
	snprintf(link, sizeof(link), "200:%u", ++devices);
	make_link("dev/block", link, "../../devices/virtual/block/md1/md1p1");
	check_refused(makedev(200, devices), "RAID");
}

static void test_what_is_stacked_is_refused(void **state)
{
	GMB_UNUSED(state);
	make_file("devices/virtual/block/dm-0", "dm/name", "secret\n");
	check_refused(add("virtual/block/dm-0"), "device-mapper");
	make_file("devices/virtual/block/md0", "md/level", "raid0\n");
	check_refused(add("virtual/block/md0"), "RAID");
	make_file("devices/virtual/block/loop0", "loop/backing_file", "/disk\n");
	check_refused(add("virtual/block/loop0"), "loop");
	check_refused(add("virtual/block/loop1"), "loop"); /* one that nothing is bound to */
}

static void test_nvme_that_is_not_one_local_disk_is_refused(void **state)
{
	GMB_UNUSED(state);
	check_refused(
		add_nvme("virtual/nvme-subsystem/nvme-subsys0", "nvme3n1", "pcie\n"), "multipath");
	check_refused(add_nvme("virtual/nvme-fabrics/ctl/nvme4", "nvme4n1", "tcp\n"), "PCI");
	check_refused(add_nvme("pci0000:00/nvme/nvme5", "nvme5n1", "rdma\n"), "PCI");
	check_refused(add_nvme("pci0000:00/nvme/nvme6", "nvme6c0n1", "pcie\n"), "PCI");
	check_refused(add_nvme("pci0000:00/nvme/nvme7", "nvme7n1p", "pcie\n"), "PCI");
	check_refused(
		add("pci0000:00/nvme/nvme8/nvme8n1"), "PCI"); /* its controller says nothing */
}

static void test_all_others_are_refused(void **state)
{
	static const char *const folders[] = { "virtual/block/zram0", "virtual/block/nbd0",
		"virtual/block/ublkb0", "virtual/block/ram0", "virtual/block/nullb0",
		"virtual/block/drbd0", "virtual/block/bcache0", "pci0000:00/ata1/block/sda",
		"pci0000:00/mmc0/block/mmcblk0", "virtual/block/vdz", "pci0000:00/x/block/vdy" };

	GMB_UNUSED(state);
	for (size_t i = 0; i < ARRAY_COUNT(folders); i++) {
		check_refused(add(folders[i]), "neither");
	}
	check_refused(makedev(201, 1), "sysfs"); /* not there at all */
}

static void test_large_blocks_are_refused(void **state)
{
	dev_t device = add_virtio("vdb");

	GMB_UNUSED(state);
	make_file("devices/pci0000:00/virtio-vdb/block/vdb", "queue/logical_block_size", "4096\n");
	assert_null(refusal(device));
	make_file("devices/pci0000:00/virtio-vdb/block/vdb", "queue/logical_block_size", "16384\n");
	check_refused(device, "blocks");
}

/* --- opening ------------------------------------------------------------------------------- */

static void check_open_refused(
	const char *path, enum store_mode mode, const char *first, const char *second)
{
	struct store_options options = { .path = path, .read_mode = mode, .write_mode = mode };
	struct store *store;
	struct error error;

	stores_set(&options, "marker", "yes");
	/* In the program sched is outside of marker; here marker is registered later. */
	stores_set(&options, "sched", "off");
	assert_int_equal(store_open(&options, &store, &error), -ENOTSUP);
	store_options_fini(&options);
	assert_non_null(strstr(error.text, path));
	if (strstr(error.text, first) == NULL || strstr(error.text, second) == NULL) {
		fail_msg("'%s' does not say '%s' and '%s'", error.text, first, second);
	}
}

static void test_what_is_no_disk_is_refused(void **state)
{
	bool has_direct = scratch_has_direct();
	const char *file = scratch_file("file", 1 << 20);

	GMB_UNUSED(state);
	check_open_refused("memory:1M", STORE_MODE_DIRECT, "not a disk", "omit marker");
	check_open_refused("null:1M", STORE_MODE_DIRECT, "not a disk", "omit marker");
	check_open_refused(file, STORE_MODE_CACHED, "mode=direct", "omit marker");
	if (has_direct) {
		check_open_refused(file, STORE_MODE_DIRECT, "filesystem", "omit marker");
	}
}

static void test_a_loop_device_is_refused(void **state)
{
	char device[64];
	int fd = loop_open(scratch_file("loop", 1 << 20), 512, device, sizeof(device));

	GMB_UNUSED(state);
	if (fd < 0) {
		skip();
	}
	check_open_refused(device, STORE_MODE_DIRECT, "loop device", "omit marker");
	check_open_refused(device, STORE_MODE_CACHED, "mode=direct", "omit marker");
	loop_close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_raw_disks_are_allowed),
		cmocka_unit_test(test_integrity_profiles_are_refused),
		cmocka_unit_test(test_partitions_answer_for_their_disk),
		cmocka_unit_test(test_what_is_stacked_is_refused),
		cmocka_unit_test(test_nvme_that_is_not_one_local_disk_is_refused),
		cmocka_unit_test(test_all_others_are_refused),
		cmocka_unit_test(test_large_blocks_are_refused),
		cmocka_unit_test(test_what_is_no_disk_is_refused),
		cmocka_unit_test(test_a_loop_device_is_refused),
	};
	int result;

	stores_register();
	store_register(&marker_store_kind);
	scratch_create();
	snprintf(root, sizeof(root), "%s", scratch_path("sys"));
	result = cmocka_run_group_tests(tests, NULL, NULL);
	scratch_remove();
	return result;
}
