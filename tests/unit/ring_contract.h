// SPDX-License-Identifier: Apache-2.0
/*
 * What the files of the contract suite share: operations that remember their completion, and the
 * form of a case. See test_ring_contract.c.
 *
 * Threading: one. Ownership: a case gets a ring with nothing in flight and leaves it so. Errors: a
 * broken promise fails the test.
 */
#pragma once

#include "ring_world.h"
#include "unit.h"

#define MS_NS UINT64_C(1000000)

/* Defines a case, which gets a new ring in each round (world_rounds). */
#define CONTRACT(name)                                                                             \
	static void name(struct ring *ring);                                                       \
	static void name##_run(void **state)                                                       \
	{                                                                                          \
		contract_run(name);                                                                \
	}                                                                                          \
	__attribute__((constructor)) static void unit_add_##name(void)                             \
	{                                                                                          \
		unit_add(&(struct CMUnitTest){ #name, name##_run, NULL, NULL, NULL });             \
	}                                                                                          \
	static void name(struct ring *ring)

void contract_run(void (*run)(struct ring *ring));

struct waiter {
	struct ring_op op;
	int calls;
	int result;
	unsigned order; /* which completion of the case it was */
	uint64_t at_ns;
	bool was_in_flight;
	struct ring *ring; /* whose clock gives at_ns, or NULL */
};

void waiter_done(struct ring_op *op, int result);
/* Turns until it has completed, exactly once; returns the result. */
int wait_for(struct ring *ring, struct waiter *waiter);
/* Everything that can be known without waiting has happened. */
void settle(struct ring *ring);
/* Another ring; options may be NULL. */
struct ring *contract_ring(const struct ring_options *options);

/* Posts 100 numbered messages to mail_ring; how many of them were delivered, in their order. */
extern struct ring *mail_ring;
extern int mail_delivered;
void mail_post_all(void *context);

/* A descriptor that is not in the ring's table. */
static inline struct ring_file plain(int fd)
{
	return (struct ring_file){ .fd = fd, .slot = -1 };
}

static inline uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 7 + (at >> 8) * 13 + (at >> 16));
}
