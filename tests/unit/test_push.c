// SPDX-License-Identifier: Apache-2.0
/* Tickets, the tables of the process, and the digest; CRC-32C; a server that ends. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "push/ask.h"
#include "push/group.h"
#include "push/pieces.h"
#include "push/table.h"
#include "unit.h"

#define S UINT64_C(1000000000)

enum { SOME_UID = 1000 };

static const struct push_shower shower = {
	.has_uid = true, .uid = SOME_UID, .instance = "the source"
};

static struct push_claim claim_of(uint8_t asker, uint64_t job)
{
	struct push_claim claim = {
		.ticket = {
			.job = job,
			.offset = 4096,
			.length = 1 << 20,
			.binding = PUSH_BOUND_UID,
			.uid = SOME_UID,
			.instance = "the source",
		},
		.name = "disk",
		.name_bytes = 4,
	};

	claim.asker.identity.bytes[0] = asker;
	return claim;
}

/* Each with a job of its own; the tickets of all tests are in one table. */
static uint64_t job_count;

static struct push_wire_ticket make(uint8_t asker, uint64_t now_ns)
{
	struct push_claim claim = claim_of(asker, ++job_count);
	const char *text = NULL;

	assert_int_equal(push_ticket_make(&claim, now_ns, &text), 0);
	return claim.ticket;
}

TEST(a_ticket_is_used_once)
{
	struct push_wire_ticket ticket = make(1, 5 * S);
	struct push_claim claim;

	assert_null(push_ticket_use(&ticket, &shower, 5 * S, &claim));
	assert_int_equal(claim.name_bytes, 4);
	assert_int_equal(claim.asker.identity.bytes[0], 1);
	assert_non_null(strstr(push_ticket_use(&ticket, &shower, 5 * S, &claim), "used before"));
}

TEST(a_ticket_expires)
{
	struct push_wire_ticket ticket = make(1, 5 * S);
	uint64_t end_ns = (5 + PUSH_TICKET_LIFE_S) * S;
	struct push_claim claim;

	assert_non_null(strstr(push_ticket_use(&ticket, &shower, end_ns, &claim), "expired"));
	assert_null(push_ticket_use(&ticket, &shower, end_ns - 1, &claim));
}

/* Whatever bit is changed. */
TEST(a_forged_ticket_is_refused)
{
	struct push_wire_ticket ticket = make(1, 5 * S);
	struct push_claim claim;

	for (size_t bit = 0; bit < 8 * sizeof(ticket); bit++) {
		struct push_wire_ticket forged = ticket;

		((uint8_t *)&forged)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_non_null(strstr(
			push_ticket_use(&forged, &shower, 5 * S, &claim), "from another server"));
	}
	assert_null(push_ticket_use(&ticket, &shower, 5 * S, &claim));
}

TEST(a_ticket_is_for_one_server)
{
	struct push_wire_ticket ticket = make(1, 5 * S);
	struct push_shower other = shower;
	struct push_claim claim;

	other.instance[0]++;
	assert_non_null(strstr(push_ticket_use(&ticket, &other, 5 * S, &claim), "another server"));
	other = shower;
	other.uid++;
	assert_non_null(strstr(push_ticket_use(&ticket, &other, 5 * S, &claim), "another user"));
	other = (struct push_shower){ .has_address = true, .instance = "the source" };
	assert_non_null(strstr(push_ticket_use(&ticket, &other, 5 * S, &claim), "another user"));
	assert_null(push_ticket_use(&ticket, &shower, 5 * S, &claim));
}

TEST(one_asker_does_not_fill_the_table)
{
	struct push_claim claim = claim_of(9, 0);
	const char *text = NULL;

	for (uint32_t i = 0; i < PUSH_TICKETS_OF_ONE_MAX; i++) {
		(void)make(9, 1000 * S);
	}
	assert_int_equal(push_ticket_make(&claim, 1000 * S, &text), -EBUSY);
	assert_non_null(text);
	(void)make(8, 1000 * S);
	/* Those of before have expired. */
	(void)make(9, (1000 + PUSH_TICKET_LIFE_S) * S);
}

TEST(the_table_of_tickets_is_full)
{
	struct push_claim claim = claim_of(255, 0);
	const uint64_t now_ns = 10000 * S;
	const char *text = NULL;

	for (uint32_t i = 0; i < PUSH_TICKETS_MAX; i++) {
		(void)make((uint8_t)(i / PUSH_TICKETS_OF_ONE_MAX), now_ns);
	}
	assert_int_equal(push_ticket_make(&claim, now_ns, &text), -EBUSY);
	assert_int_equal(push_ticket_make(&claim, now_ns + PUSH_TICKET_LIFE_S * S, &text), 0);
}

