// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "control/control.h"

#define SECOND_NS UINT64_C(1000000000)
/* How long a client may send nothing before it is closed. */
#define SILENCE_NS (2 * SECOND_NS)
/* How long it may read nothing of its answer, or leave its command unfinished. */
#define WAIT_NS (10 * SECOND_NS)
/* How long the end of the server waits for that. */
#define FLUSH_NS (2 * SECOND_NS)
/* How long no connection is accepted after descriptors ran out. */
#define SHORTAGE_NS SECOND_NS

enum {
	INPUT_BYTES_FIRST = 1 << 10,
	NOTES_BYTES_MAX = 64 << 10, /* that a client has not read, before notes are dropped */
	EVENTS_MAX = CONTROL_CLIENTS_MAX + CONTROL_WATCHES_MAX + 2,
};

_Static_assert(
	(int)INPUT_BYTES_FIRST <= (int)CONTROL_COMMAND_BYTES, "a buffer grows up to the limit");

enum client_state {
	CLIENT_FREE,
	CLIENT_READING,	 /* waits for its command */
	CLIENT_RUNNING,	 /* waits for the command's answer */
	CLIENT_ANSWERED, /* waits for the client to read the answer */
	CLIENT_HELD,	 /* has read it; waits for the client to close */
	CLIENT_STATE_COUNT
};

static const uint32_t client_edges[CLIENT_STATE_COUNT] = {
	[CLIENT_FREE] = BIT(CLIENT_READING),
	[CLIENT_READING] = BIT(CLIENT_RUNNING) | BIT(CLIENT_ANSWERED) | BIT(CLIENT_FREE),
	[CLIENT_RUNNING] = BIT(CLIENT_ANSWERED) | BIT(CLIENT_FREE), /* free: the server ends */
	[CLIENT_ANSWERED] = BIT(CLIENT_HELD) | BIT(CLIENT_FREE),
	[CLIENT_HELD] = BIT(CLIENT_FREE),
};

struct registration {
	const struct control_command *command;
	void *context;
};

struct watch {
	int fd;
	void (*event)(void *context);
	void *context;
};

struct control_client {
	struct control_server *server;
	enum client_state state;
	int fd;
	uint64_t id;
	struct ucred peer;
	uint64_t deadline_ns; /* UINT64_MAX: none */
	const struct registration *running;
	char *input; /* while reading */
	size_t input_bytes;
	size_t input_room;
	char *output; /* lines not sent yet */
	size_t output_bytes;
	size_t output_sent;
};

struct control_server {
	int listen_fd;
	int epoll_fd;
	int timer_fd;
	bool stopped;
	uint64_t resume_ns; /* accept nothing before; UINT64_MAX: no such time */
	uint64_t next_id;
	uint32_t client_count;
	uint32_t command_count;
	uint32_t watch_count;
	struct registration commands[CONTROL_COMMANDS_MAX];
	struct watch watches[CONTROL_WATCHES_MAX];
	struct control_client clients[CONTROL_CLIENTS_MAX];
};

static void client_set_state(struct control_client *client, enum client_state state)
{
	GMB_ASSERT((client_edges[client->state] & BIT(state)) != 0);
	client->state = state;
}

/* --- what is waited for -------------------------------------------------------------------- */

static int set_interest(
	struct control_server *server, int operation, int fd, uint32_t events, void *what)
{
	struct epoll_event event = { .events = events, .data.ptr = what };

	return epoll_ctl(server->epoll_fd, operation, fd, &event) < 0 ? -errno : 0;
}

/* With all places taken, new connections wait in the socket's queue. */
static void update_listener(struct control_server *server)
{
	bool room = server->client_count < CONTROL_CLIENTS_MAX && server->resume_ns == UINT64_MAX &&
		    !server->stopped;

	(void)set_interest(
		server, EPOLL_CTL_MOD, server->listen_fd, room ? EPOLLIN : 0, &server->listen_fd);
}

static void update_client(struct control_client *client)
{
	uint32_t events = client->state == CLIENT_ANSWERED ? 0 : EPOLLIN;

	if (client->state == CLIENT_ANSWERED || client->output_sent < client->output_bytes) {
		events |= EPOLLOUT;
	}
	(void)set_interest(client->server, EPOLL_CTL_MOD, client->fd, events, client);
}

