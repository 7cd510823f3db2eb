// SPDX-License-Identifier: Apache-2.0
#include "nbd_client_trial.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	SERIAL = 77,
	GUARD_BYTES = 32,
	GUARD = 0xe7,
	PIECES_MAX = 40,
	SKIP_MAX = 100,
	OUTPUT_IOV_MAX = TRIAL_CALLS_MAX * (PIECES_MAX + 2),
};

/* A call with its memory: pieces with guards between them. */
struct subject {
	struct nbd_call call; /* first: the handlers get a pointer to it */
	struct run *run;
	struct model_call *expected;
	uint8_t *block;
	size_t block_bytes;
	struct iovec pieces[PIECES_MAX];
	uint32_t piece_count;
	uint64_t story;
	uint32_t done;
	uint8_t *payload; /* WRITE: what the memory holds */
};

struct run {
	const struct trial *trial;
	const struct trial_way *way;
	struct trial_outcome *outcome;
	struct model model;
	struct model_call expected[TRIAL_CALLS_MAX];
	struct model_call size_expected;
	struct subject subjects[TRIAL_CALLS_MAX];
	struct nbd_facts facts;
	struct nbd_client client;
	uint64_t random;
	uint64_t sent_bytes;
	uint64_t request_bytes; /* of all requests */
	uint32_t resized;	/* how often it was told */
};

uint64_t trial_cookie(const struct trial *trial, uint32_t i)
{
	return (uint64_t)(SERIAL + i) << 10 | (i == trial->call_count ? 0 : i);
}

static bool asks_size(const struct trial *trial)
{
	return trial->says_size && trial->style != NBD_REPLIES_SIMPLE;
}

uint8_t trial_content(uint64_t offset)
{
	uint64_t mixed = (offset / 7 + 1) * UINT64_C(0x9e3779b97f4a7c15);

	return (uint8_t)(mixed >> 56) ^ (uint8_t)offset;
}

static uint64_t random_next(struct run *run)
{
	run->random ^= run->random << 13;
	run->random ^= run->random >> 7;
	run->random ^= run->random << 17;
	return run->random;
}

/* --- memory of the calls ------------------------------------------------------------------- */

/* Cuts skip + length bytes into pieces of which some may be empty. */
static void subject_cut(struct subject *subject, const struct trial_call *from)
{
	uint64_t skip = from->cut % SKIP_MAX;
	uint64_t left = skip + from->length;
	uint32_t count = 1 + from->cut % (PIECES_MAX - 1);
	uint64_t state = from->cut | 1;
	size_t at = GUARD_BYTES;

	subject->block_bytes = (size_t)left + (count + 1) * (size_t)GUARD_BYTES;
	subject->block = malloc(subject->block_bytes);
	GMB_ASSERT(subject->block != NULL);
	memset(subject->block, GUARD, subject->block_bytes);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t part = left;

		state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
		if (i + 1 < count && left > 0) {
			part = (state >> 33) % (2 * left / (count - i) + 1);
		}
		subject->pieces[i] =
			(struct iovec){ .iov_base = subject->block + at, .iov_len = part };
		at += part + GUARD_BYTES;
		left -= part;
	}
	GMB_ASSERT(left == 0 && at == subject->block_bytes);
	subject->piece_count = count;
	subject->call.iov = subject->pieces;
	subject->call.iov_count = count;
	subject->call.iov_skip = skip;
}

static bool is_guard(const uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (bytes[i] != GUARD) {
			return false;
		}
	}
	return true;
}

/* Guards are whole, and the memory holds what is wanted (NULL: anything). */
static void check_memory(const struct subject *subject, const uint8_t *wanted)
{
	const uint8_t *at = subject->block;
	uint64_t passed = 0;

	for (uint32_t i = 0; i < subject->piece_count; i++) {
		const uint8_t *base = subject->pieces[i].iov_base;
		size_t len = subject->pieces[i].iov_len;
		uint64_t iov_skip = subject->call.iov_skip;
		size_t skip = passed < iov_skip ? MIN(iov_skip - passed, len) : 0;

		GMB_ASSERT(is_guard(at, (size_t)(base - at)));
		GMB_ASSERT(is_guard(base, skip));
		if (wanted != NULL && len > skip) {
			GMB_ASSERT(memcmp(base + skip, wanted + (passed + skip - iov_skip),
					   len - skip) == 0);
		}
		passed += len;
		at = base + len;
	}
	GMB_ASSERT(is_guard(at, (size_t)(subject->block + subject->block_bytes - at)));
}

