// SPDX-License-Identifier: Apache-2.0
/*
 * Regions, cookies, revocation, tripwires, cookie queues: docs/protocol/clan.md §12.4 to §12.6.
 *
 * Invariant: an object only remembers that a record about it must be sent (struct net_owed). The
 * record is composed when a frame has room. So a peer that does not read its frames cannot make us
 * allocate memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "clan/net.h"

#define NS_PER_MS UINT64_C(1000000)
#define FIFO_NONE UINT32_MAX

enum {
	/* time limit for the peer's answer; even a busy program answers within this time */
	STRICT_MS = 1000,
};

enum net_grant_state {
	GRANT_FREE,
	GRANT_GIVEN,
	GRANT_LEAVING,	   /* waits for REVOKED */
	GRANT_WITH_REGION, /* waits for REGION_ENDED */
};

struct net_revocation {
	struct list_node node; /* in conn->revocations */
	struct clan_source source;
	struct clan_deadline deadline;
	struct net_conn *conn;
	struct clan_region *region; /* strict revocation: the region of the cookie; else NULL */
	uint32_t slot;
	bool ended; /* CLAN_EVENT_REVOKED is pending */
	int status;
	void *op;
};

struct net_watch { /* one of our tripwires */
	struct clan_source source;
	struct net_conn *conn;
	uint64_t offset;
	uint32_t bytes;
	uint32_t region;
	bool used;
	bool armed;
};

struct net_fifo { /* cookies that have not been popped: linked lists in one array */
	struct clan_cookie cookie;
	uint32_t next;
};

/* --- regions of ours -------------------------------------------------------------------------- */

/* Invalidates the key that the peer received for the share, and frees it. */
static void key_free(struct clan_share *share)
{
	struct net_key *key = share->carrier;

	if (key != NULL) {
		list_remove(&key->owed.node);
		key->conn->transport->unshare(key);
		free(key);
		share->carrier = NULL;
	}
}

static void write_region(struct net_conn *conn, struct net_owed *owed)
{
	const struct net_key *key = container_of(owed, struct net_key, owed);
	const struct clan_share *share = key->share;
	struct net_region record = {
		.region = (uint16_t)share->number,
		.rights = (uint16_t)share->rights,
		.generation = share->generation,
		.bytes = share->region->bytes,
		.key = key->key,
		.base = key->base,
	};

	net_append_system(conn, NET_REGION, &record, sizeof(record));
}

int net_share(struct clan_conn *base, struct clan_share *share)
{
	struct net_conn *conn = net_conn(base);
	struct net_key *key = calloc(1, sizeof(*key));
	int result;

	if (key == NULL) {
		return -ENOMEM;
	}
	list_init(&key->owed.node);
	key->share = share;
	key->conn = conn;
	result = conn->transport->share(conn, key);
	if (result != 0) {
		free(key);
		return result;
	}
	share->carrier = key;
	net_owe(conn, &key->owed, write_region);
	return 0;
}

static void write_region_end(struct net_conn *conn, struct net_owed *owed)
{
	const struct clan_share *share = container_of(owed, struct net_key, owed)->share;
	struct net_region_answer record = { .region = (uint16_t)share->number,
		.generation = share->generation };

	net_append_system(conn, NET_REGION_END, &record, sizeof(record));
}

int net_unshare(struct clan_conn *base, struct clan_share *share)
{
	struct net_key *key = share->carrier;

	net_owe(net_conn(base), &key->owed, write_region_end);
	return 0;
}

/* Frees the cookie slots of a region that the peer has returned. Returns false if the peer broke
 * the protocol: one of its READs in the region is still being answered. */
static bool free_grants(struct net_conn *conn, const struct clan_share *share)
{
	for (uint32_t i = 0; conn->grants != NULL && i < conn->conn.options.cookies; i++) {
		struct net_grant *grant = &conn->grants[i];

		if (grant->share != share) {
			continue;
		}
		if (grant->reads > 0) {
			return false;
		}
		grant->share = NULL;
		if (grant->state == GRANT_WITH_REGION) {
			grant->state = GRANT_FREE;
		}
	}
	return true;
}

