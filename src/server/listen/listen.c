// SPDX-License-Identifier: Apache-2.0
#include "server/listen/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "server/upgrade/take.h"

enum {
	URI_SHOWN_BYTES = 256,
	/* number of tries to find a port that is free on all addresses of a listener with port 0 */
	PORT_TRIES_MAX = 16,
	BUSY_PAUSE_NS = 25000000, /* before a retry */
};

/* Any address of a listener. */
union address {
	struct sockaddr any;
	struct sockaddr_in ipv4;
	struct sockaddr_in6 ipv6;
	struct sockaddr_un local;
	struct sockaddr_storage storage;
};

/* The text of a URI, valid until the end of the enclosing block, like quote(). A control socket has
 * no URI, so its path is shown. */
#define quote_uri(uri) show_uri((char[URI_SHOWN_BYTES]){ 0 }, uri)

static const char *show_uri(char out[URI_SHOWN_BYTES], const struct export_uri *uri)
{
	if (strcmp(uri->protocol, LISTENER_CONTROL) == 0) {
		return log_escape(out, URI_SHOWN_BYTES, uri->socket_path, uri->socket_path_bytes);
	}
	if (export_uri_format(uri, "", 0, out, URI_SHOWN_BYTES) < 0) {
		memcpy(out + URI_SHOWN_BYTES - 4, "...", 4);
	}
	return out;
}

/* --- TCP ------------------------------------------------------------------------------------- */

static uint16_t get_port(const union address *address)
{
	return ntohs(address->any.sa_family == AF_INET6 ? address->ipv6.sin6_port
							: address->ipv4.sin_port);
}

static void set_port(union address *address, uint16_t port)
{
	if (address->any.sa_family == AF_INET6) {
		address->ipv6.sin6_port = htons(port);
	} else {
		address->ipv4.sin_port = htons(port);
	}
}

int listener_tcp_error(const struct export_uri *uri, int code, struct error *error)
{
	const char *shown = quote_uri(uri);

	switch (-code) {
	case EADDRINUSE:
		if (uri->port == 0) {
			return error_set(error, code,
				"cannot listen on %s: no free local port; choose a port (ss -tan "
				"lists those in use), or widen the port range (sysctl "
				"net.ipv4.ip_local_port_range)",
				shown);
		}
		return error_set(error, code,
			"cannot listen on %s: the port is in use by another program; stop it (ss "
			"-ltnp lists it; if no process is shown, a write of a killed server is "
			"still in progress), or choose another port (:0 picks a free one)",
			shown);
	case EACCES:
		return error_set(error, code,
			"cannot listen on %s: ports below 1024 need CAP_NET_BIND_SERVICE; choose a "
			"higher port",
			shown);
	case EADDRNOTAVAIL:
		return error_set(error, code,
			"cannot listen on %s: this machine does not have the address; use one of "
			"those that 'ip address' lists",
			shown);
	default:
		return error_set(error, code, "cannot listen on %s: %s", shown, strerror(-code));
	}
}

/* Returns a listening socket, or a negative errno. */
static int tcp_socket(const union address *address, socklen_t address_bytes)
{
	int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	const int on = 1;
	int code;

	if (fd < 0) {
		return -errno;
	}
	/* V6ONLY, so that [::]:N does not include IPv4, and can be configured together with
	 * 0.0.0.0:N. */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
		(address->any.sa_family == AF_INET6 &&
			setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) < 0) ||
		bind(fd, &address->any, address_bytes) < 0 || listen(fd, SOMAXCONN) < 0) {
		code = -errno;
		close(fd);
		return code;
	}
	return fd;
}

static bool seen_before(const struct addrinfo *list, const struct addrinfo *entry)
{
	for (const struct addrinfo *other = list; other != entry; other = other->ai_next) {
		if (other->ai_addrlen == entry->ai_addrlen &&
			memcmp(other->ai_addr, entry->ai_addr, entry->ai_addrlen) == 0) {
			return true;
		}
	}
	return false;
}

