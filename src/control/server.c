// SPDX-License-Identifier: Apache-2.0
#include "control/control.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

#define SECOND_NS UINT64_C(1000000000)
/* How long a client may send nothing before it is closed. */
#define SILENCE_NS (2 * SECOND_NS)
/* How long it may read nothing of its answer, or leave its command unfinished. */
#define WAIT_NS (10 * SECOND_NS)
/* How long the end of the server waits for that. */
#define FLUSH_NS (2 * SECOND_NS)
/* How long no connection is accepted after that failed, mostly for want of descriptors. */
#define SHORTAGE_NS SECOND_NS

enum {
	INPUT_BYTES_FIRST = 1 << 10,
	NOTES_BYTES_MAX = 64 << 10, /* that a client has not read, before notes are dropped */
	RING_ENTRIES = 2 * CONTROL_CLIENTS_MAX,
};

_Static_assert(
	(int)INPUT_BYTES_FIRST <= (int)CONTROL_COMMAND_BYTES, "a buffer grows up to the limit");

enum client_state {
	CLIENT_FREE,
	CLIENT_READING,	 /* waits for its command */
	CLIENT_RUNNING,	 /* waits for the command's answer */
	CLIENT_ANSWERED, /* waits for the client to read the answer */
	CLIENT_HELD,	 /* has read it; waits for the client to close */
	CLIENT_CLOSING,	 /* waits for the ring to release it */
	CLIENT_STATE_COUNT
};

static const uint32_t client_edges[CLIENT_STATE_COUNT] = {
	[CLIENT_FREE] = BIT(CLIENT_READING),
	[CLIENT_READING] = BIT(CLIENT_RUNNING) | BIT(CLIENT_ANSWERED) | BIT(CLIENT_CLOSING),
	/* Closing: the server ends. */
	[CLIENT_RUNNING] = BIT(CLIENT_ANSWERED) | BIT(CLIENT_CLOSING),
	[CLIENT_ANSWERED] = BIT(CLIENT_HELD) | BIT(CLIENT_CLOSING),
	[CLIENT_HELD] = BIT(CLIENT_CLOSING),
	[CLIENT_CLOSING] = BIT(CLIENT_FREE),
};

struct registration {
	const struct control_command *command;
	void *context;
};

struct control_client {
	struct control_server *server;
	enum client_state state;
	int fd;
	uint64_t id;
	struct ucred peer;
	struct ring_op input;  /* polls for it */
	struct ring_op output; /* polls for room */
	uint64_t deadline_ns;  /* UINT64_MAX: none */
	const struct registration *running;
	char *command; /* while reading */
	size_t command_bytes;
	size_t command_room;
	char *lines; /* not sent yet */
	size_t lines_bytes;
	size_t lines_sent;
};

struct control_server {
	struct ring *ring;
	struct ring_file listener;
	struct ring_op accept;
	struct ring_op timer;
	bool stopped;
	uint64_t timer_ns;  /* when it ends, in flight */
	uint64_t resume_ns; /* accept nothing before; UINT64_MAX: no such time */
	uint64_t next_id;
	uint32_t client_count;
	uint32_t command_count;
	struct registration commands[CONTROL_COMMANDS_MAX];
	struct control_client clients[CONTROL_CLIENTS_MAX];
};

static void accept_done(struct ring_op *op, int result);
static void timer_done(struct ring_op *op, int result);
static void input_done(struct ring_op *op, int result);
static void output_done(struct ring_op *op, int result);

/* In which input matters, at least its end. */
static const uint32_t INPUT_STATES = BIT(CLIENT_READING) | BIT(CLIENT_RUNNING) | BIT(CLIENT_HELD);

static void client_set_state(struct control_client *client, enum client_state state)
{
	GMB_ASSERT((client_edges[client->state] & BIT(state)) != 0);
	client->state = state;
}

/* --- what is waited for -------------------------------------------------------------------- */

/* With all places taken, new connections wait in the socket's queue. */
static void watch_listener(struct control_server *server)
{
	if (!server->accept.in_flight && !server->stopped && server->resume_ns == UINT64_MAX &&
		server->client_count < CONTROL_CLIENTS_MAX) {
		ring_accept(server->ring, &server->accept, server->listener, accept_done);
	}
}

static void watch_input(struct control_client *client)
{
	if (!client->input.in_flight && (BIT(client->state) & INPUT_STATES) != 0) {
		ring_poll(client->server->ring, &client->input, client->fd, POLLIN, input_done);
	}
}

