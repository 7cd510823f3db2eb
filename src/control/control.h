// SPDX-License-Identifier: Apache-2.0
/*
 * The control plane: one protocol by which commands of gmblock talk to a server or to the daemon of
 * an attachment, over a Unix socket. One connection is one command. docs/protocol/control.md has
 * the format of the lines.
 *
 *   control client                         control server
 *   control_connect()   ── command ──▶     control_command.begin()
 *   control_receive()   ◀── note ─────     control_note()              any number
 *                       ◀── result ───     control_reply()             exactly one of these
 *                       ◀── error ────     control_fail()
 *
 * A module that answers a command registers it. The server never waits for a client, holds a
 * bounded number of them, and closes those that send no command, or do not read their answer.
 *
 * Threading: a server, its ring and its clients belong to one thread, which polls
 * control_server_fd(); a connection belongs to one thread. Ownership: a server owns its clients and
 * borrows its listening socket, commands and contexts; JSON values are taken where stated. Errors:
 * a negative errno with a sentence; what a client does wrong ends that client only.
 */
#pragma once

#include <jansson.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/error.h"
#include "ring/ring.h"

enum {
	CONTROL_PROTOCOL = 1, /* of the hello line; changes when old clients must fail */
	CONTROL_COMMAND_BYTES = 32 << 10, /* longest line of a client */
	CONTROL_ANSWER_BYTES = 256 << 20, /* longest line that a client accepts */
	CONTROL_CLIENTS_MAX = 32, /* of a server; more wait in the listening socket's queue */
	CONTROL_SOCKETS_MAX = 16, /* listening sockets of a page's server */
	CONTROL_COMMANDS_MAX = 16,
	CONTROL_FILES_MAX = 4, /* that come with a note */
};

/* --- the server's side --------------------------------------------------------------------- */

struct control_server;
struct control_client;

/* What a command needs. Both are granted to root and to the user the server runs as. */
enum control_right { CONTROL_READ, CONTROL_CHANGE };

struct control_command {
	const char *name;
	enum control_right right;
	/* After the answer the connection stays open until the client closes it or the server's
	 * process ends, so that the client can wait for that. */
	bool stays_open;
	/* Answers now (control_reply(), control_fail()) or later. arguments is borrowed; an object,
	 * empty if the client gave none. */
	void (*begin)(void *context, struct control_client *client, const json_t *arguments);
	/* The client wants no more, or has gone, before it was answered: must answer. Required of a
	 * command that answers later. */
	void (*end)(void *context, struct control_client *client);
};

/* listen_fd: a listening socket, to be closed after control_server_stop(). Permissions are those of
 * the peer's credentials. */
GMB_MUST_CHECK int control_server_create(
	int listen_fd, struct control_server **server_out, struct error *error);
/* Accepts clients from now on. */
void control_server_begin(struct control_server *server);
/* Stops, sends the answers that are left to clients that read them, for at most two seconds, and
 * closes every connection. The only call that waits for a client. NULL is a no-op. */
void control_server_destroy(struct control_server *server);

/* Before the first control_server_run(). command and context outlive the server. */
void control_server_add(
	struct control_server *server, const struct control_command *command, void *context);

/* For ring_post() from any thread, until it is destroyed. */
struct ring *control_server_ring(const struct control_server *server);
/* To poll for input. */
int control_server_fd(const struct control_server *server);
/* Handles what has happened. Bounded, and waits for nobody. */
void control_server_run(struct control_server *server);
/* Accepts no more connections. Not below a handler. */
void control_server_refuse(struct control_server *server);
/* Accepts no more connections, and closes all but those with an answer still to be sent. Not below
 * a handler. */
void control_server_stop(struct control_server *server);

/* Sends what happened meanwhile; the command is not answered by it. Takes note. Dropped when memory
 * is short or the client reads nothing. */
void control_note(struct control_client *client, json_t *note);
/* The same with open files, which stay the caller's: the client gets its own. -EAGAIN: it has not
 * read what came before; another errno: it has gone. */
GMB_MUST_CHECK int control_note_files(
	struct control_client *client, json_t *note, const int *fds, uint32_t count);
/* The answer. Takes result; NULL: out of memory, which becomes an error. client is invalid after
 * the caller has returned. */
void control_reply(struct control_client *client, json_t *result);
/* The answer is an error; code is a negative errno. Names inside the sentence are escaped. */
void control_fail(struct control_client *client, int code, const char *sentence);

/* --- a page for strangers ------------------------------------------------------------------ */

