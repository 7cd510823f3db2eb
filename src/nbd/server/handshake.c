// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "engine/fence.h"
#include "nbd/server/session.h"
#include "nbd/wire.h"

/* The longest text of an error reply, with room for an escaped and truncated name (P125). */
enum { ERROR_TEXT_MAX = 1024 };

static const char CONTEXT_BASE[] = "base:";

static void parse(struct nbd_session *session);

/* --- sending ------------------------------------------------------------------------------- */

static uint32_t tx_left(const struct handshake *handshake)
{
	return HANDSHAKE_TX_BYTES - handshake->tx_bytes;
}

static void tx_put(struct handshake *handshake, const void *bytes, uint32_t length)
{
	GMB_ASSERT(length <= tx_left(handshake));
	if (length > 0) {
		memcpy(handshake->tx + handshake->tx_bytes, bytes, length);
		handshake->tx_bytes += length;
	}
}

static void tx_reply_header(struct handshake *handshake, uint32_t type, uint32_t length)
{
	struct nbd_wire_option_reply reply = {
		.magic = be64_make(NBD_OPTION_REPLY_MAGIC),
		.option = be32_make(handshake->option),
		.type = be32_make(type),
		.length = be32_make(length),
	};

	tx_put(handshake, &reply, sizeof(reply));
}

static void reply_ack(struct nbd_session *session)
{
	tx_reply_header(session->handshake, NBD_REP_ACK, 0);
}

/* Sends the only reply to a rejected option: an error type and a sentence for the user (rules P11
 * and P20). */
GMB_PRINTF(3, 4)
static void reply_error(struct nbd_session *session, uint32_t type, const char *format, ...)
{
	char text[ERROR_TEXT_MAX];
	va_list args;
	int wanted;
	uint32_t length;

	va_start(args, format);
	wanted = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	length = wanted < 0 ? 0 : MIN((uint32_t)wanted, (uint32_t)sizeof(text) - 1);
	log_limited(&session->service->refusals, ring_batch_ns(session->service->ring),
		LOG_LEVEL_DEBUG, "nbd: connection %llu: option %u refused: %s",
		(unsigned long long)session->base.peer.id, session->handshake->option, text);
	tx_reply_header(session->handshake, type, length);
	tx_put(session->handshake, text, length);
}

static void nbd_handshake_send_done(struct ring_op *op, int result);

static void send_tx(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;

	GMB_ASSERT(handshake->tx_sent < handshake->tx_bytes);
	handshake->tx_iov.iov_base = handshake->tx + handshake->tx_sent;
	handshake->tx_iov.iov_len = handshake->tx_bytes - handshake->tx_sent;
	handshake->tx_message = (struct msghdr){ .msg_iov = &handshake->tx_iov, .msg_iovlen = 1 };
	stream_send(&session->stream, &session->send_op, &handshake->tx_message,
		nbd_handshake_send_done);
}

int handshake_begin(struct nbd_session *session)
{
	struct handshake *handshake = calloc(1, sizeof(*handshake));
	struct nbd_wire_greeting greeting = {
		.magic = be64_make(NBD_MAGIC),
		.option_magic = be64_make(NBD_OPTION_MAGIC),
		.flags = be16_make(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES),
	};

	if (handshake == NULL) {
		return -ENOMEM;
	}
	session->handshake = handshake;
	handshake->state = HANDSHAKE_GREETING;
	tx_put(handshake, &greeting, sizeof(greeting));
	send_tx(session);
	return 0;
}

void handshake_end(struct nbd_session *session)
{
	free(session->handshake);
	session->handshake = NULL;
}

/* --- receiving ----------------------------------------------------------------------------- */

static void receive_more(struct nbd_session *session)
{
	/* Moves the start of an incomplete message to the front. */
	memmove(session->rx_small, session->rx_small + session->rx_start,
		session->rx_end - session->rx_start);
	session->rx_end -= session->rx_start;
	session->rx_start = 0;
	stream_receive(&session->stream, &session->recv_op, session->rx_small + session->rx_end,
		RX_SMALL_BYTES - session->rx_end, false, receive_done);
}

