// SPDX-License-Identifier: Apache-2.0
/*
 * The log sink: one line a call to standard error, with a priority prefix ("<3>") when the service
 * manager reads it (JOURNAL_STREAM set) and a word otherwise.
 *
 * Threading: any thread; a line is one write(2). Never called on the per-request path.
 * Ownership: borrows its arguments. Errors: a line that cannot be written is lost.
 */
#pragma once

#include "base/compiler.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Lines above this level are dropped. The default is LOG_LEVEL_INFO. */
void log_set_level(enum log_level level);
/* Sets it to "error", "warning", "info" or "debug"; -EINVAL: another text, and nothing changes. */
GMB_MUST_CHECK int log_set_level_name(const char *name);
/* Sets it to what the environment variable GMBLOCK_LOG says, if it is set. Only the first call in a
 * process does anything, so that a library may call it each time it is used. */
void log_init(void);
bool log_enabled(enum log_level level);

void log_line(enum log_level level, const char *format, ...) GMB_PRINTF(2, 3);

#define log_error(...)	 log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)	 log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)	 log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

/*
 * At most LOG_LIMIT_BURST lines per interval; the next line that passes says how many were left
 * out. One object belongs to one thread. Time comes from the caller (the ring's clock).
 */
struct log_limit {
	uint64_t interval_start_ns;
	uint32_t used;
	uint32_t suppressed;
};
enum { LOG_LIMIT_BURST = 10 };
#define LOG_LIMIT_INTERVAL_NS UINT64_C(10000000000)

/* Writes a line unless the limit holds it back. */
void log_limited(struct log_limit *limit, uint64_t now_ns, enum log_level level, const char *format,
	...) GMB_PRINTF(4, 5);

/*
 * Copies len bytes that a peer wrote as printable text into out (always terminated): control
 * bytes, quotes, backslashes and bytes that are not valid UTF-8 become \xNN. When it does not fit
 * it is cut at a whole character and ends in "...". Returns out.
 */
const char *log_escape(char *out, size_t out_bytes, const void *peer_bytes, size_t len);

/* The same for a sentence in which a peer has escaped the names already: quotes and backslashes
 * stay, so that nothing is escaped twice. */
const char *log_escape_sentence(char *out, size_t out_bytes, const char *sentence);
