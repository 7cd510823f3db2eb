// SPDX-License-Identifier: Apache-2.0
/*
 * The data transfer calls: fi_msg(3) and fi_rma(3). The others fail with FI_ENOSYS.
 */
#include "fi/absent.h"
#include "fi/provider.h"

#include <string.h>

/* Flags that calls accept. The completion of a write always means that the data is in the target's
 * memory. The completion of a read means that the data is in ours. */
#define TX_CALL_FLAGS                                                                              \
	(FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |                   \
		FI_REMOTE_CQ_DATA | FI_MORE)
#define RX_CALL_FLAGS (FI_COMPLETION | FI_MORE)

/* Arguments of an operation. */
struct request {
	enum prov_record_kind kind;
	const struct iovec *iov;
	size_t iov_count;
	uint64_t data;
	uint64_t address;
	uint64_t key;
	void *context;
	uint64_t flags;
	bool inject; /* no completion; the buffer can be reused immediately */
};

static uint64_t completion_flags(enum prov_record_kind kind)
{
	return kind == PROV_RECORD_WRITE  ? FI_WRITE | FI_RMA
	       : kind == PROV_RECORD_READ ? FI_READ | FI_RMA
					  : FI_SEND | FI_MSG;
}

/* Fills in an operation. Injected data is copied, because the program can reuse its buffer
 * immediately. Other buffers are read or written until the completion. */
static void fill_op(struct prov_op *op, const struct request *request, uint64_t bytes, bool inject)
{
	op->record = (struct prov_record){
		.kind = (uint8_t)request->kind,
		.flags = (request->flags & FI_REMOTE_CQ_DATA) != 0 ? PROV_RECORD_HAS_DATA : 0,
		.op = request->kind == PROV_RECORD_SEND ? 0 : op->number,
		.bytes = bytes,
		.data = request->data,
		.address = request->address,
		.key = request->key,
	};
	op->in_use = true;
	op->context = request->context;
	op->flags = completion_flags(request->kind);
	op->bytes = bytes;
	op->done = 0;
	op->iov_count = (uint32_t)request->iov_count;
	for (size_t i = 0; i < request->iov_count; i++) {
		op->iov[i] = request->iov[i];
	}
	if (inject) {
		size_t at = 0;

		for (size_t i = 0; i < request->iov_count; i++) {
			if (op->iov[i].iov_len > 0) {
				memcpy(op->inject + at, op->iov[i].iov_base, op->iov[i].iov_len);
				at += op->iov[i].iov_len;
			}
		}
		op->iov[0] = (struct iovec){ .iov_base = op->inject, .iov_len = at };
		op->iov_count = 1;
	}
}

/* FI_DELIVERY_COMPLETE is always in effect for reads and writes; sends do not support it. */
static bool flags_are_known(const struct request *request)
{
	uint64_t known =
		TX_CALL_FLAGS | (request->kind == PROV_RECORD_SEND ? 0 : FI_DELIVERY_COMPLETE);

	return (request->flags & ~known) == 0;
}

/* Starts an operation. Its completion is reserved first, so a full completion queue is reported
 * here (-FI_EAGAIN) and not when the operation ends. The record can wait in out.ops for room in the
 * ring. */
static ssize_t fi_calls_begin(struct prov_ep *ep, const struct request *request)
{
	bool inject = request->inject ||
		      ((request->flags & FI_INJECT) != 0 && request->kind != PROV_RECORD_READ);
	uint64_t bytes;
	struct prov_op *op;

	if (request->iov_count > PROV_IOV_MAX) {
		return -FI_EINVAL;
	}
	if (!flags_are_known(request)) {
		return -FI_EBADFLAGS;
	}
	bytes = prov_iov_bytes(request->iov, request->iov_count);
	if (bytes > PROV_MESSAGE_MAX || (inject && bytes > PROV_INJECT_BYTES)) {
		return -FI_EMSGSIZE;
	}
	if (ep->state != PROV_EP_CONNECTED || ep->fabric->queue == NULL) {
		return -FI_ENOTCONN;
	}
	if (list_is_empty(&ep->ops_free) || !prov_cq_promise(ep->tx_cq)) {
		return -FI_EAGAIN;
	}
	op = list_entry(list_pop_front(&ep->ops_free), struct prov_op, node);
	fill_op(op, request, bytes, inject);
	op->silent = request->inject;
	op->told = !request->inject && (!ep->tx_selective || (request->flags & FI_COMPLETION) != 0);
	list_push_back(&ep->out.ops, &op->node);
	prov_stream_send(ep);
	return 0;
}

