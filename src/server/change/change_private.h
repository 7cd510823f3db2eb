// SPDX-License-Identifier: Apache-2.0
/*
 * Private to server/change: the parts of a change. change.c decides what to do, commit.c does it.
 *
 * Threading, ownership and errors: see server/change/change.h.
 */
#pragma once

#include "server/change/change.h"

enum { CHANGE_LABEL_BYTES = 120, CHANGE_RULES_BYTES = 420 };

enum change_action { CHANGE_STAY, CHANGE_ADD, CHANGE_UPDATE, CHANGE_REPLACE, CHANGE_REMOVE };

/* The change of one export. */
struct change_item {
	enum change_action action;
	struct served_export
		*before; /* the export's entry in the table; NULL: the export is added */
	/* The new entry, owned until the commit. With STAY and UPDATE, it has settings but no open
	 * disk. With REMOVE, there is none (NULL). */
	struct served_export *after;
	struct access *rules; /* owned, or NULL */
	bool has_rules;	      /* `rules` replace the rules of `before` */
	char *rules_text;     /* description of the difference of the rules, or NULL */
	struct removed_export
		*removed; /* for a removed entry; owned from change_open() until the commit */
	/* Exports to remove and to add on each reactor, set by the commit. Each engine holds a
	 * reference until it has made the change. */
	struct export *old;
	struct export *new;
	/* before the commit: the new description; after it: the old one, which is freed with the
	 * change, because sessions can read it until all reactors have committed */
	char *description;
};

struct change {
	struct change_options options;
	struct change_item *items;
	uint32_t item_count;
	struct exports next;
	uint32_t closing_count;
	json_t *lines;
	/* The rules that were last compared, and the result, which is cached because many exports
	 * have the same rules. */
	struct access *rules_before; /* owned, or NULL, like the next member */
	struct access *rules_after;
	char rules_text[CHANGE_RULES_BYTES]; /* "": the rules are equal */
	/* The configuration's rates if some have changed, otherwise NULL. Borrowed. */
	const struct server_rates *rates;
	_Atomic uint32_t references;
	struct reactor_task tasks[]; /* one for each reactor */
};

/* The text export "NAME", valid until the end of the enclosing block, like quote(). */
#define change_label(name) change_label_into((char[CHANGE_LABEL_BYTES]){ 0 }, name)
const char *change_label_into(char out[CHANGE_LABEL_BYTES], const char *name);
