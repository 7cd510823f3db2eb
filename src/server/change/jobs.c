// SPDX-License-Identifier: Apache-2.0
#include "server/change/job.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "server/change/snapshot.h"
#include "server/fence/fencing.h"

#define LOOK_S	  60
#define REVIEW_S  5 /* seconds in which reactors must check their connections */
#define CLOSING_S 2 /* seconds in which disks must close after their clients have gone */
#define JOIN_S	  5

_Static_assert(REVIEW_S < LOOK_S, "each check ends before the next begins");

/* The step of the job in progress. */
enum jobs_step {
	JOBS_IDLE,
	JOBS_RUN,    /* the thread reads and compares, without the lock */
	JOBS_COMMIT, /* the main thread must commit the job */
	JOBS_REVIEW, /* the thread waits for the reactors to check their connections */
	JOBS_FINISH, /* the main thread must report the result */
	JOBS_STEP_COUNT
};

static const uint32_t jobs_edges[JOBS_STEP_COUNT] = {
	[JOBS_IDLE] = BIT(JOBS_RUN),
	[JOBS_RUN] = BIT(JOBS_COMMIT) | BIT(JOBS_FINISH) | BIT(JOBS_IDLE),
	[JOBS_COMMIT] = BIT(JOBS_REVIEW) | BIT(JOBS_FINISH),
	[JOBS_REVIEW] = BIT(JOBS_FINISH),
	[JOBS_FINISH] = BIT(JOBS_IDLE),
};

/* Progress of one reactor's check of its connections. */
struct reviewer {
	struct jobs *jobs;
	/* protected by the lock: number of the last commit (see `turn` below) for which the
	 * reactor has checked all of its connections */
	uint64_t turn;
};

struct jobs {
	struct jobs_options options;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;

	/* The following members are protected by the lock. */
	enum jobs_step step;
	bool begun;
	bool stopping;
	/* jobs_stop() was called, so reactors may already be destroyed */
	bool has_stopped;
	struct list_node waiting;
	struct job *job;	    /* job in progress, or NULL */
	uint64_t turn;		    /* number of commits */
	struct reviewer *reviewers; /* one per reactor */
	uint32_t ended;		    /* connections ended because of the job in progress */
	/* Jobs that are committed and wait for disks to close. Later jobs proceed. */
	struct list_node parked;
	bool looks; /* see jobs_look() */

	/* The following member is written by the main thread in a commit. */
	struct server_config *config; /* configuration that was last read; NULL: options.config */

	/* The following member is used only by the main thread. */
	/* Last logged error, so that it is not repeated every minute. */
	char complaint[ERROR_TEXT_BYTES];
};

/* Changes the step. Called with the lock held. */
static void jobs_set_step(struct jobs *jobs, enum jobs_step step)
{
	GMB_ASSERT((jobs_edges[jobs->step] & BIT(step)) != 0);
	jobs->step = step;
	pthread_cond_signal(&jobs->changed);
}

/* --- a job ----------------------------------------------------------------------------------- */

/* NULL: no memory. */
static struct job *job_create(struct jobs *jobs, const struct job_kind *kind)
{
	struct job *job = calloc(1, sizeof(*job));

	if (job != NULL) {
		job->kind = kind;
		job->jobs = jobs;
		job->options = &jobs->options;
		job->deadline_ns = CHANGE_DRAIN_NS;
		list_init(&job->node);
	}
	return job;
}

static void config_free(struct server_config *config)
{
	if (config != NULL) {
		server_config_fini(config);
		free(config);
	}
}

static void job_drop(struct job *job)
{
	change_put(job->change);
	config_free(job->config);
	credentials_set_free(job->credentials);
	job->change = NULL;
	job->config = NULL;
	job->credentials = NULL;
}

static void job_free(struct job *job)
{
	job_drop(job);
	json_decref(job->lines);
	free(job->name);
	free(job->path);
	free(job->snapshot);
	server_settings_fini(&job->settings);
	free(job);
}

/* --- closing disks --------------------------------------------------------------------------- */

/* Called on any thread for each closed disk, possibly after the job was answered. The last call
 * after the answer frees the job. */
static void disk_has_closed(void *context)
{
	struct job *job = context;
	struct jobs *jobs = job->jobs;
	bool is_last;

	pthread_mutex_lock(&jobs->lock);
	is_last = --job->closing_count == 0;
	pthread_cond_signal(&jobs->changed);
	if (is_last && job->is_answered) {
		job_free(job);
	}
	pthread_mutex_unlock(&jobs->lock);
}

