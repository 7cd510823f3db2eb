// SPDX-License-Identifier: Apache-2.0
/*
 * How soon an idle TCP connection finds out that the other machine is gone: one that died, or was
 * unplugged, says no goodbye. A program that hangs is not gone: its system answers.
 *
 * Threading: any. Errors: none: what the system refuses, or is no TCP socket, keeps the system's
 * own habits (hours, or none).
 */
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/* After idle_s seconds without a byte it is asked, again every interval_s, and given up after
 * probes questions without an answer. */
static inline void keep_alive(int fd, int idle_s, int interval_s, int probes)
{
	const int on = 1;

	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}
