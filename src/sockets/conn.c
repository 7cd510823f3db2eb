// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "sockets/kernel.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum {
	ATTEMPTS = 4,		/* of the connector: at 1, 2, 4 and 8 times "after" */
	LISTENS = 16,		/* the acceptor gives up at so many times "after"; */
	LISTENS_BULK = 256,	/* there are many reads for each write */
	AFTER_GROWTH = 4,	/* "after" grows with each return to TCP */
	SLOT_BYTES = 64,	/* of libclan's rings */
	BRING_BACK_LOOK_MS = 5, /* between looks for what makes no event */
	CLOSE_WAIT_MS = 1000,
	UNKNOWN_UID = 65534,
};

#define NEVER UINT32_MAX

static const char hello[8] = "clsock01";

_Atomic(struct object *) sockets_table[SOCKETS_FDS_MAX];
struct object sockets_listener = { .kind = OBJECT_LISTENER };
struct object sockets_other_listener = { .kind = OBJECT_OTHER_LISTENER };

static struct list_node free_conns = { &free_conns, &free_conns };

/* --- states ----------------------------------------------------------------------------------- */

static const uint32_t conn_edges[CONN_STATE_COUNT] = {
	[CONN_FREE] = BIT(CONN_PLAIN),
	[CONN_PLAIN] = BIT(CONN_LISTENING) | BIT(CONN_CONNECTING) | BIT(CONN_FREE),
	[CONN_LISTENING] = BIT(CONN_CONNECTING) | BIT(CONN_PLAIN) | BIT(CONN_FREE),
	[CONN_CONNECTING] = BIT(CONN_CARRIED) | BIT(CONN_PLAIN) | BIT(CONN_FREE),
	[CONN_CARRIED] = BIT(CONN_PLAIN) | BIT(CONN_FREE),
};

static void set_state(struct conn *conn, enum conn_state state)
{
	GMB_ASSERT((conn_edges[conn_state(conn)] & BIT(state)) != 0);
	/* Partner: the increment of plain_readers and plain_writers before the look at the state.
	 */
	atomic_store(&conn->state, state);
}

/* --- descriptors ------------------------------------------------------------------------------ */

void object_add(int fd, struct object *object)
{
	if ((unsigned int)fd < SOCKETS_FDS_MAX) {
		object->refs++;
		core.fds_end = MAX(core.fds_end, fd + 1);
		atomic_store_explicit(&sockets_table[fd], object, memory_order_release);
	}
}

/* Another descriptor of the same object; -1: none. */
static int other_fd(const struct object *object, int fd)
{
	for (int i = 0; i < core.fds_end; i++) {
		if (i != fd && object_at(i) == object) {
			return i;
		}
	}
	return -1;
}

static void watch_tcp(struct conn *conn)
{
	struct epoll_event event = {
		.events = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLET,
		.data.ptr = conn,
	};

	/* Without memory for it: what happens on TCP is seen by who waits for the socket. */
	(void)REAL(epoll_ctl)(core.epoll_fd, EPOLL_CTL_ADD, conn->fd, &event);
}

