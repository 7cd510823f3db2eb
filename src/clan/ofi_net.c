// SPDX-License-Identifier: Apache-2.0
/*
 * Libfabric, which is loaded when the first address needs it, and its queues.
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
	EQ_SILENT_MAX = 16,    /* events that were libfabric's own */
	EQ_ENTRY_BYTES = 1024, /* with what a peer sends along when it connects: nothing, of ours */
	/* Frames both ways, their heads, and puts and gets. */
	CQ_ENTRIES = OFI_NET_CONNS * (OFI_RECEIVES + OFI_SENDS + 1 + OFI_RMA_PIECES),
};

/* The functions of libfabric that are symbols; the others are reached through its objects. */
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

static void load(void)
{
	/* It is never unloaded: its providers leave threads and handlers behind. */
	void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	const struct {
		const char *name;
		void *function; /* a pointer to one, as dlsym() has it */
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

	/* Its own numbers begin behind those of errno. */
	return error == 0 ? 0 : error < FI_ERRNO_OFFSET ? -(int)error : -EIO;
}

int ofi_look_up(const char *provider, const char *host, const char *port, bool listen,
	struct fi_info **info_out, struct error *error)
{
	struct fi_info *hints;
	int result;

	pthread_once(&api.once, load);
	if (!api.loaded) {
		return error_set(error, -EPROTONOSUPPORT,
			"libfabric cannot be loaded: %s; install it (libfabric1)", api.problem);
	}
	hints = api.dupinfo(NULL);
	if (hints != NULL) {
		hints->fabric_attr->prov_name = strdup(provider);
	}
	if (hints == NULL || hints->fabric_attr->prov_name == NULL) {
		if (hints != NULL) {
			api.freeinfo(hints);
		}
		return error_set(error, -ENOMEM, "not enough memory");
	}
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->tx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
	hints->rx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
	result = ofi_errno(api.getinfo(
		FI_VERSION(1, 17), host, port, listen ? FI_SOURCE : 0, hints, info_out));
	api.freeinfo(hints);
	if (result != 0) {
		bool by_device = strcmp(provider, "verbs") == 0;

		return error_set(error,
			result != -ENODATA ? result
			: by_device	   ? -ENODEV
					   : -EADDRNOTAVAIL,
			"libfabric finds no way by %s: %s", provider,
			by_device ? "no RDMA device here reaches the host, or libfabric has no "
				    "verbs"
			: listen  ? "this machine does not have that address"
				  : "the host is unknown, or cannot be reached");
	}
	return 0;
}

void ofi_info_free(struct fi_info *info)
{
	if (info != NULL) {
		api.freeinfo(info);
	}
}

/* --- nets ------------------------------------------------------------------------------------- */

/* Its descriptor has something: progress(), which follows, takes it. */
static void net_happened(struct waiter_file *file, uint32_t events)
{
	GMB_UNUSED(file);
	GMB_UNUSED(events);
}

static void close_fid(struct fid *fid)
{
	if (fid != NULL) {
		fi_close(fid);
	}
}

void ofi_net_destroy(struct ofi_net *net)
{
	waiter_file_remove(net->queue->waiter, &net->cq_file);
	waiter_file_remove(net->queue->waiter, &net->eq_file);
	close_fid(net->cq == NULL ? NULL : &net->cq->fid);
	close_fid(net->eq == NULL ? NULL : &net->eq->fid);
	close_fid(net->domain == NULL ? NULL : &net->domain->fid);
	close_fid(net->fabric == NULL ? NULL : &net->fabric->fid);
	ofi_info_free(net->info);
	list_remove(&net->node);
	free(net);
}

static int watch(struct ofi_net *net, struct waiter_file *file, struct fid *fid)
{
	int fd = -1;
	int result = ofi_errno(fi_control(fid, FI_GETWAIT, &fd));

	return result != 0 ? result : waiter_file_add(net->queue->waiter, file, fd, EPOLLIN);
}

static int net_open(struct ofi_net *net)
{
	struct fi_cq_attr cq_attr = {
		.size = CQ_ENTRIES, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD
	};
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_FD };
	int result = api.fabric(net->info->fabric_attr, &net->fabric, NULL);

	if (result == 0) {
		result = fi_domain(net->fabric, net->info, &net->domain, NULL);
	}
	if (result == 0) {
		result = fi_cq_open(net->domain, &cq_attr, &net->cq, NULL);
	}
	if (result == 0) {
		result = fi_eq_open(net->fabric, &eq_attr, &net->eq, NULL);
	}
	if (result != 0) {
		return ofi_errno(result);
	}
	result = watch(net, &net->cq_file, &net->cq->fid);
	return result != 0 ? result : watch(net, &net->eq_file, &net->eq->fid);
}

static bool same_name(const char *left, const char *right)
{
	return left == right || (left != NULL && right != NULL && strcmp(left, right) == 0);
}

