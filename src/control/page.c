// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "control/http.h"
#include "control/private.h"

enum { SENTENCE_BYTES = 4 * ERROR_TEXT_BYTES + 64 };

static const char text_type[] = "text/plain; charset=utf-8";

/* Sends an answer. If there is no memory for it, the client gets none. */
static void page_answer(struct control_client *client, int status, const char *type,
	const char *content, size_t bytes, bool head_only)
{
	char head[HTTP_HEAD_BYTES];
	size_t head_bytes = http_head(head, status, type, bytes);
	size_t sent_bytes = head_only ? 0 : bytes;
	char *out = control_client_extend(client, head_bytes + sent_bytes);

	if (out != NULL) {
		memcpy(out, head, head_bytes);
		if (sent_bytes > 0) {
			memcpy(out + head_bytes, content, sent_bytes);
		}
	}
	control_client_answered(client);
}

static void page_refuse(struct control_client *client, int status, const char *why, bool head_only)
{
	char sentence[SENTENCE_BYTES];
	int bytes = snprintf(sentence, sizeof(sentence), "%s%s%s\n", http_status_text(status),
		*why ? ": " : "", why);

	log_debug("metrics: client %llu: refused: %s", (unsigned long long)client->id,
		http_status_text(status));
	page_answer(client, status, text_type, sentence, (size_t)bytes, head_only);
}

/* Compares the path and ignores a query, because the page has no parameters. */
static bool is_page(const struct control_page *page, const struct http_request *request)
{
	size_t bytes = strlen(page->path);

	return request->target_bytes >= bytes && memcmp(request->target, page->path, bytes) == 0 &&
	       (request->target_bytes == bytes || request->target[bytes] == '?');
}

static void page_take_request(struct control_client *client, const char *bytes, size_t count)
{
	const struct control_page *page = client->server->page;
	struct http_request request;
	int status = http_parse(bytes, count, &request);
	bool openmetrics =
		request.openmetrics_weight > 0 && request.openmetrics_weight >= request.text_weight;
	struct error error = { 0 };
	const char *content = NULL;
	size_t content_bytes = 0;

	if (status == HTTP_OK && !is_page(page, &request)) {
		status = 404;
		error_set(&error, -ENOENT, "this address serves only the page %s", page->path);
	} else if (status == HTTP_OK && page->get(client->server->page_context, openmetrics,
						&content, &content_bytes, &error) < 0) {
		status = 503;
	}
	if (status == HTTP_OK) {
		page_answer(client, status, openmetrics ? page->openmetrics_type : page->type,
			content, content_bytes, request.head);
	} else {
		page_refuse(client, status, error.text, request.head);
	}
}

static void refuse_long(struct control_client *client)
{
	page_refuse(client, 431, "", false);
}

static const struct control_protocol page_protocol = {
	.request_bytes_max = HTTP_REQUEST_BYTES,
	.is_public = true,
	.request_end = http_request_end,
	.take = page_take_request,
	.too_long = refuse_long,
};

int control_page_serve(const struct control_page *page, void *context, const int *listen_fds,
	uint32_t count, struct control_server **server_out, struct error *error)
{
	int rc = control_server_open(&page_protocol, listen_fds, count, server_out, error);

	if (rc == 0) {
		(*server_out)->page = page;
		(*server_out)->page_context = context;
	}
	return rc;
}
