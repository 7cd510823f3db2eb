// SPDX-License-Identifier: Apache-2.0
/*
 * The client library against a server of our own that does on purpose what others seldom do. One
 * thread a connection; what it answers is the test's to say. A test that hangs is ended by alarm().
 */

#include <errno.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <gmblock/gmblock.h>

#include "client/guest.h"
#include "nbd/wire.h"
#include "unit.h"

enum { EXPORT_BYTES = 16 << 20, CONNECTIONS_MAX = 8, HANG_SECONDS = 60 };

struct server {
	int listener;
	char folder[32];
	char path[64];
	char uri[128];
	uint16_t flags;
	uint32_t preferred; /* block size; 0 = tells none */
	/* Answers one request; false: the connection ends. */
	bool (*answer)(struct server *server, int fd, const struct nbd_wire_request *request);
	atomic_uint writes;
	atomic_uint refused;
	pthread_t acceptor;
	pthread_t threads[CONNECTIONS_MAX];
	atomic_uint thread_count;
};

struct visitor {
	struct server *server;
	int fd;
};

/* --- the server ------------------------------------------------------------------------------- */

static bool take(int fd, void *bytes, size_t len)
{
	return len == 0 || recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len;
}

static void say(int fd, const void *bytes, size_t len)
{
	(void)!send(fd, bytes, len, MSG_NOSIGNAL);
}

static bool drain(int fd, size_t len)
{
	static _Thread_local uint8_t bytes[65536];
	size_t part;

	for (; len > 0; len -= part) {
		part = MIN(len, sizeof(bytes));
		if (!take(fd, bytes, part)) {
			return false;
		}
	}
	return true;
}

static void option_reply(int fd, uint32_t option, uint32_t type, const void *data, size_t len)
{
	struct be64 magic = be64_make(NBD_OPTION_REPLY_MAGIC);
	struct be32 rest[3] = { be32_make(option), be32_make(type), be32_make((uint32_t)len) };

	say(fd, &magic, sizeof(magic));
	say(fd, rest, sizeof(rest));
	say(fd, data, len);
}

static void tell_export(const struct server *server, int fd)
{
	uint8_t info[12] = { 0 };
	uint8_t sizes[14] = { 0, NBD_INFO_BLOCK_SIZE };
	struct be64 size = be64_make(EXPORT_BYTES);
	struct be16 flags = be16_make((uint16_t)(NBD_FLAG_HAS_FLAGS | server->flags));
	struct be32 limits[3] = { be32_make(1), be32_make(server->preferred),
		be32_make(server->preferred) };

	memcpy(info + 2, &size, sizeof(size));
	memcpy(info + 10, &flags, sizeof(flags));
	memcpy(sizes + 2, limits, sizeof(limits));
	option_reply(fd, NBD_OPT_GO, NBD_REP_INFO, info, sizeof(info));
	if (server->preferred != 0) {
		option_reply(fd, NBD_OPT_GO, NBD_REP_INFO, sizes, sizeof(sizes));
	}
	option_reply(fd, NBD_OPT_GO, NBD_REP_ACK, NULL, 0);
}

static bool shake_hands(const struct server *server, int fd)
{
	static const uint8_t greeting[] = "NBDMAGICIHAVEOPT\0\3";
	uint8_t client_flags[4];
	struct nbd_wire_option option;

	say(fd, greeting, 18);
	if (!take(fd, client_flags, sizeof(client_flags))) {
		return false;
	}
	while (take(fd, &option, sizeof(option)) && drain(fd, be32_get(option.length))) {
		if (be32_get(option.option) == NBD_OPT_GO) {
			tell_export(server, fd);
			return true;
		}
		option_reply(fd, be32_get(option.option), NBD_REP_ERR_UNSUP, NULL, 0);
	}
	return false;
}

static void reply(int fd, const struct nbd_wire_request *request, uint32_t error, size_t bytes)
{
	static const uint8_t zeroes[65536];
	struct nbd_wire_simple_reply wire = {
		.magic = be32_make(NBD_SIMPLE_REPLY_MAGIC),
		.error = be32_make(error),
		.cookie = request->cookie,
	};

	say(fd, &wire, sizeof(wire));
	for (size_t part; bytes > 0; bytes -= part) {
		part = MIN(bytes, sizeof(zeroes));
		say(fd, zeroes, part);
	}
}

static bool answer_well(struct server *server, int fd, const struct nbd_wire_request *request)
{
	bool writes = be16_get(request->type) == NBD_CMD_WRITE;
	size_t bytes = be32_get(request->length);

	atomic_fetch_add(&server->writes, writes);
	if (writes && !drain(fd, bytes)) {
		return false;
	}
	reply(fd, request, 0, be16_get(request->type) == NBD_CMD_READ ? bytes : 0);
	return true;
}

