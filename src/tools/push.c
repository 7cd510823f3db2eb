// SPDX-License-Identifier: Apache-2.0
#include "tools/push.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/place.h"
#include "base/text.h"
#include "push/ask.h"
#include "tools/show.h"

enum { NOTE_MS = 200, SHOWN_BYTES = 300, BESIDE_BYTES = 4096 };

_Static_assert((int)PUSH_CONNECTIONS_MAX == (int)PUSH_FLOWS_MAX, "as in START");

/* One of the two servers: the source or the destination. */
struct end {
	struct export_uri all; /* the URI of the user, which owns the texts */
	struct export_uri uri; /* the host in use: export_uri_at(&all, host) */
	uint32_t host;
	struct push_ask *ask;
	uint64_t bytes; /* size of the server's export */
	/* For a destination without push: the index of the address in use among those of the host,
	 * and whether the host has more. */
	uint32_t address;
	bool has_more;
};

/* Parses the address of a server, to be freed with export_uri_fini() even if it is wrong. */
static int end_parse(const char *text, bool is_target, struct export_uri *uri, struct error *error)
{
	int result = export_uri_parse(text, uri, error);
	bool fits = result == 0 && (strcmp(uri->protocol, "push") == 0 ||
					   (is_target && strcmp(uri->protocol, "nbd") == 0));

	if (!fits && (result == 0 || strstr(text, "://") == NULL)) {
		result = error_set(error, -EINVAL,
			"'%s' is not a push address; servers listen for push at "
			"push+unix:///?socket=PATH and push://HOST[:PORT]; gmblock copy copies "
			"files and exports served over NBD or gmb",
			quote(text));
	}
	return result;
}

int push_address_check(const char *text, bool is_target, struct error *error)
{
	struct export_uri uri = { 0 };
	int result = end_parse(text, is_target, &uri, error);

	export_uri_fini(&uri);
	return result;
}

/* Puts the server's address and the name of its export in front of the error message of a
 * request. */
static void end_prefix(const struct end *end, struct error *error)
{
	const char *export_name = end->uri.export_name;
	char label[EXPORT_URI_LABEL_BYTES];
	char shown[SHOWN_BYTES];

	error_prefix(error, "%s: export \"%s\"", export_uri_label(label, &end->uri),
		log_escape(shown, sizeof(shown), export_name, strlen(export_name)));
}

static void end_fini(struct end *end)
{
	push_ask_close(end->ask);
	export_uri_fini(&end->all);
}

static int end_open(
	struct end *end, const char *text, bool is_target, uint64_t timeout_ns, struct error *error)
{
	struct error failures = { 0 };
	int result = end_parse(text, is_target, &end->all, error);

	if (result == 0 && strcmp(end->all.protocol, "nbd") == 0) {
		/* A destination without push: only the source connects to it. */
		end->uri = export_uri_at(&end->all, 0);
		return 0;
	}
	if (result != 0) {
		return result;
	}
	/* The first host that answers is used for the whole push. */
	for (uint32_t i = 0; i < export_uri_hosts(&end->all); i++) {
		end->host = i;
		end->uri = export_uri_at(&end->all, i);
		result = push_ask_open(&end->uri, timeout_ns, &end->ask, error);
		if (result == 0) {
			return 0;
		}
		error_join(&failures, error);
	}
	*error = failures;
	return result;
}

static int end_look(struct end *end, struct error *error)
{
	struct push_wire_look head = {
		.name_bytes = (uint16_t)strlen(end->uri.export_name),
	};
	struct push_answer answer;
	const struct iovec parts[] = {
		{ &head, sizeof(head) },
		{ end->uri.export_name, head.name_bytes },
	};
	int result;

	if (strlen(end->uri.export_name) > PUSH_NAME_BYTES_MAX) {
		return error_set(error, -EINVAL, "the export name in a push address is too long");
	}
	result = push_ask(end->ask, PUSH_LOOK, parts, 2, &answer, error);
	if (result != 0) {
		end_prefix(end, error);
		return result;
	}
	end->bytes = answer.head.value;
	return 0;
}

