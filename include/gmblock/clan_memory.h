/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote memory with libclan: regions that are shared with peers, cookies that let a peer put to or
 * get from a range of them, and tripwires that report puts.
 *
 *   clan_region_create(queue, bytes, 0, &region, &memory);
 *   clan_region_share(conn, region, CLAN_WRITE);            CLAN_EVENT_SHARED
 *   clan_cookie_grant(conn, region, 0, bytes, CLAN_WRITE, 0, &cookie);
 *   clan_send(conn, CLAN_BULK, type, &cookie, sizeof(cookie));
 *                                       the peer: clan_put(conn, &from, 1, &cookie, 0, 0, 0, op);
 *
 * Threads, calls, ownership and errors: as in <gmblock/clan.h>.
 */
#ifndef GMBLOCK_CLAN_MEMORY_H
#define GMBLOCK_CLAN_MEMORY_H

#include <gmblock/clan.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- regions -------------------------------------------------------------------------------- */

enum clan_region_flags {
	CLAN_REGION_HUGE = 1 << 0, /* request transparent huge pages */
};

/* Allocates memory that can be shared: zeroed, populated, a multiple of the page size, at most 1
 * TiB. *base_out is its address, which stays the same until clan_region_destroy(). Errors: -EINVAL,
 * -ENOMEM, -EMFILE. */
int clan_region_create(struct clan_queue *queue, size_t bytes, uint32_t flags,
	struct clan_region **region_out, void **base_out);

/* Creates a region from a memfd of the program (memfd_create(2)), which must be sealed with
 * F_SEAL_GROW and F_SEAL_SHRINK. offset and bytes are multiples of the page size. The descriptor is
 * borrowed, and must be open for reading and writing. The pages of such a region cannot be
 * replaced. Errors: as clan_region_create(), -EPERM (no memfd, missing seals, sealed against
 * writing, or huge pages) and -EACCES (not open for writing). */
int clan_region_import(struct clan_queue *queue, int memfd, uint64_t offset, size_t bytes,
	struct clan_region **region_out, void **base_out);

/* Creates a region over memory of the program, of any kind, address and size. It can be shared on
 * networks only (elsewhere sharing fails with -EOPNOTSUPP), and its pages cannot be replaced. Puts
 * from such memory and gets to it need no additional registration. The memory must stay mapped
 * until the region is destroyed. Errors: -EINVAL, -ENOMEM. */
int clan_region_register(
	struct clan_queue *queue, void *base, size_t bytes, struct clan_region **region_out);

/* Returns the memfd of a region, for a process that maps the memory without libclan. *offset_out is
 * the offset of the region in the memfd. The region owns the descriptor, which stays valid until
 * clan_region_replace() or clan_region_destroy(). Error: -EOPNOTSUPP registered memory. */
int clan_region_memfd(const struct clan_region *region, uint64_t *offset_out);

/* Frees the region, and unmaps it unless it is registered memory. Fails with -EBUSY while it is
 * shared. NULL is a no-op. */
int clan_region_destroy(struct clan_region *region);

enum clan_rights {
	CLAN_READ = 1 << 0,  /* the peer can get data */
	CLAN_WRITE = 1 << 1, /* the peer can put data */
};

/*
 * Offers the region to the peer; CLAN_EVENT_SHARED follows.
 *
 * On shm the peer's process can from then on read and change all of the region (with CLAN_READ
 * only: read all of it), regardless of cookies. The region is the boundary of trust; cookies
 * coordinate peers that follow the rules (docs/protocol/clan.md, "Trust"). A region that is shared
 * read-only must come from clan_region_create(), and its first share decides whether all later ones
 * are read-only, until clan_region_replace().
 *
 * On a network the peer's machine has this access until it has returned the region or the
 * connection has ended. A peer that breaks the rules can also access the region through its other
 * connections to this queue.
 *
 * Errors: -EINVAL, -EALREADY, -ENOTCONN, -EUSERS (regions of the connection), -ENOBUFS (the
 * socket is full), -EPERM, -EOPNOTSUPP (registered memory), -ENOMEM.
 */
int clan_region_share(struct clan_conn *conn, struct clan_region *region, uint32_t rights);

