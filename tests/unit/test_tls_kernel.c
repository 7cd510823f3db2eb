// SPDX-License-Identifier: Apache-2.0
/*
 * The layer of kernel TLS on a real kernel, against GnuTLS at the other end of a loopback
 * connection. For guests whose kernels have it (tests/vm/tls-kernel.py).
 *
 *   test_tls_kernel rekeying | no-rekeying     what the kernel must be found to be able to do
 *
 * The layer is built with a small limit of blocks under one key, and setsockopt() is wrapped, so
 * that keys can be refused. What GnuTLS does is done in turn with
 * the ring, without a thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tls_sessions.h"
#include "tls_world.h"
#include "unit.h"

#ifndef SOL_TLS
#define SOL_TLS 282
#endif

enum { DATA_BYTES = 3 << 20, CHUNK_BYTES = 50000, LINE_BYTES = 64 };

static bool can_rekey;

/* --- refused keys ----------------------------------------------------------------------------- */

static int refused_option; /* of SOL_TLS: answered with ENOENT, as without a cipher's module */

int __real_setsockopt(int fd, int level, int option, const void *value, socklen_t bytes);
int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t bytes);

int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t bytes)
{
	if (level == SOL_TLS && option == refused_option) {
		errno = ENOENT;
		return -1;
	}
	return __real_setsockopt(fd, level, option, value, bytes);
}

/* --- a connection ----------------------------------------------------------------------------- */

/* Ours is a stream with the layer, the peer a session of GnuTLS. */
struct world {
	struct ring *ring;
	struct tls_ends ends;
	enum tls_role role; /* ours */
	struct stream stream;
	struct tls_kernel *kernel;
	struct error error;
	int took; /* what tls_kernel_take() said */
	int peer_fd;
	gnutls_session_t peer;
	struct ring_op send_op;
	struct ring_op receive_op;
	int sent;
	int received;
};

static void connect_pair(int fds[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
	fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(fds[0], (struct sockaddr *)&address, sizeof(address)), 0);
	fds[1] = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	assert_true(fds[1] >= 0);
	assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
	close(listener);
}

static void world_begin(struct world *world, enum tls_role role, enum tls_version version,
	enum tls_cipher cipher, enum tls_records records)
{
	static const struct stream_keep_alive keep_alive = { 30, 10, 3 };
	const struct ring_options options = { .entries = 8, .files_max = 4, .buffers_max = 1 };
	int fds[2];

	*world = (struct world){ .role = role };
	assert_int_equal(ring_create(&options, &world->ring, &world->error), 0);
	connect_pair(fds);
	tls_ends_begin(&world->ends, version, cipher);
	gnutls_transport_set_int(world->ends.sessions[TLS_SERVER], fds[TLS_SERVER]);
	gnutls_transport_set_int(world->ends.sessions[TLS_CLIENT], fds[TLS_CLIENT]);
	tls_ends_shake(&world->ends);
	world->peer_fd = fds[!role];
	world->peer = world->ends.sessions[!role];
	/* It was said and nobody has received it: it is for the kernel. */
	assert_int_equal(gnutls_record_send(world->peer, "early", 5), 5);

	assert_true(tls_kernel_is_wanted(records, fds[role]));
	stream_open(&world->stream, world->ring, fds[role], &keep_alive);
	world->took = tls_kernel_take(&world->stream, role, records, world->ends.sessions[role],
		&world->ends.keys[role], &world->error, &world->kernel);
}

static void world_end(struct world *world)
{
	stream_shutdown(&world->stream);
	while (world->kernel != NULL && !tls_kernel_is_idle(world->kernel)) {
		(void)ring_turn(world->ring, true);
	}
	tls_kernel_free(world->kernel);
	stream_close(&world->stream);
	tls_ends_end(&world->ends);
	close(world->peer_fd);
	ring_destroy(world->ring);
}

static void sent(struct ring_op *op, int result)
{
	container_of(op, struct world, send_op)->sent = result;
}

static void received(struct ring_op *op, int result)
{
	container_of(op, struct world, receive_op)->received = result;
}

static void begin_send(struct world *world, const struct msghdr *message)
{
	ring_op_begin(&world->send_op, sent);
	tls_kernel_send(world->kernel, &world->send_op, message);
}

