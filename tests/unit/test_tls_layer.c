// SPDX-License-Identifier: Apache-2.0
/*
 * TLS layers against peers that GnuTLS makes, or that are nothing but hostile bytes: handshakes,
 * records, new keys, ends. On the real ring and, as another program, on the simulated one.
 */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include <gnutls/crypto.h>

#include "tls_peer.h"
#include "unit.h"
#ifdef TEST_ON_SIM
#include "sim/sim.h"
#endif

enum { DATA_BYTES = 300000, RECORD_HEADER_BYTES = 5 };

struct fixture {
	struct tls_world world;
	struct ring *ring;
	struct peer peer;
	uint8_t *said;
	uint8_t *heard;
	struct msghdr message;
	struct iovec iov[3];
};

static int set_up(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	struct error error;

	assert_non_null(fixture);
#ifdef TEST_ON_SIM
	sim_start(&(struct sim_options){
		.seed = 11,
		.faults = { .partial_ppm = 300000,
			.interrupt_ppm = 50000,
			.send_short_ppm = 50000,
			.jitter = true },
	});
#endif
	assert_int_equal(ring_create(&(struct ring_options){ 0 }, &fixture->ring, &error), 0);
	tls_world_begin(&fixture->world, 0);
	fixture->said = malloc(DATA_BYTES);
	fixture->heard = calloc(1, DATA_BYTES);
	assert_true(fixture->said != NULL && fixture->heard != NULL);
	for (uint32_t i = 0; i < DATA_BYTES; i++) {
		fixture->said[i] = (uint8_t)(i * 131 + (i >> 9));
	}
	*state = fixture;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *fixture = *state;

	tls_world_end(&fixture->world);
	ring_destroy(fixture->ring);
#ifdef TEST_ON_SIM
	sim_stop();
#endif
	free(fixture->said);
	free(fixture->heard);
	free(fixture);
	return 0;
}

static struct peer *begin(struct fixture *fixture, enum tls_role role, enum tls_proof proof)
{
	peer_begin(&fixture->peer, &fixture->world, fixture->ring, role, proof, 0);
	return &fixture->peer;
}

/* A peer that has shaken hands with a layer. */
static struct peer *open_peer(
	struct fixture *fixture, enum tls_role role, enum tls_proof proof, const char *priority)
{
	struct peer *peer = begin(fixture, role, proof);

	peer_session(peer, proof, priority);
	assert_int_equal(peer_shake(peer), 0);
	return peer;
}

/* --- data ------------------------------------------------------------------------------------- */

static void send_done(struct ring_op *op, int result)
{
	container_of(op, struct peer, send_op)->send_result = result;
}

/* Three pieces; the first two are short, as a reply's header and the tail of another payload. */
static void lay_out(struct fixture *fixture, size_t at)
{
	size_t left = DATA_BYTES - at;
	size_t cuts[3] = { MIN(left, (size_t)28), 0, 0 };

	cuts[1] = MIN(left - cuts[0], (size_t)1000);
	cuts[2] = left - cuts[0] - cuts[1];
	fixture->message = (struct msghdr){ .msg_iov = fixture->iov };
	for (int i = 0; i < 3; i++) {
		fixture->iov[i] =
			(struct iovec){ .iov_base = fixture->said + at, .iov_len = cuts[i] };
		at += cuts[i];
		fixture->message.msg_iovlen += cuts[i] > 0;
	}
}

/* The layer sends everything, the peer hears it. now: tries without the ring first. */
static void carry_out(struct fixture *fixture, bool now)
{
	struct peer *peer = &fixture->peer;
	size_t sent = 0;

	while (sent < DATA_BYTES) {
		ssize_t result = -EAGAIN;

		lay_out(fixture, sent);
		if (now) {
			result = stream_send_now(&peer->stream, &fixture->message);
		}
		if (result == -EAGAIN) {
			stream_send(&peer->stream, &peer->send_op, &fixture->message, send_done);
			result = peer_await_send(peer);
		}
		assert_true(result > 0);
		sent += (size_t)result;
	}
	peer_hear(peer, fixture->heard, DATA_BYTES);
	assert_memory_equal(fixture->said, fixture->heard, DATA_BYTES);
	memset(fixture->heard, 0, DATA_BYTES);
}

enum way { WAY_SOME, WAY_WHOLE, WAY_NOW };

