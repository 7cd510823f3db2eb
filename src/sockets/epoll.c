// SPDX-License-Identifier: Apache-2.0
/*
 * Emulation of epoll for carried connections. A member of a carried connection is *managed*: it is
 * removed from the kernel's set, and its events are reported from data_ready(). The kernel's set
 * contains core.epoll_fd instead, which wakes waiting threads. All other members stay in the
 * kernel's set.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sockets/kernel.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum {
	LOOKS_MAX = 32, /* calls that report managed members before the kernel's set is checked */
	BACK_WAIT_MS = 1000,
};
#define LOOK_NS	 UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

/* Conditions that are reported without being requested. */
#define ALWAYS (EPOLLHUP | EPOLLERR)
#define STATES (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLRDNORM | EPOLLWRNORM | ALWAYS)
_Static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLRDHUP == POLLRDHUP &&
		       EPOLLHUP == POLLHUP && EPOLLERR == POLLERR && EPOLLPRI == POLLPRI &&
		       EPOLLRDNORM == POLLRDNORM && EPOLLWRNORM == POLLWRNORM,
	"conditions have one number in poll() and epoll");

static struct list_node free_sets = { &free_sets, &free_sets };

/* --- sets and members ------------------------------------------------------------------------- */

void epoll_track(int fd)
{
	struct set *set;

	if ((unsigned int)fd >= SOCKETS_FDS_MAX || !core_lock()) {
		return;
	}
	object_replaced(fd);
	if (list_is_empty(&free_sets)) {
		set = calloc(1, sizeof(*set));
	} else {
		set = list_entry(list_pop_front(&free_sets), struct set, object.pool_node);
	}
	if (set != NULL) {
		set->object.kind = OBJECT_SET;
		set->object.refs = 0;
		set->fd = fd;
		set->watched = false;
		set->managed = 0;
		set->dozing = 0;
		atomic_store(&set->has_core, false);
		list_init(&set->object.pool_node);
		list_init(&set->members);
		list_init(&set->ready);
		object_add(fd, &set->object);
	}
	core_unlock();
}

static void unmanage(struct member *member)
{
	if (member->managed) {
		member->managed = false;
		list_remove(&member->ready_node);
		member->set->managed--;
	}
}

static void member_free(struct member *member)
{
	unmanage(member);
	list_remove(&member->set_node);
	list_remove(&member->conn_node);
	free(member);
}

void epoll_set_closes(struct set *set)
{
	while (!list_is_empty(&set->members)) {
		member_free(list_entry(list_first(&set->members), struct member, set_node));
	}
	list_push_back(&free_sets, &set->object.pool_node);
}

void epoll_fd_closes(struct conn *conn, int fd)
{
	list_for_each(node, &conn->members)
	{
		struct member *member = list_entry(node, struct member, conn_node);

		if (fd < 0 || member->fd == fd) {
			member_free(member);
		}
	}
}

bool epoll_has(const struct conn *conn, int fd)
{
	list_for_each(node, &conn->members)
	{
		if (list_entry(node, struct member, conn_node)->fd == fd) {
			return true;
		}
	}
	return false;
}

static struct member *find_member(const struct set *set, const struct conn *conn, int fd)
{
	list_for_each(node, &conn->members)
	{
		struct member *member = list_entry(node, struct member, conn_node);

		if (member->set == set && member->fd == fd) {
			return member;
		}
	}
	return NULL;
}

static struct member *add_member(
	struct set *set, struct conn *conn, int fd, const struct epoll_event *event)
{
	struct member *member = calloc(1, sizeof(*member));

	if (member != NULL) {
		member->set = set;
		member->conn = conn;
		member->fd = fd;
		member->event = *event;
		list_init(&member->ready_node);
		list_push_back(&set->members, &member->set_node);
		list_push_back(&conn->members, &member->conn_node);
	}
	return member;
}

/* Adds core.epoll_fd to the set, so that events of rings wake the threads that wait for the set. */
static void add_core(struct set *set)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = core.tag };

	if (!set_has_core(set)) {
		atomic_store(&set->has_core, true);
		(void)REAL(epoll_ctl)(set->fd, EPOLL_CTL_ADD, core.epoll_fd, &event);
		set->core_adds++;
		set->core_epoch = core_wakes(set->dozing);
		set->dozing = 0;
	}
}