static ssize_t fi_calls_submit(struct fid_ep *fid, const struct request *request)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep);
	ssize_t result;

	prov_lock(ep->fabric);
	result = fi_calls_begin(ep, request);
	prov_leave(ep->fabric);
	return result;
}

/* Submits an operation with one buffer; request has the other arguments. */
static ssize_t submit_buffer(
	struct fid_ep *fid, const void *buffer, size_t bytes, struct request request)
{
	const struct iovec iov = { (void *)(uintptr_t)buffer, bytes };

	request.iov = &iov;
	request.iov_count = 1;
	return fi_calls_submit(fid, &request);
}

/* Returns the flags for calls without a flags argument. */
static uint64_t tx_flags(struct fid_ep *fid, uint64_t more)
{
	return container_of(fid, struct prov_ep, ep)->tx_flags | more;
}

static ssize_t msg_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
	fi_addr_t dest, void *context)
{
	const struct request request = {
		.kind = PROV_RECORD_SEND,
		.iov = iov,
		.iov_count = count,
		.context = context,
		.flags = tx_flags(fid, 0),
	};

	return fi_calls_submit(fid, &request);
}

static ssize_t msg_send(struct fid_ep *fid, const void *buffer, size_t bytes, void *desc,
	fi_addr_t dest, void *context)
{
	const struct iovec iov = { (void *)(uintptr_t)buffer, bytes };

	return msg_sendv(fid, &iov, NULL, 1, dest, context);
}

static ssize_t msg_sendmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	const struct request request = {
		.kind = PROV_RECORD_SEND,
		.iov = msg->msg_iov,
		.iov_count = msg->iov_count,
		.data = msg->data,
		.context = msg->context,
		.flags = flags,
	};

	return fi_calls_submit(fid, &request);
}

static ssize_t msg_senddata(struct fid_ep *fid, const void *buffer, size_t bytes, void *desc,
	uint64_t data, fi_addr_t dest, void *context)
{
	const struct request request = {
		.kind = PROV_RECORD_SEND,
		.data = data,
		.context = context,
		.flags = tx_flags(fid, FI_REMOTE_CQ_DATA),
	};

	return submit_buffer(fid, buffer, bytes, request);
}

static ssize_t msg_inject(struct fid_ep *fid, const void *buffer, size_t bytes, fi_addr_t dest)
{
	const struct request request = { .kind = PROV_RECORD_SEND, .inject = true };

	return submit_buffer(fid, buffer, bytes, request);
}

static ssize_t msg_injectdata(
	struct fid_ep *fid, const void *buffer, size_t bytes, uint64_t data, fi_addr_t dest)
{
	const struct request request = {
		.kind = PROV_RECORD_SEND,
		.data = data,
		.flags = FI_REMOTE_CQ_DATA,
		.inject = true,
	};

	return submit_buffer(fid, buffer, bytes, request);
}

/* Posts a receive. Its completion is reserved first, as for operations. A receive can be posted
 * before the endpoint is connected. */
static ssize_t post(
	struct prov_ep *ep, const struct iovec *iov, size_t count, void *context, uint64_t flags)
{
	struct prov_receive *receive;

