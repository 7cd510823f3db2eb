// SPDX-License-Identifier: Apache-2.0
#include "push/wire.h"

#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "tls/mac.h"

const struct message_hello push_hello = {
	.magic = PUSH_MAGIC,
	.version_min = PUSH_VERSION,
	.version_max = PUSH_VERSION,
};

/* --- hello ----------------------------------------------------------------------------------- */

const char *push_hello_parse(const void *bytes, size_t len, bool *known_out)
{
	uint16_t version;
	bool good = message_hello_parse(bytes, len, &push_hello, &version);

	*known_out = version != 0;
	return good ? NULL : "not a push hello (rule H1)";
}

const char *push_welcome_parse(const void *bytes, size_t len, struct push_wire_welcome *welcome)
{
	if (len != sizeof(*welcome)) {
		return "H1: not a push welcome";
	}
	memcpy(welcome, bytes, sizeof(*welcome));
	if (welcome->magic != PUSH_MAGIC || welcome->version != PUSH_VERSION ||
		welcome->zero != 0 || welcome->zero_2 != 0) {
		return "H1: not a push welcome";
	}
	return NULL;
}

/* --- of coordinators -------------------------------------------------------------------------- */

static const char *check_grant(void *object)
{
	const struct push_wire_grant *head = object;

	if (head->length == 0 || head->length > INT64_MAX || head->offset > INT64_MAX ||
		head->source_offset > INT64_MAX) {
		return "H5: invalid range in GRANT";
	}
	if ((head->flags & ~(uint32_t)(PUSH_COMPARE | PUSH_READ_BACK)) != 0 ||
		head->binding < PUSH_BOUND_UID || head->binding > PUSH_BOUND_ASKER ||
		(head->binding != PUSH_BOUND_UID && head->uid != 0) ||
		(head->binding != PUSH_BOUND_ADDRESS &&
			!message_is_zero(head->address, sizeof(head->address)))) {
		return "H6: invalid flags, or invalid user or address for the ticket, in GRANT";
	}
	return NULL;
}

/* With PUSH_NBD there is no ticket: only its flags and its range at the destination can be set. */
static const char *check_no_ticket(const struct push_start *start)
{
	const struct push_wire_ticket *ticket = &start->ticket;
	struct push_wire_ticket rest = *ticket;

	rest.flags = 0;
	rest.offset = 0;
	rest.length = 0;
	if ((ticket->flags & ~(PUSH_COMPARE | PUSH_READ_BACK)) != 0 ||
		start->head.uid != PUSH_UID_UNKNOWN || !message_is_zero(&rest, sizeof(rest))) {
		return "H6: START for an NBD destination has ticket fields that must be 0";
	}
	return ticket->length == start->head.length && ticket->offset <= INT64_MAX
		       ? NULL
		       : "H5: invalid range in START";
}

static const char *check_start(void *object)
{
	struct push_start *start = object;
	const struct push_wire_start *head = &start->head;

	if (start->rest.length != sizeof(start->ticket)) {
		return "H3: invalid length of START";
	}
	memcpy(&start->ticket, start->rest.bytes, sizeof(start->ticket));
	if (head->length == 0 || head->length > INT64_MAX || head->source_offset > INT64_MAX) {
		return "H5: invalid range in START";
	}
	if ((head->flags & ~(uint32_t)PUSH_FLAGS) != 0) {
		return "H6: invalid flags in START";
	}
	if (head->connections > PUSH_FLOWS_MAX) {
		return "H6: invalid number of connections in START";
	}
	return (head->flags & (uint32_t)PUSH_NBD) != 0 ? check_no_ticket(start) : NULL;
}

static const char *check_answer(void *object)
{
	struct push_answer *answer = object;

	answer->has_ticket = answer->rest.length != 0;
	if (answer->has_ticket && answer->rest.length != sizeof(answer->ticket)) {
		return "H3: invalid length of ANSWER";
	}
	memcpy(&answer->ticket, answer->rest.bytes, answer->rest.length);
	return NULL;
}

static const char *check_job(void *object)
{
	const struct push_wire_job *head = object;

	return head->role < PUSH_SOURCE || head->role > PUSH_SINK ||
			       head->state < PUSH_JOB_BEGINS || head->state >= PUSH_JOB_STATE_END ||
			       head->done > head->length || head->zeroes > head->done ||
			       head->skipped > head->done - head->zeroes ||
			       head->durable > head->length ||
			       (head->state == PUSH_JOB_FAILED) != (head->status != 0)
		       ? "H7: invalid values in JOB"
		       : NULL;
}

/* --- of source and destination ---------------------------------------------------------------- */

const char *push_alive_parse(size_t len)
{
	return len == 0 ? NULL : "H3: invalid length of ALIVE";
}

static const char *check_flow(uint32_t number)
{
	return number > 0 && number < PUSH_FLOWS_MAX ? NULL : "H11: invalid number of a connection";
}

static const char *check_join(void *object)
{
	return check_flow(((struct push_wire_join *)object)->number);
}

