// SPDX-License-Identifier: Apache-2.0
/* The beginning of a job at its source: where it may connect to, and what it may read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "push/source.h"

/* Whether the operator lets this coordinator choose that place. Root and our own user could connect
 * there themselves. */
static bool may_choose(const struct push_session *session, const struct export_uri *uri)
{
	const struct engine_options *options = &session->service->engine->options;
	bool may = push_viewer_of(session).all;

	for (uint32_t i = 0; !may && i < options->place_count; i++) {
		may = place_holds(&options->places[i], uri);
	}
	return may;
}

/* Why the source may not connect there; NULL: it may. */
static const char *may_reach(const struct push_session *session, const struct export_uri *uri)
{
	uint8_t address[NETWORK_ADDRESS_BYTES];
	enum push_reach reach = push_reach();

	if (strcmp(uri->protocol, "push") != 0) {
		return "the destination is no address of push";
	}
	if (!may_choose(session, uri)) {
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

static int dial(
	struct push_session *session, const struct push_start *start, char *peer, const char **text)
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
	char uri_text[PUSH_URI_BYTES_MAX + 1];
	char label[EXPORT_URI_LABEL_BYTES];
	struct export_uri uri;
	char *address;
	int result;

	memcpy(uri_text, start->uri.bytes, start->uri.length);
	uri_text[start->uri.length] = '\0';
	if (export_uri_parse(uri_text, &uri, NULL) != 0) {
		*text = "the address of the destination is no URI";
		return -EINVAL;
	}
	snprintf(peer, PUSH_PEER_BYTES_MAX, "%s", export_uri_label(label, &uri));
	*text = may_reach(session, &uri);
	address = *text == NULL ? export_uri_clan_address(&uri) : NULL;
	export_uri_fini(&uri);
	if (address == NULL) {
		return *text != NULL ? -EACCES : -ENOMEM;
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
	session->detached = (start->head.flags & PUSH_DETACH) != 0;
	memcpy(job.name, start->name.bytes, start->name.length);
	result = dial(session, start, job.peer, text);
	if (result == 0) {
		result = push_session_job(session, &job, text);
	}
	if (result != 0) {
		push_link_close(&session->out);
		free(source);
		return result;
	}
	session->source = source;
	return 0;
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
	if (result == 0) {
		result = create(session, &start, &text);
	}
	if (result != 0) {
		push_control_answer(session, result, text);
		session_terminate(&session->base, NULL);
		return;
	}
	answer.head.value = start.ticket.job;
	push_control_send(session, &answer, NULL);
}
