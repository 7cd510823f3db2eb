// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <limits.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "sockets/kernel.h"

enum { NETLINK_WAIT_MS = 200, TCP_STATE_ESTABLISHED = 1, COUNT_TRIES = 4 };

static int read_info(int fd, struct tcp_info *info)
{
	socklen_t length = sizeof(*info);

	memset(info, 0, sizeof(*info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) != 0) {
		return -errno;
	}
	if (length < offsetof(struct tcp_info, tcpi_bytes_retrans) + sizeof(uint64_t)) {
		return -EOPNOTSUPP;
	}
	return info->tcpi_state == TCP_STATE_ESTABLISHED ? 0 : -ENOTCONN;
}

int kernel_counts(int fd, struct kernel_counts *counts)
{
	struct tcp_info info;
	struct tcp_info before;
	int unread;
	int result = read_info(fd, &info);

	/* The counts must not change between the two calls, because bytes that arrive in between
	 * would look like bytes that were read. */
	for (int i = 0; result == 0 && i < COUNT_TRIES; i++) {
		before = info;
		if (ioctl(fd, FIONREAD, &unread) != 0) {
			return -errno;
		}
		result = read_info(fd, &info);
		if (result == 0 && info.tcpi_bytes_received == before.tcpi_bytes_received) {
			counts->out = info.tcpi_bytes_sent - info.tcpi_bytes_retrans +
				      info.tcpi_notsent_bytes;
			counts->in = info.tcpi_bytes_received - (uint64_t)unread;
			return 0;
		}
	}
	return result == 0 ? -EAGAIN : result;
}

/* Socket options that can require the bytes to pass through the kernel, each with the largest value
 * that does not require this. The value of TCP_ULP is a name. */
static const struct {
	int level;
	int option;
	int max;
} options[] = {
	{ SOL_SOCKET, SO_RCVLOWAT, 1 },
	{ SOL_SOCKET, SO_ZEROCOPY, 0 },
	{ SOL_SOCKET, SO_TIMESTAMP, 0 },
	{ SOL_SOCKET, SO_TIMESTAMPNS, 0 },
	{ SOL_SOCKET, SO_TIMESTAMPING, 0 },
	{ IPPROTO_TCP, TCP_INQ, 0 },
	{ IPPROTO_TCP, TCP_REPAIR, 0 },
	{ IPPROTO_TCP, TCP_ULP, 0 },
};

bool kernel_option_fits(int level, int option, const void *value, socklen_t length)
{
	int number = 0;

	if (value != NULL) {
		memcpy(&number, value, MIN((size_t)length, sizeof(number)));
	}
	for (size_t i = 0; i < ARRAY_COUNT(options); i++) {
		if (options[i].level == level && options[i].option == option) {
			return number <= options[i].max;
		}
	}
	return true;
}

bool kernel_options_fit(int fd)
{
	for (size_t i = 0; i < ARRAY_COUNT(options); i++) {
		int number = 0;
		socklen_t length = sizeof(number);

		/* An option that the kernel does not have has no effect. */
		if (getsockopt(fd, options[i].level, options[i].option, &number, &length) == 0 &&
			number > options[i].max) {
			return false;
		}
	}
	return true;
}

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

/* Asks the kernel for the user of the socket at the other end. The kernel lists a connection under
 * the address family of its socket. */
static int sockets_kernel_ask(int netlink, int family, const struct rules_address *local,
	const struct rules_address *remote, struct kernel_peer *peer)
{
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 request;
	} question = {
		.head = { .nlmsg_len = sizeof(question),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST },
		.request = { .sdiag_family = (uint8_t)family,
			.sdiag_protocol = IPPROTO_TCP,
			.idiag_states = BIT(TCP_STATE_ESTABLISHED),
			.id = { .idiag_sport = htons(remote->port),
				.idiag_dport = htons(local->port),
				.idiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE } } },
	};
	size_t skip = family == AF_INET ? sizeof(mapped) : 0;
	struct {
		_Alignas(struct nlmsghdr) uint8_t bytes[2048];
	} answer;
	struct inet_diag_msg found;
	struct nlmsghdr head;
	ssize_t length;

	memcpy(question.request.id.idiag_src, remote->bytes + skip, 16 - skip);
	memcpy(question.request.id.idiag_dst, local->bytes + skip, 16 - skip);
	if (send(netlink, &question, sizeof(question), 0) != (ssize_t)sizeof(question)) {
		return -errno;
	}
	length = recv(netlink, &answer, sizeof(answer), 0);
	if (length < (ssize_t)sizeof(head)) {
		return length < 0 ? -errno : -EPROTO;
	}
	memcpy(&head, answer.bytes, sizeof(head));
	if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
		(size_t)length < NLMSG_HDRLEN + sizeof(found)) {
		return -ENOENT;
	}
	memcpy(&found, answer.bytes + NLMSG_HDRLEN, sizeof(found));
	if (found.id.idiag_sport != question.request.id.idiag_sport ||
		found.id.idiag_dport != question.request.id.idiag_dport) {
		return -ENOENT; /* the kernel returned a listener */
	}
	*peer = (struct kernel_peer){ .uid = found.idiag_uid, .unsent = found.idiag_wqueue };
	return 0;
}

/* An IPv4 connection can belong to an IPv6 socket, so it is looked up in both families. */
int kernel_peer(const struct rules_address *local, const struct rules_address *remote,
	struct kernel_peer *peer)
{
	const struct timeval wait = { .tv_usec = NETLINK_WAIT_MS * 1000 };
	bool ipv4 = memcmp(remote->bytes, mapped, sizeof(mapped)) == 0;
	int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	int result = -ENOENT;

	if (netlink < 0) {
		return -errno;
	}
	if (setsockopt(netlink, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) != 0) {
		result = -errno;
	} else {
		if (ipv4) {
			result = sockets_kernel_ask(netlink, AF_INET, local, remote, peer);
		}
		if (result == -ENOENT) {
			result = sockets_kernel_ask(netlink, AF_INET6, local, remote, peer);
		}
	}
	close(netlink);
	return result;
}

/* Returns the events of a member of an epoll set, which only /proc shows. */
int kernel_epoll_events(int set_fd, int fd, uint32_t *events_out)
{
	char path[64];
	char line[256];
	int result = -ENOENT;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", set_fd);
	file = fopen(path, "re");
	if (file == NULL) {
		return -ENOENT;
	}
	while (result != 0 && fgets(line, sizeof(line), file) != NULL) {
		int shown_fd;
		unsigned int events;

		if (sscanf(line, "tfd: %d events: %x", &shown_fd, &events) == 2 && shown_fd == fd) {
			*events_out = events;
			result = 0;
		}
	}
	fclose(file);
	return result;
}

int kernel_table_end(void)
{
	int end = INT_MAX;
	char line[256];
	FILE *file;
	int old;

	/* A thread that is cancelled while it reads would leave the stream open. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	file = fopen("/proc/self/status", "re");

	while (file != NULL && fgets(line, sizeof(line), file) != NULL &&
		sscanf(line, "FDSize: %d", &end) != 1) {
	}
	if (file != NULL) {
		fclose(file);
	}
	pthread_setcancelstate(old, NULL);
	return end;
}
