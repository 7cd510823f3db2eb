// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "client/client_private.h"
#include "client/guest.h"

/* Target duration of a command of a long range, in nanoseconds, for each millisecond of
 * request_timeout: one sixteenth of request_timeout. */
#define RANGE_LIMIT_NS_PER_MS (UINT64_C(1000000) / 16)

_Static_assert(sizeof(struct request_state) <= sizeof(((struct gmb_request *)0)->private_space),
	"request_state");

uint32_t client_in_flight(const struct gmb_client *client)
{
	return client->requests_in_flight;
}

struct request_state *request_state(struct gmb_request *request)
{
	return (struct request_state *)(void *)request->private_space;
}

struct gmb_request *request_of(struct list_node *node)
{
	void *state = list_entry(node, struct request_state, node);

	return container_of(state, struct gmb_request, private_space);
}

/* --- preparation ------------------------------------------------------------------------------ */

void gmb_prepare_readv(
	struct gmb_request *request, const struct iovec *iov, uint32_t iov_count, uint64_t offset)
{
	gmb_prepare(request, GMB_READ, offset, 0);
	request->iov = iov;
	request->iov_count = iov_count;
	for (uint32_t i = 0; i < iov_count; i++) {
		request->length += iov[i].iov_len;
	}
}

void gmb_prepare_writev(
	struct gmb_request *request, const struct iovec *iov, uint32_t iov_count, uint64_t offset)
{
	gmb_prepare_readv(request, iov, iov_count, offset);
	request->operation = GMB_WRITE;
}

void gmb_prepare_read(struct gmb_request *request, void *buffer, size_t bytes, uint64_t offset)
{
	request->single = (struct iovec){ .iov_base = buffer, .iov_len = bytes };
	gmb_prepare_readv(request, &request->single, 1, offset);
}

void gmb_prepare_write(
	struct gmb_request *request, const void *buffer, size_t bytes, uint64_t offset)
{
	request->single = (struct iovec){ .iov_base = (void *)(uintptr_t)buffer, .iov_len = bytes };
	gmb_prepare_writev(request, &request->single, 1, offset);
}

void gmb_prepare(
	struct gmb_request *request, enum gmb_operation operation, uint64_t offset, uint64_t bytes)
{
	request->operation = (uint8_t)operation;
	request->flags = 0;
	request->offset = offset;
	request->length = bytes;
	request->iov = NULL;
	request->iov_count = 0;
	request->extents = NULL;
	request->extents_max = 0;
}

void gmb_prepare_copy(struct gmb_request *request, uint64_t offset, struct gmb_client *source,
	uint64_t source_offset, uint64_t bytes)
{
	gmb_prepare(request, GMB_COPY, offset, bytes);
	request->source = source;
	request->source_offset = source_offset;
}

void gmb_prepare_status(struct gmb_request *request, struct gmb_extent *extents,
	uint32_t extents_max, uint64_t offset, uint64_t bytes)
{
	gmb_prepare(request, GMB_STATUS, offset, bytes);
	request->extents = extents;
	request->extents_max = extents_max;
}

/* --- checking ------------------------------------------------------------------------------ */

/* Checks that the operation, its flags and the capabilities match. FUA is also accepted if the
 * server has only flushes, because client_request_end() then adds a flush. */
