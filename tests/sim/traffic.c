// SPDX-License-Identifier: Apache-2.0
/* What the clients of a scenario ask, and what they may be answered. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

enum {
	WINDOW_BYTES = 1 << 20,
	CROWD_BYTES = 24 << 10,
	PAYLOAD_BYTES_MAX = 4 << 20,
	ATOMIC_BLOCK = 4096,
	ATOMIC_BLOCKS_MAX = 240,
	ATOMIC_PERCENT = 50, /* of the requests, with --atomic */
	DRIP_BYTES = 600,
	PAGE_CACHE_BYTES_MAX =
		1
		<< 20, /* of a read that may be sent from the page cache; longer ones are copied */
};

/* --- choosing ------------------------------------------------------------------------------- */

static uint64_t pick_length(const struct scenario *scenario, uint64_t size)
{
	uint64_t length;

	if (scenario->crowded) {
		length = percent(50) ? 512 * (1 + below(4)) : 1 + below(1000);
		return MIN(length, size);
	}
	if (scenario->hungry && percent(40)) {
		return MIN(4096 * (1 + below(700)), size);
	}
	switch (below(10)) {
	case 0:
		length = 1 + below(16);
		break;
	case 1:
	case 2:
		length = 1 + below(5000);
		break;
	case 3:
	case 4:
		length = 512 * (1 + below(16));
		break;
	case 5:
	case 6:
	case 7:
		length = 4096 * (1 + below(16));
		break;
	case 8:
		length = 1 + below(262144);
		break;
	default:
		length = percent(15) ? 1 + below(PAYLOAD_BYTES_MAX) : 4096 * (1 + below(100));
		break;
	}
	return MIN(length, size);
}

/* Where: giant disks are used in three windows, around 0, 4 GiB and the end. */
static uint64_t pick_offset(
	const struct scenario *scenario, const struct scenario_export *export, uint64_t *length)
{
	uint64_t base = 0;
	uint64_t window = export->size;
	uint64_t offset;

	if (export->sparse_giant) {
		window = WINDOW_BYTES;
		switch (below(3)) {
		case 0:
			break;
		case 1:
			base = (UINT64_C(4) << 30) - WINDOW_BYTES / 2;
			break;
		default:
			base = export->size - WINDOW_BYTES;
			break;
		}
		*length = MIN(*length, window);
	}
	if (scenario->crowded) {
		uint64_t crowd = MAX((uint64_t)CROWD_BYTES, *length);

		window = MIN(window, crowd);
	}
	offset = below(window - *length + 1);
	switch (below(3)) {
	case 0:
		offset -= offset % 4096;
		break;
	case 1:
		offset -= offset % 512;
		break;
	default:
		break;
	}
	return base + offset;
}

static bool is_writer(uint16_t command)
{
	return command == MODEL_WRITE || command == MODEL_ZERO || command == MODEL_TRIM;
}

static bool writer_in_range(const struct conn *conn, uint64_t offset, uint64_t length)
{
	const struct scenario *scenario = conn->scenario;

	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		const struct conn *other = &scenario->conns[i];

		for (int r = 0; r < MODEL_INFLIGHT_MAX && other->export == conn->export; r++) {
			const struct model_request *request = &other->client.requests[r];

			if (request->used && !request->invalid && is_writer(request->command) &&
				request->offset < offset + length &&
				offset < request->offset + request->length) {
				return true;
			}
		}
	}
	return false;
}

static uint16_t pick_command(const struct conn *conn)
{
	uint16_t flags = conn->client.flags;
	uint64_t dice = below(100);

	if (dice < 36) {
		return MODEL_READ;
	}
	if (dice < 46 && conn->client.has_context) {
		return MODEL_STATUS;
	}
	if (dice < 49 && (flags & MODEL_FLAG_CACHE) != 0) {
		return MODEL_CACHE;
	}
	if (dice < 56 && (flags & MODEL_FLAG_FLUSH) != 0) {
		return MODEL_FLUSH;
	}
	if (conn->export->read_only) {
		return MODEL_READ;
	}
	if (dice < 63 && (flags & MODEL_FLAG_TRIM) != 0) {
		return MODEL_TRIM;
	}
	if (dice < 73 && (flags & MODEL_FLAG_ZERO) != 0) {
		return MODEL_ZERO;
	}
	return MODEL_WRITE;
}

