// SPDX-License-Identifier: Apache-2.0
/*
 * clan-run: starts a program with libclan-sockets.so preloaded, and shows the carried connections.
 * See clan-run(1).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sockets/sockets.h"

#define LIBRARY	       "libclan-sockets.so"
#define DEFAULT_CONFIG "/etc/clan/sockets.conf"

enum { STATUS_FAILED = 1, STATUS_USAGE = 2, STATUS_CANNOT_RUN = 126, STATUS_NOT_FOUND = 127 };

static const char usage[] =
	"usage: clan-run [OPTION]... [--] PROGRAM [ARGUMENT]...\n"
	"       clan-run --show [PID]\n"
	"\n"
	"Runs a program and carries its TCP connections to programs on the same machine by clan.\n"
	"\n"
	"  -r, --rules TEXT    rules: statements separated by semicolons\n"
	"  -c, --config FILE   a file of rules (default " DEFAULT_CONFIG ")\n"
	"  -s, --stats FILE    append a line of JSON when a process with such connections ends\n"
	"  -v, --verbose       report on standard error which connections are carried, and why\n"
	"                      others are not\n"
	"      --show          show the carried connections of one process or all\n"
	"  -h, --help          print this text\n"
	"  -V, --version       print the version\n";

/* --- showing ---------------------------------------------------------------------------------- */

/* Makes a text of another process printable. */
static void make_printable(char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes && text[i] != '\0'; i++) {
		if (text[i] < ' ' || text[i] > '~') {
			text[i] = '?';
		}
	}
}

static void show_stats(int pid, struct stats *shown)
{
	uint32_t now = 0;
	bool any = false;

	for (int i = 0; i < STATS_ROWS; i++) {
		now += shown->rows[i].used != 0;
	}
	make_printable(shown->program, sizeof(shown->program));
	printf("%d %.*s\n"
	       "  connections that match a rule: %llu\n"
	       "  carried by shared memory: %u now, %llu in total; %llu bytes in, %llu bytes out\n",
		pid, STATS_PROGRAM_BYTES, shown->program, (unsigned long long)shown->tracked, now,
		(unsigned long long)shown->carried, (unsigned long long)shown->in_bytes,
		(unsigned long long)shown->out_bytes);
	for (int i = 0; i < REASON_COUNT; i++) {
		if (shown->reasons[i] > 0) {
			printf("%s%s %llu",
				any ? ", " : "  not carried, or no longer carried, by reason: ",
				stats_reason_names[i], (unsigned long long)shown->reasons[i]);
			any = true;
		}
	}
	printf("%s", any ? "\n" : "");
	for (int i = 0; i < STATS_ROWS; i++) {
		struct stats_row *row = &shown->rows[i];

		if (row->used != 0) {
			make_printable(row->name, sizeof(row->name));
			printf("  %d %.*s: %llu bytes in, %llu bytes out\n", row->fd,
				STATS_NAME_BYTES, row->name, (unsigned long long)row->in_bytes,
				(unsigned long long)row->out_bytes);
		}
	}
}

/* Shows one process. Returns true if the process has statistics. */
static bool show_process(int pid)
{
	static struct stats shown;
	char path[PATH_MAX];
	bool found = false;
	struct dirent *entry;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	folder = opendir(path);
	while (folder != NULL && !found && (entry = readdir(folder)) != NULL) {
		char target[64];
		ssize_t length;
		int fd;

		snprintf(path, sizeof(path), "/proc/%d/fd/%.20s", pid, entry->d_name);
		length = readlink(path, target, sizeof(target) - 1);
		target[MAX(length, 0)] = '\0';
		if (strcmp(target, "/memfd:clan-sockets (deleted)") != 0) {
			continue;
		}
		/* The process might have reused the descriptor's number for another file since
		 * readlink(), so the open must not wait, and the contents are checked. */
		fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		if (fd >= 0) {
			found = pread(fd, &shown, sizeof(shown), 0) == sizeof(shown) &&
				shown.magic == STATS_MAGIC;
			close(fd);
		}
	}
	if (folder != NULL) {
		closedir(folder);
	}
	if (found) {
		show_stats(pid, &shown);
	}
	return found;
}

static bool sockets_run_is_number(const char *text, int *number_out)
{
	char *end;
	long number = strtol(text, &end, 10);

	*number_out = (int)number;
	return text[0] >= '0' && text[0] <= '9' && *end == '\0' && number <= INT_MAX;
}

static int sockets_run_show(const char *which)
{
	struct dirent *entry;
	DIR *folder;
	int pid;

	if (which != NULL) {
		if (!sockets_run_is_number(which, &pid)) {
			fprintf(stderr, "clan-run: \"%s\" is not a process number\n", which);
			return STATUS_USAGE;
		}
		if (!show_process(pid)) {
			fprintf(stderr,
				"clan-run: process %d has no connections that match a rule, or it "
				"belongs to another user\n",
				pid);
			return STATUS_FAILED;
		}
		return 0;
	}
	folder = opendir("/proc");
	while (folder != NULL && (entry = readdir(folder)) != NULL) {
		if (sockets_run_is_number(entry->d_name, &pid)) {
			show_process(pid);
		}
	}
	if (folder != NULL) {
		closedir(folder);
	}
	return 0;
}

