// SPDX-License-Identifier: Apache-2.0
/*
 * The servers of a URI that names several hosts. All connections use one server. If the client has
 * no connection left, it tries the hosts in turn, and continues with the first one that has the
 * same disk; docs/design/0006-reconnect.md.
 */
#include "client/client_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define NS_PER_MS UINT64_C(1000000)

/* Limit for the connection to one of several hosts, which may be switched off. It suffices for one
 * packet that was lost. */
enum { HOST_CONNECT_MS = 2000 };
/* Least time limit of an attempt to connect, also if the client gives up sooner. */
enum { ATTEMPT_MS_MIN = 1000 };

bool hosts_init(struct gmb_client *client)
{
	if (client->target->host_count == 1) {
		return true;
	}
	/* A client that does not reconnect never goes to another server. */
	if (client->options.lease != GMB_LEASE_NONE &&
		(client->options.flags & GMB_OPEN_NO_RECONNECT) == 0) {
		const struct lease_watch_times times = {
			.lease_ms = client->options.lease_ms,
			.request_ms = client->options.request_timeout_ms,
			.connect_ms = client->options.connect_timeout_ms,
		};

		lease_watch_init(&client->watch, &times);
	}
	client->host_failures = calloc(client->target->host_count, sizeof(*client->host_failures));
	return client->host_failures != NULL;
}

static bool has_several(const struct gmb_client *client)
{
	return client->target->host_count > 1;
}

const char *hosts_label(const struct gmb_client *client, uint32_t host)
{
	return client->target->labels[host];
}

const char *gmb_server(const struct gmb_client *client)
{
	return hosts_label(client, client->home);
}

/* Returns the time limit of an attempt to connect. In an outage it ends when the client gives up,
 * because the client checks reconnect_timeout only after an attempt. */
static uint64_t attempt_ns(const struct gmb_client *client)
{
	uint64_t connect_ns = client->options.connect_timeout_ms * NS_PER_MS;
	uint64_t end_ns = client->lost_ns + client->options.reconnect_timeout_ms * NS_PER_MS;
	uint64_t now_ns = ring_now_ns(client->queue->ring);
	uint64_t left_ns = MAX(end_ns, now_ns + ATTEMPT_MS_MIN * NS_PER_MS) - now_ns;

	return client->lost_ns == 0 ? connect_ns : MIN(connect_ns, left_ns);
}

void hosts_prepare(const struct gmb_client *client, struct carrier_start *start)
{
	start->host = client->host;
	start->timeout_ns = attempt_ns(client);
	start->connect_ns = has_several(client)
				    ? MIN(start->timeout_ns, HOST_CONNECT_MS * NS_PER_MS)
				    : start->timeout_ns;
}

/* --- choosing a server ------------------------------------------------------------------------ */

/* Ends the usable connections to a server. They are dead as well, but without traffic a connection
 * does not detect this, and the client could not leave the server. */
static void hosts_leave(struct gmb_client *client, uint32_t host, int err, const char *why)
{
	struct error error;

	error_set(&error, err, "%s", why);
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		struct connection *connection = client->connections[i];

		if (connection != NULL && connection->host == host &&
			connection->state == CONNECTION_READY) {
			connection_lose(connection, &error);
		}
	}
}

/* --- leases ----------------------------------------------------------------------------------- */

/* Servers do not know each other's leases. Until the time of the lease is over, no other client can
 * have got it at the old server but by force. The new server knows its own. */
bool hosts_renews_lease(const struct gmb_client *client, const struct connection *connection)
{
	return client->has_lease && (connection->host == client->home ||
					    lease_watch_is_over(&client->watch,
						    client->lost_ns != 0, &connection->started));
}

void hosts_start(struct connection *connection)
{
	struct gmb_client *client = connection->client;

	if (client->watch.interval_ns != 0) {
		connection->started =
			lease_watch_moment(&client->watch, ring_now_ns(client->queue->ring));
	}
}

