// SPDX-License-Identifier: Apache-2.0
/*
 * libfabric, loaded when the first address needs it, and its domains with their queues.
 *
 * Invariant: completions and events are taken only in ofi_domain_reap(), which sets net->reaping,
 * so that no endpoint is closed while libfabric's data structures are in use.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "clan/ofi.h"

enum {
	REAP_BATCH = 32,
	EQ_SILENT_MAX = 16, /* limit on consecutive empty reads, which can mean internal events of
			       libfabric */
	EQ_ENTRY_BYTES = 1024, /* events can contain data of the peer; libclan sends none */
	/* Each connection can have these completions: received and sent frames, the frame without
	 * records, puts and gets. */
	CQ_ENTRIES = OFI_DOMAIN_CONNS * (NET_RECEIVES + NET_SENDS + 1 + NET_RMA_PIECES),
};

/* libfabric's functions that are looked up as symbols; all others are called through its objects.
 */
static struct {
	pthread_once_t once;
	int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info);
	void (*freeinfo)(struct fi_info *info);
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
	bool loaded;
	char problem[256];
} api = { .once = PTHREAD_ONCE_INIT };

static void ofi_domain_load(void)
{
	/* The library is never unloaded, because its providers leave threads and handlers
	 * behind. */
	void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	const struct {
		const char *name;
		void *function; /* address of the pointer in which dlsym()'s result is stored */
	} functions[] = {
		{ "fi_getinfo", &api.getinfo },
		{ "fi_freeinfo", &api.freeinfo },
		{ "fi_dupinfo", &api.dupinfo },
		{ "fi_fabric", &api.fabric },
	};

	if (library == NULL) {
		snprintf(api.problem, sizeof(api.problem), "%s", dlerror());
		return;
	}
	for (size_t i = 0; i < ARRAY_COUNT(functions); i++) {
		void *symbol = dlsym(library, functions[i].name);

		if (symbol == NULL) {
			snprintf(api.problem, sizeof(api.problem), "libfabric.so.1 has no %s",
				functions[i].name);
			return;
		}
		memcpy(functions[i].function, &symbol, sizeof(symbol));
	}
	api.loaded = true;
}

int ofi_errno(int64_t result)
{
	int64_t error = result < 0 ? -result : result;

	/* libfabric's own error numbers start above the values of errno. */
	return error == 0 ? 0 : error < FI_ERRNO_OFFSET ? -(int)error : -EIO;
}

/* Loads libfabric with the first call, and resolves the host; both can block. The hints request
 * message orders, because a record must not overtake an earlier record or write. */
int ofi_look_up(const struct net_place *place, bool listen, void **found_out, struct error *error)
{
	struct fi_info *hints;
	struct fi_info *info;
	int result;

	pthread_once(&api.once, ofi_domain_load);
	if (!api.loaded) {
		return error_set(error, -EPROTONOSUPPORT,
			"libfabric cannot be loaded: %s; install it (libfabric1)", api.problem);
	}
	hints = api.dupinfo(NULL);
	if (hints != NULL) {
		hints->fabric_attr->prov_name = strdup(place->provider);
	}
	if (hints == NULL || hints->fabric_attr->prov_name == NULL) {
		if (hints != NULL) {
			api.freeinfo(hints);
		}
		return error_oom(error);
	}
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->tx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
	hints->rx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
	result = ofi_errno(api.getinfo(
		FI_VERSION(1, 17), place->host, place->port, listen ? FI_SOURCE : 0, hints, &info));
	api.freeinfo(hints);
	if (result != 0) {
		bool by_device = strcmp(place->provider, "verbs") == 0;

		return error_set(error,
			result != -ENODATA ? result
			: by_device	   ? -ENODEV
			: listen	   ? -EADDRNOTAVAIL
					   : -EHOSTUNREACH,
			"libfabric cannot use the provider %s: %s", place->provider,
			by_device ? "no RDMA device of this machine reaches the host, or "
				    "libfabric has no provider verbs"
			: listen  ? "this machine does not have that address"
				  : "the host is unknown, or cannot be reached");
	}
	*found_out = info;
	return 0;
}

void ofi_info_free(void *info)
{
	if (info != NULL) {
		api.freeinfo(info);
	}
}

/* --- domains ---------------------------------------------------------------------------------- */

/* The descriptor is readable. ofi_progress(), which follows in the same turn, handles the events.
 */
static void domain_happened(struct waiter_file *file, uint32_t events)
{
}

static void close_fid(struct fid *fid)
{
	if (fid != NULL) {
		fi_close(fid);
	}
}

