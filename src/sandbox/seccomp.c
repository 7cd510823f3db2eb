// SPDX-License-Identifier: Apache-2.0
/*
 * System call filters (seccomp(2)), built with libseccomp. The first filter is a list of allowed
 * calls, some by argument. The second, applied once everything listens, removes calls that only
 * the start needs. The kernel caches calls that are allowed with any arguments, so the length of
 * the list has no cost.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/blkzoned.h>
#include <linux/fs.h>
#include <linux/pr.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sandbox/layers.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAVE_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAVE_SANITIZER 1
#endif
#endif
#ifndef HAVE_SANITIZER
#define HAVE_SANITIZER 0
#endif

/* Calls that some headers lack; their numbers are the same on all architectures. */
#ifndef __NR_futex_wake
#define __NR_futex_wake	   454
#define __NR_futex_wait	   455
#define __NR_futex_requeue 456
#endif

/* Result of calls without a rule: the same error as on a kernel that does not have the call,
 * because libraries can handle this error. */
#define UNKNOWN SCMP_ACT_ERRNO(ENOSYS)

/* Calls that the server, the C library, GnuTLS and libfabric use while serving, allowed with any
 * arguments. Among the calls that are not allowed are those that start programs, trace or signal
 * other processes, change users, change modes, owners or attributes of files, mount, set clocks,
 * load modules or use keys. */
