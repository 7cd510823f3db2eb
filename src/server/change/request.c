// SPDX-License-Identifier: Apache-2.0
#include "server/change/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"
#include "server/change/forecast.h"
#include "server/change/snapshot.h"

/* --- life ------------------------------------------------------------------------------------ */

struct reload_request *reload_request_create(enum request_action action)
{
	struct reload_request *request = calloc(1, sizeof(*request));

	if (request != NULL) {
		request->action = action;
		request->deadline_ns = CHANGE_DRAIN_NS;
		list_init(&request->node);
	}
	return request;
}

void reload_request_free(struct reload_request *request)
{
	json_decref(request->lines);
	free(request->name);
	free(request->path);
	free(request->snapshot);
	server_settings_fini(&request->settings);
	free(request);
}

void reload_config_free(struct server_config *config)
{
	if (config != NULL) {
		server_config_fini(config);
		free(config);
	}
}

void reload_news_drop(struct reload_news *news)
{
	change_put(news->change);
	reload_config_free(news->config);
	credentials_set_free(news->credentials);
	json_decref(news->lines);
	*news = (struct reload_news){ 0 };
}

/* --- arguments ------------------------------------------------------------------------------- */

static int take_settings(const json_t *pairs, struct server_settings *settings, struct error *error)
{
	json_t *pair;
	size_t i;
	int rc = 0;

	json_array_foreach(pairs, i, pair)
	{
		const char *key = json_string_value(json_array_get(pair, 0));
		const json_t *value = json_array_get(pair, 1);

		if (key == NULL || !(json_is_null(value) || json_is_string(value))) {
			return error_set(error, -EINVAL,
				"\"settings\" must be an array of pairs [KEY, VALUE or null]");
		}
		rc = server_settings_add(settings, key, json_string_value(value), error);
		if (rc < 0) {
			return rc;
		}
	}
	return rc;
}

int reload_request_take_export(
	struct reload_request *request, const json_t *arguments, struct error *error)
{
	const char *name = json_string_value(json_object_get(arguments, "name"));
	const char *path = json_string_value(json_object_get(arguments, "path"));
	const json_t *deadline = json_object_get(arguments, "deadline_ms");
	int rc;

	if (name == NULL || (request->action == REQUEST_ADD && path == NULL)) {
		return error_set(error, -EINVAL, "\"name\" (text) is required%s",
			request->action == REQUEST_ADD ? ", and \"path\" (text)" : "");
	}
	if (json_is_integer(deadline)) {
		json_int_t ms = json_integer_value(deadline);

		if (ms < 0 || (uint64_t)ms > RELOAD_DEADLINE_NS_MAX / 1000000) {
			return error_set(error, -ERANGE, "the deadline must be at most one hour");
		}
		request->deadline_ns = (uint64_t)ms * 1000000;
	}
	request->name = strdup(name);
	request->path = path != NULL ? strdup(path) : NULL;
	if (request->name == NULL || (path != NULL && request->path == NULL)) {
		return error_oom(error);
	}
	rc = take_settings(json_object_get(arguments, "settings"), &request->settings, error);
	if (rc == 0 && request->action == REQUEST_SET && request->settings.count == 1 &&
		strcmp(request->settings.list[0].key, "size") == 0) {
		request->action = REQUEST_RESIZE;
	}
	return rc;
}

int reload_request_take_snapshot(
	struct reload_request *request, const json_t *arguments, struct error *error)
{
	const char *export = json_string_value(json_object_get(arguments, "export"));
	const char *name = json_string_value(json_object_get(arguments, "name"));

	if (export == NULL || name == NULL) {
		return error_set(error, -EINVAL, "\"export\" and \"name\" (text) are required");
	}
	if (json_is_true(json_object_get(arguments, "now"))) {
		request->deadline_ns = 0;
	}
	request->name = strdup(export);
	request->snapshot = strdup(name);
	return request->name != NULL && request->snapshot != NULL ? 0 : error_oom(error);
}

/* --- reading --------------------------------------------------------------------------------- */

static int read_config(
	const struct reload_options *options, struct reload_news *news, struct error *error)
{
	struct server_config *config = malloc(sizeof(*config));
	const char *path = options->config->file_path;
	int rc;

	if (config == NULL) {
		return error_oom_for(error, "a configuration");
	}
	rc = server_config_again(options->config, config, error);
	if (rc < 0) {
		if (path != NULL) {
			sandbox_explain(path, false, "restart the server", error);
		}
		free(config);
		return rc;
	}
	news->config = config;
	return change_configure(news->change, config, error);
}

static int change_request_add_export(
	const struct reload_request *request, struct change *change, struct error *error)
{
	static const char origin[] = "gmblock export add";
	struct server_export empty = {
		.name = request->name,
		.path = request->path,
		.origin = (char *)(uintptr_t)origin,
		.syntax = SERVER_SYNTAX_ADD,
	};
	struct server_export about;
	int rc;

	server_export_init(&about);
	rc = server_export_copy(&empty, &request->settings, &about, error);
	if (rc == 0) {
		rc = change_add(change, &about, error);
		server_export_fini(&about);
	}
	return rc;
}

