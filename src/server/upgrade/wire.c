// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/rights.h"

enum { RETRY_NS = 10000000, RETRIES_MAX = 200 };

struct wire_head {
	struct be32 magic;
	struct be16 version;
	struct be16 type;
} __attribute__((packed));

struct wire_hello {
	struct be32 pid;
} __attribute__((packed));

struct wire_listener {
	struct be32 flags;
	struct be64 device;
	struct be64 inode;
} __attribute__((packed));

struct wire_export {
	/* The file descriptor that comes with the message (enum store_hold). 0: none; 1: the claim
	 * of the disk, or none if the disk cannot be claimed; 2: the memory with the contents. */
	struct be32 hold;
	struct be32 session_count;
	struct be64 identity[2];
	struct be64 epoch;
	struct be32 name_bytes; /* length of the name after this head */
} __attribute__((packed));

struct wire_session {
	struct be64 id;
	struct be32 kind_bytes; /* lengths of the four fields that follow, in this order */
	struct be32 export_bytes;
	struct be32 token_bytes;
	struct be32 byte_count;
} __attribute__((packed));

struct wire_sessions_end {
	struct be32 handed_over_count;
	struct be32 ended_count;
} __attribute__((packed));

struct wire_received {
	struct be32 offset;
} __attribute__((packed));

_Static_assert(sizeof(struct wire_head) + sizeof(struct wire_session) + UPGRADE_KIND_BYTES_MAX +
			       UPGRADE_NAME_BYTES_MAX + TAKEOVER_TOKEN_BYTES_MAX +
			       ENGINE_HANDOVER_BYTES_MAX <=
		       UPGRADE_PACKET_BYTES_MAX,
	"the longest message fits into one packet");

static const struct {
	const char *name;
	uint32_t fixed_bytes;
	uint32_t fds_min;
	uint32_t fds_max;
} types[UPGRADE_TYPE_END] = {
	[UPGRADE_HELLO] = { "HELLO", sizeof(struct wire_hello), 0, 0 },
	[UPGRADE_LISTENER] = { "LISTENER", sizeof(struct wire_listener), 1, 1 },
	[UPGRADE_EXPORT] = { "EXPORT", sizeof(struct wire_export), 0, 1 },
	[UPGRADE_PREPARE] = { "PREPARE", 0, 0, 0 },
	[UPGRADE_READY] = { "READY", 0, 0, 0 },
	[UPGRADE_SESSION] = { "SESSION", sizeof(struct wire_session), 1,
		1 + ENGINE_HANDOVER_FDS_MAX },
	[UPGRADE_SESSIONS_END] = { "SESSIONS_END", sizeof(struct wire_sessions_end), 0, 0 },
	[UPGRADE_STARTED] = { "STARTED", 0, 0, 0 },
	[UPGRADE_FAILED] = { "FAILED", 0, 0, 0 },
	[UPGRADE_ADDED] = { "ADDED", 0, 0, 0 },
	[UPGRADE_SNAPSHOT] = { "SNAPSHOT", 0, 0, 0 },
	[UPGRADE_RECEIVED] = { "RECEIVED", sizeof(struct wire_received), 0, 0 },
	[UPGRADE_STATE] = { "STATE", 0, 1, 1 },
	[UPGRADE_LEASE] = { "LEASE", 0, 0, 0 },
};

const char *upgrade_type_name(enum upgrade_type type)
{
	return types[type].name;
}

/* --- reading --------------------------------------------------------------------------------- */

/* The part of a packet that is not parsed yet. */
struct reader {
	const uint8_t *at;
	size_t left;
};

/* Consumes the next count bytes. Returns NULL if fewer are left. */
static const uint8_t *upgrade_wire_take(struct reader *reader, size_t count)
{
	const uint8_t *at = reader->at;

	if (count > reader->left) {
		return NULL;
	}
	reader->at += count;
	reader->left -= count;
	return at;
}

/* Consumes the next count bytes. Fails if there are fewer, or if count exceeds max. */
static bool take_bounded(struct reader *reader, uint32_t count, uint32_t max, const uint8_t **out)
{
	*out = count <= max ? upgrade_wire_take(reader, count) : NULL;
	return *out != NULL;
}

