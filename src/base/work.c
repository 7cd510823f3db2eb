// SPDX-License-Identifier: Apache-2.0
#include "base/work.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/rights.h"

enum {
	WORKER_STACK_BYTES = 128 << 10,
	/* Time after which an idle worker exits. Workers wait for more work, because starting a
	 * thread takes longer than many pieces of work. */
	IDLE_MS = 200,
	DRAINS_MAX = 4096, /* more messages than a socket can hold */
	/* maximum number of messages that the caller's thread reads from a socket to find
	 * descriptors; then a worker continues */
	LOOKS_MAX = 64,
};

/* A user whose processes can block work that might never end (in_doubt). The record exists while
 * the user has such work or descriptors. */
struct owner {
	struct list_node node;
	uid_t uid;
	struct list_node doubtful; /* work in doubt (see work.h) that is not yet running */
	uint32_t running;
	uint32_t fd_count; /* the user's descriptors that are not yet closed */
};

/* The workers of the process. They are started on demand and exit after IDLE_MS without work. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct list_node waiting;
	struct list_node owners; /* in round-robin order */
	struct owner unknown;	 /* shared by users for whom no record could be allocated */
	uint32_t running;
	uint32_t idle;	      /* idle workers that have not been signalled */
	uint32_t woken;	      /* workers that were signalled and have not woken yet */
	uint32_t in_doubt;    /* workers that run work that might never end */
	uint32_t fd_count;    /* sum of all owners' fd_count */
	uint32_t share_count; /* sum of MIN(fd_count, DISPOSE_OF_OWNER_MAX) over all owners */
	bool fork_watched;
} workers = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.wake = PTHREAD_COND_INITIALIZER,
	.waiting = { &workers.waiting, &workers.waiting },
	.owners = { &workers.owners, &workers.owners },
	.unknown = {
		.node = { &workers.unknown.node, &workers.unknown.node },
		.uid = (uid_t)-1,
		.doubtful = { &workers.unknown.doubtful, &workers.unknown.doubtful },
	},
};

/* --- owners: called under the lock ------------------------------------------------------------ */

static struct owner *owner_find(uid_t uid)
{
	list_for_each(node, &workers.owners)
	{
		struct owner *owner = list_entry(node, struct owner, node);

		if (owner->uid == uid) {
			return owner;
		}
	}
	return NULL;
}

static struct owner *owner_get(uid_t uid)
{
	struct owner *owner = owner_find(uid);

	if (owner == NULL) {
		owner = uid == workers.unknown.uid ? NULL : calloc(1, sizeof(*owner));
		if (owner == NULL) {
			owner = &workers.unknown;
		} else {
			owner->uid = uid;
			list_init(&owner->node);
			list_init(&owner->doubtful);
		}
		if (!list_is_linked(&owner->node)) {
			list_push_back(&workers.owners, &owner->node);
		}
	}
	return owner;
}

static void owner_set_fd_count(struct owner *owner, uint32_t count)
{
	workers.fd_count += count - owner->fd_count;
	workers.share_count += MIN(count, (uint32_t)DISPOSE_OF_OWNER_MAX) -
			       MIN(owner->fd_count, (uint32_t)DISPOSE_OF_OWNER_MAX);
	owner->fd_count = count;
}

/* Frees the record if the owner has neither work nor descriptors. */
static void owner_look(struct owner *owner)
{
	if (owner->running == 0 && owner->fd_count == 0 && list_is_empty(&owner->doubtful)) {
		list_remove(&owner->node);
		if (owner != &workers.unknown) {
			free(owner);
		}
	}
}

/* Returns the next work in doubt (which might never end) that may run now, and moves its owner to
 * the end of the round-robin order. */
static struct work *take_doubtful(void)
{
	list_for_each(node, &workers.owners)
	{
		struct owner *owner = list_entry(node, struct owner, node);
		struct list_node *found = owner->running < WORKERS_OF_OWNER_MAX
						  ? list_pop_front(&owner->doubtful)
						  : NULL;

		if (found != NULL) {
			owner->running++;
			workers.in_doubt++;
			list_remove(&owner->node);
			list_push_back(&workers.owners, &owner->node);
			return list_entry(found, struct work, node);
		}
	}
	return NULL;
}

static void doubt_ended(struct owner *owner)
{
	workers.in_doubt--;
	owner->running--;
	owner_look(owner);
}

