// SPDX-License-Identifier: Apache-2.0
#include "attach/thread.h"

#include <signal.h>
#include <string.h>
#include <time.h>

enum { THREAD_STACK_BYTES = 256 << 10, JOIN_SECONDS = 5 };

int thread_start(pthread_t *thread, void *(*run)(void *), void *argument, struct error *error)
{
	pthread_attr_t attributes;
	sigset_t all;
	sigset_t before;
	int err;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(thread, &attributes, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return err == 0 ? 0 : error_set(error, -err, "cannot start a thread: %s", strerror(err));
}

bool thread_join_soon(pthread_t thread)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += JOIN_SECONDS;
	return pthread_timedjoin_np(thread, NULL, &end) == 0;
}
