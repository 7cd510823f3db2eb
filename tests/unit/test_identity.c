// SPDX-License-Identifier: Apache-2.0
/* Texts of rules and their canonical bytes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/identity.h"
#include "unit.h"

struct parsed {
	uint8_t bytes[IDENTITY_VALUE_BYTES_MAX];
	uint32_t len;
	int rc;
	struct error error;
};

static struct parsed parse(enum identity_kind kind, const char *text)
{
	struct parsed parsed = { .len = 0 };

	parsed.rc = identity_value_parse(kind, text, parsed.bytes, &parsed.len, &parsed.error);
	return parsed;
}

static bool is_equal(enum identity_kind kind, const char *a, const char *b)
{
	struct parsed first = parse(kind, a), second = parse(kind, b);

	if (first.rc != 0 || second.rc != 0) {
		fail_msg("%s", first.rc != 0 ? first.error.text : second.error.text);
	}
	return first.len == second.len && memcmp(first.bytes, second.bytes, first.len) == 0;
}

TEST(test_distinguished_names_that_are_equal)
{
	static const char *const pairs[][2] = {
		{ "CN=backup,O=Example", "cn = backup , o=Example" },
		{ "CN=backup,O=Example", "2.5.4.3=backup,OID.2.5.4.10=Example" },
		{ "CN=a\\,b", "CN=a\\2Cb" },
		{ "CN=a\\,b", "CN=a\\2cb" },
		{ "CN=\\ a\\ ", "CN=\\20a\\20" },
		{ "CN=\\#a", "CN=\\23a" },
		{ "CN=M\xc3\xbcller", "CN=M\\C3\\BCller" },
		{ "CN=Example", "CN=#0c074578616d706c65" },
		{ "CN=Example", "CN=#13074578616D706C65" },
		/* The attributes of one RDN are a set. */
		{ "CN=a+UID=b,O=c", "UID=b+CN=a,O=c" },
		{ "OU=a+OU=bb+OU=b", "OU=bb+OU=b+OU=a" },
		{ "EMAIL=a@b", "emailAddress=a@b" },
		{ "DC=example,DC=org", "dc=example,0.9.2342.19200300.100.1.25=org" },
		{ "CN=a=b", "CN=a\\=b" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(pairs); i++) {
		assert_true(is_equal(IDENTITY_CERT_DN, pairs[i][0], pairs[i][1]));
	}
}

