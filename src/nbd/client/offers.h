// SPDX-License-Identifier: Apache-2.0
/*
 * Information from an NBD server about itself and its exports. The handshake collects it, and
 * "gmblock info" prints it.
 *
 *   facts: the parameters agreed for the transmission phase of one export
 *   offers ── list[] ── offer: name, description, size, flags, block sizes
 *     │                   └── contexts[]
 *     └── notes[]         facts a user of an export should know, one sentence each
 *
 * Threading: the caller's object. Ownership: the offers own everything inside them, which
 * nbd_offers_fini() frees; texts passed in are copied. Errors: -E2BIG with a sentence if the server
 * exceeds the limits below, -EPROTO for an invalid reply, -ENOMEM.
 */
#pragma once

#include "base/error.h"
#include "nbd/wire.h"

enum {
	NBD_OFFERS_MAX = 65536,	       /* limit on exports in one list */
	NBD_OFFER_CONTEXTS_MAX = 4096, /* limit on metadata contexts of one export */
	NBD_NOTES_MAX = 32,
	NBD_OFFERS_BYTES_MAX = 32 << 20, /* limit on the sum of all texts */
};

enum nbd_reply_style { NBD_REPLIES_SIMPLE, NBD_REPLIES_STRUCTURED, NBD_REPLIES_EXTENDED };

/* Returns "simple", "structured" or "extended". */
const char *nbd_reply_style_name(enum nbd_reply_style style);

/* Text from the server: without zero bytes, at most 4096 bytes, not terminated. */
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
	char *name;	      /* as requested or listed; "" is the default export */
	char *canonical_name; /* the server's own name for the export, or NULL */
	char *description;    /* or NULL */
	/* reason why the server provides no further information, or NULL; escaped */
	char *refusal;
	bool known;	/* size and flags are valid */
	uint16_t flags; /* transmission flags */
	uint64_t size;
	bool sizes_known; /* block sizes are valid */
	struct nbd_block_sizes sizes;
	/* gmb only: a write with FUA of at most this size is atomic; 0: no write is. */
	bool atomic_known;
	uint32_t atomic_bytes;
	bool contexts_known;	/* the list of contexts is complete */
	char *contexts_refusal; /* reason why the list is incomplete, or NULL; escaped */
	char **contexts;
	uint32_t context_count;
};

/* Protection of a connection; static texts. */
struct nbd_protection {
	const char *version; /* "TLS 1.3"; NULL: not encrypted */
	const char *cipher;  /* "AES-128-GCM" */
	bool verified;	     /* the server is authenticated */
};

struct nbd_offers {
	uint32_t host;	      /* the server, an index for export_uri_at() */
	const char *protocol; /* static text; NULL: NBD */
	/* Flags and contexts that the protocol has. 0: NBD's. Otherwise, there are no
	 * contexts. */
	uint16_t flags_known;
	bool is_nameless; /* the protocol has no export names: those in the list are not printed */
	struct nbd_protection protection;
	bool fixed; /* fixed newstyle, otherwise the original newstyle */
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

/* Replaces a text (a member of an offer). An empty text is stored as "". */
GMB_MUST_CHECK int nbd_offers_set_text(
	struct nbd_offers *offers, char **slot, struct nbd_text text, struct error *error);

/* The following functions process one message from the server each. The caller passes exactly the
 * bytes of one payload. They store its content, or return -EPROTO with the rule that the server
 * broke. */

/* NBD_REP_SERVER: an export. */
GMB_MUST_CHECK int nbd_offers_take_server(
	struct nbd_offers *offers, const uint8_t *payload, uint32_t length, struct error *error);
/* Processes NBD_REP_INFO: an item of information about an export. */
GMB_MUST_CHECK int nbd_offers_take_info(struct nbd_offers *offers, struct nbd_offer *offer,
	const uint8_t *payload, uint32_t length, struct error *error);
/* Processes size and flags: a struct nbd_wire_old_reply. */
GMB_MUST_CHECK int nbd_offer_take_size(
	struct nbd_offer *offer, const uint8_t *bytes, struct error *error);
/* Checks a text from the server. what: its description in the error message. */
GMB_MUST_CHECK int nbd_text_take(const char *what, const uint8_t *bytes, uint32_t length,
	struct nbd_text *text, struct error *error);

GMB_MUST_CHECK int nbd_offers_add_context(struct nbd_offers *offers, struct nbd_offer *offer,
	struct nbd_text name, struct error *error);

/* Called when the server has ended the list of an export's contexts with an error, so the list does
 * not count (rule P42): removes the contexts. */
void nbd_offers_drop_contexts(struct nbd_offers *offers, struct nbd_offer *offer);

/* Adds a note: one sentence that a user of the export should know. It is dropped if there are
 * NBD_NOTES_MAX already. */
void nbd_offers_note(struct nbd_offers *offers, const char *format, ...) GMB_PRINTF(2, 3);

/* Adds the notes about one export. */
void nbd_offers_review(struct nbd_offers *offers, const struct nbd_offer *offer);

/* --- facts --------------------------------------------------------------------------------- */

enum { NBD_DISK_BYTES = 16 };

/* Parameters agreed for the transmission phase. */
struct nbd_facts {
	enum nbd_reply_style style;
	uint64_t size;	  /* < 2^63 */
	uint16_t flags;	  /* NBD_FLAG_ of the transmission phase */
	bool sizes_known; /* false: sizes has the defaults of rule P62 */
	struct nbd_block_sizes sizes;
	bool allocation;	/* base:allocation was selected */
	uint32_t allocation_id; /* context id in block status replies */
	/* gmblock's takeover extension; without it can_take_over is false and epoch is 0. If the
	 * epoch has changed, acknowledged writes that were not flushed may be lost; if is_volatile
	 * is set, flushed ones may be lost as well. */
	bool can_take_over;
	bool is_volatile;
	uint64_t epoch;
	/* identity of the disk, the same at each server that has this disk; zeroes: unknown */
	uint8_t disk[NBD_DISK_BYTES];
	/* the server agreed to nbd_handshake_options.alive_ms */
	bool says_alive;
	/* the server agreed to x-gmblock:size, which needs structured or extended replies */
	bool says_size;
	/* the server will grant nbd_handshake_options.lease, or refuse the export */
	bool has_leases;
	/* the name given by the server, or the requested name */
	char name[NBD_STRING_BYTES_MAX + 1];
	char description[NBD_STRING_BYTES_MAX + 1]; /* or "" */
};

/* Stores the server's information about the export that it has opened. */
void nbd_facts_take_offer(struct nbd_facts *facts, const struct nbd_offer *offer);
/* Stores a context that the server has selected, and its id. */
void nbd_facts_take_selected(struct nbd_facts *facts, uint32_t id, struct nbd_text name);
/* Processes one of gmblock's own contexts: the epoch, the identity of the disk, signs of life, the
 * size, leases. Ignores others. */
void nbd_facts_take_extension(struct nbd_facts *facts, struct nbd_text name);
