// SPDX-License-Identifier: Apache-2.0
/*
 * Regions: memory of this process that can be shared with peers; docs/protocol/clan.md §8. Called
 * by the program; the providers report the peer's answers with clan_share_answered() and
 * clan_share_returned().
 *
 * Invariant: a region is one mapping, whose address never changes. A region maps one memfd, which
 * clan_region_replace() can replace; only registered memory has no memfd.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "clan/clan.h"
#include "clan/segment.h"

#define REGION_BYTES_MAX (UINT64_C(1) << 40)

/* --- life ------------------------------------------------------------------------------------- */

/* Maps the pages of one of our regions: populated, and inherited by fork() like other memory. */
static int map_own(int fd, uint64_t offset, size_t bytes, bool huge, uint8_t **base_out)
{
	int result = segment_map(fd, offset, bytes, true, base_out);

	if (result == 0) {
		if (huge) {
			madvise(*base_out, bytes, MADV_HUGEPAGE); /* a hint only */
		}
		madvise(*base_out, bytes, MADV_DOFORK);
	}
	return result;
}

static void region_link(struct clan_queue *queue, struct clan_region *region)
{
	region->queue = queue;
	list_init(&region->shares);
	list_init(&region->registrations);
	list_push_back(&queue->regions, &region->node);
	queue->region_count++;
}

/* Maps the region and adds it to the queue's list. Takes ownership of values->fd, and closes it on
 * failure. */
static int region_enter(struct clan_queue *queue, const struct clan_region *values,
	struct clan_region **region_out, void **base_out)
{
	struct clan_region *region = malloc(sizeof(*region));
	int result = -ENOMEM;

	if (region != NULL) {
		*region = *values;
		result = map_own(
			region->fd, region->offset, region->bytes, region->huge, &region->base);
	}
	if (result != 0) {
		free(region);
		close(values->fd);
		return result;
	}
	region_link(queue, region);
	*region_out = region;
	*base_out = region->base;
	return 0;
}

/* See clan.h. The size is sealed, because a peer that maps the memfd would get SIGBUS if the file
 * became shorter. */
int clan_region_create(struct clan_queue *queue, size_t bytes, uint32_t flags,
	struct clan_region **region_out, void **base_out)
{
	struct clan_region values = { .bytes = bytes, .huge = flags != 0 };
	int result;

	if (bytes == 0 || bytes > REGION_BYTES_MAX || !is_aligned(bytes, segment_page_bytes()) ||
		(flags & ~(uint32_t)CLAN_REGION_HUGE) != 0) {
		return -EINVAL;
	}
	values.fd = segment_memfd("clan-region", bytes);
	if (values.fd < 0) {
		return values.fd;
	}
	if (fcntl(values.fd, F_ADD_SEALS, SEGMENT_SEALED_SIZE) != 0) {
		result = -errno;
		close(values.fd);
		return result;
	}
	return region_enter(queue, &values, region_out, base_out);
}

/* See clan.h. The memfd is duplicated, so the program can close its own descriptor. Its size must
 * be sealed already. */
int clan_region_import(struct clan_queue *queue, int memfd, uint64_t offset, size_t bytes,
	struct clan_region **region_out, void **base_out)
{
	struct clan_region values = { .bytes = bytes, .offset = offset, .imported = true };
	struct segment_identity identity;
	int result;

	if (bytes == 0 || bytes > REGION_BYTES_MAX || !is_aligned(bytes, segment_page_bytes()) ||
		!is_aligned(offset, segment_page_bytes())) {
		return -EINVAL;
	}
	result = segment_check(memfd, SEGMENT_SEALED_SIZE, &identity);
	if (result != 0) {
		return result;
	}
	if (!range_inside(offset, bytes, identity.bytes)) {
		return -EINVAL;
	}
	values.fd = fcntl(memfd, F_DUPFD_CLOEXEC, 0);
	if (values.fd < 0) {
		return -errno;
	}
	return region_enter(queue, &values, region_out, base_out);
}

int clan_region_register(
	struct clan_queue *queue, void *base, size_t bytes, struct clan_region **region_out)
{
	struct clan_region *region;

