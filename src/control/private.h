// SPDX-License-Identifier: Apache-2.0
/*
 * Private to src/control: a server of short exchanges, one request and one answer for each
 * connection, whatever protocol they speak. It has a bounded number of clients, waits for none of
 * them, and ends those that are silent or slow.
 *
 *   (free) ─▶ READING ─▶ RUNNING ─▶ ANSWERED ─▶ HELD ─▶ CLOSING ─▶ (free)
 *
 * Threading, ownership and errors: as in control.h.
 */
#pragma once

#include "control/control.h"

enum client_state {
	CLIENT_FREE,
	CLIENT_READING,	 /* waits for its request */
	CLIENT_RUNNING,	 /* waits for the command's answer */
	CLIENT_ANSWERED, /* waits for the client to read the answer */
	CLIENT_HELD,	 /* has read it; waits for the client to close */
	CLIENT_CLOSING,	 /* waits for the ring to release it */
	CLIENT_STATE_COUNT
};

struct control_protocol {
	uint32_t request_bytes_max;
	/*
	 * Strangers may connect, over TCP as well. Then nobody is asked for credentials; with all
	 * places taken, the connection that has waited for the longest time makes room; an answer
	 * has one deadline, however slowly it is read; and after it the connection stays until the
	 * client closes it, for a moment, because closing a socket with unread input would take the
	 * answer back.
	 */
	bool is_public;
	/* The client has connected. Optional. */
	void (*greet)(struct control_client *client);
	/* How many of the bytes the request at their beginning has; 0: its end is not there. */
	size_t (*request_end)(const char *bytes, size_t count);
	/* Answers now or later. The request is borrowed. */
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
	struct ucred peer;     /* not of strangers */
	struct ring_op input;  /* polls for it */
	struct ring_op output; /* polls for room */
	uint64_t deadline_ns;  /* UINT64_MAX: none */
	const struct registration *running;
	char *request; /* while reading */
	size_t request_bytes;
	size_t request_room;
	char *output_bytes; /* not sent yet */
	size_t output_count;
	size_t output_sent;
};

/* One of its listening sockets. */
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
	bool stopped;	    /* or not begun: nobody is accepted */
	uint64_t timer_ns;  /* when it ends, in flight */
	uint64_t resume_ns; /* accept nothing before; UINT64_MAX: no such time */
	uint64_t next_id;
	uint32_t client_count;
	uint32_t command_count;
	struct registration commands[CONTROL_COMMANDS_MAX];
	const struct control_page *page;
	void *page_context;
	struct control_client clients[CONTROL_CLIENTS_MAX];
};

/* As control_server_create(). */
GMB_MUST_CHECK int control_server_open(const struct control_protocol *protocol,
	const int *listen_fds, uint32_t count, struct control_server **server_out,
	struct error *error);
/* Room for so many bytes behind what is not sent yet, counted as output; NULL: out of memory. */
char *control_client_extend(struct control_client *client, size_t bytes);
/* All output is there: it is sent, and the connection closed in a later turn, so that no client
 * goes away below its caller. */
void control_client_answered(struct control_client *client);
