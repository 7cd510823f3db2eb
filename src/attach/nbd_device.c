// SPDX-License-Identifier: Apache-2.0
/*
 * A device of the kernel's nbd driver, which communicates with the server itself. This module only
 * creates and replaces the connections.
 *
 *   dial × N ─▶ CONNECT ─▶ /dev/nbdN
 *   a socket dies ─▶ LINK_DEAD ─▶ watcher: dial, compare, RECONFIGURE
 *   the export grows ─▶ watcher ─▶ daemon: RECONFIGURE
 *
 * The driver never asks for the size, so the watcher has its own connection for that.
 *
 * The kernel accepts a new socket only as the replacement of one that it knows to be dead, and
 * otherwise ignores it without an error. So the old socket is shut down first, and then LINK_DEAD
 * is awaited. Each LINK_DEAD permits one new socket.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "attach/attach.h"
#include "attach/flush.h"
#include "attach/nbd_dialer.h"
#include "attach/nbd_kernel.h"
#include "attach/remote.h"
#include "base/clock.h"
#include "base/log.h"

enum {
	SOCKETS_MAX = 16,
	SOCKETS_CHOSEN_MAX = 4,
	/* initial pause between attempts to reconnect; doubled up to the maximum, until a
	 * connection lasts that long */
	PAUSE_MS_MIN = 50,
	PAUSE_MS_MAX = 2000,
	/* time to wait for the kernel's notification after we have detected that a socket is
	 * dead */
	WAIT_MS = 500,
};

#define NS_PER_MS     UINT64_C(1000000)
#define NS_PER_S      UINT64_C(1000000000)
#define WAIT_NS	      (WAIT_MS * NS_PER_MS)
#define HOSTS_SLOW_NS (60 * NS_PER_S) /* default of slow_timeout with several hosts */

struct nbd_disk {
	struct device device;
	const struct attach_options *options;
	struct nbd_hosts hosts; /* the servers of the URI */
	struct nbd_dialer dialer;
	struct netlink orders;
	struct nbd_kernel_device kernel;
	struct nbd_facts facts;
	bool connected; /* the kernel has the device */
	_Atomic bool hurried;

	/* The following members belong to the watcher once it runs. A socket is -1 while it is
	 * dead. */
	int sockets[SOCKETS_MAX];
	/* NULL: the driver communicates with the server directly */
	struct nbd_relay *relays[SOCKETS_MAX];
	uint32_t numbers[SOCKETS_MAX];	/* unique number of the connection */
	uint64_t since_ns[SOCKETS_MAX]; /* when it was established */
	uint32_t socket_count;
	struct remote size; /* watches the size; queue NULL: unavailable */
	struct netlink news;
	/* LINK_DEAD notifications for which no new socket was given to the driver yet */
	uint32_t dead_links;
	uint64_t dead_since_ns;
	int pause_ms; /* next pause between attempts to reconnect */
	/* A connection was lost soon after it was established, which counts as a failed attempt:
	 * the server might close each connection after the handshake. */
	bool was_short;
	/* the last refusal of each host that was logged in this outage */
	struct error told[URI_HOSTS_MAX];
	pthread_t thread;
	bool watching;
	int stop_fd; /* readable: the watcher must end */
};

_Static_assert(
	SOCKETS_MAX <= (int)NBD_HANDSHAKE_REPLACES_MAX, "all sockets can be dead at the same time");

static const struct device_ops nbd_device_ops;

static struct nbd_disk *nbd_device_disk_of(struct device *device)
{
	return container_of(device, struct nbd_disk, device);
}

static uint64_t nbd_device_seconds(uint64_t ns)
{
	return MAX((ns + NS_PER_S - 1) / NS_PER_S, UINT64_C(1));
}

/* --- connections --------------------------------------------------------------------------- */

static bool has_living(const struct nbd_disk *disk)
{
	for (uint32_t i = 0; i < disk->socket_count; i++) {
		if (disk->sockets[i] >= 0) {
			return true;
		}
	}
	return false;
}

