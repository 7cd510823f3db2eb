// SPDX-License-Identifier: Apache-2.0
/* Socket calls without a ring operation, see ring.h. */
#include <sys/socket.h>
#include <unistd.h>

#include "base/rights.h"
#include "base/work.h"
#include "ring/ring.h"

void ring_socket_shutdown(struct ring *ring, struct ring_file file)
{
	GMB_UNUSED(ring);
	(void)shutdown(file.fd, SHUT_RDWR); /* fails only if the peer is already gone */
}

void ring_socket_abort(struct ring *ring, struct ring_file file)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = 0 };
	const struct sockaddr nowhere = { .sa_family = AF_UNSPEC };

	GMB_UNUSED(ring);
	/* connect() to AF_UNSPEC disconnects a TCP socket, which discards data that waits to be
	 * sent or retransmitted. connect() fails if the sandbox forbids it, and with kernel TLS.
	 * Then the linger option discards the data, but only when the last descriptor is closed. */
	(void)setsockopt(file.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	(void)connect(file.fd, &nowhere, sizeof(nowhere));
	(void)shutdown(file.fd, SHUT_RDWR);
}

void ring_socket_shutdown_send(struct ring *ring, struct ring_file file)
{
	GMB_UNUSED(ring);
	(void)shutdown(file.fd, SHUT_WR);
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
	GMB_UNUSED(ring);
	/* Closes only this descriptor. The socket is neither shut down nor emptied, because another
	 * process might use it. */
	if (rights_may_come(fd)) {
		dispose_end(fd, rights_owner(fd));
	} else {
		close(fd);
	}
}