static struct push_job job_at(uint64_t id, uint8_t owner, uint64_t offset)
{
	struct push_job job = {
		.id = id,
		.role = PUSH_SINK,
		.name = "disk",
		.name_bytes = 4,
		.offset = offset,
		.length = 100,
	};

	job.owner.bytes[0] = owner;
	return job;
}

static uint64_t add(struct push_job job, int wanted)
{
	const char *text = NULL;

	assert_int_equal(push_job_add(&job, S, &text), wanted);
	assert_true(wanted == 0 || text != NULL);
	return job.serial;
}

static void end(uint64_t serial)
{
	push_job_end(serial, &(struct push_progress){ 0 }, -ECANCELED, "over", 2 * S);
}

TEST(a_job_has_a_status_if_it_has_failed)
{
	struct push_wire_job head = { .role = PUSH_SOURCE, .state = PUSH_JOB_FAILED };
	struct push_job_message job;

	assert_non_null(push_parse(PUSH_JOB, &head, sizeof(head), &job));
	head.status = EIO;
	assert_null(push_parse(PUSH_JOB, &head, sizeof(head), &job));
	head.state = PUSH_JOB_DONE;
	assert_non_null(push_parse(PUSH_JOB, &head, sizeof(head), &job));
	head.status = 0;
	assert_null(push_parse(PUSH_JOB, &head, sizeof(head), &job));
}

TEST(jobs_are_not_in_each_others_way)
{
	struct push_viewer one = { .identity.bytes[0] = 1 };
	struct push_viewer two = { .identity.bytes[0] = 2 };
	struct push_viewer all = { .all = true };
	struct push_job other = job_at(3, 2, 50);
	struct push_job source = job_at(1, 1, 0);
	struct push_job seen;
	uint64_t first = add(job_at(1, 1, 0), 0);
	uint64_t second;
	uint64_t third;

	add(job_at(2, 1, 99), -EBUSY);
	second = add(job_at(2, 1, 100), 0);
	other.name[0] = 'e'; /* another export */
	third = add(other, 0);
	source.role = PUSH_SOURCE; /* the other end, in one process */
	end(add(source, 0));
	add(job_at(1, 1, 500), -EEXIST);

	assert_true(push_job_next(0, &one, &seen));
	assert_int_equal(seen.id, 1);
	assert_true(push_job_next(0, &two, &seen));
	assert_int_equal(seen.id, 3);
	assert_false(push_job_next(seen.serial, &two, &seen));
	assert_int_equal(push_job_cancel(1, &two), -ENOENT);
	assert_true(push_job_tell(first, PUSH_JOB_MOVES, &(struct push_progress){ 0 }));
	assert_int_equal(push_job_cancel(1, &all), 0);
	assert_false(push_job_tell(first, PUSH_JOB_MOVES, &(struct push_progress){ 0 }));
	end(first);
	assert_int_equal(push_job_cancel(1, &all), -ENOENT);
	end(add(job_at(4, 1, 0), 0)); /* the range is free */
	end(second);
	end(third);
}

TEST(the_table_of_jobs_is_full)
{
	uint64_t serials[PUSH_JOBS_MAX];
	struct push_job seen;

	/* Those that have ended make room. */
	for (uint32_t i = 0; i < 3 * PUSH_JOBS_KEPT_MAX; i++) {
		end(add(job_at(1000 + i, 1, 0), 0));
	}
	for (uint32_t i = 0; i < PUSH_JOBS_MAX; i++) {
		serials[i] = add(job_at(5000 + i, 1, 1000 + 100 * i), 0);
	}
	add(job_at(6000, 1, 0), -EBUSY);
	end(serials[7]);
	serials[7] = add(job_at(6000, 1, 0), 0);
	for (uint32_t i = 0; i < PUSH_JOBS_MAX; i++) {
		assert_true(push_job_of(serials[i], &seen));
		end(serials[i]);
	}
}

