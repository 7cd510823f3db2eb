// SPDX-License-Identifier: Apache-2.0
/*
 * Networks, and places that an operator names: Unix sockets, and ports of networks.
 *
 *   192.0.2.7   10.1.0.0/16   2001:db8::/32              network_parse()
 *   [nbd:]/run/b.sock   [nbd:]/run/disks/
 *   [nbd:]10.1.0.0/16[,port=N|any]                       place_parse() ... place_holds()
 *   nbds:/run/b.sock,CREDENTIALS   nbds:10.1.0.0/16[,port=N|any],CREDENTIALS
 *
 * CREDENTIALS are for TLS to a server there: tls-certificates=FOLDER[,tls-hostname=NAME], or
 * tls-psk-file=FILE,tls-username=NAME. No value contains a comma.
 *
 * Addresses are those of IPv6, 16 bytes in network order; IPv4 is mapped (::ffff:0:0/96). A network
 * of IPv6 contains no IPv4 address.
 *
 * Threading: pure functions. Ownership: place_parse() gives, place_fini() frees. Errors: -EINVAL or
 * -ENOMEM with a sentence that shows the text; nothing to free then.
 */
#pragma once

#include "base/error.h"
#include "base/export_uri.h"

enum {
	NETWORK_ADDRESS_BYTES = 16,
	NETWORK_MAPPED_BITS = 96,
	/* An address with zeroes behind the prefix, and a byte: the length of that, 0 to 128. */
	NETWORK_BYTES = NETWORK_ADDRESS_BYTES + 1,
};

/* An address as numbers; false: it is none. */
bool address_parse(const char *host, uint8_t address[NETWORK_ADDRESS_BYTES]);
bool address_is_loopback(const uint8_t address[NETWORK_ADDRESS_BYTES]);

/* An address is the network of itself alone. */
GMB_MUST_CHECK int network_parse(
	const char *text, uint8_t network[NETWORK_BYTES], struct error *error);

struct tls_client;

struct place {
	char *text;		/* as it was written, without credentials */
	const char *protocol;	/* "nbd" with the prefix nbd or nbds, else "push"; static */
	bool tls;		/* prefix nbds: over TLS only */
	char *tls_certificates; /* this one or tls_psk_file; else NULL, as the next three */
	char *tls_psk_file;
	char *tls_username; /* with tls_psk_file */
	char *tls_hostname; /* of a server's certificate; NULL: as the URI says */
	/* What the server has made of the credentials; borrowed. */
	struct tls_client *opened;
	/* A socket, or with a slash at its end a folder, whose sockets are meant; NULL: a network.
	 */
	char *path;
	uint8_t network[NETWORK_BYTES];
	uint16_t port; /* 0: any */
};

/* Without a port of its own a network has the default one of the protocol. */
GMB_MUST_CHECK int place_parse(const char *text, struct place *place, struct error *error);
void place_fini(struct place *place);
/* Whether both are the same place, however they were written, with the same credentials. */
bool place_same(const struct place *a, const struct place *b);

/* Whether the address of the URI is that place, of that protocol, with or without TLS. Paths are
 * compared as they are written, and hosts have to be addresses: nothing is looked up. */
bool place_holds(const struct place *place, const struct export_uri *uri);