static void unwatch_tcp(const struct conn *conn)
{
	(void)REAL(epoll_ctl)(core.epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
}

static void stop_listening(struct conn *conn)
{
	if (conn->listen_fd >= 0) {
		core_disown(conn->listen_fd);
		REAL(close)(conn->listen_fd);
		conn->listen_fd = -1;
	}
}

static void close_clan(struct conn *conn)
{
	if (conn->clan != NULL) {
		clan_conn_set_context(conn->clan, NULL);
		clan_close(conn->clan);
		conn->clan = NULL;
		conn->offered = false;
	}
}

static void release_row(struct conn *conn)
{
	if (conn->row != NULL) {
		conn->row->used = 0;
		conn->row = NULL;
	}
}

/* Nothing of it is left but its memory. */
static void conn_free(struct conn *conn)
{
	stop_listening(conn);
	close_clan(conn);
	epoll_fd_closes(conn, -1);
	release_row(conn);
	list_remove(&conn->touched_node);
	list_remove(&conn->carried_node);
	free(conn->buffer);
	conn->buffer = NULL;
	conn->buffer_at = 0;
	conn->buffer_end = 0;
	conn->buffer_bytes = 0;
	set_state(conn, CONN_FREE);
	list_push_back(&free_conns, &conn->object.pool_node);
}

/* --- what the libraries say to each other ----------------------------------------------------- */

static void say(struct conn *conn, enum switch_type type, struct switch_message message)
{
	if (conn->clan != NULL) {
		/* The control ring has room for many more than a connection says in its life. Who
		 * has gone needs no message. */
		(void)clan_send(conn->clan, CLAN_CONTROL, type, &message, sizeof(message));
		clan_flush(conn->clan);
	}
}

void conn_go(struct conn *conn)
{
	if (switch_can_go(&conn->side) && conn->clan != NULL &&
		atomic_load(&conn->plain_writers) == 0) {
		say(conn, SWITCH_GO, switch_go(&conn->side));
	}
}

static void leave(struct conn *conn)
{
	struct switch_message message;

	if (switch_leave(&conn->side, &message)) {
		stats->back++;
		say(conn, SWITCH_BACK, message);
		conn_touch(conn, TOUCH_OUT);
	}
}

/* The descriptor is about to be closed: the end of the connection for this process? */
static void conn_closes(struct conn *conn, int fd)
{
	bool carried = conn_is_carried(conn);

	epoll_fd_closes(conn, fd);
	if (conn->object.refs > 1) {
		if (conn->fd == fd) {
			if (carried) {
				unwatch_tcp(conn);
			}
			conn->fd = other_fd(&conn->object, fd);
			if (carried) {
				watch_tcp(conn);
			}
		}
		return;
	}
	if (!carried) {
		return;
	}
	data_pull(conn, SOCKETS_LOOK_BYTES);
	if (conn_buffered(conn) > 0 && !conn->passed && process_is_sole(conn)) {
		/* What TCP does when bytes are lost that way: the peer gets a reset. */
		const struct linger reset = { .l_onoff = 1 };

		(void)REAL(setsockopt)(conn->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	}
	unwatch_tcp(conn);
	leave(conn);
}

void object_remove(int fd)
{
	struct object *object = object_at(fd);

	if (object == NULL) {
		return;
	}
	if (object->kind == OBJECT_CONN) {
		struct conn *conn = conn_of(object);

		if (object->refs > 1 && epoll_has(conn, fd)) {
			/* The kernel's set keeps what is closed while a copy of it is open. */
			if (!conn_is_carried(conn)) {
				conn_forget(conn, REASON_EPOLL);
				return;
			}
			conn_unfit(conn, REASON_EPOLL);
			(void)conn_bring_back_one(conn, REASON_EPOLL, CLOSE_WAIT_MS);
			if (object_at(fd) != object) {
				return; /* another thread was faster */
			}
		}
		conn_closes(conn, fd);
	} else if (object->kind == OBJECT_SET) {
		struct set *set = container_of(object, struct set, object);

		if (object->refs == 1) {
			epoll_set_closes(set);
		} else if (set->fd == fd) {
			set->fd = other_fd(object, fd);
		}
	}
	atomic_store_explicit(&sockets_table[fd], NULL, memory_order_release);
	object->refs--;
	if (object->kind == OBJECT_CONN && object->refs == 0) {
		conn_of(object)->fd = -1;
		process_closes(conn_of(object));
		conn_free(conn_of(object));
		core_look(false); /* CLAN_EVENT_CLOSED */
	}
}

void object_replaced(int fd)
{
	struct conn *conn = conn_at(fd);

	if (conn != NULL && conn->fd == fd) {
		conn->fd = other_fd(&conn->object, fd);
	}
	object_remove(fd);
}

static struct conn *take_conn(void)
{
	struct conn *conn = NULL;

	list_for_each(node, &free_conns)
	{
		conn = list_entry(node, struct conn, object.pool_node);
		/* A call in the kernel may still have to count itself off. */
		if (atomic_load(&conn->plain_readers) == 0 &&
			atomic_load(&conn->plain_writers) == 0 && atomic_load(&conn->pins) == 0) {
			list_remove(node);
			return conn;
		}
	}
	conn = calloc(1, sizeof(*conn));
	if (conn != NULL) {
		list_init(&conn->object.pool_node);
		list_init(&conn->touched_node);
		list_init(&conn->carried_node);
		list_init(&conn->members);
	}
	return conn;
}

void conn_track(int fd, bool connector)
{
	struct conn *conn;

	if ((unsigned int)fd >= SOCKETS_FDS_MAX || !core_lock()) {
		return;
	}
	object_replaced(fd);
	conn = take_conn();
	if (conn != NULL) {
		stats_start();
		stats->tracked++;
		conn->object.kind = OBJECT_CONN;
		conn->object.refs = 0;
		set_state(conn, CONN_PLAIN);
		atomic_store(&conn->calls, 0);
		atomic_store(&conn->side.in, 0);
		atomic_store(&conn->side.out, 0);
		conn->ring_in = 0;
		conn->ring_out = 0;
		conn->bulk = (struct conn_bulk){ 0 };
		conn->after = core.rules.after;
		atomic_store(&conn->next_look, conn->after);
		conn->attempt = 0;
		conn->connector = connector;
		conn->passed = false;
		conn->holders = NULL;
		conn->named = false;
		conn->fd = fd;
		conn->listen_fd = -1;
		conn->kept_fd = -1;
		conn->offered = false;
		conn->touched = 0;
		object_add(fd, &conn->object);
	}
	core_unlock();
}

void conn_forget(struct conn *conn, enum sockets_reason reason)
{
	stats->reasons[reason]++;
	stats_log(false, "descriptor %d stays on TCP: %s", conn->fd, stats_reason_names[reason]);
	conn_untrack(conn);
}

void conn_untrack(struct conn *conn)
{
	int fd = conn->fd;

	GMB_ASSERT(!conn_is_carried(conn));
	while (fd >= 0) {
		atomic_store_explicit(&sockets_table[fd], NULL, memory_order_release);
		fd = --conn->object.refs > 0 ? other_fd(&conn->object, -1) : -1;
	}
	conn_free(conn);
}

/* --- meeting ---------------------------------------------------------------------------------- */

/* Later, after so many calls. */
static void look_again_at(struct conn *conn, uint32_t calls)
{
	atomic_store_explicit(&conn->next_look, calls, memory_order_relaxed);
}

static bool learn_names(struct conn *conn)
{
	struct sockaddr_storage local;
	struct sockaddr_storage remote;
	socklen_t local_length = sizeof(local);
	socklen_t remote_length = sizeof(remote);

	if (!conn->named) {
		conn->named =
			getsockname(conn->fd, (struct sockaddr *)&local, &local_length) == 0 &&
			getpeername(conn->fd, (struct sockaddr *)&remote, &remote_length) == 0 &&
			rules_address_of((struct sockaddr *)&local, local_length, &conn->local) &&
			rules_address_of((struct sockaddr *)&remote, remote_length, &conn->remote);
	}
	return conn->named;
}

static void write_address(char text[40], const struct rules_address *address)
{
	for (size_t i = 0; i < sizeof(address->bytes); i++) {
		snprintf(text + 2 * i, 3, "%02x", address->bytes[i]);
	}
	snprintf(text + 32, 8, ".%u", address->port);
}

/* "clan-tcp/SERVER/CLIENT": abstract names belong to a network namespace, as connections do. */
static void meeting_name(const struct conn *conn, char name[STATS_NAME_BYTES])
{
	char server[40];
	char client[40];

	write_address(server, conn->connector ? &conn->remote : &conn->local);
	write_address(client, conn->connector ? &conn->local : &conn->remote);
	snprintf(name, STATS_NAME_BYTES, "@clan-tcp/%s/%s", server, client);
}

/* Nothing is set whose effect is not stood for. */
static bool options_fit(const struct conn *conn)
{
	int flags = REAL(fcntl64)(conn->fd, F_GETFL);

	return flags >= 0 && (flags & O_ASYNC) == 0 && kernel_options_fit(conn->fd);
}

/* What has to hold before the libraries meet: 0, or the reason why not. */
static int check_fitness(struct conn *conn, enum sockets_reason *reason, uid_t *uid)
{
	struct rlimit limit;
	int result;

	*reason = REASON_RESOURCES;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || core.own_fds >= limit.rlim_cur / 4) {
		return -EMFILE;
	}
	if (!learn_names(conn) || !options_fit(conn)) {
		*reason = REASON_OPTION;
		return -EOPNOTSUPP;
	}
	if (!epoll_conn_fits(conn)) {
		*reason = REASON_EPOLL;
		return -EOPNOTSUPP;
	}
	result = kernel_peer_uid(&conn->local, &conn->remote, uid);
	if (result != 0) {
		*reason = result == -ENOENT ? REASON_REMOTE : REASON_IDENTITY;
		return result;
	}
	*reason = REASON_RESOURCES;
	return core_start();
}

/* Every user that the user namespace does not know has the number of nobody. */
static bool is_user(uid_t found, uid_t wanted)
{
	return (found == wanted && found != UNKNOWN_UID) || found == 0;
}

static void listen_for_library(struct conn *conn)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char name[STATS_NAME_BYTES];
	enum sockets_reason reason;
	uid_t uid;
	int fd;

	if (check_fitness(conn, &reason, &uid) != 0) {
		conn_forget(conn, reason);
		return;
	}
	meeting_name(conn, name);
	memcpy(address.sun_path + 1, name + 1, strlen(name) - 1);
	fd = REAL(socket)(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		conn_forget(conn, REASON_RESOURCES);
		return;
	}
	conn->listen_fd = core_own(fd);
	if (bind(conn->listen_fd, (struct sockaddr *)&address,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))) != 0) {
		conn_forget(conn, errno == EADDRINUSE ? REASON_NAME : REASON_RESOURCES);
		return;
	}
	if (listen(conn->listen_fd, 4) != 0) {
		conn_forget(conn, REASON_RESOURCES);
		return;
	}
	set_state(conn, CONN_LISTENING);
	look_again_at(conn, 0);
}