/* Adds the member to the ready list, so that the next epoll_wait() checks it. */
static void epoll_make_ready(struct member *member)
{
	member->edge_in = true;
	member->edge_out = true;
	if (!list_is_linked(&member->ready_node) && !member->disabled) {
		list_push_back(&member->set->ready, &member->ready_node);
	}
}

static void manage(struct member *member)
{
	member->managed = true;
	member->set->managed++;
	add_core(member->set);
	epoll_make_ready(member);
	core_changed();
}

bool epoll_conn_fits(struct conn *conn)
{
	list_for_each(node, &conn->members)
	{
		struct member *member = list_entry(node, struct member, conn_node);

		if (member->set->watched ||
			(member->event.events & (EPOLLEXCLUSIVE | EPOLLWAKEUP)) != 0) {
			return false;
		}
	}
	return true;
}

/* Returns true if EPOLLONESHOT has disabled the member, which only the kernel knows. */
static bool is_used_up(const struct member *member)
{
	uint32_t events;

	return (member->event.events & EPOLLONESHOT) != 0 &&
	       kernel_epoll_events(member->set->fd, member->fd, &events) == 0 &&
	       (events & STATES) == 0;
}

void epoll_conn_carried(struct conn *conn)
{
	list_for_each(node, &conn->members)
	{
		struct member *member = list_entry(node, struct member, conn_node);

		member->disabled = is_used_up(member);
		(void)REAL(epoll_ctl)(member->set->fd, EPOLL_CTL_DEL, member->fd, NULL);
		manage(member);
	}
}

void epoll_conn_plain(struct conn *conn)
{
	list_for_each(node, &conn->members)
	{
		struct member *member = list_entry(node, struct member, conn_node);
		struct epoll_event event = member->event;

		unmanage(member);
		if (member->disabled) {
			event.events = EPOLLONESHOT; /* HUP and ERR are still reported, once */
			member->disabled = false;
		}
		(void)REAL(epoll_ctl)(member->set->fd, EPOLL_CTL_ADD, member->fd, &event);
	}
}

/* Returns the conditions that the member reports now; 0 for none. */
static uint32_t report_of(struct member *member)
{
	uint32_t ready = (uint32_t)(uint16_t)data_ready(member->conn);
	uint32_t edges = 0;

	if (!member->managed) {
		return 0; /* data_ready() has returned the connection to TCP */
	}
	ready |= ((ready & EPOLLIN) != 0 ? EPOLLRDNORM : 0) |
		 ((ready & EPOLLOUT) != 0 ? EPOLLWRNORM : 0);
	ready &= member->event.events | ALWAYS;
	if ((member->event.events & EPOLLET) != 0) {
		edges |= member->edge_in ? EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLPRI | ALWAYS
					 : 0;
		edges |= member->edge_out ? EPOLLOUT | EPOLLWRNORM | ALWAYS : 0;
		if ((ready & edges) == 0) {
			ready = 0;
		}
	}
	member->edge_in = false;
	member->edge_out = false;
	return ready;
}

/* Returns true if the member has events to report. Does not change its edges. */
static bool is_ready(struct member *member)
{
	bool in = member->edge_in;
	bool out = member->edge_out;
	bool ready = report_of(member) != 0;

	member->edge_in = in;
	member->edge_out = out;
	return ready;
}

/* --- epoll_ctl() ------------------------------------------------------------------------------ */

/* epoll_ctl() for a connection that uses rings. The kernel's set does not contain it. */
static int control_managed(
	struct set *set, int op, struct conn *conn, int fd, const struct epoll_event *event)
{
	struct member *member = find_member(set, conn, fd);

	switch (op) {
	case EPOLL_CTL_ADD:
		if (member != NULL) {
			return -EEXIST;
		}
		member = add_member(set, conn, fd, event);
		if (member == NULL) {
			return -ENOMEM;
		}
		manage(member);
		return 0;
	case EPOLL_CTL_MOD:
		if (member == NULL) {
			return -ENOENT;
		}
		member->event = *event;
		member->disabled = false;
		epoll_make_ready(member);
		/* Another thread might be sleeping in the set. If the member is ready with its new
		 * events, core.news makes core_unlock() wake that thread. */
		core.news = core.news || is_ready(member);
		return 0;
	case EPOLL_CTL_DEL:
		if (member == NULL) {
			return -ENOENT;
		}
		member_free(member);
		return 0;
	default:
		return -EINVAL;
	}
}

