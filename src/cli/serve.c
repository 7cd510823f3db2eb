// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "gmb/server/server.h"
#include "nbd/server/server.h"
#include "push/server.h"
#include "server/server.h"

enum { QUOTE_BYTES = 256 };

static const char name[] = "serve";

static const char help_head[] =
	"Usage: gmblock serve [OPTION]... [PATH]\n"
	"Serves disks to any NBD client until SIGTERM or SIGINT.\n"
	"\n"
	"PATH is an image file, a block device, flash:PATH, memory:SIZE or null:SIZE; it\n"
	"becomes the default (unnamed) export.\n"
	"\n"
	"  -e, --export NAME=PATH[,KEY=VALUE]...   serve PATH as NAME; =PATH is the\n"
	"                              default export. Write \\= for = in NAME and \\, for a\n"
	"                              comma in PATH or a value. Keys:\n";

/* Between them are the keys that kinds of stores have registered. */
static const char help_tail[] =
	"  -l, --listen URI            nbd://HOST[:PORT], nbd+unix:///?socket=PATH, with\n"
	"                              nbds for require (see TLS below),\n"
	"                              gmb+unix:///?socket=PATH or\n"
	"                              gmb://HOST[:PORT][?provider=tcp|verbs|ofi-tcp], with\n"
	"                              insecure-network=yes beyond loopback, or\n"
	"                              push+unix and push in the same form, for gmblock push;\n"
	"                              port 0 picks a free one; may be repeated\n"
	"                              (default: nbd://127.0.0.1:10809)\n"
	"      --access RULE           who may use which export: [NAME:] [CONDITION]...\n"
	"                              rights=rw|ro|none, of which the first that holds\n"
	"                              decides; conditions are psk=NAME, cert-cn=NAME,\n"
	"                              cert-dn=DN, cert-san=TYPE:VALUE, cert-fingerprint=HASH,\n"
	"                              key-fingerprint=HASH, uid=N, address=NETWORK and\n"
	"                              tls=true|false; may be repeated (default: everybody who\n"
	"                              can connect)\n"
	"  -c, --config FILE           read exports, addresses, rules of access and limits from\n"
	"                              a YAML file; \"gmblock reload\" reads it again\n"
	"      --check FILE            check such a file, and serve nothing\n"
	"      --export-folder DIR     where exports that are added while the server runs may\n"
	"                              lie, beside the folders of those at the start; may be\n"
	"                              repeated\n"
	"      --push-to PLACE         where anybody may have this server push to, as for root\n"
	"                              and its own user: the path of a Unix socket, a folder of\n"
	"                              them (with / at its end), or\n"
	"                              ADDRESS[/BITS][,port=N|any]; nbd:PLACE, if servers there\n"
	"                              speak only NBD, and over TLS nbds:PLACE,CREDENTIALS:\n"
	"                              tls-certificates=DIR[,tls-hostname=NAME] or\n"
	"                              tls-psk-file=FILE,tls-username=NAME; may be repeated\n"
	"      --arena p2pmem:BDF[,size=SIZE][,spill=ram|wait]\n"
	"                              memory of a PCI device for payload of exports with\n"
	"                              mode=device; when it is full, requests have RAM or wait\n"
	"      --control PATH          control socket for \"gmblock stats\", \"trace\", \"rate\",\n"
	"                              \"export\" and \"reload\", or none\n"
	"                              (default: in /run/gmblock-serve or $XDG_RUNTIME_DIR)\n"
	"      --metrics URI           serve metrics for Prometheus at http://HOST:PORT, with\n"
	"                              insecure-network=yes beyond loopback, or at\n"
	"                              http+unix:///?socket=PATH\n"
	"      --run COMMAND           serve while a shell command runs, with $uri (and\n"
	"                              $unixsocket) set; may be repeated, until one fails;\n"
	"                              the exit status is that of the command\n"
	"      --socket-mode MODE      rights on Unix sockets, such as 0660 (also socket-mode= in\n"
	"                              the URI of one)\n"
	"      --socket-group GROUP    whose group rights these are (also socket-group=)\n"
	"      --read-only             refuse writes to PATH\n"
	"      --user USER[:GROUP]     listen as root, then become this user, who opens the\n"
	"                              disks\n"
	"      --sandbox auto|on|off   after the start, give up other files and system calls\n"
	"                              (auto: as far as the kernel can, and not with --run)\n"
	"\n"
	"TLS of nbd addresses that have no keys of their own in the configuration file:\n"
	"      --tls off|on|require    no TLS (default), for clients that ask for it, or\n"
	"                              nothing without it\n"
	"      --tls-certificates DIR  the folder with ca-cert.pem, server-cert.pem,\n"
	"                              server-key.pem and perhaps ca-crl.pem\n"
	"      --tls-psk FILE          pre-shared keys, as psktool writes them\n"
	"      --tls-verify-peer       demand a certificate of clients, and verify it\n"
	"      --tls-priority STRING   of GnuTLS, in place of ours\n"
	"      --tls-records auto|kernel|user  who encrypts after the handshake (auto)\n"
	"\n"
	"Limits:\n"
	"      --memory SIZE           memory for payload (default: 128M per thread)\n"
	"      --threads N             threads (default: one per available CPU)\n"
	"      --max-connections N     maximum connections (1024 per thread)\n"
	"      --max-connections-per-peer N  the same for each address or Unix user (half\n"
	"                              of that)\n"
	"      --max-handshakes N      maximum connections that have not chosen an export\n"
	"                              yet (128 per thread)\n"
	"      --handshake-timeout TIME  time limit for choosing an export (10s)\n"
	"      --idle-timeout TIME|off  end connections that ask nothing for so long (off)\n"
	"      --max-inflight N        maximum requests in flight per connection (128)\n"
	"      --max-inflight-total N  maximum requests in flight in all (1024 per thread)\n"
	"      --spin auto|off         poll for requests for up to 50 us before sleeping,\n"
	"                              where that pays (auto, the default), or never\n"
	"\n"
	"      --log-level LEVEL       messages to print: error, warning, info (default;\n"
	"                              with --run, warning) or debug\n"
	"  -h, --help                  print this help\n"
	"\n"
	"A SIZE or RATE is bytes, or 4K, 64M, 1G (powers of 1024); a TIME has a unit: 500us,\n"
	"10ms, 1s, 2min.\n"
	"\n"
	"When everything is open, the URI of each export is printed on standard output (not\n"
	"with --run) and the service manager is notified. SIGTERM or SIGINT finishes what is in\n"
	"flight and exits with status 0; another one, a second later or more, exits at once.\n"
	"SIGHUP reads the configuration again, as \"gmblock reload\" does.\n"
	"Exit status: 1 failure, 2 usage error.\n"
	"\n"
	"Examples:\n"
	"  gmblock serve disk.img\n"
	"  gmblock serve disk.img --listen nbd://127.0.0.1:0 --run 'nbdcopy \"$uri\" copy.img'\n"
	"  gmblock serve --export data=/dev/sdb,mode=direct --export "
	"install=/srv/install.iso,readonly\n"
	"  gmblock serve --listen nbds://0.0.0.0 --tls-certificates /etc/pki/gmblock disk.img\n";

