// SPDX-License-Identifier: Apache-2.0
#include "push/wire.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/text.h"
#include "tls/mac.h"

/* A message that is a head and nothing else. */
static bool push_wire_take_head(const uint8_t *bytes, size_t len, void *head, size_t head_bytes)
{
	if (len != head_bytes) {
		return false;
	}
	memcpy(head, bytes, head_bytes);
	return true;
}

/* A head, and what follows it: false when the message has not that many bytes. */
static bool take_long(const uint8_t *bytes, size_t len, void *head, size_t head_bytes)
{
	if (len < head_bytes) {
		return false;
	}
	memcpy(head, bytes, head_bytes);
	return true;
}

static bool is_name(const struct push_text *text)
{
	return utf8_valid(text->bytes, text->length) &&
	       memchr(text->bytes, 0, text->length) == NULL;
}

static bool push_wire_is_zero(const void *bytes, size_t len)
{
	const uint8_t *at = bytes;
	uint8_t any = 0;

	for (size_t i = 0; i < len; i++) {
		any |= at[i];
	}
	return any == 0;
}

/* --- hello ----------------------------------------------------------------------------------- */

const char *push_hello_parse(const void *bytes, size_t len, bool *known_out)
{
	struct push_wire_hello hello;

	if (!push_wire_take_head(bytes, len, &hello, sizeof(hello)) || hello.magic != PUSH_MAGIC ||
		hello.zero != 0 || hello.version_min > hello.version_max) {
		return "H1: it is not a hello of push";
	}
	*known_out = hello.version_min <= PUSH_VERSION && PUSH_VERSION <= hello.version_max;
	return NULL;
}

const char *push_welcome_parse(const void *bytes, size_t len, struct push_wire_welcome *welcome)
{
	if (!push_wire_take_head(bytes, len, welcome, sizeof(*welcome)) ||
		welcome->magic != PUSH_MAGIC || welcome->version != PUSH_VERSION ||
		welcome->zero != 0 || welcome->zero_2 != 0) {
		return "H1: it is not a welcome of push";
	}
	return NULL;
}

/* --- of coordinators --------------------------------------------------------------------------
 */

const char *push_look_parse(const uint8_t *bytes, size_t len, struct push_text *name)
{
	struct push_wire_look head;

	if (!take_long(bytes, len, &head, sizeof(head)) || len - sizeof(head) != head.name_bytes) {
		return "H3: the length of LOOK";
	}
	*name = (struct push_text){ (const char *)bytes + sizeof(head), head.name_bytes };
	if (head.name_bytes > PUSH_NAME_BYTES_MAX || !is_name(name)) {
		return "H4: the name in LOOK";
	}
	return head.zero == 0 && head.zero_2 == 0 ? NULL : "H3: reserved fields of LOOK";
}

const char *push_number_parse(const uint8_t *bytes, size_t len, uint64_t *job_out)
{
	struct push_wire_job_number head;

	if (!push_wire_take_head(bytes, len, &head, sizeof(head))) {
		return "H3: the length of a message that names a job";
	}
	*job_out = head.job;
	return NULL;
}

const char *push_grant_parse(const uint8_t *bytes, size_t len, struct push_grant *grant)
{
	const struct push_wire_grant *head = &grant->head;

	if (!take_long(bytes, len, &grant->head, sizeof(grant->head)) ||
		len - sizeof(*head) != (size_t)head->name_bytes + head->source_name_bytes) {
		return "H3: the length of GRANT";
	}
	grant->name = (struct push_text){ (const char *)bytes + sizeof(*head), head->name_bytes };
	grant->source_name =
		(struct push_text){ grant->name.bytes + head->name_bytes, head->source_name_bytes };
	if (head->name_bytes > PUSH_NAME_BYTES_MAX ||
		head->source_name_bytes > PUSH_NAME_BYTES_MAX || !is_name(&grant->name) ||
		!is_name(&grant->source_name)) {
		return "H4: a name in GRANT";
	}
	if (head->length == 0 || head->length > INT64_MAX || head->offset > INT64_MAX ||
		head->source_offset > INT64_MAX) {
		return "H5: the range in GRANT";
	}
	if ((head->flags & ~(uint32_t)(PUSH_COMPARE | PUSH_READ_BACK)) != 0 ||
		head->binding < PUSH_BOUND_UID || head->binding > PUSH_BOUND_ASKER ||
		(head->binding != PUSH_BOUND_UID && head->uid != 0) ||
		(head->binding != PUSH_BOUND_ADDRESS &&
			!push_wire_is_zero(head->address, sizeof(head->address)))) {
		return "H6: flags of GRANT, or who may use the ticket";
	}
	return NULL;
}

