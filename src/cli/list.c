// SPDX-License-Identifier: Apache-2.0
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "nbd/client/dial.h"
#include "nbd/wire.h"
#include "tools/show.h"

#define TIMEOUT_DEFAULT_NS UINT64_C(10000000000)

enum {
	/* A string of 4096 bytes, each escaped as \xNN. */
	ESCAPED_BYTES = 4 * NBD_STRING_BYTES_MAX + 8,
	/* An export name and a host or socket path, each byte as %NN, and the rest of the URI. */
	URI_BYTES = 4 * NBD_STRING_BYTES_MAX,
};

struct list_arguments {
	const char *uri;
	uint64_t timeout_ns;
	bool as_table;
	bool as_uris;
	bool as_json;
	bool local;
};

static const char usage_text[] =
	"Usage: gmblock list [--long | --uri | --json] [--timeout TIME] URI\n"
	"       gmblock list --local [--json] [--timeout TIME]\n"
	"\n"
	"Lists the exports of a server, one name per line; \"\" is the default export.\n"
	"With --local, lists the gmblock servers on this machine with their URIs: those of the\n"
	"current user, or of all users for root.\n"
	"\n"
	"  URI             nbd://HOST[:PORT], nbd+unix:///?socket=PATH,\n"
	"                  gmb+unix:///?socket=PATH, gmb://HOST[:PORT] or\n"
	"                  vhost-user-blk+unix:///?socket=PATH;\n"
	"                  with TLS nbds or nbds+unix (see gmblock(1))\n"
	"\n";

static const char notes[] = "\n"
			    "Examples:\n"
			    "  gmblock list nbd://storage\n"
			    "  gmblock list --long 'nbd+unix:///?socket=/run/gmblock.sock'\n";

#define AT(member) FIELD_IN(struct list_arguments, member)

static const struct field fields[] = {
	{ "local", NULL, "list the servers on this machine", .type = FIELD_FLAG, AT(local) },
	{ "long", NULL, "also print the size, access and description of each export",
		.type = FIELD_FLAG, AT(as_table) },
	{ "uri", NULL, "print the URI of each export instead of its name", .type = FIELD_FLAG,
		AT(as_uris) },
	{ "json", NULL, "print JSON", .type = FIELD_FLAG, AT(as_json) },
	{ "timeout", "TIME",
		"time limit for connecting and for the responses of the server (default 10s)",
		.type = FIELD_TIME, .min = 1, AT(timeout_ns) },
};

static int cli_list_arguments_parse(int argc, char **argv, struct list_arguments *arguments)
{
	const struct cli_command command = { .name = "list",
		.usage = usage_text,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = arguments };
	int status = cli_parse(&command, argc, argv);

	if (status == CLI_GO_ON) {
		status = cli_operand("list", "URI", argc, argv, &arguments->uri);
	}
	if (status != CLI_GO_ON) {
		return status;
	}
	if (arguments->as_table + arguments->as_uris + arguments->as_json > 1) {
		return cli_usage_error("list", "only one of --long, --uri and --json can be given");
	}
	if (arguments->local &&
		(arguments->uri != NULL || arguments->as_table || arguments->as_uris)) {
		return cli_usage_error(
			"list", "--local can be combined only with --json and --timeout");
	}
	if (arguments->uri == NULL && !arguments->local) {
		return cli_usage_error("list",
			"give the URI of a server, or --local for the servers on this machine");
	}
	return CLI_GO_ON;
}

/* Returns the URI of one export in out, or NULL for a name that a URI cannot contain. */
static const char *export_uri(
	char out[URI_BYTES], const struct export_uri *server, const struct nbd_offer *offer)
{
	if (export_uri_format(server, offer->name, (uint32_t)strlen(offer->name), out, URI_BYTES) !=
		0) {
		return NULL;
	}
	return out;
}

/* --- text ---------------------------------------------------------------------------------- */

static void print_name(const struct nbd_offer *offer)
{
	char escaped[ESCAPED_BYTES];

	if (offer->name[0] == '\0') {
		/* Only the default export is printed as "". A name that consists of two quotes is
		 * printed as \x22\x22. */
		puts("\"\"");
	} else {
		puts(log_escape(escaped, sizeof(escaped), offer->name, strlen(offer->name)));
	}
}

static void print_uri(const struct export_uri *server, const struct nbd_offer *offer)
{
	char uri[URI_BYTES];

	if (export_uri(uri, server, offer) == NULL) {
		log_warning("omitting an export whose name is too long for a URI");
	} else {
		puts(uri);
	}
}

