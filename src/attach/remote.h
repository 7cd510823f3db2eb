// SPDX-License-Identifier: Apache-2.0
/*
 * The remote end of an attachment through libgmblock: one queue with one client, opened with the
 * attachment's options. Failures are logged and recorded in the device's health. A change of the
 * export's size is reported to the device.
 *
 * Threading: opened, used and closed by one thread. Ownership: the caller's struct, which
 * remote_close() clears. Errors: as gmb_open(), with its error message.
 */
#pragma once

#include <gmblock/gmblock.h>

#include "attach/attach.h"
#include "base/log.h"

struct remote {
	struct gmb_queue *queue;
	struct gmb_client *client;
	struct gmb_info info; /* information about the export when it was opened */
	struct device *device;
	bool only_watches;
	struct log_limit failures;
};

/* queue_flags: enum gmb_queue_flags. */
GMB_MUST_CHECK int remote_open(struct remote *remote, const struct attach_options *options,
	struct device *device, uint32_t queue_flags, struct error *error);

/* Opens a connection for a device that has other connections to the server. It only watches the
 * size of the export, and its loss does not affect the device. */
GMB_MUST_CHECK int remote_watch(struct remote *remote, const struct attach_options *options,
	struct device *device, struct error *error);

/* Flushes if the server supports it, and closes. Returns the error of the flush. without_flush:
 * does not wait for a server that does not respond. */
int remote_close(struct remote *remote, bool without_flush, struct error *error);

/* Allocates page-aligned zeroed memory for requests. If the server can access memory of this
 * machine, it can access this memory (gmb_buffer_alloc()). NULL: out of memory. */
void *remote_memory(struct remote *remote, size_t bytes);
/* Frees the memory. No request that uses it may be in flight, and remote_close() must come later.
 * NULL is a no-op. */
void remote_memory_free(struct remote *remote, void *memory, size_t bytes);

/* Logs a failed request, rate-limited. Called from its done(). */
void remote_log_failure(struct remote *remote, const struct gmb_request *request);

static inline bool remote_can(const struct remote *remote, uint32_t capability)
{
	return (remote->info.capabilities & capability) != 0;
}
