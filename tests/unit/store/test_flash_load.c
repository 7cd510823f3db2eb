// SPDX-License-Identifier: Apache-2.0
/* The loads of gmblock-flash-trace: traces as blkparse prints them, and what is made up. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../bench/flash_load.h"
#include "base/compiler.h"
#include "unit.h"

enum { BLOCKS = 65536, OPS = 20000 };

static int read_text(
	const char *text, char action, struct load **load, uint32_t *blocks, struct error *error)
{
	char path[] = "/tmp/gmblock-test-XXXXXX";
	int fd = mkstemp(path);
	size_t len = strlen(text);
	int result;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, len), len);
	close(fd);
	result = load_read_trace(path, action, load, blocks, error);
	unlink(path);
	return result;
}

static void expect_op(
	struct load *load, enum load_kind kind, bool durable, uint32_t block, uint32_t count)
{
	struct load_op op;

	load_next(load, &op);
	assert_int_equal(op.kind, kind);
	assert_int_equal(op.durable, durable);
	assert_int_equal(op.block, block);
	assert_int_equal(op.count, count);
}

/* Two written pieces of 2 MiB: the first of the disk, and that of sector 81920 (block 10240). */
static const char trace[] =
	"  8,0    1        1     0.000000000   697  Q   W 16 + 8 [kworker/u4:1]\n"
	"  8,0    1        2     0.000001000   697  G   W 16 + 8 [kworker/u4:1]\n"
	"  8,0    1        3     0.000002000   697  D   W 16 + 8 [kworker/u4:1]\n"
	"  8,0    1        4     0.000100000     0  C   W 16 + 8 [0]\n"
	"  8,0    0        1     0.000200000   700  Q   R 81920 + 256 [cat]\n"
	"  8,0    0        2     0.000300000   701  Q FWFSM 81924 + 8 [jbd2/sda1-8]\n"
	"  8,0    0        3     0.000400000   701  Q FWS [jbd2/sda1-8]\n"
	"  8,0    0        4     0.000500000   702  Q  WS 81928 + 24 [fio]\n"
	"  8,0    0        5     0.000600000   703  Q   D 12 + 20 [fstrim]\n"
	"  8,0    0        6     0.000700000   703  Q  DS 8192 + 4096 [fstrim]\n"
	"  8,0    0        7     0.000800000   703  Q  DS 0 + 4294967295 [fstrim]\n"
	"CPU0 (8,0):\n"
	" Reads Queued:           1,      128KiB\t Writes Queued:           4,       24KiB\n";

TEST(a_trace_is_read_as_blkparse_prints_it)
{
	struct error error;
	struct load *load;
	uint32_t blocks;

	assert_int_equal(read_text(trace, 'Q', &load, &blocks, &error), 0);
	assert_int_equal(blocks, 1024);
	for (uint32_t round = 0; round < 2; round++) {
		expect_op(load, LOAD_WRITE, false, 2, 1);
		expect_op(load, LOAD_FLUSH, false, 0, 0);
		expect_op(load, LOAD_WRITE, true, 512, 2); /* parts of two blocks */
		expect_op(load, LOAD_FLUSH, false, 0, 0);
		expect_op(load, LOAD_WRITE, false, 513, 3);
		expect_op(load, LOAD_TRIM, false, 2, 2); /* whole blocks only */
		expect_op(load, LOAD_TRIM, false, 0, 1024);
	}
	expect_op(load, LOAD_WRITE, false, 2, 1);
	load_rewind(load);
	expect_op(load, LOAD_WRITE, false, 2, 1);
	load_destroy(load);
	assert_int_equal(read_text(trace, 'C', &load, &blocks, &error), 0);
	assert_int_equal(blocks, 512);
	expect_op(load, LOAD_WRITE, false, 2, 1);
	expect_op(load, LOAD_WRITE, false, 2, 1);
	load_destroy(load);
}

