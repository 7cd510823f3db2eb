// SPDX-License-Identifier: Apache-2.0
#include "base/uri.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/text.h"

/* A part of the text that is parsed. */
struct span {
	const char *at;
	size_t len;
};

static struct span span_until(const char *from, const char *stops)
{
	return (struct span){ from, strcspn(from, stops) };
}

/*
 * Percent-decodes the span `in` into a new terminated string. With zero_at_start, zero bytes are
 * allowed if the first decoded byte is zero (abstract socket names); otherwise a zero byte is an
 * error.
 */
static int decode(struct span in, const char *what, bool zero_at_start, char **out,
	uint32_t *out_bytes, struct error *error)
{
	char *text = malloc(in.len + 1);
	uint32_t n = 0;

	if (text == NULL) {
		return error_oom_for(error, "the URI's %s", what);
	}
	for (size_t i = 0; i < in.len; i++) {
		int high;
		int low;

		if (in.at[i] != '%') {
			text[n++] = in.at[i];
			continue;
		}
		high = i + 1 < in.len ? text_hex_digit(in.at[i + 1]) : -1;
		low = i + 2 < in.len ? text_hex_digit(in.at[i + 2]) : -1;
		if (high < 0 || low < 0) {
			free(text);
			return error_set(error, -EINVAL,
				"'%%' in the %s must be followed by two hexadecimal digits; "
				"a percent sign itself is written %%25",
				what);
		}
		text[n] = (char)(high << 4 | low);
		if (text[n] == '\0' && !(zero_at_start && text[0] == '\0')) {
			free(text);
			return error_set(error, -EINVAL, "the %s contains a zero byte (%%00)%s",
				what,
				zero_at_start ? ", which is allowed only as the first byte of an "
						"abstract socket"
					      : "");
		}
		n++;
		i += 2;
	}
	text[n] = '\0';
	*out = text;
	if (out_bytes != NULL) {
		*out_bytes = n;
	}
	return 0;
}

static int uri_parse_port(struct span text, struct uri_host *host, struct error *error)
{
	uint32_t value = 0;

	for (size_t i = 0; i < text.len; i++) {
		if (text.at[i] < '0' || text.at[i] > '9') {
			return error_set(error, -EINVAL, "the port '%s' is not a number",
				quote_bytes(text.at, text.len));
		}
		value = value * 10 + (uint32_t)(text.at[i] - '0');
		if (value > UINT16_MAX) {
			return error_set(error, -EINVAL, "the port '%s' is larger than 65535",
				quote_bytes(text.at, text.len));
		}
	}
	/* An empty port, "host:", is valid and means the default port. */
	host->has_port = text.len > 0;
	host->port = (uint16_t)value;
	return 0;
}

/* Splits name and port, and removes the brackets of the name. */
static int parse_host_port(
	struct span text, struct span *name, struct uri_host *host, struct error *error)
{
	const char *end = text.at + text.len;
	const char *after;

	if (text.len > 0 && text.at[0] == '[') {
		const char *close = memchr(text.at, ']', text.len);

		if (close == NULL) {
			return error_set(error, -EINVAL, "the IPv6 address has no closing ']'");
		}
		*name = (struct span){ text.at + 1, (size_t)(close - text.at - 1) };
		if (name->len == 0 || memchr(name->at, ':', name->len) == NULL) {
			return error_set(error, -EINVAL,
				"only an IPv6 address can be in brackets, such as [::1]");
		}
		after = close + 1;
		if (after < end && *after != ':') {
			return error_set(
				error, -EINVAL, "only :PORT can follow the ']' of an IPv6 address");
		}
	} else {
		after = memchr(text.at, ':', text.len);
		if (after != NULL && memchr(after + 1, ':', (size_t)(end - after - 1)) != NULL) {
			return error_set(error, -EINVAL,
				"an IPv6 address must be in brackets, such as [::1]");
		}
		after = after != NULL ? after : end;
		*name = (struct span){ text.at, (size_t)(after - text.at) };
	}
	if (after < end) {
		return uri_parse_port(
			(struct span){ after + 1, (size_t)(end - after - 1) }, host, error);
	}
	return 0;
}

