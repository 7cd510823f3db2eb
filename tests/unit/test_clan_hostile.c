// SPDX-License-Identifier: Apache-2.0
/*
 * Peers of libclan that break the rules of docs/protocol/clan.md once they are connected, one rule
 * at a time. Each must lose its own connection with the rule's name, harm no other connection, and
 * leave nothing behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/work.h"
#include "clan_victim.h"
#include "sockets.h"
#include "unit.h"

/* --- while connected -------------------------------------------------------------------------- */

static struct clan_conn *connect_hostile(struct victim *victim, struct hostile *hostile)
{
	struct clan_event event;

	hostile_come(victim, hostile);
	hostile_seal(hostile);
	hostile_send_hello(hostile);
	event = world_event(&victim->world, WORLD_SERVER, CLAN_EVENT_CONNECT);
	assert_int_equal(clan_accept(event.conn, NULL, 0), 0);
	assert_true(hostile_welcomed(hostile));
	world_settle(&victim->world);
	return event.conn;
}

/* A message that keeps all rules. */
static struct shm_message_head good_head(uint16_t bytes)
{
	return (struct shm_message_head){ .bytes = bytes, .type = 1 };
}

static void reads_back(struct hostile *h)
{
	atomic_store(&h->head->read[SHM_BULK], UINT32_MAX);
}
static void reads_ahead(struct hostile *h)
{
	atomic_store(&h->head->read[SHM_BULK], 100000);
}
static void pops_ahead(struct hostile *h)
{
	atomic_store(&h->head->cookies_popped, 77);
}
static void writes_too_much(struct hostile *h)
{
	h->write[SHM_BULK] = 257;
}
static void writes_back(struct hostile *h)
{
	h->write[SHM_CONTROL] = UINT32_MAX;
}
static void system_writes_too_much(struct hostile *h)
{
	h->write[SHM_SYSTEM] = 33;
}
static void no_length(struct hostile *h)
{
	hostile_put(h, SHM_BULK, good_head(0), NULL, 0);
	h->write[SHM_BULK] = 1;
}
static void short_head(struct hostile *h)
{
	hostile_put(h, SHM_BULK, good_head(7), NULL, 0);
}
static void long_message(struct hostile *h)
{
	hostile_put(h, SHM_BULK, good_head(8193), NULL, 0);
}
static void long_control(struct hostile *h)
{
	hostile_put(h, SHM_CONTROL, good_head(1025), NULL, 0);
}
static void not_all_published(struct hostile *h)
{
	hostile_put(h, SHM_BULK, good_head(4096), NULL, 0);
	h->write[SHM_BULK] = 3;
}
static void short_pad(struct hostile *h)
{
	hostile_put(h, SHM_BULK, (struct shm_message_head){ .bytes = 64 }, NULL, 0);
}
static void wrong_sequence(struct hostile *h)
{
	struct shm_message_head head = good_head(8);

	head.sequence = 1;
	hostile_put(h, SHM_BULK, head, NULL, 0);
}
static void reserved_in_head(struct hostile *h)
{
	struct shm_message_head head = good_head(8);

	head.reserved2 = 1;
	hostile_put(h, SHM_BULK, head, NULL, 0);
}
static void notify_in_control(struct hostile *h)
{
	hostile_put(h, SHM_CONTROL,
		(struct shm_message_head){ .bytes = 12, .type = SHM_TYPE_NOTIFY }, "abcd", 4);
}
static void long_notify(struct hostile *h)
{
	hostile_put(h, SHM_BULK, (struct shm_message_head){ .bytes = 16, .type = SHM_TYPE_NOTIFY },
		"abcdefgh", 8);
}
static void unknown_record(struct hostile *h)
{
	hostile_put(h, SHM_BULK, (struct shm_message_head){ .bytes = 8, .type = 0xfe }, NULL, 0);
}
static void user_type_in_system(struct hostile *h)
{
	hostile_put(h, SHM_SYSTEM, good_head(8), NULL, 0);
}
static void many_ready(struct hostile *h)
{
	atomic_store(&h->group->ready_write, 5000);
}
static void impossible_ready(struct hostile *h)
{
	h->victim_number = 1u << 30;
}
static void cookie_queue_77(struct hostile *h)
{
	uint16_t payload[20] = { 77 };

	hostile_put(h, SHM_SYSTEM,
		(struct shm_message_head){ .bytes = 48, .type = SHM_TYPE_COOKIE }, payload,
		sizeof(payload));
}
static void long_cookie(struct hostile *h)
{
	hostile_put(h, SHM_SYSTEM,
		(struct shm_message_head){ .bytes = 64, .type = SHM_TYPE_COOKIE }, NULL, 0);
}