	if (count > PROV_IOV_MAX) {
		return -FI_EINVAL;
	}
	if ((flags & ~(uint64_t)RX_CALL_FLAGS) != 0) {
		return -FI_EBADFLAGS;
	}
	if (ep->state == PROV_EP_IDLE) {
		return -FI_EOPBADSTATE;
	}
	if (ep->state == PROV_EP_OVER || ep->fabric->queue == NULL) {
		return -FI_ENOTCONN;
	}
	if (ep->receive_count == ep->receive_max || !prov_cq_promise(ep->rx_cq)) {
		return -FI_EAGAIN;
	}
	receive = &ep->receives[(ep->receive_first + ep->receive_count++) & (ep->receive_size - 1)];
	receive->context = context;
	receive->told = !ep->rx_selective || (flags & FI_COMPLETION) != 0;
	receive->iov_count = (uint32_t)count;
	for (size_t i = 0; i < count; i++) {
		receive->iov[i] = iov[i];
	}
	if (ep->in.head_bytes > 0 && !ep->in.open) {
		prov_stream_receive(ep); /* a received message might be waiting for this receive */
	}
	return 0;
}

static ssize_t post_locked(
	struct fid_ep *fid, const struct iovec *iov, size_t count, void *context, uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep);
	ssize_t result;

	prov_lock(ep->fabric);
	result = post(ep, iov, count, context, flags);
	prov_leave(ep->fabric);
	return result;
}

static ssize_t msg_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
	fi_addr_t src, void *context)
{
	return post_locked(
		fid, iov, count, context, container_of(fid, struct prov_ep, ep)->rx_flags);
}

static ssize_t msg_recv(
	struct fid_ep *fid, void *buffer, size_t bytes, void *desc, fi_addr_t src, void *context)
{
	const struct iovec iov = { buffer, bytes };

	return msg_recvv(fid, &iov, NULL, 1, src, context);
}

static ssize_t msg_recvmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	return post_locked(fid, msg->msg_iov, msg->iov_count, msg->context, flags);
}

struct fi_ops_msg prov_msg_ops = {
	.size = sizeof(struct fi_ops_msg),
	.recv = msg_recv,
	.recvv = msg_recvv,
	.recvmsg = msg_recvmsg,
	.send = msg_send,
	.sendv = msg_sendv,
	.sendmsg = msg_sendmsg,
	.inject = msg_inject,
	.senddata = msg_senddata,
	.injectdata = msg_injectdata,
};

static ssize_t rma_vector(struct fid_ep *fid, enum prov_record_kind kind, const struct iovec *iov,
	size_t count, uint64_t address, uint64_t key, void *context)
{
	const struct request request = {
		.kind = kind,
		.iov = iov,
		.iov_count = count,
		.address = address,
		.key = key,
		.context = context,
		.flags = tx_flags(fid, 0),
	};

	return fi_calls_submit(fid, &request);
}

static ssize_t rma_message(struct fid_ep *fid, enum prov_record_kind kind,
	const struct fi_msg_rma *msg, uint64_t flags)
{
	struct request request = {
		.kind = kind,
		.iov = msg->msg_iov,
		.iov_count = msg->iov_count,
		.data = msg->data,
		.context = msg->context,
		.flags = flags,
	};

	if (msg->rma_iov_count != 1 ||
		prov_iov_bytes(msg->msg_iov, msg->iov_count) != msg->rma_iov[0].len ||
		(kind == PROV_RECORD_READ && (flags & (FI_INJECT | FI_REMOTE_CQ_DATA)) != 0)) {
		return -FI_EINVAL;
	}
	request.address = msg->rma_iov[0].addr;
	request.key = msg->rma_iov[0].key;
	return fi_calls_submit(fid, &request);
}

static ssize_t rma_readv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
	fi_addr_t src, uint64_t address, uint64_t key, void *context)
{
	return rma_vector(fid, PROV_RECORD_READ, iov, count, address, key, context);
}

static ssize_t rma_read(struct fid_ep *fid, void *buffer, size_t bytes, void *desc, fi_addr_t src,
	uint64_t address, uint64_t key, void *context)
{
	const struct iovec iov = { buffer, bytes };

	return rma_readv(fid, &iov, NULL, 1, src, address, key, context);
}

static ssize_t rma_readmsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	return rma_message(fid, PROV_RECORD_READ, msg, flags);
}

static ssize_t rma_writev(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
	fi_addr_t dest, uint64_t address, uint64_t key, void *context)
{
	return rma_vector(fid, PROV_RECORD_WRITE, iov, count, address, key, context);
}

