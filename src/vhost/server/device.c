// SPDX-License-Identifier: Apache-2.0
/*
 * The messages of the front end: features, configuration space, memory, queues and the record of
 * requests in flight.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/work.h"
#include "vhost/server/session.h"

enum {
	PHYSICAL_BLOCK_MAX = 4096, /* larger blocks confuse some firmware */
	DISCARD_SECTORS_MAX = 1 << 22,
};

/* --- features and configuration --------------------------------------------------------------- */

static uint64_t device_features(const struct vhost_session *session)
{
	uint32_t caps = store_info(session->base.export->store)->caps;
	bool writes = (session->base.rights & ENGINE_RIGHT_WRITE) != 0;

	return VHOST_SERVER_FEATURES &
	       ~(writes ? VIRTIO_BLK_RO : VIRTIO_BLK_WRITE_ZEROES | VIRTIO_BLK_DISCARD) &
	       ~((caps & STORE_CAP_TRIM) == 0 ? VIRTIO_BLK_DISCARD : 0);
}

static void fill_config(const struct vhost_session *session, struct blk_config *config)
{
	const struct store_info *info = store_info(session->base.export->store);
	uint32_t physical = MIN(info->block_preferred, (uint32_t)PHYSICAL_BLOCK_MAX);
	uint64_t segment =
		session->base.engine->limits.payload_bytes_max / VHOST_PAYLOAD_SEGMENTS_MAX;

	*config = (struct blk_config){
		.sectors = store_size(session->base.export->store) / BLK_SECTOR_BYTES,
		/* so that no request is longer than the engine's limit */
		.segment_bytes_max = (uint32_t)MAX(align_down(segment, 4096), (uint64_t)4096),
		.segments_max = VHOST_PAYLOAD_SEGMENTS_MAX,
		.block_bytes = BLK_SECTOR_BYTES,
		.physical_block_exp = (uint8_t)__builtin_ctz(physical / BLK_SECTOR_BYTES),
		.min_io_blocks = (uint16_t)(physical / BLK_SECTOR_BYTES),
		.opt_io_blocks = info->block_preferred / BLK_SECTOR_BYTES,
		.writeback = !session->is_writethrough,
		.queue_count = VHOST_SERVER_QUEUES,
		.discard_sectors_max = DISCARD_SECTORS_MAX,
		.discard_segments_max = 1,
		.discard_alignment_sectors = physical / BLK_SECTOR_BYTES,
		.zero_sectors_max = DISCARD_SECTORS_MAX,
		.zero_segments_max = 1,
		.zero_may_unmap = 1,
	};
}

/* Copies the head of GET_CONFIG or SET_CONFIG. Returns false if the message has a wrong size. */
static bool config_head(const struct vhost_message *message, struct vhost_config *head)
{
	if (message->head.bytes < sizeof(*head)) {
		return false;
	}
	memcpy(head, message->payload, sizeof(*head));
	return message->head.bytes - sizeof(*head) >= head->bytes &&
	       range_inside(head->offset, head->bytes, VHOST_CONFIG_BYTES_MAX);
}

static const char *get_config(struct vhost_session *session)
{
	uint8_t space[VHOST_CONFIG_BYTES_MAX] = { 0 };
	uint8_t answer[sizeof(struct vhost_config) + VHOST_CONFIG_BYTES_MAX];
	struct blk_config config;
	struct vhost_config head;

	if (!config_head(&session->message, &head)) {
		return "GET_CONFIG of a range outside of the configuration";
	}
	fill_config(session, &config);
	memcpy(space, &config, BLK_CONFIG_BYTES);
	memcpy(answer, &head, sizeof(head));
	memcpy(answer + sizeof(head), space + head.offset, head.bytes);
	vhost_message_reply(session, answer, (uint32_t)sizeof(head) + head.bytes);
	return NULL;
}

