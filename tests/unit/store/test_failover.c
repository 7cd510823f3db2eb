// SPDX-License-Identifier: Apache-2.0
/*
 * The parts of failover that need no disk with reservations: by which names a device is known on
 * every machine, from a sysfs made for the test, and how watches learn that a store is lost. Guests
 * test the rest (tests/vm/failover.py).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "../stores.h"
#include "disk/disk.h"
#include "harness.h"
#include "unit.h"

static char root[] = "/tmp/failover-sysfs-XXXXXX";
static uint32_t devices;

static void make_folder(const char *path)
{
	assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
}

/* Adds a device with one attribute in a folder, and returns its number. */
static dev_t add(const char *folder, const char *name, const char *text)
{
	dev_t device = makedev(200, ++devices);
	char path[512];
	size_t bytes;
	FILE *file;

	bytes = (size_t)snprintf(path, sizeof(path), "%s/dev", root);
	make_folder(path);
	bytes += (size_t)snprintf(path + bytes, sizeof(path) - bytes, "/block");
	make_folder(path);
	bytes += (size_t)snprintf(path + bytes, sizeof(path) - bytes, "/200:%u", devices);
	make_folder(path);
	if (folder[0] != '\0') {
		bytes += (size_t)snprintf(path + bytes, sizeof(path) - bytes, "/%s", folder);
		make_folder(path);
	}
	snprintf(path + bytes, sizeof(path) - bytes, "/%s", name);
	file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fprintf(file, "%s\n", text) > 0);
	assert_int_equal(fclose(file), 0);
	return device;
}

/* Adds an attribute to a device. */
static void add_to(dev_t device, const char *folder, const char *name, const char *text)
{
	uint32_t count = devices;

	devices = minor(device) - 1;
	assert_int_equal(add(folder, name, text), device);
	devices = count;
}

/* Adds a device to a folder of another one. */
static void link_to(dev_t device, const char *folder, dev_t other)
{
	char number[32];
	char link[64];

	snprintf(number, sizeof(number), "200:%u", minor(other));
	add_to(device, folder, ".hidden", "");
	snprintf(link, sizeof(link), "%s/%u", folder, minor(other));
	add_to(device, link, "dev", number);
}

/* Puts `below` among the devices on which `device` is stored. */
static void put_below(dev_t device, dev_t below)
{
	link_to(device, "slaves", below);
	link_to(below, "holders", device);
}

static dev_t add_dm(const char *uuid, dev_t below)
{
	dev_t device = add("dm", "uuid", uuid);

	put_below(device, below);
	return device;
}

static void check_wwid(dev_t device, const char *wanted)
{
	char wwid[DISK_WWID_BYTES];
	int result = disk_sysfs_wwid(root, device, wwid);

	assert_int_equal(result, wanted != NULL ? 0 : -ENODATA);
	if (wanted != NULL) {
		assert_string_equal(wwid, wanted);
	}
}

TEST(test_worldwide_names)
{
	check_wwid(add("device", "wwid", "naa.6001405123"), "naa.6001405123");
	check_wwid(add("", "wwid", "uuid.12-34"), "uuid.12-34");
	check_wwid(add("", "wwid", "eui.0025385b"), "eui.0025385b");
	/* the same disk with dm-multipath and without */
	check_wwid(add("dm", "uuid", "mpath-36001405123"), "naa.6001405123");
	check_wwid(add("dm", "uuid", "mpath-uuid.12-34"), "uuid.12-34");
	check_wwid(add("dm", "uuid", "LVM-AbCd"), "dm.LVM-AbCd");
	check_wwid(add("md", "uuid", "a:b:c"), "md.a:b:c");
	/* names that disks of different machines can have in common */
	check_wwid(add("device", "wwid", "t10.ATA     QEMU HARDDISK   QM00001"), NULL);
	check_wwid(add("", "wwid", "nvme.1b36-deadbeef-51454d55"), NULL);
	check_wwid(add("dm", "uuid", "mpath-1QEMU_QM00001"), NULL);
	check_wwid(add("", "serial", "disk1"), NULL);
}

TEST(test_whole_devices)
{
	assert_true(disk_sysfs_is_partition(root, add("", "partition", "1")));
	assert_true(disk_sysfs_is_partition(root, add("dm", "uuid", "part1-mpath-36001405123")));
	assert_false(disk_sysfs_is_partition(root, add("dm", "uuid", "LVM-AbCd")));
	assert_false(disk_sysfs_is_partition(root, add("device", "wwid", "naa.1")));
}

static struct disk_members members_of(dev_t device)
{
	struct disk_members members;

	assert_int_equal(disk_sysfs_members(root, device, &members), 0);
	return members;
}

