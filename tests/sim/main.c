// SPDX-License-Identifier: Apache-2.0
/*
 * sim --seeds FROM-TO | --seed N [--verbose] | --soak SECONDS [--seeds FROM-TO]
 *     [--send-faults N] [--unfinished-bytes N]
 *
 * Runs the real server code over the simulated machine, one scenario a seed. A seed that fails,
 * crashes or hangs is named together with the command that replays it exactly. At least so many
 * sends must have met a page cache that was gone, and so many bytes must have come for reads that
 * failed or were cut later: without them, nothing of that kind was tested.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../unit/stores.h"
#include "base/log.h"
#include "runner.h"
#include "sim/sim.h"

enum {
	EXIT_SEED_FAILED = 3,
	WATCHDOG_SECONDS = 120, /* a seed takes a fraction of one: this is a loop without events */
	REPEAT_EVERY = 50,	/* seeds that are run twice, to see that they replay */
};

/* Shared with the worker process, so that a crash can be told. */
struct progress {
	uint64_t seed;
	uint64_t seeds;
	uint64_t requests;
	uint64_t errors;
	uint64_t events;
	uint64_t page_cache_send_bytes;
	uint64_t send_faults;
	uint64_t twin_gets;
	uint64_t twin_ram;
	uint64_t unfinished_bytes;
};

struct arguments {
	uint64_t from;
	uint64_t to;
	uint64_t soak_s;
	uint64_t send_faults_min;
	uint64_t twin_min;
	uint64_t unfinished_bytes_min;
	bool single;
	bool verbose;
};

static struct progress *progress;

void model_fail(const char *format, ...)
{
	va_list list;

	fflush(stdout);
	fprintf(stderr, "seed %" PRIu64 " at %.6f s: ", progress->seed, (double)sim_now_ns() / 1e9);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
	_exit(EXIT_SEED_FAILED);
}

/* Processor time, so that a busy machine is not taken for a loop. */
static void watchdog(time_t seconds)
{
	struct itimerval timer = { .it_value = { .tv_sec = seconds } };

	setitimer(ITIMER_PROF, &timer, NULL);
}

static void run_seed(uint64_t seed, bool verbose)
{
	struct scenario_result result;

	progress->seed = seed;
	watchdog(WATCHDOG_SECONDS);
	result = scenario_run(seed, verbose);
	if (seed % REPEAT_EVERY == 0 && scenario_run(seed, false).trace != result.trace) {
		model_fail("the seed does not replay: its second run differs");
	}
	watchdog(0);
	progress->seeds++;
	progress->requests += result.requests;
	progress->errors += result.errors;
	progress->events += result.events;
	progress->page_cache_send_bytes += result.page_cache_send_bytes;
	progress->send_faults += result.send_faults;
	progress->twin_gets += result.twin_gets;
	progress->twin_ram += result.twin_ram;
	progress->unfinished_bytes += result.unfinished_bytes;
}

