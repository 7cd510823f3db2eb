// SPDX-License-Identifier: Apache-2.0
#include "base/identity.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"

/* --- objects ---------------------------------------------------------------------------------- */

struct identity *identity_create(const struct identity_facts *facts)
{
	size_t values_bytes = (size_t)facts->value_count * sizeof(struct identity_value);
	size_t data_bytes = facts->proof_bytes;
	struct identity *identity;
	uint8_t *data;

	GMB_ASSERT(facts->value_count <= IDENTITY_VALUES_MAX);
	GMB_ASSERT(facts->is_proved || facts->value_count == 0);
	for (uint32_t i = 0; i < facts->value_count; i++) {
		GMB_ASSERT(facts->values[i].bytes <= IDENTITY_VALUE_BYTES_MAX);
		data_bytes += facts->values[i].bytes;
	}
	identity = calloc(1, sizeof(*identity) + values_bytes + data_bytes);
	if (identity == NULL) {
		return NULL;
	}
	atomic_init(&identity->references, 1);
	identity->is_proved = facts->is_proved;
	log_escape(identity->text, sizeof(identity->text), facts->text, strlen(facts->text));
	memcpy(identity->principal, facts->principal, sizeof(identity->principal));
	identity->value_count = facts->value_count;
	data = (uint8_t *)identity->values + values_bytes;
	for (uint32_t i = 0; i < facts->value_count; i++) {
		identity->values[i] = facts->values[i];
		identity->values[i].data = data;
		memcpy(data, facts->values[i].data, facts->values[i].bytes);
		data += facts->values[i].bytes;
	}
	identity->proof = data;
	identity->proof_bytes = facts->proof_bytes;
	if (facts->proof_bytes > 0) {
		memcpy(data, facts->proof, facts->proof_bytes);
	}
	return identity;
}

void identity_get(struct identity *identity)
{
	/* Relaxed order is enough, because the caller's own reference keeps the identity alive. */
	atomic_fetch_add_explicit(&identity->references, 1, memory_order_relaxed);
}

void identity_put(struct identity *identity)
{
	/* Acquire-release: other threads' accesses to the identity happen before it is freed. */
	if (identity != NULL &&
		atomic_fetch_sub_explicit(&identity->references, 1, memory_order_acq_rel) == 1) {
		free(identity);
	}
}

/*
 * --- distinguished names ----------------------------------------------------------------------
 *
 * Canonical form: for each RDN, in the order of RFC 4514 (the most specific one first), a byte with
 * the number of its attributes, then the attributes sorted by their bytes. An attribute is
 *
 *   u8 length, OID as digits and points; u16 length (big-endian), UTF-8 value
 */

enum { ATTRIBUTE_BYTES_MAX = 1 + IDENTITY_OID_BYTES_MAX + 2 + IDENTITY_STRING_BYTES_MAX };

_Static_assert(IDENTITY_OID_BYTES_MAX <= UINT8_MAX, "a length of an OID is one byte");

static uint32_t identity_attribute_bytes(const uint8_t *at)
{
	uint32_t oid = 1 + (uint32_t)at[0];

	return oid + 2 + ((uint32_t)at[oid] << 8 | at[oid + 1]);
}

/* Returns the offset at which the new attribute is inserted in the last RDN, whose attributes are
 * sorted by their bytes. */
static uint32_t attribute_place(
	const struct identity_dn *dn, const uint8_t *attribute, uint32_t bytes)
{
	uint32_t at = dn->rdn_at + 1;

	for (uint32_t i = 0; i < dn->bytes[dn->rdn_at]; i++) {
		uint32_t other = identity_attribute_bytes(dn->bytes + at);
		int order = memcmp(dn->bytes + at, attribute, MIN(other, bytes));

		if (order > 0 || (order == 0 && other > bytes)) {
			break;
		}
		at += other;
	}
	return at;
}

