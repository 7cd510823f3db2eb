// SPDX-License-Identifier: Apache-2.0
/*
 * libclan-fi.so: clan as a provider of libfabric. It offers endpoints of the type FI_EP_MSG between
 * processes of one machine (clan-fi(7)). A fabric has one passive clan queue. Progress is manual:
 * all data moves inside calls of the program, and reading a completion or event queue processes the
 * data of the peers.
 *
 *   fabric ── clan queue                  domain ── completion queues, memory regions, endpoints
 *     ├── event queues ── events            endpoint ── clan connection: a stream of records in
 *     └── passive endpoints ── listener                 each direction (stream.c), posted receives,
 *                                                       operations
 *
 * Threading: each fabric has one lock. Every call of an application takes it, and it is never held
 * while the process sleeps. Functions here expect it to be held unless noted otherwise.
 *
 * Ownership: objects belong to the application and are freed by fi_close(). A parent cannot be
 * closed before the objects opened on it. Buffers of operations are borrowed until they complete.
 *
 * Errors: negative errno values, as in libfabric. Data of a peer is checked by the rules F1 to F6
 * (stream.c); a peer that breaks one loses the connection.
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
	PROV_OPS_DEFAULT = 128, /* limit on operations in flight of an endpoint, and on its posted
				   receives */
	PROV_OPS_MAX = 4096,
	PROV_IOV_MAX = 4,
	PROV_INJECT_BYTES = 256,
	/* Connection data of the program, for connect, accept and reject. */
	PROV_CM_BYTES_MAX = 256,
	PROV_HELLO_BYTES_MAX = PROV_CM_BYTES_MAX + 64,
	/* Slots of 64 bytes: the limit on data in flight in one direction. */
	PROV_RING_SLOTS = 4096,
	/* A read's data is sent in pieces of this size, with messages in between. */
	PROV_PIECE_BYTES = 64 << 10,
};

#define PROV_MESSAGE_MAX (UINT64_C(1) << 40)

extern struct fi_provider prov_provider;

#define PROV_WARN(subsystem, ...) FI_WARN(&prov_provider, subsystem, __VA_ARGS__)

union prov_address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* --- info.c: the capabilities of the provider ------------------------------------------------- */

/* fi_getinfo(3). Takes no lock. */
int prov_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	const struct fi_info *hints, struct fi_info **info_out);

/* Returns a copy of info with these addresses. src, dest: NULL to leave out the address.
 * Returns NULL if there is no memory. */
struct fi_info *prov_info_with(
	const struct fi_info *info, const union prov_address *src, const union prov_address *dest);

/* Returns the length of an address; 0 if it is neither IPv4 nor IPv6. */
size_t prov_address_bytes(const union prov_address *address);
uint16_t prov_address_port(const union prov_address *address);
void prov_address_set_port(union prov_address *address, uint16_t port);

/* Sets the unspecified address with port 0. */
void prov_address_unspecified(union prov_address *address, uint32_t format);

/* Copies an address. Returns false if it is too short or of another family. */
bool prov_address_copy(union prov_address *address, const void *from, size_t bytes);

/* Copies an address whose length follows from its family. Returns false for NULL. */
bool prov_address_of(union prov_address *address, const void *from);

/* Returns true if an interface of this machine has the address, or it is the unspecified one. */
bool prov_address_is_local(const union prov_address *address);

/* --- fabric.c: fabrics and their progress ----------------------------------------------------- */

struct prov_fabric {
	struct fid_fabric fabric;
	struct list_node node; /* in the list of all fabrics, for fork() */
	pthread_mutex_t lock;
	struct clan_queue *queue; /* NULL in a child after fork(), where all calls fail */
	struct list_node peps;
	struct list_node requests; /* requests whose passive endpoint was closed */
	struct list_node again;	   /* endpoints to process with the next progress */
	uint32_t objects;	   /* number of open objects of this fabric */
	uint32_t armed;		   /* sleeping threads, and watched wait objects */
	uint32_t closing;	   /* connections being closed, without CLAN_EVENT_CLOSED yet */
};

