// SPDX-License-Identifier: Apache-2.0
#include "tools/copy_end.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/log.h"

enum { NAME_BYTES = 300 };

enum copy_kind copy_end_kind(const char *text)
{
	struct stat status;

	if (strcmp(text, "-") == 0) {
		return COPY_STREAM;
	}
	if (strstr(text, "://") != NULL) {
		return COPY_REMOTE;
	}
	if (stat(text, &status) != 0) {
		return COPY_FILE;
	}
	if (S_ISBLK(status.st_mode)) {
		return COPY_DEVICE;
	}
	return S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode) ? COPY_STREAM : COPY_FILE;
}

int copy_end_open(struct copy_loop *loop, const struct copy_end_options *options,
	struct copy_end **end_out, struct error *error)
{
	switch (copy_end_kind(options->text)) {
	case COPY_REMOTE:
		return copy_remote_open(loop, options, end_out, error);
	case COPY_STREAM:
		return copy_stream_open(loop, options, end_out, error);
	case COPY_FILE:
	case COPY_DEVICE:
		break;
	}
	return copy_file_open(loop, options, end_out, error);
}

int copy_end_init(struct copy_end *end, const struct copy_end_ops *ops, struct copy_loop *loop,
	const struct copy_end_options *options, struct error *error)
{
	char shown[NAME_BYTES - 2];

	end->ops = ops;
	end->loop = loop;
	end->text = options->text;
	end->target = options->target;
	end->role = options->target ? "the target" : "the source";
	end->block_min = 1;
	end->name = malloc(NAME_BYTES);
	if (end->name == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	if (strcmp(options->text, "-") == 0) {
		snprintf(end->name, NAME_BYTES, "%s",
			options->target ? "standard output" : "standard input");
	} else {
		snprintf(end->name, NAME_BYTES, "'%s'",
			log_escape(shown, sizeof(shown), options->text, strlen(options->text)));
	}
	return 0;
}

void copy_end_fini(struct copy_end *end)
{
	free(end->name);
	end->name = NULL;
}

static bool is_file(const uint64_t a[2], const uint64_t b[2])
{
	return a[1] != 0 && a[0] == b[0] && a[1] == b[1];
}

bool copy_end_is_same(const struct copy_end *a, const struct copy_end *b)
{
	if (a->kind == COPY_REMOTE || b->kind == COPY_REMOTE) {
		return a->kind == b->kind && strcmp(a->text, b->text) == 0;
	}
	return is_file(a->identity, b->identity) || is_file(a->identity, b->backing) ||
	       is_file(a->backing, b->identity) ||
	       (is_file(a->backing, b->backing) && a->backing_at == b->backing_at);
}

int copy_end_prepare(struct copy_end *end, uint64_t bytes, bool resumed, struct error *error)
{
	GMB_ASSERT(end->target);
	return end->ops->prepare != NULL ? end->ops->prepare(end, bytes, resumed, error) : 0;
}

void copy_end_submit(struct copy_end *end, struct copy_io *io)
{
	GMB_ASSERT(!io->in_flight);
	GMB_ASSERT(io->done != NULL);
	GMB_ASSERT(end->target || io->operation == COPY_READ || io->operation == COPY_MAP);
	GMB_ASSERT(!end->size_known || range_inside(io->offset, io->length, end->bytes));
	io->in_flight = true;
	io->end = end;
	io->result = 0;
	io->moved = 0;
	io->extent_count = 0;
	end->ops->submit(end, io);
}

void copy_end_cancel(struct copy_end *end)
{
	if (end->ops->cancel != NULL) {
		end->ops->cancel(end);
	}
}

int copy_end_finish(struct copy_end *end, uint64_t bytes, struct error *error)
{
	return end->ops->finish != NULL ? end->ops->finish(end, bytes, error) : 0;
}

void copy_end_forget(struct copy_end *end)
{
	if (end->ops->forget != NULL) {
		end->ops->forget(end);
	}
}

int copy_end_close(struct copy_end *end, struct error *error)
{
	return end != NULL ? end->ops->close(end, error) : 0;
}

void copy_io_end(struct copy_io *io, int result)
{
	GMB_ASSERT(io->in_flight);
	io->in_flight = false;
	io->result = result;
	io->done(io);
}

void copy_io_fail(struct copy_io *io, int code)
{
	static const char *const verbs[] = {
		[COPY_READ] = "read",
		[COPY_WRITE] = "write",
		[COPY_ZERO] = "zero",
		[COPY_FLUSH] = "flush",
		[COPY_MAP] = "find the holes of",
	};
	struct copy_end *end = io->end;

	GMB_ASSERT(code < 0);
	if (io->operation == COPY_FLUSH) {
		error_set(&end->failure, code, "cannot flush %s %s: %s", end->role, end->name,
			strerror(-code));
	} else if (end->kind == COPY_STREAM) {
		error_set(&end->failure, code, "cannot %s %s %s at byte %llu: %s",
			verbs[io->operation], end->role, end->name, (unsigned long long)io->offset,
			strerror(-code));
	} else {
		error_set(&end->failure, code, "cannot %s %s %s at byte %llu (%llu bytes): %s",
			verbs[io->operation], end->role, end->name, (unsigned long long)io->offset,
			(unsigned long long)io->length, strerror(-code));
	}
	copy_io_end(io, code);
}
