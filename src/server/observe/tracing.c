// SPDX-License-Identifier: Apache-2.0
#include "server/observe/tracing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

/* The recorder of one reactor. */
struct recorder {
	struct path_trace *trace;
	struct reactor_task drop_task; /* frees the recorder on its reactor */
};

struct tracing {
	const struct server_view *view;
	struct control_client *client; /* client that waits for the records, or NULL */
	struct ring *ring;	       /* ring of the main thread */
	struct ring_message enough;    /* message to the main thread: enough requests have ended */
	_Atomic bool enough_is_posted;
	_Atomic uint32_t
		/* number of requests to record; 0: not recording; set by the main thread, read by
		 * the reactors */
		wanted;
	/* Number of recorded requests, incremented by the reactors. Acquire and release: the
	 * reactor that reaches the wanted number and wakes the main thread has then seen the
	 * records of the others. */
	_Atomic uint32_t ended_count;
	struct recorder **recorders; /* one per reactor, while wanted > 0 */
};

static void recorder_free(struct recorder *recorder)
{
	if (recorder != NULL) {
		path_trace_destroy(recorder->trace);
		free(recorder);
	}
}

static void free_recorders(struct tracing *tracing)
{
	for (uint32_t i = 0; i < tracing->view->reactor_count; i++) {
		recorder_free(tracing->recorders[i]);
		tracing->recorders[i] = NULL;
	}
}

void tracing_destroy(struct tracing *tracing)
{
	if (tracing == NULL) {
		return;
	}
	if (tracing->recorders != NULL) {
		free_recorders(tracing);
	}
	free(tracing->recorders);
	free(tracing);
}

/* --- arguments -------------------------------------------------------------------------- */

static int bad_argument(struct error *error, const char *key)
{
	return error_set(error, -EINVAL, "invalid value of \"%s\"", key);
}

static int take_count(const json_t *value, uint32_t *count, struct error *error)
{
	json_int_t number = json_integer_value(value); /* 0 if the value is not a number */

	if (number < 1 || number > PATH_TRACE_REQUESTS_MAX) {
		return error_set(error, -EINVAL, "from 1 to %d requests can be traced at a time",
			PATH_TRACE_REQUESTS_MAX);
	}
	*count = (uint32_t)number;
	return 0;
}

static int take_operations(const json_t *value, uint32_t *ops, struct error *error)
{
	*ops = 0;
	for (size_t i = 0; i < json_array_size(value); i++) {
		const char *name = json_string_value(json_array_get(value, i));
		uint32_t op = 0;

		while (name != NULL && op < STORE_OP_COUNT &&
			strcmp(name, store_op_name((enum store_op)op)) != 0) {
			op++;
		}
		if (name == NULL || op == STORE_OP_COUNT) {
			return bad_argument(error, "operations");
		}
		*ops |= BIT(op);
	}
	return *ops == 0 ? bad_argument(error, "operations") : 0;
}

static int tracing_take_export(const struct tracing *tracing, const json_t *value,
	struct path_trace_name *export, struct error *error)
{
	const char *name = json_string_value(value);
	struct served_export *served;

	if (name == NULL) {
		return bad_argument(error, "export");
	}
	*export = (struct path_trace_name){ name, (uint32_t)strlen(name) };
	return exports_need(tracing->view->exports, name, &served, error);
}

static int take_arguments(const struct tracing *tracing, const json_t *arguments,
	struct path_trace_options *options, struct error *error)
{
	const char *key;
	json_t *value;
	int rc = 0;

	json_object_foreach((json_t *)(uintptr_t)arguments, key, value)
	{
		if (strcmp(key, "count") == 0) {
			rc = take_count(value, &options->request_max, error);
		} else if (strcmp(key, "min_size") == 0) {
			options->length_min = (uint64_t)json_integer_value(value);
			rc = json_is_integer(value) && json_integer_value(value) >= 0
				     ? 0
				     : bad_argument(error, key);
		} else if (strcmp(key, "operations") == 0) {
			rc = take_operations(value, &options->ops, error);
		} else if (strcmp(key, "export") == 0) {
			rc = tracing_take_export(tracing, value, &options->export, error);
		} else {
			rc = error_set(error, -EINVAL, "unknown argument \"%s\"", quote(key));
		}
		if (rc < 0) {
			return rc;
		}
	}
	return options->request_max == 0 ? bad_argument(error, "count") : 0;
}

