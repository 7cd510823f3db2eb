// SPDX-License-Identifier: Apache-2.0
#include "tools/fence.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/place.h"
#include "control/control.h"
#include "nbd/client/dial.h"
#include "tools/show.h"

#define PAUSE_NS     UINT64_C(5000000) /* first pause between two requests */
#define PAUSE_MAX_NS UINT64_C(200000000)
#define QUIET_NS     UINT64_C(1000000000) /* before the user learns what is in the way */

/* A server and the thread that asks it. */
struct asker {
	const struct fence_job *job;
	struct fence_server *server;
	uint64_t start_ns;
	uint64_t end_ns;
	bool has_said; /* what is in the way */
	pthread_t thread;
	bool has_thread;
};

static int left_ms(uint64_t end_ns)
{
	uint64_t left_ns = end_ns - MIN(clock_now_ns(), end_ns);

	return (int)MIN(clock_milliseconds(left_ns) + 1, (uint32_t)CONTROL_TIMEOUT_MS);
}

/* Returns whether an attacker in the network could forge the answer. Servers also refuse such
 * requests. */
static bool is_unprotected(const struct export_uri *uri)
{
	uint8_t address[NETWORK_ADDRESS_BYTES];

	if (uri->tls || uri->is_unix || strcasecmp(uri->host, "localhost") == 0) {
		return false;
	}
	return !address_parse(uri->host, address) || !address_is_loopback(address);
}

/* Removes the server from the beginning of the message, because the caller names it. */
static void drop_prefix(struct error *error, const char *prefix)
{
	size_t bytes = strlen(prefix);
	char *text = error->text;

	if (strncmp(text, prefix, bytes) == 0 && strncmp(text + bytes, ": ", 2) == 0) {
		memmove(text, text + bytes + 2, strlen(text + bytes + 2) + 1);
	}
}

static int ask_nbd(const struct asker *asker, enum fence_job_action action, struct error *error)
{
	static const enum nbd_fence_action actions[] = {
		[FENCE_JOB_FENCE] = NBD_FENCE_FENCE,
		[FENCE_JOB_UNFENCE] = NBD_FENCE_UNFENCE,
		[FENCE_JOB_CHECK] = NBD_FENCE_LOOK,
	};
	char label[EXPORT_URI_LABEL_BYTES];
	struct export_uri uri = { 0 };
	struct nbd_dial_options options = {
		.uri = &uri,
		.timeout_ns = (uint64_t)left_ms(asker->end_ns) * UINT64_C(1000000),
		.warns = !asker->has_said,
		.handshake = { .goal = NBD_GOAL_FENCE,
			.fence_action = actions[action],
			.fence_node = asker->job->node },
	};
	struct nbd_handshake *answers = NULL;
	int rc = export_uri_parse(asker->server->server, &uri, error);

	if (rc == 0 && strcmp(uri.protocol, "nbd") != 0) {
		rc = error_set(error, -EINVAL, "a node can be fenced over NBD only, not over %s",
			uri.protocol);
	}
	rc = rc ?: export_uri_check_one(&uri, "a server that fences", error);
	if (rc == 0 && is_unprotected(&uri)) {
		rc = error_set(error, -EINVAL,
			"a node can be fenced over the network only with TLS: use nbds://, or a "
			"Unix socket");
	}
	if (rc == 0) {
		rc = nbd_dial_wait(&options, -1, NULL, &answers, error);
		if (rc < 0) {
			drop_prefix(error, export_uri_label(label, &uri));
		}
	}
	nbd_handshake_destroy(answers);
	export_uri_fini(&uri);
	return rc;
}

static int ask_control(const struct asker *asker, enum fence_job_action action, struct error *error)
{
	static const char *const actions[] = {
		[FENCE_JOB_FENCE] = "fence",
		[FENCE_JOB_UNFENCE] = "unfence",
		[FENCE_JOB_CHECK] = "look",
	};
	/* control_connect() reports a silent server only with the usual limit: the first time. */
	int timeout_ms = MIN(left_ms(asker->end_ns), CONTROL_TIMEOUT_MS - asker->has_said);
	json_t *result;
	int rc = server_ask(asker->server->server, "fence",
		json_pack("{s:s, s:s}", "action", actions[action], "node", asker->job->node),
		timeout_ms, &result, error);

	json_decref(result);
	if (rc < 0 && asker->server->server != NULL) {
		drop_prefix(error, asker->server->server);
	}
	return rc;
}

