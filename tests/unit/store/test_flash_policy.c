// SPDX-License-Identifier: Apache-2.0
/* The choice of a victim against brute force, and the order of the cache against a plain list. */
#include <string.h>

#include "lab/gc_rules.h"
#include "store/flash/cache_lru.h"
#include "unit.h"

enum { BLOCKS = 64, SEGMENTS = 24, SLOTS = 40, ROUNDS = 2000, STEPS = 20000 };

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t bound)
{
	random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((random_state >> 33) % bound);
}

/* --- victims ---------------------------------------------------------------------------------- */

/* Some ages and counts are equal, so that there are ties. */
static void table_fill(
	struct gc_table *table, enum gc_policy policy, struct gc_segment segments[SEGMENTS])
{
	static const enum gc_state states[] = { GC_FREE, GC_OPEN, GC_CLOSED, GC_CANDIDATE,
		GC_CANDIDATE, GC_CANDIDATE };

	gc_init(table, gc_rules[policy], segments, SEGMENTS, BLOCKS);
	table->clock = 1000;
	table->cold_weight = random_below(GC_WEIGHT_ONE + 1);
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		segments[i].state = states[random_below(ARRAY_COUNT(states))];
		segments[i].valid = random_below(2) ? random_below(BLOCKS + 1) : BLOCKS;
		segments[i].cold_dirty = random_below(segments[i].valid + 1);
		segments[i].stamp = random_below(1001);
	}
}

/* Programs that collecting it costs on top of those that come anyway. */
static uint64_t net_of(const struct gc_table *table, enum gc_policy policy, enum gc_need need,
	const struct gc_segment *segment)
{
	if (need == GC_SPACE || policy == GC_PLAIN || policy == GC_GREEDY) {
		return segment->valid;
	}
	return segment->valid - (policy == GC_PAPER ? segment->cold_dirty
						    : (uint64_t)segment->cold_dirty *
							      table->cold_weight / GC_WEIGHT_ONE);
}

/* True when a is a better victim than b, with whole numbers: (B - n) age / 2n > (B - m) age' / 2m
 * where (B - n) age m > (B - m) age' n. */
static bool is_better(const struct gc_table *table, enum gc_policy policy, enum gc_need need,
	const struct gc_segment *a, const struct gc_segment *b)
{
	bool is_by_age = need == GC_CHEAP && (policy == GC_AUTO || policy == GC_PLAIN);
	uint64_t n = net_of(table, policy, need, a);
	uint64_t m = net_of(table, policy, need, b);
	uint64_t left = m;
	uint64_t right = n;

	if (is_by_age && n != 0 && m != 0) {
		left = (BLOCKS - n) * (table->clock - a->stamp) * m;
		right = (BLOCKS - m) * (table->clock - b->stamp) * n;
	} else if (is_by_age) {
		left = n == 0;
		right = m == 0;
	}
	return left > right || (left == right && a->stamp < b->stamp);
}

TEST(the_victim_is_that_of_brute_force)
{
	uint32_t found = 0;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		enum gc_policy policy = round % GC_POLICY_COUNT;
		enum gc_need need = round / GC_POLICY_COUNT % 2 ? GC_SPACE : GC_CHEAP;
		struct gc_segment segments[SEGMENTS];
		struct gc_table table;
		uint32_t best = GC_NO_SEGMENT;

		table_fill(&table, policy, segments);
		for (uint32_t i = 0; i < SEGMENTS; i++) {
			if (segments[i].state == GC_CANDIDATE &&
				net_of(&table, policy, need, &segments[i]) < BLOCKS &&
				(best == GC_NO_SEGMENT || is_better(&table, policy, need,
								  &segments[i], &segments[best]))) {
				best = i;
			}
		}
		assert_int_equal(gc_victim(&table, need), best);
		found += best != GC_NO_SEGMENT;
	}
	assert_true(found > ROUNDS / 2);
}

