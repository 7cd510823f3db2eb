// SPDX-License-Identifier: Apache-2.0
/*
 * Copies by helper threads, for memory into which an untrusted peer can punch holes:
 * docs/protocol/clan.md §8.5.
 *
 * A process that can write a memfd can punch holes into it. A thread that touches a page at that
 * time waits until the hole is complete, which can take seconds. So workers make the copies for
 * puts and gets of a wary connection and for clan_region_fetch(). Each ends with CLAN_EVENT_DONE.
 *
 *   shm_copy_begin() ─▶ worker: run_copy() ─▶ shm_copy_copied() ─▶ notification, if wanted ─▶ DONE
 *                                             queue's thread      (waits for room)
 *
 * Ownership: a copy belongs to its connection. While its worker runs, the queue's thread only reads
 * it; it is freed by shm_copy_copied() or later, never before.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clan/shm.h"

/* Bytes copied between two checks for the end of the connection: one page, because the peer can
 * stall the thread at each page. */
enum { STEP_BYTES = 4096 };

struct shm_copy {
	struct list_node node; /* in conn->copies */
	struct clan_source source;
	struct work work;
	struct shm_conn *conn;
	struct shm_copy_order order;
	int status;
	bool ended;	   /* CLAN_EVENT_DONE is pending */
	bool owes_message; /* the notification waits for room */
	uint32_t iov_count;
	struct iovec iov[];
};

static void copy_free(struct shm_copy *copy)
{
	list_remove(&copy->source.node);
	list_remove(&copy->node);
	free(copy);
}

static bool shm_copy_give_done(struct clan_source *source, struct clan_event *event)
{
	struct shm_copy *copy = container_of(source, struct shm_copy, source);

	event->type = CLAN_EVENT_DONE;
	event->conn = &copy->conn->conn;
	event->context = copy->conn->conn.context;
	event->op = copy->order.op;
	event->status = copy->status;
	copy_free(copy);
	return false;
}

/* Copies one part of the vector, on a worker. Stops at the next page if the connection has
 * ended. */
static void shm_copy_part(const struct shm_copy *copy, uint8_t *shared, const struct iovec *part)
{
	uint8_t *own = part->iov_base;

	for (size_t done = 0; done < part->iov_len; done += STEP_BYTES) {
		size_t bytes = MIN(part->iov_len - done, (size_t)STEP_BYTES);

		/* Relaxed suffices, because the flag only ends the copy early. The lock of
		 * queue->results makes the copied bytes visible to the queue's thread. */
		if (atomic_load_explicit(&copy->conn->copies_dropped, memory_order_relaxed)) {
			return;
		}
		if (copy->order.to_shared) {
			memcpy(shared + done, own + done, bytes);
		} else {
			memcpy(own + done, shared + done, bytes);
		}
	}
}

static void run_copy(struct work *work)
{
	struct shm_copy *copy = container_of(work, struct shm_copy, work);
	uint8_t *shared = copy->order.shared;

	for (uint32_t i = 0; i < copy->iov_count; i++) {
		shm_copy_part(copy, shared, &copy->iov[i]);
		shared += copy->iov[i].iov_len;
	}
}

/* Sends the notification of a put, whose bytes have been copied before, and fires DONE. If the ring
 * has no room for the notification, shm_copies_look() calls this function again. */
static void shm_copy_end(struct shm_copy *copy)
{
	struct iovec iov = { .iov_base = &copy->order.value, .iov_len = sizeof(uint32_t) };
	struct shm_conn *conn = copy->conn;
	bool notifies = conn->conn.state == CLAN_OPEN && copy->order.notify;
	bool has_room = notifies && shm_room(conn, SHM_BULK, sizeof(uint32_t));

	/* The state is checked again, because shm_room() ends the connection if the peer broke a
	 * rule. */
	copy->owes_message = notifies && !has_room && conn->conn.state == CLAN_OPEN;
	if (copy->owes_message) {
		(void)shm_no_room(conn, SHM_BULK, sizeof(uint32_t), CLAN_READY_SEND_BULK);
		return;
	}
	if (has_room) {
		shm_put_message(conn, SHM_BULK, SHM_TYPE_NOTIFY, &iov, 1, sizeof(uint32_t));
	} else if (notifies) {
		copy->status = -ENOTCONN;
	}
	copy->ended = true;
	clan_fire(conn->conn.queue, &copy->source);
}