/* --- exports ------------------------------------------------------------------------------- */

/* Returns whether a context is selected for this export. A selection for another export name does
 * not count (P43). */
static bool is_context_selected(const struct nbd_session *session, const struct export *export)
{
	const struct handshake *handshake = session->handshake;

	return handshake->context_selected && handshake->context_name_bytes == export->name_bytes &&
	       memcmp(handshake->context_name, export->name, export->name_bytes) == 0;
}

static uint16_t transmission_flags(const struct nbd_session *session, const struct export *export)
{
	uint32_t caps = store_info(export->store)->caps;
	uint32_t flags = NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA |
			 NBD_FLAG_SEND_CACHE | NBD_FLAG_CAN_MULTI_CONN;

	if ((engine_rights(&session->base, export) & ENGINE_RIGHT_WRITE) == 0) {
		flags |= NBD_FLAG_READ_ONLY;
	} else {
		flags |= NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO;
	}
	if ((caps & STORE_CAP_ROTATIONAL) != 0) {
		flags |= NBD_FLAG_ROTATIONAL;
	}
	if (session->structured || session->extended) {
		flags |= NBD_FLAG_SEND_DF;
	}
	if (session->extended && is_context_selected(session, export)) {
		flags |= NBD_FLAG_BLOCK_STATUS_PAYLOAD; /* P115 */
	}
	return (uint16_t)flags;
}

/* --- options ------------------------------------------------------------------------------- */

static void option_export_name(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;
	static const uint8_t zeroes[NBD_OLD_REPLY_ZEROES];
	struct nbd_wire_old_reply reply;
	struct engine_export *entry = session_export_find(
		&session->base, handshake->option_data, handshake->option_bytes);
	int rc;

	/* EXPORT_NAME can only be rejected by closing (P31); extended headers forbid it (P109). */
	if (session->extended) {
		session_fail(session, "P109", "EXPORT_NAME after EXTENDED_HEADERS");
		return;
	}
	rc = entry == NULL	      ? -ENOENT
	     : session->base.stopping ? -ESHUTDOWN
				      : session_choose(&session->base, entry);
	handshake->waiting = rc == -EAGAIN;
	if (rc == -EAGAIN) {
		return;
	}
	if (rc < 0) {
		log_debug("nbd: connection %llu: requested export \"%s\"",
			(unsigned long long)session->base.peer.id,
			quote_bytes(handshake->option_data, handshake->option_bytes));
		session_terminate(&session->base,
			rc == -ENOENT	   ? "the client requested an export that does not exist"
			: rc == -ESHUTDOWN ? session_stop_text(&session->base)
					   : session_choose_text(&session->base, rc));
		return;
	}
	reply.size = be64_make(session->base.export_bytes);
	reply.flags = be16_make(transmission_flags(session, entry->export));
	tx_put(handshake, &reply, sizeof(reply));
	if (!handshake->no_zeroes) {
		tx_put(handshake, zeroes, sizeof(zeroes));
	}
	handshake->next = HANDSHAKE_NEXT_TRANSMISSION;
}

/* Writes as many REP_SERVER replies as fit into the buffer, and an ACK after the last one. */
static void list_some(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;
	const struct engine_export *entry;

	while ((entry = session_export_from(&session->base, handshake->list_serial)) != NULL) {
		const struct export *export = entry->export;
		const char *description = export_description(export);
		uint32_t description_bytes =
			description != NULL ? (uint32_t)strlen(description) : 0;
		uint32_t length =
			(uint32_t)sizeof(struct be32) + export->name_bytes + description_bytes;
		struct be32 name_length = be32_make(export->name_bytes);

		if (tx_left(handshake) <
			length + 2 * (uint32_t)sizeof(struct nbd_wire_option_reply)) {
			/* this function is called again when the replies in the buffer are sent */
			return;
		}
		tx_reply_header(handshake, NBD_REP_SERVER, length);
		tx_put(handshake, &name_length, sizeof(name_length));
		tx_put(handshake, export->name, export->name_bytes);
		tx_put(handshake, description, description_bytes);
		handshake->list_serial = entry->serial + 1;
	}
	handshake->list_active = false;
	reply_ack(session);
}