static void begin_receive(struct world *world, struct msghdr *message, bool whole)
{
	ring_op_begin(&world->receive_op, received);
	tls_kernel_receive(world->kernel, &world->receive_op, message, whole);
}

static void turn_until_done(struct world *world, const struct ring_op *op)
{
	while (op->in_flight) {
		(void)ring_turn(world->ring, true);
	}
}

/* --- lines ------------------------------------------------------------------------------------ */

static int receive_line(struct world *world, char line[LINE_BYTES], size_t bytes)
{
	struct iovec iov = { .iov_base = line, .iov_len = bytes };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	memset(line, 0, LINE_BYTES);
	begin_receive(world, &message, bytes < LINE_BYTES);
	turn_until_done(world, &world->receive_op);
	return world->received;
}

/* The peer says it, and we hear it. */
static void expect_line(struct world *world, const char *line)
{
	char heard[LINE_BYTES];

	assert_int_equal(receive_line(world, heard, strlen(line)), strlen(line));
	assert_string_equal(heard, line);
}

static void peer_says(struct world *world, const char *line)
{
	assert_int_equal(gnutls_record_send(world->peer, line, strlen(line)), strlen(line));
	expect_line(world, line);
}

static int say(struct world *world, const char *line)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)line, .iov_len = strlen(line) };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	begin_send(world, &message);
	turn_until_done(world, &world->send_op);
	return world->sent;
}

/* What GnuTLS has received, or its error. */
static ssize_t hear(gnutls_session_t session, void *bytes, size_t room)
{
	struct pollfd entry = { .fd = gnutls_transport_get_int(session), .events = POLLIN };
	ssize_t result;

	while ((result = gnutls_record_recv(session, bytes, room)) == GNUTLS_E_AGAIN) {
		assert_int_equal(poll(&entry, 1, -1), 1);
	}
	return result;
}

static ssize_t peer_hears(struct world *world, char line[LINE_BYTES])
{
	memset(line, 0, LINE_BYTES);
	return hear(world->peer, line, LINE_BYTES - 1);
}

static void we_say(struct world *world, const char *line)
{
	char heard[LINE_BYTES];

	assert_int_equal(say(world, line), strlen(line));
	assert_int_equal(peer_hears(world, heard), strlen(line));
	assert_string_equal(heard, line);
}

static void both_talk(struct world *world)
{
	peer_says(world, "to us");
	we_say(world, "from us");
}

/* --- data ------------------------------------------------------------------------------------- */

static uint8_t *make_data(unsigned seed)
{
	uint8_t *data = malloc(DATA_BYTES);

	for (size_t i = 0; i < DATA_BYTES; i++) {
		data[i] = (uint8_t)rand_r(&seed);
	}
	return data;
}

/* In 11 pieces of odd sizes. */
static void scatter(struct msghdr *message, struct iovec iovs[11], uint8_t *bytes, size_t count)
{
	size_t at = 0;

	for (size_t i = 0; i < 11; i++) {
		size_t part = i == 10 ? count - at : MIN(i * 977, count - at);

		iovs[i] = (struct iovec){ .iov_base = bytes + at, .iov_len = part };
		at += part;
	}
	*message = (struct msghdr){ .msg_iov = iovs, .msg_iovlen = 11 };
}

static void peer_sends(struct world *world, const uint8_t *data, size_t *at, size_t limit)
{
	while (*at < limit) {
		ssize_t result = gnutls_record_send(world->peer, data + *at, limit - *at);

		if (result == GNUTLS_E_AGAIN) {
			return;
		}
		assert_true(result > 0);
		*at += (size_t)result;
	}
}

