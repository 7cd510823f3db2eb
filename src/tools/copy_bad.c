// SPDX-License-Identifier: Apache-2.0
/*
 * Unreadable parts of the source: a piece that failed is read again in small blocks, and the ranges
 * of the blocks that fail again are kept for the map.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "tools/copy.h"

enum {
	/* Disks and file systems lose data in units of at least this size. */
	BLOCK_BYTES_MIN = 4096,
	RANGES_FIRST = 64,
	/* 16 MiB of memory. More ranges end the copy, because such a source is not worth
	 * rescuing. */
	RANGES_MAX = 1 << 20,
};

/* --- the ranges ---------------------------------------------------------------------------- */

bool copy_bad_takes(const struct copy_bad *bad, int result)
{
	/* Disks and file systems report lost data with these errors. Other errors end the copy, for
	 * example if a server is gone. Such a copy can be continued later. */
	return bad->file != NULL &&
	       (result == -EIO || result == -ENODATA || result == -EILSEQ || result == -EBADMSG);
}

static int copy_bad_make_room(struct copy_bad *bad, struct error *error)
{
	size_t room = bad->room == 0 ? (size_t)RANGES_FIRST : 2 * bad->room;
	struct copy_bad_range *ranges;

	if (bad->count < bad->room) {
		return 0;
	}
	if (room > RANGES_MAX) {
		return error_set(error, -E2BIG,
			"more than %d separate ranges of the source cannot be read", RANGES_MAX);
	}
	ranges = reallocarray(bad->ranges, room, sizeof(*ranges));
	if (ranges == NULL) {
		return error_oom(error);
	}
	bad->ranges = ranges;
	bad->room = room;
	return 0;
}

int copy_bad_add(struct copy_bad *bad, uint64_t start, uint64_t end, const struct error *reason,
	struct error *error)
{
	struct copy_bad_range *ranges;
	size_t at = bad->count;
	int err = copy_bad_make_room(bad, error);

	if (err < 0) {
		return err;
	}
	ranges = bad->ranges;
	/* Pieces arrive nearly in order, so the position is searched from the end. */
	while (at > 0 && ranges[at - 1].start > start) {
		at--;
	}
	if (at == 0) {
		bad->first = *reason;
	}
	bad->bytes += end - start;
	if (at > 0 && ranges[at - 1].end == start) {
		ranges[--at].end = end;
	} else {
		memmove(&ranges[at + 1], &ranges[at], (bad->count - at) * sizeof(*ranges));
		ranges[at] = (struct copy_bad_range){ .start = start, .end = end };
		bad->count++;
	}
	if (at + 1 < bad->count && ranges[at + 1].start == end) {
		ranges[at].end = ranges[at + 1].end;
		bad->count--;
		memmove(&ranges[at + 1], &ranges[at + 2], (bad->count - at - 1) * sizeof(*ranges));
	}
	return 0;
}

/* --- a piece in small blocks --------------------------------------------------------------- */

static void rescue_next(struct copy_rescue *rescue);

static void rescue_end(struct copy_rescue *rescue, const struct error *error)
{
	rescue->done(rescue, error);
}

/* Ends the range of consecutive blocks that failed. */
static int range_end(struct copy_rescue *rescue, struct error *error)
{
	uint64_t start = rescue->bad_start;

	rescue->bad_start = UINT64_MAX;
	return start == UINT64_MAX ? 0
				   : copy_bad_add(rescue->bad, start, rescue->io.offset,
					     &rescue->reason, error);
}

static void block_read(struct copy_io *io)
{
	struct copy_rescue *rescue = container_of(io, struct copy_rescue, io);
	uint64_t bytes = io->length;
	struct error error;

	if (io->result < 0 && !copy_bad_takes(rescue->bad, io->result)) {
		rescue_end(rescue, &io->end->failure);
		return;
	}
	if (io->result < 0) {
		memset(io->buffer, 0, bytes);
		if (rescue->bad_start == UINT64_MAX) {
			rescue->bad_start = io->offset;
			rescue->reason = io->end->failure;
		}
	} else if (range_end(rescue, &error) < 0) {
		rescue_end(rescue, &error);
		return;
	} else {
		rescue->read += bytes;
	}
	io->offset += bytes;
	io->buffer += bytes;
	rescue_next(rescue);
}

