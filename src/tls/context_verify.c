// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "tls/context_private.h"

/* --- chains ----------------------------------------------------------------------------------- */

int tls_chain_init(
	struct tls_chain *chain, const gnutls_datum_t *ders, uint32_t count, struct error *error)
{
	chain->count = 0;
	if (count == 0 || count > TLS_CHAIN_COUNT_MAX) {
		return error_set(error, -EACCES,
			"the peer sent %u certificates; 1 to %d are allowed", count,
			TLS_CHAIN_COUNT_MAX);
	}
	for (uint32_t i = 0; i < count; i++) {
		int result = gnutls_x509_crt_init(&chain->certs[i]);

		if (result < 0) {
			return error_oom(error);
		}
		chain->count++;
		result = gnutls_x509_crt_import(chain->certs[i], &ders[i], GNUTLS_X509_FMT_DER);
		if (result < 0) {
			return error_set(error, -EACCES, "the peer's certificate is malformed: %s",
				gnutls_strerror(result));
		}
	}
	return 0;
}

void tls_chain_fini(struct tls_chain *chain)
{
	for (uint32_t i = 0; i < chain->count; i++) {
		gnutls_x509_crt_deinit(chain->certs[i]);
	}
	chain->count = 0;
}

static const char *chain_text(const struct tls_chain *chain, char out[IDENTITY_TEXT_BYTES])
{
	gnutls_datum_t text = { NULL, 0 };

	if (gnutls_x509_crt_get_dn3(chain->certs[0], &text, 0) < 0 || text.size == 0) {
		log_escape(out, IDENTITY_TEXT_BYTES, "a certificate without a subject", 31);
	} else {
		log_escape(out, IDENTITY_TEXT_BYTES, text.data, text.size);
	}
	gnutls_free(text.data);
	return out;
}

/* Reasons for rejection, the most specific first. */
static const struct {
	unsigned status;
	int alert;
	const char *text;
} checks[] = {
	{ GNUTLS_CERT_REVOKED, GNUTLS_A_CERTIFICATE_REVOKED, "revoked by its authority" },
	{ GNUTLS_CERT_SIGNER_NOT_FOUND, GNUTLS_A_UNKNOWN_CA, "not signed by a trusted authority" },
	{ GNUTLS_CERT_SIGNER_NOT_CA, GNUTLS_A_UNKNOWN_CA,
		"signed by a certificate that is not an authority" },
	{ GNUTLS_CERT_EXPIRED, GNUTLS_A_CERTIFICATE_EXPIRED,
		"expired, or signed by an authority that has expired" },
	{ GNUTLS_CERT_NOT_ACTIVATED, GNUTLS_A_CERTIFICATE_EXPIRED,
		"not yet valid, or signed by an authority that is not yet valid" },
	{ GNUTLS_CERT_PURPOSE_MISMATCH, GNUTLS_A_BAD_CERTIFICATE,
		"not issued for this purpose (extended key usage)" },
	{ GNUTLS_CERT_SIGNER_CONSTRAINTS_FAILURE, GNUTLS_A_BAD_CERTIFICATE,
		"violates the constraints of the authority that issued it" },
	{ GNUTLS_CERT_INSECURE_ALGORITHM, GNUTLS_A_BAD_CERTIFICATE,
		"a key or signature in the certificate chain is too weak" },
	{ GNUTLS_CERT_SIGNATURE_FAILURE, GNUTLS_A_BAD_CERTIFICATE,
		"the signature of the certificate is wrong" },
};

static int context_verify_refuse(const struct tls_chain *chain, int alert, const char *why,
	int *alert_out, struct error *error)
{
	char text[IDENTITY_TEXT_BYTES];

	*alert_out = alert;
	return error_set(error, -EACCES, "the certificate '%s' was rejected: %s",
		chain_text(chain, text), why);
}

static bool is_same_name(const gnutls_datum_t *a, const gnutls_datum_t *b)
{
	return a->size == b->size && memcmp(a->data, b->data, a->size) == 0;
}