/* Requests the region back; cookies on it are void immediately. CLAN_EVENT_UNSHARED follows when
 * the peer has returned the region. clan_close() ends the share without that event. Errors: -ENOENT
 * not shared, -EALREADY, -EBUSY CLAN_EVENT_SHARED is outstanding or a strict revocation on the
 * region is in progress, -ENOBUFS. */
int clan_region_unshare(struct clan_conn *conn, struct clan_region *region);

struct clan_range {
	uint64_t offset;
	uint64_t bytes;
};

/*
 * Replaces the pages under the region's addresses, so that writes by a lost peer or by its
 * unfinished disk operations can no longer arrive: strict revocation. The contents are preserved,
 * except within the scratch ranges, which are undefined afterwards (partial pages at their ends are
 * preserved). Lost connections no longer share the region. Pointers stay valid. Mappings inherited
 * by fork() and registrations with the kernel (io_uring buffers) keep the old pages and must be
 * renewed. On a network this call is unnecessary, because no data of a connection arrives once it
 * is lost. Errors, with nothing changed: -EBUSY the region is shared with a connection that is not
 * lost, -EOPNOTSUPP it is imported or registered, or a network adapter has its pages registered,
 * -ENOMEM (memory, or the limit of mappings), -EINVAL, -EMFILE.
 */
int clan_region_replace(
	struct clan_region *region, const struct clan_range *scratch, uint32_t scratch_count);

/* ---- regions of the peer -------------------------------------------------------------------- */

struct clan_peer_region {
	size_t size;
	/* Address of the mapping here, valid until the region is returned. The memory is untrusted:
	 * its bytes can change between two reads. NULL without CLAN_CAN_MAP. */
	void *base;
	uint64_t bytes;
	uint32_t rights; /* enum clan_rights: our rights */
	uint32_t generation;
	uint32_t holds;
};

/* Fills in information about a region that the peer shares. Set region->size before the call.
 * Error: -ENOENT. */
int clan_peer_region_info(
	const struct clan_conn *conn, uint32_t number, struct clan_peer_region *region);

/*
 * Checks a range that the peer has named: it must lie in a region that the peer shares, with this
 * generation and the required rights. *address_out is the address of the range. The call holds the
 * region: until clan_peer_region_put() the region stays mapped and is not returned to the peer.
 * Errors: -EOPNOTSUPP without CLAN_CAN_MAP, -ENOENT no such region, -ESTALE wrong generation, or
 * the peer has requested the region back, -EACCES rights, -ERANGE the range, -ENOTCONN lost.
 */
int clan_peer_region_get(struct clan_conn *conn, uint32_t number, uint32_t generation,
	uint32_t rights, uint64_t offset, uint64_t bytes, void **address_out);
/* Ends one hold of clan_peer_region_get(), also after the connection is lost. */
void clan_peer_region_put(struct clan_conn *conn, uint32_t number);

/* ---- cookies, put and get: the RDMA cookies of the CLAN paper, with revocation -------------- */

enum clan_cookie_flags {
	CLAN_COOKIE_ONCE = 1 << 0, /* the cookie is void after one put or get */
};

/* A range of a region, in the form that is sent to the peer in a message. Little-endian, 32
 * bytes. */
struct clan_cookie {
	uint64_t offset; /* in the region */
	uint32_t bytes;
	uint32_t generation; /* of the slot; never 0 */
	uint16_t slot;
	uint16_t region; /* number */
	uint16_t rights; /* enum clan_rights */
	uint16_t flags;	 /* enum clan_cookie_flags */
	uint64_t reserved;
};

/* Grants the peer access to a range of a region that is shared with it. Errors: -EINVAL, -ENOENT
 * not shared, -EACCES exceeds the rights of the region, -ERANGE, -ENOSPC all cookies are granted
 * (see clan_conn_options.cookies), -ENOTCONN. */
int clan_cookie_grant(struct clan_conn *conn, struct clan_region *region, uint64_t offset,
	uint32_t bytes, uint32_t rights, uint32_t flags, struct clan_cookie *cookie_out);

enum clan_revoke_flags {
	/* Do not rely on the peer: if it has not answered after 10 ms, the connection is lost
	 * (-ETIMEDOUT) and the region's pages are replaced as by clan_region_replace(), with the
	 * cookie's range as scratch. .status of the event is the result of that replacement. On a
	 * network the time is 1 s, and ending the connection is sufficient: .status is 0. */
	CLAN_REVOKE_STRICT = 1 << 0,
};

