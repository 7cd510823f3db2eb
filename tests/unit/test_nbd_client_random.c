// SPDX-License-Identifier: Apache-2.0
/* Replies by chance to commands by chance: lawful ones in any order and interleaved, and the same
 * with a few bytes changed. Every stream goes through every way of cutting it into pieces and is
 * compared with the model (nbd_client_trial.h).
 *
 *   test_nbd_client_random [FIRST-SEED COUNT]
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nbd_client_stream.h"
#include "unit.h"

enum {
	SEEDS = 80,
	CALLS_MAX = 24,
	PARTS_MAX = 48,
	EXTENTS_MAX = 20,
	CHANGES = 5, /* streams with changed bytes a seed */
	LAST = NBD_REPLY_FLAG_DONE,
};

static uint64_t first_seed = 1;
static uint64_t seed_count = SEEDS;
static char running[64]; /* told when a promise of the trial is broken */

static uint64_t draw(uint64_t *random, uint64_t below)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random % below;
}

/* --- commands -------------------------------------------------------------------------------- */

static void draw_call(uint64_t *random, struct trial_call *call, bool simple)
{
	static const uint16_t types[] = { NBD_CMD_READ, NBD_CMD_READ, NBD_CMD_READ, NBD_CMD_READ,
		NBD_CMD_WRITE, NBD_CMD_FLUSH, NBD_CMD_TRIM, NBD_CMD_WRITE_ZEROES, NBD_CMD_CACHE,
		NBD_CMD_BLOCK_STATUS, NBD_CMD_BLOCK_STATUS };
	static const uint64_t lengths[] = { 10, 600, 600, 5000, 5000, 5000, 5000, 90000 };

	*call = (struct trial_call){ .type = types[draw(random, ARRAY_COUNT(types))] };
	if (simple && call->type == NBD_CMD_BLOCK_STATUS) {
		call->type = NBD_CMD_READ;
	}
	if (call->type == NBD_CMD_FLUSH) {
		return;
	}
	call->offset = draw(random, UINT64_C(1) << 40);
	call->length = 1 + draw(random, lengths[draw(random, ARRAY_COUNT(lengths))]);
	call->cut = draw(random, 3) > 0 ? (uint16_t)draw(random, UINT16_MAX) : 0;
	if (!simple && call->type == NBD_CMD_READ && draw(random, 8) == 0) {
		call->flags = NBD_CMD_FLAG_DF;
	}
	if (call->type == NBD_CMD_BLOCK_STATUS) {
		call->length = 1 + draw(random, 1 << 30);
		call->flags = draw(random, 3) == 0 ? NBD_CMD_FLAG_REQ_ONE : 0;
	}
}

/* --- an answer in parts ----------------------------------------------------------------------- */

enum part_kind { PART_DATA, PART_HOLE, PART_NONE, PART_ERROR, PART_STATUS, PART_SIMPLE };

struct part {
	enum part_kind kind;
	bool last;
	uint64_t place;
	uint64_t length;
};

struct answer {
	struct part parts[PARTS_MAX];
	uint32_t count;
	uint32_t next;
};

static void add_part(struct answer *answer, struct part part)
{
	GMB_ASSERT(answer->count < PARTS_MAX);
	answer->parts[answer->count++] = part;
}

static void shuffle(uint64_t *random, struct answer *answer)
{
	for (uint32_t i = answer->count; i > 1; i--) {
		uint32_t other = (uint32_t)draw(random, i);
		struct part kept = answer->parts[i - 1];

		answer->parts[i - 1] = answer->parts[other];
		answer->parts[other] = kept;
	}
}

static void draw_read(uint64_t *random, const struct trial_call *call, struct answer *answer)
{
	uint64_t count = 1 + draw(random, (call->flags & NBD_CMD_FLAG_DF) != 0 ? 1 : 30);
	uint64_t place = 0;

	count = draw(random, 2) == 0 ? 1 : count;
	for (uint64_t i = 0; i < count && place < call->length; i++) {
		uint64_t left = call->length - place;
		uint64_t length = i + 1 == count ? left : 1 + draw(random, left);

		add_part(answer, (struct part){ draw(random, 4) == 0 ? PART_HOLE : PART_DATA, false,
					 place, length });
		place += length;
	}
	if (draw(random, 2) == 0) {
		shuffle(random, answer);
	}
}