static int region_answered(struct net_conn *conn, const struct net_region_answer *answer)
{
	struct clan_share *share = clan_share_find(&conn->conn, answer->region);

	if (share == NULL || share->generation != answer->generation ||
		share->state != CLAN_SHARE_ASKED ||
		list_is_linked(&((struct net_key *)share->carrier)->owed.node)) {
		return net_broken(conn, 10, "a reply for a region that was not offered");
	}
	if (answer->error != 0) {
		key_free(share);
	}
	clan_share_answered(share, -(int)answer->error);
	return 0;
}

static int region_returned(struct net_conn *conn, const struct net_region_answer *answer)
{
	struct clan_share *share = clan_share_find(&conn->conn, answer->region);

	if (share == NULL || share->generation != answer->generation ||
		share->state != CLAN_SHARE_ENDING ||
		list_is_linked(&((struct net_key *)share->carrier)->owed.node)) {
		return net_broken(conn, 10, "the return of a region that was not requested");
	}
	if (!free_grants(conn, share)) {
		return net_broken(conn, 10, "the return of a region with reads in progress");
	}
	key_free(share);
	clan_share_returned(share);
	return 0;
}

/* --- regions of the peer ---------------------------------------------------------------------- */

static const uint32_t region_edges[NET_REGION_STATE_COUNT] = {
	[NET_REGION_LIVE] = BIT(NET_REGION_LEAVING),
};

static void net_memory_set_region_state(
	struct net_peer_region *region, enum net_peer_region_state state)
{
	GMB_ASSERT((region_edges[region->state] & BIT(state)) != 0);
	region->state = state;
}

static void region_free(struct net_peer_region *region)
{
	region->conn->region_table[region->number] = NULL;
	list_remove(&region->source.node);
	list_remove(&region->owed.node);
	list_remove(&region->node);
	free(region);
}

static void write_region_ok(struct net_conn *conn, struct net_owed *owed)
{
	struct net_peer_region *region = container_of(owed, struct net_peer_region, owed);
	struct net_region_answer record = {
		.region = region->number, .error = region->error, .generation = region->generation
	};

	net_append_system(conn, NET_REGION_OK, &record, sizeof(record));
	if (region->state == NET_REGION_REFUSED) {
		conn->region_count--;
		region_free(region);
	}
}

static void write_region_ended(struct net_conn *conn, struct net_owed *owed)
{
	struct net_peer_region *region = container_of(owed, struct net_peer_region, owed);
	struct net_region_answer record = { .region = region->number,
		.generation = region->generation };

	net_append_system(conn, NET_REGION_ENDED, &record, sizeof(record));
	conn->region_count--;
	region_free(region);
}

/* Called in LEAVING: returns and frees the region if it is unused and the program has received its
 * events. */
static void region_look(struct net_peer_region *region)
{
	struct net_conn *conn = region->conn;

	if (region->state != NET_REGION_LEAVING || region->running > 0 || region->give_live ||
		region->give_leaving) {
		return;
	}
	conn->region_bytes -= region->bytes;
	if (region->asked_back && conn->conn.state == CLAN_OPEN) {
		net_owe(conn, &region->owed, write_region_ended);
	} else {
		conn->region_count--;
		region_free(region);
	}
}

static bool net_memory_give_region_event(struct clan_source *source, struct clan_event *event)
{
	struct net_peer_region *region = container_of(source, struct net_peer_region, source);

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
	region_look(region);
	return false;
}

static struct net_peer_region *net_memory_find_region(const struct net_conn *conn, uint32_t number)
{
	return conn->region_table != NULL && number < CLAN_TABLE_MAX ? conn->region_table[number]
								     : NULL;
}

static uint16_t refuse_region(const struct net_conn *conn, const struct net_region *record)
{
	const struct clan_conn_options *options = &conn->conn.options;

	return record->region >= options->peer_regions_max ||
			       record->bytes > options->peer_region_bytes_max - conn->region_bytes
		       ? EDQUOT
		       : 0;
}

/* REGION: checks O9, and adds the region to the table. A refused region keeps its entry until the
 * answer is sent. */
