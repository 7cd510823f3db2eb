// SPDX-License-Identifier: Apache-2.0
/*
 * What kernel TLS is made of, without a kernel: keys that open GnuTLS's records, now and after a
 * change, and control messages of peers that mean well or not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <gnutls/crypto.h>

#include "base/bytes.h"
#include "tls_sessions.h"
#include "unit.h"

enum { WIRE_BYTES = 65536, HEADER_BYTES = 5, TAG_BYTES = 16, EXPLICIT_BYTES = 8 };

/* --- keys ------------------------------------------------------------------------------------- */

struct wire {
	size_t head;
	size_t tail;
	uint8_t bytes[WIRE_BYTES];
};

struct place {
	struct wire *in;
	struct wire *out;
	gnutls_session_t session;
};

static ssize_t push(gnutls_transport_ptr_t pointer, const void *bytes, size_t count)
{
	struct place *place = pointer;

	assert_true(place->out->tail + count <= WIRE_BYTES);
	memcpy(place->out->bytes + place->out->tail, bytes, count);
	place->out->tail += count;
	return (ssize_t)count;
}

static ssize_t pull(gnutls_transport_ptr_t pointer, void *bytes, size_t room)
{
	struct place *place = pointer;
	size_t count = MIN(room, place->in->tail - place->in->head);

	if (count == 0) {
		gnutls_transport_set_errno(place->session, EAGAIN);
		return -1;
	}
	memcpy(bytes, place->in->bytes + place->in->head, count);
	place->in->head += count;
	return (ssize_t)count;
}

/* What the kernel would do with a record and the key that it was given (RFC 8446, 5.2 and 5.3; RFC
 * 5288, 3; RFC 7905, 2). Returns how many bytes of plain text, the type of TLS 1.3 included. */
static size_t open_record(
	const struct tls_key *key, const uint8_t *record, size_t bytes, uint8_t *plain_out)
{
	static const gnutls_cipher_algorithm_t names[TLS_CIPHER_COUNT] = {
		GNUTLS_CIPHER_AES_128_GCM,
		GNUTLS_CIPHER_AES_256_GCM,
		GNUTLS_CIPHER_CHACHA20_POLY1305,
	};
	bool is_explicit = key->version == TLS_1_2 && key->cipher != TLS_CHACHA20;
	size_t skip = HEADER_BYTES + (is_explicit ? EXPLICIT_BYTES : 0);
	size_t plain_bytes = bytes;
	union tls_crypto crypto;
	uint8_t nonce[12];
	uint8_t extra[13];
	size_t extra_bytes = HEADER_BYTES;
	gnutls_aead_cipher_hd_t cipher;
	gnutls_datum_t datum;
	const uint8_t *sequence;

	(void)tls_key_crypto(key, &crypto);
	switch (key->cipher) {
	case TLS_AES_128_GCM:
		datum = (gnutls_datum_t){ crypto.aes_128.key, sizeof(crypto.aes_128.key) };
		memcpy(nonce, crypto.aes_128.salt, 4);
		memcpy(nonce + 4, crypto.aes_128.iv, 8);
		sequence = crypto.aes_128.rec_seq;
		break;
	case TLS_AES_256_GCM:
		datum = (gnutls_datum_t){ crypto.aes_256.key, sizeof(crypto.aes_256.key) };
		memcpy(nonce, crypto.aes_256.salt, 4);
		memcpy(nonce + 4, crypto.aes_256.iv, 8);
		sequence = crypto.aes_256.rec_seq;
		break;
	case TLS_CHACHA20:
	case TLS_CIPHER_COUNT:
	default:
		datum = (gnutls_datum_t){ crypto.chacha20.key, sizeof(crypto.chacha20.key) };
		memcpy(nonce, crypto.chacha20.iv, 12);
		sequence = crypto.chacha20.rec_seq;
		break;
	}
	if (is_explicit) {
		memcpy(nonce + 4, record + HEADER_BYTES, EXPLICIT_BYTES);
	} else {
		for (int i = 0; i < 8; i++) {
			nonce[4 + i] ^= sequence[i];
		}
	}
	memcpy(extra, record, HEADER_BYTES);
	if (key->version == TLS_1_2) {
		struct be16 inner = be16_make((uint16_t)(bytes - skip - TAG_BYTES));

		extra_bytes = sizeof(extra);
		memcpy(extra, sequence, 8);
		memcpy(extra + 8, record, 3);
		memcpy(extra + 11, &inner, 2);
	}
	assert_int_equal(gnutls_aead_cipher_init(&cipher, names[key->cipher], &datum), 0);
	assert_int_equal(
		gnutls_aead_cipher_decrypt(cipher, nonce, sizeof(nonce), extra, extra_bytes,
			TAG_BYTES, record + skip, bytes - skip, plain_out, &plain_bytes),
		0);
	gnutls_aead_cipher_deinit(cipher);
	return plain_bytes;
}

