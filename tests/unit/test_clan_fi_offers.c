// SPDX-License-Identifier: Apache-2.0
/*
 * What the provider clan of libfabric says that it offers, and what it refuses.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "fi_world.h"
#include "unit.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_tagged.h>

TEST(offers_what_it_can)
{
	struct fi_info *hints = fi_world_hints();
	struct fi_info *info;

	assert_int_equal(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), 0);
	assert_int_equal(info->ep_attr->type, FI_EP_MSG);
	assert_int_equal(info->domain_attr->mr_mode, hints->domain_attr->mr_mode);
	assert_int_equal(info->caps & hints->caps, hints->caps);
	assert_int_not_equal(info->caps & FI_LOCAL_COMM, 0);
	assert_true(info->tx_attr->size > 0 && info->rx_attr->size > 0);
	assert_non_null(info->src_addr);
	fi_freeinfo(info);
	hints->tx_attr->size = 7;
	hints->rx_attr->size = 9;
	assert_int_equal(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "4711", 0, hints, &info), 0);
	assert_int_equal(info->tx_attr->size, 7);
	assert_int_equal(info->rx_attr->size, 9);
	assert_int_equal(((struct sockaddr_in *)info->dest_addr)->sin_port, htons(4711));
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

static void no_tags(struct fi_info *hints)
{
	hints->caps |= FI_TAGGED;
}

static void no_datagrams(struct fi_info *hints)
{
	hints->ep_attr->type = FI_EP_DGRAM;
}

static void no_shared_receives(struct fi_info *hints)
{
	hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
}

static void no_own_progress(struct fi_info *hints)
{
	hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
}

static void no_chosen_keys(struct fi_info *hints)
{
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR;
}

static void no_write_after_read(struct fi_info *hints)
{
	hints->tx_attr->msg_order = FI_ORDER_WAR;
}

static void no_large_inject(struct fi_info *hints)
{
	hints->tx_attr->inject_size = 1 << 20;
}

static void no_delivery(struct fi_info *hints)
{
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
}

/* The answer to a read or write comes when it comes, whatever was sent meanwhile. */
static void no_order_of_completions(struct fi_info *hints)
{
	hints->tx_attr->comp_order = FI_ORDER_STRICT;
}

TEST(refuses_what_it_cannot)
{
	static void (*const demands[])(struct fi_info * hints) = { no_tags, no_datagrams,
		no_shared_receives, no_own_progress, no_chosen_keys, no_write_after_read,
		no_large_inject, no_delivery, no_order_of_completions };
	struct fi_info *hints;
	struct fi_info *info;

	for (size_t i = 0; i < ARRAY_COUNT(demands); i++) {
		hints = fi_world_hints();
		demands[i](hints);
		assert_int_equal(
			fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), -FI_ENODATA);
		fi_freeinfo(hints);
	}
}

/* 192.0.2.0/24 is for documentation: no machine has an address of it. */
TEST(refuses_other_machines)
{
	struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons(4711) };
	struct fi_info *hints = fi_world_hints();
	struct fi_info *info;
	struct side side;

	assert_int_equal(
		fi_getinfo(FI_VERSION(1, 17), "192.0.2.1", "4711", 0, hints, &info), -FI_ENODATA);
	assert_int_equal(
		fi_getinfo(FI_VERSION(1, 17), "192.0.2.1", "4711", FI_SOURCE, hints, &info),
		-FI_ENODATA);
	fi_freeinfo(hints);
	side_open(&side, FI_WAIT_NONE);
	side_make_ep(&side, NULL);
	there.sin_addr.s_addr = inet_addr("192.0.2.1");
	assert_int_equal(fi_connect(side.ep, &there, NULL, 0), -FI_EHOSTUNREACH);
	side_close(&side);
}

/* Numbers of the modes in which memory is registered: those of a program are all that it knows. */
TEST(memory_modes)
{
	struct fi_info *hints = fi_world_hints();
	struct fi_info *info;

	/* None: its memory is no target. */
	hints->domain_attr->mr_mode = FI_MR_UNSPEC;
	assert_int_equal(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), -FI_ENODATA);
	hints->caps = FI_MSG | FI_RMA | FI_READ | FI_WRITE;
	assert_int_equal(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), 0);
	assert_int_equal(info->domain_attr->mr_mode, 0);
	assert_int_equal(info->caps & (FI_REMOTE_READ | FI_REMOTE_WRITE), 0);
	fi_freeinfo(info);
	hints->caps = 0; /* whatever there is */
	assert_int_equal(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), 0);
	assert_int_equal(info->domain_attr->mr_mode, 0);
	assert_int_equal(info->caps & (FI_REMOTE_READ | FI_REMOTE_WRITE), 0);
	assert_int_not_equal(info->caps & FI_READ, 0);
	fi_freeinfo(info);
	/* Before 1.5 a program did not say. */
	assert_int_equal(fi_getinfo(FI_VERSION(1, 4), NULL, NULL, 0, hints, &info), 0);
	assert_int_equal(info->domain_attr->mr_mode, FI_MR_BASIC);
	assert_int_not_equal(info->caps & FI_REMOTE_READ, 0);
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

TEST(delivered_reads)
{
	static const uint8_t there[64] = { 1, 2, 3 };
	uint8_t here[sizeof(there)] = { 0 };
	struct iovec iov = { here, sizeof(here) };
	struct fi_rma_iov from = { .addr = (uintptr_t)there, .len = sizeof(there) };
	struct fi_msg_rma message = { .msg_iov = &iov,
		.iov_count = 1,
		.rma_iov = &from,
		.rma_iov_count = 1,
		.context = here };
	struct fid_mr *mr;
	struct pair pair;

	pair_open(&pair);
	assert_int_equal(fi_mr_reg(pair.server.domain, there, sizeof(there), FI_REMOTE_READ, 0, 0,
				 0, &mr, NULL),
		0);
	from.key = fi_mr_key(mr);
	assert_int_equal(
		fi_readmsg(pair.client.ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE), 0);
	await_done(&pair.client, &pair.server, here);
	assert_memory_equal(here, there, sizeof(there));
	assert_int_equal(fi_close(&mr->fid), 0);
	pair_close(&pair);
}

