// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <gmblock/gmblock.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "client/hub.h"

enum { EVENTS_MAX = 64 };

/* If there is no memory for the new pages of a tainted buffer, the hub tries again after this
 * time. */
#define RETRY_NS UINT64_C(100000000)

_Static_assert((int)HUB_COMMAND_BYTES_MAX <= (int)HUB_POOL_BYTES, "every command can be staged");

static struct hub *hub_of(struct queue_part *part)
{
	return container_of(part, struct hub, part);
}

/* --- the clan queue on the queue's ring ------------------------------------------------------ */

static int hub_source_poll(struct ring_source *source)
{
	struct hub *hub = container_of(source, struct hub, source);
	struct clan_event events[EVENTS_MAX];
	struct list_node hungry;
	struct list_node *node;
	int count = clan_queue_wait(hub->clan, events, EVENTS_MAX, 0);

	GMB_ASSERT(count >= 0);
	list_init(&hungry);
	while ((node = list_pop_front(&hub->hungry)) != NULL) {
		/* a user that is added again during this loop waits for the next iteration */
		list_push_back(&hungry, node);
	}
	for (int i = 0; i < count; i++) {
		struct hub_user *user = events[i].context;

		user->ops->event(user, &events[i]);
	}
	while ((node = list_pop_front(&hungry)) != NULL) {
		struct hub_user *user = list_entry(node, struct hub_user, hungry_node);

		user->ops->take(user);
		count++;
	}
	if (hub->reclaim_pending) {
		hub_reclaim(hub);
	}
	return count;
}

/* Arms the clan queue, which then wakes the ring when a message arrives. Returns whether the ring
 * may sleep: the queue is armed, and all received messages have been processed. */
static bool hub_source_arm(struct ring_source *source)
{
	struct hub *hub = container_of(source, struct hub, source);

	return list_is_empty(&hub->hungry) && clan_queue_arm(hub->clan) == 0;
}

static void hub_source_removed(struct ring_source *source)
{
	container_of(source, struct hub, source)->is_removed = true;
}

void hub_start(struct hub *hub)
{
	if (!hub->is_polled) {
		hub->is_polled = true;
		hub->source.poll = hub_source_poll;
		hub->source.arm = hub_source_arm;
		hub->source.fd = clan_queue_fd(hub->clan);
		ring_source_add(hub->ring, &hub->source);
	}
}

static void hub_destroy(struct queue_part *part)
{
	struct hub *hub = hub_of(part);
	int result;

	GMB_ASSERT(list_is_empty(&hub->users));
	if (hub->is_polled) {
		ring_source_remove(hub->ring, &hub->source, hub_source_removed);
	}
	ring_cancel(hub->ring, &hub->retry_op);
	while ((hub->is_polled && !hub->is_removed) || hub->retry_op.in_flight) {
		(void)ring_turn(hub->ring, true);
	}
	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		result = clan_region_destroy(hub->buffers[i].region);
		GMB_ASSERT(result == 0);
	}
	result = clan_queue_destroy(hub->clan);
	GMB_ASSERT(result == 0);
	free(hub);
}

int hub_get(struct gmb_queue *queue, struct hub **hub_out, struct error *error)
{
	struct queue_part **part = queue_part(queue);
	struct clan_error reason;
	struct hub *hub;
	int result;

	if (*part != NULL) {
		*hub_out = hub_of(*part);
		return 0;
	}
	hub = calloc(1, sizeof(*hub));
	if (hub == NULL) {
		return error_oom(error);
	}
	result = clan_queue_create(NULL, &hub->clan, &reason);
	if (result != 0) {
		free(hub);
		return error_set(error, result, "%s", reason.text);
	}
	hub->part.destroy = hub_destroy;
	hub->queue = queue;
	hub->ring = queue_ring(queue);
	list_init(&hub->users);
	list_init(&hub->hungry);
	*part = &hub->part;
	*hub_out = hub;
	return 0;
}

/* --- buffers --------------------------------------------------------------------------------- */

static int buffer_make(struct hub *hub, uint32_t number, size_t bytes, uint32_t flags)
{
	struct clan_region *region;
	void *base;
	int result = clan_region_create(hub->clan, bytes, flags, &region, &base);

	if (result == 0) {
		hub->buffers[number] =
			(struct hub_buffer){ .region = region, .base = base, .bytes = bytes };
	}
	return result;
}

