// SPDX-License-Identifier: Apache-2.0
/*
 * Reading and writing of carried connections, whose bytes go through a ring of libclan. Each byte
 * is read from the place that switch.c determines: the buffer, the ring or TCP.
 *
 * Invariant: bytes are counted in side.in and side.out when they are moved, by TCP and by the ring,
 * because the positions of a switch between the two refer to these counts.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum {
	BUFFER_BYTES_FIRST = 65536,
	/* a ring is too small if it was full this many times while at most BULK_BYTES_MAX bytes
	 * were written to it */
	BULK_FULLS = 16,
	BULK_BYTES_MAX = BULK_FULLS * 4 * RULES_RING_DEFAULT,
	BULK_PIECE = RULES_RING_DEFAULT / 4, /* reads of at least this size count as large */
	SENDS_BETWEEN_LOOKS = 256,	     /* writes between checks that cost
						system calls */
	FULL_MS = 20, /* a blocking writer that waits longer for room returns to TCP, whose buffers
			 are larger */
};
#define NS_PER_MS      UINT64_C(1000000)
#define SPINS_AGAIN_NS UINT64_C(2000000000)

/* --- vectors ---------------------------------------------------------------------------------- */

static size_t iov_bytes(const struct iovec *iov, int iov_count)
{
	size_t bytes = 0;

	for (int i = 0; i < iov_count; i++) {
		bytes += MIN(iov[i].iov_len, (size_t)INT32_MAX - bytes);
	}
	return bytes;
}

/* A part of a vector. The structs are static, because callers can have small stacks; the lock
 * protects them. */
struct part {
	struct iovec iov[SOCKETS_IOV_MAX];
	int count;
};
static struct part rest;   /* the unfinished part of a call */
static struct part ranged; /* part of the call's vector up to the position where the stream changes
			      between TCP and ring */

static void data_cut(
	struct part *part, const struct iovec *iov, int iov_count, size_t skip, size_t bytes)
{
	part->count = 0;
	for (int i = 0; i < iov_count && bytes > 0; i++) {
		size_t off = MIN(skip, iov[i].iov_len);
		size_t length = MIN(iov[i].iov_len - off, bytes);

		skip -= off;
		if (length > 0) {
			part->iov[part->count++] = (struct iovec){
				.iov_base = (uint8_t *)iov[i].iov_base + off,
				.iov_len = length,
			};
			bytes -= length;
		}
	}
}

/* --- taking from the ring --------------------------------------------------------------------- */

static void count_in(struct conn *conn, size_t bytes)
{
	atomic_fetch_add_explicit(&conn->side.in, bytes, memory_order_relaxed);
	conn->ring_in += bytes;
	stats->in_bytes += bytes;
	if (conn->row != NULL) {
		conn->row->in_bytes += bytes;
	}
}

/* Reads from the ring, at most up to the position from which the peer's bytes come by TCP again
 * (its SWITCH). Returns a count. The caller must then store the bytes and call conn_try_plain(),
 * because they may be the last of the ring. Returns -EAGAIN if the ring is empty. Returns -EPIPE if
 * the ring has ended or the connection was reset: the caller must determine again where the next
 * byte comes from. */
static ssize_t ring_read(struct conn *conn, const struct iovec *iov, int iov_count)
{
	uint64_t limit;
	ssize_t got;

	if (conn->clan == NULL || switch_place(&conn->side, &limit) != SWITCH_RING) {
		return -EPIPE;
	}
	if (limit < iov_bytes(iov, iov_count)) {
		data_cut(&ranged, iov, iov_count, 0, (size_t)limit);
		got = clan_readv(conn->clan, ranged.iov, (uint32_t)ranged.count, 0);
	} else {
		got = clan_readv(conn->clan, iov, (uint32_t)iov_count, 0);
	}
	if (got > 0) {
		count_in(conn, (size_t)got);
		conn->bulk.in += got >= BULK_PIECE ? (size_t)got : 0;
		return got;
	}
	if (got == -ENOTCONN) {
		/* The ring has ended and all of its data has been read. */
		switch_ring_ended(&conn->side);
		conn->tcp_event = true;
		conn_try_plain(conn);
		return -EPIPE;
	}
	if (got != -EAGAIN) {
		conn_broken(conn, "an unexpected message in the ring");
		return -EPIPE;
	}
	return got;
}