/* The peer says everything, the layer receives it. */
static void carry_in(struct fixture *fixture, enum way way)
{
	struct peer *peer = &fixture->peer;
	size_t got = 0;

	peer_say(peer, fixture->said, DATA_BYTES);
	peer_send(peer);
	while (got < DATA_BYTES) {
		size_t want = MIN(DATA_BYTES - got, (size_t)(got % 3 == 0 ? 70000 : 5000));
		ssize_t result;

		if (way == WAY_NOW) {
			struct iovec iov = { fixture->heard + got, want };
			struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

			result = stream_receive_now(&peer->stream, &message);
			if (result == -EAGAIN || result == -EINTR) {
				peer_turn(peer);
				continue;
			}
		} else {
			peer_receive(peer, fixture->heard + got, want, way == WAY_WHOLE);
			result = peer_await_receive(peer);
			assert_true(way == WAY_SOME || result == (ssize_t)want);
		}
		assert_true(result > 0);
		got += (size_t)result;
	}
	assert_memory_equal(fixture->said, fixture->heard, DATA_BYTES);
	memset(fixture->heard, 0, DATA_BYTES);
}

static void talk(struct fixture *fixture)
{
	carry_out(fixture, false);
	carry_out(fixture, true);
	for (enum way way = WAY_SOME; way <= WAY_NOW; way++) {
		carry_in(fixture, way);
	}
}

struct suite {
	const char *priority;
	const char *version;
	const char *cipher;
};

static const struct suite suites[] = {
	{ "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-GCM", "TLS 1.3", "AES-128-GCM" },
	{ "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-256-GCM", "TLS 1.3", "AES-256-GCM" },
	{ "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+CHACHA20-POLY1305", "TLS 1.3",
		"CHACHA20-POLY1305" },
	{ "NORMAL:-VERS-ALL:+VERS-TLS1.2:-CIPHER-ALL:+AES-128-GCM", "TLS 1.2", "AES-128-GCM" },
	{ "NORMAL:-VERS-ALL:+VERS-TLS1.2:-CIPHER-ALL:+AES-256-GCM", "TLS 1.2", "AES-256-GCM" },
	{ "NORMAL:-VERS-ALL:+VERS-TLS1.2:-CIPHER-ALL:+CHACHA20-POLY1305", "TLS 1.2",
		"CHACHA20-POLY1305" },
};

TEST(test_every_version_and_cipher_carries_bytes)
{
	for (enum tls_role role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		for (uint32_t i = 0; i < ARRAY_COUNT(suites); i++) {
			struct peer *peer =
				open_peer(*state, role, TLS_BY_CERTIFICATE, suites[i].priority);
			struct tls_facts facts = tls_layer_facts(&peer->stream);

			assert_string_equal(facts.version, suites[i].version);
			assert_string_equal(facts.cipher, suites[i].cipher);
			assert_string_equal(facts.records, "user");
			assert_true(tls_layer_identity(&peer->stream)->is_proved);
			talk(*state);
			peer_end(peer);
		}
	}
}

TEST(test_our_choice_of_cipher_is_fast)
{
	for (enum tls_proof proof = TLS_BY_CERTIFICATE; proof <= TLS_BY_KEY; proof++) {
		struct peer *peer = open_peer(*state, TLS_SERVER, proof, NULL);

		assert_string_equal(tls_layer_facts(&peer->stream).cipher, "AES-128-GCM");
		peer_end(peer);
	}
}

/* A peer may ask for short records (RFC 8449); a long message must come through all the same. */
TEST(test_a_peer_that_takes_short_records_gets_them)
{
	struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_KEY);

	peer_session(peer, TLS_BY_KEY, NULL);
	assert_int_equal(gnutls_record_set_max_recv_size(peer->session, 600), 0);
	assert_int_equal(peer_shake(peer), 0);
	talk(*state);
	peer_end(peer);
}

/* What is contiguous and what is not, in as few records as there can be. */
TEST(test_records_are_filled_across_pieces)
{
	struct fixture *fixture = *state;
	struct peer *peer = open_peer(fixture, TLS_SERVER, TLS_BY_KEY, NULL);
	size_t records = 0;

	lay_out(fixture, DATA_BYTES - 40000);
	stream_send(&peer->stream, &peer->send_op, &fixture->message, send_done);
	assert_int_equal(peer_await_send(peer), 40000);
	while (peer->in.end - peer->in.at < 40000 + 3 * 22) {
		peer_turn(peer);
		peer_fetch(peer);
	}
	for (size_t at = peer->in.at; at < peer->in.end; records++) {
		at += RECORD_HEADER_BYTES +
		      ((size_t)peer->in.data[at + 3] << 8 | peer->in.data[at + 4]);
	}
	assert_int_equal(records, 3);
	peer_end(peer);
}

/* --- hostile handshakes ----------------------------------------------------------------------- */

