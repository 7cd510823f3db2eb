// SPDX-License-Identifier: Apache-2.0
#include "attach/nbd_dialer.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "nbd/client/client.h"
#include "tls/kernel.h"

/* --- starting ------------------------------------------------------------------------------ */

static int make_token(struct nbd_dialer *dialer, struct error *error)
{
	uint64_t random[2];

	if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
		return error_set(error, -EIO, "cannot get random numbers from the system");
	}
	snprintf(dialer->token, sizeof(dialer->token), "%016llx%016llx",
		(unsigned long long)random[0], (unsigned long long)random[1]);
	return 0;
}

/* Prepares credentials. Over TCP the driver can get the socket itself, with TLS 1.2, because it
 * cannot process a key change, which TLS 1.3 permits at any time. */
static int prepare_tls(struct nbd_dialer *dialer, struct error *error)
{
	enum tls_records records = dialer->options->tls_records;
	bool is_possible = dialer->uri.host != NULL && tls_kernel_features()->ciphers[TLS_1_2] != 0;
	int rc = 0;

	if (records == TLS_RECORDS_KERNEL && !is_possible) {
		return error_set(error, -EOPNOTSUPP, "the nbd driver cannot use kernel TLS: %.400s",
			dialer->uri.host == NULL ? "the kernel does not support TLS on Unix sockets"
						 : tls_kernel_features()->why_not.text);
	}
	if (records != TLS_RECORDS_USER && is_possible) {
		rc = tls_client_create_for_driver(&dialer->uri, &dialer->tls_driver, error);
	}
	if (rc == 0 && records != TLS_RECORDS_KERNEL) {
		rc = tls_client_create(&dialer->uri, &dialer->tls, error);
	}
	return rc;
}

int nbd_dialer_init(struct nbd_dialer *dialer, const struct attach_options *options,
	struct nbd_hosts *hosts, struct error *error)
{
	int rc = export_uri_parse(options->uri, &dialer->uri, error);

	dialer->options = options;
	dialer->hosts = hosts;
	if (rc == 0 && strcmp(dialer->uri.protocol, "nbd") != 0) {
		rc = error_set(error, -EPROTONOSUPPORT,
			"the kernel's nbd driver does not support %s URIs; use ublk (kernel module "
			"ublk_drv) or --fuse FILE",
			dialer->uri.protocol);
	}
	if (rc == 0) {
		nbd_hosts_init(hosts, &dialer->uri, options);
	}
	if (rc == 0 && dialer->uri.tls) {
		rc = prepare_tls(dialer, error);
	}
	return rc ?: make_token(dialer, error);
}

void nbd_dialer_fini(struct nbd_dialer *dialer)
{
	tls_client_destroy(dialer->tls_driver);
	tls_client_destroy(dialer->tls);
	export_uri_fini(&dialer->uri);
}

/* --- connections --------------------------------------------------------------------------- */

/*
 * Sets TCP options that make the kernel detect a dead peer, on idle and on busy connections.
 * Without them it only takes longer, so errors are ignored.
 */
