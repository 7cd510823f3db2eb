// SPDX-License-Identifier: Apache-2.0
/*
 * Records on a connection: messages, and reads and writes of registered memory.
 *
 *   SEND    op 0, payload                       to the oldest posted receive
 *   WRITE   op, address, key, payload           to a region of the receiver, which sends an ANSWER
 *   READ    op, address, key, bytes             the receiver sends PIECEs and an ANSWER
 *   PIECE   op, data = offset, payload          a part of the answer to a READ
 *   ANSWER  op, data = errno or 0               ends a WRITE or READ
 *
 * The bulk ring of clan carries them as a stream, so payload is copied twice: by the sender into
 * the ring, and by the receiver to its destination. The two copies overlap if the processes have
 * their own processors. Records of an endpoint are executed in order. A SEND waits for a posted
 * receive, and the records behind it wait as well.
 *
 * Rules for peers; a violation ends the connection:
 *   F1  the kind is known, reserved bits are 0
 *   F2  a side has at most as many operations in flight as its hello announced
 *   F3  an ANSWER or PIECE names an operation that waits for it
 *   F4  PIECEs have the next offset, and at most the requested bytes
 *   F5  the data of an ANSWER is an errno or 0; 0 for a READ comes after all of its PIECEs
 *   F6  all clan messages belong to the stream
 */
#include "fi/provider.h"

#include <stdlib.h>
#include <string.h>

enum {
	SHORT_BYTES = offsetof(struct prov_record, address),
	LONG_BYTES = sizeof(struct prov_record),
	COPY_BYTES = 32 << 10,	  /* copied per step, so that the peer can copy at the same time */
	SEND_BYTES_MAX = 1 << 20, /* limit on bytes sent per call */
	STEPS_MAX = 1024,	  /* limit on receiving steps per call */
	ERRNO_MAX = 4095,
};

_Static_assert(SHORT_BYTES == 24 && LONG_BYTES == 40, "records have no padding");

static size_t fi_stream_head_bytes(uint8_t kind)
{
	return kind == PROV_RECORD_WRITE || kind == PROV_RECORD_READ ? LONG_BYTES : SHORT_BYTES;
}

/* A READ has no payload here: its bytes are sent in the opposite direction, in PIECEs. An ANSWER
 * has no payload either. */
static uint64_t payload_bytes(const struct prov_record *record)
{
	return record->kind == PROV_RECORD_READ || record->kind == PROV_RECORD_ANSWER
		       ? 0
		       : record->bytes;
}

/* Fills in the part of a vector that starts at byte skip and has at most bytes_max bytes. Returns
 * the number of its entries. */
static uint32_t fi_stream_cut(struct iovec *part, const struct iovec *iov, uint32_t count,
	uint64_t skip, uint64_t bytes_max)
{
	uint32_t parts = 0;

	for (uint32_t i = 0; i < count && bytes_max > 0; i++) {
		uint64_t here = iov[i].iov_len;

		if (skip >= here) {
			skip -= here;
			continue;
		}
		here = MIN(here - skip, bytes_max);
		part[parts++] = (struct iovec){
			.iov_base = (uint8_t *)iov[i].iov_base + skip,
			.iov_len = here,
		};
		bytes_max -= here;
		skip = 0;
	}
	return parts;
}

/* Schedules the endpoint for the next prov_progress(). */
static void fi_stream_look_again(struct prov_ep *ep)
{
	if (!list_is_linked(&ep->again_node)) {
		list_push_back(&ep->fabric->again, &ep->again_node);
	}
}

/* --- pools ------------------------------------------------------------------------------------ */

int prov_stream_init(struct prov_ep *ep, size_t ops, size_t receives)
{
	ep->receive_size = 1;
	while (ep->receive_size < receives) {
		ep->receive_size *= 2;
	}
	ep->receive_max = (uint32_t)receives;
	ep->op_count = (uint32_t)ops;
	ep->ops = calloc(ops, sizeof(*ep->ops));
	ep->receives = calloc(ep->receive_size, sizeof(*ep->receives));
	list_init(&ep->ops_free);
	list_init(&ep->answers_free);
	list_init(&ep->out.ops);
	list_init(&ep->out.answers);
	list_init(&ep->in.use.node);
	if (ep->ops == NULL || ep->receives == NULL) {
		prov_stream_fini(ep);
		return -FI_ENOMEM;
	}
	for (uint32_t i = 0; i < ops; i++) {
		ep->ops[i].number = i;
		list_push_back(&ep->ops_free, &ep->ops[i].node);
	}
	return 0;
}

