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

typedef int probe_found(
	void *context, uint16_t version, const struct native_export *export, struct error *error);

struct probe_options {
	const char *uri;
	bool all;   /* all exports of the server instead of the URI's export */
	bool warns; /* logs a warning if a server does not respond, see export_uri_silent() */
	uint64_t timeout_ns; /* limit for the whole probe */
};

/* Calls found() for each export, with the negotiated version of gmb. An error returned by found()
 * ends the probe. If the URI has several hosts, they are tried in order; *host_out receives the
 * index of the one that has answered. */
GMB_MUST_CHECK int native_probe(const struct probe_options *options, uint32_t *host_out,
	probe_found *found, void *context, struct error *error);
