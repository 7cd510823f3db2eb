// SPDX-License-Identifier: Apache-2.0
/*
 * Domains, and memory regions (fi_mr(3)). A region is ordinary memory. Peers access it only by
 * records that this side executes, so closing a region ends all access immediately.
 */
#include "fi/absent.h"
#include "fi/provider.h"

#include <stdlib.h>
#include <sys/random.h>

enum {
	MR_SLOTS_FIRST = 64,
	MR_SLOTS_MAX = 1 << 24,
};

/* --- keys ------------------------------------------------------------------------------------- */

/* A key contains the region's slot in the table (low 24 bits). The bits above change with each
 * registration, so old keys are detected. Keys are not secret, because peers belong to our own
 * user. */
static uint64_t new_key(struct prov_domain *domain, uint32_t slot)
{
	uint64_t mixed;

	domain->key_state += UINT64_C(0x9e3779b97f4a7c15);
	mixed = (domain->key_state ^ domain->key_state >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
	mixed ^= mixed >> 29;
	return mixed << 24 | slot;
}

static struct prov_mr *find_mr(const struct prov_domain *domain, uint64_t key)
{
	uint32_t slot = (uint32_t)(key & (MR_SLOTS_MAX - 1));
	struct prov_mr *mr = slot < domain->mr_slots ? domain->mrs[slot] : NULL;

	return mr != NULL && mr->mr.key == key ? mr : NULL;
}

/* Doubles the table. Keys stay valid, because their slot does not change. */
static bool grow_table(struct prov_domain *domain)
{
	uint32_t slots = domain->mr_slots == 0 ? MR_SLOTS_FIRST : domain->mr_slots * 2;
	struct prov_mr **mrs;

	if (slots > MR_SLOTS_MAX) {
		return false;
	}
	mrs = reallocarray(domain->mrs, slots, sizeof(struct prov_mr *));
	if (mrs == NULL) {
		return false;
	}
	for (uint32_t i = domain->mr_slots; i < slots; i++) {
		mrs[i] = NULL;
	}
	domain->mrs = mrs;
	domain->mr_free = domain->mr_slots;
	domain->mr_slots = slots;
	return true;
}

/* Stores the region in a free slot of the table, and chooses its key. Returns false if the table
 * cannot grow. */
static bool take_slot(struct prov_domain *domain, struct prov_mr *mr)
{
	/* The table is at most half full, so that the search for a free slot is short. */
	if (domain->mr_count * 2 >= domain->mr_slots && !grow_table(domain)) {
		return false;
	}
	while (domain->mrs[domain->mr_free] != NULL) {
		domain->mr_free = (domain->mr_free + 1) & (domain->mr_slots - 1);
	}
	domain->mrs[domain->mr_free] = mr;
	domain->mr_count++;
	mr->mr.key = new_key(domain, domain->mr_free);
	return true;
}

/* --- accesses of peers ------------------------------------------------------------------------ */

/* See provider.h. The range is checked by subtraction, because the sums of the peer's values could
 * overflow. */
int prov_use_begin(struct prov_use *use, struct prov_domain *domain, uint64_t key, uint64_t address,
	uint64_t bytes, uint64_t access)
{
	struct prov_mr *mr = find_mr(domain, key);
	uint64_t base;

	if (mr == NULL) {
		return -FI_EKEYREJECTED;
	}
	base = (uintptr_t)mr->base;
	if ((mr->access & access) == 0 || bytes > mr->bytes || address < base ||
		address - base > mr->bytes - bytes) {
		return -FI_EACCES;
	}
	use->mr = mr;
	list_push_back(&mr->uses, &use->node);
	return 0;
}

void prov_use_end(struct prov_use *use)
{
	list_remove(&use->node);
	use->mr = NULL;
}

/* --- regions ---------------------------------------------------------------------------------- */

static int mr_close(struct fid *fid)
{
	struct prov_mr *mr = container_of(fid, struct prov_mr, mr.fid);
	struct prov_domain *domain = mr->domain;

	prov_lock(domain->fabric);
	/* An access in progress ends here: its payload is discarded, or replaced by zeroes. */
	while (!list_is_empty(&mr->uses)) {
		prov_use_end(list_entry(list_first(&mr->uses), struct prov_use, node));
	}
	domain->mrs[mr->mr.key & (MR_SLOTS_MAX - 1)] = NULL;
	domain->mr_count--;
	domain->users--;
	prov_unlock(domain->fabric);
	free(mr);
	return 0;
}

static struct fi_ops mr_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = mr_close,
	.bind = absent_bind,
	.control = absent_control,
	.ops_open = absent_ops_open,
};

