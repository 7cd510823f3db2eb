// SPDX-License-Identifier: Apache-2.0
/*
 * Round-robin scheduling on two levels: first among the groups, then among the members of each
 * group. A group waits for one member of each other group, no matter how many members the other
 * group has.
 *
 *   turns ──▶ group A ──▶ group B ──▶ ...        a1, b1, a2, b2, a3, a4 ...
 *              a1 a2 a3 a4  b1 b2
 *
 * The code that hands out a resource tries all waiters:
 *
 *   turns_round_init(&round)
 *   while ((turn = turns_next(turns)) != NULL) {
 *           if the member was served      ──▶ turns_had(turns, turn, &round)
 *           if too little is left for it  ──▶ turns_in_vain(turn, &round)
 *   }
 *   turns_end(turns, &round)
 *
 * A failed try does not use up the group's turn: the next member of the group is tried immediately,
 * and the member that failed keeps its position. Otherwise a member that requests more than is
 * available would cost the other members of its group a turn each time. A member that was served
 * and waits again goes behind all other members of its group, and its group goes behind all other
 * groups. So a member is served again only after every other member of its group that could be
 * served, and a group only after every other group.
 *
 * A group belongs to one struct turns. All operations except turns_end() are O(1). No operation
 * allocates memory.
 *
 * Threading: the owner's thread. Ownership: the caller's; groups and members must exist while
 * they are linked.
 */
#pragma once

#include <stddef.h>

#include "base/list.h"

struct turns {
	struct list_node groups; /* groups with waiting members */
};

/* One pass over all waiters; exists for the duration of the loop. */
struct turns_round {
	/* members that could not be served, in the order of the tries */
	struct list_node in_vain;
	struct list_node had; /* groups of members that were served, the latest at the end */
};

struct turn_group {
	struct list_node node;
	struct list_node had_node; /* in turns_round.had */
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

/* Appends a member to its group's queue. No effect if it is already waiting. */
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

/* Removes a member from the queue. No effect if it does not wait. */
static inline void turns_remove(struct turn *turn)
{
	list_remove(&turn->node);
	if (list_is_empty(&turn->group->members)) {
		list_remove(&turn->group->node);
	}
}

/* Returns the next waiter without removing it; NULL if there is none. */
static inline struct turn *turns_first(const struct turns *turns)
{
	struct list_node *first = list_first(&turns->groups);

	return first == NULL
		       ? NULL
		       : list_entry(
				 list_first(&list_entry(first, struct turn_group, node)->members),
				 struct turn, node);
}

/* Removes and returns the next waiter; NULL if there is none. */
static inline struct turn *turns_next(struct turns *turns)
{
	struct turn *turn = turns_first(turns);

	if (turn != NULL) {
		turns_remove(turn);
	}
	return turn;
}

/* Called when a member was served: moves its group behind the other groups. round is NULL if the
 * caller serves one waiter at a time and never calls turns_in_vain(). */
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

/* Sets aside a member that could not be served. The member keeps waiting, and is not tried again
 * before turns_end(). */
static inline void turns_in_vain(struct turn *turn, struct turns_round *round)
{
	turns_remove(turn);
	list_push_back(&round->in_vain, &turn->node);
}

/* Ends a pass after all waiters were tried. The groups from which a member was served move behind
 * the other groups, first those that were served first. They move even if another of their
 * members could not be served. */
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
