// SPDX-License-Identifier: Apache-2.0
/*
 * Workers for what may block for ever: one owner of such work delays nothing but its own, and
 * descriptors of strangers are closed whatever the strangers have set.
 */
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/rights.h"
#include "base/work.h"
#include "sockets.h"
#include "unit.h"

enum { ALICE = 1001, BOB, CAROL, DAVE /* and those behind */ };

/* Doubtful work that ends when it may. */
struct blocked {
	struct work work;
	sem_t begun;
	sem_t may_end;
	sem_t ended;
};

static void run_blocked(struct work *work)
{
	struct blocked *blocked = container_of(work, struct blocked, work);

	sem_post(&blocked->begun);
	while (sem_wait(&blocked->may_end) != 0) {
	}
	sem_post(&blocked->ended);
}

static void wait_for(sem_t *semaphore)
{
	while (sem_wait(semaphore) != 0) {
	}
}

static void block(struct blocked *blocked, uid_t owner)
{
	blocked->work = (struct work){ .run = run_blocked, .in_doubt = true, .owner = owner };
	sem_init(&blocked->begun, 0, 0);
	sem_init(&blocked->may_end, 0, 0);
	sem_init(&blocked->ended, 0, 0);
	list_init(&blocked->work.node);
	work_start(&blocked->work, NULL);
}

static void unblock(struct blocked *blocked)
{
	sem_post(&blocked->may_end);
	wait_for(&blocked->ended);
}

/* Waits until all earlier work of the owner has ended: its work runs in order, and here all of its
 * workers run later work at once. Earlier descriptors of the owner no longer count then. */
static void wait_for_earlier_work(uid_t owner)
{
	struct blocked later[WORKERS_OF_OWNER_MAX];

	for (int i = 0; i < WORKERS_OF_OWNER_MAX; i++) {
		block(&later[i], owner);
	}
	for (int i = 0; i < WORKERS_OF_OWNER_MAX; i++) {
		wait_for(&later[i].begun);
	}
	for (int i = 0; i < WORKERS_OF_OWNER_MAX; i++) {
		unblock(&later[i]);
	}
}

TEST(an_owner_delays_only_its_own_work)
{
	enum { COUNT = 2 * WORKERS_IN_DOUBT_MAX };
	struct blocked hers[COUNT];
	struct blocked his;
	int begun;

	for (int i = 0; i < COUNT; i++) {
		block(&hers[i], ALICE);
	}
	for (int i = 0; i < WORKERS_OF_OWNER_MAX; i++) {
		wait_for(&hers[i].begun);
	}
	block(&his, BOB);
	wait_for(&his.begun);
	assert_int_equal(sem_getvalue(&hers[WORKERS_OF_OWNER_MAX].begun, &begun), 0);
	assert_int_equal(begun, 0);
	unblock(&his);
	for (int i = 0; i < COUNT; i++) {
		unblock(&hers[i]);
	}
}

/* For all that waits to be closed at once. */
static void raise_file_limit(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static int open_null(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

/* Passes descriptors, and ends of connections, until the user may not have more. Returns how many.
 */
static uint32_t fill_room(uid_t user)
{
	uint32_t count = 0;

	for (; dispose_has_room(user); count++) {
		if (count % 2 == 0) {
			dispose_fd(open_null(), user, false);
		} else {
			dispose_end(open_null(), user);
		}
	}
	return count;
}

TEST(what_waits_to_be_closed_is_bounded)
{
	struct blocked blocked[WORKERS_OF_OWNER_MAX];

	for (int i = 0; i < WORKERS_OF_OWNER_MAX; i++) {
		block(&blocked[i], ALICE);
		wait_for(&blocked[i].begun);
	}
	assert_int_equal(fill_room(ALICE), DISPOSE_OF_OWNER_MAX);
	assert_true(dispose_has_room(BOB));
	for (int i = 0; i < WORKERS_OF_OWNER_MAX; i++) {
		unblock(&blocked[i]);
	}
	wait_for_earlier_work(ALICE);
}

/* As many as can, so that nothing doubtful of anybody is done. */
struct crowd {
	struct blocked blocked[WORKERS_IN_DOUBT_MAX];
};

static void crowd_begin(struct crowd *crowd)
{
	for (int i = 0; i < WORKERS_IN_DOUBT_MAX; i++) {
		block(&crowd->blocked[i], DAVE + (uid_t)(i / WORKERS_OF_OWNER_MAX));
		wait_for(&crowd->blocked[i].begun);
	}
}

static void crowd_end(struct crowd *crowd)
{
	for (int i = 0; i < WORKERS_IN_DOUBT_MAX; i++) {
		unblock(&crowd->blocked[i]);
	}
}

/* Several users together leave as much room as each of them has taken. */
TEST(who_comes_last_has_room)
{
	enum { USERS = 2 * DISPOSE_ALL_MAX / DISPOSE_OF_OWNER_MAX };
	struct crowd crowd;
	uid_t user = DAVE;

	crowd_begin(&crowd);
	assert_int_equal(fill_room(user++), DISPOSE_OF_OWNER_MAX);
	for (; user < DAVE + USERS; user++) {
		assert_true(fill_room(user) <= DISPOSE_OF_OWNER_MAX);
	}
	assert_true(fill_room(BOB) > 0);
	while (dispose_has_room(CAROL)) {
		assert_true(fill_room(user++) > 0);
	}
	/* Which is no matter of those who are no strangers. */
	assert_true(dispose_has_room(geteuid()));
	assert_true(dispose_has_room(0));
	crowd_end(&crowd);
	for (uid_t owner = ALICE; owner < user; owner++) {
		wait_for_earlier_work(owner);
	}
}

static int open_listener(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t)), 0);
	assert_int_equal(listen(fd, 2), 0);
	return fd;
}

