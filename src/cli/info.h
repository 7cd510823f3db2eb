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
#include "nbd/offer.h"

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

/* "1.5 GiB": three digits that count, for people. Returns out. */
enum { INFO_HUMAN_BYTES = 32 };
const char *info_human_size(char out[INFO_HUMAN_BYTES], uint64_t bytes);

/* Prints to standard output what json_dumps() made of root, takes root, and reports a full disk or
 * a closed pipe. root NULL: out of memory. */
struct json_t;
GMB_MUST_CHECK int info_print_json(struct json_t *root, struct error *error);
/* Flushes standard output. */
GMB_MUST_CHECK int info_print_end(struct error *error);