static void watch_output(struct control_client *client)
{
	bool has_lines = client->lines_sent < client->lines_bytes;

	if (!client->output.in_flight && (has_lines || client->state == CLIENT_ANSWERED)) {
		ring_poll(client->server->ring, &client->output, client->fd, POLLOUT, output_done);
	}
}

/* The timer may end too early, never too late. */
static void wake_at(struct control_server *server, uint64_t when_ns)
{
	uint64_t now_ns = ring_now_ns(server->ring);

	if (!server->timer.in_flight) {
		server->timer_ns = when_ns;
		ring_timer(
			server->ring, &server->timer, when_ns - MIN(now_ns, when_ns), timer_done);
	} else if (when_ns < server->timer_ns) {
		server->timer_ns = when_ns;
		ring_cancel(server->ring, &server->timer);
	}
}

static void set_deadline(struct control_client *client, uint64_t delay_ns)
{
	client->deadline_ns = ring_now_ns(client->server->ring) + delay_ns;
	wake_at(client->server, client->deadline_ns);
}

/* --- output -------------------------------------------------------------------------------- */

/* Its place is free once nothing is in flight. */
static void client_free(struct control_client *client)
{
	struct control_server *server = client->server;

	if (client->input.in_flight || client->output.in_flight) {
		return;
	}
	client_set_state(client, CLIENT_FREE);
	ring_socket_close(server->ring, client->fd);
	free(client->command);
	free(client->lines);
	*client = (struct control_client){ .server = server, .fd = -1 };
	server->client_count--;
	watch_listener(server);
}

static void client_close(struct control_client *client)
{
	client_set_state(client, CLIENT_CLOSING);
	client->deadline_ns = UINT64_MAX;
	ring_cancel(client->server->ring, &client->input);
	ring_cancel(client->server->ring, &client->output);
	client_free(client);
}

/* Sends what can be sent. Closes nothing: the caller may be below a handler. */
static void push(struct control_client *client)
{
	while (client->lines_sent < client->lines_bytes) {
		struct iovec iov = { .iov_base = client->lines + client->lines_sent,
			.iov_len = client->lines_bytes - client->lines_sent };
		const struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
		ssize_t sent = ring_sendmsg_now(client->server->ring,
			(struct ring_file){ .fd = client->fd, .slot = -1 }, &message);

		if (sent == -EINTR) {
			continue;
		}
		if (sent == -EAGAIN) {
			break;
		}
		if (sent < 0) {
			client->lines_sent = client->lines_bytes; /* it has gone */
			break;
		}
		client->lines_sent += (size_t)sent;
		if (client->state == CLIENT_ANSWERED) {
			set_deadline(client, WAIT_NS);
		}
	}
}

/* The caller may be outside a turn. */
static void push_now(struct control_client *client)
{
	push(client);
	watch_output(client);
	ring_flush(client->server->ring);
}

/* Adds one line; takes value. False: out of memory. */
static bool add_line(struct control_client *client, json_t *value)
{
	size_t bytes = value != NULL ? json_dumpb(value, NULL, 0, JSON_COMPACT) : 0;
	size_t left = client->lines_bytes - client->lines_sent;
	char *output = bytes > 0 ? malloc(left + bytes + 1) : NULL;

	if (output == NULL) {
		json_decref(value);
		return false;
	}
	if (left > 0) {
		memcpy(output, client->lines + client->lines_sent, left);
	}
	(void)json_dumpb(value, output + left, bytes, JSON_COMPACT);
	output[left + bytes] = '\n';
	free(client->lines);
	client->lines = output;
	client->lines_bytes = left + bytes + 1;
	client->lines_sent = 0;
	json_decref(value);
	return true;
}

void control_note(struct control_client *client, json_t *note)
{
	GMB_ASSERT(client->state == CLIENT_RUNNING);
	if (client->lines_bytes - client->lines_sent > NOTES_BYTES_MAX) {
		json_decref(note);
	} else if (add_line(client, json_pack("{s:o}", "note", note))) {
		push_now(client);
	}
}

/* Closed in a later turn, so that no client goes away below its caller. A client for whose answer
 * there is no memory gets none. */
