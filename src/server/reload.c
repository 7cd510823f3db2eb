// SPDX-License-Identifier: Apache-2.0
#include "server/reload.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/log.h"

#define LOOK_S	 60
#define DRAIN_NS UINT64_C(10000000000) /* for requests of those who are not believed any more */
#define REVIEW_S 5		       /* for reactors to look at their connections */
#define JOIN_S	 5

enum { NAME_SHOWN_BYTES = 120 };

_Static_assert(REVIEW_S < LOOK_S, "one look is over before the next");

/* What was read, and not used yet. */
struct reload_news {
	struct credentials_set *credentials;
	struct access **rules; /* of each export; NULL: they stay */
};

enum reload_state {
	RELOAD_IDLE,
	RELOAD_READING,	  /* the thread works, without the lock */
	RELOAD_READ,	  /* the main thread is to use it */
	RELOAD_REVIEWING, /* the thread waits for the reactors */
	RELOAD_REVIEWED,  /* the main thread is to say what came of it */
	RELOAD_STATE_COUNT
};

static const uint32_t reload_edges[RELOAD_STATE_COUNT] = {
	[RELOAD_IDLE] = BIT(RELOAD_READING),
	[RELOAD_READING] = BIT(RELOAD_READ) | BIT(RELOAD_IDLE),
	[RELOAD_READ] = BIT(RELOAD_REVIEWING) | BIT(RELOAD_REVIEWED),
	[RELOAD_REVIEWING] = BIT(RELOAD_REVIEWED),
	[RELOAD_REVIEWED] = BIT(RELOAD_IDLE),
};

struct waiter {
	struct control_client *client;
	uint64_t turn; /* the first whose files were read after it asked */
};

/* Of one reactor. */
struct reviewer {
	struct reload *reload;
	uint64_t turn; /* under the lock: by whose files it has looked at all connections */
};

struct reload {
	struct reload_options options;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;

	/* Under the lock. */
	enum reload_state state;
	bool asked;
	bool stopping;
	uint64_t turn;	    /* that reads or has read last */
	bool was_asked_for; /* that one */
	int result;
	struct error error;
	struct reload_news news;
	struct reviewer *reviewers; /* one for each reactor */
	uint32_t ended;		    /* connections, since it was said last */

	/* Main thread. */
	struct waiter waiters[CONTROL_CLIENTS_MAX];
	uint32_t waiter_count;
	char complaint[ERROR_TEXT_BYTES]; /* logged last; the same is not said every minute */
};

/* With the lock. */
static void set_state(struct reload *reload, enum reload_state state)
{
	GMB_ASSERT((reload_edges[reload->state] & BIT(state)) != 0);
	reload->state = state;
	pthread_cond_signal(&reload->changed);
}

/* --- reading and using ----------------------------------------------------------------------- */

static void reload_drop(const struct reload *reload, struct reload_news *news)
{
	if (news->rules != NULL) {
		server_access_drop(news->rules, reload->options.config->export_count);
		free(news->rules);
	}
	credentials_set_free(news->credentials);
	*news = (struct reload_news){ 0 };
}

/* A line that is gone, or a file that is being written, lets nobody in. */
static int check_rules(
	const struct reload *reload, struct access *const *rules, struct error *error)
{
	const struct server_config *config = reload->options.config;
	char shown[NAME_SHOWN_BYTES];

	for (uint32_t i = 0; i < config->export_count; i++) {
		const char *name = config->exports[i].name;
		struct access *before = access_slot_get(reload->options.exports[i]->access);
		bool are_gone = before != NULL && rules[i] == NULL;

		access_put(before);
		if (are_gone) {
			return error_set(error, -EINVAL,
				"%s: the export \"%s\" has rules of access, and here are none for "
				"it any more; write access: [rw] if everybody may use it",
				config->file_path,
				log_escape(shown, sizeof(shown), name, strlen(name)));
		}
	}
	return 0;
}