static void set_timer(struct control_server *server)
{
	struct itimerspec when = { 0 };
	uint64_t first_ns = server->resume_ns;

	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		if (server->clients[i].state != CLIENT_FREE) {
			first_ns = MIN(first_ns, server->clients[i].deadline_ns);
		}
	}
	if (first_ns != UINT64_MAX) {
		when.it_value.tv_sec = (time_t)(first_ns / SECOND_NS);
		when.it_value.tv_nsec = (long)(first_ns % SECOND_NS);
	}
	(void)timerfd_settime(server->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* --- output -------------------------------------------------------------------------------- */

static void client_close(struct control_client *client)
{
	struct control_server *server = client->server;

	client_set_state(client, CLIENT_FREE);
	close(client->fd); /* epoll forgets it */
	free(client->input);
	free(client->output);
	*client = (struct control_client){ .server = server, .fd = -1 };
	server->client_count--;
	update_listener(server);
}

/* Sends what can be sent. Closes nothing: the caller may be below a handler. */
static void push(struct control_client *client)
{
	while (client->output_sent < client->output_bytes) {
		ssize_t sent = send(client->fd, client->output + client->output_sent,
			client->output_bytes - client->output_sent, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (sent < 0 && errno == EINTR) {
			continue;
		}
		if (sent < 0 && errno == EAGAIN) {
			break;
		}
		if (sent < 0) {
			client->output_sent = client->output_bytes; /* it has gone */
			break;
		}
		client->output_sent += (size_t)sent;
		if (client->state == CLIENT_ANSWERED) {
			client->deadline_ns = clock_now_ns() + WAIT_NS;
		}
	}
	update_client(client);
}

/* Adds one line; takes value. False: out of memory. */
static bool add_line(struct control_client *client, json_t *value)
{
	size_t bytes = value != NULL ? json_dumpb(value, NULL, 0, JSON_COMPACT) : 0;
	size_t left = client->output_bytes - client->output_sent;
	char *output = bytes > 0 ? malloc(left + bytes + 1) : NULL;

	if (output == NULL) {
		json_decref(value);
		return false;
	}
	if (left > 0) {
		memcpy(output, client->output + client->output_sent, left);
	}
	(void)json_dumpb(value, output + left, bytes, JSON_COMPACT);
	output[left + bytes] = '\n';
	free(client->output);
	client->output = output;
	client->output_bytes = left + bytes + 1;
	client->output_sent = 0;
	json_decref(value);
	return true;
}

void control_note(struct control_client *client, json_t *note)
{
	GMB_ASSERT(client->state == CLIENT_RUNNING);
	if (client->output_bytes - client->output_sent > NOTES_BYTES_MAX) {
		json_decref(note);
	} else if (add_line(client, json_pack("{s:o}", "note", note))) {
		push(client);
	}
}

/* Closed in a later turn, so that no client goes away below its caller. A client for whose answer
 * there is no memory gets none. */
static void answer(struct control_client *client, json_t *line)
{
	(void)add_line(client, line);
	client_set_state(client, CLIENT_ANSWERED);
	client->deadline_ns = clock_now_ns() + WAIT_NS;
	push(client);
}

void control_fail(struct control_client *client, int code, const char *sentence)
{
	char shown[4 * ERROR_TEXT_BYTES];
	const char *name = strerrorname_np(-code);

	log_debug("control: client %llu: refused: %s", (unsigned long long)client->id, sentence);
	answer(client, json_pack("{s:{s:s, s:s}}", "error", "code", name != NULL ? name : "EIO",
			       "text", log_escape_sentence(shown, sizeof(shown), sentence)));
}

void control_reply(struct control_client *client, json_t *result)
{
	if (result == NULL) {
		control_fail(client, -ENOMEM, "out of memory for the answer");
	} else {
		answer(client, json_pack("{s:o}", "result", result));
	}
}

/* --- input --------------------------------------------------------------------------------- */

static bool may(const struct control_client *client)
{
	return client->peer.uid == 0 || client->peer.uid == geteuid();
}

static const struct registration *find_command(
	const struct control_server *server, const char *name)
{
	for (uint32_t i = 0; name != NULL && i < server->command_count; i++) {
		if (strcmp(server->commands[i].command->name, name) == 0) {
			return &server->commands[i];
		}
	}
	return NULL;
}

static void run_command(struct control_client *client, const json_t *line)
{
	static const char *const rights[] = { "read", "change" };
	const char *name = json_string_value(json_object_get(line, "command"));
	const struct registration *found = find_command(client->server, name);
	json_t *arguments = json_object_get(line, "arguments");
	json_t *none = NULL;

	if (name == NULL) {
		control_fail(client, -EINVAL,
			"a command is a JSON object such as {\"command\": \"stats\"}");
		return;
	}
	if (found == NULL) {
		control_fail(client, -EINVAL, "unknown command");
		return;
	}
	log_debug("control: client %llu (uid %u, pid %d): %s (%s)", (unsigned long long)client->id,
		(unsigned int)client->peer.uid, (int)client->peer.pid, name,
		rights[found->command->right]);
	if (!may(client)) {
		control_fail(client, -EPERM, "only root and the user of this process may do that");
		return;
	}
	if (arguments == NULL) {
		arguments = none = json_object();
	}
	if (!json_is_object(arguments)) {
		control_fail(client, -EINVAL, "the arguments are not a JSON object");
	} else {
		client_set_state(client, CLIENT_RUNNING);
		client->running = found;
		client->deadline_ns = UINT64_MAX;
		found->command->begin(found->context, client, arguments);
	}
	json_decref(none);
}

static void take_line(struct control_client *client, size_t bytes)
{
	json_error_t where;
	json_t *line = json_loadb(client->input, bytes, JSON_REJECT_DUPLICATES, &where);

	free(client->input);
	client->input = NULL;
	run_command(client, line);
	json_decref(line);
}

static bool has_room(struct control_client *client)
{
	size_t room = MAX(client->input_room * 2, (size_t)INPUT_BYTES_FIRST);
	char *input;

	if (client->input_bytes < client->input_room) {
		return true;
	}
	input = realloc(client->input, room);
	if (input == NULL) {
		return false;
	}
	client->input = input;
	client->input_room = room;
	return true;
}

static void read_command(struct control_client *client)
{
	ssize_t got;
	char *end;

	if (client->input_bytes == CONTROL_COMMAND_BYTES) {
		control_fail(client, -EMSGSIZE, "the command is too long");
		return;
	}
	if (!has_room(client)) {
		client_close(client);
		return;
	}
	got = recv(client->fd, client->input + client->input_bytes,
		client->input_room - client->input_bytes, MSG_DONTWAIT);
	if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
		return;
	}
	if (got <= 0) {
		client_close(client);
		return;
	}
	if (client->input_bytes == 0) {
		client->deadline_ns = clock_now_ns() + WAIT_NS; /* for all of it */
	}
	end = memchr(client->input + client->input_bytes, '\n', (size_t)got);
	client->input_bytes += (size_t)got;
	if (end != NULL) {
		take_line(client, (size_t)(end - client->input));
	}
}

/* Input after the command means nothing; only its end does. */
static bool has_ended(const struct control_client *client)
{
	char ignored[4096];
	ssize_t got = recv(client->fd, ignored, sizeof(ignored), MSG_DONTWAIT);

	return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

static void end_command(struct control_client *client)
{
	GMB_ASSERT(client->running->command->end != NULL);
	client->running->command->end(client->running->context, client);
	GMB_ASSERT(client->state == CLIENT_ANSWERED);
}

static void finish_answer(struct control_client *client)
{
	push(client);
	if (client->output_sent < client->output_bytes) {
		return;
	}
	if (client->running == NULL || !client->running->command->stays_open) {
		client_close(client);
		return;
	}
	client_set_state(client, CLIENT_HELD);
	client->deadline_ns = UINT64_MAX;
	update_client(client);
}

static void client_run(struct control_client *client, uint32_t events)
{
	switch (client->state) {
	case CLIENT_READING:
		read_command(client);
		break;
	case CLIENT_RUNNING:
		push(client);
		if ((events & ~(uint32_t)EPOLLOUT) != 0 && has_ended(client)) {
			end_command(client);
		}
		break;
	case CLIENT_ANSWERED:
		finish_answer(client);
		break;
	case CLIENT_HELD:
		if (has_ended(client)) {
			client_close(client);
		}
		break;
	case CLIENT_FREE: /* it went in this turn */
	case CLIENT_STATE_COUNT:
	default:
		break;
	}
}

/* --- all clients --------------------------------------------------------------------------- */

static void client_open(struct control_server *server, int fd)
{
	struct control_client *client = server->clients;
	socklen_t bytes = sizeof(client->peer);

	while (client->state != CLIENT_FREE) {
		client++;
		GMB_ASSERT(client < server->clients + CONTROL_CLIENTS_MAX);
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &client->peer, &bytes) < 0 ||
		set_interest(server, EPOLL_CTL_ADD, fd, EPOLLIN, client) < 0) {
		close(fd);
		return;
	}
	client_set_state(client, CLIENT_READING);
	client->fd = fd;
	client->id = ++server->next_id;
	client->deadline_ns = clock_now_ns() + SILENCE_NS;
	server->client_count++;
	if (add_line(client,
		    json_pack("{s:s, s:i, s:s, s:i}", "service", "gmblock control", "protocol",
			    CONTROL_PROTOCOL, "version", GMBLOCK_VERSION, "pid", (int)getpid()))) {
		push(client);
	}
}

static void accept_one(struct control_server *server)
{
	int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd >= 0) {
		client_open(server, fd);
	} else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
		server->resume_ns = clock_now_ns() + SHORTAGE_NS;
	}
	update_listener(server);
}

