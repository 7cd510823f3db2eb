// SPDX-License-Identifier: Apache-2.0
#include "tools/trace_request.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "tools/show.h"

enum { COUNT_DEFAULT = 1 };

struct trace_arguments {
	struct trace_question question;
	const char *server;  /* or NULL */
	uint64_t timeout_ns; /* 0: none */
	uint32_t count;	     /* 0: not given */
	bool request;	     /* --request; required, because other builds also trace disks */
	bool json;
};

static const char usage_text[] = "Usage: gmblock trace --request [OPTION]... [--server SERVER]\n"
				 "\n";

static const char notes[] =
	"\n"
	"Examples:\n"
	"  gmblock trace --request --min-size 256K --timeout 10s nbd://localhost/data\n"
	"  gmblock trace --request --operation write --json | gmblock-plot -o write.svg\n";

static int take_operation(void *context, const char *text, struct error *error)
{
	static const char *const names[] = { "read", "write", "flush", "trim", "zero", "cache",
		"extents" };
	struct trace_question *question = &((struct trace_arguments *)context)->question;

	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		if (strcmp(text, names[i]) == 0) {
			if (question->operations == NULL) {
				question->operations = json_array();
			}
			json_array_append_new(question->operations, json_string(text));
			return 0;
		}
	}
	return error_set(error, -EINVAL,
		"unknown operation '%s'; the operations are read, write, flush, trim, zero, cache "
		"and extents",
		quote(text));
}

#define AT(member) FIELD_IN(struct trace_arguments, member)

static const struct field fields[] = {
	{ "request", NULL,
		"wait for requests to a server on this machine, and show where each spends its "
		"time",
		.type = FIELD_FLAG, AT(request) },
	{ "count", "N", "number of requests to trace (default 1)", .type = FIELD_COUNT, .min = 1,
		.max = TRACE_REQUEST_COUNT_MAX, AT(count) },
	{ "min-size", "SIZE", "smallest size of the requests to trace", .type = FIELD_BYTES,
		AT(question.min_size) },
	{ "operation", "OP",
		"operation to trace: read, write, flush, trim, zero, cache or extents; can be "
		"repeated (default: all)",
		.set = take_operation },
	{ "export", "NAME",
		"export whose requests are traced; \"\" is the default export (default: all "
		"exports)",
		.type = FIELD_ARGUMENT, AT(question.export) },
	{ "timeout", "TIME", "time after which to stop waiting for requests", .type = FIELD_TIME,
		.min = 1, AT(timeout_ns) },
	CLI_SERVER_OR_OPERAND(struct trace_arguments),
	{ "json", NULL, "print JSON", .type = FIELD_FLAG, AT(json) },
};

static int cli_trace_arguments_parse(int argc, char **argv, struct trace_arguments *arguments)
{
	struct trace_question *question = &arguments->question;
	const struct cli_command command = { .name = "trace",
		.usage = usage_text,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = arguments };
	int status = cli_parse(&command, argc, argv);

	if (status == CLI_GO_ON && !arguments->request) {
		return cli_usage_error(
			"trace", "add --request; this build traces requests only, not disks");
	}
	if (status == CLI_GO_ON) {
		status = cli_server("trace", argc, argv, &arguments->server);
	}
	if (status == CLI_GO_ON && question->min_size > INT64_MAX) {
		status =
			cli_usage_error("trace", "--min-size: the size is larger than any request");
	}
	question->count = arguments->count > 0 ? arguments->count : COUNT_DEFAULT;
	return status;
}

/* Called after the recorded requests were shown. Returns a failure if they are fewer than the user
 * wanted. */
static int count_check(const struct trace_arguments *arguments,
	const struct trace_requests *requests, struct error *error)
{
	const struct trace_question *question = &arguments->question;
	bool chooses =
		question->min_size > 0 || question->operations != NULL || question->export != NULL;

	if (requests->count >= requests->wanted) {
		return 0;
	}
	return error_set(error, -ETIMEDOUT, "%s after %u of %u requests%s",
		strcmp(requests->ended, "stop") == 0 ? "the server stopped"
						     : "the wait for requests ended",
		requests->count, requests->wanted,
		requests->count > 0 ? ""
		: chooses	    ? ": no client made a request that matches the options"
				    : ": no client made a request");
}

static int show_requests(
	const struct trace_arguments *arguments, json_t *document, struct error *error)
{
	struct trace_requests requests;
	int err = trace_request_parse(document, &requests, error);

	if (err == 0 && arguments->json) {
		err = print_json(json_incref(document), error);
	} else if (err == 0) {
		trace_request_show(&requests);
		err = print_end(error);
	}
	err = err ?: count_check(arguments, &requests, error);
	trace_request_free(&requests);
	return err;
}

static int trace_requests(const struct trace_arguments *arguments)
{
	const struct trace_question *question = &arguments->question;
	char path[STATS_PATH_BYTES];
	struct control_connection *connection;
	json_t *document;
	struct error error = { 0 };
	int err = stats_find(arguments->server, path, &error);

	err = err ?: trace_request_arm(path, question, &connection, &error);
	if (err != 0) {
		return cli_failure("trace", &error);
	}
	document = trace_request_wait(connection, question, arguments->timeout_ns, &error);
	control_disconnect(connection);
	err = document == NULL ? error.code : show_requests(arguments, document, &error);
	json_decref(document);
	return err != 0 ? cli_failure("trace", &error) : CLI_OK;
}

int cmd_trace(int argc, char **argv)
{
	struct trace_arguments arguments = { .request = false };
	int status = cli_trace_arguments_parse(argc, argv, &arguments);

	if (status == CLI_GO_ON) {
		status = trace_requests(&arguments);
	}
	json_decref(arguments.question.operations);
	return status;
}
