// SPDX-License-Identifier: Apache-2.0
#include "control/private.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rights.h"
#include "control/http.h"

#define SECOND_NS UINT64_C(1000000000)
/* Time after which a client that sends nothing is closed. */
#define SILENCE_NS (2 * SECOND_NS)
/* Time limit for a command to arrive completely, and for a client to read more of its answer. */
#define WAIT_NS (10 * SECOND_NS)
/* Time limit for sending the remaining answers when the server ends. */
#define FLUSH_NS (2 * SECOND_NS)
/* Time limit for a public client to close after its answer. */
#define LINGER_NS SECOND_NS
/* Pause after a failed accept, usually because there are no free descriptors. */
#define SHORTAGE_NS SECOND_NS

enum {
	INPUT_BYTES_FIRST = 1 << 10,
	/* above this amount of unread output, reports of progress are dropped */
	NOTES_BYTES_MAX = 64 << 10,
	RING_ENTRIES = 2 * CONTROL_CLIENTS_MAX + CONTROL_SOCKETS_MAX,
};

_Static_assert((int)INPUT_BYTES_FIRST <= (int)CONTROL_COMMAND_BYTES &&
		       (int)INPUT_BYTES_FIRST <= (int)HTTP_REQUEST_BYTES,
	"a buffer starts below its limit");
_Static_assert((CONTROL_COMMAND_BYTES & (CONTROL_COMMAND_BYTES - 1)) == 0 &&
		       (HTTP_REQUEST_BYTES & (HTTP_REQUEST_BYTES - 1)) == 0,
	"a buffer that doubles reaches its limit exactly");

static const uint32_t client_edges[CLIENT_STATE_COUNT] = {
	[CLIENT_FREE] = BIT(CLIENT_READING),
	[CLIENT_READING] = BIT(CLIENT_RUNNING) | BIT(CLIENT_ANSWERED) | BIT(CLIENT_CLOSING),
	/* RUNNING to CLOSING occurs when the server ends. */
	[CLIENT_RUNNING] = BIT(CLIENT_ANSWERED) | BIT(CLIENT_CLOSING),
	[CLIENT_ANSWERED] = BIT(CLIENT_HELD) | BIT(CLIENT_CLOSING),
	[CLIENT_HELD] = BIT(CLIENT_CLOSING),
	[CLIENT_CLOSING] = BIT(CLIENT_FREE),
};

static void control_server_accept_done(struct ring_op *op, int result);
static void control_server_timer_done(struct ring_op *op, int result);
static void input_done(struct ring_op *op, int result);
static void output_done(struct ring_op *op, int result);

/* States in which the client's input, or its end, must be read. */
static const uint32_t INPUT_STATES = BIT(CLIENT_READING) | BIT(CLIENT_RUNNING) | BIT(CLIENT_HELD);

static void client_set_state(struct control_client *client, enum client_state state)
{
	GMB_ASSERT((client_edges[client->state] & BIT(state)) != 0);
	client->state = state;
}

/* --- waiting ------------------------------------------------------------------------------- */

