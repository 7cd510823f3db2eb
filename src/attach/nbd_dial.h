// SPDX-License-Identifier: Apache-2.0
/*
 * Makes a connection for the kernel's nbd driver: negotiated up to the transmission phase, with
 * simple replies, which are all that the driver understands (rule P136).
 *
 * Threading: any thread; blocks for at most the time given. Ownership: the socket is the caller's.
 * Errors: negative errno with a sentence that names the server.
 */
#pragma once

#include "client/connect.h"
#include "nbd/client_handshake.h"

/* Which connection this is, and which lost ones it comes instead of: a server of ours ends those,
 * and what they had asked for, before it answers (docs/design/0006-reconnect.md). */
struct nbd_introduction {
	const char *token;
	const char *const *replaces;
	uint32_t replaces_count;
};

GMB_MUST_CHECK int nbd_dial(const struct nbd_uri *uri, const struct nbd_introduction *who,
	const struct wait_limit *limit, uint64_t silence_ns, int *fd_out, struct nbd_facts *facts,
	struct error *error);

/* -ESTALE with a sentence when a connection reached something else than the first one did.
 * promised: the flags that must still be there. Another epoch of a disk that is not volatile is the
 * caller's to judge. */
GMB_MUST_CHECK int nbd_facts_check(const struct nbd_facts *first, const struct nbd_facts *other,
	uint16_t promised, struct error *error);