int identity_dn_add(struct identity_dn *dn, bool joins, const char *oid, size_t oid_bytes,
	const void *value, size_t value_bytes, struct error *error)
{
	uint8_t attribute[ATTRIBUTE_BYTES_MAX];
	uint32_t bytes, at;

	GMB_ASSERT(!joins || dn->rdn_count > 0);
	if (oid_bytes == 0 || oid_bytes > IDENTITY_OID_BYTES_MAX) {
		return error_set(error, -EINVAL,
			"the OID of an attribute is empty or too long: %zu bytes", oid_bytes);
	}
	if (value_bytes == 0 || value_bytes > IDENTITY_STRING_BYTES_MAX) {
		return error_set(error, -EINVAL,
			"an attribute of a distinguished name has %zu bytes; it must have 1 to %d "
			"bytes",
			value_bytes, IDENTITY_STRING_BYTES_MAX);
	}
	if (memchr(value, 0, value_bytes) != NULL || !utf8_valid(value, value_bytes)) {
		return error_set(error, -EINVAL,
			"an attribute of a distinguished name contains a zero byte or is not valid "
			"UTF-8");
	}
	attribute[0] = (uint8_t)oid_bytes;
	memcpy(attribute + 1, oid, oid_bytes);
	attribute[1 + oid_bytes] = (uint8_t)(value_bytes >> 8);
	attribute[2 + oid_bytes] = (uint8_t)value_bytes;
	memcpy(attribute + 3 + oid_bytes, value, value_bytes);
	bytes = (uint32_t)(3 + oid_bytes + value_bytes);

	if ((!joins && dn->rdn_count == IDENTITY_RDNS_MAX) ||
		(joins && dn->bytes[dn->rdn_at] == UINT8_MAX) ||
		dn->len + 1 + bytes > sizeof(dn->bytes)) {
		return error_set(error, -EINVAL,
			"the distinguished name has too many parts, or is too long");
	}
	if (!joins) {
		dn->rdn_at = dn->len++;
		dn->bytes[dn->rdn_at] = 0;
		dn->rdn_count++;
	}
	at = attribute_place(dn, attribute, bytes);
	memmove(dn->bytes + at + bytes, dn->bytes + at, dn->len - at);
	memcpy(dn->bytes + at, attribute, bytes);
	dn->bytes[dn->rdn_at]++;
	dn->len += bytes;
	return 0;
}

/* Attribute types of distinguished names: from RFC 4514, section 3, and further ones that
 * certtool and openssl print. */
static const struct {
	const char *name, *oid;
} attribute_types[] = {
	{ "CN", "2.5.4.3" },
	{ "SN", "2.5.4.4" },
	{ "serialNumber", "2.5.4.5" },
	{ "C", "2.5.4.6" },
	{ "L", "2.5.4.7" },
	{ "ST", "2.5.4.8" },
	{ "STREET", "2.5.4.9" },
	{ "O", "2.5.4.10" },
	{ "OU", "2.5.4.11" },
	{ "title", "2.5.4.12" },
	{ "GN", "2.5.4.42" },
	{ "dnQualifier", "2.5.4.46" },
	{ "DC", "0.9.2342.19200300.100.1.25" },
	{ "UID", "0.9.2342.19200300.100.1.1" },
	{ "EMAIL", "1.2.840.113549.1.9.1" },
	{ "emailAddress", "1.2.840.113549.1.9.1" },
};

/* Returns the value of two hexadecimal digits, or -1 if text does not start with them. Does not
 * read beyond a terminator. */
static int hex_byte(const char *text)
{
	int high = text_hex_digit(text[0]);
	int low = high < 0 ? -1 : text_hex_digit(text[1]);

	return low < 0 ? -1 : high << 4 | low;
}

static const char *skip_spaces(const char *text)
{
	while (*text == ' ') {
		text++;
	}
	return text;
}

/* Parses the type before '='. A leading "OID." is accepted as in RFC 1779. */
static int parse_type(const char **at, char oid[IDENTITY_OID_BYTES_MAX + 1], struct error *error)
{
	const char *begin = skip_spaces(*at);
	size_t length = strcspn(begin, "= ,+\\\"");
	const char *after = skip_spaces(begin + length);
	const char *found = NULL;

	if (*after != '=' || length == 0) {
		return error_set(error, -EINVAL,
			"'%.40s' does not start with an attribute type and '=', as in "
			"'CN=host-a,O=Example'",
			begin);
	}
	*at = after + 1;
	for (size_t i = 0; i < ARRAY_COUNT(attribute_types); i++) {
		if (strlen(attribute_types[i].name) == length &&
			strncasecmp(attribute_types[i].name, begin, length) == 0) {
			found = attribute_types[i].oid;
			length = strlen(found);
		}
	}
	if (found == NULL) {
		found = begin;
		if (length > 4 && strncasecmp(begin, "OID.", 4) == 0) {
			found += 4;
			length -= 4;
		}
		if (strspn(found, "0123456789.") < length || strchr("012", *found) == NULL) {
			return error_set(error, -EINVAL,
				"'%.*s' is not a known attribute type; write its OID, as in "
				"'2.5.4.3=host-a'",
				(int)MIN(length, (size_t)40), begin);
		}
	}
	if (length > IDENTITY_OID_BYTES_MAX) {
		return error_set(error, -EINVAL, "'%.40s...' is too long for an OID", found);
	}
	memcpy(oid, found, length);
	oid[length] = '\0';
	return 0;
}