/* The record at the head of the wire is plain text of this type, and next comes the next. */
static void expect_record(
	struct wire *wire, struct tls_key *key, uint8_t content, const void *bytes, size_t count)
{
	uint8_t *record = wire->bytes + wire->head;
	size_t record_bytes = HEADER_BYTES + ((size_t)record[3] << 8 | record[4]);
	uint8_t plain[1024];
	size_t plain_bytes;

	assert_true(wire->head + record_bytes <= wire->tail && record_bytes <= sizeof(plain));
	plain_bytes = open_record(key, record, record_bytes, plain);
	if (key->version == TLS_1_3) {
		plain_bytes--;
		assert_int_equal(plain[plain_bytes], content);
	} else {
		assert_int_equal(record[0], content);
	}
	assert_int_equal(plain_bytes, count);
	assert_memory_equal(plain, bytes, count);
	wire->head += record_bytes;
	key->sequence++;
}

static void with_keys(enum tls_version version, enum tls_cipher cipher, enum tls_role sender)
{
	static const uint8_t update[] = { 24, 0, 0, 1, 0 };
	static struct wire wires[2];
	enum tls_role receiver = sender == TLS_SERVER ? TLS_CLIENT : TLS_SERVER;
	struct tls_ends ends;
	struct place places[2];
	struct tls_key *key;
	struct wire *wire = &wires[receiver];

	memset(wires, 0, sizeof(wires));
	tls_ends_begin(&ends, version, cipher);
	for (int role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		places[role] = (struct place){
			.in = &wires[role], .out = &wires[!role], .session = ends.sessions[role]
		};
		gnutls_transport_set_ptr(ends.sessions[role], &places[role]);
		gnutls_transport_set_push_function(ends.sessions[role], push);
		gnutls_transport_set_pull_function(ends.sessions[role], pull);
	}
	tls_ends_shake(&ends);
	/* Sequences do not start at 0 then. */
	assert_int_equal(gnutls_record_send(ends.sessions[sender], "first", 5), 5);
	assert_int_equal(gnutls_record_recv(ends.sessions[receiver], (char[8]){ 0 }, 8), 5);

	assert_int_equal(tls_keys_of_session(&ends.keys[receiver], ends.sessions[receiver]), 0);
	assert_int_equal(tls_keys_of_session(&ends.keys[sender], ends.sessions[sender]), 0);
	key = &ends.keys[receiver].receive;
	assert_int_equal(key->version, version);
	assert_int_equal(key->cipher, cipher);
	assert_memory_equal(key, &ends.keys[sender].send, sizeof(*key));

	assert_int_equal(gnutls_record_send(ends.sessions[sender], "second", 6), 6);
	expect_record(wire, key, TLS_DATA, "second", 6);
	for (int i = 0; version == TLS_1_3 && i < 3; i++) {
		assert_int_equal(gnutls_session_key_update(ends.sessions[sender], 0), 0);
		expect_record(wire, key, TLS_HANDSHAKE, update, sizeof(update));
		assert_int_equal(tls_key_next(key), 0);
		assert_int_equal(gnutls_record_send(ends.sessions[sender], "third", 5), 5);
		expect_record(wire, key, TLS_DATA, "third", 5);
	}
	tls_ends_end(&ends);
}

