// SPDX-License-Identifier: Apache-2.0
/*
 * Listeners of the provider shm, and the life of its connections: docs/protocol/clan.md §2.2 and
 * §3. A connection that has ended stays in its group until it is freed, because its mappings can be
 * shared with other connections.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/rights.h"
#include "clan/shm.h"

#if !defined(__x86_64__)
#error "the provider shm has been modelled for x86-64 only"
#endif

#define NS_PER_MS UINT64_C(1000000)

enum {
	LISTEN_BACKLOG = 128,
	ACCEPT_MAX = 16, /* limit on connections accepted per turn */
	ACCEPT_RETRY_MS = 100,
};

static int shm_queue_use(struct clan_queue *queue)
{
	struct shm_queue *shm;

	if (shm_queue(queue) != NULL) {
		return 0;
	}
	shm = calloc(1, sizeof(*shm));
	if (shm == NULL) {
		return -ENOMEM;
	}
	list_init(&shm->groups);
	list_init(&shm->active);
	list_init(&shm->dirty);
	list_init(&shm->dead);
	queue->carriers[CLAN_SHM] = shm;
	return 0;
}

static void shm_queue_destroy(struct clan_queue *queue)
{
	free(queue->carriers[CLAN_SHM]);
	queue->carriers[CLAN_SHM] = NULL;
}

/* --- segments --------------------------------------------------------------------------------- */

static void shm_shape_fill(struct shm_shape *shape)
{
	size_t at = SHM_HEADER_BYTES + shape->cookies * sizeof(struct shm_cookie);

	shape->tripwire_offset = at;
	at = align_up(at + shape->tripwires * sizeof(struct shm_tripwire), SHM_SEGMENT_ALIGN);
	for (int class = 0; class < SHM_CLASS_COUNT; class ++) {
		shape->slot_offset[class] = at;
		at += (size_t)shape->slots[class] * SHM_SLOT_BYTES;
	}
	shape->bytes = align_up(at, SHM_SEGMENT_ALIGN);
}

int shm_conn_make_segment(struct shm_conn *conn)
{
	struct shm_shape shape = {
		.slots = { SHM_SYSTEM_SLOTS, SHM_CONTROL_SLOTS, conn->conn.options.bulk_slots },
		.cookies = conn->conn.options.cookies,
		.tripwires = conn->conn.options.tripwires,
	};
	uint8_t *base;
	int result;

	shm_shape_fill(&shape);
	result = segment_create("clan-conn", shape.bytes, &base, &conn->own_fd);
	if (result != 0) {
		return result;
	}
	conn->own = (struct shm_conn_head *)(void *)base;
	conn->own_bytes = shape.bytes;
	conn->own->magic = SHM_MAGIC_CONN;
	conn->own->version = SHM_VERSION;
	memcpy(conn->own->slots, shape.slots, sizeof(shape.slots));
	conn->own->cookies = shape.cookies;
	conn->own->tripwires = shape.tripwires;
	conn->own->bytes = shape.bytes;
	conn->own_cookies = (struct shm_cookie *)(void *)(base + SHM_HEADER_BYTES);
	conn->own_tripwires = (struct shm_tripwire *)(void *)(base + shape.tripwire_offset);
	for (int class = 0; class < SHM_CLASS_COUNT; class ++) {
		conn->out[class].slots = base + shape.slot_offset[class];
		conn->out[class].mask = shape.slots[class] - 1;
	}
	return 0;
}

static bool shm_head_is_valid(const struct shm_conn *conn, const struct shm_conn_head *head)
{
	return head->magic == SHM_MAGIC_CONN && head->version == SHM_VERSION &&
	       head->slots[SHM_SYSTEM] == SHM_SYSTEM_SLOTS &&
	       head->slots[SHM_CONTROL] == SHM_CONTROL_SLOTS &&
	       is_power_of_two(head->slots[SHM_BULK]) &&
	       head->slots[SHM_BULK] >= CLAN_BULK_SLOTS_MIN &&
	       head->slots[SHM_BULK] <= conn->conn.options.peer_slots_max && head->cookies >= 1 &&
	       head->cookies <= CLAN_TABLE_MAX && head->tripwires >= 1 &&
	       head->tripwires <= CLAN_TABLE_MAX;
}