/* The peer updates its key now and then, and asks for ours, if it can. */
static void talk_at_length(struct world *world, bool updates)
{
	uint8_t *data = make_data(7);
	uint8_t *heard = calloc(1, DATA_BYTES);
	struct iovec in[11];
	struct iovec out[11];
	struct msghdr in_message;
	struct msghdr out_message;
	size_t said = 0;
	size_t got = 0;
	size_t peer_got = 0;
	size_t peer_said = 0;
	size_t update_at = 0;

	while (got < DATA_BYTES || peer_got < DATA_BYTES) {
		size_t limit = MIN(peer_said + CHUNK_BYTES, (size_t)DATA_BYTES);

		if (updates && got == peer_said && peer_said >= update_at) {
			int flags = update_at == 0 ? 0 : GNUTLS_KU_PEER;

			assert_int_equal(gnutls_session_key_update(world->peer, flags), 0);
			update_at += DATA_BYTES / 3;
		}
		peer_sends(world, data, &peer_said, limit);
		if (!world->receive_op.in_flight && got < peer_said) {
			scatter(&in_message, in, heard + got, peer_said - got);
			begin_receive(world, &in_message, true);
		}
		if (!world->send_op.in_flight && said < DATA_BYTES) {
			scatter(&out_message, out, data + said,
				MIN((size_t)DATA_BYTES - said, (size_t)CHUNK_BYTES));
			begin_send(world, &out_message);
		}
		if (world->receive_op.in_flight || world->send_op.in_flight) {
			bool receives = world->receive_op.in_flight;
			bool sends = world->send_op.in_flight;

			(void)ring_turn_limited(world->ring, 1000000);
			if (receives && !world->receive_op.in_flight) {
				assert_true(world->received > 0);
				got += (size_t)world->received;
			}
			if (sends && !world->send_op.in_flight) {
				assert_true(world->sent > 0);
				said += (size_t)world->sent;
			}
		}
		while (peer_got < DATA_BYTES) {
			uint8_t part[16384];
			ssize_t result = gnutls_record_recv(world->peer, part, sizeof(part));

			if (result == GNUTLS_E_AGAIN) {
				break;
			}
			assert_true(result > 0);
			assert_memory_equal(part, data + peer_got, (size_t)result);
			peer_got += (size_t)result;
		}
	}
	assert_memory_equal(heard, data, DATA_BYTES);
	free(data);
	free(heard);
}

/* --- tests ------------------------------------------------------------------------------------ */

TEST(test_what_the_kernel_can)
{
	const struct tls_kernel_features *features = tls_kernel_features();

	print_message("ciphers %x %x, %s\n", features->ciphers[TLS_1_2], features->ciphers[TLS_1_3],
		features->why_not.text);
	assert_int_equal(features->ciphers[TLS_1_2], BIT(TLS_CIPHER_COUNT) - 1);
	assert_int_equal(features->ciphers[TLS_1_3], BIT(TLS_CIPHER_COUNT) - 1);
	assert_int_equal(features->has_rekeying, can_rekey);
	assert_int_equal(features->why_not.code == 0, can_rekey);
	assert_int_equal(tls_kernel_look(TLS_RECORDS_KERNEL, NULL), 0);
}

TEST(test_only_tcp_is_taken)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	assert_false(tls_kernel_is_wanted(TLS_RECORDS_KERNEL, fds[0]));
	close(fds[0]);
	close(fds[1]);
	connect_pair(fds);
	assert_false(tls_kernel_is_wanted(TLS_RECORDS_USER, fds[0]));
	close(fds[0]);
	close(fds[1]);
}

TEST(test_data_in_both_directions)
{
	for (int version = 0; version < TLS_VERSION_COUNT; version++) {
		for (int cipher = 0; cipher < TLS_CIPHER_COUNT; cipher++) {
			enum tls_role role = cipher % 2 == version ? TLS_CLIENT : TLS_SERVER;
			struct world world;

			world_begin(&world, role, (enum tls_version)version,
				(enum tls_cipher)cipher, TLS_RECORDS_KERNEL);
			assert_int_equal(world.took, 0);
			expect_line(&world, "early");
			both_talk(&world);
			if (cipher == TLS_AES_128_GCM && (version == TLS_1_2 || can_rekey)) {
				talk_at_length(&world, version == TLS_1_3);
				both_talk(&world);
			}
			world_end(&world);
		}
	}
}

/* Without a change of keys GnuTLS would break the connection: what was not chosen is not done. */
TEST(test_auto_wants_rekeying)
{
	char heard[LINE_BYTES];
	struct world world;

	world_begin(&world, TLS_CLIENT, TLS_1_3, TLS_AES_128_GCM, TLS_RECORDS_AUTO);
	assert_int_equal(world.took, can_rekey ? 0 : -EOPNOTSUPP);
	if (!can_rekey) {
		gnutls_session_t own = world.ends.sessions[TLS_CLIENT];

		assert_int_equal(hear(own, heard, sizeof(heard)), 5);
		assert_int_equal(gnutls_record_send(own, "hello", 5), 5);
		assert_int_equal(peer_hears(&world, heard), 5);
	}
	world_end(&world);
	world_begin(&world, TLS_CLIENT, TLS_1_2, TLS_AES_128_GCM, TLS_RECORDS_AUTO);
	assert_int_equal(world.took, 0);
	expect_line(&world, "early");
	both_talk(&world);
	world_end(&world);
}