static void work(const struct arguments *arguments)
{
	time_t end = time(NULL) + (time_t)arguments->soak_s;

	log_set_level(arguments->verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	for (uint64_t seed = arguments->from;
		arguments->soak_s != 0 ? time(NULL) < end : seed <= arguments->to; seed++) {
		run_seed(seed, arguments->verbose);
	}
}

static bool parse_number(const char *text, uint64_t *value, char **end)
{
	errno = 0;
	*value = strtoull(text, end, 10);
	return errno == 0 && *end != text;
}

static bool parse(int argc, char **argv, struct arguments *arguments)
{
	*arguments = (struct arguments){ .from = 1, .to = 100 };
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";
		char *end;

		if (strcmp(argv[i], "--verbose") == 0) {
			arguments->verbose = true;
			continue;
		}
		if (strcmp(argv[i], "--seed") == 0 && parse_number(value, &arguments->from, &end) &&
			*end == '\0') {
			arguments->to = arguments->from;
			arguments->single = true;
		} else if (strcmp(argv[i], "--seeds") == 0 &&
			   parse_number(value, &arguments->from, &end) && *end == '-' &&
			   parse_number(end + 1, &arguments->to, &end) && *end == '\0' &&
			   arguments->from <= arguments->to) {
			arguments->single = false;
		} else if (strcmp(argv[i], "--soak") == 0 &&
			   parse_number(value, &arguments->soak_s, &end) && *end == '\0') {
			arguments->single = false;
		} else if (strcmp(argv[i], "--send-faults") == 0 &&
			   parse_number(value, &arguments->send_faults_min, &end) && *end == '\0') {
			arguments->single = false;
		} else if (strcmp(argv[i], "--twin-buffers") == 0 &&
			   parse_number(value, &arguments->twin_min, &end) && *end == '\0') {
			arguments->single = false;
		} else if (strcmp(argv[i], "--unfinished-bytes") == 0 &&
			   parse_number(value, &arguments->unfinished_bytes_min, &end) &&
			   *end == '\0') {
			arguments->single = false;
		} else {
			return false;
		}
		i++;
	}
	return true;
}

/* Addresses are part of a run (memory alignment), so they must not be random. */
static void fix_addresses(char **argv)
{
	int persona = personality(0xffffffff);

	if (persona != -1 && (persona & ADDR_NO_RANDOMIZE) == 0 &&
		getenv("SIM_ADDRESSES") == NULL &&
		personality((unsigned long)persona | ADDR_NO_RANDOMIZE) != -1) {
		setenv("SIM_ADDRESSES", "tried", 1);
		execv("/proc/self/exe", argv);
	}
}

int main(int argc, char **argv)
{
	struct arguments arguments;
	pid_t pid;
	int status;

	stores_register();
	if (!parse(argc, argv, &arguments)) {
		fprintf(stderr,
			"usage: %s [--seeds FROM-TO] [--seed N] [--verbose] [--soak SECONDS] "
			"[--send-faults N] [--twin-buffers N] [--unfinished-bytes N]\n",
			argv[0]);
		return 2;
	}
	fix_addresses(argv);
	progress = mmap(
		NULL, sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (progress == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		return 1;
	}
	if (pid == 0) {
		work(&arguments);
		fflush(stdout);
		exit(0); /* not _exit(): the leak checker runs now */
	}
	if (waitpid(pid, &status, 0) != pid) {
		perror("waitpid");
		return 1;
	}
	if (status != 0) {
		fprintf(stderr,
			"seed %" PRIu64 " failed (%s %d); replay it with\n  %s --seed %" PRIu64
			"\n",
			progress->seed, WIFSIGNALED(status) ? "signal" : "exit status",
			WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), argv[0],
			progress->seed);
		return 1;
	}
	printf("%" PRIu64 " seeds, %" PRIu64 " requests (%" PRIu64
	       " answered with an error), %" PRIu64 " events, %" PRIu64
	       " bytes out of the page cache (%" PRIu64 " sends found it gone), %" PRIu64
	       " bytes of reads that did not finish, %" PRIu64
	       " buffers that the CPU must not touch (%" PRIu64 " requests had RAM instead)\n",
		progress->seeds, progress->requests, progress->errors, progress->events,
		progress->page_cache_send_bytes, progress->send_faults, progress->unfinished_bytes,
		progress->twin_gets, progress->twin_ram);
	if (progress->send_faults < arguments.send_faults_min ||
		progress->twin_gets < arguments.twin_min ||
		progress->twin_ram < arguments.twin_min ||
		progress->unfinished_bytes < arguments.unfinished_bytes_min) {
		fprintf(stderr,
			"expected: %" PRIu64 " such sends, %" PRIu64
			" such bytes of reads, %" PRIu64 " such buffers and requests\n",
			arguments.send_faults_min, arguments.unfinished_bytes_min,
			arguments.twin_min);
		return 1;
	}
	return 0;
}
