// SPDX-License-Identifier: Apache-2.0
/*
 * What the two halves of the model client share: the wire's integers and the parser steps. A step
 * is given all unparsed bytes and returns how many it used, 0 = it needs more.
 *
 * Threading, ownership, errors: as model_client.h.
 */
#pragma once

#include "model_client.h"

static inline void put16(uint8_t *at, uint16_t v)
{
	at[0] = (uint8_t)(v >> 8);
	at[1] = (uint8_t)v;
}

static inline void put32(uint8_t *at, uint32_t v)
{
	put16(at, (uint16_t)(v >> 16));
	put16(at + 2, (uint16_t)v);
}

static inline void put64(uint8_t *at, uint64_t v)
{
	put32(at, (uint32_t)(v >> 32));
	put32(at + 4, (uint32_t)v);
}

static inline uint16_t get16(const uint8_t *at)
{
	return (uint16_t)((uint16_t)at[0] << 8 | at[1]);
}

static inline uint32_t get32(const uint8_t *at)
{
	return (uint32_t)get16(at) << 16 | get16(at + 2);
}

static inline uint64_t get64(const uint8_t *at)
{
	return (uint64_t)get32(at) << 32 | get32(at + 4);
}

void model_handshake_plan(struct model_client *client);
void model_handshake_next(struct model_client *client);
size_t model_handshake_parse(struct model_client *client, const uint8_t *p, size_t n);

/* What the socket is to carry, and what came out of it without its encryption. */
void model_send_raw(struct model_client *client, const void *bytes, size_t len);
void model_received(struct model_client *client, const uint8_t *bytes, size_t len);

/* STARTTLS was agreed on. Goes on with model_handshake_next(). */
void model_tls_begin(struct model_client *client);
void model_tls_receive(struct model_client *client, const uint8_t *bytes, size_t len);
void model_tls_send(struct model_client *client, const uint8_t *bytes, size_t len);
/* The server is told that nothing follows. */
void model_tls_say_end(struct model_client *client);
/* The server has not told it. */
bool model_tls_is_cut(const struct model_client *client);
void model_tls_finish(struct model_client *client);
