// SPDX-License-Identifier: Apache-2.0
/*
 * What code that has taken over a server would try, from inside: a process that has opened what a
 * server has, and has given up what a server gives up. Each way out is tried by system call and
 * through a ring, in a child of its own; 77 where the kernel lacks what a case is about.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "ring/calls.h"
#include "sandbox/sandbox.h"
#include "unit.h"

enum { PATH_BYTES = 64, PASSED = 0, FAILED = 1, PROTOCOL_MPTCP = 262, FAMILY_VSOCK = 40 };

static char folder[PATH_BYTES];

static int make_folder(void **state)
{
	snprintf(folder, sizeof(folder), "/tmp/gmblock-escapes-XXXXXX");
	return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
	static const char *const names[] = { "file", "stream", "datagrams" };
	char path[2 * PATH_BYTES];

	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		unlink(path);
	}
	return rmdir(folder);
}

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition,  \
				errno);                                                            \
			_exit(FAILED);                                                             \
		}                                                                                  \
	} while (0)

/* --- the process ----------------------------------------------------------------------------- */

/* What a server has when it begins to serve, and what it could reach from there. */
struct server {
	struct io_uring ring;
	int file; /* open for reading */
	int tcp_listener;
	int tcp_socket; /* not connected, as shutdown() would make a listener */
	int pair[2];
	int datagrams; /* as that to a service manager */
	struct sockaddr_in other_tcp;
	struct sockaddr_un other_stream;
	struct sockaddr_un other_datagrams;
	pid_t other_process;
};

static struct server server;

static void listen_at(struct sockaddr_un *address, int type, const char *name)
{
	int fd = socket(AF_UNIX, type, 0);

	address->sun_family = AF_UNIX;
	snprintf(address->sun_path, sizeof(address->sun_path), "%s/%s", folder, name);
	unlink(address->sun_path);
	CHECK(bind(fd, (const struct sockaddr *)address, sizeof(*address)) == 0);
	CHECK(type == SOCK_DGRAM || listen(fd, 1) == 0);
}

static int listen_tcp(struct sockaddr_in *address)
{
	socklen_t bytes = sizeof(*address);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	*address = (struct sockaddr_in){ .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(bind(fd, (const struct sockaddr *)address, bytes) == 0 && listen(fd, 4) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)address, &bytes) == 0);
	return fd;
}

static void open_server(void)
{
	const struct ring_options options = {
		.entries = 8, .files_max = 8, .buffers_max = 8, .is_restricted = true
	};
	struct ring_features features;
	struct sockaddr_in own;
	char path[2 * PATH_BYTES];

	signal(SIGPIPE, SIG_IGN);
	CHECK(ring_setup(&server.ring, &options, &features) == 0);
	snprintf(path, sizeof(path), "%s/file", folder);
	server.file = open(path, O_CREAT | O_RDWR, 0600);
	CHECK(server.file >= 0);
	listen_at(&server.other_stream, SOCK_STREAM, "stream");
	listen_at(&server.other_datagrams, SOCK_DGRAM, "datagrams");
	(void)listen_tcp(&server.other_tcp);
	server.tcp_listener = listen_tcp(&own);
	server.tcp_socket = socket(AF_INET, SOCK_STREAM, 0);
	server.datagrams = socket(AF_UNIX, SOCK_DGRAM, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, server.pair) == 0);
	server.other_process = getppid();
}

static void serve(bool connects)
{
	struct sandbox sandbox = { .connects = connects };
	struct error error = { 0 };

	open_server();
	CHECK(sandbox_allow(&sandbox, folder, SANDBOX_READ | SANDBOX_WRITE, &error) == 0);
	CHECK(sandbox_allow(&sandbox, "/proc", SANDBOX_READ, &error) == 0);
	CHECK(sandbox_enter(&sandbox, SANDBOX_ON, &error) == 0);
	CHECK(sandbox_seal(SANDBOX_ON, &error) == 0);
	sandbox_fini(&sandbox);
}

static void serve_only(void)
{
	serve(false);
}

static void serve_and_push(void)
{
	serve(true);
}

