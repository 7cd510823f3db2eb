// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "sandbox/layers.h"

static int unknown(const char *kind, const char *name, struct error *error)
{
	return error_set(error, -ENOENT, "--user: no %s '%s' on this machine", kind, quote(name));
}

static bool privileges_is_number(const char *text, uint32_t *number_out)
{
	return units_parse_count(text, 0, UINT32_MAX - 1, number_out, NULL) == 0;
}

static int find_user(const char *name, struct sandbox_user *out, struct error *error)
{
	uint32_t number;
	const struct passwd *entry = getpwnam(name);

	if (entry == NULL && privileges_is_number(name, &number)) {
		entry = getpwuid(number);
		if (entry == NULL) {
			out->uid = number;
			out->gid = (gid_t)-1;
			return 0;
		}
	}
	if (entry == NULL) {
		return unknown("user", name, error);
	}
	snprintf(out->name, sizeof(out->name), "%s", entry->pw_name);
	out->uid = entry->pw_uid;
	out->gid = entry->pw_gid;
	out->is_own_group = true;
	return 0;
}

static int privileges_find_group(const char *name, struct sandbox_user *out, struct error *error)
{
	uint32_t number;
	const struct group *entry = getgrnam(name);

	if (entry != NULL) {
		out->is_own_group = entry->gr_gid == out->gid;
		out->gid = entry->gr_gid;
		return 0;
	}
	if (!privileges_is_number(name, &number)) {
		return unknown("group", name, error);
	}
	out->is_own_group = number == out->gid;
	out->gid = number;
	return 0;
}

int sandbox_find_user(const char *text, struct sandbox_user *out, struct error *error)
{
	char name[SANDBOX_NAME_BYTES];
	const struct group *group;
	char *colon;
	int rc;

	if (strlen(text) >= sizeof(name)) {
		return error_set(error, -EINVAL, "--user: the name is too long");
	}
	snprintf(name, sizeof(name), "%s", text);
	colon = strchr(name, ':');
	if (colon != NULL) {
		*colon = '\0';
	}
	*out = (struct sandbox_user){ .name = "" };
	rc = find_user(name, out, error);
	if (rc == 0 && colon != NULL) {
		rc = privileges_find_group(colon + 1, out, error);
	}
	if (rc == 0 && out->gid == (gid_t)-1) {
		rc = error_set(error, -EINVAL,
			"--user: no user %u on this machine, so a group is required, as in %u:%u",
			out->uid, out->uid, out->uid);
	}
	if (rc == 0 && out->uid == 0) {
		rc = error_set(
			error, -EINVAL, "--user: root keeps all privileges; choose another user");
	}
	group = rc == 0 ? getgrgid(out->gid) : NULL;
	if (group != NULL) {
		snprintf(out->group, sizeof(out->group), "%s", group->gr_name);
	}
	return rc;
}

/* The user of the last sandbox_become(). */
static struct sandbox_user running = { .uid = (uid_t)-1 };

static bool is_running_as(const char *text, const char *name, uint32_t number)
{
	uint32_t found;

	return strcmp(text, name) == 0 || (privileges_is_number(text, &found) && found == number);
}

bool sandbox_is_user(const char *text)
{
	char user[SANDBOX_NAME_BYTES];
	const char *colon = strchr(text, ':');
	size_t bytes = strcspn(text, ":");

	if (strlen(text) >= sizeof(user) || running.uid == (uid_t)-1) {
		return false;
	}
	memcpy(user, text, bytes);
	user[bytes] = '\0';
	return is_running_as(user, running.name, running.uid) &&
	       (colon != NULL ? is_running_as(colon + 1, running.group, running.gid)
			      : running.is_own_group);
}

/* Raises the limit on locked memory before root is given up. Memory registered with the kernel
 * counts as locked, for which only root has no limit. */
static void keep_memory_limit(void)
{
	const struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };

	if (setrlimit(RLIMIT_MEMLOCK, &none) < 0) {
		log_warning("cannot raise the limit on locked memory: %s", strerror(errno));
	}
}

/* Changes user and groups. The kernel drops root's capabilities when no user ID is root any
 * more. */
static int privileges_become(const struct sandbox_user *who)
{
	if ((who->name[0] != '\0' ? initgroups(who->name, who->gid) : setgroups(0, NULL)) < 0 ||
		setresgid(who->gid, who->gid, who->gid) < 0 ||
		setresuid(who->uid, who->uid, who->uid) < 0) {
		return -errno;
	}
	/* Check that the process cannot become root again. If it could, no later code would detect
	 * that. */
	return setuid(0) == 0 ? -EPERM : 0;
}

int sandbox_become(const struct sandbox_user *user, struct error *error)
{
	int rc;

	if (geteuid() != 0 && geteuid() == user->uid && getegid() == user->gid) {
		running = *user;
		return 0;
	}
	if (geteuid() != 0) {
		return error_set(error, -EPERM,
			"--user: only root can become another user; start the server as root, or "
			"as that user without the option");
	}
	keep_memory_limit();
	rc = privileges_become(user);
	if (rc < 0) {
		return error_set(
			error, rc, "--user: cannot become user %u: %s", user->uid, strerror(-rc));
	}
	running = *user;
	return 0;
}

/* Capabilities that a server running as root may need: to open disks of other users, and to lock
 * memory beyond the limit. */
static const uint32_t kept_capabilities[] = { CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_IPC_LOCK };

static void privileges_keep(struct __user_cap_data_struct *kept,
	const struct __user_cap_data_struct *data, uint32_t capability)
{
	uint32_t word = CAP_TO_INDEX(capability);

	kept[word].permitted |= data[word].permitted & CAP_TO_MASK(capability);
	kept[word].effective = kept[word].permitted & data[word].effective;
}

int capabilities_drop(const struct sandbox *sandbox)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	struct __user_cap_data_struct kept[_LINUX_CAPABILITY_U32S_3] = { 0 };

	if (syscall(SYS_capget, &header, data) < 0) {
		return -errno;
	}
	for (size_t i = 0; i < ARRAY_COUNT(kept_capabilities); i++) {
		privileges_keep(kept, data, kept_capabilities[i]);
	}
	if (sandbox->binds_low_port) {
		privileges_keep(kept, data, CAP_NET_BIND_SERVICE);
	}
	if (memcmp(kept, data, sizeof(kept)) == 0) {
		return 0;
	}
	return syscall(SYS_capset, &header, kept) < 0 ? -errno : 0;
}
