// SPDX-License-Identifier: Apache-2.0
/*
 * The page cache of real files: what the map reports, and sends from it to a socket.
 */
#include <errno.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "disk/disk.h"
#include "harness.h"
#include "unit.h"

enum { FILE_BYTES = 1 << 20, PAGE_BYTES = 4096 };

static int open_image(const char *name, uint64_t size)
{
	struct error error;
	int fd = -1;

	if (disk_open(scratch_file(name, size), false, false, &fd, &error) != 0) {
		fail_msg("%s", error.text);
	}
	return fd;
}

static struct disk_map *map_of(int fd, uint64_t size)
{
	struct disk_map *map = NULL;

	assert_int_equal(disk_map_create(fd, size, &map), 0);
	return map;
}

static void fill(int fd, uint8_t *bytes)
{
	uint64_t random = 7;

	for (int i = 0; i < FILE_BYTES; i++) {
		bytes[i] = (uint8_t)random_next(&random);
	}
	assert_int_equal(pwrite(fd, bytes, FILE_BYTES, 0), FILE_BYTES);
}

TEST(test_what_is_cached)
{
	int fd = open_image("image", FILE_BYTES);
	struct disk_map *map = map_of(fd, FILE_BYTES - 5);
	uint8_t page[PAGE_BYTES];
	uint8_t byte = 0;

	memset(page, 0x55, sizeof(page));
	assert_false(disk_map_has(map, 0, 1)); /* a hole that nobody has read */
	assert_int_equal(pwrite(fd, page, sizeof(page), 8192), PAGE_BYTES);
	assert_true(disk_map_has(map, 8192, PAGE_BYTES));
	assert_true(disk_map_peek(map, 8192 + PAGE_BYTES - 1, &byte, 1));
	assert_int_equal(byte, 0x55);
	assert_false(disk_map_has(map, 8191, PAGE_BYTES));
	assert_false(disk_map_has(map, 8192, PAGE_BYTES + 1));
	/* Ends with the last page, whatever the size. */
	assert_int_equal(pwrite(fd, page, sizeof(page), FILE_BYTES - PAGE_BYTES), PAGE_BYTES);
	assert_true(disk_map_has(map, FILE_BYTES - PAGE_BYTES, PAGE_BYTES - 5));
	assert_false(disk_map_has(map, FILE_BYTES, 1));
	assert_false(disk_map_has(map, FILE_BYTES - PAGE_BYTES, PAGE_BYTES + 1));
	assert_false(disk_map_has(map, UINT64_MAX - 4, 5));
	assert_false(disk_map_has(map, UINT64_MAX - 4, 4096));
	assert_int_equal(ftruncate(fd, PAGE_BYTES), 0);
	assert_false(disk_map_peek(map, PAGE_BYTES, &byte, 1));
	disk_map_destroy(map);
	disk_close(fd);
}

/* A file, and a socket of a ring to a peer. */
struct sender {
	struct ring *ring;
	struct ring_file socket;
	struct mem_region region;
	uint8_t *bytes; /* of the file */
	uint8_t *got;
	int peer;
};

static void sender_open(struct sender *sender)
{
	struct error error;
	int ends[2];

	*sender = (struct sender){ .bytes = aligned_bytes(FILE_BYTES),
		.got = aligned_bytes(FILE_BYTES) };
	sender->region.fd = open_image("image", FILE_BYTES);
	sender->region.rights = MEM_SOCKET;
	fill(sender->region.fd, sender->bytes);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(
		ring_create(&(struct ring_options){ .entries = 0 }, &sender->ring, &error), 0);
	sender->socket = ring_file_add(sender->ring, ends[0]);
	sender->peer = ends[1];
}

static void sender_close(struct sender *sender)
{
	int fd = sender->socket.fd;

	ring_file_remove(sender->ring, &sender->socket);
	ring_destroy(sender->ring);
	close(fd);
	close(sender->peer);
	disk_close(sender->region.fd);
	free(sender->bytes);
	free(sender->got);
}

static ssize_t send_from(struct sender *sender, uint64_t offset, size_t count)
{
	return ring_sendfile_now(
		sender->ring, sender->socket, mem_at(&sender->region, offset), count);
}

static void expect(struct sender *sender, uint64_t offset, size_t count)
{
	assert_int_equal(recv(sender->peer, sender->got, count, MSG_WAITALL), count);
	assert_memory_equal(sender->got, sender->bytes + offset, count);
}

