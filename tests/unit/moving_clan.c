// SPDX-License-Identifier: Apache-2.0
/*
 * Linked into a server (--wrap), it makes a network out of libclan's shared memory that cannot map
 * a peer's regions, and whose puts and gets end later, in any order, and never when the connection
 * is closed before. Networks that are so by themselves are left alone.
 */
#include <gmblock/clan_memory.h>
#include <stdbool.h>
#include <stdlib.h>

enum { LATE_MAX = 4096 };

struct late {
	struct clan_conn *conn;
	bool is_put;
	struct iovec iov;
	struct clan_cookie cookie;
	uint64_t offset;
	void *op;
};

/* Of this thread's queue. */
static _Thread_local struct late lates[LATE_MAX];
static _Thread_local uint32_t late_count;
static _Thread_local uint32_t chance = 1;

uint32_t __wrap_clan_conn_caps(const struct clan_conn *conn);
int __wrap_clan_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, uint32_t flags, uint32_t value,
	void *op);
int __wrap_clan_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);
int __wrap_clan_queue_wait(
	struct clan_queue *queue, struct clan_event *events, uint32_t max, int timeout_ms);
int __wrap_clan_queue_arm(struct clan_queue *queue);
void __wrap_clan_close(struct clan_conn *conn);

uint32_t __real_clan_conn_caps(const struct clan_conn *conn);
int __real_clan_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, uint32_t flags, uint32_t value,
	void *op);
int __real_clan_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);
int __real_clan_queue_wait(
	struct clan_queue *queue, struct clan_event *events, uint32_t max, int timeout_ms);
int __real_clan_queue_arm(struct clan_queue *queue);
void __real_clan_close(struct clan_conn *conn);

uint32_t __wrap_clan_conn_caps(const struct clan_conn *conn)
{
	return __real_clan_conn_caps(conn) & ~(uint32_t)CLAN_CAN_MAP;
}

static uint32_t random_below(uint32_t limit)
{
	chance = chance * 1664525 + 1013904223;
	return (chance >> 8) % limit;
}

static int postpone(const struct late *late, uint32_t iov_count)
{
	if (iov_count != 1 || late_count == LATE_MAX) {
		abort();
	}
	lates[late_count++] = *late;
	return 0;
}

static bool is_postponed(const struct clan_conn *conn)
{
	return (__real_clan_conn_caps(conn) & CLAN_CAN_MAP) != 0;
}

int __wrap_clan_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, uint32_t flags, uint32_t value, void *op)
{
	const struct late late = { conn, true, from[0], *cookie, offset, op };

	return is_postponed(conn)
		       ? postpone(&late, from_count)
		       : __real_clan_put(conn, from, from_count, cookie, offset, flags, value, op);
}

int __wrap_clan_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op)
{
	const struct late late = { conn, false, to[0], *cookie, offset, op };

	return is_postponed(conn) ? postpone(&late, to_count)
				  : __real_clan_get(conn, to, to_count, cookie, offset, op);
}

static void end_one(struct clan_event *event)
{
	uint32_t i = random_below(late_count);
	struct late late = lates[i];
	int result;

	lates[i] = lates[--late_count];
	result = late.is_put ? __real_clan_put(late.conn, &late.iov, 1, &late.cookie, late.offset,
				       0, 0, late.op)
			     : __real_clan_get(
				       late.conn, &late.iov, 1, &late.cookie, late.offset, late.op);
	*event = (struct clan_event){
		.type = CLAN_EVENT_DONE,
		.status = result,
		.conn = late.conn,
		.context = clan_conn_context(late.conn),
		.op = late.op,
	};
}

int __wrap_clan_queue_wait(
	struct clan_queue *queue, struct clan_event *events, uint32_t max, int timeout_ms)
{
	uint32_t ending = late_count > 0 ? 1 + random_below(late_count) : 0;
	int count = __real_clan_queue_wait(queue, events, max, ending > 0 ? 0 : timeout_ms);

	for (; ending > 0 && count >= 0 && (uint32_t)count < max; ending--) {
		end_one(&events[count++]);
	}
	return count;
}

int __wrap_clan_queue_arm(struct clan_queue *queue)
{
	return late_count > 0 ? 1 : __real_clan_queue_arm(queue);
}

void __wrap_clan_close(struct clan_conn *conn)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < late_count; i++) {
		if (lates[i].conn != conn) {
			lates[kept++] = lates[i];
		}
	}
	late_count = kept;
	__real_clan_close(conn);
}
