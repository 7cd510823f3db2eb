// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/compiler.h"
#include "clan_hostile.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL };

static const uint32_t slots[SHM_CLASS_COUNT] = { SHM_SYSTEM_SLOTS, SHM_CONTROL_SLOTS, 256 };

static void *make_segment(const char *name, size_t bytes, int *fd_out)
{
	void *base;

	*fd_out = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	GMB_ASSERT(*fd_out >= 0);
	GMB_ASSERT(ftruncate(*fd_out, (off_t)bytes) == 0);
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd_out, 0);
	GMB_ASSERT(base != MAP_FAILED);
	return base;
}

int hostile_listen(char address[HOSTILE_ADDRESS_BYTES])
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	socklen_t bytes = sizeof(at);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	GMB_ASSERT(fd >= 0);
	GMB_ASSERT(bind(fd, (const struct sockaddr *)&at, sizeof(sa_family_t)) == 0);
	GMB_ASSERT(listen(fd, 64) == 0);
	GMB_ASSERT(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
	snprintf(address, HOSTILE_ADDRESS_BYTES, "shm:@%.*s",
		(int)(bytes - offsetof(struct sockaddr_un, sun_path) - 1), at.sun_path + 1);
	return fd;
}

void hostile_open(struct hostile *hostile, const char *address)
{
	struct sockaddr_un peer = { .sun_family = AF_UNIX };
	size_t length = strlen(address + 5);
	int result;

	memset(hostile, 0, sizeof(*hostile));
	memcpy(peer.sun_path + 1, address + 5, length); /* of "shm:@NAME" */
	hostile->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	result = connect(hostile->socket, (struct sockaddr *)&peer,
		(socklen_t)(sizeof(sa_family_t) + 1 + length));
	GMB_ASSERT(result == 0);
	/* 64 cookies and 32 tripwires fit the first page. */
	hostile->segment_bytes =
		SHM_SEGMENT_ALIGN + (SHM_SYSTEM_SLOTS + SHM_CONTROL_SLOTS + 256) * SHM_SLOT_BYTES;
	hostile->segment = make_segment("hostile", hostile->segment_bytes, &hostile->segment_fd);
	hostile->head = (struct shm_conn_head *)(void *)hostile->segment;
	hostile->head->magic = SHM_MAGIC_CONN;
	hostile->head->version = SHM_VERSION;
	memcpy(hostile->head->slots, slots, sizeof(slots));
	hostile->head->cookies = 64;
	hostile->head->tripwires = 32;
	hostile->head->bytes = hostile->segment_bytes;
	hostile->group = make_segment("hostile-group", SHM_SEGMENT_ALIGN, &hostile->group_fd);
	hostile->group->magic = SHM_MAGIC_GROUP;
	hostile->group->version = SHM_VERSION;
	hostile->group->ready_slots = 512;
	hostile->group->bytes = SHM_SEGMENT_ALIGN;
	hostile->hello = (struct shm_hello){
		.head = { .bytes = sizeof(hostile->hello), .type = SHM_HELLO },
		.magic = SHM_MAGIC_HELLO,
		.version_min = SHM_VERSION,
		.version_max = SHM_VERSION,
		.bell = 2,
	};
	hostile->hello_bytes = sizeof(hostile->hello);
	hostile->fds[0] = hostile->segment_fd;
	hostile->fds[1] = hostile->group_fd;
	hostile->fd_count = 2;
}

void hostile_seal(struct hostile *hostile)
{
	/* One that the test has sealed already, or not at all, stays as it is. */
	fcntl(hostile->segment_fd, F_ADD_SEALS, SEALS);
	fcntl(hostile->group_fd, F_ADD_SEALS, SEALS);
}

bool hostile_send(struct hostile *hostile, const void *bytes, size_t length, const int *fds,
	uint32_t fd_count)
{
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(HOSTILE_FDS_MAX * sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = length };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fd_count > 0) {
		struct cmsghdr *part = (struct cmsghdr *)(void *)control;

		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		part->cmsg_level = SOL_SOCKET;
		part->cmsg_type = SCM_RIGHTS;
		part->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(part), fds, fd_count * sizeof(int));
	}
	return sendmsg(hostile->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

bool hostile_send_hello(struct hostile *hostile)
{
	uint8_t bytes[8192] = { 0 };

	memcpy(bytes, &hostile->hello, sizeof(hostile->hello));
	return hostile_send(hostile, bytes, hostile->hello_bytes, hostile->fds, hostile->fd_count);
}

static ssize_t receive(
	struct hostile *hostile, void *bytes, size_t size, int *fds, uint32_t *fd_count)
{
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(4 * sizeof(int))];
	struct iovec iov = { .iov_base = bytes, .iov_len = size };
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t length = recvmsg(hostile->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*fd_count = 0;
	if (length < 0) {
		return errno == EAGAIN ? -1 : 0;
	}
	for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part != NULL;
		part = CMSG_NXTHDR(&message, part)) {
		*fd_count = (uint32_t)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(part), *fd_count * sizeof(int));
	}
	return length;
}