static void socket_message(struct hostile *h, uint8_t type, const void *body, size_t bytes, int fd)
{
	uint8_t message[64] = { 0 };
	struct shm_socket_head head = { .bytes = (uint16_t)(sizeof(head) + bytes), .type = type };

	memcpy(message, &head, sizeof(head));
	memcpy(message + sizeof(head), body, bytes);
	hostile_send(h, message, sizeof(head) + bytes, &fd, fd >= 0);
	if (fd >= 0) {
		close(fd);
	}
}

static void second_hello(struct hostile *h)
{
	hostile_send_hello(h);
}
static void welcome_to_the_acceptor(struct hostile *h)
{
	uint8_t body[24] = { 1 };

	socket_message(h, SHM_WELCOME, body, sizeof(body), sealed_memfd(4096));
}
static void regroup_to_the_acceptor(struct hostile *h)
{
	socket_message(h, SHM_REGROUP, "", 0, -1);
}
static void answer_without_a_question(struct hostile *h)
{
	socket_message(h, SHM_REGION_OK, "\0\0\0\0\1\0\0\0", 8, -1);
}
static void returns_what_it_has_not(struct hostile *h)
{
	socket_message(h, SHM_REGION_ENDED, "\0\0\0\0\1\0\0\0", 8, -1);
}
static void asks_back_what_it_has_not_shared(struct hostile *h)
{
	socket_message(h, SHM_REGION_END, "\3\0\0\0\1\0\0\0", 8, -1);
}
static void region_message(struct hostile *h, const struct shm_region *region, int fd)
{
	socket_message(h, SHM_REGION, (const uint8_t *)region + sizeof(region->head),
		sizeof(*region) - sizeof(region->head), fd);
}
static void region_generation_0(struct hostile *h)
{
	region_message(h, &(struct shm_region){ .rights = 3, .bytes = 4096 }, sealed_memfd(4096));
}
static void region_rights_8(struct hostile *h)
{
	region_message(h, &(struct shm_region){ .rights = 8, .generation = 1, .bytes = 4096 },
		sealed_memfd(4096));
}
static void region_larger_than_its_memory(struct hostile *h)
{
	region_message(h, &(struct shm_region){ .rights = 1, .generation = 1, .bytes = 8192 },
		sealed_memfd(4096));
}
static void region_offset_overflows(struct hostile *h)
{
	region_message(h,
		&(struct shm_region){
			.rights = 1, .generation = 1, .offset = UINT64_MAX - 4095, .bytes = 8192 },
		sealed_memfd(4096));
}
static void region_unaligned(struct hostile *h)
{
	region_message(h, &(struct shm_region){ .rights = 1, .generation = 1, .bytes = 100 },
		sealed_memfd(4096));
}
static void region_without_fd(struct hostile *h)
{
	region_message(h, &(struct shm_region){ .rights = 1, .generation = 1, .bytes = 4096 }, -1);
}
static void bell_with_fd(struct hostile *h)
{
	hostile_send(h, "\x0f", 1, &h->segment_fd, 1);
}
static void empty_message(struct hostile *h)
{
	hostile_send(h, "", 0, NULL, 0);
}

/* What the victim's program does all the time: it sends, pushes cookies and receives. */
static void victim_acts(struct clan_conn *conn)
{
	struct clan_message message;
	struct clan_cookie cookie;
	uint8_t bytes[CLAN_BULK_BYTES_MAX] = { 0 };

	for (int i = 0; i < 8; i++) {
		clan_send(conn, CLAN_BULK, 1, bytes, 4000);
		clan_recv(conn, CLAN_ANY, &message, bytes, sizeof(bytes));
		clan_cookie_queue_pop(conn, 0, &cookie);
	}
}

