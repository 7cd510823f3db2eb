// SPDX-License-Identifier: Apache-2.0
/* The simulated twin of the ring, beside what test_ring_contract.c asks of both rings: that its
 * faults happen, that its disks forget what was not flushed, and that misuse is noticed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/compiler.h"
#include "disk/disk.h"
#include "sim/sim.h"
#include "unit.h"

static const struct sim_faults rough = {
	.partial_ppm = 300000,
	.interrupt_ppm = 50000,
	.jitter = true,
};

struct waiter {
	struct ring_op op;
	int calls;
	int result;
	uint64_t at_ns;
};

static void waiter_done(struct ring_op *op, int result)
{
	struct waiter *waiter = container_of(op, struct waiter, op);

	waiter->calls++;
	waiter->result = result;
	waiter->at_ns = sim_now_ns();
}

static struct ring *start(uint64_t seed, const struct sim_faults *faults)
{
	struct sim_options options = { .seed = seed };
	struct ring *ring = NULL;
	struct error error;

	if (faults != NULL) {
		options.faults = *faults;
	}
	sim_start(&options);
	assert_int_equal(ring_create(&(struct ring_options){ .entries = 0 }, &ring, &error), 0);
	return ring;
}

static void stop(struct ring *ring)
{
	ring_destroy(ring);
	sim_stop();
}

static void wait_for(struct ring *ring, struct waiter *waiter)
{
	int calls = waiter->calls;

	while (waiter->calls == calls) {
		ring_turn(ring, true);
	}
	assert_int_equal(waiter->calls, calls + 1);
}

static int disk_fd(const char *name, bool direct)
{
	struct error error;
	int fd = -1;

	assert_int_equal(disk_open(name, false, direct, &fd, &error), 0);
	return fd;
}

/* --- the clock ------------------------------------------------------------------------------ */

TEST(test_timer_moves_the_clock_and_can_be_cancelled)
{
	struct ring *ring = start(2, &rough);
	struct waiter hour = { 0 };
	struct waiter second = { 0 };
	uint64_t from = sim_now_ns();

	ring_timer(ring, &hour.op, UINT64_C(3600000000000), waiter_done);
	ring_timer(ring, &second.op, 1000000000, waiter_done);
	wait_for(ring, &second);
	assert_in_range(second.at_ns - from, 1000000000, 1200000000);
	ring_cancel(ring, &hour.op);
	wait_for(ring, &hour);
	assert_int_equal(hour.result, -ECANCELED);
	assert_in_range(hour.at_ns - from, 1000000000, 1300000000);
	stop(ring);
}

static uint64_t noisy_run(uint64_t seed)
{
	struct ring *ring = start(seed, &rough);
	struct waiter timers[20] = { 0 };
	uint64_t hash;

	for (size_t i = 0; i < ARRAY_COUNT(timers); i++) {
		ring_timer(ring, &timers[i].op, ring_random(ring) % 1000000, waiter_done);
	}
	assert_true(sim_run_until_idle(10000));
	hash = sim_trace_hash();
	stop(ring);
	return hash;
}

TEST(test_same_seed_same_run)
{
	assert_true(noisy_run(7) == noisy_run(7));
	assert_true(noisy_run(7) != noisy_run(8));
}

/* --- sockets -------------------------------------------------------------------------------- */

enum { STREAM_BYTES = 300000 };
static int stream_pieces;

static void pattern(uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		bytes[i] = (uint8_t)(i * 31 + i / 256);
	}
}