static int region_offered(struct net_conn *conn, const struct net_region *record)
{
	struct net_peer_region *region;

	/* region_count includes refused regions until their answer is sent. So its limit also
	 * bounds the number of answers that wait to be sent. */
	if (record->region >= CLAN_TABLE_MAX || record->generation == 0 || record->rights == 0 ||
		record->rights > (CLAN_READ | CLAN_WRITE) || record->bytes == 0 ||
		record->base > UINT64_MAX - record->bytes || conn->region_count >= CLAN_TABLE_MAX ||
		net_memory_find_region(conn, record->region) != NULL) {
		return net_broken(conn, 9, "an offer of an invalid region");
	}
	if (conn->region_table == NULL) {
		conn->region_table = calloc(CLAN_TABLE_MAX, sizeof(region));
	}
	region = conn->region_table != NULL ? calloc(1, sizeof(*region)) : NULL;
	if (region == NULL) {
		net_conn_end(conn, -ENOMEM, "not enough memory for a region that the peer offers");
		return -EPROTO;
	}
	conn->region_table[record->region] = region;
	region->conn = conn;
	list_init(&region->owed.node);
	clan_source_init(&region->source, net_memory_give_region_event);
	region->number = record->region;
	region->generation = record->generation;
	region->rights = record->rights;
	region->bytes = record->bytes;
	region->key = record->key;
	region->base = record->base;
	region->error = refuse_region(conn, record);
	region->state = region->error != 0 ? NET_REGION_REFUSED : NET_REGION_LIVE;
	list_push_back(&conn->regions, &region->node);
	conn->region_count++;
	if (region->error == 0) {
		conn->region_bytes += region->bytes;
		region->give_live = true;
		clan_fire(conn->conn.queue, &region->source);
	}
	net_owe(conn, &region->owed, write_region_ok);
	return 0;
}

static void net_memory_region_leaves(struct net_peer_region *region)
{
	net_memory_set_region_state(region, NET_REGION_LEAVING);
	region->give_leaving = true;
	clan_fire(region->conn->conn.queue, &region->source);
}

static int region_asked_back(struct net_conn *conn, const struct net_region_answer *record)
{
	struct net_peer_region *region = net_memory_find_region(conn, record->region);

	if (region == NULL || region->generation != record->generation ||
		region->state != NET_REGION_LIVE || list_is_linked(&region->owed.node)) {
		return net_broken(conn, 10, "a request to return a region that was not shared");
	}
	for (uint32_t i = 0; conn->tickets != NULL && i < conn->ticket_count; i++) {
		if (conn->tickets[i].region == region) {
			conn->tickets[i].cookie.generation = 0;
			conn->tickets[i].region = NULL;
		}
	}
	region->asked_back = true;
	net_memory_region_leaves(region);
	return 0;
}

int net_peer_info(const struct clan_conn *base, uint32_t number, struct clan_peer_region *info)
{
	const struct net_conn *conn = (const struct net_conn *)base;
	const struct net_peer_region *region = net_memory_find_region(conn, number);

	if (region == NULL || region->state == NET_REGION_REFUSED) {
		return -ENOENT;
	}
	info->bytes = region->bytes;
	info->rights = region->rights;
	info->generation = region->generation;
	return 0;
}

/* --- granting --------------------------------------------------------------------------------- */

static void write_grant(struct net_conn *conn, struct net_owed *owed)
{
	const struct net_grant *grant = container_of(owed, struct net_grant, owed);
	struct net_cookie_record record = { .cookie = grant->cookie };

	net_append_system(conn, NET_GRANT, &record, sizeof(record));
}

static void write_revoke(struct net_conn *conn, struct net_owed *owed)
{
	const struct net_grant *grant = container_of(owed, struct net_grant, owed);
	struct net_revoke record = { .slot = grant->cookie.slot,
		.generation = grant->cookie.generation };

	net_append_system(conn, NET_REVOKE, &record, sizeof(record));
}

