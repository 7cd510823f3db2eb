// SPDX-License-Identifier: Apache-2.0
/*
 * The C library's names for reading and writing.
 */
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sockets/hooks.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum {
	/* Flags for receiving data outside the stream, which only the kernel can do. All other
	 * receive flags are either emulated or ignored by TCP. */
	RECEIVE_FLAGS_OTHER = MSG_OOB | MSG_ERRQUEUE,
	SEND_FLAGS = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE | MSG_EOR | MSG_CONFIRM,
	SCRATCH_BYTES = 16384,
	BACK_WAIT_MS = 1000,
};

/* Converts a negative errno to the convention of the C library. */
static ssize_t hooks_data_give(ssize_t result)
{
	if (result < 0) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

/* Returns the connection to TCP for good, because the library does not emulate a call of the
 * program. */
static void hand_back(struct conn *conn, enum sockets_reason reason)
{
	if (core_lock()) {
		if (conn_state(conn) != CONN_FREE) {
			conn_unfit(conn, reason);
		}
		core_unlock();
	}
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Receives with MSG_TRUNC, which on TCP discards the bytes instead of copying them. */
__attribute__((noinline)) static ssize_t discard(
	struct conn *conn, const struct iovec *iov, int iov_count, int flags, bool *plain)
{
	uint8_t scratch[SCRATCH_BYTES];
	struct iovec all = { .iov_base = scratch };

	for (int i = 0; i < iov_count; i++) {
		all.iov_len += MIN(iov[i].iov_len, sizeof(scratch) - all.iov_len);
	}
	return data_recv(conn, &all, 1, flags & ~MSG_TRUNC, plain);
}

static bool is_bad(const struct iovec *iov, int iov_count)
{
	for (int i = 0; i < iov_count; i++) {
		if (iov[i].iov_base == NULL && iov[i].iov_len > 0) {
			return true;
		}
	}
	return false;
}

static ssize_t receive_ours(
	struct conn *conn, const struct iovec *iov, int iov_count, int flags, bool *plain)
{
	if ((flags & MSG_TRUNC) != 0) {
		return discard(conn, iov, iov_count, flags, plain);
	}
	if (is_bad(iov, iov_count)) {
		*plain = false;
		return -EFAULT;
	}
	return data_recv(conn, iov, iov_count, flags, plain);
}

/* Common path of all reading calls. Returns false if the caller must make the call in the kernel,
 * before plain_leave(call). */
static bool hooks_data_receive(int fd, const struct iovec *iov, int iov_count, int flags,
	struct plain_call *call, ssize_t *result)
{
	for (;;) {
		enum way way = plain_enter(fd, false, call);
		bool plain;

		if (way != WAY_OURS) {
			if (way == WAY_PLAIN && (flags & RECEIVE_FLAGS_OTHER) != 0) {
				plain_leave(call);
				hand_back(call->conn, REASON_CALL);
			}
			return false;
		}
		if ((flags & RECEIVE_FLAGS_OTHER) != 0 || iov_count < 0 ||
			iov_count > SOCKETS_IOV_MAX) {
			hand_back(call->conn, REASON_CALL);
			return false;
		}
		*result = receive_ours(call->conn, iov, iov_count, flags, &plain);
		if (!plain) {
			*result = hooks_data_give(*result);
			return true;
		}
	}
}

/* Counts the bytes that the kernel has moved. */
static ssize_t hooks_data_received(struct plain_call *call, ssize_t got, int flags)
{
	call->bytes = (flags & MSG_PEEK) != 0 ? 0 : got;
	return got;
}

EXPORT ssize_t read(int fd, void *buffer, size_t bytes)
{
	struct iovec iov = { .iov_base = buffer, .iov_len = bytes };
	PLAIN_CALL call = { 0 };
	ssize_t got;

	if (object_at(fd) == NULL || bytes == 0) {
		return REAL(read)(fd, buffer, bytes);
	}
	if (hooks_data_receive(fd, &iov, 1, 0, &call, &got)) {
		return got;
	}
	return hooks_data_received(&call, REAL(read)(fd, buffer, bytes), 0);
}

static bool is_empty(const struct iovec *iov, int iov_count)
{
	for (int i = 0; i < iov_count; i++) {
		if (iov[i].iov_len > 0) {
			return false;
		}
	}
	return true;
}

EXPORT ssize_t readv(int fd, const struct iovec *iov, int iov_count)
{
	PLAIN_CALL call = { 0 };
	ssize_t got;

	if (object_at(fd) == NULL || is_empty(iov, iov_count)) {
		return REAL(readv)(fd, iov, iov_count);
	}
	if (hooks_data_receive(fd, iov, iov_count, 0, &call, &got)) {
		return got;
	}
	return hooks_data_received(&call, REAL(readv)(fd, iov, iov_count), 0);
}

EXPORT ssize_t recvfrom(
	int fd, void *buffer, size_t bytes, int flags, struct sockaddr *address, socklen_t *length)
{
	struct iovec iov = { .iov_base = buffer, .iov_len = bytes };
	PLAIN_CALL call = { 0 };
	ssize_t got;

	if (object_at(fd) == NULL) {
		return REAL(recvfrom)(fd, buffer, bytes, flags, address, length);
	}
	if (hooks_data_receive(fd, &iov, 1, flags, &call, &got)) {
		if (got >= 0 && address != NULL && length != NULL) {
			*length = 0; /* TCP returns no address, either */
		}
		return got;
	}
	return hooks_data_received(
		&call, REAL(recvfrom)(fd, buffer, bytes, flags, address, length), flags);
}

EXPORT ssize_t recv(int fd, void *buffer, size_t bytes, int flags)
{
	struct iovec iov = { .iov_base = buffer, .iov_len = bytes };
	PLAIN_CALL call = { 0 };
	ssize_t got;

	if (object_at(fd) == NULL) {
		return REAL(recv)(fd, buffer, bytes, flags);
	}
	if (hooks_data_receive(fd, &iov, 1, flags, &call, &got)) {
		return got;
	}
	return hooks_data_received(&call, REAL(recv)(fd, buffer, bytes, flags), flags);
}

/* The message gets no address and no control data, because streams do not have them. */
EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	PLAIN_CALL call = { 0 };
	ssize_t got;

	if (object_at(fd) == NULL) {
		return REAL(recvmsg)(fd, message, flags);
	}
	if (hooks_data_receive(fd, message->msg_iov,
		    (int)MIN(message->msg_iovlen, (size_t)INT32_MAX), flags, &call, &got)) {
		if (got >= 0) {
			message->msg_namelen = 0;
			message->msg_controllen = 0;
			message->msg_flags = 0;
		}
		return got;
	}
	return hooks_data_received(&call, REAL(recvmsg)(fd, message, flags), flags);
}

/* Receives one message after another, until the end of the stream or an error. */
EXPORT int recvmmsg(
	int fd, struct mmsghdr *messages, unsigned int count, int flags, struct timespec *timeout)
{
	uint64_t deadline_ns = wait_deadline(timeout);
	unsigned int done = 0;

	if (object_at(fd) == NULL) {
		return REAL(recvmmsg)(fd, messages, count, flags, timeout);
	}
	if (timeout != NULL &&
		(timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000)) {
		errno = EINVAL;
		return -1;
	}
	while (done < count) {
		int wait = done > 0 && (flags & MSG_WAITFORONE) != 0 ? MSG_DONTWAIT : 0;
		ssize_t got =
			recvmsg(fd, &messages[done].msg_hdr, (flags & ~MSG_WAITFORONE) | wait);

		if (got < 0) {
			return done > 0 ? (int)done : -1;
		}
		messages[done++].msg_len = (unsigned int)got;
		if (timeout != NULL) { /* Linux also checks the time only after each message */
			*timeout = wait_left(deadline_ns);
		}
		if (got == 0 ||
			(timeout != NULL && timeout->tv_sec == 0 && timeout->tv_nsec == 0)) {
			break;
		}
	}
	return (int)done;
}

EXPORT ssize_t __read_chk(int fd, void *buffer, size_t bytes, size_t room)
{
	GMB_ASSERT(bytes <= room);
	return read(fd, buffer, bytes);
}

EXPORT ssize_t __recv_chk(int fd, void *buffer, size_t bytes, size_t room, int flags)
{
	GMB_ASSERT(bytes <= room);
	return recv(fd, buffer, bytes, flags);
}

EXPORT ssize_t __recvfrom_chk(int fd, void *buffer, size_t bytes, size_t room, int flags,
	struct sockaddr *address, socklen_t *length)
{
	GMB_ASSERT(bytes <= room);
	return recvfrom(fd, buffer, bytes, flags, address, length);
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Common path of all writing calls; like hooks_data_receive(). */
static bool hooks_data_transmit(int fd, const struct iovec *iov, int iov_count, int flags,
	struct plain_call *call, ssize_t *result)
{
	for (;;) {
		enum way way = plain_enter(fd, true, call);
		bool plain = false;

		if (way != WAY_OURS) {
			if (way == WAY_PLAIN &&
				(flags & (MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN)) != 0) {
				plain_leave(call);
				hand_back(call->conn, REASON_CALL);
			}
			return false;
		}
		if ((flags & ~SEND_FLAGS) != 0 || iov_count < 0 || iov_count > SOCKETS_IOV_MAX) {
			hand_back(call->conn, REASON_CALL);
			return false;
		}
		if (is_empty(iov, iov_count)) {
			return false; /* no byte is moved */
		}
		*result = is_bad(iov, iov_count)
				  ? -EFAULT
				  : data_sendv(call->conn, iov, iov_count, flags, &plain);
		if (!plain) {
			*result = hooks_data_give(*result);
			return true;
		}
	}
}

static ssize_t transmitted(struct plain_call *call, ssize_t sent)
{
	call->bytes = sent;
	return sent;
}

EXPORT ssize_t write(int fd, const void *buffer, size_t bytes)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)buffer, .iov_len = bytes };
	PLAIN_CALL call = { 0 };
	ssize_t sent;

	if (object_at(fd) == NULL) {
		return REAL(write)(fd, buffer, bytes);
	}
	if (hooks_data_transmit(fd, &iov, 1, 0, &call, &sent)) {
		return sent;
	}
	return transmitted(&call, REAL(write)(fd, buffer, bytes));
}

