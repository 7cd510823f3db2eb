// SPDX-License-Identifier: Apache-2.0
/*
 * What servers say to "gmblock info". The first byte chooses one export or the list, the second
 * how the rest, the server's bytes, is cut into pieces. The pieces must make no difference.
 */
#include "fuzz.h"
#include "nbd/inquiry.h"

struct result {
	int code;
	struct error error;
	size_t sent;
	uint64_t digest; /* of everything that was sent and told */
};

static void digest_add(struct result *result, const void *bytes, size_t len)
{
	const uint8_t *at = bytes;

	for (size_t i = 0; i < len; i++) {
		result->digest = (result->digest ^ at[i]) * UINT64_C(0x100000001b3);
	}
}

static void digest_text(struct result *result, const char *text)
{
	digest_add(result, text != NULL ? text : "-", text != NULL ? strlen(text) + 1 : 1);
}

static void take_output(struct inquiry *inquiry, struct result *result)
{
	size_t bytes;
	const uint8_t *output = inquiry_output(inquiry, &bytes);

	GMB_ASSERT(bytes <= 4 + 16 + 4 + 4096 + 8);
	digest_add(result, output, bytes);
	result->sent += bytes;
	inquiry_sent(inquiry);
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
		GMB_ASSERT(!offer->sizes_known || offer->sizes.minimum <= offer->sizes.preferred);
		for (uint32_t k = 0; k < offer->context_count; k++) {
			digest_text(result, offer->contexts[k]);
		}
	}
	for (uint32_t i = 0; i < offers->note_count; i++) {
		digest_text(result, offers->notes[i]);
	}
}

static struct result talk(bool list, const uint8_t *data, size_t size, size_t piece)
{
	struct inquiry_options options = { .export_name = "disk", .list = list };
	struct result result = { 0 };
	struct inquiry *inquiry;
	size_t at = 0;

	GMB_ASSERT(inquiry_create(&options, &inquiry, &result.error) == 0);
	while (at < size && !inquiry_is_finished(inquiry)) {
		size_t len = MIN(piece, size - at);

		result.code = inquiry_input(inquiry, data + at, len, &result.error);
		if (result.code < 0) {
			break;
		}
		GMB_ASSERT((size_t)result.code <= len);
		at += (size_t)result.code;
		take_output(inquiry, &result);
	}
	if (result.code >= 0 && !inquiry_is_finished(inquiry)) {
		GMB_ASSERT(inquiry_awaits(inquiry)[0] != '\0');
		result.code = inquiry_end_of_stream(inquiry, &result.error);
	}
	if (result.code >= 0) {
		result.code = inquiry_outcome(inquiry, &result.error);
	}
	GMB_ASSERT(result.code >= 0 ||
		   (result.error.code == result.code && result.error.text[0] != '\0'));
	take_offers(inquiry_offers(inquiry), &result);
	inquiry_destroy(inquiry);
	return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct result whole;
	struct result pieces;
	bool list;

	if (size < 2) {
		return 0;
	}
	list = (data[0] & 1) != 0;
	whole = talk(list, data + 2, size - 2, size);
	pieces = talk(list, data + 2, size - 2, 1 + data[1] % 32);
	GMB_ASSERT(whole.code == pieces.code);
	GMB_ASSERT(whole.sent == pieces.sent);
	GMB_ASSERT(whole.digest == pieces.digest);
	GMB_ASSERT(strcmp(whole.error.text, pieces.error.text) == 0);
	return 0;
}
