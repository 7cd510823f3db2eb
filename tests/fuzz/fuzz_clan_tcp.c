// SPDX-License-Identifier: Apache-2.0
/*
 * A peer of libclan at the other end of a socket (docs/protocol/clan.md §12), that follows a
 * script: each operation is one byte and what it needs. The victim has granted it a part of a
 * region, and expects puts in a window of it that moves; the rest of the region must stay as it is,
 * and everything must be given back.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "clan/tcp.h"

#include "fuzz.h"

enum {
	OPERATIONS_MAX = 64,
	REGION_BYTES = 16384,
	GRANTED_BYTES = 4096,
	WINDOW_BYTES = 1024,
	TURNS_MAX = 2000,
};

struct script {
	const uint8_t *at;
	const uint8_t *end;
};

struct victim {
	struct clan_queue *queue;
	struct clan_listener *listener;
	struct clan_conn *conn;
	struct clan_region *region;
	uint8_t *base;
	size_t window;			    /* offset of the bytes in which puts are expected */
	size_t window_next;		    /* window of the next turn */
	uint8_t bytes[CLAN_BULK_BYTES_MAX]; /* of its puts and gets */
};

static uint32_t take(struct script *script, unsigned bytes)
{
	uint32_t value = 0;

	while (bytes-- > 0) {
		value = value << 8 | (script->at < script->end ? *script->at++ : 0);
	}
	return value;
}

/* --- the victim ------------------------------------------------------------------------------- */

static int is_expected(void *context, const void *memory, size_t bytes)
{
	const struct victim *victim = context;
	size_t at = (size_t)((const uint8_t *)memory - victim->base) - victim->window;

	return at < WINDOW_BYTES && bytes <= WINDOW_BYTES - at;
}

static void take_events(struct victim *victim)
{
	struct clan_cookie cookie;
	struct clan_event events[8];
	int count;

	clan_queue_arm(victim->queue); /* so that it looks at descriptors, too */
	count = clan_queue_wait(victim->queue, events, 8, 0);
	for (int i = 0; i < count; i++) {
		switch (events[i].type) {
		case CLAN_EVENT_CONNECT:
			victim->conn = events[i].conn;
			clan_conn_set_context(victim->conn, victim);
			clan_conn_check_puts(victim->conn, is_expected);
			if (clan_accept(victim->conn, "x", 1) == 0) {
				(void)!clan_region_share(
					victim->conn, victim->region, CLAN_READ | CLAN_WRITE);
			}
			break;
		case CLAN_EVENT_SHARED:
			(void)!clan_cookie_grant(victim->conn, victim->region, 0, GRANTED_BYTES,
				CLAN_READ | CLAN_WRITE, 0, &cookie);
			break;
		case CLAN_EVENT_LOST:
			clan_close(events[i].conn); /* CLOSED comes with a later wait */
			victim->conn = NULL;
			break;
		default:
			break;
		}
	}
}

static void victim_turn(struct victim *victim, struct script *script)
{
	struct iovec iov = { .iov_base = victim->bytes, .iov_len = take(script, 1) * 16 };
	struct clan_message message;
	struct clan_cookie cookie;
	uint32_t does = take(script, 1);

	take_events(victim);
	victim->window_next = does * (GRANTED_BYTES - WINDOW_BYTES) / 255;
	if (victim->conn == NULL || clan_conn_reason(victim->conn)[0] != '\0') {
		return;
	}
	(void)!clan_send(victim->conn, CLAN_BULK, 1, victim->bytes, 100);
	(void)!clan_recv(victim->conn, CLAN_ANY, &message, victim->bytes, sizeof(victim->bytes));
	(void)!clan_readv(victim->conn, &iov, 1, 0);
	if (clan_cookie_queue_pop(victim->conn, 0, &cookie) == 0) {
		(void)!clan_put(victim->conn, &iov, 1, &cookie, 0, CLAN_NOTIFY, 1, NULL);
		(void)!clan_get(victim->conn, &iov, 1, &cookie, 0, NULL);
	}
	cookie = (struct clan_cookie){ .slot = 0, .generation = 1 };
	if (does % 8 == 1) {
		(void)!clan_cookie_revoke(victim->conn, &cookie, 0, NULL);
	} else if (does % 8 == 2) {
		(void)!clan_region_unshare(victim->conn, victim->region);
	} else if (does % 8 == 3) {
		clan_close(victim->conn);
		victim->conn = NULL;
	}
}

/* --- the peer --------------------------------------------------------------------------------- */

static void send_bytes(int fd, const void *bytes, size_t count)
{
	ssize_t ignored = send(fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);

	GMB_UNUSED(ignored);
}

static void send_frame(int fd, uint32_t class, uint32_t type, const void *payload, size_t bytes)
{
	uint8_t data[sizeof(struct tcp_head) + sizeof(struct net_frame_head) +
		     sizeof(struct net_record_head) + 512] = { 0 };
	struct net_record_head record = { .bytes = (uint16_t)(sizeof(record) + bytes),
		.type = (uint8_t)type,
		.class = (uint8_t) class };
	struct net_frame_head frame = {
		.bytes = (uint16_t)(sizeof(frame) + align_up(record.bytes, NET_RECORD_ALIGN))
	};
	struct tcp_head head = { .kind = TCP_FRAME, .bytes = frame.bytes };
	size_t at = 0;

	memcpy(data, &head, sizeof(head));
	at += sizeof(head);
	memcpy(data + at, &frame, sizeof(frame));
	at += sizeof(frame);
	memcpy(data + at, &record, sizeof(record));
	memcpy(data + at + sizeof(record), payload, bytes);
	send_bytes(fd, data, sizeof(head) + frame.bytes);
}