TEST(broken_rules_are_named)
{
	static const struct {
		void (*spoil)(struct hostile *hostile);
		const char *reason; /* begins with */
	} cases[] = {
		{ reads_back, "the peer broke rule K12" },
		{ reads_ahead, "the peer broke rule K12" },
		{ writes_too_much, "the peer broke rule K13" },
		{ writes_back, "the peer broke rule K13" },
		{ system_writes_too_much, "the peer broke rule K13" },
		{ no_length, "the peer broke rule K14" },
		{ short_head, "the peer broke rule K14" },
		{ long_message, "the peer broke rule K14" },
		{ long_control, "the peer broke rule K14" },
		{ not_all_published, "the peer broke rule K14" },
		{ short_pad, "the peer broke rule K14" },
		{ wrong_sequence, "the peer broke rule K15" },
		{ reserved_in_head, "the peer broke rule K16" },
		{ notify_in_control, "the peer broke rule K16" },
		{ long_notify, "the peer broke rule K16" },
		{ unknown_record, "the peer broke rule K16" },
		{ user_type_in_system, "the peer broke rule K16" },
		{ many_ready, "the peer broke rule K18" },
		{ impossible_ready, "the peer broke rule K19" },
		{ cookie_queue_77, "the peer broke rule K21" },
		{ long_cookie, "the peer broke rule K16" },
		{ second_hello, "the peer broke rule K7" },
		{ welcome_to_the_acceptor, "the peer broke rule K7" },
		{ regroup_to_the_acceptor, "the peer broke rule K7" },
		{ answer_without_a_question, "the peer broke rule K9" },
		{ returns_what_it_has_not, "the peer broke rule K9" },
		{ asks_back_what_it_has_not_shared, "the peer broke rule K9" },
		{ region_generation_0, "the peer broke rule K8" },
		{ region_rights_8, "the peer broke rule K8" },
		{ region_larger_than_its_memory, "the peer broke rule K8" },
		{ region_offset_overflows, "the peer broke rule K8" },
		{ region_unaligned, "the peer broke rule K8" },
		{ region_without_fd, "the peer broke rule K6" },
		{ bell_with_fd, "the peer broke rule K6" },
		{ empty_message, "the peer's process has exited" },
	};
	struct victim victim;

	victim_open(&victim, *state, NULL);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct hostile hostile;
		struct clan_conn *conn = connect_hostile(&victim, &hostile);
		struct clan_event event;

		cases[i].spoil(&hostile);
		hostile_publish(&hostile);
		victim_acts(conn);
		event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST);
		assert_ptr_equal(event.conn, conn);
		if (strncmp(clan_conn_reason(conn), cases[i].reason, strlen(cases[i].reason)) !=
			0) {
			fail_msg("case %zu: \"%s\", not \"%s\"", i, clan_conn_reason(conn),
				cases[i].reason);
		}
		victim_acts(conn); /* harmless */
		honest_still_talk(&victim);
		world_close_conn(&victim.world, WORLD_SERVER, conn);
		hostile_close(&hostile);
		victim.world.kept_count[WORLD_SERVER] = 0;
		nothing_is_left(&victim);
	}
	victim_close(&victim);
}

TEST(popping_cookies_that_were_not_pushed)
{
	struct clan_cookie cookie;
	struct clan_region *region;
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;
	void *base;
	int result = 0;

	victim_open(&victim, *state, NULL);
	conn = connect_hostile(&victim, &hostile);
	assert_int_equal(
		clan_region_create(victim.world.queues[WORLD_SERVER], 4096, 0, &region, &base), 0);
	assert_int_equal(clan_region_share(conn, region, CLAN_WRITE), 0);
	socket_message(&hostile, SHM_REGION_OK, "\0\0\0\0\1\0\0\0", 8, -1);
	assert_int_equal(world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_SHARED).status, 0);
	assert_int_equal(clan_cookie_grant(conn, region, 0, 8, CLAN_WRITE, 0, &cookie), 0);
	pops_ahead(&hostile);
	for (int i = 0; i < 100 && result == 0; i++) {
		atomic_store(&hostile.head->read[SHM_SYSTEM], (uint32_t)i);
		result = clan_cookie_queue_push(conn, 0, &cookie);
		clan_flush(conn);
	}
	assert_int_equal(result, -ENOTCONN);
	world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST);
	assert_non_null(strstr(clan_conn_reason(conn), "K22"));
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	assert_int_equal(clan_region_destroy(region), 0);
	hostile_close(&hostile);
	victim_close(&victim);
}

