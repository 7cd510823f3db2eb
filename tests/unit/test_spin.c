// SPDX-License-Identifier: Apache-2.0
/*
 * Polling (base/spin.h): how many looks a thread makes, with another one on its CPU and without.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/spin.h"
#include "unit.h"

enum {
	MS_NS = 1000000,
	/* A processor that pauses for 25 ns between two looks makes 40,000 in a millisecond. */
	LOOKS_CROWDED_MAX = 32 * SPIN_LOOKS,
};
#define FOREVER_NS UINT64_MAX

static _Atomic(bool) is_over;

static void *work(void *argument)
{
	while (!atomic_load(&is_over)) {
	}
	return NULL;
}

static void on_one_cpu(const cpu_set_t *before, cpu_set_t *one)
{
	int cpu = 0;

	while (!CPU_ISSET(cpu, before)) {
		cpu++;
	}
	CPU_ZERO(one);
	CPU_SET(cpu, one);
	assert_int_equal(sched_setaffinity(0, sizeof(*one), one), 0);
}

/* A thread that shares its CPU with a busy one soon stops, however long it may poll. Its looks are
 * counted instead of the time, which depends on the load. */
TEST(another_thread_on_the_cpu_ends_the_looks)
{
	cpu_set_t before;
	cpu_set_t one;
	pthread_t busy;

	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	on_one_cpu(&before, &one);
	assert_int_equal(pthread_create(&busy, NULL, work, NULL), 0);
	for (int i = 0; i < 20; i++) {
		struct spin spin;

		spin_begin(&spin, FOREVER_NS, SPIN_LOOKS);
		while (spin_goes_on(&spin)) {
		}
		assert_true(spin.was_crowded);
		assert_true(spin.looks <= LOOKS_CROWDED_MAX);
	}
	atomic_store(&is_over, true);
	pthread_join(busy, NULL);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(polling_ends_with_its_time)
{
	uint64_t begin_ns = clock_now_ns();
	struct spin spin;

	spin_begin(&spin, MS_NS, SPIN_LOOKS);
	while (spin_goes_on(&spin)) {
	}
	assert_true(spin.was_crowded || clock_now_ns() - begin_ns >= MS_NS);
	assert_int_equal(spin.looks % SPIN_LOOKS, 0);
	spin_begin(&spin, 0, 4);
	while (spin_goes_on(&spin)) {
	}
	assert_int_equal(spin.looks, 4);
}

/* One message after each wait, as a peer with one request in flight sends them. Returns the looks.
 */
static uint64_t looks_of_waits(struct spinner *spinner, uint32_t waits)
{
	uint64_t looks = 0;

	for (uint32_t i = 0; i < waits; i++) {
		spinner->requests++;
		if (spinner_begin(spinner, FOREVER_NS, 4)) {
			while (spin_goes_on(&spinner->spin)) {
			}
			looks += spinner->spin.looks;
		} else {
			uint64_t begin_ns = clock_now_ns();

			while (clock_now_ns() - begin_ns < WAIT_SPIN_NS) {
			}
		}
	}
	return looks;
}

TEST(who_must_not_poll_never_looks)
{
	struct spinner spinner;

	spinner_init(&spinner, false);
	assert_int_equal(looks_of_waits(&spinner, 2000), 0);
	spinner_init(&spinner, true);
	assert_true(looks_of_waits(&spinner, 2000) > 0);
}