/* --- recording ----------------------------------------------------------------------------- */

/* Called on a reactor's thread when a recorded request has ended. */
static void count_ended(void *context)
{
	struct tracing *tracing = context;
	uint32_t before = atomic_fetch_add_explicit(&tracing->ended_count, 1, memory_order_acq_rel);

	/* Relaxed, because `wanted` was set before the reactor got its recorder. The exchange has
	 * acquire-release order: if the message of the previous recording is still in flight, its
	 * receiver sees the new count, so no second message is needed. */
	if (before + 1 == atomic_load_explicit(&tracing->wanted, memory_order_relaxed) &&
		!atomic_exchange_explicit(&tracing->enough_is_posted, true, memory_order_acq_rel)) {
		ring_post(tracing->ring, &tracing->enough);
	}
}

/* Sets or removes the recorder. Called on a reactor's thread while the main thread waits. */
static void tracing_arm(struct engine *engine, void *context)
{
	path_set_trace(engine->path, context);
}

/* Called on the reactor's thread. The reactor still has this recorder: it gets the recorder of the
 * next recording in a later message. */
static void drop_recorder(struct engine *engine, void *context)
{
	path_set_trace(engine->path, NULL);
	recorder_free(context);
}

/* Removes the recorders from the first `count` reactors. */
static void disarm(struct tracing *tracing, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct reactor *reactor = tracing->view->reactors[i];
		struct recorder *recorder = tracing->recorders[i];

		if (reactor_call(reactor, tracing_arm, NULL) < 0) {
			/* The reactor still uses the recorder, and frees it when it continues. */
			recorder->drop_task.run = drop_recorder;
			recorder->drop_task.context = recorder;
			reactor_post(reactor, &recorder->drop_task);
			tracing->recorders[i] = NULL;
		}
	}
	free_recorders(tracing);
	tracing->wanted = 0;
}

static int recorder_create(const struct path_trace_options *options, struct recorder **recorder_out,
	struct error *error)
{
	struct recorder *recorder = calloc(1, sizeof(*recorder));

	if (recorder == NULL || path_trace_create(options, &recorder->trace) < 0) {
		free(recorder);
		return error_oom_for(error, "a trace");
	}
	*recorder_out = recorder;
	return 0;
}

static int tracing_begin(struct tracing *tracing, const json_t *arguments, struct error *error)
{
	struct path_trace_options options = {
		.ops = BIT(STORE_OP_COUNT) - 1,
		.ended = count_ended,
		.context = tracing,
	};
	uint32_t armed = 0;
	int rc;

	if (tracing->wanted > 0) {
		return error_set(error, -EBUSY,
			"another client is already tracing requests of this server; try again "
			"later");
	}
	rc = take_arguments(tracing, arguments, &options, error);
	for (uint32_t i = 0; rc == 0 && i < tracing->view->reactor_count; i++) {
		rc = recorder_create(&options, &tracing->recorders[i], error);
	}
	if (rc < 0) {
		free_recorders(tracing);
		return rc;
	}
	tracing->wanted = options.request_max;
	atomic_store_explicit(&tracing->ended_count, 0, memory_order_relaxed);
	while (armed < tracing->view->reactor_count && rc == 0) {
		rc = reactor_call(tracing->view->reactors[armed], tracing_arm,
			tracing->recorders[armed]->trace);
		armed += rc == 0;
	}
	if (rc < 0) {
		disarm(tracing, armed);
		return error_set(error, rc, "%s", reactor_call_text(rc));
	}
	return 0;
}

/* --- the answer ---------------------------------------------------------------------------- */