/* A passive endpoint that gets its address later, and an endpoint that takes its place. */
TEST(an_endpoint_in_place_of_a_passive_one)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(4711) };
	struct sockaddr_in found;
	size_t bytes = sizeof(found);
	struct fid_pep *reserved;
	struct fi_eq_cm_entry entry;
	struct fi_info *hints = fi_world_hints();
	struct fi_info *bare;
	struct fi_info *info;
	struct pair pair;

	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	side_open(&pair.server, FI_WAIT_NONE);
	side_open(&pair.client, FI_WAIT_NONE);
	bare = fi_dupinfo(pair.client.info);
	free(bare->src_addr);
	bare->src_addr = NULL;
	bare->src_addrlen = 0;
	assert_int_equal(fi_passive_ep(pair.client.fabric, bare, &reserved, NULL), 0);
	fi_freeinfo(bare);
	assert_int_equal(fi_setname(&reserved->fid, &name, sizeof(name)), 0);
	hints->handle = &reserved->fid;
	assert_int_equal(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), 0);
	assert_ptr_equal(info->handle, &reserved->fid);
	side_make_ep(&pair.client, info);
	assert_int_equal(fi_getname(&pair.client.ep->fid, &found, &bytes), 0);
	assert_int_equal(found.sin_port, name.sin_port);
	assert_int_equal(found.sin_addr.s_addr, name.sin_addr.s_addr);
	assert_int_equal(fi_close(&reserved->fid), 0);
	fi_freeinfo(info);
	fi_freeinfo(hints);
	/* The other side sees that name. */
	assert_int_equal(side_connect(&pair.client, side_listen(&pair.server), NULL, 0), 0);
	assert_int_equal(
		await_event(&pair.server, &pair.client, &entry, sizeof(entry), NULL), FI_CONNREQ);
	assert_int_equal(((struct sockaddr_in *)entry.info->dest_addr)->sin_port, name.sin_port);
	assert_int_equal(fi_reject(pair.server.pep, entry.info->handle, NULL, 0), 0);
	fi_freeinfo(entry.info);
	/* One that listens keeps its place. */
	pair.server.info->handle = &pair.server.pep->fid;
	assert_int_equal(fi_endpoint(pair.server.domain, pair.server.info, &pair.server.ep, NULL),
		-FI_EINVAL);
	pair.server.info->handle = NULL;
	pair.server.ep = NULL;
	pair_close(&pair);
}

/* Checks that a table of libfabric has all entries up to the last one given. */
static void check_table(const void *table, size_t last)
{
	for (size_t at = sizeof(size_t); at <= last; at += sizeof(void (*)(void))) {
		void (*call)(void);

		memcpy(&call, (const uint8_t *)table + at, sizeof(call));
		assert_true(call != NULL);
	}
}

/* No object has sets of calls that libfabric does not know. */
static void check_named_sets(const struct side *side)
{
	static const uint8_t target[8];
	struct fid_mr *mr;
	void *ops;

	assert_int_equal(
		fi_mr_reg(side->domain, target, sizeof(target), FI_REMOTE_READ, 0, 0, 0, &mr, NULL),
		0);
	assert_int_equal(fi_open_ops(&side->fabric->fid, "any", 0, &ops, NULL), -FI_ENOSYS);
	assert_int_equal(fi_open_ops(&side->domain->fid, "any", 0, &ops, NULL), -FI_ENOSYS);
	assert_int_equal(fi_open_ops(&side->eq->fid, "any", 0, &ops, NULL), -FI_ENOSYS);
	assert_int_equal(fi_open_ops(&side->cq->fid, "any", 0, &ops, NULL), -FI_ENOSYS);
	assert_int_equal(fi_open_ops(&side->pep->fid, "any", 0, &ops, NULL), -FI_ENOSYS);
	assert_int_equal(fi_open_ops(&side->ep->fid, "any", 0, &ops, NULL), -FI_ENOSYS);
	assert_int_equal(fi_open_ops(&mr->fid, "any", 0, &ops, NULL), -FI_ENOSYS);
	assert_int_equal(fi_close(&mr->fid), 0);
}

TEST(calls_that_it_does_not_offer)
{
	struct fi_msg_tagged message = { 0 };
	uint64_t word = 0;
	struct pair pair;
	struct fid_ep *ep;

	pair_open(&pair);
	ep = pair.client.ep;
	assert_int_equal(
		fi_atomic(ep, &word, 1, NULL, 0, 0, 0, FI_UINT64, FI_SUM, NULL), -FI_ENOSYS);
	assert_int_equal(fi_tsend(ep, &word, sizeof(word), NULL, 0, 0, NULL), -FI_ENOSYS);
	assert_int_equal(fi_trecvmsg(ep, &message, 0), -FI_ENOSYS);
	assert_int_equal(fi_barrier(ep, 0, NULL), -FI_ENOSYS);
	check_table(ep->tagged, offsetof(struct fi_ops_tagged, injectdata));
	check_table(ep->atomic, offsetof(struct fi_ops_atomic, compwritevalid));
	check_table(ep->collective, offsetof(struct fi_ops_collective, msg));
	check_named_sets(&pair.server);
	pair_close(&pair);
}
