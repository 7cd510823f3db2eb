// SPDX-License-Identifier: Apache-2.0
/*
 * Strangers that make a server do handshakes, for bench/tls.
 *
 *   tls_flood PORT RATE SECONDS hello              leave after the server's flight; the ClientHello
 *                                                  is made once
 *   tls_flood PORT RATE SECONDS psk NAME KEY       do the whole handshake; KEY in hexadecimal
 *
 * The server is on 127.0.0.1; strangers come from many addresses of 127.1.0.0/16, RATE of them a
 * second in all. One that is not served within PATIENCE_MS goes. Prints one JSON object: how many
 * came (offered), got the server's flight or finished (served), and were closed by the server or
 * went (shed). Threading: one thread for each of STRANGERS at a time. Errors: exit status 1.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "control.h"

enum {
	STRANGERS = 64,
	ADDRESSES = 1000,
	PATIENCE_MS = 100,
	HELLO_BYTES_MAX = 4096,
	GREETING_BYTES = 18,
	REPLY_BYTES = 20,
};

static struct {
	in_port_t port;
	double rate;
	double end_s;
	uint8_t hello[HELLO_BYTES_MAX]; /* prepared */
	size_t hello_bytes;
	gnutls_psk_client_credentials_t psk; /* or NULL */
	_Atomic uint64_t offered;
	_Atomic uint64_t served;
} flood;

static const char psk_priority[] =
	"NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:-CIPHER-ALL:+AES-128-GCM";

static _Noreturn void fail(const char *what, int code)
{
	fprintf(stderr, "tls_flood: %s: %s\n", what, gnutls_strerror(code));
	exit(1);
}