static void option_list(struct nbd_session *session)
{
	if (session->handshake->option_bytes != 0) {
		reply_error(session, NBD_REP_ERR_INVALID, "LIST takes no data");
		return;
	}
	session->handshake->list_serial = 0;
	session->handshake->list_active = true;
	list_some(session);
}

static void reply_unknown_export(struct nbd_session *session, struct option_string name)
{
	uint32_t option = session->handshake->option;
	const char *shown = quote_bytes(name.bytes, name.length);

	/* Exports visible only with TLS and exports that do not exist get the same reply (P48). */
	if (handshake_offers_tls(session) && (option == NBD_OPT_INFO || option == NBD_OPT_GO)) {
		reply_error(session, NBD_REP_ERR_TLS_REQD,
			"no export named '%s' for connections without TLS", shown);
		return;
	}
	reply_error(session, NBD_REP_ERR_UNKNOWN, "no export named '%s'%s", shown,
		session_export_lack(&session->base, name.bytes, name.length));
}

static void reply_info_string(
	struct nbd_session *session, enum nbd_info info, const char *string, uint32_t length)
{
	struct be16 type = be16_make((uint16_t)info);

	tx_reply_header(session->handshake, NBD_REP_INFO, (uint32_t)sizeof(type) + length);
	tx_put(session->handshake, &type, sizeof(type));
	tx_put(session->handshake, string, length);
}

static void reply_infos(struct nbd_session *session, const struct export *export,
	const struct option_go *go, uint64_t size)
{
	struct handshake *handshake = session->handshake;
	const struct store_info *info = store_info(export->store);
	const char *description = export_description(export);
	struct nbd_wire_info_export export_info = {
		.type = be16_make(NBD_INFO_EXPORT),
		.size = be64_make(size),
		.flags = be16_make(transmission_flags(session, export)),
	};
	struct nbd_wire_info_block_size block_size = {
		.type = be16_make(NBD_INFO_BLOCK_SIZE),
		/* Requests of any alignment are served, so the minimum is 1: a client that obeys a
		 * larger minimum could not reach the end of an odd-sized image (P58). */
		.minimum = be32_make(1),
		.preferred = be32_make(info->block_preferred),
		.maximum = be32_make(session->service->engine->limits.payload_bytes_max),
	};

	tx_reply_header(handshake, NBD_REP_INFO, sizeof(export_info));
	tx_put(handshake, &export_info, sizeof(export_info));
	if (option_go_asks(go, NBD_INFO_NAME)) {
		reply_info_string(session, NBD_INFO_NAME, export->name, export->name_bytes);
	}
	if (option_go_asks(go, NBD_INFO_DESCRIPTION) && description != NULL) {
		reply_info_string(
			session, NBD_INFO_DESCRIPTION, description, (uint32_t)strlen(description));
	}
	if (option_go_asks(go, NBD_INFO_BLOCK_SIZE)) {
		tx_reply_header(handshake, NBD_REP_INFO, sizeof(block_size));
		tx_put(handshake, &block_size, sizeof(block_size));
	}
}

/* Returns whether the option's data was stored. Data that is too long was discarded, and the option
 * is rejected here (P123). */
static bool has_option_data(struct nbd_session *session)
{
	if (session->handshake->option_bytes > NBD_OPTION_BYTES_MAX) {
		reply_error(session, NBD_REP_ERR_TOO_BIG,
			"options of more than %d bytes are not supported", NBD_OPTION_BYTES_MAX);
		return false;
	}
	return true;
}

