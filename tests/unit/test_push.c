// SPDX-License-Identifier: Apache-2.0
/* Tickets, the tables of the process, and the digest; CRC-32C. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "base/crc32c.h"
#include "push/table.h"

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

static void a_ticket_is_used_once(void **state)
{
	struct push_wire_ticket ticket = make(1, 5 * S);
	struct push_claim claim;

	(void)state;
	assert_null(push_ticket_use(&ticket, &shower, 5 * S, &claim));
	assert_int_equal(claim.name_bytes, 4);
	assert_int_equal(claim.asker.identity.bytes[0], 1);
	assert_non_null(strstr(push_ticket_use(&ticket, &shower, 5 * S, &claim), "used before"));
}

static void a_ticket_expires(void **state)
{
	struct push_wire_ticket ticket = make(1, 5 * S);
	uint64_t end_ns = (5 + PUSH_TICKET_LIFE_S) * S;
	struct push_claim claim;

	(void)state;
	assert_non_null(strstr(push_ticket_use(&ticket, &shower, end_ns, &claim), "expired"));
	assert_null(push_ticket_use(&ticket, &shower, end_ns - 1, &claim));
}

/* Whatever bit is changed. */
static void a_forged_ticket_is_refused(void **state)
{
	struct push_wire_ticket ticket = make(1, 5 * S);
	struct push_claim claim;

	(void)state;
	for (size_t bit = 0; bit < 8 * sizeof(ticket); bit++) {
		struct push_wire_ticket forged = ticket;

		((uint8_t *)&forged)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_non_null(strstr(push_ticket_use(&forged, &shower, 5 * S, &claim),
			"not made by this server"));
	}
	assert_null(push_ticket_use(&ticket, &shower, 5 * S, &claim));
}

static void a_ticket_is_for_one_server(void **state)
{
	struct push_wire_ticket ticket = make(1, 5 * S);
	struct push_shower other = shower;
	struct push_claim claim;

	(void)state;
	other.instance[0]++;
	assert_non_null(strstr(push_ticket_use(&ticket, &other, 5 * S, &claim), "another server"));
	other = shower;
	other.uid++;
	assert_non_null(strstr(push_ticket_use(&ticket, &other, 5 * S, &claim), "another user"));
	other = (struct push_shower){ .has_address = true, .instance = "the source" };
	assert_non_null(strstr(push_ticket_use(&ticket, &other, 5 * S, &claim), "another user"));
	assert_null(push_ticket_use(&ticket, &shower, 5 * S, &claim));
}

static void one_asker_does_not_fill_the_table(void **state)
{
	struct push_claim claim = claim_of(9, 0);
	const char *text = NULL;

	(void)state;
	for (uint32_t i = 0; i < PUSH_TICKETS_OF_ONE_MAX; i++) {
		(void)make(9, 1000 * S);
	}
	assert_int_equal(push_ticket_make(&claim, 1000 * S, &text), -EBUSY);
	assert_non_null(text);
	(void)make(8, 1000 * S);
	/* Those of before have expired. */
	(void)make(9, (1000 + PUSH_TICKET_LIFE_S) * S);
}

static void the_table_of_tickets_is_full(void **state)
{
	struct push_claim claim = claim_of(255, 0);
	const uint64_t now_ns = 10000 * S;
	const char *text = NULL;

	(void)state;
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

static void jobs_are_not_in_each_others_way(void **state)
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

	(void)state;
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

static void the_table_of_jobs_is_full(void **state)
{
	uint64_t serials[PUSH_JOBS_MAX];
	struct push_job seen;

	(void)state;
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
static void checksums(void **state)
{
	uint8_t bytes[1000];

	(void)state;
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

static void the_digest_of_zeroes_is_that_of_pieces(void **state)
{
	static uint8_t zeroes[PUSH_PIECE_BYTES];
	uint64_t sum = 0;

	(void)state;
	for (uint64_t at = 0; at < 3; at++) {
		sum += push_digest(at * PUSH_PIECE_BYTES, PUSH_PIECE_BYTES,
			crc32c(0, zeroes, PUSH_PIECE_BYTES));
	}
	sum += push_digest(UINT64_C(3) * PUSH_PIECE_BYTES, 5001, crc32c(0, zeroes, 5001));
	assert_int_equal(push_digest_zeroes(0, UINT64_C(3) * PUSH_PIECE_BYTES + 5001), sum);
	assert_int_not_equal(push_digest_zeroes(0, PUSH_PIECE_BYTES),
		push_digest_zeroes(PUSH_PIECE_BYTES, PUSH_PIECE_BYTES));
}

static struct ring *ring;

static int finish(void **state)
{
	(void)state;
	ring_destroy(ring);
	return 0;
}

static int begin(void **state)
{
	struct error error;

	(void)state;
	if (ring_create(&(struct ring_options){ 0 }, &ring, &error) != 0) {
		return -1;
	}
	return push_table_init(ring);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_ticket_is_used_once),
		cmocka_unit_test(a_ticket_expires),
		cmocka_unit_test(a_forged_ticket_is_refused),
		cmocka_unit_test(a_ticket_is_for_one_server),
		cmocka_unit_test(one_asker_does_not_fill_the_table),
		cmocka_unit_test(the_table_of_tickets_is_full),
		cmocka_unit_test(jobs_are_not_in_each_others_way),
		cmocka_unit_test(the_table_of_jobs_is_full),
		cmocka_unit_test(checksums),
		cmocka_unit_test(the_digest_of_zeroes_is_that_of_pieces),
	};

	return cmocka_run_group_tests(tests, begin, finish);
}
