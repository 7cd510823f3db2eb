// SPDX-License-Identifier: Apache-2.0
/*
 * Regions of the peer, mapped here: docs/protocol/clan.md §3 (rules K8 and K9) and §8.1.
 *
 *   REGION ─▶ MAPPING (worker) ─▶ LIVE ─▶ LEAVING (holds remain)
 *          ─▶ REMOVED (events remain) ─▶ freed
 *
 * Invariant: a mapping is never removed while the program or a copy holds its region.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/rights.h"
#include "clan/shm.h"

static const uint32_t region_edges[SHM_REGION_STATE_COUNT] = {
	[SHM_REGION_MAPPING] = BIT(SHM_REGION_LIVE) | BIT(SHM_REGION_REMOVED),
	[SHM_REGION_LIVE] = BIT(SHM_REGION_LEAVING),
	[SHM_REGION_LEAVING] = BIT(SHM_REGION_REMOVED),
};

static void shm_region_set_region_state(
	struct shm_peer_region *region, enum shm_peer_region_state state)
{
	GMB_ASSERT((region_edges[region->state] & BIT(state)) != 0);
	region->state = state;
}

/* --- mappings --------------------------------------------------------------------------------- */

/* Returns the mapping of the same part of the same memfd with the same rights, if a connection of
 * the group has one; otherwise NULL. Such regions share the mapping. */
static struct shm_mapping *shm_region_find_mapping(const struct shm_peer_region *region)
{
	list_for_each(node, &region->conn->group->mappings)
	{
		struct shm_mapping *mapping = list_entry(node, struct shm_mapping, node);

		if (mapping->identity.device == region->identity.device &&
			mapping->identity.inode == region->identity.inode &&
			mapping->offset == region->offset && mapping->bytes == region->bytes &&
			mapping->rights == region->rights) {
			return mapping;
		}
	}
	return NULL;
}

static void put_mapping(struct shm_mapping *mapping, bool in_caller)
{
	if (--mapping->references == 0) {
		/* Unmapping many pages takes time, so a worker does it unless the queue is
		 * passive. */
		dispose(&(struct disposal){
			.base = mapping->base,
			.bytes = mapping->bytes,
			.in_caller = in_caller,
		});
		list_remove(&mapping->node);
		free(mapping);
	}
}

/* --- life ------------------------------------------------------------------------------------- */

/* Frees the region and its number, and sends REGION_ENDED if the peer has requested the region
 * back. Called only after the program has received the region's events, because otherwise a peer
 * could share and unshare regions faster than the program takes events. */
static void region_finish(struct shm_peer_region *region)
{
	struct shm_conn *conn = region->conn;
	uint32_t number = region->number;
	uint32_t generation = region->generation;
	bool answer = region->asked_back && conn->conn.state == CLAN_OPEN;

	conn->regions[number] = NULL;
	list_remove(&region->source.node);
	list_remove(&region->node);
	free(region);
	if (answer && shm_send_region_answer(conn, SHM_REGION_ENDED, number, generation, 0) != 0) {
		shm_conn_end(conn, -ECONNRESET, "the peer does not read its socket");
	}
}

/* Gives CLAN_EVENT_REGION, then CLAN_EVENT_REGION_ENDING. If both are pending, the next call gives
 * the second one. A REMOVED region is freed with its last event. */
static bool shm_region_give_region_event(struct clan_source *source, struct clan_event *event)
{
	struct shm_peer_region *region = container_of(source, struct shm_peer_region, source);

	event->type = region->give_live ? CLAN_EVENT_REGION : CLAN_EVENT_REGION_ENDING;
	event->conn = &region->conn->conn;
	event->context = region->conn->conn.context;
	event->number = region->number;
	event->generation = region->generation;
	if (region->give_live) {
		region->give_live = false;
	} else {
		region->give_leaving = false;
	}
	if (region->give_leaving) {
		return true;
	}
	if (region->state == SHM_REGION_REMOVED) {
		region_finish(region);
	}
	return false;
}