static struct clan_conn_options clan_options(const struct conn *conn)
{
	uint32_t bytes = conn->bulk.on ? RULES_RING_BULK : RULES_RING_DEFAULT;

	bytes = core.rules.ring_bytes != 0 ? core.rules.ring_bytes : bytes;
	return (struct clan_conn_options){
		.size = sizeof(struct clan_conn_options),
		.access = CLAN_ACCESS_ANY, /* who it is was looked up */
		.bulk_slots = bytes / SLOT_BYTES,
		.cookies = 1,
		.tripwires = 1,
		.peer_regions_max = 1,
		.peer_region_bytes_max = 4096,
	};
}

/* Somebody has connected to our name. */
static void adopt(struct conn *conn, int fd)
{
	struct clan_conn_options options = clan_options(conn);
	struct ucred who;
	socklen_t length = sizeof(who);
	uid_t uid;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 ||
		kernel_peer_uid(&conn->local, &conn->remote, &uid) != 0 || !is_user(who.uid, uid)) {
		core_disown(fd);
		REAL(close)(fd);
		conn_forget(conn, REASON_IDENTITY);
		return;
	}
	stop_listening(conn);
	if (clan_adopt(core.queue, fd, &options, &conn->clan, NULL) != 0) {
		conn->clan = NULL;
		conn_forget(conn, REASON_RESOURCES);
		return;
	}
	clan_conn_set_context(conn->clan, conn);
	set_state(conn, CONN_CONNECTING);
}