static bool parse_listener(const uint8_t *fixed, struct upgrade_message *message)
{
	struct wire_listener wire;

	memcpy(&wire, fixed, sizeof(wire));
	message->flags = be32_get(wire.flags);
	message->device = be64_get(wire.device);
	message->inode = be64_get(wire.inode);
	return (message->flags & ~(uint32_t)UPGRADE_LISTENER_FLAGS) == 0;
}

static bool parse_export(const uint8_t *fixed, struct reader *rest, struct upgrade_message *message)
{
	struct wire_export wire;
	const uint8_t *name;

	memcpy(&wire, fixed, sizeof(wire));
	if (be32_get(wire.hold) > STORE_HOLD_MEMORY ||
		!take_bounded(rest, be32_get(wire.name_bytes), UPGRADE_NAME_BYTES_MAX, &name)) {
		return false;
	}
	message->hold = (enum store_hold)be32_get(wire.hold);
	message->session_count = be32_get(wire.session_count);
	message->identity[0] = be64_get(wire.identity[0]);
	message->identity[1] = be64_get(wire.identity[1]);
	message->epoch = be64_get(wire.epoch);
	message->record.export = (const char *)name;
	message->record.export_bytes = be32_get(wire.name_bytes);
	return true;
}

static bool parse_session(const uint8_t *fixed, struct reader *rest, struct session_record *record)
{
	struct wire_session wire;
	const uint8_t *kind;
	const uint8_t *name;

	memcpy(&wire, fixed, sizeof(wire));
	record->id = be64_get(wire.id);
	record->kind_bytes = be32_get(wire.kind_bytes);
	record->export_bytes = be32_get(wire.export_bytes);
	record->token_bytes = be32_get(wire.token_bytes);
	record->byte_count = be32_get(wire.byte_count);
	if (!take_bounded(rest, record->kind_bytes, UPGRADE_KIND_BYTES_MAX, &kind) ||
		!take_bounded(rest, record->export_bytes, UPGRADE_NAME_BYTES_MAX, &name) ||
		!take_bounded(
			rest, record->token_bytes, TAKEOVER_TOKEN_BYTES_MAX, &record->token) ||
		!take_bounded(
			rest, record->byte_count, ENGINE_HANDOVER_BYTES_MAX, &record->bytes)) {
		return false;
	}
	record->kind = (const char *)kind;
	record->export = (const char *)name;
	return true;
}

/* Parses two strings, followed by pairs of strings. The second string of a pair is empty or starts
 * with '='. */
static bool parse_strings(struct reader *rest, struct upgrade_message *message)
{
	size_t bytes = rest->left;
	const char *strings = (const char *)upgrade_wire_take(rest, bytes);
	size_t at = 0;
	uint32_t count = 0;

	if (bytes == 0 || bytes > UPGRADE_STRINGS_BYTES_MAX || strings[bytes - 1] != '\0') {
		return false;
	}
	/* strlen() stays inside the packet, because its last byte is zero. */
	for (; at < bytes; at += strlen(strings + at) + 1) {
		bool is_value = count >= 2 && count % 2 == 1;

		if (is_value && strings[at] != '\0' && strings[at] != '=') {
			return false;
		}
		count++;
	}
	message->strings = strings;
	message->strings_bytes = (uint32_t)bytes;
	return count >= 2 && count % 2 == 0 && count <= 2 + 2 * UPGRADE_SETTINGS_MAX;
}

