// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "store/store.h"
#include "tools/copy.h"

enum {
	REQUESTS_ADAPTIVE_MAX = 128,
	REQUESTS_MAX = 1024,
	REQUEST_BYTES_DEFAULT = 512 << 10,
	REQUEST_BYTES_MIN = 4096,
	REQUEST_BYTES_MAX = 32 << 20,
	SPARSE_BYTES_DEFAULT = 4096,
	SPARSE_BYTES_MIN = 512,
	SENTENCE_BYTES = 1200,
	EXIT_GAPS = 3, /* the copy is complete, except for unreadable parts */
	EXIT_SIGNAL = 128,
};
#define CHECKPOINT_BYTES_DEFAULT (UINT64_C(1) << 30)
#define MEMORY_BYTES_MAX	 (UINT64_C(4) << 30)

struct copy_arguments {
	const char *source;
	const char *target;
	const char *journal;
	const char *map; /* map of unreadable parts; NULL: errors are not skipped */
	uint64_t request_bytes;
	/* 0: not given. cli_copy_sizes_check() then sets the default; after it, 0 means off */
	uint64_t sparse_bytes;
	bool sparse_given;
	uint64_t checkpoint_bytes; /* 0: not given */
	uint64_t rate;		   /* bytes per second; 0: no limit */
	uint32_t requests;	   /* 0: adaptive */
	uint32_t connections;	   /* 0: chosen automatically */
	bool progress;
	bool no_progress;
	bool no_sparse;
	bool allocate;
	bool target_is_zero;
	bool direct;
	bool verify;
	bool json;
};

/* Everything that is open during the copy. */
struct job {
	const struct copy_arguments *arguments;
	struct copy_loop loop;
	struct copy_end *source;
	struct copy_end *target;
	struct copy_pool pool;
	struct copy_journal journal;
	struct copy_bad bad;
	struct copy_counters counters;
	struct copy_progress progress;
	enum copy_target_state state;
	bool verified;
};

static const char usage_text[] =
	"Usage: gmblock copy [OPTION]... SOURCE TARGET\n"
	"\n"
	"Copies a disk. SOURCE and TARGET are each a URI, a file, a block device, or - for\n"
	"standard input or output. A target file is created or truncated.\n"
	"\n";

static const char notes[] =
	"\n"
	"Examples:\n"
	"  gmblock copy nbd://storage/data backup.img\n"
	"  gmblock copy --verify --resume data.journal /dev/sdb nbd://storage/data\n"
	"  gmblock copy nbd://storage/data - | zstd >backup.zst\n";

/* --- the command line ---------------------------------------------------------------------- */

static int take_power(
	const char *text, uint64_t min, uint64_t max, uint64_t *bytes, struct error *error)
{
	char low[UNITS_TEXT_BYTES];
	char high[UNITS_TEXT_BYTES];
	int rc = units_parse_bytes(text, bytes, error);

	return rc == 0 && (!is_power_of_two(*bytes) || *bytes < min || *bytes > max)
		       ? error_set(error, -ERANGE, "the size must be a power of two from %s to %s",
				 units_format_bytes(low, min), units_format_bytes(high, max))
		       : rc;
}

static int take_request_size(void *context, const char *text, struct error *error)
{
	struct copy_arguments *arguments = context;

	return take_power(
		text, REQUEST_BYTES_MIN, REQUEST_BYTES_MAX, &arguments->request_bytes, error);
}

static int take_sparse(void *context, const char *text, struct error *error)
{
	struct copy_arguments *arguments = context;

	return take_power(
		text, SPARSE_BYTES_MIN, REQUEST_BYTES_MAX, &arguments->sparse_bytes, error);
}

/* Returns the limit on requests in flight. An adaptive limit decreases as requests get longer, so
 * that they do not use more memory than requests of the default length. */
static uint32_t requests_max(const struct copy_arguments *arguments)
{
	uint64_t fewer =
		(uint64_t)REQUESTS_ADAPTIVE_MAX * REQUEST_BYTES_DEFAULT / arguments->request_bytes;

	if (arguments->requests != 0) {
		return arguments->requests;
	}
	fewer = MAX(fewer, UINT64_C(4));
	return (uint32_t)MIN(fewer, (uint64_t)REQUESTS_ADAPTIVE_MAX);
}