static void rescue_next(struct copy_rescue *rescue)
{
	struct copy_io *io = &rescue->io;
	uint64_t block = MAX(rescue->source->block_min, (uint32_t)BLOCK_BYTES_MIN);
	struct error error;

	if (io->offset == rescue->end || *rescue->stopping) {
		rescue_end(rescue, range_end(rescue, &error) < 0 ? &error : NULL);
		return;
	}
	io->length = MIN(align_up(io->offset + 1, block), rescue->end) - io->offset;
	copy_loop_moves(rescue->source->loop, io->length);
	copy_end_submit(rescue->source, io);
}

void copy_rescue_begin(struct copy_rescue *rescue, const struct copy_io *failed)
{
	rescue->source = failed->end;
	rescue->end = failed->offset + failed->length;
	rescue->bad_start = UINT64_MAX;
	rescue->read = 0;
	rescue->io.operation = COPY_READ;
	rescue->io.offset = failed->offset;
	rescue->io.buffer = failed->buffer;
	rescue->io.done = block_read;
	rescue_next(rescue);
}

/* --- the map ------------------------------------------------------------------------------- */

static int map_error(const struct copy_bad *bad, int code, const char *what, struct error *error)
{
	return error_set(
		error, code, "cannot %s the map '%s': %s", what, quote(bad->path), strerror(-code));
}

/* Rejects anything but a regular file, so that a disk given here by mistake is not overwritten. */
static int copy_bad_map_check(const struct copy_bad *bad, int fd, struct error *error)
{
	struct stat status;

	if (fstat(fd, &status) != 0) {
		return map_error(bad, -errno, "examine", error);
	}
	if (!S_ISREG(status.st_mode) || status.st_size != 0) {
		return error_set(error, -EEXIST,
			"the map '%s' already exists and is not overwritten; name a new file or "
			"remove this one",
			quote(bad->path));
	}
	return 0;
}

int copy_bad_open(struct copy_bad *bad, const char *path, const struct copy_end *source,
	const struct copy_end *target, struct error *error)
{
	int err;
	int fd;

	if (path == NULL) {
		return 0;
	}
	bad->path = path;
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
	if (fd < 0) {
		return map_error(bad, -errno, "open", error);
	}
	if (copy_end_is_open(source, fd) || copy_end_is_open(target, fd)) {
		err = error_set(error, -EINVAL,
			"the map '%s' must be a different file from the source and the target",
			quote(bad->path));
	} else {
		err = copy_bad_map_check(bad, fd, error);
	}
	if (err == 0) {
		bad->file = fdopen(fd, "w");
		err = bad->file == NULL ? error_oom(error) : 0;
	}
	if (err < 0) {
		close(fd);
	}
	return err;
}

static void map_line(const struct copy_bad *bad, uint64_t start, uint64_t end, char status)
{
	if (start < end) {
		fprintf(bad->file, "0x%08" PRIX64 "  0x%08" PRIX64 "  %c\n", start, end - start,
			status);
	}
}

/* Writes the lines of the map. Everything from bad->finished on is listed as not tried, even ranges
 * that were found to be unreadable, because the target might not have zeroes there yet. */
static void map_lines(const struct copy_bad *bad, uint64_t total)
{
	uint64_t finished = bad->finished;
	uint64_t at = 0;

	fprintf(bad->file,
		"# Mapfile. Created by gmblock copy\n"
		"# current_pos  current_status  current_pass\n"
		"0x%08" PRIx64 "     %c               1\n"
		"#      pos        size  status\n",
		finished, finished < total ? '?' : '+');
	for (size_t i = 0; i < bad->count && bad->ranges[i].start < finished; i++) {
		uint64_t end = MIN(bad->ranges[i].end, finished);

		map_line(bad, at, bad->ranges[i].start, '+');
		map_line(bad, bad->ranges[i].start, end, '-');
		at = end;
	}
	map_line(bad, at, finished, '+');
	map_line(bad, finished, total, '?');
}

int copy_bad_write(struct copy_bad *bad, uint64_t total, struct error *error)
{
	if (bad->file == NULL) {
		return 0;
	}
	map_lines(bad, total);
	if (fflush(bad->file) != 0 || fsync(fileno(bad->file)) != 0) {
		return map_error(bad, -errno, "write", error);
	}
	bad->is_written = true;
	return 0;
}

void copy_bad_close(struct copy_bad *bad)
{
	if (bad->file != NULL) {
		(void)fclose(bad->file);
		if (!bad->is_written) {
			(void)unlink(bad->path); /* the file is empty */
		}
	}
	free(bad->ranges);
	memset(bad, 0, sizeof(*bad));
}
