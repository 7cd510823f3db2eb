// SPDX-License-Identifier: Apache-2.0
/* The option FENCE, and leases: docs/protocol/nbd.md §2. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "nbd/server/session.h"

static uint32_t reply_of(int rc)
{
	switch (-rc) {
	case 0:
		return NBD_REP_ACK;
	case EACCES:
		return NBD_REP_ERR_POLICY;
	case EINVAL:
		return NBD_REP_ERR_INVALID;
	case ESRCH:
		return NBD_REP_ERR_UNKNOWN;
	case EINPROGRESS:
	case EBUSY:
	case EAGAIN:
		return NBD_REP_ERR_IN_PROGRESS;
	default:
		return NBD_REP_ERR_PLATFORM;
	}
}

uint32_t handshake_fence(struct nbd_session *session, char text[FENCE_TEXT_BYTES])
{
	static const enum fence_action actions[] = {
		[NBD_FENCE_LOOK] = FENCE_LOOK,
		[NBD_FENCE_FENCE] = FENCE_NODE,
		[NBD_FENCE_UNFENCE] = FENCE_RELEASE,
	};
	const struct handshake *handshake = session->handshake;
	uint32_t bytes = handshake->option_bytes;
	char node[FENCE_NAME_BYTES];
	struct be32 action;

	if (bytes <= sizeof(action) || bytes - sizeof(action) >= sizeof(node)) {
		snprintf(text, FENCE_TEXT_BYTES, "FENCE has an action and the name of a node");
		return NBD_REP_ERR_INVALID;
	}
	bytes -= (uint32_t)sizeof(action);
	memcpy(&action, handshake->option_data, sizeof(action));
	memcpy(node, handshake->option_data + sizeof(action), bytes);
	node[bytes] = '\0';
	if (be32_get(action) >= ARRAY_COUNT(actions) || strlen(node) != bytes) {
		snprintf(text, FENCE_TEXT_BYTES, "FENCE with an unknown action or a zero byte");
		return NBD_REP_ERR_INVALID;
	}
	return reply_of(session_fence(&session->base, actions[be32_get(action)], node, text));
}

bool handshake_lease(struct nbd_session *session, struct option_string query)
{
	static const char kind[] = NBD_CONTEXT_LEASE "=";
	uint32_t at = sizeof(kind) - 1;
	struct lease_want want;

	if (query.length < at || memcmp(query.bytes, kind, at) != 0 ||
		!lease_want_parse(query.bytes + at, query.length - at, &want)) {
		return false;
	}
	session->base.lease_want = want;
	return true;
}