static const char *set_config(struct vhost_session *session)
{
	uint8_t value = session->message.payload[sizeof(struct vhost_config)];
	struct vhost_config head;

	if (!config_head(&session->message, &head) ||
		head.offset != offsetof(struct blk_config, writeback) || head.bytes != 1 ||
		value > 1) {
		return "SET_CONFIG of something other than the cache mode";
	}
	session->is_writethrough = value == 0;
	return NULL;
}

static const char *set_features(struct vhost_session *session)
{
	uint64_t features;

	memcpy(&features, session->message.payload, sizeof(features));
	if ((features & ~device_features(session)) != 0) {
		return "SET_FEATURES with a feature that was not offered";
	}
	session->features = features;
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		struct vhost_queue *queue = &session->queues[i];

		/* without protocol features, there is no message that enables a queue */
		queue->is_enabled |= (features & VHOST_PROTOCOL_FEATURES) == 0;
	}
	return NULL;
}

static const char *set_protocol_features(struct vhost_session *session)
{
	uint64_t features;

	memcpy(&features, session->message.payload, sizeof(features));
	if ((features & ~VHOST_SERVER_PROTOCOL_FEATURES) != 0) {
		return "SET_PROTOCOL_FEATURES with a feature that was not offered";
	}
	session->protocol_features = features;
	return NULL;
}

static const char *get_number(struct vhost_session *session)
{
	uint32_t request = session->message.head.request;
	uint64_t number = request == VHOST_GET_FEATURES		   ? device_features(session)
			  : request == VHOST_GET_PROTOCOL_FEATURES ? VHOST_SERVER_PROTOCOL_FEATURES
			  : request == VHOST_GET_QUEUE_NUM	   ? (uint64_t)VHOST_SERVER_QUEUES
			  : request == VHOST_GET_MAX_MEM_SLOTS	   ? (uint64_t)VHOST_SLOTS
								   : session->device_status;

	vhost_message_reply(session, &number, sizeof(number));
	return NULL;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Uses another table of guest memory. Requests in flight keep theirs. */
static const char *use_memory(
	struct vhost_session *session, struct vhost_guest_region **regions, uint32_t count)
{
	uint64_t bytes = 0;
	struct vhost_memory *memory;

	for (uint32_t i = 0; i < count; i++) {
		bytes += regions[i]->about.bytes; /* each is at most VHOST_MEMORY_BYTES_MAX */
	}
	if (bytes > VHOST_MEMORY_BYTES_MAX) {
		for (uint32_t i = 0; i < count; i++) {
			vhost_region_put(regions[i]);
		}
		return "its guest memory exceeds the server's limit of 8 TiB";
	}
	memory = vhost_memory_create(regions, count);
	if (memory == NULL) {
		return "the server is out of memory";
	}
	vhost_memory_put(session->memory);
	session->memory = memory;
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		vhost_queue_locate(&session->queues[i]);
	}
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		vhost_queue_try_again(&session->queues[i]);
		vhost_queue_start(&session->queues[i]);
	}
	return NULL;
}

static const char *vhost_memory_text(int error)
{
	switch (-error) {
	case EPERM:
		return "its guest memory is not a memfd and not on tmpfs or hugetlbfs; use "
		       "memory-backend-memfd,share=on";
	case ERANGE:
		return "a region of its guest memory exceeds the file";
	case EINVAL:
		return "the addresses of a region of guest memory overflow";
	case E2BIG:
		return "a region of guest memory exceeds the server's limit of 8 TiB";
	case EMFILE:
		return "too many regions of its earlier memory are in use by requests in flight";
	case ENOSPC:
		return "the memory of all front ends would exceed the server's limit of 4096 "
		       "regions or 64 TiB";
	default:
		return "the server cannot map the guest memory";
	}
}

/* Creates a region from descriptor number i of the message. Returns NULL and the reason if it is
 * rejected. */