/* Processes the data of peers, and sends pending data. If a thread might sleep, requests wake-ups
 * from the peers. Must not be called from a function that it calls. */
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

/* Releases the lock after calls that do not use the clan queue, and after prov_progress(). */
static inline void prov_unlock(struct prov_fabric *fabric)
{
	pthread_mutex_unlock(&fabric->lock);
}

/* Releases the lock after calls that use the clan queue. Such a call might have taken data from the
 * queue while another thread sleeps until that data is processed. So if a thread might sleep,
 * progress is made again. */
static inline void prov_leave(struct prov_fabric *fabric)
{
	if (fabric->armed > 0) {
		prov_progress(fabric);
	}
	prov_unlock(fabric);
}

/* Closes a connection of clan. No more of its events are reported to the program. */
void prov_conn_close(struct prov_fabric *fabric, struct clan_conn *conn);

/* --- events.c: event queues, completion queues, and sleeping on them -------------------------- */

/* A wait object: readable when a peer rings the fabric's bell, or when an entry is queued for this
 * object by another thread. */
struct prov_wait {
	struct prov_fabric *fabric;
	int set_fd;	   /* -1: FI_WAIT_NONE */
	int told_fd;	   /* the eventfd in the epoll set */
	bool watched;	   /* fi_trywait() was called, so a thread can poll the set */
	bool told;	   /* the eventfd is readable */
	bool signalled;	   /* set by fi_cq_signal(): one sleeper returns */
	uint32_t sleepers; /* threads inside fi_cq_sread() or fi_eq_sread() */
};

struct prov_eq {
	struct fid_eq eq;
	struct prov_fabric *fabric;
	struct prov_wait wait;
	struct list_node events;
	uint32_t users;
	uint8_t error_data[PROV_CM_BYTES_MAX]; /* data of the last error that was read */
};

int prov_eq_open(
	struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq_out, void *context);

/* Queues an event. data is copied, at most PROV_CM_BYTES_MAX bytes; the call owns info. error: 0,
 * or the errno of an error event. Returns 0, -FI_ENOEQ (eq is NULL) or -FI_ENOMEM. */
int prov_eq_add(struct prov_eq *eq, uint32_t type, struct fid *fid, struct fi_info *info,
	const void *data, size_t bytes, int error);

/* Removes all events about an object, and drops the connection requests among them. */
void prov_eq_forget(struct prov_eq *eq, const struct fid *fid);

struct prov_entry {
	void *context;
	uint64_t flags;
	size_t bytes;
	uint64_t data;
	size_t lost_bytes; /* with FI_ETRUNC: number of bytes that did not fit */
	int error;	   /* a positive errno */
};

struct prov_cq {
	struct fid_cq cq;
	struct prov_domain *domain;
	struct prov_wait wait;
	enum fi_cq_format format;
	struct prov_entry *entries; /* a ring; its size is a power of two */
	uint32_t size;
	uint32_t first;
	uint32_t count;
	uint32_t promised; /* entries reserved for operations in flight: count + promised <= size */
	uint32_t remote_max;
	uint32_t remote; /* entries of peers' writes, including reserved ones; limit: remote_max */
	uint32_t users;
};

int prov_cq_open(
	struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq_out, void *context);

/* Reserves an entry for the completion of an operation, so completing cannot fail. Returns false if
 * there is no memory. Must be followed by one of the next two calls. */
GMB_MUST_CHECK bool prov_cq_promise(struct prov_cq *cq);
void prov_cq_complete(struct prov_cq *cq, const struct prov_entry *entry);
void prov_cq_release(struct prov_cq *cq);

/* Reserves an entry for the completion of a peer's write. Also returns false while remote_max such
 * entries are reserved or unread. */
GMB_MUST_CHECK bool prov_cq_promise_remote(struct prov_cq *cq);
void prov_cq_release_remote(struct prov_cq *cq);