/* Registers a region. Its key is chosen here (FI_MR_PROV_KEY), so requested_key is ignored. Memory
 * is neither pinned nor touched. */
static int mr_regattr(
	struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr_out)
{
	struct prov_domain *domain = container_of(fid, struct prov_domain, domain.fid);
	struct prov_mr *mr;

	if (fid->fclass != FI_CLASS_DOMAIN || flags != 0 || attr->iov_count != 1 ||
		attr->offset != 0) {
		return -FI_EINVAL;
	}
	mr = calloc(1, sizeof(*mr));
	if (mr == NULL) {
		return -FI_ENOMEM;
	}
	mr->domain = domain;
	mr->base = attr->mr_iov[0].iov_base;
	mr->bytes = attr->mr_iov[0].iov_len;
	mr->access = attr->access;
	list_init(&mr->uses);
	mr->mr.fid = (struct fid){
		.fclass = FI_CLASS_MR,
		.context = attr->context,
		.ops = &mr_fid_ops,
	};
	mr->mr.mem_desc = mr;
	prov_lock(domain->fabric);
	if (!take_slot(domain, mr)) {
		prov_unlock(domain->fabric);
		free(mr);
		return -FI_ENOMEM;
	}
	domain->users++;
	prov_unlock(domain->fabric);
	*mr_out = &mr->mr;
	return 0;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access,
	uint64_t offset, uint64_t requested_key, uint64_t flags, struct fid_mr **mr_out,
	void *context)
{
	const struct fi_mr_attr attr = {
		.mr_iov = iov,
		.iov_count = count,
		.access = access,
		.offset = offset,
		.requested_key = requested_key,
		.context = context,
	};

	return mr_regattr(fid, &attr, flags, mr_out);
}

static int mr_reg(struct fid *fid, const void *base, size_t bytes, uint64_t access, uint64_t offset,
	uint64_t requested_key, uint64_t flags, struct fid_mr **mr_out, void *context)
{
	const struct iovec iov = { .iov_base = (void *)(uintptr_t)base, .iov_len = bytes };

	return mr_regv(fid, &iov, 1, access, offset, requested_key, flags, mr_out, context);
}

static struct fi_ops_mr mr_ops = {
	.size = sizeof(struct fi_ops_mr),
	.reg = mr_reg,
	.regv = mr_regv,
	.regattr = mr_regattr,
};

/* --- domains ---------------------------------------------------------------------------------- */

static int domain_close(struct fid *fid)
{
	struct prov_domain *domain = container_of(fid, struct prov_domain, domain.fid);
	struct prov_fabric *fabric = domain->fabric;

	prov_lock(fabric);
	if (domain->users > 0) {
		prov_unlock(fabric);
		return -FI_EBUSY;
	}
	fabric->objects--;
	prov_unlock(fabric);
	free(domain->mrs);
	free(domain);
	return 0;
}

static struct fi_ops domain_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = domain_close,
	.bind = absent_bind,
	.control = absent_control,
	.ops_open = absent_ops_open,
};

static int no_atomic(struct fid_domain *domain, enum fi_datatype type, enum fi_op op,
	struct fi_atomic_attr *attr, uint64_t flags)
{
	return -FI_EOPNOTSUPP;
}

static struct fi_ops_domain domain_ops = {
	.size = sizeof(struct fi_ops_domain),
	.av_open = absent_av_open,
	.cq_open = prov_cq_open,
	.endpoint = prov_ep_open,
	.scalable_ep = absent_scalable_ep,
	.cntr_open = absent_cntr_open,
	.poll_open = absent_poll_open,
	.stx_ctx = absent_stx_ctx,
	.srx_ctx = absent_srx_ctx,
	.query_atomic = no_atomic,
};

int prov_domain_open(
	struct fid_fabric *fid, struct fi_info *info, struct fid_domain **domain_out, void *context)
{
	struct prov_fabric *fabric = container_of(fid, struct prov_fabric, fabric);
	struct prov_domain *domain;

	domain = calloc(1, sizeof(*domain));
	if (domain == NULL) {
		return -FI_ENOMEM;
	}
	domain->fabric = fabric;
	if (getrandom(&domain->key_state, sizeof(domain->key_state), 0) !=
		sizeof(domain->key_state)) {
		free(domain);
		return -FI_EIO;
	}
	domain->domain.fid = (struct fid){
		.fclass = FI_CLASS_DOMAIN,
		.context = context,
		.ops = &domain_fid_ops,
	};
	domain->domain.ops = &domain_ops;
	domain->domain.mr = &mr_ops;
	prov_lock(fabric);
	fabric->objects++;
	prov_unlock(fabric);
	*domain_out = &domain->domain;
	return 0;
}
