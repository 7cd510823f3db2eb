// SPDX-License-Identifier: Apache-2.0
/*
 * An engine that speaks NBD, on a simulated machine; its clients write bytes and count what comes
 * back. For tests of the engine.
 *
 * Threading: one. Ownership: world_end() frees what the world holds. Errors: a failed assertion of
 * cmocka.
 */
#pragma once

#include "base/log.h"
#include "engine_talk.h"
#include "memory/arena.h"
#include "nbd/server/server.h"
#include "sim/sim.h"

enum {
	DISK_BYTES = 65536,
	DELAYED_OFFSET = 4096, /* reads from there take 1000 s */
	READ_BYTES = 512,
	/* What comes back on a simple read. */
	ANSWER_BYTES = sizeof(struct nbd_wire_simple_reply) + READ_BYTES,
	STEPS_MAX = 1000000,
};

#define SECOND_NS UINT64_C(1000000000)

struct world {
	struct ring *ring;
	struct arena *device;  /* or NULL */
	struct export *export; /* "", in memory */
	struct engine *engine;
	uint32_t accepted; /* endpoints */
	uint32_t gone;	   /* of them */
	bool drained;
};

struct client {
	int fd;
	uint64_t got;  /* bytes of answers */
	uint32_t owed; /* bytes of a payload */
	bool closed;   /* by the server */
};

void world_begin(struct world *world, uint32_t inflight_per_session, uint32_t inflight);
/* The same, with so much memory of a device, which is ordinary memory that the processor does not
 * touch: path_options.device_waits. */
void world_begin_device(struct world *world, uint64_t device_bytes, bool device_waits);
/* The same, with leases of a book, and with one writer of the export. */
void world_begin_leases(struct world *world, struct lease_book *book);
/* Drains the engine, and checks that nothing is left. */
void world_end(struct world *world);
/* The same in two steps. */
void world_drain(struct world *world, uint64_t deadline_ns);
void world_finish(struct world *world);

/* Takes what has come. */
void look(struct client *client);
/* Until so many bytes of answers have come, or the server has closed. */
void wait_for(struct client *client, uint64_t bytes);
/* Until the engine works on so many requests. */
void wait_for_inflight(const struct world *world, uint32_t count);
/* For so long. */
void let_time_pass(uint64_t ns);
/* Whole answers of READ_BYTES so far. */
uint64_t answers(struct client *client);

/* Connects, without a word; from the host of that number, whose address is ::NUMBER. */
void client_connect_from(struct world *world, struct client *client, uint8_t host);
/* The same, from host 0. */
void client_connect(struct world *world, struct client *client);
/* Asks for an export, and waits for nothing. */
void client_choose(const struct client *client, const char *name);
/* Connects and asks for an export. False: the server has closed instead of serving it. */
bool client_try(struct world *world, struct client *client, const char *name);
/* The same, from that host. */
bool client_try_from(struct world *world, struct client *client, uint8_t host, const char *name);
/* The same; it is served. */
void client_open(struct world *world, struct client *client, const char *name);
void client_ask(
	const struct client *client, enum nbd_command command, uint64_t offset, uint32_t length);
