// SPDX-License-Identifier: Apache-2.0
/*
 * A hostile front end and guest at the server of vhost-user-blk. The server runs on two threads
 * with real rings, as it receives descriptors and reads eventfds, and serves queues with odd
 * numbers on the second one. The input is a list of steps (enum step): messages with any contents
 * and descriptors, writes to guest memory, kicks. While the server processes them, this thread
 * rewrites the rings again and again. Whatever happens, the session ends when the front end closes
 * its socket, and leaves nothing in flight.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/engine.h"
#include "fuzz.h"
#include "stores.h"
#include "vhost/server/server.h"
#include "vhost/wire.h"

enum {
	MEMORY_BYTES = 1 << 18,
	ENTRIES = 16,
	DESC_AT = 0,
	AVAIL_AT = 4096,
	USED_AT = 8192,
	RINGS_BYTES = 12288, /* desc, avail and used */
	QUEUES = 2,
	QUEUE_BYTES = 32768, /* distance between the rings of queues */
	GUEST_AT = 1 << 20,
	USER_AT = 1 << 30,
	STEPS_MAX = 200,
	REWRITES = 64,
};

enum step {
	STEP_MESSAGE, /* request, flags, descriptors, size; payload */
	STEP_START,   /* well-formed messages that start queues 0 and 1 */
	STEP_WRITE,   /* position (2 bytes), size; contents */
	STEP_KICK,
	STEP_SUBMIT,   /* number of entries by which the avail index increases */
	STEP_TRUNCATE, /* size of guest memory, in pages */
	STEP_REWRITE,
	STEP_COUNT
};

enum { FD_NONE, FD_MEMORY, FD_KICK, FD_CALL, FD_SOCKET, FD_KINDS };

/* The rings of all queues have the same contents, so requests of different threads use the same
 * memory, which ThreadSanitizer does not permit. */
#if defined(__SANITIZE_THREAD__)
enum { MIRRORS = 1 };
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
enum { MIRRORS = 1 };
#else
enum { MIRRORS = QUEUES };
#endif
#else
enum { MIRRORS = QUEUES };
#endif

enum { REACTORS = 2 };

/* The server. It exists as long as the program. */
static struct server {
	struct store *store;
	struct export *export;
	struct reactor {
		struct ring_thread *thread;
		struct engine *engine;
		uint64_t busy;
	} reactors[REACTORS];
} server;

/* The front end, and what is left of the input. */
struct front {
	const uint8_t *at;
	size_t left;
	int socket;
	int server_socket;
	int fds[FD_KINDS];
	int other_kick; /* of the queues with other numbers than 0 */
	uint64_t random;
};

/* All sessions are on the first reactor. */
static struct engine *part_engine(void *context, uint32_t part)
{
	GMB_UNUSED(context);
	return part < REACTORS ? server.reactors[part].engine : NULL;
}

static int server_begin(void *context, struct ring **ring_out, struct error *error)
{
	static const struct session_kind *const kinds[] = { &vhost_session_kind };
	static const struct ring_options ring_options;
	struct reactor *reactor = context;
	struct engine_options options = {
		.kinds = kinds, .kind_count = ARRAY_COUNT(kinds), .part_engine = part_engine
	};

	GMB_ASSERT(ring_create(&ring_options, ring_out, error) == 0);
	engine_limits_default(&options.limits);
	options.limits.memory_bytes_max = 64 << 20;
	options.ring = *ring_out;
	GMB_ASSERT(engine_create(&options, &reactor->engine, error) == 0);
	GMB_ASSERT(engine_export_add(reactor->engine, server.export, error) == 0);
	return 0;
}

static void server_end(void *context)
{
}

static void server_start(void)
{
	struct ring_thread_options options = {
		.name = "server", .begin = server_begin, .end = server_end
	};
	struct export_options about = { .name = "" };
	struct error error;

	GMB_ASSERT(store_open(&(struct store_options){ .path = "memory:65536" }, &server.store,
			   &error) == 0);
	about.store = server.store;
	GMB_ASSERT(export_create(&about, &server.export, &error) == 0);
	for (int i = 0; i < REACTORS; i++) {
		options.context = &server.reactors[i];
		GMB_ASSERT(ring_thread_start(&options, &server.reactors[i].thread, &error) == 0);
	}
}

static void accept_front(void *context)
{
	const struct front *front = context;
	const struct endpoint endpoint = { .kind = &vhost_session_kind,
		.fd = front->server_socket,
		.peer = { .text = "fuzz" },
		.export_name = "" };

	engine_accept(server.reactors[0].engine, &endpoint);
}

