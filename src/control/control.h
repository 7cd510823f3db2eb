// SPDX-License-Identifier: Apache-2.0
/*
 * The control plane: one protocol with which gmblock commands talk to a server or to the daemon of
 * an attachment, over a Unix socket. One connection is one command. docs/protocol/control.md
 * defines the format of the lines.
 *
 *   control client                         control server
 *   control_connect()   ── command ──▶     control_command.begin()
 *   control_receive()   ◀── note ─────     control_note()              any number
 *                       ◀── result ───     control_reply()             exactly one result or error
 *                       ◀── error ────     control_fail()
 *
 * A module that answers a command registers it. The server never waits for a client, has a bounded
 * number of clients, and closes those that send no command or do not read their answer.
 *
 * Threading: a server, its ring and its clients belong to one thread, which polls
 * control_server_fd(); a connection belongs to one thread. Ownership: a server owns its clients and
 * borrows its listening socket, commands and contexts; functions take ownership of JSON values
 * where stated. Errors: a negative errno with an error message. A client's mistake ends only that
 * client.
 */
#pragma once

#include <jansson.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/error.h"
#include "ring/ring.h"

enum {
	CONTROL_PROTOCOL = 1, /* version in the hello line; changes when old clients must fail */
	CONTROL_COMMAND_BYTES = 32 << 10, /* longest line from a client */
	CONTROL_ANSWER_BYTES = 256 << 20, /* longest line that a client accepts */
	/* limit on clients of one server; more wait in the listening socket's queue */
	CONTROL_CLIENTS_MAX = 32,
	CONTROL_SOCKETS_MAX = 16, /* limit on listening sockets of a server */
	CONTROL_COMMANDS_MAX = 16,
	CONTROL_FILES_MAX = 4, /* limit on descriptors sent with one note */
};

/* --- the server's side --------------------------------------------------------------------- */

struct control_server;
struct control_client;

/* The right that a command requires. Both are granted to root and to the user the server runs
 * as. */
enum control_right { CONTROL_READ, CONTROL_CHANGE };

struct control_command {
	const char *name;
	enum control_right right;
	/* After the answer, the connection stays open until the client closes it or the server's
	 * process ends, so that the client can wait for the end. */
	bool stays_open;
	/* Answers now (control_reply(), control_fail()) or later. arguments is borrowed; an object,
	 * empty if the client gave none. */
	void (*begin)(void *context, struct control_client *client, const json_t *arguments);
	/* Called when the client has canceled the command or disconnected before the answer. Must
	 * answer the command. Required for a command that answers later. */
	void (*end)(void *context, struct control_client *client);
};

/* Creates a server. listen_fd: a listening socket, which the caller closes after
 * control_server_stop(). Permission is checked by the peer's credentials. */
GMB_MUST_CHECK int control_server_create(
	int listen_fd, struct control_server **server_out, struct error *error);
/* Starts accepting clients. */
void control_server_begin(struct control_server *server);
/* Stops, sends the remaining answers to clients that read them, for at most two seconds, and closes
 * every connection. This is the only call that waits for a client. NULL is a no-op. */
void control_server_destroy(struct control_server *server);

/* Registers a command before the first control_server_run(). command and context outlive the
 * server. */
void control_server_add(
	struct control_server *server, const struct control_command *command, void *context);

/* Returns the server's ring, for ring_post() from any thread until the server is destroyed. */
struct ring *control_server_ring(const struct control_server *server);
/* Returns the descriptor to poll for input. */
int control_server_fd(const struct control_server *server);
/* Handles pending events. The work is bounded and does not wait for a client. */
void control_server_run(struct control_server *server);
/* Stops accepting connections. Not called from a handler. */
void control_server_refuse(struct control_server *server);
/* Stops accepting connections, and closes all except those with an unsent answer. Not called from a
 * handler. */
void control_server_stop(struct control_server *server);

/* Sends a report of progress; the command still needs an answer. Takes ownership of note, which is
 * dropped when memory is short or the client does not read. */
void control_note(struct control_client *client, json_t *note);
/* Sends a note with open files, of which the client gets duplicates; the caller keeps its own.
 * Takes ownership of note. -EAGAIN: the client has not read earlier output; -ENOMEM; others. */
GMB_MUST_CHECK int control_note_files(
	struct control_client *client, json_t *note, const int *fds, uint32_t count);
/* Sends the answer. Takes ownership of result; NULL means out of memory, which is sent as an error.
 * client can be used until the caller's handler returns. */
void control_reply(struct control_client *client, json_t *result);
/* Sends an error as the answer; code is a negative errno. Quotes and backslashes in the message are
 * sent as they are, so names in it must be escaped. */
void control_fail(struct control_client *client, int code, const char *sentence);

/* --- a public page ------------------------------------------------------------------------- */

/* One resource that is served over HTTP/1.1 to all clients, in one of two formats; RFC 9112 and RFC
 * 9110, 12.5.1. */
