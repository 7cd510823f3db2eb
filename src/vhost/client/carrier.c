// SPDX-License-Identifier: Apache-2.0
/*
 * The front end of vhost-user-blk as a carrier of libgmblock: one connection, from connecting to
 * its end.
 *
 *   IDLE ─▶ DIALING ─▶ READY ─▶ CLOSING ─▶ IDLE
 *
 * CLOSING waits until no operation is in flight and the buffers of its commands have fresh pages,
 * because a server that still runs, or the disk of one that was killed, may write into the old
 * ones.
 *
 * The used rings are an event source of the ring (ring.h): polled while there is work; armed before
 * a wait, so that the server signals call_fd, which all rings share.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rights.h"
#include "vhost/client/client.h"

static const uint32_t front_edges[] = {
	[FRONT_IDLE] = BIT(FRONT_DIALING),
	[FRONT_DIALING] = BIT(FRONT_READY) | BIT(FRONT_CLOSING),
	[FRONT_READY] = BIT(FRONT_CLOSING),
	[FRONT_CLOSING] = BIT(FRONT_IDLE),
};

static void front_set_state(struct front_carrier *carrier, enum front_state state)
{
	GMB_ASSERT((front_edges[carrier->state] & BIT(state)) != 0);
	carrier->state = state;
}

/* --- the rings ------------------------------------------------------------------------------- */

static size_t rings_bytes(const struct front_carrier *carrier)
{
	return carrier->queue_count * sizeof(struct front_area);
}

