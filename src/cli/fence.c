// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "tools/fence.h"
#include "tools/show.h"

static const char fence_help[] =
	"Usage: gmblock fence NODE [--check] [--server SERVER]... [--timeout TIME]\n"
	"       gmblock fence --list [--server SERVER] [--json]\n"
	"Makes servers refuse a node of a cluster, and ends its connections, pushes and copies.\n"
	"The exit status is 0 if and only if the last operation of the node has left all disks of\n"
	"all servers. The node stays fenced until \"gmblock unfence\", also if a server is\n"
	"restarted. With --list, shows the nodes of a server.\n"
	"\n";

static const char unfence_help[] =
	"Usage: gmblock unfence NODE [--server SERVER]... [--timeout TIME]\n"
	"Makes servers accept a node of a cluster again.\n"
	"\n";

static const char fence_notes[] =
	"\n"
	"NODE is a name under \"nodes\" in the servers' configuration files.\n"
	"Exit status: 1 failure, for example a server that has not answered; 2 usage error;\n"
	"with --check, 3 if a server answers that the node is not fenced.\n"
	"\n"
	"Examples:\n"
	"  gmblock fence alpha\n"
	"  gmblock fence alpha --server nbds://storage-1 --server nbds://storage-2\n"
	"  gmblock fence --list\n";

static const char unfence_notes[] =
	"\n"
	"NODE is a name under \"nodes\" in the servers' configuration files.\n"
	"\n"
	"Examples:\n"
	"  gmblock unfence alpha\n"
	"  gmblock unfence alpha --server nbds://storage-1 --server nbds://storage-2\n";

/* The exit status of --check if a server answers that the node is not fenced. */
enum { FENCE_IS_OPEN = 3 };

struct fence_arguments {
	bool list;
	bool json;
	bool check;
	uint64_t timeout_ns;
	struct fence_server servers[FENCE_SERVERS_MAX];
	uint32_t server_count;
};

static int add_server(void *object, const char *text, struct error *error)
{
	struct fence_arguments *arguments = object;

	if (export_uri_count_hosts(text) > 1) {
		return error_set(error, -EINVAL,
			"'%s' names several servers; give each server its own --server",
			quote(text));
	}
	if (arguments->server_count == FENCE_SERVERS_MAX) {
		return error_set(error, -EINVAL, "only %d servers are possible", FENCE_SERVERS_MAX);
	}
	arguments->servers[arguments->server_count++].server = text;
	return 0;
}

#define AT(member) FIELD_IN(struct fence_arguments, member)

/* The first three are only for fence. */
static const struct field fields[] = {
	{ "check", .help = "only report whether the node is fenced", .type = FIELD_FLAG,
		AT(check) },
	{ "list", .help = "show the nodes of a server, and whether each is fenced",
		.type = FIELD_FLAG, AT(list) },
	{ "json", .help = "with --list: print JSON", .type = FIELD_FLAG, AT(json) },
	{ "server", "SERVER",
		"a server: a URI, which is asked over NBD and needs the right to fence nodes, or a "
		"control socket or process ID on this machine; can be repeated (default: the only "
		"server of this user on this machine)",
		.flags = FIELD_REPEATS, .set = add_server },
	{ "timeout", "TIME", "time limit for all servers (default: 30s)", .type = FIELD_TIME,
		.min = 1, AT(timeout_ns) },
};
enum { ONLY_OF_FENCE = 3 };

static void show_node(const json_t *node)
{
	const char *text = json_string_value(json_object_get(node, "waits_for"));
	time_t since = (time_t)json_integer_value(json_object_get(node, "since"));
	char when[32] = "";
	struct tm utc;

	print_peer_text(json_string_value(json_object_get(node, "node")));
	if (!json_is_true(json_object_get(node, "fenced"))) {
		printf(": not fenced\n");
		return;
	}
	if (gmtime_r(&since, &utc) != NULL) {
		(void)strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S UTC", &utc);
	}
	printf(": fenced since %s", when);
	if (!json_is_true(json_object_get(node, "ended"))) {
		printf(", but its operations may not have ended: ");
		print_peer_text(text != NULL ? text : "unknown");
	}
	printf("\n");
}

static int fence_show(const struct fence_arguments *arguments, const char *name)
{
	const char *server = arguments->server_count > 0 ? arguments->servers[0].server : NULL;
	struct error error = { 0 };
	json_t *nodes = fence_list(server, arguments->timeout_ns, &error);
	int rc = nodes != NULL ? 0 : error.code;
	json_t *node;
	size_t i;

	if (rc == 0 && arguments->json) {
		rc = print_json(json_incref(nodes), &error);
	} else if (rc == 0) {
		json_array_foreach(nodes, i, node)
		{
			show_node(node);
		}
		rc = print_end(&error);
	}
	json_decref(nodes);
	return rc < 0 ? cli_failure(name, &error) : CLI_OK;
}