/* Sends everything and receives it on the other side in pieces; spoil reuses the buffer at once. */
static bool stream_once(uint64_t seed, bool spoil)
{
	struct ring *ring = start(seed, &rough);
	uint8_t *from = malloc(STREAM_BYTES);
	uint8_t *want = malloc(STREAM_BYTES);
	uint8_t *got = malloc(STREAM_BYTES);
	struct waiter send = { .result = -EINTR, .calls = 1 };
	struct waiter recv = { .result = 0, .calls = 1 };
	size_t sent = 0;
	size_t received = 0;
	int server_fd;
	int client_fd;
	bool equal;

	pattern(from, STREAM_BYTES);
	pattern(want, STREAM_BYTES);
	sim_socket_pair(&server_fd, &client_fd);
	while (received < STREAM_BYTES) {
		struct ring_file server = { .fd = server_fd, .slot = -1 };
		struct ring_file client = { .fd = client_fd, .slot = -1 };

		if (!send.op.in_flight && sent < STREAM_BYTES) {
			ring_send(ring, &send.op, server, from + sent, STREAM_BYTES - sent,
				waiter_done);
			if (spoil) {
				memset(from, 0, STREAM_BYTES);
			}
		}
		if (!recv.op.in_flight) {
			ring_recv(ring, &recv.op, client, got + received, STREAM_BYTES - received,
				false, waiter_done);
		}
		ring_turn(ring, true);
		if (!send.op.in_flight) {
			sent += send.result > 0 ? (size_t)send.result : 0;
			send.result = 0;
		}
		if (!recv.op.in_flight) {
			assert_true(recv.result > 0 || recv.result == -EINTR);
			received += recv.result > 0 ? (size_t)recv.result : 0;
		}
	}
	while (send.op.in_flight) {
		ring_turn(ring, true);
	}
	stream_pieces += recv.calls;
	equal = memcmp(want, got, STREAM_BYTES) == 0;
	ring_socket_close(ring, server_fd);
	sim_socket_close(client_fd);
	stop(ring);
	free(from);
	free(want);
	free(got);
	return equal;
}

TEST(test_stream_keeps_bytes_and_order)
{
	for (uint64_t seed = 0; seed < 20; seed++) {
		assert_true(stream_once(seed, false));
	}
	assert_true(stream_pieces > 100); /* it did come in pieces */
}

TEST(test_buffer_reused_before_done_shows_as_corruption)
{
	for (uint64_t seed = 0; seed < 5; seed++) {
		assert_false(stream_once(seed, true));
	}
}

TEST(test_wait_all_fills_the_buffer_or_tells_the_end)
{
	struct ring *ring = start(5, &(struct sim_faults){ .partial_ppm = 500000, .jitter = true });
	uint8_t got[1000];
	uint8_t want[1500];
	struct waiter recv = { 0 };
	struct ring_file server;
	int server_fd;
	int client_fd;

	pattern(want, sizeof(want));
	sim_socket_pair(&server_fd, &client_fd);
	server = ring_file_add(ring, server_fd);
	sim_socket_write(client_fd, want, 600);
	ring_recv(ring, &recv.op, server, got, 1000, true, waiter_done);
	assert_true(sim_run_until_idle(1000));
	assert_int_equal(recv.calls, 0);
	sim_socket_write(client_fd, want + 600, 900);
	wait_for(ring, &recv);
	assert_int_equal(recv.result, 1000);
	assert_memory_equal(got, want, 1000);
	sim_socket_finish(client_fd);
	ring_recv(ring, &recv.op, server, got, 1000, true, waiter_done);
	wait_for(ring, &recv);
	assert_int_equal(recv.result, 500);
	assert_memory_equal(got, want + 1000, 500);
	ring_recv(ring, &recv.op, server, got, 1000, true, waiter_done);
	wait_for(ring, &recv);
	assert_int_equal(recv.result, 0);
	ring_file_remove(ring, &server);
	ring_socket_close(ring, server_fd);
	sim_socket_close(client_fd);
	stop(ring);
}