struct dn_value {
	uint8_t bytes[IDENTITY_STRING_BYTES_MAX + 4]; /* room for a BER header */
	size_t len;
};

/* Parses "#" and the BER encoding of a string, RFC 4514, section 2.4. */
static int parse_hex_value(const char **at, struct dn_value *value, struct error *error)
{
	const char *text = *at + 1;
	size_t header;

	value->len = 0;
	for (int byte; (byte = hex_byte(text)) >= 0; text += 2) {
		if (value->len == sizeof(value->bytes)) {
			return error_set(error, -EINVAL,
				"the hexadecimal value '%.40s...' is too long", *at);
		}
		value->bytes[value->len++] = (uint8_t)byte;
	}
	header = value->len > 2 && value->bytes[1] == 0x81 ? 3 : 2;
	/* UTF8String, NumericString, PrintableString, IA5String */
	if (value->len <= header || memchr("\x0c\x12\x13\x16", value->bytes[0], 4) == NULL ||
		value->bytes[header - 1] != value->len - header ||
		(value->bytes[header - 1] >= 0x80) != (header == 3)) {
		return error_set(error, -EINVAL,
			"'%.40s' is not '#' followed by the hexadecimal BER encoding of a "
			"string of at most 255 bytes",
			*at);
	}
	value->len -= header;
	memmove(value->bytes, value->bytes + header, value->len);
	*at = text;
	return 0;
}

static int parse_string_value(const char **at, struct dn_value *value, struct error *error)
{
	const char *text = *at;
	size_t kept = 0; /* length without trailing spaces that are not escaped */

	value->len = 0;
	while (*text != '\0' && *text != ',' && *text != '+') {
		bool is_escaped = *text == '\\';
		int byte = (uint8_t)*text++;

		if (is_escaped) {
			byte = hex_byte(text);
			if (byte >= 0) {
				text += 2;
			} else if (*text != '\0' && strchr(" \"#+,;<=>\\", *text) != NULL) {
				byte = *text++;
			} else {
				return error_set(error, -EINVAL,
					"'\\' in '%.40s' is not followed by a special character or "
					"two hexadecimal digits",
					*at);
			}
		} else if (strchr("\";<>", byte) != NULL) {
			return error_set(error, -EINVAL, "write '\\%c' for '%c' in '%.40s'", byte,
				byte, *at);
		}
		if (value->len == IDENTITY_STRING_BYTES_MAX) {
			return error_set(error, -EINVAL,
				"the value '%.40s...' is longer than %d bytes", *at,
				IDENTITY_STRING_BYTES_MAX);
		}
		value->bytes[value->len++] = (uint8_t)byte;
		kept = is_escaped || byte != ' ' ? value->len : kept;
	}
	value->len = kept;
	*at = text;
	return 0;
}

static int parse_dn(const char *text, struct identity_dn *dn, struct error *error)
{
	bool joins = false;

	for (;;) {
		char oid[IDENTITY_OID_BYTES_MAX + 1];
		struct dn_value value;
		int rc = parse_type(&text, oid, error);

		if (rc == 0) {
			text = skip_spaces(text);
			rc = *text == '#' ? parse_hex_value(&text, &value, error)
					  : parse_string_value(&text, &value, error);
		}
		if (rc == 0) {
			rc = identity_dn_add(
				dn, joins, oid, strlen(oid), value.bytes, value.len, error);
		}
		if (rc != 0) {
			return rc;
		}
		text = skip_spaces(text);
		if (*text == '\0') {
			return 0;
		}
		if (*text != ',' && *text != '+') {
			return error_set(error, -EINVAL,
				"'%.40s' after a hexadecimal value does not begin with ',' or '+'",
				text);
		}
		joins = *text++ == '+';
	}
}

/* --- other values ----------------------------------------------------------------------------- */

int identity_dns_canonical(const void *name, size_t bytes, uint8_t *out, struct error *error)
{
	const uint8_t *from = name;

	if (bytes == 0 || bytes > IDENTITY_STRING_BYTES_MAX) {
		return error_set(error, -EINVAL, "a DNS name has %zu bytes; it must have 1 to %d",
			bytes, IDENTITY_STRING_BYTES_MAX);
	}
	for (size_t i = 0; i < bytes; i++) {
		if (from[i] <= ' ' || from[i] >= 0x7f) {
			return error_set(error, -EINVAL,
				"a DNS name has a byte other than printable ASCII; write "
				"international names as A-labels ('xn--...')");
		}
		out[i] = from[i] >= 'A' && from[i] <= 'Z' ? from[i] | 0x20 : from[i];
	}
	return 0;
}

