// SPDX-License-Identifier: Apache-2.0
#include "attach/attach.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/log.h"

enum {
	DISKS_MAX = 64, /* maximum: a disk and its partitions */
	NAMES_MAX = 16, /* maximum number of paths of a mounted file */
};

/* A disk and its partitions, as device numbers. */
struct disks {
	dev_t list[DISKS_MAX];
	uint32_t count;
};

static bool disks_have(const struct disks *disks, dev_t number)
{
	for (uint32_t i = 0; i < disks->count; i++) {
		if (disks->list[i] == number) {
			return true;
		}
	}
	return false;
}

static int usage_read_text(const char *path, char *text, size_t text_bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t count = fd >= 0 ? read(fd, text, text_bytes - 1) : -1;

	if (fd >= 0) {
		close(fd);
	}
	text[MAX(count, 0)] = '\0';
	return count >= 0 ? 0 : -1;
}

static void disks_add(struct disks *disks, const char *folder)
{
	char path[PATH_MAX];
	char text[64];
	unsigned int major_number;
	unsigned int minor_number;

	if (disks->count < DISKS_MAX &&
		snprintf(path, sizeof(path), "%s/dev", folder) < (int)sizeof(path) &&
		usage_read_text(path, text, sizeof(text)) == 0 &&
		sscanf(text, "%u:%u", &major_number, &minor_number) == 2) {
		disks->list[disks->count++] = makedev(major_number, minor_number);
	}
}

/* Returns -EBUSY with the first block device that is built on this one, from the kernel's list of
 * holders. */
static int check_holders(const char *name, const char *folder, struct error *error)
{
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *holders;
	int rc = 0;

	if (snprintf(path, sizeof(path), "%s/holders", folder) >= (int)sizeof(path)) {
		return 0;
	}
	holders = opendir(path);
	while (rc == 0 && holders != NULL && (entry = readdir(holders)) != NULL) {
		if (entry->d_name[0] != '.') {
			rc = error_set(
				error, -EBUSY, "/dev/%s is part of /dev/%s", name, entry->d_name);
		}
	}
	if (holders != NULL) {
		closedir(holders);
	}
	return rc;
}

/* Fills disks with the disk and its partitions. Fails with -EBUSY if another block device is built
 * on one of them. */
static int check_tree(const char *name, struct disks *disks, struct error *error)
{
	char folder[PATH_MAX];
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *parts;
	int rc;

	snprintf(folder, sizeof(folder), "/sys/block/%s", name);
	disks_add(disks, folder);
	rc = check_holders(name, folder, error);
	parts = opendir(folder);
	while (rc == 0 && parts != NULL && (entry = readdir(parts)) != NULL) {
		if (strncmp(entry->d_name, name, strlen(name)) == 0 &&
			snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name) <
				(int)sizeof(path)) {
			disks_add(disks, path);
			rc = check_holders(entry->d_name, path, error);
		}
	}
	if (parts != NULL) {
		closedir(parts);
	}
	return rc;
}

/* Compares the device numbers in mountinfo, because the names of devices in it can be arbitrary. */
static int check_mounts(const char *name, const struct disks *disks, struct error *error)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t line_bytes = 0;
	int rc = 0;

	while (rc == 0 && file != NULL && getline(&line, &line_bytes, file) > 0) {
		unsigned int major_number;
		unsigned int minor_number;
		char where[1024];

		if (sscanf(line, "%*d %*d %u:%u %*s %1023s", &major_number, &minor_number, where) ==
				3 &&
			disks_have(disks, makedev(major_number, minor_number))) {
			rc = error_set(error, -EBUSY,
				"/dev/%s is mounted on %s; unmount it with: umount %s", name, where,
				where);
		}
	}
	free(line);
	if (file != NULL) {
		fclose(file);
	}
	return rc;
}

