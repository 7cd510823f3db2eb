// SPDX-License-Identifier: Apache-2.0
/*
 * The provider clan of libfabric, asked by the calls of libfabric what clan-fi(7) promises.
 */
#include "fi_world.h"
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- connecting --------------------------------------------------------------------------------
 */

TEST(connects_with_data)
{
	uint64_t space[(sizeof(struct fi_eq_cm_entry) + 256) / sizeof(uint64_t)];
	struct fi_eq_cm_entry *entry = (struct fi_eq_cm_entry *)space;
	struct side server;
	struct side client;
	struct sockaddr_in name;
	size_t bytes = sizeof(name);
	uint8_t hello[256];
	uint16_t port;

	pattern_fill(hello, sizeof(hello), 1);
	side_open(&server, FI_WAIT_NONE);
	side_open(&client, FI_WAIT_NONE);
	port = side_listen(&server);
	side_make_ep(&client, NULL);
	assert_int_equal(side_connect(&client, port, hello, sizeof(hello) + 1), -FI_EINVAL);
	assert_int_equal(fi_send(client.ep, hello, 1, NULL, 0, NULL), -FI_ENOTCONN);
	assert_int_equal(side_connect(&client, port, hello, sizeof(hello)), 0);
	assert_int_equal(await_event(&server, &client, entry, sizeof(space), NULL), FI_CONNREQ);
	assert_ptr_equal(entry->fid, &server.pep->fid);
	pattern_check(entry->data, sizeof(hello), 1);
	assert_int_equal(entry->info->dest_addrlen, sizeof(struct sockaddr_in));
	assert_int_equal(((struct sockaddr_in *)entry->info->dest_addr)->sin_addr.s_addr,
		htonl(INADDR_LOOPBACK));
	side_make_ep(&server, entry->info);
	fi_freeinfo(entry->info);
	pattern_fill(hello, sizeof(hello), 2);
	assert_int_equal(fi_accept(server.ep, hello, 100), 0);
	assert_int_equal(await_event(&server, &client, entry, sizeof(space), NULL), FI_CONNECTED);
	assert_ptr_equal(entry->fid->context, &server);
	assert_int_equal(await_event(&client, &server, entry, sizeof(space), NULL), FI_CONNECTED);
	pattern_check(entry->data, 100, 2);
	assert_int_equal(fi_getpeer(client.ep, &name, &bytes), 0);
	assert_int_equal(ntohs(name.sin_port), port);
	side_close(&client);
	side_close(&server);
}

TEST(rejects_with_data)
{
	struct fi_eq_cm_entry entry;
	struct fi_eq_err_entry error = { 0 };
	struct side server;
	struct side client;
	uint8_t why[24];

	pattern_fill(why, sizeof(why), 3);
	side_open(&server, FI_WAIT_NONE);
	side_open(&client, FI_WAIT_NONE);
	side_make_ep(&client, NULL);
	assert_int_equal(side_connect(&client, side_listen(&server), NULL, 0), 0);
	assert_int_equal(await_event(&server, &client, &entry, sizeof(entry), NULL), FI_CONNREQ);
	assert_int_equal(fi_reject(server.pep, entry.info->handle, why, sizeof(why)), 0);
	fi_freeinfo(entry.info);
	assert_int_equal(await_event(&client, &server, &entry, sizeof(entry), &error), 0);
	assert_int_equal(error.err, FI_ECONNREFUSED);
	assert_ptr_equal(error.fid, &client.ep->fid);
	assert_int_equal(error.err_data_size, sizeof(why));
	pattern_check(error.err_data, sizeof(why), 3);
	side_close(&client);
	side_close(&server);
}

/* A program that wants one connection closes its listener as soon as it has been asked. */
TEST(a_request_outlives_its_listener)
{
	struct fi_eq_cm_entry entry;
	struct pair pair = { 0 };

	side_open(&pair.server, FI_WAIT_FD);
	side_open(&pair.client, FI_WAIT_FD);
	side_make_ep(&pair.client, NULL);
	assert_int_equal(side_connect(&pair.client, side_listen(&pair.server), NULL, 0), 0);
	assert_int_equal(
		await_event(&pair.server, &pair.client, &entry, sizeof(entry), NULL), FI_CONNREQ);
	assert_int_equal(fi_close(&pair.server.pep->fid), 0);
	pair.server.pep = NULL;
	side_make_ep(&pair.server, entry.info);
	fi_freeinfo(entry.info);
	assert_int_equal(fi_accept(pair.server.ep, NULL, 0), 0);
	assert_int_equal(
		await_event(&pair.client, &pair.server, &entry, sizeof(entry), NULL), FI_CONNECTED);
	pair_close(&pair);
}

