// SPDX-License-Identifier: Apache-2.0
/* The jobs of the control command "export", which change single exports. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "server/change/job.h"

#define DEADLINE_NS_MAX UINT64_C(3600000000000)

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

static int take_export(struct job *job, const json_t *arguments, struct error *error)
{
	const char *name = json_string_value(json_object_get(arguments, "name"));
	const json_t *deadline = json_object_get(arguments, "deadline_ms");

	if (name == NULL) {
		return error_set(error, -EINVAL, "the argument \"name\" (text) is required");
	}
	if (json_is_integer(deadline)) {
		json_int_t ms = json_integer_value(deadline);

		if (ms < 0 || (uint64_t)ms > DEADLINE_NS_MAX / 1000000) {
			return error_set(error, -ERANGE, "the deadline must be at most one hour");
		}
		job->deadline_ns = (uint64_t)ms * 1000000;
	}
	job->name = strdup(name);
	return job->name == NULL ? error_oom(error)
				 : take_settings(json_object_get(arguments, "settings"),
					   &job->settings, error);
}

static int take_added(struct job *job, const json_t *arguments, struct error *error)
{
	const char *path = json_string_value(json_object_get(arguments, "path"));

	if (path == NULL || !json_is_string(json_object_get(arguments, "name"))) {
		return error_set(
			error, -EINVAL, "the arguments \"name\" and \"path\" (text) are required");
	}
	job->path = strdup(path);
	return job->path != NULL ? take_export(job, arguments, error) : error_oom(error);
}

/* --- the steps ------------------------------------------------------------------------------- */

static int add_run(struct job *job, struct error *error)
{
	static const char origin[] = "gmblock export add";
	struct server_export empty = {
		.name = job->name,
		.path = job->path,
		.origin = (char *)(uintptr_t)origin,
		.syntax = SERVER_SYNTAX_ADD,
	};
	struct server_export about;
	int rc = job_change(job, error);

	server_export_init(&about);
	rc = rc ?: server_export_copy(&empty, &job->settings, &about, error);
	if (rc == 0) {
		rc = change_add(job->change, &about, error);
		server_export_fini(&about);
	}
	return rc ?: job_open(job, error);
}

static int set_run(struct job *job, struct error *error)
{
	return job_change(job, error)
		       ?: change_set(job->change, job->name, &job->settings, error)
		       ?: job_open(job, error);
}

static int remove_run(struct job *job, struct error *error)
{
	return job_change(job, error) ?: change_remove(job->change, job->name, error)
				      ?: job_open(job, error);
}

/* Recorded sizes are read without a lock, because only the jobs' thread changes them. */
static int resize_run(struct job *job, struct error *error)
{
	const char *text = job->settings.list[0].value;
	bool is_auto = text != NULL && strcmp(text, "auto") == 0;
	struct served_export *served;
	char line[SERVED_EXPORT_LINE_BYTES];
	uint64_t wanted = 0;
	int rc = is_auto	? 0
		 : text != NULL ? units_parse_bytes(text, &wanted, error)
				: error_set(error, -EINVAL, "the key 'size' needs a value");

	if (rc < 0) {
		error_prefix(error, "size");
		return rc;
	}
	rc = exports_need(job->options->exports, job->name, &served, error);
	if (rc < 0) {
		return rc;
	}
	rc = served_export_check_size(served, is_auto ? NULL : &wanted, line, error);
	job->lines = json_array();
	if (rc > 0) {
		json_array_append_new(job->lines, json_string(line));
	}
	return MIN(rc, 0);
}

/* Updates the size of an export whose disk might have grown. */
static const struct job_kind job_resize = {
	.run = resize_run,
	.finish = job_log,
};

static int take_set(struct job *job, const json_t *arguments, struct error *error)
{
	int rc = take_export(job, arguments, error);

	if (rc == 0 && job->settings.count == 1 && strcmp(job->settings.list[0].key, "size") == 0) {
		job->kind = &job_resize;
	}
	return rc;
}

static const struct job_kind job_add = {
	.action = "add",
	.take = take_added,
	.run = add_run,
	.commit = job_commit,
	.finish = job_log,
};

static const struct job_kind job_set = {
	.action = "set",
	.take = take_set,
	.run = set_run,
	.commit = job_commit,
	.finish = job_log,
};

static const struct job_kind job_remove = {
	.action = "remove",
	.take = take_export,
	.run = remove_run,
	.commit = job_commit,
	.finish = job_log,
};

static const struct job_kind *const export_kinds[] = { &job_add, &job_set, &job_remove, NULL };

/* --- the command ----------------------------------------------------------------------------- */

static void begin_export(void *context, struct control_client *client, const json_t *arguments)
{
	const char *action = json_string_value(json_object_get(arguments, "action"));

	if (action != NULL && strcmp(action, "list") == 0) {
		control_reply(client, json_pack("{s:o}", "exports",
					      exports_json(jobs_options(context)->exports)));
	} else if (!jobs_add_action(context, client, export_kinds, arguments)) {
		control_fail(client, -EINVAL, "\"action\" must be add, set, remove or list");
	}
}

const struct control_command export_command = {
	.name = "export",
	.right = CONTROL_CHANGE,
	.begin = begin_export,
	.end = jobs_forget_client,
};