static void expire(struct control_server *server)
{
	uint64_t now = clock_now_ns();
	eventfd_t ignored;

	(void)eventfd_read(server->timer_fd, &ignored);
	if (server->resume_ns <= now) {
		server->resume_ns = UINT64_MAX;
		update_listener(server);
	}
	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		struct control_client *client = &server->clients[i];

		if (client->state != CLIENT_FREE && client->deadline_ns <= now) {
			client_close(client);
		}
	}
}

static bool run_watch(struct control_server *server, const void *what)
{
	eventfd_t ignored;

	for (uint32_t i = 0; i < server->watch_count; i++) {
		struct watch *watch = &server->watches[i];

		if (what == watch) {
			if (eventfd_read(watch->fd, &ignored) == 0) {
				watch->event(watch->context);
			}
			return true;
		}
	}
	return false;
}

void control_server_run(struct control_server *server)
{
	struct epoll_event events[EVENTS_MAX];
	int count = epoll_wait(server->epoll_fd, events, EVENTS_MAX, 0);

	for (int i = 0; i < count; i++) {
		void *what = events[i].data.ptr;

		if (what == &server->listen_fd) {
			accept_one(server);
		} else if (what == &server->timer_fd) {
			expire(server);
		} else if (!run_watch(server, what)) {
			client_run(what, events[i].events);
		}
	}
	set_timer(server);
}