static void option_info_or_go(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;
	struct option_go go;
	struct engine_export *entry;
	const struct export *export;
	const char *reason;
	int rc;

	if (!has_option_data(session)) {
		return;
	}
	if (!option_go_parse(handshake->option_data, handshake->option_bytes, &go, &reason)) {
		reply_error(session, NBD_REP_ERR_INVALID, "%s", reason);
		return;
	}
	entry = session_export_find(&session->base, go.name.bytes, go.name.length);
	if (entry == NULL) {
		reply_unknown_export(session, go.name);
		return;
	}
	export = entry->export;
	if (handshake->option == NBD_OPT_INFO) {
		reply_infos(session, export, &go, store_size(export->store));
		reply_ack(session);
		return;
	}
	rc = session_choose(&session->base, entry);
	handshake->waiting = rc == -EAGAIN;
	if (rc == -ENOENT) {
		reply_unknown_export(session, go.name);
	} else if (rc < 0 && rc != -EAGAIN) {
		reply_error(session, rc == -ESTALE ? NBD_REP_ERR_SHUTDOWN : NBD_REP_ERR_POLICY,
			"%s", session_choose_text(&session->base, rc));
	}
	if (rc < 0) {
		return;
	}
	reply_infos(session, export, &go, session->base.export_bytes);
	reply_ack(session);
	handshake->next = HANDSHAKE_NEXT_TRANSMISSION;
}

static bool string_is(struct option_string string, const char *text)
{
	return string.length == strlen(text) && memcmp(string.bytes, text, string.length) == 0;
}

static bool string_begins(struct option_string string, const char *text)
{
	return string.length > strlen(text) && memcmp(string.bytes, text, strlen(text)) == 0;
}

static void reply_context(struct nbd_session *session, uint32_t id, const char *name)
{
	struct be32 wire_id = be32_make(id);
	uint32_t length = (uint32_t)strlen(name);

	tx_reply_header(
		session->handshake, NBD_REP_META_CONTEXT, (uint32_t)sizeof(wire_id) + length);
	tx_put(session->handshake, &wire_id, sizeof(wire_id));
	tx_put(session->handshake, name, length);
}

/* If the query begins with `kind`, extracts the token that follows. */
static bool take_token(struct option_string query, const char *kind, struct option_string *token)
{
	uint32_t skip = (uint32_t)strlen(kind);

	if (!string_begins(query, kind) || query.length - skip > NBD_TOKEN_BYTES_MAX) {
		return false;
	}
	*token = (struct option_string){ .bytes = query.bytes + skip,
		.length = query.length - skip };
	return true;
}

/* Processes our own contexts that name this connection and those that it replaces. Returns false if
 * a connection to be replaced has not ended yet; the option then waits for it. */
static bool nbd_handshake_take_over(
	struct nbd_session *session, struct export *export, const struct option_context *context)
{
	const uint8_t *queries = context->queries;

	for (uint32_t i = 0; i < context->query_count; i++) {
		struct option_string query = option_context_next(&queries);
		struct option_string token;

		if (take_token(query, NBD_CONTEXT_CONNECTION, &token)) {
			session_takeover_join(&session->base, export, token.bytes, token.length);
		} else if (take_token(query, NBD_CONTEXT_REPLACES, &token) &&
			   session_takeover_replace(
				   &session->base, export, token.bytes, token.length)) {
			return false;
		}
	}
	return true;
}

/* "x-gmblock:alive=MS": the interval of signs of life that the peer requests while its requests
 * wait. Returns false if MS is not a number, or if there are no structured replies to carry the
 * chunks. */
static bool nbd_handshake_take_alive(struct nbd_session *session, struct option_string query)
{
	static const char kind[] = NBD_CONTEXT_ALIVE "=";
	uint32_t at = sizeof(kind) - 1;
	uint64_t ms = 0;

	if (!session->structured || !string_begins(query, kind) || query.length - at > 9) {
		return false;
	}
	for (; at < query.length; at++) {
		uint32_t digit = (uint32_t)query.bytes[at] - '0';

		if (digit > 9) {
			return false;
		}
		ms = 10 * ms + digit;
	}
	ms = MAX(ms, (uint64_t)ALIVE_MS_MIN);
	ms = MIN(ms, (uint64_t)ALIVE_MS_MAX);
	session->alive_ns = ms * UINT64_C(1000000);
	return true;
}

static void reply_epoch(struct nbd_session *session, const struct export *export)
{
	char name[64];

	snprintf(name, sizeof(name), "%s=%016llx%s", NBD_CONTEXT_EPOCH,
		(unsigned long long)export->epoch, export->is_volatile ? ",volatile" : "");
	reply_context(session, 0, name);
}