int prov_stream_init_answers(struct prov_ep *ep, uint32_t peer_ops)
{
	ep->answers = calloc(peer_ops, sizeof(*ep->answers));
	if (ep->answers == NULL) {
		return -FI_ENOMEM;
	}
	for (uint32_t i = 0; i < peer_ops; i++) {
		list_init(&ep->answers[i].use.node);
		list_push_back(&ep->answers_free, &ep->answers[i].node);
	}
	return 0;
}

void prov_stream_fini(struct prov_ep *ep)
{
	free(ep->ops);
	free(ep->receives);
	free(ep->answers);
}

/* --- completing ------------------------------------------------------------------------------- */

/* Completes an operation with the entry that was reserved for it, or releases the entry if no
 * completion is wanted. */
static void complete_op(struct prov_ep *ep, struct prov_op *op, int error)
{
	const struct prov_entry entry = {
		.context = op->context,
		.flags = op->flags,
		.bytes = op->bytes,
		.error = error,
	};

	if (op->told || (error != 0 && !op->silent)) {
		prov_cq_complete(ep->tx_cq, &entry);
	} else {
		prov_cq_release(ep->tx_cq);
	}
	op->in_use = false;
	op->waits = false;
	list_push_front(&ep->ops_free, &op->node);
}

static void complete_receive(struct prov_ep *ep, struct prov_entry *entry)
{
	struct prov_receive *receive = &ep->receives[ep->receive_first];

	entry->context = receive->context;
	entry->flags |= FI_RECV | FI_MSG;
	if (receive->told || entry->error != 0) {
		prov_cq_complete(ep->rx_cq, entry);
	} else {
		prov_cq_release(ep->rx_cq);
	}
	ep->receive_first = (ep->receive_first + 1) & (ep->receive_size - 1);
	ep->receive_count--;
}

static void fi_stream_finish_answer(struct prov_ep *ep, struct prov_answer *answer)
{
	prov_use_end(&answer->use);
	list_remove(&answer->node);
	list_push_front(&ep->answers_free, &answer->node);
}

/* Resets both directions, and ends accesses to regions, so that a region can be closed
 * afterwards. */
void prov_stream_flush(struct prov_ep *ep, int error)
{
	prov_stream_flush_ops(ep, error);
	while (!list_is_empty(&ep->out.answers)) {
		fi_stream_finish_answer(
			ep, list_entry(list_first(&ep->out.answers), struct prov_answer, node));
	}
	ep->out.answer = NULL;
	if (ep->in.answer != NULL) {
		fi_stream_finish_answer(ep, ep->in.answer);
	}
	if (ep->in.promised) {
		prov_cq_release_remote(ep->rx_cq);
	}
	prov_use_end(&ep->in.use);
	memset(&ep->in, 0, sizeof(ep->in));
	list_init(&ep->in.use.node);
	while (ep->receive_count > 0) {
		struct prov_entry entry = { .error = FI_ECANCELED };

		complete_receive(ep, &entry);
	}
}

/* Operations that wait for an answer or are being sent are in no list. Their nodes are linked to
 * themselves, so list_remove() has no effect on them. */
void prov_stream_flush_ops(struct prov_ep *ep, int error)
{
	ep->out.op = NULL;
	for (uint32_t i = 0; i < ep->op_count; i++) {
		if (ep->ops[i].in_use) {
			list_remove(&ep->ops[i].node);
			complete_op(ep, &ep->ops[i], error);
		}
	}
}

/* --- sending ---------------------------------------------------------------------------------- */

/* Prepares the next record of an answer: a piece of the data, or the final ANSWER. */
static void prepare_answer(struct prov_out *out, struct prov_answer *answer)
{
	/* The region was closed during the read, so the data that was sent is not valid. */
	if (answer->read && answer->status == 0 && answer->use.mr == NULL) {
		answer->status = FI_EACCES;
	}
	out->answer = answer;
	out->head_done = 0;
	out->piece_done = 0;
	out->record = (struct prov_record){ .kind = PROV_RECORD_ANSWER, .op = answer->op };
	if (answer->read && answer->status == 0 && answer->done < answer->bytes) {
		out->record.kind = PROV_RECORD_PIECE;
		out->record.data = answer->done;
		out->record.bytes = MIN(answer->bytes - answer->done, (uint64_t)PROV_PIECE_BYTES);
	} else {
		out->record.data = (uint64_t)answer->status;
	}
}

