// SPDX-License-Identifier: Apache-2.0
#include "tools/trace_request.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

/* --- asking -------------------------------------------------------------------------------- */

/* Returns the arguments of the command; NULL: no memory. */
static json_t *arguments_json(const struct trace_question *question)
{
	json_t *arguments = json_pack("{s:I, s:I}", "count", (json_int_t)question->count,
		"min_size", (json_int_t)question->min_size);

	if (question->export != NULL) {
		json_object_set_new(arguments, "export", json_string(question->export));
	}
	if (question->operations != NULL) {
		json_object_set(arguments, "operations", question->operations);
	}
	return arguments;
}

int trace_request_arm(const char *path, const struct trace_question *question,
	struct control_connection **connection_out, struct error *error)
{
	struct control_connection *connection;
	json_t *armed = NULL;
	json_t *arguments;
	int rc;

	if (question->export != NULL && !utf8_valid(question->export, strlen(question->export))) {
		return error_set(error, -EINVAL, "an export name must be UTF-8");
	}
	arguments = arguments_json(question);
	if (arguments == NULL) {
		return error_oom_for(error, "a command");
	}
	rc = control_connect(path, "trace", arguments, CONTROL_TIMEOUT_MS, &connection, error);
	if (rc < 0) {
		return rc;
	}
	rc = control_receive(connection, CONTROL_TIMEOUT_MS, &armed, error);
	json_decref(armed);
	if (rc != 1) {
		control_disconnect(connection);
		return rc < 0 ? rc
			      : error_set(error, -EPROTO,
					"%s: the server did not start to record requests", path);
	}
	*connection_out = connection;
	return 0;
}

/* --- waiting ------------------------------------------------------------------------------- */

static int trace_request_left_ms(uint64_t end_ns)
{
	uint64_t now = clock_now_ns();

	if (end_ns == UINT64_MAX) {
		return -1;
	}
	return (int)clock_milliseconds(end_ns - MIN(end_ns, now));
}

/* Waits for input, the deadline or a signal. Returns true only for input. */
static bool wait_for_answer(int fd, int signal_fd, uint64_t end_ns)
{
	struct pollfd fds[] = {
		{ .fd = fd, .events = POLLIN },
		{ .fd = signal_fd, .events = POLLIN },
	};

	do {
		int ready = poll(fds, ARRAY_COUNT(fds), trace_request_left_ms(end_ns));

		if (ready < 0 && errno != EINTR) {
			return false;
		}
		if (ready > 0) {
			return (fds[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
		}
	} while (end_ns > clock_now_ns());
	return false;
}

json_t *trace_request_wait(struct control_connection *connection,
	const struct trace_question *question, uint64_t timeout_ns, struct error *error)
{
	uint64_t end_ns = timeout_ns > 0 ? clock_now_ns() + timeout_ns : UINT64_MAX;
	json_t *document = NULL;
	sigset_t ours;
	sigset_t before;
	int signal_fd;

	sigemptyset(&ours);
	sigaddset(&ours, SIGINT);
	sigaddset(&ours, SIGTERM);
	sigprocmask(SIG_BLOCK, &ours, &before);
	signal_fd = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
	fprintf(stderr, "gmblock trace: waiting for %u request%s\n", question->count,
		question->count == 1 ? "" : "s");
	if (!wait_for_answer(control_connection_fd(connection), signal_fd, end_ns)) {
		control_finish(connection);
	}
	(void)!control_receive(connection, CONTROL_TIMEOUT_MS, &document, error);
	if (signal_fd >= 0) {
		struct signalfd_siginfo info;
		/* Discards the signal, which has been handled. */
		ssize_t got = read(signal_fd, &info, sizeof(info));

		GMB_UNUSED(got);
		close(signal_fd);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return document;
}

/* --- the document -------------------------------------------------------------------------- */

/* Returns a time; negative if it is null. */
static double time_us(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	return json_is_number(value) ? json_number_value(value) : -1;
}

static uint64_t trace_request_bytes_of(const json_t *object, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(object, key));

	return value > 0 ? (uint64_t)value : 0;
}

static const char *trace_request_text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static int trace_request_parse_part(const json_t *object, struct trace_request_part *part)
{
	const json_t *marks = json_object_get(object, "progress");
	const json_t *pieces = json_object_get(object, "sent");

	part->offset = trace_request_bytes_of(object, "offset");
	part->length = trace_request_bytes_of(object, "length");
	part->placement = trace_request_text_of(object, "placement");
	part->opened_us = time_us(object, "opened_us");
	part->submitted_us = time_us(object, "submitted_us");
	part->done_us = time_us(object, "done_us");
	part->error = trace_request_text_of(object, "error");
	part->marks = calloc(json_array_size(marks) + 1, sizeof(*part->marks));
	part->pieces = calloc(json_array_size(pieces) + 1, sizeof(*part->pieces));
	if (part->marks == NULL || part->pieces == NULL) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < json_array_size(marks); i++) {
		const json_t *mark = json_array_get(marks, i);

		part->marks[part->mark_count++] = (struct trace_request_mark){
			.progress_us = time_us(mark, "progress_us"),
			.bytes = trace_request_bytes_of(mark, "bytes"),
		};
	}
	for (size_t i = 0; i < json_array_size(pieces); i++) {
		const json_t *piece = json_array_get(pieces, i);

		part->pieces[part->piece_count++] = (struct trace_request_piece){
			.offset = trace_request_bytes_of(piece, "offset"),
			.length = trace_request_bytes_of(piece, "length"),
			.handed_us = time_us(piece, "handed_us"),
			.back_us = time_us(piece, "back_us"),
		};
	}
	return 0;
}

static int compare_offsets(const void *a, const void *b)
{
	const struct trace_request_part *left = a;
	const struct trace_request_part *right = b;

	return left->offset < right->offset ? -1 : left->offset > right->offset;
}

static int parse_request(const json_t *object, struct trace_request *request)
{
	const json_t *state_us = json_object_get(object, "state_us");
	const json_t *parts = json_object_get(object, "parts");
	const char *export = trace_request_text_of(object, "export");

	request->operation = trace_request_text_of(object, "operation");
	request->export = export != NULL ? export : "";
	request->offset = trace_request_bytes_of(object, "offset");
	request->length = trace_request_bytes_of(object, "length");
	request->error = trace_request_text_of(object, "error");
	request->total_us = time_us(object, "total_us");
	request->parts_more = (uint32_t)trace_request_bytes_of(object, "parts_more");
	for (int i = 0; i < PATH_STATE_DONE; i++) {
		request->state_us[i] = time_us(state_us, path_state_name((enum path_state)i));
	}
	if (request->operation == NULL || !json_is_array(parts) || request->total_us < 0) {
		return -EPROTO;
	}
	request->parts = calloc(json_array_size(parts) + 1, sizeof(*request->parts));
	if (request->parts == NULL) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < json_array_size(parts); i++) {
		int err = trace_request_parse_part(
			json_array_get(parts, i), &request->parts[request->part_count++]);

		if (err < 0) {
			return err;
		}
	}
	qsort(request->parts, request->part_count, sizeof(*request->parts), compare_offsets);
	return 0;
}

