// SPDX-License-Identifier: Apache-2.0
#include "base/export_uri.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/text.h"
#include "base/uri.h"

enum { EXPORT_NAME_BYTES_MAX = 4096, SHOWN_BYTES = 160 };

static bool begins_with(const char *text, const char *start)
{
	return strncmp(text, start, strlen(start)) == 0;
}

static const struct {
	const char *name;
	const char *protocol;
	bool tls;
} schemes[] = {
	{ "nbd", "nbd", false },
	{ "nbds", "nbd", true },
	{ "nbd+unix", "nbd", false },
	{ "nbds+unix", "nbd", true },
	{ "gmb", "gmb", false },
	{ "gmb+unix", "gmb", false },
	{ "push", "push", false },
	{ "push+unix", "push", false },
	{ "vhost-user-blk+unix", EXPORT_URI_VHOST, false },
};

bool export_uri_has_scheme(const char *text)
{
	size_t bytes = strcspn(text, ":");
	bool has = false;

	for (size_t i = 0; i < ARRAY_COUNT(schemes); i++) {
		has |= strlen(schemes[i].name) == bytes &&
		       strncasecmp(text, schemes[i].name, bytes) == 0;
	}
	return has && text[bytes] == ':';
}

/* Returns whether the text can be repeated as a part of a URI. */
static bool is_suggestible(const char *text)
{
	return text[0] != '\0' && strlen(text) < SHOWN_BYTES &&
	       strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
			    "/.-_:[]") == strlen(text);
}

/* Rejects a scheme that is not followed by "://", such as nbd:host/name or QEMU's nbd:unix:path.
 * The message suggests the URI for it. */
static int no_slashes(const char *text, struct error *error)
{
	int bytes = (int)strcspn(text, ":");
	const char *rest = text + bytes + 1;
	bool has_unix = memchr(text, '+', (size_t)bytes) != NULL;
	bool is_unix = has_unix || begins_with(rest, "unix:");

	rest += begins_with(rest, "unix:") ? strlen("unix:") : is_unix ? 0 : strspn(rest, "/");
	if (!is_suggestible(rest)) {
		return error_set(error, -EINVAL,
			"'//' is missing after '%.*s:'; write nbd://HOST[:PORT]/EXPORT or "
			"nbd+unix:///EXPORT?socket=PATH",
			bytes, text);
	}
	return error_set(error, -EINVAL, "'//' is missing after '%.*s:'; write %.*s%s://%s%s",
		bytes, text, bytes, text, is_unix && !has_unix ? "+unix" : "",
		is_unix ? "/?socket=" : "", rest);
}

/* Rejects text without a scheme: a path, host:port or host/name. The message suggests the URI for
 * it. */
static int no_scheme(const char *text, struct error *error)
{
	bool is_unix = begins_with(text, "unix:");
	const char *name = text + (is_unix ? strlen("unix:") : 0);

	if (export_uri_has_scheme(text)) {
		return no_slashes(text, error);
	}
	if (!is_suggestible(name)) {
		return error_set(error, -EINVAL,
			"the URI has no scheme; write nbd://HOST[:PORT]/EXPORT or "
			"nbd+unix:///EXPORT?socket=PATH");
	}
	if (is_unix || name[0] == '/' || name[0] == '.') {
		return error_set(error, -EINVAL,
			"the URI has no scheme; for a Unix socket, write nbd+unix:///?socket=%s",
			name);
	}
	if (strspn(name, "0123456789") == strlen(name) && strtoul(name, NULL, 10) <= UINT16_MAX) {
		return error_set(error, -EINVAL,
			"the URI has no scheme; for a port, write nbd://127.0.0.1:%s, or the "
			"host's name or address in place of 127.0.0.1",
			name);
	}
	return error_set(error, -EINVAL,
		"the URI has no scheme; write nbd://%s for %s, or nbd+unix:///?socket=%s for a "
		"Unix socket",
		name, strchr(name, '/') != NULL ? "an export of a host" : "a host",
		strchr(name, '/') != NULL ? name : "PATH");
}