EXPORT ssize_t writev(int fd, const struct iovec *iov, int iov_count)
{
	PLAIN_CALL call = { 0 };
	ssize_t sent;

	if (object_at(fd) == NULL) {
		return REAL(writev)(fd, iov, iov_count);
	}
	if (hooks_data_transmit(fd, iov, iov_count, 0, &call, &sent)) {
		return sent;
	}
	return transmitted(&call, REAL(writev)(fd, iov, iov_count));
}

EXPORT ssize_t sendto(int fd, const void *buffer, size_t bytes, int flags,
	const struct sockaddr *address, socklen_t length)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)buffer, .iov_len = bytes };
	PLAIN_CALL call = { 0 };
	ssize_t sent;

	if (object_at(fd) == NULL) {
		sent = REAL(sendto)(fd, buffer, bytes, flags, address, length);
		if ((flags & MSG_FASTOPEN) != 0 && sent >= 0) {
			hooks_connected(fd, address, length);
		}
		return sent;
	}
	if (hooks_data_transmit(fd, &iov, 1, flags, &call, &sent)) {
		return sent;
	}
	return transmitted(&call, REAL(sendto)(fd, buffer, bytes, flags, address, length));
}

EXPORT ssize_t send(int fd, const void *buffer, size_t bytes, int flags)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)buffer, .iov_len = bytes };
	PLAIN_CALL call = { 0 };
	ssize_t sent;

	if (object_at(fd) == NULL) {
		return REAL(send)(fd, buffer, bytes, flags);
	}
	if (hooks_data_transmit(fd, &iov, 1, flags, &call, &sent)) {
		return sent;
	}
	return transmitted(&call, REAL(send)(fd, buffer, bytes, flags));
}

