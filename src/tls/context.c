// SPDX-License-Identifier: Apache-2.0
#include "tls/context.h"

#include <errno.h>
#include <gnutls/crypto.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "tls/context_private.h"
#include "tls/kernel.h"

/* Our order of ciphers takes precedence over the peer's. With NORMAL on both sides, certificates
 * get AES-256-GCM, and pre-shared keys get ChaCha20-Poly1305, which is five times as slow. CBC and
 * CCM are left out, because kernel records do not support them. */
#define PRIORITY_COMMON                                                                            \
	"-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:"               \
	"+CHACHA20-POLY1305:" TLS_PRIORITY_GROUPS ":%SERVER_PRECEDENCE"
#define PRIORITY_PSK ":+ECDHE-PSK:+DHE-PSK:+PSK"

/* --- warnings --------------------------------------------------------------------------------- */

void tls_context_warn(struct tls_context *context, const char *format, ...)
{
	va_list args;
	char *text = NULL;

	if (context->warning_count == TLS_WARNINGS_MAX) {
		return;
	}
	va_start(args, format);
	if (vasprintf(&text, format, args) >= 0) {
		context->warnings[context->warning_count++] = text;
	}
	va_end(args);
}

static void warn_again_at(struct tls_context *context, time_t at)
{
	if (context->warn_at == 0 || at < context->warn_at) {
		context->warn_at = at;
	}
}

void tls_context_warn_expiry(struct tls_context *context, const char *what, time_t expires)
{
	const time_t day = 24 * 3600;
	const time_t ahead = TLS_WARN_AHEAD_DAYS * day;
	time_t left = expires - time(NULL);
	char text[TLS_TIME_TEXT_BYTES];

	if (expires == (time_t)-1) {
		return;
	}
	if (left > ahead) {
		warn_again_at(context, expires - ahead);
	} else if (left > 0) {
		long days = (long)(left / day);

		tls_context_warn(context,
			days == 1 ? "%s expires in %ld day, on %s"
				  : "%s expires in %ld days, on %s",
			what, days, tls_time_text(expires, text));
	}
}

void tls_context_warn_crl_expiry(struct tls_context *context, const char *what, time_t expires)
{
	char text[TLS_TIME_TEXT_BYTES];

	tls_context_warn_expiry(context, what, expires);
	if (expires == (time_t)-1) {
		return;
	}
	if (time(NULL) < expires) {
		warn_again_at(context, expires);
	} else {
		tls_context_warn(context,
			"%s expired on %s; certificates of the list's authority are rejected", what,
			tls_time_text(expires, text));
	}
}

const char *tls_context_warning(const struct tls_context *context, uint32_t idx)
{
	return idx < context->warning_count ? context->warnings[idx] : NULL;
}

/* --- loading ---------------------------------------------------------------------------------- */

