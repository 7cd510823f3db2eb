// SPDX-License-Identifier: Apache-2.0
/*
 * Persistent reservations of SCSI and NVMe disks. A host registers a key with the disk. While there
 * is a reservation of the type "write exclusive, registrants only", the disk itself refuses changes
 * of hosts without a registration (EBADE), in whatever state these hosts are.
 *
 *   register ─▶ reserve ─▶ ... ─▶ clear
 *            └▶ preempt: removes another key, and takes its reservation
 *
 * A registration belongs to the path between host and disk: for SCSI a pair of ports, for NVMe the
 * host identifier. All processes of a host share it, and it survives the process.
 *
 * Changes use the kernel's IOC_PR_* calls. Reading uses IOC_PR_READ_KEYS and
 * IOC_PR_READ_RESERVATION (Linux 6.19), otherwise commands to the NVMe or SCSI disk, for which
 * older kernels require CAP_SYS_ADMIN or CAP_SYS_RAWIO. The sandbox of a running server permits
 * only the kernel's calls.
 *
 * Threading: any thread; the calls block. Ownership: fd is borrowed; it must be open for writing
 * and refer to a whole device. Errors: 0 or a negative errno: -EBADE: the disk refuses the change,
 * because of another key; -EOPNOTSUPP: neither kernel nor disk supports reservations; -EPERM: not
 * permitted, or a partition; -EIO and others: the disk failed.
 */
#pragma once

#include "base/compiler.h"

enum { DISK_KEYS_MAX = 64 };

enum disk_reservation_type {
	DISK_RESERVATION_NONE,
	DISK_RESERVATION_REGISTRANTS, /* write exclusive, registrants only */
	DISK_RESERVATION_ALL,	      /* the same, and all registrants are holders */
	DISK_RESERVATION_OTHER,
};

struct disk_reservation {
	enum disk_reservation_type type;
	uint64_t holder; /* key of the holder; 0: there is none; ALL: not significant */
	uint64_t keys[DISK_KEYS_MAX]; /* a key appears once for each path that has registered it */
	uint32_t key_count;
};

/* Reads the keys and the reservation. -E2BIG: there are more than DISK_KEYS_MAX keys. */
GMB_MUST_CHECK int disk_reservation_read(int fd, struct disk_reservation *out);

/* Registers this host with a key that is not 0, and replaces its previous one. */
GMB_MUST_CHECK int disk_register(int fd, uint64_t key);
/* Checks that this host is still registered with the key. -EBADE: it is not. */
GMB_MUST_CHECK int disk_register_again(int fd, uint64_t key);

/* Takes the reservation of the type REGISTRANTS. -EBADE: there is one already, or this host is not
 * registered. No-op if this host is the holder. */
GMB_MUST_CHECK int disk_reserve(int fd, uint64_t key);
/* Removes the registration of another key, and takes over its reservation if it is the holder. On
 * return, all operations of the other host have ended. type: REGISTRANTS, or ALL, which can leave
 * the other key registered. With a reservation of the type ALL, other is 0: removes all other keys,
 * and changes the type. */
GMB_MUST_CHECK int disk_preempt(
	int fd, uint64_t other, uint64_t key, enum disk_reservation_type type);
/* Gives the reservation back, and stays registered. */
GMB_MUST_CHECK int disk_release(int fd, uint64_t key);
/* Removes the reservation and all registrations. (Linux cannot remove a single registration from an
 * NVMe disk.) */
GMB_MUST_CHECK int disk_clear_reservation(int fd, uint64_t key);