/*
 * Revokes a cookie. CLAN_EVENT_REVOKED follows when no more data can arrive through it: at once
 * unless the peer might be in the middle of a put or get, and otherwise, without STRICT, when the
 * peer has finished or the connection is lost. Errors: -ESTALE not granted (any more), -EALREADY,
 * -ENOMEM, -ENOTCONN lost: only clan_region_replace() can stop the peer.
 */
int clan_cookie_revoke(
	struct clan_conn *conn, const struct clan_cookie *cookie, uint32_t flags, void *op);

enum clan_put_flags {
	/* The peer also receives a message CLAN_TYPE_NOTIFY with a value: after the bytes, and in
	 * order with bulk messages. Published as by clan_send(). */
	CLAN_NOTIFY = 1 << 0,
};

/*
 * Writes to (put) or reads from (get) the range named by a cookie of the peer, at offset within the
 * cookie. Vectors have at most 64 entries. Bytes of different puts can arrive in any order;
 * messages sent after a put arrive after its bytes.
 *
 * On connections with CLAN_CAN_MAP the operation ends within the call. On the others
 * CLAN_EVENT_DONE with op reports its end; the memory of from and to must stay valid until then. If
 * the connection is lost, each such operation ends with an error, and it is unknown whether the
 * bytes have arrived. After clan_close() no CLAN_EVENT_DONE is given; CLAN_EVENT_CLOSED ends all
 * operations.
 *
 * value is at most CLAN_VALUE_MAX, and 0 without CLAN_NOTIFY. Returns 0. Errors: -ESTALE revoked,
 * or used with ONCE, -EACCES, -ERANGE, -ENOENT the region is gone, -EAGAIN (with CLAN_NOTIFY: no
 * room, as clan_send()), -ENOTCONN, -EINVAL, -ENOMEM. After an error no byte has arrived.
 */
int clan_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, uint32_t flags, uint32_t value,
	void *op);
int clan_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op);

/*
 * Copies from a region of ours that the peer can write, for connections with CLAN_ACCESS_WARY. The
 * end of the copy is reported like the end of a clan_put(). Until CLAN_EVENT_DONE or
 * CLAN_EVENT_CLOSED the memory at `to` must stay valid and the region must not be destroyed.
 * Errors: -EINVAL another queue, -ERANGE, -ENOTCONN, -ENOMEM.
 */
int clan_region_fetch(struct clan_conn *conn, const struct clan_region *region, uint64_t offset,
	void *to, size_t bytes, void *op);

/* ---- tripwires ------------------------------------------------------------------------------ */

/*
 * Watches a range of a region shared with the peer: the first put of this peer that touches the
 * range raises CLAN_EVENT_TRIPPED, whichever cookie it uses. The peer's program is not involved.
 * Errors: -EINVAL, -ENOENT, -ERANGE, -ENOSPC (clan_conn_options.tripwires), -ENOTCONN.
 */
int clan_tripwire(struct clan_conn *conn, struct clan_region *region, uint64_t offset,
	uint32_t bytes, uint32_t *number_out);

/* Rearms a tripwire after CLAN_EVENT_TRIPPED (before it: no effect). Read the memory after this
 * call: earlier puts are visible, and later ones raise the event. Errors: -ENOENT, -ENOTCONN. */
int clan_rearm(struct clan_conn *conn, uint32_t number);

/* Removes a tripwire; no event of it follows. Error: -ENOENT. */
int clan_tripwire_remove(struct clan_conn *conn, uint32_t number);

/* ---- cookie queues -------------------------------------------------------------------------- */

enum { CLAN_COOKIE_QUEUES = 16 };

/*
 * Sends cookies ahead of their use: the peer pops the cookies that are pushed here, first in, first
 * out. number: 0 to CLAN_COOKIE_QUEUES - 1. Published as by clan_send(). A peer that finds the
 * queue empty must wait, which serves as flow control. Popping does not validate a cookie; put and
 * get do. Errors: -EAGAIN no room, or empty (CLAN_EVENT_READY follows), -EINVAL, -ESTALE (push) it
 * is not granted, -ENOTCONN.
 */
int clan_cookie_queue_push(
	struct clan_conn *conn, uint32_t number, const struct clan_cookie *cookie);
int clan_cookie_queue_pop(struct clan_conn *conn, uint32_t number, struct clan_cookie *cookie_out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
