// SPDX-License-Identifier: Apache-2.0
/* Text of peers on its way to logs and terminals: printable, valid, inside its buffer. The first
 * byte chooses the size of the buffer. */
#include "base/log.h"
#include "base/text.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t out_bytes = size > 0 ? 8 + data[0] : 8;
	char *out = malloc(out_bytes);
	const uint8_t *peer = size > 0 ? data + 1 : data;
	size_t peer_bytes = size > 0 ? size - 1 : 0;
	size_t len;

	GMB_ASSERT(out != NULL);
	GMB_ASSERT(log_escape(out, out_bytes, peer, peer_bytes) == out);
	len = strnlen(out, out_bytes);
	GMB_ASSERT(len < out_bytes);
	GMB_ASSERT(utf8_valid(out, len));
	for (size_t i = 0; i < len; i++) {
		uint8_t c = (uint8_t)out[i];

		GMB_ASSERT(c >= 0x20 && c != 0x7f && c != '"');
		/* C1 control characters move cursors, too. */
		GMB_ASSERT(c != 0xc2 || i + 1 >= len || (uint8_t)out[i + 1] >= 0xa0);
	}
	free(out);
	return 0;
}
