// SPDX-License-Identifier: Apache-2.0
/*
 * Payload transfer for clients whose memory is not mapped (docs/protocol/gmb.md §3.3). Data read
 * from the disk is put into the client's regions as it arrives, in any order. Data to be written is
 * fetched from the regions into server memory, and written to the disk as it arrives.
 *
 *   read:   path_next_fragment() ─▶ clan_put() ... DONE ─▶ path_fragment_sent()
 *   write:  path_write_open()    ─▶ clan_get() ... DONE ─▶ path_write_submit()
 *
 * A move (struct native_move) transfers one run of bytes. It uses one put or get for each segment
 * of the request that the run covers.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gmb/server/session.h"

int native_mover_create(struct native_session *session)
{
	struct native_mover *mover = calloc(1, sizeof(*mover));

	if (mover == NULL) {
		return -ENOMEM;
	}
	list_init(&mover->idle);
	list_init(&mover->busy);
	list_init(&mover->waiting);
	for (uint32_t i = 0; i < NATIVE_MOVES_MAX; i++) {
		list_push_back(&mover->idle, &mover->moves[i].node);
	}
	session->mover = mover;
	return 0;
}

static bool gmb_move_has_room(const struct native_mover *mover)
{
	return !list_is_empty(&mover->idle) && mover->busy_bytes < NATIVE_MOVE_BYTES_MAX;
}

static void gmb_move_fail(struct native_session *session, int status)
{
	char reason[160];

	if (status == -ESTALE || status == -EACCES || status == -ERANGE || status == -ENOENT) {
		native_session_fail(
			session, "G18: a cookie does not permit the access that the request needs");
	} else if (status != -ENOTCONN) { /* otherwise an event reports the reason */
		snprintf(reason, sizeof(reason), "cannot access the client's memory: %s",
			strerror(-status));
		session_terminate(&session->base, reason);
	}
}

/* Registers the slab that contains the memory of a put or get, so that a network card transfers the
 * bytes without a system call. If that fails, libclan registers the memory of each put and get
 * separately. */
static void slab_use(struct native_service *service, struct mem_region *memory)
{
	struct native_slab *slabs;

	if (memory == NULL || (memory->rights & MEM_NIC) != 0 || service->slabs_refused) {
		return;
	}
	slabs = realloc(service->slabs, (service->slab_count + 1) * sizeof(*slabs));
	if (slabs != NULL) {
		struct native_slab *slab = &slabs[service->slab_count];

		service->slabs = slabs;
		slab->memory = memory;
		if (clan_region_register(
			    service->base.queue, memory->base, memory->bytes, &slab->region) == 0) {
			memory->rights |= MEM_NIC;
			service->slab_count++;
			return;
		}
	}
	service->slabs_refused = true;
}

void native_slabs_forget(struct native_service *service)
{
	for (uint32_t i = 0; i < service->slab_count; i++) {
		int result = clan_region_destroy(service->slabs[i].region);

		GMB_ASSERT(result == 0);
		service->slabs[i].memory->rights &= ~(uint32_t)MEM_NIC;
	}
	free(service->slabs);
}

/* Returns the segment that contains the byte at offset, and its position in it. */
static uint32_t find_segment(
	const struct native_request *request, uint64_t offset, uint64_t *within_out)
{
	uint64_t within = offset - request->path.offset;
	uint32_t i = 0;

	while (within >= request->far_segments[i].bytes) {
		within -= request->far_segments[i++].bytes;
	}
	*within_out = within;
	return i;
}

/* Starts the put or get of a piece; CLAN_EVENT_DONE reports its end. */
static int carry_piece(struct native_move *move, const struct native_wire_segment *segment,
	uint64_t within, struct iovec piece)
{
	struct native_session *session = move->request->session;
	const struct clan_cookie *cookie = &session->regions[segment->region].cookie;
	uint64_t at = segment->offset + within;

	return move->stream != NULL ? clan_get(session->conn, &piece, 1, cookie, at, move)
				    : clan_put(session->conn, &piece, 1, cookie, at, 0, 0, move);
}