/* Accepts connections while a slot is free; further ones wait in the sockets' queues. */
static void watch_listeners(struct control_server *server)
{
	for (uint32_t i = 0; i < server->door_count; i++) {
		struct control_door *door = &server->doors[i];

		if (!door->accept.in_flight && !server->stopped &&
			server->resume_ns == UINT64_MAX &&
			server->client_count < CONTROL_CLIENTS_MAX) {
			ring_accept(server->ring, &door->accept, door->file,
				control_server_accept_done);
		}
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
	bool has_lines = client->output_sent < client->output_count;

	if (!client->output.in_flight && (has_lines || client->state == CLIENT_ANSWERED)) {
		ring_poll(client->server->ring, &client->output, client->fd, POLLOUT, output_done);
	}
}

/* Ensures that the timer expires at when_ns or earlier. */
static void wake_at(struct control_server *server, uint64_t when_ns)
{
	uint64_t now_ns = ring_now_ns(server->ring);

	if (!server->timer.in_flight) {
		server->timer_ns = when_ns;
		ring_timer(server->ring, &server->timer, when_ns - MIN(now_ns, when_ns),
			control_server_timer_done);
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

/* Closes the client's socket and frees its slot, unless an operation is in flight: then the
 * completion calls this again. */
static void control_server_client_free(struct control_client *client)
{
	struct control_server *server = client->server;

	if (client->input.in_flight || client->output.in_flight) {
		return;
	}
	client_set_state(client, CLIENT_FREE);
	ring_socket_close(server->ring, client->fd);
	free(client->request);
	free(client->output_bytes);
	*client = (struct control_client){ .server = server, .fd = -1 };
	server->client_count--;
	watch_listeners(server);
}

static void client_close(struct control_client *client)
{
	client_set_state(client, CLIENT_CLOSING);
	client->deadline_ns = UINT64_MAX;
	ring_cancel(client->server->ring, &client->input);
	ring_cancel(client->server->ring, &client->output);
	control_server_client_free(client);
}

static struct ring_file control_server_file_of(const struct control_client *client)
{
	return (struct ring_file){ .fd = client->fd, .slot = -1, .is_guarded = client->is_guarded };
}

/* Sends as much as possible. Does not close the connection, because the function may run inside a
 * handler that still uses the client. */
static void control_server_push(struct control_client *client)
{
	while (client->output_sent < client->output_count) {
		struct iovec iov = { .iov_base = client->output_bytes + client->output_sent,
			.iov_len = client->output_count - client->output_sent };
		const struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
		ssize_t sent = ring_sendmsg_now(
			client->server->ring, control_server_file_of(client), &message);

		if (sent == -EINTR) {
			continue;
		}
		if (sent == -EAGAIN) {
			break;
		}
		if (sent < 0) {
			/* the client has gone, so the rest of the output is dropped */
			client->output_sent = client->output_count;
			break;
		}
		client->output_sent += (size_t)sent;
		if (client->state == CLIENT_ANSWERED && !client->server->protocol->is_public) {
			set_deadline(client, WAIT_NS);
		}
	}
}

/* Sends output without waiting for the end of the ring's turn, because the caller may run outside
 * of one. */
static void push_now(struct control_client *client)
{
	control_server_push(client);
	watch_output(client);
	ring_flush(client->server->ring);
}

char *control_client_extend(struct control_client *client, size_t bytes)
{
	size_t left = client->output_count - client->output_sent;
	char *output = malloc(left + bytes);

	if (output == NULL) {
		return NULL;
	}
	if (left > 0) {
		memcpy(output, client->output_bytes + client->output_sent, left);
	}
	free(client->output_bytes);
	client->output_bytes = output;
	client->output_count = left + bytes;
	client->output_sent = 0;
	return output + left;
}

/* Adds one line. Takes ownership of value. Returns false if out of memory. */
static bool control_server_add_line(struct control_client *client, json_t *value)
{
	size_t bytes = value != NULL ? json_dumpb(value, NULL, 0, JSON_COMPACT) : 0;
	char *line = bytes > 0 ? control_client_extend(client, bytes + 1) : NULL;

	if (line != NULL) {
		(void)json_dumpb(value, line, bytes, JSON_COMPACT);
		line[bytes] = '\n';
	}
	json_decref(value);
	return line != NULL;
}

void control_note(struct control_client *client, json_t *note)
{
	GMB_ASSERT(client->state == CLIENT_RUNNING);
	if (client->output_count - client->output_sent > NOTES_BYTES_MAX) {
		json_decref(note);
	} else if (control_server_add_line(client, json_pack("{s:o}", "note", note))) {
		push_now(client);
	}
}

int control_note_files(struct control_client *client, json_t *note, const int *fds, uint32_t count)
{
	union {
		struct cmsghdr header; /* for alignment */
		char bytes[CMSG_SPACE(CONTROL_FILES_MAX * sizeof(int))];
	} control = { 0 };
	char *line = NULL;
	struct iovec iov;
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control };
	ssize_t sent;

	GMB_ASSERT(client->state == CLIENT_RUNNING && count <= CONTROL_FILES_MAX);
	if (client->output_sent < client->output_count) {
		json_decref(note);
		return -EAGAIN;
	}
	note = json_pack("{s:o}", "note", note);
	line = note != NULL ? json_dumps(note, JSON_COMPACT) : NULL;
	json_decref(note);
	if (line == NULL) {
		return -ENOMEM;
	}
	iov = (struct iovec){ .iov_base = line, .iov_len = strlen(line) + 1 };
	line[iov.iov_len - 1] = '\n'; /* replaces the terminator */
	message.msg_controllen = CMSG_SPACE(count * sizeof(int));
	control.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
		.cmsg_type = SCM_RIGHTS,
		.cmsg_len = CMSG_LEN(count * sizeof(int)) };
	memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
	sent = ring_sendmsg_now(client->server->ring, control_server_file_of(client), &message);
	free(line);
	return sent == (ssize_t)iov.iov_len ? 0 : sent < 0 ? (int)sent : -EAGAIN;
}

void control_client_answered(struct control_client *client)
{
	client_set_state(client, CLIENT_ANSWERED);
	set_deadline(client, WAIT_NS);
	push_now(client);
}

/* Sends an answer. If there is no memory for it, the client gets none. */
static void control_server_answer(struct control_client *client, json_t *line)
{
	(void)control_server_add_line(client, line);
	control_client_answered(client);
}

void control_fail(struct control_client *client, int code, const char *sentence)
{
	char shown[4 * ERROR_TEXT_BYTES];
	const char *name = strerrorname_np(-code);

	log_debug("control: client %llu: refused: %s", (unsigned long long)client->id, sentence);
	control_server_answer(
		client, json_pack("{s:{s:s, s:s}}", "error", "code", name != NULL ? name : "EIO",
				"text", log_escape_sentence(shown, sizeof(shown), sentence)));
}

void control_reply(struct control_client *client, json_t *result)
{
	if (result == NULL) {
		control_fail(client, -ENOMEM, "out of memory for the response");
	} else {
		control_server_answer(client, json_pack("{s:o}", "result", result));
	}
}

/* --- input --------------------------------------------------------------------------------- */

static bool may(const struct control_client *client)
{
	return client->peer.uid == 0 || client->peer.uid == geteuid();
}

static const struct registration *control_server_find_command(
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
	const struct registration *found = control_server_find_command(client->server, name);
	json_t *arguments = json_object_get(line, "arguments");
	json_t *none = NULL;

	if (name == NULL) {
		control_fail(client, -EINVAL,
			"a command must be a JSON object such as {\"command\": \"stats\"}");
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
		control_fail(
			client, -EPERM, "only root and the user of this process may send commands");
		return;
	}
	if (arguments == NULL) {
		arguments = none = json_object();
	}
	if (!json_is_object(arguments)) {
		control_fail(client, -EINVAL, "the arguments must be a JSON object");
	} else {
		client_set_state(client, CLIENT_RUNNING);
		client->running = found;
		client->deadline_ns = UINT64_MAX;
		found->command->begin(found->context, client, arguments);
	}
	json_decref(none);
}

static size_t line_end(const char *bytes, size_t count)
{
	const char *end = memchr(bytes, '\n', count);

	return end != NULL ? (size_t)(end + 1 - bytes) : 0;
}

static void take_line(struct control_client *client, const char *text, size_t bytes)
{
	json_error_t where;
	json_t *line = json_loadb(text, bytes - 1, JSON_REJECT_DUPLICATES, &where);

	run_command(client, line);
	json_decref(line);
}

static void refuse_long_line(struct control_client *client)
{
	control_fail(client, -EMSGSIZE, "the command is too long");
}

static void greet(struct control_client *client)
{
	(void)control_server_add_line(client,
		json_pack("{s:s, s:i, s:s, s:i}", "service", "gmblock control", "protocol",
			CONTROL_PROTOCOL, "version", GMBLOCK_VERSION, "pid", (int)getpid()));
}

static const struct control_protocol lines_protocol = {
	.request_bytes_max = CONTROL_COMMAND_BYTES,
	.greet = greet,
	.request_end = line_end,
	.take = take_line,
	.too_long = refuse_long_line,
};

static bool control_server_has_room(struct control_client *client)
{
	size_t room = MAX(client->request_room * 2, (size_t)INPUT_BYTES_FIRST);
	char *input;

	if (client->request_bytes < client->request_room) {
		return true;
	}
	input = realloc(client->request, room);
	if (input == NULL) {
		return false;
	}
	client->request = input;
	client->request_room = room;
	return true;
}

static ssize_t control_server_receive(
	const struct control_client *client, char *buffer, size_t bytes)
{
	struct iovec iov = { .iov_base = buffer, .iov_len = bytes };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	return ring_recvmsg_now(client->server->ring, control_server_file_of(client), &message);
}

static void read_request(struct control_client *client)
{
	const struct control_protocol *protocol = client->server->protocol;
	ssize_t got;
	size_t bytes;

	if (client->request_bytes == protocol->request_bytes_max) {
		protocol->too_long(client);
		return;
	}
	if (!control_server_has_room(client)) {
		client_close(client);
		return;
	}
	got = control_server_receive(client, client->request + client->request_bytes,
		client->request_room - client->request_bytes);
	if (got == -EAGAIN || got == -EINTR) {
		return;
	}
	if (got <= 0) {
		client_close(client);
		return;
	}
	if (client->request_bytes == 0) {
		set_deadline(client, WAIT_NS); /* limit for the whole request */
	}
	client->request_bytes += (size_t)got;
	bytes = protocol->request_end(client->request, client->request_bytes);
	if (bytes > 0) {
		char *request = client->request;

		client->request = NULL;
		protocol->take(client, request, bytes);
		free(request);
	}
}

/* Returns whether input has ended. Input after the request is ignored. */
static bool control_server_has_ended(const struct control_client *client)
{
	char ignored[4096];
	ssize_t got = control_server_receive(client, ignored, sizeof(ignored));

	return got <= 0 && got != -EAGAIN && got != -EINTR;
}

static void control_server_end_command(struct control_client *client)
{
	GMB_ASSERT(client->running->command->end != NULL);
	client->running->command->end(client->running->context, client);
	GMB_ASSERT(client->state == CLIENT_ANSWERED);
}

static void control_server_finish_answer(struct control_client *client)
{
	struct control_server *server = client->server;
	bool stays_open = client->running != NULL && client->running->command->stays_open;

	if (server->stopped || (!stays_open && !server->protocol->is_public)) {
		client_close(client);
		return;
	}
	client_set_state(client, CLIENT_HELD);
	client->deadline_ns = UINT64_MAX;
	if (server->protocol->is_public) {
		/* The shutdown marks the end of the answer; see control_protocol.is_public. */
		ring_socket_shutdown_send(server->ring, control_server_file_of(client));
		set_deadline(client, LINGER_NS);
	}
	watch_input(client);
}

static void input_done(struct ring_op *op, int result)
{
	struct control_client *client = container_of(op, struct control_client, input);

	if (client->state == CLIENT_CLOSING) {
		control_server_client_free(client);
	} else if (client->state == CLIENT_READING) {
		read_request(client);
	} else if (client->state == CLIENT_RUNNING && control_server_has_ended(client)) {
		control_server_end_command(client);
	} else if (client->state == CLIENT_HELD && control_server_has_ended(client)) {
		client_close(client);
	}
	watch_input(client);
}

static void output_done(struct ring_op *op, int result)
{
	struct control_client *client = container_of(op, struct control_client, output);

	if (client->state == CLIENT_CLOSING) {
		control_server_client_free(client);
		return;
	}
	control_server_push(client);
	if (client->state == CLIENT_ANSWERED && client->output_sent == client->output_count) {
		control_server_finish_answer(client);
	} else {
		watch_output(client);
	}
}

/* --- all clients --------------------------------------------------------------------------- */

/* If all slots are taken, closes the connection with the earliest deadline, except for the newest
 * one. */
static void control_server_make_room(
	struct control_server *server, const struct control_client *newest)
{
	struct control_client *first = NULL;

	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		struct control_client *client = &server->clients[i];

		if (client->state == CLIENT_CLOSING) {
			return;
		}
		if (client != newest &&
			(first == NULL || client->deadline_ns < first->deadline_ns)) {
			first = client;
		}
	}
	client_close(first);
}

