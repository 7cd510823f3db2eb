// SPDX-License-Identifier: Apache-2.0
/*
 * The clients and peers of an engine: whose statistics a session has, and with whose sessions it
 * shares its turns (struct engine_client and struct engine_peer). For use in src/engine only.
 *
 * Threading: the ring's thread. Ownership: the engine owns clients and peers. Errors: as stated.
 */
#pragma once

#include "engine/engine.h"

/* Adds one to the peer's sessions, and creates the peer if necessary. Returns NULL if there is no
 * memory. */
struct engine_peer *engine_peer_get(struct engine *engine, const struct peer_identity *identity);
/* Ends one use; the last one frees the peer. */
void engine_peer_put(struct engine_peer *peer);

void engine_clients_init(struct engine *engine);
/* Frees all clients, when no session exists. */
void engine_clients_fini(struct engine *engine);
/* Add the session to its client in session_choose(), and remove it when the session ends. */
void engine_client_join(struct session *session, const struct takeover_principal *principal);
void engine_client_leave(struct session *session);
