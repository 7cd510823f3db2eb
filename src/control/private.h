// SPDX-License-Identifier: Apache-2.0
/*
 * Private to src/control: a server of short exchanges, one request and one answer per connection,
 * for any protocol. It has a bounded number of clients, never waits for a client, and closes silent
 * or slow ones.
 *
 *   (free) ─▶ READING ─▶ RUNNING ─▶ ANSWERED ─▶ HELD ─▶ CLOSING ─▶ (free)
 *
 * Threading, ownership and errors: as in control.h.
 */
#pragma once

#include "control/control.h"

enum client_state {
	CLIENT_FREE,
	CLIENT_READING,	 /* waits for the request */
	CLIENT_RUNNING,	 /* waits for the command's answer */
	CLIENT_ANSWERED, /* waits for the client to read the answer */
	CLIENT_HELD,	 /* answer was read; waits for the client to close */
	CLIENT_CLOSING,	 /* waits until the ring has completed its operations */
	CLIENT_STATE_COUNT
};

struct control_protocol {
	uint32_t request_bytes_max;
	/*
	 * Untrusted clients can connect, also over TCP, and their credentials are not checked. If
	 * all slots are taken, the connection with the earliest deadline is closed for a new one.
	 * An answer must be read within one deadline. Then the connection stays open for a moment
	 * until the client closes it, because closing a socket with unread input would discard the
	 * answer.
	 */
	bool is_public;
	/* Called when the client has connected. Optional. */
	void (*greet)(struct control_client *client);
	/* Returns the length of the request at the start of bytes; 0: the request is incomplete. */
	size_t (*request_end)(const char *bytes, size_t count);
	/* Answers now or later. Borrows the request. */
	void (*take)(struct control_client *client, const char *request, size_t bytes);
	/* Answers a request that is longer than request_bytes_max. */
	void (*too_long)(struct control_client *client);
};

struct registration {
	const struct control_command *command;
	void *context;
};

struct control_client {
	struct control_server *server;
	enum client_state state;
	int fd;
	bool is_guarded; /* see struct ring_file */
	uint64_t id;
	struct ucred peer;     /* not set for a public protocol */
	struct ring_op input;  /* polls for input */
	struct ring_op output; /* polls for room in the socket */
	uint64_t deadline_ns;  /* UINT64_MAX: none */
	const struct registration *running;
	char *request; /* while reading */
	size_t request_bytes;
	size_t request_room;
	char *output_bytes; /* unsent output */
	size_t output_count;
	size_t output_sent;
};

/* One listening socket of the server. */
struct control_door {
	struct control_server *server;
	struct ring_file file;
	struct ring_op accept;
};

struct control_server {
	const struct control_protocol *protocol;
	struct ring *ring;
	struct control_door doors[CONTROL_SOCKETS_MAX];
	uint32_t door_count;
	struct ring_op timer;
	bool stopped;	    /* stopped or not started: connections are not accepted */
	uint64_t timer_ns;  /* expiry of the timer in flight */
	uint64_t resume_ns; /* do not accept before this time; UINT64_MAX: no restriction */
	uint64_t next_id;
	uint32_t client_count;
	uint32_t command_count;
	struct registration commands[CONTROL_COMMANDS_MAX];
	const struct control_page *page;
	void *page_context;
	struct control_client clients[CONTROL_CLIENTS_MAX];
};

/* Creates a server for a protocol, like control_server_create(). */
GMB_MUST_CHECK int control_server_open(const struct control_protocol *protocol,
	const int *listen_fds, uint32_t count, struct control_server **server_out,
	struct error *error);
/* Returns room for that many bytes after the unsent output, and counts them as output; NULL: out of
 * memory. */
char *control_client_extend(struct control_client *client, size_t bytes);
/* Called when all output was added: sends it. The connection is closed in a later turn, so that a
 * client is never freed while its caller still uses it. */
void control_client_answered(struct control_client *client);
