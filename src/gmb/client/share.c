// SPDX-License-Identifier: Apache-2.0
/* A client connection: the buffers that its server can access. A buffer goes from SHARE_NONE to
 * SHARE_ASKED, then to SHARE_LIVE, or through SHARE_GRANTED if the server does not map regions. */
#include <errno.h>

#include "gmb/client/client.h"

bool native_carrier_shares(struct hub_user *user, uint32_t buffer, bool end)
{
	struct native_carrier *carrier = native_carrier_of_user(user);
	enum share_state state = carrier->shares[buffer].state;

	if (carrier->conn == NULL || state == SHARE_NONE || state == SHARE_REFUSED) {
		return false;
	}
	if (end && carrier->state != NATIVE_CLOSING) {
		native_carrier_fail(carrier, -ECONNRESET,
			"closed because another connection that shares its memory was lost");
	}
	return true;
}

void native_carrier_unshare(struct hub_user *user, uint32_t buffer)
{
	struct native_carrier *carrier = native_carrier_of_user(user);
	enum share_state state = carrier->shares[buffer].state;

	if (carrier->state == NATIVE_READY && (state == SHARE_LIVE || state == SHARE_GRANTED)) {
		/* The event UNSHARED follows. If the region was unshared before, this returns an
		 * error, which is ignored. */
		(void)!clan_region_unshare(carrier->conn, carrier->hub->buffers[buffer].region);
	}
}

/* Sends the region's cookie to the server. */
static void gmb_share_tell(struct native_carrier *carrier, struct share *share)
{
	/* A failure means that the ring is full, or that the connection has ended, which an event
	 * reports. */
	if (clan_send(carrier->conn, CLAN_BULK, NATIVE_REGION, &share->cookie,
		    sizeof(share->cookie)) == 0) {
		share->state = SHARE_LIVE;
	}
}

enum hub_access native_share(struct hub_user *user, uint32_t number)
{
	struct native_carrier *carrier = native_carrier_of_user(user);
	struct hub_buffer *buffer = &carrier->hub->buffers[number];
	struct share *share = &carrier->shares[number];
	int result;

	if (share->state == SHARE_REFUSED) {
		return HUB_ACCESS_NEVER;
	}
	if (buffer->tainted) {
		return HUB_ACCESS_LATER;
	}
	if (share->state == SHARE_NONE) {
		result = clan_region_share(carrier->conn, buffer->region, CLAN_READ | CLAN_WRITE);
		share->state = result == 0 ? SHARE_ASKED : SHARE_REFUSED;
	}
	if (share->state == SHARE_GRANTED) {
		gmb_share_tell(carrier, share);
	}
	return share->state == SHARE_LIVE      ? HUB_ACCESS_YES
	       : share->state == SHARE_REFUSED ? HUB_ACCESS_NEVER
					       : HUB_ACCESS_LATER;
}

/* For a server that does not map regions: grants a cookie for the whole buffer. */
static void gmb_share_grant(struct native_carrier *carrier, uint32_t number)
{
	const struct hub_buffer *buffer = &carrier->hub->buffers[number];
	struct share *share = &carrier->shares[number];
	int result = -EFBIG;

	if (buffer->bytes <= UINT32_MAX) {
		result = clan_cookie_grant(carrier->conn, buffer->region, 0,
			(uint32_t)buffer->bytes, CLAN_READ | CLAN_WRITE, 0, &share->cookie);
	}
	share->state = result == 0 ? SHARE_GRANTED : SHARE_REFUSED;
	if (result == 0) {
		share->generation = share->cookie.generation;
		gmb_share_tell(carrier, share);
	}
}

void native_shared(struct native_carrier *carrier, const struct clan_event *event)
{
	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		struct share *share = &carrier->shares[i];

		if (share->state == SHARE_ASKED &&
			carrier->hub->buffers[i].region == event->region) {
			share->state = event->status == 0 ? SHARE_LIVE : SHARE_REFUSED;
			share->number = event->number;
			share->generation = event->generation;
			if (event->status == 0 && carrier->needs_cookies) {
				gmb_share_grant(carrier, i);
			}
		}
	}
}

void native_unshared(struct native_carrier *carrier, const struct clan_event *event)
{
	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		if (carrier->hub->buffers[i].region == event->region) {
			carrier->shares[i].state = SHARE_NONE;
		}
	}
}