static void in_child(void (*begin)(void), void (*run)(void))
{
	struct sandbox_support support;
	struct io_uring ring;
	int status;
	pid_t pid;

	sandbox_probe(&support);
	if (support.landlock == 0 || !support.seccomp || io_uring_queue_init(4, &ring, 0) < 0) {
		fprintf(stderr, "this kernel has no Landlock, seccomp or io_uring\n");
		skip();
	}
	io_uring_queue_exit(&ring);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		begin();
		run();
		_exit(PASSED);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != PASSED) {
		fail_msg("the child ended with status %x", (unsigned int)status);
	}
}

/* Refused by a filter or for want of a capability, and not because it was called in a wrong way. */
static bool is_refused(long result)
{
	return result == -1 && (errno == EPERM || errno == ENOSYS || errno == EACCES);
}

#define REFUSED(call) CHECK(is_refused(call))

/* --- other sockets --------------------------------------------------------------------------- */

static long connect_to(int fd, const void *address, size_t bytes)
{
	return connect(fd, address, (socklen_t)bytes);
}

static long send_to(int fd, int flags, const void *address, size_t bytes)
{
	return sendto(fd, "x", 1, flags, address, (socklen_t)bytes);
}

static long send_message(int fd, int flags, void *address, size_t bytes)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t) "x", .iov_len = 1 };
	struct msghdr message = { .msg_name = address,
		.msg_namelen = (socklen_t)bytes,
		.msg_iov = &iov,
		.msg_iovlen = 1 };

	return sendmsg(fd, &message, flags);
}

/* In every server. */
static void no_way_around_connect(void)
{
	struct mmsghdr messages[1] = { 0 };

	REFUSED(send_to(
		server.tcp_socket, MSG_FASTOPEN, &server.other_tcp, sizeof(server.other_tcp)));
	REFUSED(send_message(
		server.tcp_socket, MSG_FASTOPEN, &server.other_tcp, sizeof(server.other_tcp)));
	REFUSED(send_to(
		server.datagrams, 0, &server.other_datagrams, sizeof(server.other_datagrams)));
	REFUSED(sendmmsg(server.datagrams, messages, 1, 0));
	/* A server that stops listening has a socket to connect with. */
	CHECK(shutdown(server.tcp_listener, SHUT_RDWR) == 0);
	REFUSED(send_message(
		server.tcp_listener, MSG_FASTOPEN, &server.other_tcp, sizeof(server.other_tcp)));
	REFUSED(socket(AF_INET, SOCK_DGRAM, 0));
	REFUSED(socket(AF_INET6, SOCK_DGRAM, IPPROTO_UDP));
	REFUSED(socket(AF_INET, SOCK_STREAM, PROTOCOL_MPTCP));
	REFUSED(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
	REFUSED(socket(AF_UNIX, SOCK_DGRAM, 0));
	REFUSED(socket(AF_NETLINK, SOCK_RAW, 0));
	REFUSED(socket(AF_PACKET, SOCK_RAW, 0));
	REFUSED(socket(FAMILY_VSOCK, SOCK_STREAM, 0));
	REFUSED(socketpair(AF_UNIX, SOCK_DGRAM, 0, (int[2]){ 0 }));
	REFUSED(bind(server.tcp_socket, (const struct sockaddr *)&server.other_tcp,
		sizeof(server.other_tcp)));
	/* What serving needs. */
	CHECK(send_to(server.pair[0], 0, NULL, 0) == 1);
	CHECK(send_message(server.pair[0], 0, NULL, 0) == 1);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, (int[2]){ 0 }) == 0);
}

static void no_connection(void)
{
	int stream = server.tcp_socket;

	REFUSED(socket(AF_INET, SOCK_STREAM, 0));
	REFUSED(socket(AF_UNIX, SOCK_STREAM, 0));
	REFUSED(connect_to(stream, &server.other_tcp, sizeof(server.other_tcp)));
	REFUSED(connect_to(
		server.datagrams, &server.other_datagrams, sizeof(server.other_datagrams)));
	REFUSED(connect_to(server.pair[0], &server.other_stream, sizeof(server.other_stream)));
	no_way_around_connect();
}

