// SPDX-License-Identifier: Apache-2.0
/*
 * The socket to the front end. The ring reports when the socket is readable or writable; the
 * transfers themselves are system calls that do not wait, because messages contain descriptors. The
 * next message is received after the reply to the previous one was sent.
 */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/rights.h"
#include "base/work.h"
#include "vhost/server/session.h"

/* Messages after which other sessions get a turn. A table of memory counts as several, because it
 * makes several mappings. */
enum { MESSAGES_MAX = 64 };

static void message_poll_done(struct ring_op *op, int result)
{
	struct vhost_session *session = container_of(op, struct vhost_session, poll_op);

	if (session->poll_events == POLLHUP && result > 0) {
		session_terminate(&session->base, NULL); /* the front end has left */
	} else if (session->base.state != SESSION_TERMINATING) {
		vhost_message_run(session); /* the transfer reports errors */
	}
}

static void wait_for_socket(struct vhost_session *session, uint32_t events)
{
	if (session->poll_op.in_flight) {
		if ((events & ~session->poll_events) != 0) {
			ring_cancel(session->base.engine->ring, &session->poll_op);
		} /* message_poll_done() waits again */
	} else {
		session->poll_events = events;
		ring_poll(session->base.engine->ring, &session->poll_op, session->file.fd, events,
			message_poll_done);
	}
}

/* --- sending ---------------------------------------------------------------------------------- */

/* Sends bytes and possibly a descriptor without waiting. Returns the number of bytes or a negative
 * errno. */
static ssize_t message_send_now(int socket_fd, const void *bytes, size_t count, int fd)
{
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = count };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t sent;

	if (fd >= 0) {
		struct cmsghdr *head;

		message.msg_control = control;
		message.msg_controllen = sizeof(control);
		head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	}
	sent = sendmsg(socket_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	return sent < 0 ? -errno : sent;
}

/* Sends the pending reply. Returns false if the socket is full or the connection is lost. */
static bool reply_send(struct vhost_session *session)
{
	struct vhost_reply *reply = &session->reply;

	while (reply->bytes > 0) {
		ssize_t sent = message_send_now(session->file.fd, reply->data + reply->sent,
			reply->bytes - reply->sent, reply->fd);

		if (sent == -EAGAIN) {
			wait_for_socket(session, POLLOUT);
			return false;
		}
		if (sent < 0) {
			session_terminate(&session->base, NULL); /* the front end is gone */
			return false;
		}
		reply->fd = -1;
		reply->sent += (uint32_t)sent;
		if (reply->sent == reply->bytes) {
			reply->bytes = 0;
		}
	}
	return true;
}

void vhost_message_reply(struct vhost_session *session, const void *payload, uint32_t bytes)
{
	struct vhost_reply *reply = &session->reply;
	const struct vhost_head head = {
		.request = session->message.head.request,
		.flags = VHOST_VERSION | VHOST_FLAG_REPLY,
		.bytes = bytes,
	};

	GMB_ASSERT(reply->bytes == 0 && bytes <= VHOST_PAYLOAD_BYTES_MAX);
	memcpy(reply->data, &head, sizeof(head));
	memcpy(reply->data + sizeof(head), payload, bytes);
	reply->bytes = (uint32_t)sizeof(head) + bytes;
	reply->sent = 0;
	reply->fd = -1;
}

static void back_done(struct ring_op *op, int result)
{
	struct vhost_session *session = container_of(op, struct vhost_session, back_op);

	if (session->base.state != SESSION_TERMINATING) {
		vhost_message_tell_config(session);
	}
}

void vhost_message_tell_config(struct vhost_session *session)
{
	const struct vhost_head head = {
		.request = VHOST_BACK_CONFIG_CHANGE,
		.flags = VHOST_VERSION,
	};

	if (!session->config_due || session->back_fd < 0 || session->back_op.in_flight) {
		return;
	}
	/* A message of this size is sent completely or not at all, unless the front end has
	 * replaced the socket's buffer by a tiny one; then the channel is lost, as after errors. */
	if (message_send_now(session->back_fd, &head, sizeof(head), -1) == -EAGAIN) {
		ring_poll(session->base.engine->ring, &session->back_op, session->back_fd, POLLOUT,
			back_done);
		return;
	}
	session->config_due = false;
}

/* --- receiving -------------------------------------------------------------------------------- */

int vhost_message_take_fd(struct vhost_session *session, uint32_t i)
{
	struct vhost_message *message = &session->message;
	int fd = i < message->fd_count ? message->fds[i] : -1;

	if (fd >= 0) {
		message->fds[i] = -1;
	}
	return fd;
}

void vhost_message_drop_fds(struct vhost_session *session)
{
	for (uint32_t i = 0; i < session->message.fd_count; i++) {
		if (session->message.fds[i] >= 0) {
			dispose_fd(
				session->message.fds[i], session->base.peer.credentials.uid, false);
		}
	}
	session->message.fd_count = 0;
}

/* Keeps the descriptors that arrived with a part of the message. Returns false if there are too
 * many. */
