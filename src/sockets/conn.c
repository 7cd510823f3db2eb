// SPDX-License-Identifier: Apache-2.0
/*
 * The life of tracked connections: descriptors, the switch back to TCP, events of libclan, and
 * fork.
 *
 * Invariant: a carried connection (its bytes go through rings of libclan) has a clan connection
 * until both directions have switched back to TCP (switch_is_over()). It becomes plain (TCP only)
 * when its buffer is empty as well.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum {
	AFTER_GROWTH = 4,	/* each return to TCP multiplies conn->after by this */
	AFTER_GROWTH_SLOW = 16, /* or by this, if the ring was not faster */
	BRING_BACK_LOOK_MS = 5, /* interval of checks for changes without an event */
	CLOSE_WAIT_MS = 1000,
};

#define NEVER UINT32_MAX

_Atomic(struct object *) sockets_table[SOCKETS_FDS_MAX];
struct object sockets_listener = { .kind = OBJECT_LISTENER };
struct object sockets_other_listener = { .kind = OBJECT_OTHER_LISTENER };

static struct list_node free_conns = { &free_conns, &free_conns };

/* --- states ----------------------------------------------------------------------------------- */

static const uint32_t conn_edges[CONN_STATE_COUNT] = {
	[CONN_FREE] = BIT(CONN_PLAIN),
	[CONN_PLAIN] = BIT(CONN_LISTENING) | BIT(CONN_CONNECTING) | BIT(CONN_FREE),
	[CONN_LISTENING] = BIT(CONN_CONNECTING) | BIT(CONN_PLAIN) | BIT(CONN_FREE),
	[CONN_CONNECTING] = BIT(CONN_CARRIED) | BIT(CONN_PLAIN) | BIT(CONN_FREE),
	[CONN_CARRIED] = BIT(CONN_PLAIN) | BIT(CONN_FREE),
};

void conn_set_state(struct conn *conn, enum conn_state state)
{
	GMB_ASSERT((conn_edges[conn_state(conn)] & BIT(state)) != 0);
	/* Pairs with plain_enter(), which increments plain_readers or plain_writers before it reads
	 * the state. So either the plain call sees the new state, or we see the call in the
	 * counter. */
	atomic_store(&conn->state, state);
}

/* --- descriptors ------------------------------------------------------------------------------ */

void object_add(int fd, struct object *object)
{
	if ((unsigned int)fd < SOCKETS_FDS_MAX) {
		object->refs++;
		core.fds_end = MAX(core.fds_end, fd + 1);
		atomic_store_explicit(&sockets_table[fd], object, memory_order_release);
	}
}

/* Returns another descriptor of the object; -1 if there is none. */
static int other_fd(const struct object *object, int fd)
{
	for (int i = 0; i < core.fds_end; i++) {
		if (i != fd && object_at(i) == object) {
			return i;
		}
	}
	return -1;
}

void conn_watch_tcp(struct conn *conn)
{
	struct epoll_event event = {
		.events = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLET,
		.data.ptr = conn,
	};

	/* A failure (no memory) is ignored: then events of TCP wake only threads that wait for the
	 * socket itself. */
	(void)REAL(epoll_ctl)(core.epoll_fd, EPOLL_CTL_ADD, conn->fd, &event);
}

