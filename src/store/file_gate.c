// SPDX-License-Identifier: Apache-2.0
#include "store/file_gate.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "disk/disk.h"
#include "store/file.h"

/* A bit in file_gate.direct: set while buffered parts are inside or waiting. The lower bits count
 * the direct parts that are inside. */
#define GATE_CLOSED (UINT64_C(1) << 63)

struct file_gate {
	struct list_node node; /* link in the registry of gates */
	uint64_t identity[2];
	uint32_t references;

	/* Number of direct parts inside, changed by any thread, and GATE_CLOSED, changed only under
	 * the lock. */
	_Atomic uint64_t direct;
	_Atomic uint32_t direct_writers;
	_Atomic int error;

	/* Protects the next four members. Held while claiming, which can block. */
	pthread_mutex_t claim_lock;
	uint32_t claim_count;
	bool claim_is_sole; /* there is one claim, made with sole */
	int claim_fd;	    /* descriptor of the claim; -1: none, or the disk cannot be claimed */
	/* claim_fd was received from another process and no store has used it yet */
	bool is_adopted;
	bool has_adopter;	/* store_adopt() holds a reference until store_adopt_end() */
	_Atomic int barrier;	/* enum store_barrier; read by any thread */
	uint64_t barrier_since; /* time at which the barrier was found to be closed */

	pthread_mutex_t lock; /* protects all members below */
	uint32_t buffered_count;
	bool buffered_turn; /* class that is admitted if the gate is empty and both classes wait */
	struct list_node waiting_direct;
	struct list_node waiting_buffered;
	struct list_node members;
};

/*
 * All gates of the process. Two stores on one file are opened independently, and find their common
 * gate here. Used when stores are opened and closed, never by parts.
 */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list_node registry = { .next = &registry, .prev = &registry };

/* --- registry ------------------------------------------------------------------------------ */

static struct file_gate *gate_find(const uint64_t identity[2])
{
	list_for_each(node, &registry)
	{
		struct file_gate *gate = list_entry(node, struct file_gate, node);

		if (gate->identity[0] == identity[0] && gate->identity[1] == identity[1]) {
			return gate;
		}
	}
	return NULL;
}

static struct file_gate *gate_create(const uint64_t identity[2])
{
	struct file_gate *gate = calloc(1, sizeof(*gate));

	if (gate == NULL) {
		return NULL;
	}
	gate->claim_fd = -1;
	gate->identity[0] = identity[0];
	gate->identity[1] = identity[1];
	pthread_mutex_init(&gate->claim_lock, NULL);
	pthread_mutex_init(&gate->lock, NULL);
	list_init(&gate->waiting_direct);
	list_init(&gate->waiting_buffered);
	list_init(&gate->members);
	list_push_back(&registry, &gate->node);
	return gate;
}

int file_gate_get(const uint64_t identity[2], struct file_gate **gate_out)
{
	struct file_gate *gate;

	pthread_mutex_lock(&registry_lock);
	gate = gate_find(identity);
	if (gate == NULL) {
		gate = gate_create(identity);
	}
	if (gate != NULL) {
		gate->references++;
	}
	pthread_mutex_unlock(&registry_lock);
	if (gate == NULL) {
		return -ENOMEM;
	}
	*gate_out = gate;
	return 0;
}

void file_gate_put(struct file_gate *gate)
{
	pthread_mutex_lock(&registry_lock);
	GMB_ASSERT(gate->references > 0);
	gate->references--;
	if (gate->references > 0) {
		pthread_mutex_unlock(&registry_lock);
		return;
	}
	list_remove(&gate->node);
	pthread_mutex_unlock(&registry_lock);
	GMB_ASSERT(atomic_load(&gate->direct) == 0);
	GMB_ASSERT(gate->buffered_count == 0);
	GMB_ASSERT(list_is_empty(&gate->members));
	GMB_ASSERT(gate->claim_count == 0);
	pthread_mutex_destroy(&gate->lock);
	pthread_mutex_destroy(&gate->claim_lock);
	free(gate);
}

/* --- the barrier --------------------------------------------------------------------------- */

static void barrier_set(struct file_gate *gate, enum store_barrier barrier)
{
	atomic_store_explicit(&gate->barrier, (int)barrier, memory_order_relaxed);
}