/* --- addresses -------------------------------------------------------------------------------- */

/* Parses the address of "HOST:PORT" or "[HOST]:PORT", as IPv6. */
static bool address_of(const char *text, uint8_t out[PUSH_ADDRESS_BYTES])
{
	const char *begin = text + (text[0] == '[');
	const char *end = text[0] == '[' ? strchr(text, ']') : strrchr(text, ':');
	char host[INET6_ADDRSTRLEN];

	if (end == NULL || (size_t)(end - begin) >= sizeof(host)) {
		return false;
	}
	memcpy(host, begin, (size_t)(end - begin));
	host[end - begin] = '\0';
	return address_parse(host, out);
}

/* Returns whether the source is on this machine. address: receives its address, if it has one. */
static bool tools_push_is_here(const struct end *source, uint8_t address[PUSH_ADDRESS_BYTES])
{
	struct clan_peer peer;

	push_ask_peer(source->ask, &peer);
	return source->uri.is_unix ||
	       (address_of(peer.address, address) && address_is_loopback(address));
}

static int out_of_reach(struct error *error)
{
	return error_set(error, -EINVAL,
		"the source is on another machine and cannot reach the destination at a local "
		"address; give a network address of the destination");
}

/* Binds the ticket to the source in the way in which the destination will see it: to the source's
 * address; to our address if the source is on this machine; to its user if both servers are reached
 * over Unix sockets. */
static int bind_to_source(const struct end *source, const struct end *target,
	struct push_wire_grant *grant, struct error *error)
{
	uint8_t address[PUSH_ADDRESS_BYTES] = { 0 };
	uint8_t other[PUSH_ADDRESS_BYTES] = { 0 };
	struct clan_peer source_peer;
	struct clan_peer target_peer;
	bool is_near = tools_push_is_here(source, address);
	bool is_there;

	push_ask_peer(source->ask, &source_peer);
	push_ask_peer(target->ask, &target_peer);
	is_there = !target->uri.is_unix &&
		   !(address_of(target_peer.address, other) && address_is_loopback(other));
	if (!is_near && !is_there) {
		return out_of_reach(error);
	}
	grant->binding = PUSH_BOUND_ASKER;
	if (source->uri.is_unix && target->uri.is_unix) {
		grant->binding = PUSH_BOUND_UID;
		grant->uid = source_peer.uid;
	} else if (!is_near) {
		grant->binding = PUSH_BOUND_ADDRESS;
		memcpy(grant->address, address, sizeof(grant->address));
	}
	return 0;
}

/* Extracts the host of "HOST:PORT" or "[HOST]:PORT". */
static bool cut_host(const char *text, char *host, size_t host_bytes)
{
	char *end;

	snprintf(host, host_bytes, "%s", text + (text[0] == '['));
	end = text[0] == '[' ? strchr(host, ']') : strrchr(host, ':');
	if (end != NULL) {
		*end = '\0';
	}
	return end != NULL;
}

/* Resolves the host name on this machine. */
static int tools_push_look_up(
	struct end *target, char *host, size_t host_bytes, struct error *error)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	const struct addrinfo *entry;
	struct addrinfo *list;
	int result = getaddrinfo(target->uri.host, NULL, &hints, &list);

	if (result != 0) {
		return error_set(error, -EHOSTUNREACH,
			"cannot resolve the host of the destination: %s", gai_strerror(result));
	}
	entry = list;
	for (uint32_t i = 0; i < target->address && entry->ai_next != NULL; i++) {
		entry = entry->ai_next;
	}
	target->has_more = entry->ai_next != NULL;
	result = getnameinfo(entry->ai_addr, entry->ai_addrlen, host, (socklen_t)host_bytes, NULL,
		0, NI_NUMERICHOST);
	freeaddrinfo(list);
	return result == 0 ? 0
			   : error_set(error, -EHOSTUNREACH, "the destination has no address: %s",
				     gai_strerror(result));
}

