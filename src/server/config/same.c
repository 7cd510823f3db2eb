// SPDX-License-Identifier: Apache-2.0
/* Options of the whole server, compared by value: "660" and "0660" are one mode. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/config/config.h"
#include "server/observe/scrape.h"

static bool same_same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Text of which a value is the default. */
static bool same_or_default(const char *a, const char *b, const char *standard)
{
	return strcmp(a != NULL ? a : standard, b != NULL ? b : standard) == 0;
}

static bool same_mode(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strtoul(a, NULL, 8) == strtoul(b, NULL, 8);
}

/* Names, or addresses, of which one of IPv6 is written in many ways. */
static bool same_same_name(const char *a, const char *b)
{
	struct in6_addr one;
	struct in6_addr other;

	return strcasecmp(a, b) == 0 ||
	       (inet_pton(AF_INET6, a, &one) == 1 && inet_pton(AF_INET6, b, &other) == 1 &&
		       memcmp(&one, &other, sizeof(one)) == 0);
}

static bool same_same_host(const struct export_uri *a, const struct export_uri *b)
{
	if (a->is_unix || b->is_unix) {
		return a->is_unix == b->is_unix && a->socket_path_bytes == b->socket_path_bytes &&
		       memcmp(a->socket_path, b->socket_path, a->socket_path_bytes) == 0;
	}
	return a->port == b->port && same_same_name(a->host, b->host);
}

static bool same_uri(const struct export_uri *a, const struct export_uri *b)
{
	return same_same_text(a->protocol, b->protocol) && a->tls == b->tls &&
	       same_same_host(a, b) && same_or_default(a->provider, b->provider, "tcp") &&
	       same_or_default(a->insecure_network, b->insecure_network, "no") &&
	       same_mode(a->socket_mode, b->socket_mode) &&
	       same_same_text(a->socket_group, b->socket_group);
}

static bool has_listen(const struct server_config *config, const struct server_listen *entry)
{
	for (uint32_t i = 0; i < config->listen_count; i++) {
		if (same_uri(&config->listens[i].uri, &entry->uri) &&
			server_tls_equal(&config->listens[i].tls, &entry->tls)) {
			return true;
		}
	}
	return false;
}

static bool same_listens(const struct server_config *a, const struct server_config *b)
{
	bool same = a->listen_count == b->listen_count;

	for (uint32_t i = 0; same && i < a->listen_count; i++) {
		same = has_listen(b, &a->listens[i]);
	}
	return same;
}

static bool same_limits(const struct server_config *a, const struct server_config *b)
{
	/* All members are set one by one in zeroed memory. */
	return memcmp(&a->limits, &b->limits, sizeof(a->limits)) == 0;
}

static bool same_arena(const struct server_config *a, const struct server_config *b)
{
	return a->arena.given == b->arena.given && a->arena.waits == b->arena.waits &&
	       a->arena.bytes == b->arena.bytes && strcmp(a->arena.bdf, b->arena.bdf) == 0;
}

static bool same_control(const struct server_config *a, const struct server_config *b)
{
	return same_same_text(a->control_path, b->control_path);
}

static bool same_metrics(const struct server_config *a, const struct server_config *b)
{
	struct export_uri one = { 0 };
	struct export_uri other = { 0 };
	bool same = same_same_text(a->metrics, b->metrics);

	if (!same && a->metrics != NULL && b->metrics != NULL &&
		scrape_uri_parse(a->metrics, &one, NULL) == 0 &&
		scrape_uri_parse(b->metrics, &other, NULL) == 0) {
		same = same_uri(&one, &other);
	}
	export_uri_fini(&one);
	export_uri_fini(&other);
	return same;
}

static bool same_user(const struct server_config *a, const struct server_config *b)
{
	return same_same_text(a->user, b->user);
}

static bool same_sandbox(const struct server_config *a, const struct server_config *b)
{
	return a->sandbox == b->sandbox;
}

static bool has_folder(const struct server_config *config, const char *folder)
{
	bool found = false;

	for (uint32_t i = 0; i < config->export_folder_count && !found; i++) {
		found = strcmp(config->export_folders[i], folder) == 0;
	}
	return found;
}

static bool has_folders(const struct server_config *config, const struct server_config *other)
{
	bool all = true;

	for (uint32_t i = 0; i < other->export_folder_count && all; i++) {
		all = has_folder(config, other->export_folders[i]);
	}
	return all;
}

static bool same_folders(const struct server_config *a, const struct server_config *b)
{
	return has_folders(a, b) && has_folders(b, a);
}

static bool same_has_place(const struct server_config *config, const struct place *place)
{
	bool found = false;

	for (uint32_t i = 0; i < config->push_place_count && !found; i++) {
		found = place_same(&config->push_places[i], place);
	}
	return found;
}

static bool has_places(const struct server_config *config, const struct server_config *other)
{
	bool all = true;

	for (uint32_t i = 0; i < other->push_place_count && all; i++) {
		all = same_has_place(config, &other->push_places[i]);
	}
	return all;
}

/* The next place with credentials from *idx on, which is behind it then; NULL: there is none. */
static const struct place *next_tls_place(const struct server_config *config, uint32_t *idx)
{
	while (*idx < config->push_place_count) {
		const struct place *place = &config->push_places[(*idx)++];

		if (place->tls) {
			return place;
		}
	}
	return NULL;
}

/* The first one that contains a destination has its credentials, so their order matters. */
static bool same_tls_places(const struct server_config *a, const struct server_config *b)
{
	uint32_t a_idx = 0;
	uint32_t b_idx = 0;
	const struct place *one;
	const struct place *other;

	do {
		one = next_tls_place(a, &a_idx);
		other = next_tls_place(b, &b_idx);
	} while (one != NULL && other != NULL && place_same(one, other));
	return one == NULL && other == NULL;
}

static bool same_places(const struct server_config *a, const struct server_config *b)
{
	return has_places(a, b) && has_places(b, a) && same_tls_places(a, b);
}

static bool same_rates(const struct server_config *a, const struct server_config *b)
{
	const struct server_access *one = &a->rates.conditions;
	const struct server_access *other = &b->rates.conditions;
	bool same = one->rule_count == other->rule_count;

	for (uint32_t i = 0; same && i < one->rule_count; i++) {
		/* Their other limits change under their clients: change.c. */
		same = access_rule_same(&one->rules[i], &other->rules[i]) &&
		       a->rates.rules[i].connections_max == b->rates.rules[i].connections_max;
	}
	return same;
}

static const struct {
	const char *key;
	bool (*same)(const struct server_config *a, const struct server_config *b);
} keys[] = {
	{ "listen", same_listens },
	{ "limits", same_limits },
	{ "rates", same_rates },
	{ "arena", same_arena },
	{ "control", same_control },
	{ "metrics", same_metrics },
	{ "user", same_user },
	{ "sandbox", same_sandbox },
	{ "export-folder", same_folders },
	{ "push-to", same_places },
};

const char *server_config_key(uint32_t idx)
{
	return idx < ARRAY_COUNT(keys) ? keys[idx].key : NULL;
}

bool server_config_same(const struct server_config *a, const struct server_config *b, uint32_t idx)
{
	return keys[idx].same(a, b);
}