static enum store_barrier barrier_of(const struct file_gate *gate)
{
	/* Relaxed order: no other data depends on whether the barrier is open. */
	return (enum store_barrier)atomic_load_explicit(&gate->barrier, memory_order_relaxed);
}

/* Returns -EBUSY if operations of a process that has exited are in flight, or like
 * disk_check_uses(). has_claim: no other process writes the disk, so a writer's mark is of a
 * process that has exited. */
static int find_late(int fd, bool has_claim)
{
	int result = has_claim ? disk_check_writers(fd) : 0;

	return result ?: disk_check_uses(fd);
}

/* Closes the barrier if operations of a process that has exited are in flight. Called under the
 * claim lock, before this process marks a descriptor as a writer. */
static void barrier_begin(struct file_gate *gate, const char *path, int fd, bool has_claim)
{
	int result = find_late(fd, has_claim);

	if (result == -EBUSY && barrier_of(gate) != STORE_BARRIER_CLOSED) {
		barrier_set(gate, STORE_BARRIER_CLOSED);
		gate->barrier_since = clock_now_ns();
		log_warning("'%s': operations of a process that has exited are still in flight; "
			    "clients wait until these have completed",
			path);
	} else if (result != -EBUSY) {
		barrier_set(gate, result == 0 ? STORE_BARRIER_OPEN : STORE_BARRIER_UNKNOWN);
	}
}

/* Marks the member's descriptors by calls of mark(). Called under the claim lock. */
static void mark_member(
	struct file_gate *gate, const struct file_gate_member *member, int (*mark)(int fd))
{
	int result = mark(member->fd);

	if (result == 0 && member->direct_fd >= 0) {
		result = mark(member->direct_fd);
	}
	if (result < 0 && barrier_of(gate) == STORE_BARRIER_OPEN) {
		/* another process could not detect our operations */
		barrier_set(gate, STORE_BARRIER_UNKNOWN);
	}
}

/* Marks the member as a writer, if it is one. Called under the claim lock when the barrier is open.
 */
static void mark_if_writer(struct file_gate *gate, const struct file_gate_member *member)
{
	if (member->writes) {
		mark_member(gate, member, disk_mark_writer);
	}
}

/* Checks whether a closed barrier is open now. Called under the claim lock. */
static void barrier_look(struct file_gate *gate)
{
	const struct file_gate_member *any = NULL;
	int result;

	pthread_mutex_lock(&gate->lock);
	list_for_each(node, &gate->members)
	{
		any = list_entry(node, struct file_gate_member, node);
	}
	result = find_late(any->fd, gate->claim_count > 0);
	if (result != -EBUSY) {
		barrier_set(gate, result == 0 ? STORE_BARRIER_OPEN : STORE_BARRIER_UNKNOWN);
		log_info("'%s': the operations of a process that has exited completed after %.3f s",
			any->path, (double)(clock_now_ns() - gate->barrier_since) / 1e9);
	}
	list_for_each(node, &gate->members)
	{
		if (result == 0) {
			mark_if_writer(gate, list_entry(node, struct file_gate_member, node));
		}
	}
	pthread_mutex_unlock(&gate->lock);
}

enum store_barrier file_gate_barrier(struct file_gate *gate, bool look)
{
	if (look && barrier_of(gate) == STORE_BARRIER_CLOSED) {
		pthread_mutex_lock(&gate->claim_lock);
		if (barrier_of(gate) == STORE_BARRIER_CLOSED) {
			barrier_look(gate);
		}
		pthread_mutex_unlock(&gate->claim_lock);
	}
	return barrier_of(gate);
}

bool file_gate_of_device(dev_t device, enum store_barrier *barrier_out)
{
	const uint64_t identity[2] = { 0, (uint64_t)device };
	const struct file_gate *gate;

	pthread_mutex_lock(&registry_lock);
	gate = gate_find(identity);
	if (gate != NULL) {
		*barrier_out = barrier_of(gate);
	}
	pthread_mutex_unlock(&registry_lock);
	return gate != NULL;
}

/* --- the claim ----------------------------------------------------------------------------- */

int file_gate_claim(
	struct file_gate *gate, const char *path, int fd, bool sole, struct error *error)
{
	int result = 0;

