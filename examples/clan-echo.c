/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two programs in one:
 *
 *   clan-echo ADDRESS             answers every message, and writes a text into the memory of a
 *                                 client that sends a cookie
 *   clan-echo ADDRESS MESSAGE     sends a message and a cookie, prints the answer and the text
 *
 * ADDRESS is shm:PATH, shm:@NAME or tcp:HOST:PORT. Anybody on the network can connect to a tcp
 * address.
 *
 *   cc clan-echo.c $(pkg-config --cflags --libs clan) -o clan-echo
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gmblock/clan_memory.h>

enum { MESSAGE_TEXT = 1, MESSAGE_COOKIE = 2, TEXT_BYTES = 4096, PATIENCE_MS = 30000 };

static void die(const char *what, int result)
{
	fprintf(stderr, "clan-echo: %s: %s\n", what, strerror(-result));
	exit(EXIT_FAILURE);
}

/* --- the server ---------------------------------------------------------------------------------
 */

static struct clan_queue *served;
static volatile sig_atomic_t stopping;

static void stop(int signal)
{
	(void)signal;
	stopping = 1;
	clan_queue_wake(served); /* clan_queue_wait() returns 0 */
}

static void answer(struct clan_conn *conn, const struct clan_message *message, const void *bytes)
{
	static char text[] = "put by the server";
	struct iovec from = { .iov_base = text, .iov_len = sizeof(text) };
	struct clan_cookie cookie;
	int result;

	if (message->type == MESSAGE_TEXT) {
		result = clan_send(conn, CLAN_BULK, MESSAGE_TEXT, bytes, message->bytes);
	} else if (message->bytes == sizeof(cookie)) {
		memcpy(&cookie, bytes, sizeof(cookie));
		result = clan_put(conn, &from, 1, &cookie, 0, CLAN_NOTIFY, sizeof(text), NULL);
	} else {
		result = -EINVAL;
	}
	if (result != 0) { /* a server that must answer every message would wait for
			      CLAN_EVENT_READY */
		fprintf(stderr, "clan-echo: a message was not answered: %s\n", strerror(-result));
	}
}

static void serve(struct clan_queue *queue, const char *address)
{
	struct clan_conn_options options = { .size = sizeof(options),
		.handshake_timeout_ms = PATIENCE_MS };
	struct clan_listener *listener;
	struct clan_message message;
	struct clan_error error;
	struct clan_event event;
	char bytes[CLAN_BULK_BYTES_MAX];

	if (strncmp(address, "shm:", 4) != 0) {
		options.access = CLAN_ACCESS_ANY; /* over a network, users cannot be checked */
	}
	if (clan_listen(queue, address, &options, &listener, &error) != 0) {
		fprintf(stderr, "clan-echo: %s\n", error.text);
		exit(EXIT_FAILURE);
	}
	served = queue;
	signal(SIGINT, stop);
	signal(SIGTERM, stop);
	printf("ready\n");
	fflush(stdout);
	while (!stopping) {
		if (clan_queue_wait(queue, &event, 1, -1) != 1) {
			continue;
		}
		switch (event.type) {
		case CLAN_EVENT_CONNECT:
			clan_accept(event.conn, NULL, 0);
			break;
		case CLAN_EVENT_READY:
			/* Until -EAGAIN: only then does the next message cause another event.
			 */
			while (clan_recv(event.conn, CLAN_ANY, &message, bytes, sizeof(bytes)) ==
				0) {
				answer(event.conn, &message, bytes);
			}
			break;
		case CLAN_EVENT_LOST:
			clan_close(event.conn);
			break;
		default:
			break;
		}
	}
	clan_listener_close(listener); /* removes the socket file */
	exit(EXIT_SUCCESS);	       /* the kernel ends the connections */
}

/* --- the client ---------------------------------------------------------------------------------
 */

/* Waits for an event of this type and returns it. */
static struct clan_event wait_for(struct clan_queue *queue, unsigned type)
{
	struct clan_event event;
	int result;

	do {
		result = clan_queue_wait(queue, &event, 1, PATIENCE_MS);
		if (result <= 0) {
			die("no event", result == 0 ? -ETIMEDOUT : result);
		}
		if (event.type == CLAN_EVENT_LOST) {
			fprintf(stderr, "clan-echo: %s\n", clan_conn_reason(event.conn));
			exit(EXIT_FAILURE);
		}
	} while (event.type != type);
	return event;
}

static struct clan_message receive(struct clan_queue *queue, struct clan_conn *conn, char *bytes)
{
	struct clan_message message;
	int result;

	while ((result = clan_recv(conn, CLAN_ANY, &message, bytes, TEXT_BYTES)) == -EAGAIN) {
		wait_for(queue, CLAN_EVENT_READY);
	}
	if (result != 0) {
		die("cannot receive", result);
	}
	return message;
}

static void ask(struct clan_queue *queue, const char *address, const char *text)
{
	struct clan_conn_options options = { .size = sizeof(options),
		.handshake_timeout_ms = PATIENCE_MS };
	struct clan_cookie cookie;
	struct clan_message message;
	struct clan_region *region;
	struct clan_conn *conn;
	struct clan_error error;
	char bytes[TEXT_BYTES];
	void *memory;
	int result;

	if (clan_connect(queue, address, &options, NULL, 0, &conn, &error) != 0) {
		fprintf(stderr, "clan-echo: %s\n", error.text);
		exit(EXIT_FAILURE);
	}
	wait_for(queue, CLAN_EVENT_CONNECTED);
	result = clan_send(conn, CLAN_BULK, MESSAGE_TEXT, text, (uint32_t)strlen(text));
	if (result != 0) {
		die("cannot send", result);
	}
	message = receive(queue, conn, bytes);
	printf("%.*s\n", (int)message.bytes, bytes);

	/* Memory that the server can write, and the right to write one range of it. */
	result = clan_region_create(queue, TEXT_BYTES, 0, &region, &memory);
	if (result == 0) {
		result = clan_region_share(conn, region, CLAN_WRITE);
	}
	if (result != 0) {
		die("cannot share memory", result);
	}
	wait_for(queue, CLAN_EVENT_SHARED);
	result = clan_cookie_grant(conn, region, 0, 64, CLAN_WRITE, CLAN_COOKIE_ONCE, &cookie);
	if (result == 0) {
		result = clan_send(conn, CLAN_BULK, MESSAGE_COOKIE, &cookie, sizeof(cookie));
	}
	if (result != 0) {
		die("cannot grant a cookie", result);
	}
	message = receive(queue, conn, bytes);
	if (message.type != CLAN_TYPE_NOTIFY || message.value > 64) {
		die("unexpected message", -EPROTO);
	}
	printf("%.*s\n", (int)message.value, (const char *)memory);

	clan_close(conn);
	wait_for(queue, CLAN_EVENT_CLOSED);
	clan_region_destroy(region);
}

int main(int argc, char **argv)
{
	struct clan_queue *queue;
	struct clan_error error;

	if (argc != 2 && argc != 3) {
		fprintf(stderr, "usage: clan-echo ADDRESS [MESSAGE]\n");
		return EXIT_FAILURE;
	}
	if (clan_queue_create(NULL, &queue, &error) != 0) {
		fprintf(stderr, "clan-echo: %s\n", error.text);
		return EXIT_FAILURE;
	}
	if (argc == 2) {
		serve(queue, argv[1]);
	} else {
		ask(queue, argv[1], argv[2]);
	}
	return clan_queue_destroy(queue) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