/* Dials a connection that replaces the dead ones. Blocks until deadline_ns at most, or until
 * cancel_fd is readable. */
static int dial(struct nbd_disk *disk, uint64_t deadline_ns, int cancel_fd,
	struct nbd_connection *connection, struct nbd_facts *facts, struct error *error)
{
	uint32_t dead[SOCKETS_MAX];
	struct nbd_dial_order order = {
		.deadline_ns = deadline_ns,
		.cancel_fd = cancel_fd,
		.replaces = dead,
		.in_outage = !has_living(disk),
	};

	for (uint32_t i = 0; i < disk->socket_count; i++) {
		if (disk->sockets[i] < 0) {
			dead[order.replaces_count++] = disk->numbers[i];
		}
	}
	return nbd_dialer_dial(&disk->dialer, &order, connection, facts, error);
}

static void keep_connection(
	struct nbd_disk *disk, uint32_t idx, const struct nbd_connection *connection)
{
	disk->sockets[idx] = connection->fd;
	disk->numbers[idx] = connection->number;
	disk->since_ns[idx] = clock_now_ns();
	disk->relays[idx] = connection->relay;
}

/* Only logs the new epoch. The driver does not report which writes were not flushed, so they cannot
 * be repeated. */
static void note_epoch(struct nbd_disk *disk, const struct nbd_facts *facts)
{
	if (facts->epoch != disk->facts.epoch) {
		log_error("%s: the server has rebooted: writes that it acknowledged but had not "
			  "flushed may be lost",
			disk->device.path);
		disk->facts.epoch = facts->epoch;
	}
}

/* --- the watcher --------------------------------------------------------------------------- */

/* Waits until the watcher is ordered to stop, up to the timeout. Returns true if it was. */
static bool stop_within(struct nbd_disk *disk, int timeout_ms)
{
	struct pollfd entry = { .fd = disk->stop_fd, .events = POLLIN };

	return poll(&entry, 1, timeout_ms) > 0;
}

/* Closes a dead socket. The lease was cut off with the last one, because a server that refuses a
 * further connection still serves those that live. The shutdown notifies the kernel, which may not
 * have detected the loss. */
static void drop_socket(struct nbd_disk *disk, uint32_t idx)
{
	bool is_short = clock_now_ns() - disk->since_ns[idx] < PAUSE_MS_MAX * NS_PER_MS;

	shutdown(disk->sockets[idx], SHUT_RDWR);
	close(disk->sockets[idx]);
	disk->sockets[idx] = -1;
	nbd_relay_end(disk->relays[idx]);
	disk->relays[idx] = NULL;
	disk->was_short |= is_short;
	disk->pause_ms = is_short ? disk->pause_ms : PAUSE_MS_MIN;
	if (!has_living(disk)) {
		lease_watch_doubt(&disk->hosts.watch);
	}
	if (disk->dead_since_ns == 0) {
		disk->dead_since_ns = clock_now_ns();
		log_warning("%s: lost a connection to %s; reconnecting", disk->device.path,
			disk->options->uri);
		health_set(&disk->device.health, false, "a connection was lost");
	}
}

static void drop_all(struct nbd_disk *disk)
{
	for (uint32_t i = 0; i < disk->socket_count; i++) {
		if (disk->sockets[i] >= 0) {
			drop_socket(disk, i);
		}
	}
}

/* Gives up all connections if the daemon was stopped, so that the home confirms the lease. Returns
 * whether it was. */
static bool drop_after_stop(struct nbd_disk *disk)
{
	if (lease_watch_check(&disk->hosts.watch, clock_now_ns())) {
		return false;
	}
	log_warning("%s: %s", disk->device.path, LEASE_WATCH_STOPPED);
	drop_all(disk);
	health_set(&disk->device.health, false, LEASE_WATCH_STOPPED);
	return true;
}

