// SPDX-License-Identifier: Apache-2.0
/* The filter of system calls (seccomp(2)): a list of what is allowed, written as a program for the
 * kernel's packet filter. The kernel remembers the calls that are allowed whatever their arguments,
 * so the length of the list costs nothing. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sandbox/layers.h"

#if defined(__x86_64__)
#define OUR_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OUR_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAVE_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAVE_SANITIZER 1
#endif
#endif

#ifdef OUR_ARCHITECTURE

/* Newer than some headers; the numbers are the same everywhere. */
#ifndef SYS_futex_wake
#define SYS_futex_wake	  454
#define SYS_futex_wait	  455
#define SYS_futex_requeue 456
#endif

/* What the server, the C library, GnuTLS and libfabric use while serving. Not in it: starting
 * programs, tracing, other users, mounts, clocks, modules, keys, and everything newer. */
static const uint16_t allowed_calls[] = {
	/* memory */
	SYS_brk,
	SYS_madvise,
	SYS_membarrier,
	SYS_memfd_create,
	SYS_mincore,
	SYS_mlock,
	SYS_mlock2,
	SYS_mremap,
	SYS_msync,
	SYS_munlock,
	SYS_munmap,
	SYS_get_mempolicy,
	SYS_mbind,
	SYS_set_mempolicy,
	/* threads and the process */
	SYS_exit,
	SYS_exit_group,
	SYS_futex,
	SYS_futex_waitv,
	SYS_futex_wake,
	SYS_futex_wait,
	SYS_futex_requeue,
	SYS_get_robust_list,
	SYS_getcpu,
	SYS_getegid,
	SYS_geteuid,
	SYS_getgid,
	SYS_getgroups,
	SYS_getpid,
	SYS_getppid,
	SYS_getpriority,
	SYS_getresgid,
	SYS_getresuid,
	SYS_getrusage,
	SYS_gettid,
	SYS_getuid,
	SYS_kill,
	SYS_prctl,
	SYS_prlimit64,
	SYS_restart_syscall,
	SYS_rseq,
	SYS_rt_sigaction,
	SYS_rt_sigpending,
	SYS_rt_sigprocmask,
	SYS_rt_sigreturn,
	SYS_rt_sigtimedwait,
	SYS_sched_get_priority_max,
	SYS_sched_get_priority_min,
	SYS_sched_getaffinity,
	SYS_sched_getattr,
	SYS_sched_getparam,
	SYS_sched_getscheduler,
	SYS_sched_setaffinity,
	SYS_sched_setattr,
	SYS_sched_setscheduler,
	SYS_sched_yield,
	SYS_set_robust_list,
	SYS_set_tid_address,
	SYS_setpriority,
	SYS_sigaltstack,
	SYS_signalfd4,
	SYS_sysinfo,
	SYS_tgkill,
	SYS_umask,
	SYS_uname,
	SYS_wait4,
	SYS_waitid,
	SYS_getrandom,
	/* time */
	SYS_clock_getres,
	SYS_clock_gettime,
	SYS_clock_nanosleep,
	SYS_gettimeofday,
	SYS_nanosleep,
	SYS_timerfd_create,
	SYS_timerfd_gettime,
	SYS_timerfd_settime,
	SYS_times,
	/* files */
	SYS_close,
	SYS_close_range,
	SYS_copy_file_range,
	SYS_dup,
	SYS_dup3,
	SYS_faccessat,
	SYS_faccessat2,
	SYS_fadvise64,
	SYS_fallocate,
	SYS_fchmod,
	SYS_fchmodat,
	SYS_fcntl,
	SYS_fdatasync,
	SYS_flock,
	SYS_fstat,
	SYS_fstatfs,
	SYS_fsync,
	SYS_ftruncate,
	SYS_getcwd,
	SYS_getdents64,
	SYS_lseek,
	SYS_mkdirat,
	SYS_newfstatat,
	SYS_openat,
	SYS_openat2,
	SYS_pipe2,
	SYS_pread64,
	SYS_preadv,
	SYS_preadv2,
	SYS_pwrite64,
	SYS_pwritev,
	SYS_pwritev2,
	SYS_read,
	SYS_readahead,
	SYS_readlinkat,
	SYS_readv,
	SYS_sendfile,
	SYS_splice,
	SYS_statfs,
	SYS_statx,
	SYS_sync_file_range,
	SYS_unlinkat,
	SYS_write,
	SYS_writev,
	/* events and io_uring */
	SYS_epoll_create1,
	SYS_epoll_ctl,
	SYS_epoll_pwait,
	SYS_epoll_pwait2,
	SYS_eventfd2,
	SYS_io_uring_enter,
	SYS_io_uring_register,
	SYS_io_uring_setup,
	SYS_ppoll,
	SYS_pselect6,
	/* sockets */
	SYS_accept,
	SYS_accept4,
	SYS_bind,
	SYS_connect,
	SYS_getpeername,
	SYS_getsockname,
	SYS_getsockopt,
	SYS_listen,
	SYS_recvfrom,
	SYS_recvmmsg,
	SYS_recvmsg,
	SYS_sendmmsg,
	SYS_sendmsg,
	SYS_sendto,
	SYS_setsockopt,
	SYS_shutdown,
	SYS_socketpair,
#ifdef __x86_64__
	SYS_access,
	SYS_arch_prctl,
	SYS_chmod,
	SYS_dup2,
	SYS_epoll_create,
	SYS_epoll_wait,
	SYS_eventfd,
	SYS_getdents,
	SYS_getrlimit,
	SYS_lstat,
	SYS_mkdir,
	SYS_open,
	SYS_pipe,
	SYS_poll,
	SYS_readlink,
	SYS_select,
	SYS_setrlimit,
	SYS_signalfd,
	SYS_stat,
	SYS_time,
	SYS_unlink,
#endif
#ifdef HAVE_SANITIZER
	/* The leak check at the end stops and reads the threads of the process. */
	SYS_ptrace,
	SYS_personality,
#endif
};