/* Reports that all servers have done it. */
static int fence_done(const char *name, const struct fence_job *job)
{
	bool was_open = true;
	struct error error;

	for (uint32_t i = 0; i < job->server_count; i++) {
		was_open &= job->servers[i].was_open;
	}
	print_peer_text(job->node);
	puts(job->action != FENCE_JOB_UNFENCE ? ": fenced; its last operation has left all disks"
		: was_open		      ? ": was not fenced"
					      : ": no longer fenced");
	return print_end(&error) != 0 ? cli_failure(name, &error) : CLI_OK;
}

/* Reports that the node is not fenced at a server. */
static void say_open(const char *node, const struct fence_server *server)
{
	print_peer_text(node);
	printf(": not fenced%s%s\n", server->server != NULL ? " at " : "",
		server->server != NULL ? quote(server->server) : "");
}

/* Reports the error of a server. at_others: other servers have done it. */
static void say_failed(
	const char *name, const struct fence_job *job, struct fence_server *server, bool at_others)
{
	bool answers = server->result == -EINPROGRESS || server->result == -EBUSY;
	const char *shown = server->server != NULL ? quote(server->server) : "";
	const char *at = server->server != NULL ? " at " : "";

	switch (job->action) {
	case FENCE_JOB_FENCE:
		error_prefix(&server->error, "not fenced%s%s%s", at, shown,
			at_others ? " (but at others)" : "");
		break;
	case FENCE_JOB_UNFENCE:
		error_prefix(&server->error, "cannot unfence the node%s%s%s", at, shown,
			at_others ? " (but at others)" : "");
		break;
	case FENCE_JOB_CHECK:
	default:
		error_prefix(&server->error,
			answers ? "the fence is not complete%s%s" : "cannot ask the server%s%s", at,
			shown);
		break;
	}
	(void)cli_failure(name, &server->error);
}

static int fence_do(struct fence_arguments *arguments, const char *name, const char *node)
{
	const struct fence_job job = {
		.action = strcmp(name, "unfence") == 0 ? FENCE_JOB_UNFENCE
			  : arguments->check	       ? FENCE_JOB_CHECK
						       : FENCE_JOB_FENCE,
		.node = node,
		.servers = arguments->servers,
		.server_count = MAX(arguments->server_count, 1U),
		.timeout_ns = arguments->timeout_ns,
	};
	uint32_t failed = fence_run(&job);
	bool at_others = job.server_count > 1 && failed < job.server_count;
	bool is_open = arguments->check && failed > 0;
	struct error error;

	for (uint32_t i = 0; i < job.server_count; i++) {
		struct fence_server *server = &job.servers[i];

		if (arguments->check && server->result == -ESRCH) {
			say_open(node, server);
		} else if (server->result != 0) {
			is_open = false;
			say_failed(name, &job, server, at_others);
		}
	}
	if (failed == 0) {
		return fence_done(name, &job);
	}
	if (is_open && print_end(&error) != 0) {
		return cli_failure(name, &error);
	}
	return is_open ? FENCE_IS_OPEN : CLI_FAILURE;
}

static int fence_or_unfence(const char *name, const char *help, const char *notes,
	const struct field *first, int argc, char **argv)
{
	struct fence_arguments arguments = { .timeout_ns = 30 * UINT64_C(1000000000) };
	const struct cli_command command = { .name = name,
		.usage = help,
		.notes = notes,
		.fields = first,
		.field_count = (size_t)(fields + ARRAY_COUNT(fields) - first),
		.arguments = &arguments };
	const char *node = NULL;
	int status = cli_parse(&command, argc, argv);

	if (status == CLI_GO_ON) {
		status = cli_operand(name, "NODE", argc, argv, &node);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	if (arguments.list ? node != NULL : node == NULL) {
		return cli_usage_error(
			name, arguments.list ? "--list takes no NODE" : "give a NODE");
	}
	if (arguments.list && arguments.check) {
		return cli_usage_error(name, "give either --list or --check");
	}
	if (!arguments.list && arguments.json) {
		return cli_usage_error(name, "--json is only for --list");
	}
	if (arguments.list && arguments.server_count > 1) {
		return cli_usage_error(name, "--list is for one server");
	}
	return arguments.list ? fence_show(&arguments, name) : fence_do(&arguments, name, node);
}

int cmd_fence(int argc, char **argv)
{
	return fence_or_unfence("fence", fence_help, fence_notes, fields, argc, argv);
}

int cmd_unfence(int argc, char **argv)
{
	return fence_or_unfence(
		"unfence", unfence_help, unfence_notes, fields + ONLY_OF_FENCE, argc, argv);
}
