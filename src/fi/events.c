// SPDX-License-Identifier: Apache-2.0
/*
 * Event queues (fi_eq(3)), completion queues (fi_cq(3)), and sleeping on them.
 *
 * A sleeper can be woken by a peer (the fabric's clan queue in the epoll set) or by another thread
 * that queued an entry for its object while making progress (the eventfd in the set). The eventfd
 * is written at most once until it is read, under the fabric's lock.
 */
#include "fi/absent.h"
#include "fi/provider.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/spin.h"

enum {
	CQ_SIZE_MIN = 64,
	CQ_SIZE_MAX = 1 << 24,
	CQ_REMOTE_DEFAULT = 1024,
	/* Between two yields of a thread that polls. */
	LOOKS_BETWEEN_YIELDS = 32,
};

/* --- sleeping --------------------------------------------------------------------------------- */

static void wait_close(struct prov_wait *wait)
{
	if (wait->watched) {
		wait->fabric->armed--;
	}
	if (wait->told_fd >= 0) {
		close(wait->told_fd);
	}
	if (wait->set_fd >= 0) {
		close(wait->set_fd);
	}
}

static int wait_add(struct prov_wait *wait, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(wait->set_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

/* Creates the descriptors of a wait object. Both the eventfd and the fabric's queue are in the
 * epoll set, so one descriptor covers both kinds of wake-ups. */
static int wait_open(struct prov_wait *wait, struct prov_fabric *fabric, enum fi_wait_obj object)
{
	int result = 0;

	*wait = (struct prov_wait){ .fabric = fabric, .set_fd = -1, .told_fd = -1 };
	if (object == FI_WAIT_NONE) {
		return 0;
	}
	if (object != FI_WAIT_UNSPEC && object != FI_WAIT_FD) {
		return -FI_ENOSYS;
	}
	wait->set_fd = epoll_create1(EPOLL_CLOEXEC);
	wait->told_fd = wait->set_fd < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (wait->told_fd < 0) {
		result = -errno;
	}
	result = result != 0 ? result : wait_add(wait, wait->told_fd);
	result = result != 0 ? result : wait_add(wait, clan_queue_fd(fabric->queue));
	if (result != 0) {
		wait_close(wait);
	}
	return result;
}

/* Makes the descriptor readable with each entry that is queued from now on, until the object is
 * closed. So one thread can poll the descriptor while others read entries. The caller must make
 * progress and then check for entries. */
static void wait_watch(struct prov_wait *wait)
{
	if (!wait->watched) {
		wait->watched = true;
		wait->fabric->armed++;
	}
}

/* Makes the eventfd unreadable; called when no entry is queued. Has no effect in a child after
 * fork(), which shares the eventfd with its parent. */
static void wait_clear(struct prov_wait *wait)
{
	uint64_t count;

	if (wait->told && wait->fabric->queue != NULL) {
		wait->told = false;
		(void)!read(wait->told_fd, &count, sizeof(count));
	}
}

/* Called when an entry was queued. Makes the eventfd readable if a thread might sleep, because the
 * entry might be queued by a thread other than the sleeper. */
static void wait_tell(struct prov_wait *wait)
{
	const uint64_t one = 1;

	if ((wait->watched || wait->sleepers > 0) && !wait->told && wait->fabric->queue != NULL) {
		wait->told = true;
		(void)!write(wait->told_fd, &one, sizeof(one));
	}
}

/* How this thread waits. */
static _Thread_local struct spinner events_spinner;

/* Arguments of events_wait_for(): look() returns a result other than -FI_EAGAIN at the end of the
 * wait. */
struct events_look {
	ssize_t (*look)(void *object, const void *arguments);
	void *object;
	const void *arguments;
};

static ssize_t events_look_again(struct prov_wait *wait, const struct events_look *look)
{
	prov_progress(wait->fabric);
	return look->look(look->object, look->arguments);
}

/* Polls before a sleep, if this makes the waits of this thread faster. The lock is released between
 * two looks. */
static ssize_t events_poll(
	struct prov_wait *wait, uint64_t limit_ns, const struct events_look *look)
{
	ssize_t result = events_look_again(wait, look);

	if (events_spinner.policy.cpu_ns == NULL) {
		spinner_init(&events_spinner, true);
	}
	if (result != -FI_EAGAIN || limit_ns == 0 || wait->signalled ||
		!spinner_begin(&events_spinner, limit_ns, LOOKS_BETWEEN_YIELDS)) {
		return result;
	}
	while (result == -FI_EAGAIN && !wait->signalled && spin_goes_on(&events_spinner.spin)) {
		prov_unlock(wait->fabric);
		prov_lock(wait->fabric);
		result = events_look_again(wait, look);
	}
	return result;
}

/* Sleeps until look() returns a result other than -FI_EAGAIN or the deadline has passed
 * (UINT64_MAX: none). Only now are wake-ups requested from the peers. */
static ssize_t events_sleep(
	struct prov_wait *wait, uint64_t deadline_ns, const struct events_look *look)
{
	struct pollfd file = { .fd = wait->set_fd, .events = POLLIN };
	ssize_t result;

	wait->sleepers++;
	wait->fabric->armed++;
	for (;;) {
		uint64_t now_ns = deadline_ns == UINT64_MAX ? 0 : clock_now_ns();

		result = events_look_again(wait, look);
		if (result != -FI_EAGAIN || now_ns >= deadline_ns || wait->signalled) {
			break;
		}
		wait_clear(wait);
		prov_unlock(wait->fabric);
		/* an interrupted sleep counts as an event */
		(void)!poll(&file, 1,
			deadline_ns == UINT64_MAX ? -1
						  : (int)clock_milliseconds(deadline_ns - now_ns));
		prov_lock(wait->fabric);
	}
	wait->sleepers--;
	wait->fabric->armed--;
	return result;
}

/* Waits until look() returns a result other than -FI_EAGAIN or the timeout has passed (ms;
 * negative: none). Takes the lock. */
static ssize_t events_wait_for(
	struct prov_wait *wait, int timeout_ms, const struct events_look *look)
{
	uint64_t limit_ns = timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * 1000000;
	uint64_t deadline_ns = timeout_ms < 0 ? UINT64_MAX : clock_now_ns() + limit_ns;
	ssize_t result;

	if (wait->set_fd < 0) {
		return -FI_EINVAL;
	}
	prov_lock(wait->fabric);
	result = events_poll(wait, limit_ns, look);
	if (result == -FI_EAGAIN && !wait->signalled) {
		result = events_sleep(wait, deadline_ns, look);
	}
	wait->signalled = false;
	events_spinner.requests += result >= 0;
	prov_unlock(wait->fabric);
	return result;
}

static int wait_control(struct prov_wait *wait, int command, void *arg)
{
	if (command == FI_GETWAIT && wait->set_fd >= 0) {
		*(int *)arg = wait->set_fd;
		return 0;
	}
	if (command == FI_GETWAITOBJ) {
		*(enum fi_wait_obj *)arg = wait->set_fd >= 0 ? FI_WAIT_FD : FI_WAIT_NONE;
		return 0;
	}
	return -FI_ENOSYS;
}

/* --- event queues ----------------------------------------------------------------------------- */

struct event {
	struct list_node node;
	uint32_t type;
	int error; /* error event: a positive errno */
	struct fid *fid;
	struct fi_info *info;
	bool plain; /* written by the program, without a head */
	size_t bytes;
	uint8_t data[];
};

static int add_event(struct prov_eq *eq, const struct event *head, const void *data)
{
	struct event *event = malloc(sizeof(*event) + head->bytes);

	if (event == NULL) {
		return -FI_ENOMEM;
	}
	memcpy(event, head, sizeof(*event));
	if (head->bytes > 0) {
		memcpy(event->data, data, head->bytes);
	}
	list_push_back(&eq->events, &event->node);
	wait_tell(&eq->wait);
	return 0;
}

/* See provider.h. info is freed if the event cannot be queued, because the call owns it. */
int prov_eq_add(struct prov_eq *eq, uint32_t type, struct fid *fid, struct fi_info *info,
	const void *data, size_t bytes, int error)
{
	const struct event head = {
		.type = type,
		.error = error,
		.fid = fid,
		.info = info,
		.bytes = MIN(bytes, (size_t)PROV_CM_BYTES_MAX),
	};
	int result = eq == NULL ? -FI_ENOEQ : add_event(eq, &head, data);

	if (result != 0) {
		fi_freeinfo(info);
	}
	return result;
}

static void drop_event(struct event *event, bool with_info)
{
	list_remove(&event->node);
	if (with_info) {
		fi_freeinfo(event->info);
	}
	free(event);
}

/* See provider.h. Events of the program itself are kept. A connection request is dropped with its
 * event, because the program has not received it. */
void prov_eq_forget(struct prov_eq *eq, const struct fid *fid)
{
	list_for_each(node, &eq->events)
	{
		struct event *event = list_entry(node, struct event, node);

		if (event->fid == fid && !event->plain) {
			if (event->type == FI_CONNREQ) {
				prov_request_drop(event->info->handle);
			}
			drop_event(event, true);
		}
	}
}

/* Arguments of fi_eq_read() and fi_eq_sread(), for eq_take(). */
struct eq_read {
	uint32_t *type;
	void *buffer;
	size_t bytes;
	uint64_t flags;
};

/* Reads the first event. An error event stays in the queue until eq_readerr(), as libfabric
 * requires. */
static ssize_t eq_take(void *object, const void *arguments)
{
	struct prov_eq *eq = object;
	const struct eq_read *read = arguments;
	struct list_node *node = list_first(&eq->events);
	struct event *event;
	struct fi_eq_cm_entry head;
	size_t head_bytes;
	ssize_t count;

	if (node == NULL) {
		return -FI_EAGAIN;
	}
	event = list_entry(node, struct event, node);
	if (event->error != 0) {
		return -FI_EAVAIL;
	}
	head_bytes = event->plain ? 0 : sizeof(head);
	if (read->bytes < head_bytes + (event->plain ? event->bytes : 0)) {
		return -FI_ETOOSMALL;
	}
	head.fid = event->fid;
	head.info = event->info;
	memcpy(read->buffer, &head, head_bytes);
	count = (ssize_t)MIN(event->bytes, read->bytes - head_bytes);
	if (count > 0) {
		memcpy((uint8_t *)read->buffer + head_bytes, event->data, (size_t)count);
	}
	*read->type = event->type;
	if ((read->flags & FI_PEEK) == 0) {
		drop_event(event, false);
	}
	return (ssize_t)head_bytes + count;
}

/* The eventfd is reset only when the queue is empty, so other readers of the descriptor are not
 * left asleep with entries queued. */
static ssize_t eq_read(
	struct fid_eq *fid, uint32_t *type, void *buffer, size_t bytes, uint64_t flags)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, eq);
	const struct eq_read read = { type, buffer, bytes, flags };
	ssize_t count;

	prov_lock(eq->fabric);
	prov_progress(eq->fabric);
	count = eq_take(eq, &read);
	if (list_is_empty(&eq->events)) {
		wait_clear(&eq->wait);
	}
	prov_unlock(eq->fabric);
	return count;
}