static void client_open(struct control_server *server, int fd)
{
	struct control_client *client = server->clients;
	struct ucred peer = { 0 };

	/* If two sockets accepted at the same time, only the first connection gets the last
	 * slot. */
	if (server->client_count == CONTROL_CLIENTS_MAX ||
		(!server->protocol->is_public && !ring_socket_credentials(fd, &peer))) {
		ring_socket_close(server->ring, fd);
		return;
	}
	while (client->state != CLIENT_FREE) {
		client++;
		GMB_ASSERT(client < server->clients + CONTROL_CLIENTS_MAX);
	}
	client_set_state(client, CLIENT_READING);
	client->fd = fd;
	client->is_guarded = rights_guard(fd);
	client->peer = peer;
	client->id = ++server->next_id;
	server->client_count++;
	set_deadline(client, SILENCE_NS);
	if (server->protocol->greet != NULL) {
		server->protocol->greet(client);
		control_server_push(client);
	}
	watch_output(client);
	watch_input(client);
	if (server->protocol->is_public && server->client_count == CONTROL_CLIENTS_MAX) {
		control_server_make_room(server, client);
	}
}

static void control_server_accept_done(struct ring_op *op, int result)
{
	struct control_server *server = container_of(op, struct control_door, accept)->server;

	if (result >= 0 && server->stopped) {
		ring_socket_close(server->ring, result);
	} else if (result >= 0) {
		client_open(server, result);
	} else if (!server->stopped) {
		server->resume_ns = ring_now_ns(server->ring) + SHORTAGE_NS;
		wake_at(server, server->resume_ns);
	}
	watch_listeners(server);
}

