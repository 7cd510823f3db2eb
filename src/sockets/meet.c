// SPDX-License-Identifier: Apache-2.0
/*
 * How the libraries at both ends of a TCP connection find each other and replace TCP by rings of
 * libclan; docs/design/0017-middleware.md. They meet at an abstract Unix socket, whose name
 * contains the addresses of both ends: the acceptor listens there, and the connector connects to
 * it. Both begin after a number of calls on the connection (conn->after, "after" below).
 *
 *   acceptor:   PLAIN ─ "after" reads ──▶ LISTENING at a name ──▶ CONNECTING ─▶ CARRIED
 *   connector:  PLAIN ─ "after" writes ─▶ connects to the name ─▶ CONNECTING ─▶ CARRIED
 *
 * Invariant: a connection is carried only if the byte counts of the kernel match ours, so that no
 * byte was moved by a call that the library did not see.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "sockets/kernel.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum {
	WRITES_MAX = 1 << 22, /* the connector tries at conn->after writes, then each time that
				 their number has doubled, up to this number */
	UNMET = 8,    /* it counts as not carried from conn->after times this number of writes on */
	LISTENS = 16, /* the acceptor waits for the connector for conn->after times this number of
			 reads, and for this many times the bytes that it had not read of what the
			 connector had written */
	LISTENS_BULK = 256, /* the same if bulk.on is set, because such connections have many reads
			       for each write */
	SPINS_AGAIN_AFTER = 2048,
	GROUPS_MAX = 64, /* addresses to which connections are compared */
	SLOT_BYTES = 64, /* slot size of libclan's rings */
	UNKNOWN_UID = 65534,
};

static const char hello[8] = "clsock02";

/* --- meeting ---------------------------------------------------------------------------------- */

void conn_look_again_at(struct conn *conn, uint32_t calls)
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

/* Writes the name of the socket at which the libraries meet, "@clan-tcp/SERVER/CLIENT". Abstract
 * names belong to a network namespace, as connections do. */
static void meeting_name(const struct conn *conn, char name[STATS_NAME_BYTES])
{
	char server[40];
	char client[40];

	write_address(server, conn->connector ? &conn->remote : &conn->local);
	write_address(client, conn->connector ? &conn->local : &conn->remote);
	snprintf(name, STATS_NAME_BYTES, "@clan-tcp/%s/%s", server, client);
}

/* Returns true if the library emulates all options that are set on the socket. */
static bool options_fit(const struct conn *conn)
{
	int flags = REAL(fcntl64)(conn->fd, F_GETFL);

	return flags >= 0 && (flags & O_ASYNC) == 0 && kernel_options_fit(conn->fd);
}

/* Checks whether the connection may use rings. Returns 0, or a negative errno with the reason. */
static int check_fitness(struct conn *conn, enum sockets_reason *reason, struct kernel_peer *peer)
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
	result = kernel_peer(&conn->local, &conn->remote, peer);
	if (result != 0) {
		*reason = result == -ENOENT ? REASON_REMOTE : REASON_IDENTITY;
		return result;
	}
	*reason = REASON_RESOURCES;
	return core_start();
}

/* UNKNOWN_UID is the number of every user that the user namespace does not map, so it does not
 * identify a user. Root is always accepted. */
static bool is_user(uid_t found, uid_t wanted)
{
	return (found == wanted && found != UNKNOWN_UID) || found == 0;
}

static uint64_t unread_bytes(const struct conn *conn)
{
	int bytes = 0;

	return REAL(ioctl)(conn->fd, FIONREAD, &bytes) == 0 && bytes > 0 ? (uint64_t)bytes : 0;
}

/* The acceptor creates the name of the connection, and waits for the connector to connect to it. */
static void listen_for_library(struct conn *conn)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char name[STATS_NAME_BYTES];
	enum sockets_reason reason;
	struct kernel_peer peer;
	int fd;

	if (check_fitness(conn, &reason, &peer) != 0) {
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
	conn->listens_to =
		atomic_load(&conn->side.in) + LISTENS * (unread_bytes(conn) + peer.unsent);
	conn_set_state(conn, CONN_LISTENING);
	conn_look_again_at(conn, 0);
}