/* Unix sockets, and TCP where Landlock names the port: none here. */
static void connections_of_push(void)
{
	struct sandbox_support support;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	sandbox_probe(&support);
	CHECK(connect_to(fd, &server.other_stream, sizeof(server.other_stream)) == 0);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
	CHECK(fd >= 0);
	if (support.landlock >= 4) {
		REFUSED(connect_to(fd, &server.other_tcp, sizeof(server.other_tcp)));
	}
	no_way_around_connect();
}

TEST(test_no_connection)
{
	in_child(serve_only, no_connection);
}

TEST(test_push_connects_and_no_more)
{
	in_child(serve_and_push, connections_of_push);
}

/* --- other files and processes --------------------------------------------------------------- */

static void no_attributes(void)
{
	const struct timespec times[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
	char path[2 * PATH_BYTES];
	long flags = FS_IMMUTABLE_FL;

	snprintf(path, sizeof(path), "%s/file", folder);
	REFUSED(chmod(path, 0777));
	REFUSED(fchmod(server.file, 0777));
	REFUSED(fchmodat(AT_FDCWD, path, 0777, 0));
	REFUSED(chown(path, getuid(), getgid()));
	REFUSED(fchown(server.file, getuid(), getgid()));
	REFUSED(lchown(path, getuid(), getgid()));
	REFUSED(utimensat(AT_FDCWD, path, times, 0));
	REFUSED(futimens(server.file, times));
	REFUSED(setxattr(path, "user.x", "y", 1, 0));
	REFUSED(fsetxattr(server.file, "user.x", "y", 1, 0));
	REFUSED(fremovexattr(server.file, "user.x"));
	REFUSED(ioctl(server.file, FS_IOC_SETFLAGS, &flags));
	REFUSED(fcntl(server.file, F_SETLEASE, F_RDLCK));
	REFUSED(mkdir(path, 0700));
	REFUSED(rename(path, path));
	REFUSED(link(path, path));
	REFUSED(symlink(path, path));
}

static void no_processes(void)
{
	static const char *const traced_only[] = { "environ", "maps", "mem" };
	const struct sched_param param = { .sched_priority = 0 };
	const pid_t other = server.other_process;
	struct rlimit limit;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	REFUSED(kill(other, 0));
	REFUSED(kill(-1, 0));
	REFUSED(syscall(SYS_tgkill, other, other, 0));
	REFUSED(syscall(SYS_tkill, other, 0));
	REFUSED(syscall(SYS_rt_sigqueueinfo, other, 0, NULL));
	REFUSED(syscall(SYS_pidfd_open, other, 0));
	REFUSED(prlimit(other, RLIMIT_NOFILE, NULL, &limit));
	REFUSED(prlimit(0, RLIMIT_NOFILE, &(struct rlimit){ 64, 64 }, NULL));
	REFUSED(setpriority(PRIO_PROCESS, (id_t)other, 0));
	REFUSED(setpriority(PRIO_USER, 0, 0));
	REFUSED(sched_setaffinity(other, sizeof(cpus), &cpus));
	REFUSED(sched_setscheduler(other, SCHED_OTHER, &param));
	REFUSED(sched_setparam(other, &param));
	REFUSED(fcntl(server.pair[0], F_SETOWN, other));
	for (size_t i = 0; i < ARRAY_COUNT(traced_only); i++) {
		char path[PATH_BYTES];

		snprintf(path, sizeof(path), "/proc/%d/%s", (int)other, traced_only[i]);
		REFUSED(open(path, O_RDONLY | O_CLOEXEC));
	}
#if !defined(__SANITIZE_ADDRESS__)
	REFUSED(prctl(PR_SET_PTRACER, other, 0, 0, 0));
#endif
	CHECK(prlimit(0, RLIMIT_NOFILE, NULL, &limit) == 0);
	CHECK(kill(getpid(), 0) == 0 && setpriority(PRIO_PROCESS, 0, 19) == 0);
}

#if !defined(__SANITIZE_ADDRESS__)
static void no_process_of_its_own(void)
{
	REFUSED(fork());
}
#endif

TEST(test_no_attributes)
{
	in_child(serve_and_push, no_attributes);
}

TEST(test_no_processes)
{
	in_child(serve_and_push, no_processes);
#if !defined(__SANITIZE_ADDRESS__) /* whose leak check is one */
	in_child(serve_and_push, no_process_of_its_own);
#endif
}

/* What is left of root's. capget() itself is refused. */
static void few_capabilities(void)
{
	static const int kept[] = { CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_IPC_LOCK };
	const char *at;
	char status[8192] = "";
	unsigned long long permitted;
	int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0 && read(fd, status, sizeof(status) - 1) > 0);
	at = strstr(status, "CapPrm:");
	CHECK(at != NULL && sscanf(at, "CapPrm: %llx", &permitted) == 1);
	for (size_t i = 0; i < ARRAY_COUNT(kept); i++) {
		permitted &= ~(1ULL << kept[i]);
	}
	CHECK(permitted == 0);
}