TEST(an_unsealed_region_is_refused)
{
	struct shm_region_answer answer;
	struct shm_region region = { .rights = 3, .generation = 1, .bytes = 4096 };
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;
	int shrinking;

	victim_open(&victim, *state, NULL);
	conn = connect_hostile(&victim, &hostile);
	shrinking = unsealed_memfd(4096);
	region_message(&hostile, &region, shrinking);
	world_settle(&victim.world);
	assert_int_equal(hostile_receive(&hostile, &answer, sizeof(answer)), sizeof(answer));
	assert_int_equal(answer.head.type, SHM_REGION_OK);
	assert_int_equal(answer.error, EPERM);
	region.rights = CLAN_READ; /* a hole would make its reader wait */
	shrinking = unsealed_memfd(4096);
	assert_int_equal(fcntl(shrinking, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	region_message(&hostile, &region, shrinking);
	world_settle(&victim.world);
	assert_int_equal(hostile_receive(&hostile, &answer, sizeof(answer)), sizeof(answer));
	assert_int_equal(answer.error, EPERM);
	region.rights = CLAN_READ | CLAN_WRITE;
	region_message(&hostile, &region, open("/dev/zero", O_RDWR | O_CLOEXEC));
	world_settle(&victim.world);
	assert_int_equal(hostile_receive(&hostile, &answer, sizeof(answer)), sizeof(answer));
	assert_int_equal(answer.error, EPERM);
	assert_string_equal(clan_conn_reason(conn), "");
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	hostile_close(&hostile);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* What a stranger sends may never close. Others must still be able to share regions. */
TEST(descriptors_that_do_not_close_delay_nobody)
{
	enum { SOCKETS = 20 }; /* more than there are workers */
	const struct world_kind *kind = *state;
	struct shm_region region = { .rights = 3, .generation = 1, .bytes = 4096 };
	struct clan_region *honest;
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;
	int peers[SOCKETS];
	void *base;

	if ((kind->flags & CLAN_QUEUE_PASSIVE) != 0) {
		skip(); /* it has no workers */
	}
	victim_open(&victim, kind, NULL);
	conn = connect_hostile(&victim, &hostile);
	for (int i = 0; i < SOCKETS; i++) {
		struct shm_region_answer answer;

		region_message(&hostile, &region, lingering_socket(&peers[i]));
		world_settle(&victim.world);
		assert_int_equal(
			hostile_receive(&hostile, &answer, sizeof(answer)), sizeof(answer));
		assert_int_equal(answer.error, EPERM);
	}
	assert_int_equal(
		clan_region_create(victim.world.queues[WORLD_DIALER], 8192, 0, &honest, &base), 0);
	assert_int_equal(clan_region_share(victim.honest[WORLD_DIALER], honest, CLAN_WRITE), 0);
	assert_int_equal(world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_SHARED).status, 0);
	assert_int_equal(clan_region_unshare(victim.honest[WORLD_DIALER], honest), 0);
	world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_UNSHARED);
	assert_int_equal(clan_region_destroy(honest), 0);
	for (int i = 0; i < SOCKETS; i++) {
		close(peers[i]);
	}
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	hostile_close(&hostile);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* Work that ends when it may. */
struct blocked {
	struct work work;
	sem_t may_end, has_ended;
};

static void wait_for(sem_t *semaphore)
{
	while (sem_wait(semaphore) != 0) {
	}
}

static void run_blocked(struct work *work)
{
	struct blocked *blocked = container_of(work, struct blocked, work);

	wait_for(&blocked->may_end);
	sem_post(&blocked->has_ended);
}

static void block(struct blocked *blocked, bool in_doubt)
{
	blocked->work =
		(struct work){ .run = run_blocked, .in_doubt = in_doubt, .owner = geteuid() };
	list_init(&blocked->work.node);
	sem_init(&blocked->may_end, 0, 0);
	sem_init(&blocked->has_ended, 0, 0);
	work_start(&blocked->work, NULL);
}

/* Waits for the end of all, as each is used again. */
static void unblock(struct blocked *blocked, int count)
{
	for (int i = 0; i < count; i++) {
		sem_post(&blocked[i].may_end);
	}
	for (int i = 0; i < count; i++) {
		wait_for(&blocked[i].has_ended);
	}
}

/* Of the user nothing more is closed, and there is no room for more. */
static void fill_up(struct blocked blocked[WORKERS_OF_OWNER_MAX])
{
	for (int i = 0; i < WORKERS_OF_OWNER_MAX; i++) {
		block(&blocked[i], true);
	}
	while (dispose_has_room(geteuid())) {
		dispose_fd(open("/dev/null", O_RDONLY | O_CLOEXEC), geteuid(), false);
	}
}

/* Without room for descriptors, messages that have none are received. */
TEST(messages_without_descriptors_go_on)
{
	const struct world_kind *kind = *state;
	struct shm_region region = { .rights = 3, .generation = 1, .bytes = 4096 };
	static struct blocked blocked[WORKERS_OF_OWNER_MAX];
	struct hostile hostiles[2];
	struct clan_conn *conns[2];
	struct shm_region_answer answer;
	struct victim victim;

	if ((kind->flags & CLAN_QUEUE_PASSIVE) != 0) {
		skip(); /* it has no workers */
	}
	victim_open(&victim, kind, NULL);
	for (int i = 0; i < 2; i++) {
		conns[i] = connect_hostile(&victim, &hostiles[i]);
	}
	fill_up(blocked);
	region_message(&hostiles[0], &region, unsealed_memfd(4096));
	answer_without_a_question(&hostiles[1]);
	assert_ptr_equal(world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST).conn, conns[1]);
	assert_int_equal(hostile_receive(&hostiles[0], &answer, sizeof(answer)), -1);
	unblock(blocked, WORKERS_OF_OWNER_MAX);
	while (hostile_receive(&hostiles[0], &answer, sizeof(answer)) < 0) {
		world_settle(&victim.world);
	}
	assert_int_equal(answer.error, EPERM);
	for (int i = 0; i < 2; i++) {
		world_close_conn(&victim.world, WORLD_SERVER, conns[i]);
		hostile_close(&hostiles[i]);
	}
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* A region that waits to be mapped is a descriptor that waits to be closed. */
TEST(regions_that_wait_take_room)
{
	const struct world_kind *kind = *state;
	struct shm_region region = { .rights = 1, .generation = 1, .bytes = 4096 };
	static struct blocked blocked[WORKERS_MAX];
	struct shm_region_answer answer;
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;

	if ((kind->flags & CLAN_QUEUE_PASSIVE) != 0) {
		skip(); /* it has no workers */
	}
	victim_open(&victim, kind, NULL);
	conn = connect_hostile(&victim, &hostile);
	for (int i = 0; i < WORKERS_MAX; i++) {
		block(&blocked[i], false);
	}
	for (int i = 1; i < DISPOSE_OF_OWNER_MAX; i++) {
		dispose_fd(open("/dev/null", O_RDONLY | O_CLOEXEC), geteuid(), false);
	}
	assert_true(dispose_has_room(geteuid()));
	region_message(&hostile, &region, sealed_memfd(4096));
	world_settle(&victim.world);
	assert_false(dispose_has_room(geteuid()));
	unblock(blocked, WORKERS_MAX);
	while (hostile_receive(&hostile, &answer, sizeof(answer)) < 0) {
		world_settle(&victim.world);
	}
	assert_int_equal(answer.error, 0);
	world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_REGION);
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	hostile_close(&hostile);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* What is shared for reading keeps its pages, also from its owner. */
TEST(a_region_for_reading_has_no_holes)
{
	struct clan_region *region;
	struct victim victim;
	void *base;

	victim_open(&victim, *state, NULL);
	assert_int_equal(
		clan_region_create(victim.world.queues[WORLD_DIALER], 8192, 0, &region, &base), 0);
	assert_int_equal(clan_region_share(victim.honest[WORLD_DIALER], region, CLAN_READ), 0);
	assert_int_equal(world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_SHARED).status, 0);
	assert_int_equal(madvise(base, 4096, MADV_REMOVE), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(clan_region_unshare(victim.honest[WORLD_DIALER], region), 0);
	world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_UNSHARED);
	assert_int_equal(clan_region_destroy(region), 0);
	victim_close(&victim);
}

/* A descriptor of the only region that there is. */
static int find_region_fd(void)
{
	char path[32];
	char target[64];

	for (int fd = 0; fd < 1024; fd++) {
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		length = readlink(path, target, sizeof(target));
		if (length >= 18 && memcmp(target, "/memfd:clan-region", 18) == 0) {
			return fd;
		}
	}
	return -1;
}

/* A peer has the descriptor. What it could seal, others could not map. */
TEST(peers_cannot_seal_a_region)
{
	struct clan_region *region;
	struct victim victim;
	void *base;

	victim_open(&victim, *state, NULL);
	assert_int_equal(
		clan_region_create(victim.world.queues[WORLD_DIALER], 8192, 0, &region, &base), 0);
	assert_int_equal(
		clan_region_share(victim.honest[WORLD_DIALER], region, CLAN_READ | CLAN_WRITE), 0);
	assert_int_equal(world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_SHARED).status, 0);
	assert_int_equal(fcntl(find_region_fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(clan_region_unshare(victim.honest[WORLD_DIALER], region), 0);
	world_event(&victim.world, WORLD_DIALER, CLAN_EVENT_UNSHARED);
	assert_int_equal(clan_region_destroy(region), 0);
	victim_close(&victim);
}

TEST(nothing_is_ever_taken)
{
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;
	uint8_t bytes[1000] = { 0 };
	uint32_t taken[2] = { 0, 0 };

	victim_open(&victim, *state, NULL);
	conn = connect_hostile(&victim, &hostile);
	for (int round = 0; round < 1000; round++) {
		taken[0] += clan_send(conn, CLAN_CONTROL, 1, bytes, sizeof(bytes)) == 0;
		taken[1] += clan_send(conn, CLAN_BULK, 1, bytes, sizeof(bytes)) == 0;
		clan_flush(conn);
	}
	assert_true(taken[0] == 2 && taken[1] == 16);
	honest_still_talk(&victim);
	clan_close(conn);
	world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_CLOSED);
	hostile_close(&hostile);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* --- bells, revocation ------------------------------------------------------------------------ */

struct ringer {
	struct hostile *hostile;
	_Atomic(bool) stop;
};

static void *ring_for_ever(void *context)
{
	struct ringer *ringer = context;

	while (!atomic_load(&ringer->stop)) {
		hostile_ring(ringer->hostile);
	}
	return NULL;
}

TEST(idle_bells_are_muted)
{
	struct clan_conn_stats stats = { .size = sizeof(stats) };
	struct ringer ringer = { .stop = false };
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;
	struct clan_event event;
	pthread_t thread;
	uint64_t begin_ns;
	uint64_t windows;
	uint32_t value = 0;
	struct clan_message message;

	victim_open(&victim, *state, NULL);
	conn = connect_hostile(&victim, &hostile);
	ringer.hostile = &hostile;
	assert_int_equal(pthread_create(&thread, NULL, ring_for_ever, &ringer), 0);
	begin_ns = clock_now_ns();
	for (int i = 0; i < 300; i++) {
		assert_int_equal(
			clan_queue_wait(victim.world.queues[WORLD_SERVER], &event, 1, 1), 0);
	}
	/* A thousand of them within 100 ms mute it; on a slow machine that never happens. */
	clan_conn_get_stats(conn, &stats);
	windows = (clock_now_ns() - begin_ns) / UINT64_C(100000000) + 1;
	assert_true(stats.bells_heard <= windows * 1001);
	/* A message is found all the same. */
	hostile_put(&hostile, SHM_BULK, good_head(12), "abcd", 4);
	hostile_publish(&hostile);
	world_ready(&victim.world, WORLD_SERVER, conn, CLAN_READY_BULK);
	assert_int_equal(clan_recv(conn, CLAN_ANY, &message, &value, sizeof(value)), 0);
	assert_memory_equal(&value, "abcd", 4);
	honest_still_talk(&victim);
	atomic_store(&ringer.stop, true);
	pthread_join(thread, NULL);
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	hostile_close(&hostile);
	victim_close(&victim);
}

/* Shares a region with the hostile peer, which keeps busy odd for ever. */
static struct clan_region *share_with_busy(struct victim *victim, struct hostile *hostile,
	struct clan_conn *conn, struct clan_cookie *cookie, uint8_t **base_out)
{
	struct clan_region *region;
	void *base;

	assert_int_equal(
		clan_region_create(victim->world.queues[WORLD_SERVER], 65536, 0, &region, &base),
		0);
	assert_int_equal(clan_region_share(conn, region, CLAN_WRITE), 0);
	socket_message(hostile, SHM_REGION_OK, "\0\0\0\0\1\0\0\0", 8, -1);
	assert_int_equal(world_event(&victim->world, WORLD_SERVER, CLAN_EVENT_SHARED).status, 0);
	assert_int_equal(clan_cookie_grant(conn, region, 4096, 8192, CLAN_WRITE, 0, cookie), 0);
	atomic_store(&hostile->head->busy, 1);
	*base_out = base;
	return region;
}

TEST(a_quiet_peer_ends_a_revocation)
{
	struct clan_cookie cookie;
	struct clan_region *region;
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;
	struct clan_event event;
	uint8_t *base;

	victim_open(&victim, *state, NULL);
	conn = connect_hostile(&victim, &hostile);
	region = share_with_busy(&victim, &hostile, conn, &cookie, &base);
	assert_int_equal(clan_cookie_revoke(conn, &cookie, 0, &victim), 0);
	assert_int_equal(clan_cookie_revoke(conn, &cookie, 0, &victim), -EALREADY);
	world_no_event(&victim.world, WORLD_SERVER, CLAN_EVENT_REVOKED);
	atomic_store(&hostile.head->busy, 2);
	hostile_publish(&hostile);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_REVOKED);
	assert_int_equal(event.status, 0);
	assert_ptr_equal(event.op, &victim);
	assert_int_equal(event.number, cookie.slot);
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	assert_int_equal(clan_region_destroy(region), 0);
	hostile_close(&hostile);
	victim_close(&victim);
}

TEST(a_strict_revocation_replaces_the_pages)
{
	struct clan_cookie cookie;
	struct clan_region *region;
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;
	struct clan_event event;
	uint8_t *before;
	uint8_t *base;

	victim_open(&victim, *state, NULL);
	conn = connect_hostile(&victim, &hostile);
	region = share_with_busy(&victim, &hostile, conn, &cookie, &base);
	memset(base, 'k', 65536);
	/* What the peer has mapped: the pages that are there now. */
	before = mremap(base, 0, 65536, MREMAP_MAYMOVE);
	assert_true(before != MAP_FAILED);
	assert_int_equal(clan_cookie_revoke(conn, &cookie, CLAN_REVOKE_STRICT, NULL), 0);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST);
	assert_int_equal(event.status, -ETIMEDOUT);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_REVOKED);
	assert_int_equal(event.status, 0);
	memset(before, 'x', 65536);
	assert_int_equal(base[4095], 'k');
	assert_int_equal(base[4096 + 8192], 'k');
	for (size_t i = 0; i < 65536; i++) {
		assert_int_not_equal(base[i], 'x');
	}
	munmap(before, 65536);
	honest_still_talk(&victim);
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	assert_int_equal(clan_region_destroy(region), 0);
	hostile_close(&hostile);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* Another revocation has ended when the time of a strict one is up: it is enforced all the same. */
