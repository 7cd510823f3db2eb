// SPDX-License-Identifier: Apache-2.0
#include "engine/takeover.h"

#include <string.h>

/* The member still exists when end() is called: its session is freed only at the end of a batch on
 * this ring. */
static void end_deliver(struct ring *ring, struct ring_message *message)
{
	struct takeover_member *member = container_of(message, struct takeover_member, end_message);

	pthread_mutex_lock(&member->takeover->lock);
	member->end_posted = false;
	pthread_mutex_unlock(&member->takeover->lock);
	member->end(member);
}

static void takeover_wake_deliver(struct ring *ring, struct ring_message *message)
{
	struct takeover_member *member =
		container_of(message, struct takeover_member, wake_message);

	pthread_mutex_lock(&member->takeover->lock);
	member->wake_posted = false;
	pthread_mutex_unlock(&member->takeover->lock);
	member->wake(member);
}

/* Returns another member with this token and the same principal, or NULL. *found_out: see enum
 * takeover_found. */
static struct takeover_member *takeover_find(const struct takeover *takeover,
	const struct takeover_member *self, const uint8_t *token, uint32_t bytes,
	enum takeover_found *found_out)
{
	struct takeover_member *member = takeover->members;

	*found_out = TAKEOVER_NOBODY;
	for (; member != NULL; member = member->next) {
		/* One that waits for this member ends it, and must not be ended by it. */
		if (member == self || member->waits_for == self || member->token_bytes != bytes ||
			memcmp(member->token, token, bytes) != 0) {
			continue;
		}
		if (memcmp(&member->principal, &self->principal, sizeof(self->principal)) == 0) {
			*found_out = TAKEOVER_OWN;
			break;
		}
		*found_out = TAKEOVER_OTHERS;
	}
	return member;
}

void takeover_join(struct takeover *takeover, struct takeover_member *member, const uint8_t *token,
	uint32_t bytes)
{
	if (member->joined || (member->takeover != NULL && member->takeover != takeover)) {
		return;
	}
	GMB_ASSERT(bytes <= TAKEOVER_TOKEN_BYTES_MAX);
	pthread_mutex_lock(&takeover->lock);
	member->takeover = takeover;
	member->joined = true;
	memcpy(member->token, token, bytes);
	member->token_bytes = bytes;
	member->next = takeover->members;
	takeover->members = member;
	pthread_mutex_unlock(&takeover->lock);
}

/* Posted only once, even if several members replace the old one. Called with the lock held. */
static void post_end(struct takeover_member *member)
{
	if (!member->end_posted) {
		member->end_posted = true;
		member->end_message.deliver = end_deliver;
		ring_post(member->ring, &member->end_message);
	}
}

void takeover_enter(struct takeover *takeover, struct takeover_member *member)
{
	if (member->takeover == NULL) {
		member->takeover = takeover;
	}
}

void takeover_end(struct takeover_member *member)
{
	pthread_mutex_lock(&member->takeover->lock);
	post_end(member);
	pthread_mutex_unlock(&member->takeover->lock);
}

enum takeover_found takeover_replace(struct takeover *takeover, struct takeover_member *member,
	const uint8_t *token, uint32_t bytes)
{
	enum takeover_found found;
	struct takeover_member *old;

	if (member->takeover != NULL && member->takeover != takeover) {
		return TAKEOVER_NOBODY;
	}
	pthread_mutex_lock(&takeover->lock);
	if (member->waits_for != NULL || member->wake_posted) {
		pthread_mutex_unlock(&takeover->lock);
		return TAKEOVER_OWN; /* wake() follows; its message must not be posted twice */
	}
	old = takeover_find(takeover, member, token, bytes, &found);
	if (old != NULL) {
		/* Set even if the member has no token: takeover_give_up() uses it to find the
		 * group's lock. */
		member->takeover = takeover;
		member->waits_for = old;
		member->next_waiter = old->waiters;
		old->waiters = member;
		post_end(old);
	}
	pthread_mutex_unlock(&takeover->lock);
	return found;
}

bool takeover_has(struct takeover *takeover, const char *token, uint32_t bytes)
{
	const struct takeover_member *member;

	pthread_mutex_lock(&takeover->lock);
	member = takeover->members;
	while (member != NULL &&
		(member->token_bytes != bytes || memcmp(member->token, token, bytes) != 0)) {
		member = member->next;
	}
	pthread_mutex_unlock(&takeover->lock);
	return member != NULL;
}

void takeover_give_up(struct takeover_member *member)
{
	if (member->takeover == NULL) {
		return;
	}
	pthread_mutex_lock(&member->takeover->lock);
	if (member->waits_for != NULL) {
		struct takeover_member **at = &member->waits_for->waiters;

		while (*at != member) {
			at = &(*at)->next_waiter;
		}
		*at = member->next_waiter;
		member->waits_for = NULL;
	}
	pthread_mutex_unlock(&member->takeover->lock);
}

void takeover_leave(struct takeover_member *member)
{
	struct takeover_member **at;

	if (!member->joined) {
		return;
	}
	pthread_mutex_lock(&member->takeover->lock);
	member->joined = false;
	at = &member->takeover->members;
	while (*at != member) {
		at = &(*at)->next;
	}
	*at = member->next;
	while (member->waiters != NULL) {
		struct takeover_member *waiter = member->waiters;

		member->waiters = waiter->next_waiter;
		waiter->waits_for = NULL;
		/* Set and posted under the lock, which takeover_may_go() also takes. So the waiter
		 * is not freed before the message is delivered. */
		waiter->wake_posted = true;
		waiter->wake_message.deliver = takeover_wake_deliver;
		ring_post(waiter->ring, &waiter->wake_message);
	}
	pthread_mutex_unlock(&member->takeover->lock);
}

bool takeover_may_go(struct takeover_member *member)
{
	bool may;

	if (member->takeover == NULL) {
		return true;
	}
	pthread_mutex_lock(&member->takeover->lock);
	may = !member->end_posted && !member->wake_posted;
	pthread_mutex_unlock(&member->takeover->lock);
	return may;
}