/* Never blocks, because the lock is held. The lock also protects ranged. */
static ssize_t tcp_receive(
	struct conn *conn, const struct iovec *iov, int iov_count, size_t limit, bool peek)
{
	struct msghdr message = { .msg_iov = ranged.iov };
	ssize_t got;

	data_cut(&ranged, iov, iov_count, 0, limit);
	message.msg_iovlen = (size_t)ranged.count;
	got = REAL(recvmsg)(conn->fd, &message, MSG_DONTWAIT | (peek ? MSG_PEEK : 0));
	if (got < 0) {
		return -errno;
	}
	if (!peek) {
		atomic_fetch_add_explicit(&conn->side.in, (uint64_t)got, memory_order_relaxed);
	}
	return got;
}

/* Returns true if TCP has bytes. Does not consume an end or an error. */
static bool tcp_has_bytes(const struct conn *conn)
{
	int bytes = 0;

	return REAL(ioctl)(conn->fd, FIONREAD, &bytes) == 0 && bytes > 0;
}

static bool grow_buffer(struct conn *conn, size_t bytes)
{
	uint8_t *larger = bytes <= SOCKETS_BUFFER_BYTES ? realloc(conn->buffer, bytes) : NULL;

	if (larger != NULL) {
		conn->buffer = larger;
		conn->buffer_bytes = bytes;
	}
	return larger != NULL;
}

/* Reads from the ring, or from TCP if it has bytes that come before those in the ring. */
static ssize_t pull_read(struct conn *conn, const struct iovec *iov)
{
	uint64_t limit;

	if (switch_place(&conn->side, &limit) == SWITCH_RING) {
		return ring_read(conn, iov, 1);
	}
	return limit != UINT64_MAX && tcp_has_bytes(conn)
		       ? tcp_receive(conn, iov, 1, (size_t)MIN(limit, (uint64_t)INT32_MAX), false)
		       : -EAGAIN;
}

void data_pull(struct conn *conn, size_t bytes_max)
{
	ssize_t got;

	if (conn->buffer_at == conn->buffer_end) {
		conn->buffer_at = 0;
		conn->buffer_end = 0;
	}
	do {
		struct iovec iov;

		if (conn->buffer_end >= bytes_max ||
			(conn->buffer_end == conn->buffer_bytes &&
				!grow_buffer(conn,
					MAX(conn->buffer_bytes * 2, (size_t)BUFFER_BYTES_FIRST)))) {
			return;
		}
		iov = (struct iovec){
			.iov_base = conn->buffer + conn->buffer_end,
			.iov_len = conn->buffer_bytes - conn->buffer_end,
		};
		got = pull_read(conn, &iov);
		if (got > 0) {
			conn->buffer_end += (size_t)got;
			conn_touch(conn, TOUCH_IN);
			/* can close the clan connection, but keeps the buffer */
			conn_try_plain(conn);
		}
	} while (got > 0);
}

/* After a fork, another process might have read bytes of the same buffer, so process_take() decides
 * which bytes this one gets. */
static ssize_t buffer_read(struct conn *conn, const struct iovec *iov, int iov_count, bool peek)
{
	size_t bytes = MIN(iov_bytes(iov, iov_count), conn_buffered(conn));
	size_t copied = 0;

	if (!peek) {
		bytes = process_take(conn, bytes);
	}
	for (int i = 0; i < iov_count; i++) {
		size_t length = MIN(iov[i].iov_len, bytes - copied);

		if (length > 0) {
			memcpy(iov[i].iov_base, conn->buffer + conn->buffer_at + copied, length);
			copied += length;
		}
	}
	if (!peek) {
		conn->buffer_at += copied;
		conn_try_plain(conn);
	}
	return (ssize_t)copied;
}

/* --- comparing with TCP ----------------------------------------------------------------------- */

