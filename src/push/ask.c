// SPDX-License-Identifier: Apache-2.0
#include "push/ask.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/uri.h"

enum { EVENTS_MAX = 8, NS_PER_MS = 1000000 };

struct push_ask {
	struct clan_queue *queue;
	struct clan_conn *conn;
	bool connected;
	bool lost;
	bool closed;
	bool has_warned; /* that the server does not respond */
	uint64_t timeout_ns;
	char label[EXPORT_URI_LABEL_BYTES];
	struct push_wire_welcome welcome;
	uint8_t message[PUSH_MESSAGE_BYTES_MAX];
};

/* Waits for events once. Returns 0 unless the connection is lost, even if there was no event. */
static int ask_turn(struct push_ask *ask, int timeout_ms, struct error *error)
{
	struct clan_event events[EVENTS_MAX];
	int count = clan_queue_wait(ask->queue, events, EVENTS_MAX, timeout_ms);
	int result = 0;

	for (int i = 0; i < count; i++) {
		ask->connected |= events[i].type == CLAN_EVENT_CONNECTED;
		ask->closed |= events[i].type == CLAN_EVENT_CLOSED;
		if (events[i].type == CLAN_EVENT_LOST) {
			ask->lost = true;
			result = error_set(
				error, events[i].status, "%s", clan_conn_reason(ask->conn));
		}
	}
	return result;
}

static int ask_left_ms(uint64_t until_ns)
{
	uint64_t now_ns = clock_now_ns();

	return now_ns >= until_ns
		       ? 0
		       : (int)MIN((until_ns - now_ns) / NS_PER_MS + 1, UINT64_C(1000000));
}

static int ask_limit_ms(const struct push_ask *ask)
{
	return (int)MIN(ask->timeout_ns / NS_PER_MS + 1, UINT64_C(1000000));
}

/* Called after EXPORT_URI_SILENT_MS without a response. Warns once. */
static void ask_warn(struct push_ask *ask)
{
	char text[EXPORT_URI_SILENT_BYTES];

	if (!ask->has_warned) {
		ask->has_warned = true;
		log_warning("%s", export_uri_silent(text, ask->label, ask->timeout_ns / NS_PER_MS));
	}
}

/* Waits for the connection, for `timeout_ms` at most. Returns 0 unless it has failed. */
static int ask_wait_for(struct push_ask *ask, int timeout_ms, struct error *error)
{
	uint64_t until_ns = clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
	int result = 0;

	while (result == 0 && !ask->connected && (timeout_ms = ask_left_ms(until_ns)) > 0) {
		result = ask_turn(ask, timeout_ms, error);
	}
	return result;
}

static int ask_broken(const char *rule, struct error *error)
{
	return error_set(error, -EPROTO, "the server broke a push rule: %s", rule);
}

/* Connects within the timeout, and checks the server's welcome. */
static int ask_dial(struct push_ask *ask, const struct export_uri *uri, struct error *error)
{
	const struct clan_conn_options options = {
		.size = sizeof(options),
		.handshake_timeout_ms =
			(uint32_t)MIN(ask->timeout_ns / NS_PER_MS + 1, (uint64_t)UINT32_MAX),
		.cookies = 1,
		.tripwires = 1,
		.peer_regions_max = 1,
	};
	int limit_ms = ask_limit_ms(ask);
	char *address = export_uri_clan_address(uri);
	const char *advice;
	const char *rule;
	const void *welcome;
	size_t bytes;
	int result;

	if (address == NULL) {
		return error_set(error, -ENOMEM, "out of memory for an address");
	}
	result = clan_connect(
		ask->queue, address, &options, &push_hello, sizeof(push_hello), &ask->conn, NULL);
	free(address);
	if (result != 0) {
		ask->conn = NULL;
		advice = uri->is_unix ? uri_unix_advice(uri->socket_path, result) : NULL;
		return error_set(error, result, "cannot connect: %s%s%s",
			uri_connect_reason(result), advice != NULL ? "; " : "",
			advice != NULL ? advice : "");
	}
	result = ask_wait_for(ask, MIN(limit_ms, (int)EXPORT_URI_SILENT_MS), error);
	if (result == 0 && !ask->connected && limit_ms > EXPORT_URI_SILENT_MS) {
		ask_warn(ask);
		result = ask_wait_for(ask, limit_ms - EXPORT_URI_SILENT_MS, error);
	}
	if (result == 0 && !ask->connected) {
		result = error_set(error, -ETIMEDOUT, "the server did not answer in time");
	}
	if (result != 0) {
		return result;
	}
	welcome = clan_conn_hello(ask->conn, &bytes);
	rule = push_welcome_parse(welcome, bytes, &ask->welcome);
	return rule != NULL ? ask_broken(rule, error) : 0;
}