static const int allowed_calls[] = {
	/* memory */
	SCMP_SYS(brk),
	SCMP_SYS(madvise),
	SCMP_SYS(membarrier),
	SCMP_SYS(memfd_create),
	SCMP_SYS(mincore),
	SCMP_SYS(mlock),
	SCMP_SYS(mlock2),
	SCMP_SYS(mremap),
	SCMP_SYS(msync),
	SCMP_SYS(munlock),
	SCMP_SYS(munmap),
	SCMP_SYS(get_mempolicy),
	SCMP_SYS(mbind),
	SCMP_SYS(set_mempolicy),
	/* threads and the process */
	SCMP_SYS(exit),
	SCMP_SYS(exit_group),
	SCMP_SYS(futex),
	SCMP_SYS(futex_waitv),
	SCMP_SYS(futex_wake),
	SCMP_SYS(futex_wait),
	SCMP_SYS(futex_requeue),
	SCMP_SYS(getcpu),
	SCMP_SYS(getegid),
	SCMP_SYS(geteuid),
	SCMP_SYS(getgid),
	SCMP_SYS(getgroups),
	SCMP_SYS(getpid),
	SCMP_SYS(getppid),
	SCMP_SYS(getpriority),
	SCMP_SYS(getresgid),
	SCMP_SYS(getresuid),
	SCMP_SYS(getrusage),
	SCMP_SYS(gettid),
	SCMP_SYS(getuid),
	SCMP_SYS(restart_syscall),
	SCMP_SYS(rseq),
	SCMP_SYS(rt_sigaction),
	SCMP_SYS(rt_sigpending),
	SCMP_SYS(rt_sigprocmask),
	SCMP_SYS(rt_sigreturn),
	SCMP_SYS(rt_sigtimedwait),
	SCMP_SYS(sched_get_priority_max),
	SCMP_SYS(sched_get_priority_min),
	SCMP_SYS(sched_getaffinity),
	SCMP_SYS(sched_getattr),
	SCMP_SYS(sched_getparam),
	SCMP_SYS(sched_getscheduler),
	SCMP_SYS(sched_yield),
	SCMP_SYS(set_robust_list),
	SCMP_SYS(set_tid_address),
	SCMP_SYS(sigaltstack),
	SCMP_SYS(signalfd4),
	SCMP_SYS(sysinfo),
	SCMP_SYS(uname),
	SCMP_SYS(wait4),
	SCMP_SYS(waitid),
	SCMP_SYS(getrandom),
	/* time */
	SCMP_SYS(clock_getres),
	SCMP_SYS(clock_gettime),
	SCMP_SYS(clock_nanosleep),
	SCMP_SYS(gettimeofday),
	SCMP_SYS(nanosleep),
	SCMP_SYS(timerfd_create),
	SCMP_SYS(timerfd_gettime),
	SCMP_SYS(timerfd_settime),
	SCMP_SYS(times),
	/* files */
	SCMP_SYS(close),
	SCMP_SYS(close_range),
	SCMP_SYS(copy_file_range),
	SCMP_SYS(dup),
	SCMP_SYS(dup3),
	SCMP_SYS(faccessat),
	SCMP_SYS(faccessat2),
	SCMP_SYS(fadvise64),
	SCMP_SYS(fallocate),
	SCMP_SYS(fdatasync),
	SCMP_SYS(flock),
	SCMP_SYS(fstat),
	SCMP_SYS(fstatfs),
	SCMP_SYS(fsync),
	SCMP_SYS(ftruncate),
	SCMP_SYS(getcwd),
	SCMP_SYS(getdents64),
	SCMP_SYS(lseek),
	SCMP_SYS(newfstatat),
	SCMP_SYS(openat),
	SCMP_SYS(openat2),
	SCMP_SYS(pipe2),
	SCMP_SYS(pread64),
	SCMP_SYS(preadv),
	SCMP_SYS(preadv2),
	SCMP_SYS(pwrite64),
	SCMP_SYS(pwritev),
	SCMP_SYS(pwritev2),
	SCMP_SYS(read),
	SCMP_SYS(readahead),
	SCMP_SYS(readlinkat),
	SCMP_SYS(readv),
	SCMP_SYS(sendfile),
	SCMP_SYS(splice),
	SCMP_SYS(statfs),
	SCMP_SYS(statx),
	SCMP_SYS(sync_file_range),
	SCMP_SYS(unlinkat),
	SCMP_SYS(write),
	SCMP_SYS(writev),
	/* events and io_uring */
	SCMP_SYS(epoll_create1),
	SCMP_SYS(epoll_ctl),
	SCMP_SYS(epoll_pwait),
	SCMP_SYS(epoll_pwait2),
	SCMP_SYS(eventfd2),
	SCMP_SYS(io_uring_enter),
	SCMP_SYS(io_uring_register),
	SCMP_SYS(ppoll),
	SCMP_SYS(pselect6),
	/* sockets */
	SCMP_SYS(accept),
	SCMP_SYS(accept4),
	SCMP_SYS(getpeername),
	SCMP_SYS(getsockname),
	SCMP_SYS(getsockopt),
	SCMP_SYS(listen),
	SCMP_SYS(recvfrom),
	SCMP_SYS(recvmmsg),
	SCMP_SYS(recvmsg),
	SCMP_SYS(setsockopt),
	SCMP_SYS(shutdown),
	/* calls of older architectures only; SCMP_SYS() is negative where a call does not exist */
	SCMP_SYS(access),
	SCMP_SYS(arch_prctl),
	SCMP_SYS(dup2),
	SCMP_SYS(epoll_create),
	SCMP_SYS(epoll_wait),
	SCMP_SYS(eventfd),
	SCMP_SYS(getdents),
	SCMP_SYS(getrlimit),
	SCMP_SYS(lstat),
	SCMP_SYS(open),
	SCMP_SYS(pipe),
	SCMP_SYS(poll),
	SCMP_SYS(readlink),
	SCMP_SYS(select),
	SCMP_SYS(signalfd),
	SCMP_SYS(stat),
	SCMP_SYS(time),
	SCMP_SYS(unlink),
};

/* Allows a call if its argument argument_idx, ANDed with the mask, equals value. If a call has
 * several entries, one match is sufficient. */
struct choice {
	int call;
	uint32_t argument_idx;
	uint64_t mask;
	uint64_t value;
};

#define ALL UINT64_MAX
/* Commands of fcntl(), its second argument. Commands for signal owners, leases and notifications
 * are not allowed. */
#define FCNTL(command)                                                                             \
	{                                                                                          \
		SCMP_SYS(fcntl), 1, ALL, command                                                   \
	}
#define IOCTL(request)                                                                             \
	{                                                                                          \
		SCMP_SYS(ioctl), 1, ALL, request                                                   \
	}