/* Called when the region is not in use any more. Can free it. */
static void region_removed(struct shm_peer_region *region)
{
	struct shm_conn *conn = region->conn;

	shm_region_set_region_state(region, SHM_REGION_REMOVED);
	conn->region_bytes -= region->bytes;
	conn->regions_held--;
	if (region->mapping != NULL) {
		put_mapping(region->mapping, clan_queue_is_passive(conn->conn.queue));
		region->mapping = NULL;
	}
	if (!region->give_live && !region->give_leaving) {
		region_finish(region);
	}
	shm_conn_join(conn);
}

/* The program can no longer hold the region. The region is removed as soon as no operation holds
 * it. */
static void shm_region_leaves(struct shm_peer_region *region)
{
	shm_region_set_region_state(region, SHM_REGION_LEAVING);
	if (region->conn->conn.state != CLAN_CLOSING) {
		region->give_leaving = true;
		clan_fire(region->conn->conn.queue, &region->source);
	}
	if (region->holds == 0) {
		region_removed(region);
	}
}

static int answer(struct shm_conn *conn, const struct shm_region *message, int error)
{
	int result = shm_send_region_answer(
		conn, SHM_REGION_OK, message->region, message->generation, error);

	if (result != 0) {
		shm_conn_end(conn, -ECONNRESET, "the peer does not read its socket");
	}
	return result;
}

static void region_live(struct shm_peer_region *region)
{
	struct shm_conn *conn = region->conn;

	region->mapping->references++;
	shm_region_set_region_state(region, SHM_REGION_LIVE);
	region->give_live = true;
	clan_fire(conn->conn.queue, &region->source);
	if (shm_send_region_answer(conn, SHM_REGION_OK, region->number, region->generation, 0) !=
		0) {
		shm_conn_end(conn, -ECONNRESET, "the peer does not read its socket");
	}
}

/* Maps the region, on a worker. */
static void map_region(struct work *work)
{
	struct shm_peer_region *region = container_of(work, struct shm_peer_region, work);
	int fd;

	region->status = segment_map(region->fd, region->offset, region->bytes,
		(region->rights & CLAN_WRITE) != 0, &region->base);
	fd = region->fd;
	/* Cleared before close(). Otherwise a child created by fork() could close another file that
	 * reuses the number. */
	region->fd = -1;
	close(fd); /* does not block: it is a memfd, and the mapping keeps the file */
	dispose_count_less(work->owner, 1);
}

/* Called on the queue's thread when the region is mapped. If the connection has ended in between,
 * the mapping is removed again. */
static void region_mapped(struct work *work)
{
	struct shm_peer_region *region = container_of(work, struct shm_peer_region, work);
	struct shm_conn *conn = region->conn;
	struct shm_mapping *mapping = region->status == 0 ? calloc(1, sizeof(*mapping)) : NULL;

	if (mapping != NULL) {
		*mapping = (struct shm_mapping){
			.identity = region->identity,
			.offset = region->offset,
			.bytes = region->bytes,
			.rights = region->rights,
			.base = region->base,
		};
		list_init(&mapping->node);
		list_push_back(&conn->group->mappings, &mapping->node);
		region->mapping = mapping;
		if (conn->conn.state == CLAN_OPEN) {
			region_live(region);
			return;
		}
		/* The connection has ended: region_removed() drops this reference, which is the
		 * only one, and so removes the mapping. */
		mapping->references = 1;
	} else if (region->status == 0) {
		dispose(&(struct disposal){
			.base = region->base, .bytes = region->bytes, .in_caller = true });
	}
	if (conn->conn.state == CLAN_OPEN) {
		struct shm_region message = { .region = (uint16_t)region->number,
			.generation = region->generation };

		answer(conn, &message, -ENOMEM);
	}
	region_removed(region);
}

static bool message_is_valid(const struct shm_conn *conn, const struct shm_region *message)
{
	uint64_t end;

	return message->generation != 0 && message->rights != 0 &&
	       (message->rights & ~(CLAN_READ | CLAN_WRITE)) == 0 && message->bytes != 0 &&
	       is_aligned(message->bytes, SHM_SEGMENT_ALIGN) &&
	       is_aligned(message->offset, SHM_SEGMENT_ALIGN) &&
	       checked_add_u64(message->offset, message->bytes, &end) && end <= INT64_MAX &&
	       (message->region >= conn->conn.options.peer_regions_max || conn->regions == NULL ||
		       conn->regions[message->region] == NULL);
}

