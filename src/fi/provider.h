// SPDX-License-Identifier: Apache-2.0
/*
 * libclan-fi.so: clan as a provider of libfabric, endpoints of the type FI_EP_MSG between processes
 * of one machine (clan-fi(7)). A fabric has one passive clan queue. Everything is moved by the
 * calls of the program (manual progress): reading a completion or event queue takes what peers
 * sent.
 *
 *   fabric ── queue of clan             domain ── completion queues, memory regions, endpoints
 *     ├── event queues ── events          endpoint ── connection of clan: a stream of records both
 *     └── passive endpoints ── listener               ways (stream.c), posted receives, operations
 *
 * Threading: one lock a fabric, taken by every call that an application makes; it is never held
 * while the process sleeps. Functions here expect it to be held unless they say otherwise.
 *
 * Ownership: objects are libfabric's, closed by fi_close(); a parent cannot be closed before what
 * was opened on it. Buffers of operations are held until they complete.
 *
 * Errors: negative errno values, as libfabric has them. What a peer sends is checked by the rules
 * F1 to F6 (stream.c); a peer that breaks one loses the connection.
 */
#pragma once

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/compiler.h"
#include "base/list.h"

#include <gmblock/clan.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

enum {
	PROV_OPS_DEFAULT = 128, /* operations of an endpoint under way, and receives posted */
	PROV_OPS_MAX = 4096,
	PROV_IOV_MAX = 4,
	PROV_INJECT_BYTES = 256,
	PROV_CM_BYTES_MAX = 256, /* what a program adds to connect, accept and reject */
	PROV_HELLO_BYTES_MAX = PROV_CM_BYTES_MAX + 64,
	PROV_RING_SLOTS = 4096,	     /* of 64 bytes: what may be under way in one direction */
	PROV_PIECE_BYTES = 64 << 10, /* of a read's answer, so that messages come between */
};

#define PROV_MESSAGE_MAX (UINT64_C(1) << 40)

extern struct fi_provider prov_provider;

#define PROV_WARN(subsystem, ...) FI_WARN(&prov_provider, subsystem, __VA_ARGS__)

union prov_address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* ---- info.c: what the provider offers ---------------------------------------------------------
 */

/* fi_getinfo(3). Takes no lock. */
int prov_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	const struct fi_info *hints, struct fi_info **info_out);

/* A copy of an information with other addresses; either may be NULL. NULL: no memory. */
struct fi_info *prov_info_with(
	const struct fi_info *info, const union prov_address *src, const union prov_address *dest);

/* Bytes of an address; 0: neither IPv4 nor IPv6. */
size_t prov_address_bytes(const union prov_address *address);
uint16_t prov_address_port(const union prov_address *address);
void prov_address_set_port(union prov_address *address, uint16_t port);

/* Of this machine, with a port that is free. */
void prov_address_unspecified(union prov_address *address, uint32_t format);

/* False: too short, or of another family. */
bool prov_address_copy(union prov_address *address, const void *from, size_t bytes);

/* The same from an address as long as its family has it. NULL is false. */
bool prov_address_of(union prov_address *address, const void *from);

/* Whether an interface of this machine has the address, or it is the unspecified one. */
bool prov_address_is_local(const union prov_address *address);

/* ---- fabric.c: fabrics and their progress -----------------------------------------------------
 */

struct prov_fabric {
	struct fid_fabric fabric;
	struct list_node node; /* of all fabrics, for fork() */
	pthread_mutex_t lock;
	struct clan_queue *queue; /* NULL in a child after fork(): nothing works there */
	struct list_node peps;
	struct list_node requests; /* whose passive endpoint was closed */
	struct list_node again;	   /* endpoints to be looked at with the next progress */
	uint32_t objects;	   /* opened on it and not closed */
	uint32_t armed;		   /* threads that sleep, and wait objects that are watched */
	uint32_t closing;	   /* connections that were closed and are not yet gone */
};

