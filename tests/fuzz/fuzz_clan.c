// SPDX-License-Identifier: Apache-2.0
/*
 * A peer of libclan that follows a script while a thread of it rewrites the segments it owns. The
 * first byte chooses how the victim waits, the next four seed the thread; then each operation of
 * the script is one byte and what it needs.
 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <gmblock/clan_memory.h>

#include "base/clock.h"
#include "clan_hostile.h"
#include "fuzz.h"

enum { OPERATIONS_MAX = 64, REWRITES_PER_TURN = 16 };

/* Bytes of the script. */
struct script {
	const uint8_t *at;
	const uint8_t *end;
};

static uint32_t take(struct script *script, unsigned bytes)
{
	uint32_t value = 0;

	while (bytes-- > 0) {
		value = value << 8 | (script->at < script->end ? *script->at++ : 0);
	}
	return value;
}

/* The thread that rewrites. Most of what it writes is near what was there: far values are refused
 * at once, near ones get further. */
struct rewriter {
	struct hostile *hostile;
	uint64_t random;
	_Atomic(bool) stop;
};

static void rewrite_once(struct rewriter *rewriter)
{
	uint64_t random = random_next(&rewriter->random);
	struct hostile *hostile = rewriter->hostile;
	bool group = random % 8 == 0;
	size_t bytes = group ? SHM_SEGMENT_ALIGN : hostile->segment_bytes;
	shm_u32 *words = (shm_u32 *)(void *)(group ? (uint8_t *)hostile->group : hostile->segment);
	/* The words of the head more often than slots. */
	size_t at = (random >> 8) % (random % 3 == 0 ? bytes / 4 : SHM_HEADER_BYTES / 4);
	uint32_t value = (uint32_t)(random >> 32);

	if (random % 4 != 0) {
		value = atomic_load(&words[at]) + value % 5 - 2;
	}
	atomic_store(&words[at], value);
}

static void *rewrite(void *context)
{
	struct rewriter *rewriter = context;

	while (!atomic_load(&rewriter->stop)) {
		for (int i = 0; i < REWRITES_PER_TURN; i++) {
			rewrite_once(rewriter);
		}
		usleep(1); /* the victim has work to do as well */
	}
	return NULL;
}

/* What the victim's program does. */
static void victim_turn(
	struct clan_queue *queue, struct clan_conn **conn, struct clan_region *region)
{
	static uint8_t bytes[CLAN_BULK_BYTES_MAX];
	struct iovec iov = { .iov_base = bytes, .iov_len = 100 };
	struct clan_message message;
	struct clan_event events[8];
	struct clan_cookie cookie;
	int count;

	clan_queue_arm(queue); /* so that it looks at descriptors, too */
	count = clan_queue_wait(queue, events, 8, 0);
	for (int i = 0; i < count; i++) {
		switch (events[i].type) {
		case CLAN_EVENT_CONNECT:
			*conn = events[i].conn;
			if (clan_accept(*conn, "x", 1) == 0) {
				(void)!clan_region_share(*conn, region, CLAN_WRITE);
			}
			break;
		case CLAN_EVENT_LOST:
			clan_close(events[i].conn);
			break;
		case CLAN_EVENT_CLOSED:
			*conn = NULL;
			break;
		default:
			break;
		}
	}
	if (*conn == NULL || clan_conn_reason(*conn)[0] != '\0') {
		return;
	}
	(void)!clan_send(*conn, CLAN_BULK, 1, bytes, 500);
	(void)!clan_send(*conn, CLAN_CONTROL, 1, bytes, 50);
	(void)!clan_recv(*conn, CLAN_ANY, &message, bytes, sizeof(bytes));
	(void)!clan_readv(*conn, &iov, 1, 0);
	if (clan_cookie_queue_pop(*conn, 0, &cookie) == 0) {
		(void)!clan_put(*conn, &iov, 1, &cookie, 0, CLAN_NOTIFY, 1, NULL);
		(void)!clan_get(*conn, &iov, 1, &cookie, 0, NULL);
	}
	if (clan_cookie_grant(*conn, region, 0, 4096, CLAN_WRITE, 0, &cookie) == 0) {
		(void)!clan_cookie_queue_push(*conn, 1, &cookie);
		(void)!clan_cookie_revoke(*conn, &cookie, 0, NULL);
	}
}

