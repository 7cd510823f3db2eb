// SPDX-License-Identifier: Apache-2.0
/*
 * The client's side of the NBD handshake, without a socket: the owner moves the bytes, and the
 * handshake decides what to send next and collects the answers.
 *
 *   greeting ─▶ (STARTTLS, and the owner encrypts) ─▶ EXTENDED_HEADERS ─▶ STRUCTURED_REPLY
 *                                                                          (if refused)
 *     GO:   ─▶ (LIST_META_CONTEXT: takeover) ─▶ SET_META_CONTEXT ─▶ GO ─▶ (EXPORT_NAME)
 *     INFO: ─▶ LIST_META_CONTEXT ─▶ GO ─▶ (EXPORT_NAME) ─▶ DISC
 *     LIST: ─▶ LIST ─▶ INFO, LIST_META_CONTEXT for each ─▶ ABORT
 *
 *   greeting ─▶ (STARTTLS) ─▶ FENCE ─▶ ABORT
 *
 * It negotiates from the most to the least capable style (rules P32, P36, P109), sends one option
 * at a time (P12), and ends the session properly (P14, P19, P21). INFO of a missing export
 * continues with LIST, so that the user sees the exports that exist. The states and their edges are
 * a table in handshake.c.
 *
 * With TLS no export name is sent before the stream is encrypted. If the server refuses TLS the
 * dialogue ends; it never continues in cleartext (rules P52, P53).
 *
 * Threading: the caller's object. Ownership: the handshake owns its answers; options are copied.
 * Errors: nbd_handshake_input() returns -EPROTO, -EPROTONOSUPPORT, -E2BIG or -ENOMEM if the
 * dialogue cannot continue; the caller then closes. A legitimate refusal by the server is the
 * outcome of a finished handshake. Memory and the number of replies are bounded whatever the server
 * sends; the owner limits the time. Numbers in sentences ("rule P23") are rows of
 * docs/protocol/nbd.md.
 */
#pragma once

#include "base/lease.h"
#include "nbd/client/offers.h"

enum {
	NBD_HANDSHAKE_REPLACES_MAX = 32,
	NBD_HANDSHAKE_TOKEN_BYTES_MAX = 48,
	NBD_HANDSHAKE_NODE_BYTES = 256,
	/* The longest option is an export name with context queries. */
	NBD_HANDSHAKE_QUERIES_BYTES_MAX = 3072,
	NBD_HANDSHAKE_OPTION_BYTES_MAX =
		4 + NBD_STRING_BYTES_MAX + 4 + NBD_HANDSHAKE_QUERIES_BYTES_MAX,
	/* Largest output: the client flags and one option. */
	NBD_HANDSHAKE_OUTPUT_BYTES_MAX =
		4 + sizeof(struct nbd_wire_option) + NBD_HANDSHAKE_OPTION_BYTES_MAX,
};

enum nbd_goal {
	NBD_GOAL_GO,	/* enter the transmission phase of one export */
	NBD_GOAL_INFO,	/* collect the information about one export */
	NBD_GOAL_LIST,	/* collect the information about all listed exports */
	NBD_GOAL_FENCE, /* fence or unfence a node, or look whether it is fenced */
};

struct nbd_handshake;

struct nbd_handshake_options {
	enum nbd_goal goal;
	/* "" is the default export; at most 4096 bytes; not used by LIST */
	const char *export_name;
	uint32_t host; /* stored in nbd_offers.host */
	bool tls;
	bool names_only; /* LIST: names and descriptions, without asking for each export */
	/* GO only, like the members below: the most capable style to negotiate. */
	enum nbd_reply_style style_max;
	/* The unique name of this connection; NULL: none. A server with our takeover extension
	 * (facts.can_take_over) first ends the connections named in `replaces`, and their requests
	 * (docs/design/0006-reconnect.md). */
	const char *token;
	const char *const *replaces;
	uint32_t replaces_count; /* at most NBD_HANDSHAKE_REPLACES_MAX */
	/* With a token: requests a sign of life at this interval, while commands wait and the
	 * server has no other data to send. 0: no request. */
	uint32_t alive_ms;
	/* With a token: the lease to take, as text (base/lease.h). A server without leases is
	 * refused with -EOPNOTSUPP. NULL: none. */
	const char *lease;
	/* FENCE only: the name has less than NBD_HANDSHAKE_NODE_BYTES bytes */
	enum nbd_fence_action fence_action;
	const char *fence_node;
};

GMB_MUST_CHECK int nbd_handshake_create(const struct nbd_handshake_options *options,
	struct nbd_handshake **handshake_out, struct error *error);
/* Frees a handshake and its answers. NULL is a no-op. */
void nbd_handshake_destroy(struct nbd_handshake *handshake);

/* Returns the bytes to send now; *bytes is 0 if the server has to send next. The caller sends them
 * all and calls nbd_handshake_sent() before the next nbd_handshake_input(). */
const uint8_t *nbd_handshake_output(const struct nbd_handshake *handshake, size_t *bytes);
void nbd_handshake_sent(struct nbd_handshake *handshake);

/* Processes bytes from the server and returns how many it consumed: all, unless it has something to
 * send or is finished. Bytes left after GO belong to the transmission phase, in which a server must
 * not send first. */
GMB_MUST_CHECK int nbd_handshake_input(
	struct nbd_handshake *handshake, const void *bytes, size_t len, struct error *error);

/* With options.tls: returns whether the server has agreed to TLS. The caller then encrypts the
 * stream and calls nbd_handshake_encrypted(). Bytes already received beyond this point are an error
 * (rule P56). The texts in the protection must be static. */
bool nbd_handshake_wants_tls(const struct nbd_handshake *handshake);
void nbd_handshake_encrypted(
	struct nbd_handshake *handshake, const struct nbd_protection *protection);

/* Called when the server has closed the connection, or when the owner no longer waits for it.
 * Returns 0 if the server may close at this point; the handshake is then finished, even if its last
 * output was not sent. */
GMB_MUST_CHECK int nbd_handshake_end_of_stream(
	struct nbd_handshake *handshake, struct error *error);

/* Returns whether the handshake is finished and everything was sent, so that there is an
 * outcome. */
bool nbd_handshake_is_finished(const struct nbd_handshake *handshake);

/* Called only when the handshake is finished. Returns 0 (GO: the connection is in the transmission
 * phase; FENCE: it is done), or the server's refusal: -ENOENT no such export (INFO: the offers then
 * contain the existing exports, if the server lists them), -EACCES its policy or another client's
 * lease, -EOPNOTSUPP it has no leases, -ESHUTDOWN,
 * -EPROTONOSUPPORT. FENCE: -EINPROGRESS, -ESRCH the node is not fenced, -EACCES no right, -EINVAL
 * no such node, -EIO, -EPROTONOSUPPORT. After a refusal, and after all goals except GO, the caller
 * closes the connection. */
GMB_MUST_CHECK int nbd_handshake_outcome(
	const struct nbd_handshake *handshake, struct error *error);

/* Returns what the server is expected to send, such as "its greeting", for the error message if it
 * does not. */
const char *nbd_handshake_awaits(const struct nbd_handshake *handshake);

/* Returns the facts, valid as long as the handshake. They are complete after a handshake with the
 * goal GO and without a refusal. */
const struct nbd_facts *nbd_handshake_facts(const struct nbd_handshake *handshake);
/* Returns the offers, valid as long as the handshake. With the goals GO and INFO, the first offer
 * is the requested export. */
const struct nbd_offers *nbd_handshake_offers(const struct nbd_handshake *handshake);
