// SPDX-License-Identifier: Apache-2.0
/*
 * Private to server/change: what a change is made of. change.c says what is to be done,
 * commit.c does it.
 *
 * Threading, ownership and errors: see server/change/change.h.
 */
#pragma once

#include "server/change/change.h"

enum { CHANGE_LABEL_BYTES = 120, CHANGE_RULES_BYTES = 420 };

enum change_action { CHANGE_STAY, CHANGE_ADD, CHANGE_UPDATE, CHANGE_REPLACE, CHANGE_REMOVE };

/* One export. */
struct change_item {
	enum change_action action;
	struct served *before; /* in the table; NULL: it is added */
	struct served *after;  /* owned until the commit; NULL: it goes, or stays as it is */
	struct access *rules;  /* owned, or NULL */
	bool has_rules;	       /* they take the place of those of before */
	char *rules_text;      /* what is other about them, or NULL */
	struct gone *gone;     /* of one that goes, from change_open() until the commit */
	/* For the reactors, from the commit on: each engine has a reference until its part. */
	struct export *old;
	struct export *new;
	char *description; /* that no session reads once all reactors have committed */
};

struct change {
	struct change_options options;
	struct change_item *items;
	uint32_t item_count;
	struct exports next;
	uint32_t closing_count;
	json_t *lines;
	/* The rules that were compared last: many exports have the same. */
	struct access *rules_before; /* owned, as the next; or NULL */
	struct access *rules_after;
	char rules_text[CHANGE_RULES_BYTES]; /* "": they are the same */
	const struct server_rates *rates;    /* limits that change; of the configuration; or NULL */
	_Atomic uint32_t references;
	struct reactor_task tasks[]; /* one for each reactor */
};

/* "export \"x\"" */
const char *change_label(const char *name, char out[CHANGE_LABEL_BYTES]);