static bool is_folder(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Returns the user's entry in the password database, for the login name and home directory. Its
 * strings are in buffer. */
static struct passwd *login(struct passwd *entry, char *buffer, size_t bytes)
{
	struct passwd *found = NULL;

	return getpwuid_r(geteuid(), entry, buffer, bytes, &found) == 0 ? found : NULL;
}

/* Returns the default folder: /etc/pki/gmblock for root, otherwise the first folder below that
 * exists in the home directory. -ENOENT: none exists. */
static int default_folder(char **folder_out)
{
	static const char *const in_home[] = { ".pki/gmblock", ".config/pki/gmblock" };
	char buffer[4096];
	struct passwd entry;
	const char *home = secure_getenv("HOME");

	if (geteuid() == 0) {
		*folder_out = strdup("/etc/pki/gmblock");
		return *folder_out == NULL ? -ENOMEM : 0;
	}
	if (home == NULL || home[0] != '/') {
		struct passwd *found = login(&entry, buffer, sizeof(buffer));

		home = found == NULL ? NULL : found->pw_dir;
	}
	for (size_t i = 0; home != NULL && i < ARRAY_COUNT(in_home); i++) {
		char *folder;

		if (asprintf(&folder, "%s/%s", home, in_home[i]) < 0) {
			return -ENOMEM;
		}
		if (is_folder(folder)) {
			*folder_out = folder;
			return 0;
		}
		free(folder);
	}
	return -ENOENT;
}

static int load_certificates(
	struct tls_context *context, const struct tls_options *options, struct error *error)
{
	char *folder = NULL;
	int rc = 0;

	if (options->certificates == NULL) {
		rc = default_folder(&folder);
		if (rc == 0 && !is_folder(folder)) {
			free(folder);
			folder = NULL;
			rc = -ENOENT;
		}
		if (rc == -ENOENT && context->role == TLS_SERVER) {
			return error_set(error, rc,
				"TLS requires a folder of certificates (tls-certificates) or a "
				"file of pre-shared keys (tls-psk); name one, or create %s",
				geteuid() == 0 ? "/etc/pki/gmblock" : "~/.pki/gmblock");
		}
		if (rc == -ENOMEM) {
			return error_oom(error);
		}
	} else if (access(options->certificates, F_OK) < 0) {
		return error_set(error, -errno,
			"cannot use the folder of certificates (tls-certificates) %s: %s; name "
			"the folder with %s",
			options->certificates, strerror(errno),
			context->role == TLS_SERVER ? "server-cert.pem and server-key.pem"
						    : "ca-cert.pem");
	} else if (!is_folder(options->certificates)) {
		return error_set(error, -ENOTDIR,
			"%s is not a folder of certificates (tls-certificates)",
			options->certificates);
	}
	rc = tls_certificates_load(
		context, options->certificates == NULL ? folder : options->certificates, error);
	context->use_certificates = rc == 0;
	free(folder);
	return rc;
}

static int context_unknown_key(gnutls_datum_t *key)
{
	key->size = IDENTITY_DIGEST_BYTES;
	key->data = gnutls_malloc(key->size);
	return key->data == NULL ? GNUTLS_E_MEMORY_ERROR
				 : gnutls_rnd(GNUTLS_RND_KEY, key->data, key->size);
}

static int copy_datum(gnutls_datum_t *out, const void *data, uint32_t bytes)
{
	out->size = bytes;
	out->data = gnutls_malloc(bytes);
	if (out->data == NULL) {
		return GNUTLS_E_MEMORY_ERROR;
	}
	memcpy(out->data, data, bytes);
	return 0;
}

/* Called by GnuTLS to find a key by its name. GnuTLS wipes the key afterwards. */
static int server_key(gnutls_session_t session, const gnutls_datum_t *name, gnutls_datum_t *key)
{
	struct tls_check *check = gnutls_session_get_ptr(session);
	const struct tls_psk *psk = tls_psk_find(check->context, name->data, name->size);

	log_escape(check->psk_name, sizeof(check->psk_name), name->data,
		MIN(name->size, (unsigned)IDENTITY_STRING_BYTES_MAX));
	check->is_psk_known = psk != NULL;
	/* An unknown name gets a random key, so that it fails at the same place and with the same
	 * alert as a wrong key. Clients cannot find out which names exist. */
	return psk == NULL ? context_unknown_key(key) : copy_datum(key, psk->key, psk->key_bytes);
}

static int client_key(gnutls_session_t session, gnutls_datum_t *name, gnutls_datum_t *key)
{
	const struct tls_check *check = gnutls_session_get_ptr(session);
	const struct tls_psk *psk = check->context->psk_own;
	int result = copy_datum(name, psk->name, psk->name_bytes);

	return result == 0 ? copy_datum(key, psk->key, psk->key_bytes) : result;
}

static int choose_key(struct tls_context *context, const char *user, struct error *error)
{
	char buffer[4096], shown[IDENTITY_TEXT_BYTES];
	bool is_login = user == NULL;
	struct passwd entry;

	if (is_login) {
		struct passwd *found = login(&entry, buffer, sizeof(buffer));

		if (found == NULL) {
			return error_set(error, -EINVAL,
				"the user who runs this program has no login name; name the "
				"pre-shared key to use");
		}
		user = found->pw_name;
	}
	context->psk_own = tls_psk_find(context, user, strlen(user));
	if (context->psk_own == NULL) {
		return error_set(error, -ENOENT, "%s has no key with the name '%s'%s",
			tls_context_path(context),
			log_escape(shown, sizeof(shown), user, strlen(user)),
			is_login ? ", the login name; give the name of a key (in a URI, as user@)"
				 : "");
	}
	return 0;
}

static int load_psks(
	struct tls_context *context, const struct tls_options *options, struct error *error)
{
	int rc = tls_psk_load(context, options->psk_file, error);

	if (rc == 0 && context->role == TLS_CLIENT) {
		rc = choose_key(context, options->user, error);
	}
	if (rc != 0) {
		return rc;
	}
	if (context->role == TLS_SERVER) {
		rc = gnutls_psk_allocate_server_credentials(&context->psk_server);
		if (rc >= 0) {
			gnutls_psk_set_server_credentials_function2(
				context->psk_server, server_key);
		}
	} else {
		rc = gnutls_psk_allocate_client_credentials(&context->psk_client);
		if (rc >= 0) {
			gnutls_psk_set_client_credentials_function2(
				context->psk_client, client_key);
		}
	}
	return rc < 0 ? error_oom(error) : 0;
}

static int load_priority(struct tls_context *context, const char *wanted, struct error *error)
{
	bool has_psk = context->psk_count > 0;
	const char *ours = !has_psk ? "NORMAL:" PRIORITY_COMMON
			   : context->use_certificates
				   ? "NORMAL:" PRIORITY_COMMON PRIORITY_PSK
				   : "NORMAL:-KX-ALL:" PRIORITY_COMMON PRIORITY_PSK;
	const char *place = NULL;
	int result = gnutls_priority_init(
		&context->priority, wanted == NULL ? ours : wanted, wanted == NULL ? NULL : &place);

	if (result >= 0) {
		return 0;
	}
	context->priority = NULL;
	if (place != NULL) {
		return error_set(error, -EINVAL,
			"the TLS priority string is invalid from '%.60s' on: %s", place,
			gnutls_strerror(result));
	}
	return error_set(error, -EINVAL,
		"the cryptography policy of this system does not allow gmblock's ciphers (%s); set "
		"a TLS priority, for example @SYSTEM",
		gnutls_strerror(result));
}

static int context_load(
	struct tls_context *context, const struct tls_options *options, struct error *error)
{
	/* A client uses one kind of credentials. A server without options uses its default
	 * folder. */
	bool wants_psk = options->role == TLS_CLIENT ? options->use_psk : options->psk_file != NULL;
	bool wants_certificates = options->role == TLS_CLIENT ? !options->use_psk
							      : options->certificates != NULL ||
									options->psk_file == NULL;
	int rc = 0;

	if (wants_psk && options->psk_file == NULL) {
		return error_set(error, -EINVAL, "name the file of the pre-shared key");
	}
	if (options->role == TLS_SERVER && options->verify_peer && !wants_certificates) {
		return error_set(error, -EINVAL,
			"tls-verify-peer requests client certificates, but only pre-shared keys "
			"are configured; omit tls-verify-peer, because each key already identifies "
			"its client, or name a folder of certificates (tls-certificates)");
	}
	if (wants_certificates) {
		rc = load_certificates(context, options, error);
	}
	if (rc == 0 && wants_psk) {
		rc = load_psks(context, options, error);
	}
	return rc == 0 ? load_priority(context, options->priority, error) : rc;
}

int tls_context_load(
	const struct tls_options *options, struct tls_context **context_out, struct error *error)
{
	struct tls_context *context = calloc(1, sizeof(*context));
	int rc;

	if (context == NULL) {
		return error_oom(error);
	}
	atomic_init(&context->references, 1);
	context->role = options->role;
	context->records = options->records;
	context->verify_peer = options->verify_peer;
	rc = context_load(context, options, error) ?: tls_kernel_look(options->records, error);
	if (rc != 0) {
		tls_context_put(context);
		return rc;
	}
	*context_out = context;
	return 0;
}

void tls_context_get(struct tls_context *context)
{
	/* Relaxed: the caller already has a reference. */
	atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
}

void tls_context_put(struct tls_context *context)
{
	/* Acquire-release: all other uses of the context happened before it is freed. */
	if (context == NULL ||
		atomic_fetch_sub_explicit(&context->references, 1, memory_order_acq_rel) != 1) {
		return;
	}
	if (context->priority != NULL) {
		gnutls_priority_deinit(context->priority);
	}
	gnutls_free(context->crls);
	if (context->certificates != NULL) {
		gnutls_certificate_free_credentials(context->certificates);
	}
	if (context->psk_server != NULL) {
		gnutls_psk_free_server_credentials(context->psk_server);
	}
	if (context->psk_client != NULL) {
		gnutls_psk_free_client_credentials(context->psk_client);
	}
	tls_bytes_free(&context->psk_bytes);
	free(context->psks);
	for (uint32_t i = 0; i < context->file_count; i++) {
		free(context->files[i].path);
	}
	for (uint32_t i = 0; i < context->warning_count; i++) {
		free(context->warnings[i]);
	}
	free(context);
}

const char *tls_context_file(const struct tls_context *context, uint32_t idx)
{
	return idx < context->file_count ? context->files[idx].path : NULL;
}

bool tls_context_is_stale(const struct tls_context *context)
{
	if (context->warn_at != 0 && time(NULL) >= context->warn_at) {
		return true;
	}
	for (uint32_t i = 0; i < context->file_count; i++) {
		if (tls_file_is_stale(&context->files[i])) {
			return true;
		}
	}
	return false;
}

static bool had_file(const struct tls_context *context, const struct tls_file *file)
{
	for (uint32_t i = 0; i < context->file_count; i++) {
		const struct tls_file *other = &context->files[i];

		if (strcmp(other->path, file->path) == 0) {
			return other->is_there == file->is_there &&
			       (!file->is_there || memcmp(other->digest, file->digest,
							   sizeof(file->digest)) == 0);
		}
	}
	return !file->is_there;
}

const char *tls_context_changed_file(
	const struct tls_context *before, const struct tls_context *after, uint32_t *idx)
{
	while (*idx < after->file_count) {
		const struct tls_file *file = &after->files[(*idx)++];

		if (!had_file(before, file)) {
			return file->path;
		}
	}
	return NULL;
}

/* --- handshakes ------------------------------------------------------------------------------- */

enum tls_role tls_context_role(const struct tls_context *context)
{
	return context->role;
}

enum tls_records tls_context_records(const struct tls_context *context)
{
	return context->records;
}

static int give_certificates(struct tls_check *check, gnutls_session_t session, struct error *error)
{
	const struct tls_context *context = check->context;
	bool is_server = context->role == TLS_SERVER;
	uint8_t address[16];
	uint32_t bytes;

	if (gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, context->certificates) < 0) {
		return error_oom(error);
	}
	if (is_server) {
		gnutls_certificate_server_set_request(
			session, context->verify_peer ? GNUTLS_CERT_REQUIRE : GNUTLS_CERT_IGNORE);
	} else if (check->server_name == NULL && context->verify_peer) {
		return error_set(error, -EINVAL,
			"the name that the server's certificate must have is unknown; set it with "
			"tls-hostname");
	} else if (check->server_name != NULL &&
		   !tls_name_is_address(check->server_name, address, &bytes) &&
		   gnutls_server_name_set(session, GNUTLS_NAME_DNS, check->server_name,
			   strlen(check->server_name)) < 0) {
		return error_set(error, -EINVAL, "'%.200s' is not a host name", check->server_name);
	}
	if (context->verify_peer) {
		gnutls_session_set_verify_function(session, tls_verify_function);
	}
	return 0;
}

int tls_context_prepare(struct tls_check *check, gnutls_session_t session, struct error *error)
{
	const struct tls_context *context = check->context;
	int result = gnutls_priority_set(session, context->priority);

	gnutls_session_set_ptr(session, check);
	gnutls_handshake_set_max_packet_length(session, TLS_HANDSHAKE_MESSAGE_BYTES_MAX);
	if (result >= 0 && context->psk_server != NULL) {
		result = gnutls_credentials_set(session, GNUTLS_CRD_PSK, context->psk_server);
	}
	if (result >= 0 && context->psk_client != NULL) {
		result = gnutls_credentials_set(session, GNUTLS_CRD_PSK, context->psk_client);
	}
	if (result < 0) {
		return error_oom(error);
	}
	return context->use_certificates ? give_certificates(check, session, error) : 0;
}