static json_t *us_since(uint64_t begin_ns, uint64_t at_ns)
{
	return at_ns == 0 ? json_null() : json_real(((double)at_ns - (double)begin_ns) / 1000);
}

static json_t *error_json(int error)
{
	return error == 0 ? json_null() : json_string(strerror(-error));
}

static json_t *part_json(const struct path_trace_part *part, uint64_t begin_ns)
{
	const struct path_trace_mark *marks = path_trace_marks(part);
	const struct path_trace_piece *pieces = path_trace_pieces(part);
	json_t *progress = json_array();
	json_t *sent = json_array();

	for (uint32_t i = 0; i < part->mark_count; i++) {
		json_array_append_new(
			progress, json_pack("{s:I, s:o}", "bytes", (json_int_t)marks[i].bytes,
					  "progress_us", us_since(begin_ns, marks[i].progress_ns)));
	}
	for (uint32_t i = 0; i < part->piece_count; i++) {
		const struct path_trace_piece *piece = &pieces[i];

		json_array_append_new(
			sent, json_pack("{s:I, s:I, s:o, s:o}", "offset", (json_int_t)piece->offset,
				      "length", (json_int_t)piece->length, "handed_us",
				      us_since(begin_ns, piece->handed_ns), "back_us",
				      us_since(begin_ns, piece->back_ns)));
	}
	return json_pack("{s:I, s:I, s:s?, s:o, s:o, s:o, s:o, s:o, s:o}", "offset",
		(json_int_t)part->offset, "length", (json_int_t)part->length, "placement",
		part->placement, "opened_us", us_since(begin_ns, part->opened_ns), "submitted_us",
		us_since(begin_ns, part->submitted_ns), "progress", progress, "done_us",
		us_since(begin_ns, part->done_ns), "error", error_json(part->result), "sent", sent);
}

static json_t *export_name(const struct path_trace_request *record)
{
	return record->export.text != NULL ? json_stringn(record->export.text, record->export.bytes)
					   : json_null();
}

static json_t *request_json(const struct path_trace_request *record)
{
	uint64_t begin_ns = record->edge_ns[PATH_STATE_WAIT];
	struct path_stats stats = { 0 };
	json_t *parts = json_array();
	json_t *states;

	path_stats_add(&stats, record->edge_ns, record->length, record->error != 0);
	states = json_object();
	for (int state = 0; state < PATH_STATE_DONE; state++) {
		json_object_set_new(states, path_state_name((enum path_state)state),
			json_real((double)stats.state_ns[state] / 1000));
	}
	for (const struct path_trace_part *part = record->parts; part != NULL; part = part->next) {
		json_array_append_new(parts, part_json(part, begin_ns));
	}
	return json_pack("{s:s, s:o, s:I, s:I, s:o, s:f, s:f, s:o, s:o, s:I}", "operation",
		store_op_name(record->op), "export", export_name(record), "offset",
		(json_int_t)record->offset, "length", (json_int_t)record->length, "error",
		error_json(record->error), "clock_seconds", (double)begin_ns / 1e9, "total_us",
		(double)stats.total_ns / 1000, "state_us", states, "parts", parts, "parts_more",
		(json_int_t)record->parts_more);
}