/* One resource that is served over HTTP/1.1 to whoever connects, in one of two formats; RFC 9112
 * and RFC 9110, 12.5.1. */
struct control_page {
	const char *path; /* "/metrics" */
	const char *type; /* Content-Type */
	const char *openmetrics_type;
	/* Lends the content, until the next call; or a negative errno and a sentence. */
	int (*get)(void *context, bool openmetrics, const char **text_out, size_t *bytes_out,
		struct error *error);
};

/* A server that answers for the page on several listening sockets, and has no commands; otherwise
 * as above. Connections that take too many places, or too long, make room for newer ones. page and
 * context outlive it. */
GMB_MUST_CHECK int control_page_serve(const struct control_page *page, void *context,
	const int *listen_fds, uint32_t count, struct control_server **server_out,
	struct error *error);

/* --- the client's side --------------------------------------------------------------------- */

struct control_connection;

enum { CONTROL_TIMEOUT_MS = 10000 };

/*
 * Connects to the socket at path, which may be longer than an address holds, and sends a command
 * once the server has said hello: one that does not answer in time does not get the command later.
 * Takes arguments (NULL: none). timeout_ms: for connecting and for the hello.
 * -ENOENT, -ECONNREFUSED: no server listens there; -ETIMEDOUT; -EPROTO: something else answers;
 * -EPROTONOSUPPORT: another version of the protocol.
 */
GMB_MUST_CHECK int control_connect(const char *path, const char *command, json_t *arguments,
	int timeout_ms, struct control_connection **connection_out, struct error *error);
/* The same for a command that control_receive_files() follows. With others open files are an error
 * (-EPROTO): whoever answers could make this process wait for their end. */
GMB_MUST_CHECK int control_connect_for_files(const char *path, const char *command,
	json_t *arguments, int timeout_ms, struct control_connection **connection_out,
	struct error *error);
/* NULL is a no-op. */
void control_disconnect(struct control_connection *connection);
/* To poll for the answer after a note: readable when it comes, and when the server closes. */
int control_connection_fd(const struct control_connection *connection);
/* The process that listens there, and its user then, as the kernel says: the process that has
 * called listen() last. What the server says of itself is not believed. pid 0: it is in another PID
 * namespace. */
struct ucred control_connection_peer(const struct control_connection *connection);

/* Waits for the next line: 1 a note, 0 the result, in *value_out, to be freed with json_decref(); a
 * negative errno: the server's error and sentence, or -ETIMEDOUT, -ECONNRESET, -EPROTO. timeout_ms:
 * for the whole line, however slowly it comes; -1 never ends. */
GMB_MUST_CHECK int control_receive(struct control_connection *connection, int timeout_ms,
	json_t **value_out, struct error *error);
/* Waits for the result, and drops the notes. timeout_ms: for all of them. */
GMB_MUST_CHECK int control_receive_result(struct control_connection *connection, int timeout_ms,
	json_t **result_out, struct error *error);
/* As control_receive(), for a note with count open files, which become the caller's; 0 with an
 * error. */
GMB_MUST_CHECK int control_receive_files(struct control_connection *connection, int timeout_ms,
	json_t **value_out, int *fds, uint32_t count, struct error *error);
/* Asks the server to answer with what it has. */
void control_finish(struct control_connection *connection);
/* Waits until there is something to receive, or the connection is closed. False: the time is over.
 */
GMB_MUST_CHECK bool control_wait(const struct control_connection *connection, int timeout_ms);
/* Waits until the server closes the connection. False: the time is over. */
GMB_MUST_CHECK bool control_wait_closed(struct control_connection *connection, int timeout_ms);

/* All of it for a command that is answered at once; its notes are dropped. */
GMB_MUST_CHECK int control_ask(const char *path, const char *command, json_t *arguments,
	int timeout_ms, json_t **result_out, struct error *error);

/* --- printing ------------------------------------------------------------------------------ */

/* Prints a value on standard output, as jansson does with these flags; characters that steer a
 * terminal, or that it hides, are escaped. -ENOMEM, -EIO, or an errno of the output. */
GMB_MUST_CHECK int control_print_json(const json_t *value, size_t flags);

/* --- both ---------------------------------------------------------------------------------- */

/* The address of the socket at path, reached through a descriptor of its folder if it is too long;
 * *folder_fd is that descriptor, to be closed after bind or connect, or -1. */
GMB_MUST_CHECK int control_address(const char *path, struct sockaddr_un *address, int *folder_fd);