static void look(void *context)
{
	struct reactor *reactor = context;
	const struct engine *engine = reactor->engine;

	reactor->busy = engine->counters.sessions + engine->counters.inflight + engine->part_count;
}

/* --- steps ----------------------------------------------------------------------------------- */

static uint8_t next(struct front *front)
{
	uint8_t byte = front->left > 0 ? *front->at : 0;

	front->at += front->left > 0;
	front->left -= front->left > 0;
	return byte;
}

static uint64_t next_random(struct front *front)
{
	front->random ^= front->random << 13;
	front->random ^= front->random >> 7;
	front->random ^= front->random << 17;
	return front->random;
}

/* Removes what the server has sent, so that it can go on. */
static void discard_replies(struct front *front)
{
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(8 * sizeof(int))];
	uint8_t bytes[4096];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	for (;;) {
		message.msg_control = control;
		message.msg_controllen = sizeof(control);
		if (recvmsg(front->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) {
			return;
		}
		for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part != NULL;
			part = CMSG_NXTHDR(&message, part)) {
			int fd;

			memcpy(&fd, CMSG_DATA(part), sizeof(fd));
			close(fd);
		}
	}
}

static void send_message(struct front *front, const struct vhost_head *head, const void *payload,
	size_t bytes, int fd)
{
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec parts[] = {
		{ .iov_base = (void *)(uintptr_t)head, .iov_len = sizeof(*head) },
		{ .iov_base = (void *)(uintptr_t)payload, .iov_len = bytes },
	};
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	if (fd >= 0) {
		struct cmsghdr *rights;

		message.msg_control = control;
		message.msg_controllen = sizeof(control);
		rights = CMSG_FIRSTHDR(&message);
		*rights = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS,
			.cmsg_len = CMSG_LEN(sizeof(fd)) };
		memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
	}
	(void)!sendmsg(front->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	discard_replies(front);
}

static void step_message(struct front *front)
{
	uint8_t payload[300] = { 0 };
	struct vhost_head head = { .request = next(front), .flags = next(front) };
	int fd = front->fds[next(front) % FD_KINDS];
	size_t bytes = MIN((size_t)next(front), front->left);

	memcpy(payload, front->at, bytes);
	front->at += bytes;
	front->left -= bytes;
	head.bytes = (uint32_t)bytes;
	send_message(front, &head, payload, bytes, fd);
}

static void tell(struct front *front, uint32_t request, const void *payload, size_t bytes, int fd)
{
	const struct vhost_head head = {
		.request = request, .flags = VHOST_VERSION, .bytes = (uint32_t)bytes
	};

	send_message(front, &head, payload, bytes, fd);
}

static void start_queue(struct front *front, uint32_t index)
{
	const struct vhost_vring_state entries = { .index = index, .number = ENTRIES };
	const struct vhost_vring_state base = { .index = index };
	const struct vhost_vring_state on = { .index = index, .number = 1 };
	const uint64_t at = USER_AT + index * QUEUE_BYTES;
	const struct vhost_vring_address address = {
		.index = index, .desc = at + DESC_AT, .used = at + USED_AT, .avail = at + AVAIL_AT
	};
	const uint64_t queue = index;

	tell(front, VHOST_SET_VRING_NUM, &entries, sizeof(entries), -1);
	tell(front, VHOST_SET_VRING_BASE, &base, sizeof(base), -1);
	tell(front, VHOST_SET_VRING_ADDR, &address, sizeof(address), -1);
	tell(front, VHOST_SET_VRING_CALL, &queue, sizeof(queue), front->fds[FD_CALL]);
	tell(front, VHOST_SET_VRING_KICK, &queue, sizeof(queue),
		index == 0 ? front->fds[FD_KICK] : front->other_kick);
	tell(front, VHOST_SET_VRING_ENABLE, &on, sizeof(on), -1);
}

static void step_start(struct front *front)
{
	const uint64_t features = VIRTIO_VERSION_1 | VHOST_PROTOCOL_FEATURES |
				  VIRTIO_RING_INDIRECT | VIRTIO_BLK_FLUSH | VIRTIO_BLK_DISCARD |
				  (next(front) % 2 == 0 ? VIRTIO_RING_EVENT_IDX : 0);
	const struct {
		uint32_t count;
		uint32_t padding;
		struct vhost_region region;
	} table = { .count = 1,
		.region = { .guest_address = GUEST_AT,
			.bytes = MEMORY_BYTES,
			.user_address = USER_AT } };

	tell(front, VHOST_SET_FEATURES, &features, sizeof(features), -1);
	tell(front, VHOST_SET_MEM_TABLE, &table, sizeof(table), front->fds[FD_MEMORY]);
	for (uint32_t i = 0; i < QUEUES; i++) {
		start_queue(front, i);
	}
}