int shm_conn_map_peer(struct shm_conn *conn, int fd)
{
	struct segment_identity identity;
	struct shm_conn_head head;
	struct shm_shape shape;
	uint8_t *base;
	int result;

	if (segment_check(fd, SEGMENT_SEALED_SIZE | SEGMENT_SEALED_WRITER, &identity) != 0) {
		return shm_broken(conn, 1, "the segment is not a sealed memfd");
	}
	/* The shape of the largest segment that our limits permit. */
	shape = (struct shm_shape){
		.slots = { SHM_SYSTEM_SLOTS, SHM_CONTROL_SLOTS, conn->conn.options.peer_slots_max },
		.cookies = CLAN_TABLE_MAX,
		.tripwires = CLAN_TABLE_MAX,
	};
	shm_shape_fill(&shape);
	if (identity.bytes < SHM_SEGMENT_ALIGN || identity.bytes > shape.bytes ||
		!is_aligned(identity.bytes, SHM_SEGMENT_ALIGN)) {
		return shm_broken(conn, 3, "the segment has an invalid size");
	}
	result = segment_map(fd, 0, identity.bytes, false, &base);
	if (result != 0) {
		return result;
	}
	conn->peer = (const struct shm_conn_head *)(const void *)base;
	conn->peer_bytes = identity.bytes;
	memcpy(&head, base, offsetof(struct shm_conn_head, want));
	if (!shm_head_is_valid(conn, &head)) {
		return shm_broken(conn, 4, "the header of the segment is invalid");
	}
	memcpy(shape.slots, head.slots, sizeof(shape.slots));
	shape.cookies = head.cookies;
	shape.tripwires = head.tripwires;
	shm_shape_fill(&shape);
	if (shape.bytes != identity.bytes || head.bytes != identity.bytes) {
		return shm_broken(conn, 3, "the segment has a different size than its header says");
	}
	conn->peer_cookies = (const struct shm_cookie *)(const void *)(base + SHM_HEADER_BYTES);
	conn->peer_cookie_count = shape.cookies;
	conn->peer_tripwires =
		(const struct shm_tripwire *)(const void *)(base + shape.tripwire_offset);
	conn->peer_tripwire_count = shape.tripwires;
	for (int class = 0; class < SHM_CLASS_COUNT; class ++) {
		conn->in[class].slots = base + shape.slot_offset[class];
		conn->in[class].mask = shape.slots[class] - 1;
	}
	return 0;
}

/* --- life of a connection --------------------------------------------------------------------- */

static void handshake_too_long(struct clan_deadline *deadline)
{
	struct shm_conn *conn = container_of(deadline, struct shm_conn, conn.deadline);

	if (!list_is_empty(&conn->unsent)) {
		shm_unsent_give_up(conn);
	} else {
		shm_conn_end(conn, -ETIMEDOUT, "the handshake timed out");
	}
}