static const struct choice choices[] = {
	FCNTL(F_ADD_SEALS),
	FCNTL(F_DUPFD),
	FCNTL(F_DUPFD_CLOEXEC),
	FCNTL(F_GETFD),
	FCNTL(F_GETFL),
	FCNTL(F_GETLK),
	FCNTL(F_GETPIPE_SZ),
	FCNTL(F_GET_SEALS),
	FCNTL(F_OFD_GETLK),
	FCNTL(F_OFD_SETLK),
	FCNTL(F_OFD_SETLKW),
	FCNTL(F_SETFD),
	FCNTL(F_SETFL),
	FCNTL(F_SETLK),
	FCNTL(F_SETLKW),
	FCNTL(F_SETPIPE_SZ),
	IOCTL(BLKDISCARD),
	IOCTL(BLKFINISHZONE),
	IOCTL(BLKGETSIZE64),
	IOCTL(BLKPBSZGET),
	IOCTL(BLKREPORTZONE),
	IOCTL(BLKRESETZONE),
	IOCTL(BLKROGET),
	IOCTL(BLKSSZGET),
	IOCTL(BLKZEROOUT),
	IOCTL(FICLONERANGE),
	IOCTL(FIONBIO),
	IOCTL(FIONREAD),
	/* Persistent reservations of disks that the server has open for writing. */
	IOCTL(IOC_PR_CLEAR),
	IOCTL(IOC_PR_PREEMPT_ABORT),
	IOCTL(IOC_PR_REGISTER),
	IOCTL(IOC_PR_RELEASE),
	IOCTL(IOC_PR_RESERVE),
	IOCTL(_IOWR('p', 206, uint64_t[2])), /* IOC_PR_READ_KEYS of Linux 6.19 */
	IOCTL(_IOR('p', 207, uint64_t[2])),  /* IOC_PR_READ_RESERVATION */
	IOCTL(SIOCOUTQ),
	IOCTL(TCGETS), /* isatty() */
	{ SCMP_SYS(prctl), 0, ALL, PR_GET_NAME },
	{ SCMP_SYS(prctl), 0, ALL, PR_SET_NAME },
	{ SCMP_SYS(prctl), 0, ALL, PR_SET_VMA },
	/* sendmsg() with MSG_FASTOPEN would connect to an address in memory, which a filter cannot
	 * check. */
	{ SCMP_SYS(sendmsg), 2, MSG_FASTOPEN, 0 },
};

/* Calls with which libfabric, its drivers and their libraries find RDMA adapters and network
 * interfaces. */
static const struct choice network_choices[] = {
	{ SCMP_SYS(ioctl), 1, 0xff00, 0x1b00 }, /* RDMA_IOCTL_MAGIC */
	IOCTL(SIOCETHTOOL),
	IOCTL(SIOCGIFADDR),
	IOCTL(SIOCGIFCONF),
	IOCTL(SIOCGIFFLAGS),
	IOCTL(SIOCGIFHWADDR),
	IOCTL(SIOCGIFINDEX),
	IOCTL(SIOCGIFMTU),
	IOCTL(SIOCGIFNAME),
	IOCTL(SIOCGIFNETMASK),
	{ SCMP_SYS(sendmmsg), 3, MSG_FASTOPEN, 0 },
	{ SCMP_SYS(sendto), 3, MSG_FASTOPEN, 0 },
};

/* A filter under construction. It keeps the first error. */
struct filter {
	scmp_filter_ctx context;
	int code;
};

static void seccomp_add(struct filter *filter, uint32_t action, int call, uint32_t count,
	const struct scmp_arg_cmp *arguments)
{
	if (filter->code == 0 && call >= 0) {
		filter->code =
			seccomp_rule_add_array(filter->context, action, call, count, arguments);
	}
}

static void allow(struct filter *filter, int call)
{
	seccomp_add(filter, SCMP_ACT_ALLOW, call, 0, NULL);
}

static void allow_choices(struct filter *filter, const struct choice *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct scmp_arg_cmp is_it = SCMP_CMP(list[i].argument_idx, SCMP_CMP_MASKED_EQ,
			list[i].mask, list[i].value & list[i].mask);

		seccomp_add(filter, SCMP_ACT_ALLOW, list[i].call, 1, &is_it);
	}
}

/* Allows sockets of a type, with any flags. protocol: 0 is the type's default. */
static void allow_socket(struct filter *filter, int call, int family, int type, int protocol)
{
	const struct scmp_arg_cmp is_it[] = {
		SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)family),
		SCMP_A1(SCMP_CMP_MASKED_EQ, ~(scmp_datum_t)(SOCK_CLOEXEC | SOCK_NONBLOCK),
			(scmp_datum_t)type),
		SCMP_A2(SCMP_CMP_EQ, (scmp_datum_t)protocol),
	};

	seccomp_add(filter, SCMP_ACT_ALLOW, call, ARRAY_COUNT(is_it), is_it);
}