void data_asked(struct conn *conn)
{
	if (atomic_load_explicit(&conn->asked_ns, memory_order_relaxed) == 0) {
		atomic_store_explicit(&conn->asked_ns, clock_now_ns(), memory_order_relaxed);
	}
}

void data_answered(struct conn *conn, enum compare_place place)
{
	uint64_t asked_ns = atomic_exchange_explicit(&conn->asked_ns, 0, memory_order_relaxed);
	struct compare *compare = conn->compare; /* another thread can set it to NULL */

	if (asked_ns != 0 && compare != NULL) {
		compare_sample(compare, place, asked_ns, clock_now_ns());
	}
}

/* Returns true if this thread has chosen how it waits. Only then are round trips measured. They are
 * also measured in later trials: with a varying load, there is always one. */
static bool has_chosen(void)
{
	return core_spinner.policy.chosen_ns != 0;
}

static void compare_write(struct conn *conn)
{
	const struct compare *compare = conn->compare;

	if (compare != NULL && compare->settled == 0 && compare->pause == 0 && has_chosen()) {
		data_asked(conn);
	}
}

/* A connection that was on TCP for long is carried again: polling may be better by now, for example
 * because another program has ended. Returns true at the first read. */
static bool spin_again(struct conn *conn)
{
	bool is_first = conn->spins_again;

	conn->spins_again = false;
	if (is_first && clock_now_ns() - core_spinner.policy.chosen_ns > SPINS_AGAIN_NS) {
		wait_policy_retry(&core_spinner.policy);
	}
	return is_first;
}

/* Called after a read of data from the ring. Returns the connections of the group to TCP if that is
 * faster, or in order to find that out. */
static void compare_read(struct conn *conn)
{
	struct clan_conn_stats clan = { .size = sizeof(clan) };
	struct compare_costs costs = { .sleeps = core.sleeps, .reads = ++core.reads };
	struct compare *compare = conn->compare;
	enum compare_verdict verdict;

	if (compare == NULL) {
		return;
	}
	if (conn->clan == NULL || conn->side.out_place != SWITCH_OUT_RING ||
		!compare_is_due(compare) || !has_chosen() || spin_again(conn)) {
		/* The current round trip and the wake-ups so far do not count later either. */
		atomic_store_explicit(&conn->asked_ns, 0, memory_order_relaxed);
		conn->bells = UINT64_MAX;
		return;
	}
	clan_conn_get_stats(conn->clan, &clan);
	data_answered(conn, COMPARE_RING);
	verdict =
		compare_judge(compare, &costs, clan.bells_rung - MIN(conn->bells, clan.bells_rung));
	conn->bells = clan.bells_rung;
	if (verdict != COMPARE_GOES_ON) {
		conn_leave_group(compare, verdict == COMPARE_SLOW ? REASON_SLOW : REASON_COMPARE);
	}
}

/* --- receiving -------------------------------------------------------------------------------- */

/* Returns the number of bytes that can be read from TCP, 0 at the end of the stream, or a negative
 * errno (-EAGAIN: there are no bytes). Called before the peer's messages are processed. If these
 * contain no GO, the peer had not used the ring when the bytes were counted, so they come next in
 * the stream. Bytes that arrive later might come after bytes in the ring, because the peer might
 * have used the ring and returned to TCP. */
static ssize_t tcp_before_look(struct conn *conn)
{
	int bytes = 0;
	uint8_t byte;
	ssize_t got = REAL(recv)(conn->fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT);

	if (got > 0 && REAL(ioctl)(conn->fd, FIONREAD, &bytes) == 0) {
		got = MAX(bytes, 1);
	}
	return got < 0 ? -errno : got;
}

/* The ring is empty: checks TCP. Returns 0 for the end, -EAGAIN if there is no data, 1 if there are
 * bytes that should not be there, or another negative errno. */
static ssize_t tcp_behind_ring(struct conn *conn)
{
	uint8_t byte;
	ssize_t got;

	if (!conn->tcp_event) {
		return -EAGAIN;
	}
	got = REAL(recv)(conn->fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT);
	got = got < 0 ? -errno : got;
	conn->tcp_event = got != -EAGAIN;
	return got;
}