static void record(
	struct set *set, int op, struct conn *conn, int fd, const struct epoll_event *event)
{
	struct member *member = find_member(set, conn, fd);

	if (op == EPOLL_CTL_DEL) {
		if (member != NULL) {
			member_free(member);
		}
	} else if (member != NULL) {
		member->event = *event;
	} else if (add_member(set, conn, fd, event) == NULL) {
		conn_forget(conn, REASON_RESOURCES);
	}
}

static bool is_watched(struct conn *conn)
{
	list_for_each(node, &conn->members)
	{
		if (list_entry(node, struct member, conn_node)->set->watched) {
			return true;
		}
	}
	return false;
}

/* Called when the set has been added to another set. Only the kernel can report events through the
 * other set, so the connections in this one return to TCP. */
static void watch_set(struct set *set)
{
	set->watched = true;
	conn_bring_back(is_watched, REASON_EPOLL, BACK_WAIT_MS);
}

/* epoll_ctl() for a tracked descriptor. Descriptors that are not tracked go to the kernel without
 * the lock. */
int epoll_control(struct set *set, int op, int fd, struct epoll_event *event)
{
	struct object *object = object_at(fd);
	struct conn *conn;
	int result;

	if (object == NULL || (object->kind != OBJECT_CONN && object->kind != OBJECT_SET)) {
		return REAL(epoll_ctl)(set->fd, op, fd, event) == 0 ? 0 : -errno;
	}
	if (!core_lock()) {
		return -EINTR;
	}
	conn = conn_at(fd); /* another thread might have stopped tracking the connection */
	if (op != EPOLL_CTL_DEL && event != NULL && conn != NULL && conn_is_carried(conn) &&
		(set->watched || (event->events & (EPOLLEXCLUSIVE | EPOLLWAKEUP)) != 0)) {
		conn_unfit(conn, REASON_EPOLL);
		(void)conn_bring_back_one(conn, REASON_EPOLL, BACK_WAIT_MS);
		conn = conn_at(fd);
	}
	if (op != EPOLL_CTL_DEL && event == NULL) {
		result = -EFAULT;
	} else if (conn != NULL && conn_is_carried(conn)) {
		result = control_managed(set, op, conn, fd, event);
	} else {
		result = REAL(epoll_ctl)(set->fd, op, fd, event) == 0 ? 0 : -errno;
		if (result == 0 && conn != NULL) {
			record(set, op, conn, fd, event);
		} else if (result == 0 && op == EPOLL_CTL_ADD && set_at(fd) != NULL) {
			watch_set(set_at(fd));
		}
	}
	core_unlock();
	return result;
}

/* --- epoll_wait() ----------------------------------------------------------------------------- */

/* Adds the members of changed connections to the ready lists of their sets. */
static void spread_touches(void)
{
	while (!list_is_empty(&core.touched)) {
		struct conn *conn =
			list_entry(list_pop_front(&core.touched), struct conn, touched_node);
		uint32_t what = conn->touched;

		conn->touched = 0;
		list_for_each(node, &conn->members)
		{
			struct member *member = list_entry(node, struct member, conn_node);

			if (!member->managed || member->disabled) {
				continue;
			}
			member->edge_in |= (what & (TOUCH_READ | TOUCH_IN)) != 0;
			member->edge_out |= (what & TOUCH_OUT) != 0;
			if (!list_is_linked(&member->ready_node)) {
				list_push_back(&member->set->ready, &member->ready_node);
			}
		}
	}
}

/* Returns the events of ready members, each at most once. Level-triggered members stay ready. */
static int epoll_take_ready(struct set *set, struct epoll_event *events, int max)
{
	struct list_node again;
	int count = 0;

	spread_touches();
	list_init(&again);
	while (count < max && !list_is_empty(&set->ready)) {
		struct member *member =
			list_entry(list_pop_front(&set->ready), struct member, ready_node);
		uint32_t ready = report_of(member);

		if (ready == 0) {
			continue;
		}
		events[count].events = ready;
		events[count].data = member->event.data;
		count++;
		if ((member->event.events & EPOLLONESHOT) != 0) {
			member->disabled = true;
		} else if ((member->event.events & EPOLLET) == 0) {
			list_push_back(&again, &member->ready_node);
		}
	}
	list_move_all(&set->ready, &again);
	return count;
}

