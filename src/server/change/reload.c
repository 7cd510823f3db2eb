// SPDX-License-Identifier: Apache-2.0
#include "server/change/reload.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "server/change/snapshot.h"

#define LOOK_S	  60
#define REVIEW_S  5 /* seconds in which reactors must check their connections */
#define CLOSING_S 2 /* seconds in which disks must close after their clients have gone */
#define JOIN_S	  5

_Static_assert(REVIEW_S < LOOK_S, "each check ends before the next begins");

enum reload_state {
	RELOAD_IDLE,
	RELOAD_READING,	  /* the thread reads and compares, without the lock */
	RELOAD_READ,	  /* the main thread must apply the result */
	RELOAD_REVIEWING, /* the thread waits for the reactors to check their connections */
	RELOAD_REVIEWED,  /* the main thread must report the result */
	RELOAD_STATE_COUNT
};

static const uint32_t reload_edges[RELOAD_STATE_COUNT] = {
	[RELOAD_IDLE] = BIT(RELOAD_READING),
	[RELOAD_READING] = BIT(RELOAD_READ) | BIT(RELOAD_IDLE),
	[RELOAD_READ] = BIT(RELOAD_REVIEWING) | BIT(RELOAD_REVIEWED),
	[RELOAD_REVIEWING] = BIT(RELOAD_REVIEWED),
	[RELOAD_REVIEWED] = BIT(RELOAD_IDLE),
};

/* How far one reactor has checked its connections. */
struct reviewer {
	struct reload *reload;
	/* protected by the lock: number of the last request (see `turn` below) for which the
	 * reactor has checked all of its connections */
	uint64_t turn;
};

struct reload {
	struct reload_options options;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;

	/* The following members are protected by the lock. */
	enum reload_state state;
	bool begun;
	bool stopping;
	/* reload_stop() was called, so reactors may already be destroyed */
	bool has_stopped;
	struct list_node requests;	/* waiting requests */
	uint64_t turn;			/* number of requests that have started */
	struct reload_request *request; /* request in progress, or NULL; freed by the main thread */
	int result;
	struct error error;
	struct reload_news news;
	json_t *lines;		    /* description of the request's change, or NULL */
	struct reviewer *reviewers; /* one per reactor */
	uint32_t ended;		    /* connections ended because of the request in progress */
	bool is_applied; /* the request's change is in effect, even if a later step fails */
	/* Requests that are applied and wait for disks to close. Later requests proceed. */
	struct list_node parked;
	bool looks; /* see reload_look() */

	struct reload_request look; /* request for the periodic check */

	/* The following member is written by the main thread while no request is in progress. */
	struct server_config *config; /* configuration that was last read; NULL: options.config */

	/* The following member is used only by the main thread. */
	/* Last logged error, so that it is not repeated every minute. */
	char complaint[ERROR_TEXT_BYTES];
};

/* Changes the state. Called with the lock held. */
static void change_reload_set_state(struct reload *reload, enum reload_state state)
{
	GMB_ASSERT((reload_edges[reload->state] & BIT(state)) != 0);
	reload->state = state;
	pthread_cond_signal(&reload->changed);
}

static const struct server_config *configured(const struct reload *reload)
{
	return reload->config != NULL ? reload->config : reload->options.config;
}

/* --- closing disks --------------------------------------------------------------------------- */

/* Called on any thread for each closed disk, possibly after the request was answered. The last call
 * after the answer frees the request. */
static void disk_has_closed(void *context)
{
	struct reload_request *request = context;
	struct reload *reload = request->reload;
	bool is_last;

	pthread_mutex_lock(&reload->lock);
	is_last = --request->closing_count == 0;
	pthread_cond_signal(&reload->changed);
	if (is_last && request->is_answered) {
		reload_request_free(request);
	}
	pthread_mutex_unlock(&reload->lock);
}

/* Called when the request is answered. Frees it, unless disks are still to close. */
static void change_reload_request_end(struct reload *reload, struct reload_request *request)
{
	bool is_last;

	if (request == &reload->look) {
		return;
	}
	pthread_mutex_lock(&reload->lock);
	request->is_answered = true;
	is_last = request->closing_count == 0;
	pthread_mutex_unlock(&reload->lock);
	if (is_last) {
		reload_request_free(request);
	}
}