static ssize_t rma_write(struct fid_ep *fid, const void *buffer, size_t bytes, void *desc,
	fi_addr_t dest, uint64_t address, uint64_t key, void *context)
{
	const struct iovec iov = { (void *)(uintptr_t)buffer, bytes };

	return rma_writev(fid, &iov, NULL, 1, dest, address, key, context);
}

static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	return rma_message(fid, PROV_RECORD_WRITE, msg, flags);
}

static ssize_t rma_writedata(struct fid_ep *fid, const void *buffer, size_t bytes, void *desc,
	uint64_t data, fi_addr_t dest, uint64_t address, uint64_t key, void *context)
{
	const struct request request = {
		.kind = PROV_RECORD_WRITE,
		.data = data,
		.address = address,
		.key = key,
		.context = context,
		.flags = tx_flags(fid, FI_REMOTE_CQ_DATA),
	};

	return submit_buffer(fid, buffer, bytes, request);
}

static ssize_t rma_inject_writedata(struct fid_ep *fid, const void *buffer, size_t bytes,
	uint64_t data, fi_addr_t dest, uint64_t address, uint64_t key)
{
	const struct request request = {
		.kind = PROV_RECORD_WRITE,
		.data = data,
		.address = address,
		.key = key,
		.flags = FI_REMOTE_CQ_DATA,
		.inject = true,
	};

	return submit_buffer(fid, buffer, bytes, request);
}

static ssize_t rma_inject(struct fid_ep *fid, const void *buffer, size_t bytes, fi_addr_t dest,
	uint64_t address, uint64_t key)
{
	const struct request request = {
		.kind = PROV_RECORD_WRITE,
		.address = address,
		.key = key,
		.inject = true,
	};

	return submit_buffer(fid, buffer, bytes, request);
}

struct fi_ops_rma prov_rma_ops = {
	.size = sizeof(struct fi_ops_rma),
	.read = rma_read,
	.readv = rma_readv,
	.readmsg = rma_readmsg,
	.write = rma_write,
	.writev = rma_writev,
	.writemsg = rma_writemsg,
	.inject = rma_inject,
	.writedata = rma_writedata,
	.injectdata = rma_inject_writedata,
};

struct fi_ops_tagged prov_tagged_ops = {
	.size = sizeof(struct fi_ops_tagged),
	.recv = absent_tagged_recv,
	.recvv = absent_tagged_recvv,
	.recvmsg = absent_tagged_recvmsg,
	.send = absent_tagged_send,
	.sendv = absent_tagged_sendv,
	.sendmsg = absent_tagged_sendmsg,
	.inject = absent_tagged_inject,
	.senddata = absent_tagged_senddata,
	.injectdata = absent_tagged_injectdata,
};

struct fi_ops_atomic prov_atomic_ops = {
	.size = sizeof(struct fi_ops_atomic),
	.write = absent_atomic_write,
	.writev = absent_atomic_writev,
	.writemsg = absent_atomic_writemsg,
	.inject = absent_atomic_inject,
	.readwrite = absent_atomic_readwrite,
	.readwritev = absent_atomic_readwritev,
	.readwritemsg = absent_atomic_readwritemsg,
	.compwrite = absent_atomic_compwrite,
	.compwritev = absent_atomic_compwritev,
	.compwritemsg = absent_atomic_compwritemsg,
	.writevalid = absent_atomic_writevalid,
	.readwritevalid = absent_atomic_readwritevalid,
	.compwritevalid = absent_atomic_compwritevalid,
};

struct fi_ops_collective prov_collective_ops = {
	.size = sizeof(struct fi_ops_collective),
	.barrier = absent_collective_barrier,
	.broadcast = absent_collective_broadcast,
	.alltoall = absent_collective_alltoall,
	.allreduce = absent_collective_allreduce,
	.allgather = absent_collective_allgather,
	.reduce_scatter = absent_collective_reduce_scatter,
	.reduce = absent_collective_reduce,
	.scatter = absent_collective_scatter,
	.gather = absent_collective_gather,
	.msg = absent_collective_msg,
};