TEST(test_the_peer_changes_its_key)
{
	char line[LINE_BYTES];
	ssize_t got;
	struct world world;

	for (int cipher = 0; cipher < TLS_CIPHER_COUNT; cipher++) {
		world_begin(
			&world, TLS_SERVER, TLS_1_3, (enum tls_cipher)cipher, TLS_RECORDS_KERNEL);
		assert_int_equal(world.took, 0);
		expect_line(&world, "early");
		both_talk(&world);
		assert_int_equal(gnutls_session_key_update(world.peer, 0), 0);
		if (!can_rekey) {
			assert_int_equal(receive_line(&world, line, 5), -EOPNOTSUPP);
			assert_non_null(strstr(world.error.text, "--tls-records=user"));
			assert_true(say(&world, "no more") < 0);
			world_end(&world);
			continue;
		}
		peer_says(&world, "a new key");
		we_say(&world, "ours is old");
		assert_int_equal(gnutls_session_key_update(world.peer, GNUTLS_KU_PEER), 0);
		peer_says(&world, "another one");
		we_say(&world, "ours is new as well");
		/* Twice before we look, and a receive that is tried at once. */
		assert_int_equal(gnutls_session_key_update(world.peer, GNUTLS_KU_PEER), 0);
		assert_int_equal(gnutls_session_key_update(world.peer, GNUTLS_KU_PEER), 0);
		assert_int_equal(gnutls_record_send(world.peer, "now", 3), 3);
		{
			struct iovec iov = { .iov_base = line, .iov_len = 3 };
			struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

			do {
				got = tls_kernel_receive_now(world.kernel, &message);
			} while (got == -EAGAIN);
			assert_int_equal(got, 3);
			iov.iov_base = (void *)(uintptr_t) "then";
			iov.iov_len = 4;
			/* The answers are on their way: data must not overtake them. */
			assert_int_equal(tls_kernel_send_now(world.kernel, &message), -EAGAIN);
		}
		we_say(&world, "then");
		both_talk(&world);
		world_end(&world);
	}
}

static unsigned long kernel_counts(const char *what)
{
	FILE *file = fopen("/proc/net/tls_stat", "r");
	char name[64];
	unsigned long count;
	unsigned long found = 0;

	assert_non_null(file);
	while (fscanf(file, "%63s %lu", name, &count) == 2) {
		found = strcmp(name, what) == 0 ? count : found;
	}
	fclose(file);
	return found;
}

/* The layer is built with a limit of TLS_KEY_BLOCKS_MAX blocks. */
TEST(test_our_key_is_changed_in_time)
{
	unsigned long before = kernel_counts("TlsTxRekeyOk");
	uint8_t heard[16000];
	uint8_t *data;
	struct world world;

	if (!can_rekey) {
		skip();
	}
	world_begin(&world, TLS_SERVER, TLS_1_3, TLS_AES_256_GCM, TLS_RECORDS_KERNEL);
	assert_int_equal(world.took, 0);
	expect_line(&world, "early");
	data = make_data(3);
	/* GnuTLS cannot read what is under another key than it knows: it was told each time. */
	for (size_t blocks = 0; blocks < 5 * TLS_KEY_BLOCKS_MAX / 2; blocks += sizeof(heard) / 16) {
		struct iovec iov = { .iov_base = data, .iov_len = sizeof(heard) };
		struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

		begin_send(&world, &message);
		turn_until_done(&world, &world.send_op);
		assert_int_equal(world.sent, sizeof(heard));
		assert_int_equal(hear(world.peer, heard, sizeof(heard)), sizeof(heard));
		assert_memory_equal(heard, data, sizeof(heard));
	}
	both_talk(&world);
	assert_int_equal(kernel_counts("TlsTxRekeyOk") - before, 2);
	free(data);
	world_end(&world);
}