int trace_request_parse(
	const json_t *document, struct trace_requests *requests, struct error *error)
{
	const json_t *array = json_object_get(document, "requests");
	int err = 0;

	*requests = (struct trace_requests){
		.wanted = (uint32_t)trace_request_bytes_of(document, "wanted"),
		.ended = trace_request_text_of(document, "ended"),
	};
	if (!json_is_array(array) || requests->ended == NULL) {
		return error_set(error, -EPROTO, "invalid response from the server");
	}
	requests->requests = calloc(json_array_size(array) + 1, sizeof(*requests->requests));
	if (requests->requests == NULL) {
		return error_oom_for(error, "the response of the server");
	}
	for (size_t i = 0; i < json_array_size(array) && err == 0; i++) {
		err = parse_request(
			json_array_get(array, i), &requests->requests[requests->count++]);
	}
	return err == 0 ? 0
			: error_set(error, err, "invalid response from the server: %s",
				  strerror(-err));
}

void trace_request_free(struct trace_requests *requests)
{
	for (uint32_t i = 0; i < requests->count; i++) {
		struct trace_request *request = &requests->requests[i];

		for (uint32_t k = 0; k < request->part_count; k++) {
			free(request->parts[k].marks);
			free(request->parts[k].pieces);
		}
		free(request->parts);
	}
	free(requests->requests);
	*requests = (struct trace_requests){ .count = 0 };
}

const char *trace_request_title(
	char out[TRACE_REQUEST_TITLE_BYTES], const struct trace_request *request)
{
	char size[UNITS_TEXT_BYTES];
	int length = 0;

	if (request->length > 0) {
		length = snprintf(out, TRACE_REQUEST_TITLE_BYTES, "%s of %s at %llu",
			request->operation, units_format_bytes(size, request->length),
			(unsigned long long)request->offset);
	} else { /* a flush has no range */
		length = snprintf(out, TRACE_REQUEST_TITLE_BYTES, "%s", request->operation);
	}
	if (length >= 0 && length < TRACE_REQUEST_TITLE_BYTES) {
		snprintf(out + length, (size_t)(TRACE_REQUEST_TITLE_BYTES - length),
			", export \"%s\"", request->export);
	}
	return out;
}
