// SPDX-License-Identifier: Apache-2.0
/*
 * The remote end of an attachment through libgmblock: one queue with one client, opened as the
 * attachment's options say, whose failures are logged and recorded in the device's health. When the
 * size of the export changes, the device is told.
 *
 * Threading: opened, used and closed by one thread. Ownership: the caller's struct, emptied by
 * remote_close(). Errors: those of gmb_open(), with its sentence.
 */
#pragma once

#include <gmblock/gmblock.h>

#include "attach/attach.h"
#include "base/log.h"

struct remote {
	struct gmb_queue *queue;
	struct gmb_client *client;
	struct gmb_info info; /* as it was opened */
	struct device *device;
	bool only_watches;
	struct log_limit failures;
};

GMB_MUST_CHECK int remote_open(struct remote *remote, const struct attach_options *options,
	struct device *device, struct error *error);

/* For a device that has other connections to the server: one that only hears of the size of the
 * export, whose losses are not those of the device. */
GMB_MUST_CHECK int remote_watch(struct remote *remote, const struct attach_options *options,
	struct device *device, struct error *error);

/* Flushes if the server can, and closes. A failed flush is the error. without_flush: does not wait
 * for a server that does not answer. */
int remote_close(struct remote *remote, bool without_flush, struct error *error);

/* Page-aligned zeroed memory for requests, where the server reaches it if it reaches any of this
 * machine (gmb_buffer_alloc()). NULL: there is none. */
void *remote_memory(struct remote *remote, size_t bytes);
/* No request that uses it is in flight, and remote_close() comes later. NULL is a no-op. */
void remote_memory_free(struct remote *remote, void *memory, size_t bytes);

/* Logs a failed request, rate-limited. To be called from its done. */
void remote_log_failure(struct remote *remote, const struct gmb_request *request);

static inline bool remote_can(const struct remote *remote, uint32_t capability)
{
	return (remote->info.capabilities & capability) != 0;
}