static void control_server_timer_done(struct ring_op *op, int result)
{
	struct control_server *server = container_of(op, struct control_server, timer);
	uint64_t now_ns = ring_now_ns(server->ring);
	uint64_t next_ns;

	if (server->resume_ns <= now_ns) {
		server->resume_ns = UINT64_MAX;
		watch_listeners(server);
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

/* Closes the clients except those in one of the states of the bit set `kept`, and waits until their
 * operations have been canceled. */
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
		closing = false;
		for (uint32_t i = 0; i < server->door_count; i++) {
			closing = closing || server->doors[i].accept.in_flight;
		}
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

void control_server_refuse(struct control_server *server)
{
	server->stopped = true;
	server->resume_ns = UINT64_MAX;
	for (uint32_t i = 0; i < server->door_count; i++) {
		ring_cancel(server->ring, &server->doors[i].accept);
	}
	for (uint32_t i = 0; i < server->door_count; i++) {
		while (server->doors[i].accept.in_flight) {
			(void)ring_turn(server->ring, true);
		}
	}
}

void control_server_stop(struct control_server *server)
{
	control_server_refuse(server);
	close_clients(server, BIT(CLIENT_ANSWERED));
}

int control_server_open(const struct control_protocol *protocol, const int *listen_fds,
	uint32_t count, struct control_server **server_out, struct error *error)
{
	const struct ring_options options = {
		.entries = RING_ENTRIES, .files_max = 1, .buffers_max = 1, .is_restricted = true
	};
	struct control_server *server = calloc(1, sizeof(*server));
	int rc;

	if (server == NULL) {
		return error_oom_for(error, "a control socket");
	}
	rc = ring_create(&options, &server->ring, error);
	rc = rc ?: ring_check_restricted(server->ring, error);
	if (rc == 0 && (rc = ring_poll_fd(server->ring)) < 0) {
		error_set(error, rc, "cannot watch the control socket: %s", strerror(-rc));
	}
	if (rc < 0) {
		ring_destroy(server->ring);
		free(server);
		return rc;
	}
	GMB_ASSERT(count <= CONTROL_SOCKETS_MAX);
	server->protocol = protocol;
	server->door_count = count;
	for (uint32_t i = 0; i < count; i++) {
		server->doors[i].server = server;
		server->doors[i].file = (struct ring_file){ .fd = listen_fds[i], .slot = -1 };
		rights_refuse(listen_fds[i]);
	}
	server->resume_ns = UINT64_MAX;
	for (int i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		server->clients[i] = (struct control_client){ .server = server, .fd = -1 };
	}
	server->stopped = true;
	*server_out = server;
	return 0;
}

void control_server_begin(struct control_server *server)
{
	server->stopped = false;
	watch_listeners(server);
	ring_flush(server->ring);
}

int control_server_create(int listen_fd, struct control_server **server_out, struct error *error)
{
	return control_server_open(&lines_protocol, &listen_fd, 1, server_out, error);
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
