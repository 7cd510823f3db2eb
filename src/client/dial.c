// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/client_private.h"

/* On a worker thread. */
static int dial_call(struct ring_op *op)
{
	struct dial *dial = container_of(op, struct dial, op);
	struct wait_limit limit = wait_limit_start(dial->timeout_ns, dial->abort_fd);

	return connect_uri(dial->uri, &limit, &dial->fd, &dial->error);
}

static void dial_done(struct ring_op *op, int result)
{
	struct dial *dial = container_of(op, struct dial, op);

	if (dial->abort_fd >= 0) {
		close(dial->abort_fd);
	}
	dial->done(dial, result);
}

void dial_start(struct dial *dial, struct ring *ring, const struct nbd_uri *uri,
	uint64_t timeout_ns, void (*done)(struct dial *dial, int err))
{
	dial->uri = uri;
	dial->timeout_ns = timeout_ns;
	dial->fd = -1;
	dial->error = (struct error){ 0 };
	dial->done = done;
	/* Without one the attempt cannot be cut short, nothing else. */
	dial->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ring_call(ring, &dial->op, dial_call, dial_done);
}

void dial_abort(struct dial *dial)
{
	uint64_t one = 1;

	if (dial->op.in_flight && dial->abort_fd >= 0) {
		ssize_t written = write(dial->abort_fd, &one, sizeof(one));

		GMB_ASSERT(written == sizeof(one) || errno == EAGAIN);
	}
}