int push_ask_open(const struct export_uri *uri, uint64_t timeout_ns, struct push_ask **ask_out,
	struct error *error)
{
	struct push_ask *ask = calloc(1, sizeof(*ask));
	struct clan_error reason;
	int result;

	if (ask == NULL) {
		return error_set(error, -ENOMEM, "out of memory for a connection");
	}
	ask->timeout_ns = timeout_ns;
	export_uri_label(ask->label, uri);
	result = clan_queue_create(NULL, &ask->queue, &reason);
	if (result != 0) {
		free(ask);
		return error_set(error, result, "%s", reason.text);
	}
	result = ask_dial(ask, uri, error);
	if (result != 0) {
		error_prefix(error, "%s", ask->label);
		push_ask_close(ask);
		return result;
	}
	*ask_out = ask;
	return 0;
}

/* Waits until clan has closed the connection, because its queue cannot be destroyed before. */
void push_ask_close(struct push_ask *ask)
{
	int result;

	if (ask == NULL) {
		return;
	}
	if (ask->conn != NULL) {
		clan_close(ask->conn);
	}
	while (ask->conn != NULL && !ask->closed) {
		(void)!ask_turn(ask, -1, NULL);
	}
	result = clan_queue_destroy(ask->queue);
	GMB_ASSERT(result == 0);
	free(ask);
}

const uint8_t *push_ask_instance(const struct push_ask *ask)
{
	return ask->welcome.instance;
}

void push_ask_peer(const struct push_ask *ask, struct clan_peer *peer)
{
	clan_conn_peer(ask->conn, peer);
}

/* Reports the end of the connection. clan_conn_reason() is valid even before the event LOST. */
static int ask_ended(const struct push_ask *ask, int code, struct error *error)
{
	const char *reason = clan_conn_reason(ask->conn);

	return error_set(error, code != 0 ? code : -ECONNRESET,
		"the server closed the connection%s%s", reason[0] != '\0' ? ": " : "", reason);
}

/* Receives the next message. Returns 1, or 0 if there was none in time. */
static int ask_hear(
	struct push_ask *ask, int timeout_ms, struct clan_message *head, struct error *error)
{
	uint64_t until_ns = clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
	struct error why = { 0 };
	int result;

	for (;;) {
		result = clan_recv(ask->conn, CLAN_BULK, head, ask->message, sizeof(ask->message));
		if (result == 0) {
			return 1;
		}
		if (result != -EAGAIN || ask->lost) {
			return ask_ended(ask, why.code, error);
		}
		timeout_ms = ask_left_ms(until_ns);
		if (timeout_ms == 0) {
			return 0;
		}
		/* Messages that arrived before the end of the connection can still be received. */
		(void)!ask_turn(ask, timeout_ms, &why);
	}
}

const char *push_ask_show(char out[ERROR_TEXT_BYTES], const struct message_text *text)
{
	char sentence[ERROR_TEXT_BYTES];

	snprintf(sentence, sizeof(sentence), "%.*s", (int)MIN(text->length, sizeof(sentence) - 1),
		(const char *)text->bytes);
	return log_escape_sentence(out, ERROR_TEXT_BYTES, sentence);
}

