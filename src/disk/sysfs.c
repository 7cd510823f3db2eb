// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "disk/disk.h"

enum { ATTRIBUTE_PATH_BYTES = 256, ATTRIBUTE_TEXT_BYTES = 64 };

/* Finds the sysfs folder of the whole device. ROOT/dev/block/M:m is a link to the folder of a
 * device or partition. A partition's folder is inside its device's folder. */
static void device_path_in(const char *root, dev_t device, char *path, size_t path_bytes)
{
	char partition[2 * ATTRIBUTE_PATH_BYTES];

	snprintf(path, path_bytes, "%s/dev/block/%u:%u", root, major(device), minor(device));
	snprintf(partition, sizeof(partition), "%s/partition", path);
	if (access(partition, F_OK) == 0) {
		snprintf(path, path_bytes, "%s/dev/block/%u:%u/..", root, major(device),
			minor(device));
	}
}

static void device_path(dev_t device, char *path, size_t path_bytes)
{
	device_path_in("/sys", device, path, path_bytes);
}

/* Reads the first line of an attribute, without its newline. Returns false if it does not exist. */
static bool sysfs_read_text(const char *device, const char *name, char *text, size_t text_bytes)
{
	char path[2 * ATTRIBUTE_PATH_BYTES];
	ssize_t count;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", device, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		return false;
	}
	do {
		count = read(fd, text, text_bytes - 1);
	} while (count < 0 && errno == EINTR);
	close(fd);
	if (count <= 0) {
		return false;
	}
	text[count] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return true;
}

static uint64_t sysfs_read_number(const char *device, const char *name)
{
	char text[ATTRIBUTE_TEXT_BYTES];

	return sysfs_read_text(device, name, text, sizeof(text)) ? strtoull(text, NULL, 10) : 0;
}

static uint32_t count_members(const char *device)
{
	char path[2 * ATTRIBUTE_PATH_BYTES];
	struct dirent *entry;
	uint32_t count = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/slaves", device);
	dir = opendir(path);
	if (dir == NULL) {
		return 0;
	}
	while ((entry = readdir(dir)) != NULL) {
		count += entry->d_name[0] != '.';
	}
	closedir(dir);
	return count;
}

/* Returns the number of members of an md array that hold different data. */
static uint32_t md_data_members(const char *device, const char *level)
{
	uint32_t disks = (uint32_t)sysfs_read_number(device, "md/raid_disks");

	if (strcmp(level, "raid0") == 0) {
		return disks;
	}
	if (strcmp(level, "raid4") == 0 || strcmp(level, "raid5") == 0) {
		return disks > 1 ? disks - 1 : 0;
	}
	if (strcmp(level, "raid6") == 0) {
		return disks > 2 ? disks - 2 : 0;
	}
	if (strcmp(level, "raid10") == 0) {
		/* The lowest byte of the layout is the number of near copies, the next byte the
		 * number of far copies. */
		uint64_t layout = sysfs_read_number(device, "md/layout");
		uint64_t copies = (layout & 0xff) * ((layout >> 8) & 0xff);

		return copies > 0 ? (uint32_t)(disks / copies) : 0;
	}
	return 0;
}

/*
 * md reports the layout of its stripes. dm only reports the I/O hints minimum_io_size and
 * optimal_io_size, which a linear mapping inherits from its device. So the hints are used only if
 * their quotient is the number of devices below.
 */
static void read_stripes(const char *device, struct disk_sysfs *facts)
{
	char text[ATTRIBUTE_TEXT_BYTES];
	uint64_t chunk;
	uint32_t members;

	if (sysfs_read_text(device, "md/level", text, sizeof(text))) {
		members = md_data_members(device, text);
		chunk = sysfs_read_number(device, "md/chunk_size");
	} else if (sysfs_read_text(device, "dm/name", text, sizeof(text))) {
		uint64_t whole = sysfs_read_number(device, "queue/optimal_io_size");

		chunk = sysfs_read_number(device, "queue/minimum_io_size");
		members = count_members(device);
		if (chunk == 0 || whole != chunk * members) {
			return;
		}
	} else {
		return;
	}
	if (members > 1 && chunk > 0 && chunk <= UINT32_MAX) {
		facts->stripe_chunk = (uint32_t)chunk;
		facts->stripe_members = members;
	}
}

void disk_sysfs_read(dev_t device, struct disk_sysfs *facts)
{
	char path[ATTRIBUTE_PATH_BYTES];
	char text[ATTRIBUTE_TEXT_BYTES];

	memset(facts, 0, sizeof(*facts));
	/* the file is on a filesystem without a device: tmpfs, btrfs, network */
	if (major(device) == 0) {
		return;
	}
	device_path(device, path, sizeof(path));
	facts->rotational = sysfs_read_number(path, "queue/rotational") != 0;
	facts->zoned = sysfs_read_text(path, "queue/zoned", text, sizeof(text)) &&
		       strcmp(text, "host-managed") == 0;
	if (facts->zoned) {
		facts->zone_bytes = sysfs_read_number(path, "queue/chunk_sectors") * 512;
		facts->active_zones_max =
			(uint32_t)sysfs_read_number(path, "queue/max_active_zones");
	}
	facts->discards = sysfs_read_number(path, "queue/discard_max_bytes") != 0;
	facts->io_max = sysfs_read_number(path, "queue/max_sectors_kb") * 1024;
	facts->discard_granularity = sysfs_read_number(path, "queue/discard_granularity");
	read_stripes(path, facts);
}