void ofi_domain_destroy(struct ofi_domain *domain)
{
	waiter_file_remove(domain->net->queue->waiter, &domain->cq_file);
	waiter_file_remove(domain->net->queue->waiter, &domain->eq_file);
	close_fid(domain->cq == NULL ? NULL : &domain->cq->fid);
	close_fid(domain->eq == NULL ? NULL : &domain->eq->fid);
	close_fid(domain->domain == NULL ? NULL : &domain->domain->fid);
	close_fid(domain->fabric == NULL ? NULL : &domain->fabric->fid);
	ofi_info_free(domain->info);
	list_remove(&domain->node);
	free(domain);
}

static int ofi_domain_watch(struct ofi_domain *domain, struct waiter_file *file, struct fid *fid)
{
	int fd = -1;
	int result = ofi_errno(fi_control(fid, FI_GETWAIT, &fd));

	return result != 0 ? result
			   : waiter_file_add(domain->net->queue->waiter, file, fd, EPOLLIN);
}

static int domain_open(struct ofi_domain *domain)
{
	struct fi_cq_attr cq_attr = {
		.size = CQ_ENTRIES, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD
	};
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_FD };
	int result = api.fabric(domain->info->fabric_attr, &domain->fabric, NULL);

	if (result == 0) {
		result = fi_domain(domain->fabric, domain->info, &domain->domain, NULL);
	}
	if (result == 0) {
		result = fi_cq_open(domain->domain, &cq_attr, &domain->cq, NULL);
	}
	if (result == 0) {
		result = fi_eq_open(domain->fabric, &eq_attr, &domain->eq, NULL);
	}
	if (result != 0) {
		return ofi_errno(result);
	}
	result = ofi_domain_watch(domain, &domain->cq_file, &domain->cq->fid);
	return result != 0 ? result : ofi_domain_watch(domain, &domain->eq_file, &domain->eq->fid);
}

static bool ofi_domain_same_name(const char *left, const char *right)
{
	return left == right || (left != NULL && right != NULL && strcmp(left, right) == 0);
}

/* Returns the transport's state of a queue, creating it if necessary; NULL if there is no
 * memory. */
static struct ofi_queue *ofi_domain_queue_use(struct net_queue *net)
{
	struct ofi_queue *ofi = net->transports[NET_OFI];

	if (ofi == NULL) {
		ofi = calloc(1, sizeof(*ofi));
		if (ofi != NULL) {
			list_init(&ofi->domains);
			net->transports[NET_OFI] = ofi;
		}
	}
	return ofi;
}

/* Returns a domain of the same provider, fabric and device. A domain serves at most
 * OFI_DOMAIN_CONNS connections, for which its completion queue has room; then another one is
 * opened. */
int ofi_domain_get(
	struct net_queue *net, const struct fi_info *info, struct ofi_domain **domain_out)
{
	struct ofi_queue *ofi = ofi_domain_queue_use(net);
	struct ofi_domain *domain;
	int result;

	if (ofi == NULL) {
		return -ENOMEM;
	}
	list_for_each(node, &ofi->domains)
	{
		domain = list_entry(node, struct ofi_domain, node);
		if (domain->conn_count < OFI_DOMAIN_CONNS &&
			ofi_domain_same_name(domain->info->fabric_attr->prov_name,
				info->fabric_attr->prov_name) &&
			ofi_domain_same_name(
				domain->info->fabric_attr->name, info->fabric_attr->name) &&
			ofi_domain_same_name(
				domain->info->domain_attr->name, info->domain_attr->name)) {
			*domain_out = domain;
			return 0;
		}
	}
	domain = calloc(1, sizeof(*domain));
	if (domain == NULL) {
		return -ENOMEM;
	}
	list_init(&domain->node);
	domain->net = net;
	domain->cq_file = (struct waiter_file){ .fd = -1, .happened = domain_happened };
	domain->eq_file = (struct waiter_file){ .fd = -1, .happened = domain_happened };
	domain->info = api.dupinfo(info);
	result = domain->info == NULL ? -ENOMEM : domain_open(domain);
	if (result != 0) {
		ofi_domain_destroy(domain);
		return result;
	}
	domain->registers_local = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
	list_push_back(&ofi->domains, &domain->node);
	*domain_out = domain;
	return 0;
}

/* --- completions and events ------------------------------------------------------------------- */

static void completed(struct net_op *op, size_t bytes)
{
	switch (op->kind) {
	case NET_OP_RECEIVE:
		ofi_received(ofi_conn(op->conn), container_of(op, struct net_buffer, op), bytes);
		break;
	case NET_OP_FRAME:
		net_frame_sent(op->conn, container_of(op, struct net_buffer, op));
		break;
	case NET_OP_RMA:
		net_rma_done(container_of(op, struct net_rma, op), 0);
		break;
	}
}