struct attack {
	const char *name;
	const char *bytes;
	size_t count;
	uint32_t times;
};

#define ATTACK(name, bytes, times)                                                                 \
	{                                                                                          \
		name, bytes, sizeof(bytes) - 1, times                                              \
	}

static const struct attack attacks[] = {
	ATTACK("HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1),
	ATTACK("SSLv2 hello", "\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10", 1),
	ATTACK("NBD", "IHAVEOPT\0\0\0\7\0\0\0\0", 1),
	ATTACK("an alert first", "\x15\x03\x03\x00\x02\x02\x28", 1),
	ATTACK("data first", "\x17\x03\x03\x00\x02xx", 1),
	ATTACK("an empty record", "\x16\x03\x03\x00\x00", 1),
	ATTACK("a record too long", "\x16\x03\x03\x41\x01", 1),
	ATTACK("Finished first", "\x16\x03\x03\x00\x04\x14\x00\x00\x00", 1),
	ATTACK("a hello byte by byte", "\x16\x03\x03\x00\x01\x01", 200),
	ATTACK("warnings", "\x16\x03\x03\x00\x01\x01\x15\x03\x03\x00\x02\x01\x5a", 40),
	ATTACK("change_cipher_spec", "\x16\x03\x03\x00\x01\x01\x14\x03\x03\x00\x01\x01", 40),
};

/* Not before it has ended by itself. */
static void await_refusal(struct peer *peer, int wanted, const char *name)
{
	for (uint32_t turns = 0; peer->upgraded == 1 && turns < 5000; turns++) {
		peer_turn(peer);
	}
	if (peer->upgraded != wanted) {
		fail_msg("%s: %d %s", name, peer->upgraded, tls_layer_error(&peer->stream)->text);
	}
}

TEST(test_what_is_no_handshake_is_refused)
{
	for (uint32_t i = 0; i < ARRAY_COUNT(attacks); i++) {
		const struct attack *attack = &attacks[i];
		struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_KEY);

		for (uint32_t k = 0; k < attack->times && peer->upgraded == 1; k++) {
			peer_send_bytes(peer, attack->bytes, attack->count);
			peer_turn(peer);
		}
		await_refusal(peer, -EPROTO, attack->name);
		assert_true(tls_layer_error(&peer->stream)->text[0] != '\0');
		assert_int_equal(peer->stream.state, STREAM_UPGRADING);
		peer_end(peer);
	}
}

/* Nobody's first message is longer than a few KiB, whatever it announces; and nothing is allocated
 * for what it announces. */
TEST(test_a_long_handshake_is_refused)
{
	static const uint8_t lengths[][3] = { { 0, 0x7f, 0xfc }, { 2, 0, 0 },
		{ 0xff, 0xff, 0xff } };

	for (uint32_t i = 0; i < ARRAY_COUNT(lengths); i++) {
		struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_KEY);
		uint8_t record[RECORD_HEADER_BYTES + 16384] = { 0x16, 3, 3, 0x40, 0, 1 };

		memcpy(record + RECORD_HEADER_BYTES + 1, lengths[i], 3);
		for (uint32_t k = 0; k < 5 && peer->upgraded == 1; k++) {
			peer_send_bytes(peer, record, sizeof(record));
			memset(record + RECORD_HEADER_BYTES, 0, 16384);
		}
		await_refusal(peer, -EPROTO, "a long message");
		peer_end(peer);
	}
}

TEST(test_old_versions_are_refused)
{
	static const char *const versions[] = { "NORMAL:-VERS-ALL:+VERS-TLS1.0",
		"NORMAL:-VERS-ALL:+VERS-TLS1.1" };

	for (uint32_t i = 0; i < ARRAY_COUNT(versions); i++) {
		struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_CERTIFICATE);

		peer_session(peer, TLS_BY_CERTIFICATE, versions[i]);
		assert_int_equal(peer_shake(peer), -EPROTO);
		peer_fetch(peer); /* a plain alert: its level, and what it says */
		assert_int_equal(peer->in.end, RECORD_HEADER_BYTES + 2);
		assert_int_equal(peer->in.data[RECORD_HEADER_BYTES + 1], GNUTLS_A_PROTOCOL_VERSION);
		peer_end(peer);
	}
}

