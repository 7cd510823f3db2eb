// SPDX-License-Identifier: Apache-2.0
/*
 * Reactors with real rings behind an acceptor, and clients on Unix sockets. For tests of the engine
 * and of what is registered with it.
 *
 * Threading: the test's thread, beside those of the reactors. Ownership: reactor_world_end() stops
 * and frees all; descriptors of clients are the test's. Errors: a failed assertion of cmocka.
 */
#pragma once

#include <semaphore.h>

#include "engine_talk.h"
#include "server/listen/accept.h"

enum {
	REACTORS = 2,
	WORLD_KINDS_MAX = 2,
	SESSIONS = 8,
	READ_BYTES = 4096,
	ANSWER_BYTES = sizeof(struct nbd_wire_simple_reply) + READ_BYTES,
};

#define SECOND_NS UINT64_C(1000000000)

struct reactor_world {
	struct reactor *reactors[REACTORS];
	struct acceptor *acceptor;
	struct listener listeners[WORLD_KINDS_MAX]; /* of the kinds, same index */
	uint32_t kind_count;
	struct export *export; /* "" */
	_Atomic uint32_t connection_total;
	sem_t stopped; /* the acceptor, or one of the reactors */
};

/* Takes the export. Without an acceptor until reactor_world_accept(). */
void reactor_world_begin(struct reactor_world *world, struct export *export,
	const struct session_kind *const *kinds, uint32_t kind_count);
void reactor_world_accept(struct reactor_world *world);
void reactor_world_end(struct reactor_world *world);

int dial(const struct reactor_world *world, uint32_t kind_idx);
void put(int fd, const void *bytes, size_t len);
/* False: the server has closed. */
bool take(int fd, void *bytes, size_t len);
/* Speaks NBD up to the choice of an export. The kind is the first one. */
int dial_nbd(const struct reactor_world *world, const char *name);
void ask_nbd(int fd);
/* Takes the answer to ask_nbd(). */
bool nbd_answers(int fd);
