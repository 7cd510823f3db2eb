// SPDX-License-Identifier: Apache-2.0
/*
 * Groups and waking: docs/protocol/clan.md §2.1 and §6.
 *
 * The order of stores, fences and loads follows §6, which shows why no change is missed. Each side
 * stores a word and then loads a word of the other side. Without a full fence in between, both
 * sides could miss each other's store, and the sleeper would not be woken. The comment at each
 * fence names the partner: the fence of the other side.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "clan/shm.h"

#define NS_PER_MS UINT64_C(1000000)

enum {
	GROUP_CONNS_FIRST = 4,
	/* A group is muted after this many bells in succession for which the ready ring had no
	 * change that we wait for (idle bells), if they came within IDLE_WINDOW_MS. */
	IDLE_BELLS_MAX = 1000,
	IDLE_WINDOW_MS = 100,
	MUTED_MS = 1000,
	MUTED_LOOK_MS = 1,
};

_Static_assert(SHM_READY_SLOTS <= (SHM_SEGMENT_ALIGN - SHM_HEADER_BYTES) / sizeof(uint32_t),
	"our group header has one page");

static size_t shm_group_head_bytes(uint32_t ready_slots)
{
	return align_up(SHM_HEADER_BYTES + ready_slots * sizeof(uint32_t), SHM_SEGMENT_ALIGN);
}

static void futex_happened(struct waiter_futex *futex);
static void unmute(struct clan_deadline *deadline);

/* --- life ------------------------------------------------------------------------------------- */

/* Creates our head of a group in a memfd for the peer. The caller owns *fd_out. The peer's head is
 * mapped when its descriptor arrives. */
int shm_group_create(
	struct clan_queue *queue, uint64_t id, struct shm_group **group_out, int *fd_out)
{
	struct shm_group *group = calloc(1, sizeof(*group));
	uint8_t *base;
	int result;

	if (group == NULL) {
		return -ENOMEM;
	}
	group->queue = queue;
	group->id = id;
	list_init(&group->mappings);
	list_init(&group->active_node);
	list_init(&group->publish_node);
	list_init(&group->unmute.node);
	group->unmute.expired = unmute;
	group->own_bytes = shm_group_head_bytes(SHM_READY_SLOTS);
	result = segment_create("clan-group", group->own_bytes, &base, fd_out);
	if (result != 0) {
		free(group);
		return result;
	}
	group->own = (struct shm_group_head *)(void *)base;
	group->own->magic = SHM_MAGIC_GROUP;
	group->own->version = SHM_VERSION;
	group->own->ready_slots = SHM_READY_SLOTS;
	group->own->bytes = group->own_bytes;
	list_push_back(&shm_queue(queue)->groups, &group->node);
	*group_out = group;
	return 0;
}

void shm_group_free(struct shm_group *group)
{
	GMB_ASSERT(list_is_empty(&group->mappings));
	list_remove(&group->node);
	list_remove(&group->active_node);
	list_remove(&group->publish_node);
	clan_deadline_clear(&group->unmute);
	waiter_futex_destroy(group->queue->waiter, group->futex);
	munmap(group->own, group->own_bytes);
	if (group->peer != NULL) {
		munmap((void *)(uintptr_t)group->peer, group->peer_bytes);
	}
	free(group->place);
	free(group->conns);
	free(group);
}

/* Checks rules K1 to K4 in that order. The head is copied once, and only the copy is checked and
 * used. *rule_out is the rule being checked when the call fails. */
