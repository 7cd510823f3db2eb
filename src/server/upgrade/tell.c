// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/tell.h"

#include <errno.h>
#include <string.h>

#include "server/lease/leases.h"
#include "server/upgrade/added.h"

void upgrade_tell_init(struct upgrade_tell *tell, int channel)
{
	*tell = (struct upgrade_tell){ .channel = channel };
}

bool upgrade_tell_waits(struct upgrade_tell *tell, int rc)
{
	tell->needs_room = rc == -EAGAIN;
	return rc == -EAGAIN || rc == -ETOOMANYREFS;
}

/* --- sockets and disks ----------------------------------------------------------------------- */

/* Sends the next message of upgrade_tell_all(), unless an earlier call has sent it. */
static int send_next(struct upgrade_tell *tell, const struct upgrade_message *message)
{
	int rc = 0;

	if (tell->next_index == tell->told_count) {
		rc = upgrade_send_now(tell->channel, message);
		tell->told_count += rc == 0;
	}
	tell->next_index++;
	return rc;
}

static int send_listener(struct upgrade_tell *tell, const struct listener *listener, uint32_t flags)
{
	struct upgrade_message message = { .type = UPGRADE_LISTENER };
	int rc = 0;

	message.flags = flags | (listener->unlink_path != NULL ? UPGRADE_HAS_PATH : 0U) |
			(listener->of_manager ? UPGRADE_OF_MANAGER : 0U);
	message.device = listener->unlink_device;
	message.inode = listener->unlink_inode;
	for (uint32_t i = 0; rc == 0 && i < listener->fd_count; i++) {
		message.fd = listener->fds[i];
		rc = send_next(tell, &message);
	}
	return rc;
}

static int send_export(struct upgrade_tell *tell, const struct export *export)
{
	struct upgrade_message message = {
		.type = UPGRADE_EXPORT,
		.session_count = atomic_load_explicit(&export->connections, memory_order_relaxed),
		.epoch = export->epoch,
		.record = { .export = export->name, .export_bytes = export->name_bytes },
	};
	struct store_claim claim;

	if (store_handover(export->store, &claim) != NULL) {
		return -EIO; /* the obstacle arose after upgrade_offer_check() */
	}
	message.fd = claim.fd;
	message.hold = claim.hold;
	memcpy(message.identity, claim.identity, sizeof(message.identity));
	return send_next(tell, &message);
}

/* Sends an export that the new process does not find in its configuration: one that a command has
 * added, or a snapshot. */
static int send_added(
	struct upgrade_tell *tell, const struct served_export *served, enum upgrade_type type)
{
	char strings[UPGRADE_STRINGS_BYTES_MAX];
	struct upgrade_message message = { .type = type, .fd = -1, .strings = strings };
	int bytes = upgrade_added_write(&served->about, strings);

	if (bytes < 0) {
		return bytes;
	}
	message.strings_bytes = (uint32_t)bytes;
	return send_next(tell, &message);
}

static int send_served_export(struct upgrade_tell *tell, const struct served_export *served)
{
	int rc;

	/* A snapshot is not sent as a disk, because the new process finds it on its parent's disk.
	 * Only the settings of its export are sent. */
	if (served->parent != NULL) {
		return served->about.settings.count > 0 ? send_added(tell, served, UPGRADE_SNAPSHOT)
							: 0;
	}
	rc = send_export(tell, served->export);
	return rc == 0 && served->is_added ? send_added(tell, served, UPGRADE_ADDED) : rc;
}

/* If the socket is full, the caller repeats the call. Each call goes through all messages from the
 * first one; send_next() skips those that were sent before. */