/* In its place are the range at the destination and flags alone. */
static const char *check_no_ticket(const struct push_start *start)
{
	const struct push_wire_ticket *ticket = &start->ticket;
	struct push_wire_ticket rest = *ticket;

	rest.flags = 0;
	rest.offset = 0;
	rest.length = 0;
	if ((ticket->flags & ~(PUSH_COMPARE | PUSH_READ_BACK)) != 0 ||
		start->head.uid != PUSH_UID_UNKNOWN || !push_wire_is_zero(&rest, sizeof(rest))) {
		return "H6: a ticket in START, or of whom, where there is none";
	}
	return ticket->length == start->head.length && ticket->offset <= INT64_MAX
		       ? NULL
		       : "H5: the range in START";
}

const char *push_start_parse(const uint8_t *bytes, size_t len, struct push_start *start)
{
	const struct push_wire_start *head = &start->head;
	size_t texts;

	if (!take_long(bytes, len, &start->head, sizeof(start->head))) {
		return "H3: the length of START";
	}
	texts = (size_t)head->name_bytes + head->uri_bytes;
	if (len - sizeof(*head) != texts + sizeof(start->ticket)) {
		return "H3: the length of START";
	}
	start->name = (struct push_text){ (const char *)bytes + sizeof(*head), head->name_bytes };
	start->uri = (struct push_text){ start->name.bytes + head->name_bytes, head->uri_bytes };
	memcpy(&start->ticket, start->uri.bytes + head->uri_bytes, sizeof(start->ticket));
	if (head->name_bytes > PUSH_NAME_BYTES_MAX || head->uri_bytes > PUSH_URI_BYTES_MAX ||
		!is_name(&start->name) || !is_name(&start->uri)) {
		return "H4: a name in START";
	}
	if (head->length == 0 || head->length > INT64_MAX || head->source_offset > INT64_MAX) {
		return "H5: the range in START";
	}
	if ((head->flags & ~(uint32_t)PUSH_FLAGS) != 0 || head->zero != 0) {
		return "H6: flags of START";
	}
	return (head->flags & (uint32_t)PUSH_NBD) != 0 ? check_no_ticket(start) : NULL;
}

const char *push_answer_parse(const uint8_t *bytes, size_t len, struct push_answer *answer)
{
	const struct push_wire_answer *head = &answer->head;

	if (!take_long(bytes, len, &answer->head, sizeof(answer->head)) ||
		len - sizeof(*head) != (size_t)head->text_bytes + head->ticket_bytes ||
		(head->ticket_bytes != 0 && head->ticket_bytes != sizeof(answer->ticket)) ||
		head->zero != 0 || head->text_bytes > PUSH_TEXT_BYTES_MAX) {
		return "H3: the length of ANSWER";
	}
	answer->text = (struct push_text){ (const char *)bytes + sizeof(*head), head->text_bytes };
	answer->has_ticket = head->ticket_bytes != 0;
	if (answer->has_ticket) {
		memcpy(&answer->ticket, answer->text.bytes + head->text_bytes,
			sizeof(answer->ticket));
	}
	return NULL;
}

const char *push_job_parse(const uint8_t *bytes, size_t len, struct push_job_message *job)
{
	const struct push_wire_job *head = &job->head;

	if (!take_long(bytes, len, &job->head, sizeof(job->head)) ||
		len - sizeof(*head) !=
			(size_t)head->name_bytes + head->peer_bytes + head->text_bytes) {
		return "H3: the length of JOB";
	}
	job->name = (struct push_text){ (const char *)bytes + sizeof(*head), head->name_bytes };
	job->peer = (struct push_text){ job->name.bytes + head->name_bytes, head->peer_bytes };
	job->text = (struct push_text){ job->peer.bytes + head->peer_bytes, head->text_bytes };
	if (head->role < PUSH_SOURCE || head->role > PUSH_SINK || head->state < PUSH_JOB_BEGINS ||
		head->state >= PUSH_JOB_STATE_END || head->done > head->length ||
		head->zeroes > head->done || head->skipped > head->done - head->zeroes ||
		head->durable > head->length || head->zero != 0 ||
		(head->state == PUSH_JOB_FAILED) != (head->status != 0)) {
		return "H7: a number in JOB";
	}
	return NULL;
}

/* --- of source and destination ---------------------------------------------------------------- */

const char *push_use_parse(const uint8_t *bytes, size_t len, struct push_wire_use *use)
{
	return push_wire_take_head(bytes, len, use, sizeof(*use)) ? NULL : "H3: the length of USE";
}

const char *push_alive_parse(size_t len)
{
	return len == 0 ? NULL : "H3: the length of ALIVE";
}

const char *push_used_parse(const uint8_t *bytes, size_t len, struct push_wire_used *used)
{
	if (!push_wire_take_head(bytes, len, used, sizeof(*used))) {
		return "H3: the length of USED";
	}
	return used->slots >= 1 && used->slots <= PUSH_SLOTS && used->zero == 0 &&
			       used->silence_ms >= PUSH_SILENCE_MS_MIN &&
			       used->silence_ms <= PUSH_SILENCE_MS_MAX
		       ? NULL
		       : "H8: the slots in USED, or the silence";
}

