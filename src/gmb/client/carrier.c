// SPDX-License-Identifier: Apache-2.0
/*
 * gmb as a carrier of libgmblock: one connection, from connecting to its end.
 *
 *   IDLE ─▶ DIALING ─▶ READY ─▶ CLOSING ─▶ IDLE
 *
 * CLOSING waits until the connection has ended and the buffers of its commands have new pages. The
 * commands may be sent over another connection only then, because the server might still access the
 * old pages (rule G16).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/export_uri.h"
#include "base/log.h"
#include "base/uri.h"
#include "gmb/client/client.h"

_Static_assert(CARRIER_REPLACES_MAX <= (int)NATIVE_REPLACES_MAX, "replaced connections");
_Static_assert(CARRIER_TOKEN_BYTES_MAX <= (int)NATIVE_TOKEN_BYTES_MAX, "tokens");

static const uint32_t carrier_edges[] = {
	[NATIVE_IDLE] = BIT(NATIVE_DIALING),
	[NATIVE_DIALING] = BIT(NATIVE_READY) | BIT(NATIVE_CLOSING),
	[NATIVE_READY] = BIT(NATIVE_CLOSING),
	[NATIVE_CLOSING] = BIT(NATIVE_IDLE),
};

void native_carrier_set_state(struct native_carrier *carrier, enum native_carrier_state state)
{
	GMB_ASSERT((carrier_edges[carrier->state] & BIT(state)) != 0);
	carrier->state = state;
}

/* --- the end --------------------------------------------------------------------------------- */

/* Returns the buffers of the commands that were sent, as a bit mask. */
static uint32_t buffers_in_use(const struct native_carrier *carrier)
{
	uint32_t used = 0;

	list_for_each(node, &carrier->sent)
	{
		used |= list_entry(node, struct native_call, node)->buffers;
	}
	return used;
}

/* Makes a closing carrier idle if its connection and its ring operations have ended and no server
 * can access the buffers of its commands any more. Otherwise a no-op; hub_reclaim() calls it again
 * after it has replaced the pages of tainted buffers. */
static void carrier_step(struct native_carrier *carrier)
{
	if (carrier->state != NATIVE_CLOSING || carrier->conn != NULL ||
		carrier->timer_op.in_flight || carrier->fail_op.in_flight ||
		hub_is_tainted(carrier->hub, buffers_in_use(carrier))) {
		return;
	}
	list_remove(&carrier->user.node);
	native_carrier_set_state(carrier, NATIVE_IDLE);
	carrier_stopped(&carrier->base);
}

static void native_lose(struct carrier *base)
{
	struct native_carrier *carrier = native_carrier_of(base);

	bool maps = carrier->conn != NULL && (clan_conn_caps(carrier->conn) & CLAN_CAN_MAP) != 0;

	if (carrier->state == NATIVE_IDLE) {
		carrier_stopped(base);
		return;
	}
	if (maps) {
		hub_taint(carrier->hub, buffers_in_use(carrier));
	}
	native_carrier_set_state(carrier, NATIVE_CLOSING);
	list_remove(&carrier->user.hungry_node);
	if (carrier->conn != NULL) {
		clan_close(carrier->conn);
	}
	ring_cancel(base->ring, &carrier->timer_op);
	carrier_step(carrier);
}

void native_carrier_fail(struct native_carrier *carrier, int code, const char *text)
{
	struct error error;

	error_set(&error, code, "%s: %s", carrier->target->base.labels[carrier->host], text);
	carrier_failed(&carrier->base, &error);
}

/* gmb has no goodbye, because the server detects the close. Only a lease has to be returned. */
static void native_leave(struct carrier *base)
{
	struct native_carrier *carrier = native_carrier_of(base);

	if (carrier->state == NATIVE_READY && carrier->lease[0] != '\0') {
		/* If this fails, the server keeps the lease for a while. */
		(void)!clan_send(carrier->conn, CLAN_BULK, NATIVE_LEAVE, NULL, 0);
	}
	native_lose(base);
}

static struct command *native_take_back(struct carrier *base, bool *was_sent)
{
	struct native_carrier *carrier = native_carrier_of(base);
	struct list_node *node = list_pop_front(&carrier->sent);
	struct native_call *call;

	*was_sent = node != NULL;
	if (node == NULL) {
		node = list_pop_front(&carrier->unsent);
	}
	if (node == NULL) {
		return NULL;
	}
	base->command_count--;
	call = list_entry(node, struct native_call, node);
	hub_pool_put(carrier->hub, &call->staged);
	return native_command_of(call);
}

/* --- events ---------------------------------------------------------------------------------- */