/* Of groups a stranger may have those that take no longer than its server likes. */
TEST(test_costly_groups_are_refused)
{
	static const struct {
		const char *priority;
		int result;
	} cases[] = {
		{ "NORMAL:-GROUP-ALL:+GROUP-X25519", 0 },
		{ "NORMAL:-GROUP-ALL:+GROUP-FFDHE2048", 0 },
		{ "NORMAL:-GROUP-ALL:+GROUP-FFDHE3072", -EPROTO },
		{ "NORMAL:-GROUP-ALL:+GROUP-FFDHE8192", -EPROTO },
		{ "NORMAL:-GROUP-ALL:+GROUP-FFDHE8192:+GROUP-FFDHE2048", 0 },
	};

	for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_CERTIFICATE);

		peer_session(peer, TLS_BY_CERTIFICATE, cases[i].priority);
		assert_int_equal(peer_shake(peer), cases[i].result);
		peer_end(peer);
	}
}

TEST(test_a_wrong_key_is_not_believed)
{
	struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_KEY);

	peer_session(peer, TLS_BY_WRONG_KEY, NULL);
	assert_int_equal(peer_shake(peer), -EACCES);
	peer_end(peer);
	peer = begin(*state, TLS_CLIENT, TLS_BY_WRONG_KEY);
	peer_session(peer, TLS_BY_KEY, NULL);
	assert_int_equal(peer_shake(peer), -EKEYREJECTED);
	peer_end(peer);
}

/* A stranger chooses its key, and how long it takes to check a signature of it. */
TEST(test_no_key_is_used_that_is_not_trusted)
{
	for (int role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		struct peer *peer = begin(*state, (enum tls_role)role, TLS_BY_CERTIFICATE);

		peer_session(peer, TLS_BY_CERTIFICATE, NULL);
		peer_forge(peer);
		assert_int_equal(peer_shake(peer), -EACCES);
		assert_non_null(strstr(tls_layer_error(&peer->stream)->text,
			"the certificate 'CN=ca' was rejected"));
		peer_end(peer);
	}
}

TEST(test_a_peer_that_goes_is_noticed)
{
	static const size_t counts[] = { 0, 3, 5, 40 };

	for (uint32_t i = 0; i < ARRAY_COUNT(counts); i++) {
		struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_KEY);

		peer_session(peer, TLS_BY_KEY, NULL);
		assert_int_equal(gnutls_handshake(peer->session), GNUTLS_E_AGAIN);
		assert_true(peer->out.end > counts[i]);
		peer_send_bytes(peer, peer->out.data, counts[i]);
		peer_cut(peer);
		await_refusal(peer, -ECONNRESET, "a peer that goes");
		peer_end(peer);
	}
}

/* Its first message is spoiled in one place: no place makes a connection. */
TEST(test_no_spoiled_handshake_opens)
{
	size_t count = 1;

	for (size_t at = RECORD_HEADER_BYTES; at < count; at += 3) {
		struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_KEY);

		peer_session(peer, TLS_BY_KEY, NULL);
		assert_int_equal(gnutls_handshake(peer->session), GNUTLS_E_AGAIN);
		count = peer->out.end;
		peer->out.data[at] ^= (uint8_t)(1 << at % 8);
		peer_send(peer);
		while (peer->upgraded == 1) {
			peer_fetch(peer);
			if (gnutls_error_is_fatal(gnutls_handshake(peer->session)) != 0 ||
				peer->at_end) {
				peer_send(peer); /* its alert */
				peer_cut(peer);
				while (peer->upgraded == 1) {
					peer_turn(peer);
				}
			} else {
				peer_send(peer);
				peer_turn(peer);
			}
		}
		assert_true(peer->upgraded < 0);
		peer_end(peer);
		if (at == RECORD_HEADER_BYTES) {
			assert_true(count > 200);
			at = 4;
		}
	}
}

/* What a client has said once, to another connection of the same server; and data that come with a
 * first message, before anybody is known (0-RTT), which nobody has offered to take. */
TEST(test_what_was_said_before_opens_nothing)
{
	for (int early = 0; early < 2; early++) {
		struct peer_bytes heard = { 0 };
		struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_KEY);

		peer_session(peer, TLS_BY_KEY, NULL);
		peer->heard = &heard;
		assert_int_equal(peer_shake(peer), 0);
		peer_say(peer, "IHAVEOPT", 8);
		peer_send(peer);
		peer_end(peer);
		peer = begin(*state, TLS_SERVER, TLS_BY_KEY);
		if (early == 1) {
			memcpy(heard.data + RECORD_HEADER_BYTES +
					((size_t)heard.data[3] << 8 | heard.data[4]),
				"\x17\x03\x03\x00\x20", RECORD_HEADER_BYTES);
		}
		peer_send_bytes(peer, heard.data, heard.end);
		await_refusal(peer, -EACCES, early == 1 ? "early data" : "what was heard");
		free(heard.data);
		peer_end(peer);
	}
}