int net_grant(struct clan_conn *base, struct clan_share *share, struct clan_cookie *cookie)
{
	struct net_conn *conn = net_conn(base);
	uint32_t count = base->options.cookies;
	uint32_t slot = conn->grant_next;
	struct net_grant *grant;
	uint32_t tried = 0;

	if (conn->grants == NULL) {
		conn->grants = calloc(count, sizeof(*conn->grants));
		if (conn->grants == NULL) {
			return -ENOMEM;
		}
		for (uint32_t i = 0; i < count; i++) {
			list_init(&conn->grants[i].owed.node);
		}
	}
	while (conn->grants[slot].state != GRANT_FREE ||
		conn->grants[slot].generation == UINT32_MAX) {
		slot = slot + 1 < count ? slot + 1 : 0;
		if (++tried == count) {
			return -ENOSPC;
		}
	}
	conn->grant_next = slot + 1 < count ? slot + 1 : 0;
	grant = &conn->grants[slot];
	grant->state = GRANT_GIVEN;
	grant->share = share;
	grant->used = false;
	cookie->slot = (uint16_t)slot;
	cookie->generation = ++grant->generation;
	grant->cookie = *cookie;
	net_owe(conn, &grant->owed, write_grant);
	return 0;
}

static struct net_grant *find_grant(struct net_conn *conn, uint32_t slot, uint32_t generation)
{
	return slot < conn->conn.options.cookies && conn->grants != NULL &&
			       conn->grants[slot].generation == generation
		       ? &conn->grants[slot]
		       : NULL;
}

void net_void_cookies(struct clan_conn *base, const struct clan_share *share)
{
	struct net_conn *conn = net_conn(base);

	for (uint32_t i = 0; conn->grants != NULL && i < base->options.cookies; i++) {
		struct net_grant *grant = &conn->grants[i];

		if (grant->state == GRANT_GIVEN && grant->cookie.region == share->number) {
			list_remove(&grant->owed.node);
			grant->state = GRANT_WITH_REGION;
		}
	}
}

bool net_access_find(struct net_conn *conn, struct net_access *access)
{
	struct net_grant *grant = find_grant(conn, access->slot, access->generation);

	if (grant == NULL || grant->state == GRANT_FREE || grant->share == NULL ||
		(grant->cookie.rights & access->right) == 0 ||
		!range_inside(access->offset, access->bytes, grant->cookie.bytes) ||
		((grant->cookie.flags & CLAN_COOKIE_ONCE) != 0 && grant->used)) {
		return false;
	}
	grant->used = true;
	access->grant = grant;
	access->region = grant->cookie.region;
	access->region_offset = grant->cookie.offset + access->offset;
	access->memory = grant->share->region->base + access->region_offset;
	return true;
}

/* --- revoking --------------------------------------------------------------------------------- */

static void net_memory_strict_ended(struct net_revocation *revocation)
{
	if (revocation->region != NULL) {
		revocation->region->strict_count--;
		revocation->region = NULL;
	}
}

static void revocation_free(struct net_revocation *revocation)
{
	net_memory_strict_ended(revocation);
	clan_deadline_clear(&revocation->deadline);
	list_remove(&revocation->source.node);
	list_remove(&revocation->node);
	free(revocation);
}

static bool net_memory_give_revoked(struct clan_source *source, struct clan_event *event)
{
	struct net_revocation *revocation = container_of(source, struct net_revocation, source);

	event->type = CLAN_EVENT_REVOKED;
	event->conn = &revocation->conn->conn;
	event->context = revocation->conn->conn.context;
	event->op = revocation->op;
	event->number = revocation->slot;
	event->status = revocation->status;
	revocation_free(revocation);
	return false;
}

static void net_memory_revocation_end(struct net_revocation *revocation, int status)
{
	struct net_conn *conn = revocation->conn;

	clan_deadline_clear(&revocation->deadline);
	revocation->ended = true;
	revocation->status = status;
	conn->grants[revocation->slot].state = GRANT_FREE;
	net_memory_strict_ended(revocation);
	clan_fire(conn->conn.queue, &revocation->source);
}

/* The peer has not answered a strict revocation in time. Ending the connection ends all its
 * operations, so no further data arrives. */
static void net_memory_strict_expired(struct clan_deadline *deadline)
{
	struct net_revocation *revocation = container_of(deadline, struct net_revocation, deadline);

	net_conn_end(revocation->conn, -ETIMEDOUT, "the peer did not obey a strict revocation");
}