/* Returns the result of a read from an empty ring. tcp_said: the result of tcp_behind_ring(). Bytes
 * in TCP break the protocol, because the peer has sent no message that announces them. */
static ssize_t ring_is_empty(struct conn *conn, ssize_t tcp_said)
{
	if (tcp_said > 0) {
		conn_broken(conn,
			"bytes arrived by TCP instead of the ring: the program at the other "
			"end uses calls that cannot be intercepted; remove the rule for it");
		return -ECONNRESET;
	}
	return tcp_said;
}

/* Copies for MSG_PEEK: the bytes in the buffer, then those that follow in the ring and in TCP. */
static ssize_t peek_all(struct conn *conn, const struct iovec *iov, int iov_count)
{
	size_t total = iov_bytes(iov, iov_count);
	size_t done = 0;
	uint64_t limit;
	ssize_t got = 0;

	if (conn_buffered(conn) < total) {
		data_pull(conn, SOCKETS_LOOK_BYTES);
	}
	done = (size_t)buffer_read(conn, iov, iov_count, true);
	if (done < total && switch_place(&conn->side, &limit) == SWITCH_TCP &&
		tcp_has_bytes(conn)) {
		struct msghdr message = { .msg_iov = ranged.iov };

		data_cut(&ranged, iov, iov_count, done, total - done);
		message.msg_iovlen = (size_t)ranged.count;
		got = REAL(recvmsg)(conn->fd, &message, MSG_DONTWAIT | MSG_PEEK);
	}
	return (ssize_t)done + MAX(got, 0);
}

/* Returns true if a read from the ring would not wait, but return bytes or an error. */
static bool ring_has_bytes(struct conn *conn)
{
	uint8_t byte;
	struct iovec iov = { .iov_base = &byte, .iov_len = sizeof(byte) };
	ssize_t got = clan_readv(conn->clan, &iov, 1, CLAN_READ_PEEK);

	if (got == -ENOTCONN) {
		switch_ring_ended(&conn->side);
		conn->tcp_event = true;
		conn_try_plain(conn);
		return false;
	}
	return got != -EAGAIN;
}

/* Returns true if a read can end before it has all available bytes: at the end of the buffer, or at
 * the position where the stream changes between TCP and the ring. */
static bool is_bounded(struct conn *conn)
{
	uint64_t limit;

	(void)switch_place(&conn->side, &limit);
	return conn_buffered(conn) > 0 || limit != UINT64_MAX;
}

/* Returns true if more bytes can be read without waiting and without reaching an end or an
 * error. */
static bool has_more(struct conn *conn)
{
	uint64_t limit;

	if (!conn_is_carried(conn)) {
		return tcp_has_bytes(conn);
	}
	return conn_buffered(conn) > 0 ||
	       (switch_place(&conn->side, &limit) == SWITCH_RING
			       ? conn->clan != NULL && ring_has_bytes(conn)
			       : tcp_has_bytes(conn));
}

/* One attempt, in CONN_CARRIED and with the lock. Returns a count or a negative errno. flags:
 * MSG_PEEK, MSG_TRUNC. Alternates between the ring and TCP: when one is empty, the events of
 * libclan are processed, which can show that the next byte is in the other. */
