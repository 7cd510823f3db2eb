// SPDX-License-Identifier: Apache-2.0
/* Memory in the simulated libclan: regions, puts and gets. See clan_sim.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "clan/segment.h"
#include "clan_sim_private.h"

enum { REGION_LATE_MAX_NS = 2000000 };

static struct list_node parcels = { &parcels, &parcels }; /* struct parcel */
static uint64_t parcel_last;

/* --- descriptors ------------------------------------------------------------------------------ */

/* A descriptor on its way, as SCM_RIGHTS carries it. */
struct parcel {
	struct list_node node; /* in parcels */
	uint64_t id;
	int fd;
};

static uint64_t parcel_send(int fd)
{
	struct parcel *parcel = calloc(1, sizeof(*parcel));

	GMB_ASSERT(parcel != NULL);
	parcel->id = ++parcel_last;
	parcel->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	GMB_ASSERT(parcel->fd >= 0);
	list_push_back(&parcels, &parcel->node);
	return parcel->id;
}

static int parcel_take(uint64_t id)
{
	list_for_each(node, &parcels)
	{
		struct parcel *parcel = list_entry(node, struct parcel, node);
		int fd = parcel->fd;

		if (parcel->id == id) {
			list_remove(&parcel->node);
			free(parcel);
			return fd;
		}
	}
	GMB_ASSERT(!"each parcel is taken once");
}

void clan_sim_drop_parcels(void)
{
	struct list_node *node;

	while ((node = list_pop_front(&parcels)) != NULL) {
		struct parcel *parcel = list_entry(node, struct parcel, node);

		close(parcel->fd);
		free(parcel);
	}
}

/* --- life ------------------------------------------------------------------------------------- */

static void region_settle(struct peer_region *region)
{
	struct end *end = region->end;

	if (region->base == NULL || !region->leaving || region->holds > 0 || region->give_live ||
		region->give_leaving) {
		return;
	}
	list_remove(&region->source.node);
	munmap(region->base, region->bytes);
	region->base = NULL;
	end->region_count--;
	end->region_bytes -= region->bytes;
	if (region->asked_back && end->conn.state == CLAN_OPEN) {
		struct record record = { .kind = RECORD_REGION_ENDED,
			.number = region->number,
			.generation = region->generation };

		clan_sim_write(end, &record, NULL);
	}
	clan_sim_join(end);
}

/* Its events are due, unless they are late. */
static bool region_fire(struct peer_region *region)
{
	if ((!region->give_live && !region->give_leaving) || list_is_linked(&region->source.node) ||
		sim_now_ns() < region->late_ns) {
		return false;
	}
	clan_fire(region->end->conn.queue, &region->source);
	return true;
}

static void region_leaves(struct peer_region *region)
{
	if (region->base != NULL && !region->leaving) {
		region->leaving = true;
		region->give_leaving = true;
		region_fire(region);
	}
}

static void move_ended(struct end *end, struct move *move, int status)
{
	move->status = status;
	list_remove(&move->node);
	list_push_back(&end->moved, &move->node);
	clan_fire(end->conn.queue, &end->moved_source);
}

static void free_moves(struct list_node *list)
{
	struct list_node *node;

	while ((node = list_pop_front(list)) != NULL) {
		free(list_entry(node, struct move, node));
	}
}

void clan_sim_read_puts(struct end *end)
{
	list_for_each(node, &end->moves)
	{
		struct move *move = list_entry(node, struct move, node);

		if (move->unread) {
			memcpy(end->out.bytes + move->out_at, move->iov.iov_base,
				move->iov.iov_len);
			move->unread = false;
		}
	}
}

static bool give_moved(struct clan_source *source, struct clan_event *event);

void clan_sim_memory_init(struct end *end)
{
	end->regions = calloc(end->conn.options.peer_regions_max, sizeof(end->regions[0]));
	end->grants = calloc(end->conn.options.cookies, sizeof(end->grants[0]));
	GMB_ASSERT(end->regions != NULL && end->grants != NULL);
	list_init(&end->moves);
	list_init(&end->moved);
	clan_source_init(&end->moved_source, give_moved);
}

