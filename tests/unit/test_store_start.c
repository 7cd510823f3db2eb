// SPDX-License-Identifier: Apache-2.0
/*
 * A store that must be started, and has an owner, in the server: nothing is served before, the
 * control socket says how far it is, and what goes wrong ends the server with a sentence. Then its
 * parts come from sessions on all reactors, which learn when its size changes.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "control/control.h"
#include "keeper_kind.h"
#include "nbd/server/server.h"
#include "reactor_world.h"
#include "server/server.h"
#include "stores.h"
#include "unit.h"

enum { STORE_BYTES = 64 << 10, TIMEOUT_MS = 60000 };

static const struct session_kind *const kinds[] = { &nbd_session_kind };

/* --- a server in a process of its own -------------------------------------------------------- */

struct daemon {
	char folder[32];
	char control[64];
	char uri[128]; /* to listen at */
	pid_t pid;
	int go_fd;
	int said_fd;
	int out; /* its standard output */
	int err;
};

static void daemon_main(const struct daemon *daemon)
{
	struct server_config config;
	struct server_export entry;
	struct error error;
	int status = 0;
	int rc = 0;

	server_config_init(&config);
	for (int i = 0; i < 2 && rc == 0; i++) {
		server_export_init(&entry);
		rc = server_export_parse(&entry, i == 0 ? "a=keeper:64K" : "b=memory:64K", &error);
		if (rc == 0) {
			rc = server_config_add_export(&config, &entry, "test", &error);
		}
	}
	config.limits.threads = REACTORS;
	if (rc < 0 || server_config_option(&config, "listen", daemon->uri, &error) < 0 ||
		server_config_option(&config, "control", daemon->control, &error) < 0 ||
		server_config_finish(&config, &error) < 0 ||
		server_run(&config, kinds, ARRAY_COUNT(kinds), &status, &error) < 0) {
		log_error("%s", error.text);
		status = 1;
	}
	server_config_fini(&config);
	_exit(status);
}