int shm_group_map_peer(struct shm_group *group, int fd, uint32_t *rule_out)
{
	struct segment_identity identity;
	struct shm_group_head head;
	uint8_t *base;
	int result;

	*rule_out = 1;
	if (segment_check(fd, SEGMENT_SEALED_SIZE | SEGMENT_SEALED_WRITER, &identity) != 0) {
		return -EPROTO;
	}
	*rule_out = 3;
	if (identity.bytes < SHM_SEGMENT_ALIGN ||
		identity.bytes > shm_group_head_bytes(SHM_READY_SLOTS_MAX) ||
		!is_aligned(identity.bytes, SHM_SEGMENT_ALIGN)) {
		return -EPROTO;
	}
	result = segment_map(fd, 0, identity.bytes, false, &base);
	if (result != 0) {
		return result;
	}
	memcpy(&head, base, offsetof(struct shm_group_head, bell));
	*rule_out = 4;
	if (head.magic != SHM_MAGIC_GROUP || head.version != SHM_VERSION ||
		!is_power_of_two(head.ready_slots) || head.ready_slots < SHM_READY_SLOTS_MIN ||
		head.ready_slots > SHM_READY_SLOTS_MAX || head.bytes != identity.bytes ||
		shm_group_head_bytes(head.ready_slots) != identity.bytes) {
		munmap(base, identity.bytes);
		return -EPROTO;
	}
	if (group->queue->options.bell == CLAN_BELL_FUTEX) {
		group->futex = waiter_futex_create(futex_happened);
		if (group->futex == NULL) {
			munmap(base, identity.bytes);
			return -ENOMEM;
		}
		group->futex->owner = group;
	}
	/* Setting peer permits other connections to join the group. */
	group->peer = (const struct shm_group_head *)(const void *)base;
	group->peer_bytes = identity.bytes;
	group->peer_ready_slots = head.ready_slots;
	group->conns_max = MIN((uint32_t)SHM_READY_SLOTS, head.ready_slots) / 2;
	group->bell_seen = atomic_load_explicit(&group->peer->bell, memory_order_acquire);
	shm_group_activate(group);
	return 0;
}

/* Assigns the lowest free number. The limit keeps the ready ring from overflowing
 * (docs/protocol/clan.md §6.2). */
int shm_group_join(struct shm_group *group, struct shm_conn *conn)
{
	uint32_t number = 0;

	if (group->conns_max != 0 && group->conn_count >= group->conns_max) {
		return -EUSERS;
	}
	while (number < group->conns_slots && group->conns[number] != NULL) {
		number++;
	}
	if (number == group->conns_slots) {
		uint32_t slots = MAX(group->conns_slots * 2, (uint32_t)GROUP_CONNS_FIRST);
		struct shm_conn **conns =
			reallocarray(group->conns, slots, sizeof(struct shm_conn *));

		if (conns == NULL) {
			return -ENOMEM;
		}
		memset(conns + group->conns_slots, 0,
			(slots - group->conns_slots) * sizeof(struct shm_conn *));
		group->conns = conns;
		group->conns_slots = slots;
	}
	group->conns[number] = conn;
	group->conn_count++;
	conn->group = group;
	conn->number = number;
	return 0;
}

/* Removes a connection from its group. The last one frees the group. */
void shm_group_leave(struct shm_conn *conn)
{
	struct shm_group *group = conn->group;

	if (group == NULL) {
		return;
	}
	GMB_ASSERT(group->conns[conn->number] == conn && group->conn_count > 0);
	group->conns[conn->number] = NULL;
	group->conn_count--;
	conn->group = NULL;
	if (group->conn_count == 0) {
		shm_group_free(group);
	}
}

struct shm_group *shm_group_find(struct clan_queue *queue, uint64_t id)
{
	list_for_each(node, &shm_queue(queue)->groups)
	{
		struct shm_group *group = list_entry(node, struct shm_group, node);

		if (group->id == id && group->place == NULL) {
			return group;
		}
	}
	return NULL;
}

/* Returns true if the group's acceptor is the process that listens at the connection's address. One
 * process can listen at several addresses. */
static bool has_peer(const struct shm_group *group, const struct shm_conn *conn)
{
	return group->pid != 0 && group->pid == conn->conn.peer.pid &&
	       group->uid == conn->conn.peer.uid;
}

struct shm_group *shm_group_find_place(const struct shm_conn *conn)
{
	struct shm_group *of_peer = NULL;

	list_for_each(node, &shm_queue(conn->conn.queue)->groups)
	{
		struct shm_group *group = list_entry(node, struct shm_group, node);

		/* peer is NULL until the acceptor has confirmed that it has the group. */
		if (group->place == NULL || group->peer == NULL ||
			group->conn_count >= group->conns_max) {
			continue;
		}
		if (strcmp(group->place, conn->place) == 0) {
			return group;
		}
		if (of_peer == NULL && has_peer(group, conn)) {
			of_peer = group;
		}
	}
	return of_peer;
}

