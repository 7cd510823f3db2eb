// SPDX-License-Identifier: Apache-2.0
/* What a process can still do in the sandbox, each case in a child of its own; 77 where the kernel
 * lacks what the case is about. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <liburing.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/sandbox.h"
#include "unit.h"

enum { PATH_BYTES = 128, PASSED = 0, FAILED = 1 };

static char folder[PATH_BYTES];
static char inside[PATH_BYTES + 16];  /* folder/in/file */
static char outside[PATH_BYTES + 16]; /* folder/out/file */

static void make_file(char *path, const char *name)
{
	char parent[PATH_BYTES + 8];
	int fd;

	snprintf(parent, sizeof(parent), "%s/%s", folder, name);
	assert_int_equal(mkdir(parent, 0700), 0);
	snprintf(path, PATH_BYTES + 16, "%s/file", parent);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
}

static int make_files(void **state)
{
	snprintf(folder, sizeof(folder), "/tmp/gmblock-sandbox-XXXXXX");
	assert_non_null(mkdtemp(folder));
	make_file(inside, "in");
	make_file(outside, "out");
	return 0;
}

static int remove_files(void **state)
{
	char *const paths[] = { inside, outside };

	for (size_t i = 0; i < ARRAY_COUNT(paths); i++) {
		unlink(paths[i]);
		*strrchr(paths[i], '/') = '\0';
		rmdir(paths[i]);
	}
	return rmdir(folder);
}

/* Runs the case in a child, where a failed check is an exit status. */
static void in_child(void (*run)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		run();
		_exit(PASSED);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != PASSED) {
		fail_msg("the child ended with status %x", (unsigned int)status);
	}
}

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition,  \
				errno);                                                            \
			_exit(FAILED);                                                             \
		}                                                                                  \
	} while (0)

static void need(bool landlock, bool seccomp)
{
	struct sandbox_support support;

	sandbox_probe(&support);
	if ((landlock && support.landlock == 0) || (seccomp && !support.seccomp)) {
		fprintf(stderr, "this kernel has no %s\n", landlock ? "Landlock" : "seccomp");
		skip();
	}
}

/* Only what is beside the inner file is left. */
static void enter(uint32_t access)
{
	struct sandbox sandbox = { 0 };
	struct error error = { 0 };

	CHECK(sandbox_allow_beside(&sandbox, inside, access, NULL, &error) == 0);
	CHECK(sandbox_enter(&sandbox, SANDBOX_AUTO, &error) == 0);
	sandbox_fini(&sandbox);
}

static int try_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	if (fd < 0) {
		return -errno;
	}
	close(fd);
	return 0;
}

/* --- files ----------------------------------------------------------------------------------- */

static void run_files(void)
{
	struct error error = { 0 };
	char absent[sizeof(inside) + 8];

	enter(SANDBOX_READ);
	CHECK(try_open(inside, O_RDONLY) == 0);
	CHECK(try_open(inside, O_RDWR) == -EACCES);
	CHECK(try_open(outside, O_RDONLY) == -EACCES);
	CHECK(unlink(inside) == -1 && errno == EACCES);

	error_set(&error, -EACCES, "cannot open it");
	CHECK(!sandbox_explain(inside, false, "restart", &error));
	CHECK(strstr(error.text, "sandbox") == NULL);
	/* It may be read there, and was to be written. */
	error_set(&error, -EACCES, "cannot open 'a;b': denied; change its permissions");
	CHECK(sandbox_explain(inside, true, "restart", &error));
	CHECK(strstr(error.text, "cannot open 'a;b': denied (the sandbox allows only reading") !=
		NULL);
	/* One that is not there is no reason, but for those who would make it. */
	snprintf(absent, sizeof(absent), "%s.absent", inside);
	error_set(&error, -EACCES, "cannot use its neighbour");
	CHECK(!sandbox_explain(absent, false, "restart", &error));
	CHECK(strcmp(error.text, "cannot use its neighbour") == 0);
	CHECK(sandbox_explain(absent, true, "restart", &error));
	CHECK(strstr(error.text, "the sandbox does not allow creating files") != NULL);
	error_set(&error, -EACCES, "cannot open it");
	sandbox_explain(outside, false, "restart", &error);
	CHECK(strstr(error.text, "--sandbox=off") != NULL);
	error_set(&error, -ENOENT, "cannot open it");
	sandbox_explain(outside, false, "restart", &error);
	CHECK(strstr(error.text, "sandbox") == NULL);
}

TEST(test_files)
{
	need(true, false);
	in_child(run_files);
}

static void *open_both(void *unused)
{
	CHECK(try_open(inside, O_RDWR) == 0);
	CHECK(try_open(outside, O_RDONLY) == -EACCES);
	return NULL;
}

