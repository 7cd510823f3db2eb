// SPDX-License-Identifier: Apache-2.0
#include "base/lease.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

uint32_t lease_limit_ms(uint32_t ms)
{
	return ms < LEASE_MS_MIN   ? (uint32_t)LEASE_MS_MIN
	       : ms > LEASE_MS_MAX ? (uint32_t)LEASE_MS_MAX
				   : ms;
}

const char *lease_want_format(char out[LEASE_WANT_BYTES], const struct lease_want *want)
{
	char id[2 * LEASE_ID_BYTES + 1];

	for (int i = 0; i < LEASE_ID_BYTES; i++) {
		snprintf(id + 2 * i, 3, "%02x", want->id[i]);
	}
	snprintf(out, LEASE_WANT_BYTES, "%s,id=%s,ms=%u%s%s",
		want->mode == LEASE_EXCLUSIVE ? "exclusive" : "shared", id,
		lease_limit_ms(want->ms),
		want->renew   ? ",renew"
		: want->moves ? ",moves"
			      : "",
		want->preempt && !want->renew && !want->moves ? ",preempt" : "");
	return out;
}

/* Removes `word` from the beginning of the text. */
static bool skip(const uint8_t **text, const uint8_t *end, const char *word)
{
	size_t bytes = strlen(word);

	if ((size_t)(end - *text) < bytes || memcmp(*text, word, bytes) != 0) {
		return false;
	}
	*text += bytes;
	return true;
}

static bool parse_id(const uint8_t **text, const uint8_t *end, uint8_t id[LEASE_ID_BYTES])
{
	uint8_t any = 0;

	if (end - *text < 2 * LEASE_ID_BYTES) {
		return false;
	}
	for (int i = 0; i < LEASE_ID_BYTES; i++) {
		int high = text_hex_digit((char)(*text)[2 * i]);
		int low = text_hex_digit((char)(*text)[2 * i + 1]);

		if (high < 0 || low < 0) {
			return false;
		}
		id[i] = (uint8_t)(high << 4 | low);
		any |= id[i];
	}
	*text += 2 * LEASE_ID_BYTES;
	return any != 0;
}

static bool parse_ms(const uint8_t **text, const uint8_t *end, uint32_t *ms)
{
	uint32_t digits = 0;
	uint32_t value = 0;

	while (*text < end && **text >= '0' && **text <= '9' && digits++ < 9) {
		value = 10 * value + (uint32_t)(*(*text)++ - '0');
	}
	*ms = lease_limit_ms(value);
	return digits > 0;
}

bool lease_want_parse(const uint8_t *text, uint32_t bytes, struct lease_want *want)
{
	const uint8_t *end = text + bytes;

	*want = (struct lease_want){ 0 };
	want->mode = skip(&text, end, "exclusive") ? LEASE_EXCLUSIVE
		     : skip(&text, end, "shared")  ? LEASE_SHARED
						   : LEASE_NONE;
	if (want->mode == LEASE_NONE || !skip(&text, end, ",id=") ||
		!parse_id(&text, end, want->id) || !skip(&text, end, ",ms=") ||
		!parse_ms(&text, end, &want->ms)) {
		return false;
	}
	want->renew = skip(&text, end, ",renew");
	want->moves = !want->renew && skip(&text, end, ",moves");
	want->preempt = !want->renew && !want->moves && skip(&text, end, ",preempt");
	return text == end;
}
