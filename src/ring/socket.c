// SPDX-License-Identifier: Apache-2.0
/* Socket calls without a ring operation, see ring.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rights.h"
#include "base/work.h"
#include "ring/guard.h"
#include "ring/ring.h"

void ring_socket_shutdown(struct ring *ring, struct ring_file file)
{
	(void)shutdown(file.fd, SHUT_RDWR); /* fails only if the peer is already gone */
}

void ring_socket_abort(struct ring *ring, struct ring_file file)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = 0 };
	const struct sockaddr nowhere = { .sa_family = AF_UNSPEC };

	/* connect() to AF_UNSPEC disconnects a TCP socket, which discards data that waits to be
	 * sent or retransmitted. connect() fails if the sandbox forbids it, and with kernel TLS.
	 * Then the linger option discards the data, but only when the last descriptor is closed. */
	(void)setsockopt(file.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	(void)connect(file.fd, &nowhere, sizeof(nowhere));
	(void)shutdown(file.fd, SHUT_RDWR);
}

void ring_socket_shutdown_send(struct ring *ring, struct ring_file file)
{
	(void)shutdown(file.fd, SHUT_WR);
}

bool ring_socket_traffic(struct ring *ring, struct ring_file file, struct ring_traffic *traffic)
{
	struct tcp_info info = { 0 };
	socklen_t bytes = sizeof(info);

	ring_count_direct(ring, 1);
	if (getsockopt(file.fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) < 0) {
		return false;
	}
	traffic->acked_bytes = info.tcpi_bytes_acked;
	traffic->busy_ns = info.tcpi_busy_time * UINT64_C(1000);
	return true;
}

bool ring_socket_unacked(struct ring *ring, struct ring_file file, uint64_t *bytes_out)
{
	int bytes = 0;

	ring_count_direct(ring, 1);
	if (ioctl(file.fd, SIOCOUTQ, &bytes) < 0) {
		return false;
	}
	*bytes_out = (uint64_t)bytes;
	return true;
}

ssize_t ring_recvmsg_now(struct ring *ring, struct ring_file file, struct msghdr *message)
{
	ssize_t got;

	ring_count_direct(ring, 1);
	if (unlikely(file.is_guarded) && message->msg_control == NULL) {
		return ring_guard_receive(file.fd, message);
	}
	got = recvmsg(file.fd, message, MSG_DONTWAIT);
	return got < 0 ? -errno : got;
}

ssize_t ring_sendmsg_now(struct ring *ring, struct ring_file file, const struct msghdr *message)
{
	int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (message->msg_flags & MSG_MORE);
	ssize_t sent;

	ring_count_direct(ring, 1);
	sent = sendmsg(file.fd, message, flags);
	return sent < 0 ? -errno : sent;
}

/* sendfile() has no flag such as MSG_DONTWAIT, so the socket is made non-blocking for the time of
 * the call. This does not affect receives in flight. */
ssize_t ring_sendfile_now(
	struct ring *ring, struct ring_file file, struct mem_ref bytes, size_t count)
{
	off_t offset = (off_t)mem_offset(bytes);
	ssize_t sent;

	GMB_ASSERT(mem_may(bytes, MEM_SOCKET) && !mem_may(bytes, MEM_ADDRESS));
	ring_count_direct(ring, 3);
	(void)fcntl(file.fd, F_SETFL, O_NONBLOCK);
	sent = sendfile(file.fd, bytes.region->fd, &offset, count);
	if (sent < 0) {
		sent = errno == EIO ? -EFAULT : -errno;
	} else if (sent == 0) {
		sent = -EFAULT;
	}
	(void)fcntl(file.fd, F_SETFL, 0);
	return sent;
}

bool ring_socket_credentials(int fd, struct ucred *credentials)
{
	int domain = 0;
	socklen_t domain_bytes = sizeof(domain);
	socklen_t bytes = sizeof(*credentials);

	return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_bytes) == 0 &&
	       domain == AF_UNIX &&
	       getsockopt(fd, SOL_SOCKET, SO_PEERCRED, credentials, &bytes) == 0;
}

void ring_socket_close(struct ring *ring, int fd)
{
	/* Closes only this descriptor. The socket is neither shut down nor emptied, because another
	 * process might use it. */
	if (rights_may_come(fd)) {
		dispose_end(fd, rights_owner(fd));
	} else {
		close(fd);
	}
}
