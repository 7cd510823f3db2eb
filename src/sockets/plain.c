// SPDX-License-Identifier: Apache-2.0
/*
 * Calls on tracked connections that are not carried: they are counted and go to the kernel.
 *
 * Invariant: a call in the kernel is counted in plain_readers or plain_writers. The counter is
 * incremented before the state is read, and the state is set before the counters are read
 * (conn_set_state()). So either the call sees CONN_CARRIED, or conn_say_may() and conn_go() see the
 * call.
 */
#include <errno.h>

#include "sockets/sockets.h"

/* Counts reads of an acceptor and writes of a connector. Returns true if conn_advance() must be
 * called before the call continues. */
static bool plain_is_due(struct conn *conn, enum conn_state state, bool writes)
{
	uint32_t next = atomic_load_explicit(&conn->next_look, memory_order_relaxed);

	if (writes != conn->connector) {
		return state == CONN_CONNECTING;
	}
	return atomic_fetch_add_explicit(&conn->calls, 1, memory_order_relaxed) + 1 >= next &&
	       next != UINT32_MAX;
}

/* See sockets.h. The loop repeats if the state has changed in between, for example to
 * CONN_CARRIED. */
enum way plain_enter(int fd, bool writes, struct plain_call *call)
{
	bool tried = false;

	for (;;) {
		struct conn *conn = conn_at(fd);
		_Atomic(uint32_t) *calls;
		enum conn_state state;

		*call = (struct plain_call){ .conn = conn, .writes = writes };
		if (conn == NULL) {
			return WAY_KERNEL;
		}
		state = conn_state(conn);
		if (state == CONN_CARRIED) {
			return WAY_OURS;
		}
		if (!tried && plain_is_due(conn, state, writes)) {
			tried = true;
			if (core_lock()) {
				int saved = errno;

				if (conn_at(fd) == conn) {
					conn_advance(conn);
				}
				core_unlock();
				errno = saved;
			}
			continue;
		}
		calls = writes ? &conn->plain_writers : &conn->plain_readers;
		atomic_fetch_add(calls, 1);
		/* Pairs with conn_set_state(): the state CONN_CARRIED is stored before
		 * conn_say_may() and conn_go() read the counters. */
		state = atomic_load(&conn->state);
		if (conn_at(fd) == conn && state != CONN_CARRIED && state != CONN_FREE) {
			call->entered = true;
			if (writes && conn->compare != NULL) {
				data_asked(conn);
			}
			return WAY_PLAIN;
		}
		atomic_fetch_sub(calls, 1);
	}
}

void plain_leave(struct plain_call *call)
{
	struct conn *conn = call->conn;
	int saved = errno;

	if (!call->entered) {
		return;
	}
	call->entered = false;
	if (call->bytes > 0) {
		atomic_fetch_add_explicit(call->writes ? &conn->side.out : &conn->side.in,
			(uint64_t)call->bytes, memory_order_relaxed);
		if (!call->writes && conn->compare != NULL) {
			data_answered(conn, COMPARE_TCP);
		}
	}
	conn_count_off(call->writes ? &conn->plain_writers : &conn->plain_readers);
	/* If the connection has moved to CONN_CARRIED during the call, the last read in the kernel
	 * sends MAY when it ends. Only then may the peer write to the ring. */
	if (!call->writes && atomic_load(&conn->state) == CONN_CARRIED && core_lock()) {
		conn_say_may(conn);
		core_unlock();
	}
	errno = saved;
}
