// SPDX-License-Identifier: Apache-2.0
/*
 * Interface between a layer and a context for one handshake. Only src/tls includes it.
 *
 *   struct tls_check check = { .context = ..., .server_name = ... };
 *   gnutls_init() ─▶ tls_context_prepare(&check, session) ─▶ gnutls_handshake(), repeatedly
 *        0:  tls_check_identity() ─▶ struct identity
 *        <0: tls_check_failed() ─▶ errno and a sentence for the operator
 *
 * tls_check_certificate() verifies the peer's certificate during the handshake, so that a rejected
 * peer receives an alert. The layer calls it before the certificate's key is used. If the layer has
 * not called it, GnuTLS does (tls_verify_function()).
 *
 * Threading: a check and its session belong to one thread at a time. Workers call all functions
 * except tls_context_role() and tls_context_records(). Ownership: the layer owns a check, which
 * outlives its session and takes the session's user pointer (gnutls_session_set_ptr()). Errors:
 * see each.
 */
#pragma once

#include <gnutls/gnutls.h>

#include "tls/context.h"

enum {
	/* Longest handshake message accepted from a peer: gnutls_handshake_set_max_packet_length()
	 * of every session. Our own chains are shorter, so that two instances always accept each
	 * other's. */
	TLS_HANDSHAKE_MESSAGE_BYTES_MAX = 32768,
	TLS_CHAIN_BYTES_MAX = 30000,
};

struct tls_check {
	struct tls_context *context; /* borrowed: the layer has a reference */
	/* borrowed; client that verifies: a host name or an address */
	const char *server_name;
	/* Set while the handshake runs: the reason why it will fail. */
	struct error error; /* code 0: none so far */
	int alert;	    /* the alert for the peer, a gnutls_alert_description_t; or 0 */
	/* Private. */
	bool is_verified;  /* the peer's certificate was verified */
	bool is_psk_known; /* server: psk_name is the name of a key */
	/* the name that the client gave, escaped; empty: none so far */
	char psk_name[IDENTITY_TEXT_BYTES];
};

enum tls_role tls_context_role(const struct tls_context *context);
enum tls_records tls_context_records(const struct tls_context *context);

/* Gives a new session of this role its credentials, priorities, verification and limits. -ENOMEM;
 * -EINVAL: a client that verifies certificates has no server_name. */
GMB_MUST_CHECK int tls_context_prepare(
	struct tls_check *check, gnutls_session_t session, struct error *error);

/* Verifies the certificate that the peer has presented, if the context has verify_peer set. Must be
 * called before the certificate's key is used. Further calls have no effect. Returns 0, or a fatal
 * GnuTLS error with the reason in check->error. */
GMB_MUST_CHECK int tls_check_certificate(struct tls_check *check, gnutls_session_t session);

/* Returns the identity of a peer whose handshake has finished, with a reference for the caller.
 * -EACCES: the identity exceeds a limit or contains invalid bytes; check->alert is the alert for
 * it. -ENOMEM. */
GMB_MUST_CHECK int tls_check_identity(struct tls_check *check, gnutls_session_t session,
	struct identity **identity_out, struct error *error);

/* Explains result, a fatal result of gnutls_handshake(). -EACCES: we rejected the peer;
 * -EKEYREJECTED: the peer rejected us, according to its alert; -EPROTO: it violated TLS; -ENOMEM.
 * The alert to send is check->alert, or else gnutls_error_to_alert(). */
GMB_MUST_CHECK int tls_check_failed(
	const struct tls_check *check, gnutls_session_t session, int result, struct error *error);

/* --- in another process ----------------------------------------------------------------------- */

/* Returns the size of the identity's encoding for another process. */
uint32_t tls_peer_bytes(const struct identity *identity);
/* Writes the encoding, and returns its size. */
uint32_t tls_peer_tell(const struct identity *identity, uint8_t *out);
/* Called in the process that takes over a connection: returns the identity, verified with the
 * current credentials, with a reference for the caller. Blocks while it verifies a certificate.
 * -EPROTO: invalid encoding; -EACCES: the peer is no longer accepted; -ENOMEM. */
GMB_MUST_CHECK int tls_peer_take(struct tls_context *context, const uint8_t *bytes, uint32_t count,
	struct identity **identity_out, struct error *error);
