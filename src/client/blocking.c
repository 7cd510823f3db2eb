// SPDX-License-Identifier: Apache-2.0
#include <errno.h>

#include "client/client_private.h"

int gmb_run_sized(struct gmb_client *client, struct gmb_request *request, size_t request_bytes)
{
	if (client->queue->inside) {
		return -EDEADLK;
	}
	gmb_submit_sized(client, request, request_bytes);
	request_state(request)->no_done = true;
	while (request->in_flight != 0) {
		queue_round(client->queue, UINT64_MAX);
	}
	return request->result;
}

int gmb_pread(struct gmb_client *client, void *buffer, size_t bytes, uint64_t offset)
{
	struct gmb_request request = { 0 };

	gmb_prepare_read(&request, buffer, bytes, offset);
	return gmb_run(client, &request);
}

int gmb_pwrite(struct gmb_client *client, const void *buffer, size_t bytes, uint64_t offset,
	uint32_t flags)
{
	struct gmb_request request = { 0 };

	gmb_prepare_write(&request, buffer, bytes, offset);
	request.flags = flags;
	return gmb_run(client, &request);
}

static int run_simple(struct gmb_client *client, enum gmb_operation operation, uint64_t offset,
	uint64_t bytes, uint32_t flags)
{
	struct gmb_request request = { 0 };

	gmb_prepare(&request, operation, offset, bytes);
	request.flags = flags;
	return gmb_run(client, &request);
}

int gmb_flush(struct gmb_client *client)
{
	return run_simple(client, GMB_FLUSH, 0, 0, 0);
}

int gmb_trim(struct gmb_client *client, uint64_t offset, uint64_t bytes, uint32_t flags)
{
	return run_simple(client, GMB_TRIM, offset, bytes, flags);
}

int gmb_zero(struct gmb_client *client, uint64_t offset, uint64_t bytes, uint32_t flags)
{
	return run_simple(client, GMB_ZERO, offset, bytes, flags);
}

int gmb_cache(struct gmb_client *client, uint64_t offset, uint64_t bytes)
{
	return run_simple(client, GMB_CACHE, offset, bytes, 0);
}

int gmb_block_status(struct gmb_client *client, uint64_t offset, uint64_t bytes,
	struct gmb_extent *extents, uint32_t *count)
{
	struct gmb_request request = { 0 };
	int err;

	gmb_prepare_status(&request, extents, *count, offset, bytes);
	err = gmb_run(client, &request);
	*count = err == 0 ? request.extent_count : 0;
	return err;
}

int gmb_copy(struct gmb_client *client, uint64_t offset, struct gmb_client *source,
	uint64_t source_offset, uint64_t bytes, uint32_t flags)
{
	struct gmb_request request = { 0 };

	gmb_prepare_copy(&request, offset, source, source_offset, bytes);
	request.flags = flags;
	return gmb_run(client, &request);
}
