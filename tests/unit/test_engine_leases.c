// SPDX-License-Identifier: Apache-2.0
/*
 * Leases on a simulated machine: of clients without a number, while another process takes them
 * over (what a reactor does before the others have adopted their sessions, and what the old process
 * tells when a client leaves meanwhile); and of a client that takes the lease when there is no
 * memory.
 */
#include "engine_world.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/lease.h"
#include "unit.h"

enum { WRITE_BYTES = 512, SIMPLE_BYTES = sizeof(struct nbd_wire_simple_reply) };

static bool calloc_fails;

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
	return calloc_fails ? NULL : __real_calloc(count, bytes);
}

/* Returns the error of a write. */
static uint32_t write_error(struct client *client)
{
	const struct nbd_wire_request request = talk_request(NBD_CMD_WRITE, 0, WRITE_BYTES);
	static const uint8_t data[WRITE_BYTES];
	struct nbd_wire_simple_reply reply;

	sim_socket_write(client->fd, &request, sizeof(request));
	sim_socket_write(client->fd, data, sizeof(data));
	while (sim_socket_read(client->fd, &reply, sizeof(reply)) != SIMPLE_BYTES) {
		assert_true(sim_step());
	}
	return be32_get(reply.error);
}

static int count_holder(void *context, const struct lease_view *view)
{
	*(uint32_t *)context += 1;
	return 0;
}

static uint32_t holders(struct lease_book *book)
{
	uint32_t count = 0;

	assert_int_equal(lease_book_each(book, sim_now_ns(), count_holder, &count), 0);
	return count;
}

/* A holder whose session is not adopted excludes a writer, but only for a time. */
static void check_adoption(const struct lease_view *holder)
{
	struct lease_book *book = lease_book_create();
	struct world world;
	struct client other;

	world_begin_leases(&world, book);
	assert_int_equal(lease_book_restore(book, holder, sim_now_ns()), 0);
	assert_true(client_try_from(&world, &other, 2, ""));
	assert_int_equal(write_error(&other), NBD_EPERM);
	assert_int_equal(holders(book), 1);
	/* its client might have disconnected while no process served it */
	let_time_pass(LEASE_ADOPT_MS * UINT64_C(1000000));
	assert_int_equal(write_error(&other), 0);
	sim_socket_close(other.fd);
	world_end(&world);
	lease_book_destroy(book);
}

TEST(test_sessions_that_are_not_adopted_yet)
{
	const uint64_t connection = 7;
	struct lease_view holder = {
		.export = "",
		.owner = { .address = { [ACCESS_ADDRESS_BYTES - 1] = 1 } },
		.mode = LEASE_EXCLUSIVE,
		.name = "holder",
		.node = "",
		.offered_to = "",
		.connections = &connection,
		.connection_count = 1,
	};

	check_adoption(&holder);
	holder.owner = (struct lease_owner){ .is_named = true };
	holder.mode = LEASE_SHARED;
	holder.is_reader = true;
	holder.ms = LEASE_MS_MAX;
	check_adoption(&holder);
}

TEST(test_a_holder_that_leaves_during_an_upgrade)
{
	struct lease_book *book = lease_book_create();
	struct world world;
	struct client client;

	world_begin_leases(&world, book);
	assert_true(client_try_from(&world, &client, 1, ""));
	assert_int_equal(write_error(&client), 0);
	lease_book_hold(book);
	sim_socket_close(client.fd);
	while (world.gone == 0) {
		assert_true(sim_step());
	}
	assert_int_equal(holders(book), 1); /* the others keep their numbers */
	lease_book_go_on(book);
	assert_int_equal(holders(book), 0);
	world_end(&world);
	lease_book_destroy(book);
}

/* Returns the session that has no lease. */
static struct session *session_without_lease(const struct world *world)
{
	list_for_each(entry, &world->engine->sessions)
	{
		struct session *session = list_entry(entry, struct session, node);

		if (session->lease_holder == NULL) {
			return session;
		}
	}
	return NULL;
}

TEST(test_no_memory_for_a_client_that_preempts)
{
	struct lease_book *book = lease_book_create();
	struct session *session;
	struct client holder;
	struct client other;
	struct world world;

	world_begin_leases(&world, book);
	assert_true(client_try_from(&world, &holder, 1, ""));
	assert_int_equal(write_error(&holder), 0);
	assert_true(client_try_from(&world, &other, 2, ""));
	session = session_without_lease(&world);
	assert_non_null(session);
	session->lease_want = (struct lease_want){
		.mode = LEASE_EXCLUSIVE, .preempt = true, .ms = LEASE_MS_MAX, .id = { 1 }
	};
	calloc_fails = true;
	assert_int_equal(session_lease_take(session, world.export, ENGINE_RIGHT_WRITE), -EACCES);
	calloc_fails = false;
	assert_int_equal(holders(book), 1);
	assert_int_equal(write_error(&holder), 0); /* it still has the lease */
	assert_int_equal(session_lease_take(session, world.export, ENGINE_RIGHT_WRITE), -EAGAIN);
	while (world.gone == 0) {
		assert_true(sim_step());
	}
	assert_int_equal(session_lease_take(session, world.export, ENGINE_RIGHT_WRITE), 0);
	sim_socket_close(holder.fd);
	sim_socket_close(other.fd);
	world_end(&world);
	lease_book_destroy(book);
}
