// SPDX-License-Identifier: Apache-2.0
/*
 * Messages on the socket of a connection. One of ours at a time waits for its reply:
 *
 *   handshake   steps[] in order; a step that the server does not support sends nothing
 *   ready       ADD_MEM_REG, REM_MEM_REG and GET_CONFIG, when they are needed
 *
 * Messages of the server on the back channel only say that the configuration has changed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vhost/client/client.h"

static const uint64_t features_known =
	VIRTIO_BLK_SIZE_MAX | VIRTIO_BLK_SEG_MAX | VIRTIO_BLK_RO | VIRTIO_BLK_BLK_SIZE |
	VIRTIO_BLK_FLUSH | VIRTIO_BLK_TOPOLOGY | VIRTIO_BLK_MQ | VIRTIO_BLK_DISCARD |
	VIRTIO_BLK_WRITE_ZEROES | VIRTIO_RING_INDIRECT | VIRTIO_RING_EVENT_IDX |
	VHOST_PROTOCOL_FEATURES | VIRTIO_VERSION_1;

static const uint64_t protocol_known = VHOST_PROTOCOL_MQ | VHOST_PROTOCOL_REPLY_ACK |
				       VHOST_PROTOCOL_BACK_REQ | VHOST_PROTOCOL_CONFIG |
				       VHOST_PROTOCOL_INFLIGHT_SHMFD | VHOST_PROTOCOL_MEM_SLOTS |
				       VHOST_PROTOCOL_STATUS;

/* The protocol has no texts, so a client without rights learns only this. */
static const char *closed_text(const struct front_carrier *carrier)
{
	return carrier->has_answer ? "the server closed the connection"
				   : "the server closed the connection without an answer; if it is "
				     "gmblock, its log has the reason, such as the lack of an "
				     "access rule for this user";
}

/* --- sending --------------------------------------------------------------------------------- */

/* Sends a message with up to VHOST_REGIONS_TABLE_MAX descriptors. */
static void channel_send(struct front_carrier *carrier, struct front_channel *channel,
	struct vhost_head head, const void *payload, const int *fds, uint32_t fd_count)
{
	alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * VHOST_REGIONS_TABLE_MAX)];
	struct iovec iov[2] = {
		{ .iov_base = &head, .iov_len = sizeof(head) },
		{ .iov_base = (void *)(uintptr_t)payload, .iov_len = head.bytes },
	};
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = head.bytes > 0 ? 2 : 1 };
	ssize_t sent;

	if (fd_count > 0) {
		struct cmsghdr *header;

		memset(control, 0, sizeof(control));
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(header), fds, sizeof(int) * fd_count);
	}
	sent = ring_sendmsg_now(carrier->base.ring, channel->file, &message);
	if (sent == -EPIPE || sent == -ECONNRESET) {
		front_fail(carrier, -ECONNRESET, closed_text(carrier));
	} else if (sent < 0 && sent != -EAGAIN) {
		front_fail(carrier, (int)sent, strerror((int)-sent));
	} else if (sent != (ssize_t)(sizeof(head) + head.bytes)) {
		front_fail(carrier, -EAGAIN, "the server does not read its socket");
	}
}

/* Sends one of our messages. replies: the message has a reply. The others are acknowledged if the
 * server can. */
static void say(struct front_carrier *carrier, enum vhost_request request, bool replies,
	const void *payload, uint32_t bytes, const int *fds, uint32_t fd_count)
{
	bool acks = !replies && (carrier->protocol & VHOST_PROTOCOL_REPLY_ACK) != 0;

	if (replies || acks) {
		carrier->asked = request;
	}
	channel_send(carrier, &carrier->front,
		(struct vhost_head){ .request = request,
			.flags = VHOST_VERSION | (acks ? (uint32_t)VHOST_FLAG_NEED_REPLY : 0),
			.bytes = bytes },
		payload, fds, fd_count);
}

static void say_number(struct front_carrier *carrier, enum vhost_request request, uint64_t number)
{
	say(carrier, request, false, &number, sizeof(number), NULL, 0);
}

