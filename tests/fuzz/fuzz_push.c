// SPDX-License-Identifier: Apache-2.0
/*
 * Messages of push as each side parses them, the head of a piece, and tickets. The first byte
 * chooses which; the range that pieces have to lie in follows from the length.
 */
#include "fuzz.h"
#include "push/wire.h"

static const uint8_t *message;
static size_t message_bytes;

static void check_inside(const struct message_text *text, size_t max)
{
	const uint8_t *at = (const uint8_t *)text->bytes;

	GMB_ASSERT(text->length <= max);
	GMB_ASSERT(text->length == 0 ||
		   (at >= message && text->length <= (size_t)(message + message_bytes - at)));
}

static void check_pieces(uint64_t offset, uint64_t length, uint64_t total, uint64_t max)
{
	GMB_ASSERT(offset % PUSH_PIECE_BYTES == 0 && length > 0 && length <= max);
	GMB_ASSERT(offset < total && length <= total - offset);
}

static void coordinators(uint8_t kind)
{
	struct push_grant grant;
	struct push_start start;
	struct push_wire_job_number job;
	struct push_look look;
	bool known;

	if (kind == 0 && push_parse(PUSH_LOOK, message, message_bytes, &look) == NULL) {
		check_inside(&look.name, PUSH_NAME_BYTES_MAX);
	} else if (kind == 1 && push_parse(PUSH_GRANT, message, message_bytes, &grant) == NULL) {
		check_inside(&grant.name, PUSH_NAME_BYTES_MAX);
		check_inside(&grant.source_name, PUSH_NAME_BYTES_MAX);
		GMB_ASSERT(grant.head.length > 0 && grant.head.offset + grant.head.length > 0);
	} else if (kind == 2 && push_parse(PUSH_START, message, message_bytes, &start) == NULL) {
		check_inside(&start.name, PUSH_NAME_BYTES_MAX);
		check_inside(&start.uri, PUSH_URI_BYTES_MAX);
		GMB_ASSERT(start.head.length > 0);
		GMB_ASSERT((start.head.flags & PUSH_NBD) == 0 ||
			   (start.ticket.length == start.head.length && start.ticket.job == 0));
	} else if (kind == 3) {
		(void)!push_parse(PUSH_JOBS, message, message_bytes, &job);
		(void)!push_hello_parse(message, message_bytes, &known);
	}
}

static void servers(uint8_t kind)
{
	struct push_answer answer;
	struct push_job_message job;
	struct push_wire_welcome welcome;

	if (kind == 4 && push_parse(PUSH_ANSWER, message, message_bytes, &answer) == NULL) {
		check_inside(&answer.text, PUSH_TEXT_BYTES_MAX);
	} else if (kind == 5 && push_parse(PUSH_JOB, message, message_bytes, &job) == NULL) {
		check_inside(&job.name, UINT16_MAX);
		check_inside(&job.peer, UINT16_MAX);
		check_inside(&job.text, UINT16_MAX);
		GMB_ASSERT(job.head.state < PUSH_JOB_STATE_END);
		GMB_ASSERT(job.head.zeroes <= job.head.length &&
			   job.head.skipped <= job.head.length - job.head.zeroes);
	} else if (kind == 6) {
		(void)!push_welcome_parse(message, message_bytes, &welcome);
	}
}

static void sources(uint8_t kind, uint64_t total)
{
	struct push_wire_range zero;
	struct push_wire_check check;
	struct push_wire_flush flush;
	struct push_wire_piece piece;

	if (kind == 7 && push_parse(PUSH_ZERO, message, message_bytes, &zero) == NULL &&
		push_zero_check(&zero, total) == NULL) {
		check_pieces(zero.offset, zero.length, total, PUSH_ZERO_BYTES_MAX);
	} else if (kind == 8 && push_parse(PUSH_CHECK, message, message_bytes, &check) == NULL &&
		   push_check_check(&check, total) == NULL) {
		check_pieces(check.offset, check.length, total, PUSH_PIECE_BYTES);
	} else if (kind == 9) {
		(void)!push_parse(PUSH_FLUSH, message, message_bytes, &flush);
	} else if (kind == 10 && message_bytes >= sizeof(piece)) {
		memcpy(&piece, message, sizeof(piece));
		if (push_piece_check(&piece, total) == NULL) {
			check_pieces(piece.offset, piece.length, total, PUSH_PIECE_BYTES);
		}
	}
}

static void destinations(uint8_t kind)
{
	struct push_wire_used used;
	struct push_wire_range zeroed;
	struct push_wire_checked checked;
	struct push_failed failed;

	if (kind == 11 && push_parse(PUSH_USED, message, message_bytes, &used) == NULL) {
		GMB_ASSERT(used.slots >= 1 && used.slots <= PUSH_SLOTS);
	} else if (kind == 12) {
		(void)!push_parse(PUSH_ZEROED, message, message_bytes, &zeroed);
	} else if (kind == 13 &&
		   push_parse(PUSH_CHECKED, message, message_bytes, &checked) == NULL) {
		GMB_ASSERT(checked.same <= 1);
	} else if (kind == 14 && push_parse(PUSH_FAILED, message, message_bytes, &failed) == NULL) {
		check_inside(&failed.text, PUSH_TEXT_BYTES_MAX);
		GMB_ASSERT(failed.head.status != 0);
	}
}

static void flows(uint8_t kind)
{
	struct push_wire_join join;
	struct push_wire_drop drop;
	struct push_wire_dropped dropped;

	if (kind == 16 && push_parse(PUSH_JOIN, message, message_bytes, &join) == NULL) {
		GMB_ASSERT(join.number > 0 && join.number < PUSH_FLOWS_MAX);
	} else if (kind == 17 && push_parse(PUSH_DROP, message, message_bytes, &drop) == NULL) {
		GMB_ASSERT(drop.number > 0 && drop.number < PUSH_FLOWS_MAX);
	} else if (kind == 18) {
		(void)!push_parse(PUSH_DROPPED, message, message_bytes, &dropped);
	}
}

/* Nobody finds a ticket that is good for a key that is not known. */
static void tickets(uint8_t kind)
{
	static const uint8_t key[PUSH_KEY_BYTES] = "what nobody knows";
	struct push_shower shower = { .has_uid = true, .has_address = true };
	struct push_wire_use use;

	if (kind == 15 && push_parse(PUSH_USE, message, message_bytes, &use) == NULL) {
		shower.uid = use.ticket.uid;
		memcpy(shower.address, use.ticket.address, sizeof(shower.address));
		memcpy(shower.instance, use.ticket.instance, sizeof(shower.instance));
		GMB_ASSERT(push_ticket_check(&use.ticket, key, 0, &shower) != NULL);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t kind;

	if (size == 0) {
		return 0;
	}
	kind = data[0] % 19;
	message = data + 1;
	message_bytes = size - 1;
	coordinators(kind);
	servers(kind);
	sources(kind, (uint64_t)size << 18);
	destinations(kind);
	flows(kind);
	tickets(kind);
	return 0;
}