static struct vhost_guest_region *region_take(struct vhost_session *session,
	const struct vhost_region *about, uint32_t i, const char **rule)
{
	struct vhost_guest_region *region = NULL;
	int fd = vhost_message_take_fd(session, i);
	int rc;

	if (fd < 0) {
		*rule = "a region of guest memory has no descriptor";
		return NULL;
	}
	rc = vhost_region_create(session, about, fd, &region);
	*rule = rc < 0 ? vhost_memory_text(rc) : NULL;
	return rc < 0 ? NULL : region;
}

static const char *set_memory(struct vhost_session *session)
{
	struct vhost_guest_region *regions[VHOST_REGIONS_TABLE_MAX];
	const struct vhost_message *message = &session->message;
	struct vhost_memory_table table = { 0 };
	const char *rule = NULL;
	uint32_t count = 0;

	memcpy(&table, message->payload, MIN((size_t)message->head.bytes, sizeof(table)));
	if (table.count > VHOST_REGIONS_TABLE_MAX ||
		message->head.bytes < offsetof(struct vhost_memory_table, regions) +
					      table.count * sizeof(table.regions[0])) {
		return "SET_MEM_TABLE has a wrong size";
	}
	while (rule == NULL && count < table.count) {
		regions[count] = region_take(session, &table.regions[count], count, &rule);
		count += rule == NULL;
	}
	if (rule == NULL) {
		return use_memory(session, regions, count);
	}
	while (count > 0) {
		vhost_region_put(regions[--count]);
	}
	return rule;
}

/* Copies the regions of the current table, except for the one with the number `without`. */
static uint32_t copy_regions(
	struct vhost_session *session, struct vhost_guest_region **regions, uint32_t without)
{
	uint32_t count = 0;

	for (uint32_t i = 0; session->memory != NULL && i < session->memory->count; i++) {
		if (i != without) {
			regions[count] = session->memory->regions[i];
			regions[count++]->users++;
		}
	}
	return count;
}

static const char *add_region(struct vhost_session *session)
{
	struct vhost_guest_region *regions[VHOST_SLOTS];
	struct vhost_memory_region message;
	struct vhost_guest_region *region;
	const char *rule;
	uint32_t count;

	memcpy(&message, session->message.payload, sizeof(message));
	if (session->memory != NULL && session->memory->count == VHOST_SLOTS) {
		return "ADD_MEM_REG, and all memory slots are in use";
	}
	region = region_take(session, &message.region, 0, &rule);
	if (region == NULL) {
		return rule;
	}
	count = copy_regions(session, regions, UINT32_MAX);
	regions[count++] = region;
	return use_memory(session, regions, count);
}

static const char *remove_region(struct vhost_session *session)
{
	struct vhost_guest_region *regions[VHOST_SLOTS];
	struct vhost_memory_region message;

	memcpy(&message, session->message.payload, sizeof(message));
	for (uint32_t i = 0; session->memory != NULL && i < session->memory->count; i++) {
		const struct vhost_region *about = &session->memory->regions[i]->about;

		if (about->guest_address == message.region.guest_address &&
			about->user_address == message.region.user_address &&
			about->bytes == message.region.bytes) {
			return use_memory(session, regions, copy_regions(session, regions, i));
		}
	}
	return "REM_MEM_REG of an unknown region";
}

int vhost_file_map(const struct vhost_session *session, struct vhost_file *file, int fd,
	uint64_t offset, uint64_t bytes)
{
	struct mapping created;
	int rc = mapping_create(fd, offset, bytes, &created);

	if (rc < 0) {
		dispose_fd(fd, session->base.peer.credentials.uid, false);
		return rc;
	}
	vhost_file_unmap(file);
	*file = (struct vhost_file){ .mapping = created, .fd = fd, .offset = offset };
	return 0;
}

void vhost_file_unmap(struct vhost_file *file)
{
	mapping_destroy(&file->mapping);
	if (file->fd >= 0) {
		dispose(&(struct disposal){ .fds = &file->fd, .fd_count = 1 });
	}
	*file = (struct vhost_file){ .fd = -1 };
}