static int buffer_import(struct hub *hub, uint32_t number, int memfd, uint64_t offset, size_t bytes)
{
	struct clan_region *region;
	void *base;
	int result = clan_region_import(hub->clan, memfd, offset, bytes, &region, &base);

	if (result == 0) {
		hub->buffers[number] = (struct hub_buffer){
			.region = region, .base = base, .bytes = bytes, .imported = true
		};
	}
	return result;
}

static bool hub_holds(const struct hub_buffer *buffer, const void *address, size_t bytes)
{
	uintptr_t offset = (uintptr_t)address - (uintptr_t)buffer->base;

	return buffer->region != NULL && !buffer->freeing &&
	       (uintptr_t)address >= (uintptr_t)buffer->base &&
	       range_inside(offset, bytes, buffer->bytes);
}

/* Returns the buffer that contains all these bytes, or NULL. */
static struct hub_buffer *hub_find(struct hub *hub, const void *address, size_t bytes)
{
	struct hub_buffer *last = &hub->buffers[hub->last_found];

	if (hub_holds(last, address, bytes)) {
		return last;
	}
	for (uint32_t i = HUB_POOL + 1; i < HUB_BUFFERS_MAX; i++) {
		if (hub_holds(&hub->buffers[i], address, bytes)) {
			hub->last_found = i;
			return &hub->buffers[i];
		}
	}
	return NULL;
}

/* Returns the queue's hub, and the number of a free buffer slot. */
static int buffer_slot(
	struct gmb_queue *queue, struct hub **hub_out, uint32_t *number_out, struct error *error)
{
	uint32_t number = HUB_POOL + 1;
	int result = hub_get(queue, hub_out, error);

	while (result == 0 && number < HUB_BUFFERS_MAX &&
		(*hub_out)->buffers[number].region != NULL) {
		number++;
	}
	if (number == HUB_BUFFERS_MAX) {
		return error_set(
			error, -ENOSPC, "a queue has at most %d buffers", HUB_BUFFERS_MAX - 1);
	}
	*number_out = number;
	return result;
}

int gmb_buffer_alloc(struct gmb_queue *queue, size_t bytes, uint32_t flags, void **base_out,
	struct gmb_error *error_out)
{
	size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	struct error error = { 0 };
	struct hub *hub;
	uint32_t number;
	int result;

	if (bytes == 0 || bytes > SIZE_MAX - page_bytes ||
		(flags & ~(uint32_t)GMB_BUFFER_HUGE) != 0) {
		result = error_set(&error, -EINVAL,
			"a buffer needs at least one byte, and flags of 0 or GMB_BUFFER_HUGE");
		goto out;
	}
	result = buffer_slot(queue, &hub, &number, &error);
	if (result != 0) {
		goto out;
	}
	result = buffer_make(hub, number, align_up(bytes, page_bytes),
		(flags & GMB_BUFFER_HUGE) != 0 ? CLAN_REGION_HUGE : 0);
	if (result != 0) {
		error_set(&error, result, "no memory for a buffer of %zu bytes: %s", bytes,
			strerror(-result));
		goto out;
	}
	*base_out = hub->buffers[number].base;
out:
	if (result != 0) {
		error_export(error_out, &error);
	}
	return result;
}

int gmb_buffer_import(struct gmb_queue *queue, int memfd, uint64_t offset, size_t bytes,
	void **base_out, struct gmb_error *error_out)
{
	struct error error = { 0 };
	struct hub *hub;
	uint32_t number;
	int result = buffer_slot(queue, &hub, &number, &error);

	if (result == 0) {
		result = buffer_import(hub, number, memfd, offset, bytes);
		if (result == 0) {
			*base_out = hub->buffers[number].base;
			return 0;
		}
		error_set(&error, result, "%s",
			result == -EPERM ? "cannot import the descriptor: it must be a memfd "
					   "sealed with F_SEAL_SHRINK and F_SEAL_GROW"
			: result == -EINVAL
				? "offset and bytes must be whole pages inside the memfd"
				: strerror(-result));
	}
	error_export(error_out, &error);
	return result;
}

void gmb_buffer_free(struct gmb_queue *queue, void *base)
{
	struct queue_part *part = *queue_part(queue);
	struct hub_buffer *buffer = NULL;

	if (base == NULL) {
		return;
	}
	GMB_ASSERT(part != NULL);
	buffer = hub_find(hub_of(part), base, 1);
	GMB_ASSERT(buffer != NULL && buffer->base == base);
	buffer->freeing = true;
	hub_reclaim(hub_of(part));
}

/* --- the pool -------------------------------------------------------------------------------- */

