// SPDX-License-Identifier: Apache-2.0
#include "nbd/uri.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/text.h"

enum { EXPORT_NAME_BYTES_MAX = 4096, SHOWN_BYTES = 160 };

/* A piece of the text being parsed. */
struct span {
	const char *at;
	size_t len;
};

static struct span span_until(const char *from, const char *stops)
{
	return (struct span){ from, strcspn(from, stops) };
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9') {
		return c - '0';
	}
	if (c >= 'a' && c <= 'f') {
		return c - 'a' + 10;
	}
	if (c >= 'A' && c <= 'F') {
		return c - 'A' + 10;
	}
	return -1;
}

/*
 * Percent-decodes in into a new terminated string. zero_at_start permits one zero byte and those
 * after it when the very first decoded byte is zero (abstract socket names); else zero is an error.
 */
static int decode(struct span in, const char *what, bool zero_at_start, char **out,
	uint32_t *out_bytes, struct error *error)
{
	char *text = malloc(in.len + 1);
	uint32_t n = 0;

	if (text == NULL) {
		return error_set(error, -ENOMEM, "no memory for the URI's %s", what);
	}
	for (size_t i = 0; i < in.len; i++) {
		int high;
		int low;

		if (in.at[i] != '%') {
			text[n++] = in.at[i];
			continue;
		}
		high = i + 1 < in.len ? hex_digit(in.at[i + 1]) : -1;
		low = i + 2 < in.len ? hex_digit(in.at[i + 2]) : -1;
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
				zero_at_start ? ", which only an abstract socket may have, "
						"as its first byte"
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

static bool begins_with(const char *text, const char *start)
{
	return strncmp(text, start, strlen(start)) == 0;
}

/* A path, or host:port, or QEMU's old way (nbd:host:port, nbd:unix:path): shown as a URI. */
static int no_scheme(const char *text, struct error *error)
{
	const char *name = text;
	bool is_plain;
	bool is_path;

	name += begins_with(name, "nbd:") ? strlen("nbd:") : 0;
	is_path = begins_with(name, "unix:") || strchr(name, '/') != NULL;
	name += begins_with(name, "unix:") ? strlen("unix:") : 0;
	is_plain = name[0] != '\0' && strlen(name) < SHOWN_BYTES &&
		   strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				"/.-_:[]") == strlen(name);
	if (is_plain && is_path) {
		return error_set(error, -EINVAL,
			"it has no scheme; a Unix socket is written nbd+unix:///?socket=%s", name);
	}
	if (is_plain && strspn(name, "0123456789") == strlen(name) &&
		strtoul(name, NULL, 10) <= UINT16_MAX) {
		return error_set(error, -EINVAL,
			"it has no scheme; a port is written nbd://127.0.0.1:%s, and with the name "
			"or address of another host for that one",
			name);
	}
	if (is_plain) {
		return error_set(error, -EINVAL,
			"it has no scheme; a host is written nbd://%s, and a Unix socket "
			"nbd+unix:///?socket=PATH",
			name);
	}
	return error_set(error, -EINVAL,
		"it has no scheme; write nbd://HOST[:PORT]/EXPORT or "
		"nbd+unix:///EXPORT?socket=PATH");
}

static int parse_scheme(const char **cursor, struct nbd_uri *uri, struct error *error)
{
	static const struct {
		const char *name;
		bool tls;
		bool is_unix;
	} schemes[] = {
		{ "nbd", false, false },
		{ "nbds", true, false },
		{ "nbd+unix", false, true },
		{ "nbds+unix", true, true },
	};
	const char *end = strstr(*cursor, "://");
	char shown[SHOWN_BYTES];

	if (end == NULL) {
		return no_scheme(*cursor, error);
	}
	for (size_t i = 0; i < ARRAY_COUNT(schemes); i++) {
		size_t len = strlen(schemes[i].name);

		if ((size_t)(end - *cursor) == len &&
			strncasecmp(*cursor, schemes[i].name, len) == 0) {
			uri->tls = schemes[i].tls;
			uri->is_unix = schemes[i].is_unix;
			*cursor = end + 3;
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"the scheme '%s' is not known; it can be nbd, nbds, nbd+unix or nbds+unix",
		log_escape(shown, sizeof(shown), *cursor, (size_t)(end - *cursor)));
}

static int parse_port(struct span text, uint16_t *port, struct error *error)
{
	char shown[SHOWN_BYTES];
	uint32_t value = 0;

	for (size_t i = 0; i < text.len; i++) {
		if (text.at[i] < '0' || text.at[i] > '9') {
			return error_set(error, -EINVAL, "the port '%s' is not a number",
				log_escape(shown, sizeof(shown), text.at, text.len));
		}
		value = value * 10 + (uint32_t)(text.at[i] - '0');
		if (value > UINT16_MAX) {
			return error_set(error, -EINVAL, "the port '%s' is larger than 65535",
				log_escape(shown, sizeof(shown), text.at, text.len));
		}
	}
	/* "host:" is legal and means the default. */
	*port = text.len == 0 ? NBD_PORT_DEFAULT : (uint16_t)value;
	return 0;
}

/* Splits host and port; the host comes without brackets. */
static int parse_host_port(struct span text, struct span *host, uint16_t *port, struct error *error)
{
	const char *end = text.at + text.len;
	const char *after;

	if (text.len > 0 && text.at[0] == '[') {
		const char *close = memchr(text.at, ']', text.len);

		if (close == NULL) {
			return error_set(error, -EINVAL, "the IPv6 address has no closing ']'");
		}
		*host = (struct span){ text.at + 1, (size_t)(close - text.at - 1) };
		if (host->len == 0 || memchr(host->at, ':', host->len) == NULL) {
			return error_set(error, -EINVAL,
				"only an IPv6 address may stand in brackets, such as [::1]");
		}
		after = close + 1;
		if (after < end && *after != ':') {
			return error_set(
				error, -EINVAL, "only :PORT may follow the ']' of an IPv6 address");
		}
	} else {
		after = memchr(text.at, ':', text.len);
		if (after != NULL && memchr(after + 1, ':', (size_t)(end - after - 1)) != NULL) {
			return error_set(error, -EINVAL,
				"an IPv6 address must stand in brackets, such as [::1]");
		}
		after = after != NULL ? after : end;
		*host = (struct span){ text.at, (size_t)(after - text.at) };
	}
	*port = NBD_PORT_DEFAULT;
	if (after < end) {
		return parse_port(
			(struct span){ after + 1, (size_t)(end - after - 1) }, port, error);
	}
	return 0;
}

static int parse_authority(struct span text, struct nbd_uri *uri, struct error *error)
{
	const char *at = memchr(text.at, '@', text.len);
	struct span host;
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
				"a Unix socket has no host: write three slashes, as in "
				"nbd+unix:///EXPORT?socket=PATH");
		}
		return 0;
	}
	rc = parse_host_port(text, &host, &uri->port, error);
	if (rc < 0) {
		return rc;
	}
	if (host.len == 0) {
		host = (struct span){ "localhost", 9 };
	}
	return decode(host, "host", false, &uri->host, NULL, error);
}