TEST(test_few_capabilities)
{
	in_child(serve_and_push, few_capabilities);
}

/* --- rings ----------------------------------------------------------------------------------- */

static const uint8_t operations[] = { IORING_OP_ACCEPT, IORING_OP_ASYNC_CANCEL, IORING_OP_FADVISE,
	IORING_OP_FALLOCATE, IORING_OP_FSYNC, IORING_OP_POLL_ADD, IORING_OP_READ,
	IORING_OP_READ_FIXED, IORING_OP_RECV, IORING_OP_RECVMSG, IORING_OP_TIMEOUT,
	IORING_OP_TIMEOUT_REMOVE, IORING_OP_WRITE, IORING_OP_WRITEV, IORING_OP_WRITE_FIXED };
static const uint8_t registrations[] = { IORING_REGISTER_BUFFERS_UPDATE, IORING_REGISTER_EVENTFD,
	IORING_REGISTER_FILES_UPDATE, IORING_UNREGISTER_RING_FDS };

static bool is_in(uint8_t code, const uint8_t *list, size_t count)
{
	return memchr(list, code, count) != NULL;
}

static struct io_uring_sqe *next_sqe(void)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&server.ring);

	CHECK(sqe != NULL);
	return sqe;
}

static int ring_result(void)
{
	struct io_uring_cqe *cqe;
	int result;

	CHECK(io_uring_submit_and_wait(&server.ring, 1) == 1);
	CHECK(io_uring_wait_cqe(&server.ring, &cqe) == 0);
	result = cqe->res;
	io_uring_cqe_seen(&server.ring, cqe);
	return result;
}

/* The kernel looks at the code first: -EINVAL is of one that it does not know. */
static void no_other_operation(void)
{
	for (unsigned code = 0; code <= UINT8_MAX; code++) {
		struct io_uring_sqe *sqe;
		int result;

		if (is_in((uint8_t)code, operations, sizeof(operations))) {
			continue;
		}
		sqe = next_sqe();
		memset(sqe, 0, sizeof(*sqe));
		sqe->opcode = (uint8_t)code;
		sqe->fd = -1;
		result = ring_result();
		if (result != -EACCES && (code < IORING_OP_LAST || result != -EINVAL)) {
			fprintf(stderr, "operation %u gives %d\n", code, result);
			_exit(FAILED);
		}
	}
}

static void no_flag_of_others(void)
{
	static const uint8_t flags[] = { IOSQE_ASYNC, IOSQE_IO_DRAIN, IOSQE_IO_LINK };

	for (size_t i = 0; i < sizeof(flags); i++) {
		struct io_uring_sqe *sqe = next_sqe();

		io_uring_prep_fsync(sqe, server.file, 0);
		io_uring_sqe_set_flags(sqe, flags[i]);
		CHECK(ring_result() == -EACCES);
	}
	io_uring_prep_fsync(next_sqe(), server.file, 0);
	CHECK(ring_result() == 0);
}