static struct shm_peer_region *region_create(
	struct shm_conn *conn, const struct shm_region *message)
{
	struct shm_peer_region *region;

	if (conn->regions == NULL) {
		conn->regions = calloc(
			conn->conn.options.peer_regions_max, sizeof(struct shm_peer_region *));
	}
	region = conn->regions == NULL ? NULL : calloc(1, sizeof(*region));
	if (region == NULL) {
		return NULL;
	}
	clan_source_init(&region->source, shm_region_give_region_event);
	region->conn = conn;
	region->number = message->region;
	region->generation = message->generation;
	region->rights = message->rights;
	region->offset = message->offset;
	region->bytes = message->bytes;
	conn->regions[region->number] = region;
	conn->region_bytes += region->bytes;
	conn->regions_held++;
	list_push_back(&conn->region_list, &region->node);
	return region;
}

/* Owns fd: every path disposes of it or passes it to the worker. A violation of rule K8 ends the
 * connection. A region beyond our limits is only refused with an errno, because the peer cannot
 * know these limits. */
int shm_region_arrived(struct shm_conn *conn, const struct shm_region *message, int fd)
{
	bool passive = clan_queue_is_passive(conn->conn.queue);
	struct segment_identity identity;
	struct shm_peer_region *region;

	if (!message_is_valid(conn, message)) {
		dispose_fd(fd, conn->conn.peer.uid, passive);
		return shm_broken(conn, 8, "a message that shares a region has invalid values");
	}
	if (message->region >= conn->conn.options.peer_regions_max ||
		message->bytes > conn->conn.options.peer_region_bytes_max - conn->region_bytes) {
		dispose_fd(fd, conn->conn.peer.uid, passive);
		return answer(conn, message, -EDQUOT);
	}
	/* The peer must not be able to remove pages of memory that only it writes, because a hole
	 * would stall the reader. */
	if (segment_check(fd,
		    (message->rights & CLAN_WRITE) != 0 ? SEGMENT_SEALED_SIZE
							: SEGMENT_SEALED_READ_ONLY,
		    &identity) != 0) {
		dispose_fd(fd, conn->conn.peer.uid, passive);
		return answer(conn, message, -EPERM);
	}
	if (!range_inside(message->offset, message->bytes, identity.bytes)) {
		dispose_fd(fd, conn->conn.peer.uid, passive);
		return shm_broken(conn, 8, "a region is larger than its memory");
	}
	region = region_create(conn, message);
	if (region == NULL) {
		dispose_fd(fd, conn->conn.peer.uid, passive);
		return answer(conn, message, -ENOMEM);
	}
	region->identity = identity;
	region->fd = fd;
	region->mapping = shm_region_find_mapping(region);
	if (region->mapping != NULL) {
		dispose_fd(fd, conn->conn.peer.uid, passive);
		region_live(region);
		return conn->conn.state == CLAN_OPEN ? 0 : -ENOTCONN;
	}
	region->work.run = map_region;
	region->work.done = region_mapped;
	/* An untrusted peer can stall the worker by punching holes repeatedly. */
	region->work.in_doubt = rights_is_stranger(conn->conn.peer.uid);
	region->work.owner = conn->conn.peer.uid;
	dispose_count_more(conn->conn.peer.uid, 1);
	work_start(&region->work, &conn->conn.queue->results);
	if (passive) {
		work_finish(&conn->conn.queue->results);
	}
	return 0;
}

/* REGION_END: the peer requests the return of a region that it has shared. */
int shm_region_asked_back(struct shm_conn *conn, uint32_t number, uint32_t generation)
{
	struct shm_peer_region *region =
		number < conn->conn.options.peer_regions_max && conn->regions != NULL
			? conn->regions[number]
			: NULL;

	if (region == NULL || region->generation != generation ||
		region->state != SHM_REGION_LIVE) {
		return shm_broken(
			conn, 9, "a request for the return of a region that is not shared");
	}
	region->asked_back = true;
	shm_region_leaves(region);
	return conn->conn.state == CLAN_OPEN ? 0 : -ENOTCONN;
}

