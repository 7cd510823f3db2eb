// SPDX-License-Identifier: Apache-2.0
/* A request to the server of metrics, however it arrives: the end is found at the same place, and
 * what is read of it lies within it. */
#include "control/http.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	char head[HTTP_HEAD_BYTES];
	struct http_request request;
	size_t end;
	int status;

	end = http_request_end(text, size);
	GMB_ASSERT(end <= size);
	for (size_t part = 0; part < size; part++) {
		GMB_ASSERT(http_request_end(text, part) == (part < end || end == 0 ? 0 : end));
	}
	status = end > 0 ? http_parse(text, end, &request) : 400;
	if (status == HTTP_OK) {
		GMB_ASSERT(request.target_bytes > 0 && request.target > text);
		GMB_ASSERT(request.target + request.target_bytes < text + end);
		GMB_ASSERT(request.text_weight <= 1000 && request.openmetrics_weight <= 1000);
	} else {
		GMB_ASSERT(status == 400 || status == 405 || status == 505);
	}
	GMB_ASSERT(http_head(head, status, "text/plain", size) < sizeof(head));
	free(text);
	return 0;
}
