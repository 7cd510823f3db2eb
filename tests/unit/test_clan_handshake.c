// SPDX-License-Identifier: Apache-2.0
/*
 * Peers of libclan that break the rules of docs/protocol/clan.md before they are connected, and a
 * kernel that passes no descriptors.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/rights.h"
#include "base/work.h"
#include "clan_victim.h"
#include "unit.h"

/* --- before HELLO ----------------------------------------------------------------------------- */

static void replace_fd(struct hostile *hostile, int at, int fd)
{
	assert_true(fd >= 0);
	hostile->fds[at] = fd;
}

static void not_a_memfd(struct hostile *h)
{
	replace_fd(h, 0, open("/dev/null", O_RDWR | O_CLOEXEC));
}
static void a_socket(struct hostile *h)
{
	replace_fd(h, 1, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}
static void no_seals(struct hostile *h)
{
	replace_fd(h, 0, unsealed_memfd(h->segment_bytes));
}
static void size_only_sealed(struct hostile *h)
{
	fcntl(h->segment_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}
static void group_without_seals(struct hostile *h)
{
	replace_fd(h, 1, unsealed_memfd(4096));
}
static void empty_memfd(struct hostile *h)
{
	replace_fd(h, 0, sealed_memfd(0));
}
static void huge_memfd(struct hostile *h)
{
	replace_fd(h, 0, sealed_memfd((size_t)1 << 40));
}
static void odd_memfd(struct hostile *h)
{
	replace_fd(h, 0, sealed_memfd(h->segment_bytes + 1));
}
static void short_group(struct hostile *h)
{
	replace_fd(h, 1, sealed_memfd(64));
}
static void zeroes(struct hostile *h)
{
	replace_fd(h, 0, sealed_memfd(h->segment_bytes));
}
static void wrong_magic(struct hostile *h)
{
	h->head->magic++;
}
static void wrong_version(struct hostile *h)
{
	h->head->version = 2;
}
static void odd_slots(struct hostile *h)
{
	h->head->slots[SHM_BULK] = 255;
}
static void many_slots(struct hostile *h)
{
	h->head->slots[SHM_BULK] = 1u << 31;
}
static void few_control_slots(struct hostile *h)
{
	h->head->slots[SHM_CONTROL] = 1;
}
static void more_slots_than_memory(struct hostile *h)
{
	h->head->slots[SHM_BULK] = 512;
}
static void many_cookies(struct hostile *h)
{
	h->head->cookies = UINT32_MAX;
}
static void no_tripwires(struct hostile *h)
{
	h->head->tripwires = 0;
}
static void wrong_bytes(struct hostile *h)
{
	h->head->bytes += 4096;
}
static void group_ready_slots(struct hostile *h)
{
	h->group->ready_slots = 1u << 20;
}
static void group_odd_slots(struct hostile *h)
{
	h->group->ready_slots = 500;
}
static void group_magic(struct hostile *h)
{
	h->group->magic = 0;
}
static void no_fds(struct hostile *h)
{
	h->fd_count = 0;
}
static void one_fd(struct hostile *h)
{
	h->fd_count = 1;
}
static void all_fds(struct hostile *h)
{
	for (h->fd_count = 2; h->fd_count < HOSTILE_FDS_MAX; h->fd_count++) {
		h->fds[h->fd_count] = h->segment_fd;
	}
}
static void short_hello(struct hostile *h)
{
	h->hello_bytes = 20;
	h->hello.head.bytes = 20;
}
static void lying_length(struct hostile *h)
{
	h->hello.head.bytes = 100;
}
static void long_text(struct hostile *h)
{
	h->hello.hello_bytes = 60000;
}
static void more_text_than_sent(struct hostile *h)
{
	h->hello.hello_bytes = 10;
}
static void too_long(struct hostile *h)
{
	h->hello_bytes = 8000;
	h->hello.head.bytes = 8000;
}
static void wrong_hello_magic(struct hostile *h)
{
	h->hello.magic = 1;
}
static void reserved_byte(struct hostile *h)
{
	h->hello.head.reserved = 1;
}
static void unknown_type(struct hostile *h)
{
	h->hello.head.type = 99;
}
static void region_first(struct hostile *h)
{
	h->hello.head.type = SHM_REGION;
}
static void unknown_version(struct hostile *h)
{
	h->hello.version_min = 7;
	h->hello.version_max = 9;
}
static void unknown_bell(struct hostile *h)
{
	h->hello.bell = 3;
}
static void large_number(struct hostile *h)
{
	h->hello.number = SHM_NUMBERS_MAX;
}
static void one_byte(struct hostile *h)
{
	h->hello_bytes = 1;
}

TEST(hello_is_refused)
{
	static const struct {
		const char *name;
		void (*spoil)(struct hostile *hostile);
	} cases[] = {
#define CASE(function) { #function, function }
		CASE(not_a_memfd),
		CASE(a_socket),
		CASE(no_seals),
		CASE(size_only_sealed),
		CASE(group_without_seals),
		CASE(empty_memfd),
		CASE(huge_memfd),
		CASE(odd_memfd),
		CASE(short_group),
		CASE(zeroes),
		CASE(wrong_magic),
		CASE(wrong_version),
		CASE(odd_slots),
		CASE(many_slots),
		CASE(few_control_slots),
		CASE(more_slots_than_memory),
		CASE(many_cookies),
		CASE(no_tripwires),
		CASE(wrong_bytes),
		CASE(group_ready_slots),
		CASE(group_odd_slots),
		CASE(group_magic),
		CASE(no_fds),
		CASE(one_fd),
		CASE(all_fds),
		CASE(short_hello),
		CASE(lying_length),
		CASE(long_text),
		CASE(more_text_than_sent),
		CASE(too_long),
		CASE(wrong_hello_magic),
		CASE(reserved_byte),
		CASE(unknown_type),
		CASE(region_first),
		CASE(unknown_version),
		CASE(unknown_bell),
		CASE(large_number),
		CASE(one_byte),
#undef CASE
	};
	struct victim victim;

	victim_open(&victim, *state, NULL);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct hostile hostile;

		hostile_come(&victim, &hostile);
		cases[i].spoil(&hostile);
		hostile_seal(&hostile);
		hostile_send_hello(&hostile);
		wait_for_end(&victim, &hostile);
		world_no_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT);
		for (uint32_t fd = 0; fd < 2; fd++) {
			if (hostile.fds[fd] != hostile.segment_fd &&
				hostile.fds[fd] != hostile.group_fd) {
				close(hostile.fds[fd]);
			}
		}
		hostile_close(&hostile);
		honest_still_talk(&victim);
		nothing_is_left(&victim);
	}
	victim_close(&victim);
}