int prov_trywait(struct fid_fabric *fabric, struct fid **fids, int count);

/* --- memory.c: domains and memory regions ----------------------------------------------------- */

struct prov_domain {
	struct fid_domain domain;
	struct prov_fabric *fabric;
	uint32_t users;
	struct prov_mr **mrs; /* indexed by the low bits of their keys */
	uint32_t mr_slots;
	uint32_t mr_free; /* start of the search for a free slot */
	uint32_t mr_count;
	uint64_t key_state;
};

/* An access of a peer to a region, in progress. Linked in the region, so that closing it
 * invalidates all accesses. */
struct prov_use {
	struct list_node node;
	struct prov_mr *mr; /* NULL: the region has been closed */
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

/* Starts an access: finds the region of a key received from a peer, and checks that the range lies
 * in it and the access is permitted (FI_REMOTE_READ, FI_REMOTE_WRITE). use is valid until
 * prov_use_end(). Returns 0, -FI_EKEYREJECTED or -FI_EACCES. */
int prov_use_begin(struct prov_use *use, struct prov_domain *domain, uint64_t key, uint64_t address,
	uint64_t bytes, uint64_t access);
void prov_use_end(struct prov_use *use);

/* --- endpoint.c: endpoints and connections ---------------------------------------------------- */

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

/* A connection request of a peer, until it is accepted, rejected or lost. */
struct prov_request {
	struct fid fid; /* FI_CLASS_CONNREQ: fi_info.handle points to this member */
	struct prov_fabric *fabric;
	struct list_node node;	/* in pep->requests; after pep was closed, in fabric->requests */
	struct clan_conn *conn; /* NULL: the peer has ended the connection */
	uint32_t peer_ops;
};

/* The states of an endpoint. */
enum prov_ep_state {
	PROV_EP_IDLE,	    /* waits for fi_enable() */
	PROV_EP_ENABLED,    /* waits for fi_connect() or fi_accept() */
	PROV_EP_CONNECTING, /* waits for the peer's answer */
	PROV_EP_CONNECTED,  /* usable until either side ends the connection */
	PROV_EP_DRAINING,   /* the peer has ended; waits for receives of its earlier data */
	PROV_EP_OVER,	    /* waits for fi_close() */
	PROV_EP_STATE_COUNT,
};

enum prov_record_kind {
	PROV_RECORD_SEND = 1,
	PROV_RECORD_WRITE,
	PROV_RECORD_READ,
	PROV_RECORD_PIECE,
	PROV_RECORD_ANSWER,
};

enum { PROV_RECORD_HAS_DATA = 1 }; /* flag: data is for the receiver's completion */

/* The head of a record on a connection (stream.c). Little-endian. The heads of SEND, PIECE and
 * ANSWER end before `address`. */
struct prov_record {
	uint8_t kind;
	uint8_t flags;
	uint16_t reserved;
	uint32_t op; /* number of the operation, chosen by its initiator */
	uint64_t bytes;
	uint64_t data;
	uint64_t address; /* reads and writes only, like key */
	uint64_t key;
};

/* An operation of this side. */
struct prov_op {
	struct list_node node;
	struct prov_record record;
	uint32_t number;
	bool in_use;
	bool waits;  /* sent completely; the peer's answer is outstanding */
	bool told;   /* a completion is wanted */
	bool silent; /* injected: not even errors are reported */
	void *context;
	uint64_t flags; /* flags to report in the completion */
	uint64_t bytes;
	uint64_t done; /* bytes sent; of a read: bytes received */
	uint32_t iov_count;
	struct iovec iov[PROV_IOV_MAX];
	uint8_t inject[PROV_INJECT_BYTES];
};

/* The answer to an operation of the peer. */
struct prov_answer {
	struct list_node node;
	struct prov_use use;
	uint32_t op;
	int status;
	bool read;
	uint8_t *from;
	uint64_t bytes;
	uint64_t done; /* bytes sent in complete pieces */
};

struct prov_receive {
	void *context;
	bool told;
	uint32_t iov_count;
	struct iovec iov[PROV_IOV_MAX];
};

/* State of sending: the current record, and its progress. */
struct prov_out {
	struct list_node ops;
	struct list_node answers;
	bool answers_next; /* the next record is an answer's, because operations and answers
			      alternate */
	struct prov_op *op;
	struct prov_answer *answer;
	struct prov_record record; /* the answer's current record */
	uint8_t head_done;
	uint64_t piece_done;
};

/* State of receiving: the current record, and the destination of its payload. */
struct prov_in {
	struct prov_record record;
	uint8_t head_bytes;  /* received bytes of the head */
	bool open;	     /* the record was accepted and its payload follows */
	bool promised;	     /* a completion is reserved for a write */
	uint64_t done;	     /* received bytes of the payload */
	struct prov_use use; /* the access to a region by the current write */
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
	bool accepts; /* the endpoint was created for a connection request */
	struct clan_conn *conn;
	union prov_address local;
	union prov_address peer;
	uint64_t tx_flags; /* default flags of operations */
	uint64_t rx_flags;

