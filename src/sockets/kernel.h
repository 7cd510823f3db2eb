// SPDX-License-Identifier: Apache-2.0
/*
 * What the kernel knows of a TCP connection: how many bytes were moved, its options, who owns its
 * other end, and what an epoll set keeps of a descriptor.
 *
 * Threading: any. Ownership: descriptors are borrowed. Errors: negative errno.
 */
#pragma once

#include <sys/types.h>

#include "sockets/rules.h"

/* Bytes that this end has written and read, as the kernel counts them. -ENOTCONN: it is not
 * established in both directions; -EOPNOTSUPP: the kernel does not count; -EAGAIN: the peer sends
 * too fast to say. */
struct kernel_counts {
	uint64_t out;
	uint64_t in;
};
GMB_MUST_CHECK int kernel_counts(int fd, struct kernel_counts *counts);

/* Does the option, with that value, leave the bytes to us? */
bool kernel_option_fits(int level, int option, const void *value, socklen_t length);
/* The same for all options that the socket has. */
bool kernel_options_fit(int fd);

/* The user of the socket at the other end, looked up in this network namespace by
 * NETLINK_SOCK_DIAG. -ENOENT: it is not here. Others: there is no netlink. */
GMB_MUST_CHECK int kernel_peer_uid(
	const struct rules_address *local, const struct rules_address *remote, uid_t *uid_out);

/* The events of a descriptor in an epoll set, as /proc shows them: 0, or -ENOENT. */
GMB_MUST_CHECK int kernel_epoll_events(int set_fd, int fd, uint32_t *events_out);

/* A number above every descriptor of this process: where the kernel's table ends. */
int kernel_table_end(void);
