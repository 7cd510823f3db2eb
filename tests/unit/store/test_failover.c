// SPDX-License-Identifier: Apache-2.0
/*
 * The parts of failover that need no disk with reservations: by which names a device is known on
 * every machine, from a sysfs made for the test, and how watches learn that a store is lost. Guests
 * test the rest (tests/vm/failover.py).
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

static void check_wwid(dev_t device, const char *wanted)
{
	char wwid[DISK_WWID_BYTES];
	int result = disk_sysfs_wwid(root, device, wwid);

	assert_int_equal(result, wanted != NULL ? 0 : -ENODATA);
	if (wanted != NULL) {
		assert_string_equal(wwid, wanted);
	}
}

static void test_worldwide_names(void **state)
{
	GMB_UNUSED(state);
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

static void test_whole_devices(void **state)
{
	GMB_UNUSED(state);
	assert_true(disk_sysfs_is_partition(root, add("", "partition", "1")));
	assert_true(disk_sysfs_is_partition(root, add("dm", "uuid", "part1-mpath-36001405123")));
	assert_false(disk_sysfs_is_partition(root, add("dm", "uuid", "LVM-AbCd")));
	assert_false(disk_sysfs_is_partition(root, add("device", "wwid", "naa.1")));
}

static void test_volatile_caches(void **state)
{
	GMB_UNUSED(state);
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

static void test_each_watch_learns_of_the_loss_once(void **state)
{
	const struct store_options options = { .path = "memory:1M" };
	struct watcher watchers[2] = { 0 };
	struct bench bench;

	GMB_UNUSED(state);
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
	GMB_UNUSED(state);
	stores_register();
	return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
	char command[64];

	GMB_UNUSED(state);
	snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_worldwide_names),
		cmocka_unit_test(test_whole_devices),
		cmocka_unit_test(test_volatile_caches),
		cmocka_unit_test(test_each_watch_learns_of_the_loss_once),
	};

	return cmocka_run_group_tests(tests, make_root, remove_root);
}
