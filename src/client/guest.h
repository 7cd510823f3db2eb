// SPDX-License-Identifier: Apache-2.0
/*
 * The library as a guest on the ring of a server, which is a client of other servers, too. Nothing
 * here blocks: the ring's owner turns it, and calls queue_pump() after every batch.
 *
 *   queue_create_on() ─▶ client_open_start() ─▶ gmb_submit() ... ─▶ client_end()
 *                                  gmb_queue_destroy() ◀─ client_is_gone() ◀─┘
 *
 * Of <gmblock/gmblock.h> what waits must not be called: gmb_queue_wait(), gmb_open(), gmb_close()
 * and the blocking calls.
 *
 * Threading: the ring's thread. Ownership: the queue borrows the ring; client_is_gone() frees the
 * client. Errors: as in gmblock.h.
 */
#pragma once

#include <gmblock/gmblock.h>

#include "base/error.h"
#include "ring/ring.h"

struct tls_client;

enum { CLIENT_NAME_BYTES = 48 };

/* NULL: no memory. */
struct gmb_queue *queue_create_on(struct ring *ring);
/* gmb_open_start() with credentials for TLS apart from the URI, which comes from elsewhere: see
 * tls_client_create_for_place(). Held until client_is_gone(). NULL: the URI has no TLS. */
GMB_MUST_CHECK int client_open_start(struct gmb_queue *queue, const char *uri,
	struct tls_client *tls, const struct gmb_options *options, struct gmb_client **client_out,
	struct gmb_error *error);
/* Sends what was submitted, and calls what is done already. True: something was called. Not from a
 * callback of the library. */
bool queue_pump(struct gmb_queue *queue);
/* Ends a client, open or not: what is in flight fails with -ENOTCONN, with done called as ever,
 * from here or later. On a queue of its own the next gmb_queue_wait() returns at once for what was
 * told from here. Not from a callback of the library. Once. */
void client_end(struct gmb_client *client);
/* After client_end(), when queue_pump() has returned: true, and the client is freed, as soon as
 * nothing of it is in flight. */
bool client_is_gone(struct gmb_client *client);
/* Why an open client has no connection any more; "": it has. Valid as long as the client. */
const char *client_trouble(const struct gmb_client *client);
/* By which name servers of ours know the connection of an open client that has one, and lets none
 * be made again: takeover_has(). */
void client_name(const struct gmb_client *client, char out[CLIENT_NAME_BYTES]);
