// SPDX-License-Identifier: Apache-2.0
/*
 * Opens an export: the client's side of the handshake up to the transmission phase, without a
 * socket. The owner moves bytes; the negotiation decides what to say next and collects the facts.
 *
 *   greeting ─▶ EXTENDED_HEADERS ─▶ STRUCTURED_REPLY ─▶ (LIST_META_CONTEXT) ─▶ SET_META_CONTEXT
 *            ─▶ GO ─▶ (EXPORT_NAME)
 *
 * From most to least capable (rules P32, P36, P109), one option at a time (P12), left politely when
 * the server refuses (P14, P19, P21).
 *
 * Threading: the caller's object. Ownership: the negotiation owns its facts; options are copied.
 * Errors: negotiation_input() returns -EPROTO when the server broke a rule (then: close), and a
 * finished negotiation tells through negotiation_outcome() what the server lawfully refused. Memory
 * and the number of replies are bounded whatever the server sends; time is the owner's to bound.
 */
#pragma once

#include "nbd/dialogue.h"
#include "nbd/offer.h"

enum { NEGOTIATION_INSTEAD_MAX = 32, NEGOTIATION_TOKEN_BYTES_MAX = 48 };

struct negotiation;

struct negotiation_options {
	const char *export_name;	/* "" is the default export; at most 4096 bytes */
	enum nbd_reply_style style_max; /* do not ask for more than this */
	/* A name for this connection that no other has, and the names of those it comes instead of:
	 * a server that knows what that means (facts.can_take_over) ends them, and their requests,
	 * before it goes on (docs/design/0006-reconnect.md). NULL: none. Copied. */
	const char *token;
	const char *const *instead;
	uint32_t instead_count; /* at most NEGOTIATION_INSTEAD_MAX */
};

/* What was agreed. */
struct negotiation_facts {
	enum nbd_reply_style style;
	uint64_t size;	 /* < 2^63 */
	uint16_t flags;	 /* NBD_FLAG_ of the transmission phase */
	bool sizes_told; /* else sizes holds the defaults of rule P62 */
	struct nbd_block_sizes sizes;
	bool allocation;	/* base:allocation was selected */
	uint32_t allocation_id; /* its id in block status replies */
	/* The server's own extension; can_take_over is false and epoch 0 where it is not known. A
	 * new epoch may have lost what was answered and not flushed, and when volatile also what
	 * was.
	 */
	bool can_take_over;
	bool is_volatile;
	uint64_t epoch;
	char name[NBD_STRING_BYTES_MAX + 1];	    /* the server's own name, or as asked for */
	char description[NBD_STRING_BYTES_MAX + 1]; /* or "" */
};

GMB_MUST_CHECK int negotiation_create(const struct negotiation_options *options,
	struct negotiation **negotiation_out, struct error *error);
/* NULL is a no-op. */
void negotiation_destroy(struct negotiation *negotiation);

/* What to send now; *bytes is 0 when it is the server's turn. Everything must have been sent before
 * the next negotiation_input(): negotiation_sent() says so. */
const uint8_t *negotiation_output(const struct negotiation *negotiation, size_t *bytes);
void negotiation_sent(struct negotiation *negotiation);

/*
 * Takes what the server sent, any number of bytes, and returns how many it took: all of them,
 * except that it stops where it has something to say or is finished: what is left belongs to the
 * transmission phase, where a server must not speak first. -EPROTO, -EPROTONOSUPPORT, -E2BIG when
 * the dialogue cannot go on: close then.
 */
GMB_MUST_CHECK int negotiation_input(
	struct negotiation *negotiation, const void *bytes, size_t len, struct error *error);

/* The server closed the connection: what that means. 0 when it was free to. */
GMB_MUST_CHECK int negotiation_end_of_stream(struct negotiation *negotiation, struct error *error);

/* Finished, and everything was sent: look at the outcome. */
bool negotiation_is_finished(const struct negotiation *negotiation);

/* Only when finished: 0 and the connection is in the transmission phase, or what the server refused
 * (-ENOENT: no such export; -EACCES: policy; -ESHUTDOWN; -EPROTONOSUPPORT) and it is to be closed.
 */
GMB_MUST_CHECK int negotiation_outcome(const struct negotiation *negotiation, struct error *error);

/* What the server is expected to send, for the message when it does not: "its greeting". */
const char *negotiation_awaits(const struct negotiation *negotiation);

/* Valid as long as the negotiation; whole once it has finished without a refusal. */
const struct negotiation_facts *negotiation_facts(const struct negotiation *negotiation);