	pthread_mutex_lock(&gate->claim_lock);
	if (gate->claim_count > 0 && (sole || gate->claim_is_sole)) {
		result = error_set(error, -EBUSY,
			"'%s' is an overlay or a flash store and already belongs to another export "
			"of this server; give each export its own file",
			path);
	} else if (gate->is_adopted) {
		gate->is_adopted = false;
		disk_adopt_claim(gate->claim_fd);
		barrier_set(gate,
			disk_mark_writer(fd) == 0 ? STORE_BARRIER_OPEN : STORE_BARRIER_UNKNOWN);
	} else if (gate->claim_count == 0) {
		result = disk_claim(path, fd, &gate->claim_fd, error);
		if (result == 0) {
			barrier_begin(gate, path, fd, true);
		}
	}
	if (result == 0) {
		gate->claim_count++;
		gate->claim_is_sole = sole;
	}
	pthread_mutex_unlock(&gate->claim_lock);
	return result;
}

void file_gate_read(struct file_gate *gate, const char *path, int fd)
{
	pthread_mutex_lock(&gate->claim_lock);
	if (gate->claim_count == 0) {
		barrier_begin(gate, path, fd, false);
	}
	pthread_mutex_unlock(&gate->claim_lock);
}

int file_gate_claim_fd(const struct file_gate *gate)
{
	return gate->claim_fd; /* constant while any store has the claim */
}

void file_gate_unclaim(struct file_gate *gate)
{
	pthread_mutex_lock(&gate->claim_lock);
	GMB_ASSERT(gate->claim_count > 0);
	gate->claim_count--;
	if (gate->claim_count == 0 && gate->claim_fd >= 0) {
		disk_close(gate->claim_fd);
		gate->claim_fd = -1;
	}
	pthread_mutex_unlock(&gate->claim_lock);
}

/* Adopts a claim: takes a reference to the gate, which it keeps until store_adopt_end(). */

int store_adopt(const struct store_claim *claim)
{
	struct file_gate *gate;
	struct disk_info info;

	if (claim->fd >= 0 &&
		(disk_info(claim->fd, &info) < 0 ||
			memcmp(info.identity, claim->identity, sizeof(info.identity)) != 0)) {
		disk_close(claim->fd);
		return -EINVAL;
	}
	if (file_gate_get(claim->identity, &gate) < 0) {
		if (claim->fd >= 0) {
			disk_close(claim->fd);
		}
		return -ENOMEM;
	}
	if (gate->has_adopter) { /* the claim was already adopted for another export of the disk */
		if (claim->fd >= 0) {
			disk_close(claim->fd);
		}
		file_gate_put(gate);
		return 0;
	}
	gate->has_adopter = true;
	gate->is_adopted = true;
	gate->claim_fd = claim->fd;
	return 0;
}

void store_adopt_end(void)
{
	struct list_node *node = registry.next;

	while (node != &registry) {
		struct file_gate *gate = list_entry(node, struct file_gate, node);

		node = node->next;
		if (gate->has_adopter) {
			gate->has_adopter = false;
			if (gate->is_adopted && gate->claim_fd >= 0) {
				disk_close(gate->claim_fd);
				gate->claim_fd = -1;
			}
			gate->is_adopted = false;
			file_gate_put(gate);
		}
	}
}

/* --- members ------------------------------------------------------------------------------- */

/* Disables readahead, which can outlive the read that started it, and would then run outside the
 * gate. */
static void stop_readahead(struct file_gate *gate)
{
	list_for_each(node, &gate->members)
	{
		struct file_gate_member *member = list_entry(node, struct file_gate_member, node);

		if (member->keeps_stale) {
			disk_set_random(member->fd);
		}
	}
}

void file_gate_join(struct file_gate *gate, struct file_gate_member *member)
{
	pthread_mutex_lock(&gate->claim_lock);
	mark_member(gate, member, disk_mark_use);
	if (barrier_of(gate) == STORE_BARRIER_OPEN) {
		mark_if_writer(gate, member);
	}
	pthread_mutex_lock(&gate->lock);
	list_push_back(&gate->members, &member->node);
	if (member->writes_direct) {
		atomic_fetch_add_explicit(&gate->direct_writers, 1, memory_order_relaxed);
	}
	if (file_gate_has_direct_writers(gate)) {
		stop_readahead(gate);
	}
	pthread_mutex_unlock(&gate->lock);
	pthread_mutex_unlock(&gate->claim_lock);
}