void identity_ip_canonical(const void *address, size_t bytes, uint8_t out[16])
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	GMB_ASSERT(bytes == 4 || bytes == 16);
	memcpy(out, mapped, 16 - bytes);
	memcpy(out + 16 - bytes, address, bytes);
}

static int parse_ip(const char *text, uint8_t out[16], struct error *error)
{
	struct in6_addr address;

	if (inet_pton(AF_INET, text, &address) == 1) {
		identity_ip_canonical(&address, 4, out);
	} else if (inet_pton(AF_INET6, text, &address) == 1) {
		identity_ip_canonical(&address, 16, out);
	} else {
		return error_set(error, -EINVAL, "'%.60s' is not an IPv4 or IPv6 address", text);
	}
	return 0;
}

static int parse_fingerprint(const char *text, uint8_t *out, struct error *error)
{
	const char *hex = text + strlen("sha256:");
	uint32_t count = 0;

	if (strncasecmp(text, "sha256:", strlen("sha256:")) != 0) {
		return error_set(error, -EINVAL,
			"'%.40s' is not a fingerprint of the form 'sha256:HEX'; only SHA-256 is "
			"supported",
			text);
	}
	while (count < IDENTITY_DIGEST_BYTES) {
		int byte = hex_byte(hex);

		if (byte < 0) {
			break;
		}
		out[count++] = (uint8_t)byte;
		hex += 2;
		if (*hex == ':' && count < IDENTITY_DIGEST_BYTES) {
			hex++;
		}
	}
	if (count < IDENTITY_DIGEST_BYTES || *hex != '\0') {
		return error_set(error, -EINVAL,
			"'%.80s' does not have %d hexadecimal digits, with or without colons "
			"between pairs",
			text, 2 * IDENTITY_DIGEST_BYTES);
	}
	return 0;
}

/* Parses names of keys, common names, e-mail addresses and URIs, whose canonical form is the text
 * itself. Checks the length and the characters. */
static int parse_as_is(
	enum identity_kind kind, const char *text, size_t bytes, uint8_t *out, struct error *error)
{
	if (bytes > IDENTITY_STRING_BYTES_MAX) {
		return error_set(error, -EINVAL, "the value '%.40s...' is longer than %d bytes",
			text, IDENTITY_STRING_BYTES_MAX);
	}
	if (kind == IDENTITY_PSK ? strpbrk(text, ":\n\r") != NULL : !utf8_valid(text, bytes)) {
		return error_set(error, -EINVAL,
			kind == IDENTITY_PSK ? "a key name cannot contain a colon or a newline"
					     : "the value is not valid UTF-8");
	}
	memcpy(out, text, bytes);
	return 0;
}

int identity_value_parse(enum identity_kind kind, const char *text,
	uint8_t out[IDENTITY_VALUE_BYTES_MAX], uint32_t *bytes_out, struct error *error)
{
	size_t bytes = strlen(text);
	struct identity_dn dn = { .len = 0 };
	int rc;

	if (bytes == 0) {
		return error_set(error, -EINVAL, "the value is empty");
	}
	switch (kind) {
	case IDENTITY_CERT_DN:
		rc = parse_dn(text, &dn, error);
		if (rc == 0) {
			memcpy(out, dn.bytes, dn.len);
			bytes = dn.len;
		}
		break;
	case IDENTITY_CERT_DNS:
		if (strchr(text, '*') != NULL) {
			return error_set(error, -EINVAL,
				"'%.60s': wildcards are not supported; write the full name", text);
		}
		if (text[bytes - 1] == '.') {
			return error_set(error, -EINVAL,
				"'%.60s': names in certificates do not end with a dot", text);
		}
		rc = identity_dns_canonical(text, bytes, out, error);
		break;
	case IDENTITY_CERT_IP:
		rc = parse_ip(text, out, error);
		bytes = 16;
		break;
	case IDENTITY_CERT_FINGERPRINT:
	case IDENTITY_KEY_FINGERPRINT:
		rc = parse_fingerprint(text, out, error);
		bytes = IDENTITY_DIGEST_BYTES;
		break;
	case IDENTITY_PSK:
	case IDENTITY_CERT_CN:
	case IDENTITY_CERT_EMAIL:
	case IDENTITY_CERT_URI:
		rc = parse_as_is(kind, text, bytes, out, error);
		break;
	case IDENTITY_KIND_COUNT:
	default:
		GMB_ASSERT(kind < IDENTITY_KIND_COUNT);
		return -EINVAL;
	}
	if (rc == 0) {
		*bytes_out = (uint32_t)bytes;
	}
	return rc;
}