int net_revoke(struct clan_conn *base, const struct clan_cookie *cookie, bool strict, void *op)
{
	struct net_conn *conn = net_conn(base);
	struct net_grant *grant = find_grant(conn, cookie->slot, cookie->generation);
	struct net_revocation *revocation;

	if (grant == NULL || grant->state != GRANT_GIVEN) {
		return grant != NULL && grant->state == GRANT_LEAVING ? -EALREADY : -ESTALE;
	}
	revocation = calloc(1, sizeof(*revocation));
	if (revocation == NULL) {
		return -ENOMEM;
	}
	clan_source_init(&revocation->source, net_memory_give_revoked);
	list_init(&revocation->deadline.node);
	revocation->deadline.expired = net_memory_strict_expired;
	revocation->conn = conn;
	revocation->slot = cookie->slot;
	revocation->op = op;
	list_push_back(&conn->revocations, &revocation->node);
	grant->state = GRANT_LEAVING;
	if (strict) {
		/* The region number comes from our own record, because the peer could have modified
		 * the number in the cookie. */
		revocation->region = clan_share_find(base, grant->cookie.region)->region;
		revocation->region->strict_count++;
		clan_deadline_set(base->queue, &revocation->deadline, STRICT_MS * NS_PER_MS);
	}
	net_owe(conn, &grant->owed, write_revoke);
	return 0;
}

static int revoked_arrived(struct net_conn *conn, const struct net_revoke *record)
{
	struct net_grant *grant = find_grant(conn, record->slot, record->generation);

	if (grant == NULL || grant->state != GRANT_LEAVING || list_is_linked(&grant->owed.node)) {
		return net_broken(conn, 12, "a reply for a cookie that was not revoked");
	}
	if (grant->reads > 0) {
		return net_broken(conn, 12, "the release of a cookie with reads in progress");
	}
	list_for_each(node, &conn->revocations)
	{
		struct net_revocation *revocation = list_entry(node, struct net_revocation, node);

		if (revocation->slot == record->slot && !revocation->ended) {
			net_memory_revocation_end(revocation, 0);
			break;
		}
	}
	return 0;
}

/* --- cookies of the peer ---------------------------------------------------------------------- */

static int make_tickets(struct net_conn *conn)
{
	if (conn->tickets != NULL) {
		return 0;
	}
	conn->tickets = calloc(conn->ticket_count, sizeof(*conn->tickets));
	if (conn->tickets == NULL) {
		net_conn_end(conn, -ENOMEM, "not enough memory for the peer's cookies");
		return -EPROTO;
	}
	for (uint32_t i = 0; i < conn->ticket_count; i++) {
		list_init(&conn->tickets[i].owed.node);
	}
	return 0;
}

static int granted(struct net_conn *conn, const struct clan_cookie *cookie)
{
	struct net_peer_region *region = net_memory_find_region(conn, cookie->region);
	struct net_ticket *ticket;

	if (make_tickets(conn) != 0) {
		return -EPROTO;
	}
	if (cookie->slot >= conn->ticket_count ||
		cookie->generation <= conn->tickets[cookie->slot].generation ||
		conn->tickets[cookie->slot].revoked || region == NULL ||
		region->state != NET_REGION_LIVE || cookie->rights == 0 ||
		(cookie->rights & ~region->rights) != 0 ||
		(cookie->flags & ~CLAN_COOKIE_ONCE) != 0 || cookie->bytes == 0 ||
		cookie->reserved != 0 ||
		!range_inside(cookie->offset, cookie->bytes, region->bytes)) {
		return net_broken(conn, 11, "a grant of an invalid cookie");
	}
	ticket = &conn->tickets[cookie->slot];
	ticket->generation = cookie->generation;
	ticket->cookie = *cookie;
	ticket->region = region;
	return 0;
}

static void write_revoked(struct net_conn *conn, struct net_owed *owed)
{
	struct net_ticket *ticket = container_of(owed, struct net_ticket, owed);
	struct net_revoke record = { .slot = (uint16_t)(ticket - conn->tickets),
		.generation = ticket->generation };

	ticket->revoked = false;
	net_append_system(conn, NET_REVOKED, &record, sizeof(record));
}

/* REVOKE: the peer revokes a cookie. Marks our ticket for it as revoked, so no new put or get uses
 * it. REVOKED is sent when the puts and gets in progress have ended. */