/* Returns whether this certificate's authority has revocation lists, all of which have expired.
 * GnuTLS does not check their times. */
static bool is_crl_expired(const struct tls_context *context, gnutls_x509_crt_t cert)
{
	time_t now = time(NULL);
	gnutls_datum_t issuer = { NULL, 0 }, other = { NULL, 0 };
	bool has_any = false, has_current = false;

	if (context->crl_count == 0) {
		return false;
	}
	if (gnutls_x509_crt_get_raw_issuer_dn(cert, &issuer) < 0) {
		return true;
	}
	for (uint32_t i = 0; i < context->crl_count; i++) {
		time_t expires = gnutls_x509_crl_get_next_update(context->crls[i]);

		if (gnutls_x509_crl_get_raw_issuer_dn(context->crls[i], &other) < 0) {
			continue;
		}
		if (is_same_name(&issuer, &other)) {
			has_any = true;
			has_current = has_current || expires == (time_t)-1 || now <= expires;
		}
		gnutls_free(other.data);
	}
	gnutls_free(issuer.data);
	return has_any && !has_current;
}

/* Verifies chain, validity, purpose and revocation. Returns 0, or -EACCES and the alert. */
static int verify_chain(const struct tls_context *context, const struct tls_chain *chain,
	int *alert, struct error *error)
{
	/* The purpose that the peer's certificate must have. */
	const char *purpose =
		context->role == TLS_SERVER ? GNUTLS_KP_TLS_WWW_CLIENT : GNUTLS_KP_TLS_WWW_SERVER;
	gnutls_x509_crt_t certs[TLS_CHAIN_COUNT_MAX];
	char purpose_text[32];
	gnutls_typed_vdata_st data = { GNUTLS_DT_KEY_PURPOSE_OID, (uint8_t *)purpose_text, 0 };
	unsigned status = 0;
	int result;

	snprintf(purpose_text, sizeof(purpose_text), "%s", purpose);
	memcpy(certs, chain->certs, sizeof(certs[0]) * chain->count);
	result = gnutls_x509_trust_list_verify_crt2(context->trust, certs, chain->count, &data, 1,
		GNUTLS_PROFILE_TO_VFLAGS(GNUTLS_PROFILE_MEDIUM), &status, NULL);
	if (result < 0) {
		return context_verify_refuse(
			chain, GNUTLS_A_BAD_CERTIFICATE, gnutls_strerror(result), alert, error);
	}
	if ((status & GNUTLS_CERT_SIGNER_NOT_FOUND) != 0 && context->trusts_system) {
		return context_verify_refuse(chain, GNUTLS_A_UNKNOWN_CA,
			"not signed by a trusted authority; without a folder of certificates "
			"(tls-certificates) only the authorities of the system are trusted",
			alert, error);
	}
	for (size_t i = 0; i < ARRAY_COUNT(checks); i++) {
		if ((status & checks[i].status) != 0) {
			return context_verify_refuse(
				chain, checks[i].alert, checks[i].text, alert, error);
		}
	}
	if (status != 0) {
		return context_verify_refuse(chain, GNUTLS_A_BAD_CERTIFICATE,
			"the certificate chain is not valid", alert, error);
	}
	for (uint32_t i = 0; i < chain->count; i++) {
		if (is_crl_expired(context, chain->certs[i])) {
			return context_verify_refuse(chain, GNUTLS_A_BAD_CERTIFICATE,
				"the revocation list of the authority has expired; get a new "
				"ca-crl.pem",
				alert, error);
		}
	}
	return 0;
}

bool tls_name_is_address(const char *name, uint8_t out[16], uint32_t *bytes_out)
{
	char text[64];
	/* inet_pton() does not accept the zone of a link-local address */
	size_t length = strcspn(name, "%");

	if (length >= sizeof(text)) {
		return false;
	}
	memcpy(text, name, length);
	text[length] = '\0';
	if (inet_pton(AF_INET, text, out) == 1) {
		*bytes_out = 4;
		return true;
	}
	*bytes_out = 16;
	return inet_pton(AF_INET6, text, out) == 1;
}