/* Nobody answers it: the fabric goes all the same, and the one who asked is told. */
TEST(a_request_that_is_forgotten)
{
	struct fi_eq_err_entry error = { 0 };
	struct fi_eq_cm_entry entry;
	struct pair pair = { 0 };

	side_open(&pair.server, FI_WAIT_FD);
	side_open(&pair.client, FI_WAIT_FD);
	side_make_ep(&pair.client, NULL);
	assert_int_equal(side_connect(&pair.client, side_listen(&pair.server), NULL, 0), 0);
	assert_int_equal(
		await_event(&pair.server, &pair.client, &entry, sizeof(entry), NULL), FI_CONNREQ);
	fi_freeinfo(entry.info);
	side_close(&pair.server);
	assert_int_equal(await_event(&pair.client, NULL, &entry, sizeof(entry), &error), 0);
	side_close(&pair.client);
}

TEST(nobody_listens)
{
	struct fi_eq_cm_entry entry;
	struct fi_eq_err_entry error = { 0 };
	struct side server;
	struct side client;
	uint16_t port;

	side_open(&server, FI_WAIT_NONE);
	port = side_listen(&server);
	side_close(&server);
	side_open(&client, FI_WAIT_NONE);
	side_make_ep(&client, NULL);
	assert_int_equal(side_connect(&client, port, NULL, 0), 0);
	assert_int_equal(await_event(&client, NULL, &entry, sizeof(entry), &error), 0);
	assert_int_equal(error.err, FI_ECONNREFUSED);
	side_close(&client);
}

TEST(a_port_has_one_listener)
{
	struct sockaddr_in name;
	size_t bytes = sizeof(name);
	struct fid_pep *second;
	struct side server;

	side_open(&server, FI_WAIT_NONE);
	side_listen(&server);
	assert_int_equal(fi_getname(&server.pep->fid, &name, &bytes), 0);
	assert_int_equal(fi_passive_ep(server.fabric, server.info, &second, NULL), 0);
	assert_int_equal(fi_setname(&second->fid, &name, bytes), 0);
	assert_int_equal(fi_listen(second), -FI_ENOEQ);
	assert_int_equal(fi_pep_bind(second, &server.eq->fid, 0), 0);
	assert_int_equal(fi_listen(second), -FI_EADDRINUSE);
	assert_int_equal(fi_close(&second->fid), 0);
	side_close(&server);
}

/* The connector gives up before, and after, its event is read; both times the acceptor is told. */
TEST(the_connector_gives_up)
{
	struct fi_eq_cm_entry entry;
	struct side server;
	struct side client;
	uint16_t port;

	side_open(&server, FI_WAIT_NONE);
	port = side_listen(&server);
	side_open(&client, FI_WAIT_NONE);
	side_make_ep(&client, NULL);
	assert_int_equal(side_connect(&client, port, NULL, 0), 0);
	assert_int_equal(await_event(&server, &client, &entry, sizeof(entry), NULL), FI_CONNREQ);
	side_close(&client);
	side_make_ep(&server, entry.info);
	fi_freeinfo(entry.info);
	/* Whether the end is known by now, or comes as the end of a connection, is both right. */
	if (fi_accept(server.ep, NULL, 0) == 0) {
		while (await_event(&server, NULL, &entry, sizeof(entry), NULL) != FI_SHUTDOWN) {
		}
	}
	side_close(&server);
}

/* Two processes that connect to each other at once get two connections; one to oneself works. */
TEST(crossing_and_own_connections)
{
	struct fi_eq_cm_entry entry;
	struct fid_ep *own;
	uint8_t out[64];
	uint8_t in[64];
	struct side side;

	side_open(&side, FI_WAIT_NONE);
	side_make_ep(&side, NULL);
	own = side.ep;
	assert_int_equal(side_connect(&side, side_listen(&side), NULL, 0), 0);
	assert_int_equal(await_event(&side, NULL, &entry, sizeof(entry), NULL), FI_CONNREQ);
	side_make_ep(&side, entry.info);
	fi_freeinfo(entry.info);
	assert_int_equal(fi_accept(side.ep, NULL, 0), 0);
	assert_int_equal(await_event(&side, NULL, &entry, sizeof(entry), NULL), FI_CONNECTED);
	assert_int_equal(await_event(&side, NULL, &entry, sizeof(entry), NULL), FI_CONNECTED);
	pattern_fill(out, sizeof(out), 4);
	assert_int_equal(fi_recv(own, in, sizeof(in), NULL, 0, in), 0);
	assert_int_equal(fi_send(side.ep, out, sizeof(out), NULL, 0, out), 0);
	await_done(&side, NULL, out);
	await_done(&side, NULL, in);
	pattern_check(in, sizeof(in), 4);
	assert_int_equal(fi_close(&own->fid), 0);
	side_close(&side);
}

