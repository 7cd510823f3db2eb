// SPDX-License-Identifier: Apache-2.0
/*
 * Reserves a shared disk for one server. The disk refuses changes from all other servers.
 *
 * The newest server wins: reservation_take() removes the registrations of other gmblock servers,
 * and their late writes fail at the disk. Reservations of other programs are respected. All stores
 * of a process on one disk share the reservation, also different logical volumes.
 *
 * Each key consists of a prefix that identifies gmblock servers, and a number that is new for each
 * start. An upgrade hands over no state: the new process reads the key from the disk, which accepts
 * it only from this host.
 *
 * Threading: any thread. take and put block. Ownership: reference counted. Errors: negative errno
 * and an error message.
 */
#pragma once

#include <sys/types.h>

#include "base/error.h"

struct reservation;

/* Flags of reservation_take(). */
enum {
	/* The previous process of an upgrade serves the disk, so this one must not take it from a
	 * third one. */
	RESERVATION_KEEPS = 1 << 0,
	/* Operations of a server that was killed on this machine are still in progress. When this
	 * machine registers again, the disk would execute them, also if another server has had the
	 * disk. */
	RESERVATION_LATE_WRITES = 1 << 1,
};

/*
 * Takes the disk with this number, on which the device at path is stored, or returns the
 * reservation that this process has already. Errors: -EBUSY: another program has a reservation, or
 * RESERVATION_LATE_WRITES and another server has had the disk; -ESTALE: another server has taken
 * the disk over, and this one must not take it back; -EOPNOTSUPP: the disk has no reservations; or
 * the errors of disk/reservation.h.
 */
GMB_MUST_CHECK int reservation_take(const char *path, dev_t disk, uint32_t flags,
	struct reservation **reservation_out, struct error *error);
/* Records that the disk has refused a change. Until all references are dropped, this process does
 * not take the disk again. Returns whether it is the first call. Any thread; does not block. */
bool reservation_lose(struct reservation *reservation);
/* Asks the disk whether it still accepts changes of this host. True if the disk does not answer. If
 * another server of this host has reserved the disk as well, true only if this process can read
 * reservations. Any thread; blocks. */
bool reservation_is_held(const struct reservation *reservation);
/* Drops a reference. With the last one, releases the reservation if this process has reserved a
 * free disk, unless it is lost, or another process continues to use it (is_let_go). A disk that was
 * taken from a server stays reserved, because that server might be frozen, with writes that the
 * disk must refuse. NULL is a no-op. */
void reservation_put(struct reservation *reservation, bool is_let_go);