bool disk_sysfs_write_zeroes(dev_t device)
{
	char path[ATTRIBUTE_PATH_BYTES];

	device_path(device, path, sizeof(path));
	return sysfs_read_number(path, "queue/write_zeroes_max_bytes") != 0;
}

bool disk_is_remote(int fd)
{
	static const uint32_t types[] = {
		AFS_FS_MAGIC,
		AFS_SUPER_MAGIC,
		CEPH_SUPER_MAGIC,
		CIFS_SUPER_MAGIC,
		CODA_SUPER_MAGIC,
		FUSE_SUPER_MAGIC,
		NFS_SUPER_MAGIC,
		OCFS2_SUPER_MAGIC,
		SMB_SUPER_MAGIC,
		SMB2_SUPER_MAGIC,
		V9FS_MAGIC,
		0x01161970 /* GFS2 */,
		0x0bd00bd0 /* Lustre */,
	};
	struct statfs status;

	if (fstatfs(fd, &status) < 0) {
		return true;
	}
	for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
		if ((uint32_t)status.f_type == types[i]) {
			return true;
		}
	}
	return false;
}

/* --- the identity of a device ---------------------------------------------------------------- */

static bool begins(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* multipath-tools names a disk as scsi_id does: the type of the identifier as one digit, then its
 * hexadecimal digits. Other kinds of names, such as those of NVMe disks, are the kernel's. */
static bool multipath_wwid(const char *name, char text[DISK_WWID_BYTES])
{
	const char *kind = name[0] == '3' ? "naa." : name[0] == '2' ? "eui." : NULL;

	if (kind != NULL) {
		snprintf(text, DISK_WWID_BYTES, "%s%s", kind, name + 1);
	} else {
		snprintf(text, DISK_WWID_BYTES, "%s", name);
	}
	return kind != NULL || begins(name, "uuid.") || begins(name, "eui.");
}

int disk_sysfs_wwid(const char *root, dev_t device, char text[DISK_WWID_BYTES])
{
	char path[ATTRIBUTE_PATH_BYTES];
	char name[DISK_WWID_BYTES - 8];

	snprintf(path, sizeof(path), "%s/dev/block/%u:%u", root, major(device), minor(device));
	if (sysfs_read_text(path, "dm/uuid", name, sizeof(name)) && name[0] != '\0') {
		if (begins(name, "mpath-")) {
			return multipath_wwid(name + strlen("mpath-"), text) ? 0 : -ENODATA;
		}
		snprintf(text, DISK_WWID_BYTES, "dm.%s", name);
		return 0;
	}
	if (sysfs_read_text(path, "md/uuid", name, sizeof(name)) && name[0] != '\0') {
		snprintf(text, DISK_WWID_BYTES, "md.%s", name);
		return 0;
	}
	/* The name of a SCSI disk, or of an NVMe namespace. Other kinds contain a serial number,
	 * which virtual machines of different hosts often have in common. */
	if ((sysfs_read_text(path, "device/wwid", name, sizeof(name)) ||
		    sysfs_read_text(path, "wwid", name, sizeof(name))) &&
		(begins(name, "naa.") || begins(name, "eui.") || begins(name, "uuid."))) {
		snprintf(text, DISK_WWID_BYTES, "%s", name);
		return 0;
	}
	return -ENODATA;
}

/* --- the disks below a device, and the devices that share a disk ------------------------------ */

enum { LAYERS_MAX = 16 };

static int members_add(struct disk_members *out, dev_t disk)
{
	for (uint32_t i = 0; i < out->count; i++) {
		if (out->disks[i] == disk) {
			return 0;
		}
	}
	if (out->count == DISK_MEMBERS_MAX) {
		return -E2BIG;
	}
	out->disks[out->count++] = disk;
	return 0;
}

/* Reads the number of the device whose folder is path/name. */
static int read_device(const char *path, const char *name, dev_t *device_out)
{
	char text[ATTRIBUTE_TEXT_BYTES];
	char folder[2 * ATTRIBUTE_PATH_BYTES];
	unsigned int numbers[2];

	snprintf(folder, sizeof(folder), "%s/%s", path, name);
	if (!sysfs_read_text(folder, "dev", text, sizeof(text)) ||
		sscanf(text, "%u:%u", &numbers[0], &numbers[1]) != 2) {
		return -EIO;
	}
	*device_out = makedev(numbers[0], numbers[1]);
	return 0;
}

typedef int device_fn(const char *root, dev_t device, uint32_t layer, struct disk_members *out);

static bool exists(const char *device, const char *name)
{
	char path[2 * ATTRIBUTE_PATH_BYTES];

	snprintf(path, sizeof(path), "%s/%s", device, name);
	return access(path, F_OK) == 0;
}

/* Calls call() with the next layer for each device in a folder, or only for those that have the
 * attribute `only`. */
static int each_device(const char *root, const char *folder, const char *only, uint32_t layer,
	device_fn *call, struct disk_members *out)
{
	char attribute[NAME_MAX + 32];
	DIR *dir = opendir(folder);
	struct dirent *entry;
	int result = 0;
	dev_t device;

	if (dir == NULL) {
		return -EIO;
	}
	while (result == 0 && (entry = readdir(dir)) != NULL) {
		snprintf(attribute, sizeof(attribute), "%s/%s", entry->d_name,
			only != NULL ? only : "dev");
		if (entry->d_name[0] != '.' && (only == NULL || exists(folder, attribute))) {
			result = read_device(folder, entry->d_name, &device)
					 ?: call(root, device, layer + 1, out);
		}
	}
	closedir(dir);
	return result;
}

static int members_find(const char *root, dev_t device, uint32_t layer, struct disk_members *out)
{
	char path[ATTRIBUTE_PATH_BYTES];
	char slaves[2 * ATTRIBUTE_PATH_BYTES];
	char uuid[ATTRIBUTE_TEXT_BYTES];
	int result = 0;

	if (layer == LAYERS_MAX) {
		return -E2BIG;
	}
	snprintf(path, sizeof(path), "%s/dev/block/%u:%u", root, major(device), minor(device));
	if (exists(path, "partition")) {
		result = read_device(path, "..", &device);
	} else if (exists(path, "dm")) {
		if (!sysfs_read_text(path, "dm/uuid", uuid, sizeof(uuid)) ||
			!begins(uuid, "mpath-")) {
			snprintf(slaves, sizeof(slaves), "%s/slaves", path);
			return each_device(root, slaves, NULL, layer, members_find, out);
		}
		out->is_multipath = true;
	}
	return result ?: members_add(out, device);
}

int disk_sysfs_members(const char *root, dev_t device, struct disk_members *out)
{
	*out = (struct disk_members){ 0 };
	return members_find(root, device, 0, out);
}

static int sharers_find(const char *root, dev_t device, uint32_t layer, struct disk_members *out)
{
	char path[ATTRIBUTE_PATH_BYTES];
	char holders[2 * ATTRIBUTE_PATH_BYTES];

	if (layer == LAYERS_MAX) {
		return -E2BIG;
	}
	snprintf(path, sizeof(path), "%s/dev/block/%u:%u", root, major(device), minor(device));
	snprintf(holders, sizeof(holders), "%s/holders", path);
	return members_add(out, device)
		       ?: each_device(root, path, "partition", layer, sharers_find, out)
		       ?: each_device(root, holders, NULL, layer, sharers_find, out);
}

int disk_sysfs_sharers(const char *root, dev_t disk, struct disk_members *out)
{
	*out = (struct disk_members){ 0 };
	return sharers_find(root, disk, 0, out);
}

/* Opens the node of a block device, of which the kernel has a name. */
static int open_node(dev_t device)
{
	char path[ATTRIBUTE_PATH_BYTES];
	char folder[PATH_MAX];
	char node[NAME_MAX + sizeof("/dev/")];
	ssize_t count;
	int fd;

	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u", major(device), minor(device));
	count = readlink(path, folder, sizeof(folder) - 1);
	if (count < 0) {
		return -errno;
	}
	folder[count] = '\0';
	snprintf(node, sizeof(node), "/dev/%s", basename(folder));
	for (char *at = node; *at != '\0'; at++) {
		*at = *at == '!' ? '/' : *at; /* a name in sysfs cannot contain '/' */
	}
	fd = open(node, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	return fd < 0 ? -errno : fd;
}

int disk_check_writers_of(dev_t device)
{
	int fd = open_node(device);
	int result = fd < 0 ? fd : disk_check_writers(fd);

	if (fd >= 0) {
		close(fd);
	}
	return result;
}

bool disk_sysfs_is_partition(const char *root, dev_t device)
{
	char path[ATTRIBUTE_PATH_BYTES];
	char text[ATTRIBUTE_TEXT_BYTES];

	snprintf(path, sizeof(path), "%s/dev/block/%u:%u", root, major(device), minor(device));
	return sysfs_read_text(path, "partition", text, sizeof(text)) ||
	       (sysfs_read_text(path, "dm/uuid", text, sizeof(text)) && begins(text, "part"));
}

bool disk_sysfs_has_volatile_cache(const char *root, dev_t device)
{
	char path[ATTRIBUTE_PATH_BYTES];
	char text[ATTRIBUTE_TEXT_BYTES];

	device_path_in(root, device, path, sizeof(path));
	return !sysfs_read_text(path, "queue/write_cache", text, sizeof(text)) ||
	       strcmp(text, "write through") != 0;
}