/* Takes what peers sent, sends what waits. If anybody may sleep, peers ring from then on. Not from
 * inside what it calls. */
void prov_progress(struct prov_fabric *fabric);

static inline uint64_t prov_iov_bytes(const struct iovec *iov, size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++) {
		bytes += iov[i].iov_len;
	}
	return bytes;
}

static inline void prov_lock(struct prov_fabric *fabric)
{
	pthread_mutex_lock(&fabric->lock);
}

/* After calls that leave the queue of clan alone, and after prov_progress(). */
static inline void prov_unlock(struct prov_fabric *fabric)
{
	pthread_mutex_unlock(&fabric->lock);
}

/* After calls on the queue: somebody who sleeps would not be woken by what they may have found. */
static inline void prov_leave(struct prov_fabric *fabric)
{
	if (fabric->armed > 0) {
		prov_progress(fabric);
	}
	prov_unlock(fabric);
}

int prov_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric_out, void *context);

/* Closes a connection of clan, which tells the program nothing more. */
void prov_conn_close(struct prov_fabric *fabric, struct clan_conn *conn);

/* For objects that know no such call. */
int prov_no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int prov_no_control(struct fid *fid, int command, void *arg);

/* ---- events.c: event queues, completion queues, and sleeping on them ---------------------------
 */

/* What a thread can sleep on: the fabric's bell, or something queued for this very object. */
struct prov_wait {
	struct prov_fabric *fabric;
	int set_fd;	   /* -1: FI_WAIT_NONE */
	int told_fd;	   /* an eventfd in the set */
	bool watched;	   /* somebody may poll the set: fi_trywait() was called */
	bool told;	   /* the eventfd is readable */
	bool signalled;	   /* by fi_cq_signal(): one sleeper returns */
	uint32_t sleepers; /* threads inside fi_cq_sread() or fi_eq_sread() */
};

struct prov_eq {
	struct fid_eq eq;
	struct prov_fabric *fabric;
	struct prov_wait wait;
	struct list_node events;
	uint32_t users;
	uint8_t error_data[PROV_CM_BYTES_MAX]; /* of the last error that was read */
};

int prov_eq_open(
	struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq_out, void *context);

/* Queues an event; data of at most PROV_CM_BYTES_MAX bytes is copied, info is taken. error: 0, or
 * the errno of an error event. -FI_ENOMEM. */
int prov_eq_add(struct prov_eq *eq, uint32_t type, struct fid *fid, struct fi_info *info,
	const void *data, size_t bytes, int error);

/* Takes back every event about an object, with the requests to connect among them. */
void prov_eq_forget(struct prov_eq *eq, const struct fid *fid);

struct prov_entry {
	void *context;
	uint64_t flags;
	size_t bytes;
	uint64_t data;
	size_t lost_bytes; /* FI_ETRUNC */
	int error;	   /* a positive errno */
};

struct prov_cq {
	struct fid_cq cq;
	struct prov_domain *domain;
	struct prov_wait wait;
	enum fi_cq_format format;
	struct prov_entry *entries; /* a ring; size is a power of two */
	uint32_t size;
	uint32_t first;
	uint32_t count;
	uint32_t promised; /* to operations under way: count + promised <= size */
	uint32_t remote_max;
	uint32_t remote; /* entries that writes of peers have caused, or will */
	uint32_t users;
};

int prov_cq_open(
	struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq_out, void *context);

/* Room for the completion of an operation that begins. False: no memory. Ends with one of the next
 * two. */
GMB_MUST_CHECK bool prov_cq_promise(struct prov_cq *cq);
void prov_cq_complete(struct prov_cq *cq, const struct prov_entry *entry);
void prov_cq_release(struct prov_cq *cq);

/* The same for the completion of a peer's write. False also: not now, there are too many. */
GMB_MUST_CHECK bool prov_cq_promise_remote(struct prov_cq *cq);
void prov_cq_release_remote(struct prov_cq *cq);

int prov_trywait(struct fid_fabric *fabric, struct fid **fids, int count);

