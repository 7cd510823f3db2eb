// SPDX-License-Identifier: Apache-2.0
/*
 * The failover filter: a disk that several servers can reach, one after the other, so that clients
 * continue at the next server (docs/design/0032).
 *
 * - Answered changes must survive this machine, so they bypass its page cache (mode=direct). If the
 *   disk has a volatile cache, they are written through it. So they also survive a power failure of
 *   the disk, and its epoch is a constant, derived from its identity.
 * - If the disk refuses a change because of a reservation, another server has taken the disk over.
 *   The export is lost (store_lost()): its sessions end without replies, so that their clients
 *   repeat the requests at that server. Refused parts are held back until then.
 *
 * A part that was refused waits in its queue's `refused` list until the sessions of this ring have
 * ended: the queue's message is posted after the messages of store_lost(), and arrives later.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/bytes.h"
#include "base/log.h"
#include "disk/disk.h"
#include "store/failover/reservation.h"
#include "store/file_gate.h"
#include "store/kind.h"

/* Name of the key, of the filter and of its counters. */
static const char own_name[] = "failover";

enum { FAILOVER_RESERVATION, FAILOVER_CLUSTER };

static const char *const words[] = {
	[FAILOVER_RESERVATION] = "reservation", [FAILOVER_CLUSTER] = "cluster", NULL
};

struct failover_config {
	uint32_t failover; /* FAILOVER_RESERVATION or FAILOVER_CLUSTER */
};

static const struct field options[] = {
	{ own_name, NULL,
		"clients may continue at another server of the same disk, a whole block device "
		"with mode=direct; at any time one server must have the disk: reservation (by a "
		"persistent reservation of the disk; the server that is started last gets it) or "
		"cluster (a cluster manager guarantees it)",
		"reservation", .type = FIELD_WORD, .words = words,
		FIELD_IN(struct failover_config, failover) },
};

struct failover_store {
	struct store base;
	char *path;
	bool writes_through;		 /* the disk has a volatile cache */
	struct reservation *reservation; /* NULL: FAILOVER_CLUSTER */
};

struct failover_queue {
	struct store_queue base;
	struct list_node refused;
	struct ring_message message;
	bool is_posted;
	uint64_t late_writes_refused; /* counter */
};

struct failover_scratch {
	uint32_t flags; /* the part's flags as submitted */
	uint32_t zero;
};

/* --- parts --------------------------------------------------------------------------------- */

static void refused_deliver(struct ring *ring, struct ring_message *message)
{
	struct failover_queue *queue = container_of(message, struct failover_queue, message);
	struct list_node *node;

	GMB_ASSERT(ring == queue->base.ring);
	queue->is_posted = false;
	while ((node = list_pop_front(&queue->refused)) != NULL) {
		store_finish(list_entry(node, struct store_part, node), -EIO);
	}
}

/* Holds the part back until the sessions on this ring have ended. */
static void hold_back(struct failover_queue *queue, struct store_part *part)
{
	list_push_back(&queue->refused, &part->node);
	if (!queue->is_posted) {
		queue->is_posted = true;
		ring_post(queue->base.ring, &queue->message);
	}
}

static void failover_lose(struct failover_store *store)
{
	if (store_lost(&store->base)) {
		log_error("'%s': the disk refuses changes of this server, because another server "
			  "has taken it over; its clients are disconnected, and this server no "
			  "longer serves it until the export is added again or the server is "
			  "restarted",
			quote(store->path));
	}
	if (store->reservation != NULL) {
		reservation_lose(store->reservation);
	}
}

static void failover_submit(struct store_queue *base, struct store_part *part)
{
	struct failover_store *store = container_of(base->store, struct failover_store, base);
	struct failover_scratch *scratch = store_scratch(part);

	scratch->flags = part->flags;
	if (store->writes_through && (part->op == STORE_WRITE || part->op == STORE_ZERO)) {
		part->flags |= STORE_THROUGH;
	}
	store_forward(part);
}

