// SPDX-License-Identifier: Apache-2.0
/* The beginning of a job at its source: where it may connect to, and what it may read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "push/source.h"

/* Whether the operator lets anybody choose that place. */
static bool names_place(const struct push_session *session, const struct export_uri *uri)
{
	const struct engine_options *options = &session->service->engine->options;
	bool names = false;

	for (uint32_t i = 0; !names && i < options->place_count; i++) {
		names = place_holds(&options->places[i], uri);
	}
	return names;
}

/* The same of a destination without push, which does not know who asks. There is no ticket: what
 * the server itself may write there, the coordinator has it write. */
static const char *may_reach_nbd(const struct push_session *session, const struct export_uri *uri)
{
	uint8_t address[NETWORK_ADDRESS_BYTES];

	if (strcmp(uri->protocol, "nbd") != 0) {
		return "the destination is neither an address of push nor of NBD";
	}
	if (uri->tls) {
		return "this server has no credentials for TLS to a destination without push; "
		       "gmblock copy has yours";
	}
	if (!uri->is_unix && !address_parse(uri->host, address)) {
		return "the address of the destination is not numeric";
	}
	if (uri->is_unix && push_viewer_of(session).all) {
		return NULL;
	}
	return names_place(session, uri)
		       ? NULL
		       : "this server does not write there: no --push-to nbd:PLACE of it names "
			 "that place";
}

/* Why the source may not connect there; NULL: it may. */
static const char *may_reach(const struct push_session *session, const struct export_uri *uri)
{
	uint8_t address[NETWORK_ADDRESS_BYTES];
	enum push_reach reach = push_reach();

	if (strcmp(uri->protocol, "push") != 0) {
		return "the destination is no address of push";
	}
	/* Root and our own user could connect there themselves. */
	if (!push_viewer_of(session).all && !names_place(session, uri)) {
		return "this server does not push there for you: its --push-to names no such "
		       "place";
	}
	if (uri->is_unix) {
		return NULL;
	}
	if (!address_parse(uri->host, address)) {
		return "the address of the destination is not numeric";
	}
	if (reach == PUSH_REACH_LOCAL) {
		return "this server pushes to Unix sockets only, because it listens on no "
		       "push:// address";
	}
	if (reach != PUSH_REACH_NETWORK && !address_is_loopback(address)) {
		return "a push over the network is not encrypted: this server needs a push:// "
		       "address with insecure-network=yes";
	}
	return NULL;
}

static int dial_push(struct push_session *session, const struct export_uri *uri, const char **text)
{
	static const struct push_wire_hello hello = {
		.magic = PUSH_MAGIC,
		.version_min = PUSH_VERSION,
		.version_max = PUSH_VERSION,
	};
	const struct clan_conn_options options = {
		.size = sizeof(options),
		.tripwires = 1,
		.cookies = 1,
		.peer_regions_max = 1,
		.peer_region_bytes_max = (uint64_t)PUSH_SLOTS * PUSH_SLOT_BYTES,
	};
	char *address = export_uri_clan_address(uri);
	int result;

	if (address == NULL) {
		return -ENOMEM;
	}
	result = clan_connect(session->service->clan, address, &options, &hello, sizeof(hello),
		&session->out.conn, NULL);
	free(address);
	if (result != 0) {
		session->out.conn = NULL;
		*text = "the source cannot connect to the destination";
		return result;
	}
	clan_conn_set_context(session->out.conn, &session->out);
	return 0;
}

static int dial(
	struct push_session *session, const struct push_start *start, char *peer, const char **text)
{
	bool has_push = (start->head.flags & PUSH_NBD) == 0;
	char uri_text[PUSH_URI_BYTES_MAX + 1];
	char label[EXPORT_URI_LABEL_BYTES];
	struct export_uri uri;
	int result;

	memcpy(uri_text, start->uri.bytes, start->uri.length);
	uri_text[start->uri.length] = '\0';
	if (export_uri_parse(uri_text, &uri, NULL) != 0) {
		*text = "the address of the destination is no URI";
		return -EINVAL;
	}
	snprintf(peer, PUSH_PEER_BYTES_MAX, "%s", export_uri_label(label, &uri));
	*text = has_push ? may_reach(session, &uri) : may_reach_nbd(session, &uri);
	if (*text != NULL) {
		result = -EACCES;
	} else if (has_push) {
		result = dial_push(session, &uri, text);
	} else {
		result = push_nbd_begin(
			session->source, uri_text, (start->head.flags & PUSH_DETACH) != 0, text);
	}
	export_uri_fini(&uri);
	return result;
}