static int check_operation(const struct gmb_client *client, const struct gmb_request *request)
{
	static const struct {
		uint32_t flags;
		uint32_t needs; /* required capability */
		bool writes;
	} rules[] = {
		[GMB_READ] = { .flags = GMB_DF },
		[GMB_WRITE] = { .flags = GMB_FUA, .writes = true },
		[GMB_FLUSH] = { .needs = GMB_CAN_FLUSH },
		[GMB_TRIM] = { .flags = GMB_FUA, .needs = GMB_CAN_TRIM, .writes = true },
		[GMB_ZERO] = { .flags = GMB_FUA | GMB_NO_HOLE | GMB_FAST_ZERO,
			.needs = GMB_CAN_ZERO,
			.writes = true },
		[GMB_CACHE] = { .needs = GMB_CAN_CACHE },
		[GMB_STATUS] = { .flags = GMB_STATUS_ONE, .needs = GMB_CAN_STATUS },
		[GMB_COPY] = { .flags = GMB_FUA, .needs = GMB_CAN_COPY, .writes = true },
	};
	uint32_t can = client->capabilities;

	if (request->operation >= ARRAY_COUNT(rules) ||
		(request->flags & ~rules[request->operation].flags) != 0 ||
		(request->reserved[0] | request->reserved[1] | request->reserved[2]) != 0) {
		return -EINVAL;
	}
	if (rules[request->operation].writes && (can & GMB_CAN_WRITE) == 0) {
		return -EPERM;
	}
	if ((rules[request->operation].needs & ~can) != 0 ||
		((request->flags & GMB_FAST_ZERO) != 0 && (can & GMB_CAN_FAST_ZERO) == 0) ||
		((request->flags & GMB_DF) != 0 && (can & GMB_CAN_DF) == 0) ||
		((request->flags & GMB_FUA) != 0 && (can & (GMB_CAN_FUA | GMB_CAN_FLUSH)) == 0)) {
		return -EOPNOTSUPP;
	}
	return 0;
}

/* Returns whether both clients have the same server process. A client without a connection may not
 * know that its server was restarted as another process, so the addresses are compared then. */
static bool is_same_server(const struct gmb_client *a, const struct gmb_client *b)
{
	return memcmp(a->facts.instance, b->facts.instance, sizeof(a->facts.instance)) == 0 ||
	       ((client_ready_count(a) == 0 || client_ready_count(b) == 0) &&
		       strcmp(gmb_server(a), gmb_server(b)) == 0);
}

/* Returns 0, or why the server cannot copy from source to target. */
static int copy_problem(const struct gmb_client *target, const struct gmb_client *source)
{
	if ((target->capabilities & source->capabilities & GMB_CAN_COPY) == 0) {
		return -EOPNOTSUPP;
	}
	return target->queue == source->queue && is_same_server(target, source) ? 0 : -EXDEV;
}

int gmb_can_copy(const struct gmb_client *target, const struct gmb_client *source)
{
	return copy_problem(target, source) == 0;
}

static bool client_request_overlaps(const struct gmb_request *request)
{
	uint64_t distance = request->offset > request->source_offset
				    ? request->offset - request->source_offset
				    : request->source_offset - request->offset;

	return distance < request->length;
}

static int check_source(const struct gmb_client *client, const struct gmb_request *request)
{
	const struct gmb_client *source = request->source;
	int err;

	if (source == NULL) {
		return -EINVAL;
	}
	if (source->state == CLIENT_DEAD) {
		return -ENOTCONN;
	}
	err = copy_problem(client, source);
	if (err != 0) {
		return err;
	}
	if (!range_inside(request->source_offset, request->length, source->facts.bytes)) {
		return -EINVAL;
	}
	/* The ranges must not overlap. The server would not detect an overlap, because a long copy
	 * is split into commands. */
	return strcmp(client->facts.name, source->facts.name) == 0 &&
			       client_request_overlaps(request)
		       ? -EINVAL
		       : 0;
}

static int check_range(const struct gmb_client *client, const struct gmb_request *request)
{
	const struct carrier_facts *facts = &client->facts;
	uint64_t block = facts->request_block;
	uint64_t sum = 0;

	if (request->operation == GMB_FLUSH) {
		return request->offset == 0 && request->length == 0 ? 0 : -EINVAL;
	}
	if (!range_inside(request->offset, request->length, facts->bytes) ||
		!is_aligned(request->offset, block)) {
		return -EINVAL;
	}
	if (!is_aligned(request->length, block) &&
		request->offset + request->length != facts->bytes) {
		return -EINVAL;
	}
	if (request->operation == GMB_STATUS && request->extents_max == 0) {
		return -EINVAL;
	}
	if (request->operation == GMB_COPY) {
		return check_source(client, request);
	}
	if (request->operation != GMB_READ && request->operation != GMB_WRITE) {
		return 0;
	}
	for (uint32_t i = 0; i < request->iov_count; i++) {
		sum += request->iov[i].iov_len;
	}
	return sum == request->length ? 0 : -EINVAL;
}

