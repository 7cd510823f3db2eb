// SPDX-License-Identifier: Apache-2.0
/*
 * Two ends of TLS made by GnuTLS alone, for tests of what takes over from it. Certificates are made
 * on the spot; nobody is verified.
 */
#pragma once

#include <gnutls/gnutls.h>

#include "tls/kernel.h"

struct tls_ends {
	gnutls_certificate_credentials_t credentials[2];
	gnutls_session_t sessions[2]; /* enum tls_role */
	struct tls_keys keys[2];      /* with the secrets that the handshake left */
};

/* Sessions that have not shaken hands and have no transport. */
void tls_ends_begin(struct tls_ends *ends, enum tls_version version, enum tls_cipher cipher);
/* Both take steps, until both are done. */
void tls_ends_shake(struct tls_ends *ends);
void tls_ends_end(struct tls_ends *ends);
