// SPDX-License-Identifier: Apache-2.0
/*
 * What an NBD server told about itself and its exports, as an inquiry collects it and "gmblock
 * info" shows it.
 *
 *   offers ── list[] ── offer: name, description, size, flags, block sizes
 *     │                   └── contexts[]
 *     └── notes[]         what the server should do differently, one sentence each
 *
 * Threading: the caller's object. Ownership: everything inside belongs to the offers and is freed
 * by nbd_offers_fini(); texts handed in are copied. Errors: -E2BIG with a sentence when the server
 * wants to be remembered beyond the limits below, -ENOMEM.
 */
#pragma once

#include "nbd/client_parse.h"

enum {
	NBD_OFFERS_MAX = 65536,	       /* exports in one list */
	NBD_OFFER_CONTEXTS_MAX = 4096, /* metadata contexts of one export */
	NBD_NOTES_MAX = 32,
	NBD_OFFERS_BYTES_MAX = 32 << 20, /* all texts together */
};

enum nbd_reply_style { NBD_REPLIES_SIMPLE, NBD_REPLIES_STRUCTURED, NBD_REPLIES_EXTENDED };

struct nbd_offer {
	char *name;	      /* as asked for or listed; "" is the default export */
	char *canonical_name; /* the server's own name for it, or NULL when it told none */
	char *description;    /* or NULL */
	char *refusal;	      /* why the server told no more, or NULL; escaped */
	bool known;	      /* size and flags were told */
	uint16_t flags;	      /* transmission flags */
	uint64_t size;
	bool sizes_known; /* block sizes were told */
	struct nbd_block_sizes sizes;
	bool contexts_known;	/* the list of contexts is complete */
	char *contexts_refusal; /* why it is not, or NULL; escaped */
	char **contexts;
	uint32_t context_count;
};

struct nbd_offers {
	bool fixed; /* fixed newstyle, else the first newstyle */
	bool no_zeroes;
	bool listed; /* the server gave its complete list */
	enum nbd_reply_style style;
	struct nbd_offer *list;
	uint32_t count;
	uint64_t text_bytes; /* private */
	char *notes[NBD_NOTES_MAX];
	uint32_t note_count;
};

void nbd_offers_init(struct nbd_offers *offers);
void nbd_offers_fini(struct nbd_offers *offers);

/* Appends an export. */
GMB_MUST_CHECK int nbd_offers_add(struct nbd_offers *offers, struct nbd_text name,
	struct nbd_text description, struct error *error);

/* Replaces one text (a member of an offer). An empty text is kept as "". */
GMB_MUST_CHECK int nbd_offers_set_text(
	struct nbd_offers *offers, char **slot, struct nbd_text text, struct error *error);

GMB_MUST_CHECK int nbd_offers_add_context(struct nbd_offers *offers, struct nbd_offer *offer,
	struct nbd_text name, struct error *error);

/* Forgets the contexts of an export (a list that ended in an error does not count, rule P42). */
void nbd_offers_drop_contexts(struct nbd_offers *offers, struct nbd_offer *offer);

/* Remembers a sentence; from NBD_NOTES_MAX on it is dropped. */
void nbd_offers_note(struct nbd_offers *offers, const char *format, ...) GMB_PRINTF(2, 3);

/* Adds the notes that the facts of one export deserve: what its server should (not) have said. */
void nbd_offers_review(struct nbd_offers *offers, const struct nbd_offer *offer);
