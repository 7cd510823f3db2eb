// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded before libclan-omniorb: a thread that asks omniORB to watch a connection is slow to do
 * so, as one is that has to wait for the lock or for a processor. Other threads run meanwhile.
 */
#include <dlfcn.h>
#include <poll.h>

#include <omniORB4/CORBA.h>

#include <SocketCollection.h>

enum { SLOW_MS = 2 };

void omni::SocketHolder::setSelectable(int now, CORBA::Boolean data_in_buffer, CORBA::Boolean hold)
{
	using function = void (*)(SocketHolder *, int, CORBA::Boolean, CORBA::Boolean);
	static const function real = reinterpret_cast<function>(
		dlsym(RTLD_NEXT, "_ZN4omni12SocketHolder13setSelectableEibb"));

	if (now == 0) {
		poll(nullptr, 0, SLOW_MS);
	}
	real(this, now, data_in_buffer, hold);
}