/*
 * Returns whether the certificate has alternative names, but no DNS name. In this case GnuTLS uses
 * the common name, even next to an e-mail address. RFC 6125, 6.4.4, forbids this next to any
 * service identifier, and RFC 9525 forbids it completely. If an authority writes alternative
 * names, these define whose certificate it is. So the common name counts only in a certificate
 * without alternative names.
 */
static bool has_other_names_only(gnutls_x509_crt_t cert)
{
	int type = 0;

	for (unsigned i = 0; type >= 0 || type == GNUTLS_E_SHORT_MEMORY_BUFFER; i++) {
		uint8_t name[IDENTITY_STRING_BYTES_MAX + 1];
		size_t bytes = sizeof(name);

		type = gnutls_x509_crt_get_subject_alt_name(cert, i, name, &bytes, NULL);
		if (type == GNUTLS_SAN_DNSNAME) {
			return false;
		}
		if (type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE) {
			return i > 0;
		}
	}
	return true; /* malformed */
}

/* Checks the server's name. An address matches only addresses of the certificate, and a name only
 * DNS names. The common name counts only if there are no alternative names. */
static int verify_name(
	const struct tls_chain *chain, const char *name, int *alert, struct error *error)
{
	char text[IDENTITY_TEXT_BYTES];
	uint8_t address[16];
	uint32_t bytes;
	bool is_good = tls_name_is_address(name, address, &bytes)
			       ? gnutls_x509_crt_check_ip(chain->certs[0], address, bytes, 0) != 0
			       : !has_other_names_only(chain->certs[0]) &&
					 gnutls_x509_crt_check_hostname2(chain->certs[0], name,
						 GNUTLS_VERIFY_DO_NOT_ALLOW_IP_MATCHES) != 0;

	if (is_good) {
		return 0;
	}
	*alert = GNUTLS_A_BAD_CERTIFICATE;
	return error_set(error, -EACCES,
		"the certificate '%s' was rejected: not valid for '%.100s'; if this is the "
		"intended server, set tls-hostname to the name in its certificate",
		chain_text(chain, text), name);
}

int tls_check_certificate(struct tls_check *check, gnutls_session_t session)
{
	const struct tls_context *context = check->context;
	unsigned count = 0;
	const gnutls_datum_t *ders = gnutls_certificate_get_peers(session, &count);
	struct tls_chain chain = { .count = 0 };
	int rc;

	if (!context->verify_peer || check->is_verified) {
		return 0;
	}
	check->alert = GNUTLS_A_BAD_CERTIFICATE;
	rc = gnutls_certificate_type_get(session) == GNUTLS_CRT_X509 && ders != NULL
		     ? tls_chain_init(&chain, ders, count, &check->error)
		     : error_set(&check->error, -EACCES, "the peer has no X.509 certificate");
	rc = rc ?: verify_chain(context, &chain, &check->alert, &check->error);
	if (rc == 0 && context->role == TLS_CLIENT) {
		rc = verify_name(&chain, check->server_name, &check->alert, &check->error);
	}
	tls_chain_fini(&chain);
	if (rc == 0) {
		check->is_verified = true;
		check->alert = 0;
	}
	return rc == 0 ? 0 : GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR;
}

int tls_verify_function(gnutls_session_t session)
{
	return tls_check_certificate(gnutls_session_get_ptr(session), session);
}

/* --- results ---------------------------------------------------------------------------------- */

/* Advice if the two sides have no version, cipher or kind of credentials in common. */
#define COMPARE                                                                                    \
	"compare the versions and ciphers, and whether both use certificates or both use "         \
	"pre-shared keys"

/* Returns the likely cause of an alert with which the peer rejected us; NULL: the alert does not
 * reveal the cause. */