/* Returns whether an error of the part cannot be due to a lost reservation: for direct writes the
 * disk would have returned EBADE, and client memory that has vanished is no error of the disk. */
static bool has_other_cause(const struct failover_store *store, const struct store_part *part)
{
	const struct store_info *info = &store->base.info;

	return part->op == STORE_WRITE && mem_may(part->memory, MEM_CPU_READ) &&
	       (part->memory_error == -EFAULT ||
		       (is_aligned(part->offset | part->length, info->offset_align) &&
			       mem_is_aligned(part->memory, info->memory_align)));
}

/* If the disk refuses a change that passes through the page cache, because it is not aligned, the
 * kernel reports EIO. So the disk is asked. This blocks, after such errors only. */
static bool is_refused_by_cache(
	const struct failover_store *store, const struct store_part *part, int result)
{
	return result == -EIO && part->op != STORE_READ && store->reservation != NULL &&
	       !has_other_cause(store, part) && !reservation_is_held(store->reservation);
}

static void failover_done(struct store_part *part, int result)
{
	struct failover_queue *queue = container_of(part->queue, struct failover_queue, base);
	struct failover_store *store = container_of(queue->base.store, struct failover_store, base);
	const struct failover_scratch *scratch = store_scratch(part);

	part->flags = scratch->flags;
	if (likely(result != -EBADE) && !is_refused_by_cache(store, part, result)) {
		store_finish(part, result);
		return;
	}
	queue->late_writes_refused += part->op != STORE_READ;
	failover_lose(store);
	hold_back(queue, part);
}

/* --- queues -------------------------------------------------------------------------------- */

static int failover_queue_init(struct store_queue *base, struct error *error)
{
	struct failover_queue *queue = container_of(base, struct failover_queue, base);

	list_init(&queue->refused);
	queue->message.deliver = refused_deliver;
	return 0;
}

static void failover_queue_fini(struct store_queue *base)
{
	struct failover_queue *queue = container_of(base, struct failover_queue, base);

	GMB_ASSERT(!queue->is_posted && list_is_empty(&queue->refused));
}

/* --- opening and closing ------------------------------------------------------------------- */

static int failover_refuse(const char *path, const char *kind, struct error *error)
{
	return error_set(error, -EINVAL,
		"'%s': failover= needs a block device that several servers can reach; the state of "
		"other disks (%s) is lost together with this server; omit the key",
		path, kind);
}

static int failover_fits(const struct store_options *given, struct error *error)
{
	return store_options_freezes(given) ? failover_refuse(given->path, "overlays", error) : 0;
}

static int check(const struct failover_store *store, const struct store_options *given,
	uint32_t failover, struct error *error)
{
	const struct store_info *info = &store->base.info;

	if (strcmp(info->kind, "block device") != 0) {
		return failover_refuse(given->path, info->kind, error);
	}
	if (!info->read_direct || (!info->write_direct && !given->read_only)) {
		return error_advise(error, -EINVAL, "mode=direct",
			"'%s': failover= is not possible through the page cache, because its "
			"contents are lost together with this machine",
			given->path);
	}
	if (given->read_only && failover == FAILOVER_RESERVATION) {
		return error_set(error, -EINVAL,
			"'%s': a read-only export has no reservation; use failover=cluster",
			given->path);
	}
	return 0;
}

/* Adds a name to the identity. The order of names is not significant. */
static void identity_add(uint64_t identity[2], const char *name)
{
	static const uint64_t begin[] = { UINT64_C(0xcbf29ce484222325),
		UINT64_C(0x9ae16a3b2f90404f) };

	for (size_t i = 0; i < ARRAY_COUNT(begin); i++) {
		uint64_t hash = begin[i];

		for (const char *at = name; *at != '\0'; at++) {
			hash = (hash ^ (uint8_t)*at) * UINT64_C(0x9e3779b97f4a7c15);
			hash ^= hash >> 32;
		}
		identity[i] += hash;
	}
}

