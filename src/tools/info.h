// SPDX-License-Identifier: Apache-2.0
/*
 * The things that "gmblock info" shows, as text for people or as JSON with stable keys (documented
 * in gmblock-info(1)).
 *
 * Threading: the main thread. Ownership: borrows its arguments. Errors: 0, or a negative errno with
 * a sentence; text that peers wrote is escaped.
 */
#pragma once

#include "base/error.h"
#include "nbd/client_offers.h"

/* What a server offers. refusal is NULL, or why the export in the URI is not there: then only the
 * names of the others are shown. */
GMB_MUST_CHECK int info_show_text(
	const char *uri, const struct nbd_offers *offers, bool list, struct error *error);
GMB_MUST_CHECK int info_show_json(const char *uri, const struct nbd_offers *offers, bool list,
	const char *refusal, struct error *error);

/* The extents of an export: what is data, a hole, zeroes. -EOPNOTSUPP when the server does not
 * tell. */
GMB_MUST_CHECK int info_map(const char *uri, uint64_t timeout_ns, bool json, struct error *error);

/* What this machine offers gmblock; path is a file or device to look at, or NULL. */
GMB_MUST_CHECK int info_local(const char *path, bool json, struct error *error);
