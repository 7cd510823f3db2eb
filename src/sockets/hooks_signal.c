// SPDX-License-Identifier: Apache-2.0
/*
 * The C library's names for installing signal handlers.
 *
 * A handler can call any function that moves bytes or creates descriptors. It must not find the
 * lock held by the thread that it has interrupted. So the kernel gets a handler of ours for each of
 * the program's. If our handler interrupts the library, it queues the signal again and leaves it
 * blocked. core_unlock() unblocks the signal, and then the program's handler runs. This costs no
 * system call unless a signal arrives.
 *
 * The handler of a crash signal (such as SIGSEGV) cannot be deferred. It runs immediately
 * (core_crashed), and so do handlers that interrupt it. A handler also runs immediately if the
 * program is being replaced, because there is no unlock.
 */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "sockets/hooks.h"
#include "sockets/real.h"
#include "sockets/sockets.h"

enum { SIGNALS_END = 65 }; /* number of the kernel's signals, plus 1 */

typedef void handler(int number, siginfo_t *info, void *context);

/* The handlers that the program has installed. */
static struct {
	_Atomic(handler *) handler;
	_Atomic(int) flags; /* original values of the flags that we change */
} installed[SIGNALS_END];

enum { FLAGS_CHANGED = SA_SIGINFO | (int)SA_RESETHAND };

static _Atomic(uint64_t) interrupting; /* siginterrupt() */

bool signals_is_crash(int number)
{
	return number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL ||
	       number == SIGTRAP || number == SIGSYS || number == SIGABRT;
}

/* --- delivery of signals ---------------------------------------------------------------------- */

static void hooks_signal_run(int number, siginfo_t *info, void *context)
{
	handler *call = atomic_load(&installed[number].handler);
	bool inside = core_depth > 0;

	if ((atomic_load(&installed[number].flags) & (int)SA_RESETHAND) != 0) {
		struct sigaction once = { .sa_handler = SIG_DFL };

		(void)REAL(sigaction)(number, &once, NULL);
	}
	core_crashed += inside;
	/* A handler without SA_SIGINFO ignores the other arguments. */
	call(number, info, context);
	core_crashed -= inside;
}

/* Defers a signal until the lock is released. Returns false if the kernel has no memory for it. */
static bool defer(int number, siginfo_t *info, ucontext_t *context)
{
	sigset_t one;

	sigemptyset(&one);
	sigaddset(&one, number);
	pthread_sigmask(SIG_BLOCK, &one, NULL); /* with SA_NODEFER, the signal is not blocked yet */
	if (syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), number, info) != 0) {
		return false;
	}
	sigaddset(&context->uc_sigmask, number);
	core_deferred |= UINT64_C(1) << (number - 1);
	return true;
}

static void interrupted(int number, siginfo_t *info, void *context)
{
	int saved = errno;

	if (!core_calls() || signals_is_crash(number) || !defer(number, info, context)) {
		hooks_signal_run(number, info, context);
	}
	errno = saved;
}

/* Unblocks the signals whose handlers were deferred, so they are delivered now. */
void signals_let_in(void)
{
	int saved = errno;
	sigset_t set;

	sigemptyset(&set);
	for (int number = 1; number < SIGNALS_END; number++) {
		if ((core_deferred >> (number - 1) & 1) != 0) {
			sigaddset(&set, number);
		}
	}
	core_deferred = 0;
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	errno = saved;
}

/* --- installing handlers ---------------------------------------------------------------------- */

static bool is_ours(int number)
{
	return number > 0 && number < SIGNALS_END &&
	       atomic_load_explicit(&core.active, memory_order_relaxed);
}