TEST(test_cut_breaks_after_the_chosen_byte)
{
	static const enum sim_cut cuts[] = { SIM_CUT_RESET, SIM_CUT_CLOSE, SIM_CUT_HALF_CLOSE };

	for (size_t i = 0; i < ARRAY_COUNT(cuts); i++) {
		struct ring *ring = start(6, NULL);
		struct waiter recv = { 0 };
		struct waiter send = { 0 };
		uint8_t bytes[100] = { 0 };
		struct ring_file server = { .slot = -1 };
		int client_fd;

		sim_socket_pair(&server.fd, &client_fd);
		sim_socket_cut(client_fd, true, 37, cuts[i]);
		sim_socket_write(client_fd, bytes, sizeof(bytes));
		ring_recv(ring, &recv.op, server, bytes, 100, true, waiter_done);
		wait_for(ring, &recv);
		assert_int_equal(recv.result, 37);
		ring_recv(ring, &recv.op, server, bytes, 100, true, waiter_done);
		wait_for(ring, &recv);
		assert_int_equal(recv.result, cuts[i] == SIM_CUT_RESET ? -ECONNRESET : 0);
		ring_send(ring, &send.op, server, bytes, 100, waiter_done);
		wait_for(ring, &send);
		assert_int_equal(send.result, cuts[i] == SIM_CUT_HALF_CLOSE ? 100 : -EPIPE);
		ring_socket_close(ring, server.fd);
		sim_socket_close(client_fd);
		stop(ring);
	}
}

TEST(test_shutdown_and_cancel_end_a_receive)
{
	struct ring *ring = start(7, &(struct sim_faults){ .jitter = true });
	struct waiter recv = { 0 };
	uint8_t bytes[10];
	struct ring_file server = { .slot = -1 };
	int client_fd;

	sim_socket_pair(&server.fd, &client_fd);
	ring_recv(ring, &recv.op, server, bytes, 10, false, waiter_done);
	ring_cancel(ring, &recv.op);
	wait_for(ring, &recv);
	assert_int_equal(recv.result, -ECANCELED);
	ring_recv(ring, &recv.op, server, bytes, 10, false, waiter_done);
	ring_socket_shutdown(ring, server);
	wait_for(ring, &recv);
	assert_int_equal(recv.result, 0);
	assert_true(sim_run_until_idle(100));
	assert_int_equal(sim_socket_read(client_fd, bytes, 10), -ENODATA);
	assert_int_equal(sim_open_count(), 1);
	ring_socket_close(ring, server.fd);
	assert_int_equal(sim_open_count(), 0);
	assert_true(sim_socket_peer_closed(client_fd));
	stop(ring);
}

TEST(test_accept_gives_connections)
{
	struct ring *ring = start(8, &(struct sim_faults){ .accept_error_ppm = 500000 });
	int listener = sim_listener_create();
	struct ring_file file = { .fd = listener, .slot = -1 };
	struct waiter accept = { 0 };
	int errors = 0;

	sim_connect(listener);
	do {
		ring_accept(ring, &accept.op, file, waiter_done);
		wait_for(ring, &accept);
		errors += accept.result < 0 ? 1 : 0;
	} while (accept.result < 0);
	assert_int_equal(sim_open_count(), 1);
	ring_socket_close(ring, accept.result);
	ring_accept(ring, &accept.op, file, waiter_done);
	ring_cancel(ring, &accept.op);
	wait_for(ring, &accept);
	assert_int_equal(accept.result, -ECANCELED);
	sim_listener_close(listener);
	stop(ring);
	assert_in_range(errors, 0, 50);
}

/* --- disks ---------------------------------------------------------------------------------- */

enum { DISK_BYTES = 1 << 20 };

static int transfer(
	struct ring *ring, int fd, bool write, void *buf, size_t len, uint64_t offset, bool dsync)
{
	struct ring_file file = { .fd = fd, .slot = -1 };
	struct waiter waiter = { 0 };

	if (write) {
		ring_write(ring, &waiter.op, file, mem_of(buf), len, offset, dsync, waiter_done);
	} else {
		ring_read(ring, &waiter.op, file, mem_of(buf), len, offset, waiter_done);
	}
	wait_for(ring, &waiter);
	return waiter.result;
}

static int flush(struct ring *ring, int fd)
{
	struct waiter waiter = { 0 };

	ring_fsync(ring, &waiter.op, (struct ring_file){ .fd = fd, .slot = -1 }, waiter_done);
	wait_for(ring, &waiter);
	return waiter.result;
}