static void take_news(struct nbd_disk *disk)
{
	int rc;

	do {
		rc = nbd_kernel_dead_link(&disk->news);
		if (rc == disk->kernel.index) {
			disk->dead_links++;
		}
		/* -EPROTO is a notification of another kind, which is skipped. -ENOMEM means that
		 * notifications were lost. It ends the loop, and poll() then reports the remaining
		 * notifications. */
	} while (rc >= 0 || rc == -EPROTO);
}

/* The size never decreases here: a smaller export counts as another disk, see check_facts(). */
static void nbd_device_take_size(struct nbd_disk *disk, uint64_t bytes)
{
	disk->facts.size = MAX(disk->facts.size, bytes);
}

/* Waits for an event. Returns false if the watcher was ordered to stop. */
static bool watch_once(struct nbd_disk *disk, int timeout_ms)
{
	struct pollfd entries[3 + SOCKETS_MAX] = {
		{ .fd = disk->stop_fd, .events = POLLIN },
		{ .fd = disk->news.fd, .events = POLLIN },
		{ .fd = -1, .events = POLLIN },
	};

	if (disk->size.queue != NULL) {
		gmb_queue_wait(disk->size.queue, 0);
		nbd_device_take_size(disk, atomic_load(&disk->device.export_bytes));
		entries[2].fd = gmb_queue_fd(disk->size.queue);
	}
	for (uint32_t i = 0; i < disk->socket_count; i++) {
		/* Watches only for the end of the connection, because the kernel reads the data.
		 * POLLHUP is always reported. */
		entries[3 + i] = (struct pollfd){ .fd = disk->sockets[i], .events = POLLRDHUP };
	}
	if (poll(entries, 3 + disk->socket_count, timeout_ms) < 0) {
		return true;
	}
	for (uint32_t i = 0; i < disk->socket_count; i++) {
		if (entries[3 + i].revents != 0) {
			drop_socket(disk, i);
		}
	}
	if (entries[1].revents != 0) {
		take_news(disk);
	}
	return entries[0].revents == 0;
}

/* Returns the index of a dead socket, or -1. */
static int dead_place(const struct nbd_disk *disk)
{
	for (uint32_t i = 0; i < disk->socket_count; i++) {
		if (disk->sockets[i] < 0) {
			return (int)i;
		}
	}
	return -1;
}

/* Tries once to replace a socket. Returns 0 or the error; -ENODEV: the kernel's device is gone;
 * -ECANCELED: the watcher must end. */
static int replace_socket(struct nbd_disk *disk, uint32_t idx, struct error *error)
{
	uint64_t deadline_ns = clock_now_ns() + disk->options->connect_timeout_ns;
	struct nbd_connection connection;
	struct nbd_facts facts;
	int rc = dial(disk, deadline_ns, disk->stop_fd, &connection, &facts, error);

	if (rc != 0) {
		return rc;
	}
	rc = nbd_hosts_check(&disk->hosts, &disk->facts, &facts, disk->kernel.server_flags, error);
	if (rc == 0) {
		rc = nbd_hosts_check_lease(&disk->hosts, connection.renews_lease, error);
		if (rc == -EACCES) { /* final, so the lease is of no use */
			nbd_connection_leave(connection.fd);
			nbd_relay_leave(connection.relay);
		}
	}
	/* We may have detected the dead socket before the kernel's LINK_DEAD notification has
	 * arrived, so wait a short time for it. */
	deadline_ns = clock_now_ns() + WAIT_NS;
	while (rc == 0 && disk->dead_links == 0 && clock_now_ns() < deadline_ns) {
		rc = watch_once(disk, WAIT_MS / 10) ? 0 : -ECANCELED;
	}
	if (rc == 0) {
		rc = nbd_kernel_reconfigure(&disk->orders, &disk->kernel, connection.fd);
		if (rc != 0) {
			error_set(error, rc, "the kernel rejects the new connection: %s",
				strerror(-rc));
		}
	}
	if (rc != 0) {
		nbd_connection_close(&connection);
		return rc;
	}
	note_epoch(disk, &facts);
	/* The same, unless the home has another identity of the disk since it was started again. */
	memcpy(disk->facts.disk, facts.disk, sizeof(disk->facts.disk));
	nbd_hosts_settle(&disk->hosts, &connection.started, &disk->device);
	if (facts.size > disk->facts.size) {
		nbd_device_take_size(disk, facts.size);
		device_export_resized(&disk->device, facts.size);
	}
	keep_connection(disk, idx, &connection);
	disk->dead_links -= disk->dead_links > 0 ? 1 : 0;
	return 0;
}