static int client_request_check_request(
	const struct gmb_client *client, const struct gmb_request *request)
{
	int err;

	if (client->state == CLIENT_DEAD) {
		return -ENOTCONN;
	}
	if (client->state == CLIENT_CLOSING) {
		return -ESHUTDOWN;
	}
	err = check_operation(client, request);
	return err != 0 ? err : check_range(client, request);
}

/* --- submitting ------------------------------------------------------------------------ */

static void leave_client(struct gmb_client *client, const struct gmb_request *request)
{
	client->requests_in_flight--;
	client->stats.requests++;
	if (request->operation == GMB_COPY) {
		client->copying--;
		if (request->source != NULL) {
			request->source->copies_in_flight--;
		}
	}
}

static void end_now(struct gmb_client *client, struct gmb_request *request, int err)
{
	struct request_state *state = request_state(request);

	state->whole = true; /* all commands were sent; gmb_cancel() returns -EALREADY */
	request->result = err;
	if (err == 0 && request->operation == GMB_STATUS) {
		/* STATUS of an empty range is invalid, because it has no extents */
		request->result = -EINVAL;
	}
	leave_client(client, request);
	list_push_back(&client->queue->ended, &state->node);
}

void request_admit(struct gmb_client *client, struct gmb_request *request)
{
	int err = client_request_check_request(client, request);

	if (err != 0 || (request->length == 0 && request->operation != GMB_FLUSH)) {
		end_now(client, request, err);
	} else {
		list_push_back(&client->waiting, &request_state(request)->node);
	}
}

void gmb_submit_sized(struct gmb_client *client, struct gmb_request *request, size_t request_bytes)
{
	struct request_state *state = request_state(request);

	/* the struct has at least its size of version 0.1.0 */
	GMB_ASSERT(request_bytes >= sizeof(*request));
	GMB_ASSERT(request->in_flight == 0);
	memset(state, 0, sizeof(*state));
	state->client = client;
	list_init(&state->node);
	request->result = 0;
	request->extent_count = 0;
	request->in_flight = 1;
	if (request->operation == GMB_COPY) {
		request->copied = 0;
		state->copied = request->length;
		client->copying++;
		if (request->source != NULL) {
			request->source->copies_in_flight++;
		}
	}
	if (client->explained == request) {
		/* client->explanation was about an earlier use of this request struct */
		client->explained = NULL;
	}
	client->requests_in_flight++;
	if (client->state == CLIENT_OPENING) {
		/* The request is checked when the export is open. */
		list_push_back(&client->waiting, &state->node);
	} else {
		request_admit(client, request);
	}
}

int gmb_cancel(struct gmb_client *client, struct gmb_request *request)
{
	struct request_state *state = request_state(request);

	if (request->in_flight == 0 || state->whole) {
		return -EALREADY;
	}
	if (state->client != client) {
		return -EINVAL;
	}
	state->whole = true;
	list_remove(&state->node); /* remove from client->waiting or client->ranges */
	if (state->parts == 0) {
		if (request->operation == GMB_COPY) {
			request->copied = MIN(state->copied, state->split);
		}
		end_now(client, request, -ECANCELED);
		ring_poll_again(client->queue->ring); /* makes gmb_queue_fd() readable */
	} else if (state->failure == 0) {
		state->failure = -ECANCELED;
	}
	return 0;
}

/* --- long ranges --------------------------------------------------------------------------- */

/* Returns whether a long range can be split into commands. FAST_ZERO cannot, because the server
 * must accept or refuse the whole range. */