static struct shm_conn *shm_conn_create(struct clan_queue *queue,
	const struct clan_conn_options *options, enum clan_state state, struct error *error)
{
	struct shm_conn *conn;

	if (queue->conn_count >= queue->options.conns_max) {
		error_set(error, -EUSERS, "the queue has reached its limit of %u connections",
			queue->options.conns_max);
		return NULL;
	}
	conn = shm_queue_use(queue) == 0 ? calloc(1, sizeof(*conn)) : NULL;
	if (conn == NULL) {
		error_set(error, -ENOMEM, "not enough memory for a connection");
		return NULL;
	}
	clan_conn_init(&conn->conn, &clan_provider_shm, queue, options, state);
	conn->conn.deadline.expired = handshake_too_long;
	conn->file = (struct waiter_file){ .fd = -1, .happened = shm_socket_happened };
	conn->own_fd = -1;
	conn->group_fd = -1;
	list_init(&conn->dirty_node);
	list_init(&conn->dead_node);
	list_init(&conn->revocations);
	list_init(&conn->copies);
	list_init(&conn->region_list);
	list_init(&conn->unsent);
	list_init(&conn->resend.node);
	conn->resend.expired = shm_send_again;
	list_init(&conn->reread.node);
	conn->reread.expired = shm_receive_again;
	clan_deadline_set(queue, &conn->conn.deadline, options->handshake_timeout_ms * NS_PER_MS);
	return conn;
}

static void close_fd(int *fd)
{
	if (*fd >= 0) {
		close(*fd);
		*fd = -1;
	}
}

static void shm_conn_destroy(struct clan_conn *base)
{
	struct shm_conn *conn = shm_conn(base);

	shm_conn_handshake_ended(conn);
	if (conn->listener != NULL) {
		conn->listener->conn_count--;
		if (conn->listener->closed && conn->listener->conn_count == 0) {
			free(conn->listener);
		}
	}
	shm_socket_close(conn);
	close_fd(&conn->own_fd);
	close_fd(&conn->group_fd);
	list_remove(&conn->dirty_node);
	list_remove(&conn->dead_node);
	shm_memory_free(conn);
	shm_group_leave(conn);
	if (conn->own != NULL) {
		munmap(conn->own, conn->own_bytes);
	}
	if (conn->peer != NULL) {
		munmap((void *)(uintptr_t)conn->peer, conn->peer_bytes);
	}
	clan_conn_fini(base);
	free(conn->place);
	free(conn);
}

int shm_conn_new_group(struct shm_conn *conn, uint64_t id)
{
	struct shm_group *group;
	int result;

	shm_group_leave(conn);
	result = shm_group_create(conn->conn.queue, id, &group, &conn->group_fd);
	if (result != 0) {
		return result;
	}
	group->pid = conn->conn.peer.pid;
	group->uid = conn->conn.peer.uid;
	result = shm_group_join(group, conn);
	if (result == 0 && conn->place != NULL) {
		group->place = strdup(conn->place);
		result = group->place == NULL ? -ENOMEM : 0;
	} else if (result != 0) {
		shm_group_free(group);
	}
	return result;
}

void shm_conn_handshake_ended(struct shm_conn *conn)
{
	clan_deadline_clear(&conn->conn.deadline);
	if (conn->handshake_counted) {
		conn->handshake_counted = false;
		conn->listener->handshake_count--;
	}
}

void shm_conn_established(struct shm_conn *conn)
{
	shm_conn_handshake_ended(conn);
	close_fd(&conn->own_fd);
	close_fd(&conn->group_fd);
}

void shm_conn_opened(struct shm_conn *conn)
{
	/* An acceptor can be OPEN while its WELCOME is still queued in conn->unsent. The program's
	 * messages then wait in the rings. */
	if (list_is_empty(&conn->unsent)) {
		shm_conn_established(conn);
	}
	clan_conn_set_state(&conn->conn, CLAN_OPEN);
	conn->conn.enabled = CLAN_READY_CONTROL | CLAN_READY_BULK | CLAN_READY_COOKIES;
	conn->want_answered = true;
	shm_want(conn);
}

/* Returns the reason that the peer gave for the end, or the default text. */
static const char *peer_reason(const struct shm_conn *conn)
{
	uint64_t end;

	if (conn->peer == NULL) {
		return "the peer closed the connection before it was accepted";
	}
	end = atomic_load_explicit(&conn->peer->end, memory_order_acquire);
	if (end == 0) {
		return "the peer's process has exited";
	}
	return end == 1 ? "the peer closed the connection"
			: "the peer closed the connection because of a broken rule";
}

