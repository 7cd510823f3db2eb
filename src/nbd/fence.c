// SPDX-License-Identifier: Apache-2.0
#include "nbd/fence.h"

#include <string.h>

static void end_deliver(struct ring *ring, struct ring_message *message)
{
	struct fence_member *member = container_of(message, struct fence_member, end_message);

	GMB_UNUSED(ring);
	pthread_mutex_lock(&member->fence->lock);
	member->end_posted = false;
	pthread_mutex_unlock(&member->fence->lock);
	member->end(member);
}

static void wake_deliver(struct ring *ring, struct ring_message *message)
{
	struct fence_member *member = container_of(message, struct fence_member, wake_message);

	GMB_UNUSED(ring);
	pthread_mutex_lock(&member->fence->lock);
	member->wake_posted = false;
	pthread_mutex_unlock(&member->fence->lock);
	member->wake(member);
}

static struct fence_member *find(const struct fence *fence, const uint8_t *token, uint32_t bytes)
{
	struct fence_member *member = fence->members;

	while (member != NULL &&
		(member->token_bytes != bytes || memcmp(member->token, token, bytes) != 0)) {
		member = member->next;
	}
	return member;
}

void fence_join(
	struct fence *fence, struct fence_member *member, const uint8_t *token, uint32_t bytes)
{
	if (member->joined || (member->fence != NULL && member->fence != fence)) {
		return;
	}
	GMB_ASSERT(bytes <= FENCE_TOKEN_BYTES_MAX);
	pthread_mutex_lock(&fence->lock);
	member->fence = fence;
	member->joined = true;
	memcpy(member->token, token, bytes);
	member->token_bytes = bytes;
	member->next = fence->members;
	fence->members = member;
	pthread_mutex_unlock(&fence->lock);
}

bool fence_replace(
	struct fence *fence, struct fence_member *member, const uint8_t *token, uint32_t bytes)
{
	struct fence_member *old;

	GMB_ASSERT(member->waits_for == NULL);
	if (member->fence != NULL && member->fence != fence) {
		return false;
	}
	pthread_mutex_lock(&fence->lock);
	old = find(fence, token, bytes);
	if (old == member) {
		old = NULL;
	}
	if (old != NULL) {
		member->fence = fence;
		member->waits_for = old;
		member->next_waiter = old->waiters;
		old->waiters = member;
		if (!old->end_posted) {
			old->end_posted = true;
			old->end_message.deliver = end_deliver;
			ring_post(old->ring, &old->end_message);
		}
	}
	pthread_mutex_unlock(&fence->lock);
	return old != NULL;
}

void fence_give_up(struct fence_member *member)
{
	if (member->fence == NULL) {
		return;
	}
	pthread_mutex_lock(&member->fence->lock);
	if (member->waits_for != NULL) {
		struct fence_member **at = &member->waits_for->waiters;

		while (*at != member) {
			at = &(*at)->next_waiter;
		}
		*at = member->next_waiter;
		member->waits_for = NULL;
	}
	pthread_mutex_unlock(&member->fence->lock);
}

void fence_leave(struct fence_member *member)
{
	struct fence_member **at;

	if (!member->joined) {
		return;
	}
	pthread_mutex_lock(&member->fence->lock);
	member->joined = false;
	at = &member->fence->members;
	while (*at != member) {
		at = &(*at)->next;
	}
	*at = member->next;
	while (member->waiters != NULL) {
		struct fence_member *waiter = member->waiters;

		member->waiters = waiter->next_waiter;
		waiter->waits_for = NULL;
		waiter->wake_posted = true;
		waiter->wake_message.deliver = wake_deliver;
		ring_post(waiter->ring, &waiter->wake_message);
	}
	pthread_mutex_unlock(&member->fence->lock);
}

bool fence_may_go(struct fence_member *member)
{
	bool may;

	if (member->fence == NULL) {
		return true;
	}
	pthread_mutex_lock(&member->fence->lock);
	may = !member->end_posted && !member->wake_posted;
	pthread_mutex_unlock(&member->fence->lock);
	return may;
}