static void close_sockets(struct listener *listener)
{
	for (uint32_t i = 0; i < listener->fd_count; i++) {
		close(listener->fds[i]);
	}
	listener->fd_count = 0;
}

/*
 * Listens on every address of the list, all on one port. An address whose family is disabled on
 * this machine is skipped if another one works.
 */
static int tcp_listen_all(
	struct listener *listener, const struct addrinfo *list, uint16_t *port_inout)
{
	int code = -EADDRNOTAVAIL;

	for (const struct addrinfo *entry = list; entry != NULL; entry = entry->ai_next) {
		union address address = { 0 };
		socklen_t bytes = sizeof(address);
		int fd;

		if (seen_before(list, entry) || listener->fd_count == LISTENER_SOCKETS_MAX) {
			continue;
		}
		memcpy(&address, entry->ai_addr, entry->ai_addrlen);
		set_port(&address, *port_inout);
		fd = tcp_socket(&address, entry->ai_addrlen);
		if (fd == -EADDRNOTAVAIL || fd == -EAFNOSUPPORT) {
			code = fd;
			continue;
		}
		if (fd < 0) {
			close_sockets(listener);
			return fd;
		}
		listener->fds[listener->fd_count++] = fd;
		if (getsockname(fd, &address.any, &bytes) < 0) {
			code = -errno;
			close_sockets(listener);
			return code;
		}
		*port_inout = get_port(&address);
	}
	return listener->fd_count > 0 ? 0 : code;
}

static bool listen_is_wildcard(const struct addrinfo *entry)
{
	union address address = { 0 };

	memcpy(&address, entry->ai_addr, entry->ai_addrlen);
	return entry->ai_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&address.ipv6.sin6_addr)
					    : address.ipv4.sin_addr.s_addr == htonl(INADDR_ANY);
}

/* Sets the address that a client on this machine can use. */
static int set_tcp_uri(struct listener *listener, const char *protocol, const char *host,
	uint16_t port, struct error *error)
{
	listener->uri = (struct export_uri){ .protocol = protocol, .port = port };
	listener->uri.host = strdup(host);
	return listener->uri.host != NULL ? 0 : error_oom_for(error, "a listening address");
}

