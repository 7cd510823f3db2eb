// SPDX-License-Identifier: Apache-2.0
/*
 * What servers say while a client opens an export. The first byte chooses the best reply style that
 * is asked for (bits 0 and 1, modulo 3) and whether the client introduces itself with a token (bit
 * 2), the second how the rest, the server's bytes, is cut into pieces. The pieces must make no
 * difference, and facts that came through must be possible ones.
 */
#include "fuzz.h"
#include "nbd/negotiation.h"

struct result {
	int code;
	bool finished;
	struct error error;
	size_t sent;
	size_t taken;
	uint64_t digest; /* of everything that was sent and agreed */
};

static void digest_add(struct result *result, const void *bytes, size_t len)
{
	const uint8_t *at = bytes;

	for (size_t i = 0; i < len; i++) {
		result->digest = (result->digest ^ at[i]) * UINT64_C(0x100000001b3);
	}
}

static void digest_number(struct result *result, uint64_t number)
{
	digest_add(result, &number, sizeof(number));
}

static void take_output(struct negotiation *negotiation, struct result *result)
{
	size_t bytes;
	const uint8_t *output = negotiation_output(negotiation, &bytes);

	GMB_ASSERT(bytes <= DIALOGUE_OUTPUT_BYTES_MAX);
	digest_add(result, output, bytes);
	result->sent += bytes;
	negotiation_sent(negotiation);
}

static void take_facts(const struct negotiation_facts *facts, enum nbd_reply_style style_max,
	struct result *result)
{
	GMB_ASSERT(facts->style <= style_max);
	GMB_ASSERT(facts->size <= INT64_MAX);
	GMB_ASSERT(is_power_of_two(facts->sizes.minimum) && facts->sizes.minimum <= 65536);
	GMB_ASSERT(is_power_of_two(facts->sizes.preferred));
	GMB_ASSERT(facts->sizes.preferred >= MAX(facts->sizes.minimum, 512U));
	GMB_ASSERT(facts->sizes.payload_max >= facts->sizes.preferred);
	GMB_ASSERT(facts->can_take_over == (facts->epoch != 0));
	GMB_ASSERT(!facts->allocation || facts->style != NBD_REPLIES_SIMPLE);
	digest_number(result, facts->style);
	digest_number(result, facts->size);
	digest_number(result, facts->flags);
	digest_number(result, facts->sizes_told);
	digest_number(result, facts->allocation);
	digest_number(result, facts->epoch);
	digest_number(result, facts->is_volatile);
	digest_number(result, facts->allocation ? facts->allocation_id : 0);
	digest_add(result, facts->name, strlen(facts->name) + 1);
	digest_add(result, facts->description, strlen(facts->description) + 1);
}

static struct result talk(enum nbd_reply_style style_max, bool introduced, const uint8_t *data,
	size_t size, size_t piece)
{
	static const char *const instead[] = { "0123456789abcdef.7", "0123456789abcdef.8" };
	struct negotiation_options options = {
		.export_name = "disk",
		.style_max = style_max,
		.token = introduced ? "0123456789abcdef.9" : NULL,
		.instead = instead,
		.instead_count = introduced ? ARRAY_COUNT(instead) : 0,
	};
	struct result result = { 0 };
	struct negotiation *negotiation;

	GMB_ASSERT(negotiation_create(&options, &negotiation, &result.error) == 0);
	while (result.taken < size && !negotiation_is_finished(negotiation)) {
		size_t len = MIN(piece, size - result.taken);

		result.code =
			negotiation_input(negotiation, data + result.taken, len, &result.error);
		if (result.code < 0) {
			break;
		}
		GMB_ASSERT((size_t)result.code <= len);
		result.taken += (size_t)result.code;
		take_output(negotiation, &result);
	}
	if (result.code >= 0 && !negotiation_is_finished(negotiation)) {
		GMB_ASSERT(negotiation_awaits(negotiation)[0] != '\0');
		result.code = negotiation_end_of_stream(negotiation, &result.error);
	}
	if (result.code >= 0) {
		GMB_ASSERT(negotiation_is_finished(negotiation));
		result.finished = true;
		result.code = negotiation_outcome(negotiation, &result.error);
	}
	if (result.code >= 0) {
		take_facts(negotiation_facts(negotiation), style_max, &result);
	} else {
		result.taken = 0; /* where it stopped is known only with the pieces */
		GMB_ASSERT(result.error.code == result.code && result.error.text[0] != '\0');
	}
	negotiation_destroy(negotiation);
	return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum nbd_reply_style style_max;
	struct result whole;
	struct result pieces;
	bool introduced;

	if (size < 2) {
		return 0;
	}
	style_max = (enum nbd_reply_style)((data[0] & 3) % 3);
	introduced = (data[0] & 4) != 0;
	whole = talk(style_max, introduced, data + 2, size - 2, size);
	pieces = talk(style_max, introduced, data + 2, size - 2, 1 + data[1] % 32);
	GMB_ASSERT(whole.code == pieces.code);
	GMB_ASSERT(whole.finished == pieces.finished);
	GMB_ASSERT(whole.sent == pieces.sent);
	GMB_ASSERT(whole.taken == pieces.taken);
	GMB_ASSERT(whole.digest == pieces.digest);
	GMB_ASSERT(strcmp(whole.error.text, pieces.error.text) == 0);
	return 0;
}