static bool parse_rest(const uint8_t *fixed, struct reader *rest, struct upgrade_message *message)
{
	struct wire_sessions_end end;

	switch (message->type) {
	case UPGRADE_HELLO:
		message->pid = be32_load(fixed);
		return message->pid > 0 && message->pid <= INT32_MAX;
	case UPGRADE_LISTENER:
		return parse_listener(fixed, message);
	case UPGRADE_EXPORT:
		return parse_export(fixed, rest, message);
	case UPGRADE_SESSION:
		return parse_session(fixed, rest, &message->record);
	case UPGRADE_SESSIONS_END:
		memcpy(&end, fixed, sizeof(end));
		message->handed_over_count = be32_get(end.handed_over_count);
		message->ended_count = be32_get(end.ended_count);
		return true;
	case UPGRADE_FAILED:
		message->text = (const char *)rest->at;
		message->text_bytes = (uint32_t)MIN(rest->left, (size_t)ERROR_TEXT_BYTES);
		return upgrade_wire_take(rest, message->text_bytes) != NULL;
	case UPGRADE_LEASE:
		message->text = (const char *)rest->at;
		message->text_bytes = (uint32_t)rest->left;
		return upgrade_wire_take(rest, rest->left) != NULL;
	case UPGRADE_ADDED:
	case UPGRADE_SNAPSHOT:
		return parse_strings(rest, message);
	case UPGRADE_RECEIVED:
		message->offset = be32_load(fixed);
		message->received.count =
			(uint32_t)MIN(rest->left, (size_t)UPGRADE_RECEIVED_BYTES_MAX);
		message->received.bytes = upgrade_wire_take(rest, message->received.count);
		return true;
	case UPGRADE_STATE:
	case UPGRADE_PREPARE:
	case UPGRADE_READY:
	case UPGRADE_STARTED:
		return true;
	case UPGRADE_TYPE_END:
		break;
	}
	return false;
}

int upgrade_parse(const uint8_t *bytes, size_t count, uint32_t fd_count,
	struct upgrade_message *message, struct error *error)
{
	struct reader rest = { bytes, count };
	const uint8_t *head_bytes = upgrade_wire_take(&rest, sizeof(struct wire_head));
	const uint8_t *fixed = NULL;
	struct wire_head head;
	uint32_t type;

	*message = (struct upgrade_message){ .fd = -1 };
	if (head_bytes == NULL) {
		return error_set(error, -EPROTO, "invalid upgrade message of %zu bytes", count);
	}
	memcpy(&head, head_bytes, sizeof(head));
	if (be32_get(head.magic) != UPGRADE_MAGIC) {
		return error_set(error, -EPROTO, "invalid magic number in an upgrade message");
	}
	if (be16_get(head.version) != UPGRADE_VERSION) {
		return error_set(error, -EPROTONOSUPPORT,
			"the other process has version %u of the upgrade protocol, this one has "
			"version %d",
			be16_get(head.version), UPGRADE_VERSION);
	}
	type = be16_get(head.type);
	if (type == 0 || type >= UPGRADE_TYPE_END) {
		return error_set(error, -EPROTO, "unknown upgrade message type %u", type);
	}
	message->type = (enum upgrade_type)type;
	fixed = upgrade_wire_take(&rest, types[type].fixed_bytes);
	if (fixed == NULL || !parse_rest(fixed, &rest, message) || rest.left > 0) {
		return error_set(error, -EPROTO, "invalid upgrade message %s of %zu bytes",
			types[type].name, count);
	}
	if (fd_count < types[type].fds_min || fd_count > types[type].fds_max ||
		(type == UPGRADE_EXPORT && fd_count > (message->hold != STORE_HOLD_NONE)) ||
		(message->hold == STORE_HOLD_MEMORY && fd_count == 0)) {
		return error_set(error, -EPROTO,
			"invalid upgrade message %s with %u file descriptors", types[type].name,
			fd_count);
	}
	return 0;
}

enum { FDS_MAX = 1 + ENGINE_HANDOVER_FDS_MAX };

_Static_assert((int)FDS_MAX <= (int)RIGHTS_MAX, "one message can contain the descriptors");

void upgrade_message_close(struct upgrade_message *message)
{
	if (message->fd >= 0) {
		close(message->fd);
	}
	for (uint32_t i = 0; i < message->record.fd_count; i++) {
		close(message->record.fds[i]);
	}
	message->fd = -1;
	message->record.fd_count = 0;
}

/* Moves the descriptors of a packet into the message. */
static void keep_descriptors(
	struct upgrade_message *message, const int fds[RIGHTS_MAX], uint32_t count)
{
	message->fd = count > 0 ? fds[0] : -1;
	for (uint32_t i = 1; i < count; i++) {
		message->record.fds[message->record.fd_count++] = fds[i];
	}
}

static int wait_readable(int channel, int timeout_ms)
{
	struct pollfd waits = { .fd = channel, .events = POLLIN };
	int rc;

	do {
		rc = poll(&waits, 1, timeout_ms);
	} while (rc < 0 && errno == EINTR);
	return rc < 0 ? -errno : rc == 0 ? -EAGAIN : 0;
}