static void pick_flags(const struct conn *conn, struct model_request *request)
{
	uint16_t offered = conn->client.flags;

	if ((offered & MODEL_FLAG_FUA) != 0 && percent(is_writer(request->command) ? 15 : 3)) {
		request->flags |= MODEL_FUA;
	}
	if (request->command == MODEL_READ && (offered & MODEL_FLAG_DF) != 0 && percent(10)) {
		request->flags |= MODEL_DF;
		request->allowed_error = request->length > 65536 ? MODEL_EOVERFLOW : 0;
	}
	if (request->command == MODEL_ZERO) {
		request->flags |= percent(30) ? MODEL_NO_HOLE : 0;
		if ((offered & MODEL_FLAG_FAST_ZERO) != 0 && percent(30)) {
			request->flags |= MODEL_FAST_ZERO;
			request->allowed_error = MODEL_ENOTSUP;
		}
	}
	if (request->command == MODEL_STATUS && percent(25)) {
		request->flags |= MODEL_REQ_ONE;
	}
}

/* What the export's store keeps as a whole, or would if the server promised more. */
static bool fill_atomic(struct conn *conn, struct model_request *request)
{
	const struct scenario_export *export = conn->export;
	uint64_t blocks = export->size / ATOMIC_BLOCK;

	if (export->read_only || (conn->client.flags & MODEL_FLAG_FUA) == 0) {
		return false;
	}
	request->command = MODEL_WRITE;
	request->flags = MODEL_FUA;
	request->length = (1 + below(ATOMIC_BLOCKS_MAX)) * ATOMIC_BLOCK;
	request->offset = below(blocks - request->length / ATOMIC_BLOCK + 1) * ATOMIC_BLOCK;
	return conn->scenario->overlap || !writer_in_range(conn, request->offset, request->length);
}

static void fill_valid(struct conn *conn, struct model_request *request)
{
	const struct scenario_export *export = conn->export;

	if (runner_atomic && percent(ATOMIC_PERCENT) && fill_atomic(conn, request)) {
		return;
	}
	request->flags = 0;
	request->command = pick_command(conn);
	if (request->command == MODEL_FLUSH) {
		pick_flags(conn, request);
		return;
	}
	for (int attempt = 0; attempt < 5; attempt++) {
		request->length = pick_length(conn->scenario, export->size);
		if (export->warm && request->command == MODEL_READ && percent(40)) {
			request->length = MIN(export->size,
				STORE_PAGE_CACHE_BYTES_MIN +
					below(PAGE_CACHE_BYTES_MAX - STORE_PAGE_CACHE_BYTES_MIN));
		}
		if (export->sparse_giant && percent(5) &&
			(request->command == MODEL_TRIM || request->command == MODEL_CACHE ||
				request->command == MODEL_STATUS)) {
			/* More than 32 bits, where the header can say it. */
			request->length = conn->client.extended ? export->size : UINT32_MAX;
			request->offset = conn->client.extended ? 0 : below(1000);
		} else {
			request->offset = pick_offset(conn->scenario, export, &request->length);
		}
		if (!is_writer(request->command) || conn->scenario->overlap ||
			!writer_in_range(conn, request->offset, request->length)) {
			pick_flags(conn, request);
			return;
		}
	}
	request->command = MODEL_READ; /* everything is being written */
	request->length = pick_length(conn->scenario, export->size);
	request->offset = pick_offset(conn->scenario, export, &request->length);
	pick_flags(conn, request);
}

/* --- requests that must be refused ---------------------------------------------------------- */

static void give_payload(struct model_request *request)
{
	request->payload = calloc(1, (size_t)request->length + 1);
	GMB_ASSERT(request->payload != NULL);
}