static const char *check_drop(void *object)
{
	return check_flow(((struct push_wire_drop *)object)->number);
}

static const char *check_used(void *object)
{
	const struct push_wire_used *used = object;

	return used->slots >= 1 && used->slots <= PUSH_SLOTS &&
			       used->silence_ms >= PUSH_SILENCE_MS_MIN &&
			       used->silence_ms <= PUSH_SILENCE_MS_MAX
		       ? NULL
		       : "H8: invalid number of slots, or invalid time limit, in USED";
}

static const char *check_checked(void *object)
{
	return ((struct push_wire_checked *)object)->same <= 1 ? NULL
							       : "H3: invalid value in CHECKED";
}

static const char *check_flush(void *object)
{
	return (((struct push_wire_flush *)object)->flags & ~(uint32_t)PUSH_FLUSH_FINISH) == 0
		       ? NULL
		       : "H3: invalid flags in FLUSH or FLUSHED";
}

static const char *check_failed(void *object)
{
	return ((struct push_failed *)object)->head.status != 0 ? NULL
								: "H3: FAILED without a status";
}

/* Returns true if the bytes are whole pieces of a range of `total` bytes, and at most `max`. Only
 * the last piece of the range can be shorter. */
static bool are_pieces(uint64_t offset, uint64_t length, uint64_t total, uint64_t max)
{
	return length > 0 && length <= max && is_aligned(offset, PUSH_PIECE_BYTES) &&
	       range_inside(offset, length, total) &&
	       (is_aligned(length, PUSH_PIECE_BYTES) || offset + length == total);
}

static bool is_piece(uint64_t offset, uint64_t length, uint64_t total)
{
	return are_pieces(offset, length, total, PUSH_PIECE_BYTES);
}

const char *push_zero_check(const struct push_wire_range *zero, uint64_t total)
{
	return are_pieces(zero->offset, zero->length, total, PUSH_ZERO_BYTES_MAX)
		       ? NULL
		       : "H9: invalid pieces in ZERO";
}

const char *push_check_check(const struct push_wire_check *check, uint64_t total)
{
	return is_piece(check->offset, check->length, total) ? NULL : "H9: invalid piece in CHECK";
}

const char *push_piece_check(const struct push_wire_piece *piece, uint64_t total)
{
	return piece->magic == PUSH_PIECE_MAGIC &&
			       message_is_zero(piece->zero, sizeof(piece->zero)) &&
			       is_piece(piece->offset, piece->length, total)
		       ? NULL
		       : "H10: invalid header of a piece";
}

/* --- layouts --------------------------------------------------------------------------------- */

#define HEAD(type, part, name) MESSAGE_HEAD(push_wire_##type, "H3", part, name)
#define ZERO(type, member)     MESSAGE_RESERVED(push_wire_##type, member)

static const struct message_layout push_layouts[] = {
	[PUSH_LOOK] = { HEAD(look, "H4", "LOOK"),
		.reserved = { ZERO(look, zero), ZERO(look, zero_2) },
		.parts = { MESSAGE_PART(NAME, push_look, name, name_bytes, PUSH_NAME_BYTES_MAX) } },
	[PUSH_GRANT] = { HEAD(grant, "H4", "GRANT"), .check = check_grant,
		.parts = { MESSAGE_PART(NAME, push_grant, name, name_bytes, PUSH_NAME_BYTES_MAX),
			MESSAGE_PART(NAME, push_grant, source_name, source_name_bytes,
				PUSH_NAME_BYTES_MAX) } },
	[PUSH_START] = { HEAD(start, "H4", "START"),
		.parts = { MESSAGE_PART(NAME, push_start, name, name_bytes, PUSH_NAME_BYTES_MAX),
			MESSAGE_PART(NAME, push_start, uri, uri_bytes, PUSH_URI_BYTES_MAX),
			MESSAGE_PART(REST, push_start, rest, flags, UINT32_MAX) },
		.check = check_start },
	[PUSH_JOBS] = { HEAD(job_number, "H3", "JOBS") },
	[PUSH_CANCEL] = { HEAD(job_number, "H3", "CANCEL") },
	[PUSH_ANSWER] = { HEAD(answer, "H3", "ANSWER"), .reserved = { ZERO(answer, zero) },
		.parts = { MESSAGE_PART(BYTES, push_answer, text, text_bytes, PUSH_TEXT_BYTES_MAX),
			MESSAGE_PART(BYTES, push_answer, rest, ticket_bytes, UINT16_MAX) },
		.check = check_answer },
	[PUSH_JOB] = { HEAD(job, "H3", "JOB"), .reserved = { ZERO(job, zero) },
		.parts = { MESSAGE_PART(BYTES, push_job_message, name, name_bytes, UINT16_MAX),
			MESSAGE_PART(BYTES, push_job_message, peer, peer_bytes, UINT16_MAX),
			MESSAGE_PART(BYTES, push_job_message, text, text_bytes, UINT16_MAX) },
		.check = check_job },
	[PUSH_USE] = { HEAD(use, "H3", "USE") },
	[PUSH_ZERO] = { HEAD(range, "H3", "ZERO") },
	[PUSH_CHECK] = { HEAD(check, "H3", "CHECK") },
	[PUSH_FLUSH] = { HEAD(flush, "H3", "FLUSH"), .reserved = { ZERO(flush, zero) },
		.check = check_flush },
	[PUSH_JOIN] = { HEAD(join, "H3", "JOIN"), .reserved = { ZERO(join, zero) },
		.check = check_join },
	[PUSH_DROP] = { HEAD(drop, "H3", "DROP"), .reserved = { ZERO(drop, zero) },
		.check = check_drop },
	[PUSH_USED] = { HEAD(used, "H3", "USED"), .reserved = { ZERO(used, zero) },
		.check = check_used },
	[PUSH_ZEROED] = { HEAD(range, "H3", "ZEROED") },
	[PUSH_CHECKED] = { HEAD(checked, "H3", "CHECKED"), .reserved = { ZERO(checked, zero) },
		.check = check_checked },
	[PUSH_FLUSHED] = { HEAD(flush, "H3", "FLUSHED"), .reserved = { ZERO(flush, zero) },
		.check = check_flush },
	[PUSH_FAILED] = { HEAD(failed, "H3", "FAILED"), .reserved = { ZERO(failed, zero) },
		.parts = { MESSAGE_PART(
			BYTES, push_failed, text, text_bytes, PUSH_TEXT_BYTES_MAX) },
		.check = check_failed },
	[PUSH_DROPPED] = { HEAD(dropped, "H3", "DROPPED"), .reserved = { ZERO(dropped, zero) } },
};