uint64_t hosts_watch(struct gmb_client *client, uint64_t now_ns)
{
	uint64_t interval_ns = client->watch.interval_ns;

	if (!lease_watch_check(&client->watch, now_ns)) {
		/* Only the home can confirm the lease, and it is probably healthy. */
		client->host = client->home;
		hosts_leave(client, client->home, -EAGAIN, LEASE_WATCH_STOPPED);
	}
	return interval_ns != 0 ? now_ns + interval_ns : UINT64_MAX;
}

void hosts_doubt(struct gmb_client *client)
{
	client->lost_ns = ring_now_ns(client->queue->ring);
	lease_watch_doubt(&client->watch);
}

/* Checks the time when another server than the home has accepted the lease. Its answer can have
 * come so late, for example because the client was paused, that the home has given the lease to
 * another client. This is final, and the client returns the lease. A renewed lease is refused, but
 * not for good, and is not returned: either the server knows the client from an attempt whose
 * answer was lost, or it is the home under another address, and the client can continue at the
 * home. */
static int check_lease(
	struct gmb_client *client, struct connection *connection, struct error *error)
{
	struct lease_moment now;

	if (client->watch.interval_ns == 0) {
		return 0;
	}
	now = lease_watch_moment(&client->watch, ring_now_ns(client->queue->ring));
	if (!lease_watch_is_over(&client->watch, client->lost_ns != 0, &now)) {
		return 0;
	}
	if (connection->renews_lease) {
		return error_set(error, -ESTALE, LEASE_WATCH_ELSEWHERE);
	}
	if (client->lost_ns == 0) {
		hosts_doubt(client); /* gives up even if connections are left */
	}
	connection->returns_lease = true;
	return error_set(error, -EACCES, EXPORT_URI_LEASE_TEXT LEASE_WATCH_LATE);
}

/* --- what failures say ------------------------------------------------------------------------ */

bool hosts_is_unreachable(int result)
{
	return result == -ECONNREFUSED || result == -EHOSTUNREACH || result == -EHOSTDOWN ||
	       result == -ENETUNREACH || result == -ETIMEDOUT;
}

/* Notes what the end of a connection says about its server. */
static void hosts_note(struct gmb_client *client, const struct connection *connection)
{
	int result = connection->reason.code;

	client->host_failures[connection->host] = connection->reason;
	if (!connection->was_ready) {
		client->hosts_tried |= BIT(connection->host);
		client->is_searching |=
			connection->host == client->home && hosts_is_unreachable(result);
	} else if (result == -ETIMEDOUT) {
		hosts_leave(client, connection->host, -ECONNRESET,
			"another connection to this server did not respond in time");
	}
}

void hosts_lost(struct gmb_client *client, const struct connection *connection)
{
	/* EAGAIN: the client has ended the connection, and the host is not to blame. */
	if (!has_several(client) || connection->reason.code == -EAGAIN) {
		return;
	}
	hosts_note(client, connection);
	/* Connections that were lost together change the host once. */
	if (client->state == CLIENT_OPEN && connection->host == client->host &&
		(client->is_searching || client_ready_count(client) == 0)) {
		client->host = (client->host + 1) % client->target->host_count;
	}
}

bool hosts_open_next(struct gmb_client *client)
{
	if (client->host + 1 == client->target->host_count || client_exclusion(client) != NULL) {
		return false;
	}
	client->host++;
	return true;
}

const struct error *hosts_fence(const struct gmb_client *client)
{
	bool is_last = client->hosts_tried == BIT(client->target->host_count) - 1 &&
		       client_ready_count(client) == 0;

	if (!has_several(client)) {
		return client_is_fenced(&client->trouble) ? &client->trouble : NULL;
	}
	for (uint32_t i = 0; client->state == CLIENT_OPEN && i < client->target->host_count; i++) {
		if (client_is_fenced(&client->host_failures[i]) && (is_last || i == client->home)) {
			return &client->host_failures[i];
		}
	}
	return NULL;
}

bool hosts_refuse(const struct gmb_client *client)
{
	if (!has_several(client) || client_ready_count(client) > 0) {
		return false;
	}
	for (uint32_t i = 0; i < client->target->host_count; i++) {
		const struct error *failure = &client->host_failures[i];
		int code = failure->text[0] != '\0' ? failure->code : 0;

		if (code != -ENOENT && code != -ESTALE && code != -EPROTO) {
			return false;
		}
	}
	return true;
}

