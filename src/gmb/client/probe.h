// SPDX-License-Identifier: Apache-2.0
/*
 * Asks a server over gmb what it exports, and waits for the answers.
 *
 * Threading: any; it blocks. Ownership: found() borrows what it gets. Errors: a negative errno and
 * a sentence.
 */
#pragma once

#include "base/error.h"
#include "gmb/wire.h"

/* Calls found for the export that the URI names, or for each one when all is set, with the version
 * of gmb that the server speaks; an error that it
 * returns ends the probe. timeout_ns: for everything together. */
GMB_MUST_CHECK int native_probe(const char *uri, bool all, uint64_t timeout_ns,
	int (*found)(void *context, uint16_t version, const struct native_export *export,
		struct error *error),
	void *context, struct error *error);
