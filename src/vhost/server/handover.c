// SPDX-License-Identifier: Apache-2.0
/*
 * State of a session for the process that takes it over (docs/protocol/upgrade.md): the features,
 * the files of guest memory, of the log and of the record of requests in flight, the queues with
 * their events, and a message that was received in part.
 *
 * A session at rest has no request in flight and no event that is read or written. Requests of a
 * killed server that were not repeated yet are in the record, where the other process finds them.
 * Called by the engine during an upgrade, in both processes; the state is untrusted.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/rights.h"
#include "engine/handover.h"
#include "vhost/server/session.h"

enum vhost_state_flag {
	VHOST_STATE_WRITETHROUGH = 1 << 0,
	VHOST_STATE_LOG = 1 << 1,    /* the log of dirty pages is mapped */
	VHOST_STATE_RECORD = 1 << 2, /* the record of requests in flight is mapped */
	VHOST_STATE_BACK = 1 << 3,   /* there is a channel to the front end */
	VHOST_STATE_WANTS_ACK = 1 << 4,
	VHOST_STATE_FLAGS = (1 << 5) - 1,
};

enum vhost_queue_flag {
	VHOST_QUEUE_ENABLED = 1 << 0,
	VHOST_QUEUE_RUNNING = 1 << 1,
	VHOST_QUEUE_BROKEN = 1 << 2,
	VHOST_QUEUE_ADDRESS = 1 << 3,
	VHOST_QUEUE_KICK = 1 << 4,
	VHOST_QUEUE_CALL = 1 << 5,
	VHOST_QUEUE_ERROR = 1 << 6,
	VHOST_QUEUE_MISSES = 1 << 7, /* misses_memory */
	VHOST_QUEUE_FLAGS = (1 << 8) - 1,
};

struct vhost_wire_state {
	struct be32 flags;
	struct be32 device_status;
	struct be64 features;
	struct be64 protocol_features;
	struct be64 log_offset;
	struct be64 log_bytes;
	struct be64 record_offset;
	struct be64 record_bytes;
	struct be32 record_queues;
	struct be32 record_entries;
	struct be32 waits;    /* enum vhost_wait */
	struct be32 draining; /* with VHOST_WAITS_FOR_QUEUE: index of the queue */
	struct be32 region_count;
	struct be32 queue_count;
	/* of the current message: bytes received, and its descriptors */
	struct be32 message_got;
	struct be32 message_fds;
	uint8_t message_head[VHOST_HEAD_BYTES]; /* in the byte order of the machine */
} __attribute__((packed));

struct vhost_wire_region {
	struct be64 guest_address;
	struct be64 bytes;
	struct be64 user_address;
	struct be64 file_offset;
} __attribute__((packed));

struct vhost_wire_queue {
	struct be32 index;
	struct be32 flags;
	struct be32 entries;
	struct be32 avail_index;
	struct be32 used_index;
	struct be32 address_flags;
	struct be64 desc;
	struct be64 used;
	struct be64 avail;
	struct be64 log;
} __attribute__((packed));

enum {
	STATE_BYTES_MAX =
		sizeof(struct vhost_wire_state) + VHOST_SLOTS * sizeof(struct vhost_wire_region) +
		VHOST_SERVER_QUEUES * sizeof(struct vhost_wire_queue) + VHOST_PAYLOAD_BYTES_MAX,
	/* log, record and channel; kick, call and error of each queue */
	STATE_FDS_MAX = VHOST_SLOTS + 3 + VHOST_FDS_MAX + 3 * VHOST_SERVER_QUEUES,
};

_Static_assert((int)STATE_BYTES_MAX <= (int)ENGINE_HANDOVER_BYTES_MAX, "the state fits");
_Static_assert((int)STATE_FDS_MAX <= (int)ENGINE_HANDOVER_FDS_MAX, "the descriptors fit");

/* --- the process that hands over ------------------------------------------------------------- */

bool vhost_session_can_hand_over(const struct session *base)
{
	return true;
}

void vhost_session_pause(struct session *base)
{
	struct vhost_session *session = vhost_session_of(base);

	vhost_events_pause(session);
	vhost_session_put_back(session);
	(void)vhost_lanes_return(session);
}

enum session_rest vhost_session_rest(struct session *base)
{
	struct vhost_session *session = vhost_session_of(base);