/* --- forks ------------------------------------------------------------------------------------ */

static void work_before_fork(void)
{
	pthread_mutex_lock(&workers.lock);
}

static void work_after_fork_in_parent(void)
{
	pthread_mutex_unlock(&workers.lock);
}

/* The child has no workers and drops the parent's work. A descriptor that a worker was about to
 * close stays open in the child until it executes another program. */
static void work_after_fork_in_child(void)
{
	list_init(&workers.waiting);
	list_for_each(node, &workers.owners)
	{
		struct owner *owner = list_entry(node, struct owner, node);

		list_init(&owner->doubtful);
		owner->running = 0;
		owner_set_fd_count(owner, 0);
		owner_look(owner);
	}
	workers.wake = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	workers.running = 0;
	workers.idle = 0;
	workers.woken = 0;
	workers.in_doubt = 0;
	pthread_mutex_unlock(&workers.lock);
}

void work_wake(struct work_results *results)
{
	ssize_t written = write(results->wake_fd, "", 1);

	GMB_UNUSED(written); /* if the pipe is full, its reader wakes up anyway */
}

static void run_one(struct work *work)
{
	struct work_results *results = work->results;

	work->run(work); /* the work frees itself, because no thread collects its results */
	if (results == NULL) {
		return;
	}
	/* Wakes the owner while holding the lock, because the results may be freed as soon as
	 * work_finish() has emptied the list. */
	pthread_mutex_lock(&results->lock);
	list_push_back(&results->list, &work->node);
	if (!results->in_caller) {
		work_wake(results);
	}
	pthread_mutex_unlock(&results->lock);
}

/* Returns the next work; NULL: no work may run now. If the work might never end (in_doubt), sets
 * *owner_out to the record of the user who can block it, otherwise to NULL. */
static struct work *work_take(struct owner **owner_out)
{
	struct list_node *node = list_pop_front(&workers.waiting);
	struct work *work = node != NULL ? list_entry(node, struct work, node) : NULL;

	*owner_out = NULL;
	if (work == NULL && workers.in_doubt < WORKERS_IN_DOUBT_MAX) {
		work = take_doubtful();
		*owner_out = work != NULL ? work->owner_record : NULL;
	}
	return work;
}

/* Waits for work. Returns false if none arrived for IDLE_MS. */
static bool rest(void)
{
	struct timespec until;
	int result = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += IDLE_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	workers.idle++;
	while (workers.woken == 0 && result != ETIMEDOUT) {
		result = pthread_cond_clockwait(
			&workers.wake, &workers.lock, CLOCK_MONOTONIC, &until);
	}
	if (workers.woken == 0) {
		workers.idle--;
		return false;
	}
	workers.woken--;
	return true;
}

static void *worker(void *unused)
{
	struct owner *owner;

	pthread_mutex_lock(&workers.lock);
	do {
		struct work *work;

		while ((work = work_take(&owner)) != NULL) {
			pthread_mutex_unlock(&workers.lock);
			run_one(work);
			pthread_mutex_lock(&workers.lock);
			if (owner != NULL) {
				doubt_ended(owner);
			}
		}
	} while (rest());
	workers.running--;
	pthread_mutex_unlock(&workers.lock);
	return NULL;
}

/* Starts a worker thread. Called under the lock. */
static bool start_worker(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all;
	sigset_t before;
	int result;

	if (!workers.fork_watched) {
		workers.fork_watched = pthread_atfork(work_before_fork, work_after_fork_in_parent,
					       work_after_fork_in_child) == 0;
	}
	if (!workers.fork_watched || pthread_attr_init(&attributes) != 0) {
		return false;
	}
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES);
	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* see memory/mapping.h */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = pthread_create(&thread, &attributes, worker, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return result == 0;
}

/* Adds work to the queue. Called under the lock. */
static void enqueue(struct work *work)
{
	if (work->in_doubt) {
		struct owner *owner = owner_get(work->owner);

		work->owner_record = owner;
		list_push_back(&owner->doubtful, &work->node);
	} else {
		list_push_back(&workers.waiting, &work->node);
	}
}

/* A worker no longer counts as idle from the moment it is signalled. Two calls therefore wake two
 * workers, even if the first one has not run yet. */
