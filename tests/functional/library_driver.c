// SPDX-License-Identifier: Apache-2.0
/*
 * Drives libgmblock from a script on standard input, one command a line, so that tests in Python
 * can use the library as a C program would, sanitizers included:
 *
 *   open KEY URI [OPTION=NUMBER]...   opened KEY BYTES REPLIES | refused KEY CODE TEXT
 *   read|write|flush|trim|zero|cache|status KEY OFFSET LENGTH FLAGS      submits
 *   copy KEY OFFSET LENGTH FLAGS SOURCE-KEY SOURCE-OFFSET                submits; ANSWER is copied
 *   copies KEY                        copies KEY REFLINK RANGE DEVICE RAM ZEROES
 *   wait                              everything submitted is done; then "waited"
 *   turn MILLISECONDS                 one gmb_queue_wait; then "turned"
 *   stats KEY                         stats KEY LOST REPLAYED MOVED
 *   close KEY                         closed KEY
 *
 * Options: flags, connections, connect_timeout_ms, request_timeout_ms, slow_timeout_ms,
 * reconnect_timeout_ms, depth.
 * A done request prints "done KEY NUMBER OPERATION RESULT ANSWER TEXT": NUMBER counts submits from
 * 0, ANSWER is the CRC-32 of what was read, or extents as OFFSET+LENGTH:FLAGS, or "-". An event
 * prints "event KEY KIND TEXT". Payloads to write are bytes of OFFSET mod 251.
 *
 * Reads go to three pieces with guards around them; a guard that was written to ends the program
 * with status 3, a request that is done twice with 4.
 */
#include <gmblock/gmblock.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLIENTS_MAX = 16, LINE_BYTES = 4096, GUARD_BYTES = 64, GUARD = 0xa5, EXTENTS_MAX = 64 };

struct slot {
	char key[32];
	struct gmb_client *client;
};

struct job {
	struct gmb_request request;
	struct slot *slot;
	unsigned number;
	uint8_t *block;
	size_t block_bytes;
	struct iovec iov[3];
	struct gmb_extent extents[EXTENTS_MAX];
	int done;
};

static struct gmb_queue *queue;
static struct slot slots[CLIENTS_MAX];
static unsigned submitted;
static unsigned in_flight;

static const char *const operations[] = {
	[GMB_READ] = "read",
	[GMB_WRITE] = "write",
	[GMB_FLUSH] = "flush",
	[GMB_TRIM] = "trim",
	[GMB_ZERO] = "zero",
	[GMB_CACHE] = "cache",
	[GMB_STATUS] = "status",
	[GMB_COPY] = "copy",
};

static void fail(int status, const char *what)
{
	fprintf(stderr, "library_driver: %s\n", what);
	exit(status);
}

static struct slot *find(const char *key)
{
	struct slot *unused = NULL;

	for (int i = 0; i < CLIENTS_MAX; i++) {
		if (strcmp(slots[i].key, key) == 0) {
			return &slots[i];
		}
		if (unused == NULL && slots[i].client == NULL) {
			unused = &slots[i];
		}
	}
	if (unused == NULL) {
		fail(2, "too many clients");
	}
	snprintf(unused->key, sizeof(unused->key), "%s", key);
	return unused;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void on_event(void *context, enum gmb_event event, const char *text)
{
	static const char *const names[] = { "lost", "reconnected", "gave-up", "resized",
		"retrying", "silent" };
	const struct slot *slot = context;

	printf("event %s %s %s\n", slot->key, names[event], text);
}

/* certificates=, psk_file=, username= and hostname=. Returns false if it is another option. */
static bool tls_option_set(struct gmb_tls_settings *tls, const char *option)
{
	const struct {
		const char *name;
		const char **slot;
	} texts[] = {
		{ "certificates=", &tls->certificates },
		{ "psk_file=", &tls->psk_file },
		{ "username=", &tls->username },
		{ "hostname=", &tls->hostname },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		size_t bytes = strlen(texts[i].name);

		if (strncmp(option, texts[i].name, bytes) == 0) {
			*texts[i].slot = option + bytes;
			return true;
		}
	}
	return false;
}

static void option_set(
	struct gmb_options *options, struct gmb_tls_settings *tls, const char *option)
{
	char name[32] = "";
	uint32_t value = 0;