void hosts_explain(const struct gmb_client *client, struct error *error)
{
	const struct error *exclusion = client_exclusion(client);
	struct error failures = { 0 };

	for (uint32_t i = 0; has_several(client) && i < client->target->host_count; i++) {
		if (client->host_failures[i].text[0] != '\0') {
			error_join(&failures, &client->host_failures[i]);
		}
	}
	*error = exclusion != NULL	    ? *exclusion
		 : failures.text[0] != '\0' ? failures
					    : client->trouble;
}

void hosts_name(const struct gmb_client *client, char *out, size_t bytes)
{
	bool several = has_several(client);

	snprintf(out, bytes, "%s%s%s%s", client->uri_text, several ? " (now at " : "",
		several ? gmb_server(client) : "", several ? ")" : "");
}

uint32_t hosts_attempts(const struct gmb_client *client, uint32_t attempts)
{
	return attempts / client->target->host_count;
}

/* --- the same disk ---------------------------------------------------------------------------- */

static int hosts_check_disk(const struct gmb_client *client, const struct connection *connection,
	const struct carrier_facts *facts, struct error *error)
{
	const struct carrier_facts *known = &client->facts;
	const struct export_uri_disk home = { known->disk, hosts_label(client, client->home) };
	const struct export_uri_disk here = { facts->disk, hosts_label(client, connection->host) };
	int err = export_uri_check_disk(&home, &here, facts->name, error);

	if (err != 0) {
		return err;
	}
	if (facts->bytes < known->bytes) {
		return error_set(error, -ESTALE,
			"cannot continue here: the disk has %llu bytes at %s, but %llu bytes at %s",
			(unsigned long long)facts->bytes, here.label,
			(unsigned long long)known->bytes, home.label);
	}
	return 0;
}

/* Checks a connection to another server while the server in use accepts no connections. If the
 * other server has the disk, the client moves there. */
static int hosts_check_move(struct gmb_client *client, struct connection *connection,
	const struct carrier_facts *facts, struct error *error)
{
	int err = 0;

	if (!client->is_searching) {
		return error_set(
			error, -EAGAIN, "the other connections use %s", gmb_server(client));
	}
	err = hosts_check_disk(client, connection, facts, error);
	err = err ?: client_check_able(client, facts, error);
	if (err == 0 && client_has_forgotten(client, facts)) {
		return error_set(error, -ESTALE,
			"cannot continue here: %s has another epoch of the disk than %s, and "
			"changes were not flushed",
			hosts_label(client, connection->host), gmb_server(client));
	}
	err = err ?: check_lease(client, connection, error);
	if (err == 0) {
		hosts_leave(client, client->home, -ECONNRESET,
			"this server does not accept connections any more, and another one has the "
			"disk");
	}
	return err;
}

int hosts_check(struct gmb_client *client, struct connection *connection,
	const struct carrier_facts *facts, struct error *error)
{
	int err = 0;

	if (client->state == CLIENT_OPENING || connection->host == client->home) {
		return 0;
	}
	err = client_ready_count(client) > 1 ? hosts_check_move(client, connection, facts, error)
					     : hosts_check_disk(client, connection, facts, error)
						       ?: check_lease(client, connection, error);
	if (err != 0) {
		connection->was_ready = false; /* a failed attempt, and not a loss */
	}
	return err;
}

void hosts_settle(struct gmb_client *client, const struct connection *connection)
{
	struct error error;

	client->hosts_silent = 0;
	if (!has_several(client)) {
		return;
	}
	client->home = connection->host;
	client->host = connection->host;
	lease_watch_accept(&client->watch, &connection->started);
	client->is_searching = false;
	client->hosts_tried = 0;
	for (uint32_t i = 0; i < client->target->host_count; i++) {
		client->host_failures[i].text[0] = '\0';
	}
	error_set(&error, -EAGAIN, "the other connections use %s", gmb_server(client));
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		struct connection *other = client->connections[i];

		if (other != NULL && other->host != client->home &&
			other->state == CONNECTION_STARTING) {
			connection_lose(other, &error);
		}
	}
}
