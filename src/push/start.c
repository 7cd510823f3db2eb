// SPDX-License-Identifier: Apache-2.0
/* The start of a job at its source: permitted destinations, the export to read, and the snapshot;
 * docs/protocol/push.md §3. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "push/source.h"

/* Returns the first --push-to destination with that address, or NULL if there is none. */
static const struct place *find_place(
	const struct push_session *session, const struct export_uri *uri)
{
	const struct engine_options *options = &session->base.engine->options;

	for (uint32_t i = 0; i < options->place_count; i++) {
		if (place_holds(&options->places[i], uri)) {
			return &options->places[i];
		}
	}
	return NULL;
}

/* Checks a destination over TLS, and returns the operator's credentials for it. The URI comes from
 * the coordinator, which must not select files, keys or authorities of the server. */
static const char *may_push_tls(const struct push_session *session, const struct export_uri *uri,
	struct tls_client **tls_out)
{
	const struct place *place = find_place(session, uri);

	if (export_uri_has_files(uri) || uri->tls_type != NULL || uri->tls_verify_peer != NULL ||
		uri->user != NULL) {
		return "the source's server connects with its own credentials (--push-to "
		       "nbds:PLACE,tls-...): omit the user and all TLS parameters except "
		       "tls-hostname from the destination's URI";
	}
	if (place == NULL) {
		return "pushing over TLS to that destination is not allowed; start the source's "
		       "server with --push-to nbds:PLACE,tls-...";
	}
	*tls_out = place->opened;
	return NULL;
}

/* Checks a destination without push. Such a destination neither authenticates the coordinator nor
 * issues a ticket, so the job uses the source's own rights there. Therefore the operator must have
 * listed it, unless it is a Unix socket and the coordinator is root or the server's user. */
static const char *may_push_nbd(const struct push_session *session, const struct export_uri *uri,
	struct tls_client **tls_out)
{
	uint8_t address[NETWORK_ADDRESS_BYTES];

	if (strcmp(uri->protocol, "nbd") != 0) {
		return "the destination is neither a push nor an NBD address";
	}
	if (!uri->is_unix && !address_parse(uri->host, address)) {
		return "the address of the destination is not numeric";
	}
	if (uri->tls) {
		return may_push_tls(session, uri, tls_out);
	}
	if (uri->is_unix && push_viewer_of(session).all) {
		return NULL;
	}
	return find_place(session, uri) != NULL ? NULL
						: "pushing to that destination is not allowed; "
						  "start the server with --push-to nbd:PLACE";
}

/* Returns the reason why the source must not connect to the destination, NULL if it can. */
static const char *may_push(const struct push_session *session, const struct export_uri *uri)
{
	uint8_t address[NETWORK_ADDRESS_BYTES];
	enum push_scope scope = push_scope();

	if (strcmp(uri->protocol, "push") != 0) {
		return "the destination's URI does not begin with push:// or push+unix://";
	}
	/* Root and the server's own user need no permission, because they could connect to the
	 * destination themselves. */
	if (!push_viewer_of(session).all && find_place(session, uri) == NULL) {
		return "you may not push to that destination; start the server with a matching "
		       "--push-to PLACE (with ,port=N, if the port is not 10811)";
	}
	if (uri->is_unix) {
		return NULL;
	}
	if (!address_parse(uri->host, address)) {
		return "the address of the destination is not numeric";
	}
	if (scope == PUSH_SCOPE_LOCAL) {
		return "this server pushes only to Unix sockets, because it has no push:// "
		       "address";
	}
	if (scope != PUSH_SCOPE_NETWORK && !address_is_loopback(address)) {
		return "a push over the network is not encrypted: this server needs a push:// "
		       "address with insecure-network=yes";
	}
	return NULL;
}

/* Starts the first connection. The others follow when the destination has lent its slots. */
static int dial_push(struct push_source *source, const struct export_uri *uri, const char **text)
{
	int result;

	if (uri->is_unix && source->flow_count > 1) {
		*text = "a push to a Unix socket has one connection; omit --connections";
		return -EINVAL;
	}
	source->grows &= !uri->is_unix;
	source->address = export_uri_clan_address(uri);
	if (source->address == NULL) {
		return -ENOMEM;
	}
	result = push_flow_dial(source, 0);
	if (result != 0) {
		*text = "the source cannot connect to the destination";
	}
	return result;
}

/* Parses the destination's URI and checks that the source may connect there. peer: returns the
 * destination's name. */
static int start_look_up(const struct push_session *session, struct push_source *source,
	char peer[PUSH_PEER_BYTES_MAX], const char **text)
{
	char label[EXPORT_URI_LABEL_BYTES];
	struct export_uri uri;

	if (export_uri_parse(source->uri, &uri, NULL) != 0) {
		*text = "the address of the destination is not a URI";
		return -EINVAL;
	}
	snprintf(peer, PUSH_PEER_BYTES_MAX, "%s", export_uri_label(label, &uri));
	*text = uri.other_count > 0 ? "the address of the destination has several hosts"
		: (source->start_flags & PUSH_NBD) == 0 ? may_push(session, &uri)
							: may_push_nbd(session, &uri, &source->tls);
	export_uri_fini(&uri);
	return *text == NULL ? 0 : -EACCES;
}

/* Connects to the destination, after the snapshot has been created. If that fails, the job
 * fails. */