void shm_conn_end(struct shm_conn *conn, int status, const char *reason)
{
	struct clan_conn *base = &conn->conn;

	/* Further errors of a connection that has ended are ignored. */
	if (base->state >= CLAN_LOST) {
		return;
	}
	if (!base->known) {
		shm_conn_handshake_ended(conn);
		shm_socket_close(conn);
		clan_conn_set_state(base, CLAN_CLOSING);
		clan_conn_set_state(base, CLAN_CLOSED);
		list_push_back(&shm_queue(base->queue)->dead, &conn->dead_node);
		return;
	}
	if (base->state == CLAN_OPEN && status != -EPROTO) {
		shm_publish_conn(conn);
		shm_look(conn); /* processes published messages, which can still be received */
		if (base->state != CLAN_OPEN) {
			return; /* shm_look() has ended the connection */
		}
	}
	shm_conn_handshake_ended(conn);
	shm_copies_lost(conn);
	clan_conn_lose(base, status, "%s", reason != NULL ? reason : peer_reason(conn));
	if (conn->own != NULL) {
		atomic_store_explicit(&conn->own->end, 1 + (uint64_t)-status, memory_order_release);
	}
	shm_socket_close(conn);
	list_remove(&conn->dirty_node);
	atomic_store_explicit(&conn->copies_dropped, true, memory_order_relaxed);
	shm_revocations_end(conn);
	shm_regions_leave(conn);
}

int shm_broken(struct shm_conn *conn, uint32_t rule, const char *what)
{
	char reason[CLAN_REASON_BYTES];

	snprintf(reason, sizeof(reason), "the peer broke rule K%u: %s", rule, what);
	shm_conn_end(conn, -EPROTO, reason);
	return -EPROTO;
}

static void shm_conn_close(struct clan_conn *base)
{
	struct shm_conn *conn = shm_conn(base);

	clan_shares_drop(base);
	shm_conn_handshake_ended(conn);
	if (conn->file.fd >= 0 && conn->peer != NULL) {
		shm_publish_conn(conn);
	}
	if (conn->own != NULL) {
		atomic_store_explicit(&conn->own->end, 1, memory_order_release);
	}
	shm_socket_close(conn);
	list_remove(&conn->dirty_node);
	shm_memory_close(conn);
	shm_conn_join(conn);
}

void shm_conn_join(struct shm_conn *conn)
{
	if (conn->conn.state == CLAN_CLOSING && conn->regions_held == 0 &&
		conn->copies_running == 0) {
		clan_conn_set_state(&conn->conn, CLAN_CLOSED);
		clan_fire(conn->conn.queue, &conn->conn.source);
	}
}

static void shm_flush(struct clan_conn *base)
{
	shm_publish_conn(shm_conn(base));
}

static void shm_get_stats(const struct clan_conn *base, struct clan_conn_stats *stats)
{
	const struct shm_conn *conn = shm_conn_const(base);

	stats->bell = base->queue->options.bell;
	stats->peer_bell = conn->bell;
	if (conn->group != NULL) {
		stats->bells_heard = conn->group->bells_heard;
		stats->bells_idle = conn->group->bells_idle;
	}
}

/* --- connecting and accepting ----------------------------------------------------------------- */

static int read_credentials(struct shm_conn *conn, int fd)
{
	struct ucred credentials;
	socklen_t length = sizeof(credentials);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
		return -errno;
	}
	conn->conn.peer = (struct clan_peer){
		.pid = credentials.pid,
		.uid = credentials.uid,
		.gid = credentials.gid,
	};
	/* On a wary connection the peer's memory is mapped, but never passed to the program: the
	 * untrusted peer could punch a hole into it, which would stall the program. */
	conn->conn.is_wary = conn->conn.options.access == CLAN_ACCESS_WARY &&
			     rights_is_stranger(credentials.uid) &&
			     !clan_queue_is_passive(conn->conn.queue);
	return 0;
}