TEST(test_keys_are_those_of_the_session)
{
	for (int version = 0; version < TLS_VERSION_COUNT; version++) {
		for (int cipher = 0; cipher < TLS_CIPHER_COUNT; cipher++) {
			with_keys((enum tls_version)version, (enum tls_cipher)cipher, TLS_SERVER);
			with_keys((enum tls_version)version, (enum tls_cipher)cipher, TLS_CLIENT);
		}
	}
}

TEST(test_a_session_without_secrets_stays)
{
	static struct wire wires[2];
	struct tls_ends ends;
	struct place places[2];

	tls_ends_begin(&ends, TLS_1_3, TLS_AES_128_GCM);
	for (int role = TLS_SERVER; role <= TLS_CLIENT; role++) {
		places[role] = (struct place){
			.in = &wires[role], .out = &wires[!role], .session = ends.sessions[role]
		};
		gnutls_transport_set_ptr(ends.sessions[role], &places[role]);
		gnutls_transport_set_push_function(ends.sessions[role], push);
		gnutls_transport_set_pull_function(ends.sessions[role], pull);
	}
	tls_ends_shake(&ends);
	tls_keys_wipe(&ends.keys[TLS_CLIENT]);
	assert_int_equal(tls_keys_of_session(&ends.keys[TLS_CLIENT], ends.sessions[TLS_CLIENT]),
		-EOPNOTSUPP);
	tls_ends_end(&ends);
}

/* --- control messages ------------------------------------------------------------------------- */

#define BYTES(...) (const uint8_t[]){ __VA_ARGS__ }, sizeof((const uint8_t[]){ __VA_ARGS__ })

TEST(test_single_control_messages)
{
	const struct {
		enum tls_role role;
		enum tls_version version;
		uint8_t content;
		const uint8_t *bytes;
		size_t count;
		int result;
		unsigned what; /* the event, or the alert */
	} cases[] = {
		{ TLS_SERVER, TLS_1_3, 22, BYTES(24, 0, 0, 1, 0), 0, TLS_EVENT_UPDATE },
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(24, 0, 0, 1, 1), 0, TLS_EVENT_UPDATE_BOTH },
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(24, 0, 0, 1, 2), -EPROTO, 50 },
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(24, 0, 0, 2, 0, 0), -EPROTO, 50 },
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(24, 0, 0, 0), -EPROTO, 50 },
		/* A part of one, and one with something behind it. */
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(24, 0, 0, 1), -EPROTO, 50 },
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(24, 0, 0, 1, 0, 4), -EPROTO, 50 },
		/* One behind something else. */
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(4, 0, 0, 0, 24, 0, 0, 1, 0), -EPROTO, 10 },
		{ TLS_SERVER, TLS_1_2, 22, BYTES(24, 0, 0, 1, 0), -EPROTO, 10 },
		/* Renegotiation, from either side. */
		{ TLS_SERVER, TLS_1_2, 22, BYTES(1, 0, 0, 0), -EPROTO, 10 },
		{ TLS_CLIENT, TLS_1_2, 22, BYTES(0, 0, 0, 0), -EPROTO, 10 },
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(4, 0, 0, 1, 7), 0, TLS_EVENT_NONE },
		{ TLS_SERVER, TLS_1_3, 22, BYTES(4, 0, 0, 1, 7), -EPROTO, 10 },
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(4, 1, 0, 1), -EPROTO, 10 },
		{ TLS_CLIENT, TLS_1_3, 22, BYTES(13, 0, 0, 0), -EPROTO, 10 },
		{ TLS_CLIENT, TLS_1_3, 22, NULL, 0, -EPROTO, 10 },
		{ TLS_CLIENT, TLS_1_3, 21, BYTES(1, 0), 0, TLS_EVENT_CLOSED },
		{ TLS_SERVER, TLS_1_2, 21, BYTES(1, 0), 0, TLS_EVENT_CLOSED },
		{ TLS_CLIENT, TLS_1_3, 21, BYTES(1, 90), 0, TLS_EVENT_NONE },
		{ TLS_CLIENT, TLS_1_2, 21, BYTES(1, 100), 0, TLS_EVENT_NONE },
		{ TLS_CLIENT, TLS_1_3, 21, BYTES(1, 100), -ECONNABORTED, 80 },
		{ TLS_CLIENT, TLS_1_3, 21, BYTES(2, 20), -ECONNABORTED, 80 },
		{ TLS_CLIENT, TLS_1_3, 21, BYTES(2, 255), -ECONNABORTED, 80 },
		{ TLS_CLIENT, TLS_1_3, 21, BYTES(2), -EPROTO, 50 },
		{ TLS_CLIENT, TLS_1_3, 21, BYTES(1, 0, 0), -EPROTO, 50 },
		{ TLS_CLIENT, TLS_1_3, 20, BYTES(1), -EPROTO, 10 },
		{ TLS_CLIENT, TLS_1_3, 23, BYTES(1), -EPROTO, 10 },
		{ TLS_CLIENT, TLS_1_3, 24, BYTES(1, 0, 0), -EPROTO, 10 },
	};

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct tls_control control = { .role = cases[i].role, .version = cases[i].version };
		enum tls_alert alert = TLS_ALERT_INTERNAL_ERROR;
		struct error error = { 0 };
		enum tls_event event;

		assert_int_equal(tls_control_input(&control, cases[i].content, cases[i].bytes,
					 cases[i].count, 1, &event, &alert, &error),
			cases[i].result);
		assert_int_equal(cases[i].result == 0 ? event : alert, cases[i].what);
		assert_int_equal(error.code, cases[i].result);
	}
}

