// SPDX-License-Identifier: Apache-2.0
/*
 * The C library's names for creating, copying and closing descriptors and for starting processes,
 * and the constructor and destructor of the library.
 */
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "sockets/hooks.h"
#include "sockets/kernel.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum { ARGUMENTS_MAX = 4096, OPTION_WAIT_MS = 100 };

static bool is_active(void)
{
	return atomic_load_explicit(&core.active, memory_order_relaxed);
}

/* Called for a new descriptor of libclan or of the program. If its number is in the table, the old
 * descriptor was closed by a call that we did not see. */
static int hooks_life_made(int fd)
{
	if (fd >= 0 && core_calls()) {
		return core_own(fd);
	}
	if (fd >= 0 && object_at(fd) != NULL && core_lock()) {
		object_replaced(fd);
		core_unlock();
	}
	return fd;
}

/* Called before a descriptor is closed. Returns false, with errno, in the handler of a crash signal
 * that has interrupted the library. */
static bool ends(int fd)
{
	if (object_at(fd) != NULL) {
		if (!core_lock()) {
			return false;
		}
		object_remove(fd);
		core_unlock();
	}
	return true;
}

/* --- creation --------------------------------------------------------------------------------- */

EXPORT int socket(int domain, int type, int protocol)
{
	return hooks_life_made(REAL(socket)(domain, type, protocol));
}

EXPORT int eventfd(unsigned int value, int flags)
{
	return hooks_life_made(REAL(eventfd)(value, flags));
}

EXPORT int timerfd_create(int clock, int flags)
{
	return hooks_life_made(REAL(timerfd_create)(clock, flags));
}

EXPORT int pipe2(int fds[2], int flags)
{
	int result = REAL(pipe2)(fds, flags);

	if (result == 0) {
		fds[0] = hooks_life_made(fds[0]);
		fds[1] = hooks_life_made(fds[1]);
	}
	return result;
}

EXPORT int memfd_create(const char *name, unsigned int flags)
{
	return hooks_life_made(REAL(memfd_create)(name, flags));
}

static bool is_stream(int fd)
{
	int type;
	socklen_t length = sizeof(type);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

static bool name_matches(int fd, bool any_address)
{
	struct sockaddr_storage name;
	socklen_t length = sizeof(name);
	struct rules_address address;

	if (getsockname(fd, (struct sockaddr *)&name, &length) != 0 ||
		!rules_address_of((struct sockaddr *)&name, length, &address)) {
		return false;
	}
	return any_address ? rules_match_port(&core.rules, RULES_LISTEN, address.port)
			   : rules_match(&core.rules, RULES_LISTEN, &address);
}

/* Returns true if connections of this listener must be checked against the rules. The kernel is
 * asked once. */
static bool is_listener(int fd)
{
	struct object *object = object_at(fd);

	if (object == NULL && is_active() && core_lock()) {
		object = is_stream(fd) && name_matches(fd, true) ? &sockets_listener
								 : &sockets_other_listener;
		object_add(fd, object);
		core_unlock();
	}
	return object == &sockets_listener;
}

static int accepted(int listener, int fd)
{
	if (fd < 0) {
		return fd;
	}
	hooks_life_made(fd);
	if (is_listener(listener) && name_matches(fd, false)) {
		conn_track(fd, false);
	}
	return fd;
}

EXPORT int accept(int fd, struct sockaddr *address, socklen_t *length)
{
	return accepted(fd, REAL(accept)(fd, address, length));
}

EXPORT int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	return accepted(fd, REAL(accept4)(fd, address, length, flags));
}

void hooks_connected(int fd, const struct sockaddr *to, socklen_t length)
{
	struct rules_address address;
	int saved = errno;

	if (is_active() && rules_address_of(to, length, &address) &&
		rules_match(&core.rules, RULES_CONNECT, &address) && is_stream(fd)) {
		conn_track(fd, true);
	}
	errno = saved;
}

/* Called before connect() dissolves a connection. */
static void end_here(int fd)
{
	struct conn *conn = conn_at(fd);

	if (conn != NULL && core_lock()) {
		conn = conn_at(fd);
		if (conn != NULL) {
			conn_unfit(conn, REASON_CALL);
		}
		core_unlock();
	}
}

/* connect() to AF_UNSPEC ends an existing connection. A new connection is tracked if a rule
 * matches, also while its establishment is in progress. */
EXPORT int connect(int fd, const struct sockaddr *address, socklen_t length)
{
	int result;

	if (core_calls()) {
		return REAL(connect)(fd, address, length);
	}
	if (address != NULL && length >= sizeof(address->sa_family) &&
		address->sa_family == AF_UNSPEC) {
		end_here(fd);
	}
	result = REAL(connect)(fd, address, length);
	if ((result == 0 || errno == EINPROGRESS) && object_at(fd) == NULL) {
		hooks_connected(fd, address, length);
	}
	return result;
}