static int admit(struct push_session *session, const struct push_start *start, const char **text)
{
	const struct push_wire_start *head = &start->head;

	session->rights = ENGINE_RIGHT_READ;
	if ((session->base.rights & session->rights) == 0) {
		*text = "the source cannot be read";
		return -EPERM;
	}
	if (!range_inside(head->source_offset, head->length, session->base.export_bytes)) {
		*text = "the range runs past the end of the source";
		return -EINVAL;
	}
	if (head->length != start->ticket.length) {
		*text = "the ticket is for another length";
		return -EINVAL;
	}
	return 0;
}

static int create(struct push_session *session, const struct push_start *start, const char **text)
{
	struct push_source *source = calloc(1, sizeof(*source));
	struct push_job job = {
		.id = start->ticket.job,
		.role = PUSH_SOURCE,
		.owner = session->base.peer.identity,
		.name_bytes = start->name.length,
		.offset = start->head.source_offset,
		.length = start->head.length,
	};
	int result;

	if (source == NULL) {
		*text = "the server is out of memory";
		return -ENOMEM;
	}
	source->session = session;
	source->use.ticket = start->ticket;
	memcpy(source->use.instance, session->service->engine->options.instance,
		sizeof(source->use.instance));
	source->source_offset = start->head.source_offset;
	source->length = start->head.length;
	source->rate = start->head.rate;
	source->flags = start->ticket.flags;
	source->target_uid = start->head.uid;
	source->no_map = (store_info(session->base.export->store)->caps & STORE_CAP_EXTENTS) == 0;
	for (uint32_t i = 0; i < PUSH_SLOTS; i++) {
		source->slots[i].source = source;
	}
	session->source = source; /* freed with it, whatever becomes of it */
	memcpy(job.name, start->name.bytes, start->name.length);
	result = dial(session, start, job.peer, text);
	session->detached = source->nbd == NULL && (start->head.flags & PUSH_DETACH) != 0;
	return result == 0 ? push_session_job(session, &job, text) : result;
}

static void hold(struct push_session *session, const uint8_t *bytes, uint32_t len)
{
	session->held = malloc(len);
	if (session->held == NULL) {
		session_terminate(&session->base, "out of memory for a request that waits");
		return;
	}
	memcpy(session->held, bytes, len);
	session->held_type = PUSH_START;
	session->held_bytes = len;
}

void push_source_begin(struct push_session *session, const uint8_t *bytes, uint32_t len)
{
	struct push_answer answer = { 0 };
	struct engine_export *entry;
	struct push_start start;
	const char *text = NULL;
	const char *rule = push_start_parse(bytes, len, &start);
	int result;

	if (rule != NULL) {
		push_session_fail(session, rule);
		return;
	}
	entry = session_export_find(&session->base, start.name.bytes, start.name.length);
	result = session->base.stopping ? -ESHUTDOWN
		 : entry == NULL	? -ENOENT
					: session_choose(&session->base, entry);
	if (result == -EAGAIN) {
		hold(session, bytes, len);
		return;
	}
	if (result != 0) {
		text = session->base.stopping ? session_stop_text(&session->base)
					      : session_choose_text(result);
	} else {
		result = admit(session, &start, &text);
	}
	if (result == 0 && (start.head.flags & PUSH_NBD) != 0 &&
		!ring_secret(session->service->engine->ring, &start.ticket.job,
			sizeof(start.ticket.job))) {
		text = "the server has no random numbers";
		result = -EIO;
	}
	if (result == 0) {
		result = create(session, &start, &text);
	}
	if (result != 0) {
		push_control_answer(session, result, text);
		session_terminate(&session->base, NULL);
		return;
	}
	answer.head.value = start.ticket.job;
	if (!session->is_opening) {
		push_control_send(session, &answer, NULL);
	}
}
