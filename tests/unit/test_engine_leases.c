// SPDX-License-Identifier: Apache-2.0
/*
 * Leases of clients without a number, while another process takes them over, on a simulated
 * machine: what a reactor does before the others have adopted their sessions, and what the old
 * process tells when a client leaves meanwhile.
 */
#include "engine_world.h"

#include "engine/lease.h"

enum { WRITE_BYTES = 512, SIMPLE_BYTES = sizeof(struct nbd_wire_simple_reply) };

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
	GMB_UNUSED(view);
	*(uint32_t *)context += 1;
	return 0;
}

static uint32_t holders(struct lease_book *book)
{
	uint32_t count = 0;

	assert_int_equal(lease_book_each(book, sim_now_ns(), count_holder, &count), 0);
	return count;
}

static void test_a_writer_whose_session_is_not_adopted_yet(void **state)
{
	const uint64_t connection = 7;
	const struct lease_view writer = {
		.export = "",
		.owner = { .address = { [ACCESS_ADDRESS_BYTES - 1] = 1 } },
		.mode = LEASE_EXCLUSIVE,
		.name = "writer",
		.node = "",
		.offered_to = "",
		.connections = &connection,
		.connection_count = 1,
	};
	struct lease_book *book = lease_book_create();
	struct world world;
	struct client other;

	GMB_UNUSED(state);
	world_begin_leases(&world, book);
	assert_int_equal(lease_book_restore(book, &writer, sim_now_ns()), 0);
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

static void test_a_holder_that_leaves_during_an_upgrade(void **state)
{
	struct lease_book *book = lease_book_create();
	struct world world;
	struct client client;

	GMB_UNUSED(state);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_writer_whose_session_is_not_adopted_yet),
		cmocka_unit_test(test_a_holder_that_leaves_during_an_upgrade),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
