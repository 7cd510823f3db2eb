// SPDX-License-Identifier: Apache-2.0
/* Landlock, as described in the kernel's Documentation/userspace-api/landlock.rst. The C library
 * has no wrappers for it, and its headers can be older than the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sandbox/layers.h"

/* Rights that older headers lack. Comments name the version of Landlock's interface that introduced
 * each. */
#define FILE_RIGHTS_1 ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1)
#define RIGHT_REFER   (UINT64_C(1) << 13) /* in the interface since version 2 */
#define RIGHT_RESIZE  (UINT64_C(1) << 14) /* in the interface since version 3 */
#define RIGHT_IOCTL   (UINT64_C(1) << 15) /* in the interface since version 5 */
#define NET_BIND      (UINT64_C(1) << 0)  /* in the interface since version 4 */
#define NET_CONNECT   (UINT64_C(1) << 1)  /* in the interface since version 4 */
#define RULE_PORT     2			  /* in the interface since version 4 */
/* in the interface since version 6: connecting to abstract Unix sockets of other processes */
#define SCOPE_SOCKETS (UINT64_C(1) << 0)
/* in the interface since version 6: sending signals to other processes */
#define SCOPE_SIGNALS (UINT64_C(1) << 1)

/* Rights that a rule about a file, as opposed to a folder, can contain. */
#define RIGHTS_OF_FILE                                                                             \
	(LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | RIGHT_RESIZE | RIGHT_IOCTL)

/* struct landlock_ruleset_attr of version 6. An older kernel gets only the members that it has. */
struct ruleset_attributes {
	uint64_t files;
	uint64_t net;
	uint64_t scoped;
};

/* struct landlock_net_port_attr. */
struct port_attributes {
	uint64_t allowed;
	uint64_t port;
};

static size_t landlock_attribute_bytes(uint32_t version)
{
	return version >= 6   ? sizeof(struct ruleset_attributes)
	       : version >= 4 ? offsetof(struct ruleset_attributes, scoped)
			      : offsetof(struct ruleset_attributes, net);
}

uint32_t landlock_version(void)
{
	long version = syscall(
		SYS_landlock_create_ruleset, NULL, (size_t)0, LANDLOCK_CREATE_RULESET_VERSION);

	return version > 0 ? (uint32_t)version : 0;
}

/* Returns the rights to restrict: all that this kernel can restrict, except those that are needed
 * everywhere. */
static struct ruleset_attributes handled(const struct sandbox *sandbox, uint32_t version)
{
	struct ruleset_attributes out = { .files = FILE_RIGHTS_1 };

	out.files |= version >= 2 ? RIGHT_REFER : 0;
	out.files |= version >= 3 ? RIGHT_RESIZE : 0;
	out.files |= version >= 5 ? RIGHT_IOCTL : 0;
	if (version >= 4 && !sandbox->loads_code) {
		out.net |= sandbox->connect_ports.any ? 0 : NET_CONNECT;
		out.net |= sandbox->makes_sockets && !sandbox->bind_ports.any ? NET_BIND : 0;
	}
	out.scoped = version >= 6 ? SCOPE_SIGNALS | SCOPE_SOCKETS : 0;
	return out;
}

static uint64_t rights_of(uint32_t access)
{
	const uint64_t read = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
	const uint64_t sockets = LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_REMOVE_FILE |
				 LANDLOCK_ACCESS_FS_READ_DIR;
	const uint64_t shared = LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE |
				LANDLOCK_ACCESS_FS_WRITE_FILE | RIGHT_RESIZE | read;

	return ((access & SANDBOX_READ) != 0 ? read : 0) |
	       ((access & SANDBOX_WRITE) != 0 ? LANDLOCK_ACCESS_FS_WRITE_FILE : 0) |
	       ((access & SANDBOX_DEVICES) != 0 ? RIGHT_IOCTL : 0) |
	       ((access & SANDBOX_SOCKETS) != 0 ? sockets : 0) |
	       ((access & SANDBOX_SHARED_MEMORY) != 0 ? shared : 0);
}

/* A path that can no longer be opened needs no rule. */
static int landlock_add_rule(int ruleset, const struct sandbox_rule *rule, uint64_t files)
{
	struct landlock_path_beneath_attr attributes = { .parent_fd = -1 };
	struct stat status;
	int rc = 0;

	attributes.parent_fd = open(rule->path, O_PATH | O_CLOEXEC);
	if (attributes.parent_fd < 0) {
		return errno == EMFILE || errno == ENFILE ? -errno : 0;
	}
	if (fstat(attributes.parent_fd, &status) < 0) {
		rc = -errno;
	} else {
		attributes.allowed_access = rights_of(rule->access) & files;
		if (!S_ISDIR(status.st_mode)) {
			attributes.allowed_access &= RIGHTS_OF_FILE;
		}
	}
	if (rc == 0 && attributes.allowed_access != 0 &&
		syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &attributes,
			0) < 0) {
		rc = -errno;
	}
	close(attributes.parent_fd);
	return rc;
}

static int landlock_add_ports(int ruleset, const struct sandbox_ports *ports, uint64_t allowed)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && allowed != 0 && i < ports->count; i++) {
		const struct port_attributes port = { allowed, ports->list[i] };

		if (syscall(SYS_landlock_add_rule, ruleset, RULE_PORT, &port, 0U) < 0) {
			rc = -errno;
		}
	}
	return rc;
}

int landlock_enter(const struct sandbox *sandbox)
{
	uint32_t version = landlock_version();
	struct ruleset_attributes attributes = handled(sandbox, version);
	int ruleset;
	int rc = 0;

	if (version == 0) {
		return -EOPNOTSUPP;
	}
	ruleset = (int)syscall(
		SYS_landlock_create_ruleset, &attributes, landlock_attribute_bytes(version), 0U);
	if (ruleset < 0) {
		return -errno;
	}
	for (uint32_t i = 0; rc == 0 && i < sandbox->rule_count; i++) {
		rc = landlock_add_rule(ruleset, &sandbox->rules[i], attributes.files);
	}
	rc = rc
		     ?: landlock_add_ports(
				ruleset, &sandbox->connect_ports, attributes.net & NET_CONNECT);
	rc = rc ?: landlock_add_ports(ruleset, &sandbox->bind_ports, attributes.net & NET_BIND);
	if (rc == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0U) < 0) {
		rc = -errno;
	}
	close(ruleset);
	return rc;
}