/* Every split of the first flight; the other flights are split by the simulated network. */
TEST(test_every_split_of_a_hello_is_understood)
{
	size_t count = 2;

	for (size_t at = 1; at < count; at += 7) {
		struct peer *peer = begin(*state, TLS_SERVER, TLS_BY_KEY);

		peer_session(peer, TLS_BY_KEY, NULL);
		assert_int_equal(gnutls_handshake(peer->session), GNUTLS_E_AGAIN);
		count = peer->out.end;
		peer_send_bytes(peer, peer->out.data, at);
		(void)ring_turn(peer->ring, true);
		peer->out.at = at;
		peer_send(peer);
		assert_int_equal(peer_shake(peer), 0);
		peer_end(peer);
	}
}

/* --- forged records --------------------------------------------------------------------------- */

enum {
	SPOIL_FLIP_FIRST,
	SPOIL_FLIP_LAST,
	SPOIL_FLIP_TYPE,
	SPOIL_SWAP,
	SPOIL_REPEAT,
	SPOIL_LOSE,
	SPOIL_COUNT
};

/* Three records of 100 bytes; returns how many of them are as they were said. */
static size_t spoil(struct peer *peer, const uint8_t *said, int way)
{
	size_t ends[4] = { 0 };

	for (int i = 1; i <= 3; i++) {
		peer_say(peer, said, 100);
		ends[i] = peer->out.end;
	}
	switch (way) {
	case SPOIL_FLIP_FIRST:
		peer->out.data[ends[1] + RECORD_HEADER_BYTES] ^= 1;
		break;
	case SPOIL_FLIP_LAST:
		peer->out.data[ends[2] - 1] ^= 0x80;
		break;
	case SPOIL_FLIP_TYPE:
		peer->out.data[ends[1]] ^= 1;
		break;
	case SPOIL_SWAP:
		peer_send_bytes(peer, peer->out.data, ends[1]);
		peer_send_bytes(peer, peer->out.data + ends[2], ends[3] - ends[2]);
		peer_send_bytes(peer, peer->out.data + ends[1], ends[2] - ends[1]);
		return 1;
	case SPOIL_REPEAT:
		peer_send_bytes(peer, peer->out.data, ends[1]);
		peer_send_bytes(peer, peer->out.data, ends[1]);
		return 1;
	case SPOIL_LOSE:
		peer_send_bytes(peer, peer->out.data, ends[1]);
		peer_send_bytes(peer, peer->out.data + ends[2], ends[3] - ends[2]);
		return 1;
	}
	peer_send_bytes(peer, peer->out.data, ends[3]);
	return 1;
}

TEST(test_a_forged_record_ends_both_directions)
{
	struct fixture *fixture = *state;

	for (int way = 0; way < SPOIL_COUNT; way++) {
		for (uint32_t i = 0; i < ARRAY_COUNT(suites); i++) {
			struct peer *peer = open_peer(
				fixture, TLS_SERVER, TLS_BY_CERTIFICATE, suites[i].priority);
			size_t whole = spoil(peer, fixture->said, way);
			/* What TLS 1.3 says in the clear is the same for every record. */
			int wanted = way == SPOIL_FLIP_TYPE && suites[i].version[6] == '3'
					     ? -EPROTO
					     : -EBADMSG;
			int result;

			/* What was authenticated comes through, and then nothing but the error. */
			peer_receive(peer, fixture->heard, 300, true);
			assert_int_equal(peer_await_receive(peer), 100 * whole);
			assert_memory_equal(fixture->heard, fixture->said, 100);
			peer_receive(peer, fixture->heard, 100, false);
			result = peer_await_receive(peer);
			if (result != wanted) {
				fail_msg("way %d suite %u: %d", way, i, result);
			}
			peer_receive(peer, fixture->heard, 100, false);
			assert_int_equal(peer_await_receive(peer), result);
			lay_out(fixture, DATA_BYTES - 100);
			assert_int_equal(stream_send_now(&peer->stream, &fixture->message), result);
			stream_send(&peer->stream, &peer->send_op, &fixture->message, send_done);
			assert_int_equal(peer_await_send(peer), result);
			peer_end(peer);
		}
	}
}

/* --- ends ------------------------------------------------------------------------------------- */