/* Puts bytes where the call's memory is. */
static void memory_fill(struct subject *subject, const uint8_t *bytes)
{
	uint64_t passed = 0;

	for (uint32_t i = 0; i < subject->piece_count; i++) {
		uint8_t *base = subject->pieces[i].iov_base;
		size_t len = subject->pieces[i].iov_len;
		uint64_t iov_skip = subject->call.iov_skip;
		size_t skip = passed < iov_skip ? MIN(iov_skip - passed, len) : 0;

		if (len > skip) {
			memcpy(base + skip, bytes + (passed + skip - iov_skip), len - skip);
		}
		passed += len;
	}
}

/* --- the owner's part ----------------------------------------------------------------------- */

static void on_done(struct nbd_client *client, struct nbd_call *call)
{
	struct subject *subject = (struct subject *)call;
	struct run *run = subject->run;
	const struct model_call *expected = subject->expected;
	uint32_t i = (uint32_t)(subject - run->subjects);

	GMB_ASSERT(client == &run->client);
	GMB_ASSERT(subject->done++ == 0);
	GMB_ASSERT(expected->done);
	GMB_ASSERT(call->result == nbd_error_to_errno(expected->error));
	GMB_ASSERT(call->intervals == NULL);
	GMB_ASSERT(strlen(client->text) < sizeof(client->text));
	run->outcome->results[i] = call->result;
	memcpy(run->outcome->said[i], client->text, sizeof(client->text));
	run->outcome->done_count++;
	if (call->result != 0) {
		return;
	}
	GMB_ASSERT(subject->story == expected->story);
	if (call->type == NBD_CMD_READ) {
		GMB_ASSERT(call->covered == call->length);
		check_memory(subject, expected->memory);
	}
}

static void on_hole(
	struct nbd_client *client, struct nbd_call *call, uint64_t offset, uint64_t length)
{
	struct subject *subject = (struct subject *)call;

	GMB_ASSERT(call->type == NBD_CMD_READ && length > 0);
	GMB_ASSERT(range_inside(offset - call->offset, length, call->length));
	subject->story = model_story_hole(subject->story, offset, length);
}

static void on_extent(
	struct nbd_client *client, struct nbd_call *call, uint64_t length, uint32_t flags)
{
	struct subject *subject = (struct subject *)call;

	GMB_ASSERT(call->type == NBD_CMD_BLOCK_STATUS && length > 0);
	GMB_ASSERT(range_inside(call->covered, length, call->length));
	subject->story = model_story_extent(subject->story, length, flags);
}

static void on_resized(struct nbd_client *client)
{
	struct run *run = container_of(client, struct run, client);

	GMB_ASSERT(run->resized++ == 0);
	GMB_ASSERT(run->size_expected.done && run->size_expected.error == 0);
	GMB_ASSERT(client->size == run->model.size && client->size != TRIAL_SIZE);
}

static const struct nbd_client_handler handler = {
	.done = on_done,
	.hole = on_hole,
	.extent = on_extent,
	.resized = on_resized,
};

/* --- begin and end -------------------------------------------------------------------------- */

