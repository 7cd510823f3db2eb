// SPDX-License-Identifier: Apache-2.0
/* The channel between the two processes of an upgrade (docs/protocol/upgrade.md). */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/upgrade/wire.h"
#include "unit.h"

static int create_channel(void **state)
{
	static int ends[2];

	*state = ends;
	return socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends);
}

static int receive(int channel, struct upgrade_message *message)
{
	static uint8_t bytes[UPGRADE_PACKET_BYTES_MAX];
	struct error error;

	return upgrade_receive(channel, 0, bytes, message, &error);
}

/* A process that fails does not read what is still on its way to it. */
TEST_WITH(test_reason_after_unread_messages, create_channel, NULL)
{
	const int *ends = *state;
	const struct upgrade_message unread = { .type = UPGRADE_PREPARE, .fd = -1 };
	struct upgrade_message message;

	assert_int_equal(upgrade_send(ends[0], &unread), 0);
	upgrade_send_failure(ends[1], "not one more");
	close(ends[1]);
	assert_int_equal(receive(ends[0], &message), 0);
	assert_int_equal(message.type, UPGRADE_FAILED);
	assert_int_equal(message.text_bytes, strlen("not one more"));
	assert_memory_equal(message.text, "not one more", message.text_bytes);
	assert_int_equal(receive(ends[0], &message), -ECONNRESET);
	assert_int_equal(receive(ends[0], &message), -ECONNRESET);
	close(ends[0]);
}

TEST_WITH(test_end_without_reason, create_channel, NULL)
{
	const int *ends = *state;
	const struct upgrade_message unread = { .type = UPGRADE_PREPARE, .fd = -1 };
	struct upgrade_message message;

	assert_int_equal(receive(ends[0], &message), -EAGAIN);
	assert_int_equal(upgrade_send(ends[0], &unread), 0);
	close(ends[1]);
	assert_int_equal(receive(ends[0], &message), -ECONNRESET);
	close(ends[0]);
}

TEST_WITH(test_state_folder, create_channel, NULL)
{
	const int *ends = *state;
	const struct upgrade_message bare = { .type = UPGRADE_STATE, .fd = -1 };
	const struct upgrade_message sent = { .type = UPGRADE_STATE, .fd = ends[0] };
	struct upgrade_message message;

	assert_int_equal(upgrade_send(ends[0], &bare), 0);
	assert_int_equal(receive(ends[1], &message), -EPROTO);
	assert_int_equal(upgrade_send(ends[0], &sent), 0);
	assert_int_equal(receive(ends[1], &message), 0);
	assert_int_equal(message.type, UPGRADE_STATE);
	assert_true(message.fd >= 0);
	close(message.fd);
	close(ends[0]);
	close(ends[1]);
}

/* The largest number of descriptors; they arrive in their order. */
TEST_WITH(test_descriptors_of_a_session, create_channel, NULL)
{
	const int *ends = *state;
	struct upgrade_message sent = { .type = UPGRADE_SESSION,
		.record = { .id = UINT64_C(1) << 40, .kind = "vhost", .kind_bytes = 5 } };
	struct upgrade_message message;
	int pipes[2];
	char byte = 0;

	assert_int_equal(pipe(pipes), 0);
	sent.fd = ends[1];
	for (int i = 0; i < ENGINE_HANDOVER_FDS_MAX; i++) {
		sent.record.fds[i] = pipes[i % 2];
	}
	sent.record.fd_count = ENGINE_HANDOVER_FDS_MAX;
	assert_int_equal(upgrade_send(ends[0], &sent), 0);
	assert_int_equal(receive(ends[1], &message), 0);
	assert_int_equal(message.type, UPGRADE_SESSION);
	assert_int_equal(message.record.id, UINT64_C(1) << 40);
	assert_int_equal(message.record.fd_count, ENGINE_HANDOVER_FDS_MAX);
	close(pipes[0]);
	close(pipes[1]);
	for (int i = 0; i < ENGINE_HANDOVER_FDS_MAX; i += 2) {
		char sent_byte = (char)i;

		assert_int_equal(write(message.record.fds[i + 1], &sent_byte, 1), 1);
		assert_int_equal(read(message.record.fds[i], &byte, 1), 1);
		assert_int_equal(byte, sent_byte);
	}
	upgrade_message_close(&message);
	assert_int_equal(message.fd, -1);
	assert_int_equal(message.record.fd_count, 0);
	close(ends[0]);
	close(ends[1]);
}

/* Only sessions have more than one. */
TEST_WITH(test_too_many_descriptors, create_channel, NULL)
{
	const int *ends = *state;
	struct upgrade_message sent = { .type = UPGRADE_SESSION,
		.record = { .kind = "vhost", .kind_bytes = 5 } };
	uint8_t bytes[UPGRADE_PACKET_BYTES_MAX];
	struct upgrade_message message;
	struct error error;
	ssize_t count;

	sent.fd = ends[1];
	assert_int_equal(upgrade_send(ends[0], &sent), 0);
	count = recv(ends[1], bytes, sizeof(bytes), 0);
	assert_true(count > 0);
	for (uint32_t fds = 0; fds <= ENGINE_HANDOVER_FDS_MAX + 2; fds++) {
		bool fits = fds >= 1 && fds <= ENGINE_HANDOVER_FDS_MAX + 1;

		assert_int_equal(upgrade_parse(bytes, (size_t)count, fds, &message, &error),
			fits ? 0 : -EPROTO);
	}
	bytes[7] = UPGRADE_PREPARE;
	assert_int_equal(upgrade_parse(bytes, 8, 0, &message, &error), 0);
	assert_int_equal(upgrade_parse(bytes, 8, 1, &message, &error), -EPROTO);
	close(ends[0]);
	close(ends[1]);
}