TEST(test_the_end_is_told_from_a_cut)
{
	for (int said = 0; said < 3; said++) {
		struct peer *peer = open_peer(*state, TLS_SERVER, TLS_BY_KEY, NULL);
		uint8_t byte;

		if (said == 1) {
			assert_int_equal(gnutls_bye(peer->session, GNUTLS_SHUT_WR), 0);
		} else if (said == 2) { /* within a record */
			peer_say(peer, "0123456789", 10);
			peer->out.end -= 3;
		}
		peer_send(peer);
		peer_cut(peer);
		for (int again = 0; again < 2; again++) {
			peer_receive(peer, &byte, 1, true);
			assert_int_equal(peer_await_receive(peer), 0);
			assert_int_equal(tls_layer_was_cut(&peer->stream), said != 1);
		}
		peer_end(peer);
	}
}

TEST(test_the_peer_hears_our_end)
{
	struct fixture *fixture = *state;

	for (int full = 0; full < 2; full++) {
		struct peer *peer = open_peer(fixture, TLS_SERVER, TLS_BY_KEY, NULL);
		size_t sent = 0;
		ssize_t result = 1;
		char byte;

		/* As much as the socket takes, and a little that it does not. */
		while (full != 0 && result > 0) {
			lay_out(fixture, 0);
			result = stream_send_now(&peer->stream, &fixture->message);
			sent += result > 0 ? (size_t)result : 0;
#ifdef TEST_ON_SIM
			break;
#endif
		}
		stream_shutdown_send(&peer->stream);
		while (sent > 0) {
			size_t bytes = MIN(sent, (size_t)DATA_BYTES);

			peer_hear(peer, fixture->heard, bytes);
			sent -= bytes;
		}
		do {
			peer_turn(peer);
			peer_fetch(peer);
			result = gnutls_record_recv(peer->session, &byte, 1);
		} while (result == GNUTLS_E_AGAIN);
		assert_int_equal(result, 0); /* close_notify: else it were a premature end */
		while (!peer->at_end) {
			peer_turn(peer);
			peer_fetch(peer);
		}
		peer_end(peer);
	}
}

/* --- what comes after a handshake ------------------------------------------------------------- */

/* New keys in both directions between any two records, while both sides send. */
TEST(test_new_keys_disturb_nobody)
{
	struct fixture *fixture = *state;

	for (int ask = 0; ask < 2; ask++) {
		struct peer *peer = open_peer(fixture, TLS_SERVER, TLS_BY_KEY, NULL);

		for (uint32_t records = 1; records <= 3; records++) {
			size_t got = 0;

			lay_out(fixture, DATA_BYTES - 5000);
			stream_send(&peer->stream, &peer->send_op, &fixture->message, send_done);
			peer_receive(peer, fixture->heard, 3000, true);
			for (uint32_t i = 0; i < records; i++) {
				peer_say(peer, fixture->said + got, 1000);
				got += 1000;
			}
			assert_int_equal(gnutls_session_key_update(
						 peer->session, ask != 0 ? GNUTLS_KU_PEER : 0),
				0);
			peer_say(peer, fixture->said + got, 3000 - got);
			peer_send(peer);
			assert_int_equal(peer_await_receive(peer), 3000);
			assert_memory_equal(fixture->heard, fixture->said, 3000);
			assert_int_equal(peer_await_send(peer), 5000);
			peer_hear(peer, fixture->heard, 5000);
			assert_memory_equal(
				fixture->heard, fixture->said + DATA_BYTES - 5000, 5000);
		}
		peer_end(peer);
	}
}

/* What the next receive of a byte gives. */
static int receive_byte(struct peer *peer)
{
	uint8_t byte;

	peer_send(peer);
	peer_receive(peer, &byte, 1, false);
	return peer_await_receive(peer);
}

TEST(test_a_flood_of_new_keys_is_an_error)
{
	struct peer *peer = open_peer(*state, TLS_SERVER, TLS_BY_KEY, NULL);

	for (uint32_t i = 0; i < 20; i++) {
		assert_int_equal(gnutls_session_key_update(peer->session, 0), 0);
	}
	assert_int_equal(receive_byte(peer), -EPROTO);
	peer_end(peer);
}

TEST(test_tickets_are_dropped_but_not_without_end)
{
	for (uint32_t count = 16; count <= 17; count++) {
		struct peer *peer = open_peer(
			*state, TLS_CLIENT, TLS_BY_CERTIFICATE, "NORMAL:-VERS-ALL:+VERS-TLS1.3");
		gnutls_datum_t key;

		assert_int_equal(gnutls_session_ticket_key_generate(&key), 0);
		assert_int_equal(gnutls_session_ticket_enable_server(peer->session, &key), 0);
		assert_int_equal(gnutls_session_ticket_send(peer->session, count, 0), 0);
		peer_say(peer, "x", 1);
		assert_int_equal(receive_byte(peer), count == 16 ? 1 : -EPROTO);
		gnutls_free(key.data);
		peer_end(peer);
	}
}