TEST(test_what_is_sent_is_what_a_read_would_find)
{
	struct sender sender;
	uint64_t random = 8;

	sender_open(&sender);
	for (int i = 0; i < 200; i++) {
		size_t count = 1 + random_below(&random, 60000);
		uint64_t offset = random_below(&random, FILE_BYTES - count + 1);

		assert_int_equal(send_from(&sender, offset, count), count);
		expect(&sender, offset, count);
	}
	assert_true(ring_counters(sender.ring)->direct >= 200);
	sender_close(&sender);
}

/* A send into a full socket returns at once, and nothing is left out. */
TEST(test_a_full_socket_takes_a_part)
{
	struct sender sender;
	size_t sent = 0;
	size_t received = 0;
	ssize_t result;

	sender_open(&sender);
	while (received < FILE_BYTES) {
		size_t before = sent;

		while (sent < FILE_BYTES) {
			result = send_from(&sender, sent, FILE_BYTES - sent);
			if (result == -EAGAIN) {
				break;
			}
			assert_true(result > 0);
			sent += (size_t)result;
		}
		assert_true(sent > before && (received > 0 || sent < FILE_BYTES));
		expect(&sender, received, sent - received);
		received = sent;
	}
	sender_close(&sender);
}

TEST(test_a_shorter_file_is_an_error)
{
	struct sender sender;

	sender_open(&sender);
	assert_int_equal(ftruncate(sender.region.fd, PAGE_BYTES + 5), 0);
	assert_int_equal(send_from(&sender, 100, 2 * PAGE_BYTES), PAGE_BYTES + 5 - 100);
	expect(&sender, 100, PAGE_BYTES + 5 - 100);
	assert_int_equal(send_from(&sender, PAGE_BYTES + 5, 1), -EFAULT);
	sender_close(&sender);
}

TEST(test_a_peer_that_is_gone_is_an_error)
{
	struct sender sender;

	sender_open(&sender);
	assert_int_equal(shutdown(sender.peer, SHUT_RDWR), 0);
	assert_int_equal(send_from(&sender, 0, PAGE_BYTES), -EPIPE);
	sender_close(&sender);
}

struct receiving {
	struct ring_op op;
	int result;
};

static void received(struct ring_op *op, int result)
{
	container_of(op, struct receiving, op)->result = result;
}

/* A receive that waits is not disturbed, nor is one that begins after the send. */
TEST(test_receives_go_on_waiting)
{
	struct receiving receiving = { 0 };
	struct sender sender;
	char word[8];

	sender_open(&sender);
	for (int i = 0; i < 2; i++) {
		ring_recv(sender.ring, &receiving.op, sender.socket, word, sizeof(word), false,
			received);
		ring_turn(sender.ring, false);
		assert_int_equal(send_from(&sender, 0, PAGE_BYTES), PAGE_BYTES);
		expect(&sender, 0, PAGE_BYTES);
		ring_turn(sender.ring, false);
		assert_true(receiving.op.in_flight);
		assert_int_equal(send(sender.peer, "request", 8, 0), 8);
		while (receiving.op.in_flight) {
			ring_turn(sender.ring, true);
		}
		assert_int_equal(receiving.result, 8);
	}
	sender_close(&sender);
}

/* The kernel tells others than a file's owner, who may only read it, that everything is there. */
TEST(test_only_who_is_told)
{
	const uid_t nobody = 65534;
	int fd = open_image("image", FILE_BYTES);
	int status;
	pid_t child;

	if (geteuid() != 0) {
		disk_close(fd);
		skip();
	}
	assert_int_equal(fchmod(fd, 0644), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct disk_map *map;
		int refused = seteuid(nobody) == 0 ? disk_map_create(fd, FILE_BYTES, &map) : 1;
		bool may = seteuid(0) == 0 && fchmod(fd, 0666) == 0 && seteuid(nobody) == 0;
		/* The directory above may be closed to him: only the file counts here. */
		int told = may ? disk_map_create(fd, FILE_BYTES, &map) : 1;

		_exit(refused == -EPERM && told == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	/* Nor does it tell root, where root may not do everything. */
	assert_int_equal(fchmod(fd, 0644), 0);
	assert_int_equal(fchown(fd, nobody, nobody), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
		struct __user_cap_data_struct none[2] = { 0 };
		struct disk_map *map;

		_exit(syscall(SYS_capset, &header, none) == 0 &&
					disk_map_create(fd, FILE_BYTES, &map) == -EPERM
				? 0
				: 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	disk_close(fd);
}

int main(void)
{
	int failed;

	signal(SIGPIPE, SIG_IGN); /* as the server */
	scratch_create();
	failed = unit_run(NULL, NULL);
	scratch_remove();
	return failed;
}