void clan_sim_memory_lost(struct end *end)
{
	struct list_node *node;

	while ((node = list_first(&end->moves)) != NULL) {
		move_ended(end, list_entry(node, struct move, node), -ENOTCONN);
	}
	for (uint32_t i = 0; i < end->conn.options.peer_regions_max; i++) {
		region_leaves(&end->regions[i]);
	}
}

void clan_sim_memory_close(struct end *end)
{
	list_remove(&end->moved_source.node);
	free_moves(&end->moves);
	free_moves(&end->moved);
	for (uint32_t i = 0; i < end->conn.options.peer_regions_max; i++) {
		struct peer_region *region = &end->regions[i];

		if (region->base != NULL) {
			list_remove(&region->source.node);
			region->give_live = false;
			region->give_leaving = false;
			region->leaving = true;
			region_settle(region);
		}
	}
}

void clan_sim_memory_fini(struct end *end)
{
	free(end->regions);
	free(end->grants);
}

bool clan_sim_memory_look(struct end *end)
{
	bool found = false;

	for (uint32_t i = 0; i < end->conn.options.peer_regions_max; i++) {
		found |= end->regions[i].base != NULL && region_fire(&end->regions[i]);
	}
	return found;
}

/* --- regions -------------------------------------------------------------------------------- */

static bool give_region_event(struct clan_source *source, struct clan_event *event)
{
	struct peer_region *region = container_of(source, struct peer_region, source);

	event->type = region->give_live ? CLAN_EVENT_REGION : CLAN_EVENT_REGION_ENDING;
	event->conn = &region->end->conn;
	event->context = region->end->conn.context;
	event->number = region->number;
	event->generation = region->generation;
	if (region->give_live) {
		region->give_live = false;
		return region->give_leaving;
	}
	region->give_leaving = false;
	region_settle(region);
	return false;
}

int clan_sim_share(struct clan_conn *conn, struct clan_share *share)
{
	struct record record = {
		.kind = RECORD_REGION,
		.number = share->number,
		.generation = share->generation,
		.rights = share->rights,
		.region_bytes = share->region->bytes,
		.region_offset = share->region->offset,
		.parcel = clan_sim_maps ? parcel_send(share->region->fd) : 0,
	};

	clan_sim_write(end_of(conn), &record, NULL);
	return 0;
}

int clan_sim_unshare(struct clan_conn *conn, struct clan_share *share)
{
	struct record record = {
		.kind = RECORD_REGION_END, .number = share->number, .generation = share->generation
	};

	clan_sim_write(end_of(conn), &record, NULL);
	return 0;
}

static int region_map(struct end *end, const struct record *record, int fd)
{
	const struct clan_conn_options *options = &end->conn.options;
	struct peer_region *region = &end->regions[record->number];
	uint8_t *base;
	int result;

	if (record->number >= options->peer_regions_max ||
		record->region_bytes > options->peer_region_bytes_max - end->region_bytes) {
		return -EDQUOT;
	}
	GMB_ASSERT(region->base == NULL);
	result = segment_map(fd, record->region_offset, record->region_bytes,
		(record->rights & CLAN_WRITE) != 0, &base);
	if (result != 0) {
		return result;
	}
	*region = (struct peer_region){
		.end = end,
		.base = base,
		.bytes = record->region_bytes,
		.number = record->number,
		.generation = record->generation,
		.rights = record->rights,
		.give_live = true,
	};
	clan_source_init(&region->source, give_region_event);
	end->region_count++;
	end->region_bytes += region->bytes;
	if (sim_random() % 4 == 0) {
		uint64_t delay_ns = sim_between(0, REGION_LATE_MAX_NS);

		region->late_ns = sim_now_ns() + delay_ns;
		clan_sim_wake_later(end->conn.queue, delay_ns + 1);
	}
	region_fire(region);
	return 0;
}

