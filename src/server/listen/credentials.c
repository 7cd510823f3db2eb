// SPDX-License-Identifier: Apache-2.0
#include "server/listen/credentials.h"

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "server/change/forecast.h"
#include "tls/client.h"
#include "tls/layer.h"

enum { FILES_BYTES = 600 };

/* A listener with TLS. */
struct member {
	const struct server_tls *settings;
	struct tls_policy *policy;
	char label[EXPORT_URI_LABEL_BYTES];
};

struct credentials {
	struct place *places; /* all push destinations, with and without TLS */
	uint32_t place_count;
	struct tls_pool *pool; /* pool of TLS handshake workers; NULL: no listener has TLS */
	uint32_t count;
	struct member members[];
};

struct credentials_set {
	uint32_t count;
	struct tls_context *contexts[]; /* one per member; members with equal settings share one */
};

/* --- sets ------------------------------------------------------------------------------------ */

/* Adds advice to the error if the sandbox prevents a file of the context in use from being read
 * again. */
static void credentials_explain(const struct tls_context *context, struct error *error)
{
	const char *path;

	for (uint32_t i = 0; (path = tls_context_file(context, i)) != NULL; i++) {
		if (sandbox_explain(path, false, "restart the server", error)) {
			break;
		}
	}
}

/* Adds advice to an error about the TLS files of a listener. At the start there is no context in
 * use and no sandbox, so there is no advice. */
static void explain_member(const struct member *member, struct error *error)
{
	if (member->policy != NULL) {
		struct tls_context *context = tls_policy_context(member->policy);

		credentials_explain(context, error);
		tls_context_put(context);
	}
}

static int listen_credentials_load(
	const struct member *member, struct tls_context **context_out, struct error *error)
{
	const struct tls_options options = {
		.role = TLS_SERVER,
		.certificates = member->settings->certificates,
		.psk_file = member->settings->psk,
		.verify_peer = member->settings->verify_peer,
		.priority = member->settings->priority,
		.records = member->settings->records,
	};
	int rc = tls_context_load(&options, context_out, error);

	if (rc < 0) {
		explain_member(member, error);
		error_prefix(error, "cannot set up TLS at %s", member->label);
	}
	return rc;
}

/* Loads the TLS context of the next listener, or shares the context of an earlier listener with
 * equal settings. */
static int load_next(
	const struct credentials *credentials, struct credentials_set *set, struct error *error)
{
	const struct member *member = &credentials->members[set->count];
	struct tls_context **context = &set->contexts[set->count];
	int rc = 0;

	for (uint32_t i = 0; i < set->count && *context == NULL; i++) {
		if (server_tls_equal(credentials->members[i].settings, member->settings)) {
			*context = set->contexts[i];
			tls_context_get(*context);
		}
	}
	if (*context == NULL) {
		rc = listen_credentials_load(member, context, error);
	}
	set->count += rc == 0;
	return rc;
}

int credentials_load(const struct credentials *credentials, struct credentials_set **set_out,
	struct error *error)
{
	struct credentials_set *set =
		calloc(1, sizeof(*set) + credentials->count * sizeof(set->contexts[0]));
	int rc = 0;

	if (set == NULL) {
		return error_oom_for(error, "TLS credentials");
	}
	while (rc == 0 && set->count < credentials->count) {
		rc = load_next(credentials, set, error);
	}
	if (rc < 0) {
		credentials_set_free(set);
		return rc;
	}
	*set_out = set;
	return 0;
}

void credentials_set_free(struct credentials_set *set)
{
	for (uint32_t i = 0; set != NULL && i < set->count; i++) {
		tls_context_put(set->contexts[i]);
	}
	free(set);
}

static bool is_first_use(const struct credentials_set *set, uint32_t idx)
{
	for (uint32_t i = 0; i < idx; i++) {
		if (set->contexts[i] == set->contexts[idx]) {
			return false;
		}
	}
	return true;
}

static void credentials_warn(
	const struct credentials *credentials, const struct credentials_set *set)
{
	for (uint32_t i = 0; i < set->count; i++) {
		const char *warning;

		for (uint32_t k = 0; is_first_use(set, i) &&
				     (warning = tls_context_warning(set->contexts[i], k)) != NULL;
			k++) {
			log_warning("TLS at %s: %s", credentials->members[i].label, warning);
		}
	}
}