static int input(struct tls_control *control, uint8_t content, const uint8_t *bytes, size_t count,
	uint64_t now_ns)
{
	enum tls_alert alert;
	enum tls_event event;

	return tls_control_input(control, content, bytes, count, now_ns, &event, &alert, NULL);
}

TEST(test_tickets_in_pieces)
{
	static const uint8_t tickets[] = { 4, 0, 0, 3, 1, 2, 3, 4, 0, 0, 0, 4, 0, 0, 1, 9 };
	static const uint8_t update[] = { 24, 0, 0, 1, 0 };
	uint8_t large[1000] = { 4, 1, 0, 0 };

	for (size_t cut = 1; cut < sizeof(tickets); cut++) {
		struct tls_control control = { .role = TLS_CLIENT, .version = TLS_1_3 };

		assert_int_equal(input(&control, TLS_HANDSHAKE, tickets, cut, 1), 0);
		if (cut == 7 || cut == 11) {
			assert_int_equal(input(&control, TLS_HANDSHAKE, update, 5, 1), 0);
		}
		assert_int_equal(
			input(&control, TLS_HANDSHAKE, tickets + cut, sizeof(tickets) - cut, 1), 0);
		assert_int_equal(control.tickets, 3);
		assert_int_equal(input(&control, TLS_HANDSHAKE, update, 5, 1), 0);
		/* A message that is not whole is not interrupted. */
		assert_int_equal(input(&control, TLS_HANDSHAKE, tickets, 2, 1), 0);
		assert_int_equal(input(&control, TLS_ALERT, (uint8_t[]){ 1, 0 }, 2, 1), -EPROTO);
	}

	/* The longest there may be, and as many as there may be. */
	struct tls_control control = { .role = TLS_CLIENT, .version = TLS_1_3 };

	for (int i = 0; i < TLS_TICKETS_MAX; i++) {
		size_t left = TLS_TICKET_BYTES_MAX;

		assert_int_equal(input(&control, TLS_HANDSHAKE, large, 4, 1), 0);
		while (left > 0) {
			size_t part = MIN(left, sizeof(large));

			assert_int_equal(input(&control, TLS_HANDSHAKE, large, part, 1), 0);
			left -= part;
		}
	}
	assert_int_equal(input(&control, TLS_HANDSHAKE, tickets, 7, 1), -EPROTO);
}

