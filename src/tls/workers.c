// SPDX-License-Identifier: Apache-2.0
/*
 * Threads for handshakes. Handshakes of unknown peers run on threads of the lowest priority, so
 * that they only use CPU time that established connections leave. On a busy machine that might be
 * almost none. So one more thread, of normal priority, takes a job that has waited for
 * TLS_PATIENCE_MS, as long as it has used less than a tenth of a processor. (A thread cannot raise
 * its priority again without privileges, which the server drops.) The same thread runs jobs that
 * we started ourselves.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tls/pool.h"

enum {
	THREADS_MAX = 64,
	TLS_NICE = 19,
	TLS_PATIENCE_MS = 500,
	HELPER_SHARE = 10,	 /* the helper thread can use 1/HELPER_SHARE of a processor */
	HELPER_SAVED_MS = 100,	 /* maximum CPU time that the helper can save up */
	STACK_BYTES = 256 << 10, /* ten times what the verification of a certificate chain needs */
};

#define NS_PER_MS UINT64_C(1000000)

struct tls_workers {
	pthread_mutex_t lock;
	pthread_cond_t wake;	    /* wakes threads of low priority */
	pthread_cond_t helper_wake; /* wakes the helper; uses a monotonic clock */
	struct list_node jobs;	    /* handshakes of unknown peers, longest waiting first */
	struct list_node urgent_jobs;
	uint32_t job_count;
	uint32_t thread_max;
	uint32_t thread_count;
	uint32_t idle_count;
	bool has_helper;
	bool helper_is_parked; /* the helper sleeps without a timeout, so every new job must wake
				  it */
	bool stopping;
	/* Threads that are posting the end of a job to a ring. */
	_Atomic uint32_t posting_count;
	pthread_cond_t posted;
	pthread_t helper;
	pthread_t threads[THREADS_MAX];
};

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

int tls_workers_create(uint32_t threads, struct tls_workers **workers_out, struct error *error)
{
	struct tls_workers *workers;
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	if (threads > THREADS_MAX) {
		return error_set(error, -EINVAL, "more than %u threads for TLS handshakes",
			(unsigned)THREADS_MAX);
	}
	workers = calloc(1, sizeof(*workers));
	if (workers == NULL) {
		return error_oom_for(error, "TLS");
	}
	workers->thread_max = threads != 0     ? threads
			      : processors > 2 ? (uint32_t)MIN(processors / 2, (long)THREADS_MAX)
					       : 1;
	list_init(&workers->jobs);
	list_init(&workers->urgent_jobs);
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->wake, NULL);
	pthread_cond_init(&workers->helper_wake, NULL);
	pthread_cond_init(&workers->posted, NULL);
	*workers_out = workers;
	return 0;
}

void tls_workers_destroy(struct tls_workers *workers)
{
	if (workers == NULL) {
		return;
	}
	pthread_mutex_lock(&workers->lock);
	GMB_ASSERT(list_is_empty(&workers->jobs) && list_is_empty(&workers->urgent_jobs));
	workers->stopping = true;
	pthread_cond_broadcast(&workers->wake);
	pthread_cond_broadcast(&workers->helper_wake);
	pthread_mutex_unlock(&workers->lock);
	for (uint32_t i = 0; i < workers->thread_count; i++) {
		pthread_join(workers->threads[i], NULL);
	}
	if (workers->has_helper) {
		pthread_join(workers->helper, NULL);
	}
	pthread_cond_destroy(&workers->posted);
	pthread_cond_destroy(&workers->helper_wake);
	pthread_cond_destroy(&workers->wake);
	pthread_mutex_destroy(&workers->lock);
	free(workers);
}

static void job_deliver(struct ring *ring, struct ring_message *message)
{
	struct tls_job *job = container_of(message, struct tls_job, message);

	job->done(job);
}

/* Runs the first job, without the lock. Afterwards the job belongs to its owner again. */
static void run_first(struct tls_workers *workers, struct list_node *jobs)
{
	struct tls_job *job = list_entry(list_pop_front(jobs), struct tls_job, node);

	workers->job_count--;
	pthread_mutex_unlock(&workers->lock);
	job->run(job);
	job->message.deliver = job_deliver;
	/* Posted without the lock, so that the ring's thread, which this wakes, does not wait for a
	 * thread of low priority. */
	atomic_fetch_add_explicit(&workers->posting_count, 1, memory_order_relaxed);
	ring_post(job->ring, &job->message);
	pthread_mutex_lock(&workers->lock);
	if (atomic_fetch_sub_explicit(&workers->posting_count, 1, memory_order_relaxed) == 1) {
		pthread_cond_broadcast(&workers->posted);
	}
}