/* How a lawful server may answer a call. */
static void draw_answer(uint64_t *random, enum nbd_reply_style style, const struct trial_call *call,
	struct answer *answer)
{
	bool fails = draw(random, 10) == 0;
	uint32_t chunks;

	*answer = (struct answer){ .count = 0 };
	if (style == NBD_REPLIES_SIMPLE ||
		(style == NBD_REPLIES_STRUCTURED && call->type != NBD_CMD_READ &&
			call->type != NBD_CMD_BLOCK_STATUS && draw(random, 4) == 0)) {
		add_part(answer,
			(struct part){ PART_SIMPLE, .last = true, .length = fails ? NBD_EIO : 0 });
		return;
	}
	if (call->type == NBD_CMD_READ) {
		draw_read(random, call, answer);
	} else if (call->type == NBD_CMD_BLOCK_STATUS) {
		add_part(answer, (struct part){ PART_STATUS });
	}
	chunks = answer->count;
	if (fails) {
		/* Somewhere; what came after it may be missing. */
		answer->count = (uint32_t)draw(random, answer->count + 1);
		add_part(answer, (struct part){ PART_ERROR, .length = draw(random, 200) });
		chunks = answer->count;
	}
	if (chunks == 0 || draw(random, 3) == 0) {
		add_part(answer, (struct part){ PART_NONE });
	}
	answer->parts[answer->count - 1].last = true;
}

static void put_status(uint64_t *random, struct stream *stream, uint32_t i, const struct part *part)
{
	const struct trial_call *call = &stream->trial->calls[i];
	struct stream_extent extents[EXTENTS_MAX];
	uint64_t left = call->length;
	uint32_t count = 0;
	uint32_t most = 1 + (uint32_t)draw(random, EXTENTS_MAX);

	most = (call->flags & NBD_CMD_FLAG_REQ_ONE) != 0 ? 1 : most;
	while (count < most && left > 0) {
		extents[count].length = 1 + draw(random, left);
		extents[count].flags = draw(random, 4);
		left -= extents[count].length;
		count++;
	}
	if (draw(random, 4) == 0) {
		extents[count - 1].length += left + draw(random, 1 << 20);
	}
	stream_status(stream, i, part->last ? LAST : 0, TRIAL_ALLOCATION_ID, extents, count);
}

static void put_part(uint64_t *random, struct stream *stream, uint32_t i, const struct part *part)
{
	const struct trial_call *call = &stream->trial->calls[i];
	uint16_t flags = part->last ? LAST : 0;

	switch (part->kind) {
	case PART_DATA:
		stream_data(stream, i, flags, part->place, part->length);
		break;
	case PART_HOLE:
		stream_hole(stream, i, flags, part->place, (uint32_t)part->length);
		break;
	case PART_NONE:
		stream_none(stream, i, flags);
		break;
	case PART_ERROR:
		if (draw(random, 2) == 0) {
			stream_error_offset(stream, i, flags, NBD_EIO, (uint32_t)part->length,
				draw(random, MAX(call->length, UINT64_C(1))));
		} else {
			stream_error(stream, i, flags, NBD_ENOSPC, (uint32_t)part->length);
		}
		break;
	case PART_STATUS:
		put_status(random, stream, i, part);
		break;
	case PART_SIMPLE:
		stream_simple(stream, i, (uint32_t)part->length);
		if (part->length == 0 && call->type == NBD_CMD_READ) {
			stream_content(stream, call->offset, call->length);
		}
		break;
	}
}

/* How far the order of answers is from that of the requests. */
enum disorder { IN_ORDER, NEARLY, INTERLEAVED };

