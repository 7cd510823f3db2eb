// SPDX-License-Identifier: Apache-2.0
/*
 * Writes to a file whose server takes whole blocks only. The kernel writes any bytes; the blocks at
 * both ends are read first and written back with the new bytes in them:
 *
 *        begin   offset                       offset + length    end
 *          |--head--|=========payload==================|--tail---|
 *
 * Between the reading and the writing nobody else may write these blocks, or his bytes would be
 * undone: a write with edges excludes all that overlap, and waits for those under way. Where any
 * byte can be written (a smallest block of 1) nothing of this happens.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attach/fuse.h"
#include "base/bytes.h"

static bool overlaps(const struct fuse_slot *a, const struct fuse_slot *b)
{
	return a->begin < b->end && b->begin < a->end && (a->exclusive || b->exclusive);
}

/* True when the slot must wait: for a write in flight, or for one that waits before it. */
static bool must_wait(struct fuse_slot *slot, const struct list_node *waiting_end)
{
	struct fuse_file *file = slot->file;

	list_for_each(node, &file->ranges)
	{
		if (overlaps(slot, list_entry(node, struct fuse_slot, range_node))) {
			return true;
		}
	}
	for (struct list_node *node = file->waiting.next; node != waiting_end; node = node->next) {
		if (overlaps(slot, list_entry(node, struct fuse_slot, node))) {
			return true;
		}
	}
	return false;
}

static void submit_step(struct fuse_slot *slot);

/* Lets those go that waited for a write which is over. */
static void release_range(struct fuse_slot *slot)
{
	struct fuse_file *file = slot->file;

	list_remove(&slot->range_node);
	list_for_each(node, &file->waiting)
	{
		struct fuse_slot *other = list_entry(node, struct fuse_slot, node);

		if (!must_wait(other, node)) {
			list_remove(node);
			list_push_back(&file->ranges, &other->range_node);
			submit_step(other);
		}
	}
}

static void answer(struct fuse_slot *slot)
{
	int result = slot->request.result;

	if (result < 0) {
		remote_log_failure(&slot->file->remote, &slot->request);
	}
	release_range(slot);
	if (result < 0) {
		fuse_slot_fail(slot, result);
		return;
	}
	if (slot->payload != NULL) {
		fuse.reply_write(slot->req, slot->length);
	} else {
		fuse.reply_err(slot->req, 0);
	}
	fuse_slot_put(slot);
}

static void step_done(struct gmb_request *request)
{
	struct fuse_slot *slot = request->context;

	if (request->result < 0 || slot->step == FUSE_STEP_PLAIN || slot->step == FUSE_STEP_BODY) {
		answer(slot);
		return;
	}
	slot->step++;
	submit_step(slot);
}

/* The request for the slot's step. A step that has nothing to do is passed over. */
static void submit_step(struct fuse_slot *slot)
{
	uint64_t block = slot->file->block;
	struct gmb_request *request = &slot->request;
	char *tail = slot->exclusive ? slot->buffer + (slot->end - block - slot->begin) : NULL;

	if (slot->step == FUSE_STEP_HEAD && slot->begin == slot->offset) {
		slot->step = FUSE_STEP_TAIL;
	}
	/* One block at both ends was read as the head. */
	if (slot->step == FUSE_STEP_TAIL &&
		(slot->end == slot->offset + slot->length ||
			(slot->end - slot->begin == block && slot->begin != slot->offset))) {
		slot->step = FUSE_STEP_BODY;
	}
	request->done = step_done;
	request->context = slot;
	switch (slot->step) {
	case FUSE_STEP_PLAIN:
		if (slot->payload != NULL) {
			gmb_prepare_write(request, slot->payload, slot->length, slot->offset);
		}
		break;
	case FUSE_STEP_HEAD:
		gmb_prepare_read(request, slot->buffer, block, slot->begin);
		break;
	case FUSE_STEP_TAIL:
		gmb_prepare_read(request, tail, block, slot->end - block);
		break;
	case FUSE_STEP_BODY:
		memcpy(slot->buffer + (slot->offset - slot->begin), slot->payload, slot->length);
		gmb_prepare_write(request, slot->buffer, slot->end - slot->begin, slot->begin);
		break;
	}
	gmb_submit(slot->file->remote.client, request);
}

static void start(struct fuse_slot *slot)
{
	struct fuse_file *file = slot->file;

	slot->begin = align_down(slot->offset, file->block);
	slot->end = align_up(slot->offset + slot->length, file->block);
	slot->exclusive = slot->begin != slot->offset || slot->end != slot->offset + slot->length;
	slot->step = slot->exclusive ? FUSE_STEP_HEAD : FUSE_STEP_PLAIN;
	if (slot->exclusive && fuse_slot_buffer(slot) == NULL) {
		fuse_slot_fail(slot, -ENOMEM);
		return;
	}
	if (file->block > 1 && must_wait(slot, &file->waiting)) {
		list_push_back(&file->waiting, &slot->node);
		return;
	}
	if (file->block > 1) {
		list_push_back(&file->ranges, &slot->range_node);
	}
	submit_step(slot);
}

void fuse_write_start(struct fuse_slot *slot)
{
	GMB_ASSERT(slot->payload != NULL && slot->length > 0);
	start(slot);
}

void fuse_zero_start(struct fuse_slot *slot, uint32_t flags)
{
	GMB_ASSERT(is_aligned(slot->offset | slot->length, slot->file->block));
	slot->payload = NULL;
	gmb_prepare(&slot->request, GMB_ZERO, slot->offset, slot->length);
	slot->request.flags = flags;
	start(slot);
}