static int revoke_arrived(struct net_conn *conn, const struct net_revoke *record)
{
	struct net_ticket *ticket;

	if (make_tickets(conn) != 0) {
		return -EPROTO;
	}
	/* The GRANT can be missing: the cookie was revoked before its GRANT was written. */
	if (record->slot >= conn->ticket_count || record->generation == 0 ||
		record->generation < conn->tickets[record->slot].generation ||
		conn->tickets[record->slot].revoked) {
		return net_broken(conn, 11, "a revocation of a cookie that was not granted");
	}
	ticket = &conn->tickets[record->slot];
	ticket->generation = record->generation;
	ticket->cookie.generation = 0;
	ticket->revoked = true;
	if (ticket->running == 0) {
		net_owe(conn, &ticket->owed, write_revoked);
	}
	return 0;
}

void net_ticket_released(
	struct net_conn *conn, struct net_ticket *ticket, struct net_peer_region *region)
{
	region->running--;
	if (--ticket->running == 0 && ticket->revoked && conn->conn.state == CLAN_OPEN) {
		net_owe(conn, &ticket->owed, write_revoked);
	}
	region_look(region);
}

int net_ticket_find(struct net_conn *conn, const struct clan_cookie *cookie, uint32_t right,
	uint64_t offset, uint64_t bytes, struct net_ticket **ticket_out)
{
	struct net_ticket *ticket;

	if (conn->tickets == NULL || cookie->slot >= conn->ticket_count ||
		conn->tickets[cookie->slot].cookie.generation != cookie->generation) {
		return -ESTALE;
	}
	ticket = &conn->tickets[cookie->slot];
	if ((ticket->cookie.rights & right) == 0) {
		return -EACCES;
	}
	if (!range_inside(offset, bytes, ticket->cookie.bytes)) {
		return -ERANGE;
	}
	*ticket_out = ticket;
	return 0;
}

/* --- tripwires -------------------------------------------------------------------------------- */

static bool net_memory_give_tripped(struct clan_source *source, struct clan_event *event)
{
	struct net_watch *watch = container_of(source, struct net_watch, source);

	event->type = CLAN_EVENT_TRIPPED;
	event->conn = &watch->conn->conn;
	event->context = watch->conn->conn.context;
	event->number = (uint32_t)(watch - watch->conn->watches);
	return false;
}

int net_put_arrived(struct net_conn *conn, const struct net_put *record)
{
	uint64_t end;

	if (!checked_add_u64(record->offset, record->bytes, &end)) {
		return net_broken(conn, 8, "a write to an invalid position");
	}
	for (uint32_t i = 0; conn->watches != NULL && i < conn->conn.options.tripwires; i++) {
		struct net_watch *watch = &conn->watches[i];

		if (watch->armed && watch->region == record->region && watch->offset < end &&
			watch->offset + watch->bytes > record->offset) {
			watch->armed = false;
			clan_fire(conn->conn.queue, &watch->source);
		}
	}
	return 0;
}

int net_tripwire(struct clan_conn *base, const struct clan_share *share, uint64_t offset,
	uint32_t bytes, uint32_t *number_out)
{
	struct net_conn *conn = net_conn(base);
	struct net_watch *watch;
	uint32_t number = 0;

	if (conn->watches == NULL) {
		conn->watches = calloc(base->options.tripwires, sizeof(*conn->watches));
		if (conn->watches == NULL) {
			return -ENOMEM;
		}
	}
	while (number < base->options.tripwires && conn->watches[number].used) {
		number++;
	}
	if (number == base->options.tripwires) {
		return -ENOSPC;
	}
	watch = &conn->watches[number];
	*watch = (struct net_watch){ .conn = conn,
		.offset = offset,
		.bytes = bytes,
		.region = share->number,
		.used = true,
		.armed = true };
	clan_source_init(&watch->source, net_memory_give_tripped);
	*number_out = number;
	return 0;
}

static struct net_watch *find_watch(const struct net_conn *conn, uint32_t number)
{
	return conn->watches != NULL && number < conn->conn.options.tripwires &&
			       conn->watches[number].used
		       ? &conn->watches[number]
		       : NULL;
}