/* Selects the next record to send; operations and answers alternate. Returns false if there is
 * none. */
static bool fi_stream_choose(struct prov_out *out)
{
	bool answers = !list_is_empty(&out->answers);

	if (!answers && list_is_empty(&out->ops)) {
		return false;
	}
	if (answers && (out->answers_next || list_is_empty(&out->ops))) {
		prepare_answer(
			out, list_entry(list_first(&out->answers), struct prov_answer, node));
	} else {
		out->op = list_entry(list_pop_front(&out->ops), struct prov_op, node);
		out->head_done = 0;
	}
	out->answers_next = !out->answers_next;
	return true;
}

/* Sets the first entry of a vector to the unsent part of a record's head. Returns the number of
 * entries, 0 or 1. */
static uint32_t rest_of_head(
	const struct prov_out *out, struct prov_record *record, struct iovec *iov)
{
	size_t bytes = fi_stream_head_bytes(record->kind);

	if (out->head_done == bytes) {
		return 0;
	}
	iov[0].iov_base = (uint8_t *)record + out->head_done;
	iov[0].iov_len = bytes - out->head_done;
	return 1;
}

/* Writes as much of a vector as there is room for. The first `head` bytes of the vector are the
 * head of a record. Returns the number of payload bytes written, or a negative errno. */
static ssize_t write_some(struct prov_ep *ep, const struct iovec *iov, uint32_t count, size_t head)
{
	ssize_t written = clan_writev(ep->conn, iov, count);
	size_t of_head;

	if (written < 0) {
		return written;
	}
	of_head = MIN((size_t)written, head);
	ep->out.head_done += (uint8_t)of_head;
	return written - (ssize_t)of_head;
}

/* Sends a part of an operation: the rest of its head, and up to COPY_BYTES of payload. A SEND is
 * complete when its last byte is in the ring, because the ring holds a copy. A WRITE or READ is
 * complete with its ANSWER. */
static ssize_t send_op(struct prov_ep *ep)
{
	struct prov_out *out = &ep->out;
	struct prov_op *op = out->op;
	struct iovec iov[1 + PROV_IOV_MAX];
	uint32_t heads = rest_of_head(out, &op->record, iov);
	uint32_t count = heads;
	uint64_t payload = payload_bytes(&op->record);
	ssize_t written;

	if (payload > 0) {
		count += fi_stream_cut(iov + heads, op->iov, op->iov_count, op->done, COPY_BYTES);
	}
	written = write_some(ep, iov, count, heads > 0 ? iov[0].iov_len : 0);
	if (written < 0) {
		return written;
	}
	if (payload > 0) {
		op->done += (uint64_t)written;
	}
	if (out->head_done == fi_stream_head_bytes(op->record.kind) && op->done == payload) {
		out->op = NULL;
		if (op->record.kind == PROV_RECORD_SEND) {
			complete_op(ep, op, 0);
		} else {
			op->waits = true;
		}
	}
	return written;
}

/* Sends a part of an answer. The length of a piece was announced in its head, so it is always
 * completed, if necessary with zeroes. */
static ssize_t send_answer(struct prov_ep *ep)
{
	static const uint8_t zeroes[4096];
	struct prov_out *out = &ep->out;
	struct prov_answer *answer = out->answer;
	struct iovec iov[2];
	uint32_t heads = rest_of_head(out, &out->record, iov);
	uint32_t count = heads;
	uint64_t payload = payload_bytes(&out->record);
	uint64_t left = payload - out->piece_done;
	ssize_t written;

	if (left > 0 && answer->use.mr != NULL) {
		iov[count++] = (struct iovec){
			.iov_base = answer->from + answer->done + out->piece_done,
			.iov_len = MIN(left, (uint64_t)COPY_BYTES),
		};
	} else if (left > 0) {
		/* The region was closed in the middle of a piece. The rest of the announced length
		 * is sent as zeroes. */
		iov[count++] = (struct iovec){
			.iov_base = (void *)(uintptr_t)zeroes,
			.iov_len = MIN(left, sizeof(zeroes)),
		};
	}
	written = write_some(ep, iov, count, heads > 0 ? iov[0].iov_len : 0);
	if (written < 0) {
		return written;
	}
	out->piece_done += (uint64_t)written;
	if (out->head_done < fi_stream_head_bytes(out->record.kind) || out->piece_done < payload) {
		return written;
	}
	out->answer = NULL;
	answer->done += payload;
	if (payload == 0) {
		fi_stream_finish_answer(ep, answer);
	}
	return written;
}