/* Resolves the host; the list is freed with freeaddrinfo(). */
static int listen_resolve(
	const struct export_uri *uri, struct addrinfo **list_out, struct error *error)
{
	const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
	int rc = getaddrinfo(uri->host, NULL, &hints, list_out);

	return rc == 0 ? 0
		       : error_set(error, rc == EAI_SYSTEM ? -errno : -EADDRNOTAVAIL,
				 "cannot listen on %s: cannot resolve host '%s': %s; check the "
				 "name",
				 quote_uri(uri), uri->host,
				 rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
}

static int tcp_open(const struct export_uri *uri, struct listener *listener, struct error *error)
{
	struct addrinfo *list;
	const char *host = uri->host;
	uint16_t port = uri->port;
	int rc = listen_resolve(uri, &list, error);

	if (rc < 0) {
		return rc;
	}
	for (int tries = 0; tries < PORT_TRIES_MAX; tries++) {
		port = uri->port;
		rc = tcp_listen_all(listener, list, &port);
		if (rc != -EADDRINUSE || uri->port != 0) {
			break;
		}
	}
	if (listen_is_wildcard(list)) {
		host = list->ai_family == AF_INET6 ? "::1" : "127.0.0.1";
	}
	freeaddrinfo(list);
	if (rc < 0) {
		return listener_tcp_error(uri, rc, error);
	}
	return set_tcp_uri(listener, uri->protocol, host, port, error);
}

/* --- addresses of kinds with their own listeners -------------------------------------------- */

static bool listen_is_loopback(const struct addrinfo *entry)
{
	union address address = { 0 };

	memcpy(&address, entry->ai_addr, entry->ai_addrlen);
	return entry->ai_family == AF_INET6
		       ? IN6_IS_ADDR_LOOPBACK(&address.ipv6.sin6_addr)
		       : ntohl(address.ipv4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

/* Checks whether the server may listen at the address, which the session kind opens later. */
static int kind_open(const struct export_uri *uri, struct listener *listener, struct error *error)
{
	bool may_be_seen =
		uri->insecure_network != NULL && strcmp(uri->insecure_network, "yes") == 0;
	bool is_here = true;
	struct addrinfo *list;
	int rc = listen_resolve(uri, &list, error);

	if (rc < 0) {
		return rc;
	}
	for (const struct addrinfo *entry = list; entry != NULL; entry = entry->ai_next) {
		is_here &= listen_is_loopback(entry);
	}
	freeaddrinfo(list);
	if (!is_here && !may_be_seen) {
		return error_set(error, -EACCES,
			"cannot listen on %s: %s is not encrypted, so any host that can reach the "
			"address could use the disks; listen on 127.0.0.1, or add "
			"insecure-network=yes to the URI on a trusted network",
			quote_uri(uri), uri->protocol);
	}
	rc = set_tcp_uri(listener, uri->protocol, uri->host, uri->port, error);
	if (rc == 0 && uri->provider != NULL) {
		listener->uri.provider = strdup(uri->provider);
		rc = listener->uri.provider != NULL ? 0
						    : error_oom_for(error, "a listening address");
	}
	if (rc == 0 && may_be_seen) {
		listener->uri.insecure_network = strdup(uri->insecure_network);
		rc = listener->uri.insecure_network != NULL
			     ? 0
			     : error_oom_for(error, "a listening address");
	}
	return rc;
}

void listener_is_bound(struct listener *listener)
{
	bool is_ipv4 = strcmp(listener->uri.host, "0.0.0.0") == 0;

	if (is_ipv4 || strcmp(listener->uri.host, "::") == 0) {
		char *host = strdup(is_ipv4 ? "127.0.0.1" : "::1");

		log_warning("port %u is open to the whole network, and %s is not encrypted: any "
			    "host that can reach this machine can use the disks",
			listener->uri.port, listener->uri.protocol);
		if (host != NULL) { /* without memory the URI is printed as configured */
			free(listener->uri.host);
			listener->uri.host = host;
		}
	}
}

/* --- Unix sockets ---------------------------------------------------------------------------- */

static int unix_address(const struct export_uri *uri, union address *address,
	socklen_t *address_bytes, struct error *error)
{
	bool is_abstract = uri->socket_path[0] == '\0';
	size_t room = sizeof(address->local.sun_path) - (is_abstract ? 0 : 1);

	if (uri->socket_path_bytes > room) {
		return error_set(error, -ENAMETOOLONG,
			"cannot listen on %s: the socket path has %u bytes, the limit is %zu; "
			"choose a shorter path",
			quote_uri(uri), uri->socket_path_bytes, room);
	}
	if (is_abstract && uri->socket_path_bytes == 1) {
		return error_set(error, -EINVAL,
			"cannot listen on %s: an abstract socket needs a name after %%00",
			quote_uri(uri));
	}
	*address = (union address){ .local.sun_family = AF_UNIX };
	memcpy(address->local.sun_path, uri->socket_path, uri->socket_path_bytes);
	*address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
				     uri->socket_path_bytes + (is_abstract ? 0 : 1));
	return 0;
}

/* Returns the process that listens at the other end of a connected socket, if that process has
 * ended. The kernel keeps a killed server's sockets until the operations of its rings have
 * completed. Returns 0 if the process is alive, or if that is unknown. */
static pid_t ended_listener(int fd)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);
	char path[64];
	char stat[512] = "";
	const char *state;
	int file;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0 || peer.pid <= 0) {
		return 0;
	}
	if (kill(peer.pid, 0) < 0 && errno == ESRCH) {
		return peer.pid;
	}
	snprintf(path, sizeof(path), "/proc/%ld/stat", (long)peer.pid);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0) {
		/* the process may be alive: its /proc entry can be hidden (ProtectProc=) */
		return 0;
	}
	(void)!read(file, stat, sizeof(stat) - 1);
	close(file);
	/* The format is "PID (NAME) STATE". State Z means that the process's main thread has ended,
	 * see proc(5). */
	state = strrchr(stat, ')');
	return state != NULL && strncmp(state, ") Z", 3) == 0 ? peer.pid : 0;
}

