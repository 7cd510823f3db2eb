// SPDX-License-Identifier: Apache-2.0
#include "attach/remote.h"

#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/export_uri.h"

/* Records the server in use if the URI names several. */
static void remote_show_server(const struct remote *remote)
{
	struct export_uri uri;

	if (remote->client == NULL || remote->only_watches ||
		export_uri_parse(gmb_uri(remote->client), &uri, NULL) != 0) {
		return;
	}
	if (export_uri_hosts(&uri) > 1) {
		health_set_server(&remote->device->health, gmb_server(remote->client));
	}
	export_uri_fini(&uri);
}

/* Logs events of the library. The library's messages are complete, so only the level is added. */
static void remote_remote_event(void *context, enum gmb_event event, const char *text)
{
	struct remote *remote = context;
	struct gmb_info info = { .size = sizeof(info) };

	if (remote->only_watches && event != GMB_EVENT_RESIZED) {
		log_debug("connection that watches the export size: %s", text);
		return;
	}
	switch (event) {
	case GMB_EVENT_SILENT:
		log_warning("%s", text);
		break;
	case GMB_EVENT_LOST:
		log_warning("%s", text);
		health_set(&remote->device->health, false, text);
		break;
	case GMB_EVENT_RETRYING:
		log_limited(&remote->failures, clock_now_ns(), LOG_LEVEL_WARNING, "%s", text);
		health_set(&remote->device->health, false, text);
		break;
	case GMB_EVENT_RECONNECTED:
		log_info("%s: reconnected", text);
		remote_show_server(remote);
		health_set(&remote->device->health, true, NULL);
		break;
	case GMB_EVENT_GAVE_UP:
		log_error("%s", text);
		health_set(&remote->device->health, false, text);
		break;
	case GMB_EVENT_RESIZED:
		if (remote->client != NULL) {
			/* While the client is being opened, remote->client is NULL.
			 * open_client() reads the size afterwards. */
			gmb_get_info(remote->client, &info);
			device_export_resized(remote->device, info.bytes);
		}
		break;
	}
}

static int open_client(struct remote *remote, const struct attach_options *options,
	uint32_t queue_flags, struct error *error)
{
	const struct gmb_queue_options queue_options = {
		.size = sizeof(queue_options),
		.flags = queue_flags,
	};
	struct gmb_options client_options = {
		.size = sizeof(client_options),
		.flags = GMB_OPEN_URI_FILES | (options->read_only ? GMB_OPEN_READ_ONLY : 0) |
			 (options->lease.preempt ? GMB_OPEN_PREEMPT : 0),
		.connections = options->connections,
		.connect_timeout_ms = clock_milliseconds(options->connect_timeout_ns),
		.request_timeout_ms = clock_milliseconds(options->request_timeout_ns),
		.slow_timeout_ms = clock_milliseconds(attach_slow_ns(options, ATTACH_SLOW_NS)),
		.reconnect_timeout_ms = clock_milliseconds(options->reconnect_timeout_ns),
		.event = remote_remote_event,
		.context = remote,
		.lease = options->lease.mode,
		.lease_ms = options->lease.ms,
	};
	struct gmb_error failure = { 0 };
	int err;

	memcpy(client_options.lease_id, options->lease.id, sizeof(client_options.lease_id));
	err = gmb_queue_create(&queue_options, &remote->queue, &failure);
	if (err == 0) {
		err = gmb_open(
			remote->queue, options->uri, &client_options, &remote->client, &failure);
	}
	if (err != 0) {
		gmb_queue_destroy(remote->queue);
		remote->queue = NULL;
		return error_set(error, err, "%s", failure.text);
	}
	remote->info.size = sizeof(remote->info);
	gmb_get_info(remote->client, &remote->info);
	remote_show_server(remote);
	return 0;
}

int remote_open(struct remote *remote, const struct attach_options *options, struct device *device,
	uint32_t queue_flags, struct error *error)
{
	*remote = (struct remote){ .device = device };
	return open_client(remote, options, queue_flags, error);
}

int remote_watch(struct remote *remote, const struct attach_options *options, struct device *device,
	struct error *error)
{
	struct attach_options quiet = *options;
	int rc;

	quiet.connections = 1;
	quiet.read_only = true;
	quiet.lease = (struct lease_want){ 0 };
	*remote = (struct remote){ .device = device, .only_watches = true };
	rc = open_client(remote, &quiet, 0, error);
	if (rc == 0) {
		device_export_resized(device, remote->info.bytes);
	}
	return rc;
}

int remote_close(struct remote *remote, bool without_flush, struct error *error)
{
	int err = 0;

	if (remote->client != NULL && !without_flush && remote_can(remote, GMB_CAN_WRITE) &&
		remote_can(remote, GMB_CAN_FLUSH)) {
		err = gmb_flush(remote->client);
		if (err != 0) {
			error_set(error, err,
				"the last flush failed (%s): writes since the previous flush may "
				"be lost",
				strerror(-err));
		}
	}
	gmb_close(remote->client);
	gmb_queue_destroy(remote->queue);
	remote->client = NULL;
	remote->queue = NULL;
	return err;
}

/* Returns whether the server accesses our memory directly. Only then are buffers of the library an
 * advantage. They have a cost: all of their memory is populated before the disk can be used. */
static bool uses_placed_replies(const struct remote *remote)
{
	return remote->info.replies == GMB_REPLIES_PLACED;
}

void *remote_memory(struct remote *remote, size_t bytes)
{
	void *memory;

	if (uses_placed_replies(remote)) {
		return gmb_buffer_alloc(remote->queue, bytes, 0, &memory, NULL) == 0 ? memory
										     : NULL;
	}
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return memory != MAP_FAILED ? memory : NULL;
}

void remote_memory_free(struct remote *remote, void *memory, size_t bytes)
{
	if (memory == NULL) {
		return;
	}
	if (uses_placed_replies(remote)) {
		gmb_buffer_free(remote->queue, memory);
	} else {
		munmap(memory, bytes);
	}
}

void remote_log_failure(struct remote *remote, const struct gmb_request *request)
{
	char text[512];

	gmb_explain(remote->client, request, text, sizeof(text));
	log_limited(&remote->failures, clock_now_ns(), LOG_LEVEL_ERROR, "%s", text);
}
