// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

static _Atomic int log_level_max = LOG_LEVEL_INFO;

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&log_level_max, (int)level, memory_order_relaxed);
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

void log_line(enum log_level level, const char *format, ...)
{
	char line[2048];
	va_list args;
	int head;
	int body;
	size_t len;
	ssize_t ignored;

	if (!log_enabled(level)) {
		return;
	}
	head = snprintf(line, sizeof(line), "%s", level_prefix(level));
	va_start(args, format);
	body = vsnprintf(line + head, sizeof(line) - (size_t)head - 1, format, args);
	va_end(args);
	len = strlen(line);
	if (body < 0) {
		return;
	}
	line[len] = '\n';
	ignored = write(STDERR_FILENO, line, len + 1);
	GMB_UNUSED(ignored);
}

bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, uint32_t *suppressed)
{
	if (limit->used == 0 || now_ns - limit->interval_start_ns >= LOG_LIMIT_INTERVAL_NS) {
		limit->interval_start_ns = now_ns;
		limit->used = 0;
	}
	if (limit->used >= LOG_LIMIT_BURST) {
		limit->suppressed++;
		return false;
	}
	limit->used++;
	*suppressed = limit->suppressed;
	limit->suppressed = 0;
	return true;
}

/* also: characters that are escaped although they can be printed. */
static const char *escape(
	char *out, size_t out_bytes, const void *peer_bytes, size_t len, const char *also)
{
	const uint8_t *p = peer_bytes;
	size_t used = 0;

	GMB_ASSERT(out_bytes >= 8);
	for (size_t i = 0; i < len;) {
		char piece[8];
		size_t n = utf8_sequence(p + i, len - i);
		size_t piece_len;

		if (n == 0 || p[i] < 0x20 || p[i] == 0x7f || strchr(also, p[i]) != NULL ||
			(n == 2 && p[i] == 0xc2 && p[i + 1] < 0xa0)) {
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
