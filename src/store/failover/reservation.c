// SPDX-License-Identifier: Apache-2.0
#include "store/failover/reservation.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "disk/disk.h"
#include "disk/reservation.h"

/* "gmb" in the three highest bytes of a key. */
#define KEY_PREFIX	UINT64_C(0x676d620000000000)
#define KEY_PREFIX_MASK UINT64_C(0xffffff0000000000)
#define KEY_MULTIPLIER	UINT64_C(0x9e3779b97f4a7c15)

/* A try fails only if the reservation has changed in the meantime, or for the reason in
 * take_step().
 */
enum { TRIES_MAX = 8, TRIES_PLAIN = 4 };

struct reservation {
	struct list_node node; /* in `reservations` */
	uint32_t references;
	dev_t disk;
	int fd;
	uint64_t key;
	bool was_free; /* no server had reserved the disk when this process took it */
	_Atomic bool is_lost;
};

/* All reservations of the process. The lock is held while a disk is taken or released. */
static pthread_mutex_t reservations_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list_node reservations = { .next = &reservations, .prev = &reservations };

/* --- keys ---------------------------------------------------------------------------------- */

static bool is_own_kind(uint64_t key)
{
	return (key & KEY_PREFIX_MASK) == KEY_PREFIX;
}

/* Returns a new key. Two machines that continue from one snapshot of a virtual machine can have the
 * same random numbers, so the key also depends on the time. */
static uint64_t key_make(void)
{
	uint64_t parts[] = { 0, clock_now_ns() };
	uint64_t key = 0;

	(void)!getrandom(&parts[0], sizeof(parts[0]), 0);
	for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
		key = (key ^ parts[i]) * KEY_MULTIPLIER;
		key ^= key >> 32;
	}
	return KEY_PREFIX | (key & ~KEY_PREFIX_MASK);
}

static bool has_key(const struct disk_reservation *found, uint64_t key)
{
	for (uint32_t i = 0; i < found->key_count; i++) {
		if (found->keys[i] == key) {
			return true;
		}
	}
	return false;
}

/* Returns a registered key other than this one, or 0. */
static uint64_t other_key(const struct disk_reservation *found, uint64_t key)
{
	for (uint32_t i = 0; i < found->key_count; i++) {
		if (found->keys[i] != key) {
			return found->keys[i];
		}
	}
	return 0;
}

/* --- messages ------------------------------------------------------------------------------ */

static int explain_failure(const char *path, const char *what, int result, struct error *error)
{
	if (result == -EPERM || result == -EACCES) {
		return error_set(error, result,
			"'%s': cannot %s: %s; before Linux 6.19, start the server with this export "
			"and with CAP_SYS_ADMIN and CAP_SYS_RAWIO: as root without --user, or with "
			"the drop-in reservations.conf of gmblock.service",
			path, what, strerror(-result));
	}
	return error_set(error, result, "'%s': cannot %s: %s", path, what, strerror(-result));
}

static int explain_lack(const char *path, int result, struct error *error)
{
	return error_set(error, -EOPNOTSUPP,
		"'%s': the disk has no persistent reservations, or the volume has more than one "
		"segment (%s); use a disk that has them and a volume of one segment, or "
		"failover=cluster if a cluster manager guarantees that only one server uses the "
		"disk",
		path, strerror(-result));
}

static int explain_register(const char *path, int result, struct error *error)
{
	if (result == -EPERM || result == -EACCES) {
		return explain_failure(path, "register with the disk", result, error);
	}
	if (result == -EBADE) {
		return error_set(error, -EBUSY, "'%s': the disk refuses a registration", path);
	}
	return explain_lack(path, result, error);
}

static int explain_foreign(
	const char *path, const struct disk_reservation *found, struct error *error)
{
	uint64_t key = is_own_kind(found->holder) ? 0 : found->holder;

	for (uint32_t i = 0; i < found->key_count && key == 0; i++) {
		key = is_own_kind(found->keys[i]) ? 0 : found->keys[i];
	}
	return error_set(error, -EBUSY,
		"'%s' is registered or reserved by another program (key 0x%llx); stop that "
		"program, or remove the key with blkpr or sg_persist",
		path, (unsigned long long)key);
}