enum {
	FAMILIES = 4,
	/* Instructions that stand before the list, and what each check of arguments takes. */
	CHECKS_MAX = 64,
	PROGRAM_MAX = CHECKS_MAX + 2 * ARRAY_COUNT(allowed_calls),
	X32_BIT = 0x40000000,
};

struct program {
	struct sock_filter code[PROGRAM_MAX];
	uint16_t count;
};

static void add(struct program *program, struct sock_filter instruction)
{
	GMB_ASSERT(program->count < PROGRAM_MAX);
	program->code[program->count++] = instruction;
}

/* A conditional jump over what follows: so many instructions if it holds, or if it does not. */
static void add_jump(
	struct program *program, uint16_t test, uint32_t value, uint8_t if_true, uint8_t if_false)
{
	add(program, (struct sock_filter)BPF_JUMP(
			     (uint16_t)(BPF_JMP | test | BPF_K), value, if_true, if_false));
}

static void add_return(struct program *program, uint32_t verdict)
{
	add(program, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict));
}

static void add_load(struct program *program, size_t offset)
{
	add(program, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

#define REFUSE(code) (SECCOMP_RET_ERRNO | (code))

/* The low half of an argument. */
static size_t argument(uint32_t idx)
{
	size_t low = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? sizeof(uint32_t) : 0;

	return offsetof(struct seccomp_data, args) + idx * sizeof(uint64_t) + low;
}

/* The call is allowed, unless the argument has one of the bits (BPF_JSET) or is the value
 * (BPF_JEQ).
 */
static void allow_without(struct program *program, uint32_t call, uint32_t argument_idx,
	uint16_t test, uint32_t value, uint32_t code)
{
	add_jump(program, BPF_JEQ, call, 0, 4);
	add_load(program, argument(argument_idx));
	add_jump(program, test, value, 0, 1);
	add_return(program, REFUSE(code));
	add_return(program, SECCOMP_RET_ALLOW);
}

static void allow_sockets(struct program *program)
{
	static const int families[FAMILIES] = { AF_UNIX, AF_INET, AF_INET6, AF_NETLINK };

	add_jump(program, BPF_JEQ, SYS_socket, 0, FAMILIES + 3);
	add_load(program, argument(0));
	for (uint8_t i = 0; i < FAMILIES; i++) {
		add_jump(program, BPF_JEQ, (uint32_t)families[i], FAMILIES - i, 0);
	}
	add_return(program, REFUSE(EAFNOSUPPORT));
	add_return(program, SECCOMP_RET_ALLOW);
}

static void write_program(struct program *program, bool loads_code)
{
	const uint32_t namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
				    CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
	const uint32_t executable = loads_code ? 0 : PROT_EXEC; /* no bit: never refused */

	add_load(program, offsetof(struct seccomp_data, arch));
	add_jump(program, BPF_JEQ, OUR_ARCHITECTURE, 1, 0);
	add_return(program, SECCOMP_RET_KILL_PROCESS);
	add_load(program, offsetof(struct seccomp_data, nr));
	add_jump(program, BPF_JGE, X32_BIT, 0, 1);
	add_return(program, SECCOMP_RET_KILL_PROCESS);
	allow_sockets(program);
	allow_without(program, SYS_clone, 0, BPF_JSET, namespaces, EPERM);
	allow_without(program, SYS_mmap, 2, BPF_JSET, executable, EACCES);
	allow_without(program, SYS_mprotect, 2, BPF_JSET, executable, EACCES);
	/* Puts words into the mouth of whoever sits at the terminal. */
	allow_without(program, SYS_ioctl, 1, BPF_JEQ, TIOCSTI, EPERM);
	for (size_t i = 0; i < ARRAY_COUNT(allowed_calls); i++) {
		add_jump(program, BPF_JEQ, allowed_calls[i], 0, 1);
		add_return(program, SECCOMP_RET_ALLOW);
	}
	/* As an old kernel would answer: libraries know what to do then. */
	add_return(program, REFUSE(ENOSYS));
}

int seccomp_enter(const struct sandbox *sandbox)
{
	struct program program = { .count = 0 };
	struct sock_fprog filter = { .filter = program.code };

	write_program(&program, sandbox->loads_code);
	filter.len = program.count;
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) < 0 ? -errno : 0;
}

bool seccomp_works(void)
{
	const uint32_t verdict = SECCOMP_RET_ERRNO;

	return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &verdict) == 0;
}

#else /* no list for this architecture */

int seccomp_enter(const struct sandbox *sandbox)
{
	GMB_UNUSED(sandbox);
	return -EOPNOTSUPP;
}

bool seccomp_works(void)
{
	return false;
}

#endif