void credentials_use(struct credentials *credentials, struct credentials_set *set)
{
	credentials_warn(credentials, set);
	for (uint32_t i = 0; i < set->count; i++) {
		tls_policy_replace(credentials->members[i].policy, set->contexts[i]);
	}
	free(set);
}

/* --- differences of a set -------------------------------------------------------------------- */

int credentials_foresee(const struct credentials *credentials, const struct credentials_set *set,
	struct forecast *forecast, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < set->count; i++) {
		rc = forecast_tls(forecast, credentials->members[i].policy, set->contexts[i]);
	}
	return rc < 0 ? error_set(error, rc, "no memory for TLS credentials") : 0;
}

/* Lists the TLS files of a listener that have changed, separated by commas. */
static void list_files(
	const struct member *member, const struct tls_context *after, char out[FILES_BYTES])
{
	struct tls_context *before = tls_policy_context(member->policy);
	uint32_t idx = 0;
	const char *path;
	size_t used = 0;

	out[0] = '\0';
	while ((path = tls_context_changed_file(before, after, &idx)) != NULL &&
		used < FILES_BYTES) {
		used += (size_t)snprintf(
			out + used, FILES_BYTES - used, "%s%s", used > 0 ? ", " : "", quote(path));
	}
	tls_context_put(before);
}

void credentials_tell(const struct credentials *credentials, const struct credentials_set *set,
	const struct forecast *forecast, json_t *lines)
{
	for (uint32_t i = 0; i < set->count; i++) {
		const struct member *member = &credentials->members[i];
		struct forecast_counts counts = forecast_of_policy(forecast, member->policy);
		char files[FILES_BYTES];
		char ends[FORECAST_TEXT_BYTES];
		char line[FILES_BYTES + FORECAST_TEXT_BYTES + EXPORT_URI_LABEL_BYTES + 80];

		list_files(member, set->contexts[i], files);
		if (files[0] != '\0' || counts.end > 0) {
			const char *text = counts.end > 0 ? forecast_text(&counts, ends)
							  : "no connection is closed";

			snprintf(line, sizeof(line), "TLS at %s: %s%s%s", member->label, files,
				files[0] != '\0' ? " changed; " : "", text);
			json_array_append_new(lines, json_string(line));
		}
	}
}

/* --- life ------------------------------------------------------------------------------------ */

static int create_policies(
	struct credentials *credentials, struct credentials_set *set, struct error *error)
{
	for (uint32_t i = 0; i < set->count; i++) {
		struct member *member = &credentials->members[i];

		tls_context_get(set->contexts[i]);
		if (tls_policy_create(member->settings->mode, set->contexts[i], credentials->pool,
			    &member->policy) < 0) {
			return error_oom_for(error, "TLS");
		}
	}
	return 0;
}

static int open_members(struct credentials *credentials, struct error *error)
{
	const struct tls_pool_options options = { 0 };
	struct credentials_set *set;
	int rc = credentials_load(credentials, &set, error);

	if (rc < 0) {
		return rc;
	}
	rc = tls_pool_create(&options, &credentials->pool, error);
	rc = rc ?: create_policies(credentials, set, error);
	if (rc == 0) {
		credentials_warn(credentials, set);
	}
	credentials_set_free(set);
	return rc;
}

/* Reads the destination's TLS files at the start, so that mistakes in them are reported then. */
static int open_place(struct place *place, struct error *error)
{
	struct tls_context *context;
	int rc = tls_client_create_for_place(place, credentials_explain, &place->opened, error);

	rc = rc ?: tls_client_context(place->opened, &context, error);
	if (rc < 0) {
		error_prefix(error, "cannot set up TLS for --push-to %s", quote(place->text));
		return rc;
	}
	tls_context_put(context);
	return 0;
}

static int credentials_open_places(struct credentials *credentials, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < credentials->place_count; i++) {
		if (credentials->places[i].tls) {
			rc = open_place(&credentials->places[i], error);
		}
	}
	return rc;
}

