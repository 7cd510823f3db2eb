// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/export_uri.h"
#include "base/uri.h"
#include "unit.h"

static struct export_uri parse(const char *text)
{
	struct export_uri uri;
	struct error error = { 0 };

	if (export_uri_parse(text, &uri, &error) != 0) {
		fail_msg("%s was refused: %s", text, error.text);
	}
	return uri;
}

static void refused(const char *text, const char *reason)
{
	struct export_uri uri;
	struct error error = { 0 };

	if (export_uri_parse(text, &uri, &error) != -EINVAL) {
		fail_msg("%s was not refused with EINVAL", text);
	}
	assert_int_equal(error.code, -EINVAL);
	if (strstr(error.text, reason) == NULL) {
		fail_msg("%s: the message '%s' does not say '%s'", text, error.text, reason);
	}
}

static void check_tcp(const char *text, const char *host, uint16_t port, const char *export_name)
{
	struct export_uri uri = parse(text);

	assert_false(uri.is_unix);
	assert_string_equal(uri.host, host);
	assert_int_equal(uri.port, port);
	assert_string_equal(uri.export_name, export_name);
	assert_null(uri.socket_path);
	export_uri_fini(&uri);
}

TEST(tcp_addresses)
{
	check_tcp("nbd://example.com", "example.com", 10809, "");
	check_tcp("nbd://example.com/", "example.com", 10809, "");
	check_tcp("nbd://example.com:", "example.com", 10809, "");
	check_tcp("NBD://example.com:1/a", "example.com", 1, "a");
	check_tcp("nbd://127.0.0.1:65535/a/b", "127.0.0.1", 65535, "a/b");
	check_tcp("nbd://127.0.0.1:0", "127.0.0.1", 0, "");
	check_tcp("nbd://[::1]", "::1", 10809, "");
	check_tcp("nbd://[::1]:99/x", "::1", 99, "x");
	check_tcp("nbd://[fe80::1%25lo]:99", "fe80::1%lo", 99, "");
	check_tcp("nbd:///x", "localhost", 10809, "x");
	check_tcp("nbd://:7/x", "localhost", 7, "x");
	check_tcp("nbd://host?", "host", 10809, "");
	check_tcp("nbd://host//etc", "host", 10809, "/etc");
}

TEST(export_names_are_decoded)
{
	check_tcp("nbd://h/a%20b%25c%3F%23", "h", 10809, "a b%c?#");
	check_tcp("nbd://h/%C3%A9t%c3%a9", "h", 10809, "\xc3\xa9t\xc3\xa9");
	check_tcp("nbd://h/a+b", "h", 10809, "a+b");
	refused("nbd://h/%zz", "two hexadecimal digits");
	refused("nbd://h/%4", "two hexadecimal digits");
	refused("nbd://h/a%", "two hexadecimal digits");
	refused("nbd://h/a%00b", "zero byte");
	refused("nbd://h/%ff", "UTF-8");
	refused("nbd://h/%C0%80", "UTF-8");
	refused("nbd://h/%ED%A0%80", "UTF-8");
	refused("nbd://h/a b", "%20");
	refused("nbd://h/a#b", "%23");
}

TEST(export_name_length_is_limited)
{
	char text[4096 + 16];
	struct export_uri uri;
	int head = snprintf(text, sizeof(text), "nbd://h/");

	memset(text + head, 'x', 4096);
	text[head + 4096] = '\0';
	uri = parse(text);
	assert_int_equal(strlen(uri.export_name), 4096);
	export_uri_fini(&uri);
	text[head + 4096] = 'x';
	text[head + 4097] = '\0';
	refused(text, "4097 bytes");
}