bool epoll_set_is_ready(struct set *set)
{
	struct pollfd kernel[] = {
		{ .fd = set->fd, .events = POLLIN },
		{ .fd = core.epoll_fd, .events = POLLIN },
	};
	struct list_node *first;

	core_look(true);
	spread_touches();
	for (first = list_first(&set->ready); first != NULL; first = list_first(&set->ready)) {
		struct member *member = list_entry(first, struct member, ready_node);

		if (is_ready(member)) {
			return true;
		}
		list_remove(&member->ready_node);
	}
	/* No managed member is ready. Another member is ready if the kernel's set is readable and
	 * core.epoll_fd, which is also in the set, is not. */
	return REAL(poll)(kernel, ARRAY_COUNT(kernel), 0) > 0 && kernel[0].revents != 0 &&
	       kernel[1].revents == 0;
}

/* Removes the events of core.epoll_fd from the array. After a fork the set can also contain the
 * parent's core.epoll_fd, which has the same tag. Returns true if there were any. */
static bool epoll_remove_own(struct epoll_event *events, int *count)
{
	bool found = false;

	for (int i = *count - 1; i >= 0 && core.tag != 0; i--) {
		if (events[i].data.u64 == core.tag) {
			events[i] = events[--*count];
			found = true;
		}
	}
	return found;
}

/* Checks the kernel's set without waiting. */
static int look_at_kernel(struct set *set, struct epoll_event *events, int max)
{
	int count = REAL(epoll_wait)(set->fd, events, max, 0);

	set->looks = 0;
	if (count > 0 && epoll_remove_own(events, &count)) {
		core_look(true);
	}
	return MAX(count, 0);
}

/* Returns true if the kernel's set must be checked now, because it was not checked for LOOKS_MAX
 * calls or LOOK_NS. Otherwise managed members that are always ready would starve the others. */
static bool kernel_is_due(struct set *set)
{
	struct timespec now;
	uint64_t now_ns;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now); /* no system call (vDSO) */
	now_ns = (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
	if (++set->looks < LOOKS_MAX && now_ns - set->looked_ns < LOOK_NS) {
		return false;
	}
	set->looked_ns = now_ns;
	return true;
}

int epoll_wait_in_kernel(int fd, struct epoll_event *events, int max,
	const struct timespec *timeout, const sigset_t *mask)
{
	int count = timeout == NULL ? REAL(epoll_pwait)(fd, events, max, -1, mask)
				    : REAL(epoll_pwait2)(fd, events, max, timeout, mask);

	return count < 0 ? -errno : count;
}

/* Sleeps in the program's set, which contains core.epoll_fd. Returns the number of the program's
 * own events, 0 to check again, or a negative errno. */
static int sleep_in_kernel(struct set *set, struct epoll_event *events, int max,
	uint64_t deadline_ns, const sigset_t *mask)
{
	struct timespec left = wait_left(deadline_ns);
	struct core_sleep sleep = { 0 };
	int count = core_sleep(&sleep.epoch);

	if (count != 0) {
		core_look(true);
		return MIN(count, 0);
	}
	pthread_cleanup_push(core_cancelled, &sleep);
	count = epoll_wait_in_kernel(
		set->fd, events, max, deadline_ns != UINT64_MAX ? &left : NULL, mask);
	pthread_cleanup_pop(0);
	core_slept(sleep.epoch);
	if (count > 0 && epoll_remove_own(events, &count)) {
		core_look(true);
	}
	return count;
}

/* Returns events of ready members, and of the kernel's set if its check is due. Sleeps if there are
 * none. */
static int epoll_take_locked(struct set *set, struct epoll_event *events, int max,
	uint64_t deadline_ns, const sigset_t *mask)
{
	struct core_poll polling = { 0 };

	for (;;) {
		int count;

		core_look(false);
		count = epoll_take_ready(set, events, max);
		if (count > 0) {
			if (count < max && kernel_is_due(set)) {
				count += look_at_kernel(set, events + count, max - count);
			}
			return count;
		}
		if (deadline_ns == 0) {
			count = look_at_kernel(set, events, max);
			return count > 0 ? count : epoll_take_ready(set, events, max);
		}
		if (core_polls(&polling, deadline_ns)) {
			count = polling.news ? 0 : look_at_kernel(set, events, max);
			if (count > 0) {
				return count;
			}
			continue;
		}
		count = sleep_in_kernel(set, events, max, deadline_ns, mask);
		if (count != 0) {
			return count;
		}
		if (deadline_ns != UINT64_MAX && clock_now_ns() >= deadline_ns) {
			/* Checks once more for events that have occurred during the sleep. */
			deadline_ns = 0;
		}
	}
}

