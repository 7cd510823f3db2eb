// SPDX-License-Identifier: Apache-2.0
#include "gmb/client/probe.h"

#include <errno.h>
#include <gmblock/clan.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/export_uri.h"
#include "base/log.h"
#include "gmb/client/client.h"

enum {
	EVENTS_MAX = 8,
	NS_PER_MS = 1000000,
	LISTED_MAX = 65536, /* limit on exports in one list */
};

#define SILENT_NS (EXPORT_URI_SILENT_MS * UINT64_C(1000000))

struct probe {
	struct clan_queue *queue;
	struct clan_conn *conn;
	bool connected;
	bool lost;
	bool closed;
	bool has_found;	   /* found() was called */
	const char *label; /* address of the server */
	uint64_t timeout_ns;
	uint64_t until_ns;
	bool warns;	  /* a silent server is to be reported */
	uint64_t warn_ns; /* when it is to be reported; UINT64_MAX: never */
	uint16_t version; /* negotiated version of gmb, valid once connected */
	uint8_t message[NATIVE_MESSAGE_BYTES_MAX];
};

static int probe_late(struct error *error)
{
	return error_set(error, -ETIMEDOUT, "the server did not answer in time");
}

/* Called before waiting for a response. */
static void probe_expect(struct probe *probe)
{
	probe->warn_ns = probe->warns ? clock_now_ns() + SILENT_NS : UINT64_MAX;
}

/* Called when the server has not responded for EXPORT_URI_SILENT_MS. */
static void probe_warn(struct probe *probe)
{
	char text[EXPORT_URI_SILENT_BYTES];

	probe->warns = false;
	probe->warn_ns = UINT64_MAX;
	log_warning("%s", export_uri_silent(text, probe->label, probe->timeout_ns / NS_PER_MS));
}

static int probe_turn(struct probe *probe, struct error *error)
{
	struct clan_event events[EVENTS_MAX];
	uint64_t now_ns = clock_now_ns();
	uint64_t left_ns = now_ns < probe->until_ns ? probe->until_ns - now_ns : 0;
	uint64_t quiet_ns = now_ns < probe->warn_ns ? probe->warn_ns - now_ns : 0;
	uint64_t wait_ns = MIN(left_ns, quiet_ns);
	int count = clan_queue_wait(
		probe->queue, events, EVENTS_MAX, (int)MIN(wait_ns / NS_PER_MS + 1, 1000000U));

	if (count == 0 && left_ns > 0 && clock_now_ns() >= probe->warn_ns) {
		probe_warn(probe);
	}
	for (int i = 0; i < count; i++) {
		probe->connected |= events[i].type == CLAN_EVENT_CONNECTED;
		probe->closed |= events[i].type == CLAN_EVENT_CLOSED;
		if (events[i].type == CLAN_EVENT_LOST) {
			probe->lost = true;
			return error_set(
				error, events[i].status, "%s", clan_conn_reason(probe->conn));
		}
	}
	return left_ns == 0 ? probe_late(error) : 0;
}

static int probe_broken(const char *rule, struct error *error)
{
	return error_set(error, -EPROTO, "the server broke a gmb rule: %s", rule);
}

/* Called before the event LOST is reported: clan_conn_reason() already returns the reason. */
static int probe_ended(const struct probe *probe, int code, struct error *error)
{
	const char *reason = clan_conn_reason(probe->conn);

	return error_set(error, code, "the server closed the connection%s%s",
		reason[0] != '\0' ? ": " : "", reason);
}

static int probe_hear(struct probe *probe, struct native_export *export, struct error *error)
{
	struct clan_message head;
	const char *rule;
	int result;

	probe_expect(probe);
	while ((result = clan_recv(probe->conn, CLAN_ANY, &head, probe->message,
			sizeof(probe->message))) == -EAGAIN) {
		result = probe_turn(probe, error);
		if (result != 0) {
			return result;
		}
	}
	if (result != 0) {
		return probe_ended(probe, result, error);
	}
	rule = head.cls != CLAN_BULK || head.type != NATIVE_EXPORT
		       ? "G2: an unexpected message"
		       : native_parse(NATIVE_EXPORT, probe->message, head.bytes, export);
	return rule != NULL ? probe_broken(rule, error) : 0;
}

static int probe_connect_to(
	struct probe *probe, const struct native_target *target, uint32_t host, struct error *error)
{
	const void *welcome;
	const char *rule;
	struct native_welcome parsed;
	size_t bytes;
	uint64_t left_ms = (probe->until_ns - clock_now_ns()) / NS_PER_MS;
	const struct clan_conn_options options = {
		.size = sizeof(options),
		.handshake_timeout_ms = (uint32_t)MIN(left_ms + 1, (uint64_t)UINT32_MAX),
	};
	int result = native_connect(probe->queue, target, host, &options, &probe->conn, error);

	probe_expect(probe);
	while (result == 0 && !probe->connected) {
		result = probe_turn(probe, error);
	}
	if (result != 0) {
		return result;
	}
	welcome = clan_conn_hello(probe->conn, &bytes);
	rule = native_welcome_parse(welcome, bytes, &parsed);
	probe->version = rule == NULL ? parsed.version : 0;
	return rule != NULL ? probe_broken(rule, error) : 0;
}

static int probe_refused(const struct native_export *export, struct error *error)
{
	char text[CARRIER_TEXT_BYTES_MAX];

	log_escape(text, sizeof(text), export->text.bytes, export->text.length);
	return error_set(error, native_status_to_errno(export->head.status), "%s", text);
}

static int ask_for_one(struct probe *probe, const struct native_target *target,
	struct native_export *export, struct error *error)
{
	struct native_wire_open head = { .flags = NATIVE_OPEN_LOOK,
		.name_bytes = (uint16_t)strlen(target->name) };
	int result;

