// SPDX-License-Identifier: Apache-2.0
/*
 * The log sink: one line a call to standard error, with a priority prefix ("<3>") when the service
 * manager reads it (JOURNAL_STREAM set) and a word otherwise. A server sends it to the journal
 * itself where standard error leads there, and adds fields to search for:
 * systemd.journal-fields(7).
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
/* Takes effect unless a level was set by name, before or later. */
void log_set_level_default(enum log_level level);
/* Sets it to what the environment variable GMBLOCK_LOG says, if it is set. Only the first call in a
 * process does anything, so that a library may call it each time it is used. */
void log_init(void);
bool log_enabled(enum log_level level);

void log_line(enum log_level level, const char *format, ...) GMB_PRINTF(2, 3);

#define log_error(...)	 log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)	 log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)	 log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* From now on lines go to the journal as messages with fields, if standard error is its stream: for
 * a program, before it starts threads and gives up its rights. Nothing happens if the journal
 * cannot be reached, and a line that it does not take goes to standard error. */
void log_open_journal(void);

/* What a line is about, for the journal; each may be NULL, or 0. Text of peers is escaped. */
struct log_about {
	const char *message_id; /* one of those below */
	const char *export;
	const char *client;
	int error; /* errno */
	/* One static word. Lines that a limit leaves out are counted by it. */
	const char *reason;
};

/* Kinds of messages: gmblock-serve(1) lists them. */
#define LOG_ID_DISK_ERROR "47cef44fc0dc45259a2e27dbefa77d61"
#define LOG_ID_CLIENT	  "def5c01ab2a646318b1f9d570987756f"
#define LOG_ID_CLIENT_END "4e8650871f894628901d5c084c160276"
#define LOG_ID_HIDDEN	  "688e329ff68940fa8ed3174b6432ce49"
#define LOG_ID_TLS	  "7cd9443d47b14a4cb1935bd4afb6186d"

/*
 * At most LOG_LIMIT_BURST lines per interval; the next line that passes says how many were left
 * out. One object belongs to one thread. Time comes from the caller (the ring's clock).
 */
enum { LOG_LIMIT_BURST = 10, LOG_LIMIT_REASONS = 8 };
struct log_limit {
	uint64_t interval_start_ns;
	uint32_t used;
	uint32_t suppressed;
	/* Of these, by log_about.reason. More reasons than fit count in suppressed alone. */
	struct {
		const char *word;
		uint32_t count;
	} reasons[LOG_LIMIT_REASONS];
};
#define LOG_LIMIT_INTERVAL_NS UINT64_C(10000000000)

/* Says how many lines were left out since the last one; for the end. */
void log_limit_end(struct log_limit *limit, enum log_level level);
/* Writes a line unless the limit holds it back. */
void log_limited(struct log_limit *limit, uint64_t now_ns, enum log_level level, const char *format,
	...) GMB_PRINTF(4, 5);
/* The same with fields. */
void log_limited_about(struct log_limit *limit, uint64_t now_ns, enum log_level level,
	const struct log_about *about, const char *format, ...) GMB_PRINTF(5, 6);

/*
 * Copies len bytes that a peer wrote as printable text into out (always terminated): control
 * bytes, hidden characters (utf8_is_hidden()), quotes, backslashes and bytes that are not valid
 * UTF-8 become \xNN. When it does not fit it is cut at a whole character and ends in "...". Returns
 * out.
 */
const char *log_escape(char *out, size_t out_bytes, const void *peer_bytes, size_t len);

/* The same for a sentence in which a peer has escaped the names already: quotes and backslashes
 * stay, so that nothing is escaped twice. */
const char *log_escape_sentence(char *out, size_t out_bytes, const char *sentence);