struct doze {
	struct set *set;
	uint32_t core_adds;
};

static void doze_ends(void *argument)
{
	const struct doze *doze = argument;
	int saved = errno;

	GMB_ASSERT(core_lock()); /* cannot fail: doze() was called without the lock */
	if (doze->set->core_adds != doze->core_adds) {
		core_woke(doze->set->core_epoch);
	} else if (doze->set->dozing > 0) {
		doze->set->dozing--;
	}
	core_unlock();
	errno = saved;
}

/* Waits in the kernel, because all connections of the set are on TCP. Returns -EAGAIN if the set
 * contains core.epoll_fd: a connection has moved to a ring, so the wait must be emulated. */
static int doze(struct set *set, struct epoll_event *events, int max,
	const struct timespec *timeout, const sigset_t *mask)
{
	struct doze doze = { .set = set };
	int count;

	if (!core_lock()) { /* in a signal handler that interrupted the library */
		return epoll_wait_in_kernel(set->fd, events, max, timeout, mask);
	}
	if (set_has_core(set)) {
		/* core.epoll_fd has been added to the set, and the threads in `dozing` were counted
		 * as sleepers. This thread is not in that count, so it must not wait here. */
		core_unlock();
		return -EAGAIN;
	}
	doze.core_adds = set->core_adds;
	set->dozing++;
	core_unlock();
	pthread_cleanup_push(doze_ends, &doze);
	count = epoll_wait_in_kernel(set->fd, events, max, timeout, mask);
	pthread_cleanup_pop(1);
	return count;
}

/* While the set does not contain core.epoll_fd, all of its connections are on TCP. The kernel then
 * waits for them, and the lock is not needed. */
int epoll_take(struct set *set, struct epoll_event *events, int max, const struct timespec *timeout,
	const sigset_t *mask)
{
	uint64_t deadline_ns = wait_deadline(timeout);
	int count;

	pthread_testcancel();
	while (!set_has_core(set)) {
		count = doze(set, events, max, timeout, mask);
		if (count == -EAGAIN) {
			continue;
		}
		if (count <= 0 || !epoll_remove_own(events, &count) || count > 0) {
			return count;
		}
		if (!set_has_core(set)) {
			/* A fork has shared the set with our parent, and only the parent's
			 * core.epoll_fd is ready. The parent must handle that event, so this thread
			 * sleeps for 1 ms instead of spinning. */
			(void)REAL(poll)(NULL, 0, 1);
		}
	}
	if (max <= 0 || events == NULL) {
		return REAL(epoll_pwait)(set->fd, events, max, 0, mask) < 0 ? -errno : 0;
	}
	if (!core_lock()) {
		return -EINTR;
	}
	count = epoll_take_locked(set, events, max, deadline_ns, mask);
	core_unlock();
	return count;
}

void epoll_before_fork(void)
{
	if (atomic_load(&core.sleepers) > 0) {
		return; /* sleeping threads need core.epoll_fd */
	}
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct set *set = set_at(fd);

		if (set != NULL && set_has_core(set) && set->managed == 0) {
			(void)REAL(epoll_ctl)(fd, EPOLL_CTL_DEL, core.epoll_fd, NULL);
			atomic_store(&set->has_core, false);
		}
	}
}

/* In the child: the sets can still contain the parent's core.epoll_fd, but they do not contain the
 * child's. */
void epoll_after_fork(void)
{
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct set *set = set_at(fd);

		if (set != NULL) {
			atomic_store(&set->has_core, false);
			set->dozing = 0;
			list_for_each(node, &set->members)
			{
				struct member *member = list_entry(node, struct member, set_node);

				/* The connection has no ring in the child. Its events come from the
				 * bytes that are left in its buffer, and from TCP. */
				if (member->managed && core_start() == 0) {
					add_core(set);
				}
			}
		}
	}
}