static int check_scheme(const char *scheme, struct export_uri *uri, struct error *error)
{
	for (size_t i = 0; i < ARRAY_COUNT(schemes); i++) {
		if (strcasecmp(scheme, schemes[i].name) == 0) {
			uri->protocol = schemes[i].protocol;
			uri->tls = schemes[i].tls;
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"unknown scheme '%s'; use nbd, nbds, nbd+unix, nbds+unix, gmb, gmb+unix, push, "
		"push+unix or vhost-user-blk+unix",
		quote(scheme));
}

static int check_export_name(const struct uri *parts, struct error *error)
{
	if (parts->path_bytes > EXPORT_NAME_BYTES_MAX) {
		return error_set(error, -EINVAL, "the export name has %u bytes, the limit is %d",
			parts->path_bytes, EXPORT_NAME_BYTES_MAX);
	}
	if (!utf8_valid(parts->path, parts->path_bytes)) {
		return error_set(error, -EINVAL, "the export name is not valid UTF-8");
	}
	return 0;
}

/* Moves ownership of *text to *field. */
static void export_uri_take(char **field, char **text)
{
	*field = *text;
	*text = NULL;
}

enum { VALUES_MAX = 3 };

/* Checks the value of a parameter. values: the permitted values, or NULLs if any value except the
 * empty one is permitted. */
static int check_value(const struct uri_parameter *parameter, const char *const values[VALUES_MAX],
	struct error *error)
{
	bool has_third = values[2] != NULL;

	if (values[0] == NULL) {
		return parameter->value[0] != '\0'
			       ? 0
			       : error_set(error, -EINVAL, "the parameter '%s' has no value",
					 parameter->name);
	}
	for (int i = 0; i < VALUES_MAX && values[i] != NULL; i++) {
		if (strcmp(parameter->value, values[i]) == 0) {
			return 0;
		}
	}
	return error_set(error, -EINVAL, "the parameter '%s' must be %s%s%s or %s", parameter->name,
		values[0], has_third ? ", " : "", has_third ? values[1] : "",
		has_third ? values[2] : values[1]);
}

/* Also matches TLS parameters of other programs: tls=on, tlsverify=1, ssl=require. */
static bool is_about_tls(const char *name)
{
	return strncasecmp(name, "tls", 3) == 0 || strncasecmp(name, "ssl", 3) == 0;
}

static int export_uri_take_parameter(
	struct export_uri *uri, struct uri_parameter *parameter, struct error *error)
{
	const struct {
		const char *name;
		char **field;
		const char *protocol; /* NULL: any protocol, but only on Unix sockets */
		bool of_network;      /* true: not permitted for a Unix socket */
		const char *values[VALUES_MAX];
	} known[] = {
		{ "tls-certificates", &uri->tls_certificates, "nbd", false, { NULL } },
		{ "tls-psk-file", &uri->tls_psk_file, "nbd", false, { NULL } },
		{ "tls-type", &uri->tls_type, "nbd", false, { "psk", "x509" } },
		{ "tls-hostname", &uri->tls_hostname, "nbd", false, { NULL } },
		{ "tls-verify-peer", &uri->tls_verify_peer, "nbd", false, { "0", "1" } },
		{ "provider", &uri->provider, "gmb", true, { "tcp", "verbs", "ofi-tcp" } },
		{ "insecure-network", &uri->insecure_network, "gmb", true, { "yes", "no" } },
		{ "provider", &uri->provider, "push", true, { "tcp", "verbs", "ofi-tcp" } },
		{ "insecure-network", &uri->insecure_network, "push", true, { "yes", "no" } },
		{ "queues", &uri->queues, EXPORT_URI_VHOST, false, { NULL } },
		{ "socket-mode", &uri->socket_mode, NULL, false, { NULL } },
		{ "socket-group", &uri->socket_group, NULL, false, { NULL } },
	};
	int rc;

	if (strcmp(parameter->name, uri->is_folder ? "folder" : "socket") == 0) {
		return 0;
	}
	if (is_about_tls(parameter->name) && !uri->tls) {
		/* If this parameter were ignored, the user might believe that TLS is in use. */
		return error_set(error, -EINVAL,
			"the parameter '%.40s' is for TLS, which only nbds and nbds+unix support",
			parameter->name);
	}
	for (size_t i = 0; i < ARRAY_COUNT(known); i++) {
		bool is_of_kind = known[i].protocol == NULL
					  ? uri->is_unix
					  : strcmp(uri->protocol, known[i].protocol) == 0;

		if (strcmp(parameter->name, known[i].name) != 0 || !is_of_kind ||
			(known[i].of_network && uri->is_unix)) {
			continue;
		}
		if (*known[i].field != NULL) {
			return error_set(error, -EINVAL, "the parameter '%s' is given twice",
				parameter->name);
		}
		rc = check_value(parameter, known[i].values, error);
		if (rc == 0) {
			export_uri_take(known[i].field, &parameter->value);
		}
		return rc;
	}
	if (is_about_tls(parameter->name)) {
		/* A misspelled TLS parameter must not be ignored. */
		return error_set(error, -EINVAL,
			"unknown parameter '%.40s'; use tls-type, tls-certificates, tls-psk-file, "
			"tls-hostname or tls-verify-peer",
			parameter->name);
	}
	if (uri->unknown_parameter == NULL) {
		export_uri_take(&uri->unknown_parameter, &parameter->name);
	}
	return 0;
}

static void export_uri_take_hosts(struct export_uri *uri, struct uri *parts)
{
	uint16_t port = strcmp(uri->protocol, "gmb") == 0    ? GMB_PORT_DEFAULT
			: strcmp(uri->protocol, "push") == 0 ? PUSH_PORT_DEFAULT
							     : NBD_PORT_DEFAULT;

	uri->port = port;
	for (uint32_t i = 0; i < parts->host_count; i++) {
		struct uri_host *host = &parts->hosts[i];

		if (!host->has_port) {
			host->port = port;
		}
		if (i == 0) {
			export_uri_take(&uri->host, &host->name);
			uri->port = host->port;
		} else {
			uri->others[uri->other_count].port = host->port;
			uri->others[uri->other_count].has_port = true;
			export_uri_take(&uri->others[uri->other_count++].name, &host->name);
		}
	}
}

static int export_uri_take_parts(struct export_uri *uri, struct uri *parts, struct error *error)
{
	struct uri_parameter parameter;
	int rc = check_scheme(parts->scheme, uri, error);

	uri->is_unix = parts->is_unix;
	uri->is_folder = parts->is_folder;
	rc = rc ?: check_export_name(parts, error);
	if (rc == 0 && uri->is_folder && !export_uri_has_one_export(uri)) {
		return error_set(error, -EINVAL,
			"the parameter 'folder' is only for vhost-user-blk+unix; write "
			"?socket=PATH");
	}
	while (rc == 0 && (rc = uri_next_parameter(&parts->query, &parameter, error)) > 0) {
		rc = export_uri_take_parameter(uri, &parameter, error);
		uri_parameter_fini(&parameter);
	}
	if (rc < 0) {
		return rc;
	}
	export_uri_take_hosts(uri, parts);
	uri->socket_path_bytes = parts->socket_path_bytes;
	export_uri_take(&uri->user, &parts->user);
	export_uri_take(&uri->socket_path, &parts->socket_path);
	export_uri_take(&uri->export_name, &parts->path);
	return 0;
}

/* Returns whether the authority begins with "USER:PASSWORD@". An encoded colon is part of the user
 * name. */
static bool has_password(const char *text)
{
	const char *user = strstr(text, "://");
	const char *end = NULL;

	for (const char *at = user; at != NULL && at[0] != '\0'; at++) {
		if (at >= user + 3 && strchr("/?#", at[0]) != NULL) {
			break;
		}
		end = at[0] == '@' ? at : end;
	}
	return end != NULL && memchr(user + 3, ':', (size_t)(end - user - 3)) != NULL;
}

int export_uri_parse(const char *text, struct export_uri *uri, struct error *error)
{
	struct export_uri parsed = { 0 };
	struct uri parts = { 0 };
	int rc;

	if (has_password(text)) {
		return error_set(error, -EINVAL,
			"invalid URI: it contains a password, which any user could read in the "
			"process list; put a pre-shared key into a file and pass "
			"tls-psk-file=FILE");
	}
	rc = strstr(text, "://") == NULL ? no_scheme(text, error) : uri_parse(text, &parts, error);
	rc = rc ?: export_uri_take_parts(&parsed, &parts, error);
	uri_fini(&parts);
	if (rc < 0) {
		export_uri_fini(&parsed);
		error_prefix(error, "invalid URI '%s'", quote(text));
		return rc;
	}
	*uri = parsed;
	return 0;
}

void export_uri_fini(struct export_uri *uri)
{
	free(uri->host);
	for (uint32_t i = 0; i < uri->other_count; i++) {
		free(uri->others[i].name);
	}
	free(uri->socket_path);
	free(uri->export_name);
	free(uri->user);
	free(uri->tls_certificates);
	free(uri->tls_psk_file);
	free(uri->tls_type);
	free(uri->tls_hostname);
	free(uri->tls_verify_peer);
	free(uri->provider);
	free(uri->queues);
	free(uri->insecure_network);
	free(uri->socket_mode);
	free(uri->socket_group);
	free(uri->unknown_parameter);
	*uri = (struct export_uri){ 0 };
}

struct export_uri export_uri_at(const struct export_uri *uri, uint32_t host)
{
	struct export_uri one = *uri;

	GMB_ASSERT(host < export_uri_hosts(uri));
	one.other_count = 0;
	if (host > 0) {
		one.host = uri->others[host - 1].name;
		one.port = uri->others[host - 1].port;
	}
	return one;
}

int export_uri_check_one(const struct export_uri *uri, const char *what, struct error *error)
{
	return uri->other_count == 0
		       ? 0
		       : error_set(error, -EINVAL,
				 "%s has one host, but the URI names %u, separated by commas", what,
				 export_uri_hosts(uri));
}

int export_uri_format(const struct export_uri *uri, const char *export_name,
	uint32_t export_name_bytes, char *out, size_t out_bytes)
{
	struct uri_writer w = { .out = out, .room = out_bytes };
	char separator = '?';

	GMB_ASSERT(out_bytes > 0);
	uri_put_text(&w, uri->protocol, strlen(uri->protocol));
	uri_put_text(&w, "s", uri->tls ? 1 : 0);
	uri_put_text(&w, uri->is_unix ? "+unix://" : "://", uri->is_unix ? 8 : 3);
	if (uri->user != NULL) {
		uri_put_encoded(&w, uri->user, strlen(uri->user), "");
		uri_put_text(&w, "@", 1);
	}
	if (!uri->is_unix) {
		uri_put_host_port(&w, uri->host, uri->port);
	}
	for (uint32_t i = 0; i < uri->other_count; i++) {
		uri_put_text(&w, ",", 1);
		uri_put_host_port(&w, uri->others[i].name, uri->others[i].port);
	}
	if (uri->is_unix || export_name_bytes > 0) {
		uri_put_text(&w, "/", 1);
		uri_put_encoded(&w, export_name, export_name_bytes, "/:@");
	}
	if (uri->is_unix) {
		uri_put_text(&w, uri->is_folder ? "?folder=" : "?socket=", 8);
		uri_put_encoded(&w, uri->socket_path, uri->socket_path_bytes, "/:@");
		separator = '&';
	}
	uri_put_parameter(&w, "tls-certificates", uri->tls_certificates, &separator);
	uri_put_parameter(&w, "tls-psk-file", uri->tls_psk_file, &separator);
	uri_put_parameter(&w, "tls-type", uri->tls_type, &separator);
	uri_put_parameter(&w, "tls-hostname", uri->tls_hostname, &separator);
	uri_put_parameter(&w, "tls-verify-peer", uri->tls_verify_peer, &separator);
	uri_put_parameter(&w, "provider", uri->provider, &separator);
	uri_put_parameter(&w, "queues", uri->queues, &separator);
	*w.out = '\0';
	return w.full ? -ENOSPC : 0;
}

uint32_t export_uri_count_hosts(const char *text)
{
	struct export_uri uri;
	uint32_t count = 0;

	if (export_uri_parse(text, &uri, NULL) == 0) {
		count = export_uri_hosts(&uri);
		export_uri_fini(&uri);
	}
	return count;
}

static bool disk_is_known(const struct export_uri_disk *disk)
{
	static const uint8_t unknown[EXPORT_URI_DISK_BYTES];

	return memcmp(disk->id, unknown, sizeof(unknown)) != 0;
}

int export_uri_check_disk(const struct export_uri_disk *home, const struct export_uri_disk *other,
	const char *name, struct error *error)
{
	if (!disk_is_known(home) || !disk_is_known(other)) {
		return error_set(error, -ESTALE,
			"cannot continue here: %s does not report the identity of its disk, so it "
			"is not known whether %s and %s have the same disk",
			disk_is_known(home) ? other->label : home->label, home->label,
			other->label);
	}
	if (memcmp(home->id, other->id, EXPORT_URI_DISK_BYTES) != 0) {
		return error_set(error, -ESTALE,
			"cannot continue here: %s and %s have different disks under the name "
			"\"%s\"; correct the hosts in the URI, or the export of one of the servers",
			home->label, other->label, quote(name));
	}
	return 0;
}

const char *export_uri_label(char out[EXPORT_URI_LABEL_BYTES], const struct export_uri *uri)
{
	char quoted[EXPORT_URI_LABEL_BYTES - 16];

	if (uri->is_unix) {
		log_escape(quoted, sizeof(quoted), uri->socket_path, uri->socket_path_bytes);
		snprintf(out, EXPORT_URI_LABEL_BYTES, "%s", quoted);
	} else {
		log_escape(quoted, sizeof(quoted), uri->host, strlen(uri->host));
		snprintf(out, EXPORT_URI_LABEL_BYTES,
			strchr(uri->host, ':') != NULL ? "[%s]:%u" : "%s:%u", quoted, uri->port);
	}
	return out;
}

const char *export_uri_silent(
	char out[EXPORT_URI_SILENT_BYTES], const char *label, uint64_t limit_ms)
{
	double limit_s = (double)((limit_ms + 50) / 100) / 10; /* rounded */

	snprintf(out, EXPORT_URI_SILENT_BYTES,
		"%s: no response for %d s; waiting for up to %g s in total", label,
		EXPORT_URI_SILENT_MS / 1000, limit_s);
	return out;
}

int export_uri_check_client(const struct export_uri *uri, struct error *error)
{
	if (uri->is_folder) {
		return error_set(error, -EINVAL,
			"the parameter 'folder' is only for servers; write ?socket=FOLDER/EXPORT");
	}
	return strcmp(uri->protocol, "push") != 0
		       ? 0
		       : error_set(error, -EPROTONOSUPPORT,
				 "push addresses are only for gmblock push; use the server's nbd "
				 "or gmb address");
}

/* clan writes abstract names with a leading '@'; a path that begins with '@' gets "./" in front. */
char *export_uri_clan_address(const struct export_uri *uri)
{
	char *address = NULL;
	int bytes;

	if (!uri->is_unix) {
		const char *provider = uri->provider != NULL ? uri->provider : "tcp";
		bool is_tcp = strcmp(provider, "tcp") == 0;
		bool is_ipv6 = strchr(uri->host, ':') != NULL;

		bytes = asprintf(&address, "%s:%s%s%s:%u%s", is_tcp ? "tcp" : "ofi",
			is_ipv6 ? "[" : "", uri->host, is_ipv6 ? "]" : "", uri->port,
			is_tcp				   ? ""
			: strcmp(provider, "ofi-tcp") == 0 ? "?provider=tcp"
							   : "?provider=verbs");
	} else if (uri->socket_path[0] == '\0') {
		bytes = asprintf(&address, "shm:@%.*s", (int)uri->socket_path_bytes - 1,
			uri->socket_path + 1);
	} else {
		bytes = asprintf(&address, "shm:%s%s", uri->socket_path[0] == '@' ? "./" : "",
			uri->socket_path);
	}
	return bytes < 0 ? NULL : address;
}

uint16_t export_uri_clan_port(const char *address)
{
	const char *port = memrchr(address, ':', strcspn(address, "?"));

	return port != NULL ? (uint16_t)strtoul(port + 1, NULL, 10) : 0;
}