static int contradictions_check(const struct copy_arguments *arguments)
{
	const struct {
		bool given;
		const char *sentence;
	} pairs[] = {
		{ arguments->progress && arguments->no_progress,
			"--progress and --no-progress contradict each other" },
		{ arguments->sparse_bytes != 0 && arguments->no_sparse,
			"--sparse and --no-sparse contradict each other" },
		{ arguments->sparse_bytes != 0 && arguments->allocate,
			"--sparse and --allocate contradict each other: --allocate also allocates "
			"the zeroes that --sparse finds" },
		{ arguments->target_is_zero && arguments->allocate,
			"--destination-is-zero and --allocate contradict each other: one skips "
			"zeroes, the other allocates them" },
		{ arguments->checkpoint_bytes != 0 && arguments->journal == NULL,
			"--checkpoint needs --resume" },
		{ arguments->map != NULL && arguments->verify,
			"--skip-errors and --verify contradict each other: unreadable ranges "
			"cannot be compared" },
		{ arguments->map != NULL && arguments->journal != NULL,
			"--skip-errors cannot be used with --resume, whose journal does not list "
			"unreadable ranges" },
		{ arguments->map != NULL && strcmp(arguments->map, arguments->target) == 0,
			"--skip-errors names the target; give the map of unreadable ranges a "
			"separate file" },
		{ arguments->journal != NULL && strcmp(arguments->journal, arguments->target) == 0,
			"--resume names the target; give the journal a separate file" },
		{ arguments->json && strcmp(arguments->target, "-") == 0,
			"--json and the target '-' cannot be combined, because both use standard "
			"output" },
		{ strcmp(arguments->target, "-") == 0 && isatty(STDOUT_FILENO) == 1,
			"the target '-' is standard output, which is a terminal; redirect standard "
			"output to a file or a pipe" },
		{ strcmp(arguments->source, "-") == 0 && isatty(STDIN_FILENO) == 1,
			"the source '-' is standard input, which is a terminal; redirect standard "
			"input from a file or a pipe" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(pairs); i++) {
		if (pairs[i].given) {
			return cli_usage_error("copy", "%s", pairs[i].sentence);
		}
	}
	return CLI_GO_ON;
}

/* Returns whether the text has the form HOST:PORT or [IPV6]:PORT. */
static bool is_host_port(const char *text)
{
	const char *colon = strrchr(text, ':');
	size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;

	return colon > text && digits >= 1 && digits <= 5 && colon[1 + digits] == '\0' &&
	       strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
			    ".-_:[]") == strlen(text);
}

/* Rejects texts that would become the name of a new file although the user means something else: a
 * server that is not written as a URI, "file:" before a path, or a disk that only a server can
 * open, such as memory:1G. */
static int refuse_no_file(const char *text)
{
	struct stat status;
	struct export_uri uri;
	struct error error;
	const char *quoted = quote(text);

	if (strstr(text, "://") != NULL || lstat(text, &status) == 0) {
		return CLI_GO_ON;
	}
	if (strncmp(text, "file:", strlen("file:")) == 0) {
		return cli_usage_error("copy",
			"'%s': leave out 'file:' for a file; if that is its name, write ./%s",
			quoted, quoted);
	}
	if (store_path_has_kind(text)) {
		return cli_usage_error("copy",
			"'%s' can only be opened by a server; run 'gmblock serve %s' and give the "
			"URI that it prints; if it is a file, write ./%s",
			quoted, quoted, quoted);
	}
	if (!is_host_port(text) && !export_uri_has_scheme(text)) {
		return CLI_GO_ON;
	}
	/* the URI is parsed only for the text of the error */
	if (export_uri_parse(text, &uri, &error) == 0) {
		export_uri_fini(&uri);
		return CLI_GO_ON;
	}
	return cli_usage_error("copy", "%s; if it is a file, write ./%s", error.text, quoted);
}