/* --- messages ----------------------------------------------------------------------------------
 */

TEST(carries_messages_of_every_size)
{
	static const size_t sizes[] = { 0, 1, 24, 40, 4096, 8184, 8185, 16384 + 64, 1 << 20,
		(3 << 20) + 5 };
	uint8_t *out = malloc(4 << 20);
	uint8_t *in = malloc(4 << 20);
	struct pair pair;

	pair_open(&pair);
	for (size_t i = 0; i < ARRAY_COUNT(sizes); i++) {
		struct fi_cq_data_entry entry;

		pattern_fill(out, sizes[i], (uint32_t)i);
		memset(in, 0xee, sizes[i] + 1);
		assert_int_equal(fi_recv(pair.server.ep, in, 4 << 20, NULL, 0, in), 0);
		assert_int_equal(fi_senddata(pair.client.ep, out, sizes[i], NULL, i, 0, out), 0);
		assert_int_equal(await_completion(&pair.server, &pair.client, &entry, NULL), 0);
		assert_ptr_equal(entry.op_context, in);
		assert_int_equal(entry.len, sizes[i]);
		assert_int_equal(entry.data, i);
		assert_int_equal(entry.flags, FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA);
		pattern_check(in, sizes[i], (uint32_t)i);
		assert_int_equal(in[sizes[i]], 0xee);
		assert_int_equal(await_completion(&pair.client, &pair.server, &entry, NULL), 0);
		assert_int_equal(entry.flags, FI_SEND | FI_MSG);
	}
	pair_close(&pair);
	free(out);
	free(in);
}

/* Vectors on both sides that are cut in different places, both ways at once. */
TEST(carries_vectors_both_ways)
{
	enum { BYTES = 700000 };
	uint8_t *memory = malloc(4 * BYTES);
	struct pair pair;

	pair_open(&pair);
	for (int i = 0; i < 2; i++) {
		struct side *from = i == 0 ? &pair.client : &pair.server;
		struct side *to = i == 0 ? &pair.server : &pair.client;
		uint8_t *out = memory + i * BYTES;
		uint8_t *in = memory + (2 + i) * BYTES;
		struct iovec parts[] = { { out, 1 }, { out + 1, 0 }, { out + 1, 99999 },
			{ out + 100000, BYTES - 100000 } };
		struct iovec places[] = { { in, 500000 }, { in + 500000, BYTES - 500000 } };

		pattern_fill(out, BYTES, (uint32_t)i);
		assert_int_equal(fi_recvv(to->ep, places, NULL, 2, 0, in), 0);
		assert_int_equal(fi_sendv(from->ep, parts, NULL, 4, 0, out), 0);
	}
	for (int i = 0; i < 2; i++) {
		struct fi_cq_data_entry entry;

		assert_int_equal(await_completion(&pair.client, &pair.server, &entry, NULL), 0);
		assert_int_equal(await_completion(&pair.server, &pair.client, &entry, NULL), 0);
	}
	pattern_check(memory + 2 * BYTES, BYTES, 0);
	pattern_check(memory + 3 * BYTES, BYTES, 1);
	pair_close(&pair);
	free(memory);
}

/* Without receives messages wait: in the ring, then as operations, and then there is no more room.
 * Nothing is lost, and the order is kept. Injected ones give no completion. */
