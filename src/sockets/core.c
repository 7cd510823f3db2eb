// SPDX-License-Identifier: Apache-2.0
/*
 * The lock, the clan queue, and sleeping.
 *
 * Waking: while threads sleep, core_unlock() either arms the queue, so that libclan makes
 * core.epoll_fd readable, or kicks the sleepers. A kick makes kick_fd readable for all threads that
 * sleep at that moment; the thread that wakes last makes it unreadable again. The kick epoch
 * distinguishes these threads from those that go to sleep later.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sockets/real.h"
#include "sockets/sockets.h"

enum {
	EVENTS_MAX = 32,
	SEEN_WAIT_NS = 1000000,
	/* Limit on the first number of our descriptors, because the kernel's table of descriptors
	 * grows to the largest number. */
	OWN_FDS_FROM_MAX = 4000,
	LOOKS_AT_LOCK = 100,
	/* Between two yields of a thread that polls. A look takes about 100 ns. */
	LOOKS_BETWEEN_YIELDS = 32,
};

struct core core = { .epoll_fd = -1, .kick_fd = -1 };
CORE_THREAD int core_depth;
CORE_THREAD int core_crashed;
CORE_THREAD uint64_t core_deferred;
CORE_THREAD struct spinner core_spinner;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(uint32_t) lock_waiters; /* a thread that polls releases the lock for them */
static int cancel_state;	       /* saved state of the thread that holds the lock */
static _Atomic(uint8_t) own[SOCKETS_FDS_MAX / 8];

#define REAL_DEFINE(type, name, arguments) type(*real_pointer_##name) arguments;
REAL_LIST(REAL_DEFINE)

void *real_find(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	GMB_ASSERT(found != NULL);
	return found;
}

void real_find_all(void)
{
#define REAL_FIND(type, name, arguments)                                                           \
	real_pointer_##name = (__typeof__(real_pointer_##name))(uintptr_t)dlsym(RTLD_NEXT, #name);
	REAL_LIST(REAL_FIND)
}

/* --- descriptors of ours ---------------------------------------------------------------------- */

/* Returns the first number for our descriptors. It is high, because some programs expect the lowest
 * numbers. */
static int own_from(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
		return 0;
	}
	return (int)MIN(limit.rlim_cur / 4 * 3, (rlim_t)OWN_FDS_FROM_MAX);
}

int core_own(int fd)
{
	int moved = REAL(fcntl64)(fd, F_DUPFD_CLOEXEC, own_from());

	if (moved >= 0) {
		REAL(close)(fd);
		fd = moved;
	}
	if (fd < SOCKETS_FDS_MAX) {
		atomic_fetch_or(&own[fd / 8], (uint8_t)(1 << (fd % 8)));
		core.own_fds++;
	}
	return fd;
}

bool core_owns(int fd)
{
	return (unsigned int)fd < SOCKETS_FDS_MAX &&
	       (atomic_load_explicit(&own[fd / 8], memory_order_relaxed) & 1 << (fd % 8)) != 0;
}

void core_disown(int fd)
{
	if (core_owns(fd)) {
		atomic_fetch_and(&own[fd / 8], (uint8_t) ~(1 << (fd % 8)));
		core.own_fds--;
	}
}

/* --- the lock --------------------------------------------------------------------------------- */

/* A thread that holds the lock works, or polls and releases it soon. So the others poll for it
 * before they sleep. */
static void wait_for_lock(void)
{
	atomic_fetch_add(&lock_waiters, 1);
	for (int looks = 0; looks < LOOKS_AT_LOCK; looks++) {
		if (pthread_mutex_trylock(&lock) == 0) {
			atomic_fetch_sub(&lock_waiters, 1);
			return;
		}
		cpu_relax();
	}
	pthread_mutex_lock(&lock);
	atomic_fetch_sub(&lock_waiters, 1);
}

bool core_lock(void)
{
	int old;

	if (core_depth > 0) {
		errno = EINTR;
		return false;
	}
	/* Cancellation is disabled while the lock is held, because libclan contains cancellation
	 * points. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	core_depth = 1;
	if (pthread_mutex_trylock(&lock) != 0) {
		wait_for_lock();
	}
	cancel_state = old;
	return true;
}

static void sockets_core_unlock(void)
{
	int old = cancel_state;

	pthread_mutex_unlock(&lock);
	core_depth = 0;
	/* core_depth is 0 now, so signal handlers run immediately. Earlier signals were deferred,
	 * and are recorded in core_deferred, which is checked below. */
	atomic_signal_fence(memory_order_seq_cst);
	pthread_setcancelstate(old, NULL);
	if (unlikely(core_deferred != 0)) {
		signals_let_in();
	}
}

/* Wakes all sleeping threads. Each thread checks whether its own wait is over. */
static void kick(void)
{
	uint64_t one = 1;
	ssize_t written;

	core.kick_epoch++;
	atomic_store(&core.kick_left, atomic_load(&core.sleepers));
	written = REAL(write)(core.kick_fd, &one, sizeof(one));
	GMB_UNUSED(written); /* fails only if kick_fd is readable already */
}

