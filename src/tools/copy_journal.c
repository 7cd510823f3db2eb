// SPDX-License-Identifier: Apache-2.0
#include "tools/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum {
	LINE_BYTES = 640,
	CRC_CHARS = 9, /* eight digits and a space */
	HEAD_LINES = 4,
};
/* Enough for 20 million lines. A copy appends one per checkpoint: every 5 seconds or
 * checkpoint_bytes. */
#define JOURNAL_BYTES_MAX (INT64_C(1) << 29)

static const char magic[] = "gmblock copy journal 1";

struct reader {
	const struct copy_journal *journal;
	char *next;
	uint32_t line; /* number of the last line read */
};

/* CRC-32C, bit by bit. That is fast enough for sixty bytes every few seconds. */
static uint32_t checksum(const char *text, size_t bytes)
{
	uint32_t crc = UINT32_MAX;

	for (size_t i = 0; i < bytes; i++) {
		crc ^= (uint8_t)text[i];
		for (int bit = 0; bit < 8; bit++) {
			crc = (crc >> 1) ^ (UINT32_C(0x82f63b78) & (0 - (crc & 1)));
		}
	}
	return ~crc;
}

static int journal_error(
	const struct copy_journal *journal, int code, const char *what, struct error *error)
{
	return error_set(error, code, "cannot %s the journal '%s': %s", what, quote(journal->path),
		code == -ENOENT && journal->fd < 0 ? "create its folder first" : strerror(-code));
}

static int damaged(const struct reader *reader, struct error *error)
{
	return error_set(error, -EINVAL,
		"the journal '%s' is damaged at line %u; remove it to copy from the beginning",
		quote(reader->journal->path), reader->line);
}

/* --- reading ------------------------------------------------------------------------------- */

/* Returns the text of the next line without its checksum, or NULL at the end, for a damaged line
 * and for a torn last line. *bad: the line is damaged, and not a torn last line. */
static char *line_next(struct reader *reader, bool *bad)
{
	char *line = reader->next;
	char *end = strchr(line, '\n');
	char *rest;
	unsigned long crc;

	*bad = false;
	if (*line == '\0') {
		return NULL;
	}
	reader->line++;
	if (end == NULL) {
		return NULL;
	}
	*end = '\0';
	crc = strtoul(line, &rest, 16);
	if (rest != line + CRC_CHARS - 1 || *rest != ' ' ||
		crc != checksum(rest + 1, strlen(rest + 1))) {
		*end = '\n';
		/* Only the last line can be torn. Any part of it may be missing, because its parts
		 * need not be written in order. */
		*bad = end[1] != '\0';
		return NULL;
	}
	reader->next = end + 1;
	return rest + 1;
}

/* Formats the identity of an end. Returns the length without the name at the end, which is not
 * compared, because a file or device can be given by another name. */
static size_t end_format(
	char line[LINE_BYTES], const char *word, const struct copy_end *end, uint64_t bytes)
{
	uint32_t uri = end->kind == COPY_REMOTE ? checksum(end->text, strlen(end->text)) : 0;
	int count = snprintf(line, LINE_BYTES,
		"%s %d %" PRIu64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx32 " ",
		word, (int)end->kind, bytes, end->identity[0], end->identity[1], end->identity[2],
		end->identity[3], uri);

	snprintf(line + count, LINE_BYTES - (size_t)count, "%s", end->name);
	return (size_t)count;
}

/* Returns the size to record. A target that is a file gets the size of the copy when it is
 * prepared. */
static uint64_t target_bytes(const struct copy_end *source, const struct copy_end *target)
{
	return target->kind == COPY_FILE ? source->bytes : target->bytes;
}