void prov_stream_send(struct prov_ep *ep)
{
	struct prov_out *out = &ep->out;
	uint64_t sent = 0;

	if (ep->state != PROV_EP_CONNECTED) {
		return;
	}
	while (out->op != NULL || out->answer != NULL || fi_stream_choose(out)) {
		ssize_t written;

		if (sent >= SEND_BYTES_MAX) {
			fi_stream_look_again(ep);
			break;
		}
		written = out->op != NULL ? send_op(ep) : send_answer(ep);
		if (written < 0) {
			break; /* CLAN_EVENT_READY or CLAN_EVENT_LOST follows */
		}
		sent += (uint64_t)written;
		if (written >= COPY_BYTES) {
			clan_flush(ep->conn);
		}
	}
	clan_flush(ep->conn);
}

/* --- receiving -------------------------------------------------------------------------------- */

static int fi_stream_broken(struct prov_ep *ep, const char *rule)
{
	struct clan_peer peer;

	clan_conn_peer(ep->conn, &peer);
	PROV_WARN(FI_LOG_EP_DATA, "the peer (process %d) broke a rule: %s\n", (int)peer.pid, rule);
	return -EPROTO;
}

/* Takes an answer from the pool. Returns NULL if the pool is empty, which proves that the peer
 * broke rule F2: the pool has one answer for each operation that the peer may have in flight, and
 * an answer returns to the pool when its last record is in the ring. */
static struct prov_answer *new_answer(struct prov_ep *ep)
{
	struct list_node *node = list_pop_front(&ep->answers_free);
	struct prov_answer *answer;

	if (node == NULL) {
		return NULL;
	}
	answer = list_entry(node, struct prov_answer, node);
	answer->op = ep->in.record.op;
	answer->status = 0;
	answer->read = ep->in.record.kind == PROV_RECORD_READ;
	answer->bytes = ep->in.record.bytes;
	answer->done = 0;
	return answer;
}

/* READ: the access to the region lasts until the answer has been sent. An access that is not
 * permitted is answered with its errno. */
static int read_arrived(struct prov_ep *ep)
{
	const struct prov_record *record = &ep->in.record;
	struct prov_answer *answer = new_answer(ep);

	if (answer == NULL) {
		return fi_stream_broken(ep, "F2: more reads than announced");
	}
	answer->status = -prov_use_begin(&answer->use, ep->domain, record->key, record->address,
		record->bytes, FI_REMOTE_READ);
	answer->from = (uint8_t *)(uintptr_t)record->address;
	list_push_back(&ep->out.answers, &answer->node);
	return 1;
}

/* WRITE: reserves an answer, and a completion if the record carries data. If the access is not
 * permitted, the payload is discarded and ANSWER has the errno; the connection continues. */
static int write_arrived(struct prov_ep *ep)
{
	struct prov_in *in = &ep->in;
	const struct prov_record *record = &in->record;

	/* This step comes first, because it can fail for a while. The function is then called again
	 * for the same record, so it must not have changed anything before. */
	if ((record->flags & PROV_RECORD_HAS_DATA) != 0 && !prov_cq_promise_remote(ep->rx_cq)) {
		fi_stream_look_again(ep);
		return 0;
	}
	in->promised = (record->flags & PROV_RECORD_HAS_DATA) != 0;
	in->answer = new_answer(ep);
	if (in->answer == NULL) {
		return fi_stream_broken(ep, "F2: more writes than announced");
	}
	in->answer->status = -prov_use_begin(
		&in->use, ep->domain, record->key, record->address, record->bytes, FI_REMOTE_WRITE);
	in->write_to = (uint8_t *)(uintptr_t)record->address;
	return 1;
}

/* Returns our operation that the record answers; NULL if no operation waits for it. */
static struct prov_op *op_of(const struct prov_ep *ep)
{
	uint32_t number = ep->in.record.op;
	struct prov_op *op = number < ep->op_count ? &ep->ops[number] : NULL;

	return op != NULL && op->in_use && op->waits ? op : NULL;
}