/* Returns false, with errno, if the message would pass a descriptor whose bytes have not been
 * read. */
static bool hooks_data_may_pass(const struct msghdr *message)
{
	if (message->msg_controllen == 0 || !atomic_load(&core.active) || process_passes(message)) {
		return true;
	}
	errno = EBUSY;
	return false;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	PLAIN_CALL call = { 0 };
	ssize_t sent;

	if (message != NULL && !hooks_data_may_pass(message)) {
		return -1;
	}
	if (object_at(fd) == NULL) {
		return REAL(sendmsg)(fd, message, flags);
	}
	/* Ancillary data needs the kernel, so the call is treated like one with the unsupported
	 * flag MSG_OOB. */
	if (hooks_data_transmit(fd, message->msg_iov,
		    (int)MIN(message->msg_iovlen, (size_t)INT32_MAX),
		    message->msg_controllen > 0 ? flags | MSG_OOB : flags, &call, &sent)) {
		return sent;
	}
	return transmitted(&call, REAL(sendmsg)(fd, message, flags));
}

/* hooks_data_may_pass() fails for a message that passes a descriptor with unread bytes. On an
 * untracked socket, one call in the kernel sends the messages before that one. On a tracked socket,
 * sendmsg() sends each message. */
EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags)
{
	unsigned int done = 0;

	if (object_at(fd) == NULL) {
		while (done < count && hooks_data_may_pass(&messages[done].msg_hdr)) {
			done++;
		}
		return done > 0 || count == 0 ? REAL(sendmmsg)(fd, messages, done, flags) : -1;
	}
	while (done < count) {
		ssize_t sent = sendmsg(fd, &messages[done].msg_hdr, flags);

		if (sent < 0) {
			return done > 0 ? (int)done : -1;
		}
		messages[done++].msg_len = (unsigned int)sent;
	}
	return (int)done;
}