static bool client_request_is_cut(const struct gmb_request *request)
{
	return (request->operation == GMB_TRIM || request->operation == GMB_ZERO ||
		       request->operation == GMB_CACHE || request->operation == GMB_COPY) &&
	       (request->flags & GMB_FAST_ZERO) == 0;
}

static uint64_t range_bytes(const struct gmb_client *client, const struct gmb_request *request)
{
	return MAX(
		client->range_bytes[request->operation], (uint64_t)client->facts.block_preferred);
}

bool request_is_range(const struct gmb_client *client, struct gmb_request *request)
{
	return client_request_is_cut(request) && !request_state(request)->flushing &&
	       request->length > range_bytes(client, request);
}

/* Returns the length of the next command: up to a multiple of range_bytes(), so that no server
 * block is split. */
static uint64_t range_part(
	const struct gmb_client *client, const struct gmb_request *request, uint64_t offset)
{
	uint64_t bytes = range_bytes(client, request);

	return align_down(offset, bytes) + bytes - offset;
}

/* Adapts the size of the commands into which long ranges are split, to the duration of one command
 * that has ended. */
static void range_learn(struct gmb_client *client, const struct command *command)
{
	uint64_t *bytes = &client->range_bytes[command->operation];
	uint64_t limit_ns = client->options.request_timeout_ms * RANGE_LIMIT_NS_PER_MS;
	uint64_t took_ns = ring_now_ns(client->queue->ring) - command->begun_ns;

	if (took_ns > limit_ns) {
		*bytes = MAX(*bytes / 2, (uint64_t)CLIENT_RANGE_BYTES_MIN);
	} else if (took_ns < limit_ns / 8 && command->length >= *bytes) {
		*bytes = MIN(*bytes * 2, CLIENT_RANGE_BYTES_MAX);
	}
}

/* --- splitting ----------------------------------------------------------------------------- */

/* Returns the maximum length of a command that starts at this offset. */
static uint64_t part_max(
	const struct gmb_client *client, const struct gmb_request *request, uint64_t offset)
{
	const struct carrier_facts *facts = &client->facts;
	uint32_t payload_max = MIN(facts->payload_max, (uint32_t)CLIENT_PAYLOAD_MAX);
	/* Commands end at multiples of the preferred block size. This size is within the server's
	 * limit for payload, but may exceed CLIENT_PAYLOAD_MAX; in this case commands end at
	 * multiples of the minimum block size. */
	uint32_t align = facts->block_preferred <= payload_max ? facts->block_preferred
							       : facts->block_minimum;

	if (request->operation == GMB_READ || request->operation == GMB_WRITE) {
		return align_down(payload_max, align);
	}
	if (client_request_is_cut(request)) {
		return MIN(facts->range_max, range_part(client, request, offset));
	}
	return facts->range_max == UINT64_MAX ? UINT64_MAX : align_down(facts->range_max, align);
}

bool request_split(struct gmb_client *client, struct gmb_request *request, struct command *command)
{
	struct request_state *state = request_state(request);
	uint64_t left = request->length - state->split;
	uint64_t offset = request->offset + state->split;
	uint64_t length = MIN(left, part_max(client, request, offset));
	bool has_fua = (client->capabilities & GMB_CAN_FUA) != 0;

	GMB_ASSERT(!state->whole);
	command->request = request;
	command->covers = client->changes;
	state->parts++;
	if (state->flushing) {
		command->operation = GMB_FLUSH;
		command->flags = 0;
		command->offset = 0;
		command->length = 0;
		state->whole = true;
		return false;
	}
	command->operation = request->operation;
	command->flags = has_fua ? request->flags : request->flags & ~(uint32_t)GMB_FUA;
	command->offset = offset;
	command->length = length;
	command->iov = request->iov;
	command->iov_count = request->iov_count;
	command->iov_skip = state->split;
	if (request->operation == GMB_COPY) {
		command->source = &request->source->facts;
		command->source_offset = request->source_offset + state->split;
		command->copied = (struct command_copied){ 0 };
	}
	state->split += length;
	/* One command is sufficient for STATUS: the program requests the extents that are
	 * missing. */
	state->whole = state->split == request->length || request->operation == GMB_STATUS;
	return !state->whole;
}