int upgrade_tell_all(struct upgrade_tell *tell, const struct upgrade_sockets *sockets,
	const struct exports *exports, const struct state_folder *state)
{
	const struct upgrade_message folder = { .type = UPGRADE_STATE, .fd = state->fd };
	const struct upgrade_message end = { .type = UPGRADE_PREPARE, .fd = -1 };
	int rc = 0;

	tell->next_index = 0;
	if (state->fd >= 0) {
		rc = send_next(tell, &folder);
	}
	for (uint32_t i = 0; rc == 0 && i < sockets->listener_count; i++) {
		rc = send_listener(tell, &sockets->listeners[i], 0);
	}
	if (rc == 0 && sockets->control != NULL) {
		rc = send_listener(tell, sockets->control, UPGRADE_IS_CONTROL);
	}
	if (rc == 0 && sockets->metrics != NULL) {
		rc = send_listener(tell, sockets->metrics, UPGRADE_IS_METRICS);
	}
	for (uint32_t i = 0; rc == 0 && i < exports->count; i++) {
		rc = send_served_export(tell, exports->list[i]);
	}
	return rc ?: send_next(tell, &end);
}

/* --- sessions -------------------------------------------------------------------------------- */

/* Sends the next packet of a session's received data. */
static int tell_send_piece(struct upgrade_tell *tell, const struct session_piece *pieces)
{
	struct upgrade_message message = {
		.type = UPGRADE_RECEIVED, .fd = -1, .offset = tell->later_told
	};
	uint32_t skip = tell->later_told;
	int rc;

	while (skip >= pieces->count) {
		skip -= pieces->count;
		pieces++;
	}
	message.received.bytes = pieces->bytes + skip;
	message.received.count = MIN(pieces->count - skip, (uint32_t)UPGRADE_RECEIVED_BYTES_MAX);
	rc = upgrade_send_now(tell->channel, &message);
	tell->later_told += rc == 0 ? message.received.count : 0;
	return rc;
}

/* The session whose received data was sent last has ended since. Makes the new process discard the
 * data, by a message with offset 0 and no data. */
static int take_back(struct upgrade_tell *tell)
{
	const struct upgrade_message nothing = { .type = UPGRADE_RECEIVED, .fd = -1 };
	int rc = upgrade_send_now(tell->channel, &nothing);

	tell->later_told = rc == 0 ? 0 : tell->later_told;
	return rc;
}

static int send_received(struct upgrade_tell *tell, const struct session_record *record)
{
	uint32_t bytes = 0;
	int rc = 0;

	for (int i = 0; i < ENGINE_HANDOVER_LATER_PIECES; i++) {
		bytes += record->later[i].count;
	}
	if (tell->later_told > 0 && tell->telling_id != record->id) {
		rc = take_back(tell);
	}
	if (rc == 0) {
		tell->telling_id = record->id;
	}
	while (rc == 0 && tell->later_told < bytes) {
		rc = tell_send_piece(tell, record->later);
	}
	return rc;
}

static int send_lease(void *context, const char *text)
{
	struct upgrade_tell *tell = context;
	const struct upgrade_message message = {
		.type = UPGRADE_LEASE, .fd = -1, .text = text, .text_bytes = (uint32_t)strlen(text)
	};
	int rc = 0;

	if (tell->lease_index == tell->leases_told) {
		rc = upgrade_send_now(tell->channel, &message);
		tell->leases_told += rc == 0;
	}
	tell->lease_index++;
	return rc;
}

/* Like upgrade_tell_all(), a later call skips what was sent. */
int upgrade_tell_leases(struct upgrade_tell *tell, struct leases *leases)
{
	tell->lease_index = 0;
	return leases_tell(leases, send_lease, tell);
}

int upgrade_tell_session(void *context, const struct session_record *record)
{
	struct upgrade_tell *tell = context;
	const struct upgrade_message message = {
		.type = UPGRADE_SESSION, .fd = record->fd, .record = *record
	};
	int rc = send_received(tell, record) ?: upgrade_send_now(tell->channel, &message);

	if (rc == 0) {
		tell->handed_over_count++;
		tell->later_told = 0;
	}
	return rc;
}

int upgrade_tell_end(struct upgrade_tell *tell, uint32_t ended_count)
{
	const struct upgrade_message end = { .type = UPGRADE_SESSIONS_END,
		.fd = -1,
		.handed_over_count = tell->handed_over_count,
		.ended_count = ended_count };

	return upgrade_send_now(tell->channel, &end);
}