	memcpy(probe->message, &head, sizeof(head));
	memcpy(probe->message + sizeof(head), target->name, head.name_bytes);
	result = clan_send(probe->conn, CLAN_BULK, NATIVE_OPEN, probe->message,
		(uint32_t)sizeof(head) + head.name_bytes);
	if (result != 0) {
		return probe_ended(probe, result, error);
	}
	result = probe_hear(probe, export, error);
	return result == 0 && export->head.status != 0 ? probe_refused(export, error) : result;
}

static int ask_for_next(
	struct probe *probe, uint64_t cursor, struct native_export *export, struct error *error)
{
	const struct native_wire_list list = { .cursor = cursor };
	int result = clan_send(probe->conn, CLAN_BULK, NATIVE_LIST, &list, sizeof(list));

	if (result != 0) {
		return probe_ended(probe, result, error);
	}
	result = probe_hear(probe, export, error);
	if (result == 0 && export->head.status == 0 && export->head.cursor <= cursor) {
		result = probe_broken(
			"the list of exports has a cursor that does not increase", error);
	}
	return result;
}

static int probe_ask(struct probe *probe, const struct native_target *target, bool all,
	probe_found *found, void *context, struct error *error)
{
	struct native_export export = { .head.cursor = 0 };
	int result;

	if (!all) {
		result = ask_for_one(probe, target, &export, error);
		probe->has_found = result == 0;
		return result == 0 ? found(context, probe->version, &export, error) : result;
	}
	for (uint32_t count = 0;; count++) {
		result = ask_for_next(probe, export.head.cursor, &export, error);
		if (result != 0 || native_status_to_errno(export.head.status) == -ENOENT) {
			return result; /* ENOENT: the list has ended */
		}
		if (export.head.status != 0) {
			return probe_refused(&export, error);
		}
		if (count == LISTED_MAX) {
			return error_set(
				error, -E2BIG, "the server lists more than %d exports", LISTED_MAX);
		}
		probe->has_found = true;
		result = found(context, probe->version, &export, error);
		if (result == 0 && clock_now_ns() >= probe->until_ns) {
			result = probe_late(error);
		}
		if (result != 0) {
			return result;
		}
	}
}

/* timeout_ns: this host's share of the time. */
static int probe_host(const struct probe_options *options, const struct native_target *target,
	uint32_t host, uint64_t timeout_ns, bool *has_found, probe_found *found, void *context,
	struct error *error)
{
	struct probe probe = {
		.label = target->base.labels[host],
		.timeout_ns = timeout_ns,
		.until_ns = clock_now_ns() + timeout_ns,
		.warns = options->warns && timeout_ns > SILENT_NS,
	};
	struct clan_error reason;
	int result = clan_queue_create(NULL, &probe.queue, &reason);

	if (result != 0) {
		return error_set(error, result, "%s", reason.text);
	}
	result = probe_connect_to(&probe, target, host, error);
	result = result ?: probe_ask(&probe, target, options->all, found, context, error);
	if (result != 0) {
		error_prefix(error, "%s", probe.label);
	}
	if (probe.conn != NULL) {
		clan_close(probe.conn);
	}
	/* from here on waits only until our side of the connection has closed */
	probe.until_ns = UINT64_MAX;
	probe.warn_ns = UINT64_MAX;
	while (probe.conn != NULL && !probe.closed) {
		(void)!probe_turn(&probe, &(struct error){ 0 });
	}
	(void)!clan_queue_destroy(probe.queue);
	*has_found = probe.has_found;
	return result;
}

int native_probe(const struct probe_options *options, uint32_t *host_out, probe_found *found,
	void *context, struct error *error)
{
	const struct gmb_options target_options = { 0 };
	uint64_t end_ns = clock_now_ns() + options->timeout_ns;
	struct error failures = { 0 };
	bool has_found = false;
	struct carrier_target *base;
	int result =
		native_carrier.target_create(options->uri, &target_options, NULL, &base, error);

	if (result != 0) {
		return result;
	}
	for (uint32_t i = 0; i < base->host_count && !has_found; i++) {
		uint64_t now_ns = MIN(clock_now_ns(), end_ns);

		result = probe_host(options, container_of(base, struct native_target, base), i,
			(end_ns - now_ns) / (base->host_count - i), &has_found, found, context,
			error);
		*host_out = i;
		if (result == 0) {
			break;
		}
		error_join(&failures, error);
	}
	if (result != 0) {
		*error = failures;
	}
	native_carrier.target_destroy(base);
	return result;
}

/* --- gmb_list_exports() ------------------------------------------------------------------------
 */

struct listing {
	carrier_found *found;
	void *context;
};

static int list_one(
	void *context, uint16_t version, const struct native_export *export, struct error *error)
{
	const struct listing *listing = context;
	char *name = strndup(export->name.bytes, export->name.length);
	char *description = strndup(export->text.bytes, export->text.length);
	const struct gmb_export exported = {
		.size = sizeof(exported), .name = name, .description = description
	};
	int err = 0;

	if (name == NULL || description == NULL) {
		err = error_oom(error);
	} else {
		listing->found(listing->context, &exported);
	}
	free(name);
	free(description);
	return err;
}

int native_list(const char *uri, const struct gmb_options *options, carrier_found *found,
	void *context, struct error *error)
{
	const struct probe_options probe = {
		.uri = uri,
		.all = true,
		.timeout_ns = options->connect_timeout_ms * UINT64_C(1000000),
	};
	struct listing listing = { found, context };
	uint32_t host;

	if (options->tls != NULL) {
		return error_set(error, -EINVAL, "credentials for TLS need an nbds URI");
	}
	return native_probe(&probe, &host, list_one, &listing, error);
}