int front_rings_create(struct front_carrier *carrier)
{
	void *base;

	carrier->rings_fd = memfd_create("vhost-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (carrier->rings_fd < 0 ||
		ftruncate(carrier->rings_fd, (off_t)rings_bytes(carrier)) != 0 ||
		fcntl(carrier->rings_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
		return -errno;
	}
	base = mmap(NULL, rings_bytes(carrier), PROT_READ | PROT_WRITE, MAP_SHARED,
		carrier->rings_fd, 0);
	if (base == MAP_FAILED) {
		return -errno;
	}
	carrier->areas = base;
	for (uint32_t i = 0; i < carrier->queue_count; i++) {
		struct front_ring *ring = &carrier->rings[i];

		front_ring_init(ring, &carrier->areas[i],
			front_address(FRONT_RINGS, i * sizeof(struct front_area)),
			carrier->features);
		ring->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (ring->kick_fd < 0) {
			return -errno;
		}
	}
	return 0;
}

static void close_one(int *fd)
{
	if (*fd >= 0) {
		close(*fd);
		*fd = -1;
	}
}

static void rings_destroy(struct front_carrier *carrier)
{
	for (uint32_t i = 0; i < FRONT_QUEUES_MAX; i++) {
		close_one(&carrier->rings[i].kick_fd);
	}
	if (carrier->areas != NULL) {
		munmap(carrier->areas, rings_bytes(carrier));
		carrier->areas = NULL;
	}
	close_one(&carrier->rings_fd);
}

/* Asks for a signal on call_fd when the next chain of any ring is used (arm), or for none. Returns
 * false if there is a used chain already. */
static bool rings_arm(struct front_carrier *carrier, bool arm)
{
	bool is_idle = true;

	if (arm || carrier->is_armed) {
		for (uint32_t i = 0; i < carrier->queue_count; i++) {
			is_idle &= front_ring_arm(&carrier->rings[i], arm);
		}
	}
	carrier->is_armed = arm;
	return is_idle;
}

/* Completes commands of one ring. Returns their number. While the client polls, and so the rings
 * are not armed, it takes a few at a time: their successors then reach the server while the client
 * works on the others. Otherwise, client and server would wait for each other's batches. */
static int ring_harvest(struct front_carrier *carrier, struct front_ring *ring)
{
	int count_max = carrier->is_armed ? FRONT_ENTRIES : FRONT_FEW;
	const char *rule = NULL;
	int count = 0;
	void *owner;
	uint8_t status;
	int result;

	/* The number of chains bounds the loop, even if callbacks add commands. */
	while (carrier->state == FRONT_READY && count < count_max &&
		(result = front_ring_take(ring, &owner, &status, &rule)) != 0) {
		if (result < 0) {
			front_broken(carrier, rule);
			return count + 1;
		}
		count++;
		front_call_done(carrier, owner, status);
	}
	return count;
}

static int source_poll(struct ring_source *source)
{
	struct front_carrier *carrier = container_of(source, struct front_carrier, source);
	int count = 0;

	for (uint32_t i = 0; i < carrier->queue_count && carrier->state == FRONT_READY; i++) {
		count += ring_harvest(carrier, &carrier->rings[i]);
	}
	if (count > 0) {
		carrier->base.heard_ns = ring_batch_ns(carrier->base.ring);
		carrier->base.answered_ns = carrier->base.heard_ns;
		rings_arm(carrier, false);
	}
	return count;
}

/* Signals of an earlier wait are removed before the rings are armed, so that each later one makes
 * call_fd readable. */
static bool source_arm(struct ring_source *source)
{
	struct front_carrier *carrier = container_of(source, struct front_carrier, source);
	uint64_t number;

	if (carrier->state != FRONT_READY) {
		return true;
	}
	if (carrier->call_pending) {
		(void)!read(carrier->call_fd, &number, sizeof(number));
	}
	carrier->call_pending = true;
	return rings_arm(carrier, true);
}

static void source_removed(struct ring_source *source)
{
	struct front_carrier *carrier = container_of(source, struct front_carrier, source);

	carrier->has_source = false;
	front_step(carrier);
}

/* --- the end --------------------------------------------------------------------------------- */

static void front_release(struct front_carrier *carrier)
{
	rings_destroy(carrier);
	close_one(&carrier->call_fd);
	close_one(&carrier->front.fd);
	close_one(&carrier->front.received_fd);
	close_one(&carrier->back.fd);
	close_one(&carrier->back.received_fd);
	close_one(&carrier->back_peer_fd);
	close_one(&carrier->inflight_fd);
}

void front_step(struct front_carrier *carrier)
{
	if (carrier->state != FRONT_CLOSING || carrier->timer_op.in_flight ||
		carrier->fail_op.in_flight || carrier->front.op.in_flight ||
		carrier->back.op.in_flight || carrier->has_source) {
		return;
	}
	/* The socket is closed before pages are replaced. */
	front_release(carrier);
	if (hub_is_tainted(carrier->hub, front_buffers_in_use(carrier))) {
		hub_reclaim(carrier->hub); /* calls this function again, now or later */
		return;
	}
	list_remove(&carrier->user.node);
	front_set_state(carrier, FRONT_IDLE);
	carrier_stopped(&carrier->base);
}

static void front_lose(struct carrier *base)
{
	struct front_carrier *carrier = front_carrier_of(base);

	if (carrier->state == FRONT_IDLE) {
		carrier_stopped(base);
		return;
	}
	if (carrier->hub != NULL) {
		hub_taint(carrier->hub, front_buffers_in_use(carrier));
	}
	front_set_state(carrier, FRONT_CLOSING);
	if (carrier->front.fd >= 0) {
		ring_socket_shutdown(base->ring, carrier->front.file);
	}
	ring_cancel(base->ring, &carrier->front.op);
	ring_cancel(base->ring, &carrier->back.op);
	ring_cancel(base->ring, &carrier->timer_op);
	if (carrier->has_source) {
		ring_source_remove(base->ring, &carrier->source, source_removed);
	}
	front_step(carrier);
}

void front_fail(struct front_carrier *carrier, int code, const char *text)
{
	struct error error;

	if (carrier->state != FRONT_CLOSING) {
		error_set(&error, code, "%s: %s", carrier->target->base.labels[0], text);
		carrier_failed(&carrier->base, &error);
	}
}

void front_broken(struct front_carrier *carrier, const char *rule)
{
	char text[160];

	snprintf(text, sizeof(text), "the server broke a rule of vhost-user-blk: %s", rule);
	front_fail(carrier, -EPROTO, text);
}

static struct command *front_take_back(struct carrier *base, bool *was_sent)
{
	struct front_carrier *carrier = front_carrier_of(base);
	struct list_node *node = list_pop_front(&carrier->sent);
	struct front_call *call;

	*was_sent = node != NULL;
	if (node == NULL) {
		node = list_pop_front(&carrier->unsent);
	}
	if (node == NULL) {
		return NULL;
	}
	base->command_count--;
	call = list_entry(node, struct front_call, node);
	hub_pool_put(carrier->hub, &call->staged);
	return front_command_of(call);
}

/* --- start ----------------------------------------------------------------------------------- */

static void front_timer_done(struct ring_op *op, int result)
{
	struct front_carrier *carrier = container_of(op, struct front_carrier, timer_op);

	if (carrier->state == FRONT_CLOSING) {
		front_step(carrier);
	} else if (carrier->state == FRONT_DIALING) {
		front_fail(carrier, -ETIMEDOUT,
			"the server did not answer in time; many servers serve one front end of a "
			"socket at a time");
	}
}

static void front_fail_done(struct ring_op *op, int result)
{
	struct front_carrier *carrier = container_of(op, struct front_carrier, fail_op);

	if (carrier->state == FRONT_CLOSING) {
		front_step(carrier);
	} else {
		carrier_failed(&carrier->base, &carrier->failure);
	}
}

static int channel_open(struct front_channel *channel, struct ring *ring, int fd)
{
	channel->fd = fd;
	channel->file = (struct ring_file){ .fd = fd, .slot = -1 };
	return fd;
}

static int front_dial(struct front_carrier *carrier)
{
	struct error *error = &carrier->failure;
	int ends[2];
	int fd;
	int result = hub_get(carrier->base.queue, &carrier->hub, error);

	result = result ?: front_connect(carrier->target, &fd, error);
	if (result != 0) {
		return result;
	}
	channel_open(&carrier->front, carrier->base.ring, fd);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
		return error_set(error, -errno, "cannot create a socket: %s", strerror(errno));
	}
	rights_refuse(ends[0]);
	channel_open(&carrier->back, carrier->base.ring, ends[0]);
	carrier->back_peer_fd = ends[1];
	carrier->call_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (carrier->call_fd < 0) {
		return error_set(error, -errno, "cannot create an eventfd: %s", strerror(errno));
	}
	list_push_back(&carrier->hub->users, &carrier->user.node);
	return 0;
}