static int head_check(struct reader *reader, const struct copy_end *source,
	const struct copy_end *target, struct error *error)
{
	const struct copy_end *ends[] = { source, target };
	static const char *const words[] = { "source", "target" };
	char expected[LINE_BYTES];

	for (size_t i = 0; i < ARRAY_COUNT(ends); i++) {
		bool bad;
		const char *line = line_next(reader, &bad);
		size_t bytes;

		if (line == NULL) {
			return damaged(reader, error);
		}
		bytes = end_format(expected, words[i], ends[i],
			i == 0 ? source->bytes : target_bytes(source, target));
		if (strncmp(line, expected, bytes) != 0) {
			return error_set(error, -ESTALE,
				"the journal '%s' belongs to another copy: %s %s is different or "
				"has changed since then; remove the journal to copy from the "
				"beginning",
				quote(reader->journal->path), ends[i]->role, ends[i]->name);
		}
	}
	return 0;
}

static int options_check(
	struct reader *reader, struct copy_journal *journal, bool allocate, struct error *error)
{
	bool bad;
	const char *line = line_next(reader, &bad);
	int was_allocate;
	int was_zero;

	if (line == NULL || sscanf(line, "options %d %d", &was_allocate, &was_zero) != 2) {
		return damaged(reader, error);
	}
	if ((was_allocate != 0) != allocate) {
		return error_set(error, -ESTALE,
			"the copy in the journal '%s' was started %s --allocate; resume it in "
			"the same way, or remove the journal to copy from the beginning",
			quote(journal->path), was_allocate != 0 ? "with" : "without");
	}
	journal->target_zero = was_zero != 0;
	return 0;
}

static int records_read(
	struct reader *reader, struct copy_journal *journal, uint64_t bytes, struct error *error)
{
	const char *line;
	bool bad;

	while ((line = line_next(reader, &bad)) != NULL) {
		uint64_t offset;
		char after;

		if (sscanf(line, "durable %" SCNu64 "%c", &offset, &after) != 1 ||
			offset < journal->durable || offset > bytes) {
			return damaged(reader, error);
		}
		journal->durable = offset;
	}
	return bad ? damaged(reader, error) : 0;
}

static int journal_parse(struct copy_journal *journal, char *text, const struct copy_end *source,
	const struct copy_end *target, bool allocate, struct error *error)
{
	struct reader reader = { .journal = journal, .next = text };
	const char *line;
	bool bad;
	int err;

	line = line_next(&reader, &bad);
	if (line == NULL || strcmp(line, magic) != 0) {
		return error_set(error, -EINVAL,
			"'%s' is not a gmblock copy journal, or has an unknown version; it was not "
			"changed",
			quote(journal->path));
	}
	err = head_check(&reader, source, target, error);
	err = err ?: options_check(&reader, journal, allocate, error);
	err = err ?: records_read(&reader, journal, source->bytes, error);
	journal->length = (uint64_t)(reader.next - text);
	journal->resumed = true;
	return err;
}

/* Reads the whole file, terminated; *text_out is NULL when it is empty. */
static int journal_read(struct copy_journal *journal, char **text_out, struct error *error)
{
	struct stat status;
	char *text;
	ssize_t count;

	if (fstat(journal->fd, &status) != 0) {
		return journal_error(journal, -errno, "examine", error);
	}
	*text_out = NULL;
	if (!S_ISREG(status.st_mode) || status.st_size > JOURNAL_BYTES_MAX) {
		return journal_error(
			journal, S_ISREG(status.st_mode) ? -EFBIG : -EINVAL, "use", error);
	}
	if (status.st_size == 0) {
		return 0;
	}
	text = calloc(1, (size_t)status.st_size + 1);
	if (text == NULL) {
		return error_oom(error);
	}
	count = pread(journal->fd, text, (size_t)status.st_size, 0);
	if (count != status.st_size) {
		free(text);
		return journal_error(journal, count < 0 ? -errno : -EIO, "read", error);
	}
	*text_out = text;
	return 0;
}

