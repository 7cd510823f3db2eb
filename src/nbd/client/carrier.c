// SPDX-License-Identifier: Apache-2.0
/*
 * NBD as a carrier of libgmblock: one connection, from dialing to its end.
 *
 *   IDLE ─▶ DIALING ─▶ READY ─▶ CLOSING ─▶ IDLE
 *
 * CLOSING waits until the kernel holds no buffers. A command may move to another connection only
 * then, because the kernel could still receive into its buffers.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/carrier.h"
#include "nbd/client/client.h"
#include "nbd/client/dial.h"
#include "ring/lent.h"

/* Limit on consecutive receives of one connection, after which other connections get a turn. */
enum { RECEIVES_MAX = 16 };

_Static_assert(CARRIER_DEPTH_MAX <= (int)NBD_CLIENT_SLOTS_MAX, "commands");
_Static_assert(CARRIER_REPLACES_MAX <= (int)NBD_HANDSHAKE_REPLACES_MAX, "replaced connections");
_Static_assert(CARRIER_TOKEN_BYTES_MAX <= (int)NBD_HANDSHAKE_TOKEN_BYTES_MAX, "token");
_Static_assert(CARRIER_TEXT_BYTES_MAX >= (int)NBD_CLIENT_TEXT_BYTES, "text");
_Static_assert(CARRIER_NAME_BYTES_MAX > (int)NBD_STRING_BYTES_MAX, "name");
_Static_assert(CARRIER_LABEL_BYTES_MAX >= (int)EXPORT_URI_LABEL_BYTES, "label");

enum carrier_state { CARRIER_IDLE, CARRIER_DIALING, CARRIER_READY, CARRIER_CLOSING };

struct nbd_target {
	struct carrier_target base;
	struct export_uri uri;
	struct export_uri at[URI_HOSTS_MAX]; /* export_uri_at() for each host */
	struct tls_client *tls;		     /* or NULL */
	bool tls_is_lent;
};

struct nbd_carrier {
	struct carrier base;
	enum carrier_state state;
	const struct nbd_target *target;
	uint32_t host;		/* index of the server in the target */
	struct nbd_dial dial;	/* the connection attempt; its stream is the connection */
	struct ring_op recv_op; /* receive, or poll while no reply is expected */
	struct ring_op send_op;
	struct nbd_facts facts; /* valid once ready */
	struct nbd_client nbd;
	size_t in_bytes; /* size of the buffers of the receive in progress */
	struct msghdr in;
	struct msghdr out;
	struct iovec out_iov[NBD_CLIENT_IOV_MAX];
	bool was_full; /* the socket did not accept all of the last send from lent memory */
};

static const uint32_t carrier_edges[] = {
	[CARRIER_IDLE] = BIT(CARRIER_DIALING),
	[CARRIER_DIALING] = BIT(CARRIER_READY) | BIT(CARRIER_CLOSING),
	[CARRIER_READY] = BIT(CARRIER_CLOSING),
	[CARRIER_CLOSING] = BIT(CARRIER_IDLE),
};

static void receive_next(struct nbd_carrier *carrier);

static struct nbd_carrier *nbd_of(struct carrier *base)
{
	return container_of(base, struct nbd_carrier, base);
}

/* Each command has space for its carrier, which holds the nbd_call. */
static struct nbd_call *call_of(struct command *command)
{
	return (struct nbd_call *)(void *)command->space;
}

static struct command *command_of(struct nbd_call *call)
{
	return container_of((void *)call, struct command, space);
}

static void nbd_carrier_set_state(struct nbd_carrier *carrier, enum carrier_state state)
{
	GMB_ASSERT((carrier_edges[carrier->state] & BIT(state)) != 0);
	carrier->state = state;
}

/* --- the end ------------------------------------------------------------------------------- */