TEST(test_distinguished_names_that_differ)
{
	static const char *const pairs[][2] = {
		{ "CN=backup,O=Example", "O=Example,CN=backup" },
		{ "CN=backup,O=Example", "CN=backup" },
		{ "CN=backup,O=Example", "CN=backup+O=Example" },
		{ "CN=backup,O=Example", "CN=backup\\,O=Example" },
		{ "CN=backup", "CN=Backup" },
		{ "CN=backup", "CN=backup2" },
		{ "CN=backup", "CN=backup\\ " },
		{ "CN=backup", "O=backup" },
		{ "CN=ab,CN=c", "CN=a,CN=bc" },
		/* The same letter, composed and decomposed: exact bytes count. */
		{ "CN=\xc3\xbc", "CN=u\xcc\x88" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(pairs); i++) {
		assert_false(is_equal(IDENTITY_CERT_DN, pairs[i][0], pairs[i][1]));
	}
}

TEST(test_texts_that_are_refused)
{
	char long_name[400], deep[2000] = "CN=a";
	static const struct {
		enum identity_kind kind;
		const char *text, *reason;
	} cases[] = {
		{ IDENTITY_PSK, "", "empty" },
		{ IDENTITY_PSK, "a:b", "colon" },
		{ IDENTITY_PSK, "a\nb", "newline" },
		{ IDENTITY_CERT_DN, "backup", "start with an attribute type" },
		{ IDENTITY_CERT_DN, "CN=a,", "start with an attribute type" },
		{ IDENTITY_CERT_DN, ",CN=a", "start with an attribute type" },
		{ IDENTITY_CERT_DN, "CN=a,,O=b", "start with an attribute type" },
		{ IDENTITY_CERT_DN, "=a", "start with an attribute type" },
		{ IDENTITY_CERT_DN, "CN=", "0 bytes" },
		{ IDENTITY_CERT_DN, "CN=,O=b", "0 bytes" },
		{ IDENTITY_CERT_DN, "XX=a", "not a known attribute type" },
		{ IDENTITY_CERT_DN, "9.5=a", "not a known attribute type" },
		{ IDENTITY_CERT_DN, "CN=a\\", "not followed" },
		{ IDENTITY_CERT_DN, "CN=a\\g", "not followed" },
		{ IDENTITY_CERT_DN, "CN=a\\4", "not followed" },
		{ IDENTITY_CERT_DN, "CN=\"a\"", "write '\\\"'" },
		{ IDENTITY_CERT_DN, "CN=a;O=b", "write '\\;'" },
		{ IDENTITY_CERT_DN, "CN=a\\00b", "zero byte" },
		{ IDENTITY_CERT_DN, "CN=\\ff", "UTF-8" },
		{ IDENTITY_CERT_DN, "CN=\xc3", "UTF-8" },
		{ IDENTITY_CERT_DN, "CN=#", "BER" },
		{ IDENTITY_CERT_DN, "CN=#0c", "BER" },
		{ IDENTITY_CERT_DN, "CN=#0c00", "BER" },
		{ IDENTITY_CERT_DN, "CN=#0c0241", "BER" },
		{ IDENTITY_CERT_DN, "CN=#0c8141", "BER" },
		{ IDENTITY_CERT_DN, "CN=#0c810141", "BER" },
		{ IDENTITY_CERT_DN, "CN=#020141", "BER" },
		{ IDENTITY_CERT_DN, "CN=#0c0141x", "after a hexadecimal value" },
		{ IDENTITY_CERT_DNS, "*.example", "wildcard" },
		{ IDENTITY_CERT_DNS, "a.example.", "dot" },
		{ IDENTITY_CERT_DNS, "m\xc3\xbcller.example", "A-labels" },
		{ IDENTITY_CERT_DNS, "a b", "A-labels" },
		{ IDENTITY_CERT_IP, "192.0.2.0/24", "not an IPv4" },
		{ IDENTITY_CERT_IP, "192.0.2", "not an IPv4" },
		{ IDENTITY_CERT_IP, "[::1]", "not an IPv4" },
		{ IDENTITY_CERT_EMAIL, "\xff", "UTF-8" },
		{ IDENTITY_CERT_FINGERPRINT, "9f86", "sha256:" },
		{ IDENTITY_CERT_FINGERPRINT, "sha256:", "64 hexadecimal" },
		{ IDENTITY_CERT_FINGERPRINT, "sha1:9f86", "sha256:" },
		{ IDENTITY_KEY_FINGERPRINT, "sha256:9f86", "64 hexadecimal" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct parsed parsed = parse(cases[i].kind, cases[i].text);

		if (parsed.rc != -EINVAL || strstr(parsed.error.text, cases[i].reason) == NULL) {
			fail_msg("'%s': %d, '%s'", cases[i].text, parsed.rc, parsed.error.text);
		}
	}
	memset(long_name, 'a', sizeof(long_name));
	long_name[257] = '\0';
	assert_int_equal(parse(IDENTITY_PSK, long_name).rc, -EINVAL);
	assert_int_equal(parse(IDENTITY_CERT_DNS, long_name).rc, -EINVAL);
	memcpy(long_name, "CN=", 3);
	assert_int_equal(parse(IDENTITY_CERT_DN, long_name).rc, 0);
	long_name[257] = 'a';
	long_name[260] = '\0';
	assert_int_equal(parse(IDENTITY_CERT_DN, long_name).rc, -EINVAL);
	for (int i = 1; i < IDENTITY_RDNS_MAX; i++) {
		strncat(deep, ",CN=a", sizeof(deep) - strlen(deep) - 1);
	}
	assert_int_equal(parse(IDENTITY_CERT_DN, deep).rc, 0);
	strncat(deep, ",CN=a", sizeof(deep) - strlen(deep) - 1);
	assert_int_equal(parse(IDENTITY_CERT_DN, deep).rc, -EINVAL);
}

TEST(test_other_values)
{
	static const char digits[] =
		"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
	static const char colons[] = "SHA256:9F:86:D0:81:88:4C:7D:65:9A:2F:EA:A0:C5:5A:D0:15:"
				     "A3:BF:4F:1B:2B:0B:82:2C:D1:5D:6C:15:B0:F0:0A:08";
	char text[100];

	assert_true(is_equal(IDENTITY_CERT_DNS, "Host-A.Example", "host-a.example"));
	assert_false(is_equal(IDENTITY_CERT_EMAIL, "A@b", "a@b"));
	assert_true(is_equal(IDENTITY_CERT_IP, "192.0.2.7", "::ffff:192.0.2.7"));
	assert_true(is_equal(IDENTITY_CERT_IP, "2001:db8::1", "2001:DB8:0::1"));
	assert_false(is_equal(IDENTITY_CERT_IP, "192.0.2.7", "::192.0.2.7"));
	snprintf(text, sizeof(text), "sha256:%s", digits);
	assert_true(is_equal(IDENTITY_CERT_FINGERPRINT, text, colons));
	snprintf(text, sizeof(text), "sha256:%s00", digits);
	assert_int_equal(parse(IDENTITY_CERT_FINGERPRINT, text).rc, -EINVAL);
	snprintf(text, sizeof(text), "sha256:%s:", digits);
	assert_int_equal(parse(IDENTITY_CERT_FINGERPRINT, text).rc, -EINVAL);
}

TEST(test_identity_holds_copies)
{
	uint8_t name[] = "alice", principal[IDENTITY_DIGEST_BYTES] = { 7 }, proof[] = { 1, 2, 3 };
	struct identity_value values[] = { { IDENTITY_PSK, 5, name },
		{ IDENTITY_CERT_CN, 3, name } };
	struct identity_facts facts = { true, "psk alice\n", principal, values, 2, proof, 3 };
	struct identity *identity = identity_create(&facts);

	assert_non_null(identity);
	memset(name, 'x', sizeof(name));
	memset(proof, 0, sizeof(proof));
	assert_string_equal(identity->text, "psk alice\\x0a");
	assert_int_equal(identity->principal[0], 7);
	assert_memory_equal(identity->values[0].data, "alice", 5);
	assert_memory_equal(identity->values[1].data, "ali", 3);
	assert_memory_equal(identity->proof, "\1\2\3", 3);
	identity_get(identity);
	identity_put(identity);
	identity_put(identity);
	identity_put(NULL);
}