	if (!list_is_empty(&session->requests) || !list_is_empty(&session->finished) ||
		vhost_lanes_are_out(session) || !vhost_events_rest(session)) {
		return SESSION_IS_BUSY;
	}
	return session->reply.bytes > 0 ? SESSION_WAITS_FOR_PEER : SESSION_RESTS;
}

/* Writes the state, and collects its descriptors in their order. */
struct state_writer {
	uint8_t *at;
	struct session_record *record;
};

static void put_bytes(struct state_writer *out, const void *bytes, size_t count)
{
	memcpy(out->at, bytes, count);
	out->at += count;
}

/* Returns whether there is a descriptor. */
static bool put_fd(struct state_writer *out, int fd)
{
	if (fd >= 0) {
		out->record->fds[out->record->fd_count++] = fd;
	}
	return fd >= 0;
}

static bool put_event(struct state_writer *out, const struct vhost_event *event)
{
	return event != NULL && put_fd(out, event->file.fd);
}

static void put_region(struct state_writer *out, const struct vhost_guest_region *region)
{
	const struct vhost_wire_region wire = {
		.guest_address = be64_make(region->about.guest_address),
		.bytes = be64_make(region->about.bytes),
		.user_address = be64_make(region->about.user_address),
		.file_offset = be64_make(region->about.file_offset),
	};

	put_bytes(out, &wire, sizeof(wire));
	(void)put_fd(out, region->fd);
}

/* Returns whether the front end has set anything of the queue. */
static bool is_in_use(const struct vhost_queue *queue)
{
	return queue->entries > 0 || queue->has_address || queue->is_enabled ||
	       queue->avail_index != 0 || queue->kick != NULL || queue->call != NULL ||
	       queue->error != NULL;
}

static void put_queue(struct state_writer *out, const struct vhost_queue *queue)
{
	uint32_t flags = (queue->is_enabled ? (uint32_t)VHOST_QUEUE_ENABLED : 0) |
			 (queue->is_running ? (uint32_t)VHOST_QUEUE_RUNNING : 0) |
			 (queue->is_broken ? (uint32_t)VHOST_QUEUE_BROKEN : 0) |
			 (queue->misses_memory ? (uint32_t)VHOST_QUEUE_MISSES : 0) |
			 (queue->has_address ? (uint32_t)VHOST_QUEUE_ADDRESS : 0);
	struct vhost_wire_queue wire = {
		.index = be32_make(queue->index),
		.entries = be32_make(queue->entries),
		.avail_index = be32_make(queue->avail_index),
		.used_index = be32_make(queue->used_index),
		.address_flags = be32_make(queue->address.flags),
		.desc = be64_make(queue->address.desc),
		.used = be64_make(queue->address.used),
		.avail = be64_make(queue->address.avail),
		.log = be64_make(queue->address.log),
	};

	/* in the order of the descriptors */
	flags |= put_event(out, queue->kick) ? (uint32_t)VHOST_QUEUE_KICK : 0;
	flags |= put_event(out, queue->call) ? (uint32_t)VHOST_QUEUE_CALL : 0;
	flags |= put_event(out, queue->error) ? (uint32_t)VHOST_QUEUE_ERROR : 0;
	wire.flags = be32_make(flags);
	put_bytes(out, &wire, sizeof(wire));
}

static uint32_t state_flags(const struct vhost_session *session)
{
	return (session->is_writethrough ? (uint32_t)VHOST_STATE_WRITETHROUGH : 0) |
	       (session->log.fd >= 0 ? (uint32_t)VHOST_STATE_LOG : 0) |
	       (session->inflight.fd >= 0 ? (uint32_t)VHOST_STATE_RECORD : 0) |
	       (session->back_fd >= 0 ? (uint32_t)VHOST_STATE_BACK : 0) |
	       (session->wants_ack ? (uint32_t)VHOST_STATE_WANTS_ACK : 0);
}