static void nbd_carrier_closing_step(struct nbd_carrier *carrier)
{
	if (carrier->recv_op.in_flight || carrier->send_op.in_flight ||
		carrier->dial.state != NBD_DIAL_IDLE || !stream_is_idle(&carrier->dial.stream)) {
		return;
	}
	stream_close(&carrier->dial.stream);
	nbd_carrier_set_state(carrier, CARRIER_IDLE);
	carrier_stopped(&carrier->base);
}

static void nbd_carrier_stream_idle(struct stream *stream)
{
	struct nbd_carrier *carrier = container_of(stream, struct nbd_carrier, dial.stream);

	if (carrier->state == CARRIER_CLOSING) {
		nbd_carrier_closing_step(carrier);
	}
}

static void nbd_lose(struct carrier *base)
{
	struct nbd_carrier *carrier = nbd_of(base);

	if (carrier->state == CARRIER_READY) {
		/* The stream is aborted, because commands that have not reached the server must not
		 * be delivered later. */
		if (base->command_count > 0) {
			stream_abort(&carrier->dial.stream);
		} else {
			stream_shutdown(&carrier->dial.stream);
		}
	}
	if (carrier->state != CARRIER_IDLE) {
		nbd_carrier_set_state(carrier, CARRIER_CLOSING);
	}
	if (carrier->recv_op.in_flight && carrier->recv_op.code == RING_POLL) {
		ring_cancel(base->ring, &carrier->recv_op);
	}
	nbd_dial_cancel(&carrier->dial);
	if (carrier->state == CARRIER_CLOSING) {
		nbd_carrier_closing_step(carrier);
	} else {
		carrier_stopped(base);
	}
}

static void nbd_leave(struct carrier *base)
{
	struct nbd_carrier *carrier = nbd_of(base);

	/* In the middle of a request, DISC would be taken for a part of it. */
	if (carrier->state == CARRIER_READY && base->command_count == 0 &&
		!carrier->send_op.in_flight && carrier->nbd.sent_of_first == 0) {
		uint8_t bytes[NBD_CLIENT_FAREWELL_BYTES_MAX];
		struct iovec iov = { .iov_base = bytes };
		struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

		/* The goodbye has at most 32 bytes, which fit in the send buffer of an idle
		 * connection. If they do not, it is not sent. */
		iov.iov_len = nbd_client_farewell(carrier->facts.style, bytes);
		(void)!stream_send_now(&carrier->dial.stream, &message);
		stream_shutdown_send(&carrier->dial.stream);
	}
	nbd_lose(base);
}

/* Ends the connection with err. why: the reason as text; NULL: the TLS layer's text if it has
 * failed, otherwise strerror(). */
static void nbd_carrier_fail(struct nbd_carrier *carrier, int err, const char *why)
{
	const struct stream *stream = &carrier->dial.stream;
	struct error error;

	if (why == NULL && stream->state == STREAM_LAYERED && tls_layer_error(stream)->code != 0) {
		why = tls_layer_error(stream)->text;
	} else if (why == NULL) {
		why = strerror(-err);
	}
	error_set(&error, err, "%s: %s", carrier->target->base.labels[carrier->host], why);
	carrier_failed(&carrier->base, &error);
}

static struct command *nbd_take_back(struct carrier *base, bool *was_sent)
{
	struct nbd_carrier *carrier = nbd_of(base);
	struct nbd_call *call = NULL;

	if (carrier->nbd.handler != NULL) {
		call = nbd_client_take_back(&carrier->nbd, was_sent);
		if (call == NULL) {
			nbd_client_fini(&carrier->nbd);
			carrier->nbd.handler = NULL;
			base->command_count = 0;
		}
	}
	return call != NULL ? command_of(call) : NULL;
}

/* --- receiving ----------------------------------------------------------------------------- */

static void poll_done(struct ring_op *op, int result)
{
	struct nbd_carrier *carrier = container_of(op, struct nbd_carrier, recv_op);

	if (carrier->state == CARRIER_CLOSING) {
		nbd_carrier_closing_step(carrier);
	} else {
		receive_next(carrier);
	}
}

