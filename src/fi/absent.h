// SPDX-License-Identifier: Apache-2.0
/*
 * Table entries for the calls that the provider does not offer. libfabric's inline functions call
 * most entries without checking them, so the tables are complete. The few that it checks, such as
 * ops_set, are left out.
 */
#pragma once

#include "fi/provider.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_tagged.h>

/* Defines the function absent_<name>, which fails with FI_ENOSYS. */
#define ABSENT(type, name, ...)                                                                    \
	static inline type absent_##name(__VA_ARGS__)                                              \
	{                                                                                          \
		return -FI_ENOSYS;                                                                 \
	}

/* --- any object ------------------------------------------------------------------------------- */

ABSENT(int, bind, struct fid *fid, struct fid *bfid, uint64_t flags)
ABSENT(int, control, struct fid *fid, int command, void *arg)
ABSENT(int, ops_open, struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)

/* --- fabrics ---------------------------------------------------------------------------------- */

ABSENT(int, wait_open, struct fid_fabric *fabric, struct fi_wait_attr *attr,
	struct fid_wait **waitset)

/* --- domains ---------------------------------------------------------------------------------- */

ABSENT(int, av_open, struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av,
	void *context)
ABSENT(int, scalable_ep, struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep,
	void *context)
ABSENT(int, cntr_open, struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr,
	void *context)
ABSENT(int, poll_open, struct fid_domain *domain, struct fi_poll_attr *attr,
	struct fid_poll **pollset)
ABSENT(int, stx_ctx, struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx,
	void *context)
ABSENT(int, srx_ctx, struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **rx_ep,
	void *context)

/* --- endpoints -------------------------------------------------------------------------------- */

ABSENT(ssize_t, cancel, fid_t fid, void *context)
ABSENT(int, tx_ctx, struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **tx_ep,
	void *context)
ABSENT(int, rx_ctx, struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **rx_ep,
	void *context)
ABSENT(ssize_t, size_left, struct fid_ep *ep)

/* --- connections ------------------------------------------------------------------------------ */

ABSENT(int, getpeer, struct fid_ep *ep, void *addr, size_t *addrlen)
ABSENT(int, connect, struct fid_ep *ep, const void *addr, const void *param, size_t paramlen)
ABSENT(int, listen, struct fid_pep *pep)
ABSENT(int, accept, struct fid_ep *ep, const void *param, size_t paramlen)
ABSENT(int, reject, struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen)
ABSENT(int, shutdown, struct fid_ep *ep, uint64_t flags)

/* --- tagged messages -------------------------------------------------------------------------- */

ABSENT(ssize_t, tagged_recv, struct fid_ep *ep, void *buf, size_t len, void *desc,
	fi_addr_t src_addr, uint64_t tag, uint64_t ignore, void *context)
ABSENT(ssize_t, tagged_recvv, struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count,
	fi_addr_t src_addr, uint64_t tag, uint64_t ignore, void *context)
ABSENT(ssize_t, tagged_recvmsg, struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags)
ABSENT(ssize_t, tagged_send, struct fid_ep *ep, const void *buf, size_t len, void *desc,
	fi_addr_t dest_addr, uint64_t tag, void *context)
ABSENT(ssize_t, tagged_sendv, struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count,
	fi_addr_t dest_addr, uint64_t tag, void *context)
ABSENT(ssize_t, tagged_sendmsg, struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags)
ABSENT(ssize_t, tagged_inject, struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest_addr,
	uint64_t tag)
ABSENT(ssize_t, tagged_senddata, struct fid_ep *ep, const void *buf, size_t len, void *desc,
	uint64_t data, fi_addr_t dest_addr, uint64_t tag, void *context)
ABSENT(ssize_t, tagged_injectdata, struct fid_ep *ep, const void *buf, size_t len, uint64_t data,
	fi_addr_t dest_addr, uint64_t tag)

/* --- atomics ---------------------------------------------------------------------------------- */

ABSENT(ssize_t, atomic_write, struct fid_ep *ep, const void *buf, size_t count, void *desc,
	fi_addr_t dest_addr, uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op,
	void *context)
ABSENT(ssize_t, atomic_writev, struct fid_ep *ep, const struct fi_ioc *iov, void **desc,
	size_t count, fi_addr_t dest_addr, uint64_t addr, uint64_t key, enum fi_datatype datatype,
	enum fi_op op, void *context)
ABSENT(ssize_t, atomic_writemsg, struct fid_ep *ep, const struct fi_msg_atomic *msg, uint64_t flags)
ABSENT(ssize_t, atomic_inject, struct fid_ep *ep, const void *buf, size_t count,
	fi_addr_t dest_addr, uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op)