static ssize_t eq_sread(
	struct fid_eq *fid, uint32_t *type, void *buffer, size_t bytes, int timeout, uint64_t flags)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, eq);
	const struct eq_read read = { type, buffer, bytes, flags };
	const struct events_look look = { eq_take, eq, &read };

	return events_wait_for(&eq->wait, timeout, &look);
}

static ssize_t eq_readerr(struct fid_eq *fid, struct fi_eq_err_entry *entry, uint64_t flags)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, eq);
	void *own_data = entry->err_data;
	size_t own_bytes = entry->err_data_size;
	struct list_node *node;
	struct event *event;

	prov_lock(eq->fabric);
	node = list_first(&eq->events);
	event = node == NULL ? NULL : list_entry(node, struct event, node);
	if (event == NULL || event->error == 0) {
		prov_unlock(eq->fabric);
		return -FI_EAGAIN;
	}
	*entry = (struct fi_eq_err_entry){
		.fid = event->fid,
		.context = event->fid->context,
		.err = event->error,
		.prov_errno = event->error,
	};
	/* The error data is copied to the program's buffer if it provided one, otherwise to ours,
	 * which is valid until the next call. */
	if (event->bytes > 0) {
		entry->err_data = own_bytes > 0 ? own_data : eq->error_data;
		entry->err_data_size =
			MIN(event->bytes, own_bytes > 0 ? own_bytes : sizeof(eq->error_data));
		memcpy(entry->err_data, event->data, entry->err_data_size);
	}
	if ((flags & FI_PEEK) == 0) {
		drop_event(event, false);
	}
	prov_unlock(eq->fabric);
	return sizeof(*entry);
}

