// SPDX-License-Identifier: Apache-2.0
/* Data of handshake options as the server parses it. The first byte chooses the parser. */
#include "fuzz.h"
#include "nbd/wire.h"

static const uint8_t *data_begin;
static const uint8_t *data_end;

static void check_inside(const uint8_t *bytes, size_t length)
{
	GMB_ASSERT(length == 0 || (bytes >= data_begin && bytes <= data_end &&
					  length <= (size_t)(data_end - bytes)));
}

static void check_go(const struct option_go *go)
{
	/* Rule P22: the lengths account for every byte. */
	check_inside(go->name.bytes, go->name.length);
	check_inside(go->requests, (size_t)go->request_count * 2);
	GMB_ASSERT(6 + (size_t)go->name.length + (size_t)go->request_count * 2 ==
		   (size_t)(data_end - data_begin));
	(void)option_go_asks(go, NBD_INFO_BLOCK_SIZE);
}

static void check_context(const struct option_context *context)
{
	const uint8_t *queries = context->queries;
	size_t bytes = 8 + (size_t)context->name.length;

	check_inside(context->name.bytes, context->name.length);
	for (uint32_t i = 0; i < context->query_count; i++) {
		struct option_string query = option_context_next(&queries);

		check_inside(query.bytes, query.length);
		bytes += 4 + (size_t)query.length;
	}
	/* Rule P37. */
	GMB_ASSERT(bytes == (size_t)(data_end - data_begin));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *reason = NULL;

	if (size == 0) {
		return 0;
	}
	data_begin = data + 1;
	data_end = data + size;
	if ((data[0] & 1) == 0) {
		struct option_go go;

		if (option_go_parse(data_begin, (uint32_t)(size - 1), &go, &reason)) {
			check_go(&go);
		} else {
			GMB_ASSERT(reason != NULL);
		}
	} else {
		struct option_context context;

		if (option_context_parse(data_begin, (uint32_t)(size - 1), &context, &reason)) {
			check_context(&context);
		} else {
			GMB_ASSERT(reason != NULL);
		}
	}
	return 0;
}
