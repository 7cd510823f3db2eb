// SPDX-License-Identifier: Apache-2.0
#include "control/http.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { WEIGHT_ONE = 1000 };

/* A part of the request. */
struct span {
	const char *at;
	size_t bytes;
};

size_t http_request_end(const char *bytes, size_t count)
{
	const char *line = bytes;
	const char *end = bytes + count;
	const char *next;

	/* A single LF also ends a line; RFC 9112, 2.2. */
	while ((next = memchr(line, '\n', (size_t)(end - line))) != NULL) {
		size_t line_bytes = (size_t)(next - line);

		if (line != bytes && (line_bytes == 0 || (line_bytes == 1 && line[0] == '\r'))) {
			return (size_t)(next + 1 - bytes);
		}
		line = next + 1;
	}
	return 0;
}

/* Removes the text before the delimiter, and the delimiter, from `rest` and returns the text.
 * Without a delimiter, removes and returns all of `rest`. */
static struct span http_take(struct span *rest, char delimiter)
{
	const char *found = memchr(rest->at, delimiter, rest->bytes);
	struct span taken = *rest;

	if (found == NULL) {
		rest->at += rest->bytes;
		rest->bytes = 0;
		return taken;
	}
	taken.bytes = (size_t)(found - rest->at);
	rest->at = found + 1;
	rest->bytes -= taken.bytes + 1;
	return taken;
}

static bool is_space(char byte)
{
	return byte == ' ' || byte == '\t' || byte == '\r';
}

static struct span trim(struct span text)
{
	while (text.bytes > 0 && is_space(text.at[0])) {
		text.at++;
		text.bytes--;
	}
	while (text.bytes > 0 && is_space(text.at[text.bytes - 1])) {
		text.bytes--;
	}
	return text;
}

static bool is(struct span text, const char *wanted)
{
	return text.bytes == strlen(wanted) && memcmp(text.at, wanted, text.bytes) == 0;
}

/* Compares names and media types, which are case-insensitive. */
static bool is_named(struct span text, const char *wanted)
{
	return text.bytes == strlen(wanted) && strncasecmp(text.at, wanted, text.bytes) == 0;
}

/* Parses a weight such as "0.5" into thousandths (RFC 9110, 12.4.2). An invalid weight counts as
 * 0. */
static uint32_t parse_weight(struct span text)
{
	uint32_t weight = 0;
	uint32_t unit = WEIGHT_ONE;

	for (size_t i = 0; i < text.bytes; i++) {
		if (i == 1 && text.at[i] == '.') {
			continue;
		}
		if (text.at[i] < '0' || text.at[i] > '9' || i == 1 || unit == 0) {
			return 0;
		}
		weight += unit * (uint32_t)(text.at[i] - '0');
		unit /= 10;
	}
	return MIN(weight, (uint32_t)WEIGHT_ONE);
}

/* Processes one media range of an Accept field, with its parameters. */
static void http_take_range(struct http_request *request, struct span range)
{
	struct span type = trim(http_take(&range, ';'));
	uint32_t weight = WEIGHT_ONE;

	while (range.bytes > 0) {
		struct span value = trim(http_take(&range, ';'));
		struct span name = trim(http_take(&value, '='));

		if (is_named(name, "q")) {
			weight = parse_weight(trim(value));
		}
	}
	if (is_named(type, "application/openmetrics-text")) {
		request->openmetrics_weight = MAX(request->openmetrics_weight, weight);
	} else if (is_named(type, "text/plain") || is_named(type, "text/*") ||
		   is_named(type, "*/*")) {
		request->text_weight = MAX(request->text_weight, weight);
	}
}

/* Processes a field. Returns false if the line is not a field. */
static bool take_field(struct http_request *request, struct span line, bool *accept_seen)
{
	struct span value = line;
	struct span name = http_take(&value, ':');

	if (name.bytes == 0 || name.bytes == line.bytes || is_space(name.at[0]) ||
		is_space(name.at[name.bytes - 1])) {
		return false;
	}
	if (is_named(name, "accept")) {
		*accept_seen = true;
		while (value.bytes > 0) {
			http_take_range(request, http_take(&value, ','));
		}
	}
	return true;
}

/* Parses the request line, such as "GET /metrics HTTP/1.1". */
static int take_first_line(struct http_request *request, struct span line)
{
	struct span rest = line;
	struct span method = http_take(&rest, ' ');
	struct span target = http_take(&rest, ' ');
	bool is_get = is(method, "GET");

	request->head = is(method, "HEAD");
	request->target = target.at;
	request->target_bytes = target.bytes;
	if (method.bytes == 0 || target.bytes == 0 || rest.bytes < strlen("HTTP/") ||
		memcmp(rest.at, "HTTP/", strlen("HTTP/")) != 0) {
		return 400;
	}
	if (!is(rest, "HTTP/1.1") && !is(rest, "HTTP/1.0")) {
		return 505;
	}
	return is_get || request->head ? HTTP_OK : 405;
}

int http_parse(const char *bytes, size_t count, struct http_request *request)
{
	struct span rest = { bytes, count };
	bool accept_seen = false;
	int status;

	*request = (struct http_request){ 0 };
	if (memchr(bytes, '\0', count) != NULL) {
		return 400;
	}
	status = take_first_line(request, trim(http_take(&rest, '\n')));
	while (rest.bytes > 0) {
		struct span line = http_take(&rest, '\n');

		if (trim(line).bytes == 0) {
			break;
		}
		if (!take_field(request, line, &accept_seen)) {
			return 400;
		}
	}
	if (!accept_seen) {
		request->text_weight = WEIGHT_ONE;
	}
	return status;
}

const char *http_status_text(int status)
{
	switch (status) {
	case HTTP_OK:
		return "200 OK";
	case 400:
		return "400 Bad Request";
	case 404:
		return "404 Not Found";
	case 405:
		return "405 Method Not Allowed";
	case 431:
		return "431 Request Header Fields Too Large";
	case 505:
		return "505 HTTP Version Not Supported";
	case 503:
	default:
		return "503 Service Unavailable";
	}
}

size_t http_head(char out[HTTP_HEAD_BYTES], int status, const char *content_type, size_t bytes)
{
	int len = snprintf(out, HTTP_HEAD_BYTES,
		"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sCache-Control: "
		"no-store\r\nVary: Accept\r\nConnection: close\r\n\r\n",
		http_status_text(status), content_type, bytes,
		status == 405 ? "Allow: GET, HEAD\r\n" : "");

	GMB_ASSERT(len > 0 && len < HTTP_HEAD_BYTES);
	return (size_t)len;
}