TEST(test_the_end_is_said)
{
	char line[LINE_BYTES];
	struct world world;

	for (int version = 0; version < TLS_VERSION_COUNT; version++) {
		/* We, and then the peer. */
		world_begin(&world, TLS_CLIENT, (enum tls_version)version, TLS_AES_128_GCM,
			TLS_RECORDS_KERNEL);
		expect_line(&world, "early");
		tls_kernel_shutdown_send(world.kernel);
		assert_int_equal(peer_hears(&world, line), 0);
		peer_says(&world, "goodbye");
		assert_int_equal(gnutls_bye(world.peer, GNUTLS_SHUT_WR), 0);
		assert_int_equal(receive_line(&world, line, 5), 0);
		assert_false(tls_kernel_was_cut(world.kernel));
		assert_int_equal(receive_line(&world, line, 5), 0);
		world_end(&world);

		/* A part of what was asked for, and the end without a word. */
		world_begin(&world, TLS_CLIENT, (enum tls_version)version, TLS_AES_128_GCM,
			TLS_RECORDS_KERNEL);
		assert_int_equal(shutdown(world.peer_fd, SHUT_WR), 0);
		assert_int_equal(receive_line(&world, line, 7), 5);
		assert_int_equal(receive_line(&world, line, 7), 0);
		assert_true(tls_kernel_was_cut(world.kernel));
		world_end(&world);

		/* An end of our own making is no surprise. */
		world_begin(&world, TLS_SERVER, (enum tls_version)version, TLS_AES_128_GCM,
			TLS_RECORDS_KERNEL);
		expect_line(&world, "early");
		tls_kernel_shutdown(world.kernel);
		stream_shutdown(&world.stream);
		assert_int_equal(receive_line(&world, line, 5), 0);
		assert_false(tls_kernel_was_cut(world.kernel));
		world_end(&world);
	}
}

TEST(test_forged_records)
{
	uint8_t forged[5 + 40] = { 23, 3, 3, 0, 40 };
	char line[LINE_BYTES];
	struct world world;

	world_begin(&world, TLS_CLIENT, TLS_1_3, TLS_AES_128_GCM, TLS_RECORDS_KERNEL);
	expect_line(&world, "early");
	assert_int_equal(write(world.peer_fd, forged, sizeof(forged)), sizeof(forged));
	assert_int_equal(receive_line(&world, line, 5), -EBADMSG);
	assert_non_null(strstr(world.error.text, "authenticated"));
	assert_true(say(&world, "no more") < 0);
	assert_int_equal(receive_line(&world, line, 5), -EBADMSG);
	world_end(&world);

	/* Not even a record. */
	world_begin(&world, TLS_SERVER, TLS_1_3, TLS_AES_128_GCM, TLS_RECORDS_KERNEL);
	expect_line(&world, "early");
	assert_int_equal(write(world.peer_fd, "GET / HTTP/1.0\r\n\r\n", 18), 18);
	assert_int_equal(receive_line(&world, line, 5), -EBADMSG);
	world_end(&world);
}

TEST(test_alerts_and_floods)
{
	char line[LINE_BYTES];
	struct world world;

	world_begin(&world, TLS_SERVER, TLS_1_3, TLS_AES_128_GCM, TLS_RECORDS_KERNEL);
	expect_line(&world, "early");
	assert_int_equal(
		gnutls_alert_send(world.peer, GNUTLS_AL_FATAL, GNUTLS_A_INTERNAL_ERROR), 0);
	assert_int_equal(receive_line(&world, line, 5), -ECONNABORTED);
	assert_non_null(strstr(world.error.text, "alert 80"));
	world_end(&world);

	if (!can_rekey) {
		return;
	}
	for (int updates = TLS_UPDATES_PER_S_MAX; updates < 100; updates += 50) {
		world_begin(&world, TLS_CLIENT, TLS_1_3, TLS_AES_128_GCM, TLS_RECORDS_KERNEL);
		expect_line(&world, "early");
		for (int i = 0; i < updates; i++) {
			assert_int_equal(gnutls_session_key_update(world.peer, 0), 0);
		}
		if (updates == TLS_UPDATES_PER_S_MAX) {
			peer_says(&world, "enough");
		} else {
			assert_int_equal(receive_line(&world, line, 5), -EPROTO);
			assert_non_null(strstr(world.error.text, "8 key changes"));
			assert_int_equal(peer_hears(&world, line), GNUTLS_E_FATAL_ALERT_RECEIVED);
			assert_int_equal(gnutls_alert_get(world.peer), GNUTLS_A_UNEXPECTED_MESSAGE);
		}
		world_end(&world);
	}
}

