// SPDX-License-Identifier: Apache-2.0
/*
 * hostile PORT KIND: connects to an endpoint of the transport giop:clan: as a client of it does,
 * and breaks the rules above clan. Exit status 0: the server ended the connection.
 */
#include <gmblock/clan.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELLO[] = "clan-giop 1";

static struct clan_conn *connect_to(
	struct clan_queue *queue, const char *port, const char *hello, size_t hello_bytes)
{
	char address[64];
	struct clan_error error = { 0 };
	struct clan_conn *conn = NULL;

	snprintf(address, sizeof(address), "shm:@clan-omniorb/%s", port);
	if (clan_connect(queue, address, NULL, hello, hello_bytes, &conn, &error) != 0) {
		fprintf(stderr, "%s\n", error.text);
		exit(1);
	}
	return conn;
}

/* True: lost. False: what was waited for has happened. */
static bool wait_for(struct clan_queue *queue, uint32_t type)
{
	struct clan_event event;

	for (;;) {
		if (clan_queue_wait(queue, &event, 1, -1) == 1) {
			if (event.type == CLAN_EVENT_LOST) {
				return true;
			}
			if (event.type == type) {
				return false;
			}
		}
	}
}

/* Bytes that are no GIOP: the first four say so, or what they promise never comes to an end. */
static void send_stream(struct clan_conn *conn, const char *head, size_t head_bytes)
{
	uint8_t bytes[4096];
	const struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };

	for (size_t i = 0; i < sizeof(bytes); i++) {
		bytes[i] = (uint8_t)(i * 197 + 13);
	}
	memcpy(bytes, head, head_bytes);
	if (clan_writev(conn, &iov, 1) < 0) {
		fprintf(stderr, "cannot send\n");
		exit(1);
	}
	clan_flush(conn);
}

int main(int argc, char **argv)
{
	/* A request of GIOP 1.2 with a body of 4 GiB - 1. */
	static const char huge[] = "GIOP\1\2\1\0\377\377\377\377";
	const char *kind = argc > 2 ? argv[2] : "";
	bool is_stranger = strcmp(kind, "stranger") == 0;
	struct clan_queue *queue = NULL;
	struct clan_conn *conn;

	if (argc != 3 || clan_queue_create(NULL, &queue, NULL) != 0) {
		return 2;
	}
	conn = connect_to(
		queue, argv[1], is_stranger ? "mail" : HELLO, is_stranger ? 4 : sizeof(HELLO) - 1);
	if (wait_for(queue, CLAN_EVENT_CONNECTED)) {
		return is_stranger ? 0 : 1;
	}
	if (strcmp(kind, "rubbish") == 0) {
		send_stream(conn, "", 0);
	} else if (strcmp(kind, "huge") == 0) {
		send_stream(conn, huge, sizeof(huge) - 1);
	} else if (strcmp(kind, "messages") == 0) {
		if (clan_send(conn, CLAN_BULK, 1, huge, sizeof(huge)) != 0) {
			return 1;
		}
		clan_flush(conn);
	} else {
		return 2;
	}
	return wait_for(queue, CLAN_EVENT_CLOSED) ? 0 : 1;
}