/* Rejects options that do not apply to the kinds of source and target. */
static int ends_fit_options(const struct copy_arguments *arguments)
{
	enum copy_kind source = copy_end_kind(arguments->source);
	enum copy_kind target = copy_end_kind(arguments->target);

	if (arguments->map != NULL && source == COPY_STREAM) {
		return cli_usage_error("copy", "--skip-errors needs a seekable source, unlike '%s'",
			quote(arguments->source));
	}
	if ((arguments->verify || arguments->journal != NULL) &&
		(source == COPY_STREAM || target == COPY_STREAM)) {
		const char *pipe = source == COPY_STREAM ? arguments->source : arguments->target;

		return cli_usage_error("copy", "%s needs a seekable source and target, unlike '%s'",
			arguments->verify ? "--verify" : "--resume", quote(pipe));
	}
	if (arguments->connections != 0 && source != COPY_REMOTE && target != COPY_REMOTE) {
		return cli_usage_error("copy", "--connections needs a URI as SOURCE or TARGET");
	}
	if (arguments->direct && source != COPY_FILE && source != COPY_DEVICE &&
		target != COPY_FILE && target != COPY_DEVICE) {
		return cli_usage_error(
			"copy", "--direct needs a file or device as SOURCE or TARGET");
	}
	return CLI_GO_ON;
}

/* Checks the sizes, and sets those that were not given. */
static int cli_copy_sizes_check(struct copy_arguments *arguments)
{
	char sparse[UNITS_TEXT_BYTES];
	char request[UNITS_TEXT_BYTES];

	if (requests_max(arguments) * arguments->request_bytes > MEMORY_BYTES_MAX) {
		return cli_usage_error("copy", "--requests times --request-size must be at most "
					       "4G, because each request has a buffer");
	}
	if (arguments->sparse_bytes > arguments->request_bytes) {
		return cli_usage_error("copy",
			"--sparse %s needs a --request-size of at least the same size, not %s",
			units_format_bytes(sparse, arguments->sparse_bytes),
			units_format_bytes(request, arguments->request_bytes));
	}
	arguments->sparse_given = arguments->sparse_bytes != 0;
	if (arguments->sparse_bytes == 0 && !arguments->no_sparse && !arguments->allocate) {
		arguments->sparse_bytes = SPARSE_BYTES_DEFAULT;
	}
	if (arguments->checkpoint_bytes == 0) {
		arguments->checkpoint_bytes = CHECKPOINT_BYTES_DEFAULT;
	}
	return CLI_GO_ON;
}

static int cli_copy_arguments_check(int argc, char **argv, struct copy_arguments *arguments)
{
	int status;

	if (argc - optind != 2) {
		return cli_usage_error("copy", argc - optind < 2 && arguments->journal != NULL
						       ? "give a SOURCE and a TARGET after "
							 "--resume FILE, where FILE is the journal"
					       : argc - optind < 2
						       ? "give a SOURCE and a TARGET"
						       : "give only one SOURCE and one TARGET");
	}
	arguments->source = argv[optind];
	arguments->target = argv[optind + 1];
	status = contradictions_check(arguments);
	if (status == CLI_GO_ON) {
		status = refuse_no_file(arguments->source);
	}
	if (status == CLI_GO_ON) {
		status = refuse_no_file(arguments->target);
	}
	if (status == CLI_GO_ON) {
		status = ends_fit_options(arguments);
	}
	return status == CLI_GO_ON ? cli_copy_sizes_check(arguments) : status;
}

static int take_copy_connections(void *context, const char *text, struct error *error)
{
	struct copy_arguments *arguments = context;

	return cli_connections(
		text, CLI_CONNECTIONS_MAX, COPY_CONNECTIONS_AUTO, &arguments->connections, error);
}

#define AT(member) FIELD_IN(struct copy_arguments, member)