TEST(a_text_without_writes_is_an_error)
{
	static const char *const texts[] = {
		"",
		"8,0 1 1 0.0 697 Q W\n",
		"8,0 1 1 0.0 697 Q R 16 + 8 [x]\n",
		"8,0 1 1 0.0 697 Q W 16 + 0 [x]\n",
		"8,0 1 1 0.0 697 Q W 16 + 4294967295 [x]\n", /* larger than any request */
		"8,0 1 1 0.0 697 Q W 18446744073709551615 + 8 [x]\n",
		"8,0 1 1 0.0 697 Q WWWWWWWWWWWWWWWWWWWWWWWWWWWWWW 16 + 8 [x]\n",
		"8,0 1 1 0.0 697 Q D 0 + 4096 [x]\n",
	};
	struct error error;
	struct load *load;
	uint32_t blocks;

	for (uint32_t i = 0; i < ARRAY_COUNT(texts); i++) {
		assert_int_not_equal(read_text(texts[i], 'Q', &load, &blocks, &error), 0);
		assert_non_null(strstr(error.text, "no line is a write"));
	}
	assert_int_not_equal(load_read_trace("/nonexistent", 'Q', &load, &blocks, &error), 0);
}

TEST(what_is_made_up_stays_on_the_disk_and_comes_again)
{
	struct error error;

	for (uint32_t i = 0; load_name(i) != NULL; i++) {
		static struct load_op first[OPS];
		struct load *load;

		assert_int_equal(load_create(load_name(i), BLOCKS, 7, &load, &error), 0);
		for (uint32_t at = 0; at < OPS; at++) {
			load_next(load, &first[at]);
			assert_int_equal(first[at].kind, LOAD_WRITE);
			assert_true(first[at].count > 0 && first[at].block < BLOCKS &&
				    first[at].count <= BLOCKS - first[at].block);
		}
		load_rewind(load);
		for (uint32_t at = 0; at < OPS; at++) {
			expect_op(load, first[at].kind, first[at].durable, first[at].block,
				first[at].count);
		}
		load_destroy(load);
	}
}

/* Part of the writes that go to the most written hundredth of the blocks. */
static double part_of_hottest(const char *name)
{
	static uint32_t counts[BLOCKS];
	struct error error;
	struct load *load;
	uint32_t total = 0;
	uint32_t hot = 0;

	memset(counts, 0, sizeof(counts));
	assert_int_equal(load_create(name, BLOCKS, 1, &load, &error), 0);
	for (uint32_t i = 0; i < 20 * BLOCKS; i++) {
		struct load_op op;

		load_next(load, &op);
		counts[op.block]++;
		total++;
	}
	load_destroy(load);
	for (uint32_t chosen = 0; chosen < BLOCKS / 100; chosen++) {
		uint32_t best = 0;

		for (uint32_t i = 1; i < BLOCKS; i++) {
			best = counts[i] > counts[best] ? i : best;
		}
		hot += counts[best];
		counts[best] = 0;
	}
	return (double)hot / total;
}

/* The sum of the first 655 of 65,536 frequencies, 1 / i^0.99 and 1 / i^0.8, is 0.59 and 0.33 of the
 * whole; that of a hundredth of hot blocks with 80/20 is 0.8 / 20 and a little for chance. */
TEST(writes_go_where_the_law_says)
{
	assert_in_range(1000 * part_of_hottest("zipf0.99"), 565, 605);
	assert_in_range(1000 * part_of_hottest("zipf0.8"), 310, 360);
	assert_in_range(1000 * part_of_hottest("80/20"), 40, 60);
	assert_in_range(1000 * part_of_hottest("uniform"), 10, 20);
}

TEST(what_there_is_not_is_an_error)
{
	struct error error;
	struct load *load;

	assert_int_not_equal(load_create("zipf1", BLOCKS, 1, &load, &error), 0);
	assert_int_not_equal(load_create("tpcc", 1024, 1, &load, &error), 0);
	assert_non_null(strstr(error.text, "at least"));
}
