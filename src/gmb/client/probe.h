// SPDX-License-Identifier: Apache-2.0
/*
 * Queries the exports of a gmb server and waits for the answers.
 *
 * Threading: any; it blocks. Ownership: found() borrows its arguments. Errors: a negative errno and
 * an error message.
 */
#pragma once

#include "base/error.h"
#include "gmb/wire.h"

/* Calls found() for the URI's export (all: for each export of the server), with the negotiated
 * version of gmb. An error returned by found() ends the probe. timeout_ns: limit for the whole
 * probe. */
GMB_MUST_CHECK int native_probe(const char *uri, bool all, uint64_t timeout_ns,
	int (*found)(void *context, uint16_t version, const struct native_export *export,
		struct error *error),
	void *context, struct error *error);
