/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes, each of which calls all others:
 *
 *   clan-mesh NUMBER ADDRESS ADDRESS...
 *
 * All processes get the same addresses, shm:PATH or shm:@NAME. NUMBER is the index, from 0, of the
 * address of this process. It prints a line for each answer, and ends when it has called all others
 * and was called by all.
 *
 *   cc clan-mesh.c $(pkg-config --cflags --libs clan) -o clan-mesh
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gmblock/clan_rpc.h>

enum { CALL_GREET = 1, TEXT_BYTES = 4096, RETRY_MS = 50 };

static char buffer[TEXT_BYTES];

static void die(const char *text)
{
	fprintf(stderr, "clan-mesh: %s\n", text);
	exit(EXIT_FAILURE);
}

/* Handles one event. Increments *done_count for each answer received and each call answered. */
static void handle(struct clan_rpc *rpc, uint32_t number, const struct clan_rpc_event *event,
	uint32_t *done_count)
{
	char text[64];
	int bytes;

	switch (event->type) {
	case CLAN_RPC_UP:
		bytes = snprintf(text, sizeof(text), "node %u", number);
		if (clan_rpc_call(rpc, event->node, CALL_GREET, text, (uint32_t)bytes, NULL) != 0) {
			die("cannot call");
		}
		break;
	case CLAN_RPC_REQUEST:
		bytes = snprintf(text, sizeof(text), "hello %.*s, from %u",
			event->bytes < 32 ? (int)event->bytes : 32, buffer, number);
		if (clan_rpc_reply(rpc, &event->request, CALL_GREET, text, (uint32_t)bytes) != 0) {
			die("cannot reply");
		}
		++*done_count;
		break;
	case CLAN_RPC_REPLY:
		if (event->status != 0) {
			die(strerror(-event->status));
		}
		printf("%.*s\n", (int)event->bytes, buffer);
		++*done_count;
		break;
	default: /* a node that is done may end first */
		break;
	}
}

int main(int argc, char **argv)
{
	struct clan_rpc_options options = { .size = sizeof(options), .conns = 2 };
	uint32_t count = (uint32_t)argc - 2;
	const char *const *addresses = (const char *const *)argv + 2;
	struct clan_rpc_event event;
	struct clan_error error;
	struct clan_rpc *rpc;
	uint32_t done_count = 0;

	if (argc < 4) {
		fprintf(stderr, "usage: clan-mesh NUMBER ADDRESS ADDRESS...\n");
		return EXIT_FAILURE;
	}
	options.node = (uint32_t)strtoul(argv[1], NULL, 10);
	if (clan_rpc_create(NULL, &options, &rpc, &error) != 0) {
		die(error.text);
	}
	while (done_count < 2 * (count - 1)) {
		/* It connects to nodes that do not listen yet after a while. */
		int missing = clan_rpc_mesh(rpc, addresses, count, &error);

		if (missing < 0) {
			die(error.text);
		}
		if (clan_rpc_next(rpc, &event, buffer, sizeof(buffer),
			    missing > 0 ? RETRY_MS : -1) == 1) {
			handle(rpc, options.node, &event, &done_count);
		}
	}
	clan_rpc_destroy(rpc);
	return EXIT_SUCCESS;
}