struct control_page {
	const char *path; /* "/metrics" */
	const char *type; /* Content-Type */
	const char *openmetrics_type;
	/* Returns the content, which stays valid until the next call; or a negative errno and an
	 * error message. */
	int (*get)(void *context, bool openmetrics, const char **text_out, size_t *bytes_out,
		struct error *error);
};

/* Creates a server that serves the page on several listening sockets and has no commands; otherwise
 * like control_server_create(). A connection that takes too long is closed. When all slots are
 * taken, the connection with the earliest deadline is closed for a new one. page and context
 * outlive the server. */
GMB_MUST_CHECK int control_page_serve(const struct control_page *page, void *context,
	const int *listen_fds, uint32_t count, struct control_server **server_out,
	struct error *error);

/* --- the client's side --------------------------------------------------------------------- */

struct control_connection;

enum { CONTROL_TIMEOUT_MS = 10000 };

/*
 * Connects to the socket at path, which may be longer than a socket address holds. Sends the
 * command after the server's hello, so that a server that does not answer in time never receives
 * it. Takes ownership of arguments (NULL: none). timeout_ms: for all of this. -ENOENT,
 * -ECONNREFUSED: no server listens there; -EXDEV: an unexpected process does; -ETIMEDOUT; -EPROTO:
 * the peer is not a control server; -EPROTONOSUPPORT: another version of the protocol. If
 * timeout_ms is at least CONTROL_TIMEOUT_MS, a server that sends no hello is reported with a
 * warning, see export_uri_silent().
 */
GMB_MUST_CHECK int control_connect(const char *path, const char *command, json_t *arguments,
	int timeout_ms, struct control_connection **connection_out, struct error *error);
/* Like control_connect(), but accepts open files, for a command followed by
 * control_receive_files(). After control_connect(), received files are an error (-EPROTO): closing
 * a file can block for as long as its sender likes, so files are accepted only where they are
 * needed. */
GMB_MUST_CHECK int control_connect_for_files(const char *path, const char *command,
	json_t *arguments, int timeout_ms, struct control_connection **connection_out,
	struct error *error);
/* NULL is a no-op. */
void control_disconnect(struct control_connection *connection);
/* Returns the connection's descriptor. A caller that has received a note can poll the descriptor
 * for the answer: it is readable when the answer arrives, and when the server closes the
 * connection. */
int control_connection_fd(const struct control_connection *connection);
/* Returns the process that listens at the socket, and its user when it last called listen(). Both
 * come from the kernel, not from the server's own statements. pid 0: the process is in another PID
 * namespace. */
struct ucred control_connection_peer(const struct control_connection *connection);

/* Waits for the next line. Returns 1 for a note or 0 for the result, in *value_out, freed with
 * json_decref(). A negative errno: the server's error and message, or -ETIMEDOUT, -ECONNRESET,
 * -EPROTO. timeout_ms: for the whole line, even if it arrives in pieces; -1: no limit. */
GMB_MUST_CHECK int control_receive(struct control_connection *connection, int timeout_ms,
	json_t **value_out, struct error *error);
/* Waits for the result, and drops notes (reports of progress). timeout_ms: time limit for all lines
 * together. */
GMB_MUST_CHECK int control_receive_result(struct control_connection *connection, int timeout_ms,
	json_t **result_out, struct error *error);
/* Like control_receive(), for a note with count open files, which the caller then owns. Returns 0;
 * -EPROTO: another line came. */
GMB_MUST_CHECK int control_receive_files(struct control_connection *connection, int timeout_ms,
	json_t **value_out, int *fds, uint32_t count, struct error *error);
/* Asks the server to answer now with the data it has. */
void control_finish(struct control_connection *connection);
/* Waits until there is something to receive or the connection is closed. Returns false on
 * timeout. */
GMB_MUST_CHECK bool control_wait(const struct control_connection *connection, int timeout_ms);
/* Waits until the server closes the connection. Returns false on timeout. */
GMB_MUST_CHECK bool control_wait_closed(struct control_connection *connection, int timeout_ms);

/* Connects, sends the command and receives the result, for a command that is answered immediately.
 * Notes (reports of progress) are dropped. */
GMB_MUST_CHECK int control_ask(const char *path, const char *command, json_t *arguments,
	int timeout_ms, json_t **result_out, struct error *error);

/* --- printing ------------------------------------------------------------------------------ */

/* Prints a value on standard output with these flags of jansson; real numbers have 15 digits unless
 * the flags have a precision. Characters that control a terminal or are invisible are escaped.
 * -ENOMEM, -EIO, or an errno of the output. */
GMB_MUST_CHECK int control_print_json(const json_t *value, size_t flags);

/* --- both ---------------------------------------------------------------------------------- */

/* Sets the address of the socket at path. If path is too long for an address, *folder_fd is a
 * descriptor of its folder, and the address is /proc/self/fd/NUMBER/NAME; the caller closes the
 * descriptor after bind or connect. Otherwise *folder_fd is -1. */
GMB_MUST_CHECK int control_address(const char *path, struct sockaddr_un *address, int *folder_fd);