ABSENT(ssize_t, atomic_readwrite, struct fid_ep *ep, const void *buf, size_t count, void *desc,
	void *result, void *result_desc, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
	enum fi_datatype datatype, enum fi_op op, void *context)
ABSENT(ssize_t, atomic_readwritev, struct fid_ep *ep, const struct fi_ioc *iov, void **desc,
	size_t count, struct fi_ioc *resultv, void **result_desc, size_t result_count,
	fi_addr_t dest_addr, uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op,
	void *context)
ABSENT(ssize_t, atomic_readwritemsg, struct fid_ep *ep, const struct fi_msg_atomic *msg,
	struct fi_ioc *resultv, void **result_desc, size_t result_count, uint64_t flags)
ABSENT(ssize_t, atomic_compwrite, struct fid_ep *ep, const void *buf, size_t count, void *desc,
	const void *compare, void *compare_desc, void *result, void *result_desc,
	fi_addr_t dest_addr, uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op,
	void *context)
ABSENT(ssize_t, atomic_compwritev, struct fid_ep *ep, const struct fi_ioc *iov, void **desc,
	size_t count, const struct fi_ioc *comparev, void **compare_desc, size_t compare_count,
	struct fi_ioc *resultv, void **result_desc, size_t result_count, fi_addr_t dest_addr,
	uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op, void *context)
ABSENT(ssize_t, atomic_compwritemsg, struct fid_ep *ep, const struct fi_msg_atomic *msg,
	const struct fi_ioc *comparev, void **compare_desc, size_t compare_count,
	struct fi_ioc *resultv, void **result_desc, size_t result_count, uint64_t flags)
ABSENT(int, atomic_writevalid, struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op,
	size_t *count)
ABSENT(int, atomic_readwritevalid, struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op,
	size_t *count)
ABSENT(int, atomic_compwritevalid, struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op,
	size_t *count)

/* --- collectives ------------------------------------------------------------------------------ */

ABSENT(ssize_t, collective_barrier, struct fid_ep *ep, fi_addr_t coll_addr, void *context)
ABSENT(ssize_t, collective_broadcast, struct fid_ep *ep, void *buf, size_t count, void *desc,
	fi_addr_t coll_addr, fi_addr_t root_addr, enum fi_datatype datatype, uint64_t flags,
	void *context)
ABSENT(ssize_t, collective_alltoall, struct fid_ep *ep, const void *buf, size_t count, void *desc,
	void *result, void *result_desc, fi_addr_t coll_addr, enum fi_datatype datatype,
	uint64_t flags, void *context)
ABSENT(ssize_t, collective_allreduce, struct fid_ep *ep, const void *buf, size_t count, void *desc,
	void *result, void *result_desc, fi_addr_t coll_addr, enum fi_datatype datatype,
	enum fi_op op, uint64_t flags, void *context)
ABSENT(ssize_t, collective_allgather, struct fid_ep *ep, const void *buf, size_t count, void *desc,
	void *result, void *result_desc, fi_addr_t coll_addr, enum fi_datatype datatype,
	uint64_t flags, void *context)
ABSENT(ssize_t, collective_reduce_scatter, struct fid_ep *ep, const void *buf, size_t count,
	void *desc, void *result, void *result_desc, fi_addr_t coll_addr, enum fi_datatype datatype,
	enum fi_op op, uint64_t flags, void *context)
ABSENT(ssize_t, collective_reduce, struct fid_ep *ep, const void *buf, size_t count, void *desc,
	void *result, void *result_desc, fi_addr_t coll_addr, fi_addr_t root_addr,
	enum fi_datatype datatype, enum fi_op op, uint64_t flags, void *context)
ABSENT(ssize_t, collective_scatter, struct fid_ep *ep, const void *buf, size_t count, void *desc,
	void *result, void *result_desc, fi_addr_t coll_addr, fi_addr_t root_addr,
	enum fi_datatype datatype, uint64_t flags, void *context)
ABSENT(ssize_t, collective_gather, struct fid_ep *ep, const void *buf, size_t count, void *desc,
	void *result, void *result_desc, fi_addr_t coll_addr, fi_addr_t root_addr,
	enum fi_datatype datatype, uint64_t flags, void *context)
ABSENT(ssize_t, collective_msg, struct fid_ep *ep, const struct fi_msg_collective *msg,
	struct fi_ioc *resultv, void **result_desc, size_t result_count, uint64_t flags)