static void try_accept(struct conn *conn)
{
	int fd = REAL(accept4)(conn->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd >= 0) {
		adopt(conn, core_own(fd));
	} else if (atomic_load(&conn->calls) / (conn->bulk.on ? LISTENS_BULK : LISTENS) >=
		   conn->after) {
		conn_forget(conn, REASON_NOBODY);
	}
}

/* Connections that are met at the same time would each get a bell of their own: the group that they
 * are to join is known when the first of them is carried. */
static bool is_first_being_met(const struct conn *conn)
{
	bool found = false;

	for (int fd = 0; fd < core.fds_end; fd++) {
		const struct conn *other = conn_at(fd);

		if (other == NULL || other == conn || !other->connector || !other->named ||
			memcmp(&other->remote, &conn->remote, sizeof(conn->remote)) != 0) {
			continue;
		}
		if (conn_is_carried(other)) {
			return false;
		}
		found = found || conn_state(other) == CONN_CONNECTING;
	}
	return found;
}

static void try_connect(struct conn *conn)
{
	struct clan_conn_options options = clan_options(conn);
	char name[STATS_NAME_BYTES];
	char address[STATS_NAME_BYTES + 4];
	enum sockets_reason reason;
	struct clan_peer peer;
	uid_t uid;

	if (check_fitness(conn, &reason, &uid) != 0) {
		conn_forget(conn, reason);
		return;
	}
	if (is_first_being_met(conn)) {
		look_again_at(conn, atomic_load(&conn->calls) + 1);
		return;
	}
	meeting_name(conn, name);
	snprintf(address, sizeof(address), "shm:%s", name);
	if (clan_connect(core.queue, address, &options, hello, sizeof(hello), &conn->clan, NULL) !=
		0) {
		conn->clan = NULL;
		if (++conn->attempt == ATTEMPTS && !conn->bulk.on) {
			conn_forget(conn, REASON_NOBODY);
		} else {
			look_again_at(conn, atomic_load(&conn->calls) * 2);
		}
		return;
	}
	clan_conn_set_context(conn->clan, conn);
	set_state(conn, CONN_CONNECTING);
	clan_conn_peer(conn->clan, &peer);
	if (!is_user(peer.uid, uid)) {
		conn_forget(conn, REASON_IDENTITY);
		return;
	}
	look_again_at(conn, 0);
}