static int explain_loss(const char *path, struct error *error)
{
	return error_set(error, -ESTALE,
		"another server has taken over '%s'; to take it back, remove the export and add "
		"it again, or restart the server",
		path);
}

/* --- taking a disk ------------------------------------------------------------------------- */

static bool is_foreign(const struct disk_reservation *found)
{
	if (found->type == DISK_RESERVATION_OTHER ||
		(found->type == DISK_RESERVATION_REGISTRANTS && !is_own_kind(found->holder))) {
		return true;
	}
	for (uint32_t i = 0; i < found->key_count; i++) {
		if (!is_own_kind(found->keys[i])) {
			return true;
		}
	}
	return false;
}

static int look_at_disk(const struct reservation *reservation, const char *path,
	struct disk_reservation *found, struct error *error)
{
	int result = disk_reservation_read(reservation->fd, found);

	if (result == -EOPNOTSUPP) {
		return explain_lack(path, result, error);
	}
	if (result < 0) {
		return explain_failure(path, "read the reservations of the disk", result, error);
	}
	return is_foreign(found) ? explain_foreign(path, found, error) : 0;
}

/* One step towards being the only one who is registered, and the holder. Returns 1 when that is so,
 * or 0 to look again.
 *
 * The Linux NVMe target does not remove a key for the host that has the reservation: the call only
 * changes the type. If the usual way has failed (is_plain is false), the type is changed to ALL. A
 * host can then remove all other keys, and changes the type back. The disk refuses changes of
 * unregistered hosts all the time. */
static int take_step(struct reservation *reservation, const char *path,
	const struct disk_reservation *found, bool is_plain, struct error *error)
{
	uint64_t key = reservation->key;
	uint64_t other = found->holder != key ? found->holder : other_key(found, key);
	bool is_all = found->type == DISK_RESERVATION_ALL;
	int result;

	if (!has_key(found, key)) {
		return error_set(error, -ESTALE,
			"another server is taking over '%s' at the same moment", path);
	}
	if (found->type == DISK_RESERVATION_NONE) {
		result = disk_reserve(reservation->fd, key);
	} else if (other != 0 || is_all) {
		log_info("'%s': taking over the disk from the server with key 0x%llx", path,
			(unsigned long long)other);
		result = disk_preempt(reservation->fd, is_all ? 0 : other, key,
			is_plain || is_all || found->holder != key ? DISK_RESERVATION_REGISTRANTS
								   : DISK_RESERVATION_ALL);
	} else {
		return found->holder == key;
	}
	return result == 0 || result == -EBADE
		       ? 0
		       : explain_failure(path, "reserve the disk", result, error);
}

/* The disk cannot distinguish late operations of a killed server from operations of this one. If
 * another server has had the disk since then, they would overwrite its changes. */
static int explain_late_writes(const char *path, struct error *error)
{
	return error_set(error, -EBUSY,
		"cannot take over '%s' yet: operations of a killed server of this machine are "
		"still in progress, and another server has had the disk since then; start again "
		"when they have completed",
		path);
}

/* Returns whether an earlier server of this host, which was killed, made the reservation. */
static bool is_own_reservation(
	const struct reservation *reservation, const struct disk_reservation *found)
{
	/* The disk accepts this only from the host that is registered with the key. */
	return found->holder != 0 && disk_register_again(reservation->fd, found->holder) == 0;
}

static int seize_disk(
	struct reservation *reservation, const char *path, uint32_t flags, struct error *error)
{
	struct disk_reservation found;
	int result = look_at_disk(reservation, path, &found, error);

	if (result < 0) {
		return result;
	}
	reservation->was_free = found.type == DISK_RESERVATION_NONE;
	if ((flags & RESERVATION_KEEPS) != 0 && found.type != DISK_RESERVATION_NONE) {
		/* The disk accepts this only from the host that is registered with the key. */
		reservation->key = found.holder;
		result = disk_register_again(reservation->fd, found.holder);
		return result == -EBADE ? explain_loss(path, error)
		       : result < 0	? explain_register(path, result, error)
					: 0;
	}
	if ((flags & RESERVATION_LATE_WRITES) != 0 && !is_own_reservation(reservation, &found)) {
		return explain_late_writes(path, error);
	}
	reservation->key = key_make();
	result = disk_register(reservation->fd, reservation->key);
	if (result < 0) {
		return explain_register(path, result, error);
	}
	for (int tries = 0; tries < TRIES_MAX; tries++) {
		result =
			look_at_disk(reservation, path, &found, error)
				?: take_step(reservation, path, &found, tries < TRIES_PLAIN, error);
		if (result != 0) {
			break;
		}
	}
	if (result == 0) {
		result = error_set(error, -EBUSY,
			"'%s': the disk does not remove the registration of another server; end "
			"all servers and remove the keys with blkpr or sg_persist",
			path);
	}
	/* After a failure, the registration remains. The next server removes it. */
	return MIN(result, 0);
}