static ssize_t eq_write(
	struct fid_eq *fid, uint32_t type, const void *buffer, size_t bytes, uint64_t flags)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, eq);
	const struct event head = { .type = type, .plain = true, .bytes = bytes };
	int result;

	if (flags != 0 || bytes > PROV_CM_BYTES_MAX) {
		return -FI_EINVAL;
	}
	prov_lock(eq->fabric);
	result = add_event(eq, &head, buffer);
	prov_unlock(eq->fabric);
	return result != 0 ? result : (ssize_t)bytes;
}

static const char *events_describe(int error, char *buffer, size_t bytes)
{
	const char *text = fi_strerror(error);

	if (buffer != NULL && bytes > 0) {
		snprintf(buffer, bytes, "%s", text);
	}
	return text;
}

static const char *eq_strerror(
	struct fid_eq *fid, int error, const void *data, char *buffer, size_t bytes)
{
	return events_describe(error, buffer, bytes);
}

static int eq_close(struct fid *fid)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, eq.fid);
	struct prov_fabric *fabric = eq->fabric;

	prov_lock(fabric);
	if (eq->users > 0) {
		prov_unlock(fabric);
		return -FI_EBUSY;
	}
	while (!list_is_empty(&eq->events)) {
		drop_event(list_entry(list_first(&eq->events), struct event, node), true);
	}
	wait_close(&eq->wait);
	fabric->objects--;
	prov_unlock(fabric);
	free(eq);
	return 0;
}