/* Processes the result of a receive into the buffers of nbd_client_input(). Returns false if no
 * more data is expected. */
static bool nbd_carrier_received(struct nbd_carrier *carrier, ssize_t got)
{
	uint64_t steps = carrier->nbd.steps;
	struct error error = { 0 };
	int err;

	if (got <= 0) {
		nbd_client_input_drop(&carrier->nbd);
		if (got != -EINTR && got != -EAGAIN) {
			nbd_carrier_fail(carrier, got == 0 ? -ECONNRESET : (int)got,
				got == 0 ? "the server closed the connection" : NULL);
		}
		return false;
	}
	carrier->base.heard_ns = ring_batch_ns(carrier->base.ring);
	err = nbd_client_received(&carrier->nbd, (size_t)got, &error);
	if (err != 0) {
		nbd_carrier_fail(carrier, err, error.text);
		return false;
	}
	if (carrier->nbd.steps != steps) {
		carrier->base.answered_ns = carrier->base.heard_ns;
	}
	/* If all buffers were filled, more data may be waiting. An idle connection polls its
	 * socket, which reports such data unless the data is buffered in a TLS layer. */
	return (size_t)got == carrier->in_bytes &&
	       (carrier->base.command_count > 0 || carrier->dial.stream.state == STREAM_LAYERED);
}

static bool nbd_carrier_lay_out(struct nbd_carrier *carrier)
{
	const struct iovec *iov;
	uint32_t count;
	bool whole;

	iov = nbd_client_input(&carrier->nbd, &count, &carrier->in_bytes, &whole);
	carrier->in = (struct msghdr){
		.msg_iov = (struct iovec *)(uintptr_t)iov,
		.msg_iovlen = count,
	};
	return whole;
}

/* Returns whether the layout is lent memory, which can be received into only by an operation. */
static bool is_lent(const struct nbd_carrier *carrier)
{
	return carrier->in.msg_iovlen > 0 &&
	       ring_lent_has(queue_lent(carrier->base.queue), carrier->in.msg_iov->iov_base);
}

/* Receives the available data without waiting. */
static void receive_next(struct nbd_carrier *carrier)
{
	for (int i = 0; i < RECEIVES_MAX; i++) {
		(void)nbd_carrier_lay_out(carrier);
		if (is_lent(carrier)) {
			nbd_client_input_drop(&carrier->nbd);
			break;
		}
		if (!nbd_carrier_received(
			    carrier, stream_receive_now(&carrier->dial.stream, &carrier->in))) {
			break;
		}
	}
}

static void recv_done(struct ring_op *op, int result)
{
	struct nbd_carrier *carrier = container_of(op, struct nbd_carrier, recv_op);

	if (carrier->state == CARRIER_CLOSING) {
		nbd_client_input_drop(&carrier->nbd);
		nbd_carrier_closing_step(carrier);
	} else if (nbd_carrier_received(carrier, result)) {
		receive_next(carrier);
	}
}

/* Receives into the first range of the layout, or zeroes it. */
static void receive_lent(struct nbd_carrier *carrier)
{
	const struct ring_lent *lent = queue_lent(carrier->base.queue);
	const struct iovec *iov = carrier->in.msg_iov;

	GMB_ASSERT(carrier->dial.stream.ops == NULL);
	if (carrier->nbd.state == NBD_CLIENT_ZERO) {
		ring_lent_zero(carrier->base.ring, &carrier->recv_op, lent, iov->iov_base,
			iov->iov_len, recv_done);
	} else {
		ring_lent_recv(carrier->base.ring, &carrier->recv_op, carrier->dial.stream.file,
			lent, iov->iov_base, iov->iov_len, recv_done);
	}
}