int hub_pool_make(struct hub *hub)
{
	return hub->buffers[HUB_POOL].region != NULL
		       ? 0
		       : buffer_make(hub, HUB_POOL, HUB_POOL_BYTES, 0);
}

static bool page_is_used(const struct hub *hub, uint32_t page)
{
	return (hub->pool_used[page / 64] >> (page % 64) & 1) != 0;
}

static void hub_mark(struct hub *hub, const struct hub_run *run)
{
	for (uint32_t page = run->page; page < run->page + run->pages; page++) {
		hub->pool_used[page / 64] ^= UINT64_C(1) << (page % 64);
	}
}

/* Allocates consecutive pages of the pool. Returns false if there are not enough now. */
static bool hub_pool_get(struct hub *hub, size_t bytes, struct hub_run *run)
{
	uint32_t wanted = (uint32_t)((bytes + HUB_PAGE_BYTES - 1) / HUB_PAGE_BYTES);
	uint32_t page_count = HUB_POOL_BYTES / HUB_PAGE_BYTES;

	run->page = 0;
	run->pages = 0;
	for (uint32_t page = 0; page < page_count && run->pages < wanted; page++) {
		if (page % 64 == 0 && hub->pool_used[page / 64] == UINT64_MAX) {
			page += 63;
			run->pages = 0;
		} else if (page_is_used(hub, page)) {
			run->pages = 0;
		} else {
			run->page = run->pages == 0 ? page : run->page;
			run->pages++;
		}
	}
	if (run->pages < wanted) {
		run->pages = 0;
		return false;
	}
	hub_mark(hub, run);
	return true;
}

void hub_pool_put(struct hub *hub, struct hub_run *run)
{
	hub_mark(hub, run);
	run->pages = 0;
}

/* --- replacing and freeing buffers ------------------------------------------------------------ */

void hub_taint(struct hub *hub, uint32_t buffers)
{
	for (; buffers != 0; buffers &= buffers - 1) {
		struct hub_buffer *buffer = &hub->buffers[__builtin_ctz(buffers)];

		buffer->tainted = !buffer->imported;
		hub->reclaim_pending = true;
	}
}

bool hub_is_tainted(const struct hub *hub, uint32_t buffers)
{
	for (; buffers != 0; buffers &= buffers - 1) {
		if (hub->buffers[__builtin_ctz(buffers)].tainted) {
			return true;
		}
	}
	return false;
}

static void hub_retry_done(struct ring_op *op, int result)
{
	hub_reclaim(container_of(op, struct hub, retry_op));
}

/* Returns whether a connection shares the buffer. If the buffer is tainted, ends the connections
 * that share it. If it is being freed, withdraws it from the servers. */
static bool hub_is_shared(struct hub *hub, uint32_t number)
{
	bool shared = false;

	list_for_each(node, &hub->users)
	{
		struct hub_user *user = list_entry(node, struct hub_user, node);

		shared |= user->ops->shares(user, number, hub->buffers[number].tainted);
		if (hub->buffers[number].freeing) {
			user->ops->unshare(user, number);
		}
	}
	return shared;
}

/* Gives new pages to a tainted buffer, or frees a buffer, unless a connection still shares it.
 * Returns false if this has to be tried again. */
static bool reclaim_one(struct hub *hub, uint32_t number)
{
	struct hub_buffer *buffer = &hub->buffers[number];
	/* The contents of the pool need not be preserved: when a command is resent, its data is
	 * copied into the pool again. */
	const struct clan_range all = { .bytes = buffer->bytes };
	int result;

	if (buffer->region == NULL || (!buffer->tainted && !buffer->freeing)) {
		return true;
	}
	if (hub_is_shared(hub, number)) {
		return false;
	}
	if (buffer->freeing) {
		result = clan_region_destroy(buffer->region);
		GMB_ASSERT(result == 0);
		buffer->region = NULL;
		return true;
	}
	result = clan_region_replace(buffer->region, &all, number == HUB_POOL ? 1 : 0);
	if (result != 0) {
		/* There is no memory for fresh pages, perhaps only for a while. The commands wait
		 * until there is memory, because the old server may still write their data into
		 * the old pages. */
		if (!hub->retry_op.in_flight) {
			ring_timer(hub->ring, &hub->retry_op, RETRY_NS, hub_retry_done);
		}
		return false;
	}
	buffer->tainted = false;
	return true;
}

static void reclaim_all(struct hub *hub)
{
	bool is_complete = true;

	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		is_complete &= reclaim_one(hub, i);
	}
	hub->reclaim_pending = !is_complete;
	list_for_each(node, &hub->users)
	{
		struct hub_user *user = list_entry(node, struct hub_user, node);

		user->ops->step(user);
	}
}