static void *visit(void *argument)
{
	struct visitor visitor = *(struct visitor *)argument;
	struct nbd_wire_request request;

	free(argument);
	if (shake_hands(visitor.server, visitor.fd)) {
		while (take(visitor.fd, &request, sizeof(request)) &&
			be16_get(request.type) != NBD_CMD_DISC &&
			visitor.server->answer(visitor.server, visitor.fd, &request)) {
		}
	}
	close(visitor.fd);
	return NULL;
}

static void *accept_visitors(void *argument)
{
	struct server *server = argument;
	int fd;

	while ((fd = accept(server->listener, NULL, NULL)) >= 0) {
		struct visitor *visitor = malloc(sizeof(*visitor));
		unsigned number = atomic_fetch_add(&server->thread_count, 1);

		*visitor = (struct visitor){ .server = server, .fd = fd };
		if (number >= CONNECTIONS_MAX ||
			pthread_create(&server->threads[number], NULL, visit, visitor) != 0) {
			abort();
		}
	}
	return NULL;
}

static void server_start(struct server *server)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	alarm(HANG_SECONDS);
	snprintf(server->folder, sizeof(server->folder), "/tmp/gmb-client-XXXXXX");
	assert_non_null(mkdtemp(server->folder));
	snprintf(server->path, sizeof(server->path), "%s/nbd", server->folder);
	snprintf(server->uri, sizeof(server->uri), "nbd+unix:///?socket=%s", server->path);
	memcpy(address.sun_path, server->path, sizeof(server->path));
	server->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(
		bind(server->listener, (const struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(server->listener, CONNECTIONS_MAX), 0);
	if (server->answer == NULL) {
		server->answer = answer_well;
	}
	assert_int_equal(pthread_create(&server->acceptor, NULL, accept_visitors, server), 0);
}

/* Every client must have been closed. */
static void server_end(struct server *server)
{
	shutdown(server->listener, SHUT_RDWR);
	pthread_join(server->acceptor, NULL);
	for (unsigned i = 0; i < server->thread_count; i++) {
		pthread_join(server->threads[i], NULL);
	}
	close(server->listener);
	unlink(server->path);
	rmdir(server->folder);
	alarm(0);
}

static struct gmb_client *open_at(
	const struct server *server, struct gmb_queue **queue, const struct gmb_options *options)
{
	struct gmb_client *client;

	assert_int_equal(gmb_queue_create(NULL, queue, NULL), 0);
	assert_int_equal(gmb_open(*queue, server->uri, options, &client, NULL), 0);
	return client;
}

static uint64_t lost(const struct gmb_client *client)
{
	struct gmb_stats stats = { .size = sizeof(stats) };

	gmb_get_stats(client, &stats);
	return stats.connections_lost;
}

/* --- tests ------------------------------------------------------------------------------------ */

/* What a program does between two requests is not the server's silence. */
TEST(a_pause_is_not_silence)
{
	const struct timespec pause = { .tv_sec = 3, .tv_nsec = 200000000 };
	struct gmb_options options = {
		.size = sizeof(options), .connections = 1, .request_timeout_ms = 3000
	};
	struct server server = { 0 };
	struct gmb_queue *queue;
	struct gmb_client *client;
	uint8_t bytes[512];

	server_start(&server);
	client = open_at(&server, &queue, &options);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(gmb_pread(client, bytes, sizeof(bytes), 0), 0);
	}
	nanosleep(&pause, NULL);
	assert_int_equal(gmb_pread(client, bytes, sizeof(bytes), 0), 0);
	assert_int_equal(lost(client), 0);
	assert_int_equal(gmb_close(client), 0);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_end(&server);
}

/* Block sizes that are lawful, and larger than the longest command. */
TEST(huge_blocks)
{
	struct gmb_options options = { .size = sizeof(options), .connections = 1 };
	struct server server = { .preferred = 64 << 20 };
	struct gmb_queue *queue;
	struct gmb_client *client;
	uint8_t bytes[512];

	server_start(&server);
	client = open_at(&server, &queue, &options);
	assert_int_equal(gmb_pread(client, bytes, sizeof(bytes), 512), 0);
	assert_int_equal(gmb_close(client), 0);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_end(&server);
}

struct chain {
	struct gmb_client *client;
	struct gmb_request wrong;
	struct gmb_request right;
	uint8_t bytes[512];
	int done;
};

static void right_done(struct gmb_request *request)
{
	struct chain *chain = request->context;

	assert_int_equal(request->result, 0);
	chain->done++;
}

