// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <gnutls/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tls/context_private.h"

/* Our own certificate and key, while they are loaded. The context owns everything else from the
 * start. */
struct own {
	gnutls_x509_crt_t *certs; /* the leaf certificate first */
	unsigned cert_count;
	gnutls_x509_privkey_t key;
};

const char *tls_time_text(time_t at, char out[TLS_TIME_TEXT_BYTES])
{
	struct tm tm;

	if (gmtime_r(&at, &tm) == NULL ||
		strftime(out, TLS_TIME_TEXT_BYTES, "%Y-%m-%d %H:%M UTC", &tm) == 0) {
		return "a time far away";
	}
	return out;
}

/* Returns whether the file ends inside a PEM block, so that the last certificate or list is
 * incomplete. GnuTLS would ignore the incomplete block without an error. */
static bool context_certs_is_cut(const struct tls_bytes *bytes)
{
	const char *at = bytes->data;
	uint32_t rules = 0; /* number of "-----": two around BEGIN, two around END */

	while ((at = memmem(at, bytes->len - (size_t)(at - bytes->data), "-----", 5)) != NULL) {
		rules++;
		at += 5;
	}
	return rules % 4 != 0;
}

static int parse_failed(const char *path, const char *what, int result, struct error *error)
{
	if (result == GNUTLS_E_MEMORY_ERROR) {
		return error_oom_for(error, "%s", path);
	}
	return error_set(error, -EINVAL, "%s has no valid %s in PEM format: %s", path, what,
		gnutls_strerror(result));
}

static int read_certs(struct tls_context *context, const char *folder, const char *name,
	bool is_optional, unsigned flags, gnutls_x509_crt_t **certs, unsigned *count,
	struct error *error)
{
	struct tls_bytes bytes;
	const char *path;
	int rc = tls_context_read(
		context, folder, name, TLS_FILE_PUBLIC, is_optional, &bytes, error);

	if (rc != 0 || bytes.data == NULL) {
		return rc;
	}
	path = tls_context_path(context);
	if (context_certs_is_cut(&bytes)) {
		rc = error_set(error, -EINVAL,
			"%s ends within a certificate; perhaps it is still being written", path);
	} else {
		const gnutls_datum_t pem = { (uint8_t *)bytes.data, (unsigned)bytes.len };
		int result = gnutls_x509_crt_list_import2(
			certs, count, &pem, GNUTLS_X509_FMT_PEM, flags);

		if (result == GNUTLS_E_CERTIFICATE_LIST_UNSORTED) {
			rc = error_set(error, -EINVAL,
				"%s: the certificates do not form a chain that begins with the "
				"server's or client's own",
				path);
		} else if (result < 0) {
			*certs = NULL;
			rc = parse_failed(path, "certificate", result, error);
		}
	}
	tls_bytes_free(&bytes);
	return rc;
}

/* --- our own certificate ---------------------------------------------------------------------- */

static int check_validity(gnutls_x509_crt_t cert, const char *path, struct error *error)
{
	time_t now = time(NULL);
	time_t begins = gnutls_x509_crt_get_activation_time(cert);
	time_t expires = gnutls_x509_crt_get_expiration_time(cert);
	char text[TLS_TIME_TEXT_BYTES];

	if (begins == (time_t)-1 || expires == (time_t)-1) {
		return error_set(error, -EINVAL, "%s: a certificate has no validity period", path);
	}
	if (now < begins) {
		return error_set(error, -EINVAL, "%s is not valid until %s; check the clock", path,
			tls_time_text(begins, text));
	}
	if (now > expires) {
		return error_set(
			error, -EINVAL, "%s expired on %s", path, tls_time_text(expires, text));
	}
	return 0;
}

/* Checks whether peers will accept the certificate, because they would only report "bad
 * certificate". */
static int check_own(
	struct tls_context *context, const struct own *own, const char *path, struct error *error)
{
	bool is_server = context->role == TLS_SERVER;
	unsigned bits = 0, usage = 0;
	int algorithm = gnutls_x509_crt_get_pk_algorithm(own->certs[0], &bits);
	size_t chain_bytes = 0;
	int rc = 0;