/* --- running ---------------------------------------------------------------------------------- */

/* Finds the library next to this program (in a build folder), or where it is installed. */
static bool find_library(char path[PATH_MAX])
{
	char own[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
	char *slash;

	own[MAX(length, 0)] = '\0';
	slash = strrchr(own, '/');
	if (slash != NULL) {
		*slash = '\0';
		if (snprintf(path, PATH_MAX, "%s/%s", own, LIBRARY) < PATH_MAX &&
			access(path, R_OK) == 0) {
			return true;
		}
	}
	snprintf(path, PATH_MAX, "%s/%s", CLAN_SOCKETS_LIBDIR, LIBRARY);
	return access(path, R_OK) == 0;
}

/* Checks the rules, so that mistakes are reported before the program runs. */
static int sockets_run_check_rules(const char *text, const char *config)
{
	struct rules *rules = malloc(sizeof(*rules));
	struct error error = { 0 };
	char *content = NULL;
	size_t bytes = 0;
	int result;

	if (text == NULL) {
		FILE *file = fopen(config, "re");

		if (file == NULL || (getdelim(&content, &bytes, '\0', file) < 0 && ferror(file))) {
			fprintf(stderr, "clan-run: cannot read %s: %s\n", config, strerror(errno));
			free(rules);
			return STATUS_FAILED;
		}
		fclose(file);
		text = content == NULL ? "" : content;
	}
	result = rules == NULL ? error_oom(&error) : rules_parse(rules, text, "", &error);
	if (result != 0) {
		fprintf(stderr, "clan-run: %s\n", error.text);
	}
	free(content);
	free(rules);
	return result == 0 ? 0 : STATUS_USAGE;
}

static void set_preload(const char *library)
{
	const char *old = getenv("LD_PRELOAD");
	char *both;

	if (old == NULL || old[0] == '\0') {
		setenv("LD_PRELOAD", library, 1);
	} else if (asprintf(&both, "%s:%s", library, old) >= 0) {
		setenv("LD_PRELOAD", both, 1);
		free(both);
	}
}

static int sockets_run_run(
	char **arguments, const char *text, const char *config, const char *stats_file)
{
	char library[PATH_MAX];
	char path[PATH_MAX];
	int status;

	if (!find_library(library)) {
		fprintf(stderr, "clan-run: no %s in %s\n", LIBRARY, CLAN_SOCKETS_LIBDIR);
		return STATUS_FAILED;
	}
	if (text == NULL && realpath(config, path) == NULL) {
		fprintf(stderr, "clan-run: cannot read %s: %s; use --rules or --config\n", config,
			strerror(errno));
		return STATUS_FAILED;
	}
	status = sockets_run_check_rules(text, path);
	if (status != 0) {
		return status;
	}
	if (text != NULL && text[0] == '/') {
		fprintf(stderr, "clan-run: rules do not begin with a slash; to name a file, use "
				"--config\n");
		return STATUS_USAGE;
	}
	setenv("CLAN_SOCKETS", text != NULL ? text : path, 1);
	if (stats_file != NULL) {
		setenv("CLAN_SOCKETS_STATS", stats_file, 1);
	}
	set_preload(library);
	execvp(arguments[0], arguments);
	status = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_CANNOT_RUN;
	fprintf(stderr, "clan-run: cannot run \"%s\": %s\n", arguments[0], strerror(errno));
	return status;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "rules", required_argument, NULL, 'r' },
		{ "config", required_argument, NULL, 'c' },
		{ "stats", required_argument, NULL, 's' },
		{ "verbose", no_argument, NULL, 'v' },
		{ "show", no_argument, NULL, 'S' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	const char *config = DEFAULT_CONFIG;
	const char *stats_file = NULL;
	const char *text = NULL;
	bool shows = false;
	int index = -1;
	int option;

	while ((option = getopt_long(argc, argv, "+r:c:s:vhV", options, &index)) >= 0) {
		const char *word = argv[optind - (optarg == argv[optind - 1] ? 2 : 1)];

		/* getopt_long() also accepts the beginning of an option's name, which is rejected
		 * here. */
		if (index >= 0 && strcspn(word + 2, "=") != strlen(options[index].name)) {
			fprintf(stderr,
				"clan-run: unknown option %s; is it --%s?\nTry 'clan-run "
				"--help'.\n",
				word, options[index].name);
			return STATUS_USAGE;
		}
		index = -1;
		switch (option) {
		case 'r':
			text = optarg;
			break;
		case 'c':
			config = optarg;
			break;
		case 's':
			stats_file = optarg;
			break;
		case 'v':
			setenv("CLAN_SOCKETS_VERBOSE", "1", 1);
			break;
		case 'S':
			shows = true;
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		case 'V':
			puts("clan-run " GMBLOCK_VERSION);
			return 0;
		default:
			fputs("Try 'clan-run --help'.\n", stderr);
			return STATUS_USAGE;
		}
	}
	if (shows) {
		return sockets_run_show(argv[optind]);
	}
	if (argv[optind] == NULL) {
		fputs("clan-run: no program given\n"
		      "Try 'clan-run --help'.\n",
			stderr);
		return STATUS_USAGE;
	}
	return sockets_run_run(argv + optind, text, config, stats_file);
}