static bool is_gone(struct nbd_disk *disk)
{
	return nbd_kernel_status(&disk->orders, disk->kernel.index) == 0;
}

/* Returns whether the server has excluded the client for good, as in client/lease.c: the client has
 * no right to the lease, or its node is fenced. If it is fenced at another host than the home, the
 * other hosts are tried before; attempts: how many have failed. */
static bool has_excluded_us(
	const struct nbd_disk *disk, const struct error *error, uint32_t attempts)
{
	bool is_last = disk->hosts.count == 1 || attempts >= disk->hosts.count ||
		       (disk->connected && disk->hosts.next == disk->hosts.home);

	return error->code == -EACCES &&
	       (strstr(error->text, EXPORT_URI_LEASE_TEXT) != NULL ||
		       (strstr(error->text, EXPORT_URI_FENCED_TEXT) != NULL && is_last));
}

/* Makes all requests fail now. The disk stays attached, so that its state shows the reason. */
static void fail_excluded(struct nbd_disk *disk, const char *reason)
{
	int rc;

	log_error("%s: all requests fail: %s", disk->device.path, reason);
	atomic_store(&disk->hurried, true); /* stop() does not disconnect the device again */
	rc = nbd_kernel_disconnect(&disk->orders, disk->kernel.index);
	if (rc != 0) {
		log_error("%s: cannot disconnect it: %s", disk->device.path, strerror(-rc));
	}
}

/* Chooses the host for the next attempt, after a failed one. Connections to a host that cannot be
 * reached are given up, because the kernel might not detect for long that they are dead. Returns
 * whether all hosts were tried. */
static bool leave_host(struct nbd_disk *disk, int rc)
{
	if (nbd_hosts_is_gone(&disk->hosts, rc)) {
		drop_all(disk);
	}
	return has_living(disk) || !nbd_hosts_move(&disk->hosts);
}

/* Waits before the next attempt to reconnect. Returns false if the watcher must end. */
static bool pause_attempts(struct nbd_disk *disk)
{
	int pause_ms = disk->pause_ms;

	disk->was_short = false;
	disk->pause_ms = MIN(2 * pause_ms, PAUSE_MS_MAX);
	return !stop_within(disk, pause_ms);
}

/* Logs each reason of a host once, because attempts may continue for hours. */
static void log_refusal(struct nbd_disk *disk, const struct error *error)
{
	struct error *told = &disk->told[disk->hosts.next];

	if (strcmp(told->text, error->text) != 0) {
		*told = *error;
		log_error("%s: %s", disk->device.path, error->text);
	}
}

/* Replaces all dead sockets, however long it takes. Returns false if the watcher must end. */
static bool reconnect(struct nbd_disk *disk)
{
	struct error error = { 0 };
	uint32_t attempts = 0;
	int place;
	int rc;

	while ((place = dead_place(disk)) >= 0) {
		/* The others can have ended during the last attempt. */
		if (has_living(disk) && !watch_once(disk, 0)) {
			return false;
		}
		if (has_living(disk)) {
			(void)drop_after_stop(disk);
		}
		if (disk->was_short && !pause_attempts(disk)) {
			return false;
		}
		rc = is_gone(disk) ? -ENODEV : replace_socket(disk, (uint32_t)place, &error);
		if (rc == -ECANCELED) {
			return false;
		}
		if (rc == -ENODEV) {
			eventfd_write(disk->device.ended_fd, 1);
			return false;
		}
		if (rc == 0) {
			attempts = 0;
			continue;
		}
		if (rc == -ESTALE) {
			log_refusal(disk, &error);
		}
		health_set(&disk->device.health, false, error.text);
		if (has_excluded_us(disk, &error, ++attempts)) {
			fail_excluded(disk, error.text);
			return false;
		}
		if (leave_host(disk, rc) && !pause_attempts(disk)) {
			return false;
		}
	}
	log_info("%s: reconnected after %.1f s", disk->device.path,
		(double)(clock_now_ns() - disk->dead_since_ns) / 1e9);
	disk->dead_since_ns = 0;
	memset(disk->told, 0, sizeof(disk->told));
	health_set(&disk->device.health, true, NULL);
	return true;
}