void vhost_session_hand_over(struct session *base, uint8_t *bytes, struct session_record *record)
{
	struct vhost_session *session = vhost_session_of(base);
	const struct vhost_message *message = &session->message;
	const struct vhost_memory *memory = session->memory;
	struct state_writer out = { .at = bytes + sizeof(struct vhost_wire_state),
		.record = record };
	uint32_t queue_count = 0;
	struct vhost_wire_state wire;

	GMB_ASSERT(vhost_session_rest(base) == SESSION_RESTS);
	for (uint32_t i = 0; memory != NULL && i < memory->count; i++) {
		put_region(&out, memory->regions[i]);
	}
	(void)put_fd(&out, session->log.fd);
	(void)put_fd(&out, session->inflight.fd);
	(void)put_fd(&out, session->back_fd);
	for (uint32_t i = 0; i < message->fd_count; i++) {
		(void)put_fd(&out, message->fds[i]);
	}
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		if (is_in_use(&session->queues[i])) {
			put_queue(&out, &session->queues[i]);
			queue_count++;
		}
	}
	if (message->got > VHOST_HEAD_BYTES) {
		put_bytes(&out, message->payload, message->got - VHOST_HEAD_BYTES);
	}
	wire = (struct vhost_wire_state){
		.flags = be32_make(state_flags(session)),
		.device_status = be32_make(session->device_status),
		.features = be64_make(session->features),
		.protocol_features = be64_make(session->protocol_features),
		.log_offset = be64_make(session->log.offset),
		.log_bytes = be64_make(session->log.mapping.bytes),
		.record_offset = be64_make(session->inflight.offset),
		.record_bytes = be64_make(session->inflight.mapping.bytes),
		.record_queues = be32_make(session->inflight_queues),
		.record_entries = be32_make(session->inflight_entries),
		.waits = be32_make(session->waits),
		.draining = be32_make(session->draining != NULL ? session->draining->index : 0),
		.region_count = be32_make(memory != NULL ? memory->count : 0),
		.queue_count = be32_make(queue_count),
		.message_got = be32_make(message->got),
		.message_fds = be32_make(message->fd_count),
	};
	memcpy(wire.message_head, &message->head, sizeof(wire.message_head));
	memcpy(bytes, &wire, sizeof(wire));
	record->byte_count = (uint32_t)(out.at - bytes);
	record->fd = session->file.fd;
}

/* --- the process that takes over ------------------------------------------------------------- */

/* The rest of a state. */
struct state_reader {
	const struct session_record *record;
	const uint8_t *at;
	uint32_t fd_index;
};

/* Returns whether the members of the state are in their ranges, and its parts have its length. */
static bool check_state(const struct vhost_wire_state *wire, const struct session_record *record)
{
	uint32_t got = be32_get(wire->message_got);
	uint32_t payload = got > VHOST_HEAD_BYTES ? got - VHOST_HEAD_BYTES : 0;
	uint32_t region_count = be32_get(wire->region_count);
	uint32_t queue_count = be32_get(wire->queue_count);
	struct vhost_head head;

	memcpy(&head, wire->message_head, sizeof(head));
	return (be32_get(wire->flags) & ~(uint32_t)VHOST_STATE_FLAGS) == 0 &&
	       be32_get(wire->device_status) <= UINT8_MAX &&
	       (be64_get(wire->features) & ~VHOST_SERVER_FEATURES) == 0 &&
	       (be64_get(wire->protocol_features) & ~VHOST_SERVER_PROTOCOL_FEATURES) == 0 &&
	       be32_get(wire->record_queues) <= VHOST_SERVER_QUEUES &&
	       be32_get(wire->record_entries) <= VHOST_ENTRIES_MAX &&
	       be32_get(wire->waits) <= VHOST_WAITS_FOR_EARLIER &&
	       be32_get(wire->draining) < VHOST_SERVER_QUEUES && region_count <= VHOST_SLOTS &&
	       queue_count <= VHOST_SERVER_QUEUES && be32_get(wire->message_fds) <= VHOST_FDS_MAX &&
	       (got < VHOST_HEAD_BYTES ||
		       (head.bytes <= VHOST_PAYLOAD_BYTES_MAX && payload < head.bytes)) &&
	       record->byte_count ==
		       sizeof(*wire) + region_count * sizeof(struct vhost_wire_region) +
			       queue_count * sizeof(struct vhost_wire_queue) + payload;
}

/* Returns a duplicate of the next descriptor, or -1. */
static int pop_fd(struct state_reader *in)
{
	return in->fd_index < in->record->fd_count
		       ? fcntl(in->record->fds[in->fd_index++], F_DUPFD_CLOEXEC, 0)
		       : -1;
}

static void pop_bytes(struct state_reader *in, void *out, size_t count)
{
	memcpy(out, in->at, count);
	in->at += count;
}