/* --- carrying --------------------------------------------------------------------------------- */

/* Have all bytes gone by calls that we see? 0, -EAGAIN: calls are under way, or -EBADF: no. */
static int compare_counts(struct conn *conn)
{
	struct kernel_counts counts;
	int result = kernel_counts(conn->fd, &counts);

	if (result != 0) {
		return result;
	}
	if (counts.in == atomic_load(&conn->side.in) - conn->ring_in &&
		counts.out == atomic_load(&conn->side.out) - conn->ring_out) {
		return 0;
	}
	return atomic_load(&conn->plain_readers) + atomic_load(&conn->plain_writers) > 0 ? -EAGAIN
											 : -EBADF;
}

static void take_row(struct conn *conn)
{
	for (uint32_t i = 0; i < STATS_ROWS; i++) {
		if (stats->rows[i].used == 0) {
			conn->row = &stats->rows[i];
			meeting_name(conn, conn->row->name);
			conn->row->fd = conn->fd;
			conn->row->in_bytes = 0;
			conn->row->out_bytes = 0;
			conn->row->used = 1;
			return;
		}
	}
}

void conn_say_may(struct conn *conn)
{
	if (conn_is_carried(conn) && !conn->side.may_said && conn->clan != NULL &&
		atomic_load(&conn->plain_readers) == 0) {
		conn->side.may_said = true;
		say(conn, SWITCH_MAY, (struct switch_message){ 0 });
	}
}

