// SPDX-License-Identifier: Apache-2.0
#include "tls/client.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

struct tls_client {
	struct tls_options options; /* options; the strings in them are the members below */
	char *certificates;
	char *psk_file;
	char *user;
	char *server_name; /* name to check for all servers; NULL: taken from each URI */
	bool checks_name;
	char label[EXPORT_URI_LABEL_BYTES];
	struct tls_pool *pool;
	tls_client_explain *explain; /* can be NULL */

	pthread_mutex_t lock;
	struct tls_context *context; /* the latest usable one, or NULL */
	/* the files have changed but cannot be loaded, which was logged; context is older than the
	 * files */
	bool is_behind;
	struct error behind; /* if is_behind: reason why the files cannot be loaded */
};

static int choose_type(const struct export_uri *uri, bool *use_psk, struct error *error)
{
	bool has_type = uri->tls_type != NULL;

	*use_psk = has_type ? strcmp(uri->tls_type, "psk") == 0 : uri->tls_psk_file != NULL;
	if (uri->tls_psk_file != NULL && uri->tls_certificates != NULL) {
		return error_set(error, -EINVAL,
			"a connection uses either a pre-shared key or certificates: give only one "
			"of tls-psk-file and tls-certificates");
	}
	if (*use_psk && uri->tls_psk_file == NULL) {
		return error_set(error, -EINVAL, "tls-type=psk requires tls-psk-file=FILE%s",
			uri->tls_certificates != NULL ? ", and no tls-certificates" : "");
	}
	if (!*use_psk && uri->tls_psk_file != NULL) {
		return error_set(error, -EINVAL,
			"tls-type=x509 requires tls-certificates=FOLDER instead of tls-psk-file");
	}
	return 0;
}

/* Chooses the name that must be in the certificate: the host name or tls-hostname, as the user
 * wrote it. */
static int choose_name(struct tls_client *tls, const struct export_uri *uri, bool use_psk,
	bool verify, struct error *error)
{
	tls->checks_name = verify && !use_psk;
	if (!tls->checks_name) {
		return 0;
	}
	if (uri->tls_hostname == NULL && uri->host == NULL) {
		return error_set(error, -EINVAL,
			"a Unix socket has no host name to check in the server's certificate: add "
			"tls-hostname=NAME");
	}
	if (uri->tls_hostname != NULL) {
		tls->server_name = strdup(uri->tls_hostname);
		return tls->server_name != NULL ? 0 : error_oom(error);
	}
	return 0;
}

/* Returns an absolute path, because the process might be in another folder when the file is read
 * again. Links are not resolved, because renewed files might come with a new link. NULL: path is
 * NULL, or -ENOMEM in *err. */
static char *tls_client_absolute(const char *path, int *err)
{
	char folder[PATH_MAX];
	char *out = NULL;

	if (path == NULL) {
		return NULL;
	}
	if (path[0] == '/' || getcwd(folder, sizeof(folder)) == NULL) {
		out = strdup(path);
	} else if (asprintf(&out, "%s/%s", folder, path) < 0) {
		out = NULL;
	}
	if (out == NULL) {
		*err = -ENOMEM;
	}
	return out;
}

int tls_client_create(
	const struct export_uri *uri, struct tls_client **tls_out, struct error *error)
{
	const struct tls_pool_options pool_options = { .threads = 1 };
	struct tls_client *tls = calloc(1, sizeof(*tls));
	bool verify = uri->tls_verify_peer == NULL || strcmp(uri->tls_verify_peer, "1") == 0;
	bool use_psk;
	int err;

	GMB_ASSERT(uri->tls);
	if (tls == NULL) {
		return error_oom(error);
	}
	pthread_mutex_init(&tls->lock, NULL);
	export_uri_label(tls->label, uri);
	err = choose_type(uri, &use_psk, error) ?: choose_name(tls, uri, use_psk, verify, error);
	if (err == 0) {
		tls->certificates = tls_client_absolute(uri->tls_certificates, &err);
		tls->psk_file = tls_client_absolute(uri->tls_psk_file, &err);
		tls->user = uri->user != NULL ? strdup(uri->user) : NULL;
		if (err != 0 || (tls->user == NULL) != (uri->user == NULL)) {
			err = error_oom(error);
		}
	}
	err = err ?: tls_pool_create(&pool_options, &tls->pool, error);
	if (err != 0) {
		tls_client_destroy(tls);
		return err;
	}
	tls->options = (struct tls_options){
		.role = TLS_CLIENT,
		.certificates = tls->certificates,
		.psk_file = tls->psk_file,
		.verify_peer = verify,
		.user = tls->user,
		.use_psk = use_psk,
	};
	*tls_out = tls;
	return 0;
}

