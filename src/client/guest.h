// SPDX-License-Identifier: Apache-2.0
/*
 * The client library on the ring of a server that is also a client of other servers. Nothing here
 * blocks: the owner of the ring runs it, and calls queue_pump() after every batch.
 *
 *   queue_create_on() ─▶ client_open_start() ─▶ gmb_submit() ... ─▶ client_end()
 *                                  gmb_queue_destroy() ◀─ client_join() ◀─┘
 *
 * Functions of <gmblock/gmblock.h> that wait must not be called: gmb_queue_wait(), gmb_open(),
 * gmb_close() and the blocking calls.
 *
 * Threading: the ring's thread. Ownership: the queue borrows the ring; client_join() frees the
 * client. Errors: as in gmblock.h.
 */
#pragma once

#include <gmblock/gmblock.h>

#include "base/error.h"
#include "ring/ring.h"

struct tls_client;

enum { CLIENT_NAME_BYTES = 48 };

/* Creates a queue on the ring. Returns NULL if out of memory. */
struct gmb_queue *queue_create_on(struct ring *ring);
/* gmb_open_start() with TLS credentials that are not named by the URI, because the URI comes from
 * another party: see tls_client_create_for_place(). They are borrowed until client_join(). NULL:
 * the URI has no TLS. */
GMB_MUST_CHECK int client_open_start(struct gmb_queue *queue, const char *uri,
	struct tls_client *tls, const struct gmb_options *options, struct gmb_client **client_out,
	struct gmb_error *error);
/* Sends submitted requests, and calls done() for those that have ended already. Returns whether it
 * called a callback. Must not be called from a callback of the library. */
bool queue_pump(struct gmb_queue *queue);
/* For an open client whose URI names several servers: the client gives up when each server has
 * refused it for some seconds, for a permanent reason: no such export, another disk, or fewer
 * features. Without this call, the client tries until its reconnect timeout. */
void client_end_if_refused(struct gmb_client *client);
/* Ends a client, open or not. Requests in flight fail with -ENOTCONN; done() is called for them as
 * usual, here or later. If the queue has its own ring, the next gmb_queue_wait() returns
 * immediately and counts the calls made here. Must not be called from a callback of the library.
 * Called once. */
void client_end(struct gmb_client *client);
/* Called after client_end(), when queue_pump() has returned. Frees the client and returns true as
 * soon as it has no operation in flight. */
bool client_join(struct gmb_client *client);
/* Returns the number of requests of an open client that have not ended. */
uint32_t client_in_flight(const struct gmb_client *client);
/* Returns the reason why an open client no longer has a connection, or "" if it has one. Valid as
 * long as the client. */
const char *client_trouble(const struct gmb_client *client);
/* Stores the name under which a gmblock server knows the connection of an open client. The client
 * must have a connection and must not reconnect. takeover_has() looks the name up. */
void client_name(const struct gmb_client *client, char out[CLIENT_NAME_BYTES]);