TEST(unix_sockets)
{
	struct export_uri uri = parse("nbd+unix:///disk?socket=/run/a%20b.sock");

	assert_true(uri.is_unix);
	assert_false(uri.tls);
	assert_null(uri.host);
	assert_string_equal(uri.socket_path, "/run/a b.sock");
	assert_int_equal(uri.socket_path_bytes, strlen("/run/a b.sock"));
	assert_string_equal(uri.export_name, "disk");
	export_uri_fini(&uri);

	uri = parse("nbd+unix://?socket=rel");
	assert_string_equal(uri.export_name, "");
	assert_string_equal(uri.socket_path, "rel");
	export_uri_fini(&uri);

	uri = parse("nbd+unix:///?socket=%00gmb%00x");
	assert_int_equal(uri.socket_path_bytes, 6);
	assert_memory_equal(uri.socket_path, "\0gmb\0x", 7);
	export_uri_fini(&uri);

	refused("nbd+unix:///disk", "socket=PATH");
	refused("nbd+unix:///disk?socket=", "socket=PATH");
	refused("nbd+unix://host/disk?socket=/a", "three slashes");
	refused("nbd+unix:///?socket=/a&socket=/b", "given twice");
	refused("nbd+unix:///?socket=/a%00b", "zero byte");
	refused("nbd://host/?socket=/a", "nbd+unix");
}

TEST(gmb_has_parameters_of_its_own)
{
	struct export_uri uri = parse("gmb://host/a");
	char text[80];

	assert_string_equal(uri.protocol, "gmb");
	assert_false(uri.is_unix);
	assert_int_equal(uri.port, GMB_PORT_DEFAULT);
	assert_null(uri.provider);
	assert_null(uri.insecure_network);
	export_uri_fini(&uri);

	uri = parse("GMB://[::1]:7/a?provider=verbs&insecure-network=yes");
	assert_string_equal(uri.host, "::1");
	assert_int_equal(uri.port, 7);
	assert_string_equal(uri.provider, "verbs");
	assert_string_equal(uri.insecure_network, "yes");
	assert_null(uri.unknown_parameter);
	assert_int_equal(export_uri_format(&uri, "b", 1, text, sizeof(text)), 0);
	assert_string_equal(text, "gmb://[::1]:7/b?provider=verbs");
	export_uri_fini(&uri);

	refused("gmb://host?provider=udp", "must be tcp, verbs or ofi-tcp");
	refused("gmb://host?provider=", "must be tcp, verbs or ofi-tcp");
	refused("gmb://host?provider=tcp&provider=tcp", "given twice");
	refused("gmb://host?insecure-network", "must be yes or no");
	refused("gmb://host?socket=/a", "gmb+unix");
	/* They belong to the other scheme. */
	uri = parse("nbd://host?provider=udp");
	assert_string_equal(uri.unknown_parameter, "provider");
	export_uri_fini(&uri);
	uri = parse("gmb+unix:///?socket=/a&provider=tcp");
	assert_string_equal(uri.unknown_parameter, "provider");
	export_uri_fini(&uri);
	refused("gmb://host?tls-type=psk", "only nbds and nbds+unix support");
}

TEST(tls_and_users)
{
	struct export_uri uri = parse("nbds://al%40ice@host/x?tls-type=psk&tls-hostname=h;"
				      "tls-verify-peer=0");

	assert_true(uri.tls);
	assert_string_equal(uri.user, "al@ice");
	assert_string_equal(uri.host, "host");
	assert_string_equal(uri.tls_type, "psk");
	assert_string_equal(uri.tls_hostname, "h");
	assert_string_equal(uri.tls_verify_peer, "0");
	assert_null(uri.unknown_parameter);
	export_uri_fini(&uri);

	uri = parse("nbds+unix://bob@/x?socket=/s&colour=red&shape=round");
	assert_true(uri.tls);
	assert_true(uri.is_unix);
	assert_string_equal(uri.user, "bob");
	assert_string_equal(uri.unknown_parameter, "colour");
	export_uri_fini(&uri);

	refused("nbds://h?tls-type=psk&tls-type=x509", "'tls-type' is given twice");
	refused("nbds://h?tls-type=ssl", "must be psk or x509");
	refused("nbds://h?tls-verify-peer=no", "must be 0 or 1");
	refused("nbds://h?tls-hostname=", "has no value");
	refused("nbds://h?tls-certificates", "has no value");
	/* A misspelt parameter, or TLS without its scheme, must not be without effect. */
	refused("nbds://h?tls-certificate=/pki", "unknown parameter 'tls-certificate'; use");
	refused("nbd://h?tls-certificates=/pki", "only nbds and nbds+unix support");
	refused("nbd://h?tls=on", "only nbds and nbds+unix support");
	refused("nbd://h/x?colour=red&TLS=require", "only nbds and nbds+unix support");
	refused("nbd+unix:///?socket=/s&ssl=1", "only nbds and nbds+unix support");
	refused("gmb://h?tls_verify_peer=1", "only nbds and nbds+unix support");
	refused("nbds://h?tls=on", "unknown parameter 'tls'; use");
	refused("nbd+unix:///?socket=/s&tls-verify-peer=1", "only nbds and nbds+unix support");
}

