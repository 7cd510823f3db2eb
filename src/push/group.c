// SPDX-License-Identifier: Apache-2.0
#include "push/group.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "tls/mac.h"

struct push_group {
	struct list_node node; /* in groups.all */
	struct push_claim claim;
	uint32_t joined;  /* bits: connections that have a session */
	uint32_t dropped; /* bits: connections whose session must end */
	bool is_over;
	int status;
	char text[PUSH_TEXT_BYTES_MAX];
	struct push_pieces pieces;
	struct push_progress progress;
	uint64_t written[PUSH_FLOWS_MAX][PUSH_SLOTS]; /* as in DROPPED */
};

/* One lock for all groups, because each of its users holds it only for a few instructions. */
static struct {
	pthread_mutex_t lock;
	struct list_node all;
} groups = { .lock = PTHREAD_MUTEX_INITIALIZER, .all = { &groups.all, &groups.all } };

static void group_lock(void)
{
	int result = pthread_mutex_lock(&groups.lock);

	GMB_ASSERT(result == 0);
}

static void group_unlock(void)
{
	int result = pthread_mutex_unlock(&groups.lock);

	GMB_ASSERT(result == 0);
}

/* --- sessions --------------------------------------------------------------------------------- */

struct push_group *push_group_create(const struct push_claim *claim)
{
	struct push_group *group = calloc(1, sizeof(*group));

	if (group != NULL) {
		group->claim = *claim;
		group->joined = BIT(0);
		memset(group->written, 0xff, sizeof(group->written));
		group_lock();
		list_push_back(&groups.all, &group->node);
		group_unlock();
	}
	return group;
}

/* The ticket is a secret, so the comparison of its MAC takes constant time. */
static struct push_group *find_group(const struct push_wire_ticket *ticket)
{
	list_for_each(node, &groups.all)
	{
		struct push_group *group = list_entry(node, struct push_group, node);
		const struct push_wire_ticket *used = &group->claim.ticket;

		if (tls_mac_equal(used->mac, ticket->mac) &&
			memcmp(used, ticket, sizeof(*used)) == 0) {
			return group;
		}
	}
	return NULL;
}

const char *push_group_join(const struct push_wire_join *join, const struct push_shower *shower,
	struct push_group **group_out)
{
	const char *why = push_ticket_fits(&join->ticket, shower);
	struct push_group *group;

	group_lock();
	group = find_group(&join->ticket);
	if (group == NULL || group->is_over) {
		why = "no job with this ticket is running";
	} else if (why == NULL && (group->joined & BIT(join->number)) != 0) {
		why = "the previous connection with this number has not ended";
	}
	if (why == NULL) {
		group->joined |= BIT(join->number);
		group->dropped &= ~BIT(join->number);
		memset(group->written[join->number], 0xff, sizeof(group->written[0]));
		*group_out = group;
	}
	group_unlock();
	return why;
}

void push_group_leave(struct push_group *group, uint32_t number)
{
	bool is_last;

	group_lock();
	group->joined &= ~BIT(number);
	/* If the job has never begun, push_group_end() was not called. */
	group->is_over |= number == 0;
	is_last = group->joined == 0;
	if (is_last) {
		list_remove(&group->node);
	}
	group_unlock();
	if (is_last) {
		free(group);
	}
}

const struct push_claim *push_group_claim(const struct push_group *group)
{
	return &group->claim;
}

/* --- pieces ----------------------------------------------------------------------------------- */

const char *push_group_take(struct push_group *group, uint64_t offset, uint64_t length)
{
	const char *rule;

	group_lock();
	rule = push_pieces_take(&group->pieces, offset, length);
	group_unlock();
	return rule;
}

/* Cannot fail if the source keeps the limits on pieces in flight; otherwise the last FLUSH fails,
 * because the piece is not counted. */
void push_group_give(struct push_group *group, uint64_t offset, uint64_t length)
{
	group_lock();
	(void)!push_pieces_give(&group->pieces, offset, length);
	group_unlock();
}

bool push_group_lacks(struct push_group *group, uint64_t offset, uint64_t length)
{
	bool lacks;

	group_lock();
	lacks = push_pieces_lack(&group->pieces, offset, length);
	group_unlock();
	return lacks;
}

uint64_t push_group_low(struct push_group *group)
{
	uint64_t low;

	group_lock();
	low = push_pieces_low(&group->pieces);
	group_unlock();
	return low;
}

/* --- progress --------------------------------------------------------------------------------- */

static void progress_add(struct push_progress *progress, const struct push_progress *more)
{
	progress->done += more->done;
	progress->zeroes += more->zeroes;
	progress->skipped += more->skipped;
	progress->digest += more->digest;
}

void push_group_count(struct push_group *group, const struct push_progress *more)
{
	group_lock();
	progress_add(&group->progress, more);
	group_unlock();
}

void push_group_written(struct push_group *group, uint32_t number, uint32_t slot, uint64_t offset,
	const struct push_progress *more)
{
	group_lock();
	progress_add(&group->progress, more);
	group->written[number][slot] = offset;
	group_unlock();
}

void push_group_progress(struct push_group *group, struct push_progress *progress)
{
	uint64_t durable = progress->durable;

	group_lock();
	*progress = group->progress;
	group_unlock();
	progress->durable = durable;
}

/* --- the end ---------------------------------------------------------------------------------- */

void push_group_fail(struct push_group *group, int status, const char *text)
{
	group_lock();
	if (group->status == 0) {
		group->status = status;
		snprintf(group->text, sizeof(group->text), "%s", text != NULL ? text : "");
	}
	group_unlock();
}

int push_group_error(struct push_group *group, char *text)
{
	int status;

	group_lock();
	status = group->status;
	memcpy(text, group->text, sizeof(group->text));
	group_unlock();
	return status;
}

void push_group_end(struct push_group *group)
{
	group_lock();
	group->is_over = true;
	group_unlock();
}

bool push_group_goes_on(struct push_group *group, uint32_t number)
{
	bool goes_on;

	group_lock();
	goes_on = !group->is_over && (group->dropped & BIT(number)) == 0;
	group_unlock();
	return goes_on;
}

bool push_group_drop(struct push_group *group, struct push_wire_dropped *dropped)
{
	bool has_left;

	group_lock();
	has_left = (group->joined & BIT(dropped->number)) == 0;
	group->dropped |= has_left ? 0 : BIT(dropped->number);
	memcpy(dropped->written, group->written[dropped->number], sizeof(dropped->written));
	group_unlock();
	return has_left;
}