/* Ensures that further data wakes us. */
static void receive_arm(struct nbd_carrier *carrier)
{
	if (carrier->recv_op.in_flight) {
		return;
	}
	if (carrier->base.command_count == 0) {
		/* Polls instead of receiving, because the memory for the next payload is not known
		 * yet. */
		ring_poll(carrier->base.ring, &carrier->recv_op, carrier->dial.stream.file.fd,
			POLLIN, poll_done);
	} else {
		bool whole = nbd_carrier_lay_out(carrier);

		if (is_lent(carrier)) {
			receive_lent(carrier);
			return;
		}
		stream_receive_message(
			&carrier->dial.stream, &carrier->recv_op, &carrier->in, whole, recv_done);
	}
}

/* --- sending ------------------------------------------------------------------------------- */

static void nbd_carrier_sent(struct nbd_carrier *carrier, size_t bytes)
{
	nbd_client_sent(&carrier->nbd, bytes);
	carrier->base.command_count = carrier->nbd.call_count;
}

static void nbd_carrier_send_done(struct ring_op *op, int result)
{
	struct nbd_carrier *carrier = container_of(op, struct nbd_carrier, send_op);

	if (carrier->state == CARRIER_CLOSING) {
		nbd_carrier_closing_step(carrier);
	} else if (result >= 0) {
		/* The socket was full and accepts bytes again, so the server makes progress. */
		carrier->base.heard_ns = ring_batch_ns(carrier->base.ring);
		carrier->base.answered_ns = carrier->base.heard_ns;
		nbd_carrier_sent(carrier, (size_t)result);
	} else if (result != -EINTR && result != -EAGAIN) {
		nbd_carrier_fail(carrier, result, NULL);
	}
}

static void lent_sent(struct ring_op *op, int result)
{
	struct nbd_carrier *carrier = container_of(op, struct nbd_carrier, send_op);

	/* Only a socket that was full shows by this send that the server makes progress. */
	if (result >= 0 && !carrier->was_full && carrier->state != CARRIER_CLOSING) {
		nbd_carrier_sent(carrier, (size_t)result);
	} else {
		nbd_carrier_send_done(op, result);
	}
	carrier->was_full = result >= 0 && (size_t)result < carrier->out_iov[0].iov_len;
}

/* Sends from lent memory if the layout begins there. Otherwise *count becomes the number of entries
 * before lent memory, and returns false. */
static bool send_lent(struct nbd_carrier *carrier, uint32_t *count)
{
	const struct ring_lent *lent = queue_lent(carrier->base.queue);
	uint32_t plain = 0;

	while (plain < *count && !ring_lent_has(lent, carrier->out_iov[plain].iov_base)) {
		plain++;
	}
	if (plain == 0) {
		GMB_ASSERT(carrier->dial.stream.ops == NULL);
		ring_lent_send(carrier->base.ring, &carrier->send_op, carrier->dial.stream.file,
			lent, carrier->out_iov[0].iov_base, carrier->out_iov[0].iov_len, lent_sent);
		return true;
	}
	carrier->out.msg_flags = plain < *count ? MSG_MORE : 0;
	*count = plain;
	return false;
}

static void nbd_flush(struct carrier *base)
{
	struct nbd_carrier *carrier = nbd_of(base);

	if (carrier->state == CARRIER_READY) {
		nbd_client_watch_size(&carrier->nbd);
	}
	while (carrier->state == CARRIER_READY && !carrier->send_op.in_flight) {
		uint32_t count =
			nbd_client_output(&carrier->nbd, carrier->out_iov, NBD_CLIENT_IOV_MAX);
		ssize_t done;

		if (count == 0) {
			break;
		}
		carrier->out = (struct msghdr){ .msg_iov = carrier->out_iov };
		if (queue_lent(base->queue) != NULL && send_lent(carrier, &count)) {
			break;
		}
		carrier->out.msg_iovlen = count;
		done = stream_send_now(&carrier->dial.stream, &carrier->out);
		if (done >= 0) {
			nbd_carrier_sent(carrier, (size_t)done);
		} else if (done == -EAGAIN) {
			stream_send(&carrier->dial.stream, &carrier->send_op, &carrier->out,
				nbd_carrier_send_done);
		} else if (done != -EINTR) {
			nbd_carrier_fail(carrier, (int)done, NULL);
		}
	}
	if (carrier->state == CARRIER_READY) {
		receive_arm(carrier);
	}
}