static void run_threads(void)
{
	pthread_t thread;

	enter(SANDBOX_READ | SANDBOX_WRITE);
	CHECK(pthread_create(&thread, NULL, open_both, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

TEST(test_threads)
{
	need(true, false);
	in_child(run_threads);
}

/* --- io_uring -------------------------------------------------------------------------------- */

/* The result of an open through the ring; async: by a worker of the kernel. */
static int ring_open(struct io_uring *ring, const char *path, bool async)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int result;

	CHECK(sqe != NULL);
	io_uring_prep_openat(sqe, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (async) {
		io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
	}
	CHECK(io_uring_submit_and_wait(ring, 1) == 1);
	CHECK(io_uring_wait_cqe(ring, &cqe) == 0);
	result = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	if (result >= 0) {
		close(result);
	}
	return result;
}

/* A ring and its workers from before the sandbox, and one from after it. */
static void run_uring(void)
{
	struct io_uring rings[2];

	CHECK(io_uring_queue_init(4, &rings[0], 0) == 0);
	CHECK(ring_open(&rings[0], outside, true) >= 0);
	CHECK(ring_open(&rings[0], outside, false) >= 0);
	enter(SANDBOX_READ);
	CHECK(io_uring_queue_init(4, &rings[1], 0) == 0);
	for (size_t i = 0; i < ARRAY_COUNT(rings); i++) {
		for (int async = 0; async < 2; async++) {
			CHECK(ring_open(&rings[i], inside, async) >= 0);
			CHECK(ring_open(&rings[i], outside, async) == -EACCES);
		}
		io_uring_queue_exit(&rings[i]);
	}
}

TEST(test_uring)
{
	struct io_uring ring;

	need(true, false);
	if (io_uring_queue_init(4, &ring, 0) < 0) {
		fprintf(stderr, "this kernel has no io_uring\n");
		skip();
	}
	io_uring_queue_exit(&ring);
	in_child(run_uring);
}

/* --- system calls ---------------------------------------------------------------------------- */

static void run_calls(void)
{
	static char *const arguments[] = { NULL };
	void *memory;

	enter(SANDBOX_READ);
	CHECK(execve("/bin/true", arguments, arguments) == -1 && errno == ENOSYS);
	CHECK(unshare(CLONE_NEWUSER) == -1 && errno == ENOSYS);
	CHECK(setuid(getuid()) == -1 && errno == ENOSYS);
	CHECK(socket(AF_PACKET, SOCK_RAW, 0) == -1 && errno == ENOSYS);
	CHECK(socket(AF_INET6, SOCK_STREAM, 0) >= 0);
	CHECK(socket(AF_UNIX, SOCK_SEQPACKET, 0) >= 0);
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	CHECK(mprotect(memory, 4096, PROT_READ | PROT_EXEC) == -1 && errno == ENOSYS);
	CHECK(mprotect(memory, 4096, PROT_READ) == 0);
}

TEST(test_calls)
{
	need(false, true);
	in_child(run_calls);
}

/* --- folders --------------------------------------------------------------------------------- */

/* A file in a folder for everybody, such as /tmp, is allowed without the folder. */
static void run_broad(void)
{
	CHECK(chmod(dirname(strdupa(inside)), 01777) == 0);
	enter(SANDBOX_READ);
	CHECK(try_open(inside, O_RDONLY) == 0);
	CHECK(try_open(dirname(strdupa(inside)), O_RDONLY) == -EACCES);
}

static void run_narrow(void)
{
	CHECK(chmod(dirname(strdupa(inside)), 0700) == 0);
	CHECK(!sandbox_is_broad(dirname(strdupa(inside))));
	enter(SANDBOX_READ);
	CHECK(try_open(dirname(strdupa(inside)), O_RDONLY) == 0);
}

/* The folder of a user's programs, where other programs keep their sockets. */
static void run_of_user(void)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("none", "/run", "tmpfs", 0, NULL) < 0) {
		_exit(PASSED); /* only root can */
	}
	CHECK(mkdir("/run/user", 0755) == 0);
	CHECK(mkdir("/run/user/4711", 0700) == 0);
	CHECK(mkdir("/run/user/4711/gmblock", 0700) == 0);
	CHECK(sandbox_is_broad("/run/user/4711"));
	CHECK(!sandbox_is_broad("/run/user/4711/gmblock"));
}

static int try_port(uint16_t port)
{
	const struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	int result = connect(fd, (const struct sockaddr *)&address, sizeof(address));

	result = result < 0 ? -errno : 0;
	close(fd);
	return result;
}

/* Listens at a free port. */
static int listen_at(uint16_t *port)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(bind(fd, (const struct sockaddr *)&address, bytes) == 0);
	CHECK(listen(fd, 4) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&address, &bytes) == 0);
	*port = ntohs(address.sin_port);
	return fd;
}

static void connect_to_ports(bool any)
{
	struct sandbox sandbox = { 0 };
	struct error error = { 0 };
	uint16_t named;
	uint16_t other;

	(void)listen_at(&named);
	(void)listen_at(&other);
	for (int i = 0; i <= SANDBOX_PORTS_MAX; i++) { /* one port, however often it is named */
		sandbox_allow_port(&sandbox.connect_ports, named);
	}
	if (any) {
		sandbox_allow_port(&sandbox.connect_ports, 0);
	}
	CHECK(sandbox_enter(&sandbox, SANDBOX_ON, &error) == 0);
	CHECK(try_port(named) == 0);
	CHECK(try_port(other) == (any ? 0 : -EACCES));
}