void work_start(struct work *work, struct work_results *results)
{
	bool taken = false;

	work->results = results;
	if (results == NULL || !results->in_caller) {
		pthread_mutex_lock(&workers.lock);
		if (workers.idle > 0) {
			workers.idle--;
			workers.woken++;
			pthread_cond_signal(&workers.wake);
		} else if (workers.running < WORKERS_MAX && start_worker()) {
			workers.running++;
		}
		if (workers.running > 0) {
			enqueue(work);
			taken = true;
		}
		pthread_mutex_unlock(&workers.lock);
	}
	if (!taken) {
		run_one(work);
	}
}

void work_finish(struct work_results *results)
{
	struct list_node *node;

	do {
		pthread_mutex_lock(&results->lock);
		node = list_pop_front(&results->list);
		pthread_mutex_unlock(&results->lock);
		if (node != NULL) {
			struct work *work = list_entry(node, struct work, node);

			work->done(work);
		}
	} while (node != NULL);
}

/* --- disposal --------------------------------------------------------------------------------- */

_Static_assert(DISPOSE_OF_OWNER_MAX >= DISPOSE_FDS_MAX && DISPOSE_ALL_MAX > DISPOSE_OF_OWNER_MAX,
	"one owner can pass all descriptors of a message and leaves slots to others");

struct disposal_work {
	struct work work;
	struct disposal disposal;
	int fds[];
};

/* Closes a peer's descriptor. Clears SO_LINGER first: the peer could have set this option, and
 * close() could then block until the socket's unsent data has been delivered. */
static void close_of_peer(int fd)
{
	const struct linger none = { 0 };

	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	close(fd);
}

/* Receives the remaining messages of a socket that was shut down, and closes the descriptors in
 * them. Otherwise the kernel would close these descriptors together with the socket, and that can
 * block for as long as their sender likes. */
static void work_drain(int fd)
{
	_Alignas(struct cmsghdr) uint8_t control[RIGHTS_CONTROL_BYTES];
	uint8_t bytes[4096];
	int received[RIGHTS_MAX];
	int kind = 0;
	socklen_t length = sizeof(kind);

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &kind, &length) != 0 || kind != 0) {
		return; /* closing a listener closes its pending connections */
	}
	(void)rights_guard(fd);
	for (int i = 0; i < DRAINS_MAX; i++) {
		struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
		struct msghdr message = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control,
			.msg_controllen = sizeof(control),
		};
		ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		uint32_t count = got >= 0 ? rights_collect(&message, received) : 0;

		for (uint32_t j = 0; j < count; j++) {
			close_of_peer(received[j]);
		}
		if (got < 0 || (got == 0 && count == 0)) {
			return;
		}
	}
}

/* Receives the remaining messages of a SEQPACKET socket that was shut down. Returns false if
 * descriptors may be left in it. */
static bool is_without_files(int fd)
{
	const int on = 1;
	int kind = 0;
	socklen_t length = sizeof(kind);

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &length) != 0 || kind != SOCK_SEQPACKET ||
		setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
		return false;
	}
	for (int i = 0; i < LOOKS_MAX; i++) {
		/* With SO_PASSCRED each message has credentials, even an empty one, which
		 * distinguishes an empty message from the end of the stream. The buffer has no room
		 * for descriptors: a message with descriptors sets MSG_CTRUNC and, because of
		 * MSG_PEEK, keeps them. */
		_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(struct ucred))];
		char byte;
		struct iovec iov = { .iov_base = &byte, .iov_len = sizeof(byte) };
		struct msghdr message = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control,
			.msg_controllen = sizeof(control),
		};
		ssize_t got = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT);

		if (got < 0 || (message.msg_flags & MSG_CTRUNC) != 0) {
			return false;
		}
		if (got == 0 && message.msg_controllen == 0) {
			return true; /* end of the stream */
		}
		(void)!recv(fd, &byte, sizeof(byte), MSG_DONTWAIT);
	}
	return false;
}

static void dispose_now(const struct disposal *disposal)
{
	if (disposal->base != NULL) {
		munmap(disposal->base, disposal->bytes);
	}
	if (disposal->is_shut) {
		work_drain(disposal->fds[0]);
	}
	for (uint32_t i = 0; i < disposal->fd_count; i++) {
		if (disposal->of_peer && !disposal->is_end) {
			close_of_peer(disposal->fds[i]);
		} else {
			close(disposal->fds[i]);
		}
	}
}