static int read_rules(const struct reload *reload, struct access ***rules_out, struct error *error)
{
	const struct server_config *config = reload->options.config;
	struct access **rules = calloc(config->export_count, sizeof(struct access *));
	int rc;

	if (rules == NULL) {
		return error_set(error, -ENOMEM, "no memory for rules of access");
	}
	rc = server_access_read(config, rules, error);
	if (rc == 0) {
		rc = check_rules(reload, rules, error);
	} else if (config->file_path != NULL) {
		sandbox_explain(config->file_path, error);
	}
	if (rc < 0) {
		server_access_drop(rules, config->export_count);
		free(rules);
		return rc;
	}
	*rules_out = rules;
	return 0;
}

/* Everything that is read again; nobody expects that of the configuration file while it is edited,
 * so only when it was asked for. May block. */
static int reload_read(
	const struct reload *reload, bool asked, struct reload_news *news, struct error *error)
{
	int rc = credentials_load(reload->options.credentials, &news->credentials, error);

	if (rc == 0 && asked) {
		rc = read_rules(reload, &news->rules, error);
	}
	if (rc < 0) {
		reload_drop(reload, news);
	}
	return rc;
}

static void use_rules(struct reload *reload, struct access **rules)
{
	for (uint32_t i = 0; i < reload->options.config->export_count; i++) {
		export_set_access(reload->options.exports[i], rules[i]);
	}
	free(rules);
}

/* On a reactor's thread. */
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
		log_limited(&engine->log_limit, ring_batch_ns(engine->ring), LOG_LEVEL_WARNING,
			"client %s, %s, is disconnected: %s", session->peer.text,
			session->peer.proved->text, error.text);
	}
	return rc == 0;
}

/* The same. */
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

/* All that was read takes effect, for connections that exist, too. A reactor that hangs looks at
 * its own when it goes on. */
static void reload_apply(struct reload *reload, struct reload_news *news, uint64_t turn)
{
	credentials_use(reload->options.credentials, news->credentials);
	if (news->rules != NULL) {
		use_rules(reload, news->rules);
	}
	*news = (struct reload_news){ 0 };
	for (uint32_t i = 0; i < reload->options.reactor_count; i++) {
		const struct engine_review review = {
			.may_stay = may_stay,
			.done = reviewed,
			.context = &reload->reviewers[i],
			.number = turn,
			.deadline_ns = DRAIN_NS,
		};

		reactor_review(reload->options.reactors[i], &review);
	}
}

/* Reactors that have not looked at all their connections. With the lock. */
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

/* Waits until there is something to do, or for a look. With the lock. */
static void wait_for_work(struct reload *reload)
{
	bool looks = credentials_count(reload->options.credentials) > 0;
	struct timespec until = seconds_from_now(LOOK_S);
	int rc = 0;

	while (!reload->stopping && rc == 0 && reload->state != RELOAD_REVIEWING &&
		(reload->state != RELOAD_IDLE || !reload->asked)) {
		rc = looks ? pthread_cond_timedwait(&reload->changed, &reload->lock, &until)
			   : pthread_cond_wait(&reload->changed, &reload->lock);
	}
}

/* One turn, if it is needed. With the lock, which is released while files are read. */
static void work(struct reload *reload)
{
	struct reload_news news = { 0 };
	struct error error = { 0 };
	bool asked = reload->asked;
	int rc;

	set_state(reload, RELOAD_READING);
	reload->asked = false;
	reload->turn++;
	pthread_mutex_unlock(&reload->lock);
	if (!asked && !credentials_are_stale(reload->options.credentials)) {
		pthread_mutex_lock(&reload->lock);
		set_state(reload, RELOAD_IDLE);
		return;
	}
	rc = reload_read(reload, asked, &news, &error);
	pthread_mutex_lock(&reload->lock);
	reload->was_asked_for = asked;
	reload->result = rc;
	reload->error = error;
	reload->news = news;
	set_state(reload, RELOAD_READ);
	reload->options.wake(reload->options.context);
}

