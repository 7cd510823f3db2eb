// SPDX-License-Identifier: Apache-2.0
/*
 * Networks, and permitted destinations: a Unix socket, all sockets in a folder, or a network with
 * one port or any.
 *
 *   192.0.2.7   10.1.0.0/16   2001:db8::/32              network_parse()
 *   [nbd:]/run/b.sock   [nbd:]/run/disks/
 *   [nbd:]10.1.0.0/16[,port=N|any]                       place_parse() ... place_holds()
 *   nbds:/run/b.sock,CREDENTIALS   nbds:10.1.0.0/16[,port=N|any],CREDENTIALS
 *
 * CREDENTIALS are for TLS connections to a server at the destination:
 * tls-certificates=FOLDER[,tls-hostname=NAME], or tls-psk-file=FILE,tls-username=NAME. No value
 * contains a comma.
 *
 * Addresses are IPv6, 16 bytes in network order; IPv4 addresses are mapped (::ffff:0:0/96). An IPv6
 * network contains no IPv4 address.
 *
 * Threading: pure functions. Ownership: place_parse() allocates, place_fini() frees. Errors:
 * -EINVAL, -ERANGE or -ENOMEM with an error message; no memory has to be freed then.
 */
#pragma once

#include "base/error.h"
#include "base/export_uri.h"

enum {
	NETWORK_ADDRESS_BYTES = 16,
	NETWORK_MAPPED_BITS = 96,
	/* An address whose bits after the prefix are zero, then a byte with the prefix length, 0 to
	 * 128. */
	NETWORK_BYTES = NETWORK_ADDRESS_BYTES + 1,
};

/* Parses a numeric address; false if host is not one. */
bool address_parse(const char *host, uint8_t address[NETWORK_ADDRESS_BYTES]);
bool address_is_loopback(const uint8_t address[NETWORK_ADDRESS_BYTES]);

/* Parses a network. An address alone is the network that contains only this address. */
GMB_MUST_CHECK int network_parse(
	const char *text, uint8_t network[NETWORK_BYTES], struct error *error);

struct tls_client;

struct place {
	char *text;	      /* text as written, without credentials */
	const char *protocol; /* static: "nbd" with the prefix nbd or nbds, otherwise "push" */
	bool tls;	      /* prefix nbds: only over TLS */
	/* exclusive with tls_psk_file; NULL if not given, like the next three */
	char *tls_certificates;
	char *tls_psk_file;
	char *tls_username; /* used with tls_psk_file */
	/* name expected in the server's certificate; NULL: the host of the URI */
	char *tls_hostname;
	/* The server's TLS client for these credentials; borrowed. */
	struct tls_client *opened;
	/* Path of a socket, or of a folder of sockets if it ends with a slash; NULL for a
	 * network. */
	char *path;
	uint8_t network[NETWORK_BYTES];
	uint16_t port; /* 0: any */
};

/* Parses a destination. A network without a port gets the protocol's default port. */
GMB_MUST_CHECK int place_parse(const char *text, struct place *place, struct error *error);
void place_fini(struct place *place);
/* Returns whether both are the same destination with the same credentials, however they were
 * written. */
bool place_same(const struct place *a, const struct place *b);

/* Returns whether the URI's address, protocol and use of TLS match the destination. Paths are
 * compared as they are written. Hosts must be addresses, because names are not looked up. */
bool place_holds(const struct place *place, const struct export_uri *uri);