static ssize_t data_receive(struct conn *conn, const struct iovec *iov, int iov_count, int flags)
{
	bool peek = (flags & MSG_PEEK) != 0;
	int looks = 0; /* number of times that the ring or TCP was empty */
	ssize_t tcp_said = -EAGAIN;

	for (;;) {
		uint64_t limit;
		ssize_t got;

		if (conn_buffered(conn) > 0) {
			got = peek ? peek_all(conn, iov, iov_count)
				   : buffer_read(conn, iov, iov_count, false);
			if (got > 0 || conn_buffered(conn) > 0) {
				return got;
			} /* another process has read the buffer */
		}
		if (conn->stranded) {
			return -ECONNRESET;
		}
		if (switch_may_turn(&conn->side) && conn->clan != NULL) {
			got = tcp_before_look(conn);
			core_look(true);
			if (switch_may_turn(&conn->side) && conn->clan != NULL) {
				return got > 0 ? tcp_receive(
							 conn, iov, iov_count, (size_t)got, peek)
					       : got;
			}
			continue;
		}
		if (switch_place(&conn->side, &limit) == SWITCH_TCP) {
			if (peek && limit != UINT64_MAX) {
				/* A peek can cover bytes in the ring and in TCP, so the ring's
				 * bytes go to the buffer first. */
				data_pull(conn, SOCKETS_LOOK_BYTES);
				if (conn_buffered(conn) > 0) {
					continue;
				}
			}
			got = tcp_receive(conn, iov, iov_count,
				(size_t)MIN(limit, (uint64_t)INT32_MAX), peek);
			if (got > 0 && !peek) {
				conn_try_plain(conn);
			}
			if ((got != 0 && got != -EAGAIN) || conn->clan == NULL || looks++ > 0) {
				return got;
			}
			core_look(got == 0);
			continue;
		}
		if (peek) {
			data_pull(conn, SOCKETS_LOOK_BYTES);
			got = conn_buffered(conn) > 0 ? 1 : -EAGAIN;
		} else {
			got = ring_read(conn, iov, iov_count);
		}
		if (got > 0 && !peek) {
			conn_try_plain(conn);
			return got;
		}
		if (got != -EAGAIN || switch_place(&conn->side, &limit) == SWITCH_TCP) {
			continue;
		}
		if (looks == 2) {
			return ring_is_empty(conn, tcp_said);
		}
		if (looks == 1) {
			tcp_said = tcp_behind_ring(conn);
			if (tcp_said == -EAGAIN) {
				return -EAGAIN;
			}
		}
		looks++;
		core_look(looks == 2);
	}
}

/* --- sending ---------------------------------------------------------------------------------- */