static void prepare_socket(int fd, const struct attach_options *options)
{
	uint64_t silence_ms_max = options->request_timeout_ns / 1000000;
	unsigned silence_ms = (unsigned)MIN(silence_ms_max, (uint64_t)INT32_MAX);
	const int interval_s = MAX((int)(silence_ms / 1000 / 4), 1);
	const int probes = 3;
	int flags = fcntl(fd, F_GETFL);

	/* SO_KEEPALIVE was set when the socket was connected. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &interval_s, sizeof(interval_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	(void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

void nbd_connection_leave(int fd)
{
	uint8_t bytes[NBD_CLIENT_FAREWELL_BYTES_MAX];
	size_t length = nbd_client_farewell(NBD_REPLIES_SIMPLE, bytes);

	/* If this fails, the server keeps the lease for a while. */
	(void)!send(fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void nbd_connection_close(const struct nbd_connection *connection)
{
	close(connection->fd);
	nbd_relay_end(connection->relay);
}

/* Dials a connection with TLS. The driver gets the socket if the kernel encrypts records, otherwise
 * one end of a relay. */
static int dial_tls(struct nbd_dialer *dialer, const struct nbd_dial_options *dial, int cancel_fd,
	struct nbd_connection *connection, struct nbd_handshake **answers, struct error *error)
{
	struct nbd_relay_options options = {
		.dial = *dial,
		.socket_options = dialer->options,
		.prepare = prepare_socket,
		.cancel_fd = cancel_fd,
	};
	int rc = -EPROTO;

	*answers = NULL;
	if (dialer->tls_driver != NULL) {
		options.dial.tls = dialer->tls_driver;
		options.hands_over = true;
		rc = nbd_relay_dial(&options, &connection->fd, &connection->relay, answers, error);
	}
	/* The handshake failed before credentials were used. The server may support only TLS 1.3,
	 * which the relay can use. */
	if ((rc == -EPROTO || rc == -EKEYREJECTED) && dialer->tls != NULL) {
		nbd_handshake_destroy(*answers);
		options.dial.tls = dialer->tls;
		options.hands_over = false;
		rc = nbd_relay_dial(&options, &connection->fd, &connection->relay, answers, error);
	}
	if (rc == 0 && connection->relay != NULL && dialer->tls == NULL) {
		nbd_connection_close(connection);
		rc = error_set(error, -EOPNOTSUPP,
			"the server chose a cipher that the kernel does not support");
	}
	return rc;
}

static void connection_name(
	const struct nbd_dialer *dialer, uint32_t number, char out[NBD_HANDSHAKE_TOKEN_BYTES_MAX])
{
	snprintf(out, NBD_HANDSHAKE_TOKEN_BYTES_MAX, "%s.%u", dialer->token, number);
}

int nbd_dialer_dial(struct nbd_dialer *dialer, const struct nbd_dial_order *order,
	struct nbd_connection *connection, struct nbd_facts *facts, struct error *error)
{
	char names[1 + NBD_HANDSHAKE_REPLACES_MAX][NBD_HANDSHAKE_TOKEN_BYTES_MAX];
	const char *replaces[NBD_HANDSHAKE_REPLACES_MAX];
	struct nbd_dial_options options = {
		.handshake = {
			.goal = NBD_GOAL_GO,
			.style_max = NBD_REPLIES_SIMPLE,
			.token = names[0],
			.replaces = replaces,
			.replaces_count = order->replaces_count,
		},
	};
	struct lease_want lease = dialer->options->lease;
	char lease_text[LEASE_WANT_BYTES];
	struct nbd_handshake *answers;
	int rc;

	*connection = (struct nbd_connection){
		.started = lease_watch_moment(&dialer->hosts->watch, clock_now_ns()),
		.fd = -1,
		.number = dialer->number_next++,
	};
	nbd_hosts_prepare(dialer->hosts, order->deadline_ns, &options);
	if (lease.mode != LEASE_NONE) {
		lease.renew = dialer->has_lease && nbd_hosts_renews_lease(dialer->hosts,
							   order->in_outage, &connection->started);
		lease.moves = dialer->has_lease && !lease.renew;
		options.handshake.lease = lease_want_format(lease_text, &lease);
	}
	connection_name(dialer, connection->number, names[0]);
	for (uint32_t i = 0; i < order->replaces_count; i++) {
		connection_name(dialer, order->replaces[i], names[1 + i]);
		replaces[i] = names[1 + i];
	}
	if (dialer->uri.tls) {
		rc = dial_tls(dialer, &options, order->cancel_fd, connection, &answers, error);
	} else {
		rc = nbd_dial_wait(&options, order->cancel_fd, &connection->fd, &answers, error);
		if (rc == 0) {
			prepare_socket(connection->fd, dialer->options);
		}
	}
	if (rc == 0) {
		*facts = *nbd_handshake_facts(answers);
		dialer->has_lease = true;
		connection->renews_lease = lease.renew;
	}
	nbd_handshake_destroy(answers);
	return rc;
}