/* --- options ---------------------------------------------------------------------------------- */

/* For an option that the library cannot emulate, returns the connection to TCP first. If a timeout
 * of blocking calls has changed, reads the timeouts again. */
EXPORT int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
	struct conn *conn = conn_at(fd);
	int result;

	if (conn != NULL && !kernel_option_fits(level, option, value, length) && core_lock()) {
		bool carried = false;

		conn = conn_at(fd);
		if (conn != NULL) {
			carried = conn_is_carried(conn);
			conn_unfit(conn, REASON_OPTION);
		}
		if (carried) {
			(void)conn_bring_back_one(conn, REASON_OPTION, OPTION_WAIT_MS);
		}
		core_unlock();
		if (carried && level == IPPROTO_TCP && option == TCP_ULP) {
			errno = ENOENT; /* same error as from a kernel without kTLS */
			return -1;
		}
	}
	result = REAL(setsockopt)(fd, level, option, value, length);
	if (result == 0 && conn_at(fd) != NULL && level == SOL_SOCKET &&
		(option == SO_RCVTIMEO || option == SO_SNDTIMEO) && core_lock()) {
		conn = conn_at(fd);
		if (conn != NULL && conn_is_carried(conn)) {
			conn_learn_limits(conn);
		}
		core_unlock();
	}
	return result;
}

/* Before shutdown() ends the writing direction of TCP, conn_leave() moves our writes from the ring
 * back to TCP. The connection is looked up again under the lock, because another thread can close
 * it in between. */
EXPORT int shutdown(int fd, int how)
{
	struct conn *conn = conn_at(fd);

	if (conn != NULL && conn_is_carried(conn) && core_lock()) {
		conn = conn_at(fd);
		if (conn != NULL && conn_is_carried(conn)) {
			conn->tcp_event = true;
			if (how != SHUT_RD) {
				conn_leave(conn, REASON_SHUTDOWN);
			}
		}
		core_unlock();
	}
	return REAL(shutdown)(fd, how);
}

/* O_ASYNC cannot be emulated, because the kernel does not see the bytes of a ring. */
static void flags_changed(int fd, int flags)
{
	struct conn *conn = conn_at(fd);

	if (conn == NULL || !core_lock()) {
		return;
	}
	conn = conn_at(fd);
	if (conn != NULL) {
		conn->nonblocking = (flags & O_NONBLOCK) != 0;
		if ((flags & O_ASYNC) != 0) {
			conn_unfit(conn, REASON_OPTION);
		}
	}
	core_unlock();
}

/* Determines the number of readable bytes. Returns -1 if the kernel must answer. */
static int readable(int fd, int *bytes)
{
	struct conn *conn = conn_at(fd);
	int result = -1;

	if (conn != NULL && conn_is_carried(conn) && core_lock()) {
		conn = conn_at(fd);
		if (conn != NULL && conn_is_carried(conn)) {
			uint64_t limit;

			core_look(false);
			data_pull(conn, SOCKETS_LOOK_BYTES);
			*bytes = 0;
			if (switch_place(&conn->side, &limit) == SWITCH_TCP) {
				(void)REAL(ioctl)(fd, FIONREAD, bytes);
			}
			*bytes += (int)conn_buffered(conn);
			result = 0;
		}
		core_unlock();
	}
	return result;
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	void *argument;
	int result;

	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	if (object_at(fd) == NULL || core_calls()) {
		return REAL(ioctl)(fd, request, argument);
	}
	if (request == FIONREAD && argument != NULL && readable(fd, argument) == 0) {
		return 0;
	}
	result = REAL(ioctl)(fd, request, argument);
	if (result == 0 && (request == FIONBIO || request == FIOASYNC)) {
		flags_changed(fd, REAL(fcntl64)(fd, F_GETFL));
	}
	return result;
}

/* --- copies ----------------------------------------------------------------------------------- */

/* Adds fd to the table as another descriptor of the object at `from`. If the lock cannot be taken,
 * fd is closed. */
static int hooks_life_copied(int from, int fd)
{
	struct object *object;

	fd = hooks_life_made(fd);
	object = object_at(from);
	if (fd >= 0 && object != NULL && !core_calls()) {
		if (!core_lock()) { /* an untracked copy would write to TCP */
			REAL(close)(fd);
			errno = EINTR;
			return -1;
		}
		object_add(fd, object);
		core_unlock();
	}
	return fd;
}

EXPORT int fcntl64(int fd, int command, ...)
{
	va_list arguments;
	void *argument;
	int result;

	va_start(arguments, command);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	result = REAL(fcntl64)(fd, command, argument);
	if (result < 0 || core_calls() || object_at(fd) == NULL) {
		return result;
	}
	if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
		return hooks_life_copied(fd, result);
	}
	if (command == F_SETFL) {
		flags_changed(fd, (int)(intptr_t)argument);
	}
	return result;
}

