// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/export_uri.h"
#include "base/log.h"
#include "base/rights.h"
#include "base/work.h"
#include "control/control.h"

#define NS_PER_MS UINT64_C(1000000)

enum { INPUT_BYTES_FIRST = 64 << 10, ERRNO_MAX = 4095 };

struct control_connection {
	int fd;
	char *path;
	char *input;
	size_t input_bytes;
	size_t input_room;
	/* length of the line that was returned last; the line is still at the start of `input` */
	size_t line_bytes;
	uid_t owner; /* owner of the process at the other end */
	bool takes_files;
	int files[CONTROL_FILES_MAX];
	uint32_t file_count; /* files received and not yet handed to the caller */
};

int control_address(const char *path, struct sockaddr_un *address, int *folder_fd)
{
	char copy[PATH_MAX];
	const char *slash = strrchr(path, '/');
	int len;

	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	*folder_fd = -1;
	if (strlen(path) < sizeof(address->sun_path)) {
		memcpy(address->sun_path, path, strlen(path) + 1);
		return 0;
	}
	if (slash == NULL || strlen(path) >= sizeof(copy)) {
		return -ENAMETOOLONG;
	}
	memcpy(copy, path, strlen(path) + 1);
	*folder_fd = open(dirname(copy), O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*folder_fd < 0) {
		return -errno;
	}
	len = snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d%s",
		*folder_fd, slash);
	if (len >= (int)sizeof(address->sun_path)) {
		close(*folder_fd);
		*folder_fd = -1;
		return -ENAMETOOLONG;
	}
	return 0;
}

/* --- connecting ---------------------------------------------------------------------------- */

#define NEVER_NS UINT64_MAX

/* Returns the deadline of an exchange that starts now. timeout_ms -1: no deadline. */
static uint64_t deadline_after(int timeout_ms)
{
	return timeout_ms < 0 ? NEVER_NS : clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
}

/* Limits the next call on the socket to the time left until the deadline; this includes connect()
 * while the server's queue is full. Returns false if no time is left. The deadline is absolute, so
 * a peer cannot extend it by sending a byte now and then. */
static bool control_client_set_limit(int fd, uint64_t deadline_ns)
{
	uint64_t now_ns = clock_now_ns();
	uint64_t left_us =
		deadline_ns == NEVER_NS ? 0 : (deadline_ns - MIN(now_ns, deadline_ns)) / 1000;
	const struct timeval limit = {
		.tv_sec = (time_t)(left_us / 1000000),
		.tv_usec = (suseconds_t)(left_us % 1000000),
	};

	if (left_us == 0 && deadline_ns != NEVER_NS) {
		return false;
	}
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return true;
}

/* Returns the process ID in the name of a usual control socket, PID.sock; 0 if there is none. */
static long pid_of_name(const char *path)
{
	const char *name = strrchr(path, '/') + 1;
	size_t digits = strspn(name, "0123456789");

	return strcmp(name + digits, ".sock") == 0 ? strtol(name, NULL, 10) : 0;
}

/* Checks that a usual socket leads to the expected process. Some of the folders were created by
 * root but belong to another user, who could place a link to any socket there. So the peer must run
 * as the folder's owner and have the process ID in the name. */
static bool is_right_peer(int fd, const char *path)
{
	static const char *const tops[] = { "/run/user/", "/run/gmblock/" };
	struct ucred peer;
	socklen_t peer_bytes = sizeof(peer);
	struct stat owner;
	char top[64] = "";
	long pid;

	for (size_t i = 0; geteuid() == 0 && i < ARRAY_COUNT(tops); i++) {
		size_t bytes = strlen(tops[i]);

		if (strncmp(path, tops[i], bytes) == 0) {
			/* "/run/user/" is followed by the user's number. */
			bytes += i == 0 ? strcspn(path + bytes, "/") : 0;
			snprintf(top, sizeof(top), "%.*s", (int)bytes, path);
		}
	}
	if (top[0] == '\0') {
		return true;
	}
	pid = pid_of_name(path);
	return lstat(top, &owner) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0 &&
	       peer.uid == owner.st_uid && (pid == 0 || pid == (long)peer.pid);
}

