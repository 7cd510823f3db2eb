// SPDX-License-Identifier: Apache-2.0
/* The jobs that read files again: the TLS files, and the configuration. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "server/change/forecast.h"
#include "server/change/job.h"

static int read_config(struct job *job, struct error *error)
{
	const struct server_config *running = job->options->config;
	struct server_config *config = malloc(sizeof(*config));
	int rc;

	if (config == NULL) {
		return error_oom_for(error, "a configuration");
	}
	rc = server_config_again(running, config, error);
	if (rc < 0) {
		if (running->file_path != NULL) {
			sandbox_explain(running->file_path, false, "restart the server", error);
		}
		free(config);
		return rc;
	}
	job->config = config;
	if (job->options->fencing == NULL && config->nodes.rule_count > 0) {
		return error_set(error, -EINVAL,
			"%s: the server was started without nodes, so it has not opened the folder "
			"for the list of fenced nodes; restart it, or run 'gmblock upgrade'",
			config->nodes.rules[0].origin);
	}
	if (running->limits.isolated_threads == 0 && server_config_has_guests(running) &&
		server_access_admits_others(config)) {
		return error_set(error, -EINVAL,
			"%s: the server was started without rules for other users, so it has no "
			"threads for their virtual machines; restart it, or run 'gmblock upgrade'",
			running->file_path);
	}
	return change_configure(job->change, config, error);
}

/* Predicts the effect of new access rules and TLS files on the existing connections, and adds it to
 * job->lines. */
static int job_foresee(struct job *job, struct error *error)
{
	const struct jobs_options *options = job->options;
	struct forecast *forecast = forecast_create(options->reactor_count);
	char line[SERVED_EXPORT_LINE_BYTES];
	int rc = forecast != NULL ? 0 : error_oom_for(error, "a change");

	if (rc == 0 && job->change != NULL) {
		rc = change_foresee(job->change, forecast, error);
	}
	rc = rc ?: credentials_foresee(options->credentials, job->credentials, forecast, error);
	if (rc == 0 && !forecast_run(forecast, job->jobs, options->reactors)) {
		rc = error_set(error, -ESHUTDOWN, "the server is stopping");
	}
	if (rc == 0) {
		job->lines = job->change != NULL ? change_lines(job->change) : json_array();
		if (job->change != NULL) {
			change_tell(job->change, forecast);
		}
		credentials_tell(options->credentials, job->credentials, forecast, job->lines);
	}
	if (rc == 0 && forecast_silent(forecast) > 0) {
		snprintf(line, sizeof(line),
			"the connections of %u of %u server threads are not counted, because these "
			"threads do not respond",
			forecast_silent(forecast), options->reactor_count);
		json_array_append_new(job->lines, json_string(line));
	}
	forecast_put(forecast);
	return rc;
}

static int tls_run(struct job *job, struct error *error)
{
	return credentials_load(job->options->credentials, &job->credentials, error)
		       ?: job_foresee(job, error);
}

static int trial_run(struct job *job, struct error *error)
{
	return credentials_load(job->options->credentials, &job->credentials, error)
		       ?: job_change(job, error) ?: read_config(job, error)
		       ?: job_foresee(job, error);
}

static int reload_run(struct job *job, struct error *error)
{
	return trial_run(job, error) ?: change_open(job->change, error);
}

/* what: text for the log that names what was read in addition to the TLS files, or "" */
static void reload_log(struct job *job, const char *what)
{
	uint32_t addresses = credentials_count(job->options->credentials);

	if (job->result < 0 && !job->is_applied) {
		error_prefix(&job->error, "the reload failed, and nothing was changed");
	}
	job_log(job);
	if (job->result == 0) {
		log_info("reloaded %sthe TLS files of %u address%s; %u connection%s closed", what,
			addresses, addresses == 1 ? "" : "es", job->ended,
			job->ended == 1 ? "" : "s");
	}
}

static void tls_finish(struct job *job)
{
	reload_log(job, "");
}

static void reload_finish(struct job *job)
{
	reload_log(job, "the configuration and ");
}

static void trial_finish(struct job *job)
{
	if (job->result < 0) {
		error_prefix(&job->error, "a reload would fail and change nothing");
	}
}

const struct job_kind job_tls = {
	.run = tls_run,
	.commit = job_commit,
	.finish = tls_finish,
	.repeats = true,
};

const struct job_kind job_reload = {
	.run = reload_run,
	.commit = job_commit,
	.finish = reload_finish,
};

/* A dry run of a reload, which only reports what the reload would change. */
static const struct job_kind job_trial = {
	.run = trial_run,
	.finish = trial_finish,
};

static void begin_reload(void *context, struct control_client *client, const json_t *arguments)
{
	bool is_dry = json_is_true(json_object_get(arguments, "dry_run"));

	jobs_add(context, client, is_dry ? &job_trial : &job_reload, arguments);
}

const struct control_command reload_command = {
	.name = "reload",
	.right = CONTROL_CHANGE,
	.begin = begin_reload,
	.end = jobs_forget_client,
};