	if (bytes == 0 || bytes > REGION_BYTES_MAX) {
		return -EINVAL;
	}
	region = calloc(1, sizeof(*region));
	if (region == NULL) {
		return -ENOMEM;
	}
	region->base = base;
	region->bytes = bytes;
	region->fd = -1;
	region_link(queue, region);
	*region_out = region;
	return 0;
}

int clan_region_memfd(const struct clan_region *region, uint64_t *offset_out)
{
	if (region->fd < 0) {
		return -EOPNOTSUPP;
	}
	*offset_out = region->offset;
	return region->fd;
}

/* Registrations are dropped first, because network adapters must not use the pages after they are
 * unmapped. */
int clan_region_destroy(struct clan_region *region)
{
	if (region == NULL) {
		return 0;
	}
	if (!list_is_empty(&region->shares)) {
		return -EBUSY;
	}
	list_for_each(node, &region->registrations)
	{
		struct clan_registration *registration =
			list_entry(node, struct clan_registration, node);

		registration->drop(registration);
	}
	if (region->fd >= 0) {
		dispose(&(struct disposal){
			.base = region->base,
			.bytes = region->bytes,
			.fds = &region->fd,
			.fd_count = 1,
			.in_caller = true, /* the addresses must be unmapped on return */
		});
	}
	list_remove(&region->node);
	region->queue->region_count--;
	free(region);
	return 0;
}

/* --- shares ----------------------------------------------------------------------------------- */

static const uint32_t share_edges[CLAN_SHARE_STATE_COUNT] = {
	[CLAN_SHARE_ASKED] = BIT(CLAN_SHARE_LIVE) | BIT(CLAN_SHARE_ENDED),
	[CLAN_SHARE_LIVE] = BIT(CLAN_SHARE_ENDING),
	[CLAN_SHARE_ENDING] = BIT(CLAN_SHARE_ENDED),
};

static void set_share_state(struct clan_share *share, enum clan_share_state state)
{
	GMB_ASSERT((share_edges[share->state] & BIT(state)) != 0);
	share->state = state;
}

static void share_free(struct clan_share *share)
{
	list_remove(&share->source.node);
	list_remove(&share->conn_node);
	list_remove(&share->region_node);
	free(share);
}

/* The last event of a share is SHARED with an error status if the peer has refused it, otherwise
 * UNSHARED. The share is freed with its last event. */
static bool give_share_event(struct clan_source *source, struct clan_event *event)
{
	struct clan_share *share = container_of(source, struct clan_share, source);
	bool failed = share->state == CLAN_SHARE_ENDED && share->status != 0;

	event->type = share->state == CLAN_SHARE_ENDED && !failed ? CLAN_EVENT_UNSHARED
								  : CLAN_EVENT_SHARED;
	event->conn = share->conn;
	event->context = share->conn->context;
	event->region = share->region;
	event->number = share->number;
	event->generation = share->generation;
	event->status = share->status;
	if (share->state == CLAN_SHARE_ENDED) {
		share_free(share);
	}
	return false;
}

static struct clan_share *find_share(const struct clan_conn *conn, const struct clan_region *region)
{
	list_for_each(node, &region->shares)
	{
		struct clan_share *share = list_entry(node, struct clan_share, region_node);

		if (share->conn == conn) {
			return share;
		}
	}
	return NULL;
}

struct clan_share *clan_share_find(const struct clan_conn *conn, uint32_t number)
{
	list_for_each(node, &conn->shares)
	{
		struct clan_share *share = list_entry(node, struct clan_share, conn_node);

		if (share->number == number) {
			return share;
		}
	}
	return NULL;
}

/* Returns the lowest number that is not in use. The loop ends because a connection has at most
 * CLAN_TABLE_MAX shares. */
static uint32_t free_number(const struct clan_conn *conn)
{
	uint32_t number = 0;

	while (clan_share_find(conn, number) != NULL) {
		number++;
	}
	return number;
}

/* Shares the region. The share is added to the lists only after the provider has accepted it, so a
 * failed call has no effect. */