static ssize_t tcp_send(struct conn *conn, const struct iovec *iov, int iov_count)
{
	struct msghdr message = {
		.msg_iov = (struct iovec *)(uintptr_t)iov,
		.msg_iovlen = (size_t)iov_count,
	};
	ssize_t sent = REAL(sendmsg)(conn->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (sent < 0) {
		return -errno;
	}
	atomic_fetch_add_explicit(&conn->side.out, (uint64_t)sent, memory_order_relaxed);
	return sent;
}

/* Counts writes that found too little room. If this happens repeatedly within few bytes, the
 * connection is limited by the two wake-ups that each full ring costs, of the reader and of the
 * writer. So the connection returns to TCP, and gets larger rings later. */
static void count_full(struct conn *conn)
{
	struct conn_bulk *bulk = &conn->bulk;

	if (bulk->on || core.rules.ring_bytes != 0 || ++bulk->fulls < BULK_FULLS) {
		return;
	}
	if (conn->ring_out - bulk->fulls_from <= (uint64_t)BULK_BYTES_MAX) {
		conn_leave(conn, REASON_BULK);
		return;
	}
	bulk->fulls = 0;
	bulk->fulls_from = conn->ring_out;
}

bool data_grows(struct conn *conn)
{
	struct conn_bulk *bulk = &conn->bulk;

	/* The peer might have requested the return because its ring to us was full, which we do not
	 * see. So the conditions are weaker than in count_full(): half as many full rings, or most
	 * bytes were received by large reads. */
	if (bulk->on || core.rules.ring_bytes != 0 ||
		(bulk->fulls < BULK_FULLS / 2 &&
			(bulk->in < RULES_RING_DEFAULT || bulk->in < conn->ring_in / 2))) {
		return false;
	}
	bulk->on = true;
	return true;
}

/* Checks for events before a write, because a program that only writes makes no other calls that
 * check. Messages are processed before each write: after a SWITCH of the peer, no further bytes may
 * be written to the ring. The descriptors, which show that a peer was killed, are checked every
 * SENDS_BETWEEN_LOOKS writes. */
static void look_before_send(struct conn *conn)
{
	conn_take_messages(conn);
	if (++conn->sends >= SENDS_BETWEEN_LOOKS) {
		conn->sends = 0;
		core_look(true);
	}
}

/* Like data_receive(). Processes the messages of the peer first, because a SWITCH of the peer moves
 * our writes back to TCP. */
static ssize_t data_send(struct conn *conn, const struct iovec *iov, int iov_count)
{
	ssize_t sent;

	if (conn->stranded) {
		return -ECONNRESET;
	}
	look_before_send(conn);
	conn_go(conn);
	if (conn->side.out_place != SWITCH_OUT_RING || conn->clan == NULL) {
		return tcp_send(conn, iov, iov_count);
	}
	sent = clan_writev(conn->clan, iov, (uint32_t)iov_count);
	if (sent > 0) {
		clan_flush(conn->clan);
		atomic_fetch_add_explicit(&conn->side.out, (uint64_t)sent, memory_order_relaxed);
		conn->ring_out += (uint64_t)sent;
		stats->out_bytes += (uint64_t)sent;
		if (conn->row != NULL) {
			conn->row->out_bytes += (uint64_t)sent;
		}
		if ((size_t)sent < iov_bytes(iov, iov_count)) {
			count_full(conn);
		}
		return sent;
	}
	conn->out_full = sent == -EAGAIN; /* until READY, which core_look() might process now */
	core_look(false);
	if (sent == -EAGAIN && conn->side.out_place == SWITCH_OUT_RING) {
		return -EAGAIN;
	}
	/* The peer has ended, or has requested the return to TCP. */
	conn->side.out_place = SWITCH_OUT_LEFT;
	return tcp_send(conn, iov, iov_count);
}

/* --- conditions for poll() -------------------------------------------------------------------- */

/* See sockets.h. The TCP socket is polled only if its state can matter: writes go to TCP, an event
 * was reported, or reads come from TCP. */
short data_ready(struct conn *conn)
{
	uint64_t limit;
	bool ring_in = switch_place(&conn->side, &limit) == SWITCH_RING && conn->clan != NULL;
	struct pollfd tcp = { .fd = conn->fd };
	bool ring_out;
	short ready = 0;

	if (conn->stranded) {
		return POLLIN | POLLOUT | POLLERR | POLLHUP;
	}
	if (conn_buffered(conn) > 0 || (ring_in && ring_has_bytes(conn))) {
		ready |= POLLIN;
	}
	if ((ready == 0 && !ring_in) || conn->tcp_event) {
		tcp.events |= POLLIN | POLLRDHUP | POLLPRI;
	}
	ring_out = conn->side.out_place == SWITCH_OUT_RING && conn->clan != NULL;
	if (!ring_out) {
		tcp.events |= POLLOUT;
	} else if (!conn->out_full) {
		ready |= POLLOUT;
	}
	if (tcp.events != 0) {
		(void)REAL(poll)(&tcp, 1, 0);
		/* TCP's end of the connection is reported even if the ring has bytes, just as TCP
		 * reports it while bytes are unread. */
		ready |= tcp.revents;
	}
	if ((tcp.events & POLLIN) != 0 &&
		(tcp.revents & (POLLIN | POLLRDHUP | POLLHUP | POLLERR)) == 0) {
		conn->tcp_event = false;
	}
	return ready;
}

/* --- complete calls --------------------------------------------------------------------------- */

/* After EINTR: returns true if all installed signal handlers, except those of crash signals, have
 * SA_RESTART. */
static bool data_restarts(void)
{
	for (int number = 1; number < NSIG; number++) {
		struct sigaction action;

		/* Crash signals are skipped: a sleeping thread does not cause them. */
		if (signals_is_crash(number)) {
			continue;
		}
		if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL &&
			action.sa_handler != SIG_IGN && (action.sa_flags & SA_RESTART) == 0) {
			return false;
		}
	}
	return true;
}

/* Returns the time at which a blocking call ends; 0: never. */
static uint64_t deadline_of(uint64_t limit_ns)
{
	return limit_ns == 0 ? 0 : clock_now_ns() + limit_ns;
}