/* --- applying -------------------------------------------------------------------------------- */

/* Checks whether a connection's certificate is still valid. Called on a reactor's thread. */
static bool may_stay(void *context, const struct session *session)
{
	struct engine *engine = session->engine;
	struct tls_context *tls;
	struct error error;
	int rc;

	GMB_UNUSED(context);
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
	struct reload *reload = reviewer->reload;

	pthread_mutex_lock(&reload->lock);
	reviewer->turn = turn;
	reload->ended += ended;
	pthread_cond_signal(&reload->changed);
	pthread_mutex_unlock(&reload->lock);
}

/* Applies everything that was read, and makes the reactors check their connections. A reactor that
 * hangs does both when it continues. */
static void reload_apply(struct reload *reload, struct reload_news *news, uint64_t turn)
{
	if (news->credentials != NULL) {
		credentials_use(reload->options.credentials, news->credentials);
		news->credentials = NULL;
	}
	if (news->config != NULL) {
		reload_config_free(reload->config);
		reload->config = news->config;
		news->config = NULL;
	}
	if (news->change != NULL) {
		change_commit(news->change, reload->options.exports);
		reload->options.changed(reload->options.context);
	}
	for (uint32_t i = 0; i < reload->options.reactor_count; i++) {
		const struct engine_review review = {
			.may_stay = may_stay,
			.done = reviewed,
			.context = &reload->reviewers[i],
			.number = turn,
			.deadline_ns = CHANGE_DRAIN_NS,
		};

		reactor_review(reload->options.reactors[i], &review);
	}
	reload_news_drop(news);
}

/* Returns the number of reactors that have not yet checked all their connections for this request.
 * Called with the lock held. */