static void step_write(struct front *front)
{
	uint32_t position = (uint32_t)next(front) << 8 | next(front);
	size_t bytes = MIN((size_t)next(front), front->left);

	(void)!pwrite(front->fds[FD_MEMORY], front->at, bytes, position);
	for (uint32_t i = 1; i < MIRRORS && position < RINGS_BYTES; i++) {
		(void)!pwrite(front->fds[FD_MEMORY], front->at, bytes, position + i * QUEUE_BYTES);
	}
	front->at += bytes;
	front->left -= bytes;
}

static void kick(const struct front *front)
{
	(void)!eventfd_write(front->fds[FD_KICK], 1);
	(void)!eventfd_write(front->other_kick, 1);
}

static void step_submit(struct front *front)
{
	uint8_t number = next(front);
	off_t at = AVAIL_AT + 2 + number / (ENTRIES + 2) % QUEUES * QUEUE_BYTES;
	uint16_t index = 0;

	(void)!pread(front->fds[FD_MEMORY], &index, sizeof(index), at);
	index = (uint16_t)(index + number % (ENTRIES + 2));
	(void)!pwrite(front->fds[FD_MEMORY], &index, sizeof(index), at);
	kick(front);
}

/* Changes the rings while the server reads them. Through the file, as the mapping of a truncated
 * one would fault. */
static void step_rewrite(struct front *front)
{
	for (int i = 0; i < REWRITES; i++) {
		uint64_t value = next_random(front);
		/* a random value, or a small one: an index, a flag, or the low bytes of an address
		 */
		uint32_t number = value % 3 == 0 ? (uint32_t)(value >> 32)
						 : (uint32_t)(value >> 32) % (2 * ENTRIES);
		size_t bytes = value % 2 == 0 ? 2 : 4;
		off_t queue_at = (off_t)(value >> 5) % MIRRORS * QUEUE_BYTES;

		(void)!pwrite(front->fds[FD_MEMORY], &number, bytes,
			queue_at + ((off_t)(value >> 8) % RINGS_BYTES & ~1));
		kick(front);
	}
}

static void run_step(struct front *front)
{
	switch ((enum step)(next(front) % STEP_COUNT)) {
	case STEP_MESSAGE:
		step_message(front);
		break;
	case STEP_START:
		step_start(front);
		break;
	case STEP_WRITE:
		step_write(front);
		break;
	case STEP_KICK:
		kick(front);
		break;
	case STEP_SUBMIT:
		step_submit(front);
		break;
	case STEP_TRUNCATE:
		(void)!ftruncate(front->fds[FD_MEMORY], (off_t)next(front) * 4096);
		break;
	case STEP_REWRITE:
		step_rewrite(front);
		break;
	case STEP_COUNT:
		break;
	}
}

/* --- the whole ------------------------------------------------------------------------------- */

static void front_begin(struct front *front, const uint8_t *data, size_t size)
{
	int ends[2];

	*front = (struct front){ .at = data, .left = size, .random = 88172645463325252 + size };
	GMB_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
	front->socket = ends[0];
	front->server_socket = ends[1];
	front->fds[FD_NONE] = -1;
	front->fds[FD_MEMORY] = memfd_create("guest", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	front->fds[FD_KICK] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	front->other_kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	front->fds[FD_CALL] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	front->fds[FD_SOCKET] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	GMB_ASSERT(ftruncate(front->fds[FD_MEMORY], MEMORY_BYTES) == 0);
}

static void front_end(struct front *front)
{
	uint64_t busy;

	close(front->socket);
	do {
		busy = 0;
		for (int i = 0; i < REACTORS; i++) {
			struct reactor *reactor = &server.reactors[i];

			GMB_ASSERT(ring_thread_call(reactor->thread, look, reactor) == 0);
			busy += reactor->busy;
		}
	} while (busy > 0);
	close(front->other_kick);
	for (int i = FD_MEMORY; i < FD_KINDS; i++) {
		close(front->fds[i]);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct front front;

	if (server.reactors[0].thread == NULL) {
		log_set_level(LOG_LEVEL_ERROR);
		server_start();
	}
	front_begin(&front, data, size);
	GMB_ASSERT(ring_thread_call(server.reactors[0].thread, accept_front, &front) == 0);
	for (int i = 0; i < STEPS_MAX && front.left > 0; i++) {
		run_step(&front);
	}
	front_end(&front);
	return 0;
}