TEST(waits_for_receives)
{
	uint32_t sent = 0;
	struct pair pair;

	pair_open(&pair);
	for (;;) {
		uint8_t message[256];
		ssize_t result;

		pattern_fill(message, sizeof(message), sent);
		result = fi_inject(pair.client.ep, message, sizeof(message), 0);
		if (result == -FI_EAGAIN) {
			break;
		}
		assert_int_equal(result, 0);
		sent++;
		assert_true(sent < 100000);
		drive(&pair.server);
	}
	assert_true(sent > pair.client.info->tx_attr->size);
	for (uint32_t i = 0; i < sent; i++) {
		uint8_t in[256];

		assert_int_equal(fi_recv(pair.server.ep, in, sizeof(in), NULL, 0, in), 0);
		await_done(&pair.server, &pair.client, in);
		pattern_check(in, sizeof(in), i);
	}
	assert_int_equal(
		fi_cq_read(pair.client.cq, &(struct fi_cq_data_entry){ 0 }, 1), -FI_EAGAIN);
	pair_close(&pair);
}

/* What a call asks for and does not get is not passed over. */
TEST(refuses_unknown_flags)
{
	uint8_t byte = 0;
	struct iovec iov = { &byte, 1 };
	const struct fi_msg message = { .msg_iov = &iov, .iov_count = 1 };
	struct pair pair = { 0 };

	pair_open(&pair);
	assert_int_equal(fi_sendmsg(pair.client.ep, &message, FI_DELIVERY_COMPLETE), -FI_EBADFLAGS);
	assert_int_equal(fi_sendmsg(pair.client.ep, &message, FI_FENCE), -FI_EBADFLAGS);
	assert_int_equal(fi_recvmsg(pair.server.ep, &message, FI_MULTI_RECV), -FI_EBADFLAGS);
	assert_int_equal(fi_recvmsg(pair.server.ep, &message, FI_COMPLETION), 0);
	assert_int_equal(fi_sendmsg(pair.client.ep, &message, FI_COMPLETION | FI_MORE), 0);
	await_done(&pair.client, &pair.server, NULL);
	await_done(&pair.server, &pair.client, NULL);
	pair_close(&pair);
}

TEST(truncates)
{
	struct fi_cq_err_entry error;
	struct fi_cq_data_entry entry;
	uint8_t out[100];
	uint8_t in[100] = { 0 };
	struct pair pair;

	pair_open(&pair);
	pattern_fill(out, sizeof(out), 5);
	assert_int_equal(fi_recv(pair.server.ep, in, 60, NULL, 0, in), 0);
	assert_int_equal(fi_recv(pair.server.ep, in, 100, NULL, 0, in), 0);
	assert_int_equal(fi_inject(pair.client.ep, out, sizeof(out), 0), 0);
	assert_int_equal(fi_inject(pair.client.ep, out, sizeof(out), 0), 0);
	assert_int_equal(await_completion(&pair.server, &pair.client, &entry, &error), FI_ETRUNC);
	assert_ptr_equal(error.op_context, in);
	assert_int_equal(error.len, 60);
	assert_int_equal(error.olen, 40);
	pattern_check(in, 60, 5);
	await_done(&pair.server, &pair.client, in);
	pattern_check(in, 100, 5);
	assert_int_equal(fi_inject(pair.client.ep, out, 257, 0), -FI_EMSGSIZE);
	pair_close(&pair);
}

/* --- registered memory -------------------------------------------------------------------------
 */

static struct fid_mr *registered(struct side *side, void *base, size_t bytes, uint64_t access)
{
	struct fid_mr *mr;

	assert_int_equal(fi_mr_reg(side->domain, base, bytes, access, 0, 0, 0, &mr, NULL), 0);
	return mr;
}

TEST(reads_and_writes_memory)
{
	static const size_t sizes[] = { 0, 1, 4096, 65536, 65537, 1 << 20, (5 << 20) + 3 };
	enum { BYTES = 6 << 20 };
	uint8_t *own = malloc(BYTES);
	uint8_t *theirs = malloc(BYTES);
	struct pair pair;
	struct fid_mr *mr;

	pair_open(&pair);
	mr = registered(&pair.server, theirs, BYTES, FI_REMOTE_READ | FI_REMOTE_WRITE);
	for (size_t i = 0; i < ARRAY_COUNT(sizes); i++) {
		struct fi_cq_data_entry entry;
		uint64_t at = (uintptr_t)theirs + (i == 6 ? 0 : 12345);

		pattern_fill(own, sizes[i], (uint32_t)i);
		assert_int_equal(
			fi_write(pair.client.ep, own, sizes[i], NULL, 0, at, fi_mr_key(mr), own),
			0);
		assert_int_equal(await_completion(&pair.client, &pair.server, &entry, NULL), 0);
		assert_int_equal(entry.flags, FI_WRITE | FI_RMA);
		pattern_check((uint8_t *)at, sizes[i], (uint32_t)i);
		memset(own, 0, sizes[i]);
		assert_int_equal(
			fi_read(pair.client.ep, own, sizes[i], NULL, 0, at, fi_mr_key(mr), own), 0);
		assert_int_equal(await_completion(&pair.client, &pair.server, &entry, NULL), 0);
		assert_int_equal(entry.flags, FI_READ | FI_RMA);
		pattern_check(own, sizes[i], (uint32_t)i);
	}
	assert_int_equal(fi_close(&mr->fid), 0);
	pair_close(&pair);
	free(own);
	free(theirs);
}