TEST(who_waits_for_space_gets_some)
{
	struct gc_segment segments[2];
	struct gc_table table;

	gc_init(&table, &gc_rule_auto, segments, 2, BLOCKS);
	gc_restore(&table, 0, BLOCKS, 10);
	gc_restore(&table, 1, BLOCKS - 1, 90);
	table.clock = 100;
	segments[0].cold_dirty = BLOCKS;
	assert_int_equal(gc_victim(&table, GC_CHEAP), GC_NO_SEGMENT); /* both are needed */
	gc_set_state(&table, 0, GC_CANDIDATE);
	gc_set_state(&table, 1, GC_CANDIDATE);
	assert_int_equal(gc_victim(&table, GC_CHEAP), 0);
	assert_int_equal(gc_victim(&table, GC_SPACE), 1);
	gc_set_state(&table, 1, GC_CLOSED);
	assert_int_equal(gc_victim(&table, GC_SPACE), GC_NO_SEGMENT);
}

TEST(a_moved_block_keeps_its_age)
{
	struct gc_segment segments[3];
	struct gc_table table;

	gc_init(&table, &gc_rule_auto, segments, 3, BLOCKS);
	for (uint32_t i = 0; i < 3; i++) {
		gc_set_state(&table, i, GC_OPEN);
	}
	gc_append(&table, 0, GC_NO_SEGMENT);
	gc_append(&table, 1, GC_NO_SEGMENT);
	gc_append(&table, 1, GC_NO_SEGMENT);
	assert_int_equal(table.clock, 3);
	assert_int_equal(segments[1].stamp, 3);
	gc_append(&table, 2, 0);
	gc_dead(&table, 0);
	assert_int_equal(table.clock, 3);
	assert_int_equal(segments[2].stamp, segments[0].stamp);
	assert_int_equal(segments[0].valid, 0);
	assert_int_equal(segments[2].valid, 1);
}

/* --- the cache -------------------------------------------------------------------------------- */

/* The same by a plain list: of dirty slots the newest first, of clean ones the oldest first. */
struct oracle {
	uint32_t dirty[SLOTS];
	uint32_t dirty_count;
	uint32_t clean[SLOTS];
	uint32_t clean_count;
	uint32_t home[SLOTS];
};

static bool list_remove_slot(uint32_t *list, uint32_t *count, uint32_t slot)
{
	for (uint32_t i = 0; i < *count; i++) {
		if (list[i] == slot) {
			memmove(&list[i], &list[i + 1], (--*count - i) * sizeof(*list));
			return true;
		}
	}
	return false;
}

static void oracle_forget(struct oracle *oracle, uint32_t slot)
{
	list_remove_slot(oracle->dirty, &oracle->dirty_count, slot);
	list_remove_slot(oracle->clean, &oracle->clean_count, slot);
}

static void oracle_set_newest(struct oracle *oracle, uint32_t slot)
{
	oracle_forget(oracle, slot);
	memmove(&oracle->dirty[1], oracle->dirty, oracle->dirty_count * sizeof(*oracle->dirty));
	oracle->dirty[0] = slot;
	oracle->dirty_count++;
}

static void expect_same(const struct cache_lru *lru, const struct oracle *oracle)
{
	uint32_t cold = oracle->dirty_count * lru->cold_percent / 100;
	uint32_t cold_dirty[SEGMENTS] = { 0 };
	uint32_t slot = cache_lru_oldest(lru);

	assert_int_equal(cache_lru_dirty_count(lru), oracle->dirty_count);
	for (uint32_t i = oracle->dirty_count; i-- > 0;) {
		bool is_cold = i >= oracle->dirty_count - cold;

		assert_int_equal(slot, oracle->dirty[i]);
		assert_int_equal(lru->slots[slot].state, is_cold ? CACHE_COLD : CACHE_HOT);
		assert_int_equal(lru->slots[slot].home, oracle->home[slot]);
		if (is_cold && oracle->home[slot] != GC_NO_SEGMENT) {
			cold_dirty[oracle->home[slot]]++;
		}
		slot = cache_lru_newer(lru, slot);
	}
	assert_int_equal(slot, CACHE_NO_SLOT);
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		assert_int_equal(lru->table->segments[i].cold_dirty, cold_dirty[i]);
	}
}