static int parse_export(struct span text, struct nbd_uri *uri, struct error *error)
{
	uint32_t bytes;
	int rc;

	if (text.len > 0) {
		text.at++; /* the first slash is the separator, all others belong to the name */
		text.len--;
	}
	rc = decode(text, "export name", false, &uri->export_name, &bytes, error);
	if (rc < 0) {
		return rc;
	}
	if (bytes > EXPORT_NAME_BYTES_MAX) {
		return error_set(error, -EINVAL, "the export name is %u bytes long, %d are allowed",
			bytes, EXPORT_NAME_BYTES_MAX);
	}
	if (!utf8_valid(uri->export_name, bytes)) {
		return error_set(error, -EINVAL, "the export name is not valid UTF-8");
	}
	return 0;
}

static int set_parameter(char **field, struct span value, const char *name, struct error *error)
{
	if (*field != NULL) {
		return error_set(error, -EINVAL, "the parameter '%s' is given twice", name);
	}
	return decode(value, name, false, field, NULL, error);
}

static int parse_socket(struct span value, struct nbd_uri *uri, struct error *error)
{
	if (!uri->is_unix) {
		return error_set(error, -EINVAL,
			"socket= goes with the schemes nbd+unix and nbds+unix only");
	}
	if (uri->socket_path != NULL) {
		return error_set(error, -EINVAL, "the parameter 'socket' is given twice");
	}
	return decode(
		value, "socket path", true, &uri->socket_path, &uri->socket_path_bytes, error);
}