/* Called on the queue's thread when the copy is complete. If the connection was closed during the
 * copy, the copy is freed here, and the close continues. */
static void shm_copy_copied(struct work *work)
{
	struct shm_copy *copy = container_of(work, struct shm_copy, work);
	struct shm_conn *conn = copy->conn;

	conn->copies_running--;
	copy->status = conn->conn.state == CLAN_OPEN ? 0 : -ENOTCONN;
	if (copy->order.peers) {
		shm_busy_ends(conn);
		if (copy->status == 0 && copy->order.to_shared) {
			shm_touched(conn, &copy->order);
		}
		shm_peer_put(&conn->conn, copy->order.region);
	}
	if (conn->conn.state >= CLAN_CLOSING) {
		copy_free(copy);
	} else {
		shm_copy_end(copy);
	}
	shm_conn_join(conn);
}

int shm_copy_begin(struct shm_conn *conn, const struct shm_copy_order *order,
	const struct iovec *iov, uint32_t iov_count)
{
	struct shm_copy *copy = calloc(1, sizeof(*copy) + iov_count * sizeof(*iov));

	if (copy == NULL) {
		return -ENOMEM;
	}
	clan_source_init(&copy->source, shm_copy_give_done);
	list_init(&copy->node);
	copy->conn = conn;
	copy->order = *order;
	copy->iov_count = iov_count;
	if (iov_count > 0) {
		memcpy(copy->iov, iov, iov_count * sizeof(*iov));
	}
	list_push_back(&conn->copies, &copy->node);
	conn->copies_running++;
	copy->work.run = run_copy;
	copy->work.done = shm_copy_copied;
	copy->work.in_doubt = true;
	copy->work.owner = conn->conn.peer.uid;
	work_start(&copy->work, &conn->conn.queue->results);
	return 0;
}

void shm_copies_look(struct shm_conn *conn)
{
	list_for_each(node, &conn->copies)
	{
		struct shm_copy *copy = list_entry(node, struct shm_copy, node);

		if (copy->owes_message) {
			shm_copy_end(copy);
			if (copy->owes_message) {
				return;
			}
		}
	}
}

void shm_copies_lost(struct shm_conn *conn)
{
	list_for_each(node, &conn->copies)
	{
		struct shm_copy *copy = list_entry(node, struct shm_copy, node);

		if (copy->owes_message) {
			copy->owes_message = false;
			copy->status = -ENOTCONN;
			copy->ended = true;
			clan_fire(conn->conn.queue, &copy->source);
		}
	}
}

void shm_copies_drop(struct shm_conn *conn)
{
	atomic_store_explicit(&conn->copies_dropped, true, memory_order_relaxed);
	list_for_each(node, &conn->copies)
	{
		struct shm_copy *copy = list_entry(node, struct shm_copy, node);

		if (copy->ended || copy->owes_message) {
			copy_free(copy);
		}
	}
}

int shm_fetch(struct clan_conn *base, const struct clan_region *region, uint64_t offset, void *to,
	size_t bytes, void *op)
{
	struct shm_conn *conn = shm_conn(base);
	const struct iovec iov = { .iov_base = to, .iov_len = bytes };
	const struct shm_copy_order order = { .shared = region->base + offset, .op = op };

	if (base->is_wary) {
		return shm_copy_begin(conn, &order, &iov, 1);
	}
	memcpy(to, region->base + offset, bytes);
	return 0;
}

void shm_copies_after_fork(struct shm_conn *conn)
{
	list_for_each(node, &conn->copies)
	{
		free(list_entry(node, struct shm_copy, node));
	}
}