/* The target's program is told of a write with data, and only of that. */
TEST(tells_of_writes_with_data)
{
	struct fi_cq_data_entry entry;
	uint8_t theirs[64] = { 0 };
	uint8_t own[64];
	struct pair pair;
	struct fid_mr *mr;

	pair_open(&pair);
	pattern_fill(own, sizeof(own), 6);
	mr = registered(&pair.server, theirs, sizeof(theirs), FI_REMOTE_WRITE);
	assert_int_equal(
		fi_inject_write(pair.client.ep, own, 32, 0, (uintptr_t)theirs, fi_mr_key(mr)), 0);
	assert_int_equal(fi_writedata(pair.client.ep, own, sizeof(own), NULL, 77, 0,
				 (uintptr_t)theirs, fi_mr_key(mr), own),
		0);
	assert_int_equal(await_completion(&pair.server, &pair.client, &entry, NULL), 0);
	assert_int_equal(entry.flags, FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA);
	assert_int_equal(entry.data, 77);
	assert_int_equal(entry.len, sizeof(own));
	pattern_check(theirs, sizeof(theirs), 6);
	await_done(&pair.client, &pair.server, own);
	assert_int_equal(fi_close(&mr->fid), 0);
	pair_close(&pair);
}

TEST(guards_memory)
{
	uint8_t theirs[64] = { 0 };
	uint8_t own[64] = { 1 };
	struct pair pair;
	struct fid_mr *mr;
	struct fid_mr *other;
	uint64_t at = (uintptr_t)theirs;
	const struct {
		bool write;
		uint64_t address;
		size_t bytes;
		int64_t key;
		int error;
	} cases[] = {
		{ true, at, 16, 0, FI_EACCES }, /* for reading only */
		{ false, at + 16, 32, 0, 0 },
		{ false, at - 1, 16, 0, FI_EACCES },
		{ false, at + 17, 32, 0, FI_EACCES },
		{ false, at + 48, 1, 0, FI_EACCES },
		{ false, at + 48, 0, 0, 0 },
		{ false, UINT64_MAX - 3, 16, 0, FI_EACCES },
		{ false, at, 16, 1, FI_EKEYREJECTED },
		{ true, at, 16, INT64_MIN, FI_EKEYREJECTED },
	};

	pair_open(&pair);
	other = registered(&pair.server, theirs, 64, FI_REMOTE_WRITE);
	mr = registered(&pair.server, theirs, 48, FI_REMOTE_READ);
	assert_int_not_equal(fi_mr_key(mr), fi_mr_key(other));
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct fi_cq_data_entry entry;
		uint64_t key = fi_mr_key(mr) + (uint64_t)cases[i].key;
		ssize_t result = cases[i].write ? fi_write(pair.client.ep, own, cases[i].bytes,
							  NULL, 0, cases[i].address, key, own)
						: fi_read(pair.client.ep, own, cases[i].bytes, NULL,
							  0, cases[i].address, key, own);

		assert_int_equal(result, 0);
		assert_int_equal(
			await_completion(&pair.client, &pair.server, &entry, NULL), cases[i].error);
	}
	for (size_t i = 0; i < sizeof(theirs); i++) {
		assert_int_equal(theirs[i], 0);
	}
	assert_int_equal(fi_close(&mr->fid), 0);
	assert_int_equal(fi_close(&other->fid), 0);
	pair_close(&pair);
}

/* Closed in the middle, the region is not touched any more, though it may be gone from the address
 * space; the other end gets an error; and the connection goes on. */