/* Maps the file of descriptor 0 of the message. */
static const char *map_file(struct vhost_session *session, struct vhost_file *file, uint64_t offset,
	uint64_t bytes, const char *rule)
{
	int fd = vhost_message_take_fd(session, 0);

	return fd >= 0 && vhost_file_map(session, file, fd, offset, bytes) == 0 ? NULL : rule;
}

static const char *set_log(struct vhost_session *session)
{
	struct vhost_log message;
	const char *rule;
	uint64_t none = 0;

	memcpy(&message, session->message.payload, sizeof(message));
	rule = map_file(session, &session->log, message.file_offset, message.bytes,
		"the file of SET_LOG_BASE cannot be mapped");
	if (rule == NULL && (session->protocol_features & VHOST_PROTOCOL_LOG_SHMFD) != 0) {
		vhost_message_reply(session, &none, sizeof(none));
	}
	return rule;
}

/* --- the record of requests in flight --------------------------------------------------------- */

static bool inflight_is_valid(const struct vhost_inflight *message)
{
	return message->queue_count > 0 && message->queue_count <= VHOST_SERVER_QUEUES &&
	       message->queue_entries > 0 && message->queue_entries <= VHOST_ENTRIES_MAX;
}

/* Creates a zeroed file for the record. Returns its descriptor or -1. */
static int create_record(uint64_t bytes)
{
	int fd = memfd_create("gmblock-vhost-inflight", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd >= 0 &&
		(ftruncate(fd, (off_t)bytes) != 0 ||
			fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static const char *get_inflight(struct vhost_session *session)
{
	struct vhost_inflight message = { 0 };

	memcpy(&message, session->message.payload, sizeof(message));
	if (!inflight_is_valid(&message)) {
		return "GET_INFLIGHT_FD with too many queues or entries";
	}
	message.bytes = message.queue_count * inflight_queue_bytes(message.queue_entries);
	message.file_offset = 0;
	if (session->inflight_fd >= 0) {
		close(session->inflight_fd);
	}
	session->inflight_fd = create_record(message.bytes);
	if (session->inflight_fd < 0) {
		return "the server is out of memory for a record of requests in flight";
	}
	vhost_message_reply(session, &message, sizeof(message));
	session->reply.fd = session->inflight_fd;
	return NULL;
}

/* Before the requests in the record are repeated, an earlier session of the same front end has to
 * end: its requests could write to memory that the guest has used again since, and to the rings.
 * The record is the takeover token, because a front end that has lost its connection gives it to
 * the next session. */
static void end_earlier_session(struct vhost_session *session)
{
	struct session *base = &session->base;
	struct stat status = { 0 };
	int rc = fstat(session->inflight.fd, &status);
	const uint64_t token[] = { status.st_dev, status.st_ino, session->inflight.offset };

	GMB_ASSERT(rc == 0);	       /* it is a file in memory, see mapping_create() */
	takeover_leave(&base->member); /* the token of the previous record */
	session_takeover_join(base, base->export, (const uint8_t *)token, sizeof(token));
	session->waits = VHOST_WAITS_FOR_EARLIER; /* vhost_device_drained() continues */
}

static const char *set_inflight(struct vhost_session *session)
{
	struct vhost_inflight message = { 0 };
	const char *rule;

	memcpy(&message, session->message.payload, sizeof(message));
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		if (session->queues[i].is_running) {
			return "SET_INFLIGHT_FD while a queue is in use";
		}
	}
	if (!inflight_is_valid(&message) ||
		message.bytes < message.queue_count * inflight_queue_bytes(message.queue_entries)) {
		return "SET_INFLIGHT_FD with a wrong size";
	}
	rule = map_file(session, &session->inflight, message.file_offset, message.bytes,
		"the file of SET_INFLIGHT_FD cannot be mapped");
	if (rule == NULL && !is_aligned((uintptr_t)session->inflight.mapping.base, 8)) {
		vhost_file_unmap(&session->inflight);
		rule = "the record of SET_INFLIGHT_FD is not aligned";
	}
	if (rule == NULL) { /* otherwise the session keeps the record that it has */
		session->inflight_queues = message.queue_count;
		session->inflight_entries = message.queue_entries;
		end_earlier_session(session);
	}
	return rule;
}

/* --- queues ----------------------------------------------------------------------------------- */

/* Returns the number at the beginning of the payload. */
static uint32_t queue_index(const struct vhost_session *session)
{
	uint32_t index;

	memcpy(&index, session->message.payload, sizeof(index));
	return index;
}

/* Returns the queue of a message with handler.names_queue. */
static struct vhost_queue *vhost_queue_of(struct vhost_session *session)
{
	return &session->queues[queue_index(session)];
}

static uint32_t vring_number(const struct vhost_session *session)
{
	struct vhost_vring_state state;

	memcpy(&state, session->message.payload, sizeof(state));
	return state.number;
}

static const char *set_vring_num(struct vhost_session *session)
{
	uint32_t entries = vring_number(session);
	struct vhost_queue *queue = vhost_queue_of(session);

	if (queue->is_running || queue->inflight_count > 0) {
		return "SET_VRING_NUM of a queue in use";
	}
	if (!is_power_of_two(entries) || entries > VHOST_ENTRIES_MAX) {
		return "the number of entries of a queue is not a power of two up to 1024";
	}
	queue->entries = entries;
	vhost_queue_locate(queue);
	return NULL;
}

static const char *set_vring_address(struct vhost_session *session)
{
	struct vhost_queue *queue = vhost_queue_of(session);

	memcpy(&queue->address, session->message.payload, sizeof(queue->address));
	queue->has_address = true;
	vhost_queue_locate(queue);
	if (queue->entries > 0 && session->memory != NULL && !queue->is_mapped) {
		return "the rings of a queue are not in guest memory";
	}
	vhost_queue_start(queue);
	return NULL;
}

static const char *set_vring_base(struct vhost_session *session)
{
	struct vhost_queue *queue = vhost_queue_of(session);

	if (queue->is_running) {
		return "SET_VRING_BASE of a queue in use";
	}
	queue->avail_index = (uint16_t)vring_number(session);
	queue->avail_seen = queue->avail_index;
	return NULL;
}

static const char *get_vring_base(struct vhost_session *session)
{
	session->draining = vhost_queue_of(session);
	session->waits = VHOST_WAITS_FOR_QUEUE; /* vhost_device_drained() replies */
	return NULL;
}

static const char *set_vring_enable(struct vhost_session *session)
{
	struct vhost_queue *queue = vhost_queue_of(session);

	queue->is_enabled = vring_number(session) != 0;
	vhost_queue_start(queue);
	return NULL;
}

/* SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR. */
static const char *set_vring_event(struct vhost_session *session)
{
	uint32_t request = session->message.head.request;
	bool is_kick = request == VHOST_SET_VRING_KICK;
	struct vhost_event **event;
	struct vhost_queue *queue;
	uint64_t number;
	int fd;
	int rc;

	memcpy(&number, session->message.payload, sizeof(number));
	if ((number & VHOST_VRING_INDEX_MASK) >= VHOST_SERVER_QUEUES) {
		return "a message names a queue that does not exist";
	}
	queue = &session->queues[number & VHOST_VRING_INDEX_MASK];
	fd = (number & VHOST_VRING_NO_FD) != 0 ? -1 : vhost_message_take_fd(session, 0);
	event = is_kick				  ? &queue->kick
		: request == VHOST_SET_VRING_CALL ? &queue->call
						  : &queue->error;
	vhost_event_drop(event, false); /* a queue that runs signals the new one */
	if (fd < 0) {
		return is_kick ? "a queue without an eventfd for kicks would have to be polled"
			       : NULL;
	}
	rc = vhost_event_create(queue, fd, is_kick, event);
	if (rc < 0) {
		return rc == -EINVAL   ? "the descriptor of a queue's event is not an eventfd"
		       : rc == -EMFILE ? "the front end does not read its eventfds"
				       : "the server is out of memory";
	}
	if (is_kick) {
		vhost_queue_start(queue);
	} else if (request == VHOST_SET_VRING_CALL && queue->is_running) {
		vhost_event_signal(queue->call);
	}
	return NULL;
}

/* --- resets and waiting ----------------------------------------------------------------------- */

static const char *reset_device(struct vhost_session *session)
{
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		session->queues[i].is_enabled = false;
	}
	session->waits = VHOST_WAITS_FOR_ALL;
	return NULL;
}

static const char *set_status(struct vhost_session *session)
{
	session->device_status = session->message.payload[0];
	return session->device_status == 0 ? reset_device(session) : NULL;
}

/* Returns whether no request is in flight. */
static bool all_are_drained(struct vhost_session *session)
{
	bool drained = true;

	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		if (!vhost_queue_is_drained(&session->queues[i])) {
			(void)vhost_queue_take(&session->queues[i]);
			drained = false;
		}
	}
	return drained;
}