static int parse_scheme(const char **cursor, struct uri *uri, struct error *error)
{
	static const char unix_form[] = "+unix";
	const char *end = strstr(*cursor, "://");
	size_t len = end != NULL ? (size_t)(end - *cursor) : 0;

	if (len == 0) {
		return error_set(error, -EINVAL, "the URI has no scheme");
	}
	uri->scheme = strndup(*cursor, len);
	if (uri->scheme == NULL) {
		return error_oom_for(error, "the URI's scheme");
	}
	uri->is_unix = len >= strlen(unix_form) &&
		       strcasecmp(uri->scheme + len - strlen(unix_form), unix_form) == 0;
	*cursor = end + 3;
	return 0;
}

static int uri_parse_host(struct span text, struct uri_host *host, struct error *error)
{
	struct span name;
	int rc = parse_host_port(text, &name, host, error);

	return rc < 0 ? rc : decode(name, "host", false, &host->name, NULL, error);
}

/* Parses the hosts, which are separated by commas. A comma inside a name is written %2C. */
static int uri_parse_hosts(struct span text, struct uri *uri, struct error *error)
{
	const char *end = text.at + text.len;
	const char *at = text.at;
	int rc = 0;

	while (rc == 0 && at != NULL) {
		const char *comma = memchr(at, ',', (size_t)(end - at));
		struct span host = { at, (size_t)((comma != NULL ? comma : end) - at) };

		if (host.len == 0 ||
			(host.at[0] == ':' && memchr(host.at + 1, ':', host.len - 1) == NULL)) {
			return error_set(error, -EINVAL,
				"a host is missing before or after a comma; write "
				"HOST:PORT,HOST:PORT");
		}
		if (uri->host_count == URI_HOSTS_MAX) {
			return error_set(
				error, -EINVAL, "a URI can have at most %d hosts", URI_HOSTS_MAX);
		}
		rc = uri_parse_host(host, &uri->hosts[uri->host_count++], error);
		at = comma != NULL ? comma + 1 : NULL;
	}
	return rc;
}

static int parse_authority(struct span text, struct uri *uri, struct error *error)
{
	const char *at = memchr(text.at, '@', text.len);
	int rc;

	if (at != NULL) {
		struct span user = { text.at, (size_t)(at - text.at) };

		if (user.len > 0) {
			rc = decode(user, "user name", false, &uri->user, NULL, error);
			if (rc < 0) {
				return rc;
			}
		}
		text.len -= user.len + 1;
		text.at = at + 1;
	}
	if (uri->is_unix) {
		if (text.len > 0) {
			return error_set(error, -EINVAL,
				"a Unix socket has no host; write three slashes, as in "
				"%s:///NAME?socket=PATH",
				uri->scheme);
		}
		return 0;
	}
	if (memchr(text.at, ',', text.len) != NULL) {
		return uri_parse_hosts(text, uri, error);
	}
	uri->host_count = 1;
	rc = uri_parse_host(text, &uri->hosts[0], error);
	if (rc == 0 && uri->hosts[0].name[0] == '\0') {
		free(uri->hosts[0].name);
		uri->hosts[0].name = strdup("localhost");
		rc = uri->hosts[0].name != NULL ? 0 : error_oom_for(error, "the URI's host");
	}
	return rc;
}

const char *uri_connect_reason(int err)
{
	return err == -ENOBUFS ? "the backlog of the socket is full" : strerror(-err);
}