/* Connections that end have no limit, and one user's keep nobody else out, unless descriptors
 * cannot be refused. */
TEST(one_user_leaves_room_to_others)
{
	int listener = open_listener();
	struct crowd crowd;

	crowd_begin(&crowd);
	assert_true(dispose_may_accept(listener));
	for (int i = 0; i < DISPOSE_ALL_MAX + 100; i++) {
		dispose_end(open_null(), ALICE);
	}
	assert_false(dispose_has_room(ALICE));
	assert_int_equal(fill_room(BOB), DISPOSE_OF_OWNER_MAX);
	assert_true(dispose_has_room(CAROL));
	assert_false(dispose_may_accept(listener));
	rights_refuse(listener);
	assert_int_equal(dispose_may_accept(listener), !rights_may_come(listener));
	crowd_end(&crowd);
	wait_for_earlier_work(ALICE);
	wait_for_earlier_work(BOB);
	assert_true(dispose_has_room(ALICE));
	assert_true(dispose_may_accept(listener));
	close(listener);
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* What libclan's peers send waits for nobody who sends other files. */
TEST(memory_is_closed_beside_doubt)
{
	int fd = memfd_create("memory", MFD_CLOEXEC);
	struct crowd crowd;

	assert_true(fd >= 0);
	crowd_begin(&crowd);
	dispose_fd(fd, ALICE, false);
	while (is_open(fd)) {
		sched_yield();
	}
	crowd_end(&crowd);
}

TEST(sockets_that_linger_are_closed)
{
	int peers[2 * WORKERS_OF_OWNER_MAX];

	for (int i = 0; i < 2 * WORKERS_OF_OWNER_MAX; i++) {
		dispose_fd(lingering_socket(&peers[i]), BOB, false);
	}
	wait_for_earlier_work(BOB);
	for (int i = 0; i < 2 * WORKERS_OF_OWNER_MAX; i++) {
		close(peers[i]);
	}
}

static void what_was_not_received_is_closed(int type, int flags)
{
	int peers[WORKERS_OF_OWNER_MAX][2];

	for (int i = 0; i < WORKERS_OF_OWNER_MAX; i++) {
		int ends[2];

		assert_int_equal(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends), 0);
		for (int j = 0; j < 2; j++) {
			int fd = lingering_socket(&peers[i][j]);

			assert_true(pass_fd(ends[0], fd, j == 0 ? "one" : "2", j == 0 ? 0 : flags));
			close(fd); /* not the last of it */
		}
		dispose_socket(ends[1], CAROL, false);
		close(ends[0]);
	}
	wait_for_earlier_work(CAROL);
	for (int i = 0; i < WORKERS_OF_OWNER_MAX; i++) {
		close(peers[i][0]);
		close(peers[i][1]);
	}
}

TEST(what_a_socket_holds_is_closed)
{
	what_was_not_received_is_closed(SOCK_SEQPACKET, 0);
	what_was_not_received_is_closed(SOCK_STREAM, 0);
	what_was_not_received_is_closed(SOCK_STREAM, MSG_OOB);
}

static void connect_to(int listener, int ends[2])
{
	struct sockaddr_un address;
	socklen_t length = sizeof(address);

	ends[0] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
	assert_int_equal(connect(ends[0], (struct sockaddr *)&address, length), 0);
	ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(ends[1] >= 0);
}

/* A connection that was not permitted to carry descriptors is closed at once, whatever was sent. */
TEST(refused_connections_do_not_wait)
{
	int listener = open_listener();
	struct crowd crowd;
	bool can_refuse;

	rights_refuse(listener);
	can_refuse = !rights_may_come(listener);
	crowd_begin(&crowd);
	for (int permitted = 0; permitted < 2; permitted++) {
		int ends[2];

		connect_to(listener, ends);
		if (permitted) {
			rights_permit(ends[1]);
		}
		assert_int_equal(
			pass_fd(ends[0], STDERR_FILENO, "a file", 0), permitted || !can_refuse);
		while (send(ends[0], "a text", 6, MSG_DONTWAIT) == 6) {
		}
		dispose_socket(ends[1], ALICE, false);
		assert_int_equal(is_open(ends[1]), permitted || !can_refuse);
		close(ends[0]);
	}
	crowd_end(&crowd);
	close(listener);
}

/* An end that holds no descriptors is closed at once, whatever messages it holds; others wait. */
TEST(ends_without_descriptors_do_not_wait)
{
	enum { HOLDS_NOTHING, HOLDS_TEXT, HOLDS_FILES, KINDS };
	int ends[KINDS][2];
	struct crowd crowd;

	crowd_begin(&crowd);
	for (int kind = 0; kind < KINDS; kind++) {
		assert_int_equal(
			socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends[kind]), 0);
		if (kind != HOLDS_NOTHING) {
			assert_int_equal(send(ends[kind][0], "a text", 6, 0), 6);
			assert_int_equal(send(ends[kind][0], "", 0, 0), 0);
		}
		if (kind == HOLDS_FILES) {
			assert_true(pass_fd(ends[kind][0], STDERR_FILENO, "a file", 0));
		}
		dispose_socket(ends[kind][1], ALICE, false);
		assert_int_equal(is_open(ends[kind][1]), kind == HOLDS_FILES);
	}
	assert_int_equal(fill_room(ALICE), DISPOSE_OF_OWNER_MAX - 1);
	crowd_end(&crowd);
	wait_for_earlier_work(ALICE);
	assert_false(is_open(ends[HOLDS_FILES][1]));
	for (int kind = 0; kind < KINDS; kind++) {
		close(ends[kind][0]);
	}
}

int main(void)
{
	raise_file_limit();
	return unit_run(NULL, NULL);
}