/*
 * Called when the address is in use. Removes the socket file of a killed server. Returns 0 if bind
 * is to be tried again.
 */
static int listen_remove_stale(const struct export_uri *uri, const union address *address,
	socklen_t address_bytes, struct error *error)
{
	const char *path = uri->socket_path;
	const char *shown = quote_uri(uri);
	char label[EXPORT_URI_LABEL_BYTES];
	struct stat st;
	pid_t ended;
	int probe;
	int code;

	if (path[0] != '\0' && (lstat(path, &st) < 0 || !S_ISSOCK(st.st_mode))) {
		return error_set(error, -EEXIST,
			"cannot listen on %s: the path exists and is not a socket; choose another "
			"path",
			shown);
	}
	probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe < 0) {
		return error_set(error, -errno, "cannot listen on %s: %s", shown, strerror(errno));
	}
	code = connect(probe, &address->any, address_bytes) < 0 ? -errno : 0;
	ended = code == 0 ? ended_listener(probe) : 0;
	close(probe);
	if (ended > 0) {
		return error_set(error, -EADDRINUSE,
			"cannot listen on %s: the socket of process %ld, which has exited, is "
			"still open, because a request is still in progress (such as a write to a "
			"hanging disk) or another process has the socket; retry later, or choose "
			"another path",
			shown, (long)ended);
	}
	if (code == -EPERM) { /* after sandbox_seal() */
		return error_set(error, -EADDRINUSE,
			"cannot listen on %s: the socket file exists, and the sandbox does not "
			"allow "
			"the server to check whether a program listens there; stop that program, "
			"or "
			"remove the file",
			shown);
	}
	if (path[0] == '\0' || (code != -ECONNREFUSED && code != -ENOENT)) {
		return error_set(error, -EADDRINUSE,
			"cannot listen on %s: another program listens on this socket; stop it or "
			"choose another path",
			shown);
	}
	if (unlink(path) < 0 && errno != ENOENT) {
		return error_set(error, -errno,
			"cannot listen on %s: cannot remove the socket file of an earlier server: "
			"%s",
			shown, strerror(errno));
	}
	log_info("removed the socket file %s of an earlier server", export_uri_label(label, uri));
	return 0;
}

/*
 * Locks the folder of a socket file while the file is bound or removed. Between bind and listen a
 * socket seems to be abandoned, so two servers that start at the same time could remove each
 * other's socket. Returns a descriptor to close, or -1. If the lock cannot be taken, the server
 * continues without it, because other processes must not be able to prevent the start. A process
 * that keeps the lock is waited for only once, not for each socket of a folder.
 */