/* With the lock. */
static void wait_for_reactors(struct reload *reload)
{
	struct timespec until = seconds_from_now(REVIEW_S);
	uint32_t behind;
	int rc = 0;

	while ((behind = count_behind(reload)) > 0 && !reload->stopping && rc == 0) {
		rc = pthread_cond_timedwait(&reload->changed, &reload->lock, &until);
	}
	reload->result = 0;
	if (behind > 0) {
		reload->result = error_set(&reload->error, -ETIMEDOUT,
			"new connections use what was read, but %u of %u threads of the server "
			"have not looked at all of theirs; they go on with it",
			behind, reload->options.reactor_count);
	}
	set_state(reload, RELOAD_REVIEWED);
	reload->options.wake(reload->options.context);
}

static void *run(void *context)
{
	struct reload *reload = context;

	/* By itself: the sandbox keeps others from it. */
	pthread_setname_np(pthread_self(), "gmblock/reload");
	pthread_mutex_lock(&reload->lock);
	while (!reload->stopping) {
		wait_for_work(reload);
		if (!reload->stopping && reload->state == RELOAD_IDLE) {
			work(reload);
		} else if (!reload->stopping && reload->state == RELOAD_REVIEWING) {
			wait_for_reactors(reload);
		}
	}
	pthread_mutex_unlock(&reload->lock);
	return NULL;
}

/* With the lock. */
static void ask(struct reload *reload)
{
	reload->asked = true;
	pthread_cond_signal(&reload->changed);
}

void reload_ask(struct reload *reload)
{
	pthread_mutex_lock(&reload->lock);
	ask(reload);
	pthread_mutex_unlock(&reload->lock);
}

/* --- answers --------------------------------------------------------------------------------- */

/* Takes one that waits for a turn up to this one out; NULL: none. */
static struct control_client *next_waiter(struct reload *reload, uint64_t turn)
{
	for (uint32_t i = 0; i < reload->waiter_count; i++) {
		struct waiter waiter = reload->waiters[i];

		if (waiter.turn <= turn) {
			reload->waiters[i] = reload->waiters[--reload->waiter_count];
			return waiter.client;
		}
	}
	return NULL;
}

static void answer(
	struct reload *reload, uint64_t turn, int rc, const struct error *error, uint32_t ended)
{
	struct control_client *client;

	while ((client = next_waiter(reload, turn)) != NULL) {
		if (rc < 0) {
			control_fail(client, rc, error->text);
		} else {
			control_reply(client,
				json_pack("{s:I, s:I}", "addresses",
					(json_int_t)credentials_count(reload->options.credentials),
					"connections_ended", (json_int_t)ended));
		}
	}
}

static void say(
	struct reload *reload, bool asked, int rc, const struct error *error, uint32_t ended)
{
	if (rc == 0) {
		reload->complaint[0] = '\0';
		log_info("%sthe files of %u address%s with TLS were read again; %u connection%s "
			 "ended",
			asked ? "the rules of access and " : "",
			credentials_count(reload->options.credentials),
			credentials_count(reload->options.credentials) == 1 ? "" : "es", ended,
			ended == 1 ? "" : "s");
	} else if (asked || strcmp(reload->complaint, error->text) != 0) {
		memcpy(reload->complaint, error->text, sizeof(reload->complaint));
		log_error("%s", error->text);
	}
}

/* With the lock, which is released meanwhile. */
static void use_news(struct reload *reload)
{
	struct reload_news news = reload->news;
	uint64_t turn = reload->turn;

	reload->news = (struct reload_news){ 0 };
	set_state(reload, RELOAD_REVIEWING);
	pthread_mutex_unlock(&reload->lock);
	reload_apply(reload, &news, turn);
	pthread_mutex_lock(&reload->lock);
}