static int eq_control(struct fid *fid, int command, void *arg)
{
	return wait_control(&container_of(fid, struct prov_eq, eq.fid)->wait, command, arg);
}

static struct fi_ops eq_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = eq_close,
	.bind = absent_bind,
	.control = eq_control,
	.ops_open = absent_ops_open,
};

static struct fi_ops_eq eq_ops = {
	.size = sizeof(struct fi_ops_eq),
	.read = eq_read,
	.readerr = eq_readerr,
	.write = eq_write,
	.sread = eq_sread,
	.strerror = eq_strerror,
};

int prov_eq_open(
	struct fid_fabric *fid, struct fi_eq_attr *attr, struct fid_eq **eq_out, void *context)
{
	struct prov_fabric *fabric = container_of(fid, struct prov_fabric, fabric);
	struct prov_eq *eq = calloc(1, sizeof(*eq));
	int result;

	if (eq == NULL) {
		return -FI_ENOMEM;
	}
	eq->fabric = fabric;
	list_init(&eq->events);
	eq->eq.fid = (struct fid){
		.fclass = FI_CLASS_EQ,
		.context = context,
		.ops = &eq_fid_ops,
	};
	eq->eq.ops = &eq_ops;
	prov_lock(fabric);
	result = wait_open(&eq->wait, fabric, attr == NULL ? FI_WAIT_UNSPEC : attr->wait_obj);
	fabric->objects += result == 0;
	prov_unlock(fabric);
	if (result != 0) {
		free(eq);
		return result;
	}
	*eq_out = &eq->eq;
	return 0;
}

/* --- completion queues ------------------------------------------------------------------------ */

/* Doubles the ring of entries. Called only when an entry is reserved, so completing cannot fail. */
static bool cq_grow(struct prov_cq *cq)
{
	uint32_t size = cq->size == 0 ? CQ_SIZE_MIN : cq->size * 2;
	struct prov_entry *entries;

	if (size > CQ_SIZE_MAX) {
		return false;
	}
	entries = reallocarray(NULL, size, sizeof(*entries));
	if (entries == NULL) {
		return false;
	}
	for (uint32_t i = 0; i < cq->count; i++) {
		entries[i] = cq->entries[(cq->first + i) & (cq->size - 1)];
	}
	free(cq->entries);
	cq->entries = entries;
	cq->size = size;
	cq->first = 0;
	return true;
}

bool prov_cq_promise(struct prov_cq *cq)
{
	if (cq->count + cq->promised == cq->size && !cq_grow(cq)) {
		return false;
	}
	cq->promised++;
	return true;
}

void prov_cq_release(struct prov_cq *cq)
{
	GMB_ASSERT(cq->promised > 0);
	cq->promised--;
}

void prov_cq_complete(struct prov_cq *cq, const struct prov_entry *entry)
{
	prov_cq_release(cq);
	cq->entries[(cq->first + cq->count++) & (cq->size - 1)] = *entry;
	wait_tell(&cq->wait);
}

/* The entries of a peer's writes are limited separately, so a peer cannot use the memory of the
 * whole queue. */
bool prov_cq_promise_remote(struct prov_cq *cq)
{
	if (cq->remote == cq->remote_max || !prov_cq_promise(cq)) {
		return false;
	}
	cq->remote++;
	return true;
}

void prov_cq_release_remote(struct prov_cq *cq)
{
	cq->remote--;
	prov_cq_release(cq);
}

