// SPDX-License-Identifier: Apache-2.0
#include "connector_sim.h"

#include <errno.h>
#include <string.h>

#include "nbd/client/connect.h"
#include "sim/sim.h"

static const struct connector_network *network;

void connector_sim_use(const struct connector_network *used)
{
	network = used;
}

static void attempt_done(struct ring_op *op, int result)
{
	struct connector *connector = container_of(op, struct connector, timer_op);
	int err = result == -ECANCELED ? -ECANCELED : connector->result;

	if (err == 0) {
		connector->fd = network->connect(network->context, connector->uri->host);
		err = connector->fd < 0 ? connector->fd : 0;
	}
	if (err != 0) {
		error_set(&connector->error, err, "the simulated server: cannot connect: %s",
			strerror(-err));
	}
	connector->state = CONNECTOR_IDLE;
	connector->done(connector, err);
}

void connector_start(struct connector *connector, struct ring *ring, const struct export_uri *uri,
	uint64_t timeout_ns, void (*done)(struct connector *connector, int err))
{
	uint64_t delay_ns = 0;

	GMB_ASSERT(network != NULL && connector->state == CONNECTOR_IDLE);
	*connector = (struct connector){
		.ring = ring,
		.uri = uri,
		.state = CONNECTOR_ATTEMPT,
		.timeout_ns = timeout_ns,
		.fd = -1,
		.done = done,
	};
	connector->result = network->attempt(network->context, uri->host, timeout_ns, &delay_ns);
	ring_timer(ring, &connector->timer_op, delay_ns, attempt_done);
}

void connector_cancel(struct connector *connector)
{
	if (connector->state != CONNECTOR_IDLE) {
		ring_cancel(connector->ring, &connector->timer_op);
	}
}
