// SPDX-License-Identifier: Apache-2.0
/*
 * sim --seeds FROM-TO | --seed N [--verbose] | --soak SECONDS [--seeds FROM-TO]
 *     [--gmb] [--FIGURE LEAST]...
 *
 * Runs the real server code over the simulated machine, one scenario a seed. A seed that fails,
 * crashes or hangs is named together with the command that replays it exactly. What a figure below
 * counts must have happened so often in all: without it, nothing of that kind was tested.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
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
	/* For loops without events: a seed takes up to 30 s, several times as long with a
	 * sanitizer. */
	WATCHDOG_SECONDS = 600,
	REPEAT_EVERY = 49, /* seeds that are run twice, to see that they replay: with and
			    * without TLS */
};

/* Of all seeds; an option for those that can be expected. */
static const struct figure {
	const char *option;
	const char *what;
	size_t at; /* in struct scenario_result */
} figures[] = {
#define FIGURE(option, what, field)                                                                \
	{                                                                                          \
		option, what, offsetof(struct scenario_result, field)                              \
	}
	FIGURE(NULL, "requests", requests),
	FIGURE(NULL, "of them answered with an error", errors),
	FIGURE(NULL, "events", events),
	FIGURE(NULL, "bytes sent out of the page cache", page_cache_send_bytes),
	FIGURE("--send-faults", "sends that found it gone", send_faults),
	FIGURE("--unfinished-bytes", "bytes of reads that did not finish", unfinished_bytes),
	FIGURE("--device-bytes", "bytes in memory that the CPU must not touch", device_bytes),
	FIGURE("--device-refused", "parts and requests that had RAM instead", device_refused),
	FIGURE("--placed", "bytes that gmb placed", placed_bytes),
	FIGURE("--staged", "bytes that it staged", staged_bytes),
	FIGURE("--replays", "commands sent again", replays),
	FIGURE("--moves", "clients that continued at another host", moves),
	FIGURE("--copied", "bytes copied within the server", copied_bytes),
	FIGURE("--dripped-bytes", "bytes moved one by one", dripped_bytes),
	FIGURE("--renewals", "connections renewed at once", renewals),
	FIGURE("--hangs", "disks that hung", hangs),
	FIGURE("--tls-handshakes", "handshakes of TLS", tls_handshakes),
	FIGURE("--place-turns", "turns of clients that waited for a place", place_turns),
	FIGURE("--memory-turns", "turns of clients that waited for memory", memory_turns),
	FIGURE("--flash-moved", "blocks that collectors of flash stores moved", flash_moved),
	FIGURE("--atomic-turns", "turns of clients whose write is not cut", atomic_turns),
	FIGURE("--atomic-writes", "durable writes in flight, each there as a whole or not at all",
		atomic_writes),
	FIGURE("--flash-cached", "blocks that went to their write caches", flash_cached),
	FIGURE("--flash-kept", "blocks that killed servers have left there", flash_kept),
	FIGURE("--lease-moves", "leases that a client took from another", lease_moves),
	FIGURE("--lease-renewals", "leases that survived all connections", lease_renewals),
#undef FIGURE
};

/* Shared with the worker process, so that a crash can be told. */
struct progress {
	uint64_t seed;
	uint64_t seeds;
	struct scenario_result total;
};

struct arguments {
	uint64_t from;
	uint64_t to;
	uint64_t soak_s;
	uint64_t least[ARRAY_COUNT(figures)];
	bool verbose;
};

static struct progress *progress;

bool runner_native;
bool runner_hosts;
bool runner_atomic;

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

static uint64_t *figure(struct scenario_result *result, size_t idx)
{
	return (uint64_t *)(void *)((uint8_t *)result + figures[idx].at);
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
	for (size_t i = 0; i < ARRAY_COUNT(figures); i++) {
		*figure(&progress->total, i) += *figure(&result, i);
	}
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

static bool parse_range(const char *text, uint64_t *from, uint64_t *to)
{
	char *end;

	return parse_number(text, from, &end) && *end == '-' && parse_number(end + 1, to, &end) &&
	       *end == '\0' && *from <= *to;
}

static bool parse_value(struct arguments *arguments, const char *option, const char *value)
{
	uint64_t number;
	char *end;

	if (strcmp(option, "--seeds") == 0) {
		return parse_range(value, &arguments->from, &arguments->to);
	}
	if (!parse_number(value, &number, &end) || *end != '\0') {
		return false;
	}
	if (strcmp(option, "--seed") == 0) {
		arguments->from = number;
		arguments->to = number;
		return true;
	}
	if (strcmp(option, "--soak") == 0) {
		arguments->soak_s = number;
		return true;
	}
	for (size_t i = 0; i < ARRAY_COUNT(figures); i++) {
		if (figures[i].option != NULL && strcmp(option, figures[i].option) == 0) {
			arguments->least[i] = number;
			return true;
		}
	}
	return false;
}

static bool parse(int argc, char **argv, struct arguments *arguments)
{
	*arguments = (struct arguments){ .from = 1, .to = 100 };
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--verbose") == 0) {
			arguments->verbose = true;
		} else if (strcmp(argv[i], "--gmb") == 0) {
			runner_native = true;
		} else if (strcmp(argv[i], "--hosts") == 0) {
			runner_hosts = true;
		} else if (strcmp(argv[i], "--atomic") == 0) {
			runner_atomic = true;
		} else if (i + 1 == argc || !parse_value(arguments, argv[i], argv[i + 1])) {
			return false;
		} else {
			i++;
		}
	}
	return true;
}

/* The sums of all seeds. False: too little of something. */
static bool tell(const struct arguments *arguments)
{
	bool enough = true;

	printf("%" PRIu64 " seeds", progress->seeds);
	for (size_t i = 0; i < ARRAY_COUNT(figures); i++) {
		printf(", %" PRIu64 " %s", *figure(&progress->total, i), figures[i].what);
	}
	printf("\n");
	for (size_t i = 0; i < ARRAY_COUNT(figures); i++) {
		if (*figure(&progress->total, i) < arguments->least[i]) {
			fprintf(stderr, "expected: at least %" PRIu64 " %s\n", arguments->least[i],
				figures[i].what);
			enough = false;
		}
	}
	return enough;
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

	if (!parse(argc, argv, &arguments)) {
		fprintf(stderr,
			"usage: %s [--seeds FROM-TO] [--seed N] [--verbose] [--soak SECONDS] "
			"[--gmb | --atomic] [--FIGURE LEAST]...\n",
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
			"seed %" PRIu64 " failed (%s %d); replay it with\n  %s%s --seed %" PRIu64
			"\n",
			progress->seed, WIFSIGNALED(status) ? "signal" : "exit status",
			WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), argv[0],
			runner_native	? " --gmb"
			: runner_hosts	? " --hosts"
			: runner_atomic ? " --atomic"
					: "",
			progress->seed);
		return 1;
	}
	return tell(&arguments) ? 0 : 1;
}