void clan_sim_take_region(struct end *end, const struct record *record)
{
	struct record answer = { .kind = RECORD_REGION_ANSWER,
		.number = record->number,
		.generation = record->generation };

	if (clan_sim_maps) {
		int fd = parcel_take(record->parcel);

		answer.error = region_map(end, record, fd);
		close(fd);
	}
	clan_sim_write(end, &answer, NULL);
}

void clan_sim_take_share_answer(struct end *end, const struct record *record)
{
	struct clan_share *share = clan_share_find(&end->conn, record->number);

	GMB_ASSERT(share != NULL && share->generation == record->generation);
	if (record->kind == RECORD_REGION_ENDED) {
		clan_share_returned(share);
	} else {
		clan_share_answered(share, record->error);
	}
}

static struct peer_region *find_region(const struct clan_conn *conn, uint32_t number)
{
	const struct end *end = (const struct end *)(const void *)conn;

	_Static_assert(offsetof(struct end, conn) == 0, "it begins with the connection");
	return number < conn->options.peer_regions_max && end->regions[number].base != NULL
		       ? &end->regions[number]
		       : NULL;
}

int clan_sim_peer_info(const struct clan_conn *conn, uint32_t number, struct clan_peer_region *info)
{
	const struct peer_region *region = find_region(conn, number);

	if (region == NULL) {
		return -ENOENT;
	}
	info->base = region->base;
	info->bytes = region->bytes;
	info->rights = region->rights;
	info->generation = region->generation;
	info->holds = region->holds;
	return 0;
}

int clan_sim_peer_get(struct clan_conn *conn, uint32_t number, uint32_t generation, uint32_t rights,
	uint64_t offset, uint64_t bytes, void **address_out)
{
	struct peer_region *region = find_region(conn, number);

	if (region == NULL) {
		return -ENOENT;
	}
	if (region->generation != generation || region->leaving) {
		return -ESTALE;
	}
	if ((rights & ~region->rights) != 0) {
		return -EACCES;
	}
	if (!range_inside(offset, bytes, region->bytes)) {
		return -ERANGE;
	}
	region->holds++;
	*address_out = region->base + offset;
	return 0;
}

void clan_sim_peer_put(struct clan_conn *conn, uint32_t number)
{
	struct peer_region *region = find_region(conn, number);

	GMB_ASSERT(region != NULL && region->holds > 0);
	region->holds--;
	region_settle(region);
}

void clan_sim_take_region_end(struct end *end, const struct record *record)
{
	struct record answer = *record;

	if (clan_sim_maps) {
		end->regions[record->number].asked_back = true;
		region_leaves(&end->regions[record->number]);
		return;
	}
	answer.kind = RECORD_REGION_ENDED;
	clan_sim_write(end, &answer, NULL);
}

/* --- put and get ---------------------------------------------------------------------------- */

int clan_sim_grant(struct clan_conn *conn, struct clan_share *share, struct clan_cookie *cookie)
{
	struct end *end = end_of(conn);

	for (uint32_t slot = 0; slot < conn->options.cookies; slot++) {
		struct grant *grant = &end->grants[slot];

		if (grant->share == NULL) {
			grant->share = share;
			cookie->slot = (uint16_t)slot;
			cookie->generation = ++grant->generation;
			return 0;
		}
	}
	return -ENOSPC;
}

void clan_sim_void_cookies(struct clan_conn *conn, const struct clan_share *share)
{
	struct end *end = end_of(conn);

	for (uint32_t slot = 0; slot < conn->options.cookies; slot++) {
		if (end->grants[slot].share == share) {
			end->grants[slot].share = NULL;
		}
	}
}

