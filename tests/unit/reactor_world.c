// SPDX-License-Identifier: Apache-2.0
#include "reactor_world.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

/* --- the server ----------------------------------------------------------------------------- */

/* An abstract address that the kernel chooses. */
static int listen_anywhere(void)
{
	const struct sockaddr_un any = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&any, sizeof(sa_family_t)), 0);
	assert_int_equal(listen(fd, SESSIONS), 0);
	return fd;
}

static void has_stopped(void *context)
{
	struct reactor_world *world = context;

	sem_post(&world->stopped);
}

void reactor_world_begin(struct reactor_world *world, struct export *export,
	const struct session_kind *const *kinds, uint32_t kind_count)
{
	struct reactor_options options = {
		.exports = &world->export,
		.export_count = 1,
		.kinds = kinds,
		.kind_count = kind_count,
		.connection_total = &world->connection_total,
		.drained = has_stopped,
		.context = world,
	};
	struct error error;

	log_set_level(LOG_LEVEL_ERROR);
	(void)signal(SIGPIPE, SIG_IGN); /* rings of reactors need it */
	memset(world, 0, sizeof(*world));
	sem_init(&world->stopped, 0, 0);
	world->export = export;
	world->kind_count = kind_count;
	engine_limits_default(&options.limits);
	options.limits.memory_bytes_max = ARENA_SLAB_BYTES;
	options.limits.inflight_max = 4; /* fewer than sessions: they wait in turn */
	for (uint32_t i = 0; i < kind_count; i++) {
		world->listeners[i].kind = kinds[i];
		world->listeners[i].fds[0] = listen_anywhere();
		world->listeners[i].fd_count = 1;
	}
	for (uint32_t i = 0; i < REACTORS; i++) {
		options.index = i;
		assert_int_equal(reactor_create(&options, &world->reactors[i], &error), 0);
	}
}

void reactor_world_accept(struct reactor_world *world)
{
	const struct acceptor_options options = {
		.listeners = world->listeners,
		.listener_count = world->kind_count,
		.reactors = world->reactors,
		.reactor_count = REACTORS,
		.connections_max = 100,
		.connections_per_peer_max = 100,
		.connection_total = &world->connection_total,
		.stopped = has_stopped,
		.context = world,
	};
	struct error error;

	assert_int_equal(acceptor_create(&options, &world->acceptor, &error), 0);
	acceptor_start(world->acceptor);
}

static void nothing(struct engine *engine, void *context)
{
}

/* As the server does it: all have drained, and are done with each other, before the first goes. */
void reactor_world_end(struct reactor_world *world)
{
	acceptor_stop(world->acceptor);
	sem_wait(&world->stopped);
	for (uint32_t i = 0; i < REACTORS; i++) {
		reactor_drain(world->reactors[i], 10 * SECOND_NS);
	}
	for (uint32_t i = 0; i < REACTORS; i++) {
		sem_wait(&world->stopped);
	}
	for (uint32_t i = 0; i < REACTORS; i++) {
		assert_int_equal(reactor_call(world->reactors[i], nothing, NULL), 0);
	}
	for (uint32_t i = 0; i < REACTORS; i++) {
		assert_int_equal(reactor_session_count(world->reactors[i]), 0);
		reactor_destroy(world->reactors[i]);
	}
	assert_int_equal(world->connection_total, 0);
	acceptor_destroy(world->acceptor);
	for (uint32_t i = 0; i < world->kind_count; i++) {
		close(world->listeners[i].fds[0]);
	}
	assert_int_equal(world->export->references, 1); /* the engines have released theirs */
	export_put(world->export);
	sem_destroy(&world->stopped);
}

/* --- clients -------------------------------------------------------------------------------- */

int dial(const struct reactor_world *world, uint32_t kind_idx)
{
	struct sockaddr_un address;
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(
		getsockname(world->listeners[kind_idx].fds[0], (struct sockaddr *)&address, &bytes),
		0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, bytes), 0);
	return fd;
}

/* The kernel interrupts a thread that closed a ring once more, some time later, and without a
 * signal: its blocking call then transfers only a part of the bytes. */

void put(int fd, const void *bytes, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t count = send(fd, (const uint8_t *)bytes + done, len - done, MSG_NOSIGNAL);

		assert_true(count > 0 || (count < 0 && errno == EINTR));
		done += count > 0 ? (size_t)count : 0;
	}
}

bool take(int fd, void *bytes, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t count = recv(fd, (uint8_t *)bytes + done, len - done, MSG_WAITALL);

		if (count == 0 || (count < 0 && errno != EINTR)) {
			return false;
		}
		done += count > 0 ? (size_t)count : 0;
	}
	return true;
}

int dial_nbd(const struct reactor_world *world, const char *name)
{
	const struct talk_hello hello = talk_hello(name);
	uint8_t answer[TALK_HELLO_BYTES];
	int fd = dial(world, 0);

	put(fd, &hello, sizeof(hello));
	put(fd, name, strlen(name));
	assert_true(take(fd, answer, sizeof(answer)));
	return fd;
}

void ask_nbd(int fd)
{
	const struct nbd_wire_request request = talk_request(NBD_CMD_READ, 0, READ_BYTES);

	put(fd, &request, sizeof(request));
}

bool nbd_answers(int fd)
{
	static uint8_t answer[ANSWER_BYTES];

	return take(fd, answer, sizeof(answer));
}
