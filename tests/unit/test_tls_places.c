// SPDX-License-Identifier: Apache-2.0
/*
 * Places for handshakes, on simulated time: shares of sources, who is next, what failures cost, who
 * gives way; and honest clients among thousands that say nothing.
 */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"
#include "tls/pool.h"
#include "tls_peer.h"
#include "unit.h"

enum { NOT_YET = 1, OURSELVES = 0 };

#define NS_PER_MS UINT64_C(1000000)

struct holder {
	struct tls_place place;
	uint8_t source[TLS_SOURCE_BYTES];
	int result;
	uint64_t wait_ns;
};

struct fixture {
	struct ring *ring;
	struct tls_world world;
};

static int set_up(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	struct error error;

	assert_non_null(fixture);
	sim_start(&(struct sim_options){ .seed = 3 });
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &fixture->ring, &error), 0);
	tls_world_begin(&fixture->world, 0);
	*state = fixture;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *fixture = *state;

	tls_world_end(&fixture->world);
	ring_destroy(fixture->ring);
	sim_stop();
	free(fixture);
	return 0;
}

static void pass_ms(struct fixture *fixture, uint64_t ms)
{
	uint64_t until_ns = ring_now_ns(fixture->ring) + ms * NS_PER_MS;

	while (ring_now_ns(fixture->ring) < until_ns) {
		(void)ring_turn_limited(fixture->ring, until_ns - ring_now_ns(fixture->ring));
	}
}

static void done(struct tls_place *place, int result)
{
	container_of(place, struct holder, place)->result = result;
}

static int take(struct fixture *fixture, struct holder *holder, uint32_t source)
{
	int err;

	*holder = (struct holder){ .result = NOT_YET };
	memcpy(holder->source, &source, sizeof(source));
	holder->place.ring = fixture->ring;
	holder->place.source = source == OURSELVES ? NULL : holder->source;
	holder->place.done = done;
	err = tls_place_take(fixture->world.pool, &holder->place, &holder->wait_ns);
	if (err == 0) {
		holder->result = 0;
	}
	return err;
}

static void give(struct fixture *fixture, struct holder *holder, bool failed)
{
	tls_place_give(&holder->place, failed);
	while (!tls_place_is_idle(&holder->place)) {
		(void)ring_turn(fixture->ring, true);
	}
}

TEST_WITH(test_a_source_has_its_share_and_no_more, set_up, tear_down)
{
	struct holder greedy[TLS_HANDSHAKES_PER_SOURCE_MAX + 2];
	struct holder modest;

	for (uint32_t i = 0; i < ARRAY_COUNT(greedy); i++) {
		assert_int_equal(take(*state, &greedy[i], 1),
			i < TLS_HANDSHAKES_PER_SOURCE_MAX ? 0 : -EINPROGRESS);
	}
	assert_int_equal(take(*state, &modest, 2), 0);
	pass_ms(*state, 5000);
	assert_int_equal(greedy[TLS_HANDSHAKES_PER_SOURCE_MAX].result, NOT_YET);
	/* Another's place is of no use to it, its own is; first come, first served. */
	give(*state, &modest, false);
	pass_ms(*state, 1);
	assert_int_equal(greedy[TLS_HANDSHAKES_PER_SOURCE_MAX].result, NOT_YET);
	give(*state, &greedy[3], false);
	pass_ms(*state, 1);
	assert_int_equal(greedy[TLS_HANDSHAKES_PER_SOURCE_MAX].result, 0);
	assert_int_equal(greedy[TLS_HANDSHAKES_PER_SOURCE_MAX + 1].result, NOT_YET);
	for (uint32_t i = 0; i < ARRAY_COUNT(greedy); i++) {
		give(*state, &greedy[i], false);
	}
}

/* All places are held, and more wait than may: the source that fills the queue loses its oldest. */
TEST_WITH(test_a_full_queue_takes_from_the_most_frequent, set_up, tear_down)
{
	struct holder *holders = calloc(TLS_HANDSHAKES_MAX, sizeof(*holders));
	struct holder *waiting = calloc(TLS_WAITING_MAX, sizeof(*waiting));
	struct holder modest;

	assert_true(holders != NULL && waiting != NULL);
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		assert_int_equal(take(*state, &holders[i], 100 + i), 0);
	}
	for (uint32_t i = 0; i < TLS_WAITING_MAX; i++) {
		assert_int_equal(take(*state, &waiting[i], i < 100 ? 1000 + i : 1), -EINPROGRESS);
	}
	assert_int_equal(take(*state, &modest, 2), -EINPROGRESS);
	pass_ms(*state, 1);
	assert_int_equal(waiting[99].result, NOT_YET);
	assert_int_equal(waiting[100].result, -EAGAIN);
	assert_int_equal(waiting[101].result, NOT_YET);
	assert_int_equal(modest.result, NOT_YET);
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		give(*state, &holders[i], false);
	}
	pass_ms(*state, 1);
	assert_int_equal(waiting[63].result, 0);
	assert_int_equal(waiting[64].result, NOT_YET);
	for (uint32_t i = 0; i < TLS_WAITING_MAX; i++) {
		give(*state, &waiting[i], false);
	}
	pass_ms(*state, 1);
	assert_int_equal(modest.result, 0);
	give(*state, &modest, false);
	free(holders);
	free(waiting);
}

