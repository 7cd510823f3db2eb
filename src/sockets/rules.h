// SPDX-License-Identifier: Apache-2.0
/*
 * The configuration of libclan-sockets: the programs and connections that are carried. The grammar
 * is in clan-sockets(7).
 *
 * Threading: read-only after parsing. Ownership: the struct contains all of its memory. Errors:
 * negative errno, and an error message.
 */
#pragma once

#include <sys/socket.h>

#include "base/error.h"

enum {
	RULES_MAX = 64,
	RULES_TEXT_BYTES_MAX = 65536,
	RULES_AFTER_DEFAULT = 8,
	RULES_AFTER_MAX = 1000000,
	RULES_RING_DEFAULT = 65536, /* size of a ring; each direction has one */
	RULES_RING_BULK = 1048576,  /* size for a connection that fills its rings repeatedly */
	RULES_RING_MIN = 16384,
	RULES_RING_MAX = 4194304,
};

/* An IPv6 address; IPv4 addresses are mapped. */
struct rules_address {
	uint8_t bytes[16];
	uint16_t port; /* port in host byte order */
};

enum rules_kind { RULES_CONNECT, RULES_LISTEN };

struct rules_rule {
	enum rules_kind kind;
	struct rules_address address; /* port 0: any */
	uint8_t prefix_bits;	      /* length of the address prefix */
};

struct rules {
	struct rules_rule rule[RULES_MAX];
	uint32_t count;
	bool program_named;   /* there are "program" lines */
	bool program_matches; /* a "program" line names this program */
	uint32_t after;	      /* calls before a connection is carried */
	uint32_t ring_bytes;  /* 0: not configured */
	/* For tests: number of calls after which a connection returns to TCP; 0 = never. */
	uint32_t switch_every;
	bool no_compare; /* connections are carried even if TCP is faster */
	bool no_spin;	 /* threads never poll before they sleep */
	bool refuse;	 /* for tests: rejects all peers */
};

/* Parses a text of lines (or of statements separated by semicolons) for the program with that
 * name. */
GMB_MUST_CHECK int rules_parse(
	struct rules *rules, const char *text, const char *program, struct error *error);

/* Returns true if the rules apply to this program. */
bool rules_apply(const struct rules *rules);

/* Converts a socket address. Returns false if it is neither IPv4 nor IPv6. */
bool rules_address_of(const struct sockaddr *from, socklen_t length, struct rules_address *address);

/* Returns true if a rule of this kind matches the address. */
bool rules_match(
	const struct rules *rules, enum rules_kind kind, const struct rules_address *address);
/* Compares the port only: for a listener at the unspecified address, whose connections can have any
 * address. */
bool rules_match_port(const struct rules *rules, enum rules_kind kind, uint16_t port);