/*
 * Derives the epoch from the name of the device, and the identity also from the names of the disks
 * on which it is stored: a clone of the disks of a logical volume contains the UUID of the volume,
 * but the storage system gives the clones other names. A volume that is extended to other disks, or
 * moved to them, gets another identity, and has lost no changes. Identity and epoch are part of the
 * protocol: another version must derive the same.
 */
static void set_identity(
	struct store_info *info, dev_t device, const char *wwid, const struct disk_members *members)
{
	uint64_t identity[2] = { 0 };
	struct be64 words_out[2];
	char name[DISK_WWID_BYTES];

	identity_add(identity, wwid);
	info->epoch = identity[0] | 1;
	for (uint32_t i = 0; i < members->count; i++) {
		if (members->disks[i] != device &&
			disk_sysfs_wwid("/sys", members->disks[i], name) == 0) {
			identity_add(identity, name);
		}
	}
	words_out[0] = be64_make(identity[0]);
	words_out[1] = be64_make(identity[1]);
	_Static_assert(sizeof(words_out) == sizeof(info->identity), "the identity is filled");
	memcpy(info->identity, words_out, sizeof(words_out));
}

static int explain_members(const char *path, int result, struct error *error)
{
	return error_set(error, result,
		"'%s': failover= is not possible, because the disks of the device, or the devices "
		"on its disk, cannot be determined: %s",
		path, strerror(-result));
}

static int identify(struct failover_store *store, const char *path, struct disk_members *members,
	struct error *error)
{
	struct store_place place;
	char wwid[DISK_WWID_BYTES];
	dev_t device;
	int result;

	if (!store_place(store->base.inner, &place)) {
		return error_set(error, -EINVAL, "'%s': the device cannot be identified", path);
	}
	device = (dev_t)place.disk[1];
	if (place.disk[0] == 0 && disk_sysfs_is_partition("/sys", device)) {
		return error_set(error, -EINVAL,
			"'%s': failover= is not possible for a partition, because a disk changes "
			"its server as a whole; export the disk, or a logical volume",
			path);
	}
	if (place.disk[0] != 0 || disk_sysfs_wwid("/sys", device, wwid) < 0) {
		return error_set(error, -EINVAL,
			"'%s': failover= is not possible, because the device has no worldwide "
			"unique name by which clients could recognize it at another server; "
			"create a logical volume (LVM) on it, and export that",
			path);
	}
	result = disk_sysfs_members("/sys", device, members);
	if (result < 0) {
		return explain_members(path, result, error);
	}
	set_identity(&store->base.info, device, wwid, members);
	store->writes_through = disk_sysfs_has_volatile_cache("/sys", device);
	return 0;
}

/* Returns whether operations of a killed server are in progress on another device of the disk. If
 * this is unknown, it does not keep the server from starting, as with other disks whose operations
 * cannot be detected. */
static bool sharer_has_late_writes(const char *path, dev_t sharer)
{
	enum store_barrier barrier;
	int result;

	/* Marks on a device that this process uses can be its own. */
	if (file_gate_of_device(sharer, &barrier)) {
		return barrier == STORE_BARRIER_CLOSED;
	}
	result = disk_check_writers_of(sharer);
	if (result < 0 && result != -EBUSY) {
		log_warning("'%s': operations of a killed server on device %u:%u, which is on the "
			    "same disk, cannot be detected: %s; make the device accessible to the "
			    "server, or wait some seconds after a server was killed",
			path, major(sharer), minor(sharer), strerror(-result));
	}
	return result == -EBUSY;
}

/* Returns whether operations of a killed server may be in progress: on the device, or on another
 * one on the same disk, because the disk knows only the host. */
static bool has_late_writes(
	struct failover_store *store, const char *path, const struct disk_members *sharers)
{
	bool found = store_barrier(store->base.inner, true) == STORE_BARRIER_CLOSED;

	for (uint32_t i = 0; i < sharers->count && !found; i++) {
		found = sharer_has_late_writes(path, sharers->disks[i]);
	}
	return found;
}

