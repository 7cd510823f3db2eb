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
#include <string.h>

#define NS_PER_MS UINT64_C(1000000)

/* Limit for the connection to one of several hosts, which may be switched off. It suffices for one
 * packet that was lost. */
enum { HOST_CONNECT_MS = 2000 };

bool hosts_init(struct gmb_client *client)
{
	if (client->target->host_count > 1) {
		client->host_failures =
			calloc(client->target->host_count, sizeof(*client->host_failures));
	}
	return client->target->host_count == 1 || client->host_failures != NULL;
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

void hosts_prepare(const struct gmb_client *client, struct carrier_start *start)
{
	start->host = client->host;
	start->connect_ns = has_several(client)
				    ? MIN(start->timeout_ns, HOST_CONNECT_MS * NS_PER_MS)
				    : start->timeout_ns;
}

bool hosts_renews_lease(const struct gmb_client *client, const struct connection *connection)
{
	uint64_t lost_ns =
		client->lost_ns != 0 ? ring_now_ns(client->queue->ring) - client->lost_ns : 0;

	/* Servers do not know each other's leases. Until the time of the lease is over, no other
	 * client can have got it at the old server but by force. The new one knows its own. */
	return client->has_lease &&
	       (connection->host == client->home || lost_ns >= client->lease.ms * NS_PER_MS);
}

/* Ends the other connections to a server that has stopped responding. They are dead as well, but
 * without traffic a connection does not detect this, and the client could not leave the server. */
static void hosts_leave_silent(struct gmb_client *client, const struct connection *lost)
{
	struct error error;

	error_set(&error, -ECONNRESET, "another connection to this server did not respond in time");
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		struct connection *connection = client->connections[i];

		if (connection != NULL && connection->host == lost->host &&
			connection->state == CONNECTION_READY) {
			connection_lose(connection, &error);
		}
	}
}

void hosts_lost(struct gmb_client *client, const struct connection *connection)
{
	if (!has_several(client)) {
		return;
	}
	if (connection->reason.code != -EAGAIN) { /* the host was not to blame */
		client->host_failures[connection->host] = connection->reason;
	}
	if (connection->was_ready && connection->reason.code == -ETIMEDOUT) {
		hosts_leave_silent(client, connection);
	}
	/* Connections that were lost together change the host once. */
	if (client->state == CLIENT_OPEN && connection->host == client->host &&
		client_ready_count(client) == 0) {
		client->host = (client->host + 1) % client->target->host_count;
	}
}

bool hosts_open_next(struct gmb_client *client)
{
	if (client->host + 1 == client->target->host_count || client_is_excluded(client)) {
		return false;
	}
	client->host++;
	return true;
}

void hosts_explain(const struct gmb_client *client, struct error *error)
{
	struct error failures = { 0 };

	if (has_several(client) && !client_is_excluded(client)) {
		for (uint32_t i = 0; i < client->target->host_count; i++) {
			if (client->host_failures[i].text[0] != '\0') {
				error_join(&failures, &client->host_failures[i]);
			}
		}
	}
	*error = failures.text[0] != '\0' ? failures : client->trouble;
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

int hosts_check(struct gmb_client *client, struct connection *connection,
	const struct carrier_facts *facts, struct error *error)
{
	int err = 0;

	if (client->state == CLIENT_OPENING || connection->host == client->home) {
		return 0;
	}
	err = client_ready_count(client) > 1
		      ? error_set(
				error, -EAGAIN, "the other connections use %s", gmb_server(client))
		      : hosts_check_disk(client, connection, facts, error);
	if (err != 0) {
		connection->was_ready = false; /* a failed attempt, and not a loss */
	}
	return err;
}

void hosts_settle(struct gmb_client *client, const struct connection *connection)
{
	struct error error;

	if (!has_several(client)) {
		return;
	}
	client->home = connection->host;
	client->host = connection->host;
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