/* Formats the destination's address for the source, with absolute paths and numeric hosts. */
static int target_text(const struct end *source, struct end *target, char out[PUSH_URI_BYTES_MAX],
	struct error *error)
{
	struct export_uri uri = target->uri;
	/* A destination with push gets no export name, because the ticket determines the export. */
	const char *name = target->ask != NULL ? "" : uri.export_name;
	uint32_t name_bytes = (uint32_t)strlen(name);
	char path[BESIDE_BYTES];
	char cwd[BESIDE_BYTES / 2];
	char host[sizeof(((struct clan_peer *)0)->address)];
	uint8_t address[PUSH_ADDRESS_BYTES];
	uint8_t other[PUSH_ADDRESS_BYTES];
	struct clan_peer peer;
	bool is_local = uri.is_unix;
	int result = 0;

	uri.insecure_network = NULL;
	if (!uri.is_unix && target->ask != NULL) {
		push_ask_peer(target->ask, &peer);
		if (!cut_host(peer.address, host, sizeof(host))) {
			return error_set(error, -EINVAL, "the destination has no network address");
		}
		uri.host = host;
	} else if (!uri.is_unix) {
		result = tools_push_look_up(target, host, sizeof(host), error);
		if (result != 0) {
			return result;
		}
		if (uri.tls && uri.tls_hostname == NULL) {
			/* name that the destination's certificate must have */
			uri.tls_hostname = uri.host;
		}
		uri.host = host;
		is_local = address_parse(host, address) && address_is_loopback(address);
	} else if (uri.socket_path[0] != '\0' && uri.socket_path[0] != '/') {
		if (getcwd(cwd, sizeof(cwd)) == NULL ||
			snprintf(path, sizeof(path), "%s/%s", cwd, uri.socket_path) >=
				(int)sizeof(path)) {
			return error_set(error, -ENAMETOOLONG, "the socket path is too long");
		}
		uri.socket_path = path;
		uri.socket_path_bytes = (uint32_t)strlen(path);
	}
	if (target->ask == NULL && is_local && !tools_push_is_here(source, other)) {
		return out_of_reach(error);
	}
	return export_uri_format(&uri, name, name_bytes, out, PUSH_URI_BYTES_MAX) == 0
		       ? 0
		       : error_set(error, -ENAMETOOLONG,
				 "the address of the destination is too "
				 "long");
}

/* --- requests -------------------------------------------------------------------------------- */

static uint32_t flags_of(const struct push_options *options)
{
	return (options->resume ? (uint32_t)PUSH_COMPARE : 0) |
	       (options->read_back ? (uint32_t)PUSH_READ_BACK : 0);
}

static int get_ticket(const struct push_options *options, const struct end *source,
	const struct end *target, uint64_t length, struct push_wire_ticket *ticket,
	struct error *error)
{
	struct push_answer answer;
	struct push_wire_grant head = {
		.offset = options->target_offset,
		.length = length,
		.source_offset = options->offset,
		.flags = flags_of(options),
		.name_bytes = (uint16_t)strlen(target->uri.export_name),
		.source_name_bytes = (uint16_t)strlen(source->uri.export_name),
	};
	const struct iovec parts[] = {
		{ &head, sizeof(head) },
		{ target->uri.export_name, head.name_bytes },
		{ source->uri.export_name, head.source_name_bytes },
	};
	int result = bind_to_source(source, target, &head, error);

	if (result != 0) {
		return result;
	}
	memcpy(head.instance, push_ask_instance(source->ask), sizeof(head.instance));
	result = push_ask(target->ask, PUSH_GRANT, parts, 3, &answer, error);
	if (result != 0) {
		end_prefix(target, error);
		return result;
	}
	if (!answer.has_ticket) {
		return error_set(error, -EPROTO, "the destination did not create a ticket");
	}
	*ticket = answer.ticket;
	return 0;
}