/* Connects to the socket at path. Returns a descriptor or a negative errno. */
static int control_client_connect_to(const char *path, bool takes_files, uint64_t deadline_ns)
{
	struct sockaddr_un address;
	int folder_fd;
	int rc = control_address(path, &address, &folder_fd);
	int fd = rc == 0 ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;

	if (rc == 0 && fd < 0) {
		rc = -errno;
	}
	if (rc == 0 && !takes_files) {
		rights_refuse(fd);
	}
	if (rc == 0) {
		(void)rights_guard(fd);
	}
	if (rc == 0 && !control_client_set_limit(fd, deadline_ns)) {
		rc = -ETIMEDOUT;
	}
	if (rc == 0) {
		rc = connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ? -errno
											 : 0;
	}
	if (rc == 0 && !is_right_peer(fd, path)) {
		rc = -EXDEV;
	}
	if (rc == -EAGAIN) {
		rc = -ETIMEDOUT; /* the server's queue was full until the deadline */
	}
	if (folder_fd >= 0) {
		close(folder_fd);
	}
	if (rc < 0 && fd >= 0) {
		close(fd);
	}
	return rc < 0 ? rc : fd;
}

static int explain_connect(const char *path, int code, struct error *error)
{
	struct stat status;

	if (path[0] == '\0') {
		return error_set(error, -EINVAL, "the path of the control socket is empty");
	}
	if (code == -ECONNREFUSED && stat(path, &status) == 0 && !S_ISSOCK(status.st_mode)) {
		return error_set(error, -ENOTSOCK,
			"%s: not a gmblock control socket: it is not a socket", path);
	}
	if (code == -EXDEV) {
		return error_set(error, code,
			"%s: the listening process belongs to another user than the folder, "
			"or its process ID does not match the name of the socket",
			path);
	}
	return error_set(error, code, "%s: cannot connect: %s%s", path, strerror(-code),
		code == -ECONNREFUSED
			? "; no process listens there: the server has ended, so start it again"
		: code == -ENOENT ? "; no server has this control socket (\"gmblock list --local\" "
				    "lists the servers of this machine)"
		: code == -EACCES ? "; run the command as root or as the user of the server"
				  : "");
}

/* Sends a text. Errors are ignored, because reading the answer then also fails. */
static void control_client_send_text(int fd, const char *text, uint64_t deadline_ns)
{
	size_t left = strlen(text);

	while (left > 0 && control_client_set_limit(fd, deadline_ns)) {
		ssize_t sent = send(fd, text, left, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR) {
			continue;
		}
		if (sent <= 0) {
			return;
		}
		text += sent;
		left -= (size_t)sent;
	}
}

/* Sends the command. Takes ownership of arguments. */
static int control_client_send_command(int fd, const char *command, json_t *arguments,
	const char *path, uint64_t deadline_ns, struct error *error)
{
	json_t *line = json_pack("{s:s, s:o*}", "command", command, "arguments", arguments);
	char *text = line != NULL ? json_dumps(line, JSON_COMPACT) : NULL;

	json_decref(line);
	if (text == NULL) {
		return error_set(error, -ENOMEM, "%s: out of memory for a command", path);
	}
	if (strlen(text) >= CONTROL_COMMAND_BYTES) {
		free(text);
		return error_set(error, -EMSGSIZE, "%s: the command is too long", path);
	}
	control_client_send_text(fd, text, deadline_ns);
	control_client_send_text(fd, "\n", deadline_ns);
	free(text);
	return 0;
}

/* --- receiving ----------------------------------------------------------------------------- */

/* Closes the files on worker threads, because closing a file from another process can block for as
 * long as that process likes. */
static void dispose_files(
	const struct control_connection *connection, const int *fds, uint32_t count)
{
	if (count > 0) {
		dispose(&(struct disposal){
			.fds = fds,
			.fd_count = count,
			.of_peer = true,
			.owner = connection->owner,
		});
	}
}

/* Stores received files, which arrive before the line that belongs to them, or with this line. If
 * no files are expected, or some are stored already, closes the new ones and returns false. */