static void reply_identity(struct nbd_session *session, const struct export *export)
{
	const uint8_t *identity = store_identity(export->store);
	char name[sizeof(NBD_CONTEXT_DISK) + 1 + 2 * STORE_IDENTITY_BYTES] = NBD_CONTEXT_DISK "=";
	size_t used = strlen(name);

	if (identity == NULL) {
		return;
	}
	for (size_t i = 0; i < STORE_IDENTITY_BYTES; i++) {
		snprintf(name + used + 2 * i, 3, "%02x", identity[i]);
	}
	reply_context(session, 0, name);
}

static void option_meta_context(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;
	bool set = handshake->option == NBD_OPT_SET_META_CONTEXT;
	struct option_context context;
	struct engine_export *entry;
	struct export *export;
	const uint8_t *queries;
	const char *reason;
	bool asked_epoch = false;
	bool asked_identity = false;
	bool asked_alive = false;
	bool asked_size = false;
	bool asked_lease = false;
	bool matched;

	if (set) {
		handshake->context_selected = false; /* even if this option fails (P40) */
	}
	if (set && !session->structured && !session->extended) {
		reply_error(session, NBD_REP_ERR_INVALID,
			"SET_META_CONTEXT needs STRUCTURED_REPLY or EXTENDED_HEADERS first");
		return;
	}
	if (!has_option_data(session)) {
		return;
	}
	if (!option_context_parse(
		    handshake->option_data, handshake->option_bytes, &context, &reason)) {
		reply_error(session, NBD_REP_ERR_INVALID, "%s", reason);
		return;
	}
	if (context.query_count > NBD_CONTEXT_QUERIES_MAX) {
		reply_error(session, NBD_REP_ERR_TOO_BIG, "more than %d queries",
			NBD_CONTEXT_QUERIES_MAX);
		return;
	}
	entry = session_export_find(&session->base, context.name.bytes, context.name.length);
	if (entry == NULL) {
		reply_unknown_export(session, context.name);
		return;
	}
	export = entry->export;
	handshake->waiting = !set && !nbd_handshake_take_over(session, export, &context);
	if (handshake->waiting) {
		return;
	}
	matched = !set && context.query_count == 0;
	queries = context.queries;
	for (uint32_t i = 0; i < context.query_count; i++) {
		struct option_string query = option_context_next(&queries);

		matched |= string_is(query, NBD_CONTEXT_ALLOCATION) ||
			   (!set && string_is(query, CONTEXT_BASE));
		asked_epoch |= !set && string_is(query, NBD_CONTEXT_EPOCH);
		asked_identity |= !set && string_is(query, NBD_CONTEXT_DISK);
		asked_alive |= !set && nbd_handshake_take_alive(session, query);
		asked_lease |= !set && handshake_lease(session, query);
		asked_size |= !set && session->structured && string_is(query, NBD_CONTEXT_SIZE);
	}
	if (matched) {
		reply_context(
			session, set ? CONTEXT_ID_BASE_ALLOCATION : 0, NBD_CONTEXT_ALLOCATION);
	}
	if (asked_epoch && export->epoch != 0) {
		reply_epoch(session, export);
	}
	if (asked_identity) {
		reply_identity(session, export);
	}
	if (asked_alive) {
		reply_context(session, 0, NBD_CONTEXT_ALIVE);
	}
	if (asked_size) {
		session->says_size = true;
		reply_context(session, 0, NBD_CONTEXT_SIZE);
	}
	if (asked_lease) {
		reply_context(session, 0, NBD_CONTEXT_LEASE);
	}
	if (matched && set) {
		handshake->context_selected = true;
		handshake->context_name_bytes = context.name.length;
		memcpy(handshake->context_name, context.name.bytes, context.name.length);
	}
	reply_ack(session);
}