static uint32_t random_home(void)
{
	return random_below(4) == 0 ? GC_NO_SEGMENT : random_below(SEGMENTS);
}

static void step_take(struct cache_lru *lru, struct oracle *oracle)
{
	bool has_free = lru->lists[CACHE_FREE].count > 0;
	uint32_t slot = cache_lru_take(lru);

	if (!has_free) {
		assert_int_equal(slot, oracle->clean_count > 0 ? oracle->clean[0] : CACHE_NO_SLOT);
	}
	if (slot != CACHE_NO_SLOT) {
		assert_int_equal(lru->slots[slot].state, CACHE_BUSY);
		oracle_forget(oracle, slot);
	}
}

/* One step on a slot that may be in any state; what is not allowed there is another step. */
static void step(struct cache_lru *lru, struct oracle *oracle)
{
	uint32_t slot = random_below(SLOTS);
	enum cache_state was = lru->slots[slot].state;
	uint32_t choice = random_below(6);

	if (choice == 0) {
		step_take(lru, oracle);
	} else if (was == CACHE_FREE) {
		return;
	} else if (choice == 1) {
		cache_lru_set_free(lru, slot);
		oracle_forget(oracle, slot);
	} else if (choice == 2) {
		oracle->home[slot] = random_home();
		cache_lru_set_home(lru, slot, oracle->home[slot]);
	} else if (was == CACHE_BUSY && choice == 3) {
		cache_lru_set_clean(lru, slot);
		oracle->clean[oracle->clean_count++] = slot;
	} else if (was == CACHE_BUSY) {
		oracle->home[slot] = random_home();
		cache_lru_set_dirty(lru, slot, oracle->home[slot]);
		oracle_set_newest(oracle, slot);
	} else if (was == CACHE_CLEAN || choice == 3) {
		cache_lru_set_busy(lru, slot);
		oracle_forget(oracle, slot);
	} else {
		cache_lru_touch(lru, slot);
		oracle_set_newest(oracle, slot);
	}
}

TEST(the_cold_part_is_the_end_of_the_list)
{
	static const uint32_t parts[] = { 0, 30, 80, 100 };

	for (uint32_t part = 0; part < ARRAY_COUNT(parts); part++) {
		struct gc_segment segments[SEGMENTS];
		struct gc_table table;
		struct cache_slot slots[SLOTS];
		struct cache_lru lru;
		struct oracle oracle = { .dirty_count = 0 };
		uint32_t seen = 0;

		gc_init(&table, &gc_rule_auto, segments, SEGMENTS, BLOCKS);
		for (uint32_t i = 0; i < SEGMENTS; i++) {
			gc_restore(&table, i, BLOCKS, i);
		}
		cache_lru_init(&lru, &table, parts[part], slots, SLOTS);
		for (uint32_t i = 0; i < STEPS; i++) {
			step(&lru, &oracle);
			expect_same(&lru, &oracle);
			seen = MAX(seen, oracle.dirty_count);
		}
		assert_true(seen > SLOTS / 2);
	}
}

