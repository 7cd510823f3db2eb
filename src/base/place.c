// SPDX-License-Identifier: Apache-2.0
#include "base/place.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

enum { MAPPED_BYTES = NETWORK_MAPPED_BITS / 8 };

/* --- networks -------------------------------------------------------------------------------- */

bool address_parse(const char *host, uint8_t address[NETWORK_ADDRESS_BYTES])
{
	memset(address, 0, MAPPED_BYTES);
	memset(address + MAPPED_BYTES - 2, 0xff, 2);
	return inet_pton(AF_INET, host, address + MAPPED_BYTES) == 1 ||
	       inet_pton(AF_INET6, host, address) == 1;
}

static bool is_mapped(const uint8_t address[NETWORK_ADDRESS_BYTES])
{
	struct in6_addr ipv6;

	memcpy(&ipv6, address, sizeof(ipv6));
	return IN6_IS_ADDR_V4MAPPED(&ipv6);
}

bool address_is_loopback(const uint8_t address[NETWORK_ADDRESS_BYTES])
{
	return is_mapped(address)
		       ? address[MAPPED_BYTES] == IN_LOOPBACKNET
		       : memcmp(address, &in6addr_loopback, sizeof(in6addr_loopback)) == 0;
}

/* Clears the bits after the prefix. Returns whether any was set. */
static bool clear_host(uint8_t address[NETWORK_ADDRESS_BYTES], uint32_t prefix)
{
	bool was_set = false;

	for (uint32_t i = 0; i < NETWORK_ADDRESS_BYTES; i++) {
		uint32_t kept = prefix <= 8 * i ? 0 : MIN(prefix - 8 * i, 8U);
		uint8_t mask = (uint8_t)(0xff00U >> kept);

		was_set |= (address[i] & ~mask) != 0;
		address[i] &= mask;
	}
	return was_set;
}

static const char *network_text(
	const uint8_t address[NETWORK_ADDRESS_BYTES], bool is_ipv4, char out[INET6_ADDRSTRLEN])
{
	const char *text =
		is_ipv4 ? inet_ntop(AF_INET, address + MAPPED_BYTES, out, INET_ADDRSTRLEN)
			: inet_ntop(AF_INET6, address, out, INET6_ADDRSTRLEN);

	GMB_ASSERT(text != NULL);
	return text;
}

int network_parse(const char *text, uint8_t network[NETWORK_BYTES], struct error *error)
{
	const char *slash = strchr(text, '/');
	size_t host_bytes = slash != NULL ? (size_t)(slash - text) : strlen(text);
	char host[INET6_ADDRSTRLEN] = "";
	uint32_t prefix;
	bool is_ipv4;
	int rc = 0;
	const char *shown = quote(text);

	if (host_bytes < sizeof(host)) {
		memcpy(host, text, host_bytes);
	}
	if (!address_parse(host, network)) {
		return error_set(error, -EINVAL,
			"'%s' is neither an address nor a network; write it like 192.0.2.7, "
			"10.1.0.0/16 or 2001:db8::/32 (host names are not resolved)",
			shown);
	}
	is_ipv4 = strchr(host, ':') == NULL;
	prefix = is_ipv4 ? 32 : 128;
	if (slash != NULL) {
		rc = units_parse_count(slash + 1, 0, prefix, &prefix, error);
	}
	if (rc < 0) {
		error_prefix(error, "the prefix length in '%s'", shown);
		return rc;
	}
	if (clear_host(network, prefix + (is_ipv4 ? NETWORK_MAPPED_BITS : 0))) {
		return error_set(error, -EINVAL,
			"'%s' has bits set after its prefix; the network is %s/%u", shown,
			network_text(network, is_ipv4, host), prefix);
	}
	network[NETWORK_ADDRESS_BYTES] = (uint8_t)(prefix + (is_ipv4 ? NETWORK_MAPPED_BITS : 0));
	return 0;
}

/* Returns whether the network contains the address. IPv4 addresses are mapped into ::ffff:0:0/96
 * and must not match an IPv6 network with a prefix shorter than 96 bits. */