/* --- results ------------------------------------------------------------------------------- */

/* Ends a request if it is completely split into commands and all commands have returned. */
static void client_request_end(struct gmb_client *client, struct gmb_request *request)
{
	struct request_state *state = request_state(request);

	if (state->failure == 0 && !state->flushing && (request->flags & GMB_FUA) != 0 &&
		(client->capabilities & GMB_CAN_FUA) == 0) {
		/* The server has no FUA. A flush after the write has the same effect. */
		if (client->state != CLIENT_DEAD) {
			state->flushing = true;
			state->whole = false;
			list_push_back(&client->waiting, &state->node);
			return;
		}
		state->failure = -ENOTCONN; /* not durable, because a flush is impossible */
	}
	if (state->failure == 0 && request->operation == GMB_READ) {
		client->stats.bytes_read += request->length;
	} else if (state->failure == 0 && request->operation == GMB_WRITE) {
		client->stats.bytes_written += request->length;
	}
	if (request->operation == GMB_COPY) {
		request->copied = MIN(state->copied, state->split);
	}
	request->result = state->failure;
	leave_client(client, request);
	queue_tell(client->queue, request);
}

void request_fail(struct gmb_client *client, struct gmb_request *request, int err)
{
	struct request_state *state = request_state(request);

	if (state->failure == 0) {
		state->failure = err;
	}
	if (!state->whole) {
		state->whole = true;
		list_remove(&state->node); /* remove from client->waiting or client->ranges */
	}
	if (state->parts == 0) {
		client_request_end(client, request);
	}
}

/* Counts changes and flushes, to know whether a crash of the server's host could lose changes. */
static void note_durability(struct gmb_client *client, const struct command *command)
{
	switch ((enum gmb_operation)command->operation) {
	case GMB_WRITE:
	case GMB_TRIM:
	case GMB_ZERO:
	case GMB_COPY:
		client->changes += (command->flags & GMB_FUA) == 0;
		break;
	case GMB_FLUSH:
		client->flushed = MAX(client->flushed, command->covers);
		break;
	case GMB_READ:
	case GMB_CACHE:
	case GMB_STATUS:
		break;
	}
}

/* Only the bytes before the first failure are reported as copied, even if later parts were
 * copied. */
static void take_copied(struct gmb_client *client, const struct command *command)
{
	const struct command_copied *copied = &command->copied;
	struct gmb_request *request = command->request;
	struct request_state *state = request_state(request);

	if (command->result != 0) {
		state->copied =
			MIN(state->copied, command->offset - request->offset + copied->bytes);
		return;
	}
	client->stats.bytes_copied_reflink += copied->by_way[0];
	client->stats.bytes_copied_range += copied->by_way[1];
	client->stats.bytes_copied_device += copied->by_way[2];
	client->stats.bytes_copied_ram += copied->by_way[3];
	client->stats.bytes_copied_zeroes += copied->by_way[4];
}

/* The command is returned to the free list before done() is called, which can then submit another
 * request. */
void request_command_done(struct gmb_client *client, struct command *command, const char *text)
{
	struct gmb_request *request = command->request;
	struct request_state *state = request_state(request);
	int result = command->result;

	list_push_back(&client->free_commands, &command->node);
	state->parts--;
	if (command->begun_ns != 0) {
		client->ranges_in_flight--;
		if (result == 0) {
			range_learn(client, command);
		}
	}
	if (command->operation == GMB_COPY) {
		take_copied(client, command);
	}
	if (result != 0) {
		if (state->failure == 0) {
			client->explained = request;
			snprintf(client->explanation, sizeof(client->explanation), "%s", text);
		}
		request_fail(client, request, result);
		return;
	}
	note_durability(client, command);
	if (state->parts == 0 && state->whole) {
		client_request_end(client, request);
	}
}

/* --- extents ------------------------------------------------------------------------------- */