static const char *alert_hint(int alert)
{
	switch (alert) {
	case GNUTLS_A_BAD_CERTIFICATE:
	case GNUTLS_A_UNSUPPORTED_CERTIFICATE:
	case GNUTLS_A_CERTIFICATE_UNKNOWN:
	case GNUTLS_A_ACCESS_DENIED:
		return "the peer does not accept our certificate";
	case GNUTLS_A_CERTIFICATE_REVOKED:
		return "our certificate is revoked";
	case GNUTLS_A_CERTIFICATE_EXPIRED:
		return "our certificate, or an authority's, has expired";
	case GNUTLS_A_UNKNOWN_CA:
		return "the peer does not trust the authority of our certificate";
	case GNUTLS_A_CERTIFICATE_REQUIRED:
		return "the peer requires a certificate; put client-cert.pem and client-key.pem "
		       "into the folder of tls-certificates";
	case GNUTLS_A_UNKNOWN_PSK_IDENTITY:
	case GNUTLS_A_DECRYPT_ERROR:
		return "the peer has a different pre-shared key for this name, or none";
	default:
		return NULL;
	}
}

static int alert_received(
	const struct tls_check *check, gnutls_session_t session, struct error *error)
{
	int alert = (int)gnutls_alert_get(session);
	const char *name = gnutls_alert_get_name((gnutls_alert_description_t)alert);
	const char *hint = alert_hint(alert);

	/* GnuTLS sends this alert for a wrong key or name. */
	if (alert == GNUTLS_A_ILLEGAL_PARAMETER && check->context->psk_client != NULL) {
		hint = alert_hint(GNUTLS_A_UNKNOWN_PSK_IDENTITY);
	}
	name = name == NULL ? "unknown" : name;
	if (alert == GNUTLS_A_HANDSHAKE_FAILURE) {
		return error_set(
			error, -EPROTO, "the peer ended TLS with the alert '%s': " COMPARE, name);
	}
	if (hint == NULL) {
		return error_set(
			error, -EPROTO, "the peer ended TLS with the alert '%s' (%d)", name, alert);
	}
	return error_set(
		error, -EKEYREJECTED, "the peer rejected us with the alert '%s': %s", name, hint);
}

int tls_check_failed(
	const struct tls_check *check, gnutls_session_t session, int result, struct error *error)
{
	if (check->error.code != 0) {
		if (error != NULL) {
			*error = check->error;
		}
		return check->error.code;
	}
	switch (result) {
	case GNUTLS_E_MEMORY_ERROR:
		return error_oom_for(error, "TLS");
	case GNUTLS_E_FATAL_ALERT_RECEIVED:
	case GNUTLS_E_WARNING_ALERT_RECEIVED:
		return alert_received(check, session, error);
	case GNUTLS_E_NO_CERTIFICATE_FOUND:
	case GNUTLS_E_CERTIFICATE_REQUIRED:
		return error_set(error, -EACCES, "the peer sent no certificate");
	case GNUTLS_E_PK_SIG_VERIFY_FAILED:
		return error_set(error, -EACCES,
			"the peer does not have the private key of its certificate");
	case GNUTLS_E_NO_CIPHER_SUITES:
	case GNUTLS_E_UNSUPPORTED_VERSION_PACKET:
	case GNUTLS_E_NO_COMMON_KEY_SHARE:
	case GNUTLS_E_INSUFFICIENT_CREDENTIALS:
		return error_set(error, -EPROTO,
			"no common TLS parameters with the peer (%s): " COMPARE,
			gnutls_strerror(result));
	default:
		break;
	}
	if (check->psk_name[0] != '\0') {
		return error_set(error, -EACCES,
			check->is_psk_known ? "the peer has a different key for the name '%s' (%s)"
					    : "there is no pre-shared key with the name '%s' (%s)",
			check->psk_name, gnutls_strerror(result));
	}
	return error_set(error, -EPROTO, "TLS: %s", gnutls_strerror(result));
}

int tls_check_identity(struct tls_check *check, gnutls_session_t session,
	struct identity **identity_out, struct error *error)
{
	const struct tls_context *context = check->context;
	int rc;