static void subject_begin(struct run *run, uint32_t i)
{
	const struct trial_call *from = &run->trial->calls[i];
	struct subject *subject = &run->subjects[i];
	struct model_call *expected = &run->expected[i];
	*expected = (struct model_call){
		.type = from->type,
		.flags = from->flags,
		.offset = from->offset,
		.length = from->length,
		.cookie = trial_cookie(run->trial, i),
	};
	model_call_init(expected);
	subject->run = run;
	subject->expected = expected;
	subject->call = (struct nbd_call){
		.type = from->type,
		.flags = from->flags,
		.offset = from->offset,
		.length = from->length,
	};
	run->outcome->results[i] = 1;
	if (from->type == NBD_CMD_READ || from->type == NBD_CMD_WRITE) {
		GMB_ASSERT(from->length > 0 && from->length <= TRIAL_BYTES_MAX);
		subject_cut(subject, from);
	}
	if (from->type == NBD_CMD_WRITE) {
		subject->payload = malloc(from->length);
		GMB_ASSERT(subject->payload != NULL);
		for (uint64_t at = 0; at < from->length; at++) {
			subject->payload[at] = (uint8_t)~trial_content(from->offset + at);
		}
		memory_fill(subject, subject->payload);
	}
	nbd_client_add(&run->client, &subject->call);
	GMB_ASSERT(subject->call.cookie == expected->cookie);
	run->request_bytes += run->trial->style == NBD_REPLIES_EXTENDED
				      ? sizeof(struct nbd_wire_extended_request)
				      : sizeof(struct nbd_wire_request);
	run->request_bytes += from->type == NBD_CMD_WRITE ? from->length : 0;
}

static void run_begin(struct run *run)
{
	const struct trial *trial = run->trial;

	memset(run->outcome, 0, sizeof(*run->outcome));
	run->random = run->way->seed * 2 + 1;
	run->facts = (struct nbd_facts){
		.style = trial->style,
		.allocation = trial->allocation,
		.allocation_id = TRIAL_ALLOCATION_ID,
		.says_size = trial->says_size,
		.says_alive = trial->says_alive,
		.size = TRIAL_SIZE,
	};
	nbd_client_init(&run->client, &handler, &run->facts, SERIAL);
	for (uint32_t i = 0; i < trial->call_count; i++) {
		subject_begin(run, i);
	}
	if (asks_size(trial)) {
		nbd_client_watch_size(&run->client);
		run->size_expected = (struct model_call){
			.type = NBD_CMD_BLOCK_STATUS,
			.offset = TRIAL_SIZE,
			.cookie = trial_cookie(trial, trial->call_count),
		};
		run->request_bytes += trial->style == NBD_REPLIES_EXTENDED
					      ? sizeof(struct nbd_wire_extended_request)
					      : sizeof(struct nbd_wire_request);
	}
	run->model = (struct model){
		.style = (enum model_style)trial->style,
		.allocation = trial->allocation,
		.allocation_id = TRIAL_ALLOCATION_ID,
		.says_alive = trial->says_alive,
		.size_call = asks_size(trial) ? &run->size_expected : NULL,
		.size = TRIAL_SIZE,
		.calls = run->expected,
		.call_count = trial->call_count,
	};
	model_run(&run->model, trial->stream, trial->stream_bytes);
}

/* After the last byte: what is left can be taken back, everything is as it should be. */
static void run_end(struct run *run)
{
	struct nbd_call *call;
	bool was_sent;

	run->outcome->moved_bytes = run->client.moved_bytes;
	while ((call = nbd_client_take_back(&run->client, &was_sent)) != NULL) {
		struct subject *subject = (struct subject *)call;

		GMB_ASSERT(was_sent && subject->done++ == 0);
		/* It may be answered already, if the last of its bytes were not sent yet. */
		GMB_ASSERT(subject->expected->done == call->answered);
	}
	GMB_ASSERT(run->client.call_count == 0 && run->client.free_count == NBD_CLIENT_SLOTS_MAX);
	nbd_client_fini(&run->client);
	for (uint32_t i = 0; i < run->trial->call_count; i++) {
		struct subject *subject = &run->subjects[i];

		bool is_read = subject->call.type == NBD_CMD_READ;
		bool whole = run->outcome->results[i] == 0;

		GMB_ASSERT(subject->done == 1);
		if (subject->block != NULL) {
			/* What is done stays as it was. */
			check_memory(subject, !is_read ? subject->payload
					      : whole  ? subject->expected->memory
						       : NULL);
		}
		free(subject->payload);
		free(subject->block);
		model_call_fini(&run->expected[i]);
	}
}