static int ask_refused(const struct push_answer *answer, struct error *error)
{
	char text[ERROR_TEXT_BYTES];
	int code = answer->head.status <= INT16_MAX ? -(int)answer->head.status : -EIO;

	push_ask_show(text, &answer->text);
	return error_set(error, code, "%s", text[0] != '\0' ? text : strerror(-code));
}

static int exchange(struct push_ask *ask, uint32_t type, const struct iovec *parts,
	uint32_t part_count, struct clan_message *head, struct error *error)
{
	int result = clan_sendv(ask->conn, CLAN_BULK, type, parts, part_count);
	int limit_ms = ask_limit_ms(ask);

	if (result == -ENOTCONN) {
		return ask_ended(ask, 0, error);
	}
	if (result != 0) {
		return error_set(error, result, "cannot query the server: %s", strerror(-result));
	}
	result = ask_hear(ask, MIN(limit_ms, (int)EXPORT_URI_SILENT_MS), head, error);
	if (result == 0 && limit_ms > EXPORT_URI_SILENT_MS) {
		ask_warn(ask);
		result = ask_hear(ask, limit_ms - EXPORT_URI_SILENT_MS, head, error);
	}
	return result == 0 ? error_set(error, -ETIMEDOUT, "the server did not answer in time")
			   : result;
}

int push_ask(struct push_ask *ask, uint32_t type, const struct iovec *parts, uint32_t part_count,
	struct push_answer *answer, struct error *error)
{
	struct clan_message head;
	int result = exchange(ask, type, parts, part_count, &head, error);
	const char *rule;

	if (result < 0) {
		return result;
	}
	rule = head.type != PUSH_ANSWER ? "H2: an unexpected message"
					: push_parse(PUSH_ANSWER, ask->message, head.bytes, answer);
	if (rule != NULL) {
		return ask_broken(rule, error);
	}
	return answer->head.status != 0 ? ask_refused(answer, error) : 0;
}

int push_ask_hear(
	struct push_ask *ask, int timeout_ms, struct push_job_message *job, struct error *error)
{
	struct clan_message head;
	int result = ask_hear(ask, timeout_ms, &head, error);
	const char *rule;

	if (result <= 0) {
		return result;
	}
	rule = head.type != PUSH_JOB ? "H2: an unexpected message"
				     : push_parse(PUSH_JOB, ask->message, head.bytes, job);
	return rule != NULL ? ask_broken(rule, error) : 1;
}

/* ENOENT is the answer after the last job. Each job must have a larger cursor than the one before,
 * so a malicious server cannot keep the command in this loop forever. */
int push_ask_job(
	struct push_ask *ask, uint64_t cursor, struct push_job_message *job, struct error *error)
{
	const struct push_wire_job_number number = { .job = cursor };
	const struct iovec part = { (void *)(uintptr_t)&number, sizeof(number) };
	struct push_answer answer;
	struct clan_message head;
	const char *rule = NULL;
	int result = exchange(ask, PUSH_JOBS, &part, 1, &head, error);

	if (result < 0) {
		return result;
	}
	if (head.type == PUSH_ANSWER) {
		rule = push_parse(PUSH_ANSWER, ask->message, head.bytes, &answer);
		return rule != NULL		      ? ask_broken(rule, error)
		       : answer.head.status == ENOENT ? 0
						      : ask_refused(&answer, error);
	}
	rule = head.type != PUSH_JOB ? "H2: an unexpected message"
				     : push_parse(PUSH_JOB, ask->message, head.bytes, job);
	if (rule == NULL && job->head.cursor <= cursor) {
		rule = "H7: a cursor that does not increase";
	}
	return rule != NULL ? ask_broken(rule, error) : 1;
}