static void ask(struct front_carrier *carrier, enum vhost_request request)
{
	say(carrier, request, true, NULL, 0, NULL, 0);
}

static void ask_config(struct front_carrier *carrier)
{
	struct {
		struct vhost_config head;
		uint8_t data[BLK_CONFIG_BYTES];
	} payload = { .head.bytes = BLK_CONFIG_BYTES };

	say(carrier, VHOST_GET_CONFIG, true, &payload, sizeof(payload), NULL, 0);
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Describes a memory, and returns its descriptor. */
static int memory_region(
	const struct front_carrier *carrier, uint32_t memory, struct vhost_region *region)
{
	const struct hub_buffer *buffer = &carrier->hub->buffers[memory];

	*region = (struct vhost_region){
		.guest_address = front_address(memory, 0),
		.user_address = front_address(memory, 0),
	};
	if (memory == FRONT_RINGS) {
		region->bytes = carrier->queue_count * sizeof(struct front_area);
		return carrier->rings_fd;
	}
	region->bytes = buffer->bytes;
	return clan_region_memfd(buffer->region, &region->file_offset);
}

static void say_memory(struct front_carrier *carrier, enum vhost_request request, uint32_t memory)
{
	struct vhost_memory_region payload = { 0 };
	int fd = memory_region(carrier, memory, &payload.region);

	carrier->asked_memory = memory;
	say(carrier, request, false, &payload, sizeof(payload), &fd,
		request == VHOST_ADD_MEM_REG ? 1 : 0);
}

/* Sends all memory that exists now, for a server that cannot add memory later. */
static void say_table(struct front_carrier *carrier)
{
	struct vhost_memory_table table = { 0 };
	int fds[VHOST_REGIONS_TABLE_MAX];

	fds[0] = memory_region(carrier, FRONT_RINGS, &table.regions[0]);
	table.count = 1;
	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		const struct hub_buffer *buffer = &carrier->hub->buffers[i];
		bool is_usable = buffer->region != NULL && !buffer->tainted && !buffer->freeing;

		carrier->shares[i] = FRONT_SHARE_REFUSED;
		if (is_usable && table.count < VHOST_REGIONS_TABLE_MAX) {
			fds[table.count] = memory_region(carrier, i, &table.regions[table.count]);
			table.count++;
			carrier->shares[i] = FRONT_SHARE_LIVE;
		}
	}
	say(carrier, VHOST_SET_MEM_TABLE, false, &table,
		(uint32_t)(offsetof(struct vhost_memory_table, regions) +
			   table.count * sizeof(table.regions[0])),
		fds, table.count);
}

/* --- the handshake --------------------------------------------------------------------------- */

static void ask_features(struct front_carrier *carrier)
{
	ask(carrier, VHOST_GET_FEATURES);
}

static void ask_protocol(struct front_carrier *carrier)
{
	if ((carrier->features & VHOST_PROTOCOL_FEATURES) != 0) {
		ask(carrier, VHOST_GET_PROTOCOL_FEATURES);
	}
}

static void say_protocol(struct front_carrier *carrier)
{
	uint64_t protocol = carrier->protocol;

	if ((protocol & VHOST_PROTOCOL_CONFIG) == 0) {
		front_broken(carrier, "V5: without the protocol feature CONFIG, the size of the "
				      "disk is unknown");
		return;
	}
	carrier->protocol = 0; /* this message has no reply yet */
	say_number(carrier, VHOST_SET_PROTOCOL_FEATURES, protocol);
	carrier->protocol = protocol;
}

static void say_owner(struct front_carrier *carrier)
{
	say(carrier, VHOST_SET_OWNER, false, NULL, 0, NULL, 0);
}

static void ask_queues(struct front_carrier *carrier)
{
	carrier->queue_count = 1;
	if ((carrier->protocol & VHOST_PROTOCOL_MQ) != 0 && carrier->target->queues > 1) {
		ask(carrier, VHOST_GET_QUEUE_NUM);
	}
}

static void ask_slots(struct front_carrier *carrier)
{
	carrier->slots = 0;
	if ((~carrier->protocol & (VHOST_PROTOCOL_MEM_SLOTS | VHOST_PROTOCOL_REPLY_ACK)) == 0) {
		ask(carrier, VHOST_GET_MAX_MEM_SLOTS);
	}
}

