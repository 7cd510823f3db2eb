// SPDX-License-Identifier: Apache-2.0
/*
 * The client's side of the NBD handshake, without a socket: bytes in, bytes out. The owner moves
 * the bytes; the handshake decides what to say next and collects the answers.
 *
 *   greeting ─▶ (STARTTLS, and the owner encrypts) ─▶ EXTENDED_HEADERS ─▶ STRUCTURED_REPLY
 *                                                                          (if refused)
 *     GO:   ─▶ (LIST_META_CONTEXT: takeover) ─▶ SET_META_CONTEXT ─▶ GO ─▶ (EXPORT_NAME)
 *     INFO: ─▶ LIST_META_CONTEXT ─▶ GO ─▶ (EXPORT_NAME) ─▶ DISC
 *     LIST: ─▶ LIST ─▶ INFO, LIST_META_CONTEXT for each ─▶ ABORT
 *
 * From most to least capable (rules P32, P36, P109), one option at a time (P12), left politely
 * (P14, P19, P21). INFO of a missing export continues with LIST, so that the user sees what there
 * is. The states and their edges are a table in handshake.c.
 *
 * With TLS nothing that names an export is said before the stream is encrypted, and a server that
 * refuses ends the dialogue: it never goes on in clear (rules P52, P53).
 *
 * Threading: the caller's object. Ownership: the handshake owns its answers; options are copied.
 * Errors: nbd_handshake_input() returns -EPROTO, -EPROTONOSUPPORT, -E2BIG or -ENOMEM when the
 * dialogue cannot go on (then: close); what the server lawfully refused is the outcome of a
 * finished handshake. Memory and the number of replies are bounded whatever the server sends; time
 * is the owner's to bound. The numbers in the sentences ("rule P23") are rows of
 * docs/protocol/nbd.md.
 */
#pragma once

#include "nbd/client/offers.h"

enum {
	NBD_HANDSHAKE_REPLACES_MAX = 32,
	NBD_HANDSHAKE_TOKEN_BYTES_MAX = 48,
	/* The longest option is an export name with context queries. */
	NBD_HANDSHAKE_QUERIES_BYTES_MAX = 3072,
	NBD_HANDSHAKE_OPTION_BYTES_MAX =
		4 + NBD_STRING_BYTES_MAX + 4 + NBD_HANDSHAKE_QUERIES_BYTES_MAX,
	/* The client's flags and an option. */
	NBD_HANDSHAKE_OUTPUT_BYTES_MAX =
		4 + sizeof(struct nbd_wire_option) + NBD_HANDSHAKE_OPTION_BYTES_MAX,
};

enum nbd_goal {
	NBD_GOAL_GO,   /* the transmission phase of one export */
	NBD_GOAL_INFO, /* what the server says about one export */
	NBD_GOAL_LIST, /* what it says about every export it lists */
};

struct nbd_handshake;

struct nbd_handshake_options {
	enum nbd_goal goal;
	const char *export_name; /* "" is the default export; at most 4096 bytes; unused by LIST */
	bool tls;
	/* GO only, as all that follows: do not ask for more than this. */
	enum nbd_reply_style style_max;
	/* A name for this connection that no other has, and the names of those it replaces: a
	 * server that knows what that means (facts.can_take_over) ends them, and their requests,
	 * before it goes on (docs/design/0006-reconnect.md). NULL: none. */
	const char *token;
	const char *const *replaces;
	uint32_t replaces_count; /* at most NBD_HANDSHAKE_REPLACES_MAX */
	/* With a token: asks the server to say this often that it lives, while commands wait and it
	 * has nothing else to say. 0: does not ask. */
	uint32_t alive_ms;
};

GMB_MUST_CHECK int nbd_handshake_create(const struct nbd_handshake_options *options,
	struct nbd_handshake **handshake_out, struct error *error);
/* NULL is a no-op. */
void nbd_handshake_destroy(struct nbd_handshake *handshake);

/* What to send now; *bytes is 0 when it is the server's turn. All of it must have been sent before
 * the next nbd_handshake_input(): nbd_handshake_sent() says so. */
const uint8_t *nbd_handshake_output(const struct nbd_handshake *handshake, size_t *bytes);
void nbd_handshake_sent(struct nbd_handshake *handshake);

/* Takes what the server sent, any number of bytes, and returns how many it took: all of them,
 * except that it stops where it has something to say or is finished. What is left after GO belongs
 * to the transmission phase, where a server must not speak first. */
GMB_MUST_CHECK int nbd_handshake_input(
	struct nbd_handshake *handshake, const void *bytes, size_t len, struct error *error);

/* With options.tls: the server has agreed to TLS. Nothing is taken or said until the owner has
 * encrypted the stream and says so; what it has received beyond is an error (rule P56). The
 * protection's texts are static. */
bool nbd_handshake_wants_tls(const struct nbd_handshake *handshake);
void nbd_handshake_encrypted(
	struct nbd_handshake *handshake, const struct nbd_protection *protection);

/* The server closed the connection, or is not waited for any more. 0 when it was free to close (the
 * handshake is finished then, also when its last output was not sent). */
GMB_MUST_CHECK int nbd_handshake_end_of_stream(
	struct nbd_handshake *handshake, struct error *error);

/* Finished, and everything was sent: look at the outcome. */
bool nbd_handshake_is_finished(const struct nbd_handshake *handshake);

/* Only when finished: 0 (GO: the connection is in the transmission phase), or what the server
 * refused: -ENOENT no such export (INFO: the offers hold the others if it lists them), -EACCES its
 * policy, -ESHUTDOWN, -EPROTONOSUPPORT. Then, and after LIST and INFO, the connection is to be
 * closed. */
GMB_MUST_CHECK int nbd_handshake_outcome(
	const struct nbd_handshake *handshake, struct error *error);

/* What the server is expected to send, for the message when it does not: "its greeting". */
const char *nbd_handshake_awaits(const struct nbd_handshake *handshake);

/* Valid as long as the handshake. GO: complete once it has finished without a refusal. */
const struct nbd_facts *nbd_handshake_facts(const struct nbd_handshake *handshake);
/* Valid as long as the handshake. GO and INFO: the first is the export that was asked for. */
const struct nbd_offers *nbd_handshake_offers(const struct nbd_handshake *handshake);
