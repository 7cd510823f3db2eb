// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "server/config/config.h"

enum { SHOWN_BYTES = 120 };

/* In the order of the help text. */
enum { KEY_MODE, KEY_CERTIFICATES, KEY_PSK, KEY_VERIFY_PEER, KEY_PRIORITY, KEY_RECORDS, KEY_COUNT };

static const char *const keys[] = {
	[KEY_MODE] = "tls",
	[KEY_CERTIFICATES] = "tls-certificates",
	[KEY_PSK] = "tls-psk",
	[KEY_VERIFY_PEER] = "tls-verify-peer",
	[KEY_PRIORITY] = "tls-priority",
	[KEY_RECORDS] = "tls-records",
};
_Static_assert(ARRAY_COUNT(keys) == KEY_COUNT, "every key has a name");

/* Without them no handshake succeeds; what else there is, is about them. */
static const uint32_t needs_tls = ~BIT(KEY_MODE);

const char *server_tls_key(uint32_t idx)
{
	return idx < KEY_COUNT ? keys[idx] : NULL;
}

/* The index of the value among those that the key can have. */
static int tls_choose(
	const char *value, const char *const names[3], uint32_t *idx, struct error *error)
{
	char shown[SHOWN_BYTES];

	for (*idx = 0; *idx < 3 && names[*idx] != NULL; ++*idx) {
		if (strcmp(value, names[*idx]) == 0) {
			return 0;
		}
	}
	return error_set(error, -EINVAL, "'%s' is not one of %s, %s%s%s",
		log_escape(shown, sizeof(shown), value, strlen(value)), names[0], names[1],
		names[2] != NULL ? ", " : "", names[2] != NULL ? names[2] : "");
}

static int set_text(char **field, const char *value, struct error *error)
{
	char *copy;

	if (value[0] == '\0') {
		return error_set(error, -EINVAL, "the value is empty");
	}
	copy = strdup(value);
	if (copy == NULL) {
		return error_set(error, -ENOMEM, "no memory for a value");
	}
	free(*field);
	*field = copy;
	return 0;
}

static int tls_set(struct server_tls *tls, uint32_t key, const char *value, struct error *error)
{
	static const char *const modes[] = {
		[TLS_OFF] = "off", [TLS_ON] = "on", [TLS_REQUIRE] = "require"
	};
	static const char *const records[] = { [TLS_RECORDS_AUTO] = "auto",
		[TLS_RECORDS_KERNEL] = "kernel",
		[TLS_RECORDS_USER] = "user" };
	static const char *const flags[] = { "false", "true", NULL };
	uint32_t idx = 0;
	int rc;

	switch (key) {
	case KEY_MODE:
		rc = tls_choose(value, modes, &idx, error);
		tls->mode = rc == 0 ? (enum tls_mode)idx : tls->mode;
		return rc;
	case KEY_CERTIFICATES:
		return set_text(&tls->certificates, value, error);
	case KEY_PSK:
		return set_text(&tls->psk, value, error);
	case KEY_PRIORITY:
		return set_text(&tls->priority, value, error);
	case KEY_RECORDS:
		rc = tls_choose(value, records, &idx, error);
		tls->records = rc == 0 ? (enum tls_records)idx : tls->records;
		return rc;
	default:
		rc = tls_choose(value != NULL ? value : "true", flags, &idx, error);
		tls->verify_peer = rc == 0 ? idx == 1 : tls->verify_peer;
		return rc;
	}
}

int server_tls_set(struct server_tls *tls, const char *key, const char *value, struct error *error)
{
	uint32_t idx = 0;
	int rc;

	while (idx < KEY_COUNT && strcmp(key, keys[idx]) != 0) {
		idx++;
	}
	GMB_ASSERT(idx < KEY_COUNT && (value != NULL || idx == KEY_VERIFY_PEER));
	rc = tls_set(tls, idx, value, error);
	tls->given |= rc == 0 ? BIT(idx) : 0;
	return rc;
}

void server_tls_fini(struct server_tls *tls)
{
	free(tls->certificates);
	free(tls->psk);
	free(tls->priority);
	*tls = (struct server_tls){ 0 };
}

static bool tls_same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

bool server_tls_equal(const struct server_tls *a, const struct server_tls *b)
{
	return a->mode == b->mode && a->records == b->records && a->verify_peer == b->verify_peer &&
	       tls_same_text(a->certificates, b->certificates) && tls_same_text(a->psk, b->psk) &&
	       tls_same_text(a->priority, b->priority);
}

static int fill_text(struct server_tls *tls, uint32_t key, const char *common, struct error *error)
{
	return common == NULL || (tls->given & BIT(key)) != 0
		       ? 0
		       : server_tls_set(tls, keys[key], common, error);
}

/* What is not given, from what all have in common. */
static int tls_fill(struct server_tls *tls, const struct server_tls *common, struct error *error)
{
	int rc = fill_text(tls, KEY_CERTIFICATES, common->certificates, error);

	if (rc == 0) {
		rc = fill_text(tls, KEY_PSK, common->psk, error);
	}
	if (rc == 0) {
		rc = fill_text(tls, KEY_PRIORITY, common->priority, error);
	}
	if ((tls->given & BIT(KEY_MODE)) == 0) {
		tls->mode = common->mode;
	}
	if ((tls->given & BIT(KEY_VERIFY_PEER)) == 0) {
		tls->verify_peer = common->verify_peer;
	}
	if ((tls->given & BIT(KEY_RECORDS)) == 0) {
		tls->records = common->records;
	}
	return rc;
}

static int finish_listen(
	struct server_listen *entry, const struct server_tls *common, struct error *error)
{
	struct server_tls *tls = &entry->tls;
	uint32_t own = tls->given;

	if (strcmp(entry->uri.protocol, "nbd") != 0) {
		return own == 0 ? 0
				: error_set(error, -EINVAL,
					  "%s: %s has no TLS; only nbd:// and nbd+unix:// have it",
					  entry->origin, entry->text);
	}
	if (entry->uri.tls && (own & BIT(KEY_MODE)) != 0 && tls->mode != TLS_REQUIRE) {
		return error_set(error, -EINVAL,
			"%s: %s demands TLS, and tls says otherwise; leave it out, or write nbd",
			entry->origin, entry->text);
	}
	if (entry->uri.tls) {
		tls->mode = TLS_REQUIRE;
		tls->given |= BIT(KEY_MODE);
	}
	if ((own & needs_tls) != 0 && (tls->given & BIT(KEY_MODE)) == 0 &&
		common->mode == TLS_OFF) {
		return error_set(error, -EINVAL,
			"%s: %s has keys of TLS and does not use it; add tls: require, or tls: on",
			entry->origin, entry->text);
	}
	return tls_fill(tls, common, error);
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
			"--tls is given, and no address uses TLS; listen on an nbd:// or "
			"nbd+unix:// address without tls: off, as gmb and push cannot be "
			"encrypted");
	}
	if (!used && (config->tls.given & needs_tls) != 0) {
		return error_set(error, -EINVAL,
			"credentials are given, and no address uses TLS; add --tls=require (or "
			"--tls=on for clients with and without), or listen on an nbds:// URI");
	}
	return 0;
}