int tls_client_create_for_place(const struct place *place, tls_client_explain *explain,
	struct tls_client **tls_out, struct error *error)
{
	const struct export_uri uri = {
		.protocol = place->protocol,
		.tls = place->tls,
		.is_unix = place->path != NULL,
		.host = place->path == NULL ? place->text : NULL,
		.socket_path = place->path,
		.socket_path_bytes = place->path != NULL ? (uint32_t)strlen(place->path) : 0,
		.user = place->tls_username,
		.tls_certificates = place->tls_certificates,
		.tls_psk_file = place->tls_psk_file,
		.tls_hostname = place->tls_hostname,
	};
	int err = tls_client_create(&uri, tls_out, error);

	if (err == 0) {
		(*tls_out)->explain = explain;
		log_escape((*tls_out)->label, sizeof((*tls_out)->label), place->text,
			strlen(place->text));
	}
	return err;
}

/* With TLS 1.2 and a pre-shared key, GnuTLS has AES-GCM with forward secrecy only for DHE-PSK. */
#define DRIVER_PRIORITY                                                                            \
	"-VERS-ALL:+VERS-TLS1.2:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:+CHACHA20-"                  \
	"POLY1305:" TLS_PRIORITY_GROUPS

int tls_client_create_for_driver(
	const struct export_uri *uri, struct tls_client **tls_out, struct error *error)
{
	int err = tls_client_create(uri, tls_out, error);

	if (err == 0) {
		(*tls_out)->options.priority = (*tls_out)->options.use_psk
						       ? "NORMAL:-KX-ALL:+DHE-PSK:" DRIVER_PRIORITY
						       : "NORMAL:" DRIVER_PRIORITY;
	}
	return err;
}

void tls_client_destroy(struct tls_client *tls)
{
	if (tls != NULL) {
		tls_pool_destroy(tls->pool);
		tls_context_put(tls->context);
		pthread_mutex_destroy(&tls->lock);
		free(tls->certificates);
		free(tls->psk_file);
		free(tls->user);
		free(tls->server_name);
		free(tls);
	}
}

static void warn_of(const struct tls_client *tls)
{
	const char *text;

	for (uint32_t i = 0; (text = tls_context_warning(tls->context, i)) != NULL; i++) {
		log_warning("%s: %s", tls->label, text);
	}
	if (!tls_client_verifies(tls)) {
		log_warning("%s: the server's identity is not verified (tls-verify-peer=0): anyone "
			    "on the network path can read and change all data",
			tls->label);
	}
}

/* Loads the credentials; the caller holds the lock. If that fails, those loaded before stay in use.
 */
static int tls_client_load(struct tls_client *tls, struct error *error)
{
	struct tls_context *fresh;
	int err = tls_context_load(&tls->options, &fresh, error);

	if (err == 0) {
		tls_context_put(tls->context);
		tls->context = fresh;
		tls->is_behind = false;
		warn_of(tls);
		return 0;
	}
	if (tls->context == NULL) {
		return err;
	}
	if (tls->explain != NULL) {
		tls->explain(tls->context, error);
	}
	tls->behind = *error;
	if (!tls->is_behind) {
		log_warning("%s; the credentials read earlier stay in use until this is corrected",
			error->text);
		tls->is_behind = true;
	}
	*error = (struct error){ 0 };
	return 0;
}

int tls_client_context(
	struct tls_client *tls, struct tls_context **context_out, struct error *error)
{
	int err = 0;

	pthread_mutex_lock(&tls->lock);
	if (tls->context == NULL || tls_context_is_stale(tls->context)) {
		err = tls_client_load(tls, error);
	}
	if (err == 0) {
		tls_context_get(tls->context);
		*context_out = tls->context;
	}
	pthread_mutex_unlock(&tls->lock);
	return err;
}

bool tls_client_is_behind(struct tls_client *tls, char text[ERROR_TEXT_BYTES])
{
	bool is_behind;

	pthread_mutex_lock(&tls->lock);
	is_behind = tls->is_behind;
	if (is_behind) {
		memcpy(text, tls->behind.text, ERROR_TEXT_BYTES);
	}
	pthread_mutex_unlock(&tls->lock);
	return is_behind;
}

struct tls_pool *tls_client_pool(const struct tls_client *tls)
{
	return tls->pool;
}

const char *tls_client_server_name(const struct tls_client *tls, const struct export_uri *uri)
{
	if (!tls->checks_name) {
		return NULL;
	}
	return tls->server_name != NULL	   ? tls->server_name
	       : uri->tls_hostname != NULL ? uri->tls_hostname
					   : uri->host;
}

const char *tls_client_advice(const struct tls_client *tls)
{
	return tls->options.use_psk
		       ? "the server might have a different pre-shared key for this user, or none: "
			 "check the user name and tls-psk-file"
		       : "the server might require a client certificate from an authority that it "
			 "trusts: check client-cert.pem in the folder of tls-certificates";
}

bool tls_client_verifies(const struct tls_client *tls)
{
	return tls->options.use_psk || tls->options.verify_peer;
}