static void start_dial(struct push_session *session)
{
	struct push_source *source = session->source;
	struct push_answer answer = { .head.value = source->use.ticket.job };
	bool detach = (source->start_flags & PUSH_DETACH) != 0;
	bool has_push = (source->start_flags & PUSH_NBD) == 0;
	const char *text = "the server is out of memory";
	char *address = source->uri;
	struct export_uri uri;
	int result = export_uri_parse(address, &uri, NULL);

	source->uri = NULL;
	session->heard_ns = ring_now_ns(session->base.engine->ring);
	if (result == 0) {
		result = has_push ? dial_push(source, &uri, &text)
				  : push_nbd_begin(source, address, detach, &text);
		export_uri_fini(&uri);
	}
	free(address);
	if (result != 0) {
		push_session_job_fail(session, result, text);
	} else if (has_push) {
		session->is_opening = false;
		session->detached = detach;
		push_control_send(session, &answer, NULL);
	}
}

static void snapshot_made(struct engine_snapshot *snapshot, int result, const char *text)
{
	struct push_session *session =
		container_of(snapshot, struct push_source, snapshot)->session;
	char sentence[PUSH_TEXT_BYTES_MAX];

	if (result == 0) {
		start_dial(session);
		return;
	}
	snprintf(sentence, sizeof(sentence),
		"the source %.400s; --live pushes it while clients write to it", text);
	push_session_job_fail(session, result, sentence);
}

static int start_admit(
	struct push_session *session, const struct push_start *start, const char **text)
{
	const struct push_wire_start *head = &start->head;

	session->rights = ENGINE_RIGHT_READ;
	if ((session->base.rights & session->rights) == 0) {
		*text = "you may not read the source";
		return -EPERM;
	}
	if (!range_inside(head->source_offset, head->length, session->base.export_bytes)) {
		*text = "the range extends past the end of the source";
		return -EINVAL;
	}
	if (head->length != start->ticket.length) {
		*text = "the ticket is for a push of a different length";
		return -EINVAL;
	}
	return 0;
}

/* Stores the identity of the disk, from which the destination detects that it has the same disk,
 * even under another name. */
static void tell_place(struct push_source *source, struct store *store, uint64_t offset)
{
	struct push_wire_use *use = &source->use;
	struct store_place place;

	if (store_place(store, &place)) {
		memcpy(use->machine, place.machine, sizeof(use->machine));
		memcpy(use->disk, place.disk, sizeof(use->disk));
		use->at = place.at + offset;
	}
}

/* Creates the job. If clients can write to the export, the job first creates a snapshot and reads
 * that, unless PUSH_LIVE is set. */
static int start_create(struct push_session *session, struct engine_export *entry,
	const struct push_start *start, const char **text)
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
	char snapshot_name[STORE_SNAPSHOT_NAME_BYTES];
	int result;

	*text = "the server is out of memory";
	if (source == NULL) {
		return -ENOMEM;
	}
	session->source = source; /* `source` is freed with the session, on every path */
	source->session = session;
	source->use.ticket = start->ticket;
	memcpy(source->use.instance, session->base.engine->options.instance,
		sizeof(source->use.instance));
	tell_place(source, entry->export->store, start->head.source_offset);
	source->source_offset = start->head.source_offset;
	source->length = start->head.length;
	source->rate = start->head.rate;
	source->flags = start->ticket.flags;
	source->start_flags = start->head.flags;
	source->target_uid = start->head.uid;
	source->flow_count = MAX(start->head.connections, 1U);
	source->grows = start->head.connections == 0 && (start->head.flags & PUSH_NBD) == 0;
	source->no_map = (store_info(entry->export->store)->caps & STORE_CAP_EXTENTS) == 0;
	source->uri = strndup(start->uri.bytes, start->uri.length);
	for (uint32_t i = 0; i < PUSH_SOURCE_SLOTS; i++) {
		source->slots[i].source = source;
	}
	for (uint32_t i = 0; i < PUSH_FLOWS_MAX; i++) {
		source->flows[i].source = source;
	}
	if (source->uri == NULL) {
		return -ENOMEM;
	}
	memcpy(job.name, start->name.bytes, start->name.length);
	result = start_look_up(session, source, job.peer, text);
	if (result == 0) {
		result = push_session_job(session, &job, text);
	}
	if (result != 0) {
		return result;
	}
	session->is_opening = true;
	if ((start->head.flags & PUSH_LIVE) != 0 || !engine_snapshot_is_useful(entry)) {
		start_dial(session);
	} else {
		snprintf(snapshot_name, sizeof(snapshot_name), "push-%016" PRIx64, job.id);
		engine_snapshot_make(&source->snapshot, entry, snapshot_name, snapshot_made);
	}
	return 0;
}

static void start_hold(struct push_session *session, const uint8_t *bytes, uint32_t len)
{
	session->held = malloc(len);
	if (session->held == NULL) {
		session_terminate(&session->base, "out of memory for a waiting request");
		return;
	}
	memcpy(session->held, bytes, len);
	session->held_type = PUSH_START;
	session->held_bytes = len;
}

/* Processes START: chooses the export, checks rights and range, and creates the job. While the
 * store is being opened, the message is kept and processed again afterwards. */
void push_source_begin(struct push_session *session, const uint8_t *bytes, uint32_t len)
{
	struct engine_export *entry;
	struct push_start start;
	const char *text = NULL;
	const char *rule = push_parse(PUSH_START, bytes, len, &start);
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
		start_hold(session, bytes, len);
		return;
	}
	if (result != 0) {
		text = session->base.stopping ? session_stop_text(&session->base)
					      : session_choose_text(&session->base, result);
	} else {
		result = start_admit(session, &start, &text);
	}
	if (result == 0 && (start.head.flags & PUSH_NBD) != 0 &&
		!ring_secret(
			session->base.engine->ring, &start.ticket.job, sizeof(start.ticket.job))) {
		text = "the server cannot get random numbers";
		result = -EIO;
	}
	if (result == 0) {
		result = start_create(session, entry, &start, &text);
	}
	if (result != 0) {
		push_control_answer(session, result, text);
		session_terminate(&session->base, NULL);
	}
}