static bool network_holds(
	const uint8_t network[NETWORK_BYTES], const uint8_t address[NETWORK_ADDRESS_BYTES])
{
	uint32_t prefix = network[NETWORK_ADDRESS_BYTES];
	uint8_t cleared[NETWORK_ADDRESS_BYTES];

	memcpy(cleared, address, sizeof(cleared));
	(void)clear_host(cleared, prefix);
	return memcmp(cleared, network, sizeof(cleared)) == 0 &&
	       (prefix >= NETWORK_MAPPED_BITS || !is_mapped(address));
}

/* --- destinations ----------------------------------------------------------------------------- */

static int base_place_parse_port(const char *text, uint16_t *port, struct error *error)
{
	uint32_t number = 0;
	int rc = 0;

	if (strcmp(text, "any") != 0) {
		rc = units_parse_count(text, 1, UINT16_MAX, &number, error);
	}
	*port = (uint16_t)number;
	return rc;
}

static bool is_nbd(const struct place *place)
{
	return strcmp(place->protocol, "nbd") == 0;
}

static int parse_network_place(char *text, struct place *place, struct error *error)
{
	static const char key[] = ",port=";
	char *port = strstr(text, key);
	int rc = 0;

	place->port = is_nbd(place) ? NBD_PORT_DEFAULT : PUSH_PORT_DEFAULT;
	if (port != NULL) {
		*port = '\0';
		rc = base_place_parse_port(port + strlen(key), &place->port, error);
	}
	return rc == 0 ? network_parse(text, place->network, error) : rc;
}

/* Where the credentials start in the text of a destination. */
static const char credentials_start[] = ",tls-";

/* Parses one "NAME=VALUE" of the given length. */
static int take_credential(struct place *place, const char *text, size_t bytes, struct error *error)
{
	const struct {
		const char *name;
		char **field;
	} known[] = {
		{ "tls-certificates=", &place->tls_certificates },
		{ "tls-psk-file=", &place->tls_psk_file },
		{ "tls-username=", &place->tls_username },
		{ "tls-hostname=", &place->tls_hostname },
	};
	const char *shown = quote_bytes(text, bytes);

	for (size_t i = 0; i < ARRAY_COUNT(known); i++) {
		size_t name_bytes = strlen(known[i].name);

		if (bytes <= name_bytes || strncmp(text, known[i].name, name_bytes) != 0) {
			continue;
		}
		if (*known[i].field != NULL) {
			return error_set(error, -EINVAL, "'%s': the key is given twice", shown);
		}
		*known[i].field = strndup(text + name_bytes, bytes - name_bytes);
		return *known[i].field != NULL ? 0 : error_oom_for(error, "a destination");
	}
	return error_set(error, -EINVAL,
		"'%s' is not valid after a destination and its port; only tls-certificates=FOLDER, "
		"tls-psk-file=FILE, tls-username=NAME and tls-hostname=NAME can follow",
		shown);
}

/* Checks that the credentials are complete and not contradictory. */
static int check_credentials(const struct place *place, struct error *error)
{
	const char *problem = NULL;

	if (!place->tls && (place->tls_certificates != NULL || place->tls_psk_file != NULL ||
				   place->tls_username != NULL || place->tls_hostname != NULL)) {
		problem = "only nbds:PLACE can have TLS credentials";
	} else if (place->tls &&
		   (place->tls_certificates != NULL) == (place->tls_psk_file != NULL)) {
		problem = "nbds:PLACE needs either tls-certificates=FOLDER or tls-psk-file=FILE";
	} else if ((place->tls_psk_file != NULL) != (place->tls_username != NULL)) {
		problem = "tls-psk-file and tls-username require each other: the user name selects "
			  "the key";
	} else if (place->tls_psk_file != NULL && place->tls_hostname != NULL) {
		problem = "tls-hostname cannot be used with tls-psk-file: it is compared with the "
			  "server's certificate, and a pre-shared key has no certificate";
	} else if (place->tls_certificates != NULL && place->path != NULL &&
		   place->tls_hostname == NULL) {
		problem = "a Unix socket has no host name to check in the server's certificate; "
			  "add tls-hostname=NAME";
	}
	return problem == NULL ? 0
			       : error_set(error, -EINVAL, "'%s': %s", quote(place->text), problem);
}