static uint32_t sectors_kept(struct sim_disk *disk, const uint8_t *want, size_t len)
{
	uint32_t kept = 0;

	for (size_t at = 0; at < len; at += 512) {
		uint8_t sector[512];

		sim_disk_peek(disk, at, sector, sizeof(sector));
		kept += memcmp(sector, want + at, 512) == 0 ? 1 : 0;
	}
	return kept;
}

TEST(test_crash_keeps_flushed_and_some_of_the_rest)
{
	struct ring *ring = start(9, &(struct sim_faults){ .jitter = true });
	struct sim_disk *disk =
		sim_disk_create("disk", &(struct sim_disk_options){ .size = DISK_BYTES });
	int fd = disk_fd("disk", false);
	uint8_t *bytes = malloc(64 * 512);
	uint32_t kept;

	memset(bytes, 0x11, 64 * 512);
	assert_int_equal(transfer(ring, fd, true, bytes, 64 * 512, 0, false), 64 * 512);
	assert_int_equal(sim_disk_unflushed_bytes(disk, 0, UINT64_MAX), 64 * 512);
	assert_int_equal(flush(ring, fd), 0);
	assert_int_equal(sim_disk_unflushed_bytes(disk, 0, UINT64_MAX), 0);
	sim_disk_crash(disk);
	assert_int_equal(sectors_kept(disk, bytes, 64 * 512), 64);

	memset(bytes, 0x22, 64 * 512);
	assert_int_equal(transfer(ring, fd, true, bytes, 64 * 512, 0, false), 64 * 512);
	sim_disk_crash(disk);
	kept = sectors_kept(disk, bytes, 64 * 512);
	assert_in_range(kept, 10, 54);

	memset(bytes, 0x33, 64 * 512);
	assert_int_equal(transfer(ring, fd, true, bytes, 64 * 512, 0, true), 64 * 512);
	sim_disk_crash(disk);
	assert_int_equal(sectors_kept(disk, bytes, 64 * 512), 64);
	disk_close(fd);
	free(bytes);
	stop(ring);
}

TEST(test_flush_does_not_cover_writes_in_flight)
{
	uint32_t lost = 0;

	for (uint64_t seed = 0; seed < 20; seed++) {
		struct ring *ring = start(seed, &(struct sim_faults){ .jitter = true });
		struct sim_disk *disk =
			sim_disk_create("disk", &(struct sim_disk_options){ .size = DISK_BYTES });
		int fd = disk_fd("disk", false);
		struct ring_file file = { .fd = fd, .slot = -1 };
		struct waiter write = { 0 };
		struct waiter fsync = { 0 };
		uint8_t bytes[8 * 512];

		memset(bytes, 0x44, sizeof(bytes));
		ring_write(
			ring, &write.op, file, mem_of(bytes), sizeof(bytes), 0, false, waiter_done);
		ring_fsync(ring, &fsync.op, file, waiter_done);
		assert_true(sim_run_until_idle(1000));
		assert_int_equal(fsync.result, 0);
		sim_disk_crash(disk);
		lost += 8 - sectors_kept(disk, bytes, sizeof(bytes));
		disk_close(fd);
		stop(ring);
	}
	assert_in_range(lost, 40, 120);
}