static int tools_push_start(const struct push_options *options, const struct end *source,
	struct end *target, uint64_t length, struct push_wire_ticket *ticket, struct error *error)
{
	bool has_push = target->ask != NULL;
	char text[PUSH_URI_BYTES_MAX];
	struct push_wire_start head = {
		.source_offset = options->offset,
		.length = length,
		.rate = options->rate,
		.connections = options->connections,
		.flags = (options->detach ? (uint32_t)PUSH_DETACH : 0) |
			 (has_push ? 0 : (uint32_t)PUSH_NBD) |
			 (options->live ? (uint32_t)PUSH_LIVE : 0),
		.uid = PUSH_UID_UNKNOWN,
		.name_bytes = (uint16_t)strlen(source->uri.export_name),
	};
	struct iovec parts[] = {
		{ &head, sizeof(head) },
		{ source->uri.export_name, head.name_bytes },
		{ text, 0 },
		{ ticket, sizeof(*ticket) },
	};
	struct push_answer answer;
	struct clan_peer peer;
	int result = target_text(source, target, text, error);

	if (result != 0) {
		return result;
	}
	if (has_push) {
		push_ask_peer(target->ask, &peer);
		head.uid = peer.uid;
	}
	head.uri_bytes = (uint16_t)strlen(text);
	parts[2].iov_len = head.uri_bytes;
	result = push_ask(source->ask, PUSH_START, parts, 4, &answer, error);
	if (result != 0) {
		end_prefix(source, error);
		return result;
	}
	ticket->job = answer.head.value;
	return 0;
}

/* Returns true if the source failed to connect and should try another address of the destination's
 * host, or another host. */
static bool try_next(const struct push_options *options, struct end *source, struct end *target,
	int result, struct error *error)
{
	static const int codes[] = { -ECONNREFUSED, -EHOSTUNREACH, -ENETUNREACH, -ETIMEDOUT,
		-EADDRNOTAVAIL, -EAFNOSUPPORT, -EACCES };
	bool may_help = false;

	for (size_t i = 0; i < ARRAY_COUNT(codes); i++) {
		may_help |= result == codes[i];
	}
	if (!may_help ||
		(!target->has_more && target->host + 1 == export_uri_hosts(&target->all))) {
		return false;
	}
	if (target->has_more) {
		target->address++;
	} else {
		target->address = 0;
		target->uri = export_uri_at(&target->all, ++target->host);
	}
	push_ask_close(source->ask);
	source->ask = NULL;
	return push_ask_open(&source->uri, options->timeout_ns, &source->ask, error) == 0;
}

/* --- progress --------------------------------------------------------------------------------- */

static const char *state_text(uint8_t state)
{
	static const char *const texts[PUSH_JOB_STATE_END] = {
		[PUSH_JOB_BEGINS] = "begins",
		[PUSH_JOB_MOVES] = "moves",
		[PUSH_JOB_FINISHES] = "finishes",
		[PUSH_JOB_DONE] = "done",
		[PUSH_JOB_FAILED] = "failed",
	};

	return texts[state]; /* push_parse() has checked that state is valid */
}

static json_t *text_json(const struct message_text *text)
{
	char copy[PUSH_NAME_BYTES_MAX + 1];

	snprintf(copy, sizeof(copy), "%.*s", (int)text->length, (const char *)text->bytes);
	return print_json_text(copy);
}

static json_t *job_json(const struct push_job_message *job)
{
	const struct push_wire_job *head = &job->head;
	char id[20];
	char digest[20];

	snprintf(id, sizeof(id), "%016" PRIx64, head->job);
	snprintf(digest, sizeof(digest), "%016" PRIx64, head->digest);
	return json_pack("{s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:o}",
		"job", id, "role", head->role == PUSH_SOURCE ? "source" : "destination", "state",
		state_text(head->state), "export", text_json(&job->name), "peer",
		text_json(&job->peer), "offset", (json_int_t)head->offset, "bytes",
		(json_int_t)head->length, "bytes_done", (json_int_t)head->done, "bytes_zeroed",
		(json_int_t)head->zeroes, "bytes_skipped", (json_int_t)head->skipped,
		"bytes_durable", (json_int_t)head->durable, "digest", digest, "seconds",
		(double)head->age_ms / 1e3, "error", text_json(&job->text));
}