int upgrade_receive(int channel, int timeout_ms, uint8_t bytes[UPGRADE_PACKET_BYTES_MAX],
	struct upgrade_message *message, struct error *error)
{
	_Alignas(struct cmsghdr) uint8_t control[RIGHTS_CONTROL_BYTES];
	struct iovec iov = { .iov_base = bytes, .iov_len = UPGRADE_PACKET_BYTES_MAX };
	struct msghdr packet = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control) };
	int rc = wait_readable(channel, timeout_ms);
	int fds[RIGHTS_MAX];
	uint32_t fd_count;
	ssize_t got;

	if (rc < 0) {
		return error_set(error, rc, "the other process did not respond for %d seconds",
			timeout_ms / 1000);
	}
	got = recvmsg(channel, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (got < 0 && errno == ECONNRESET) {
		/* The other end has closed without reading all of our messages. The kernel reports
		 * that once, as ECONNRESET, and then still delivers the messages that the other end
		 * had sent. A message can contain the reason for closing. */
		got = recvmsg(channel, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	}
	if (got <= 0) {
		rc = got < 0 && errno != ECONNRESET ? -errno : -ECONNRESET;
		return error_set(error, rc, "%s",
			rc == -ECONNRESET ? "the other process has exited" : strerror(-rc));
	}
	fd_count = rights_collect(&packet, fds);
	rc = (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0
		     ? upgrade_parse(bytes, (size_t)got, fd_count, message, error)
		     : error_set(error, -EPROTO, "the upgrade message is too long");
	if (rc == 0) {
		keep_descriptors(message, fds, fd_count);
	}
	for (uint32_t i = 0; rc < 0 && i < fd_count; i++) {
		close(fds[i]);
	}
	return rc;
}

/* --- writing --------------------------------------------------------------------------------- */

struct writer {
	uint8_t bytes[UPGRADE_PACKET_BYTES_MAX];
	size_t count;
};

static void upgrade_wire_put(struct writer *writer, const void *bytes, size_t count)
{
	GMB_ASSERT(count <= sizeof(writer->bytes) - writer->count);
	if (count > 0) {
		memcpy(writer->bytes + writer->count, bytes, count);
		writer->count += count;
	}
}

static void put_export(struct writer *writer, const struct upgrade_message *message)
{
	struct wire_export wire = {
		.hold = be32_make((uint32_t)message->hold),
		.session_count = be32_make(message->session_count),
		.identity = { be64_make(message->identity[0]), be64_make(message->identity[1]) },
		.epoch = be64_make(message->epoch),
		.name_bytes = be32_make(message->record.export_bytes),
	};

	upgrade_wire_put(writer, &wire, sizeof(wire));
	upgrade_wire_put(writer, message->record.export, message->record.export_bytes);
}

static void put_session(struct writer *writer, const struct session_record *record)
{
	struct wire_session wire = {
		.id = be64_make(record->id),
		.kind_bytes = be32_make(record->kind_bytes),
		.export_bytes = be32_make(record->export_bytes),
		.token_bytes = be32_make(record->token_bytes),
		.byte_count = be32_make(record->byte_count),
	};

	upgrade_wire_put(writer, &wire, sizeof(wire));
	upgrade_wire_put(writer, record->kind, record->kind_bytes);
	upgrade_wire_put(writer, record->export, record->export_bytes);
	upgrade_wire_put(writer, record->token, record->token_bytes);
	upgrade_wire_put(writer, record->bytes, record->byte_count);
}

static void put_message(struct writer *writer, const struct upgrade_message *message)
{
	struct wire_head head = {
		.magic = be32_make(UPGRADE_MAGIC),
		.version = be16_make(UPGRADE_VERSION),
		.type = be16_make((uint16_t)message->type),
	};
	struct wire_hello hello = { .pid = be32_make(message->pid) };
	struct wire_listener listener = {
		.flags = be32_make(message->flags),
		.device = be64_make(message->device),
		.inode = be64_make(message->inode),
	};
	struct wire_sessions_end end = {
		.handed_over_count = be32_make(message->handed_over_count),
		.ended_count = be32_make(message->ended_count),
	};
	struct wire_received received = { .offset = be32_make(message->offset) };

	upgrade_wire_put(writer, &head, sizeof(head));
	switch (message->type) {
	case UPGRADE_HELLO:
		upgrade_wire_put(writer, &hello, sizeof(hello));
		break;
	case UPGRADE_LISTENER:
		upgrade_wire_put(writer, &listener, sizeof(listener));
		break;
	case UPGRADE_EXPORT:
		put_export(writer, message);
		break;
	case UPGRADE_SESSION:
		put_session(writer, &message->record);
		break;
	case UPGRADE_SESSIONS_END:
		upgrade_wire_put(writer, &end, sizeof(end));
		break;
	case UPGRADE_FAILED:
	case UPGRADE_LEASE:
		upgrade_wire_put(writer, message->text, message->text_bytes);
		break;
	case UPGRADE_ADDED:
	case UPGRADE_SNAPSHOT:
		upgrade_wire_put(writer, message->strings, message->strings_bytes);
		break;
	case UPGRADE_RECEIVED:
		upgrade_wire_put(writer, &received, sizeof(received));
		upgrade_wire_put(writer, message->received.bytes, message->received.count);
		break;
	case UPGRADE_STATE:
	case UPGRADE_PREPARE:
	case UPGRADE_READY:
	case UPGRADE_STARTED:
	case UPGRADE_TYPE_END:
		break;
	}
}

bool upgrade_wait_for_descriptors(int code, uint32_t *tries)
{
	const struct timespec pause = { .tv_nsec = RETRY_NS };

	if (code != -ETOOMANYREFS || *tries == RETRIES_MAX) {
		return false;
	}
	*tries += 1;
	nanosleep(&pause, NULL);
	errno = ETOOMANYREFS;
	return true;
}

/* Adds the descriptors of the message to the packet, whose control buffer has room for FDS_MAX. */
static void put_descriptors(struct msghdr *packet, const struct upgrade_message *message)
{
	struct cmsghdr *header = packet->msg_control;
	uint32_t count = message->type == UPGRADE_SESSION ? message->record.fd_count : 0;

	GMB_ASSERT(count <= ENGINE_HANDOVER_FDS_MAX);
	*header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
		.cmsg_type = SCM_RIGHTS,
		.cmsg_len = CMSG_LEN((1 + count) * sizeof(int)) };
	memcpy(CMSG_DATA(header), &message->fd, sizeof(message->fd));
	memcpy(CMSG_DATA(header) + sizeof(int), message->record.fds, count * sizeof(int));
	packet->msg_controllen = CMSG_SPACE((1 + count) * sizeof(int));
}

static int send_packet(int channel, const struct upgrade_message *message, int flags)
{
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(FDS_MAX * sizeof(int))] = { 0 };
	struct writer writer;
	struct iovec iov;
	struct msghdr packet = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t sent;
	int rc;

	writer.count = 0;
	put_message(&writer, message);
	iov = (struct iovec){ .iov_base = writer.bytes, .iov_len = writer.count };
	if (message->fd >= 0) {
		packet.msg_control = control;
		put_descriptors(&packet, message);
	}
	do {
		sent = sendmsg(channel, &packet, MSG_NOSIGNAL | flags);
		rc = sent < 0 ? -errno : 0;
	} while (rc == -EINTR);
	/* The packet may contain secrets of a session. */
	explicit_bzero(writer.bytes, writer.count);
	return rc;
}

int upgrade_send(int channel, const struct upgrade_message *message)
{
	uint32_t tries = 0;
	int rc;

	do {
		rc = send_packet(channel, message, 0);
	} while (upgrade_wait_for_descriptors(rc, &tries));
	return rc;
}

int upgrade_send_now(int channel, const struct upgrade_message *message)
{
	return send_packet(channel, message, MSG_DONTWAIT);
}

void upgrade_send_failure(int channel, const char *text)
{
	const struct upgrade_message message = {
		.type = UPGRADE_FAILED,
		.fd = -1,
		.text = text,
		.text_bytes = (uint32_t)strnlen(text, ERROR_TEXT_BYTES - 1),
	};

	(void)!upgrade_send_now(channel, &message);
}
