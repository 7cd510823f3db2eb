// SPDX-License-Identifier: Apache-2.0
/*
 * The memory of a queue that servers access: the buffers of gmb_buffer_alloc(), and a pool for
 * requests whose memory is not in such a buffer. A hub also has the clan queue for the gmb
 * connections of the queue.
 *
 *   carrier ── hub_get, list_push_back(users), hub_find, hub_pool_get, hub_taint ──▶ hub
 *          ◀── event, take (clan), shares, unshare, step ──
 *
 * A buffer is a clan region, whose pages are a memfd. A user is one connection over which a server
 * maps buffers. If the connection is lost, the buffers of its commands are tainted, because the
 * server's disk may still access them. A tainted buffer gets fresh pages when no live connection
 * shares it, and only then are the commands returned to the client.
 *
 * Imported memory cannot get fresh pages, because only its owner knows who else maps it. It is
 * never tainted, so a server may fill it only if the protocol prevents late accesses.
 *
 * Threading: the ring's thread. Ownership: the queue owns the hub, the hub its buffers. Errors:
 * negative errno; if the pool or a buffer is busy, the command waits.
 */
#pragma once

#include <gmblock/clan_memory.h>

#include "client/carrier.h"

enum {
	HUB_BUFFERS_MAX = GMB_BUFFERS_MAX + 1,
	HUB_POOL = 0, /* number of the pool's buffer */
	HUB_POOL_BYTES = 8 << 20,
	HUB_PAGE_BYTES = 4096,
	/* limit on the payload of one command; less than HUB_POOL_BYTES */
	HUB_COMMAND_BYTES_MAX = 1 << 20,
};

struct hub_buffer {
	struct clan_region *region; /* NULL: no buffer has this number */
	uint8_t *base;
	size_t bytes;
	bool imported;
	bool tainted;
	bool freeing; /* gmb_buffer_free() was called */
};

/* A connection that shares buffers, embedded in its carrier. */
struct hub_user {
	const struct hub_user_ops *ops;
	struct list_node node;	      /* in hub->users while a server may map buffers */
	struct list_node hungry_node; /* in hub->hungry */
};

/* Whether a server can access a buffer. */
enum hub_access { HUB_ACCESS_YES, HUB_ACCESS_LATER, HUB_ACCESS_NEVER };

struct hub_user_ops {
	/* Called for users with a clan connection, whose context is the struct hub_user; NULL for
	 * other users. event: the connection has an event. take: it is the turn of this user, which
	 * is in hub->hungry. */
	void (*event)(struct hub_user *user, const struct clan_event *event);
	void (*take)(struct hub_user *user);
	/* Shares a buffer with the server, which can take a while: the user then continues with its
	 * commands. */
	enum hub_access (*share)(struct hub_user *user, uint32_t number);
	/* Ends the connection for this reason. */
	void (*fail)(struct hub_user *user, int code, const char *text);
	/* Returns whether the connection shares that buffer. end: if it does, also ends the
	 * connection. */
	bool (*shares)(struct hub_user *user, uint32_t number, bool end);
	/* Withdraws a buffer from the server before it is freed; hub_reclaim() is called when the
	 * server has returned it. */
	void (*unshare)(struct hub_user *user, uint32_t number);
	/* Called after tainted buffers have got fresh pages. A closing user can end here. */
	void (*step)(struct hub_user *user);
};

struct hub {
	struct queue_part part;
	const struct gmb_queue *queue; /* of which it is a part */
	struct ring *ring;
	struct clan_queue *clan;
	struct ring_source source;
	bool is_polled;	      /* the source was added to the ring */
	bool is_removed;      /* the source was removed again */
	bool reclaim_pending; /* some buffer is tainted or being freed */
	bool reclaiming;      /* hub_reclaim() is in progress */
	struct ring_op retry_op;
	struct list_node users;	 /* struct hub_user */
	struct list_node hungry; /* users whose received messages are not all processed */
	struct hub_buffer buffers[HUB_BUFFERS_MAX];
	uint32_t last_found;
	uint64_t pool_used[HUB_POOL_BYTES / HUB_PAGE_BYTES / 64]; /* one bit per page */
};

/* Consecutive pages of the pool. */
struct hub_run {
	uint32_t page;
	uint32_t pages; /* 0: none */
};

/* Returns the queue's hub, which is created on first use. */
GMB_MUST_CHECK int hub_get(struct gmb_queue *queue, struct hub **hub_out, struct error *error);
/* Adds the clan queue to the ring, which then polls it for events. */
void hub_start(struct hub *hub);

/* Creates the pool if it does not exist. */
GMB_MUST_CHECK int hub_pool_make(struct hub *hub);
static inline uint8_t *hub_pool_address(const struct hub *hub, const struct hub_run *run)
{
	return hub->buffers[HUB_POOL].base + (size_t)run->page * HUB_PAGE_BYTES;
}
/* Where the data of a READ or WRITE is, for the message to the server. */
struct hub_placement {
	struct hub *hub;
	struct hub_user *user;
	struct carrier *carrier; /* that of the user */
	const struct command *command;
	struct hub_run *staged; /* of the command */
	bool fills_imported;	/* the server may fill imported memory */
	/* Adds consecutive memory of a buffer to the message. is_first: removes earlier memory.
	 * Returns false if the message has no room. */
	bool (*put)(struct hub_placement *placement, uint32_t number, uint64_t offset,
		uint64_t bytes, bool is_first);
	uint32_t buffers; /* bit mask of the buffers that the message names */
};
/* Puts the command's memory into the message. If the server cannot access it, or the message has no
 * room, puts memory of the pool instead, and copies the data of a write there. Returns false if the
 * command has to wait for the pool or for a buffer to be shared, or if the connection has failed.
 */
GMB_MUST_CHECK bool hub_place(struct hub_placement *placement);
/* Copies the data of a successful read from its run, and returns the run to the pool. No-op if
 * there is none. */
void hub_unstage(struct hub *hub, struct carrier *carrier, const struct command *command,
	struct hub_run *run);
/* Returns a run to the pool. No-op if there is none. */
void hub_pool_put(struct hub *hub, struct hub_run *run);

/* Marks these buffers (bit mask) as tainted, except imported ones. */
void hub_taint(struct hub *hub, uint32_t buffers);
/* Returns whether any of the buffers in the bit mask is tainted. */
bool hub_is_tainted(const struct hub *hub, uint32_t buffers);
/* Gives new pages to tainted buffers (whose pages a server may still access) that no connection
 * shares any more, and frees buffers for which gmb_buffer_free() was called. */
void hub_reclaim(struct hub *hub);

/* Iterator over a command's memory. */
struct hub_pieces {
	const struct command *command;
	uint32_t idx;
	uint64_t skip;
	uint64_t left;
};

static inline struct hub_pieces hub_pieces_of(const struct command *command)
{
	return (struct hub_pieces){
		.command = command, .skip = command->iov_skip, .left = command->length
	};
}
/* Returns false at the end. */
bool hub_next_piece(struct hub_pieces *pieces, struct iovec *piece);
/* Copies a command's data from its pieces of memory to consecutive memory (to_run), or back. */
void hub_copy(const struct command *command, uint8_t *run, bool to_run);
