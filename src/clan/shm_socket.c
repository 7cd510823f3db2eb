// SPDX-License-Identifier: Apache-2.0
/*
 * Messages on the socket of a connection: docs/protocol/clan.md §3.
 *
 * Invariant: every descriptor that arrives is either taken by a handler or passed to dispose(),
 * because closing a descriptor of another user can block.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rights.h"
#include "clan/shm.h"

enum {
	DESCRIPTORS_SENT_MAX = 2,
	MESSAGES_MAX = 64, /* limit on messages processed per turn */
};

#define NS_PER_MS     UINT64_C(1000000)
#define RESEND_MIN_NS (NS_PER_MS / 4)
#define RESEND_MAX_NS (20 * NS_PER_MS)
#define REREAD_NS     (20 * NS_PER_MS)
#define IN_FLIGHT_TEXT                                                                             \
	"the sender's user has more descriptors in flight than its limit on open files "           \
	"(RLIMIT_NOFILE) allows"
#define NOT_ACCEPTED_TEXT                                                                          \
	"the handshake timed out: the peer has not accepted the connection, or a security module " \
	"forbids sending descriptors to it"

_Static_assert(sizeof(struct shm_hello) + CLAN_HELLO_BYTES_MAX <= SHM_SOCKET_MESSAGE_MAX,
	"the largest message");

/* A received message, in private memory. */
struct arrival {
	_Alignas(8) uint8_t bytes[SHM_SOCKET_MESSAGE_MAX + 1];
	size_t length;
	int fds[RIGHTS_MAX];
	uint32_t fd_count;
};

/* --- sending ---------------------------------------------------------------------------------- */

/* A queued message with descriptors. It borrows the descriptors, which belong to the connection or
 * to a region that it shares. */
struct unsent {
	struct list_node node; /* in conn->unsent */
	int fds[DESCRIPTORS_SENT_MAX];
	uint32_t fd_count;
	uint32_t bytes;
	uint8_t message[];
};

/* Sends a message. Returns 0, -EAGAIN, -ETOOMANYREFS, -EPERM (the peer has not accepted the
 * connection) or another negative errno. */