bool vhost_device_drained(struct vhost_session *session)
{
	struct takeover_member *member = &session->base.member;
	struct vhost_queue *queue = session->draining;
	uint64_t ok = 0;

	switch (session->waits) {
	case VHOST_WAITS_NOT:
		return true;
	case VHOST_WAITS_FOR_QUEUE: {
		struct vhost_vring_state state = { .index = queue->index };

		if (!vhost_queue_is_drained(queue)) {
			(void)vhost_queue_take(queue);
			return false;
		}
		state.number = queue->avail_index;
		vhost_queue_stop(queue);
		vhost_message_reply(session, &state, sizeof(state));
		break;
	}
	case VHOST_WAITS_FOR_ALL:
		if (!all_are_drained(session)) {
			return false;
		}
		/* The queues keep their positions: QEMU 7.2 resets the status before it asks for
		 * them with GET_VRING_BASE. SET_VRING_BASE precedes the next start. */
		for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
			vhost_queue_stop(&session->queues[i]);
		}
		session->device_status = 0;
		break;
	case VHOST_WAITS_FOR_EARLIER:
		if (session_takeover_replace(&session->base, session->base.export,
			    (const uint8_t *)member->token, member->token_bytes)) {
			return false;
		}
		break;
	}
	if (session->wants_ack && session->waits != VHOST_WAITS_FOR_QUEUE) {
		vhost_message_reply(session, &ok, sizeof(ok));
	}
	session->waits = VHOST_WAITS_NOT;
	return true;
}

