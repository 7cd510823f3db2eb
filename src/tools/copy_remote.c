// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tools/copy_end.h"

enum {
	/* Several fill a long line and keep several threads of a server busy; Unix sockets need
	 * them, since their buffers are small; and over loopback four cost each other less than
	 * two. */
	CONNECTIONS_DEFAULT = 4,
	/* At the end a server flushes all that it has cached, which may be much more than its disk
	 * writes in a minute, and says nothing meanwhile. That a machine is dead comes out sooner:
	 * its system does not answer either (keep-alive). */
	SILENCE_MS_MAX = 300000,
	RECONNECT_MS_MAX = 600000,
};

struct remote_end {
	struct copy_end end;
	struct gmb_client *client;
};

static void request_done(struct gmb_request *request)
{
	struct copy_io *io = container_of(request, struct copy_io, request);
	struct remote_end *remote = container_of(io->end, struct remote_end, end);
	char text[ERROR_TEXT_BYTES];

	if (request->result < 0) {
		(void)gmb_explain(remote->client, request, text, sizeof(text));
		error_set(&io->end->failure, request->result, "%s: %s", io->end->role, text);
		copy_io_end(io, request->result);
		return;
	}
	io->extent_count = request->extent_count;
	io->moved = io->length;
	copy_io_end(io, 0);
}

static void remote_submit(struct copy_end *end, struct copy_io *io)
{
	struct remote_end *remote = container_of(end, struct remote_end, end);
	struct gmb_request *request = &io->request;

	memset(request, 0, sizeof(*request));
	switch (io->operation) {
	case COPY_READ:
		gmb_prepare_read(request, io->buffer, io->length, io->offset);
		break;
	case COPY_WRITE:
		gmb_prepare_write(request, io->buffer, io->length, io->offset);
		break;
	case COPY_ZERO:
		gmb_prepare(request, GMB_ZERO, io->offset, io->length);
		request->flags = io->allocate ? GMB_NO_HOLE : 0;
		break;
	case COPY_FLUSH:
		gmb_prepare(request, GMB_FLUSH, 0, 0);
		break;
	case COPY_MAP:
		gmb_prepare_status(request, io->extents, io->extents_max, io->offset, io->length);
		break;
	}
	request->done = request_done;
	gmb_submit(remote->client, request);
}

static int remote_close(struct copy_end *end, struct error *error)
{
	struct remote_end *remote = container_of(end, struct remote_end, end);

	GMB_UNUSED(error);
	(void)gmb_close(remote->client);
	copy_end_fini(end);
	free(remote);
	return 0;
}

static const struct copy_end_ops remote_ops = {
	.submit = remote_submit,
	.close = remote_close,
};

static void remote_event(void *context, enum gmb_event event, const char *text)
{
	struct copy_end *end = context;

	if (event == GMB_EVENT_RECONNECTED) { /* the text is the URI alone */
		log_warning("%s: %s: connected again", end->role, text);
		return;
	}
	if (event == GMB_EVENT_RESIZED) {
		end->resized = true;
	}
	log_warning("%s: %s", end->role, text);
}

/* -EROFS for a target that cannot be written. */
static int remote_describe(struct remote_end *remote, struct error *error)
{
	struct copy_end *end = &remote->end;
	struct gmb_info info = { .size = sizeof(info) };

	gmb_get_info(remote->client, &info);
	end->kind = COPY_REMOTE;
	end->size_known = true;
	end->bytes = info.bytes;
	end->block_min = info.block_minimum;
	end->can_map = (info.capabilities & GMB_CAN_STATUS) != 0;
	end->can_zero = (info.capabilities & GMB_CAN_ZERO) != 0;
	end->can_flush = (info.capabilities & GMB_CAN_FLUSH) != 0;
	if (end->target && (info.capabilities & GMB_CAN_WRITE) == 0) {
		return error_set(error, -EROFS,
			"the target %s is read-only: its server allows no writing", end->name);
	}
	return 0;
}

int copy_remote_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error)
{
	struct remote_end *remote = calloc(1, sizeof(*remote));
	struct gmb_options open = {
		.size = sizeof(open),
		.flags = options->target ? 0 : GMB_OPEN_READ_ONLY,
		.connections =
			options->connections != 0 ? options->connections : CONNECTIONS_DEFAULT,
		.request_timeout_ms = SILENCE_MS_MAX,
		.reconnect_timeout_ms = RECONNECT_MS_MAX,
		.event = remote_event,
		.context = remote != NULL ? &remote->end : NULL,
	};
	struct gmb_error reason;
	int err;

	if (remote == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	err = copy_end_init(&remote->end, &remote_ops, loop, options, error);
	if (err == 0) {
		err = gmb_open(loop->queue, options->text, &open, &remote->client, &reason);
		if (err < 0) {
			error_set(error, err, "%s: %s", remote->end.role, reason.text);
		}
	}
	if (err == 0) {
		err = remote_describe(remote, error);
	}
	if (err < 0) {
		(void)remote_close(&remote->end, NULL);
		return err;
	}
	*end_out = &remote->end;
	return 0;
}
