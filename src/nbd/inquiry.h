// SPDX-License-Identifier: Apache-2.0
/*
 * Asks an NBD server what it offers: the client's side of the handshake without a socket. The owner
 * moves bytes; the inquiry decides what to say next and collects the answers.
 *
 *   greeting ─▶ EXTENDED_HEADERS ─▶ STRUCTURED_REPLY (only if refused)
 *     one export  ─▶ LIST_META_CONTEXT ─▶ GO ─▶ (unknown: EXPORT_NAME) ─▶ DISC
 *     all exports ─▶ LIST ─▶ INFO, LIST_META_CONTEXT for each ─▶ ABORT
 *
 * From most to least capable (rules P32, P36, P109), one option at a time (P12), left politely
 * (P14, P19, P21). A missing export is not the end: the list is asked for, so that the user sees
 * what there is.
 *
 * Threading: the caller's object. Ownership: the inquiry owns its answers; the options are copied.
 * Errors: inquiry_input() returns -EPROTO when the server broke a rule (then: close), and finished
 * inquiries tell through inquiry_outcome() what the server lawfully refused. Memory and the number
 * of replies are bounded whatever the server sends; time is the owner's to bound.
 */
#pragma once

#include "nbd/offer.h"

struct inquiry;

struct inquiry_options {
	const char *export_name; /* "" is the default export; at most 4096 bytes */
	bool list;		 /* every export the server lists, export_name unused */
};

GMB_MUST_CHECK int inquiry_create(
	const struct inquiry_options *options, struct inquiry **inquiry_out, struct error *error);
/* NULL is a no-op. */
void inquiry_destroy(struct inquiry *inquiry);

/*
 * What to send now; *bytes is 0 when it is the server's turn. Everything must have been sent before
 * the next inquiry_input(): inquiry_sent() says so.
 */
const uint8_t *inquiry_output(const struct inquiry *inquiry, size_t *bytes);
void inquiry_sent(struct inquiry *inquiry);

/*
 * Takes what the server sent, any number of bytes, and returns how many it took: all of them,
 * except that it stops where it has something to send or is finished. -EPROTO, -E2BIG,
 * -EPROTONOSUPPORT or -ENOMEM when the dialogue cannot go on: close then.
 */
GMB_MUST_CHECK int inquiry_input(
	struct inquiry *inquiry, const void *bytes, size_t len, struct error *error);

/* The server closed the connection. 0 when it was free to (the inquiry is finished then). */
GMB_MUST_CHECK int inquiry_end_of_stream(struct inquiry *inquiry, struct error *error);

/* Finished, and everything was sent: close. */
bool inquiry_is_finished(const struct inquiry *inquiry);

/* Only when finished: 0, or what the server refused (-ENOENT: there is no such export, and the
 * offers hold the others if it lists them). */
GMB_MUST_CHECK int inquiry_outcome(const struct inquiry *inquiry, struct error *error);

/* What the server is expected to send, for the message when it does not: "its greeting". */
const char *inquiry_awaits(const struct inquiry *inquiry);

/* Valid as long as the inquiry; without list the first is the export that was asked for. */
const struct nbd_offers *inquiry_offers(const struct inquiry *inquiry);