static void *nbd_device_watch(void *argument)
{
	struct nbd_disk *disk = argument;
	struct error error;
	bool go_on = true;

	/* The watcher uses a further connection, which other servers might not accept. Only
	 * gmblock's server reports size changes; can_take_over shows that it is one. */
	if (disk->facts.can_take_over &&
		remote_watch(&disk->size, disk->options, &disk->device, &error) != 0) {
		log_info("%s: the disk will not grow with the export: %s", disk->device.path,
			error.text);
	}
	while (go_on) {
		bool was_stopped = drop_after_stop(disk);

		go_on = dead_place(disk) >= 0 ||
			watch_once(disk, lease_watch_poll_ms(&disk->hosts.watch));
		if (go_on && dead_place(disk) >= 0) {
			/* After a stop, the home is asked first: only it can confirm the lease. */
			if (!was_stopped && !has_living(disk)) {
				(void)nbd_hosts_move(&disk->hosts); /* the home has failed */
			}
			go_on = reconnect(disk);
		}
	}
	if (disk->size.queue != NULL) {
		(void)!remote_close(&disk->size, true, NULL);
	}
	return NULL;
}

/* --- starting ------------------------------------------------------------------------------ */

static int nbd_device_check_blocks(struct nbd_disk *disk, struct error *error)
{
	int rc = device_fit(&disk->device, disk->facts.size, disk->facts.sizes.minimum, error);

	if (rc != 0) {
		return rc;
	}
	disk->kernel.block_bytes = disk->device.block_bytes;
	disk->kernel.bytes = disk->device.bytes;
	disk->kernel.server_flags = nbd_kernel_flags(disk->facts.flags);
	disk->kernel.payload_max = disk->facts.sizes.payload_max;
	nbd_hosts_limit(&disk->hosts, &disk->kernel);
	if (disk->options->read_only) {
		disk->kernel.server_flags |= NBD_FLAG_READ_ONLY;
	}
	disk->device.read_only = (disk->kernel.server_flags & NBD_FLAG_READ_ONLY) != 0;
	return 0;
}

static uint32_t sockets_wanted(const struct nbd_disk *disk)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if ((disk->facts.flags & NBD_FLAG_CAN_MULTI_CONN) == 0) {
		if (disk->options->connections > 1) {
			log_warning("using one connection: the server does not guarantee that "
				    "several connections see the same data");
		}
		return 1;
	}
	if (disk->options->connections != 0) {
		return disk->options->connections;
	}
	return cpus < 1 ? 1 : (uint32_t)MIN(cpus, (long)SOCKETS_CHOSEN_MAX);
}

/* Dials the first connection, at the first host that answers. */
static int dial_first(struct nbd_disk *disk, uint64_t deadline_ns,
	struct nbd_connection *connection, struct nbd_facts *facts, struct error *error)
{
	struct error failures = { 0 };
	int rc;

	do {
		uint64_t now_ns = MIN(clock_now_ns(), deadline_ns);

		rc = dial(disk,
			now_ns + (deadline_ns - now_ns) / (disk->hosts.count - disk->hosts.next),
			-1, connection, facts, error);
		if (rc == 0 || has_excluded_us(disk, error, 0)) {
			return rc;
		}
		error_join(&failures, error);
	} while (nbd_hosts_move(&disk->hosts));
	*error = failures;
	return rc;
}

