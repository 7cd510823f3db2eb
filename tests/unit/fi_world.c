// SPDX-License-Identifier: Apache-2.0
#include "fi_world.h"

#include <netinet/in.h>
#include <string.h>

#include "base/clock.h"

#define PATIENCE_NS (UINT64_C(60) * 1000000000)

struct fi_info *fi_world_hints(void)
{
	struct fi_info *hints = fi_allocinfo();

	assert_non_null(hints);
	hints->fabric_attr->prov_name = strdup("clan");
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	return hints;
}

void side_open(struct side *side, enum fi_wait_obj wait)
{
	struct fi_info *hints = fi_world_hints();
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_FD, .flags = FI_WRITE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_DATA, .wait_obj = wait };

	memset(side, 0, sizeof(*side));
	assert_int_equal(
		fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &side->info), 0);
	fi_freeinfo(hints);
	assert_string_equal(side->info->fabric_attr->prov_name, "clan");
	assert_int_equal(fi_fabric(side->info->fabric_attr, &side->fabric, NULL), 0);
	assert_int_equal(fi_domain(side->fabric, side->info, &side->domain, NULL), 0);
	assert_int_equal(fi_eq_open(side->fabric, &eq_attr, &side->eq, NULL), 0);
	assert_int_equal(fi_cq_open(side->domain, &cq_attr, &side->cq, NULL), 0);
}

uint16_t side_listen(struct side *side)
{
	struct sockaddr_in name;
	size_t bytes = sizeof(name);

	assert_int_equal(fi_passive_ep(side->fabric, side->info, &side->pep, side), 0);
	assert_int_equal(fi_pep_bind(side->pep, &side->eq->fid, 0), 0);
	assert_int_equal(fi_listen(side->pep), 0);
	assert_int_equal(fi_getname(&side->pep->fid, &name, &bytes), 0);
	assert_int_equal(bytes, sizeof(name));
	assert_int_equal(name.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	assert_int_not_equal(name.sin_port, 0);
	return ntohs(name.sin_port);
}

void side_make_ep(struct side *side, struct fi_info *info)
{
	assert_int_equal(
		fi_endpoint(side->domain, info == NULL ? side->info : info, &side->ep, side), 0);
	assert_int_equal(fi_ep_bind(side->ep, &side->eq->fid, 0), 0);
	assert_int_equal(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV), 0);
	assert_int_equal(fi_enable(side->ep), 0);
}

int side_connect(struct side *side, uint16_t port, const void *data, size_t bytes)
{
	struct sockaddr_in to = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};

	return fi_connect(side->ep, &to, data, bytes);
}

static void close_fid(struct fid *fid)
{
	assert_int_equal(fi_close(fid), 0);
}

void side_close(struct side *side)
{
	if (side->ep != NULL) {
		close_fid(&side->ep->fid);
	}
	if (side->pep != NULL) {
		close_fid(&side->pep->fid);
	}
	close_fid(&side->cq->fid);
	close_fid(&side->eq->fid);
	close_fid(&side->domain->fid);
	close_fid(&side->fabric->fid);
	fi_freeinfo(side->info);
}

void (*drive_also)(void);

void drive(struct side *side)
{
	struct fi_cq_data_entry entry;

	if (drive_also != NULL) {
		drive_also();
	}
	/* Without room for an entry nothing is taken. */
	if (side != NULL) {
		ssize_t count = fi_cq_read(side->cq, &entry, 0);

		assert_true(count == -FI_EAGAIN || count == -FI_EAVAIL);
	}
}

uint32_t await_event(struct side *side, struct side *other, struct fi_eq_cm_entry *entry,
	size_t bytes, struct fi_eq_err_entry *error)
{
	uint64_t until_ns = clock_now_ns() + PATIENCE_NS;
	uint32_t type;

	while (clock_now_ns() < until_ns) {
		ssize_t count = fi_eq_read(side->eq, &type, entry, bytes, 0);

		if (count > 0) {
			return type;
		}
		if (count == -FI_EAVAIL) {
			assert_non_null(error);
			assert_int_equal(fi_eq_readerr(side->eq, error, 0), sizeof(*error));
			return 0;
		}
		assert_int_equal(count, -FI_EAGAIN);
		drive(other);
	}
	fail_msg("no event came");
	return 0;
}

int await_completion(struct side *side, struct side *other, struct fi_cq_data_entry *entry,
	struct fi_cq_err_entry *error)
{
	uint64_t until_ns = clock_now_ns() + PATIENCE_NS;

	while (clock_now_ns() < until_ns) {
		ssize_t count = fi_cq_read(side->cq, entry, 1);

		if (count == 1) {
			return 0;
		}
		if (count == -FI_EAVAIL) {
			struct fi_cq_err_entry own;

			error = error == NULL ? &own : error;
			memset(error, 0, sizeof(*error));
			assert_int_equal(fi_cq_readerr(side->cq, error, 0), 1);
			return error->err;
		}
		assert_int_equal(count, -FI_EAGAIN);
		drive(other);
	}
	fail_msg("no completion came");
	return 0;
}

void await_done(struct side *side, struct side *other, void *context)
{
	struct fi_cq_data_entry entry;

	assert_int_equal(await_completion(side, other, &entry, NULL), 0);
	assert_ptr_equal(entry.op_context, context);
}

void pair_open(struct pair *pair)
{
	struct fi_eq_cm_entry entry;

	side_open(&pair->server, FI_WAIT_FD);
	side_open(&pair->client, FI_WAIT_FD);
	side_make_ep(&pair->client, NULL);
	assert_int_equal(side_connect(&pair->client, side_listen(&pair->server), NULL, 0), 0);
	assert_int_equal(
		await_event(&pair->server, &pair->client, &entry, sizeof(entry), NULL), FI_CONNREQ);
	side_make_ep(&pair->server, entry.info);
	fi_freeinfo(entry.info);
	assert_int_equal(fi_accept(pair->server.ep, NULL, 0), 0);
	assert_int_equal(await_event(&pair->server, &pair->client, &entry, sizeof(entry), NULL),
		FI_CONNECTED);
	assert_int_equal(await_event(&pair->client, &pair->server, &entry, sizeof(entry), NULL),
		FI_CONNECTED);
	assert_ptr_equal(entry.fid, &pair->client.ep->fid);
}

void pair_close(struct pair *pair)
{
	side_close(&pair->client);
	side_close(&pair->server);
}

void pattern_fill(uint8_t *bytes, size_t count, uint32_t seed)
{
	for (size_t i = 0; i < count; i++) {
		bytes[i] = (uint8_t)((i * 2654435761u + seed) >> 7);
	}
}

void pattern_check(const uint8_t *bytes, size_t count, uint32_t seed)
{
	for (size_t i = 0; i < count; i++) {
		if (bytes[i] != (uint8_t)((i * 2654435761u + seed) >> 7)) {
			fail_msg("byte %zu of %zu is wrong", i, count);
		}
	}
}