/* --- the channel to the front end ------------------------------------------------------------- */

static const char *set_back_channel(struct vhost_session *session)
{
	int fd = vhost_message_take_fd(session, 0);
	socklen_t bytes = sizeof(int);
	int family = 0;
	int type = 0;

	/* only of sockets, getsockopt() does not reach a file system that could block */
	if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) != 0 ||
		getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || family != AF_UNIX ||
		type != SOCK_STREAM) {
		if (fd >= 0) {
			dispose_fd(fd, session->base.peer.credentials.uid, false);
		}
		return "the descriptor of SET_BACKEND_REQ_FD is not a Unix stream socket";
	}
	if (session->back_fd >= 0) {
		dispose_fd(fd, session->base.peer.credentials.uid, false);
		return "a second SET_BACKEND_REQ_FD";
	}
	session->back_fd = fd;
	vhost_message_tell_config(session);
	return NULL;
}

/* --- the table of messages -------------------------------------------------------------------- */

static const char *ignore(struct vhost_session *session)
{
	return NULL;
}

/* bytes: minimum size of the payload. names_queue: which begins with the number of a queue. */
static const struct {
	const char *(*take)(struct vhost_session *session);
	uint32_t bytes;
	bool names_queue;
} handlers[VHOST_REQUEST_COUNT] = {
	[VHOST_GET_FEATURES] = { get_number, 0 },
	[VHOST_SET_FEATURES] = { set_features, sizeof(uint64_t) },
	[VHOST_SET_OWNER] = { ignore, 0 },
	[VHOST_RESET_OWNER] = { reset_device, 0 },
	[VHOST_SET_MEM_TABLE] = { set_memory, offsetof(struct vhost_memory_table, regions) },
	[VHOST_SET_LOG_BASE] = { set_log, sizeof(struct vhost_log) },
	[VHOST_SET_LOG_FD] = { ignore, 0 },
	[VHOST_SET_VRING_NUM] = { set_vring_num, sizeof(struct vhost_vring_state), true },
	[VHOST_SET_VRING_ADDR] = { set_vring_address, sizeof(struct vhost_vring_address), true },
	[VHOST_SET_VRING_BASE] = { set_vring_base, sizeof(struct vhost_vring_state), true },
	[VHOST_GET_VRING_BASE] = { get_vring_base, sizeof(struct vhost_vring_state), true },
	[VHOST_SET_VRING_KICK] = { set_vring_event, sizeof(uint64_t) },
	[VHOST_SET_VRING_CALL] = { set_vring_event, sizeof(uint64_t) },
	[VHOST_SET_VRING_ERR] = { set_vring_event, sizeof(uint64_t) },
	[VHOST_GET_PROTOCOL_FEATURES] = { get_number, 0 },
	[VHOST_SET_PROTOCOL_FEATURES] = { set_protocol_features, sizeof(uint64_t) },
	[VHOST_GET_QUEUE_NUM] = { get_number, 0 },
	[VHOST_SET_VRING_ENABLE] = { set_vring_enable, sizeof(struct vhost_vring_state), true },
	[VHOST_SET_BACK_REQ_FD] = { set_back_channel, 0 },
	[VHOST_GET_CONFIG] = { get_config, sizeof(struct vhost_config) },
	[VHOST_SET_CONFIG] = { set_config, sizeof(struct vhost_config) + 1 },
	[VHOST_GET_INFLIGHT_FD] = { get_inflight, sizeof(struct vhost_inflight) },
	[VHOST_SET_INFLIGHT_FD] = { set_inflight, sizeof(struct vhost_inflight) },
	[VHOST_RESET_DEVICE] = { reset_device, 0 },
	[VHOST_GET_MAX_MEM_SLOTS] = { get_number, 0 },
	[VHOST_ADD_MEM_REG] = { add_region, sizeof(struct vhost_memory_region) },
	[VHOST_REM_MEM_REG] = { remove_region, sizeof(struct vhost_memory_region) },
	[VHOST_SET_STATUS] = { set_status, sizeof(uint64_t) },
	[VHOST_GET_STATUS] = { get_number, 0 },
};

bool vhost_device_only_reads(const struct vhost_session *session)
{
	uint32_t request = session->message.head.request;

	return request < VHOST_REQUEST_COUNT &&
	       (handlers[request].take == get_number || handlers[request].take == get_config);
}

const char *vhost_device_take(struct vhost_session *session)
{
	const struct vhost_head *head = &session->message.head;

	session->base.progress_ns = ring_batch_ns(session->base.engine->ring);
	if (head->request >= VHOST_REQUEST_COUNT || handlers[head->request].take == NULL) {
		return "a message of an unknown type";
	}
	if (head->bytes < handlers[head->request].bytes) {
		return "a message is too short for its type";
	}
	if (handlers[head->request].names_queue && queue_index(session) >= VHOST_SERVER_QUEUES) {
		return "a message names a queue that does not exist";
	}
	return handlers[head->request].take(session);
}