static void gmb_carrier_connected(struct native_carrier *carrier)
{
	size_t bytes;
	const void *welcome = clan_conn_hello(carrier->conn, &bytes);
	struct native_welcome parsed;
	const char *rule = native_welcome_parse(welcome, bytes, &parsed);

	if (rule != NULL) {
		native_carrier_fail(carrier, -EPROTO, rule);
		return;
	}
	carrier->is_connected = true;
	carrier->needs_cookies = (parsed.flags & NATIVE_WELCOME_MOVES) != 0;
	memcpy(carrier->base.facts.instance, parsed.instance, sizeof(carrier->base.facts.instance));
	if (carrier->lease[0] != '\0' && parsed.version < NATIVE_VERSION_LEASE) {
		native_carrier_fail(carrier, -EOPNOTSUPP, "the server has no leases");
		return;
	}
	/* cannot fail for lack of room: the ring of a new connection is empty */
	if ((carrier->lease[0] == '\0' || clan_send(carrier->conn, CLAN_BULK, NATIVE_LEASE,
						  carrier->lease, strlen(carrier->lease)) == 0) &&
		clan_send(carrier->conn, CLAN_BULK, NATIVE_OPEN, carrier->open,
			carrier->open_bytes) == 0) {
		native_carrier_take(carrier);
	}
}

static void lost(struct native_carrier *carrier, const struct clan_event *event)
{
	native_carrier_drain(carrier);
	if (carrier->state != NATIVE_CLOSING) {
		native_carrier_fail(carrier, event->status, clan_conn_reason(carrier->conn));
	}
}

static void carrier_event(struct hub_user *user, const struct clan_event *event)
{
	struct native_carrier *carrier = native_carrier_of_user(user);

	if (event->type == CLAN_EVENT_CLOSED) {
		carrier->conn = NULL;
		carrier_step(carrier);
		return;
	}
	if (carrier->state == NATIVE_CLOSING) {
		return; /* the carrier began to close earlier in this batch of events */
	}
	switch ((enum clan_event_type)event->type) {
	case CLAN_EVENT_CONNECTED:
		gmb_carrier_connected(carrier);
		break;
	case CLAN_EVENT_READY:
		native_carrier_take(carrier);
		break;
	case CLAN_EVENT_LOST:
		lost(carrier, event);
		break;
	case CLAN_EVENT_SHARED:
		native_shared(carrier, event);
		break;
	case CLAN_EVENT_UNSHARED:
		native_unshared(carrier, event);
		break;
	case CLAN_EVENT_ARRIVED:
	case CLAN_EVENT_CONNECT:
	case CLAN_EVENT_CLOSED:
	case CLAN_EVENT_REGION:
	case CLAN_EVENT_REGION_ENDING:
	case CLAN_EVENT_REVOKED:
	case CLAN_EVENT_TRIPPED:
	case CLAN_EVENT_DONE:
	default:
		break; /* events that only servers receive */
	}
}

/* --- start ------------------------------------------------------------------------------------ */

static void gmb_carrier_timer_done(struct ring_op *op, int result)
{
	struct native_carrier *carrier = container_of(op, struct native_carrier, timer_op);
	uint64_t now_ns = ring_now_ns(carrier->base.ring);

	if (carrier->state == NATIVE_CLOSING) {
		carrier_step(carrier);
	} else if (carrier->state == NATIVE_DIALING && carrier->is_connected &&
		   now_ns < carrier->end_ns) {
		/* It was the limit for connecting. */
		ring_timer(
			carrier->base.ring, op, carrier->end_ns - now_ns, gmb_carrier_timer_done);
	} else if (carrier->state == NATIVE_DIALING) {
		native_carrier_fail(carrier, -ETIMEDOUT, "the server did not answer in time");
	}
}

static void fail_done(struct ring_op *op, int result)
{
	struct native_carrier *carrier = container_of(op, struct native_carrier, fail_op);

	if (carrier->state == NATIVE_CLOSING) {
		carrier_step(carrier);
	} else {
		carrier_failed(&carrier->base, &carrier->failure);
	}
}

static void put_token(struct native_carrier *carrier, const char *token)
{
	uint32_t bytes = (uint32_t)strlen(token);

	memcpy(carrier->open + carrier->open_bytes, token, bytes);
	carrier->open_bytes += bytes;
}

static void make_open(struct native_carrier *carrier, const struct carrier_start *start)
{
	struct native_wire_open head = {
		.name_bytes = (uint16_t)strlen(carrier->target->name),
		.token_bytes = (uint8_t)strlen(start->token),
		.replaces_count = (uint8_t)start->replaces_count,
		.alive_units =
			(uint16_t)MIN(start->alive_ms / NATIVE_ALIVE_UNIT_MS, (uint32_t)UINT16_MAX),
	};

	carrier->asks_alive = head.alive_units != 0;
	carrier->waits_for_ends = (start->open_flags & GMB_OPEN_NO_RECONNECT) == 0;
	memcpy(carrier->open, &head, sizeof(head));
	carrier->open_bytes = sizeof(head);
	put_token(carrier, carrier->target->name);
	put_token(carrier, start->token);
	for (uint32_t i = 0; i < start->replaces_count; i++) {
		carrier->open[carrier->open_bytes++] = (uint8_t)strlen(start->replaces[i]);
		put_token(carrier, start->replaces[i]);
	}
}