TEST(test_disks_below_a_device)
{
	dev_t disk = add("device", "wwid", "naa.1");
	dev_t other = add("device", "wwid", "naa.2");
	dev_t paths = add_dm("mpath-31", disk);
	dev_t volume = add_dm("CRYPT-AbCd", add_dm("LVM-AbCd", disk));
	struct disk_members members = members_of(volume);

	assert_int_equal(members.count, 1);
	assert_int_equal(members.disks[0], disk);
	assert_false(members.is_multipath);
	put_below(volume, disk); /* two parts of one disk */
	assert_int_equal(members_of(volume).count, 1);
	put_below(volume, other);
	assert_int_equal(members_of(volume).count, 2);
	members = members_of(add_dm("LVM-AbCd", paths));
	assert_int_equal(members.count, 1);
	assert_int_equal(members.disks[0], paths);
	assert_true(members.is_multipath);
	members = members_of(disk);
	assert_int_equal(members.count, 1);
	assert_int_equal(members.disks[0], disk);
}

TEST(test_devices_that_share_a_disk)
{
	dev_t disk = add("device", "wwid", "naa.3");
	dev_t partition = add("", "partition", "1");
	dev_t volumes[2];
	char folder[32];
	char number[32];
	struct disk_members sharers;

	snprintf(folder, sizeof(folder), "disk%u", minor(partition));
	snprintf(number, sizeof(number), "200:%u", minor(partition));
	add_to(disk, folder, "partition", "1");
	add_to(disk, folder, "dev", number);
	volumes[0] = add_dm("LVM-1", disk);
	volumes[1] = add_dm("CRYPT-1", add_dm("LVM-2", partition));
	add_to(volumes[0], "holders", ".hidden", "");
	add_to(volumes[1], "holders", ".hidden", "");
	assert_int_equal(disk_sysfs_sharers(root, disk, &sharers), 0);
	assert_int_equal(sharers.count, 5);
	assert_int_equal(sharers.disks[0], disk);
	assert_int_equal(sharers.disks[1], partition);
	assert_int_equal(sharers.disks[3], volumes[1]);
	assert_int_equal(sharers.disks[4], volumes[0]);
}

TEST(test_volatile_caches)
{
	assert_false(
		disk_sysfs_has_volatile_cache(root, add("queue", "write_cache", "write through")));
	assert_true(disk_sysfs_has_volatile_cache(root, add("queue", "write_cache", "write back")));
	assert_true(disk_sysfs_has_volatile_cache(root, add("", "size", "8")));
}

/* --- watches -----------------------------------------------------------------------------------
 */

struct watcher {
	struct store_watch watch;
	uint32_t lost;
	uint32_t resized;
	bool removed;
};

static void on_lost(struct store_watch *watch)
{
	container_of(watch, struct watcher, watch)->lost++;
}

static void on_resized(struct store_watch *watch)
{
	container_of(watch, struct watcher, watch)->resized++;
}

static void on_removed(struct store_watch *watch)
{
	container_of(watch, struct watcher, watch)->removed = true;
}

static void deliver(struct bench *bench, const uint32_t *count)
{
	while (*count == 0) {
		ring_turn(bench->ring, true);
	}
}

TEST(test_each_watch_learns_of_the_loss_once)
{
	const struct store_options options = { .path = "memory:1M" };
	struct watcher watchers[2] = { 0 };
	struct bench bench;

	bench_open(&bench, &options);
	for (size_t i = 0; i < ARRAY_COUNT(watchers); i++) {
		watchers[i].watch = (struct store_watch){
			.ring = bench.ring,
			.lost = on_lost,
			.resized = on_resized,
			.removed = on_removed,
		};
		store_watch_add(bench.store, &watchers[i].watch);
	}
	assert_false(store_is_lost(bench.store));
	assert_true(store_lost(bench.store));
	assert_false(store_lost(bench.store));
	assert_true(store_is_lost(bench.store));
	for (size_t i = 0; i < ARRAY_COUNT(watchers); i++) {
		deliver(&bench, &watchers[i].lost);
	}
	store_resized(bench.store);
	for (size_t i = 0; i < ARRAY_COUNT(watchers); i++) {
		deliver(&bench, &watchers[i].resized);
	}
	for (size_t i = 0; i < ARRAY_COUNT(watchers); i++) {
		assert_int_equal(watchers[i].lost, 1);
		assert_int_equal(watchers[i].resized, 1);
		store_watch_remove(bench.store, &watchers[i].watch);
		assert_true(watchers[i].removed);
	}
	bench_close(&bench);
}

static int make_root(void **state)
{
	return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

int main(void)
{
	return unit_run(make_root, remove_root);
}