	for (unsigned i = 0; i < own->cert_count && rc == 0; i++) {
		size_t bytes = 0;

		if (gnutls_x509_crt_export(own->certs[i], GNUTLS_X509_FMT_DER, NULL, &bytes) ==
			GNUTLS_E_SHORT_MEMORY_BUFFER) {
			chain_bytes += bytes;
		}
		rc = check_validity(own->certs[i], path, error);
		tls_context_warn_expiry(
			context, path, gnutls_x509_crt_get_expiration_time(own->certs[i]));
	}
	if (rc != 0) {
		return rc;
	}
	if (own->cert_count > TLS_CHAIN_COUNT_MAX || chain_bytes > TLS_CHAIN_BYTES_MAX) {
		return error_set(error, -E2BIG,
			"%s: a chain of %u certificates and %zu bytes is too long; the limits are "
			"%d and %d",
			path, own->cert_count, chain_bytes, TLS_CHAIN_COUNT_MAX,
			TLS_CHAIN_BYTES_MAX);
	}
	if (gnutls_x509_crt_check_key_purpose(own->certs[0],
		    is_server ? GNUTLS_KP_TLS_WWW_SERVER : GNUTLS_KP_TLS_WWW_CLIENT, 0) == 0) {
		return error_set(error, -EINVAL,
			"%s is not for TLS %ss: its extended key usage lists other purposes", path,
			is_server ? "server" : "client");
	}
	if (gnutls_x509_crt_get_key_usage(own->certs[0], &usage, NULL) == 0 &&
		(usage & GNUTLS_KEY_DIGITAL_SIGNATURE) == 0) {
		return error_set(error, -EINVAL,
			"%s: its key usage does not allow signatures, which TLS 1.3 requires",
			path);
	}
	if (algorithm < 0 || gnutls_pk_bits_to_sec_param((gnutls_pk_algorithm_t)algorithm, bits) <
				     GNUTLS_SEC_PARAM_MEDIUM) {
		return error_set(error, -EINVAL,
			"%s: a key of %u bits is too weak; use ECDSA or Ed25519, or RSA with at "
			"least 2048 bits",
			path, bits);
	}
	if (is_server && (algorithm == GNUTLS_PK_RSA || algorithm == GNUTLS_PK_RSA_PSS)) {
		/* A signature takes 0.41 ms with ECDSA P-256, 3 ms with RSA of 2048 bits and 6.8 ms
		 * with RSA of 3072 bits (GnuTLS 3.7.9, AES-NI): about the square of the bits. */
		tls_context_warn(context,
			"%s: an RSA key of %u bits makes handshakes %u times as expensive as ECDSA",
			path, bits, (unsigned)(7ULL * bits * bits / (2048ULL * 2048)));
	}
	return 0;
}

