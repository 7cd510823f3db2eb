// SPDX-License-Identifier: Apache-2.0
/*
 * What tests of layers need: credentials in a folder of their own, and a pool for handshakes.
 *
 * Threading: one. Ownership: stated per function. Errors: what cannot be had fails the test.
 */
#pragma once

#include "tls/layer.h"

#define TLS_WORLD_HOST "host-a.example"
#define TLS_WORLD_USER "alice"

enum tls_proof { TLS_BY_CERTIFICATE, TLS_BY_KEY, TLS_BY_WRONG_KEY };

struct tls_world {
	char folder[64];
	struct tls_pool *pool;
};

/* A pool of so many places; 0: as many as there are by default. */
void tls_world_begin(struct tls_world *world, uint32_t places);
void tls_world_end(struct tls_world *world);
/* Both ends verify each other. A reference for the caller. priority: NULL for ours. */
struct tls_context *tls_world_context(
	struct tls_world *world, enum tls_role role, enum tls_proof proof, const char *priority);
/* The stream's, which is upgraded with it. source: the last byte of the peer's address. */
struct tls_layer *tls_world_layer(
	struct tls_world *world, struct tls_context *context, uint8_t source);
/* Does both: takes the context. */
void tls_world_upgrade(struct tls_world *world, struct stream *stream, struct tls_context *context,
	void (*upgraded)(struct stream *stream, int result));
