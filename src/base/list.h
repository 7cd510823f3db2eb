// SPDX-License-Identifier: Apache-2.0
/*
 * Intrusive doubly linked list: a ring of nodes that includes the head. Insertion and removal are
 * O(1) and allocate no memory. An unlinked node points to itself, so list_is_linked() and a second
 * list_remove() are well defined.
 *
 * Threading: the owner's thread. Ownership: the list never owns its entries.
 */
#pragma once

#include "base/compiler.h"

struct list_node {
	struct list_node *next;
	struct list_node *prev;
};

static inline void list_init(struct list_node *node)
{
	node->next = node;
	node->prev = node;
}

static inline bool list_is_empty(const struct list_node *head)
{
	return head->next == head;
}

static inline bool list_is_linked(const struct list_node *node)
{
	return node->next != node;
}

static inline void list_insert_before(struct list_node *position, struct list_node *node)
{
	node->prev = position->prev;
	node->next = position;
	position->prev->next = node;
	position->prev = node;
}

static inline void list_push_back(struct list_node *head, struct list_node *node)
{
	list_insert_before(head, node);
}

static inline void list_push_front(struct list_node *head, struct list_node *node)
{
	list_insert_before(head->next, node);
}

static inline void list_remove(struct list_node *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	list_init(node);
}

/* Returns the first node, or NULL if the list is empty. */
static inline struct list_node *list_first(const struct list_node *head)
{
	return list_is_empty(head) ? NULL : head->next;
}

/* Removes and returns the first node; returns NULL if the list is empty. */
static inline struct list_node *list_pop_front(struct list_node *head)
{
	struct list_node *node = head->next;

	if (node == head) {
		return NULL;
	}
	list_remove(node);
	return node;
}

/* Moves all nodes, in their order, to the end of another list. */
static inline void list_move_all(struct list_node *to, struct list_node *from)
{
	struct list_node *first = from->next;

	if (first != from) {
		first->prev = to->prev;
		from->prev->next = to;
		to->prev->next = first;
		to->prev = from->prev;
		list_init(from);
	}
}

#define list_entry(node, type, member) container_of(node, type, member)

/* Runs the body for each node. The body may remove the current node, but no other. */
#define list_for_each(node, head)                                                                  \
	for (struct list_node *node = (head)->next, *node##_next = node->next; node != (head);     \
		node = node##_next, node##_next = node->next)