static void option_structured_reply(struct nbd_session *session)
{
	if (session->handshake->option_bytes != 0) {
		reply_error(session, NBD_REP_ERR_INVALID, "STRUCTURED_REPLY takes no data");
	} else if (session->extended) {
		reply_error(session, NBD_REP_ERR_EXT_HEADER_REQD,
			"extended headers are in use and include structured replies");
	} else if (session->structured) {
		reply_error(session, NBD_REP_ERR_INVALID, "structured replies are already in use");
	} else {
		session->structured = true;
		reply_ack(session);
	}
}

static void option_extended_headers(struct nbd_session *session)
{
	if (session->handshake->option_bytes != 0) {
		reply_error(session, NBD_REP_ERR_INVALID, "EXTENDED_HEADERS takes no data");
	} else if (session->extended) {
		reply_error(session, NBD_REP_ERR_INVALID, "extended headers are already in use");
	} else {
		session->extended = true;
		session->structured = true;
		reply_ack(session);
	}
}

static void option_starttls(struct nbd_session *session)
{
	const char *reason;
	uint32_t refusal = handshake_tls_refusal(session, &reason);

	if (refusal != 0) {
		reply_error(session, refusal, "%s", reason);
	} else if (rx_available(session) > 0) {
		session_fail(session, "P56", "%u unencrypted bytes after STARTTLS",
			rx_available(session));
	} else {
		reply_ack(session);
		session->handshake->next = HANDSHAKE_NEXT_TLS;
	}
}

/* Rejects an option other than STARTTLS and ABORT at an address that requires TLS (P47).
 * EXPORT_NAME has no error reply, and a client without fixed newstyle cannot use TLS (P9), so both
 * close the connection. */
static void refuse_without_tls(struct nbd_session *session)
{
	const struct handshake *handshake = session->handshake;

	if (handshake->option == NBD_OPT_EXPORT_NAME || !handshake->is_fixed) {
		session_terminate(&session->base,
			"the client sent an option before STARTTLS, but this address requires TLS");
	} else {
		reply_error(session, NBD_REP_ERR_TLS_REQD, "%s",
			"this address demands TLS; use an nbds:// or nbds+unix:// URI");
	}
}

static void option_fence(struct nbd_session *session)
{
	char text[FENCE_TEXT_BYTES] = "";
	uint32_t type = handshake_fence(session, text);

	if (type == NBD_REP_ACK) {
		reply_ack(session);
	} else {
		reply_error(session, type, "%s", text);
	}
}

static void refuse_fenced(struct nbd_session *session)
{
	if (session->handshake->option == NBD_OPT_EXPORT_NAME) { /* it has no error reply */
		session_terminate(&session->base, FENCE_REFUSAL);
	} else {
		reply_error(session, NBD_REP_ERR_POLICY, "%s", FENCE_REFUSAL);
	}
}

/* Executes an option. ABORT is always accepted. If the address requires TLS and the connection does
 * not have it, all other options except STARTTLS are refused. While the server is stopping, all
 * other options are refused; EXPORT_NAME has no error reply, so its own handler checks whether the
 * server is stopping. */
static void handle_option(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;

	handshake->next = HANDSHAKE_NEXT_OPTION;
	if (handshake->option == NBD_OPT_ABORT) {
		reply_ack(session);
		handshake->next = HANDSHAKE_NEXT_CLOSE;
		return;
	}
	if (handshake_needs_tls(session) && handshake->option != NBD_OPT_STARTTLS) {
		refuse_without_tls(session);
		return;
	}
	if (session->base.stopping && handshake->option != NBD_OPT_EXPORT_NAME) {
		reply_error(session, NBD_REP_ERR_SHUTDOWN, "%s", session_stop_text(&session->base));
		return;
	}
	if (handshake->option != NBD_OPT_STARTTLS && session_is_fenced(&session->base)) {
		refuse_fenced(session);
		return;
	}
	switch (handshake->option) {
	case NBD_OPT_EXPORT_NAME:
		option_export_name(session);
		break;
	case NBD_OPT_LIST:
		option_list(session);
		break;
	case NBD_OPT_STARTTLS:
		option_starttls(session);
		break;
	case NBD_OPT_INFO:
	case NBD_OPT_GO:
		option_info_or_go(session);
		break;
	case NBD_OPT_STRUCTURED_REPLY:
		option_structured_reply(session);
		break;
	case NBD_OPT_LIST_META_CONTEXT:
	case NBD_OPT_SET_META_CONTEXT:
		option_meta_context(session);
		break;
	case NBD_OPT_EXTENDED_HEADERS:
		option_extended_headers(session);
		break;
	case NBD_OPT_FENCE:
		option_fence(session);
		break;
	default:
		reply_error(session, NBD_REP_ERR_UNSUP, "unknown option %u", handshake->option);
		break;
	}
}