EXPORT int fcntl(int fd, int command, ...)
{
	va_list arguments;
	void *argument;

	va_start(arguments, command);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	return fcntl64(fd, command, argument);
}

EXPORT int dup(int fd)
{
	return hooks_life_copied(fd, REAL(dup)(fd));
}

/* Prepares for dup2(), which closes `to`. Returns false, with errno, if `to` is a descriptor of the
 * library, or in the handler of a crash if `to` is tracked. */
static bool hooks_life_make_room(int from, int to)
{
	if (!core_calls() && core_owns(to)) {
		errno = EBUSY;
		return false;
	}
	/* The C library's own streams (stdin, stdout, stderr) bypass our functions, so a connection
	 * that replaces one returns to TCP. */
	if (to <= STDERR_FILENO && !core_calls()) {
		(void)hooks_leave(from);
	}
	return from == to || REAL(fcntl64)(from, F_GETFD) < 0 || ends(to);
}

EXPORT int dup2(int from, int to)
{
	int fd;

	if (!hooks_life_make_room(from, to)) {
		return -1;
	}
	fd = REAL(dup2)(from, to);
	return from == to ? fd : hooks_life_copied(from, fd);
}

EXPORT int dup3(int from, int to, int flags)
{
	return hooks_life_make_room(from, to) ? hooks_life_copied(from, REAL(dup3)(from, to, flags))
					      : -1;
}

/* --- closing ---------------------------------------------------------------------------------- */

EXPORT int close(int fd)
{
	if (core_calls()) {
		core_disown(fd);
	} else if (!ends(fd)) {
		return -1;
	} else if (core_owns(fd)) {
		/* Our descriptors must stay open: some programs close all numbers, including those
		 * that belong to files that they did not open. */
		errno = EBADF;
		return -1;
	}
	return REAL(close)(fd);
}

/* Closes the ranges between our own descriptors, which must stay open. */
EXPORT int close_range(unsigned int first, unsigned int last, int flags)
{
	unsigned int from = first;

	if (first > last || (flags & CLOSE_RANGE_CLOEXEC) != 0 || !is_active()) {
		return REAL(close_range)(first, last, flags);
	}
	for (unsigned int fd = first; fd <= last && fd < SOCKETS_FDS_MAX; fd++) {
		if (object_at((int)fd) != NULL) {
			(void)ends((int)fd);
		}
		if (core_owns((int)fd)) {
			if (fd > from && REAL(close_range)(from, fd - 1, flags) != 0) {
				return -1;
			}
			from = fd + 1;
		}
	}
	return from > last ? 0 : REAL(close_range)(from, last, flags);
}

EXPORT void closefrom(int first)
{
	(void)close_range((unsigned int)MAX(first, 0), UINT32_MAX, 0);
}

/* --- processes -------------------------------------------------------------------------------- */

EXPORT pid_t fork(void)
{
	pid_t pid = REAL(fork)();

	if (pid < 0) {
		process_fork_failed();
	}
	return pid;
}

/* vfork() is replaced by fork() if the library is active, because the child of a true vfork() would
 * change our memory. Otherwise our vfork() jumps to the C library's, because a function that
 * returns twice needs the stack frame of its caller. */
pid_t (*hooks_vfork)(void) = fork;

#if defined(__x86_64__)
__asm__(".text\n"
	".globl vfork\n"
	".type vfork, @function\n"
	"vfork:\n"
	"	endbr64\n"
	"	jmp *hooks_vfork(%rip)\n"
	".size vfork, .-vfork\n");
#elif defined(__aarch64__)
__asm__(".text\n"
	".globl vfork\n"
	".type vfork, %function\n"
	"vfork:\n"
	"	hint #34\n" /* bti c */
	"	adrp x16, hooks_vfork\n"
	"	ldr x16, [x16, :lo12:hooks_vfork]\n"
	"	br x16\n"
	".size vfork, .-vfork\n");
#else
EXPORT pid_t vfork(void)
{
	return fork();
}
#endif

EXPORT int execve(const char *path, char *const *arguments, char *const *environment)
{
	bool began = process_before_exec();
	int result = REAL(execve)(path, arguments, environment);

	process_exec_failed(began);
	return result;
}

EXPORT int execv(const char *path, char *const *arguments)
{
	return execve(path, arguments, environ);
}

EXPORT int execvpe(const char *file, char *const *arguments, char *const *environment)
{
	bool began = process_before_exec();
	int result = REAL(execvpe)(file, arguments, environment);

	process_exec_failed(began);
	return result;
}

EXPORT int execvp(const char *file, char *const *arguments)
{
	return execvpe(file, arguments, environ);
}