/* A connection from one of many addresses, or -1. */
static int come(uint64_t number)
{
	const struct timeval patience = { .tv_usec = PATIENCE_MS * 1000 };
	uint32_t place = (uint32_t)(number % ADDRESSES);
	struct sockaddr_in from = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(0x7f010001U + ((place / 250) << 8) + place % 250) };
	struct sockaddr_in to = { .sin_family = AF_INET,
		.sin_port = flood.port,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 &&
		(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0 ||
			setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) < 0 ||
			bind(fd, (const struct sockaddr *)&from, sizeof(from)) < 0 ||
			connect(fd, (const struct sockaddr *)&to, sizeof(to)) < 0)) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool receive(int fd, void *out, size_t bytes)
{
	return recv(fd, out, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static bool send_all(int fd, const void *bytes, size_t count)
{
	return send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count;
}

/* Up to the server's acknowledgement of STARTTLS (option 5). */
static bool start_tls(int fd)
{
	static const uint8_t asks[] = { 0, 0, 0, 3, 'I', 'H', 'A', 'V', 'E', 'O', 'P', 'T', 0, 0, 0,
		5, 0, 0, 0, 0 };
	uint8_t greeting[GREETING_BYTES];
	uint8_t reply[REPLY_BYTES];

	return receive(fd, greeting, sizeof(greeting)) && send_all(fd, asks, sizeof(asks)) &&
	       receive(fd, reply, sizeof(reply)) && reply[12] == 0 && reply[15] == 1;
}

static bool shake_hands(int fd)
{
	gnutls_session_t session;
	int rc = gnutls_init(&session, GNUTLS_CLIENT | GNUTLS_NO_SIGNAL);

	if (rc < 0) {
		return false;
	}
	gnutls_priority_set_direct(session, psk_priority, NULL);
	gnutls_credentials_set(session, GNUTLS_CRD_PSK, flood.psk);
	gnutls_handshake_set_timeout(session, PATIENCE_MS);
	gnutls_transport_set_int(session, fd);
	do {
		rc = gnutls_handshake(session);
	} while (rc < 0 && gnutls_error_is_fatal(rc) == 0 && rc != GNUTLS_E_AGAIN);
	gnutls_deinit(session);
	return rc == 0;
}

static bool be_served(int fd)
{
	uint8_t flight[16384];

	if (!start_tls(fd)) {
		return false;
	}
	if (flood.psk != NULL) {
		return shake_hands(fd);
	}
	return send_all(fd, flood.hello, flood.hello_bytes) &&
	       recv(fd, flight, sizeof(flight), 0) > 0 && flight[0] == 22;
}

static void *run(void *context)
{
	uint64_t number = (uint64_t)(uintptr_t)context;
	const double step = STRANGERS / flood.rate;
	double next = control_now_s() + step * (double)number / STRANGERS;

	for (; next < flood.end_s; number += STRANGERS, next += step) {
		double wait = next - control_now_s();
		int fd;

		if (wait > 0) {
			const struct timespec pause = { .tv_sec = (time_t)wait,
				.tv_nsec = (long)((wait - (double)(time_t)wait) * 1e9) };

			nanosleep(&pause, NULL);
		}
		fd = come(number);
		if (fd < 0) {
			continue;
		}
		atomic_fetch_add_explicit(&flood.offered, 1, memory_order_relaxed);
		if (be_served(fd)) {
			atomic_fetch_add_explicit(&flood.served, 1, memory_order_relaxed);
		}
		close(fd);
	}
	return NULL;
}

/* --- what is made once ----------------------------------------------------------------------- */

static ssize_t keep(gnutls_transport_ptr_t unused, const void *bytes, size_t count)
{
	(void)unused;
	if (count > sizeof(flood.hello) - flood.hello_bytes) {
		return -1;
	}
	memcpy(flood.hello + flood.hello_bytes, bytes, count);
	flood.hello_bytes += count;
	return (ssize_t)count;
}

static void make_hello(void)
{
	gnutls_certificate_credentials_t credentials;
	gnutls_session_t session;
	int rc = gnutls_init(&session, GNUTLS_CLIENT | GNUTLS_NONBLOCK);

	if (rc < 0 || (rc = gnutls_certificate_allocate_credentials(&credentials)) < 0 ||
		(rc = gnutls_set_default_priority(session)) < 0 ||
		(rc = gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials)) < 0) {
		fail("no ClientHello", rc);
	}
	gnutls_transport_set_push_function(session, keep);
	gnutls_transport_set_int(session, -1); /* nothing comes */
	(void)gnutls_handshake(session);
	gnutls_deinit(session);
	gnutls_certificate_free_credentials(credentials);
	if (flood.hello_bytes == 0) {
		fail("no ClientHello", GNUTLS_E_INTERNAL_ERROR);
	}
}

static void take_key(const char *name, const char *key)
{
	gnutls_datum_t datum = { (unsigned char *)(uintptr_t)key, (unsigned int)strlen(key) };
	int rc = gnutls_psk_allocate_client_credentials(&flood.psk);

	if (rc < 0 || (rc = gnutls_psk_set_client_credentials(
			       flood.psk, name, &datum, GNUTLS_PSK_KEY_HEX)) < 0) {
		fail("the key cannot be used", rc);
	}
}

int main(int argc, char **argv)
{
	bool whole = argc == 7 && strcmp(argv[4], "psk") == 0;
	pthread_t threads[STRANGERS];
	double begin;
	double seconds;

	if (!whole && (argc != 5 || strcmp(argv[4], "hello") != 0)) {
		fprintf(stderr, "Usage: tls_flood PORT RATE SECONDS hello|psk [NAME KEY]\n");
		return 2;
	}
	flood.port = htons((in_port_t)strtoul(argv[1], NULL, 10));
	flood.rate = strtod(argv[2], NULL);
	seconds = strtod(argv[3], NULL);
	if (!(flood.rate > 0) || !(seconds > 0)) {
		fprintf(stderr, "tls_flood: an argument is out of range\n");
		return 2;
	}
	if (whole) {
		take_key(argv[5], argv[6]);
	} else {
		make_hello();
	}
	begin = control_now_s();
	flood.end_s = begin + seconds;
	for (uintptr_t i = 0; i < STRANGERS; i++) {
		if (pthread_create(&threads[i], NULL, run, (void *)i) != 0) {
			fail("no thread", GNUTLS_E_MEMORY_ERROR);
		}
	}
	for (size_t i = 0; i < STRANGERS; i++) {
		pthread_join(threads[i], NULL);
	}
	seconds = control_now_s() - begin;
	printf("{\"offered\": %llu, \"served\": %llu, \"seconds\": %.3f}\n",
		(unsigned long long)flood.offered, (unsigned long long)flood.served, seconds);
	return 0;
}
