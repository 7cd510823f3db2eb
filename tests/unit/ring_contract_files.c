// SPDX-License-Identifier: Apache-2.0
/* The ring contract: files and registered memory. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>

#include "ring_contract.h"

enum { FILE_BYTES = 1 << 20 };

static void transfer(struct ring *ring, struct ring_file file, bool write, struct mem_ref memory,
	size_t len, uint64_t offset, bool dsync)
{
	struct waiter waiter = { 0 };
	size_t moved = 0;

	while (moved < len) {
		int result;

		if (write) {
			ring_write(ring, &waiter.op, file, mem_add(memory, moved), len - moved,
				offset + moved, dsync, waiter_done);
		} else {
			ring_read(ring, &waiter.op, file, mem_add(memory, moved), len - moved,
				offset + moved, waiter_done);
		}
		result = wait_for(ring, &waiter);
		assert_in_range(result, 1, len - moved);
		moved += (size_t)result;
	}
}

CONTRACT(a_file_keeps_what_is_written)
{
	static uint8_t out[10000];
	static uint8_t in[10000];
	int fd = world_file(FILE_BYTES);
	struct waiter waiter = { 0 };

	for (size_t i = 0; i < sizeof(out); i++) {
		out[i] = pattern(i);
	}
	for (int way = 0; way < 4; way++) {
		struct ring_file file = way % 2 == 0 ? plain(fd) : ring_file_add(ring, fd);
		uint64_t offset = 5000 + 20000 * (uint64_t)way;

		memset(in, 0, sizeof(in));
		transfer(ring, file, true, mem_of(out), sizeof(out), offset, way >= 2);
		ring_fsync(ring, &waiter.op, file, waiter_done);
		assert_int_equal(wait_for(ring, &waiter), 0);
		ring_advise(ring, &waiter.op, file, 0, FILE_BYTES, waiter_done);
		assert_int_equal(wait_for(ring, &waiter), 0);
		transfer(ring, file, false, mem_of(in), sizeof(in), offset, false);
		assert_memory_equal(in, out, sizeof(out));
		/* And nothing before it. */
		transfer(ring, file, false, mem_of(in), 5000, offset - 5000, false);
		for (int i = 0; i < 5000; i++) {
			assert_int_equal(in[i], 0);
		}
		ring_file_remove(ring, &file);
	}
	world_close(fd, WORLD_FILE);
}

CONTRACT(a_read_ends_where_the_file_does)
{
	static uint8_t bytes[8192];
	int fd = world_file(FILE_BYTES);
	struct waiter waiter = { 0 };

	ring_read(ring, &waiter.op, plain(fd), mem_of(bytes), 8192, FILE_BYTES - 100, waiter_done);
	assert_in_range(wait_for(ring, &waiter), 1, 100);
	ring_read(ring, &waiter.op, plain(fd), mem_of(bytes), 8192, FILE_BYTES, waiter_done);
	assert_int_equal(wait_for(ring, &waiter), 0);
	world_close(fd, WORLD_FILE);
}

CONTRACT(a_write_from_several_places_is_one)
{
	static uint8_t places[3][4000];
	static const size_t lens[3] = { 4000, 17, 3000 };
	static uint8_t in[7017];
	int fd = world_file(FILE_BYTES);
	struct waiter waiter = { 0 };

	for (int way = 0; way < 2; way++) {
		struct iovec vector[3];
		uint64_t offset = 9000 * (uint64_t)way;
		size_t written;
		size_t at = 0;

		for (int i = 0; i < 3; i++) {
			memset(places[i], 3 * way + i + 1, sizeof(places[i]));
			vector[i] = (struct iovec){ places[i], lens[i] };
		}
		ring_writev(ring, &waiter.op, plain(fd), vector, 3, offset, way == 1, waiter_done);
		written = (size_t)wait_for(ring, &waiter);
		assert_in_range(written, 1, sizeof(in));
		transfer(ring, plain(fd), false, mem_of(in), written, offset, false);
		for (int i = 0; i < 3; i++) {
			for (size_t k = 0; k < lens[i] && at < written; k++) {
				assert_int_equal(in[at++], 3 * way + i + 1);
			}
		}
	}
	world_close(fd, WORLD_FILE);
}

CONTRACT(inline_transfers_complete_later)
{
	static uint8_t bytes[3000];
	uint8_t byte = 0;
	int fd = world_file(FILE_BYTES);
	struct waiter waiter = { 0 };
	int written;
	int got;

	memset(bytes, 0x5a, sizeof(bytes));
	ring_transfer_inline(
		ring, &waiter.op, true, plain(fd), mem_of(bytes), sizeof(bytes), 77, waiter_done);
	assert_int_equal(waiter.calls, 0);
	assert_true(waiter.op.in_flight);
	written = wait_for(ring, &waiter);
	assert_in_range(written, 1, sizeof(bytes));
	transfer(ring, plain(fd), false, mem_of(&byte), 1, 77 + (uint64_t)written - 1, false);
	assert_int_equal(byte, 0x5a);
	memset(bytes, 1, sizeof(bytes));
	waiter = (struct waiter){ 0 };
	ring_transfer_inline(ring, &waiter.op, false, plain(fd), mem_of(bytes), 78, 0, waiter_done);
	assert_int_equal(waiter.calls, 0);
	assert_true(waiter.op.in_flight);
	got = wait_for(ring, &waiter);
	assert_in_range(got, 1, 78);
	for (int i = 0; i < got; i++) {
		assert_int_equal(bytes[i], i < 77 ? 0 : 0x5a);
	}
	world_close(fd, WORLD_FILE);
}