void core_unlock(void)
{
	/* Sleeping threads must not miss an event: they are woken now, or the queue is armed, so
	 * that the next event makes core.epoll_fd readable. */
	if (core.queue != NULL && atomic_load(&core.sleepers) > 0) {
		if (core.news || clan_queue_arm(core.queue) != 0) {
			kick();
		}
	}
	core.news = false;
	sockets_core_unlock();
}

/* --- the queue -------------------------------------------------------------------------------- */

static int add_to_core(int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0 };

	return REAL(epoll_ctl)(core.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

static void close_own(int *fd)
{
	if (*fd >= 0) {
		core_disown(*fd);
		REAL(close)(*fd);
		*fd = -1;
	}
}

/* Creates the queue, the epoll set, and the eventfd that kick() makes readable. On failure none of
 * them exists, and a later call tries again. */
int core_start(void)
{
	struct clan_queue_options options = {
		.size = sizeof(options),
		.flags = CLAN_QUEUE_PASSIVE,
		.conns_max = 16384,
	};
	int result;
	int ended;

	if (core.queue != NULL) {
		return 0;
	}
	result = clan_queue_create(&options, &core.queue, NULL);
	if (result != 0) {
		return result;
	}
	core.epoll_fd = REAL(epoll_create1)(EPOLL_CLOEXEC);
	core.kick_fd = REAL(eventfd)(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (core.epoll_fd < 0 || core.kick_fd < 0) {
		result = -errno;
	} else {
		core.epoll_fd = core_own(core.epoll_fd);
		core.kick_fd = core_own(core.kick_fd);
		result = add_to_core(clan_queue_fd(core.queue));
		result = result == 0 ? add_to_core(core.kick_fd) : result;
	}
	if (result == 0 && core.tag == 0 &&
		getrandom(&core.tag, sizeof(core.tag), 0) != sizeof(core.tag)) {
		result = -EIO;
	}
	if (result != 0) {
		close_own(&core.epoll_fd);
		close_own(&core.kick_fd);
		ended = clan_queue_destroy(core.queue);
		GMB_ASSERT(ended == 0);
		core.queue = NULL;
	}
	return result;
}

/* Processes the events of the TCP sockets below connections that use rings. */
static void take_tcp_events(const struct epoll_event *events, int count)
{
	for (int i = 0; i < count; i++) {
		struct conn *conn = events[i].data.ptr;

		if (conn == NULL || !conn_is_carried(conn)) {
			continue;
		}
		if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0) {
			conn->tcp_event = true;
			conn_touch(conn, TOUCH_IN);
		}
		if ((events[i].events & EPOLLOUT) != 0 && conn->side.out_place != SWITCH_OUT_RING) {
			conn_touch(conn, TOUCH_OUT);
		}
		core_changed();
	}
}

/* Processes the events of the clan queue. all: also checks its descriptors. */
static void look_at_queue(bool all)
{
	struct clan_event events[EVENTS_MAX];
	int count;

	if (all) {
		/* Arms the queue, because clan_queue_wait() always checks the descriptors of an
		 * armed queue. */
		GMB_UNUSED(clan_queue_arm(core.queue));
	}
	do {
		count = clan_queue_wait(core.queue, events, EVENTS_MAX, 0);
		for (int i = 0; i < count; i++) {
			conn_event(&events[i]);
		}
	} while (count == EVENTS_MAX);
}

void core_look(bool all)
{
	struct epoll_event events[EVENTS_MAX];

	if (core.queue == NULL) {
		return;
	}
	look_at_queue(all);
	if (all) {
		take_tcp_events(events, REAL(epoll_wait)(core.epoll_fd, events, EVENTS_MAX, 0));
	}
}

/* --- polling ---------------------------------------------------------------------------------- */

void core_changed(void)
{
	core.news = true;
	core.changes++;
}

static bool begin_to_poll(uint64_t deadline_ns)
{
	uint64_t now_ns;

	if (core_spinner.policy.cpu_ns == NULL) {
		spinner_init(&core_spinner, !core.rules.no_spin);
	}
	if (deadline_ns != UINT64_MAX) {
		now_ns = clock_now_ns();
		deadline_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
	}
	return spinner_begin(&core_spinner, deadline_ns, LOOKS_BETWEEN_YIELDS);
}

/* Returns whether a thread that polls must let others in: it has events for sleeping threads, which
 * core_sleep() wakes, or threads wait for the lock, or a signal is deferred. */
static bool others_are_due(void)
{
	return (core.news && atomic_load(&core.sleepers) > 0) || atomic_load(&lock_waiters) > 0 ||
	       core_deferred != 0;
}

/* See sockets.h. Returns at each yield, so that the caller can ask the kernel. The lock is not
 * released between two looks, because signal handlers are deferred only while it is held: a signal
 * must end the wait that follows (core_sleep()). */
bool core_polls(struct core_poll *poll, uint64_t deadline_ns)
{
	uint64_t seen = core.changes;
	bool has_yielded = false;

	poll->news = false;
	if (!poll->has_begun) {
		poll->has_begun = true;
		poll->goes_on = begin_to_poll(deadline_ns);
	}
	poll->goes_on = poll->goes_on && !others_are_due();
	while (poll->goes_on && !has_yielded) {
		core_look(false);
		if (core.changes != seen) {
			poll->news = true;
			return true;
		}
		poll->goes_on =
			!others_are_due() && core.queue != NULL && spin_goes_on(&core_spinner.spin);
		has_yielded = core_spinner.spin.looks % LOOKS_BETWEEN_YIELDS == 0;
	}
	return poll->goes_on;
}

/* --- sleeping --------------------------------------------------------------------------------- */

/* Waits, at most SEEN_WAIT_NS, until all threads that the last kick() has to wake are awake. Until
 * then kick_fd stays readable. So if this thread went to sleep, it would wake immediately, and take
 * processor time from those threads. The lock is held before and after. */
static int wait_until_seen(uint32_t left)
{
	const struct timespec limit = { .tv_nsec = SEEN_WAIT_NS };
	long result;

	core.kick_waiters++;
	sockets_core_unlock();
	result = syscall(SYS_futex, &core.kick_left, FUTEX_WAIT_PRIVATE, left, &limit, NULL, 0);
	result = result < 0 ? -errno : 0;
	GMB_ASSERT(core_lock()); /* cannot fail: this thread held the lock before */
	core.kick_waiters--;
	return result == -EINTR ? -EINTR : 1;
}

/* See sockets.h. If something has changed for other sleepers (core.news), wakes them first. Arms
 * the queue last, so that any later event makes core.epoll_fd readable. */
int core_sleep(uint64_t *epoch_out)
{
	uint32_t left;

	if (core.news && atomic_load(&core.sleepers) > 0) {
		kick();
	}
	core.news = false;
	/* A signal was deferred: core_unlock() runs its handler, and the sleep ends with EINTR, as
	 * in the kernel. Or a handler has forked and this is the child, which has no queue. */
	if (core_deferred != 0 || core.queue == NULL) {
		core_unlock();
		GMB_ASSERT(core_lock()); /* cannot fail: this thread held the lock before */
		return -EINTR;
	}
	left = atomic_load(&core.kick_left);
	if (left > 0) {
		return wait_until_seen(left);
	}
	if (clan_queue_arm(core.queue) != 0) {
		return 1;
	}
	*epoch_out = core.kick_epoch;
	core.sleeps++;
	atomic_fetch_add(&core.sleepers, 1);
	sockets_core_unlock();
	return 0;
}

/* Counts a thread that the last kick() has woken. The last such thread makes kick_fd
 * unreadable again. */
static void count_kick(uint64_t epoch)
{
	uint32_t left = atomic_load(&core.kick_left);
	uint64_t value;
	ssize_t got;

	if (epoch != core.kick_epoch && left > 0) {
		atomic_store(&core.kick_left, left - 1);
		if (left == 1) {
			got = REAL(read)(core.kick_fd, &value, sizeof(value));
			GMB_UNUSED(got);
			if (core.kick_waiters > 0) {
				syscall(SYS_futex, &core.kick_left, FUTEX_WAKE_PRIVATE, INT_MAX,
					NULL, NULL, 0);
			}
		}
	}
}

uint64_t core_wakes(uint32_t more)
{
	atomic_fetch_add(&core.sleepers, more);
	return core.kick_epoch;
}

void core_woke(uint64_t epoch)
{
	if (atomic_load(&core.sleepers) > 0) {
		atomic_fetch_sub(&core.sleepers, 1);
	}
	count_kick(epoch);
}

void core_slept(uint64_t epoch)
{
	GMB_ASSERT(core_lock()); /* cannot fail: this thread held the lock before */
	core_woke(epoch);
}

int core_wait(struct core_sleep *sleep, const struct timespec *left, const sigset_t *mask)
{
	struct epoll_event events[EVENTS_MAX];
	int count;

	pthread_cleanup_push(core_cancelled, sleep);
	count = epoll_wait_in_kernel(core.epoll_fd, events, EVENTS_MAX, left, mask);
	pthread_cleanup_pop(0);
	core_slept(sleep->epoch);
	take_tcp_events(events, count);
	core_look(true);
	return count;
}

void core_cancelled(void *sleep)
{
	const struct core_sleep *ended = sleep;

	core_slept(ended->epoch);
	if (ended->conn != NULL) {
		conn_count_off(&ended->conn->pins);
	}
	core_unlock();
}

void core_after_fork(void)
{
	/* libclan closes its descriptors through our close(). */
	if (core.queue != NULL) {
		clan_queue_after_fork(core.queue);
		core.queue = NULL;
	}
	close_own(&core.epoll_fd);
	close_own(&core.kick_fd);
	atomic_store(&lock_waiters, 0); /* the threads exist only in the parent */
	atomic_store(&core.sleepers, 0);
	atomic_store(&core.kick_left, 0);
	core.kick_waiters = 0;
	core.news = false;
	list_init(&core.touched);
	list_init(&core.carried);
}
