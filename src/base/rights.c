// SPDX-License-Identifier: Apache-2.0
#include "base/rights.h"

#include <string.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

_Static_assert(RIGHTS_CONTROL_BYTES >= CMSG_SPACE(RIGHTS_MAX * sizeof(int)),
	"the kernel must not have to close descriptors that do not fit");

static void set_passes(int fd, int passes)
{
	(void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &passes, sizeof(passes));
}

void rights_refuse(int fd)
{
	set_passes(fd, 0);
}

void rights_permit(int fd)
{
	set_passes(fd, 1);
}

bool rights_may_come(int fd)
{
	int domain = 0;
	int passes = 1;
	socklen_t bytes = sizeof(domain);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX) {
		return false;
	}
	bytes = sizeof(passes);
	return getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &passes, &bytes) != 0 || passes != 0;
}

bool rights_guard(int fd)
{
	const int on = 1;

	if (!rights_may_come(fd)) {
		return false;
	}
	(void)setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
	return true;
}

uid_t rights_owner(int fd)
{
	struct ucred peer = { .uid = (uid_t)-1 };
	socklen_t bytes = sizeof(peer);

	(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
	return peer.uid;
}

uint32_t rights_collect(struct msghdr *message, int fds[RIGHTS_MAX])
{
	uint32_t found = 0;

	for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL;
		part = CMSG_NXTHDR(message, part)) {
		if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
			size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);

			count = MIN(count, (size_t)RIGHTS_MAX - found);
			memcpy(fds + found, CMSG_DATA(part), count * sizeof(int));
			found += (uint32_t)count;
		}
	}
	return found;
}