TEST(a_strict_revocation_is_not_appeased)
{
	struct clan_cookie cookies[2];
	struct clan_region *region;
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;
	struct clan_event event;
	uint8_t *base;

	victim_open(&victim, *state, NULL);
	conn = connect_hostile(&victim, &hostile);
	region = share_with_busy(&victim, &hostile, conn, &cookies[0], &base);
	assert_int_equal(clan_cookie_grant(conn, region, 0, 4096, CLAN_WRITE, 0, &cookies[1]), 0);
	assert_int_equal(clan_cookie_revoke(conn, &cookies[0], 0, NULL), 0);
	atomic_store(&hostile.head->busy, 3);
	cookies[1].region = 77; /* as it may come back from the peer */
	assert_int_equal(clan_cookie_revoke(conn, &cookies[1], CLAN_REVOKE_STRICT, NULL), 0);
	assert_int_equal(clan_region_unshare(conn, region), -EBUSY);
	event = world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST);
	assert_int_equal(event.status, -ETIMEDOUT);
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	assert_int_equal(clan_region_destroy(region), 0);
	hostile_close(&hostile);
	victim_close(&victim);
}

/* The head of a piece of a stream is changed while the piece is half read. */
TEST(a_stream_does_not_shrink)
{
	struct shm_message_head head = { .bytes = 8 + 1000, .type = SHM_TYPE_STREAM };
	struct hostile hostile;
	struct victim victim;
	struct clan_conn *conn;
	uint8_t buffer[4096];
	struct iovec iov = { .iov_base = buffer, .iov_len = 500 };
	uint8_t payload[1000] = { 0 };

	victim_open(&victim, *state, NULL);
	conn = connect_hostile(&victim, &hostile);
	hostile_put(&hostile, SHM_BULK, head, payload, sizeof(payload));
	hostile_publish(&hostile);
	world_ready(&victim.world, WORLD_SERVER, conn, CLAN_READY_BULK);
	assert_int_equal(clan_readv(conn, &iov, 1, 0), 500);
	head.bytes = 8 + 100;
	hostile.write[SHM_BULK] = 0;
	hostile_put(&hostile, SHM_BULK, head, payload, 100);
	iov.iov_len = sizeof(buffer);
	assert_int_equal(clan_readv(conn, &iov, 1, 0), 500);
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	hostile_close(&hostile);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* A group is ended while one of its connections, which nobody knew, is about to be freed. */
TEST(a_group_ends_with_one_that_has_ended)
{
	struct hostile hostile;
	struct hostile second;
	struct victim victim;
	struct clan_conn *conn;
	int fd = sealed_memfd(SHM_SEGMENT_ALIGN);

	victim_open(&victim, *state, NULL);
	conn = connect_hostile(&victim, &hostile);
	hostile_come(&victim, &second);
	second.hello.group = hostile.victim_group_id;
	second.fds[0] = fd;
	second.fd_count = 1;
	hostile_send_hello(&second);
	atomic_store(&hostile.group->ready_write, 100000);
	hostile_ring(&hostile);
	world_event(&victim.world, WORLD_SERVER, CLAN_EVENT_LOST);
	wait_for_end(&victim, &second);
	world_close_conn(&victim.world, WORLD_SERVER, conn);
	hostile_close(&hostile);
	hostile_close(&second);
	close(fd);
	nothing_is_left(&victim);
	victim_close(&victim);
}

/* At the limit of mappings a replacement changes nothing. */
TEST(replacement_without_mappings_changes_nothing)
{
	enum { MAPPINGS_MAX = 1 << 18 };
	struct clan_queue *queue;
	struct clan_region *region;
	uint8_t *base;
	void *memory;
	uint8_t *area;
	size_t at = 0;

	assert_int_equal(clan_queue_create(NULL, &queue, NULL), 0);
	assert_int_equal(clan_region_create(queue, 65536, 0, &region, &memory), 0);
	base = memory;
	memset(base, 'k', 65536);
	area = mmap(NULL, (size_t)MAPPINGS_MAX * 4096, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_true(area != MAP_FAILED);
	while (at < MAPPINGS_MAX && mprotect(area + at * 4096, 4096, PROT_READ) == 0) {
		at += 2;
	}
	if (at < MAPPINGS_MAX) {
		while (mmap(NULL, 4096, at++ & 1 ? PROT_READ : PROT_NONE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED &&
			at < MAPPINGS_MAX) {
		}
		assert_int_equal(clan_region_replace(region, NULL, 0), -ENOMEM);
		for (size_t i = 0; i < 65536; i++) {
			assert_int_equal(base[i], 'k');
		}
	}
	munmap(area, (size_t)MAPPINGS_MAX * 4096);
	assert_int_equal(clan_region_replace(region, NULL, 0), 0);
	assert_int_equal(base[65535], 'k');
	assert_int_equal(clan_region_destroy(region), 0);
	assert_int_equal(clan_queue_destroy(queue), 0);
}