	if (tls_option_set(tls, option)) {
		options->tls = tls;
		return;
	}
	if (sscanf(option, "%31[^=]=%" SCNu32, name, &value) != 2) {
		fail(2, "an option is NAME=NUMBER");
	}
	if (strcmp(name, "flags") == 0) {
		options->flags = value;
	} else if (strcmp(name, "connections") == 0) {
		options->connections = value;
	} else if (strcmp(name, "connect_timeout_ms") == 0) {
		options->connect_timeout_ms = value;
	} else if (strcmp(name, "request_timeout_ms") == 0) {
		options->request_timeout_ms = value;
	} else if (strcmp(name, "slow_timeout_ms") == 0) {
		options->slow_timeout_ms = value;
	} else if (strcmp(name, "reconnect_timeout_ms") == 0) {
		options->reconnect_timeout_ms = value;
	} else if (strcmp(name, "depth") == 0) {
		options->depth = value;
	} else if (strcmp(name, "tls_flags") == 0) {
		tls->flags = value;
		options->tls = tls;
	} else {
		fail(2, "unknown option");
	}
}

static void command_open(char *rest)
{
	char *key = strtok_r(rest, " ", &rest);
	char *uri = strtok_r(rest, " ", &rest);
	struct slot *slot = find(key);
	struct gmb_options options = {
		.size = sizeof(options), .event = on_event, .context = slot
	};
	struct gmb_tls_settings tls = { .size = sizeof(tls) };
	struct gmb_info info = { .size = sizeof(info) };
	struct gmb_error error = { 0 };
	char *option;
	int err;

	while ((option = strtok_r(rest, " ", &rest)) != NULL) {
		option_set(&options, &tls, option);
	}
	err = gmb_open(queue, uri, &options, &slot->client, &error);
	if (err != 0) {
		printf("refused %s %d %s\n", key, err, error.text);
		slot->key[0] = '\0';
		return;
	}
	gmb_get_info(slot->client, &info);
	printf("opened %s %" PRIu64 " %d\n", key, info.bytes, (int)info.replies);
}

/* --- requests --------------------------------------------------------------------------------- */

static uint32_t crc32_add(uint32_t crc, const uint8_t *bytes, size_t len)
{
	crc = ~crc;
	for (size_t i = 0; i < len; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++) {
			crc = crc >> 1 ^ (0xedb88320 & -(crc & 1));
		}
	}
	return ~crc;
}

static void guard_check(const uint8_t *at, const uint8_t *end)
{
	for (; at < end; at++) {
		if (*at != GUARD) {
			fail(3, "memory outside the scatter list was written to");
		}
	}
}

static void memory_check(const struct job *job)
{
	const uint8_t *at = job->block;

	for (int i = 0; i < 3; i++) {
		const uint8_t *base = job->iov[i].iov_base;

		guard_check(at, base);
		at = base + job->iov[i].iov_len;
	}
	guard_check(at, job->block + job->block_bytes);
}

static void print_answer(const struct job *job)
{
	const struct gmb_request *request = &job->request;
	uint32_t crc = 0;

	if (request->result == 0 && request->operation == GMB_READ) {
		for (int i = 0; i < 3; i++) {
			crc = crc32_add(crc, job->iov[i].iov_base, job->iov[i].iov_len);
		}
		printf("%" PRIu32, crc);
	} else if (request->result == 0 && request->operation == GMB_STATUS) {
		for (uint32_t i = 0; i < request->extent_count; i++) {
			printf("%s%" PRIu64 "+%" PRIu64 ":%" PRIu32, i > 0 ? "," : "",
				request->extents[i].offset, request->extents[i].bytes,
				request->extents[i].flags);
		}
	} else if (request->operation == GMB_COPY) {
		printf("%" PRIu64, request->copied);
	} else {
		printf("-");
	}
}

static void on_done(struct gmb_request *request)
{
	struct job *job = request->context;
	char text[512];

	if (job->done++ > 0) {
		fail(4, "a request was done twice");
	}
	if (job->block != NULL) {
		memory_check(job);
	}
	printf("done %s %u %s %d ", job->slot->key, job->number, operations[request->operation],
		request->result);
	print_answer(job);
	printf(" %s\n", gmb_explain(job->slot->client, request, text, sizeof(text)));
	in_flight--;
	free(job->block);
	free(job);
}

static void job_memory(struct job *job, size_t length)
{
	size_t parts[3] = { length / 3, length / 2 - length / 3, length - length / 2 };
	size_t at = GUARD_BYTES;

	job->block_bytes = length + 4 * (size_t)GUARD_BYTES;
	job->block = malloc(job->block_bytes);
	if (job->block == NULL) {
		fail(2, "out of memory");
	}
	memset(job->block, GUARD, job->block_bytes);
	for (int i = 0; i < 3; i++) {
		job->iov[i] = (struct iovec){ .iov_base = job->block + at, .iov_len = parts[i] };
		at += parts[i] + GUARD_BYTES;
	}
}

