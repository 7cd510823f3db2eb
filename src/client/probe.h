// SPDX-License-Identifier: Apache-2.0
/*
 * Connects to an NBD URI and asks the server what it offers, blocking, for tools that look once.
 *
 * Threading: any thread; blocks for at most the timeout. Ownership: probe_server() gives the probe,
 * probe_destroy() frees it. Errors: -EPROTO a rule of the protocol was broken (named in the
 * sentence), -ENOENT no such export (the probe is given all the same when the server listed what
 * it has), -ETIMEDOUT, and errors of name resolution and connecting.
 */
#pragma once

#include "nbd/client_offers.h"
#include "nbd/uri.h"

struct probe;

struct probe_options {
	uint64_t timeout_ns; /* for everything: name resolution, connecting and the dialogue */
	bool list;	     /* every export instead of the one in the URI */
};

/* *probe_out is NULL or a probe to destroy, also after a failure. */
GMB_MUST_CHECK int probe_server(const struct nbd_uri *uri, const struct probe_options *options,
	struct probe **probe_out, struct error *error);
void probe_destroy(struct probe *probe);

/* Valid as long as the probe. */
const struct nbd_offers *probe_offers(const struct probe *probe);