/* RFC 3720, appendix B.4. */
TEST(checksums)
{
	uint8_t bytes[1000];

	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(crc32c(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, 32);
	assert_int_equal(crc32c(0, bytes, 32), 0x62a8ab43);
	for (size_t i = 0; i < sizeof(bytes); i++) {
		bytes[i] = (uint8_t)i;
	}
	assert_int_equal(crc32c(0, bytes, 32), 0x46dd794e);
	assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
	for (size_t cut = 0; cut <= sizeof(bytes); cut++) { /* in two parts, at any alignment */
		assert_int_equal(crc32c(crc32c(0, bytes, cut), bytes + cut, sizeof(bytes) - cut),
			crc32c(0, bytes, sizeof(bytes)));
	}
}

TEST(the_digest_of_zeroes_is_that_of_pieces)
{
	static uint8_t zeroes[PUSH_PIECE_BYTES];
	uint64_t sum = 0;

	for (uint64_t at = 0; at < 3; at++) {
		sum += push_digest(at * PUSH_PIECE_BYTES, PUSH_PIECE_BYTES,
			crc32c(0, zeroes, PUSH_PIECE_BYTES));
	}
	sum += push_digest(UINT64_C(3) * PUSH_PIECE_BYTES, 5001, crc32c(0, zeroes, 5001));
	assert_int_equal(push_digest_zeroes(0, UINT64_C(3) * PUSH_PIECE_BYTES + 5001), sum);
	assert_int_not_equal(push_digest_zeroes(0, PUSH_PIECE_BYTES),
		push_digest_zeroes(PUSH_PIECE_BYTES, PUSH_PIECE_BYTES));
}

enum { PIECE = PUSH_PIECE_BYTES };

static void take(struct push_pieces *pieces, uint64_t first, uint64_t count, bool may)
{
	bool lack = push_pieces_lack(pieces, first * PIECE, count * PIECE);
	bool taken = push_pieces_take(pieces, first * PIECE, count * PIECE) == NULL;

	assert_int_equal(taken, may);
	assert_true(lack || !taken);
}

TEST(a_piece_comes_once)
{
	struct push_pieces pieces = { 0 };

	take(&pieces, 0, 1, true);
	take(&pieces, 0, 1, false);
	take(&pieces, 10, 5, true); /* 1 to 9 are missing */
	assert_int_equal(push_pieces_low(&pieces), PIECE);
	take(&pieces, 12, 1, false);
	take(&pieces, 9, 2, false);
	take(&pieces, 14, 2, false);
	take(&pieces, 4, 2, true); /* within the gap: 1 to 3, and 6 to 9 */
	take(&pieces, 3, 2, false);
	take(&pieces, 1, 1, true);
	assert_int_equal(push_pieces_low(&pieces), 2 * PIECE);
	take(&pieces, 6, 4, true);
	take(&pieces, 2, 2, true);
	assert_int_equal(push_pieces_low(&pieces), 15 * PIECE);
	assert_int_equal(pieces.gap_count, 0);
}

/* Whatever the order within the window of those under way, each is taken once, and all of them
 * fit. */
TEST(pieces_come_in_any_order)
{
	enum { COUNT = 1000 };
	static bool taken[COUNT];
	struct push_pieces pieces = { 0 };
	uint64_t way[PUSH_GAPS_MAX];
	uint64_t random = 88172645463325252;
	uint64_t next = 0;
	uint32_t count = 0;
	uint32_t total = 0;

	while (total < COUNT) {
		uint32_t i;

		while (count < PUSH_GAPS_MAX && next < COUNT) {
			way[count++] = next++;
		}
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		i = (uint32_t)(random % count);
		take(&pieces, way[i], 1, true);
		take(&pieces, way[i], 1, false);
		taken[way[i]] = true;
		way[i] = way[--count];
		total++;
		for (uint64_t at = 0; at < push_pieces_low(&pieces) / PIECE; at++) {
			assert_true(taken[at]);
		}
	}
	assert_int_equal(push_pieces_low(&pieces), (uint64_t)COUNT * PIECE);
}

TEST(no_more_gaps_than_may_be_under_way)
{
	struct push_pieces pieces = { 0 };

	for (uint64_t i = 0; i < PUSH_GAPS_MAX; i++) {
		take(&pieces, 4 * i + 3, 1, true);
	}
	take(&pieces, 4 * PUSH_GAPS_MAX + 3, 1, false);
	pieces = (struct push_pieces){ 0 };
	for (uint64_t i = 0; i < PUSH_GAPS_MAX; i++) {
		take(&pieces, 4 * i + 3, 1, true);
	}
	take(&pieces, 1, 1, false); /* it would split one */
}

/* Returns the group of a new job, which a connection has joined. */
static struct push_group *group_with(struct push_wire_join *join)
{
	struct push_claim claim = claim_of(1, ++job_count);
	struct push_group *group;
	struct push_group *joined;
	const char *text;

	assert_int_equal(push_ticket_make(&claim, 5 * S, &text), 0);
	join->ticket = claim.ticket;
	group = push_group_create(&claim);
	assert_non_null(group);
	assert_null(push_group_join(join, &shower, &joined));
	assert_ptr_equal(joined, group);
	return group;
}

/* A connection that is lost has written one of its pieces, and not the other one. */
TEST(a_lost_connection_tells_what_it_has_written)
{
	const struct push_progress piece = { .done = PIECE, .digest = 5 };
	struct push_wire_join join = { .number = 3 };
	struct push_wire_dropped dropped = { .number = 3 };
	struct push_progress progress = { .durable = 7 };
	struct push_group *group = group_with(&join);
	struct push_group *same;

	assert_non_null(strstr(push_group_join(&join, &shower, &same), "has not ended"));

	assert_null(push_group_take(group, 0, PIECE));
	assert_null(push_group_take(group, PIECE, PIECE));
	assert_non_null(push_group_take(group, 0, PIECE));
	push_group_written(group, 3, 1, 0, &piece);
	assert_true(push_group_goes_on(group, 3));
	assert_false(push_group_drop(group, &dropped));
	assert_false(push_group_goes_on(group, 3));
	push_group_give(group, PIECE, PIECE);
	push_group_leave(group, 3);
	assert_true(push_group_drop(group, &dropped));
	for (uint32_t i = 0; i < PUSH_SLOTS; i++) {
		assert_true(dropped.written[i] == (i == 1 ? 0 : PUSH_NOT_WRITTEN));
	}
	assert_int_equal(push_group_low(group), PIECE);
	assert_false(push_group_lacks(group, 0, PIECE));
	assert_true(push_group_lacks(group, PIECE, PIECE));
	assert_null(push_group_take(group, PIECE, PIECE));
	push_group_progress(group, &progress);
	assert_int_equal(progress.done, PIECE);
	assert_int_equal(progress.durable, 7);

	/* It can be opened again, until the job is over. */
	assert_null(push_group_join(&join, &shower, &same));
	assert_true(push_group_goes_on(group, 3));
	push_group_end(group);
	assert_false(push_group_goes_on(group, 3));
	join.number = 2;
	assert_non_null(strstr(push_group_join(&join, &shower, &same), "no job"));
	push_group_leave(group, 0);
	push_group_leave(group, 3);
	assert_non_null(strstr(push_group_join(&join, &shower, &same), "no job"));
}

/* Also if it closes before its job begins. */
TEST(connections_end_with_the_first_one)
{
	struct push_wire_join join = { .number = 1 };
	struct push_group *group = group_with(&join);

	push_group_leave(group, 0);
	assert_false(push_group_goes_on(group, 1));
	push_group_leave(group, 1);
}

TEST(a_job_adds_up)
{
	static const struct {
		uint64_t done, zeroes, skipped;
		bool good;
	} jobs[] = {
		{ 100, 0, 0, true },
		{ 101, 0, 0, false },
		{ 50, 20, 30, true },
		{ 50, 21, 30, false },
		{ 50, 51, 0, false },
		{ 50, 0, 51, false },
		{ 50, 2, UINT64_MAX, false },
		{ 50, UINT64_MAX, 2, false },
	};
	struct push_wire_job head = { .length = 100, .role = PUSH_SOURCE, .state = PUSH_JOB_MOVES };
	struct push_job_message job;

	for (size_t i = 0; i < ARRAY_COUNT(jobs); i++) {
		head.done = jobs[i].done;
		head.zeroes = jobs[i].zeroes;
		head.skipped = jobs[i].skipped;
		assert_int_equal(
			push_parse(PUSH_JOB, &head, sizeof(head), &job) == NULL, jobs[i].good);
	}
}

static struct ring *ring;

static int finish(void **state)
{
	ring_destroy(ring);
	return 0;
}

static int begin(void **state)
{
	struct error error;

	if (ring_create(&(struct ring_options){ 0 }, &ring, &error) != 0) {
		return -1;
	}
	return push_table_init(ring);
}

static const char *parse_start(const struct push_start *start, uint32_t bytes)
{
	static const char text[] = "disknbd://a/b";
	uint8_t message[sizeof(start->head) + sizeof(text) - 1 + sizeof(start->ticket)];
	struct push_start parsed;

	memcpy(message, &start->head, sizeof(start->head));
	memcpy(message + sizeof(start->head), text, sizeof(text) - 1);
	memcpy(message + sizeof(start->head) + sizeof(text) - 1, &start->ticket,
		sizeof(start->ticket));
	return push_parse(PUSH_START, message, MIN(bytes, sizeof(message)), &parsed);
}

TEST(a_start_without_a_ticket)
{
	const struct push_start good = {
		.head = { .length = 5,
			.flags = PUSH_NBD | PUSH_DETACH,
			.name_bytes = 4,
			.uri_bytes = 9,
			.uid = PUSH_UID_UNKNOWN },
		.ticket = { .flags = PUSH_COMPARE, .offset = 7, .length = 5 },
	};
	struct push_start bad = good;

	assert_null(parse_start(&good, UINT32_MAX));
	assert_non_null(strstr(parse_start(&good, 100), "H3"));
	bad.head.uid = 0;
	assert_non_null(strstr(parse_start(&bad, UINT32_MAX), "H6"));
	bad = good;
	bad.ticket.flags = PUSH_DETACH;
	assert_non_null(strstr(parse_start(&bad, UINT32_MAX), "H6"));
	bad = good;
	bad.ticket.mac[PUSH_MAC_BYTES - 1] = 1;
	assert_non_null(strstr(parse_start(&bad, UINT32_MAX), "H6"));
	bad = good;
	bad.ticket.length = 6;
	assert_non_null(strstr(parse_start(&bad, UINT32_MAX), "H5"));
	bad = good;
	bad.ticket.offset = UINT64_MAX;
	assert_non_null(strstr(parse_start(&bad, UINT32_MAX), "H5"));
}

/* --- asking ---------------------------------------------------------------------------------- */

/* Asks twice; a queue is for the thread that made it. */
struct asker {
	struct export_uri uri;
	int results[3];
	struct error errors[3];
};

static void *ask_twice(void *argument)
{
	struct asker *asker = argument;
	struct push_job_message job;
	struct push_ask *ask = NULL;

	asker->results[0] = push_ask_open(&asker->uri, 60 * S, &ask, &asker->errors[0]);
	for (int i = 1; i < 3 && asker->results[0] == 0; i++) {
		asker->results[i] = push_ask_job(ask, 0, &job, &asker->errors[i]);
	}
	push_ask_close(ask);
	return NULL;
}

/* Answers in another class than it should, and is gone. */
static void serve_badly(struct clan_queue *queue)
{
	const struct push_wire_welcome welcome = { .magic = PUSH_MAGIC, .version = PUSH_VERSION };
	struct clan_event event = { .type = 0 };
	struct clan_message head;
	uint8_t message[PUSH_MESSAGE_BYTES_MAX];

	while (event.type != CLAN_EVENT_CONNECT) {
		assert_true(clan_queue_wait(queue, &event, 1, -1) >= 0);
	}
	assert_int_equal(clan_accept(event.conn, &welcome, sizeof(welcome)), 0);
	while (clan_recv(event.conn, CLAN_BULK, &head, message, sizeof(message)) == -EAGAIN) {
		assert_true(clan_queue_wait(queue, &event, 1, -1) >= 0);
	}
	assert_int_equal(clan_send(event.conn, CLAN_CONTROL, PUSH_ANSWER, "", 0), 0);
	clan_close(event.conn);
	while (event.type != CLAN_EVENT_CLOSED) {
		assert_true(clan_queue_wait(queue, &event, 1, -1) >= 0);
	}
}

/* READY comes before LOST, so that the connection is over before its end is told. */
TEST(the_reason_for_an_end_is_told)
{
	char name[64] = ""; /* abstract */
	struct asker asker = { .uri = { .is_unix = true, .socket_path = name, .export_name = "" } };
	struct clan_listener *listener;
	struct clan_queue *queue;
	struct clan_error reason;
	char address[80];
	pthread_t thread;

	asker.uri.socket_path_bytes =
		1 + (uint32_t)snprintf(name + 1, sizeof(name) - 1, "push-ask-%d", getpid());
	snprintf(address, sizeof(address), "shm:@%s", name + 1);
	assert_int_equal(clan_queue_create(NULL, &queue, &reason), 0);
	assert_int_equal(clan_listen(queue, address, NULL, &listener, &reason), 0);
	assert_int_equal(pthread_create(&thread, NULL, ask_twice, &asker), 0);
	serve_badly(queue);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(asker.results[0], 0);
	for (int i = 1; i < 3; i++) {
		assert_int_equal(asker.results[i], -ECONNRESET);
		assert_string_equal(asker.errors[i].text,
			"the server closed the connection: the peer closed the connection");
	}
	clan_listener_close(listener);
	assert_int_equal(clan_queue_destroy(queue), 0);
}

int main(void)
{
	return unit_run(begin, finish);
}
