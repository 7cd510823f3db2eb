// SPDX-License-Identifier: Apache-2.0
#include "base/lease_watch.h"
#include "unit.h"

#define NS_PER_S UINT64_C(1000000000)

enum { LEASE_S = 60, BOOT_S = 1700000000 };

/* A client whose two clocks advance together until it is paused. */
struct client {
	struct lease_watch watch;
	struct lease_moment now;
};

static void begin(struct client *client, bool has_rtc, uint64_t patience_s)
{
	*client = (struct client){ .now = { NS_PER_S, has_rtc ? BOOT_S : 0 } };
	lease_watch_init(&client->watch,
		&(struct lease_watch_times){ LEASE_S * 1000, patience_s * 1000, 10000 });
	lease_watch_accept(&client->watch, &client->now);
}

static void wait_for(struct client *client, uint64_t seconds)
{
	client->now.now_ns += seconds * NS_PER_S;
	client->now.rtc_s += client->now.rtc_s != 0 ? seconds : 0;
}

static void pause_for(struct client *client, uint64_t seconds)
{
	client->now.rtc_s += client->now.rtc_s != 0 ? seconds : 0;
}

/* Looks at intervals for some time. Returns whether it was not stopped. */
static bool look_for(struct client *client, uint64_t seconds)
{
	for (uint64_t i = 0; i < seconds; i++) {
		wait_for(client, 1);
		if (client->now.now_ns - client->watch.looks[1].now_ns >=
				client->watch.interval_ns &&
			!lease_watch_look(&client->watch, &client->now)) {
			return false;
		}
	}
	return true;
}

static bool is_over(const struct client *client)
{
	return lease_watch_is_over(&client->watch, true, &client->now);
}

TEST(the_time_begins_before_the_loss)
{
	struct client client;

	begin(&client, true, 30);
	assert_true(look_for(&client, 1000));
	lease_watch_doubt(&client.watch);
	wait_for(&client, LEASE_S - 5);
	assert_false(is_over(&client));
	wait_for(&client, 5);
	assert_true(is_over(&client));
}

TEST(the_time_begins_again_with_proofs)
{
	struct client client;

	begin(&client, true, 30);
	lease_watch_doubt(&client.watch);
	wait_for(&client, LEASE_S - 5);
	lease_watch_accept(&client.watch, &client.now);
	wait_for(&client, LEASE_S - 5);
	assert_false(is_over(&client));
	wait_for(&client, 5);
	assert_true(is_over(&client));

	begin(&client, true, 30);
	lease_watch_doubt(&client.watch);
	assert_true(look_for(&client, LEASE_S));
	assert_true(is_over(&client));
	lease_watch_doubt(&client.watch); /* an answer */
	assert_false(is_over(&client));
}

TEST(a_pause_counts_although_the_clock_stands_still)
{
	struct client client;

	begin(&client, true, 30);
	assert_true(look_for(&client, 100));
	pause_for(&client, LEASE_S);
	lease_watch_doubt(&client.watch);
	assert_true(is_over(&client));

	begin(&client, true, 30);
	assert_true(look_for(&client, 100));
	lease_watch_doubt(&client.watch);
	pause_for(&client, LEASE_S / 2);
	assert_false(is_over(&client));
	pause_for(&client, LEASE_S / 2);
	assert_true(is_over(&client));
}

TEST(a_look_finds_a_stop)
{
	struct client client;

	begin(&client, true, 30);
	assert_true(look_for(&client, 100));
	pause_for(&client, LEASE_S);
	assert_false(look_for(&client, 3));
	lease_watch_doubt(&client.watch);
	assert_true(is_over(&client));

	begin(&client, false, 30);
	assert_true(look_for(&client, 100));
	wait_for(&client, LEASE_S);
	assert_false(look_for(&client, 1));
	lease_watch_doubt(&client.watch);
	assert_true(is_over(&client));
	lease_watch_accept(&client.watch, &client.now);
	assert_true(look_for(&client, 100));
}

TEST(the_real_time_clock_is_set_back)
{
	struct client client;

	begin(&client, true, 30);
	assert_true(look_for(&client, 100));
	client.now.rtc_s = 100;
	assert_true(look_for(&client, 100));
	lease_watch_doubt(&client.watch);
	assert_false(is_over(&client));
}

TEST(a_patient_client_notices_a_loss_later_than_its_server)
{
	struct client client;

	begin(&client, true, 60);
	lease_watch_doubt(&client.watch);
	wait_for(&client, LEASE_S - 31);
	assert_false(is_over(&client));
	wait_for(&client, 1);
	assert_true(is_over(&client));

	begin(&client, true, 30 + LEASE_S);
	assert_true(is_over(&client));
}