static const struct field fields[] = {
	{ "allocate", NULL, "allocate every block of the target, including zeroes",
		.type = FIELD_FLAG, AT(allocate) },
	{ "checkpoint", "SIZE",
		"with --resume: flush the target and record the progress after every SIZE bytes "
		"(default 1G), and at least every 5 seconds",
		.type = FIELD_BYTES, .min = 1, AT(checkpoint_bytes) },
	{ "connections", "N",
		"number of connections to each server, 1 to 16 (default: 4), or auto: as many as "
		"make the copy faster",
		.set = take_copy_connections },
	{ "destination-is-zero", NULL,
		"assume that the target reads as zeroes, and write no zeroes to it",
		.type = FIELD_FLAG, AT(target_is_zero) },
	{ "direct", NULL, "use direct I/O for files and devices", .type = FIELD_FLAG, AT(direct) },
	{ "rate", "BYTES", "maximum number of bytes that are copied per second",
		.type = FIELD_BYTES, .min = 1, AT(rate) },
	{ "json", NULL, "print a summary of the copy as JSON", .type = FIELD_FLAG, AT(json) },
	{ "no-progress", NULL, "do not show progress on a terminal", .type = FIELD_FLAG,
		AT(no_progress) },
	{ "no-sparse", NULL, "do not search the data of the source for zeroes", .type = FIELD_FLAG,
		AT(no_sparse) },
	{ "progress", NULL, "show progress even without a terminal", .type = FIELD_FLAG,
		AT(progress) },
	{ "request-size", "SIZE", "request size, a power of two (default 512K)",
		.set = take_request_size },
	{ "requests", "N", "number of requests in flight (default: 6 to 128, depending on latency)",
		.type = FIELD_COUNT, .min = 1, .max = REQUESTS_MAX, AT(requests) },
	{ "resume", "FILE",
		"record the progress in the journal FILE; if FILE exists, resume the copy that it "
		"records",
		.type = FIELD_ARGUMENT, AT(journal) },
	{ "skip-errors", "FILE",
		"continue after read errors, and list the ranges that cannot be read in FILE",
		.type = FIELD_ARGUMENT, AT(map) },
	{ "sparse", "SIZE",
		"search the data of the source for blocks of SIZE bytes that contain only zeroes "
		"(default 4K)",
		.set = take_sparse },
	{ "verify", NULL, "at the end, read source and target again and compare them",
		.type = FIELD_FLAG, AT(verify) },
};

static int cli_copy_arguments_parse(int argc, char **argv, struct copy_arguments *arguments)
{
	const struct cli_command command = { .name = "copy",
		.usage = usage_text,
		.notes = notes,
		CLI_FIELDS(fields),
		.arguments = arguments };
	int status = cli_parse(&command, argc, argv);

	if (status != CLI_GO_ON) {
		return status;
	}
	return cli_copy_arguments_check(argc, argv, arguments);
}

/* --- the copy ------------------------------------------------------------------------------ */

static int ends_open(struct job *job, struct error *error)
{
	const struct copy_arguments *arguments = job->arguments;
	struct copy_end_options options = {
		.text = arguments->source,
		.direct = arguments->direct,
		.connections = arguments->connections,
	};
	int err = copy_end_open(&job->loop, &options, &job->source, error);

	if (err == 0) {
		options.text = arguments->target;
		options.target = true;
		err = copy_end_open(&job->loop, &options, &job->target, error);
	}
	return err;
}

static int ends_check(const struct job *job, struct error *error)
{
	const struct copy_end *source = job->source;
	const struct copy_end *target = job->target;
	uint64_t block = MAX(source->block_min, target->block_min);

	if (copy_end_is_same(source, target)) {
		return error_set(error, -EINVAL, "the source %s and the target %s are the same",
			source->name, target->name);
	}
	if (source->size_known && target->size_known && target->kind != COPY_FILE &&
		source->bytes > target->bytes) {
		return error_set(error, -ENOSPC,
			"the target %s is too small: it has %llu bytes, and the source %s has %llu",
			target->name, (unsigned long long)target->bytes, source->name,
			(unsigned long long)source->bytes);
	}
	if (block > job->arguments->request_bytes) {
		return error_set(error, -EINVAL,
			"the request size must be at least %llu bytes, the block size of %s",
			(unsigned long long)block,
			block == source->block_min ? source->name : target->name);
	}
	if (job->arguments->journal != NULL && !target->can_flush) {
		return error_set(error, -EOPNOTSUPP,
			"--resume cannot be used with the target %s: its server does not support "
			"flush, so durability is unknown",
			target->name);
	}
	return 0;
}

static void cli_copy_flushed(struct copy_io *io)
{
}

static int target_flush(struct job *job, struct error *error)
{
	struct copy_io io = { .operation = COPY_FLUSH, .done = cli_copy_flushed };

	copy_end_submit(job->target, &io);
	while (io.in_flight) {
		copy_loop_turn(&job->loop);
	}
	return io.result < 0 ? copy_end_failure(job->target, error) : 0;
}