static int piece_arrived(struct prov_ep *ep)
{
	const struct prov_record *record = &ep->in.record;
	struct prov_op *op = op_of(ep);

	if (op == NULL && ep->state == PROV_EP_DRAINING) {
		return 1; /* the operation has failed with the connection */
	}
	if (op == NULL || op->record.kind != PROV_RECORD_READ) {
		return fi_stream_broken(ep, "F3: data without a read");
	}
	if (record->data != op->done || record->bytes == 0 ||
		record->bytes > op->bytes - op->done) {
		return fi_stream_broken(ep, "F4: data at the wrong position");
	}
	return 1;
}

/* Completes the operation that the ANSWER names. */
static int fi_stream_answer_arrived(struct prov_ep *ep)
{
	const struct prov_record *record = &ep->in.record;
	struct prov_op *op = op_of(ep);

	if (op == NULL && ep->state == PROV_EP_DRAINING) {
		return 1;
	}
	if (op == NULL) {
		return fi_stream_broken(ep, "F3: an answer without a request");
	}
	if (record->data > ERRNO_MAX || (record->data == 0 && op->record.kind == PROV_RECORD_READ &&
						op->done != op->bytes)) {
		return fi_stream_broken(ep, "F5: an invalid answer");
	}
	complete_op(ep, op, (int)record->data);
	return 1;
}

/* Called when the head of a record has been received. Returns 1 to receive its payload, 0 to wait,
 * or a negative errno. */
static int record_arrived(struct prov_ep *ep)
{
	const struct prov_record *record = &ep->in.record;
	uint8_t flags = record->kind == PROV_RECORD_SEND || record->kind == PROV_RECORD_WRITE
				? PROV_RECORD_HAS_DATA
				: 0;

	if (record->reserved != 0 || (record->flags & ~flags) != 0) {
		return fi_stream_broken(ep, "F1: reserved bits");
	}
	switch (record->kind) {
	case PROV_RECORD_SEND:
		return ep->receive_count > 0;
	case PROV_RECORD_WRITE:
		return write_arrived(ep);
	case PROV_RECORD_READ:
		return read_arrived(ep);
	case PROV_RECORD_PIECE:
		return piece_arrived(ep);
	case PROV_RECORD_ANSWER:
		return fi_stream_answer_arrived(ep);
	default:
		return fi_stream_broken(ep, "F1: an unknown kind of record");
	}
}

/* Fills the vector with the destination of the next payload bytes. Returns the number of entries;
 * 0: the bytes are discarded. */
static uint32_t fi_stream_place(struct prov_ep *ep, struct iovec *iov, uint64_t bytes)
{
	struct prov_in *in = &ep->in;
	const struct prov_receive *receive;
	const struct prov_op *op;

	switch (in->record.kind) {
	case PROV_RECORD_SEND:
		receive = &ep->receives[ep->receive_first];
		return fi_stream_cut(iov, receive->iov, receive->iov_count, in->done, bytes);
	case PROV_RECORD_WRITE:
		iov[0] = (struct iovec){ .iov_base = in->write_to + in->done, .iov_len = bytes };
		return in->use.mr != NULL;
	default:
		op = op_of(ep);
		return op == NULL ? 0
				  : fi_stream_cut(iov, op->iov, op->iov_count, op->done + in->done,
					    bytes);
	}
}

/* Copies payload from the ring to its destination, or discards it. Returns the number of bytes, or
 * a negative errno. */
static ssize_t fi_stream_take_payload(struct prov_ep *ep)
{
	uint8_t nowhere[4096];
	uint64_t left = payload_bytes(&ep->in.record) - ep->in.done;
	struct iovec iov[PROV_IOV_MAX];
	uint32_t count = fi_stream_place(ep, iov, MIN(left, (uint64_t)COPY_BYTES));

	if (count == 0) {
		iov[0] = (struct iovec){ nowhere, MIN(left, sizeof(nowhere)) };
		count = 1;
	}
	return clan_readv(ep->conn, iov, count, 0);
}

/* Payload that does not fit the buffers of the receive is discarded, and reported as FI_ETRUNC. */
static void send_is_complete(struct prov_ep *ep)
{
	const struct prov_record *record = &ep->in.record;
	const struct prov_receive *receive = &ep->receives[ep->receive_first];
	uint64_t room = prov_iov_bytes(receive->iov, receive->iov_count);
	struct prov_entry entry = { .bytes = MIN(record->bytes, room) };

	if ((record->flags & PROV_RECORD_HAS_DATA) != 0) {
		entry.flags = FI_REMOTE_CQ_DATA;
		entry.data = record->data;
	}
	if (record->bytes > room) {
		entry.error = FI_ETRUNC;
		entry.lost_bytes = record->bytes - room;
	}
	complete_receive(ep, &entry);
}

