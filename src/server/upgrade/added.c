// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/added.h"

#include <errno.h>
#include <string.h>

static const char origin[] = "gmblock export add";

/* --- writing --------------------------------------------------------------------------------- */

/* Appends prefix and text as one string. Returns false if there is no room. */
static bool added_put(
	char out[UPGRADE_STRINGS_BYTES_MAX], size_t *used, const char *prefix, const char *text)
{
	size_t prefix_bytes = strlen(prefix);
	size_t bytes = strlen(text) + 1;

	if (prefix_bytes + bytes > UPGRADE_STRINGS_BYTES_MAX - *used) {
		return false;
	}
	memcpy(out + *used, prefix, prefix_bytes);
	memcpy(out + *used + prefix_bytes, text, bytes);
	*used += prefix_bytes + bytes;
	return true;
}

int upgrade_added_write(const struct server_export *about, char out[UPGRADE_STRINGS_BYTES_MAX])
{
	size_t used = 0;
	bool fits = about->settings.count <= UPGRADE_SETTINGS_MAX &&
		    added_put(out, &used, "", about->name) &&
		    added_put(out, &used, "", about->path);

	for (uint32_t i = 0; fits && i < about->settings.count; i++) {
		const struct server_setting *setting = &about->settings.list[i];

		fits = added_put(out, &used, "", setting->key) &&
		       added_put(out, &used, setting->value != NULL ? "=" : "",
			       setting->value != NULL ? setting->value : "");
	}
	return fits ? (int)used : -E2BIG;
}

/* --- reading --------------------------------------------------------------------------------- */

/* Returns the string at *at, and moves *at to the next one. upgrade_parse() has checked the
 * strings. */
static const char *next(const char **at)
{
	const char *text = *at;

	*at += strlen(text) + 1;
	return text;
}

static int read_settings(
	const char *at, const char *end, struct server_settings *settings, struct error *error)
{
	int rc = 0;

	while (rc == 0 && at < end) {
		const char *key = next(&at);
		const char *value = next(&at);

		rc = server_settings_add(settings, key, value[0] == '=' ? value + 1 : NULL, error);
	}
	return rc;
}

int upgrade_added_read(
	const struct upgrade_message *message, struct server_export *about_out, struct error *error)
{
	const char *at = message->strings;
	const char *end = at + message->strings_bytes;
	/* The casts drop const, but the strings are not changed. */
	struct server_export told = {
		.name = (char *)(uintptr_t)next(&at),
		.path = (char *)(uintptr_t)next(&at),
		.origin = (char *)(uintptr_t)origin,
	};
	struct server_settings settings = { 0 };
	int rc = read_settings(at, end, &settings, error);

	server_export_init(about_out);
	rc = rc ?: server_export_copy(&told, &settings, about_out, error);
	server_settings_fini(&settings);
	if (rc < 0) {
		error_prefix(error, "an export that was added at run time");
	}
	return rc;
}

int upgrade_added_keep(
	struct server_config *config, struct server_export *about, struct error *error)
{
	for (uint32_t i = 0; i < config->export_count; i++) {
		if (strcmp(config->exports[i].name, about->name) == 0) {
			server_export_fini(about);
			return 0;
		}
	}
	about->is_added = true;
	return server_config_add_export(config, about, origin, error);
}

int upgrade_added_keep_snapshot(
	struct server_config *config, struct server_export *about, struct error *error)
{
	if (config->snapshot_count == SERVER_EXPORTS_MAX ||
		array_grow(&config->snapshots, config->snapshot_count, sizeof(*config->snapshots)) <
			0) {
		server_export_fini(about);
		return error_oom_for(error, "the keys of snapshots");
	}
	config->snapshots[config->snapshot_count++] = *about;
	return 0;
}