static void command_submit(enum gmb_operation operation, const char *rest)
{
	struct job *job = calloc(1, sizeof(*job));
	char key[32];
	uint64_t offset;
	uint64_t length;
	uint32_t flags;

	if (job == NULL || sscanf(rest, "%31s %" SCNu64 " %" SCNu64 " %" SCNu32, key, &offset,
				   &length, &flags) != 4) {
		fail(2, "OPERATION KEY OFFSET LENGTH FLAGS");
	}
	job->slot = find(key);
	if (job->slot->client == NULL) {
		fail(2, "no such client");
	}
	job->number = submitted++;
	if (operation == GMB_READ || operation == GMB_WRITE) {
		uint64_t place = offset;

		job_memory(job, length);
		for (int i = 0; i < 3 && operation == GMB_WRITE; i++) {
			uint8_t *bytes = job->iov[i].iov_base;

			for (size_t k = 0; k < job->iov[i].iov_len; k++) {
				bytes[k] = (uint8_t)(place++ % 251);
			}
		}
		gmb_prepare_readv(&job->request, job->iov, 3, offset);
		job->request.operation = (uint8_t)operation;
	} else if (operation == GMB_STATUS) {
		gmb_prepare_status(&job->request, job->extents, EXTENTS_MAX, offset, length);
	} else if (operation == GMB_COPY) {
		uint64_t source_offset;

		if (sscanf(rest, "%*s %*s %*s %*s %31s %" SCNu64, key, &source_offset) != 2) {
			fail(2, "copy KEY OFFSET LENGTH FLAGS SOURCE-KEY SOURCE-OFFSET");
		}
		gmb_prepare_copy(&job->request, offset, find(key)->client, source_offset, length);
	} else {
		gmb_prepare(&job->request, operation, offset, length);
	}
	job->request.flags = flags;
	job->request.done = on_done;
	job->request.context = job;
	in_flight++;
	gmb_submit(job->slot->client, &job->request);
}

/* --- the script ------------------------------------------------------------------------------- */

static void command_stats(const char *key)
{
	struct gmb_stats stats = { .size = sizeof(stats) };

	gmb_get_stats(find(key)->client, &stats);
	printf("stats %s %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", key, stats.connections_lost,
		stats.commands_replayed, stats.bytes_moved);
}

static void command_copies(const char *key)
{
	struct gmb_stats stats = { .size = sizeof(stats) };

	gmb_get_stats(find(key)->client, &stats);
	printf("copies %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", key,
		stats.bytes_copied_reflink, stats.bytes_copied_range, stats.bytes_copied_device,
		stats.bytes_copied_ram, stats.bytes_copied_zeroes);
}

static void command_close(const char *key)
{
	struct slot *slot = find(key);
	int err = gmb_close(slot->client);

	printf("closed %s %d\n", key, err);
	slot->client = NULL;
	slot->key[0] = '\0';
}

static void run_line(char *line)
{
	char *rest = line;
	const char *word = strtok_r(rest, " ", &rest);

	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
		if (strcmp(word, operations[i]) == 0) {
			command_submit((enum gmb_operation)i, rest);
			return;
		}
	}
	if (strcmp(word, "open") == 0) {
		command_open(rest);
	} else if (strcmp(word, "wait") == 0) {
		while (in_flight > 0) {
			(void)gmb_queue_wait(queue, -1);
		}
		printf("waited\n");
	} else if (strcmp(word, "turn") == 0) {
		(void)gmb_queue_wait(queue, (int)strtol(rest, NULL, 10));
		printf("turned\n");
	} else if (strcmp(word, "stats") == 0) {
		command_stats(rest);
	} else if (strcmp(word, "copies") == 0) {
		command_copies(rest);
	} else if (strcmp(word, "close") == 0) {
		command_close(rest);
	} else {
		fail(2, "unknown command");
	}
}

int main(void)
{
	struct gmb_error error = { 0 };
	char line[LINE_BYTES];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (gmb_queue_create(NULL, &queue, &error) != 0) {
		fprintf(stderr, "library_driver: %s\n", error.text);
		return error.code == -38 || error.code == -1 ? 77 : 2;
	}
	while (fgets(line, sizeof(line), stdin) != NULL) {
		line[strcspn(line, "\n")] = '\0';
		run_line(line);
	}
	for (int i = 0; i < CLIENTS_MAX; i++) {
		if (slots[i].client != NULL) {
			command_close(slots[i].key);
		}
	}
	return gmb_queue_destroy(queue) == 0 && in_flight == 0 ? 0 : 2;
}