/* The one that is refused may be of the source that comes: its share is counted on. */
TEST_WITH(test_a_full_queue_takes_from_the_source_that_comes, set_up, tear_down)
{
	struct holder *holders = calloc(TLS_HANDSHAKES_MAX, sizeof(*holders));
	struct holder *waiting = calloc(TLS_WAITING_MAX, sizeof(*waiting));
	struct holder again;
	struct holder other;

	assert_true(holders != NULL && waiting != NULL);
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		assert_int_equal(take(*state, &holders[i], 100 + i), 0);
	}
	for (uint32_t i = 0; i < TLS_WAITING_MAX; i++) {
		assert_int_equal(take(*state, &waiting[i], 1000 + i), -EINPROGRESS);
	}
	assert_int_equal(take(*state, &again, 1000), -EINPROGRESS);
	pass_ms(*state, 1);
	assert_int_equal(waiting[0].result, -EAGAIN);
	assert_int_equal(again.result, NOT_YET);
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		give(*state, &holders[i], false);
	}
	for (uint32_t i = 0; i < TLS_WAITING_MAX; i++) {
		give(*state, &waiting[i], false);
	}
	pass_ms(*state, 1);
	assert_int_equal(again.result, 0);
	/* All others are forgotten meanwhile, and this one is not. */
	for (uint32_t i = 0; i < 2 * TLS_SOURCES_MAX; i++) {
		assert_int_equal(take(*state, &other, 10000 + i), 0);
		give(*state, &other, false);
	}
	for (uint32_t i = 1; i < TLS_HANDSHAKES_PER_SOURCE_MAX; i++) {
		assert_int_equal(take(*state, &holders[i], 1000), 0);
	}
	assert_int_equal(take(*state, &other, 1000), -EINPROGRESS);
	give(*state, &other, false);
	for (uint32_t i = 1; i < TLS_HANDSHAKES_PER_SOURCE_MAX; i++) {
		give(*state, &holders[i], false);
	}
	give(*state, &again, false);
	free(holders);
	free(waiting);
}

/* Our own are not refused for others, and who is sent away leaves nothing behind. */
TEST_WITH(test_a_queue_full_of_our_own_takes_nobody, set_up, tear_down)
{
	struct holder *holders = calloc(TLS_HANDSHAKES_MAX, sizeof(*holders));
	struct holder *waiting = calloc(TLS_WAITING_MAX, sizeof(*waiting));
	struct holder other;

	assert_true(holders != NULL && waiting != NULL);
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		assert_int_equal(take(*state, &holders[i], OURSELVES), 0);
	}
	for (uint32_t i = 0; i < TLS_WAITING_MAX; i++) {
		assert_int_equal(take(*state, &waiting[i], OURSELVES), -EINPROGRESS);
	}
	for (uint32_t i = 0; i < 2 * TLS_SOURCES_MAX; i++) {
		assert_int_equal(take(*state, &other, 1000 + i), -EAGAIN);
	}
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		give(*state, &holders[i], false);
	}
	for (uint32_t i = 0; i < TLS_WAITING_MAX; i++) {
		give(*state, &waiting[i], false);
	}
	free(holders);
	free(waiting);
}

TEST_WITH(test_failures_cost_their_source, set_up, tear_down)
{
	struct fixture *fixture = *state;
	struct holder holder;
	uint32_t failed = 0;

	while (take(fixture, &holder, 7) == 0) {
		give(fixture, &holder, true);
		failed++;
		assert_true(failed <= TLS_FAILURES_BURST + 1);
	}
	assert_int_equal(failed, TLS_FAILURES_BURST + 1);
	assert_true(holder.wait_ns > 0 && holder.wait_ns <= TLS_FAILURE_INTERVAL_MS * NS_PER_MS);
	/* Nobody else pays; what succeeds costs nothing. */
	for (uint32_t i = 0; i < 50; i++) {
		assert_int_equal(take(fixture, &holder, 8), 0);
		give(fixture, &holder, false);
	}
	assert_int_equal(take(fixture, &holder, 7), -EBUSY);
	pass_ms(fixture, TLS_FAILURE_INTERVAL_MS);
	assert_int_equal(take(fixture, &holder, 7), 0);
	give(fixture, &holder, true);
	assert_int_equal(take(fixture, &holder, 7), -EBUSY);
	pass_ms(fixture, 10 * TLS_FAILURE_INTERVAL_MS);
	for (uint32_t i = 0; i < 10; i++) {
		assert_int_equal(take(fixture, &holder, 7), 0);
		give(fixture, &holder, true);
	}
}