/* --- the reservations of the process ------------------------------------------------------- */

static struct reservation *reservation_find(dev_t disk)
{
	list_for_each(node, &reservations)
	{
		struct reservation *reservation = list_entry(node, struct reservation, node);

		if (reservation->disk == disk) {
			return reservation;
		}
	}
	return NULL;
}

static int reservation_create(const char *path, dev_t disk, uint32_t flags,
	struct reservation **reservation_out, struct error *error)
{
	struct reservation *reservation = calloc(1, sizeof(*reservation));
	int result;

	if (reservation == NULL) {
		return error_oom_for(error, "a reservation");
	}
	reservation->references = 1;
	reservation->disk = disk;
	result = disk_open(path, false, false, &reservation->fd, error);
	if (result == 0) {
		result = seize_disk(reservation, path, flags, error);
		if (result < 0) {
			disk_close(reservation->fd);
		}
	}
	if (result < 0) {
		free(reservation);
		return result;
	}
	list_push_back(&reservations, &reservation->node);
	*reservation_out = reservation;
	return 0;
}

int reservation_take(const char *path, dev_t disk, uint32_t flags,
	struct reservation **reservation_out, struct error *error)
{
	struct reservation *reservation;
	int result = 0;

	pthread_mutex_lock(&reservations_lock);
	reservation = reservation_find(disk);
	if (reservation == NULL) {
		result = reservation_create(path, disk, flags, reservation_out, error);
	} else if (atomic_load_explicit(&reservation->is_lost, memory_order_relaxed)) {
		result = explain_loss(path, error);
	} else {
		reservation->references++;
		*reservation_out = reservation;
	}
	pthread_mutex_unlock(&reservations_lock);
	return result;
}

bool reservation_lose(struct reservation *reservation)
{
	/* Relaxed order: the flag publishes no other data. */
	return !atomic_exchange_explicit(&reservation->is_lost, true, memory_order_relaxed);
}

bool reservation_is_held(const struct reservation *reservation)
{
	struct disk_reservation found;

	/* Another server of this host can have replaced the key. */
	return disk_register_again(reservation->fd, reservation->key) != -EBADE ||
	       (disk_reservation_read(reservation->fd, &found) == 0 &&
		       is_own_reservation(reservation, &found));
}

/* Removes the reservation and the registration of this host. If another server has just registered,
 * that server will do it. */
static void reservation_release(const struct reservation *reservation)
{
	struct disk_reservation found;
	int result = disk_reservation_read(reservation->fd, &found);

	if (result == 0 && found.holder == reservation->key &&
		other_key(&found, reservation->key) == 0) {
		(void)!disk_clear_reservation(reservation->fd, reservation->key);
	} else if (result < 0) { /* not permitted in the sandbox; the next server removes the key */
		(void)!disk_release(reservation->fd, reservation->key);
	}
}

static void reservation_free(struct reservation *reservation, bool is_let_go)
{
	bool is_lost = atomic_load_explicit(&reservation->is_lost, memory_order_relaxed);

	/* A server that had the disk before might only be frozen. It must not write to the disk
	 * when it continues, so the disk stays reserved. */
	if (!is_let_go && !is_lost && reservation->was_free) {
		reservation_release(reservation);
	}
	list_remove(&reservation->node);
	disk_close(reservation->fd);
	free(reservation);
}

void reservation_put(struct reservation *reservation, bool is_let_go)
{
	if (reservation == NULL) {
		return;
	}
	pthread_mutex_lock(&reservations_lock);
	if (--reservation->references == 0) {
		reservation_free(reservation, is_let_go);
	}
	pthread_mutex_unlock(&reservations_lock);
}