TEST(closing_a_region_revokes_it)
{
	enum { BYTES = 8 << 20 };

	for (int write = 0; write < 2; write++) {
		uint8_t *own = calloc(1, BYTES);
		uint8_t *theirs = calloc(1, BYTES);
		struct fi_cq_data_entry entry;
		struct pair pair;
		struct fid_mr *mr;
		uint64_t key;

		pair_open(&pair);
		mr = registered(&pair.server, theirs, BYTES, FI_REMOTE_READ | FI_REMOTE_WRITE);
		key = fi_mr_key(mr);
		pattern_fill(write ? own : theirs, BYTES, 8);
		assert_int_equal(write ? fi_write(pair.client.ep, own, BYTES, NULL, 0,
						 (uintptr_t)theirs, key, own)
				       : fi_read(pair.client.ep, own, BYTES, NULL, 0,
						 (uintptr_t)theirs, key, own),
			0);
		/* Until some of it has come, which is much less than all of it. */
		for (int turns = 0; turns < 2; turns++) {
			drive(&pair.server);
			drive(&pair.client);
		}
		assert_int_not_equal(write ? theirs[4096] : own[4096], 0);
		assert_int_equal(write ? theirs[BYTES - 1] : own[BYTES - 1], 0);
		assert_int_equal(fi_close(&mr->fid), 0);
		memset(theirs, 0, BYTES);
		free(theirs);
		assert_int_equal(
			await_completion(&pair.client, &pair.server, &entry, NULL), FI_EACCES);
		assert_int_equal(fi_recv(pair.server.ep, own, 10, NULL, 0, own), 0);
		assert_int_equal(fi_inject(pair.client.ep, "ten bytes", 10, 0), 0);
		await_done(&pair.server, &pair.client, own);
		assert_string_equal((char *)own, "ten bytes");
		/* The key is void for good. */
		mr = registered(&pair.server, own, BYTES, FI_REMOTE_READ);
		assert_int_equal(
			fi_read(pair.client.ep, own, 1, NULL, 0, (uintptr_t)own, key, own), 0);
		assert_int_equal(await_completion(&pair.client, &pair.server, &entry, NULL),
			FI_EKEYREJECTED);
		assert_int_equal(fi_close(&mr->fid), 0);
		pair_close(&pair);
		free(own);
	}
}

/* --- ends --------------------------------------------------------------------------------------
 */

/* What was sent before the end arrives, then FI_SHUTDOWN; what is under way fails. */
TEST(ends_in_order)
{
	struct fi_cq_data_entry entry;
	struct fi_cq_err_entry error;
	struct fi_eq_cm_entry event;
	uint8_t in[3][16];
	uint8_t own[16];
	struct pair pair;

	pair_open(&pair);
	assert_int_equal(fi_read(pair.server.ep, own, 16, NULL, 0, 0, 0, own), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(fi_inject(pair.client.ep, "0123456789abcde", 16, 0), 0);
	}
	assert_int_equal(fi_shutdown(pair.client.ep, 0), 0);
	assert_int_equal(await_event(&pair.client, NULL, &event, sizeof(event), NULL), FI_SHUTDOWN);
	assert_int_equal(fi_send(pair.client.ep, own, 1, NULL, 0, NULL), -FI_ENOTCONN);
	/* The read can have no answer. The messages wait for receives, and the event for them. */
	assert_int_equal(await_completion(&pair.server, NULL, &entry, &error), FI_ECONNRESET);
	assert_ptr_equal(error.op_context, own);
	assert_int_equal(
		fi_eq_read(pair.server.eq, &(uint32_t){ 0 }, &event, sizeof(event), 0), -FI_EAGAIN);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(fi_recv(pair.server.ep, in[i], 16, NULL, 0, in[i]),
			i < 2 ? 0 : -FI_ENOTCONN);
		if (i < 2) {
			await_done(&pair.server, NULL, in[i]);
			assert_string_equal((char *)in[i], "0123456789abcde");
		}
	}
	assert_int_equal(await_event(&pair.server, NULL, &event, sizeof(event), NULL), FI_SHUTDOWN);
	assert_ptr_equal(event.fid, &pair.server.ep->fid);
	pair_close(&pair);
}

