// SPDX-License-Identifier: Apache-2.0
/*
 * What strangers say to a TLS layer. The first byte chooses what the rest is (modulo 4), the second
 * how it is cut into pieces:
 *
 *   0  the first bytes of a connection: it never opens
 *   1  places where the flights of a real handshake are changed, three bytes each (two of the
 * place, one to be mixed in): it opens only if nothing was 2  records for an open connection: none
 * gives a byte 3  changes as in 1 of the records in which a peer says something: what comes through
 * is how what it said begins
 *
 * The layer is a server, or a client where bit 7 of the first byte is set.
 */
#include <stddef.h>

#include "fuzz.h"
#include "sim/sim.h"
#include "tls_peer.h"

enum {
	SAID_BYTES = 3000,
	CHANGED_BYTES_MAX = 8192, /* of a flight, or of what is said */
	RECORD_HEADER_BYTES = 5,
	RECORD_CHANGE_CIPHER = 20,
	TURNS_MAX = 3000,
};

struct trial {
	const uint8_t *data;
	size_t size;
	size_t piece;
	bool is_changed;
};

static void send_pieces(struct peer *peer, const struct trial *trial)
{
	for (size_t at = 0; at < trial->size; at += trial->piece) {
		peer_send_bytes(peer, trial->data + at, MIN(trial->piece, trial->size - at));
		if (at / trial->piece < 64) {
			peer_turn(peer);
		}
	}
}

/* Whether the byte decides anything during a handshake: headers of records do not, and the change
 * of cipher that TLS 1.3 keeps for old routers. */
static bool is_heard(const uint8_t *bytes, size_t count, size_t at)
{
	size_t record = 0;
	size_t end = 0;

	while (end <= at) {
		record = end;
		GMB_ASSERT(record + RECORD_HEADER_BYTES <= count);
		end += RECORD_HEADER_BYTES + ((size_t)bytes[record + 3] << 8 | bytes[record + 4]);
	}
	return at >= record + RECORD_HEADER_BYTES && bytes[record] != RECORD_CHANGE_CIPHER;
}

/* Changes what the peer is about to send. */
static void change(struct peer *peer, struct trial *trial, bool all)
{
	size_t count = peer->out.end - peer->out.at;
	uint8_t before[CHANGED_BYTES_MAX];
	uint8_t *bytes;

	if (count == 0 || count > sizeof(before)) {
		return;
	}
	bytes = peer->out.data + peer->out.at;
	memcpy(before, bytes, count);
	for (size_t i = 0; i + 3 <= trial->size; i += 3) {
		size_t at = ((size_t)trial->data[i] << 8 | trial->data[i + 1]) % count;

		if (all || is_heard(before, count, at)) {
			bytes[at] ^= trial->data[i + 2];
		}
	}
	trial->is_changed = trial->is_changed || memcmp(before, bytes, count) != 0;
}

static void await_upgrade(struct peer *peer)
{
	peer_cut(peer);
	for (uint32_t turns = 0; peer->upgraded == 1; turns++) {
		GMB_ASSERT(turns < TURNS_MAX);
		peer_turn(peer);
	}
}

static void try_hostile_hello(struct peer *peer, struct trial *trial)
{
	send_pieces(peer, trial);
	await_upgrade(peer);
	GMB_ASSERT(peer->upgraded < 0 && tls_layer_error(&peer->stream)->text[0] != '\0');
}

static void try_changed_handshake(struct peer *peer, struct trial *trial)
{
	int result = GNUTLS_E_AGAIN;

	for (uint32_t turns = 0; turns < 60 && peer->upgraded == 1; turns++) {
		peer_fetch(peer);
		if (gnutls_error_is_fatal(result) == 0 && result != 0) {
			result = gnutls_handshake(peer->session);
		}
		change(peer, trial, false);
		peer_send(peer);
		peer_turn(peer);
	}
	if (peer->upgraded == 1) {
		await_upgrade(peer);
	}
	GMB_ASSERT(peer->upgraded < 0 || !trial->is_changed);
}

/* How many bytes come before the end, or the error. */
static size_t receive_all(struct peer *peer, uint8_t *heard, size_t bytes)
{
	size_t got = 0;
	int result;

	do {
		GMB_ASSERT(got < bytes);
		peer_receive(peer, heard + got, bytes - got, false);
		result = peer_await_receive(peer);
		got += result > 0 ? (size_t)result : 0;
	} while (result > 0);
	return got;
}

static void try_records(struct peer *peer, struct trial *trial)
{
	uint8_t heard[16];

	send_pieces(peer, trial);
	peer_cut(peer);
	GMB_ASSERT(receive_all(peer, heard, sizeof(heard)) == 0);
}

static void try_changed_records(struct peer *peer, struct trial *trial)
{
	static uint8_t said[SAID_BYTES];
	uint8_t heard[SAID_BYTES + 1];
	size_t got;

	for (size_t i = 0; i < sizeof(said); i++) {
		said[i] = (uint8_t)(i * 7 + (i >> 8));
	}
	for (size_t at = 0; at < sizeof(said); at += 500) {
		peer_say(peer, said + at, 500);
	}
	change(peer, trial, true);
	peer_send(peer);
	peer_cut(peer);
	got = receive_all(peer, heard, sizeof(heard));
	GMB_ASSERT(got % 500 == 0 && memcmp(heard, said, got) == 0);
	GMB_ASSERT((got == SAID_BYTES) == !trial->is_changed);
}

static struct tls_world world;

static void end_world(void)
{
	tls_world_end(&world);
}

/* Credentials are made once, they take longer than a trial; a pool remembers who failed. */
static void renew_world(void)
{
	struct error error;

	if (world.pool == NULL) {
		tls_world_begin(&world, 0);
		GMB_ASSERT(atexit(end_world) == 0);
	} else {
		tls_pool_destroy(world.pool);
		GMB_ASSERT(tls_pool_create(&(struct tls_pool_options){ .threads = 1 }, &world.pool,
				   &error) == 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct trial trial;
	struct peer peer;
	struct ring *ring;
	int way;

	if (size < 2) {
		return 0;
	}
	renew_world();
	way = data[0] & 3;
	trial = (struct trial){
		.data = data + 2, .size = size - 2, .piece = 1 + data[1] * (size_t)4
	};
	ring = sim_ring_create_for_fuzz(1);
	peer_begin(&peer, &world, ring, (data[0] & 0x80) != 0 ? TLS_CLIENT : TLS_SERVER, TLS_BY_KEY,
		0);
	peer_session(&peer, TLS_BY_KEY, NULL);
	if (way >= 2) {
		GMB_ASSERT(peer_shake(&peer) == 0);
	}
	switch (way) {
	case 0:
		try_hostile_hello(&peer, &trial);
		break;
	case 1:
		try_changed_handshake(&peer, &trial);
		break;
	case 2:
		try_records(&peer, &trial);
		break;
	case 3:
		try_changed_records(&peer, &trial);
		break;
	}
	peer_end(&peer);
	ring_destroy(ring);
	sim_stop();
	return 0;
}