/* --- commands and replies ------------------------------------------------------------------ */

static uint16_t wire_flags(uint32_t flags)
{
	uint32_t wire = 0;

	wire |= (flags & GMB_FUA) != 0 ? NBD_CMD_FLAG_FUA : 0;
	wire |= (flags & GMB_NO_HOLE) != 0 ? NBD_CMD_FLAG_NO_HOLE : 0;
	wire |= (flags & GMB_DF) != 0 ? NBD_CMD_FLAG_DF : 0;
	wire |= (flags & GMB_STATUS_ONE) != 0 ? NBD_CMD_FLAG_REQ_ONE : 0;
	wire |= (flags & GMB_FAST_ZERO) != 0 ? NBD_CMD_FLAG_FAST_ZERO : 0;
	return (uint16_t)wire;
}

static void nbd_add(struct carrier *base, struct command *command)
{
	static const uint16_t types[] = {
		[GMB_READ] = NBD_CMD_READ,
		[GMB_WRITE] = NBD_CMD_WRITE,
		[GMB_FLUSH] = NBD_CMD_FLUSH,
		[GMB_TRIM] = NBD_CMD_TRIM,
		[GMB_ZERO] = NBD_CMD_WRITE_ZEROES,
		[GMB_CACHE] = NBD_CMD_CACHE,
		[GMB_STATUS] = NBD_CMD_BLOCK_STATUS,
	};
	struct nbd_call *call = call_of(command);

	*call = (struct nbd_call){
		.type = types[command->operation],
		.flags = wire_flags(command->flags),
		.offset = command->offset,
		.length = command->length,
		.iov = command->iov,
		.iov_count = command->iov_count,
		.iov_skip = command->iov_skip,
	};
	nbd_of(base)->nbd.is_lent = queue_lent(base->queue) != NULL;
	nbd_client_add(&nbd_of(base)->nbd, call);
	base->command_count++;
}

static void nbd_carrier_call_done(struct nbd_client *nbd, struct nbd_call *call)
{
	struct nbd_carrier *carrier = container_of(nbd, struct nbd_carrier, nbd);
	struct command *command = command_of(call);

	carrier->base.command_count = nbd->call_count;
	carrier->base.moved_bytes = nbd->moved_bytes;
	command->result = call->result;
	carrier_done(&carrier->base, command, nbd->text);
}

static void call_hole(
	struct nbd_client *nbd, struct nbd_call *call, uint64_t offset, uint64_t length)
{
	command_hole(command_of(call), offset, length);
}

static void call_extent(
	struct nbd_client *nbd, struct nbd_call *call, uint64_t length, uint32_t flags)
{
	/* The library uses the flag values of base:allocation, so they are passed on unchanged. */
	command_extent(command_of(call), call->covered, length,
		flags & (GMB_EXTENT_HOLE | GMB_EXTENT_ZERO));
}

static void export_resized(struct nbd_client *nbd)
{
	struct nbd_carrier *carrier = container_of(nbd, struct nbd_carrier, nbd);

	carrier->base.facts.bytes = nbd->size;
	carrier_resized(&carrier->base);
}

static const struct nbd_client_handler call_handler = {
	.done = nbd_carrier_call_done,
	.hole = call_hole,
	.extent = call_extent,
	.resized = export_resized,
};

/* --- start ------------------------------------------------------------------------------------ */