/* Prepares the target for the first change: sets its size, and starts the journal. */
static int target_prepare(struct job *job, struct error *error)
{
	const struct copy_arguments *arguments = job->arguments;
	bool resumed = job->journal.resumed;
	int err;

	err = copy_end_prepare(job->target, job->counters.total, resumed, error);
	if (err < 0) {
		/* If known_zero is set, the failed call had already emptied the target. */
		job->state = job->target->known_zero ? COPY_TARGET_PARTIAL : COPY_TARGET_UNCHANGED;
		return err;
	}
	job->state = COPY_TARGET_PARTIAL;
	if (resumed) {
		job->target->known_zero = job->journal.target_zero;
		return 0;
	}
	job->target->known_zero |= arguments->target_is_zero;
	if (arguments->journal == NULL) {
		return 0;
	}
	err = target_flush(job, error);
	return err == 0 ? copy_journal_begin(&job->journal, job->source, job->target,
				  arguments->allocate, error)
			: err;
}

static void tick(void *context)
{
	struct job *job = context;

	copy_progress_tick(&job->progress, copy_loop_now_ns(&job->loop));
}

static int copy_and_verify(struct job *job, struct error *error)
{
	const struct copy_arguments *arguments = job->arguments;
	struct copy_engine_options options = {
		.loop = &job->loop,
		.source = job->source,
		.target = job->target,
		.pool = &job->pool,
		.journal = &job->journal,
		.bad = &job->bad,
		.counters = &job->counters,
		.tick = tick,
		.tick_context = job,
		.requests = requests_max(arguments),
		.adapts = arguments->requests == 0,
		.request_bytes = arguments->request_bytes,
		.sparse_bytes = arguments->sparse_bytes,
		.by_server =
			!arguments->sparse_given && !arguments->allocate && arguments->map == NULL,
		.checkpoint_bytes = arguments->checkpoint_bytes,
		.allocate = arguments->allocate,
	};
	int err;

	copy_progress_phase(
		&job->progress, "copying", &job->counters.done, copy_loop_now_ns(&job->loop));
	err = copy_engine_run(&options, error);
	if (job->counters.done == job->counters.total) {
		job->state = err == 0 ? COPY_TARGET_COMPLETE : COPY_TARGET_WHOLE;
	}
	if (err == 0 && job->bad.count > 0) {
		job->state = COPY_TARGET_GAPS;
	}
	if (err < 0 || !arguments->verify) {
		return err;
	}
	job->state = COPY_TARGET_WHOLE;
	copy_end_forget(job->target);
	copy_progress_phase(
		&job->progress, "verifying", &job->counters.compared, copy_loop_now_ns(&job->loop));
	err = copy_verify_run(&options, error);
	job->verified = err == 0;
	if (err == 0) {
		job->state = COPY_TARGET_COMPLETE;
	} else if (err == -EILSEQ) {
		job->state = COPY_TARGET_DIFFERS;
	}
	return err;
}

/* Returns the offset at which the copy starts or continues: a multiple of the block size, which
 * might have increased on the server since the last run. */
static uint64_t start_find(const struct job *job)
{
	uint64_t durable = job->journal.durable;

	return durable == job->counters.total
		       ? durable
		       : align_down(durable, MAX(job->source->block_min, job->target->block_min));
}

static int job_run(struct job *job, struct error *error)
{
	const struct copy_arguments *arguments = job->arguments;
	enum copy_kind source = copy_end_kind(arguments->source);
	enum copy_kind target = copy_end_kind(arguments->target);
	uint32_t buffers =
		MAX(requests_max(arguments), UINT32_C(2)); /* verification uses pairs of buffers */
	int err = copy_loop_create(&job->loop, source == COPY_REMOTE || target == COPY_REMOTE,
		source != COPY_REMOTE || target != COPY_REMOTE, error);

	if (err == 0) {
		job->loop.rate = arguments->rate;
		err = ends_open(job, error);
	}
	err = err ?: ends_check(job, error);
	if (err == 0) {
		err = copy_journal_open(&job->journal, arguments->journal, job->source, job->target,
			arguments->allocate, error);
	}
	err = err ?: copy_bad_open(&job->bad, arguments->map, job->source, job->target, error);
	if (err < 0) {
		return err;
	}
	job->counters.total = job->source->size_known ? job->source->bytes : UINT64_MAX;
	job->counters.start = start_find(job);
	job->counters.done = job->counters.start;
	err = copy_pool_create(
		&job->pool, job->loop.queue, buffers, arguments->request_bytes, error);
	err = err ?: copy_loop_watch_signals(&job->loop, error);
	err = err ?: target_prepare(job, error);
	err = err ?: copy_and_verify(job, error);
	return err == 0 ? copy_journal_remove(&job->journal, error) : err;
}

