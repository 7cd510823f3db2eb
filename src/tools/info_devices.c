// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "disk/disk.h"
#include "memory/p2pmem.h"
#include "tools/show.h"

enum { DEVICE_PATH_BYTES = 512, READ_BYTES_MIN = 4096 };

/* Finds the last PCI device in the first bytes of a sysfs path,
 * "/sys/devices/pci0000:00/0000:00:04.0/...". Returns false if there is none. */
static bool last_device(const char *path, size_t bytes, char bdf[P2PMEM_BDF_BYTES])
{
	bool found = false;

	for (const char *at = path; at < path + bytes; at += strcspn(at, "/") + 1) {
		size_t length = strcspn(at, "/");
		char name[P2PMEM_BDF_BYTES];

		if (length < sizeof(name) && at + length <= path + bytes) {
			memcpy(name, at, length);
			name[length] = '\0';
			/* Accepts only the long form of an address, which sysfs paths use. */
			if (length == strlen("0000:00:00.0") &&
				p2pmem_parse_bdf(name, bdf, &(struct error){ 0 }) == 0) {
				found = true;
			}
		}
		if (at[length] == '\0') {
			break;
		}
	}
	return found;
}

/* Finds the lowest bridge above both devices. Returns false if they share only the host bridge. */
static bool find_bridge(const char *a, const char *b, char bdf[P2PMEM_BDF_BYTES])
{
	size_t same = 0;
	size_t whole = 0;

	for (; a[same] != '\0' && a[same] == b[same]; same++) {
		if (a[same] == '/') {
			whole = same;
		}
	}
	return last_device(a, whole, bdf);
}

/* Tests the disk by reading its first block into the memory. */
static int info_devices_reach(struct p2pmem *memory, const char *disk)
{
	char path[DEVICE_PATH_BYTES];
	struct disk_info info;
	struct error error;
	int fd;
	int result;

	snprintf(path, sizeof(path), "/dev/%s", disk);
	result = disk_open(path, true, true, &fd, &error);
	if (result < 0) {
		return result;
	}
	result = disk_info(fd, &info);
	if (result == 0) {
		result = p2pmem_reach(
			memory, fd, MAX(info.direct_offset_align, (uint32_t)READ_BYTES_MIN));
	}
	disk_close(fd);
	return result;
}

static json_t *info_devices_disk_of(
	struct p2pmem *memory, const char *memory_path, const char *disk)
{
	char name[DEVICE_PATH_BYTES];
	char path[PATH_MAX];
	char bdf[P2PMEM_BDF_BYTES];
	char bridge[P2PMEM_BDF_BYTES];
	json_t *object;
	int result;

	snprintf(name, sizeof(name), "/sys/block/%s", disk);
	if (realpath(name, path) == NULL || !last_device(path, strlen(path), bdf)) {
		return NULL; /* the disk does not belong to a PCI device */
	}
	result = info_devices_reach(memory, disk);
	object = json_object();
	json_object_set_new(object, "disk", json_string(disk));
	json_object_set_new(object, "device", json_string(bdf));
	json_object_set_new(object, "bridge",
		find_bridge(memory_path, path, bridge) ? json_string(bridge) : json_null());
	json_object_set_new(object, "works", json_boolean(result == 0));
	json_object_set_new(object, "verdict", json_string(p2pmem_reach_text(result)));
	return object;
}

static json_t *disks_of(struct p2pmem *memory, const char *memory_path)
{
	json_t *array = json_array();
	DIR *folder = opendir("/sys/block");
	const struct dirent *entry;

	while (folder != NULL && (entry = readdir(folder)) != NULL) {
		json_t *disk = info_devices_disk_of(memory, memory_path, entry->d_name);

		if (disk != NULL) {
			json_array_append_new(array, disk);
		}
	}
	if (folder != NULL) {
		closedir(folder);
	}
	return array;
}

/* Describes the memory that a device offers to others; NULL if it offers none. */
static json_t *device_of(const char *bdf)
{
	char name[DEVICE_PATH_BYTES];
	char path[PATH_MAX];
	char answer[P2PMEM_ANSWER_BYTES];
	struct p2pmem memory;
	struct error error;
	json_t *object;
	DIR *folder;
	int result;

	snprintf(name, sizeof(name), "/sys/bus/pci/devices/%s/p2pmem", bdf);
	folder = opendir(name);
	if (folder == NULL) {
		return NULL;
	}
	closedir(folder);
	*strrchr(name, '/') = '\0';
	object = json_object();
	json_object_set_new(object, "device", json_string(bdf));
	result = realpath(name, path) != NULL
			 ? p2pmem_open(bdf, &memory, &error)
			 : error_set(&error, -ENODEV, "the device has just been removed");
	if (result < 0) {
		json_object_set_new(object, "bytes", json_null());
		json_object_set_new(object, "free_bytes", json_null());
		json_object_set_new(object, "works", json_false());
		json_object_set_new(object, "verdict", json_string(error.text));
		json_object_set_new(object, "disks", json_array());
		return object;
	}
	result = p2pmem_examine(&memory, answer);
	json_object_set_new(object, "bytes", json_integer((json_int_t)memory.bytes));
	json_object_set_new(object, "free_bytes", json_integer((json_int_t)memory.free_bytes));
	json_object_set_new(object, "works", json_boolean(result == 0));
	json_object_set_new(object, "verdict", json_string(answer));
	json_object_set_new(object, "disks", result == 0 ? disks_of(&memory, path) : json_array());
	p2pmem_close(&memory);
	return object;
}

json_t *info_devices(void)
{
	json_t *array = json_array();
	DIR *folder = opendir("/sys/bus/pci/devices");
	const struct dirent *entry;

	while (folder != NULL && (entry = readdir(folder)) != NULL) {
		json_t *device = entry->d_name[0] != '.' ? device_of(entry->d_name) : NULL;

		if (device != NULL) {
			json_array_append_new(array, device);
		}
	}
	if (folder != NULL) {
		closedir(folder);
	}
	return array;
}

static const char *info_devices_text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

void info_devices_print(const json_t *devices)
{
	const json_t *device;
	size_t i;

	printf("\nMemory of PCI devices (mode=device)\n");
	json_array_foreach(devices, i, device)
	{
		const json_t *disk;
		size_t k;

		printf("  %s: %s\n", info_devices_text_of(device, "device"),
			info_devices_text_of(device, "verdict"));
		json_array_foreach(json_object_get(device, "disks"), k, disk)
		{
			const char *bridge = info_devices_text_of(disk, "bridge");

			printf("    from %s (%s, %s%s): %s\n", info_devices_text_of(disk, "disk"),
				info_devices_text_of(disk, "device"),
				bridge != NULL ? "both below " : "no bridge in common",
				bridge != NULL ? bridge : "",
				info_devices_text_of(disk, "verdict"));
		}
	}
	if (json_array_size(devices) == 0) {
		printf("  none: no PCI device offers memory to other devices\n");
	}
	printf("  Memory of network cards (dma-buf) is not used: direct I/O of disks "
	       "cannot use it.\n");
}