/* As a peer that makes its records with the kernel as well, and puts in them what it likes. */
static void peer_sends_control(struct world *world, uint8_t content, void *bytes, size_t count)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(1)];
	} control = { .header = { .cmsg_len = CMSG_LEN(1),
			      .cmsg_level = SOL_TLS,
			      .cmsg_type = TLS_SET_RECORD_TYPE } };
	struct iovec iov = { .iov_base = bytes, .iov_len = count };
	struct msghdr message = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control) };

	*CMSG_DATA(&control.header) = content;
	assert_int_equal(sendmsg(world->peer_fd, &message, 0), count);
}

/* OpenSSL and Go send one or two. They are longer than what is read of a message at a time. */
TEST(test_tickets_are_dropped)
{
	static uint8_t ticket[4 + 1000] = { 4, 0, 1000 >> 8, 1000 & 255 };
	char line[LINE_BYTES];
	struct world world;

	world_begin(&world, TLS_CLIENT, TLS_1_3, TLS_AES_128_GCM, TLS_RECORDS_KERNEL);
	expect_line(&world, "early");
	assert_int_equal(tls_keys_of_session(&world.ends.keys[TLS_SERVER], world.peer), 0);
	assert_int_equal(setsockopt(world.peer_fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")), 0);
	assert_int_equal(
		tls_key_install(&world.ends.keys[TLS_SERVER].send, world.peer_fd, TLS_TX), 0);
	for (int i = 0; i < TLS_TICKETS_MAX; i++) {
		peer_sends_control(&world, TLS_HANDSHAKE, ticket, sizeof(ticket));
		if (i % 4 == 3) {
			assert_int_equal(send(world.peer_fd, "data", 4, 0), 4);
			expect_line(&world, "data");
		}
	}
	peer_sends_control(&world, TLS_HANDSHAKE, ticket, sizeof(ticket));
	assert_int_equal(receive_line(&world, line, 4), -EPROTO);
	assert_non_null(strstr(world.error.text, "tickets"));
	world_end(&world);
}

/* --- layers ----------------------------------------------------------------------------------- */

/* Two ends of ours on one connection. */
struct talk {
	struct stream streams[2];
	int upgraded;
	struct ring_op send_op;
	struct ring_op receive_op;
	int sent;
	int received;
};

static struct talk talk;

static void on_upgraded(struct stream *stream, int result)
{
	if (result != 0) {
		fail_msg("%s", tls_layer_error(stream)->text);
	}
	talk.upgraded++;
}

static void talk_sent(struct ring_op *op, int result)
{
	talk.sent = result;
}

static void talk_received(struct ring_op *op, int result)
{
	talk.received = result;
}

/* One end says it all, and the other hears it. */
static void carry(struct ring *ring, struct stream *from, struct stream *to, uint8_t *data)
{
	uint8_t *heard = malloc(DATA_BYTES);
	struct iovec iov = { .iov_base = data, .iov_len = DATA_BYTES };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	stream_receive(to, &talk.receive_op, heard, DATA_BYTES, true, talk_received);
	while (iov.iov_len > 0) {
		stream_send(from, &talk.send_op, &message, talk_sent);
		while (talk.send_op.in_flight) {
			(void)ring_turn(ring, true);
		}
		assert_true(talk.sent > 0);
		iov.iov_base = (uint8_t *)iov.iov_base + talk.sent;
		iov.iov_len -= (size_t)talk.sent;
	}
	while (talk.receive_op.in_flight) {
		(void)ring_turn(ring, true);
	}
	assert_int_equal(talk.received, DATA_BYTES);
	assert_memory_equal(heard, data, DATA_BYTES);
	free(heard);
}

static void with_layers(
	struct tls_world *creds, enum tls_proof proof, const char *priority, const char *records)
{
	static const struct stream_keep_alive keep_alive = { 30, 10, 3 };
	const struct ring_options options = { .entries = 16, .files_max = 4, .buffers_max = 1 };
	uint8_t *data = make_data(11);
	struct ring *ring;
	int fds[2];

	talk = (struct talk){ 0 };
	assert_int_equal(ring_create(&options, &ring, NULL), 0);
	connect_pair(fds);
	for (int role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		stream_open(&talk.streams[role], ring, fds[role], &keep_alive);
		tls_world_upgrade(creds, &talk.streams[role],
			tls_world_context(creds, (enum tls_role)role, proof, priority),
			on_upgraded);
	}
	while (talk.upgraded < 2) {
		(void)ring_turn(ring, true);
	}
	for (int role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		assert_string_equal(tls_layer_facts(&talk.streams[role]).records, records);
		carry(ring, &talk.streams[role], &talk.streams[!role], data);
	}
	stream_shutdown_send(&talk.streams[TLS_CLIENT]);
	stream_receive(&talk.streams[TLS_SERVER], &talk.receive_op, data, 1, true, talk_received);
	while (talk.receive_op.in_flight) {
		(void)ring_turn(ring, true);
	}
	assert_int_equal(talk.received, 0);
	assert_false(tls_layer_was_cut(&talk.streams[TLS_SERVER]));
	for (int role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		stream_shutdown(&talk.streams[role]);
		while (!stream_is_idle(&talk.streams[role])) {
			(void)ring_turn(ring, true);
		}
		stream_close(&talk.streams[role]);
	}
	tls_pool_synchronize(creds->pool);
	ring_destroy(ring);
	free(data);
}

TEST(test_layers_choose_the_kernel)
{
	const char *by_itself = can_rekey ? "kernel" : "user";
	struct tls_world creds;

	tls_world_begin(&creds, 0);
	with_layers(&creds, TLS_BY_CERTIFICATE, NULL, by_itself);
	with_layers(&creds, TLS_BY_KEY, NULL, by_itself);
	with_layers(&creds, TLS_BY_CERTIFICATE, "NORMAL:-VERS-ALL:+VERS-TLS1.2", "kernel");
	refused_option = TLS_TX;
	with_layers(&creds, TLS_BY_CERTIFICATE, NULL, "user");
	refused_option = 0;
	tls_world_end(&creds);
}

/* Keys that are refused after the socket was told of TLS (TCP_ULP): it would send plain bytes. */
TEST(test_refused_keys)
{
	char line[LINE_BYTES];
	uint8_t wire[LINE_BYTES];
	gnutls_session_t own;
	struct world world;
	ssize_t got;

	(void)tls_kernel_features(); /* the trial is over */
	refused_option = TLS_TX;
	world_begin(&world, TLS_CLIENT, TLS_1_2, TLS_AES_128_GCM, TLS_RECORDS_KERNEL);
	assert_int_equal(world.took, -EOPNOTSUPP);
	assert_null(world.kernel);
	own = world.ends.sessions[TLS_CLIENT];
	assert_int_equal(hear(own, line, sizeof(line)), 5);
	assert_int_equal(gnutls_record_send(own, "not in plain", 12), 12);
	do {
		got = recv(world.peer_fd, wire, sizeof(wire), MSG_PEEK);
	} while (got < 0 && errno == EAGAIN);
	assert_int_equal(got, 5 + 8 + 12 + 16);
	assert_int_equal(wire[0], TLS_DATA);
	assert_null(memmem(wire, (size_t)got, "plain", 5));
	assert_int_equal(peer_hears(&world, line), 12);
	world_end(&world);

	refused_option = TLS_RX;
	world_begin(&world, TLS_CLIENT, TLS_1_3, TLS_AES_128_GCM, TLS_RECORDS_KERNEL);
	assert_int_equal(world.took, -EIO);
	assert_null(world.kernel);
	refused_option = 0;
	world_end(&world);
	assert_int_equal(world.error.code, -EIO);

	/* Later, while somebody receives: it ends with the reason, not with the end. */
	if (can_rekey) {
		world_begin(&world, TLS_CLIENT, TLS_1_3, TLS_AES_128_GCM, TLS_RECORDS_KERNEL);
		expect_line(&world, "early");
		assert_int_equal(gnutls_session_key_update(world.peer, GNUTLS_KU_PEER), 0);
		refused_option = TLS_TX;
		assert_int_equal(receive_line(&world, line, 5), -ENOENT);
		refused_option = 0;
		assert_true(say(&world, "no more") < 0);
		assert_false(tls_kernel_was_cut(world.kernel));
		world_end(&world);
	}
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		return 2;
	}
	can_rekey = strcmp(argv[1], "rekeying") == 0;
	return unit_run(NULL, NULL);
}