enum { HELP_COLUMN = 30 };

/* Prints a text of several lines from a column on; the first line begins at used. */
static void print_column(FILE *out, int used, const char *text)
{
	if (used >= HELP_COLUMN) {
		fputc('\n', out);
		used = 0;
	}
	for (;;) {
		size_t len = strcspn(text, "\n");

		fprintf(out, "%*s%.*s\n", HELP_COLUMN - used, "", (int)len, text);
		if (text[len] == '\0') {
			return;
		}
		text += len + 1;
		used = 0;
	}
}

/* The whole help text, to be freed; NULL: no memory. */
static char *make_help(void)
{
	const struct store_option *option;
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	if (out == NULL) {
		return NULL;
	}
	fputs(help_head, out);
	for (uint32_t i = 0; (option = server_export_option(i)) != NULL; i++) {
		int used = fprintf(out, "        %s%s%s", option->key,
			option->form != NULL ? "=" : "", option->form != NULL ? option->form : "");

		print_column(out, used, option->help);
	}
	fputs(help_tail, out);
	if (fclose(out) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* What the options are taken into. */
struct arguments {
	struct server_config *config;
	const char *config_path;
	bool read_only; /* the export that PATH becomes */
	bool checks;	/* --check in place of --config */
};

static int take_option(void *context, const char *option, const char *text)
{
	struct arguments *arguments = context;
	struct error error = { 0 };
	int rc = server_config_option(arguments->config, option, text, &error);

	return rc < 0 ? cli_usage_error(name, "%s", error.text) : CLI_GO_ON;
}

static int take_config(void *context, const char *option, const char *text)
{
	struct arguments *arguments = context;

	if (arguments->config_path != NULL) {
		return cli_usage_error(name, "--%s may be given only once", option);
	}
	if (text[0] == '\0') {
		return cli_usage_error(name, "--%s: the path is empty", option);
	}
	arguments->config_path = text;
	arguments->checks = strcmp(option, "check") == 0;
	return CLI_GO_ON;
}

/* PATH, which knows whether it is read only. */
static int serve_add_path(struct arguments *arguments, const char *path, struct error *error)
{
	int rc = 0;

	if (arguments->read_only) {
		rc = server_config_option(arguments->config, "read-only", NULL, error);
	}
	return rc < 0 ? rc : server_config_option(arguments->config, "path", path, error);
}

/* Fills the configuration from the command line and the file it names. */
static int serve_parse_arguments(
	struct server_config *config, bool *checks_out, int argc, char **argv)
{
	struct arguments arguments = { .config = config };
	const struct cli_option options[] = {
		{ "config", .letter = 'c', .take = take_config },
		{ "check", .take = take_config },
		{ "export", .letter = 'e', .take = take_option },
		{ "listen", .letter = 'l', .take = take_option },
		{ "access", .take = take_option },
		{ "run", .take = take_option },
		{ "tls", .take = take_option },
		{ "tls-certificates", .take = take_option },
		{ "tls-psk", .take = take_option },
		{ "tls-verify-peer", .take = take_option, .value = CLI_NO_VALUE },
		{ "tls-priority", .take = take_option },
		{ "tls-records", .take = take_option },
		{ "memory", .take = take_option },
		{ "threads", .take = take_option },
		{ "max-connections", .take = take_option },
		{ "max-connections-per-peer", .take = take_option },
		{ "max-handshakes", .take = take_option },
		{ "handshake-timeout", .take = take_option },
		{ "idle-timeout", .take = take_option },
		{ "max-inflight", .take = take_option },
		{ "max-inflight-total", .take = take_option },
		{ "spin", .take = take_option },
		{ "control", .take = take_option },
		{ "metrics", .take = take_option },
		{ "arena", .take = take_option },
		{ "user", .take = take_option },
		{ "sandbox", .take = take_option },
		{ "socket-mode", .take = take_option },
		{ "socket-group", .take = take_option },
		{ "export-folder", .take = take_option },
		{ "push-to", .take = take_option },
		{ "read-only", .flag = &arguments.read_only },
	};
	char *help = make_help();
	const struct cli_command command = { name, help, options, ARRAY_COUNT(options),
		&arguments };
	struct error error = { 0 };
	char shown[QUOTE_BYTES];
	int status;
	int rc = 0;

	if (help == NULL) {
		error_set(&error, -ENOMEM, "not enough memory");
		return cli_failure(name, &error);
	}
	status = cli_parse(&command, argc, argv);
	free(help);
	if (status != CLI_GO_ON) {
		return status;
	}
	if (argc - optind > 1) {
		return cli_usage_error(name,
			"one PATH at most can be given like this; name the others with --export "
			"NAME=PATH");
	}
	if (optind < argc) {
		rc = serve_add_path(&arguments, argv[optind], &error);
		if (rc < 0) {
			return cli_usage_error(name, "%s", error.text);
		}
	} else if (arguments.read_only) {
		return cli_usage_error(name,
			"--read-only is for a PATH; write --export NAME=PATH,readonly for others");
	}
	if (arguments.config_path != NULL) {
		rc = server_config_load(config, arguments.config_path, &error);
		if (rc < 0) {
			return cli_failure(name, &error);
		}
	}
	if (arguments.config_path != NULL && config->export_count == 0) {
		return cli_usage_error(name,
			"nothing to serve: %s was read and has no exports; list them there, with "
			"the key exports, or give a PATH or --export NAME=PATH",
			log_escape(shown, sizeof(shown), arguments.config_path,
				strlen(arguments.config_path)));
	}
	rc = server_config_finish(config, &error);
	*checks_out = arguments.checks;
	return rc < 0 ? cli_usage_error(name, "%s", error.text) : CLI_GO_ON;
}

/* --check: all that can be said of a file without opening anything. */
static int print_check(const struct server_config *config)
{
	char text[120];

	snprintf(text, sizeof(text), "valid: %u export%s, %u address%s\n", config->export_count,
		config->export_count == 1 ? "" : "s", config->listen_count,
		config->listen_count == 1 ? "" : "es");
	return cli_print(text);
}

/* The protocols of this program: the one place where they are registered. */
static const struct session_kind *const kinds[] = {
	&nbd_session_kind,
#ifdef GMBLOCK_CLAN
	&native_session_kind,
	&push_session_kind,
#endif
};

int cmd_serve(int argc, char **argv)
{
	struct server_config config;
	struct error error = { 0 };
	bool checks = false;
	int status;

	log_open_journal();
	server_config_init(&config);
	status = serve_parse_arguments(&config, &checks, argc, argv);
	if (config.command_count > 0) {
		/* The output is that of the commands. */
		log_set_level_default(LOG_LEVEL_WARNING);
	}
	if (status == CLI_GO_ON && checks) {
		status = print_check(&config);
	} else if (status == CLI_GO_ON &&
		   server_run(&config, kinds, ARRAY_COUNT(kinds), &status, &error) < 0) {
		status = cli_failure(name, &error);
	}
	server_config_fini(&config);
	return status;
}