TEST(files_are_told_apart)
{
	struct export_uri uri = parse("nbds://h?tls-certificates=/p%20ki&tls-type=x509");

	assert_string_equal(uri.tls_certificates, "/p ki");
	assert_string_equal(uri.tls_type, "x509");
	assert_true(export_uri_has_files(&uri));
	export_uri_fini(&uri);
	uri = parse("nbds://h?tls-psk-file=keys.psk");
	assert_string_equal(uri.tls_psk_file, "keys.psk");
	assert_true(export_uri_has_files(&uri));
	export_uri_fini(&uri);
	uri = parse("nbds://h?tls-hostname=x&tls-verify-peer=1");
	assert_false(export_uri_has_files(&uri));
	export_uri_fini(&uri);
}

TEST(passwords_are_refused_and_not_repeated)
{
	static const char *const texts[] = {
		"nbds://al:secret@host/x",
		"nbds://:secret@host",
		"nbd://al:secret@host",
		"nbds+unix://al:secret@/x?socket=/s",
		"nbds://al:sec@secret@host",
		"nbds://al:secret@host:wrong",
	};

	for (size_t i = 0; i < ARRAY_COUNT(texts); i++) {
		struct export_uri uri;
		struct error error = { 0 };

		assert_int_equal(export_uri_parse(texts[i], &uri, &error), -EINVAL);
		assert_non_null(strstr(error.text, "it contains a password"));
		assert_null(strstr(error.text, "secret"));
	}
	/* Neither is one: a port, and a name with a colon. */
	check_tcp("nbd://al@host:7", "host", 7, "");
	check_tcp("nbd://al%3Aice@host/a@b:c", "host", 10809, "a@b:c");
}

static void check_host(const struct export_uri *uri, uint32_t idx, const char *host, uint16_t port,
	const char *label)
{
	struct export_uri one = export_uri_at(uri, idx);
	char shown[EXPORT_URI_LABEL_BYTES];

	assert_int_equal(export_uri_hosts(&one), 1);
	assert_string_equal(one.host, host);
	assert_int_equal(one.port, port);
	assert_string_equal(export_uri_label(shown, &one), label);
	assert_string_equal(one.export_name, uri->export_name);
}

TEST(several_hosts)
{
	struct export_uri uri = parse("nbds://al@one:7,[::1],10.0.0.2:,c%2Cd:9/x,y?tls-type=psk");
	struct error error;
	char text[200];

	assert_int_equal(export_uri_hosts(&uri), 4);
	assert_string_equal(uri.user, "al");
	assert_string_equal(uri.export_name, "x,y");
	check_host(&uri, 0, "one", 7, "one:7");
	check_host(&uri, 1, "::1", 10809, "[::1]:10809");
	check_host(&uri, 2, "10.0.0.2", 10809, "10.0.0.2:10809");
	check_host(&uri, 3, "c,d", 9, "c,d:9");
	assert_int_equal(export_uri_format(&uri, "x,y", 3, text, sizeof(text)), 0);
	assert_string_equal(
		text, "nbds://al@one:7,[::1]:10809,10.0.0.2:10809,c%2Cd:9/x%2Cy?tls-type=psk");
	assert_int_equal(export_uri_check_one(&uri, "a listening URI", &error), -EINVAL);
	assert_non_null(strstr(error.text, "a listening URI has one host, but the URI names 4"));
	export_uri_fini(&uri);

	uri = parse("gmb://a,b:1");
	check_host(&uri, 0, "a", 10810, "a:10810");
	check_host(&uri, 1, "b", 1, "b:1");
	export_uri_fini(&uri);
	uri = parse("push://a,b");
	check_host(&uri, 1, "b", 10811, "b:10811");
	assert_int_equal(export_uri_check_one(&uri, "", &error), -EINVAL);
	export_uri_fini(&uri);
	uri = parse("nbd://a");
	assert_int_equal(export_uri_hosts(&uri), 1);
	assert_int_equal(export_uri_check_one(&uri, "", &error), 0);
	export_uri_fini(&uri);

	refused("nbd://a,/x", "a host is missing before or after a comma");
	refused("nbd://,a/x", "a host is missing before or after a comma");
	refused("nbd://a,,b/x", "a host is missing before or after a comma");
	refused("nbd://a,:7/x", "a host is missing before or after a comma");
	refused("nbd://a,b:70000", "is larger than 65535");
	refused("nbd://a,::1", "must be in brackets");
	refused("nbd://a,b%zz", "two hexadecimal digits");
	refused("nbd://a,b,c,d,e,f,g,h,i", "at most 8 hosts");
	refused("nbd+unix://a,b/x?socket=/s", "a Unix socket has no host");
	refused("vhost-user-blk+unix://a,b/x?socket=/s", "a Unix socket has no host");
}

