// SPDX-License-Identifier: Apache-2.0
/*
 * gmblock-flash-trace: what a policy of garbage collection makes of a load. Plays writes to a model
 * of the flash store (flash_model.h) and says how many blocks it programs. No I/O; the same options
 * give the same figures on every machine.
 *
 *   gmblock-flash-trace --load zipf0.99 --spare 7 --cache 10
 *   blkparse -i sda | gmblock-flash-trace --trace /dev/stdin --json
 *   gmblock-flash-trace --load tpcc --iolog >log; fio --read_iolog=log ...
 *
 * Threading: one thread. Errors: exit status 2 for the command line, 1 for others, and a sentence.
 */
#include "flash_load.h"
#include "flash_model.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

struct options {
	const char *load;
	const char *trace;
	char action;
	uint32_t seed;
	uint32_t spare_percent;
	uint32_t cache_per_mille;
	uint32_t cold_percent; /* COLD_OF_POLICY: what the policy says */
	uint32_t flush_blocks; /* 0: never */
	uint32_t warm_disks;
	uint32_t write_disks;
	uint32_t policies; /* bits */
	bool json;
	bool iolog;
	struct model_config model;
};

enum {
	COLD_OF_POLICY = UINT32_MAX,
	BLOCKS_MIN = 1024,
	BLOCKS_MAX = 1 << 28, /* so that a place in the log has 32 bits, with any spare space */
	DISKS_MAX = 1 << 20,
	BLOCK_BYTES = 4096,
};

/* --- the command line ------------------------------------------------------------------------- */

static void help(void)
{
	printf("Usage: gmblock-flash-trace [OPTION]...\n"
	       "Plays writes to a model of the flash store and prints the blocks that it "
	       "programs.\n"
	       "\n"
	       "  --load NAME       ");
	for (uint32_t i = 0; load_name(i) != NULL; i++) {
		printf("%s%s", i == 0 ? "" : ", ", load_name(i));
	}
	printf(" (default zipf0.99)\n"
	       "  --trace FILE      the text of blkparse instead; begins anew at its end\n"
	       "  --action LETTER   which of its events: Q (default), D or C\n"
	       "  --seed N          of the random numbers (default 1)\n"
	       "  --blocks N        size of the disk (default 65536; a trace has its own)\n"
	       "  --segment N       blocks of a segment (default 256)\n"
	       "  --spare PERCENT   of the log that is not for data (default 15)\n"
	       "  --cache PERMILLE  size of the write cache, of the disk (default 100)\n"
	       "  --policy NAMES    auto,paper,plain,greedy (default: all)\n"
	       "  --cold PERCENT    cold part of the cache (default: 80, for paper 30)\n"
	       "  --flush N         flush after so many blocks (default 0: never)\n"
	       "  --batch N         blocks evicted at once (default 240)\n"
	       "  --direct N        writes of so many blocks pass by the cache (default 16)\n"
	       "  --leaves N        leaves of the map in memory (default: all)\n"
	       "  --checkpoint N    after so many segments of log (default 16)\n"
	       "  --begin N         collect below so many free segments (default: as the store)\n"
	       "  --warm N          disks written before counting begins (default 4)\n"
	       "  --writes N        disks written while counting (default 8)\n"
	       "  --json            an object for each policy, with all counts\n"
	       "  --iolog           print what would be played, as a log for fio\n");
}

static int parse_policies(const char *text, uint32_t *policies, struct error *error)
{
	const char *at = text;

	*policies = 0;
	for (;;) {
		size_t len = strcspn(at, ",");
		uint32_t policy = 0;

		while (policy < GC_POLICY_COUNT &&
			(strlen(gc_rules[policy]->name) != len ||
				strncmp(at, gc_rules[policy]->name, len) != 0)) {
			policy++;
		}
		if (policy == GC_POLICY_COUNT) {
			return error_set(
				error, -EINVAL, "no policy is called '%.*s'", (int)len, at);
		}
		*policies |= BIT(policy);
		if (at[len] == '\0') {
			return 0;
		}
		at += len + 1;
	}
}