static void answer(struct control_client *client, json_t *line)
{
	(void)add_line(client, line);
	client_set_state(client, CLIENT_ANSWERED);
	set_deadline(client, WAIT_NS);
	push_now(client);
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
	json_t *line = json_loadb(client->command, bytes, JSON_REJECT_DUPLICATES, &where);

	free(client->command);
	client->command = NULL;
	run_command(client, line);
	json_decref(line);
}

static bool has_room(struct control_client *client)
{
	size_t room = MAX(client->command_room * 2, (size_t)INPUT_BYTES_FIRST);
	char *input;

	if (client->command_bytes < client->command_room) {
		return true;
	}
	input = realloc(client->command, room);
	if (input == NULL) {
		return false;
	}
	client->command = input;
	client->command_room = room;
	return true;
}

static ssize_t receive(const struct control_client *client, char *buffer, size_t bytes)
{
	struct iovec iov = { .iov_base = buffer, .iov_len = bytes };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	return ring_recvmsg_now(
		client->server->ring, (struct ring_file){ .fd = client->fd, .slot = -1 }, &message);
}

static void read_command(struct control_client *client)
{
	ssize_t got;
	char *end;

	if (client->command_bytes == CONTROL_COMMAND_BYTES) {
		control_fail(client, -EMSGSIZE, "the command is too long");
		return;
	}
	if (!has_room(client)) {
		client_close(client);
		return;
	}
	got = receive(client, client->command + client->command_bytes,
		client->command_room - client->command_bytes);
	if (got == -EAGAIN || got == -EINTR) {
		return;
	}
	if (got <= 0) {
		client_close(client);
		return;
	}
	if (client->command_bytes == 0) {
		set_deadline(client, WAIT_NS); /* for all of it */
	}
	end = memchr(client->command + client->command_bytes, '\n', (size_t)got);
	client->command_bytes += (size_t)got;
	if (end != NULL) {
		take_line(client, (size_t)(end - client->command));
	}
}

/* Input after the command means nothing; only its end does. */
static bool has_ended(const struct control_client *client)
{
	char ignored[4096];
	ssize_t got = receive(client, ignored, sizeof(ignored));

	return got <= 0 && got != -EAGAIN && got != -EINTR;
}

static void end_command(struct control_client *client)
{
	GMB_ASSERT(client->running->command->end != NULL);
	client->running->command->end(client->running->context, client);
	GMB_ASSERT(client->state == CLIENT_ANSWERED);
}

static void finish_answer(struct control_client *client)
{
	if (client->running == NULL || !client->running->command->stays_open ||
		client->server->stopped) {
		client_close(client);
		return;
	}
	client_set_state(client, CLIENT_HELD);
	client->deadline_ns = UINT64_MAX;
	watch_input(client);
}

static void input_done(struct ring_op *op, int result)
{
	struct control_client *client = container_of(op, struct control_client, input);

	GMB_UNUSED(result);
	if (client->state == CLIENT_CLOSING) {
		client_free(client);
	} else if (client->state == CLIENT_READING) {
		read_command(client);
	} else if (client->state == CLIENT_RUNNING && has_ended(client)) {
		end_command(client);
	} else if (client->state == CLIENT_HELD && has_ended(client)) {
		client_close(client);
	}
	watch_input(client);
}

static void output_done(struct ring_op *op, int result)
{
	struct control_client *client = container_of(op, struct control_client, output);

	GMB_UNUSED(result);
	if (client->state == CLIENT_CLOSING) {
		client_free(client);
		return;
	}
	push(client);
	if (client->state == CLIENT_ANSWERED && client->lines_sent == client->lines_bytes) {
		finish_answer(client);
	} else {
		watch_output(client);
	}
}

/* --- all clients --------------------------------------------------------------------------- */

static void client_open(struct control_server *server, int fd)
{
	struct control_client *client = server->clients;
	struct ucred peer;

	if (!ring_socket_credentials(fd, &peer)) {
		ring_socket_close(server->ring, fd);
		return;
	}
	while (client->state != CLIENT_FREE) {
		client++;
		GMB_ASSERT(client < server->clients + CONTROL_CLIENTS_MAX);
	}
	client_set_state(client, CLIENT_READING);
	client->fd = fd;
	client->peer = peer;
	client->id = ++server->next_id;
	server->client_count++;
	set_deadline(client, SILENCE_NS);
	if (add_line(client,
		    json_pack("{s:s, s:i, s:s, s:i}", "service", "gmblock control", "protocol",
			    CONTROL_PROTOCOL, "version", GMBLOCK_VERSION, "pid", (int)getpid()))) {
		push(client);
	}
	watch_output(client);
	watch_input(client);
}