/* Returns when the store has begun to start. */
static void daemon_begin(struct daemon *daemon)
{
	int go[2];
	int said[2];
	int out[2];
	int err[2];
	char byte;

	snprintf(daemon->folder, sizeof(daemon->folder), "/tmp/store-start-XXXXXX");
	assert_non_null(mkdtemp(daemon->folder));
	snprintf(daemon->control, sizeof(daemon->control), "%s/control", daemon->folder);
	snprintf(daemon->uri, sizeof(daemon->uri), "nbd+unix:///?socket=%s/disk", daemon->folder);
	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	assert_int_equal(fcntl(go[0], F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(pipe2(said, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	assert_int_equal(pipe2(err, O_CLOEXEC), 0);
	fflush(NULL);
	daemon->pid = fork();
	assert_true(daemon->pid >= 0);
	if (daemon->pid == 0) {
		keeper_gate = (struct keeper_gate){ go[0], said[1] };
		dup2(out[1], STDOUT_FILENO);
		dup2(err[1], STDERR_FILENO);
		daemon_main(daemon);
	}
	close(go[0]);
	close(said[1]);
	close(out[1]);
	close(err[1]);
	daemon->go_fd = go[1];
	daemon->said_fd = said[0];
	daemon->out = out[0];
	daemon->err = err[0];
	assert_int_equal(read(daemon->said_fd, &byte, 1), 1);
}

static void daemon_go(const struct daemon *daemon, char what)
{
	assert_int_equal(write(daemon->go_fd, &what, 1), 1);
}

static void daemon_step(const struct daemon *daemon)
{
	char byte;

	daemon_go(daemon, 's');
	assert_int_equal(read(daemon->said_fd, &byte, 1), 1);
}

/* Until its end: all that comes out of the descriptor. */
static void read_text(int fd, char *text, size_t text_bytes)
{
	size_t used = 0;
	ssize_t got;

	while ((got = read(fd, text + used, text_bytes - 1 - used)) > 0) {
		used += (size_t)got;
	}
	text[used] = '\0';
}

/* Its exit status; out and err: what it wrote that was not read before. */
static int daemon_end(const struct daemon *daemon, char out[1024], char err[1024])
{
	char disk[64];
	int status;

	read_text(daemon->out, out, 1024);
	read_text(daemon->err, err, 1024);
	assert_int_equal(waitpid(daemon->pid, &status, 0), daemon->pid);
	close(daemon->go_fd);
	close(daemon->said_fd);
	close(daemon->out);
	close(daemon->err);
	snprintf(disk, sizeof(disk), "%s/disk", daemon->folder);
	(void)unlink(disk);
	assert_int_equal(rmdir(daemon->folder), 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static json_t *ask_stats(const struct daemon *daemon)
{
	struct error error = { 0 };
	json_t *document;

	if (control_ask(daemon->control, "stats", NULL, TIMEOUT_MS, &document, &error) < 0) {
		fail_msg("%s", error.text);
	}
	return document;
}

/* How much of it has started, in percent. */
static int started_percent(const struct daemon *daemon, size_t export_idx)
{
	json_t *document = ask_stats(daemon);
	const json_t *entry = json_array_get(json_object_get(document, "exports"), export_idx);
	int percent = (int)(100 * json_real_value(json_object_get(entry, "started")));

	json_decref(document);
	return percent;
}

static int connect_to(const struct daemon *daemon)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/disk", daemon->folder);
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

TEST(test_nothing_is_served_before_it_has_started)
{
	struct talk_hello hello = talk_hello("a");
	struct nbd_wire_request request = talk_request(NBD_CMD_READ, 0, READ_BYTES);
	uint8_t answer[TALK_HELLO_BYTES + ANSWER_BYTES];
	struct daemon daemon;
	const json_t *counters;
	json_t *document;
	char out[1024];
	char err[1024];
	char byte;
	int fd;

	daemon_begin(&daemon);
	assert_int_equal(started_percent(&daemon, 0), 0);
	assert_int_equal(started_percent(&daemon, 1), 100);
	fd = connect_to(&daemon);
	for (int i = 1; i < KEEPER_STEPS; i++) {
		daemon_step(&daemon);
		assert_int_equal(started_percent(&daemon, 0), 100 * i / KEEPER_STEPS);
	}
	assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
	daemon_go(&daemon, 's');
	assert_int_equal(read(daemon.out, &byte, 1), 1); /* the first URI */
	put(fd, &hello, sizeof(hello));
	put(fd, "a", 1);
	put(fd, &request, sizeof(request));
	assert_true(take(fd, answer, sizeof(answer)));
	assert_int_equal(started_percent(&daemon, 0), 100);
	document = ask_stats(&daemon);
	counters =
		json_object_get(json_array_get(json_object_get(document, "exports"), 0), "store");
	assert_int_equal(
		json_integer_value(json_object_get(json_object_get(counters, "keeper"), "parts")),
		1);
	json_decref(document);
	close(fd);
	assert_int_equal(kill(daemon.pid, SIGTERM), 0);
	assert_int_equal(daemon_end(&daemon, out, err), 0);
	assert_non_null(strstr(out, "nbd+unix:///b?socket="));
}

TEST(test_a_start_that_fails_ends_the_server)
{
	struct daemon daemon;
	char out[1024];
	char err[1024];

	daemon_begin(&daemon);
	daemon_step(&daemon);
	daemon_go(&daemon, 'x');
	assert_int_equal(daemon_end(&daemon, out, err), 1);
	assert_string_equal(out, "");
	assert_non_null(strstr(err, "cannot serve the export \"a\" (test): its map is torn"));
}

TEST(test_a_signal_ends_a_start)
{
	struct daemon daemon;
	char out[1024];
	char err[1024];

	daemon_begin(&daemon);
	daemon_step(&daemon);
	assert_int_equal(kill(daemon.pid, SIGTERM), 0);
	assert_int_equal(daemon_end(&daemon, out, err), 0);
	assert_string_equal(out, "");
}

/* --- reactors -------------------------------------------------------------------------------- */

static void has_started(struct store_start *start)
{
	sem_post(start->context);
}

static void start(struct engine *engine, void *context)
{
	assert_int_equal(export_start(context, engine), 0);
}

struct sum {
	const struct export *export;
	uint32_t owners;
	struct keeper_counters counters;
	uint64_t sessions_max; /* of a reactor */
};

static void add_up(struct engine *engine, void *context)
{
	struct sum *sum = context;
	const struct keeper_counters *counters =
		keeper_counters(engine_export_measured(engine, sum->export)->queue);

	sum->sessions_max = MAX(sum->sessions_max, engine->counters.sessions);
	if (counters != NULL) {
		sum->owners++;
		sum->counters = *counters;
	}
}

/* Writes and reads back a block; several requests are on their way at a time. */
static void write_and_read(int fds[SESSIONS], uint32_t round)
{
	static uint8_t data[SESSIONS][READ_BYTES];
	uint8_t back[READ_BYTES];

	for (uint32_t i = 0; i < SESSIONS; i++) {
		uint64_t offset = (uint64_t)READ_BYTES * ((i + round) % SESSIONS);
		struct nbd_wire_request request = talk_request(NBD_CMD_WRITE, offset, READ_BYTES);

		memset(data[i], (int)(1 + i + SESSIONS * (round % 16)), READ_BYTES);
		put(fds[i], &request, sizeof(request));
		put(fds[i], data[i], READ_BYTES);
		request = talk_request(NBD_CMD_FLUSH, 0, 0);
		put(fds[i], &request, sizeof(request));
	}
	for (uint32_t i = 0; i < SESSIONS; i++) {
		struct nbd_wire_simple_reply replies[2];

		assert_true(take(fds[i], replies, sizeof(replies)));
		assert_int_equal(be32_get(replies[0].error), 0);
	}
	/* Each reads what another has written, perhaps on another reactor. */
	for (uint32_t i = 0; i < SESSIONS; i++) {
		const struct nbd_wire_request request = talk_request(NBD_CMD_READ,
			(uint64_t)READ_BYTES * ((i + 1 + round) % SESSIONS), READ_BYTES);

		put(fds[i], &request, sizeof(request));
	}
	for (uint32_t i = 0; i < SESSIONS; i++) {
		struct nbd_wire_simple_reply reply;

		assert_true(take(fds[i], &reply, sizeof(reply)));
		assert_int_equal(be32_get(reply.error), 0);
		assert_true(take(fds[i], back, READ_BYTES));
		assert_memory_equal(back, data[(i + 1) % SESSIONS], READ_BYTES);
	}
}

static uint32_t error_of_read(int fd, uint64_t offset)
{
	const struct nbd_wire_request request = talk_request(NBD_CMD_READ, offset, READ_BYTES);
	struct nbd_wire_simple_reply reply;
	uint8_t data[READ_BYTES];

	put(fd, &request, sizeof(request));
	assert_true(take(fd, &reply, sizeof(reply)));
	if (be32_get(reply.error) == 0) {
		assert_true(take(fd, data, sizeof(data)));
	}
	return be32_get(reply.error);
}

static void nothing(struct engine *engine, void *context)
{
}

TEST(test_sessions_of_all_reactors_share_the_owner)
{
	enum { ROUNDS = 50 };
	struct export *export = export_of_path("", "keeper:64K");
	struct reactor_world world;
	struct sum sum = { .export = export };
	int fds[SESSIONS];
	sem_t started;

	reactor_world_begin(&world, export, kinds, ARRAY_COUNT(kinds));
	sem_init(&started, 0, 0);
	export->start.done = has_started;
	export->start.context = &started;
	assert_int_equal(reactor_call(world.reactors[1], start, export), 0);
	sem_wait(&started);
	sem_destroy(&started);
	assert_int_equal(export->start.result, 0);
	keeper_resize(export->store, STORE_BYTES - READ_BYTES);
	reactor_world_accept(&world);
	for (uint32_t i = 0; i < SESSIONS; i++) {
		fds[i] = dial_nbd(&world, "");
	}
	for (uint32_t round = 0; round < ROUNDS; round++) {
		write_and_read(fds, round);
	}
	for (uint32_t i = 0; i < REACTORS; i++) {
		assert_int_equal(reactor_call(world.reactors[i], add_up, &sum), 0);
	}
	assert_int_equal(sum.owners, 1);
	assert_true(sum.sessions_max < SESSIONS); /* both have some */
	assert_int_equal(sum.counters.parts, 3 * SESSIONS * ROUNDS);
	assert_int_equal(sum.counters.sent, 3 * (SESSIONS - SESSIONS / REACTORS) * ROUNDS);
	assert_int_equal(sum.counters.anonymous, 0); /* NBD says which connection asks */
	/* Messages of one sender arrive in order: after a call, each reactor has heard. */
	assert_int_equal(error_of_read(fds[0], STORE_BYTES - READ_BYTES), NBD_EINVAL);
	keeper_resize(export->store, STORE_BYTES);
	for (uint32_t i = 0; i < REACTORS; i++) {
		assert_int_equal(reactor_call(world.reactors[i], nothing, NULL), 0);
	}
	for (uint32_t i = 0; i < SESSIONS; i++) {
		assert_int_equal(error_of_read(fds[i], STORE_BYTES - READ_BYTES), 0);
		close(fds[i]);
	}
	reactor_world_end(&world);
}

int main(void)
{
	/* Processes are forked before there are threads. */
	store_register(&keeper_store_kind);
	return unit_run(NULL, NULL);
}
