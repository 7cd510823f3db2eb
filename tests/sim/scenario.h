// SPDX-License-Identifier: Apache-2.0
/*
 * One simulated run: services with their exports on simulated disks, model clients with their
 * fates, and the rules that tie them together.
 *
 *   seed ─▶ scenario.c  builds the world, runs it until every client is done, checks what is left
 *           fairness.c  what everybody is given while others want it, too
 *           traffic.c   decides what clients ask, and checks what they are answered
 *           disturb.c   lets disks fail, hang and shrink
 *           blame.c     which disk fault belongs to which request
 *           producer.c  lets reads arrive piece by piece, and lies about them
 *
 * Threading: one. Ownership: the scenario owns everything in it. Errors: model_fail().
 */
#pragma once

#include "model_client.h"
#include "nbd/server/server.h"
#include "oracle.h"
#include "path/path.h"
#include "runner.h"
#include "sim/sim.h"
#include "tls/context.h"
#include "twin_arena.h"

enum {
	EXPORTS_MAX = 3,
	SERVICES_MAX = 2,
	CONNS_MAX = 24,
	CONNS_AT_FIRST_MAX = 10, /* the others are renewals */
	CONNS_HUNGRY = 18,
	HOSTS_MAX = 4,
	BLAME_CANDIDATES_MAX = 128,
};

/* How a connection ends. */
enum fate {
	FATE_POLITE,	 /* DISC when everything is answered */
	FATE_HASTY,	 /* DISC behind requests that are still to be answered */
	FATE_HALF_CLOSE, /* the end of our stream behind requests */
	FATE_CUT,	 /* the network breaks it at some byte */
	FATE_GARBAGE,	 /* bytes that are no request */
	FATE_STALL,	 /* stops reading for a while, or until all others are done */
	FATE_DRIP,	 /* takes and gives one byte at a time for a while */
	FATE_RENEW,	 /* resets the connection and is back at once */
	FATE_MUTE,	 /* connects and says little or nothing */
	FATE_ABORT,	 /* negotiates and leaves */
	FATE_COUNT
};

struct scenario;

struct scenario_export {
	struct scenario *scenario;
	char name[32];
	char path[64];
	struct sim_disk *disk; /* NULL: a memory store */
	struct store *store;   /* the next one owns it */
	struct export *export;
	struct oracle *oracle;
	struct sim_disk *base; /* what the oracle begins with; of a flash store the next one */
	uint8_t *flash_base;
	uint64_t size;
	bool read_only;
	bool is_flash;	    /* the disk has a flash store in it */
	bool is_killed;	    /* what a killed server has left is served */
	bool cache_is_lost; /* of the flash store, with the power */
	uint64_t epoch;	    /* of the store, in the first life */
	bool sparse_giant;  /* only some windows of it are used */
	bool warm;	    /* in the page cache: large reads are sent from there */
	bool size_may_change;
	uint64_t page_cache_bytes_seen; /* out of the page cache when last looked at */
	uint32_t page_cache_looks;
	bool stalled; /* its disk answers nothing for a long time, or did so */
	bool flush_may_fail;
	bool changes_may_fail; /* a flash store that could not write: nothing changes any more */
	uint64_t flush_failed; /* oracle time of the first failed flush: P77, it stays an error */
};

struct conn {
	struct scenario *scenario;
	struct model_client client;
	struct scenario_export *export;
	uint32_t export_idx;
	struct ring *ring;
	enum fate fate;
	int fd;
	int server_fd;
	uint32_t budget; /* requests still to be sent */
	uint32_t depth;
	uint32_t garbage_at; /* budget at which to misbehave or stall */
	uint32_t renewals;   /* still to come */
	uint8_t host;	     /* which peer it is to the server */
	bool stall_for_ever;
	bool started;
	bool said_bye;
	bool gone;
	bool left; /* the server knows that it asks nothing more */
};

struct fault_note {
	struct scenario_export *export;
	enum sim_fault_kind kind;
	uint64_t offset;
	uint64_t length;
	int error;
	bool reported;
	uint32_t candidate_count;
	uint64_t candidates[BLAME_CANDIDATES_MAX];
};