/* Waits in a blocking call. *deadline_ns: UINT64_MAX until it is computed. Returns 0 to continue,
 * or -EAGAIN or -EINTR to end the call. */
static int data_wait_for(struct conn *conn, short events, uint64_t limit_ns, uint64_t *deadline_ns)
{
	int result;

	if (*deadline_ns == UINT64_MAX) {
		*deadline_ns = deadline_of(limit_ns);
	}
	result = wait_conn(conn, events, *deadline_ns);
	return result == -EINTR && *deadline_ns == 0 && data_restarts() ? 0 : result;
}

static void count_op(struct conn *conn)
{
	if (core.rules.switch_every != 0 && ++conn->ops % core.rules.switch_every == 0) {
		conn_leave(conn, REASON_ASKED);
	}
}

static short in_events(const struct conn *conn)
{
	uint64_t limit;

	return switch_place(&conn->side, &limit) == SWITCH_TCP || conn->clan == NULL ? POLLIN : 0;
}

/* recv() of 0 bytes waits for data without consuming it. */
static ssize_t receive_nothing(struct conn *conn)
{
	return (data_ready(conn) & (POLLIN | POLLHUP | POLLERR)) != 0 ? 0 : -EAGAIN;
}

/* Returns true if a peek cannot get more bytes by waiting. */
static bool peek_has_ended(struct conn *conn)
{
	return conn->buffer_end >= SOCKETS_LOOK_BYTES ||
	       (data_ready(conn) & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* Called when a read returned less than requested. Programs take such a read as a sign that the
 * connection is empty, and wait for the next edge of an epoll set. But libclan reports new bytes
 * only after a read has found the ring empty. So if there are more bytes, the waiting threads are
 * woken here. */
static void meet_end(struct conn *conn)
{
	if (!list_is_empty(&conn->members) && atomic_load(&core.sleepers) > 0 && has_more(conn)) {
		core_changed();
	}
}

/* The complete receive call. It ends after the first bytes, unless MSG_WAITALL is set, or more
 * bytes can be read elsewhere (buffer, ring or TCP) without waiting. */
ssize_t data_recv(
	struct conn *conn, const struct iovec *iov, int iov_count, int flags, bool *plain_out)
{
	size_t total = iov_bytes(iov, iov_count);
	bool peek = (flags & MSG_PEEK) != 0;
	bool peek_ends = false;
	uint64_t deadline_ns = UINT64_MAX;
	size_t done = 0; /* bytes received; a peek starts again from 0 */
	ssize_t got = 0;
	int saved = errno;

	pthread_testcancel();
	*plain_out = false;
	if (!core_lock()) {
		return -EINTR;
	}
	count_op(conn);
	for (;;) {
		bool bounded = is_bounded(conn);

		if (!conn_is_carried(conn) && (done == 0 || peek)) {
			*plain_out = true;
			break;
		}
		if (conn_state(conn) ==
			CONN_FREE) { /* another thread has left the connection to the kernel */
			break;
		}
		if (total == 0) {
			got = receive_nothing(conn);
		} else if (done == 0 || peek) {
			got = data_receive(conn, iov, iov_count, flags);
		} else {
			data_cut(&rest, iov, iov_count, done, total - done);
			got = data_receive(conn, rest.iov, rest.count, flags);
		}
		if (got > 0) {
			core_spinner.requests += done == 0;
			conn_touch(conn, TOUCH_READ);
			done = peek ? (size_t)got : done + (size_t)got;
			if (done == total || peek_ends ||
				((flags & MSG_WAITALL) == 0 &&
					(peek || !bounded || !has_more(conn)))) {
				break;
			}
			if (peek) {
				/* More bytes might have arrived before the end, so the peek is
				 * repeated. */
				peek_ends = peek_has_ended(conn);
				got = peek_ends ? got : -EAGAIN;
			}
		}
		if (got == 0 && done == 0) {
			conn_touch(conn, TOUCH_READ);
		}
		if (got == 0 || (got < 0 && got != -EAGAIN)) {
			break;
		}
		if (got > 0) {
			continue;
		}
		if (conn->nonblocking || (flags & MSG_DONTWAIT) != 0) {
			break;
		}
		/* Peeked bytes keep the TCP socket readable, so polling it would not wait for
		 * further bytes. */
		got = data_wait_for(conn, peek && done > 0 ? 0 : in_events(conn), conn->in_limit_ns,
			&deadline_ns);
		if (got != 0) {
			break;
		}
	}
	if (done > 0 && !peek && conn_is_carried(conn)) {
		compare_read(conn);
	}
	if (done > 0 && done < total && conn_is_carried(conn)) {
		meet_end(conn);
	}
	core_unlock();
	errno = saved; /* like the kernel; the caller sets errno for an error */
	return done > 0 ? (ssize_t)done : got;
}

/* Sends all bytes, or the bytes that a non-blocking send accepts. The caller holds the lock, which
 * is released during waits. Returns 0, or the negative errno that ended the send. *done_out: number
 * of bytes sent. If 0 is returned with fewer bytes than requested, the connection has left the ring
 * or was freed. */
static int send_locked(
	struct conn *conn, const struct iovec *iov, int iov_count, int flags, size_t *done_out)
{
	size_t total = iov_bytes(iov, iov_count);
	uint64_t deadline_ns = UINT64_MAX;
	uint64_t full_ns = 0;
	size_t done = 0;
	ssize_t sent = 0;

	while (done < total && (conn_is_carried(conn) || done > 0) &&
		conn_state(conn) != CONN_FREE) {
		if (done == 0) {
			sent = data_send(conn, iov, iov_count);
		} else {
			data_cut(&rest, iov, iov_count, done, total - done);
			sent = data_send(conn, rest.iov, rest.count);
		}
		if (sent >= 0) {
			done += (size_t)sent;
			full_ns = 0;
			continue;
		}
		if (sent != -EAGAIN || conn->nonblocking || (flags & MSG_DONTWAIT) != 0) {
			break;
		}
		if (conn->side.out_place == SWITCH_OUT_RING) {
			/* out_full is false again: READY, which does not come twice, has already
			 * been processed. So the write is repeated instead of waiting. */
			if (!conn->out_full) {
				sent = 0;
				continue;
			}
			full_ns = full_ns == 0 ? clock_now_ns() + FULL_MS * NS_PER_MS : full_ns;
			sent = wait_conn(conn, 0, full_ns);
			if (sent == -EAGAIN) {
				/* TCP has more room, so the writer need not wait for its reader. */
				conn_leave(conn, REASON_FULL);
				sent = 0;
			}
		} else {
			sent = data_wait_for(conn, POLLOUT, conn->out_limit_ns, &deadline_ns);
		}
		/* As in the kernel, a send with a timeout is not restarted. */
		if (sent == -EINTR && conn->out_limit_ns == 0 && data_restarts()) {
			sent = 0;
		}
		if (sent != 0) {
			break;
		}
	}
	*done_out = done;
	return sent < 0 ? (int)sent : 0;
}

static ssize_t data_sent_all(size_t done, int result, int flags)
{
	if (done > 0) {
		return (ssize_t)done;
	}
	if (result == -EPIPE && (flags & MSG_NOSIGNAL) == 0) {
		raise(SIGPIPE);
	}
	return result;
}

/* The cancellation point comes before the lock, because a thread must not be cancelled while it
 * holds it. */
ssize_t data_sendv(
	struct conn *conn, const struct iovec *iov, int iov_count, int flags, bool *plain_out)
{
	size_t done = 0;
	int result = 0;
	int saved = errno;

	pthread_testcancel();
	*plain_out = false;
	if (!core_lock()) {
		return -EINTR;
	}
	count_op(conn);
	if (conn_is_carried(conn)) {
		compare_write(conn);
		result = send_locked(conn, iov, iov_count, flags, &done);
	}
	*plain_out = done == 0 && result == 0;
	core_unlock();
	errno = saved;
	return data_sent_all(done, result, flags);
}