/* Merges an extent with the last one only if both are of the same command, because
 * request_command_again() must be able to remove the extents of one command. */
static void client_request_extent_add(
	struct command *command, uint64_t offset, uint64_t length, uint32_t flags)
{
	struct gmb_request *request = command->request;
	struct gmb_extent *last =
		request->extent_count > 0 ? &request->extents[request->extent_count - 1] : NULL;

	if (last != NULL && last->flags == flags && last->offset + last->bytes == offset &&
		last->offset >= command->offset) {
		last->bytes += length;
	} else if (request->extent_count < request->extents_max) {
		request->extents[request->extent_count++] = (struct gmb_extent){
			.offset = offset,
			.bytes = length,
			.flags = flags,
		};
	}
}

void command_hole(struct command *command, uint64_t offset, uint64_t length)
{
	client_request_extent_add(command, offset, length, GMB_EXTENT_HOLE | GMB_EXTENT_ZERO);
}

void command_extent(struct command *command, uint64_t described, uint64_t length, uint32_t flags)
{
	struct gmb_request *request = command->request;
	uint64_t offset = command->offset + described;

	/* The extents must be contiguous, so after one that did not fit, all later ones are dropped
	 * as well. */
	if (request->extent_count > 0) {
		const struct gmb_extent *last = &request->extents[request->extent_count - 1];

		if (last->offset + last->bytes != offset) {
			return;
		}
	}
	client_request_extent_add(command, offset, length, flags);
}

void request_command_again(struct command *command)
{
	struct gmb_request *request = command->request;
	uint64_t start = command->offset;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < request->extent_count; i++) {
		if (request->extents[i].offset < start ||
			request->extents[i].offset - start >= command->length) {
			request->extents[kept++] = request->extents[i];
		}
	}
	request->extent_count = kept;
}

/* --- error texts ------------------------------------------------------------------------------ */

static const char *reason_text(const struct gmb_client *client, const struct gmb_request *request)
{
	switch (-request->result) {
	case 0:
		return "success";
	case EINVAL:
		return "invalid request: outside the export, not in whole blocks, an overlapping "
		       "copy, or flags that the operation does not support";
	case EOPNOTSUPP:
		return "the server does not offer this operation";
	case EPERM:
		return (client->capabilities & GMB_CAN_WRITE) != 0 ? "the server does not permit it"
								   : "the export is read-only";
	case EXDEV:
		return "the source of the copy has another server, or its client another queue";
	case ECANCELED:
		return "cancelled";
	case ENOENT:
		return "the source of the copy is not visible to this client";
	case ESTALE:
		return "writes to the source of the copy may have been lost";
	case ENOTCONN:
		return client->trouble.text[0] != '\0' ? client->trouble.text
						       : "the connection is closed";
	default:
		return strerror(-request->result);
	}
}

const char *gmb_explain(const struct gmb_client *client, const struct gmb_request *request,
	char *text, size_t text_bytes)
{
	static const char *const names[] = {
		[GMB_READ] = "read",
		[GMB_WRITE] = "write",
		[GMB_FLUSH] = "flush",
		[GMB_TRIM] = "trim",
		[GMB_ZERO] = "zero",
		[GMB_CACHE] = "cache",
		[GMB_STATUS] = "block status",
		[GMB_COPY] = "copy",
	};
	const char *name =
		request->operation < ARRAY_COUNT(names) ? names[request->operation] : "request";
	bool said = client->explained == request && client->explanation[0] != '\0' &&
		    request->result != 0;
	char range[80] = "";

	if (request->operation != GMB_FLUSH) {
		snprintf(range, sizeof(range), " of %llu bytes at %llu",
			(unsigned long long)request->length, (unsigned long long)request->offset);
	}
	snprintf(text, text_bytes, "%s: %s%s: %s%s%s%s", client->uri_text, name, range,
		reason_text(client, request), said ? " (server message: \"" : "",
		said ? client->explanation : "", said ? "\")" : "");
	return text;
}