static void accept_done(struct ring_op *op, int result)
{
	struct control_server *server = container_of(op, struct control_server, accept);

	if (result >= 0 && server->stopped) {
		ring_socket_close(server->ring, result);
	} else if (result >= 0) {
		client_open(server, result);
	} else if (!server->stopped) {
		server->resume_ns = ring_now_ns(server->ring) + SHORTAGE_NS;
		wake_at(server, server->resume_ns);
	}
	watch_listener(server);
}

static void timer_done(struct ring_op *op, int result)
{
	struct control_server *server = container_of(op, struct control_server, timer);
	uint64_t now_ns = ring_now_ns(server->ring);
	uint64_t next_ns;

	GMB_UNUSED(result);
	if (server->resume_ns <= now_ns) {
		server->resume_ns = UINT64_MAX;
		watch_listener(server);
	}
	next_ns = server->resume_ns;
	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		struct control_client *client = &server->clients[i];

		if (client->state == CLIENT_FREE) {
			continue;
		}
		if (client->deadline_ns <= now_ns) {
			client_close(client);
		} else {
			next_ns = MIN(next_ns, client->deadline_ns);
		}
	}
	if (next_ns != UINT64_MAX) {
		wake_at(server, next_ns);
	}
}

/* Closes the clients that are in none of the states kept, and waits for what that cancels. */
static void close_clients(struct control_server *server, uint32_t kept)
{
	bool closing = true;

	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		struct control_client *client = &server->clients[i];

		if ((BIT(client->state) & (kept | BIT(CLIENT_FREE) | BIT(CLIENT_CLOSING))) == 0) {
			client_close(client);
		}
	}
	while (closing) {
		closing = server->accept.in_flight;
		for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
			closing = closing || server->clients[i].state == CLIENT_CLOSING;
		}
		if (closing) {
			(void)ring_turn(server->ring, true);
		}
	}
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

struct ring *control_server_ring(const struct control_server *server)
{
	return server->ring;
}

int control_server_fd(const struct control_server *server)
{
	return ring_poll_fd(server->ring);
}

void control_server_run(struct control_server *server)
{
	(void)ring_turn(server->ring, false);
	ring_flush(server->ring);
}

void control_server_stop(struct control_server *server)
{
	server->stopped = true;
	server->resume_ns = UINT64_MAX;
	ring_cancel(server->ring, &server->accept);
	close_clients(server, BIT(CLIENT_ANSWERED));
}

int control_server_create(int listen_fd, struct control_server **server_out, struct error *error)
{
	const struct ring_options options = {
		.entries = RING_ENTRIES, .files_max = 1, .buffers_max = 1
	};
	struct control_server *server = calloc(1, sizeof(*server));
	int rc;

	if (server == NULL) {
		return error_set(error, -ENOMEM, "out of memory for a control socket");
	}
	rc = ring_create(&options, &server->ring, error);
	if (rc == 0 && (rc = ring_poll_fd(server->ring)) < 0) {
		error_set(error, rc, "cannot watch the control socket: %s", strerror(-rc));
	}
	if (rc < 0) {
		ring_destroy(server->ring);
		free(server);
		return rc;
	}
	server->listener = (struct ring_file){ .fd = listen_fd, .slot = -1 };
	server->resume_ns = UINT64_MAX;
	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		server->clients[i] = (struct control_client){ .server = server, .fd = -1 };
	}
	watch_listener(server);
	ring_flush(server->ring);
	*server_out = server;
	return 0;
}

void control_server_destroy(struct control_server *server)
{
	uint64_t now_ns;
	uint64_t end_ns;

	if (server == NULL) {
		return;
	}
	control_server_stop(server);
	now_ns = ring_now_ns(server->ring);
	end_ns = now_ns + FLUSH_NS;
	while (server->client_count > 0 && now_ns < end_ns) {
		(void)ring_turn_limited(server->ring, end_ns - now_ns);
		now_ns = ring_now_ns(server->ring);
	}
	close_clients(server, 0);
	ring_cancel(server->ring, &server->timer);
	while (server->timer.in_flight) {
		(void)ring_turn(server->ring, true);
	}
	ring_destroy(server->ring);
	free(server);
}