TEST(an_unspoilt_hello_is_welcome)
{
	struct hostile hostile;
	struct victim victim;
	struct clan_event event;

	victim_open(&victim, *state, NULL);
	hostile_come(&victim, &hostile);
	hostile_seal(&hostile);
	hostile_send_hello(&hostile);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
	assert_true(hostile_welcomed(&hostile));
	hostile_close(&hostile);
	world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST);
	world_close_conn(&victim.world, WORLD_SERVER, event.conn);
	nothing_is_left(&victim);
	victim_close(&victim);
}

TEST(a_guessed_group_is_not_joined)
{
	uint8_t bytes[64];
	struct shm_socket_head head;
	struct hostile hostile;
	struct victim victim;

	victim_open(&victim, *state, NULL);
	hostile_come(&victim, &hostile);
	hostile_seal(&hostile);
	hostile.hello.group = 12345;
	hostile.fd_count = 1;
	hostile_send_hello(&hostile);
	world_settle(&victim.world);
	assert_int_equal(hostile_receive(&hostile, bytes, sizeof(bytes)), sizeof(head));
	memcpy(&head, bytes, sizeof(head));
	assert_int_equal(head.type, SHM_REGROUP);
	hostile_send_hello(&hostile); /* once more: too often */
	wait_for_end(&victim, &hostile);
	hostile_close(&hostile);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* The state of random_next() after it gave this number. */
static uint64_t state_after(uint64_t number)
{
	static const struct {
		uint64_t factor;
		int shift;
	} steps[] = { { 1, 31 }, { UINT64_C(0x94d049bb133111eb), 27 },
		{ UINT64_C(0xbf58476d1ce4e5b9), 30 } };

	for (size_t i = 0; i < ARRAY_COUNT(steps); i++) {
		uint64_t inverse = steps[i].factor;
		uint64_t whole;

		for (int bits = 0; bits < 6; bits++) {
			inverse *= 2 - steps[i].factor * inverse;
		}
		number *= inverse;
		whole = number;
		for (int at = steps[i].shift; at < 64; at += steps[i].shift) {
			whole = number ^ (whole >> steps[i].shift);
		}
		number = whole;
	}
	return number;
}

static uint64_t group_of_a_connection(struct victim *victim)
{
	struct hostile hostile;
	struct clan_event event;

	hostile_come(victim, &hostile);
	hostile_seal(&hostile);
	hostile_send_hello(&hostile);
	event = world_event(&victim->world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
	assert_true(hostile_welcomed(&hostile));
	hostile_close(&hostile);
	world_event(&victim->world, WORLD_SERVER, CLAN_EVENT_LOST);
	world_close_conn(&victim->world, WORLD_SERVER, event.conn);
	return hostile.victim_group_id;
}

/* Who knows the number of one group cannot tell the next. */
TEST(numbers_of_groups_do_not_follow)
{
	struct victim victim;
	uint64_t random = 1;
	uint64_t number;

	number = random_next(&random);
	assert_int_equal(state_after(number), random);
	victim_open(&victim, *state, NULL);
	random = state_after(group_of_a_connection(&victim));
	number = random_next(&random);
	assert_int_not_equal(group_of_a_connection(&victim), number);
	victim_close(&victim);
}

TEST(descriptors_flood_before_hello)
{
	enum { PEERS = 40 };
	struct hostile hostiles[PEERS];
	struct victim victim;

	victim_open(&victim, *state, NULL);
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < PEERS; i++) {
			hostile_come(&victim, &hostiles[i]);
			all_fds(&hostiles[i]);
			for (int message = 0; message < 10; message++) {
				hostiles[i].hello.head.type = SHM_HELLO + (message & 1) * 90;
				hostile_send_hello(&hostiles[i]);
			}
		}
		honest_still_talk(&victim);
		for (int i = 0; i < PEERS; i++) {
			wait_for_end(&victim, &hostiles[i]);
			hostile_close(&hostiles[i]);
		}
		nothing_is_left(&victim);
	}
	victim_close(&victim);
}