static int report(
	const struct push_options *options, const struct push_wire_job *head, struct error *error)
{
	double seconds = (double)head->age_ms / 1e3;
	uint64_t moved = head->length - head->zeroes - head->skipped;
	char total[UNITS_TEXT_BYTES];
	char parts[3][UNITS_TEXT_BYTES];
	char rate[UNITS_TEXT_BYTES];
	char time[COPY_TIME_BYTES];

	units_human_bytes(total, head->length);
	units_human_bytes(parts[0], moved);
	units_human_bytes(parts[1], head->zeroes);
	units_human_bytes(parts[2], head->skipped);
	units_human_bytes(rate, (uint64_t)((double)head->length / MAX(seconds, 1e-3)));
	printf("pushed %s in %s, %s/s%s: %s transferred, %s of zeroes, %s already at the "
	       "destination; digest %016" PRIx64 "\n",
		total, copy_human_time(time, seconds), rate,
		options->read_back ? ", read back" : "", parts[0], parts[1], parts[2],
		head->digest);
	return print_end(error);
}

/* Adds the state of the destination and the remedy to the reason why a push has ended early. */
static void add_remedy(const struct push_wire_job *job, struct error *error)
{
	char share[COPY_SHARE_BYTES];

	error_add(error,
		"; the destination holds a partial copy: %s; run the command again with --resume "
		"to continue",
		copy_share(share, job->done, job->length));
}

/* Receives the progress of the job until it has ended. Returns an error if the command was stopped
 * or has lost the source; in both cases the source ends the job. */
static int push_follow(const struct push_options *options, const struct end *source,
	struct push_job_message *job, struct error *error)
{
	struct copy_counters counters = { .total = UINT64_MAX };
	struct copy_progress progress;
	int result;

	copy_progress_init(&progress, options->progress, &counters);
	copy_progress_phase(&progress, "pushing", &counters.done, clock_now_ns());
	copy_stop_watch(-1);
	do {
		result = push_ask_hear(source->ask, NOTE_MS, job, error);
		if (result == 1) {
			counters.total = job->head.length;
			counters.done = job->head.done;
		}
		copy_progress_tick(&progress, clock_now_ns());
		if (result >= 0 && job->head.state < PUSH_JOB_DONE && copy_stop_signal() != 0) {
			result = error_set(error, -EINTR,
				"stopped by SIG%s, and the server ends the job",
				sigabbrev_np(copy_stop_signal()));
		}
	} while (result >= 0 && job->head.state < PUSH_JOB_DONE);
	copy_progress_clear(&progress);
	return MIN(result, 0);
}

static int tools_push_watch(const struct push_options *options, const struct end *source,
	const struct push_wire_ticket *ticket, struct error *error)
{
	struct push_job_message job = { .head.length = ticket->length };
	char text[ERROR_TEXT_BYTES];
	int result = push_follow(options, source, &job, error);

	if (result < 0) {
		error_prefix(error, "job %016" PRIx64, ticket->job);
		end_prefix(source, error);
		add_remedy(&job.head, error);
		return result;
	}
	if (options->json) {
		result = print_json(job_json(&job), error);
	} else if (job.head.state == PUSH_JOB_DONE) {
		result = report(options, &job.head, error);
	} else {
		result = 0;
	}
	if (result >= 0 && job.head.state == PUSH_JOB_FAILED) {
		result = error_set(error,
			job.head.status <= INT16_MAX ? -(int)job.head.status : -EIO, "%s",
			push_ask_show(text, &job.text));
		end_prefix(source, error);
		add_remedy(&job.head, error);
	}
	return MIN(result, 0);
}

static int tools_push_run(const struct push_options *options, struct end *source,
	struct end *target, struct error *error)
{
	struct push_wire_ticket ticket = {
		.flags = (uint16_t)flags_of(options),
		.offset = options->target_offset,
	};
	uint64_t length;
	int result = end_open(source, options->source, false, options->timeout_ns, error);