static int check_swaps(const char *name, const struct disks *disks, struct error *error)
{
	FILE *file = fopen("/proc/swaps", "re");
	char line[1024];
	int rc = 0;

	while (rc == 0 && file != NULL && fgets(line, sizeof(line), file) != NULL) {
		struct stat status;

		line[strcspn(line, " \t")] = '\0';
		if (line[0] == '/' && stat(line, &status) == 0 &&
			disks_have(disks, status.st_rdev)) {
			rc = error_set(error, -EBUSY,
				"/dev/%s is used as swap space; disable it with: swapoff %s", name,
				line);
		}
	}
	if (file != NULL) {
		fclose(file);
	}
	return rc;
}

/* --- processes ----------------------------------------------------------------------------- */

/* Paths with which a mounted file can be opened. */
struct names {
	char *list[NAMES_MAX];
	uint32_t count;
};

static bool names_have(const struct names *names, const char *path)
{
	for (uint32_t i = 0; i < names->count; i++) {
		if (strcmp(names->list[i], path) == 0) {
			return true;
		}
	}
	return false;
}

/* The block device or file whose users are searched for. A process that has it open is a user. */
struct wanted {
	const struct disks *disks; /* a block device, by number; NULL: a file */
	const struct names *names; /* a file, by path */
};

static bool descriptor_matches(const char *link_path, const struct wanted *wanted)
{
	char target[PATH_MAX];
	struct stat status;
	ssize_t len;

	len = readlink(link_path, target, sizeof(target) - 1);
	if (len < 0) {
		return false;
	}
	target[len] = '\0';
	if (wanted->disks == NULL) {
		return names_have(wanted->names, target);
	}
	/* Only files in /dev are examined, because stat() of another file could block on an
	 * unreachable server. */
	return strncmp(target, "/dev/", 5) == 0 && stat(link_path, &status) == 0 &&
	       S_ISBLK(status.st_mode) && disks_have(wanted->disks, status.st_rdev);
}

static bool process_matches(const char *pid, const struct wanted *wanted)
{
	char path[PATH_MAX];
	struct dirent *entry;
	bool found = false;
	DIR *descriptors;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	descriptors = opendir(path);
	while (!found && descriptors != NULL && (entry = readdir(descriptors)) != NULL) {
		if (entry->d_name[0] != '.' && snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid,
						       entry->d_name) < (int)sizeof(path)) {
			found = descriptor_matches(path, wanted);
		}
	}
	if (descriptors != NULL) {
		closedir(descriptors);
	}
	return found;
}

static int check_processes(const char *what, const struct wanted *wanted, struct error *error)
{
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	int rc = 0;

	while (rc == 0 && processes != NULL && (entry = readdir(processes)) != NULL) {
		char path[PATH_MAX];
		char name[64];

		if (!isdigit((unsigned char)entry->d_name[0]) ||
			strtol(entry->d_name, NULL, 10) == getpid() ||
			!process_matches(entry->d_name, wanted)) {
			continue;
		}
		snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
		if (usage_read_text(path, name, sizeof(name)) != 0) {
			continue;
		}
		name[strcspn(name, "\n")] = '\0';
		rc = error_set(error, -EBUSY, "%s is open in process %s (%s)", what, entry->d_name,
			quote(name));
	}
	if (processes != NULL) {
		closedir(processes);
	}
	return rc;
}

int usage_check_disk(const char *name, struct error *error)
{
	struct disks disks = { 0 };
	struct wanted wanted = { .disks = &disks };
	char path[128];
	int rc = check_tree(name, &disks, error);

	rc = rc ?: check_mounts(name, &disks, error);
	rc = rc ?: check_swaps(name, &disks, error);
	if (rc == 0) {
		snprintf(path, sizeof(path), "/dev/%s", name);
		rc = check_processes(path, &wanted, error);
	}
	return rc;
}

int usage_check_path(const char *path, struct error *error)
{
	return usage_check_disk(strrchr(path, '/') + 1, error);
}

/* --- files --------------------------------------------------------------------------------- */

static void names_add(struct names *names, const char *path)
{
	char *copy = names->count < NAMES_MAX ? strdup(path) : NULL;

	if (copy != NULL) {
		names->list[names->count++] = copy;
	}
}