static void no_other_registration(void)
{
	int fd = server.ring.ring_fd;

	for (unsigned code = 0; code < 64; code++) {
		if (is_in((uint8_t)code, registrations, sizeof(registrations))) {
			continue;
		}
		CHECK(syscall(SYS_io_uring_register, fd, code, NULL, 0) == -1 &&
			(errno == EACCES || errno == EINVAL));
		CHECK(code >= IORING_REGISTER_LAST || errno == EACCES);
	}
}

/* What is left does not go where it is told. */
static void no_address_in_a_write(void)
{
	struct io_uring_sqe *sqe = next_sqe();
	int result;

	io_uring_prep_write(sqe, server.tcp_socket, "x", 1, 0);
	sqe->addr2 = (uintptr_t)&server.other_tcp;
	sqe->rw_flags = MSG_FASTOPEN;
	result = ring_result();
	CHECK(result < 0 && result != -EINPROGRESS);
	CHECK(getpeername(server.tcp_socket, (struct sockaddr *)&(struct sockaddr_in){ 0 },
		      &(socklen_t){ sizeof(struct sockaddr_in) }) == -1);
}

static void no_other_ring(void)
{
	struct io_uring_params params = { 0 };
	struct io_uring ring;

	CHECK(syscall(SYS_io_uring_setup, 4, &params) == -1 && errno == EPERM);
	CHECK(io_uring_queue_init(4, &ring, 0) == -EPERM);
}

static void run_rings(void)
{
	no_other_operation();
	no_flag_of_others();
	no_other_registration();
	no_address_in_a_write();
	no_other_ring();
}

TEST(test_rings)
{
	in_child(serve_only, run_rings);
	in_child(serve_and_push, run_rings);
}

/* --- threads --------------------------------------------------------------------------------- */

static pthread_barrier_t sealed;

static void *try_on_thread(void *unused)
{
	pthread_barrier_wait(&sealed); /* it is there */
	pthread_barrier_wait(&sealed); /* and the filter, too */
	no_other_ring();
	REFUSED(socket(AF_INET, SOCK_STREAM, 0));
	return NULL;
}

static void seal_with_a_thread(void)
{
	struct sandbox sandbox = { 0 };
	struct error error = { 0 };
	pthread_t thread;

	open_server();
	CHECK(sandbox_enter(&sandbox, SANDBOX_ON, &error) == 0);
	CHECK(pthread_barrier_init(&sealed, NULL, 2) == 0);
	CHECK(pthread_create(&thread, NULL, try_on_thread, NULL) == 0);
	pthread_barrier_wait(&sealed);
	CHECK(sandbox_seal(SANDBOX_ON, &error) == 0);
	pthread_barrier_wait(&sealed);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void nothing(void)
{
}

TEST(test_threads_that_were_there)
{
	in_child(seal_with_a_thread, nothing);
}

/* --- what needs none of it ------------------------------------------------------------------- */

/* A connection of which much is unsent is ended without connect(): its peer does not get the rest,
 * and no end in order. */
static void abort_without_connect(void)
{
	struct ring_file file = { .slot = -1 };
	struct sockaddr_in address;
	int listener = listen_tcp(&address);
	struct sandbox sandbox = { 0 };
	struct error error = { 0 };
	int peer = socket(AF_INET, SOCK_STREAM, 0);
	char bytes[65536] = { 0 };
	ssize_t got;

	CHECK(connect_to(peer, &address, sizeof(address)) == 0);
	file.fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	CHECK(file.fd >= 0);
	while (send(file.fd, bytes, sizeof(bytes), MSG_NOSIGNAL) > 0) {
	}
	CHECK(sandbox_enter(&sandbox, SANDBOX_ON, &error) == 0);
	CHECK(sandbox_seal(SANDBOX_ON, &error) == 0);
	ring_socket_abort(NULL, file);
	ring_socket_close(NULL, file.fd);
	do {
		got = recv(peer, bytes, sizeof(bytes), 0);
	} while (got > 0);
	CHECK(got == -1 && errno == ECONNRESET);
}

TEST(test_abort_without_connect)
{
	in_child(abort_without_connect, nothing);
}

int main(void)
{
	return unit_run(make_folder, remove_folder);
}