static int base64_digit(char c)
{
	if (c >= 'A' && c <= 'Z') {
		return c - 'A';
	}
	if (c >= 'a' && c <= 'z') {
		return c - 'a' + 26;
	}
	if (c >= '0' && c <= '9') {
		return c - '0' + 52;
	}
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes the first block "... PRIVATE KEY" in place, because GnuTLS would leave a copy of the
 * text in freed memory. Other text can surround the block (RFC 7468, section 2). False: no such
 * block, or not base64. */
static bool decode_key(struct tls_bytes *bytes, gnutls_datum_t *der)
{
	static const char rule[] = "-----", begin[] = "-----BEGIN ", label[] = "PRIVATE KEY";
	const char *at = bytes->data;
	const char *end;
	uint8_t *to = (uint8_t *)bytes->data;
	uint32_t bits = 0, bit_count = 0;

	do {
		at = strstr(at, begin);
		end = at == NULL ? NULL : strstr(at + strlen(begin), rule);
		if (end == NULL) {
			return false;
		}
		at = end + strlen(rule);
	} while ((size_t)(end - bytes->data) < strlen(begin) + strlen(label) ||
		 memcmp(end - strlen(label), label, strlen(label)) != 0);
	for (; *at != '-' && *at != '='; at++) {
		int digit = base64_digit(*at);

		if (digit >= 0) {
			bits = bits << 6 | (uint32_t)digit;
			bit_count += 6;
		} else if (*at == '\0' || strchr(" \t\r\n", *at) == NULL) {
			return false;
		}
		if (bit_count >= 8) {
			bit_count -= 8;
			*to++ = (uint8_t)(bits >> bit_count);
		}
	}
	der->data = (uint8_t *)bytes->data;
	der->size = (unsigned)(to - der->data);
	return true;
}

static int import_key(gnutls_x509_privkey_t *key, const gnutls_datum_t *der)
{
	int result = gnutls_x509_privkey_init(key);

	if (result < 0) {
		*key = NULL;
		return result;
	}
	result = gnutls_x509_privkey_import_pkcs8(
		*key, der, GNUTLS_X509_FMT_DER, NULL, GNUTLS_PKCS_PLAIN);
	return result >= 0 ? result : gnutls_x509_privkey_import(*key, der, GNUTLS_X509_FMT_DER);
}

/* Returns whether the key is encrypted: PKCS #8 (RFC 7468 section 11), or a header of the older
 * form (RFC 1421 section 4.6.1.1). Words in the surrounding text do not count. */
static bool is_encrypted(const char *pem)
{
	return strstr(pem, "-----BEGIN ENCRYPTED PRIVATE KEY-----") != NULL ||
	       strstr(pem, "\nProc-Type: 4,ENCRYPTED") != NULL;
}

static int read_key(struct tls_context *context, const char *folder, const char *name,
	struct own *own, struct error *error)
{
	struct tls_bytes bytes;
	gnutls_datum_t der;
	const char *path;
	int rc = tls_context_read(context, folder, name, TLS_FILE_SECRET, false, &bytes, error);

	if (rc != 0) {
		return rc;
	}
	path = tls_context_path(context);
	if (context_certs_is_cut(&bytes)) {
		rc = error_set(error, -EINVAL,
			"%s ends within the key; perhaps it is still being written", path);
	} else if (is_encrypted(bytes.data)) {
		rc = error_set(error, -EINVAL,
			"%s is protected with a password, which cannot be entered here; remove it "
			"with 'certtool -k --infile OLD --outfile NEW'",
			path);
	} else if (!decode_key(&bytes, &der)) {
		rc = error_set(error, -EINVAL, "%s has no valid key in PEM format", path);
	} else {
		int result = import_key(&own->key, &der);

		if (result < 0) {
			rc = parse_failed(path, "key", result, error);
		}
	}
	tls_bytes_free(&bytes);
	return rc;
}

static void own_fini(struct own *own)
{
	for (unsigned i = 0; i < own->cert_count; i++) {
		gnutls_x509_crt_deinit(own->certs[i]);
	}
	gnutls_free(own->certs);
	if (own->key != NULL) {
		gnutls_x509_privkey_deinit(own->key);
	}
}

/* Loads certificate and key. They are required for a server; a client has both or none. */
static int load_own(struct tls_context *context, const char *folder, struct error *error)
{
	bool is_server = context->role == TLS_SERVER;
	struct own own = { .certs = NULL };
	char *path = NULL;
	int result;
	int rc = read_certs(context, folder, is_server ? "server-cert.pem" : "client-cert.pem",
		!is_server, GNUTLS_X509_CRT_LIST_FAIL_IF_UNSORTED, &own.certs, &own.cert_count,
		error);

	if (rc == 0 && own.certs == NULL) {
		struct tls_bytes bytes;

		rc = tls_context_read(
			context, folder, "client-key.pem", TLS_FILE_SECRET, true, &bytes, error);
		if (rc == 0 && bytes.data != NULL) {
			rc = error_set(error, -EINVAL,
				"%s has a client-key.pem but no client-cert.pem", folder);
		}
		tls_bytes_free(&bytes);
		return rc;
	}
	if (rc == 0) {
		path = strdup(tls_context_path(context));
		rc = path == NULL ? error_oom(error) : check_own(context, &own, path, error);
	}
	if (rc == 0) {
		rc = read_key(context, folder, is_server ? "server-key.pem" : "client-key.pem",
			&own, error);
	}
	if (rc == 0) {
		result = gnutls_certificate_set_x509_key(
			context->certificates, own.certs, (int)own.cert_count, own.key);
		if (result == GNUTLS_E_CERTIFICATE_KEY_MISMATCH) {
			rc = error_set(error, -EINVAL, "%s is not the key of %s",
				tls_context_path(context), path);
		} else if (result < 0) {
			rc = error_set(
				error, -EINVAL, "cannot use %s: %s", path, gnutls_strerror(result));
		}
	}
	free(path);
	own_fini(&own);
	return rc;
}

/* --- authorities for peers ------------------------------------------------------------------- */

static int check_authorities(struct tls_context *context, const gnutls_x509_crt_t *certs,
	unsigned count, const char *path, struct error *error)
{
	unsigned valid = 0;
	int rc = 0;

	for (unsigned i = 0; i < count; i++) {
		if (gnutls_x509_crt_get_ca_status(certs[i], NULL) != 1) {
			return error_set(error, -EINVAL,
				"%s: certificate %u is not an authority (basicConstraints has no "
				"CA:TRUE)",
				path, i + 1);
		}
		if (check_validity(certs[i], path, error) == 0) {
			valid++;
			tls_context_warn_expiry(
				context, path, gnutls_x509_crt_get_expiration_time(certs[i]));
		} else {
			rc = -EINVAL;
		}
	}
	if (valid > 0 && rc != 0) {
		tls_context_warn(context, "%s: %u of %u authorities are currently not valid", path,
			count - valid, count);
		rc = 0;
	}
	return rc;
}

static int load_authorities(struct tls_context *context, const char *folder,
	gnutls_x509_crt_t **certs_out, unsigned *count_out, struct error *error)
{
	gnutls_x509_crt_t *certs = NULL;
	unsigned count = 0;
	int rc = read_certs(context, folder, "ca-cert.pem", false, 0, &certs, &count, error);
	int added;

	rc = rc ?: check_authorities(context, certs, count, tls_context_path(context), error);
	if (rc != 0) {
		for (unsigned i = 0; i < count && certs != NULL; i++) {
			gnutls_x509_crt_deinit(certs[i]);
		}
		gnutls_free(certs);
		return rc;
	}
	/* The list owns the certificates now, but we own the array. */
	added = gnutls_x509_trust_list_add_cas(context->trust, certs, count, GNUTLS_TL_USE_IN_TLS);
	*certs_out = certs;
	*count_out = count;
	if (added != (int)count) {
		return error_oom_for(error, "the authorities of %s", folder);
	}
	return 0;
}

/* Checks that the list is signed by one of the authorities. An expired list is loaded: the
 * certificates of its authority are then rejected, which operators notice sooner than a failing
 * reload. */
static int check_crl(struct tls_context *context, gnutls_x509_crl_t crl,
	const gnutls_x509_crt_t *certs, unsigned count, const char *path, struct error *error)
{
	time_t now = time(NULL);
	unsigned status = 0;
	char text[TLS_TIME_TEXT_BYTES];
	int result = gnutls_x509_crl_verify(crl, certs, count, 0, &status);

	if (gnutls_x509_crl_get_this_update(crl) > now) {
		return error_set(error, -EINVAL, "%s is not valid until %s; check the clock", path,
			tls_time_text(gnutls_x509_crl_get_this_update(crl), text));
	}
	/* gnutls_x509_crl_verify() rejects an expired list, even with flags that disable the checks
	 * of times. An expired list must be loaded here, so this error is ignored. */
	if ((status & GNUTLS_CERT_REVOCATION_DATA_SUPERSEDED) != 0) {
		status &= ~(unsigned)(GNUTLS_CERT_REVOCATION_DATA_SUPERSEDED | GNUTLS_CERT_INVALID);
	}
	if (result < 0 || status != 0) {
		return error_set(error, -EINVAL,
			"%s is not signed by an authority in ca-cert.pem that may sign revocation "
			"lists",
			path);
	}
	tls_context_warn_crl_expiry(context, path, gnutls_x509_crl_get_next_update(crl));
	return 0;
}

static int load_crls(struct tls_context *context, const char *folder,
	const gnutls_x509_crt_t *certs, unsigned count, struct error *error)
{
	struct tls_bytes bytes;
	const char *path;
	gnutls_x509_crl_t *crls = NULL;
	unsigned crl_count = 0;
	int rc = tls_context_read(
		context, folder, "ca-crl.pem", TLS_FILE_PUBLIC, true, &bytes, error);

	if (rc != 0 || bytes.data == NULL) {
		return rc;
	}
	path = tls_context_path(context);
	if (context_certs_is_cut(&bytes)) {
		rc = error_set(error, -EINVAL,
			"%s ends within a revocation list; perhaps it is still being written",
			path);
	} else {
		const gnutls_datum_t pem = { (uint8_t *)bytes.data, (unsigned)bytes.len };
		int result = gnutls_x509_crl_list_import2(
			&crls, &crl_count, &pem, GNUTLS_X509_FMT_PEM, 0);

		if (result < 0) {
			crls = NULL;
			rc = parse_failed(path, "revocation list", result, error);
		}
	}
	tls_bytes_free(&bytes);
	for (unsigned i = 0; rc == 0 && i < crl_count; i++) {
		rc = check_crl(context, crls[i], certs, count, path, error);
	}
	if (rc == 0 && gnutls_x509_trust_list_add_crls(context->trust, crls, crl_count, 0, 0) !=
			       (int)crl_count) {
		rc = error_oom_for(error, "the revocation lists of %s", path);
	} else if (rc != 0) {
		for (unsigned i = 0; i < crl_count && crls != NULL; i++) {
			gnutls_x509_crl_deinit(crls[i]);
		}
	}
	if (rc == 0) {
		context->crls = crls;
		context->crl_count = crl_count;
	} else {
		gnutls_free(crls);
	}
	return rc;
}

/* Sets the digest and the period of validity in context->trusted. The two files loaded last are the
 * authorities and their revocation lists. */
static int describe_trust(struct tls_context *context, const gnutls_x509_crt_t *certs,
	unsigned count, struct error *error)
{
	struct tls_trust *trusted = &context->trusted;
	uint8_t digests[2][IDENTITY_DIGEST_BYTES];

	for (uint32_t i = 0; i < 2; i++) {
		memcpy(digests[i], context->files[context->file_count - 2 + i].digest,
			sizeof(digests[i]));
	}
	if (gnutls_hash_fast(GNUTLS_DIG_SHA256, digests, sizeof(digests), trusted->digest) < 0) {
		return error_oom(error);
	}
	trusted->until = INT64_MAX;
	for (unsigned i = 0; i < count; i++) {
		tls_trust_narrow(trusted, certs[i]);
	}
	for (uint32_t i = 0; i < context->crl_count; i++) {
		time_t expires = gnutls_x509_crl_get_next_update(context->crls[i]);

		if (expires != (time_t)-1) {
			trusted->until = MIN(trusted->until, (int64_t)expires);
		}
	}
	return 0;
}

static int load_trust(struct tls_context *context, const char *folder, struct error *error)
{
	gnutls_x509_crt_t *certs = NULL;
	unsigned count = 0;
	int rc = 0;

	if (gnutls_x509_trust_list_init(&context->trust, 0) < 0) {
		return error_oom(error);
	}
	/* The credentials own the list from here on. */
	gnutls_certificate_set_trust_list(context->certificates, context->trust, 0);
	if (folder == NULL) {
		context->trusts_system = true;
		if (gnutls_x509_trust_list_add_system_trust(context->trust, 0, 0) <= 0) {
			rc = error_set(error, -ENOENT,
				"this system has no trusted authorities; name a folder with "
				"ca-cert.pem");
		}
		return rc;
	}
	rc = load_authorities(context, folder, &certs, &count, error);
	rc = rc ?: load_crls(context, folder, certs, count, error);
	rc = rc ?: describe_trust(context, certs, count, error);
	gnutls_free(certs);
	return rc;
}

int tls_certificates_load(struct tls_context *context, const char *folder, struct error *error)
{
	int rc = 0;

	if (gnutls_certificate_allocate_credentials(&context->certificates) < 0) {
		context->certificates = NULL;
		return error_oom(error);
	}
	if (folder != NULL) {
		rc = load_own(context, folder, error);
	}
	if (rc == 0 && context->verify_peer) {
		rc = load_trust(context, folder, error);
	}
	return rc;
}