/* The place in our memory that the peer may reach by its cookie, or NULL. */
static uint8_t *reach(struct end *end, const struct record *record, uint32_t right)
{
	const struct clan_cookie *cookie = &record->cookie;
	const struct grant *grant = &end->grants[cookie->slot];

	GMB_ASSERT(cookie->slot < end->conn.options.cookies);
	if (grant->share == NULL || grant->generation != cookie->generation ||
		(cookie->rights & right) == 0 ||
		!range_inside(record->move_offset, record->move_bytes, cookie->bytes)) {
		return NULL;
	}
	return grant->share->region->base + cookie->offset + record->move_offset;
}

static bool give_moved(struct clan_source *source, struct clan_event *event)
{
	struct end *end = container_of(source, struct end, moved_source);
	struct move *move = list_entry(list_pop_front(&end->moved), struct move, node);

	event->type = CLAN_EVENT_DONE;
	event->status = move->status;
	event->conn = &end->conn;
	event->context = end->conn.context;
	event->op = move->op;
	free(move);
	return !list_is_empty(&end->moved);
}

static struct move *move_begin(
	struct end *end, struct record *record, const struct iovec *iov, void *op)
{
	struct move *move = calloc(1, sizeof(*move));

	GMB_ASSERT(move != NULL);
	move->id = ++end->move_last;
	move->iov = *iov;
	move->op = op;
	list_push_back(&end->moves, &move->node);
	record->move = move->id;
	return move;
}

/* One in four ends in the next turn: its bytes are on the way, in order. */
int clan_sim_put(struct clan_conn *conn, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op)
{
	struct end *end = end_of(conn);
	struct record record = {
		.kind = RECORD_PUT,
		.bytes = (uint32_t)from->iov_len,
		.cookie = *cookie,
		.move_offset = offset,
		.move_bytes = from->iov_len,
	};
	struct move *move;

	GMB_ASSERT(from_count == 1 && !notify);
	move = move_begin(end, &record, from, op);
	if (sim_random() % 4 == 0) {
		record.move = 0;
		clan_sim_add(&end->out, &record, sizeof(record));
		clan_sim_add(&end->out, from->iov_base, from->iov_len);
		move_ended(end, move, 0);
		return 0;
	}
	clan_sim_add(&end->out, &record, sizeof(record));
	move->out_at = end->out.used;
	move->unread = true;
	clan_sim_add(&end->out, from->iov_base, from->iov_len);
	return 0;
}

int clan_sim_get(struct clan_conn *conn, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op)
{
	struct end *end = end_of(conn);
	struct record record = {
		.kind = RECORD_GET,
		.cookie = *cookie,
		.move_offset = offset,
		.move_bytes = to->iov_len,
	};

	GMB_ASSERT(to_count == 1);
	(void)move_begin(end, &record, to, op);
	memset(to->iov_base, 0xd5, to->iov_len);
	clan_sim_add(&end->out, &record, sizeof(record));
	return 0;
}

void clan_sim_take_move(struct end *end, const struct record *record, const uint8_t *payload)
{
	bool is_put = record->kind == RECORD_PUT;
	uint8_t *at = reach(end, record, is_put ? CLAN_WRITE : CLAN_READ);
	struct record answer = { .kind = RECORD_MOVED,
		.move = record->move,
		.bytes = is_put || at == NULL ? 0 : (uint32_t)record->move_bytes,
		.error = at == NULL ? -ESTALE : 0 };

	if (is_put && at != NULL) {
		memcpy(at, payload, record->bytes);
	}
	if (record->move != 0) {
		clan_sim_write(end, &answer, at);
	}
}

void clan_sim_take_moved(struct end *end, const struct record *record, const uint8_t *payload)
{
	list_for_each(node, &end->moves)
	{
		struct move *move = list_entry(node, struct move, node);

		if (move->id == record->move) {
			if (record->bytes > 0) {
				memcpy(move->iov.iov_base, payload, record->bytes);
			}
			move_ended(end, move, record->error);
			return;
		}
	}
	GMB_ASSERT(!"only what has begun ends");
}