static int adopt_memory(struct vhost_session *session, struct state_reader *in, uint32_t count)
{
	struct vhost_guest_region *regions[VHOST_SLOTS];
	int rc = 0;
	uint32_t done = 0;

	while (rc == 0 && done < count) {
		struct vhost_wire_region wire;
		struct vhost_region about;
		int fd = pop_fd(in);

		pop_bytes(in, &wire, sizeof(wire));
		about = (struct vhost_region){
			.guest_address = be64_get(wire.guest_address),
			.bytes = be64_get(wire.bytes),
			.user_address = be64_get(wire.user_address),
			.file_offset = be64_get(wire.file_offset),
		};
		rc = fd < 0 ? -EBADF : vhost_region_create(session, &about, fd, &regions[done]);
		done += rc == 0;
	}
	if (rc == 0 && count > 0) {
		session->memory = vhost_memory_create(regions, count);
		return session->memory != NULL ? 0 : -ENOMEM;
	}
	while (done > 0) {
		vhost_region_put(regions[--done]);
	}
	return rc;
}

static int adopt_file(const struct vhost_session *session, struct vhost_file *file,
	struct state_reader *in, bool is_there, struct be64 offset, struct be64 bytes)
{
	int fd = is_there ? pop_fd(in) : -1;

	return !is_there ? 0
	       : fd < 0	 ? -EBADF
			 : vhost_file_map(session, file, fd, be64_get(offset), be64_get(bytes));
}

static int adopt_files(
	struct vhost_session *session, struct state_reader *in, const struct vhost_wire_state *wire)
{
	uint32_t flags = be32_get(wire->flags);
	int rc = adopt_file(session, &session->log, in, (flags & VHOST_STATE_LOG) != 0,
			 wire->log_offset, wire->log_bytes)
			 ?: adopt_file(session, &session->inflight, in,
				    (flags & VHOST_STATE_RECORD) != 0, wire->record_offset,
				    wire->record_bytes);

	session->inflight_queues = (uint16_t)be32_get(wire->record_queues);
	session->inflight_entries = (uint16_t)be32_get(wire->record_entries);
	if (rc == 0 && (flags & VHOST_STATE_RECORD) != 0 &&
		(!is_aligned((uintptr_t)session->inflight.mapping.base, 8) ||
			session->inflight.mapping.bytes <
				session->inflight_queues *
					inflight_queue_bytes(session->inflight_entries))) {
		rc = -EPROTO;
	}
	if (rc == 0 && (flags & VHOST_STATE_BACK) != 0) {
		session->back_fd = pop_fd(in);
		session->config_due = true; /* in case that the size has changed */
		rc = session->back_fd < 0 ? -EBADF : 0;
	}
	return rc;
}

/* Takes the event of a queue if the flag is set. */
static int adopt_event(struct vhost_queue *queue, struct state_reader *in, bool is_there,
	bool is_kick, struct vhost_event **event)
{
	int fd = is_there ? pop_fd(in) : -1;

	return !is_there ? 0 : fd < 0 ? -EBADF : vhost_event_create(queue, fd, is_kick, event);
}

static int adopt_queue(struct vhost_session *session, struct state_reader *in)
{
	struct vhost_wire_queue wire;
	struct vhost_queue *queue;
	const char *rule;
	uint32_t flags;
	uint32_t entries;
	int rc;

	pop_bytes(in, &wire, sizeof(wire));
	flags = be32_get(wire.flags);
	entries = be32_get(wire.entries);
	if (be32_get(wire.index) >= VHOST_SERVER_QUEUES ||
		(flags & ~(uint32_t)VHOST_QUEUE_FLAGS) != 0 || entries > VHOST_ENTRIES_MAX ||
		(entries > 0 && !is_power_of_two(entries)) ||
		((flags & VHOST_QUEUE_RUNNING) != 0 && entries == 0)) {
		return -EPROTO;
	}
	queue = &session->queues[be32_get(wire.index)];
	if (is_in_use(queue)) {
		return -EPROTO;
	}
	queue->entries = entries;
	queue->is_enabled = (flags & VHOST_QUEUE_ENABLED) != 0;
	queue->is_running = (flags & VHOST_QUEUE_RUNNING) != 0;
	queue->is_broken = (flags & VHOST_QUEUE_BROKEN) != 0;
	queue->misses_memory = (flags & VHOST_QUEUE_MISSES) != 0;
	queue->has_address = (flags & VHOST_QUEUE_ADDRESS) != 0;
	queue->avail_index = (uint16_t)be32_get(wire.avail_index);
	queue->avail_seen = queue->avail_index;
	queue->used_index = (uint16_t)be32_get(wire.used_index);
	queue->address = (struct vhost_vring_address){
		.index = queue->index,
		.flags = be32_get(wire.address_flags),
		.desc = be64_get(wire.desc),
		.used = be64_get(wire.used),
		.avail = be64_get(wire.avail),
		.log = be64_get(wire.log),
	};
	rc = adopt_event(queue, in, (flags & VHOST_QUEUE_KICK) != 0, true, &queue->kick)
		     ?: adopt_event(queue, in, (flags & VHOST_QUEUE_CALL) != 0, false, &queue->call)
		     ?: adopt_event(queue, in, (flags & VHOST_QUEUE_ERROR) != 0, false,
				&queue->error);
	if (rc < 0) {
		return rc;
	}
	vhost_queue_locate(queue);
	rule = queue->is_running && !vhost_queue_has_failed(queue) ? vhost_inflight_continue(queue)
								   : NULL;
	if (rule != NULL) {
		queue->is_broken = true;
		queue->misses_memory = false;
	}
	return 0;
}