static bool may_connect(const struct shm_conn *conn)
{
	return conn->conn.options.access != CLAN_ACCESS_OWNER ||
	       !rights_is_stranger(conn->conn.peer.uid);
}

/* Fills in a Unix address; "@NAME" is abstract. Returns 0 or -EINVAL. */
static int make_address(const char *place, struct sockaddr_un *address, socklen_t *length)
{
	size_t place_length = strlen(place);

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (place_length < 1 + (size_t)(place[0] == '@') ||
		place_length >= sizeof(address->sun_path)) {
		return -EINVAL;
	}
	memcpy(address->sun_path, place, place_length);
	*length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + place_length + 1);
	if (place[0] == '@') {
		address->sun_path[0] = '\0';
		(*length)--;
	}
	return 0;
}

static int shm_address_error(struct error *error, const char *place)
{
	return error_set(error, -EINVAL,
		"\"shm:%s\": the address must be shm:PATH or shm:@NAME of at most 107 bytes",
		place);
}

/* Attaches the socket and reads the peer's credentials. Takes ownership of fd if it returns 0. */
static int shm_conn_start(struct shm_conn *conn, int fd)
{
	int result = read_credentials(conn, fd);

	if (result == 0) {
		result = waiter_file_add(
			conn->conn.queue->waiter, &conn->file, fd, SHM_SOCKET_EVENTS);
	}
	return result;
}

/* Frees a connection that was not returned to the program. */
static void conn_abandon(struct shm_conn *conn)
{
	clan_conn_set_state(&conn->conn, CLAN_CLOSING);
	clan_conn_set_state(&conn->conn, CLAN_CLOSED);
	shm_conn_destroy(&conn->conn);
}

static int shm_connect(struct clan_queue *queue, const char *where,
	const struct clan_conn_options *options, const void *hello, size_t hello_bytes,
	struct clan_conn **conn_out, struct error *error)
{
	const char *place = clan_place(where);
	struct sockaddr_un address;
	struct shm_group *group;
	struct shm_conn *conn;
	socklen_t length;
	int result = make_address(place, &address, &length);
	int fd;

	if (result != 0) {
		return shm_address_error(error, place);
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		return error_set(error, -errno, "cannot create a socket: %s", strerror(errno));
	}
	if (connect(fd, (struct sockaddr *)&address, length) != 0) {
		result = errno == EAGAIN ? -ENOBUFS : -errno;
		error_set(error, result, "cannot connect to \"shm:%s\": %s", place,
			result == -ENOBUFS ? "the backlog of the listener is full"
					   : strerror(-result));
		close(fd);
		return result;
	}
	conn = shm_conn_create(queue, options, CLAN_CONNECTING, error);
	if (conn == NULL) {
		close(fd);
		return error->code;
	}
	conn->conn.connector = true;
	conn->conn.known = true;
	result = shm_conn_start(conn, fd);
	if (result != 0) {
		close(fd);
	} else {
		result = clan_conn_set_hello(&conn->conn, hello, hello_bytes);
	}
	conn->place = strdup(place);
	if (result == 0 && conn->place == NULL) {
		result = -ENOMEM;
	}
	if (result == 0) {
		group = shm_group_find_place(conn);
		result = group != NULL ? shm_group_join(group, conn) : shm_conn_new_group(conn, 0);
	}
	if (result == 0) {
		result = shm_conn_make_segment(conn);
	}
	if (result == 0) {
		result = shm_send_hello(conn);
	}
	if (result != 0) {
		error_set(error, result, "cannot connect to \"shm:%s\": %s", place,
			strerror(-result));
		conn_abandon(conn);
		return result;
	}
	*conn_out = &conn->conn;
	return 0;
}