void hub_reclaim(struct hub *hub)
{
	hub->reclaim_pending = true;
	if (hub->reclaiming) {
		/* a callback of reclaim_all() has called this function */
		if (!hub->retry_op.in_flight) {
			ring_defer(hub->ring, &hub->retry_op, 0, hub_retry_done);
		}
		return;
	}
	hub->reclaiming = true;
	reclaim_all(hub);
	hub->reclaiming = false;
}

/* --- a command's memory ----------------------------------------------------------------------- */

bool hub_next_piece(struct hub_pieces *pieces, struct iovec *piece)
{
	while (pieces->left > 0) {
		const struct iovec *iov = &pieces->command->iov[pieces->idx++];
		uint64_t skipped = MIN(pieces->skip, (uint64_t)iov->iov_len);

		pieces->skip -= skipped;
		if (iov->iov_len > skipped) {
			piece->iov_base = (uint8_t *)iov->iov_base + skipped;
			piece->iov_len = (size_t)MIN(iov->iov_len - skipped, pieces->left);
			pieces->left -= piece->iov_len;
			return true;
		}
	}
	return false;
}

void hub_copy(const struct command *command, uint8_t *run, bool to_run)
{
	struct hub_pieces pieces = hub_pieces_of(command);
	struct iovec piece;

	while (hub_next_piece(&pieces, &piece)) {
		if (to_run) {
			memcpy(run, piece.iov_base, piece.iov_len);
		} else {
			memcpy(piece.iov_base, run, piece.iov_len);
		}
		run += piece.iov_len;
	}
}

static enum hub_access place_own(struct hub_placement *placement)
{
	const struct command *command = placement->command;
	struct hub *hub = placement->hub;
	struct hub_pieces pieces = hub_pieces_of(command);
	struct iovec piece;

	placement->buffers = 0;
	while (hub_next_piece(&pieces, &piece)) {
		struct hub_buffer *buffer = hub_find(hub, piece.iov_base, piece.iov_len);
		enum hub_access access;
		uint32_t number;

		if (buffer == NULL || (buffer->imported && command->operation == GMB_READ &&
					      !placement->fills_imported)) {
			return HUB_ACCESS_NEVER;
		}
		number = (uint32_t)(buffer - hub->buffers);
		access = placement->user->ops->share(placement->user, number);
		if (access != HUB_ACCESS_YES) {
			return access;
		}
		if (!placement->put(placement, number,
			    (uintptr_t)piece.iov_base - (uintptr_t)buffer->base, piece.iov_len,
			    placement->buffers == 0)) {
			return HUB_ACCESS_NEVER;
		}
		placement->buffers |= BIT(number);
	}
	return HUB_ACCESS_YES;
}

static bool place_in_pool(struct hub_placement *placement)
{
	const struct command *command = placement->command;
	struct hub_user *user = placement->user;
	struct hub *hub = placement->hub;
	enum hub_access access;
	bool fits;

	if (hub_pool_make(hub) != 0) {
		user->ops->fail(user, -ENOMEM,
			"not enough memory to stage payload in memory that the server can access");
		return false;
	}
	access = user->ops->share(user, HUB_POOL);
	if (access == HUB_ACCESS_NEVER) {
		user->ops->fail(user, -ENOMEM, "the server does not map the memory of this client");
	}
	if (access != HUB_ACCESS_YES || !hub_pool_get(hub, command->length, placement->staged)) {
		return false;
	}
	if (command->operation == GMB_WRITE) {
		hub_copy(command, hub_pool_address(hub, placement->staged), true);
		placement->carrier->moved_bytes += command->length;
	}
	fits = placement->put(placement, HUB_POOL,
		(uint64_t)placement->staged->page * HUB_PAGE_BYTES, command->length, true);
	GMB_ASSERT(fits); /* because of facts.payload_max */
	placement->buffers = BIT(HUB_POOL);
	return true;
}

bool hub_place(struct hub_placement *placement)
{
	enum hub_access access = place_own(placement);

	return access == HUB_ACCESS_NEVER ? place_in_pool(placement) : access == HUB_ACCESS_YES;
}

void hub_unstage(struct hub *hub, struct carrier *carrier, const struct command *command,
	struct hub_run *run)
{
	if (run->pages > 0 && command->operation == GMB_READ && command->result == 0) {
		hub_copy(command, hub_pool_address(hub, run), false);
		carrier->moved_bytes += command->length;
	}
	hub_pool_put(hub, run);
}