static struct clan_conn_options clan_options(const struct conn *conn)
{
	uint32_t bytes = conn->bulk.on ? RULES_RING_BULK : RULES_RING_DEFAULT;

	bytes = core.rules.ring_bytes != 0 ? core.rules.ring_bytes : bytes;
	return (struct clan_conn_options){
		.size = sizeof(struct clan_conn_options),
		.access = CLAN_ACCESS_ANY, /* the user has been checked */
		.bulk_slots = bytes / SLOT_BYTES,
		.cookies = 1,
		.tripwires = 1,
		.peer_regions_max = 1,
		.peer_region_bytes_max = 4096,
	};
}

/* Adopts the Unix connection that the connector has made to our name. It must come from the user at
 * the other end of the TCP connection, or from root. */
static void meet_adopt(struct conn *conn, int fd)
{
	struct clan_conn_options options = clan_options(conn);
	struct ucred who;
	socklen_t length = sizeof(who);
	struct kernel_peer peer;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 ||
		kernel_peer(&conn->local, &conn->remote, &peer) != 0 ||
		!is_user(who.uid, peer.uid)) {
		core_disown(fd);
		REAL(close)(fd);
		conn_forget(conn, REASON_IDENTITY);
		return;
	}
	conn_stop_listening(conn);
	if (clan_adopt(core.queue, fd, &options, &conn->clan, NULL) != 0) {
		conn->clan = NULL;
		conn_forget(conn, REASON_RESOURCES);
		return;
	}
	clan_conn_set_context(conn->clan, conn);
	conn_set_state(conn, CONN_CONNECTING);
}

/* The connector can be many writes ahead, and tries again only when it has made twice as many. So
 * the acceptor gives up only after it has read these. */
static void try_accept(struct conn *conn)
{
	int fd = REAL(accept4)(conn->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd >= 0) {
		meet_adopt(conn, core_own(fd));
	} else if (atomic_load(&conn->calls) / (conn->bulk.on ? LISTENS_BULK : LISTENS) >=
			   conn->after &&
		   atomic_load(&conn->side.in) >= conn->listens_to) {
		conn_forget(conn, REASON_NOBODY);
	}
}

/* Returns true if this connection must wait, because the first connection to the same address is
 * still being set up. Connections to an address share a group and a bell of libclan. The later ones
 * can join the group only when the first connection is in CONN_CARRIED. */
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

/* The connector has found no name. A reader that begins late can still create it. */
static void not_met(struct conn *conn)
{
	uint32_t calls = atomic_load(&conn->calls);

	if (calls >= WRITES_MAX) {
		conn_forget(conn, REASON_NOBODY);
		return;
	}
	if (calls / UNMET >= conn->after && !conn->unmet) {
		conn->unmet = true;
		stats->reasons[REASON_NOBODY]++;
	}
	conn_look_again_at(conn, calls * 2);
}

/* The connector connects to the name. The acceptor creates the name only after some reads of its
 * program. So if the name does not exist yet, the connector tries again at twice the number of
 * calls. */
static void try_connect(struct conn *conn)
{
	struct clan_conn_options options = clan_options(conn);
	char name[STATS_NAME_BYTES];
	char address[STATS_NAME_BYTES + 4];
	enum sockets_reason reason;
	struct kernel_peer owner;
	struct clan_peer peer;

	if (check_fitness(conn, &reason, &owner) != 0) {
		conn_forget(conn, reason);
		return;
	}
	if (is_first_being_met(conn)) {
		conn_look_again_at(conn, atomic_load(&conn->calls) + 1);
		return;
	}
	meeting_name(conn, name);
	snprintf(address, sizeof(address), "shm:%s", name);
	if (clan_connect(core.queue, address, &options, hello, sizeof(hello), &conn->clan, NULL) !=
		0) {
		conn->clan = NULL;
		not_met(conn);
		return;
	}
	clan_conn_set_context(conn->clan, conn);
	conn_set_state(conn, CONN_CONNECTING);
	clan_conn_peer(conn->clan, &peer);
	if (!is_user(peer.uid, owner.uid)) {
		conn_forget(conn, REASON_IDENTITY);
		return;
	}
	conn_look_again_at(conn, 0);
}