TEST(silent_handshakes_are_limited)
{
	enum { PEERS = 6 };
	struct clan_conn_options options = { .size = sizeof(options), .handshakes_max = 4 };
	struct hostile hostiles[PEERS];
	struct victim victim;
	uint8_t bytes[8];
	unsigned open = 0;

	victim_open(&victim, *state, &options);
	for (int i = 0; i < PEERS; i++) {
		hostile_open(&hostiles[i], victim.world.address);
	}
	world_settle(&victim.world);
	for (int i = 0; i < PEERS; i++) {
		open += hostile_receive(&hostiles[i], bytes, sizeof(bytes)) != 0;
	}
	assert_int_equal(open, 4);
	for (int i = 0; i < PEERS; i++) {
		hostile_close(&hostiles[i]);
	}
	honest_still_talk(&victim);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* A peer that always has something does not keep others out. */
TEST(a_busy_peer_does_not_keep_others_out)
{
	struct clan_message message;
	struct clan_event event = { 0 };
	struct hostile other;
	struct world world;
	bool has_greeted = false;
	uint8_t byte;

	world_open(&world, *state, NULL);
	hostile_open(&other, world.address);
	hostile_seal(&other);
	for (int round = 0; event.type != CLAN_EVENT_CONNECT; round++) {
		assert_true(round < 1000);
		assert_int_equal(clan_send(world.conns[WORLD_DIALER], CLAN_BULK, 1, "x", 1), 0);
		clan_flush(world.conns[WORLD_DIALER]);
		if (clan_queue_wait(world.queues[WORLD_SERVER], &event, 1, 0) == 0) {
			continue;
		}
		while (clan_recv(world.conns[WORLD_SERVER], CLAN_ANY, &message, &byte, 1) == 0) {
		}
		has_greeted = has_greeted || hostile_send_hello(&other);
	}
	world_close_conn(&world, WORLD_SERVER, event.conn);
	hostile_close(&other);
	world_close(&world);
}

/* Whether the queue has nothing to do. Deadlines that expire are no work without an end. */
static bool is_quiet(struct clan_queue *queue)
{
	struct pollfd file = { .fd = clan_queue_fd(queue), .events = POLLIN };
	struct clan_event event;

	for (int i = 0; i < 1000; i++) {
		assert_int_equal(clan_queue_wait(queue, &event, 1, 0), 0);
		if (clan_queue_arm(queue) == 0 && poll(&file, 1, 0) == 0) {
			return true;
		}
	}
	return false;
}

/* Too many descriptors of another user wait to be closed. A listener that cannot refuse further
 * ones accepts nobody until there is room, and is not busy meanwhile. */
TEST(a_listener_waits_for_room)
{
	enum { STRANGER = 1001 };
	const struct world_kind *kind = *state;
	char address[HOSTILE_ADDRESS_BYTES];
	struct hostile hostile;
	struct victim victim;
	struct clan_event event;
	int probe = hostile_listen(address);

	rights_refuse(probe);
	victim_open(&victim, kind, NULL);
	dispose_count_more(STRANGER, DISPOSE_ALL_MAX);
	hostile_come(&victim, &hostile);
	hostile_seal(&hostile);
	assert_true(hostile_send_hello(&hostile));
	if (rights_may_come(probe)) {
		world_no_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT);
		assert_true((kind->flags & CLAN_QUEUE_PASSIVE) != 0 ||
			    is_quiet(victim.world.queues[WORLD_SERVER]));
	} else {
		assert_true(world_has_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT));
	}
	dispose_count_less(STRANGER, DISPOSE_ALL_MAX);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
	assert_true(hostile_welcomed(&hostile));
	hostile_close(&hostile);
	world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST);
	world_close_conn(&victim.world, WORLD_SERVER, event.conn);
	nothing_is_left(&victim);
	victim_close(&victim);
	close(probe);
}