static int lock_folder(const char *path)
{
	static int tries_left = LISTENER_RETRIES;
	const struct timespec pause = { .tv_nsec = BUSY_PAUSE_NS };
	char folder[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
	char *slash;
	int fd;
	int rc = -1;

	if (path[0] == '\0' || strlen(path) >= sizeof(folder)) {
		return -1;
	}
	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (slash == NULL) {
		memcpy(folder, ".", sizeof("."));
	} else {
		slash[slash == folder] = '\0'; /* keeps "/" for a file in the root folder */
	}
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Any error other than EWOULDBLOCK means that the file system does not support these
	 * locks. */
	while (fd >= 0 && (rc = flock(fd, LOCK_EX | LOCK_NB)) < 0 && errno == EWOULDBLOCK &&
		tries_left > 0) {
		tries_left--;
		nanosleep(&pause, NULL);
	}
	tries_left = rc == 0 ? LISTENER_RETRIES : tries_left;
	return fd;
}

static void unlock_folder(int fd)
{
	if (fd >= 0) {
		close(fd);
	}
}

/* Binds the socket. If the address is in use, removes a stale socket file and tries again, once. */
static int unix_bind(int fd, const struct export_uri *uri, struct error *error)
{
	union address address;
	socklen_t bytes = 0;
	int rc = unix_address(uri, &address, &bytes, error);

	if (rc < 0 || bind(fd, &address.any, bytes) == 0) {
		return rc;
	}
	rc = -errno;
	if (rc == -EADDRINUSE) {
		rc = listen_remove_stale(uri, &address, bytes, error);
		if (rc < 0 || bind(fd, &address.any, bytes) == 0) {
			return rc;
		}
		rc = -errno;
	}
	return error_set(error, rc, "cannot listen on %s: %s", quote_uri(uri),
		rc == -ENOENT ? "the folder of the socket does not exist; create it"
			      : strerror(-rc));
}

static char *copy_bytes(const char *bytes, uint32_t len)
{
	char *copy = malloc((size_t)len + 1);

	if (copy != NULL) {
		memcpy(copy, bytes, len);
		copy[len] = '\0';
	}
	return copy;
}

/* Makes the path absolute, so that a client with another working directory can use it. It stays
 * relative if the absolute path is too long for a socket address. */
static int set_unix_uri(struct listener *listener, const char *protocol, const char *path,
	uint32_t path_bytes, struct error *error)
{
	char directory[PATH_MAX];
	char absolute[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int len;

	listener->uri = (struct export_uri){ .protocol = protocol, .is_unix = true };
	if (path_bytes > 0 && path[0] != '\0' && path[0] != '/' &&
		getcwd(directory, sizeof(directory)) != NULL) {
		len = snprintf(absolute, sizeof(absolute), "%s/%s", directory, path);
		if (len > 0 && (size_t)len < sizeof(absolute)) {
			path = absolute;
			path_bytes = (uint32_t)len;
		}
	}
	listener->uri.socket_path = copy_bytes(path, path_bytes);
	listener->uri.socket_path_bytes = path_bytes;
	return listener->uri.socket_path != NULL ? 0 : error_oom_for(error, "a listening address");
}

/* Sets mode and group before the socket listens, so that no client can connect with wider
 * permissions. Symbolic links are not followed, because any user who can write to the folder could
 * have placed one. */
static int listen_set_rights(
	const struct export_uri *uri, struct listener *listener, struct error *error)
{
	const char *path = uri->socket_path;

	if (path[0] == '\0' && (uri->socket_mode != NULL || uri->socket_group != NULL)) {
		return error_set(error, -EINVAL,
			"cannot listen on %s: an abstract socket has neither mode nor group; any "
			"local process can connect",
			quote_uri(uri));
	}
	if (uri->socket_group != NULL) {
		const struct group *group = getgrnam(uri->socket_group);

		if (group == NULL) {
			return error_set(error, -ENOENT,
				"cannot listen on %s: there is no group '%s'", quote_uri(uri),
				uri->socket_group);
		}
		if (lchown(path, (uid_t)-1, group->gr_gid) < 0) {
			return error_set(error, -errno,
				"cannot change the group of %s to '%s': %s; the server's user must "
				"be a member of the group",
				quote_uri(uri), uri->socket_group, strerror(errno));
		}
		listener->has_group = true;
	}
	if (uri->socket_mode != NULL &&
		fchmodat(AT_FDCWD, path, (mode_t)strtoul(uri->socket_mode, NULL, 8),
			AT_SYMLINK_NOFOLLOW) < 0) {
		return error_set(error, -errno, "cannot set the mode of %s: %s", quote_uri(uri),
			strerror(errno));
	}
	return 0;
}

void listener_set_export(struct listener *listener, const struct export_uri *uri)
{
	if (export_uri_has_one_export(uri)) {
		/* without memory, connections are rejected because their export is unknown */
		listener->uri.export_name = strdup(uri->export_name);
	}
}

static int unix_open_locked(
	const struct export_uri *uri, struct listener *listener, struct error *error)
{
	bool keeps_messages = listener->kind != NULL && listener->kind->keeps_messages;
	int type = keeps_messages ? SOCK_SEQPACKET : SOCK_STREAM;
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	struct stat st;
	int rc;

	if (fd < 0) {
		return error_set(
			error, -errno, "cannot listen on %s: %s", quote_uri(uri), strerror(errno));
	}
	rc = unix_bind(fd, uri, error);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	listener->fds[listener->fd_count++] = fd;
	rc = set_unix_uri(listener, uri->protocol, uri->socket_path, uri->socket_path_bytes, error);
	listener_set_export(listener, uri);
	if (rc == 0 && uri->socket_path[0] != '\0' && lstat(uri->socket_path, &st) == 0) {
		listener->unlink_path = strdup(uri->socket_path);
		listener->unlink_device = st.st_dev;
		listener->unlink_inode = st.st_ino;
	}
	rc = rc ?: listen_set_rights(uri, listener, error);
	if (rc == 0 && listen(fd, SOMAXCONN) < 0) {
		rc = error_set(
			error, -errno, "cannot listen on %s: %s", quote_uri(uri), strerror(errno));
	}
	return rc;
}

static int unix_open(const struct export_uri *uri, struct listener *listener, struct error *error)
{
	int lock_fd = lock_folder(uri->socket_path);
	int rc = unix_open_locked(uri, listener, error);

	unlock_folder(lock_fd);
	return rc;
}

/* --- all kinds of addresses ------------------------------------------------------------------ */

static int listen_open_once(const struct export_uri *uri, const struct session_kind *kind,
	struct listener *listener, struct error *error)
{
	int rc;

	*listener = (struct listener){ .kind = kind };
	rc = uri->is_unix			    ? unix_open(uri, listener, error)
	     : kind != NULL && kind->listen != NULL ? kind_open(uri, listener, error)
						    : tcp_open(uri, listener, error);
	if (rc < 0) {
		listener_close(listener);
	}
	return rc;
}

/*
 * Retries while the address is in use. When a server is killed, the kernel closes its listening
 * sockets only after its ring is dismantled, a moment after the process is gone. A restart must not
 * fail in that moment.
 */
int listener_open(const struct export_uri *uri, const struct session_kind *kind, uint32_t *retries,
	struct listener *listener, struct error *error)
{
	const struct timespec pause = { .tv_nsec = BUSY_PAUSE_NS };
	int rc = listen_open_once(uri, kind, listener, error);

	while (rc == -EADDRINUSE && *retries > 0) {
		*retries -= 1;
		nanosleep(&pause, NULL);
		rc = listen_open_once(uri, kind, listener, error);
	}
	return rc;
}

static int adopt_address(
	struct listener *listener, int fd, const char *protocol, struct error *error)
{
	union address address = { 0 };
	socklen_t bytes = sizeof(address);
	char host[NI_MAXHOST];

	if (getsockname(fd, &address.any, &bytes) < 0) {
		return error_set(error, -errno, "%s", strerror(errno));
	}
	if (address.any.sa_family == AF_UNIX) {
		const char *path = address.local.sun_path;
		uint32_t len = bytes - (uint32_t)offsetof(struct sockaddr_un, sun_path);

		/* A path in an address includes its terminator, unlike an abstract name. */
		if (len > 0 && path[0] != '\0') {
			len = (uint32_t)strnlen(path, len);
		}
		return set_unix_uri(listener, protocol, path, len, error);
	}
	if (address.any.sa_family != AF_INET && address.any.sa_family != AF_INET6) {
		return error_set(
			error, -EAFNOSUPPORT, "the descriptor is neither a TCP nor a Unix socket");
	}
	if (getnameinfo(&address.any, bytes, host, sizeof(host), NULL, 0, NI_NUMERICHOST) != 0) {
		return error_set(error, -EINVAL, "the address of the socket cannot be read");
	}
	if (strcmp(host, "0.0.0.0") == 0) {
		snprintf(host, sizeof(host), "127.0.0.1");
	} else if (strcmp(host, "::") == 0) {
		snprintf(host, sizeof(host), "::1");
	}
	return set_tcp_uri(listener, protocol, host, get_port(&address), error);
}

/* Sets the protocol of a listening socket by its type; NULL if the server does not use the type.
 * Returns a negative errno on failure. */
static int protocol_of(int fd, const char **protocol_out)
{
	int type = 0;
	int listening = 0;
	socklen_t bytes = sizeof(int);

	*protocol_out = NULL;
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) < 0 ||
		getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) < 0) {
		return errno == ENOTSOCK ? 0 : -errno;
	}
	if (listening && (type == SOCK_STREAM || type == SOCK_SEQPACKET)) {
		*protocol_out = type == SOCK_STREAM ? "nbd" : "gmb";
	}
	return 0;
}