/* Regions that the program holds stay mapped (LEAVING) after the end of the connection. */
void shm_regions_leave(struct shm_conn *conn)
{
	list_for_each(node, &conn->region_list)
	{
		struct shm_peer_region *region = list_entry(node, struct shm_peer_region, node);

		if (conn->conn.state == CLAN_CLOSING) {
			list_remove(&region->source.node);
			region->give_live = false;
			region->give_leaving = false;
		}
		if (region->state == SHM_REGION_LIVE) {
			shm_region_leaves(region);
		} else if (region->state == SHM_REGION_REMOVED && !region->give_live &&
			   !region->give_leaving) {
			region_finish(region);
		}
	}
}

/* --- use -------------------------------------------------------------------------------------- */

static struct shm_peer_region *shm_region_find_region(const struct shm_conn *conn, uint32_t number)
{
	if (number >= conn->conn.options.peer_regions_max || conn->regions == NULL) {
		return NULL;
	}
	return conn->regions[number];
}

int shm_peer_info(const struct clan_conn *base, uint32_t number, struct clan_peer_region *info)
{
	const struct shm_conn *conn = shm_conn_const(base);
	const struct shm_peer_region *region = shm_region_find_region(conn, number);

	if (region == NULL || region->mapping == NULL || region->state == SHM_REGION_MAPPING) {
		return -ENOENT;
	}
	info->base = region->mapping->base;
	info->bytes = region->bytes;
	info->rights = region->rights;
	info->generation = region->generation;
	info->holds = region->holds;
	return 0;
}

int shm_peer_get(struct clan_conn *base, uint32_t number, uint32_t generation, uint32_t rights,
	uint64_t offset, uint64_t bytes, void **address_out)
{
	struct shm_peer_region *region = shm_region_find_region(shm_conn(base), number);

	if (base->is_wary) {
		return -EOPNOTSUPP;
	}
	if (region == NULL || region->state == SHM_REGION_MAPPING) {
		return -ENOENT;
	}
	if (region->generation != generation || region->state != SHM_REGION_LIVE) {
		return -ESTALE;
	}
	if ((rights & ~region->rights) != 0) {
		return -EACCES;
	}
	if (!range_inside(offset, bytes, region->bytes)) {
		return -ERANGE;
	}
	region->holds++;
	*address_out = region->mapping->base + offset;
	return 0;
}

void shm_peer_put(struct clan_conn *base, uint32_t number)
{
	struct shm_peer_region *region = shm_region_find_region(shm_conn(base), number);

	GMB_ASSERT(region != NULL && region->holds > 0);
	if (--region->holds == 0 && region->state == SHM_REGION_LEAVING) {
		region_removed(region);
	}
}

int shm_region_place(struct shm_conn *conn, uint32_t number, uint32_t right, uint64_t offset,
	uint64_t bytes, uint8_t **address_out)
{
	struct shm_peer_region *region = shm_region_find_region(conn, number);

	if (region == NULL || region->state != SHM_REGION_LIVE) {
		return -ENOENT;
	}
	if ((region->rights & right) == 0) {
		return -EACCES;
	}
	if (!range_inside(offset, bytes, region->bytes)) {
		return -ERANGE;
	}
	*address_out = region->mapping->base + offset;
	return 0;
}

/* --- our regions ------------------------------------------------------------------------------ */

/* Seals a region at its first share. Read-only memory must get no new writable mappings, and a peer
 * with write access must not be able to add seals that affect other peers. The program seals
 * imported memory itself. */
static int seal_for(struct clan_region *region, uint32_t rights)
{
	bool read_only = (rights & CLAN_WRITE) == 0;

	if (region->fd < 0) {
		return -EOPNOTSUPP;
	}
	if (region->imported || region->sealed) {
		return read_only == region->read_only ? 0 : -EPERM;
	}
	if (fcntl(region->fd, F_ADD_SEALS, F_SEAL_SEAL | (read_only ? F_SEAL_FUTURE_WRITE : 0)) !=
		0) {
		return -errno;
	}
	region->sealed = true;
	region->read_only = read_only;
	return 0;
}

int shm_share(struct clan_conn *base, struct clan_share *share)
{
	int result = seal_for(share->region, share->rights);

	return result != 0 ? result : shm_send_region(shm_conn(base), share);
}

int shm_unshare(struct clan_conn *base, struct clan_share *share)
{
	return shm_send_region_answer(
		shm_conn(base), SHM_REGION_END, share->number, share->generation, 0);
}
