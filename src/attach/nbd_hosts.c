// SPDX-License-Identifier: Apache-2.0
#include "attach/nbd_hosts.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define NS_PER_MS UINT64_C(1000000)
/* Limit for the connection to one of several hosts, as in client/hosts.c. */
#define HOST_CONNECT_NS UINT64_C(2000000000)
/* The driver repeats a request from its beginning after its time limit, so a longer discard might
 * never end. */
#define HOSTS_DISCARD_BYTES (UINT64_C(32) << 20)

void nbd_hosts_init(
	struct nbd_hosts *hosts, const struct export_uri *uri, const struct attach_options *options)
{
	hosts->count = export_uri_hosts(uri);
	for (uint32_t i = 0; i < hosts->count; i++) {
		hosts->at[i] = export_uri_at(uri, i);
	}
	if (hosts->count > 1 && options->lease.mode != LEASE_NONE) {
		const struct lease_watch_times times = { options->lease.ms,
			options->request_timeout_ns / NS_PER_MS,
			options->connect_timeout_ns / NS_PER_MS };

		lease_watch_init(&hosts->watch, &times);
	}
}

void nbd_hosts_prepare(
	const struct nbd_hosts *hosts, uint64_t deadline_ns, struct nbd_dial_options *dial)
{
	uint64_t now_ns = clock_now_ns();

	dial->uri = &hosts->at[hosts->next];
	dial->timeout_ns = now_ns < deadline_ns ? deadline_ns - now_ns : 1;
	dial->warns = !hosts->has_home;
	dial->connect_ns =
		hosts->count > 1 ? MIN(dial->timeout_ns, HOST_CONNECT_NS) : dial->timeout_ns;
}

bool nbd_hosts_move(struct nbd_hosts *hosts)
{
	hosts->next = (hosts->next + 1) % hosts->count;
	return hosts->next != 0;
}

bool nbd_hosts_is_gone(const struct nbd_hosts *hosts, int rc)
{
	static const int codes[] = { -ECONNREFUSED, -ECONNRESET, -EHOSTUNREACH, -ENETUNREACH,
		-ETIMEDOUT, -ESHUTDOWN };
	bool is_gone = false;

	for (size_t i = 0; i < ARRAY_COUNT(codes); i++) {
		is_gone |= rc == codes[i];
	}
	return is_gone && hosts->count > 1;
}

void nbd_hosts_limit(const struct nbd_hosts *hosts, struct nbd_kernel_device *kernel)
{
	if (hosts->count > 1) {
		kernel->server_flags &= (uint16_t)~NBD_FLAG_SEND_WRITE_ZEROES;
		kernel->discard_max = HOSTS_DISCARD_BYTES;
		kernel->is_new = true;
	}
}

bool nbd_hosts_renews_lease(
	const struct nbd_hosts *hosts, bool in_outage, const struct lease_moment *now)
{
	return hosts->next == hosts->home || lease_watch_is_over(&hosts->watch, in_outage, now);
}

int nbd_hosts_check_lease(const struct nbd_hosts *hosts, bool renewed, struct error *error)
{
	bool moves = hosts->has_home && hosts->next != hosts->home;
	char label[EXPORT_URI_LABEL_BYTES];
	struct lease_moment now;

	if (!moves || hosts->watch.interval_ns == 0) {
		return 0;
	}
	now = lease_watch_moment(&hosts->watch, clock_now_ns());
	/* A disk moves only in an outage. */
	if (!lease_watch_is_over(&hosts->watch, true, &now)) {
		return 0;
	}
	return renewed ? error_set(error, -ESTALE, "%s: " LEASE_WATCH_ELSEWHERE,
				 export_uri_label(label, &hosts->at[hosts->next]))
		       : error_set(error, -EACCES, EXPORT_URI_LEASE_TEXT LEASE_WATCH_LATE);
}

void nbd_hosts_settle(
	struct nbd_hosts *hosts, const struct lease_moment *started, struct device *device)
{
	char label[EXPORT_URI_LABEL_BYTES];

	hosts->home = hosts->next;
	hosts->has_home = true;
	lease_watch_accept(&hosts->watch, started);
	if (hosts->count > 1) {
		health_set_server(
			&device->health, export_uri_label(label, &hosts->at[hosts->home]));
	}
}

/* Checks that the next host has the same disk as the home. */
static int nbd_hosts_check_disk(const struct nbd_hosts *hosts, const struct nbd_facts *first,
	const struct nbd_facts *other, struct error *error)
{
	char home[EXPORT_URI_LABEL_BYTES];
	char next[EXPORT_URI_LABEL_BYTES];
	const struct export_uri_disk disks[] = {
		{ first->disk, export_uri_label(home, &hosts->at[hosts->home]) },
		{ other->disk, export_uri_label(next, &hosts->at[hosts->next]) },
	};

	return export_uri_check_disk(&disks[0], &disks[1], other->name, error);
}

int nbd_hosts_check(const struct nbd_hosts *hosts, const struct nbd_facts *first,
	const struct nbd_facts *other, uint16_t promised, struct error *error)
{
	int rc = hosts->next != hosts->home ? nbd_hosts_check_disk(hosts, first, other, error) : 0;

	if (rc != 0) {
		return rc;
	}
	if (other->size < first->size) {
		return error_set(error, -ESTALE,
			"the server now has a different disk, of %llu bytes instead of %llu (rule "
			"P137)",
			(unsigned long long)other->size, (unsigned long long)first->size);
	}
	if (other->epoch != first->epoch && (other->is_volatile || first->is_volatile)) {
		return error_set(error, -ESTALE,
			"the server has restarted, and this export was in memory only: written "
			"data is lost");
	}
	if (strcmp(other->name, first->name) != 0) {
		return error_set(error, -ESTALE, "the server has renamed the export to \"%s\"",
			quote(other->name));
	}
	/* promised contains NBD_FLAG_READ_ONLY even if only the user wants a read-only disk, so the
	 * first condition ignores this flag. The second one rejects a server that no longer permits
	 * writes. */
	if ((promised & ~other->flags & ~NBD_FLAG_READ_ONLY) != 0 ||
		((other->flags & ~first->flags) & NBD_FLAG_READ_ONLY) != 0) {
		return error_set(error, -ESTALE,
			"the server offers fewer features than before: flags 0x%x instead of 0x%x "
			"(rule P137)",
			other->flags, first->flags);
	}
	if (other->sizes.minimum > first->sizes.minimum) {
		return error_set(error, -ESTALE,
			"the server now requires blocks of %u bytes instead of %u",
			other->sizes.minimum, first->sizes.minimum);
	}
	return 0;
}