TEST(test_failed_flush_forgets)
{
	struct sim_faults faults = { .flush_error_ppm = 1000000, .jitter = true };
	struct ring *ring = start(10, &faults);
	struct sim_disk *disk =
		sim_disk_create("disk", &(struct sim_disk_options){ .size = DISK_BYTES });
	int fd = disk_fd("disk", false);
	int other = disk_fd("disk", false);
	int third = disk_fd("disk", false);
	uint8_t *bytes = malloc(64 * 512);

	memset(bytes, 0x55, 64 * 512);
	assert_int_equal(transfer(ring, fd, true, bytes, 64 * 512, 0, false), 64 * 512);
	assert_int_equal(flush(ring, fd), -EIO);
	faults.flush_error_ppm = 0;
	sim_set_faults(&faults);
	assert_int_equal(flush(ring, fd), 0);	    /* told once */
	assert_int_equal(flush(ring, other), -EIO); /* to each descriptor */
	assert_int_equal(flush(ring, other), 0);
	assert_int_equal(disk_sync(third), -EIO); /* also to a call that blocks */
	assert_int_equal(disk_sync(third), 0);
	assert_int_equal(sectors_kept(disk, bytes, 64 * 512), 64); /* still in the page cache */
	sim_disk_crash(disk);
	assert_in_range(sectors_kept(disk, bytes, 64 * 512), 10, 54);
	disk_close(fd);
	disk_close(other);
	disk_close(third);
	free(bytes);
	stop(ring);
}

TEST(test_direct_io_has_alignment_rules)
{
	struct ring *ring = start(11, NULL);
	int fd;
	uint8_t *bytes = NULL;

	sim_disk_create("disk",
		&(struct sim_disk_options){ .size = DISK_BYTES + 100, .direct_offset_align = 512 });
	fd = disk_fd("disk", true);
	assert_int_equal(posix_memalign((void **)&bytes, 4096, 8192), 0);
	assert_int_equal(transfer(ring, fd, false, bytes, 4096, 512, false), 4096);
	assert_int_equal(transfer(ring, fd, false, bytes, 4096, 100, false), -EINVAL);
	assert_int_equal(transfer(ring, fd, false, bytes, 4000, 512, false), -EINVAL);
	assert_int_equal(transfer(ring, fd, false, bytes + 4, 4096, 512, false), -EINVAL);
	assert_int_equal(transfer(ring, fd, false, bytes, 4096, DISK_BYTES, false), 100);
	assert_int_equal(transfer(ring, fd, false, bytes, 4096, DISK_BYTES * 2, false), 0);
	disk_close(fd);
	free(bytes);
	stop(ring);
}

TEST(test_bad_range_fails_and_neighbours_do_not)
{
	struct ring *ring = start(12, NULL);
	struct sim_disk *disk =
		sim_disk_create("disk", &(struct sim_disk_options){ .size = DISK_BYTES });
	int fd = disk_fd("disk", false);
	uint8_t bytes[4096] = { 0 };

	sim_disk_set_bad(disk, 8192, 512, true, false);
	assert_int_equal(transfer(ring, fd, false, bytes, 4096, 8192, false), -EIO);
	assert_int_equal(transfer(ring, fd, false, bytes, 4096, 8192 + 512, false), 4096);
	assert_int_equal(transfer(ring, fd, false, bytes, 4096, 4096, false), 4096);
	assert_int_equal(transfer(ring, fd, true, bytes, 4096, 8192, false), 4096);
	disk_close(fd);
	stop(ring);
}

TEST(test_holes_trim_and_resize)
{
	struct ring *ring = start(13, NULL);
	struct sim_disk *disk =
		sim_disk_create("disk", &(struct sim_disk_options){ .size = DISK_BYTES });
	int fd = disk_fd("disk", false);
	enum disk_extent_kind kind;
	uint8_t bytes[8192];
	uint64_t length;

	memset(bytes, 0x66, sizeof(bytes));
	assert_int_equal(transfer(ring, fd, true, bytes, 8192, 8192, false), 8192);
	assert_int_equal(disk_extent(fd, 0, DISK_BYTES, &kind, &length), 0);
	assert_int_equal(kind, DISK_HOLE);
	assert_int_equal(length, 8192);
	assert_int_equal(disk_extent(fd, 9000, DISK_BYTES, &kind, &length), 0);
	assert_int_equal(kind, DISK_DATA);
	assert_int_equal(length, 16384 - 9000);
	assert_int_equal(disk_discard(fd, false, 8192, 4096), 0);
	assert_int_equal(disk_extent(fd, 0, DISK_BYTES, &kind, &length), 0);
	assert_int_equal(length, 12288);
	assert_int_equal(disk_zero(fd, false, 12288, 100, false, false), 0);
	sim_disk_peek(disk, 12288, bytes, 101);
	assert_int_equal(bytes[99], 0);
	assert_int_equal(bytes[100], 0x66);
	sim_disk_resize(disk, 12300);
	assert_int_equal(disk_size(fd, &length), 0);
	assert_int_equal(length, 12300);
	assert_int_equal(transfer(ring, fd, false, bytes, 4096, 12288, false), 12);
	disk_close(fd);
	stop(ring);
}