static int dial_all(struct nbd_disk *disk, struct error *error)
{
	uint64_t deadline_ns = clock_now_ns() + disk->options->connect_timeout_ns;
	uint32_t wanted = 1;
	int rc = 0;

	while (rc == 0 && disk->socket_count < wanted) {
		struct nbd_connection connection;
		struct nbd_facts facts;

		rc = disk->socket_count == 0
			     ? dial_first(disk, deadline_ns, &connection, &facts, error)
			     : dial(disk, deadline_ns, -1, &connection, &facts, error);
		if (rc != 0) {
			break;
		}
		keep_connection(disk, disk->socket_count, &connection);
		if (disk->socket_count++ == 0) {
			nbd_hosts_settle(&disk->hosts, &connection.started, &disk->device);
			disk->facts = facts;
			wanted = sockets_wanted(disk);
		} else {
			rc = nbd_hosts_check(
				&disk->hosts, &disk->facts, &facts, disk->facts.flags, error);
		}
	}
	return rc;
}

static int connect_device(struct nbd_disk *disk, struct error *error)
{
	int rc;

	/* The driver has one limit for all requests, and repeats a lost request after it. */
	disk->kernel.timeout_s = nbd_device_seconds(attach_slow_ns(
		disk->options, disk->hosts.count > 1 ? HOSTS_SLOW_NS : ATTACH_SLOW_NS));
	disk->kernel.dead_timeout_s = nbd_device_seconds(disk->options->reconnect_timeout_ns);
	disk->kernel.backend = disk->options->uri;
	disk->kernel.index = disk->options->number;
	rc = nbd_kernel_connect(&disk->orders, &disk->kernel, disk->sockets, disk->socket_count);
	if (rc != 0) {
		return nbd_kernel_explain_connect(rc, disk->options->number, error);
	}
	disk->connected = true;
	disk->device.number = disk->kernel.index;
	snprintf(disk->device.name, sizeof(disk->device.name), "nbd%d", disk->kernel.index);
	snprintf(disk->device.path, sizeof(disk->device.path), "/dev/nbd%d", disk->kernel.index);
	return 0;
}

static int start_watching(struct nbd_disk *disk, struct error *error)
{
	int rc = thread_start(&disk->thread, nbd_device_watch, disk, error);

	disk->watching = rc == 0;
	return rc;
}

/* Prepares everything that is possible before the device exists, so that no notification is
 * missed. */
static int nbd_device_prepare(struct nbd_disk *disk, struct error *error)
{
	int rc = nbd_dialer_init(&disk->dialer, disk->options, &disk->hosts, error)
			 ?: nbd_kernel_open(&disk->orders, error);

	if (rc == 0) {
		rc = nbd_kernel_listen(&disk->news);
		if (rc != 0) {
			error_set(error, rc, "cannot receive events from the nbd driver: %s",
				strerror(-rc));
		}
	}
	return rc;
}

static void nbd_device_disk_free(struct nbd_disk *disk)
{
	for (uint32_t i = 0; i < disk->socket_count; i++) {
		nbd_relay_leave(disk->relays[i]);
	}
	for (uint32_t i = 0; i < disk->socket_count; i++) {
		if (disk->sockets[i] >= 0) {
			close(disk->sockets[i]);
		}
		nbd_relay_end(disk->relays[i]);
	}
	nbd_dialer_fini(&disk->dialer);
	nbd_kernel_close(&disk->orders);
	nbd_kernel_close(&disk->news);
	if (disk->stop_fd >= 0) {
		close(disk->stop_fd);
	}
	device_fini(&disk->device);
	free(disk);
}

static struct nbd_disk *nbd_device_disk_allocate(const struct attach_options *options)
{
	struct nbd_disk *disk = calloc(1, sizeof(*disk));
	int rc;