static void allow_sockets(struct filter *filter, bool loads_code)
{
	static const int families[] = { AF_INET, AF_INET6 };

	allow_socket(filter, SCMP_SYS(socket), AF_UNIX, SOCK_STREAM, 0);
	allow_socket(filter, SCMP_SYS(socket), AF_UNIX, SOCK_SEQPACKET, 0);
	/* Upgrades use such a socket pair. Unlike a datagram socket, one end of the pair cannot be
	 * connected to another socket. */
	allow_socket(filter, SCMP_SYS(socketpair), AF_UNIX, SOCK_SEQPACKET, 0);
	for (size_t i = 0; i < ARRAY_COUNT(families); i++) {
		allow_socket(filter, SCMP_SYS(socket), families[i], SOCK_STREAM, 0);
		allow_socket(filter, SCMP_SYS(socket), families[i], SOCK_STREAM, IPPROTO_TCP);
		if (loads_code) {
			allow_socket(filter, SCMP_SYS(socket), families[i], SOCK_DGRAM, 0);
			allow_socket(
				filter, SCMP_SYS(socket), families[i], SOCK_DGRAM, IPPROTO_UDP);
		}
	}
	if (loads_code) {
		const struct scmp_arg_cmp is_netlink =
			SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)AF_NETLINK);

		seccomp_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, &is_netlink);
		allow_socket(filter, SCMP_SYS(socketpair), AF_UNIX, SOCK_STREAM, 0);
	}
}

/* Allows calls on this process and this thread only; limits can only be read. */
static void allow_processes(struct filter *filter)
{
	const struct scmp_arg_cmp is_ours = SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid());
	const struct scmp_arg_cmp reads_limit[] = {
		SCMP_A0(SCMP_CMP_EQ, 0),
		SCMP_A2(SCMP_CMP_EQ, 0),
	};
	const struct scmp_arg_cmp is_thread[] = {
		SCMP_A0(SCMP_CMP_EQ, PRIO_PROCESS),
		SCMP_A1(SCMP_CMP_EQ, 0),
	};

	seccomp_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(kill), 1, &is_ours);
	seccomp_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, &is_ours);
	seccomp_add(
		filter, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), ARRAY_COUNT(reads_limit), reads_limit);
	seccomp_add(
		filter, SCMP_ACT_ALLOW, SCMP_SYS(setpriority), ARRAY_COUNT(is_thread), is_thread);
}

/* Allows starting threads. With a sanitizer, allows starting processes too: its leak check at exit
 * runs as a separate process that stops and reads this one. */
static void allow_threads(struct filter *filter)
{
	const scmp_datum_t namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS |
					CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
	const scmp_datum_t is_thread = HAVE_SANITIZER ? 0 : CLONE_THREAD;
	const struct scmp_arg_cmp flags =
		SCMP_A0(SCMP_CMP_MASKED_EQ, namespaces | is_thread, is_thread);

	seccomp_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, &flags);
	if (HAVE_SANITIZER) {
		allow(filter, SCMP_SYS(personality));
		allow(filter, SCMP_SYS(prctl));
		allow(filter, SCMP_SYS(ptrace));
	}
}

static void seccomp_allow_memory(struct filter *filter, bool loads_code)
{
	const struct scmp_arg_cmp is_data = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
	const uint32_t count = loads_code ? 0 : 1;

	seccomp_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), count, &is_data);
	seccomp_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), count, &is_data);
}