const char *push_parse(enum push_message type, const void *bytes, size_t len, void *object)
{
	return message_parse(&push_layouts[type], bytes, len, object);
}

/* --- tickets --------------------------------------------------------------------------------- */

int push_ticket_seal(struct push_wire_ticket *ticket, const uint8_t key[PUSH_KEY_BYTES])
{
	ticket->magic = PUSH_TICKET_MAGIC;
	ticket->version = PUSH_VERSION;
	return tls_mac(
		key, PUSH_KEY_BYTES, ticket, offsetof(struct push_wire_ticket, mac), ticket->mac);
}

const char *push_ticket_fits(
	const struct push_wire_ticket *ticket, const struct push_shower *shower)
{
	if (memcmp(ticket->instance, shower->instance, sizeof(ticket->instance)) != 0) {
		return "the ticket is for another server";
	}
	if (ticket->binding == PUSH_BOUND_UID
			? !shower->has_uid || shower->uid != ticket->uid
			: !shower->has_address || memcmp(ticket->address, shower->address,
							  sizeof(ticket->address)) != 0) {
		return "the ticket is for a server of another user or address";
	}
	return NULL;
}

/* The MAC is compared in constant time. The later checks can return early, because their results do
 * not depend on the key. */
const char *push_ticket_check(const struct push_wire_ticket *ticket,
	const uint8_t key[PUSH_KEY_BYTES], uint64_t now_s, const struct push_shower *shower)
{
	struct push_wire_ticket made = *ticket;

	if (push_ticket_seal(&made, key) != 0 || !tls_mac_equal(made.mac, ticket->mac) ||
		memcmp(&made, ticket, sizeof(made)) != 0) {
		return "the ticket is from another server, or from before this one restarted";
	}
	if (now_s >= ticket->expires_s) {
		return "the ticket has expired";
	}
	return push_ticket_fits(ticket, shower);
}

/* --- the digest ------------------------------------------------------------------------------ */

uint64_t push_digest(uint64_t offset, uint32_t length, uint32_t crc)
{
	/* The finalizer of SplitMix64 spreads each input over all bits. */
	uint64_t x = (offset / PUSH_PIECE_BYTES + 1) * UINT64_C(0x9e3779b97f4a7c15) ^
		     ((uint64_t)length << 32 | crc);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* All whole pieces have the same CRC-32C, because they are zero. */
uint64_t push_digest_zeroes(uint64_t offset, uint64_t length)
{
	static const uint8_t zeroes[4096];
	uint64_t sum = 0;
	uint32_t whole = 0;

	for (uint64_t at = 0; at < length; at += PUSH_PIECE_BYTES) {
		uint32_t bytes = (uint32_t)MIN(length - at, (uint64_t)PUSH_PIECE_BYTES);
		uint32_t crc = 0;

		if (at == 0 || bytes != PUSH_PIECE_BYTES) {
			for (uint32_t i = 0; i < bytes; i += (uint32_t)sizeof(zeroes)) {
				crc = crc32c(crc, zeroes, MIN(bytes - i, (uint32_t)sizeof(zeroes)));
			}
			whole = crc;
		} else {
			crc = whole;
		}
		sum += push_digest(offset + at, bytes, crc);
	}
	return sum;
}