void dispose_count_more(uid_t uid, uint32_t fd_count)
{
	struct owner *owner;

	pthread_mutex_lock(&workers.lock);
	owner = owner_get(uid);
	owner_set_fd_count(owner, owner->fd_count + fd_count);
	pthread_mutex_unlock(&workers.lock);
}

/* Sometimes more is subtracted than was counted: users without a record of their own share one
 * record, and a fork resets all counts. A count never falls below zero. */
void dispose_count_less(uid_t uid, uint32_t fd_count)
{
	struct owner *owner;

	pthread_mutex_lock(&workers.lock);
	owner = owner_find(uid);
	owner = owner != NULL ? owner : &workers.unknown;
	owner_set_fd_count(owner, owner->fd_count - MIN(owner->fd_count, fd_count));
	owner_look(owner);
	pthread_mutex_unlock(&workers.lock);
}

bool dispose_has_room(uid_t uid)
{
	uint32_t room = DISPOSE_OF_OWNER_MAX;
	const struct owner *owner;
	bool has_room;

	pthread_mutex_lock(&workers.lock);
	owner = owner_find(uid);
	if (rights_is_stranger(uid)) {
		uint32_t left =
			DISPOSE_ALL_MAX - MIN(workers.share_count, (uint32_t)DISPOSE_ALL_MAX);

		room = MIN(room, left);
	}
	has_room = (owner == NULL ? 0 : owner->fd_count) < room;
	pthread_mutex_unlock(&workers.lock);
	return has_room;
}

bool dispose_may_accept(int listener)
{
	bool has_room;

	pthread_mutex_lock(&workers.lock);
	has_room = workers.fd_count < DISPOSE_ALL_MAX;
	pthread_mutex_unlock(&workers.lock);
	return has_room || !rights_may_come(listener);
}

/* Returns whether all descriptors are memory files. Closing these never blocks, so the worker
 * limits for work in doubt do not apply. */
static bool is_memory(const struct disposal *disposal)
{
	uint32_t count = 0;

	while (count < disposal->fd_count && fcntl(disposal->fds[count], F_GET_SEALS) >= 0) {
		count++;
	}
	return count == disposal->fd_count;
}

static void run_disposal(struct work *work)
{
	struct disposal_work *job = container_of(work, struct disposal_work, work);

	dispose_now(&job->disposal);
	if (job->disposal.of_peer) {
		dispose_count_less(job->disposal.owner, job->disposal.fd_count);
	}
	free(job);
}

void dispose(const struct disposal *disposal)
{
	struct disposal_work *job = NULL;

	GMB_ASSERT(disposal->fd_count <= DISPOSE_FDS_MAX);
	if (!disposal->in_caller) {
		job = calloc(1, sizeof(*job) + disposal->fd_count * sizeof(int));
	}
	if (job == NULL) {
		dispose_now(disposal);
		return;
	}
	if (disposal->fd_count > 0) {
		memcpy(job->fds, disposal->fds, disposal->fd_count * sizeof(int));
	}
	job->disposal = *disposal;
	job->disposal.fds = job->fds;
	job->work.run = run_disposal;
	job->work.in_doubt = disposal->of_peer && !is_memory(disposal);
	job->work.owner = disposal->owner;
	if (disposal->of_peer) {
		dispose_count_more(disposal->owner, disposal->fd_count);
	}
	work_start(&job->work, NULL);
}

void dispose_fd(int fd, uid_t owner, bool in_caller)
{
	if (fd >= 0) {
		dispose(&(struct disposal){
			.fds = &fd,
			.fd_count = 1,
			.of_peer = true,
			.owner = owner,
			.in_caller = in_caller,
		});
	}
}

void dispose_end(int fd, uid_t owner)
{
	dispose(&(struct disposal){
		.fds = &fd, .fd_count = 1, .of_peer = true, .is_end = true, .owner = owner });
}

void dispose_socket(int fd, uid_t owner, bool in_caller)
{
	if (fd < 0) {
		return;
	}
	shutdown(fd, SHUT_RDWR); /* stop further messages */
	if (!rights_may_come(fd) || is_without_files(fd)) {
		close(fd);
	} else {
		dispose(&(struct disposal){
			.fds = &fd,
			.fd_count = 1,
			.of_peer = true,
			.is_end = true,
			.is_shut = true,
			.owner = owner,
			.in_caller = in_caller,
		});
	}
}
