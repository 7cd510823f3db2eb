// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/text.h"

/* Relaxed accesses suffice: the level protects no other data, and a line written during a change
 * may be filtered by the old or the new level. */
static _Atomic int log_level_max = LOG_LEVEL_INFO;
static atomic_bool level_is_named;

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&log_level_max, (int)level, memory_order_relaxed);
}

int log_set_level_name(const char *name)
{
	static const char *const names[] = { "error", "warning", "info", "debug" };

	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		if (strcmp(name, names[i]) == 0) {
			log_set_level((enum log_level)i);
			atomic_store_explicit(&level_is_named, true, memory_order_relaxed);
			return 0;
		}
	}
	return -EINVAL;
}

void log_set_level_default(enum log_level level)
{
	if (!atomic_load_explicit(&level_is_named, memory_order_relaxed)) {
		log_set_level(level);
	}
}

void log_init(void)
{
	static atomic_flag done = ATOMIC_FLAG_INIT;
	const char *name = getenv("GMBLOCK_LOG");

	if (!atomic_flag_test_and_set_explicit(&done, memory_order_relaxed) && name != NULL &&
		name[0] != '\0' && log_set_level_name(name) < 0) {
		log_warning("GMBLOCK_LOG: \"%s\" is not error, warning, info or debug: ignored",
			quote(name));
	}
}

bool log_enabled(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&log_level_max, memory_order_relaxed);
}

static const char *level_prefix(enum log_level level)
{
	static const char *const journal[] = { "<3>", "<4>", "<6>", "<7>" };
	static const char *const words[] = {
		"gmblock: error: ", "gmblock: warning: ", "gmblock: ", "gmblock: debug: "
	};

	return getenv("JOURNAL_STREAM") != NULL ? journal[level] : words[level];
}

/* --- the journal --------------------------------------------------------------------------- */

enum {
	LINE_BYTES = 2048,
	FIELDS_BYTES = 2048, /* size of all journal fields except the message */
};

static int journal_fd = -1; /* set before other threads exist */

void log_open_journal(void)
{
	const struct sockaddr_un address = { .sun_family = AF_UNIX,
		.sun_path = "/run/systemd/journal/socket" };
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device;
	unsigned long long inode;
	struct stat output;
	int fd;

	/* JOURNAL_STREAM can be stale: it is inherited, and standard error can be redirected. */
	if (stream == NULL || sscanf(stream, "%llu:%llu", &device, &inode) != 2 ||
		fstat(STDERR_FILENO, &output) < 0 || output.st_dev != device ||
		output.st_ino != inode) {
		return;
	}
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		fd = -1;
	}
	journal_fd = fd;
}

/* Sends a line in the journal's native protocol (systemd: docs/JOURNAL_NATIVE_PROTOCOL.md): one
 * field on each line; the message, which may contain any bytes, is preceded by its length. Returns
 * false if the journal did not accept it. */