	result = result ?: end_open(target, options->target, true, options->timeout_ns, error);
	result = result ?: end_look(source, error);
	if (result != 0) {
		return result;
	}
	if (options->offset >= source->bytes || options->length > source->bytes - options->offset) {
		return error_set(error, -EINVAL,
			"the range extends past the end of the source, which has %" PRIu64 " bytes",
			source->bytes);
	}
	length = options->length > 0 ? options->length : source->bytes - options->offset;
	ticket.length = length;
	if (target->ask != NULL) {
		result = get_ticket(options, source, target, length, &ticket, error);
	}
	if (result != 0) {
		return result;
	}
	do {
		result = tools_push_start(options, source, target, length, &ticket, error);
	} while (result != 0 && try_next(options, source, target, result, error));
	if (result != 0) {
		return result;
	}
	if (options->detach) {
		printf("%016" PRIx64 "\n", ticket.job);
		return print_end(error);
	}
	return tools_push_watch(options, source, &ticket, error);
}

int push_run(const struct push_options *options, struct error *error)
{
	struct end source = { 0 };
	struct end target = { 0 };
	int result = tools_push_run(options, &source, &target, error);

	end_fini(&source);
	end_fini(&target);
	return result;
}

/* --- jobs ------------------------------------------------------------------------------------ */

static void print_job(const struct push_job_message *job)
{
	const struct push_wire_job *head = &job->head;
	char share[COPY_SHARE_BYTES];
	char time[COPY_TIME_BYTES];
	char name[SHOWN_BYTES];
	char peer[SHOWN_BYTES];
	char text[ERROR_TEXT_BYTES];

	log_escape(name, sizeof(name), job->name.bytes, job->name.length);
	log_escape(peer, sizeof(peer), job->peer.bytes, job->peer.length);
	push_ask_show(text, &job->text);
	printf("%016" PRIx64 " %s \"%s\" %s %s: %s, %s in %s%s%s\n", head->job,
		head->role == PUSH_SOURCE ? "from" : "to", name,
		head->role == PUSH_SOURCE ? "to" : "from", peer, state_text(head->state),
		copy_share(share, head->done, head->length),
		copy_human_time(time, (double)head->age_ms / 1e3), text[0] != '\0' ? ": " : "",
		text);
}

static int list(struct push_ask *ask, uint64_t id, bool json, struct error *error)
{
	struct push_job_message job = { 0 };
	json_t *all = json ? json_array() : NULL;
	uint32_t count = 0;
	int result;

	while ((result = push_ask_job(ask, job.head.cursor, &job, error)) == 1) {
		if (id != 0 && job.head.job != id) {
			continue;
		}
		count++;
		if (json) {
			json_array_append_new(all, job_json(&job));
		} else {
			print_job(&job);
		}
	}
	if (result == 0 && id != 0 && count == 0) {
		result = error_set(error, -ENOENT,
			"the server has no job %016" PRIx64 " that is visible to you; "
			"gmblock push --list shows the jobs",
			id);
	}
	if (result == 0) {
		return json ? print_json(all, error) : print_end(error);
	}
	json_decref(all);
	return result;
}

int push_list(const char *uri, uint64_t job, bool json, uint64_t timeout_ns, struct error *error)
{
	struct end end = { 0 };
	int result =
		end_open(&end, uri, false, timeout_ns, error) ?: list(end.ask, job, json, error);

	end_fini(&end);
	return result;
}

int push_cancel(const char *uri, uint64_t job, uint64_t timeout_ns, struct error *error)
{
	struct push_wire_job_number number = { .job = job };
	const struct iovec part = { &number, sizeof(number) };
	char label[EXPORT_URI_LABEL_BYTES];
	struct push_answer answer;
	struct end end = { 0 };
	int result = end_open(&end, uri, false, timeout_ns, error);

	if (result == 0) {
		result = push_ask(end.ask, PUSH_CANCEL, &part, 1, &answer, error);
		if (result != 0) {
			error_prefix(error, "%s: job %016" PRIx64,
				export_uri_label(label, &end.uri), job);
		}
	}
	end_fini(&end);
	return result;
}