TEST(malformed)
{
	refused("", "no scheme");
	refused("disk.img", "no scheme; write nbd://disk.img for a host");
	refused("[::1]:7", "no scheme; write nbd://[::1]:7 for a host");
	refused("/tmp/s", "no scheme; for a Unix socket, write nbd+unix:///?socket=/tmp/s");
	refused("unix:/tmp/s", "nbd+unix:///?socket=/tmp/s");
	refused("nbd:unix:/tmp/s", "nbd+unix:///?socket=/tmp/s");
	refused("nbd+unix:unix:/tmp/s", " nbd+unix:///?socket=/tmp/s");
	refused("unix:s", "nbd+unix:///?socket=s");
	refused("nbd:h:10809", "write nbd://h:10809");
	refused("10900", "for a port, write nbd://127.0.0.1:10900,");
	refused("65536", "write nbd://65536 for a host");
	refused("storage/disk", "no scheme; write nbd://storage/disk for an export of a host, or");
	refused("nbd:h", "'//' is missing after 'nbd:'; write nbd://h");
	refused("NBD:h/disk", "write NBD://h/disk");
	refused("nbds:/h/disk", "'//' is missing after 'nbds:'; write nbds://h/disk");
	refused("nbd:h:10809:exportname=a", "; write nbd://HOST[:PORT]/EXPORT or");
	refused("gmb+unix:/tmp/s", "; write gmb+unix:///?socket=/tmp/s");
	/* Not worth a guess, or not to be shown. */
	refused("nbd:", "'//' is missing after 'nbd:'; write nbd://HOST");
	refused("nbd:a\\b", "'//' is missing after 'nbd:'; write nbd://HOST");
	refused("a\\b", "no scheme; write nbd://HOST");
	refused("http//x?y", "no scheme; write nbd://HOST");
	refused("http://host", "'http'");
	refused("nbd+tcp://host", "'nbd+tcp'");
	refused("nbd://::1", "brackets");
	refused("nbd://[::1", "closing");
	refused("nbd://[::1]99", "follow");
	refused("nbd://[host]", "brackets");
	refused("nbd://[]", "brackets");
	refused("nbd://host:65536", "larger than 65535");
	refused("nbd://host:99999999999999999999", "larger than 65535");
	refused("nbd://host:-1", "not a number");
	refused("nbd://host:nbd", "not a number");
	refused("nbd://host\n", "control character");
}

static void check_round_trip(const char *text, const char *wanted)
{
	struct export_uri uri = parse(text);
	struct export_uri again;
	char out[512];
	uint32_t name_bytes = (uint32_t)strlen(uri.export_name);

	assert_int_equal(export_uri_format(&uri, uri.export_name, name_bytes, out, sizeof(out)), 0);
	assert_string_equal(out, wanted);
	again = parse(out);
	assert_string_equal(again.export_name, uri.export_name);
	assert_int_equal(again.socket_path_bytes, uri.socket_path_bytes);
	export_uri_fini(&again);
	/* Every shorter room is refused, and what is written stays terminated. */
	for (size_t room = 1; room <= strlen(wanted); room++) {
		memset(out, 'X', sizeof(out));
		assert_int_equal(
			export_uri_format(&uri, uri.export_name, name_bytes, out, room), -ENOSPC);
		assert_true(memchr(out, '\0', room) != NULL);
		assert_int_equal(out[room], 'X');
	}
	export_uri_fini(&uri);
}