static uint32_t nbd_carrier_capabilities_of(const struct nbd_facts *facts)
{
	static const struct {
		uint16_t wire;
		uint32_t capability;
	} table[] = {
		{ NBD_FLAG_SEND_FLUSH, GMB_CAN_FLUSH },
		{ NBD_FLAG_SEND_FUA, GMB_CAN_FUA },
		{ NBD_FLAG_SEND_TRIM, GMB_CAN_TRIM },
		{ NBD_FLAG_SEND_WRITE_ZEROES, GMB_CAN_ZERO },
		{ NBD_FLAG_SEND_FAST_ZERO, GMB_CAN_FAST_ZERO },
		{ NBD_FLAG_SEND_CACHE, GMB_CAN_CACHE },
		{ NBD_FLAG_SEND_DF, GMB_CAN_DF },
		{ NBD_FLAG_CAN_MULTI_CONN, GMB_CAN_MULTI_CONN },
		{ NBD_FLAG_ROTATIONAL, GMB_IS_ROTATIONAL },
	};
	uint32_t can = (facts->flags & NBD_FLAG_READ_ONLY) == 0 ? GMB_CAN_WRITE : 0;

	for (size_t i = 0; i < ARRAY_COUNT(table); i++) {
		can |= (facts->flags & table[i].wire) != 0 ? table[i].capability : 0;
	}
	if (facts->style == NBD_REPLIES_SIMPLE) {
		can &= ~(uint32_t)GMB_CAN_DF;
	}
	return can | (facts->allocation ? GMB_CAN_STATUS : 0);
}

static void fill_facts(struct carrier_facts *out, const struct nbd_facts *facts,
	const struct nbd_protection *protection)
{
	bool is_extended = facts->style == NBD_REPLIES_EXTENDED;

	out->bytes = facts->size;
	out->capabilities = nbd_carrier_capabilities_of(facts);
	out->identity = facts->flags;
	out->request_block = facts->sizes_known ? facts->sizes.minimum : 1;
	out->block_minimum = facts->sizes.minimum;
	out->block_preferred = facts->sizes.preferred;
	out->payload_max = facts->sizes.payload_max;
	out->range_max = is_extended ? UINT64_MAX : UINT32_MAX;
	out->replies = (enum gmb_replies)facts->style;
	out->can_take_over = facts->can_take_over;
	out->is_volatile = facts->is_volatile;
	out->epoch = facts->epoch;
	_Static_assert(sizeof(out->disk) == sizeof(facts->disk), "identity");
	memcpy(out->disk, facts->disk, sizeof(out->disk));
	out->says_alive = facts->says_alive;
	if (protection->version != NULL) {
		snprintf(out->tls, sizeof(out->tls), "%s, %s, %s", protection->version,
			protection->cipher,
			protection->verified ? "server verified" : "server not verified");
	} else {
		out->tls[0] = '\0';
	}
	memcpy(out->name, facts->name, strlen(facts->name) + 1);
	memcpy(out->description, facts->description, strlen(facts->description) + 1);
}

static void dialed(struct nbd_dial *dial, int err)
{
	struct nbd_carrier *carrier = container_of(dial, struct nbd_carrier, dial);

	if (err == 0) {
		carrier->facts = *nbd_handshake_facts(dial->handshake);
		fill_facts(&carrier->base.facts, &carrier->facts,
			&nbd_handshake_offers(dial->handshake)->protection);
		dial->stream.idle = nbd_carrier_stream_idle;
	}
	nbd_handshake_destroy(dial->handshake);
	dial->handshake = NULL;
	if (carrier->state == CARRIER_CLOSING) {
		nbd_carrier_closing_step(carrier);
	} else if (err != 0) {
		carrier_failed(&carrier->base, &dial->error);
	} else {
		nbd_client_init(&carrier->nbd, &call_handler, &carrier->facts,
			ring_random(carrier->base.ring) >> 16);
		carrier->base.moved_bytes = 0;
		nbd_carrier_set_state(carrier, CARRIER_READY);
		carrier_ready(&carrier->base);
	}
}