static void print_long(const struct nbd_offer *offer)
{
	char escaped[ESCAPED_BYTES];
	char human[UNITS_TEXT_BYTES] = "?";
	const char *access = "?";

	if (offer->known) {
		units_human_bytes(human, offer->size);
		access = (offer->flags & NBD_FLAG_READ_ONLY) != 0 ? "read" : "write";
	}
	printf("%10s  %-5s  \"%s\"", human, access,
		log_escape(escaped, sizeof(escaped), offer->name, strlen(offer->name)));
	if (offer->description != NULL && offer->description[0] != '\0') {
		printf("  %s", log_escape(escaped, sizeof(escaped), offer->description,
				       strlen(offer->description)));
	}
	if (offer->refusal != NULL) {
		printf("  (not usable: %s)", offer->refusal);
	}
	putchar('\n');
}

static int cli_list_show_text(const struct list_arguments *arguments, const struct export_uri *uri,
	const struct nbd_offers *offers, struct error *error)
{
	for (uint32_t i = 0; i < offers->count; i++) {
		const struct nbd_offer *offer = &offers->list[i];

		if (arguments->as_table) {
			print_long(offer);
		} else if (arguments->as_uris) {
			print_uri(uri, offer);
		} else {
			print_name(offer);
		}
	}
	return print_end(error);
}

/* --- JSON ---------------------------------------------------------------------------------- */

static json_t *json_export(const struct export_uri *server, const struct nbd_offer *offer)
{
	json_t *object = json_object();
	char uri[URI_BYTES];

	json_object_set_new(object, "name", print_json_text(offer->name));
	json_object_set_new(object, "uri", print_json_text(export_uri(uri, server, offer)));
	json_object_set_new(object, "description", print_json_text(offer->description));
	json_object_set_new(
		object, "size", offer->known ? json_integer((json_int_t)offer->size) : json_null());
	json_object_set_new(object, "read_only",
		offer->known ? json_boolean((offer->flags & NBD_FLAG_READ_ONLY) != 0)
			     : json_null());
	json_object_set_new(object, "refusal", print_json_text(offer->refusal));
	return object;
}

static int cli_list_show_json(const char *text, const struct export_uri *uri,
	const struct nbd_offers *offers, struct error *error)
{
	json_t *root = json_object();
	json_t *exports = json_array();

	for (uint32_t i = 0; i < offers->count; i++) {
		json_array_append_new(exports, json_export(uri, &offers->list[i]));
	}
	json_object_set_new(root, "uri", print_json_text(text));
	json_object_set_new(root, "tls", info_json_tls(&offers->protection));
	json_object_set_new(root, "exports", exports);
	return print_json(root, error);
}

/* --- the command --------------------------------------------------------------------------- */

static int print(const struct list_arguments *arguments, const struct export_uri *uri,
	const struct nbd_offers *offers, struct error *error)
{
	return arguments->as_json ? cli_list_show_json(arguments->uri, uri, offers, error)
				  : cli_list_show_text(arguments, uri, offers, error);
}

static int list_other(const struct list_arguments *arguments, const struct export_uri *uri)
{
	struct nbd_offers offers;
	struct error error;
	int err = info_probe(
		uri->protocol, arguments->uri, true, arguments->timeout_ns, &offers, &error);

	err = err ?: print(arguments, uri, &offers, &error);
	nbd_offers_fini(&offers);
	return err != 0 ? cli_failure("list", &error) : CLI_OK;
}

static int show_nbd(const struct list_arguments *arguments, const struct export_uri *uri)
{
	struct nbd_dial_options options = {
		.uri = uri,
		.timeout_ns = arguments->timeout_ns,
		.warns = true,
		.handshake.goal = NBD_GOAL_LIST,
	};
	struct nbd_handshake *answers;
	struct error error;
	int err = nbd_dial_wait(&options, -1, NULL, &answers, &error);

	/* An incomplete list is not printed, because readers could not see that entries are
	 * missing. */
	err = err ?: print(arguments, uri, nbd_handshake_offers(answers), &error);
	nbd_handshake_destroy(answers);
	return err != 0 ? cli_failure("list", &error) : CLI_OK;
}

static int list_servers(const struct list_arguments *arguments)
{
	struct error error;
	json_t *servers = servers_list(arguments->timeout_ns, &error);
	int err = servers == NULL ? error.code : 0;

	if (err == 0 && arguments->as_json) {
		err = print_json(json_pack("{s:O}", "servers", servers), &error);
	} else if (err == 0) {
		servers_print(servers);
		err = print_end(&error);
	}
	json_decref(servers);
	return err != 0 ? cli_failure("list", &error) : CLI_OK;
}

int cmd_list(int argc, char **argv)
{
	struct list_arguments arguments = { .timeout_ns = TIMEOUT_DEFAULT_NS };
	struct export_uri uri;
	int status = cli_list_arguments_parse(argc, argv, &arguments);

	if (status == CLI_GO_ON && arguments.local) {
		return list_servers(&arguments);
	}
	if (status == CLI_GO_ON) {
		status = cli_uri("list", arguments.uri, &uri);
	}
	if (status == CLI_GO_ON) {
		status = strcmp(uri.protocol, "nbd") == 0 ? show_nbd(&arguments, &uri)
							  : list_other(&arguments, &uri);
		export_uri_fini(&uri);
	}
	return status;
}