/* Takes the disk on which the device is stored. */
static int failover_reserve(struct failover_store *store, const struct store_options *given,
	const struct disk_members *members, struct error *error)
{
	struct disk_members sharers;
	uint32_t flags = 0;
	int result;

	if (members->is_multipath) {
		return error_set(error, -EINVAL,
			"'%s': failover=reservation is not possible with dm-multipath, because a "
			"path that is added later is not registered with the disk; use a disk with "
			"one path, NVMe multipath, or failover=cluster",
			given->path);
	}
	if (members->count != 1) {
		return error_set(error, -EINVAL,
			"'%s': failover=reservation is not possible, because the device is stored "
			"on %u disks, and Linux reserves only one of them; use a volume on one "
			"disk, or failover=cluster",
			given->path, members->count);
	}
	result = disk_sysfs_sharers("/sys", members->disks[0], &sharers);
	if (result < 0) {
		return explain_members(given->path, result, error);
	}
	if (given->inherited != NULL) {
		flags |= RESERVATION_KEEPS;
	}
	if (has_late_writes(store, given->path, &sharers)) {
		flags |= RESERVATION_LATE_WRITES;
	}
	return reservation_take(given->path, members->disks[0], flags, &store->reservation, error);
}

/* Discards what this machine has cached of the disk before another server wrote it. */
static int discard_cache(const char *path, struct error *error)
{
	int fd;
	int result = disk_open(path, true, false, &fd, error);

	if (result == 0) {
		disk_drop_cache(fd, 0, 0);
		disk_close(fd);
	}
	return result;
}

static int failover_open(struct store *base, const struct store_options *given, const void *config,
	struct error *error)
{
	struct failover_store *store = container_of(base, struct failover_store, base);
	uint32_t failover = ((const struct failover_config *)config)->failover;
	struct disk_members members;
	int result = check(store, given, failover, error)
			     ?: identify(store, given->path, &members, error);

	if (result < 0) {
		return result;
	}
	store->path = strdup(given->path);
	if (store->path == NULL) {
		return error_oom_for(error, "an export");
	}
	if (failover == FAILOVER_RESERVATION) {
		result = failover_reserve(store, given, &members, error);
	}
	result = result ?: discard_cache(given->path, error);
	if (result < 0) {
		reservation_put(store->reservation, false);
		free(store->path);
	}
	return result;
}

static void failover_close(struct store *base)
{
	struct failover_store *store = container_of(base, struct failover_store, base);

	reservation_put(store->reservation, base->is_let_go);
	free(store->path);
}

static const char *failover_handover(struct store *base, struct store_claim *claim_out)
{
	return store_is_lost(base) ? "was taken over by another server" : NULL;
}

static const char *failover_page_cache_refusal(struct store *base)
{
	return store_page_cache_refusal(base->inner);
}

static const struct counter counter_list[] = {
	STORE_COUNTER(struct failover_queue, late_writes_refused, ITEMS,
		"Changes and flushes that the disk has refused, because another server has taken "
		"it over"),
};

static const struct counter_table counters = { own_name, "export", "store_failover_", counter_list,
	ARRAY_COUNT(counter_list) };

static const struct store_ops failover_ops = {
	.name = own_name,
	.queue_bytes = sizeof(struct failover_queue),
	.scratch_bytes = sizeof(struct failover_scratch),
	.close = failover_close,
	.queue_init = failover_queue_init,
	.queue_fini = failover_queue_fini,
	.submit = failover_submit,
	.inner_done = failover_done,
	.counters = &counters,
	.page_cache_refusal = failover_page_cache_refusal,
	.handover = failover_handover,
};

const struct store_kind failover_store_kind = {
	.name = own_name,
	.is_filter = true,
	.options = options,
	.option_count = ARRAY_COUNT(options),
	.config_bytes = sizeof(struct failover_config),
	.store_bytes = sizeof(struct failover_store),
	.ops = &failover_ops,
	.fits = failover_fits,
	.open = failover_open,
};