static void one_port(void)
{
	connect_to_ports(false);
}

static void any_port(void)
{
	connect_to_ports(true);
}

static int try_bind(int family, uint16_t port)
{
	const struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	struct sockaddr_un path = { .sun_family = AF_UNIX };
	int fd = socket(family, SOCK_STREAM, 0);
	int result;

	CHECK(fd >= 0);
	snprintf(path.sun_path, sizeof(path.sun_path), "%.90s/socket", folder);
	result = family == AF_UNIX ? bind(fd, (const struct sockaddr *)&path, sizeof(path))
				   : bind(fd, (const struct sockaddr *)&address, sizeof(address));
	result = result < 0 ? -errno : 0;
	close(fd);
	(void)unlink(path.sun_path);
	return result;
}

/* A server that connects, so that it has TCP sockets, and makes Unix sockets. */
static void bind_to_ports(void)
{
	struct sandbox sandbox = { .connects = true, .makes_sockets = true };
	struct error error = { 0 };
	uint16_t named;
	uint16_t other;

	close(listen_at(&named));
	close(listen_at(&other));
	sandbox_allow_port(&sandbox.bind_ports, named);
	CHECK(sandbox_allow(&sandbox, folder, SANDBOX_SOCKETS, &error) == 0);
	CHECK(sandbox_enter(&sandbox, SANDBOX_ON, &error) == 0);
	CHECK(sandbox_seal(SANDBOX_ON, &error) == 0);
	CHECK(try_bind(AF_UNIX, 0) == 0);
	CHECK(try_bind(AF_INET, named) != -EACCES);
	CHECK(try_bind(AF_INET, other) == -EACCES);
	CHECK(try_bind(AF_INET, 0) == -EACCES);
}

TEST(test_ports)
{
	struct sandbox_support support;

	need(true, true);
	sandbox_probe(&support);
	if (support.landlock < 4) {
		skip();
	}
	in_child(one_port);
	in_child(any_port);
	in_child(bind_to_ports);
}

TEST(test_broad)
{
	static const char *const folders[] = { "/", "/etc", "/etc/ssl/private", "/home", "/root",
		"/srv", "/srv/", "/usr/../var/lib", "/tmp", "/no/such/folder" };

	for (size_t i = 0; i < ARRAY_COUNT(folders); i++) {
		assert_true(sandbox_is_broad(folders[i]));
	}
	in_child(run_of_user);
	need(true, false);
	in_child(run_broad);
	in_child(run_narrow);
}

/* --- modes ----------------------------------------------------------------------------------- */

static void run_off(void)
{
	struct sandbox sandbox = { 0 };
	struct error error = { 0 };

	CHECK(sandbox_enter(&sandbox, SANDBOX_OFF, &error) == 0);
	CHECK(try_open(outside, O_RDWR) == 0);
	error_set(&error, -EACCES, "cannot open it");
	sandbox_explain(outside, false, "restart", &error);
	CHECK(strstr(error.text, "sandbox") == NULL);
}

TEST(test_off)
{
	in_child(run_off);
}

static void run_users(void)
{
	struct sandbox_user user;
	struct error error = { 0 };

	CHECK(sandbox_find_user("nobody", &user, &error) == 0 && user.uid != 0);
	CHECK(sandbox_find_user("4711:4712", &user, &error) == 0);
	CHECK(user.uid == 4711 && user.gid == 4712);
	CHECK(sandbox_find_user("4711", &user, &error) == -EINVAL);
	CHECK(sandbox_find_user("root", &user, &error) == -EINVAL);
	CHECK(sandbox_find_user("0:0", &user, &error) == -EINVAL);
	CHECK(sandbox_find_user("nobody:no-such-group", &user, &error) == -ENOENT);
	CHECK(sandbox_find_user("no-such-user", &user, &error) == -ENOENT);
	CHECK(sandbox_find_user("", &user, &error) == -ENOENT);
	CHECK(sandbox_find_user("4711:4712", &user, &error) == 0);
	if (geteuid() != 0) {
		CHECK(sandbox_become(&user, &error) == -EPERM);
		return;
	}
	CHECK(sandbox_become(&user, &error) == 0);
	CHECK(getuid() == 4711 && geteuid() == 4711 && getegid() == 4712 &&
		getgroups(0, NULL) == 0);
	CHECK(setuid(0) == -1);
	CHECK(sandbox_become(&user, &error) == 0); /* nothing changes */
	user.uid = 4713;
	CHECK(sandbox_become(&user, &error) == -EPERM);
}

TEST(test_users)
{
	in_child(run_users);
}

int main(void)
{
	return unit_run(make_files, remove_files);
}