static void unwatch_tcp(const struct conn *conn)
{
	(void)REAL(epoll_ctl)(core.epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
}

void conn_stop_listening(struct conn *conn)
{
	if (conn->listen_fd >= 0) {
		core_disown(conn->listen_fd);
		REAL(close)(conn->listen_fd);
		conn->listen_fd = -1;
	}
}

static void close_clan(struct conn *conn)
{
	if (conn->clan != NULL) {
		clan_conn_set_context(conn->clan, NULL);
		clan_close(conn->clan);
		conn->clan = NULL;
		conn->offered = false;
	}
}

static void release_row(struct conn *conn)
{
	if (conn->row != NULL) {
		conn->row->used = 0;
		conn->row = NULL;
	}
}

static void end_comparison(struct conn *conn)
{
	if (conn->is_compared) {
		conn->is_compared = false;
		compare_returned(conn->compare);
	}
	/* The round trip during which it has moved belongs to neither place. */
	atomic_store(&conn->asked_ns, 0);
}

/* Releases everything but the memory, which returns to the pool. */
static void conn_free(struct conn *conn)
{
	conn_stop_listening(conn);
	close_clan(conn);
	epoll_fd_closes(conn, -1);
	release_row(conn);
	end_comparison(conn);
	list_remove(&conn->touched_node);
	list_remove(&conn->carried_node);
	free(conn->buffer);
	conn->buffer = NULL;
	conn->buffer_at = 0;
	conn->buffer_end = 0;
	conn->buffer_bytes = 0;
	conn->buffer_shared = false;
	conn_set_state(conn, CONN_FREE);
	list_push_back(&free_conns, &conn->object.pool_node);
}

/* --- messages between the libraries ----------------------------------------------------------- */

static void sockets_conn_say(
	struct conn *conn, enum switch_type type, struct switch_message message)
{
	if (conn->clan != NULL) {
		/* A failure is ignored: the control ring has room for more messages than a
		 * connection sends in its life, and a peer that has ended needs no message. */
		(void)clan_send(conn->clan, CLAN_CONTROL, type, &message, sizeof(message));
		clan_flush(conn->clan);
	}
}

void conn_go(struct conn *conn)
{
	if (switch_can_go(&conn->side) && conn->clan != NULL &&
		atomic_load(&conn->plain_writers) == 0) {
		sockets_conn_say(conn, SWITCH_GO, switch_go(&conn->side));
	}
}

void conn_say_may(struct conn *conn)
{
	if (conn_is_carried(conn) && !conn->side.may_said && conn->clan != NULL &&
		atomic_load(&conn->plain_readers) == 0) {
		conn->side.may_said = true;
		sockets_conn_say(conn, SWITCH_MAY, (struct switch_message){ 0 });
	}
}

static void sockets_conn_leave(struct conn *conn)
{
	struct switch_message message;

	if (switch_leave(&conn->side, &message)) {
		stats->back++;
		sockets_conn_say(conn, conn->is_slow ? SWITCH_BACK_SLOW : SWITCH_BACK, message);
		conn_touch(conn, TOUCH_OUT);
	}
}

/* Called before a descriptor is closed. If it is the last one, the connection ends for this
 * process. */
static void conn_closes(struct conn *conn, int fd)
{
	bool carried = conn_is_carried(conn);

	epoll_fd_closes(conn, fd);
	if (conn->object.refs > 1) {
		if (conn->fd == fd) {
			if (carried) {
				unwatch_tcp(conn);
			}
			conn->fd = other_fd(&conn->object, fd);
			if (carried) {
				conn_watch_tcp(conn);
			}
		}
		return;
	}
	if (!carried) {
		return;
	}
	data_pull(conn, SOCKETS_LOOK_BYTES);
	if (conn_buffered(conn) > 0 && !conn->passed && process_is_sole(conn)) {
		/* The peer gets a reset, because TCP also resets a connection that is closed with
		 * unread bytes. */
		const struct linger reset = { .l_onoff = 1 };

		(void)REAL(setsockopt)(conn->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	}
	unwatch_tcp(conn);
	sockets_conn_leave(conn);
}

/* Removes fd from the table; called before it is closed. The connection is freed with its last
 * descriptor. If fd is in an epoll set and a duplicate stays open, the connection returns to TCP
 * first, which releases the lock. */
void object_remove(int fd)
{
	struct object *object = object_at(fd);

	if (object == NULL) {
		return;
	}
	if (object->kind == OBJECT_CONN) {
		struct conn *conn = conn_of(object);

		if (object->refs > 1 && epoll_has(conn, fd)) {
			/* The kernel reports a closed descriptor in an epoll set while a duplicate
			 * of it is open. The library does not emulate this, so the connection stays
			 * on TCP. */
			if (!conn_is_carried(conn)) {
				conn_forget(conn, REASON_EPOLL);
				return;
			}
			conn_unfit(conn, REASON_EPOLL);
			(void)conn_bring_back_one(conn, REASON_EPOLL, CLOSE_WAIT_MS);
			if (object_at(fd) != object) {
				return; /* another thread has already removed the object */
			}
		}
		conn_closes(conn, fd);
	} else if (object->kind == OBJECT_SET) {
		struct set *set = container_of(object, struct set, object);

		if (object->refs == 1) {
			epoll_set_closes(set);
		} else if (set->fd == fd) {
			set->fd = other_fd(object, fd);
		}
	}
	atomic_store_explicit(&sockets_table[fd], NULL, memory_order_release);
	object->refs--;
	if (object->kind == OBJECT_CONN && object->refs == 0) {
		conn_of(object)->fd = -1;
		process_closes(conn_of(object));
		conn_free(conn_of(object));
		core_look(false); /* processes CLAN_EVENT_CLOSED */
	}
}

void object_replaced(int fd)
{
	struct conn *conn = conn_at(fd);

	if (conn != NULL && conn->fd == fd) {
		conn->fd = other_fd(&conn->object, fd);
	}
	object_remove(fd);
}

/* Returns a connection from the pool, or a new one. Pooled memory is never freed, because other
 * threads can still access it without the lock. */
static struct conn *take_conn(void)
{
	struct conn *conn = NULL;

	list_for_each(node, &free_conns)
	{
		conn = list_entry(node, struct conn, object.pool_node);
		/* A connection is not reused while a call in the kernel still has to decrement one
		 * of its counters. */
		if (atomic_load(&conn->plain_readers) == 0 &&
			atomic_load(&conn->plain_writers) == 0 && atomic_load(&conn->pins) == 0) {
			list_remove(node);
			return conn;
		}
	}
	conn = calloc(1, sizeof(*conn));
	if (conn != NULL) {
		list_init(&conn->object.pool_node);
		list_init(&conn->touched_node);
		list_init(&conn->carried_node);
		list_init(&conn->members);
	}
	return conn;
}

/* See sockets.h. The members are reset, because the object can come from the pool. */
void conn_track(int fd, bool connector)
{
	struct conn *conn;

	if ((unsigned int)fd >= SOCKETS_FDS_MAX || !core_lock()) {
		return;
	}
	object_replaced(fd);
	conn = take_conn();
	if (conn != NULL) {
		stats_start();
		stats->tracked++;
		conn->object.kind = OBJECT_CONN;
		conn->object.refs = 0;
		conn_set_state(conn, CONN_PLAIN);
		atomic_store(&conn->calls, 0);
		atomic_store(&conn->side.in, 0);
		atomic_store(&conn->side.out, 0);
		conn->ring_in = 0;
		conn->ring_out = 0;
		conn->bulk = (struct conn_bulk){ 0 };
		conn->compare = NULL;
		atomic_store(&conn->asked_ns, 0);
		conn->after = core.rules.after;
		atomic_store(&conn->next_look, conn->after);
		conn->connector = connector;
		conn->unmet = false;
		conn->passed = false;
		conn->holders = NULL;
		conn->named = false;
		conn->fd = fd;
		conn->listen_fd = -1;
		conn->kept_fd = -1;
		conn->offered = false;
		conn->touched = 0;
		object_add(fd, &conn->object);
	}
	core_unlock();
}

void conn_forget(struct conn *conn, enum sockets_reason reason)
{
	stats->reasons[REASON_NOBODY] -= conn->unmet;
	conn->unmet = false;
	stats->reasons[reason]++;
	stats_log(false, "descriptor %d remains on TCP: %s", conn->fd, stats_reason_names[reason]);
	conn_untrack(conn);
}

void conn_untrack(struct conn *conn)
{
	int fd = conn->fd;

	GMB_ASSERT(!conn_is_carried(conn));
	while (fd >= 0) {
		atomic_store_explicit(&sockets_table[fd], NULL, memory_order_release);
		fd = --conn->object.refs > 0 ? other_fd(&conn->object, -1) : -1;
	}
	conn_free(conn);
}

/* --- returning to TCP ------------------------------------------------------------------------- */

void conn_leave(struct conn *conn, enum sockets_reason reason)
{
	if (conn->side.out_place != SWITCH_OUT_LEFT) {
		stats->reasons[reason]++;
		stats_log(false, "descriptor %d returns to TCP: %s", conn->fd,
			stats_reason_names[reason]);
		conn->is_slow = reason == REASON_COMPARE || reason == REASON_SLOW;
		sockets_conn_leave(conn);
		conn_try_plain(conn);
	}
}

void conn_leave_group(const struct compare *group, enum sockets_reason reason)
{
	list_for_each(node, &core.carried)
	{
		struct conn *conn = list_entry(node, struct conn, carried_node);

		if (conn->compare == group) {
			conn_leave(conn, reason);
		}
	}
}

void conn_unfit(struct conn *conn, enum sockets_reason reason)
{
	if (conn_is_carried(conn)) {
		conn->after = NEVER;
		conn_leave(conn, reason);
	} else {
		conn_forget(conn, reason);
	}
}

/* Called after every step that can end the use of the ring. The order matters: the clan connection
 * is closed when both directions have returned to TCP, but the state becomes CONN_PLAIN only when
 * the program has read the buffer. */
void conn_try_plain(struct conn *conn)
{
	if (!conn_is_carried(conn) || conn->stranded || !switch_is_over(&conn->side)) {
		return;
	}
	close_clan(conn);
	if (conn_buffered(conn) > 0) {
		return;
	}
	unwatch_tcp(conn);
	list_remove(&conn->carried_node);
	release_row(conn);
	conn_set_state(conn, CONN_PLAIN);
	epoll_conn_plain(conn);
	core_changed(); /* wakes threads that wait for the ring: they must now wait for TCP */
	end_comparison(conn);
	if (conn->after == NEVER || conn->passed) {
		conn->compare = NULL;
		conn_look_again_at(conn, NEVER);
		return;
	}
	if (!data_grows(conn)) {
		conn->after = MIN(
			conn->after * (uint32_t)(conn->is_slow ? AFTER_GROWTH_SLOW : AFTER_GROWTH),
			(uint32_t)RULES_AFTER_MAX);
	}
	atomic_store(&conn->calls, 0);
	conn_look_again_at(conn, conn->bulk.on && !conn->connector ? 1 : conn->after);
}

void conn_broken(struct conn *conn, const char *what)
{
	const struct sockaddr nowhere = { .sa_family = AF_UNSPEC };

	stats->reasons[REASON_BROKEN]++;
	stats_log(true, "descriptor %d is reset: %s", conn->fd, what);
	/* connect() to AF_UNSPEC dissolves the connection: the peer gets a reset, and the program
	 * ECONNRESET. */
	(void)REAL(connect)(conn->fd, &nowhere, sizeof(nowhere));
	conn->buffer_at = 0;
	conn->buffer_end = 0;
	conn->after = NEVER;
	conn->side.out_place = SWITCH_OUT_LEFT;
	switch_ring_ended(&conn->side);
	conn_touch(conn, TOUCH_IN | TOUCH_OUT);
	conn_try_plain(conn);
}

void conn_touch(struct conn *conn, uint32_t what)
{
	conn->touched |= what;
	if (!list_is_empty(&conn->members) && !list_is_linked(&conn->touched_node)) {
		list_push_back(&core.touched, &conn->touched_node);
	}
}

/* --- events of libclan ------------------------------------------------------------------------ */

void conn_take_messages(struct conn *conn)
{
	struct clan_message message;
	struct switch_message payload;

	while (conn->clan != NULL &&
		clan_recv(conn->clan, CLAN_CONTROL, &message, &payload, sizeof(payload)) == 0) {
		int result = message.bytes == sizeof(payload)
				     ? switch_received(&conn->side, message.type, &payload)
				     : -EPROTO;

		core_changed(); /* another thread might be sleeping until this message */
		conn->is_slow = conn->is_slow || message.type == SWITCH_BACK_SLOW;
		if (result < 0) {
			conn_broken(conn, "the library of the peer broke the protocol for "
					  "switching to clan");
			return;
		}
		if (result == 1) {
			stats->reasons[REASON_PEER]++;
			sockets_conn_leave(conn);
			conn_try_plain(conn);
		}
	}
}

/* Processes an event of a connection in CONN_CARRIED. After LOST no message of the peer follows. If
 * the peer has not sent GO, it never used the ring, so all of its bytes come by TCP. */
static void carried_event(struct conn *conn, const struct clan_event *event)
{
	conn_take_messages(conn);
	if (!conn_is_carried(conn)) {
		return;
	}
	if (event->type == CLAN_EVENT_LOST) {
		if (event->status == -EPROTO) {
			conn_broken(conn, clan_conn_reason(conn->clan));
			return;
		}
		conn->lost = true;
		conn->tcp_event = true;
		conn->side.out_place = SWITCH_OUT_LEFT;
		if (conn->side.go_from == SWITCH_NOWHERE) {
			switch_ring_ended(&conn->side);
		}
		conn_try_plain(conn);
	}
	if ((event->ready & CLAN_READY_SEND_BULK) != 0 || event->type == CLAN_EVENT_LOST) {
		conn->out_full = false;
	}
	conn_touch(conn, TOUCH_IN | TOUCH_OUT);
}

void conn_event(const struct clan_event *event)
{
	struct conn *conn = event->context;

	if (conn == NULL || event->conn != conn->clan) { /* abandoned by the library, or CLOSED */
		return;
	}
	core_changed();
	if (conn_is_carried(conn)) {
		carried_event(conn, event);
		return;
	}
	switch (event->type) {
	case CLAN_EVENT_CONNECT:
	case CLAN_EVENT_CONNECTED:
		conn_meet(conn);
		break;
	case CLAN_EVENT_LOST:
		conn_forget(conn, event->status == -ETIMEDOUT ? REASON_NOBODY : REASON_REFUSED);
		break;
	default:
		break;
	}
}

/* --- before fork and exec --------------------------------------------------------------------- */

/* Called for a connection that must return to TCP. Moves the bytes of its ring to its buffer.
 * Returns true if the connection has returned. */
static bool is_back(struct conn *conn)
{
	data_pull(conn, SOCKETS_BUFFER_BYTES);
	conn_try_plain(conn);
	return conn->clan == NULL;
}

static bool all_back(bool (*choose)(struct conn *conn))
{
	bool all = true;

	list_for_each(node, &core.carried)
	{
		struct conn *conn = list_entry(node, struct conn, carried_node);

		all = (!choose(conn) || is_back(conn)) && all;
	}
	return all;
}

static void leave_all(bool (*choose)(struct conn *conn), enum sockets_reason reason)
{
	list_for_each(node, &core.carried)
	{
		struct conn *conn = list_entry(node, struct conn, carried_node);

		if (choose(conn)) {
			conn_leave(conn, reason);
		}
	}
}

void conn_bring_back(
	bool (*choose)(struct conn *conn), enum sockets_reason reason, uint32_t timeout_ms)
{
	uint64_t deadline_ns = clock_now_ns() + timeout_ms * UINT64_C(1000000);

	leave_all(choose, reason);
	if (core.queue == NULL) {
		return;
	}
	core_look(true);
	while (!all_back(choose) && clock_now_ns() < deadline_ns) {
		wait_moment(BRING_BACK_LOOK_MS);
		/* another thread might have moved connections to rings in the meantime */
		leave_all(choose, reason);
	}
}

bool conn_bring_back_one(struct conn *conn, enum sockets_reason reason, uint32_t timeout_ms)
{
	uint64_t deadline_ns = clock_now_ns() + timeout_ms * UINT64_C(1000000);

	conn_leave(conn, reason);
	atomic_fetch_add(&conn->pins, 1); /* prevents reuse of the connection's memory */
	core_look(true);
	while (conn_is_carried(conn) && !is_back(conn) && clock_now_ns() < deadline_ns) {
		wait_moment(BRING_BACK_LOOK_MS);
	}
	conn_count_off(&conn->pins);
	return conn->clan == NULL;
}

/* In the child: calls of other threads, listeners and clan connections do not exist here. Only
 * buffered bytes and TCP remain usable. */
void conn_after_fork(void)
{
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct conn *conn = conn_at(fd);

		if (conn == NULL) {
			continue;
		}
		if (conn->listen_fd >= 0) {
			conn_stop_listening(conn);
		}
		/* Resets the counts of calls: their threads do not exist in the child. */
		atomic_store(&conn->plain_readers, 0);
		atomic_store(&conn->plain_writers, 0);
		atomic_store(&conn->pins, 0);
		conn->offered = false;
		list_init(&conn->touched_node);
		list_init(&conn->carried_node);
		conn->row = NULL;
		conn->unmet = false; /* counted in the parent */
		end_comparison(conn);
		if (conn_is_carried(conn)) {
			/* The other end did not answer before the fork, so the bytes in the ring
			 * belong to the parent. */
			if (conn->clan != NULL) {
				conn->stranded = true;
				conn->buffer_at = conn->buffer_end;
				conn->buffer_shared = false;
			}
			conn->side.out_place = SWITCH_OUT_LEFT;
			switch_ring_ended(&conn->side);
		} else if (conn_state(conn) != CONN_PLAIN) {
			conn_set_state(conn, CONN_PLAIN);
			conn_look_again_at(conn, NEVER);
		}
		conn->clan = NULL;
	}
}
