// SPDX-License-Identifier: Apache-2.0
/*
 * What the configuration of libclan-sockets says: which connections of which programs are carried.
 * The grammar is in clan-sockets(7).
 *
 * Threading: read-only once it is parsed. Ownership: no memory but its own. Errors: negative errno,
 * and a sentence for people.
 */
#pragma once

#include <sys/socket.h>

#include "base/error.h"

enum {
	RULES_MAX = 64,
	RULES_TEXT_BYTES_MAX = 65536,
	RULES_AFTER_DEFAULT = 8,
	RULES_AFTER_MAX = 1000000,
	RULES_RING_DEFAULT = 65536, /* bytes each way, */
	RULES_RING_BULK = 1048576,  /* and of a connection that fills them again and again */
	RULES_RING_MIN = 16384,
	RULES_RING_MAX = 4194304,
};

/* An address of 16 bytes, of IPv4 as the addresses that IPv6 maps it to. */
struct rules_address {
	uint8_t bytes[16];
	uint16_t port; /* host order */
};

enum rules_kind { RULES_CONNECT, RULES_LISTEN };

struct rules_rule {
	enum rules_kind kind;
	struct rules_address address; /* port 0: any */
	uint8_t prefix_bits;	      /* of the address */
};

struct rules {
	struct rules_rule rule[RULES_MAX];
	uint32_t count;
	bool program_named;   /* there are lines "program" */
	bool program_matches; /* and one of them names this program */
	uint32_t after;	      /* reads or writes before a connection is carried */
	uint32_t ring_bytes;  /* 0: not said */
	uint32_t
		switch_every; /* for tests: each so many calls a connection is given back; 0 = no */
	bool refuse;	      /* for tests: nobody is accepted */
};

/* Parses a text of lines (or of statements between semicolons) for a program of that name. */
GMB_MUST_CHECK int rules_parse(
	struct rules *rules, const char *text, const char *program, struct error *error);

/* Is there anything to do in this program? */
bool rules_apply(const struct rules *rules);

/* Makes one of a socket address; false: neither IPv4 nor IPv6. */
bool rules_address_of(const struct sockaddr *from, socklen_t length, struct rules_address *address);

/* Does a rule of the kind name the address? */
bool rules_match(
	const struct rules *rules, enum rules_kind kind, const struct rules_address *address);
/* The same for the port alone: for a listener, whose connections have an address each. */
bool rules_match_port(const struct rules *rules, enum rules_kind kind, uint16_t port);