/* Starts all puts or gets of a move. */
static int gmb_move_carry(struct native_move *move, struct mem_ref memory, uint64_t offset)
{
	struct native_request *request = move->request;
	uint8_t *data = move->stream != NULL ? mem_cpu_write(memory)
					     : (uint8_t *)(uintptr_t)mem_cpu_read(memory);
	uint64_t within;
	uint32_t segment = find_segment(request, offset, &within);

	slab_use(request->session->service, memory.region);
	for (uint32_t begun = 0; begun < move->bytes; segment++, within = 0) {
		const struct native_wire_segment *to = &request->far_segments[segment];
		uint64_t length = MIN(to->bytes - within, (uint64_t)(move->bytes - begun));
		int result = carry_piece(move, to, within,
			(struct iovec){ .iov_base = data + begun, .iov_len = length });

		move->pending++;
		if (result != 0) {
			/* The failed piece stays counted in move->pending, so the pieces in
			 * progress cannot complete the move. native_moves_drop() ends it. */
			return result;
		}
		begun += (uint32_t)length;
	}
	return 0;
}

/* Ends a move after all of its puts or gets have ended. */
static void move_end(struct native_mover *mover, struct native_move *move, bool dropped)
{
	struct native_request *request = move->request;

	mover->busy_bytes -= move->bytes;
	list_remove(&move->node);
	list_push_back(&mover->idle, &move->node);
	request->move_count--;
	if (move->stream == NULL) {
		path_client_sent(
			request->path.client, move->bytes, !list_is_empty(&mover->waiting));
		path_fragment_sent(&move->fragment);
	} else if (dropped || request->path.error != 0) {
		path_write_drop(move->stream);
	} else {
		path_write_submit(move->stream);
	}
}

/* Gets the next consecutive bytes of the request in server memory. Returns false if there are none
 * now. */
static bool next_run(struct native_request *request, struct native_move *move, uint64_t room)
{
	struct path_request *path = &request->path;

	move->stream = NULL;
	if (path->op == STORE_WRITE) {
		move->stream = path_write_open(path);
		move->bytes = move->stream != NULL ? move->stream->length : 0;
		return move->stream != NULL;
	}
	if (path->whole && request->moved_bytes == 0 && path_status(path) == PATH_PENDING &&
		!path_is_stalled(path)) {
		return false;
	}
	if (!path_next_fragment(path, (uint32_t)room, &move->fragment)) {
		return false;
	}
	move->bytes = move->fragment.length;
	return true;
}

void native_request_move(struct native_request *request)
{
	struct native_session *session = request->session;
	struct native_mover *mover = session->mover;

	while (session->base.state != SESSION_TERMINATING && request->path.error == 0 &&
		request->moved_bytes < request->path.length) {
		struct native_move *move;
		int result;

		if (!gmb_move_has_room(mover)) {
			if (!list_is_linked(&request->waiting_node)) {
				list_push_back(&mover->waiting, &request->waiting_node);
			}
			return;
		}
		move = list_entry(list_first(&mover->idle), struct native_move, node);
		if (!next_run(request, move, NATIVE_MOVE_BYTES_MAX - mover->busy_bytes)) {
			return;
		}
		list_remove(&move->node);
		list_push_back(&mover->busy, &move->node);
		move->request = request;
		move->pending = 0;
		mover->busy_bytes += move->bytes;
		request->move_count++;
		request->moved_bytes += move->bytes;
		result = move->stream != NULL
				 ? gmb_move_carry(move, move->stream->memory, move->stream->offset)
				 : gmb_move_carry(
					   move, move->fragment.memory, move->fragment.offset);
		if (result != 0) {
			/* native_moves_drop() ends this transfer when the connection is closed */
			gmb_move_fail(session, result);
			return;
		}
	}
}

bool native_request_is_moved(const struct native_request *request)
{
	return request->move_count == 0 &&
	       (request->path.error != 0 || request->moved_bytes == request->path.length);
}

void native_move_done(struct native_session *session, struct native_move *move, int status)
{
	struct native_mover *mover = session->mover;
	struct native_request *request = move->request;
	struct list_node *node;

	if (status != 0) {
		gmb_move_fail(session, status);
		return;
	}
	session->base.progress_ns = ring_batch_ns(session->base.engine->ring);
	if (--move->pending > 0) {
		return;
	}
	move_end(mover, move, false);
	native_request_look(request);
	while (gmb_move_has_room(mover) && (node = list_pop_front(&mover->waiting)) != NULL) {
		native_request_look(list_entry(node, struct native_request, waiting_node));
	}
}

void native_moves_drop(struct native_session *session)
{
	struct native_mover *mover = session->mover;
	struct list_node *node;

	while ((node = list_first(&mover->busy)) != NULL) {
		move_end(mover, list_entry(node, struct native_move, node), true);
	}
}