static int parse_parameter(struct span text, struct nbd_uri *uri, struct error *error)
{
	const char *equals = memchr(text.at, '=', text.len);
	size_t name_len = equals != NULL ? (size_t)(equals - text.at) : text.len;
	struct span value = { text.at + name_len, text.len - name_len };
	char *name;
	int rc;

	if (equals != NULL) {
		value.at++;
		value.len--;
	}
	rc = decode(
		(struct span){ text.at, name_len }, "parameter name", false, &name, NULL, error);
	if (rc < 0) {
		return rc;
	}
	if (strcmp(name, "socket") == 0) {
		rc = parse_socket(value, uri, error);
	} else if (strcmp(name, "tls-type") == 0) {
		rc = set_parameter(&uri->tls_type, value, name, error);
	} else if (strcmp(name, "tls-hostname") == 0) {
		rc = set_parameter(&uri->tls_hostname, value, name, error);
	} else if (strcmp(name, "tls-verify-peer") == 0) {
		rc = set_parameter(&uri->tls_verify_peer, value, name, error);
	} else if (uri->unknown_parameter == NULL) {
		uri->unknown_parameter = name;
		return 0;
	}
	free(name);
	return rc;
}

static int parse_query(const char *cursor, struct nbd_uri *uri, struct error *error)
{
	while (*cursor != '\0') {
		struct span parameter = span_until(cursor, "&;");
		int rc = 0;

		if (parameter.len > 0) {
			rc = parse_parameter(parameter, uri, error);
		}
		if (rc < 0) {
			return rc;
		}
		cursor += parameter.len;
		cursor += *cursor != '\0';
	}
	return 0;
}