/* What is sent out of the page cache of a disk that has become shorter ends where the disk does. */
TEST(test_a_send_from_a_shorter_disk_fails)
{
	struct ring *ring = start(5, &(struct sim_faults){ 0 });
	struct sim_disk *disk =
		sim_disk_create("disk", &(struct sim_disk_options){ .size = DISK_BYTES });
	struct ring_file server = { .slot = -1 };
	struct disk_map *map = NULL;
	int fd = disk_fd("disk", false);
	struct mem_region region = { .fd = fd, .rights = MEM_SOCKET };
	uint8_t bytes[8192];
	int client_fd;

	sim_socket_pair(&server.fd, &client_fd);
	assert_int_equal(disk_map_create(fd, DISK_BYTES, &map), 0);
	assert_false(disk_map_has(map, 4096, 8192)); /* nobody has touched it */
	memset(bytes, 0x66, sizeof(bytes));
	assert_int_equal(transfer(ring, fd, true, bytes, 8192, 4096, false), 8192);
	assert_true(disk_map_has(map, 4096, 8192));
	sim_disk_resize(disk, 8000);
	assert_false(disk_map_has(map, 4096, 8192));
	assert_int_equal(ring_sendfile_now(ring, server, mem_at(&region, 4096), 8192), 8000 - 4096);
	assert_int_equal(ring_sendfile_now(ring, server, mem_at(&region, 8000), 192), -EFAULT);
	ring_socket_close(ring, server.fd);
	disk_map_destroy(map);
	disk_close(fd);
	stop(ring);
}

/* A buffered write and a direct write to the other half of its page, at once: does one of them get
 * lost? Serial runs must never lose one. */
static bool mixed_writes_lose(uint64_t seed, bool serial)
{
	struct ring *ring = start(seed, &(struct sim_faults){ .jitter = true });
	struct sim_disk *disk = sim_disk_create("disk",
		&(struct sim_disk_options){ .size = DISK_BYTES, .direct_offset_align = 512 });
	struct ring_file buffered = { .fd = disk_fd("disk", false), .slot = -1 };
	struct ring_file direct = { .fd = disk_fd("disk", true), .slot = -1 };
	struct waiter first = { 0 };
	struct waiter second = { 0 };
	uint8_t *bytes = NULL;
	uint8_t got[4096];
	bool lost;

	assert_int_equal(posix_memalign((void **)&bytes, 4096, 4096), 0);
	memset(bytes, 0x77, 4096);
	ring_write(ring, &first.op, buffered, mem_of(bytes), 100, 0, false, waiter_done);
	if (serial) {
		wait_for(ring, &first);
	}
	ring_write(ring, &second.op, direct, mem_of(bytes + 2048), 2048, 2048, false, waiter_done);
	assert_true(sim_run_until_idle(1000));
	assert_int_equal(first.result, 100);
	assert_int_equal(second.result, 2048);
	assert_int_equal(flush(ring, buffered.fd), 0); /* also writes the page back */
	assert_int_equal(transfer(ring, direct.fd, false, bytes, 4096, 0, false), 4096);
	sim_disk_peek(disk, 0, got, sizeof(got));
	lost = bytes[0] != 0x77 || bytes[2048] != 0x77 || got[0] != 0x77 || got[2048] != 0x77;
	disk_close(buffered.fd);
	disk_close(direct.fd);
	free(bytes);
	stop(ring);
	return lost;
}