	if (disk == NULL) {
		return NULL;
	}
	rc = device_init(&disk->device, &nbd_device_ops, NULL);
	disk->options = options;
	disk->pause_ms = PAUSE_MS_MIN;
	disk->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (rc != 0 || disk->stop_fd < 0) {
		nbd_device_disk_free(disk);
		return NULL;
	}
	return disk;
}

int nbd_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error)
{
	struct nbd_disk *disk = nbd_device_disk_allocate(options);
	int rc;

	if (disk == NULL) {
		return error_oom(error);
	}
	rc = nbd_device_prepare(disk, error);
	if (rc == 0) {
		timings_mark(options->timings, TIMINGS_DRIVER);
		rc = dial_all(disk, error);
		timings_mark(options->timings, TIMINGS_CONNECT);
	}
	rc = rc ?: nbd_device_check_blocks(disk, error);
	if (rc == 0) {
		rc = connect_device(disk, error);
		timings_mark(options->timings, TIMINGS_DISK);
	}
	if (rc == 0) {
		nbd_kernel_limit_requests(&disk->kernel);
		timings_mark(options->timings, TIMINGS_LIMITS);
		rc = start_watching(disk, error);
		timings_mark(options->timings, TIMINGS_WATCH);
		if (rc != 0) {
			(void)!nbd_kernel_disconnect(&disk->orders, disk->kernel.index);
		}
	}
	for (uint32_t i = 0; rc != 0 && !disk->connected && i < disk->socket_count; i++) {
		nbd_connection_leave(disk->sockets[i]);
	}
	if (rc != 0) {
		nbd_device_disk_free(disk);
		return rc;
	}
	*device_out = &disk->device;
	return 0;
}

/* --- stopping ------------------------------------------------------------------------------ */

/* Waits until the driver has disconnected the device, which it does in the background. The device
 * can then be reused. */
static void wait_disconnected(struct netlink *netlink, int32_t index)
{
	struct timespec pause = { .tv_nsec = 2000000 };

	for (int i = 0; i < 2500 && nbd_kernel_status(netlink, index) > 0; i++) {
		nanosleep(&pause, NULL);
	}
}

static int disconnect(struct netlink *netlink, int32_t index, bool force, struct error *error)
{
	int rc = nbd_kernel_disconnect(netlink, index);

	if (rc != 0) {
		return error_set(
			error, rc, "cannot disconnect /dev/nbd%d: %s", (int)index, strerror(-rc));
	}
	if (!force) {
		wait_disconnected(netlink, index);
	}
	return 0;
}

/* Flushes the device. timeout_ms: -1 for no limit. A forced detach sets a limit, because the server
 * may be going away. */
static int flush_device(const char *path, int timeout_ms, struct error *error)
{
	struct disk_flush *flush;
	int rc = disk_flush_begin(path, NULL, &flush, error);
	struct pollfd over = { .events = POLLIN };

	if (rc != 0) {
		return rc;
	}
	over.fd = disk_flush_fd(flush);
	while ((rc = poll(&over, 1, timeout_ms)) < 0) {
		GMB_ASSERT(errno == EINTR);
	}
	if (rc > 0) {
		return disk_flush_end(flush, error);
	}
	/* Stops waiting for the flush. The flush ends when the device is disconnected. */
	disk_flush_leave(flush);
	return error_set(error, -ETIMEDOUT,
		"%s is detached, but the server did not complete the last flush: writes since the "
		"previous flush may be lost",
		path);
}