static void nbd_start(struct carrier *base, const struct carrier_start *start)
{
	struct nbd_carrier *carrier = nbd_of(base);
	bool simple = (start->open_flags & GMB_OPEN_SIMPLE) != 0;
	bool no_extended = (start->open_flags & GMB_OPEN_NO_EXTENDED) != 0;
	struct nbd_dial_options options = {
		.uri = &carrier->target->at[start->host],
		.tls = carrier->target->tls,
		.timeout_ns = start->timeout_ns,
		.connect_ns = start->connect_ns,
		.handshake = {
			.goal = NBD_GOAL_GO,
			.style_max = simple	   ? NBD_REPLIES_SIMPLE
				     : no_extended ? NBD_REPLIES_STRUCTURED
						   : NBD_REPLIES_EXTENDED,
			.token = start->token,
			.replaces = start->replaces,
			.replaces_count = start->replaces_count,
			.alive_ms = start->alive_ms,
			.lease = start->lease,
		},
	};

	carrier->host = start->host;
	nbd_carrier_set_state(carrier, CARRIER_DIALING);
	nbd_dial_start(&carrier->dial, base->ring, &options, dialed);
}

static struct nbd_target *nbd_target_of(struct carrier_target *base)
{
	return container_of(base, struct nbd_target, base);
}

/* Fills in the servers, whose URIs share the texts of target->uri. */
static void nbd_target_add_hosts(struct nbd_target *target)
{
	target->base.host_count = export_uri_hosts(&target->uri);
	for (uint32_t i = 0; i < target->base.host_count; i++) {
		target->at[i] = export_uri_at(&target->uri, i);
		export_uri_label(target->base.labels[i], &target->at[i]);
	}
}

static void nbd_target_destroy(struct carrier_target *base)
{
	struct nbd_target *target = nbd_target_of(base);

	if (target != NULL) {
		if (!target->tls_is_lent) {
			tls_client_destroy(target->tls);
		}
		export_uri_fini(&target->uri);
		free(target);
	}
}

/* Local files are permitted only if the user has named them (GMB_OPEN_URI_FILES), because a URI
 * from elsewhere could make a program open any file. */
static int check_files(const struct export_uri *uri, uint32_t open_flags, struct error *error)
{
	if (!export_uri_has_files(uri) || (open_flags & GMB_OPEN_URI_FILES) != 0) {
		return 0;
	}
	return error_set(error, -EPERM,
		"the URI names files of this machine (%s), which this program does not allow "
		"(GMB_OPEN_URI_FILES)",
		uri->tls_certificates != NULL ? "tls-certificates" : "tls-psk-file");
}

/* Lent credentials require a URI with TLS. */
static int take_tls(struct nbd_target *target, struct tls_client *lent, struct error *error)
{
	if (lent != NULL && !target->uri.tls) {
		return error_set(error, -EINVAL, "TLS credentials require an nbds URI");
	}
	target->tls_is_lent = lent != NULL;
	if (lent != NULL) {
		target->tls = lent;
		return 0;
	}
	return target->uri.tls ? tls_client_create(&target->uri, &target->tls, error) : 0;
}

/* Replaces parameters of the URI by the program's settings. */
static int tls_settings_take(
	struct export_uri *uri, const struct gmb_tls_settings *settings, struct error *error)
{
	struct gmb_tls_settings own = { 0 };
	int err;

