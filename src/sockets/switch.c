// SPDX-License-Identifier: Apache-2.0
/*
 * See switch.h. The counts are atomic because plain calls update them without the lock. Relaxed
 * order is sufficient: a plain call adds its bytes before it decrements plain_readers or
 * plain_writers, and a position matters only after the caller has seen that counter at 0.
 */
#include <errno.h>

#include "sockets/switch.h"

static uint64_t position(const _Atomic(uint64_t) *count)
{
	return atomic_load_explicit(count, memory_order_relaxed);
}

void switch_begin(struct switch_side *side)
{
	side->out_place = SWITCH_OUT_TCP;
	side->may = false;
	side->may_said = false;
	side->go_from = SWITCH_NOWHERE;
	side->switch_from = SWITCH_NOWHERE;
}

bool switch_can_go(const struct switch_side *side)
{
	return side->may && side->out_place == SWITCH_OUT_TCP;
}

struct switch_message switch_go(struct switch_side *side)
{
	GMB_ASSERT(switch_can_go(side));
	side->out_place = SWITCH_OUT_RING;
	return (struct switch_message){ .from = position(&side->out) };
}

bool switch_leave(struct switch_side *side, struct switch_message *message)
{
	if (side->out_place == SWITCH_OUT_LEFT) {
		return false;
	}
	side->out_place = SWITCH_OUT_LEFT;
	*message = (struct switch_message){ .from = position(&side->out) };
	return true;
}

/* Reports a violation for a message that a correct peer does not send in this order, or whose
 * position is before bytes that have already been read. */
int switch_received(struct switch_side *side, uint32_t type, const struct switch_message *message)
{
	uint64_t from = message->from;

	switch (type) {
	case SWITCH_MAY:
		if (side->may || from != 0) {
			return -EPROTO;
		}
		side->may = true;
		return 0;
	case SWITCH_GO:
		/* The peer may send GO only after our MAY. The position of its GO must not be
		 * before bytes that we have already read. */
		if (!side->may_said || side->go_from != SWITCH_NOWHERE ||
			side->switch_from != SWITCH_NOWHERE || from == SWITCH_NOWHERE ||
			from < position(&side->in)) {
			return -EPROTO;
		}
		side->go_from = from;
		return 0;
	case SWITCH_BACK:
	case SWITCH_BACK_SLOW:
		if (side->switch_from != SWITCH_NOWHERE || from == SWITCH_NOWHERE) {
			return -EPROTO;
		}
		if (side->go_from == SWITCH_NOWHERE) {
			/* SWITCH without GO: the peer never used the ring, so all bytes come by
			 * TCP. */
			side->go_from = 0;
			side->switch_from = 0;
			return 1;
		}
		if (from < side->go_from || from < position(&side->in)) {
			return -EPROTO;
		}
		side->switch_from = from;
		return 1;
	default:
		return -EPROTO;
	}
}

enum switch_place switch_place(const struct switch_side *side, uint64_t *bytes_out)
{
	uint64_t in = position(&side->in);

	*bytes_out = UINT64_MAX;
	if (side->go_from == SWITCH_NOWHERE) {
		return SWITCH_TCP;
	}
	if (in < side->go_from) {
		*bytes_out = side->go_from - in;
		return SWITCH_TCP;
	}
	if (side->switch_from == SWITCH_NOWHERE) {
		return SWITCH_RING;
	}
	if (in < side->switch_from) {
		*bytes_out = side->switch_from - in;
		return SWITCH_RING;
	}
	return SWITCH_TCP;
}

bool switch_may_turn(const struct switch_side *side)
{
	return side->may_said && side->go_from == SWITCH_NOWHERE;
}

void switch_ring_ended(struct switch_side *side)
{
	side->go_from = 0;
	side->switch_from = 0;
}

bool switch_is_over(const struct switch_side *side)
{
	return side->out_place == SWITCH_OUT_LEFT && side->switch_from != SWITCH_NOWHERE &&
	       position(&side->in) >= side->switch_from;
}