/* --- carrying --------------------------------------------------------------------------------- */

/* Checks that all bytes were moved by calls that the library saw. Returns 0, -EAGAIN if the counts
 * differ while calls are in progress, -EBADF if they differ otherwise, or another negative
 * errno. */
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

/* Finds the group of the connection's remote address, or begins one. Returns NULL if there are too
 * many groups. */
static struct compare *group_of(const struct rules_address *remote)
{
	static struct {
		struct rules_address remote;
		struct compare compare;
	} groups[GROUPS_MAX];
	static uint32_t group_count;

	for (uint32_t i = 0; i < group_count; i++) {
		if (memcmp(&groups[i].remote, remote, sizeof(*remote)) == 0) {
			return &groups[i].compare;
		}
	}
	if (group_count == GROUPS_MAX) {
		return NULL;
	}
	groups[group_count].remote = *remote;
	return &groups[group_count++].compare;
}

static void begin_comparison(struct conn *conn)
{
	if (conn->connector && !core.rules.no_compare && conn->compare == NULL) {
		conn->compare = group_of(&conn->remote);
	}
	atomic_store(&conn->asked_ns, 0);
	conn->bells = 0;
	if (conn->compare != NULL) {
		conn->is_compared = true;
		compare_carried(conn->compare);
	}
}

/* Moves the connection to CONN_CARRIED: all later calls are emulated. MAY, which permits the peer
 * to write to the ring, is sent now, or when the last read that started on TCP has ended. */
static void meet_begin(struct conn *conn)
{
	int flags = REAL(fcntl64)(conn->fd, F_GETFL);

	conn->nonblocking = flags >= 0 && (flags & O_NONBLOCK) != 0;
	conn_learn_limits(conn);
	conn->out_full = false;
	conn->sends = 0;
	conn->lost = false;
	conn->tcp_event = true;
	conn->stranded = false;
	conn->ops = 0;
	conn->is_slow = false;
	conn->spins_again = conn->after >= SPINS_AGAIN_AFTER;
	begin_comparison(conn);
	conn->offered = false;
	switch_begin(&conn->side);
	conn_set_state(conn, CONN_CARRIED);
	list_push_back(&core.carried, &conn->carried_node);
	stats_start();
	stats->carried++;
	stats->reasons[REASON_NOBODY] -= conn->unmet;
	conn->unmet = false;
	take_row(conn);
	conn_watch_tcp(conn);
	epoll_conn_carried(conn);
	conn_say_may(conn);
	core_changed();
	stats_log(false, "descriptor %d is carried", conn->fd);
}

static bool hello_is_ours(const struct clan_conn *clan)
{
	size_t bytes;
	const void *text = clan_conn_hello(clan, &bytes);

	return bytes == sizeof(hello) && memcmp(text, hello, sizeof(hello)) == 0;
}

/* See sockets.h. While calls are in progress, the kernel's byte counts can differ from ours. A
 * later call then repeats the check. */
void conn_meet(struct conn *conn)
{
	int result = process_may_carry(conn) ? compare_counts(conn) : -EAGAIN;

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
	meet_begin(conn);
}

void conn_advance(struct conn *conn)
{
	if (!process_may_carry(conn)) {
		conn_look_again_at(conn, atomic_load(&conn->calls) + conn->after);
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
			core_look(true); /* HELLO has arrived already */
		}
		break;
	case CONN_CONNECTING:
		if (conn->offered) {
			conn_meet(conn);
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
