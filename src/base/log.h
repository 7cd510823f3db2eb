// SPDX-License-Identifier: Apache-2.0
/*
 * The log sink. Each call writes one line to standard error, prefixed with a priority ("<3>") if
 * the service manager reads it (JOURNAL_STREAM is set), otherwise with a word such as "error".
 * After log_open_journal(), lines go to the journal directly, with fields that can be searched for:
 * systemd.journal-fields(7).
 *
 * Threading: any thread; a line is one write(2). Never called on the per-request path. Ownership:
 * arguments are borrowed. Errors: a line that cannot be written is lost.
 */
#pragma once

#include <string.h>

#include "base/compiler.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Lines above this level are dropped. The default is LOG_LEVEL_INFO. */
void log_set_level(enum log_level level);
/* Sets the level to "error", "warning", "info" or "debug". Any other text: -EINVAL, and the level
 * stays as it is. */
GMB_MUST_CHECK int log_set_level_name(const char *name);
/* Sets the default level. Has no effect if a level is set by name, before or after this call. */
void log_set_level_default(enum log_level level);
/* Sets the level from the environment variable GMBLOCK_LOG, if it is set. Only the first call in a
 * process has an effect, so a library can call it on each use. */
void log_init(void);
bool log_enabled(enum log_level level);

/* A function that receives lines instead of standard error and the journal, without prefix and line
 * feed. A NULL sink restores the default. Set it before other threads log. */
typedef void log_sink(void *context, enum log_level level, const char *text);
void log_set_sink(log_sink *sink, void *context);

void log_line(enum log_level level, const char *format, ...) GMB_PRINTF(2, 3);

#define log_error(...)	 log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)	 log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)	 log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* If standard error is connected to the journal, sends all further lines to the journal as messages
 * with fields. Call it before the program starts threads and drops privileges. Has no effect if the
 * journal cannot be reached; a line that the journal rejects goes to standard error. */
void log_open_journal(void);

/* Journal fields of a line; each member may be NULL or 0. Text from peers is escaped. */
struct log_about {
	const char *message_id; /* one of LOG_ID_* */
	const char *export;
	const char *client;
	int error; /* errno */
	/* The reason for the line: one static word. Suppressed lines are counted separately for
	 * each reason. */
	const char *reason;
};

/* Message types, listed in gmblock-serve(1). */
#define LOG_ID_DISK_ERROR "47cef44fc0dc45259a2e27dbefa77d61"
#define LOG_ID_CLIENT	  "def5c01ab2a646318b1f9d570987756f"
#define LOG_ID_CLIENT_END "4e8650871f894628901d5c084c160276"
#define LOG_ID_HIDDEN	  "688e329ff68940fa8ed3174b6432ce49"
#define LOG_ID_TLS	  "7cd9443d47b14a4cb1935bd4afb6186d"

/*
 * Rate limit: at most LOG_LIMIT_BURST lines in each interval. The next line that passes is preceded
 * by the number of lines that were suppressed. A struct log_limit belongs to one thread. The time
 * comes from the caller (the ring's clock).
 */
enum { LOG_LIMIT_BURST = 10, LOG_LIMIT_REASONS = 8 };
struct log_limit {
	uint64_t interval_start_ns;
	uint32_t used;
	uint32_t suppressed;
	/* Suppressed lines by log_about.reason. If there are more than LOG_LIMIT_REASONS different
	 * reasons, lines with other reasons are counted only in `suppressed`. */
	struct {
		const char *word;
		uint32_t count;
	} reasons[LOG_LIMIT_REASONS];
};
#define LOG_LIMIT_INTERVAL_NS UINT64_C(10000000000)

/* Reports the lines suppressed since the last report; for shutdown. */
void log_limit_end(struct log_limit *limit, enum log_level level);
/* Writes a line unless the limit suppresses it. */
void log_limited(struct log_limit *limit, uint64_t now_ns, enum log_level level, const char *format,
	...) GMB_PRINTF(4, 5);
/* log_limited() with fields for the journal. */
void log_limited_about(struct log_limit *limit, uint64_t now_ns, enum log_level level,
	const struct log_about *about, const char *format, ...) GMB_PRINTF(5, 6);

/*
 * Copies len bytes from a peer into out as printable text, always terminated. Control bytes, hidden
 * characters (utf8_is_hidden()), quotes, backslashes and bytes that are not valid UTF-8 become
 * \xNN. Text that does not fit is cut at a whole character and ends in "...". Returns out.
 */
const char *log_escape(char *out, size_t out_bytes, const void *peer_bytes, size_t len);

/* Like log_escape(), for the arguments of a message. The result is valid until the end of the
 * enclosing block. */
enum { QUOTE_BYTES = 192 };
#define quote(text)		quote_into((char[QUOTE_BYTES]){ 0 }, text)
#define quote_bytes(bytes, len) log_escape((char[QUOTE_BYTES]){ 0 }, QUOTE_BYTES, bytes, len)

static inline const char *quote_into(char out[QUOTE_BYTES], const char *text)
{
	return log_escape(out, QUOTE_BYTES, text, strlen(text));
}

/* Like log_escape(), for a sentence in which a peer has already escaped the names. Quotes and
 * backslashes stay as they are, so that no text is escaped twice. */
const char *log_escape_sentence(char *out, size_t out_bytes, const char *sentence);