/* A process that is killed in the middle of a write of ours. */
TEST(a_dead_peer_is_noticed)
{
	enum { BYTES = 8 << 20 };
	uint64_t memory[2] = { 0 };
	struct fi_cq_err_entry error;
	struct fi_cq_data_entry done;
	struct fi_eq_cm_entry event;
	struct side server;
	uint8_t *own = malloc(BYTES);
	int pipes[2];
	uint16_t port;
	pid_t child;

	assert_int_equal(pipe(pipes), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct side client;
		struct fid_mr *mr;

		assert_int_equal(read(pipes[0], &port, sizeof(port)), sizeof(port));
		side_open(&client, FI_WAIT_NONE);
		side_make_ep(&client, NULL);
		mr = registered(&client, own, BYTES, FI_REMOTE_WRITE);
		memory[0] = (uintptr_t)own;
		memory[1] = fi_mr_key(mr);
		assert_int_equal(side_connect(&client, port, memory, sizeof(memory)), 0);
		await_event(&client, NULL, &event, sizeof(event), NULL);
		pause();
		_exit(0);
	}
	side_open(&server, FI_WAIT_NONE);
	port = side_listen(&server);
	assert_int_equal(write(pipes[1], &port, sizeof(port)), sizeof(port));
	{
		uint64_t space[(sizeof(event) + sizeof(memory)) / sizeof(uint64_t)];
		struct fi_eq_cm_entry *entry = (struct fi_eq_cm_entry *)space;

		assert_int_equal(
			await_event(&server, NULL, entry, sizeof(space), NULL), FI_CONNREQ);
		memcpy(memory, entry->data, sizeof(memory));
		side_make_ep(&server, entry->info);
		fi_freeinfo(entry->info);
	}
	assert_int_equal(fi_accept(server.ep, NULL, 0), 0);
	assert_int_equal(await_event(&server, NULL, &event, sizeof(event), NULL), FI_CONNECTED);
	assert_int_equal(fi_recv(server.ep, own, 1, NULL, 0, memory), 0);
	assert_int_equal(fi_write(server.ep, own, BYTES, NULL, 0, memory[0], memory[1], own), 0);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(await_event(&server, NULL, &event, sizeof(event), NULL), FI_SHUTDOWN);
	assert_int_equal(await_completion(&server, NULL, &done, &error), FI_ECONNRESET);
	assert_ptr_equal(error.op_context, own);
	assert_int_equal(await_completion(&server, NULL, &done, &error), FI_ECANCELED);
	assert_ptr_equal(error.op_context, memory);
	side_close(&server);
	close(pipes[0]);
	close(pipes[1]);
	free(own);
}

/* A child of fork() can close what it has inherited, without an effect on the connection. */
TEST(a_child_does_not_disturb)
{
	uint8_t in[4];
	struct pair pair;
	int status;
	pid_t child;

	pair_open(&pair);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		assert_int_equal(fi_cq_read(pair.client.cq, in, 0), -FI_EAGAIN);
		assert_int_equal(fi_inject(pair.client.ep, "xyz", 4, 0), -FI_ENOTCONN);
		pair_close(&pair);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(fi_recv(pair.server.ep, in, 4, NULL, 0, in), 0);
	assert_int_equal(fi_inject(pair.client.ep, "abc", 4, 0), 0);
	await_done(&pair.server, &pair.client, in);
	assert_string_equal((char *)in, "abc");
	pair_close(&pair);
}

/* --- sleeping ----------------------------------------------------------------------------------
 */

static void *sleep_on_completions(void *argument)
{
	struct side *side = argument;
	struct fi_cq_data_entry entry;
	ssize_t count = fi_cq_sread(side->cq, &entry, 1, NULL, 60000);

	return count == 1 ? entry.op_context : NULL;
}

/* A message wakes a thread that sleeps on the completion queue, though another thread of its
 * process takes the message while it looks at the event queue. */
TEST(a_message_wakes_sleepers)
{
	uint8_t in[8];
	struct pair pair;

	pair_open(&pair);
	for (int i = 0; i < 100; i++) {
		struct fi_eq_cm_entry event;
		pthread_t thread;
		uint32_t type;
		void *result;

		assert_int_equal(fi_recv(pair.server.ep, in, 8, NULL, 0, in), 0);
		assert_int_equal(
			pthread_create(&thread, NULL, sleep_on_completions, &pair.server), 0);
		assert_int_equal(fi_inject(pair.client.ep, "12345678", 8, 0), 0);
		if (i % 2 != 0) {
			fi_eq_read(pair.server.eq, &type, &event, sizeof(event), 0);
		}
		assert_int_equal(pthread_join(thread, &result), 0);
		assert_ptr_equal(result, in);
	}
	pair_close(&pair);
}

/* Two threads sleep on one queue while a third polls it: two messages wake the two, or the third
 * has taken one and a further message wakes the last. */
