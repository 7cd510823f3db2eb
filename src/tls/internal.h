// SPDX-License-Identifier: Apache-2.0
/*
 * What a layer needs of a context for one handshake. Only src/tls includes it.
 *
 *   struct tls_check check = { .context = ..., .server_name = ... };
 *   gnutls_init() ─▶ tls_context_prepare(&check, session) ─▶ gnutls_handshake(), again and again
 *        0:  tls_check_identity() ─▶ struct identity
 *        <0: tls_check_failed() ─▶ errno and a sentence for the operator
 *
 * The peer's certificate is verified inside the handshake, so that the peer gets its alert: by
 * tls_check_certificate(), which the session calls itself where the layer has not before.
 *
 * Threading: a check and its session belong to one thread at a time; it is a worker that calls all
 * functions but tls_context_role() and tls_context_records(). Ownership: a check is the layer's and
 * outlives its session, whose pointer (gnutls_session_set_ptr()) it takes. Errors: see each.
 */
#pragma once

#include <gnutls/gnutls.h>

#include "tls/context.h"

enum {
	/* What we take of a peer in one handshake message: gnutls_handshake_set_max_packet_length()
	 * of every session. Our own chains are kept below it, so that we always understand
	 * ourselves. */
	TLS_HANDSHAKE_MESSAGE_BYTES_MAX = 32768,
	TLS_CHAIN_BYTES_MAX = 30000,
};

struct tls_check {
	struct tls_context *context; /* borrowed: the layer has a reference */
	const char *server_name;     /* borrowed; client that verifies: a host name or an address */
	/* Out, while the handshake runs: why it will fail. */
	struct error error; /* code 0: nothing yet */
	int alert;	    /* what the peer is told about it: a gnutls_alert_description_t, or 0 */
	/* Private. */
	bool is_verified;		    /* a certificate of the peer was */
	bool is_psk_known;		    /* server: the name that the client gave, and: */
	char psk_name[IDENTITY_TEXT_BYTES]; /* escaped; empty: none so far */
};

enum tls_role tls_context_role(const struct tls_context *context);
enum tls_records tls_context_records(const struct tls_context *context);

/* Gives a new session of this role its credentials, priorities, verification and limits. -ENOMEM;
 * -EINVAL: a client that verifies certificates, and no server_name. */
GMB_MUST_CHECK int tls_context_prepare(
	struct tls_check *check, gnutls_session_t session, struct error *error);

/* The certificate that the peer has shown, where this context verifies; once, at the latest before
 * its key is used. 0, or a fatal GnuTLS error with the reason in check->error. */
GMB_MUST_CHECK int tls_check_certificate(struct tls_check *check, gnutls_session_t session);

/* Who the peer of a finished handshake is; a reference for the caller. -EACCES: an identity beyond
 * the bounds or with bytes that it must not have; check->alert is the alert for it. -ENOMEM. */
GMB_MUST_CHECK int tls_check_identity(struct tls_check *check, gnutls_session_t session,
	struct identity **identity_out, struct error *error);

/* What result, a fatal one of gnutls_handshake(), means: -EACCES the peer was not believed,
 * -EKEYREJECTED it did not believe us (its alert says so), -EPROTO it broke TLS, -ENOMEM. The alert
 * to send is check->alert, or else gnutls_error_to_alert(). */
GMB_MUST_CHECK int tls_check_failed(
	const struct tls_check *check, gnutls_session_t session, int result, struct error *error);

/* --- in another process ----------------------------------------------------------------------- */

/* How many bytes tell another process who the peer is. */
uint32_t tls_peer_bytes(const struct identity *identity);
/* Those bytes, and how many. */
uint32_t tls_peer_tell(const struct identity *identity, uint8_t *out);
/* There: who it is by the credentials of now; a reference for the caller. Blocks as long as a
 * certificate takes to be verified. -EPROTO: the bytes make no sense, -EACCES: it is not let in any
 * more, -ENOMEM. */
GMB_MUST_CHECK int tls_peer_take(struct tls_context *context, const uint8_t *bytes, uint32_t count,
	struct identity **identity_out, struct error *error);