static void draw_stream(
	uint64_t *random, struct trial *trial, struct answer *answers, struct stream *stream)
{
	enum disorder disorder = (enum disorder)draw(random, 3);
	uint32_t open = trial->call_count;
	uint32_t order[CALLS_MAX];
	uint32_t at;

	for (uint32_t i = 0; i < open; i++) {
		order[i] = i;
		draw_answer(random, trial->style, &trial->calls[i], &answers[i]);
	}
	while (open > 0) {
		struct answer *answer;

		at = disorder == IN_ORDER ? 0
		     : disorder == NEARLY ? (uint32_t)draw(random, MIN(open, 2U))
					  : (uint32_t)draw(random, open);
		answer = &answers[order[at]];
		do {
			put_part(random, stream, order[at], &answer->parts[answer->next++]);
		} while (disorder != INTERLEAVED && answer->next < answer->count);
		if (answer->next == answer->count) {
			memmove(order + at, order + at + 1, (--open - at) * sizeof(order[0]));
		}
	}
}

/* --- trials ------------------------------------------------------------------------------------
 */

static void draw_trial(uint64_t *random, struct trial *trial)
{
	*trial = (struct trial){
		.style = (enum nbd_reply_style)draw(random, 3),
		.allocation = true,
		.call_count = 1 + (uint32_t)draw(random, CALLS_MAX),
	};
	for (uint32_t i = 0; i < trial->call_count; i++) {
		draw_call(random, &trial->calls[i], trial->style == NBD_REPLIES_SIMPLE);
	}
}

/* Bytes changed, most often in headers: the payloads say nothing. */
static void change(uint64_t *random, uint8_t *bytes, size_t len)
{
	static const uint8_t values[] = { 0x00, 0x01, 0x7f, 0x80, 0xff };

	for (uint64_t count = 1 + draw(random, 3); count > 0; count--) {
		size_t at = draw(random, MIN(len, (size_t)1 << (5 + draw(random, 14))));

		switch (draw(random, 3)) {
		case 0:
			bytes[at] ^= (uint8_t)(1u << draw(random, 8));
			break;
		case 1:
			bytes[at] = values[draw(random, ARRAY_COUNT(values))];
			break;
		default:
			memmove(bytes + at, bytes + at + 1, len - at - 1);
			break;
		}
	}
}

static void run_seed(uint64_t seed, uint64_t *violations)
{
	struct answer *answers = calloc(CALLS_MAX, sizeof(*answers));
	uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
	struct trial_outcome outcome;
	const char *violation;
	struct stream stream;
	struct trial trial;

	assert_non_null(answers);
	draw_trial(&random, &trial);
	stream_init(&stream, &trial);
	draw_stream(&random, &trial, answers, &stream);
	trial.stream = stream.bytes;
	trial.stream_bytes = stream.len;
	snprintf(running, sizeof(running), "\nseed %llu\n", (unsigned long long)seed);
	outcome = trial_run_all(&trial, &violation);
	assert_null(violation);
	assert_int_equal(outcome.code, 0);
	assert_int_equal(outcome.done_count, trial.call_count);
	for (int i = 1; i <= CHANGES; i++) {
		uint8_t *kept = malloc(stream.len);

		assert_non_null(kept);
		memcpy(kept, stream.bytes, stream.len);
		change(&random, kept, stream.len);
		trial.stream = kept;
		snprintf(running, sizeof(running), "\nseed %llu change %d\n",
			(unsigned long long)seed, i);
		(void)trial_run_all(&trial, &violation);
		*violations += violation != NULL;
		free(kept);
	}
	stream_fini(&stream);
	free(answers);
}

TEST(test_streams_by_chance)
{
	uint64_t violations = 0;

	for (uint64_t i = 0; i < seed_count; i++) {
		run_seed(first_seed + i, &violations);
	}
	/* The changes did break rules, and not always: the comparison means something. */
	assert_true(seed_count < SEEDS || violations > seed_count);
	assert_true(seed_count < SEEDS || violations < seed_count * CHANGES);
}

static void tell_running(int number)
{
	GMB_UNUSED(!write(STDERR_FILENO, running, strlen(running)));
	signal(number, SIG_DFL);
	raise(number);
}

int main(int argc, char **argv)
{
	if (argc == 3) {
		first_seed = strtoull(argv[1], NULL, 10);
		seed_count = strtoull(argv[2], NULL, 10);
	}
	signal(SIGABRT, tell_running);
	return unit_run(NULL, NULL);
}