static void write_list(struct filter *filter, const struct sandbox *sandbox)
{
	bool loads_code = sandbox->loads_code;
	const struct scmp_arg_cmp has_no_address[] = {
		SCMP_A3(SCMP_CMP_MASKED_EQ, MSG_FASTOPEN, 0),
		SCMP_A4(SCMP_CMP_EQ, 0),
	};

	for (size_t i = 0; i < ARRAY_COUNT(allowed_calls); i++) {
		allow(filter, allowed_calls[i]);
	}
	if (sandbox->renames) {
		allow(filter, SCMP_SYS(renameat));
		allow(filter, SCMP_SYS(renameat2));
	}
	if (sandbox->makes_sockets) {
		allow(filter, SCMP_SYS(umask)); /* the mode of a socket file */
	}
	allow(filter, SCMP_SYS(bind));
	allow(filter, SCMP_SYS(connect));
	allow(filter, SCMP_SYS(fchmod)); /* for a Unix socket that will listen */
	allow(filter, SCMP_SYS(io_uring_setup));
	allow(filter, SCMP_SYS(seccomp)); /* to load the second filter */
	allow_choices(filter, choices, ARRAY_COUNT(choices));
	allow_sockets(filter, loads_code);
	allow_processes(filter);
	allow_threads(filter);
	seccomp_allow_memory(filter, loads_code);
	if (loads_code) {
		allow_choices(filter, network_choices, ARRAY_COUNT(network_choices));
	} else {
		seccomp_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(sendto), ARRAY_COUNT(has_no_address),
			has_no_address);
	}
}

/* Writes the second filter. listen() remains allowed, because after a failed upgrade it makes the
 * sockets report this process as their owner again. */
static void write_seal(struct filter *filter, const struct sandbox *sandbox)
{
	const struct scmp_arg_cmp is_of_network = SCMP_A0(SCMP_CMP_NE, AF_UNIX);
	const uint32_t refused = SCMP_ACT_ERRNO(EPERM);

	seccomp_add(filter, refused, SCMP_SYS(fchmod), 0, NULL);
	seccomp_add(filter, refused, SCMP_SYS(io_uring_setup), 0, NULL);
	seccomp_add(filter, refused, SCMP_SYS(seccomp), 0, NULL);
	if (!sandbox->connects && !sandbox->loads_code) {
		seccomp_add(filter, refused, SCMP_SYS(connect), 0, NULL);
		seccomp_add(filter, refused, SCMP_SYS(socket), sandbox->makes_sockets ? 1 : 0,
			&is_of_network);
	}
	if (!sandbox->makes_sockets && !sandbox->loads_code) {
		seccomp_add(filter, refused, SCMP_SYS(bind), 0, NULL);
	}
}

static void seccomp_set(struct filter *filter, enum scmp_filter_attr attribute, uint32_t value)
{
	if (filter->code == 0) {
		filter->code = seccomp_attr_set(filter->context, attribute, value);
	}
}

/* Creates a filter. rest: action for calls without a rule. */
static int filter_begin(struct filter *filter, uint32_t rest)
{
	*filter = (struct filter){ .context = seccomp_init(rest) };
	if (filter->context == NULL) {
		return -ENOMEM;
	}
	seccomp_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
	seccomp_set(filter, SCMP_FLTATR_API_SYSRAWRC, 1);
	/* no_new_privs is already set, and prctl() is no longer allowed */
	seccomp_set(filter, SCMP_FLTATR_CTL_NNP, 0);
	seccomp_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a binary search instead of a list */
	return filter->code;
}

/* Loads the filter and frees it. */
static int filter_end(struct filter *filter)
{
	int rc = filter->code;

	rc = rc ?: seccomp_load(filter->context);
	seccomp_release(filter->context);
	return rc;
}

#if defined(__x86_64__) || defined(__aarch64__)

int seccomp_enter(const struct sandbox *sandbox)
{
	struct filter filter;

	if (filter_begin(&filter, UNKNOWN) == 0) {
		write_list(&filter, sandbox);
	}
	return filter_end(&filter);
}

int seccomp_seal(const struct sandbox *sandbox)
{
	struct filter filter;

	if (filter_begin(&filter, SCMP_ACT_ALLOW) == 0) {
		seccomp_set(
			/* Also applies to threads that already exist. */
			&filter, SCMP_FLTATR_CTL_TSYNC, 1);
		write_seal(&filter, sandbox);
	}
	return filter_end(&filter);
}

bool seccomp_works(void)
{
	return seccomp_api_get() >= 2; /* supports filters for all threads */
}

#else /* on this architecture the list of allowed calls has not been tested */

int seccomp_enter(const struct sandbox *sandbox)
{
	return -EOPNOTSUPP;
}

int seccomp_seal(const struct sandbox *sandbox)
{
	return -EOPNOTSUPP;
}

bool seccomp_works(void)
{
	return false;
}

#endif