static void peer_turn(int fd, struct script *script)
{
	uint8_t bytes[256] = { 0 };
	uint32_t what = take(script, 1);
	struct tcp_access_head head;
	uint32_t count;

	switch (what % 8) {
	case 0: /* anything */
		count = take(script, 1);
		for (uint32_t i = 0; i < count; i++) {
			bytes[i] = (uint8_t)take(script, 1);
		}
		send_bytes(fd, bytes, count);
		break;
	case 1: /* a record */
		count = take(script, 2);
		for (uint32_t i = 0; i < count >> 8; i++) {
			bytes[i] = (uint8_t)take(script, 1);
		}
		send_frame(fd, count % 4, take(script, 1), bytes, count >> 8);
		break;
	case 2: /* puts and gets, often such as may be */
	case 3:
	case 4:
		head = (struct tcp_access_head){
			.head = { .kind = what % 8 == 2 ? TCP_READ : TCP_WRITE,
				.slot = (uint16_t)take(script, 1),
				.bytes = take(script, 2) },
			.generation = take(script, 1),
			.offset = take(script, 2),
		};
		send_bytes(fd, &head, sizeof(head));
		memset(bytes, 'x', sizeof(bytes));
		for (uint32_t left = what % 8 == 3 ? head.head.bytes : what; left > 0;) {
			uint32_t part = left < sizeof(bytes) ? left : (uint32_t)sizeof(bytes);

			send_bytes(fd, bytes, part);
			left -= part;
		}
		break;
	case 5: /* what was granted is given back */
		count = take(script, 1);
		memcpy(bytes, &(struct net_revoke){ .slot = 0, .generation = 1 },
			sizeof(struct net_revoke));
		send_frame(fd, NET_SYSTEM, count % 2 == 0 ? NET_REVOKED : NET_REGION_ENDED, bytes,
			sizeof(struct net_revoke));
		break;
	case 6: /* answers to gets */
		head.head = (struct tcp_head){ .kind = TCP_ANSWER, .bytes = take(script, 1) * 16 };
		send_bytes(fd, &head.head, sizeof(head.head));
		send_bytes(fd, bytes, MIN(head.head.bytes, (uint32_t)sizeof(bytes)));
		break;
	default: /* takes what has come */
		while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
		}
		break;
	}
}

static int peer_open(const struct victim *victim, bool says_hello)
{
	const struct net_hello hello = { .magic = TCP_MAGIC,
		.version_min = NET_VERSION,
		.version_max = NET_VERSION,
		.bulk_slots = 256,
		.cookies = 4 };
	const struct net_region_answer answer = { .region = 0, .generation = 1 };
	struct sockaddr_in address = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unsigned port = 0;
	int result = sscanf(clan_listener_address(victim->listener), "tcp:127.0.0.1:%u", &port);

	GMB_ASSERT(fd >= 0 && result == 1);
	address.sin_port = htons((uint16_t)port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	result = connect(fd, (struct sockaddr *)&address, sizeof(address));
	GMB_ASSERT(result == 0);
	if (says_hello) {
		send_frame(fd, NET_SYSTEM, NET_HELLO, &hello, sizeof(hello));
		send_frame(fd, NET_SYSTEM, NET_REGION_OK, &answer, sizeof(answer));
	}
	return fd;
}

/* --- one input -------------------------------------------------------------------------------- */

static void victim_open(struct victim *victim)
{
	const struct clan_conn_options options = { .size = sizeof(options),
		.access = CLAN_ACCESS_ANY };
	void *base;
	int result = clan_queue_create(NULL, &victim->queue, NULL);

	GMB_ASSERT(result == 0);
	result = clan_listen(victim->queue, "tcp:127.0.0.1:0", &options, &victim->listener, NULL);
	GMB_ASSERT(result == 0);
	result = clan_region_create(victim->queue, REGION_BYTES, 0, &victim->region, &base);
	GMB_ASSERT(result == 0);
	victim->base = base;
}

/* All that the connection had is given back: the region can be destroyed. */
static void victim_close(struct victim *victim)
{
	int result = -1;

	clan_listener_close(victim->listener);
	for (int i = 0; i < TURNS_MAX && result != 0; i++) {
		struct clan_event event;

		if (victim->conn != NULL) {
			if (clan_conn_reason(victim->conn)[0] == '\0' || i > 0) {
				clan_close(victim->conn);
				victim->conn = NULL;
			} else {
				take_events(victim);
			}
			continue;
		}
		(void)!clan_queue_wait(victim->queue, &event, 1, 1);
		if (victim->region != NULL && clan_region_destroy(victim->region) == 0) {
			victim->region = NULL;
		}
		result = victim->region == NULL ? clan_queue_destroy(victim->queue) : -1;
	}
	GMB_ASSERT(result == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script script = { data, data + size };
	struct victim victim = { 0 };
	int fd;

	victim_open(&victim);
	fd = peer_open(&victim, take(&script, 1) % 8 != 0);
	for (int i = 0; i < OPERATIONS_MAX && script.at < script.end; i++) {
		memset(victim.base, 0, GRANTED_BYTES);
		victim.window = victim.window_next;
		take_events(&victim);
		peer_turn(fd, &script);
		victim_turn(&victim, &script);
		for (size_t at = 0; at < REGION_BYTES; at++) {
			GMB_ASSERT(victim.base[at] == 0 || at - victim.window < WINDOW_BYTES);
		}
	}
	close(fd);
	victim_close(&victim);
	return 0;
}