static uint32_t count_behind(const struct reload *reload)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < reload->options.reactor_count; i++) {
		count += reload->reviewers[i].turn < reload->turn;
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

static bool change_reload_is_before(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

static bool change_reload_is_over(const struct reload_request *request)
{
	struct timespec now = seconds_from_now(0);

	return request->closing_count == 0 || !change_reload_is_before(&now, &request->until);
}

/* Wakes the main thread if parked requests can be answered, because their disks are closed or their
 * time limit has passed. Returns true if there are any. Called with the lock held. */
static bool tell_parked(struct reload *reload)
{
	bool found = false;

	list_for_each(node, &reload->parked)
	{
		struct reload_request *request = list_entry(node, struct reload_request, node);

		if (!request->is_told && change_reload_is_over(request)) {
			request->is_told = true;
			found = true;
		}
	}
	if (found) {
		reload->options.wake(reload->options.context);
	}
	return found;
}

/* Waits for work or for the time of the next periodic check. Called with the lock held. */
static void wait_for_work(struct reload *reload)
{
	struct timespec look = seconds_from_now(LOOK_S);
	int rc = 0;

	/* A disk may have closed while this thread was not waiting. */
	(void)tell_parked(reload);
	while (!reload->stopping && rc == 0 && reload->state != RELOAD_REVIEWING &&
		(reload->state != RELOAD_IDLE || !reload->begun ||
			(list_is_empty(&reload->requests) && !reload->looks))) {
		struct timespec until = look;

		list_for_each(node, &reload->parked)
		{
			const struct reload_request *request =
				list_entry(node, struct reload_request, node);

			if (!request->is_told && change_reload_is_before(&request->until, &until)) {
				until = request->until;
			}
		}
		rc = pthread_cond_timedwait(&reload->changed, &reload->lock, &until);
		if (tell_parked(reload)) {
			rc = 0;
		}
	}
}

/* Returns the next request, or one for a periodic check. Called with the lock held. */
static struct reload_request *next_request(struct reload *reload)
{
	struct list_node *node = reload->begun ? list_pop_front(&reload->requests) : NULL;
	struct reload_request *request = NULL;

	if (node != NULL) {
		return list_entry(node, struct reload_request, node);
	}
	reload->looks = false;
	if (reload->begun && snapshots_were_dropped(reload->options.exports)) {
		request = reload_request_create(REQUEST_SNAPSHOTS_DROPPED);
	}
	return request != NULL ? request : &reload->look;
}

/* Handles one request or a periodic check. Called with the lock held, which is released while files
 * are read. */
static void change_reload_work(struct reload *reload)
{
	struct reload_request *request = next_request(reload);
	struct reload_news news = { 0 };
	struct error error = { 0 };
	bool begun = reload->begun;
	int rc;

	change_reload_set_state(reload, RELOAD_READING);
	request->reload = reload;
	reload->request = request;
	reload->turn++;
	pthread_mutex_unlock(&reload->lock);
	if (request == &reload->look && begun) {
		exports_look_at_sizes(reload->options.exports);
	}
	if (request == &reload->look && !credentials_are_stale(reload->options.credentials)) {
		pthread_mutex_lock(&reload->lock);
		reload->request = NULL;
		change_reload_set_state(reload, RELOAD_IDLE);
		return;
	}
	rc = reload_request_read(
		&reload->options, configured(reload), request, disk_has_closed, &news, &error);
	pthread_mutex_lock(&reload->lock);
	reload->result = rc;
	reload->error = error;
	reload->news = news;
	reload->lines = json_incref(news.lines);
	change_reload_set_state(reload, RELOAD_READ);
	reload->options.wake(reload->options.context);
}

/* Waits until all reactors have checked their connections, or for REVIEW_S. Called with the lock
 * held. */
static void wait_for_reactors(struct reload *reload)
{
	struct timespec until = seconds_from_now(REVIEW_S);
	uint32_t behind;
	int rc = 0;

	while ((behind = count_behind(reload)) > 0 && !reload->stopping && rc == 0) {
		rc = pthread_cond_timedwait(&reload->changed, &reload->lock, &until);
		(void)tell_parked(reload);
	}
	reload->result = 0;
	if (behind > 0) {
		reload->result = error_set(&reload->error, -ETIMEDOUT,
			"the change applies to new connections, but %u of %u server threads have "
			"not checked all of their connections yet; they continue",
			behind, reload->options.reactor_count);
	}
	change_reload_set_state(reload, RELOAD_REVIEWED);
	reload->options.wake(reload->options.context);
}

static void *change_reload_run(void *context)
{
	struct reload *reload = context;

	/* The thread sets its own name, because the sandbox does not let another thread set it. */
	pthread_setname_np(pthread_self(), "gmblock/reload");
	pthread_mutex_lock(&reload->lock);
	while (!reload->stopping) {
		wait_for_work(reload);
		if (!reload->stopping && reload->state == RELOAD_IDLE) {
			change_reload_work(reload);
		} else if (!reload->stopping && reload->state == RELOAD_REVIEWING) {
			wait_for_reactors(reload);
		}
	}
	pthread_mutex_unlock(&reload->lock);
	return NULL;
}

/* Queues the request, which the queue owns from then on. */
static void change_reload_ask(struct reload *reload, struct reload_request *request)
{
	pthread_mutex_lock(&reload->lock);
	list_push_back(&reload->requests, &request->node);
	pthread_cond_signal(&reload->changed);
	pthread_mutex_unlock(&reload->lock);
}

/* Returns whether an equal request is already waiting. Called with the lock held. */
static bool is_asked(const struct reload *reload)
{
	list_for_each(node, &reload->requests)
	{
		const struct reload_request *request =
			list_entry(node, struct reload_request, node);

		if (request->action == REQUEST_RELOAD && !request->is_dry) {
			return true;
		}
	}
	return false;
}

void reload_ask(struct reload *reload)
{
	struct reload_request *request;
	bool asked;

	pthread_mutex_lock(&reload->lock);
	asked = is_asked(reload);
	pthread_mutex_unlock(&reload->lock);
	request = asked ? NULL : reload_request_create(REQUEST_RELOAD);
	if (request != NULL) {
		change_reload_ask(reload, request);
	} else if (!asked) {
		log_error("%s", "no memory for reloads");
	}
}

void reload_look(struct reload *reload)
{
	pthread_mutex_lock(&reload->lock);
	reload->looks = true;
	pthread_cond_signal(&reload->changed);
	pthread_mutex_unlock(&reload->lock);
}

void reload_begin(struct reload *reload)
{
	pthread_mutex_lock(&reload->lock);
	reload->begun = true;
	pthread_cond_signal(&reload->changed);
	pthread_mutex_unlock(&reload->lock);
}

bool reload_hold(struct reload *reload)
{
	bool is_idle;

	pthread_mutex_lock(&reload->lock);
	is_idle = reload->state == RELOAD_IDLE && list_is_empty(&reload->requests) &&
		  list_is_empty(&reload->parked);
	reload->begun = reload->begun && !is_idle;
	pthread_mutex_unlock(&reload->lock);
	return is_idle;
}

/* --- answers --------------------------------------------------------------------------------- */

/* The result of a request. */
struct outcome {
	struct reload_request *request; /* owned */
	int result;
	struct error error;
	bool is_applied; /* false: the server is unchanged */
	uint32_t ended;
	json_t *lines; /* owned, or NULL */
};

static void change_reload_answer(struct reload *reload, struct outcome *outcome)
{
	struct control_client *client = outcome->request->client;

	if (client == NULL) {
		json_decref(outcome->lines);
	} else if (outcome->result < 0 && !outcome->is_applied) {
		control_fail(client, outcome->result, outcome->error.text);
		json_decref(outcome->lines);
	} else {
		control_reply(client,
			json_pack("{s:I, s:I, s:o, s:s*}", "addresses",
				(json_int_t)credentials_count(reload->options.credentials),
				"connections_ended", (json_int_t)outcome->ended, "changes",
				outcome->lines != NULL ? outcome->lines : json_array(),
				"unfinished", outcome->result < 0 ? outcome->error.text : NULL));
	}
	outcome->lines = NULL;
}

static void change_reload_say(struct reload *reload, const struct outcome *outcome)
{
	const struct reload_request *request = outcome->request;
	uint32_t addresses = credentials_count(reload->options.credentials);
	json_t *line;
	size_t i;

	if (request->is_dry) {
		return;
	}
	if (outcome->result < 0) {
		if (request->action != REQUEST_LOOK ||
			strcmp(reload->complaint, outcome->error.text) != 0) {
			memcpy(reload->complaint, outcome->error.text, sizeof(reload->complaint));
			log_error("%s", outcome->error.text);
		}
	} else {
		reload->complaint[0] = '\0';
	}
	if (outcome->result < 0 && !outcome->is_applied) {
		return;
	}
	json_array_foreach(outcome->lines, i, line)
	{
		log_info("%s", json_string_value(line));
	}
	if (request->action <= REQUEST_RELOAD && outcome->result == 0) {
		log_info("reloaded %sthe TLS files of %u address%s; %u connection%s closed",
			request->action == REQUEST_RELOAD ? "the configuration and " : "",
			addresses, addresses == 1 ? "" : "es", outcome->ended,
			outcome->ended == 1 ? "" : "s");
	}
}

/* Ends the request without a change: a dry run is complete (0), or there was an error. Called with
 * the lock held. */
static void change_reload_give_up(struct reload *reload, int result)
{
	reload->result = result;
	if (result < 0 && reload->request->action <= REQUEST_RELOAD) {
		error_prefix(&reload->error, reload->request->is_dry
						     ? "a reload would fail and change nothing"
						     : "reload failed, nothing was changed");
	}
	change_reload_set_state(reload, RELOAD_REVIEWED);
}

/* Prepares and applies what was read. Called with the lock held, which is released in between. */
static void use_news(struct reload *reload)
{
	struct reload_news news = reload->news;
	uint64_t turn = reload->turn;
	bool is_dry = reload->request->is_dry;
	struct error error;
	int rc = 0;

	reload->news = (struct reload_news){ 0 };
	pthread_mutex_unlock(&reload->lock);
	if (news.change != NULL && !is_dry) {
		rc = change_prepare(news.change, &error);
	}
	pthread_mutex_lock(&reload->lock);
	if (rc < 0 || is_dry) {
		if (rc < 0) {
			reload->error = error;
		}
		if (rc < 0 && reload->request->action == REQUEST_SNAPSHOT_CREATE) {
			error_prefix(&reload->error, "the snapshot was taken, but is not served");
		}
		change_reload_give_up(reload, rc);
		pthread_mutex_unlock(&reload->lock);
		reload_news_drop(&news);
	} else {
		/* Set before the commit, because disks can close during it. */
		reload->request->closing_count =
			news.change != NULL ? change_closing(news.change) : 0;
		reload->is_applied = true;
		change_reload_set_state(reload, RELOAD_REVIEWING);
		pthread_mutex_unlock(&reload->lock);
		reload_apply(reload, &news, turn);
	}
	pthread_mutex_lock(&reload->lock);
}

/* Lets the request wait for its disks to close, while later requests proceed. Called with the lock
 * held. */
static void change_reload_park(struct reload *reload, struct reload_request *request)
{
	request->until =
		seconds_from_now((time_t)(request->deadline_ns / UINT64_C(1000000000)) + CLOSING_S);
	request->lines = reload->lines;
	request->ended = reload->ended;
	list_push_back(&reload->parked, &request->node);
}

static void answer_all(struct reload *reload, struct outcome *outcome)
{
	change_reload_say(reload, outcome);
	change_reload_answer(reload, outcome);
	change_reload_request_end(reload, outcome->request);
}

/* Removes and returns a request whose disks are closed, or whose time limit has passed. Returns
 * false if there is none. */
static bool take_parked(struct reload *reload, struct outcome *outcome)
{
	struct reload_request *found = NULL;
	uint32_t closing = 0;

	pthread_mutex_lock(&reload->lock);
	list_for_each(node, &reload->parked)
	{
		struct reload_request *request = list_entry(node, struct reload_request, node);

		if (found == NULL && change_reload_is_over(request)) {
			found = request;
			list_remove(node);
		}
	}
	if (found != NULL) {
		closing = found->closing_count;
		*outcome = (struct outcome){
			.request = found,
			.is_applied = true,
			.ended = found->ended,
			.lines = found->lines,
		};
		found->lines = NULL;
	}
	pthread_mutex_unlock(&reload->lock);
	if (closing > 0) {
		outcome->result = error_set(&outcome->error, -ETIMEDOUT,
			"the change was applied, but %u disk%s that %s no longer served %s still "
			"open: an operation on %s hangs",
			closing, closing == 1 ? "" : "s", closing == 1 ? "is" : "are",
			closing == 1 ? "is" : "are", closing == 1 ? "it" : "them");
	}
	return found != NULL;
}

void reload_finish(struct reload *reload)
{
	struct outcome outcome;
	bool waits;

	while (take_parked(reload, &outcome)) {
		answer_all(reload, &outcome);
	}
	pthread_mutex_lock(&reload->lock);
	if (reload->state == RELOAD_READ && reload->result == 0) {
		/* more calls of reload_finish() follow, unless the request is complete */
		use_news(reload);
	} else if (reload->state == RELOAD_READ) {
		change_reload_give_up(reload, reload->result);
	}
	if (reload->state != RELOAD_REVIEWED) {
		pthread_mutex_unlock(&reload->lock);
		return;
	}
	outcome = (struct outcome){
		.request = reload->request,
		.result = reload->result,
		.error = reload->error,
		.is_applied = reload->is_applied,
		.ended = reload->ended,
		.lines = reload->lines,
	};
	waits = outcome.result == 0 && outcome.request->closing_count > 0;
	if (waits) {
		change_reload_park(reload, outcome.request);
	}
	reload->is_applied = false;
	reload->request = NULL;
	reload->lines = NULL;
	reload->ended = outcome.result == 0 ? 0 : reload->ended;
	change_reload_set_state(reload, RELOAD_IDLE);
	pthread_mutex_unlock(&reload->lock);
	if (!waits) {
		answer_all(reload, &outcome);
	}
}

/* --- commands -------------------------------------------------------------------------------- */

/* Queues a request whose client waits for the answer. take: reads the arguments. */
static void begin_request(struct reload *reload, struct control_client *client,
	enum request_action action, const json_t *arguments,
	int (*take)(struct reload_request *request, const json_t *arguments, struct error *error))
{
	struct reload_request *request = reload_request_create(action);
	struct error error;
	int rc = request == NULL ? error_oom(&error) : take(request, arguments, &error);

	if (rc == 0) {
		request->client = client;
		change_reload_ask(reload, request);
		return;
	}
	control_fail(client, rc, error.text);
	if (request != NULL) {
		reload_request_free(request);
	}
}

static int take_reload(struct reload_request *request, const json_t *arguments, struct error *error)
{
	GMB_UNUSED(error);
	request->is_dry = json_is_true(json_object_get(arguments, "dry_run"));
	return 0;
}

static void begin_reload(void *context, struct control_client *client, const json_t *arguments)
{
	begin_request(context, client, REQUEST_RELOAD, arguments, take_reload);
}

/* Called when the client has disconnected. Work in progress continues. */
static void end_request(void *context, struct control_client *client)
{
	struct reload *reload = context;

	pthread_mutex_lock(&reload->lock);
	if (reload->request != NULL && reload->request->client == client) {
		reload->request->client = NULL;
	}
	list_for_each(node, &reload->parked)
	{
		struct reload_request *request = list_entry(node, struct reload_request, node);

		request->client = request->client == client ? NULL : request->client;
	}
	list_for_each(node, &reload->requests)
	{
		struct reload_request *request = list_entry(node, struct reload_request, node);

		if (request->client == client) {
			list_remove(node);
			reload_request_free(request);
		}
	}
	pthread_mutex_unlock(&reload->lock);
	control_fail(client, -ECANCELED, "the client has disconnected");
}

const struct control_command reload_command = {
	.name = "reload",
	.right = CONTROL_CHANGE,
	.begin = begin_reload,
	.end = end_request,
};

static void begin_export(void *context, struct control_client *client, const json_t *arguments)
{
	static const char *const actions[] = {
		[REQUEST_ADD] = "add", [REQUEST_SET] = "set", [REQUEST_REMOVE] = "remove"
	};
	const char *action = json_string_value(json_object_get(arguments, "action"));

	if (action != NULL && strcmp(action, "list") == 0) {
		control_reply(client,
			json_pack("{s:o}", "exports",
				exports_json(((const struct reload *)context)->options.exports)));
		return;
	}
	for (size_t i = REQUEST_ADD; action != NULL && i < ARRAY_COUNT(actions); i++) {
		if (strcmp(action, actions[i]) == 0) {
			begin_request(context, client, (enum request_action)i, arguments,
				reload_request_take_export);
			return;
		}
	}
	control_fail(client, -EINVAL, "\"action\" is one of add, set, remove and list");
}

const struct control_command export_command = {
	.name = "export",
	.right = CONTROL_CHANGE,
	.begin = begin_export,
	.end = end_request,
};

static void begin_snapshot(void *context, struct control_client *client, const json_t *arguments)
{
	const struct reload *reload = context;
	const char *action = json_string_value(json_object_get(arguments, "action"));

	if (action != NULL && strcmp(action, "list") == 0) {
		const char *name = json_string_value(json_object_get(arguments, "export"));
		struct error error;
		json_t *all;
		int rc = snapshots_json(reload->options.exports, name, &all, &error);

		if (rc < 0) {
			control_fail(client, rc, error.text);
		} else {
			control_reply(client, json_pack("{s:o}", "snapshots", all));
		}
	} else if (action != NULL && strcmp(action, "create") == 0) {
		begin_request(context, client, REQUEST_SNAPSHOT_CREATE, arguments,
			reload_request_take_snapshot);
	} else if (action != NULL && strcmp(action, "delete") == 0) {
		begin_request(context, client, REQUEST_SNAPSHOT_DELETE, arguments,
			reload_request_take_snapshot);
	} else {
		control_fail(client, -EINVAL, "\"action\" is one of create, delete and list");
	}
}

const struct control_command snapshot_command = {
	.name = "snapshot",
	.right = CONTROL_CHANGE,
	.begin = begin_snapshot,
	.end = end_request,
};

/* --- life ------------------------------------------------------------------------------------ */

int reload_create(
	const struct reload_options *options, struct reload **reload_out, struct error *error)
{
	struct reload *reload = calloc(1, sizeof(*reload));
	pthread_condattr_t monotonic;
	int code;

	if (reload == NULL) {
		return error_oom_for(error, "reloads");
	}
	reload->options = *options;
	list_init(&reload->requests);
	list_init(&reload->parked);
	reload->look =
		(struct reload_request){ .action = REQUEST_LOOK, .deadline_ns = CHANGE_DRAIN_NS };
	reload->reviewers = calloc(options->reactor_count, sizeof(struct reviewer));
	if (reload->reviewers == NULL) {
		free(reload);
		return error_oom_for(error, "reloads");
	}
	for (uint32_t i = 0; i < options->reactor_count; i++) {
		reload->reviewers[i].reload = reload;
	}
	pthread_mutex_init(&reload->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&reload->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	code = pthread_create(&reload->thread, NULL, change_reload_run, reload);
	if (code != 0) {
		pthread_cond_destroy(&reload->changed);
		pthread_mutex_destroy(&reload->lock);
		free(reload->reviewers);
		free(reload);
		return error_set(error, -code, "cannot start a thread: %s", strerror(code));
	}
	*reload_out = reload;
	return 0;
}

/* Removes and returns the next client of all requests. Called with the lock held. */
static struct control_client *next_client(struct reload *reload)
{
	struct control_client *client = NULL;
	struct list_node *node;

	if (reload->request != NULL && reload->request->client != NULL) {
		client = reload->request->client;
		reload->request->client = NULL;
		return client;
	}
	list_for_each(parked, &reload->parked)
	{
		struct reload_request *request = list_entry(parked, struct reload_request, node);

		if (request->client != NULL) {
			client = request->client;
			request->client = NULL;
			return client;
		}
	}
	while (client == NULL && (node = list_pop_front(&reload->requests)) != NULL) {
		struct reload_request *request = list_entry(node, struct reload_request, node);

		client = request->client;
		reload_request_free(request);
	}
	return client;
}

/* The task is posted under the lock. Otherwise reload_stop() could return between the check and the
 * post, and the reactor be destroyed before the post. */
bool reload_post(struct reload *reload, struct reactor *reactor, struct reactor_task *task)
{
	bool posts;

	pthread_mutex_lock(&reload->lock);
	posts = !reload->has_stopped;
	if (posts) {
		reactor_post(reactor, task);
	}
	pthread_mutex_unlock(&reload->lock);
	return posts;
}

void reload_stop(struct reload *reload)
{
	struct control_client *client;

	do {
		if (reload == NULL) {
			return;
		}
		pthread_mutex_lock(&reload->lock);
		reload->has_stopped = true;
		client = next_client(reload);
		pthread_mutex_unlock(&reload->lock);
		if (client != NULL) {
			control_fail(client, -ESHUTDOWN, "the server is stopping");
		}
	} while (client != NULL);
}

bool reload_destroy(struct reload *reload)
{
	struct timespec until;
	struct list_node *node;

	if (reload == NULL) {
		return true;
	}
	pthread_mutex_lock(&reload->lock);
	reload->stopping = true;
	pthread_cond_signal(&reload->changed);
	pthread_mutex_unlock(&reload->lock);
	/* pthread_timedjoin_np() requires CLOCK_REALTIME. */
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += JOIN_S;
	if (pthread_timedjoin_np(reload->thread, NULL, &until) != 0) {
		return false;
	}
	reload_news_drop(&reload->news);
	json_decref(reload->lines);
	if (reload->request != NULL && reload->request != &reload->look) {
		reload_request_free(reload->request);
	}
	while ((node = list_pop_front(&reload->parked)) != NULL) {
		struct reload_request *request = list_entry(node, struct reload_request, node);

		/* All engines have ended, so all disks of the request are closed. */
		reload_request_free(request);
	}
	reload_config_free(reload->config);
	pthread_cond_destroy(&reload->changed);
	pthread_mutex_destroy(&reload->lock);
	free(reload->reviewers);
	free(reload);
	return true;
}