static bool keep_files(struct control_connection *connection, const int *fds, uint32_t count)
{
	if (count == 0) {
		return true;
	}
	if (!connection->takes_files || connection->file_count > 0 || count > CONTROL_FILES_MAX) {
		dispose_files(connection, fds, count);
		return false;
	}
	memcpy(connection->files, fds, count * sizeof(int));
	connection->file_count = count;
	return true;
}

/* Receives data and accompanying open files. Returns a negative errno on failure; -EPERM:
 * unexpected files. */
static ssize_t receive_with_files(struct control_connection *connection, void *into, size_t room)
{
	_Alignas(struct cmsghdr) uint8_t control[RIGHTS_CONTROL_BYTES];
	struct iovec iov = { .iov_base = into, .iov_len = room };
	struct msghdr message = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control) };
	ssize_t got = recvmsg(connection->fd, &message, MSG_CMSG_CLOEXEC);
	int fds[RIGHTS_MAX];

	if (got < 0) {
		return -errno;
	}
	return keep_files(connection, fds, rights_collect(&message, fds)) ? got : -EPERM;
}

/* Reads more input. Returns the number of bytes, 0 at the end, or a negative errno; -EAGAIN:
 * timeout. */
static ssize_t control_client_read_more(struct control_connection *connection, uint64_t deadline_ns)
{
	size_t room = MAX(connection->input_room * 2, (size_t)INPUT_BYTES_FIRST);
	char *input;
	ssize_t got;

	if (connection->input_bytes == connection->input_room) {
		input = room <= CONTROL_ANSWER_BYTES ? realloc(connection->input, room) : NULL;
		if (input == NULL) {
			return -ENOMEM;
		}
		connection->input = input;
		connection->input_room = room;
	}
	do {
		char *into = connection->input + connection->input_bytes;
		size_t left = connection->input_room - connection->input_bytes;

		if (!control_client_set_limit(connection->fd, deadline_ns)) {
			return -EAGAIN;
		}
		got = receive_with_files(connection, into, left);
	} while (got == -EINTR);
	if (got <= 0) {
		return got != -ECONNRESET ? got : 0;
	}
	connection->input_bytes += (size_t)got;
	return got;
}

static bool is_nbd_greeting(const struct control_connection *connection)
{
	static const char nbd_magic[] = "NBDMAGIC";

	return connection->input_bytes >= strlen(nbd_magic) &&
	       memcmp(connection->input, nbd_magic, strlen(nbd_magic)) == 0;
}

static int explain_read(
	const struct control_connection *connection, int code, int timeout_ms, struct error *error)
{
	if (is_nbd_greeting(connection)) {
		return error_set(error, -EPROTO,
			"%s: not a control socket, but the listening socket of an NBD server; for "
			"a gmblock server, use its URI nbd+unix:///?socket=%s",
			connection->path, connection->path);
	}
	if (code == -EAGAIN) {
		return error_set(error, -ETIMEDOUT,
			"%s: the server sent no response for %d seconds", connection->path,
			timeout_ms / 1000);
	}
	if (code == -EPERM) {
		return error_set(error, -EPROTO,
			"%s: not a gmblock control socket: the process there sends file "
			"descriptors",
			connection->path);
	}
	if (code == 0 && connection->input_bytes > 0) {
		return error_set(error, -EPROTO,
			"%s: not a gmblock control socket, or closed in the middle of a response",
			connection->path);
	}
	return error_set(error, code < 0 ? code : -ECONNRESET, "%s: no response: %s",
		connection->path, code < 0 ? strerror(-code) : "the server closed the connection");
}

/* Receives the next line as a JSON object. */
static int receive_object(struct control_connection *connection, uint64_t deadline_ns,
	int timeout_ms, json_t **value_out, struct error *error)
{
	json_error_t where;
	size_t searched = 0;
	char *end = NULL;
	ssize_t got = 1;

	/* Removes the previous line from the buffer. */
	connection->input_bytes -= connection->line_bytes;
	if (connection->input_bytes > 0) {
		memmove(connection->input, connection->input + connection->line_bytes,
			connection->input_bytes);
	}
	connection->line_bytes = 0;
	/* An NBD server sends no end of a line, and waits for the client. */
	while (got > 0 && !is_nbd_greeting(connection)) {
		size_t fresh = connection->input_bytes - searched;

		end = fresh > 0 ? memchr(connection->input + searched, '\n', fresh) : NULL;
		if (end != NULL) {
			break;
		}
		searched = connection->input_bytes;
		got = control_client_read_more(connection, deadline_ns);
	}
	if (end == NULL) {
		return explain_read(connection, (int)got, timeout_ms, error);
	}
	connection->line_bytes = (size_t)(end - connection->input) + 1;
	*value_out = json_loadb(connection->input, connection->line_bytes, 0, &where);
	if (!json_is_object(*value_out)) {
		json_decref(*value_out);
		return error_set(
			error, -EPROTO, "%s: not a gmblock control socket", connection->path);
	}
	return 0;
}

