// SPDX-License-Identifier: Apache-2.0
/*
 * What the contract suite needs from the world around a ring: the real machine (ring_world_uring.c)
 * or the simulated one (ring_world_sim.c), chosen together with the ring at link time.
 *
 * Threading: one, but for what world_later() runs. Ownership: descriptors are the caller's and go
 * back to world_close(). Errors: what cannot be had fails the test.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/ring.h"

/* The ring that this program is linked with. */
enum world_kind { WORLD_URING, WORLD_SIM };
extern const enum world_kind world_kind;

/* Whether the rings are restricted. */
extern const bool world_is_restricted;

/* How often each case runs: on a real machine once, in simulated ones of different seeds. */
extern const unsigned world_rounds;

void world_start(unsigned round);
/* Every ring is destroyed and every descriptor closed. */
void world_stop(void);

/* A connected pair of stream sockets, of which both ends take ring operations. */
void world_pair(int fds[2]);
/* Sends one byte through the second of them, without a ring: any thread. */
void world_send_byte(int fd);
/* A listening socket, and a connection to it. */
int world_listen(void);
int world_connect(int listener_fd);
/* A regular file of so many zero bytes, open for reading and writing. */
int world_file(uint64_t bytes);
enum world_fd { WORLD_SOCKET, WORLD_LISTENER, WORLD_FILE };
void world_close(int fd, enum world_fd kind);

/* Runs fn(context) soon, as another thread would, while the caller waits in a ring. At most one at
 * a time. */
void world_later(void (*fn)(void *context), void *context);
/* It has run: another may follow. Does nothing when none was asked for. */
void world_join(void);