static int shm_accept(struct clan_conn *base, const void *hello, size_t hello_bytes)
{
	struct shm_conn *conn = shm_conn(base);
	int result = shm_send_welcome(conn, hello, hello_bytes);

	if (result != 0) {
		shm_conn_end(conn, -ECONNRESET, "the peer has disconnected");
		return -ECONNRESET;
	}
	shm_conn_opened(conn);
	return 0;
}

static void shm_reject(struct clan_conn *base, const char *text)
{
	shm_send_refused(shm_conn(base), -ECONNREFUSED, text);
}

static int shm_adopt(struct clan_queue *queue, int fd, const struct clan_conn_options *options,
	struct clan_conn **conn_out, struct error *error)
{
	int domain = 0;
	int type = 0;
	socklen_t length = sizeof(int);
	struct shm_conn *conn;
	int result;

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 ||
		getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || domain != AF_UNIX ||
		type != SOCK_SEQPACKET) {
		return error_set(error, -EINVAL, "not a Unix socket of the type SOCK_SEQPACKET");
	}
	conn = shm_conn_create(queue, options, CLAN_OPENING, error);
	if (conn == NULL) {
		return error->code;
	}
	result = shm_conn_start(conn, fd);
	if (result == 0) {
		result = !may_connect(conn) ? -EACCES
			 : rights_is_stranger(conn->conn.peer.uid) &&
					 !dispose_has_room(conn->conn.peer.uid)
				 ? -EDQUOT
				 : 0;
		if (result != 0) {
			waiter_file_remove(queue->waiter, &conn->file);
		}
	}
	if (result != 0) {
		conn_abandon(conn);
		return error_set(error, result, "cannot accept a connection: %s",
			result == -EACCES ? "the peer belongs to another user"
			: result == -EDQUOT
				? "the user of the peer, or several users together, have sent too "
				  "many descriptors that are not yet closed; reconnect later"
				: strerror(-result));
	}
	rights_permit(fd);
	*conn_out = &conn->conn;
	return 0;
}

/* --- listeners -------------------------------------------------------------------------------- */

/* Returns true if the user is untrusted and already has half of the handshakes. */
static bool stranger_has_too_many(const struct shm_listener *listener, uid_t uid)
{
	uint32_t count = 0;

	if (!rights_is_stranger(uid)) {
		return false;
	}
	list_for_each(node, &listener->listener.queue->conns)
	{
		struct clan_conn *conn = list_entry(node, struct clan_conn, node);

		count += (conn->state == CLAN_OPENING || conn->state == CLAN_OFFERED) &&
			 conn->peer.uid == uid;
	}
	return count >= MAX(listener->listener.options.handshakes_max / 2, 1u);
}

static void shm_accept_one(struct shm_listener *listener, int fd)
{
	const struct clan_conn_options *options = &listener->listener.options;
	struct clan_queue *queue = listener->listener.queue;
	struct error ignored = { 0 };
	uid_t uid = rights_owner(fd);
	struct clan_conn *base;
	struct shm_conn *conn;

	if (listener->conn_count >= options->conns_max ||
		listener->handshake_count >= options->handshakes_max ||
		stranger_has_too_many(listener, uid) ||
		shm_adopt(queue, fd, options, &base, &ignored) != 0) {
		dispose_socket(fd, uid, clan_queue_is_passive(queue));
		return;
	}
	conn = shm_conn(base);
	conn->listener = listener;
	conn->handshake_counted = true;
	listener->conn_count++;
	listener->handshake_count++;
}