static void say_back_channel(struct front_carrier *carrier)
{
	if ((carrier->protocol & VHOST_PROTOCOL_BACK_REQ) != 0) {
		say(carrier, VHOST_SET_BACK_REQ_FD, false, NULL, 0, &carrier->back_peer_fd, 1);
		close(carrier->back_peer_fd);
		carrier->back_peer_fd = -1;
	}
}

static void say_status(struct front_carrier *carrier, uint64_t status)
{
	if ((carrier->protocol & VHOST_PROTOCOL_STATUS) != 0) {
		say_number(carrier, VHOST_SET_STATUS, status);
	}
}

enum { STATUS_FOUND = 3 }; /* ACKNOWLEDGE and DRIVER */

static void say_found(struct front_carrier *carrier)
{
	say_status(carrier, STATUS_FOUND);
}

static void say_features(struct front_carrier *carrier)
{
	const char *rule = front_facts(carrier);

	if (rule != NULL) {
		front_broken(carrier, rule);
		return;
	}
	say_number(carrier, VHOST_SET_FEATURES, carrier->features);
}

static void say_features_ok(struct front_carrier *carrier)
{
	say_status(carrier, STATUS_FOUND | VIRTIO_STATUS_FEATURES_OK);
}

static void ask_device_status(struct front_carrier *carrier)
{
	if ((carrier->protocol & VHOST_PROTOCOL_STATUS) != 0) {
		ask(carrier, VHOST_GET_STATUS);
	}
}

static void say_rings_memory(struct front_carrier *carrier)
{
	int result = front_rings_create(carrier);

	if (result != 0) {
		front_fail(carrier, result, "no memory for the rings");
	} else if (carrier->slots > 0) {
		say_memory(carrier, VHOST_ADD_MEM_REG, FRONT_RINGS);
	} else if (hub_pool_make(carrier->hub) != 0) {
		front_fail(carrier, -ENOMEM, "no memory for requests");
	} else {
		say_table(carrier);
	}
}

static void ask_inflight(struct front_carrier *carrier)
{
	struct vhost_inflight inflight = { .queue_count = (uint16_t)carrier->queue_count,
		.queue_entries = FRONT_ENTRIES };

	if ((carrier->protocol & VHOST_PROTOCOL_INFLIGHT_SHMFD) != 0) {
		say(carrier, VHOST_GET_INFLIGHT_FD, true, &inflight, sizeof(struct vhost_inflight),
			NULL, 0);
	}
}

static void say_inflight(struct front_carrier *carrier)
{
	if (carrier->inflight_fd >= 0) {
		say(carrier, VHOST_SET_INFLIGHT_FD, false, &carrier->inflight,
			sizeof(struct vhost_inflight), &carrier->inflight_fd, 1);
		close(carrier->inflight_fd);
		carrier->inflight_fd = -1;
	}
}

/* The messages of one ring after the other. */
enum { RING_MESSAGES = 6 };

static void say_ring(struct front_carrier *carrier, uint32_t queue, uint32_t message)
{
	uint64_t address = carrier->rings[queue].address;
	struct vhost_vring_state state = { .index = queue };
	const struct vhost_vring_address ring = {
		.index = queue,
		.desc = address + offsetof(struct front_area, desc),
		.avail = address + offsetof(struct front_area, avail),
		.used = address + offsetof(struct front_area, used),
	};
	uint64_t number = queue;

	switch (message) {
	case 0:
		state.number = FRONT_ENTRIES;
		say(carrier, VHOST_SET_VRING_NUM, false, &state, sizeof(state), NULL, 0);
		break;
	case 1:
		say(carrier, VHOST_SET_VRING_BASE, false, &state, sizeof(state), NULL, 0);
		break;
	case 2:
		say(carrier, VHOST_SET_VRING_ADDR, false, &ring, sizeof(ring), NULL, 0);
		break;
	case 3:
		say(carrier, VHOST_SET_VRING_CALL, false, &number, sizeof(number),
			&carrier->call_fd, 1);
		break;
	case 4:
		say(carrier, VHOST_SET_VRING_KICK, false, &number, sizeof(number),
			&carrier->rings[queue].kick_fd, 1);
		break;
	default:
		if ((carrier->features & VHOST_PROTOCOL_FEATURES) != 0) {
			state.number = 1;
			say(carrier, VHOST_SET_VRING_ENABLE, false, &state, sizeof(state), NULL, 0);
		}
		break;
	}
}