/* sendfile() for one part. The file is read without the lock; bytes that found no room are read
 * again. */
static ssize_t send_part_of_file(
	struct conn *conn, int in_fd, off_t *offset, size_t bytes, int flags, bool *plain)
{
	uint8_t part[SCRATCH_BYTES];
	off_t at = offset != NULL ? *offset : lseek(in_fd, 0, SEEK_CUR);
	struct iovec iov = { .iov_base = part };
	ssize_t sent;
	ssize_t got;

	*plain = false;
	if (at < 0) {
		return -EINVAL;
	}
	got = pread(in_fd, part, MIN(bytes, sizeof(part)), at);
	if (got <= 0) {
		return got < 0 ? -errno : 0;
	}
	iov.iov_len = (size_t)got;
	sent = data_sendv(conn, &iov, 1, flags, plain);
	if (sent > 0 && offset != NULL) {
		*offset = at + sent;
	} else if (sent > 0) {
		(void)lseek(in_fd, at + sent, SEEK_SET);
	}
	return sent;
}

EXPORT ssize_t sendfile64(int out_fd, int in_fd, off_t *offset, size_t count)
{
	size_t done = 0;
	ssize_t sent;
	bool plain;

	if (conn_at(in_fd) != NULL) {
		errno = EINVAL; /* like the kernel: a socket cannot be the source */
		return -1;
	}
	if (object_at(out_fd) == NULL) {
		return REAL(sendfile64)(out_fd, in_fd, offset, count);
	}
	do {
		PLAIN_CALL call = { 0 };

		if (plain_enter(out_fd, true, &call) != WAY_OURS) {
			sent = transmitted(
				&call, REAL(sendfile64)(out_fd, in_fd, offset, count - done));
			return done > 0 ? (ssize_t)done + MAX(sent, 0) : sent;
		}
		sent = send_part_of_file(call.conn, in_fd, offset, count - done,
			done > 0 ? MSG_NOSIGNAL : 0, &plain);
		done += (size_t)MAX(sent, 0);
	} while (plain || (done < count && sent == SCRATCH_BYTES));
	return done > 0 ? (ssize_t)done : hooks_data_give(sent);
}