TEST(test_mixing_buffered_and_direct_writes_is_dangerous)
{
	uint32_t lost = 0;

	for (uint64_t seed = 0; seed < 100; seed++) {
		assert_false(mixed_writes_lose(seed, true));
		lost += mixed_writes_lose(seed, false) ? 1 : 0;
	}
	assert_in_range(lost, 5, 60);
}

/* --- misuse --------------------------------------------------------------------------------- */

static void misuse_shared_buffer(struct ring *ring, int fd)
{
	static uint8_t bytes[4096];
	struct ring_file file = { .fd = fd, .slot = -1 };
	struct waiter a = { 0 };
	struct waiter b = { 0 };

	ring_write(ring, &a.op, file, mem_of(bytes), 4096, 0, false, waiter_done);
	ring_read(ring, &b.op, file, mem_of(bytes + 4095), 1, 0, waiter_done);
}

static void misuse_submit_twice(struct ring *ring, int fd)
{
	struct waiter a = { 0 };

	ring_timer(ring, &a.op, 1, waiter_done);
	ring_timer(ring, &a.op, 1, waiter_done);
}

static void misuse_close_in_flight(struct ring *ring, int fd)
{
	struct waiter a = { 0 };

	ring_fsync(ring, &a.op, (struct ring_file){ .fd = fd, .slot = -1 }, waiter_done);
	disk_close(fd);
}

static void misuse_closed_descriptor(struct ring *ring, int fd)
{
	struct waiter a = { 0 };

	disk_close(fd);
	ring_fsync(ring, &a.op, (struct ring_file){ .fd = fd, .slot = -1 }, waiter_done);
}

static void misuse_op_overwritten(struct ring *ring, int fd)
{
	struct waiter a = { 0 };

	ring_timer(ring, &a.op, 1, waiter_done);
	memset(&a, 0, sizeof(a));
	ring_turn(ring, true);
}

static void misuse_wrong_registered_memory(struct ring *ring, int fd)
{
	static uint8_t bytes[8192];
	struct waiter a = { 0 };
	struct mem_region region = { .base = bytes, .bytes = 4096, .rights = MEM_RAM };

	(void)!ring_memory_add(ring, &region);
	ring_read(ring, &a.op, (struct ring_file){ .fd = fd, .slot = -1 }, mem_at(&region, 1), 4096,
		0, waiter_done);
}

static int blocking_fd;
static void blocking_done(struct ring_op *op, int result)
{
	struct disk_info info;

	if (disk_info(blocking_fd, &info) != 0) {
		_exit(1);
	}
}

static void misuse_blocking_call_in_completion(struct ring *ring, int fd)
{
	struct waiter a = { 0 };

	blocking_fd = fd;
	ring_timer(ring, &a.op, 1, blocking_done);
	ring_turn(ring, true);
}

static void misuse_destroy_in_flight(struct ring *ring, int fd)
{
	struct waiter a = { 0 };

	ring_timer(ring, &a.op, 1, waiter_done);
	ring_destroy(ring);
}

TEST(test_misuse_aborts)
{
	static void (*const misuses[])(struct ring * ring, int fd) = {
		misuse_shared_buffer,
		misuse_submit_twice,
		misuse_close_in_flight,
		misuse_closed_descriptor,
		misuse_op_overwritten,
		misuse_wrong_registered_memory,
		misuse_blocking_call_in_completion,
		misuse_destroy_in_flight,
	};

	for (size_t i = 0; i < ARRAY_COUNT(misuses); i++) {
		pid_t pid = fork();
		int status;

		assert_true(pid >= 0);
		if (pid == 0) {
			struct ring *ring = start(1, NULL);

			if (freopen("/dev/null", "w", stderr) == NULL) {
				_exit(1);
			}
			sim_disk_create("disk", &(struct sim_disk_options){ .size = DISK_BYTES });
			misuses[i](ring, disk_fd("disk", false));
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
		assert_int_equal(WTERMSIG(status), SIGABRT);
	}
}