/* Whole pieces of the range, or up to its end. */
static bool are_pieces(uint64_t offset, uint64_t length, uint64_t total, uint64_t max)
{
	return length > 0 && length <= max && is_aligned(offset, PUSH_PIECE_BYTES) &&
	       range_inside(offset, length, total) &&
	       (is_aligned(length, PUSH_PIECE_BYTES) || offset + length == total);
}

const char *push_zeroed_parse(const uint8_t *bytes, size_t len, struct push_wire_range *zero)
{
	return push_wire_take_head(bytes, len, zero, sizeof(*zero)) ? NULL
								    : "H3: the length of ZEROED";
}

const char *push_zero_parse(
	const uint8_t *bytes, size_t len, uint64_t total, struct push_wire_range *zero)
{
	if (!push_wire_take_head(bytes, len, zero, sizeof(*zero))) {
		return "H3: the length of ZERO";
	}
	return are_pieces(zero->offset, zero->length, total, PUSH_ZERO_BYTES_MAX)
		       ? NULL
		       : "H9: the pieces in ZERO";
}

/* Exactly one piece. */
static bool is_piece(uint64_t offset, uint64_t length, uint64_t total)
{
	return are_pieces(offset, length, total, PUSH_PIECE_BYTES);
}

const char *push_check_parse(
	const uint8_t *bytes, size_t len, uint64_t total, struct push_wire_check *check)
{
	if (!push_wire_take_head(bytes, len, check, sizeof(*check))) {
		return "H3: the length of CHECK";
	}
	return is_piece(check->offset, check->length, total) ? NULL : "H9: the piece in CHECK";
}

const char *push_checked_parse(const uint8_t *bytes, size_t len, struct push_wire_checked *checked)
{
	return push_wire_take_head(bytes, len, checked, sizeof(*checked)) && checked->same <= 1 &&
			       checked->zero == 0
		       ? NULL
		       : "H3: CHECKED";
}

const char *push_flush_parse(const uint8_t *bytes, size_t len, struct push_wire_flush *flush)
{
	return push_wire_take_head(bytes, len, flush, sizeof(*flush)) && flush->zero == 0 &&
			       (flush->flags & ~(uint32_t)PUSH_FLUSH_FINISH) == 0
		       ? NULL
		       : "H3: FLUSH or FLUSHED";
}

const char *push_failed_parse(
	const uint8_t *bytes, size_t len, struct push_wire_failed *failed, struct push_text *text)
{
	if (!take_long(bytes, len, failed, sizeof(*failed)) ||
		len - sizeof(*failed) != failed->text_bytes || failed->zero != 0 ||
		failed->text_bytes > PUSH_TEXT_BYTES_MAX || failed->status == 0) {
		return "H3: FAILED";
	}
	*text = (struct push_text){ (const char *)bytes + sizeof(*failed), failed->text_bytes };
	return NULL;
}

const char *push_piece_check(const struct push_wire_piece *piece, uint64_t total)
{
	return piece->magic == PUSH_PIECE_MAGIC &&
			       push_wire_is_zero(piece->zero, sizeof(piece->zero)) &&
			       is_piece(piece->offset, piece->length, total)
		       ? NULL
		       : "H10: the head of a piece";
}

/* --- tickets --------------------------------------------------------------------------------- */

int push_ticket_seal(struct push_wire_ticket *ticket, const uint8_t key[PUSH_KEY_BYTES])
{
	ticket->magic = PUSH_TICKET_MAGIC;
	ticket->version = PUSH_VERSION;
	return tls_mac(
		key, PUSH_KEY_BYTES, ticket, offsetof(struct push_wire_ticket, mac), ticket->mac);
}

const char *push_ticket_check(const struct push_wire_ticket *ticket,
	const uint8_t key[PUSH_KEY_BYTES], uint64_t now_s, const struct push_shower *shower)
{
	struct push_wire_ticket made = *ticket;

	if (push_ticket_seal(&made, key) != 0 || !tls_mac_equal(made.mac, ticket->mac) ||
		memcmp(&made, ticket, sizeof(made)) != 0) {
		return "the ticket was not made by this server, or before it was started anew";
	}
	if (now_s >= ticket->expires_s) {
		return "the ticket has expired";
	}
	if (memcmp(ticket->instance, shower->instance, sizeof(ticket->instance)) != 0) {
		return "the ticket was made for another server";
	}
	if (ticket->binding == PUSH_BOUND_UID
			? !shower->has_uid || shower->uid != ticket->uid
			: !shower->has_address || memcmp(ticket->address, shower->address,
							  sizeof(ticket->address)) != 0) {
		return "the ticket was made for a server of another user or address";
	}
	return NULL;
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
