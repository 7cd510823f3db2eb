// SPDX-License-Identifier: Apache-2.0
/*
 * Information that the kernel has about a TCP connection: counts of bytes, options, the user of its
 * other end, and the entries of epoll sets.
 *
 * Threading: any thread. Ownership: descriptors are borrowed. Errors: negative errno.
 */
#pragma once

#include <sys/types.h>

#include "sockets/rules.h"

/* Bytes that this end has written and read, as counted by the kernel. kernel_counts() returns
 * -ENOTCONN if the connection is not established in both directions, -EOPNOTSUPP if the kernel does
 * not count, and -EAGAIN if the peer sends too fast for a consistent result. */
struct kernel_counts {
	uint64_t out;
	uint64_t in;
};
GMB_MUST_CHECK int kernel_counts(int fd, struct kernel_counts *counts);

/* Returns true if bytes can bypass the kernel with this value of the option. */
bool kernel_option_fits(int level, int option, const void *value, socklen_t length);
/* Returns true if kernel_option_fits() returns true for all options of the socket. */
bool kernel_options_fit(int fd);

/* Finds the socket at the other end, in this network namespace, by NETLINK_SOCK_DIAG. Returns
 * -ENOENT if it is not there, or another negative errno if netlink does not work. */
struct kernel_peer {
	uid_t uid;
	uint32_t unsent; /* bytes that it has written and that have not arrived */
};
GMB_MUST_CHECK int kernel_peer(const struct rules_address *local,
	const struct rules_address *remote, struct kernel_peer *peer);

/* Returns the events of a descriptor in an epoll set, as shown in /proc. Returns 0 or -ENOENT. */
GMB_MUST_CHECK int kernel_epoll_events(int set_fd, int fd, uint32_t *events_out);

/* Returns the size of the kernel's table of descriptors, greater than every open descriptor. */
int kernel_table_end(void);