/* Takes the message that was received in part. */
static int adopt_message(
	struct vhost_session *session, struct state_reader *in, const struct vhost_wire_state *wire)
{
	struct vhost_message *message = &session->message;

	memcpy(&message->head, wire->message_head, sizeof(message->head));
	message->got = be32_get(wire->message_got);
	while (message->fd_count < be32_get(wire->message_fds)) {
		int fd = pop_fd(in);

		if (fd < 0) {
			return -EBADF;
		}
		message->fds[message->fd_count++] = fd;
	}
	return 0;
}

static int adopt_state(struct vhost_session *session, const struct session_record *record,
	const struct vhost_wire_state *wire)
{
	uint32_t flags = be32_get(wire->flags);
	struct state_reader in = { .record = record, .at = record->bytes + sizeof(*wire) };
	int rc;

	session->rests = true;
	session->features = be64_get(wire->features);
	session->protocol_features = be64_get(wire->protocol_features);
	session->device_status = (uint8_t)be32_get(wire->device_status);
	session->is_writethrough = (flags & VHOST_STATE_WRITETHROUGH) != 0;
	session->wants_ack = (flags & VHOST_STATE_WANTS_ACK) != 0;
	session->waits = (enum vhost_wait)be32_get(wire->waits);
	session->draining = &session->queues[be32_get(wire->draining)];
	rc = adopt_memory(session, &in, be32_get(wire->region_count))
		     ?: adopt_files(session, &in, wire) ?: adopt_message(session, &in, wire);
	for (uint32_t i = 0; rc == 0 && i < be32_get(wire->queue_count); i++) {
		rc = adopt_queue(session, &in);
	}
	if (rc == 0 && session->message.got > VHOST_HEAD_BYTES) {
		pop_bytes(&in, session->message.payload, session->message.got - VHOST_HEAD_BYTES);
	}
	return rc != 0 ? rc : in.fd_index == record->fd_count ? 0 : -EPROTO;
}

int vhost_session_adopt(
	void *service, const struct endpoint *endpoint, const struct session_record *record)
{
	struct vhost_wire_state wire;
	struct vhost_session *session;
	const char *text;
	char *name;
	int rc;

	if (record->byte_count < sizeof(wire) || record->later[0].count > 0) {
		return -EPROTO;
	}
	memcpy(&wire, record->bytes, sizeof(wire));
	if (!check_state(&wire, record)) {
		return -EPROTO;
	}
	name = strndup(record->export, record->export_bytes);
	session = name != NULL ? vhost_session_create(service, endpoint) : NULL;
	if (session == NULL) {
		free(name);
		return -ENOMEM;
	}
	session->export_name = name;
	rights_permit(endpoint->fd);
	rc = adopt_state(session, record, &wire);
	if (rc < 0) {
		text = strerror(-rc);
	} else {
		/* An upgrade begins only when the disks are available, so no session waits. */
		rc = session_adopt(&session->base, record);
		text = session_choose_text(&session->base, rc == -EAGAIN ? -ETIMEDOUT : rc);
	}
	if (rc < 0) {
		session->base.handed_over = true;
		session_terminate(&session->base, text);
	} else {
		session_set_state(&session->base, SESSION_READY);
	}
	return 0;
}