/* Flushes and disconnects the device. Without force, a device in use is not changed. */
static int nbd_device_stop(struct device *device, bool force, struct error *error)
{
	struct nbd_disk *disk = nbd_device_disk_of(device);
	int lost = 0;
	int rc;

	if (!force) {
		rc = usage_check_disk(device->name, error);
		if (rc != 0) {
			return rc;
		}
	}
	/* The watcher still runs, because it might have to reconnect before the server can be
	 * flushed. */
	if (!device->read_only && !force) {
		lost = flush_device(device->path, -1, error);
	} else if (!device->read_only && health_is_connected(&device->health)) {
		lost = flush_device(device->path, FORCED_MS_MAX, error);
	}
	/* Ends the watcher first, because it would mistake the disconnection for a lost
	 * connection. */
	eventfd_write(disk->stop_fd, 1);
	pthread_join(disk->thread, NULL);
	disk->watching = false;
	if (atomic_load(&disk->hurried)) {
		wait_disconnected(&disk->orders, disk->kernel.index);
		rc = 0;
	} else {
		rc = disconnect(&disk->orders, disk->kernel.index, force, error);
	}
	disk->connected = false;
	return rc != 0 ? rc : lost;
}

/* Disconnects the device, so that the driver fails the flush that keeps stop() waiting. */
static void nbd_device_hurry(struct device *device)
{
	struct nbd_disk *disk = nbd_device_disk_of(device);
	struct error error = { 0 };
	/* a separate connection, because stop() might be using disk->orders */
	struct netlink netlink;
	int rc;

	/* Stored before the disconnection, which ends the flush in stop(). stop() then only waits
	 * for the disconnection instead of starting a second one. */
	atomic_store(&disk->hurried, true);
	eventfd_write(disk->stop_fd, 1);
	rc = nbd_kernel_open(&netlink, &error);
	if (rc == 0) {
		rc = disconnect(&netlink, disk->kernel.index, true, &error);
		nbd_kernel_close(&netlink);
	}
	if (rc != 0) {
		log_error("%s", error.text);
	}
}

static int nbd_device_grow(struct device *device, uint64_t bytes, struct error *error)
{
	struct nbd_disk *disk = nbd_device_disk_of(device);
	struct netlink netlink; /* a separate connection, because the watcher uses disk->orders */
	int rc = nbd_kernel_open(&netlink, error);

	if (rc != 0) {
		return rc;
	}
	rc = nbd_kernel_resize(&netlink, &disk->kernel, bytes);
	nbd_kernel_close(&netlink);
	if (rc != 0) {
		return error_set(error, rc, "the nbd driver rejects the size: %s", strerror(-rc));
	}
	nbd_kernel_limit_requests(&disk->kernel);
	return 0;
}

static void nbd_device_destroy(struct device *device)
{
	struct nbd_disk *disk = nbd_device_disk_of(device);

	if (disk->watching) {
		eventfd_write(disk->stop_fd, 1);
		pthread_join(disk->thread, NULL);
	}
	nbd_device_disk_free(disk);
}

/* Removes a device whose daemon has died; without force, flushes it first. The kernel's connections
 * still work without the daemon until they are lost. */
static int remove_left(struct netlink *netlink, int32_t number, bool force, struct error *error)
{
	char name[32];
	char path[40];
	int lost = 0;
	int rc;

	if (!force) {
		snprintf(name, sizeof(name), "nbd%d", (int)number);
		snprintf(path, sizeof(path), "/dev/%s", name);
		rc = usage_check_disk(name, error);
		if (rc != 0) {
			return rc;
		}
		lost = flush_device(path, -1, error);
	}
	rc = disconnect(netlink, number, force, error);
	return rc != 0 ? rc : lost;
}

int nbd_device_remove(int32_t number, bool force, struct error *error)
{
	struct netlink netlink;
	int rc = nbd_kernel_open(&netlink, error);

	if (rc == -ENOSYS) {
		return 0; /* without the driver there is no device */
	}
	if (rc == 0) {
		rc = nbd_kernel_status(&netlink, number) > 0
			     ? remove_left(&netlink, number, force, error)
			     : 0;
		nbd_kernel_close(&netlink);
	}
	return rc;
}

static const struct device_ops nbd_device_ops = {
	.kind = "nbd",
	.check = usage_check_path,
	.stop = nbd_device_stop,
	.hurry = nbd_device_hurry,
	.grow = nbd_device_grow,
	.destroy = nbd_device_destroy,
};