int net_rearm(struct clan_conn *base, uint32_t number)
{
	struct net_watch *watch = find_watch(net_conn(base), number);

	if (watch == NULL) {
		return -ENOENT;
	}
	if (!list_is_linked(&watch->source.node)) {
		watch->armed = true;
	}
	return 0;
}

int net_tripwire_remove(struct clan_conn *base, uint32_t number)
{
	struct net_watch *watch = find_watch(net_conn(base), number);

	if (watch == NULL) {
		return -ENOENT;
	}
	list_remove(&watch->source.node);
	watch->armed = false;
	watch->used = false;
	return 0;
}

/* --- cookie queues ---------------------------------------------------------------------------- */

static int net_memory_make_fifo(struct net_conn *conn)
{
	conn->fifo = calloc(conn->ticket_count, sizeof(*conn->fifo));
	if (conn->fifo == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < conn->ticket_count; i++) {
		conn->fifo[i].next = i + 1 < conn->ticket_count ? i + 1 : FIFO_NONE;
	}
	for (uint32_t i = 0; i < CLAN_COOKIE_QUEUES; i++) {
		conn->fifo_first[i] = FIFO_NONE;
	}
	return 0;
}

static int net_memory_cookie_arrived(struct net_conn *conn, const struct net_cookie_record *record)
{
	uint32_t entry;

	if (record->queue >= CLAN_COOKIE_QUEUES || conn->fifo_count == conn->ticket_count) {
		return net_broken(conn, 13, "more cookies than announced");
	}
	if (conn->fifo == NULL && net_memory_make_fifo(conn) != 0) {
		net_conn_end(conn, -ENOMEM, "not enough memory for cookies that the peer sent");
		return -EPROTO;
	}
	entry = conn->fifo_free;
	conn->fifo_free = conn->fifo[entry].next;
	conn->fifo[entry] = (struct net_fifo){ .cookie = record->cookie, .next = FIFO_NONE };
	if (conn->fifo_first[record->queue] == FIFO_NONE) {
		conn->fifo_first[record->queue] = entry;
	} else {
		conn->fifo[conn->fifo_last[record->queue]].next = entry;
	}
	conn->fifo_last[record->queue] = entry;
	conn->fifo_count++;
	clan_conn_fire_ready(&conn->conn, CLAN_READY_COOKIES);
	return 0;
}

bool net_cookie_room(struct net_conn *conn)
{
	return conn->pushed - conn->peer_popped < conn->conn.options.cookies &&
	       !list_is_empty(&conn->free_sends);
}

int net_cookie_push(struct clan_conn *base, uint32_t number, const struct clan_cookie *cookie)
{
	struct net_conn *conn = net_conn(base);
	const struct net_grant *grant = find_grant(conn, cookie->slot, cookie->generation);
	struct net_cookie_record record = { .queue = (uint16_t)number, .cookie = *cookie };
	struct iovec iov = { .iov_base = &record, .iov_len = sizeof(record) };

	if (grant == NULL || grant->state != GRANT_GIVEN) {
		return -ESTALE;
	}
	if (conn->pushed - conn->peer_popped >= base->options.cookies || !net_write_owed(conn) ||
		!net_append(conn, NET_SYSTEM, NET_COOKIE, &iov, sizeof(record))) {
		base->enabled |= CLAN_READY_PUSH_COOKIE;
		net_changed(conn);
		return -EAGAIN;
	}
	conn->pushed++;
	return 0;
}

int net_cookie_pop(struct clan_conn *base, uint32_t number, struct clan_cookie *cookie_out)
{
	struct net_conn *conn = net_conn(base);
	uint32_t entry = conn->fifo == NULL ? FIFO_NONE : conn->fifo_first[number];

	if (entry == FIFO_NONE) {
		base->enabled |= CLAN_READY_COOKIES;
		return -EAGAIN;
	}
	*cookie_out = conn->fifo[entry].cookie;
	conn->fifo_first[number] = conn->fifo[entry].next;
	conn->fifo[entry].next = conn->fifo_free;
	conn->fifo_free = entry;
	conn->fifo_count--;
	conn->popped++;
	conn->must_tell = true;
	net_changed(conn);
	return 0;
}

/* --- what the peer sends ---------------------------------------------------------------------- */

