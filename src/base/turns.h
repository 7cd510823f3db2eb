// SPDX-License-Identifier: Apache-2.0
/*
 * Taking turns on two levels: first the groups, then the members of each group. However many
 * members one group has, the next group waits for one of them only.
 *
 *   turns ──▶ group A ──▶ group B ──▶ ...        a1, b1, a2, b2, a3, a4 ...
 *              a1 a2 a3 a4  b1 b2
 *
 * Whoever has something to give goes through all that wait:
 *
 *   turns_round_init(&round)
 *   while ((turn = turns_next(turns)) != NULL) {
 *           it gets something, and may wait again ──▶ turns_had(turns, turn, &round)
 *           there is too little for it            ──▶ turns_in_vain(turn, &round)
 *   }
 *   turns_end(turns, &round)
 *
 * A try in vain is no turn: the next of the group is tried at once, and both keep their places.
 * Otherwise a member that wants more than there is would cost the others of its group their turns,
 * one each time. Who gets something waits behind all others of its group, and its group behind all
 * other groups. So it gets nothing more before those who could have been given it.
 *
 * A group belongs to one struct turns. All operations but turns_end() are O(1) and allocate
 * nothing.
 *
 * Threading: the owner's thread. Ownership: nothing is owned; groups and members must stay while
 * they are linked.
 */
#pragma once

#include <stddef.h>

#include "base/list.h"

struct turns {
	struct list_node groups; /* those that have members waiting */
};

/* One way through all that wait, for the time of a loop. */
struct turns_round {
	struct list_node in_vain; /* members, in the order in which they were tried */
	struct list_node had;	  /* groups that got something, the last one at the end */
};

struct turn_group {
	struct list_node node;
	struct list_node had_node; /* in the round's */
	struct list_node members;
};

struct turn {
	struct list_node node;
	struct turn_group *group;
};

static inline void turns_init(struct turns *turns)
{
	list_init(&turns->groups);
}

static inline void turns_round_init(struct turns_round *round)
{
	list_init(&round->in_vain);
	list_init(&round->had);
}

static inline void turn_group_init(struct turn_group *group)
{
	list_init(&group->node);
	list_init(&group->had_node);
	list_init(&group->members);
}

static inline void turn_init(struct turn *turn, struct turn_group *group)
{
	list_init(&turn->node);
	turn->group = group;
}

static inline bool turns_are_empty(const struct turns *turns)
{
	return list_is_empty(&turns->groups);
}

static inline bool turn_is_waiting(const struct turn *turn)
{
	return list_is_linked(&turn->node);
}

/* Waits as the last of its group. It waits already: nothing happens. */
static inline void turns_add(struct turns *turns, struct turn *turn)
{
	if (turn_is_waiting(turn)) {
		return;
	}
	list_push_back(&turn->group->members, &turn->node);
	if (!list_is_linked(&turn->group->node)) {
		list_push_back(&turns->groups, &turn->group->node);
	}
}

/* Waits no more. It did not wait: nothing happens. */
static inline void turns_remove(struct turn *turn)
{
	list_remove(&turn->node);
	if (list_is_empty(&turn->group->members)) {
		list_remove(&turn->group->node);
	}
}

/* Who is to be tried, and stays where it is; NULL: nobody waits. */
static inline struct turn *turns_first(const struct turns *turns)
{
	struct list_node *first = list_first(&turns->groups);

	return first == NULL
		       ? NULL
		       : list_entry(
				 list_first(&list_entry(first, struct turn_group, node)->members),
				 struct turn, node);
}

/* Removes and returns who is to be tried; NULL: nobody waits. */
static inline struct turn *turns_next(struct turns *turns)
{
	struct turn *turn = turns_first(turns);

	if (turn != NULL) {
		turns_remove(turn);
	}
	return turn;
}

/* It has got something. round NULL: the caller gives to one at a time, and tries nobody in vain. */
static inline void turns_had(
	struct turns *turns, const struct turn *turn, struct turns_round *round)
{
	struct turn_group *group = turn->group;

	if (list_is_linked(&group->node)) {
		list_remove(&group->node);
		list_push_back(&turns->groups, &group->node);
	}
	if (round != NULL) {
		list_remove(&group->had_node);
		list_push_back(&round->had, &group->had_node);
	}
}

/* It waits, and is not tried again before turns_end(). */
static inline void turns_in_vain(struct turn *turn, struct turns_round *round)
{
	turns_remove(turn);
	list_push_back(&round->in_vain, &turn->node);
}

/* Everybody was tried. The groups that have got something stand behind the others, in the order in
 * which they got it: a member that was tried in vain before does not bring its group forward. */
static inline void turns_end(struct turns *turns, struct turns_round *round)
{
	struct list_node *node;

	while ((node = list_pop_front(&round->in_vain)) != NULL) {
		struct turn *turn = list_entry(node, struct turn, node);
		struct turn_group *group = turn->group;

		list_push_back(&group->members, node);
		if (!list_is_linked(&group->had_node) && !list_is_linked(&group->node)) {
			list_push_back(&turns->groups, &group->node);
		}
	}
	while ((node = list_pop_front(&round->had)) != NULL) {
		struct turn_group *group = list_entry(node, struct turn_group, had_node);

		if (!list_is_empty(&group->members)) {
			list_remove(&group->node);
			list_push_back(&turns->groups, &group->node);
		}
	}
}