static bool keep_fds(struct vhost_session *session, struct msghdr *received)
{
	struct vhost_message *message = &session->message;
	int fds[RIGHTS_MAX];
	uint32_t count = rights_collect(received, fds);
	bool fits = count <= VHOST_FDS_MAX - message->fd_count &&
		    (received->msg_flags & MSG_CTRUNC) == 0;

	for (uint32_t i = 0; i < count; i++) {
		if (fits) {
			message->fds[message->fd_count++] = fds[i];
		} else {
			dispose_fd(fds[i], session->base.peer.credentials.uid, false);
		}
	}
	return fits;
}

/* Returns the address and size of the part of the message that is missing. */
static struct iovec missing_part(struct vhost_message *message)
{
	if (message->got < VHOST_HEAD_BYTES) {
		return (struct iovec){ .iov_base = (uint8_t *)&message->head + message->got,
			.iov_len = VHOST_HEAD_BYTES - message->got };
	}
	return (struct iovec){ .iov_base = message->payload + (message->got - VHOST_HEAD_BYTES),
		.iov_len = VHOST_HEAD_BYTES + message->head.bytes - message->got };
}

/* Receives a part of the message. Returns false if the rest has not arrived, or the session has
 * ended. */
static bool receive_part(struct vhost_session *session)
{
	struct vhost_message *message = &session->message;
	_Alignas(struct cmsghdr) uint8_t control[RIGHTS_CONTROL_BYTES];
	struct iovec iov = missing_part(message);
	struct msghdr received = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control) };
	ssize_t got = recvmsg(session->file.fd, &received, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
		wait_for_socket(session, POLLIN);
		return false;
	}
	if (got <= 0) {
		session_terminate(&session->base, NULL); /* the front end has left */
		return false;
	}
	if (!keep_fds(session, &received)) {
		vhost_session_fail(session, "a message has too many descriptors");
		return false;
	}
	message->got += (uint32_t)got;
	if (message->got == VHOST_HEAD_BYTES) {
		if ((message->head.flags & VHOST_FLAG_VERSION_MASK) != VHOST_VERSION) {
			vhost_session_fail(session, "a message has an unknown version");
			return false;
		}
		if (message->head.bytes > VHOST_PAYLOAD_BYTES_MAX) {
			vhost_session_fail(session, "a message is too long");
			return false;
		}
	}
	return true;
}

bool vhost_message_is_complete(const struct vhost_session *session)
{
	const struct vhost_message *message = &session->message;

	return message->got >= VHOST_HEAD_BYTES &&
	       message->got == VHOST_HEAD_BYTES + message->head.bytes;
}

/* Processes a complete message. Returns false if the session has ended. */
static bool take(struct vhost_session *session)
{
	const struct vhost_message *message = &session->message;
	bool wants_ack = (message->head.flags & VHOST_FLAG_NEED_REPLY) != 0 &&
			 (session->protocol_features & VHOST_PROTOCOL_REPLY_ACK) != 0;
	const char *rule = vhost_device_take(session);
	uint64_t failed = rule != NULL;

	vhost_message_drop_fds(session);
	if (session->base.state == SESSION_TERMINATING) {
		return false;
	}
	if (rule != NULL && !wants_ack) {
		vhost_session_fail(session, rule);
		return false;
	}
	if (rule != NULL) {
		log_limited(session_log_limit(&session->base),
			ring_batch_ns(session->base.engine->ring), LOG_LEVEL_WARNING,
			"client %s: message %u rejected: %s", session->base.peer.text,
			message->head.request, rule);
	}
	session->wants_ack = wants_ack && session->waits != VHOST_WAITS_NOT;
	if (wants_ack && session->waits == VHOST_WAITS_NOT && session->reply.bytes == 0) {
		vhost_message_reply(session, &failed, sizeof(failed));
	}
	session->message.got = 0;
	return true;
}

/* Returns whether the message can be processed now. While it waits, the end of the connection is
 * noticed. */
static bool message_may_go_on(struct vhost_session *session)
{
	bool may = session->waits == VHOST_WAITS_NOT
			   ? vhost_device_only_reads(session) || vhost_lanes_return(session)
			   : vhost_device_drained(session);

	if (!may) {
		wait_for_socket(session, POLLHUP);
	}
	return may;
}

static void message_run(struct vhost_session *session)
{
	for (uint32_t i = 0; i < MESSAGES_MAX;
		i += session->message.head.request == VHOST_SET_MEM_TABLE
			     ? (uint32_t)VHOST_REGIONS_TABLE_MAX
			     : 1U) {
		if (session->base.state != SESSION_READY || !reply_send(session) ||
			(session->waits != VHOST_WAITS_NOT && !message_may_go_on(session))) {
			return;
		}
		if (session->reply.bytes > 0) {
			continue; /* the reply of a message that has waited */
		}
		if (session->base.paused && !vhost_message_is_complete(session)) {
			return;
		}
		if (!dispose_has_room(session->base.peer.credentials.uid)) {
			vhost_session_fail(session, "too many descriptors of its user wait to be "
						    "closed");
			return;
		}
		while (!vhost_message_is_complete(session)) {
			if (!receive_part(session)) {
				return;
			}
		}
		if (!message_may_go_on(session) || !take(session)) {
			return;
		}
	}
	wait_for_socket(session, POLLIN | POLLOUT);
}

void vhost_message_run(struct vhost_session *session)
{
	message_run(session);
	vhost_lanes_go_on(session);
}