CONTRACT(a_punched_range_reads_as_zeroes)
{
	static uint8_t bytes[16384];
	int fd = world_file(FILE_BYTES);
	struct waiter waiter = { 0 };

	memset(bytes, 0x77, sizeof(bytes));
	transfer(ring, plain(fd), true, mem_of(bytes), sizeof(bytes), 0, false);
	ring_allocate(ring, &waiter.op, plain(fd), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096,
		8192, waiter_done);
	assert_int_equal(wait_for(ring, &waiter), 0);
	transfer(ring, plain(fd), false, mem_of(bytes), sizeof(bytes), 0, false);
	for (int i = 0; i < 16384; i++) {
		assert_int_equal(bytes[i], i < 4096 || i >= 12288 ? 0x77 : 0);
	}
	world_close(fd, WORLD_FILE);
}

/* Whichever completes first: each has its own bytes. */
CONTRACT(operations_on_a_file_are_independent)
{
	static uint8_t bytes[32][4096];
	struct waiter waiters[32] = { 0 };
	int fd = world_file(FILE_BYTES);
	struct ring_file file = ring_file_add(ring, fd);

	for (int i = 0; i < 32; i++) {
		memset(bytes[i], i + 1, sizeof(bytes[i]));
		transfer(ring, file, true, mem_of(bytes[i]), 4096, 4096 * (uint64_t)i, false);
	}
	for (int i = 0; i < 32; i++) {
		ring_read(ring, &waiters[i].op, file, mem_of(bytes[i]), 4096,
			4096 * (uint64_t)(31 - i), waiter_done);
	}
	for (int i = 0; i < 32; i++) {
		while (waiters[i].calls == 0) {
			(void)ring_turn(ring, true);
		}
		assert_in_range(waiters[i].result, 1, 4096);
		assert_int_equal(bytes[i][0], 32 - i);
		assert_int_equal(bytes[i][waiters[i].result - 1], 32 - i);
	}
	ring_file_remove(ring, &file);
	world_close(fd, WORLD_FILE);
}

CONTRACT(a_full_file_table_is_no_obstacle)
{
	struct ring *small = contract_ring(&(struct ring_options){ .files_max = 2 });
	struct ring_file files[4];
	uint8_t byte = 9;
	int fds[4];

	for (int i = 0; i < 4; i++) {
		fds[i] = world_file(FILE_BYTES);
		files[i] = ring_file_add(small, fds[i]);
		assert_int_equal(files[i].fd, fds[i]);
		assert_int_equal(files[i].slot >= 0, i < 2);
		transfer(small, files[i], true, mem_of(&byte), 1, 0, false);
	}
	assert_true(files[0].slot != files[1].slot);
	ring_file_remove(small, &files[0]);
	files[3] = ring_file_add(small, fds[3]);
	assert_true(files[3].slot >= 0); /* the place is free again */
	transfer(small, files[3], false, mem_of(&byte), 1, 0, false);
	for (int i = 0; i < 4; i++) {
		ring_file_remove(small, &files[i]);
		world_close(fds[i], WORLD_FILE);
	}
	ring_destroy(small);
}

CONTRACT(registered_memory_is_used_until_it_is_removed)
{
	struct ring *small = contract_ring(&(struct ring_options){ .buffers_max = 2 });
	struct mem_region regions[3];
	int fd = world_file(FILE_BYTES);

	for (int i = 0; i < 3; i++) {
		regions[i] = (struct mem_region){ .bytes = 65536, .rights = MEM_RAM };
		assert_int_equal(posix_memalign((void **)&regions[i].base, 4096, 65536), 0);
		memset(regions[i].base, 0, 65536);
	}
	assert_int_equal(ring_memory_add(small, &regions[0]), 0);
	assert_int_equal(ring_memory_add(small, &regions[1]), 0);
	assert_int_equal(ring_memory_add(small, &regions[2]), -ENOSPC);
	assert_true(mem_may(mem_at(&regions[0], 0), MEM_FIXED));
	assert_true(mem_may(mem_at(&regions[1], 0), MEM_FIXED));
	assert_false(mem_may(mem_at(&regions[2], 0), MEM_FIXED));
	for (int i = 0; i < 3; i++) {
		uint64_t offset = 65536 * (uint64_t)i;

		memset(regions[i].base, 0x10 + i, 65536);
		transfer(small, plain(fd), true, mem_at(&regions[i], 100), 60000, offset, false);
		memset(regions[i].base, 0, 65536);
		transfer(small, plain(fd), false, mem_at(&regions[i], 200), 60000, offset, false);
		assert_int_equal(regions[i].base[199], 0);
		assert_int_equal(regions[i].base[200], 0x10 + i);
		assert_int_equal(regions[i].base[60199], 0x10 + i);
		assert_int_equal(regions[i].base[60200], 0);
	}
	ring_memory_remove(small, &regions[0]);
	assert_false(mem_may(mem_at(&regions[0], 0), MEM_FIXED));
	ring_memory_remove(small, &regions[0]); /* nothing to do */
	assert_int_equal(ring_memory_add(small, &regions[2]), 0);
	transfer(small, plain(fd), false, mem_at(&regions[2], 0), 65536, 0, false);
	ring_memory_remove(small, &regions[1]);
	ring_memory_remove(small, &regions[2]);
	for (int i = 0; i < 3; i++) {
		free(regions[i].base);
	}
	world_close(fd, WORLD_FILE);
	ring_destroy(small);
}
