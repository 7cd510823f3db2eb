// SPDX-License-Identifier: Apache-2.0
/*
 * The transport ofi: libfabric (FI_EP_MSG) with its providers tcp and verbs, docs/protocol/clan.md
 * §12.10.
 *
 *   ofi.c         the transport's table: endpoints, registrations, posted operations
 *   ofi_domain.c  libfabric itself, loaded on demand; its queues, and waiting for them
 *
 * Invariant: libfabric makes progress only inside its calls, and only ofi_domain_reap() takes
 * completions.
 *
 * Threading, ownership, errors: as in clan/net.h.
 */
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#undef container_of /* our own container_of() checks the type */

#include "clan/net.h"

#define OFI_MAGIC UINT64_C(0x69666f2d6e616c63) /* "clan-ofi" */

enum {
	OFI_DOMAIN_CONNS = 256, /* connections that share a completion queue */
	OFI_PIECE_IOV = 4,	/* buffers of one libfabric write or read */
};

/* State of the transport for a queue. */
struct ofi_queue {
	struct list_node domains;
};

/* A domain of libfabric with one completion queue and one event queue. It is kept until the queue
 * is destroyed, for reuse by later connections. */
struct ofi_domain {
	struct list_node node;
	struct net_queue *net;
	/* The provider, fabric and device of the domain, as described by libfabric for the first
	 * connection or listener. */
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_eq *eq;
	struct waiter_file cq_file;
	struct waiter_file eq_file;
	uint32_t conn_count;
	bool registers_local; /* FI_MR_LOCAL: local buffers must be registered as well */
};

struct ofi_conn {
	struct net_conn net;
	struct ofi_domain *domain;
	struct fid_ep *ep;
	uint8_t *receive_memory;
	struct net_buffer receives[NET_RECEIVES];
	struct fid_mr *receive_mr;
	struct fid_mr *send_mr;
	uint64_t piece_bytes_max; /* limit of the endpoint for one operation */
	size_t piece_iov_max;
};

struct ofi_listener {
	struct net_listener net;
	struct ofi_domain *domain;
	struct fid_pep *pep;
};

static inline struct ofi_conn *ofi_conn(struct net_conn *conn)
{
	return (struct ofi_conn *)conn;
}

_Static_assert(offsetof(struct ofi_conn, net) == 0 && offsetof(struct ofi_listener, net) == 0,
	"ofi_conn()");

/* --- ofi.c ------------------------------------------------------------------------------------ */

/* Called when a listener receives a connection request. Takes ownership of info. */
void ofi_connection_requested(struct ofi_listener *listener, struct fi_info *info);
/* Called when the endpoint of a connection is connected. Further calls have no effect. */
void ofi_connected(struct ofi_conn *conn);
/* Called when a frame has been received into a buffer. */
void ofi_received(struct ofi_conn *conn, struct net_buffer *buffer, size_t bytes);

/* --- ofi_domain.c ----------------------------------------------------------------------------- */

/* Resolves an address. Can block. */
GMB_MUST_CHECK int ofi_look_up(
	const struct net_place *place, bool listen, void **found_out, struct error *error);
void ofi_info_free(void *info);
/* Returns in *domain_out a domain with room for an endpoint with that info, creating one if
 * necessary. */
GMB_MUST_CHECK int ofi_domain_get(
	struct net_queue *net, const struct fi_info *info, struct ofi_domain **domain_out);
/* Processes all completions and events of libfabric. Returns true if there were any. */
bool ofi_domain_reap(struct ofi_domain *domain);
/* Returns true if the caller can sleep on the domain's descriptors. False: there are completions or
 * events to process. */
bool ofi_domain_may_sleep(struct ofi_domain *domain);
void ofi_domain_destroy(struct ofi_domain *domain);
/* Converts a result of libfabric to a negative errno. */
int ofi_errno(int64_t result);