static int shm_socket_transmit(const struct shm_conn *conn, const struct iovec *iov,
	uint32_t iov_count, const int *fds, uint32_t fd_count)
{
	_Alignas(struct cmsghdr)
		uint8_t control[CMSG_SPACE(DESCRIPTORS_SENT_MAX * sizeof(int))] = { 0 };
	struct msghdr message = { .msg_iov = (struct iovec *)(uintptr_t)iov,
		.msg_iovlen = iov_count };

	if (fd_count > 0) {
		struct cmsghdr *part = (struct cmsghdr *)(void *)control;

		GMB_ASSERT(fd_count <= DESCRIPTORS_SENT_MAX);
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		part->cmsg_level = SOL_SOCKET;
		part->cmsg_type = SCM_RIGHTS;
		part->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(part), fds, fd_count * sizeof(int));
	}
	return sendmsg(conn->file.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Queues a message behind those that are queued already. HELLO can wait for the whole handshake
 * time, other messages for half of it. So an acceptor that cannot send WELCOME can still send
 * REFUSED before the connector's handshake times out. */
static int shm_socket_keep(struct shm_conn *conn, const struct iovec *iov, uint32_t iov_count,
	const int *fds, uint32_t fd_count)
{
	uint64_t patience_ns = conn->conn.options.handshake_timeout_ms * NS_PER_MS /
			       (conn->conn.state == CLAN_CONNECTING ? 1 : 2);
	struct unsent *unsent;
	size_t bytes = 0;

	for (uint32_t i = 0; i < iov_count; i++) {
		bytes += iov[i].iov_len;
	}
	unsent = malloc(sizeof(*unsent) + bytes);
	if (unsent == NULL) {
		return -ENOMEM;
	}
	memcpy(unsent->fds, fds, fd_count * sizeof(int));
	unsent->fd_count = fd_count;
	unsent->bytes = 0;
	for (uint32_t i = 0; i < iov_count; i++) {
		memcpy(unsent->message + unsent->bytes, iov[i].iov_base, iov[i].iov_len);
		unsent->bytes += (uint32_t)iov[i].iov_len;
	}
	if (list_is_empty(&conn->unsent)) {
		conn->unsent_until_ns = clock_now_ns() + patience_ns;
		conn->resend_ns = RESEND_MIN_NS;
		clan_deadline_set(conn->conn.queue, &conn->resend, conn->resend_ns);
	}
	list_init(&unsent->node);
	list_push_back(&conn->unsent, &unsent->node);
	return 0;
}

void shm_unsent_drop(struct shm_conn *conn)
{
	struct list_node *node;

	clan_deadline_clear(&conn->resend);
	while ((node = list_pop_front(&conn->unsent)) != NULL) {
		free(list_entry(node, struct unsent, node));
	}
}

void shm_unsent_give_up(struct shm_conn *conn)
{
	bool is_accepted = conn->unsent_status != -EPERM;
	const char *text = is_accepted ? IN_FLIGHT_TEXT : NOT_ACCEPTED_TEXT;
	int status = is_accepted ? conn->unsent_status : -ETIMEDOUT;

	if (conn->conn.state == CLAN_OPEN && conn->own_fd >= 0) {
		shm_send_refused(conn, status, text);
	}
	shm_conn_end(conn, status, text);
}

/* Returns true if the kernel has rejected the descriptors of a message, but might accept them
 * later. */
static bool is_rejected_for_now(int result)
{
	return result == -ETOOMANYREFS || result == -EPERM;
}

static bool is_peer_gone(int result)
{
	return result == -EPIPE || result == -ECONNRESET || result == -ENOTCONN;
}

/* Sends the queued messages in order, until one cannot be sent. Gives up at unsent_until_ns. */
void shm_send_again(struct clan_deadline *deadline)
{
	struct shm_conn *conn = container_of(deadline, struct shm_conn, resend);
	struct list_node *node;

	while ((node = list_first(&conn->unsent)) != NULL) {
		struct unsent *unsent = list_entry(node, struct unsent, node);
		struct iovec iov = { .iov_base = unsent->message, .iov_len = unsent->bytes };
		int result = shm_socket_transmit(conn, &iov, 1, unsent->fds, unsent->fd_count);

		if (is_rejected_for_now(result) || result == -EAGAIN) {
			conn->unsent_status = result == -EAGAIN ? conn->unsent_status : result;
			if (clock_now_ns() < conn->unsent_until_ns) {
				conn->resend_ns = MIN(2 * conn->resend_ns, RESEND_MAX_NS);
				clan_deadline_set(conn->conn.queue, deadline, conn->resend_ns);
			} else {
				shm_unsent_give_up(conn);
			}
			return;
		}
		if (is_peer_gone(result)) {
			shm_conn_end(conn, -ECONNRESET, NULL);
			return;
		}
		if (result != 0) {
			char reason[CLAN_REASON_BYTES];

			snprintf(reason, sizeof(reason), "cannot send descriptors: %s",
				strerror(-result));
			shm_conn_end(conn, result, reason);
			return;
		}
		list_remove(node);
		free(unsent);
	}
	if (conn->conn.state == CLAN_OPEN) {
		shm_conn_established(conn);
	}
}

/* Sends a message of up to two parts. A message with descriptors is queued if the kernel rejects
 * the descriptors, or if other messages are queued, which it must not overtake. A message without
 * descriptors is never queued, because it does not depend on the queued messages. */
static int shm_socket_send_message(struct shm_conn *conn, enum shm_socket_type type, void *first,
	size_t first_bytes, const void *second, size_t second_bytes, const int *fds,
	uint32_t fd_count)
{
	struct shm_socket_head head = {
		.bytes = (uint16_t)(first_bytes + second_bytes),
		.type = (uint8_t)type,
	};
	struct iovec iov[2] = {
		{ .iov_base = first, .iov_len = first_bytes },
		{ .iov_base = (void *)(uintptr_t)second, .iov_len = second_bytes },
	};
	uint32_t iov_count = second_bytes > 0 ? 2 : 1;
	int result;

	memcpy(first, &head, sizeof(head));
	if (conn->file.fd < 0) {
		return -ENOTCONN;
	}
	if (fd_count > 0 && !list_is_empty(&conn->unsent)) {
		return shm_socket_keep(conn, iov, iov_count, fds, fd_count);
	}
	result = shm_socket_transmit(conn, iov, iov_count, fds, fd_count);
	if (fd_count > 0 && is_rejected_for_now(result)) {
		conn->unsent_status = result;
		return shm_socket_keep(conn, iov, iov_count, fds, fd_count);
	}
	return result == -EAGAIN ? -ENOBUFS : result; /* no event reports room in the socket */
}

/* Collects the descriptors to send: the segment, and the group head unless the peer has the group
 * already. */
static uint32_t set_up_fds(const struct shm_conn *conn, int fds[DESCRIPTORS_SENT_MAX])
{
	fds[0] = conn->own_fd;
	fds[1] = conn->group_fd;
	return conn->group_fd >= 0 ? 2 : 1;
}

int shm_send_hello(struct shm_conn *conn)
{
	struct shm_hello hello = {
		.magic = SHM_MAGIC_HELLO,
		.version_min = SHM_VERSION,
		.version_max = SHM_VERSION,
		.bell = conn->conn.queue->options.bell,
		.number = conn->number,
		.hello_bytes = (uint32_t)conn->conn.hello_bytes,
		.group = conn->group_fd >= 0 ? 0 : conn->group->id,
	};
	int fds[DESCRIPTORS_SENT_MAX];
	uint32_t fd_count = set_up_fds(conn, fds);

	return shm_socket_send_message(conn, SHM_HELLO, &hello, sizeof(hello), conn->conn.hello,
		conn->conn.hello_bytes, fds, fd_count);
}

int shm_send_welcome(struct shm_conn *conn, const void *hello, size_t hello_bytes)
{
	struct shm_welcome welcome = {
		.version = SHM_VERSION,
		.bell = conn->conn.queue->options.bell,
		.number = conn->number,
		.hello_bytes = (uint32_t)hello_bytes,
		.group = conn->group->id,
	};
	int fds[DESCRIPTORS_SENT_MAX];
	uint32_t fd_count = set_up_fds(conn, fds);

	return shm_socket_send_message(
		conn, SHM_WELCOME, &welcome, sizeof(welcome), hello, hello_bytes, fds, fd_count);
}

void shm_send_refused(struct shm_conn *conn, int status, const char *text)
{
	size_t text_bytes = strnlen(text, CLAN_HELLO_BYTES_MAX);
	struct shm_refused refused = {
		.error = (uint32_t)-status,
		.text_bytes = (uint32_t)text_bytes,
	};

	/* Errors are ignored, because the peer also learns about the rejection from the end of the
	 * socket. */
	(void)shm_socket_send_message(
		conn, SHM_REFUSED, &refused, sizeof(refused), text, text_bytes, NULL, 0);
}

int shm_send_region(struct shm_conn *conn, const struct clan_share *share)
{
	const struct clan_region *region = share->region;
	struct shm_region message = {
		.region = (uint16_t)share->number,
		.rights = (uint16_t)share->rights,
		.generation = share->generation,
		.offset = region->offset,
		.bytes = region->bytes,
	};

	return shm_socket_send_message(
		conn, SHM_REGION, &message, sizeof(message), NULL, 0, &region->fd, 1);
}

int shm_send_region_answer(struct shm_conn *conn, enum shm_socket_type type, uint32_t number,
	uint32_t generation, int error)
{
	struct shm_region_answer answer = {
		.region = (uint16_t)number,
		.error = (uint16_t)-error,
		.generation = generation,
	};

	return shm_socket_send_message(conn, type, &answer, sizeof(answer), NULL, 0, NULL, 0);
}

void shm_socket_close(struct shm_conn *conn)
{
	int fd = conn->file.fd;

	shm_unsent_drop(conn);
	clan_deadline_clear(&conn->reread);
	if (fd >= 0) {
		waiter_file_remove(conn->conn.queue->waiter, &conn->file);
		/* A bell byte might be among the unread messages, and is lost now. So the group is
		 * checked in the next turn. */
		if (conn->group != NULL && conn->group->peer_ready_slots != 0) {
			shm_group_activate(conn->group);
		}
		/* The socket can have unread messages with descriptors of any kind, and closing
		 * these can block. So dispose_socket() leaves the close to a worker, except on
		 * passive queues. */
		dispose_socket(fd, conn->conn.peer.uid, clan_queue_is_passive(conn->conn.queue));
	}
}

/* --- receiving -------------------------------------------------------------------------------- */

/* Disposes of the descriptors that no handler has taken. */
static void drop_fds(struct shm_conn *conn, struct arrival *arrival)
{
	if (arrival->fd_count > 0) {
		dispose(&(struct disposal){
			.fds = arrival->fds,
			.fd_count = arrival->fd_count,
			.of_peer = true,
			.owner = conn->conn.peer.uid,
			.in_caller = clan_queue_is_passive(conn->conn.queue),
		});
		arrival->fd_count = 0;
	}
}

static int shm_socket_wrong_length(struct shm_conn *conn)
{
	return shm_broken(conn, 5,
		"a message on the socket has a wrong length, or its reserved bytes are not 0");
}

static int wrong_fds(struct shm_conn *conn)
{
	return shm_broken(conn, 6, "a message on the socket has too many or too few descriptors");
}

static int wrong_state(struct shm_conn *conn)
{
	return shm_broken(conn, 7, "a message on the socket is out of order");
}

/* The common part of HELLO and WELCOME, after the connection has joined its group: maps the peer's
 * group head and segment. */
static int meet_peer(struct shm_conn *conn, struct arrival *arrival, uint32_t bell, uint32_t number)
{
	int result = 0;

	if (bell != CLAN_BELL_FUTEX && bell != CLAN_BELL_SOCKET) {
		return shm_broken(conn, 11, "the wake-up method is unknown");
	}
	if (number >= SHM_NUMBERS_MAX) {
		return shm_broken(conn, 10, "the connection number is invalid");
	}
	if (conn->group->peer == NULL) {
		uint32_t rule;

		result = shm_group_map_peer(conn->group, arrival->fds[1], &rule);
		if (result == -EPROTO) {
			return shm_broken(conn, rule, "the group header is invalid");
		}
	}
	if (result == 0) {
		conn->bell = bell;
		conn->peer_number = number;
		result = shm_conn_map_peer(conn, arrival->fds[0]);
	}
	if (result != 0 && result != -EPROTO) {
		shm_conn_end(conn, result, "not enough memory to map the memory of the peer");
	}
	return result;
}

/* Returns the group that HELLO names. Returns NULL if the connection cannot join the group, because
 * the group is full or its peer is another process or user. */
static struct shm_group *known_group(const struct shm_conn *conn, const struct shm_hello *hello)
{
	struct shm_group *group = shm_group_find(conn->conn.queue, hello->group);

	if (group == NULL || group->peer == NULL || group->conn_count >= group->conns_max ||
		group->pid != conn->conn.peer.pid || group->uid != conn->conn.peer.uid) {
		return NULL;
	}
	return group;
}

/* Adds the connection to a new group, or to the group that HELLO names. Returns 0, -ENOENT if that
 * group cannot be joined (REGROUP follows), or another negative errno. */
static int join_group(struct shm_conn *conn, const struct shm_hello *hello)
{
	struct shm_group *group;

	if (hello->group == 0) {
		uint64_t id;

		/* The number comes from the kernel's random generator, because a process that has
		 * one number must not be able to predict another. */
		do {
			if (getrandom(&id, sizeof(id), 0) != sizeof(id)) {
				return -EIO;
			}
		} while (id == 0);
		return shm_conn_new_group(conn, id);
	}
	group = known_group(conn, hello);
	return group == NULL ? -ENOENT : shm_group_join(group, conn);
}

/* HELLO: checks it, joins a group, maps the peer's segments and creates ours, then offers the
 * connection to the program. Failures for lack of resources are answered with REFUSED. */
static int shm_socket_hello_arrived(struct shm_conn *conn, struct arrival *arrival)
{
	struct shm_hello hello;
	int result;

	if (conn->conn.state != CLAN_OPENING) {
		return wrong_state(conn);
	}
	if (arrival->length < sizeof(hello)) {
		return shm_socket_wrong_length(conn);
	}
	memcpy(&hello, arrival->bytes, sizeof(hello));
	if (hello.magic != SHM_MAGIC_HELLO || hello.hello_bytes > CLAN_HELLO_BYTES_MAX ||
		arrival->length != sizeof(hello) + hello.hello_bytes) {
		return shm_socket_wrong_length(conn);
	}
	if (arrival->fd_count != (hello.group == 0 ? 2 : 1)) {
		return wrong_fds(conn);
	}
	if (hello.version_min > SHM_VERSION || hello.version_max < SHM_VERSION) {
		shm_send_refused(conn, -EPROTONOSUPPORT,
			"the listener supports only version 1 of the clan protocol");
		shm_conn_end(conn, -EPROTONOSUPPORT, "no version in common");
		return -EPROTO;
	}
	if (hello.group != 0 && conn->regrouped) {
		return wrong_state(conn);
	}
	result = join_group(conn, &hello);
	if (result == -ENOENT) {
		struct shm_socket_head regroup;

		conn->regrouped = true;
		result = shm_socket_send_message(
			conn, SHM_REGROUP, &regroup, sizeof(regroup), NULL, 0, NULL, 0);
		if (result != 0) {
			shm_conn_end(conn, -ECONNRESET, "the peer has disconnected");
		}
		return result;
	}
	if (result == 0) {
		result = meet_peer(conn, arrival, hello.bell, hello.number);
		if (result != 0) {
			return result;
		}
		result = clan_conn_set_hello(
			&conn->conn, arrival->bytes + sizeof(hello), hello.hello_bytes);
	}
	if (result == 0) {
		result = shm_conn_make_segment(conn);
	}
	if (result != 0) {
		shm_send_refused(conn, result, "not enough memory or descriptors");
		shm_conn_end(conn, result, "not enough memory or descriptors");
		return result;
	}
	clan_conn_set_state(&conn->conn, CLAN_OFFERED);
	conn->conn.known = true;
	conn->conn.connect_pending = true;
	clan_fire(conn->conn.queue, &conn->conn.source);
	return 0;
}

/* WELCOME: does for the connector what HELLO does for the acceptor. The acceptor has assigned the
 * group's number. */
static int welcome_arrived(struct shm_conn *conn, struct arrival *arrival)
{
	struct shm_welcome welcome;
	bool new_group = conn->group_fd >= 0;
	int result;

	if (conn->conn.state != CLAN_CONNECTING) {
		return wrong_state(conn);
	}
	if (arrival->length < sizeof(welcome)) {
		return shm_socket_wrong_length(conn);
	}
	memcpy(&welcome, arrival->bytes, sizeof(welcome));
	if (welcome.version != SHM_VERSION || welcome.reserved != 0 ||
		welcome.hello_bytes > CLAN_HELLO_BYTES_MAX || welcome.group == 0 ||
		arrival->length != sizeof(welcome) + welcome.hello_bytes) {
		return shm_socket_wrong_length(conn);
	}
	if (arrival->fd_count != (new_group ? 2 : 1)) {
		return wrong_fds(conn);
	}
	if (!new_group && welcome.group != conn->group->id) {
		return wrong_state(conn);
	}
	conn->group->id = welcome.group;
	result = meet_peer(conn, arrival, welcome.bell, welcome.number);
	if (result != 0) {
		return result;
	}
	if (clan_conn_set_hello(
		    &conn->conn, arrival->bytes + sizeof(welcome), welcome.hello_bytes) != 0) {
		shm_conn_end(conn, -ENOMEM, "not enough memory");
		return -ENOMEM;
	}
	conn->conn.connect_pending = true;
	clan_fire(conn->conn.queue, &conn->conn.source);
	shm_conn_opened(conn);
	return 0;
}

/* REFUSED ends the attempt to connect. Except for -EPROTONOSUPPORT, the program gets -ECONNREFUSED
 * with the peer's text. */
static int shm_socket_refused_arrived(struct shm_conn *conn, struct arrival *arrival)
{
	struct shm_refused refused;
	char reason[CLAN_REASON_BYTES];

	if (conn->conn.state != CLAN_CONNECTING) {
		return wrong_state(conn);
	}
	if (arrival->length < sizeof(refused)) {
		return shm_socket_wrong_length(conn);
	}
	memcpy(&refused, arrival->bytes, sizeof(refused));
	if (refused.text_bytes > CLAN_HELLO_BYTES_MAX ||
		arrival->length != sizeof(refused) + refused.text_bytes) {
		return shm_socket_wrong_length(conn);
	}
	clan_conn_refused(
		&conn->conn, arrival->bytes + sizeof(refused), refused.text_bytes, reason);
	shm_conn_end(
		conn, refused.error == EPROTONOSUPPORT ? -EPROTONOSUPPORT : -ECONNREFUSED, reason);
	return -ECONNREFUSED;
}

/* REGROUP: the acceptor does not have the group, so HELLO is sent again with a new one. */
static int regroup_arrived(struct shm_conn *conn, struct arrival *arrival)
{
	int result;

	if (conn->conn.state != CLAN_CONNECTING || conn->regrouped || conn->group_fd >= 0) {
		return wrong_state(conn);
	}
	if (arrival->length != sizeof(struct shm_socket_head)) {
		return shm_socket_wrong_length(conn);
	}
	conn->regrouped = true;
	result = shm_conn_new_group(conn, 0);
	if (result == 0) {
		result = shm_send_hello(conn);
	}
	if (result != 0) {
		shm_conn_end(conn, result, "cannot send a second hello to the peer");
	}
	return result;
}

/* SHM_REGION_OK and SHM_REGION_ENDED must name a share, by number and generation, that waits for
 * this answer. SHM_REGION_END is a request: the peer wants its own region back. */
static int shm_socket_answer_arrived(
	struct shm_conn *conn, enum shm_socket_type type, const struct arrival *arrival)
{
	struct shm_region_answer answer;
	struct clan_share *share;

	if (conn->conn.state != CLAN_OPEN) {
		return wrong_state(conn);
	}
	if (arrival->length != sizeof(answer)) {
		return shm_socket_wrong_length(conn);
	}
	memcpy(&answer, arrival->bytes, sizeof(answer));
	if (type != SHM_REGION_OK && answer.error != 0) {
		return shm_socket_wrong_length(conn);
	}
	if (type == SHM_REGION_END) {
		return shm_region_asked_back(conn, answer.region, answer.generation);
	}
	share = clan_share_find(&conn->conn, answer.region);
	if (share == NULL || share->generation != answer.generation ||
		share->state != (type == SHM_REGION_OK ? CLAN_SHARE_ASKED : CLAN_SHARE_ENDING)) {
		return shm_broken(conn, 9, "a reply for a region that was not requested");
	}
	if (type == SHM_REGION_OK) {
		clan_share_answered(share, -(int)answer.error);
	} else {
		clan_share_returned(share);
	}
	return 0;
}

/* The descriptor is removed from the arrival, because shm_region_arrived() owns it. */
static int region_arrived(struct shm_conn *conn, struct arrival *arrival)
{
	struct shm_region message;
	int fd;

	if (conn->conn.state != CLAN_OPEN) {
		return wrong_state(conn);
	}
	if (arrival->length != sizeof(message)) {
		return shm_socket_wrong_length(conn);
	}
	memcpy(&message, arrival->bytes, sizeof(message));
	fd = arrival->fds[0];
	arrival->fd_count = 0;
	return shm_region_arrived(conn, &message, fd);
}

/* Processes a message. Returns nonzero if no further messages of the connection may be processed.
 */
static int shm_socket_message_arrived(struct shm_conn *conn, struct arrival *arrival)
{
	struct shm_socket_head head;

	if (arrival->length == 1 && arrival->bytes[0] == SHM_BELL) {
		if (arrival->fd_count != 0) {
			return wrong_fds(conn);
		}
		if (conn->conn.state != CLAN_OPEN ||
			conn->conn.queue->options.bell != CLAN_BELL_SOCKET) {
			return wrong_state(conn);
		}
		shm_group_bell(conn->group);
		return conn->conn.state == CLAN_OPEN ? 0 : -ENOTCONN;
	}
	if (arrival->length < sizeof(head)) {
		return shm_socket_wrong_length(conn);
	}
	memcpy(&head, arrival->bytes, sizeof(head));
	if (head.bytes != arrival->length || head.reserved != 0 || head.reserved2 != 0) {
		return shm_socket_wrong_length(conn);
	}
	if (head.type != SHM_HELLO && head.type != SHM_WELCOME &&
		arrival->fd_count != (head.type == SHM_REGION ? 1 : 0)) {
		return wrong_fds(conn);
	}
	switch (head.type) {
	case SHM_HELLO:
		return shm_socket_hello_arrived(conn, arrival);
	case SHM_WELCOME:
		return welcome_arrived(conn, arrival);
	case SHM_REFUSED:
		return shm_socket_refused_arrived(conn, arrival);
	case SHM_REGROUP:
		return regroup_arrived(conn, arrival);
	case SHM_REGION:
		return region_arrived(conn, arrival);
	case SHM_REGION_OK:
	case SHM_REGION_END:
	case SHM_REGION_ENDED:
		return shm_socket_answer_arrived(conn, head.type, arrival);
	default:
		return shm_socket_wrong_length(conn);
	}
}

/* Receives and processes one message. Returns 0, -EAGAIN, or another value if the connection has
 * ended. */
static int shm_socket_receive(struct shm_conn *conn, struct arrival *arrival)
{
	/* The buffer has room for the maximum number of descriptors of a message. Otherwise the
	 * kernel would close the excess descriptors within this call, which could block. */
	_Alignas(struct cmsghdr) uint8_t control[RIGHTS_CONTROL_BYTES];
	struct iovec iov = { .iov_base = arrival->bytes, .iov_len = sizeof(arrival->bytes) };
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t length = recvmsg(conn->file.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int result;

	if (length < 0 && errno == ECONNRESET) {
		/* The peer has closed its socket with unread messages of ours. The kernel reports
		 * this once, so the call is repeated: it returns messages of the peer, such as
		 * REFUSED. */
		length = recvmsg(conn->file.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	}
	if (length < 0) {
		if (errno == EAGAIN || errno == EINTR) {
			return -EAGAIN;
		}
		length = 0;
		message.msg_controllen = 0; /* the failed call has not set msg_controllen */
	}
	arrival->length = (size_t)length;
	arrival->fd_count = rights_collect(&message, arrival->fds);
	if (length == 0) {
		shm_conn_end(conn, -ECONNRESET, NULL);
		result = -ECONNRESET;
	} else if ((message.msg_flags & MSG_CTRUNC) != 0) {
		result = wrong_fds(conn);
	} else if ((message.msg_flags & MSG_TRUNC) != 0 ||
		   arrival->length > SHM_SOCKET_MESSAGE_MAX) {
		result = shm_socket_wrong_length(conn);
	} else {
		result = shm_socket_message_arrived(conn, arrival);
	}
	drop_fds(conn, arrival);
	return result;
}

/* Peeks at the next message. The buffer has no room for descriptors, so they stay in the message,
 * and MSG_CTRUNC shows that there are some. */
static bool next_has_files(int fd)
{
	char byte;
	struct iovec iov = { .iov_base = &byte, .iov_len = sizeof(byte) };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	return recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT) >= 0 &&
	       (message.msg_flags & MSG_CTRUNC) != 0;
}

/* Stops receiving for REREAD_NS, because the limit on descriptors that wait to be closed is
 * reached. Further descriptors stay in the socket, where the kernel counts them for the sender's
 * user. */
static void receive_later(struct shm_conn *conn, uint32_t events)
{
	if ((events & (EPOLLHUP | EPOLLERR)) != 0) { /* epoll reports these even if not requested */
		shm_conn_end(conn, -ECONNRESET, NULL);
		return;
	}
	waiter_file_events(conn->conn.queue->waiter, &conn->file, 0);
	clan_deadline_set(conn->conn.queue, &conn->reread, REREAD_NS);
}

void shm_receive_again(struct clan_deadline *deadline)
{
	struct shm_conn *conn = container_of(deadline, struct shm_conn, reread);

	waiter_file_events(conn->conn.queue->waiter, &conn->file, SHM_SOCKET_EVENTS);
}

/* Receives up to MESSAGES_MAX messages. A message with descriptors stays in the socket while too
 * many descriptors of its sender wait to be closed. */
void shm_socket_happened(struct waiter_file *file, uint32_t events)
{
	struct shm_conn *conn = container_of(file, struct shm_conn, file);
	struct arrival arrival;

	for (int i = 0; i < MESSAGES_MAX && file->fd >= 0; i++) {
		if (!dispose_has_room(conn->conn.peer.uid) && next_has_files(file->fd)) {
			receive_later(conn, events);
			break;
		}
		if (shm_socket_receive(conn, &arrival) != 0) {
			break;
		}
	}
}