static uint64_t limit_of(const struct conn *conn, int option)
{
	struct timeval limit = { 0 };
	socklen_t length = sizeof(limit);

	return getsockopt(conn->fd, SOL_SOCKET, option, &limit, &length) != 0
		       ? 0
		       : (uint64_t)limit.tv_sec * UINT64_C(1000000000) +
				 (uint64_t)limit.tv_usec * 1000;
}

void conn_learn_limits(struct conn *conn)
{
	conn->in_limit_ns = limit_of(conn, SO_RCVTIMEO);
	conn->out_limit_ns = limit_of(conn, SO_SNDTIMEO);
}

static void begin(struct conn *conn)
{
	int flags = REAL(fcntl64)(conn->fd, F_GETFL);

	conn->nonblocking = flags >= 0 && (flags & O_NONBLOCK) != 0;
	conn_learn_limits(conn);
	conn->out_full = false;
	conn->lost = false;
	conn->tcp_event = true;
	conn->stranded = false;
	conn->ops = 0;
	conn->offered = false;
	switch_begin(&conn->side);
	set_state(conn, CONN_CARRIED);
	list_push_back(&core.carried, &conn->carried_node);
	stats_start();
	stats->carried++;
	take_row(conn);
	watch_tcp(conn);
	epoll_conn_carried(conn);
	conn_say_may(conn);
	core.news = true;
	stats_log(false, "descriptor %d is carried", conn->fd);
}

static bool hello_is_ours(const struct clan_conn *clan)
{
	size_t bytes;
	const void *text = clan_conn_hello(clan, &bytes);

	return bytes == sizeof(hello) && memcmp(text, hello, sizeof(hello)) == 0;
}

/* Both libraries are there: the last check, and it is carried. */
static void meet(struct conn *conn)
{
	int result = process_is_sole(conn) ? compare_counts(conn) : -EAGAIN;

	if (result == -EAGAIN) {
		conn->offered = true;
		return;
	}
	if (result != 0) {
		conn_forget(conn, result == -EBADF ? REASON_COUNTS : REASON_OPTION);
		return;
	}
	if (!conn->connector) {
		if (core.rules.refuse || !hello_is_ours(conn->clan)) {
			clan_conn_set_context(conn->clan, NULL);
			clan_reject(conn->clan, "not wanted");
			conn->clan = NULL;
			conn_forget(conn, REASON_REFUSED);
			return;
		}
		if (clan_accept(conn->clan, NULL, 0) != 0) {
			conn_forget(conn, REASON_RESOURCES);
			return;
		}
	}
	begin(conn);
}

void conn_advance(struct conn *conn)
{
	if (!process_is_sole(conn)) {
		look_again_at(conn, atomic_load(&conn->calls) + conn->after);
		return;
	}
	switch (conn_state(conn)) {
	case CONN_PLAIN:
		if (conn->connector) {
			try_connect(conn);
		} else {
			listen_for_library(conn);
		}
		break;
	case CONN_LISTENING:
		try_accept(conn);
		if (conn_state(conn) == CONN_CONNECTING) {
			core_look(true); /* HELLO is there already */
		}
		break;
	case CONN_CONNECTING:
		if (conn->offered) {
			meet(conn);
		} else {
			core_look(true);
		}
		break;
	case CONN_FREE:
	case CONN_CARRIED:
	case CONN_STATE_COUNT:
		break;
	}
}

/* --- going back ------------------------------------------------------------------------------- */

void conn_leave(struct conn *conn, enum sockets_reason reason)
{
	if (conn->side.out_place != SWITCH_OUT_LEFT) {
		stats->reasons[reason]++;
		stats_log(false, "descriptor %d goes back to TCP: %s", conn->fd,
			stats_reason_names[reason]);
		leave(conn);
		conn_settle(conn);
	}
}

void conn_unfit(struct conn *conn, enum sockets_reason reason)
{
	if (conn_is_carried(conn)) {
		conn->after = NEVER;
		conn_leave(conn, reason);
	} else {
		conn_forget(conn, reason);
	}
}