/* --- the dialogue -------------------------------------------------------------------------- */

static void nbd_handshake_log_ready(const struct nbd_session *session)
{
	const struct export *export = session->base.export;
	const struct store_info *info = store_info(export->store);
	const char *refusal = store_page_cache_refusal(export->store);
	char overlap[UNITS_TEXT_BYTES] = "auto";

	if (!log_enabled(LOG_LEVEL_DEBUG)) {
		return;
	}
	if (refusal == NULL &&
		!store_page_cache_has(export->store, session->stream.memory_rights)) {
		refusal = "connection";
	}
	if (export->overlap == PATH_OVERLAP_OFF) {
		snprintf(overlap, sizeof(overlap), "off");
	} else if (export->overlap != PATH_OVERLAP_AUTO) {
		units_format_bytes(overlap, export->overlap);
	}
	log_debug(
		"nbd: connection %llu from %s: export \"%s\": %s replies%s, %s, %llu bytes, blocks "
		"of %u bytes, overlap %s, page-cache send %s%s",
		(unsigned long long)session->base.peer.id, session->base.peer.text,
		quote_bytes(export->name, export->name_bytes),
		session->extended     ? "extended"
		: session->structured ? "structured"
				      : "simple",
		session->context_selected ? ", allocation" : "",
		(session->base.rights & ENGINE_RIGHT_WRITE) != 0 ? "read and write" : "read only",
		(unsigned long long)session->base.export_bytes, info->block_preferred, overlap,
		refusal == NULL ? "on" : "off: ", refusal == NULL ? "" : refusal);
}

static void begin_transmission(struct nbd_session *session)
{
	session->context_selected = is_context_selected(session, session->base.export);
	nbd_handshake_log_ready(session);
	handshake_end(session);
	session_set_state(&session->base, SESSION_READY);
	if (session->base.stopping) {
		session_drain_check(session);
	}
	if (session->base.state == SESSION_READY) {
		session->head_bytes = request_head_bytes(session->extended);
		receive_continue(session);
	}
}

static void nbd_handshake_send_done(struct ring_op *op, int result)
{
	struct nbd_session *session = container_of(op, struct nbd_session, send_op);
	struct handshake *handshake = session->handshake;

	if (session->base.state == SESSION_TERMINATING) {
		return;
	}
	if (result <= 0 && result != -EINTR) {
		/* A client that only probes the port is not worth a log line. */
		session_terminate(&session->base, NULL);
		return;
	}
	handshake->tx_sent += result > 0 ? (uint32_t)result : 0;
	if (handshake->tx_sent < handshake->tx_bytes) {
		send_tx(session);
		return;
	}
	handshake->tx_bytes = 0;
	handshake->tx_sent = 0;
	session->base.progress_ns = ring_batch_ns(session->service->ring);
	if (handshake->state == HANDSHAKE_GREETING) {
		handshake->state = HANDSHAKE_CLIENT_FLAGS;
		parse(session);
		return;
	}
	GMB_ASSERT(handshake->state == HANDSHAKE_REPLYING);
	if (handshake->list_active) {
		list_some(session);
		send_tx(session);
		return;
	}
	switch (handshake->next) {
	case HANDSHAKE_NEXT_OPTION:
		handshake_next_option(session);
		break;
	case HANDSHAKE_NEXT_TLS:
		handshake_begin_tls(session);
		break;
	case HANDSHAKE_NEXT_TRANSMISSION:
		begin_transmission(session);
		break;
	case HANDSHAKE_NEXT_CLOSE:
		session_set_state(&session->base, SESSION_DRAINING);
		session_drain_check(session);
		break;
	}
}

