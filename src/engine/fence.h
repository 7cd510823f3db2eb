// SPDX-License-Identifier: Apache-2.0
/*
 * Nodes, which are the machines of a cluster, and fences against them. A fenced node cannot select
 * an export over any protocol, and its sessions are ended. See docs/design/0028-fencing.md.
 *
 *   fence_set_fenced(nodes)    sessions of fenced nodes can select no export
 *        │
 *        ▼ on each engine's thread, until both are zero
 *   engine_fence_look()        ends the sessions of the nodes that have selected an export, and
 *                              counts those that still exist
 *   engine_fence_barriers()    counts disks to which writes of a killed server are in flight
 *
 * A session exists until the store has completed its last operation. A session of a fenced node
 * cannot select an export after fence_set_fenced(). So once engine_fence_look() has returned 0 on
 * an engine, it always returns 0 there, until the node's rules change or the node is unfenced.
 *
 * Threading: struct fence is shared by all engines; any thread. The engine_ functions belong to the
 * engine's thread. Ownership: references to lists of nodes are counted. Errors: -ENOMEM.
 */
#pragma once

#include "engine/engine.h"

enum { FENCE_NODES_MAX = 64, FENCE_NAME_BYTES = 64, FENCE_TEXT_BYTES = 400 };

/* A node. A client belongs to it if any of the rules matches; their rights are not used. */
struct fence_node {
	char name[FENCE_NAME_BYTES];
	struct access *rules;
};

/* A list of nodes that never changes. */
struct fence_nodes {
	_Atomic uint32_t references;
	uint32_t count; /* at most FENCE_NODES_MAX */
	struct fence_node nodes[];
};

/* Creates a list with one reference and without nodes. The caller appends up to `room` nodes, with
 * a reference to the rules of each, before other threads use the list. NULL: no memory. */
struct fence_nodes *fence_nodes_create(uint32_t room);
void fence_nodes_get(struct fence_nodes *nodes);
/* Drops a reference. NULL is a no-op. */
void fence_nodes_put(struct fence_nodes *nodes);

struct fence;

enum fence_action { FENCE_LOOK, FENCE_NODE, FENCE_RELEASE };

/* The server's function for clients that may fence nodes. */
struct fence_desk {
	/* Starts to fence or to release a node, or reports the progress. FENCE_LOOK only reports
	 * whether the node is fenced; -ESRCH: it is not. Called on the thread of the session that
	 * asks; does not block. Returns 0 if it is done, -EINPROGRESS, or another negative errno.
	 * text: the reason if the result is not 0, a sentence without its full stop. */
	int (*ask)(void *context, struct session *session, enum fence_action action,
		const char *node, char text[FENCE_TEXT_BYTES]);
	void *context;
};

/* Creates a fence without nodes. NULL: no memory. */
struct fence *fence_create(void);
/* NULL is a no-op. */
void fence_destroy(struct fence *fence);
/* Replace the lists of all nodes, for statistics, and of the fenced ones. They take ownership of
 * the list; NULL: no nodes. */
void fence_set_nodes(struct fence *fence, struct fence_nodes *nodes);
void fence_set_fenced(struct fence *fence, struct fence_nodes *nodes);
/* Sets the peers that may fence nodes: those to which a rule with ENGINE_RIGHT_FENCE applies. Takes
 * ownership of the rules; NULL: no peers. */
void fence_set_rights(struct fence *fence, struct access *rules);
/* Sets the function that fence_ask() calls. Called before the first session exists. */
void fence_set_desk(struct fence *fence, const struct fence_desk *desk);

/* The text for clients that are refused. Clients recognize it by its beginning, "fenced:". */
#define FENCE_REFUSAL EXPORT_URI_FENCED_TEXT

/* Returns whether the peer of the session, or the server that acts for it, belongs to a fenced
 * node. A warning is logged. */
bool session_is_fenced(struct session *session);
/* Copies the name of the first configured node to which the session's peer belongs; "": none. */
void session_node_name(struct session *session, char out[FENCE_NAME_BYTES]);
/* Returns whether the session's peer belongs to the configured node of that name. */
bool session_is_of_node(struct session *session, const char *name);
/* For sessions that act for another peer (push): the session gets its identity. Later
 * checks for fenced nodes are made for both. */
void session_act_for(struct session *session, const struct peer *peer);

/* Returns -EACCES if the session's peer may not fence nodes, else the result of fence_desk.ask().
 * Only peers with TLS, on this machine or on a Unix socket may. */
GMB_MUST_CHECK int session_fence(struct session *session, enum fence_action action,
	const char *node, char text[FENCE_TEXT_BYTES]);

/* Sessions of a node that have selected an export and have not ended. */
struct fence_sight {
	uint32_t sessions;
	uint32_t requests;	       /* request slots that they occupy */
	char peer[PEER_TEXT_BYTES];    /* the peer of one session */
	char export[FENCE_NAME_BYTES]; /* its export, escaped and truncated */
};

/* Ends the sessions of the nodes, and adds those that have not ended yet to sights, of which there
 * is one for each node. A session also belongs to the nodes to which it belonged when it selected
 * its export: a reload can change their rules, and does not wait for operations in stores. */
void engine_fence_look(
	struct engine *engine, const struct fence_nodes *nodes, struct fence_sight *sights);
/* Returns the number of exports to whose disks writes of a killed server may be in flight (see
 * store_barrier()), and makes the engine check them again. export: the name of one, escaped and
 * truncated. */
uint32_t engine_fence_barriers(struct engine *engine, char export[FENCE_NAME_BYTES]);

/* For use in src/engine only: adds a session that selects an export to the statistics of its node,
 * the first one in the list to which it belongs. If there is no memory, it is not counted. */
void engine_node_join(struct session *session);
void engine_node_leave(struct session *session);
void engine_nodes_fini(struct engine *engine);