TEST(formatting)
{
	check_round_trip("nbd://127.0.0.1", "nbd://127.0.0.1:10809");
	check_round_trip("nbd://[::1]:5/a", "nbd://[::1]:5/a");
	check_round_trip("nbd://[fe80::1%25lo]:5", "nbd://[fe80::1%25lo]:5");
	check_round_trip("nbds://u%3Av@h:1/x?tls-verify-peer=0&tls-type=psk&tls-hostname=a%26b",
		"nbds://u%3Av@h:1/x?tls-type=psk&tls-hostname=a%26b&tls-verify-peer=0");
	check_round_trip("nbds+unix:///x?socket=s&tls-psk-file=/a%20b&tls-certificates=../pki",
		"nbds+unix:///x?socket=s&tls-certificates=../pki&tls-psk-file=/a%20b");
	check_round_trip("nbd://h:1//%2e./%C3%A9%2520%3F", "nbd://h:1//../%C3%A9%2520%3F");
	check_round_trip("nbd+unix://?socket=/a%26b", "nbd+unix:///?socket=/a%26b");
	check_round_trip("nbd+unix:///x%3B?socket=%00n", "nbd+unix:///x%3B?socket=%00n");
}

static void check_parameter(const char **query, const char *name, const char *value)
{
	struct uri_parameter parameter;

	assert_int_equal(uri_next_parameter(query, &parameter, NULL), 1);
	assert_string_equal(parameter.name, name);
	assert_string_equal(parameter.value, value);
	uri_parameter_fini(&parameter);
}

/* What a scheme means is not for the generic parser to know. */
TEST(any_scheme)
{
	struct uri_parameter parameter;
	struct uri uri;

	assert_int_equal(
		uri_parse("gmb://u%40x@[::1]:7/a%2Fb//c?provider=tcp;;x&y=%26", &uri, NULL), 0);
	assert_string_equal(uri.scheme, "gmb");
	assert_false(uri.is_unix);
	assert_string_equal(uri.user, "u@x");
	assert_int_equal(uri.host_count, 1);
	assert_string_equal(uri.hosts[0].name, "::1");
	assert_true(uri.hosts[0].has_port);
	assert_int_equal(uri.hosts[0].port, 7);
	assert_string_equal(uri.path, "a/b//c");
	check_parameter(&uri.query, "provider", "tcp");
	check_parameter(&uri.query, "x", "");
	check_parameter(&uri.query, "y", "&");
	assert_int_equal(uri_next_parameter(&uri.query, &parameter, NULL), 0);
	uri_fini(&uri);

	assert_int_equal(uri_parse("gmb+unix:///?socket=%00s", &uri, NULL), 0);
	assert_true(uri.is_unix);
	assert_int_equal(uri.host_count, 0);
	assert_memory_equal(uri.socket_path, "\0s", 3);
	assert_int_equal(uri.socket_path_bytes, 2);
	assert_int_equal(uri.path_bytes, 0);
	uri_fini(&uri);

	assert_int_equal(uri_parse("gmb", &uri, NULL), -EINVAL);
	assert_int_equal(uri_parse("://h", &uri, NULL), -EINVAL);
	assert_int_equal(uri_parse("gmb+unix:///a", &uri, NULL), -EINVAL);
}

TEST(advice)
{
	assert_non_null(strstr(uri_unix_advice("/s", -EPIPE), "connection limit"));
	assert_non_null(strstr(uri_unix_advice("/s", -ECONNRESET), "connection limit"));
	assert_non_null(strstr(uri_unix_advice("/s", -EPROTOTYPE), "nbd+unix"));
	assert_non_null(strstr(uri_unix_advice("/s", -EAGAIN), "fast enough"));
	assert_non_null(strstr(uri_unix_advice("/s", -ENOBUFS), "fast enough"));
	assert_string_equal(uri_connect_reason(-ENOBUFS), "the backlog of the socket is full");
	assert_string_equal(uri_connect_reason(-ENOENT), strerror(ENOENT));
	assert_null(uri_unix_advice("/s", -ENOMEM));
	assert_non_null(strstr(uri_tcp_advice(-ECONNREFUSED), "address and port"));
	assert_null(uri_tcp_advice(-ENOMEM));
}