static int ask_once(const struct asker *asker, enum fence_job_action action, struct error *error)
{
	const char *server = asker->server->server;

	return server != NULL && strstr(server, "://") != NULL ? ask_nbd(asker, action, error)
							       : ask_control(asker, action, error);
}

/* Returns whether the request should be repeated. An error in the request itself is final. Anything
 * else can change: the work is in progress, or the server is being restarted or upgraded. */
static bool can_change(int rc)
{
	return rc != 0 && rc != -EINVAL && rc != -EACCES && rc != -EPERM && rc != -EIO &&
	       rc != -EPROTONOSUPPORT;
}

/* Reports once that a server cannot be reached. A server that answers has its own log. */
static void say_waiting(struct asker *asker)
{
	const struct fence_server *server = asker->server;
	uint64_t now_ns = clock_now_ns();

	if (asker->has_said || now_ns - asker->start_ns < QUIET_NS ||
		server->result == -EINPROGRESS || server->result == -EBUSY ||
		server->result == -EAGAIN) {
		return;
	}
	asker->has_said = true;
	log_warning("%s%s%s; trying again for %" PRIu64 " s",
		server->server != NULL ? quote(server->server) : "",
		server->server != NULL ? ": " : "", server->error.text,
		(asker->end_ns - MIN(now_ns, asker->end_ns)) / UINT64_C(1000000000));
}

static void pause_for(uint64_t ns)
{
	const struct timespec time = { .tv_nsec = (long)ns };

	(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static void *ask_server(void *context)
{
	struct asker *asker = context;
	enum fence_job_action action = asker->job->action;
	struct fence_server *server = asker->server;
	uint64_t pause_ns = PAUSE_NS;

	if (action == FENCE_JOB_UNFENCE) {
		server->was_open = ask_once(asker, FENCE_JOB_CHECK, &server->error) == -ESRCH;
	}
	for (;;) {
		server->result = ask_once(asker, action, &server->error);
		/* The last answer counts, so a request for which hardly any time is left is not
		 * made. */
		if (!can_change(server->result) || action == FENCE_JOB_CHECK ||
			clock_now_ns() + 2 * pause_ns >= asker->end_ns) {
			return NULL;
		}
		say_waiting(asker);
		pause_for(pause_ns);
		pause_ns = MIN(2 * pause_ns, PAUSE_MAX_NS);
	}
}

uint32_t fence_run(const struct fence_job *job)
{
	struct asker askers[FENCE_SERVERS_MAX];
	uint64_t start_ns = clock_now_ns();
	uint32_t failed = 0;

	for (uint32_t i = 0; i < job->server_count; i++) {
		struct asker *asker = &askers[i];
		int code;

		*asker = (struct asker){ .job = job,
			.server = &job->servers[i],
			.start_ns = start_ns,
			.end_ns = start_ns + job->timeout_ns };
		code = pthread_create(&asker->thread, NULL, ask_server, asker);
		asker->has_thread = code == 0;
		if (code != 0) {
			job->servers[i].result = error_set(&job->servers[i].error, -code,
				"cannot start a thread: %s", strerror(code));
		}
	}
	for (uint32_t i = 0; i < job->server_count; i++) {
		if (askers[i].has_thread) {
			pthread_join(askers[i].thread, NULL);
		}
		failed += job->servers[i].result != 0;
	}
	return failed;
}

json_t *fence_list(const char *server, uint64_t timeout_ns, struct error *error)
{
	json_t *result;
	json_t *nodes = NULL;
	int rc = server_ask(server, "fence", json_pack("{s:s}", "action", "list"),
		left_ms(clock_now_ns() + timeout_ns), &result, error);

	if (rc == -ENOENT && server != NULL && strstr(server, "://") != NULL) {
		error_set(error, error->code,
			"no server of this user on this machine serves %s, and --list needs the "
			"server's control socket; over NBD, use --check",
			quote(server));
	}
	if (rc == 0) {
		nodes = json_incref(json_object_get(result, "nodes"));
		if (nodes == NULL) {
			error_set(error, -EPROTO, "the server's answer has no list of nodes");
		}
	}
	json_decref(result);
	return nodes;
}