static void fill_invalid(struct conn *conn, struct model_request *request)
{
	uint64_t size = conn->export->size;

	request->invalid = true;
	request->length = 1 + below(1000);
	switch (below(conn->client.extended ? 10 : 9)) {
	case 9: /* a payload where none belongs: P112 */
		request->command = percent(50) ? MODEL_READ : MODEL_TRIM;
		request->length = 1 + below(100000);
		give_payload(request);
		break;
	case 0:
		request->command = (uint16_t)(50 + below(1000));
		break;
	case 1:
		request->command = MODEL_READ;
		request->offset = size - MIN(size, below(request->length));
		break;
	case 2:
		request->command = MODEL_WRITE;
		request->length = 1 + below(200000);
		request->offset = size - MIN(size, below(request->length));
		request->allowed_error = MODEL_ENOSPC;
		break;
	case 3:
		request->command = MODEL_READ;
		request->length = 1;
		request->flags = 1 << 9;
		break;
	case 4:
		request->command = percent(50) ? MODEL_TRIM : MODEL_ZERO;
		request->offset = UINT64_MAX - below(100);
		request->length = 200;
		request->allowed_error = MODEL_ENOSPC;
		break;
	case 5:
		request->command = MODEL_FLUSH;
		request->length = 0;
		request->flags = MODEL_NO_HOLE;
		break;
	case 6:
		request->command = MODEL_WRITE;
		request->length = 1 + below(MIN(size, UINT64_C(100000)));
		request->flags = percent(50) ? MODEL_FAST_ZERO : MODEL_NO_HOLE;
		break;
	case 7:
		request->command = MODEL_STATUS;
		request->length = conn->client.has_context ? size + 1 : MIN(size, UINT64_C(4096));
		request->length = MIN(request->length, UINT64_C(0xffffffff));
		request->offset = conn->client.has_context ? size - MIN(size, UINT64_C(100)) : 0;
		break;
	default:
		request->command = percent(50) ? MODEL_READ : MODEL_CACHE;
		request->offset = size + below(1000);
		break;
	}
	if (request->command == MODEL_WRITE) {
		give_payload(request);
	}
	if (conn->export->read_only && is_writer(request->command)) {
		request->allowed_error = MODEL_EPERM;
	}
}

/* Any answer is right (P86). */
static void fill_empty(struct model_request *request)
{
	static const uint16_t commands[] = { MODEL_READ, MODEL_WRITE, MODEL_TRIM, MODEL_ZERO,
		MODEL_STATUS, MODEL_CACHE };

	request->command = commands[below(ARRAY_COUNT(commands))];
	request->invalid = true;
	request->length = 0;
	if (request->command == MODEL_WRITE) {
		give_payload(request);
	}
}

/* --- sending -------------------------------------------------------------------------------- */

static void say(const struct conn *conn, const struct model_request *request, const char *what)
{
	if (conn->scenario->verbose) {
		fprintf(stderr,
			"%12.3f us  client %u export %u %s: command %u flags 0x%x %" PRIu64
			"+%" PRIu64 "%s record %d error %u\n",
			(double)sim_now_ns() / 1e3 - 1e6, conn->client.id, conn->export_idx, what,
			request->command, request->flags, request->offset, request->length,
			request->invalid ? " invalid" : "", (int)request->record, request->error);
	}
}

/* The server has promised it; its services promise the same. */
static bool is_kept_whole(const struct conn *conn, const struct model_request *request)
{
	const struct engine *engine = conn->scenario->services[0].engine;
	uint64_t promised = engine_export_measured(engine, conn->export->export)->atomic_bytes;

	return (request->flags & MODEL_FUA) != 0 && request->length <= promised &&
	       (request->offset | request->length) % ATOMIC_BLOCK == 0;
}

static void note_begin(struct conn *conn, struct model_request *request)
{
	struct oracle *oracle = conn->export->oracle;
	uint32_t group = (conn->client.flags & MODEL_FLAG_MULTI_CONN) != 0
				 ? 0
				 : 1 + (uint32_t)(conn - conn->scenario->conns);
	uint64_t seed = sim_random();

	request->begin = oracle_now(oracle);
	request->record = UINT32_MAX;
	if (request->invalid) {
		return;
	}
	switch (request->command) {
	case MODEL_WRITE:
		give_payload(request);
		oracle_pattern(seed, request->offset, request->payload, (size_t)request->length);
		request->record = oracle_begin(
			oracle, ORACLE_DATA, request->offset, request->length, seed, group);
		if (is_kept_whole(conn, request)) {
			oracle_keep_whole(oracle, request->record);
		}
		break;
	case MODEL_ZERO:
		request->record = oracle_begin(
			oracle, ORACLE_ZERO, request->offset, request->length, seed, group);
		break;
	case MODEL_TRIM:
		request->record = oracle_begin(
			oracle, ORACLE_UNDEFINED, request->offset, request->length, seed, group);
		break;
	default:
		break;
	}
}

static bool send_one(struct conn *conn)
{
	struct model_request *request = model_request(&conn->client);

	if (request == NULL) {
		return false;
	}
	if (percent(4)) {
		fill_invalid(conn, request);
	} else if (percent(1)) {
		fill_empty(request);
	} else {
		fill_valid(conn, request);
	}
	note_begin(conn, request);
	conn->scenario->requests++;
	say(conn, request, "asks");
	model_submit(&conn->client, request);
	return true;
}