static void say_driver_ok(struct front_carrier *carrier)
{
	say_status(carrier, STATUS_FOUND | VIRTIO_STATUS_FEATURES_OK | VIRTIO_STATUS_DRIVER_OK);
}

/* Steps before and after the steps of the rings. The last one has a reply from every server, which
 * shows that it has accepted the others. */
static void (*const steps_before[])(struct front_carrier *carrier) = { ask_features, ask_protocol,
	say_protocol, say_owner, ask_queues, ask_slots, ask_config, say_back_channel, say_found,
	say_features, say_features_ok, ask_device_status, say_rings_memory, ask_inflight,
	say_inflight };
static void (*const steps_after[])(struct front_carrier *carrier) = { say_driver_ok, ask_features };

static void handshake_turn(struct front_carrier *carrier)
{
	const uint32_t before = ARRAY_COUNT(steps_before);

	while (carrier->state == FRONT_DIALING && carrier->asked == 0) {
		uint32_t rings = carrier->queue_count * RING_MESSAGES;
		uint32_t step = carrier->step++;

		if (step < before) {
			steps_before[step](carrier);
		} else if (step < before + rings) {
			step -= before;
			say_ring(carrier, step / RING_MESSAGES, step % RING_MESSAGES);
		} else if (step < before + rings + ARRAY_COUNT(steps_after)) {
			steps_after[step - before - rings](carrier);
		} else {
			front_ready(carrier);
			return;
		}
	}
}

/* --- memory and configuration of a connection that is ready ---------------------------------- */

void front_control_turn(struct front_carrier *carrier)
{
	if (carrier->state != FRONT_READY || carrier->asked != 0) {
		return;
	}
	for (uint32_t i = 0; i < HUB_BUFFERS_MAX; i++) {
		if (carrier->shares[i] == FRONT_SHARE_WANTED) {
			carrier->shares[i] = FRONT_SHARE_ASKED;
			say_memory(carrier, VHOST_ADD_MEM_REG, i);
			return;
		}
		if (carrier->shares[i] == FRONT_SHARE_UNWANTED) {
			carrier->shares[i] = FRONT_SHARE_ENDING;
			say_memory(carrier, VHOST_REM_MEM_REG, i);
			return;
		}
	}
	if (carrier->config_wanted) {
		carrier->config_wanted = false;
		ask_config(carrier);
	}
}

/* ADD_MEM_REG or REM_MEM_REG was acknowledged. */
static void memory_answered(struct front_carrier *carrier, bool accepted)
{
	uint32_t memory = carrier->asked_memory;
	uint8_t *share = &carrier->shares[memory];

	if (memory == FRONT_RINGS) {
		if (!accepted) {
			front_fail(carrier, -ENOMEM, "the server does not map the rings");
		}
	} else if (*share == FRONT_SHARE_ASKED) {
		*share = accepted ? FRONT_SHARE_LIVE : FRONT_SHARE_REFUSED;
		if (carrier->hub->buffers[memory].freeing) {
			front_unshare(&carrier->user, memory);
		}
		front_flush(&carrier->base);
	} else if (!accepted) {
		front_fail(carrier, -EPROTO, "the server does not return memory");
	} else {
		*share = FRONT_SHARE_NONE;
		hub_reclaim(carrier->hub);
	}
}

static const char *take_config(
	struct front_carrier *carrier, const uint8_t *payload, uint32_t bytes)
{
	struct vhost_config head;
	struct blk_config config = { 0 };
	uint64_t before = carrier->base.facts.bytes;
	const char *rule;