int clan_region_share(struct clan_conn *conn, struct clan_region *region, uint32_t rights)
{
	struct clan_share *share;
	int result;

	if (rights == 0 || (rights & ~(uint32_t)(CLAN_READ | CLAN_WRITE)) != 0 ||
		conn->queue != region->queue) {
		return -EINVAL;
	}
	if (conn->state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	if (find_share(conn, region) != NULL) {
		return -EALREADY;
	}
	share = calloc(1, sizeof(*share));
	if (share == NULL) {
		return -ENOMEM;
	}
	share->conn = conn;
	share->region = region;
	share->number = free_number(conn);
	share->generation = ++conn->share_generation;
	share->rights = rights;
	share->state = CLAN_SHARE_ASKED;
	clan_source_init(&share->source, give_share_event);
	result = share->number >= CLAN_TABLE_MAX ? -EUSERS : conn->provider->share(conn, share);
	if (result != 0) {
		free(share);
		return result;
	}
	list_push_back(&conn->shares, &share->conn_node);
	list_push_back(&region->shares, &share->region_node);
	return 0;
}

int clan_region_unshare(struct clan_conn *conn, struct clan_region *region)
{
	struct clan_share *share = find_share(conn, region);
	int result;

	if (share == NULL || share->state == CLAN_SHARE_ENDED) {
		return -ENOENT;
	}
	if (share->state == CLAN_SHARE_ENDING) {
		return -EALREADY;
	}
	/* Too early: CLAN_EVENT_SHARED has not been delivered, or a strict revocation in progress
	 * might still have to replace the pages. */
	if (share->state == CLAN_SHARE_ASKED || list_is_linked(&share->source.node) ||
		region->strict_count > 0) {
		return -EBUSY;
	}
	conn->provider->void_cookies(conn, share);
	if (conn->state == CLAN_OPEN) {
		result = conn->provider->unshare(conn, share);
		if (result != 0) {
			return result;
		}
	}
	set_share_state(share, CLAN_SHARE_ENDING);
	if (conn->state != CLAN_OPEN) {
		clan_share_returned(share); /* a lost peer cannot return the region */
	}
	return 0;
}

void clan_share_answered(struct clan_share *share, int status)
{
	share->status = status;
	set_share_state(share, status == 0 ? CLAN_SHARE_LIVE : CLAN_SHARE_ENDED);
	clan_fire(share->conn->queue, &share->source);
}

void clan_share_returned(struct clan_share *share)
{
	share->status = 0;
	set_share_state(share, CLAN_SHARE_ENDED);
	clan_fire(share->conn->queue, &share->source);
}

void clan_shares_drop(struct clan_conn *conn)
{
	list_for_each(node, &conn->shares)
	{
		share_free(list_entry(node, struct clan_share, conn_node));
	}
}

/* --- operations on a share -------------------------------------------------------------------- */

/* Finds the live share of a region on a connection, and checks the range. Returns 0 or a negative
 * errno. */
static int live_share(struct clan_conn *conn, const struct clan_region *region, uint64_t offset,
	uint64_t bytes, struct clan_share **share_out)
{
	struct clan_share *share = find_share(conn, region);

	if (conn->state != CLAN_OPEN) {
		return -ENOTCONN;
	}
	if (share == NULL || share->state != CLAN_SHARE_LIVE) {
		return -ENOENT;
	}
	*share_out = share;
	return range_inside(offset, bytes, region->bytes) ? 0 : -ERANGE;
}

int clan_cookie_grant(struct clan_conn *conn, struct clan_region *region, uint64_t offset,
	uint32_t bytes, uint32_t rights, uint32_t flags, struct clan_cookie *cookie_out)
{
	struct clan_share *share;
	int result;

	if (bytes == 0 || rights == 0 || (flags & ~(uint32_t)CLAN_COOKIE_ONCE) != 0) {
		return -EINVAL;
	}
	result = live_share(conn, region, offset, bytes, &share);
	if (result != 0) {
		return result;
	}
	if ((rights & ~share->rights) != 0) {
		return -EACCES;
	}
	*cookie_out = (struct clan_cookie){
		.offset = offset,
		.bytes = bytes,
		.region = (uint16_t)share->number,
		.rights = (uint16_t)rights,
		.flags = (uint16_t)flags,
	};
	return conn->provider->grant(conn, share, cookie_out);
}

int clan_cookie_revoke(
	struct clan_conn *conn, const struct clan_cookie *cookie, uint32_t flags, void *op)
{
	if ((flags & ~(uint32_t)CLAN_REVOKE_STRICT) != 0) {
		return -EINVAL;
	}
	return conn->state == CLAN_OPEN ? conn->provider->revoke(conn, cookie, flags != 0, op)
					: -ENOTCONN;
}

int clan_tripwire(struct clan_conn *conn, struct clan_region *region, uint64_t offset,
	uint32_t bytes, uint32_t *number_out)
{
	struct clan_share *share;
	int result;

	if (bytes == 0) {
		return -EINVAL;
	}
	result = live_share(conn, region, offset, bytes, &share);
	return result != 0 ? result
			   : conn->provider->tripwire(conn, share, offset, bytes, number_out);
}

/* --- replacing pages -------------------------------------------------------------------------- */

/* Returns the end of a scratch range that contains the page at offset completely, 0 if there is
 * none. */
static uint64_t scratch_end(const struct clan_range *scratch, uint32_t scratch_count,
	uint64_t offset, uint64_t page_bytes)
{
	for (uint32_t i = 0; i < scratch_count; i++) {
		uint64_t begin = align_up(scratch[i].offset, page_bytes);
		uint64_t end = align_down(scratch[i].offset + scratch[i].bytes, page_bytes);

		if (offset >= begin && offset < end) {
			return end;
		}
	}
	return 0;
}

/* Returns the start of the next scratch page after offset, or end. */
static uint64_t next_scratch(const struct clan_range *scratch, uint32_t scratch_count,
	uint64_t offset, uint64_t page_bytes, uint64_t end)
{
	for (uint32_t i = 0; i < scratch_count; i++) {
		uint64_t begin = align_up(scratch[i].offset, page_bytes);

		if (begin > offset && begin < end &&
			align_down(scratch[i].offset + scratch[i].bytes, page_bytes) > begin) {
			end = begin;
		}
	}
	return end;
}

/* Copies all pages that are not within the scratch ranges. */
static void copy_kept(const struct clan_region *region, uint8_t *fresh,
	const struct clan_range *scratch, uint32_t scratch_count)
{
	uint64_t page_bytes = segment_page_bytes();
	uint64_t at = 0;

	while (at < region->bytes) {
		uint64_t end = scratch_end(scratch, scratch_count, at, page_bytes);

		if (end == 0) {
			end = next_scratch(scratch, scratch_count, at, page_bytes, region->bytes);
			memcpy(fresh + at, region->base + at, end - at);
		}
		at = end;
	}
}

/* The new pages are complete before the old ones are removed. The memfd is exchanged together with
 * the pages, so later shares pass the new one. */
int clan_region_replace(
	struct clan_region *region, const struct clan_range *scratch, uint32_t scratch_count)
{
	uint8_t *fresh;
	int result;
	int fd;

	for (uint32_t i = 0; i < scratch_count; i++) {
		if (!range_inside(scratch[i].offset, scratch[i].bytes, region->bytes)) {
			return -EINVAL;
		}
	}
	if (region->imported || region->fd < 0 || !list_is_empty(&region->registrations)) {
		return -EOPNOTSUPP;
	}
	list_for_each(node, &region->shares)
	{
		/* The pages must not be replaced while a share is in use: an open connection, or a
		 * peer that still has access (carrier), would continue to use the old pages. */
		const struct clan_share *share = list_entry(node, struct clan_share, region_node);

		if (share->conn->state == CLAN_OPEN || share->carrier != NULL) {
			return -EBUSY;
		}
	}
	fd = segment_memfd("clan-region", region->bytes);
	if (fd < 0) {
		return fd;
	}
	result = fcntl(fd, F_ADD_SEALS, SEGMENT_SEALED_SIZE) != 0 ? -errno : 0;
	if (result == 0) {
		result = map_own(fd, 0, region->bytes, region->huge, &fresh);
	}
	if (result == 0) {
		copy_kept(region, fresh, scratch, scratch_count);
		/* One step: the kernel checks its limits before it removes the old pages, so a
		 * failure leaves them in place. */
		if (mremap(fresh, region->bytes, region->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
			    region->base) == MAP_FAILED) {
			result = -errno;
			munmap(fresh, region->bytes);
		}
	}
	if (result != 0) {
		close(fd);
		return result;
	}
	close(region->fd);
	region->fd = fd;
	region->read_only = false;
	region->sealed = false;
	list_for_each(node, &region->shares)
	{
		share_free(list_entry(node, struct clan_share, region_node));
	}
	return 0;
}