TEST(test_floods_end)
{
	static const uint8_t update[] = { 24, 0, 0, 1, 1 };
	struct tls_control control = { .role = TLS_SERVER, .version = TLS_1_3 };
	uint64_t now_ns = 5;

	for (int second = 0; second < 3; second++, now_ns += UINT64_C(1000000000)) {
		for (int i = 0; i < TLS_UPDATES_PER_S_MAX; i++) {
			assert_int_equal(
				input(&control, TLS_HANDSHAKE, update, 5, now_ns + (uint64_t)i), 0);
		}
	}
	now_ns -= 1000;
	assert_int_equal(input(&control, TLS_HANDSHAKE, update, 5, now_ns), -EPROTO);

	for (int i = 0; i < TLS_WARNING_ALERTS_MAX; i++) {
		assert_int_equal(input(&control, TLS_ALERT, (uint8_t[]){ 1, 90 }, 2, 1), 0);
	}
	assert_int_equal(input(&control, TLS_ALERT, (uint8_t[]){ 1, 90 }, 2, 1), -EPROTO);
}

/* Whatever comes, it is counted, bounded, and none of the three. */
TEST(test_arbitrary_control_messages)
{
	unsigned seed = 1;

	for (int round = 0; round < 20000; round++) {
		struct tls_control control = { .role = rand_r(&seed) % 2 ? TLS_CLIENT : TLS_SERVER,
			.version = rand_r(&seed) % 4 ? TLS_1_3 : TLS_1_2 };
		int rc = 0;

		for (int i = 0; i < 100 && rc == 0; i++) {
			size_t count = (size_t)rand_r(&seed) % 128;
			uint8_t *bytes = malloc(count == 0 ? 1 : count);
			uint8_t content = (uint8_t)(rand_r(&seed) % 8 ? TLS_HANDSHAKE
								      : 19 + rand_r(&seed) % 6);

			for (size_t at = 0; at < count; at++) {
				bytes[at] = (uint8_t)(rand_r(&seed) % 4 ? 0 : rand_r(&seed));
			}
			if (count > 0 && rand_r(&seed) % 2) {
				bytes[0] = rand_r(&seed) % 2 ? 4 : 24;
			}
			rc = input(&control, content, bytes, count, (uint64_t)i);
			free(bytes);
			assert_true(rc == 0 || rc == -EPROTO || rc == -ECONNABORTED);
			if (rc == 0) {
				assert_true(control.tickets <= TLS_TICKETS_MAX);
				assert_true(control.skip_bytes <= TLS_TICKET_BYTES_MAX);
				assert_true(control.header_bytes < sizeof(control.header));
			}
		}
	}
}

/* --- without a kernel ------------------------------------------------------------------------- */

/* Whatever this machine has: what is said fits together, and a demand is not met in silence. */
TEST(test_what_this_machine_says)
{
	const struct tls_kernel_features *features = tls_kernel_features();
	bool is_there = features->ciphers[TLS_1_3] != 0;
	struct error error = { 0 };

	assert_int_equal(tls_kernel_look(TLS_RECORDS_AUTO, NULL), 0);
	assert_int_equal(tls_kernel_look(TLS_RECORDS_USER, NULL), 0);
	assert_int_equal(tls_kernel_look(TLS_RECORDS_KERNEL, &error), is_there ? 0 : -EOPNOTSUPP);
	assert_true(is_there || strstr(error.text, features->why_not.text) != NULL);
	assert_true(is_there || !features->has_rekeying);
	assert_int_equal(features->why_not.code != 0, !features->has_rekeying);
}