int copy_journal_open(struct copy_journal *journal, const char *path, const struct copy_end *source,
	const struct copy_end *target, bool allocate, struct error *error)
{
	char *text = NULL;
	int err;

	memset(journal, 0, sizeof(*journal));
	journal->fd = -1;
	if (path == NULL) {
		return 0;
	}
	journal->path = strdup(path);
	if (journal->path == NULL) {
		return error_oom(error);
	}
	journal->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
	if (journal->fd < 0) {
		return journal_error(journal, -errno, "open", error);
	}
	if (copy_end_is_open(source, journal->fd) || copy_end_is_open(target, journal->fd)) {
		return error_set(error, -EINVAL,
			"the journal '%s' must be a different file from the source and the target",
			quote(journal->path));
	}
	if (flock(journal->fd, LOCK_EX | LOCK_NB) != 0) {
		err = -errno;
		return err == -EWOULDBLOCK
			       ? error_set(error, -EBUSY,
					 "the journal '%s' is in use by another gmblock copy",
					 quote(journal->path))
			       : journal_error(journal, err, "lock", error);
	}
	err = journal_read(journal, &text, error);
	if (err == 0 && text != NULL) {
		err = journal_parse(journal, text, source, target, allocate, error);
		free(text);
	}
	return err;
}

/* --- writing ------------------------------------------------------------------------------- */

static size_t line_format(char *out, size_t out_bytes, const char *line)
{
	int count =
		snprintf(out, out_bytes, "%08" PRIx32 " %s\n", checksum(line, strlen(line)), line);

	GMB_ASSERT(count > 0 && (size_t)count < out_bytes);
	return (size_t)count;
}

static int journal_append(
	struct copy_journal *journal, const char *text, size_t bytes, struct error *error)
{
	ssize_t count;

	do {
		count = pwrite(journal->fd, text, bytes, (off_t)journal->length);
	} while (count < 0 && errno == EINTR);
	if (count != (ssize_t)bytes) {
		return journal_error(journal, count < 0 ? -errno : -ENOSPC, "write", error);
	}
	/* If this line has overwritten the beginning of a longer torn line, removes the rest of the
	 * torn line. */
	if (ftruncate(journal->fd, (off_t)(journal->length + bytes)) != 0 ||
		fdatasync(journal->fd) != 0) {
		return journal_error(journal, -errno, "flush", error);
	}
	journal->length += bytes;
	return 0;
}

int copy_journal_begin(struct copy_journal *journal, const struct copy_end *source,
	const struct copy_end *target, bool allocate, struct error *error)
{
	char lines[HEAD_LINES][LINE_BYTES];
	char text[HEAD_LINES * (LINE_BYTES + CRC_CHARS + 1)];
	size_t used = 0;

	if (journal->fd < 0 || journal->resumed) {
		return 0;
	}
	snprintf(lines[0], LINE_BYTES, "%s", magic);
	(void)end_format(lines[1], "source", source, source->bytes);
	(void)end_format(lines[2], "target", target, target_bytes(source, target));
	snprintf(lines[3], LINE_BYTES, "options %d %d", allocate, target->known_zero);
	for (size_t i = 0; i < HEAD_LINES; i++) {
		used += line_format(text + used, sizeof(text) - used, lines[i]);
	}
	return journal_append(journal, text, used, error);
}

int copy_journal_record(struct copy_journal *journal, uint64_t offset, struct error *error)
{
	char line[LINE_BYTES];
	char text[LINE_BYTES + CRC_CHARS + 1];
	int err;

	GMB_ASSERT(journal->fd >= 0);
	GMB_ASSERT(offset >= journal->durable);
	snprintf(line, sizeof(line), "durable %" PRIu64, offset);
	err = journal_append(journal, text, line_format(text, sizeof(text), line), error);
	if (err == 0) {
		journal->durable = offset;
	}
	return err;
}

int copy_journal_remove(struct copy_journal *journal, struct error *error)
{
	if (journal->fd >= 0 && unlink(journal->path) != 0) {
		return journal_error(journal, -errno, "remove", error);
	}
	return 0;
}

void copy_journal_close(struct copy_journal *journal)
{
	struct stat status;

	/* The copy never started, so the empty file is removed. */
	if (journal->fd >= 0 && fstat(journal->fd, &status) == 0 && S_ISREG(status.st_mode) &&
		status.st_size == 0 && status.st_nlink > 0) {
		(void)unlink(journal->path);
	}
	if (journal->fd >= 0) {
		close(journal->fd);
	}
	free(journal->path);
	journal->path = NULL;
	journal->fd = -1;
}