int job_change(struct job *job, struct error *error)
{
	const struct jobs_options *options = job->options;
	const struct server_config *config = job->jobs->config;
	const struct change_options change = {
		.exports = options->exports,
		.running = options->config,
		.configured = config != NULL ? config : options->config,
		.rate_rules = options->rate_rules,
		.device = options->device,
		.reactors = options->reactors,
		.reactor_count = options->reactor_count,
		.deadline_ns = job->deadline_ns,
		.closed = disk_has_closed,
		.context = job,
	};

	return change_create(&change, &job->change, error);
}

int job_open(struct job *job, struct error *error)
{
	job->lines = change_lines(job->change);
	return change_open(job->change, error);
}

/* --- the commit ------------------------------------------------------------------------------ */

/* Checks whether a connection's certificate is still valid. Called on a reactor's thread. */
static bool may_stay(void *context, const struct session *session)
{
	struct engine *engine = session->engine;
	struct tls_context *tls;
	struct error error;
	int rc;

	tls = tls_policy_context(session->tls);
	rc = tls_context_recheck(tls, session->peer.proved, &error);
	tls_context_put(tls);
	if (rc < 0) {
		log_limited(session_log_limit(session), ring_batch_ns(engine->ring),
			LOG_LEVEL_WARNING, "client %s (%s) disconnected: %s", session->peer.text,
			session->peer.proved->text, error.text);
	}
	return rc == 0;
}

/* Called on a reactor's thread when the reactor has checked all of its connections. */
static void reviewed(void *context, uint64_t turn, uint32_t ended)
{
	struct reviewer *reviewer = context;
	struct jobs *jobs = reviewer->jobs;

	pthread_mutex_lock(&jobs->lock);
	reviewer->turn = turn;
	jobs->ended += ended;
	pthread_cond_signal(&jobs->changed);
	pthread_mutex_unlock(&jobs->lock);
}

int job_commit(struct job *job, struct error *error)
{
	struct jobs *jobs = job->jobs;
	const struct server_config *before =
		jobs->config != NULL ? jobs->config : jobs->options.config;
	struct error ignored;
	/* First, because if a later step fails, additional rules of fenced nodes do no harm. */
	int rc = job->config != NULL
			 ? fencing_configure(jobs->options.fencing, job->config, true, error)
			 : 0;

	if (rc == 0 && job->change != NULL) {
		rc = change_prepare(job->change, error);
	}
	if (rc < 0) {
		/* The previous nodes remain, because clients are accepted by their rules. */
		if (job->config != NULL &&
			fencing_configure(jobs->options.fencing, before, false, &ignored) < 0) {
			log_error("%s", ignored.text);
		}
		return rc;
	}
	if (job->credentials != NULL) {
		credentials_use(jobs->options.credentials, job->credentials);
		job->credentials = NULL;
	}
	if (job->config != NULL) {
		config_free(jobs->config);
		jobs->config = job->config;
		job->config = NULL;
	}
	if (job->change != NULL) {
		/* Set before the commit, because the disks of removed or replaced exports can close
		 * while it runs. */
		job->closing_count = change_closing(job->change);
		change_commit(job->change, jobs->options.exports);
		jobs->options.changed(jobs->options.context, job->lines);
	}
	return 0;
}

/* Makes the reactors check which of their connections may continue. A reactor that hangs applies
 * the commit, and checks its connections, when it continues. */
static void review(struct jobs *jobs, uint64_t turn)
{
	for (uint32_t i = 0; i < jobs->options.reactor_count; i++) {
		const struct engine_review review = {
			.may_stay = may_stay,
			.done = reviewed,
			.context = &jobs->reviewers[i],
			.number = turn,
			.deadline_ns = CHANGE_DRAIN_NS,
		};

		reactor_review(jobs->options.reactors[i], &review);
	}
}

/* Commits the job in progress. Called with the lock held, and releases it during the commit. */
static void commit_job(struct jobs *jobs)
{
	struct job *job = jobs->job;
	uint64_t turn = ++jobs->turn;

	pthread_mutex_unlock(&jobs->lock);
	job->result = job->kind->commit(job, &job->error);
	job->is_applied = job->result == 0;
	if (job->is_applied) {
		review(jobs, turn);
	}
	job_drop(job);
	pthread_mutex_lock(&jobs->lock);
	jobs_set_step(jobs, job->is_applied ? JOBS_REVIEW : JOBS_FINISH);
}