/* While connection a waits, others get what it waits for: passed[a][b] times b, which is on the
 * same export and has no less; peer_turns[a] times those of its own peer. */
struct fairness_turns {
	uint64_t count; /* given to somebody who had to wait */
	uint32_t passed[CONNS_MAX][CONNS_MAX];
	uint32_t peer_turns[CONNS_MAX];
};

struct fairness {
	struct fairness_turns places;
	struct fairness_turns memory;
	struct fairness_turns atomic; /* for the block that is kept for writes that are not cut */
};

struct scenario_service {
	struct ring *ring;
	struct engine *engine;
	struct twin_source twin_source;
	struct arena *twin; /* NULL: payload is in RAM */
	bool drained;
	struct ring_message drain_message;
	bool draining;
};

struct scenario {
	uint64_t seed;
	bool verbose;
	uint32_t life; /* 0, then 1 after a crash or a kill */
	struct sim_faults faults;
	uint32_t export_count;
	struct scenario_export exports[EXPORTS_MAX];
	uint32_t service_count;
	struct scenario_service services[SERVICES_MAX];
	struct engine_limits limits;
	struct tls_pool *tls_pool; /* these NULL: nobody uses TLS */
	struct tls_policy *tls;	   /* of the listener of those who do */
	struct ring *client_ring;
	uint32_t conn_count;
	struct conn conns[CONNS_MAX];
	uint32_t conns_gone;
	uint32_t sessions_opened;
	uint32_t sessions_gone;
	uint64_t page_cache_send_bytes; /* what the services sent out of the page cache */
	bool crashed;
	bool draining;
	bool crowded;		/* everybody works on the same few pages */
	bool hungry;		/* requests want far more memory than there is */
	uint32_t hanging_count; /* disks that are going to hang */
	bool refusing;		/* more clients come than are let in */
	bool overlap;		/* writers may overlap each other */
	uint64_t twin_bytes;	/* of memory that the CPU must not touch, per service; 0: none */
	bool twin_waits;	/* requests wait for it rather than have RAM */
	struct fault_note *notes;
	uint32_t note_count;
	uint32_t note_max;
	uint64_t requests;     /* totals, for the summary */
	uint64_t device_bytes; /* in the twin arenas */
	uint64_t device_refused;
	uint64_t replies_with_error;
	uint64_t unfinished_bytes; /* came for reads that failed or were cut later */
	uint64_t dripped_bytes;
	uint64_t renewals;
	uint64_t hangs;
	uint64_t tls_handshakes;
	uint64_t flash_moved;
	uint64_t atomic_writes;
	uint64_t flash_cached;
	uint64_t flash_kept;
	struct fairness fairness;
};

/* True while a session lives on the export whose client has gone: its requests may still be
 * executed. */
bool scenario_has_orphans(const struct scenario *scenario, const struct scenario_export *export);
/* What a dead connection has left behind can no longer overtake what others ask for once the server
 * knows that it is dead. */
void scenario_settle(struct scenario *scenario);

/* Another connection of the same client, which has just lost this one. */
void scenario_renew(const struct conn *conn);

/* fairness.c */
/* NBD, under observation. */
extern struct session_kind fairness_kind;
void fairness_begin(struct scenario *scenario);
/* After every step: nobody waits for what is his, or could have, and no export has too much. */
void fairness_check(const struct scenario *scenario);

/* traffic.c */
extern const struct model_ops traffic_ops;

/* disturb.c: whether and how is drawn. */
void disturb_disk(struct scenario_export *export);

/* blame.c */
void blame_fault(void *context, struct sim_disk *disk, enum sim_fault_kind kind, uint64_t offset,
	uint64_t length, int error);
/* The same for a fault of the export that no disk made; export NULL: nobody's. */
void blame_note(struct scenario *scenario, struct scenario_export *export, enum sim_fault_kind kind,
	uint64_t offset, uint64_t length, int error);
/* A request was answered: with a disk error that must have a cause, or without. */
void blame_replied(struct conn *conn, const struct model_request *request);
void blame_lost(struct conn *conn, const struct model_request *request);
