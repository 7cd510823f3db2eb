// SPDX-License-Identifier: Apache-2.0
/*
 * Taking turns on two levels: first the groups, then the members of each group. However many
 * members one group has, the next group waits for one of them only.
 *
 *   turns ──▶ group A ──▶ group B ──▶ ...        turns_next(): a1, b1, a2, b2, a3, a4 ...
 *              a1 a2 a3 a4  b1 b2
 *
 * A group belongs to one struct turns. All operations are O(1) and allocate nothing.
 *
 * Threading: the owner's thread. Ownership: nothing is owned; groups and members must stay while
 * they are linked.
 */
#pragma once

#include "base/list.h"

struct turns {
	struct list_node groups; /* those that have members waiting */
};

struct turn_group {
	struct list_node node;
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

static inline void turn_group_init(struct turn_group *group)
{
	list_init(&group->node);
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

/* Removes and returns whose turn it is; NULL: nobody waits. */
static inline struct turn *turns_next(struct turns *turns)
{
	struct list_node *first = list_first(&turns->groups);
	struct turn_group *group;
	struct turn *turn;

	if (first == NULL) {
		return NULL;
	}
	group = list_entry(first, struct turn_group, node);
	turn = list_entry(list_pop_front(&group->members), struct turn, node);
	list_remove(&group->node);
	if (!list_is_empty(&group->members)) {
		list_push_back(&turns->groups, &group->node);
	}
	return turn;
}
