// SPDX-License-Identifier: Apache-2.0
/*
 * Which request a disk fault belongs to. A fault may be answered by any request that was in flight
 * when it happened, touches its range and could have caused the disk operation. Two rules follow:
 * a disk error in a reply needs such a fault, and a fault needs at least one such reply.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

/* Stores may widen a request to their unit. */
enum { UNIT = 65536 };

static bool overlaps(const struct model_request *request, const struct fault_note *note)
{
	uint64_t from = request->offset - request->offset % UNIT;
	uint64_t to = request->offset + request->length + UNIT;

	/* A flash store has anything anywhere. */
	return note->export->is_flash || (note->offset < to && from < note->offset + note->length);
}

static bool may_cause(const struct model_request *request, const struct fault_note *note)
{
	bool fua = (request->flags & MODEL_FUA) != 0;

	if (request->invalid) {
		return false;
	}
	switch (note->kind) {
	case SIM_FAULT_READ:
		return (request->command == MODEL_READ || request->command == MODEL_WRITE ||
			       request->command == MODEL_ZERO || request->command == MODEL_TRIM ||
			       request->command == MODEL_CACHE) &&
		       overlaps(request, note);
	case SIM_FAULT_WRITE:
		return (request->command == MODEL_WRITE || request->command == MODEL_ZERO ||
			       request->command == MODEL_TRIM) &&
		       overlaps(request, note);
	case SIM_FAULT_FLUSH:
		return request->command == MODEL_FLUSH ||
		       (fua && (request->command == MODEL_WRITE || request->command == MODEL_ZERO ||
				       request->command == MODEL_TRIM));
	case SIM_FAULT_RANGE:
		return (request->command == MODEL_ZERO || request->command == MODEL_TRIM ||
			       request->command == MODEL_STATUS ||
			       request->command == MODEL_READ) &&
		       overlaps(request, note);
	}
	return false;
}

/* Faults that a server may answer by doing the work in another way, or not at all. */
static bool may_be_swallowed(const struct model_request *request, const struct fault_note *note)
{
	return note->kind == SIM_FAULT_RANGE || request->command == MODEL_CACHE ||
	       request->command == MODEL_TRIM;
}

static struct scenario_export *export_of(struct scenario *scenario, const struct sim_disk *disk)
{
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		if (scenario->exports[i].disk == disk) {
			return &scenario->exports[i];
		}
	}
	return NULL;
}

void blame_fault(void *context, struct sim_disk *disk, enum sim_fault_kind kind, uint64_t offset,
	uint64_t length, int error)
{
	struct scenario *scenario = context;

	blame_note(scenario, export_of(scenario, disk), kind, offset, length, error);
}

void blame_note(struct scenario *scenario, struct scenario_export *export, enum sim_fault_kind kind,
	uint64_t offset, uint64_t length, int error)
{
	struct fault_note *note;

	if (scenario->note_count == scenario->note_max) {
		scenario->note_max = scenario->note_max == 0 ? 16 : scenario->note_max * 2;
		scenario->notes =
			realloc(scenario->notes, scenario->note_max * sizeof(scenario->notes[0]));
		GMB_ASSERT(scenario->notes != NULL);
	}
	note = &scenario->notes[scenario->note_count++];
	memset(note, 0, sizeof(*note));
	note->export = export;
	note->kind = kind;
	note->offset = offset;
	note->length = length;
	note->error = error;
	if (note->export == NULL) {
		note->reported = true;
		return;
	}
	if (kind == SIM_FAULT_FLUSH) {
		note->export->flush_may_fail = true;
	}
	if (note->export->is_flash) { /* whose log is anybody's, and which then fails for all */
		note->reported = true;
		note->export->flush_may_fail = true;
		note->export->changes_may_fail = true;
	}
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		struct conn *conn = &scenario->conns[i];

		for (int r = 0; r < MODEL_INFLIGHT_MAX; r++) {
			struct model_request *request = &conn->client.requests[r];

			if (!request->used || conn->export != note->export ||
				!may_cause(request, note)) {
				continue;
			}
			request->blamed++;
			if (request->command == MODEL_READ && request->length > 65536 &&
				!conn->client.structured && !conn->client.extended) {
				/* A simple reply that has begun cannot tell an error: P78. */
				conn->client.forgive = true;
			}
			if ((request->flags & MODEL_FUA) != 0) {
				note->export->flush_may_fail = true;
			}
			if (may_be_swallowed(request, note)) {
				note->reported = true;
			}
			GMB_ASSERT(note->candidate_count < BLAME_CANDIDATES_MAX * 5);
			if (note->candidate_count < BLAME_CANDIDATES_MAX) {
				note->candidates[note->candidate_count++] = request->cookie;
			} else {
				note->reported = true;
			}
		}
	}
	if (scenario_has_orphans(scenario, note->export)) {
		/* Perhaps the request of a client that has gone, perhaps one that had to be
		 * durable. */
		note->reported = true;
		note->export->flush_may_fail = true;
	}
	if (note->candidate_count == 0) {
		note->reported = true; /* nobody asked: the store's own doing */
	}
}

static void candidate_answered(
	struct scenario *scenario, const struct model_request *request, bool with_error, bool lost)
{
	for (uint32_t i = 0; i < scenario->note_count; i++) {
		struct fault_note *note = &scenario->notes[i];

		for (uint32_t c = 0; c < note->candidate_count; c++) {
			if (note->candidates[c] != request->cookie) {
				continue;
			}
			note->candidates[c] = note->candidates[--note->candidate_count];
			note->reported = note->reported || with_error || lost;
			if (note->candidate_count == 0 && !note->reported) {
				model_fail("the disk error %d (kind %d) at %" PRIu64 "+%" PRIu64
					   " reached nobody; last candidate: command %u at %" PRIu64
					   "+%" PRIu64,
					note->error, (int)note->kind, note->offset, note->length,
					request->command, request->offset, request->length);
			}
			break;
		}
	}
}

static bool is_durable_request(const struct model_request *request)
{
	return request->command == MODEL_FLUSH || (request->flags & MODEL_FUA) != 0;
}

void blame_replied(struct conn *conn, const struct model_request *request)
{
	struct scenario_export *export = conn->export;
	bool disk_error = request->error == MODEL_EIO || request->error == MODEL_ENOSPC;

	candidate_answered(conn->scenario, request, request->has_error, false);
	if (!disk_error || request->blamed > 0 || export->size_may_change ||
		export->changes_may_fail) {
		return;
	}
	if (is_durable_request(request) && export->flush_may_fail) {
		return;
	}
	model_fail("command %u at %" PRIu64 "+%" PRIu64 " got error %u without a fault of the disk",
		request->command, request->offset, request->length, request->error);
}

void blame_lost(struct conn *conn, const struct model_request *request)
{
	candidate_answered(conn->scenario, request, false, true);
}