static bool is_handler(const struct sigaction *action)
{
	return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

/* Installs a handler, or reads the current one. The program sees its own handler and flags in old,
 * not ours. */
static int hooks_signal_install(int number, const struct sigaction *action, struct sigaction *old)
{
	handler *handler_before = atomic_load(&installed[number].handler);
	int flags_before = atomic_load(&installed[number].flags);
	struct sigaction own;
	int result;

	if (action != NULL && is_handler(action)) {
		atomic_store(&installed[number].handler, action->sa_sigaction);
		atomic_store(&installed[number].flags, action->sa_flags & FLAGS_CHANGED);
		own = *action;
		own.sa_sigaction = interrupted;
		own.sa_flags = (own.sa_flags & ~FLAGS_CHANGED) | SA_SIGINFO;
		action = &own;
	}
	result = REAL(sigaction)(number, action, old);
	if (result != 0) {
		atomic_store(&installed[number].handler, handler_before);
		atomic_store(&installed[number].flags, flags_before);
	} else if (old != NULL && old->sa_sigaction == interrupted) {
		old->sa_sigaction = handler_before;
		old->sa_flags = (old->sa_flags & ~FLAGS_CHANGED) | flags_before;
	}
	return result;
}

EXPORT int sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
	return is_ours(number) ? hooks_signal_install(number, action, old)
			       : REAL(sigaction)(number, action, old);
}

EXPORT int __sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
	return sigaction(number, action, old);
}

static sighandler_t install_simple(int number, sighandler_t new, int flags, bool masks_itself)
{
	struct sigaction action = { .sa_handler = new, .sa_flags = flags };
	struct sigaction old;

	sigemptyset(&action.sa_mask);
	if (masks_itself) {
		sigaddset(&action.sa_mask, number);
	}
	return hooks_signal_install(number, &action, &old) == 0 ? old.sa_handler : SIG_ERR;
}

EXPORT sighandler_t signal(int number, sighandler_t new)
{
	if (!is_ours(number) || new == SIG_ERR) {
		return REAL(signal)(number, new);
	}
	return install_simple(number, new,
		(atomic_load(&interrupting) >> (number - 1) & 1) != 0 ? 0 : SA_RESTART, true);
}

EXPORT sighandler_t bsd_signal(int number, sighandler_t new)
{
	return signal(number, new);
}

EXPORT sighandler_t ssignal(int number, sighandler_t new)
{
	return signal(number, new);
}

EXPORT sighandler_t __sysv_signal(int number, sighandler_t new)
{
	if (!is_ours(number) || new == SIG_ERR) {
		return REAL(__sysv_signal)(number, new);
	}
	return install_simple(number, new, (int)SA_RESETHAND | SA_NODEFER, false);
}

EXPORT sighandler_t sysv_signal(int number, sighandler_t new)
{
	return __sysv_signal(number, new);
}

/* Emulates sigset(3): it installs a handler and unblocks the signal. SIG_HOLD only blocks it. */
EXPORT sighandler_t sigset(int number, sighandler_t new)
{
	sighandler_t old;
	sigset_t before;
	sigset_t one;

	if (!is_ours(number) || new == SIG_ERR) {
		return REAL(sigset)(number, new);
	}
	if (new == SIG_HOLD) {
		handler *installed_before = atomic_load(&installed[number].handler);

		old = REAL(sigset)(number, new);
		return old == (sighandler_t)(uintptr_t)interrupted
			       ? (sighandler_t)(uintptr_t)installed_before
			       : old;
	}
	old = install_simple(number, new, 0, false);
	sigemptyset(&one);
	sigaddset(&one, number);
	pthread_sigmask(SIG_UNBLOCK, &one, &before);
	return old != SIG_ERR && sigismember(&before, number) ? SIG_HOLD : old;
}

EXPORT int siginterrupt(int number, int flag)
{
	if (is_ours(number)) {
		uint64_t bit = UINT64_C(1) << (number - 1);

		if (flag != 0) {
			atomic_fetch_or(&interrupting, bit);
		} else {
			atomic_fetch_and(&interrupting, ~bit);
		}
	}
	return REAL(siginterrupt)(number, flag); /* changes flags only, not the handler */
}

/* Replaces the handlers that were installed before the library was loaded. */
void signals_init(void)
{
	for (int number = 1; number < SIGNALS_END; number++) {
		struct sigaction action;

		if (REAL(sigaction)(number, NULL, &action) == 0 && is_handler(&action)) {
			(void)hooks_signal_install(number, &action, NULL);
		}
	}
}