static void events_give(
	const struct prov_cq *cq, void *buffer, size_t index, const struct prov_entry *entry)
{
	switch (cq->format) {
	case FI_CQ_FORMAT_CONTEXT:
		((struct fi_cq_entry *)buffer)[index].op_context = entry->context;
		break;
	case FI_CQ_FORMAT_MSG:
		((struct fi_cq_msg_entry *)buffer)[index] = (struct fi_cq_msg_entry){
			.op_context = entry->context,
			.flags = entry->flags,
			.len = entry->bytes,
		};
		break;
	case FI_CQ_FORMAT_TAGGED:
		((struct fi_cq_tagged_entry *)buffer)[index] = (struct fi_cq_tagged_entry){
			.op_context = entry->context,
			.flags = entry->flags,
			.len = entry->bytes,
			.data = entry->data,
		};
		break;
	case FI_CQ_FORMAT_UNSPEC:
	case FI_CQ_FORMAT_DATA:
		((struct fi_cq_data_entry *)buffer)[index] = (struct fi_cq_data_entry){
			.op_context = entry->context,
			.flags = entry->flags,
			.len = entry->bytes,
			.data = entry->data,
		};
		break;
	}
}

/* Removes the first entry. The entry of a peer's write counts against remote_max until now. */
static void cq_pop(struct prov_cq *cq)
{
	const struct prov_entry *entry = &cq->entries[cq->first];

	if ((entry->flags & FI_REMOTE_WRITE) != 0) {
		cq->remote--;
	}
	cq->first = (cq->first + 1) & (cq->size - 1);
	cq->count--;
}

struct cq_read {
	void *buffer;
	size_t count;
	fi_addr_t *addresses;
};

/* Reads completions up to the first error, which stays in the queue until cq_readerr(). */
static ssize_t cq_take(void *object, const void *arguments)
{
	struct prov_cq *cq = object;
	const struct cq_read *read = arguments;
	size_t count = 0;

	while (count < read->count && cq->count > 0 && cq->entries[cq->first].error == 0) {
		events_give(cq, read->buffer, count, &cq->entries[cq->first]);
		if (read->addresses != NULL) {
			read->addresses[count] = FI_ADDR_NOTAVAIL;
		}
		cq_pop(cq);
		count++;
	}
	if (count > 0) {
		return (ssize_t)count;
	}
	return cq->count > 0 && cq->entries[cq->first].error != 0 ? -FI_EAVAIL : -FI_EAGAIN;
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buffer, size_t count, fi_addr_t *addresses)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, cq);
	struct prov_fabric *fabric = cq->domain->fabric;
	const struct cq_read read = { buffer, count, addresses };
	ssize_t result;

	prov_lock(fabric);
	prov_progress(fabric);
	result = cq_take(cq, &read);
	if (cq->count == 0) {
		wait_clear(&cq->wait);
	}
	prov_unlock(fabric);
	return result;
}

static ssize_t cq_read(struct fid_cq *fid, void *buffer, size_t count)
{
	return cq_readfrom(fid, buffer, count, NULL);
}

static ssize_t cq_sreadfrom(struct fid_cq *fid, void *buffer, size_t count, fi_addr_t *addresses,
	const void *condition, int timeout)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, cq);
	const struct cq_read read = { buffer, count, addresses };
	const struct events_look look = { cq_take, cq, &read };

	return events_wait_for(&cq->wait, timeout, &look);
}

static ssize_t cq_sread(
	struct fid_cq *fid, void *buffer, size_t count, const void *condition, int timeout)
{
	return cq_sreadfrom(fid, buffer, count, NULL, condition, timeout);
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *buffer, uint64_t flags)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, cq);
	struct prov_fabric *fabric = cq->domain->fabric;
	const struct prov_entry *entry;

	prov_lock(fabric);
	if (cq->count == 0 || cq->entries[cq->first].error == 0) {
		prov_unlock(fabric);
		return -FI_EAGAIN;
	}
	entry = &cq->entries[cq->first];
	*buffer = (struct fi_cq_err_entry){
		.op_context = entry->context,
		.flags = entry->flags,
		.len = entry->bytes,
		.data = entry->data,
		.olen = entry->lost_bytes,
		.err = entry->error,
		.prov_errno = entry->error,
	};
	if ((flags & FI_PEEK) == 0) {
		cq_pop(cq);
	}
	prov_unlock(fabric);
	return 1;
}

