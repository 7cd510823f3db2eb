// SPDX-License-Identifier: Apache-2.0
/*
 * The lease that a client asks a server for, as a text in messages of several protocols:
 *
 *   (exclusive|shared),id=HEX,ms=NUMBER[,renew|,moves|,preempt]
 *
 * docs/protocol/nbd.md explains it; engine/lease.h has the server's side.
 *
 * Threading: pure functions. Ownership: none. Errors: as stated.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/compiler.h"

enum {
	LEASE_ID_BYTES = 16,
	/* Longer than a client needs by default to notice a loss, 30 s, and to reconnect: a client
	 * that comes later has lost its lease. */
	LEASE_MS_DEFAULT = 60000,
	LEASE_MS_MIN = 100,
	LEASE_MS_MAX = 3600000,
	LEASE_WANT_BYTES = 96, /* the longest text, with its terminator */
};

enum lease_mode { LEASE_NONE, LEASE_SHARED, LEASE_EXCLUSIVE };

/* All zeroes: no lease. */
struct lease_want {
	enum lease_mode mode;
	bool renew;		    /* the client has had the lease, and did not give it back */
	bool moves;		    /* as renew, but it was at another server of the disk */
	bool preempt;		    /* others lose their leases; alone */
	uint32_t ms;		    /* time for which the lease outlives the last connection */
	uint8_t id[LEASE_ID_BYTES]; /* a random name of the client; not all zeroes */
};

/* Returns the time of a lease, changed to the nearest limit if it is outside of the limits. */
uint32_t lease_limit_ms(uint32_t ms);
/* Formats a lease, which is not LEASE_NONE. Returns out. */
const char *lease_want_format(char out[LEASE_WANT_BYTES], const struct lease_want *want);
/* Returns false if the text is not valid. See lease_limit_ms(). */
GMB_MUST_CHECK bool lease_want_parse(const uint8_t *text, uint32_t bytes, struct lease_want *want);