/* --- sending -------------------------------------------------------------------------------- */

/* The byte of the requests at a place, as it must be sent. */
static void check_output(struct run *run, const struct iovec *iov, uint32_t count)
{
	uint64_t total = 0;

	for (uint32_t i = 0; i < count; i++) {
		GMB_ASSERT(iov[i].iov_len > 0);
		total += iov[i].iov_len;
	}
	GMB_ASSERT(total == run->request_bytes - run->sent_bytes);
	if (run->sent_bytes == 0 && count > 0) {
		bool extended = run->trial->style == NBD_REPLIES_EXTENDED;
		const uint8_t *head = iov[0].iov_base;
		struct be32 magic;

		GMB_ASSERT(iov[0].iov_len == (extended ? 32u : 28u));
		memcpy(&magic, head, sizeof(magic));
		GMB_ASSERT(be32_get(magic) ==
			   (extended ? NBD_EXTENDED_REQUEST_MAGIC : NBD_REQUEST_MAGIC));
		GMB_ASSERT(memcmp(head + 8,
				   run->trial->call_count > 0 ? &run->expected[0].cookie
							      : &run->size_expected.cookie,
				   8) == 0);
	}
}

static void send_some(struct run *run, uint64_t bytes)
{
	static struct iovec iov[OUTPUT_IOV_MAX];
	uint32_t count = nbd_client_output(&run->client, iov, OUTPUT_IOV_MAX);

	check_output(run, iov, count);
	bytes = MIN(bytes, run->request_bytes - run->sent_bytes);
	run->sent_bytes += bytes;
	nbd_client_sent(&run->client, bytes);
}

/* --- receiving ------------------------------------------------------------------------------ */

static size_t piece_length(struct run *run, size_t room)
{
	size_t most = room;

	switch (run->way->split) {
	case TRIAL_WHOLE:
		break;
	case TRIAL_BYTES:
		most = 1;
		break;
	case TRIAL_RANDOM:
		most = 1 + random_next(run) % ((size_t)1 << random_next(run) % 18);
		break;
	case TRIAL_CHUNKY:
		most = 1448;
		break;
	}
	return MIN(most, room);
}

static void scatter(const struct iovec *iov, uint32_t count, const uint8_t *bytes, size_t len)
{
	for (uint32_t i = 0; i < count && len > 0; i++) {
		size_t part = MIN(len, iov[i].iov_len);

		memcpy(iov[i].iov_base, bytes, part);
		bytes += part;
		len -= part;
	}
	GMB_ASSERT(len == 0);
}

static int receive_some(struct run *run, const uint8_t *bytes, size_t len, size_t *taken)
{
	const struct iovec *iov;
	uint32_t count;
	size_t room;
	size_t total = 0;
	bool whole;
	size_t part;

	iov = nbd_client_input(&run->client, &count, &room, &whole);
	if (run->way->split == TRIAL_RANDOM && random_next(run) % 8 == 0) {
		nbd_client_input_drop(&run->client);
		iov = nbd_client_input(&run->client, &count, &room, &whole);
	}
	GMB_ASSERT(count > 0 && count <= NBD_CLIENT_IOV_MAX);
	for (uint32_t i = 0; i < count; i++) {
		GMB_ASSERT(iov[i].iov_len > 0);
		total += iov[i].iov_len;
	}
	GMB_ASSERT(total == room);
	/* "whole" promises that the server will send all of it. */
	GMB_ASSERT(!whole || run->client.state == NBD_CLIENT_DATA ||
		   run->client.state == NBD_CLIENT_ZERO);
	if (run->way->is_lent && !whole) {
		GMB_ASSERT(count == 1 &&
			   iov[0].iov_base == run->client.stage + run->client.stage_bytes);
	}
	if (run->client.state == NBD_CLIENT_ZERO) {
		part = piece_length(run, iov[0].iov_len);
		memset(iov[0].iov_base, 0, part);
		*taken = 0;
		return nbd_client_received(&run->client, part, &run->outcome->error);
	}
	if (run->way->send_slowly && random_next(run) % 2 == 0) {
		send_some(run, random_next(run) % 200); /* while the receive is under way */
	}
	part = piece_length(run, MIN(room, len));
	scatter(iov, count, bytes, part);
	*taken = part;
	return nbd_client_received(&run->client, part, &run->outcome->error);
}