void conn_settle(struct conn *conn)
{
	if (!conn_is_carried(conn) || conn->stranded || !switch_is_over(&conn->side)) {
		return;
	}
	close_clan(conn);
	if (conn_buffered(conn) > 0) {
		return;
	}
	unwatch_tcp(conn);
	list_remove(&conn->carried_node);
	release_row(conn);
	set_state(conn, CONN_PLAIN);
	epoll_conn_plain(conn);
	core.news = true; /* who waits for it must wait for TCP now */
	if (conn->after == NEVER) {
		look_again_at(conn, NEVER);
		return;
	}
	if (!data_grows(conn)) {
		conn->after = MIN(conn->after * AFTER_GROWTH, (uint32_t)RULES_AFTER_MAX);
	}
	atomic_store(&conn->calls, 0);
	conn->attempt = 0;
	look_again_at(conn, conn->bulk.on && !conn->connector ? 1 : conn->after);
}

void conn_broken(struct conn *conn, const char *what)
{
	const struct sockaddr nowhere = { .sa_family = AF_UNSPEC };

	stats->reasons[REASON_BROKEN]++;
	stats_log(true, "descriptor %d is reset: %s", conn->fd, what);
	/* A reset, and ECONNRESET for the program. */
	(void)REAL(connect)(conn->fd, &nowhere, sizeof(nowhere));
	conn->buffer_at = 0;
	conn->buffer_end = 0;
	conn->after = NEVER;
	conn->side.out_place = SWITCH_OUT_LEFT;
	switch_ring_ended(&conn->side);
	conn_touch(conn, TOUCH_IN | TOUCH_OUT);
	conn_settle(conn);
}

void conn_touch(struct conn *conn, uint32_t what)
{
	conn->touched |= what;
	if (!list_is_empty(&conn->members) && !list_is_linked(&conn->touched_node)) {
		list_push_back(&core.touched, &conn->touched_node);
	}
}

/* --- events of libclan ------------------------------------------------------------------------ */

static void take_messages(struct conn *conn)
{
	struct clan_message message;
	struct switch_message payload;

	while (conn->clan != NULL &&
		clan_recv(conn->clan, CLAN_CONTROL, &message, &payload, sizeof(payload)) == 0) {
		int result = message.bytes == sizeof(payload)
				     ? switch_received(&conn->side, message.type, &payload)
				     : -EPROTO;

		if (result < 0) {
			conn_broken(conn, "the other library broke the rules of the switch");
			return;
		}
		if (result == 1) {
			stats->reasons[REASON_PEER]++;
			leave(conn);
			conn_settle(conn);
		}
	}
}

static void carried_event(struct conn *conn, const struct clan_event *event)
{
	take_messages(conn);
	if (!conn_is_carried(conn)) {
		return;
	}
	if (event->type == CLAN_EVENT_LOST) {
		if (event->status == -EPROTO) {
			conn_broken(conn, clan_conn_reason(conn->clan));
			return;
		}
		conn->lost = true;
		conn->tcp_event = true;
		conn->side.out_place = SWITCH_OUT_LEFT;
		if (conn->side.go_from == SWITCH_NOWHERE) {
			switch_ring_ended(&conn->side);
		}
		conn_settle(conn);
	}
	if ((event->ready & CLAN_READY_SEND_BULK) != 0 || event->type == CLAN_EVENT_LOST) {
		conn->out_full = false;
	}
	conn_touch(conn, TOUCH_IN | TOUCH_OUT);
}

void conn_event(const struct clan_event *event)
{
	struct conn *conn = event->context;

	if (conn == NULL || event->conn != conn->clan) { /* given up already, or CLOSED */
		return;
	}
	core.news = true;
	if (conn_is_carried(conn)) {
		carried_event(conn, event);
		return;
	}
	switch (event->type) {
	case CLAN_EVENT_CONNECT:
	case CLAN_EVENT_CONNECTED:
		meet(conn);
		break;
	case CLAN_EVENT_LOST:
		conn_forget(conn, event->status == -ETIMEDOUT ? REASON_NOBODY : REASON_REFUSED);
		break;
	default:
		break;
	}
}

