// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/config/config.h"

const char *const server_tls_modes[] = {
	[TLS_OFF] = "off", [TLS_ON] = "on", [TLS_REQUIRE] = "require", NULL
};
const char *const server_tls_records[] = { [TLS_RECORDS_AUTO] = "auto",
	[TLS_RECORDS_KERNEL] = "kernel",
	[TLS_RECORDS_USER] = "user",
	NULL };

enum { KEY_URI, KEY_MODE, KEY_TLS_FIRST = KEY_MODE };

/* The TLS fields can be used for a struct server_tls and for a struct server_listen, because a
 * server_listen begins with a server_tls. */
static const struct field fields[] = {
	[KEY_URI] = { "uri", "URI", .type = FIELD_TEXT, FIELD_IN(struct server_listen, text) },
	SERVER_TLS_FIELDS(0),
};
_Static_assert(offsetof(struct server_listen, tls) == 0, "a struct server_tls is at the beginning");

/* Fields that have no effect without TLS: all except the URI and the mode. */
static const uint32_t needs_tls = ~(BIT(KEY_URI) | BIT(KEY_MODE));

const struct field *server_listen_field(uint32_t idx)
{
	return idx < ARRAY_COUNT(fields) ? &fields[idx] : NULL;
}

void server_listen_fini(struct server_listen *entry)
{
	export_uri_fini(&entry->uri);
	free(entry->text);
	free(entry->origin);
	server_tls_fini(&entry->tls);
	*entry = (struct server_listen){ 0 };
}

void server_tls_fini(struct server_tls *tls)
{
	for (uint32_t i = KEY_TLS_FIRST; i < ARRAY_COUNT(fields); i++) {
		field_clear(&fields[i], tls);
	}
}

bool server_tls_equal(const struct server_tls *a, const struct server_tls *b)
{
	bool same = true;

	for (uint32_t i = KEY_TLS_FIRST; i < ARRAY_COUNT(fields) && same; i++) {
		same = field_same(&fields[i], a, b);
	}
	return same;
}

/* Copies from the common settings each value that the address does not set itself. */
static int tls_fill(
	struct server_listen *entry, const struct server_tls *common, struct error *error)
{
	int rc = 0;

	for (uint32_t i = KEY_TLS_FIRST; i < ARRAY_COUNT(fields) && rc == 0; i++) {
		if ((entry->given & BIT(i)) == 0) {
			rc = field_copy(&fields[i], &entry->tls, common, error);
		}
	}
	return rc;
}

/* Returns whether the command line has an option that needs TLS. */
static bool has_credentials(const struct server_config *config)
{
	bool has = false;

	for (uint32_t i = KEY_TLS_FIRST; i < ARRAY_COUNT(fields) && !has; i++) {
		has = (needs_tls & BIT(i)) != 0 &&
		      server_config_has(config, field_find(server_config_field, fields[i].key));
	}
	return has;
}

static int finish_listen(
	struct server_listen *entry, const struct server_tls *common, struct error *error)
{
	struct server_tls *tls = &entry->tls;
	uint32_t own = entry->given & ~BIT(KEY_URI);

	if (strcmp(entry->uri.protocol, "nbd") != 0) {
		return own == 0 ? 0
				: error_set(error, -EINVAL,
					  "%s: %s has no TLS; only nbd:// and nbd+unix:// have it",
					  entry->origin, entry->text);
	}
	if (entry->uri.tls && (own & BIT(KEY_MODE)) != 0 && tls->mode != TLS_REQUIRE) {
		return error_set(error, -EINVAL,
			"%s: %s requires TLS, but its key tls does not; remove the key, or write "
			"the "
			"URI with nbd instead of nbds",
			entry->origin, entry->text);
	}
	if (entry->uri.tls) {
		tls->mode = TLS_REQUIRE;
		entry->given |= BIT(KEY_MODE);
	}
	if ((own & needs_tls) != 0 && (entry->given & BIT(KEY_MODE)) == 0 &&
		common->mode == TLS_OFF) {
		return error_set(error, -EINVAL,
			"%s: %s has TLS settings but does not use TLS; add tls: require or tls: on",
			entry->origin, entry->text);
	}
	return tls_fill(entry, common, error);
}

int server_tls_finish(struct server_config *config, struct error *error)
{
	bool used = config->listen_count == 0 && config->tls.mode != TLS_OFF;

	for (uint32_t i = 0; i < config->listen_count; i++) {
		int rc = finish_listen(&config->listens[i], &config->tls, error);

		if (rc < 0) {
			return rc;
		}
		used |= config->listens[i].tls.mode != TLS_OFF;
	}
	if (!used && config->tls.mode != TLS_OFF) {
		return error_set(error, -EINVAL,
			"--tls is given, but no address uses TLS; listen on an nbd:// or "
			"nbd+unix:// address without tls: off (gmb and push cannot be encrypted)");
	}
	if (!used && has_credentials(config)) {
		return error_set(error, -EINVAL,
			"TLS credentials are given, but no address uses TLS; add --tls=require (or "
			"--tls=on to allow clients without TLS), or listen on an nbds:// URI");
	}
	return 0;
}
