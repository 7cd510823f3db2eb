// SPDX-License-Identifier: Apache-2.0
/*
 * The provider's entry point for libfabric, fabrics, and their progress.
 */
#include "fi/absent.h"
#include "fi/provider.h"

#include <stdlib.h>

enum {
	EVENTS_BATCH = 16,
	/* Limit per call of prov_progress(), so that a peer that sends continuously cannot keep us
	 * in it. */
	ROUNDS_MAX = 8,
	CLOSE_WAIT_MS = 1000,
};

/* All fabrics, for pthread_atfork(). */
static pthread_mutex_t fabrics_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list_node fabrics = { .next = &fabrics, .prev = &fabrics };

/* --- progress --------------------------------------------------------------------------------- */

void prov_conn_close(struct prov_fabric *fabric, struct clan_conn *conn)
{
	if (conn != NULL && fabric->queue != NULL) {
		clan_conn_set_context(conn, NULL);
		clan_close(conn);
		fabric->closing++;
	}
}

/* The context of a connection is its owner: an endpoint or a request, both of which begin with a
 * struct fid, or NULL after prov_conn_close(). It is read here and not taken from the event,
 * because an earlier event of the same batch can have changed it. */
static void happened(struct prov_fabric *fabric, const struct clan_event *event)
{
	struct fid *owner =
		event->type == CLAN_EVENT_CLOSED ? NULL : clan_conn_context(event->conn);
	bool is_ep = owner != NULL && owner->fclass == FI_CLASS_EP;

	switch (event->type) {
	case CLAN_EVENT_CONNECT:
		prov_request_arrived(fabric, event->conn);
		break;
	case CLAN_EVENT_CONNECTED:
		if (is_ep) {
			prov_ep_connected((struct prov_ep *)owner);
		}
		break;
	case CLAN_EVENT_READY:
		if (is_ep && (event->ready & CLAN_READY_BULK) != 0) {
			prov_stream_receive((struct prov_ep *)owner);
		}
		if (is_ep && (event->ready & CLAN_READY_SEND_BULK) != 0) {
			prov_stream_send((struct prov_ep *)owner);
		}
		break;
	case CLAN_EVENT_LOST:
		if (is_ep) {
			prov_ep_lost((struct prov_ep *)owner, event->status);
		} else if (owner != NULL) {
			prov_request_lost((struct prov_request *)owner);
		}
		break;
	case CLAN_EVENT_CLOSED:
		fabric->closing--;
		break;
	default:
		/* Events of regions, cookies and tripwires, which are not used. */
		break;
	}
}

static bool fabric_take_events(struct prov_fabric *fabric)
{
	struct clan_event events[EVENTS_BATCH];
	int count = clan_queue_wait(fabric->queue, events, EVENTS_BATCH, 0);

	for (int i = 0; i < count; i++) {
		happened(fabric, &events[i]);
	}
	return count == EVENTS_BATCH;
}

/* Events can lead to new work for other endpoints, so the loop repeats until clan_queue_arm() finds
 * no work. Without sleeping threads the queue is not armed. */
void prov_progress(struct prov_fabric *fabric)
{
	struct list_node again;
	uint32_t rounds = 0;

	if (fabric->queue == NULL) {
		return;
	}
	list_init(&again);
	list_move_all(&again, &fabric->again);
	while (!list_is_empty(&again)) {
		prov_ep_again(list_entry(list_pop_front(&again), struct prov_ep, again_node));
	}
	do {
		while (fabric_take_events(fabric) && ++rounds < ROUNDS_MAX) {
		}
		if (fabric->armed == 0 ||
			(clan_queue_arm(fabric->queue) == 0 && list_is_empty(&fabric->again))) {
			return;
		}
	} while (++rounds < ROUNDS_MAX);
	/* There is work left, so a sleeping thread must wake up and continue. */
	clan_queue_wake(fabric->queue);
}

/* --- fabrics ---------------------------------------------------------------------------------- */

/* Waits until clan has released the closed connections. Gives up when no event arrives for
 * CLOSE_WAIT_MS. */
static void wait_for_closed(struct prov_fabric *fabric)
{
	struct clan_event events[EVENTS_BATCH];
	int count;

	while (fabric->closing > 0 &&
		(count = clan_queue_wait(fabric->queue, events, EVENTS_BATCH, CLOSE_WAIT_MS)) > 0) {
		for (int i = 0; i < count; i++) {
			happened(fabric, &events[i]);
		}
	}
}

/* Closes a fabric without objects. Connections that were closed before might still exist in clan,
 * which must release them before its queue can be destroyed. */