/* Parses the credentials of a destination. text: starts at the first comma. */
static int parse_credentials(struct place *place, const char *text, struct error *error)
{
	int rc = 0;

	while (rc == 0 && *text != '\0') {
		size_t bytes = strcspn(text + 1, ",");

		rc = take_credential(place, text + 1, bytes, error);
		text += 1 + bytes;
	}
	return rc;
}

/* Stores the protocol that the prefix names, and returns the text after the prefix. */
static const char *parse_protocol(const char *text, struct place *place)
{
	const char *colon = strchr(text, ':');

	place->tls = strncmp(text, "nbds:", 5) == 0;
	place->protocol = place->tls || strncmp(text, "nbd:", 4) == 0 ? "nbd" : "push";
	return is_nbd(place) ? colon + 1 : text;
}

/* Rejects "nbd://HOST": after the prefix "nbd:", the rest would be taken for the path of a
 * socket. */
static int refuse_uri(const struct place *place, struct error *error)
{
	const char *prefix = place->tls ? "nbds" : "nbd";

	return error_set(error, -EINVAL,
		"'%s' is a URI; write %s:ADDRESS, with ,port=N if the port is not 10809, or "
		"%s:/PATH for a Unix socket",
		quote(place->text), prefix, prefix);
}

int place_parse(const char *text, struct place *place, struct error *error)
{
	const char *credentials = strstr(text, credentials_start);
	size_t bytes = credentials != NULL ? (size_t)(credentials - text) : strlen(text);
	struct place parsed = { .text = strndup(text, bytes) };
	char *copy = NULL;
	int rc;

	if (parsed.text != NULL) {
		copy = strdup(parse_protocol(parsed.text, &parsed));
	}
	if (copy == NULL) {
		rc = error_oom_for(error, "a destination");
	} else if (is_nbd(&parsed) && copy[0] == '/' && copy[1] == '/') {
		rc = refuse_uri(&parsed, error);
	} else if (copy[0] == '/') {
		parsed.path = copy;
		copy = NULL;
		rc = 0;
	} else {
		rc = parse_network_place(copy, &parsed, error);
	}
	if (rc == 0 && credentials != NULL) {
		rc = parse_credentials(&parsed, credentials, error);
	}
	rc = rc ?: check_credentials(&parsed, error);
	free(copy);
	if (rc < 0) {
		place_fini(&parsed);
		return rc;
	}
	*place = parsed;
	return 0;
}

void place_fini(struct place *place)
{
	free(place->text);
	free(place->tls_certificates);
	free(place->tls_psk_file);
	free(place->tls_username);
	free(place->tls_hostname);
	free(place->path);
	*place = (struct place){ 0 };
}

static bool same_credentials(const struct place *a, const struct place *b)
{
	return a->tls == b->tls && text_same(a->tls_certificates, b->tls_certificates) &&
	       text_same(a->tls_psk_file, b->tls_psk_file) &&
	       text_same(a->tls_username, b->tls_username) &&
	       text_same(a->tls_hostname, b->tls_hostname);
}

bool place_same(const struct place *a, const struct place *b)
{
	if (strcmp(a->protocol, b->protocol) != 0 || (a->path == NULL) != (b->path == NULL) ||
		!same_credentials(a, b)) {
		return false;
	}
	return a->path != NULL ? strcmp(a->path, b->path) == 0
			       : a->port == b->port &&
					 memcmp(a->network, b->network, sizeof(a->network)) == 0;
}

bool place_holds(const struct place *place, const struct export_uri *uri)
{
	uint8_t address[NETWORK_ADDRESS_BYTES];
	size_t bytes;

	if (strcmp(place->protocol, uri->protocol) != 0 || place->tls != uri->tls ||
		uri->other_count > 0) {
		return false;
	}
	if (!uri->is_unix) {
		return place->path == NULL && (place->port == 0 || place->port == uri->port) &&
		       address_parse(uri->host, address) && network_holds(place->network, address);
	}
	if (place->path == NULL || uri->socket_path[0] != '/') {
		return false;
	}
	bytes = strlen(place->path);
	if (place->path[bytes - 1] == '/') {
		return strncmp(uri->socket_path, place->path, bytes) == 0 &&
		       strchr(uri->socket_path + bytes, '/') == NULL;
	}
	return strcmp(uri->socket_path, place->path) == 0;
}
