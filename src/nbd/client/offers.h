// SPDX-License-Identifier: Apache-2.0
/*
 * What an NBD server says about itself and its exports, as a handshake collects it and "gmblock
 * info" shows it.
 *
 *   facts: what was agreed for the transmission phase of one export
 *   offers ── list[] ── offer: name, description, size, flags, block sizes
 *     │                   └── contexts[]
 *     └── notes[]         what a user of an export should know, one sentence each
 *
 * Threading: the caller's object. Ownership: everything inside belongs to the offers and is freed
 * by nbd_offers_fini(); texts passed in are copied. Errors: -E2BIG with a sentence when the server
 * exceeds the limits below, -ENOMEM.
 */
#pragma once

#include "base/error.h"
#include "nbd/wire.h"

enum {
	NBD_OFFERS_MAX = 65536,	       /* exports in one list */
	NBD_OFFER_CONTEXTS_MAX = 4096, /* metadata contexts of one export */
	NBD_NOTES_MAX = 32,
	NBD_OFFERS_BYTES_MAX = 32 << 20, /* all texts together */
	NBD_QUOTE_BYTES = 96,		 /* a name inside a sentence, escaped */
};

enum nbd_reply_style { NBD_REPLIES_SIMPLE, NBD_REPLIES_STRUCTURED, NBD_REPLIES_EXTENDED };

/* "simple", "structured" or "extended". */
const char *nbd_reply_style_name(enum nbd_reply_style style);

/* Text as the server wrote it: no zero byte inside, at most 4096 bytes, not terminated. */
struct nbd_text {
	const char *bytes;
	uint32_t length;
};

struct nbd_block_sizes {
	uint32_t minimum;     /* power of two, 1 to 65536 */
	uint32_t preferred;   /* power of two, >= max(512, minimum) */
	uint32_t payload_max; /* >= preferred; UINT32_MAX = no fixed limit */
};

struct nbd_offer {
	char *name;	      /* as asked for or listed; "" is the default export */
	char *canonical_name; /* the server's own name for it, or NULL */
	char *description;    /* or NULL */
	char *refusal;	      /* why the server says no more, or NULL; escaped */
	bool known;	      /* size and flags are valid */
	uint16_t flags;	      /* transmission flags */
	uint64_t size;
	bool sizes_known; /* block sizes are valid */
	struct nbd_block_sizes sizes;
	/* Of gmb: a write with FUA of at most so many bytes is kept as a whole; 0: none is. */
	bool atomic_known;
	uint32_t atomic_bytes;
	bool contexts_known;	/* the list of contexts is complete */
	char *contexts_refusal; /* why it is not, or NULL; escaped */
	char **contexts;
	uint32_t context_count;
};

/* How a connection is protected; static texts. */
struct nbd_protection {
	const char *version; /* "TLS 1.3"; NULL: it is not */
	const char *cipher;  /* "AES-128-GCM" */
	bool verified;	     /* the server has proved who it is */
};

struct nbd_offers {
	const char *protocol; /* static, when it is another one than NBD; else NULL */
	struct nbd_protection protection;
	bool fixed; /* fixed newstyle, else the first newstyle */
	bool no_zeroes;
	bool listed; /* the server sent its complete list */
	enum nbd_reply_style style;
	struct nbd_offer *list;
	uint32_t count;
	uint64_t text_bytes; /* private */
	char *notes[NBD_NOTES_MAX];
	uint32_t note_count;
};

void nbd_offers_fini(struct nbd_offers *offers);

/* Appends an export. */
GMB_MUST_CHECK int nbd_offers_add(struct nbd_offers *offers, struct nbd_text name,
	struct nbd_text description, struct error *error);

/* Replaces one text (a member of an offer). An empty text is kept as "". */
GMB_MUST_CHECK int nbd_offers_set_text(
	struct nbd_offers *offers, char **slot, struct nbd_text text, struct error *error);

/* What the server sends, one message at a time: -EPROTO and the rule when it broke one, else the
 * answer is kept. The caller passes exactly the bytes of one payload. */

/* NBD_REP_SERVER: one more export. */
GMB_MUST_CHECK int nbd_offers_take_server(
	struct nbd_offers *offers, const uint8_t *payload, uint32_t length, struct error *error);
/* NBD_REP_INFO: one item about an export. */
GMB_MUST_CHECK int nbd_offers_take_info(struct nbd_offers *offers, struct nbd_offer *offer,
	const uint8_t *payload, uint32_t length, struct error *error);
/* Size and flags, a struct nbd_wire_old_reply. */
GMB_MUST_CHECK int nbd_offer_take_size(
	struct nbd_offer *offer, const uint8_t *bytes, struct error *error);
/* Text that is called what in a sentence. */
GMB_MUST_CHECK int nbd_text_take(const char *what, const uint8_t *bytes, uint32_t length,
	struct nbd_text *text, struct error *error);

GMB_MUST_CHECK int nbd_offers_add_context(struct nbd_offers *offers, struct nbd_offer *offer,
	struct nbd_text name, struct error *error);

/* Forgets the contexts of an export (a list that ended in an error does not count, rule P42). */
void nbd_offers_drop_contexts(struct nbd_offers *offers, struct nbd_offer *offer);

/* Remembers a sentence; from NBD_NOTES_MAX on it is dropped. */
void nbd_offers_note(struct nbd_offers *offers, const char *format, ...) GMB_PRINTF(2, 3);

/* Adds the notes on one export. */
void nbd_offers_review(struct nbd_offers *offers, const struct nbd_offer *offer);

/* --- facts --------------------------------------------------------------------------------- */

/* What was agreed for the transmission phase. */
struct nbd_facts {
	enum nbd_reply_style style;
	uint64_t size;	  /* < 2^63 */
	uint16_t flags;	  /* NBD_FLAG_ of the transmission phase */
	bool sizes_known; /* else sizes holds the defaults of rule P62 */
	struct nbd_block_sizes sizes;
	bool allocation;	/* base:allocation was selected */
	uint32_t allocation_id; /* its id in block status replies */
	/* The server's own extension; can_take_over is false and epoch 0 where it is not known.
	 * With a new epoch, what was acknowledged and not flushed may be lost, and when is_volatile
	 * everything. */
	bool can_take_over;
	bool is_volatile;
	uint64_t epoch;
	bool says_alive;		     /* it agreed, see nbd_handshake_options.alive_ms */
	bool says_size;			     /* the same, with another style than simple replies */
	char name[NBD_STRING_BYTES_MAX + 1]; /* the server's own name, or as asked for */
	char description[NBD_STRING_BYTES_MAX + 1]; /* or "" */
};

/* What the server said about the export that it has opened. */
void nbd_facts_take_offer(struct nbd_facts *facts, const struct nbd_offer *offer);
/* A context that it has selected, and its id. */
void nbd_facts_take_selected(struct nbd_facts *facts, uint32_t id, struct nbd_text name);
/* A context of its own: the epoch, signs of life, the size. Others are none of our business. */
void nbd_facts_take_extension(struct nbd_facts *facts, struct nbd_text name);