	if (bytes != sizeof(head) + BLK_CONFIG_BYTES) {
		return "V4: GET_CONFIG has a reply of another length";
	}
	memcpy(&head, payload, sizeof(head));
	if (head.bytes != BLK_CONFIG_BYTES) {
		return "V4: GET_CONFIG has a reply of another length";
	}
	memcpy(&config, payload + sizeof(head), BLK_CONFIG_BYTES);
	if (carrier->state != FRONT_READY) {
		carrier->config = config;
		return NULL;
	}
	/* Only the size can change, because commands have the limits that they were made for. */
	carrier->config.sectors = config.sectors;
	rule = front_facts(carrier);
	if (rule == NULL && carrier->base.facts.bytes != before) {
		carrier_resized(&carrier->base);
	}
	return rule;
}

static const char *take_inflight(
	struct front_carrier *carrier, const uint8_t *payload, uint32_t bytes)
{
	if (bytes != sizeof(struct vhost_inflight)) {
		return "V4: GET_INFLIGHT_FD has a reply of another length";
	}
	memcpy(&carrier->inflight, payload, sizeof(struct vhost_inflight));
	carrier->inflight_fd = carrier->front.received_fd;
	carrier->front.received_fd = -1;
	return NULL;
}

/* Processes a reply that is one number. */
static const char *take_number_reply(
	struct front_carrier *carrier, enum vhost_request request, uint64_t number)
{
	switch ((uint32_t)request) {
	case VHOST_GET_FEATURES:
		if (carrier->step <= ARRAY_COUNT(steps_before)) {
			carrier->features = number & features_known;
		}
		return NULL;
	case VHOST_GET_PROTOCOL_FEATURES:
		carrier->protocol = number & protocol_known;
		return NULL;
	case VHOST_GET_QUEUE_NUM:
		number = MIN(number, (uint64_t)carrier->target->queues);
		carrier->queue_count = number > 0 ? (uint32_t)number : 1;
		return NULL;
	case VHOST_GET_MAX_MEM_SLOTS:
		/* the pool and the rings, or the server gets a table */
		carrier->slots = number >= 2 ? number : 0;
		return NULL;
	case VHOST_GET_STATUS:
		return (number & VIRTIO_STATUS_FEATURES_OK) != 0
			       ? NULL
			       : "V8: the server does not accept its own features";
	case VHOST_ADD_MEM_REG:
	case VHOST_REM_MEM_REG:
		memory_answered(carrier, number == 0);
		return NULL;
	default:
		return number == 0 ? NULL : "V3: the server rejects a message";
	}
}

static const char *take_reply(struct front_carrier *carrier)
{
	struct front_channel *channel = &carrier->front;
	enum vhost_request request = carrier->asked;
	uint64_t number;

	if (request == 0 || channel->head.request != request ||
		(channel->head.flags & VHOST_FLAG_REPLY) == 0) {
		return "V2: a reply to another message, or none";
	}
	carrier->asked = 0;
	carrier->has_answer = true;
	if (request == VHOST_GET_CONFIG) {
		return take_config(carrier, channel->payload, channel->head.bytes);
	}
	if (request == VHOST_GET_INFLIGHT_FD) {
		return take_inflight(carrier, channel->payload, channel->head.bytes);
	}
	if (channel->head.bytes != sizeof(number)) {
		return "V4: a reply of another length";
	}
	memcpy(&number, channel->payload, sizeof(number));
	return take_number_reply(carrier, request, number);
}

static void take_front(struct front_carrier *carrier)
{
	const char *rule = take_reply(carrier);

	if (rule != NULL) {
		front_broken(carrier, rule);
		return;
	}
	handshake_turn(carrier);
	front_control_turn(carrier);
}

/* --- messages of the server ------------------------------------------------------------------ */

static void take_back_message(struct front_carrier *carrier)
{
	const uint64_t done = 0;
	struct vhost_head head = carrier->back.head;

	if (head.request == VHOST_BACK_CONFIG_CHANGE) {
		carrier->config_wanted = true;
	}
	if ((head.flags & VHOST_FLAG_NEED_REPLY) != 0) {
		head.flags = VHOST_VERSION | VHOST_FLAG_REPLY;
		head.bytes = sizeof(done);
		channel_send(carrier, &carrier->back, head, &done, NULL, 0);
	}
	front_control_turn(carrier);
}

