// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>
#include <stdio.h>

#include "base/log.h"
#include "cli/cli.h"
#include "gmb/server/server.h"
#include "nbd/server/server.h"
#include "push/server.h"
#include "server/server.h"
#include "server/state_folder.h"
#include "vhost/server/server.h"

static const char name[] = "serve";

static const char help_head[] =
	"Usage: gmblock serve [OPTION]... [PATH]\n"
	"Serves disks to any NBD client until SIGTERM or SIGINT.\n"
	"\n"
	"PATH is an image file, a block device, flash:PATH, memory:SIZE or null:SIZE; it\n"
	"becomes the default (unnamed) export.\n"
	"\n";

static const char help_notes[] =
	"\n"
	"A SIZE or RATE is in bytes, or 4K, 64M, 1G (powers of 1024); a TIME has a unit: 500us,\n"
	"10ms, 1s, 2min. With --run, only errors and warnings are printed, unless --log-level\n"
	"is given.\n"
	"\n"
	"When all exports are open, their URIs are printed on standard output (not with --run)\n"
	"and the service manager is notified. On SIGTERM or SIGINT the server completes requests\n"
	"in flight and exits with status 0. Another such signal, at least one second later,\n"
	"makes it exit immediately. SIGHUP reads the configuration again, like\n"
	"\"gmblock reload\".\n"
	"Exit status: 1 failure, 2 usage error.\n"
	"\n"
	"Examples:\n"
	"  gmblock serve disk.img\n"
	"  gmblock serve disk.img --listen nbd://127.0.0.1:0 --run 'nbdcopy \"$uri\" copy.img'\n"
	"  gmblock serve --export data=/dev/sdb,mode=direct --export "
	"install=/srv/install.iso,readonly\n"
	"  gmblock serve --listen nbds://0.0.0.0 --tls-certificates /etc/pki/gmblock disk.img\n";

static int set_option(
	void *arguments, const struct field *field, const char *text, struct error *error)
{
	return server_config_option(arguments, field->key, text, error);
}

/* Fills the configuration from the command line and the file that it names. */
static int serve_parse_arguments(struct server_config *config, int argc, char **argv)
{
	const struct cli_command command = { .name = name,
		.usage = help_head,
		.notes = help_notes,
		.fields = server_config_field(0), /* the fields are one contiguous table */
		.field_count = server_config_option_count(),
		.arguments = config,
		.set = set_option,
		.keys = server_export_field,
		.keys_option = "export" };
	int status = cli_parse(&command, argc, argv);
	struct error error = { 0 };
	const char *file;
	int rc = 0;

	if (status != CLI_GO_ON) {
		return status;
	}
	if (argc - optind > 1) {
		return cli_usage_error(name,
			"only one PATH can be given; serve more disks with --export NAME=PATH");
	}
	if (config->config_path != NULL && config->check_path != NULL) {
		return cli_usage_error(name, "give either --config or --check");
	}
	if (optind < argc) {
		rc = server_config_option(config, "path", argv[optind], &error);
		if (rc < 0) {
			return cli_usage_error(name, "%s", error.text);
		}
	} else if (config->path_read_only) {
		return cli_usage_error(name, "--read-only needs a PATH; for other exports write "
					     "--export NAME=PATH,readonly");
	}
	file = config->config_path != NULL ? config->config_path : config->check_path;
	if (file != NULL) {
		rc = server_config_load(config, file, &error);
		if (rc < 0) {
			(void)cli_failure(name, &error);
			return CLI_USAGE;
		}
	}
	if (file != NULL && config->export_count == 0) {
		return cli_usage_error(name,
			"nothing to serve: %s has no exports; list them there with the key "
			"exports, or give a PATH or --export NAME=PATH",
			quote(file));
	}
	rc = server_config_finish(config, &error);
	return rc < 0 ? cli_usage_error(name, "%s", error.text) : CLI_GO_ON;
}

/* Performs --check: prints the validated configuration without opening disks or addresses. */
static int print_check(const struct server_config *config)
{
	char addresses[40] = "the default address";
	struct error error;
	char text[120];

	server_nodes_warn(config);
	if (state_folder_check(config, &error) < 0) {
		return cli_failure(name, &error);
	}
	if (config->listen_count > 0) {
		snprintf(addresses, sizeof(addresses), "%u address%s", config->listen_count,
			config->listen_count == 1 ? "" : "es");
	}
	snprintf(text, sizeof(text), "valid: %u export%s, %s\n", config->export_count,
		config->export_count == 1 ? "" : "s", addresses);
	return cli_print(text);
}

/* All protocols of this program. */
static const struct session_kind *const kinds[] = {
	&nbd_session_kind,
#ifdef GMBLOCK_CLAN
	&native_session_kind,
#endif
#ifdef GMBLOCK_PUSH
	&push_session_kind,
#endif
	&vhost_session_kind,
};

int cmd_serve(int argc, char **argv)
{
	struct server_config config;
	struct error error = { 0 };
	int status;

	log_open_journal();
	server_config_init(&config);
	status = serve_parse_arguments(&config, argc, argv);
	if (config.command_count > 0) {
		/* The terminal is for the output of the commands, so by default only warnings are
		 * logged. */
		log_set_level_default(LOG_LEVEL_WARNING);
	}
	if (status == CLI_GO_ON && config.check_path != NULL) {
		status = print_check(&config);
	} else if (status == CLI_GO_ON &&
		   server_run(&config, kinds, ARRAY_COUNT(kinds), &status, &error) < 0) {
		status = cli_failure(name, &error);
	}
	server_config_fini(&config);
	return status;
}