	check->alert = GNUTLS_A_BAD_CERTIFICATE;
	if (gnutls_auth_get_type(session) == GNUTLS_CRD_PSK) {
		gnutls_datum_t name = { NULL, 0 };
		const struct tls_psk *psk = context->psk_own;

		if (context->role == TLS_SERVER) {
			psk = gnutls_psk_server_get_username2(session, &name) < 0
				      ? NULL
				      : tls_psk_find(context, name.data, name.size);
		}
		rc = psk == NULL ? error_set(error, -EACCES, "the peer has no known pre-shared key")
				 : tls_identity_of_psk(psk, identity_out, error);
	} else if (context->verify_peer) {
		unsigned count = 0;
		const gnutls_datum_t *ders = gnutls_certificate_get_peers(session, &count);

		rc = check->is_verified && ders != NULL
			     ? tls_identity_of_chain(
				       &context->trusted, ders, count, identity_out, error)
			     : error_set(error, -EACCES, "the peer's certificate was not verified");
	} else {
		*identity_out = tls_identity_nobody();
		rc = *identity_out == NULL ? error_oom(error) : 0;
	}
	check->alert = rc == 0 ? 0 : check->alert;
	return rc;
}

/* --- after the handshake --------------------------------------------------------------------- */

void tls_trust_narrow(struct tls_trust *trust, gnutls_x509_crt_t cert)
{
	trust->from = MAX(trust->from, (int64_t)gnutls_x509_crt_get_activation_time(cert));
	trust->until = MIN(trust->until, (int64_t)gnutls_x509_crt_get_expiration_time(cert));
}

/* Returns whether a new verification would give the same result, because the authorities and
 * revocation lists are the same and none has expired. Most reloads only bring a new certificate of
 * our own, so this saves 0.4 ms of signature checks per session. */
static bool is_unchanged(const struct tls_context *context, const struct tls_trust *trust)
{
	static const struct tls_trust unknown;
	int64_t now = time(NULL);

	return memcmp(context->trusted.digest, unknown.digest, sizeof(unknown.digest)) != 0 &&
	       memcmp(context->trusted.digest, trust->digest, sizeof(trust->digest)) == 0 &&
	       now >= trust->from && now <= trust->until;
}

static int recheck_psk(const struct tls_context *context, const struct identity *identity,
	const struct identity_value *name, struct error *error)
{
	const struct tls_psk *psk = tls_psk_find(context, name->data, name->bytes);
	uint8_t digest[IDENTITY_DIGEST_BYTES];

	if (psk == NULL) {
		return error_set(error, -EACCES, "the pre-shared key was removed");
	}
	if (tls_psk_digest(psk, digest) != 0 || identity->proof_bytes != sizeof(digest) ||
		memcmp(digest, identity->proof, sizeof(digest)) != 0) {
		return error_set(error, -EACCES, "the pre-shared key has changed");
	}
	return 0;
}

int tls_context_recheck(
	struct tls_context *context, const struct identity *identity, struct error *error)
{
	gnutls_datum_t ders[TLS_CHAIN_COUNT_MAX];
	struct tls_trust trust;
	struct tls_chain chain;
	uint32_t count;
	int alert = 0;
	int rc;

	if (!identity->is_proved && context->role == TLS_SERVER) {
		if (context->verify_peer) {
			return error_set(error, -EACCES, "certificates are now required");
		}
		return context->use_certificates
			       ? 0
			       : error_set(error, -EACCES, "pre-shared keys are now required");
	}
	if (!identity->is_proved) {
		return 0;
	}
	for (uint32_t i = 0; i < identity->value_count; i++) {
		if (identity->values[i].kind == IDENTITY_PSK) {
			return recheck_psk(context, identity, &identity->values[i], error);
		}
	}
	if (context->trust == NULL) {
		return error_set(error, -EACCES, "certificates are no longer verified");
	}
	count = tls_identity_chain(identity, &trust, ders);
	if (is_unchanged(context, &trust)) {
		return 0;
	}
	rc = tls_chain_init(&chain, ders, count, error);
	rc = rc ?: verify_chain(context, &chain, &alert, error);
	tls_chain_fini(&chain);
	return rc;
}