int ofi_net_get(struct clan_queue *queue, const struct fi_info *info, struct ofi_net **net_out)
{
	struct ofi_net *net;
	int result;

	list_for_each(node, &ofi_queue(queue)->nets)
	{
		net = list_entry(node, struct ofi_net, node);
		if (net->conn_count < OFI_NET_CONNS &&
			same_name(
				net->info->fabric_attr->prov_name, info->fabric_attr->prov_name) &&
			same_name(net->info->fabric_attr->name, info->fabric_attr->name) &&
			same_name(net->info->domain_attr->name, info->domain_attr->name)) {
			*net_out = net;
			return 0;
		}
	}
	net = calloc(1, sizeof(*net));
	if (net == NULL) {
		return -ENOMEM;
	}
	list_init(&net->node);
	net->queue = queue;
	net->cq_file = (struct waiter_file){ .fd = -1, .happened = net_happened };
	net->eq_file = (struct waiter_file){ .fd = -1, .happened = net_happened };
	net->info = api.dupinfo(info);
	result = net->info == NULL ? -ENOMEM : net_open(net);
	if (result != 0) {
		ofi_net_destroy(net);
		return result;
	}
	net->registers_local = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
	list_push_back(&ofi_queue(queue)->nets, &net->node);
	*net_out = net;
	return 0;
}

/* --- what libfabric tells --------------------------------------------------------------------- */

static void completed(struct ofi_context *context, size_t bytes)
{
	switch (context->kind) {
	case OFI_RECV:
		ofi_frame_received(
			context->conn, container_of(context, struct ofi_buffer, context), bytes);
		break;
	case OFI_SEND:
		ofi_frame_sent(context->conn, container_of(context, struct ofi_buffer, context));
		break;
	case OFI_RMA:
		ofi_rma_completed(context, 0);
		break;
	}
}

static void failed(struct ofi_net *net)
{
	struct fi_cq_err_entry entry = { 0 };
	struct ofi_context *context;
	struct ofi_conn *conn;

	if (fi_cq_readerr(net->cq, &entry, 0) != 1 || entry.op_context == NULL) {
		return;
	}
	context = entry.op_context;
	conn = context->conn;
	if (context->kind == OFI_SEND) {
		ofi_frame_sent(conn, container_of(context, struct ofi_buffer, context));
	} else if (context->kind == OFI_RMA) {
		ofi_rma_completed(context, entry.err);
	}
	/* What was cancelled has been: the endpoint is being closed. */
	ofi_conn_cut(conn, entry.err);
}

static bool reap_completions(struct ofi_net *net)
{
	struct fi_cq_msg_entry entries[REAP_BATCH];
	bool any = false;

	for (;;) {
		ssize_t count = fi_cq_read(net->cq, entries, REAP_BATCH);

		if (count == -FI_EAVAIL) {
			failed(net);
			any = true;
			continue;
		}
		if (count <= 0) {
			return any;
		}
		any = true;
		for (ssize_t i = 0; i < count; i++) {
			/* A peer can tell of a write of its own by immediate data. It need not, and
			 * then there is nothing of ours in the completion. */
			if ((entries[i].flags & FI_REMOTE_WRITE) == 0 &&
				entries[i].op_context != NULL) {
				completed(entries[i].op_context, entries[i].len);
			}
		}
	}
}

static struct ofi_listener *find_listener(const struct ofi_net *net, const struct fid *fid)
{
	list_for_each(node, &net->queue->listeners)
	{
		struct clan_listener *base = list_entry(node, struct clan_listener, node);
		struct ofi_listener *listener = container_of(base, struct ofi_listener, listener);

		if (base->provider == &clan_provider_ofi && &listener->pep->fid == fid) {
			return listener;
		}
	}
	return NULL;
}

static void event_happened(struct ofi_net *net, uint32_t type, const struct fi_eq_cm_entry *entry)
{
	struct ofi_listener *listener;

	switch (type) {
	case FI_CONNREQ:
		listener = find_listener(net, entry->fid);
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
		/* What it had sent before comes first. */
		reap_completions(net);
		ofi_conn_cut(entry->fid->context, 0);
		break;
	default:
		break;
	}
}

static bool reap_events(struct ofi_net *net)
{
	/* As large as the largest, and aligned. */
	uint64_t space[EQ_ENTRY_BYTES / sizeof(uint64_t)];
	uint32_t silent = 0;
	bool any = false;

	for (;;) {
		uint32_t type;
		ssize_t count = fi_eq_read(net->eq, &type, space, sizeof(space), 0);

		if (count == -FI_EAVAIL) {
			struct fi_eq_err_entry entry = { 0 };

			any = true;
			if (fi_eq_readerr(net->eq, &entry, 0) > 0 && entry.fid != NULL &&
				entry.fid->fclass == FI_CLASS_EP) {
				ofi_conn_cut(entry.fid->context, entry.err);
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
		event_happened(net, type, (const struct fi_eq_cm_entry *)(const void *)space);
	}
}

bool ofi_net_reap(struct ofi_net *net)
{
	struct ofi_queue *ofi = ofi_queue(net->queue);
	bool outer = !ofi->reaping;
	bool any;

	ofi->reaping = true;
	any = reap_completions(net);
	any = reap_events(net) || any;
	if (outer) {
		ofi->reaping = false;
	}
	return any;
}

bool ofi_net_may_sleep(struct ofi_net *net)
{
	struct fid *fids[] = { &net->cq->fid, &net->eq->fid };

	return fi_trywait(net->fabric, fids, ARRAY_COUNT(fids)) == 0;
}