void handshake_next_option(struct nbd_session *session)
{
	session->handshake->state = HANDSHAKE_OPTION_HEADER;
	parse(session);
}

static bool take_client_flags(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;
	struct be32 wire;
	uint32_t flags;

	memcpy(&wire, session->rx_small + session->rx_start, sizeof(wire));
	session->rx_start += (uint32_t)sizeof(wire);
	flags = be32_get(wire);
	if ((flags & ~(uint32_t)(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES)) != 0) {
		session_fail(session, "P6", "unknown client flags 0x%x", flags);
		return false;
	}
	handshake->no_zeroes = (flags & NBD_FLAG_NO_ZEROES) != 0;
	handshake->is_fixed = (flags & NBD_FLAG_FIXED_NEWSTYLE) != 0;
	handshake->state = HANDSHAKE_OPTION_HEADER;
	return true;
}

static bool take_option_header(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;
	struct nbd_wire_option wire;

	memcpy(&wire, session->rx_small + session->rx_start, sizeof(wire));
	session->rx_start += (uint32_t)sizeof(wire);
	if (be64_get(wire.magic) != NBD_OPTION_MAGIC) {
		session_fail(session, "P120", "an option without the option magic");
		return false;
	}
	handshake->option = be32_get(wire.option);
	handshake->option_bytes = be32_get(wire.length);
	handshake->option_got = 0;
	if (handshake->option == NBD_OPT_EXPORT_NAME &&
		handshake->option_bytes > NBD_STRING_BYTES_MAX) {
		session_fail(session, "P1", "an export name of %u bytes", handshake->option_bytes);
		return false;
	}
	if (handshake->option_bytes > OPTION_DRAIN_BYTES_MAX) {
		session_fail(session, "P123", "option %s with %u bytes of data",
			nbd_option_name(handshake->option), handshake->option_bytes);
		return false;
	}
	handshake->state = HANDSHAKE_OPTION_DATA;
	return true;
}

/* Appends received bytes to the option's data, or discards them if the data is too long. Returns
 * true when the data is complete. */
static bool take_option_data(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;
	uint32_t length =
		MIN(rx_available(session), handshake->option_bytes - handshake->option_got);

	if (handshake->option_bytes <= NBD_OPTION_BYTES_MAX) {
		memcpy(handshake->option_data + handshake->option_got,
			session->rx_small + session->rx_start, length);
	}
	handshake->option_got += length;
	session->rx_start += length;
	return handshake->option_got == handshake->option_bytes;
}

static void nbd_handshake_answer(struct nbd_session *session)
{
	if (session->base.state == SESSION_TERMINATING || session->handshake->waiting) {
		return;
	}
	session->handshake->state = HANDSHAKE_REPLYING;
	send_tx(session);
}

/* Runs the state machine until more bytes are needed or replies are being sent. */
static void parse(struct nbd_session *session)
{
	struct handshake *handshake = session->handshake;

	for (;;) {
		switch (handshake->state) {
		case HANDSHAKE_CLIENT_FLAGS:
			if (rx_available(session) < sizeof(struct be32)) {
				receive_more(session);
				return;
			}
			if (!take_client_flags(session)) {
				return;
			}
			break;
		case HANDSHAKE_OPTION_HEADER:
			if (rx_available(session) < sizeof(struct nbd_wire_option)) {
				receive_more(session);
				return;
			}
			if (!take_option_header(session)) {
				return;
			}
			break;
		case HANDSHAKE_OPTION_DATA:
			if (!take_option_data(session)) {
				receive_more(session);
				return;
			}
			handle_option(session);
			nbd_handshake_answer(session);
			return;
		case HANDSHAKE_GREETING:
		case HANDSHAKE_REPLYING:
		case HANDSHAKE_UPGRADING:
			return;
		}
	}
}

void handshake_resume(struct nbd_session *session)
{
	GMB_ASSERT(session->handshake->waiting);
	session->handshake->waiting = false;
	handle_option(session);
	nbd_handshake_answer(session);
}

void handshake_received(struct nbd_session *session)
{
	parse(session);
}