static void resume_reading(void *arg)
{
	struct conn *conn = arg;

	if (!conn->gone) {
		model_stall(&conn->client, false);
	}
}

/* What the fate has in store when the budget has run down to its point. */
static void misbehave(struct conn *conn)
{
	uint8_t garbage[64];

	if (conn->fate == FATE_GARBAGE) {
		memset(garbage, 0x99, sizeof(garbage));
		conn->client.forgive = true;
		conn->budget = 0;
		conn->said_bye = true;
		model_send(&conn->client, garbage, sizeof(garbage));
	} else if (conn->fate == FATE_STALL) {
		conn->client.forgive = true; /* it may be thrown out when memory is short */
		model_stall(&conn->client, true);
		if (!conn->stall_for_ever) {
			sim_after(below(UINT64_C(100000000000)), resume_reading, conn);
		}
	} else if (conn->fate == FATE_DRIP) {
		/* Always faster than the stall timeout: it must not be ended. */
		model_drip(&conn->client, DRIP_BYTES, UINT64_C(1000000) << below(10));
		conn->scenario->dripped_bytes += DRIP_BYTES;
	} else if (conn->fate == FATE_RENEW && conn->renewals > 0) {
		conn->client.forgive = true;
		conn->budget = 0;
		conn->said_bye = true;
		sim_socket_reset(conn->fd);
	}
}

/* Sends what the connection may send now. */
static void traffic_pump(struct conn *conn)
{
	struct model_client *client = &conn->client;

	if (client->state != MODEL_TRANSMISSION || conn->said_bye) {
		return;
	}
	while (conn->budget > 0 && client->inflight < conn->depth) {
		conn->budget--;
		if (!send_one(conn)) {
			break;
		}
		if (conn->budget == conn->garbage_at) {
			misbehave(conn);
		}
	}
	if (conn->budget > 0 || conn->said_bye) {
		return;
	}
	if (conn->fate == FATE_HALF_CLOSE) {
		conn->said_bye = true;
		model_half_close(client);
	} else if (conn->fate == FATE_HASTY || client->inflight == 0) {
		conn->said_bye = true;
		model_disconnect(client);
	}
}

/* --- answers -------------------------------------------------------------------------------- */

/* Every byte that came must be one of the export's, also where the read failed or was cut later:
 * nothing of another request may leave. A chunk that cannot be split (DF) and whose disk fails is
 * filled up with zeroes before the error follows (P91). */
static void check_content(struct conn *conn, const struct model_request *request)
{
	struct oracle *oracle = conn->export->oracle;
	bool unfinished = request->has_error || request->covered_bytes < request->length;
	bool may_be_filled = unfinished && (request->flags & MODEL_DF) != 0;
	uint64_t end;

	for (uint64_t at = 0; at < request->length && request->covered_bytes > 0; at = end) {
		uint64_t known;

		end = at + 1;
		while (end < request->length && request->covered[end] == request->covered[at]) {
			end++;
		}
		known = end;
		while (may_be_filled && known > at && request->data[known - 1] == 0) {
			known--;
		}
		if (request->covered[at] != 0 &&
			!oracle_check_read(oracle, request->begin, request->offset + at,
				request->data + at, (size_t)(known - at))) {
			model_fail("client %u, export %u: %s (%" PRIu64 " bytes at %" PRIu64
				   " of a read of %" PRIu64 "+%" PRIu64 ", error %u)",
				conn->client.id, conn->export_idx, oracle_message(oracle), end - at,
				at, request->offset, request->length, request->error);
		}
	}
	conn->scenario->unfinished_bytes += unfinished ? request->covered_bytes : 0;
}

/* What is said to read as zeroes must be able to. */
static void check_status(struct conn *conn, const struct model_request *request)
{
	static const uint8_t zeroes[65536];
	struct oracle *oracle = conn->export->oracle;
	uint64_t offset = request->offset;

	for (uint32_t i = 0; i < request->extent_count; i++) {
		uint64_t length = request->extents[i].length;
		size_t looked = (size_t)MIN(length, sizeof(zeroes));

		if ((request->extents[i].flags & 2) != 0 &&
			!oracle_check_read(oracle, request->begin, offset, zeroes, looked)) {
			model_fail("P105: said to be zero: %s", oracle_message(oracle));
		}
		offset += length;
	}
}