ssize_t hostile_receive(struct hostile *hostile, void *bytes, size_t size)
{
	uint32_t fd_count;
	int fds[4];
	ssize_t length = receive(hostile, bytes, size, fds, &fd_count);

	for (uint32_t i = 0; i < fd_count; i++) {
		close(fds[i]);
	}
	return length;
}

bool hostile_welcomed(struct hostile *hostile)
{
	struct shm_welcome welcome;
	uint32_t fd_count;
	int fds[4];
	ssize_t length = receive(hostile, &welcome, sizeof(welcome), fds, &fd_count);

	if (length < (ssize_t)sizeof(welcome) || welcome.head.type != SHM_WELCOME ||
		fd_count != 2) {
		return false;
	}
	hostile->victim_number = welcome.number;
	hostile->victim_bell = welcome.bell;
	hostile->victim_group_id = welcome.group;
	hostile->victim_bytes = (size_t)lseek(fds[0], 0, SEEK_END);
	hostile->victim = mmap(NULL, hostile->victim_bytes, PROT_READ, MAP_SHARED, fds[0], 0);
	hostile->victim_group = mmap(NULL, SHM_SEGMENT_ALIGN, PROT_READ, MAP_SHARED, fds[1], 0);
	GMB_ASSERT(hostile->victim != MAP_FAILED && hostile->victim_group != MAP_FAILED);
	/* Nobody but its writer can write to it. */
	GMB_ASSERT(mmap(NULL, SHM_SEGMENT_ALIGN, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0) ==
		   MAP_FAILED);
	GMB_ASSERT(ftruncate(fds[0], 0) != 0);
	close(fds[0]);
	close(fds[1]);
	return true;
}

void hostile_close(struct hostile *hostile)
{
	if (hostile->socket >= 0) {
		close(hostile->socket);
	}
	munmap(hostile->segment, hostile->segment_bytes);
	munmap(hostile->group, SHM_SEGMENT_ALIGN);
	close(hostile->segment_fd);
	close(hostile->group_fd);
	if (hostile->victim != NULL) {
		munmap((void *)(uintptr_t)hostile->victim, hostile->victim_bytes);
		munmap((void *)(uintptr_t)hostile->victim_group, SHM_SEGMENT_ALIGN);
	}
}

static uint8_t *ring_of(struct hostile *hostile, enum shm_class class)
{
	uint8_t *ring = hostile->segment + SHM_SEGMENT_ALIGN;

	for (enum shm_class before = 0; before < class; before++) {
		ring += slots[before] * SHM_SLOT_BYTES;
	}
	return ring;
}

void hostile_put(struct hostile *hostile, enum shm_class class, struct shm_message_head head,
	const void *payload, size_t bytes)
{
	uint8_t *at = ring_of(hostile, class) +
		      (hostile->write[class] & (slots[class] - 1)) * SHM_SLOT_BYTES;

	memcpy(at, &head, sizeof(head));
	if (bytes > 0) {
		memcpy(at + sizeof(head), payload, bytes);
	}
	hostile->write[class] += (head.bytes + SHM_SLOT_BYTES - 1) / SHM_SLOT_BYTES;
}

void hostile_ring(struct hostile *hostile)
{
	static const uint8_t byte = SHM_BELL;

	atomic_fetch_add(&hostile->group->bell, 1);
	syscall(SYS_futex, &hostile->group->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
	if (hostile->victim_bell == 2) {
		hostile_send(hostile, &byte, 1, NULL, 0);
	}
}

void hostile_publish(struct hostile *hostile)
{
	uint32_t pushed = atomic_load(&hostile->group->ready_write);

	for (int class = 0; class < SHM_CLASS_COUNT; class ++) {
		atomic_store(&hostile->head->write[class], hostile->write[class]);
	}
	atomic_store(&hostile->group->ready[pushed & 511], hostile->victim_number);
	atomic_store(&hostile->group->ready_write, pushed + 1);
	hostile_ring(hostile);
}
