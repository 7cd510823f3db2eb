// SPDX-License-Identifier: Apache-2.0
#include "tools/copy_report.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "tools/copy_progress.h"
#include "tools/print.h"

enum { SHOWN_BYTES = 300, PART_BYTES = 400 };

static const char *target_name(const struct copy_report *report, char shown[SHOWN_BYTES])
{
	char escaped[SHOWN_BYTES - 2];

	if (report->target != NULL) {
		return report->target->name;
	}
	snprintf(shown, SHOWN_BYTES, "'%s'",
		log_escape(escaped, sizeof(escaped), report->target_text,
			strlen(report->target_text)));
	return shown;
}

static void how_far(const struct copy_report *report, char out[PART_BYTES])
{
	const struct copy_counters *counters = report->counters;

	if (counters->total == UINT64_MAX) {
		print_size(out, counters->done);
	} else {
		copy_share(out, counters->done, counters->total);
	}
}

static void how_to_go_on(const struct copy_report *report, char out[PART_BYTES])
{
	const struct copy_journal *journal = report->journal;
	char shown[SHOWN_BYTES];

	if ((report->source != NULL && report->source->kind == COPY_STREAM) ||
		(report->target != NULL && report->target->kind == COPY_STREAM)) {
		snprintf(out, PART_BYTES, "a copy from or to a stream begins anew");
		return;
	}
	if (journal == NULL || journal->fd < 0) {
		snprintf(out, PART_BYTES, "without --resume the next copy begins at the beginning");
		return;
	}
	snprintf(out, PART_BYTES,
		"run the same command with --resume '%s' again to go on from byte %llu",
		log_escape(shown, sizeof(shown), journal->path, strlen(journal->path)),
		(unsigned long long)journal->durable);
}

static void complete_sentence(const struct copy_report *report, char *out, size_t out_bytes)
{
	const struct copy_counters *counters = report->counters;
	uint64_t moved = counters->total - counters->start;
	char total[PRINT_SIZE_BYTES];
	char rate[PRINT_SIZE_BYTES];
	char written[PRINT_SIZE_BYTES];
	char time[COPY_TIME_BYTES];

	print_size(total, counters->total);
	print_size(written, counters->written);
	print_size(rate, (uint64_t)((double)moved / (report->seconds > 0 ? report->seconds : 1)));
	snprintf(out, out_bytes, "copied %s (%s of it data) in %s, %s/s%s", total, written,
		copy_human_time(time, report->seconds), rate, report->verified ? ", verified" : "");
}

void copy_report_sentence(const struct copy_report *report, char *out, size_t out_bytes)
{
	char shown[SHOWN_BYTES];
	char far[PART_BYTES];
	char on[PART_BYTES];
	const char *name = target_name(report, shown);

	switch (report->state) {
	case COPY_TARGET_UNCHANGED:
		snprintf(out, out_bytes, "the target %s was not changed", name);
		break;
	case COPY_TARGET_PARTIAL:
		how_far(report, far);
		how_to_go_on(report, on);
		snprintf(out, out_bytes, "the target %s holds a partial copy: %s; %s", name, far,
			on);
		break;
	case COPY_TARGET_WHOLE:
		how_to_go_on(report, on);
		snprintf(out, out_bytes,
			"the target %s holds the whole copy, but the end of the command was not "
			"reached: it may not be on stable storage, and it was not verified; %s",
			name, on);
		break;
	case COPY_TARGET_DIFFERS:
		snprintf(out, out_bytes, "the target %s holds a copy that is not like the source",
			name);
		break;
	case COPY_TARGET_COMPLETE:
		complete_sentence(report, out, out_bytes);
		break;
	}
}

static json_t *end_json(const struct copy_end *end, const char *text)
{
	static const char *const kinds[] = {
		[COPY_REMOTE] = "remote",
		[COPY_FILE] = "file",
		[COPY_DEVICE] = "device",
		[COPY_STREAM] = "stream",
	};
	char shown[SHOWN_BYTES];
	json_t *bytes =
		end != NULL && end->size_known ? json_integer((json_int_t)end->bytes) : json_null();

	log_escape(shown, sizeof(shown), text, strlen(text));
	return json_pack("{s:s, s:s?, s:o}", "name", shown, "kind",
		end != NULL ? kinds[end->kind] : NULL, "bytes", bytes);
}

int copy_report_json(const struct copy_report *report, struct error *error)
{
	static const char *const outcomes[] = {
		[COPY_COMPLETE] = "complete",
		[COPY_FAILED] = "failed",
		[COPY_INTERRUPTED] = "interrupted",
	};
	static const char *const states[] = {
		[COPY_TARGET_UNCHANGED] = "unchanged",
		[COPY_TARGET_PARTIAL] = "partial",
		[COPY_TARGET_WHOLE] = "whole",
		[COPY_TARGET_DIFFERS] = "differs",
		[COPY_TARGET_COMPLETE] = "complete",
	};
	const struct copy_counters *counters = report->counters;
	json_int_t moved = (json_int_t)(counters->done - counters->start);
	json_t *total = counters->total == UINT64_MAX ? json_null()
						      : json_integer((json_int_t)counters->total);
	json_t *durable = report->journal != NULL && report->journal->fd >= 0
				  ? json_integer((json_int_t)report->journal->durable)
				  : json_null();

	return print_json(
		json_pack("{s:s, s:s?, s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
			  "s:f, s:f, s:b, s:o}",
			"result", outcomes[report->outcome], "error",
			report->error != NULL ? report->error->text : NULL, "target_state",
			states[report->state], "source",
			end_json(report->source, report->source_text), "target",
			end_json(report->target, report->target_text), "bytes", total, "bytes_done",
			(json_int_t)counters->done, "bytes_resumed", (json_int_t)counters->start,
			"bytes_read", (json_int_t)counters->read, "bytes_written",
			(json_int_t)counters->written, "bytes_zeroed", (json_int_t)counters->zeroed,
			"bytes_skipped", (json_int_t)counters->skipped, "bytes_verified",
			(json_int_t)counters->compared, "seconds", report->seconds,
			"bytes_per_second",
			(double)moved / (report->seconds > 0 ? report->seconds : 1), "verified",
			report->verified, "durable_bytes", durable),
		error);
}