/* --- before fork and exec --------------------------------------------------------------------- */

/* One look at a connection that is to be on TCP. True: it is. */
static bool is_back(struct conn *conn)
{
	data_pull(conn, SOCKETS_BUFFER_BYTES);
	conn_settle(conn);
	return conn->clan == NULL;
}

static bool all_back(bool (*choose)(struct conn *conn))
{
	bool all = true;

	list_for_each(node, &core.carried)
	{
		struct conn *conn = list_entry(node, struct conn, carried_node);

		all = (!choose(conn) || is_back(conn)) && all;
	}
	return all;
}

static void leave_all(bool (*choose)(struct conn *conn), enum sockets_reason reason)
{
	list_for_each(node, &core.carried)
	{
		struct conn *conn = list_entry(node, struct conn, carried_node);

		if (choose(conn)) {
			conn_leave(conn, reason);
		}
	}
}

void conn_bring_back(
	bool (*choose)(struct conn *conn), enum sockets_reason reason, uint32_t timeout_ms)
{
	uint64_t deadline_ns = clock_now_ns() + timeout_ms * UINT64_C(1000000);

	leave_all(choose, reason);
	if (core.queue == NULL) {
		return;
	}
	core_look(true);
	while (!all_back(choose) && clock_now_ns() < deadline_ns) {
		wait_moment(BRING_BACK_LOOK_MS);
		leave_all(choose, reason); /* another thread may have let some be carried */
	}
}

static bool is_any(struct conn *conn)
{
	GMB_UNUSED(conn);
	return true;
}

void conn_before_fork(uint32_t timeout_ms)
{
	uint64_t deadline_ns = clock_now_ns() + timeout_ms * UINT64_C(1000000);

	leave_all(is_any, REASON_FORK);
	if (core.queue == NULL) {
		return;
	}
	core_look(true);
	while (!all_back(is_any) && clock_now_ns() < deadline_ns) {
		struct pollfd wait = { .fd = core.epoll_fd, .events = POLLIN };

		if (clan_queue_arm(core.queue) == 0) {
			(void)REAL(poll)(&wait, 1, BRING_BACK_LOOK_MS);
		}
		core_look(true);
	}
}

bool conn_bring_back_one(struct conn *conn, enum sockets_reason reason, uint32_t timeout_ms)
{
	uint64_t deadline_ns = clock_now_ns() + timeout_ms * UINT64_C(1000000);

	conn_leave(conn, reason);
	atomic_fetch_add(&conn->pins, 1); /* its memory stays its own */
	core_look(true);
	while (conn_is_carried(conn) && !is_back(conn) && clock_now_ns() < deadline_ns) {
		wait_moment(BRING_BACK_LOOK_MS);
	}
	atomic_fetch_sub(&conn->pins, 1);
	return conn->clan == NULL;
}

void conn_after_fork(void)
{
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct conn *conn = conn_at(fd);

		if (conn == NULL) {
			continue;
		}
		if (conn->listen_fd >= 0) {
			stop_listening(conn);
		}
		/* Calls of threads that are not here. */
		atomic_store(&conn->plain_readers, 0);
		atomic_store(&conn->plain_writers, 0);
		atomic_store(&conn->pins, 0);
		conn->offered = false;
		list_init(&conn->touched_node);
		list_init(&conn->carried_node);
		conn->row = NULL;
		if (conn_is_carried(conn)) {
			/* The other end did not answer before the fork: its bytes are the parent's.
			 */
			if (conn->clan != NULL) {
				conn->stranded = true;
				conn->buffer_at = conn->buffer_end;
			}
			conn->side.out_place = SWITCH_OUT_LEFT;
			switch_ring_ended(&conn->side);
		} else if (conn_state(conn) != CONN_PLAIN) {
			set_state(conn, CONN_PLAIN);
			look_again_at(conn, NEVER);
		}
		conn->clan = NULL;
	}
}
