// SPDX-License-Identifier: Apache-2.0
#include "nbd/client/refusal.h"

#include <errno.h>
#include <stdio.h>

#include "base/log.h"
#include "nbd/wire.h"

enum { QUOTED_BYTES = 256 };

static const struct meaning {
	uint32_t type; /* without NBD_REP_ERROR_BIT */
	int code;
	const char *words;
	bool is_all; /* the server's text, if any, says the same */
} meanings[] = {
	{ 1, -EPROTONOSUPPORT, "not supported by the server" },
	{ 2, -EACCES, "rejected by the server's policy" },
	{ 3, -EPROTONOSUPPORT, "invalid according to the server" },
	{ 4, -EPROTONOSUPPORT, "not possible on the server's platform" },
	{ 5, -EPROTONOSUPPORT, "the server demands TLS (nbds:// or nbds+unix://)", .is_all = true },
	{ 6, -ENOENT, "no such export" }, { 7, -ESHUTDOWN, "the server is shutting down" },
	{ 8, -EPROTONOSUPPORT, "the server requires negotiation of block sizes" },
	{ 9, -EPROTONOSUPPORT, "too big for the server" },
	{ 10, -EPROTONOSUPPORT, "the server requires extended headers" },
	{ 0x676d6246, -EINPROGRESS, "in progress" },
	{ UINT32_MAX, -EPROTONOSUPPORT, "refused with an unknown error" }, /* any other type */
};

int nbd_refusal_take(struct nbd_refusal *refusal, uint32_t type, const uint8_t *input,
	uint32_t bytes, struct error *error)
{
	const struct meaning *meaning = meanings;
	char quoted[QUOTED_BYTES];
	struct nbd_text text;
	bool quotes;
	int err = nbd_text_take("an error text", input, bytes, &text, error);

	if (err != 0) {
		return err;
	}
	while (meaning->type != UINT32_MAX && (meaning->type | NBD_REP_ERROR_BIT) != type) {
		meaning++;
	}
	refusal->code = meaning->code;
	log_escape(refusal->said, sizeof(refusal->said), text.bytes, text.length);
	log_escape(quoted, sizeof(quoted), text.bytes, text.length);
	quotes = text.length > 0 && !meaning->is_all;
	snprintf(refusal->text, sizeof(refusal->text), "%s%s%s%s", meaning->words,
		quotes ? " (it says: \"" : "", quotes ? quoted : "", quotes ? "\")" : "");
	return 0;
}
