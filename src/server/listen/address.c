// SPDX-License-Identifier: Apache-2.0
#include "server/listen/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

/* The address of a listening TCP socket. */
struct bound {
	sa_family_t family;
	uint16_t port;
	struct in_addr ipv4;
	struct in6_addr ipv6;
	uint32_t scope;	 /* scope of a link-local IPv6 address */
	bool takes_ipv4; /* an IPv6 socket that also accepts IPv4 clients */
};

static bool place_from(const struct sockaddr *address, socklen_t address_bytes, struct bound *place)
{
	struct sockaddr_in ipv4;
	struct sockaddr_in6 ipv6;

	*place = (struct bound){ .family = address->sa_family };
	if (place->family == AF_INET && address_bytes >= sizeof(ipv4)) {
		memcpy(&ipv4, address, sizeof(ipv4));
		place->port = ntohs(ipv4.sin_port);
		place->ipv4 = ipv4.sin_addr;
		return true;
	}
	if (place->family == AF_INET6 && address_bytes >= sizeof(ipv6)) {
		memcpy(&ipv6, address, sizeof(ipv6));
		place->port = ntohs(ipv6.sin6_port);
		place->ipv6 = ipv6.sin6_addr;
		place->scope = ipv6.sin6_scope_id;
		return true;
	}
	return false;
}

static bool place_of_socket(int fd, struct bound *place)
{
	struct sockaddr_storage address;
	socklen_t bytes = sizeof(address);
	int only_ipv6 = 1;
	socklen_t option_bytes = sizeof(only_ipv6);

	if (getsockname(fd, (struct sockaddr *)&address, &bytes) < 0 ||
		!place_from((const struct sockaddr *)&address, bytes, place)) {
		return false;
	}
	place->takes_ipv4 =
		place->family == AF_INET6 &&
		getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_ipv6, &option_bytes) == 0 &&
		only_ipv6 == 0;
	return true;
}

static bool bound_is_wildcard(const struct bound *place)
{
	return place->family == AF_INET ? place->ipv4.s_addr == htonl(INADDR_ANY)
					: IN6_IS_ADDR_UNSPECIFIED(&place->ipv6);
}

static bool bound_is_loopback(const struct bound *place)
{
	return place->family == AF_INET ? ntohl(place->ipv4.s_addr) >> 24 == IN_LOOPBACKNET
					: IN6_IS_ADDR_LOOPBACK(&place->ipv6);
}

/* --- addresses already served ---------------------------------------------------------------- */

static bool place_covers(const struct bound *open, const struct bound *wanted)
{
	if (open->port != wanted->port) {
		return false;
	}
	if (open->family != wanted->family) {
		return open->takes_ipv4 && bound_is_wildcard(open);
	}
	if (bound_is_wildcard(open)) {
		return true;
	}
	return open->family == AF_INET ? open->ipv4.s_addr == wanted->ipv4.s_addr
				       : IN6_ARE_ADDR_EQUAL(&open->ipv6, &wanted->ipv6) &&
						 open->scope == wanted->scope;
}

static bool any_covers(const struct listener *listeners, uint32_t listener_count,
	const char *protocol, const struct bound *wanted)
{
	struct bound open;

	for (uint32_t i = 0; i < listener_count; i++) {
		for (uint32_t k = 0; k < listeners[i].fd_count; k++) {
			if (strcmp(listeners[i].uri.protocol, protocol) == 0 &&
				place_of_socket(listeners[i].fds[k], &open) &&
				place_covers(&open, wanted)) {
				return true;
			}
		}
	}
	return false;
}

/* Returns the number of addresses of the URI. *served: the number that the listeners serve. */
static uint32_t count_served(const struct listener *listeners, uint32_t listener_count,
	const struct export_uri *uri, uint32_t *served)
{
	const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list;
	struct bound wanted;
	uint32_t count = 0;

	*served = 0;
	if (uri->port == 0 || getaddrinfo(uri->host, NULL, &hints, &list) != 0) {
		return 0;
	}
	for (const struct addrinfo *entry = list; entry != NULL; entry = entry->ai_next, count++) {
		if (place_from(entry->ai_addr, entry->ai_addrlen, &wanted)) {
			wanted.port = uri->port;
			*served += any_covers(listeners, listener_count, uri->protocol, &wanted);
		}
	}
	freeaddrinfo(list);
	return count;
}

static bool covers_tcp(
	const struct listener *listeners, uint32_t listener_count, const struct export_uri *uri)
{
	uint32_t served;
	uint32_t count = count_served(listeners, listener_count, uri, &served);

	return count > 0 && served == count;
}

/* Compares the files to which the paths lead, because a path can be written in several ways. */
static bool is_same_socket(const struct export_uri *a, const struct export_uri *b)
{
	struct stat a_status;
	struct stat b_status;

	if (a->socket_path[0] == '\0' || b->socket_path[0] == '\0') {
		return a->socket_path_bytes == b->socket_path_bytes &&
		       memcmp(a->socket_path, b->socket_path, a->socket_path_bytes) == 0;
	}
	return stat(a->socket_path, &a_status) == 0 && stat(b->socket_path, &b_status) == 0 &&
	       a_status.st_dev == b_status.st_dev && a_status.st_ino == b_status.st_ino;
}

bool listen_address_is_served(
	const struct listener *listeners, uint32_t listener_count, const struct export_uri *uri)
{
	if (!uri->is_unix) {
		return covers_tcp(listeners, listener_count, uri);
	}
	for (uint32_t i = 0; i < listener_count; i++) {
		if (listeners[i].uri.is_unix && is_same_socket(&listeners[i].uri, uri)) {
			return true;
		}
	}
	return false;
}