	uint32_t op_count;
	struct prov_op *ops;
	struct list_node ops_free;
	struct prov_answer *answers; /* one for each operation that the peer can have in flight */
	struct list_node answers_free;
	uint32_t receive_max;
	uint32_t receive_size; /* size of the ring, a power of two */
	uint32_t receive_first;
	uint32_t receive_count;
	struct prov_receive *receives;
	struct prov_out out;
	struct prov_in in;

	struct list_node again_node;
	size_t hello_bytes; /* length of the hello of fi_connect() or fi_accept() */
	uint8_t hello[PROV_HELLO_BYTES_MAX];
};

int prov_pep_open(
	struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep_out, void *context);
int prov_ep_open(
	struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep_out, void *context);

/* Called for clan's events of listeners and endpoints. */
void prov_request_arrived(struct prov_fabric *fabric, struct clan_conn *conn);
void prov_request_lost(struct prov_request *request);
/* Drops a request that can no longer be accepted. handle is the fi_info.handle of the request. */
void prov_request_drop(struct fid *handle);
void prov_ep_connected(struct prov_ep *ep);
void prov_ep_lost(struct prov_ep *ep, int status);

/* Processes an endpoint from the list fabric->again. */
void prov_ep_again(struct prov_ep *ep);

/* Ends the connection of a connected endpoint, and fails all operations in flight with that errno.
 * The program gets FI_SHUTDOWN. */
void prov_ep_end(struct prov_ep *ep, int error);

/* --- stream.c: records on a connection -------------------------------------------------------- */

/* Sends queued records while there is room. */
void prov_stream_send(struct prov_ep *ep);

/* Processes received records, as far as receives are posted. */
void prov_stream_receive(struct prov_ep *ep);

/* prov_stream_flush() completes all operations with the errno, and all posted receives with
 * FI_ECANCELED. prov_stream_flush_ops() completes the operations and leaves the receives. */
void prov_stream_flush(struct prov_ep *ep, int error);
void prov_stream_flush_ops(struct prov_ep *ep, int error);

/* Allocate and free the pools of an endpoint. The first two return 0 or -FI_ENOMEM. */
int prov_stream_init(struct prov_ep *ep, size_t ops, size_t receives);
int prov_stream_init_answers(struct prov_ep *ep, uint32_t peer_ops);
void prov_stream_fini(struct prov_ep *ep);

/* --- calls.c: fi_msg(3), fi_rma(3), and tables of calls that are not offered ------------------ */

extern struct fi_ops_msg prov_msg_ops;
extern struct fi_ops_rma prov_rma_ops;
extern struct fi_ops_tagged prov_tagged_ops;
extern struct fi_ops_atomic prov_atomic_ops;
extern struct fi_ops_collective prov_collective_ops;