union memory_record {
	struct net_region region;
	struct net_region_answer answer;
	struct net_revoke revoke;
	struct net_cookie_record cookie;
	struct net_put put;
};

static bool reserved_is_zero(enum net_system_type type, const union memory_record *record)
{
	switch ((int)type) {
	case NET_REGION_END:
	case NET_REGION_ENDED:
		return record->answer.error == 0;
	case NET_GRANT:
		return (record->cookie.queue | record->cookie.reserved |
			       record->cookie.reserved2) == 0;
	case NET_COOKIE:
		return (record->cookie.reserved | record->cookie.reserved2) == 0;
	case NET_REVOKE:
	case NET_REVOKED:
		return record->revoke.reserved == 0;
	case NET_PUT:
		return (record->put.reserved | record->put.reserved2) == 0;
	default:
		return true;
	}
}

int net_memory_record(struct net_conn *conn, enum net_system_type type, const uint8_t *data)
{
	union memory_record record;

	/* The caller has checked that the record has this length and lies within the frame. */
	memcpy(&record, data, net_system_bytes(type));
	if (!reserved_is_zero(type, &record)) {
		return net_broken(conn, 5, "reserved bytes of a record are not 0");
	}
	switch (type) {
	case NET_REGION:
		return region_offered(conn, &record.region);
	case NET_REGION_OK:
		return region_answered(conn, &record.answer);
	case NET_REGION_END:
		return region_asked_back(conn, &record.answer);
	case NET_REGION_ENDED:
		return region_returned(conn, &record.answer);
	case NET_GRANT:
		return granted(conn, &record.cookie.cookie);
	case NET_REVOKE:
		return revoke_arrived(conn, &record.revoke);
	case NET_REVOKED:
		return revoked_arrived(conn, &record.revoke);
	case NET_COOKIE:
		return net_memory_cookie_arrived(conn, &record.cookie);
	case NET_PUT: /* reports a put; needed only on ofi, where the transport reports none */
		if (conn->transport->sees_puts) {
			break;
		}
		return net_put_arrived(conn, &record.put);
	case NET_HELLO:
	case NET_WELCOME:
	case NET_REFUSED:
	case NET_END:
	case NET_SYSTEM_TYPE_COUNT:
		break;
	}
	return net_broken(conn, 6, "a record has an invalid type");
}

/* --- the end ---------------------------------------------------------------------------------- */

/* The endpoint is closed, so the peer's operations have ended: strict revocations succeed. */
void net_memory_end(struct net_conn *conn)
{
	list_for_each(node, &conn->conn.shares)
	{
		key_free(list_entry(node, struct clan_share, conn_node));
	}
	list_for_each(node, &conn->revocations)
	{
		struct net_revocation *revocation = list_entry(node, struct net_revocation, node);

		if (!revocation->ended) {
			net_memory_revocation_end(
				revocation, revocation->region == NULL ? -ENOTCONN : 0);
		}
	}
	list_for_each(node, &conn->regions)
	{
		struct net_peer_region *region = list_entry(node, struct net_peer_region, node);

		list_remove(&region->owed.node);
		if (region->state == NET_REGION_LIVE && conn->conn.state == CLAN_LOST) {
			net_memory_region_leaves(region);
		}
	}
}

void net_memory_close(struct net_conn *conn)
{
	list_for_each(node, &conn->revocations)
	{
		revocation_free(list_entry(node, struct net_revocation, node));
	}
	for (uint32_t i = 0; conn->watches != NULL && i < conn->conn.options.tripwires; i++) {
		if (conn->watches[i].used) {
			list_remove(&conn->watches[i].source.node);
			conn->watches[i].armed = false;
		}
	}
	list_for_each(node, &conn->regions)
	{
		list_remove(&list_entry(node, struct net_peer_region, node)->source.node);
	}
}

void net_memory_free(struct net_conn *conn)
{
	list_for_each(node, &conn->regions)
	{
		region_free(list_entry(node, struct net_peer_region, node));
	}
	list_for_each(node, &conn->revocations)
	{
		revocation_free(list_entry(node, struct net_revocation, node));
	}
	free(conn->region_table);
	free(conn->grants);
	free(conn->tickets);
	free(conn->watches);
	free(conn->fifo);
}
