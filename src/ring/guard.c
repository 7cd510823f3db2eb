// SPDX-License-Identifier: Apache-2.0
#include "ring/guard.h"

#include <errno.h>
#include <stdlib.h>

#include "base/work.h"

static void guard_make_room(struct ring_guard *guard)
{
	guard->message = (struct msghdr){
		.msg_iov = &guard->iov,
		.msg_iovlen = 1,
		.msg_control = guard->control,
		.msg_controllen = sizeof(guard->control),
	};
}

struct ring_guard *ring_guard_get(
	struct ring_guard **free_list, struct ring_file file, void *buf, size_t len, bool wait_all)
{
	struct ring_guard *guard = *free_list;

	if (guard != NULL) {
		*free_list = guard->next;
	} else {
		guard = malloc(sizeof(*guard));
	}
	if (guard != NULL) {
		guard->file = file;
		guard->iov = (struct iovec){ .iov_base = buf, .iov_len = len };
		guard->done = 0;
		guard->wait_all = wait_all;
		guard_make_room(guard);
	}
	return guard;
}

void ring_guard_put(struct ring_guard **free_list, struct ring_guard *guard)
{
	guard->next = *free_list;
	*free_list = guard;
}

void ring_guards_free(struct ring_guard *free_list)
{
	while (free_list != NULL) {
		struct ring_guard *next = free_list->next;

		free(free_list);
		free_list = next;
	}
}

/* Passes the file descriptors in a received message to a worker, which closes them. Returns true if
 * there were any. */
static bool get_rid(int fd, struct msghdr *message)
{
	int fds[RIGHTS_MAX];
	uint32_t count = rights_collect(message, fds);

	if (count > 0) {
		dispose(&(struct disposal){
			.fds = fds,
			.fd_count = count,
			.of_peer = true,
			.owner = rights_owner(fd),
		});
	}
	return count > 0 || (message->msg_flags & MSG_CTRUNC) != 0;
}

bool ring_guard_take(struct ring_guard *guard, int *result_inout)
{
	int result = *result_inout;

	if (result >= 0 && get_rid(guard->file.fd, &guard->message)) {
		*result_inout = -EPERM;
		return true;
	}
	if (result > 0) {
		guard->done += (size_t)result;
		guard->iov.iov_base = (uint8_t *)guard->iov.iov_base + result;
		guard->iov.iov_len -= (size_t)result;
		if (guard->wait_all && guard->iov.iov_len > 0) {
			guard_make_room(guard);
			return false;
		}
	}
	if (guard->done > 0) { /* a receive error is reported by the next receive */
		*result_inout = (int)guard->done;
	}
	return true;
}

void ring_guard_cancel(struct ring_guard *guard)
{
	guard->wait_all = false;
}

ssize_t ring_guard_receive(int fd, struct msghdr *message)
{
	_Alignas(struct cmsghdr) uint8_t control[RIGHTS_CONTROL_BYTES];
	ssize_t got;

	message->msg_control = control;
	message->msg_controllen = sizeof(control);
	got = recvmsg(fd, message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (got < 0) {
		got = -errno;
	} else if (get_rid(fd, message)) {
		got = -EPERM;
	}
	message->msg_control = NULL;
	message->msg_controllen = 0;
	return got;
}