TEST_WITH(test_memory_of_sources_is_bounded, set_up, tear_down)
{
	struct holder holder;
	size_t before = 0;

	for (uint32_t i = 0; i < 3 * TLS_SOURCES_MAX; i++) {
		assert_int_equal(take(*state, &holder, 1000 + i), 0);
		give(*state, &holder, true);
		if (i == TLS_SOURCES_MAX) {
			before = mallinfo2().uordblks;
		}
	}
	assert_true(mallinfo2().uordblks <= before + 4096);
	/* The last ones are still known. */
	for (uint32_t i = 0; i < TLS_FAILURES_BURST; i++) {
		assert_int_equal(take(*state, &holder, 999 + 3 * TLS_SOURCES_MAX), 0);
		give(*state, &holder, true);
	}
	assert_int_equal(take(*state, &holder, 999 + 3 * TLS_SOURCES_MAX), -EBUSY);
}

TEST_WITH(test_who_is_silent_gives_way, set_up, tear_down)
{
	struct fixture *fixture = *state;
	struct holder holders[TLS_HANDSHAKES_MAX];
	struct holder waits;

	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		assert_int_equal(take(fixture, &holders[i], 100 + i), 0);
		if (i % 2 == 1) {
			tls_place_is_silent(&holders[i].place, true);
			pass_ms(fixture, 1);
		}
	}
	/* Nobody waits: there is no hurry. */
	pass_ms(fixture, 2 * TLS_SILENCE_MS);
	tls_pool_make_room(fixture->world.pool, ring_now_ns(fixture->ring));
	pass_ms(fixture, 1);
	assert_int_equal(holders[1].result, 0);
	assert_int_equal(take(fixture, &waits, 1), -EINPROGRESS);
	tls_place_is_silent(&holders[1].place, false); /* it has just spoken */
	tls_pool_make_room(fixture->world.pool, ring_now_ns(fixture->ring));
	pass_ms(fixture, 1);
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		assert_int_equal(holders[i].result, i == 3 ? -EAGAIN : 0);
	}
	give(fixture, &holders[3], true);
	pass_ms(fixture, 1);
	assert_int_equal(waits.result, 0);
	give(fixture, &waits, false);
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		give(fixture, &holders[i], false);
	}
}

TEST_WITH(test_a_short_silence_is_none, set_up, tear_down)
{
	struct fixture *fixture = *state;
	struct holder holders[TLS_HANDSHAKES_MAX];
	struct holder waits;

	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		assert_int_equal(take(fixture, &holders[i], 100 + i), 0);
		tls_place_is_silent(&holders[i].place, true);
	}
	assert_int_equal(take(fixture, &waits, 1), -EINPROGRESS);
	for (uint32_t late = 0; late < 2; late++) {
		pass_ms(fixture, late == 0 ? TLS_SILENCE_MS / 2 : TLS_SILENCE_MS);
		tls_pool_make_room(fixture->world.pool, ring_now_ns(fixture->ring));
		pass_ms(fixture, 1);
		assert_int_equal(holders[0].result, late == 0 ? 0 : -EAGAIN);
	}
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		assert_int_equal(holders[i].result, i == 0 ? -EAGAIN : 0);
		give(fixture, &holders[i], false);
	}
	give(fixture, &waits, false);
}

/* Handshakes that we began ourselves wait for slow servers as long as we like. */
TEST_WITH(test_our_own_give_way_to_nobody, set_up, tear_down)
{
	struct fixture *fixture = *state;
	struct holder holders[TLS_HANDSHAKES_MAX];
	struct holder waits;

	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		assert_int_equal(take(fixture, &holders[i], OURSELVES), 0);
		tls_place_is_silent(&holders[i].place, true);
	}
	assert_int_equal(take(fixture, &waits, OURSELVES), -EINPROGRESS);
	pass_ms(fixture, 2 * TLS_SILENCE_MS);
	tls_pool_make_room(fixture->world.pool, ring_now_ns(fixture->ring));
	pass_ms(fixture, 1);
	for (uint32_t i = 0; i < TLS_HANDSHAKES_MAX; i++) {
		assert_int_equal(holders[i].result, 0);
		give(fixture, &holders[i], true);
	}
	pass_ms(fixture, 1);
	assert_int_equal(waits.result, 0);
	give(fixture, &waits, true);
}

