// SPDX-License-Identifier: Apache-2.0
/*
 * Pure parsers for the data of handshake options, as a hostile client may have written it.
 *
 * Threading: pure functions. Ownership: results point into the caller's bytes.
 * Errors: false when lengths and counts do not agree exactly (P22, P37): the option gets
 * ERR_INVALID, *reason a static sentence.
 */
#pragma once

#include "nbd/wire.h"

struct option_string {
	const uint8_t *bytes;
	uint32_t length;
};

/* INFO and GO: export name and the list of information requests. */
struct option_go {
	struct option_string name;
	const uint8_t *requests; /* big-endian 16-bit numbers */
	uint32_t request_count;
};
bool option_go_parse(
	const uint8_t *data, uint32_t length, struct option_go *go, const char **reason);
/* True when the client asked for this information. */
bool option_go_asks(const struct option_go *go, enum nbd_info info);

/* LIST_META_CONTEXT and SET_META_CONTEXT: export name and queries. */
struct option_context {
	struct option_string name;
	uint32_t query_count;
	const uint8_t *queries; /* query_count times: 32-bit length, bytes; lengths are checked */
};
bool option_context_parse(
	const uint8_t *data, uint32_t length, struct option_context *context, const char **reason);
/* Takes the next query off *queries. */
struct option_string option_context_next(const uint8_t **queries);