/* Only a socket that nobody listens at is replaced. */
TEST(files_are_not_replaced)
{
	char address[] = "shm:/tmp/gmblock-clan-XXXXXX";
	struct clan_listener *listener;
	struct world world;
	int fd = mkstemp(address + 4);

	assert_true(fd >= 0);
	world_listen(&world, *state, NULL);
	assert_int_equal(clan_listen(world.queues[WORLD_SERVER], address, NULL, &listener, NULL),
		-EADDRINUSE);
	assert_int_equal(unlink(address + 4), 0);
	close(fd);
	world_close(&world);
}

/* --- more descriptors in flight than the sender may have open: ETOOMANYREFS --------------------
 */

enum { FLOOD_LIMIT = 256, FLOOD_MESSAGES = 2 };

/* Error of messages with descriptors; 0: none. */
static int send_error;

/* In place of that of the C library. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	if (send_error != 0 && message->msg_controllen > 0) {
		errno = send_error;
		return -1;
	}
	return syscall(SYS_sendmsg, fd, message, flags);
}

struct flood {
	int sockets[2]; /* with descriptors that nobody receives */
	struct rlimit limit;
};

/* Those that the limit does not hold for. */
static void set_exempt(bool exempt)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	uint32_t bits = CAP_TO_MASK(CAP_SYS_ADMIN) | CAP_TO_MASK(CAP_SYS_RESOURCE);

	assert_int_equal(syscall(SYS_capget, &head, data), 0);
	data[0].effective = exempt ? data[0].permitted : data[0].effective & ~bits;
	assert_int_equal(syscall(SYS_capset, &head, data), 0);
}

static void flood_begin(struct flood *flood)
{
	struct hostile sender;
	struct rlimit limit;
	int fds[HOSTILE_FDS_MAX];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, flood->sockets), 0);
	sender.socket = flood->sockets[0];
	for (int i = 0; i < HOSTILE_FDS_MAX; i++) {
		fds[i] = STDERR_FILENO;
	}
	for (int i = 0; i < FLOOD_MESSAGES; i++) {
		assert_true(hostile_send(&sender, "x", 1, fds, HOSTILE_FDS_MAX));
	}
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &flood->limit), 0);
	limit = flood->limit;
	limit.rlim_cur = FLOOD_LIMIT;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	set_exempt(false);
}

static void flood_end(struct flood *flood)
{
	set_exempt(true);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &flood->limit), 0);
	close(flood->sockets[0]);
	close(flood->sockets[1]);
}

/* Connects without an answer. */
static struct clan_conn *dial(struct victim *victim, const struct clan_conn_options *options)
{
	struct clan_conn *conn;

	assert_int_equal(clan_connect(victim->world.queues[WORLD_DIALER], victim->world.address,
				 options, "hi", 2, &conn, NULL),
		0);
	return conn;
}

static void close_both(struct victim *victim, struct clan_conn *dialer, struct clan_conn *server)
{
	world_close_conn(&victim->world, WORLD_DIALER, dialer);
	world_close_conn(&victim->world, WORLD_SERVER, server);
	nothing_is_left(victim);
}