static int gmb_carrier_dial(struct native_carrier *carrier, const struct carrier_start *start)
{
	struct clan_conn_options options = {
		.size = sizeof(options),
		.cookies = HUB_BUFFERS_MAX,
		.tripwires = 1,
		.handshake_timeout_ms = (uint32_t)(start->timeout_ns / 1000000 + 1),
		.peer_regions_max = 1, /* servers do not share regions with clients */
	};
	int result = hub_get(carrier->base.queue, &carrier->hub, &carrier->failure);

	if (result == 0) {
		hub_start(carrier->hub);
		result = native_connect(carrier->hub->clan, carrier->target, carrier->host,
			&options, &carrier->conn, &carrier->failure);
	}
	if (result != 0) {
		error_prefix(&carrier->failure, "%s", carrier->target->base.labels[carrier->host]);
		return result;
	}
	clan_conn_set_context(carrier->conn, &carrier->user);
	clan_conn_check_puts(carrier->conn, native_put_check);
	list_push_back(&carrier->hub->users, &carrier->user.node);
	return 0;
}

static void native_start(struct carrier *base, const struct carrier_start *start)
{
	struct native_carrier *carrier = native_carrier_of(base);

	native_carrier_set_state(carrier, NATIVE_DIALING);
	base->moved_bytes = 0;
	carrier->host = start->host;
	carrier->end_ns = ring_now_ns(base->ring) + start->timeout_ns;
	carrier->is_connected = false;
	carrier->free_count = CARRIER_DEPTH_MAX;
	for (uint32_t i = 0; i < CARRIER_DEPTH_MAX; i++) {
		carrier->calls[i] = NULL;
		carrier->free_slots[i] = (uint16_t)i;
	}
	memset(carrier->shares, 0, sizeof(carrier->shares));
	make_open(carrier, start);
	snprintf(carrier->lease, sizeof(carrier->lease), "%s",
		start->lease != NULL ? start->lease : "");
	if (gmb_carrier_dial(carrier, start) != 0) {
		ring_defer(base->ring, &carrier->fail_op, 0, fail_done);
	} else {
		ring_timer(
			base->ring, &carrier->timer_op, start->connect_ns, gmb_carrier_timer_done);
	}
}

/* --- the carrier ------------------------------------------------------------------------------ */

static void user_take(struct hub_user *user)
{
	native_carrier_take(native_carrier_of_user(user));
}

static void user_step(struct hub_user *user)
{
	carrier_step(native_carrier_of_user(user));
}

static void user_fail(struct hub_user *user, int code, const char *text)
{
	native_carrier_fail(native_carrier_of_user(user), code, text);
}

static const struct hub_user_ops user_ops = {
	.event = carrier_event,
	.take = user_take,
	.share = native_share,
	.fail = user_fail,
	.shares = native_carrier_shares,
	.unshare = native_carrier_unshare,
	.step = user_step,
};

static struct carrier *native_create(const struct carrier_target *target)
{
	struct native_carrier *carrier = calloc(1, sizeof(*carrier));

	if (carrier == NULL) {
		return NULL;
	}
	carrier->target = (const struct native_target *)(const void *)target;
	carrier->user.ops = &user_ops;
	list_init(&carrier->user.node);
	list_init(&carrier->user.hungry_node);
	list_init(&carrier->unsent);
	list_init(&carrier->sent);
	return &carrier->base;
}

static void native_destroy(struct carrier *base)
{
	GMB_ASSERT(native_carrier_of(base)->state == NATIVE_IDLE);
	free(native_carrier_of(base));
}

static const char *const schemes[] = { "gmb", "gmb+unix", NULL };

const struct carrier_ops native_carrier = {
	.name = "gmb",
	.schemes = schemes,
	.command_bytes = sizeof(struct native_call),
	/* More connections would need more threads. One thread on each side is faster than two,
	 * because the client's and the server's thread keep each other busy and need not be
	 * woken. */
	.connections = 1,
	.target_create = native_target_create,
	.list = native_list,
	.target_destroy = native_target_destroy,
	.create = native_create,
	.destroy = native_destroy,
	.start = native_start,
	.add = native_add,
	.flush = native_flush,
	.lose = native_lose,
	.leave = native_leave,
	.take_back = native_take_back,
};
