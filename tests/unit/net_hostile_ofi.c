// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clan/ofi.h"

#include "base/clock.h"
#include "net_hostile.h"
#include "unit.h"

const char *const hostile_scheme = "ofi";
const char *const hostile_network = "ofi:127.0.0.1:0?provider=tcp";
const uint64_t hostile_magic = OFI_MAGIC;
const bool hostile_has_put = true;

struct carrier {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_ep *ep;
	uint8_t received[NET_RECEIVES * 4][NET_FRAME_BYTES];
};

struct hostile *hostile_create(void)
{
	struct hostile *hostile = calloc(1, sizeof(*hostile));

	assert_non_null(hostile);
	hostile->carrier = calloc(1, sizeof(struct carrier));
	assert_non_null(hostile->carrier);
	return hostile;
}

void hostile_destroy(struct hostile *hostile)
{
	free(hostile->carrier);
	free(hostile);
}

void hostile_look(struct hostile *hostile)
{
	struct carrier *carrier = hostile->carrier;
	struct fi_cq_msg_entry entry;
	struct fi_cq_err_entry error = { 0 };
	uint64_t space[64];
	uint32_t type;
	ssize_t got;

	while ((got = fi_cq_read(carrier->cq, &entry, 1)) == 1 || got == -FI_EAVAIL) {
		if (got == -FI_EAVAIL) {
			fi_cq_readerr(carrier->cq, &error, 0);
			hostile->ended = true;
		}
	}
	while (fi_eq_read(carrier->eq, &type, space, sizeof(space), 0) > 0) {
		hostile->ended |= type == FI_SHUTDOWN;
	}
}

void hostile_open(struct hostile *hostile, struct world *world)
{
	struct carrier *carrier = hostile->carrier;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_MSG };
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_info *hints = fi_allocinfo();
	uint64_t space[64];
	uint32_t type;
	char port[16];

	assert_int_equal(sscanf(world->address, "ofi:127.0.0.1:%15[0-9]", port), 1);
	hints->fabric_attr->prov_name = strdup("tcp");
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG | FI_RMA;
	assert_int_equal(
		fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", port, 0, hints, &carrier->info), 0);
	fi_freeinfo(hints);
	assert_int_equal(fi_fabric(carrier->info->fabric_attr, &carrier->fabric, NULL), 0);
	assert_int_equal(fi_domain(carrier->fabric, carrier->info, &carrier->domain, NULL), 0);
	assert_int_equal(fi_eq_open(carrier->fabric, &eq_attr, &carrier->eq, NULL), 0);
	assert_int_equal(fi_cq_open(carrier->domain, &cq_attr, &carrier->cq, NULL), 0);
	assert_int_equal(fi_endpoint(carrier->domain, carrier->info, &carrier->ep, NULL), 0);
	assert_int_equal(fi_ep_bind(carrier->ep, &carrier->eq->fid, 0), 0);
	assert_int_equal(fi_ep_bind(carrier->ep, &carrier->cq->fid, FI_TRANSMIT | FI_RECV), 0);
	assert_int_equal(fi_enable(carrier->ep), 0);
	for (size_t i = 0; i < ARRAY_COUNT(carrier->received); i++) {
		assert_int_equal(
			fi_recv(carrier->ep, carrier->received[i], NET_FRAME_BYTES, NULL, 0, NULL),
			0);
	}
	assert_int_equal(fi_connect(carrier->ep, carrier->info->dest_addr, NULL, 0), 0);
	for (uint64_t until_ns = clock_now_ns() + WORLD_TIMEOUT_NS;;) {
		ssize_t got = fi_eq_read(carrier->eq, &type, space, sizeof(space), 0);

		assert_true(got > 0 || got == -FI_EAGAIN);
		assert_true(clock_now_ns() < until_ns);
		if (got > 0) {
			assert_int_equal(type, FI_CONNECTED);
			break;
		}
		world_turn(world, WORLD_SERVER);
	}
}

void hostile_close(struct hostile *hostile)
{
	struct carrier *carrier = hostile->carrier;

	fi_close(&carrier->ep->fid);
	fi_close(&carrier->cq->fid);
	fi_close(&carrier->eq->fid);
	fi_close(&carrier->domain->fid);
	fi_close(&carrier->fabric->fid);
	fi_freeinfo(carrier->info);
}

void hostile_send(struct hostile *hostile)
{
	struct carrier *carrier = hostile->carrier;

	assert_int_equal(fi_send(carrier->ep, hostile->frame, hostile->bytes, NULL, 0, hostile), 0);
}

static struct fid_ep *ep_of(struct hostile *hostile)
{
	return ((struct carrier *)hostile->carrier)->ep;
}

/* --- what a peer can do with libfabric alone -------------------------------------------------- */

/* Keys are numbers, and a write names one: those that were not told are not found. */
TEST(guessed_keys_reach_nothing)
{
	uint8_t bytes[64];
	struct clan_event event;
	struct clan_region *region;
	struct world world;
	uint8_t *base;

	memset(bytes, 'x', sizeof(bytes));
	world_open(&world, hostile_world, NULL);
	region = world_region(&world, WORLD_SERVER, 4096, CLAN_READ | CLAN_WRITE, &base, &event);
	for (uint64_t key = 0; key < 8; key++) {
		struct hostile *hostile = hostile_create();
		struct clan_conn *conn;

		conn = hostile_accepted(hostile, &world);
		fi_write(ep_of(hostile), bytes, sizeof(bytes), NULL, 0, 0, key, NULL);
		for (int i = 0; i < 20; i++) {
			hostile_look(hostile);
			world_turn(&world, WORLD_SERVER);
		}
		for (size_t i = 0; i < 4096; i++) {
			assert_int_equal(base[i], 0);
		}
		world.kept_count[WORLD_SERVER] = 0;
		clan_close(conn);
		hostile_close(hostile);
		hostile_destroy(hostile);
		world_event(&world, WORLD_SERVER, CLAN_EVENT_CLOSED);
		honest_works(&world);
	}
	world_close_conn(&world, WORLD_SERVER, world.conns[WORLD_SERVER]);
	world.conns[WORLD_SERVER] = NULL;
	assert_int_equal(clan_region_destroy(region), 0);
	world_close(&world);
}

/* Receives are taken again before anything is given back, so a peer that counts no credits could
 * keep the queue at its frames for ever. */
TEST(floods_of_frames_end)
{
	struct hostile *hostile = hostile_create();
	struct clan_conn *conn;
	struct world world;

	world_open(&world, hostile_world, NULL);
	conn = hostile_accepted(hostile, &world);
	frame_begin(hostile);
	hostile->head.bytes = sizeof(hostile->head);
	memcpy(hostile->frame, &hostile->head, sizeof(hostile->head));
	for (int i = 0; i < 3 * NET_RECEIVES; i++) {
		assert_int_equal(fi_send(ep_of(hostile), hostile->frame, sizeof(hostile->head),
					 NULL, 0, NULL),
			0);
	}
	assert_int_equal(world_event(&world, WORLD_SERVER, CLAN_EVENT_LOST).status, -EPROTO);
	world_close_conn(&world, WORLD_SERVER, conn);
	hostile_close(hostile);
	hostile_destroy(hostile);
	honest_works(&world);
	world_close(&world);
}