static int parse_parts(const char *cursor, struct nbd_uri *uri, struct error *error)
{
	struct span part;
	int rc;

	for (const char *c = cursor; *c != '\0'; c++) {
		if ((uint8_t)*c <= 0x20 || *c == 0x7f) {
			return error_set(error, -EINVAL,
				"it contains a space or control character; write it as %%%02X",
				(unsigned int)(uint8_t)*c);
		}
	}
	if (strchr(cursor, '#') != NULL) {
		return error_set(error, -EINVAL,
			"'#' has no meaning here; in a name or path it is written %%23");
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
	rc = parse_export(part, uri, error);
	if (rc < 0) {
		return rc;
	}
	cursor += part.len;
	if (*cursor == '?') {
		rc = parse_query(cursor + 1, uri, error);
	}
	if (rc == 0 && uri->is_unix && uri->socket_path_bytes == 0) {
		return error_set(
			error, -EINVAL, "it does not name the Unix socket; add ?socket=PATH");
	}
	return rc;
}

int nbd_uri_parse(const char *text, struct nbd_uri *uri, struct error *error)
{
	struct nbd_uri parsed = { 0 };
	char shown[SHOWN_BYTES];
	int rc = parse_parts(text, &parsed, error);

	if (rc < 0) {
		nbd_uri_fini(&parsed);
		error_prefix(error, "the URI '%s' cannot be used",
			log_escape(shown, sizeof(shown), text, strlen(text)));
		return rc;
	}
	*uri = parsed;
	return 0;
}

void nbd_uri_fini(struct nbd_uri *uri)
{
	free(uri->host);
	free(uri->socket_path);
	free(uri->export_name);
	free(uri->user);
	free(uri->tls_type);
	free(uri->tls_hostname);
	free(uri->tls_verify_peer);
	free(uri->unknown_parameter);
	*uri = (struct nbd_uri){ 0 };
}

/* Bounded output; overflow is remembered, not written. */
struct writer {
	char *out;
	size_t room; /* bytes left, terminator included */
	bool full;
};

static void put_text(struct writer *w, const char *text, size_t len)
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

/* Percent-encodes everything but unreserved characters and those in also. */
static void put_encoded(struct writer *w, const char *bytes, size_t len, const char *also)
{
	for (size_t i = 0; i < len; i++) {
		uint8_t c = (uint8_t)bytes[i];
		char code[4];

		if (is_plain(c, also)) {
			put_text(w, &bytes[i], 1);
		} else {
			snprintf(code, sizeof(code), "%%%02X", c);
			put_text(w, code, 3);
		}
	}
}

static void put_parameter(struct writer *w, const char *name, const char *value, char *separator)
{
	if (value != NULL) {
		put_text(w, separator, 1);
		put_text(w, name, strlen(name));
		put_text(w, "=", 1);
		put_encoded(w, value, strlen(value), "/:@");
		*separator = '&';
	}
}

static void put_host_port(struct writer *w, const struct nbd_uri *uri)
{
	bool is_ipv6 = strchr(uri->host, ':') != NULL;
	char port[8];

	put_text(w, "[", is_ipv6 ? 1 : 0);
	put_encoded(w, uri->host, strlen(uri->host), is_ipv6 ? ":" : "");
	put_text(w, "]", is_ipv6 ? 1 : 0);
	put_text(w, port, (size_t)snprintf(port, sizeof(port), ":%u", uri->port));
}

int nbd_uri_format(const struct nbd_uri *uri, const char *export_name, uint32_t export_name_bytes,
	char *out, size_t out_bytes)
{
	struct writer w = { .out = out, .room = out_bytes };
	char separator = '?';

	GMB_ASSERT(out_bytes > 0);
	put_text(&w, uri->tls ? "nbds" : "nbd", uri->tls ? 4 : 3);
	put_text(&w, uri->is_unix ? "+unix://" : "://", uri->is_unix ? 8 : 3);
	if (uri->user != NULL) {
		put_encoded(&w, uri->user, strlen(uri->user), "");
		put_text(&w, "@", 1);
	}
	if (!uri->is_unix) {
		put_host_port(&w, uri);
	}
	if (uri->is_unix || export_name_bytes > 0) {
		put_text(&w, "/", 1);
		put_encoded(&w, export_name, export_name_bytes, "/:@");
	}
	if (uri->is_unix) {
		put_text(&w, "?socket=", 8);
		put_encoded(&w, uri->socket_path, uri->socket_path_bytes, "/:@");
		separator = '&';
	}
	put_parameter(&w, "tls-type", uri->tls_type, &separator);
	put_parameter(&w, "tls-hostname", uri->tls_hostname, &separator);
	put_parameter(&w, "tls-verify-peer", uri->tls_verify_peer, &separator);
	*w.out = '\0';
	return w.full ? -ENOSPC : 0;
}

const char *nbd_uri_label(char out[NBD_URI_LABEL_BYTES], const struct nbd_uri *uri)
{
	char quoted[NBD_URI_LABEL_BYTES - 16];

	if (uri->is_unix) {
		log_escape(quoted, sizeof(quoted), uri->socket_path, uri->socket_path_bytes);
		snprintf(out, NBD_URI_LABEL_BYTES, "%s", quoted);
	} else {
		log_escape(quoted, sizeof(quoted), uri->host, strlen(uri->host));
		snprintf(out, NBD_URI_LABEL_BYTES,
			strchr(uri->host, ':') != NULL ? "[%s]:%u" : "%s:%u", quoted, uri->port);
	}
	return out;
}