static int check_hello(
	const struct control_connection *connection, const json_t *hello, struct error *error)
{
	const char *service = json_string_value(json_object_get(hello, "service"));
	const char *version = json_string_value(json_object_get(hello, "version"));
	json_int_t protocol = json_integer_value(json_object_get(hello, "protocol"));

	if (service == NULL || strcmp(service, "gmblock control") != 0) {
		return error_set(
			error, -EPROTO, "%s: not a gmblock control socket", connection->path);
	}
	if (protocol != CONTROL_PROTOCOL) {
		return error_set(error, -EPROTONOSUPPORT,
			"%s: the server, gmblock %s, has version %lld of the control protocol, "
			"this program has version %d",
			connection->path, version != NULL ? quote(version) : "?",
			(long long)protocol, CONTROL_PROTOCOL);
	}
	return 0;
}

static int connect_and_ask(const char *path, const char *command, json_t *arguments,
	bool takes_files, int timeout_ms, struct control_connection **connection_out,
	struct error *error)
{
	struct control_connection *connection = calloc(1, sizeof(*connection));
	uint64_t deadline_ns = deadline_after(timeout_ms);
	char silent[EXPORT_URI_SILENT_BYTES];
	json_t *hello = NULL;
	int fd = control_client_connect_to(path, takes_files, deadline_ns);
	int rc;

	if (fd < 0) {
		json_decref(arguments);
		free(connection);
		return explain_connect(path, fd, error);
	}
	if (connection != NULL) {
		connection->path = strdup(path);
	}
	if (connection == NULL || connection->path == NULL) {
		json_decref(arguments);
		free(connection);
		close(fd);
		return error_oom_for(error, "a connection");
	}
	connection->fd = fd;
	connection->owner = rights_owner(fd);
	connection->takes_files = takes_files;
	/* A frozen server accepts connections, but sends no hello. A caller with a shorter limit
	 * reports it itself. */
	if (timeout_ms >= CONTROL_TIMEOUT_MS && !control_wait(connection, EXPORT_URI_SILENT_MS)) {
		log_warning("%s", export_uri_silent(silent, quote(path), (uint64_t)timeout_ms));
	}
	rc = receive_object(connection, deadline_ns, timeout_ms, &hello, error);
	if (rc == 0) {
		rc = check_hello(connection, hello, error);
		json_decref(hello);
	}
	if (rc == 0) {
		rc = control_client_send_command(fd, command, arguments, path, deadline_ns, error);
	} else {
		json_decref(arguments);
	}
	if (rc < 0) {
		control_disconnect(connection);
		return rc;
	}
	*connection_out = connection;
	return 0;
}

int control_connect(const char *path, const char *command, json_t *arguments, int timeout_ms,
	struct control_connection **connection_out, struct error *error)
{
	return connect_and_ask(path, command, arguments, false, timeout_ms, connection_out, error);
}

int control_connect_for_files(const char *path, const char *command, json_t *arguments,
	int timeout_ms, struct control_connection **connection_out, struct error *error)
{
	return connect_and_ask(path, command, arguments, true, timeout_ms, connection_out, error);
}

void control_disconnect(struct control_connection *connection)
{
	if (connection == NULL) {
		return;
	}
	dispose_files(connection, connection->files, connection->file_count);
	if (rights_may_come(connection->fd)) {
		dispose_socket(connection->fd, connection->owner, false);
	} else {
		close(connection->fd);
	}
	free(connection->path);
	free(connection->input);
	free(connection);
}

int control_connection_fd(const struct control_connection *connection)
{
	return connection->fd;
}

