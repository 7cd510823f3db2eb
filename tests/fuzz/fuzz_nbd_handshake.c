// SPDX-License-Identifier: Apache-2.0
/*
 * What servers say during the handshake. The first byte chooses the best reply style that is asked
 * for (bits 0 and 1, modulo 3), whether the client introduces itself with a token (bit 2), the
 * goal (bits 3 and 4, modulo 3) and whether it wants TLS (bit 6), the second how the rest, the
 * server's bytes, is cut into pieces. The pieces must make no difference, and answers that came
 * through must be possible ones.
 */
#include "fuzz.h"
#include "nbd/client/handshake.h"

struct result {
	int code;
	bool finished;
	struct error error;
	size_t sent;
	size_t clear; /* of sent, before TLS */
	size_t taken;
	uint64_t digest; /* of everything that was sent and answered */
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

static void digest_text(struct result *result, const char *text)
{
	digest_add(result, text != NULL ? text : "-", text != NULL ? strlen(text) + 1 : 1);
}

static void take_output(struct nbd_handshake *handshake, struct result *result)
{
	size_t bytes;
	const uint8_t *output = nbd_handshake_output(handshake, &bytes);

	GMB_ASSERT(bytes <= NBD_HANDSHAKE_OUTPUT_BYTES_MAX);
	digest_add(result, output, bytes);
	result->sent += bytes;
	nbd_handshake_sent(handshake);
}

static void check_sizes(const struct nbd_block_sizes *sizes)
{
	GMB_ASSERT(is_power_of_two(sizes->minimum) && sizes->minimum <= 65536);
	GMB_ASSERT(is_power_of_two(sizes->preferred));
	GMB_ASSERT(sizes->preferred >= MAX(sizes->minimum, 512U));
	GMB_ASSERT(sizes->payload_max >= sizes->preferred);
}

static void take_facts(
	const struct nbd_facts *facts, enum nbd_reply_style style_max, struct result *result)
{
	GMB_ASSERT(facts->style <= style_max);
	GMB_ASSERT(facts->size <= INT64_MAX);
	check_sizes(&facts->sizes);
	GMB_ASSERT(facts->can_take_over == (facts->epoch != 0));
	GMB_ASSERT(!facts->allocation || facts->style != NBD_REPLIES_SIMPLE);
	digest_number(result, facts->style);
	digest_number(result, facts->size);
	digest_number(result, facts->flags);
	digest_number(result, facts->sizes_known);
	digest_number(result, facts->allocation);
	digest_number(result, facts->epoch);
	digest_number(result, facts->is_volatile);
	digest_number(result, facts->allocation ? facts->allocation_id : 0);
	digest_text(result, facts->name);
	digest_text(result, facts->description);
}

static void take_offers(const struct nbd_offers *offers, struct result *result)
{
	GMB_ASSERT(offers->count <= NBD_OFFERS_MAX && offers->note_count <= NBD_NOTES_MAX);
	for (uint32_t i = 0; i < offers->count; i++) {
		const struct nbd_offer *offer = &offers->list[i];

		digest_text(result, offer->name);
		digest_text(result, offer->canonical_name);
		digest_text(result, offer->description);
		digest_text(result, offer->refusal);
		GMB_ASSERT(!offer->known || offer->size <= INT64_MAX);
		if (offer->sizes_known) {
			check_sizes(&offer->sizes);
		}
		for (uint32_t k = 0; k < offer->context_count; k++) {
			digest_text(result, offer->contexts[k]);
		}
	}
	for (uint32_t i = 0; i < offers->note_count; i++) {
		digest_text(result, offers->notes[i]);
	}
}

/* What follows is what the server says under TLS. */
static void encrypt(struct nbd_handshake *handshake, struct result *result)
{
	static const struct nbd_protection protection = { "TLS 1.3", "AES-128-GCM", true };

	if (nbd_handshake_wants_tls(handshake)) {
		GMB_ASSERT(result->clear == 0);
		result->clear = result->sent;
		nbd_handshake_encrypted(handshake, &protection);
		take_output(handshake, result);
	}
}

/* With TLS, flags and two options without data, STARTTLS and ABORT, are all that is said in clear.
 */
static void check_clear(const struct result *result)
{
	const size_t flags = 4;
	const size_t option = sizeof(struct nbd_wire_option);

	if (result->clear > 0) {
		GMB_ASSERT(result->clear == flags + option);
	} else {
		GMB_ASSERT(result->sent == 0 || result->sent == flags + option ||
			   result->sent == flags + 2 * option);
		GMB_ASSERT(result->code < 0);
	}
}

static struct result talk(
	const struct nbd_handshake_options *options, const uint8_t *data, size_t size, size_t piece)
{
	struct result result = { 0 };
	struct nbd_handshake *handshake;

	GMB_ASSERT(nbd_handshake_create(options, &handshake, &result.error) == 0);
	while (result.taken < size && !nbd_handshake_is_finished(handshake)) {
		size_t len = MIN(piece, size - result.taken);

		result.code =
			nbd_handshake_input(handshake, data + result.taken, len, &result.error);
		if (result.code < 0) {
			break;
		}
		GMB_ASSERT((size_t)result.code <= len);
		result.taken += (size_t)result.code;
		take_output(handshake, &result);
		encrypt(handshake, &result);
	}
	if (result.code >= 0 && !nbd_handshake_is_finished(handshake)) {
		GMB_ASSERT(nbd_handshake_awaits(handshake)[0] != '\0');
		result.code = nbd_handshake_end_of_stream(handshake, &result.error);
	}
	if (result.code >= 0) {
		GMB_ASSERT(nbd_handshake_is_finished(handshake));
		result.finished = true;
		result.code = nbd_handshake_outcome(handshake, &result.error);
	}
	if (result.code >= 0 && options->goal == NBD_GOAL_GO) {
		take_facts(nbd_handshake_facts(handshake), options->style_max, &result);
	} else if (result.code < 0) {
		result.taken = 0; /* where it stopped is known only with the pieces */
		GMB_ASSERT(result.error.code == result.code && result.error.text[0] != '\0');
	}
	if (options->tls) {
		check_clear(&result);
	}
	take_offers(nbd_handshake_offers(handshake), &result);
	nbd_handshake_destroy(handshake);
	return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const replaces[] = { "0123456789abcdef.7", "0123456789abcdef.8" };
	struct nbd_handshake_options options = { .export_name = "disk" };
	struct result whole;
	struct result pieces;

	if (size < 2) {
		return 0;
	}
	options.goal = (enum nbd_goal)((data[0] >> 3 & 3) % 3);
	options.style_max = (enum nbd_reply_style)((data[0] & 3) % 3);
	if ((data[0] & 4) != 0 && options.goal == NBD_GOAL_GO) {
		options.token = "0123456789abcdef.9";
		options.replaces = replaces;
		options.replaces_count = ARRAY_COUNT(replaces);
		options.alive_ms = (data[0] & 32) != 0 ? 6000 : 0;
	}
	options.tls = (data[0] & 64) != 0;
	whole = talk(&options, data + 2, size - 2, size);
	pieces = talk(&options, data + 2, size - 2, 1 + data[1] % 32);
	GMB_ASSERT(whole.code == pieces.code);
	GMB_ASSERT(whole.finished == pieces.finished);
	GMB_ASSERT(whole.sent == pieces.sent);
	GMB_ASSERT(whole.taken == pieces.taken);
	GMB_ASSERT(whole.digest == pieces.digest);
	GMB_ASSERT(strcmp(whole.error.text, pieces.error.text) == 0);
	return 0;
}