static int fabric_close(struct fid *fid)
{
	struct prov_fabric *fabric = container_of(fid, struct prov_fabric, fabric.fid);

	if (fabric->objects > 0) {
		return -FI_EBUSY;
	}
	pthread_mutex_lock(&fabrics_lock);
	list_remove(&fabric->node);
	pthread_mutex_unlock(&fabrics_lock);
	while (!list_is_empty(&fabric->requests)) {
		prov_request_drop(
			&list_entry(list_first(&fabric->requests), struct prov_request, node)->fid);
	}
	if (fabric->queue != NULL) {
		wait_for_closed(fabric);
		if (clan_queue_destroy(fabric->queue) != 0) {
			PROV_WARN(FI_LOG_FABRIC, "a closed fabric still has connections\n");
		}
	}
	pthread_mutex_destroy(&fabric->lock);
	free(fabric);
	return 0;
}

static struct fi_ops fabric_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = fabric_close,
	.bind = absent_bind,
	.control = absent_control,
	.ops_open = absent_ops_open,
};

static struct fi_ops_fabric fabric_ops = {
	.size = sizeof(struct fi_ops_fabric),
	.domain = prov_domain_open,
	.passive_ep = prov_pep_open,
	.eq_open = prov_eq_open,
	.wait_open = absent_wait_open,
	.trywait = prov_trywait,
};

/* Before fork(): takes all locks, so that no thread is inside a fabric. */
static void fabric_before_fork(void)
{
	pthread_mutex_lock(&fabrics_lock);
	list_for_each(node, &fabrics)
	{
		prov_lock(list_entry(node, struct prov_fabric, node));
	}
}

static void fabric_after_fork_in_parent(void)
{
	list_for_each(node, &fabrics)
	{
		prov_unlock(list_entry(node, struct prov_fabric, node));
	}
	pthread_mutex_unlock(&fabrics_lock);
}

/* The connections belong to the parent. All calls on the fabric fail in the child, because it has
 * no queue. */
static void fabric_after_fork_in_child(void)
{
	list_for_each(node, &fabrics)
	{
		struct prov_fabric *fabric = list_entry(node, struct prov_fabric, node);

		if (fabric->queue != NULL) {
			clan_queue_after_fork(fabric->queue);
			fabric->queue = NULL;
		}
		prov_unlock(fabric);
	}
	pthread_mutex_unlock(&fabrics_lock);
}

static void watch_forks(void)
{
	if (pthread_atfork(fabric_before_fork, fabric_after_fork_in_parent,
		    fabric_after_fork_in_child) != 0) {
		PROV_WARN(FI_LOG_FABRIC, "out of memory: fork() cannot be detected, so this "
					 "process must not fork\n");
	}
}

static int prov_fabric_open(
	struct fi_fabric_attr *attr, struct fid_fabric **fabric_out, void *context)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct clan_queue_options options = {
		.size = sizeof(options),
		.flags = CLAN_QUEUE_PASSIVE,
	};
	struct prov_fabric *fabric = calloc(1, sizeof(*fabric));
	struct clan_error error;
	int result;

	if (fabric == NULL) {
		return -FI_ENOMEM;
	}
	result = clan_queue_create(&options, &fabric->queue, &error);
	if (result != 0) {
		PROV_WARN(FI_LOG_FABRIC, "%s\n", error.text);
		free(fabric);
		return result;
	}
	fabric->fabric.fid = (struct fid){
		.fclass = FI_CLASS_FABRIC,
		.context = context,
		.ops = &fabric_fid_ops,
	};
	fabric->fabric.ops = &fabric_ops;
	fabric->fabric.api_version = attr->api_version;
	list_init(&fabric->peps);
	list_init(&fabric->requests);
	list_init(&fabric->again);
	pthread_mutex_init(&fabric->lock, NULL);
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&fabrics_lock);
	list_push_back(&fabrics, &fabric->node);
	pthread_mutex_unlock(&fabrics_lock);
	*fabric_out = &fabric->fabric;
	return 0;
}

/* --- the provider ----------------------------------------------------------------------------- */

struct fi_provider prov_provider = {
	.name = "clan",
	.version = FI_VERSION(0, 1),
	.fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
	.getinfo = prov_getinfo,
	.fabric = prov_fabric_open,
};

/* The only symbol of the library (fi_provider(7)). libfabric holds a lock here, so its
 * functions must not be called. */
__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void);
struct fi_provider *fi_prov_ini(void)
{
	return &prov_provider;
}
