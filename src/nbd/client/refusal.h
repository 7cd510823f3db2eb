// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the handshake: the error reply with which a server refuses an option (rule P20), as a
 * text for people and an errno.
 *
 * Threading: no state. Ownership: the caller's object. Errors: of nbd_text_take(), if the reply
 * contains no valid text.
 */
#pragma once

#include "nbd/client/offers.h"

struct nbd_refusal {
	int code;	/* a negative errno */
	char text[384]; /* the meaning of the reply, with the server's text */
	char said[384]; /* the server's text alone, escaped; or "" */
};

/* type: of the reply, with NBD_REP_ERROR_BIT. input: its payload. */
GMB_MUST_CHECK int nbd_refusal_take(struct nbd_refusal *refusal, uint32_t type,
	const uint8_t *input, uint32_t bytes, struct error *error);