void shm_group_activate(struct shm_group *group)
{
	if (!list_is_linked(&group->active_node)) {
		list_push_back(&shm_queue(group->queue)->active, &group->active_node);
	}
}

/* --- notifying the peer: §6.1 ----------------------------------------------------------------- */

/* Wakes the peer by a byte on the socket of a connection. Returns false if the peer might not
 * receive it, because the connection is being set up or is ending. */
static bool ring_socket(const struct shm_conn *conn)
{
	static const uint8_t byte = SHM_BELL;

	/* own_fd >= 0: WELCOME has not been sent. No bell is needed, because the peer checks the
	 * rings when WELCOME arrives. EAGAIN: the socket is full, so the peer has unread bytes that
	 * wake it. */
	return conn->conn.state == CLAN_OPEN && conn->own_fd < 0 &&
	       (send(conn->file.fd, &byte, sizeof(byte), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
		       errno == EAGAIN);
}

/* Wakes the peer (rings its bell) if it has armed the group, at most once for each arming. */
static void ring_bell(struct shm_group *group, struct shm_conn *conn)
{
	uint64_t arm = atomic_load_explicit(&group->peer->arm, memory_order_acquire);

	if (arm == 0 || arm == group->rung) {
		return;
	}
	group->rung = arm;
	atomic_store_explicit(&group->own->bell, ++group->bell, memory_order_release);
	conn->conn.stats.bells_rung++;
	if (conn->bell == CLAN_BELL_FUTEX) {
		syscall(SYS_futex, &group->own->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
		return;
	}
	/* One bell serves the whole group. If the peer has closed this connection, another
	 * connection of the group must carry the byte. */
	for (uint32_t i = 0; !ring_socket(conn) && i < group->conns_slots; i++) {
		if (group->conns[i] != NULL) {
			conn = group->conns[i];
		}
	}
}

/* Publishes the messages written and the cookies popped since the last publication. Release: the
 * slots are visible before the index. */
static void publish_words(struct shm_conn *conn)
{
	static const uint32_t reasons[SHM_CLASS_COUNT] = {
		[SHM_SYSTEM] = SHM_REASON_SYSTEM,
		[SHM_CONTROL] = SHM_REASON_CONTROL,
		[SHM_BULK] = SHM_REASON_BULK,
	};

	for (int class = 0; class < SHM_CLASS_COUNT; class ++) {
		struct shm_out *out = &conn->out[class];

		if (out->write != out->published) {
			atomic_store_explicit(
				&conn->own->write[class], out->write, memory_order_release);
			out->published = out->write;
			conn->changes |= reasons[class];
		}
	}
	atomic_store_explicit(
		&conn->own->cookies_popped, conn->cookies_popped, memory_order_release);
}

/* Called after the fence that follows publish_words(). If the peer has requested notification of
 * these changes, pushes the connection's number on our ready ring, which the peer reads. Returns
 * true if an entry was pushed. */
static bool push_ready(struct shm_conn *conn)
{
	struct shm_group *group = conn->group;
	uint64_t want = atomic_load_explicit(&conn->peer->want, memory_order_acquire);
	uint64_t number = want >> SHM_WANT_NUMBER_SHIFT;
	uint32_t changes = conn->changes;
	uint32_t read;

	conn->changes = 0;
	if ((want & changes) == 0 || number == conn->answered) {
		return false;
	}
	read = atomic_load_explicit(&group->peer->ready_read, memory_order_acquire);
	if (group->pushed - read >= SHM_READY_SLOTS) {
		/* K17: the ring is full because the peer did not consume its entries; only the peer
		 * is delayed */
		return false;
	}
	conn->answered = number;
	atomic_store_explicit(&group->own->ready[group->pushed & (SHM_READY_SLOTS - 1)],
		conn->peer_number, memory_order_relaxed);
	atomic_store_explicit(&group->own->ready_write, ++group->pushed, memory_order_release);
	return true;
}

/* Publishes all dirty connections with only two fences. First stores all words. After the first
 * fence, checks want of each connection, and pushes entries on the ready rings. After the second
 * fence, checks arm once for each group that got an entry, and rings its bell. */
void shm_publish(struct clan_queue *queue)
{
	struct shm_queue *shm = shm_queue(queue);
	struct list_node told;

	if (list_is_empty(&shm->dirty)) {
		return;
	}
	list_init(&told);
	list_for_each(node, &shm->dirty)
	{
		publish_words(list_entry(node, struct shm_conn, dirty_node));
	}
	/* Partner: the fence in shm_want(), between the store of want and the check. Either we see
	 * want, or the peer sees our changes. */
	atomic_thread_fence(memory_order_seq_cst);
	while (!list_is_empty(&shm->dirty)) {
		struct list_node *node = list_pop_front(&shm->dirty);
		struct shm_conn *conn = list_entry(node, struct shm_conn, dirty_node);

		if (push_ready(conn) && !list_is_linked(&conn->group->publish_node)) {
			conn->group->publish_conn = conn;
			list_push_back(&told, &conn->group->publish_node);
		}
	}
	if (list_is_empty(&told)) {
		return;
	}
	/* Partner: the fence in shm_arm(), between the store of arm and the check. Either we see
	 * arm, or the peer sees the entry. */
	atomic_thread_fence(memory_order_seq_cst);
	while (!list_is_empty(&told)) {
		struct shm_group *group =
			list_entry(list_pop_front(&told), struct shm_group, publish_node);

		ring_bell(group, group->publish_conn);
	}
}

void shm_publish_conn(struct shm_conn *conn)
{
	if (!list_is_linked(&conn->dirty_node)) {
		return;
	}
	list_remove(&conn->dirty_node);
	publish_words(conn);
	/* The fences are as in shm_publish(). */
	atomic_thread_fence(memory_order_seq_cst);
	if (push_ready(conn)) {
		atomic_thread_fence(memory_order_seq_cst);
		ring_bell(conn->group, conn);
	}
}

/* --- notification by the peer: §6.2 ----------------------------------------------------------- */

/* Returns the changes (enum shm_reason) of which the peer must notify us: those that enabled calls
 * wait for, and those that the library itself waits for. */
static uint32_t wanted_reasons(const struct shm_conn *conn)
{
	static const uint32_t reasons[] = {
		SHM_REASON_CONTROL,	 /* CLAN_READY_CONTROL */
		SHM_REASON_BULK,	 /* CLAN_READY_BULK */
		SHM_REASON_ROOM_CONTROL, /* CLAN_READY_SEND_CONTROL */
		SHM_REASON_ROOM_BULK,	 /* CLAN_READY_SEND_BULK */
		0,			 /* CLAN_READY_COOKIES: system records */
		SHM_REASON_ROOM_SYSTEM,	 /* CLAN_READY_PUSH_COOKIE */
	};
	uint32_t wanted = SHM_REASON_SYSTEM;

	for (uint32_t i = 0; i < ARRAY_COUNT(reasons); i++) {
		if ((conn->conn.enabled & BIT(i)) != 0) {
			wanted |= reasons[i];
		}
	}
	if (conn->trips_owed > 0) {
		wanted |= SHM_REASON_ROOM_SYSTEM;
	}
	if (shm_waits_for_quiet(conn)) {
		wanted |= SHM_REASON_QUIET;
	}
	return wanted;
}

/* Checks everything that the peer can have changed, and raises the enabled READY events. Returns
 * true if there was a change. */
static bool look_now(struct shm_conn *conn)
{
	bool found = shm_take_system(conn);
	uint32_t enabled = conn->conn.enabled;
	uint32_t ready = 0;

	if (conn->trips_owed > 0) {
		shm_send_owed_trips(conn);
	}
	shm_copies_look(conn);
	if ((enabled & CLAN_READY_CONTROL) != 0 && shm_has_message(conn, SHM_CONTROL)) {
		ready |= CLAN_READY_CONTROL;
	}
	if ((enabled & CLAN_READY_BULK) != 0 && shm_has_message(conn, SHM_BULK)) {
		ready |= CLAN_READY_BULK;
	}
	if ((enabled & CLAN_READY_SEND_CONTROL) != 0 &&
		shm_room(conn, SHM_CONTROL, conn->room_bytes[SHM_CONTROL])) {
		ready |= CLAN_READY_SEND_CONTROL;
	}
	if ((enabled & CLAN_READY_SEND_BULK) != 0 &&
		shm_room(conn, SHM_BULK, conn->room_bytes[SHM_BULK])) {
		ready |= CLAN_READY_SEND_BULK;
	}
	if ((enabled & CLAN_READY_PUSH_COOKIE) != 0 && shm_cookie_room(conn)) {
		ready |= CLAN_READY_PUSH_COOKIE;
	}
	clan_conn_fire_ready(&conn->conn, ready);
	found |= shm_look_quiet(conn);
	return found || ready != 0;
}

/* Repeats until look_now() finds no change after the request was stored. The peer makes any later
 * change after our fence, so it sees the request and notifies us. */
void shm_want(struct shm_conn *conn)
{
	uint32_t reasons;

	while (conn->conn.state == CLAN_OPEN &&
		((reasons = wanted_reasons(conn), conn->want_answered) ||
			(reasons & ~conn->want_reasons) != 0)) {
		/* A request keeps its number until the peer has answered it, also when reasons are
		 * added. The peer pushes one entry on the ready ring for each number, so the ring
		 * cannot overflow. */
		conn->want += conn->want_answered;
		conn->want_answered = false;
		conn->want_reasons = reasons;
		atomic_store_explicit(&conn->own->want,
			conn->want << SHM_WANT_NUMBER_SHIFT | reasons, memory_order_release);
		/* Partner: the first fence in shm_publish(). */
		atomic_thread_fence(memory_order_seq_cst);
		if (!look_now(conn)) {
			break;
		}
	}
}

bool shm_look(struct shm_conn *conn)
{
	bool found = look_now(conn);

	shm_want(conn);
	return found;
}

/* All connections of a group share its head, so a broken rule in the head ends them all. */
static void group_broken(struct shm_group *group, uint32_t rule, const char *what)
{
	for (uint32_t i = 0; i < group->conns_slots; i++) {
		if (group->conns[i] != NULL) {
			shm_broken(group->conns[i], rule, what);
		}
	}
}

/* Processes the entries of the peer's ready ring. Returns true if an entry led to an event. */
static bool shm_group_take_ready(struct shm_group *group)
{
	uint32_t write = atomic_load_explicit(&group->peer->ready_write, memory_order_acquire);
	bool found = false;

	if (write == group->taken) {
		return false;
	}
	if (write - group->taken > group->peer_ready_slots) {
		group_broken(group, 18, "the ready ring has more entries than slots");
		group->taken = write;
		return true;
	}
	while (group->taken != write) {
		uint32_t number = atomic_load_explicit(
			&group->peer->ready[group->taken & (group->peer_ready_slots - 1)],
			memory_order_relaxed);

		group->taken++;
		if (number >= SHM_NUMBERS_MAX) {
			group_broken(group, 19, "the ready ring names an invalid connection");
			found = true;
		} else if (number < group->conns_slots && group->conns[number] != NULL) {
			struct shm_conn *conn = group->conns[number];

			if (conn->conn.state == CLAN_OPEN) {
				/* The peer has answered our last request by this entry. So
				 * shm_look() publishes the next request under a new number. */
				conn->want_answered = true;
				found |= shm_look(conn);
			}
		}
	}
	atomic_store_explicit(&group->own->ready_read, group->taken, memory_order_release);
	return found;
}

/* Processes the ready ring, whether or not a bell was rung. */
static bool look_at_group(struct shm_group *group)
{
	bool found = shm_group_take_ready(group);

	if (found) {
		group->idle_in_row = 0;
	}
	return found;
}

/* Connections that ended are freed here, outside of the loops that could still refer to them. */
bool shm_progress(struct clan_queue *queue)
{
	bool found = false;

	list_for_each(node, &shm_queue(queue)->active)
	{
		struct shm_group *group = list_entry(node, struct shm_group, active_node);

		found |= look_at_group(group);
	}
	while (!list_is_empty(&shm_queue(queue)->dead)) {
		struct shm_conn *conn = list_entry(
			list_pop_front(&shm_queue(queue)->dead), struct shm_conn, dead_node);

		conn->conn.provider->destroy(&conn->conn);
	}
	return found;
}

/* --- sleeping --------------------------------------------------------------------------------- */

static void watch_sockets(struct shm_group *group, uint32_t events)
{
	for (uint32_t i = 0; i < group->conns_slots; i++) {
		if (group->conns[i] != NULL && group->conns[i]->file.fd >= 0) {
			waiter_file_events(group->queue->waiter, &group->conns[i]->file, events);
		}
	}
}

/* While a group is muted, this deadline checks it every MUTED_LOOK_MS, and its bell is ignored. */
static void unmute(struct clan_deadline *deadline)
{
	struct shm_group *group = container_of(deadline, struct shm_group, unmute);

	shm_group_activate(group);
	if (clock_now_ns() < group->muted_until_ns) {
		look_at_group(group);
		clan_deadline_set(group->queue, &group->unmute, MUTED_LOOK_MS * NS_PER_MS);
		return;
	}
	group->muted_until_ns = 0;
	group->idle_in_row = 0;
	if (group->queue->options.bell == CLAN_BELL_SOCKET) {
		watch_sockets(group, EPOLLIN | EPOLLRDHUP);
	}
}

/* Mutes a group after too many idle bells, so that the peer can no longer determine how often we
 * wake. */
static void mute(struct shm_group *group)
{
	group->muted_until_ns = clock_now_ns() + MUTED_MS * NS_PER_MS;
	if (group->queue->options.bell == CLAN_BELL_SOCKET) {
		watch_sockets(group, 0);
	}
	clan_deadline_set(group->queue, &group->unmute, MUTED_LOOK_MS * NS_PER_MS);
}

/* Called when the peer has woken us (rung the bell). Counts wake-ups for which the ready ring has
 * no change that we wait for, and mutes the group if there are too many in a short time. */
void shm_group_bell(struct shm_group *group)
{
	group->bells_heard++;
	shm_group_activate(group);
	if (shm_group_take_ready(group)) {
		group->idle_in_row = 0;
		return;
	}
	group->bells_idle++;
	if (group->idle_in_row++ == 0) {
		group->idle_since_ns = clock_now_ns();
	}
	if (group->idle_in_row >= IDLE_BELLS_MAX) {
		if (clock_now_ns() - group->idle_since_ns < IDLE_WINDOW_MS * NS_PER_MS) {
			mute(group);
		}
		group->idle_in_row = 0;
	}
}

static void futex_happened(struct waiter_futex *futex)
{
	shm_group_bell(futex->owner);
}

/* Requests a wake-up from the peer, by a new number in the word arm. bell_seen is loaded first, so
 * that a bell for this number is not missed. */
static void arm_group(struct shm_group *group)
{
	group->bell_seen = atomic_load_explicit(&group->peer->bell, memory_order_acquire);
	atomic_store_explicit(&group->own->arm, ++group->arm, memory_order_release);
}

/* A group whose peer has been asked for a wake-up (armed) leaves the active list, and returns when
 * the peer rings the bell. So the cost of going to sleep depends only on the number of active
 * groups. */
bool shm_arm(struct clan_queue *queue)
{
	struct shm_queue *shm = shm_queue(queue);
	bool found = false;

	list_for_each(node, &shm->active)
	{
		arm_group(list_entry(node, struct shm_group, active_node));
	}
	/* Partner: the second fence in shm_publish(). */
	atomic_thread_fence(memory_order_seq_cst);
	list_for_each(node, &shm->active)
	{
		struct shm_group *group = list_entry(node, struct shm_group, active_node);

		if (look_at_group(group)) {
			atomic_store_explicit(&group->own->arm, 0, memory_order_release);
			found = true;
			continue;
		}
		if (group->muted_until_ns != 0) {
			/* no futex operation is needed: a deadline checks a muted group */
			continue;
		}
		if (group->futex != NULL && !group->futex->in_flight) {
			waiter_futex_start(
				queue->waiter, group->futex, &group->peer->bell, group->bell_seen);
		}
		list_remove(&group->active_node);
	}
	/* The checks might have released ring space, which must be published before sleeping. */
	shm_publish(queue);
	return found;
}