/* --- receiving ------------------------------------------------------------------------------- */

static void channel_read(struct front_carrier *carrier, struct front_channel *channel, void *to,
	size_t bytes, ring_done_fn *done)
{
	channel->iov = (struct iovec){ .iov_base = to, .iov_len = bytes };
	channel->message = (struct msghdr){
		.msg_iov = &channel->iov,
		.msg_iovlen = 1,
		.msg_control = channel->control,
		.msg_controllen = CMSG_LEN(sizeof(int)), /* no room for a second one */
	};
	ring_recvmsg(
		carrier->base.ring, &channel->op, channel->file, &channel->message, true, done);
}

/* Keeps a descriptor that came with the message, until the message was processed. */
static void keep_descriptor(struct front_channel *channel)
{
	struct cmsghdr *header = CMSG_FIRSTHDR(&channel->message);

	if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
		header->cmsg_len == CMSG_LEN(sizeof(int))) {
		if (channel->received_fd >= 0) {
			close(channel->received_fd);
		}
		memcpy(&channel->received_fd, CMSG_DATA(header), sizeof(int));
	}
}

static void message_begin(
	struct front_carrier *carrier, struct front_channel *channel, ring_done_fn *done)
{
	if (channel->received_fd >= 0) {
		close(channel->received_fd);
		channel->received_fd = -1;
	}
	channel_read(carrier, channel, &channel->head, sizeof(channel->head), done);
}

/* Processes a part of a message. Returns true when the message is complete. */
static bool channel_done(struct front_carrier *carrier, struct front_channel *channel, int result,
	ring_done_fn *done)
{
	bool is_head = channel->iov.iov_base == &channel->head;

	if (result > 0) {
		keep_descriptor(channel);
	}
	if (carrier->state == FRONT_CLOSING) {
		front_step(carrier);
		return false;
	}
	if (result != (int)channel->iov.iov_len) {
		front_fail(carrier, result < 0 ? result : -ECONNRESET,
			result < 0 && result != -ECONNRESET ? strerror(-result)
							    : closed_text(carrier));
		return false;
	}
	carrier->base.heard_ns = ring_batch_ns(carrier->base.ring);
	if (!is_head || channel->head.bytes == 0) {
		return true;
	}
	if (memcmp(&channel->head, "NBDMAGIC", 8) == 0) {
		front_fail(
			carrier, -EPROTO, "this is the socket of an NBD server; use nbd+unix://");
		return false;
	}
	if (channel->head.bytes > sizeof(channel->payload)) {
		front_broken(carrier, "V1: a message is too long");
		return false;
	}
	channel_read(carrier, channel, channel->payload, channel->head.bytes, done);
	return false;
}

static void front_message_done(struct ring_op *op, int result)
{
	struct front_channel *channel = container_of(op, struct front_channel, op);
	struct front_carrier *carrier = container_of(channel, struct front_carrier, front);

	if (channel_done(carrier, channel, result, front_message_done)) {
		take_front(carrier);
		if (carrier->state != FRONT_CLOSING) {
			message_begin(carrier, channel, front_message_done);
		}
	}
}

static void back_message_done(struct ring_op *op, int result)
{
	struct front_channel *channel = container_of(op, struct front_channel, op);
	struct front_carrier *carrier = container_of(channel, struct front_carrier, back);

	if (channel_done(carrier, channel, result, back_message_done)) {
		take_back_message(carrier);
		if (carrier->state != FRONT_CLOSING) {
			message_begin(carrier, channel, back_message_done);
		}
	}
}

void front_control_start(struct front_carrier *carrier)
{
	carrier->asked = 0;
	carrier->has_answer = false;
	carrier->step = 0;
	carrier->queue_count = 0;
	carrier->protocol = 0;
	carrier->config_wanted = false;
	message_begin(carrier, &carrier->front, front_message_done);
	message_begin(carrier, &carrier->back, back_message_done);
	handshake_turn(carrier);
}