EXPORT int fexecve(int fd, char *const *arguments, char *const *environment)
{
	bool began = process_before_exec();
	int result = REAL(fexecve)(fd, arguments, environment);

	process_exec_failed(began);
	return result;
}

EXPORT int execveat(
	int folder, const char *path, char *const *arguments, char *const *environment, int flags)
{
	bool began = process_before_exec();
	int result = REAL(execveat)(folder, path, arguments, environment, flags);

	process_exec_failed(began);
	return result;
}

/* Collects the arguments of execl() and similar functions, up to NULL. Returns false if there are
 * too many. */
static bool hooks_life_collect(char **list, const char *first, va_list arguments)
{
	size_t count = 0;

	list[count++] = (char *)(uintptr_t)first;
	while (list[count - 1] != NULL) {
		if (count == ARGUMENTS_MAX) {
			errno = E2BIG;
			return false;
		}
		list[count++] = va_arg(arguments, char *);
	}
	return true;
}

EXPORT int execl(const char *path, const char *first, ...)
{
	char *list[ARGUMENTS_MAX];
	va_list arguments;
	bool fits;

	va_start(arguments, first);
	fits = hooks_life_collect(list, first, arguments);
	va_end(arguments);
	return fits ? execve(path, list, environ) : -1;
}

EXPORT int execlp(const char *file, const char *first, ...)
{
	char *list[ARGUMENTS_MAX];
	va_list arguments;
	bool fits;

	va_start(arguments, first);
	fits = hooks_life_collect(list, first, arguments);
	va_end(arguments);
	return fits ? execvpe(file, list, environ) : -1;
}

EXPORT int execle(const char *path, const char *first, ...)
{
	char *list[ARGUMENTS_MAX];
	char *const *environment = NULL;
	va_list arguments;
	bool fits;

	va_start(arguments, first);
	fits = hooks_life_collect(list, first, arguments);
	if (fits) {
		environment = va_arg(arguments, char *const *);
	}
	va_end(arguments);
	return fits ? execve(path, list, environment) : -1;
}

/* Declares that the current function starts a program. The declaration holds until the function
 * ends, also if its thread is cancelled. */
#define SPAWNING                                                                                   \
	__attribute__((cleanup(process_after_spawn))) const bool began = process_before_spawn();   \
	GMB_UNUSED(began)

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
	const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment)
{
	SPAWNING;

	return REAL(posix_spawn)(pid, path, actions, attributes, arguments, environment);
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
	const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment)
{
	SPAWNING;

	return REAL(posix_spawnp)(pid, file, actions, attributes, arguments, environment);
}

/* Returns the connection to TCP, because the started program gets a copy of the descriptor, even if
 * FD_CLOEXEC is set on `from`. */
EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int from, int to)
{
	(void)hooks_leave(from);
	return REAL(posix_spawn_file_actions_adddup2)(actions, from, to);
}

EXPORT int system(const char *command)
{
	SPAWNING;

	return REAL(system)(command);
}

EXPORT FILE *popen(const char *command, const char *mode)
{
	SPAWNING;

	return REAL(popen)(command, mode);
}

/* --- the library ------------------------------------------------------------------------------ */

/* Returns the rules, which the caller must free: the contents of the file if where is an absolute
 * path, otherwise a copy of where itself. NULL: the file cannot be opened, or out of memory. */
static char *read_rules(const char *where)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *file;

	if (where[0] != '/') {
		return strdup(where);
	}
	file = fopen(where, "re");
	if (file == NULL) {
		return NULL;
	}
	if (getdelim(&text, &bytes, '\0', file) < 0) {
		free(text);
		text = strdup("");
	}
	fclose(file);
	return text;
}

/* Without CLAN_SOCKETS, or with wrong rules, the library stays inactive, and all calls go to the C
 * library. */
__attribute__((constructor)) static void sockets_init(void)
{
	const char *where = getenv("CLAN_SOCKETS");
	const char *program = program_invocation_short_name;
	struct error error = { 0 };
	char *text;

	real_find_all();
	hooks_vfork = REAL(vfork);
	if (where == NULL) {
		return;
	}
	text = read_rules(where);
	if (text == NULL) {
		stats_log(true, "cannot read %s: %s", where, strerror(errno));
		return;
	}
	if (rules_parse(&core.rules, text, program, &error) != 0) {
		stats_log(true, "%s: no connections are carried", error.text);
	} else if (rules_apply(&core.rules)) {
		list_init(&core.touched);
		list_init(&core.carried);
		stats_init(program);
		atomic_store(&core.active, true);
		hooks_vfork = fork;
		process_init();
		signals_init();
	}
	free(text);
}

__attribute__((destructor)) static void sockets_fini(void)
{
	if (is_active()) {
		stats_write();
	}
}