const char *uri_unix_advice(const char *socket_path, int err)
{
	bool is_path = socket_path[0] != '\0';
	struct stat status;

	switch (-err) {
	case EAGAIN:
	case ENOBUFS: /* returned by clan_connect() */
		/* The listener's queue is full. Unix sockets offer no way to wait for room. */
		return "the server does not accept connections fast enough";
	case ENOENT:
		return "check that the server is running and that this is the path of its socket";
	case ECONNREFUSED:
		if (is_path && stat(socket_path, &status) == 0 && !S_ISSOCK(status.st_mode)) {
			return "the path is not a socket; give the path of the server's socket";
		}
		return is_path ? "check that the server is running; the socket file may be left "
				 "over from an earlier server"
			       : "check that the server is running";
	case EACCES:
	case EPERM:
		return "connecting requires write permission on the socket file and access to its "
		       "folder";
	case EPIPE:
	case ECONNRESET:
		return "the server closed the connection immediately; it may have reached its "
		       "connection limit";
	case EPROTOTYPE:
		return "check the path: a server has different sockets for nbd+unix and gmb+unix";
	default:
		return NULL;
	}
}

const char *uri_tcp_advice(int err)
{
	switch (-err) {
	case ECONNREFUSED:
		return "check that the server is running and listens on this address and port";
	case EHOSTUNREACH:
	case ENETUNREACH:
		return "check the address, and that the host is up and reachable";
	case ETIMEDOUT:
		return "check that the host is up and that no firewall blocks the port";
	default:
		return NULL;
	}
}

int uri_next_parameter(const char **query, struct uri_parameter *parameter, struct error *error)
{
	struct span text;
	struct span name;
	struct span value;
	int rc;

	*parameter = (struct uri_parameter){ 0 };
	*query += strspn(*query, "&;");
	if (**query == '\0') {
		return 0;
	}
	text = span_until(*query, "&;");
	*query += text.len;
	name = span_until(text.at, "=&;");
	value = (struct span){ name.at + name.len, text.len - name.len };
	if (value.len > 0) {
		value.at++;
		value.len--;
	}
	rc = decode(name, "parameter name", false, &parameter->name, NULL, error);
	if (rc == 0) {
		bool is_socket = strcmp(parameter->name, "socket") == 0;

		rc = decode(value, is_socket ? "socket path" : parameter->name, is_socket,
			&parameter->value, &parameter->value_bytes, error);
	}
	if (rc < 0) {
		uri_parameter_fini(parameter);
		return rc;
	}
	return 1;
}

void uri_parameter_fini(struct uri_parameter *parameter)
{
	free(parameter->name);
	free(parameter->value);
	*parameter = (struct uri_parameter){ 0 };
}

/* Extracts the path of the socket, or of the folder of sockets. Ignores other parameters. */
static int uri_take_path(struct uri *uri, struct uri_parameter *parameter, struct error *error)
{
	bool is_folder = uri->is_unix && strcmp(parameter->name, "folder") == 0;

	if (!is_folder && strcmp(parameter->name, "socket") != 0) {
		return 0;
	}
	if (!uri->is_unix) {
		return error_set(error, -EINVAL,
			"the parameter 'socket' requires the scheme %s+unix", uri->scheme);
	}
	if (uri->socket_path != NULL) {
		return is_folder == uri->is_folder
			       ? error_set(error, -EINVAL, "the parameter '%s' is given twice",
					 parameter->name)
			       : error_set(error, -EINVAL,
					 "the URI has both 'socket' and 'folder'; remove one");
	}
	uri->is_folder = is_folder;
	uri->socket_path = parameter->value;
	uri->socket_path_bytes = parameter->value_bytes;
	parameter->value = NULL;
	return 0;
}

/* Extracts the socket path. Checks only the syntax of all other parameters. */
static int parse_query(const char *query, struct uri *uri, struct error *error)
{
	struct uri_parameter parameter;
	int rc;

	while ((rc = uri_next_parameter(&query, &parameter, error)) > 0) {
		rc = uri_take_path(uri, &parameter, error);
		uri_parameter_fini(&parameter);
		if (rc < 0) {
			return rc;
		}
	}
	if (rc == 0 && uri->is_unix && uri->socket_path_bytes == 0) {
		return error_set(error, -EINVAL, "the URI has no socket path; add ?socket=PATH");
	}
	return rc;
}

