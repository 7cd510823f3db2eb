// SPDX-License-Identifier: Apache-2.0
/*
 * What the two halves of a client share: client.c lays out and moves, replies.c reads and
 * checks.
 *
 * Threading, ownership, errors: as client.h.
 */
#pragma once

#include "nbd/client/client.h"

enum { NBD_CLIENT_SLOT_BITS = 10 };

/* The call a cookie belongs to; -EPROTO when there is none (rule P70). */
GMB_MUST_CHECK int nbd_client_find(struct nbd_client *client, uint64_t cookie,
	struct nbd_call **call_out, struct error *error);

/* The call has its whole answer: checks that (rules P90, P100) and gives it back. */
GMB_MUST_CHECK int nbd_client_finish(
	struct nbd_client *client, struct nbd_call *call, struct error *error);

/* A content chunk of a READ: [start, start + length) relative to the call's offset is inside it and
 * was not covered before (rules P90, P93, P98). */
GMB_MUST_CHECK int nbd_client_cover(
	struct nbd_call *call, uint64_t start, uint64_t length, struct error *error);

/* bytes at place, relative to the call's offset, come next; ends: its answer is whole then. */
void nbd_client_begin_data(struct nbd_client *client, struct nbd_call *call, uint64_t place,
	uint64_t bytes, bool ends);

/* Bytes of the chunk in progress are in the call's memory. */
GMB_MUST_CHECK int nbd_client_data_arrived(
	struct nbd_client *client, uint64_t bytes, struct error *error);

/* Reads as much as can be read of bytes that lie in a row, and keeps the rest in the stage; bytes
 * may be the stage itself. */
GMB_MUST_CHECK int nbd_client_feed(
	struct nbd_client *client, const uint8_t *bytes, size_t len, struct error *error);

/* Length of the header, and what comes before the payload, of the reply a call should get. */
size_t nbd_client_prefix_bytes(const struct nbd_client *client, const struct nbd_call *call);
/* True when the prefix is exactly that reply. */
bool nbd_client_prefix_matches(
	const struct nbd_client *client, const struct nbd_call *call, const uint8_t *prefix);

/* Lays out [place, place + length) of a call's memory, as far as iov_max entries reach; returns how
 * many and sets *bytes. */
uint32_t nbd_client_memory(struct nbd_call *call, uint64_t place, uint64_t length,
	struct iovec *iov, uint32_t iov_max, uint64_t *bytes);
/* Copies into it, and zeroes it. */
void nbd_client_memory_write(
	struct nbd_call *call, uint64_t place, const uint8_t *bytes, size_t len);
void nbd_client_memory_zero(struct nbd_call *call, uint64_t place, uint64_t length);
