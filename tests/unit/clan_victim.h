// SPDX-License-Identifier: Apache-2.0
/*
 * A victim of hostile peers: a listener, and two connections of its own that must go on to talk
 * whatever a stranger does. Counts what must not grow.
 *
 * The main() here runs the program's tests for each way to wait.
 *
 * Threading: one thread. Ownership: victim_open() to victim_close(). Errors: a test fails.
 */
#pragma once

#include "clan_hostile.h"
#include "clan_world.h"

struct victim {
	struct world world;
	struct clan_conn *honest[WORLD_SIDES];
	unsigned fds;
	unsigned maps;
};

void victim_open(struct victim *victim, const struct world_kind *kind,
	const struct clan_conn_options *options);
void victim_close(struct victim *victim);
void honest_still_talk(struct victim *victim);
/* Workers close what a stranger sent: waits for them. */
void nothing_is_left(struct victim *victim);
/* Calls hostile_open(), and waits until the victim has accepted the connection: it then permits
 * descriptors. */
void hostile_come(struct victim *victim, struct hostile *hostile);
/* Waits until the victim has ended the hostile connection. */
void wait_for_end(struct victim *victim, struct hostile *hostile);

/* Memfds of the hostile peer's. */
int unsealed_memfd(size_t bytes);
int sealed_memfd(size_t bytes);