struct ucred control_connection_peer(const struct control_connection *connection)
{
	struct ucred peer = { .pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1 };
	socklen_t bytes = sizeof(peer);

	(void)getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
	return peer;
}

/* Returns the errno of a name such as "EBUSY"; EIO for an unknown name. */
static int errno_of(const char *name)
{
	for (int code = 1; name != NULL && code <= ERRNO_MAX; code++) {
		const char *other = strerrorname_np(code);

		if (other != NULL && strcmp(name, other) == 0) {
			return code;
		}
	}
	return EIO;
}

static int control_client_take_error(const json_t *object, struct error *error)
{
	const char *text = json_string_value(json_object_get(object, "text"));
	char shown[ERROR_TEXT_BYTES];

	return error_set(error, -errno_of(json_string_value(json_object_get(object, "code"))), "%s",
		text != NULL ? log_escape_sentence(shown, sizeof(shown), text)
			     : "the server gave no reason");
}

static int control_client_receive(struct control_connection *connection, uint64_t deadline_ns,
	int timeout_ms, json_t **value_out, struct error *error)
{
	json_t *line = NULL;
	json_t *value;
	int rc = receive_object(connection, deadline_ns, timeout_ms, &line, error);

	if (rc < 0) {
		return rc;
	}
	if ((value = json_object_get(line, "note")) != NULL) {
		*value_out = json_incref(value);
		rc = 1;
	} else if ((value = json_object_get(line, "result")) != NULL) {
		*value_out = json_incref(value);
	} else if ((value = json_object_get(line, "error")) != NULL) {
		rc = control_client_take_error(value, error);
	} else {
		rc = error_set(error, -EPROTO, "%s: invalid response", connection->path);
	}
	json_decref(line);
	return rc;
}

int control_receive(struct control_connection *connection, int timeout_ms, json_t **value_out,
	struct error *error)
{
	return control_client_receive(
		connection, deadline_after(timeout_ms), timeout_ms, value_out, error);
}

int control_receive_result(struct control_connection *connection, int timeout_ms,
	json_t **result_out, struct error *error)
{
	uint64_t deadline_ns = deadline_after(timeout_ms);
	json_t *value = NULL;
	int rc;

	while ((rc = control_client_receive(connection, deadline_ns, timeout_ms, &value, error)) >
		0) {
		json_decref(value);
	}
	if (rc == 0) {
		*result_out = value;
	}
	return rc;
}

int control_receive_files(struct control_connection *connection, int timeout_ms, json_t **value_out,
	int *fds, uint32_t count, struct error *error)
{
	int rc;

	rc = control_receive(connection, timeout_ms, value_out, error);
	if (rc >= 0 && (rc == 0 || connection->file_count != count)) {
		json_decref(*value_out);
		rc = error_set(error, -EPROTO, "%s: invalid response", connection->path);
	}
	if (rc < 0) {
		return rc;
	}
	memcpy(fds, connection->files, count * sizeof(int));
	connection->file_count = 0;
	return 0;
}

void control_finish(struct control_connection *connection)
{
	(void)shutdown(connection->fd, SHUT_WR);
}

bool control_wait(const struct control_connection *connection, int timeout_ms)
{
	struct pollfd entry = { .fd = connection->fd, .events = POLLIN };

	return connection->input_bytes > connection->line_bytes || poll(&entry, 1, timeout_ms) != 0;
}

bool control_wait_closed(struct control_connection *connection, int timeout_ms)
{
	uint64_t deadline_ns = deadline_after(timeout_ms);
	char ignored[64];
	ssize_t got;

	do {
		if (!control_client_set_limit(connection->fd, deadline_ns)) {
			return false;
		}
		got = read(connection->fd, ignored, sizeof(ignored));
	} while (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN)));
	return true;
}

int control_ask(const char *path, const char *command, json_t *arguments, int timeout_ms,
	json_t **result_out, struct error *error)
{
	struct control_connection *connection;
	int rc = control_connect(path, command, arguments, timeout_ms, &connection, error);

	if (rc == 0) {
		rc = control_receive_result(connection, timeout_ms, result_out, error);
		control_disconnect(connection);
	}
	return rc;
}