TEST(sleepers_share_a_queue)
{
	uint8_t in[8];
	struct pair pair;

	pair_open(&pair);
	for (int i = 0; i < 100; i++) {
		struct fi_cq_data_entry entry;
		pthread_t threads[2];
		int messages = 2;
		void *result;

		for (int j = 0; j < 2; j++) {
			assert_int_equal(pthread_create(&threads[j], NULL, sleep_on_completions,
						 &pair.server),
				0);
		}
		for (int j = 0; j < messages; j++) {
			assert_int_equal(fi_recv(pair.server.ep, in, 8, NULL, 0, in), 0);
			assert_int_equal(fi_inject(pair.client.ep, "12345678", 8, 0), 0);
			messages += j < 10 && fi_cq_read(pair.server.cq, &entry, 1) == 1;
		}
		for (int j = 0; j < 2; j++) {
			assert_int_equal(pthread_join(threads[j], &result), 0);
			assert_ptr_equal(result, in);
		}
	}
	pair_close(&pair);
}

/* fi_cq_signal() ends one sleep. */
TEST(signals_end_a_sleep)
{
	struct pair pair;
	pthread_t thread;
	void *result = &pair;

	pair_open(&pair);
	assert_int_equal(pthread_create(&thread, NULL, sleep_on_completions, &pair.server), 0);
	while (pthread_tryjoin_np(thread, &result) == EBUSY) {
		assert_int_equal(fi_cq_signal(pair.server.cq), 0);
	}
	assert_null(result);
	pair_close(&pair);
}

TEST(descriptors_tell)
{
	struct pollfd file = { .events = POLLIN };
	struct fi_cq_data_entry entry;
	uint8_t in[8];
	struct pair pair;
	struct fid *fids[2];

	pair_open(&pair);
	fids[0] = &pair.server.cq->fid;
	fids[1] = &pair.server.eq->fid;
	assert_int_equal(fi_control(&pair.server.cq->fid, FI_GETWAIT, &file.fd), 0);
	assert_int_equal(fi_recv(pair.server.ep, in, 8, NULL, 0, in), 0);
	assert_int_equal(fi_trywait(pair.server.fabric, fids, 2), 0);
	assert_int_equal(poll(&file, 1, 0), 0);
	/* That another thread reads in between changes nothing for one that polls. */
	assert_int_equal(fi_cq_read(pair.server.cq, &entry, 1), -FI_EAGAIN);
	assert_int_equal(fi_inject(pair.client.ep, "12345678", 8, 0), 0);
	assert_int_equal(poll(&file, 1, 60000), 1);
	assert_int_equal(fi_cq_read(pair.server.cq, &entry, 1), 1);
	/* A message that waits already forbids to sleep. */
	assert_int_equal(fi_recv(pair.server.ep, in, 8, NULL, 0, in), 0);
	assert_int_equal(fi_inject(pair.client.ep, "12345678", 8, 0), 0);
	assert_int_equal(fi_trywait(pair.server.fabric, fids, 2), -FI_EAGAIN);
	assert_int_equal(fi_cq_read(pair.server.cq, &entry, 1), 1);
	assert_int_equal(fi_cq_sread(pair.server.cq, &entry, 1, NULL, 0), -FI_EAGAIN);
	assert_int_equal(fi_cq_sread(pair.server.cq, &entry, 1, NULL, 5), -FI_EAGAIN);
	pair_close(&pair);
}

/* Written by the program itself, as ofi_rxm ends its thread. */
TEST(event_queues_take_events)
{
	struct fi_eq_entry entry = { .data = 4711 };
	struct fi_eq_entry got;
	struct side side;
	uint32_t type;

	side_open(&side, FI_WAIT_NONE);
	assert_int_equal(fi_eq_write(side.eq, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
	assert_int_equal(fi_eq_sread(side.eq, &type, &got, sizeof(got), -1, FI_PEEK), sizeof(got));
	assert_int_equal(fi_eq_sread(side.eq, &type, &got, sizeof(got), -1, 0), sizeof(got));
	assert_int_equal(type, FI_NOTIFY);
	assert_int_equal(got.data, 4711);
	assert_int_equal(fi_eq_read(side.eq, &type, &got, sizeof(got), 0), -FI_EAGAIN);
	assert_int_equal(fi_cq_sread(side.cq, &got, 1, NULL, 0), -FI_EINVAL);
	side_close(&side);
}