/* --- the end ------------------------------------------------------------------------------- */

static int job_report(struct job *job, struct copy_report *report)
{
	char sentence[SENTENCE_BYTES];
	struct error map_error;
	struct error error;
	bool complete = report->outcome == COPY_COMPLETE;
	bool map_failed = job->state != COPY_TARGET_UNCHANGED &&
			  copy_bad_write(&job->bad, job->counters.total, &map_error) < 0;

	report->state = job->state;
	report->source = job->source;
	report->target = job->target;
	report->counters = &job->counters;
	report->journal = &job->journal;
	report->bad = &job->bad;
	report->verified = job->verified;
	copy_progress_clear(&job->progress);
	copy_report_bad(report, sentence, sizeof(sentence));
	if (sentence[0] != '\0') {
		fprintf(stderr, "gmblock copy: %s\n", sentence);
	}
	copy_report_sentence(report, sentence, sizeof(sentence));
	if (report->error != NULL) {
		fprintf(stderr, "gmblock copy: %s\n", report->error->text);
	}
	if (!complete || job->progress.wanted) {
		fprintf(stderr, "gmblock copy: %s\n", sentence);
	}
	if (job->arguments->json && copy_report_json(report, &error) < 0) {
		return cli_failure("copy", &error);
	}
	if (map_failed) {
		return cli_failure("copy", &map_error);
	}
	return complete				    ? CLI_OK
	       : report->outcome == COPY_INCOMPLETE ? (int)EXIT_GAPS
						    : CLI_FAILURE;
}

/* Closes source and target. This can report a write that failed late. */
static int job_close(struct job *job, struct error *error)
{
	struct error ignored;
	int err;

	err = copy_end_close(job->target, error);
	job->target = NULL;
	(void)!copy_end_close(job->source, &ignored);
	job->source = NULL;
	copy_journal_close(&job->journal);
	copy_bad_close(&job->bad);
	copy_pool_destroy(&job->pool);
	copy_loop_destroy(&job->loop);
	return err;
}

static enum copy_progress_mode progress_mode(const struct copy_arguments *arguments)
{
	return arguments->progress	? COPY_PROGRESS_ON
	       : arguments->no_progress ? COPY_PROGRESS_OFF
					: COPY_PROGRESS_AUTO;
}

int cmd_copy(int argc, char **argv)
{
	struct copy_arguments arguments = {
		.request_bytes = REQUEST_BYTES_DEFAULT,
	};
	struct job job = { .arguments = &arguments, .journal = { .fd = -1 } };
	struct copy_report report = { 0 };
	struct error error = { 0 };
	uint64_t began_ns;
	int stop_signal;
	int status = cli_copy_arguments_parse(argc, argv, &arguments);

	if (status != CLI_GO_ON) {
		return status;
	}
	/* Without these signals, writing to a closed pipe or beyond the file size limit fails with
	 * an error. */
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGXFSZ, SIG_IGN);
	began_ns = clock_now_ns();
	copy_progress_init(&job.progress, progress_mode(&arguments), &job.counters);
	report.source_text = arguments.source;
	report.target_text = arguments.target;
	if (job_run(&job, &error) == 0) {
		report.outcome = job.bad.count == 0 ? COPY_COMPLETE : COPY_INCOMPLETE;
	} else {
		report.outcome = error.code == -EINTR ? COPY_INTERRUPTED : COPY_FAILED;
		report.error = &error;
	}
	report.seconds = (double)(clock_now_ns() - began_ns) / 1e9;
	status = job_report(&job, &report);
	stop_signal = report.outcome == COPY_INTERRUPTED ? job.loop.stop_signal : 0;
	if (job_close(&job, &error) < 0 && (status == CLI_OK || status == EXIT_GAPS)) {
		status = cli_failure("copy", &error);
	}
	return stop_signal != 0 ? EXIT_SIGNAL + stop_signal : status;
}