struct number {
	const char *name;
	size_t offset; /* of a uint32_t in struct options */
	uint32_t min;
	uint32_t max;
};

#define NUMBER(name, field, min, max)                                                              \
	{                                                                                          \
		name, offsetof(struct options, field), min, max                                    \
	}
static const struct number numbers[] = {
	NUMBER("seed", seed, 0, UINT32_MAX),
	NUMBER("blocks", model.blocks, BLOCKS_MIN, BLOCKS_MAX),
	NUMBER("segment", model.segment_blocks, 16, 1 << 20),
	NUMBER("spare", spare_percent, 1, 90),
	NUMBER("cache", cache_per_mille, 0, 1000),
	NUMBER("cold", cold_percent, 0, 100),
	NUMBER("flush", flush_blocks, 0, UINT32_MAX),
	NUMBER("batch", model.batch_blocks, 1, 1 << 20),
	NUMBER("direct", model.direct_blocks, 1, UINT32_MAX),
	NUMBER("leaves", model.leaf_count, 1, UINT32_MAX),
	NUMBER("checkpoint", model.checkpoint_segments, 1, 1 << 20),
	NUMBER("begin", model.begin_segments, GC_RESERVE_SEGMENTS + 1, 1 << 20),
	NUMBER("warm", warm_disks, 0, DISKS_MAX),
	NUMBER("writes", write_disks, 1, DISKS_MAX),
};

static int parse_number(
	struct options *options, const struct number *number, const char *text, struct error *error)
{
	uint32_t value;
	int result = units_parse_count(text, number->min, number->max, &value, error);

	if (result != 0) {
		error_prefix(error, "--%s", number->name);
		return result;
	}
	memcpy((char *)options + number->offset, &value, sizeof(value));
	return 0;
}

static int parse_action(struct options *options, const char *text, struct error *error)
{
	if (strlen(text) != 1 || strchr("QDC", text[0]) == NULL) {
		return error_set(error, -EINVAL, "--action: '%s' is not Q, D or C", text);
	}
	options->action = text[0];
	return 0;
}

/* What getopt_long() returns: a letter, or NUMBERS and the place in the table. */
enum { NUMBERS = 256 };

static int parse_option(struct options *options, int code, struct error *error)
{
	switch (code) {
	case 'l':
		options->load = optarg;
		return 0;
	case 't':
		options->trace = optarg;
		return 0;
	case 'a':
		return parse_action(options, optarg, error);
	case 'p':
		return parse_policies(optarg, &options->policies, error);
	case 'j':
		options->json = true;
		return 0;
	case 'i':
		options->iolog = true;
		return 0;
	default:
		return parse_number(options, &numbers[code - NUMBERS], optarg, error);
	}
}

static void usage_error(const char *text)
{
	fprintf(stderr, "gmblock-flash-trace: %s\nTry 'gmblock-flash-trace --help'.\n", text);
	exit(2);
}

