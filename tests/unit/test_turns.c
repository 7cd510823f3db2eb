// SPDX-License-Identifier: Apache-2.0
#include "base/turns.h"
#include "unit.h"

enum { MEMBERS = 4 };

/* a and b are of one group, c and d have one each. */
struct world {
	struct turns turns;
	struct turn_group groups[3];
	struct turn members[MEMBERS];
};

static void world_init(struct world *world)
{
	static const uint8_t group_of[MEMBERS] = { 0, 0, 1, 2 };

	turns_init(&world->turns);
	for (size_t i = 0; i < ARRAY_COUNT(world->groups); i++) {
		turn_group_init(&world->groups[i]);
	}
	for (size_t i = 0; i < MEMBERS; i++) {
		turn_init(&world->members[i], &world->groups[group_of[i]]);
	}
}

static struct turn *member(struct world *world, char name)
{
	return &world->members[name - 'a'];
}

static void add(struct world *world, const char *names)
{
	for (; *names != '\0'; names++) {
		turns_add(&world->turns, member(world, *names));
	}
}

static void expect_order(struct world *world, const char *names)
{
	for (; *names != '\0'; names++) {
		assert_ptr_equal(turns_next(&world->turns), member(world, *names));
	}
	assert_null(turns_next(&world->turns));
}

/* One round. Who is in takers gets something, and waits again; the others are tried in vain. */
static void serve(struct world *world, const char *tried, const char *takers)
{
	struct turns_round round;
	struct turn *turn;

	turns_round_init(&round);
	for (; (turn = turns_next(&world->turns)) != NULL; tried++) {
		assert_ptr_equal(turn, member(world, *tried));
		if (*takers == *tried) {
			takers++;
			turns_add(&world->turns, turn);
			turns_had(&world->turns, turn, &round);
		} else {
			turns_in_vain(turn, &round);
		}
	}
	assert_int_equal(*tried, '\0');
	turns_end(&world->turns, &round);
}

TEST(groups_take_turns_then_their_members)
{
	struct world world;

	world_init(&world);
	add(&world, "abcd");
	serve(&world, "acdbacd", "acd"); /* each once */
	expect_order(&world, "bacd");
	add(&world, "abcd");
	turns_remove(member(&world, 'c'));
	expect_order(&world, "abd");
}

TEST(a_try_in_vain_is_no_turn)
{
	struct world world;

	world_init(&world);
	add(&world, "abcd");
	serve(&world, "abcd", "");
	serve(&world, "abcd", "");
	expect_order(&world, "abcd");
}

TEST(who_got_something_stands_behind_who_did_not)
{
	struct world world;

	world_init(&world);
	add(&world, "abcd");
	serve(&world, "abcdc", "c");
	expect_order(&world, "abdc");
}

/* a is tried in vain, and b gets something then, the last of all. */
TEST(a_member_in_vain_does_not_bring_its_group_forward)
{
	struct world world;

	world_init(&world);
	add(&world, "cdab");
	serve(&world, "cdabcdb", "cdb");
	expect_order(&world, "cdab");
}