static void wrong_done(struct gmb_request *request)
{
	struct chain *chain = request->context;

	assert_int_equal(request->result, -EINVAL);
	gmb_submit(chain->client, &chain->right);
}

/* A callback that comes from gmb_close() itself may submit as any other. */
TEST(close_takes_what_callbacks_submit)
{
	struct gmb_options options = { .size = sizeof(options), .connections = 1 };
	struct server server = { 0 };
	struct chain chain = { 0 };
	struct gmb_queue *queue;

	server_start(&server);
	chain.client = open_at(&server, &queue, &options);
	gmb_prepare_read(&chain.wrong, chain.bytes, sizeof(chain.bytes), EXPORT_BYTES);
	chain.wrong.done = wrong_done;
	chain.wrong.context = &chain;
	gmb_prepare_read(&chain.right, chain.bytes, sizeof(chain.bytes), 0);
	chain.right.done = right_done;
	chain.right.context = &chain;
	gmb_submit(chain.client, &chain.wrong);
	assert_int_equal(gmb_close(chain.client), 0);
	assert_int_equal(chain.done, 1);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_end(&server);
}

/* Requests of which nothing was sent end with their client: whoever waits for them learns that. */
TEST(the_end_of_a_client_ends_the_wait)
{
	enum { COUNT = 3, LONG_MS = 1000 };
	struct gmb_options options = { .size = sizeof(options), .connections = 1 };
	struct gmb_request requests[COUNT] = { 0 };
	struct server server = { 0 };
	struct gmb_client *client;
	struct gmb_queue *queue;
	uint8_t bytes[512];

	server_start(&server);
	client = open_at(&server, &queue, &options);
	for (int i = 0; i < COUNT; i++) {
		gmb_prepare_read(&requests[i], bytes, sizeof(bytes), 0);
		gmb_submit(client, &requests[i]);
	}
	client_end(client);
	assert_int_equal(gmb_queue_wait(queue, LONG_MS), COUNT); /* which is no time to wait here */
	for (int i = 0; i < COUNT; i++) {
		assert_int_equal(requests[i].result, -ENOTCONN);
	}
	assert_int_equal(gmb_queue_wait(queue, 0), 0); /* told once */
	assert_int_equal(gmb_close(client), 0);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_end(&server);
}

static bool hang_up(struct server *server, int fd, const struct nbd_wire_request *request)
{
	atomic_fetch_add(&server->writes, be16_get(request->type) == NBD_CMD_WRITE);
	return false;
}

/* Without reconnects a request is not tried elsewhere either: it may have been carried out. */
TEST(no_reconnect_fails_at_once)
{
	struct gmb_options options = {
		.size = sizeof(options), .connections = 2, .flags = GMB_OPEN_NO_RECONNECT
	};
	struct server server = { .flags = NBD_FLAG_CAN_MULTI_CONN, .answer = hang_up };
	struct gmb_queue *queue;
	struct gmb_client *client;
	uint8_t bytes[512] = { 0 };

	server_start(&server);
	client = open_at(&server, &queue, &options);
	assert_int_equal(gmb_pwrite(client, bytes, sizeof(bytes), 0, 0), -ENOTCONN);
	assert_int_equal(server.writes, 1);
	assert_int_equal(lost(client), 1);
	assert_int_equal(gmb_close(client), 0);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_end(&server);
}

/* Says that it shuts down, waits until the client has read that, and only then reads the payload.
 * The connection stays open. */
static bool shut_down_once(struct server *server, int fd, const struct nbd_wire_request *request)
{
	int unread = 1;

	if (atomic_fetch_add(&server->refused, 1) > 0) {
		return answer_well(server, fd, request);
	}
	reply(fd, request, NBD_ESHUTDOWN, 0);
	while (unread > 0 && ioctl(fd, SIOCOUTQ, &unread) == 0) {
		sched_yield();
	}
	return drain(fd, be32_get(request->length));
}

/* The last answer of a server that shuts down comes before its request is sent, and nothing after
 * it: the client must go elsewhere by itself. */
TEST(shutdown_answered_early)
{
	struct gmb_options options = { .size = sizeof(options), .connections = 1 };
	struct server server = { .answer = shut_down_once };
	struct gmb_queue *queue;
	struct gmb_client *client;
	uint8_t *bytes = calloc(1, EXPORT_BYTES);

	server_start(&server);
	client = open_at(&server, &queue, &options);
	assert_int_equal(gmb_pwrite(client, bytes, EXPORT_BYTES, 0, 0), 0);
	assert_int_equal(server.refused, 2);
	assert_int_equal(gmb_close(client), 0);
	assert_int_equal(gmb_queue_destroy(queue), 0);
	server_end(&server);
	free(bytes);
}