static void receive_all(struct run *run)
{
	const struct trial *trial = run->trial;
	size_t at = 0;

	while ((at < trial->stream_bytes || run->client.state == NBD_CLIENT_ZERO) &&
		run->outcome->code == 0) {
		size_t taken;

		run->outcome->code =
			receive_some(run, trial->stream + at, trial->stream_bytes - at, &taken);
		at += taken;
	}
}

static void check_verdict(const struct run *run)
{
	const struct trial_outcome *outcome = run->outcome;

	if (run->model.violation == NULL) {
		GMB_ASSERT(outcome->code == 0);
	} else {
		GMB_ASSERT(outcome->code == -EPROTO && outcome->error.code == -EPROTO);
		GMB_ASSERT(strstr(outcome->error.text, "(rule") != NULL ||
			   strstr(outcome->error.text, "(x-gmblock:") != NULL);
		GMB_ASSERT(strstr(outcome->error.text, "...") == NULL);
	}
}

void trial_run(const struct trial *trial, const struct trial_way *way,
	struct trial_outcome *outcome, const char **violation_out)
{
	struct run *run = calloc(1, sizeof(*run));

	GMB_ASSERT(run != NULL);
	run->trial = trial;
	run->way = way;
	run->outcome = outcome;
	run_begin(run);
	run->client.is_lent = way->is_lent;
	send_some(run, way->send_slowly ? 0 : UINT64_MAX);
	receive_all(run);
	check_verdict(run);
	if (outcome->code == 0) {
		/* A call that was answered before it was wholly sent is done now. */
		send_some(run, UINT64_MAX);
		GMB_ASSERT(outcome->done_count == run->model.done_count);
		GMB_ASSERT(run->client.size == run->model.size);
		GMB_ASSERT(run->resized == (run->model.size != TRIAL_SIZE));
		GMB_ASSERT(
			run->client.size_asked == (asks_size(trial) && !run->size_expected.done));
	}
	if (violation_out != NULL) {
		*violation_out = run->model.violation;
	}
	run_end(run);
	free(run);
}

struct trial_outcome trial_run_all(const struct trial *trial, const char **violation_out)
{
	static const struct trial_way ways[] = {
		{ .split = TRIAL_WHOLE },
		{ .split = TRIAL_BYTES },
		{ .split = TRIAL_CHUNKY },
		{ .split = TRIAL_RANDOM, .seed = 1 },
		{ .split = TRIAL_RANDOM, .seed = 2 },
		{ .split = TRIAL_WHOLE, .send_slowly = true, .seed = 3 },
		{ .split = TRIAL_BYTES, .send_slowly = true, .seed = 4 },
		{ .split = TRIAL_RANDOM, .send_slowly = true, .seed = 5 },
		{ .split = TRIAL_RANDOM, .send_slowly = true, .seed = 6 },
		{ .split = TRIAL_WHOLE, .is_lent = true },
		{ .split = TRIAL_BYTES, .is_lent = true },
		{ .split = TRIAL_RANDOM, .is_lent = true, .seed = 7 },
		{ .split = TRIAL_RANDOM, .is_lent = true, .send_slowly = true, .seed = 8 },
	};
	struct trial_outcome first;
	struct trial_outcome other;

	trial_run(trial, &ways[0], &first, violation_out);
	for (size_t i = 1; i < ARRAY_COUNT(ways); i++) {
		trial_run(trial, &ways[i], &other, NULL);
		GMB_ASSERT(other.code == first.code);
		GMB_ASSERT(strcmp(other.error.text, first.error.text) == 0);
	}
	return first;
}