/* ---- memory.c: domains and memory regions ------------------------------------------------------
 */

struct prov_domain {
	struct fid_domain domain;
	struct prov_fabric *fabric;
	uint32_t users;
	struct prov_mr **mrs; /* by the low bits of their keys */
	uint32_t mr_slots;
	uint32_t mr_free; /* a slot to look from */
	uint32_t mr_count;
	uint64_t key_state;
};

/* Somebody who copies from or to a region right now. */
struct prov_use {
	struct list_node node;
	struct prov_mr *mr; /* NULL: it was closed meanwhile */
};

struct prov_mr {
	struct fid_mr mr;
	struct prov_domain *domain;
	uint8_t *base;
	size_t bytes;
	uint64_t access;
	struct list_node uses;
};

int prov_domain_open(
	struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context);

/* The region that a key of a peer's names, if the range lies in it and it may be accessed so
 * (FI_REMOTE_READ, FI_REMOTE_WRITE): *use lives until prov_use_end(). -FI_EKEYREJECTED,
 * -FI_EACCES. */
int prov_use_begin(struct prov_use *use, struct prov_domain *domain, uint64_t key, uint64_t address,
	uint64_t bytes, uint64_t access);
void prov_use_end(struct prov_use *use);

/* ---- endpoint.c: endpoints and how they are connected ------------------------------------------
 */

struct prov_pep {
	struct fid_pep pep;
	struct prov_fabric *fabric;
	struct prov_eq *eq;
	struct fi_info *info;
	union prov_address address;
	struct list_node node;
	struct list_node requests;
	struct clan_listener *listener;
};

/* A connection that somebody asked for, until it is accepted, rejected or gone. */
struct prov_request {
	struct fid fid; /* FI_CLASS_CONNREQ: what fi_info.handle points to */
	struct prov_fabric *fabric;
	struct list_node node;	/* of the passive endpoint, or of the fabric after its end */
	struct clan_conn *conn; /* NULL: the peer has given up */
	uint32_t peer_ops;
};

enum prov_ep_state {
	PROV_EP_IDLE,	    /* for fi_enable() */
	PROV_EP_ENABLED,    /* for fi_connect() or fi_accept() */
	PROV_EP_CONNECTING, /* for the peer's answer */
	PROV_EP_CONNECTED,  /* for the end of either side */
	PROV_EP_DRAINING,   /* the peer has ended: for receives that take what it sent before */
	PROV_EP_OVER,	    /* for fi_close() */
	PROV_EP_STATE_COUNT,
};

enum prov_record_kind {
	PROV_RECORD_SEND = 1,
	PROV_RECORD_WRITE,
	PROV_RECORD_READ,
	PROV_RECORD_PIECE,
	PROV_RECORD_ANSWER,
};

enum { PROV_RECORD_HAS_DATA = 1 }; /* a flag: data is for the completion at the receiver */

/* The head of a record on a connection (stream.c). Little-endian. */
struct prov_record {
	uint8_t kind;
	uint8_t flags;
	uint16_t reserved;
	uint32_t op; /* number of the operation at the side that began it */
	uint64_t bytes;
	uint64_t data;
	uint64_t address; /* of reads and writes only, as the next */
	uint64_t key;
};

/* An operation that this side has begun. */
struct prov_op {
	struct list_node node;
	struct prov_record record;
	uint32_t number;
	bool in_use;
	bool waits;  /* it was sent, and the peer will answer */
	bool told;   /* a completion is wanted */
	bool silent; /* injected: not even an error is told */
	void *context;
	uint64_t flags; /* of its completion */
	uint64_t bytes;
	uint64_t done; /* sent, or for reads received */
	uint32_t iov_count;
	struct iovec iov[PROV_IOV_MAX];
	uint8_t inject[PROV_INJECT_BYTES];
};

/* The answer to an operation of the peer's. */
struct prov_answer {
	struct list_node node;
	struct prov_use use;
	uint32_t op;
	int status;
	bool read;
	uint8_t *from;
	uint64_t bytes;
	uint64_t done; /* in pieces that were sent */
};