void tls_workers_synchronize(struct tls_workers *workers)
{
	pthread_mutex_lock(&workers->lock);
	/* Relaxed order suffices: a thread increments the count before it posts the end of a job,
	 * and the caller runs after it has received that message. */
	while (atomic_load_explicit(&workers->posting_count, memory_order_relaxed) > 0) {
		pthread_cond_wait(&workers->posted, &workers->lock);
	}
	pthread_mutex_unlock(&workers->lock);
}

static void *nice_thread(void *argument)
{
	struct tls_workers *workers = argument;

	/* priority of this thread; failure is harmless */
	(void)setpriority(PRIO_PROCESS, 0, TLS_NICE);
	pthread_mutex_lock(&workers->lock);
	while (!workers->stopping) {
		if (!list_is_empty(&workers->jobs)) {
			run_first(workers, &workers->jobs);
			continue;
		}
		workers->idle_count++;
		pthread_cond_wait(&workers->wake, &workers->lock);
		workers->idle_count--;
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

/* --- helper ---------------------------------------------------------------------------------- */

struct allowance {
	uint64_t at_ns;
	uint64_t saved_ns; /* CPU time that the helper thread can use now */
};

static void allowance_grow(struct allowance *allowance, uint64_t now_ns)
{
	allowance->saved_ns = MIN(allowance->saved_ns + (now_ns - allowance->at_ns) / HELPER_SHARE,
		HELPER_SAVED_MS * NS_PER_MS);
	allowance->at_ns = now_ns;
}

static void run_patiently(struct tls_workers *workers, struct allowance *allowance)
{
	uint64_t before_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	uint64_t used_ns;

	run_first(workers, &workers->jobs);
	used_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - before_ns;
	allowance->saved_ns -= MIN(used_ns, allowance->saved_ns);
}

static void helper_wait(struct tls_workers *workers, uint64_t until_ns)
{
	struct timespec until = {
		.tv_sec = (time_t)(until_ns / UINT64_C(1000000000)),
		.tv_nsec = (long)(until_ns % UINT64_C(1000000000)),
	};

	if (workers->job_count > 0) {
		pthread_cond_clockwait(
			&workers->helper_wake, &workers->lock, CLOCK_MONOTONIC, &until);
		return;
	}
	workers->helper_is_parked = true;
	pthread_cond_wait(&workers->helper_wake, &workers->lock);
	workers->helper_is_parked = false;
}

static void *helper_thread(void *argument)
{
	struct tls_workers *workers = argument;
	struct allowance allowance = { .at_ns = clock_ns(CLOCK_MONOTONIC),
		.saved_ns = HELPER_SAVED_MS * NS_PER_MS };

	pthread_mutex_lock(&workers->lock);
	while (!workers->stopping) {
		uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
		const struct tls_job *head = NULL;

		allowance_grow(&allowance, now_ns);
		if (!list_is_empty(&workers->urgent_jobs)) {
			run_first(workers, &workers->urgent_jobs);
			continue;
		}
		if (!list_is_empty(&workers->jobs)) {
			head = list_entry(list_first(&workers->jobs), struct tls_job, node);
		}
		if (head != NULL && allowance.saved_ns > 0 &&
			now_ns - head->queued_ns >= TLS_PATIENCE_MS * NS_PER_MS) {
			run_patiently(workers, &allowance);
			continue;
		}
		helper_wait(workers, now_ns + TLS_PATIENCE_MS / 5 * NS_PER_MS);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

/* --- jobs ------------------------------------------------------------------------------------- */

/* Starts a thread with all signals blocked, so that they are delivered to the program's other
 * threads. */
static bool workers_start(pthread_t *thread, void *(*run)(void *), struct tls_workers *workers)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	err = pthread_create(thread, &attributes, run, workers);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err == 0;
}

/* Starts threads if necessary. Returns false if there is no thread that could run the job. */
static bool have_threads(struct tls_workers *workers, bool urgent)
{
	if (!workers->has_helper) {
		workers->has_helper = workers_start(&workers->helper, helper_thread, workers);
	}
	if (urgent) {
		return workers->has_helper;
	}
	if (workers->idle_count == 0 && workers->thread_count < workers->thread_max &&
		workers_start(&workers->threads[workers->thread_count], nice_thread, workers)) {
		workers->thread_count++;
	}
	return workers->thread_count > 0;
}

int tls_workers_submit(struct tls_workers *workers, struct tls_job *job)
{
	int err = -EAGAIN;

	job->queued_ns = clock_ns(CLOCK_MONOTONIC);
	pthread_mutex_lock(&workers->lock);
	if (have_threads(workers, job->is_urgent)) {
		list_push_back(job->is_urgent ? &workers->urgent_jobs : &workers->jobs, &job->node);
		workers->job_count++;
		if (!job->is_urgent) {
			pthread_cond_signal(&workers->wake);
		}
		if (job->is_urgent || workers->helper_is_parked) {
			pthread_cond_signal(&workers->helper_wake);
		}
		err = 0;
	}
	pthread_mutex_unlock(&workers->lock);
	return err;
}