static void shm_listener_happened(struct waiter_file *file, uint32_t events)
{
	struct shm_listener *listener = container_of(file, struct shm_listener, file);
	int result = 0;

	for (int i = 0; i < ACCEPT_MAX && result == 0; i++) {
		int fd = -1;

		result = -EMFILE;
		if (dispose_may_accept(file->fd)) {
			fd = accept4(file->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
			result = fd < 0 ? -errno : 0;
		}
		if (fd >= 0) {
			shm_accept_one(listener, fd);
		}
	}
	if (result != 0 && result != -EAGAIN && result != -EINTR && result != -ECONNABORTED) {
		/* The listener stays readable; waiting for it would be a busy loop. */
		waiter_file_events(listener->listener.queue->waiter, file, 0);
		clan_deadline_set(
			listener->listener.queue, &listener->retry, ACCEPT_RETRY_MS * NS_PER_MS);
	}
}

static void shm_listen_again(struct clan_deadline *deadline)
{
	struct shm_listener *listener = container_of(deadline, struct shm_listener, retry);

	waiter_file_events(listener->listener.queue->waiter, &listener->file, EPOLLIN);
}

/* Returns true if no process listens at the socket file, so it is stale. */
static bool is_left_over(const struct sockaddr_un *address, socklen_t length)
{
	struct stat status;
	bool dead;
	int fd;

	/* connect() reports ECONNREFUSED also for a file that is not a socket. Such a file must not
	 * be removed. */
	if (lstat(address->sun_path, &status) != 0 || !S_ISSOCK(status.st_mode)) {
		return false;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		return false;
	}
	dead = connect(fd, (const struct sockaddr *)address, length) != 0 && errno == ECONNREFUSED;
	close(fd);
	return dead;
}

/* Returns a listening socket, or a negative errno. */
static int shm_open_listener(const struct sockaddr_un *address, socklen_t length, uint32_t access)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int result = 0;

	if (fd < 0) {
		return -errno;
	}
	/* bind() creates the socket file with this mode, less the umask. */
	if (fchmod(fd, access == CLAN_ACCESS_OWNER ? 0600 : 0666) != 0) {
		result = -errno;
	} else if (bind(fd, (const struct sockaddr *)address, length) != 0) {
		result = -errno;
		if (result == -EADDRINUSE && address->sun_path[0] != '\0' &&
			is_left_over(address, length) && unlink(address->sun_path) == 0) {
			result = bind(fd, (const struct sockaddr *)address, length) == 0 ? 0
											 : -errno;
		}
	}
	rights_refuse(fd); /* adopting an accepted socket permits descriptors again */
	if (result == 0 && listen(fd, LISTEN_BACKLOG) != 0) {
		result = -errno;
	}
	if (result != 0) {
		close(fd);
		return result;
	}
	return fd;
}

static int shm_listen(struct clan_queue *queue, const char *where,
	const struct clan_conn_options *options, struct clan_listener **listener_out,
	struct error *error)
{
	const char *place = clan_place(where);
	struct shm_listener *listener;
	struct sockaddr_un address;
	struct stat status;
	socklen_t length;
	int result = make_address(place, &address, &length);
	int fd;

	if (result != 0) {
		return shm_address_error(error, place);
	}
	fd = shm_open_listener(&address, length, options->access);
	if (fd < 0) {
		return error_set(
			error, fd, "cannot listen on \"shm:%s\": %s", place, strerror(-fd));
	}
	listener = shm_queue_use(queue) == 0 ? calloc(1, sizeof(*listener)) : NULL;
	if (listener != NULL) {
		listener->path = place[0] == '@' ? NULL : strdup(place);
		if (listener->path != NULL && stat(listener->path, &status) == 0) {
			listener->device = status.st_dev;
			listener->inode = status.st_ino;
		}
	}
	result = listener == NULL || (listener->path == NULL && place[0] != '@') ? -ENOMEM : 0;
	if (result == 0) {
		listener->file.happened = shm_listener_happened;
		result = waiter_file_add(queue->waiter, &listener->file, fd, EPOLLIN);
	}
	if (result != 0) {
		if (listener != NULL) {
			free(listener->path);
		}
		free(listener);
		close(fd);
		return error_set(
			error, result, "cannot listen on \"shm:%s\": %s", place, strerror(-result));
	}
	listener->retry.expired = shm_listen_again;
	list_init(&listener->retry.node);
	listener->listener.options = *options;
	*listener_out = &listener->listener;
	return 0;
}

