// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded before libclan-omniorb: a thread that asks omniORB to watch a connection is slow to do
 * so, as one is that has to wait for the lock or for a processor. Other threads run meanwhile.
 *
 * Replaces omni::SocketHolder::setSelectable() by its mangled name, because it has another number
 * of parameters in omniORB 4.3 than in 4.2.
 */
#include <dlfcn.h>
#include <poll.h>

enum { SLOW_MS = 2 };

static void be_slow(int now)
{
	if (now == 0) {
		poll(nullptr, 0, SLOW_MS);
	}
}

extern "C" void _ZN4omni12SocketHolder13setSelectableEibb(
	void *holder, int now, bool data_in_buffer, bool hold)
{
	using function = void (*)(void *, int, bool, bool);
	static const function real = reinterpret_cast<function>(
		dlsym(RTLD_NEXT, "_ZN4omni12SocketHolder13setSelectableEibb"));

	be_slow(now);
	real(holder, now, data_in_buffer, hold);
}

extern "C" void _ZN4omni12SocketHolder13setSelectableEib(void *holder, int now, bool data_in_buffer)
{
	using function = void (*)(void *, int, bool);
	static const function real = reinterpret_cast<function>(
		dlsym(RTLD_NEXT, "_ZN4omni12SocketHolder13setSelectableEib"));

	be_slow(now);
	real(holder, now, data_in_buffer);
}