static void front_start(struct carrier *base, const struct carrier_start *start)
{
	struct front_carrier *carrier = front_carrier_of(base);

	front_set_state(carrier, FRONT_DIALING);
	base->moved_bytes = 0;
	memset(carrier->shares, FRONT_SHARE_NONE, sizeof(carrier->shares));
	if (start->lease != NULL) {
		error_set(&carrier->failure, -EOPNOTSUPP,
			"%s: vhost-user-blk has no leases; use an nbd+unix or gmb+unix URI",
			carrier->target->base.labels[0]);
		ring_defer(base->ring, &carrier->fail_op, 0, front_fail_done);
		return;
	}
	if (front_dial(carrier) != 0) {
		error_prefix(&carrier->failure, "%s", carrier->target->base.labels[0]);
		ring_defer(base->ring, &carrier->fail_op, 0, front_fail_done);
		return;
	}
	ring_timer(base->ring, &carrier->timer_op, start->timeout_ns, front_timer_done);
	front_control_start(carrier);
}

void front_ready(struct front_carrier *carrier)
{
	ring_cancel(carrier->base.ring, &carrier->timer_op);
	carrier->call_pending = false;
	carrier->is_armed = false;
	carrier->source = (struct ring_source){
		.poll = source_poll, .arm = source_arm, .fd = carrier->call_fd
	};
	carrier->has_source = true;
	ring_source_add(carrier->base.ring, &carrier->source);
	front_set_state(carrier, FRONT_READY);
	carrier_ready(&carrier->base);
}

/* --- the carrier ----------------------------------------------------------------------------- */

static void front_user_step(struct hub_user *user)
{
	front_step(container_of(user, struct front_carrier, user));
}

static void front_user_fail(struct hub_user *user, int code, const char *text)
{
	front_fail(container_of(user, struct front_carrier, user), code, text);
}

static const struct hub_user_ops user_ops = {
	.share = front_share,
	.fail = front_user_fail,
	.shares = front_shares,
	.unshare = front_unshare,
	.step = front_user_step,
};

static struct carrier *front_create(const struct carrier_target *target)
{
	struct front_carrier *carrier = calloc(1, sizeof(*carrier));

	if (carrier != NULL) {
		carrier->rings = calloc(FRONT_QUEUES_MAX, sizeof(*carrier->rings));
	}
	if (carrier == NULL || carrier->rings == NULL) {
		free(carrier);
		return NULL;
	}
	carrier->target = (const struct front_target *)(const void *)target;
	carrier->user.ops = &user_ops;
	list_init(&carrier->user.node);
	list_init(&carrier->user.hungry_node);
	list_init(&carrier->unsent);
	list_init(&carrier->sent);
	for (uint32_t i = 0; i < FRONT_QUEUES_MAX; i++) {
		carrier->rings[i].kick_fd = -1;
	}
	carrier->rings_fd = -1;
	carrier->call_fd = -1;
	carrier->back_peer_fd = -1;
	carrier->inflight_fd = -1;
	carrier->front.fd = -1;
	carrier->front.received_fd = -1;
	carrier->back.fd = -1;
	carrier->back.received_fd = -1;
	return &carrier->base;
}

static void front_destroy(struct carrier *base)
{
	struct front_carrier *carrier = front_carrier_of(base);

	GMB_ASSERT(carrier->state == FRONT_IDLE);
	free(carrier->rings);
	free(carrier);
}

static const char *const schemes[] = { "vhost-user-blk+unix", NULL };

const struct carrier_ops vhost_carrier = {
	.name = "vhost-user-blk",
	.schemes = schemes,
	.command_bytes = sizeof(struct front_call),
	/* Most servers accept one front end of a socket. It can have several rings. */
	.connections = 1,
	.target_create = front_target_create,
	.list = front_list,
	.target_destroy = front_target_destroy,
	.create = front_create,
	.destroy = front_destroy,
	.start = front_start,
	.add = front_add,
	.flush = front_flush,
	.lose = front_lose,
	.leave = front_lose, /* the server detects the close */
	.take_back = front_take_back,
};