/* Processes a failed operation and cuts its connection. */
static void failed(struct ofi_domain *domain)
{
	struct fi_cq_err_entry entry = { 0 };
	struct net_conn *conn;
	struct net_op *op;

	if (fi_cq_readerr(domain->cq, &entry, 0) != 1 || entry.op_context == NULL) {
		return;
	}
	op = entry.op_context;
	conn = op->conn;
	if (op->kind == NET_OP_FRAME) {
		net_frame_sent(conn, container_of(op, struct net_buffer, op));
	} else if (op->kind == NET_OP_RMA) {
		net_rma_done(container_of(op, struct net_rma, op), ofi_errno(entry.err));
	}
	/* When an attempt to connect fails, libfabric 2 cancels the receives before it reports the
	 * error as an event. */
	if (entry.err == FI_ECANCELED && conn->phase == NET_DIALING) {
		return;
	}
	/* If the connection is being closed, its operations are cancelled, and this call has no
	 * effect. */
	net_conn_cut(conn, ofi_errno(entry.err));
}

/* Processes all completions. Returns true if there were any. */
static bool reap_completions(struct ofi_domain *domain)
{
	struct fi_cq_msg_entry entries[REAP_BATCH];
	bool any = false;

	for (;;) {
		ssize_t count = fi_cq_read(domain->cq, entries, REAP_BATCH);

		if (count == -FI_EAVAIL) {
			failed(domain);
			any = true;
			continue;
		}
		if (count <= 0) {
			return any;
		}
		any = true;
		for (ssize_t i = 0; i < count; i++) {
			/* A peer can attach immediate data to its writes. Their completions here
			 * do not belong to our operations. */
			if ((entries[i].flags & FI_REMOTE_WRITE) == 0 &&
				entries[i].op_context != NULL) {
				completed(entries[i].op_context, entries[i].len);
			}
		}
	}
}

static struct ofi_listener *find_listener(const struct ofi_domain *domain, const struct fid *fid)
{
	list_for_each(node, &domain->net->queue->listeners)
	{
		struct clan_listener *base = list_entry(node, struct clan_listener, node);
		struct net_listener *listener = container_of(base, struct net_listener, listener);
		struct ofi_listener *own = container_of(listener, struct ofi_listener, net);

		if (base->provider == &clan_provider_net &&
			listener->transport == &net_transport_ofi && &own->pep->fid == fid) {
			return own;
		}
	}
	return NULL;
}

static void event_happened(
	struct ofi_domain *domain, uint32_t type, const struct fi_eq_cm_entry *entry)
{
	struct ofi_listener *listener;

	switch (type) {
	case FI_CONNREQ:
		listener = find_listener(domain, entry->fid);
		if (listener != NULL) {
			ofi_connection_requested(listener, entry->info);
		} else {
			ofi_info_free(entry->info);
		}
		break;
	case FI_CONNECTED:
		ofi_connected(entry->fid->context);
		break;
	case FI_SHUTDOWN:
		/* Data that arrived before the shutdown is processed first. */
		reap_completions(domain);
		net_conn_cut(entry->fid->context, 0);
		break;
	default:
		break;
	}
}

/* Processes all events of connections. Returns true if there were any. An empty read can mean that
 * libfabric has consumed an internal event, so it is repeated up to EQ_SILENT_MAX times. */
static bool reap_events(struct ofi_domain *domain)
{
	/* Room for the largest event, aligned. */
	uint64_t space[EQ_ENTRY_BYTES / sizeof(uint64_t)];
	uint32_t silent = 0;
	bool any = false;

	for (;;) {
		uint32_t type;
		ssize_t count = fi_eq_read(domain->eq, &type, space, sizeof(space), 0);

		if (count == -FI_EAVAIL) {
			struct fi_eq_err_entry entry = { 0 };

			any = true;
			if (fi_eq_readerr(domain->eq, &entry, 0) > 0 && entry.fid != NULL &&
				entry.fid->fclass == FI_CLASS_EP) {
				net_conn_cut(entry.fid->context, ofi_errno(entry.err));
			}
			continue;
		}
		if (count == 0 && silent++ < EQ_SILENT_MAX) {
			continue;
		}
		if (count < (ssize_t)sizeof(struct fi_eq_cm_entry)) {
			return any;
		}
		any = true;
		event_happened(domain, type, (const struct fi_eq_cm_entry *)(const void *)space);
	}
}

bool ofi_domain_reap(struct ofi_domain *domain)
{
	struct net_queue *net = domain->net;
	bool outer = !net->reaping;
	bool any;

	net->reaping = true;
	any = reap_completions(domain);
	any = reap_events(domain) || any;
	if (outer) {
		net->reaping = false;
	}
	return any;
}

bool ofi_domain_may_sleep(struct ofi_domain *domain)
{
	struct fid *fids[] = { &domain->cq->fid, &domain->eq->fid };

	return fi_trywait(domain->fabric, fids, ARRAY_COUNT(fids)) == 0;
}