/* Ends one sleep without a completion. */
static int cq_signal(struct fid_cq *fid)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, cq);

	prov_lock(cq->domain->fabric);
	cq->wait.signalled = cq->wait.sleepers > 0;
	wait_tell(&cq->wait);
	prov_unlock(cq->domain->fabric);
	return 0;
}

static const char *cq_strerror(
	struct fid_cq *fid, int error, const void *data, char *buffer, size_t bytes)
{
	return events_describe(error, buffer, bytes);
}

static int cq_close(struct fid *fid)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, cq.fid);
	struct prov_fabric *fabric = cq->domain->fabric;

	prov_lock(fabric);
	if (cq->users > 0) {
		prov_unlock(fabric);
		return -FI_EBUSY;
	}
	wait_close(&cq->wait);
	cq->domain->users--;
	prov_unlock(fabric);
	free(cq->entries);
	free(cq);
	return 0;
}

static int cq_control(struct fid *fid, int command, void *arg)
{
	return wait_control(&container_of(fid, struct prov_cq, cq.fid)->wait, command, arg);
}

static struct fi_ops cq_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = cq_close,
	.bind = absent_bind,
	.control = cq_control,
	.ops_open = absent_ops_open,
};

static struct fi_ops_cq cq_ops = {
	.size = sizeof(struct fi_ops_cq),
	.read = cq_read,
	.readfrom = cq_readfrom,
	.readerr = cq_readerr,
	.sread = cq_sread,
	.sreadfrom = cq_sreadfrom,
	.signal = cq_signal,
	.strerror = cq_strerror,
};

int prov_cq_open(
	struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **cq_out, void *context)
{
	struct prov_domain *domain = container_of(fid, struct prov_domain, domain);
	struct prov_cq *cq;
	int result;

	if (attr != NULL && (attr->format > FI_CQ_FORMAT_TAGGED || attr->wait_cond != 0)) {
		return -FI_ENOSYS;
	}
	cq = calloc(1, sizeof(*cq));
	if (cq == NULL) {
		return -FI_ENOMEM;
	}
	cq->domain = domain;
	cq->format = attr == NULL ? FI_CQ_FORMAT_DATA : attr->format;
	cq->remote_max = attr == NULL || attr->size == 0
				 ? CQ_REMOTE_DEFAULT
				 : (uint32_t)MIN(attr->size, (size_t)CQ_SIZE_MAX / 2);
	cq->cq.fid = (struct fid){
		.fclass = FI_CLASS_CQ,
		.context = context,
		.ops = &cq_fid_ops,
	};
	cq->cq.ops = &cq_ops;
	prov_lock(domain->fabric);
	result = wait_open(&cq->wait, domain->fabric, attr == NULL ? FI_WAIT_NONE : attr->wait_obj);
	domain->users += result == 0;
	prov_unlock(domain->fabric);
	if (result != 0) {
		free(cq);
		return result;
	}
	*cq_out = &cq->cq;
	return 0;
}

/* Returns 0 if the caller may sleep on the descriptors of all objects, or -FI_EAGAIN if one
 * has entries. */
int prov_trywait(struct fid_fabric *fid, struct fid **fids, int count)
{
	struct prov_fabric *fabric = container_of(fid, struct prov_fabric, fabric);
	int result = 0;

	prov_lock(fabric);
	/* All objects are watched before progress is made, so an entry queued from then on makes
	 * the descriptor readable. */
	for (int i = 0; i < count; i++) {
		struct prov_wait *wait;

		if (fids[i]->fclass == FI_CLASS_CQ) {
			wait = &container_of(fids[i], struct prov_cq, cq.fid)->wait;
		} else if (fids[i]->fclass == FI_CLASS_EQ) {
			wait = &container_of(fids[i], struct prov_eq, eq.fid)->wait;
		} else {
			prov_unlock(fabric);
			return -FI_EINVAL;
		}
		if (wait->set_fd < 0) {
			prov_unlock(fabric);
			return -FI_EINVAL;
		}
		wait_watch(wait);
	}
	prov_progress(fabric);
	for (int i = 0; i < count; i++) {
		bool is_cq = fids[i]->fclass == FI_CLASS_CQ;
		struct prov_cq *cq = container_of(fids[i], struct prov_cq, cq.fid);
		struct prov_eq *eq = container_of(fids[i], struct prov_eq, eq.fid);

		if (is_cq ? cq->count > 0 : !list_is_empty(&eq->events)) {
			result = -FI_EAGAIN;
		} else {
			wait_clear(is_cq ? &cq->wait : &eq->wait);
		}
	}
	prov_unlock(fabric);
	return result;
}