TEST(welcome_waits_for_descriptors_in_flight)
{
	struct clan_message message;
	struct clan_event event;
	struct clan_conn *dialer;
	struct victim victim;
	struct flood flood;
	char text[8];

	victim_open(&victim, *state, NULL);
	dialer = dial(&victim, NULL);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	flood_begin(&flood);
	assert_int_equal(clan_accept(event.conn, "ho", 2), 0);
	assert_int_equal(clan_send(event.conn, CLAN_BULK, 1, "early", 6), 0);
	honest_still_talk(&victim);
	world_no_event(&victim.world, WORLD_DIALER, CLAN_EVENT_CONNECTED);
	flood_end(&flood);
	assert_ptr_equal(
		world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_CONNECTED).conn, dialer);
	message = world_recv(&victim.world, WORLD_DIALER, dialer, text, sizeof(text));
	assert_int_equal(message.bytes, 6);
	assert_string_equal(text, "early");
	close_both(&victim, dialer, event.conn);
	victim_close(&victim);
}

TEST(hello_waits_for_descriptors_in_flight)
{
	struct clan_event event;
	struct clan_conn *dialer;
	struct victim victim;
	struct flood flood;

	victim_open(&victim, *state, NULL);
	flood_begin(&flood);
	dialer = dial(&victim, NULL);
	world_no_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	flood_end(&flood);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
	assert_ptr_equal(
		world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_CONNECTED).conn, dialer);
	close_both(&victim, dialer, event.conn);
	victim_close(&victim);
}

TEST(regions_wait_for_descriptors_in_flight)
{
	struct clan_region *regions[2];
	struct victim victim;
	struct flood flood;
	void *base;

	victim_open(&victim, *state, NULL);
	flood_begin(&flood);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(clan_region_create(victim.world.queues[WORLD_DIALER], 4096, 0,
					 &regions[i], &base),
			0);
		assert_int_equal(
			clan_region_share(victim.honest[WORLD_DIALER], regions[i], CLAN_READ), 0);
	}
	world_no_event(&victim.world, WORLD_SERVER, CLAN_EVENT_REGION);
	flood_end(&flood);
	for (int i = 0; i < 2; i++) { /* mapped by workers, in any order */
		assert_int_equal(
			world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_SHARED).status, 0);
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(clan_region_unshare(victim.honest[WORLD_DIALER], regions[i]), 0);
		world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_UNSHARED);
		assert_int_equal(clan_region_destroy(regions[i]), 0);
	}
	victim_close(&victim);
}

/* It ends, and both sides know why. */
TEST(descriptors_stay_in_flight)
{
	struct clan_conn_options options = { .size = sizeof(options),
		.handshake_timeout_ms = 1000 };
	struct clan_conn *dialer;
	struct clan_event event;
	struct victim victim;
	struct flood flood;

	victim_open(&victim, *state, &options);
	dialer = dial(&victim, NULL);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	flood_begin(&flood);
	assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST);
	assert_int_equal(event.status, -ETOOMANYREFS);
	assert_non_null(strstr(clan_conn_reason(event.conn), "RLIMIT_NOFILE"));
	assert_int_equal(
		world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_LOST).status, -ECONNREFUSED);
	assert_non_null(strstr(clan_conn_reason(dialer), "RLIMIT_NOFILE"));
	world_close_conn(&victim.world, WORLD_DIALER, dialer);
	world_close_conn(&victim.world, WORLD_SERVER, event.conn);

	options.handshake_timeout_ms = 100;
	dialer = dial(&victim, &options);
	event = world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_LOST);
	assert_int_equal(event.status, -ETOOMANYREFS);
	assert_non_null(strstr(clan_conn_reason(dialer), "RLIMIT_NOFILE"));
	world_close_conn(&victim.world, WORLD_DIALER, dialer);
	flood_end(&flood);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* The error is ours, and is not taken for the end of the peer. */
TEST(descriptors_cannot_be_sent)
{
	struct clan_conn *dialer;
	struct clan_event event;
	struct victim victim;
	struct flood flood;

	victim_open(&victim, *state, NULL);
	dialer = dial(&victim, NULL);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	flood_begin(&flood);
	assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
	send_error = ENOMEM;
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST);
	send_error = 0;
	assert_int_equal(event.status, -ENOMEM);
	assert_non_null(strstr(clan_conn_reason(event.conn), strerror(ENOMEM)));
	assert_ptr_equal(world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_LOST).conn, dialer);
	flood_end(&flood);
	close_both(&victim, dialer, event.conn);
	victim_close(&victim);
}