static int tracing_compare_times(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int compare_ends(const void *a, const void *b)
{
	const struct path_trace_request *const *left = a;
	const struct path_trace_request *const *right = b;

	return tracing_compare_times(
		(*left)->edge_ns[PATH_STATE_DONE], (*right)->edge_ns[PATH_STATE_DONE]);
}

static int compare_begins(const void *a, const void *b)
{
	const struct path_trace_request *const *left = a;
	const struct path_trace_request *const *right = b;

	return tracing_compare_times(
		(*left)->edge_ns[PATH_STATE_WAIT], (*right)->edge_ns[PATH_STATE_WAIT]);
}

/* Collects from all reactors the requests that ended first, up to the requested number, sorted by
 * their start. NULL: no memory. */
static const struct path_trace_request **tracing_collect(
	const struct tracing *tracing, size_t *count_out)
{
	size_t room = (size_t)tracing->wanted * tracing->view->reactor_count;
	const struct path_trace_request **records = calloc(MAX(room, (size_t)1), sizeof(*records));
	size_t count = 0;

	if (records == NULL) {
		return NULL;
	}
	for (uint32_t i = 0; i < tracing->view->reactor_count; i++) {
		const struct path_trace *trace = tracing->recorders[i]->trace;
		uint32_t ended = path_trace_ended_count(trace);

		for (uint32_t k = 0; k < ended; k++) {
			records[count++] = path_trace_ended(trace, k);
		}
	}
	GMB_ASSERT(count <= room);
	qsort(records, count, sizeof(*records), compare_ends);
	count = MIN(count, (size_t)tracing->wanted);
	qsort(records, count, sizeof(*records), compare_begins);
	*count_out = count;
	return records;
}

/* Answers with the records. ended: the reason for the end ("count", "left", "stop"). */
static void reply(struct tracing *tracing, const char *ended)
{
	struct control_client *client = tracing->client;
	size_t count = 0;
	const struct path_trace_request **records = tracing_collect(tracing, &count);
	json_t *requests = records != NULL ? json_array() : NULL;

	for (size_t i = 0; i < count; i++) {
		json_array_append_new(requests, request_json(records[i]));
	}
	free(records);
	tracing->client = NULL;
	control_reply(
		client, json_pack("{s:s, s:I, s:I, s:s, s:o}", "version", GMBLOCK_VERSION, "pid",
				(json_int_t)getpid(), "wanted", (json_int_t)tracing->wanted,
				"ended", ended, "requests", requests));
}

/* --- the command --------------------------------------------------------------------------- */

static void begin_trace(void *context, struct control_client *client, const json_t *arguments)
{
	struct tracing *tracing = context;
	struct error error;
	int rc = tracing_begin(tracing, arguments, &error);

	if (rc < 0) {
		control_fail(client, rc, error.text);
		return;
	}
	tracing->client = client;
	control_note(client, json_pack("{s:b}", "armed", true));
}

static void end_trace(void *context, struct control_client *client)
{
	struct tracing *tracing = context;

	GMB_ASSERT(client == tracing->client);
	reply(tracing, "left");
	disarm(tracing, tracing->view->reactor_count);
}

static const struct control_command trace_command = {
	.name = "trace",
	.right = CONTROL_READ,
	.begin = begin_trace,
	.end = end_trace,
};

/* The message may belong to the previous recording, if that ended for another reason before the
 * message arrived. */
static void deliver_enough(struct ring *ring, struct ring_message *message)
{
	struct tracing *tracing = container_of(message, struct tracing, enough);

	(void)atomic_exchange_explicit(&tracing->enough_is_posted, false, memory_order_acq_rel);
	if (tracing->client != NULL && atomic_load_explicit(&tracing->ended_count,
					       memory_order_acquire) >= tracing->wanted) {
		reply(tracing, "count");
		disarm(tracing, tracing->view->reactor_count);
	}
}

void tracing_stop(struct tracing *tracing)
{
	if (tracing->client != NULL) {
		reply(tracing, "stop");
	}
}

int tracing_create(const struct server_view *view, struct control_server *server,
	struct tracing **tracing_out, struct error *error)
{
	struct tracing *tracing = calloc(1, sizeof(*tracing));

	if (tracing != NULL) {
		tracing->view = view;
		tracing->ring = control_server_ring(server);
		tracing->enough.deliver = deliver_enough;
		tracing->recorders =
			calloc(MAX(view->reactor_count, 1U), sizeof(struct recorder *));
	}
	if (tracing == NULL || tracing->recorders == NULL) {
		tracing_destroy(tracing);
		return error_oom_for(error, "traces of requests");
	}
	control_server_add(server, &trace_command, tracing);
	*tracing_out = tracing;
	return 0;
}