/* Decodes the octal escapes with which the kernel writes white space and backslashes. */
static void usage_unescape(char *text)
{
	char *out = text;

	for (; *text != '\0'; out++) {
		bool is_code = *text == '\\' && strspn(text + 1, "01234567") >= 3;

		*out = is_code ? (char)((text[1] - '0') * 64 + (text[2] - '0') * 8 + text[3] - '0')
			       : *text;
		text += is_code ? 4 : 1;
	}
	*out = '\0';
}

static bool next_mount(FILE *file, dev_t *number, char where[PATH_MAX])
{
	char *line = NULL;
	size_t line_bytes = 0;
	unsigned int major_number = 0;
	unsigned int minor_number = 0;
	bool any = getline(&line, &line_bytes, file) > 0;

	/* `where` has PATH_MAX (4096) bytes */
	if (!any || sscanf(line, "%*d %*d %u:%u %*s %4095s", &major_number, &minor_number, where) !=
			    3) {
		where[0] = '\0';
	}
	*number = makedev(major_number, minor_number);
	usage_unescape(where);
	free(line);
	return any;
}

/* Finds all paths of a mounted file; a bind mount gives it another path. Mounts are compared by
 * device number, because examining the open files of processes could block on unreachable
 * servers. */
static void names_find(struct names *names, const char *path)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char where[PATH_MAX];
	dev_t wanted = 0;
	dev_t number;

	names_add(names, path);
	if (file == NULL) {
		return;
	}
	while (next_mount(file, &number, where)) {
		wanted = strcmp(where, path) == 0 ? number : wanted;
	}
	rewind(file);
	while (wanted != 0 && next_mount(file, &number, where)) {
		if (number == wanted && !names_have(names, where)) {
			names_add(names, where);
		}
	}
	fclose(file);
}

static void names_free(struct names *names)
{
	for (uint32_t i = 0; i < names->count; i++) {
		free(names->list[i]);
	}
}

/* Returns -EBUSY and explains that a loop device uses the file. `losetup --detach` of a device in
 * use takes effect only after its last user has ended, so that user is named first. */
static int explain_loop(const char *path, const char *loop, struct error *error)
{
	struct error user;

	if (usage_check_disk(loop, &user) != 0) {
		return error_set(error, -EBUSY, "%s backs /dev/%s: %s", path, loop, user.text);
	}
	return error_set(error, -EBUSY,
		"%s backs /dev/%s; detach that with: losetup --detach /dev/%s", path, loop, loop);
}

static int check_loops(const char *path, const struct names *names, struct error *error)
{
	DIR *blocks = opendir("/sys/block");
	struct dirent *entry;
	int rc = 0;

	while (rc == 0 && blocks != NULL && (entry = readdir(blocks)) != NULL) {
		char attribute[PATH_MAX];
		char backing[PATH_MAX];

		if (strncmp(entry->d_name, "loop", 4) != 0) {
			continue;
		}
		snprintf(attribute, sizeof(attribute), "/sys/block/%s/loop/backing_file",
			entry->d_name);
		if (usage_read_text(attribute, backing, sizeof(backing)) != 0) {
			continue;
		}
		backing[strcspn(backing, "\n")] = '\0';
		if (names_have(names, backing)) {
			rc = explain_loop(path, entry->d_name, error);
		}
	}
	if (blocks != NULL) {
		closedir(blocks);
	}
	return rc;
}

int usage_check_file(const char *path, struct error *error)
{
	struct names names = { .count = 0 };
	struct wanted wanted = { .names = &names };
	int rc;

	names_find(&names, path);
	rc = check_loops(path, &names, error) ?: check_processes(path, &wanted, error);
	names_free(&names);
	return rc;
}

int usage_explain_file(const char *path, struct error *error)
{
	int rc = usage_check_file(path, error);

	return rc != 0 ? rc : error_set(error, -EBUSY, "%s is in use", path);
}
