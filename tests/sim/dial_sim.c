// SPDX-License-Identifier: Apache-2.0
#include "dial_sim.h"

#include <errno.h>
#include <string.h>

#include "client/client_private.h"
#include "sim/sim.h"

static const struct dial_network *network;

void dial_sim_use(const struct dial_network *used)
{
	network = used;
}

static void attempt_done(struct ring_op *op, int result)
{
	struct dial *dial = container_of(op, struct dial, op);
	int err = result == -ECANCELED ? -ECANCELED : dial->error.code;

	if (err == 0) {
		dial->fd = network->connect(network->context);
		err = dial->fd < 0 ? dial->fd : 0;
	}
	if (err != 0) {
		error_set(&dial->error, err, "the simulated server: cannot connect: %s",
			strerror(-err));
	}
	dial->done(dial, err);
}

void dial_start(struct dial *dial, struct ring *ring, const struct nbd_uri *uri,
	uint64_t timeout_ns, void (*done)(struct dial *dial, int err))
{
	uint64_t delay_ns = 0;

	GMB_ASSERT(network != NULL);
	*dial = (struct dial){
		.uri = uri,
		.timeout_ns = timeout_ns,
		.abort_fd = -1,
		.fd = -1,
		.done = done,
	};
	dial->error.code = network->attempt(network->context, timeout_ns, &delay_ns);
	ring_timer(ring, &dial->op, delay_ns, attempt_done);
}

void dial_abort(struct dial *dial)
{
	/* The ring of an operation in flight is known only to the simulation. */
	sim_cancel(&dial->op);
}