static void settle_record(struct conn *conn, const struct model_request *request)
{
	struct oracle *oracle = conn->export->oracle;

	if (request->record == UINT32_MAX) {
		return;
	}
	if (request->has_error) {
		oracle_fail(oracle, request->record);
	} else {
		oracle_end(oracle, request->record, (request->flags & MODEL_FUA) != 0);
	}
}

static void check_error(struct conn *conn, const struct model_request *request)
{
	if (conn->scenario->draining && request->error == MODEL_ESHUTDOWN) {
		return;
	}
	if (request->error == request->allowed_error) {
		return;
	}
	if (request->error == MODEL_EINVAL && conn->export->size_may_change) {
		return; /* chosen before the client saw the new size */
	}
	if (request->error == MODEL_EIO || request->error == MODEL_ENOSPC) {
		return; /* blame_replied() looks for the cause */
	}
	model_fail("command %u flags 0x%x at %" PRIu64 "+%" PRIu64 " got error %u",
		request->command, request->flags, request->offset, request->length, request->error);
}

static void check_invalid(struct conn *conn, const struct model_request *request)
{
	bool shutdown = (conn->scenario->draining && request->error == MODEL_ESHUTDOWN) ||
			(conn->export->size_may_change && request->error == MODEL_EIO);

	if (request->length == 0 && request->command != MODEL_FLUSH) {
		return;
	}
	if (request->covered_bytes > 0) {
		model_fail("P65: a read that has to be refused got data");
	}
	if (!request->has_error) {
		model_fail("P65, P117: command %u flags 0x%x at %" PRIu64 "+%" PRIu64 " succeeded",
			request->command, request->flags, request->offset, request->length);
	}
	if (request->error != MODEL_EINVAL && request->error != request->allowed_error &&
		!shutdown) {
		model_fail("P65, P117: command %u flags 0x%x at %" PRIu64 "+%" PRIu64
			   " got error %u",
			request->command, request->flags, request->offset, request->length,
			request->error);
	}
}

static void check_flush(struct conn *conn, const struct model_request *request)
{
	struct scenario_export *export = conn->export;
	uint32_t group = (conn->client.flags & MODEL_FLAG_MULTI_CONN) != 0
				 ? 0
				 : 1 + (uint32_t)(conn - conn->scenario->conns);

	if (!request->has_error) {
		if (export->flush_failed != 0 && export->flush_failed < request->begin) {
			model_fail("P77: a flush succeeded after one that failed");
		}
		oracle_flushed(export->oracle, request->begin, group);
	} else if (request->error == MODEL_EIO && export->flush_failed == 0) {
		export->flush_failed = oracle_now(export->oracle);
	}
}

static void on_replied(struct model_client *client, struct model_request *request)
{
	struct conn *conn = client->context;

	sim_trace_mix(request->cookie ^ request->error);
	say(conn, request, "is answered");
	conn->scenario->replies_with_error += request->has_error ? 1 : 0;
	if (request->invalid) {
		check_invalid(conn, request);
	} else {
		blame_replied(conn, request);
		settle_record(conn, request);
		if (request->command == MODEL_FLUSH) {
			check_flush(conn, request);
		}
		if (request->command == MODEL_READ) {
			check_content(conn, request);
		}
		if (request->has_error) {
			check_error(conn, request);
		} else if (request->command == MODEL_STATUS) {
			check_status(conn, request);
		}
	}
}

static void on_lost(struct model_client *client, struct model_request *request)
{
	struct conn *conn = client->context;

	say(conn, request, "loses");
	if (!request->invalid) {
		blame_lost(conn, request);
		if (request->command == MODEL_READ) {
			check_content(conn, request);
		}
		if (request->record != UINT32_MAX) {
			oracle_orphan(conn->export->oracle, request->record, conn->client.id);
		}
	}
}

static void on_ready(struct model_client *client)
{
	traffic_pump(client->context);
}

static void on_progress(struct model_client *client)
{
	traffic_pump(client->context);
}

static void on_closed(struct model_client *client)
{
	struct conn *conn = client->context;

	sim_socket_close(conn->fd);
	conn->gone = true;
	conn->scenario->dripped_bytes -= client->drip_bytes; /* not taken */
	if (conn->fate == FATE_RENEW && conn->renewals > 0) {
		scenario_renew(conn);
	}
	conn->scenario->conns_gone++;
	scenario_settle(conn->scenario);
}

const struct model_ops traffic_ops = {
	.ready = on_ready,
	.replied = on_replied,
	.progress = on_progress,
	.closed = on_closed,
	.lost = on_lost,
};