/* The completion of a write with data is queued here before its ANSWER is sent, so it exists when
 * the write completes at the peer. */
static void write_is_complete(struct prov_ep *ep)
{
	struct prov_in *in = &ep->in;
	struct prov_answer *answer = in->answer;

	if (answer->status == 0 && in->use.mr == NULL) {
		answer->status = FI_EACCES; /* the region was closed during the write */
	}
	if (in->promised && answer->status == 0) {
		const struct prov_entry entry = {
			.flags = FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA,
			.bytes = in->record.bytes,
			.data = in->record.data,
		};

		prov_cq_complete(ep->rx_cq, &entry);
	} else if (in->promised) {
		prov_cq_release_remote(ep->rx_cq);
	}
	in->promised = false;
	in->answer = NULL;
	prov_use_end(&in->use);
	list_push_back(&ep->out.answers, &answer->node);
}

static void piece_is_complete(struct prov_ep *ep)
{
	struct prov_op *op = op_of(ep);

	if (op != NULL) {
		op->done += ep->in.record.bytes;
	}
}

static void record_is_complete(struct prov_ep *ep)
{
	switch (ep->in.record.kind) {
	case PROV_RECORD_SEND:
		send_is_complete(ep);
		break;
	case PROV_RECORD_WRITE:
		write_is_complete(ep);
		break;
	case PROV_RECORD_PIECE:
		piece_is_complete(ep);
		break;
	default:
		break;
	}
	ep->in.head_bytes = 0;
	ep->in.open = false;
	ep->in.done = 0;
}

/* Receives a part of a record. Returns 1 to continue, 0 to wait, or a negative errno. */
static int fi_stream_receive_step(struct prov_ep *ep)
{
	struct prov_in *in = &ep->in;
	size_t head = in->head_bytes < SHORT_BYTES ? (size_t)SHORT_BYTES
						   : fi_stream_head_bytes(in->record.kind);
	ssize_t count;

	/* The head is received in two steps, because its length depends on the kind, which is in
	 * the first SHORT_BYTES. */
	if (in->head_bytes < head) {
		const struct iovec iov = {
			.iov_base = (uint8_t *)&in->record + in->head_bytes,
			.iov_len = head - in->head_bytes,
		};

		count = clan_readv(ep->conn, &iov, 1, 0);
		if (count < 0) {
			return (int)count;
		}
		in->head_bytes += (uint8_t)count;
		if (in->head_bytes < SHORT_BYTES ||
			in->head_bytes < fi_stream_head_bytes(in->record.kind)) {
			return 1;
		}
	}
	if (!in->open) {
		int result = record_arrived(ep);

		if (result <= 0) {
			return result;
		}
		in->open = true;
	}
	if (in->done < payload_bytes(&in->record)) {
		count = fi_stream_take_payload(ep);
		if (count < 0) {
			return (int)count;
		}
		in->done += (uint64_t)count;
		if (in->done < payload_bytes(&in->record)) {
			/* Returns the space in the ring to the peer, which can use it while we copy
			 * the rest. */
			clan_flush(ep->conn);
		}
	}
	if (in->done == payload_bytes(&in->record)) {
		record_is_complete(ep);
	}
	return 1;
}

/* Receives up to STEPS_MAX steps, so that one endpoint cannot occupy the call. */
void prov_stream_receive(struct prov_ep *ep)
{
	uint32_t steps = 0;
	int result = 1;

	if (ep->state != PROV_EP_CONNECTED && ep->state != PROV_EP_DRAINING) {
		return;
	}
	while (result == 1 && steps++ < STEPS_MAX) {
		result = fi_stream_receive_step(ep);
	}
	if (result == 1) {
		fi_stream_look_again(ep);
	} else if (result == -EBADMSG) {
		result = fi_stream_broken(ep, "F6: a message that is not a stream record");
	}
	if (result < 0 && result != -EAGAIN) {
		prov_ep_end(ep, FI_ECONNRESET);
	} else if (!list_is_empty(&ep->out.answers)) {
		prov_stream_send(ep);
	}
}