	if (settings == NULL) {
		return 0;
	}
	err = options_copy("gmb_tls_settings", &own, settings, sizeof(own), &own.reserved, error);
	if (err != 0) {
		return err;
	}
	if (!uri->tls || (own.flags & ~(uint32_t)GMB_TLS_NO_VERIFY) != 0) {
		return error_set(error, -EINVAL,
			uri->tls ? "unknown flags in the TLS settings"
				 : "credentials for TLS need an nbds URI");
	}
	const struct {
		char **slot;
		const char *value;
	} texts[] = {
		{ &uri->tls_certificates, own.certificates },
		{ &uri->tls_psk_file, own.psk_file },
		{ &uri->user, own.username },
		{ &uri->tls_hostname, own.hostname },
		{ &uri->tls_verify_peer, (own.flags & GMB_TLS_NO_VERIFY) != 0 ? "0" : NULL },
	};

	for (size_t i = 0; i < ARRAY_COUNT(texts); i++) {
		if (texts[i].value != NULL) {
			free(*texts[i].slot);
			*texts[i].slot = strdup(texts[i].value);
			if (*texts[i].slot == NULL) {
				return error_oom(error);
			}
		}
	}
	return 0;
}

static int nbd_target_create(const char *text, const struct gmb_options *options,
	struct tls_client *tls, struct carrier_target **target_out, struct error *error)
{
	struct nbd_target *target = calloc(1, sizeof(*target));
	int err;

	if (target == NULL) {
		return error_oom(error);
	}
	err = export_uri_parse(text, &target->uri, error);
	err = err ?: export_uri_check_client(&target->uri, error);
	err = err ?: check_files(&target->uri, options->flags, error);
	err = err ?: tls_settings_take(&target->uri, options->tls, error);
	err = err ?: take_tls(target, tls, error);
	if (err != 0) {
		nbd_target_destroy(&target->base);
		return err;
	}
	nbd_target_add_hosts(target);
	*target_out = &target->base;
	return 0;
}

static int nbd_list(const char *text, const struct gmb_options *options, carrier_found *found,
	void *context, struct error *error)
{
	struct nbd_dial_options dial = {
		.timeout_ns = options->connect_timeout_ms * UINT64_C(1000000),
		.handshake.goal = NBD_GOAL_LIST,
		.handshake.names_only = true,
	};
	struct nbd_handshake *answers = NULL;
	struct carrier_target *base;
	int err = nbd_target_create(text, options, NULL, &base, error);

	if (err != 0) {
		return err;
	}
	dial.uri = &nbd_target_of(base)->uri;
	err = nbd_dial_wait(&dial, -1, NULL, &answers, error);
	if (err == 0) {
		const struct nbd_offers *offers = nbd_handshake_offers(answers);

		for (uint32_t i = 0; i < offers->count; i++) {
			const char *description = offers->list[i].description;
			const struct gmb_export exported = {
				.size = sizeof(exported),
				.name = offers->list[i].name,
				.description = description != NULL ? description : "",
			};

			found(context, &exported);
		}
	}
	nbd_handshake_destroy(answers);
	nbd_target_destroy(base);
	return err;
}

static struct carrier *nbd_create(const struct carrier_target *target)
{
	struct nbd_carrier *carrier = calloc(1, sizeof(*carrier));

	if (carrier == NULL) {
		return NULL;
	}
	carrier->target = (const struct nbd_target *)(const void *)target;
	return &carrier->base;
}

static void nbd_destroy(struct carrier *base)
{
	GMB_ASSERT(nbd_of(base)->state == CARRIER_IDLE);
	free(nbd_of(base));
}

static const char *const schemes[] = { "nbd", "nbds", "nbd+unix", "nbds+unix", NULL };

const struct carrier_ops nbd_carrier = {
	.name = "nbd",
	.schemes = schemes,
	.command_bytes = sizeof(struct nbd_call),
	.target_create = nbd_target_create,
	.list = nbd_list,
	.target_destroy = nbd_target_destroy,
	.create = nbd_create,
	.destroy = nbd_destroy,
	.start = nbd_start,
	.add = nbd_add,
	.flush = nbd_flush,
	.lose = nbd_lose,
	.leave = nbd_leave,
	.take_back = nbd_take_back,
};