static void parse(struct options *options, int argc, char **argv)
{
	enum { LETTERS = 7 };
	struct option longs[LETTERS + ARRAY_COUNT(numbers) + 1] = {
		{ "load", required_argument, NULL, 'l' },
		{ "trace", required_argument, NULL, 't' },
		{ "action", required_argument, NULL, 'a' },
		{ "policy", required_argument, NULL, 'p' },
		{ "json", no_argument, NULL, 'j' },
		{ "iolog", no_argument, NULL, 'i' },
		{ "help", no_argument, NULL, 'h' },
	};
	struct error error;
	int code;

	for (uint32_t i = 0; i < ARRAY_COUNT(numbers); i++) {
		longs[LETTERS + i] = (struct option){ numbers[i].name, required_argument, NULL,
			NUMBERS + (int)i };
	}
	while ((code = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		if (code == 'h') {
			help();
			exit(0);
		}
		if (code == '?') {
			exit(2); /* getopt has said it */
		}
		if (parse_option(options, code, &error) != 0) {
			usage_error(error.text);
		}
	}
	if (optind < argc) {
		usage_error("there are options only");
	}
}

/* --- a log for fio ---------------------------------------------------------------------------- */

/* fio's "Trace file format v2", for its engine for NBD, which knows no durable writes. Without a
 * "close", before which fio does not wait for what is in flight. */
static void print_iolog(const struct options *options, struct load *load)
{
	uint64_t disks = options->warm_disks + (uint64_t)options->write_disks;
	uint64_t flush_at = options->flush_blocks;
	uint64_t written = 0;

	printf("fio version 2 iolog\nnbd add\nnbd open\n");
	while (written < disks * options->model.blocks) {
		struct load_op op;

		load_next(load, &op);
		if (op.kind == LOAD_FLUSH) {
			printf("nbd sync 0 0\n");
			continue;
		}
		printf("nbd %s %" PRIu64 " %" PRIu64 "\n", op.kind == LOAD_WRITE ? "write" : "trim",
			(uint64_t)op.block * BLOCK_BYTES, (uint64_t)op.count * BLOCK_BYTES);
		written += op.kind == LOAD_WRITE ? op.count : 0;
		if (options->flush_blocks != 0 && written >= flush_at) {
			printf("nbd sync 0 0\n");
			flush_at = written + options->flush_blocks;
		}
	}
}

/* --- one policy ------------------------------------------------------------------------------- */

struct player {
	const struct options *options;
	struct load *load;
	struct model *model;
	uint64_t flush_at; /* user blocks */
};

static void play_until(struct player *player, uint64_t user_blocks)
{
	const struct model_counts *counts = model_counts(player->model);

	while (counts->user < user_blocks) {
		struct load_op op;

		load_next(player->load, &op);
		switch (op.kind) {
		case LOAD_WRITE:
			model_write(player->model, op.block, op.count, op.durable);
			break;
		case LOAD_TRIM:
			model_trim(player->model, op.block, op.count);
			break;
		case LOAD_FLUSH:
			model_flush(player->model);
			break;
		}
		if (player->options->flush_blocks != 0 && counts->user >= player->flush_at) {
			model_flush(player->model);
			player->flush_at = counts->user + player->options->flush_blocks;
		}
	}
}

/* All members of struct model_counts, in their order. */
static const char *const count_names[] = { "user", "evicted", "flushed", "direct", "moved",
	"moved_from_cache", "written_back", "leaf", "header", "victims", "victim_valid",
	"checkpoints" };
_Static_assert(sizeof(struct model_counts) == ARRAY_COUNT(count_names) * sizeof(uint64_t),
	"every count has a name");

static struct model_counts counts_since(
	const struct model_counts *now, const struct model_counts *before)
{
	uint64_t later[ARRAY_COUNT(count_names)];
	uint64_t earlier[ARRAY_COUNT(count_names)];
	struct model_counts since;

	memcpy(later, now, sizeof(later));
	memcpy(earlier, before, sizeof(earlier));
	for (uint32_t i = 0; i < ARRAY_COUNT(later); i++) {
		later[i] -= earlier[i];
	}
	memcpy(&since, later, sizeof(since));
	return since;
}

/* Data that was programmed for each block that users wrote. */
static double amplification(const struct model_counts *counts)
{
	return (double)(counts->evicted + counts->flushed + counts->direct + counts->moved +
			counts->moved_from_cache + counts->written_back) /
	       (double)counts->user;
}

/* The same with the map and the headers. */
static double amplification_of_all(const struct model_counts *counts)
{
	return amplification(counts) +
	       (double)(counts->leaf + counts->header) / (double)counts->user;
}

static void print_json(const struct options *options, enum gc_policy policy,
	const struct model *model, const struct model_counts *counts)
{
	uint64_t values[ARRAY_COUNT(count_names)];

	memcpy(values, counts, sizeof(values));
	printf("{\"policy\": \"%s\", \"cold_percent\": %" PRIu32 ", \"blocks\": %" PRIu32
	       ", \"segments\": %" PRIu32,
		gc_rules[policy]->name, options->model.cold_percent, options->model.blocks,
		model_segment_count(model));
	for (uint32_t i = 0; i < ARRAY_COUNT(values); i++) {
		printf(", \"%s\": %" PRIu64, count_names[i], values[i]);
	}
	printf(", \"write_amplification\": %.4f, \"with_map_and_headers\": %.4f}\n",
		amplification(counts), amplification_of_all(counts));
}

static void print_line(enum gc_policy policy, const struct model_counts *counts)
{
	double user = (double)counts->user / 100;

	printf("%-8s %6.3f %6.3f %8.1f %8.1f %8.1f %8.1f %8.1f %7.1f %7.1f\n",
		gc_rules[policy]->name, amplification(counts), amplification_of_all(counts),
		(double)(counts->evicted + counts->flushed) / user, (double)counts->direct / user,
		(double)counts->moved / user, (double)counts->moved_from_cache / user,
		(double)counts->written_back / user, (double)counts->leaf / user,
		(double)counts->header / user);
}

static int load_open(struct options *options, struct load **load, struct error *error)
{
	return options->trace != NULL ? load_read_trace(options->trace, options->action, load,
						&options->model.blocks, error)
				      : load_create(options->load, options->model.blocks,
						options->seed, load, error);
}

static int play(
	struct options *options, struct load *load, enum gc_policy policy, struct error *error)
{
	struct player player = {
		.options = options, .load = load, .flush_at = options->flush_blocks
	};
	uint64_t disk = options->model.blocks;
	struct model_counts before;
	struct model_counts counts;

	options->model.policy = policy;
	options->model.cold_percent = options->cold_percent == COLD_OF_POLICY
					      ? gc_rules[policy]->cold_percent
					      : options->cold_percent;
	options->model.spare = options->spare_percent / 100.0;
	options->model.cache_blocks = (uint32_t)(disk * options->cache_per_mille / 1000);
	player.model = model_create(&options->model);
	if (player.model == NULL) {
		return error_set(error, -ENOMEM, "no memory for the model");
	}
	load_rewind(load);
	play_until(&player, options->warm_disks * disk);
	before = *model_counts(player.model);
	play_until(&player, (options->warm_disks + (uint64_t)options->write_disks) * disk);
	model_verify(player.model);
	counts = counts_since(model_counts(player.model), &before);
	if (options->json) {
		print_json(options, policy, player.model, &counts);
	} else {
		print_line(policy, &counts);
	}
	model_destroy(player.model);
	return 0;
}

int main(int argc, char **argv)
{
	struct options options = {
		.load = "zipf0.99",
		.action = 'Q',
		.seed = 1,
		.spare_percent = 15,
		.cache_per_mille = 100,
		.cold_percent = COLD_OF_POLICY,
		.warm_disks = 4,
		.write_disks = 8,
		.policies = BIT(GC_POLICY_COUNT) - 1,
		.model = {
			.blocks = 65536,
			.segment_blocks = 256,
			.batch_blocks = 240,
			.direct_blocks = 16,
			.leaf_count = UINT32_MAX,
			.checkpoint_segments = 16,
		},
	};
	struct load *load;
	struct error error;

	parse(&options, argc, argv);
	if (load_open(&options, &load, &error) != 0) {
		usage_error(error.text);
	}
	if (options.iolog) {
		print_iolog(&options, load);
		options.policies = 0;
	} else if (!options.json) {
		printf("          data,   with  of 100 blocks that users wrote:            from  "
		       "written\n"
		       "policy   blocks    all  evicted   direct    moved    cache     back  "
		       "leaves headers\n");
	}
	for (enum gc_policy policy = 0; policy < GC_POLICY_COUNT; policy++) {
		if ((options.policies & BIT(policy)) && play(&options, load, policy, &error) != 0) {
			fprintf(stderr, "gmblock-flash-trace: %s\n", error.text);
			return 1;
		}
	}
	load_destroy(load);
	return 0;
}