EXPORT ssize_t sendfile(int out_fd, int in_fd, off_t *offset, size_t count)
{
	return sendfile64(out_fd, in_fd, offset, count);
}

/* Returns the connection to TCP for good, for operations that only the kernel can do. Returns false
 * if the ring has bytes that the program must read first. splice() then fails with EINVAL, as on a
 * file system without splice. */
bool hooks_leave(int fd)
{
	struct conn *conn = conn_at(fd);
	bool fits = true;

	if (conn != NULL && core_lock()) {
		conn = conn_at(fd);
		if (conn != NULL && conn_is_carried(conn)) {
			conn_unfit(conn, REASON_CALL);
			(void)conn_bring_back_one(conn, REASON_CALL, BACK_WAIT_MS);
			fits = !conn_is_carried(conn);
			if (fits && conn_at(fd) == conn) {
				/* The object is released now, because a stdio stream closes its
				 * descriptor by a call that we do not see. */
				conn_untrack(conn);
			}
		} else if (conn != NULL) {
			conn_forget(conn, REASON_CALL);
		}
		core_unlock();
	}
	return fits;
}

EXPORT ssize_t splice(int in_fd, off_t *in_offset, int out_fd, off_t *out_offset, size_t bytes,
	unsigned int flags)
{
	if (!hooks_leave(in_fd) || !hooks_leave(out_fd)) {
		errno = EINVAL;
		return -1;
	}
	return REAL(splice)(in_fd, in_offset, out_fd, out_offset, bytes, flags);
}

/* --- streams ---------------------------------------------------------------------------------- */

static int cookie_fd(void *cookie)
{
	return (int)(intptr_t)cookie;
}

static ssize_t cookie_read(void *cookie, char *buffer, size_t bytes)
{
	return read(cookie_fd(cookie), buffer, bytes);
}

static ssize_t cookie_write(void *cookie, const char *buffer, size_t bytes)
{
	return write(cookie_fd(cookie), buffer, bytes);
}

static int cookie_close(void *cookie)
{
	return close(cookie_fd(cookie));
}

/* A stdio stream calls the kernel directly, not our read() and write(). So its connection must be
 * on TCP. If the connection cannot return to TCP, fopencookie() makes the stream call our
 * functions. */
EXPORT FILE *fdopen(int fd, const char *mode)
{
	static const cookie_io_functions_t functions = {
		.read = cookie_read,
		.write = cookie_write,
		.close = cookie_close,
	};

	if (!hooks_leave(fd)) {
		return fopencookie((void *)(intptr_t)fd, mode, functions);
	}
	return REAL(fdopen)(fd, mode);
}

static int write_all(int fd, const char *text, int length)
{
	int done = 0;

	while (done < length) {
		ssize_t sent = write(fd, text + done, (size_t)(length - done));

		if (sent < 0) {
			return -1;
		}
		done += (int)sent;
	}
	return length;
}

EXPORT int vdprintf(int fd, const char *format, va_list arguments)
{
	SOCKETS_AUTO_FREE char *text = NULL;
	int length = vasprintf(&text, format, arguments);

	if (length < 0) {
		text = NULL;
		return length;
	}
	return write_all(fd, text, length);
}

EXPORT int dprintf(int fd, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vdprintf(fd, format, arguments);
	va_end(arguments);
	return length;
}

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments)
{
	return vdprintf(fd, format, arguments);
}

EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = __vdprintf_chk(fd, flag, format, arguments);
	va_end(arguments);
	return length;
}