static bool send_to_journal(enum log_level level, const struct log_about *about, const char *text)
{
	static const int priorities[] = { 3, 4, 6, 7 };
	uint64_t text_bytes = htole64(strlen(text));
	char error[32] = "";
	char fields[FIELDS_BYTES];
	const struct {
		const char *name;
		const char *value;
	} list[] = {
		{ "MESSAGE_ID", about->message_id },
		{ "EXPORT", about->export },
		{ "CLIENT", about->client },
		{ "REASON", about->reason },
		{ "ERRNO", about->error != 0 ? error : NULL },
	};
	int used = snprintf(fields, sizeof(fields), "PRIORITY=%d\nSYSLOG_IDENTIFIER=gmblock\n",
		priorities[level]);
	struct iovec parts[] = { { fields, 0 }, { (void *)(uintptr_t) "MESSAGE\n", 8 },
		{ &text_bytes, sizeof(text_bytes) }, { (void *)(uintptr_t)text, strlen(text) },
		{ (void *)(uintptr_t) "\n", 1 } };
	const struct msghdr message = { .msg_iov = parts, .msg_iovlen = ARRAY_COUNT(parts) };

	snprintf(error, sizeof(error), "%d", about->error);
	for (size_t i = 0; i < ARRAY_COUNT(list); i++) {
		size_t room = sizeof(fields) - (size_t)used;
		int bytes = list[i].value == NULL ? 0
						  : snprintf(fields + used, room, "%s=%s\n",
							    list[i].name, list[i].value);

		if (bytes > 0 && (size_t)bytes < room) { /* a field that does not fit is left out */
			used += bytes;
		}
	}
	parts[0].iov_len = (size_t)used;
	return sendmsg(journal_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

static log_sink *line_sink; /* set before other threads exist */
static void *line_sink_context;

void log_set_sink(log_sink *sink, void *context)
{
	line_sink = sink;
	line_sink_context = context;
}

/* --- lines --------------------------------------------------------------------------------- */

static void write_line(
	enum log_level level, const struct log_about *about, const char *format, va_list args)
{
	char line[LINE_BYTES];
	size_t head = (size_t)snprintf(line, sizeof(line), "%s", level_prefix(level));
	int body = vsnprintf(line + head, sizeof(line) - head - 1, format, args);
	size_t len = strlen(line);
	ssize_t ignored;

	if (body >= 0 && line_sink != NULL) {
		line_sink(line_sink_context, level, line + head);
		return;
	}
	if (body < 0 || (journal_fd >= 0 && send_to_journal(level, about, line + head))) {
		return;
	}
	line[len] = '\n';
	ignored = write(STDERR_FILENO, line, len + 1);
	GMB_UNUSED(ignored);
}

static const struct log_about nothing;

void log_line(enum log_level level, const char *format, ...)
{
	va_list args;

	if (log_enabled(level)) {
		va_start(args, format);
		write_line(level, &nothing, format, args);
		va_end(args);
	}
}

/* Counts a suppressed line. Reasons are static words, so pointers are compared. */
static void count_reason(struct log_limit *limit, const char *reason)
{
	for (size_t i = 0; reason != NULL && i < LOG_LIMIT_REASONS; i++) {
		if (limit->reasons[i].count == 0 || limit->reasons[i].word == reason) {
			limit->reasons[i].word = reason;
			limit->reasons[i].count++;
			return;
		}
	}
}

/* Writes a line such as "(12 similar lines were left out: 7 no_rule, 5 rule)". */
static void tell_suppressed(struct log_limit *limit, enum log_level level)
{
	char words[LINE_BYTES / 2] = "";
	size_t used = 0;

	for (size_t i = 0; i < LOG_LIMIT_REASONS && used < sizeof(words); i++) {
		if (limit->reasons[i].count > 0) {
			used += (size_t)snprintf(words + used, sizeof(words) - used, "%s%u %s",
				used == 0 ? ": " : ", ", limit->reasons[i].count,
				limit->reasons[i].word);
		}
		limit->reasons[i].count = 0;
	}
	log_line(level, "(%u similar lines were suppressed%s)", limit->suppressed, words);
	limit->suppressed = 0;
}

/* Returns whether a line may be written now. If not, counts it as suppressed. */
static bool base_log_may_pass(
	struct log_limit *limit, uint64_t now_ns, enum log_level level, const char *reason)
{
	if (!log_enabled(level)) {
		return false;
	}
	if (limit->used == 0 || now_ns - limit->interval_start_ns >= LOG_LIMIT_INTERVAL_NS) {
		limit->interval_start_ns = now_ns;
		limit->used = 0;
	}
	if (limit->used >= LOG_LIMIT_BURST) {
		limit->suppressed++;
		count_reason(limit, reason);
		return false;
	}
	limit->used++;
	if (limit->suppressed > 0) {
		tell_suppressed(limit, level);
	}
	return true;
}

void log_limit_end(struct log_limit *limit, enum log_level level)
{
	if (limit->suppressed > 0) {
		tell_suppressed(limit, level);
	}
}

void log_limited(
	struct log_limit *limit, uint64_t now_ns, enum log_level level, const char *format, ...)
{
	va_list args;

	if (base_log_may_pass(limit, now_ns, level, NULL)) {
		va_start(args, format);
		write_line(level, &nothing, format, args);
		va_end(args);
	}
}

void log_limited_about(struct log_limit *limit, uint64_t now_ns, enum log_level level,
	const struct log_about *about, const char *format, ...)
{
	va_list args;

	if (base_log_may_pass(limit, now_ns, level, about->reason)) {
		va_start(args, format);
		write_line(level, about, format, args);
		va_end(args);
	}
}

/* Implements log_escape(). also: further printable characters to escape. */
static const char *escape(
	char *out, size_t out_bytes, const void *peer_bytes, size_t len, const char *also)
{
	const uint8_t *p = peer_bytes;
	size_t used = 0;

	GMB_ASSERT(out_bytes >= 8);
	for (size_t i = 0; i < len;) {
		char piece[8];
		uint32_t code;
		size_t n = utf8_decode(p + i, len - i, &code);
		size_t piece_len;

		/* Escapes only the first byte. The remaining bytes of a hidden character are not
		 * valid UTF-8 on their own, so the next rounds also escape them. */
		if (n == 0 || utf8_is_hidden(code) || strchr(also, p[i]) != NULL) {
			piece_len = (size_t)snprintf(piece, sizeof(piece), "\\x%02x", p[i]);
			n = 1;
		} else {
			memcpy(piece, p + i, n);
			piece_len = n;
		}
		if (used + piece_len + 4 > out_bytes) {
			memcpy(out + used, "...", 3);
			used += 3;
			break;
		}
		memcpy(out + used, piece, piece_len);
		used += piece_len;
		i += n;
	}
	out[used] = '\0';
	return out;
}

const char *log_escape(char *out, size_t out_bytes, const void *peer_bytes, size_t len)
{
	return escape(out, out_bytes, peer_bytes, len, "\\\"");
}

const char *log_escape_sentence(char *out, size_t out_bytes, const char *sentence)
{
	return escape(out, out_bytes, sentence, strlen(sentence), "");
}

void gmb_assert_fail(const char *condition, const char *file, int line, const char *function)
{
	log_error("internal error, please report: %s:%d: %s: assertion failed: %s", file, line,
		function, condition);
	abort();
}
