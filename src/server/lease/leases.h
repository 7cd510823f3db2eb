// SPDX-License-Identifier: Apache-2.0
/*
 * The leases of a server: the engines' book, its record in the state folder (the file "leases"),
 * and what the control socket and an upgrade need of it. See docs/design/0029-leases.md.
 *
 * The record contains the named holders. It is written before a client gets a lease. A server
 * without a state folder keeps no record: its leases end with its process, unless an upgrade passes
 * them on.
 *
 * Threading: the main thread, except for what the book calls. Ownership: the caller owns the
 * leases, which own the book. Errors: a negative errno and a message.
 */
#pragma once

#include <jansson.h>

#include "engine/lease.h"
#include "server/state_folder.h"

struct leases;

/* Creates the leases, and reads the record. folder: must outlive the leases. is_taking: another
 * process uses it now; the holders come from there. A record that cannot be read is an error. */
GMB_MUST_CHECK int leases_open(const struct state_folder *folder, bool is_taking,
	struct leases **leases_out, struct error *error);
/* Called when no export exists any more. NULL is a no-op. */
void leases_close(struct leases *leases);
struct lease_book *leases_book(struct leases *leases);
/* Called in the new process of an upgrade when it serves, after state_folder_take_over(): replaces
 * the record. Blocks. */
void leases_take_over(struct leases *leases);

/* For upgrades. leases_tell() calls send() with a description of each holder, a text of at most
 * LEASES_TEXT_BYTES_MAX bytes, and stops when it returns a negative errno. Called between
 * lease_book_hold() and lease_book_go_on(). leases_take() adds the holder that a text describes. */
enum { LEASES_TEXT_BYTES_MAX = 24 << 10 };
GMB_MUST_CHECK int leases_tell(
	struct leases *leases, int (*send)(void *context, const char *text), void *context);
GMB_MUST_CHECK int leases_take(
	struct leases *leases, const char *text, size_t bytes, struct error *error);

/* Returns the holders as a JSON array, see docs/protocol/control.md: of the export, or all if it is
 * NULL. NULL: no memory. */
json_t *leases_list(struct leases *leases, const struct export *export);