TEST(test_nobody_renegotiates)
{
	for (enum tls_role role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		struct peer *peer = open_peer(
			*state, role, TLS_BY_CERTIFICATE, "NORMAL:-VERS-ALL:+VERS-TLS1.2");

		if (role == TLS_SERVER) {
			(void)gnutls_handshake(peer->session);
		} else {
			assert_int_equal(gnutls_rehandshake(peer->session), 0);
		}
		assert_int_equal(receive_byte(peer), -EPROTO);
		peer_end(peer);
	}
}

TEST(test_warnings_are_counted)
{
	for (uint32_t count = 4; count <= 5; count++) {
		struct peer *peer = open_peer(
			*state, TLS_SERVER, TLS_BY_CERTIFICATE, "NORMAL:-VERS-ALL:+VERS-TLS1.2");

		for (uint32_t i = 0; i < count; i++) {
			assert_int_equal(gnutls_alert_send(peer->session, GNUTLS_AL_WARNING,
						 GNUTLS_A_USER_CANCELED),
				0);
		}
		peer_say(peer, "x", 1);
		assert_int_equal(receive_byte(peer), count == 4 ? 1 : -EPROTO);
		peer_end(peer);
	}
}

/* Records that GnuTLS would not make, by a peer that has the keys (TLS 1.3, AES-128-GCM): the type
 * is the last byte that is not 0. They follow each other from the first of the session. */
static void send_made(struct peer *peer, uint64_t sequence, const void *content, size_t count)
{
	uint8_t record[RECORD_HEADER_BYTES + 64 + 16] = { 0x17, 3, 3, 0, (uint8_t)(count + 16) };
	size_t sealed = sizeof(record) - RECORD_HEADER_BYTES;
	gnutls_datum_t iv;
	gnutls_datum_t key;
	gnutls_aead_cipher_hd_t cipher;
	unsigned char first[8];
	uint8_t nonce[12];

	assert_true(count <= 64);
	assert_int_equal(gnutls_record_get_state(peer->session, 0, NULL, &iv, &key, first), 0);
	assert_int_equal(iv.size, sizeof(nonce));
	memcpy(nonce, iv.data, sizeof(nonce));
	nonce[11] ^= (uint8_t)(first[7] + sequence);
	assert_int_equal(gnutls_aead_cipher_init(&cipher, GNUTLS_CIPHER_AES_128_GCM, &key), 0);
	assert_int_equal(gnutls_aead_cipher_encrypt(cipher, nonce, sizeof(nonce), record,
				 RECORD_HEADER_BYTES, 16, content, count,
				 record + RECORD_HEADER_BYTES, &sealed),
		0);
	gnutls_aead_cipher_deinit(cipher);
	peer_send_bytes(peer, record, RECORD_HEADER_BYTES + sealed);
}

TEST(test_an_empty_record_is_nothing)
{
	struct peer *peer = open_peer(*state, TLS_SERVER, TLS_BY_KEY, NULL);

	for (uint32_t i = 0; i < 3; i++) {
		send_made(peer, i, "\x17\0\0", 1 + i); /* the last two are padded */
	}
	send_made(peer, 3, "x\x17", 2);
	assert_int_equal(receive_byte(peer), 1);
	peer_end(peer);
}

TEST(test_records_of_no_use_are_an_error)
{
	static const struct attack inside[] = {
		ATTACK("nothing but padding", "\0\0\0", 1),
		ATTACK("no known type", "x\x63", 1),
		ATTACK("a change of cipher", "\x01\x14", 1),
		ATTACK("a hello", "\x01\0\0\x02\x03\x03\x16", 1),
		ATTACK("Finished", "\x14\0\0\x02xx\x16", 1),
		ATTACK("a certificate", "\x0b\0\0\x04\0\0\0\0\x16", 1),
		ATTACK("a message of 16 MiB", "\x04\xff\xff\xff\x16", 1),
		ATTACK("new keys of no kind", "\x18\0\0\x01\x07\x16", 1),
		ATTACK("an alert of no kind", "\x07\x63\x15", 1),
		ATTACK("half an alert", "\x01\x15", 1),
	};

	for (uint32_t i = 0; i < ARRAY_COUNT(inside); i++) {
		struct peer *peer = open_peer(*state, TLS_SERVER, TLS_BY_KEY, NULL);
		int result;

		send_made(peer, 0, inside[i].bytes, inside[i].count);
		send_made(peer, 1, "x\x17", 2);
		result = receive_byte(peer);
		if (result != -EPROTO && result != -EBADMSG) {
			fail_msg("%s: %d", inside[i].name, result);
		}
		peer_end(peer);
	}
}