void file_gate_leave_member(struct file_gate *gate, struct file_gate_member *member)
{
	pthread_mutex_lock(&gate->lock);
	list_remove(&member->node);
	if (member->writes_direct) {
		atomic_fetch_sub_explicit(&gate->direct_writers, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&gate->lock);
}

bool file_gate_has_direct_writers(const struct file_gate *gate)
{
	/* Relaxed order: changes only while stores are opened and closed, see the header. */
	return atomic_load_explicit(&gate->direct_writers, memory_order_relaxed) > 0;
}

/* --- carrying parts to their rings --------------------------------------------------------- */

static void file_gate_port_deliver(struct ring *ring, struct ring_message *message)
{
	struct file_gate_port *port = container_of(message, struct file_gate_port, message);
	struct list_node parts;
	struct list_node *node;

	GMB_ASSERT(ring == port->ring);
	list_init(&parts);
	pthread_mutex_lock(&port->gate->lock);
	list_move_all(&parts, &port->granted);
	port->posted = false;
	pthread_mutex_unlock(&port->gate->lock);
	while ((node = list_pop_front(&parts)) != NULL) {
		file_resume(list_entry(node, struct store_part, node));
	}
}

void file_gate_port_init(struct file_gate_port *port, struct file_gate *gate, struct ring *ring)
{
	port->ring = ring;
	port->gate = gate;
	port->message.deliver = file_gate_port_deliver;
	port->posted = false;
	list_init(&port->granted);
}

static void file_gate_grant(struct store_part *part, enum file_gate_class class)
{
	struct file_gate_port *port = &file_queue_of(part)->port;

	file_scratch_of(part)->gate = class;
	list_push_back(&port->granted, &part->node);
	if (!port->posted) {
		port->posted = true;
		ring_post(port->ring, &port->message);
	}
}

/* --- entering and leaving ------------------------------------------------------------------ */

static void admit_buffered(struct file_gate *gate)
{
	struct list_node *node;

	while ((node = list_pop_front(&gate->waiting_buffered)) != NULL) {
		gate->buffered_count++;
		file_gate_grant(list_entry(node, struct store_part, node), FILE_GATE_BUFFERED);
	}
}

static void admit_direct(struct file_gate *gate)
{
	struct list_node *node;

	/* Counts each part before admitting it, because it may leave immediately. */
	while ((node = list_pop_front(&gate->waiting_direct)) != NULL) {
		atomic_fetch_add_explicit(&gate->direct, 1, memory_order_acq_rel);
		file_gate_grant(list_entry(node, struct store_part, node), FILE_GATE_DIRECT);
	}
	/* If buffered parts wait, they get the next turn. Otherwise the gate opens. */
	if (list_is_empty(&gate->waiting_buffered)) {
		atomic_fetch_and_explicit(&gate->direct, ~GATE_CLOSED, memory_order_acq_rel);
	} else {
		gate->buffered_turn = true;
	}
}

/* If the gate is empty, admits waiting parts. Called under the lock after every change. */
static void file_gate_serve(struct file_gate *gate)
{
	/*
	 * Parts wait only while the gate is closed. They can be admitted only if no part is inside.
	 * If direct parts are still counted, this function is called again: by the last direct part
	 * when it leaves, or by a part in enter_direct() that has counted itself and then finds the
	 * gate closed.
	 */
	if (atomic_load_explicit(&gate->direct, memory_order_acquire) != GATE_CLOSED ||
		gate->buffered_count > 0) {
		return;
	}
	if (!list_is_empty(&gate->waiting_buffered) &&
		(gate->buffered_turn || list_is_empty(&gate->waiting_direct))) {
		admit_buffered(gate);
		return;
	}
	admit_direct(gate);
}

/* If the gate is open, this is one addition to gate->direct. If it is closed, the addition is
 * undone under the lock, and the part waits. */
static bool enter_direct(struct file_gate *gate, struct store_part *part)
{
	/* The acquire order pairs with the release in leave_direct() and admit_direct(). */
	uint64_t before = atomic_fetch_add_explicit(&gate->direct, 1, memory_order_acq_rel);
	bool inside;

	if (likely((before & GATE_CLOSED) == 0)) {
		file_scratch_of(part)->gate = FILE_GATE_DIRECT;
		return true;
	}
	pthread_mutex_lock(&gate->lock);
	/* GATE_CLOSED changes only under the lock, so it cannot change now. */
	inside = (atomic_load_explicit(&gate->direct, memory_order_acquire) & GATE_CLOSED) == 0;
	if (inside) {
		file_scratch_of(part)->gate = FILE_GATE_DIRECT;
	} else {
		atomic_fetch_sub_explicit(&gate->direct, 1, memory_order_acq_rel);
		list_push_back(&gate->waiting_direct, &part->node);
		file_gate_serve(gate);
	}
	pthread_mutex_unlock(&gate->lock);
	return inside;
}

/* Admits a buffered part if the gate is empty, or if other buffered parts are inside and no direct
 * part waits. Otherwise the part closes the gate for further direct parts and waits until those
 * inside have left. */
static bool enter_buffered(struct file_gate *gate, struct store_part *part)
{
	bool inside = false;

	pthread_mutex_lock(&gate->lock);
	if (gate->buffered_count > 0) {
		inside = list_is_empty(&gate->waiting_direct);
	} else if (list_is_empty(&gate->waiting_buffered)) {
		uint64_t before =
			atomic_fetch_or_explicit(&gate->direct, GATE_CLOSED, memory_order_acq_rel);

		if ((before & GATE_CLOSED) == 0) {
			gate->buffered_turn = true;
		}
		inside = (before & ~GATE_CLOSED) == 0 && list_is_empty(&gate->waiting_direct);
	}
	if (inside) {
		gate->buffered_count++;
		file_scratch_of(part)->gate = FILE_GATE_BUFFERED;
	} else {
		list_push_back(&gate->waiting_buffered, &part->node);
		file_gate_serve(gate);
	}
	pthread_mutex_unlock(&gate->lock);
	return inside;
}

bool file_gate_enter(struct file_gate *gate, struct store_part *part, enum file_gate_class class)
{
	GMB_ASSERT(file_scratch_of(part)->gate == FILE_GATE_NONE);
	GMB_ASSERT(class != FILE_GATE_NONE);
	return class == FILE_GATE_DIRECT ? enter_direct(gate, part) : enter_buffered(gate, part);
}

static void leave_direct(struct file_gate *gate)
{
	uint64_t before = atomic_fetch_sub_explicit(&gate->direct, 1, memory_order_acq_rel);

	GMB_ASSERT((before & ~GATE_CLOSED) > 0);
	/* The last direct part leaves a closed gate: now a buffered part can be admitted. */
	if (unlikely(before == (GATE_CLOSED | 1))) {
		pthread_mutex_lock(&gate->lock);
		file_gate_serve(gate);
		pthread_mutex_unlock(&gate->lock);
	}
}

static void leave_buffered(struct file_gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	GMB_ASSERT(gate->buffered_count > 0);
	gate->buffered_count--;
	if (gate->buffered_count == 0) {
		gate->buffered_turn = false;
		file_gate_serve(gate);
	}
	pthread_mutex_unlock(&gate->lock);
}

void file_gate_leave(struct file_gate *gate, struct store_part *part)
{
	uint32_t class = file_scratch_of(part)->gate;

	file_scratch_of(part)->gate = FILE_GATE_NONE;
	if (class == FILE_GATE_DIRECT) {
		leave_direct(gate);
	} else if (class == FILE_GATE_BUFFERED) {
		leave_buffered(gate);
	}
}

/* --- errors of flushes --------------------------------------------------------------------- */

int file_gate_error(const struct file_gate *gate)
{
	/* The acquire order pairs with the release in file_gate_fail(). */
	return atomic_load_explicit(&gate->error, memory_order_acquire);
}

void file_gate_fail(struct file_gate *gate, int error)
{
	int none = 0;

	GMB_ASSERT(error < 0);
	atomic_compare_exchange_strong_explicit(
		&gate->error, &none, error, memory_order_release, memory_order_relaxed);
}
