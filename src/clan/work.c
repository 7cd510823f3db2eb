// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/compiler.h"
#include "clan/work.h"

enum { WORKER_STACK_BYTES = 128 << 10 };

/* The workers of the process: as many as there is work for, gone when there is none. */
static struct {
	pthread_mutex_t lock;
	struct list_node waiting;
	struct list_node doubtful; /* waits, too: it may never end */
	uint32_t running;
	uint32_t in_doubt; /* of these */
	bool fork_watched;
} workers = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.waiting = { &workers.waiting, &workers.waiting },
	.doubtful = { &workers.doubtful, &workers.doubtful },
};

static void before_fork(void)
{
	pthread_mutex_lock(&workers.lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&workers.lock);
}

/* The threads are the parent's, and so is the work: a descriptor that one of them was about to
 * close stays open in the child until it executes a program. */
static void after_fork_in_child(void)
{
	list_init(&workers.waiting);
	list_init(&workers.doubtful);
	workers.running = 0;
	workers.in_doubt = 0;
	pthread_mutex_unlock(&workers.lock);
}

void work_wake(struct work_results *results)
{
	ssize_t written = write(results->wake_fd, "", 1);

	GMB_UNUSED(written); /* full: readable already */
}

static void run_one(struct work *work)
{
	struct work_results *results = work->results;

	work->run(work); /* without results it frees itself */
	if (results == NULL) {
		return;
	}
	/* The wake-up stays inside the lock: once the list is taken, the results may go. */
	pthread_mutex_lock(&results->lock);
	list_push_back(&results->list, &work->node);
	if (!results->in_caller) {
		work_wake(results);
	}
	pthread_mutex_unlock(&results->lock);
}

static void *worker(void *unused)
{
	GMB_UNUSED(unused);
	pthread_mutex_lock(&workers.lock);
	for (;;) {
		struct list_node *node = list_pop_front(&workers.waiting);
		bool in_doubt = node == NULL && workers.in_doubt < WORKERS_IN_DOUBT_MAX;

		if (in_doubt) {
			node = list_pop_front(&workers.doubtful);
		}
		if (node == NULL) {
			break;
		}
		workers.in_doubt += in_doubt;
		pthread_mutex_unlock(&workers.lock);
		run_one(list_entry(node, struct work, node));
		pthread_mutex_lock(&workers.lock);
		workers.in_doubt -= in_doubt;
	}
	workers.running--;
	pthread_mutex_unlock(&workers.lock);
	return NULL;
}

/* Under the lock. */
static bool start_worker(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all;
	sigset_t before;
	int result;

	if (!workers.fork_watched) {
		workers.fork_watched =
			pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
	}
	if (!workers.fork_watched || pthread_attr_init(&attributes) != 0) {
		return false;
	}
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = pthread_create(&thread, &attributes, worker, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return result == 0;
}

void work_start(struct work *work, struct work_results *results)
{
	bool taken = false;

	work->results = results;
	if (results == NULL || !results->in_caller) {
		pthread_mutex_lock(&workers.lock);
		if (workers.running < WORKERS_MAX && start_worker()) {
			workers.running++;
		}
		if (workers.running > 0) {
			list_push_back(
				work->in_doubt ? &workers.doubtful : &workers.waiting, &work->node);
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

/* --- getting rid of things ----------------------------------------------------------------- */

struct disposal_work {
	struct work work;
	struct disposal disposal;
	int fds[];
};

static void dispose_now(const struct disposal *disposal)
{
	if (disposal->base != NULL) {
		munmap(disposal->base, disposal->bytes);
	}
	for (uint32_t i = 0; i < disposal->fd_count; i++) {
		close(disposal->fds[i]);
	}
}

static void run_disposal(struct work *work)
{
	struct disposal_work *job = container_of(work, struct disposal_work, work);

	dispose_now(&job->disposal);
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
	job->work.in_doubt = disposal->of_peer;
	work_start(&job->work, NULL);
}

void dispose_fd(int fd, bool in_caller)
{
	if (fd >= 0) {
		dispose(&(struct disposal){
			.fds = &fd, .fd_count = 1, .of_peer = true, .in_caller = in_caller });
	}
}