/* A plain record, which anybody on the way could have put in. */
TEST(test_plain_records_are_no_part_of_it)
{
	static const char *const records[] = { "\x14\x03\x03\x00\x01\x01",
		"\x15\x03\x03\x00\x02\x01\x00", "\x16\x03\x03\x00\x04\x00\x00\x00\x00",
		"\x17\x03\x03\x00\x01x" };
	static const size_t counts[] = { 6, 7, 9, 6 };

	for (uint32_t i = 0; i < ARRAY_COUNT(records); i++) {
		struct peer *peer = open_peer(*state, TLS_SERVER, TLS_BY_KEY, NULL);
		int result;

		for (uint32_t k = 0; k < 40; k++) {
			peer_send_bytes(peer, records[i], counts[i]);
		}
		result = receive_byte(peer);
		if (result != -EPROTO && result != -EBADMSG) {
			fail_msg("record %u: %d", i, result);
		}
		peer_end(peer);
	}
}

/* --- the end of a stream at any time ---------------------------------------------------------- */

static void step(struct peer *peer)
{
	peer_fetch(peer);
	(void)gnutls_handshake(peer->session);
	peer_send(peer);
	(void)ring_turn_limited(peer->ring, UINT64_C(100000));
}

/* Also while a worker has the session: what it uses is there until it is done. */
TEST(test_a_stream_may_end_at_any_time)
{
	for (enum tls_role role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		uint32_t opened = 0;

		for (uint32_t steps = 0; opened < 3; steps++) {
			struct peer *peer = begin(*state, role, TLS_BY_CERTIFICATE);

			assert_true(steps < 2000);
			peer_session(peer, TLS_BY_CERTIFICATE, NULL);
			for (uint32_t i = 0; i < steps && peer->upgraded == 1; i++) {
				step(peer);
			}
			opened += peer->upgraded == 0;
			assert_true(peer->upgraded >= 0);
			peer_end(peer);
			assert_true(peer->upgraded == 0 || peer->upgraded == -ECANCELED);
		}
	}
}

/* With bytes that were taken and not sent, a receive that waits, and a send that waits for both. */
TEST(test_an_open_stream_may_end_with_all_in_flight)
{
	struct fixture *fixture = *state;
	struct peer *peer = open_peer(fixture, TLS_SERVER, TLS_BY_KEY, NULL);

	peer_receive(peer, fixture->heard, 100, true);
	do {
		lay_out(fixture, 0);
	} while (stream_send_now(&peer->stream, &fixture->message) > 0);
	stream_send(&peer->stream, &peer->send_op, &fixture->message, send_done);
	stream_shutdown(&peer->stream);
	assert_int_equal(peer_await_receive(peer), 0);
	while (peer->send_op.in_flight) {
		peer_turn(peer);
	}
	assert_true(peer->send_result < 0);
	assert_false(tls_layer_was_cut(&peer->stream));
	peer_end(peer);
}

/* What a connection that waits for its peer holds, the session of GnuTLS included. */
TEST(test_an_idle_connection_is_small)
{
	struct fixture *fixture = *state;
	struct peer *stays = open_peer(fixture, TLS_SERVER, TLS_BY_CERTIFICATE, NULL);
	struct peer peer;
	size_t before;

	/* What all connections of a ring have together is not counted. */
	peer_begin(&peer, &fixture->world, fixture->ring, TLS_SERVER, TLS_BY_CERTIFICATE, 0);
	peer_session(&peer, TLS_BY_CERTIFICATE, NULL);
	assert_int_equal(peer_shake(&peer), 0);
	for (int i = 0; i < 2; i++) { /* after more than it has room for when it is idle */
		peer_say(&peer, fixture->said, 100000);
		peer_send(&peer);
		peer_receive(&peer, fixture->heard, 100000, true);
		assert_int_equal(peer_await_receive(&peer), 100000);
	}
	peer_receive(&peer, fixture->heard, 8192, false);
	(void)ring_turn_limited(fixture->ring, UINT64_C(1000000));
	assert_true(peer.recv_op.in_flight);
	stream_shutdown(&peer.stream);
	before = mallinfo2().uordblks;
	peer_settle(&peer);
	stream_close(&peer.stream);
	assert_true(before - mallinfo2().uordblks <= 24 << 10);
	peer_end_closed(&peer);
	peer_end(stays);
}

int main(void)
{
	return unit_run(set_up, tear_down);
}