struct prov_receive {
	void *context;
	bool told;
	uint32_t iov_count;
	struct iovec iov[PROV_IOV_MAX];
};

/* What is being sent: one record, with what has been sent of it. */
struct prov_out {
	struct list_node ops;
	struct list_node answers;
	bool answers_next; /* whose turn it is */
	struct prov_op *op;
	struct prov_answer *answer;
	struct prov_record record; /* the answer's */
	uint8_t head_done;
	uint64_t piece_done;
};

/* What is being received: the record, and where its payload goes. */
struct prov_in {
	struct prov_record record;
	uint8_t head_bytes;  /* received of it */
	bool open;	     /* the record was accepted: payload follows */
	bool promised;	     /* a completion of a write */
	uint64_t done;	     /* of the payload */
	struct prov_use use; /* writes */
	uint8_t *write_to;
	struct prov_answer *answer;
};

struct prov_ep {
	struct fid_ep ep;
	struct prov_fabric *fabric;
	struct prov_domain *domain;
	struct prov_eq *eq;
	struct prov_cq *tx_cq;
	struct prov_cq *rx_cq;
	bool tx_selective;
	bool rx_selective;
	enum prov_ep_state state;
	bool accepts; /* it was made for a request */
	struct clan_conn *conn;
	union prov_address local;
	union prov_address peer;
	uint64_t tx_flags; /* defaults */
	uint64_t rx_flags;

	uint32_t op_count;
	struct prov_op *ops;
	struct list_node ops_free;
	struct prov_answer *answers; /* as many as the peer has operations */
	struct list_node answers_free;
	uint32_t receive_max;
	uint32_t receive_size; /* of the ring: a power of two */
	uint32_t receive_first;
	uint32_t receive_count;
	struct prov_receive *receives;
	struct prov_out out;
	struct prov_in in;

	struct list_node again_node;
	size_t hello_bytes; /* what fi_connect() says */
	uint8_t hello[PROV_HELLO_BYTES_MAX];
};

int prov_pep_open(
	struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep_out, void *context);
int prov_ep_open(
	struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep_out, void *context);

/* What clan tells: events of listeners and of endpoints. */
void prov_request_arrived(struct prov_fabric *fabric, struct clan_conn *conn);
void prov_request_lost(struct prov_request *request);
/* A request, by the handle in its information, that nobody can accept any more. */
void prov_request_drop(struct fid *handle);
void prov_ep_connected(struct prov_ep *ep);
void prov_ep_lost(struct prov_ep *ep, int status);

/* What an endpoint in the list "again" waits for. */
void prov_ep_again(struct prov_ep *ep);

/* Ends the connection of a connected endpoint, and everything under way on it with that errno. The
 * program gets FI_SHUTDOWN. */
void prov_ep_end(struct prov_ep *ep, int error);

/* ---- stream.c: records on a connection ---------------------------------------------------------
 */

/* Sends what is queued as far as there is room. */
void prov_stream_send(struct prov_ep *ep);

/* Takes what the peer sent as far as receives are posted. */
void prov_stream_receive(struct prov_ep *ep);

/* Completes everything under way with an errno, receives with FI_ECANCELED; or operations only. */
void prov_stream_flush(struct prov_ep *ep, int error);
void prov_stream_flush_ops(struct prov_ep *ep, int error);

/* Allocates and frees the pools of an endpoint. -FI_ENOMEM. */
int prov_stream_init(struct prov_ep *ep, size_t ops, size_t receives);
int prov_stream_init_answers(struct prov_ep *ep, uint32_t peer_ops);
void prov_stream_fini(struct prov_ep *ep);

/* ---- calls.c: fi_msg(3), fi_rma(3) -------------------------------------------------------------
 */

extern struct fi_ops_msg prov_msg_ops;
extern struct fi_ops_rma prov_rma_ops;