int credentials_open(struct server_config *config, struct listener *listeners,
	uint32_t listener_count, struct credentials **credentials_out, struct error *error)
{
	struct credentials *credentials =
		calloc(1, sizeof(*credentials) + listener_count * sizeof(credentials->members[0]));
	uint32_t next = 0;
	int rc = 0;

	if (credentials == NULL) {
		return error_oom_for(error, "TLS credentials");
	}
	credentials->places = config->push_places;
	credentials->place_count = config->push_place_count;
	for (uint32_t i = 0; i < listener_count; i++) {
		if (listeners[i].settings->mode != TLS_OFF) {
			struct member *member = &credentials->members[credentials->count++];

			member->settings = listeners[i].settings;
			export_uri_label(member->label, &listeners[i].uri);
		}
	}
	if (credentials->count > 0) {
		rc = open_members(credentials, error);
	}
	rc = rc ?: credentials_open_places(credentials, error);
	if (rc < 0) {
		credentials_close(credentials);
		return rc;
	}
	for (uint32_t i = 0; i < listener_count; i++) {
		if (listeners[i].settings->mode != TLS_OFF) {
			listeners[i].tls = credentials->members[next++].policy;
		}
	}
	*credentials_out = credentials;
	return 0;
}

void credentials_synchronize(struct credentials *credentials)
{
	if (credentials == NULL) {
		return;
	}
	if (credentials->pool != NULL) {
		tls_pool_synchronize(credentials->pool);
	}
	for (uint32_t i = 0; i < credentials->place_count; i++) {
		if (credentials->places[i].opened != NULL) {
			tls_pool_synchronize(tls_client_pool(credentials->places[i].opened));
		}
	}
}

void credentials_close(struct credentials *credentials)
{
	if (credentials == NULL) {
		return;
	}
	for (uint32_t i = 0; i < credentials->count; i++) {
		tls_policy_destroy(credentials->members[i].policy);
	}
	tls_pool_destroy(credentials->pool);
	for (uint32_t i = 0; i < credentials->place_count; i++) {
		tls_client_destroy(credentials->places[i].opened);
		credentials->places[i].opened = NULL;
	}
	free(credentials);
}

/* Permits the file's folder, because renaming a new file to this name can replace the file. If the
 * file is a symbolic link, also permits the target's folder. The file itself need not exist yet.
 * Folders that other programs share are not permitted. */
static int allow_file(
	struct sandbox *sandbox, const char *path, const char *option, struct error *error)
{
	char copy[PATH_MAX];
	const char *folder;
	int rc = sandbox_allow_beside(sandbox, path, SANDBOX_READ, option, error);

	snprintf(copy, sizeof(copy), "%s", path);
	folder = dirname(copy);
	return rc < 0 || sandbox_is_broad(folder)
		       ? rc
		       : sandbox_allow(sandbox, folder, SANDBOX_READ, error);
}

static int allow_place(const struct place *place, struct sandbox *sandbox, struct error *error)
{
	struct tls_context *context;
	const char *path;
	int rc = tls_client_context(place->opened, &context, error);

	if (rc < 0) {
		return rc;
	}
	for (uint32_t i = 0; rc == 0 && (path = tls_context_file(context, i)) != NULL; i++) {
		rc = allow_file(sandbox, path, "--push-to", error);
	}
	tls_context_put(context);
	return rc;
}

int credentials_allow(
	const struct credentials *credentials, struct sandbox *sandbox, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < credentials->place_count; i++) {
		if (credentials->places[i].tls) {
			rc = allow_place(&credentials->places[i], sandbox, error);
		}
	}

	for (uint32_t i = 0; rc == 0 && i < credentials->count; i++) {
		struct tls_context *context = tls_policy_context(credentials->members[i].policy);
		const char *psk = credentials->members[i].settings->psk;
		const char *path;

		for (uint32_t k = 0; rc == 0 && (path = tls_context_file(context, k)) != NULL;
			k++) {
			bool is_psk = psk != NULL && strcmp(path, psk) == 0;

			rc = allow_file(
				sandbox, path, is_psk ? "--tls-psk" : "--tls-certificates", error);
		}
		tls_context_put(context);
	}
	return rc;
}

uint32_t credentials_count(const struct credentials *credentials)
{
	return credentials->count;
}

bool credentials_are_stale(const struct credentials *credentials)
{
	bool stale = false;

	for (uint32_t i = 0; i < credentials->count && !stale; i++) {
		struct tls_context *context = tls_policy_context(credentials->members[i].policy);

		stale = tls_context_is_stale(context);
		tls_context_put(context);
	}
	return stale;
}