bool listen_address_overlaps(const struct listener *listener, const struct export_uri *uri)
{
	uint32_t served = 0;

	if (listener->uri.is_unix || uri->is_unix) {
		return listen_address_is_served(listener, 1, uri);
	}
	(void)count_served(listener, 1, uri, &served);
	return served > 0;
}

bool listen_address_serves(const struct listener *listener, const struct export *export)
{
	const char *name = listener->uri.export_name;

	if (listener->folder > 0 && listener->fd_count == 0) {
		return false;
	}
	return !export_uri_has_one_export(&listener->uri) ||
	       (name != NULL && strlen(name) == export->name_bytes &&
		       memcmp(name, export->name, export->name_bytes) == 0);
}

bool listen_address_is_local(const struct listener *listener)
{
	struct bound place;
	bool is_local = true;

	for (uint32_t i = 0; is_local && !listener->uri.is_unix && i < listener->fd_count; i++) {
		is_local = place_of_socket(listener->fds[i], &place) && bound_is_loopback(&place);
	}
	return is_local;
}

bool listen_address_is_abandoned(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = -1;
	bool is_abandoned = false;

	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) <
		(int)sizeof(address.sun_path)) {
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	}
	if (fd >= 0) {
		is_abandoned = connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 &&
			       errno == ECONNREFUSED;
		close(fd);
	}
	return is_abandoned;
}

/* Returns whether the connected Unix socket was accepted at the listener: an accepted socket has
 * the local address of its listener. */
static bool has_unix_name(const struct listener *listener, int fd)
{
	struct sockaddr_un a = { 0 };
	struct sockaddr_un b = { 0 };
	socklen_t a_bytes = sizeof(a);
	socklen_t b_bytes = sizeof(b);

	return listener->fd_count > 0 &&
	       getsockname(listener->fds[0], (struct sockaddr *)&a, &a_bytes) == 0 &&
	       getsockname(fd, (struct sockaddr *)&b, &b_bytes) == 0 && a.sun_family == AF_UNIX &&
	       a_bytes == b_bytes && memcmp(&a, &b, a_bytes) == 0;
}

const struct listener *listen_address_find(
	const struct listener *listeners, uint32_t listener_count, int fd)
{
	struct bound place;
	bool is_tcp = place_of_socket(fd, &place);

	if (is_tcp && place.family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&place.ipv6)) {
		place.family = AF_INET;
		memcpy(&place.ipv4, &place.ipv6.s6_addr[12], sizeof(place.ipv4));
	}
	for (uint32_t i = 0; i < listener_count; i++) {
		const struct listener *listener = &listeners[i];

		if (is_tcp ? any_covers(listener, 1, listener->uri.protocol, &place)
			   : has_unix_name(listener, fd)) {
			return listener;
		}
	}
	return NULL;
}

struct export_uri listen_address_with_port(
	const struct export_uri *uri, const struct listener *listener)
{
	struct export_uri found = *uri;

	if (!uri->is_unix && uri->port == 0) {
		found.port = listener->uri.port;
	}
	return found;
}

/* --- exposure to the network ----------------------------------------------------------------- */

/* Returns whether other machines can reach the socket and TLS is not required. */
static bool is_exposed(const struct listener *listener, uint32_t idx, struct bound *place)
{
	return listener->settings->mode != TLS_REQUIRE &&
	       place_of_socket(listener->fds[idx], place) && !bound_is_loopback(place);
}

/* Returns true when one of the first count sockets, counted over all listeners, is open on the same
 * port with a wildcard address. */
static bool warned_before(
	const struct listener *listeners, uint32_t count, const struct bound *place)
{
	struct bound other;

	for (uint32_t i = 0; count > 0; i++) {
		for (uint32_t k = 0; k < listeners[i].fd_count && count > 0; k++, count--) {
			if (is_exposed(&listeners[i], k, &other) && bound_is_wildcard(&other) &&
				bound_is_wildcard(place) && other.port == place->port) {
				return true;
			}
		}
	}
	return false;
}

static void warn_exposed(
	const struct listener *listener, const struct bound *place, bool admits_all)
{
	const char *clear =
		listener->settings->mode == TLS_ON ? "does not require TLS" : "has no TLS";
	const char *on_the_way = "traffic can be read and modified";
	char host[INET6_ADDRSTRLEN] = "?";

	if (bound_is_wildcard(place)) {
		log_warning("port %u is open to the whole network and %s: %s; see --tls",
			place->port, clear,
			admits_all ? "any host that can reach this machine can use the disks"
				   : on_the_way);
		return;
	}
	inet_ntop(place->family,
		place->family == AF_INET ? (const void *)&place->ipv4 : (const void *)&place->ipv6,
		host, sizeof(host));
	log_warning("port %u of %s can be reached from the network and %s: %s; see --tls",
		place->port, host, clear,
		admits_all ? "any host that can reach the address can use the disks" : on_the_way);
}

void listen_address_warn(const struct listener *listeners, uint32_t listener_count, bool admits_all)
{
	uint32_t seen = 0;
	struct bound place;

	for (uint32_t i = 0; i < listener_count; i++) {
		for (uint32_t k = 0; k < listeners[i].fd_count; k++, seen++) {
			if (is_exposed(&listeners[i], k, &place) &&
				!warned_before(listeners, seen, &place)) {
				warn_exposed(&listeners[i], &place, admits_all);
			}
		}
	}
}