static int parse_parts(const char *cursor, struct uri *uri, struct error *error)
{
	struct span part;
	int rc;

	for (const char *c = cursor; *c != '\0'; c++) {
		if ((uint8_t)*c <= 0x20 || *c == 0x7f) {
			return error_set(error, -EINVAL,
				"the URI contains a space or control character; write %%%02X "
				"instead",
				(unsigned int)(uint8_t)*c);
		}
	}
	if (strchr(cursor, '#') != NULL) {
		return error_set(
			error, -EINVAL, "a URI cannot contain '#'; write %%23 in a name or path");
	}
	rc = parse_scheme(&cursor, uri, error);
	if (rc < 0) {
		return rc;
	}
	part = span_until(cursor, "/?");
	rc = parse_authority(part, uri, error);
	if (rc < 0) {
		return rc;
	}
	cursor += part.len;
	part = span_until(cursor, "?");
	cursor += part.len;
	if (part.len > 0) {
		part.at++; /* the first slash is the separator; later ones belong to the path */
		part.len--;
	}
	rc = decode(part, "path", false, &uri->path, &uri->path_bytes, error);
	if (rc < 0) {
		return rc;
	}
	uri->query = cursor + (*cursor == '?');
	return parse_query(uri->query, uri, error);
}

int uri_parse(const char *text, struct uri *uri, struct error *error)
{
	struct uri parsed = { 0 };
	int rc = parse_parts(text, &parsed, error);

	if (rc < 0) {
		uri_fini(&parsed);
		return rc;
	}
	*uri = parsed;
	return 0;
}

void uri_fini(struct uri *uri)
{
	free(uri->scheme);
	free(uri->user);
	for (uint32_t i = 0; i < uri->host_count; i++) {
		free(uri->hosts[i].name);
	}
	free(uri->socket_path);
	free(uri->path);
	*uri = (struct uri){ 0 };
}

/* --- formatting ------------------------------------------------------------------------------- */

void uri_put_text(struct uri_writer *w, const char *text, size_t len)
{
	if (len >= w->room) {
		w->full = true;
		return;
	}
	memcpy(w->out, text, len);
	w->out += len;
	w->room -= len;
}

static bool is_plain(uint8_t c, const char *also)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       (c != '\0' && (strchr("-._~", c) != NULL || strchr(also, c) != NULL));
}

void uri_put_encoded(struct uri_writer *w, const char *bytes, size_t len, const char *also)
{
	for (size_t i = 0; i < len; i++) {
		uint8_t c = (uint8_t)bytes[i];
		char code[4];

		if (is_plain(c, also)) {
			uri_put_text(w, &bytes[i], 1);
		} else {
			snprintf(code, sizeof(code), "%%%02X", c);
			uri_put_text(w, code, 3);
		}
	}
}

void uri_put_parameter(struct uri_writer *w, const char *name, const char *value, char *separator)
{
	if (value != NULL) {
		uri_put_text(w, separator, 1);
		uri_put_text(w, name, strlen(name));
		uri_put_text(w, "=", 1);
		uri_put_encoded(w, value, strlen(value), "/:@");
		*separator = '&';
	}
}

void uri_put_host_port(struct uri_writer *w, const char *host, uint16_t port)
{
	bool is_ipv6 = strchr(host, ':') != NULL;
	char text[8];

	uri_put_text(w, "[", is_ipv6 ? 1 : 0);
	uri_put_encoded(w, host, strlen(host), is_ipv6 ? ":" : "");
	uri_put_text(w, "]", is_ipv6 ? 1 : 0);
	uri_put_text(w, text, (size_t)snprintf(text, sizeof(text), ":%u", port));
}