TEST(cold_pages_weigh_what_they_saved)
{
	struct gc_segment segments[1];
	struct gc_table table;
	struct cache_slot slots[SLOTS];
	struct cache_lru lru;

	gc_init(&table, &gc_rule_auto, segments, 1, BLOCKS);
	cache_lru_init(&lru, &table, 100, slots, SLOTS);
	assert_int_equal(table.cold_weight, GC_WEIGHT_ONE);
	for (uint32_t i = 0; i < 4; i++) {
		cache_lru_set_dirty(&lru, cache_lru_take(&lru), GC_NO_SEGMENT);
	}
	cache_lru_set_busy(&lru, cache_lru_oldest(&lru)); /* evicted */
	assert_int_equal(table.cold_weight, GC_WEIGHT_ONE);
	cache_lru_touch(&lru, cache_lru_oldest(&lru));
	assert_int_equal(table.cold_weight, GC_WEIGHT_ONE * 2 / 3);
	cache_lru_set_free(&lru, cache_lru_oldest(&lru)); /* trimmed */
	assert_int_equal(table.cold_weight, GC_WEIGHT_ONE * 2 / 4);
	cache_lru_write_back(&lru, cache_lru_oldest(&lru));
	assert_int_equal(table.cold_weight, GC_WEIGHT_ONE * 2 / 4);
	/* It is forgotten, but not at once. */
	for (uint32_t i = 0; i < 100 * SLOTS; i++) {
		cache_lru_touch(&lru, cache_lru_oldest(&lru));
	}
	assert_in_range(table.cold_weight, 1, GC_WEIGHT_ONE / (SLOTS / 2));
	for (uint32_t i = 0; i < 2 * SLOTS; i++) {
		uint32_t slot = cache_lru_oldest(&lru);

		cache_lru_set_busy(&lru, slot);
		cache_lru_set_dirty(&lru, slot, GC_NO_SEGMENT);
	}
	assert_in_range(table.cold_weight, GC_WEIGHT_ONE / 2, GC_WEIGHT_ONE);
}

/* --- the rule --------------------------------------------------------------------------------- */

/*
 * What one valid block of a victim costs up to its next write: the copy, and a second program when
 * the cache evicts a newer version before that write.
 */
static uint32_t programs(enum gc_way way, bool is_dirty, bool is_evicted)
{
	return 1 + (way != GC_WRITE_BACK && is_dirty && is_evicted);
}

TEST(the_rule_never_costs_a_program)
{
	static const enum cache_state states[] = { CACHE_FREE, CACHE_BUSY, CACHE_CLEAN, CACHE_HOT,
		CACHE_COLD };
	uint32_t saved = 0;

	for (uint32_t i = 0; i < ARRAY_COUNT(states); i++) {
		bool is_dirty = states[i] == CACHE_HOT || states[i] == CACHE_COLD;
		struct cache_slot slots[1] = { { .state = (uint8_t)states[i] } };
		uint32_t slot = states[i] == CACHE_FREE ? CACHE_NO_SLOT : 0;
		enum gc_way ways[GC_POLICY_COUNT];

		for (enum gc_policy policy = 0; policy < GC_POLICY_COUNT; policy++) {
			struct gc_table table = { .rule = gc_rules[policy] };
			struct cache_lru lru = { .table = &table, .slots = slots, .slot_count = 1 };

			ways[policy] = cache_lru_gc_way(&lru, slot);
		}
		assert_int_equal(ways[GC_AUTO], ways[GC_PAPER]);
		assert_int_equal(ways[GC_PLAIN], ways[GC_GREEDY]);
		/* What is written back is the newest, and nobody else writes it. */
		assert_int_equal(ways[GC_AUTO] == GC_WRITE_BACK, states[i] == CACHE_COLD);
		assert_int_equal(ways[GC_AUTO] == GC_FROM_CLEAN_CACHE, states[i] == CACHE_CLEAN);
		assert_int_not_equal(ways[GC_PLAIN], GC_WRITE_BACK);
		for (uint32_t is_evicted = 0; is_evicted < 2; is_evicted++) {
			uint32_t on = programs(ways[GC_AUTO], is_dirty, is_evicted);
			uint32_t off = programs(ways[GC_PLAIN], is_dirty, is_evicted);

			assert_true(on <= off);
			saved += off - on;
		}
	}
	assert_int_equal(saved, 1); /* a cold dirty page that is evicted */
}