/* --- the server ---------------------------------------------------------------------------- */

void control_server_add(
	struct control_server *server, const struct control_command *command, void *context)
{
	GMB_ASSERT(server->command_count < CONTROL_COMMANDS_MAX);
	GMB_ASSERT(command->name != NULL && command->begin != NULL);
	server->commands[server->command_count++] =
		(struct registration){ .command = command, .context = context };
}

int control_server_watch(
	struct control_server *server, int fd, void (*event)(void *context), void *context)
{
	struct watch *watch = &server->watches[server->watch_count];

	GMB_ASSERT(server->watch_count < CONTROL_WATCHES_MAX);
	*watch = (struct watch){ .fd = fd, .event = event, .context = context };
	server->watch_count++;
	return set_interest(server, EPOLL_CTL_ADD, fd, EPOLLIN, watch);
}

int control_server_fd(const struct control_server *server)
{
	return server->epoll_fd;
}

void control_server_stop(struct control_server *server)
{
	server->stopped = true;
	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		enum client_state state = server->clients[i].state;

		if (state != CLIENT_FREE && state != CLIENT_ANSWERED) {
			client_close(&server->clients[i]);
		}
	}
	update_listener(server);
	control_server_run(server);
}

void control_server_flush(struct control_server *server)
{
	uint64_t end_ns = clock_now_ns() + FLUSH_NS;
	struct pollfd fd = { .fd = server->epoll_fd, .events = POLLIN };
	uint64_t now;

	while (server->client_count > 0 && (now = clock_now_ns()) < end_ns) {
		(void)poll(&fd, 1, (int)clock_milliseconds(end_ns - now));
		control_server_run(server);
	}
}

int control_server_create(int listen_fd, struct control_server **server_out, struct error *error)
{
	struct control_server *server = calloc(1, sizeof(*server));
	int rc = 0;

	if (server == NULL) {
		return error_set(error, -ENOMEM, "out of memory for a control socket");
	}
	server->listen_fd = listen_fd;
	server->resume_ns = UINT64_MAX;
	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		server->clients[i] = (struct control_client){ .server = server, .fd = -1 };
	}
	server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	server->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (server->epoll_fd < 0 || server->timer_fd < 0 ||
		fcntl(listen_fd, F_SETFL, O_NONBLOCK) < 0) {
		rc = -errno;
	}
	if (rc == 0) {
		rc = set_interest(
			server, EPOLL_CTL_ADD, server->timer_fd, EPOLLIN, &server->timer_fd);
	}
	if (rc == 0) {
		rc = set_interest(server, EPOLL_CTL_ADD, listen_fd, EPOLLIN, &server->listen_fd);
	}
	if (rc < 0) {
		control_server_destroy(server);
		return error_set(error, rc, "cannot watch the control socket: %s", strerror(-rc));
	}
	*server_out = server;
	return 0;
}

void control_server_destroy(struct control_server *server)
{
	if (server == NULL) {
		return;
	}
	server->stopped = true;
	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		if (server->clients[i].state != CLIENT_FREE) {
			client_close(&server->clients[i]);
		}
	}
	if (server->epoll_fd >= 0) {
		close(server->epoll_fd);
	}
	if (server->timer_fd >= 0) {
		close(server->timer_fd);
	}
	free(server);
}
