// SPDX-License-Identifier: Apache-2.0
/*
 * Interface between the two parts of a client: client.c lays out receives and moves bytes,
 * replies.c parses and checks replies.
 *
 * Threading, ownership, errors: as client.h.
 */
#pragma once

#include "nbd/client/client.h"

enum { NBD_CLIENT_SLOT_BITS = 10 };

/* Completes a call whose answer has arrived: checks that it is complete (rules P90, P100) and
 * returns the call to the owner. */
GMB_MUST_CHECK int nbd_client_finish(
	struct nbd_client *client, struct nbd_call *call, struct error *error);

/* Prepares to receive `bytes` bytes of payload at place, relative to the call's offset. ends:
 * whether these bytes complete the answer. */
void nbd_client_begin_data(struct nbd_client *client, struct nbd_call *call, uint64_t place,
	uint64_t bytes, bool ends);

/* Reports that bytes of the current chunk are in the call's memory. */
GMB_MUST_CHECK int nbd_client_data_arrived(
	struct nbd_client *client, uint64_t bytes, struct error *error);

/* Processes consecutive bytes as far as possible, and keeps the rest (an incomplete header, extent
 * or error text) in client->stage. bytes may be the stage itself. */
GMB_MUST_CHECK int nbd_client_feed(
	struct nbd_client *client, const uint8_t *bytes, size_t len, struct error *error);

/* Returns how many bytes are missing of the reply in the stage, which is incomplete and at least as
 * long as the prefix of a data chunk. At least 1. */
size_t nbd_client_missing(const struct nbd_client *client);

/* Returns the size of the header, and of all other bytes before the payload, of the expected reply
 * to a call. */
size_t nbd_client_prefix_bytes(const struct nbd_client *client, const struct nbd_call *call);
/* Returns whether the prefix is exactly the expected reply's. */
bool nbd_client_prefix_matches(
	const struct nbd_client *client, const struct nbd_call *call, const uint8_t *prefix);

/* Copy bytes to a call's memory, or zero a part of it. */
void nbd_client_memory_write(
	struct nbd_call *call, uint64_t place, const uint8_t *bytes, size_t len);
void nbd_client_memory_zero(struct nbd_call *call, uint64_t place, uint64_t length);
