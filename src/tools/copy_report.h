// SPDX-License-Identifier: Apache-2.0
/*
 * What "gmblock copy" says at its end, as sentences for people or as JSON with stable keys
 * (documented in gmblock-copy(1)).
 *
 * Threading: the main thread. Ownership: borrows everything. Errors: 0, or a negative errno with a
 * sentence when standard output does not take it.
 */
#pragma once

#include "tools/copy_engine.h"

enum copy_outcome { COPY_COMPLETE, COPY_FAILED, COPY_INTERRUPTED };

enum copy_target_state {
	COPY_TARGET_UNCHANGED,
	COPY_TARGET_PARTIAL,
	COPY_TARGET_WHOLE,   /* every byte was written; that it is durable is not known */
	COPY_TARGET_DIFFERS, /* verification found it to be wrong */
	COPY_TARGET_COMPLETE,
};

struct copy_report {
	enum copy_outcome outcome;
	enum copy_target_state state;
	const char *source_text;
	const char *target_text;
	const struct copy_end *source; /* NULL: could not be opened */
	const struct copy_end *target;
	const struct copy_counters *counters;
	const struct copy_journal *journal;
	const struct error *error; /* why it is not complete */
	double seconds;
	bool verified;
};

/* One sentence about the target and how to go on; for a complete copy how much and how fast. */
void copy_report_sentence(const struct copy_report *report, char *out, size_t out_bytes);

GMB_MUST_CHECK int copy_report_json(const struct copy_report *report, struct error *error);
