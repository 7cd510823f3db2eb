// SPDX-License-Identifier: Apache-2.0
/*
 * The world around a client: the real server over a simulated disk, with a life of its own, and a
 * network. What happens to both is planned from the seed.
 *
 *   client ── connector_sim ──▶ connections ──▶ services (reactors) ──▶ store ──▶ disk
 *              ▲                ▲                ▲                           ▲
 *          refused,         reset, cut,      frozen, killed,             stalled, slow,
 *          link down        half-closed      stopped, restarted          errors, power failure
 *
 * Threading: one. Ownership: the world owns server, disk and connection records; the client owns
 * its ends of the connections. Errors: model_fail().
 */
#pragma once

#include "engine/engine.h"
#include "oracle.h"
#include "sim/sim.h"

enum { WORLD_SERVICES_MAX = 2, WORLD_CONNECTIONS_MAX = 1024, WORLD_HOSTS = 2 };

/* The machines that have the disk. One of them has the server. */
extern const char *const world_hosts[WORLD_HOSTS];

struct world_connection {
	int client_fd;
	int server_fd;
	uint32_t life; /* of the server */
};

enum world_server_state { SERVER_DOWN, SERVER_UP, SERVER_DYING };

struct world;
struct world_corpse;

/* One reactor. */
struct world_service {
	struct world *world;
	struct ring *ring;
	struct engine *engine;
	struct ring_message drain_message;
	struct world_corpse *corpse; /* NULL: its server lives */
};

struct world {
	uint64_t size;
	struct sim_disk *disk;
	struct sim_faults faults;
	struct oracle *oracle;
	uint32_t bases; /* oracles so far */
	/* Writes that were done before the disk failed a flush cannot be made durable by a later
	 * one: the system has forgotten what it did not write. */
	uint32_t flush_group;

	enum world_server_state server;
	uint32_t life;	   /* how often the server was started */
	uint32_t host;	   /* with --hosts: where, an index of world_hosts */
	uint32_t boot;	   /* how often its machine was */
	bool power_failed; /* the end of this life takes the unflushed sectors along */
	bool resting;	   /* stays down until it is started by hand */
	uint64_t downtime_ns;
	uint32_t service_count;
	uint32_t drained;
	struct world_service services[WORLD_SERVICES_MAX];
	uint64_t drain_deadline_ns;
	struct export *export;
	struct engine_limits limits;
	struct store *store; /* the export's */
	/* Makes the book of leases of a server that starts; NULL: it has no leases. Set before
	 * world_create(). */
	struct lease_book *(*open_leases)(struct world *world);
	struct lease_book *leases; /* of the server that is running, or NULL */
	bool keeps_power;	   /* the machine never loses its power */
	uint32_t sessions_open;
	uint32_t corpse_count; /* servers that were killed, of which something is left */

	bool link_down;
	bool frozen;
	bool hopeless;	      /* every new connection is cut soon after its handshake */
	uint32_t cut_percent; /* of connections, planned when they are made */
	uint32_t refuse_percent;
	struct world_connection connections[WORLD_CONNECTIONS_MAX];
	uint32_t connection_count;

	uint32_t incidents_left;
	uint32_t crashes;	 /* power failures so far */
	uint32_t crashes_before; /* the oracle began */
	uint64_t scale_ns;	 /* what the client takes for a long time */
	/* A server without our extension: then a connection that the network has swallowed must not
	 * come back to life, and more is not promised. */
	bool plain;
	bool calm;			 /* nothing may go wrong any more */
	const struct session_kind *kind; /* what the client speaks */
	bool verbose;
};

uint64_t world_below(uint64_t limit);
bool world_percent(uint32_t chance);

/* Makes the disk and starts the server. native: the client speaks gmb, else NBD. scale_ns: troubles
 * last about as long, or much shorter or longer. */
void world_create(struct world *world, bool native, uint64_t scale_ns, bool verbose);
/* A request was completed: perhaps something goes wrong. */
void world_tick(struct world *world);
/* From now on everything works: the link comes up, the server runs. */
void world_calm(struct world *world);
/* Stops the server, checks what it leaves behind. */
void world_destroy(struct world *world);

/* The oracle begins anew with what programs see on the disk now. No request may be open, none that
 * was lost may still be carried out. */
void world_new_oracle(struct world *world);
/* Kills the server and waits until nothing of it is left, then starts it again. Not in a callback.
 */
void world_restart(struct world *world);
/* Is what is there now what was written, or, if the power failed since the oracle began, what was
 * durable? */
void world_check_current(struct world *world);