int listener_adopt(int fd, struct listener *listener, struct error *error)
{
	const char *protocol;
	int flags;
	int rc;

	*listener = (struct listener){ .fds = { fd }, .fd_count = 1 };
	rc = protocol_of(fd, &protocol);
	if (rc < 0) {
		error_set(error, rc, "%s", strerror(-rc));
	} else if (protocol == NULL) {
		rc = error_set(error, -EINVAL,
			"the descriptor is not a listening stream socket; use ListenStream= and "
			"Accept=no in the socket unit");
	} else {
		rc = adopt_address(listener, fd, protocol, error);
	}
	/* On a non-blocking listener, the ring's accept would fail instead of waiting. */
	flags = rc == 0 ? fcntl(fd, F_GETFL) : 0;
	if (rc == 0 && (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0 ||
			       fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)) {
		rc = error_set(error, -errno, "%s", strerror(errno));
	}
	if (rc < 0) {
		listener_close(listener);
		error_prefix(error, "cannot use descriptor %d from the service manager", fd);
	}
	return rc;
}

int listener_adopt_inherited(
	const struct upgrade_socket *socket, struct listener *listener, struct error *error)
{
	int rc = listener_adopt(socket->fd, listener, error);
	struct stat st;

	if (rc < 0) {
		return rc;
	}
	listener->was_inherited = true;
	listener->of_manager = socket->of_manager;
	if (listener->uri.is_unix && !socket->of_manager) {
		/* Another listen() makes the kernel report this process's ID to clients. */
		(void)listen(socket->fd, SOMAXCONN);
	}
	/* The path may lead to another socket by now, which must not be removed later. */
	if (socket->has_path && listener->uri.is_unix && listener->uri.socket_path[0] != '\0' &&
		lstat(listener->uri.socket_path, &st) == 0 && st.st_dev == socket->device &&
		st.st_ino == socket->inode) {
		listener->unlink_path = strdup(listener->uri.socket_path);
		listener->unlink_device = st.st_dev;
		listener->unlink_inode = st.st_ino;
	}
	return 0;
}