/* The peer accepts nothing, so a kernel that can refuse descriptors does not take HELLO. */
TEST(hello_is_not_accepted_in_time)
{
	struct clan_conn_options options = { .size = sizeof(options), .handshake_timeout_ms = 100 };
	char address[HOSTILE_ADDRESS_BYTES];
	int listener = hostile_listen(address);
	struct clan_conn *dialer;
	struct victim victim;

	rights_refuse(listener);
	victim_open(&victim, *state, NULL);
	assert_int_equal(clan_connect(victim.world.queues[WORLD_DIALER], address, &options, "hi", 2,
				 &dialer, NULL),
		0);
	assert_int_equal(
		world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_LOST).status, -ETIMEDOUT);
	assert_non_null(strstr(clan_conn_reason(dialer), "timed out"));
	world_close_conn(&victim.world, WORLD_DIALER, dialer);
	close(listener);
	victim_close(&victim);
}

/* It closes its socket without having read HELLO. */
TEST(reason_of_a_peer_that_does_not_read)
{
	struct {
		struct shm_refused refused;
		char text[4];
	} message = {
		.refused = { .head = { .bytes = sizeof(message), .type = SHM_REFUSED },
			.error = EBUSY,
			.text_bytes = sizeof(message.text) },
		.text = "full",
	};
	char address[HOSTILE_ADDRESS_BYTES];
	int listener = hostile_listen(address);
	struct clan_conn *dialer;
	struct victim victim;
	int peer;

	victim_open(&victim, *state, NULL);
	assert_int_equal(clan_connect(victim.world.queues[WORLD_DIALER], address, NULL, "hi", 2,
				 &dialer, NULL),
		0);
	peer = accept(listener, NULL, NULL);
	assert_int_equal(send(peer, &message, sizeof(message), MSG_NOSIGNAL), sizeof(message));
	close(peer);
	assert_int_equal(
		world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_LOST).status, -ECONNREFUSED);
	assert_non_null(strstr(clan_conn_reason(dialer), "full"));
	world_close_conn(&victim.world, WORLD_DIALER, dialer);
	close(listener);
	victim_close(&victim);
}

TEST(either_side_closes_while_welcome_waits)
{
	struct victim victim;

	victim_open(&victim, *state, NULL);
	for (int leaving = 0; leaving < WORLD_SIDES; leaving++) {
		struct clan_conn *sides[WORLD_SIDES];
		struct flood flood;

		sides[WORLD_DIALER] = dial(&victim, NULL);
		sides[WORLD_SERVER] =
			world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CONNECT).conn;
		flood_begin(&flood);
		assert_int_equal(clan_accept(sides[WORLD_SERVER], NULL, 0), 0);
		world_close_conn(&victim.world, leaving, sides[leaving]);
		assert_int_equal(
			world_event(&victim.world, !leaving, CLAN_EVENT_LOST).status, -ECONNRESET);
		world_close_conn(&victim.world, !leaving, sides[!leaving]);
		flood_end(&flood);
		nothing_is_left(&victim);
	}
	victim_close(&victim);
}

/* No event would report room, so it is not -EAGAIN. */
TEST(a_full_backlog_is_enobufs)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct clan_queue *queue;
	struct clan_conn *conns[8];
	struct clan_event event;
	struct clan_error error;
	char place[sizeof(address.sun_path) + 8];
	uint32_t count = 0;
	int result = 0;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "clan-backlog-%d", getpid());
	snprintf(place, sizeof(place), "shm:@%s", address.sun_path + 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&address,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
					     strlen(address.sun_path + 1))),
		0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(clan_queue_create(NULL, &queue, NULL), 0);
	while (result == 0 && count < ARRAY_COUNT(conns)) {
		result = clan_connect(queue, place, NULL, NULL, 0, &conns[count], &error);
		count += result == 0;
	}
	assert_int_equal(result, -ENOBUFS);
	assert_non_null(strstr(error.text, "backlog"));
	close(fd);
	for (uint32_t i = 0; i < count; i++) {
		clan_close(conns[i]);
	}
	while (count > 0) {
		count -= clan_queue_wait(queue, &event, 1, -1) == 1 &&
			 event.type == CLAN_EVENT_CLOSED;
	}
	assert_int_equal(clan_queue_destroy(queue), 0);
}