static void hostile_turn(struct hostile *hostile, struct script *script)
{
	uint8_t bytes[256];
	struct shm_message_head head;
	uint32_t length;

	switch (take(script, 1) % 6) {
	case 0: /* one word of a segment */
		length = take(script, 2) % (uint32_t)(hostile->segment_bytes / 4);
		atomic_store(&((shm_u32 *)(void *)hostile->segment)[length], take(script, 4));
		break;
	case 1: /* a message of the socket, with or without a descriptor */
		length = take(script, 1);
		for (uint32_t i = 0; i < length; i++) {
			bytes[i] = (uint8_t)take(script, 1);
		}
		hostile_send(hostile, bytes, length, &hostile->segment_fd, length & 1);
		break;
	case 2: /* a message of a ring */
		length = take(script, 1);
		head = (struct shm_message_head){
			.bytes = (uint16_t)take(script, 2),
			.type = (uint8_t)take(script, 1),
			.sequence = (uint16_t)hostile->sequence[length % SHM_CLASS_COUNT]++,
		};
		for (uint32_t i = 0; i < 48; i++) {
			bytes[i] = (uint8_t)take(script, 1);
		}
		hostile_put(hostile, length % SHM_CLASS_COUNT, head, bytes, 48);
		break;
	case 3: /* a region that is what it should be, or nearly */
	{
		struct shm_region region = {
			.head = { .bytes = sizeof(region), .type = SHM_REGION },
			.region = (uint16_t)take(script, 1),
			.rights = (uint16_t)take(script, 1),
			.generation = take(script, 1),
			.bytes = SHM_SEGMENT_ALIGN * (uint64_t)take(script, 1),
		};

		hostile_send(hostile, &region, sizeof(region), &hostile->segment_fd, 1);
		break;
	}
	default:
		hostile_publish(hostile);
		break;
	}
}

static void play(struct clan_queue *queue, struct clan_region *region, const char *address,
	struct script *script)
{
	struct rewriter rewriter = { .stop = false };
	struct clan_conn *conn = NULL;
	struct hostile hostile;
	pthread_t thread;
	bool rewrites;

	rewriter.random = take(script, 4);
	rewrites = rewriter.random != 0;
	hostile_open(&hostile, address);
	hostile_seal(&hostile);
	while (!hostile_send_hello(&hostile)) {
		victim_turn(queue, &conn, region);
	}
	/* WELCOME comes in an unspoilt world; then it begins. */
	while (conn == NULL) {
		victim_turn(queue, &conn, region);
	}
	GMB_ASSERT(hostile_welcomed(&hostile));
	rewriter.hostile = &hostile;
	if (rewrites) {
		int result = pthread_create(&thread, NULL, rewrite, &rewriter);

		GMB_ASSERT(result == 0);
	}
	for (int i = 0; i < OPERATIONS_MAX && script->at < script->end; i++) {
		hostile_turn(&hostile, script);
		victim_turn(queue, &conn, region);
	}
	if (rewrites) {
		atomic_store(&rewriter.stop, true);
		pthread_join(thread, NULL);
	}
	hostile_close(&hostile);
	while (conn != NULL) {
		victim_turn(queue, &conn, region);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct clan_queue_options kinds[] = {
		{ .size = sizeof(kinds[0]), .bell = CLAN_BELL_AUTO },
		{ .size = sizeof(kinds[0]), .bell = CLAN_BELL_SOCKET },
		{ .size = sizeof(kinds[0]), .flags = CLAN_QUEUE_PASSIVE },
	};
	static unsigned count;
	struct script script = { .at = data, .end = data + size };
	struct clan_listener *listener;
	struct clan_region *region;
	struct clan_queue *queue;
	char address[64];
	void *base;
	int result;

	snprintf(address, sizeof(address), "shm:@clan-fuzz-%d-%u", getpid(), count++);
	result = clan_queue_create(&kinds[take(&script, 1) % ARRAY_COUNT(kinds)], &queue, NULL);
	GMB_ASSERT(result == 0);
	result = clan_listen(queue, address, NULL, &listener, NULL);
	GMB_ASSERT(result == 0);
	result = clan_region_create(queue, SHM_SEGMENT_ALIGN, 0, &region, &base);
	GMB_ASSERT(result == 0);
	play(queue, region, address, &script);
	clan_listener_close(listener);
	result = clan_region_destroy(region);
	GMB_ASSERT(result == 0);
	result = clan_queue_destroy(queue);
	GMB_ASSERT(result == 0);
	return 0;
}
