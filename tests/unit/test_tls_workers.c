// SPDX-License-Identifier: Apache-2.0
/*
 * Threads for handshakes: whatever the nice ones are doing, our own jobs run at once, and
 * strangers' in the end. Each case would wait for ever if it were not so.
 */
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "tls/pool.h"
#include "unit.h"

enum { JOBS = 40 };

struct fixture {
	struct ring *ring;
	struct tls_workers *workers;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint32_t ran;
	uint32_t done;
};

struct job {
	struct tls_job base;
	struct fixture *fixture;
	uint32_t waits_for; /* so many jobs have run */
	bool is_done;
	bool takes_signals;
};

/* Of the thread that is inside ring_post(), behind the message. */
static _Atomic bool is_held;
static sem_t may_leave;
static _Atomic bool is_inside;

void __real_ring_post(struct ring *ring, struct ring_message *message);
void __wrap_ring_post(struct ring *ring, struct ring_message *message);

void __wrap_ring_post(struct ring *ring, struct ring_message *message)
{
	if (is_held) {
		is_inside = true;
	}
	__real_ring_post(ring, message);
	if (is_held) {
		const struct timespec moment = { .tv_nsec = 20000000 };

		while (sem_wait(&may_leave) != 0) {
		}
		nanosleep(&moment, NULL); /* for who does not wait for us to be caught */
		is_inside = false;
	}
}

static void run(struct tls_job *base)
{
	struct job *job = container_of(base, struct job, base);
	struct fixture *fixture = job->fixture;

	pthread_mutex_lock(&fixture->lock);
	while (fixture->ran < job->waits_for) {
		pthread_cond_wait(&fixture->changed, &fixture->lock);
	}
	fixture->ran++;
	pthread_cond_broadcast(&fixture->changed);
	pthread_mutex_unlock(&fixture->lock);
}

static void done(struct tls_job *base)
{
	struct job *job = container_of(base, struct job, base);

	assert_false(job->is_done);
	job->is_done = true;
	job->fixture->done++;
}

static void submit(struct fixture *fixture, struct job *job, uint32_t waits_for, bool urgent)
{
	*job = (struct job){
		.base = { .ring = fixture->ring, .is_urgent = urgent, .run = run, .done = done },
		.fixture = fixture,
		.waits_for = waits_for,
	};
	assert_int_equal(tls_workers_submit(fixture->workers, &job->base), 0);
}

static void begin(struct fixture *fixture, uint32_t threads)
{
	struct error error;

	memset(fixture, 0, sizeof(*fixture));
	pthread_mutex_init(&fixture->lock, NULL);
	pthread_cond_init(&fixture->changed, NULL);
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &fixture->ring, &error), 0);
	assert_int_equal(tls_workers_create(threads, &fixture->workers, &error), 0);
}

static void end(struct fixture *fixture, uint32_t jobs)
{
	while (fixture->done < jobs) {
		(void)ring_turn(fixture->ring, true);
	}
	tls_workers_destroy(fixture->workers);
	ring_destroy(fixture->ring);
	pthread_cond_destroy(&fixture->changed);
	pthread_mutex_destroy(&fixture->lock);
}

TEST(test_every_job_runs_once)
{
	struct fixture fixture;
	struct job jobs[JOBS];

	begin(&fixture, 3);
	for (uint32_t i = 0; i < JOBS; i++) {
		submit(&fixture, &jobs[i], 0, i % 4 == 0);
	}
	end(&fixture, JOBS);
}

/* The job is gone and its ring about to go, while a thread is on the way back from telling it. */
TEST(test_a_ring_may_go_once_threads_are_synchronized)
{
	struct fixture fixture;
	struct job job;

	sem_init(&may_leave, 0, 0);
	begin(&fixture, 1);
	is_held = true;
	submit(&fixture, &job, 0, false);
	while (fixture.done < 1) {
		(void)ring_turn(fixture.ring, true);
	}
	memset(&job, 0xa5, sizeof(job));
	sem_post(&may_leave);
	tls_workers_synchronize(fixture.workers);
	assert_false(is_inside);
	is_held = false;
	end(&fixture, 1);
	sem_destroy(&may_leave);
}

static void look_at_signals(struct tls_job *base)
{
	struct job *job = container_of(base, struct job, base);
	sigset_t blocked;

	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	job->takes_signals = sigismember(&blocked, SIGINT) == 0;
}

/* A program that uses the library handles its signals in its own threads. */
TEST(test_threads_take_no_signals)
{
	struct fixture fixture;
	struct job jobs[2];

	begin(&fixture, 1);
	for (uint32_t i = 0; i < ARRAY_COUNT(jobs); i++) {
		jobs[i] = (struct job){
			.base = { .ring = fixture.ring,
				.is_urgent = i == 0,
				.run = look_at_signals,
				.done = done },
			.fixture = &fixture,
		};
		assert_int_equal(tls_workers_submit(fixture.workers, &jobs[i].base), 0);
	}
	end(&fixture, ARRAY_COUNT(jobs));
	assert_false(jobs[0].takes_signals || jobs[1].takes_signals);
}

TEST(test_our_own_jobs_do_not_wait_for_strangers)
{
	struct fixture fixture;
	struct job stranger;
	struct job own;

	begin(&fixture, 1);
	submit(&fixture, &stranger, 1, false);
	submit(&fixture, &own, 0, true);
	end(&fixture, 2);
}

/* The only nice thread does not come to an end before the second stranger has been served. */
TEST(test_a_stranger_does_not_wait_for_ever)
{
	struct fixture fixture;
	struct job strangers[2];

	begin(&fixture, 1);
	submit(&fixture, &strangers[0], 1, false);
	submit(&fixture, &strangers[1], 0, false);
	end(&fixture, 2);
}
