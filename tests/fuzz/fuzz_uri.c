// SPDX-License-Identifier: Apache-2.0
/* NBD URIs: what was read can be written, and reading that gives the same. */
#include "base/export_uri.h"
#include "fuzz.h"

enum { URI_BYTES_MAX = 16384 };

static bool same(const char *a, const char *b)
{
	return (a == NULL) == (b == NULL) && (a == NULL || strcmp(a, b) == 0);
}

static void check_round_trip(const struct export_uri *uri)
{
	static char text[URI_BYTES_MAX];
	struct export_uri again;
	struct error error;

	if (export_uri_format(uri, uri->export_name, (uint32_t)strlen(uri->export_name), text,
		    sizeof(text)) < 0) {
		return; /* longer than the buffer */
	}
	GMB_ASSERT(export_uri_parse(text, &again, &error) == 0);
	GMB_ASSERT(again.tls == uri->tls);
	GMB_ASSERT(again.is_unix == uri->is_unix);
	GMB_ASSERT(again.port == uri->port);
	GMB_ASSERT(same(again.host, uri->host));
	GMB_ASSERT(again.other_count == uri->other_count);
	for (uint32_t i = 0; i < uri->other_count; i++) {
		GMB_ASSERT(uri->others[i].name[0] != '\0');
		GMB_ASSERT(same(again.others[i].name, uri->others[i].name));
		GMB_ASSERT(again.others[i].port == uri->others[i].port);
	}
	GMB_ASSERT(same(again.export_name, uri->export_name));
	GMB_ASSERT(same(again.user, uri->user));
	GMB_ASSERT(same(again.tls_certificates, uri->tls_certificates));
	GMB_ASSERT(same(again.tls_psk_file, uri->tls_psk_file));
	GMB_ASSERT(same(again.tls_type, uri->tls_type));
	GMB_ASSERT(same(again.tls_hostname, uri->tls_hostname));
	GMB_ASSERT(same(again.tls_verify_peer, uri->tls_verify_peer));
	GMB_ASSERT(again.socket_path_bytes == uri->socket_path_bytes);
	GMB_ASSERT(!uri->is_unix ||
		   memcmp(again.socket_path, uri->socket_path, uri->socket_path_bytes) == 0);
	export_uri_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	struct export_uri uri;
	struct error error = { 0 };
	int code = export_uri_parse(text, &uri, &error);

	if (code == 0) {
		GMB_ASSERT(uri.export_name != NULL);
		GMB_ASSERT(uri.is_unix ? uri.socket_path_bytes > 0 : uri.host[0] != '\0');
		check_round_trip(&uri);
		export_uri_fini(&uri);
	} else {
		GMB_ASSERT(code < 0 && error.code == code && error.text[0] != '\0');
	}
	free(text);
	return 0;
}
