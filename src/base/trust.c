// SPDX-License-Identifier: Apache-2.0
#include "base/trust.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum {
	LINKS_MAX = 40, /* the kernel's limit */
};

struct walk {
	/* the checked part of the path; without links and without a final slash */
	char done[PATH_MAX];
	char rest[PATH_MAX]; /* the part that is not yet checked */
	uint32_t links;
};

static int trust_refuse(const char *path, const char *reason, struct error *error)
{
	return error_set(error, -EPERM, "%s %s; it must be writable only by root and user %u",
		quote(path), reason, (unsigned int)geteuid());
}

static bool others_write(const struct stat *status)
{
	bool own_group = geteuid() != 0 && status->st_gid == getegid();

	return (status->st_mode & S_IWOTH) != 0 || ((status->st_mode & S_IWGRP) != 0 && !own_group);
}

static int trust_check(const char *path, const struct stat *status, struct error *error)
{
	bool is_sticky = S_ISDIR(status->st_mode) && (status->st_mode & S_ISVTX) != 0;
	char reason[64];

	if (status->st_uid != 0 && status->st_uid != geteuid()) {
		snprintf(
			reason, sizeof(reason), "belongs to user %u", (unsigned int)status->st_uid);
		return trust_refuse(path, reason, error);
	}
	if (!S_ISLNK(status->st_mode) && !is_sticky && others_write(status)) {
		snprintf(reason, sizeof(reason), "can be written by others (mode %04o)",
			(unsigned int)status->st_mode & 07777);
		return trust_refuse(path, reason, error);
	}
	return 0;
}

static int trust_fail(const char *path, int code, struct error *error)
{
	return error_set(error, code, "%s: %s", quote(path), strerror(-code));
}

static void leave_folder(struct walk *walk)
{
	char *slash = strrchr(walk->done, '/');

	if (slash != NULL) {
		*slash = '\0';
	}
}

/* Follows the symbolic link walk->done: puts its target in front of walk->rest. */
static int trust_follow(struct walk *walk, struct error *error)
{
	char target[PATH_MAX];
	char rest[PATH_MAX];
	ssize_t len = readlink(walk->done, target, sizeof(target) - 1);

	if (len < 0) {
		return trust_fail(walk->done, -errno, error);
	}
	target[len] = '\0';
	memcpy(rest, walk->rest, strlen(walk->rest) + 1);
	if (++walk->links > LINKS_MAX || snprintf(walk->rest, sizeof(walk->rest), "%s/%s", target,
						 rest) >= (int)sizeof(walk->rest)) {
		return trust_fail(walk->done, -ELOOP, error);
	}
	if (target[0] == '/') {
		walk->done[0] = '\0';
	} else {
		leave_folder(walk);
	}
	return 0;
}

/* Checks the entry `name` of the folder walk->done. */
static int trust_enter(struct walk *walk, const char *name, struct error *error)
{
	size_t used = strlen(walk->done);
	struct stat status;
	int rc;

	if (snprintf(walk->done + used, sizeof(walk->done) - used, "/%s", name) >=
		(int)(sizeof(walk->done) - used)) {
		return trust_fail(walk->done, -ENAMETOOLONG, error);
	}
	if (lstat(walk->done, &status) < 0) {
		return trust_fail(walk->done, -errno, error);
	}
	rc = trust_check(walk->done, &status, error);
	return rc == 0 && S_ISLNK(status.st_mode) ? trust_follow(walk, error) : rc;
}

static int trust_step(struct walk *walk, struct error *error)
{
	const char *at = walk->rest + strspn(walk->rest, "/");
	size_t len = strcspn(at, "/");
	char name[NAME_MAX + 1];

	if (len >= sizeof(name)) {
		return trust_fail(walk->rest, -ENAMETOOLONG, error);
	}
	memcpy(name, at, len);
	name[len] = '\0';
	memmove(walk->rest, at + len, strlen(at + len) + 1);
	/* ".." can be resolved in the text of the path, because walk->done contains no links. */
	if (strcmp(name, "..") == 0) {
		leave_folder(walk);
	}
	return name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0
		       ? 0
		       : trust_enter(walk, name, error);
}

int trust_path(const char *path, struct error *error)
{
	struct walk walk = { .links = 0 };
	struct stat status;
	size_t used = 0;
	int rc;

	if (path[0] != '/') {
		if (getcwd(walk.rest, sizeof(walk.rest)) == NULL) {
			return trust_fail(path, -errno, error);
		}
		used = strlen(walk.rest);
	}
	if (snprintf(walk.rest + used, sizeof(walk.rest) - used, "/%s", path) >=
		(int)(sizeof(walk.rest) - used)) {
		return trust_fail(path, -ENAMETOOLONG, error);
	}
	rc = lstat("/", &status) < 0 ? trust_fail("/", -errno, error)
				     : trust_check("/", &status, error);
	while (rc == 0 && walk.rest[0] != '\0') {
		rc = trust_step(&walk, error);
	}
	return rc;
}