static void shm_listener_close(struct clan_listener *base)
{
	struct shm_listener *listener = container_of(base, struct shm_listener, listener);
	struct stat status;
	int fd = listener->file.fd;

	waiter_file_remove(base->queue->waiter, &listener->file);
	clan_deadline_clear(&listener->retry);
	/* Unread messages in the backlog can contain descriptors, and closing these can block. */
	dispose_socket(fd, geteuid(), clan_queue_is_passive(base->queue));
	if (listener->path != NULL && stat(listener->path, &status) == 0 &&
		status.st_dev == listener->device && status.st_ino == listener->inode) {
		unlink(listener->path);
	}
	free(listener->path);
	listener->path = NULL;
	list_for_each(node, &base->queue->conns)
	{
		struct clan_conn *conn = list_entry(node, struct clan_conn, node);

		if (conn->provider == &clan_provider_shm && !conn->known &&
			shm_conn(conn)->listener == listener) {
			shm_conn_end(shm_conn(conn), -ECONNRESET, "");
		}
	}
	listener->closed = true;
	if (listener->conn_count == 0) {
		free(listener);
	}
}

/* --- after fork() ----------------------------------------------------------------------------- */

static void shm_after_fork(
	struct clan_queue *queue, struct clan_conn *base, struct clan_listener *base_listener)
{
	if (base == NULL && base_listener == NULL) {
		shm_queue_destroy(queue);
		return;
	}
	if (base_listener != NULL) {
		struct shm_listener *listener =
			container_of(base_listener, struct shm_listener, listener);

		close_fd(&listener->file.fd);
		free(listener->path);
		free(listener);
		return;
	}
	/* Segments are not mapped in the child; only descriptors and private memory are freed. */
	struct shm_conn *conn = shm_conn(base);
	struct shm_group *group = conn->group;

	close_fd(&conn->file.fd);
	close_fd(&conn->own_fd);
	close_fd(&conn->group_fd);
	shm_unsent_drop(conn);
	shm_memory_after_fork(conn);
	if (conn->listener != NULL && conn->listener->closed && --conn->listener->conn_count == 0) {
		free(conn->listener);
	}
	free(conn->place);
	free(conn);
	if (group != NULL && --group->conn_count == 0) {
		list_for_each(node, &group->mappings)
		{
			free(list_entry(node, struct shm_mapping, node));
		}
		free(group->futex);
		free(group->place);
		free(group->conns);
		free(group);
	}
}

const struct clan_provider clan_provider_shm = {
	.schemes = { "shm" },
	.caps = CLAN_CAN_MAP,
	.listen = shm_listen,
	.listener_close = shm_listener_close,
	.adopt = shm_adopt,
	.connect = shm_connect,
	.accept = shm_accept,
	.reject = shm_reject,
	.close = shm_conn_close,
	.destroy = shm_conn_destroy,
	.after_fork = shm_after_fork,
	.send = shm_send,
	.flush = shm_flush,
	.recv = shm_recv,
	.readv = shm_readv,
	.get_stats = shm_get_stats,
	.share = shm_share,
	.unshare = shm_unshare,
	.peer_info = shm_peer_info,
	.peer_get = shm_peer_get,
	.peer_put = shm_peer_put,
	.grant = shm_grant,
	.revoke = shm_revoke,
	.void_cookies = shm_void_cookies,
	.put = shm_put,
	.get = shm_get,
	.fetch = shm_fetch,
	.tripwire = shm_tripwire,
	.rearm = shm_rearm,
	.tripwire_remove = shm_tripwire_remove,
	.cookie_push = shm_cookie_push,
	.cookie_pop = shm_cookie_pop,
	.progress = shm_progress,
	.publish = shm_publish,
	.arm = shm_arm,
	.queue_destroy = shm_queue_destroy,
};