void reload_finish(struct reload *reload)
{
	struct error error;
	uint32_t ended = 0;
	uint64_t turn;
	bool asked;
	int rc;

	pthread_mutex_lock(&reload->lock);
	rc = reload->result;
	if (reload->state == RELOAD_READ && rc == 0) {
		use_news(reload); /* and is called again */
	} else if (reload->state == RELOAD_READ) {
		error_prefix(&reload->error, "reload failed, and everything stays as it was");
		set_state(reload, RELOAD_REVIEWED);
	}
	if (reload->state != RELOAD_REVIEWED) {
		pthread_mutex_unlock(&reload->lock);
		return;
	}
	rc = reload->result;
	error = reload->error;
	asked = reload->was_asked_for;
	turn = reload->turn;
	if (rc == 0) {
		ended = reload->ended;
		reload->ended = 0;
	}
	set_state(reload, RELOAD_IDLE);
	pthread_mutex_unlock(&reload->lock);
	say(reload, asked, rc, &error, ended);
	answer(reload, turn, rc, &error, ended);
}

static void begin_reload(void *context, struct control_client *client, const json_t *arguments)
{
	struct reload *reload = context;

	GMB_UNUSED(arguments);
	GMB_ASSERT(reload->waiter_count < CONTROL_CLIENTS_MAX);
	pthread_mutex_lock(&reload->lock);
	reload->waiters[reload->waiter_count++] =
		(struct waiter){ .client = client, .turn = reload->turn + 1 };
	ask(reload); /* with the same lock: the next turn is the one that reads all */
	pthread_mutex_unlock(&reload->lock);
}

static void end_reload(void *context, struct control_client *client)
{
	struct reload *reload = context;

	for (uint32_t i = 0; i < reload->waiter_count; i++) {
		if (reload->waiters[i].client == client) {
			reload->waiters[i] = reload->waiters[--reload->waiter_count];
			control_fail(client, -ECANCELED, "nobody waits for the answer");
			return;
		}
	}
}

const struct control_command reload_command = {
	.name = "reload",
	.right = CONTROL_CHANGE,
	.begin = begin_reload,
	.end = end_reload,
};

/* --- life ------------------------------------------------------------------------------------ */

int reload_create(
	const struct reload_options *options, struct reload **reload_out, struct error *error)
{
	struct reload *reload = calloc(1, sizeof(*reload));
	pthread_condattr_t monotonic;
	int code;

	if (reload == NULL) {
		return error_set(error, -ENOMEM, "no memory to reload anything");
	}
	reload->options = *options;
	reload->reviewers = calloc(options->reactor_count, sizeof(struct reviewer));
	if (reload->reviewers == NULL) {
		free(reload);
		return error_set(error, -ENOMEM, "no memory to reload anything");
	}
	for (uint32_t i = 0; i < options->reactor_count; i++) {
		reload->reviewers[i].reload = reload;
	}
	pthread_mutex_init(&reload->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&reload->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	code = pthread_create(&reload->thread, NULL, run, reload);
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

void reload_stop(struct reload *reload)
{
	struct control_client *client;

	while (reload != NULL && (client = next_waiter(reload, UINT64_MAX)) != NULL) {
		control_fail(client, -ESHUTDOWN, "the server is stopping");
	}
}

bool reload_destroy(struct reload *reload)
{
	struct timespec until;

	if (reload == NULL) {
		return true;
	}
	pthread_mutex_lock(&reload->lock);
	reload->stopping = true;
	pthread_cond_signal(&reload->changed);
	pthread_mutex_unlock(&reload->lock);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += JOIN_S;
	if (pthread_timedjoin_np(reload->thread, NULL, &until) != 0) {
		return false;
	}
	reload_drop(reload, &reload->news);
	pthread_cond_destroy(&reload->changed);
	pthread_mutex_destroy(&reload->lock);
	free(reload->reviewers);
	free(reload);
	return true;
}