/* Recorded sizes are read without a lock, because only this thread, the reload thread, changes
 * them. */
static int look_at_size(const struct exports *exports, const struct reload_request *request,
	struct reload_news *news, struct error *error)
{
	const char *text = request->settings.list[0].value;
	bool is_auto = text != NULL && strcmp(text, "auto") == 0;
	struct served_export *served;
	char line[SERVED_EXPORT_LINE_BYTES];
	uint64_t wanted = 0;
	int rc = is_auto	? 0
		 : text != NULL ? units_parse_bytes(text, &wanted, error)
				: error_set(error, -EINVAL, "it needs a value");

	if (rc < 0) {
		error_prefix(error, "size");
		return rc;
	}
	rc = exports_need(exports, request->name, &served, error);
	if (rc < 0) {
		return rc;
	}
	rc = served_export_check_size(served, is_auto ? NULL : &wanted, line, error);
	news->lines = json_array();
	if (rc > 0) {
		json_array_append_new(news->lines, json_string(line));
	}
	return MIN(rc, 0);
}

/* Adds lines of text about the effect of new rules and files on connections. */
static int change_request_foresee(const struct reload_options *options,
	struct reload_request *request, struct reload_news *news, struct error *error)
{
	struct forecast *forecast = forecast_create(options->reactor_count);
	char line[SERVED_EXPORT_LINE_BYTES];
	int rc = forecast != NULL ? 0 : error_oom_for(error, "a change");

	if (rc == 0 && news->change != NULL) {
		rc = change_foresee(news->change, forecast, error);
	}
	rc = rc ?: credentials_foresee(options->credentials, news->credentials, forecast, error);
	if (rc == 0 && !forecast_run(forecast, request->reload, options->reactors)) {
		rc = error_set(error, -ESHUTDOWN, "the server is stopping");
	}
	if (rc == 0) {
		news->lines = news->change != NULL ? change_lines(news->change) : json_array();
		if (news->change != NULL) {
			change_tell(news->change, forecast);
		}
		credentials_tell(options->credentials, news->credentials, forecast, news->lines);
	}
	if (rc == 0 && forecast_silent(forecast) > 0) {
		snprintf(line, sizeof(line),
			"connections of %u of %u threads are not counted: the threads do not "
			"respond",
			forecast_silent(forecast), options->reactor_count);
		json_array_append_new(news->lines, json_string(line));
	}
	forecast_put(forecast);
	return rc;
}

int reload_request_read(const struct reload_options *options,
	const struct server_config *configured, struct reload_request *request,
	void (*closed)(void *context), struct reload_news *news, struct error *error)
{
	const struct change_options change_options = {
		.exports = options->exports,
		.running = options->config,
		.configured = configured,
		.rate_rules = options->rate_rules,
		.device = options->device,
		.reactors = options->reactors,
		.reactor_count = options->reactor_count,
		.deadline_ns = request->deadline_ns,
		.closed = closed,
		.context = request,
	};
	int rc = 0;

	if (request->action == REQUEST_RESIZE) {
		return look_at_size(options->exports, request, news, error);
	}
	if (request->action <= REQUEST_RELOAD) {
		rc = credentials_load(options->credentials, &news->credentials, error);
	}
	if (rc == 0 && request->action != REQUEST_LOOK) {
		rc = change_create(&change_options, &news->change, error);
	}
	if (rc == 0 && request->action == REQUEST_RELOAD) {
		rc = read_config(options, news, error);
	} else if (rc == 0 && request->action == REQUEST_ADD) {
		rc = change_request_add_export(request, news->change, error);
	} else if (rc == 0 && request->action == REQUEST_SET) {
		rc = change_set(news->change, request->name, &request->settings, error);
	} else if (rc == 0 && request->action == REQUEST_REMOVE) {
		rc = change_remove(news->change, request->name, error);
	} else if (rc == 0 && (request->action == REQUEST_SNAPSHOT_CREATE ||
				      request->action == REQUEST_SNAPSHOT_DELETE)) {
		rc = snapshot_change(options, request, news->change, error);
	} else if (rc == 0 && request->action == REQUEST_SNAPSHOTS_DROPPED) {
		rc = snapshots_remove_dropped(options->exports, news->change, error);
	}
	if (rc == 0 && request->action <= REQUEST_RELOAD) {
		rc = change_request_foresee(options, request, news, error);
	} else if (rc == 0 && news->change != NULL) {
		news->lines = change_lines(news->change);
	}
	if (rc == 0 && news->change != NULL && !request->is_dry) {
		rc = change_open(news->change, error);
		if (rc < 0 && request->action == REQUEST_SNAPSHOT_CREATE) {
			snapshot_undo(options, request);
		}
	}
	if (rc < 0) {
		reload_news_drop(news);
	}
	return rc;
}