void listener_take_back(struct listener *listener)
{
	for (uint32_t i = 0; i < listener->fd_count; i++) {
		struct ucred who;
		socklen_t bytes = sizeof(who);

		if (!listener->of_manager &&
			getsockopt(listener->fds[i], SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 &&
			who.pid > 0 && who.uid == geteuid() && who.gid == getegid()) {
			(void)listen(listener->fds[i], SOMAXCONN);
		}
	}
}

void listener_forget_path(struct listener *listener)
{
	free(listener->unlink_path);
	listener->unlink_path = NULL;
}

/* Removes the socket file if it has our socket's inode number. While the socket is open, no other
 * file gets this number. */
static void listen_remove_own(const struct listener *listener)
{
	int lock_fd = lock_folder(listener->unlink_path);
	struct stat st;

	if (lstat(listener->unlink_path, &st) == 0 && st.st_dev == listener->unlink_device &&
		st.st_ino == listener->unlink_inode) {
		unlink(listener->unlink_path);
	}
	unlock_folder(lock_fd);
}

void listener_remove_new_path(const struct listener *listener)
{
	if (listener != NULL && listener->unlink_path != NULL && !listener->was_inherited) {
		listen_remove_own(listener);
	}
}

void listener_close(struct listener *listener)
{
	if (listener->unlink_path != NULL) {
		listen_remove_own(listener);
	}
	close_sockets(listener);
	free(listener->unlink_path);
	export_uri_fini(&listener->uri);
	*listener = (struct listener){ 0 };
}

static void listen_identify(
	struct peer_identity *identity, uint8_t family, const void *bytes, size_t len)
{
	GMB_ASSERT(len < sizeof(identity->bytes));
	identity->bytes[0] = family;
	memcpy(identity->bytes + 1, bytes, len);
}

/* Identifies an IPv6 host by its network of 64 bits, because it can use any number of addresses
 * there and change them. Link-local addresses do not identify a network, so all of their bits
 * count. */
static void identify_ipv6(struct peer_identity *identity, const struct in6_addr *address)
{
	if (IN6_IS_ADDR_V4MAPPED(address)) {
		listen_identify(identity, AF_INET, address->s6_addr + 12, 4);
	} else {
		listen_identify(identity, AF_INET6, address->s6_addr,
			IN6_IS_ADDR_LINKLOCAL(address) ? sizeof(address->s6_addr) : 8);
	}
}

/* Sets the address in the form that access rules compare. */
static void listen_set_address(struct peer *peer, const union address *address)
{
	if (address->any.sa_family == AF_INET) {
		memset(peer->address + 10, 0xff, 2);
		memcpy(peer->address + 12, &address->ipv4.sin_addr, 4);
	} else {
		memcpy(peer->address, &address->ipv6.sin6_addr, sizeof(peer->address));
	}
	peer->has_address = true;
}

static void name_peer(struct peer *peer, const union address *address)
{
	char host[INET6_ADDRSTRLEN];

	peer->family = address->any.sa_family;
	if (peer->family == AF_INET) {
		listen_set_address(peer, address);
		listen_identify(&peer->identity, AF_INET, &address->ipv4.sin_addr, 4);
		inet_ntop(AF_INET, &address->ipv4.sin_addr, host, sizeof(host));
		snprintf(peer->text, sizeof(peer->text), "%s:%u", host, get_port(address));
	} else if (peer->family == AF_INET6) {
		listen_set_address(peer, address);
		identify_ipv6(&peer->identity, &address->ipv6.sin6_addr);
		inet_ntop(AF_INET6, &address->ipv6.sin6_addr, host, sizeof(host));
		snprintf(peer->text, sizeof(peer->text), "[%s]:%u", host, get_port(address));
	}
}

void listener_peer_at(const char *text, struct peer *peer)
{
	union address address = { 0 };
	const char *port = strrchr(text, ':');
	const char *host = text + (text[0] == '[');
	char copy[INET6_ADDRSTRLEN];

	*peer = (struct peer){ .text = "unknown" };
	snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(host, text[0] == '[' ? "]%" : ":"), host);
	if (inet_pton(AF_INET, copy, &address.ipv4.sin_addr) == 1) {
		address.any.sa_family = AF_INET;
	} else if (inet_pton(AF_INET6, copy, &address.ipv6.sin6_addr) == 1) {
		address.any.sa_family = AF_INET6;
	}
	set_port(&address, port != NULL ? (uint16_t)strtoul(port + 1, NULL, 10) : 0);
	name_peer(peer, &address);
}

void listener_peer(int fd, struct peer *peer)
{
	union address address = { 0 };
	socklen_t bytes = sizeof(address);

	*peer = (struct peer){ .text = "unknown" };
	if (getpeername(fd, &address.any, &bytes) < 0) {
		return; /* a peer that has already closed has no address */
	}
	name_peer(peer, &address);
	if (peer->family == AF_UNIX && stream_peer_credentials(fd, &peer->credentials)) {
		peer->has_credentials = true;
		listen_identify(&peer->identity, AF_UNIX, &peer->credentials.uid,
			sizeof(peer->credentials.uid));
		snprintf(peer->text, sizeof(peer->text), "unix:pid %d", peer->credentials.pid);
	}
}