/* --- among those who say nothing -------------------------------------------------------------- */

enum { STALLED = 1800, HELLO_BYTES_MAX = 600 };

/* Honest peers of other addresses come while all the others sit there; the simulated world has no
 * room for more than these, the memory for each of which is what counts. */
TEST_WITH(test_honest_peers_come_through_those_who_stall, set_up, tear_down)
{
	struct fixture *fixture = *state;
	struct peer *stalled = calloc(STALLED, sizeof(*stalled));
	size_t before;
	size_t after;
	struct peer honest;

	assert_non_null(stalled);
	before = mallinfo2().uordblks;
	for (uint32_t i = 0; i < STALLED; i++) {
		struct peer *peer = &stalled[i];

		peer_begin(peer, &fixture->world, fixture->ring, TLS_SERVER, TLS_BY_KEY,
			(uint8_t)(i % 200));
		/* Silent; within a header; within a hello; within a long one, which has a place. */
		if (i % 4 > 0) {
			static const uint8_t hello[] = { 0x16, 3, 3, 2, 0, 1, 0, 1, 0xfc };
			static const uint8_t long_hello[] = { 0x16, 3, 3, 0x20, 0, 1, 0, 0x1f,
				0xfc };

			peer_send_bytes(peer, i % 4 == 3 ? long_hello : hello,
				i % 4 == 1 ? 3 : sizeof(hello));
		}
		if (i % 100 == 0) {
			pass_ms(fixture, 1);
		}
	}
	pass_ms(fixture, 10);
	after = mallinfo2().uordblks;
	print_message("%zu bytes for each of %d\n", (after - before) / STALLED, (int)STALLED);
	assert_true((after - before) / STALLED <= 24 << 10);
	for (uint32_t i = 0; i < 20; i++) {
		uint64_t since_ns = ring_now_ns(fixture->ring);

		peer_begin(&honest, &fixture->world, fixture->ring, TLS_SERVER, TLS_BY_KEY,
			(uint8_t)(220 + i));
		peer_session(&honest, TLS_BY_KEY, NULL);
		assert_int_equal(peer_shake(&honest), 0);
		assert_true(ring_now_ns(fixture->ring) - since_ns < 1000 * NS_PER_MS);
		peer_end(&honest);
	}
	for (uint32_t i = 0; i < STALLED; i++) {
		peer_end(&stalled[i]);
	}
	free(stalled);
}

enum { DRIBBLERS = TLS_HANDSHAKES_MAX, DRIBBLE_MS = 100 };

/* All places are held by hellos of which a byte comes now and then. */
TEST_WITH(test_a_byte_now_and_then_keeps_no_place, set_up, tear_down)
{
	static const uint8_t long_hello[] = { 0x16, 3, 3, 0x20, 0, 1, 0, 0x1f, 0xfc };
	struct fixture *fixture = *state;
	struct peer *dribblers = calloc(DRIBBLERS, sizeof(*dribblers));
	struct peer honest;
	uint64_t since_ns;
	uint64_t next_ns;

	assert_non_null(dribblers);
	for (uint32_t i = 0; i < DRIBBLERS; i++) {
		peer_begin(&dribblers[i], &fixture->world, fixture->ring, TLS_SERVER, TLS_BY_KEY,
			(uint8_t)(i / TLS_HANDSHAKES_PER_SOURCE_MAX));
		peer_send_bytes(&dribblers[i], long_hello, sizeof(long_hello));
	}
	pass_ms(fixture, 10);
	peer_begin(&honest, &fixture->world, fixture->ring, TLS_SERVER, TLS_BY_KEY, 200);
	peer_session(&honest, TLS_BY_KEY, NULL);
	since_ns = next_ns = ring_now_ns(fixture->ring);
	while (honest.upgraded == 1) {
		int result;

		if (ring_now_ns(fixture->ring) >= next_ns) {
			next_ns += DRIBBLE_MS * NS_PER_MS;
			for (uint32_t i = 0; i < DRIBBLERS; i++) {
				if (dribblers[i].upgraded == 1) {
					peer_send_bytes(&dribblers[i], "", 1);
				}
			}
		}
		peer_fetch(&honest);
		result = gnutls_handshake(honest.session);
		assert_true(result == 0 || gnutls_error_is_fatal(result) == 0);
		peer_send(&honest);
		peer_turn(&honest);
		assert_true(ring_now_ns(fixture->ring) - since_ns < 2000 * NS_PER_MS);
	}
	assert_int_equal(honest.upgraded, 0);
	peer_end(&honest);
	for (uint32_t i = 0; i < DRIBBLERS; i++) {
		peer_end(&dribblers[i]);
	}
	free(dribblers);
}