/* Returns the number of reactors that have not yet checked all their connections for this commit.
 * Called with the lock held. */
static uint32_t count_behind(const struct jobs *jobs)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < jobs->options.reactor_count; i++) {
		count += jobs->reviewers[i].turn < jobs->turn;
	}
	return count;
}

/* --- the thread ------------------------------------------------------------------------------ */

static struct timespec seconds_from_now(time_t seconds)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += seconds;
	return until;
}

static bool is_earlier(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

static bool is_over(const struct job *job)
{
	struct timespec now = seconds_from_now(0);

	return job->closing_count == 0 || !is_earlier(&now, &job->until);
}

/* Wakes the main thread if it can answer a parked job: a committed job whose disks are now closed,
 * or whose time limit for closing disks has passed. Returns whether the thread was woken. Called
 * with the lock held. */
static bool tell_parked(struct jobs *jobs)
{
	bool found = false;

	list_for_each(node, &jobs->parked)
	{
		struct job *job = list_entry(node, struct job, node);

		if (!job->is_told && is_over(job)) {
			job->is_told = true;
			found = true;
		}
	}
	if (found) {
		jobs->options.wake(jobs->options.context);
	}
	return found;
}

/* Waits for work or for the time of the next periodic check. Called with the lock held. */
static void wait_for_work(struct jobs *jobs)
{
	struct timespec look = seconds_from_now(LOOK_S);
	int rc = 0;

	/* While this thread did not wait, the last disk of a parked job could have closed. */
	(void)tell_parked(jobs);
	while (!jobs->stopping && rc == 0 && jobs->step != JOBS_REVIEW &&
		(jobs->step != JOBS_IDLE || !jobs->begun ||
			(list_is_empty(&jobs->waiting) && !jobs->looks))) {
		struct timespec until = look;

		list_for_each(node, &jobs->parked)
		{
			const struct job *job = list_entry(node, struct job, node);

			if (!job->is_told && is_earlier(&job->until, &until)) {
				until = job->until;
			}
		}
		rc = pthread_cond_clockwait(&jobs->changed, &jobs->lock, CLOCK_MONOTONIC, &until);
		if (tell_parked(jobs)) {
			rc = 0;
		}
	}
}

/* Searches for changes that need a job without a command: snapshots that stores have deleted for
 * lack of space, new sizes of disks, and new TLS files. Returns the job, or NULL. begun: the server
 * is ready. */
static struct job *look_for_job(struct jobs *jobs, bool begun)
{
	const struct jobs_options *options = &jobs->options;

	if (begun && snapshots_were_dropped(options->exports)) {
		return job_create(jobs, &job_drop_exports);
	}
	if (begun) {
		exports_look_at_sizes(options->exports);
	}
	return credentials_are_stale(options->credentials) ? job_create(jobs, &job_tls) : NULL;
}

/* Runs the next job, or looks for one. Called with the lock held, and releases it while the job
 * runs. */
static void run_next_job(struct jobs *jobs)
{
	bool begun = jobs->begun;
	struct list_node *node = begun ? list_pop_front(&jobs->waiting) : NULL;
	struct job *job = node != NULL ? list_entry(node, struct job, node) : NULL;

	jobs->job = job;
	jobs->looks = jobs->looks && job != NULL;
	jobs_set_step(jobs, JOBS_RUN);
	pthread_mutex_unlock(&jobs->lock);
	job = job ?: look_for_job(jobs, begun);
	if (job != NULL) {
		job->result = job->kind->run(job, &job->error);
		if (job->result < 0 || job->kind->commit == NULL) {
			job_drop(job);
		}
	}
	pthread_mutex_lock(&jobs->lock);
	if (job == NULL) {
		jobs_set_step(jobs, JOBS_IDLE);
		return;
	}
	jobs->job = job;
	jobs_set_step(
		jobs, job->result == 0 && job->kind->commit != NULL ? JOBS_COMMIT : JOBS_FINISH);
	jobs->options.wake(jobs->options.context);
}

/* Waits until all reactors have checked their connections, but at most for REVIEW_S. Called with
 * the lock held. */
static void wait_for_reactors(struct jobs *jobs)
{
	struct timespec until = seconds_from_now(REVIEW_S);
	uint32_t behind;
	int rc = 0;

	while ((behind = count_behind(jobs)) > 0 && !jobs->stopping && rc == 0) {
		rc = pthread_cond_clockwait(&jobs->changed, &jobs->lock, CLOCK_MONOTONIC, &until);
		(void)tell_parked(jobs);
	}
	if (behind > 0) {
		jobs->job->result = error_set(&jobs->job->error, -ETIMEDOUT,
			"the change applies to new connections, but %u of %u server threads have "
			"not yet checked all of their existing connections; the threads continue "
			"to check",
			behind, jobs->options.reactor_count);
	}
	jobs_set_step(jobs, JOBS_FINISH);
	jobs->options.wake(jobs->options.context);
}

static void *jobs_thread(void *context)
{
	struct jobs *jobs = context;

	/* The thread sets its own name, because the sandbox does not let another thread set it. */
	pthread_setname_np(pthread_self(), "gmblock/jobs");
	pthread_mutex_lock(&jobs->lock);
	while (!jobs->stopping) {
		wait_for_work(jobs);
		if (!jobs->stopping && jobs->step == JOBS_IDLE) {
			run_next_job(jobs);
		} else if (!jobs->stopping && jobs->step == JOBS_REVIEW) {
			wait_for_reactors(jobs);
		}
	}
	pthread_mutex_unlock(&jobs->lock);
	return NULL;
}

/* --- the queue ------------------------------------------------------------------------------- */

void jobs_add(struct jobs *jobs, struct control_client *client, const struct job_kind *kind,
	const json_t *arguments)
{
	struct job *job = job_create(jobs, kind);
	struct error error;
	int rc = job == NULL ? error_oom(&error) : 0;

	if (rc == 0 && kind->take != NULL) {
		rc = kind->take(job, arguments, &error);
	}
	if (rc == 0) {
		job->client = client;
		pthread_mutex_lock(&jobs->lock);
		list_push_back(&jobs->waiting, &job->node);
		pthread_cond_signal(&jobs->changed);
		pthread_mutex_unlock(&jobs->lock);
		return;
	}
	control_fail(client, rc, error.text);
	if (job != NULL) {
		job_free(job);
	}
}

bool jobs_add_action(struct jobs *jobs, struct control_client *client,
	const struct job_kind *const *kinds, const json_t *arguments)
{
	const char *action = json_string_value(json_object_get(arguments, "action"));

	for (; action != NULL && *kinds != NULL; kinds++) {
		if (strcmp((*kinds)->action, action) == 0) {
			jobs_add(jobs, client, *kinds, arguments);
			return true;
		}
	}
	return false;
}

void jobs_ask(struct jobs *jobs, const struct job_kind *kind)
{
	struct job *job = NULL;
	bool is_waiting = false;

	pthread_mutex_lock(&jobs->lock);
	list_for_each(node, &jobs->waiting)
	{
		is_waiting |= list_entry(node, struct job, node)->kind == kind;
	}
	if (!is_waiting && (job = job_create(jobs, kind)) != NULL) {
		list_push_back(&jobs->waiting, &job->node);
		pthread_cond_signal(&jobs->changed);
	}
	pthread_mutex_unlock(&jobs->lock);
	if (!is_waiting && job == NULL) {
		log_error("%s", "out of memory: the configuration is not reloaded");
	}
}

void jobs_look(struct jobs *jobs)
{
	pthread_mutex_lock(&jobs->lock);
	jobs->looks = true;
	pthread_cond_signal(&jobs->changed);
	pthread_mutex_unlock(&jobs->lock);
}

void jobs_begin(struct jobs *jobs)
{
	pthread_mutex_lock(&jobs->lock);
	jobs->begun = true;
	pthread_cond_signal(&jobs->changed);
	pthread_mutex_unlock(&jobs->lock);
}

bool jobs_hold(struct jobs *jobs)
{
	bool is_idle;

	pthread_mutex_lock(&jobs->lock);
	is_idle = jobs->step == JOBS_IDLE && list_is_empty(&jobs->waiting) &&
		  list_is_empty(&jobs->parked);
	jobs->begun = jobs->begun && !is_idle;
	pthread_mutex_unlock(&jobs->lock);
	return is_idle;
}

/* --- answers --------------------------------------------------------------------------------- */

void job_log(struct job *job)
{
	char *complaint = job->jobs->complaint;
	char shown[4 * ERROR_TEXT_BYTES];
	json_t *line;
	size_t i;

	if (job->result == 0) {
		complaint[0] = '\0';
	} else if (!job->kind->repeats || strcmp(complaint, job->error.text) != 0) {
		memcpy(complaint, job->error.text, sizeof(job->error.text));
		/* The command that asked for the change reports the error. */
		log_line(job->client != NULL && !job->is_applied ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR,
			"%s", log_escape_sentence(shown, sizeof(shown), job->error.text));
	}
	if (job->result < 0 && !job->is_applied) {
		return;
	}
	json_array_foreach(job->lines, i, line)
	{
		log_info("%s", json_string_value(line));
	}
}

static void job_answer(const struct job *job)
{
	if (job->client == NULL) {
		return;
	}
	if (job->result < 0 && !job->is_applied) {
		control_fail(job->client, job->result, job->error.text);
		return;
	}
	control_reply(job->client, json_pack("{s:I, s:I, s:o, s:s*}", "addresses",
					   (json_int_t)credentials_count(job->options->credentials),
					   "connections_ended", (json_int_t)job->ended, "changes",
					   json_incref(job->lines) ?: json_array(), "unfinished",
					   job->result < 0 ? job->error.text : NULL));
}

/* Reports the result and answers. The job is freed, unless disks are still to close. */
static void finish(struct job *job)
{
	struct jobs *jobs = job->jobs;
	bool is_last;

	job->kind->finish(job);
	job_answer(job);
	pthread_mutex_lock(&jobs->lock);
	job->is_answered = true;
	is_last = job->closing_count == 0;
	pthread_mutex_unlock(&jobs->lock);
	if (is_last) {
		job_free(job);
	}
}

/* Removes and returns a job whose disks are closed, or whose time limit has passed, or NULL. */
static struct job *take_parked(struct jobs *jobs)
{
	struct job *found = NULL;
	uint32_t closing = 0;

	pthread_mutex_lock(&jobs->lock);
	list_for_each(node, &jobs->parked)
	{
		struct job *job = list_entry(node, struct job, node);

		if (found == NULL && is_over(job)) {
			found = job;
			closing = job->closing_count;
			list_remove(node);
		}
	}
	pthread_mutex_unlock(&jobs->lock);
	if (closing > 0) {
		found->result = error_set(&found->error, -ETIMEDOUT,
			"the change was applied, but %u disk%s that %s no longer served %s still "
			"open: an operation on %s hangs",
			closing, closing == 1 ? "" : "s", closing == 1 ? "is" : "are",
			closing == 1 ? "is" : "are", closing == 1 ? "it" : "them");
	}
	return found;
}

/* Ends the job in progress. Returns the job, or NULL if it has to wait until its disks are closed;
 * later jobs proceed in that time. Called with the lock held. */
static struct job *end_job(struct jobs *jobs)
{
	struct job *job = jobs->job;

	if (job->is_applied && count_behind(jobs) == 0) {
		fencing_settle(jobs->options.fencing);
	}
	job->ended = jobs->ended;
	jobs->ended = job->result == 0 ? 0 : jobs->ended;
	jobs->job = NULL;
	jobs_set_step(jobs, JOBS_IDLE);
	if (job->result < 0 || job->closing_count == 0) {
		return job;
	}
	job->until =
		seconds_from_now((time_t)(job->deadline_ns / UINT64_C(1000000000)) + CLOSING_S);
	list_push_back(&jobs->parked, &job->node);
	return NULL;
}

void jobs_continue(struct jobs *jobs)
{
	struct job *job;

	while ((job = take_parked(jobs)) != NULL) {
		finish(job);
	}
	pthread_mutex_lock(&jobs->lock);
	if (jobs->step == JOBS_COMMIT) {
		commit_job(jobs);
	}
	job = jobs->step == JOBS_FINISH ? end_job(jobs) : NULL;
	pthread_mutex_unlock(&jobs->lock);
	if (job != NULL) {
		finish(job);
	}
}

void jobs_forget_client(void *context, struct control_client *client)
{
	struct jobs *jobs = context;

	pthread_mutex_lock(&jobs->lock);
	if (jobs->job != NULL && jobs->job->client == client) {
		jobs->job->client = NULL;
	}
	list_for_each(node, &jobs->parked)
	{
		struct job *job = list_entry(node, struct job, node);

		job->client = job->client == client ? NULL : job->client;
	}
	list_for_each(node, &jobs->waiting)
	{
		struct job *job = list_entry(node, struct job, node);

		if (job->client == client) {
			list_remove(node);
			job_free(job);
		}
	}
	pthread_mutex_unlock(&jobs->lock);
	control_fail(client, -ECANCELED, "the client has disconnected");
}

/* --- life ------------------------------------------------------------------------------------ */

int jobs_create(const struct jobs_options *options, struct jobs **jobs_out, struct error *error)
{
	struct jobs *jobs = calloc(1, sizeof(*jobs));
	int code;

	if (jobs == NULL) {
		return error_oom_for(error, "jobs");
	}
	jobs->options = *options;
	list_init(&jobs->waiting);
	list_init(&jobs->parked);
	jobs->reviewers = calloc(options->reactor_count, sizeof(struct reviewer));
	if (jobs->reviewers == NULL) {
		free(jobs);
		return error_oom_for(error, "jobs");
	}
	for (uint32_t i = 0; i < options->reactor_count; i++) {
		jobs->reviewers[i].jobs = jobs;
	}
	pthread_mutex_init(&jobs->lock, NULL);
	pthread_cond_init(&jobs->changed, NULL);
	code = pthread_create(&jobs->thread, NULL, jobs_thread, jobs);
	if (code != 0) {
		pthread_cond_destroy(&jobs->changed);
		pthread_mutex_destroy(&jobs->lock);
		free(jobs->reviewers);
		free(jobs);
		return error_set(error, -code, "cannot start a thread: %s", strerror(code));
	}
	*jobs_out = jobs;
	return 0;
}

/* Removes and returns the next client that waits for the answer of any job. Called with the lock
 * held. */
static struct control_client *next_client(struct jobs *jobs)
{
	struct control_client *client = NULL;
	struct list_node *node;

	if (jobs->job != NULL && jobs->job->client != NULL) {
		client = jobs->job->client;
		jobs->job->client = NULL;
		return client;
	}
	list_for_each(parked, &jobs->parked)
	{
		struct job *job = list_entry(parked, struct job, node);

		if (job->client != NULL) {
			client = job->client;
			job->client = NULL;
			return client;
		}
	}
	while (client == NULL && (node = list_pop_front(&jobs->waiting)) != NULL) {
		struct job *job = list_entry(node, struct job, node);

		client = job->client;
		if (client == NULL) {
			log_warning("%s",
				"the configuration was not reloaded, because this process is "
				"ending; if another process has taken over, send SIGHUP to it");
		}
		job_free(job);
	}
	return client;
}

const struct jobs_options *jobs_options(const struct jobs *jobs)
{
	return &jobs->options;
}

/* The task is posted under the lock. Otherwise jobs_stop() could return between the check and the
 * post, and the reactor be destroyed before the post. */
bool jobs_post(struct jobs *jobs, struct reactor *reactor, struct reactor_task *task)
{
	bool posts;

	pthread_mutex_lock(&jobs->lock);
	posts = !jobs->has_stopped;
	if (posts) {
		reactor_post(reactor, task);
	}
	pthread_mutex_unlock(&jobs->lock);
	return posts;
}

void jobs_stop(struct jobs *jobs)
{
	struct control_client *client;

	do {
		if (jobs == NULL) {
			return;
		}
		pthread_mutex_lock(&jobs->lock);
		jobs->has_stopped = true;
		client = next_client(jobs);
		pthread_mutex_unlock(&jobs->lock);
		if (client != NULL) {
			control_fail(client, -ESHUTDOWN, "the server is stopping");
		}
	} while (client != NULL);
}

bool jobs_destroy(struct jobs *jobs)
{
	struct timespec until;
	struct list_node *node;

	if (jobs == NULL) {
		return true;
	}
	pthread_mutex_lock(&jobs->lock);
	jobs->stopping = true;
	pthread_cond_signal(&jobs->changed);
	pthread_mutex_unlock(&jobs->lock);
	/* pthread_timedjoin_np() requires CLOCK_REALTIME. */
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += JOIN_S;
	if (pthread_timedjoin_np(jobs->thread, NULL, &until) != 0) {
		return false;
	}
	if (jobs->job != NULL) {
		job_free(jobs->job);
	}
	/* A signal can add jobs after jobs_stop(). */
	while ((node = list_pop_front(&jobs->waiting)) != NULL) {
		job_free(list_entry(node, struct job, node));
	}
	while ((node = list_pop_front(&jobs->parked)) != NULL) {
		struct job *job = list_entry(node, struct job, node);

		/* All engines have ended, so all disks of the job are closed. */
		job_free(job);
	}
	config_free(jobs->config);
	pthread_cond_destroy(&jobs->changed);
	pthread_mutex_destroy(&jobs->lock);
	free(jobs->reviewers);
	free(jobs);
	return true;
}
